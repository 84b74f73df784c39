/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <endian.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wire/icrc.h"

#define PAGE 4096u
#define LONGEST 1500

static int failures;
static const char *test_name;

static void check(bool ok, const char *what, unsigned long long a, unsigned long long b) {
    if (ok)
        return;
    if (failures++ < 20)
        printf("not ok - %s (%s): %s: 0x%llx, 0x%llx\n", test_name, crc32_name(), what, a, b);
}

/* ---- references: as slow and as plain as possible --------------------------------------------------------------- */

static uint32_t divide(uint32_t state, const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        state ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            state = state >> 1 ^ (state & 1 ? 0xEDB88320u : 0);
    }
    return state;
}

static uint32_t rng_state = 0x2545F491;

static uint32_t rng(void) {
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 17;
    rng_state ^= rng_state << 5;
    return rng_state;
}

static void fill(uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(rng() >> 11);
}

static struct sockaddr_in6 endpoint(bool ipv4) {
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)rng())};
    fill(a.sin6_addr.s6_addr, 16);
    if (ipv4) {
        memset(a.sin6_addr.s6_addr, 0, 10);
        memset(a.sin6_addr.s6_addr + 10, 0xFF, 2);
    }
    return a;
}

static uint8_t *put16(uint8_t *p, uint32_t v) {
    *p++ = (uint8_t)(v >> 8);
    *p++ = (uint8_t)v;
    return p;
}

static uint8_t *put(uint8_t *p, const void *bytes, size_t n) {
    memcpy(p, bytes, n);
    return p + n;
}

static uint8_t *ip_header(uint8_t *p, const struct sockaddr_in6 *src, const struct sockaddr_in6 *dst, uint16_t id,
                          uint32_t n, bool ipv4) {
    if (!ipv4) {
        p = put(p, "\x6F\xFF\xFF\xFF", 4);
        p = put16(p, 8 + n);
        p = put(p, "\x11\xFF", 2);
        p = put(p, &src->sin6_addr, 16);
        return put(p, &dst->sin6_addr, 16);
    }
    p = put(p, "\x45\xFF", 2);
    p = put16(p, 28 + n);
    p = put16(p, id);
    p = put(p, "\x40\x00\xFF\x11\xFF\xFF", 6);
    p = put(p, src->sin6_addr.s6_addr + 12, 4);
    return put(p, dst->sin6_addr.s6_addr + 12, 4);
}

static uint32_t divide_seed(const struct sockaddr_in6 *src, const struct sockaddr_in6 *dst, uint16_t id, uint32_t n,
                            bool ipv4) {
    uint8_t header[64], *p = put(header, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 8);
    p = ip_header(p, src, dst, id, n, ipv4);
    p = put(p, &src->sin6_port, 2);
    p = put(p, &dst->sin6_port, 2);
    p = put16(p, 8 + n);
    p = put(p, "\xFF\xFF", 2);
    return divide(CRC_INIT, header, (size_t)(p - header));
}

/* n bytes of memory that end (or, at_start, begin) at a page that cannot be touched.  Never freed. */
static uint8_t *guarded(size_t n, bool at_start) {
    size_t room = (n + PAGE - 1) / PAGE * PAGE;
    uint8_t *p = mmap(NULL, room + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p, PAGE, PROT_NONE) || mprotect(p + PAGE + room, PAGE, PROT_NONE)) {
        perror("mmap");
        exit(2);
    }
    return at_start ? p + PAGE : p + PAGE + room - n;
}

/* ---- the CRC ----------------------------------------------------------------------------------------------------- */

static void test_check_value(void) {
    uint32_t crc = ~crc32_update(CRC_INIT, "123456789", 9);
    check(crc == 0xCBF43926, "CRC of 123456789", crc, 0xCBF43926);
    check(crc32_update(7, NULL, 0) == 7, "no bytes", 0, 0);
}

