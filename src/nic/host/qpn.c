/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue pair numbers: slot and random index.  An index rests after use, so that packets of its last owner meet nobody.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/fail.h"
#include "host/host.h"

#define REST_NS 1000000000ull
#define TRIES 64

int qpn_add_slot(struct host *host, struct rnic_err *err) {
    int i = host->nslots;
    if (i == SLOTS_EACH)
        return fail(err, -EUSERS, "no queue pair number is free: this context has all of its %d slots", SLOTS_EACH);
    host->table[i] = calloc(QPN_INDICES, sizeof *host->table[i]);
    host->freed[i] = calloc(QPN_INDICES, sizeof *host->freed[i]);
    int rc = host->table[i] && host->freed[i] ? slot_claim(&host->slots[i], err) : -ENOMEM;
    if (rc) {
        bool memory = host->table[i] && host->freed[i];
        free(host->table[i]);
        free(host->freed[i]);
        return memory ? rc : fail(err, rc, "no memory for %u queue pair numbers", QPN_INDICES);
    }
    host->nslots++;
    return 0;
}

void qpn_free(struct host *host) {
    for (int i = 0; i < host->nslots; i++) {
        slot_release(&host->slots[i]);
        free(host->table[i]);
        free(host->freed[i]);
    }
    host->nslots = 0;
}

bool qpn_is_ours(const struct host *host, uint32_t slot) {
    for (int i = 0; i < host->nslots; i++) {
        if (host->slots[i].number == slot)
            return true;
    }
    return false;
}

struct qp *qpn_find(const struct host *host, uint32_t qpn) {
    for (int i = 0; i < host->nslots; i++) {
        if (host->slots[i].number == qpn_slot(qpn))
            return host->table[i][qpn & (QPN_INDICES - 1)];
    }
    return NULL;
}

bool qpn_rests(const struct host *host, uint32_t qpn, uint64_t now) {
    for (int i = 0; i < host->nslots; i++) {
        uint64_t freed = host->freed[i][qpn & (QPN_INDICES - 1)];
        if (host->slots[i].number == qpn_slot(qpn))
            return freed && now - freed <= REST_NS;
    }
    return false;
}

/* 0 and 1 are the management QPs, 0xFFFFFF is multicast (IBA 10.2.4.1 and 9.3.1.. of the BTH). */
static bool usable(const struct host *host, int slot, uint32_t index, uint64_t now) {
    uint32_t qpn = host->slots[slot].number << QPN_INDEX_BITS | index;
    uint64_t freed = host->freed[slot][index];
    return qpn > 1 && qpn != 0xFFFFFF && !host->table[slot][index] && (!freed || now - freed > REST_NS);
}

static bool take_of(struct host *host, int slot, struct qp *qp, uint64_t now) {
    for (int i = 0; i < TRIES; i++) {
        uint32_t index = (uint32_t)(rng_next(&host->nic->rng) >> 40) & (QPN_INDICES - 1);
        if (!usable(host, slot, index, now))
            continue;
        host->table[slot][index] = qp;
        qp->pub.qp_num = host->slots[slot].number << QPN_INDEX_BITS | index;
        return true;
    }
    return false;
}

bool qpn_take(struct host *host, struct qp *qp) {
    uint64_t now = run_clock();
    for (int slot = 0; slot < host->nslots; slot++) {
        if (take_of(host, slot, qp, now))
            return true;
    }
    return false;
}

void qpn_remove(struct host *host, struct qp *qp) {
    for (int i = 0; i < host->nslots; i++) {
        uint32_t index = qp->pub.qp_num & (QPN_INDICES - 1);
        if (host->slots[i].number != qpn_slot(qp->pub.qp_num))
            continue;
        host->table[i][index] = NULL;
        host->freed[i][index] = run_clock();
    }
}

void qpn_each(struct host *host, void (*visit)(struct host *host, struct qp *qp)) {
    for (int i = 0; i < host->nslots; i++) {
        for (uint32_t index = 0; index < QPN_INDICES; index++) {
            if (host->table[i][index])
                visit(host, host->table[i][index]);
        }
    }
    if (host->gsi)
        visit(host, host->gsi);
}
