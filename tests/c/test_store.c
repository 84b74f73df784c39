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
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rng.h"
#include "check.h"
#include "scarce.h"

static struct store s;
static struct peer peer;
static struct rnic_err err;
static uint64_t inode; /* of the last file that is a region's own */

/* A kernel that has no seals, or no room. */
static bool without_seals, without_room;

int memfd_create(const char *name, unsigned flags) {
    return (int)syscall(SYS_memfd_create, name, without_seals ? flags & ~(unsigned)MFD_ALLOW_SEALING : flags);
}

int ftruncate(int fd, off_t n) {
    errno = ENOSPC;
    return without_room ? -1 : (int)syscall(SYS_ftruncate, fd, n);
}

/* Where the last file was looked for. */
static char looked_for[64];

int open(const char *path, int flags, ...) {
    CHECK(flags & O_CLOEXEC);
    if (strncmp(path, "/proc/self", 10) != 0)
        (void)snprintf(looked_for, sizeof looked_for, "%s", path);
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0);
}

static int mappings_of(const char *file) {
    char line[512];
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "re");
    while (fgets(line, sizeof line, f))
        n += strstr(line, file) != NULL;
    fclose(f);
    return n;
}

static int mappings(void) { return mappings_of("/memfd:rnic "); }

/* To be given back; also where a test is run without standard input. */
static int copy_of_descriptor_0(void) {
    int kept = fcntl(0, F_DUPFD_CLOEXEC, 3);
    return kept >= 0 ? kept : fcntl(open("/dev/null", O_RDONLY | O_CLOEXEC), F_DUPFD_CLOEXEC, 3);
}

static void begin(void) {
    CHECK_EQ(store_open(&s, "lo", RNIC_TRANSPORT_IB, 42, &err), 0);
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
    CHECK_EQ(find(STORE_PD, peer.head.used, &found, &is),
             -ENOENT); /* the head is no record, though it looks like this */
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

/* Else a process that has seen one device's region could take another's for it. */
static void no_two_files_have_a_serial_number_in_common(void) {
    struct store other;
    begin();
    CHECK_EQ(store_open(&other, "lo", RNIC_TRANSPORT_IB, 42, &err), 0);
    const struct store_record what = {.kind = STORE_PD};
    int at = store_publish(&s, &what), same = store_publish(&other, &what);
    CHECK(s.table[at].serial != other.table[same].serial);
    CHECK_EQ(store_publish(&s, &what), at + 1);
    CHECK(s.table[at + 1].serial > s.table[at].serial);
    CHECK(peer_changes(&peer) == s.table[at + 1].serial);
    store_close(&other);
    end();
}

/* KiB of memory that the file has taken from the system. */
static long taken(void) {
    struct stat st;
    CHECK_EQ(fstat(s.fd, &st), 0);
    return (long)st.st_blocks / 2;
}

static void the_pages_of_what_is_freed_go_back_to_the_system(void) {
    enum { SMALL = 3, LONG = 2 << 20 };
    uint64_t offset[SMALL], far;
    uint8_t *at[SMALL], *alone;
    begin();
    CHECK_EQ(store_alloc(&s, LONG, &far, &alone, &err), 0);
    for (int i = 0; i < SMALL; i++) {
        CHECK_EQ(store_alloc(&s, 512 << 10, &offset[i], &at[i], &err), 0);
        memset(at[i], i + 1, 512 << 10);
    }
    memset(alone, 9, LONG);
    long before = taken();
    give_back(offset[1], 512 << 10, at[1]);
    CHECK_EQ(taken(), before - 512);
    CHECK(at[0][(512 << 10) - 1] == 1 && at[2][0] == 3);
    int mapped = mappings();
    give_back(far, LONG, alone);
    CHECK_EQ(taken(), before - 512 - 2048);
    CHECK_EQ(mappings(), mapped - 1);
    give_back(offset[0], 512 << 10, at[0]);
    give_back(offset[2], 512 << 10, at[2]);
    CHECK_EQ(taken(), before - 3 * 512 - 2048);
    end();
}

static void what_lives_when_the_store_closes_goes_with_it(void) {
    uint64_t offset;
    uint8_t *at;
    int before = check_descriptors();
    begin();
    for (int i = 0; i < 9; i++) /* two mappings full, and a third one */
        CHECK_EQ(store_alloc(&s, 1 << 20, &offset, &at, &err), 0);
    end();
    CHECK_EQ(check_descriptors(), before);
    CHECK_EQ(s.fd, -1);
    store_close(&s);
    CHECK_EQ(check_descriptors(), before);
}

/* Bytes of memory begin and end at pages, and no two share one. */
static void each_piece_has_whole_pages_of_its_own(void) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), offset, next;
    const uint64_t rows[][2] = {{1, 1}, {page - 1, 1}, {page, 1}, {page + 1, 2}, {3 * page, 3}, {3 * page + 1, 4}};
    uint8_t *at, *behind;
    begin();
    CHECK_EQ(store_alloc(&s, 1, &offset, &at, &err), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        CHECK_EQ(store_alloc(&s, rows[i][0], &offset, &at, &err), 0);
        CHECK_EQ(store_alloc(&s, 1, &next, &behind, &err), 0);
        CHECK_EQ(next - offset, rows[i][1] * page);
        CHECK(behind == at + rows[i][1] * page);
        CHECK(offset % page == 0 && (uintptr_t)at % page == 0);
    }
    end();
}

