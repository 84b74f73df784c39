/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared receive queues, also those of XRC and of tags (man ibv_create_srq, ibv_create_srq_ex).
 */
#include "lib.h"

static void free_srq(void *whole) {
    struct srq *srq = whole;
    pthread_mutex_destroy(&srq->pub.mutex);
    pthread_cond_destroy(&srq->pub.cond);
    GIVE_BACK(srq->pub.pd, srq);
}

static struct ibv_srq *show_srq(struct ibv_context *context, struct srq *srq, struct ibv_pd *pd, void *srq_context) {
    srq->pub = (struct ibv_srq){.context = context, .srq_context = srq_context, .pd = pd};
    pthread_mutex_init(&srq->pub.mutex, NULL);
    pthread_cond_init(&srq->pub.cond, NULL);
    ADD(context, srq, free_srq);
    return &srq->pub;
}

EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr) {
    struct srq *srq = TAKE(srq, pd);
    struct rnic_err err = {0};
    int rc = srq ? CALL(context_of(pd->context)->ops, create_srq, ((struct pd *)pd)->nic, srq,
                        (struct rnic_srq_attr *)&attr->attr, &srq->nic, &err)
                 : -ENOMEM;
    if (!rc)
        return show_srq(pd->context, srq, pd, attr->srq_context);
    if (srq)
        GIVE_BACK(pd, srq);
    return failed_null("create_srq", rc, &err);
}

static struct ibv_srq *create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr) {
    struct context *c = context_of(context);
    uint32_t mask = attr->comp_mask;
    struct ibv_pd *pd = mask & IBV_SRQ_INIT_ATTR_PD ? attr->pd : NULL;
    struct srq *srq = TAKE(srq, pd);
    struct rnic_err err = {0};
    struct rnic_srq_init_attr_ex how = {.srq_context = srq,
                                        .srq_type =
                                            mask & IBV_SRQ_INIT_ATTR_TYPE ? (int)attr->srq_type : (int)IBV_SRQT_BASIC,
                                        .pd = NIC(pd, pd),
                                        .xrcd = mask & IBV_SRQ_INIT_ATTR_XRCD ? NIC(xrcd, attr->xrcd) : NULL,
                                        .cq = mask & IBV_SRQ_INIT_ATTR_CQ ? NIC(cq, attr->cq) : NULL};
    memcpy(&how.attr, &attr->attr, sizeof how.attr);
    if (mask & IBV_SRQ_INIT_ATTR_TM)
        how.tm_cap = (struct rnic_tm_cap){attr->tm_cap.max_num_tags, attr->tm_cap.max_ops};
    int rc = !srq                                 ? -ENOMEM
             : mask >= IBV_SRQ_INIT_ATTR_RESERVED ? worded(&err, -EINVAL, UNKNOWN)
                                                  : CALL(c->ops, create_srq_ex, c->nic, &how, &srq->nic, &err);
    if (rc) {
        if (srq)
            GIVE_BACK(pd, srq);
        return failed_null("create_srq_ex", rc, &err);
    }
    memcpy(&attr->attr, &how.attr, sizeof how.attr);
    return show_srq(context, srq, pd, attr->srq_context);
}

EXPORT int ibv_modify_srq(struct ibv_srq *pub, struct ibv_srq_attr *attr, int mask) {
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, modify_srq, ((struct srq *)pub)->nic,
                  (const struct rnic_srq_attr *)attr, (uint32_t)mask, &err);
    return failed("modify_srq", rc, &err);
}

EXPORT int ibv_query_srq(struct ibv_srq *pub, struct ibv_srq_attr *attr) {
    struct rnic_err err = {0};
    int rc =
        CALL(context_of(pub->context)->ops, query_srq, ((struct srq *)pub)->nic, (struct rnic_srq_attr *)attr, &err);
    return failed("query_srq", rc, &err);
}

static int get_srq_num(struct ibv_srq *pub, uint32_t *number) {
    *number = ((struct srq *)pub)->nic->srq_num;
    return *number ? 0 : refused("get_srq_num", EOPNOTSUPP, "only a shared receive queue of XRC has a number");
}

static int post_srq_ops(struct ibv_srq *pub, struct ibv_ops_wr *op, struct ibv_ops_wr **bad) {
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, post_srq_ops, ((struct srq *)pub)->nic, (struct rnic_ops_wr *)op,
                  (struct rnic_ops_wr **)bad, &err);
    return failed("post_srq_ops", rc, &err);
}

EXPORT int ibv_destroy_srq(struct ibv_srq *pub) {
    struct srq *srq = (struct srq *)pub;
    struct rnic_err err = {0};
    const struct acks acks = {&pub->mutex, &pub->cond, &pub->events_completed, NULL};
    int rc = TAKE_AWAY(pub->context, destroy_srq, srq->nic, &err, &acks);
    if (rc)
        return failed("destroy_srq", rc, &err);
    object_remove(pub->context, &srq->object);
    free_srq(srq);
    return 0;
}

void srq_ops(struct verbs_context *ex, const struct rnic_ops *ops) {
    GIVE(ex, create_srq_ex, ops, create_srq_ex, create_srq_ex);
    GIVE(ex, get_srq_num, ops, create_srq_ex, get_srq_num);
    GIVE(ex, post_srq_ops, ops, post_srq_ops, post_srq_ops);
}
