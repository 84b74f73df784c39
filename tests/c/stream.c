/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define SPIN 1000000 /* turns without an end */

/* ---------------------------------------------------------------- the link */

struct stream_way { /* of a way, the link's own */
    struct pipe *out;
    struct stream *stream;
} __attribute__((may_alias));

static struct stream_way *own(const struct way *way) { return (struct stream_way *)(uintptr_t)way->own; }

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Of n bytes from a place on, those up to a cut. */
static uint64_t up_to(uint64_t from, uint64_t n, uint64_t cut) { return cut > from && cut < from + n ? cut - from : n; }

static void append(struct pipe *p, const uint8_t *bytes, uint64_t n) {
    if (p->forgets && p->read - p->forgotten > 1 << 20) {
        memmove(p->bytes, p->bytes + p->read - p->forgotten, p->written - p->read);
        p->forgotten = p->read;
    }
    if (p->written - p->forgotten + n > p->room) {
        p->room = 2 * (p->written - p->forgotten + n) + 4096;
        p->bytes = realloc(p->bytes, p->room);
    }
    memcpy(p->bytes + p->written - p->forgotten, bytes, n);
    if (p->flip > p->written && p->flip <= p->written + n)
        p->bytes[p->flip - 1] ^= 0x10;
    p->written += n;
}

static long pipe_write(struct link *link, const struct way *way, const struct iovec *pieces, int n) {
    struct pipe *p = own(way)->out;
    uint64_t total = 0, done = 0;
    (void)link;
    CHECK(!p->finished);
    if (p->broken)
        return -EPIPE;
    for (int i = 0; i < n; i++)
        total += pieces[i].iov_len;
    CHECK(total);
    total = p->most_written ? least(total, p->most_written) : total;
    total = p->most_in_pipe ? least(total, p->most_in_pipe - (p->written - p->read)) : total;
    total = up_to(p->written, total, p->cut_written);
    if (!p->writes++)
        p->first_write = total;
    for (; done < total; pieces++) {
        uint64_t part = least(pieces->iov_len, total - done);
        append(p, pieces->iov_base, part);
        done += part;
    }
    return (long)total;
}

static void pipe_finish(struct link *link, const struct way *way) {
    (void)link;
    CHECK(!own(way)->out->finished);
    own(way)->out->finished = true;
}

static uint32_t pipe_segment(struct link *link, const struct way *way) {
    (void)link;
    return own(way)->out->segment ? own(way)->out->segment : 65536;
}

static uint32_t pipe_queued(struct link *link, const struct way *way) {
    const struct pipe *p = own(way)->out;
    (void)link;
    return p->stored ? 0 : (uint32_t)(p->written - p->read);
}

static void hold(struct link *link, const struct way *way) {
    (void)link;
    own(way)->stream->users++;
}

/* Its end comes as of a socket that is closed. */
static void release(struct link *link, const struct way *way) {
    (void)link;
    own(way)->out->finished = true;
    own(way)->stream->users--;
}

static const struct link_ops stream_ops = {.name = "stream",
                                           .hold = hold,
                                           .release = release,
                                           .write = pipe_write,
                                           .finish = pipe_finish,
                                           .segment = pipe_segment,
                                           .queued = pipe_queued};

/* ---------------------------------------------------------------- bytes come in */

static void take_in(struct stream *s, struct end *e, const uint8_t *bytes, uint64_t n, const struct iovec *pieces) {
    uint64_t done = 0;
    for (; done < n; pieces++) {
        uint64_t part = least(pieces->iov_len, n - done);
        memcpy(pieces->iov_base, bytes + done, part);
        done += part;
    }
    iwarp_got(e->qp, n, s->f.now);
}

void stream_give(struct stream *s, struct end *to, const uint8_t *bytes, uint64_t n) {
    struct iovec pieces[IWARP_PIECES];
    while (n) {
        int count = iwarp_want(to->qp, pieces);
        uint64_t room = 0;
        CHECK(count <= IWARP_PIECES);
        for (int i = 0; i < count; i++)
            room += pieces[i].iov_len;
        if (!room) /* it wants nothing any more */
            return;
        uint64_t part = least(room, n);
        take_in(s, to, bytes, part, pieces);
        bytes += part;
        n -= part;
    }
}

