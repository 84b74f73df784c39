/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/mr.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/guard.h"
#include "wire/icrc.h"

int mr_table_init(struct mr_table *t) {
    *t = (struct mr_table){.mask = 255};
    t->bucket = calloc(t->mask + 1, sizeof *t->bucket);
    return t->bucket ? 0 : -ENOMEM;
}

void mr_table_free(struct mr_table *t) {
    free(t->bucket);
    t->bucket = NULL;
}

static uint32_t bucket_of(const struct mr_table *t, uint32_t key) { return (key >> 8) & t->mask; }

struct mr *mr_find(const struct mr_table *t, uint32_t key) {
    struct mr *mr = t->bucket[bucket_of(t, key)];
    while (mr && mr->pub.lkey != key)
        mr = mr->next;
    return mr;
}

struct mr *mr_at(const struct mr_table *t, uint32_t key) {
    struct mr *mr = t->bucket[bucket_of(t, key)];
    while (mr && mr->pub.lkey >> 8 != key >> 8)
        mr = mr->next;
    return mr;
}

struct mr *mr_covering(const struct mr_table *t, uintptr_t at) {
    for (uint32_t i = 0; i <= t->mask; i++)
        for (struct mr *mr = t->bucket[i]; mr; mr = mr->next)
            if (!mr->window && mr->kind == MR_PLAIN && at - (mr->pub.iova + mr->shift) < mr->pub.length)
                return mr;
    return NULL;
}

static void push(struct mr_table *t, struct mr *mr) {
    struct mr **head = &t->bucket[bucket_of(t, mr->pub.lkey)];
    mr->next = *head;
    *head = mr;
}

static int grow(struct mr_table *t) {
    struct mr_table wide = {.mask = t->mask * 2 + 1, .count = t->count, .windows = t->windows};
    wide.bucket = calloc((size_t)wide.mask + 1, sizeof *wide.bucket);
    if (!wide.bucket)
        return -ENOMEM;
    for (uint32_t i = 0; i <= t->mask; i++) {
        for (struct mr *mr = t->bucket[i], *next; mr; mr = next) {
            next = mr->next;
            push(&wide, mr);
        }
    }
    free(t->bucket);
    *t = wide;
    return 0;
}

int mr_insert(struct mr_table *t, struct mr *mr) {
    uint32_t key;
    if (t->count >= (1u << 22) + t->windows)
        return -ENOMEM;
    if (t->count > t->mask && grow(t))
        return -ENOMEM;
    do
        key = rng_secret();
    while (key >> 8 == 0 || mr_at(t, key));
    mr->pub.lkey = mr->pub.rkey = key;
    push(t, mr);
    t->count++;
    return 0;
}

int mr_insert_as(struct mr_table *t, struct mr *mr, uint32_t key) {
    if (mr_at(t, key))
        return -EEXIST;
    if (t->count > t->mask && grow(t))
        return -ENOMEM;
    mr->pub.lkey = mr->pub.rkey = key;
    push(t, mr);
    t->count++;
    return 0;
}

void mr_remove(struct mr_table *t, struct mr *mr) {
    struct mr **at = &t->bucket[bucket_of(t, mr->pub.lkey)];
    while (*at != mr)
        at = &(*at)->next;
    *at = mr->next;
    t->count--;
}

void mr_remember(struct mr_table *t, uint32_t key, uint64_t now) {
    uint32_t i = t->ngone++ % MR_GONE;
    t->gone[i].key = key;
    t->gone[i].at = now;
}

uint64_t mr_gone(const struct mr_table *t, uint32_t key) {
    for (uint32_t i = 1; i <= MR_GONE && i <= t->ngone; i++) {
        if (t->gone[(t->ngone - i) % MR_GONE].key == key)
            return t->gone[(t->ngone - i) % MR_GONE].at;
    }
    return 0;
}

bool mr_in_range(const struct mr *mr, uint64_t addr, uint64_t length) {
    uint64_t start = mr->pub.iova;
    return addr >= start && length <= mr->pub.length && addr - start <= mr->pub.length - length;
}

/* Not for the usual case, in which the two are one. */
bool mr_same_pd(const struct rnic_pd *has, const struct rnic_pd *asks) {
    return asks && rnic_pd_root(has) == rnic_pd_root(asks);
}

bool mr_place(const struct mr *mr, uint64_t addr, uint8_t **ptr) {
    *ptr = (uint8_t *)(uintptr_t)(addr + mr->shift);
    return mr->kind == MR_PLAIN || kind_place(mr, ptr);
}

