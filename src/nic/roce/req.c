/* SPDX-License-Identifier: Apache-2.0
 *
 * Requester (IBA 9.7.2, 9.7.3, 9.7.7).
 *
 * A send element becomes `packets` PSNs when it is started; from then on any of its packets can be written again from
 * the element alone.  What is in flight is counted as "cost": payload plus PACKET_COST a packet, of requests and of the
 * READ responses that they ask for, since both end in a socket buffer that overflows.
 */
#include <string.h>

#include "roce/direct.h"
#include "roce/placement.h"
#include "wire/bth.h"
#include "wire/icrc.h"

static bool is_read(const struct send_wqe *wqe) { return wqe->opcode == RNIC_WR_RDMA_READ; }

static bool is_atomic(const struct send_wqe *wqe) {
    return wqe->opcode == RNIC_WR_ATOMIC_CMP_AND_SWP || wqe->opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD;
}

bool wqe_waits(const struct send_wqe *wqe) {
    const uint32_t waiting = 1u << RNIC_WR_RDMA_READ | 1u << RNIC_WR_ATOMIC_CMP_AND_SWP |
                             1u << RNIC_WR_ATOMIC_FETCH_AND_ADD | 1u << RNIC_WR_ATOMIC_WRITE | 1u << RNIC_WR_FLUSH;
    return waiting >> wqe->opcode & 1;
}

void req_init(struct qp *qp) {
    struct requester *req = &rc_of(qp)->req;
    uint32_t next = wq_tail(&qp->sq);
    *req = (struct requester){.psn = qp->attr.sq_psn,
                              .max_psn = qp->attr.sq_psn,
                              .una = qp->attr.sq_psn,
                              .next = next,
                              .window = qp->nic->max_window,
                              .threshold = qp->nic->slow_window,
                              .retries = qp->attr.retry_cnt,
                              .rnr_retries = qp->attr.rnr_retry};
}

bool req_outstanding(const struct requester *req) { return psn_diff(req->max_psn, req->una) > 0; }

bool req_has_asked(const struct requester *req) { return psn_mask(req->psn - req->una) > req->unasked; }

/* Cost of all that lies before packet i of an element. */
static uint64_t cost_at(const struct send_wqe *wqe, uint32_t i, uint32_t mtu) {
    if (i >= wqe->packets)
        return wqe->cost + wqe->length + (uint64_t)wqe->packets * PACKET_COST;
    return wqe->cost + (uint64_t)i * (mtu + PACKET_COST);
}

static uint64_t cost_next(struct qp *qp) {
    const struct rc *rc = rc_of(qp);
    if (rc->req.next == wq_head(&qp->sq) || rc->req.pkt == 0)
        return rc->req.next == wq_head(&qp->sq) || !sq_wqe(&qp->sq, rc->req.next)->started
                   ? rc->req.cost
                   : sq_wqe(&qp->sq, rc->req.next)->cost;
    return cost_at(sq_wqe(&qp->sq, rc->req.next), rc->req.pkt, rc->mtu);
}

uint32_t req_flight(struct qp *qp) {
    const struct rc *rc = rc_of(qp);
    if (rc->req.una == rc->req.psn)
        return 0;
    const struct send_wqe *oldest = sq_wqe(&qp->sq, wq_tail(&qp->sq));
    return (uint32_t)(cost_next(qp) - cost_at(oldest, psn_mask(rc->req.una - oldest->first_psn), rc->mtu));
}

/* ---------------------------------------------------------------- starting an element */

/* What is wrong with an element by itself: enum rnic_wc_status, 0 for nothing (IBA 9.9.2.3). */
static int element_fault(struct qp *qp, struct send_wqe *wqe) {
    bool eight = is_atomic(wqe) || wqe->opcode == RNIC_WR_ATOMIC_WRITE;
    if (wqe_is_local(wqe))
        return element_local(qp, wqe);
    if (wqe_waits(wqe) && qp->attr.max_rd_atomic == 0) {
        wqe->vendor_err = RNIC_VE_NO_RD_ATOMIC;
        return RNIC_WC_LOC_QP_OP_ERR;
    }
    if (eight && wqe->length != 8) {
        wqe->vendor_err = RNIC_VE_BAD_LENGTH;
        return RNIC_WC_LOC_LEN_ERR;
    }
    wqe->vendor_err = (uint8_t)element_memory(qp, wqe, is_read(wqe) || is_atomic(wqe) ? RNIC_ACCESS_LOCAL_WRITE : 0);
    return wqe->vendor_err ? RNIC_WC_LOC_PROT_ERR : 0;
}

