/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared receive queues (IBA 10.2.9): receives that many queue pairs take from, the oldest first, whichever message
 * comes first.
 */
#ifndef RNIC_QUEUE_SRQ_H
#define RNIC_QUEUE_SRQ_H

#include "queue/wq.h"

struct tag_list; /* queue/tag.h */

struct xrc_domain; /* qp/xrc.h */
struct xrcd;

struct srq {
    struct rnic_srq pub;
    struct wq q;            /* posting: its lock; taking: the device's lock */
    uint32_t limit;         /* an event when fewer are left; 0: none is armed */
    int qps;                /* that take from it */
    struct xrc_domain *xrc; /* of an XRC one: whose queue pairs take from it as requests say, else NULL; */
    struct xrcd *xrcd;      /* as it was opened for this one; the device's */
    struct rnic_cq *cq;     /* of that, and of a tag matching one: where its receives complete */
    struct tag_list *tags;  /* of a tag matching one, else NULL */
    struct listed listed;   /* in the context's list of its kind; device's lock */
};

int srq_init(struct srq *srq, uint32_t max_wr, uint32_t max_sge);
void srq_free(struct srq *srq);
/* Moves the oldest receive into a queue pair's own, empty queue; its place is free then. False: there is none. */
bool srq_take(struct srq *srq, struct wq *rq);
/* True, once: fewer are left than the limit says, which is no longer armed. */
bool srq_below_limit(struct srq *srq);
uint32_t srq_depth(struct srq *srq);
/* Other room for the receives that are posted, at least max_wr. 0, -ENOMEM, -EINVAL: more are posted */
int srq_resize(struct srq *srq, uint32_t max_wr);

#endif
