/* SPDX-License-Identifier: Apache-2.0 */
#include "qp/xrc.h"

#include <errno.h>
#include <stdlib.h>

#define INDEX(number) ((number) & (XRC_SRQS - 1))

struct srq *xrc_find_srq(const struct nic *nic, const struct xrc_domain *domain, uint32_t number) {
    struct srq *srq = nic->xrc_srqs ? nic->xrc_srqs[INDEX(number)] : NULL;
    return srq && srq->pub.srq_num == number && srq->xrc == domain ? srq : NULL;
}

/* Random numbers, so that one of a queue that has gone names none that has come since. */
int xrc_add_srq(struct nic *nic, struct srq *srq, struct xrc_domain *domain, struct rnic_cq *cq) {
    if (!nic->xrc_srqs)
        nic->xrc_srqs = calloc(XRC_SRQS, sizeof(struct srq *));
    if (!nic->xrc_srqs)
        return -ENOMEM;
    uint32_t number = (uint32_t)(rng_next(&nic->rng) >> 40);
    for (int i = 0; i < XRC_SRQS; i++, number = (number + 1) & 0xFFFFFF) {
        if (!number || nic->xrc_srqs[INDEX(number)])
            continue;
        nic->xrc_srqs[INDEX(number)] = srq;
        srq->pub.srq_num = number;
        srq->xrc = domain;
        srq->cq = cq;
        return 0;
    }
    return -ENOMEM;
}

static void leave(struct qp *qp) {
    qp->srq = NULL;
    qp->pub.pd = NULL;
    qp->pub.recv_cq = NULL;
    if (!wq_empty(&qp->rq)) /* the message that had taken it cannot go on, and nobody is left to be told */
        wq_pop(&qp->rq);
}

void xrc_remove_srq(struct nic *nic, struct srq *srq) {
    nic->xrc_srqs[INDEX(srq->pub.srq_num)] = NULL;
    for (struct qp *qp = srq->xrc->qps; qp; qp = qp->xrc_next) {
        if (qp->srq == srq)
            leave(qp);
    }
}

void xrc_add_qp(struct qp *qp, struct xrc_domain *domain) {
    qp->xrc = domain;
    qp->xrc_next = domain->qps;
    domain->qps = qp;
}

void xrc_remove_qp(struct qp *qp) {
    struct qp **at = &qp->xrc->qps;
    while (*at != qp)
        at = &(*at)->xrc_next;
    *at = qp->xrc_next;
}

bool xrc_turn_to(struct qp *qp, uint32_t number, bool begins) {
    if (!begins)
        return qp->srq && qp->srq->pub.srq_num == number;
    struct srq *srq = xrc_find_srq(qp->nic, qp->xrc, number);
    if (!srq)
        return false;
    qp->srq = srq;
    qp->pub.pd = srq->pub.pd;
    qp->rq.pd = srq->pub.pd;
    qp->pub.recv_cq = srq->cq;
    return true;
}
