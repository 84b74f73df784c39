/* SPDX-License-Identifier: Apache-2.0
 *
 * wire/opcode.c, wire/bth.h, base/seq24.h and base/bytes.h: prints "ok - name" per case, exits non-zero on a failure.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/seq24.h"
#include "wire/bth.h"
#include "wire/opcode.h"

#define CHECK(cond)                                                                                                   \
    do {                                                                                                              \
        if (!(cond)) {                                                                                                \
            printf("not ok - %s:%d: %s\n", __FILE__, __LINE__, #cond);                                                \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

static void bytes_have_a_stated_order(void) {
    uint8_t b[9] = {0xAA};
    put_be64(b + 1, 0x0102030405060708u); /* unaligned on purpose */
    CHECK(b[0] == 0xAA && b[1] == 1 && b[8] == 8);
    CHECK(get_be64(b + 1) == 0x0102030405060708u);
    CHECK(get_be32(b + 1) == 0x01020304u && get_be16(b + 3) == 0x0304u && get_be8(b + 5) == 5);
    CHECK(get_le32(b + 1) == 0x04030201u && get_le16(b + 1) == 0x0201u && get_le64(b + 1) == 0x0807060504030201u);
    put_le32(b + 1, 0x11223344u);
    CHECK(b[1] == 0x44 && b[4] == 0x11 && b[5] == 5);
}

static void psn_distance_is_signed_around_every_wrap(void) {
    const uint32_t centres[] = {0, 0x7FFFFF, 0x800000, 0xFFFFFF, 0x123456};
    for (size_t i = 0; i < sizeof centres / sizeof *centres; i++) {
        for (int32_t near = -3; near <= 3; near++) {
            uint32_t base = psn_add(centres[i], near);
            CHECK(base <= PSN_MASK);
            const int32_t steps[] = {0, 1, -1, 2, -2, 1000, -1000, 0x7FFFFF, -0x7FFFFF, -0x800000};
            for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
                uint32_t there = psn_add(base, steps[k]);
                CHECK(there <= PSN_MASK);
                CHECK(psn_diff(there, base) == steps[k]);
                CHECK(psn_add(there, -steps[k]) == base);
            }
            /* half the space ahead is half the space behind */
            CHECK(psn_diff(psn_add(base, 0x800000), base) == -0x800000);
            CHECK(psn_add(base, 0x1000000) == base);
        }
    }
    CHECK(psn_add(0xFFFFFF, 1) == 0 && psn_add(0, -1) == 0xFFFFFF);
    CHECK(psn_diff(0, 0xFFFFFF) == 1 && psn_diff(0xFFFFFF, 0) == -1);
    CHECK(psn_mask(0x1234567) == 0x234567);
    CHECK(psn_diff(0xFF000001u, 0x00000000u) == 1); /* upper bytes do not count */
}

static void bth_reads_and_writes_golden_bytes(void) {
    /* RC SEND only; SE, M, pad 3, tver 0; P_Key FFFF; BECN; DQPN 123456; A; PSN ABCDEF */
    const uint8_t golden[BTH_BYTES] = {0x04, 0xF0, 0xFF, 0xFF, 0x40, 0x12, 0x34, 0x56, 0x80, 0xAB, 0xCD, 0xEF};
    uint8_t b[BTH_BYTES];
    memset(b, 0x5A, sizeof b);
    bth_clear(b);
    bth_set_opcode(b, ROCE_RC_SEND_ONLY);
    bth_set_se(b, 1);
    bth_set_m(b, 1);
    bth_set_pad(b, 3);
    bth_set_pkey(b, 0xFFFF);
    bth_set_becn(b, 1);
    bth_set_dqpn(b, 0x123456);
    bth_set_ackreq(b, 1);
    bth_set_psn(b, 0xABCDEF);
    CHECK(memcmp(b, golden, sizeof b) == 0);
    CHECK(bth_opcode(b) == 0x04 && bth_se(b) == 1 && bth_m(b) == 1 && bth_pad(b) == 3 && bth_tver(b) == 0);
    CHECK(bth_pkey(b) == 0xFFFF && bth_fecn(b) == 0 && bth_becn(b) == 1 && bth_dqpn(b) == 0x123456);
    CHECK(bth_ackreq(b) == 1 && bth_psn(b) == 0xABCDEF);
}

