/* SPDX-License-Identifier: Apache-2.0
 *
 * MPA's markers (RFC 5044, 4.3).  They let a receiver find the FPDU that a piece of the stream belongs to; a reader who sees
 * the stream from its beginning checks them, and learns nothing else.
 */
#include "iwarp/engine.h"

#include <string.h>

uint32_t marker_due(uint8_t *to, uint32_t *position, uint32_t *begun) {
    if (*position)
        return 0;
    memset(to, 0, MPA_MARKER_BYTES);
    marker_set_distance(to, (uint16_t)*begun);
    *position = MPA_MARKER_BYTES;
    *begun += *begun ? MPA_MARKER_BYTES : 0; /* one ahead of the FPDU's length is none of its bytes */
    return MPA_MARKER_BYTES;
}

uint32_t marker_spread(uint8_t *to, const uint8_t *from, uint32_t n, uint32_t *position, uint32_t *begun) {
    uint8_t *at = to;
    for (uint32_t part; n; from += part, at += part, n -= part) {
        at += marker_due(at, position, begun);
        part = MPA_MARKER_EVERY - *position;
        part = part < n ? part : n;
        memcpy(at, from, part);
        *position = (*position + part) % MPA_MARKER_EVERY;
        *begun += part;
    }
    return (uint32_t)(at - to);
}

uint32_t marker_take(struct reader *in, const uint8_t *bytes, uint32_t n) {
    uint32_t have = in->position, part = MPA_MARKER_BYTES - have;
    if (have >= MPA_MARKER_BYTES)
        return 0;
    part = part < n ? part : n;
    memcpy(in->marker + have, bytes, part);
    in->position += part;
    if (in->position == MPA_MARKER_BYTES) {
        if ((marker_distance(in->marker) & ~3u) != in->begun) /* its lower bits do not count */
            in->bad = BAD_MARKER;
        in->begun += in->begun ? MPA_MARKER_BYTES : 0;
    }
    return part;
}
