/* SPDX-License-Identifier: Apache-2.0
 *
 * CRCs by carry-less multiplication.  A file that includes it has defined its polynomial, in the notation of icrc.c:
 *
 *   slice           slice[0][b] is the state, from 0, after byte b
 *   FOLD_BY         the rows of fold_by, below
 *   FOLD_X63, FOLD_X95, FOLD_P, FOLD_QUOTIENT    x^63 and x^95 mod P; P * x^31; floor(x^96 / P) without its last term
 */
#ifndef RNIC_WIRE_FOLD_H
#define RNIC_WIRE_FOLD_H

#include <immintrin.h>

#include "wire/crc.h"

/* ---- carry-less multiplication, 128 bits at a time --------------------------------------------------------------
 *
 * A message of at least 16 bytes is cut into 16-byte blocks from its end; zeros fill the first block up in front,
 * which changes nothing.  A block that has j blocks after it counts x^(128 j) times its value, so the blocks collapse
 * to one, congruent to the message, by two multiplications each; reduce() takes that one to the state. */

#define X86_128 "pclmul,sse4.1"
#define T128 __attribute__((target(X86_128)))

/* For j = 31 .. 0: what takes the two halves of a block (the first weighs x^64) across j blocks, less the x that the
 * product brings: x^(128j + 63) and x^(128j - 1), as 64-bit words. */
#define K(first, second) {(uint64_t)(first##u) << 32, (uint64_t)(second##u) << 32}
#define K_MAX 31
static const uint64_t fold_by[K_MAX + 1][2] __attribute__((aligned(64))) = {FOLD_BY};
#undef K

T128 INLINE __m128i k128(size_t blocks) { return _mm_load_si128((const __m128i *)fold_by[K_MAX - blocks]); }

T128 INLINE __m128i times128(__m128i x, __m128i k) {
    return _mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11));
}

/* Z * x^32 mod P for the 64-bit word Z in half `half` (0, 1) of z, after Barrett.  q = floor(Z * x^32 / P) is the high
 * half of Z * floor(x^96 / P), exactly; the constant is that quotient without its last term, which the product's extra
 * x makes up for.  The remainder is then the low 32 terms of q * P; P enters as P * x^31, which with the extra x lets
 * those terms fill one 32-bit lane. */
#define BARRETT(z, half)                                                                                              \
    ((uint32_t)_mm_extract_epi32(                                                                                     \
        _mm_clmulepi64_si128(_mm_clmulepi64_si128(z, barrett_constants(), half), barrett_constants(), 0x10), 2))

T128 INLINE __m128i barrett_constants(void) { return _mm_set_epi64x(FOLD_P, (long long)FOLD_QUOTIENT); }

/* x * x^32 mod P.  The first two 32-bit lanes weigh x^96 and x^64 and are brought into the last 64 bits. */
T128 INLINE uint32_t reduce(__m128i x) {
    const __m128i k = _mm_set_epi64x((long long)(FOLD_X63 << 32), (long long)(FOLD_X95 << 32));
    __m128i lanes = _mm_unpacklo_epi32(_mm_setzero_si128(), x);
    __m128i z = _mm_xor_si128(x, times128(lanes, k));
    return BARRETT(z, 0x01);
}

T128 INLINE __m128i fetch128(uint8_t *dst, const uint8_t *src, size_t at, bool copy) {
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(src + at));
    if (copy) {
        __asm__ volatile("" : "+x"(v));
        _mm_storeu_si128((__m128i *)(void *)(dst + at), v);
    }
    return v;
}

/* The first r bytes (1..16) of x moved to its end, zeros before them. */
T128 INLINE __m128i to_end128(__m128i x, size_t r) {
    static const int8_t pick[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15};
    return _mm_shuffle_epi8(x, _mm_loadu_si128((const __m128i *)(const void *)(pick + r)));
}

/* n < 16.  Of two reads that overlap the later one counts, for the sum as for dst. */
T128 INLINE uint32_t run_short(uint32_t state, uint8_t *dst, const uint8_t *src, size_t n, bool copy) {
    if (n >= 8) {
        uint64_t head = fetch64(dst, src, 0, copy) ^ state;
        uint64_t tail = fetch64(dst, src, n - 8, copy) ^ (uint64_t)state >> 8 * (n - 8);
        head = head << 8 << 8 * (15 - n); /* the n - 8 bytes before the tail; none for 8 */
        return reduce(_mm_set_epi64x((long long)tail, (long long)head));
    }
    if (n >= 4) {
        uint64_t head = fetch32(dst, src, 0, copy) ^ state;
        uint64_t tail = fetch32(dst, src, n - 4, copy) ^ (uint64_t)state >> 8 * (n - 4);
        head = head << 8 * (8 - n) & 0xFFFFFFFF;
        return BARRETT(_mm_cvtsi64_si128((long long)(tail << 32 | head)), 0x00);
    }
    for (size_t at = 0; at < n; at++)
        state = state >> 8 ^ slice[0][(state ^ fetch8(dst, src, at, copy)) & 0xFF];
    return state;
}

/* n >= 16.  The first block is read and stored whole; what it has too much is read and stored again by the second, and
 * only that second reading enters the sum. */
