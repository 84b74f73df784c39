/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages in FPDUs: what each may be now, where its payload goes, and what it does when it is complete.
 *
 * Segments of one stream come in order, so each is the next one of its message, and a message is delivered with its last one
 * (RFC 5041, 5.4).  WRITEs and SENDs, each a stream's own, may be under way at once.
 */
#include "iwarp/engine.h"

#include <string.h>

#include "base/guard.h"

static const uint8_t *ddp_of(const struct reader *in) { return in->header + MPA_LENGTH_BYTES; }
static const uint8_t *behind_ddp(const struct reader *in) { return ddp_of(in) + DDP_UNTAGGED_BYTES; }

static bool is_send(unsigned opcode) { return opcode >= RDMAP_SEND && opcode <= RDMAP_SEND_SE_INV; }

/* ---------------------------------------------------------------- may it come now? */

/* RFC 5041, 7.1 */
static enum bad check_untagged(const struct reader *in) {
    const uint8_t *ddp = ddp_of(in);
    unsigned opcode = rdmap_opcode(ddp);
    if (ddp_qn(ddp) != in->row->queue)
        return BAD_QUEUE;
    if (ddp_msn(ddp) != in->msn[in->row->queue])
        return BAD_MSN;
    if (in->message && in->row->queue == QUEUE_SEND && in->message != opcode)
        return BAD_OPCODE;
    if (ddp_mo(ddp) != (is_send(opcode) ? in->received : 0))
        return BAD_OFFSET;
    return in->row->whole && (in->payload || !in->last) ? BAD_LENGTH : GOOD;
}

/* A message of no bytes that makes a connection of equals ready (RFC 6581, 9.2): no program has sent it. */
static bool is_ready_message(const struct iwarp *iw, enum rnic_stream_rtr kind) {
    const struct reader *in = &iw->in;
    return !in->heard && !iw->agreed.initiator && iw->agreed.rtr == kind && !in->payload && in->last;
}

static enum bad begin_send(struct qp *qp, struct reader *in) {
    if (is_ready_message(iwarp_of(qp), RNIC_STREAM_RTR_SEND))
        return GOOD;
    if (!in->message && !qp_has_receive(qp, NULL))
        return BAD_NO_RECEIVE;
    in->message = (uint8_t)rdmap_opcode(ddp_of(in));
    uint64_t end = (uint64_t)in->received + in->payload, room = rq_wqe(&qp->rq, wq_tail(&qp->rq))->length;
    if (end > room || end > UINT32_MAX) {
        in->vendor_err = RNIC_VE_RECV_TOO_SMALL;
        return BAD_TOO_LONG;
    }
    in->place = (struct place){.kind = TO_RECEIVE, .at = in->received};
    return GOOD;
}

/* RFC 5041, 7.1; of no bytes there is nothing to be checked. */
static enum bad begin_write(struct qp *qp, struct reader *in) {
    const uint8_t *ddp = ddp_of(in);
    uint8_t *ptr;
    if (!in->payload)
        return GOOD;
    if (RNIC_ACCESS_REMOTE_WRITE & ~qp->attr.qp_access_flags) {
        in->vendor_err = RNIC_VE_RKEY_ACCESS;
        return BAD_RIGHTS;
    }
    if (ddp_to(ddp) + in->payload - 1 < ddp_to(ddp))
        return BAD_WRAP;
    in->vendor_err = qp_remote(qp, ddp_stag(ddp), ddp_to(ddp), in->payload, RNIC_ACCESS_REMOTE_WRITE, &ptr);
    in->place = (struct place){.kind = TO_REGION, .key = ddp_stag(ddp), .at = ddp_to(ddp)};
    return bad_of_region(in->vendor_err);
}

