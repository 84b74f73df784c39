/* SPDX-License-Identifier: Apache-2.0
 *
 * Mistakes of beginners, one a run: beginner DEVICE CASE.  Two ends in one process, each with a context of its own, as two
 * programs on one host; a mistake is made by the first one, or by the second where the case says so.  Prints nothing.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* clock_gettime() */
#endif
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BYTES 4096
#define NEED(x)                                                                                                        \
    do {                                                                                                               \
        if (!(x)) {                                                                                                    \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #x, strerror(errno));                                       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    char *mem;
};

static struct end a, b;
static union ibv_gid gid;
static int gid_index;

static void find_gid(struct ibv_context *context) {
    for (gid_index = 0; !ibv_query_gid(context, 1, gid_index, &gid); gid_index++) {
        if (gid.raw[10] == 0xff && gid.raw[11] == 0xff)
            return;
    }
    gid_index = 0;
    NEED(!ibv_query_gid(context, 1, 0, &gid));
}

static void make_queue_pair(struct end *e, int all_signaled, enum ibv_qp_type type) {
    struct ibv_qp_init_attr init = {
        .send_cq = e->cq,
        .recv_cq = e->cq,
        .qp_type = type,
        .sq_sig_all = all_signaled,
        .cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1}};
    NEED(e->qp = ibv_create_qp(e->pd, &init));
}

static void open_end(struct end *e, const char *device, int cqe, int all_signaled, enum ibv_qp_type type) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    for (int i = 0; list[i] && !e->context; i++) {
        if (!strcmp(ibv_get_device_name(list[i]), device))
            e->context = ibv_open_device(list[i]);
    }
    ibv_free_device_list(list);
    NEED(e->context);
    NEED(e->pd = ibv_alloc_pd(e->context));
    NEED(e->channel = ibv_create_comp_channel(e->context));
    NEED(e->cq = ibv_create_cq(e->context, cqe, NULL, e->channel, 0));
    make_queue_pair(e, all_signaled, type);
    NEED(!posix_memalign((void **)&e->mem, BYTES, BYTES));
    memset(e->mem, 0, BYTES);
    NEED(e->mr = ibv_reg_mr(e->pd, e->mem, BYTES, ALL));
}

