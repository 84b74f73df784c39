/* SPDX-License-Identifier: Apache-2.0
 *
 * A child's memory is its own from the fork on, but a mapping of a file stays common.  So the heap is copied before the fork,
 * when the program's handlers have prepared for it, and the child puts the copy in its place.  The heap of a child is over: it
 * hands out nothing.
 *
 * The copy takes some 0.3 ms for each MiB, and nobody waits for it but the thread that forks.  Peers would run into their
 * retries if devices stood still: so these take their locks when the copy is there (rnic_heap_at_fork()).
 *
 * What a child sees: all that the thread which forks has written, or has seen of others, before it called fork().  What other
 * threads, devices and peers write while fork() runs, the child has or has not, page by page, though memory outside of the
 * heap is of one moment.  No lock could change that for peers of this host, which write by mappings of their own; and to a
 * real card's DMA no fork is a moment either.
 */
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "heap.h"
#include "nic_heap.h"

static struct rnic_heap_fork *others;
/* Of the fork that goes on: */
static size_t bytes;     /* of the file are mapped; 0: there is nothing to copy */
static bool copied;      /* what is mapped, to the spare addresses */
static sigset_t signals; /* of the thread that forks: a handler in the child may write only when it has its memory */

static bool map_spare(int protection) {
    int how = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    return mmap(heap_spare(), bytes, protection, how, -1, 0) != MAP_FAILED;
}

static bool copy(void) {
    if (!map_spare(PROT_READ | PROT_WRITE))
        return false;
    madvise(heap_spare(), bytes, MADV_HUGEPAGE); /* a fault for each page would take longer than to copy it */
    return own_copy(0, bytes, heap_spare());
}

static void before(void) {
    sigset_t all, were;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &were);
    heap_keep_out_forks();
    signals = were;
    bytes = heap_freeze();
    copied = bytes && copy();
    for (struct rnic_heap_fork *one = others; one; one = one->next)
        one->before();
    heap_lock_for_fork();
}

static void after(void) {
    sigset_t were = signals;
    heap_let_forks();
    pthread_sigmask(SIG_SETMASK, &were, NULL);
}

/* The copy goes last, as that takes time. */
static void in_parent(void) {
    for (struct rnic_heap_fork *one = others; one; one = one->next)
        one->in_parent();
    heap_unlock_after_fork();
    if (bytes)
        map_spare(PROT_NONE);
    after();
}

/* Without a copy it would write into its parent's memory: a child that cannot have its own ends, as one that needs memory
 * and does not get it. */
static void in_child(void) {
    static const char text[] = "rnic: no memory for a copy of the heap in a forked child\n";
    if (heap_is_open())
        close(heap.fd);
    if (bytes && !(copied && own_replace(0, bytes, heap_spare()))) {
        (void)!write(2, text, sizeof text - 1);
        _exit(127);
    }
    heap.fd = -1;
    if (heap.state == HEAP_USABLE)
        heap.state = HEAP_OVER;
    for (struct rnic_heap_fork *one = others; one; one = one->next)
        one->in_child();
    heap_unlock_after_fork();
    after();
}

bool rnic_heap_at_fork(struct rnic_heap_fork *what) {
    heap_keep_out_forks();
    if (heap.watches_forks) {
        what->next = others;
        others = what;
    }
    heap_let_forks();
    return heap.watches_forks;
}

/* When the library is loaded, ahead of all others (its meson.build): of what prepares for a fork the first that was registered
 * is the last, and in a child the first. */
__attribute__((constructor)) static void watch_forks(void) {
    heap.watches_forks = !pthread_atfork(before, in_parent, in_child);
}