static void test_equals_division(void) {
    uint8_t data[LONGEST + 64], copy[LONGEST + 64];
    for (size_t n = 0; n <= LONGEST; n++) {
        size_t from = rng() % 64, to = 1 + rng() % 62;
        uint32_t state = n % 3 ? rng() : CRC_INIT;
        fill(data, sizeof data);
        memset(copy, 0xA5, sizeof copy);
        uint32_t want = divide(state, data + from, n);
        uint32_t got = crc32_update(state, data + from, n);
        check(got == want, "update", n, got ^ want);
        got = crc32_copy(state, copy + to, data + from, n);
        check(got == want, "copy", n, got ^ want);
        check(!memcmp(copy + to, data + from, n), "copied bytes", n, from);
        check(copy[to - 1] == 0xA5 && copy[to + n] == 0xA5, "bytes around the copy", n, to);
    }
}

static void test_long_messages(void) {
    size_t most = 70000;
    uint8_t *data = malloc(most), *copy = malloc(most);
    if (!data || !copy)
        exit(2);
    fill(data, most);
    for (int i = 0; i < 40; i++) {
        size_t from = rng() % 64, n = i == 0 ? 65536 : rng() % (most - 64);
        uint32_t want = divide(CRC_INIT, data + from, n);
        check(crc32_update(CRC_INIT, data + from, n) == want, "update", n, want);
        check(crc32_copy(CRC_INIT, copy, data + from, n) == want, "copy", n, want);
        check(!memcmp(copy, data + from, n), "copied bytes", n, from);
    }
    free(data);
    free(copy);
}

static void test_touches_nothing_else(void) {
    uint8_t *last = guarded(LONGEST, false) + LONGEST, *first = guarded(LONGEST, true);
    uint8_t *copy_last = guarded(LONGEST, false) + LONGEST, *copy_first = guarded(LONGEST, true);
    fill(last - LONGEST, LONGEST);
    for (size_t n = 0; n <= LONGEST; n++) {
        memcpy(first, last - n, n);
        uint32_t want = divide(CRC_INIT, first, n);
        check(crc32_update(CRC_INIT, first, n) == want, "before a page's start", n, want);
        check(crc32_update(CRC_INIT, last - n, n) == want, "after a page's end", n, want);
        check(crc32_copy(CRC_INIT, copy_last - n, first, n) == want, "copy to a page's end", n, want);
        check(crc32_copy(CRC_INIT, copy_first, last - n, n) == want, "copy to a page's start", n, want);
    }
}

static void scribble(volatile uint8_t *p, size_t n) {
    for (uint32_t round = 0;; round++) /* until killed */
        for (size_t i = round % 7; i < n; i += 7)
            p[i] = (uint8_t)(p[i] + round + 1);
}

