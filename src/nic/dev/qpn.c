/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue pair numbers: slot and random index.  An index rests after use, so that packets of its last owner meet nobody.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/fail.h"
#include "dev/dev.h"

#define REST_NS 1000000000ull
#define TRIES 64

static int add_slot(struct dev *dev, struct rnic_err *err) {
    int i = dev->nslots;
    if (i == DEV_MAX_SLOTS)
        return fail(err, -EUSERS, "no queue pair number is free: this context has all of its %d slots", DEV_MAX_SLOTS);
    dev->table[i] = calloc(QPN_INDICES, sizeof *dev->table[i]);
    dev->freed[i] = calloc(QPN_INDICES, sizeof *dev->freed[i]);
    int rc = dev->table[i] && dev->freed[i] ? slot_claim(&dev->slots[i], err) : -ENOMEM;
    if (rc) {
        free(dev->table[i]);
        free(dev->freed[i]);
        return rc;
    }
    lanes_open(dev, dev->nslots++);
    return 0;
}

int qpn_init(struct dev *dev, struct rnic_err *err) { return add_slot(dev, err); }

void qpn_free(struct dev *dev) {
    for (int i = 0; i < dev->nslots; i++) {
        slot_release(&dev->slots[i]);
        free(dev->table[i]);
        free(dev->freed[i]);
    }
    dev->nslots = 0;
}

bool qpn_is_ours(const struct dev *dev, uint32_t slot) {
    for (int i = 0; i < dev->nslots; i++) {
        if (dev->slots[i].number == slot)
            return true;
    }
    return false;
}

struct qp *qpn_find(const struct dev *dev, uint32_t qpn) {
    for (int i = 0; i < dev->nslots; i++) {
        if (dev->slots[i].number == qpn_slot(qpn))
            return dev->table[i][qpn & (QPN_INDICES - 1)];
    }
    return NULL;
}

bool qpn_rests(const struct dev *dev, uint32_t qpn, uint64_t now) {
    for (int i = 0; i < dev->nslots; i++) {
        uint64_t freed = dev->freed[i][qpn & (QPN_INDICES - 1)];
        if (dev->slots[i].number == qpn_slot(qpn))
            return freed && now - freed <= REST_NS;
    }
    return false;
}

/* 0 and 1 are the management QPs, 0xFFFFFF is multicast (IBA 10.2.4.1 and 9.3.1.. of the BTH). */
static bool usable(const struct dev *dev, int slot, uint32_t index, uint64_t now) {
    uint32_t qpn = dev->slots[slot].number << QPN_INDEX_BITS | index;
    uint64_t freed = dev->freed[slot][index];
    return qpn > 1 && qpn != 0xFFFFFF && !dev->table[slot][index] && (!freed || now - freed > REST_NS);
}

static bool take(struct dev *dev, int slot, struct qp *qp, uint64_t now) {
    for (int i = 0; i < TRIES; i++) {
        uint32_t index = (uint32_t)(rng_next(&dev->nic.rng) >> 40) & (QPN_INDICES - 1);
        if (!usable(dev, slot, index, now))
            continue;
        dev->table[slot][index] = qp;
        qp->pub.qp_num = dev->slots[slot].number << QPN_INDEX_BITS | index;
        return true;
    }
    return false;
}

int qpn_add(struct dev *dev, struct qp *qp, struct rnic_err *err) {
    uint64_t now = run_clock();
    for (int slot = 0; slot < DEV_MAX_SLOTS; slot++) {
        if (slot == dev->nslots) {
            int rc = add_slot(dev, err);
            for (int i = 0; !rc && i < dev->net.ngids; i++)
                rc = dev->ports[i].steering ? port_add_slot(&dev->ports[i], dev->slots[slot].number) : 0;
            if (rc)
                return rc;
            engine_wake(&dev->run); /* it watches one more socket */
            lanes_tell(dev);
        }
        if (take(dev, slot, qp, now))
            return 0;
    }
    return fail(err, -EUSERS, "no queue pair number is free");
}

void qpn_remove(struct dev *dev, struct qp *qp) {
    for (int i = 0; i < dev->nslots; i++) {
        uint32_t index = qp->pub.qp_num & (QPN_INDICES - 1);
        if (dev->slots[i].number != qpn_slot(qp->pub.qp_num))
            continue;
        dev->table[i][index] = NULL;
        dev->freed[i][index] = run_clock();
    }
}

void qpn_each(struct dev *dev, void (*visit)(struct dev *dev, struct qp *qp)) {
    for (int i = 0; i < dev->nslots; i++) {
        for (uint32_t index = 0; index < QPN_INDICES; index++) {
            if (dev->table[i][index])
                visit(dev, dev->table[i][index]);
        }
    }
    if (dev->gsi)
        visit(dev, dev->gsi);
}
