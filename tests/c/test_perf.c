/* SPDX-License-Identifier: Apache-2.0
 *
 * The compiled loops of `rnic perf` (src/rnic/_nic/perf.h) between two devices, by shared memory and by the wire: they do
 * as many operations as they were asked for, count them once, and end when the other end, or its memory, is not there.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "ext.h"
#include "live.h"
#include "perf.h"

#define ROOM 65536u
#define DEPTH 64u
#define RECEIVES 128u
#define OPERATIONS 300u
#define QPS 2
#define ALL_ACCESS                                                                                                     \
    (RNIC_ACCESS_LOCAL_WRITE | RNIC_ACCESS_REMOTE_WRITE | RNIC_ACCESS_REMOTE_READ | RNIC_ACCESS_REMOTE_ATOMIC)
#define NO_LOOP -1

struct side {
    struct rnic_context *ctx;
    const struct rnic_ops *ops;
    struct rnic_gid_entry here;
    struct rnic_pd *pd;
    struct rnic_cq *cq;
    struct rnic_mr *mr;
    struct perf_qp qps[QPS];
    struct perf_end end;
    struct perf_plan plan;
    int rc;
};

static struct side client, server;

static int never(void *owner) {
    (void)owner;
    return 0;
}

static void open_side(struct side *s, bool local, int line) {
    struct rnic_open_attr attr = {.local = local ? 1 : -1};
    memset(s, 0, sizeof *s);
    CHECK_EQ(rnic_soft.open("roce_lo", &attr, &s->ctx, NULL), 0);
    s->ops = s->ctx->ops;
    CHECK_EQ(s->ops->query_gid(s->ctx, 1, 0, &s->here, NULL), 0);
    CHECK_EQ(s->ops->alloc_pd(s->ctx, &s->pd, NULL), 0);
    CHECK_EQ(s->ops->create_cq(s->ctx, QPS * (DEPTH + RECEIVES), NULL, 0, NULL, &s->cq, NULL), 0);
    CHECK_EQ(ext_memory(s->ctx)->alloc_mr(s->pd, 2 * ROOM, ALL_ACCESS, &s->mr, NULL), 0);
    struct rnic_qp_init_attr init = {
        .send_cq = s->cq, .recv_cq = s->cq, .cap = {DEPTH, RECEIVES, 1, 1, 64}, .qp_type = RNIC_QPT_RC};
    for (int i = 0; i < QPS; i++)
        CHECK_EQ(s->ops->create_qp(s->pd, &init, &s->qps[i].qp, NULL), 0);
    s->end = (struct perf_end){.ops = s->ops,
                               .qps = s->qps,
                               .num_qps = 1,
                               .cq = s->cq,
                               .line = line,
                               .source = s->mr->iova,
                               .target = s->mr->iova + ROOM,
                               .room = ROOM,
                               .lkey = s->mr->lkey,
                               .depth = DEPTH,
                               .all_depth = QPS * DEPTH,
                               .yield_polls = 1,
                               .quiet_ns = 20000000000u,
                               .interrupted = never};
}

static void know(struct side *s, const struct side *peer) {
    for (int i = 0; i < QPS; i++)
        CHECK_EQ(live_connect(s->qps[i].qp, &peer->here, peer->qps[i].qp->qp_num), 0);
    s->end.remote_source = peer->mr->iova;
    s->end.remote_target = peer->mr->iova + ROOM;
    s->end.rkey = peer->mr->rkey;
    perf_calibrate(&s->end);
}

static void open_both(bool local) {
    int line[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line), 0);
    open_side(&client, local, line[0]);
    open_side(&server, local, line[1]);
    know(&client, &server);
    know(&server, &client);
}

static void close_side(struct side *s) {
    for (int i = 0; i < QPS; i++)
        CHECK_EQ(s->ops->destroy_qp(s->qps[i].qp, NULL), 0);
    CHECK_EQ(s->ops->dereg_mr(s->mr, NULL), 0);
    CHECK_EQ(s->ops->destroy_cq(s->cq, NULL), 0);
    CHECK_EQ(s->ops->dealloc_pd(s->pd, NULL), 0);
    CHECK_EQ(s->ops->close(s->ctx, NULL), 0);
    close(s->end.line);
}

static void close_both(void) {
    close_side(&client);
    close_side(&server);
}

/* ---------------------------------------------------------------- runs */

