/* SPDX-License-Identifier: Apache-2.0
 *
 * By the processor's instruction, which takes 8 bytes but gives its result three cycles later: so three streams at a time,
 * whose states are then made one.  A state behind which n zero bytes follow is linear in it: four look-ups (shift).
 */
#include "wire/crc32c.h"

#include "wire/crc.h"

#if defined(__x86_64__) && !defined(RNIC_PORTABLE)
#define CRC_INSTRUCTION __attribute__((target("sse4.2")))
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32) && !defined(RNIC_PORTABLE)
#define CRC_INSTRUCTION
#include <arm_acle.h>
#endif

struct crc_impl {
    const char *name;
    uint32_t (*update)(uint32_t state, const void *data, size_t n);
    uint32_t (*copy)(uint32_t state, void *dst, const void *src, size_t n);
};

/* ---- by tables -------------------------------------------------------------------------------------------------- */

/* slice[k][b]: state, from 0, after byte b and k zero bytes. */
static const uint32_t slice[8][256] = {
    ROW(0xF26B8303u, 0xE13B70F7u, 0xC79A971Fu, 0x8AD958CFu, 0x105EC76Fu, 0x20BD8EDEu, 0x417B1DBCu, 0x82F63B78u),
    ROW(0x13A29877u, 0x274530EEu, 0x4E8A61DCu, 0x9D14C3B8u, 0x3FC5F181u, 0x7F8BE302u, 0xFF17C604u, 0xFBC3FAF9u),
    ROW(0xA541927Eu, 0x4F6F520Du, 0x9EDEA41Au, 0x38513EC5u, 0x70A27D8Au, 0xE144FB14u, 0xC76580D9u, 0x8B277743u),
    ROW(0xDD45AAB8u, 0xBF672381u, 0x7B2231F3u, 0xF64463E6u, 0xE964B13Du, 0xD725148Bu, 0xABA65FE7u, 0x52A0C93Fu),
    ROW(0x38116FACu, 0x7022DF58u, 0xE045BEB0u, 0xC5670B91u, 0x8F2261D3u, 0x1BA8B557u, 0x37516AAEu, 0x6EA2D55Cu),
    ROW(0xEF306B19u, 0xDB8CA0C3u, 0xB2F53777u, 0x6006181Fu, 0xC00C303Eu, 0x85F4168Du, 0x0E045BEBu, 0x1C08B7D6u),
    ROW(0x68032CC8u, 0xD0065990u, 0xA5E0C5D1u, 0x4E2DFD53u, 0x9C5BFAA6u, 0x3D5B83BDu, 0x7AB7077Au, 0xF56E0EF4u),
    ROW(0x493C7D27u, 0x9278FA4Eu, 0x211D826Du, 0x423B04DAu, 0x847609B4u, 0x0D006599u, 0x1A00CB32u, 0x34019664u),
};

INLINE uint32_t table1(uint32_t state, uint8_t byte) { return state >> 8 ^ slice[0][(state ^ byte) & 0xFF]; }

INLINE uint32_t table8(uint32_t state, uint64_t w) {
    w ^= state;
    return slice[7][w & 0xFF] ^ slice[6][w >> 8 & 0xFF] ^ slice[5][w >> 16 & 0xFF] ^ slice[4][w >> 24 & 0xFF] ^
           slice[3][w >> 32 & 0xFF] ^ slice[2][w >> 40 & 0xFF] ^ slice[1][w >> 48 & 0xFF] ^ slice[0][w >> 56];
}

INLINE uint32_t table_run(uint32_t state, uint8_t *dst, const uint8_t *src, size_t n, bool copy) {
    size_t at = 0;
    for (; n - at >= 8; at += 8)
        state = table8(state, fetch64(dst, src, at, copy));
    for (; at < n; at++)
        state = table1(state, fetch8(dst, src, at, copy));
    return state;
}

static uint32_t table_update(uint32_t state, const void *data, size_t n) {
    return table_run(state, NULL, data, n, false);
}

static uint32_t table_copy(uint32_t state, void *dst, const void *src, size_t n) {
    return table_run(state, dst, src, n, true);
}

static const struct crc_impl table_impl = {"table", table_update, table_copy};

/* ---- by the instruction ----------------------------------------------------------------------------------------- */

#ifdef CRC_INSTRUCTION

