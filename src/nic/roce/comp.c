/* SPDX-License-Identifier: Apache-2.0
 *
 * Completer (IBA 9.7.5, 9.7.6; errors 9.9.2): what comes back to the requester.
 *
 * Every response acknowledges all requests before it, but never a READ or an atomic, which are complete only with
 * their own response; an answer that jumps over one shows that the response was lost (an implied NAK, 9.7.5.1.1).
 */
#include <string.h>

#include "qp/why.h"
#include "roce/path.h"
#include "roce/placement.h"
#include "wire/bth.h"

/* The element completes now, or, while a peer may be reading its memory, with those that are flushed. */
static void fail_oldest(struct qp *qp, int status, int vendor_err) {
    struct send_wqe *wqe = sq_wqe(&qp->sq, wq_tail(&qp->sq));
    wqe->status = (uint8_t)status;
    wqe->vendor_err = (uint8_t)vendor_err;
    qp_close_off(qp);
    qp->failed = !qp_is_left(qp);
    if (!qp->failed)
        qp_complete_send(qp, wqe);
    if (qp->state != RNIC_QPS_ERR)
        qp_error(qp, -1); /* the completion tells; IBA 11.6.3.2 has no event for requester errors */
}

void comp_halted(struct qp *qp) {
    const struct requester *req = &rc_of(qp)->req;
    if (!req->halted || req->next != wq_tail(&qp->sq) || qp->state == RNIC_QPS_ERR)
        return;
    const struct send_wqe *wqe = sq_wqe(&qp->sq, req->next);
    fail_oldest(qp, wqe->status, wqe->vendor_err);
}

/* They never stay the oldest, so that una lies in the oldest element whenever something is outstanding. */
void comp_locals(struct qp *qp) {
    struct requester *req = &rc_of(qp)->req;
    while (req->locals) {
        struct send_wqe *wqe = sq_wqe(&qp->sq, wq_tail(&qp->sq));
        if (!wqe->started || wqe->packets)
            return;
        req->locals--;
        req->next += req->next == wq_tail(&qp->sq); /* the cursor stood before it after a rewind */
        qp_complete_send(qp, wqe);
    }
}

/* ---------------------------------------------------------------- windows and times */

/* How much longer than its queue pair is used to an answer has taken: the link makes them wait, not a peer that is far away.  What
 * may answer a repetition tells nothing of that. */
static void note_slowness(const struct qp *qp, uint64_t sample) {
    const struct requester *req = &rc_of(qp)->req;
    struct nic *nic = qp->nic;
    if (way_is_bare(&qp->way) || req->probes || req->rewound)
        return;
    uint64_t over = sample > req->srtt ? sample - req->srtt : 0; /* the first: all of it, it may be such a link */
    nic->slowest = over > nic->slowest ? over : nic->slowest - (nic->slowest - over) / 8;
}

/* Any answer to the timed packet or to a later one tells, also one that shows a loss: without a round trip time, each of
 * the answers that follow a lost one would count as a loss of its own. */
static void measure(struct qp *qp, uint32_t psn, uint64_t now) {
    struct requester *req = &rc_of(qp)->req;
    if (!req->timing || psn_diff(psn, req->timed_psn) < 0)
        return;
    req->timing = false;
    if (now <= req->timed_at) /* a thread of the program has sent it after this one had read the clock */
        return;
    uint64_t sample = now - req->timed_at;
    bool first = !req->srtt;
    note_slowness(qp, sample);
    req->srtt = first || req->guessed ? sample : req->srtt - req->srtt / 8 + sample / 8;
    req->guessed = first && req->probes;
}

/* What one cache holds is enough for a peer that answers at once; where answers take long, more is under way. */
static uint32_t window_limit(const struct qp *qp) {
    return rc_of(qp)->req.srtt > SLOW_NS ? qp->nic->slow_window : qp->nic->max_window;
}

static void widen(const struct qp *qp, uint32_t packets) {
    const struct rc *rc = rc_of(qp);
    struct requester *req = &rc_of(qp)->req;
    uint64_t full = rc->mtu + PACKET_COST, more = packets * full, limit = window_limit(qp);
    if (req->window >= limit) {
        req->window = (uint32_t)limit;
        return;
    }
    if (req->window >= req->threshold)
        more = more * full / req->window + 1;
    more += req->window;
    req->window = (uint32_t)(more < limit ? more : limit);
}

