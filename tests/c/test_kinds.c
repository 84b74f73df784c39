/* SPDX-License-Identifier: Apache-2.0
 *
 * How the bytes of a region are reached that are not simply at their address: what is asked of the kernel, in what order.
 */
#include <errno.h>
#include <linux/dma-buf.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "mem/mr.h"

#define READS DMA_BUF_SYNC_READ
#define WRITES DMA_BUF_SYNC_WRITE
#define STARTS DMA_BUF_SYNC_START
#define ENDS DMA_BUF_SYNC_END

enum { FILE_OF_IT = 77 };

/* ---------------------------------------------------------------- a kernel that takes notes */

static struct {
    int fd;
    uint64_t flags;
    uint8_t seen; /* the watched byte at the time */
} told[16];
static int asked;
static int answers[16]; /* errno, 0: it is done; what comes behind them is done */
static const uint8_t *watched;

int ioctl(int fd, unsigned long request, ...) {
    va_list ap;
    va_start(ap, request);
    const struct dma_buf_sync *sync = va_arg(ap, const struct dma_buf_sync *);
    va_end(ap);
    CHECK(request == DMA_BUF_IOCTL_SYNC && asked < 16);
    told[asked].fd = fd;
    told[asked].flags = sync->flags;
    told[asked].seen = watched ? *watched : 0;
    errno = answers[asked++];
    return errno ? -1 : 0;
}

static long less; /* bytes that a copy between processes leaves out, */
static long of;   /* if it is done by this call; 0: by either */
static size_t moved_in_all;
static size_t behind; /* bytes of the last copy that go by themselves, behind the others */

