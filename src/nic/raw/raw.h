/* SPDX-License-Identifier: Apache-2.0
 *
 * RAW_PACKET queue pairs: whole Ethernet frames, out as the application wrote them, in as the rules of flow.h say.
 *
 *   frame.c     a frame read: addresses, ports, checksums
 *   flow.c      rules, and which of them want a frame
 *   toeplitz.c, rwq.c   spreading frames over work queues
 *   raw.c       the queue pair's engine, and what happens to a frame that has come
 *
 * No I/O, no clock: frames come by raw_input(), and leave by the net's link.
 */
#ifndef RNIC_RAW_RAW_H
#define RNIC_RAW_RAW_H

#include "raw/flow.h"
#include "raw/rwq.h"

/* What the RAW_PACKET queue pairs of a device share; the device owns it. */
struct raw_net {
    struct link link; /* its put() sends a frame, to the other queue pairs of the device by raw_input() */
    struct nic *nic;
    struct flow_rule *rules;
    uint32_t mtu;   /* bytes behind the Ethernet header and its VLAN tags */
    uint8_t *frame; /* RAW_FRAME_ROOM(mtu) bytes, in which one is put together */
};
#define RAW_FRAME_ROOM(mtu) ((mtu) + ETH_BYTES + MAX_VLANS * VLAN_BYTES)

struct raw_qp {
    int flows; /* rules that steer frames to it */
    struct rss rss;
};
static inline struct raw_qp *raw_of(const struct qp *qp) { return (struct raw_qp *)qp->engine_state; }

/* The net's link's own part of a way: whose frames go by it, which do not come back to that one. */
struct raw_way {
    const struct qp *from;
} __attribute__((may_alias));
static inline const struct raw_way *raw_way(const struct way *way) {
    return (const struct raw_way *)(const void *)way->own;
}
void raw_set_way(struct qp *qp, struct link *link);
bool raw_is_from(const struct way *way, const void *qp); /* for fault_forget() */

/* Gives a frame to all who want it, but not to the queue pair that it is from (or NULL). False: nobody does. */
bool raw_input(struct raw_net *net, const struct qp *from, const uint8_t *bytes, uint32_t n);

extern const struct engine_ops raw_ops;
extern const struct transport raw_transport;

#endif