static void bytes_of_the_program_are_found_in_the_file(void) {
    enum { SHORT = 5000, LONG = 3 << 20 };
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t first, far, found = 7;
    uint8_t *at, *alone;
    begin();
    CHECK(!store_find(&s, (uint8_t *)&first, sizeof first, &found));
    CHECK_EQ(store_alloc(&s, SHORT, &first, &at, &err), 0);
    CHECK_EQ(store_alloc(&s, LONG, &far, &alone, &err), 0);
    CHECK(store_find(&s, at, SHORT, &found) && found == first);
    CHECK(store_find(&s, at + 100, 8, &found) && found == first + 100);
    CHECK(store_find(&s, alone, LONG, &found) && found == far);
    CHECK(store_find(&s, alone + LONG - 1, 1, &found) && found == far + LONG - 1);
    CHECK(!store_find(&s, alone + LONG - 1, 2, &found) && !store_find(&s, alone + 1, UINT64_MAX, &found));
    CHECK(!store_find(&s, (uint8_t *)&first, page, &found) && found == far + LONG - 1);
    give_back(far, LONG, alone);
    CHECK(!store_find(&s, alone, 1, &found));
    CHECK(store_find(&s, at, SHORT, &found) && found == first);
    end();
}

static void refuse_descriptors(bool yes) {
    static struct rlimit was;
    struct rlimit none = {0, 0};
    if (yes)
        CHECK_EQ(getrlimit(RLIMIT_NOFILE, &was), 0);
    none.rlim_max = was.rlim_max;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, yes ? &none : &was), 0);
}

/* Each call that needs a descriptor, when there is none: it says so, and nothing is left. */
static void without_a_descriptor_nothing_is_half_made(void) {
    struct store none;
    struct peer nobody;
    uint8_t *at = NULL;
    int fd = 5, before = check_descriptors();
    begin();
    refuse_descriptors(true);
    CHECK_EQ(store_open(&none, "lo", RNIC_TRANSPORT_IB, 1, &err), -EMFILE);
    CHECK(strstr(err.text, "a memory file for the device"));
    CHECK(none.fd == -1 && !none.taken && !none.table);
    CHECK_EQ(peer_open(&nobody, s.fd, &err), -EINVAL); /* as Linux says it of a duplicate beyond the limit */
    CHECK(nobody.fd == -1 && !nobody.table);
    CHECK_EQ(store_alloc_sealed(&s, 1, &fd, &inode, &at), -ENOSPC);
    CHECK(fd == -1 && !at);
    refuse_descriptors(false);
    CHECK_EQ(store_alloc_sealed(&s, 1ull << 47, &fd, &inode, &at), -ENOSPC); /* which no process has room for */
    CHECK(fd == -1 && !at);
    CHECK_EQ(store_alloc_sealed(&s, (1ull << 47) + 1, &fd, &inode, &at), -ENOSPC);
    CHECK_EQ(s.nsealed, 0);
    end();
    CHECK_EQ(check_descriptors(), before);
}