/* Does the peer have a receive for the message with that send sequence number? */
static bool has_credit(const struct requester *req, const struct send_wqe *wqe, uint32_t ssn) {
    return !req->limited || !wqe_takes_receive(wqe) || psn_diff(req->lsn, ssn) >= 0;
}

/* Whether the first packet of an element may go out, for the first time or again.  A message that takes a receive waits
 * for credit, but one may always go out alone and ask (IBA 9.7.7.2.5). */
static bool may_begin(struct qp *qp, const struct send_wqe *wqe) {
    const struct requester *req = &rc_of(qp)->req;
    if (req->una != req->psn && !has_credit(req, wqe, wqe->started ? wqe->ssn : psn_add(req->ssn, 1)))
        return false;
    if (wqe->started)
        return true;
    return qp->state == RNIC_QPS_RTS && !((wqe->flags & RNIC_SEND_FENCE) && req->rd_count) && /* IBA 10.8.3.3 */
           !direct_waits(qp, wqe);
}

/* Packets that one READ request asks for: so many that max_rd_atomic of them fill the window. */
static uint32_t read_chunk(const struct qp *qp, const struct rc *rc) {
    uint32_t parts = qp->attr.max_rd_atomic < 4 ? qp->attr.max_rd_atomic : 4;
    uint32_t n = qp->nic->max_window / parts / (rc->mtu + PACKET_COST);
    return n ? n : 1;
}

/* Request messages that an element becomes: each part of a READ is one to the responder, which counts it (IBA 9.7.7.1).
 * What is asked for again begins in a part that has been answered, or is a whole one, so it counts for nothing. */
static uint32_t messages_of(const struct send_wqe *wqe) {
    return is_read(wqe) ? (wqe->packets - 1) / wqe->chunk + 1 : 1;
}

static bool start(struct qp *qp, struct send_wqe *wqe) {
    struct rc *rc = rc_of(qp);
    struct requester *req = &rc->req;
    wqe->status = (uint8_t)element_fault(qp, wqe);
    if (wqe->status) {
        req->halted = true;
        return false;
    }
    wqe->started = true;
    wqe->first_psn = req->psn;
    wqe->cost = req->cost;
    if (wqe_is_local(wqe) ||
        (direct_is_next(qp) && direct_execute(qp, wqe))) { /* done: it takes no PSN, and is no message */
        wqe->packets = 0;
        req->locals++;
        return true;
    }
    wqe->packets = is_atomic(wqe) ? 1 : packets_of(wqe->length, rc->mtu);
    wqe->chunk = is_read(wqe) ? read_chunk(qp, rc) : 0;
    wqe->ssn = req->ssn = psn_add(req->ssn, (int32_t)messages_of(wqe));
    req->cost = cost_at(wqe, wqe->packets, rc->mtu);
    return true;
}

/* ---------------------------------------------------------------- writing packets */

/* One request for packets i .. i + n - 1 of a READ; n = 0 for the one PSN of an empty READ is n = 1, 0 bytes. */
static enum result write_read(struct qp *qp, const struct send_wqe *wqe, uint32_t i, uint32_t n) {
    uint32_t mtu = rc_of(qp)->mtu, from = i * mtu;
    uint32_t length = i + n >= wqe->packets ? wqe->length - from : n * mtu;
    struct out out;
    if (!out_open(qp, &out, ROCE_RC_READ_REQUEST, 0, psn_add(wqe->first_psn, (int32_t)i), true, false))
        return SINK_FULL;
    message_to_srq(&out, wqe);
    uint8_t *reth = out.bth + out.row->reth;
    reth_set_va(reth, wqe->remote_addr + from);
    reth_set_rkey(reth, wqe->rkey);
    reth_set_len(reth, length);
    out_headers(&out);
    out_close(qp, &out);
    return SENT;
}

