/* SPDX-License-Identifier: Apache-2.0
 *
 * A child's memory is its own from the fork on, but a mapping of a file stays common.  So the heap is copied before the fork,
 * when all others that prepare for it have done so and hold their locks, and the child puts the copy in its place.  The heap
 * of a child is over: it hands out nothing.
 */
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "heap.h"

static bool copied;      /* what is mapped, to the spare addresses */
static sigset_t signals; /* of the thread that forks: a handler in the child may write only when it has its memory */

static bool map_spare(int protection) {
    int how = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    return mmap(heap_spare(), heap.mapped, protection, how, -1, 0) != MAP_FAILED;
}

static bool copy(void) {
    if (!map_spare(PROT_READ | PROT_WRITE))
        return false;
    madvise(heap_spare(), heap.mapped, MADV_HUGEPAGE); /* a fault for each page would take longer than to copy it */
    return own_copy(0, heap.mapped, heap_spare());
}

static void before(void) {
    sigset_t all, were;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &were);
    heap_lock_for_fork();
    signals = were;
    copied = heap.fd >= 0 && heap.mapped && copy();
}

static void let_go(void) {
    sigset_t were = signals;
    heap_unlock_after_fork();
    pthread_sigmask(SIG_SETMASK, &were, NULL);
}

static void in_parent(void) {
    if (heap.fd >= 0 && heap.mapped)
        map_spare(PROT_NONE);
    let_go();
}

/* Without a copy it would write into its parent's memory: a child that cannot have its own ends, as one that needs memory
 * and does not get it. */
static void in_child(void) {
    static const char text[] = "rnic: no memory for a copy of the heap in a forked child\n";
    bool shares = heap.fd >= 0 && heap.mapped;
    if (heap_is_open())
        close(heap.fd);
    if (shares && !(copied && own_replace(0, heap.mapped, heap_spare()))) {
        (void)!write(2, text, sizeof text - 1);
        _exit(127);
    }
    heap.fd = -1;
    if (heap.state == HEAP_USABLE)
        heap.state = HEAP_OVER;
    let_go();
}

/* When the library is loaded, ahead of all others (its meson.build): of what prepares for a fork the first that was registered
 * is the last, and in a child the first.  Others, as a device, hold locks of their own when they ask for ours. */
__attribute__((constructor)) static void watch_forks(void) {
    heap.watches_forks = !pthread_atfork(before, in_parent, in_child);
}
