/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests on real devices, with their threads and sockets: a network of their own, and connected queue pairs.
 */
#ifndef RNIC_TESTS_LIVE_H
#define RNIC_TESTS_LIVE_H

#include "nic.h"

/* Without the right to a namespace the host's own lo serves as well. */
void live_isolate(void);

/* Takes an RC queue pair to RTS, towards number `dest` at address `to`; 0 or -errno. */
int live_connect(struct rnic_qp *qp, const struct rnic_gid_entry *to, uint32_t dest);

#endif
