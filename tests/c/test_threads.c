/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that post, poll, register, resize, count and destroy at once, on one open device, by the operations table alone:
 * every message arrives once and whole.  Under ThreadSanitizer (make tsan) it also shows that nothing races.
 *
 * SECONDS_EACH says how long a test runs; 1 by default.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "ext.h"
#include "live.h"
#include "nic.h"

#define DEPTH 32    /* messages of a thread under way */
#define POSTERS 2   /* threads that post to one queue pair */
#define CHANNELS 2  /* connected pairs */
#define BYTES 1500  /* of a message: two packets */
#define PATIENCE_S 60

static struct rnic_context *ctx;
static const struct rnic_ops *ops;
static struct rnic_gid_entry here;
static _Atomic bool stop;
static _Atomic int failures;

/* Threads cannot end a test; they say what is wrong, and the main thread looks. */
#define NEED(cond)                                                                                                     \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #cond);                                                          \
            atomic_fetch_add(&failures, 1);                                                                            \
            atomic_store(&stop, true);                                                                                 \
            return NULL;                                                                                               \
        }                                                                                                              \
    } while (0)

static double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static double seconds_each(void) {
    const char *given = getenv("SECONDS_EACH");
    return given ? atof(given) : 1;
}

/* ---------------------------------------------------------------- a device */

static void open_device(void) {
    struct rnic_err err = {0};
    if (rnic_soft.open("roce_lo", NULL, &ctx, &err))
        check_fail(__FILE__, __LINE__, "%s", err.text);
    ops = ctx->ops;
    CHECK_EQ(ops->query_gid(ctx, 1, 0, &here, NULL), 0);
    atomic_store(&stop, false);
    atomic_store(&failures, 0);
}

static void close_device(void) {
    struct rnic_err err = {0};
    if (ops->close(ctx, &err))
        check_fail(__FILE__, __LINE__, "%s", err.text);
    CHECK_EQ(atomic_load(&failures), 0);
}

/* ---------------------------------------------------------------- traffic */

/* Two queue pairs, each other's peer: threads that post to one, one that polls both, one that disturbs. */
struct way {
    struct rnic_pd *pd;
    struct rnic_comp_channel *channel;
    struct rnic_cq *cq;
    struct rnic_qp *from, *to;
    struct rnic_srq *srq; /* that `to` takes from; or NULL */
    struct rnic_comp_cntr *sent, *received;
    struct rnic_mr *mr;
    uint8_t source[POSTERS][DEPTH][BYTES], sink[POSTERS * DEPTH][BYTES];
    _Atomic uint32_t busy[POSTERS][DEPTH]; /* the message is under way */
    _Atomic uint64_t posted, done, arrived;
    _Atomic int posters;
};

static struct way ways[CHANNELS];

struct poster {
    struct way *way;
    int index;
};

/* A message says who it is, so that a place in the receiver's memory shows what has come. */
static void stamp(struct way *way, int poster, int slot, uint32_t turn) {
    memset(way->source[poster][slot], (int)(turn ^ (uint32_t)slot), BYTES);
}

static bool is_whole(const uint8_t *message) { return !memcmp(message, message + 1, BYTES - 1); }

static int post_receive(struct way *way, uint64_t slot) {
    struct rnic_sge sge = {(uintptr_t)way->sink[slot], BYTES, way->mr->lkey};
    struct rnic_recv_wr wr = {.wr_id = 1 << 16 | slot, .sg_list = &sge, .num_sge = 1};
    const struct rnic_recv_wr *bad;
    return way->srq ? ops->post_srq_recv(way->srq, &wr, &bad, NULL) : ops->post_recv(way->to, &wr, &bad, NULL);
}

static void *post(void *arg) {
    const struct poster *me = arg;
    struct way *way = me->way;
    for (uint32_t turn = 0; !atomic_load(&stop); turn++) {
        int slot = (int)(turn % DEPTH);
        if (atomic_load(&way->busy[me->index][slot])) {
            sched_yield();
            turn--;
            continue;
        }
        stamp(way, me->index, slot, turn);
        struct rnic_sge sge = {(uintptr_t)way->source[me->index][slot], BYTES, way->mr->lkey};
        struct rnic_send_wr wr = {.wr_id = (uint64_t)(me->index * DEPTH + slot),
                                  .opcode = RNIC_WR_SEND,
                                  .send_flags = RNIC_SEND_SIGNALED,
                                  .sg_list = &sge,
                                  .num_sge = 1};
        const struct rnic_send_wr *bad;
        atomic_store(&way->busy[me->index][slot], 1);
        NEED(ops->post_send(way->from, &wr, &bad, NULL) == 0);
        atomic_fetch_add(&way->posted, 1);
    }
    atomic_fetch_sub(&way->posters, 1);
    return NULL;
}

