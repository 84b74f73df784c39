/* SPDX-License-Identifier: Apache-2.0
 *
 * nic_env.h: the part of nic.h, which includes it, that is about the environment: the variables that steer a device where
 * the program that opens it says nothing.  A binding asks at each open, so that a change of the environment counts.  An
 * empty variable is as one that is not set.
 */
#ifndef RNIC_NIC_ENV_H
#define RNIC_NIC_ENV_H

#include <stdbool.h>
#include <stdint.h>

struct rnic_err;

/* Name, the values that it can have, what counts without it, and what it is for. */
#define RNIC_ENV_VARS(X)                                                                                               \
    X(DEVICE, "the name or GUID of a device", "the first device of the list",                                          \
      "the device to open where the program names none")                                                               \
    X(LOCAL, "`on` or `off`", "`on`", "whether peers on this host are reached through shared memory")                  \
    X(PKEYS, "numbers with commas between them", "`0xffff`", "the port's P_Key table: `0xffff,0x8001`, for example")    \
    X(VERBS_DEBUG, "`0` or `1`", "`0`", "C programs: why a verb has failed is printed")

struct rnic_env_row {
    const char *name, *values, *otherwise, *text;
};
/* Row i of the variables; NULL past the end. */
const struct rnic_env_row *rnic_env_row(int i);

/* The device to open, NULL for the first.  The text is the environment's: it lasts until the program changes it. */
const char *rnic_env_device(void);

/* Whether C programs print why a verb has failed. */
bool rnic_env_verbs_debug(void);

/* 1: through shared memory, 0: not. */
int rnic_env_local(struct rnic_err *err);

/* P_Keys into pkeys: at most max; the number there are, 0 for the table of a device that nobody fills. */
int rnic_env_pkeys(uint16_t *pkeys, int max, struct rnic_err *err);

#endif