static bool deliver(struct stream *s, struct end *e) {
    struct iovec pieces[IWARP_PIECES];
    struct pipe *p = pipe_to(s, e);
    if (p->held)
        return false;
    int count = iwarp_want(e->qp, pieces);
    uint64_t n = 0;
    CHECK(count <= IWARP_PIECES);
    for (int i = 0; i < count; i++)
        n += pieces[i].iov_len;
    if (!n)
        return false;
    n = least(n, p->written - p->read);
    n = p->most_read ? least(n, p->most_read) : n;
    n = up_to(p->read, n, p->cut_read);
    if (n) {
        p->reads++;
        p->read += n;
        take_in(s, e, p->bytes + p->read - n - p->forgotten, n, pieces);
        return true;
    }
    if (p->told || (!p->finished && !p->error))
        return false;
    p->told = true;
    iwarp_ended(e->qp, -p->error, s->f.now);
    return true;
}

static bool work(struct stream *s, struct end *e) {
    struct pipe *p = pipe_from(s, e);
    uint64_t before = p->written;
    bool finished = p->finished;
    if (e->qp->state < RNIC_QPS_RTR)
        return false;
    bool more = e->qp->engine->next(e->qp, s->f.now);
    return more || p->written != before || p->finished != finished;
}

bool stream_step(struct stream *s) {
    bool moved = work(s, &s->a);
    moved |= work(s, &s->b);
    moved |= deliver(s, &s->a);
    moved |= deliver(s, &s->b);
    return moved;
}

void stream_run(struct stream *s) {
    for (int i = 0; stream_step(s); i++)
        CHECK(i < SPIN);
}

void stream_later(struct stream *s) {
    uint64_t a = s->a.qp->engine->deadline(s->a.qp), b = s->b.qp->engine->deadline(s->b.qp);
    CHECK(least(a, b) != NEVER);
    s->f.now = least(a, b);
    s->a.qp->engine->timer(s->a.qp, s->f.now);
    s->b.qp->engine->timer(s->b.qp, s->f.now);
}

/* ---------------------------------------------------------------- two ends */

static void ended(void *arg, struct qp *qp, const struct rnic_stream_event *event) {
    struct stream *s = arg;
    struct ending *ending = qp == s->a.qp ? &s->a_end : &s->b_end;
    CHECK_EQ(event->qp_num, qp->pub.qp_num);
    ending->count++;
    ending->event = *event;
}

static uint32_t or_default(uint32_t v, uint32_t otherwise) { return v == NONE ? 0 : v ? v : otherwise; }

static void make_qp(struct end *e, uint32_t number, const struct stream_options *o, struct srq *srq) {
    struct qp *qp = calloc(1, sizeof *qp);
    struct node *node = e->node;
    uint32_t sge = o->sge ? o->sge : 4;
    qp->pub = (struct rnic_qp){.pd = &node->pd.pub,
                               .send_cq = &e->send_cq->pub,
                               .recv_cq = &e->recv_cq->pub,
                               .qp_num = number,
                               .qp_type = RNIC_QPT_RC};
    qp->real = qp;
    qp->nic = &node->nic;
    qp->record = -1;
    qp->sq.pd = qp->rq.pd = &node->pd.pub;
    qp->srq = srq;
    qp->sq_sig_all = o->sig_all;
    qp->turn.timer_at = NEVER;
    qp_set_service(qp, transport_service(&iwarp_transport, RNIC_QPT_RC));
    CHECK_EQ(wq_init(&qp->sq, o->wr ? o->wr : 64, sge, o->inline_data ? o->inline_data : 64, sizeof(struct send_wqe)),
             0);
    CHECK_EQ(wq_init(&qp->rq, srq ? 1 : o->wr ? o->wr : 64, srq ? srq->q.max_sge : sge, 0, sizeof(struct recv_wqe)), 0);
    CHECK_EQ(qp->engine->create(qp), 0);
    e->qp = qp;
}

