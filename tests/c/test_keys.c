/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys, ranges and rights of memory regions, and copies from and to lists of them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "mem/mr.h"
#include "scarce.h"
#include "wire/icrc.h"

#define LOCAL_WRITE RNIC_ACCESS_LOCAL_WRITE
#define READS RNIC_ACCESS_REMOTE_READ
#define MOST (1u << 22) /* regions of a device */

static struct mr_table t;
static struct rnic_pd pd, other_pd, child = {.parent = &pd}, stranger = {.parent = &other_pd};

/* ---------------------------------------------------------------- random numbers as they are needed */

static const uint32_t *script;
static int scripted;

ssize_t getrandom(void *to, size_t n, unsigned flags) {
    if (!scripted)
        return syscall(SYS_getrandom, to, n, flags);
    CHECK_EQ(n, sizeof *script);
    memcpy(to, script++, n);
    scripted--;
    return (ssize_t)n;
}

static void next_keys(const uint32_t *keys, int n) {
    script = keys;
    scripted = n;
}

static void begin(void) {
    scripted = 0;
    CHECK_EQ(mr_table_init(&t), 0);
}

static void end(void) {
    CHECK_EQ(scripted, 0);
    mr_table_free(&t);
}

/* ---------------------------------------------------------------- keys */

static void a_new_key_has_an_index_that_is_free(void) {
    static const uint32_t keys[] = {0, 0xFF, 0x1FF, 0x100, 0x17F, 0x2A5};
    struct mr a = {0}, b = {0};
    begin();
    next_keys(keys, 3);
    CHECK_EQ(mr_insert(&t, &a), 0);
    CHECK(a.pub.lkey == 0x1FF && a.pub.rkey == 0x1FF);
    next_keys(keys + 3, 3);
    CHECK_EQ(mr_insert(&t, &b), 0);
    CHECK(b.pub.lkey == 0x2A5 && b.pub.rkey == 0x2A5);
    CHECK(mr_find(&t, 0x1FF) == &a && mr_find(&t, 0x2A5) == &b);
    CHECK(!mr_find(&t, 0x1FE) && mr_at(&t, 0x1FE) == &a);
    CHECK(!mr_at(&t, 0x3FF));
    mr_remove(&t, &a);
    CHECK(!mr_at(&t, 0x1FF));
    CHECK_EQ(t.count, 1);
    end();
}

static void a_given_key_is_taken_if_its_index_is_free(void) {
    struct mr a = {0}, b = {0};
    begin();
    CHECK_EQ(mr_insert_as(&t, &a, 0x507), 0);
    CHECK(a.pub.lkey == 0x507 && a.pub.rkey == 0x507);
    CHECK_EQ(mr_insert_as(&t, &b, 0x508), -EEXIST);
    CHECK_EQ(t.count, 1);
    CHECK_EQ(mr_insert_as(&t, &b, 0x608), 0);
    CHECK_EQ(t.count, 2);
    mr_remove(&t, &a);
    CHECK_EQ(mr_insert_as(&t, &a, 0x508), 0);
    CHECK(mr_find(&t, 0x508) == &a);
    end();
}

static void windows_do_not_count_for_the_most_regions(void) {
    static const uint32_t windows[] = {0, 3};
    struct mr mr = {0};
    for (int i = 0; i < 2; i++) {
        begin();
        t.windows = windows[i];
        t.count = MOST + windows[i];
        CHECK_EQ(mr_insert(&t, &mr), -ENOMEM);
        t.count--;
        CHECK_EQ(mr_insert(&t, &mr), 0);
        CHECK_EQ(t.count, MOST + windows[i]);
        CHECK_EQ(t.windows, windows[i]);
        CHECK_EQ(mr_insert(&t, &mr), -ENOMEM);
        end();
    }
}

/* What is in a table stays there, and no key is lost. */
static void without_memory_a_table_stays_as_it_is(void) {
    static struct mr mrs[257], more;
    begin();
    for (uint32_t i = 0; t.count <= t.mask; i++)
        CHECK_EQ(mr_insert_as(&t, &mrs[i], (i + 1) << 8), 0);
    uint32_t count = t.count;
    struct mr_table none;
    without_memory = true;
    int table = mr_table_init(&none), fresh = mr_insert(&t, &more), given = mr_insert_as(&t, &more, 0x77777);
    without_memory = false;
    CHECK(table == -ENOMEM && fresh == -ENOMEM && given == -ENOMEM);
    CHECK_EQ(t.count, count);
    CHECK(!more.pub.lkey);
    for (uint32_t i = 0; i < count; i++)
        CHECK(mr_find(&t, (i + 1) << 8) == &mrs[i]);
    CHECK_EQ(mr_insert(&t, &more), 0);
    end();
}

