/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages of the heap in runs, each of which is used or free.  The first and the last page of a run say so, with its length.
 */
#include "heap.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "nic_heap.h"

#define PAGES (HEAP_BYTES / 4096)
#define GIVEN_BACK (256u << 10) /* bytes of a run from which its memory goes back to the system */
#define MOST_KEPT (4u << 20)    /* bytes of shorter runs that stay memory when they are free */
#define OUT_OF_THE_WAY 600      /* descriptors below are left to the program, if it may have so many */

struct heap heap = {.fd = -1};
_Atomic uintptr_t heap_range[2];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Of the thread that has the lock, from before: one that is cancelled would leave it locked, a handler that forks wait for it. */
static int cancellation;
static sigset_t signals;
static _Thread_local __attribute__((tls_model("initial-exec"))) bool forks; /* this thread, with the lock */

enum { BEGINS = 1, TOLD = 2, OWN = 4, USED = 8, KEPT = 16, WIPED = 32 };
/* BEGINS: the first page of a used run; TOLD: peers may use it; OWN: it is not the file's any more; USED: in a used run; KEPT:
 * free, but may have memory; WIPED: a child has zeros there */
static uint8_t is[PAGES];
static uint32_t kept; /* pages that are so */

static uint32_t run[PAGES]; /* of a first or last page: pages * 2, + 1: used */
static uint32_t pages;      /* all */
static uint32_t largest;    /* no free run has more pages */

#define CLASSES 17                /* of lengths: class k has 2^k pages or more, but fewer than class k + 1 */
static uint32_t lowest[CLASSES]; /* the run ahead of which no free one has 2^k pages */

static uint32_t length_of(uint32_t i) { return run[i] / 2; }
static bool is_used(uint32_t i) { return run[i] & 1; }

static void mark(uint32_t i, uint32_t n, bool used) {
    if (n)
        run[i] = run[i + n - 1] = n * 2 + used;
}

void heap_lock(void) {
    int cancels;
    sigset_t all, were;
    if (forks)
        return;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &were);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancels);
    pthread_mutex_lock(&lock);
    signals = were;
    cancellation = cancels;
}

void heap_unlock(void) {
    int cancels = cancellation;
    sigset_t were = signals;
    if (forks)
        return;
    pthread_mutex_unlock(&lock);
    pthread_setcancelstate(cancels, NULL);
    pthread_sigmask(SIG_SETMASK, &were, NULL);
}

void heap_lock_for_fork(void) {
    pthread_mutex_lock(&lock);
    forks = heap.forking = true;
}

void heap_unlock_after_fork(void) {
    forks = heap.forking = false;
    pthread_mutex_unlock(&lock);
}

/* ---------------------------------------------------------------- the file and its mapping */

/* Neither would the mapping go unnoticed where a program's memory is limited, nor may a file be so long. */
static bool is_unlimited(int what) {
    struct rlimit limit;
    return getrlimit(what, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY;
}

static int open_file(void) {
    struct stat st = {0};
    int low = memfd_create(RNIC_HEAP_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int fd = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, OUT_OF_THE_WAY);
    if (fd >= 0)
        close(low);
    else
        fd = low;
    if (fd >= 0 && (ftruncate(fd, HEAP_FIRST + HEAP_BYTES) ||
                    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) || fstat(fd, &st))) {
        close(fd);
        return -1;
    }
    heap.inode = st.st_ino;
    heap.device = st.st_dev;
    return fd;
}

/* Addresses, with the spare ones; the base is aligned as far as anybody may ask.  All of the file is mapped there at once, for
 * nobody yet: later the descriptor's number may be another file's. */
static uint8_t *reserve(void) {
    size_t all = 2 * (size_t)HEAP_BYTES, bytes = all + HEAP_ALIGNED;
    uint8_t *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    size_t before = -(uintptr_t)at % HEAP_ALIGNED;
    if (before)
        munmap(at, before);
    munmap(at + before + all, HEAP_ALIGNED - before);
    at += before;
    if (mmap(at, HEAP_BYTES, PROT_NONE, MAP_FIXED | MAP_SHARED, heap.fd, HEAP_FIRST) != MAP_FAILED)
        return at;
    munmap(at, all);
    return NULL;
}