int mr_local(const struct mr_table *t, const struct rnic_pd *pd, const struct rnic_sge *sge, uint32_t access,
             uint8_t **ptr) {
    *ptr = (uint8_t *)(uintptr_t)sge->addr;
    if (sge->length == 0)
        return 0;
    const struct mr *mr = mr_find(t, sge->lkey);
    if (!mr)
        return RNIC_VE_SGE_BAD_LKEY;
    if (mr->pub.pd != pd && !mr_same_pd(mr->pub.pd, pd))
        return mr->window ? RNIC_VE_SGE_BAD_LKEY : RNIC_VE_SGE_PD;
    if (!mr_in_range(mr, sge->addr, sge->length))
        return RNIC_VE_SGE_BOUNDS;
    if (access & ~mr->access)
        return RNIC_VE_SGE_ACCESS;
    return mr_place(mr, sge->addr, ptr) ? 0 : RNIC_VE_SGE_BAD_LKEY;
}

int mr_remote(const struct mr_table *t, const struct rnic_pd *pd, uint32_t key, uint64_t addr, uint64_t length,
              uint32_t access, uint8_t **ptr) {
    *ptr = (uint8_t *)(uintptr_t)addr;
    if (length == 0)
        return 0;
    const struct mr *mr = mr_find(t, key);
    if (!mr)
        return RNIC_VE_RKEY_BAD;
    if (mr->pub.pd != pd && !mr_same_pd(mr->pub.pd, pd))
        return RNIC_VE_RKEY_PD;
    if (!mr_in_range(mr, addr, length))
        return RNIC_VE_RKEY_BOUNDS;
    if (access & ~mr->access)
        return RNIC_VE_RKEY_ACCESS;
    return mr_place(mr, addr, ptr) ? 0 : RNIC_VE_RKEY_BAD;
}

int mr_remote_load(const struct mr_table *t, uint32_t key, uint64_t addr, uint8_t *dst, uint32_t n) {
    return kind_load(mr_find(t, key), addr, dst, n) ? 0 : RNIC_VE_RKEY_UNMAPPED;
}

int mr_remote_store(const struct mr_table *t, uint32_t key, uint64_t addr, const uint8_t *src, uint32_t n) {
    return kind_store(mr_find(t, key), addr, src, n) ? 0 : RNIC_VE_RKEY_UNMAPPED;
}

int mr_remote_word(const struct mr_table *t, uint32_t key, uint64_t addr, const struct word_op *op, uint64_t *was) {
    const struct mr *mr = mr_find(t, key);
    if (mr->kind != MR_GUARDED)
        return RNIC_VE_RKEY_ACCESS;
    if ((addr + mr->shift) % sizeof *was)
        return RNIC_VE_ATOMIC_ALIGN;
    return guarded_word(addr + mr->shift, op, was) ? 0 : RNIC_VE_RKEY_UNMAPPED;
}

int sge_check(const struct mr_table *t, const struct rnic_pd *pd, const struct rnic_sge *sge, int num_sge,
              uint32_t access) {
    uint8_t *ptr;
    for (int i = 0; i < num_sge; i++) {
        int ve = mr_local(t, pd, &sge[i], access, &ptr);
        if (ve)
            return ve;
    }
    return 0;
}

/* The part of a list that [offset, offset + n) covers, element by element. */
struct sge_walk {
    const struct rnic_sge *sge;
    int left;        /* elements from sge on */
    uint64_t offset; /* into *sge */
};

static void walk_start(struct sge_walk *w, const struct rnic_sge *sge, int num_sge, uint64_t offset) {
    while (num_sge && offset >= sge->length) {
        offset -= sge->length;
        sge++;
        num_sge--;
    }
    *w = (struct sge_walk){sge, num_sge, offset};
}

/* What the current element has for n more bytes; advances. Of length 0: the list is at its end. */
static struct rnic_sge walk_step(struct sge_walk *w, uint32_t n) {
    while (w->left && w->offset >= w->sge->length) {
        w->sge++;
        w->left--;
        w->offset = 0;
    }
    if (!w->left)
        return (struct rnic_sge){0};
    uint64_t room = w->sge->length - w->offset;
    uint32_t take = n < room ? n : (uint32_t)room;
    struct rnic_sge part = {w->sge->addr + w->offset, take, w->sge->lkey};
    w->offset += take;
    return part;
}

/* *direct: all of it lies where its elements say. */
static int walk_check(const struct mr_table *t, const struct rnic_pd *pd, struct sge_walk w, uint32_t n,
                      uint32_t access, bool *direct) {
    *direct = true;
    while (n) {
        uint8_t *ptr;
        uint32_t take = walk_step(&w, n).length;
        if (!take)
            return RNIC_VE_RECV_TOO_SMALL;
        /* The whole element must lie in its region, not only the part in hand (IBA 10.6.5). */
        int ve = mr_local(t, pd, w.sge, access, &ptr);
        if (ve)
            return ve;
        *direct &= ptr && (uintptr_t)ptr == w.sge->addr;
        n -= take;
    }
    return 0;
}

