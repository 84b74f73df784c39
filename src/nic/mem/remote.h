/* SPDX-License-Identifier: Apache-2.0
 *
 * Regions of another process of this host and user, as one-sided operations reach them without that process: by its
 * memory file, whose table says what is registered.
 *
 * Who is about to touch another's bytes says so first (the mark), then looks whether they are still registered; the owner
 * takes a region out of the table first, then waits until the marks of all peers have moved.  So no byte is touched once
 * the owner knows it to be its own again.
 */
#ifndef RNIC_MEM_REMOTE_H
#define RNIC_MEM_REMOTE_H

#include <stdatomic.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "mem/store.h"

#define REMOTE_REGIONS 16384u /* known at a time: each is a mapping, of which a process can have 65,530 */

struct remote_region {
    struct remote_region *next; /* in its bucket */
    const uint64_t *is;         /* registered while *is == was; NULL: nothing is known */
    uint64_t was;
    struct store_record record;
    uint8_t *at;     /* mapped, or NULL: in its process, if it is STORE_ORDINARY */
    uint64_t absent; /* peer_changes() when the key was not found */
};

struct remote {
    struct peer file;
    pid_t pid;
    int line;               /* hangs up when it ends */
    bool no_process;        /* we may not read and write its process (ptrace(2)) */
    _Atomic uint32_t *mark; /* odd: this process is inside a copy */
    struct remote_region **bucket;
    uint32_t mask, count;
};

/* A queue pair of the other process: what an operation on its regions is allowed. */
struct remote_qp {
    const uint64_t *is; /* as above */
    uint64_t was;
    uint32_t pd, access;
    uint64_t absent;
};

/* fd: the other's memory file, which is duplicated; line: a connection to it. 0 or -errno */
int remote_open(struct remote *r, int fd, pid_t pid, int line, _Atomic uint32_t *mark);
void remote_close(struct remote *r);
void remote_abandon(struct remote *r); /* in a forked child: its descriptor */

/* Where the bytes are, if the other's queue pair qpn, whose peer is ours, may have this access to them: then the mark is set, and remote_leave() is to follow
 * at once.  NULL: not this way: whoever answers for the other process decides. */
uint8_t *remote_enter(struct remote *r, struct remote_qp *qp, uint32_t qpn, uint32_t ours, uint32_t key, uint64_t addr,
                      uint64_t length, uint32_t access);
/* The same for memory that is not in the file, by way of the kernel: copies, between there and n pieces of ours.  False:
 * not this way, or not all of it, or the region was withdrawn while it was read.  Bytes become visible in the order of the
 * pieces, pages and what is behind the pieces likewise, the last word there last. */
bool remote_copy(struct remote *r, struct remote_qp *qp, uint32_t qpn, uint32_t ours, uint32_t key, uint64_t addr,
                 uint64_t length, uint32_t access, const struct iovec *pieces, int n);
/* Is there a region of that key whose bytes remote_enter() could find? */
bool remote_maps(struct remote *r, uint32_t key);
/* The same for bytes that their owner itself has asked us to read. */
const uint8_t *remote_look(struct remote *r, uint32_t key, uint64_t addr, uint64_t length);
static inline void remote_leave(struct remote *r) {
    atomic_store_explicit(r->mark, atomic_load_explicit(r->mark, memory_order_relaxed) + 1, memory_order_release);
}

#endif