static void descriptor_0_is_one_as_any_other(void) {
    struct store_record record = {.kind = STORE_SEALED, .length = 5000};
    int kept = copy_of_descriptor_0(), fd, before = check_descriptors();
    uint8_t *at, *far;
    close(0);
    begin();
    CHECK_EQ(s.fd, 0);
    end();
    CHECK(fcntl(0, F_GETFD) < 0);
    CHECK_EQ(dup2(kept, 0), 0);
    begin();
    close(0);
    CHECK_EQ(store_alloc_sealed(&s, 5000, &fd, &inode, &at), 0);
    CHECK_EQ(fd, 0);
    peer.pid = getpid();
    record.offset = (uint64_t)fd;
    record.inode = inode;
    CHECK_EQ(peer_map(&peer, &record, false, &far, &err), 0);
    peer_unmap(&record, far);
    store_free_sealed(&s, fd, 5000, at);
    CHECK_EQ(store_alloc_sealed(&s, 1ull << 47, &fd, &inode, &at), -ENOSPC);
    CHECK_EQ(check_descriptors(), before + 1); /* without the first, and the store's and the peer's */
    CHECK_EQ(dup2(kept, 0), 0);
    close(kept);
    end();
}

/* Nor is it one of the standard streams, which a program may open again. */
static void a_copy_of_the_descriptor_is_none_of_the_first_three(void) {
    struct peer again;
    begin();
    int kept = fcntl(2, F_DUPFD_CLOEXEC, 3);
    close(2);
    int rc = peer_open(&again, s.fd, &err), fd = again.fd;
    peer_close(&again);
    if (kept >= 0)
        CHECK_EQ(dup2(kept, 2), 2);
    close(kept);
    CHECK_EQ(rc, 0);
    CHECK(fd > 2);
    end();
}

static void without_memory_nothing_is_half_made_either(void) {
    uint64_t offset;
    struct store none;
    uint8_t *at;
    begin();
    int before = check_descriptors();
    without_memory = true;
    errno = 0;
    int opened = store_open(&none, "lo", RNIC_TRANSPORT_IB, 1, &err);
    bool said = strstr(err.text, "a memory file for the device");
    errno = ENOMEM; /* as the C library's own calloc says */
    int made = store_alloc(&s, 1, &offset, &at, &err);
    without_memory = false;
    CHECK_EQ(opened, -ENOMEM);
    CHECK(said && none.fd == -1);
    CHECK_EQ(made, -ENOMEM);
    CHECK(strstr(err.text, "a memory file of 1 bytes"));
    CHECK_EQ(check_descriptors(), before);
    CHECK_EQ(store_alloc(&s, 1, &offset, &at, &err), 0);
    CHECK_EQ(offset, STORE_TABLE);
    CHECK_EQ(store_alloc(&s, (1ull << 47) + 1, &offset, &at, &err), -ENOMEM);
    CHECK(strstr(err.text, "140737488355329 bytes: a process has no room for them"));
    CHECK_EQ(store_alloc(&s, 1ull << 47, &offset, &at, &err), -ENOMEM);
    CHECK(strstr(err.text, "vm.max_map_count"));
    end();
}

static void without_seals_or_room_neither(void) {
    uint64_t offset;
    struct store none;
    uint8_t *at;
    int fd, before;
    begin();
    before = check_descriptors();
    without_seals = true;
    CHECK_EQ(store_open(&none, "lo", RNIC_TRANSPORT_IB, 1, &err), -EPERM);
    CHECK_EQ(store_alloc_sealed(&s, 1, &fd, &inode, &at), -ENOSPC);
    without_seals = false;
    CHECK(fd == -1 && !at && s.nsealed == 0);
    without_room = true;
    CHECK_EQ(store_open(&none, "lo", RNIC_TRANSPORT_IB, 1, &err), -ENOSPC);
    CHECK_EQ(store_alloc_sealed(&s, 1, &fd, &inode, &at), -ENOSPC);
    CHECK_EQ(store_alloc(&s, 1, &offset, &at, &err), -ENOSPC);
    CHECK(!s.blocks && s.end == STORE_TABLE);
    CHECK(strstr(err.text, "a memory file of 1 bytes: ") && !strstr(err.text, "vm.max_map_count"));
    CHECK_EQ(store_alloc(&s, 2 << 20, &offset, &at, &err), -ENOSPC);
    without_room = false;
    CHECK_EQ(check_descriptors(), before);
    CHECK_EQ(mappings_of("/memfd:rnic-sealed "), 0);
    CHECK_EQ(store_alloc(&s, 1, &offset, &at, &err), 0);
    CHECK_EQ(offset, STORE_TABLE);
    end();
}

