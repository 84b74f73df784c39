/* SPDX-License-Identifier: Apache-2.0
 *
 * The environment (nic_env.h), for the files that read it: env.c has the variables, the others what their values mean.
 */
#ifndef RNIC_BASE_ENV_H
#define RNIC_BASE_ENV_H

#include "nic.h"

#define NUMBER(n, values, otherwise, text) ENV_##n,
enum env_variable { RNIC_ENV_VARS(NUMBER) };
#undef NUMBER

/* NULL for a variable that is not set, or empty. */
const char *env_value(enum env_variable which);

/* -EINVAL, with the variable's name ahead of what is wrong with it. */
int env_wrong(enum env_variable which, struct rnic_err *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* What a value means, NULL that of a variable that is not set: as the functions of nic_env.h. */
int env_parse_fault(const char *text, struct rnic_fault *fault, struct rnic_err *err);
int env_parse_events(const char *text, struct rnic_env_event events[RNIC_ENV_EVENTS], struct rnic_err *err);
int env_parse_fail(const char *text, struct rnic_fail rules[RNIC_ENV_FAIL], struct rnic_err *err);
int env_parse_names(const char *text, struct rnic_env_name names[RNIC_ENV_DEVICES], struct rnic_err *err);
int env_parse_devices(const char *text, char names[RNIC_ENV_DEVICES][32], struct rnic_err *err);
int env_parse_transport(const char *text, struct rnic_err *err);
int env_parse_rate(const char *text, struct rnic_rate *rate, struct rnic_err *err);
int env_parse_limits(const char *text, struct rnic_device_attr *attr, struct rnic_err *err);

#endif
