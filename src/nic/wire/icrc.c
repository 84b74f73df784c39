/* SPDX-License-Identifier: Apache-2.0 */

/* Notation.  P = x^32 + x^26 + ... + 1 is the Ethernet polynomial.  Everything is reflected: the first bit on the wire
 * has the highest degree and is the lowest bit in memory, so bit i of a w-bit word stands for x^(w-1-i).  Three facts
 * carry this file:
 *
 *  - the state after a message M, from state 0, is M * x^32 mod P; leading zero bytes therefore cost nothing;
 *  - a state S before M is the same as S xored into the first four bytes of M;
 *  - a carry-less product of two 64-bit words a and b, read as one 128-bit word, is a * b * x (its top bit is empty).
 *
 * All constants are powers of x mod P; the comment at each says which.  tests/c/test_icrc.c holds the results against
 * a division bit by bit. */
#include "wire/icrc.h"

#include <stdbool.h>
#include <string.h>

#include "wire/crc.h"

#if defined(__x86_64__) && !defined(RNIC_PORTABLE)
#define CRC_X86 1
#else
#define CRC_X86 0
#endif

struct crc_impl {
    const char *name;
    uint32_t (*update)(uint32_t state, const void *data, size_t n);
    uint32_t (*copy)(uint32_t state, void *dst, const void *src, size_t n);
    /* State, from 0, after the 32 bytes that a, b, c, d are when stored little-endian one after the other. */
    uint32_t (*words)(uint64_t a, uint64_t b, uint64_t c, uint64_t d);
    /* a * b * x^33 mod P */
    uint32_t (*mul33)(uint32_t a, uint32_t b);
};

/* ---- tables ---------------------------------------------------------------------------------------------------- */

/* slice[k][b]: state, from 0, after byte b and k zero bytes. */
static const uint32_t slice[8][256] = {
    ROW(0x77073096u, 0xEE0E612Cu, 0x076DC419u, 0x0EDB8832u, 0x1DB71064u, 0x3B6E20C8u, 0x76DC4190u, 0xEDB88320u),
    ROW(0x191B3141u, 0x32366282u, 0x646CC504u, 0xC8D98A08u, 0x4AC21251u, 0x958424A2u, 0xF0794F05u, 0x3B83984Bu),
    ROW(0x01C26A37u, 0x0384D46Eu, 0x0709A8DCu, 0x0E1351B8u, 0x1C26A370u, 0x384D46E0u, 0x709A8DC0u, 0xE1351B80u),
    ROW(0xB8BC6765u, 0xAA09C88Bu, 0x8F629757u, 0xC5B428EFu, 0x5019579Fu, 0xA032AF3Eu, 0x9B14583Du, 0xED59B63Bu),
    ROW(0x3D6029B0u, 0x7AC05360u, 0xF580A6C0u, 0x30704BC1u, 0x60E09782u, 0xC1C12F04u, 0x58F35849u, 0xB1E6B092u),
    ROW(0xCB5CD3A5u, 0x4DC8A10Bu, 0x9B914216u, 0xEC53826Du, 0x03D6029Bu, 0x07AC0536u, 0x0F580A6Cu, 0x1EB014D8u),
    ROW(0xA6770BB4u, 0x979F1129u, 0xF44F2413u, 0x33EF4E67u, 0x67DE9CCEu, 0xCFBD399Cu, 0x440B7579u, 0x8816EAF2u),
    ROW(0xCCAA009Eu, 0x4225077Du, 0x844A0EFAu, 0xD3E51BB5u, 0x7CBB312Bu, 0xF9766256u, 0x299DC2EDu, 0x533B85DAu),
};

/* The identification is bytes 12 and 13 of the IPv4 pseudo header's 36: 23 bytes follow the first, 22 the second. */
static const uint32_t id_high[256] =
    ROW(0x81256527u, 0xD93BCC0Fu, 0x69069E5Fu, 0xD20D3CBEu, 0x7F6B7F3Du, 0xFED6FE7Au, 0x26DCFAB5u, 0x4DB9F56Au);
