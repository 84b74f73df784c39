/* SPDX-License-Identifier: Apache-2.0
 *
 * A child's memory is its own from the fork on, but a mapping of a file stays common.  So the heap is copied before the fork,
 * and the child puts the copy in its place.  The heap of a child is over: it hands out nothing.
 *
 * The copy takes some 0.35 ms for each MiB.  Peers would run into their retries if a device stood still so long.  So all is
 * copied before devices take their locks (rnic_heap_before_fork()).  If there are handlers of others, these may run later, and
 * write into memory of the heap: so what was never registered is copied again when all have prepared.  A device cannot take its
 * locks as late as that: an allocator's handler may hold the allocator's lock by then.
 *
 * What a child sees: all that the thread which forks has written or seen before it called fork(), and what handlers write
 * into memory that was never registered.  What other threads, devices and peers write while fork() runs, the child has or
 * has not, page by page.  No lock could make that one moment: peers of this host write by mappings of their own.  A fork is
 * none for a card's DMA either.
 */
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "heap.h"
#include "libc/next.h"
#include "nic_heap.h"

static atomic_int handlers;                              /* that prepare for forks, but the heap's */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of a thread that forks, from begin() to end() */
static _Thread_local __attribute__((tls_model("initial-exec"))) bool mine; /* this thread has it */
/* Under the lock: */
static int cancellation; /* of the thread that forks, before: it leaves no lock behind */
static bool early;       /* there is a copy from before the locks of devices, */
static int told;         /* of which so many handlers have told */
static size_t bytes;     /* of the heap, from its base, have a place at the spare addresses */
static bool copied;      /* all is well with the copy there */
static sigset_t signals; /* of the thread that forks: a handler in the child may write only when it has its memory */

/* A program's handlers of these run at once: prepare handlers that come later may need them. */
static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, 0};

/* False: this thread has begun its fork already. */
static bool begin(void) {
    sigset_t all, were;
    int before;
    if (mine)
        return false;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    sigfillset(&all);
    for (const int *fault = faults; *fault; fault++)
        sigdelset(&all, *fault);
    pthread_sigmask(SIG_SETMASK, &all, &were);
    pthread_mutex_lock(&lock);
    mine = copied = true;
    early = false;
    told = 0;
    bytes = 0;
    signals = were;
    cancellation = before;
    return true;
}

static void end(void) {
    sigset_t were = signals;
    int before = cancellation;
    mine = false;
    pthread_mutex_unlock(&lock);
    pthread_sigmask(SIG_SETMASK, &were, NULL);
    pthread_setcancelstate(before, NULL);
}

/* ---------------------------------------------------------------- the copy */

static bool map_spare(size_t from, size_t to, int protection) {
    int how = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    return mmap(heap_spare() + from, to - from, protection, how, -1, 0) != MAP_FAILED;
}

static bool copy_used(size_t first, size_t end_of_all, bool unshared) {
    for (size_t from, to = first; heap_next_used(&from, &to, end_of_all, unshared);)
        if (!own_copy(from, to, heap_spare() + from))
            return false;
    return true;
}

/* What has no place yet. */
static bool copy_up_to(size_t to) {
    size_t from = bytes;
    if (to == from)
        return true;
    if (!map_spare(from, to, PROT_READ | PROT_WRITE))
        return false;
    bytes = to;
    /* a fault for each page would take longer than to copy it */
    syscall(SYS_madvise, heap_spare() + from, to - from, MADV_HUGEPAGE);
    return copy_used(from, to, false);
}

static void drop(void) {
    if (bytes)
        map_spare(0, bytes, PROT_NONE);
    end();
}

/* ---------------------------------------------------------------- what handlers call, and the heap's own */

static void copy_early(void) {
    early = true;
    heap_lock();
    size_t to = heap_in_file();
    heap_unlock();
    copied = copy_up_to(to);
}

void rnic_heap_before_fork(void) {
    if (begin())
        copy_early();
    told++;
}

static void before(void) {
    begin();
    heap_lock_for_fork();
    bool others = atomic_load(&handlers) > told;
    copied = copied && (!others || copy_used(0, bytes, true)) && copy_up_to(heap_in_file());
}

static void in_parent(void) {
    heap_unlock_after_fork();
    if (!early)
        drop();
}

void rnic_heap_after_fork(void) {
    if (mine)
        drop();
}

/* Without a copy it would write into its parent's memory: a child that cannot have its own ends, as one that needs memory
 * and does not get it. */
static void in_child(void) {
    static const char text[] = "rnic: no memory for a copy of the heap in a forked child\n";
    size_t in_file = heap_in_file();
    if (heap_is_open())
        close(heap.fd);
    /* A mapping keeps the parent's file alive: only the addresses stay of memory that was never handed out. */
    if (in_file < HEAP_BYTES && heap.fd >= 0)
        mmap(heap_base() + in_file, HEAP_BYTES - in_file, PROT_NONE,
             MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (in_file && !(copied && own_replace(0, in_file, heap_spare()))) {
        (void)!write(2, text, sizeof text - 1);
        _exit(127);
    }
    heap.fd = -1;
    heap_is_own();
    if (heap.state == HEAP_USABLE)
        heap.state = HEAP_OVER;
    heap_unlock_after_fork();
    end();
}

/* When the library is loaded, ahead of all others (its meson.build): of what prepares for a fork the first that was registered
 * is the last, and in a child the first.  Others, as a device, hold locks of their own when they ask for ours. */
__attribute__((constructor)) static void watch_forks(void) {
    heap.watches_forks = !pthread_atfork(before, in_parent, in_child);
    atomic_fetch_sub(&handlers, 1);
}

/* pthread_atfork(), which glibc links into each library. */
#ifdef __GLIBC__
int __register_atfork(void (*first)(void), void (*parent)(void), void (*child)(void), void *library);

EXPORT int __register_atfork(void (*first)(void), void (*parent)(void), void (*child)(void), void *library) {
    atomic_fetch_add(&handlers, first != NULL);
    return NEXT(__register_atfork)(first, parent, child, library);
}
#else
EXPORT int pthread_atfork(void (*first)(void), void (*parent)(void), void (*child)(void)) {
    atomic_fetch_add(&handlers, first != NULL);
    return NEXT(pthread_atfork)(first, parent, child);
}
#endif