static ssize_t transfer(long call, pid_t pid, const struct iovec *here, unsigned long n, const struct iovec *there,
                        unsigned long m) {
    CHECK_EQ(n, 2);
    CHECK_EQ(m, 2);
    CHECK_EQ(here[1].iov_len, there[1].iov_len);
    behind = there[1].iov_len;
    ssize_t moved = syscall(call, pid, here, n, there, m, 0);
    moved_in_all += (size_t)moved;
    return moved - (of && of != call ? 0 : less);
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

static void begin(void) {
    memset(told, 0, sizeof told);
    memset(answers, 0, sizeof answers);
    watched = NULL;
    asked = 0;
    less = of = 0;
}

static uint8_t theirs[256], ours[256];

static struct mr region(enum mr_kind kind) {
    for (size_t i = 0; i < sizeof theirs; i++) {
        theirs[i] = (uint8_t)(i * 7 + 1);
        ours[i] = 255;
    }
    return (struct mr){.kind = kind, .shift = (uintptr_t)theirs - 1000, .fd = FILE_OF_IT};
}

/* ---------------------------------------------------------------- dma-buf */

static void want_told(int i, uint64_t flags, uint8_t seen) {
    check_note("call %d", i);
    CHECK_EQ(told[i].fd, FILE_OF_IT);
    CHECK_EQ(told[i].flags, flags);
    CHECK_EQ(told[i].seen, seen);
}

static void an_exporter_is_told_before_and_after_each_copy(void) {
    struct mr mr = region(MR_DMABUF);
    begin();
    watched = ours;
    CHECK(kind_load(&mr, 1000 + 16, ours, 24));
    CHECK(!memcmp(ours, theirs + 16, 24) && ours[24] == 255);
    CHECK_EQ(asked, 2);
    want_told(0, STARTS | READS, 255);
    want_told(1, ENDS | READS, theirs[16]);
    begin();
    memset(ours, 9, sizeof ours);
    watched = theirs + 3;
    CHECK(kind_store(&mr, 1000 + 3, ours, 5));
    CHECK(!memcmp(theirs + 3, ours, 5) && theirs[8] == 8 * 7 + 1);
    CHECK_EQ(asked, 2);
    want_told(0, STARTS | WRITES, 3 * 7 + 1);
    want_told(1, ENDS | WRITES, 9);
}

static void an_exporter_that_was_interrupted_is_told_again(void) {
    struct mr mr = region(MR_DMABUF);
    begin();
    answers[0] = EINTR;
    answers[1] = EAGAIN;
    answers[3] = EAGAIN;
    CHECK(kind_load(&mr, 1000, ours, 8));
    CHECK_EQ(asked, 5);
    for (int i = 0; i < 5; i++)
        want_told(i, (i < 3 ? STARTS : ENDS) | READS, 0);
    begin();
    answers[0] = answers[1] = EIO; /* it stays so */
    CHECK(kind_store(&mr, 1000, ours, 8));
    CHECK_EQ(asked, 2);
}

static void a_file_is_a_dmabuf_if_it_can_be_told(void) {
    begin();
    CHECK_EQ(kind_of_file(FILE_OF_IT), MR_DMABUF);
    CHECK_EQ(asked, 2);
    want_told(0, STARTS | READS, 0);
    want_told(1, ENDS | READS, 0);
    begin();
    answers[0] = ENOTTY;
    CHECK_EQ(kind_of_file(FILE_OF_IT), MR_GUARDED);
    CHECK_EQ(asked, 1);
}

/* ---------------------------------------------------------------- guarded */

static void a_guard_that_does_not_copy_both_ways_does_not_work(void) {
    static const long calls[] = {0, SYS_process_vm_readv, SYS_process_vm_writev};
    begin();
    moved_in_all = 0;
    CHECK(kind_guard_works());
    CHECK_EQ(moved_in_all, 2);
    for (int i = 0; i < 3; i++)
        for (less = 1; less <= 2; less++) { /* none of the one byte; refused */
            check_note("call %ld, less %ld", calls[i], less);
            of = calls[i];
            CHECK(!kind_guard_works());
        }
}

/* The last word of what is written goes by itself: who polls it finds the rest. */
static void guarded_bytes_are_copied_by_the_kernel_the_last_word_last(void) {
    for (uint32_t at = 0; at < 9; at++)
        for (uint32_t n = 0; n < 40; n++) {
            struct mr mr = region(MR_GUARDED);
            check_note("%u bytes at %u", n, at);
            begin();
            uint8_t *dst = ours + 8 - (uintptr_t)ours % 8 + at; /* aligned, and then not */
            CHECK(kind_load(&mr, 1000 + 50, dst, n));
            CHECK(!memcmp(dst, theirs + 50, n) && dst[n] == 255 && dst[-1] == 255);
            CHECK_EQ(behind, !n ? 0 : n < (at + n - 1) % 8 + 1 ? n : (at + n - 1) % 8 + 1);
            mr = region(MR_GUARDED);
            uint32_t to = (uint32_t)(8 - (uintptr_t)theirs % 8 + at);
            CHECK(kind_store(&mr, 1000 + to, ours + 3, n));
            for (uint32_t i = 0; i < sizeof theirs; i++)
                CHECK_EQ(theirs[i], i >= to && i < to + n ? 255 : (uint8_t)(i * 7 + 1));
            CHECK_EQ(behind, !n ? 0 : n < (at + n - 1) % 8 + 1 ? n : (at + n - 1) % 8 + 1);
            less = 1;
            CHECK(!kind_load(&mr, 1000, ours, n));
            CHECK(!kind_store(&mr, 1000, ours, n));
        }
}

/* ---------------------------------------------------------------- the others */

static void no_bytes_are_zeros(void) {
    struct mr mr = region(MR_NULL);
    begin();
    CHECK(kind_load(&mr, 1000, ours + 1, 5));
    for (int i = 0; i < 8; i++)
        CHECK_EQ(ours[i], i >= 1 && i < 6 ? 0 : 255);
    CHECK(kind_store(&mr, 1000, ours, 8));
    CHECK_EQ(theirs[0], 1);
    CHECK_EQ(asked, 0);
}

static void bytes_that_have_an_address_are_copied_from_and_to_it(void) {
    static const enum mr_kind kinds[] = {MR_PLAIN, MR_FOREIGN};
    for (size_t i = 0; i < 2; i++) {
        struct mr mr = region(kinds[i]);
        begin();
        CHECK(kind_load(&mr, 1000 + 9, ours, 30));
        CHECK(!memcmp(ours, theirs + 9, 30) && ours[30] == 255);
        CHECK(kind_store(&mr, 1000 + 100, ours + 30, 2));
        CHECK(theirs[99] == (uint8_t)(99 * 7 + 1) && theirs[100] == 255 && theirs[101] == 255);
        CHECK_EQ(theirs[102], (uint8_t)(102 * 7 + 1));
        CHECK_EQ(asked, 0);
    }
}

static void a_place_is_where_a_load_may_go(void) {
    uint64_t serial = 5;
    for (int kind = MR_PLAIN; kind <= MR_NULL; kind++) {
        struct mr mr = region((enum mr_kind)kind);
        uint8_t *ptr = ours;
        check_note("kind %d", kind);
        mr.is = &serial;
        mr.was = 5;
        CHECK(mr_place(&mr, 1003, &ptr));
        CHECK(ptr == (kind == MR_PLAIN || kind == MR_FOREIGN ? theirs + 3 : NULL));
        mr.was = 6;
        CHECK_EQ(mr_place(&mr, 1003, &ptr), kind != MR_FOREIGN);
    }
}

/* ---------------------------------------------------------------- words */

#define OURS 200000
#define ASKED 100

static void *count(void *word) {
    for (int i = 0; i < OURS; i++)
        __atomic_fetch_add((uint64_t *)word, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void a_word_is_changed_at_once_while_the_process_changes_it_too(void) {
    static uint64_t word;
    uint64_t was;
    pthread_t beside;
    CHECK_EQ(pthread_create(&beside, NULL, count, &word), 0);
    for (int i = 0; i < ASKED; i++)
        CHECK(guarded_word((uintptr_t)&word, &(struct word_op){WORD_ADD, 1, 0}, &was));
    pthread_join(beside, NULL);
    CHECK_EQ(word, OURS + ASKED);
    CHECK(guarded_word((uintptr_t)&word, &(struct word_op){WORD_CMP_SWAP, 7, 8}, &was));
    CHECK_EQ(was, OURS + ASKED);
    CHECK_EQ(word, OURS + ASKED);
    CHECK(guarded_word((uintptr_t)&word, &(struct word_op){WORD_STORE, 9, 0}, &was));
    CHECK_EQ(word, 9);
}

static void a_word_that_is_missing_leaves_the_process_as_it_was(void) {
    uint8_t *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction before, after;
    sigset_t held, held_after;
    uint64_t was;
    sigaction(SIGSEGV, NULL, &before);
    pthread_sigmask(SIG_SETMASK, NULL, &held);
    CHECK(!guarded_word((uintptr_t)page, &(struct word_op){WORD_STORE, 1, 0}, &was)); /* it may not be written */
    CHECK_EQ(*page, 0);
    munmap(page, 4096);
    CHECK(!guarded_word((uintptr_t)page, &(struct word_op){WORD_ADD, 1, 0}, &was));
    sigaction(SIGSEGV, NULL, &after);
    pthread_sigmask(SIG_SETMASK, NULL, &held_after);
    CHECK(before.sa_handler == after.sa_handler);
    for (int i = 1; i < NSIG; i++)
        CHECK_EQ(sigismember(&held, i), sigismember(&held_after, i));
    CHECK_EQ(waitpid(-1, NULL, WNOHANG | __WALL), -1); /* no child is left */
    CHECK_EQ(errno, ECHILD);
}

int main(void) {
    RUN(an_exporter_is_told_before_and_after_each_copy);
    RUN(an_exporter_that_was_interrupted_is_told_again);
    RUN(a_file_is_a_dmabuf_if_it_can_be_told);
    RUN(a_guard_that_does_not_copy_both_ways_does_not_work);
    RUN(guarded_bytes_are_copied_by_the_kernel_the_last_word_last);
    RUN(no_bytes_are_zeros);
    RUN(bytes_that_have_an_address_are_copied_from_and_to_it);
    RUN(a_place_is_where_a_load_may_go);
    RUN(a_word_is_changed_at_once_while_the_process_changes_it_too);
    RUN(a_word_that_is_missing_leaves_the_process_as_it_was);
    return check_done();
}
