/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory file of a device, its table, and what another process makes of it when it lies.
 */
#include "mem/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rng.h"
#include "check.h"

static struct store s;
static struct peer peer;
static struct rnic_err err;

static int mappings(void) {
    char line[512];
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "re");
    while (fgets(line, sizeof line, f))
        n += strstr(line, "/memfd:rnic ") != NULL;
    fclose(f);
    return n;
}

static void begin(void) {
    CHECK_EQ(store_open(&s, "lo", 42, &err), 0);
    CHECK_EQ(peer_open(&peer, s.fd, &err), 0);
}

static void end(void) {
    peer_close(&peer);
    store_close(&s);
    CHECK_EQ(mappings(), 0);
}

static void give_back(uint64_t offset, uint64_t length, uint8_t *addr) {
    struct store_range range = store_free(&s, offset, length, addr);
    store_discard(&s, &range);
}

static int find(int kind, uint32_t handle, struct store_record *out, const uint64_t **is) {
    return peer_find(&peer, kind, handle, out, is, &err);
}

static void what_is_published_is_found(void) {
    struct store_record found;
    const uint64_t *is;
    uint64_t offset;
    uint8_t *here, *far;
    begin();
    CHECK_EQ(peer.head.guid, 42);
    CHECK_EQ(strcmp(peer.head.netdev, "lo"), 0);
    CHECK_EQ(store_alloc(&s, 5000, &offset, &here, &err), 0);
    int record = store_publish(
        &s, &(struct store_record){.kind = STORE_MR, .handle = 9, .key = 5, .offset = offset, .length = 5000});
    CHECK(record > 0);
    CHECK_EQ(find(STORE_DM, 9, &found, &is), -ENOENT);
    CHECK_EQ(find(STORE_MR, 8, &found, &is), -ENOENT);
    CHECK_EQ(find(STORE_MR, 9, &found, &is), 0);
    CHECK(*is == found.serial && found.serial);
    CHECK_EQ(peer_map(&peer, &found, true, &far, &err), 0);
    here[4999] = 7;
    CHECK_EQ(far[4999], 7);
    munmap(far, 5000);
    store_withdraw(&s, record);
    CHECK(*is != found.serial);
    CHECK_EQ(find(STORE_MR, 9, &found, &is), -ENOENT);
    /* a record's next use is another object */
    CHECK_EQ(store_publish(&s, &(struct store_record){.kind = STORE_PD, .handle = 9}), record);
    CHECK(*is != found.serial);
    give_back(offset, 5000, here);
    end();
}

static void a_full_table_leaves_objects_to_their_process(void) {
    begin();
    for (uint32_t i = 1; i < STORE_RECORDS; i++)
        CHECK_EQ(store_publish(&s, &(struct store_record){.kind = STORE_PD, .handle = i}), i);
    CHECK_EQ(store_publish(&s, &(struct store_record){.kind = STORE_PD}), -1);
    store_withdraw(&s, -1);
    store_withdraw(&s, 1234);
    CHECK_EQ(store_publish(&s, &(struct store_record){.kind = STORE_PD}), 1234);
    CHECK_EQ(store_publish(&s, &(struct store_record){.kind = STORE_PD}), -1);
    end();
}

static void freed_memory_is_never_given_again(void) {
    uint64_t first, second;
    uint8_t *a, *b;
    begin();
    CHECK_EQ(store_alloc(&s, 100, &first, &a, &err), 0);
    memset(a, 1, 100);
    give_back(first, 100, a);
    CHECK_EQ(store_alloc(&s, 100, &second, &b, &err), 0);
    CHECK(second > first);
    CHECK_EQ(b[0], 0);
    give_back(second, 100, b);
    CHECK_EQ(ftruncate(peer.fd, 64 << 20), 0); /* an importer's doing */
    CHECK_EQ(store_alloc(&s, 100, &first, &a, &err), 0);
    give_back(first, 100, a);
    CHECK_EQ(store_alloc(&s, 1ull << 62, &second, &b, &err), -ENOMEM);
    CHECK_EQ(store_alloc(&s, UINT64_MAX, &second, &b, &err), -ENOMEM);
    end();
}

