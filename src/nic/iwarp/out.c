/* SPDX-License-Identifier: Apache-2.0
 *
 * FPDUs on their way out (RFC 5044, 4).
 *
 * They are put together in one buffer, as many as it holds, and written by one call: whole segments of TCP's, so that
 * the next FPDU begins with one.  With CRCs the payload is copied there while its CRC is computed: memory that changes
 * meanwhile must not end the connection.  Without, a long payload goes from where it is; such an FPDU is the last one in
 * the buffer until it is written.
 */
#include "iwarp/engine.h"

#include <errno.h>
#include <string.h>

#include "base/guard.h"
#include "wire/crc32c.h"

#define LEAST (RDMAP_HEADER_MOST + 8) /* bytes of a segment, whatever the link says: requests have but one */

/* ---------------------------------------------------------------- payloads */

static void copy(void *to, const void *from, size_t n, void *more) {
    uint32_t *crc = more;
    if (crc)
        *crc = crc32c_copy(*crc, to, from, n);
    else
        memcpy(to, from, n);
}

static int unmapped(const struct source *from) {
    return from->of_region ? RNIC_VE_RKEY_UNMAPPED : RNIC_VE_SGE_UNMAPPED;
}

/* Of a send element: as sge_pieces(). */
static int element_pieces(struct qp *qp, const struct source *from, uint32_t n, struct iovec *pieces, int *count) {
    const struct send_wqe *wqe = sq_wqe(&qp->sq, from->key);
    if (wqe->flags & RNIC_SEND_INLINE) {
        *pieces = (struct iovec){(uint8_t *)(uintptr_t)wqe->sge + from->at, n};
        *count = 1;
        return 0;
    }
    return sge_pieces(&qp->nic->mrs, qp->pub.pd, wqe->sge, wqe->num_sge, from->at, n, 0, pieces, count);
}

static int source_pieces(struct qp *qp, const struct source *from, uint32_t n, struct iovec *pieces, int *count) {
    uint8_t *ptr;
    if (!from->of_region)
        return element_pieces(qp, from, n, pieces, count);
    int ve = qp_remote(qp, from->key, from->at, n, RNIC_ACCESS_REMOTE_READ, &ptr);
    *pieces = (struct iovec){ptr, n};
    *count = !ve && ptr ? 1 : 0;
    return ve;
}

/* Of memory without an address. */
static int source_load(struct qp *qp, const struct source *from, uint8_t *to, uint32_t n) {
    const struct send_wqe *wqe = sq_wqe(&qp->sq, from->key);
    if (from->of_region)
        return mr_remote_load(&qp->nic->mrs, from->key, from->at, to, n);
    return sge_gather(&qp->nic->mrs, qp->pub.pd, wqe->sge, wqe->num_sge, from->at, to, n, NULL);
}

static int source_copy(struct qp *qp, const struct source *from, const struct iovec *pieces, int count, uint8_t *to,
                       uint32_t n, uint32_t *crc) {
    if (!count && n) {
        int ve = source_load(qp, from, to, n);
        if (crc && !ve)
            *crc = crc32c_update(*crc, to, n);
        return ve;
    }
    for (int i = 0; i < count; to += pieces[i++].iov_len) {
        if (!guard(copy, to, pieces[i].iov_base, pieces[i].iov_len, crc))
            return unmapped(from);
    }
    return 0;
}

/* ---------------------------------------------------------------- an FPDU */

/* What leaves in one piece, bytes (RFC 5044, 4.5). */
static uint32_t piece_of(struct qp *qp) {
    const struct iwarp *iw = iwarp_of(qp);
    uint32_t piece = qp->way.link->ops->segment(qp->way.link, &qp->way);
    if (qp->pace.rate && piece > qp->nic->mtu) /* what a burst is counted in, see pace_set() */
        piece = qp->nic->mtu;
    if (iw->agreed.markers_out && piece > IN_AHEAD)
        piece = IN_AHEAD;
    return piece < OUT_FPDU ? piece : OUT_FPDU;
}

/* Of a buffer that is written by one call: whole pieces, so that the next one begins with a piece of its own.  With CRCs
 * it is twice the longest, as 64 KiB of a message are two FPDUs; without, a payload that stays where it is ends a buffer. */
static uint32_t room_of(const struct iwarp *iw, uint32_t piece) {
    uint32_t limit = (iw->agreed.crc ? OUT_ROOM : OUT_FPDU) / piece * piece;
    return limit > iw->out.end ? limit - iw->out.end : 0;
}