static bool take(struct way *way, const struct rnic_wc *wc) {
    if (wc->status != RNIC_WC_SUCCESS) {
        printf("completion of %llu: status %d, cause %u\n", (unsigned long long)wc->wr_id, wc->status, wc->vendor_err);
        return false;
    }
    uint64_t slot = wc->wr_id & 0xFFFF;
    if (wc->wr_id >> 16) {
        atomic_fetch_add(&way->arrived, 1);
        return wc->byte_len == BYTES && is_whole(way->sink[slot]) && post_receive(way, slot) == 0;
    }
    atomic_fetch_add(&way->done, 1);
    return atomic_exchange(&way->busy[slot / DEPTH][slot % DEPTH], 0) == 1; /* else it completed twice */
}

static bool finished(struct way *way) {
    uint64_t posted = atomic_load(&way->posted);
    return atomic_load(&stop) && !atomic_load(&way->posters) && atomic_load(&way->done) >= posted &&
           atomic_load(&way->arrived) >= posted;
}

static void *poll(void *arg) {
    struct way *way = arg;
    struct rnic_wc wc[8];
    double limit = now() + seconds_each() + PATIENCE_S;
    while (!finished(way)) {
        int n = ops->poll_cq(way->cq, 8, wc);
        NEED(n >= 0);
        NEED(now() < limit);
        for (int i = 0; i < n; i++)
            NEED(take(way, &wc[i]));
    }
    return NULL;
}

/* Grows and shrinks the queue, asks for events, takes and acknowledges them, moderates, reads counters. */
static void *disturb(void *arg) {
    struct way *way = arg;
    const int sizes[] = {256, 4096, 300, 1024};
    for (uint32_t i = 0; !atomic_load(&stop); i++) {
        struct rnic_modify_cq_attr moderation = {RNIC_CQ_ATTR_MODERATE, {(uint16_t)(i % 7), (uint16_t)(i % 3 * 50)}};
        struct rnic_cq *cq;
        uint64_t value;
        int rc = ops->resize_cq(way->cq, sizes[i % 4], NULL);
        NEED(rc == 0 || rc == -EINVAL); /* it may hold more than that just now */
        NEED(ops->req_notify_cq(way->cq, i % 5 == 0, NULL) == 0);
        NEED(ops->modify_cq(way->cq, &moderation, NULL) == 0);
        while (ops->get_cq_event(way->channel, &cq, NULL) == 0)
            NEED(cq == way->cq && ops->ack_cq_events(cq, 1, NULL) == 0);
        struct rnic_srq_attr shared = {.max_wr = POSTERS * DEPTH + i % 50, .srq_limit = i % 3};
        NEED(!way->srq || ops->modify_srq(way->srq, &shared, RNIC_SRQ_MAX_WR | RNIC_SRQ_LIMIT, NULL) == 0);
        NEED(!way->srq || ops->query_srq(way->srq, &shared, NULL) == 0);
        NEED(ops->read_comp_cntr(way->sent, false, &value, NULL) == 0);
        NEED(ops->inc_comp_cntr(way->received, true, 1, NULL) == 0);
        usleep(100);
    }
    return NULL;
}

static struct rnic_comp_cntr *count(struct rnic_qp *qp, uint32_t op) {
    struct rnic_comp_cntr_init_attr init = {0};
    struct rnic_comp_cntr *cntr;
    CHECK_EQ(ops->create_comp_cntr(ctx, &init, &cntr, NULL), 0);
    CHECK_EQ(ops->attach_comp_cntr(qp, cntr, op, NULL), 0);
    return cntr;
}