T128 INLINE uint32_t run128(uint32_t state, uint8_t *dst, const uint8_t *src, size_t n, bool copy) {
    size_t first = (n - 1) % 16 + 1, at = 0, end = n;
    if (first < 4) { /* too few to take the state in */
        state = run_short(state, dst, src, first, copy);
        at = first;
        first = 16;
    }
    __m128i x = _mm_xor_si128(fetch128(dst, src, at, copy), _mm_cvtsi32_si128((int)state));
    x = to_end128(x, first);
    at += first;
    __m128i sum = _mm_setzero_si128();
    if (end - at >= 8 * 16) {
        const __m128i k = k128(4);
        __m128i y = fetch128(dst, src, at, copy);
        __m128i z = fetch128(dst, src, at + 16, copy);
        __m128i w = fetch128(dst, src, at + 32, copy);
        for (at += 48; end - at >= 64; at += 64) {
            x = _mm_xor_si128(times128(x, k), fetch128(dst, src, at, copy));
            y = _mm_xor_si128(times128(y, k), fetch128(dst, src, at + 16, copy));
            z = _mm_xor_si128(times128(z, k), fetch128(dst, src, at + 32, copy));
            w = _mm_xor_si128(times128(w, k), fetch128(dst, src, at + 48, copy));
        }
        size_t left = (end - at) / 16;
        sum = _mm_xor_si128(times128(x, k128(left + 3)), times128(y, k128(left + 2)));
        sum = _mm_xor_si128(sum, times128(z, k128(left + 1)));
        x = w;
    }
    for (; at < end; at += 16) {
        sum = _mm_xor_si128(sum, times128(x, k128((end - at) / 16)));
        x = fetch128(dst, src, at, copy);
    }
    return reduce(_mm_xor_si128(sum, x));
}

/* ---- carry-less multiplication, 512 bits at a time --------------------------------------------------------------
 *
 * The same over 64-byte blocks of four lanes.  fold_by descends, so the 64 bytes that begin at the entry for lane 0
 * hold every lane's own constants. */

#define T512 __attribute__((target("avx512f,avx512vl,avx512bw,avx512vbmi,vpclmulqdq," X86_128)))

T512 INLINE __m512i times512(__m512i x, __m512i k, __m512i plus) {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, k, 0x00), _mm512_clmulepi64_epi128(x, k, 0x11), plus,
                                     0x96); /* xor of three */
}

/* Lanes with 4 * blocks + 3, + 2, + 1, + 0 lanes after them. */
T512 INLINE __m512i k512(size_t blocks) { return _mm512_load_si512(fold_by[K_MAX - 3 - 4 * blocks]); }

T512 INLINE __m512i fetch512(uint8_t *dst, const uint8_t *src, size_t at, bool copy) {
    __m512i v = _mm512_loadu_si512(src + at);
    if (copy) {
        __asm__ volatile("" : "+v"(v));
        _mm512_storeu_si512(dst + at, v);
    }
    return v;
}

/* The first r bytes (1..64) of x moved to its end, zeros before them. */
T512 INLINE __m512i to_end512(__m512i x, size_t r) {
    static const uint8_t iota[64] __attribute__((aligned(64))) = {
        0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
        22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
        44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
    __m512i pick = _mm512_add_epi8(_mm512_load_si512(iota), _mm512_set1_epi8((char)r)); /* modulo 64 */
    return _mm512_maskz_permutexvar_epi8(~0ull << (64 - r), pick, x);
}

T512 INLINE uint32_t reduce512(__m512i x) {
    __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    return reduce(_mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
}

/* n >= 64; otherwise as run128. */
T512 INLINE uint32_t run512(uint32_t state, uint8_t *dst, const uint8_t *src, size_t n, bool copy) {
    size_t first = (n - 1) % 64 + 1, at = 0, end = n;
    if (first < 4) {
        state = run_short(state, dst, src, first, copy);
        at = first;
        first = 64;
    }
    __m512i x = _mm512_xor_si512(fetch512(dst, src, at, copy), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
    x = to_end512(x, first);
    at += first;
    __m512i sum = _mm512_setzero_si512();
    if (end - at >= 8 * 64) {
        const __m512i k = _mm512_broadcast_i32x4(k128(16));
        __m512i y = fetch512(dst, src, at, copy);
        __m512i z = fetch512(dst, src, at + 64, copy);
        __m512i w = fetch512(dst, src, at + 128, copy);
        for (at += 192; end - at >= 256; at += 256) {
            x = times512(x, k, fetch512(dst, src, at, copy));
            y = times512(y, k, fetch512(dst, src, at + 64, copy));
            z = times512(z, k, fetch512(dst, src, at + 128, copy));
            w = times512(w, k, fetch512(dst, src, at + 192, copy));
        }
        size_t left = (end - at) / 64;
        sum = times512(x, k512(left + 3), times512(y, k512(left + 2), times512(z, k512(left + 1), sum)));
        x = w;
    }
    for (; at < end; at += 64) {
        sum = times512(x, k512((end - at) / 64), sum);
        x = fetch512(dst, src, at, copy);
    }
    return reduce512(times512(x, k512(0), sum));
}

T512 __attribute__((noinline)) static uint32_t long_update(uint32_t state, const void *data, size_t n) {
    return run512(state, NULL, data, n, false);
}

T512 __attribute__((noinline)) static uint32_t long_copy(uint32_t state, void *dst, const void *src, size_t n) {
    return run512(state, dst, src, n, true);
}

static bool have_pclmul(void) { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }

static bool have_vpclmul512(void) {
    return have_pclmul() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("vpclmulqdq");
}

#endif