/* The same copies for elements that were checked, by way of their regions. */
static int gather_by_region(const struct mr_table *t, struct sge_walk w, uint8_t *dst, uint32_t n, uint32_t *crc) {
    while (n) {
        struct rnic_sge part = walk_step(&w, n);
        if (!kind_load(mr_find(t, part.lkey), part.addr, dst, part.length))
            return RNIC_VE_SGE_UNMAPPED;
        if (crc)
            *crc = crc32_update(*crc, dst, part.length);
        dst += part.length;
        n -= part.length;
    }
    return 0;
}

static int scatter_by_region(const struct mr_table *t, struct sge_walk w, const uint8_t *src, uint32_t n) {
    while (n) {
        struct rnic_sge part = walk_step(&w, n);
        if (!kind_store(mr_find(t, part.lkey), part.addr, src, part.length))
            return RNIC_VE_SGE_UNMAPPED;
        src += part.length;
        n -= part.length;
    }
    return 0;
}

/* Most lists have one element, and most copies lie in it: where, NULL with *ve = 0: it takes a walk. */
static uint8_t *in_one(const struct mr_table *t, const struct rnic_pd *pd, const struct rnic_sge *sge, int num_sge,
                       uint64_t offset, uint32_t n, uint32_t access, int *ve) {
    uint8_t *ptr;
    *ve = 0;
    if (num_sge != 1 || !n || offset + n > sge->length)
        return NULL;
    *ve = mr_local(t, pd, sge, access, &ptr);
    return !*ve && ptr && (uintptr_t)ptr == sge->addr ? ptr + offset : NULL;
}

static void copy_summed(void *dst, const void *src, size_t n, void *crc) {
    *(uint32_t *)crc = crc32_copy(*(uint32_t *)crc, dst, src, n);
}

/* Without a CRC it may be a peer's memory, by direct operations. */
bool mr_copy(uint8_t *dst, const uint8_t *src, uint32_t n, uint32_t *crc) {
    return crc ? guard(copy_summed, dst, src, n, crc) : guard_copy(dst, src, n);
}

int sge_gather(const struct mr_table *t, const struct rnic_pd *pd, const struct rnic_sge *sge, int num_sge,
               uint64_t offset, uint8_t *dst, uint32_t n, uint32_t *crc) {
    struct sge_walk w;
    bool direct;
    int ve;
    const uint8_t *from = in_one(t, pd, sge, num_sge, offset, n, 0, &ve);
    if (from && !mr_copy(dst, from, n, crc))
        return RNIC_VE_SGE_UNMAPPED;
    if (from || ve)
        return ve;
    walk_start(&w, sge, num_sge, offset);
    ve = walk_check(t, pd, w, n, 0, &direct);
    if (ve)
        return ve;
    if (!direct)
        return gather_by_region(t, w, dst, n, crc);
    while (n) {
        struct rnic_sge part = walk_step(&w, n);
        if (!mr_copy(dst, (const uint8_t *)(uintptr_t)part.addr, part.length, crc))
            return RNIC_VE_SGE_UNMAPPED;
        dst += part.length;
        n -= part.length;
    }
    return 0;
}

int sge_scatter(const struct mr_table *t, const struct rnic_pd *pd, const struct rnic_sge *sge, int num_sge,
                uint64_t offset, const uint8_t *src, uint32_t n) {
    struct sge_walk w;
    bool direct;
    int ve;
    uint8_t *to = in_one(t, pd, sge, num_sge, offset, n, RNIC_ACCESS_LOCAL_WRITE, &ve);
    if (to && !guard_copy(to, src, n))
        return RNIC_VE_SGE_UNMAPPED;
    if (to || ve)
        return ve;
    walk_start(&w, sge, num_sge, offset);
    ve = walk_check(t, pd, w, n, RNIC_ACCESS_LOCAL_WRITE, &direct);
    if (ve)
        return ve;
    if (!direct)
        return scatter_by_region(t, w, src, n);
    while (n) {
        struct rnic_sge part = walk_step(&w, n);
        if (!guard_copy((void *)(uintptr_t)part.addr, src, part.length))
            return RNIC_VE_SGE_UNMAPPED;
        src += part.length;
        n -= part.length;
    }
    return 0;
}

int sge_pieces(const struct mr_table *t, const struct rnic_pd *pd, const struct rnic_sge *sge, int num_sge,
               uint64_t offset, uint32_t n, uint32_t access, struct iovec *pieces, int *count) {
    struct sge_walk w;
    bool direct = true;
    *count = 0;
    for (walk_start(&w, sge, num_sge, offset); n;) {
        struct rnic_sge part = walk_step(&w, n);
        uint8_t *ptr;
        if (!part.length)
            return RNIC_VE_RECV_TOO_SMALL;
        int ve = mr_local(t, pd, w.sge, access, &ptr);
        if (ve)
            return ve;
        direct &= ptr != NULL;
        pieces[(*count)++] = (struct iovec){ptr + (part.addr - w.sge->addr), part.length};
        n -= part.length;
    }
    *count = direct ? *count : 0;
    return 0;
}