static void to_init(struct end *e, int access) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access, .qkey = 0x11};
    bool datagrams = e->qp->qp_type == IBV_QPT_UD;
    NEED(!ibv_modify_qp(e->qp, &attr,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                            (datagrams ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
}

static struct ibv_ah_attr way(void) {
    return (struct ibv_ah_attr){
        .is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = (uint8_t)gid_index, .hop_limit = 64}};
}

static void to_rtr(struct end *e, uint32_t dest, uint32_t rq_psn) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                               .path_mtu = IBV_MTU_1024,
                               .dest_qp_num = dest,
                               .rq_psn = rq_psn,
                               .max_dest_rd_atomic = 4,
                               .min_rnr_timer = 1,
                               .ah_attr = way()};
    bool datagrams = e->qp->qp_type == IBV_QPT_UD;
    NEED(!ibv_modify_qp(e->qp, &attr,
                        datagrams ? IBV_QP_STATE
                                  : IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
}

static void to_rts(struct end *e, uint32_t sq_psn) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS, .timeout = 12, .retry_cnt = 2, .rnr_retry = 6, .sq_psn = sq_psn, .max_rd_atomic = 4};
    bool datagrams = e->qp->qp_type == IBV_QPT_UD;
    NEED(!ibv_modify_qp(e->qp, &attr,
                        datagrams ? IBV_QP_STATE | IBV_QP_SQ_PSN
                                  : IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                        IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void join(void) {
    to_init(&a, ALL);
    to_init(&b, ALL);
    to_rtr(&a, b.qp->qp_num, 0);
    to_rtr(&b, a.qp->qp_num, 0);
    to_rts(&a, 0);
    to_rts(&b, 0);
}

static int post_with(enum ibv_wr_opcode opcode, uint32_t lkey, uint32_t rkey, uint64_t offset, uint32_t n, int flags) {
    struct ibv_sge sge = {(uintptr_t)a.mem, n, lkey};
    struct ibv_send_wr wr = {.wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = flags}, *bad;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = (uintptr_t)b.mem + offset;
        wr.wr.atomic.rkey = rkey;
    } else {
        wr.wr.rdma.remote_addr = (uintptr_t)b.mem + offset;
        wr.wr.rdma.rkey = rkey;
    }
    return ibv_post_send(a.qp, &wr, &bad);
}

static void post(enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t offset, uint32_t n) {
    NEED(!post_with(opcode, a.mr->lkey, rkey, offset, n, IBV_SEND_SIGNALED));
}

static int receive(struct end *e, uint32_t lkey, uint32_t n) {
    struct ibv_sge sge = {(uintptr_t)e->mem, n, lkey};
    struct ibv_recv_wr wr = {.wr_id = 9, .sg_list = &sge, .num_sge = 1}, *bad;
    return ibv_post_recv(e->qp, &wr, &bad);
}

/* The next completion: its status. */
static int wait_for(struct end *e) {
    struct ibv_wc wc;
    int n;
    while (!(n = ibv_poll_cq(e->cq, 1, &wc)))
        ;
    return n < 0 ? -1 : (int)wc.status;
}

static void fails(void) { NEED(wait_for(&a) > 0); }

/* ---------------------------------------------------------------- the cases */

static void wrong_rkey(void) {
    join();
    post(IBV_WR_RDMA_WRITE, 0x12345678, 0, 64);
    fails();
}

static void deregistered(void) {
    uint32_t rkey = b.mr->rkey;
    join();
    NEED(!ibv_dereg_mr(b.mr));
    post(IBV_WR_RDMA_WRITE, rkey, 0, 64);
    fails();
}

static void beyond(void) {
    join();
    post(IBV_WR_RDMA_WRITE, b.mr->rkey, 3600, 1024);
    fails();
}

static void rights_of_region(int access, enum ibv_wr_opcode opcode) {
    NEED(!ibv_dereg_mr(b.mr));
    NEED(b.mr = ibv_reg_mr(b.pd, b.mem, BYTES, access));
    join();
    post(opcode, b.mr->rkey, 0, 8);
    fails();
}

static void no_remote_write(void) { rights_of_region(IBV_ACCESS_LOCAL_WRITE, IBV_WR_RDMA_WRITE); }

static void no_remote_read(void) { rights_of_region(IBV_ACCESS_LOCAL_WRITE, IBV_WR_RDMA_READ); }

static void no_right_of_queue_pair(void) {
    to_init(&a, ALL);
    to_init(&b, IBV_ACCESS_LOCAL_WRITE);
    to_rtr(&a, b.qp->qp_num, 0);
    to_rtr(&b, a.qp->qp_num, 0);
    to_rts(&a, 0);
    post(IBV_WR_RDMA_WRITE, b.mr->rkey, 0, 64);
    fails();
}

static void other_domain(void) {
    struct ibv_pd *other = ibv_alloc_pd(b.context);
    struct ibv_mr *mr = ibv_reg_mr(other, b.mem, BYTES, ALL);
    NEED(mr);
    join();
    post(IBV_WR_RDMA_WRITE, mr->rkey, 0, 64);
    fails();
}

static void unaligned_atomic(void) {
    join();
    post(IBV_WR_ATOMIC_FETCH_AND_ADD, b.mr->rkey, 4, 8);
    fails();
}

static void wrong_lkey(void) {
    join();
    NEED(!receive(&b, b.mr->lkey, 64));
    NEED(!post_with(IBV_WR_SEND, 0x12345678, 0, 0, 64, IBV_SEND_SIGNALED));
    fails();
}

static void no_local_write(void) {
    NEED(!ibv_dereg_mr(b.mr));
    NEED(b.mr = ibv_reg_mr(b.pd, b.mem, BYTES, 0));
    join();
    NEED(!receive(&b, b.mr->lkey, 64));
    post(IBV_WR_SEND, 0, 0, 64);
    fails();
}

static void receive_too_small(void) {
    join();
    NEED(!receive(&b, b.mr->lkey, 32));
    post(IBV_WR_SEND, 0, 0, 64);
    fails();
}

static void no_receive(void) {
    join();
    post(IBV_WR_SEND, 0, 0, 64);
    fails();
}

static void post_in_reset(void) {
    NEED(post_with(IBV_WR_SEND, a.mr->lkey, 0, 0, 64, IBV_SEND_SIGNALED));
    NEED(post_with(IBV_WR_SEND, a.mr->lkey, 0, 0, 64, IBV_SEND_SIGNALED)); /* is said once */
    NEED(receive(&b, b.mr->lkey, 64));
}

static void peer_not_ready(void) {
    to_init(&a, ALL);
    to_init(&b, ALL);
    to_rtr(&a, b.qp->qp_num, 0);
    to_rts(&a, 0);
    post(IBV_WR_SEND, 0, 0, 64);
    fails();
}

/* With the slot of b's process, so that it is b who finds nobody. */
static void wrong_number(void) {
    struct ibv_qp_init_attr init = {.send_cq = b.cq, .recv_cq = b.cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
    struct ibv_qp *gone = ibv_create_qp(b.pd, &init);
    uint32_t number = gone->qp_num;
    NEED(!ibv_destroy_qp(gone));
    to_init(&a, ALL);
    to_init(&b, ALL);
    to_rtr(&a, number, 0);
    to_rtr(&b, a.qp->qp_num, 0);
    to_rts(&a, 0);
    post(IBV_WR_SEND, 0, 0, 64);
    fails();
}

static void wrong_psn(void) {
    to_init(&a, ALL);
    to_init(&b, ALL);
    to_rtr(&a, b.qp->qp_num, 0);
    to_rtr(&b, a.qp->qp_num, 1000);
    to_rts(&a, 5000);
    NEED(!receive(&b, b.mr->lkey, 64));
    post(IBV_WR_SEND, 0, 0, 64);
    fails();
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void poll_for_nothing(void) {
    struct ibv_wc wc;
    double from, at;
    NEED(!post_with(IBV_WR_RDMA_WRITE, a.mr->lkey, b.mr->rkey, 0, 64, 0));
    NEED(ibv_poll_cq(a.cq, 1, &wc) == 0);
    from = seconds();
    do {
        at = seconds();
        NEED(ibv_poll_cq(a.cq, 1, &wc) == 0);
    } while (at - from < 2.1);
}

static void unsignaled(void) {
    join();
    poll_for_nothing();
}

/* It may wait for its peer, as a server does that has answered. */
static void unsignaled_with_receive(void) {
    join();
    NEED(!receive(&a, a.mr->lkey, 64));
    poll_for_nothing();
}

/* The queue holds one completion, and nobody polls it. */
static void overrun(void) {
    struct ibv_async_event event;
    join();
    for (int i = 0; i < 60; i++)
        post_with(IBV_WR_RDMA_WRITE, a.mr->lkey, b.mr->rkey, 0, 64, IBV_SEND_SIGNALED);
    NEED(!ibv_get_async_event(a.context, &event)); /* CQ_ERR; then QP_FATAL */
    ibv_ack_async_event(&event);
    NEED(!ibv_get_async_event(a.context, &event));
    ibv_ack_async_event(&event);
}

static void never_polled(void) {
    int n = 0;
    join();
    while (!post_with(IBV_WR_RDMA_WRITE, a.mr->lkey, b.mr->rkey, 0, 64, IBV_SEND_SIGNALED))
        n++;
    NEED(n >= 64);
}

static int lines; /* where what is said comes out */

/* When something has been said, arms the queue, so that the wait ends. */
static void *arm(void *arg) {
    char said[2048];
    ssize_t n = read(lines, said, sizeof said);
    NEED(n > 0 && write(*(int *)arg, said, (size_t)n) == n);
    NEED(!ibv_req_notify_cq(a.cq, 0));
    post(IBV_WR_RDMA_WRITE, b.mr->rkey, 0, 64);
    return NULL;
}

static void never_armed(void) {
    int ends[2], out = dup(STDERR_FILENO);
    struct ibv_cq *cq;
    void *own;
    pthread_t thread;
    NEED(!pipe(ends) && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
    lines = ends[0];
    join();
    post(IBV_WR_RDMA_WRITE, b.mr->rkey, 0, 64);
    NEED(!pthread_create(&thread, NULL, arm, &out));
    NEED(!ibv_get_cq_event(a.channel, &cq, &own));
    ibv_ack_cq_events(cq, 1);
    pthread_join(thread, NULL);
}

static void datagram(uint32_t qkey, bool receives) {
    struct ibv_ah_attr to = way();
    struct ibv_ah *ah = ibv_create_ah(a.pd, &to);
    struct ibv_sge sge = {(uintptr_t)a.mem, 64, a.mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 7,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    struct ibv_wc wc;
    NEED(ah);
    join();
    if (receives)
        NEED(!receive(&b, b.mr->lkey, 256));
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = b.qp->qp_num;
    wr.wr.ud.remote_qkey = qkey;
    NEED(!ibv_post_send(a.qp, &wr, &bad));
    NEED(wait_for(&a) == 0);
    /* When one has come to the witness, the one that was sent before it has been dropped. */
    struct end witness = b;
    make_queue_pair(&witness, 0, IBV_QPT_UD);
    to_init(&witness, ALL);
    to_rtr(&witness, 0, 0);
    NEED(!receive(&witness, b.mr->lkey, 256));
    wr.wr.ud.remote_qpn = witness.qp->qp_num;
    wr.wr.ud.remote_qkey = 0x11;
    for (int n = 0; n == 0;) {
        NEED(!ibv_post_send(a.qp, &wr, &bad));
        NEED(wait_for(&a) == 0);
        for (int i = 0; n == 0 && i < 100; i++, usleep(1000))
            NEED((n = ibv_poll_cq(b.cq, 1, &wc)) >= 0);
    }
}

static void wrong_qkey(void) { datagram(0x22, true); }

static void datagram_without_receive(void) { datagram(0x11, false); }

static void wrong_address_handle(void) {
    struct ibv_ah_attr to = way();
    to.grh.sgid_index = 200;
    NEED(!ibv_create_ah(a.pd, &to));
}

static const struct {
    const char *name;
    void (*run)(void);
    int cqe;
    enum ibv_qp_type type;
} cases[] = {
#define CASE(name) {#name, name, 128, IBV_QPT_RC}
    CASE(wrong_rkey),
    CASE(deregistered),
    CASE(beyond),
    CASE(no_remote_write),
    CASE(no_remote_read),
    CASE(no_right_of_queue_pair),
    CASE(other_domain),
    CASE(unaligned_atomic),
    CASE(wrong_lkey),
    CASE(no_local_write),
    CASE(receive_too_small),
    CASE(no_receive),
    CASE(post_in_reset),
    CASE(peer_not_ready),
    CASE(wrong_number),
    CASE(wrong_psn),
    CASE(unsignaled),
    CASE(unsignaled_with_receive),
    CASE(never_polled),
    CASE(never_armed),
    {"overrun", overrun, 1, IBV_QPT_RC},
    {"wrong_qkey", wrong_qkey, 128, IBV_QPT_UD},
    {"datagram_without_receive", datagram_without_receive, 128, IBV_QPT_UD},
    CASE(wrong_address_handle),
};

int main(int argc, char **argv) {
    for (size_t i = 0; argc != 3 && i < sizeof cases / sizeof *cases; i++)
        puts(cases[i].name);
    for (size_t i = 0; argc == 3 && i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(cases[i].name, argv[2]))
            continue;
        open_end(&a, argv[1], cases[i].cqe, 0, cases[i].type);
        open_end(&b, argv[1], 128, 0, cases[i].type);
        find_gid(a.context);
        cases[i].run();
        return 0;
    }
    return 2;
}