struct run {
    const char *name;
    int loop, answer; /* the client's, and the server's */
    int opcode;
    uint32_t size, group;
    bool chained, inlined;
    int qps;
};

static const struct run runs[] = {
    {"a stream of SENDs", PERF_STREAM, PERF_SINK, RNIC_WR_SEND, 4096, 1, false, false, 1},
    {"a stream of WRITEs in chains", PERF_STREAM, NO_LOOP, RNIC_WR_RDMA_WRITE, 8, 32, true, false, 2},
    {"a stream of WRITEs, one of 16 signaled", PERF_STREAM, NO_LOOP, RNIC_WR_RDMA_WRITE, ROOM, 16, false, false, 2},
    {"a stream of WRITEs with immediate", PERF_STREAM, PERF_SINK, RNIC_WR_RDMA_WRITE_WITH_IMM, 64, 7, true, true, 1},
    {"a stream of READs", PERF_STREAM, NO_LOOP, RNIC_WR_RDMA_READ, 5000, 1, false, false, 2},
    {"READs one by one", PERF_LATENCY, NO_LOOP, RNIC_WR_RDMA_READ, ROOM, 1, true, false, 1},
    {"FETCH_AND_ADDs one by one", PERF_LATENCY, NO_LOOP, RNIC_WR_ATOMIC_FETCH_AND_ADD, 8, 1, true, false, 1},
    {"SENDs to and fro", PERF_PINGPONG, PERF_PINGPONG, RNIC_WR_SEND, 2, 1, true, true, 1},
    {"WRITEs to and fro", PERF_MEMORY, PERF_MEMORY, RNIC_WR_RDMA_WRITE, 1024, 1, true, false, 1},
};

static void plan(struct side *s, const struct run *run, int loop, bool receives) {
    s->plan = (struct perf_plan){.loop = loop,
                                 .opcode = run->opcode,
                                 .size = run->size,
                                 .inlined = run->inlined,
                                 .serving = s == &server,
                                 .group = run->group,
                                 .chained = run->chained,
                                 .warmup_ns = 1000000,
                                 .iterations = OPERATIONS};
    s->end.num_qps = (uint32_t)run->qps;
    s->end.rx_depth = receives ? RECEIVES : 0;
    memset((void *)(uintptr_t)s->end.source, 0, ROOM);
    memset((void *)(uintptr_t)s->end.target, 0, ROOM);
    CHECK_EQ(perf_fill(&s->end), 0);
}

static void *serve(void *arg) {
    (void)arg;
    server.rc = perf_run(&server.end, &server.plan);
    return NULL;
}

/* Both loops; the client tells the server when it has done. */
static int run_both(const struct run *run) {
    bool receives = run->answer == PERF_SINK || run->answer == PERF_PINGPONG;
    pthread_t thread;
    char word;
    plan(&client, run, run->loop, run->answer == PERF_PINGPONG);
    plan(&server, run, run->answer, receives);
    if (run->answer != NO_LOOP)
        CHECK_EQ(pthread_create(&thread, NULL, serve, NULL), 0);
    int rc = perf_run(&client.end, &client.plan);
    CHECK_EQ(write(client.end.line, "", 1), 1);
    if (run->answer != NO_LOOP) {
        CHECK_EQ(pthread_join(thread, NULL), 0);
        CHECK_EQ(server.rc, PERF_HEARD);
    }
    CHECK_EQ(read(server.end.line, &word, 1), 1);
    return rc;
}

static void measures(const struct run *run) {
    bool latency = run->loop != PERF_STREAM;
    check_note("%s", run->name);
    CHECK_EQ(run_both(run), PERF_DONE);
    CHECK_EQ(client.end.operations, OPERATIONS * (uint64_t)run->qps);
    CHECK(client.end.ns > 0);
    CHECK_EQ(client.end.histogram.count, latency ? OPERATIONS : 0);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < PERF_BUCKETS; i++)
        sum += client.end.histogram.bucket[i];
    CHECK_EQ(sum, client.end.histogram.count);
    if (run->opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD)
        CHECK_EQ(*(uint64_t *)(uintptr_t)server.end.target, client.end.completed);
}

/* Each with queue pairs of its own: what one leaves posted is not the next one's. */
static void every_loop_measures_what_was_asked(bool local) {
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        open_both(local);
        measures(&runs[i]);
        close_both();
    }
}

