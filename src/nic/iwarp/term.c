/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors (RFC 5040, 4.8; RFC 5040, 7; RFC 5041, 7.2; RFC 5044, 8).  Each ends the connection: the end that finds it says why in a
 * Terminate message, then closes.  Both queue pairs are in error.
 */
#include "iwarp/engine.h"

#include <string.h>

enum layer { LAYER_RDMAP, LAYER_DDP, LAYER_MPA };
enum rdmap_type { RDMAP_CATASTROPHIC, RDMAP_PROTECTION, RDMAP_OPERATION };
enum ddp_type { DDP_CATASTROPHIC, DDP_TAGGED_BUFFER, DDP_UNTAGGED_BUFFER };
#define UNSPECIFIED 0xFFu

/* ---------------------------------------------------------------- sent */

/* What an error is called, whether the headers of the segment go with it (where they can be understood: RFC 5040, figure 10),
 * and what it is at this end: status of the receive under way (0: none, it is flushed), event. */
static const struct {
    uint8_t layer, type, code;
    bool headers;
    uint8_t status;
    int event;
} rows[BADS] = {
    [BAD_CRC] = {LAYER_MPA, 0, 2, false, 0, RNIC_EVENT_QP_FATAL},
    [BAD_MARKER] = {LAYER_MPA, 0, 3, false, 0, RNIC_EVENT_QP_FATAL},
    [BAD_DDP_VERSION_TAGGED] = {LAYER_DDP, DDP_TAGGED_BUFFER, 4, false, 0, RNIC_EVENT_QP_REQ_ERR},
    [BAD_DDP_VERSION] = {LAYER_DDP, DDP_UNTAGGED_BUFFER, 6, false, 0, RNIC_EVENT_QP_REQ_ERR},
    [BAD_RDMAP_VERSION] = {LAYER_RDMAP, RDMAP_OPERATION, 5, false, 0, RNIC_EVENT_QP_REQ_ERR},
    [BAD_OPCODE] = {LAYER_RDMAP, RDMAP_OPERATION, 6, false, 0, RNIC_EVENT_QP_REQ_ERR},
    [BAD_LENGTH] = {LAYER_RDMAP, RDMAP_OPERATION, UNSPECIFIED, false, 0, RNIC_EVENT_QP_REQ_ERR},
    [BAD_QUEUE] = {LAYER_DDP, DDP_UNTAGGED_BUFFER, 1, true, 0, RNIC_EVENT_QP_REQ_ERR},
    [BAD_NO_RECEIVE] = {LAYER_DDP, DDP_UNTAGGED_BUFFER, 2, true, 0, RNIC_EVENT_QP_REQ_ERR},
    [BAD_READS] = {LAYER_DDP, DDP_UNTAGGED_BUFFER, 2, true, 0, RNIC_EVENT_QP_REQ_ERR},
    [BAD_MSN] = {LAYER_DDP, DDP_UNTAGGED_BUFFER, 3, true, 0, RNIC_EVENT_QP_REQ_ERR},
    [BAD_OFFSET] = {LAYER_DDP, DDP_UNTAGGED_BUFFER, 4, true, RNIC_WC_REM_INV_REQ_ERR, RNIC_EVENT_QP_REQ_ERR},
    [BAD_TOO_LONG] = {LAYER_DDP, DDP_UNTAGGED_BUFFER, 5, true, RNIC_WC_LOC_LEN_ERR, -1},
    [BAD_STAG] = {LAYER_DDP, DDP_TAGGED_BUFFER, 0, true, 0, RNIC_EVENT_QP_ACCESS_ERR},
    [BAD_BOUNDS] = {LAYER_DDP, DDP_TAGGED_BUFFER, 1, true, 0, RNIC_EVENT_QP_ACCESS_ERR},
    [BAD_ASSOCIATION] = {LAYER_DDP, DDP_TAGGED_BUFFER, 2, true, 0, RNIC_EVENT_QP_ACCESS_ERR},
    [BAD_WRAP] = {LAYER_DDP, DDP_TAGGED_BUFFER, 3, true, 0, RNIC_EVENT_QP_ACCESS_ERR},
    [BAD_RIGHTS] = {LAYER_RDMAP, RDMAP_PROTECTION, 2, true, 0, RNIC_EVENT_QP_ACCESS_ERR}, /* DDP has no code for it */
    [BAD_RESPONSE] = {LAYER_DDP, DDP_TAGGED_BUFFER, 0, true, 0, -1},
    [BAD_SOURCE_STAG] = {LAYER_RDMAP, RDMAP_PROTECTION, 0, true, 0, RNIC_EVENT_QP_ACCESS_ERR},
    [BAD_SOURCE_BOUNDS] = {LAYER_RDMAP, RDMAP_PROTECTION, 1, true, 0, RNIC_EVENT_QP_ACCESS_ERR},
    [BAD_SOURCE_RIGHTS] = {LAYER_RDMAP, RDMAP_PROTECTION, 2, true, 0, RNIC_EVENT_QP_ACCESS_ERR},
    [BAD_SOURCE_ASSOCIATION] = {LAYER_RDMAP, RDMAP_PROTECTION, 3, true, 0, RNIC_EVENT_QP_ACCESS_ERR},
    [BAD_SOURCE_WRAP] = {LAYER_RDMAP, RDMAP_PROTECTION, 4, true, 0, RNIC_EVENT_QP_ACCESS_ERR},
    [BAD_ATOMIC] = {LAYER_RDMAP, RDMAP_OPERATION, 7, true, 0, RNIC_EVENT_QP_REQ_ERR},
    [BAD_INVALIDATE] = {LAYER_RDMAP, RDMAP_OPERATION, 9, true, RNIC_WC_REM_INV_REQ_ERR, RNIC_EVENT_QP_ACCESS_ERR},
    [BAD_LOCAL] = {LAYER_RDMAP, RDMAP_CATASTROPHIC, 0, false, RNIC_WC_LOC_PROT_ERR, -1},
};