#ifdef __x86_64__
CRC_INSTRUCTION INLINE uint32_t step1(uint32_t state, uint8_t v) { return _mm_crc32_u8(state, v); }
CRC_INSTRUCTION INLINE uint32_t step4(uint32_t state, uint32_t v) { return _mm_crc32_u32(state, v); }
CRC_INSTRUCTION INLINE uint32_t step8(uint32_t state, uint64_t v) { return (uint32_t)_mm_crc32_u64(state, v); }
static bool has_instruction(void) { return __builtin_cpu_supports("sse4.2"); }
#else
INLINE uint32_t step1(uint32_t state, uint8_t v) { return __crc32cb(state, v); }
INLINE uint32_t step4(uint32_t state, uint32_t v) { return __crc32cw(state, v); }
INLINE uint32_t step8(uint32_t state, uint64_t v) { return __crc32cd(state, v); }
static bool has_instruction(void) { return true; } /* what the compiler was allowed */
#endif

/* Bytes of each stream: few look-ups for long messages, something to gain for shorter ones. */
#define LONG 1024
#define SHORT 128

/* shift[k][b]: byte k of a state is b; the state after so many zero bytes. */
static const uint32_t shift_long[4][256] = {
    ROW(0xFE314258u, 0xF98EF241u, 0xF6F19273u, 0xE80F5217u, 0xD5F2D2DFu, 0xAE09D34Fu, 0x59FFD06Fu, 0xB3FFA0DEu),
    ROW(0x6213374Du, 0xC4266E9Au, 0x8DA0ABC5u, 0x1EAD217Bu, 0x3D5A42F6u, 0x7AB485ECu, 0xF5690BD8u, 0xEF3E6141u),
    ROW(0xDB90B473u, 0xB2CD1E17u, 0x60764ADFu, 0xC0EC95BEu, 0x84355D8Du, 0x0D86CDEBu, 0x1B0D9BD6u, 0x361B37ACu),
    ROW(0x6C366F58u, 0xD86CDEB0u, 0xB535CB91u, 0x6F87E1D3u, 0xDF0FC3A6u, 0xBBF3F1BDu, 0x720B958Bu, 0xE4172B16u),
};
static const uint32_t shift_short[4][256] = {
    ROW(0x6992CEA2u, 0xD3259D44u, 0xA3A74C79u, 0x42A2EE03u, 0x8545DC06u, 0x0F67CEFDu, 0x1ECF9DFAu, 0x3D9F3BF4u),
    ROW(0x7B3E77E8u, 0xF67CEFD0u, 0xE915A951u, 0xD7C72453u, 0xAA623E57u, 0x51280A5Fu, 0xA25014BEu, 0x414C5F8Du),
    ROW(0x8298BF1Au, 0x00DD08C5u, 0x01BA118Au, 0x03742314u, 0x06E84628u, 0x0DD08C50u, 0x1BA118A0u, 0x37423140u),
    ROW(0x6E846280u, 0xDD08C500u, 0xBFFDFCF1u, 0x7A178F13u, 0xF42F1E26u, 0xEDB24ABDu, 0xDE88E38Bu, 0xB8FDB1E7u),
};

INLINE uint32_t shift(const uint32_t by[4][256], uint32_t state) {
    return by[0][state & 0xFF] ^ by[1][state >> 8 & 0xFF] ^ by[2][state >> 16 & 0xFF] ^ by[3][state >> 24];
}

/* Three streams of `each` bytes. */
CRC_INSTRUCTION INLINE uint32_t three(uint32_t state, uint8_t *dst, const uint8_t *src, size_t at, size_t each,
                                      const uint32_t by[4][256], bool copy) {
    uint32_t second = 0, third = 0;
    for (size_t end = at + each; at < end; at += 8) {
        state = step8(state, fetch64(dst, src, at, copy));
        second = step8(second, fetch64(dst, src, at + each, copy));
        third = step8(third, fetch64(dst, src, at + 2 * each, copy));
    }
    return shift(by, shift(by, state) ^ second) ^ third;
}

CRC_INSTRUCTION INLINE uint32_t run(uint32_t state, uint8_t *dst, const uint8_t *src, size_t n, bool copy) {
    size_t at = 0;
    for (; n - at >= 3 * LONG; at += 3 * LONG)
        state = three(state, dst, src, at, LONG, shift_long, copy);
    for (; n - at >= 3 * SHORT; at += 3 * SHORT)
        state = three(state, dst, src, at, SHORT, shift_short, copy);
    for (; n - at >= 8; at += 8)
        state = step8(state, fetch64(dst, src, at, copy));
    if (n - at >= 4) {
        state = step4(state, fetch32(dst, src, at, copy));
        at += 4;
    }
    for (; at < n; at++)
        state = step1(state, fetch8(dst, src, at, copy));
    return state;
}