/* Where files may not be so long (ulimit -f), a call fails; no signal ends the program. */
static void without_long_files_neither(void) {
    struct rlimit before, limit;
    uint64_t offset;
    struct store none;
    uint8_t *at;
    int fd;
    begin();
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = (struct rlimit){STORE_TABLE - 1, before.rlim_max};
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_EQ(store_open(&none, "lo", RNIC_TRANSPORT_IB, 1, &err), -EFBIG);
    CHECK(strstr(err.text, "ulimit -f"));
    CHECK_EQ(store_alloc(&s, 1, &offset, &at, &err), -EFBIG);
    CHECK(strstr(err.text, "ulimit -f"));
    CHECK_EQ(store_alloc_sealed(&s, STORE_TABLE, &fd, &inode, &at), -ENOSPC);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    CHECK(!s.blocks && s.end == STORE_TABLE && s.nsealed == 0);
    end();
}

/* What a record may say of its bytes, to the last one. */
static void what_a_record_names_lies_in_the_file(void) {
    enum { BYTES = 3 << 20 };
    uint64_t offset, ends;
    uint8_t *at;
    begin();
    CHECK_EQ(store_alloc(&s, BYTES, &offset, &at, &err), 0);
    CHECK_EQ(offset, STORE_TABLE);
    ends = offset + BYTES;
    const struct {
        uint32_t kind;
        uint64_t offset, length;
        int rc;
    } rows[] = {
        {STORE_MR, offset, BYTES, 0},
        {STORE_DM, ends - 1, 1, 0},
        {STORE_MR, offset, BYTES + 1, -EINVAL},
        {STORE_DM, ends, 1, -EINVAL},
        {STORE_MR, ends + 1, 1, -EINVAL},
        {STORE_MR, offset - 1, 1, -EINVAL},
        {STORE_MR, offset, 0, -EINVAL},
        {STORE_MR, offset, UINT64_MAX, -EINVAL},
        {STORE_ORDINARY, 1ull << 47, 1ull << 47, 0},
        {STORE_ORDINARY, (1ull << 47) + 1, 1, -EINVAL},
        {STORE_ORDINARY, 0, (1ull << 47) + 1, -EINVAL},
        {STORE_ORDINARY, 0, 0, -EINVAL},
        {STORE_SEALED, INT32_MAX, 1, 0},
        {STORE_SEALED, (uint64_t)INT32_MAX + 1, 1, -EINVAL},
        {STORE_SEALED, 0, 0, -EINVAL},
        {STORE_PD, UINT64_MAX, 0, 0},
        {STORE_QP, UINT64_MAX, UINT64_MAX, 0},
    };
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct store_record found, what = {.kind = rows[i].kind, .handle = i, .key = i + 100};
        const uint64_t *is;
        check_note("row %u", i);
        what.offset = rows[i].offset;
        what.length = rows[i].length;
        store_publish(&s, &what);
        err.text[0] = 0;
        CHECK_EQ(find((int)rows[i].kind, i, &found, &is), rows[i].rc);
        CHECK_EQ(strstr(err.text, "cannot be") != NULL, rows[i].rc != 0);
        bool region = rows[i].kind == STORE_MR || rows[i].kind == STORE_ORDINARY || rows[i].kind == STORE_SEALED;
        CHECK_EQ(peer_find_key(&peer, i + 100, &found, &is), region ? rows[i].rc : -ENOENT);
    }
    give_back(offset, BYTES, at);
    end();
}

/* The kernel writes there for us, or says that it may not. */
static bool may_be_written(uint8_t *at) {
    uint8_t byte = 1;
    struct iovec here = {&byte, 1}, there = {at, 1};
    return process_vm_writev(getpid(), &here, 1, &there, 1, 0) == 1;
}

