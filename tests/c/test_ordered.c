/* SPDX-License-Identifier: Apache-2.0
 *
 * base/ordered.c: every length and alignment is copied whole; who polls the last word of a copy finds the rest of it.
 */
#include "base/ordered.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define GUARD 64
#define CANARY 0xC5

static void copy_one(uint8_t *arena, size_t room, const uint8_t *from, size_t at, size_t n) {
    memset(arena, CANARY, room);
    ordered_copy(arena + GUARD + at, from, n);
    CHECK(!memcmp(arena + GUARD + at, from, n));
    for (size_t i = 0; i < GUARD + at; i++)
        CHECK_EQ(arena[i], CANARY);
    for (size_t i = GUARD + at + n; i < room; i++)
        CHECK_EQ(arena[i], CANARY);
}

static void every_length_and_place_is_copied_whole(void) {
    static const size_t longer[] = {1000, 4096, 4097, ORDERED_BLOCK, ORDERED_BLOCK + 1, 3 * ORDERED_BLOCK + 77};
    size_t room = 4 * ORDERED_BLOCK, most = 3 * ORDERED_BLOCK + 77 + 64;
    uint8_t *from = malloc(most), *arena = aligned_alloc(64, room);
    for (size_t i = 0; i < most; i++)
        from[i] = (uint8_t)(i * 7 + i / 251);
    for (size_t at = 0; at < 64; at++) {
        for (size_t n = 0; n < 200; n++)
            copy_one(arena, 512, from + (at + n) % 11, at, n);
    }
    for (size_t i = 0; i < sizeof longer / sizeof *longer; i++) {
        for (size_t at = 0; at < 64; at += 13)
            copy_one(arena, room, from + at % 7, at, longer[i]);
    }
    free(from);
    free(arena);
}

#define WORDS 1000u
#define ROUNDS 2000u

static struct {
    _Alignas(64) uint64_t to[WORDS];
    _Atomic uint64_t seen;
} shared;

/* The writer is told when a copy has been looked at, so that what is found is one copy's. */
static void *copies(void *arg) {
    uint64_t from[WORDS];
    (void)arg;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        for (size_t i = 0; i < WORDS; i++)
            from[i] = round;
        ordered_copy(shared.to, from, sizeof from);
        while (atomic_load(&shared.seen) != round)
            sched_yield();
    }
    return NULL;
}

static void who_polls_the_last_word_finds_all_of_it(void) {
    pthread_t thread;
    uint64_t turns = 0;
    CHECK_EQ(pthread_create(&thread, NULL, copies, NULL), 0);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        while (__atomic_load_n(&shared.to[WORDS - 1], __ATOMIC_ACQUIRE) != round)
            turns++ % 64 ? (void)0 : (void)sched_yield();
        for (size_t i = 0; i < WORDS; i++)
            CHECK_EQ(__atomic_load_n(&shared.to[i], __ATOMIC_RELAXED), round);
        atomic_store(&shared.seen, round);
    }
    pthread_join(thread, NULL);
}

/* What is ahead of the last line or word, and what the kernel is told to copy last. */
static void the_last_line_and_word_are_those_of_the_end(void) {
    const uint8_t *base = (const uint8_t *)4096;
    CHECK_EQ(ordered_head(base, 64), 0);
    CHECK_EQ(ordered_head(base, 65), 64);
    CHECK_EQ(ordered_head(base, 128), 64);
    CHECK_EQ(ordered_head(base + 60, 8), 4);
    CHECK_EQ(ordered_words(base, 8), 0);
    CHECK_EQ(ordered_words(base, 16), 8);
    CHECK_EQ(ordered_words(base, 17), 16);
    CHECK_EQ(ordered_words(base + 3, 4096), 4093);
    CHECK_EQ(ordered_words(base + 3, 2), 0);
}

int main(void) {
    RUN(every_length_and_place_is_copied_whole);
    RUN(who_polls_the_last_word_finds_all_of_it);
    RUN(the_last_line_and_word_are_those_of_the_end);
    return check_done();
}