static void narrow(struct qp *qp, uint32_t divisor) {
    const struct rc *rc = rc_of(qp);
    struct requester *req = &rc_of(qp)->req;
    uint32_t least = 2 * (rc->mtu + PACKET_COST);
    req->threshold = req->window / 2 > least ? req->window / 2 : least;
    req->window = req->window / divisor > least ? req->window / divisor : least;
}

/* The peer has answered una itself: it is there, and what was counted on the way to this answer is over. */
static void heard(struct qp *qp, uint64_t now) {
    struct requester *req = &rc_of(qp)->req;
    req->retries = qp->attr.retry_cnt;
    req->progress = now;
    req->probed_part = false;
    req->rewound = 0;
    req->rewinds = 0;
    req->probes = 0;
}

static void progressed(struct qp *qp, uint32_t packets, uint64_t now) {
    struct requester *req = &rc_of(qp)->req;
    if (qp->state == RNIC_QPS_ERR) /* a completion found its queue full: flushed, there is no window any more */
        return;
    heard(qp, now);
    req->rnr_retries = qp->attr.rnr_retry;
    req->refused = false;
    widen(qp, packets);
}

/* ---------------------------------------------------------------- moving una */

static void drop_passed_reads(struct requester *req) {
    while (req->rd_count && psn_diff(req->una, req->rd_end[req->rd_head]) >= 0) {
        req->rd_head = (req->rd_head + 1) % MAX_RD_ATOMIC;
        req->rd_count--;
    }
}

/* An answer to packets sent before a rewind may overtake the repetition, whose cursor then stands before una. */
static void catch_up(struct qp *qp) {
    struct requester *req = &rc_of(qp)->req;
    if (psn_diff(req->una, req->psn) > 0)
        req_rewind(qp);
}

/* Moves una n packets on within the oldest element, and completes it at its end.  catch_up() is to follow. */
static void take(struct qp *qp, struct send_wqe *wqe, uint32_t n) {
    struct requester *req = &rc_of(qp)->req;
    bool complete = psn_mask(req->una - wqe->first_psn) + n == wqe->packets;
    req->una = psn_add(req->una, (int32_t)n);
    if (complete) {
        wqe->status = wqe->vendor_err = 0; /* of a repetition that failed, but was not needed */
        qp_complete_send(qp, wqe);
        if (req->locals)
            comp_locals(qp);
    }
}

/* Acknowledges all packets before psn.  False: a READ or atomic before psn has not been answered. */
static bool advance(struct qp *qp, uint32_t psn, uint64_t now) {
    struct requester *req = &rc_of(qp)->req;
    uint32_t moved = 0;
    bool clear = true;
    while (req->una != psn && qp->state != RNIC_QPS_ERR) {
        struct send_wqe *wqe = sq_wqe(&qp->sq, wq_tail(&qp->sq));
        if (wqe_waits(wqe)) {
            clear = false;
            break;
        }
        uint32_t left = wqe->packets - psn_mask(req->una - wqe->first_psn);
        uint32_t n = psn_mask(psn - req->una);
        n = n < left ? n : left;
        take(qp, wqe, n);
        moved += n;
    }
    if (moved) {
        progressed(qp, moved, now);
        catch_up(qp);
    }
    return clear;
}

/* ---------------------------------------------------------------- retries */

/* Sends again from una on. */
static void go_back(struct qp *qp, uint64_t now, uint32_t divisor) {
    struct requester *req = &rc_of(qp)->req;
    req->rewound = now;
    req->rewinds += req->rewinds < MAX_REWINDS;
    req->ghost = req->max_psn; /* beyond all answers */
    narrow(qp, divisor);
    req_rewind(qp);
}

/* The retries are used up: is there another path to try them on (IBA 17.2.8.1.3)? */
static bool fails_over(struct qp *qp) {
    struct requester *req = &rc_of(qp)->req;
    if (!path_fail_over(qp))
        return false;
    req->retries = qp->attr.retry_cnt;
    req->srtt = 0; /* that was the other path's */
    return true;
}