static void open_way(struct way *way, bool shared) {
    struct rnic_srq_attr srq = {.max_wr = POSTERS * DEPTH, .max_sge = 1};
    memset(way, 0, sizeof *way);
    CHECK_EQ(ops->alloc_pd(ctx, &way->pd, NULL), 0);
    CHECK_EQ(ops->create_comp_channel(ctx, &way->channel, NULL), 0);
    CHECK_EQ(ops->create_cq(ctx, 4096, way->channel, 0, NULL, &way->cq, NULL), 0);
    CHECK_EQ(ops->reg_mr(way->pd, way, sizeof *way, RNIC_ACCESS_LOCAL_WRITE, &way->mr, NULL), 0);
    struct rnic_qp_init_attr init = {.send_cq = way->cq,
                                     .recv_cq = way->cq,
                                     .cap = {POSTERS * DEPTH, POSTERS * DEPTH, 1, 1, 0},
                                     .qp_type = RNIC_QPT_RC};
    CHECK_EQ(ops->create_qp(way->pd, &init, &way->from, NULL), 0);
    if (shared)
        CHECK_EQ(ops->create_srq(way->pd, NULL, &srq, &way->srq, NULL), 0);
    init.srq = way->srq;
    CHECK_EQ(ops->create_qp(way->pd, &init, &way->to, NULL), 0);
    way->sent = count(way->from, RNIC_COMP_CNTR_OP_SEND);
    way->received = count(way->to, RNIC_COMP_CNTR_OP_RECV);
    CHECK_EQ(live_connect(way->to, &here, way->from->qp_num), 0);
    CHECK_EQ(live_connect(way->from, &here, way->to->qp_num), 0);
    for (uint64_t slot = 0; slot < POSTERS * DEPTH; slot++)
        CHECK_EQ(post_receive(way, slot), 0);
    atomic_store(&way->posters, POSTERS);
}

static uint64_t counted(struct rnic_comp_cntr *cntr) {
    uint64_t value = 0;
    CHECK_EQ(ops->read_comp_cntr(cntr, false, &value, NULL), 0);
    return value;
}

static void close_way(struct way *way) {
    uint64_t posted = atomic_load(&way->posted);
    CHECK(posted > 0);
    CHECK_EQ(atomic_load(&way->done), posted);
    CHECK_EQ(atomic_load(&way->arrived), posted);
    CHECK_EQ(counted(way->sent), posted);
    CHECK_EQ(counted(way->received), posted);
    CHECK_EQ(ops->destroy_qp(way->from, NULL), 0);
    CHECK_EQ(ops->destroy_qp(way->to, NULL), 0);
    CHECK_EQ(way->srq ? ops->destroy_srq(way->srq, NULL) : 0, 0);
    CHECK_EQ(ops->destroy_comp_cntr(way->sent, NULL), 0);
    CHECK_EQ(ops->destroy_comp_cntr(way->received, NULL), 0);
    CHECK_EQ(ops->dereg_mr(way->mr, NULL), 0);
    CHECK_EQ(ops->destroy_cq(way->cq, NULL), 0);
    CHECK_EQ(ops->destroy_comp_channel(way->channel, NULL), 0);
    CHECK_EQ(ops->dealloc_pd(way->pd, NULL), 0);
}

/* ---------------------------------------------------------------- objects that come and go */

/* Makes one of each, uses it a little, and gives it back, while packets of others come in. */
static void *come_and_go(void *arg) {
    uint8_t memory[4096] = {0};
    (void)arg;
    while (!atomic_load(&stop)) {
        struct rnic_pd *pd;
        struct rnic_cq *cq;
        struct rnic_mr *mr;
        struct rnic_qp *qp;
        struct rnic_qp_attr attr;
        struct rnic_wc wc[4];
        struct rnic_cq_init_attr_ex extended = {.cqe = 8, .wc_flags = RNIC_WC_EX_WITH_COMPLETION_TIMESTAMP};
        NEED(ops->alloc_pd(ctx, &pd, NULL) == 0);
        NEED(ops->create_cq_ex(ctx, &extended, &cq, NULL) == 0);
        NEED(ops->reg_mr(pd, memory, sizeof memory, 0xF, &mr, NULL) == 0);
        struct rnic_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 0}, .qp_type = RNIC_QPT_RC};
        NEED(ops->create_qp(pd, &init, &qp, NULL) == 0);
        NEED(live_connect(qp, &here, qp->qp_num) == 0); /* its own peer */
        struct rnic_sge sge = {(uintptr_t)memory, 8, mr->lkey};
        struct rnic_send_wr wr = {.opcode = RNIC_WR_RDMA_WRITE,
                                  .send_flags = RNIC_SEND_SIGNALED,
                                  .sg_list = &sge,
                                  .num_sge = 1,
                                  .wr.rdma = {(uintptr_t)memory + 2048, mr->rkey}};
        const struct rnic_send_wr *bad;
        NEED(ops->post_send(qp, &wr, &bad, NULL) == 0);
        attr.qp_state = RNIC_QPS_ERR;
        NEED(ops->modify_qp(qp, &attr, RNIC_QP_STATE, NULL) == 0);
        struct rnic_wc_ex times[4];
        NEED(ops->poll_cq_ex(cq, 4, wc, times) >= 0);
        NEED(ops->destroy_qp(qp, NULL) == 0);
        NEED(ops->dereg_mr(mr, NULL) == 0);
        NEED(ops->destroy_cq(cq, NULL) == 0);
        NEED(ops->dealloc_pd(pd, NULL) == 0);
    }
    return NULL;
}

