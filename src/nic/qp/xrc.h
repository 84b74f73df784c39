/* SPDX-License-Identifier: Apache-2.0
 *
 * Extended reliable connections (IBA Annex A14): the messages of one connection go to any of the shared receive queues of
 * a domain, as their senders say with its number.  An XRC_RECV queue pair is of the domain alone: protection domain and
 * completion queue are those of the shared receive queue that a request names.
 *
 * Everything here runs under the device's lock.
 */
#ifndef RNIC_QP_XRC_H
#define RNIC_QP_XRC_H

#include "qp/qp.h"

#define XRC_SRQS (1 << 16) /* a device can have; the lower bits of a number are the index */

struct xrc_domain {
    int handles;    /* as programs have it open; the device's */
    struct qp *qps; /* XRC_RECV */
};

/* An XRC_RECV queue pair as one program has it open (ibv_open_qp(3)). */
struct xrc_handle {
    struct qp qp; /* its public head, and qp.real; no engine */
    struct xrcd *xrcd;
    struct xrc_handle *next; /* of the same queue pair */
};

/* Gives a queue of the domain a number. 0, -ENOMEM */
int xrc_add_srq(struct nic *nic, struct srq *srq, struct xrc_domain *domain, struct rnic_cq *cq);
/* Its number means nothing any more, and no queue pair holds a receive of it. */
void xrc_remove_srq(struct nic *nic, struct srq *srq);
struct srq *xrc_find_srq(const struct nic *nic, const struct xrc_domain *domain, uint32_t number); /* or NULL */

void xrc_add_qp(struct qp *qp, struct xrc_domain *domain);
void xrc_remove_qp(struct qp *qp);

/* The queue pair turns to the queue that a request names, or stays with that of the message under way.  False: there is no
 * such queue in its domain, or it is another one. */
bool xrc_turn_to(struct qp *qp, uint32_t number, bool begins);

#endif
