/* SPDX-License-Identifier: Apache-2.0
 *
 * Responder, the way out (IBA 9.7.5).  Responses to READs and atomics leave in the order of their requests, and an ACK
 * or NAK only after them, since each acknowledges all that came before.
 */
#include "qp/why.h"
#include "qp/xrc.h"
#include "roce/message.h"
#include "roce/resp.h"
#include "wire/bth.h"
#include "wire/icrc.h"

/* Credits: receives posted, as 5 bits rounded down (IBA table 44): 0, 1, then the leading two bits of the number, the
 * second one in the code's last bit: 2 (code 2), 3, 4, 6, 8, 12 ... */
static uint8_t credit_code(const struct qp *qp) {
    uint32_t n = wq_head(&qp->rq) - wq_tail(&qp->rq);
    if (qp->no_receives) /* how many are left says nothing: others take them, too (IBA 9.7.7.2) */
        return AETH_CREDIT_INVALID;
    if (n < 2)
        return (uint8_t)n;
    uint32_t log = 31u - (uint32_t)__builtin_clz(n), code = 2 * log + (n >> (log - 1) & 1);
    return (uint8_t)(code < AETH_CREDIT_INVALID - 1 ? code : AETH_CREDIT_INVALID - 1);
}

static void put_aeth(struct qp *qp, const struct out *out, uint8_t syndrome) {
    uint8_t *aeth = out->bth + out->row->aeth;
    aeth_set_syndrome(aeth, syndrome);
    aeth_set_msn(aeth, rc_of(qp)->resp.msn);
}

static uint8_t read_opcode(const struct resource *res) {
    bool first = res->cur == res->start, last = res->cur + 1 == res->end;
    if (first)
        return last ? ROCE_RC_READ_RESP_ONLY : ROCE_RC_READ_RESP_FIRST;
    return last ? ROCE_RC_READ_RESP_LAST : ROCE_RC_READ_RESP_MIDDLE;
}

/* Whose memory a READ reads; of XRC: NULL when the shared receive queue that it named has gone. */
static const struct rnic_pd *domain_of(const struct qp *qp, const struct resource *res) {
    if (!qp->xrc)
        return qp->pub.pd;
    const struct srq *srq = xrc_find_srq(qp->nic, qp->xrc, res->srqn);
    return srq ? srq->pub.pd : NULL;
}

/* The region may have gone since the request came: keys are checked for every packet. */
static enum result write_read(struct qp *qp, struct resource *res) {
    uint32_t mtu = rc_of(qp)->resp.mtu, n = packet_length(res->length, mtu, res->cur);
    uint64_t va = res->va + (uint64_t)res->cur * mtu;
    const struct rnic_pd *pd = domain_of(qp, res);
    uint8_t *ptr;
    struct out out;
    if (qp_remote_under(qp, pd, res->rkey, va, n, RNIC_ACCESS_REMOTE_READ, &ptr))
        return FAILED;
    if (!out_open(qp, &out, read_opcode(res), n, psn_add(res->first_psn, (int32_t)res->cur), false, false))
        return SINK_FULL;
    if (out.row->aeth)
        put_aeth(qp, &out, AETH_ACK | credit_code(qp));
    out_headers(&out);
    if (!ptr && n && mr_remote_load(&qp->nic->mrs, res->rkey, va, out_payload(&out), n))
        return FAILED;
    if (ptr && n && !mr_copy(out_payload(&out), ptr, n, out_crc(&out)))
        return FAILED;
    if (!(ptr && n) && !out.link->bare)
        out.crc = crc32_update(out.crc, out_payload(&out), n);
    out_close(qp, &out);
    return SENT;
}

static enum result write_atomic(struct qp *qp, const struct resource *res) {
    struct out out;
    if (!out_open(qp, &out, ROCE_RC_ATOMIC_ACK, 0, res->first_psn, false, false))
        return SINK_FULL;
    put_aeth(qp, &out, AETH_ACK | credit_code(qp));
    atmack_set_orig(out.bth + out.row->atomic_ack, res->result);
    out_headers(&out);
    out_close(qp, &out);
    return SENT;
}