CRC_INSTRUCTION static uint32_t instruction_update(uint32_t state, const void *data, size_t n) {
    return run(state, NULL, data, n, false);
}

CRC_INSTRUCTION static uint32_t instruction_copy(uint32_t state, void *dst, const void *src, size_t n) {
    return run(state, dst, src, n, true);
}

static const struct crc_impl instruction_impl = {"instruction", instruction_update, instruction_copy};

#endif

/* ---- by carry-less multiplication, 512 bits at a time ------------------------------------------------------------ */

#if defined(__x86_64__) && !defined(RNIC_PORTABLE)
#define FOLD_BY                                                                                                        \
    K(0x75C7FCA7, 0x378D7103), K(0xDC6B096D, 0x8857E0FD), K(0x5055FAAD, 0x01EB0BF7), K(0x06D53151, 0xCB65CF95), \
    K(0xBED4D93F, 0x82032E02), K(0x1C498BD0, 0xF4E995FD), K(0x09232F23, 0x349F9C8E), K(0x3DC0A1C4, 0xCFB65894), \
    K(0xF331DFAB, 0xBB8BD1CB), K(0xF1B1C6E4, 0x87466F21), K(0xA769F8FB, 0xFBF3EC2A), K(0x35F98786, 0x258D3FC9), \
    K(0xAB37B192, 0xD1CA2377), K(0x8F2B7ED1, 0x25605E40), K(0x5022883E, 0x6A921B66), K(0xE9A5D8BE, 0x1426A815), \
    K(0xCE937661, 0x048DC5CC), K(0x0D62D3A3, 0xAD327462), K(0xE6040D5A, 0x57060022), K(0x7CCBBBF2, 0x31C94608), \
    K(0xACECF924, 0xC54608CD), K(0x3207B4FE, 0x3FC16B86), K(0xCF23AB10, 0xCF519517), K(0x6577B245, 0x7417153F), \
    K(0x169472B6, 0x963E61CD), K(0xC92F998D, 0x3365346A), K(0x1C42DA43, 0x6D883E38), K(0x1C19243B, 0x75BBA45B), \
    K(0xA46EF4AA, 0x6051243F), K(0x33CCBBBC, 0xA2158B34), K(0x3743F7BD, 0x3171D430), K(0xDD45AAB8, 0x05EC76F1)
#define FOLD_X63 0xDD45AAB8ull
#define FOLD_X95 0x493C7D27ull
#define FOLD_P 0x105EC76F1
#define FOLD_QUOTIENT 0x4869EC38DEA713F1u
#include "wire/fold.h"

/* Twice as fast as the instruction for a long message; up to here it is the slower one (seen: 3 against 12 ns at 28 bytes). */
#define WIDE_FROM 256

static uint32_t vpclmul512_update(uint32_t state, const void *data, size_t n) {
    return n < WIDE_FROM ? instruction_update(state, data, n) : long_update(state, data, n);
}

static uint32_t vpclmul512_copy(uint32_t state, void *dst, const void *src, size_t n) {
    return n < WIDE_FROM ? instruction_copy(state, dst, src, n) : long_copy(state, dst, src, n);
}

static const struct crc_impl vpclmul512_impl = {"vpclmul512", vpclmul512_update, vpclmul512_copy};
#endif

/* ---- the choice ------------------------------------------------------------------------------------------------- */

/* The implementation of that name, or the fastest (NULL); NULL when this CPU has none such. */
static const struct crc_impl *find(const char *name) {
#ifdef FOLD_BY
    if (have_vpclmul512() && (!name || !strcmp(name, vpclmul512_impl.name)))
        return &vpclmul512_impl;
#endif
#ifdef CRC_INSTRUCTION
    if (has_instruction() && (!name || !strcmp(name, instruction_impl.name)))
        return &instruction_impl;
#endif
    return !name || !strcmp(name, table_impl.name) ? &table_impl : NULL;
}

#include "wire/crc_choice.h"

const char *crc32c_name(void) { return current()->name; }

int crc32c_use(const char *name) { return use(name); }

uint32_t crc32c_update(uint32_t state, const void *data, size_t n) { return current()->update(state, data, n); }

uint32_t crc32c_copy(uint32_t state, void *dst, const void *src, size_t n) {
    return current()->copy(state, dst, src, n);
}
