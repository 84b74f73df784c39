/* SPDX-License-Identifier: Apache-2.0
 *
 * librnic_heap.so: memory that programs ask for in whole pages lies in a file, which peers on this host map when it is
 * registered.  So their READs and WRITEs are copies without a system call, as in the device's own memory.
 *
 *   heap.c    pages of the file: who has which
 *   own.c     pages of the file that become the process' own memory
 *   fork.c    all of them do so in a forked child
 *   calls.c   the functions of libc that hand out memory
 *   stacks.c  those that make a stack of it
 *
 * It stands in front of libc in each program of `rnic run`, and hands out nothing before the process has opened a device:
 * many never do, and who does must be careful with forks anyway.  Memory of the heap behaves as libc's, for each thread and
 * each child.  What the heap does not hand out is libc's.
 */
#ifndef RNIC_HEAP_H
#define RNIC_HEAP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HEAP_BYTES (256u << 20) /* all of it: more is libc's; a fork copies what is used */
#define HEAP_STEP (4u << 20)    /* by which more of it is mapped */
#define HEAP_ALIGNED (1u << 20) /* the largest alignment: whoever wants more wants huge pages, which the file has not */
/* Where the heap begins in its file.  A program may put a file of its own at the descriptor's number just before we use it: so far
 * out that file has nothing to be read, or to be lost by a hole. */
#define HEAP_FIRST (1ll << 45)

struct heap {
    bool watches_forks; /* else there is no heap; written when the library is loaded */
    _Atomic enum { HEAP_UNUSED, HEAP_USABLE, HEAP_OVER } state; /* written under the lock, as all that follows */
    int fd;         /* the file; -1: there is none, and what is mapped is this process' alone */
    uint64_t inode; /* of the file, on its device: programs close descriptors that are not theirs */
    uint64_t device;
    size_t page;   /* bytes */
    size_t mapped; /* bytes from the base on that can be used */
    bool forking;  /* what is handed out now, the child would not have */
};
extern struct heap heap;

/* The addresses of the heap, of which [0] is the base; both 0 before it is used.  Written once. */
extern _Atomic uintptr_t heap_range[2];
static inline bool heap_has(const void *at) {
    return (uintptr_t)at < atomic_load_explicit(&heap_range[1], memory_order_acquire) && /* the base is there, too */
           (uintptr_t)at >= atomic_load_explicit(&heap_range[0], memory_order_relaxed);
}
static inline uint8_t *heap_base(void) { return (uint8_t *)heap_range[0]; }
/* As many addresses as the heap has, for a copy: a limit that the program sets later leaves them to it. */
static inline uint8_t *heap_spare(void) { return heap_base() + HEAP_BYTES; }

/* Not for long, as others wait for it with the lock of a device.  Whoever has it is not cancelled, and no signal comes.  A thread
 * that forks holds it already, while handlers of the program run. */
void heap_lock(void);
void heap_unlock(void);
void heap_lock_for_fork(void);
void heap_unlock_after_fork(void);

/* Whole pages, not zeroed; NULL: the heap does not have them.  alignment: a power of two */
void *heap_take(size_t alignment, size_t bytes);
/* Of what heap_take() has returned: back, and how many bytes it has.  Anything else ends the process, as in libc. */
void heap_give(void *at);
size_t heap_size(const void *at);

/* Whole pages of the heap are zero from now on; false: not so, see errno. */
bool heap_forget(void *at, size_t bytes);
/* A forked child has zeros there, or the bytes again; false: not so, see errno. */
bool heap_wipe(void *at, size_t bytes, bool wipes);
/* Takes the heap's allocation at `at` out of the file, unless a peer may use it.  False: it still is a part of the file. */
bool heap_leave_file(const void *at);
void heap_is_own(void); /* in a forked child: no part of it is */

/* Under the lock: is the descriptor still the file? */
bool heap_is_open(void);
/* Under the lock: so many bytes, from the base on, are mapped from the file. */
size_t heap_in_file(void);
/* The next bytes that are used, after *to, below `end`, and that no peer may use, if they are to be unshared.  False: there are
 * none. */
bool heap_next_used(size_t *from, size_t *to, size_t end, bool unshared);

/* own.c, of bytes of the heap: a copy of them, over what may have been copied before, and the copy in their place, with their
 * protections. */
bool own_copy(size_t from, size_t to, uint8_t *copy);
bool own_replace(size_t from, size_t to, uint8_t *copy);
/* Bytes of the heap are zeros without memory from now on, without the descriptor; false: not all of them, see errno. */
bool own_remove(size_t from, size_t to);

#endif
