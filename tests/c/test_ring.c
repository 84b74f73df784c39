/* SPDX-License-Identifier: Apache-2.0
 *
 * link/lane/ring.c: packets through shared memory, and a partner who writes there what he likes.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "check.h"
#include "link/lane/ring.h"

static struct ring_shared *mem;
static struct ring_writer writer;
static struct ring_reader reader;

static void fresh(void) {
    free(mem);
    mem = aligned_alloc(64, sizeof *mem);
    memset(mem, 0, sizeof *mem);
    writer = (struct ring_writer){.mem = mem};
    reader = (struct ring_reader){.mem = mem};
}

static bool put(uint32_t n, uint8_t first) {
    uint8_t *at = ring_reserve(&writer, n);
    if (!at)
        return false;
    for (uint32_t i = 0; i < n; i++)
        at[i] = (uint8_t)(first + i);
    ring_commit(&writer, first);
    return true;
}

static void get(uint32_t n, uint8_t first) {
    struct ring_packet p;
    CHECK_EQ(ring_peek(&reader, &p), 1);
    CHECK_EQ(p.length, n);
    CHECK_EQ(p.kind, first);
    for (uint32_t i = 0; i < n; i++)
        CHECK_EQ(p.bytes[i], (uint8_t)(first + i));
    CHECK(!memcmp(p.head, p.bytes, n < sizeof reader.head ? n : sizeof reader.head));
    ring_take(&reader);
}

static void put_for(uint8_t first, uint32_t whose) {
    uint8_t *at = ring_reserve(&writer, 64);
    for (uint32_t i = 0; i < 64; i++)
        at[i] = (uint8_t)(first + i);
    ring_commit_for(&writer, first, whose);
}

/* Of what one has committed, and the reader has not taken, nothing stands; all else does. */
static void what_is_taken_back_is_void(void) {
    struct ring_packet p;
    fresh();
    for (uint32_t round = 0; round < 3 * RING_CELLS; round++) {
        put_for(1, 7);
        put_for(2, 8);
        CHECK(put(16, 3));
        put_for(4, 7);
        get(64, 1);
        ring_take_back(&writer, 7);
        for (uint8_t kind = 2; kind <= 4; kind++) {
            CHECK_EQ(ring_peek(&reader, &p), 1);
            CHECK_EQ(ring_is_void(&reader), kind == 4);
            CHECK_EQ(p.kind, kind == 4 ? RING_VOID : kind);
            ring_take(&reader);
        }
        ring_take_back(&writer, 8); /* nothing is there any more: the cells may be others' by now */
        put_for(5, 8);
        CHECK_EQ(ring_peek(&reader, &p), 1);
        CHECK(!ring_is_void(&reader));
        ring_take_back(&writer, 8); /* it is in the reader's hand, which finds out when it looks again */
        CHECK_EQ(p.kind, 5);
        CHECK(ring_is_void(&reader));
        ring_take(&reader);
    }
}

static void packets_of_every_size_come_in_order(void) {
    static const uint32_t sizes[] = {0, 1, 12, 47, 48, 49, 63, 64, 65, 1000, 4096, 65536 + 60, RING_LONGEST};
    struct ring_packet p;
    fresh();
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            CHECK(put(sizes[i], (uint8_t)i));
            get(sizes[i], (uint8_t)i);
        }
    }
    CHECK_EQ(ring_peek(&reader, &p), 0);
    CHECK(ring_is_empty(&writer));
    CHECK(!ring_reserve(&writer, RING_LONGEST + 1));
}