static int ready_datagrams(struct rnic_qp *qp) {
    static const uint32_t masks[] = {[RNIC_QPS_INIT] = RNIC_QP_STATE | RNIC_QP_PKEY_INDEX | RNIC_QP_PORT | RNIC_QP_QKEY,
                                     [RNIC_QPS_RTR] = RNIC_QP_STATE,
                                     [RNIC_QPS_RTS] = RNIC_QP_STATE | RNIC_QP_SQ_PSN};
    struct rnic_qp_attr a = {.port_num = 1, .qkey = 7};
    int rc = 0;
    for (a.qp_state = RNIC_QPS_INIT; !rc && a.qp_state <= RNIC_QPS_RTS; a.qp_state++)
        rc = ops->modify_qp(qp, &a, masks[a.qp_state], NULL);
    return rc;
}

/* The address handle goes while the send that names it may still be posted. */
static void *datagrams_come_and_go(void *arg) {
    uint8_t memory[64] = {0};
    (void)arg;
    while (!atomic_load(&stop)) {
        struct rnic_pd *pd;
        struct rnic_cq *cq;
        struct rnic_mr *mr;
        struct rnic_qp *qp;
        struct rnic_ah *ah;
        struct rnic_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = here.gid, .hop_limit = 64}};
        NEED(ops->alloc_pd(ctx, &pd, NULL) == 0);
        NEED(ops->create_cq(ctx, 8, NULL, 0, NULL, &cq, NULL) == 0);
        NEED(ops->reg_mr(pd, memory, sizeof memory, RNIC_ACCESS_LOCAL_WRITE, &mr, NULL) == 0);
        struct rnic_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 0}, .qp_type = RNIC_QPT_UD};
        NEED(ops->create_qp(pd, &init, &qp, NULL) == 0);
        NEED(ready_datagrams(qp) == 0);
        NEED(ops->create_ah(pd, &to, &ah, NULL) == 0);
        struct rnic_sge sge = {(uintptr_t)memory, 8, mr->lkey};
        struct rnic_send_wr wr = {.opcode = RNIC_WR_SEND, .sg_list = &sge, .num_sge = 1, .wr.ud = {ah, qp->qp_num, 7}};
        const struct rnic_send_wr *bad;
        NEED(ops->post_send(qp, &wr, &bad, NULL) == 0);
        NEED(ops->destroy_ah(ah, NULL) == 0);
        NEED(ops->destroy_qp(qp, NULL) == 0);
        NEED(ops->dereg_mr(mr, NULL) == 0);
        NEED(ops->destroy_cq(cq, NULL) == 0);
        NEED(ops->dealloc_pd(pd, NULL) == 0);
    }
    return NULL;
}

