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

#include "base/rng.h"
#include "nic.h"

#define SGE_MAX 32 /* elements of a scatter/gather list */

struct pd {
    struct rnic_pd pub;
    int mrs, qps, srqs, ahs, mws; /* children */
};

struct mr {
    struct rnic_mr pub;
    uint32_t access;    /* enum rnic_access_flags */
    uint64_t shift;     /* what a request names + shift is where the byte lies; wraps around */
    int memfd;          /* of alloc_mr, else -1 */
    struct mr *next;    /* in its bucket */
    struct mw *windows; /* bound to it */
    struct mw *window;  /* whose entry this is (mem/mw.h), NULL: a region's */
};

struct mr_table {
    struct mr **bucket;
    uint32_t mask, count;
    uint32_t windows; /* of count */
};

int mr_table_init(struct mr_table *t);
void mr_table_free(struct mr_table *t);
/* Gives the region a fresh key and enters it. 0 or -ENOMEM. */
int mr_insert(struct mr_table *t, struct mr *mr);
void mr_remove(struct mr_table *t, struct mr *mr);
struct mr *mr_find(const struct mr_table *t, uint32_t key);
struct mr *mr_at(const struct mr_table *t, uint32_t key); /* whatever the key's tag */
/* Where the bytes are, and what may be done to them. */
void mr_place(struct mr *mr, void *addr, uint64_t length, uint32_t access);
bool mr_in_range(const struct mr *mr, uint64_t addr, uint64_t length);

/* Checks [addr, addr + length) under key for pd and access; *ptr: where the bytes are. 0 or an enum rnic_vendor_err of
 * the SGE_ family (mr_local) or the RKEY_ family (mr_remote).  A range of 0 bytes needs no key (IBA C9-88, C10-74). */
int mr_local(const struct mr_table *t, const struct rnic_pd *pd, const struct rnic_sge *sge, uint32_t access,
             uint8_t **ptr);
int mr_remote(const struct mr_table *t, const struct rnic_pd *pd, uint32_t key, uint64_t addr, uint64_t length,
              uint32_t access, uint8_t **ptr);

/* Copies n bytes that start at offset of a scatter/gather list: into dst with the CRC of what was copied, or out of
 * src.  All elements touched are checked before any byte moves. 0 or an enum rnic_vendor_err. */
int sge_gather(const struct mr_table *t, const struct rnic_pd *pd, const struct rnic_sge *sge, int num_sge,
               uint64_t offset, uint8_t *dst, uint32_t n, uint32_t *crc);
int sge_scatter(const struct mr_table *t, const struct rnic_pd *pd, const struct rnic_sge *sge, int num_sge,
                uint64_t offset, const uint8_t *src, uint32_t n);
/* Checks all of a list for access. 0 or an enum rnic_vendor_err. */
int sge_check(const struct mr_table *t, const struct rnic_pd *pd, const struct rnic_sge *sge, int num_sge,
              uint32_t access);

#endif
