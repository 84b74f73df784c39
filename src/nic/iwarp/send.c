/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose message is next: the send queue's, or an answer to the peer.  They take turns, message for message (RFC 5041, 5.3).
 *
 * SENDs and WRITEs are complete when they have been given to the link, or (quiet.c) when the peer has them, READs and atomics when
 * they are answered; all in the order in which they were posted.
 */
#include "iwarp/engine.h"

#include <string.h>

#include "qp/element.h"

#define OP(name) (1u << RNIC_WR_##name)

static bool is_one_of(const struct send_wqe *wqe, uint32_t operations) { return operations >> wqe->opcode & 1; }
static bool is_atomic(const struct send_wqe *wqe) {
    return is_one_of(wqe, OP(ATOMIC_CMP_AND_SWP) | OP(ATOMIC_FETCH_AND_ADD));
}
static bool is_write(const struct send_wqe *wqe) { return is_one_of(wqe, OP(RDMA_WRITE) | OP(RDMA_WRITE_WITH_IMM)); }
bool send_waits(const struct send_wqe *wqe) { return wqe->opcode == RNIC_WR_RDMA_READ || is_atomic(wqe); }

void send_init(struct qp *qp) {
    struct iwarp *iw = iwarp_of(qp);
    iw->snd = (struct sender){.next = wq_tail(&qp->sq),
                              .answer = wq_tail(&qp->sq),
                              .msn = {1, 1},
                              .rtr_due = iw->agreed.initiator && iw->agreed.rtr};
    quiet_start(qp);
}

/* ---------------------------------------------------------------- elements that are done */

struct send_wqe *send_awaited(struct qp *qp) {
    struct sender *snd = &iwarp_of(qp)->snd;
    if ((int32_t)(wq_tail(&qp->sq) - snd->answer) > 0) /* those have completed, and others stand in their places */
        snd->answer = wq_tail(&qp->sq);
    for (; (int32_t)(snd->next - snd->answer) > 0; snd->answer++) {
        struct send_wqe *wqe = sq_wqe(&qp->sq, snd->answer);
        if (send_waits(wqe) && !wqe->done)
            return wqe;
    }
    return NULL;
}

void send_answered(struct qp *qp) {
    struct sender *snd = &iwarp_of(qp)->snd;
    sq_wqe(&qp->sq, snd->answer)->done = true;
    snd->confirmed = ++snd->answer;
    snd->waiting--;
    send_complete(qp);
}

void send_blame(struct qp *qp, uint32_t element, int status, int vendor_err) {
    struct sender *snd = &iwarp_of(qp)->snd;
    struct send_wqe *wqe = sq_wqe(&qp->sq, element);
    wqe->status = (uint8_t)status;
    wqe->vendor_err = (uint8_t)vendor_err;
    snd->blamed = true;
    snd->blame = element;
}

static bool is_under_way(struct qp *qp, uint32_t element) {
    return element != iwarp_of(qp)->snd.next || (element != wq_head(&qp->sq) && sq_wqe(&qp->sq, element)->started);
}

/* A segment of a WRITE, behind its length. */
static bool holds(const struct send_wqe *wqe, const uint8_t *ddp) {
    uint64_t at = ddp_to(ddp) - wqe->remote_addr, ulpdu = mpa_length(ddp - MPA_LENGTH_BYTES);
    uint64_t n = ulpdu > DDP_TAGGED_BYTES ? ulpdu - DDP_TAGGED_BYTES : 0;
    return at <= wqe->length && n <= wqe->length - at;
}

/* Is the segment one of that message? */
static bool is_of(const struct send_wqe *wqe, const uint8_t *ddp) {
    unsigned opcode = rdmap_opcode(ddp);
    if (opcode == RDMAP_WRITE)
        return is_write(wqe) && ddp_stag(ddp) == wqe->rkey && holds(wqe, ddp);
    if (wqe_is_local(wqe) || ddp_tagged(ddp) || ddp_msn(ddp) != wqe->msn)
        return false;
    return ddp_qn(ddp) == QUEUE_REQUEST ? send_waits(wqe) && !wqe->done
                                        : !send_waits(wqe) && wqe->opcode != RNIC_WR_RDMA_WRITE;
}

bool send_find(struct qp *qp, const uint8_t *ddp, uint32_t *element) {
    uint32_t end = iwarp_of(qp)->snd.next + 1;
    for (*element = wq_tail(&qp->sq); *element != end && is_under_way(qp, *element); ++*element) {
        if (!ddp || is_of(sq_wqe(&qp->sq, *element), ddp))
            return true;
    }
    return false;
}

