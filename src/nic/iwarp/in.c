/* SPDX-License-Identifier: Apache-2.0
 *
 * The reader of FPDUs (RFC 5044, 4.1), which stops and goes on at any byte.
 *
 * What comes next is read to its place, if that is known; all else is read "ahead" into a buffer, from which the steps below
 * take it.  Nothing stays in that buffer: what is not complete is kept in header and tail.  An FPDU that lies there as a whole,
 * as short messages do, is checked before it is placed.  Of others only the last bytes wait for the CRC.
 *
 * What is wrong with headers is acted upon when the CRC has turned out to be right; so an error on the way is called one.
 */
#include "iwarp/engine.h"

#include <string.h>

#include "base/guard.h"
#include "wire/crc32c.h"

/* After a long FPDU another one is expected, whose payload is not to be copied: little is read ahead. */
#define LONG_FPDU 8192u
#define SMALL_AHEAD 512u

static void next_fpdu(struct reader *in) {
    in->state = READ_HEADER;
    in->have = in->begun = 0;
    in->need = MPA_LENGTH_BYTES;
    in->crc = CRC32C_INIT;
    in->row = NULL;
    in->unsummed = false;
    in->vendor_err = 0;
    in->place.kind = NOWHERE;
}

void in_start(struct qp *qp) {
    struct reader *in = &iwarp_of(qp)->in;
    for (int i = 0; i < RDMAP_QUEUES; i++)
        in->msn[i] = 1; /* RFC 5041, 4.3 */
    in->ahead_most = IN_AHEAD;
    next_fpdu(in);
}

bool in_is_between(const struct iwarp *iw) {
    const struct reader *in = &iw->in;
    bool marker = iw->agreed.markers_in && in->position && in->position < MPA_MARKER_BYTES;
    return in->state == READ_HEADER && !in->have && !marker;
}

bool in_is_amid(struct qp *qp) {
    const struct reader *in = &iwarp_of(qp)->in;
    const struct send_wqe *read = send_awaited(qp);
    return in->message || in->writing || (read && read->arrived);
}

/* What is wrong with it is said when all of it has come: the rest goes nowhere. */
static void refuse(struct reader *in, enum bad bad) {
    in->bad = in->bad ? in->bad : bad;
    if (in->bad)
        in->place.kind = NOWHERE;
}

/* ---------------------------------------------------------------- headers (RFC 5041, 4; RFC 5040, 4) */

static enum bad check_control(const struct iwarp *iw, const uint8_t *ddp) {
    const struct rdmap_row *row = rdmap_row(rdmap_opcode(ddp));
    bool tagged = ddp_tagged(ddp);
    if (ddp_version(ddp) != DDP_VERSION)
        return tagged ? BAD_DDP_VERSION_TAGGED : BAD_DDP_VERSION;
    if (rdmap_version(ddp) != RDMAP_VERSION)
        return BAD_RDMAP_VERSION;
    if (!row || row->tagged != tagged || (row->rfc7306 && !iw->agreed.rfc7306))
        return BAD_OPCODE;
    return GOOD;
}

/* The first FPDU is empty, if it is the message that makes a connection of equals ready (RFC 6581, 9.2): MPA alone sees it. */
static bool is_ready_message(const struct iwarp *iw, uint32_t ulpdu) {
    return !ulpdu && !iw->in.heard && !iw->agreed.initiator && iw->agreed.rtr == RNIC_STREAM_RTR_SEND;
}

/* Its first bytes are there: what they say, and how many make its headers. */
static enum bad look_at_control(struct iwarp *iw, uint32_t ulpdu) {
    struct reader *in = &iw->in;
    const uint8_t *ddp = in->header + MPA_LENGTH_BYTES;
    if (ulpdu < DDP_CONTROL_BYTES)
        return is_ready_message(iw, ulpdu) ? GOOD : BAD_LENGTH;
    enum bad bad = check_control(iw, ddp);
    if (bad)
        return bad;
    in->row = rdmap_row(rdmap_opcode(ddp));
    in->last = ddp_last(ddp);
    if (ulpdu < rdmap_header(in->row))
        return BAD_LENGTH;
    in->need = MPA_LENGTH_BYTES + rdmap_header(in->row);
    return GOOD;
}

/* ---------------------------------------------------------------- an FPDU is complete */

static uint32_t ulpdu_of(const struct reader *in) { return mpa_length(in->header); }

