/* SPDX-License-Identifier: Apache-2.0 */
#include "recorder_own.h"

#include <stdio.h>

/* ---------------------------------------------------------------- qp */

struct qp {
    struct rnic_qp pub;
    struct rnic_qp_attr attr;
    struct rnic_qp_init_attr init;
};

static void note_spread(struct rnic_context *ctx, const struct rnic_qp_init_attr *init) {
    const struct rnic_rx_hash_conf *h = &init->rx_hash_conf;

    note(ctx, "spread table=%u %u,%u,%lu cqs=%d,%d ", init->rwq_ind_tbl->ind_tbl_num, h->rx_hash_function,
         h->rx_hash_key_len, h->rx_hash_fields_mask, init->send_cq != NULL, init->recv_cq != NULL);
    for (int i = 0; i < h->rx_hash_key_len; i++)
        note(ctx, "%02x", h->rx_hash_key[i]);
    note(ctx, "\n");
}

static int qp_new(struct rnic_qp pub, const struct rnic_qp_init_attr *init, struct rnic_qp **out) {
    (void)MAKE(pub.ctx, out, struct qp, pub, .init = *init);
    rec(pub.ctx)->last_qp = *out;
    return 0;
}

static int rec_create_qp(struct rnic_pd *pd, struct rnic_qp_init_attr *init, struct rnic_qp **out,
                         struct rnic_err *err) {
    struct rnic_qp_cap *c = &init->cap;
    int rc = SAY(pd->ctx, " type=%d sig_all=%d cap=%u,%u,%u,%u,%u%s", init->qp_type, init->sq_sig_all, c->max_send_wr,
                 c->max_recv_wr, c->max_send_sge, c->max_recv_sge, c->max_inline_data, init->srq ? " srq=1" : "");

    if (init->rwq_ind_tbl)
        note_spread(pd->ctx, init);
    if (rc)
        return rc;
    c->max_send_wr++; /* more is granted than was asked for */
    return qp_new((struct rnic_qp){pd->ctx, pd, init->send_cq, init->recv_cq, init->qp_context,
                                   0x100 + ++rec(pd->ctx)->next_number, init->qp_type},
                  init, out);
}

void note_path(struct rnic_context *ctx, const char *name, const struct rnic_ah_attr *a) {
    note(ctx, " %s=", name);
    for (int i = 0; i < 16; i++)
        note(ctx, "%02x", a->grh.dgid.raw[i]);
    note(ctx, ",%u,%u,%u,%u,%u,%u,%u,%u,%u,%u", a->grh.flow_label, a->grh.sgid_index, a->grh.hop_limit,
         a->grh.traffic_class, a->dlid, a->sl, a->src_path_bits, a->static_rate, a->is_global, a->port_num);
}

static int rec_modify_qp(struct rnic_qp *qp, const struct rnic_qp_attr *a, uint32_t mask, struct rnic_err *err) {
    int rc = fails(qp->ctx, "modify_qp", err);

    note(qp->ctx, "modify_qp mask=0x%x state=%d,%d mtu=%d mig=%d qkey=%u psn=%u,%u dest=%u access=%u", mask,
         a->qp_state, a->cur_qp_state, a->path_mtu, a->path_mig_state, a->qkey, a->rq_psn, a->sq_psn, a->dest_qp_num,
         a->qp_access_flags);
    note(qp->ctx, " cap=%u,%u,%u,%u,%u", a->cap.max_send_wr, a->cap.max_recv_wr, a->cap.max_send_sge,
         a->cap.max_recv_sge, a->cap.max_inline_data);
    note_path(qp->ctx, "ah", &a->ah_attr);
    note_path(qp->ctx, "alt", &a->alt_ah_attr);
    note(qp->ctx, " pkey=%u,%u sqd=%u,%u rd=%u,%u rnr=%u port=%u timeout=%u retry=%u,%u alt=%u,%u rate=%u\n",
         a->pkey_index, a->alt_pkey_index, a->en_sqd_async_notify, a->sq_draining, a->max_rd_atomic,
         a->max_dest_rd_atomic, a->min_rnr_timer, a->port_num, a->timeout, a->retry_cnt, a->rnr_retry, a->alt_port_num,
         a->alt_timeout, a->rate_limit);
    if (!rc)
        ((struct qp *)qp)->attr = *a;
    return rc;
}