/* There are about as many buckets as regions, so that none has many. */
static void a_table_grows_with_what_is_in_it(void) {
    enum { MANY = 5000 };
    struct mr *mrs = calloc(MANY, sizeof *mrs);
    begin();
    for (uint32_t i = 0; i < MANY; i++) {
        CHECK_EQ(i < MANY / 2 ? mr_insert_as(&t, &mrs[i], (i + 1) << 8 | 3) : mr_insert(&t, &mrs[i]), 0);
        CHECK_EQ(t.count, i + 1);
        CHECK_EQ(t.mask & (t.mask + 1), 0);
        CHECK(t.mask >= 255 && t.mask + 2 >= t.count);
        CHECK(t.mask < 512 || t.mask < 2 * t.count);
    }
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < MANY; i++) {
            check_note("region %u, round %d", i, round);
            CHECK(mr_find(&t, mrs[i].pub.lkey) == (round && i % 3 == 0 ? NULL : &mrs[i]));
        }
        for (uint32_t i = 0; !round && i < MANY; i += 3)
            mr_remove(&t, &mrs[i]);
    }
    free(mrs);
    end();
}

/* ---------------------------------------------------------------- ranges and rights */

enum { LENGTH = 500, IOVA = 1000 };

static uint8_t bytes[LENGTH];

static struct mr region(enum mr_kind kind, uint64_t iova) {
    return (struct mr){.pub = {.pd = &pd, .iova = iova, .length = LENGTH},
                       .kind = kind,
                       .access = LOCAL_WRITE,
                       .shift = (uintptr_t)bytes - iova};
}

/* In the device's own: what it made itself, or device memory of its own. */
static void bytes_lie_in_the_memory_file_or_elsewhere(void) {
    struct dm here = {.foreign = false}, there = {.foreign = true};
    CHECK(!mr_in_file(&(struct mr){0}));
    CHECK(mr_in_file(&(struct mr){.stored = true}));
    CHECK(mr_in_file(&(struct mr){.dm = &here}));
    CHECK(!mr_in_file(&(struct mr){.dm = &there}));
}

static void a_range_lies_in_a_region_or_not(void) {
    static const struct {
        uint64_t addr, length;
        bool in;
    } rows[] = {
        {IOVA, LENGTH, true},          {IOVA + LENGTH - 1, 1, true},
        {IOVA + LENGTH, 0, true},      {IOVA, 0, true},
        {IOVA + 1, LENGTH - 1, true},  {IOVA - 1, 1, false},
        {IOVA, LENGTH + 1, false},     {IOVA + 1, LENGTH, false},
        {IOVA + LENGTH, 1, false},     {IOVA + LENGTH + 1, 0, false},
        {UINT64_MAX, 1, false},        {UINT64_MAX, 2 * IOVA, false},
        {IOVA + 1, UINT64_MAX, false},
    };
    const struct mr mr = region(MR_PLAIN, IOVA);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        CHECK_EQ(mr_in_range(&mr, rows[i].addr, rows[i].length), rows[i].in);
    }
}

