/* SPDX-License-Identifier: Apache-2.0 */
#include "recorder_own.h"

/* ---------------------------------------------------------------- ah, groups */

struct ah {
    struct rnic_ah pub;
    struct rnic_ah_attr attr;
};

static int rec_create_ah(struct rnic_pd *pd, const struct rnic_ah_attr *attr, struct rnic_ah **out,
                         struct rnic_err *err) {
    int rc = fails(pd->ctx, "create_ah", err);

    note(pd->ctx, "create_ah");
    note_path(pd->ctx, "ah", attr);
    note(pd->ctx, "\n");
    return rc ? rc : MAKE(pd->ctx, out, struct ah, {pd->ctx, pd}, *attr);
}

int rec_query_ah(struct rnic_ah *ah, struct rnic_ah_attr *attr, struct rnic_err *err) {
    *attr = ((struct ah *)ah)->attr;
    return SAY(ah->ctx, "");
}

static int rec_destroy_ah(struct rnic_ah *ah, struct rnic_err *err) { return gone(ah->ctx, ah, SAY(ah->ctx, "")); }

static void note_gid(struct rnic_context *ctx, const union rnic_gid *gid) {
    note(ctx, " ");
    for (int i = 0; i < 16; i++)
        note(ctx, "%02x", gid->raw[i]);
}

static int rec_mcast(const char *verb, struct rnic_qp *qp, const union rnic_gid *gid, uint16_t lid,
                     struct rnic_err *err) {
    note(qp->ctx, "%s qp=%u", verb, qp->qp_num);
    note_gid(qp->ctx, gid);
    note(qp->ctx, " %u\n", lid);
    return fails(qp->ctx, verb, err);
}

static int rec_attach_mcast(struct rnic_qp *qp, const union rnic_gid *gid, uint16_t lid, struct rnic_err *err) {
    return rec_mcast("attach_mcast", qp, gid, lid, err);
}

static int rec_detach_mcast(struct rnic_qp *qp, const union rnic_gid *gid, uint16_t lid, struct rnic_err *err) {
    return rec_mcast("detach_mcast", qp, gid, lid, err);
}

/* ---------------------------------------------------------------- listeners */

static int rec_cm_listen(struct rnic_context *ctx, uint64_t service_id, const union rnic_gid *addr, uint32_t flags,
                         struct rnic_listener **out, struct rnic_err *err) {
    int rc = fails(ctx, "cm_listen", err);

    note(ctx, "cm_listen %lx", service_id);
    note_gid(ctx, addr);
    note(ctx, " flags=%u\n", flags);
    return rc ? rc : MAKE(ctx, out, struct rnic_listener, .ctx = ctx);
}

static int rec_cm_unlisten(struct rnic_listener *listener, struct rnic_err *err) {
    return gone(listener->ctx, listener, SAY(listener->ctx, ""));
}

static int rec_cm_slot(struct rnic_context *ctx, uint32_t *slot, struct rnic_err *err) {
    *slot = 0x155;
    return SAY(ctx, "");
}

static int rec_cm_watch(struct rnic_context *ctx, uint32_t slot, int *fd, struct rnic_err *err) {
    *fd = 77;
    return SAY(ctx, " %u", slot);
}

static int rec_cm_watch_service(struct rnic_context *ctx, uint64_t service_id, const union rnic_gid *gid, int *fd,
                                struct rnic_err *err) {
    note(ctx, "cm_watch_service %lx", service_id);
    note_gid(ctx, gid);
    note(ctx, "\n");
    *fd = 78;
    return fails(ctx, "cm_watch_service", err);
}

const struct rnic_ext_cm recorder_cm = {rec_cm_listen, rec_cm_unlisten, rec_cm_slot, rec_cm_watch,
                                        rec_cm_watch_service};

/* ---------------------------------------------------------------- frames */

int rec_query_raw(struct rnic_context *ctx, struct rnic_raw_attr *a, struct rnic_err *err) {
    *a = (struct rnic_raw_attr){10, 1, "no reason"};
    return SAY(ctx, "");
}

static int rec_create_flow(struct rnic_qp *qp, const struct rnic_flow_attr *a, struct rnic_flow **out,
                           struct rnic_err *err) {
    int rc = fails(qp->ctx, "create_flow", err);

    note(qp->ctx, "create_flow qp=%u %d,%u,%u,%u,%u,%u ", qp->qp_num, a->type, a->size, a->priority, a->num_of_specs,
         a->port, a->flags);
    for (uint32_t i = sizeof *a; i < a->size; i++)
        note(qp->ctx, "%02x", ((const uint8_t *)a)[i]);
    note(qp->ctx, "\n");
    return rc ? rc : MAKE(qp->ctx, out, struct rnic_flow, qp->ctx, qp);
}

static int rec_destroy_flow(struct rnic_flow *flow, struct rnic_err *err) {
    return gone(flow->ctx, flow, SAY(flow->ctx, ""));
}

/* ---------------------------------------------------------------- operations */

void recorder_datagrams_ops(struct rnic_ops *ops) {
    ops->create_ah = rec_create_ah;
    ops->destroy_ah = rec_destroy_ah;
    ops->attach_mcast = rec_attach_mcast;
    ops->detach_mcast = rec_detach_mcast;
    ops->create_flow = rec_create_flow;
    ops->destroy_flow = rec_destroy_flow;
}