static void a_piece_is_mapped_to_write_only_if_that_is_asked_for(void) {
    struct store_record record = {.kind = STORE_MR, .length = 20};
    uint8_t *here, *far;
    begin();
    CHECK_EQ(store_alloc(&s, 5000, &record.offset, &here, &err), 0);
    int before = mappings();
    for (int writable = 0; writable < 2; writable++) {
        record.offset += 100; /* not where a page begins */
        CHECK_EQ(peer_map(&peer, &record, writable, &far, &err), 0);
        here[100 + 100 * writable] = 77;
        CHECK_EQ(*far, 77);
        CHECK_EQ(may_be_written(far), writable);
        CHECK_EQ(mappings(), before + 1);
        peer_unmap(&record, far);
        CHECK_EQ(mappings(), before);
    }
    record.length = 1ull << 47;
    CHECK_EQ(peer_map(&peer, &record, false, &far, &err), -ENOMEM);
    CHECK(strstr(err.text, "cannot be mapped"));
    end();
}

static void a_head_of_another_version_or_none_is_refused(void) {
    struct peer other;
    begin();
    struct store_head *head = (struct store_head *)(void *)s.table, was = *head;
    int before = check_descriptors();
    CHECK_EQ(peer.head.used, 1);
    CHECK(peer.fd > 2); /* also if one of the standard three is closed */
    head->version++;
    CHECK_EQ(peer_open(&other, s.fd, &err), -EINVAL);
    *head = was;
    head->magic ^= 1;
    CHECK_EQ(peer_open(&other, s.fd, &err), -EINVAL);
    CHECK(other.fd == -1 && !other.table);
    CHECK_EQ(check_descriptors(), before);
    *head = was;
    head->used = UINT32_MAX;
    CHECK_EQ(peer_open(&other, s.fd, &err), 0);
    CHECK_EQ(other.head.used, STORE_RECORDS);
    peer_close(&other);
    CHECK_EQ(check_descriptors(), before);
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
    CHECK_EQ(store_open(&s, "a name that is longer than any", RNIC_TRANSPORT_IB, 1, &err), 0);
    CHECK_EQ(ftruncate(s.fd, 4096), -1);
    CHECK_EQ(peer_open(&none, s.fd, &err), 0);
    CHECK_EQ(strlen(none.head.netdev), 15);
    peer_close(&none);
    store_close(&s);
}

/* ---------------------------------------------------------------- files of their own */

static int map(int fd, uint64_t length, bool writable, uint8_t **addr) {
    struct stat st = {0};
    (void)fstat(fd, &st);
    const struct store_record record = {
        .kind = STORE_SEALED, .offset = (uint64_t)fd, .length = length, .inode = st.st_ino};
    return peer_map(&peer, &record, writable, addr, &err);
}

static void what_others_may_only_read_cannot_be_mapped_to_write(void) {
    const struct store_record record = {.kind = STORE_SEALED, .length = 5000};
    uint8_t *here, *far;
    int fd;
    begin();
    peer.pid = getpid();
    CHECK_EQ(store_alloc_sealed(&s, 5000, &fd, &inode, &here), 0);
    CHECK_EQ(map(fd, 5000, true, &far), -EACCES);
    CHECK_EQ(map(fd, 5000, false, &far), 0);
    here[4999] = 9;
    CHECK_EQ(far[4999], 9);
    int kept = copy_of_descriptor_0(); /* a program that has closed what it reads from */
    uint8_t *again;
    close(0);
    CHECK_EQ(map(fd, 5000, false, &again), 0);
    CHECK_EQ(again[4999], 9);
    CHECK(fcntl(0, F_GETFD) < 0);
    peer_unmap(&record, again);
    CHECK_EQ(dup2(kept, 0), 0);
    close(kept);
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
    int kept = copy_of_descriptor_0();
    CHECK_EQ(dup2(pipes[0], 0), 0);
    const int rows[] = {0, pipes[0], loose, other, s.fd, 1 << 20, -1, INT32_MAX};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        CHECK_EQ(map(rows[i], 4096, false, &far), -EACCES);
        CHECK(fcntl(0, F_GETFD) >= 0); /* nothing was opened, so nothing is closed */
    }
    CHECK_EQ(store_alloc_sealed(&s, 4096, &fd, &inode, &here), 0);
    CHECK_EQ(map(fd, 4097, false, &far), -EACCES);
    struct store_record wrong = {.kind = STORE_SEALED, .offset = (uint64_t)fd, .length = 4096, .inode = inode};
    CHECK_EQ(peer_map(&peer, &wrong, false, &far, &err), 0);
    peer_unmap(&wrong, far);
    wrong.inode++; /* another file of the same kind, at the same number of a process */
    CHECK_EQ(peer_map(&peer, &wrong, false, &far, &err), -EACCES);
    peer.pid = 1; /* the first process of a container is one as any other */
    (void)map(INT32_MAX, 4096, false, &far);
    CHECK(!strcmp(looked_for, "/proc/1/fd/2147483647"));
    CHECK_EQ(dup2(fd, 0), 0); /* one that could be mapped */
    peer.pid = 0;             /* of another pid namespace */
    CHECK_EQ(map(fd, 4096, false, &far), -EACCES);
    CHECK_EQ(dup2(kept, 0), 0);
    close(kept);
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
    int none = check_descriptors();
    for (int i = 0; i < 3; i++)
        CHECK_EQ(store_alloc_sealed(&s, 1, &fds[i], &inode, &at[i]), 0);
    store_free_sealed(&s, fds[1], 1, at[1]); /* which is not in its list any more */
    CHECK_EQ(check_descriptors(), none + 2);
    pid_t child = fork();
    if (child == 0) {
        store_abandon(&s);
        _exit(none + 2 - check_descriptors());
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 3);
    for (int i = 0; i < 3; i += 2)
        store_free_sealed(&s, fds[i], 1, at[i]);
    CHECK_EQ(check_descriptors(), none);
    end();
}

