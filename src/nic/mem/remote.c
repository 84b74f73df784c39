/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/remote.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/ordered.h"

#define CHANGES (RNIC_ACCESS_REMOTE_WRITE | RNIC_ACCESS_REMOTE_ATOMIC) /* what needs a writable mapping */

#define BUCKETS 256 /* to begin with */

/* Is /proc of our own pid namespace?  Then it has one number for this process; if it is of an outer namespace, it has one for
 * each namespace from there to ours, and a process that we know by a number may be another one there. */
static bool proc_is_ours(void) {
    char line[128];
    int outer, inner;
    FILE *f = fopen("/proc/self/status", "re");
    bool ours = f != NULL;
    while (f && fgets(line, sizeof line, f))
        ours = ours && sscanf(line, "NSpid: %d %d", &outer, &inner) < 2;
    if (f)
        fclose(f);
    return ours;
}

int remote_open(struct remote *r, int fd, pid_t pid, int line, _Atomic uint32_t *mark) {
    *r = (struct remote){.mark = mark, .pid = pid, .line = line, .mask = BUCKETS - 1, .file.fd = -1};
    r->no_process = pid <= 0; /* of another pid namespace */
    r->bucket = calloc(BUCKETS, sizeof *r->bucket);
    int rc = r->bucket ? peer_open(&r->file, fd, NULL) : -ENOMEM;
    r->file.pid = pid > 0 && proc_is_ours() ? pid : 0;
    if (rc)
        remote_close(r);
    return rc;
}

static bool stands(const uint64_t *is, uint64_t was) { return is && __atomic_load_n(is, __ATOMIC_ACQUIRE) == was; }

/* ---------------------------------------------------------------- known regions */

static struct remote_region **bucket_of(const struct remote *r, uint32_t key) { return &r->bucket[key >> 8 & r->mask]; }

static void forget(struct remote_region *g) {
    if (g->at)
        peer_unmap(&g->record, g->at);
    g->is = NULL;
    g->at = NULL;
}

/* All, or those alone that are registered no more. */
static void sweep(struct remote *r, bool all) {
    for (uint32_t i = 0; r->bucket && i <= r->mask; i++) {
        for (struct remote_region **at = &r->bucket[i], *g; (g = *at);) {
            if (!all && stands(g->is, g->was)) {
                at = &g->next;
                continue;
            }
            *at = g->next;
            forget(g);
            free(g);
            r->count--;
        }
    }
}

void remote_close(struct remote *r) {
    sweep(r, true);
    free(r->bucket);
    r->bucket = NULL;
    peer_close(&r->file);
}

void remote_abandon(struct remote *r) { close(r->file.fd); }

/* Twice as many buckets; without memory for them there are more regions to each. */
static void widen(struct remote *r) {
    struct remote old = *r;
    struct remote_region **wide = calloc(2 * (size_t)(r->mask + 1), sizeof *wide);
    if (!wide)
        return;
    r->bucket = wide;
    r->mask = 2 * r->mask + 1;
    for (uint32_t i = 0; i <= old.mask; i++) {
        for (struct remote_region *g = old.bucket[i], *next; g; g = next) {
            struct remote_region **to = bucket_of(r, g->record.key);
            next = g->next;
            g->next = *to;
            *to = g;
        }
    }
    free(old.bucket);
}

/* A place for one more; NULL: there are too many, or there is no memory. */
static struct remote_region *add(struct remote *r, uint32_t key) {
    if (r->count > r->mask || r->count == REMOTE_REGIONS) {
        sweep(r, false);
        if (r->count > r->mask / 2 && r->mask < REMOTE_REGIONS - 1)
            widen(r);
    }
    struct remote_region *g = r->count < REMOTE_REGIONS ? calloc(1, sizeof *g) : NULL, **to = bucket_of(r, key);
    if (!g)
        return NULL;
    g->record.key = key;
    g->next = *to;
    *to = g;
    r->count++;
    return g;
}

/* Else its number may be another's by now. */
static bool lives(const struct remote *r) {
    struct pollfd p = {.fd = r->line};
    return poll(&p, 1, 0) == 0;
}

/* A file that is not the peer's memory file is found by its process.  Ordinary memory need not be in one: then the kernel
 * copies. */
static bool map(const struct remote *r, struct remote_region *g) {
    bool mapped = !peer_map(&r->file, &g->record, g->record.access & CHANGES, &g->at, NULL);
    return mapped ? g->record.kind == STORE_MR || lives(r) : g->record.kind == STORE_ORDINARY;
}

/* What the table says of a key now. */
static void learn_region(const struct remote *r, struct remote_region *g) {
    uint64_t changes = peer_changes(&r->file);
    uint32_t key = g->record.key;
    if (g->absent == changes)
        return;
    forget(g);
    g->absent = changes;
    bool found = !peer_find_key(&r->file, key, &g->record, &g->is);
    if (!found || !map(r, g)) {
        forget(g);
        g->record.key = key;
        return;
    }
    g->was = g->record.serial;
    g->absent = 0;
}