static const uint32_t id_low[256] =
    ROW(0x9B73EAD4u, 0xED96D3E9u, 0x005CA193u, 0x00B94326u, 0x0172864Cu, 0x02E50C98u, 0x05CA1930u, 0x0B943260u);

/* ---- one byte, four, eight at a time --------------------------------------------------------------------------- */

INLINE uint32_t step1(uint32_t state, uint8_t byte) { return state >> 8 ^ slice[0][(state ^ byte) & 0xFF]; }

/* State after the four bytes w, into which the state before them has been xored; step8 likewise. */
INLINE uint32_t step4(uint32_t w) {
    return slice[3][w & 0xFF] ^ slice[2][w >> 8 & 0xFF] ^ slice[1][w >> 16 & 0xFF] ^ slice[0][w >> 24];
}

INLINE uint32_t step8(uint64_t w) {
    return slice[7][w & 0xFF] ^ slice[6][w >> 8 & 0xFF] ^ slice[5][w >> 16 & 0xFF] ^ slice[4][w >> 24 & 0xFF] ^
           slice[3][w >> 32 & 0xFF] ^ slice[2][w >> 40 & 0xFF] ^ slice[1][w >> 48 & 0xFF] ^ slice[0][w >> 56];
}

INLINE uint32_t table_run(uint32_t state, uint8_t *dst, const uint8_t *src, size_t n, bool copy) {
    size_t at = 0;
    for (; n - at >= 8; at += 8)
        state = step8(fetch64(dst, src, at, copy) ^ state);
    if (n - at >= 4) {
        state = step4(fetch32(dst, src, at, copy) ^ state);
        at += 4;
    }
    for (; at < n; at++)
        state = step1(state, fetch8(dst, src, at, copy));
    return state;
}

static uint32_t table_update(uint32_t state, const void *data, size_t n) {
    return table_run(state, NULL, data, n, false);
}

static uint32_t table_copy(uint32_t state, void *dst, const void *src, size_t n) {
    return table_run(state, dst, src, n, true);
}

static uint32_t table_words(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    return step8(step8(step8(step8(a) ^ b) ^ c) ^ d);
}

static uint32_t table_mul33(uint32_t a, uint32_t b) {
    /* Bit k of the product is x^(62-k) of a * b; as a 64-bit word it stands for x^(63-k), one x more, and step8
     * multiplies by the other x^32. */
    uint64_t product = 0;
    for (unsigned i = 0; i < 32; i++)
        product ^= ((uint64_t)a << i) & -(uint64_t)(b >> i & 1);
    return step8(product);
}

static const struct crc_impl table_impl = {"table", table_update, table_copy, table_words, table_mul33};

#if CRC_X86

#define FOLD_BY                                                                                                        \
    K(0xE57BE23C, 0x9EA69E7C), K(0x68B0D8A9, 0xCE1380F1), K(0xA24CB55D, 0xDD7D21E3), K(0x9EAA8E08, 0xBDE21737), \
    K(0xB0673847, 0x36DB8220), K(0x4B7955D2, 0xC06F231F), K(0xBD357393, 0x9A9A9711), K(0x0C1BD370, 0xB52B5039), \
    K(0x0149F5EE, 0x52E07A55), K(0x79A715DA, 0xC9EC5959), K(0x4BD56E78, 0xDA2F79E4), K(0xC2D4D8B3, 0xF8D22C1A), \
    K(0xC0586E28, 0x2032BFB5), K(0xCBD5B26D, 0x104538CE), K(0xFCDA35EC, 0xED5B10CC), K(0x7CC8E1E7, 0x03F9F863), \
    K(0x27D0443C, 0xC4D49C39), K(0x8F739CB4, 0xD63A56A6), K(0x733FFA0B, 0x523D48C4), K(0x67F79476, 0xC56D9496), \
    K(0xDEB15A1F, 0xF09A54AC), K(0x199560DB, 0x1D5DCE44), K(0x72D2649A, 0x6DD804D9), K(0x7D657A10, 0x7406FA95), \
    K(0x019866E8, 0xC64AC0B8), K(0x759FC69D, 0x101A2331), K(0x5A03A0CF, 0x8E42B13E), K(0x653D9822, 0xCAD38E8F), \
    K(0x69CCFC0D, 0x2A283862), K(0x9570D495, 0x01B5FD1D), K(0x65673B46, 0x9BA54C6F), K(0xB8BC6765, 0xDB710641)