/* The same, unless the retries are used up (IBA 9.9.2.1.1). */
static void retry(struct qp *qp, uint64_t now, int vendor_err) {
    struct requester *req = &rc_of(qp)->req;
    if (req->retries) {
        req->retries--;
    } else if (!fails_over(qp)) {
        if (req->strange && req->una == qp->attr.sq_psn)
            why_strange(qp, req->answered);
        fail_oldest(qp, RNIC_WC_RETRY_EXC_ERR, vendor_err);
        return;
    }
    req->progress = now;
    req->probes = 0;
    go_back(qp, now, vendor_err == RNIC_VE_TIMEOUT ? 4 : 2);
}

/* One loss shows in many answers: those that come before the repetition can have been answered say nothing new.  A peer
 * that answers ever later answers the last repetition after that time, so it doubles until there is progress. */
static bool just_rewound(const struct requester *req, uint64_t now) {
    uint64_t wait = req->srtt ? req->srtt - req->srtt / 4 : PROBE_MIN / 2;
    return req->rewound && now - req->rewound < wait << req->rewinds;
}

/* The answer with that PSN jumps over una.  On a slow wire those of the old flight come for long; they are told by their
 * PSNs, which go on upwards: what answers the repetition begins at una again.  So does what answers a probe or an earlier
 * repetition, and nothing tells them apart; so it uses up no retry: the peer is there, and if the answer that una waits
 * for never comes, the transport timer, which this leaves alone, counts. */
static void implied_nak(struct qp *qp, uint32_t psn, uint64_t now) {
    struct requester *req = &rc_of(qp)->req;
    bool known = just_rewound(req, now) || (req->rewound && psn_diff(psn, req->ghost) >= 0);
    if (!known) {
        COUNT(qp, implied_naks);
        go_back(qp, now, 2);
    }
    req->ghost = psn;
}

void comp_timeout(struct qp *qp, uint64_t now) {
    COUNT(qp, timeouts);
    retry(qp, now, RNIC_VE_TIMEOUT);
}

/* ---------------------------------------------------------------- acknowledges */

/* Receives that the peer has posted: 5 bits of the syndrome (IBA table 44). */
static void credits(struct requester *req, uint8_t syndrome, uint32_t msn) {
    uint32_t code = syndrome & AETH_VALUE;
    req->limited = code != AETH_CREDIT_INVALID;
    if (!req->limited)
        return;
    uint32_t n = code < 2 ? code : (code & 1 ? 3u : 2u) << (code / 2 - 1);
    req->lsn = psn_add(msn, (int32_t)n);
}

