/* SPDX-License-Identifier: Apache-2.0
 *
 * Flow rules and their counters (man ibv_create_flow, ibv_create_counters).
 */
#include <errno.h>
#include <stdlib.h>

#include "base/fail.h"
#include "dev/verbs.h"
#include "raw/raw.h"

static int insert(struct dev *dev, struct flow_rule *rule, struct rnic_err *err) {
    int rc = raw_listen(dev, err);
    if (rc)
        return rc;
    flow_insert(&dev->nic.raw->rules, rule);
    raw_of(rule->qp)->flows++;
    if (rule->counters)
        rule->counters->rules++;
    return 0;
}

static int check_flow(const struct rnic_qp *qp, const struct flow_rule *rule, struct rnic_err *err) {
    if (qp->qp_type != RNIC_QPT_RAW_PACKET)
        return fail(err, -EOPNOTSUPP, "flow rules are for RAW_PACKET queue pairs on this device");
    if (rule->counters && rule->counters->pub.ctx != qp->ctx)
        return fail(err, -EINVAL, "the counters belong to another device than the queue pair");
    return 0;
}

int soft_create_flow(struct rnic_qp *qp, const struct rnic_flow_attr *attr, struct rnic_flow **out,
                     struct rnic_err *err) {
    struct dev *dev = dev_of(qp->ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    struct flow_rule *rule = calloc(1, sizeof *rule);
    if (!rule)
        return fail(err, -ENOMEM, "no memory for a rule");
    rule->pub = (struct rnic_flow){qp->ctx, qp};
    rule->qp = (struct qp *)qp;
    rc = flow_compile(attr, rule, err);
    if (!rc)
        rc = check_flow(qp, rule, err);
    if (!rc) {
        dev_lock(dev);
        rc = insert(dev, rule, err);
        dev_unlock(dev);
    }
    if (rc) {
        free(rule);
        return rc;
    }
    *out = &rule->pub;
    return 0;
}

int soft_destroy_flow(struct rnic_flow *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct flow_rule *rule = (struct flow_rule *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    flow_remove(&dev->nic.raw->rules, rule);
    raw_of(rule->qp)->flows--;
    if (rule->counters)
        rule->counters->rules--;
    dev_unlock(dev);
    free(rule);
    return 0;
}

/* ---------------------------------------------------------------- counters */

int soft_create_flow_counters(struct rnic_context *ctx, struct rnic_flow_counters **out, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    struct flow_counters *c = calloc(1, sizeof *c);
    if (!c)
        return fail(err, -ENOMEM, "no memory for counters");
    c->pub.ctx = ctx;
    dev_lock(dev);
    dev->raw_objects++;
    dev_unlock(dev);
    *out = &c->pub;
    return 0;
}

int soft_destroy_flow_counters(struct rnic_flow_counters *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct flow_counters *c = (struct flow_counters *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    int rules = c->rules;
    dev->raw_objects -= !rules;
    dev_unlock(dev);
    if (rules)
        return fail(err, -EBUSY, "%d flow rules count with them", rules);
    free(c);
    return 0;
}

int soft_attach_flow_counter(struct rnic_flow_counters *pub, int desc, uint32_t index, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    rc = flow_counters_attach((struct flow_counters *)pub, desc, index, err);
    dev_unlock(dev);
    return rc;
}

int soft_read_flow_counters(struct rnic_flow_counters *pub, uint64_t *values, uint32_t n, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    rc = flow_counters_read((struct flow_counters *)pub, values, n, err);
    dev_unlock(dev);
    return rc;
}