#define FOLD_X63 0xB8BC6765ull
#define FOLD_X95 0xCCAA009Eull
#define FOLD_P 0x1DB710641
#define FOLD_QUOTIENT 0xB4E5B025F7011641u
#include "wire/fold.h"

/* ---- 128 bits at a time, and 512 ------------------------------------------------------------------------------- */

T128 static uint32_t pclmul_update(uint32_t state, const void *data, size_t n) {
    return n < 16 ? run_short(state, NULL, data, n, false) : run128(state, NULL, data, n, false);
}

T128 static uint32_t pclmul_copy(uint32_t state, void *dst, const void *src, size_t n) {
    return n < 16 ? run_short(state, dst, src, n, true) : run128(state, dst, src, n, true);
}

T128 static uint32_t pclmul_words(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    __m128i first = _mm_set_epi64x((long long)b, (long long)a), second = _mm_set_epi64x((long long)d, (long long)c);
    return reduce(_mm_xor_si128(times128(first, k128(1)), second));
}

T128 static uint32_t pclmul_mul33(uint32_t a, uint32_t b) {
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(a), _mm_cvtsi64_si128(b), 0x00);
    return BARRETT(product, 0x00);
}

static const struct crc_impl pclmul_impl = {"pclmul", pclmul_update, pclmul_copy, pclmul_words, pclmul_mul33};

/* Up to here the narrow ones are as fast (seen: 7 against 9 ns at 64 bytes, 10 each at 192), and they leave no wide
 * registers to clean up. */
#define WIDE_FROM 192

static uint32_t vpclmul512_update(uint32_t state, const void *data, size_t n) {
    return n < WIDE_FROM ? pclmul_update(state, data, n) : long_update(state, data, n);
}

static uint32_t vpclmul512_copy(uint32_t state, void *dst, const void *src, size_t n) {
    return n < WIDE_FROM ? pclmul_copy(state, dst, src, n) : long_copy(state, dst, src, n);
}

static const struct crc_impl vpclmul512_impl = {"vpclmul512", vpclmul512_update, vpclmul512_copy, pclmul_words,
                                                pclmul_mul33};

#endif /* CRC_X86 */

/* ---- the choice ------------------------------------------------------------------------------------------------- */

/* The implementation of that name, or the fastest (NULL); NULL when this CPU has none such. */
static const struct crc_impl *find(const char *name) {
#if CRC_X86
    if (have_vpclmul512() && (!name || !strcmp(name, vpclmul512_impl.name)))
        return &vpclmul512_impl;
    if (have_pclmul() && (!name || !strcmp(name, pclmul_impl.name)))
        return &pclmul_impl;
#endif
    return !name || !strcmp(name, table_impl.name) ? &table_impl : NULL;
}

#include "wire/crc_choice.h"

const char *crc32_name(void) { return current()->name; }

int crc32_use(const char *name) { return use(name); }

uint32_t crc32_update(uint32_t state, const void *data, size_t n) { return current()->update(state, data, n); }

uint32_t crc32_copy(uint32_t state, void *dst, const void *src, size_t n) {
    return current()->copy(state, dst, src, n);
}

/* ---- the invariant CRC ------------------------------------------------------------------------------------------
 *
 * The pseudo header (IBTA A17.3.3) goes through in words; the first four of its ones cancel against CRC_INIT, which
 * leaves state 0, so they are left out.  A word's first byte on the wire is its lowest. */

#define UDP_HEADER 8
#define IPV4_HEADER 20

/* Two fields of four bytes, of two bytes. */
INLINE uint64_t pair(uint32_t first, uint32_t second) { return (uint64_t)second << 32 | first; }

