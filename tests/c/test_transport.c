/* SPDX-License-Identifier: Apache-2.0
 *
 * A transport and a link that no room of src/nic knows: queue pairs that are joined in pairs, as by a connection that a
 * program has made and hands over, and are closed in order; messages go by a pipe that holds four.  They are made, changed,
 * posted to, scheduled, completed and queried by qp/, queue/ and run/ as they are.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "check.h"
#include "fabric.h"
#include "run/run.h"

#define PLACES 2  /* connections that there can be; attr.dest_qp_num names one */
#define IN_PIPE 4 /* messages */
#define LONGEST 64
#define DRIVER 0xFF /* its type of queue pair */

static struct fabric fabric; /* for a nic, regions and events */
static struct run run;

/* ---------------------------------------------------------------- the link: a pipe; and its source */

struct message {
    struct qp *to;
    uint32_t n; /* 0: the sender sends no more */
    uint8_t bytes[LONGEST];
};

static struct pipe {
    struct link link; /* first */
    struct message message[IN_PIPE];
    int count, users, waits;
} pipe_link;

struct pipe_way { /* of a way, the link's own */
    struct qp *to;
} __attribute__((may_alias));

static bool put(struct link *link, const struct way *way, const uint8_t *bytes, uint32_t n) {
    struct pipe *p = (struct pipe *)link;
    if (p->count == IN_PIPE) {
        p->waits += !link->full;
        link->full = true;
        return false;
    }
    struct message *m = &p->message[p->count++];
    *m = (struct message){.to = ((const struct pipe_way *)(const void *)way->own)->to, .n = n};
    memcpy(m->bytes, bytes, n);
    return true;
}

static void hold(struct link *link, const struct way *way) {
    (void)way;
    ((struct pipe *)link)->users++;
}

static void release(struct link *link, const struct way *way) {
    (void)way;
    ((struct pipe *)link)->users--;
}

static const struct link_ops pipe_ops = {.name = "pipe", .hold = hold, .release = release, .put = put};

static void toy_input(struct qp *qp, const struct message *m);

static bool receive(void *owner, uint64_t now, bool all) {
    int n = pipe_link.count;
    (void)owner, (void)all;
    pipe_link.count = 0;
    for (int i = 0; i < n; i++) {
        toy_input(pipe_link.message[i].to, &pipe_link.message[i]);
        sched_input(&run, pipe_link.message[i].to, now);
    }
    return n > 0;
}

static void resume(void *owner, uint64_t now, bool called) {
    (void)owner, (void)now, (void)called;
    if (!pipe_link.link.full || pipe_link.count == IN_PIPE)
        return;
    pipe_link.link.full = false;
    sched_unpark(&run, &pipe_link.link);
}

static const struct source pipe_source = {.name = "pipe", .receive = receive, .resume = resume};

/* ---------------------------------------------------------------- the transport: its engine */

struct toy {
    bool closes, closed; /* it sends no more; and has said so */
    bool peer_closed;
    uint32_t sent;
};

static struct qp *places[PLACES][2];

static struct toy *toy_of(const struct qp *qp) { return qp->engine_state; }

static struct qp **seat_of(const struct qp *qp, const struct qp *who) {
    struct qp **place = places[qp->attr.dest_qp_num];
    return place[0] == who ? &place[0] : place[1] == who ? &place[1] : NULL;
}

static int toy_create(struct qp *qp) {
    qp->engine_state = calloc(1, sizeof(struct toy));
    return qp->engine_state ? 0 : -ENOMEM;
}

static void toy_destroy(struct qp *qp) { free(qp->engine_state); }

static void toy_reset(struct qp *qp) { *toy_of(qp) = (struct toy){0}; }

static int toy_check(const struct qp *qp, const struct rnic_qp_attr *attr, uint32_t mask, struct rnic_err *err) {
    const struct attr_limit limits[] = {{RNIC_QP_DEST_QPN, attr->dest_qp_num, 0, PLACES - 1, "dest_qp_num"}};
    (void)qp;
    return qp_check_limits(limits, 1, mask, err);
}

