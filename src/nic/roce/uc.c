/* SPDX-License-Identifier: Apache-2.0
 *
 * Unreliable connections (IBA 9.8.2): SENDs and WRITEs of any length to one peer, without answers.  A send is complete
 * when its last packet has gone out.  A message that loses a packet is lost, silently; the next first packet begins
 * anew, and the receive that the lost one would have taken is taken by a later one.
 */
#include <errno.h>
#include <stdlib.h>

#include "roce/inbound.h"
#include "roce/message.h"

/* ---------------------------------------------------------------- send */

static void refuse(struct qp *qp, struct send_wqe *wqe, int status, int vendor_err) {
    uc_of(qp)->pkt = 0;
    qp_refuse_send(qp, wqe, status, vendor_err);
}

static bool start(struct qp *qp, struct send_wqe *wqe) {
    const struct uc *uc = uc_of(qp);
    int ve = element_memory(qp, wqe, 0);
    if (ve) {
        refuse(qp, wqe, RNIC_WC_LOC_PROT_ERR, ve);
        return false;
    }
    wqe->started = true;
    wqe->first_psn = uc->psn;
    wqe->packets = packets_of(wqe->length, uc->mtu);
    return true;
}

static enum result local(struct qp *qp, struct send_wqe *wqe) {
    if (qp->state != RNIC_QPS_RTS)
        return IDLE;
    int status = element_local(qp, wqe);
    if (status)
        refuse(qp, wqe, status, wqe->vendor_err);
    else
        qp_complete_send(qp, wqe);
    return PASSED;
}

/* A packet of the oldest element. */
static enum result send_one(struct qp *qp, uint64_t now) {
    struct uc *uc = uc_of(qp);
    if (wq_empty(&qp->sq))
        return IDLE;
    struct send_wqe *wqe = sq_wqe(&qp->sq, wq_tail(&qp->sq));
    if (wqe_is_local(wqe))
        return local(qp, wqe);
    if (!wqe->started && (qp->state != RNIC_QPS_RTS || !start(qp, wqe)))
        return IDLE;
    if (!congestion_free(&uc->congestion, now))
        return IDLE;
    if (qp->pace.rate && !pace_allows(&qp->pace, now))
        return IDLE;
    uint64_t before = qp_sent(qp);
    enum result result = message_write(qp, wqe, uc->pkt, uc->mtu, false);
    if (result == FAILED)
        refuse(qp, wqe, wqe->status, wqe->vendor_err);
    if (result != SENT)
        return result;
    COUNT(qp, requests_sent);
    congestion_sent(qp, &uc->congestion, uc->mtu, now);
    qp_charge(qp, before, now);
    uc->psn = psn_add(uc->psn, 1);
    if (++uc->pkt < wqe->packets)
        return SENT;
    uc->pkt = 0;
    qp_complete_send(qp, wqe);
    return SENT;
}

static void flush(struct qp *qp) {
    uc_of(qp)->pkt = 0;
    qp_flush(qp);
}

static bool next(struct qp *qp, uint64_t now) {
    enum result result = SENT;
    if (congestion_owes(&uc_of(qp)->congestion) && !congestion_notify(qp, &uc_of(qp)->congestion, now))
        return true;
    if (qp->state == RNIC_QPS_ERR)
        flush(qp);
    if (qp->state == RNIC_QPS_SQE)
        qp_flush_sends(qp);
    uint32_t turn = qp_turn(qp, BURST);
    for (uint32_t i = 0; i < turn && (result == SENT || result == PASSED); i++)
        result = qp->state == RNIC_QPS_RTS || qp->state == RNIC_QPS_SQD ? send_one(qp, now) : IDLE;
    if (!uc_of(qp)->pkt) /* what has been begun is finished in SQD too (IBA 10.3.1.5) */
        qp_drained(qp);
    return result != IDLE && result != FAILED;
}

/* ---------------------------------------------------------------- receive */

/* Nobody is told: the message is dropped up to its last packet (IBA 9.9.3, class D). */
static void drop(struct qp *qp, int counter) {
    uc_of(qp)->in.message = 0;
    qp->counters.value[counter]++;
    qp->nic->counters.value[counter]++;
}

/* A receive whose own memory is bad is an error of this end (class F). */
static void fail_receive(struct qp *qp, int vendor_err) {
    struct rnic_wc wc = {.status = RNIC_WC_LOC_PROT_ERR, .opcode = RNIC_WCO_RECV, .vendor_err = (uint32_t)vendor_err};
    qp_complete_recv(qp, &wc, true);
    if (qp->state != RNIC_QPS_ERR)
        qp_error(qp, -1);
}

static void executed(struct qp *qp, const struct packet *pkt) {
    struct inbound *in = &uc_of(qp)->in;
    COUNT(qp, requests_executed);
    qp->nic->silent += (pkt->row->mask & (OPC_LAST | OPC_USES_RQ)) == OPC_LAST;
    inbound_proceed(in, pkt);
    inbound_complete(qp, in, pkt);
}

