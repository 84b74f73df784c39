/* SPDX-License-Identifier: Apache-2.0
 *
 * librnic_heap.so: memory that programs ask for in whole pages lies in a file, which peers on this host map when it is
 * registered.  So their READs and WRITEs are copies without a system call, as in the device's own memory.
 *
 *   heap.c   pages of the file: who has which
 *   fork.c   a forked child gets a copy of its own
 *   calls.c  the functions of libc that hand out memory
 *
 * It stands in front of libc in each program of `rnic run`, which may never use a device.  Memory of the heap behaves as
 * libc's, for each thread and each child.  What the heap does not hand out is libc's.
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

struct heap {
    bool watches_forks;   /* else there is no heap; written when the library is loaded */
    pthread_mutex_t lock; /* of all that follows */
    int fd;               /* the file; -1: there is none, and what is mapped is this process' alone */
    uint64_t inode;       /* of the file: programs close descriptors that are not theirs */
    size_t page;          /* bytes */
    size_t mapped;        /* bytes from the base on */
};
extern struct heap heap;

/* The addresses of the heap, of which [0] is the base; both 0 before it is used.  Written once. */
extern _Atomic uintptr_t heap_range[2];
static inline bool heap_has(const void *at) {
    return (uintptr_t)at < atomic_load_explicit(&heap_range[1], memory_order_relaxed) &&
           (uintptr_t)at >= atomic_load_explicit(&heap_range[0], memory_order_relaxed);
}
static inline uint8_t *heap_base(void) { return (uint8_t *)heap_range[0]; }

/* Whole pages, not zeroed; NULL: the heap does not have them.  alignment: a power of two */
void *heap_take(size_t alignment, size_t bytes);
/* Of what heap_take() has returned: back, and how many bytes it has. */
void heap_give(void *at);
size_t heap_size(const void *at);

/* Under the lock: is the descriptor still the file? */
bool heap_is_open(void);

#endif
