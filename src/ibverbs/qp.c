/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue pairs (man ibv_create_qp, ibv_modify_qp).
 */
#include "lib.h"

/* What every driver grants, and programs count on. */
#define LEAST_INLINE 64

/* As far as the device has so many. */
static uint32_t at_least(uint32_t asked, uint32_t least, uint32_t most) {
    least = least < most ? least : most;
    return asked < least ? least : asked;
}

static void free_qp(void *whole) {
    struct qp *qp = whole;
    struct ibv_qp *pub = &qp->pub.qp_base;
    builder_free(qp);
    pthread_mutex_destroy(&pub->mutex);
    pthread_cond_destroy(&pub->cond);
    GIVE_BACK(pub->pd, qp);
}

struct ibv_qp *qp_show(struct ibv_context *context, struct qp *qp) {
    struct ibv_qp *pub = &qp->pub.qp_base;
    pub->context = context;
    pub->qp_num = qp->nic->qp_num;
    pub->qp_type = (enum ibv_qp_type)qp->nic->qp_type;
    pub->state = IBV_QPS_RESET;
    pthread_mutex_init(&pub->mutex, NULL);
    pthread_cond_init(&pub->cond, NULL);
    ADD(context, qp, free_qp);
    orders_follow(qp);
    return pub;
}

static struct rnic_qp_init_attr asked(const struct context *c, const struct ibv_qp_init_attr_ex *attr, struct qp *qp) {
    struct rnic_qp_init_attr how = {.qp_context = qp,
                                    .send_cq = NIC(cq, attr->send_cq),
                                    .recv_cq = NIC(cq, attr->recv_cq),
                                    .srq = NIC(srq, attr->srq),
                                    .qp_type = (int)attr->qp_type,
                                    .sq_sig_all = attr->sq_sig_all};
    memcpy(&how.cap, &attr->cap, sizeof how.cap);
    /* What half a connection does not have, drivers and kernels do not look at. */
    if (attr->qp_type == IBV_QPT_XRC_RECV) {
        how.send_cq = how.recv_cq = NULL;
        how.srq = NULL;
    }
    if (how.send_cq && how.cap.max_send_wr && attr->qp_type != IBV_QPT_RAW_PACKET)
        how.cap.max_inline_data = at_least(how.cap.max_inline_data, LEAST_INLINE, c->attr.max_inline_data);
    if (attr->comp_mask & IBV_QP_INIT_ATTR_IND_TABLE)
        how.rwq_ind_tbl = NIC(table, attr->rwq_ind_tbl);
    if (attr->comp_mask & IBV_QP_INIT_ATTR_RX_HASH)
        how.rx_hash_conf =
            (struct rnic_rx_hash_conf){attr->rx_hash_conf.rx_hash_function, attr->rx_hash_conf.rx_hash_key_len,
                                       attr->rx_hash_conf.rx_hash_key, attr->rx_hash_conf.rx_hash_fields_mask};
    return how;
}

