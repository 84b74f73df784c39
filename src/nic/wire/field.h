/* SPDX-License-Identifier: Apache-2.0
 *
 * Header fields: each is described once, by a line, and read and written through that.
 *
 * A function takes a pointer to the START of its own header; the caller has checked that the header is there.  A setter leaves
 * the bits beside its field alone: zero the header first.
 */
#ifndef RNIC_WIRE_FIELD_H
#define RNIC_WIRE_FIELD_H

#include <stdint.h>
#include <string.h>

#include "base/bytes.h"

/* header_field(p) and header_set_field(p, v): `width` bits, `shift` bits from the right of the big-endian word of
 * `word` bits that starts `offset` bytes into the header. */
#define FIELD(header, field, word, offset, shift, width)                                                              \
    static inline uint##word##_t header##_##field(const uint8_t *p)                                                   \
    {                                                                                                                 \
        return (uint##word##_t)((uint64_t)get_be##word(p + (offset)) >> (shift) & (UINT64_MAX >> (64 - (width))));    \
    }                                                                                                                 \
    static inline void header##_set_##field(uint8_t *p, uint##word##_t v)                                             \
    {                                                                                                                 \
        const uint64_t mask = UINT64_MAX >> (64 - (width)) << (shift);                                                \
        uint64_t rest = get_be##word(p + (offset)) & ~mask;                                                           \
        put_be##word(p + (offset), (uint##word##_t)(rest | ((uint64_t)v << (shift) & mask)));                         \
    }

#endif