static void join(struct qp *qp, struct qp *peer) {
    qp->way = (struct way){.link = &pipe_link.link};
    ((struct pipe_way *)(void *)qp->way.own)->to = peer;
    way_hold(&qp->way);
}

static int toy_enter(struct qp *qp, int from, int to, struct rnic_err *err) {
    if (to == RNIC_QPS_SQD)
        toy_of(qp)->closes = true;
    if (to != RNIC_QPS_RTS || from != RNIC_QPS_RESET)
        return 0;
    struct qp **seat = seat_of(qp, NULL);
    if (!seat)
        return fail(err, -EBUSY, "connection %u has two ends already", qp->attr.dest_qp_num);
    *seat = qp;
    if (!seat_of(qp, NULL)) {
        struct qp **place = places[qp->attr.dest_qp_num];
        join(place[0], place[1]);
        join(place[1], place[0]);
    }
    return 0;
}

static void toy_disconnect(struct qp *qp) {
    struct qp **seat = seat_of(qp, qp);
    if (seat)
        *seat = NULL;
    way_release(&qp->way);
}

static bool toy_send(struct qp *qp, struct send_wqe *wqe) {
    uint8_t bytes[LONGEST];
    uint32_t crc = 0;
    int ve = wqe->length > LONGEST || !wqe->length
                 ? RNIC_VE_BAD_LENGTH
                 : sge_gather(&qp->nic->mrs, qp->pub.pd, wqe->sge, wqe->num_sge, 0, bytes, wqe->length, &crc);
    if (ve) {
        qp_refuse_send(qp, wqe, RNIC_WC_LOC_PROT_ERR, ve);
        return true;
    }
    if (!qp->way.link->ops->put(qp->way.link, &qp->way, bytes, wqe->length))
        return false;
    toy_of(qp)->sent++;
    qp_complete_send(qp, wqe);
    return true;
}

/* In order: what has been posted goes first, then the news that nothing more comes; with the peer's it is over. */
static bool toy_next(struct qp *qp, uint64_t now) {
    struct toy *toy = toy_of(qp);
    (void)now;
    if (qp->state == RNIC_QPS_ERR)
        qp_flush(qp);
    while ((qp->state == RNIC_QPS_RTS || qp->state == RNIC_QPS_SQD) && qp->way.held && !wq_empty(&qp->sq)) {
        if (!toy_send(qp, sq_wqe(&qp->sq, wq_tail(&qp->sq))))
            return true;
    }
    qp_drained(qp);
    if (toy->closes && !toy->closed &&
        !(toy->closed = qp->way.link->ops->put(qp->way.link, &qp->way, (const uint8_t *)"", 0)))
        return true;
    if (toy->closed && toy->peer_closed && qp->state != RNIC_QPS_ERR)
        qp_error(qp, -1);
    return false;
}

static void toy_input(struct qp *qp, const struct message *m) {
    struct rnic_wc wc = {.opcode = RNIC_WCO_RECV, .byte_len = m->n};
    if (!m->n) {
        toy_of(qp)->peer_closed = toy_of(qp)->closes = true;
        return;
    }
    if (!qp_has_receive(qp, NULL)) {
        qp_error(qp, RNIC_EVENT_QP_REQ_ERR);
        return;
    }
    const struct recv_wqe *wqe = rq_wqe(&qp->rq, wq_tail(&qp->rq));
    wc.vendor_err = (uint32_t)sge_scatter(&qp->nic->mrs, qp->rq.pd, wqe->sge, wqe->num_sge, 0, m->bytes, m->n);
    wc.status = wc.vendor_err ? RNIC_WC_LOC_PROT_ERR : 0;
    qp_complete_recv(qp, &wc, false);
}

static void toy_stats(struct qp *qp, struct rnic_qp_stats *out) { out->msn = toy_of(qp)->sent; }