/* Behind others the last one of a buffer is as long as there is room, if that is worth an FPDU. */
uint32_t out_most(struct qp *qp) {
    const struct iwarp *iw = iwarp_of(qp);
    uint32_t piece = piece_of(qp), room = room_of(iw, piece);
    if (room >= OUT_REFER && room < piece)
        piece = room;
    return mpa_ulpdu_most(piece, iw->agreed.markers_out, LEAST);
}

static void put_length(struct iwarp *iw, struct fpdu *f, uint32_t header, uint32_t payload) {
    f->at = iw->agreed.markers_out ? iw->in.ahead : iw->out.bytes + iw->out.end;
    f->ddp = f->at + MPA_LENGTH_BYTES;
    f->header = header;
    f->payload = payload;
    f->summed = iw->agreed.crc && !iw->agreed.markers_out;
    f->referred = false;
    mpa_set_length(f->at, (uint16_t)(header + payload));
}

bool fpdu_open(struct qp *qp, struct fpdu *f, uint32_t header, uint32_t payload) {
    struct iwarp *iw = iwarp_of(qp);
    uint32_t n = mpa_fpdu(header + payload);
    if (iw->agreed.markers_out)
        n = MARKED(n);
    if (iw->out.referred || n > room_of(iw, piece_of(qp)))
        return false;
    put_length(iw, f, header, payload);
    return true;
}

void fpdu_open_last(struct qp *qp, struct fpdu *f, uint32_t header) { put_length(iwarp_of(qp), f, header, 0); }

/* The link's injector has its chance: at headers before they count, or at a segment with its CRC, behind its length. */
static void spoil(struct qp *qp, uint8_t *bytes, uint32_t n, bool sealed) {
    if (qp->way.link->ops->spoil)
        qp->way.link->ops->spoil(qp->way.link, bytes, n, sealed);
}

void fpdu_headers(struct qp *qp, struct fpdu *f) {
    spoil(qp, f->ddp, f->header, false);
    if (f->summed)
        f->crc = crc32c_update(CRC32C_INIT, f->at, MPA_LENGTH_BYTES + f->header);
}

int fpdu_payload(struct qp *qp, struct fpdu *f, const struct source *from) {
    const struct iwarp *iw = iwarp_of(qp);
    struct iovec pieces[SGE_MAX];
    int count;
    int ve = source_pieces(qp, from, f->payload, pieces, &count);
    if (ve)
        return ve;
    f->referred = count && f->payload >= OUT_REFER && !iw->agreed.crc && !iw->agreed.markers_out;
    f->from = *from;
    if (f->referred)
        return 0;
    return source_copy(qp, from, pieces, count, f->ddp + f->header, f->payload, f->summed ? &f->crc : NULL);
}

/* Padding and CRC: bytes of both. */
static uint32_t put_trailer(const struct fpdu *f, uint8_t *at) {
    uint32_t pad = mpa_pad(f->header + f->payload);
    memset(at, 0, pad + MPA_CRC_BYTES);
    if (f->summed)
        put_le32(at + pad, ~crc32c_update(f->crc, at, pad));
    return pad + MPA_CRC_BYTES;
}

/* With markers the CRC covers them, too: so they are put in first. */
static uint32_t put_marked(struct iwarp *iw, const struct fpdu *f) {
    struct writer *out = &iw->out;
    uint8_t *to = out->bytes + out->end;
    uint32_t n = mpa_fpdu(f->header + f->payload) - MPA_CRC_BYTES, begun = 0;
    uint8_t crc[MPA_CRC_BYTES] = {0};
    uint32_t size = marker_spread(to, f->at, n, &out->position, &begun);
    size += marker_due(to + size, &out->position, &begun);
    if (iw->agreed.crc)
        put_le32(crc, ~crc32c_update(CRC32C_INIT, to, size));
    return size + marker_spread(to + size, crc, sizeof crc, &out->position, &begun);
}

void fpdu_close(struct qp *qp, struct fpdu *f) {
    struct iwarp *iw = iwarp_of(qp);
    struct writer *out = &iw->out;
    uint8_t *end = f->ddp + f->header;
    uint32_t n = MPA_LENGTH_BYTES + f->header;
    if (f->referred) {
        out->split = out->end + n;
        out->referred = f->payload;
        out->source = f->from;
    } else {
        end += f->payload;
        n += f->payload;
    }
    n += put_trailer(f, end);
    if (iw->agreed.markers_out)
        n = put_marked(iw, f);
    uint32_t length = iw->agreed.markers_out ? MARKED(MPA_LENGTH_BYTES) : MPA_LENGTH_BYTES;
    spoil(qp, out->bytes + out->end + length, n - length, true);
    out->end += n;
    n += f->referred ? f->payload : 0;
    out->begun += n;
    COUNT(qp, tx_packets);
    COUNT_N(qp, tx_bytes, n);
}