static void there_are_so_many_and_no_more(void) {
    static uint8_t *at[STORE_SEALED_MAX];
    int fds[STORE_SEALED_MAX], one;
    uint8_t *more;
    begin();
    for (int i = 0; i < STORE_SEALED_MAX; i++)
        CHECK_EQ(store_alloc_sealed(&s, 1, &fds[i], &inode, &at[i]), 0);
    CHECK_EQ(store_alloc_sealed(&s, 1, &one, &inode, &more), -ENOSPC);
    for (int i = 0; i < STORE_SEALED_MAX; i += 2)
        store_free_sealed(&s, fds[i], 1, at[i]);
    CHECK_EQ(store_alloc_sealed(&s, 1, &one, &inode, &more), 0);
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

/* Of blocks that are used up and empty nothing stays. */
static void what_comes_and_goes_takes_one_block(void) {
    uint64_t offset;
    uint8_t *at;
    begin();
    int before = mappings();
    for (int i = 0; i < 5000; i++) {
        CHECK_EQ(store_alloc(&s, 4096, &offset, &at, NULL), 0);
        struct store_range range = store_free(&s, offset, 4096, at);
        store_discard(&s, &range);
    }
    CHECK_EQ(mappings(), before + 1);
    end();
}

int main(void) {
    RUN(what_is_published_is_found);
    RUN(many_short_ones_share_a_mapping);
    RUN(a_mapping_is_filled_to_its_last_byte);
    RUN(a_full_table_leaves_objects_to_their_process);
    RUN(freed_memory_is_never_given_again);
    RUN(no_two_files_have_a_serial_number_in_common);
    RUN(the_pages_of_what_is_freed_go_back_to_the_system);
    RUN(what_lives_when_the_store_closes_goes_with_it);
    RUN(each_piece_has_whole_pages_of_its_own);
    RUN(bytes_of_the_program_are_found_in_the_file);
    RUN(without_a_descriptor_nothing_is_half_made);
    RUN(descriptor_0_is_one_as_any_other);
    RUN(a_copy_of_the_descriptor_is_none_of_the_first_three);
    RUN(without_memory_nothing_is_half_made_either);
    RUN(without_seals_or_room_neither);
    RUN(without_long_files_neither);
    RUN(what_a_record_names_lies_in_the_file);
    RUN(a_piece_is_mapped_to_write_only_if_that_is_asked_for);
    RUN(a_head_of_another_version_or_none_is_refused);
    RUN(a_table_that_lies_gives_nothing_that_cannot_be_touched);
    RUN(only_a_sealed_file_with_a_table_is_believed);
    RUN(what_others_may_only_read_cannot_be_mapped_to_write);
    RUN(a_descriptor_that_is_something_else_is_not_mapped);
    RUN(a_forked_child_lets_go_all_descriptors);
    RUN(there_are_so_many_and_no_more);
    RUN(what_comes_and_goes_takes_one_block);
    return check_done();
}