static int rec_query_qp(struct rnic_qp *qp, struct rnic_qp_attr *attr, struct rnic_qp_init_attr *init,
                        struct rnic_err *err) {
    *attr = ((struct qp *)qp)->attr;
    *init = ((struct qp *)qp)->init;
    return SAY(qp->ctx, "");
}

int rec_query_qp_stats(struct rnic_qp *qp, struct rnic_qp_stats *s, struct rnic_err *err) {
    *s = (struct rnic_qp_stats){.snd_psn = 1,
                                .snd_una = 2,
                                .rcv_psn = 3,
                                .msn = 4,
                                .sq_depth = 5,
                                .rq_depth = 6,
                                .window = 7,
                                .in_flight = 8,
                                .retries_left = 9,
                                .rnr_retries_left = 10,
                                .srtt = 11,
                                .rate = 12};
    s->counters.value[0] = 12;
    return SAY(qp->ctx, "");
}

static int rec_destroy_qp(struct rnic_qp *qp, struct rnic_err *err) {
    return gone(qp->ctx, qp, SAY(qp->ctx, " %u", qp->qp_num));
}

static void note_sges(struct rnic_context *ctx, const struct rnic_sge *sges, int n) {
    for (int i = 0; i < n; i++)
        note(ctx, " sge=%lu,%u,%u", sges[i].addr, sges[i].length, sges[i].lkey);
    note(ctx, "\n");
}