/* A repetition that cannot be made is nothing: the requester had the answer, and the region went with its consent. */
static void refuse_response(struct qp *qp, struct resource *res, uint64_t now) {
    struct responder *resp = &rc_of(qp)->resp;
    if (res->answered) {
        COUNT(qp, drop_duplicate);
        resp_unqueue(resp, res);
        res->queued = false;
        return;
    }
    resp->psn = psn_add(res->first_psn, (int32_t)res->cur); /* the NAK carries this PSN */
    resp->queue_count = 0;
    qp_count(qp, RNIC_COMP_CNTR_OP_REMOTE_RDMA_READ, false, 0);
    uint8_t *ptr;
    int ve = qp_remote_under(qp, domain_of(qp, res), res->rkey, res->va, res->length, RNIC_ACCESS_REMOTE_READ, &ptr);
    const struct finding found =
        why_memory(qp, ve ? ve : RNIC_VE_RKEY_UNMAPPED, res->rkey, res->va, res->length, RNIC_ACCESS_REMOTE_READ, now);
    why_refuse(qp, "READ", &found);
    resp_want_nak(resp, AETH_NAK_REMOTE_ACCESS);
    if (qp->state != RNIC_QPS_ERR)
        qp_error(qp, RNIC_EVENT_QP_ACCESS_ERR);
}

void resp_next(struct qp *qp, uint64_t now) {
    struct responder *resp = &rc_of(qp)->resp;
    struct congestion *way = &rc_of(qp)->congestion;
    uint32_t turn = qp_turn(qp, BURST);
    for (uint32_t i = 0; i < turn && resp->queue_count; i++) {
        struct resource *res = &resp->res[resp->queue[resp->queue_head]];
        uint32_t asked = roce_opcode(res->opcode)->mask;
        if (!congestion_free(way, now))
            return;
        enum result sent = asked & OPC_ATOMIC ? write_atomic(qp, res) : write_read(qp, res);
        if (sent == SINK_FULL)
            return;
        if (sent == FAILED) {
            refuse_response(qp, res, now);
            continue;
        }
        COUNT(qp, responses_sent);
        congestion_sent(qp, way, asked & OPC_READ ? resp->mtu : 0, now);
        if (++res->cur < res->end)
            continue;
        if ((asked & OPC_READ) && !res->answered)
            qp_count(qp, RNIC_COMP_CNTR_OP_REMOTE_RDMA_READ, true, res->length);
        res->queued = false;
        res->answered = true;
        resp->queue_head = (resp->queue_head + 1) % resp->res_size;
        resp->queue_count--;
    }
}

static bool write_ack(struct qp *qp, uint8_t syndrome, uint32_t psn) {
    struct out out;
    if (!out_open(qp, &out, ROCE_RC_ACK, 0, psn, false, false))
        return false;
    put_aeth(qp, &out, syndrome);
    out_headers(&out);
    out_close(qp, &out);
    return true;
}

/* A NAK that ends the connection.  To a process of the same user on this host what was found stands behind it, if that may look into
 * this one: to others it would tell of keys and regions, and on the wire it has no place. */
static bool write_end(struct qp *qp, uint8_t syndrome, uint32_t psn) {
    struct out out;
    if (!qp->remote || qp->apart || !qp->why || !qp->nic->is_open || !qp->nic->is_open())
        return write_ack(qp, syndrome, psn);
    if (!out_open(qp, &out, ROCE_RC_ACK, sizeof qp->why->here, psn, false, false))
        return false;
    put_aeth(qp, &out, syndrome);
    out_headers(&out);
    out_put(&out, &qp->why->here);
    out_close(qp, &out);
    return true;
}

