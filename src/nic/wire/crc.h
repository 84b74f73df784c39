/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files that compute CRCs have in common: tables, and reading memory once.
 */
#ifndef RNIC_WIRE_CRC_H
#define RNIC_WIRE_CRC_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* The value in a register is final: the compiler may not go back to memory for it.  What is stored is what is summed,
 * although another thread, process or peer may be writing the source. */
#define PIN(v) __asm__ volatile("" : "+r"(v))

/* The 256 sums of eight constants: entry i is the sum of those whose bit is set in i.  A row for "k zero bytes follow"
 * has x^(39 + 8k) for bit 0 down to x^(32 + 8k) for bit 7, modulo the polynomial. */
#define SUM1(v, a) (v), (v) ^ (a)
#define SUM2(v, a, b) SUM1(v, a), SUM1((v) ^ (b), a)
#define SUM3(v, a, b, c) SUM2(v, a, b), SUM2((v) ^ (c), a, b)
#define SUM4(v, a, b, c, d) SUM3(v, a, b, c), SUM3((v) ^ (d), a, b, c)
#define SUM5(v, a, b, c, d, e) SUM4(v, a, b, c, d), SUM4((v) ^ (e), a, b, c, d)
#define SUM6(v, a, b, c, d, e, f) SUM5(v, a, b, c, d, e), SUM5((v) ^ (f), a, b, c, d, e)
#define SUM7(v, a, b, c, d, e, f, g) SUM6(v, a, b, c, d, e, f), SUM6((v) ^ (g), a, b, c, d, e, f)
#define ROW(a, b, c, d, e, f, g, h) {SUM7(0u, a, b, c, d, e, f, g), SUM7(h, a, b, c, d, e, f, g)}

INLINE uint32_t load32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return le32toh(v);
}

INLINE uint64_t load64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return le64toh(v);
}

/* fetchN: read memory once and, for a copy, store what was read.  dst is not looked at otherwise. */
INLINE uint8_t fetch8(uint8_t *dst, const uint8_t *src, size_t at, bool copy) {
    unsigned v = src[at];
    if (copy) {
        PIN(v);
        dst[at] = (uint8_t)v;
    }
    return (uint8_t)v;
}

INLINE uint32_t fetch32(uint8_t *dst, const uint8_t *src, size_t at, bool copy) {
    uint32_t v;
    memcpy(&v, src + at, sizeof v);
    if (copy) {
        PIN(v);
        memcpy(dst + at, &v, sizeof v);
    }
    return le32toh(v);
}

INLINE uint64_t fetch64(uint8_t *dst, const uint8_t *src, size_t at, bool copy) {
    uint64_t v;
    memcpy(&v, src + at, sizeof v);
    if (copy) {
        PIN(v);
        memcpy(dst + at, &v, sizeof v);
    }
    return le64toh(v);
}

#endif