static void learn_qp(const struct remote *r, struct remote_qp *qp, uint32_t qpn, uint32_t ours) {
    struct store_record record;
    uint64_t changes = peer_changes(&r->file);
    if (qp->absent == changes)
        return;
    *qp = (struct remote_qp){.absent = changes};
    if (peer_find(&r->file, STORE_QP, qpn, &record, &qp->is, NULL) || record.key != ours) {
        qp->is = NULL;
        return;
    }
    *qp = (struct remote_qp){qp->is, record.serial, record.pd, record.access, 0};
}

static bool in_range(const struct store_record *m, uint64_t addr, uint64_t length) {
    return addr >= m->iova && length <= m->length && addr - m->iova <= m->length - length;
}

static bool allows(const struct store_record *m, const struct remote_qp *qp, uint32_t access) {
    return m->pd == qp->pd && !(access & ~(m->access | STORE_ANSWERS)) && !(access & ~qp->access);
}

/* What is known of a key; NULL: nothing can be. */
static const struct remote_region *know(struct remote *r, uint32_t key) {
    struct remote_region *g = *bucket_of(r, key);
    while (g && g->record.key != key)
        g = g->next;
    if (!g)
        g = add(r, key);
    if (g && !stands(g->is, g->was))
        learn_region(r, g);
    return g;
}

bool remote_maps(struct remote *r, uint32_t key) {
    const struct remote_region *g = know(r, key);
    return g && g->at;
}

static void enter(struct remote *r) {
    atomic_store_explicit(r->mark, atomic_load_explicit(r->mark, memory_order_relaxed) + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

const uint8_t *remote_look(struct remote *r, uint32_t key, uint64_t addr, uint64_t length) {
    const struct remote_region *g = know(r, key);
    if (!g || !g->at || !in_range(&g->record, addr, length))
        return NULL;
    enter(r);
    if (stands(g->is, g->was))
        return g->at + (addr - g->record.iova);
    remote_leave(r);
    return NULL;
}

/* The region, if the other's queue pair lets this be done to it: then we are inside. */
static const struct remote_region *enter_region(struct remote *r, struct remote_qp *qp, uint32_t qpn, uint32_t ours,
                                                uint32_t key, uint64_t addr, uint64_t length, uint32_t access) {
    const struct remote_region *g = know(r, key);
    if (!stands(qp->is, qp->was))
        learn_qp(r, qp, qpn, ours);
    if (!g || !g->is || !qp->is || !in_range(&g->record, addr, length) || !allows(&g->record, qp, access))
        return NULL;
    enter(r);
    if (stands(g->is, g->was) && stands(qp->is, qp->was))
        return g;
    remote_leave(r);
    return NULL;
}

uint8_t *remote_enter(struct remote *r, struct remote_qp *qp, uint32_t qpn, uint32_t ours, uint32_t key, uint64_t addr,
                      uint64_t length, uint32_t access) {
    const struct remote_region *g = enter_region(r, qp, qpn, ours, key, addr, length, access);
    if (!g)
        return NULL;
    if (g->at)
        return g->at + (addr - g->record.iova);
    remote_leave(r);
    return NULL;
}

bool remote_copy(struct remote *r, struct remote_qp *qp, uint32_t qpn, uint32_t ours, uint32_t key, uint64_t addr,
                 uint64_t length, uint32_t access, const struct iovec *pieces, int n) {
    const struct remote_region *g =
        r->no_process || !lives(r) ? NULL : enter_region(r, qp, qpn, ours, key, addr, length, access);
    if (!g)
        return false;
    uint8_t *at = (uint8_t *)(uintptr_t)(g->record.offset + (addr - g->record.iova));
    uint64_t first = ordered_words(at, length);
    struct iovec there[] = {{at, first}, {at + first, length - first}}; /* the last word is to be seen last */
    const struct iovec *from = first ? there : there + 1;
    unsigned long parts = first ? 2 : 1;
    ssize_t moved = -1;
    if (g->record.kind == STORE_ORDINARY)
        moved = access & RNIC_ACCESS_REMOTE_READ ? process_vm_readv(r->pid, pieces, (unsigned long)n, from, parts, 0)
                                                 : process_vm_writev(r->pid, pieces, (unsigned long)n, from, parts, 0);
    if (moved < 0 && g->record.kind == STORE_ORDINARY)
        r->no_process = errno == EPERM || errno == ENOSYS;
    atomic_thread_fence(memory_order_acquire);
    bool stood = access & CHANGES || stands(g->is, g->was);
    remote_leave(r);
    return stood && moved == (ssize_t)length;
}
