/* SPDX-License-Identifier: Apache-2.0 */

/* Speed of the CRC in each implementation that this CPU has.  From the project's root:
 *
 *   cc -std=c11 -D_GNU_SOURCE -O2 -Isrc/nic bench/crc.c src/nic/wire/icrc.c -o /tmp/crc && /tmp/crc
 *
 * Each call takes the state that the last one left, as in a packet, so short sizes show latency. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "wire/icrc.h"

#define SIZE_MAX_TESTED 65536
#define ROUNDS 5
#define ROUND_NS 20e6

static const char *const names[] = {"table", "pclmul", "vpclmul512"};
static const size_t sizes[] = {12, 16, 28, 64, 256, 1024, 4096, SIZE_MAX_TESTED};
static uint8_t from[SIZE_MAX_TESTED] __attribute__((aligned(64))), to[SIZE_MAX_TESTED] __attribute__((aligned(64)));
static volatile uint32_t sink;

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void run_update(size_t n, size_t calls) {
    uint32_t state = CRC_INIT;
    for (size_t i = 0; i < calls; i++)
        state = crc32_update(state, from, n);
    sink = state;
}

static void run_copy(size_t n, size_t calls) {
    uint32_t state = CRC_INIT;
    for (size_t i = 0; i < calls; i++)
        state = crc32_copy(state, to, from, n);
    sink = state;
}

static void run_memcpy(size_t n, size_t calls) {
    for (size_t i = 0; i < calls; i++) {
        memcpy(to, from, n);
        __asm__ volatile("" : : "r"(to) : "memory");
    }
}

static void run_seed(const char *address, size_t calls) {
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons(4791)};
    if (inet_pton(AF_INET6, address, &a.sin6_addr) != 1)
        abort();
    uint32_t sum = 0;
    for (size_t i = 0; i < calls; i++)
        sum ^= icrc_seed(&a, &a, (uint16_t)sum, 1024);
    sink = sum;
}

static void run_seed4(size_t n, size_t calls) {
    (void)n;
    run_seed("::ffff:192.0.2.1", calls);
}

static void run_seed6(size_t n, size_t calls) {
    (void)n;
    run_seed("2001:db8::1", calls);
}

static void run_bth(size_t n, size_t calls) {
    uint32_t state = CRC_INIT;
    (void)n;
    for (size_t i = 0; i < calls; i++)
        state = icrc_bth(state, from);
    sink = state;
}

static void run_recover(size_t n, size_t calls) {
    uint32_t diff = 0x12345678;
    for (size_t i = 0; i < calls; i++)
        diff += (uint32_t)icrc_recover_id(diff, (uint32_t)n);
    sink = diff;
}

/* Nanoseconds a call, the best of a few rounds. */
static double measure(void (*run)(size_t n, size_t calls), size_t n) {
    size_t calls = 16;
    double best = 0;
    for (int round = 0; round < ROUNDS;) {
        double start = now_ns();
        run(n, calls);
        double took = now_ns() - start;
        if (took < ROUND_NS) {
            calls *= 2;
            continue;
        }
        double each = took / (double)calls;
        best = round == 0 || each < best ? each : best;
        round++;
    }
    return best;
}

static void line(const char *name, const char *what, void (*run)(size_t n, size_t calls)) {
    printf("%-11s %-7s", name, what);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        double ns = measure(run, sizes[i]);
        printf(" %6zu B %7.2f GB/s (%.1f ns)", sizes[i], (double)sizes[i] / ns, ns);
    }
    printf("\n");
}

int main(void) {
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (uint8_t)(i * 167 >> 3);
    line("-", "memcpy", run_memcpy);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (crc32_use(names[i]) < 0)
            continue;
        line(names[i], "update", run_update);
        line(names[i], "copy", run_copy);
        printf("%-11s icrc_seed: IPv4 %.1f ns, IPv6 %.1f ns; icrc_bth %.1f ns; icrc_recover_id: n = 60 %.1f ns, "
               "n = 1040 %.1f ns, n = 4112 %.1f ns\n",
               names[i], measure(run_seed4, 0), measure(run_seed6, 0), measure(run_bth, 0), measure(run_recover, 60),
               measure(run_recover, 1040), measure(run_recover, 4112));
    }
    return 0;
}