static void begin(void) {
    uint8_t *base = NULL;
    heap.page = (size_t)sysconf(_SC_PAGESIZE);
    heap.state = HEAP_OVER;
    if (!is_unlimited(RLIMIT_AS) || !is_unlimited(RLIMIT_FSIZE))
        return;
    heap.fd = open_file();
    if (heap.fd >= 0)
        base = reserve();
    if (!base) {
        if (heap.fd >= 0)
            close(heap.fd);
        heap.fd = -1;
        return;
    }
    pages = largest = (uint32_t)(HEAP_BYTES / heap.page);
    mark(0, pages, false);
    atomic_store(&heap_range[0], (uintptr_t)base);
    atomic_store(&heap_range[1], (uintptr_t)base + HEAP_BYTES);
    heap.state = HEAP_USABLE;
}

void rnic_heap_begin(void) {
    heap_lock();
    if (heap.state == HEAP_UNUSED && heap.watches_forks)
        begin();
    heap_unlock();
}

bool heap_is_open(void) {
    struct stat st;
    return heap.fd >= 0 && fstat(heap.fd, &st) == 0 && st.st_ino == heap.inode && st.st_dev == heap.device;
}

/* Programs close descriptors that they do not know. */
static bool is_closed(void) { return heap.fd >= 0 && !heap_is_open(); }

size_t heap_in_file(void) { return heap.fd < 0 ? 0 : heap.mapped; }

static bool map_up_to(size_t bytes) {
    size_t to = (bytes + HEAP_STEP - 1) / HEAP_STEP * HEAP_STEP, more = to - heap.mapped;
    if (bytes <= heap.mapped)
        return true;
    if (!heap_is_open() || mprotect(heap_base() + heap.mapped, more, PROT_READ | PROT_WRITE))
        return false;
    heap.mapped = to;
    return true;
}

/* ---------------------------------------------------------------- runs */

/* Where the search for n pages begins. */
static uint32_t lowest_for(uint32_t n) {
    uint32_t k = 0;
    while (n >> (k + 1))
        k++;
    while (lowest[k] < pages && (is_used(lowest[k]) || length_of(lowest[k]) >> k == 0))
        lowest[k] += length_of(lowest[k]);
    return lowest[k];
}

/* Pages i to end are a free run now. */
static void lower(uint32_t i, uint32_t end) {
    for (uint32_t k = 0; k < CLASSES; k++)
        if (lowest[k] > i && (lowest[k] < end || (end - i) >> k))
            lowest[k] = i;
}

/* The first free run where n fit, aligned by pages, and where in it: *at; `pages`: there is none. */
static uint32_t find(uint32_t n, uint32_t aligned, uint32_t *at) {
    uint32_t i = lowest_for(n);
    for (*at = 0; i < pages; i += length_of(i)) {
        *at = (i + aligned - 1) / aligned * aligned;
        if (!is_used(i) && *at - i <= length_of(i) && length_of(i) - (*at - i) >= n)
            break;
    }
    return i;
}

/* The lowest place: so few pages of the file are ever written, as what is freed keeps its memory. */
static void *take(uint32_t n, uint32_t aligned) {
    uint32_t at;
    if (n > largest)
        return NULL;
    uint32_t first = find(n, aligned, &at);
    if (first == pages) {
        if (aligned == 1)
            largest = n - 1; /* the next one need not look */
        return NULL;
    }
    if (!map_up_to((size_t)(at + n) * heap.page))
        return NULL;
    uint32_t end = first + length_of(first);
    mark(first, at - first, false);
    mark(at, n, true);
    is[at] |= BEGINS;
    for (uint32_t i = at; i < at + n; i++) {
        kept -= !!(is[i] & KEPT);
        is[i] = (uint8_t)((is[i] & ~(KEPT | WIPED)) | USED);
    }
    mark(at + n, end - at - n, false);
    return heap_base() + at * heap.page;
}

void *heap_take(size_t alignment, size_t bytes) {
    void *at = NULL;
    if (heap.state != HEAP_USABLE || alignment > HEAP_ALIGNED || bytes > HEAP_BYTES)
        return NULL;
    heap_lock();
    if (heap.state == HEAP_USABLE && !heap.forking)
        at = take((uint32_t)((bytes + heap.page - 1) / heap.page),
                  alignment > heap.page ? (uint32_t)(alignment / heap.page) : 1);
    heap_unlock();
    return at;
}

static uint32_t index_of(const void *at) { return (uint32_t)((size_t)((const uint8_t *)at - heap_base()) / heap.page); }

/* Nobody else changes a run that is used. */
static uint32_t begin_of(const void *at) {
    static const char text[] = "rnic: free or realloc of memory that is not allocated, or not at its begin\n";
    uint32_t i = index_of(at);
    if ((uintptr_t)at % heap.page == 0 && is[i] & BEGINS)
        return i;
    (void)!write(2, text, sizeof text - 1);
    abort();
}

