/* SPDX-License-Identifier: Apache-2.0
 *
 * link/udp/steerprog.c, and the guard of link/udp/sieve.c: the programs as the kernel gets them, run here on packets by the rules of classic BPF, each of whose
 * instructions is checked as the kernel would.
 */
#include "link/udp/steerprog.h"

#include <errno.h>
#include <linux/filter.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "link/udp/port.h"
#include "link/udp/sieve.h"
#include "link/udp/steering.h"
#include "wire/bth.h"
#include "wire/mad.h"

#define NOBODY 0xFFFF
#define BY_HASH UINT32_MAX

/* ---------------------------------------------------------------- a kernel that runs them */

static struct sock_filter code[8192];
static uint32_t length, attached, refuse; /* instructions; times; how many programs get -ENOMEM */
static int level_asked, option_asked;
static bool bound_to_device;

int setsockopt(int fd, int level, int option, const void *value, socklen_t n) {
    const struct sock_fprog *program = value;
    if (option != SO_ATTACH_REUSEPORT_CBPF && option != SO_ATTACH_FILTER)
        return (int)syscall(SYS_setsockopt, fd, level, option, value, n);
    CHECK(n == sizeof *program && program->len <= 4096 && program->len > 0); /* BPF_MAXINSNS */
    attached++;
    level_asked = level, option_asked = option;
    length = program->len;
    memcpy(code, program->filter, length * sizeof *code);
    if (attached > refuse)
        return 0;
    errno = ENOMEM;
    return -1;
}

int getsockopt(int fd, int level, int option, void *value, socklen_t *n) {
    if (option != SO_BINDTODEVICE)
        return (int)syscall(SYS_getsockopt, fd, level, option, value, n);
    *n = bound_to_device ? 5 : 0;
    return 0;
}

/* The packet as a program sees it. */
static uint8_t bytes[512];
static uint32_t nbytes, dice, ifindex;

static bool load(uint32_t at, uint32_t n, uint32_t *a) {
    if (at == (uint32_t)(SKF_AD_OFF + SKF_AD_RANDOM))
        *a = dice;
    else if (at == (uint32_t)(SKF_AD_OFF + SKF_AD_IFINDEX))
        *a = ifindex;
    else if (at + n > nbytes)
        return false;
    else
        for (*a = 0; n > 0; n--)
            *a = *a << 8 | bytes[at++];
    return true;
}

static uint32_t run(void) {
    uint32_t a = 0;
    for (uint32_t pc = 0;; pc++) {
        CHECK(pc < length);
        const struct sock_filter *f = &code[pc];
        bool good = true;
        switch (f->code) {
        case BPF_LD | BPF_B | BPF_ABS:
            good = load(f->k, 1, &a);
            break;
        case BPF_LD | BPF_H | BPF_ABS:
            good = load(f->k, 2, &a);
            break;
        case BPF_LD | BPF_W | BPF_ABS:
            good = load(f->k, 4, &a);
            break;
        case BPF_LD | BPF_W | BPF_LEN:
            a = nbytes;
            break;
        case BPF_ALU | BPF_AND | BPF_K:
            a &= f->k;
            break;
        case BPF_ALU | BPF_RSH | BPF_K:
            a >>= f->k;
            break;
        case BPF_ALU | BPF_MOD | BPF_K:
            CHECK(f->k > 0);
            a %= f->k;
            break;
        case BPF_JMP | BPF_JA:
            pc += f->k;
            break;
        case BPF_JMP | BPF_JEQ | BPF_K:
            pc += a == f->k ? f->jt : f->jf;
            break;
        case BPF_JMP | BPF_JGT | BPF_K:
            pc += a > f->k ? f->jt : f->jf;
            break;
        case BPF_RET | BPF_K:
            return f->k;
        case BPF_RET | BPF_A:
            return a;
        default:
            check_fail(__FILE__, __LINE__, "instruction %u: code 0x%x", pc, f->code);
        }
        if (!good) /* beyond the packet's end */
            return 0;
    }
}

/* The kernel takes no program whose jumps lead out of it. */
static void is_closed(void) {
    for (uint32_t pc = 0; pc < length; pc++) {
        if (BPF_CLASS(code[pc].code) == BPF_JMP)
            CHECK(pc + 1 + (BPF_OP(code[pc].code) == BPF_JA ? code[pc].k : code[pc].jt) < length &&
                  pc + 1 + code[pc].jf < length);
    }
    CHECK_EQ(BPF_CLASS(code[length - 1].code), BPF_RET);
}

/* ---------------------------------------------------------------- a group */