static void execute(struct qp *qp, const struct packet *pkt) {
    struct uc *uc = uc_of(qp);
    uint8_t *ptr;
    static const int reasons[] = {[FAULT_RNR] = RNIC_CNT_drop_no_receive,
                                  [FAULT_LENGTH] = RNIC_CNT_drop_malformed,
                                  [FAULT_TOO_LONG] = RNIC_CNT_drop_too_long,
                                  [FAULT_DENIED] = RNIC_CNT_drop_access};
    enum fault fault = inbound_length(&uc->in, pkt, uc->mtu_in);
    if (!fault)
        fault = inbound_allowed(qp, pkt);
    if (!fault)
        fault = inbound_receive(qp, &uc->in, pkt);
    if (fault) {
        drop(qp, reasons[fault]);
    } else if (pkt->row->mask & OPC_SEND) {
        int ve = inbound_store_send(qp, &uc->in, pkt);
        if (ve)
            fail_receive(qp, ve);
        else
            executed(qp, pkt);
    } else if (inbound_access(qp, &uc->in, pkt, &ptr) || inbound_store_write(qp, &uc->in, pkt, ptr)) {
        drop(qp, RNIC_CNT_drop_access);
    } else {
        executed(qp, pkt);
    }
}

/* The PSN shows what was lost.  A packet that begins a message is welcome whatever its PSN; one that goes on with a
 * message of which something is missing is not (IBA 9.8.2.2). */
static void input(struct qp *qp, const struct packet *pkt, uint64_t now) {
    struct uc *uc = uc_of(qp);
    bool gap = pkt->psn != uc->rcv_psn, first = pkt->row->mask & OPC_FIRST;
    if (pkt->marked)
        congestion_marked(qp, &uc->congestion, now);
    if (pkt->row->mask & OPC_CNP) {
        congestion_cut(qp, &uc->congestion, now);
        return;
    }
    if (qp->state == RNIC_QPS_ERR) {
        COUNT(qp, drop_bad_state);
        return;
    }
    if (!uc->established && qp->state == RNIC_QPS_RTR)
        qp_event(qp, RNIC_EVENT_COMM_EST);
    uc->established = true;
    uc->rcv_psn = psn_add(pkt->psn, 1);
    if (gap)
        COUNT(qp, out_of_sequence);
    if (gap || first)
        uc->in.message = 0;
    if (inbound_sequence(&uc->in, pkt) != OK)
        drop(qp, RNIC_CNT_drop_incomplete);
    else
        execute(qp, pkt);
}

static bool expects(const struct qp *qp, const struct packet *pkt) {
    const struct uc *uc = uc_of(qp);
    if (qp->state == RNIC_QPS_ERR || pkt->row->mask & OPC_CNP)
        return false;
    return pkt->row->mask & OPC_FIRST || (pkt->psn == uc->rcv_psn && inbound_sequence(&uc->in, pkt) == OK);
}

/* ---------------------------------------------------------------- the engine */

static int create(struct qp *qp) {
    qp->engine_state = calloc(1, sizeof(struct uc));
    return qp->engine_state ? 0 : -ENOMEM;
}

static void reset(struct qp *qp) {
    roce_forget(qp);
    *uc_of(qp) = (struct uc){0};
}

static void destroy(struct qp *qp) { free(qp->engine_state); }

static int enter(struct qp *qp, int from, int to, struct rnic_err *err) {
    struct uc *uc = uc_of(qp);
    (void)err;
    if (to == RNIC_QPS_RTR) {
        uc->mtu = uc->mtu_in = mtu_bytes(qp->attr.path_mtu);
        uc->rcv_psn = qp->attr.rq_psn;
    } else if (to == RNIC_QPS_RTS && from == RNIC_QPS_RTR) {
        uc->psn = qp->attr.sq_psn;
    }
    return 0;
}

static uint64_t deadline(const struct qp *qp) {
    uint64_t free = congestion_deadline(&uc_of(qp)->congestion), pace = engine_pace_deadline(qp);
    return free < pace ? free : pace;
}

static void stats(struct qp *qp, struct rnic_qp_stats *out) {
    out->rate = congestion_rate(&uc_of(qp)->congestion);
    out->snd_psn = out->snd_una = uc_of(qp)->psn;
    out->rcv_psn = uc_of(qp)->rcv_psn;
}

static void set_mtu(struct qp *qp, uint32_t bytes) { uc_of(qp)->mtu = bytes; }

static void set_mtu_in(struct qp *qp, uint32_t bytes) { uc_of(qp)->mtu_in = bytes; }

/* Nothing shows that a packet is the peer's, and nothing is answered: each may come as it likes. */
static bool has_begun(const struct qp *qp) {
    (void)qp;
    return false;
}

const struct engine_ops roce_uc_ops = {
    .create = create,
    .destroy = destroy,
    .reset = reset,
    .check = roce_check,
    .take = roce_take,
    .enter = enter,
    .disconnect = roce_disconnect,
    .input = input,
    .expects = expects,
    .next = next,
    .timer = engine_pace_timer,
    .deadline = deadline,
    .held = engine_never,
    .settle = engine_never_settles,
    .flush = flush,
    .stats = stats,
    .set_mtu = set_mtu,
    .set_mtu_in = set_mtu_in,
    .has_begun = has_begun,
};
