/* SPDX-License-Identifier: Apache-2.0
 *
 * One-sided operations on the memory of a process of this host, without that process.
 */
#ifndef RNIC_ROCE_DIRECT_H
#define RNIC_ROCE_DIRECT_H

#include "roce/roce.h"

/* Carries out an element that was found good and has nothing of its queue pair under way before it.  False: it is to go as
 * a request: it is none of these operations, or the peer's memory cannot be reached, or not so, which the peer is to say. */
bool direct_execute(struct qp *qp, struct send_wqe *wqe);

static inline bool direct_suits(const struct rnic_send_wr *wr) {
    const uint32_t those = 1u << RNIC_WR_RDMA_WRITE | 1u << RNIC_WR_RDMA_READ | 1u << RNIC_WR_ATOMIC_CMP_AND_SWP |
                           1u << RNIC_WR_ATOMIC_FETCH_AND_ADD;
    return wr->num_sge == 1 && wr->opcode >= 0 && wr->opcode < 32 && those >> wr->opcode & 1;
}

/* Is nothing under way, so that order holds, and is it not the first of all, which finds out whether the peer is there? */
bool direct_is_next(struct qp *qp);
/* The same for a single work request that suits, at once: it never waits in the queue.  Under the device's lock; false:
 * post it. */
bool direct_post(struct qp *qp, const struct rnic_send_wr *wr);

#endif
