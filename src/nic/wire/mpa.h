/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames of MPA in full operation (RFC 5044, 4).  An FPDU: the ULPDU's length, the ULPDU, which is a DDP segment, up to 3 bytes
 * of padding, a CRC.  A receiver may insist on markers: 4 bytes at every 512th place of the stream, counted from the first FPDU
 * on, markers included, the first one at its very start.  They are within FPDUs, and their CRCs cover them; one between two
 * FPDUs belongs to the later one.
 */
#ifndef RNIC_WIRE_MPA_H
#define RNIC_WIRE_MPA_H

#include <stdbool.h>

#include "wire/field.h"

#define MPA_LENGTH_BYTES 2u
#define MPA_CRC_BYTES 4u
#define MPA_PAD_MOST 3u
#define MPA_MARKER_BYTES 4u
#define MPA_MARKER_EVERY 512u
/* The longest ULPDU that needs no padding: its length has 16 bits. */
#define MPA_ULPDU_MOST 65534u
/* The same with markers, whose pointers have 16 bits, too. */
#define MPA_ULPDU_MOST_MARKED 64998u

FIELD(mpa, length, 16, 0, 0, 16)

/* Of a marker: bytes from the FPDU's start, its length, up to it; 0 if it stands before that. */
FIELD(marker, distance, 16, 2, 0, 16)

static inline uint32_t mpa_pad(uint32_t ulpdu) { return -(ulpdu + MPA_LENGTH_BYTES) & 3; }

/* Without markers. */
static inline uint32_t mpa_fpdu(uint32_t ulpdu) { return MPA_LENGTH_BYTES + ulpdu + mpa_pad(ulpdu) + MPA_CRC_BYTES; }

/* The longest ULPDU whose FPDU leaves in one piece of so many bytes (RFC 5044, 4.1: MULPDU), and that is not shorter than
 * `least`. */
static inline uint32_t mpa_ulpdu_most(uint32_t piece, bool markers, uint32_t least) {
    uint32_t most = markers ? MPA_ULPDU_MOST_MARKED : MPA_ULPDU_MOST;
    uint32_t marks = markers ? MPA_MARKER_BYTES * ((piece - 1) / MPA_MARKER_EVERY + 1) : 0;
    uint32_t rest = marks + MPA_LENGTH_BYTES + MPA_CRC_BYTES + piece % 4;
    uint32_t fits = piece > rest ? piece - rest : 0;
    fits = fits > least ? fits : least;
    return fits < most ? fits : most;
}

#endif
