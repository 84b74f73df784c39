/* SPDX-License-Identifier: Apache-2.0
 *
 * Headers of DDP segments (RFC 5041, 4) and of RDMAP in them (RFC 5040, 4; RFC 7306, 5, 6), as they lie on the wire.
 */
#ifndef RNIC_WIRE_RDMAP_H
#define RNIC_WIRE_RDMAP_H

#include <stdbool.h>
#include <stddef.h>

#include "wire/field.h"

#define DDP_VERSION 1u
#define RDMAP_VERSION 1u

#define DDP_CONTROL_BYTES 2u /* DDP's byte, and RDMAP's */
#define DDP_TAGGED_BYTES 14u
#define DDP_UNTAGGED_BYTES 18u
/* What follows them. */
#define READ_REQUEST_BYTES 28u
#define TERMINATE_BYTES 4u
#define IMMEDIATE_BYTES 8u
#define ATOMIC_REQUEST_BYTES 52u
#define ATOMIC_RESPONSE_BYTES 12u
#define RDMAP_HEADER_MOST (DDP_UNTAGGED_BYTES + ATOMIC_REQUEST_BYTES)

/* Queues of untagged messages (RFC 5040, 4.2; RFC 7306, 4.2). */
enum rdmap_queue { QUEUE_SEND, QUEUE_REQUEST, QUEUE_TERMINATE, QUEUE_RESPONSE, RDMAP_QUEUES };

enum rdmap_opcode {
    RDMAP_WRITE,
    RDMAP_READ_REQUEST,
    RDMAP_READ_RESPONSE,
    RDMAP_SEND,
    RDMAP_SEND_INV,
    RDMAP_SEND_SE, /* with solicited event */
    RDMAP_SEND_SE_INV,
    RDMAP_TERMINATE,
    RDMAP_IMMEDIATE, /* RFC 7306 */
    RDMAP_IMMEDIATE_SE,
    RDMAP_ATOMIC_REQUEST,
    RDMAP_ATOMIC_RESPONSE,
    RDMAP_OPCODES
};

/* What stands in a message of an opcode. */
struct rdmap_row {
    bool tagged;
    uint8_t queue; /* enum rdmap_queue, if it is not */
    uint8_t more;  /* bytes of header behind DDP's */
    bool whole;    /* nothing follows them: it is one segment */
    bool rfc7306;
};

/* NULL: there is no such opcode. */
const struct rdmap_row *rdmap_row(unsigned opcode);

static inline uint32_t rdmap_header(const struct rdmap_row *row) {
    return (row->tagged ? DDP_TAGGED_BYTES : DDP_UNTAGGED_BYTES) + row->more;
}

/*    header field    word offset shift width */
FIELD(ddp, tagged, 8, 0, 7, 1)
FIELD(ddp, last, 8, 0, 6, 1)
FIELD(ddp, version, 8, 0, 0, 2)
FIELD(rdmap, version, 8, 1, 6, 2)
FIELD(rdmap, opcode, 8, 1, 0, 4)
/* tagged: */
FIELD(ddp, stag, 32, 2, 0, 32)
FIELD(ddp, to, 64, 6, 0, 64)
/* untagged: */
FIELD(rdmap, inv_stag, 32, 2, 0, 32) /* of SENDs with invalidate */
FIELD(ddp, qn, 32, 6, 0, 32)
FIELD(ddp, msn, 32, 10, 0, 32)
FIELD(ddp, mo, 32, 14, 0, 32)

/* Behind the untagged header. */
FIELD(read, sink_stag, 32, 0, 0, 32)
FIELD(read, sink_to, 64, 4, 0, 64)
FIELD(read, length, 32, 12, 0, 32)
FIELD(read, stag, 32, 16, 0, 32)
FIELD(read, to, 64, 20, 0, 64)

FIELD(atomic, opcode, 32, 0, 0, 4) /* enum rdmap_atomic */
FIELD(atomic, id, 32, 4, 0, 32)    /* which the response repeats */
FIELD(atomic, stag, 32, 8, 0, 32)
FIELD(atomic, to, 64, 12, 0, 64)
FIELD(atomic, data, 64, 20, 0, 64) /* added, or swapped in */
FIELD(atomic, data_mask, 64, 28, 0, 64)
FIELD(atomic, compare, 64, 36, 0, 64)
FIELD(atomic, compare_mask, 64, 44, 0, 64)

FIELD(atomic_response, id, 32, 0, 0, 32)
FIELD(atomic_response, value, 64, 4, 0, 64)

FIELD(immediate, data, 64, 0, 0, 64)

/* RFC 5040, 4.8.  With D the segment's length and its DDP header follow, with R RDMAP's, too. */
FIELD(terminate, layer, 8, 0, 4, 4)
FIELD(terminate, type, 8, 0, 0, 4)
FIELD(terminate, code, 8, 1, 0, 8)
FIELD(terminate, m, 8, 2, 7, 1) /* the length is right */
FIELD(terminate, d, 8, 2, 6, 1)
FIELD(terminate, r, 8, 2, 5, 1)
FIELD(terminate, length, 16, 4, 0, 16)
#define TERMINATED_AT 6u /* where the segment's header stands */

enum rdmap_atomic { ATOMIC_FETCH_ADD, ATOMIC_SWAP, ATOMIC_CMP_SWAP }; /* RFC 7306, 5.2.1 */

/* The first two bytes of a segment. */
static inline void ddp_put_control(uint8_t *p, unsigned opcode, bool tagged, bool last) {
    p[0] = (uint8_t)((tagged ? 0x80 : 0) | (last ? 0x40 : 0) | DDP_VERSION);
    p[1] = (uint8_t)(RDMAP_VERSION << 6 | opcode);
}
static inline void ddp_put_tagged(uint8_t *p, unsigned opcode, bool last, uint32_t stag, uint64_t to) {
    ddp_put_control(p, opcode, true, last);
    ddp_set_stag(p, stag);
    ddp_set_to(p, to);
}
static inline void ddp_put_untagged(uint8_t *p, unsigned opcode, bool last, uint32_t msn, uint32_t mo) {
    ddp_put_control(p, opcode, false, last);
    rdmap_set_inv_stag(p, 0);
    ddp_set_qn(p, rdmap_row(opcode)->queue);
    ddp_set_msn(p, msn);
    ddp_set_mo(p, mo);
}

#endif