/* Of several faults the first in this order is told: key, protection domain, range, right. */
static void what_is_wrong_with_an_access_is_told_in_one_order(void) {
    static uint64_t serial;
    static struct mw *const a_window = (struct mw *)&serial;
    static const struct {
        const struct rnic_pd *asks;
        uint32_t tag;
        uint64_t addr;
        uint32_t access;
        int local, remote;
    } rows[] = {
        {&pd, 0, IOVA, LOCAL_WRITE, 0, 0},
        {&child, 0, IOVA, LOCAL_WRITE, 0, 0},
        {&pd, 0, IOVA, 0, 0, 0},
        {&other_pd, 1, IOVA, 0, RNIC_VE_SGE_BAD_LKEY, RNIC_VE_RKEY_BAD},
        {&other_pd, 0, IOVA - 1, READS, RNIC_VE_SGE_PD, RNIC_VE_RKEY_PD},
        {&stranger, 0, IOVA, 0, RNIC_VE_SGE_PD, RNIC_VE_RKEY_PD},
        {NULL, 0, IOVA, 0, RNIC_VE_SGE_PD, RNIC_VE_RKEY_PD},
        {&pd, 0, IOVA - 1, READS, RNIC_VE_SGE_BOUNDS, RNIC_VE_RKEY_BOUNDS},
        {&pd, 0, IOVA + LENGTH - 7, 0, RNIC_VE_SGE_BOUNDS, RNIC_VE_RKEY_BOUNDS},
        {&pd, 0, IOVA, READS, RNIC_VE_SGE_ACCESS, RNIC_VE_RKEY_ACCESS},
        {&pd, 0, IOVA, LOCAL_WRITE | READS, RNIC_VE_SGE_ACCESS, RNIC_VE_RKEY_ACCESS},
    };
    struct mr mr = region(MR_PLAIN, IOVA);
    uint8_t *ptr;
    begin();
    CHECK_EQ(mr_insert(&t, &mr), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        struct rnic_sge sge = {rows[i].addr, 8, mr.pub.lkey ^ rows[i].tag};
        CHECK_EQ(mr_local(&t, rows[i].asks, &sge, rows[i].access, &ptr), rows[i].local);
        CHECK(rows[i].local || ptr == bytes);
        CHECK_EQ(mr_remote(&t, rows[i].asks, sge.lkey, sge.addr, 8, rows[i].access, &ptr), rows[i].remote);
        CHECK(rows[i].remote || ptr == bytes);
        sge.length = 0; /* then nothing is asked */
        CHECK_EQ(mr_local(&t, rows[i].asks, &sge, rows[i].access, &ptr), 0);
        CHECK(ptr == (uint8_t *)(uintptr_t)sge.addr);
        CHECK_EQ(mr_remote(&t, rows[i].asks, sge.lkey, sge.addr, 0, rows[i].access, &ptr), 0);
        CHECK(ptr == (uint8_t *)(uintptr_t)sge.addr);
    }
    const struct rnic_sge sge = {IOVA, 8, mr.pub.lkey};
    mr.window = a_window; /* whose key is none for the lists of work requests */
    CHECK_EQ(mr_local(&t, &other_pd, &sge, 0, &ptr), RNIC_VE_SGE_BAD_LKEY);
    mr.kind = MR_FOREIGN;
    mr.is = &serial;
    mr.was = 1; /* and its owner has taken it back */
    CHECK_EQ(mr_local(&t, &pd, &sge, 0, &ptr), RNIC_VE_SGE_BAD_LKEY);
    CHECK_EQ(mr_remote(&t, &pd, sge.lkey, IOVA, 8, 0, &ptr), RNIC_VE_RKEY_BAD);
    end();
}

static void bytes_without_an_address_are_reached_by_their_key(void) {
    struct mr mr = region(MR_GUARDED, IOVA);
    uint8_t here[4] = {1, 2, 3, 4}, there[4];
    uint8_t *ptr;
    begin();
    CHECK_EQ(mr_insert(&t, &mr), 0);
    CHECK_EQ(mr_remote(&t, &pd, mr.pub.rkey, IOVA + 5, 4, 0, &ptr), 0);
    CHECK(!ptr);
    CHECK_EQ(mr_remote_store(&t, mr.pub.rkey, IOVA + 5, here, 4), 0);
    CHECK(!memcmp(bytes + 5, here, 4) && !bytes[9]);
    CHECK_EQ(mr_remote_load(&t, mr.pub.rkey, IOVA + 6, there, 3), 0);
    CHECK(!memcmp(there, here + 1, 3));
    mr.shift = 0; /* where no page is */
    CHECK_EQ(mr_remote_store(&t, mr.pub.rkey, 5, here, 4), RNIC_VE_RKEY_UNMAPPED);
    CHECK_EQ(mr_remote_load(&t, mr.pub.rkey, 6, there, 3), RNIC_VE_RKEY_UNMAPPED);
    memset(bytes, 0, sizeof bytes);
    end();
}

/* ---------------------------------------------------------------- lists */