static const struct engine_ops toy_ops = {.create = toy_create,
                                          .destroy = toy_destroy,
                                          .reset = toy_reset,
                                          .check = toy_check,
                                          .enter = toy_enter,
                                          .disconnect = toy_disconnect,
                                          .next = toy_next,
                                          .timer = engine_pace_timer,
                                          .deadline = engine_pace_deadline,
                                          .held = engine_never,
                                          .settle = engine_never_settles,
                                          .flush = qp_flush,
                                          .stats = toy_stats};

/* ---------------------------------------------------------------- its table */

static transitions toy_states = {
    [RNIC_QPS_RESET] = {[RNIC_QPS_RTS] = {true, RNIC_QP_DEST_QPN, RNIC_QP_ACCESS_FLAGS}},
    [RNIC_QPS_RTS] = {[RNIC_QPS_SQD] = {true, 0, RNIC_QP_EN_SQD_ASYNC_NOTIFY}},
};

static int refuse(int opcode, struct rnic_err *err) { return fail(err, -EINVAL, "opcode %d is none of a toy", opcode); }

static const struct sq_rules toy_sends = {.operations = 1u << RNIC_WR_SEND, .refuse = refuse};
static const struct service toy_services[] = {
    {.type = DRIVER, .name = "TOY", .engine = &toy_ops, .states = &toy_states, .sends = &toy_sends}};
static const struct transport toy_transport = {"toy", toy_services, 1};

/* ---------------------------------------------------------------- two queue pairs */

static struct side {
    struct qp *qp;
    struct cq *cq;
    struct mr *mr;
    uint8_t mem[1024];
} a, b;

static void open_side(struct side *s, uint32_t number) {
    struct node *node = &fabric.node[0];
    struct qp *qp = calloc(1, sizeof *qp);
    s->cq = fabric_cq(64, NULL);
    s->mr = fabric_mr(node, &node->pd, s->mem, sizeof s->mem, ALL_ACCESS);
    qp->pub = (struct rnic_qp){
        .pd = &node->pd.pub, .send_cq = &s->cq->pub, .recv_cq = &s->cq->pub, .qp_num = number, .qp_type = DRIVER};
    qp->nic = &node->nic;
    qp->record = -1;
    qp->sq_sig_all = true;
    qp->sq.pd = qp->rq.pd = &node->pd.pub;
    qp->turn.timer_at = NEVER;
    qp_set_service(qp, transport_service(&toy_transport, DRIVER));
    CHECK_EQ(wq_init(&qp->sq, 16, 2, 0, sizeof(struct send_wqe)), 0);
    CHECK_EQ(wq_init(&qp->rq, 16, 2, 0, sizeof(struct recv_wqe)), 0);
    CHECK_EQ(qp->engine->create(qp), 0);
    CHECK_EQ(run_reserve(&run, number), 0);
    s->qp = qp;
}

static void close_side(struct side *s) {
    sched_forget(&run, s->qp);
    s->qp->engine->disconnect(s->qp);
    s->qp->engine->destroy(s->qp);
    free(s->qp->why);
    wq_free(&s->qp->sq);
    wq_free(&s->qp->rq);
    free(s->qp);
    fabric_drop_mr(&fabric.node[0], s->mr);
    fabric_drop_cq(s->cq);
}

static void begin(void) {
    static const struct run_source sources[] = {{&pipe_source, NULL}, {NULL, NULL}};
    fabric_open(&fabric, false);
    memset(&run, 0, sizeof run);
    memset(&pipe_link, 0, sizeof pipe_link);
    pipe_link.link.ops = &pipe_ops;
    fabric.node[0].nic.wire = &pipe_link.link;
    run_init(&run, &fabric.node[0].nic, sources);
    open_side(&a, 1);
    open_side(&b, 2);
}

static void end(void) {
    close_side(&a);
    close_side(&b);
    CHECK_EQ(pipe_link.users, 0);
    run_free(&run);
    fabric_close(&fabric);
}

static void work(void) {
    for (uint64_t now = 1; progress(&run, now, true); now++)
        CHECK(now < 100);
}