/* The answer that is due, and no other (RFC 5040, 5.2): its key is the READ's alone. */
static enum bad begin_read_response(struct qp *qp, struct reader *in) {
    const uint8_t *ddp = ddp_of(in);
    struct sender *snd = &iwarp_of(qp)->snd;
    if (quiet_is_next(qp))
        return ddp_stag(ddp) == snd->quiet.msn && !in->payload && in->last ? GOOD : BAD_RESPONSE;
    const struct send_wqe *wqe = send_awaited(qp);
    if (!wqe || wqe->opcode != RNIC_WR_RDMA_READ || ddp_stag(ddp) != wqe->msn || ddp_to(ddp) != wqe->arrived)
        return BAD_RESPONSE;
    uint64_t end = (uint64_t)wqe->arrived + in->payload;
    if (end > wqe->length || in->last != (end == wqe->length) || (!in->last && !in->payload))
        return BAD_RESPONSE;
    in->place = (struct place){.kind = TO_SINK, .key = snd->answer, .at = wqe->arrived};
    return GOOD;
}

static enum bad begin_request(struct qp *qp, struct reader *in) {
    const struct server *srv = &iwarp_of(qp)->srv;
    if (srv->count < srv->size)
        return GOOD;
    in->vendor_err = RNIC_VE_NO_RD_ATOMIC;
    return BAD_READS;
}

static enum bad begin_atomic_response(struct qp *qp, struct reader *in) {
    const struct send_wqe *wqe = send_awaited(qp);
    bool due = wqe && !quiet_is_next(qp) && wqe->opcode != RNIC_WR_RDMA_READ;
    return due && atomic_response_id(behind_ddp(in)) == wqe->msn ? GOOD : BAD_RESPONSE;
}

static enum bad begin_immediate(struct qp *qp, struct reader *in) {
    (void)in;
    return qp_has_receive(qp, NULL) ? GOOD : BAD_NO_RECEIVE;
}

static enum bad begin_terminate(struct qp *qp, struct reader *in) {
    (void)qp;
    in->place = (struct place){.kind = TO_TERMINATED};
    return GOOD;
}

static enum bad (*const begins[RDMAP_OPCODES])(struct qp *qp, struct reader *in) = {
    [RDMAP_WRITE] = begin_write,
    [RDMAP_READ_REQUEST] = begin_request,
    [RDMAP_READ_RESPONSE] = begin_read_response,
    [RDMAP_SEND] = begin_send,
    [RDMAP_SEND_INV] = begin_send,
    [RDMAP_SEND_SE] = begin_send,
    [RDMAP_SEND_SE_INV] = begin_send,
    [RDMAP_TERMINATE] = begin_terminate,
    [RDMAP_IMMEDIATE] = begin_immediate,
    [RDMAP_IMMEDIATE_SE] = begin_immediate,
    [RDMAP_ATOMIC_REQUEST] = begin_request,
    [RDMAP_ATOMIC_RESPONSE] = begin_atomic_response,
};

enum bad place_begin(struct qp *qp, uint32_t payload) {
    struct reader *in = &iwarp_of(qp)->in;
    in->payload = payload;
    unsigned opcode = rdmap_opcode(ddp_of(in));
    bool checked = !in->row->tagged && opcode != RDMAP_TERMINATE; /* whose sender is gone, whatever it says */
    enum bad bad = checked ? check_untagged(in) : GOOD;
    return bad ? bad : begins[opcode](qp, in);
}

/* ---------------------------------------------------------------- to its place */

/* The memory of a SEND's receive or of a READ: where it is named. */
struct list {
    const struct rnic_pd *pd;
    const struct rnic_sge *sge;
    int num_sge;
};

static struct list list_of(const struct qp *qp, const struct place *place) {
    const struct recv_wqe *recv = rq_wqe(&qp->rq, wq_tail(&qp->rq));
    const struct send_wqe *read = sq_wqe(&qp->sq, place->key);
    return place->kind == TO_RECEIVE ? (struct list){qp->rq.pd, recv->sge, recv->num_sge}
                                     : (struct list){qp->pub.pd, read->sge, read->num_sge};
}

static enum bad store_in_region(struct qp *qp, struct reader *in, const uint8_t *bytes, uint32_t n) {
    const struct place *place = &in->place;
    uint8_t *ptr;
    in->vendor_err = qp_remote(qp, place->key, place->at, n, RNIC_ACCESS_REMOTE_WRITE, &ptr);
    if (!in->vendor_err && !ptr)
        in->vendor_err = mr_remote_store(&qp->nic->mrs, place->key, place->at, bytes, n);
    else if (!in->vendor_err && !guard_copy(ptr, bytes, n))
        in->vendor_err = RNIC_VE_RKEY_UNMAPPED;
    return bad_of_region(in->vendor_err);
}