INLINE uint32_t halves(uint16_t first, uint16_t second) { return (uint32_t)second << 16 | first; }

/* A field of two bytes: from a number, and from memory where it is in network order already. */
INLINE uint16_t field(uint32_t v) { return __builtin_bswap16((uint16_t)v); }

INLINE uint16_t raw16(uint16_t network_order) { return le16toh(network_order); }

INLINE uint64_t udp_header(const struct sockaddr_in6 *src, const struct sockaddr_in6 *dst, uint32_t n) {
    return pair(halves(raw16(src->sin6_port), raw16(dst->sin6_port)), halves(field(UDP_HEADER + n), 0xFFFF));
}

/* ones | 45 FF length | id 4000 | FF 11 FFFF | addresses | UDP: 32 bytes. */
static uint32_t seed_ipv4(const struct sockaddr_in6 *src, const struct sockaddr_in6 *dst, uint16_t id, uint32_t n) {
    return current()->words(pair(0xFFFFFFFF, halves(0xFF45, field(IPV4_HEADER + UDP_HEADER + n))),
                            pair(halves(field(id), field(0x4000)), 0xFFFF11FF),
                            pair(load32(src->sin6_addr.s6_addr + 12), load32(dst->sin6_addr.s6_addr + 12)),
                            udp_header(src, dst, n));
}

/* 0 | ones | 6F FFFFFF | length 11 FF | source: 32 bytes; destination | UDP after a word of zeros: 32 more. */
static uint32_t seed_ipv6(const struct sockaddr_in6 *src, const struct sockaddr_in6 *dst, uint32_t n) {
    const struct crc_impl *impl = current();
    const uint8_t *s = src->sin6_addr.s6_addr, *d = dst->sin6_addr.s6_addr;
    uint32_t state = impl->words(pair(0, 0xFFFFFFFF), pair(0xFFFFFF6F, halves(field(UDP_HEADER + n), 0xFF11)),
                                 load64(s), load64(s + 8));
    return impl->words(0, load64(d) ^ state, load64(d + 8), udp_header(src, dst, n));
}

uint32_t icrc_seed(const struct sockaddr_in6 *src, const struct sockaddr_in6 *dst, uint16_t id, uint32_t n) {
    return IN6_IS_ADDR_V4MAPPED(&dst->sin6_addr) ? seed_ipv4(src, dst, id, n) : seed_ipv6(src, dst, n);
}

uint32_t icrc_id_delta(uint16_t id) { return id_high[id >> 8] ^ id_low[id & 0xFF]; }

uint32_t icrc_bth(uint32_t state, const uint8_t bth[12]) {
    return current()->words(0, 0, (uint64_t)(load32(bth) ^ state) << 32, load64(bth + 4) | 0xFF);
}

/* To go back over zero bytes is to multiply by a negative power of x.  In base 64, digit d of the number of bytes at
 * weight w: x^(-8dw - 33), the 33 for mul33(); in the first row also x^-208, for the 22 bytes from the identification
 * to the BTH and for the x^32 of the CRC.  What then remains of a difference that an identification made is the
 * identification itself: two bytes, its first of the higher degrees. */
