/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue pair 1 on a host of many processes: whom a management datagram is for that has come to any of them.
 *
 *   mads.c      by its management class: the table
 *   cm.c        communication management
 *   others.c    how a message gets to other processes
 *   send.c      what the device says itself, as queue pair 1
 *
 * The room decides which process gets a message, and answers what is for nobody.  What a message means is known to the
 * programs that read queue pair 1; messages of other classes than those of the table are for this process' own, or for that of
 * another one where this has none.
 *
 * struct mads is the room's own.  All functions: under the device's lock.
 */
#ifndef RNIC_MAD_MADS_H
#define RNIC_MAD_MADS_H

#include "host/host.h"

struct mads {
    struct host *host;
    uint32_t psn; /* of the next that the device sends itself */
};

/* One that has come. */
struct mad_message {
    struct port *port; /* where it came in */
    struct incoming *in;
    const struct udp_datagram *d;
    uint32_t n; /* bytes of its packet */
    uint64_t now;
};

void mads_init(struct mads *mads, struct host *host);
/* Is it for this process' queue pair 1?  False: it was handed on, answered or dropped.  handed_on: another process has found
 * that it is.  *checked: its ICRC is right; else that is not known. */
bool mads_is_ours(struct mads *mads, const struct mad_message *m, bool handed_on, bool *checked);

#endif
