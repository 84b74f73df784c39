/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls beside each other that must not meet: a post beside a change of its request, a reset, a modify.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "check.h"
#include "ext.h"
#include "live.h"
#include "nic.h"

#ifdef __SANITIZE_THREAD__
#define UNDER_TSAN true
#else
#define UNDER_TSAN false
#endif
#define INLINE_MOST 64
#define POSTERS 2
#define RESETS 300
#define CHAIN 48 /* receives that are posted at once */

static struct rnic_context *ctx;
static const struct rnic_ops *ops;
static struct rnic_gid_entry here;
static struct rnic_pd *pd;
static struct rnic_cq *cq;
static _Atomic bool stop;

static void open_device_by(const struct rnic_open_attr *attr) {
    struct rnic_err err = {0};
    if (rnic_soft.open("roce_lo", attr, &ctx, &err))
        check_fail(__FILE__, __LINE__, "%s", err.text);
    ops = ctx->ops;
    CHECK_EQ(ops->query_gid(ctx, 1, 0, &here, NULL), 0);
    CHECK_EQ(ops->alloc_pd(ctx, &pd, NULL), 0);
    CHECK_EQ(ops->create_cq(ctx, 65536, NULL, 0, NULL, &cq, NULL), 0);
    atomic_store(&stop, false);
}

static void open_device(void) { open_device_by(NULL); }

static void close_device(void) {
    struct rnic_err err = {0};
    CHECK_EQ(ops->destroy_cq(cq, NULL), 0);
    CHECK_EQ(ops->dealloc_pd(pd, NULL), 0);
    if (ops->close(ctx, &err))
        check_fail(__FILE__, __LINE__, "%s", err.text);
}

static struct rnic_qp *make_qp(int type, uint32_t depth) {
    struct rnic_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .cap = {depth, depth, 2, 2, INLINE_MOST}, .qp_type = type};
    struct rnic_qp *qp;
    CHECK_EQ(ops->create_qp(pd, &init, &qp, NULL), 0);
    return qp;
}

static void drain(void) {
    struct rnic_wc wc[64];
    while (ops->poll_cq(cq, 64, wc) > 0)
        ;
}

/* ---------------------------------------------------------------- a request that changes */

static struct rnic_sge piece[2];
static struct rnic_send_wr changing;
static uint8_t *big;

#define BIG (1u << 20)

