/* SPDX-License-Identifier: Apache-2.0
 *
 * Flow rules (man ibv_create_flow); their counters are those of verbs_cntr.c.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/fail.h"
#include "raw/raw.h"
#include "verbs/verbs.h"

static int insert(struct dev *dev, struct flow_rule *rule, struct rnic_err *err) {
    int rc = frames_listen(&dev->net, err);
    if (rc)
        return rc;
    flow_insert(&dev->nic.raw->rules, rule);
    object_enter(dev, KIND_FLOW, &rule->listed);
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
    int rc = dev_check_has(dev, HAS_FRAMES, "flow rules", err);
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
    object_leave(dev, KIND_FLOW, &rule->listed);
    raw_of(rule->qp)->flows--;
    if (rule->counters)
        rule->counters->rules--;
    dev_unlock(dev);
    free(rule);
    return 0;
}

/* ---------------------------------------------------------------- what can be done with frames */

#define HASHES                                                                                                         \
    (RNIC_RX_HASH_SRC_IPV4 | RNIC_RX_HASH_DST_IPV4 | RNIC_RX_HASH_SRC_IPV6 | RNIC_RX_HASH_DST_IPV6 |                   \
     RNIC_RX_HASH_SRC_PORT_TCP | RNIC_RX_HASH_DST_PORT_TCP | RNIC_RX_HASH_SRC_PORT_UDP | RNIC_RX_HASH_DST_PORT_UDP)

void raw_caps(struct rnic_device_attr_ex *attr) {
    attr->rss_caps = (struct rnic_rss_caps){
        .supported_qpts = 1u << RNIC_QPT_RAW_PACKET,
        .max_rwq_indirection_tables = MAX_RWQ_TABLES,
        .max_rwq_indirection_table_size = 1u << RWQ_TABLE_LOG,
        .rx_hash_fields_mask = HASHES,
        .rx_hash_function = RNIC_RX_HASH_FUNC_TOEPLITZ,
    };
    attr->max_wq_type_rq = MAX_WQ;
    attr->raw_packet_caps = RNIC_RAW_PACKET_CAP_IP_CSUM;
}

int soft_query_raw(struct rnic_context *ctx, struct rnic_raw_attr *attr, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    struct rnic_err why = {0};
    int rc = dev_check_has(dev, HAS_FRAMES, "RAW_PACKET queue pairs", err);
    if (rc)
        return rc;
    dev_lock(dev);
    bool wire = frames_reach_wire(&dev->net, &why);
    dev_unlock(dev);
    *attr = (struct rnic_raw_attr){.max_frame = (uint32_t)dev->net.netdev.mtu + ETH_BYTES, .wire = wire};
    if (!wire)
        memcpy(attr->why, why.text, sizeof attr->why - 1);
    return 0;
}
