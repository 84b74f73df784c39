/* SPDX-License-Identifier: Apache-2.0
 *
 * Completion counters (rdma-core 64: ibv_create_comp_cntr(3), ibv_qp_attach_comp_cntr(3)), and counters of flows
 * (ibv_create_counters(3)), which rules name.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/fail.h"
#include "raw/counters_flow.h"
#include "verbs/verbs.h"

#define LOCAL_MESSAGES (RNIC_COMP_CNTR_OP_SEND | RNIC_COMP_CNTR_OP_RECV)
#define WRITES (RNIC_COMP_CNTR_OP_RDMA_WRITE | RNIC_COMP_CNTR_OP_REMOTE_RDMA_WRITE)
#define READS (RNIC_COMP_CNTR_OP_RDMA_READ | RNIC_COMP_CNTR_OP_REMOTE_RDMA_READ)

int soft_query_comp_cntr_caps(struct rnic_context *ctx, struct rnic_comp_cntr_caps *caps, struct rnic_err *err) {
    (void)ctx;
    (void)err;
    *caps = (struct rnic_comp_cntr_caps){UINT64_MAX, MAX_COMP_CNTR, LOCAL_MESSAGES | WRITES | READS};
    return 0;
}

static int check_init(const struct rnic_comp_cntr_init_attr *attr, struct rnic_err *err) {
    if (attr->comp_mask || attr->flags)
        return fail(err, -EINVAL, "comp_mask 0x%x, flags 0x%x: both must be 0", attr->comp_mask, attr->flags);
    if (attr->type != RNIC_COMP_CNTR_TYPE_WRS && attr->type != RNIC_COMP_CNTR_TYPE_BYTES)
        return fail(err, -EINVAL, "type is %d; a counter counts work requests (%d) or bytes (%d)", attr->type,
                    RNIC_COMP_CNTR_TYPE_WRS, RNIC_COMP_CNTR_TYPE_BYTES);
    return 0;
}

/* One more of KIND_COMP_CNTR or KIND_COUNTERS; false: there are enough. */
static bool enter(struct dev *dev, enum object_kind kind, struct listed *object) {
    dev_lock(dev);
    bool room = dev->objects.of[KIND_COMP_CNTR].count + dev->objects.of[KIND_COUNTERS].count < MAX_COMP_CNTR;
    if (room)
        object_enter(dev, kind, object);
    dev_unlock(dev);
    return room;
}

/* One less, unless it is used; how often it is. Whoever attaches it looks under the lock, too. */
static int leave(struct dev *dev, enum object_kind kind, struct listed *object, const int *users) {
    dev_lock(dev);
    int n = *users;
    if (!n)
        object_leave(dev, kind, object);
    dev_unlock(dev);
    return n;
}

int soft_create_comp_cntr(struct rnic_context *ctx, const struct rnic_comp_cntr_init_attr *attr,
                          struct rnic_comp_cntr **out, struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(ctx), err);
    if (!rc)
        rc = check_init(attr, err);
    if (rc)
        return rc;
    struct comp_cntr *cntr = calloc(1, sizeof *cntr);
    if (!cntr || !enter(dev_of(ctx), KIND_COMP_CNTR, &cntr->listed)) {
        free(cntr);
        return fail(err, -ENOMEM, "no memory for one more counter, or %d exist", MAX_COMP_CNTR);
    }
    cntr->pub.ctx = ctx;
    cntr->bytes = attr->type == RNIC_COMP_CNTR_TYPE_BYTES;
    *out = &cntr->pub;
    return 0;
}

int soft_destroy_comp_cntr(struct rnic_comp_cntr *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct comp_cntr *cntr = (struct comp_cntr *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    int ops = leave(dev, KIND_COMP_CNTR, &cntr->listed, &cntr->qps);
    if (ops)
        return fail(err, -EBUSY, "it counts %d operations of queue pairs, until they are destroyed", ops);
    free(cntr);
    return 0;
}

static _Atomic uint64_t *value_of(struct rnic_comp_cntr *pub, bool failed) {
    struct comp_cntr *cntr = (struct comp_cntr *)pub;
    return failed ? &cntr->failed : &cntr->done;
}

int soft_set_comp_cntr(struct rnic_comp_cntr *pub, bool failed, uint64_t value, struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(pub->ctx), err);
    if (!rc)
        atomic_store(value_of(pub, failed), value);
    return rc;
}

int soft_inc_comp_cntr(struct rnic_comp_cntr *pub, bool failed, uint64_t amount, struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(pub->ctx), err);
    if (!rc)
        atomic_fetch_add(value_of(pub, failed), amount);
    return rc;
}

int soft_read_comp_cntr(struct rnic_comp_cntr *pub, bool failed, uint64_t *value, struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(pub->ctx), err);
    if (!rc)
        *value = atomic_load(value_of(pub, failed));
    return rc;
}

