/* SPDX-License-Identifier: Apache-2.0
 *
 * Completion counters of rdma-core 65: of an operation that succeeds, and of one that fails, without a completion queue.
 */
#include "layout.h"
#include "lib.h"

SAME_SIZE(ibv_comp_cntr_caps, rnic_comp_cntr_caps);
SAME(ibv_comp_cntr_caps, rnic_comp_cntr_caps, supported_qp_attach_ops);
SAME_SIZE(ibv_comp_cntr_init_attr, rnic_comp_cntr_init_attr);
SAME(ibv_comp_cntr_init_attr, rnic_comp_cntr_init_attr, type);
SAME(ibv_comp_cntr_init_attr, rnic_comp_cntr_init_attr, flags);

struct comp_cntr {
    struct ibv_comp_cntr pub;
    struct object object;
    struct rnic_comp_cntr *nic;
};

EXPORT int _ibv_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps, size_t size) {
    struct context *c = context_of(context);
    struct rnic_comp_cntr_caps got;
    struct rnic_err err = {0};
    int rc = CALL(c->ops, query_comp_cntr_caps, c->nic, &got, &err);
    if (rc)
        return failed("query_comp_cntr_caps", rc, &err);
    memset(caps, 0, size);
    memcpy(caps, &got, size < sizeof got ? size : sizeof got);
    return 0;
}

EXPORT struct ibv_comp_cntr *ibv_create_comp_cntr(struct ibv_context *context, struct ibv_comp_cntr_init_attr *attr) {
    struct context *c = context_of(context);
    struct comp_cntr *cntr = calloc(1, sizeof *cntr);
    struct rnic_err err = {0};
    int rc =
        cntr ? CALL(c->ops, create_comp_cntr, c->nic, (const struct rnic_comp_cntr_init_attr *)attr, &cntr->nic, &err)
             : -ENOMEM;
    if (rc) {
        free(cntr);
        return failed_null("create_comp_cntr", rc, &err);
    }
    cntr->pub.context = context;
    ADD(context, cntr, free);
    return &cntr->pub;
}

EXPORT int ibv_destroy_comp_cntr(struct ibv_comp_cntr *pub) {
    struct comp_cntr *cntr = (struct comp_cntr *)pub;
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, destroy_comp_cntr, cntr->nic, &err);
    if (rc)
        return failed("destroy_comp_cntr", rc, &err);
    object_remove(pub->context, &cntr->object);
    free(cntr);
    return 0;
}

/* Of either count: of what was done, or of what has failed. */
#define COUNT(name, op, failures, type)                                                                                \
    EXPORT int ibv_##name(struct ibv_comp_cntr *pub, type value) {                                                     \
        struct rnic_err err = {0};                                                                                     \
        int rc = CALL(context_of(pub->context)->ops, op, ((struct comp_cntr *)pub)->nic, failures, value, &err);             \
        return failed(#name, rc, &err);                                                                                \
    }
COUNT(set_comp_cntr, set_comp_cntr, false, uint64_t)
COUNT(set_err_comp_cntr, set_comp_cntr, true, uint64_t)
COUNT(inc_comp_cntr, inc_comp_cntr, false, uint64_t)
COUNT(inc_err_comp_cntr, inc_comp_cntr, true, uint64_t)
COUNT(read_comp_cntr, read_comp_cntr, false, uint64_t *)
COUNT(read_err_comp_cntr, read_comp_cntr, true, uint64_t *)

EXPORT int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *cntr,
                                   struct ibv_qp_attach_comp_cntr_attr *attr) {
    struct rnic_err err = {0};
    if (attr->comp_mask)
        return refused("qp_attach_comp_cntr", EINVAL, "comp_mask is not 0");
    int rc = CALL(context_of(qp->context)->ops, attach_comp_cntr, ((struct qp *)qp)->nic, NIC(comp_cntr, cntr),
                  attr->op_mask, &err);
    return failed("qp_attach_comp_cntr", rc, &err);
}