enum { REGIONS = 4, PIECES = REGIONS, CASES = 4000, MOST_BYTES = PIECES * LENGTH };

static struct mr mrs[REGIONS];
static uint8_t memory[REGIONS][LENGTH], wanted[REGIONS][LENGTH];
static struct rnic_sge list[PIECES];
static uint8_t *place[MOST_BYTES]; /* of each byte of the list, in wanted; NULL: it has none */
static int piece[MOST_BYTES];      /* and its element */
static int pieces;
static uint32_t total;

static void lists_begin(const enum mr_kind *kinds, uint64_t shift) {
    begin();
    for (int i = 0; i < REGIONS; i++) {
        mrs[i] = region(kinds[i], (uintptr_t)memory[i] - shift);
        mrs[i].shift = shift;
        CHECK_EQ(mr_insert(&t, &mrs[i]), 0);
    }
}

static uint32_t upto(struct rng *rng, uint32_t n) { return (uint32_t)(rng_next(rng) >> 33) % (n + 1); }

static void any_list(struct rng *rng) {
    static const uint32_t lengths[] = {0, 0, 1, 7, 8, 64, 300, LENGTH};
    int first = (int)upto(rng, REGIONS - 1);
    pieces = (int)upto(rng, PIECES);
    total = 0;
    for (int i = 0; i < pieces; i++) {
        int of = (first + i) % REGIONS;
        uint32_t length = lengths[upto(rng, 7)], at = upto(rng, LENGTH - length);
        list[i] = (struct rnic_sge){mrs[of].pub.iova + at, length, mrs[of].pub.lkey};
        for (uint32_t b = 0; b < length; b++) {
            piece[total] = i;
            place[total++] = mrs[of].kind == MR_NULL ? NULL : &wanted[of][at + b];
        }
    }
}

/* bad: an element whose key is none. */
static int outcome(uint32_t offset, uint32_t n, int bad) {
    for (uint32_t i = offset; i < offset + n; i++) {
        if (i >= total)
            return RNIC_VE_RECV_TOO_SMALL;
        if (piece[i] == bad)
            return RNIC_VE_SGE_BAD_LKEY;
    }
    return 0;
}

static void copy_both_ways(struct rng *rng, uint32_t offset, uint32_t n, int bad) {
    static uint8_t here[MOST_BYTES + 64], there[MOST_BYTES + 64];
    uint32_t crc = 5;
    int want = outcome(offset, n, bad);
    for (size_t i = 0; i < sizeof memory; i++)
        memory[i / LENGTH][i % LENGTH] = (uint8_t)(rng_next(rng) >> 40);
    memcpy(wanted, memory, sizeof memory);
    for (int with_crc = 0; with_crc < 2; with_crc++) {
        memset(here, 255, sizeof here);
        memset(there, 255, sizeof there);
        for (uint32_t i = 0; !want && i < n; i++)
            there[i] = place[offset + i] ? *place[offset + i] : 0;
        CHECK_EQ(sge_gather(&t, &pd, list, pieces, offset, here, n, with_crc ? &crc : NULL), want);
        CHECK(!memcmp(here, there, sizeof here));
    }
    CHECK_EQ(crc, want ? 5 : crc32_update(5, there, n));
    for (uint32_t i = 0; i < n; i++) {
        here[i] = (uint8_t)(rng_next(rng) >> 40);
        if (!want && place[offset + i])
            *place[offset + i] = here[i];
    }
    CHECK_EQ(sge_scatter(&t, &pd, list, pieces, offset, here, n), want);
    CHECK(!memcmp(memory, wanted, sizeof memory));
}

/* Every byte is where the list says, or none has moved. */
static void a_list_is_its_elements_one_behind_the_other(void) {
    static const enum mr_kind kinds[][REGIONS] = {{MR_PLAIN, MR_PLAIN, MR_PLAIN, MR_PLAIN},
                                                  {MR_PLAIN, MR_GUARDED, MR_PLAIN, MR_NULL}};
    struct rng rng;
    rng_seed(&rng, 1);
    for (int round = 0; round < 4; round++) {
        lists_begin(kinds[round / 2], round % 2 ? 16 : 0);
        for (int i = 0; i < CASES; i++) {
            check_note("round %d, case %d", round, i);
            any_list(&rng);
            int bad = i % 4 == 0 && pieces ? (int)upto(&rng, (uint32_t)pieces - 1) : -1;
            if (bad >= 0)
                list[bad].lkey ^= 1;
            uint32_t offset = upto(&rng, total);
            copy_both_ways(&rng, offset, upto(&rng, total - offset + (i % 3 == 0 ? 2 : 0)), bad);
        }
        end();
    }
}

