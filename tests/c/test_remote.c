/* SPDX-License-Identifier: Apache-2.0
 *
 * Regions of another process as one-sided operations reach them: here both ends are this process.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* unshare */
#endif
#include "mem/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/ordered.h"
#include "check.h"
#include "scarce.h"

#define READS RNIC_ACCESS_REMOTE_READ
#define WRITES RNIC_ACCESS_REMOTE_WRITE
#define ATOMICS RNIC_ACCESS_REMOTE_ATOMIC
#define ALL (READS | WRITES | ATOMICS)

enum { THEIRS = 7, OURS = 8, DOMAIN = 3, LENGTH = 5000, KEY = 0x1200, IOVA = 1000 };

static struct store s; /* the owner's file */
static struct remote r;
static struct remote_qp qp;
static _Atomic uint32_t mark;
static int line[2]; /* the owner's end is line[1] */
static uint64_t offset;
static uint8_t *memory; /* LENGTH bytes in the file */
static struct rnic_err err;
static uint64_t inode; /* of the last file that is a region's own */

/* The kernel's answer to a copy, if one is given: -1 and errno. */
static int refuses, tried;
static int goes = -1; /* the record that its owner withdraws after the copy */

static ssize_t transfer(long call, pid_t pid, const struct iovec *here, unsigned long n, const struct iovec *there,
                        unsigned long m) {
    uint64_t length = there[0].iov_len + (m > 1 ? there[1].iov_len : 0);
    tried++;
    CHECK_EQ(m, ordered_words(there[0].iov_base, length) ? 2 : 1); /* the last word is apart, if there is more */
    errno = refuses ? refuses : EPERM;                             /* of something else, before */
    ssize_t moved = refuses ? -1 : syscall(call, pid, here, n, there, m, 0);
    store_withdraw(&s, goes);
    goes = -1;
    return moved;
}

ssize_t process_vm_readv(pid_t pid, const struct iovec *here, unsigned long n, const struct iovec *there,
                         unsigned long m, unsigned long flags) {
    CHECK_EQ(flags, 0);
    return transfer(SYS_process_vm_readv, pid, here, n, there, m);
}

ssize_t process_vm_writev(pid_t pid, const struct iovec *here, unsigned long n, const struct iovec *there,
                          unsigned long m, unsigned long flags) {
    CHECK_EQ(flags, 0);
    return transfer(SYS_process_vm_writev, pid, here, n, there, m);
}

static int publish_qp(uint32_t ours, uint32_t access) {
    return store_publish(
        &s, &(struct store_record){.kind = STORE_QP, .handle = THEIRS, .key = ours, .pd = DOMAIN, .access = access});
}

static int publish(int kind, uint32_t key, uint32_t access, uint64_t at) {
    return store_publish(&s, &(struct store_record){.kind = (uint32_t)kind,
                                                    .key = key,
                                                    .pd = DOMAIN,
                                                    .access = access,
                                                    .iova = IOVA,
                                                    .inode = inode,
                                                    .offset = at,
                                                    .length = LENGTH});
}

static void begin(pid_t pid) {
    atomic_store(&mark, 0);
    qp = (struct remote_qp){0};
    CHECK_EQ(store_open(&s, "lo", RNIC_TRANSPORT_IB, 42, &err), 0);
    CHECK_EQ(store_alloc(&s, LENGTH, &offset, &memory, &err), 0);
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line), 0);
    CHECK_EQ(remote_open(&r, s.fd, pid, line[0], &mark), 0);
    CHECK_EQ(r.mask & (r.mask + 1), 0); /* keys are spread over all buckets */
}

static void end(void) {
    remote_close(&r);
    CHECK_EQ(r.count, 0); /* nothing is left of any key */
    close(line[0]);
    close(line[1]);
    store_close(&s);
}