static int make(struct ibv_context *context, const struct ibv_qp_init_attr_ex *attr, struct rnic_qp_init_attr *how,
                struct qp *qp, struct rnic_err *err) {
    const struct rnic_ops *ops = context_of(context)->ops;
    const uint32_t plain =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
    uint32_t beyond = attr->comp_mask & ~plain; /* also what nobody knows, which the device refuses */
    if (attr->comp_mask & IBV_QP_INIT_ATTR_XRCD)
        return beyond
                   ? worded(err, -EOPNOTSUPP, "half a connection of XRC that receives has XRCD in comp_mask, no more")
                   : CALL(ops, create_xrc_qp, NIC(xrcd, attr->xrcd), how, &qp->nic, err);
    if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD))
        return worded(err, -EINVAL, "comp_mask has neither PD nor XRCD");
    if (attr->comp_mask & IBV_QP_INIT_ATTR_RX_HASH && !how->rwq_ind_tbl)
        return worded(err, -EINVAL, "comp_mask has RX_HASH, and there is no table that packets are spread by");
    if (!beyond)
        return CALL(ops, create_qp, NIC(pd, attr->pd), how, &qp->nic, err);
    struct rnic_qp_init_attr_ex ex = {.base = *how, .comp_mask = beyond};
    if (attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) {
        ex.create_flags = attr->create_flags;
        ex.source_qpn = attr->source_qpn;
    }
    if (attr->comp_mask & IBV_QP_INIT_ATTR_MAX_TSO_HEADER)
        ex.max_tso_header = attr->max_tso_header;
    if (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
        ex.send_ops_flags = attr->send_ops_flags;
    int rc = CALL(ops, create_qp_ex, NIC(pd, attr->pd), &ex, &qp->nic, err);
    *how = ex.base;
    return rc;
}

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr) {
    struct ibv_pd *pd = attr->comp_mask & IBV_QP_INIT_ATTR_PD ? attr->pd : NULL;
    struct qp *qp = TAKE(qp, pd);
    struct rnic_err err = {0};
    if (!qp)
        return failed_null("create_qp", -ENOMEM, NULL);
    struct rnic_qp_init_attr how = asked(context_of(context), attr, qp);
    qp->all_signaled = attr->sq_sig_all;
    int rc = attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS ? builder_add(qp, attr->send_ops_flags) : 0;
    if (!rc)
        rc = make(context, attr, &how, qp, &err);
    if (rc) {
        builder_free(qp);
        GIVE_BACK(pd, qp);
        return failed_null("create_qp", rc, &err);
    }
    builder_grant(qp, &how.cap);
    memcpy(&attr->cap, &how.cap, sizeof attr->cap);
    struct ibv_qp *pub = &qp->pub.qp_base;
    pub->qp_context = attr->qp_context;
    pub->pd = pd;
    pub->send_cq = attr->send_cq;
    pub->recv_cq = attr->recv_cq;
    pub->srq = attr->srq;
    return qp_show(context, qp);
}

EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
    struct ibv_qp_init_attr_ex ex = {.comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd};
    memcpy(&ex, attr, offsetof(struct ibv_qp_init_attr_ex, comp_mask)); /* they begin with the same members */
    struct ibv_qp *qp = create_qp_ex(pd->context, &ex);
    if (qp)
        attr->cap = ex.cap;
    return qp;
}

EXPORT struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp) {
    return ((struct qp *)qp)->builder ? &((struct qp *)qp)->pub : NULL;
}

/* ---------------------------------------------------------------- modify, query */