static void test_copy_of_changing_memory(void) {
    uint8_t copy[LONGEST];
    uint8_t *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = shared == MAP_FAILED ? -1 : fork();
    if (child < 0) {
        perror("fork");
        exit(2);
    }
    if (child == 0)
        scribble(shared, PAGE);
    for (int i = 0; i < 30000; i++) {
        size_t n = i % 2 ? rng() % 64 : rng() % LONGEST;
        uint32_t got = crc32_copy(CRC_INIT, copy, shared + rng() % 64, n);
        uint32_t want = crc32_update(CRC_INIT, copy, n);
        check(got == want, "CRC of what was stored", n, got ^ want);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    munmap(shared, PAGE);
}

/* ---- the ICRC ---------------------------------------------------------------------------------------------------- */

static void test_seed_and_linearity(void) {
    for (int i = 0; i < 2000; i++) {
        bool ipv4 = i % 2;
        struct sockaddr_in6 src = endpoint(ipv4), dst = endpoint(ipv4);
        uint16_t id = (uint16_t)rng();
        uint32_t n = 16 + rng() % 5000, want = divide_seed(&src, &dst, id, n, ipv4);
        uint32_t got = icrc_seed(&src, &dst, id, n);
        check(got == want, ipv4 ? "IPv4 seed" : "IPv6 seed", got, want);
        uint32_t delta = got ^ icrc_seed(&src, &dst, 0, n);
        check(delta == (ipv4 ? icrc_id_delta(id) : 0), "what the identification changes", delta, icrc_id_delta(id));
    }
}

static void test_bth_byte_4_does_not_enter(void) {
    for (int i = 0; i < 200; i++) {
        uint8_t bth[12];
        fill(bth, sizeof bth);
        uint32_t state = rng(), got = icrc_bth(state, bth);
        bth[4] = 0xFF;
        check(got == divide(state, bth, sizeof bth), "BTH", got, divide(state, bth, sizeof bth));
    }
}

/* What the identification makes of the ICRC when n bytes follow the pseudo header. */
static uint32_t difference(uint16_t id, uint32_t n) {
    static const uint8_t zeros[70000];
    return crc32_update(icrc_id_delta(id), zeros, n);
}

static void test_every_id_is_recovered(void) {
    static const uint32_t lengths[] = {12, 16, 28, 60, 63, 64, 65, 268, 1040, 1100, 4095, 4096, 4112, 4200};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (uint32_t id = 0; id < 65536; id++) {
            int got = icrc_recover_id(difference((uint16_t)id, lengths[i]), lengths[i]);
            check(got == (int)id, "identification", (unsigned)got, id);
        }
}

static void test_ids_are_recovered_at_every_length(void) {
    for (uint32_t n = 12; n < 65536; n++) {
        uint16_t id = (uint16_t)rng();
        int got = icrc_recover_id(difference(id, n), n);
        check(got == id, "identification at length", (unsigned)got, n);
    }
    check(icrc_recover_id(0, 65536) == -1, "longer than a datagram", 0, 0);
}

static void test_random_differences_are_rarely_explained(void) {
    unsigned explained = 0;
    for (int i = 0; i < 1000000; i++) {
        uint32_t diff = rng(), n = 12 + rng() % 4200;
        int id = icrc_recover_id(diff, n);
        explained += id >= 0;
        check(id < 0 || difference((uint16_t)id, n) == diff, "explanation", diff, n);
    }
    check(explained < 60, "explained of a million (15 expected)", explained, 60);
}

/* ---- packets that a kernel sent (Linux rdma_rxe, its own tools between two guests), from the IP header on -------- */

/* RC ACKNOWLEDGE */
static const uint8_t ack_ipv4[] = {
    0x45, 0x00, 0x00, 0x30, 0x26, 0x76, 0x40, 0x00, 0x40, 0x11, 0x01, 0x9B, 0x0A, 0x4D, 0xFF, 0x09,
    0x0A, 0x4D, 0xFF, 0x08, 0xC1, 0x21, 0x12, 0xB7, 0x00, 0x1C, 0x00, 0x00, 0x11, 0x00, 0xFF, 0xFF,
    0x00, 0x00, 0x00, 0x11, 0x00, 0x47, 0xD1, 0x93, 0x1F, 0x00, 0x00, 0x01, 0xA6, 0xF7, 0x57, 0x5C,
};

/* RC RDMA WRITE ONLY WITH IMMEDIATE, no payload */
static const uint8_t write_ipv4[] = {
    0x45, 0x00, 0x00, 0x40, 0x79, 0xD9, 0x40, 0x00, 0x40, 0x11, 0xAE, 0x27, 0x0A, 0x4D, 0xFF, 0x08,
    0x0A, 0x4D, 0xFF, 0x09, 0xED, 0xEC, 0x12, 0xB7, 0x00, 0x2C, 0x00, 0x00, 0x0B, 0x00, 0xFF, 0xFF,
    0x00, 0x00, 0x00, 0x22, 0x80, 0xEA, 0x8E, 0xF4, 0x00, 0x00, 0x7F, 0x9E, 0x89, 0x1D, 0xEC, 0x2D,
    0x00, 0x00, 0x00, 0x47, 0x00, 0x00, 0x00, 0x00, 0xE0, 0x00, 0x00, 0x00, 0x78, 0x2A, 0xEC, 0x90,
};

/* RC ACKNOWLEDGE */
static const uint8_t ack_ipv6[] = {
    0x60, 0x00, 0x00, 0x00, 0x00, 0x1C, 0x11, 0x40, 0xFD, 0x77, 0x00, 0x00, 0x00, 0x00, 0x00, 0xFF, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x09, 0xFD, 0x77, 0x00, 0x00, 0x00, 0x00, 0x00, 0xFF, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x08, 0xC1, 0xE4, 0x12, 0xB7, 0x00, 0x1C, 0x00, 0x00, 0x11, 0x00, 0xFF,
    0xFF, 0x00, 0x00, 0x00, 0x16, 0x00, 0x75, 0xD5, 0x25, 0x1F, 0x00, 0x00, 0x01, 0xE1, 0x4B, 0x52, 0x4B,
};

/* RC SEND ONLY, 16 bytes */
static const uint8_t send_ipv6[] = {
    0x60, 0x00, 0x00, 0x00, 0x00, 0x28, 0x11, 0x40, 0xFD, 0x77, 0x00, 0x00, 0x00, 0x00, 0x00, 0xFF,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x08, 0xFD, 0x77, 0x00, 0x00, 0x00, 0x00, 0x00, 0xFF,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x09, 0xD0, 0x3E, 0x12, 0xB7, 0x00, 0x28, 0x00, 0x00,
    0x04, 0x00, 0xFF, 0xFF, 0x00, 0x00, 0x00, 0x18, 0x80, 0x33, 0x5C, 0xC7, 0x00, 0x00, 0x55, 0x9A,
    0x01, 0x03, 0x80, 0x70, 0x00, 0x00, 0x0E, 0x93, 0x00, 0x00, 0x00, 0x64, 0x78, 0x35, 0x20, 0x70,
};

static void check_packet(const uint8_t *ip, size_t size) {
    bool ipv4 = ip[0] >> 4 == 4;
    const uint8_t *udp = ip + (ipv4 ? 20 : 40), *bth = udp + 8, *end = ip + size - ICRC_BYTES;
    struct sockaddr_in6 src = endpoint(ipv4), dst = endpoint(ipv4);
    size_t address = ipv4 ? 4 : 16;
    memcpy(src.sin6_addr.s6_addr + 16 - address, udp - 2 * address, address);
    memcpy(dst.sin6_addr.s6_addr + 16 - address, udp - address, address);
    memcpy(&src.sin6_port, udp, 2);
    memcpy(&dst.sin6_port, udp + 2, 2);
    unsigned id = ipv4 ? (unsigned)ip[4] << 8 | ip[5] : 0;
    uint32_t n = (uint32_t)(end - bth), wire;
    memcpy(&wire, end, sizeof wire);
    wire = le32toh(wire);
    uint32_t got = icrc_compute(&src, &dst, (uint16_t)id, bth, n);
    check(got == wire, "ICRC", got, wire);
    int recovered = icrc_recover_id(wire ^ icrc_compute(&src, &dst, 0, bth, n), n);
    check(recovered == (int)id, "identification", (unsigned)recovered, id);
}

static void test_packets_of_the_kernel(void) {
    check_packet(ack_ipv4, sizeof ack_ipv4);
    check_packet(write_ipv4, sizeof write_ipv4);
    check_packet(ack_ipv6, sizeof ack_ipv6);
    check_packet(send_ipv6, sizeof send_ipv6);
}

/* ---- */

static void test_unknown_name_changes_nothing(void) {
    const char *before = crc32_name();
    check(crc32_use("abacus") == -1, "an unknown name", 0, 0);
    check(!strcmp(crc32_name(), before), "the implementation", 0, 0);
}

static void run(const char *name, void (*test)(void)) {
    int before = failures;
    test_name = name;
    test();
    if (failures == before)
        printf("ok - %s (%s)\n", name, crc32_name());
    fflush(stdout);
}

#define RUN(name) run(#name, test_##name)

int main(void) {
    static const char *const names[] = {"table", "pclmul", "vpclmul512"};
    RUN(unknown_name_changes_nothing);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (crc32_use(names[i]) < 0) {
            printf("ok - # skip %s: not on this CPU\n", names[i]);
            continue;
        }
        RUN(check_value);
        RUN(equals_division);
        RUN(long_messages);
        RUN(touches_nothing_else);
        RUN(copy_of_changing_memory);
        RUN(seed_and_linearity);
        RUN(bth_byte_4_does_not_enter);
        RUN(every_id_is_recovered);
        RUN(ids_are_recovered_at_every_length);
        RUN(random_differences_are_rarely_explained);
        RUN(packets_of_the_kernel);
    }
    return failures != 0;
}
