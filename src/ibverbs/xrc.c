/* SPDX-License-Identifier: Apache-2.0
 *
 * XRC domains, and queue pairs that another program of the domain has made (man ibv_open_xrcd, ibv_open_qp).
 */
#include "lib.h"

static struct ibv_xrcd *open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *attr) {
    const uint32_t needed = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    struct context *c = context_of(context);
    struct xrcd *xrcd = calloc(1, sizeof *xrcd);
    struct rnic_err err = {0};
    int rc =
        !xrcd                                            ? -ENOMEM
        : attr->comp_mask >= IBV_XRCD_INIT_ATTR_RESERVED ? worded(&err, -EOPNOTSUPP, UNKNOWN)
        : (attr->comp_mask & needed) != needed
            ? worded(&err, -EINVAL, "comp_mask: FD and OFLAGS are needed")
            : CALL(c->ops, open_xrcd, c->nic, &(struct rnic_xrcd_init_attr){attr->fd, attr->oflags}, &xrcd->nic, &err);
    if (rc) {
        free(xrcd);
        return failed_null("open_xrcd", rc, &err);
    }
    xrcd->pub.context = context;
    ADD(context, xrcd, free);
    return &xrcd->pub;
}

static int close_xrcd(struct ibv_xrcd *pub) {
    struct xrcd *xrcd = (struct xrcd *)pub;
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, close_xrcd, xrcd->nic, &err);
    if (rc)
        return failed("close_xrcd", rc, &err);
    object_remove(pub->context, &xrcd->object);
    free(xrcd);
    return 0;
}

static struct ibv_qp *open_qp(struct ibv_context *context, struct ibv_qp_open_attr *attr) {
    const uint32_t needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    struct context *c = context_of(context);
    struct qp *qp = calloc(1, sizeof *qp);
    struct rnic_qp_open_attr how = {
        .qp_num = attr->qp_num, .xrcd = NIC(xrcd, attr->xrcd), .qp_context = qp, .qp_type = (int)attr->qp_type};
    struct rnic_err err = {0};
    int rc = !qp                                            ? -ENOMEM
             : attr->comp_mask >= IBV_QP_OPEN_ATTR_RESERVED ? worded(&err, -EOPNOTSUPP, UNKNOWN)
             : (attr->comp_mask & needed) != needed ? worded(&err, -EINVAL, "comp_mask: NUM, XRCD and TYPE are needed")
                                                    : CALL(c->ops, open_qp, c->nic, &how, &qp->nic, &err);
    if (rc) {
        free(qp);
        return failed_null("open_qp", rc, &err);
    }
    qp->pub.qp_base.qp_context = attr->comp_mask & IBV_QP_OPEN_ATTR_CONTEXT ? attr->qp_context : NULL;
    return qp_show(context, qp);
}

void xrc_ops(struct verbs_context *ex, const struct rnic_ops *ops) {
    GIVE(ex, open_xrcd, ops, open_xrcd, open_xrcd);
    GIVE(ex, close_xrcd, ops, close_xrcd, close_xrcd);
    GIVE(ex, open_qp, ops, open_qp, open_qp);
}