/* What is written and not yet read, in a model: a ring never loses, repeats or mixes. */
static void any_mix_of_writing_and_reading_is_a_queue(void) {
    struct rng rng;
    fresh();
    rng_seed(&rng, 7);
    uint32_t size[RING_CELLS], head = 0, tail = 0;
    for (int step = 0; step < 200000; step++) {
        uint64_t r = rng_next(&rng);
        uint32_t n = r >> 62 ? (uint32_t)(r >> 8) % 100 : (uint32_t)(r >> 8) % RING_LONGEST;
        if ((r & 1) && put(n, (uint8_t)head))
            size[head++ % RING_CELLS] = n;
        else if (tail != head) {
            get(size[tail % RING_CELLS], (uint8_t)tail);
            tail++;
        }
    }
    CHECK(head > 1000);
}

/* Packets take whole cache lines, and there is room to the last one. */
static void a_ring_is_filled_to_its_last_line(void) {
    static const uint32_t sizes[] = {1024, 1023, 961, 4096, 65536, 65535};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint32_t lines = (sizes[i] + 63) / 64, fit = RING_DATA / 64 / lines;
        fresh();
        for (uint32_t n = 0; n < 3 * fit; n++) {
            check_note("%u bytes, packet %u", sizes[i], n);
            CHECK(put(sizes[i], (uint8_t)n));
            if (n + 1 < fit)
                continue;
            CHECK(!put(sizes[i], 0));
            CHECK(!put(RING_SHORT + 1, 0));
            get(sizes[i], (uint8_t)(n + 1 - fit));
        }
    }
}

/* What is left out at the end of the data area is free again with the packet that did not fit there. */
static void behind_a_gap_there_is_room_to_the_last_line(void) {
    fresh();
    for (int round = 0; round < 5; round++) {
        for (uint8_t i = 0; i < 2; i++) {
            CHECK(put(RING_DATA / 8 * 3, i));
            get(RING_DATA / 8 * 3, i);
        }
        CHECK(put(RING_DATA / 2, 2)); /* a quarter is left: it begins at the beginning */
        CHECK(put(RING_DATA / 4, 3));
        CHECK(!put(RING_SHORT + 1, 4));
        get(RING_DATA / 2, 2);
        get(RING_DATA / 4, 3);
        CHECK(put(RING_DATA / 4, 5)); /* and to the end */
        get(RING_DATA / 4, 5);
    }
}

static void a_full_ring_says_so_and_tells_when_there_is_room(void) {
    fresh();
    uint32_t n = 0;
    while (put(8, 1))
        n++;
    CHECK_EQ(n, RING_CELLS);
    CHECK(!ring_has_room(&writer));
    CHECK(ring_must_tell(&reader)); /* it is asked before it sleeps, too */
    CHECK(!ring_must_tell(&reader));
    CHECK(!ring_has_room(&writer));
    while (n-- > RING_CELLS / 2)
        get(8, 1);
    CHECK(ring_has_room(&writer));
    CHECK(!ring_must_tell(&reader));
    fresh();
    while (put(65536, 2))
        ;
    CHECK(put(8, 3)); /* in a cell: there are many */
    fresh();
    CHECK(put(RING_LONGEST, 1)); /* half of the data area */
    CHECK(ring_has_room(&writer));
    CHECK(put(100, 2));
    CHECK(!ring_has_room(&writer));
    get(RING_LONGEST, 1);
    CHECK(ring_has_room(&writer));
}

static void who_sleeps_is_woken_once(void) {
    fresh();
    CHECK(ring_may_sleep(&reader));
    CHECK(put(8, 1));
    CHECK(ring_must_wake(&writer));
    CHECK(!ring_must_wake(&writer));
    CHECK(!ring_may_sleep(&reader));
    ring_awake(&reader);
    get(8, 1);
    CHECK(!ring_must_wake(&writer));
}

/* ---------------------------------------------------------------- partners who do not mean well */