static bool ends(uint8_t syndrome) {
    return (syndrome & AETH_TYPE) == (AETH_NAK_REMOTE_ACCESS & AETH_TYPE) && syndrome != AETH_NAK_PSN_SEQ;
}

static void count_nak(struct qp *qp, uint8_t syndrome) {
    if ((syndrome & AETH_TYPE) == AETH_RNR)
        COUNT(qp, rnr_nak_sent);
    else if (syndrome == AETH_NAK_PSN_SEQ)
        COUNT(qp, nak_seq_sent);
    else
        COUNT(qp, nak_remote_sent);
}

bool resp_ack(struct qp *qp, uint64_t now, bool company) {
    struct responder *resp = &rc_of(qp)->resp;
    if (resp->queue_count)
        return !rc_of(qp)->congestion.waits;
    if (resp->nak_pending) { /* its PSN is the expected one, so it acknowledges all before (9.7.5.1.1) */
        bool written =
            ends(resp->syndrome) ? write_end(qp, resp->syndrome, resp->psn) : write_ack(qp, resp->syndrome, resp->psn);
        if (!written)
            return true;
        count_nak(qp, resp->syndrome);
        resp->nak_pending = false;
        resp->ack = ACK_NONE;
    }
    if (!(resp->ack == ACK_ASKED && company) && now < resp_due(qp))
        return false;
    resp->answers &= resp->ack != ACK_ASKED || company;
    if (!write_ack(qp, AETH_ACK | credit_code(qp), resp->acked))
        return true;
    COUNT(qp, acks_sent);
    resp->ack = ACK_NONE;
    return false;
}

/* A program that sleeps takes event after event, and may take the first one that comes for that of its own request, as it is with
 * network cards, which answer at once.  So its peer's, who waits for the answer too, is told of the one before the other. Nor
 * does the FIN of a rendezvous overtake the ACK of its request. */
bool resp_ack_ahead(struct qp *qp, uint64_t now) {
    const struct cq *cq = (const struct cq *)qp->pub.recv_cq;
    bool sleeps = cq && !qp->xrc && atomic_load_explicit(&cq->armed, memory_order_relaxed) != CQ_NOT_ARMED;
    return (sleeps || qp->tagged) && resp_ack(qp, now, true);
}

uint32_t resp_join_ack(const struct qp *qp, uint8_t *packet) {
    const struct responder *resp = &rc_of(qp)->resp;
    if (resp->ack != ACK_ASKED || qp->apart || resp->queue_count || resp->nak_pending)
        return 0;
    bth_build(packet, ROCE_RC_ACK, 0, qp->ib.pkey, qp->attr.dest_qp_num, resp->acked);
    aeth_set_syndrome(packet + BTH_BYTES, AETH_ACK | credit_code(qp));
    aeth_set_msn(packet + BTH_BYTES, resp->msn);
    return ACK_BYTES;
}

void resp_ack_gone(struct qp *qp) {
    COUNT(qp, tx_packets);
    COUNT_N(qp, tx_bytes, ACK_BYTES);
    qp->nic->counters.value[RNIC_CNT_local_sent]++;
    COUNT(qp, acks_sent);
    rc_of(qp)->resp.ack = ACK_NONE;
}

/* To a peer on this host, as a rule, it costs little: it is due with the next look. */
static uint64_t ack_hold(const struct qp *qp) {
    uint64_t hold = qp->nic->ack_hold;
    return hold && qp->reach_in == REACH_LOCAL && !qp->nic->hold_local ? 1 : hold;
}

uint64_t resp_due(const struct qp *qp) {
    const struct responder *resp = &rc_of(qp)->resp;
    switch (resp->ack) {
    case ACK_UNASKED:
        return resp->ack_since + UNASKED_NS;
    case ACK_ASKED:
        return resp->ack_since + ack_hold(qp);
    case ACK_NOW:
        return resp->ack_since;
    default:
        return NEVER;
    }
}