/* ---------------------------------------------------------------- at a queue pair */

static uint32_t ops_of(const struct qp *qp) {
    return raw_table(qp) ? RNIC_COMP_CNTR_OP_SEND : qp->service->counted; /* it receives by work queues */
}

static uint32_t taken_ops(const struct comp_cntrs *cntrs) {
    uint32_t taken = 0;
    for (int i = 0; cntrs && i < COMP_CNTR_OPS; i++)
        taken |= cntrs->of[i] ? 1u << i : 0;
    return taken;
}

static int attach(struct qp *qp, struct comp_cntr *cntr, uint32_t op_mask, struct rnic_err *err) {
    if (qp->state != RNIC_QPS_RESET && qp->state != RNIC_QPS_INIT)
        return fail(err, -EINVAL, "the queue pair is in %s; counters are attached in RESET or INIT",
                    qp_state_name(qp->state));
    if (taken_ops(qp->cntrs) & op_mask)
        return fail(err, -EBUSY, "op_mask: the operations 0x%x have a counter already", taken_ops(qp->cntrs) & op_mask);
    if (!qp->cntrs)
        qp->cntrs = calloc(1, sizeof *qp->cntrs);
    if (!qp->cntrs)
        return fail(err, -ENOMEM, "no memory");
    for (int i = 0; i < COMP_CNTR_OPS; i++) {
        if (!(op_mask & 1u << i))
            continue;
        qp->cntrs->of[i] = cntr;
        cntr->qps++;
    }
    return 0;
}

int soft_attach_comp_cntr(struct rnic_qp *pub, struct rnic_comp_cntr *cntr, uint32_t op_mask, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct qp *qp = qp_of(pub);
    uint32_t unknown = op_mask & ~ops_of(qp);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    if (cntr->ctx != pub->ctx)
        return fail(err, -EINVAL, "the counter belongs to another device than the queue pair");
    if (!op_mask)
        return fail(err, -EINVAL, "op_mask is 0: there is nothing to count");
    if (unknown)
        return fail(err, -EOPNOTSUPP, "op_mask: a queue pair of this type has no operations 0x%x", unknown);
    dev_lock(dev);
    rc = attach(qp, (struct comp_cntr *)cntr, op_mask, err);
    dev_unlock(dev);
    return rc;
}

void comp_cntrs_detach(struct qp *qp) {
    for (int i = 0; qp->cntrs && i < COMP_CNTR_OPS; i++) {
        if (qp->cntrs->of[i])
            qp->cntrs->of[i]->qps--;
    }
}

/* ---------------------------------------------------------------- counters of flows */

int soft_create_counters(struct rnic_context *ctx, struct rnic_flow_counters **out, struct rnic_err *err) {
    int rc = dev_check_has(dev_of(ctx), HAS_FRAMES, "flow rules to count", err);
    if (rc)
        return rc;
    struct flow_counters *counters = calloc(1, sizeof *counters);
    if (!counters || !enter(dev_of(ctx), KIND_COUNTERS, &counters->listed)) {
        free(counters);
        return fail(err, -ENOMEM, "no memory for one more counter, or %d exist", MAX_COMP_CNTR);
    }
    counters->pub.ctx = ctx;
    *out = &counters->pub;
    return 0;
}

int soft_destroy_counters(struct rnic_flow_counters *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct flow_counters *counters = (struct flow_counters *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    int rules = leave(dev, KIND_COUNTERS, &counters->listed, &counters->rules);
    if (rules)
        return fail(err, -EBUSY, "%d flow rules count with them", rules);
    free(counters);
    return 0;
}

/* A rule names its counters when it is made (man ibv_create_flow): no point can be put into one that is there. */
int soft_attach_counters_point_flow(struct rnic_flow_counters *pub, const struct rnic_counter_attach_attr *attr,
                                    void *flow, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    int rc = dev_check_alive(dev, err);
    if (!rc && flow)
        rc = fail(err, -EOPNOTSUPP, "flow: counters are given to a rule when it is created, by an ACTION_COUNT");
    if (!rc && attr->comp_mask)
        rc = fail(err, -EINVAL, "comp_mask 0x%x: must be 0", attr->comp_mask);
    if (rc)
        return rc;
    dev_lock(dev);
    rc = flow_counters_attach((struct flow_counters *)pub, attr->counter_desc, attr->index, err);
    dev_unlock(dev);
    return rc;
}

int soft_read_counters(struct rnic_flow_counters *pub, uint64_t *values, uint32_t n, uint32_t flags,
                       struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    if (flags & ~(uint32_t)RNIC_READ_COUNTERS_ATTR_PREFER_CACHED)
        return fail(err, -EINVAL, "flags: 0x%x is unknown", flags);
    dev_lock(dev);
    rc = flow_counters_read((struct flow_counters *)pub, values, n, err);
    dev_unlock(dev);
    return rc;
}
