/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory regions and their keys (IBA 10.6; 11.2.8.1): the one place where a key, an address range and a right are
 * checked, on both sides of a transfer.
 *
 * A key is 24 random bits (the table's index) and an 8-bit tag; lkey and rkey are equal.  Everything here runs under
 * the device's lock, so a region that has been taken out of the table is no longer touched by anyone.
 */
#ifndef RNIC_MEM_MR_H
#define RNIC_MEM_MR_H

#include <sys/uio.h>

#include "base/listed.h"
#include "base/rng.h"
#include "base/word.h"
#include "mem/lock.h"
#include "nic.h"

#define SGE_MAX 32 /* elements of a scatter/gather list */

struct pd {
    struct rnic_pd pub;
    struct listed listed; /* in the context's list of its kind; device's lock */
    int mrs, qps, srqs, ahs, mws, cqs,
        domains;   /* children; cqs: of a parent domain; domains: parent domains that stand for it */
    int imports;   /* within this process */
    struct td *td; /* of a parent domain, or NULL */
    int record;    /* where other processes find it (mem/store.h), -1: nowhere */
    bool foreign;  /* another process' */
};

struct td {
    struct rnic_td pub;
    struct listed listed; /* as of struct pd */
    int domains;          /* parent domains that use it */
};

struct dm {
    struct rnic_dm pub;
    struct listed listed;
    uint8_t *mem;
    uint64_t stored_at; /* its place in the memory file of its owner */
    int mrs, imports;
    int record;   /* as above */
    bool foreign; /* another process': registered while *is == was */
    const uint64_t *is;
    uint64_t was;
};

/* How the bytes of a region are reached: mem/kinds.c for all but the first. */
enum mr_kind {
    MR_PLAIN,   /* at their address */
    MR_FOREIGN, /* the same, while the process that owns them says that they are registered */
    MR_GUARDED, /* pages may be missing: with system calls that fail instead of a signal */
    MR_DMABUF,  /* at their address, between two calls that tell the exporter */
    MR_NULL,    /* there are none: zeros */
};

struct mr {
    struct rnic_mr pub;
    uint32_t access; /* enum rnic_access_flags */
    enum mr_kind kind;
    uint64_t shift;     /* what a request names + shift is where the byte lies; wraps around */
    struct mr *next;    /* in its bucket */
    struct mw *windows; /* bound to it */
    struct mw *window;  /* whose entry this is (mem/mw.h), NULL: a region's */

    /* Where the bytes come from, for the end. */
    uint8_t *map; /* mapping that goes with the region, or NULL */
    uint64_t map_bytes;
    uint64_t stored_at; /* its place in the device's memory file, */
    bool stored;        /* if it is there, to be freed */
    struct dm *dm;      /* or NULL */
    int sealed;         /* or a file of its own, which others may only read; -1: it is not */
    uint64_t inode;     /* of that file */
    int fd;             /* of MR_DMABUF */
    bool lost;          /* its memory was not there when it was used, and the program has been told */
    int record;         /* where other processes find it (mem/store.h), -1: nowhere */
    bool is_mapped;     /* there: processes that find it can map it, and do not only have it copied by the kernel */
    bool leaving;       /* a thread waits for peers that are inside it, to close or change it */
    int imports;        /* within this process */
    const uint64_t *is; /* of MR_FOREIGN: registered while *is == was */
    uint64_t was;
    struct lock lock;     /* what of memory it keeps from being swapped */
    struct listed listed; /* of a region; as of struct pd */
};

/* Its bytes lie in the device's own memory file. */
static inline bool mr_in_file(const struct mr *mr) { return mr->stored || (mr->dm && !mr->dm->foreign); }

#define MR_GONE 64 /* deregistered regions whose keys are remembered, for people who look for a mistake */

struct mr_table {
    struct mr **bucket;
    uint32_t mask, count;
    uint32_t windows; /* of count */
    struct {
        uint32_t key;
        uint64_t at; /* ns */
    } gone[MR_GONE];
    uint32_t ngone; /* that there have been: the newest replaces the oldest */
};

int mr_table_init(struct mr_table *t);
void mr_table_free(struct mr_table *t);
/* Gives the region a fresh key and enters it. 0 or -ENOMEM. */
int mr_insert(struct mr_table *t, struct mr *mr);
int mr_insert_as(struct mr_table *t, struct mr *mr, uint32_t key); /* under a given key; -EEXIST: it is taken */
void mr_remove(struct mr_table *t, struct mr *mr);
void mr_remember(struct mr_table *t, uint32_t key, uint64_t now); /* it was a region's, until now */
/* When the region that had this key was deregistered; 0: it is not known that there was one. */
uint64_t mr_gone(const struct mr_table *t, uint32_t key);
struct mr *mr_find(const struct mr_table *t, uint32_t key);
struct mr *mr_at(const struct mr_table *t, uint32_t key); /* whatever the key's tag */
/* The region of the program's own memory where an address lies, or NULL: takes long. */
struct mr *mr_covering(const struct mr_table *t, uintptr_t at);
bool mr_in_range(const struct mr *mr, uint64_t addr, uint64_t length);
/* *ptr: as of mr_remote(); false: the bytes are gone. */
bool mr_place(const struct mr *mr, uint64_t addr, uint8_t **ptr);
/* Parent domains stand for their protection domain. asks: NULL when what asks has none (any more). */
bool mr_same_pd(const struct rnic_pd *has, const struct rnic_pd *asks);

/* Checks [addr, addr + length) under key for pd and access; *ptr: where the bytes are, NULL: they can be reached by
 * mr_remote_load(), mr_remote_store() and mr_remote_word() alone. 0 or an enum rnic_vendor_err of the SGE_
 * family (mr_local) or the RKEY_ family (mr_remote).  A range of 0 bytes needs no key (IBA C9-88, C10-74). */
int mr_local(const struct mr_table *t, const struct rnic_pd *pd, const struct rnic_sge *sge, uint32_t access,
             uint8_t **ptr);
int mr_remote(const struct mr_table *t, const struct rnic_pd *pd, uint32_t key, uint64_t addr, uint64_t length,
              uint32_t access, uint8_t **ptr);

/* For a range that mr_remote() has just allowed and gave no address for. 0 or RNIC_VE_RKEY_UNMAPPED. */
int mr_remote_load(const struct mr_table *t, uint32_t key, uint64_t addr, uint8_t *dst, uint32_t n);
int mr_remote_store(const struct mr_table *t, uint32_t key, uint64_t addr, const uint8_t *src, uint32_t n);

/* The same for 8 bytes at once. *was: what they were. 0, or also RNIC_VE_ATOMIC_ALIGN, RNIC_VE_RKEY_ACCESS: memory of this
 * kind cannot be changed so. */
int mr_remote_word(const struct mr_table *t, uint32_t key, uint64_t addr, const struct word_op *op, uint64_t *was);

/* kinds.c: of a region that is not plain. place: where the bytes are, NULL as above; false: they are gone.
 * load, store: false: they cannot be reached. */
bool kind_place(const struct mr *mr, uint8_t **ptr);
bool kind_load(const struct mr *mr, uint64_t addr, uint8_t *dst, uint32_t n);
bool kind_store(const struct mr *mr, uint64_t addr, const uint8_t *src, uint32_t n);
bool kind_guard_works(void);       /* this system allows what MR_GUARDED needs */
enum mr_kind kind_of_file(int fd); /* MR_DMABUF or MR_GUARDED */

/* guarded_word.c: false: the word is missing, or may not be written. addr: aligned */
bool guarded_word(uint64_t addr, const struct word_op *op, uint64_t *was);
bool guarded_word_works(void); /* this system allows what it needs */

/* Copies n bytes that start at offset of a scatter/gather list: into dst with the CRC of what was copied unless crc is
 * NULL, or out of src.  All elements touched are checked before any byte moves. 0 or an enum rnic_vendor_err. */
int sge_gather(const struct mr_table *t, const struct rnic_pd *pd, const struct rnic_sge *sge, int num_sge,
               uint64_t offset, uint8_t *dst, uint32_t n, uint32_t *crc);
int sge_scatter(const struct mr_table *t, const struct rnic_pd *pd, const struct rnic_sge *sge, int num_sge,
                uint64_t offset, const uint8_t *src, uint32_t n);
/* Copies n bytes that mr_remote() has allowed and placed at src, crc as above.  False: they are not mapped any more. */
bool mr_copy(uint8_t *dst, const uint8_t *src, uint32_t n, uint32_t *crc);
/* Where those bytes are, in their order: *count pieces, with room for one for each element; 0: some have no address, and only
 * the copies reach them. 0 or an enum rnic_vendor_err. */
int sge_pieces(const struct mr_table *t, const struct rnic_pd *pd, const struct rnic_sge *sge, int num_sge,
               uint64_t offset, uint32_t n, uint32_t access, struct iovec *pieces, int *count);
/* Checks all of a list for access. 0 or an enum rnic_vendor_err. */
int sge_check(const struct mr_table *t, const struct rnic_pd *pd, const struct rnic_sge *sge, int num_sge,
              uint32_t access);

#endif
