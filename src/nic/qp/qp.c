/* SPDX-License-Identifier: Apache-2.0 */
#include "qp/qp.h"

const char *qp_state_name(int state) {
#define NAME(n, v) [v] = #n,
    static const char *const names[] = {RNIC_QP_STATES(NAME)};
#undef NAME
    return state >= 0 && state <= RNIC_QPS_ERR ? names[state] : "?";
}

void engine_no_timer(struct qp *qp, struct tx *tx, uint64_t now) {
    (void)qp;
    (void)tx;
    (void)now;
}

uint64_t engine_never(const struct qp *qp) {
    (void)qp;
    return NEVER;
}

bool engine_never_settles(struct qp *qp) {
    (void)qp;
    return false;
}

void qp_event(struct qp *qp, int event) {
    struct rnic_async_event e = {.event_type = event, .number = qp->pub.qp_num, .context = qp->pub.qp_context};
    event_push(&qp->nic->events, &e);
}

/* A full CQ loses the completion: the CQ and then the QP are in error (IBA 11.6.3.1, 10.10.2.3). */
static void overrun(struct qp *qp, struct cq *cq, bool first) {
    if (first) {
        struct rnic_async_event e = {.event_type = RNIC_EVENT_CQ_ERR, .context = cq->pub.cq_context};
        event_push(&qp->nic->events, &e);
    }
    if (qp->state != RNIC_QPS_ERR)
        qp_error(qp, RNIC_EVENT_QP_FATAL);
}

/* The completion of the element that has just been taken from q. */
static void push(struct qp *qp, struct wq *q, struct rnic_cq *to, const struct rnic_wc *wc, bool solicited) {
    struct cq *cq = (struct cq *)to;
    struct cqe cqe = {.wc = *wc, .freed = &q->freed, .upto = wq_tail(q)};
    bool first = !atomic_load(&cq->overrun);
    if (!cq_push(cq, &cqe, solicited))
        overrun(qp, cq, first);
}

void qp_complete_send(struct qp *qp, struct send_wqe *wqe) {
    struct rnic_wc wc = {.wr_id = wqe->wr_id,
                         .status = wqe->status,
                         .opcode = wc_opcode_of(wqe->opcode),
                         .vendor_err = wqe->vendor_err,
                         .byte_len = wqe->length,
                         .qp_num = qp->pub.qp_num};
    if (qp_is_datagram(qp))
        ah_drop(wqe->ah);
    bool wanted = qp->sq_sig_all || (wqe->flags & RNIC_SEND_SIGNALED) || wqe->status;
    wq_pop(&qp->sq);
    if (wanted)
        push(qp, &qp->sq, qp->pub.send_cq, &wc, false);
}

void qp_complete_recv(struct qp *qp, struct rnic_wc *wc, bool solicited) {
    wc->wr_id = rq_wqe(&qp->rq, wq_tail(&qp->rq))->wr_id;
    wc->qp_num = qp->pub.qp_num;
    if (!qp_is_datagram(qp))
        wc->src_qp = qp->attr.dest_qp_num;
    wq_pop(&qp->rq);
    push(qp, &qp->rq, qp->pub.recv_cq, wc, solicited);
}

bool qp_takes_shared(struct qp *qp) {
    struct srq *srq = qp->srq;
    if (!srq_take(srq, &qp->rq))
        return false;
    if (srq_below_limit(srq)) {
        struct rnic_async_event e = {.event_type = RNIC_EVENT_SRQ_LIMIT_REACHED, .context = srq->pub.srq_context};
        event_push(&qp->nic->events, &e);
    }
    return true;
}

void qp_flush_sends(struct qp *qp) {
    while (!wq_empty(&qp->sq)) {
        struct send_wqe *wqe = sq_wqe(&qp->sq, wq_tail(&qp->sq));
        wqe->status = RNIC_WC_WR_FLUSH_ERR;
        wqe->vendor_err = RNIC_VE_FLUSHED;
        qp_complete_send(qp, wqe);
    }
}

void qp_flush_receives(struct qp *qp) {
    while (!wq_empty(&qp->rq)) {
        struct rnic_wc wc = {.status = RNIC_WC_WR_FLUSH_ERR, .opcode = RNIC_WCO_RECV, .vendor_err = RNIC_VE_FLUSHED};
        qp_complete_recv(qp, &wc, false);
    }
}

void qp_forget_completions(struct qp *qp) {
    if (qp->pub.send_cq)
        cq_forget((struct cq *)qp->pub.send_cq, &qp->sq.freed);
    if (qp->pub.recv_cq)
        cq_forget((struct cq *)qp->pub.recv_cq, &qp->rq.freed);
}

void qp_error(struct qp *qp, int event) {
    qp->state = RNIC_QPS_ERR;
    if (event >= 0 && !qp->last_wqe) {
        qp->last_wqe = true;
        qp_event(qp, event);
    }
    qp->engine->flush(qp);
    if (qp->srq) /* it takes no more of the shared receives (IBA 11.6.3.2) */
        qp_event(qp, RNIC_EVENT_QP_LAST_WQE_REACHED);
}

static void to_reset(struct qp *qp) {
    qp->engine->reset(qp);
    qp_forget_completions(qp);
    wq_reset(&qp->sq);
    wq_reset(&qp->rq);
    qp->attr = (struct rnic_qp_attr){0};
    qp->attr_set = 0;
    qp->sq_draining = qp->last_wqe = false;
}

int qp_transition(struct qp *qp, int to) {
    int from = qp->state, rc = 0;
    if (to == RNIC_QPS_RESET)
        to_reset(qp);
    else if (to == RNIC_QPS_RTR)
        rc = qp->engine->rtr(qp);
    else if (to == RNIC_QPS_RTS && from == RNIC_QPS_RTR)
        qp->engine->rts(qp);
    else if (to == RNIC_QPS_SQD)
        qp->sq_draining |= from == RNIC_QPS_RTS;
    else if (to == RNIC_QPS_ERR && from != RNIC_QPS_ERR)
        qp_error(qp, -1);
    if (!rc)
        qp->state = to;
    return rc;
}