static void a_reader_believes_no_length_and_no_place(void) {
    static const struct {
        uint32_t length, at;
        int found;
    } rows[] = {{RING_SHORT, ~0u, 1},
                {RING_SHORT + 1, 0, 1},
                {RING_SHORT + 1, RING_DATA, -1},
                {RING_LONGEST + 1, 0, -1},
                {~0u, 0, -1},
                {RING_LONGEST, RING_DATA / 2, 1},
                {100, RING_DATA - 100, 1},
                {RING_LONGEST, RING_DATA / 2 + 1, -1},
                {100, RING_DATA - 99, -1},
                {100, ~0u, -1}};
    struct ring_packet p;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fresh();
        mem->cell[0].length = rows[i].length;
        mem->cell[0].at = rows[i].at;
        atomic_store(&mem->cell[0].turn, 1);
        check_note("row %zu", i);
        CHECK_EQ(ring_peek(&reader, &p), rows[i].found);
    }
}

static void what_a_reader_checks_is_a_copy(void) {
    struct ring_packet p;
    fresh();
    for (uint32_t n = 20; n <= 200; n += 180) {
        CHECK(put(n, 5));
        CHECK_EQ(ring_peek(&reader, &p), 1);
        memset(mem->cell, 0xFF, sizeof mem->cell);
        memset(mem->data, 0xFF, sizeof mem->data);
        CHECK_EQ(p.head[3], 8);
        fresh();
    }
}

static void a_writer_believes_no_count_of_what_was_taken(void) {
    struct rng rng;
    rng_seed(&rng, 3);
    for (int round = 0; round < 200; round++) {
        fresh();
        for (int i = 0; i < 5000; i++) {
            uint64_t r = rng_next(&rng);
            atomic_store(&mem->taken, r & 1 ? (uint32_t)(r >> 32) : (uint32_t)(r >> 8) % 3000);
            uint32_t n = (uint32_t)(r >> 20) % 5000;
            uint8_t *at = ring_reserve(&writer, n);
            if (!at)
                continue;
            const uint8_t *from = n <= RING_SHORT ? writer.brief.bytes : mem->data;
            CHECK(at >= from && at + n <= from + (n <= RING_SHORT ? RING_SHORT : RING_DATA));
            memset(at, 1, n);
            ring_commit(&writer, 0);
            CHECK(writer.next - writer.taken <= RING_CELLS);
        }
    }
}

/* ---------------------------------------------------------------- two threads */

#define MANY 300000u

static void *write_many(void *arg) {
    (void)arg;
    for (uint32_t i = 0; i < MANY;) {
        uint32_t n = 4 + i % 200;
        uint8_t *at = ring_reserve(&writer, n);
        if (!at)
            continue;
        memset(at, (int)i, n);
        memcpy(at, &i, sizeof i);
        ring_commit(&writer, i);
        i++;
    }
    return NULL;
}

static void two_threads_pass_everything_in_order(void) {
    pthread_t thread;
    struct ring_packet p;
    fresh();
    CHECK_EQ(pthread_create(&thread, NULL, write_many, NULL), 0);
    for (uint32_t i = 0; i < MANY;) {
        if (ring_peek(&reader, &p) != 1)
            continue;
        uint32_t n;
        memcpy(&n, p.head, sizeof n);
        CHECK_EQ(n, i);
        CHECK_EQ(p.length, 4 + i % 200);
        CHECK(p.length == 4 || p.bytes[p.length - 1] == (uint8_t)i);
        ring_take(&reader);
        i++;
    }
    pthread_join(thread, NULL);
}

int main(void) {
    RUN(packets_of_every_size_come_in_order);
    RUN(what_is_taken_back_is_void);
    RUN(any_mix_of_writing_and_reading_is_a_queue);
    RUN(a_ring_is_filled_to_its_last_line);
    RUN(behind_a_gap_there_is_room_to_the_last_line);
    RUN(a_full_ring_says_so_and_tells_when_there_is_room);
    RUN(who_sleeps_is_woken_once);
    RUN(a_reader_believes_no_length_and_no_place);
    RUN(what_a_reader_checks_is_a_copy);
    RUN(a_writer_believes_no_count_of_what_was_taken);
    RUN(two_threads_pass_everything_in_order);
    free(mem);
    return check_done();
}
