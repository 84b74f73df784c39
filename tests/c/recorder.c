/* SPDX-License-Identifier: Apache-2.0 */
#include "recorder.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define LOG_SIZE (1 << 20)
#define QUEUE 1024

struct recorder {
    struct rnic_context pub;
    char log[LOG_SIZE];
    size_t log_len;
    bool quiet;
    int alive;
    char fail_verb[32], fail_text[256];
    int fail_err, fail_at;
    struct rnic_wc done[QUEUE]; /* a ring */
    unsigned done_head, done_tail;
    struct rnic_async_event event;
    struct rnic_fault fault;
    struct rnic_cq *last_cq;
    struct rnic_qp *last_qp;
    uint32_t next_number; /* of keys and queue pairs */
};

struct channel {
    struct rnic_comp_channel pub;
    struct rnic_cq *pending; /* at most one event waits */
};

struct cq {
    struct rnic_cq pub;
    unsigned unacked;
};

struct mr {
    struct rnic_mr pub;
    void *own;
};

struct qp {
    struct rnic_qp pub;
    struct rnic_qp_attr attr;
    struct rnic_qp_init_attr init;
};

static struct recorder *rec(const struct rnic_context *ctx) { return (struct recorder *)ctx; }

__attribute__((format(printf, 2, 3))) static void note(struct rnic_context *ctx, const char *format, ...) {
    struct recorder *r = rec(ctx);
    va_list args;

    if (r->quiet || r->log_len > LOG_SIZE - 4096)
        return;
    va_start(args, format);
    r->log_len += (size_t)vsnprintf(r->log + r->log_len, 4096, format, args);
    va_end(args);
}

/* 0, or what recorder_fail() ordered for this verb. */
static int fails(struct rnic_context *ctx, const char *verb, struct rnic_err *err) {
    struct recorder *r = rec(ctx);

    if (strcmp(r->fail_verb, verb) != 0)
        return 0;
    r->fail_verb[0] = 0;
    if (err)
        snprintf(err->text, sizeof(err->text), "%s", r->fail_text);
    return -r->fail_err;
}