static enum result write_atomic(struct qp *qp, const struct send_wqe *wqe) {
    bool swap = wqe->opcode == RNIC_WR_ATOMIC_CMP_AND_SWP;
    struct out out;
    if (!out_open(qp, &out, swap ? ROCE_RC_CMP_SWAP : ROCE_RC_FETCH_ADD, 0, wqe->first_psn, true, false))
        return SINK_FULL;
    message_to_srq(&out, wqe);
    uint8_t *eth = out.bth + out.row->atomic_eth;
    atmeth_set_va(eth, wqe->remote_addr);
    atmeth_set_rkey(eth, wqe->rkey);
    atmeth_set_swap_add(eth, swap ? wqe->swap : wqe->compare_add);
    atmeth_set_compare(eth, swap ? wqe->compare_add : 0);
    out_headers(&out);
    out_close(qp, &out);
    return SENT;
}

/* Packets i .. i + n - 1 of an element; n is 1 but for a READ. */
static enum result write_packet(struct qp *qp, struct send_wqe *wqe, uint32_t i, uint32_t n, bool ackreq) {
    if (is_read(wqe))
        return write_read(qp, wqe, i, n);
    if (is_atomic(wqe))
        return write_atomic(qp, wqe);
    if (wqe_is_placement(wqe))
        return placement_write(qp, wqe);
    return message_write(qp, wqe, i, rc_of(qp)->mtu, ackreq);
}

/* ---------------------------------------------------------------- what goes next */

/* PSNs that a request for packet i takes.  A READ that goes out again ends where it ended first, also when the window has
 * shrunk since: a responder finds a repeated request only within one that it saved, and shorter ones, were they the first
 * to arrive, would be what it saves (IBA 9.7.5.1.3). */
static uint32_t span_at(const struct send_wqe *wqe, uint32_t i) {
    if (!is_read(wqe))
        return 1;
    uint32_t end = (i / wqe->chunk + 1) * wqe->chunk;
    return (end < wqe->packets ? end : wqe->packets) - i;
}

/* Are so few receives left at the peer that it should say when there are more? */
static bool credit_is_short(const struct requester *req, const struct send_wqe *wqe) {
    return req->limited && wqe_takes_receive(wqe) && psn_diff(req->lsn, wqe->ssn) < ACK_EVERY;
}

/* Ask for an ACK now and then, whenever somebody waits for the completion, and when nothing may follow that would ask.
 * For a message that completes silently none is asked: it would cost the peer a packet, and us another, for each. */
static bool wants_ack(struct qp *qp, const struct send_wqe *wqe, uint64_t flight_after) {
    const struct rc *rc = rc_of(qp);
    const struct requester *req = &rc->req;
    bool last = req->pkt + 1 == wqe->packets;
    if (req->unasked + 1 >= ACK_EVERY || flight_after + rc->mtu + PACKET_COST > req->window)
        return true;
    if (qp->pace.rate) /* a pause may follow, which is not to be taken for a loss */
        return true;
    if (!last)
        return false;
    if (qp->state != RNIC_QPS_RTS || credit_is_short(req, wqe))
        return true;
    if (req->next + 1 == wq_head(&qp->sq))
        return wqe->flags & RNIC_SEND_SIGNALED || wqe->asks || qp->sq_sig_all;
    const struct send_wqe *follower = sq_wqe(&qp->sq, req->next + 1); /* of a local one nothing asks */
    return wqe_is_local(follower) || !has_credit(req, follower, psn_add(wqe->ssn, 1));
}

static void note_sent(struct qp *qp, uint32_t span, bool ackreq, uint64_t now) {
    struct requester *req = &rc_of(qp)->req;
    struct send_wqe *wqe = sq_wqe(&qp->sq, req->next);
    bool first_time = req->psn == req->max_psn;
    if (first_time && !req_has_asked(req)) /* time begins with what asks (IBA 9.7.6.1.3) */
        req->progress = now;
    if (first_time) {
        COUNT(qp, requests_sent);
        req->last = req->next;
        req->last_pkt = req->pkt;
        if (!req->timing && (ackreq || wqe_waits(wqe))) {
            req->timing = true;
            req->timed_psn = req->psn;
            req->timed_at = now;
        }
    } else {
        COUNT(qp, requests_resent);
    }
    if (wqe_waits(wqe))
        req->rd_end[(req->rd_head + req->rd_count++) % MAX_RD_ATOMIC] = psn_add(req->psn, (int32_t)span);
    req->unasked = ackreq || wqe_waits(wqe) ? 0 : req->unasked + 1;
    req->psn = psn_add(req->psn, (int32_t)span);
    req->pkt += span;
    if (psn_diff(req->psn, req->max_psn) > 0)
        req->max_psn = req->psn;
    if (req->pkt == wqe->packets) {
        req->next++;
        req->pkt = 0;
    }
}

