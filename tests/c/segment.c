/* SPDX-License-Identifier: Apache-2.0 */
#include "segment.h"

#include <string.h>

#include "check.h"
#include "wire/crc32c.h"

static void append(struct segment *g, const void *bytes, uint32_t n) {
    CHECK(g->n + n <= sizeof g->ddp);
    if (n)
        memcpy(g->ddp + g->n, bytes, n);
    g->n += n;
}

void segment_tagged(struct segment *g, unsigned opcode, bool last, uint32_t stag, uint64_t to, const void *payload,
                    uint32_t n) {
    ddp_put_tagged(g->ddp, opcode, last, stag, to);
    g->n = DDP_TAGGED_BYTES;
    append(g, payload, n);
}

void segment_untagged(struct segment *g, unsigned opcode, bool last, uint32_t msn, uint32_t mo, const void *payload,
                      uint32_t n) {
    const struct rdmap_row *row = rdmap_row(opcode);
    memset(g->ddp, 0, DDP_UNTAGGED_BYTES + row->more);
    ddp_put_untagged(g->ddp, opcode, last, msn, mo);
    g->n = rdmap_header(row);
    append(g, payload, n);
}

void segment_read(struct segment *g, uint32_t msn, uint32_t sink_stag, uint64_t sink_to, uint32_t length, uint32_t stag,
                  uint64_t to) {
    segment_untagged(g, RDMAP_READ_REQUEST, true, msn, 0, NULL, 0);
    read_set_sink_stag(segment_behind(g), sink_stag);
    read_set_sink_to(segment_behind(g), sink_to);
    read_set_length(segment_behind(g), length);
    read_set_stag(segment_behind(g), stag);
    read_set_to(segment_behind(g), to);
}

uint32_t segment_frame(const struct segment *g, bool crc, uint8_t *to) {
    uint32_t n = mpa_fpdu(g->n), summed = n - MPA_CRC_BYTES;
    memset(to, 0, n);
    mpa_set_length(to, (uint16_t)g->n);
    memcpy(to + MPA_LENGTH_BYTES, g->ddp, g->n);
    if (crc)
        put_le32(to + summed, ~crc32c_update(CRC32C_INIT, to, summed));
    return n;
}

void segment_give(struct stream *s, struct end *to, const struct segment *g) {
    static uint8_t frame[sizeof g->ddp + 16];
    uint32_t n = segment_frame(g, true, frame);
    stream_give(s, to, frame, n);
}

bool segment_next(const struct pipe *p, uint64_t *at, struct segment *g) {
    if (*at == p->written)
        return false;
    const uint8_t *frame = p->bytes + *at;
    CHECK(p->written - *at >= MPA_LENGTH_BYTES);
    uint32_t ulpdu = mpa_length(frame), n = mpa_fpdu(ulpdu);
    CHECK(p->written - *at >= n);
    CHECK_EQ(get_le32(frame + n - 4), (uint32_t)~crc32c_update(CRC32C_INIT, frame, n - 4));
    memcpy(g->ddp, frame + MPA_LENGTH_BYTES, ulpdu);
    g->n = ulpdu;
    *at += n;
    return true;
}

bool segment_last(const struct pipe *p, struct segment *g) {
    uint64_t at = 0;
    g->n = 0;
    while (segment_next(p, &at, g))
        ;
    return g->n;
}