/* The offset in the region where an operation would be, or -1; outside of it nothing is marked. */
static int enters(uint32_t key, uint64_t addr, uint64_t length, uint32_t access) {
    uint8_t *at = remote_enter(&r, &qp, THEIRS, OURS, key, addr, length, access);
    CHECK_EQ(mark % 2, at != NULL);
    if (!at)
        return -1;
    remote_leave(&r);
    CHECK_EQ(mark % 2, 0);
    return (int)(addr - IOVA);
}

static bool looks(uint32_t key, uint64_t addr, uint64_t length) {
    const uint8_t *at = remote_look(&r, key, addr, length);
    CHECK_EQ(mark % 2, at != NULL);
    if (at)
        remote_leave(&r);
    return at != NULL;
}

static bool copies(uint32_t key, uint64_t addr, void *ours, uint64_t n, uint32_t access) {
    struct iovec pieces[] = {{ours, n / 3}, {(char *)ours + n / 3, n - n / 3}};
    bool done = remote_copy(&r, &qp, THEIRS, OURS, key, addr, n, access, pieces, 2);
    CHECK_EQ(mark % 2, 0);
    return done;
}

/* ---------------------------------------------------------------- what is found */

static void the_bytes_are_where_the_address_says(void) {
    begin(getpid());
    publish_qp(OURS, ALL);
    publish(STORE_MR, KEY, ALL, offset);
    memory[77] = 5;
    CHECK(remote_maps(&r, KEY));
    CHECK(!remote_maps(&r, KEY + 1));
    uint8_t *at = remote_enter(&r, &qp, THEIRS, OURS, KEY, IOVA + 77, 2, ALL);
    CHECK(at && at[0] == 5);
    at[1] = 6;
    CHECK_EQ(mark, 1);
    remote_leave(&r);
    CHECK_EQ(mark, 2);
    CHECK_EQ(memory[78], 6);
    const uint8_t *seen = remote_look(&r, KEY, IOVA + 78, 1);
    CHECK(seen && seen[0] == 6);
    CHECK_EQ(mark, 3);
    remote_leave(&r);
    end();
}

static void no_byte_beside_the_region_is_reached(void) {
    static const struct {
        uint64_t addr, length;
        bool found;
    } rows[] = {
        {IOVA, LENGTH, true},
        {IOVA + LENGTH - 1, 1, true},
        {IOVA + LENGTH, 0, true},
        {IOVA, 0, true},
        {IOVA - 1, 1, false},
        {IOVA - 1, 2, false},
        {IOVA, LENGTH + 1, false},
        {IOVA + 1, LENGTH, false},
        {IOVA + LENGTH, 1, false},
        {IOVA + LENGTH + 1, 0, false},
        {0, LENGTH, false},
        {UINT64_MAX, 1, false},
        {UINT64_MAX, 2 * IOVA, false},
        {IOVA, UINT64_MAX, false},
        {IOVA + 1, UINT64_MAX, false},
    };
    begin(getpid());
    publish_qp(OURS, ALL);
    publish(STORE_MR, KEY, ALL, offset);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        CHECK_EQ(enters(KEY, rows[i].addr, rows[i].length, READS) >= 0, rows[i].found);
        CHECK_EQ(looks(KEY, rows[i].addr, rows[i].length), rows[i].found);
    }
    end();
}

static void both_the_region_and_the_queue_pair_must_allow_it(void) {
    begin(getpid());
    int q = publish_qp(OURS, READS | WRITES | STORE_ANSWERS);
    publish(STORE_MR, KEY, READS | ATOMICS, offset);
    CHECK_EQ(enters(KEY, IOVA, 1, READS), 0);
    CHECK_EQ(enters(KEY, IOVA, 1, READS | STORE_ANSWERS), 0);
    CHECK_EQ(enters(KEY, IOVA, 1, WRITES), -1);
    CHECK_EQ(enters(KEY, IOVA, 1, READS | WRITES), -1);
    CHECK_EQ(enters(KEY, IOVA, 1, ATOMICS), -1);
    store_withdraw(&s, q);
    CHECK_EQ(enters(KEY, IOVA, 1, READS), -1);
    q = publish_qp(OURS, ALL);
    CHECK_EQ(enters(KEY, IOVA, 1, ATOMICS), 0);
    CHECK_EQ(enters(KEY, IOVA, 1, READS | STORE_ANSWERS), -1);
    store_withdraw(&s, q);
    publish_qp(OURS + 1, ALL); /* connected with another one */
    CHECK_EQ(enters(KEY, IOVA, 1, READS), -1);
    CHECK(looks(KEY, IOVA, 1)); /* which its owner asked for */
    end();
}