static void a_list_is_checked_from_its_first_element_to_its_last(void) {
    static const enum mr_kind kinds[REGIONS] = {MR_PLAIN, MR_PLAIN, MR_PLAIN, MR_PLAIN};
    uint8_t byte = 7;
    lists_begin(kinds, 0);
    mrs[2].access = READS;
    for (int i = 0; i < PIECES; i++)
        list[i] = (struct rnic_sge){mrs[i].pub.iova, LENGTH, mrs[i].pub.lkey};
    CHECK_EQ(sge_check(&t, &pd, list, PIECES, 0), 0);
    CHECK_EQ(sge_check(&t, &pd, list, 2, LOCAL_WRITE), 0);
    CHECK_EQ(sge_check(&t, &pd, list, 3, LOCAL_WRITE), RNIC_VE_SGE_ACCESS);
    list[3].length++;
    CHECK_EQ(sge_check(&t, &pd, list, 3, 0), 0);
    CHECK_EQ(sge_check(&t, &pd, list, 4, 0), RNIC_VE_SGE_BOUNDS);
    list[0].lkey ^= 1;
    CHECK_EQ(sge_check(&t, &pd, list, 4, LOCAL_WRITE), RNIC_VE_SGE_BAD_LKEY);
    CHECK_EQ(sge_check(&t, &pd, list, 0, LOCAL_WRITE), 0);
    /* to be read it needs no right, to be written it does */
    CHECK_EQ(sge_scatter(&t, &pd, list + 1, 2, LENGTH, &byte, 1), RNIC_VE_SGE_ACCESS);
    CHECK_EQ(sge_scatter(&t, &pd, list + 2, 1, 0, &byte, 1), RNIC_VE_SGE_ACCESS);
    for (int n = 1; n <= 2; n++) { /* the last of two, or one alone */
        byte = (uint8_t)~memory[2][0];
        CHECK_EQ(sge_gather(&t, &pd, list + 3 - n, n, n == 2 ? LENGTH : 0, &byte, 1, NULL), 0);
        CHECK_EQ(byte, memory[2][0]);
    }
    end();
}

static void a_page_that_is_not_there_fails_the_copy(void) {
    static const enum mr_kind kinds[REGIONS] = {MR_PLAIN, MR_GUARDED, MR_GUARDED, MR_GUARDED};
    uint8_t here[8] = {0};
    uint32_t crc = 5;
    lists_begin(kinds, 0);
    mrs[1].shift = -mrs[1].pub.iova; /* at address 0 */
    for (int i = 0; i < 2; i++)
        list[i] = (struct rnic_sge){mrs[i].pub.iova, 4, mrs[i].pub.lkey};
    CHECK_EQ(sge_gather(&t, &pd, list, 2, 0, here, 8, &crc), RNIC_VE_SGE_UNMAPPED);
    CHECK_EQ(sge_scatter(&t, &pd, list, 2, 0, here, 8), RNIC_VE_SGE_UNMAPPED);
    CHECK_EQ(sge_gather(&t, &pd, list, 2, 0, here, 4, &crc), 0);
    end();
}

int main(void) {
    RUN(a_new_key_has_an_index_that_is_free);
    RUN(a_given_key_is_taken_if_its_index_is_free);
    RUN(windows_do_not_count_for_the_most_regions);
    RUN(without_memory_a_table_stays_as_it_is);
    RUN(a_table_grows_with_what_is_in_it);
    RUN(bytes_lie_in_the_memory_file_or_elsewhere);
    RUN(a_range_lies_in_a_region_or_not);
    RUN(what_is_wrong_with_an_access_is_told_in_one_order);
    RUN(bytes_without_an_address_are_reached_by_their_key);
    RUN(a_list_is_its_elements_one_behind_the_other);
    RUN(a_list_is_checked_from_its_first_element_to_its_last);
    RUN(a_page_that_is_not_there_fails_the_copy);
    return check_done();
}