static const uint32_t back_1[64] = {
    0x386909AEu, 0xB1CB6AA2u, 0xC083863Bu, 0x39EA967Fu, 0xE925BDE3u, 0x4618D606u, 0x71687FAFu, 0xD9FA2644u,
    0x2C7C98E9u, 0xA50662BEu, 0x0CD7D527u, 0x61CE1FCBu, 0xA5E018DEu, 0xEAADB527u, 0x78F21E84u, 0xF5D72648u,
    0xD8E21F57u, 0xEF348DA8u, 0xE19D8243u, 0x931A5B4Bu, 0x13A4D68Du, 0xC84EDB18u, 0x998A9832u, 0x83C98803u,
    0x1A0DC417u, 0xD7106A14u, 0x1DB8FAE1u, 0x0FEA8510u, 0xEA7C2449u, 0xA9637084u, 0xDFDED7ECu, 0xBE382FACu,
    0x333FBC72u, 0x3CA1976Du, 0xA273BC24u, 0x14CD5623u, 0xCC0A6C1Cu, 0x061B89B4u, 0xAD3CAB45u, 0x5B23036Au,
    0xFDAD77BFu, 0xCF8EC51Au, 0x34508336u, 0x3E5ACA69u, 0x34BDB2E7u, 0xD36B1B69u, 0xBDEF9267u, 0x52607BF0u,
    0x0899C6B3u, 0xF4FB9E4Du, 0x2F2B1C16u, 0x4460913Cu, 0x64BC4F6Cu, 0xD7E7AC19u, 0xEA7EF7E1u, 0xABB0D884u,
    0x61E5DD2Fu, 0x8E22FCDEu, 0x9C13279Du, 0x1A2134C4u, 0xFBE0B914u, 0x34F5715Fu, 0x9BA8A369u, 0xCC61D9C0u,
};
static const uint32_t back_64[64] = {
    0xB66B1FA6u, 0xAD3CAB45u, 0x3AFEECF8u, 0x4AE6E3CAu, 0x530A6F21u, 0xFCC796A3u, 0x2E3001D9u, 0xD1A56456u,
    0xF2779756u, 0x8E2EAC7Fu, 0xAFB11F48u, 0x9716017Fu, 0x74B86D77u, 0xC6C404C2u, 0x35AFDEB7u, 0xF68C5BFAu,
    0x0D97EC33u, 0x2249A7BFu, 0x62B0515Cu, 0x565B076Fu, 0x57F0EA01u, 0x3C5EA36Bu, 0x0BABA083u, 0xC3D3FDCEu,
    0x9955879Au, 0x5AF36E88u, 0xDD291A58u, 0xCC75F32Au, 0x18F7C418u, 0xB0202246u, 0x5017DFA6u, 0xFD9FC564u,
    0x6EFA6C70u, 0x2E39B327u, 0xA91257E8u, 0xDEBBFC8Cu, 0x0AB45779u, 0xABF8BF42u, 0x287C40B8u, 0xF8863E28u,
    0xA2820B52u, 0x7771CE34u, 0x9C08E307u, 0x4054FEE5u, 0xF7CFB3C7u, 0x50BB135Bu, 0x89249E66u, 0xD4DB65F5u,
    0x59BB8F44u, 0x6490A6E8u, 0xCCE57AADu, 0x15A0E28Fu, 0xDAF0AEAEu, 0x7692CEA7u, 0xDA3E64CDu, 0xD41FB877u,
    0x3EE1306Cu, 0x44191223u, 0xF0815A0Au, 0x9F4DC238u, 0x1D30FCECu, 0x07263B3Au, 0x2A99460Au, 0x4600352Au,
};
static const uint32_t back_4096[16] = {
    0xB66B1FA6u, 0x1604E5C0u, 0x2F7CE1DEu, 0xDC84675Fu, 0x4340A6A0u, 0x853B61DDu, 0x9C402EDBu, 0x105A4DE7u,
    0xF996A83Fu, 0xE351017Au, 0xCD16FBD8u, 0xEA079950u, 0x21064D89u, 0x338D91FEu, 0x3A668880u, 0xC50C874Du,
};

int icrc_recover_id(uint32_t diff, uint32_t n) {
    const struct crc_impl *impl = current();
    if (n > 0xFFFF) /* no UDP datagram */
        return -1;
    uint32_t r = impl->mul33(diff, back_1[n & 63]);
    if (n >= 64)
        r = impl->mul33(r, back_64[n >> 6 & 63]);
    if (n >= 4096)
        r = impl->mul33(r, back_4096[n >> 12]);
    r = __builtin_bswap32(r);
    return r <= 0xFFFF ? (int)r : -1;
}

uint32_t icrc_compute(const struct sockaddr_in6 *src, const struct sockaddr_in6 *dst, uint16_t id, const uint8_t *bth,
                      uint32_t n) {
    uint32_t state = icrc_bth(icrc_seed(src, dst, id, n + ICRC_BYTES), bth);
    return ~crc32_update(state, bth + 12, n - 12);
}