/* What fits and what does not, from one moment to the next. */
static void *change(void *arg) {
    (void)arg;
    while (!atomic_load(&stop)) {
        __atomic_store_n(&changing.send_flags, RNIC_SEND_INLINE | RNIC_SEND_SIGNALED, __ATOMIC_RELAXED);
        __atomic_store_n(&piece[1].length, BIG, __ATOMIC_RELAXED);
        __atomic_store_n(&changing.num_sge, 1000, __ATOMIC_RELAXED);
        __atomic_store_n(&changing.send_flags, RNIC_SEND_SIGNALED, __ATOMIC_RELAXED);
        __atomic_store_n(&piece[1].length, 8, __ATOMIC_RELAXED);
        __atomic_store_n(&changing.num_sge, 2, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void post_what_changes(int rounds) {
    const struct rnic_send_wr *bad;
    struct rnic_qp *qp = make_qp(RNIC_QPT_RC, 256);
    pthread_t thread;
    CHECK_EQ(live_connect(qp, &here, qp->qp_num), 0);
    piece[0] = (struct rnic_sge){(uintptr_t)big, 8, 0};
    piece[1] = (struct rnic_sge){(uintptr_t)big, 8, 0};
    changing = (struct rnic_send_wr){.opcode = RNIC_WR_RDMA_WRITE, .sg_list = piece, .num_sge = 2};
    CHECK_EQ(pthread_create(&thread, NULL, change, NULL), 0);
    for (int i = 0; i < rounds; i++) {
        int rc = ops->post_send(qp, &changing, &bad, NULL);
        CHECK(rc == 0 || rc == -EINVAL || rc == -ENOMEM);
        if (i % 64 == 0)
            drain();
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    CHECK_EQ(ops->destroy_qp(qp, NULL), 0);
}

static void what_is_checked_of_a_request_is_what_is_posted_though_it_changes(void) {
    open_device();
    big = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(big != MAP_FAILED);
    post_what_changes(200000);
    munmap(big, BIG);
    drain();
    close_device();
}

/* ---------------------------------------------------------------- a reset */

static struct rnic_qp *shared;
static struct rnic_wq *shared_wq;

/* The element holds the address handle, which is gone for the program: who forgets an element loses it, and who takes one
 * twice frees it twice. */
static void *post_datagrams(void *arg) {
    struct rnic_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = here.gid, .hop_limit = 64}};
    (void)arg;
    while (!atomic_load(&stop)) {
        struct rnic_ah *ah;
        if (ops->create_ah(pd, &to, &ah, NULL))
            abort();
        struct rnic_send_wr wr[2] = {{.next = &wr[1], .opcode = RNIC_WR_SEND, .send_flags = RNIC_SEND_SIGNALED},
                                     {.opcode = RNIC_WR_SEND, .send_flags = RNIC_SEND_SIGNALED}};
        const struct rnic_send_wr *bad;
        wr[0].wr.ud.ah = wr[1].wr.ud.ah = ah;
        wr[0].wr.ud.remote_qpn = wr[1].wr.ud.remote_qpn = shared->qp_num;
        for (int i = 0; i < 4; i++)
            ops->post_send(shared, wr, &bad, NULL);
        ops->destroy_ah(ah, NULL);
        drain();
    }
    return NULL;
}

static void *post_receives(void *arg) {
    struct rnic_recv_wr wr[CHAIN] = {0};
    const struct rnic_recv_wr *bad;
    (void)arg;
    for (int i = 0; i + 1 < CHAIN; i++)
        wr[i].next = &wr[i + 1];
    while (!atomic_load(&stop)) {
        if (shared_wq)
            ops->post_wq_recv(shared_wq, wr, &bad, NULL);
        else
            ops->post_recv(shared, wr, &bad, NULL);
    }
    return NULL;
}

static int to_state(int state) {
    static const uint32_t masks[] = {[RNIC_QPS_RESET] = 0,
                                     [RNIC_QPS_INIT] = RNIC_QP_PKEY_INDEX | RNIC_QP_PORT | RNIC_QP_QKEY,
                                     [RNIC_QPS_RTR] = 0,
                                     [RNIC_QPS_RTS] = RNIC_QP_SQ_PSN};
    struct rnic_qp_attr attr = {.qp_state = state, .port_num = 1, .qkey = 1};
    return ops->modify_qp(shared, &attr, RNIC_QP_STATE | masks[state], NULL);
}

static void reset_beside(void *(*post)(void *)) {
    pthread_t threads[POSTERS];
    for (int i = 0; i < POSTERS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, post, NULL), 0);
    for (int i = 0; i < RESETS; i++) {
        struct rnic_qp_stats stats;
        for (int state = RNIC_QPS_INIT; state <= RNIC_QPS_RTS; state++)
            CHECK_EQ(to_state(state), 0);
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        CHECK_EQ(to_state(RNIC_QPS_RESET), 0);
        CHECK_EQ(ext_stats(ctx)->query_qp(shared, &stats, NULL), 0);
        CHECK_EQ(stats.sq_depth, 0);
        CHECK_EQ(stats.rq_depth, 0);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < POSTERS; i++)
        pthread_join(threads[i], NULL);
}

static void nothing_is_left_in_a_queue_pair_that_is_reset_while_threads_post(void) {
    void *(*const posts[])(void *) = {post_datagrams, post_receives};
    for (int i = 0; i < 2; i++) {
        open_device();
        shared = make_qp(RNIC_QPT_UD, 64);
        shared_wq = NULL;
        reset_beside(posts[i]);
        drain();
        CHECK_EQ(ops->destroy_qp(shared, NULL), 0);
        close_device();
    }
}

static void nothing_is_left_in_a_work_queue_that_is_reset_while_threads_post(void) {
    pthread_t threads[POSTERS];
    open_device();
    struct rnic_wq_init_attr init = {.wq_type = RNIC_WQT_RQ, .max_wr = 64, .max_sge = 1, .pd = pd, .cq = cq};
    struct rnic_wq_attr attr = {.attr_mask = RNIC_WQ_ATTR_STATE};
    CHECK_EQ(ops->create_wq(ctx, &init, &shared_wq, NULL), 0);
    for (int i = 0; i < POSTERS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, post_receives, NULL), 0);
    for (int i = 0; i < RESETS * 100; i++) {
        int state;
        uint32_t depth;
        attr.wq_state = RNIC_WQS_RDY;
        CHECK_EQ(ops->modify_wq(shared_wq, &attr, NULL), 0);
        for (volatile int spin = i % 500; spin;
             spin--) /* the queue is full soon: the reset meets the post that fills it */
            ;
        attr.wq_state = RNIC_WQS_RESET;
        CHECK_EQ(ops->modify_wq(shared_wq, &attr, NULL), 0);
        CHECK_EQ(ext_query(ctx)->wq(shared_wq, &state, &depth, NULL), 0);
        CHECK_EQ(depth, 0);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < POSTERS; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(ops->destroy_wq(shared_wq, NULL), 0);
    close_device();
}

/* ---------------------------------------------------------------- a modify */

#define STREAM_S 60 /* until it gives up: a modify that waits for its end has waited too long */
#define LONG_BYTES (1u << 20)

static struct rnic_qp *busy;
static struct rnic_mr *long_mr;
static _Atomic bool gave_up;

/* Keeps a send queue from being empty. */
static void *stream(void *arg) {
    struct rnic_sge sge = {(uintptr_t)big, LONG_BYTES, long_mr->lkey};
    struct rnic_send_wr wr = {.opcode = RNIC_WR_RDMA_WRITE,
                              .send_flags = RNIC_SEND_SIGNALED,
                              .sg_list = &sge,
                              .num_sge = 1,
                              .wr.rdma = {(uintptr_t)big, long_mr->rkey}};
    const struct rnic_send_wr *bad;
    time_t end = time(NULL) + STREAM_S;
    (void)arg;
    while (!atomic_load(&stop) && time(NULL) < end) {
        struct rnic_wc wc[64];
        while (ops->post_send(busy, &wr, &bad, NULL) == 0)
            ;
        ops->poll_cq(cq, 64, wc);
    }
    atomic_store(&gave_up, !atomic_load(&stop));
    return NULL;
}

static void connect_unreliably(struct rnic_qp *qp) {
    struct rnic_qp_attr a = {.path_mtu = RNIC_MTU_1024,
                             .port_num = 1,
                             .qp_access_flags = RNIC_ACCESS_REMOTE_WRITE,
                             .dest_qp_num = qp->qp_num,
                             .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = here.gid, .hop_limit = 64}}};
    a.qp_state = RNIC_QPS_INIT;
    CHECK_EQ(ops->modify_qp(qp, &a, RNIC_QP_STATE | RNIC_QP_PKEY_INDEX | RNIC_QP_PORT | RNIC_QP_ACCESS_FLAGS, NULL), 0);
    a.qp_state = RNIC_QPS_RTR;
    CHECK_EQ(
        ops->modify_qp(qp, &a, RNIC_QP_STATE | RNIC_QP_AV | RNIC_QP_PATH_MTU | RNIC_QP_DEST_QPN | RNIC_QP_RQ_PSN, NULL),
        0);
    a.qp_state = RNIC_QPS_RTS;
    CHECK_EQ(ops->modify_qp(qp, &a, RNIC_QP_STATE | RNIC_QP_SQ_PSN, NULL), 0);
}