enum bad bad_of_region(int vendor_err) {
    switch (vendor_err) {
    case 0:
        return GOOD;
    case RNIC_VE_RKEY_BOUNDS:
        return BAD_BOUNDS;
    case RNIC_VE_RKEY_PD:
    case RNIC_VE_WINDOW_QP:
        return BAD_ASSOCIATION;
    case RNIC_VE_RKEY_ACCESS:
    case RNIC_VE_RKEY_UNMAPPED:
        return BAD_RIGHTS;
    default:
        return BAD_STAG;
    }
}

enum bad bad_of_source(int vendor_err) {
    static const enum bad sources[BADS] = {[BAD_BOUNDS] = BAD_SOURCE_BOUNDS,
                                           [BAD_ASSOCIATION] = BAD_SOURCE_ASSOCIATION,
                                           [BAD_RIGHTS] = BAD_SOURCE_RIGHTS,
                                           [BAD_STAG] = BAD_SOURCE_STAG};
    return sources[bad_of_region(vendor_err)];
}

/* RDMAP's header goes with DDP's only of a request for memory of this end (RFC 5040, figure 10). Bytes of what goes. */
static uint32_t headers_of(const uint8_t *header, bool *rdmap) {
    unsigned opcode = rdmap_opcode(header);
    *rdmap = opcode == RDMAP_READ_REQUEST || opcode == RDMAP_ATOMIC_REQUEST;
    return *rdmap ? rdmap_header(rdmap_row(opcode)) : ddp_tagged(header) ? DDP_TAGGED_BYTES : DDP_UNTAGGED_BYTES;
}

static void send_terminate(struct qp *qp, enum bad bad, const uint8_t *header, uint32_t ulpdu) {
    bool rdmap = false, headers = rows[bad].headers && header;
    uint32_t n = headers ? headers_of(header, &rdmap) : 0;
    struct fpdu f;
    if (iwarp_of(qp)->out.finished || iwarp_of(qp)->out.broken)
        return;
    fpdu_open_last(qp, &f, DDP_UNTAGGED_BYTES + (n ? TERMINATED_AT + n : TERMINATE_BYTES));
    uint8_t *control = f.ddp + DDP_UNTAGGED_BYTES;
    ddp_put_untagged(f.ddp, RDMAP_TERMINATE, true, 1, 0);
    memset(control, 0, TERMINATE_BYTES);
    terminate_set_layer(control, rows[bad].layer);
    terminate_set_type(control, rows[bad].type);
    terminate_set_code(control, rows[bad].code);
    if (n) {
        terminate_set_m(control, 1);
        terminate_set_d(control, 1);
        terminate_set_r(control, rdmap);
        terminate_set_length(control, (uint16_t)ulpdu);
        memcpy(control + TERMINATED_AT, header, n);
    }
    fpdu_headers(qp, &f);
    fpdu_close(qp, &f);
    COUNT(qp, terminates_sent);
}