/* What one half of an XRC connection has no use for, programs give it all the same, as to RC. */
static int masked_out(const struct ibv_qp *qp, int mask) {
    if (qp->qp_type == IBV_QPT_XRC_SEND)
        return mask & ~(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (qp->qp_type == IBV_QPT_XRC_RECV)
        return mask & ~(IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
    return mask;
}

/* A program that closes a connection of iWARP, which has ended meanwhile: the kernel's siw has nothing against it. */
static bool has_closed(const struct ibv_qp *pub, const struct ibv_qp_attr *attr, int mask) {
    struct rnic_qp_attr now;
    struct rnic_qp_init_attr made;
    return pub->context->device->transport_type == IBV_TRANSPORT_IWARP && mask == IBV_QP_STATE &&
           attr->qp_state == IBV_QPS_SQD &&
           !JUST_CALL(context_of(pub->context)->ops, query_qp, ((const struct qp *)pub)->nic, &now, &made, NULL) &&
           now.qp_state == RNIC_QPS_ERR;
}

EXPORT int ibv_modify_qp(struct ibv_qp *pub, struct ibv_qp_attr *attr, int mask) {
    struct qp *qp = (struct qp *)pub;
    struct rnic_qp_attr copy;
    struct rnic_err err = {0};
    memcpy(&copy, attr, sizeof copy);
    if (mask & IBV_QP_AV)
        as_drivers_take(&copy.ah_attr);
    if (mask & IBV_QP_ALT_PATH)
        as_drivers_take(&copy.alt_ah_attr);
    int rc = CALL(context_of(pub->context)->ops, modify_qp, qp->nic, &copy, (uint32_t)masked_out(pub, mask), &err);
    if (rc && has_closed(pub, attr, mask))
        return 0;
    if (!rc && mask & IBV_QP_STATE)
        pub->state = attr->qp_state;
    return failed("modify_qp", rc, &err);
}

EXPORT int ibv_query_qp(struct ibv_qp *pub, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init) {
    struct qp *qp = (struct qp *)pub;
    struct rnic_qp_init_attr made;
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, query_qp, qp->nic, (struct rnic_qp_attr *)attr, &made, &err);
    if (rc)
        return failed("query_qp", rc, &err);
    *init = (struct ibv_qp_init_attr){.qp_context = pub->qp_context,
                                      .send_cq = pub->send_cq,
                                      .recv_cq = pub->recv_cq,
                                      .srq = pub->srq,
                                      .qp_type = pub->qp_type,
                                      .sq_sig_all = made.sq_sig_all};
    memcpy(&init->cap, &made.cap, sizeof init->cap);
    if (mask & IBV_QP_STATE) /* the rest of the mask is a hint: all is told */
        pub->state = attr->qp_state;
    return 0;
}

static int modify_qp_rate_limit(struct ibv_qp *pub, struct ibv_qp_rate_limit_attr *attr) {
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, modify_qp_rate_limit, ((struct qp *)pub)->nic,
                  (const struct rnic_qp_rate_limit_attr *)attr, &err);
    return failed("modify_qp_rate_limit", rc, &err);
}

EXPORT int ibv_query_qp_data_in_order(struct ibv_qp *pub, enum ibv_wr_opcode opcode, uint32_t flags) {
    int rc = JUST_CALL(context_of(pub->context)->ops, query_qp_data_in_order, ((struct qp *)pub)->nic, (int)opcode,
                       flags, NULL);
    return rc > 0 ? rc : 0;
}

EXPORT int ibv_set_ece(struct ibv_qp *pub, struct ibv_ece *ece) {
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, set_ece, ((struct qp *)pub)->nic, (struct rnic_ece *)ece, &err);
    return failed("set_ece", rc, &err);
}

EXPORT int ibv_query_ece(struct ibv_qp *pub, struct ibv_ece *ece) {
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, query_ece, ((struct qp *)pub)->nic, (struct rnic_ece *)ece, &err);
    return failed("query_ece", rc, &err);
}

/* ---------------------------------------------------------------- the end */

/* An order finds the queue pair until it goes, also while the program is waited for. */
static int destroy(struct qp *qp, struct rnic_err *err) {
    orders_leave(qp);
    int rc = JUST_CALL(context_of(qp->pub.qp_base.context)->ops, destroy_qp, qp->nic, err);
    if (rc)
        orders_follow(qp);
    return rc;
}

EXPORT int ibv_destroy_qp(struct ibv_qp *pub) {
    struct qp *qp = (struct qp *)pub;
    struct rnic_err err = {0};
    const struct acks acks = {&pub->mutex, &pub->cond, &pub->events_completed, NULL};
    int rc = TAKE_AWAY_BY(destroy(qp, &err), destroy_qp, &err, &acks);
    if (rc)
        return failed("destroy_qp", rc, &err);
    object_remove(pub->context, &qp->object);
    free_qp(qp);
    return 0;
}

void qp_ops(struct verbs_context *ex, const struct rnic_ops *ops) {
    ex->create_qp_ex = create_qp_ex;
    GIVE(ex, modify_qp_rate_limit, ops, modify_qp_rate_limit, modify_qp_rate_limit);
}
