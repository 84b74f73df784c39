/* SPDX-License-Identifier: Apache-2.0
 *
 * READs and atomics of the peer (RFC 5040, 5.2; RFC 7306, 5).  They wait in a ring of max_dest_rd_atomic and are answered in their
 * order.  A READ is carried out when its turn comes, an atomic when all before it have been.  What is wrong with one ends the
 * connection behind the answers to those before it.
 */
#include "iwarp/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "qp/element.h"

int serve_init(struct qp *qp) {
    struct server *srv = &iwarp_of(qp)->srv;
    *srv = (struct server){.size = qp->attr.max_dest_rd_atomic, .msn = 1};
    if (!srv->size && iwarp_of(qp)->agreed.rtr == RNIC_STREAM_RTR_READ) /* of no bytes, and no memory */
        srv->size = 1;
    srv->ring = srv->size ? calloc(srv->size, sizeof *srv->ring) : NULL;
    return srv->size && !srv->ring ? -ENOMEM : 0;
}

void serve_free(struct qp *qp) {
    struct server *srv = &iwarp_of(qp)->srv;
    free(srv->ring);
    *srv = (struct server){0};
}

static void answered(struct qp *qp) {
    struct iwarp *iw = iwarp_of(qp);
    iw->srv.first = (iw->srv.first + 1) % iw->srv.size;
    iw->srv.count--;
    iw->snd.turn = TURN_NOBODY;
}

static enum result refuse(struct qp *qp, const struct request *r, enum bad bad, int vendor_err) {
    term_refuse(qp, bad, vendor_err, r->header, r->ulpdu);
    return FAILED;
}

/* The range that is asked for, and the right to it (RFC 5040, 5.2; RFC 5040, 7.2). */
static enum bad check_source(struct qp *qp, uint32_t stag, uint64_t to, uint32_t n, uint32_t access, uint8_t **ptr,
                             int *ve) {
    *ve = RNIC_VE_RKEY_ACCESS;
    if (n && access & ~qp->attr.qp_access_flags)
        return BAD_SOURCE_RIGHTS;
    *ve = RNIC_VE_RKEY_BOUNDS;
    if (n && to + n - 1 < to)
        return BAD_SOURCE_WRAP;
    *ve = qp_remote(qp, stag, to, n, access, ptr);
    return bad_of_source(*ve);
}

/* ---------------------------------------------------------------- READ */

static enum result send_response(struct qp *qp, struct request *r, const uint8_t *read) {
    struct fpdu f;
    uint32_t most = out_most(qp) - DDP_TAGGED_BYTES, left = read_length(read) - r->offset;
    uint32_t n = left < most ? left : most;
    struct source from = {true, read_stag(read), read_to(read) + r->offset};
    if (!fpdu_open(qp, &f, DDP_TAGGED_BYTES, n))
        return NO_ROOM;
    ddp_put_tagged(f.ddp, RDMAP_READ_RESPONSE, n == left, read_sink_stag(read), read_sink_to(read) + r->offset);
    fpdu_headers(qp, &f);
    int ve = fpdu_payload(qp, &f, &from);
    if (ve)
        return refuse(qp, r, bad_of_source(ve), ve);
    fpdu_close(qp, &f);
    COUNT(qp, responses_sent);
    r->offset += n;
    if (n == left) {
        qp_count(qp, RNIC_COMP_CNTR_OP_REMOTE_RDMA_READ, true, read_length(read));
        answered(qp);
    }
    return SENT;
}

static enum result serve_read(struct qp *qp, struct request *r, const uint8_t *read) {
    uint8_t *ptr;
    int ve;
    enum bad bad = r->offset ? GOOD
                             : check_source(qp, read_stag(read), read_to(read), read_length(read),
                                            RNIC_ACCESS_REMOTE_READ, &ptr, &ve);
    return bad ? refuse(qp, r, bad, ve) : send_response(qp, r, read);
}

/* ---------------------------------------------------------------- atomics */