static void a_modify_returns_while_another_queue_pair_never_stops_sending(void) {
    pthread_t thread;
    open_device_by(&(struct rnic_open_attr){.local = -1}); /* a wire is never full */
    big = mmap(NULL, LONG_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(big != MAP_FAILED);
    CHECK_EQ(ops->reg_mr(pd, big, LONG_BYTES, RNIC_ACCESS_LOCAL_WRITE | RNIC_ACCESS_REMOTE_WRITE, &long_mr, NULL), 0);
    busy = make_qp(RNIC_QPT_UC, 64);
    connect_unreliably(busy);
    shared = make_qp(RNIC_QPT_UD, 4);
    CHECK_EQ(pthread_create(&thread, NULL, stream, NULL), 0);
    for (int i = 0; i < 2; i++) {
        for (int state = RNIC_QPS_INIT; state <= RNIC_QPS_RTS; state++)
            CHECK_EQ(to_state(state), 0);
        CHECK_EQ(to_state(RNIC_QPS_RESET), 0);
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    CHECK(!atomic_load(&gave_up));
    CHECK_EQ(ops->destroy_qp(busy, NULL), 0);
    CHECK_EQ(ops->destroy_qp(shared, NULL), 0);
    CHECK_EQ(ops->dereg_mr(long_mr, NULL), 0);
    munmap(big, LONG_BYTES);
    drain();
    close_device();
}

int main(void) {
    live_isolate();
    if (!UNDER_TSAN) /* what the program does in it is a race */
        RUN(what_is_checked_of_a_request_is_what_is_posted_though_it_changes);
    RUN(nothing_is_left_in_a_queue_pair_that_is_reset_while_threads_post);
    RUN(a_modify_returns_while_another_queue_pair_never_stops_sending);
    RUN(nothing_is_left_in_a_work_queue_that_is_reset_while_threads_post);
    return check_done();
}