/* A setter touches its own bits only, cuts what is too wide, and its getter gives back what was set. */
#define FIELD_IS_ALONE(header, field, size, width)                                                                    \
    do {                                                                                                              \
        uint64_t all = UINT64_MAX >> (64 - (width));                                                                  \
        uint8_t zero[size] = {0}, ones[size];                                                                         \
        memset(ones, 0xFF, sizeof ones);                                                                              \
        header##_set_##field(zero, (__typeof__(header##_##field(zero)))UINT64_MAX);                                   \
        header##_set_##field(ones, 0);                                                                                \
        CHECK(header##_##field(zero) == all && header##_##field(ones) == 0);                                          \
        int bits = 0;                                                                                                 \
        for (int at = 0; at < (size); at++) {                                                                         \
            CHECK((zero[at] ^ ones[at]) == 0xFF);                                                                     \
            bits += __builtin_popcount(zero[at]);                                                                     \
        }                                                                                                             \
        CHECK(bits == (width));                                                                                       \
    } while (0)

static void every_field_touches_its_own_bits_only(void) {
    FIELD_IS_ALONE(bth, opcode, BTH_BYTES, 8);
    FIELD_IS_ALONE(bth, se, BTH_BYTES, 1);
    FIELD_IS_ALONE(bth, m, BTH_BYTES, 1);
    FIELD_IS_ALONE(bth, pad, BTH_BYTES, 2);
    FIELD_IS_ALONE(bth, tver, BTH_BYTES, 4);
    FIELD_IS_ALONE(bth, pkey, BTH_BYTES, 16);
    FIELD_IS_ALONE(bth, fecn, BTH_BYTES, 1);
    FIELD_IS_ALONE(bth, becn, BTH_BYTES, 1);
    FIELD_IS_ALONE(bth, dqpn, BTH_BYTES, 24);
    FIELD_IS_ALONE(bth, ackreq, BTH_BYTES, 1);
    FIELD_IS_ALONE(bth, psn, BTH_BYTES, 24);
    FIELD_IS_ALONE(reth, va, RETH_BYTES, 64);
    FIELD_IS_ALONE(reth, rkey, RETH_BYTES, 32);
    FIELD_IS_ALONE(reth, len, RETH_BYTES, 32);
    FIELD_IS_ALONE(aeth, syndrome, AETH_BYTES, 8);
    FIELD_IS_ALONE(aeth, msn, AETH_BYTES, 24);
    FIELD_IS_ALONE(atmeth, va, ATMETH_BYTES, 64);
    FIELD_IS_ALONE(atmeth, rkey, ATMETH_BYTES, 32);
    FIELD_IS_ALONE(atmeth, swap_add, ATMETH_BYTES, 64);
    FIELD_IS_ALONE(atmeth, compare, ATMETH_BYTES, 64);
    FIELD_IS_ALONE(atmack, orig, ATMACK_BYTES, 64);
    FIELD_IS_ALONE(immdt, data, IMMDT_BYTES, 32);
    FIELD_IS_ALONE(ieth, rkey, IETH_BYTES, 32);
    FIELD_IS_ALONE(deth, qkey, DETH_BYTES, 32);
    FIELD_IS_ALONE(deth, sqpn, DETH_BYTES, 24);
    FIELD_IS_ALONE(xrceth, srqn, XRCETH_BYTES, 24);
}

static void extended_headers_lie_where_the_specification_puts_them(void) {
    uint8_t b[ATMETH_BYTES];
    for (unsigned i = 0; i < sizeof b; i++)
        b[i] = (uint8_t)(i + 1);
    CHECK(reth_va(b) == 0x0102030405060708u && reth_rkey(b) == 0x090A0B0Cu && reth_len(b) == 0x0D0E0F10u);
    CHECK(aeth_syndrome(b) == 0x01 && aeth_msn(b) == 0x020304);
    CHECK(atmeth_va(b) == 0x0102030405060708u && atmeth_rkey(b) == 0x090A0B0Cu);
    CHECK(atmeth_swap_add(b) == 0x0D0E0F1011121314u && atmeth_compare(b) == 0x15161718191A1B1Cu);
    CHECK(atmack_orig(b) == 0x0102030405060708u);
    CHECK(immdt_data(b) == 0x01020304u && ieth_rkey(b) == 0x01020304u);
    CHECK(deth_qkey(b) == 0x01020304u && deth_sqpn(b) == 0x060708);
    CHECK(xrceth_srqn(b) == 0x020304);
}

static int popcount(uint32_t bits) { return __builtin_popcount(bits); }

/* The offsets of a row agree with its mask: headers follow one another in IBA order and end where the payload starts. */
static void every_row_agrees_with_itself(void) {
    int rows = 0;
    for (unsigned opcode = 0; opcode < 256; opcode++) {
        const struct roce_opcode *row = roce_opcode((uint8_t)opcode);
        if (row == NULL)
            continue;
        rows++;
        unsigned at = BTH_BYTES;
        const struct {
            uint32_t bit;
            uint8_t offset, bytes;
        } headers[] = {
            {OPC_DETH, row->deth, DETH_BYTES},
            {OPC_XRC, row->xrceth, XRCETH_BYTES},
            {OPC_FETH, row->feth, FETH_BYTES},
            {OPC_RETH, row->reth, RETH_BYTES},
            {OPC_ATMETH, row->atomic_eth, ATMETH_BYTES},
            {OPC_AETH, row->aeth, AETH_BYTES},
            {OPC_ATMACK, row->atomic_ack, ATMACK_BYTES},
            {OPC_IMM, row->imm, IMMDT_BYTES},
            {OPC_INV, row->ieth, IETH_BYTES},
        };
        for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
            CHECK(((row->mask & headers[i].bit) != 0) == (headers[i].offset != 0));
            if (headers[i].offset != 0) {
                CHECK(headers[i].offset == at);
                at += headers[i].bytes;
            }
        }
        if (opcode == ROCE_CNP)
            at += CNP_RESERVED_BYTES;
        CHECK(row->header == at && at <= ROCE_MAX_HEADER);
        CHECK(popcount(row->mask & (OPC_RC | OPC_UC | OPC_UD | OPC_CNP | OPC_XRC | OPC_XRC_BACK)) == 1);
        int plain = opcode != ROCE_CNP;
        CHECK(popcount(row->mask & (OPC_REQUEST | OPC_RESPONSE)) == plain);
        CHECK(popcount(row->mask & (OPC_SEND | OPC_WRITE | OPC_WAITS | OPC_READ_RESP | OPC_ACK)) == plain);
        CHECK(((row->mask & OPC_MIDDLE) != 0) == ((row->mask & (OPC_FIRST | OPC_LAST)) == 0));
        if (row->mask & OPC_USES_RQ)
            CHECK((row->mask & OPC_LAST) != 0);
        /* the service is the opcode's upper three bits (IBA 9.2.1) */
        CHECK(((row->mask & OPC_RC) != 0) == (opcode >> 5 == 0));
        CHECK(((row->mask & OPC_UC) != 0) == (opcode >> 5 == 1));
        CHECK(((row->mask & OPC_UD) != 0) == (opcode >> 5 == 3));
        CHECK(((row->mask & (OPC_XRC | OPC_XRC_BACK)) != 0) == (opcode >> 5 == 5));
        if (row->mask & (OPC_XRC | OPC_XRC_BACK))
            CHECK(((row->mask & OPC_XRC) != 0) == ((row->mask & OPC_REQUEST) != 0));
    }
    CHECK(rows == 2 * 23 + 2 + 12 + 2 + 1);
}

