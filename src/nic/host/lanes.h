/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of lanes know of each other: lanes.c nothing of the others, lanes_in.c all.
 */
#ifndef RNIC_HOST_LANES_H
#define RNIC_HOST_LANES_H

#include "host/host.h"

/* lanes.c. self: what a lane is told of us.  changed: the lane has another state, or peer, than before.  ask: whoever has that
 * slot; NULL: nobody, or asked a moment ago. */
void lanes_self(const struct host *host, struct lane_self *self);
void lanes_hear(struct host *host); /* those that have said something, for a thread that was woken by it */
void lanes_changed(struct host *host, struct lane *l);
struct lane *lanes_ask(struct host *host, uint32_t slot, uint64_t now);
/* Is that queue pair's process the one behind the lane, also at that address, and does it own the slot still? */
bool lanes_is_peer(const struct lane *l, uint32_t qpn);
bool lanes_leads_to(struct host *host, struct lane *l, uint32_t qpn, const struct in6_addr *addr);
bool lanes_still_owns(struct host *host, struct lane *l, uint32_t slot);

/* lanes_way.c: may a packet of the queue pair's peer come by the lane, or NULL: the wire? */
bool lanes_takes(struct host *host, struct qp *qp, const struct packet *pkt, struct lane *l);

#endif