/* IBA table 45 */
uint64_t rnr_delay(unsigned code) {
    static const uint32_t hundredths_ms[32] = {65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
                                               48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
                                               2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
    return (uint64_t)hundredths_ms[code & 31] * 10000;
}

/* After the wait the refused packet goes out alone and asks, not all that was under way: there are responders that answer
 * what comes behind it with a NAK of its own.  While nothing is under way, this is a copy of an earlier one. */
static void rnr(struct qp *qp, uint8_t syndrome, uint64_t now) {
    struct requester *req = &rc_of(qp)->req;
    COUNT(qp, rnr_nak_received);
    if (req->psn == req->una)
        return;
    if (qp->attr.rnr_retry != RNR_INFINITE) {
        if (req->rnr_retries == 0) {
            fail_oldest(qp, RNIC_WC_RNR_RETRY_EXC_ERR, RNIC_VE_RNR);
            return;
        }
        req->rnr_retries--;
    }
    heard(qp, now);
    req->refused = true;
    req->rnr_until = now + rnr_delay(syndrome & AETH_VALUE);
    req_rewind(qp);
}

/* Of a process of the same user on this host, what it has found may stand behind its NAK (resp_out.c). */
static void remote_error(struct qp *qp, const struct packet *pkt, uint8_t syndrome) {
    static const struct {
        uint8_t status, vendor_err;
    } table[] = {
        [AETH_NAK_INVALID_REQUEST & AETH_VALUE] = {RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_NAK_INVALID},
        [AETH_NAK_REMOTE_ACCESS & AETH_VALUE] = {RNIC_WC_REM_ACCESS_ERR, RNIC_VE_NAK_ACCESS},
        [AETH_NAK_REMOTE_OPERATIONAL & AETH_VALUE] = {RNIC_WC_REM_OP_ERR, RNIC_VE_NAK_OPERATION},
    };
    unsigned code = syndrome & AETH_VALUE;
    COUNT(qp, nak_remote_received);
    if (qp->remote)
        why_refused(qp, pkt->payload, pkt->length);
    if (code >= sizeof table / sizeof *table || !table[code].status)
        fail_oldest(qp, RNIC_WC_BAD_RESP_ERR, RNIC_VE_BAD_RESPONSE);
    else
        fail_oldest(qp, table[code].status, table[code].vendor_err);
}

static void nak(struct qp *qp, const struct packet *pkt, uint8_t syndrome, uint64_t now) {
    struct requester *req = &rc_of(qp)->req;
    bool clear = advance(qp, pkt->psn, now);
    if (qp->state == RNIC_QPS_ERR)
        return;
    bool sequence = syndrome == AETH_NAK_PSN_SEQ;
    if (sequence)
        COUNT(qp, nak_seq_received);
    if (!clear) { /* the NAK acknowledges what came before it: the responses to that are lost */
        implied_nak(qp, pkt->psn, now);
    } else if (sequence) {
        if (!req->refused && !just_rewound(req, now)) /* refused: it is what was sent behind that packet */
            retry(qp, now, RNIC_VE_SEQ_RETRY);
    } else if ((syndrome & AETH_TYPE) == AETH_RNR) {
        rnr(qp, syndrome, now);
    } else {
        remote_error(qp, pkt, syndrome);
    }
}

static void ack(struct qp *qp, const struct packet *pkt, uint64_t now) {
    const uint8_t *aeth = pkt->bth + pkt->row->aeth;
    uint8_t syndrome = aeth_syndrome(aeth);
    if ((syndrome & AETH_TYPE) == AETH_RESERVED) {
        COUNT(qp, drop_malformed);
        return;
    }
    if ((syndrome & AETH_TYPE) != AETH_ACK) {
        nak(qp, pkt, syndrome, now);
        return;
    }
    COUNT(qp, acks_received);
    credits(&rc_of(qp)->req, syndrome, aeth_msn(aeth));
    if (!advance(qp, psn_add(pkt->psn, 1), now) && qp->state != RNIC_QPS_ERR)
        implied_nak(qp, pkt->psn, now);
}

/* ---------------------------------------------------------------- responses */

static int place(struct qp *qp, const struct send_wqe *wqe, uint64_t offset, const uint8_t *data, uint32_t n) {
    return sge_scatter(&qp->nic->mrs, qp->pub.pd, wqe->sge, wqe->num_sge, offset, data, n);
}

static int place_read(struct qp *qp, const struct send_wqe *wqe, const struct packet *pkt, uint32_t i) {
    const struct rc *rc = rc_of(qp);
    if (wqe_is_placement(wqe)) /* a response of no bytes (A19.4.5) */
        return pkt->opcode == ROCE_RC_READ_RESP_ONLY && !pkt->length ? 0 : -1;
    if (wqe->opcode != RNIC_WR_RDMA_READ || pkt->length != packet_length(wqe->length, rc->mtu, i))
        return -1;
    return place(qp, wqe, (uint64_t)i * rc->mtu, pkt->payload, pkt->length);
}

static int place_atomic(struct qp *qp, const struct send_wqe *wqe, const struct packet *pkt) {
    if (wqe->opcode == RNIC_WR_RDMA_READ || wqe_is_placement(wqe))
        return -1;
    uint64_t original = atmack_orig(pkt->bth + pkt->row->atomic_ack); /* the wire's big-endian to ours */
    return place(qp, wqe, 0, (const uint8_t *)&original, sizeof original);
}

/* Is it the answer to a probe for una's packet alone?  The one that the request itself has brought would have come before
 * it: that is lost, and with it what came behind. */
static bool answers_probe(const struct requester *req, const struct send_wqe *wqe, const struct packet *pkt,
                          uint32_t i) {
    return req->probed_part && (pkt->opcode & ROCE_OPERATION) == ROCE_RC_READ_RESP_ONLY && (i + 1) % wqe->chunk &&
           i + 1 < wqe->packets;
}

/* The response that una waits for. */
static void expected_response(struct qp *qp, const struct packet *pkt, uint64_t now) {
    struct requester *req = &rc_of(qp)->req;
    struct send_wqe *wqe = sq_wqe(&qp->sq, wq_tail(&qp->sq));
    bool lost = answers_probe(req, wqe, pkt, psn_mask(req->una - wqe->first_psn));
    int ve = pkt->row->mask & OPC_READ_RESP ? place_read(qp, wqe, pkt, psn_mask(req->una - wqe->first_psn))
                                            : place_atomic(qp, wqe, pkt);
    if (ve < 0) {
        fail_oldest(qp, RNIC_WC_BAD_RESP_ERR, RNIC_VE_BAD_RESPONSE);
    } else if (ve) {
        fail_oldest(qp, RNIC_WC_LOC_PROT_ERR, ve);
    } else {
        take(qp, wqe, 1);
        drop_passed_reads(req);
        progressed(qp, 1, now);
        catch_up(qp);
        if (lost)
            go_back(qp, now, 2);
    }
}

static void response(struct qp *qp, const struct packet *pkt, uint64_t now) {
    struct requester *req = &rc_of(qp)->req;
    if (pkt->row->aeth && (aeth_syndrome(pkt->bth + pkt->row->aeth) & AETH_TYPE) == AETH_ACK)
        credits(req, aeth_syndrome(pkt->bth + pkt->row->aeth), aeth_msn(pkt->bth + pkt->row->aeth));
    bool clear = advance(qp, pkt->psn, now);
    if (qp->state == RNIC_QPS_ERR)
        return;
    if (!clear)
        implied_nak(qp, pkt->psn, now);
    else if (wqe_waits(sq_wqe(&qp->sq, wq_tail(&qp->sq))))
        expected_response(qp, pkt, now);
    else
        fail_oldest(qp, RNIC_WC_BAD_RESP_ERR, RNIC_VE_BAD_RESPONSE); /* a READ's or atomic's answer to something else */
}

bool comp_expects(const struct qp *qp, const struct packet *pkt) {
    const struct requester *req = &rc_of(qp)->req;
    return psn_diff(pkt->psn, req->max_psn) < 0 && psn_diff(pkt->psn, req->una) >= 0;
}

/* An ACK may come again only to say that there are more receives (IBA 9.7.7.2): one that says less is an old one. */
static bool tells_credits(struct qp *qp, const struct packet *pkt) {
    struct requester *req = &rc_of(qp)->req;
    const uint8_t *aeth = pkt->bth + pkt->row->aeth;
    uint32_t lsn = req->lsn;
    bool plain = (pkt->row->mask & (OPC_ACK | OPC_ATMACK)) == OPC_ACK;
    if (!plain || psn_add(pkt->psn, 1) != req->una || !req->limited || (aeth_syndrome(aeth) & AETH_TYPE) != AETH_ACK)
        return false;
    credits(req, aeth_syndrome(aeth), aeth_msn(aeth));
    if (req->limited && psn_diff(req->lsn, lsn) < 0)
        req->lsn = lsn;
    return true;
}

void comp_input(struct qp *qp, const struct packet *pkt, uint64_t now) {
    struct requester *req = &rc_of(qp)->req;
    if (!comp_expects(qp, pkt)) { /* ghosts of earlier attempts are usual, answers to nothing are not (9.7.6) */
        if (!tells_credits(qp, pkt))
            COUNT_USELESS(qp, drop_bad_psn);
        if (psn_mask(req->una - pkt->psn) <= MAX_REPEATED)
            req->echo = now;
        req->strange = true;
        req->answered = pkt->psn;
        return;
    }
    measure(qp, pkt->psn, now);
    if (!way_is_bare(&qp->way))
        qp->nic->answered = now;
    if ((pkt->row->mask & (OPC_ACK | OPC_ATMACK)) == OPC_ACK)
        ack(qp, pkt, now);
    else
        response(qp, pkt, now);
    comp_halted(qp);
    req_drained(qp);
}
