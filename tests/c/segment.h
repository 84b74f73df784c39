/* SPDX-License-Identifier: Apache-2.0
 *
 * FPDUs by hand, right or wrong, for an end of a stream.
 */
#ifndef RNIC_TESTS_SEGMENT_H
#define RNIC_TESTS_SEGMENT_H

#include "stream.h"
#include "wire/mpa.h"
#include "wire/rdmap.h"

struct segment {
    uint8_t ddp[70000]; /* headers and payload */
    uint32_t n;
};

/* With the headers of an opcode; what lies behind DDP's is 0. */
void segment_tagged(struct segment *g, unsigned opcode, bool last, uint32_t stag, uint64_t to, const void *payload,
                    uint32_t n);
void segment_untagged(struct segment *g, unsigned opcode, bool last, uint32_t msn, uint32_t mo, const void *payload,
                      uint32_t n);
void segment_read(struct segment *g, uint32_t msn, uint32_t sink_stag, uint64_t sink_to, uint32_t length, uint32_t stag,
                  uint64_t to);
static inline uint8_t *segment_behind(struct segment *g) { return g->ddp + DDP_UNTAGGED_BYTES; }
/* Its FPDU, without markers: bytes of it. crc: or 0 in its place. */
uint32_t segment_frame(const struct segment *g, bool crc, uint8_t *to);
/* Gives it to an end whose connection has CRCs. */
void segment_give(struct stream *s, struct end *to, const struct segment *g);

/* The next FPDU that was written to a pipe, from *at on, whose CRC is right; false: there is none. */
bool segment_next(const struct pipe *p, uint64_t *at, struct segment *g);
/* The last one. */
bool segment_last(const struct pipe *p, struct segment *g);

#endif
