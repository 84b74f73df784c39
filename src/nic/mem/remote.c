/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/remote.h"

#include <errno.h>
#include <poll.h>

#define CHANGES (RNIC_ACCESS_REMOTE_WRITE | RNIC_ACCESS_REMOTE_ATOMIC) /* what needs a writable mapping */

int remote_open(struct remote *r, int fd, pid_t pid, int line, _Atomic uint32_t *mark) {
    r->mark = mark;
    r->pid = pid;
    r->line = line;
    r->no_process = pid <= 0; /* of another pid namespace */
    return peer_open(&r->file, fd, NULL);
}

static void forget(struct remote_region *g) {
    if (g->at)
        peer_unmap(&g->record, g->at);
    *g = (struct remote_region){0};
}

void remote_close(struct remote *r) {
    for (int i = 0; i < REMOTE_REGIONS; i++)
        forget(&r->region[i]);
    peer_close(&r->file);
}

static bool stands(const uint64_t *is, uint64_t was) { return is && __atomic_load_n(is, __ATOMIC_ACQUIRE) == was; }

/* What the table says of a key now. */
static void learn_region(struct remote *r, struct remote_region *g, uint32_t key) {
    uint64_t changes = peer_changes(&r->file);
    if (g->record.key == key && g->absent == changes)
        return;
    forget(g);
    g->record.key = key;
    g->absent = changes;
    if (peer_find_key(&r->file, key, &g->record, &g->is) ||
        (g->record.kind == STORE_MR && peer_map(&r->file, &g->record, g->record.access & CHANGES, &g->at, NULL))) {
        g->is = NULL;
        g->at = NULL;
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
    return m->pd == qp->pd && !(access & ~m->access) && !(access & ~qp->access);
}

static struct remote_region *know(struct remote *r, uint32_t key) {
    struct remote_region *g = &r->region[(key >> 8) % REMOTE_REGIONS];
    if (g->record.key != key || !stands(g->is, g->was))
        learn_region(r, g, key);
    return g;
}

static void enter(struct remote *r) {
    atomic_store_explicit(r->mark, atomic_load_explicit(r->mark, memory_order_relaxed) + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

const uint8_t *remote_look(struct remote *r, uint32_t key, uint64_t addr, uint64_t length) {
    const struct remote_region *g = know(r, key);
    if (!g->at || !in_range(&g->record, addr, length))
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
    if (!g->is || !qp->is || !in_range(&g->record, addr, length) || !allows(&g->record, qp, access))
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

/* Else its number may be another's by now. */
static bool lives(const struct remote *r) {
    struct pollfd p = {.fd = r->line};
    return poll(&p, 1, 0) == 0;
}

bool remote_copy(struct remote *r, struct remote_qp *qp, uint32_t qpn, uint32_t ours, uint32_t key, uint64_t addr,
                 uint64_t length, uint32_t access, const struct iovec *pieces, int n) {
    const struct remote_region *g =
        r->no_process || !lives(r) ? NULL : enter_region(r, qp, qpn, ours, key, addr, length, access);
    if (!g)
        return false;
    struct iovec there = {(void *)(uintptr_t)(g->record.offset + (addr - g->record.iova)), length};
    ssize_t moved = -1;
    if (g->record.kind == STORE_ORDINARY)
        moved = access == RNIC_ACCESS_REMOTE_READ ? process_vm_readv(r->pid, pieces, (unsigned long)n, &there, 1, 0)
                                                  : process_vm_writev(r->pid, pieces, (unsigned long)n, &there, 1, 0);
    if (moved < 0 && g->record.kind == STORE_ORDINARY)
        r->no_process = errno == EPERM || errno == ENOSYS;
    remote_leave(r);
    return moved == (ssize_t)length;
}