/* Asks for everything that can be asked for, and makes the link lose something. */
static void *ask(void *arg) {
    struct way *way = arg;
    struct rnic_fault fault = {.seed = 1, .loss = 1000, .duplicate = 1000, .reorder = 1000, .reorder_gap = 1};
    fault.delay_ns = 100000;
    for (uint32_t i = 0; !atomic_load(&stop); i++) {
        if (i % 8 == 0)
            NEED(ext_faults(ctx)->set(ctx, i % 16 ? NULL : &fault, NULL) == 0);
        struct rnic_device_attr_ex device;
        struct rnic_port_attr port;
        struct rnic_counters counters;
        struct rnic_qp_stats stats;
        struct rnic_qp_attr attr;
        struct rnic_qp_init_attr init;
        struct rnic_async_event event;
        struct rnic_values_ex values = {.comp_mask = RNIC_VALUES_MASK_RAW_CLOCK};
        NEED(ops->query_device_ex(ctx, &device, NULL) == 0);
        NEED(ops->query_port(ctx, 1, &port, NULL) == 0);
        NEED(ext_stats(ctx)->query_counters(ctx, &counters, NULL) == 0);
        NEED(ext_stats(ctx)->query_qp(way->from, &stats, NULL) == 0);
        NEED(ops->query_qp(way->to, &attr, &init, NULL) == 0);
        NEED(ops->query_rt_values(ctx, &values, NULL) == 0);
        while (ops->get_async_event(ctx, &event, NULL) == 0)
            ;
        usleep(200);
    }
    NEED(ext_faults(ctx)->set(ctx, NULL, NULL) == 0);
    return NULL;
}

/* ---------------------------------------------------------------- tests */

struct crew {
    pthread_t thread[32];
    int n;
};

static void start(struct crew *crew, void *(*work)(void *), void *arg) {
    CHECK_EQ(pthread_create(&crew->thread[crew->n++], NULL, work, arg), 0);
}

static void finish(struct crew *crew) {
    double until = now() + seconds_each();
    while (now() < until && !atomic_load(&stop))
        usleep(10000);
    atomic_store(&stop, true);
    while (crew->n)
        pthread_join(crew->thread[--crew->n], NULL);
}

static void start_way(struct crew *crew, struct way *way, struct poster *posters) {
    for (int i = 0; i < POSTERS; i++) {
        posters[i] = (struct poster){way, i};
        start(crew, post, &posters[i]);
    }
    start(crew, poll, way);
}

static void messages_of_threads_arrive_once_while_their_queue_is_resized_and_others_come_and_go(void) {
    struct crew crew = {.n = 0};
    struct poster posters[CHANNELS][POSTERS];
    open_device();
    for (int i = 0; i < CHANNELS; i++)
        open_way(&ways[i], i % 2);
    for (int i = 0; i < CHANNELS; i++) {
        start_way(&crew, &ways[i], posters[i]);
        start(&crew, disturb, &ways[i]);
    }
    start(&crew, come_and_go, NULL);
    start(&crew, come_and_go, NULL);
    start(&crew, datagrams_come_and_go, NULL);
    start(&crew, ask, &ways[0]);
    finish(&crew);
    CHECK_EQ(atomic_load(&failures), 0);
    for (int i = 0; i < CHANNELS; i++)
        close_way(&ways[i]);
    close_device();
}

static void two_threads_poll_one_queue_and_none_is_taken_twice(void) {
    struct crew crew = {.n = 0};
    struct poster posters[POSTERS];
    open_device();
    open_way(&ways[0], false);
    start_way(&crew, &ways[0], posters);
    start(&crew, poll, &ways[0]);
    finish(&crew);
    CHECK_EQ(atomic_load(&failures), 0);
    close_way(&ways[0]);
    close_device();
}

/* Devices open and close in some threads while others use theirs. */
static void *open_and_close(void *arg) {
    (void)arg;
    while (!atomic_load(&stop)) {
        struct rnic_context *own;
        struct rnic_pd *pd;
        NEED(rnic_soft.open("roce_lo", NULL, &own, NULL) == 0);
        NEED(own->ops->alloc_pd(own, &pd, NULL) == 0);
        NEED(own->ops->dealloc_pd(pd, NULL) == 0);
        NEED(own->ops->close(own, NULL) == 0);
        usleep(1000);
    }
    return NULL;
}

static void devices_open_and_close_beside_one_that_works(void) {
    struct crew crew = {.n = 0};
    struct poster posters[POSTERS];
    open_device();
    open_way(&ways[0], false);
    start_way(&crew, &ways[0], posters);
    start(&crew, open_and_close, NULL);
    start(&crew, open_and_close, NULL);
    finish(&crew);
    CHECK_EQ(atomic_load(&failures), 0);
    close_way(&ways[0]);
    close_device();
}

int main(void) {
    live_isolate();
    RUN(messages_of_threads_arrive_once_while_their_queue_is_resized_and_others_come_and_go);
    RUN(two_threads_poll_one_queue_and_none_is_taken_twice);
    RUN(devices_open_and_close_beside_one_that_works);
    return check_done();
}
