/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that is kept from being swapped: what the kernel holds is what some region still asks for.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "mem/lock.h"

#define PAGES 8

/* AddressSanitizer's own do nothing. */
static int refuses; /* errno, 0: as the kernel says */
int mlock(const void *addr, size_t n) {
    errno = refuses;
    return refuses ? -1 : (int)syscall(SYS_mlock, addr, n);
}
int munlock(const void *addr, size_t n) { return (int)syscall(SYS_munlock, addr, n); }

static uint8_t *memory;
static uint64_t page;
static struct rnic_err err;
static int before; /* pages that were locked before the test */

static int locked(void) {
    char text[256];
    int kib = -1;
    FILE *f = fopen("/proc/self/status", "re");
    while (fgets(text, sizeof text, f))
        if (sscanf(text, "VmLck: %d", &kib) == 1)
            break;
    fclose(f);
    CHECK(kib >= 0);
    return (int)((uint64_t)kib * 1024 / page) - before;
}

static void begin(void) {
    page = (uint64_t)sysconf(_SC_PAGESIZE);
    memory = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    before = 0;
    before = locked();
}

static void end(void) {
    CHECK_EQ(locked(), 0);
    munmap(memory, PAGES * page);
}

static void take(struct lock *lock, uint64_t from, uint64_t to) {
    CHECK_EQ(lock_memory(lock, memory + from, to - from, &err), 0);
}

static void whole_pages_are_locked(void) {
    struct lock lock;
    static const struct {
        int page, more, to, and, locked;
    } rows[] = {{0, 0, 1, 0, 1}, {0, 0, 1, 1, 2}, {1, 5, 1, 6, 1}, {1, -1, 1, 1, 2}, {2, 0, 5, 0, 3}, {2, 1, 5, 0, 3}};
    begin();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        take(&lock, (uint64_t)rows[i].page * page + (uint64_t)rows[i].more,
             (uint64_t)rows[i].to * page + (uint64_t)rows[i].and);
        CHECK_EQ(locked(), rows[i].locked);
        CHECK(lock.from % page == 0 && lock.to % page == 0);
        CHECK_EQ(lock.to - lock.from, (uint64_t)rows[i].locked * page);
        unlock_memory(&lock);
        CHECK_EQ(locked(), 0);
        unlock_memory(&lock); /* of nothing */
    }
    end();
}

/* Each way in which two can lie, and each order of their ends. */
static void a_page_stays_locked_while_one_asks_for_it(void) {
    struct lock first, second;
    begin();
    for (uint64_t from = 0; from < PAGES; from++)
        for (uint64_t to = from + 1; to <= PAGES; to++)
            for (int turn = 0; turn < 2; turn++) {
                check_note("2 to 5 and %d to %d, turn %d", (int)from, (int)to, turn);
                take(&first, 2 * page, 5 * page);
                take(&second, from * page, to * page);
                unlock_memory(turn ? &first : &second);
                CHECK_EQ(locked(), turn ? (int)(to - from) : 3);
                unlock_memory(turn ? &second : &first);
                CHECK_EQ(locked(), 0);
            }
    end();
}

static void what_lies_between_two_is_let_go(void) {
    struct lock all, left, right, twice;
    begin();
    take(&left, page, 3 * page);
    take(&all, 0, PAGES * page);
    take(&right, 5 * page, 6 * page);
    take(&twice, 2 * page, 4 * page);
    unlock_memory(&all);
    CHECK_EQ(locked(), 4); /* 1 to 4, 5 to 6 */
    unlock_memory(&left);
    CHECK_EQ(locked(), 3);
    unlock_memory(&twice);
    CHECK_EQ(locked(), 1);
    unlock_memory(&right);
    end();
}

/* A range that has a hole is refused, and of its first part nothing stays. */
static void what_cannot_be_locked_is_not_locked_in_part(void) {
    struct lock lock, other;
    struct rlimit limit;
    char words[160];
    begin();
    munmap(memory + 4 * page, page);
    take(&other, 0, page);
    CHECK_EQ(lock_memory(&lock, memory, 6 * page, &err), -ENOMEM);
    CHECK(strstr(err.text, "ulimit -l"));
    CHECK_EQ(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    snprintf(words, sizeof words, "%llu bytes cannot be locked, this process may lock %llu in all",
             (unsigned long long)(6 * page), (unsigned long long)limit.rlim_cur);
    CHECK(strstr(err.text, words));
    CHECK(lock.from == lock.to);
    CHECK_EQ(locked(), 1);
    unlock_memory(&lock);
    unlock_memory(&other);
    end();
}

static void what_the_limit_forbids_is_told_with_its_cure(void) {
    static const struct {
        int error, rc;
        const char *text;
    } rows[] = {{ENOMEM, -ENOMEM, "ulimit -l"},
                {EPERM, -ENOMEM, "ulimit -l"},
                {EAGAIN, -ENOMEM, "ulimit -l"},
                {EINVAL, -EINVAL, "the memory cannot be locked: Invalid argument"}};
    struct lock lock;
    begin();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        refuses = rows[i].error;
        CHECK_EQ(lock_memory(&lock, memory, page, &err), rows[i].rc);
        refuses = 0;
        CHECK(strstr(err.text, rows[i].text));
        CHECK_EQ(locked(), 0);
    }
    end();
}

static void a_forked_child_has_no_locks(void) {
    struct lock lock, childs;
    int status = -1;
    begin();
    take(&lock, 0, 4 * page);
    pid_t child = fork();
    if (child == 0) {
        before = 0;
        lock_forget_all();
        take(&childs, 0, 2 * page);
        int one = locked();
        unlock_memory(&childs);
        unlock_memory(&lock);
        _exit(one == 2 && locked() == 0 ? 0 : 1);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK_EQ(locked(), 4);
    unlock_memory(&lock);
    end();
}

int main(void) {
    RUN(whole_pages_are_locked);
    RUN(a_page_stays_locked_while_one_asks_for_it);
    RUN(what_lies_between_two_is_let_go);
    RUN(what_cannot_be_locked_is_not_locked_in_part);
    RUN(what_the_limit_forbids_is_told_with_its_cure);
    RUN(a_forked_child_has_no_locks);
    return check_done();
}