static void open_end(struct stream *s, struct end *e, int i, const struct stream_options *o, struct srq *srq) {
    e->node = &s->f.node[i];
    e->peer = i ? &s->a : &s->b;
    e->bytes = o->bytes ? o->bytes : 256 << 10;
    e->mem = calloc(1, e->bytes);
    e->node->nic.stream_told = ended;
    e->node->nic.stream_arg = s;
    CHECK_EQ(channel_init(&e->channel), 0);
    e->send_cq = fabric_cq(o->cqe ? (int)o->cqe : 256, &e->channel);
    e->recv_cq = fabric_cq(o->cqe ? (int)o->cqe : 256, &e->channel);
    e->mr = fabric_mr(e->node, &e->node->pd, e->mem, e->bytes, ALL_ACCESS | RNIC_ACCESS_MW_BIND);
    make_qp(e, 0x100 + (uint32_t)i, o, srq);
}

void stream_join(struct end *e, struct pipe *out) {
    struct stream *s = e->node->nic.stream_arg;
    e->qp->way = (struct way){.link = &s->link};
    *own(&e->qp->way) = (struct stream_way){out, s};
    way_hold(&e->qp->way);
}

void stream_agree(struct stream *s, struct end *e, const struct stream_options *o) {
    iwarp_agree(e->qp, &(struct rnic_stream_attr){.initiator = e == &s->a,
                                                  .rtr = o->rtr,
                                                  .crc = !o->no_crc,
                                                  .markers_in = o->markers,
                                                  .markers_out = o->markers,
                                                  .rfc7306 = o->rfc7306});
}

int stream_move(struct end *e, int state, struct rnic_err *err) {
    struct rnic_qp_attr attr = {.qp_state = state};
    int rc = qp_attr_check(e->qp, &attr, RNIC_QP_STATE, err);
    if (rc)
        return rc;
    qp_attr_apply(e->qp, &attr, RNIC_QP_STATE);
    if (state == RNIC_QPS_RESET)
        e->qp->engine->disconnect(e->qp);
    return qp_transition(e->qp, state, err);
}

static void bring_up(struct stream *s, struct end *e, const struct stream_options *o) {
    struct rnic_qp_attr attr = {.qp_state = RNIC_QPS_RTS,
                                .qp_access_flags = or_default(o->access, ALL_ACCESS),
                                .max_rd_atomic = (uint8_t)or_default(o->rd_atomic, 4),
                                .max_dest_rd_atomic = (uint8_t)or_default(o->dest_rd_atomic, 4)};
    uint32_t mask = RNIC_QP_STATE | RNIC_QP_ACCESS_FLAGS | RNIC_QP_MAX_QP_RD_ATOMIC | RNIC_QP_MAX_DEST_RD_ATOMIC;
    pipe_from(s, e)->segment = o->segment;
    stream_join(e, pipe_from(s, e));
    stream_agree(s, e, o);
    CHECK_EQ(qp_attr_check(e->qp, &attr, mask, NULL), 0);
    qp_attr_apply(e->qp, &attr, mask);
    CHECK_EQ(qp_transition(e->qp, RNIC_QPS_RTS, NULL), 0);
}

void stream_open_options(struct stream *s, const struct stream_options *o) {
    memset(s, 0, sizeof *s);
    fabric_open(&s->f, false);
    s->link.ops = &stream_ops;
    open_end(s, &s->a, 0, o, NULL);
    open_end(s, &s->b, 1, o, o->srq);
    CHECK_EQ(stream_move(&s->a, RNIC_QPS_INIT, NULL), 0);
    CHECK_EQ(stream_move(&s->b, RNIC_QPS_INIT, NULL), 0);
    if (o->not_yet)
        return;
    bring_up(s, &s->a, o);
    bring_up(s, &s->b, o);
}

static void close_end(struct stream *s, struct end *e) {
    struct qp *qp = e->qp;
    qp_forget_completions(qp);
    mw_unbind_all(&qp->windows);
    qp->engine->disconnect(qp);
    qp->engine->destroy(qp);
    free(qp->why);
    wq_free(&qp->sq);
    wq_free(&qp->rq);
    free(qp);
    fabric_drop_mr(e->node, e->mr);
    fabric_drop_cq(e->send_cq);
    fabric_drop_cq(e->recv_cq);
    channel_free(&e->channel);
    free(e->mem);
    free(pipe_from(s, e)->bytes);
}

void stream_close(struct stream *s) {
    close_end(s, &s->a);
    close_end(s, &s->b);
    CHECK_EQ(s->users, 0);
    fabric_close(&s->f);
}