/* Of its masks those that leave nothing out (RFC 7306, 5.1). */
static bool understand(const uint8_t *atomic, struct word_op *op) {
    bool swaps = atomic_opcode(atomic) != ATOMIC_FETCH_ADD, compares = atomic_opcode(atomic) == ATOMIC_CMP_SWAP;
    *op = (struct word_op){compares ? WORD_CMP_SWAP
                           : swaps  ? WORD_STORE
                                    : WORD_ADD,
                           atomic_data(atomic), atomic_compare(atomic)};
    return atomic_opcode(atomic) <= ATOMIC_CMP_SWAP && atomic_data_mask(atomic) == (swaps ? UINT64_MAX : 0) &&
           (!compares || atomic_compare_mask(atomic) == UINT64_MAX);
}

static enum bad carry_out(struct qp *qp, struct request *r, const uint8_t *atomic, int *ve) {
    struct word_op op;
    uint8_t *ptr;
    uint32_t stag = atomic_stag(atomic);
    uint64_t to = atomic_to(atomic);
    enum bad bad = check_source(qp, stag, to, sizeof r->was, RNIC_ACCESS_REMOTE_ATOMIC, &ptr, ve);
    if (bad)
        return bad;
    *ve = understand(atomic, &op) ? peer_changes_word(qp, stag, to, ptr, &op, &r->was) : RNIC_VE_BAD_LENGTH;
    return *ve ? BAD_ATOMIC : GOOD;
}

/* As soon as it has come, unless a READ before it waits for its turn: then nothing that comes behind it overtakes it. */
static void carry_out_early(struct qp *qp, struct request *r) {
    const struct server *srv = &iwarp_of(qp)->srv;
    const uint8_t *request = r->header + DDP_UNTAGGED_BYTES;
    int ve;
    if (srv->count > 1 && !srv->ring[(srv->first + srv->count - 2) % srv->size].begun)
        return;
    if (rdmap_opcode(r->header) == RDMAP_READ_REQUEST)
        r->begun = !read_length(request);
    else
        r->begun = !carry_out(qp, r, request, &ve);
}

void serve_take(struct qp *qp) {
    struct iwarp *iw = iwarp_of(qp);
    struct server *srv = &iw->srv;
    struct request *r = &srv->ring[(srv->first + srv->count++) % srv->size];
    *r = (struct request){.ulpdu = mpa_length(iw->in.header)};
    memcpy(r->header, iw->in.header + MPA_LENGTH_BYTES, rdmap_header(iw->in.row));
    carry_out_early(qp, r);
}

static enum result serve_atomic(struct qp *qp, struct request *r, const uint8_t *atomic) {
    struct server *srv = &iwarp_of(qp)->srv;
    struct fpdu f;
    int ve;
    enum bad bad = r->begun ? GOOD : carry_out(qp, r, atomic, &ve);
    if (bad)
        return refuse(qp, r, bad, ve);
    r->begun = true;
    if (!fpdu_open(qp, &f, DDP_UNTAGGED_BYTES + ATOMIC_RESPONSE_BYTES, 0))
        return NO_ROOM;
    ddp_put_untagged(f.ddp, RDMAP_ATOMIC_RESPONSE, true, srv->msn++, 0);
    atomic_response_set_id(f.ddp + DDP_UNTAGGED_BYTES, atomic_id(atomic));
    atomic_response_set_value(f.ddp + DDP_UNTAGGED_BYTES, r->was);
    fpdu_headers(qp, &f);
    fpdu_close(qp, &f);
    COUNT(qp, responses_sent);
    answered(qp);
    return SENT;
}

enum result serve_next(struct qp *qp) {
    const struct server *srv = &iwarp_of(qp)->srv;
    struct request *r = &srv->ring[srv->first];
    bool reads = rdmap_opcode(r->header) == RDMAP_READ_REQUEST;
    return (reads ? serve_read : serve_atomic)(qp, r, r->header + DDP_UNTAGGED_BYTES);
}
