/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages of the heap in runs, each of which is used or free.  The first and the last page of a run say so, with its length.
 */
#include "heap.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nic_heap.h"

#define PAGES (HEAP_BYTES / 4096)
#define GIVEN_BACK (256u << 10) /* bytes of a run from which its memory goes back to the system */
#define OUT_OF_THE_WAY 600      /* descriptors below are left to the program, if it may have so many */

struct heap heap = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};
_Atomic uintptr_t heap_range[2];

static uint32_t run[PAGES]; /* of a first or last page: pages * 2, + 1: used */
static uint32_t pages;      /* all */
static uint32_t next_fit;   /* the run where the next search begins */
static uint32_t largest;    /* no free run has more pages */
static enum { UNUSED, USABLE, UNUSABLE } state;

static uint32_t length_of(uint32_t i) { return run[i] / 2; }
static bool is_used(uint32_t i) { return run[i] & 1; }

static void mark(uint32_t i, uint32_t n, bool used) {
    if (n)
        run[i] = run[i + n - 1] = n * 2 + used;
}

/* ---------------------------------------------------------------- the file and its mapping */

/* Neither would the mapping go unnoticed where a program's memory is limited, nor may a file be so long. */
static bool is_unlimited(int what) {
    struct rlimit limit;
    return getrlimit((__rlimit_resource_t)what, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY;
}

static int open_file(void) {
    struct stat st;
    int low = memfd_create(RNIC_HEAP_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int fd = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, OUT_OF_THE_WAY);
    if (fd >= 0)
        close(low);
    else
        fd = low;
    if (fd < 0 || (ftruncate(fd, HEAP_BYTES) == 0 &&
                   fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 && fstat(fd, &st) == 0)) {
        heap.inode = fd < 0 ? 0 : st.st_ino;
        return fd;
    }
    close(fd);
    return -1;
}

/* Addresses alone; the base is aligned as far as anybody may ask. */
static uint8_t *reserve(void) {
    size_t bytes = HEAP_BYTES + HEAP_ALIGNED;
    uint8_t *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    size_t before = -(uintptr_t)at % HEAP_ALIGNED;
    if (before)
        munmap(at, before);
    munmap(at + before + HEAP_BYTES, HEAP_ALIGNED - before);
    return at + before;
}

static void begin(void) {
    uint8_t *base = NULL;
    heap.page = (size_t)sysconf(_SC_PAGESIZE);
    state = UNUSABLE;
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
    state = USABLE;
}

bool heap_is_open(void) {
    struct stat st;
    return heap.fd >= 0 && fstat(heap.fd, &st) == 0 && st.st_ino == heap.inode;
}

/* A child has no file. */
static bool map_up_to(size_t bytes) {
    size_t to = (bytes + HEAP_STEP - 1) / HEAP_STEP * HEAP_STEP, more = to - heap.mapped;
    bool in_file = heap.fd >= 0;
    if (bytes <= heap.mapped)
        return true;
    if (in_file && !heap_is_open())
        return false;
    void *at = mmap(heap_base() + heap.mapped, more, PROT_READ | PROT_WRITE,
                    MAP_FIXED | (in_file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS), in_file ? heap.fd : -1,
                    in_file ? (off_t)heap.mapped : 0);
    if (at == MAP_FAILED)
        return false;
    heap.mapped = to;
    return true;
}

/* ---------------------------------------------------------------- runs */

/* The first page of a free run where n fit, aligned by pages: *at; false: there is none from `from` to `to`. */
static bool find(uint32_t from, uint32_t to, uint32_t n, uint32_t aligned, uint32_t *first, uint32_t *at) {
    for (uint32_t i = from; i < to; i += length_of(i)) {
        uint32_t begins = (i + aligned - 1) / aligned * aligned;
        if (!is_used(i) && begins - i <= length_of(i) && length_of(i) - (begins - i) >= n) {
            *first = i;
            *at = begins;
            return true;
        }
    }
    return false;
}

static void *take(uint32_t n, uint32_t aligned) {
    uint32_t first, at;
    if (n > largest)
        return NULL;
    if (!find(next_fit, pages, n, aligned, &first, &at) && !find(0, next_fit, n, aligned, &first, &at)) {
        if (aligned == 1)
            largest = n - 1;
        return NULL;
    }
    if (!map_up_to((size_t)(at + n) * heap.page))
        return NULL;
    uint32_t end = first + length_of(first);
    mark(first, at - first, false);
    mark(at, n, true);
    mark(at + n, end - at - n, false);
    next_fit = at;
    return heap_base() + at * heap.page;
}

void *heap_take(size_t alignment, size_t bytes) {
    void *at = NULL;
    if (alignment > HEAP_ALIGNED || bytes > HEAP_BYTES)
        return NULL;
    pthread_mutex_lock(&heap.lock);
    if (state == UNUSED && heap.watches_forks) /* not yet in constructors that run before ours */
        begin();
    if (state == USABLE)
        at = take((uint32_t)((bytes + heap.page - 1) / heap.page),
                  alignment > heap.page ? (uint32_t)(alignment / heap.page) : 1);
    pthread_mutex_unlock(&heap.lock);
    return at;
}

static uint32_t index_of(const void *at) { return (uint32_t)((size_t)((const uint8_t *)at - heap_base()) / heap.page); }

/* Of what nobody uses any more: of the file, or of a child's own memory.  A short run is soon used again. */
static void give_back(uint32_t i, uint32_t n) {
    size_t bytes = n * heap.page;
    if (bytes >= GIVEN_BACK)
        madvise(heap_base() + i * heap.page, bytes, heap.fd >= 0 ? MADV_REMOVE : MADV_DONTNEED);
}

void heap_give(void *at) {
    int before = errno;
    pthread_mutex_lock(&heap.lock);
    uint32_t i = index_of(at), n = length_of(i), end = i + n;
    give_back(i, n);
    if (end < pages && !is_used(end))
        end += length_of(end);
    if (i && !is_used(i - 1))
        i -= length_of(i - 1);
    mark(i, end - i, false);
    if (next_fit > i && next_fit < end)
        next_fit = i;
    largest = end - i > largest ? end - i : largest;
    pthread_mutex_unlock(&heap.lock);
    errno = before;
}

/* Nobody else changes a run that is used. */
size_t heap_size(const void *at) { return length_of(index_of(at)) * heap.page; }

bool rnic_heap_find(const void *addr, uint64_t length, int *fd, uint64_t *offset) {
    if (!heap_has(addr))
        return false;
    pthread_mutex_lock(&heap.lock);
    *offset = (uint64_t)((const uint8_t *)addr - heap_base());
    bool found = *offset < heap.mapped && length <= heap.mapped - *offset && heap_is_open();
    *fd = heap.fd;
    pthread_mutex_unlock(&heap.lock);
    return found;
}
