/* SPDX-License-Identifier: Apache-2.0
 *
 * What a queue pair whose peer is on this host does without waiting for its turn: one-sided operations on the peer's
 * memory, without that process, and short SENDs.
 */
#ifndef RNIC_ROCE_DIRECT_H
#define RNIC_ROCE_DIRECT_H

#include "roce/roce.h"

/* Carries out an element that was found good and has nothing of its queue pair under way before it.  False: it is to go as
 * a request: it is none of these operations, or the peer's memory cannot be reached, or not so, which the peer is to say. */
bool direct_execute(struct qp *qp, struct send_wqe *wqe);

/* Is nothing under way, so that order holds, and is it not the first of all, which finds out whether the peer is there? */
bool direct_is_next(struct qp *qp);
/* Is there something, whose answer comes soon, and it pays to wait for that, since the element can be carried out then? */
bool direct_waits(struct qp *qp, const struct send_wqe *wqe);

/* Operations that may be done while they are posted, as 1 << enum rnic_wr_opcode: one-sided ones, and SENDs. */
#define DIRECT_ACCESS                                                                                                      (1u << RNIC_WR_RDMA_WRITE | 1u << RNIC_WR_RDMA_READ | 1u << RNIC_WR_ATOMIC_CMP_AND_SWP |                                1u << RNIC_WR_ATOMIC_FETCH_AND_ADD)
#define DIRECT_SEND (1u << RNIC_WR_SEND | 1u << RNIC_WR_SEND_WITH_IMM)
static inline uint32_t direct_operations(const struct qp *qp) {
    if (qp->tagged) /* its send queue is the device's */
        return 0;
    return (qp->remote ? DIRECT_ACCESS : 0) | (qp->ib.service == OPC_RC ? DIRECT_SEND : 0);
}
/* A work request of these, as it was when it was read. */
struct direct {
    struct rnic_send_wr wr;
    struct rnic_sge sge;
};
/* False: it is none of these, or not alone, or has more than one element. */
static inline bool direct_read(struct direct *d, uint32_t operations, const struct rnic_send_wr *wr) {
    wr_read(&d->wr, wr);
    if (d->wr.next || d->wr.num_sge != 1 || d->wr.opcode < 0 || d->wr.opcode > 31 || !(operations >> d->wr.opcode & 1))
        return false;
    read_once(&d->sge, d->wr.sg_list, sizeof d->sge);
    d->wr.sg_list = &d->sge;
    return true;
}

/* A single work request of direct_read().  Under the device's lock; false: post it.  A one-sided operation is complete
 * then; a SEND is posted and has gone out, or waits for its turn: *now is the time. */
bool direct_post(struct qp *qp, const struct rnic_send_wr *wr);
bool direct_send(struct qp *qp, const struct rnic_send_wr *wr, uint64_t *now);

#endif