static void a_region_of_another_domain_is_none(void) {
    begin(getpid());
    publish_qp(OURS, ALL);
    store_publish(&s,
                  &(struct store_record){
                      .kind = STORE_MR, .key = KEY, .pd = DOMAIN + 1, .access = ALL, .offset = offset, .length = 9});
    CHECK_EQ(enters(KEY, 0, 1, READS), -1);
    end();
}

/* ---------------------------------------------------------------- what changes */

static int mappings(void) {
    char text[512];
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "re");
    while (fgets(text, sizeof text, f))
        n += strstr(text, "/memfd:rnic ") != NULL;
    fclose(f);
    return n;
}

static void what_is_withdrawn_is_gone_at_once_and_may_come_back(void) {
    begin(getpid());
    publish_qp(OURS, ALL);
    int before = mappings();
    for (int round = 0; round < 3; round++) {
        check_note("round %d", round);
        CHECK_EQ(enters(KEY, IOVA, 1, READS), -1);
        int record = publish(STORE_MR, KEY, ALL, offset);
        CHECK_EQ(enters(KEY, IOVA, 1, READS), 0);
        CHECK_EQ(enters(KEY, IOVA, 1, WRITES), 0);
        CHECK_EQ(mappings(), before + 1);
        store_withdraw(&s, record);
        CHECK_EQ(enters(KEY, IOVA, 1, READS), -1);
        CHECK(!looks(KEY, IOVA, 1));
        CHECK(!remote_maps(&r, KEY));
    }
    publish(STORE_PD, 1, 0, 0); /* the table has changed: what is not there is looked for again */
    CHECK(!remote_maps(&r, KEY));
    CHECK_EQ(mappings(), before);
    end();
}

/* The mark lies in the record here, so that who sets it takes the object away: between the two times that it is looked at. */
static void what_goes_while_one_enters_is_left_again(void) {
    for (int of_qp = 0; of_qp < 2; of_qp++) {
        begin(getpid());
        int q = publish_qp(OURS, ALL), record = publish(STORE_MR, KEY, ALL, offset);
        uint64_t *serial = &s.table[of_qp ? q : record].serial, was = *serial;
        r.mark = (_Atomic uint32_t *)(void *)serial;
        CHECK(!remote_enter(&r, &qp, THEIRS, OURS, KEY, IOVA, 1, READS));
        CHECK_EQ(*serial, was + 2);
        if (!of_qp) {
            *serial = was;
            CHECK(!remote_look(&r, KEY, IOVA, 1));
            CHECK_EQ(*serial, was + 2);
        }
        end();
    }
}

/* The other process says nothing more often than its table changes, so neither do we look. */
static void what_is_not_there_is_not_looked_for_before_the_table_changes(void) {
    begin(getpid());
    int q = publish_qp(OURS + 1, ALL), record = publish(STORE_MR, KEY + 1, ALL, offset);
    CHECK(!remote_maps(&r, KEY));
    CHECK_EQ(enters(KEY + 1, IOVA, 1, READS), -1);
    s.table[record].key = KEY;
    s.table[q].key = OURS;
    CHECK(!remote_maps(&r, KEY));
    CHECK_EQ(enters(KEY + 1, IOVA, 1, READS), -1);
    publish(STORE_PD, 1, 0, 0);
    CHECK_EQ(enters(KEY, IOVA, 1, READS), 0);
    end();
}