/* Random records, and heads: whatever is accepted can be touched. */
static void a_table_that_lies_gives_nothing_that_cannot_be_touched(void) {
    static const uint64_t odd[] = {0,          1,          4095,       4096,       STORE_TABLE - 1,  STORE_TABLE,
                                   1ull << 47, 1ull << 63, UINT64_MAX, 1ull << 32, UINT64_MAX - 4095};
    struct rng rng;
    struct store_record found;
    const uint64_t *is;
    uint64_t offset, accepted = 0;
    uint8_t *memory;
    begin();
    rng_seed(&rng, 1);
    CHECK_EQ(store_alloc(&s, 20000, &offset, &memory, &err), 0);
    struct store_record good = {.kind = STORE_MR, .handle = 7, .offset = offset, .length = 20000};
    int at = store_publish(&s, &good);
    struct store_record *record = &s.table[at];
    for (int i = 0; i < 20000; i++) {
        check_note("case %d", i);
        *record = good;
        record->serial = rng_next(&rng);
        record->kind = STORE_MR + (rng_next(&rng) & 1);
        uint64_t *fields[] = {&record->offset, &record->length, &record->iova};
        for (int n = 0; n < 2; n++) {
            uint64_t r = rng_next(&rng), value = odd[r / 3 % (sizeof odd / sizeof *odd)];
            *fields[r % 3] = r >> 40 & 1 ? value : r >> 41 & 1 ? rng_next(&rng) : offset + rng_next(&rng) % 30000;
        }
        uint8_t *mapped;
        if (find((int)record->kind, 7, &found, &is) || peer_map(&peer, &found, true, &mapped, &err))
            continue;
        accepted++;
        volatile uint8_t sum = mapped[0];
        sum = (uint8_t)(sum + mapped[found.length - 1]);
        uint64_t before = found.offset % (uint64_t)sysconf(_SC_PAGESIZE);
        munmap(mapped - before, before + found.length);
    }
    CHECK(accepted > 100);
    ((struct store_head *)(void *)s.table)->used = UINT32_MAX;
    CHECK_EQ(find(STORE_PD, 12345, &found, &is), -ENOENT);
    give_back(offset, 20000, memory);
    end();
}

static void only_a_sealed_file_with_a_table_is_believed(void) {
    struct peer none;
    int fd = memfd_create("x", MFD_ALLOW_SEALING);
    CHECK_EQ(peer_open(&none, -1, &err), -EBADF);
    CHECK_EQ(peer_open(&none, fd, &err), -EINVAL);
    CHECK_EQ(ftruncate(fd, STORE_TABLE), 0);
    CHECK_EQ(peer_open(&none, fd, &err), -EINVAL);
    CHECK_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    CHECK_EQ(peer_open(&none, fd, &err), -EINVAL);
    CHECK_EQ(none.fd, -1);
    close(fd);
    CHECK_EQ(store_open(&s, "a name that is longer than any", 1, &err), 0);
    CHECK_EQ(ftruncate(s.fd, 4096), -1);
    CHECK_EQ(peer_open(&none, s.fd, &err), 0);
    CHECK_EQ(strlen(none.head.netdev), 15);
    peer_close(&none);
    store_close(&s);
}

/* ---------------------------------------------------------------- files of their own */

static int map(int fd, uint64_t length, bool writable, uint8_t **addr) {
    const struct store_record record = {.kind = STORE_SEALED, .offset = (uint64_t)fd, .length = length};
    return peer_map(&peer, &record, writable, addr, &err);
}

