/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "qp/tagged.h"
#include "qp/why.h"
#include "qp/xrc.h"

const char *qp_state_name(int state) {
#define NAME(n, v) [v] = #n,
    static const char *const names[] = {RNIC_QP_STATES(NAME)};
#undef NAME
    return state >= 0 && state <= RNIC_QPS_ERR ? names[state] : "?";
}

const char *qp_type_name(int type) {
#define NAME(n, v) [v] = #n,
    static const char *const names[] = {RNIC_QP_TYPES(NAME)};
#undef NAME
    bool known = type >= 0 && type < (int)(sizeof names / sizeof *names) && names[type];
    return known ? names[type] : "?";
}

void engine_pace_timer(struct qp *qp, uint64_t now) {
    (void)now;
    qp->pace.wait = 0; /* next() finds out anew */
}

uint64_t engine_pace_deadline(const struct qp *qp) { return qp->pace.wait ? qp->pace.wait : NEVER; }

uint64_t engine_never(const struct qp *qp) {
    (void)qp;
    return NEVER;
}

bool engine_never_settles(struct qp *qp) {
    (void)qp;
    return false;
}

static void tell(struct qp *qp, int event, void *context) {
    struct rnic_async_event e = {.event_type = event, .number = qp->pub.qp_num, .context = context};
    event_push(&qp->nic->events, &e);
}