/* What could not be mapped is nothing that is known: another region of the key is looked for. */
static void a_region_that_cannot_be_mapped_does_not_hide_the_next(void) {
    begin(getpid());
    publish_qp(OURS, ALL);
    int free_one = publish(STORE_PD, 1, 0, 0), bad = publish(STORE_SEALED, KEY, READS, 1 << 20);
    CHECK(!remote_maps(&r, KEY));
    store_withdraw(&s, bad);
    store_withdraw(&s, free_one);
    CHECK_EQ(publish(STORE_MR, KEY, READS, offset), free_one);
    CHECK_EQ(enters(KEY, IOVA, 1, READS), 0);
    end();
}

static void each_of_many_regions_is_mapped_once(void) {
    enum { MANY = 1500 };
    static int records[MANY];
    begin(getpid());
    publish_qp(OURS, ALL);
    int before = mappings();
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < MANY; i++)
            records[i] = publish(STORE_MR, (i + 1) << 8 | round, i % 2 ? ALL : READS, offset);
        for (uint32_t again = 0; again < 2; again++)
            for (uint32_t i = 0; i < MANY; i++) {
                check_note("region %u", i);
                CHECK_EQ(enters((i + 1) << 8 | round, IOVA, LENGTH, WRITES) >= 0, i % 2);
            }
        CHECK(mappings() <= before + MANY + MANY / 2); /* some that are gone may wait until there are as many again */
        CHECK(mappings() >= before + MANY);
        CHECK(r.count <= r.mask + 1); /* a bucket has few */
        for (uint32_t i = 0; i < MANY; i++)
            store_withdraw(&s, records[i]);
    }
    remote_close(&r);
    CHECK_EQ(mappings(), before - 1); /* the table's */
    end();
}

/* It says that one record is region after region, so that this costs it nothing. */
static void a_process_that_lies_has_so_many_regions_and_no_more(void) {
    uint8_t byte = 0;
    begin(getpid());
    publish_qp(OURS, ALL);
    int record = publish(STORE_ORDINARY, 0, ALL, (uintptr_t)memory);
    for (uint32_t i = 0; i <= REMOTE_REGIONS; i++) {
        check_note("region %u", i);
        s.table[record].key = (i + 1) << 8;
        CHECK_EQ(copies((i + 1) << 8, IOVA, &byte, 1, READS), i < REMOTE_REGIONS);
    }
    CHECK_EQ(r.mask, REMOTE_REGIONS - 1);
    store_withdraw(&s, record);
    publish(STORE_ORDINARY, KEY << 8, ALL, (uintptr_t)memory);
    CHECK(copies(KEY << 8, IOVA, &byte, 1, READS));
    end();
}

/* ---------------------------------------------------------------- memory that is not in the file */

static void ordinary_memory_is_copied_by_the_kernel(void) {
    static uint8_t theirs[LENGTH], here[LENGTH];
    begin(getpid());
    publish_qp(OURS, ALL);
    publish(STORE_ORDINARY, KEY, READS | WRITES, (uintptr_t)theirs);
    publish(STORE_MR, KEY + 1, ALL, offset);
    for (uint32_t n = 0; n < 40; n++) {
        check_note("%u bytes", n);
        for (uint32_t i = 0; i < LENGTH; i++)
            theirs[i] = (uint8_t)(i * 7);
        memset(here, 1, sizeof here);
        CHECK(copies(KEY, IOVA + 100 + n, here, n, READS));
        CHECK(!memcmp(here, theirs + 100 + n, n) && here[n] == 1);
        memset(here, 255, sizeof here);
        CHECK(copies(KEY, IOVA + 3, here, n, WRITES));
        for (uint32_t i = 0; i < 100; i++)
            CHECK_EQ(theirs[i], i >= 3 && i < 3 + n ? 255 : (uint8_t)(i * 7));
    }
    CHECK(!copies(KEY, IOVA + 1, here, LENGTH, READS));
    CHECK(!copies(KEY, IOVA, here, 8, ATOMICS));
    CHECK(!copies(KEY + 1, IOVA, here, 8, READS)); /* it lies in the file */
    CHECK_EQ(enters(KEY, IOVA, 1, READS), -1);
    CHECK(!remote_maps(&r, KEY));
    CHECK(!looks(KEY, IOVA, 1));
    end();
}