/* One that has failed by itself ends the connection when it is the oldest. */
static void tell_failure(struct qp *qp) {
    struct sender *snd = &iwarp_of(qp)->snd;
    const struct send_wqe *wqe = sq_wqe(&qp->sq, snd->next);
    if (!snd->halted || wq_tail(&qp->sq) != snd->next)
        return;
    send_blame(qp, snd->next, wqe->status, wqe->vendor_err);
    term_refuse(qp, BAD_LOCAL, wqe->vendor_err, NULL, 0);
}

static bool is_complete(const struct qp *qp, uint32_t element) {
    const struct iwarp *iw = iwarp_of(qp);
    const struct send_wqe *wqe = sq_wqe(&qp->sq, element);
    if (!wqe->done || iw->out.written < wqe->end || (iw->snd.blamed && element == iw->snd.blame))
        return false;
    return !quiet_confirms(qp, wqe) || (int32_t)(iw->snd.confirmed - element) > 0;
}

void send_complete(struct qp *qp) {
    uint32_t tail;
    while ((tail = wq_tail(&qp->sq)) != iwarp_of(qp)->snd.next && is_complete(qp, tail))
        qp_complete_send(qp, sq_wqe(&qp->sq, tail));
    tell_failure(qp);
    if (send_drained(qp))
        qp_drained(qp);
}

bool send_drained(const struct qp *qp) {
    return qp->state == RNIC_QPS_SQD && wq_tail(&qp->sq) == iwarp_of(qp)->snd.limit;
}

/* Of those that go, one may have a status that the others have not. */
void send_flush(struct qp *qp) {
    struct sender *snd = &iwarp_of(qp)->snd;
    while (snd->blamed && wq_tail(&qp->sq) != snd->blame) {
        struct send_wqe *wqe = sq_wqe(&qp->sq, wq_tail(&qp->sq));
        wqe->status = RNIC_WC_WR_FLUSH_ERR;
        wqe->vendor_err = RNIC_VE_FLUSHED;
        qp_complete_send(qp, wqe);
    }
    qp->failed = snd->blamed;
    qp_flush_sends(qp);
    *snd = (struct sender){.next = wq_tail(&qp->sq), .answer = wq_tail(&qp->sq)};
}

/* ---------------------------------------------------------------- an element begins */

/* What is wrong with an element by itself: enum rnic_wc_status, 0 for nothing. */
static int element_fault(struct qp *qp, struct send_wqe *wqe) {
    if (wqe_is_local(wqe))
        return element_local(qp, wqe);
    if (send_waits(wqe) && !qp->attr.max_rd_atomic) {
        wqe->vendor_err = RNIC_VE_NO_RD_ATOMIC;
        return RNIC_WC_LOC_QP_OP_ERR;
    }
    if (is_atomic(wqe) && wqe->length != sizeof(uint64_t)) {
        wqe->vendor_err = RNIC_VE_BAD_LENGTH;
        return RNIC_WC_LOC_LEN_ERR;
    }
    wqe->vendor_err = (uint8_t)element_memory(qp, wqe, send_waits(wqe) ? RNIC_ACCESS_LOCAL_WRITE : 0);
    return wqe->vendor_err ? RNIC_WC_LOC_PROT_ERR : 0;
}

static bool start(struct qp *qp, struct send_wqe *wqe) {
    struct sender *snd = &iwarp_of(qp)->snd;
    wqe->status = (uint8_t)element_fault(qp, wqe);
    snd->halted = wqe->status;
    if (snd->halted)
        return false;
    wqe->started = true;
    if (send_waits(wqe))
        wqe->msn = snd->msn[1]; /* or what is next when it goes: a READ of no bytes may go first */
    else if (!wqe_is_local(wqe) && wqe->opcode != RNIC_WR_RDMA_WRITE)
        wqe->msn = snd->msn[0]++;
    return true;
}

/* All of it has been put into FPDUs. */
static void proceed(struct qp *qp, struct send_wqe *wqe) {
    struct sender *snd = &iwarp_of(qp)->snd;
    wqe->done = !send_waits(wqe);
    wqe->end = iwarp_of(qp)->out.begun;
    if (send_waits(wqe) && !snd->waiting++)
        snd->answer = snd->next;
    quiet_follow(qp, wqe);
    snd->next++;
    snd->offset = 0;
    snd->immediate = false;
}