static void note_send(struct rnic_qp *qp, const struct rnic_send_wr *wr) {
    note(qp->ctx, "post_send qp=%u wr_id=%lu opcode=%d flags=%u imm=%08x", qp->qp_num, wr->wr_id, wr->opcode,
         wr->send_flags, wr->imm_data);
    if (wr->opcode == RNIC_WR_ATOMIC_CMP_AND_SWP || wr->opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD)
        note(qp->ctx, " atomic=%lu,%lu,%lu,%u", wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add,
             wr->wr.atomic.swap, wr->wr.atomic.rkey);
    else if (qp->qp_type == RNIC_QPT_UD)
        note(qp->ctx, " ud=%d,%u,%u", wr->wr.ud.ah != NULL, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey);
    else if (wr->opcode == RNIC_WR_BIND_MW)
        note_bind(wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
    else if (wr->opcode == RNIC_WR_FLUSH)
        note(qp->ctx, " flush=%lu,%u,%u,%u,%u", wr->wr.flush.remote_addr, wr->wr.flush.length, wr->wr.flush.rkey,
             wr->wr.flush.type, wr->wr.flush.level);
    else
        note(qp->ctx, " rdma=%lu,%u", wr->wr.rdma.remote_addr, wr->wr.rdma.rkey);
    if (qp->qp_type == RNIC_QPT_XRC_SEND)
        note(qp->ctx, " srqn=%u", wr->qp_type.xrc.remote_srqn);
    note_sges(qp->ctx, wr->sg_list, wr->num_sge);
}

/* Whether recorder_fail() ordered this verb to fail at this work request. */
static int fails_at(struct rnic_context *ctx, const char *verb, int index, struct rnic_err *err) {
    return index == rec(ctx)->fail_at ? fails(ctx, verb, err) : 0;
}

static int rec_post_send(struct rnic_qp *qp, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad,
                         struct rnic_err *err) {
    for (int i = 0; wr; wr = wr->next, i++) {
        int rc = fails_at(qp->ctx, "post_send", i, err);

        if (rc) {
            *bad = wr;
            return rc;
        }
        if (!rec(qp->ctx)->quiet)
            note_send(qp, wr);
        recorder_complete(qp->ctx, &(struct rnic_wc){.wr_id = wr->wr_id, .qp_num = qp->qp_num});
    }
    return 0;
}

/* `of` says whose: the queue pair's number, or nothing. */
static int post_receives(struct rnic_context *ctx, const char *verb, const char *of, const struct rnic_recv_wr *wr,
                         const struct rnic_recv_wr **bad, struct rnic_err *err) {
    for (int i = 0; wr; wr = wr->next, i++) {
        int rc = fails_at(ctx, verb, i, err);

        if (rc) {
            *bad = wr;
            return rc;
        }
        note(ctx, "%s%s wr_id=%lu", verb, of, wr->wr_id);
        note_sges(ctx, wr->sg_list, wr->num_sge);
    }
    return 0;
}

static int rec_post_recv(struct rnic_qp *qp, const struct rnic_recv_wr *wr, const struct rnic_recv_wr **bad,
                         struct rnic_err *err) {
    char of[16];

    snprintf(of, sizeof(of), " qp=%u", qp->qp_num);
    return post_receives(qp->ctx, "post_recv", of, wr, bad, err);
}

/* ---------------------------------------------------------------- extended queue pairs */

static int rec_create_qp_ex(struct rnic_pd *pd, struct rnic_qp_init_attr_ex *a, struct rnic_qp **out,
                            struct rnic_err *err) {
    int rc = SAY(pd->ctx, " mask=0x%x flags=0x%x source=%u tso=%u ops=0x%lx", a->comp_mask, a->create_flags,
                 a->source_qpn, a->max_tso_header, a->send_ops_flags);

    return rc ? rc : rec_create_qp(pd, &a->base, out, err);
}

static int rec_post_send_whole(struct rnic_qp *qp, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad,
                               struct rnic_err *err) {
    note(qp->ctx, "post_send_whole\n");
    return rec_post_send(qp, wr, bad, err);
}

static int rec_modify_qp_rate_limit(struct rnic_qp *qp, const struct rnic_qp_rate_limit_attr *a, struct rnic_err *err) {
    return SAY(qp->ctx, " %u,%u,%u,%u", a->rate_limit, a->max_burst_sz, a->typical_pkt_sz, a->comp_mask);
}

static int rec_query_qp_data_in_order(struct rnic_qp *qp, int opcode, uint32_t flags, struct rnic_err *err) {
    int rc = SAY(qp->ctx, " %d %u", opcode, flags);

    return rc ? rc : 1;
}

/* Of what is asked for, one bit is accepted. */
static int rec_set_ece(struct rnic_qp *qp, struct rnic_ece *ece, struct rnic_err *err) {
    int rc = SAY(qp->ctx, " %u,%u,%u", ece->vendor_id, ece->options, ece->comp_mask);
    ece->options &= 1;
    return rc;
}

static int rec_query_ece(struct rnic_qp *qp, struct rnic_ece *ece, struct rnic_err *err) {
    *ece = (struct rnic_ece){1, 2, 3};
    return SAY(qp->ctx, "");
}

/* ---------------------------------------------------------------- shared receive queues */

static int rec_create_srq(struct rnic_pd *pd, void *srq_context, struct rnic_srq_attr *attr, struct rnic_srq **out,
                          struct rnic_err *err) {
    int rc = SAY(pd->ctx, " %u,%u,%u", attr->max_wr, attr->max_sge, attr->srq_limit);

    return rc ? rc : MAKE(pd->ctx, out, struct rnic_srq, pd->ctx, pd, srq_context, 0);
}

static int rec_modify_srq(struct rnic_srq *srq, const struct rnic_srq_attr *attr, uint32_t mask, struct rnic_err *err) {
    return SAY(srq->ctx, " mask=%u %u,%u,%u", mask, attr->max_wr, attr->max_sge, attr->srq_limit);
}

static int rec_query_srq(struct rnic_srq *srq, struct rnic_srq_attr *attr, struct rnic_err *err) {
    *attr = (struct rnic_srq_attr){1, 2, 3};
    return SAY(srq->ctx, "");
}

static int rec_destroy_srq(struct rnic_srq *srq, struct rnic_err *err) {
    return gone(srq->ctx, srq, SAY(srq->ctx, ""));
}

static int rec_post_srq_recv(struct rnic_srq *srq, const struct rnic_recv_wr *wr, const struct rnic_recv_wr **bad,
                             struct rnic_err *err) {
    return post_receives(srq->ctx, "post_srq_recv", "", wr, bad, err);
}

/* Handles are 0x90 and on, in the order of the chain. */
static int rec_post_srq_ops(struct rnic_srq *srq, struct rnic_ops_wr *wr, struct rnic_ops_wr **bad,
                            struct rnic_err *err) {
    for (uint32_t i = 0; wr; wr = wr->next, i++) {
        int rc = fails_at(srq->ctx, "post_srq_ops", (int)i, err);

        if (rc) {
            *bad = wr;
            return rc;
        }
        note(srq->ctx, "post_srq_ops wr_id=%lu opcode=%d flags=0x%x count=%u handle=0x%x recv=%lu tag=0x%lx mask=0x%lx",
             wr->wr_id, wr->opcode, (unsigned)wr->flags, wr->tm.unexpected_cnt, wr->tm.handle, wr->tm.add.recv_wr_id,
             wr->tm.add.tag, wr->tm.add.mask);
        note_sges(srq->ctx, wr->tm.add.sg_list, wr->tm.add.num_sge);
        if (wr->opcode == RNIC_WR_TAG_ADD)
            wr->tm.handle = 0x90 + i;
    }
    return 0;
}

/* ---------------------------------------------------------------- xrc */

static int rec_open_xrcd(struct rnic_context *ctx, const struct rnic_xrcd_init_attr *attr, struct rnic_xrcd **out,
                         struct rnic_err *err) {
    int rc = SAY(ctx, " fd=%d oflags=0x%x", attr->fd, (unsigned)attr->oflags);

    return rc ? rc : MAKE(ctx, out, struct rnic_xrcd, .ctx = ctx);
}

static int rec_close_xrcd(struct rnic_xrcd *xrcd, struct rnic_err *err) {
    return gone(xrcd->ctx, xrcd, SAY(xrcd->ctx, ""));
}

static int rec_create_srq_ex(struct rnic_context *ctx, struct rnic_srq_init_attr_ex *a, struct rnic_srq **out,
                             struct rnic_err *err) {
    int rc = SAY(ctx, " type=%d %u,%u,%u pd=%d xrcd=%d cq=%d", a->srq_type, a->attr.max_wr, a->attr.max_sge,
                 a->attr.srq_limit, a->pd != NULL, a->xrcd != NULL, a->cq != NULL);

    return rc ? rc
              : MAKE(ctx, out, struct rnic_srq, ctx, a->pd, a->srq_context, a->srq_type == RNIC_SRQT_XRC ? 0x77 : 0);
}

static int xrc_qp(struct rnic_context *ctx, void *qp_context, uint32_t number, struct rnic_qp **out) {
    return qp_new(
        (struct rnic_qp){.ctx = ctx, .qp_context = qp_context, .qp_num = number, .qp_type = RNIC_QPT_XRC_RECV},
        &(struct rnic_qp_init_attr){0}, out);
}

static int rec_create_xrc_qp(struct rnic_xrcd *xrcd, struct rnic_qp_init_attr *init, struct rnic_qp **out,
                             struct rnic_err *err) {
    int rc = SAY(xrcd->ctx, " type=%d", init->qp_type);

    return rc ? rc : xrc_qp(xrcd->ctx, init->qp_context, 0x100 + ++rec(xrcd->ctx)->next_number, out);
}

static int rec_open_qp(struct rnic_context *ctx, const struct rnic_qp_open_attr *a, struct rnic_qp **out,
                       struct rnic_err *err) {
    int rc = SAY(ctx, " %u type=%d xrcd=%d", a->qp_num, a->qp_type, a->xrcd != NULL);

    return rc ? rc : xrc_qp(ctx, a->qp_context, a->qp_num, out);
}

/* ---------------------------------------------------------------- work queues */

static int rec_create_wq(struct rnic_context *ctx, struct rnic_wq_init_attr *a, struct rnic_wq **out,
                         struct rnic_err *err) {
    int rc = SAY(ctx, " %d,%u,%u,%u", a->wq_type, a->max_wr, a->max_sge, a->create_flags);

    if (rc)
        return rc;
    a->max_wr++;
    return MAKE(ctx, out, struct rnic_wq, ctx, a->pd, a->cq, a->wq_context, 0x200 + ++rec(ctx)->next_number,
                a->wq_type);
}

static int rec_modify_wq(struct rnic_wq *wq, const struct rnic_wq_attr *a, struct rnic_err *err) {
    return SAY(wq->ctx, " mask=%u %d,%d,%u,%u", a->attr_mask, a->wq_state, a->curr_wq_state, a->flags, a->flags_mask);
}

int rec_query_wq(struct rnic_wq *wq, int *state, uint32_t *depth, struct rnic_err *err) {
    *state = RNIC_WQS_RDY;
    *depth = 0;
    return SAY(wq->ctx, "");
}

static int rec_destroy_wq(struct rnic_wq *wq, struct rnic_err *err) { return gone(wq->ctx, wq, SAY(wq->ctx, "")); }

static int rec_post_wq_recv(struct rnic_wq *wq, const struct rnic_recv_wr *wr, const struct rnic_recv_wr **bad,
                            struct rnic_err *err) {
    return post_receives(wq->ctx, "post_wq_recv", "", wr, bad, err);
}

static int rec_create_rwq_ind_table(struct rnic_context *ctx, const struct rnic_rwq_ind_table_init_attr *a,
                                    struct rnic_rwq_ind_table **out, struct rnic_err *err) {
    int rc = fails(ctx, "create_rwq_ind_table", err);

    note(ctx, "create_rwq_ind_table %u:", a->log_ind_tbl_size);
    for (int i = 0; i < 1 << a->log_ind_tbl_size; i++)
        note(ctx, " %u", a->ind_tbl[i]->wq_num);
    note(ctx, "\n");
    return rc ? rc : MAKE(ctx, out, struct rnic_rwq_ind_table, ctx, 9);
}

static int rec_destroy_rwq_ind_table(struct rnic_rwq_ind_table *table, struct rnic_err *err) {
    return gone(table->ctx, table, SAY(table->ctx, ""));
}

/* ---------------------------------------------------------------- operations */

void recorder_qp_ops(struct rnic_ops *ops) {
    ops->create_qp = rec_create_qp;
    ops->modify_qp = rec_modify_qp;
    ops->query_qp = rec_query_qp;
    ops->destroy_qp = rec_destroy_qp;
    ops->post_send = rec_post_send;
    ops->post_recv = rec_post_recv;
    ops->create_qp_ex = rec_create_qp_ex;
    ops->post_send_whole = rec_post_send_whole;
    ops->modify_qp_rate_limit = rec_modify_qp_rate_limit;
    ops->query_qp_data_in_order = rec_query_qp_data_in_order;
    ops->set_ece = rec_set_ece;
    ops->query_ece = rec_query_ece;
    ops->create_srq = rec_create_srq;
    ops->modify_srq = rec_modify_srq;
    ops->query_srq = rec_query_srq;
    ops->destroy_srq = rec_destroy_srq;
    ops->post_srq_recv = rec_post_srq_recv;
    ops->post_srq_ops = rec_post_srq_ops;
    ops->open_xrcd = rec_open_xrcd;
    ops->close_xrcd = rec_close_xrcd;
    ops->create_srq_ex = rec_create_srq_ex;
    ops->create_xrc_qp = rec_create_xrc_qp;
    ops->open_qp = rec_open_qp;
    ops->create_wq = rec_create_wq;
    ops->modify_wq = rec_modify_wq;
    ops->destroy_wq = rec_destroy_wq;
    ops->post_wq_recv = rec_post_wq_recv;
    ops->create_rwq_ind_table = rec_create_rwq_ind_table;
    ops->destroy_rwq_ind_table = rec_destroy_rwq_ind_table;
}