static void a_missing_page_fails_one_copy_and_no_other(void) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint8_t *theirs = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static uint8_t here[LENGTH];
    begin(getpid());
    publish_qp(OURS, ALL);
    publish(STORE_ORDINARY, KEY, ALL, (uintptr_t)theirs + page - 2000);
    munmap(theirs + page, page);
    CHECK(!copies(KEY, IOVA + 1000, here, 1001, READS));
    CHECK(!copies(KEY, IOVA + 2000, here, 1, WRITES));
    theirs[page - 1] = 3;
    CHECK(copies(KEY, IOVA + 1000, here, 1000, READS));
    CHECK_EQ(here[999], 3);
    munmap(theirs, page);
    munmap(theirs + 2 * page, 2 * page);
    end();
}

/* Once the kernel has said that we may not, it is not asked again; what fails otherwise may succeed the next time. */
/* Its owner does not wait for a reader who has been stopped: the bytes may be others by then. */
static void what_goes_while_it_is_read_was_not_read(void) {
    static uint8_t theirs[LENGTH], ours[LENGTH];
    begin(getpid());
    publish_qp(OURS, ALL);
    goes = publish(STORE_ORDINARY, KEY, READS, (uintptr_t)theirs);
    CHECK(!copies(KEY, IOVA, ours, 100, READS));
    CHECK(!copies(KEY, IOVA, ours, 100, READS));
    publish(STORE_ORDINARY, KEY, READS, (uintptr_t)theirs);
    CHECK(copies(KEY, IOVA, ours, 100, READS));
    end();
}

static void a_process_that_may_not_be_touched_is_asked_about_once(void) {
    static const struct {
        int error;
        bool for_good;
    } rows[] = {{EPERM, true}, {ENOSYS, true}, {EFAULT, false}, {ESRCH, false}, {ENOMEM, false}};
    uint8_t byte = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int write = 0; write < 2; write++) {
            check_note("row %zu, write %d", i, write);
            begin(getpid());
            publish_qp(OURS, ALL);
            publish(STORE_ORDINARY, KEY, ALL, (uintptr_t)memory);
            tried = 0;
            refuses = rows[i].error;
            CHECK(!copies(KEY, IOVA, &byte, 1, write ? WRITES : READS));
            CHECK_EQ(tried, 1);
            refuses = 0;
            CHECK_EQ(copies(KEY, IOVA, &byte, 1, READS), !rows[i].for_good);
            CHECK_EQ(copies(KEY, IOVA, &byte, 1, READS), !rows[i].for_good);
            CHECK_EQ(tried, rows[i].for_good ? 1 : 3);
            end();
        }
}

static void a_process_of_no_known_number_is_not_touched(void) {
    uint8_t byte = 0;
    static const pid_t rows[] = {0, -1};
    begin(1);
    CHECK(!r.no_process && r.file.pid == 1);
    end();
    for (size_t i = 0; i < 2; i++) {
        begin(rows[i]);
        publish_qp(OURS, ALL);
        publish(STORE_ORDINARY, KEY, ALL, (uintptr_t)memory);
        publish(STORE_MR, KEY + 1, ALL, offset);
        tried = 0;
        CHECK(!copies(KEY, IOVA, &byte, 1, READS));
        CHECK_EQ(tried, 0);
        CHECK_EQ(enters(KEY + 1, IOVA, 1, READS), 0); /* the file is there */
        end();
    }
}

