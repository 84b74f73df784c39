/* SPDX-License-Identifier: Apache-2.0
 *
 * A device's memory file: the memory that it makes itself (alloc_mr, device memory), so that another process can map
 * it, behind a table that says what is in it.  Its descriptor is the context's cmd_fd: who has it may import.
 *
 * The owner writes the table and never reads it.  Whoever imports believes nothing of it: a record is copied, then
 * checked against the size of the file, which its seals forbid to shrink, so that no mapping can lose its pages.
 * A place in the file is never used twice: who still writes after the owner has freed it hurts nobody.
 *
 * Memory that peers may read, and nobody's requests may write, is a file of its own, sealed against writing once its owner
 * has mapped it: a peer opens it by the owner's descriptor in /proc, and the kernel lets it read and no more.  A number of a
 * process and a descriptor may lead to a stranger's file, so the record also has the inode.
 */
#ifndef RNIC_MEM_STORE_H
#define RNIC_MEM_STORE_H

#include <sys/types.h>

#include "nic.h"

enum store_kind {
    STORE_PD = 1,
    STORE_MR,
    STORE_DM,
    STORE_QP,
    STORE_ORDINARY, /* a region that is not in this file */
    STORE_SEALED,   /* one that is a file of its own */
};

#define STORE_RECORDS 65536u
#define STORE_SEALED_MAX 256 /* files: more regions lie in the common one, as a process has not many descriptors */
#define STORE_ANSWERS (1u << 31) /* in a queue pair's access: it has responder resources, which some operations take */
#define STORE_TABLE (STORE_RECORDS * 72ull) /* bytes, at the beginning of the file; record 0 is the head */

struct store_record {
    uint64_t serial; /* written last, and 0 first when the object goes; never twice the same */
    uint32_t kind;   /* enum store_kind */
    uint32_t handle;
    uint32_t pd;  /* of a region or queue pair: the handle of its domain */
    uint32_t key; /* of a region */
    uint32_t access;
    uint32_t heap; /* of STORE_ORDINARY: 1 + the descriptor of a file where the bytes lie, too (nic_heap.h), or 0 */
    uint64_t iova; /* of a region */
    uint64_t offset, length; /* in the file; of STORE_ORDINARY in the owner's process, of STORE_SEALED its descriptor */
    uint64_t heap_offset;    /* in that file */
    uint64_t inode;          /* of the file of a descriptor that is named here: STORE_SEALED, or heap */
};

struct store_head {
    uint64_t magic;
    uint32_t version;
    uint32_t used; /* records that have ever been written, the head included */
    char netdev[16];
    uint64_t guid;      /* of the network device */
    uint64_t changes;   /* of the table, so far */
    uint64_t transport; /* enum rnic_transport */
    uint64_t reserved[2];
};

/* Many short pieces of memory are parts of one mapping, of which a process has 65,530 (vm.max_map_count). */
struct store_block {
    struct store_block *next;
    uint8_t *at;
    uint64_t offset, bytes; /* in the file */
    uint64_t used;          /* of bytes, so far */
    uint32_t live;          /* pieces that are not freed */
};

struct store_range { /* of the file, and where it is mapped; unmaps: it is mapped for itself, or nothing lives there */
    uint64_t offset, bytes;
    uint8_t *at;
    bool unmaps;
};

struct store {
    int fd;                     /* -1: not open */
    struct store_block *blocks; /* the newest first: that one may have room */
    struct store_block *alone;  /* of one long piece each */
    struct store_record *table;
    uint64_t end; /* bytes of the file */
    uint64_t serial;
    uint32_t next;                /* no record before this one is free */
    uint8_t *taken;               /* by record */
    int sealed[STORE_SEALED_MAX]; /* descriptors, */
    int nsealed;                  /* and how many */
};

int store_open(struct store *s, const char *netdev, int transport, uint64_t guid, struct rnic_err *err);
void store_close(struct store *s);

/* Zeroed memory: its place in the file and where it is mapped. */
int store_alloc(struct store *s, uint64_t length, uint64_t *offset, uint8_t **addr, struct rnic_err *err);
/* It is nobody's any more; store_discard() then gives the pages back, which may take long and needs no lock. */
struct store_range store_free(struct store *s, uint64_t offset, uint64_t length, uint8_t *addr);
void store_discard(const struct store *s, const struct store_range *range);

/* Whether bytes of this process lie in the file, and where. */
bool store_find(struct store *s, const uint8_t *addr, uint64_t length, uint64_t *offset);

/* As store_alloc(), for memory that others may only read, in a file of its own; *fd: stays the store's. -ENOSPC: not so */
int store_alloc_sealed(struct store *s, uint64_t length, int *fd, uint64_t *inode, uint8_t **addr);
void store_free_sealed(struct store *s, int fd, uint64_t length, uint8_t *addr);
void store_abandon(struct store *s); /* in a forked child: its descriptors */

/* The number of the record, which then says so; -1: the table is full, and the object is for this process alone. */
int store_publish(struct store *s, const struct store_record *what);
void store_withdraw(struct store *s, int record);
/* In between: nobody finds it, and whoever has found it does not any more; then it is there again. */
void store_hide(struct store *s, int record);
void store_show(struct store *s, int record);

/* Another process' file. */
struct peer {
    int fd;    /* -1: none */
    pid_t pid; /* whose; 0: not known, or of another pid namespace, or not what /proc shows by that number */
    const struct store_record *table;
    struct store_head head; /* checked */
};

int peer_open(struct peer *p, int fd, struct rnic_err *err); /* fd stays the caller's. -EINVAL: not such a file */
void peer_close(struct peer *p);
/* A copy of the record, checked; *is: what stays equal to out->serial while the object is there. 0, -ENOENT, -EINVAL */
int peer_find(const struct peer *p, int kind, uint32_t handle, struct store_record *out, const uint64_t **is,
              struct rnic_err *err);
int peer_map(const struct peer *p, const struct store_record *record, bool writable, uint8_t **addr,
             struct rnic_err *err);
void peer_unmap(const struct store_record *record, uint8_t *addr);
/* The same for a region by its key, and how often the table has changed: what was not found then will not be there before
 * it changes again. */
int peer_find_key(const struct peer *p, uint32_t key, struct store_record *out, const uint64_t **is);
uint64_t peer_changes(const struct peer *p);

#endif