static struct {
    struct steering_map map;
    uint64_t behind; /* 0: nobody at an index that is none would be silent */
} of;
static uint16_t *const index_of = of.map.index_of, *const first_slot = of.map.first_slot;
static uint64_t *const silent = of.map.silent;

static void fresh(void) {
    memset(index_of, 0xFF, sizeof of.map.index_of);
    memset(first_slot, 0xFF, sizeof of.map.first_slot);
    memset(silent, 0, sizeof of.map.silent);
    attached = refuse = 0;
}

static void attach(void) {
    steerprog_attach(-1, index_of, first_slot, silent);
    CHECK(level_asked == SOL_SOCKET && option_asked == SO_ATTACH_REUSEPORT_CBPF);
    is_closed();
}

/* n members: the one at index i has the slots 3 i + 1 and, of every other one, 3 i + 2. */
static void group_of(uint32_t n) {
    fresh();
    for (uint32_t i = 0; i < n; i++) {
        first_slot[i] = (uint16_t)(3 * i + 1);
        index_of[3 * i + 1] = (uint16_t)i;
        if (i % 2)
            index_of[3 * i + 2] = (uint16_t)i;
    }
    attach();
}

static uint32_t to_qpn(uint32_t qpn) {
    memset(bytes, 0xEE, sizeof bytes);
    nbytes = 64;
    bytes[0] = 4;
    bytes[5] = (uint8_t)(qpn >> 16), bytes[6] = (uint8_t)(qpn >> 8), bytes[7] = (uint8_t)qpn;
    return run();
}

static void each_slots_packets_go_to_its_index(void) {
    for (uint32_t n = 0; n <= 340; n = n < 70 ? n + 1 : n + 45) {
        group_of(n);
        CHECK_EQ(attached, 1);
        for (uint32_t slot = 0; slot < SLOT_COUNT; slot++) {
            check_note("%u members, slot %u", n, slot);
            CHECK_EQ(to_qpn(slot << QPN_INDEX_BITS | 5), index_of[slot] == NOBODY ? BY_HASH : index_of[slot]);
        }
        CHECK_EQ(to_qpn((2 << QPN_INDEX_BITS) - 1), n > 0 ? 0 : BY_HASH);
    }
    check_note("%s", "");
}

static void a_full_group_fits(void) {
    fresh();
    for (uint32_t i = 0; i < SLOT_COUNT; i++)
        index_of[i] = first_slot[i] = (uint16_t)(SLOT_COUNT - 1 - i);
    attach();
    CHECK(length < 4096);
    for (uint32_t i = 0; i < SLOT_COUNT; i++)
        CHECK_EQ(to_qpn(i << QPN_INDEX_BITS), i ? SLOT_COUNT - 1 - i : SLOT_COUNT - 1);
}

static void a_probe_goes_to_the_index_that_it_names(void) {
    group_of(5);
    memset(bytes, 0, sizeof bytes);
    bytes[0] = PORT_PROBE_OPCODE;
    for (nbytes = 4; nbytes < 40; nbytes += 20) {
        bytes[2] = 0x03, bytes[3] = 0xFF;
        CHECK_EQ(run(), 1023);
        bytes[2] = 0, bytes[3] = 4;
        CHECK_EQ(run(), 4);
    }
    bytes[0]--;
    bytes[5] = 0, bytes[6] = 0x40; /* slot 1 */
    CHECK_EQ(run(), 0);
}

static void what_is_too_short_goes_to_the_first(void) {
    group_of(5);
    (void)to_qpn(4 << QPN_INDEX_BITS | 5);
    for (nbytes = 0; nbytes < 8; nbytes++)
        CHECK_EQ(run(), 0);
    CHECK_EQ(run(), 1);
}

static uint32_t to_cm(uint16_t attribute, uint32_t local, uint32_t remote) {
    uint8_t *mad = bytes + BTH_BYTES + DETH_BYTES;
    memset(bytes, 0, sizeof bytes);
    nbytes = BTH_BYTES + DETH_BYTES + MAD_BYTES;
    bytes[7] = QPN_GSI;
    mad[MAD_ATTRIBUTE] = (uint8_t)(attribute >> 8), mad[MAD_ATTRIBUTE + 1] = (uint8_t)attribute;
    for (int i = 0; i < 4; i++) {
        mad[MAD_LOCAL_ID + i] = (uint8_t)(local >> (24 - 8 * i));
        mad[MAD_REMOTE_ID + i] = (uint8_t)(remote >> (24 - 8 * i));
    }
    return run();
}