static void reserved_opcodes_have_no_row(void) {
    const uint8_t none[] = {0x15, 0x18, 0x1B, 0x1E, 0x1F, 0x2C, 0x40, 0x54, 0x60, 0x63,
                            0x66, 0x80, 0x82, 0xB5, 0xB8, 0xBC, 0xBD, 0xC0, 0xFF};
    for (size_t i = 0; i < sizeof none; i++)
        CHECK(roce_opcode(none[i]) == NULL);
}

static void a_receive_is_used_by_sends_and_writes_with_immediate(void) {
    for (unsigned opcode = 0; opcode < 256; opcode++) {
        const struct roce_opcode *row = roce_opcode((uint8_t)opcode);
        if (row == NULL)
            continue;
        uint32_t m = row->mask;
        int uses = (m & OPC_LAST) && ((m & OPC_SEND) || ((m & OPC_WRITE) && (m & OPC_IMM)));
        CHECK(((m & OPC_USES_RQ) != 0) == uses);
    }
}

static void rows_have_their_opcodes_names(void) {
    CHECK(strcmp(roce_opcode(ROCE_RC_SEND_FIRST)->name, "RC_SEND_FIRST") == 0);
    CHECK(strcmp(roce_opcode(ROCE_RC_FETCH_ADD)->name, "RC_FETCH_ADD") == 0);
    CHECK(strcmp(roce_opcode(ROCE_UC_WRITE_ONLY_WITH_IMM)->name, "UC_WRITE_ONLY_WITH_IMM") == 0);
    CHECK(strcmp(roce_opcode(0x81)->name, "CNP") == 0);
}

#define RUN(test)                                                                                                     \
    do {                                                                                                              \
        test();                                                                                                       \
        printf("ok - %s\n", #test);                                                                                   \
    } while (0)

int main(void) {
    RUN(bytes_have_a_stated_order);
    RUN(psn_distance_is_signed_around_every_wrap);
    RUN(bth_reads_and_writes_golden_bytes);
    RUN(every_field_touches_its_own_bits_only);
    RUN(extended_headers_lie_where_the_specification_puts_them);
    RUN(every_row_agrees_with_itself);
    RUN(reserved_opcodes_have_no_row);
    RUN(a_receive_is_used_by_sends_and_writes_with_immediate);
    RUN(rows_have_their_opcodes_names);
    return 0;
}