/* Its number may be another process' by now. */
static void a_process_that_has_hung_up_is_not_touched(void) {
    uint8_t byte = 0, *sealed;
    int fd;
    begin(getpid());
    publish_qp(OURS, ALL);
    CHECK_EQ(store_alloc_sealed(&s, LENGTH, &fd, &inode, &sealed), 0);
    publish(STORE_ORDINARY, KEY, ALL, (uintptr_t)memory);
    CHECK(copies(KEY, IOVA, &byte, 1, READS));
    close(line[1]);
    CHECK(!copies(KEY, IOVA, &byte, 1, READS));
    publish(STORE_SEALED, KEY + 1, READS, (uint64_t)fd);
    CHECK(!remote_maps(&r, KEY + 1));
    store_free_sealed(&s, fd, LENGTH, sealed);
    line[1] = -1;
    end();
}

static void a_sealed_file_can_be_read_alone(void) {
    uint8_t *sealed, byte = 0;
    int fd;
    begin(getpid());
    publish_qp(OURS, ALL);
    CHECK_EQ(store_alloc_sealed(&s, LENGTH, &fd, &inode, &sealed), 0);
    sealed[4] = 9;
    publish(STORE_SEALED, KEY, READS, (uint64_t)fd);
    uint8_t *at = remote_enter(&r, &qp, THEIRS, OURS, KEY, IOVA + 4, 1, READS);
    CHECK(at && *at == 9);
    remote_leave(&r);
    CHECK(looks(KEY, IOVA, LENGTH));
    CHECK_EQ(enters(KEY, IOVA, 1, WRITES), -1);
    CHECK(!copies(KEY, IOVA, &byte, 1, READS));
    static const uint32_t changing[] = {WRITES, ATOMICS}; /* a lie */
    for (uint32_t i = 0; i < 2; i++) {
        publish(STORE_SEALED, KEY + 1 + i, READS | changing[i], (uint64_t)fd);
        CHECK(!remote_maps(&r, KEY + 1 + i));
    }
    store_free_sealed(&s, fd, LENGTH, sealed);
    end();
}

/* ---------------------------------------------------------------- memory that its program has allocated in a file */

enum { HEAP_OFFSET = 8192 + 24, HEAP_LONG = 65536 };