void qp_event(struct qp *qp, int event) {
    if (!qp->handles)
        tell(qp, event, qp->pub.qp_context);
    for (const struct xrc_handle *h = qp->handles; h; h = h->next)
        tell(qp, event, h->qp.pub.qp_context);
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

static void enter(struct qp *qp, struct rnic_cq *to, const struct cqe *cqe, bool solicited) {
    struct cq *cq = (struct cq *)to;
    bool first = !atomic_load(&cq->overrun);
    if (!cq_push_ex(cq, cqe, qp->tagged ? &qp->tagged->info : NULL, solicited))
        overrun(qp, cq, first);
}

void qp_tell(struct qp *qp, const struct rnic_wc *wc, bool solicited) {
    enter(qp, qp->pub.recv_cq, &(struct cqe){.wc = *wc}, solicited);
}

/* Its slot is free from then on, and a thread that posts may fill it at once. */
static void leave_queue(struct qp *qp, const struct send_wqe *wqe) {
    if (qp_is_datagram(qp))
        ah_drop(wqe->ah);
    if (qp->cntrs)
        qp_count(qp, comp_cntr_op(wqe->opcode), !wqe->status, wqe->length);
    wq_pop(&qp->sq);
}

void qp_complete_send(struct qp *qp, struct send_wqe *wqe) {
    if (qp->tagged) {
        tagged_sent(qp, wqe);
        return;
    }
    if (!qp->sq_sig_all && !(wqe->flags & RNIC_SEND_SIGNALED) && !wqe->status) {
        leave_queue(qp, wqe);
        return;
    }
    struct cqe cqe = {.wc = {.wr_id = wqe->wr_id,
                             .status = wqe->status,
                             .opcode = wc_opcode_of(wqe->opcode),
                             .vendor_err = wqe->vendor_err,
                             .byte_len = wqe->length,
                             .qp_num = qp->pub.qp_num},
                      .freed = &qp->sq.freed};
    if (wqe->status && wqe->status != RNIC_WC_WR_FLUSH_ERR)
        why_send_failed(qp, wqe, &cqe.wc);
    leave_queue(qp, wqe);
    cqe.upto = wq_tail(&qp->sq);
    enter(qp, qp->pub.send_cq, &cqe, false);
}

void qp_complete_recv(struct qp *qp, struct rnic_wc *wc, bool solicited) {
    if (qp->tagged && wc->status)
        tagged_fail(qp, wc);
    wc->wr_id = rq_wqe(&qp->rq, wq_tail(&qp->rq))->wr_id;
    wc->qp_num = qp->pub.qp_num;
    if (!qp_is_datagram(qp))
        wc->src_qp = qp->attr.dest_qp_num;
    qp_count(qp, RNIC_COMP_CNTR_OP_RECV, !wc->status, wc->byte_len);
    if (wc->status && wc->status != RNIC_WC_WR_FLUSH_ERR)
        why_receive_failed(qp, wc);
    wq_pop(&qp->rq);
    const struct cqe cqe = {.wc = *wc, .freed = qp->xrc ? NULL : &qp->rq.freed, .upto = wq_tail(&qp->rq)};
    enter(qp, qp->pub.recv_cq, &cqe, solicited);
}

void srq_look_at_limit(struct nic *nic, struct srq *srq) {
    struct rnic_async_event e = {.event_type = RNIC_EVENT_SRQ_LIMIT_REACHED, .context = srq->pub.srq_context};
    if (srq_below_limit(srq))
        event_push(&nic->events, &e);
}

bool qp_takes_shared(struct qp *qp) {
    struct srq *srq = qp->srq;
    if (!srq_take(srq, &qp->rq))
        return false;
    srq_look_at_limit(qp->nic, srq);
    return true;
}

bool qp_takes(struct qp *qp, const struct packet *pkt) {
    return qp->tagged ? tagged_take(qp, pkt) : qp_takes_shared(qp);
}

void qp_flush_sends(struct qp *qp) {
    while (!wq_empty(&qp->sq)) {
        struct send_wqe *wqe = sq_wqe(&qp->sq, wq_tail(&qp->sq));
        if (!qp->failed) {
            wqe->status = RNIC_WC_WR_FLUSH_ERR;
            wqe->vendor_err = RNIC_VE_FLUSHED;
        }
        qp->failed = false;
        qp_complete_send(qp, wqe);
    }
}

void qp_flush_receives(struct qp *qp) {
    while (!wq_empty(&qp->rq)) {
        struct rnic_wc wc = {.status = RNIC_WC_WR_FLUSH_ERR, .opcode = RNIC_WCO_RECV, .vendor_err = RNIC_VE_FLUSHED};
        qp_complete_recv(qp, &wc, false);
    }
}

void qp_flush(struct qp *qp) {
    qp_flush_sends(qp);
    qp_flush_receives(qp);
    if (qp->last_due)
        qp_event(qp, RNIC_EVENT_QP_LAST_WQE_REACHED);
    qp->last_due = false;
}

void qp_drained(struct qp *qp) {
    if (qp->state != RNIC_QPS_SQD || !qp->sq_draining)
        return;
    qp->sq_draining = false;
    if (qp->attr.en_sqd_async_notify)
        qp_event(qp, RNIC_EVENT_SQ_DRAINED);
}

/* IBA 10.3.1.6 */
void qp_refuse_send(struct qp *qp, struct send_wqe *wqe, int status, int vendor_err) {
    wqe->status = (uint8_t)status;
    wqe->vendor_err = (uint8_t)vendor_err;
    qp_complete_send(qp, wqe);
    if (qp->state == RNIC_QPS_RTS || qp->state == RNIC_QPS_SQD)
        qp->state = RNIC_QPS_SQE;
    qp_flush_sends(qp);
}

bool qp_send_some(struct qp *qp, uint64_t now, uint32_t most,
                  bool (*send)(struct qp *qp, struct send_wqe *wqe, uint64_t now)) {
    if (qp->state == RNIC_QPS_ERR)
        qp_flush(qp);
    if (qp->state == RNIC_QPS_SQE)
        qp_flush_sends(qp);
    uint32_t turn = qp_turn(qp, most);
    for (uint32_t i = 0; i < turn && qp->state == RNIC_QPS_RTS && !wq_empty(&qp->sq); i++) {
        if (qp->pace.rate && !pace_allows(&qp->pace, now))
            return false;
        uint64_t before = qp_sent(qp);
        if (!send(qp, sq_wqe(&qp->sq, wq_tail(&qp->sq)), now))
            return true;
        qp_charge(qp, before, now);
    }
    qp_drained(qp);
    return qp->state == RNIC_QPS_RTS && !wq_empty(&qp->sq);
}

void qp_forget_completions(struct qp *qp) {
    if (qp->pub.send_cq)
        cq_forget((struct cq *)qp->pub.send_cq, &qp->sq.freed);
    if (qp->pub.recv_cq && !qp->xrc) /* those of XRC are in the queues of many shared receive queues */
        cq_forget((struct cq *)qp->pub.recv_cq, &qp->rq.freed);
}

void qp_close_off(struct qp *qp) {
    qp_withdraw(qp);
    if (qp->exposed && way_is_bare(&qp->way))
        qp->way.link->ops->take_back(qp->way.link, qp->pub.qp_num);
    qp->farewell = (struct farewell){.peer = qp->attr.dest_qp_num};
}

bool qp_is_left(struct qp *qp) {
    if (qp->exposed)
        qp->exposed = qp->nic->have_left && !qp->nic->have_left(qp->nic->local_arg, &qp->farewell);
    return !qp->exposed;
}

/* All that is posted is flushed (IBA 10.3.1.7), which says that its memory is the program's again. */
void qp_error(struct qp *qp, int event) {
    qp->state = RNIC_QPS_ERR;
    COUNT(qp, qp_errors);
    qp_close_off(qp);
    if (event >= 0 && !qp->last_wqe) {
        qp->last_wqe = true;
        qp_event(qp, event);
    }
    qp->last_due = qp->srq || qp->xrc; /* it takes no more of the shared receives (IBA 11.6.3.2) */
    qp->engine->flush(qp);
}

/* Posts need no device's lock: whoever is inside one has seen the state that was, so it is left first. */
static void to_reset(struct qp *qp) {
    qp->state = RNIC_QPS_RESET;
    wq_await_posters(&qp->sq);
    wq_await_posters(&qp->rq);
    qp->engine->reset(qp);
    qp_forget_completions(qp);
    mw_unbind_all(&qp->windows); /* they were for the peer that it had */
    wq_reset(&qp->sq);
    wq_reset(&qp->rq);
    if (qp->tagged)
        tag_forget(qp->tagged->list, qp);
    qp->attr = (struct rnic_qp_attr){0};
    qp->pace = (struct pace){0};
    qp->sq_draining = qp->last_wqe = qp->last_due = qp->failed = qp->exposed = false;
    free(qp->why);
    qp->why = NULL;
}

int qp_transition(struct qp *qp, int to, struct rnic_err *err) {
    int from = qp->state, rc = 0;
    if (to == RNIC_QPS_RESET)
        to_reset(qp);
    else if (to == RNIC_QPS_ERR && from != RNIC_QPS_ERR)
        qp_error(qp, -1);
    else if (to != from && qp->engine->enter)
        rc = qp->engine->enter(qp, from, to, err);
    if (rc)
        return rc;
    qp->state = to;
    qp->sq_draining |= to == RNIC_QPS_SQD && from == RNIC_QPS_RTS;
    return 0;
}
