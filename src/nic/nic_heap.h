/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the program that lies in a file, so that peers on this host can map it: librnic_heap.so (src/heap), if the
 * program has been started with it, hands it out and knows where it is.
 *
 * All functions are NULL without the library.
 */
#ifndef RNIC_NIC_HEAP_H
#define RNIC_NIC_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#define RNIC_HEAP_NAME "rnic-heap" /* of the file, for memfd_create(2) */

/* The program has opened a device: memory may lie in the file from now on.  Who never does so has libc's alone. */
__attribute__((weak, visibility("default"))) void rnic_heap_begin(void);

struct rnic_heap_place {
    int fd;         /* of the file */
    uint64_t inode; /* of the file: a descriptor alone may be another file's in another process */
    uint64_t offset;
};

/* Where the bytes lie in the file; false: they do not lie there. */
__attribute__((weak, visibility("default"))) bool rnic_heap_find(const void *addr, uint64_t length,
                                                                 struct rnic_heap_place *place);

/* For handlers of forks that hold locks meanwhile: ahead of taking them, and in the parent when they are let go.  The heap's
 * part in a fork takes time, and most of it is done there. */
__attribute__((weak, visibility("default"))) void rnic_heap_before_fork(void);
__attribute__((weak, visibility("default"))) void rnic_heap_after_fork(void);

#endif