/* The receive under way ends with a status that tells, if the error is about it; likewise the READ whose answer it is. */
static void blame(struct qp *qp, enum bad bad, int vendor_err, const uint8_t *header) {
    const struct iwarp *iw = iwarp_of(qp);
    bool answer = header && iw->in.row &&
                  (rdmap_opcode(header) == RDMAP_READ_RESPONSE || rdmap_opcode(header) == RDMAP_ATOMIC_RESPONSE);
    if (answer && send_awaited(qp))
        send_blame(qp, iw->snd.answer, bad == BAD_LOCAL ? RNIC_WC_LOC_PROT_ERR : RNIC_WC_BAD_RESP_ERR,
                   vendor_err ? vendor_err : RNIC_VE_BAD_RESPONSE);
    if (answer || !header || !rows[bad].status || !iw->in.message || wq_empty(&qp->rq))
        return;
    struct rnic_wc wc = {.status = rows[bad].status, .opcode = RNIC_WCO_RECV, .vendor_err = (uint32_t)vendor_err};
    qp_complete_recv(qp, &wc, true);
}

/* For completion counters: what the peer has asked for. */
static void count_failure(const struct qp *qp, const uint8_t *header) {
    if (header && rdmap_opcode(header) == RDMAP_WRITE)
        qp_count(qp, RNIC_COMP_CNTR_OP_REMOTE_RDMA_WRITE, false, 0);
    if (header && rdmap_opcode(header) == RDMAP_READ_REQUEST)
        qp_count(qp, RNIC_COMP_CNTR_OP_REMOTE_RDMA_READ, false, 0);
}

void term_refuse(struct qp *qp, enum bad bad, int vendor_err, const uint8_t *header, uint32_t ulpdu) {
    const struct rnic_stream_event why = {
        .end = RNIC_STREAM_REFUSED, .layer = rows[bad].layer, .type = rows[bad].type, .code = rows[bad].code};
    send_terminate(qp, bad, header, ulpdu);
    count_failure(qp, header);
    blame(qp, bad, vendor_err, header);
    iwarp_end(qp, &why, rows[bad].event);
}

/* ---------------------------------------------------------------- received (RFC 5040, 7.1) */

struct named { /* what a peer's error is to the request that has caused it */
    uint8_t status, vendor_err;
};

static struct named name_protection(uint8_t code) {
    static const uint8_t vendor_errs[] = {RNIC_VE_PEER_STAG, RNIC_VE_PEER_BOUNDS, RNIC_VE_PEER_RIGHTS,
                                          RNIC_VE_PEER_STAG};
    bool known = code < sizeof vendor_errs;
    return (struct named){RNIC_WC_REM_ACCESS_ERR, known ? vendor_errs[code] : RNIC_VE_PEER_BOUNDS};
}

/* DDP's codes have no rights, and PDs in their place. */
static struct named name_tagged(uint8_t code) {
    static const uint8_t vendor_errs[] = {RNIC_VE_PEER_STAG, RNIC_VE_PEER_BOUNDS, RNIC_VE_PEER_STAG,
                                          RNIC_VE_PEER_BOUNDS};
    bool known = code < sizeof vendor_errs;
    return known ? (struct named){RNIC_WC_REM_ACCESS_ERR, vendor_errs[code]}
                 : (struct named){RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_PEER_PROTOCOL};
}

static struct named name_untagged(uint8_t code, bool request) {
    if (code == 2 && request)
        return (struct named){RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_PEER_READS};
    if (code == 2)
        return (struct named){RNIC_WC_RNR_RETRY_EXC_ERR, RNIC_VE_PEER_NO_RECEIVE};
    return (struct named){RNIC_WC_REM_INV_REQ_ERR, code == 5 ? RNIC_VE_PEER_TOO_LONG : RNIC_VE_PEER_PROTOCOL};
}