/* As much of it as is looked at. */
static void store_terminated(struct reader *in, const uint8_t *bytes, uint32_t n) {
    uint64_t at = in->place.at, room = at < sizeof in->terminated ? sizeof in->terminated - at : 0;
    memcpy(in->terminated + (room ? at : 0), bytes, n < room ? n : room);
}

enum bad place_store(struct qp *qp, const uint8_t *bytes, uint32_t n) {
    struct reader *in = &iwarp_of(qp)->in;
    enum bad bad = GOOD;
    if (!n || in->place.kind == NOWHERE)
        return GOOD;
    if (in->place.kind == TO_REGION) {
        bad = store_in_region(qp, in, bytes, n);
    } else if (in->place.kind == TO_TERMINATED) {
        store_terminated(in, bytes, n);
    } else {
        struct list list = list_of(qp, &in->place);
        in->vendor_err = sge_scatter(&qp->nic->mrs, list.pd, list.sge, list.num_sge, in->place.at, bytes, n);
        bad = in->vendor_err ? BAD_LOCAL : GOOD;
    }
    in->place.at += n;
    return bad;
}

enum bad place_lost(struct qp *qp, uint32_t n) {
    struct reader *in = &iwarp_of(qp)->in;
    struct iovec pieces[SGE_MAX];
    int count;
    enum bad bad = place_pieces(qp, n, pieces, &count);
    for (int i = 0; i < count; i++)
        (void)guard_touch(pieces[i].iov_base, NULL, pieces[i].iov_len); /* which says so */
    if (bad)
        return bad;
    bool region = in->place.kind == TO_REGION;
    in->vendor_err = region ? RNIC_VE_RKEY_UNMAPPED : RNIC_VE_SGE_UNMAPPED;
    return region ? bad_of_region(in->vendor_err) : BAD_LOCAL;
}

enum bad place_pieces(struct qp *qp, uint32_t n, struct iovec *pieces, int *count) {
    struct reader *in = &iwarp_of(qp)->in;
    const struct place *place = &in->place;
    *count = 0;
    if (place->kind == TO_TERMINATED)
        return GOOD;
    if (place->kind == TO_REGION) {
        uint8_t *ptr;
        in->vendor_err = qp_remote(qp, place->key, place->at, n, RNIC_ACCESS_REMOTE_WRITE, &ptr);
        *pieces = (struct iovec){ptr, n};
        *count = ptr ? 1 : 0;
        return bad_of_region(in->vendor_err);
    }
    struct list list = list_of(qp, place);
    in->vendor_err = sge_pieces(&qp->nic->mrs, list.pd, list.sge, list.num_sge, place->at, n, RNIC_ACCESS_LOCAL_WRITE,
                                pieces, count);
    return in->vendor_err ? BAD_LOCAL : GOOD;
}

/* ---------------------------------------------------------------- it is complete */

static bool is_solicited(unsigned opcode) {
    return opcode == RDMAP_SEND_SE || opcode == RDMAP_SEND_SE_INV || opcode == RDMAP_IMMEDIATE_SE;
}

/* RFC 5040, 5.3: the key that the peer may not use any more. 0, or enum rnic_vendor_err */
static int invalidate(struct qp *qp, const uint8_t *ddp) {
    int ve;
    struct mw *mw = mw_invalidable(&qp->nic->mrs, &qp->pub, rdmap_inv_stag(ddp), &ve);
    if (mw)
        mw_unbind(mw);
    return ve;
}

