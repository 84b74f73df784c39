/* SPDX-License-Identifier: Apache-2.0
 *
 * Ethernet frames: work queues, indirection tables, rules and their counters (man ibv_create_wq, ibv_create_flow,
 * ibv_create_counters).
 */
#include "lib.h"

#define MAX_TABLE_LOG 16
#define MAX_RULE 4096 /* bytes of a rule and its specifications */

/* ---------------------------------------------------------------- work queues */

static int post_wq_recv(struct ibv_wq *pub, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    return -QUIETLY(context_of(pub->context)
                        ->ops->post_wq_recv(((struct wq *)pub)->nic, (const struct rnic_recv_wr *)wr,
                                            (const struct rnic_recv_wr **)bad, NULL));
}

static void free_wq(void *whole) {
    struct wq *wq = whole;
    GIVE_BACK(wq->pub.pd, wq);
}

static struct ibv_wq *create_wq(struct ibv_context *context, struct ibv_wq_init_attr *attr) {
    struct context *c = context_of(context);
    struct wq *wq = TAKE(wq, attr->pd);
    struct rnic_wq_init_attr how = {.wq_context = wq,
                                    .wq_type = (int)attr->wq_type,
                                    .max_wr = attr->max_wr,
                                    .max_sge = attr->max_sge,
                                    .pd = NIC(pd, attr->pd),
                                    .cq = NIC(cq, attr->cq),
                                    .create_flags = attr->comp_mask & IBV_WQ_INIT_ATTR_FLAGS ? attr->create_flags : 0};
    struct rnic_err err = {0};
    int rc = !wq                                            ? -ENOMEM
             : attr->comp_mask >= IBV_WQ_INIT_ATTR_RESERVED ? worded(&err, -EINVAL, UNKNOWN)
                                                            : CALL(c->ops, create_wq, c->nic, &how, &wq->nic, &err);
    if (rc) {
        if (wq)
            GIVE_BACK(attr->pd, wq);
        return failed_null("create_wq", rc, &err);
    }
    attr->max_wr = how.max_wr;
    attr->max_sge = how.max_sge;
    wq->pub = (struct ibv_wq){.context = context,
                              .pd = attr->pd,
                              .cq = attr->cq,
                              .wq_num = wq->nic->wq_num,
                              .state = IBV_WQS_RESET,
                              .wq_type = attr->wq_type,
                              .post_recv = post_wq_recv};
    ADD(context, wq, free_wq);
    return &wq->pub;
}

static int modify_wq(struct ibv_wq *pub, struct ibv_wq_attr *attr) {
    const struct rnic_wq_attr how = {attr->attr_mask, (int)attr->wq_state, (int)attr->curr_wq_state, attr->flags,
                                     attr->flags_mask};
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, modify_wq, ((struct wq *)pub)->nic, &how, &err);
    if (!rc && attr->attr_mask & IBV_WQ_ATTR_STATE)
        pub->state = attr->wq_state;
    return failed("modify_wq", rc, &err);
}

static int destroy_wq(struct ibv_wq *pub) {
    struct wq *wq = (struct wq *)pub;
    struct rnic_err err = {0};
    const struct acks acks = {&pub->mutex, &pub->cond, &pub->events_completed, NULL};
    int rc = TAKE_AWAY(pub->context, destroy_wq, wq->nic, &err, &acks);
    if (rc)
        return failed("destroy_wq", rc, &err);
    object_remove(pub->context, &wq->object);
    free_wq(wq);
    return 0;
}

/* ---------------------------------------------------------------- indirection tables */

static struct ibv_rwq_ind_table *create_table(struct ibv_context *context, struct ibv_rwq_ind_table_init_attr *attr) {
    struct context *c = context_of(context);
    struct table *table = calloc(1, sizeof *table);
    struct rnic_err err = {0};
    if (attr->comp_mask || attr->log_ind_tbl_size > MAX_TABLE_LOG) {
        free(table);
        return failed_null("create_rwq_ind_table", -EINVAL, NULL);
    }
    size_t n = (size_t)1 << attr->log_ind_tbl_size;
    struct rnic_wq **queues = calloc(n, sizeof *queues);
    for (size_t i = 0; queues && i < n; i++)
        queues[i] = NIC(wq, attr->ind_tbl[i]);
    int rc = table && queues
                 ? CALL(c->ops, create_rwq_ind_table, c->nic,
                        &(struct rnic_rwq_ind_table_init_attr){attr->log_ind_tbl_size, queues}, &table->nic, &err)
                 : -ENOMEM;
    free(queues);
    if (rc) {
        free(table);
        return failed_null("create_rwq_ind_table", rc, &err);
    }
    table->pub = (struct ibv_rwq_ind_table){.context = context, .ind_tbl_num = (int)table->nic->ind_tbl_num};
    ADD(context, table, free);
    return &table->pub;
}

static int destroy_table(struct ibv_rwq_ind_table *pub) {
    struct table *table = (struct table *)pub;
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, destroy_rwq_ind_table, table->nic, &err);
    if (rc)
        return failed("destroy_rwq_ind_table", rc, &err);
    object_remove(pub->context, &table->object);
    free(table);
    return 0;
}