static struct named name_of(const struct rnic_stream_event *e, bool request) {
    const struct named catastrophic = {RNIC_WC_REM_OP_ERR, RNIC_VE_PEER_ERROR};
    const struct named violation = {RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_PEER_PROTOCOL};
    if (e->layer == LAYER_DDP)
        return e->type == DDP_TAGGED_BUFFER     ? name_tagged(e->code)
               : e->type == DDP_UNTAGGED_BUFFER ? name_untagged(e->code, request)
                                                : catastrophic;
    if (e->layer == LAYER_MPA && e->code == 2)
        return (struct named){RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_PEER_CRC};
    if (e->layer != LAYER_RDMAP)
        return violation;
    if (e->type == RDMAP_PROTECTION)
        return name_protection(e->code);
    if (e->type == RDMAP_OPERATION && e->code == 9)
        return (struct named){RNIC_WC_REM_ACCESS_ERR, RNIC_VE_PEER_INVALIDATE};
    return e->type == RDMAP_OPERATION && e->code != 7 && e->code != 8 ? violation : catastrophic;
}

/* Is there such an error, behind the start-up? */
static bool is_known(unsigned layer, unsigned type, unsigned code) {
    if (layer == LAYER_MPA)
        return type == 0 && code >= 1 && code <= 3;
    if (layer == LAYER_DDP)
        return type == DDP_CATASTROPHIC || (type == DDP_TAGGED_BUFFER && code <= 4) ||
               (type == DDP_UNTAGGED_BUFFER && code >= 1 && code <= 6);
    if (layer == LAYER_RDMAP)
        return type == RDMAP_CATASTROPHIC || (type == RDMAP_PROTECTION && (code <= 4 || code == UNSPECIFIED)) ||
               (type == RDMAP_OPERATION && ((code >= 5 && code <= 9) || code == UNSPECIFIED));
    return false;
}

/* Linux's siw has layer and type in the places of each other on little-endian hosts, and the three bits of header control at
 * the other end of their byte, where RFC 5040 has zeros. */
static bool is_turned_round(const uint8_t *control) {
    unsigned layer = terminate_layer(control), type = terminate_type(control), code = terminate_code(control);
    return control[2] & 7 || (!is_known(layer, type, code) && is_known(type, layer, code));
}

static bool is_request(const uint8_t *segment) { return !ddp_tagged(segment) && ddp_qn(segment) == QUEUE_REQUEST; }

/* What an error is about.  siw answers READs in their order, and for one that it refuses it makes up a header, with the READ's
 * length for its MSN: so that is the oldest one without an answer. */
static bool find_named(struct qp *qp, const uint8_t *segment, bool made_up, uint32_t *element) {
    if (!made_up || !send_awaited(qp))
        return send_find(qp, segment, element);
    *element = iwarp_of(qp)->snd.answer;
    return true;
}

void term_received(struct qp *qp) {
    struct iwarp *iw = iwarp_of(qp);
    const uint8_t *control = iw->in.header + MPA_LENGTH_BYTES + DDP_UNTAGGED_BYTES;
    const uint8_t *segment = iw->in.terminated + MPA_LENGTH_BYTES;
    bool turned = is_turned_round(control), headers = turned ? control[2] & 2 : terminate_d(control);
    uint8_t layer = terminate_layer(control), type = terminate_type(control);
    const struct rnic_stream_event why = {.end = RNIC_STREAM_TERMINATED,
                                          .layer = turned ? type : layer,
                                          .type = turned ? layer : type,
                                          .code = terminate_code(control)};
    uint32_t element;
    COUNT(qp, terminates_received);
    headers = headers && iw->in.payload >= MPA_LENGTH_BYTES + DDP_TAGGED_BYTES;
    bool request = headers && is_request(segment), made_up = turned && request && why.layer == LAYER_RDMAP;
    if (find_named(qp, headers ? segment : NULL, made_up, &element)) {
        struct named named = name_of(&why, request);
        send_blame(qp, element, named.status, named.vendor_err);
        if (headers)
            quiet_reached(qp, element);
    }
    iwarp_end(qp, &why, RNIC_EVENT_QP_FATAL);
}