static void every_loop_by_shared_memory(void) { every_loop_measures_what_was_asked(true); }

static void every_loop_by_the_wire(void) { every_loop_measures_what_was_asked(false); }

static void a_second_run_goes_on_with_what_the_first_has_left(void) {
    open_both(true);
    for (int i = 0; i < 3; i++)
        measures(&runs[7]);
    close_both();
}

/* ---------------------------------------------------------------- what is on its way */

#define FEW 8u

static uint32_t posts[QPS], most;

/* The client's post_send(): how many operations of each queue pair there were, and how many were on their way at a time. */
static int counted_post(struct rnic_qp *qp, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad,
                        struct rnic_err *e) {
    uint32_t out = 0;
    for (const struct rnic_send_wr *one = wr; one; one = one->next)
        posts[qp == client.qps[1].qp]++;
    for (int i = 0; i < QPS; i++)
        out += client.qps[i].out;
    most = out > most ? out : most;
    return client.ops->post_send(qp, wr, bad, e);
}

static void queue_pairs_take_turns_within_a_limit_of_all(void) {
    open_both(true);
    struct rnic_ops counted = *client.ops;
    counted.post_send = counted_post;
    client.end.ops = &counted;
    client.end.all_depth = FEW;
    struct run few = runs[1];
    few.group = FEW / 4;
    measures(&few);
    CHECK_EQ(most, FEW);
    uint32_t more = posts[0] > posts[1] ? posts[0] - posts[1] : posts[1] - posts[0];
    CHECK(more <= 2 * few.group); /* a group each, of the warm-up and of the rest */
    close_both();
}

/* ---------------------------------------------------------------- ends */

static void a_completion_that_fails_ends_the_run(void) {
    open_both(true);
    client.end.rkey ^= 1;
    CHECK_EQ(run_both(&runs[5]), -EIO);
    CHECK_EQ(client.end.bad.status, RNIC_WC_REM_ACCESS_ERR);
    close_both();
}

static void who_hears_nothing_for_too_long_gives_up(void) {
    open_both(true);
    plan(&client, &runs[8], PERF_MEMORY, false);
    client.end.quiet_ns = 30000000;
    CHECK_EQ(perf_run(&client.end, &client.plan), -ETIMEDOUT);
    close_both();
}

/* One operation alone takes longer than a wait in which nothing moves may. */
static void a_slow_operation_whose_packets_move_is_waited_for(void) {
    const struct rnic_qp_rate_limit_attr slow = {.rate_limit = 2000};
    open_both(false);
    plan(&client, &runs[5], PERF_STREAM, false);
    client.plan.iterations = 1;
    client.plan.warmup_ns = 0;
    client.plan.opcode = RNIC_WR_RDMA_WRITE;
    client.end.quiet_ns = 100000000;
    CHECK_EQ(client.ops->modify_qp_rate_limit(client.qps[0].qp, &slow, NULL), 0);
    CHECK_EQ(perf_run(&client.end, &client.plan), PERF_DONE);
    CHECK(client.end.ns > client.end.quiet_ns);
    close_both();
}

static void an_end_that_hangs_up_is_heard(void) {
    open_both(true);
    plan(&client, &runs[8], PERF_MEMORY, false);
    CHECK_EQ(shutdown(server.end.line, SHUT_RDWR), 0);
    CHECK_EQ(perf_run(&client.end, &client.plan), PERF_HEARD);
    close_both();
}

static void a_call_that_fails_is_named(void) {
    open_both(true);
    plan(&client, &runs[0], PERF_STREAM, false);
    client.plan.opcode = 77;
    CHECK_EQ(perf_run(&client.end, &client.plan), -EOPNOTSUPP);
    CHECK(!strcmp(client.end.verb, "post_send") && client.end.err.text[0]);
    close_both();
}

int main(void) {
    live_isolate();
    RUN(every_loop_by_shared_memory);
    RUN(every_loop_by_the_wire);
    RUN(a_second_run_goes_on_with_what_the_first_has_left);
    RUN(queue_pairs_take_turns_within_a_limit_of_all);
    RUN(a_completion_that_fails_ends_the_run);
    RUN(who_hears_nothing_for_too_long_gives_up);
    RUN(a_slow_operation_whose_packets_move_is_waited_for);
    RUN(an_end_that_hangs_up_is_heard);
    RUN(a_call_that_fails_is_named);
    return check_done();
}