static void an_answer_of_the_cm_goes_where_its_id_is_of(void) {
    group_of(5);
    uint32_t of_2 = 7u << (32 - SLOT_BITS) | 99, of_4 = 13u << (32 - SLOT_BITS) | 1;
    CHECK_EQ(to_cm(0x11, of_2, of_4), 4); /* a REJ and its like: to whom it answers */
    CHECK_EQ(to_cm(0x13, of_4, of_2), 2);
    CHECK_EQ(to_cm(CM_SIDR_REP, of_2, of_4), 2); /* which has but one */
    CHECK_EQ(to_cm(0x13, 0, 0), BY_HASH);
}

static void requests_of_the_cm_are_spread_over_those_that_run(void) {
    for (uint32_t n = 1; n < 24; n++) {
        group_of(n);
        silent[0] = n > 3 ? 1u << 2 | 1u << (n - 1) : 0;
        first_slot[n > 5 ? 4 : 40] = NOBODY; /* it has never answered */
        attach();
        uint32_t live[24], count = 0;
        for (uint32_t i = 0; i < n && count < STEERPROG_SPREAD; i++) {
            if (!(silent[0] >> i & 1) && first_slot[i] != NOBODY)
                live[count++] = i;
        }
        for (dice = 0; dice < 3 * count; dice++) {
            check_note("%u members, dice %u", n, dice);
            CHECK_EQ(to_cm(CM_REQ, 0, 0), live[dice % count]);
            CHECK_EQ(to_cm(CM_SIDR_REQ, 7u << (32 - SLOT_BITS), 0), live[dice % count]);
        }
        CHECK_EQ(to_qpn(1 << QPN_INDEX_BITS), 0);
    }
    check_note("%s", "");
}

static void with_nobody_known_requests_go_by_hash(void) {
    fresh();
    attach();
    CHECK_EQ(to_cm(CM_REQ, 0, 0), BY_HASH);
    CHECK_EQ(to_qpn(5 << QPN_INDEX_BITS), BY_HASH);
    bytes[0] = PORT_PROBE_OPCODE;
    bytes[2] = 0, bytes[3] = 9;
    CHECK_EQ(run(), 9);
    first_slot[700] = 5; /* far behind */
    attach();
    CHECK_EQ(to_cm(CM_REQ, 0, 0), 700);
    silent[700 / 64] = 1ull << 700 % 64;
    attach();
    CHECK_EQ(to_cm(CM_REQ, 0, 0), BY_HASH);
}

static void what_finds_no_memory_has_fewer_rows(void) {
    fresh();
    for (uint32_t i = 0; i < SLOT_COUNT; i++)
        index_of[i] = (uint16_t)i;
    refuse = 2;
    attach();
    CHECK_EQ(attached, 3);
    CHECK_EQ(to_qpn(255 << QPN_INDEX_BITS), 255);
    CHECK_EQ(to_qpn(256 << QPN_INDEX_BITS), BY_HASH);
    fresh();
    refuse = 100;
    for (uint32_t i = 0; i < SLOT_COUNT; i++)
        index_of[i] = (uint16_t)i;
    attach();
    CHECK_EQ(attached, 6); /* of 1024 rows to 32 */
}

static void only_this_host_speaks_to_the_steering(void) {
    attached = refuse = 0;
    static const struct sieve nobody;
    bound_to_device = false;
    sieve_attach(&nobody, -1, false);
    CHECK(attached == 1 && level_asked == SOL_SOCKET && option_asked == SO_ATTACH_FILTER);
    is_closed();
    for (int opcode = 0; opcode < 256; opcode++) {
        memset(bytes, 0xFF, sizeof bytes);
        bytes[8] = (uint8_t)opcode; /* behind the UDP header */
        nbytes = 9;
        ifindex = 1;
        CHECK_EQ(run(), UINT32_MAX);
        ifindex = 2;
        CHECK_EQ(run(), opcode == PORT_PROBE_OPCODE ? 0 : UINT32_MAX);
    }
    nbytes = 8;
    CHECK_EQ(run(), UINT32_MAX);
    bound_to_device = true;
    sieve_attach(&nobody, -1, false);
    CHECK_EQ(attached, 1);
}

int main(void) {
    RUN(each_slots_packets_go_to_its_index);
    RUN(a_full_group_fits);
    RUN(a_probe_goes_to_the_index_that_it_names);
    RUN(what_is_too_short_goes_to_the_first);
    RUN(an_answer_of_the_cm_goes_where_its_id_is_of);
    RUN(requests_of_the_cm_are_spread_over_those_that_run);
    RUN(with_nobody_known_requests_go_by_hash);
    RUN(what_finds_no_memory_has_fewer_rows);
    RUN(only_this_host_speaks_to_the_steering);
    return check_done();
}
