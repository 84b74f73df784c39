/* SPDX-License-Identifier: Apache-2.0 */
#include "recorder_own.h"

#include <errno.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---------------------------------------------------------------- channel, cq */

struct channel {
    struct rnic_comp_channel pub;
    struct rnic_cq *pending; /* at most one event waits */
};

struct cq {
    struct rnic_cq pub;
    unsigned unacked;
};

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
        snprintf(err->text, sizeof(err->text), "unacknowledged events: %u", ((struct cq *)cq)->unacked);
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

/* ---------------------------------------------------------------- extended completion */

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

/* ---------------------------------------------------------------- counters */

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

/* ---------------------------------------------------------------- the test's own handles */

void recorder_complete(struct rnic_context *ctx, const struct rnic_wc *wc) {
    struct recorder *r = rec(ctx);

    if (r->done_tail - r->done_head < QUEUE)
        r->done[r->done_tail++ % QUEUE] = *wc;
}

void recorder_cq_event(struct rnic_cq *cq) {
    ((struct channel *)cq->channel)->pending = cq;
    ring(cq->channel->fd);
}

/* ---------------------------------------------------------------- operations */

void recorder_cq_ops(struct rnic_ops *ops) {
    ops->create_comp_channel = rec_create_comp_channel;
    ops->destroy_comp_channel = rec_destroy_comp_channel;
    ops->get_cq_event = rec_get_cq_event;
    ops->create_cq = rec_create_cq;
    ops->resize_cq = rec_resize_cq;
    ops->destroy_cq = rec_destroy_cq;
    ops->poll_cq = rec_poll_cq;
    ops->req_notify_cq = rec_req_notify_cq;
    ops->ack_cq_events = rec_ack_cq_events;
    ops->create_cq_ex = rec_create_cq_ex;
    ops->poll_cq_ex = rec_poll_cq_ex;
    ops->modify_cq = rec_modify_cq;
    ops->create_counters = rec_create_counters;
    ops->destroy_counters = rec_destroy_counters;
    ops->attach_counters_point_flow = rec_attach_counters_point_flow;
    ops->read_counters = rec_read_counters;
    ops->query_comp_cntr_caps = rec_query_comp_cntr_caps;
    ops->create_comp_cntr = rec_create_comp_cntr;
    ops->destroy_comp_cntr = rec_destroy_comp_cntr;
    ops->set_comp_cntr = rec_set_comp_cntr;
    ops->inc_comp_cntr = rec_inc_comp_cntr;
    ops->read_comp_cntr = rec_read_comp_cntr;
    ops->attach_comp_cntr = rec_attach_comp_cntr;
}