/* ---------------------------------------------------------------- its segments */

static enum result send_read(struct qp *qp, struct send_wqe *wqe) {
    struct fpdu f;
    if (!fpdu_open(qp, &f, DDP_UNTAGGED_BYTES + READ_REQUEST_BYTES, 0))
        return NO_ROOM;
    wqe->msn = iwarp_of(qp)->snd.msn[1]++;
    uint8_t *read = f.ddp + DDP_UNTAGGED_BYTES;
    ddp_put_untagged(f.ddp, RDMAP_READ_REQUEST, true, wqe->msn, 0);
    read_set_sink_stag(read, wqe->msn); /* good for this answer alone, as place.c takes no other; offsets from 0 on */
    read_set_sink_to(read, 0);
    read_set_length(read, wqe->length);
    read_set_stag(read, wqe->rkey);
    read_set_to(read, wqe->remote_addr);
    fpdu_headers(qp, &f);
    fpdu_close(qp, &f);
    proceed(qp, wqe);
    return SENT;
}

static enum result send_atomic(struct qp *qp, struct send_wqe *wqe) {
    bool compares = wqe->opcode == RNIC_WR_ATOMIC_CMP_AND_SWP;
    struct fpdu f;
    if (!fpdu_open(qp, &f, DDP_UNTAGGED_BYTES + ATOMIC_REQUEST_BYTES, 0))
        return NO_ROOM;
    wqe->msn = iwarp_of(qp)->snd.msn[1]++;
    uint8_t *atomic = f.ddp + DDP_UNTAGGED_BYTES;
    ddp_put_untagged(f.ddp, RDMAP_ATOMIC_REQUEST, true, wqe->msn, 0);
    put_be32(atomic, compares ? ATOMIC_CMP_SWAP : ATOMIC_FETCH_ADD);
    atomic_set_id(atomic, wqe->msn);
    atomic_set_stag(atomic, wqe->rkey);
    atomic_set_to(atomic, wqe->remote_addr);
    atomic_set_data(atomic, compares ? wqe->swap : wqe->compare_add);
    atomic_set_data_mask(atomic, compares ? UINT64_MAX : 0); /* of an addition: where carries stop */
    atomic_set_compare(atomic, compares ? wqe->compare_add : 0);
    atomic_set_compare_mask(atomic, compares ? UINT64_MAX : 0);
    fpdu_headers(qp, &f);
    fpdu_close(qp, &f);
    proceed(qp, wqe);
    return SENT;
}

/* RFC 7306, 6: behind a WRITE, whose peer learns by it that all of that is there. */
static enum result send_immediate(struct qp *qp, struct send_wqe *wqe) {
    bool solicited = wqe->flags & RNIC_SEND_SOLICITED;
    struct fpdu f;
    if (!fpdu_open(qp, &f, DDP_UNTAGGED_BYTES + IMMEDIATE_BYTES, 0))
        return NO_ROOM;
    ddp_put_untagged(f.ddp, solicited ? RDMAP_IMMEDIATE_SE : RDMAP_IMMEDIATE, true, wqe->msn, 0);
    immediate_set_data(f.ddp + DDP_UNTAGGED_BYTES, 0);
    memcpy(f.ddp + DDP_UNTAGGED_BYTES, &wqe->imm, sizeof wqe->imm);
    fpdu_headers(qp, &f);
    fpdu_close(qp, &f);
    proceed(qp, wqe);
    return SENT;
}

static void put_send(uint8_t *ddp, const struct send_wqe *wqe, bool last, uint32_t offset) {
    bool solicited = wqe->flags & RNIC_SEND_SOLICITED, invalidates = wqe->opcode == RNIC_WR_SEND_WITH_INV;
    unsigned opcode = invalidates ? (solicited ? RDMAP_SEND_SE_INV : RDMAP_SEND_INV)
                      : solicited ? RDMAP_SEND_SE
                                  : RDMAP_SEND;
    ddp_put_untagged(ddp, opcode, last, wqe->msn, offset);
    if (invalidates)
        rdmap_set_inv_stag(ddp, wqe->imm);
}