/* right: its CRC is. */
static void conclude(struct qp *qp, bool right) {
    struct reader *in = &iwarp_of(qp)->in;
    uint32_t size = mpa_fpdu(ulpdu_of(in));
    if (!right)
        in->bad = BAD_CRC;
    if (!in->bad && in->row)
        refuse(in, place_end(qp));
    COUNT(qp, rx_packets);
    if (in->bad) {
        term_refuse(qp, in->bad, in->vendor_err, in->row ? in->header + MPA_LENGTH_BYTES : NULL, ulpdu_of(in));
        return;
    }
    if (!in->heard)
        iwarp_hears(qp);
    in->ahead_most = size < LONG_FPDU || iwarp_of(qp)->agreed.markers_in ? IN_AHEAD : SMALL_AHEAD;
    next_fpdu(in);
}

/* ---------------------------------------------------------------- one that lies there as a whole */

/* Bytes that were taken; 0: it is not all there. */
static uint32_t take_whole(struct qp *qp, const uint8_t *bytes, uint32_t n) {
    struct iwarp *iw = iwarp_of(qp);
    struct reader *in = &iw->in;
    uint32_t ulpdu = n < MPA_LENGTH_BYTES ? 0 : mpa_length(bytes), size = mpa_fpdu(ulpdu);
    if (n < size)
        return 0;
    uint32_t summed = size - MPA_CRC_BYTES, head = summed < sizeof in->header ? summed : (uint32_t)sizeof in->header;
    memcpy(in->header, bytes, head);
    if (iw->agreed.crc && get_le32(bytes + summed) != ~crc32c_update(CRC32C_INIT, bytes, summed)) {
        conclude(qp, false);
        return size;
    }
    refuse(in, look_at_control(iw, ulpdu));
    if (in->row && !in->bad) {
        uint32_t payload = ulpdu - rdmap_header(in->row);
        refuse(in, place_begin(qp, payload));
        if (!in->bad)
            refuse(in, place_store(qp, bytes + in->need, payload));
    }
    conclude(qp, true);
    return size;
}

/* ---------------------------------------------------------------- one that comes bit by bit */

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

static void sum(struct qp *qp, const void *bytes, size_t n) {
    struct iwarp *iw = iwarp_of(qp);
    if (iw->agreed.crc)
        iw->in.crc = crc32c_update(iw->in.crc, bytes, n);
}

/* The headers are there, or as much of them as can be understood. */
static void begin(struct qp *qp) {
    struct reader *in = &iwarp_of(qp)->in;
    uint32_t ulpdu = ulpdu_of(in), payload = ulpdu - (in->have - MPA_LENGTH_BYTES);
    if (in->row && !in->bad)
        refuse(in, place_begin(qp, payload));
    in->kept = in->last && in->place.kind != NOWHERE ? least(payload, KEPT_MOST) : 0;
    in->body = payload - in->kept;
    in->state = in->body ? READ_BODY : READ_TRAILER;
    in->have = 0;
    in->need = in->kept + mpa_pad(ulpdu) + MPA_CRC_BYTES;
}

static uint32_t header_step(struct qp *qp, const uint8_t *bytes, uint32_t n) {
    struct iwarp *iw = iwarp_of(qp);
    struct reader *in = &iw->in;
    uint32_t part = least(n, in->need - in->have);
    memcpy(in->header + in->have, bytes, part);
    sum(qp, bytes, part);
    in->have += part;
    if (in->have < in->need)
        return part;
    if (in->have == MPA_LENGTH_BYTES && ulpdu_of(in) >= DDP_CONTROL_BYTES) {
        in->need += DDP_CONTROL_BYTES;
        return part;
    }
    if (!in->row)
        refuse(in, look_at_control(iw, ulpdu_of(in)));
    if (in->have == in->need || in->bad)
        begin(qp);
    return part;
}

static uint32_t body_step(struct qp *qp, const uint8_t *bytes, uint32_t n) {
    struct reader *in = &iwarp_of(qp)->in;
    uint32_t part = least(n, in->body);
    sum(qp, bytes, part);
    if (in->place.kind != NOWHERE)
        refuse(in, place_store(qp, bytes, part));
    in->body -= part;
    if (!in->body)
        in->state = READ_TRAILER;
    return part;
}