/* As verbs/qp_modify.c does it. */
static int change(struct qp *qp, int state, uint32_t mask, uint32_t dest, struct rnic_err *err) {
    struct rnic_qp_attr attr = {.qp_state = state, .dest_qp_num = dest};
    int rc = qp_attr_check(qp, &attr, mask | RNIC_QP_STATE, err);
    if (rc)
        return rc;
    qp_attr_apply(qp, &attr, mask | RNIC_QP_STATE);
    if (state == RNIC_QPS_RESET) {
        sched_forget(&run, qp);
        qp->engine->disconnect(qp);
    }
    rc = qp_transition(qp, state, err);
    if (state >= RNIC_QPS_RTS)
        sched_ready(&run, qp);
    return rc;
}

static void connect_both(void) {
    CHECK_EQ(change(a.qp, RNIC_QPS_RTS, RNIC_QP_DEST_QPN, 1, NULL), 0);
    CHECK_EQ(change(b.qp, RNIC_QPS_RTS, RNIC_QP_DEST_QPN, 1, NULL), 0);
}

static int send_some(struct side *s, int opcode, int n, struct rnic_err *err) {
    int rc = 0;
    for (int i = 0; i < n && !rc; i++) {
        struct rnic_sge sge = {(uintptr_t)s->mem + (uint64_t)i, 8, s->mr->pub.lkey};
        struct rnic_send_wr wr = {.wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1, .opcode = opcode};
        const struct rnic_send_wr *bad;
        rc = sq_post(&s->qp->sq, &wr, &bad, err);
        sched_ring(&run, s->qp);
    }
    return rc;
}

static void receive_some(struct side *s, int n) {
    for (int i = 0; i < n; i++) {
        struct rnic_sge sge = {(uintptr_t)s->mem + 512 + 8 * (uint64_t)i, 8, s->mr->pub.lkey};
        struct rnic_recv_wr wr = {.wr_id = 100 + (uint64_t)i, .sg_list = &sge, .num_sge = 1};
        const struct rnic_recv_wr *bad;
        CHECK_EQ(rq_post(&s->qp->rq, &wr, &bad, NULL), 0);
    }
}

static void want_all(struct side *s, uint64_t first, int n, int status) {
    for (int i = 0; i < n; i++)
        (void)want_wc(s->cq, first + (uint64_t)i, status, __FILE__, __LINE__);
}

/* ---------------------------------------------------------------- what it shows */

static void want_refusal(int state, uint32_t mask, uint32_t dest, int rc, const char *text) {
    struct rnic_err err;
    check_note("%s", text);
    CHECK_EQ(change(a.qp, state, mask, dest, &err), rc);
    CHECK(strstr(err.text, text));
    CHECK_EQ(a.qp->state, RNIC_QPS_RESET);
}

static void states_and_attributes_are_the_transports(void) {
    begin();
    want_refusal(RNIC_QPS_INIT, RNIC_QP_PORT, 0, -EINVAL, "RESET -> INIT is not allowed");
    want_refusal(RNIC_QPS_RTS, 0, 0, -EINVAL, "RESET -> RTS needs dest_qp_num");
    want_refusal(RNIC_QPS_RTS, RNIC_QP_DEST_QPN | RNIC_QP_AV | RNIC_QP_SQ_PSN, 0, -EINVAL,
                 "RESET -> RTS does not take ah_attr, sq_psn");
    want_refusal(RNIC_QPS_RTS, RNIC_QP_DEST_QPN, PLACES, -EINVAL, "dest_qp_num is 2; allowed are 0 to 1");
    CHECK_EQ(change(b.qp, RNIC_QPS_RTS, RNIC_QP_DEST_QPN, 0, NULL), 0);
    places[0][1] = b.qp; /* as if a third had it */
    want_refusal(RNIC_QPS_RTS, RNIC_QP_DEST_QPN, 0, -EBUSY, "connection 0 has two ends already");
    places[0][1] = NULL;
    CHECK_EQ(change(b.qp, RNIC_QPS_RESET, 0, 0, NULL), 0);
    connect_both();
    CHECK_EQ(pipe_link.users, 2);
    CHECK_EQ(change(a.qp, RNIC_QPS_RESET, 0, 0, NULL), 0);
    CHECK_EQ(pipe_link.users, 1);
    CHECK_EQ(change(b.qp, RNIC_QPS_RESET, 0, 0, NULL), 0);
    connect_both();
    end();
}