/* A segment of a SEND or WRITE (RFC 5041, 5.2). */
static enum result send_segment(struct qp *qp, struct send_wqe *wqe) {
    struct sender *snd = &iwarp_of(qp)->snd;
    uint32_t header = is_write(wqe) ? DDP_TAGGED_BYTES : DDP_UNTAGGED_BYTES;
    uint32_t most = out_most(qp) - header, left = wqe->length - snd->offset, n = left < most ? left : most;
    const struct source from = {false, snd->next, snd->offset};
    struct fpdu f;
    if (!fpdu_open(qp, &f, header, n))
        return NO_ROOM;
    if (is_write(wqe))
        ddp_put_tagged(f.ddp, RDMAP_WRITE, n == left, wqe->rkey, wqe->remote_addr + snd->offset);
    else
        put_send(f.ddp, wqe, n == left, snd->offset);
    fpdu_headers(qp, &f);
    wqe->vendor_err = (uint8_t)fpdu_payload(qp, &f, &from);
    if (wqe->vendor_err) {
        wqe->status = RNIC_WC_LOC_PROT_ERR;
        snd->halted = true;
        return FAILED;
    }
    fpdu_close(qp, &f);
    snd->offset += n;
    snd->immediate = n == left && wqe->opcode == RNIC_WR_RDMA_WRITE_WITH_IMM;
    if (n == left && !snd->immediate)
        proceed(qp, wqe);
    return SENT;
}

/* ---------------------------------------------------------------- whose turn */

/* The next element that may be sent, if it has not been begun: not beyond what was posted before SQD, not while a READ that it
 * waits for has no answer (RFC 5040, 5.5: a fence; RFC 5040, 6.1: ORD). */
static bool may_begin(struct qp *qp) {
    const struct sender *snd = &iwarp_of(qp)->snd;
    if (snd->halted || snd->next == (qp->state == RNIC_QPS_SQD ? snd->limit : wq_head(&qp->sq)))
        return false;
    const struct send_wqe *wqe = sq_wqe(&qp->sq, snd->next);
    if ((wqe->flags & RNIC_SEND_FENCE) && snd->waiting)
        return false;
    uint32_t waiting = snd->waiting + snd->quiet.waits;
    return !send_waits(wqe) || !waiting || waiting < qp->attr.max_rd_atomic;
}

/* A responder waits for the first FPDU of the initiator (RFC 5044, 7.1): for ever, says the RFC.  Linux's siw does not wait at all;
 * programs whose server speaks first run over siw, and are to run here.  But an initiator of siw that finds an FPDU behind the reply
 * gives the connection up (EINVAL), and on a busy machine it looks late. */
#define LULL_NS 400000000ull

static bool may_speak(const struct iwarp *iw) { return iw->agreed.initiator || iw->in.heard || iw->snd.spoke_first; }

static enum turn_kind choose(struct qp *qp) {
    struct iwarp *iw = iwarp_of(qp);
    if (!may_speak(iw))
        return TURN_NOBODY;
    if (quiet_may_go(qp))
        return TURN_QUIET;
    bool element = may_begin(qp), answer = iw->srv.count;
    iw->snd.answered = answer && !(element && iw->snd.answered);
    return iw->snd.answered ? TURN_ANSWER : element ? TURN_ELEMENT : TURN_NOBODY;
}

static enum result next_segment(struct qp *qp, struct send_wqe *wqe) {
    if (wqe->opcode == RNIC_WR_RDMA_READ)
        return send_read(qp, wqe);
    if (is_atomic(wqe))
        return send_atomic(qp, wqe);
    return iwarp_of(qp)->snd.immediate ? send_immediate(qp, wqe) : send_segment(qp, wqe);
}

static enum result next_of_element(struct qp *qp, uint64_t now) {
    const struct sender *snd = &iwarp_of(qp)->snd;
    struct send_wqe *wqe = sq_wqe(&qp->sq, snd->next);
    if (snd->halted || (!wqe->started && !start(qp, wqe)))
        return FAILED;
    if (wqe_is_local(wqe)) {
        proceed(qp, wqe);
        return SENT;
    }
    if (qp->pace.rate && !pace_allows(&qp->pace, now))
        return IDLE;
    uint64_t before = qp_sent(qp);
    enum result result = next_segment(qp, wqe);
    if (result != SENT)
        return result;
    quiet_gone(qp, wqe, now);
    COUNT(qp, requests_sent);
    qp_charge(qp, before, now);
    return SENT;
}