/* Goes on behind a local element, which completes when all before it are complete. */
static enum result pass_local(struct qp *qp) {
    rc_of(qp)->req.next++;
    comp_locals(qp);
    return PASSED;
}

bool req_goes_on(struct qp *qp) {
    const struct requester *req = &rc_of(qp)->req;
    if (req->halted || req->next == wq_head(&qp->sq) || (req->refused && req->psn != req->una))
        return false;
    return req->pkt || may_begin(qp, sq_wqe(&qp->sq, req->next));
}

static enum result step(struct qp *qp, uint64_t now) {
    struct rc *rc = rc_of(qp);
    struct requester *req = &rc->req;
    if (now < req->rnr_until || !req_goes_on(qp))
        return IDLE;
    struct send_wqe *wqe = sq_wqe(&qp->sq, req->next);
    if (!wqe->started && !start(qp, wqe))
        return IDLE;
    if (!wqe->packets)
        return pass_local(qp);
    uint32_t span = span_at(wqe, req->pkt);
    uint64_t flight = req_flight(qp);
    uint64_t after = flight + cost_at(wqe, req->pkt + span, rc->mtu) - cost_at(wqe, req->pkt, rc->mtu);
    if (flight && after > req->window)
        return IDLE;
    if (wqe_waits(wqe) && req->rd_count >= qp->attr.max_rd_atomic) /* IBA 9.4.4, 9.4.5 */
        return IDLE;
    if (!congestion_free(&rc->congestion, now))
        return IDLE;
    if (qp->pace.rate && !pace_allows(&qp->pace, now))
        return IDLE;
    bool ackreq = wants_ack(qp, wqe, after);
    uint64_t before = qp_sent(qp);
    enum result r = write_packet(qp, wqe, req->pkt, span, ackreq);
    if (r == SENT) {
        congestion_sent(qp, &rc->congestion, wqe_waits(wqe) ? 0 : rc->mtu, now);
        note_sent(qp, span, ackreq, now);
        qp_charge(qp, before, now);
    }
    req->halted = r == FAILED;
    return r;
}

bool req_next(struct qp *qp, uint64_t now, bool *sent) {
    uint64_t copied = qp->nic->copied;
    uint32_t turn = qp_turn(qp, BURST);
    for (uint32_t i = 0; i < turn && qp->nic->copied - copied < DIRECT_TURN; i++) {
        enum result r = step(qp, now);
        if (r == SENT)
            *sent = true;
        else if (r != PASSED)
            return r == SINK_FULL;
    }
    return true;
}

/* ---------------------------------------------------------------- short messages, while they are posted */

/* Bytes of the packet; 0: its memory is bad. */
static uint32_t write_brief(struct qp *qp, const struct send_wqe *wqe, bool ackreq, uint8_t *packet) {
    bool imm = wqe->opcode == RNIC_WR_SEND_WITH_IMM;
    uint8_t *payload = packet + BTH_BYTES + (imm ? IMMDT_BYTES : 0);
    bth_build(packet, imm ? ROCE_RC_SEND_ONLY_WITH_IMM : ROCE_RC_SEND_ONLY, 0, qp->ib.pkey, qp->attr.dest_qp_num,
              wqe->first_psn);
    bth_set_se(packet, (wqe->flags & RNIC_SEND_SOLICITED) != 0);
    bth_set_ackreq(packet, ackreq);
    if (imm)
        memcpy(packet + BTH_BYTES, &wqe->imm, IMMDT_BYTES);
    if (wqe->flags & RNIC_SEND_INLINE)
        memcpy(payload, wqe->sge, wqe->length);
    else if (sge_gather(&qp->nic->mrs, qp->pub.pd, wqe->sge, 1, 0, payload, wqe->length, NULL))
        return 0;
    return (uint32_t)(payload - packet) + wqe->length;
}