static enum bad end_send(struct qp *qp, struct reader *in) {
    const uint8_t *ddp = ddp_of(in);
    unsigned opcode = rdmap_opcode(ddp);
    struct rnic_wc wc = {.opcode = RNIC_WCO_RECV, .byte_len = in->received += in->payload};
    COUNT(qp, requests_executed);
    if (!in->last)
        return GOOD;
    if (opcode == RDMAP_SEND_INV || opcode == RDMAP_SEND_SE_INV) {
        in->vendor_err = invalidate(qp, ddp);
        if (in->vendor_err)
            return BAD_INVALIDATE;
        wc.wc_flags = RNIC_WCF_WITH_INV;
        wc.invalidated_rkey = rdmap_inv_stag(ddp);
    }
    bool takes = in->message;
    in->message = 0;
    in->received = 0;
    in->written = 0;
    in->msn[QUEUE_SEND]++;
    in->unasked = takes;
    if (takes)
        qp_complete_recv(qp, &wc, is_solicited(opcode));
    return GOOD;
}

static enum bad end_write(struct qp *qp, struct reader *in) {
    COUNT(qp, requests_executed);
    qp->nic->silent += in->last;
    in->written = in->writing ? in->written + in->payload : in->payload;
    in->writing = !in->last;
    if (!in->last || is_ready_message(iwarp_of(qp), RNIC_STREAM_RTR_WRITE))
        return GOOD;
    in->unasked = true;
    qp_count(qp, RNIC_COMP_CNTR_OP_REMOTE_RDMA_WRITE, true, in->written);
    return GOOD;
}

static enum bad end_read_response(struct qp *qp, struct reader *in) {
    if (quiet_is_next(qp)) {
        quiet_answered(qp);
        return GOOD;
    }
    send_awaited(qp)->arrived += in->payload;
    if (in->last)
        send_answered(qp);
    return GOOD;
}

static enum bad end_request(struct qp *qp, struct reader *in) {
    COUNT(qp, requests_executed);
    qp->nic->silent++;
    in->msn[QUEUE_REQUEST]++;
    in->unasked = false;
    serve_take(qp);
    return GOOD;
}

static enum bad end_atomic_response(struct qp *qp, struct reader *in) {
    const struct send_wqe *wqe = send_awaited(qp);
    uint64_t value = atomic_response_value(behind_ddp(in));
    in->msn[QUEUE_RESPONSE]++;
    in->vendor_err =
        sge_scatter(&qp->nic->mrs, qp->pub.pd, wqe->sge, wqe->num_sge, 0, (const uint8_t *)&value, sizeof value);
    if (in->vendor_err)
        return BAD_LOCAL;
    send_answered(qp);
    return GOOD;
}

/* Of its 8 bytes a completion has the first four; what stands ahead of it is a WRITE (RFC 7306, 6). */
static enum bad end_immediate(struct qp *qp, struct reader *in) {
    struct rnic_wc wc = {
        .opcode = RNIC_WCO_RECV_RDMA_WITH_IMM, .wc_flags = RNIC_WCF_WITH_IMM, .byte_len = (uint32_t)in->written};
    memcpy(&wc.imm_data, behind_ddp(in), sizeof wc.imm_data);
    COUNT(qp, requests_executed);
    in->written = 0;
    in->unasked = true;
    in->msn[QUEUE_SEND]++;
    qp_complete_recv(qp, &wc, is_solicited(rdmap_opcode(ddp_of(in))));
    return GOOD;
}

static enum bad end_terminate(struct qp *qp, struct reader *in) {
    (void)in;
    term_received(qp);
    return GOOD;
}

static enum bad (*const ends[RDMAP_OPCODES])(struct qp *qp, struct reader *in) = {
    [RDMAP_WRITE] = end_write,
    [RDMAP_READ_REQUEST] = end_request,
    [RDMAP_READ_RESPONSE] = end_read_response,
    [RDMAP_SEND] = end_send,
    [RDMAP_SEND_INV] = end_send,
    [RDMAP_SEND_SE] = end_send,
    [RDMAP_SEND_SE_INV] = end_send,
    [RDMAP_TERMINATE] = end_terminate,
    [RDMAP_IMMEDIATE] = end_immediate,
    [RDMAP_IMMEDIATE_SE] = end_immediate,
    [RDMAP_ATOMIC_REQUEST] = end_request,
    [RDMAP_ATOMIC_RESPONSE] = end_atomic_response,
};

enum bad place_end(struct qp *qp) {
    struct reader *in = &iwarp_of(qp)->in;
    return ends[rdmap_opcode(ddp_of(in))](qp, in);
}