static uint32_t trailer_step(struct qp *qp, const uint8_t *bytes, uint32_t n) {
    struct reader *in = &iwarp_of(qp)->in;
    uint32_t part = least(n, in->need - in->have), summed = in->need - MPA_CRC_BYTES;
    memcpy(in->tail + in->have, bytes, part);
    if (in->have < summed)
        sum(qp, bytes, least(part, summed - in->have));
    in->have += part;
    if (in->have < in->need)
        return part;
    bool right = !iwarp_of(qp)->agreed.crc || in->unsummed || get_le32(in->tail + summed) == (uint32_t)~in->crc;
    if (right && in->kept && in->place.kind != NOWHERE)
        refuse(in, place_store(qp, in->tail, in->kept));
    conclude(qp, right);
    return part;
}

static uint32_t (*const steps[])(struct qp *qp, const uint8_t *bytes, uint32_t n) = {
    [READ_HEADER] = header_step, [READ_BODY] = body_step, [READ_TRAILER] = trailer_step};

/* ---------------------------------------------------------------- what has come */

static uint32_t with_markers(struct qp *qp, const uint8_t *bytes, uint32_t n) {
    struct reader *in = &iwarp_of(qp)->in;
    uint32_t used = marker_take(in, bytes, n);
    if (used) {
        sum(qp, bytes, used);
        if (in->bad == BAD_MARKER)
            term_refuse(qp, in->bad, 0, NULL, 0);
        return used;
    }
    used = steps[in->state](qp, bytes, least(n, marker_free(in)));
    in->position = (in->position + used) % MPA_MARKER_EVERY;
    in->begun = in->state == READ_HEADER && !in->have ? 0 : in->begun + used;
    return used;
}

static uint32_t without_markers(struct qp *qp, const uint8_t *bytes, uint32_t n) {
    struct reader *in = &iwarp_of(qp)->in;
    uint32_t used = in->state == READ_HEADER && !in->have ? take_whole(qp, bytes, n) : 0;
    return used ? used : steps[in->state](qp, bytes, n);
}

static void sum_placed(void *to, const void *from, size_t n, void *qp) {
    (void)to;
    sum(qp, from, n);
}

/* Bytes that have been read to their place. */
static void placed(struct qp *qp, uint32_t n) {
    struct reader *in = &iwarp_of(qp)->in;
    struct iovec pieces[SGE_MAX];
    int count;
    if (!n)
        return;
    (void)place_pieces(qp, n, pieces, &count); /* as when they were asked for */
    for (int i = 0; i < count; i++) {
        if (!guard(sum_placed, NULL, pieces[i].iov_base, pieces[i].iov_len, qp))
            refuse(in, place_lost(qp, n)), in->unsummed = true;
    }
    in->place.at += n;
    in->body -= n;
    if (!in->body)
        in->state = READ_TRAILER;
}

bool iwarp_lost(struct qp *qp) {
    struct reader *in = &iwarp_of(qp)->in;
    if (!in->direct || in->bad)
        return false;
    refuse(in, place_lost(qp, in->direct));
    return in->bad;
}

void iwarp_got(struct qp *qp, size_t n, uint64_t now) {
    struct iwarp *iw = iwarp_of(qp);
    struct reader *in = &iw->in;
    const uint8_t *bytes = in->ahead;
    (void)now;
    COUNT_N(qp, rx_bytes, n);
    in->bytes += n;
    if (in->deaf)
        return;
    uint32_t direct = least((uint32_t)n, in->direct), left = (uint32_t)n - direct;
    placed(qp, direct);
    for (uint32_t used; left && !in->deaf; bytes += used, left -= used)
        used = iw->agreed.markers_in ? with_markers(qp, bytes, left) : without_markers(qp, bytes, left);
}

/* ---------------------------------------------------------------- where it belongs */

static int to_place(struct qp *qp, struct iovec *pieces) {
    struct iwarp *iw = iwarp_of(qp);
    struct reader *in = &iw->in;
    int count;
    if (in->deaf || in->state != READ_BODY || in->place.kind == NOWHERE || iw->agreed.markers_in)
        return 0;
    refuse(in, place_pieces(qp, in->body, pieces, &count));
    return in->bad ? 0 : count;
}

int iwarp_want(struct qp *qp, struct iovec *pieces) {
    struct iwarp *iw = iwarp_of(qp);
    struct reader *in = &iw->in;
    if (!iw->connected || in->ended)
        return 0;
    int n = to_place(qp, pieces);
    bool copied = !n && in->state == READ_BODY;
    in->direct = n ? in->body : 0;
    pieces[n] = (struct iovec){in->ahead, in->direct >= LONG_FPDU ? SMALL_AHEAD : copied ? IN_AHEAD : in->ahead_most};
    return n + 1;
}