static void what_others_may_only_read_cannot_be_mapped_to_write(void) {
    const struct store_record record = {.kind = STORE_SEALED, .length = 5000};
    uint8_t *here, *far;
    int fd;
    begin();
    peer.pid = getpid();
    CHECK_EQ(store_alloc_sealed(&s, 5000, &fd, &here), 0);
    CHECK_EQ(map(fd, 5000, true, &far), -EACCES);
    CHECK_EQ(map(fd, 5000, false, &far), 0);
    here[4999] = 9;
    CHECK_EQ(far[4999], 9);
    CHECK_EQ(mprotect(far, 5000, PROT_READ | PROT_WRITE), -1);
    peer_unmap(&record, far);
    CHECK(mmap(NULL, 5000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    CHECK_EQ(ftruncate(fd, 4096), -1);
    store_free_sealed(&s, fd, 5000, here);
    CHECK_EQ(map(fd, 5000, false, &far), -EACCES);
    CHECK_EQ(s.nsealed, 0);
    end();
}

static void a_descriptor_that_is_something_else_is_not_mapped(void) {
    uint8_t *here, *far;
    int fd, pipes[2], loose = memfd_create("rnic-sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int other = memfd_create("rnic-sealer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    begin();
    peer.pid = getpid();
    CHECK_EQ(pipe(pipes), 0);
    CHECK_EQ(ftruncate(loose, 8192) | ftruncate(other, 8192), 0);
    CHECK_EQ(fcntl(other, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    const int rows[] = {0, pipes[0], loose, other, s.fd, 1 << 20, -1, INT32_MAX};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        CHECK_EQ(map(rows[i], 4096, false, &far), -EACCES);
    }
    CHECK_EQ(store_alloc_sealed(&s, 4096, &fd, &here), 0);
    CHECK_EQ(map(fd, 4097, false, &far), -EACCES);
    peer.pid = 0; /* of another pid namespace */
    CHECK_EQ(map(fd, 4096, false, &far), -EACCES);
    store_free_sealed(&s, fd, 4096, here);
    close(pipes[0]);
    close(pipes[1]);
    close(loose);
    close(other);
    end();
}

static void a_forked_child_lets_go_all_descriptors(void) {
    uint8_t *at[3];
    int fds[3], status = -1;
    begin();
    for (int i = 0; i < 3; i++)
        CHECK_EQ(store_alloc_sealed(&s, 1, &fds[i], &at[i]), 0);
    int before = check_descriptors();
    pid_t child = fork();
    if (child == 0) {
        store_abandon(&s);
        _exit(before - check_descriptors());
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 4);
    for (int i = 0; i < 3; i++)
        store_free_sealed(&s, fds[i], 1, at[i]);
    CHECK_EQ(check_descriptors(), before - 3);
    end();
}

static void there_are_so_many_and_no_more(void) {
    static uint8_t *at[STORE_SEALED_MAX];
    int fds[STORE_SEALED_MAX], one;
    uint8_t *more;
    begin();
    for (int i = 0; i < STORE_SEALED_MAX; i++)
        CHECK_EQ(store_alloc_sealed(&s, 1, &fds[i], &at[i]), 0);
    CHECK_EQ(store_alloc_sealed(&s, 1, &one, &more), -ENOSPC);
    for (int i = 0; i < STORE_SEALED_MAX; i += 2)
        store_free_sealed(&s, fds[i], 1, at[i]);
    CHECK_EQ(store_alloc_sealed(&s, 1, &one, &more), 0);
    store_free_sealed(&s, one, 1, more);
    for (int i = 1; i < STORE_SEALED_MAX; i += 2)
        store_free_sealed(&s, fds[i], 1, at[i]);
    end();
}

/* Else a process would have 65,000 regions at most; and a place is none that another one has had. */
static void many_short_ones_share_a_mapping(void) {
    enum { MANY = 100000 };
    uint64_t *offset = calloc(MANY, sizeof *offset);
    uint8_t **at = calloc(MANY, sizeof *at);
    begin();
    int before = mappings();
    for (int i = 0; i < MANY; i++) {
        CHECK_EQ(store_alloc(&s, 1 + (uint64_t)(i % 2) * 4096, &offset[i], &at[i], &err), 0);
        CHECK(!i || offset[i] > offset[i - 1]);
        if (i % 1000 == 0)
            memset(at[i], i / 1000, 1);
    }
    CHECK(mappings() < before + 40);
    for (int i = 0; i < MANY; i += 1000)
        CHECK_EQ(*at[i], i / 1000);
    for (int i = 0; i < MANY; i++)
        give_back(offset[i], 1 + (uint64_t)(i % 2) * 4096, at[i]);
    CHECK(mappings() <= before + 1);
    free(offset);
    free(at);
    end();
}

/* 4 MiB, to begin with. */
static void a_mapping_is_filled_to_its_last_byte(void) {
    enum { PIECES = 4, BYTES = 1 << 20 };
    uint64_t offset[PIECES + 1];
    uint8_t *at[PIECES + 1];
    begin();
    int before = mappings();
    for (int i = 0; i <= PIECES; i++) {
        CHECK_EQ(store_alloc(&s, BYTES, &offset[i], &at[i], &err), 0);
        CHECK_EQ(mappings(), before + 1 + i / PIECES);
        at[i][BYTES - 1] = (uint8_t)i;
    }
    for (int i = 0; i <= PIECES; i++) {
        CHECK_EQ(at[i][BYTES - 1], i);
        give_back(offset[i], BYTES, at[i]);
    }
    end();
}

int main(void) {
    RUN(what_is_published_is_found);
    RUN(many_short_ones_share_a_mapping);
    RUN(a_mapping_is_filled_to_its_last_byte);
    RUN(a_full_table_leaves_objects_to_their_process);
    RUN(freed_memory_is_never_given_again);
    RUN(a_table_that_lies_gives_nothing_that_cannot_be_touched);
    RUN(only_a_sealed_file_with_a_table_is_believed);
    RUN(what_others_may_only_read_cannot_be_mapped_to_write);
    RUN(a_descriptor_that_is_something_else_is_not_mapped);
    RUN(a_forked_child_lets_go_all_descriptors);
    RUN(there_are_so_many_and_no_more);
    return check_done();
}