static bool may_send(const struct qp *qp) {
    const struct writer *out = &iwarp_of(qp)->out;
    return (qp->state == RNIC_QPS_RTS || qp->state == RNIC_QPS_SQD) && !out->finished && !out->broken;
}

/* ---------------------------------------------------------------- the message that makes a connection of equals ready */

/* Linux's siw (6.1) replies before it looks out for this message: one that comes at once lies in its socket until something else
 * comes, and its program waits.  So it goes again until something is heard, as a WRITE of no bytes, which never means anything.
 * A peer with RFC 7306 is rnic. */
#define RTR_MOST 4u
#define RTR_AGAIN_NS 50000000ull /* doubled each time */

/* A WRITE, or nothing but a frame: it has no SEND in it. */
static bool send_empty(struct qp *qp, bool write) {
    struct fpdu f;
    if (!fpdu_open(qp, &f, write ? DDP_TAGGED_BYTES : 0, 0))
        return false;
    if (write)
        ddp_put_tagged(f.ddp, RDMAP_WRITE, true, RTR_TAG, 0);
    fpdu_headers(qp, &f);
    fpdu_close(qp, &f);
    return true;
}

/* RFC 6581, 9.2: the first message is the initiator's, and of no bytes. */
static enum result send_ready_message(struct qp *qp, uint64_t now) {
    struct iwarp *iw = iwarp_of(qp);
    struct sender *snd = &iw->snd;
    bool again = snd->rtrs > 0;
    bool reads = iw->agreed.rtr == RNIC_STREAM_RTR_READ && !again;
    bool writes = iw->agreed.rtr == RNIC_STREAM_RTR_WRITE || again;
    if (!(reads ? quiet_send(qp, now) : send_empty(qp, writes)))
        return NO_ROOM;
    snd->rtr_due = false;
    if (++snd->rtrs < RTR_MOST && !iw->agreed.rfc7306)
        snd->rtr_at = now + (RTR_AGAIN_NS << snd->rtrs >> 1);
    return SENT;
}

/* ---------------------------------------------------------------- a peer that is silent */

/* Of an initiator, and of a responder. */
uint64_t send_deadline(const struct qp *qp) {
    const struct iwarp *iw = iwarp_of(qp);
    uint64_t at = iw->snd.rtr_at | iw->snd.speak_at;
    return at && !iw->in.heard && !iw->in.ended && may_send(qp) ? at : NEVER;
}

void send_timer(struct qp *qp, uint64_t now) {
    struct sender *snd = &iwarp_of(qp)->snd;
    if (now < send_deadline(qp))
        return;
    snd->rtr_due = snd->rtr_at;
    snd->spoke_first = snd->speak_at;
    snd->rtr_at = snd->speak_at = 0;
}

static bool has_work(struct qp *qp) { return iwarp_of(qp)->srv.count || may_begin(qp) || quiet_may_go(qp); }

static void wait_for_the_peer(struct qp *qp, uint64_t now) {
    struct iwarp *iw = iwarp_of(qp);
    if (!iw->agreed.rtr && !may_speak(iw) && !iw->snd.speak_at && has_work(qp))
        iw->snd.speak_at = now + LULL_NS;
}

/* ---------------------------------------------------------------- turns */

static enum result next(struct qp *qp, uint64_t now) {
    struct sender *snd = &iwarp_of(qp)->snd;
    if (snd->rtr_due && snd->turn == TURN_NOBODY)
        return send_ready_message(qp, now);
    if (snd->turn == TURN_NOBODY)
        snd->turn = choose(qp);
    if (snd->turn == TURN_QUIET) {
        if (!quiet_send(qp, now))
            return NO_ROOM;
        snd->turn = TURN_NOBODY;
        return SENT;
    }
    if (snd->turn != TURN_ELEMENT)
        return snd->turn == TURN_ANSWER ? serve_next(qp) : IDLE;
    enum result result = next_of_element(qp, now);
    if (snd->halted || !snd->offset) /* others may go meanwhile */
        snd->turn = TURN_NOBODY;
    return result;
}

enum result send_fill(struct qp *qp, uint64_t now) {
    enum result result = SENT;
    while ((result == SENT || result == FAILED) && may_send(qp))
        result = next(qp, now);
    wait_for_the_peer(qp, now);
    return result;
}

bool send_owes(struct qp *qp) {
    const struct iwarp *iw = iwarp_of(qp);
    return iw->snd.rtr_due || iw->snd.turn != TURN_NOBODY || (may_speak(iw) && has_work(qp));
}