static bool send_brief(struct qp *qp, struct send_wqe *wqe, bool *ackreq) {
    struct requester *req = &rc_of(qp)->req;
    uint8_t packets[ACK_BYTES + BTH_BYTES + IMMDT_BYTES + REQ_BRIEF];
    uint64_t flight = req_flight(qp), after = flight + wqe->length + PACKET_COST;
    if ((flight && after > req->window) || !may_begin(qp, wqe) || !start(qp, wqe))
        return false;
    *ackreq = wants_ack(qp, wqe, after);
    uint32_t ack = resp_join_ack(qp, packets), n = write_brief(qp, wqe, *ackreq, packets + ack);
    if (!n || !qp->way.link->ops->put(qp->way.link, &qp->way, packets, ack + n))
        return false;
    if (ack)
        resp_ack_gone(qp);
    COUNT(qp, tx_packets);
    COUNT_N(qp, tx_bytes, n);
    return true;
}

uint64_t req_send_brief(struct qp *qp, struct send_wqe *wqe) {
    bool ackreq, sent = send_brief(qp, wqe, &ackreq);
    const struct cq_timing *timing = &qp->nic->cq_timing;
    uint64_t now = timing->clock(timing->arg); /* the peer is at work already */
    if (sent) {
        congestion_sent(qp, &rc_of(qp)->congestion, rc_of(qp)->mtu, now);
        note_sent(qp, 1, ackreq, now);
    }
    return now;
}

void req_rewind(struct qp *qp) {
    struct requester *req = &rc_of(qp)->req;
    req->psn = req->una;
    req->next = wq_tail(&qp->sq);
    req->pkt = 0;
    req->halted = false; /* found out again when its turn comes */
    req->unasked = req->refused ? ACK_EVERY : 0;
    req->probed_part = false;
    if (req->srtt)
        req->timing = false; /* Karn: an answer to a repeated packet times nothing; the first one is better than none */
    if (req->next != wq_head(&qp->sq) && sq_wqe(&qp->sq, req->next)->started)
        req->pkt = psn_mask(req->una - sq_wqe(&qp->sq, req->next)->first_psn);
    while (req->rd_count && psn_diff(req->rd_end[(req->rd_head + req->rd_count - 1) % MAX_RD_ATOMIC], req->una) > 0)
        req->rd_count--;
}

/* A part of a READ of which some packets have come, and the next one has not: its request has been executed. */
static bool answered_in_part(const struct send_wqe *wqe, uint32_t done) { return is_read(wqe) && done % wqe->chunk; }

/* The last packet asks best, since its answer covers all; while a repetition waits for the window, the oldest does.  Of a
 * READ that has been answered in part the next packet alone is asked for: the rest may be on its way, and if it is lost,
 * that answer shows it (answers_probe() in comp.c).  Not for a later one: there are responders that have forgotten then
 * what came before it.  A request that may not have arrived goes out as it was, as it may become the first to arrive. */
void req_probe(struct qp *qp, uint64_t now) {
    struct requester *req = &rc_of(qp)->req;
    if (req->psn == req->una)
        return;
    uint32_t oldest = wq_tail(&qp->sq), done = psn_mask(req->una - sq_wqe(&qp->sq, oldest)->first_psn);
    bool part = answered_in_part(sq_wqe(&qp->sq, oldest), done), last = !part && req->psn == req->max_psn;
    uint32_t i = last ? req->last_pkt : done;
    struct send_wqe *wqe = sq_wqe(&qp->sq, last ? req->last : oldest);
    uint32_t span = part ? 1 : span_at(wqe, i);
    uint64_t before = qp_sent(qp);
    if (write_packet(qp, wqe, i, span, true) != SENT) /* a retry will find out */
        return;
    qp_charge(qp, before, now);
    req->unasked = 0; /* it has asked: what follows does not put the timer off */
    req->probed_part = part;
    /* Were the wait for a lost answer a round trip, each loss would make the next one longer.  But what brings many packets
     * must not be asked for again and again, as long as it is not known how slow the wire is. */
    if (req->srtt || span == 1)
        req->timed_at = now;
    COUNT(qp, requests_resent);
    COUNT(qp, probes_sent);
}

/* What has been begun is finished in SQD too, and nothing is begun (IBA 10.3.1.5). */
void req_drained(struct qp *qp) {
    const struct requester *req = &rc_of(qp)->req;
    bool begun = req->next != wq_head(&qp->sq) && sq_wqe(&qp->sq, req->next)->started;
    if (!begun && !req_outstanding(req))
        qp_drained(qp);
}