/* Of an operation with a context and `err`: writes down its name and more; 0, or the error that it was ordered. */
#define SAY(ctx, format, ...)                                                                                          \
    (note(ctx, "%s" format "\n", __func__ + sizeof "rec", ##__VA_ARGS__), fails(ctx, __func__ + sizeof "rec", err))

static void *make(struct rnic_context *ctx, const void *init, size_t size) {
    rec(ctx)->alive++;
    return memcpy(malloc(size), init, size);
}
#define MAKE(ctx, out, type, ...) (*(out) = make(ctx, &(type){__VA_ARGS__}, sizeof(type)), 0)

static int gone(struct rnic_context *ctx, void *object, int rc) {
    if (rc)
        return rc;
    rec(ctx)->alive--;
    free(object);
    return 0;
}

/* ---------------------------------------------------------------- context */

static int rec_close(struct rnic_context *ctx, struct rnic_err *err) { return SAY(ctx, ""); }

/* Every field its place in the struct, so that a field that went astray is seen. */
static int rec_query_device(struct rnic_context *ctx, struct rnic_device_attr *a, struct rnic_err *err) {
    *a = (struct rnic_device_attr){"rec 1", 2,  3,  4,  5,  6,  7,  8,  9,  10, RNIC_DEVICE_RC_RNR_NAK_GEN,
                                   12,      13, 14, 15, 16, 17, 18, 19, 20, 1,  22,
                                   23,      24, 25, 26, 27, 28, 29, 30, 1,  32};
    return SAY(ctx, "");
}

static int rec_query_port(struct rnic_context *ctx, int port, struct rnic_port_attr *a, struct rnic_err *err) {
    *a = (struct rnic_port_attr){4, 5, 3, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 2, 21};
    return SAY(ctx, " %d", port);
}

static int rec_query_gid(struct rnic_context *ctx, int port, int index, struct rnic_gid_entry *g,
                         struct rnic_err *err) {
    *g = (struct rnic_gid_entry){
        .gid_index = (uint32_t)index, .port_num = (uint32_t)port, .gid_type = 2, .ndev_ifindex = 7};
    if (index == 1) /* entry 0 is empty */
        memcpy(g->gid.raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01", 16);
    return SAY(ctx, " %d %d", port, index);
}

static int rec_query_pkey(struct rnic_context *ctx, int port, int index, uint16_t *pkey, struct rnic_err *err) {
    *pkey = 0xffff;
    return SAY(ctx, " %d %d", port, index);
}

static int rec_query_counters(struct rnic_context *ctx, struct rnic_counters *out, struct rnic_err *err) {
    for (int i = 0; i < RNIC_CNT_MAX; i++)
        out->value[i] = (1ull << 40) + (uint64_t)i;
    return SAY(ctx, "");
}

static int rec_set_fault(struct rnic_context *ctx, const struct rnic_fault *f, struct rnic_err *err) {
    if (!f) {
        note(ctx, "set_fault off\n");
        return fails(ctx, "set_fault", err);
    }
    note(ctx, "set_fault seed=%lu loss=%u duplicate=%u reorder=%u delay=%u flip=%u gap=%u delay_ns=%lu\n", f->seed,
         f->loss, f->duplicate, f->reorder, f->delay, f->flip, f->reorder_gap, f->delay_ns);
    for (int i = 0; i < RNIC_FAULT_RULES; i++)
        if (f->lose[i].nth)
            note(ctx, "lose opcode=%d nth=%u count=%u\n", f->lose[i].opcode, f->lose[i].nth, f->lose[i].count);
    return fails(ctx, "set_fault", err);
}

static int rec_get_async_event(struct rnic_context *ctx, struct rnic_async_event *event, struct rnic_err *err) {
    struct recorder *r = rec(ctx);
    uint64_t count;
    int rc = fails(ctx, "get_async_event", err);

    if (rc)
        return rc;
    if (read(ctx->async_fd, &count, sizeof(count)) < 0)
        return -EAGAIN;
    *event = r->event;
    return 0;
}

static int rec_ack_async_event(struct rnic_context *ctx, const struct rnic_async_event *event, struct rnic_err *err) {
    return SAY(ctx, " %d", event->event_type);
}

static int rec_set_pkeys(struct rnic_context *ctx, int port, const uint16_t *pkeys, int n, struct rnic_err *err) {
    note(ctx, "set_pkeys %d", port);
    for (int i = 0; i < n; i++)
        note(ctx, " %04x", pkeys[i]);
    note(ctx, "\n");
    return fails(ctx, "set_pkeys", err);
}

/* ---------------------------------------------------------------- pd, mr */

static int rec_alloc_pd(struct rnic_context *ctx, struct rnic_pd **pd, struct rnic_err *err) {
    int rc = SAY(ctx, "");

    return rc ? rc : MAKE(ctx, pd, struct rnic_pd, .ctx = ctx);
}

static int rec_dealloc_pd(struct rnic_pd *pd, struct rnic_err *err) { return gone(pd->ctx, pd, SAY(pd->ctx, "")); }

static int mr_new(struct rnic_pd *pd, void *addr, uint64_t length, void *own, struct rnic_mr **out) {
    uint32_t key = ++rec(pd->ctx)->next_number;

    return MAKE(pd->ctx, out, struct mr, {pd->ctx, pd, addr, length, key << 8, key << 8 | 1, key << 8, (uintptr_t)addr},
                own);
}

static int rec_reg_mr(struct rnic_pd *pd, void *addr, uint64_t length, uint32_t access, struct rnic_mr **mr,
                      struct rnic_err *err) {
    int rc = SAY(pd->ctx, " %p %lu access=%u", addr, length, access);

    return rc ? rc : mr_new(pd, addr, length, NULL, mr);
}

static int rec_alloc_mr(struct rnic_pd *pd, uint64_t length, uint32_t access, struct rnic_mr **mr,
                        struct rnic_err *err) {
    int rc = SAY(pd->ctx, " %lu access=%u", length, access);
    void *own = rc ? NULL : calloc(1, length);

    return rc ? rc : mr_new(pd, own, length, own, mr);
}

static int rec_dereg_mr(struct rnic_mr *mr, struct rnic_err *err) {
    int rc = SAY(mr->ctx, " lkey=%u", mr->lkey);

    if (!rc)
        free(((struct mr *)mr)->own);
    return gone(mr->ctx, mr, rc);
}

/* ---------------------------------------------------------------- memory windows: bound as soon as it is posted */

struct mw {
    struct rnic_mw pub;
    struct rnic_mw_bind_info bound;
};

static int rec_alloc_mw(struct rnic_pd *pd, int type, struct rnic_mw **out, struct rnic_err *err) {
    int rc = SAY(pd->ctx, " type=%d", type);

    return rc ? rc : MAKE(pd->ctx, out, struct mw, {pd->ctx, pd, ++rec(pd->ctx)->next_number << 8, type}, {0});
}

static int rec_dealloc_mw(struct rnic_mw *mw, struct rnic_err *err) {
    return gone(mw->ctx, mw, SAY(mw->ctx, " rkey=%u", mw->rkey));
}

static void note_bind(struct rnic_mw *mw, uint32_t rkey, const struct rnic_mw_bind_info *info) {
    note(mw->ctx, " bind=%u,%u,%u,%lu,%lu,%u", mw->rkey, rkey, info->mr ? info->mr->lkey : 0, info->addr, info->length,
         info->mw_access_flags);
    ((struct mw *)mw)->bound = *info;
    mw->rkey = rkey;
}

static int rec_bind_mw(struct rnic_qp *qp, struct rnic_mw *mw, const struct rnic_mw_bind *bind, struct rnic_err *err) {
    int rc = fails(qp->ctx, "bind_mw", err);

    note(qp->ctx, "bind_mw qp=%u wr_id=%lu flags=%u", qp->qp_num, bind->wr_id, bind->send_flags);
    if (!rc)
        note_bind(mw, mw->rkey + 1, &bind->bind_info);
    note(qp->ctx, "\n");
    return rc;
}

static int rec_query_mw(struct rnic_mw *mw, struct rnic_mw_bind_info *info, struct rnic_err *err) {
    *info = ((struct mw *)mw)->bound;
    return SAY(mw->ctx, "");
}

/* ---------------------------------------------------------------- channel, cq */

static int rec_create_comp_channel(struct rnic_context *ctx, struct rnic_comp_channel **ch, struct rnic_err *err) {
    int rc = SAY(ctx, "");

    return rc ? rc : MAKE(ctx, ch, struct channel, {ctx, eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)}, NULL);
}

static int rec_destroy_comp_channel(struct rnic_comp_channel *ch, struct rnic_err *err) {
    int rc = SAY(ch->ctx, "");

    if (!rc)
        close(ch->fd);
    return gone(ch->ctx, ch, rc);
}

static int rec_get_cq_event(struct rnic_comp_channel *ch, struct rnic_cq **cq, struct rnic_err *err) {
    struct channel *channel = (struct channel *)ch;
    int rc = fails(ch->ctx, "get_cq_event", err);
    uint64_t count;

    if (rc)
        return rc;
    if (read(ch->fd, &count, sizeof(count)) < 0 || !channel->pending)
        return -EAGAIN;
    *cq = channel->pending;
    channel->pending = NULL;
    ((struct cq *)*cq)->unacked++;
    note(ch->ctx, "get_cq_event\n");
    return 0;
}

static int cq_new(struct rnic_context *ctx, int cqe, struct rnic_comp_channel *ch, void *cq_context,
                  struct rnic_cq **out) {
    (void)MAKE(ctx, out, struct cq, {ctx, ch, cq_context, cqe}, 0);
    rec(ctx)->last_cq = *out;
    return 0;
}

static int rec_create_cq(struct rnic_context *ctx, int cqe, struct rnic_comp_channel *ch, uint32_t comp_vector,
                         void *cq_context, struct rnic_cq **out, struct rnic_err *err) {
    int rc = fails(ctx, "create_cq", err);

    note(ctx, "create_cq %d channel=%d", cqe, ch != NULL);
    note(ctx, comp_vector ? " vector=%u\n" : "\n", comp_vector);
    return rc ? rc : cq_new(ctx, cqe, ch, cq_context, out);
}

static int rec_resize_cq(struct rnic_cq *cq, int cqe, struct rnic_err *err) {
    cq->cqe = cqe;
    return SAY(cq->ctx, " %d", cqe);
}

static int rec_destroy_cq(struct rnic_cq *cq, struct rnic_err *err) {
    int rc = SAY(cq->ctx, "");
    struct channel *channel = (struct channel *)cq->channel;

    if (!rc && ((struct cq *)cq)->unacked) {
        snprintf(err->text, sizeof(err->text), "%u events are not acknowledged", ((struct cq *)cq)->unacked);
        rc = -EBUSY;
    }
    if (!rc && channel && channel->pending == cq)
        channel->pending = NULL;
    return gone(cq->ctx, cq, rc);
}

static int rec_poll_cq(struct rnic_cq *cq, int n, struct rnic_wc *wc) {
    struct recorder *r = rec(cq->ctx);
    int rc = fails(cq->ctx, "poll_cq", NULL), got = 0;

    note(cq->ctx, "poll_cq %d\n", n);
    if (rc)
        return rc;
    while (got < n && r->done_head != r->done_tail)
        wc[got++] = r->done[r->done_head++ % QUEUE];
    return got;
}

static int rec_req_notify_cq(struct rnic_cq *cq, int solicited_only, struct rnic_err *err) {
    return SAY(cq->ctx, " %d", solicited_only);
}

static int rec_ack_cq_events(struct rnic_cq *cq, unsigned n, struct rnic_err *err) {
    ((struct cq *)cq)->unacked -= n;
    return SAY(cq->ctx, " %u", n);
}

/* ---------------------------------------------------------------- qp */

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

static void note_path(struct rnic_context *ctx, const char *name, const struct rnic_ah_attr *a) {
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

static int rec_query_qp_stats(struct rnic_qp *qp, struct rnic_qp_stats *s, struct rnic_err *err) {
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

/* ---------------------------------------------------------------- extended completion, counters */

static int rec_query_device_ex(struct rnic_context *ctx, struct rnic_device_attr_ex *a, struct rnic_err *err) {
    *a = (struct rnic_device_attr_ex){.odp_caps = {3, {1, 2, 4}},
                                      .completion_timestamp_mask = 33,
                                      .hca_core_clock = 34,
                                      .device_cap_flags_ex = 7,
                                      .cq_mod_caps = {35, 36},
                                      .tm_caps = {37, 38, RNIC_TM_CAP_RC, 39, 40},
                                      .rss_caps = {41, 42, 43, 4, 1},
                                      .max_wq_type_rq = 44,
                                      .raw_packet_caps = RNIC_RAW_PACKET_CAP_IP_CSUM,
                                      .tso_caps = {45, 46},
                                      .xrc_odp_caps = 8,
                                      .max_dm_size = 9,
                                      .packet_pacing_caps = {2, 3, 4}};
    rec_query_device(ctx, &a->orig_attr, err);
    return SAY(ctx, "");
}

static int rec_query_rt_values(struct rnic_context *ctx, struct rnic_values_ex *values, struct rnic_err *err) {
    values->raw_clock = (struct timespec){3, 5};
    return SAY(ctx, " %u", values->comp_mask);
}

static int rec_create_cq_ex(struct rnic_context *ctx, const struct rnic_cq_init_attr_ex *a, struct rnic_cq **out,
                            struct rnic_err *err) {
    int rc = SAY(ctx, " %u channel=%d vector=%u wc_flags=%lx mask=%u flags=%u parent=%d", a->cqe, a->channel != NULL,
                 a->comp_vector, a->wc_flags, a->comp_mask, a->flags, a->parent_domain != NULL);

    return rc ? rc : cq_new(ctx, (int)a->cqe, a->channel, a->cq_context, out);
}

static int rec_poll_cq_ex(struct rnic_cq *cq, int n, struct rnic_wc *wc, struct rnic_wc_ex *times) {
    int got = rec_poll_cq(cq, n, wc);

    for (int i = 0; i < got; i++)
        times[i] = (struct rnic_wc_ex){.raw = 1000 + wc[i].wr_id, .wallclock_ns = 2000 + wc[i].wr_id};
    return got;
}

static int rec_modify_cq(struct rnic_cq *cq, const struct rnic_modify_cq_attr *a, struct rnic_err *err) {
    return SAY(cq->ctx, " mask=%u %u,%u", a->attr_mask, a->moderate.cq_count, a->moderate.cq_period);
}

static int rec_create_counters(struct rnic_context *ctx, struct rnic_flow_counters **out, struct rnic_err *err) {
    int rc = SAY(ctx, "");

    return rc ? rc : MAKE(ctx, out, struct rnic_flow_counters, .ctx = ctx);
}

static int rec_destroy_counters(struct rnic_flow_counters *counters, struct rnic_err *err) {
    return gone(counters->ctx, counters, SAY(counters->ctx, ""));
}

static int rec_attach_counters_point_flow(struct rnic_flow_counters *counters, const struct rnic_counter_attach_attr *a,
                                          void *flow, struct rnic_err *err) {
    return SAY(counters->ctx, " %d,%u,%u flow=%d", a->counter_desc, a->index, a->comp_mask, flow != NULL);
}

static int rec_read_counters(struct rnic_flow_counters *counters, uint64_t *values, uint32_t n, uint32_t flags,
                             struct rnic_err *err) {
    for (uint32_t i = 0; i < n; i++)
        values[i] = 100 + i;
    return SAY(counters->ctx, " %u flags=%u", n, flags);
}

struct comp_cntr {
    struct rnic_comp_cntr pub;
    uint64_t value[2];
};

static int rec_query_comp_cntr_caps(struct rnic_context *ctx, struct rnic_comp_cntr_caps *caps, struct rnic_err *err) {
    *caps = (struct rnic_comp_cntr_caps){1, 2, 3};
    return SAY(ctx, "");
}

static int rec_create_comp_cntr(struct rnic_context *ctx, const struct rnic_comp_cntr_init_attr *a,
                                struct rnic_comp_cntr **out, struct rnic_err *err) {
    int rc = SAY(ctx, " %u,%d,%u", a->comp_mask, a->type, a->flags);

    return rc ? rc : MAKE(ctx, out, struct comp_cntr, {ctx}, {0});
}

static int rec_destroy_comp_cntr(struct rnic_comp_cntr *cntr, struct rnic_err *err) {
    return gone(cntr->ctx, cntr, SAY(cntr->ctx, ""));
}

static int rec_set_comp_cntr(struct rnic_comp_cntr *cntr, bool failed, uint64_t value, struct rnic_err *err) {
    ((struct comp_cntr *)cntr)->value[failed] = value;
    return SAY(cntr->ctx, " %d %lu", failed, value);
}

static int rec_inc_comp_cntr(struct rnic_comp_cntr *cntr, bool failed, uint64_t amount, struct rnic_err *err) {
    ((struct comp_cntr *)cntr)->value[failed] += amount;
    return SAY(cntr->ctx, " %d %lu", failed, amount);
}

static int rec_read_comp_cntr(struct rnic_comp_cntr *cntr, bool failed, uint64_t *value, struct rnic_err *err) {
    *value = ((struct comp_cntr *)cntr)->value[failed];
    return SAY(cntr->ctx, " %d", failed);
}

static int rec_attach_comp_cntr(struct rnic_qp *qp, struct rnic_comp_cntr *cntr, uint32_t op_mask,
                                struct rnic_err *err) {
    return SAY(qp->ctx, " qp=%u cntr=%d ops=%u", qp->qp_num, cntr != NULL, op_mask);
}

/* ---------------------------------------------------------------- datagrams */

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

static int rec_query_ah(struct rnic_ah *ah, struct rnic_ah_attr *attr, struct rnic_err *err) {
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

/* ---------------------------------------------------------------- frames */

static int rec_query_raw(struct rnic_context *ctx, struct rnic_raw_attr *a, struct rnic_err *err) {
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

static int rec_query_wq(struct rnic_wq *wq, int *state, uint32_t *depth, struct rnic_err *err) {
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

/* ---------------------------------------------------------------- more of memory, domains, import */

static int rec_reg_mr_ex(struct rnic_pd *pd, const struct rnic_mr_init_attr *a, struct rnic_mr **mr,
                         struct rnic_err *err) {
    int rc = SAY(pd->ctx, " mask=%u access=%u length=%lu iova=%lu fd=%d offset=%lu", a->comp_mask, a->access, a->length,
                 a->iova, a->fd, a->fd_offset);

    if (rc)
        return rc;
    mr_new(pd, a->addr, a->length, NULL, mr);
    if (a->comp_mask & RNIC_MR_INIT_IOVA)
        (*mr)->iova = a->iova;
    return 0;
}

static int rec_alloc_null_mr(struct rnic_pd *pd, struct rnic_mr **mr, struct rnic_err *err) {
    int rc = SAY(pd->ctx, "");

    return rc ? rc : mr_new(pd, NULL, UINT64_MAX, NULL, mr);
}

static int rec_rereg_mr(struct rnic_mr *mr, uint32_t flags, struct rnic_pd *pd, void *addr, uint64_t length,
                        uint32_t access, struct rnic_err *err) {
    int rc = SAY(mr->ctx, " lkey=%u flags=%u length=%lu access=%u", mr->lkey, flags, length, access);

    if (rc)
        return rc;
    if (flags & RNIC_REREG_MR_CHANGE_PD)
        mr->pd = pd;
    if (flags & RNIC_REREG_MR_CHANGE_TRANSLATION) {
        mr->addr = addr;
        mr->iova = (uintptr_t)addr;
        mr->length = length;
    }
    return 0;
}

static int rec_advise_mr(struct rnic_pd *pd, int advice, uint32_t flags, const struct rnic_sge *sge, int n,
                         struct rnic_err *err) {
    return SAY(pd->ctx, " %d flags=%u n=%d first=%lu,%u,%u", advice, flags, n, sge->addr, sge->length, sge->lkey);
}

static int rec_alloc_dm(struct rnic_context *ctx, uint64_t length, uint32_t log_align, struct rnic_dm **dm,
                        struct rnic_err *err) {
    int rc = SAY(ctx, " %lu align=%u", length, log_align);

    return rc ? rc : MAKE(ctx, dm, struct rnic_dm, ctx, length, 77);
}

static int rec_free_dm(struct rnic_dm *dm, struct rnic_err *err) { return gone(dm->ctx, dm, SAY(dm->ctx, "")); }

static int rec_memcpy_to_dm(struct rnic_dm *dm, uint64_t offset, const void *src, uint64_t n, struct rnic_err *err) {
    return SAY(dm->ctx, " %lu %.*s", offset, (int)n, (const char *)src);
}

static int rec_memcpy_from_dm(void *dst, struct rnic_dm *dm, uint64_t offset, uint64_t n, struct rnic_err *err) {
    memset(dst, 'd', n);
    return SAY(dm->ctx, " %lu %lu", offset, n);
}

static int rec_alloc_td(struct rnic_context *ctx, struct rnic_td **td, struct rnic_err *err) {
    int rc = SAY(ctx, "");

    return rc ? rc : MAKE(ctx, td, struct rnic_td, .ctx = ctx);
}

static int rec_dealloc_td(struct rnic_td *td, struct rnic_err *err) { return gone(td->ctx, td, SAY(td->ctx, "")); }

static int rec_alloc_parent_domain(struct rnic_pd *pd, struct rnic_td *td, struct rnic_pd **out, struct rnic_err *err) {
    int rc = SAY(pd->ctx, " td=%d", td != NULL);

    return rc ? rc : MAKE(pd->ctx, out, struct rnic_pd, pd->ctx, pd, 0);
}

static int rec_import_pd(struct rnic_context *ctx, uint32_t handle, struct rnic_pd **pd, struct rnic_err *err) {
    int rc = SAY(ctx, " %u", handle);

    return rc ? rc : MAKE(ctx, pd, struct rnic_pd, ctx, NULL, handle);
}

static int rec_unimport_pd(struct rnic_pd *pd, struct rnic_err *err) { return gone(pd->ctx, pd, SAY(pd->ctx, "")); }

static int rec_import_mr(struct rnic_pd *pd, uint32_t handle, struct rnic_mr **mr, struct rnic_err *err) {
    int rc = SAY(pd->ctx, " %u", handle);

    return rc ? rc : mr_new(pd, NULL, 16, NULL, mr);
}

static int rec_unimport_mr(struct rnic_mr *mr, struct rnic_err *err) {
    return gone(mr->ctx, mr, SAY(mr->ctx, " lkey=%u", mr->lkey));
}

static int rec_import_dm(struct rnic_context *ctx, uint32_t handle, struct rnic_dm **dm, struct rnic_err *err) {
    int rc = SAY(ctx, " %u", handle);

    return rc ? rc : MAKE(ctx, dm, struct rnic_dm, ctx, 64, handle);
}

static int rec_unimport_dm(struct rnic_dm *dm, struct rnic_err *err) { return gone(dm->ctx, dm, SAY(dm->ctx, "")); }

static const struct rnic_ops recorder_ops = {
    .name = "recorder",
    .close = rec_close,
    .query_device = rec_query_device,
    .query_port = rec_query_port,
    .query_gid = rec_query_gid,
    .query_pkey = rec_query_pkey,
    .query_counters = rec_query_counters,
    .set_fault = rec_set_fault,
    .alloc_pd = rec_alloc_pd,
    .dealloc_pd = rec_dealloc_pd,
    .reg_mr = rec_reg_mr,
    .alloc_mr = rec_alloc_mr,
    .dereg_mr = rec_dereg_mr,
    .create_comp_channel = rec_create_comp_channel,
    .destroy_comp_channel = rec_destroy_comp_channel,
    .get_cq_event = rec_get_cq_event,
    .create_cq = rec_create_cq,
    .resize_cq = rec_resize_cq,
    .destroy_cq = rec_destroy_cq,
    .poll_cq = rec_poll_cq,
    .req_notify_cq = rec_req_notify_cq,
    .ack_cq_events = rec_ack_cq_events,
    .create_qp = rec_create_qp,
    .modify_qp = rec_modify_qp,
    .query_qp = rec_query_qp,
    .query_qp_stats = rec_query_qp_stats,
    .destroy_qp = rec_destroy_qp,
    .post_send = rec_post_send,
    .post_recv = rec_post_recv,
    .create_qp_ex = rec_create_qp_ex,
    .post_send_whole = rec_post_send_whole,
    .modify_qp_rate_limit = rec_modify_qp_rate_limit,
    .query_qp_data_in_order = rec_query_qp_data_in_order,
    .set_ece = rec_set_ece,
    .query_ece = rec_query_ece,
    .create_srq = rec_create_srq,
    .modify_srq = rec_modify_srq,
    .query_srq = rec_query_srq,
    .destroy_srq = rec_destroy_srq,
    .post_srq_recv = rec_post_srq_recv,
    .post_srq_ops = rec_post_srq_ops,
    .open_xrcd = rec_open_xrcd,
    .close_xrcd = rec_close_xrcd,
    .create_srq_ex = rec_create_srq_ex,
    .create_xrc_qp = rec_create_xrc_qp,
    .open_qp = rec_open_qp,
    .alloc_mw = rec_alloc_mw,
    .dealloc_mw = rec_dealloc_mw,
    .bind_mw = rec_bind_mw,
    .query_mw = rec_query_mw,
    .create_ah = rec_create_ah,
    .query_ah = rec_query_ah,
    .destroy_ah = rec_destroy_ah,
    .attach_mcast = rec_attach_mcast,
    .detach_mcast = rec_detach_mcast,
    .cm_listen = rec_cm_listen,
    .cm_unlisten = rec_cm_unlisten,
    .cm_slot = rec_cm_slot,
    .cm_watch = rec_cm_watch,
    .cm_watch_service = rec_cm_watch_service,
    .query_device_ex = rec_query_device_ex,
    .query_rt_values = rec_query_rt_values,
    .create_cq_ex = rec_create_cq_ex,
    .poll_cq_ex = rec_poll_cq_ex,
    .modify_cq = rec_modify_cq,
    .create_counters = rec_create_counters,
    .destroy_counters = rec_destroy_counters,
    .attach_counters_point_flow = rec_attach_counters_point_flow,
    .read_counters = rec_read_counters,
    .query_comp_cntr_caps = rec_query_comp_cntr_caps,
    .create_comp_cntr = rec_create_comp_cntr,
    .destroy_comp_cntr = rec_destroy_comp_cntr,
    .set_comp_cntr = rec_set_comp_cntr,
    .inc_comp_cntr = rec_inc_comp_cntr,
    .read_comp_cntr = rec_read_comp_cntr,
    .attach_comp_cntr = rec_attach_comp_cntr,
    .reg_mr_ex = rec_reg_mr_ex,
    .alloc_null_mr = rec_alloc_null_mr,
    .rereg_mr = rec_rereg_mr,
    .advise_mr = rec_advise_mr,
    .alloc_dm = rec_alloc_dm,
    .free_dm = rec_free_dm,
    .memcpy_to_dm = rec_memcpy_to_dm,
    .memcpy_from_dm = rec_memcpy_from_dm,
    .alloc_td = rec_alloc_td,
    .dealloc_td = rec_dealloc_td,
    .alloc_parent_domain = rec_alloc_parent_domain,
    .import_pd = rec_import_pd,
    .unimport_pd = rec_unimport_pd,
    .import_mr = rec_import_mr,
    .unimport_mr = rec_unimport_mr,
    .import_dm = rec_import_dm,
    .unimport_dm = rec_unimport_dm,
    .query_raw = rec_query_raw,
    .create_flow = rec_create_flow,
    .destroy_flow = rec_destroy_flow,
    .create_wq = rec_create_wq,
    .modify_wq = rec_modify_wq,
    .query_wq = rec_query_wq,
    .destroy_wq = rec_destroy_wq,
    .post_wq_recv = rec_post_wq_recv,
    .create_rwq_ind_table = rec_create_rwq_ind_table,
    .destroy_rwq_ind_table = rec_destroy_rwq_ind_table,
    .get_async_event = rec_get_async_event,
    .ack_async_event = rec_ack_async_event,
    .set_pkeys = rec_set_pkeys,
};

/* ---------------------------------------------------------------- the test's own handles */

struct rnic_context *recorder_new(void) {
    struct recorder *r = calloc(1, sizeof(*r));

    r->pub = (struct rnic_context){&recorder_ops, eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), 4, -1};
    return &r->pub;
}

void recorder_free(struct rnic_context *ctx) {
    close(ctx->async_fd);
    free(ctx);
}

const char *recorder_log(const struct rnic_context *ctx) { return rec(ctx)->log; }

void recorder_clear(struct rnic_context *ctx) {
    rec(ctx)->log_len = 0;
    rec(ctx)->log[0] = 0;
}

int recorder_alive(const struct rnic_context *ctx) { return rec(ctx)->alive; }

void recorder_fail(struct rnic_context *ctx, const char *verb, int err, const char *text, int at) {
    struct recorder *r = rec(ctx);

    snprintf(r->fail_verb, sizeof(r->fail_verb), "%s", verb);
    snprintf(r->fail_text, sizeof(r->fail_text), "%s", text);
    r->fail_err = err;
    r->fail_at = at;
}

void recorder_quiet(struct rnic_context *ctx) { rec(ctx)->quiet = true; }

void recorder_complete(struct rnic_context *ctx, const struct rnic_wc *wc) {
    struct recorder *r = rec(ctx);

    if (r->done_tail - r->done_head < QUEUE)
        r->done[r->done_tail++ % QUEUE] = *wc;
}

static void ring(int fd) {
    uint64_t one = 1;

    if (write(fd, &one, sizeof(one)) < 0)
        abort();
}

void recorder_cq_event(struct rnic_cq *cq) {
    ((struct channel *)cq->channel)->pending = cq;
    ring(cq->channel->fd);
}

void recorder_async_event(struct rnic_context *ctx, int type, int port, void *context) {
    rec(ctx)->event = (struct rnic_async_event){.event_type = type, .port_num = port, .context = context};
    ring(ctx->async_fd);
}

struct rnic_cq *recorder_last_cq(struct rnic_context *ctx) { return rec(ctx)->last_cq; }

struct rnic_qp *recorder_last_qp(struct rnic_context *ctx) { return rec(ctx)->last_qp; }