/* The system is asked itself, as madvise() is ours, and fallocate() a point of cancellation, which free() is not. */
static bool clear(uint32_t i, uint32_t n) {
    size_t from = i * heap.page, bytes = n * heap.page;
    if (heap.fd < 0 || is[i] & OWN)
        return syscall(SYS_madvise, heap_base() + from, bytes, MADV_DONTNEED) == 0;
    int how = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    bool done = heap_is_open() && !syscall(SYS_fallocate, heap.fd, how, HEAP_FIRST + (off_t)from, (off_t)bytes);
    return (done && heap_is_open()) || own_remove(from, from + bytes);
}

/* In parts that are the file's or not. */
static bool clear_all(uint32_t i, uint32_t n) {
    bool done = true;
    for (uint32_t end = i + n, next; i < end && done; i = next) {
        for (next = i + 1; next < end && !((is[i] ^ is[next]) & OWN); next++)
            ;
        done = clear(i, next - i);
    }
    return done;
}

/* Without the descriptor it takes milliseconds to find out what is still mapped from the file (own.c): as long as to use so much. */
static bool is_short(uint32_t n) { return n * heap.page < GIVEN_BACK || (n * heap.page < MOST_KEPT && is_closed()); }

/* Gives memory that nobody uses any more back to the system, without the lock, as that takes time.  A short run is soon used again:
 * true, it keeps its memory. */
static bool give_back(const void *at) {
    uint32_t i = begin_of(at), n = length_of(i);
    bool keeps = is_short(n);
    if (!keeps)
        clear_all(i, n);
    return keeps;
}

static void forget_run(uint32_t i, uint32_t n, uint8_t keeps) {
    is[i] &= (uint8_t)~BEGINS;
    for (uint32_t k = i; k < i + n; k++) {
        if ((is[k] & (OWN | WIPED)) == (OWN | WIPED))
            syscall(SYS_madvise, heap_base() + k * heap.page, heap.page, MADV_KEEPONFORK);
        is[k] = (uint8_t)((is[k] & ~(TOLD | USED | WIPED)) | keeps);
    }
    kept += keeps ? n : 0;
}

/* A run becomes free, and one with its neighbours: its first page. */
static uint32_t add_free(uint32_t i, uint32_t n) {
    uint32_t end = i + n;
    if (end < pages && !is_used(end))
        end += length_of(end);
    if (i && !is_used(i - 1))
        i -= length_of(i - 1);
    mark(i, end - i, false);
    lower(i, end);
    largest = end - i > largest ? end - i : largest;
    return i;
}

/* Bytes of a free run that may have memory. */
static size_t kept_of(uint32_t i) {
    size_t n = 0;
    for (uint32_t end = i + length_of(i); i < end; i++)
        n += !!(is[i] & KEPT);
    return n * heap.page;
}

/* A free run: its memory goes back to the system, without the lock, and nobody gets that part meanwhile. */
static void empty(uint32_t i) {
    uint32_t end = i + length_of(i), from = end, to = i;
    if (kept_of(i) < MOST_KEPT && is_closed())
        return;
    for (uint32_t k = i; k < end; k++) {
        if (!(is[k] & KEPT))
            continue;
        is[k] &= (uint8_t)~KEPT;
        kept--;
        from = from < k ? from : k;
        to = k + 1;
    }
    if (from >= to)
        return;
    mark(i, from - i, false);
    mark(from, to - from, true);
    mark(to, end - to, false);
    heap_unlock();
    clear_all(from, to - from);
    heap_lock();
    add_free(from, to - from);
}

void heap_give(void *at) {
    int before = errno;
    uint8_t keeps = give_back(at) ? KEPT : 0;
    heap_lock();
    uint32_t i = begin_of(at), n = length_of(i);
    forget_run(i, n, keeps);
    i = add_free(i, n);
    if (kept * heap.page > MOST_KEPT)
        empty(i);
    heap_unlock();
    errno = before;
}

size_t heap_size(const void *at) { return length_of(begin_of(at)) * heap.page; }

/* ---------------------------------------------------------------- what a program does with its memory */

static bool is_mapped(const void *at, size_t bytes) {
    size_t offset = (size_t)((const uint8_t *)at - heap_base());
    return heap_has(at) && offset < heap.mapped && bytes <= heap.mapped - offset;
}