static void messages_are_posted_and_complete(void) {
    struct rnic_qp_attr attr;
    struct rnic_qp_stats stats = {0};
    struct rnic_err err;
    begin();
    connect_both();
    fill(a.mem, 64, 7);
    receive_some(&b, 11);
    CHECK_EQ(send_some(&a, RNIC_WR_SEND, 10, NULL), 0);
    CHECK_EQ(send_some(&a, RNIC_WR_RDMA_READ, 1, &err), -EINVAL);
    CHECK(strstr(err.text, "is none of a toy"));
    work();
    CHECK_EQ(pipe_link.waits, 2); /* of four messages each time */
    want_all(&a, 0, 10, RNIC_WC_SUCCESS);
    want_all(&b, 100, 10, RNIC_WC_SUCCESS);
    for (int i = 0; i < 10; i++)
        CHECK(!memcmp(b.mem + 512 + 8 * i, a.mem + i, 8));
    qp_query(a.qp, &attr);
    CHECK_EQ(attr.qp_state, RNIC_QPS_RTS);
    CHECK_EQ(attr.dest_qp_num, 1);
    a.qp->engine->stats(a.qp, &stats);
    CHECK_EQ(stats.msn, 10);
    end();
}

static void a_connection_is_closed_in_order(void) {
    begin();
    connect_both();
    receive_some(&a, 1);
    receive_some(&b, 7);
    CHECK_EQ(send_some(&a, RNIC_WR_SEND, 6, NULL), 0);
    CHECK_EQ(change(a.qp, RNIC_QPS_SQD, 0, 0, NULL), 0);
    CHECK_EQ(a.qp->state, RNIC_QPS_SQD);
    work();
    CHECK_EQ(a.qp->state, RNIC_QPS_ERR);
    CHECK_EQ(b.qp->state, RNIC_QPS_ERR);
    want_all(&a, 0, 6, RNIC_WC_SUCCESS);
    want_all(&b, 100, 6, RNIC_WC_SUCCESS);
    want_all(&a, 100, 1, RNIC_WC_WR_FLUSH_ERR);
    want_all(&b, 106, 1, RNIC_WC_WR_FLUSH_ERR);
    end();
}

static void an_error_flushes_what_is_posted(void) {
    struct rnic_async_event event;
    begin();
    connect_both();
    receive_some(&a, 2);
    CHECK_EQ(send_some(&a, RNIC_WR_SEND, 1, NULL), 0);
    work();
    CHECK_EQ(b.qp->state, RNIC_QPS_ERR); /* it had no receive */
    CHECK(event_take(&fabric.node[0].nic.events, &event));
    CHECK_EQ(event.event_type, RNIC_EVENT_QP_REQ_ERR);
    want_all(&a, 0, 1, RNIC_WC_SUCCESS);
    CHECK_EQ(change(a.qp, RNIC_QPS_ERR, 0, 0, NULL), 0);
    CHECK_EQ(send_some(&a, RNIC_WR_SEND, 2, NULL), 0);
    work();
    want_all(&a, 100, 2, RNIC_WC_WR_FLUSH_ERR);
    want_all(&a, 0, 2, RNIC_WC_WR_FLUSH_ERR);
    end();
}

static void a_link_without_address_vectors_says_so(void) {
    struct rnic_ah_attr av = {.is_global = 1, .port_num = 1};
    struct rnic_err err;
    struct way way;
    begin();
    CHECK_EQ(link_resolve(&pipe_link.link, &av, WAY_EACH, &way, NULL, &err), -EOPNOTSUPP);
    CHECK(strstr(err.text, "pipe"));
    end();
}

int main(void) {
    RUN(states_and_attributes_are_the_transports);
    RUN(messages_are_posted_and_complete);
    RUN(a_connection_is_closed_in_order);
    RUN(an_error_flushes_what_is_posted);
    RUN(a_link_without_address_vectors_says_so);
    return check_done();
}
