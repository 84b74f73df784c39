/* SPDX-License-Identifier: Apache-2.0
 *
 * Verbs are no points of cancellation: a thread that is to be cancelled (pthread_cancel) goes on in them, and leaves no
 * lock of the device held.
 */
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "lib.h"

#define ROUNDS 64
#define QKEY 0x11

static char memory[64];
static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp;
static struct ibv_ah *ah;

static void open_device(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0]);
    context = ibv_open_device(list[0]);
    CHECK(context);
    ibv_free_device_list(list);
    channel = ibv_create_comp_channel(context);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, ROUNDS, NULL, channel, 0);
    mr = ibv_reg_mr(pd, memory, sizeof memory, 0);
    CHECK(channel && pd && cq && mr);
}

/* Of datagrams, to itself. */
static void connect_qp(void) {
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = ROUNDS, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_UD};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
    struct ibv_ah_attr to = {.is_global = 1, .port_num = 1};
    qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    CHECK_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
    attr.qp_state = IBV_QPS_RTR;
    CHECK_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
    attr.qp_state = IBV_QPS_RTS;
    CHECK_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
    CHECK_EQ(ibv_query_gid(context, 1, 0, &to.grh.dgid), 0);
    ah = ibv_create_ah(pd, &to);
    CHECK(ah);
}

static void close_device(void) {
    CHECK_EQ(ibv_destroy_ah(ah), 0);
    CHECK_EQ(ibv_destroy_qp(qp), 0);
    CHECK_EQ(ibv_dereg_mr(mr), 0);
    CHECK_EQ(ibv_destroy_cq(cq), 0);
    CHECK_EQ(ibv_destroy_comp_channel(channel), 0);
    CHECK_EQ(ibv_dealloc_pd(pd), 0);
    CHECK_EQ(ibv_close_device(context), 0);
}

/* Completions raise events, the engine is woken, packets leave. */
static void *work(void *arg) {
    struct ibv_sge sge = {(uintptr_t)memory, sizeof memory, mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;
    struct ibv_wc wc;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = qp->qp_num;
    wr.wr.ud.remote_qkey = QKEY;
    CHECK_EQ(pthread_cancel(pthread_self()), 0);
    for (int i = 0; i < ROUNDS; i++) {
        ibv_req_notify_cq(cq, 0);
        ibv_post_send(qp, &wr, &bad);
        ibv_poll_cq(cq, 1, &wc);
        ibv_poll_cq(cq, 1, &wc);
    }
    return arg;
}

static void test_a_thread_is_not_cancelled_in_verbs(void) {
    pthread_t thread;
    void *end;
    open_device();
    connect_qp();
    CHECK_EQ(pthread_create(&thread, NULL, work, memory), 0);
    CHECK_EQ(pthread_join(thread, &end), 0);
    CHECK(end == memory);
    close_device();
}

static void test_nor_where_all_goes_by_packets(void) {
    setenv("RNIC_LOCAL", "off", 1);
    test_a_thread_is_not_cancelled_in_verbs();
    unsetenv("RNIC_LOCAL");
}

static void other_verbs(void) {
    struct ibv_xrcd_init_attr of_nobody = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    struct ibv_alloc_dm_attr dm_attr = {.length = sizeof memory};
    struct ibv_gid_entry entry;
    struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &of_nobody);
    struct ibv_dm *dm = ibv_alloc_dm(context, &dm_attr);
    CHECK(xrcd && dm);
    CHECK_EQ(ibv_close_xrcd(xrcd), 0);
    CHECK_EQ(ibv_free_dm(dm), 0);
    CHECK_EQ(ibv_query_gid_ex(context, 1, 0, &entry, 0), 0);
}

static void *live(void *arg) {
    CHECK_EQ(pthread_cancel(pthread_self()), 0);
    open_device();
    connect_qp();
    other_verbs();
    close_device();
    return arg;
}

static void test_nor_in_those_that_make_and_end_things(void) {
    pthread_t thread;
    void *end;
    CHECK_EQ(pthread_create(&thread, NULL, live, memory), 0);
    CHECK_EQ(pthread_join(thread, &end), 0);
    CHECK(end == memory);
    pid_t child = fork(); /* it would wait for who opens or closes a device */
    if (!child)
        _exit(0);
    CHECK_EQ(waitpid(child, NULL, 0), child);
}

int main(void) {
    RUN(test_a_thread_is_not_cancelled_in_verbs);
    RUN(test_nor_where_all_goes_by_packets);
    RUN(test_nor_in_those_that_make_and_end_things);
    return check_done();
}