static int make_heap(const char *name, int seals, uint8_t **at) {
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_EQ(ftruncate(fd, HEAP_LONG), 0);
    *at = mmap(NULL, HEAP_LONG, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static uint64_t inode_of(int fd) {
    struct stat st;
    return fstat(fd, &st) == 0 ? st.st_ino : 0;
}

static void publish_in_heap(uint32_t key, uint32_t access, const void *at, uint64_t file, uint32_t heap,
                            uint64_t heap_offset) {
    store_publish(&s, &(struct store_record){.kind = STORE_ORDINARY,
                                             .key = key,
                                             .pd = DOMAIN,
                                             .access = access,
                                             .iova = IOVA,
                                             .offset = (uintptr_t)at,
                                             .length = LENGTH,
                                             .heap = heap,
                                             .heap_offset = heap_offset,
                                             .inode = file});
}

static void memory_in_a_programs_heap_is_mapped(void) {
    uint8_t *heap;
    begin(getpid());
    publish_qp(OURS, ALL);
    int fd = make_heap("rnic-heap", F_SEAL_SHRINK, &heap), before = check_descriptors();
    publish_in_heap(KEY, ALL, heap + HEAP_OFFSET, inode_of(fd), (uint32_t)fd + 1, HEAP_OFFSET);
    publish_in_heap(KEY + 1, READS, heap, inode_of(fd), (uint32_t)fd + 1, 0);
    CHECK(remote_maps(&r, KEY) && remote_maps(&r, KEY + 1));
    uint8_t *at = remote_enter(&r, &qp, THEIRS, OURS, KEY, IOVA + 7, 1, WRITES);
    CHECK(at);
    *at = 77;
    remote_leave(&r);
    CHECK_EQ(heap[HEAP_OFFSET + 7], 77);
    CHECK_EQ(enters(KEY, IOVA + LENGTH, 1, READS), -1);
    CHECK_EQ(enters(KEY + 1, IOVA, 1, READS), 0);
    CHECK_EQ(enters(KEY + 1, IOVA, 1, WRITES), -1);
    CHECK_EQ(check_descriptors(), before);
    munmap(heap, HEAP_LONG);
    close(fd);
    end();
}

/* Where it cannot be mapped the kernel copies, as from other memory of the process. */
static void a_heap_that_is_none_is_ordinary_memory(void) {
    static const struct {
        const char *name;
        int seals;
        uint64_t offset;
        uint64_t other; /* of the inode */
    } rows[] = {
        {"another", F_SEAL_SHRINK, 0, 0}, /* its program has closed the descriptor, and this one has the number */
        {"rnic-heap", 0, 0, 0},           /* it could become shorter */
        {"rnic-heap", F_SEAL_SHRINK, HEAP_LONG - 10, 0},
        {"rnic-heap", F_SEAL_SHRINK, 1ull << 47, 0},
        {"rnic-heap", F_SEAL_SHRINK, 0, 1}}; /* the heap of another process */
    static uint8_t theirs[LENGTH];
    for (size_t i = 0; i <= sizeof rows / sizeof *rows; i++) {
        uint8_t *heap, byte = 0;
        bool closed = i == sizeof rows / sizeof *rows;
        check_note("row %zu", i);
        begin(getpid());
        publish_qp(OURS, ALL);
        theirs[0] = 5;
        int fd = make_heap(closed ? "rnic-heap" : rows[i].name, closed ? 0 : rows[i].seals, &heap);
        uint64_t file = inode_of(fd) + (closed ? 0 : rows[i].other);
        if (closed)
            close(fd);
        publish_in_heap(KEY, ALL, theirs, file, (uint32_t)fd + 1, closed ? 0 : rows[i].offset);
        CHECK(!remote_maps(&r, KEY));
        CHECK_EQ(enters(KEY, IOVA, 1, READS), -1);
        CHECK(copies(KEY, IOVA, &byte, 1, READS) && byte == 5);
        munmap(heap, HEAP_LONG);
        if (!closed)
            close(fd);
        end();
    }
}

/* In a pid namespace whose /proc is the outer one: 0 if no file is opened there; 2: such a namespace cannot be made. */
static int opens_none_in_a_namespace_of_its_own(void) {
    if (unshare(CLONE_NEWPID) && unshare(CLONE_NEWUSER | CLONE_NEWPID))
        return 2;
    pid_t inner = fork();
    int status = -1;
    if (inner == 0) {
        begin(getpid());
        int failed = r.file.pid != 0 || r.no_process;
        end();
        begin(0); /* a process that has no number here */
        failed |= r.file.pid != 0 || !r.no_process;
        end();
        _exit(failed);
    }
    return waitpid(inner, &status, 0) == inner && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void where_proc_is_another_namespaces_no_file_is_opened_there(void) {
    int status = -1;
    begin(getpid());
    CHECK_EQ(r.file.pid, getpid());
    end();
    pid_t child = fork();
    if (child == 0)
        _exit(opens_none_in_a_namespace_of_its_own());
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    if (WEXITSTATUS(status) != 2)
        CHECK_EQ(WEXITSTATUS(status), 0);
}

static void a_heap_of_a_process_that_has_hung_up_is_not_mapped(void) {
    uint8_t *heap;
    begin(getpid());
    publish_qp(OURS, ALL);
    int fd = make_heap("rnic-heap", F_SEAL_SHRINK, &heap);
    publish_in_heap(KEY, ALL, heap, inode_of(fd), (uint32_t)fd + 1, 0);
    close(line[1]);
    CHECK(!remote_maps(&r, KEY));
    munmap(heap, HEAP_LONG);
    close(fd);
    line[1] = -1;
    end();
}

/* ---------------------------------------------------------------- the end */

static void a_file_that_is_none_leaves_nothing_behind(void) {
    int before = check_descriptors(), pipes[2];
    CHECK_EQ(pipe(pipes), 0);
    CHECK_EQ(remote_open(&r, pipes[0], getpid(), -1, &mark), -EINVAL);
    CHECK(!r.bucket);
    CHECK_EQ(remote_open(&r, -1, getpid(), -1, &mark), -EBADF);
    CHECK(!r.bucket);
    remote_close(&r);
    close(pipes[0]);
    close(pipes[1]);
    CHECK_EQ(check_descriptors(), before);
}

static void without_memory_there_is_nothing_to_know(void) {
    struct remote none;
    begin(getpid());
    int before = check_descriptors();
    publish_qp(OURS, ALL);
    publish(STORE_MR, KEY, ALL, offset);
    without_memory = true;
    int rc = remote_open(&none, s.fd, getpid(), line[0], &mark);
    bool maps = remote_maps(&r, KEY), seen = looks(KEY, IOVA, 1);
    int where = enters(KEY, IOVA, 1, READS);
    without_memory = false;
    CHECK_EQ(rc, -ENOMEM);
    CHECK(none.file.fd == -1 && !none.bucket);
    CHECK(!maps && !seen && where == -1);
    CHECK_EQ(check_descriptors(), before);
    CHECK_EQ(r.count, 0);
    CHECK(remote_maps(&r, KEY));
    end();
}

static void a_forked_child_lets_go_its_descriptor_alone(void) {
    int status = -1;
    begin(getpid());
    publish_qp(OURS, ALL);
    publish(STORE_MR, KEY, ALL, offset);
    int before = check_descriptors();
    pid_t child = fork();
    if (child == 0) {
        remote_abandon(&r);
        _exit(before - check_descriptors());
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 1);
    CHECK_EQ(enters(KEY, IOVA, 1, READS), 0);
    remote_close(&r);
    CHECK_EQ(check_descriptors(), before - 1);
    end();
}

int main(void) {
    RUN(the_bytes_are_where_the_address_says);
    RUN(no_byte_beside_the_region_is_reached);
    RUN(both_the_region_and_the_queue_pair_must_allow_it);
    RUN(a_region_of_another_domain_is_none);
    RUN(what_is_withdrawn_is_gone_at_once_and_may_come_back);
    RUN(what_goes_while_one_enters_is_left_again);
    RUN(what_is_not_there_is_not_looked_for_before_the_table_changes);
    RUN(a_region_that_cannot_be_mapped_does_not_hide_the_next);
    RUN(each_of_many_regions_is_mapped_once);
    RUN(a_process_that_lies_has_so_many_regions_and_no_more);
    RUN(ordinary_memory_is_copied_by_the_kernel);
    RUN(a_missing_page_fails_one_copy_and_no_other);
    RUN(what_goes_while_it_is_read_was_not_read);
    RUN(a_process_that_may_not_be_touched_is_asked_about_once);
    RUN(a_process_of_no_known_number_is_not_touched);
    RUN(a_process_that_has_hung_up_is_not_touched);
    RUN(a_sealed_file_can_be_read_alone);
    RUN(memory_in_a_programs_heap_is_mapped);
    RUN(a_heap_that_is_none_is_ordinary_memory);
    RUN(a_heap_of_a_process_that_has_hung_up_is_not_mapped);
    RUN(where_proc_is_another_namespaces_no_file_is_opened_there);
    RUN(a_file_that_is_none_leaves_nothing_behind);
    RUN(without_memory_there_is_nothing_to_know);
    RUN(a_forked_child_lets_go_its_descriptor_alone);
    return check_done();
}
