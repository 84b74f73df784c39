/* SPDX-License-Identifier: Apache-2.0
 *
 * Flow rules (man ibv_create_flow); their counters are those of verbs_cntr.c.
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
    int rc = dev_check_usable(dev, err);
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
