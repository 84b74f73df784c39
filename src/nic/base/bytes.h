/* SPDX-License-Identifier: Apache-2.0
 *
 * Unaligned loads and stores in a stated byte order.  memcpy is how C says "unaligned"; it compiles to one move.
 */
#ifndef RNIC_BASE_BYTES_H
#define RNIC_BASE_BYTES_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline uint8_t get_be8(const void *p) { return *(const uint8_t *)p; }
static inline void put_be8(void *p, uint8_t v) { *(uint8_t *)p = v; }

#define BYTES_ACCESS(order, bits)                                                                                     \
    static inline uint##bits##_t get_##order##bits(const void *p)                                                     \
    {                                                                                                                 \
        uint##bits##_t v;                                                                                             \
        memcpy(&v, p, sizeof v);                                                                                      \
        return order##bits##toh(v);                                                                                   \
    }                                                                                                                 \
    static inline void put_##order##bits(void *p, uint##bits##_t v)                                                   \
    {                                                                                                                 \
        v = hto##order##bits(v);                                                                                      \
        memcpy(p, &v, sizeof v);                                                                                      \
    }

BYTES_ACCESS(be, 16) /* get_be16(p), put_be16(p, v), and so on */
BYTES_ACCESS(be, 32)
BYTES_ACCESS(be, 64)
BYTES_ACCESS(le, 16)
BYTES_ACCESS(le, 32)
BYTES_ACCESS(le, 64)
#undef BYTES_ACCESS

#endif
