/* SPDX-License-Identifier: Apache-2.0
 *
 * A child's memory is its own from the fork on, but a mapping of a file stays common.  So the heap is copied before the fork,
 * when all others that prepare for it have done so and hold their locks, and the child puts the copy in its place.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "heap.h"

static uint8_t *copy; /* of all that is mapped; NULL: there is none */

static void copy_part(off_t from, off_t to) {
    while (from < to) {
        ssize_t n = pread(heap.fd, copy + from, (size_t)(to - from), from);
        if (n <= 0)
            break;
        from += n;
    }
}

/* What has never been written has no memory, and is not read. */
static void copy_file(void) {
    off_t end = (off_t)heap.mapped, from = lseek(heap.fd, 0, SEEK_DATA), to;
    for (; from >= 0 && from < end; from = lseek(heap.fd, to, SEEK_DATA)) {
        to = lseek(heap.fd, from, SEEK_HOLE);
        to = to < from || to > end ? end : to;
        copy_part(from, to);
        if (to == end)
            break;
    }
}

static void before(void) {
    pthread_mutex_lock(&heap.lock);
    if (heap.fd < 0 || !heap.mapped)
        return;
    copy = mmap(NULL, heap.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (copy == MAP_FAILED)
        copy = NULL;
    else
        madvise(copy, heap.mapped, MADV_HUGEPAGE); /* a fault for each page would take longer than to copy it */
    if (!copy)
        return;
    if (heap_is_open())
        copy_file();
    else
        memcpy(copy, heap_base(), heap.mapped);
}

static void in_parent(void) {
    if (copy)
        munmap(copy, heap.mapped);
    copy = NULL;
    pthread_mutex_unlock(&heap.lock);
}

/* Without a copy it would write into its parent's memory: a child that cannot have its own ends, as one that needs memory
 * and does not get it. */
static void in_child(void) {
    static const char text[] = "rnic: no memory for a copy of the heap in a forked child\n";
    if (heap.mapped && heap.fd >= 0) {
        void *at = copy ? mremap(copy, heap.mapped, heap.mapped, MREMAP_MAYMOVE | MREMAP_FIXED, heap_base()) : NULL;
        if (at != heap_base()) {
            (void)!write(2, text, sizeof text - 1);
            _exit(127);
        }
    }
    if (heap_is_open())
        close(heap.fd);
    heap.fd = -1;
    copy = NULL;
    pthread_mutex_unlock(&heap.lock);
}

/* When the library is loaded: of what prepares for a fork the first that was registered is the last.  Others, as a device, hold
 * locks of their own when they ask for ours. */
__attribute__((constructor)) static void watch_forks(void) {
    heap.watches_forks = !pthread_atfork(before, in_parent, in_child);
}