/* ---------------------------------------------------------------- writing */

/* What is to be written next, in its order: so many pieces. 0: memory that it refers to has gone, *ve is why */
static int pieces_of(struct qp *qp, struct iovec *pieces, int *ve) {
    const struct writer *out = &iwarp_of(qp)->out;
    uint32_t first = out->referred ? out->split : out->end;
    int n = 0, count;
    if (first != out->start)
        pieces[n++] = (struct iovec){out->bytes + out->start, first - out->start};
    if (!out->referred)
        return n;
    *ve = source_pieces(qp, &out->source, out->referred, pieces + n, &count);
    if (!*ve && !count) /* a window shows something else now */
        *ve = RNIC_VE_RKEY_UNMAPPED;
    if (*ve)
        return 0;
    n += count;
    pieces[n++] = (struct iovec){out->bytes + first, out->end - first};
    return n;
}

static void written(struct writer *out, uint32_t n) {
    out->written += n;
    if (out->referred) {
        uint32_t head = out->split - out->start, first = n < head ? n : head;
        out->start += first;
        n -= first;
        uint32_t part = n < out->referred ? n : out->referred;
        out->source.at += part;
        out->referred -= part;
        n -= part;
    }
    out->start += n;
    if (out_is_clear(out))
        out->start = out->end = 0;
}

static void forget(struct writer *out) { out->start = out->end = out->referred = 0; }

/* An FPDU that cannot be finished is the last one. */
static void break_off(struct qp *qp, int vendor_err) {
    struct iwarp *iw = iwarp_of(qp);
    const struct source from = iw->out.source;
    forget(&iw->out);
    out_finish(qp);
    if (qp->state == RNIC_QPS_ERR)
        return;
    if (!from.of_region)
        send_blame(qp, from.key, RNIC_WC_LOC_PROT_ERR, vendor_err);
    term_refuse(qp, BAD_LOCAL, vendor_err, NULL, 0);
}

bool out_drain(struct qp *qp) {
    struct iovec pieces[SGE_MAX + 2];
    struct writer *out = &iwarp_of(qp)->out;
    int ve = 0;
    if (out_is_clear(out))
        return !out->broken;
    int n = pieces_of(qp, pieces, &ve);
    if (!n) {
        break_off(qp, ve);
        return true;
    }
    long done = qp->way.link->ops->write(qp->way.link, &qp->way, pieces, n);
    if (done == -EFAULT) { /* what it refers to stands behind the headers */
        for (int i = 0; i < n; i++)
            (void)guard_touch(NULL, pieces[i].iov_base, pieces[i].iov_len); /* which says so */
        break_off(qp, unmapped(&out->source));
        return true;
    }
    out->broken = done < 0;
    if (done < 0)
        forget(out);
    else
        written(out, (uint32_t)done);
    return out_is_clear(out) && !out->broken;
}

/* There is room, since no FPDU is longer than the buffer. */
void out_own(struct qp *qp) {
    struct writer *out = &iwarp_of(qp)->out;
    struct iovec pieces[SGE_MAX];
    int count;
    if (!out->referred)
        return;
    uint32_t n = out->referred;
    uint8_t *at = out->bytes + out->split;
    int ve = source_pieces(qp, &out->source, n, pieces, &count);
    if (ve || !count) {
        break_off(qp, ve);
        return;
    }
    memmove(at + n, at, out->end - out->split);
    ve = source_copy(qp, &out->source, pieces, count, at, n, NULL);
    out->end += n;
    out->referred = 0;
    if (ve)
        break_off(qp, ve);
}

void out_finish(struct qp *qp) {
    struct writer *out = &iwarp_of(qp)->out;
    if (!out->finished && !out->broken)
        qp->way.link->ops->finish(qp->way.link, &qp->way);
    out->finished = true;
}

uint64_t out_taken(const struct qp *qp) {
    const struct iwarp *iw = iwarp_of(qp);
    const struct link_ops *ops = iw->connected ? qp->way.link->ops : NULL;
    uint32_t queued = ops && ops->queued ? ops->queued(qp->way.link, &qp->way) : 0;
    return queued < iw->out.written ? iw->out.written - queued : 0; /* the link may count the start-up, too */
}