/* ---------------------------------------------------------------- rules */

/* A rule as nic.h has it, into a buffer of MAX_RULE bytes: 0, or -errno. Specifications are nic.h's to the byte, but for the
 * one that names counters. Drivers go by the sizes of these, and programs leave that of the whole as it comes. */
static int copy_rule(uint8_t *rule, const struct ibv_flow_attr *attr) {
    size_t at = sizeof *attr;
    for (unsigned i = 0; i < attr->num_of_specs; i++) {
        const uint8_t *from = (const uint8_t *)attr + at;
        struct ibv_flow_spec_counter_action spec;
        struct rnic_flow_spec_hdr head;
        memcpy(&head, from, sizeof head);
        if (head.size < sizeof head || at + head.size > MAX_RULE)
            return -EINVAL;
        memcpy(rule + at, from, head.size);
        if (head.type == IBV_FLOW_SPEC_ACTION_COUNT && head.size == sizeof spec) {
            memcpy(&spec, from, sizeof spec);
            spec.counters = (struct ibv_counters *)NIC(counters, spec.counters);
            memcpy(rule + at, &spec, sizeof spec);
        }
        at += head.size;
    }
    struct ibv_flow_attr whole = *attr;
    whole.size = (uint16_t)at;
    memcpy(rule, &whole, sizeof whole);
    return 0;
}

static struct ibv_flow *create_flow(struct ibv_qp *qp, struct ibv_flow_attr *attr) {
    _Alignas(8) uint8_t rule[MAX_RULE];
    struct flow *flow = calloc(1, sizeof *flow);
    struct rnic_err err = {0};
    int rc = flow ? copy_rule(rule, attr) : -ENOMEM;
    if (!rc)
        rc = CALL(context_of(qp->context)->ops, create_flow, ((struct qp *)qp)->nic,
                  (const struct rnic_flow_attr *)rule, &flow->nic, &err);
    if (rc) {
        free(flow);
        return failed_null("create_flow", rc, &err);
    }
    flow->pub.context = qp->context;
    ADD(qp->context, flow, free);
    return &flow->pub;
}

static int destroy_flow(struct ibv_flow *pub) {
    struct flow *flow = (struct flow *)pub;
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, destroy_flow, flow->nic, &err);
    if (rc)
        return failed("destroy_flow", rc, &err);
    object_remove(pub->context, &flow->object);
    free(flow);
    return 0;
}

/* ---------------------------------------------------------------- counters */

static struct ibv_counters *create_counters(struct ibv_context *context, struct ibv_counters_init_attr *attr) {
    struct context *c = context_of(context);
    struct counters *counters = calloc(1, sizeof *counters);
    struct rnic_err err = {0};
    int rc = !counters         ? -ENOMEM
             : attr->comp_mask ? -EINVAL
                               : CALL(c->ops, create_counters, c->nic, &counters->nic, &err);
    if (rc) {
        free(counters);
        return failed_null("create_counters", rc, &err);
    }
    counters->pub.context = context;
    ADD(context, counters, free);
    return &counters->pub;
}

static int destroy_counters(struct ibv_counters *pub) {
    struct counters *counters = (struct counters *)pub;
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, destroy_counters, counters->nic, &err);
    if (rc)
        return failed("destroy_counters", rc, &err);
    object_remove(pub->context, &counters->object);
    free(counters);
    return 0;
}

static int attach_counters(struct ibv_counters *pub, struct ibv_counter_attach_attr *attr, struct ibv_flow *flow) {
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, attach_counters_point_flow, ((struct counters *)pub)->nic,
                  (const struct rnic_counter_attach_attr *)attr, NIC(flow, flow), &err);
    return failed("attach_counters_point_flow", rc, &err);
}

static int read_counters(struct ibv_counters *pub, uint64_t *values, uint32_t n, uint32_t flags) {
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, read_counters, ((struct counters *)pub)->nic, values, n, flags, &err);
    return failed("read_counters", rc, &err);
}

void frame_ops(struct verbs_context *ex, const struct rnic_ops *ops) {
    GIVE(ex, create_wq, ops, create_wq, create_wq);
    GIVE(ex, modify_wq, ops, modify_wq, modify_wq);
    GIVE(ex, destroy_wq, ops, destroy_wq, destroy_wq);
    GIVE(ex, create_rwq_ind_table, ops, create_rwq_ind_table, create_table);
    GIVE(ex, destroy_rwq_ind_table, ops, destroy_rwq_ind_table, destroy_table);
    GIVE(ex, ibv_create_flow, ops, create_flow, create_flow);
    GIVE(ex, ibv_destroy_flow, ops, destroy_flow, destroy_flow);
    GIVE(ex, create_counters, ops, create_counters, create_counters);
    GIVE(ex, destroy_counters, ops, destroy_counters, destroy_counters);
    GIVE(ex, attach_counters_point_flow, ops, attach_counters_point_flow, attach_counters);
    GIVE(ex, read_counters, ops, read_counters, read_counters);
}