bool heap_forget(void *at, size_t bytes) {
    heap_lock();
    bool good = (uintptr_t)at % heap.page == 0 && is_mapped(at, bytes);
    bool done = good && clear_all(index_of(at), (uint32_t)((bytes + heap.page - 1) / heap.page));
    heap_unlock();
    if (!good)
        errno = EINVAL;
    return done;
}

/* Marks pages for a child to have zeros there, or unmarks them.  A page that left the file is advised itself. */
bool heap_wipe(void *at, size_t bytes, bool wipes) {
    heap_lock();
    bool done = (uintptr_t)at % heap.page == 0 && is_mapped(at, bytes);
    uint32_t i = index_of(at), end = i + (uint32_t)((bytes + heap.page - 1) / heap.page);
    for (errno = done ? errno : EINVAL; done && i < end; i++) {
        if (!(is[i] & USED)) /* freed: it is nobody's */
            continue;
        is[i] = (uint8_t)(wipes ? is[i] | WIPED : is[i] & ~WIPED);
        if (is[i] & OWN)
            done = !syscall(SYS_madvise, heap_base() + i * heap.page, heap.page,
                            wipes ? MADV_WIPEONFORK : MADV_KEEPONFORK);
    }
    heap_unlock();
    return done;
}

/* Memory that peers may use stays. */
static bool may_leave(uint32_t i, uint32_t n) {
    bool may = heap.fd >= 0 && !heap.forking;
    for (uint32_t k = i; k < i + n; k++)
        may = may && !(is[k] & (TOLD | OWN));
    return may;
}

/* A part that cannot be moved stays in the file, with its bytes.  Whichever it is, peers are to use none of it. */
static void leave_file(uint32_t i, uint32_t n) {
    size_t bytes = n * heap.page, from = i * heap.page;
    void *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED)
        return;
    if (!own_copy(from, from + bytes, copy)) {
        munmap(copy, bytes);
        return;
    }
    if (own_replace(from, from + bytes, copy)) /* else some addresses of the copy may be of others by now */
        clear(i, n);
    for (uint32_t k = i; k < i + n; k++)
        is[k] |= OWN;
}

bool heap_leave_file(const void *at) {
    int before = errno;
    if (!heap_has(at))
        return true;
    heap_lock();
    uint32_t i = index_of(at), first = i;
    while (i && !(is[i] & BEGINS))
        i--;
    if (is[i] & BEGINS && first - i < length_of(i) && may_leave(i, length_of(i)))
        leave_file(i, length_of(i));
    bool left = heap.fd < 0 || is[first] & OWN;
    heap_unlock();
    errno = before;
    return left;
}

/* In a forked child, whose memory it is alone by now: the system wipes what this process' own children are not to have. */
void heap_is_own(void) {
    uint32_t end = heap.mapped ? (uint32_t)(heap.mapped / heap.page) : 0, next;
    for (uint32_t i = 0; i < end; i = next) {
        for (next = i + 1; next < end && is[next] == is[i]; next++)
            ;
        if ((is[i] & (WIPED | OWN)) == WIPED)
            syscall(SYS_madvise, heap_base() + i * heap.page, (next - i) * heap.page, MADV_WIPEONFORK);
        memset(is + i, is[i] | OWN, next - i);
    }
}

static bool is_in_file(uint32_t i, uint32_t end) {
    for (; i < end; i++)
        if (is[i] & OWN)
            return false;
    return heap_is_open();
}

bool heap_next_used(size_t *from, size_t *to, size_t end, bool unshared) {
    if (*to >= end) /* also where nobody has used the heap, which has no size of a page then */
        return false;
    size_t i = *to / heap.page, all = end / heap.page;
    int looked_at = WIPED | USED | (unshared ? TOLD : 0);
    heap_lock();
    while (i < all && (is[i] & looked_at) != USED)
        i++;
    *from = i * heap.page;
    while (i < all && (is[i] & looked_at) == USED)
        i++;
    *to = i * heap.page;
    heap_unlock();
    return *from < *to;
}

bool rnic_heap_find(const void *addr, uint64_t length, struct rnic_heap_place *place) {
    if (!heap_has(addr))
        return false;
    heap_lock();
    size_t at = (size_t)((const uint8_t *)addr - heap_base());
    *place = (struct rnic_heap_place){heap.fd, heap.inode, (uint64_t)HEAP_FIRST + at};
    bool found = false;
    if (is_mapped(addr, length)) {
        uint32_t i = index_of(addr), end = (uint32_t)((at + length + heap.page - 1) / heap.page);
        found = is_in_file(i, end);
        for (; found && i < end; i++)
            is[i] |= TOLD;
    }
    heap_unlock();
    return found;
}
