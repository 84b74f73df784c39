/* SPDX-License-Identifier: Apache-2.0
 *
 * manners.c: what calls leave alone.  Prints what is wrong: a call that succeeds and writes errno, or one that
 * fails in another way than with libibverbs and drivers of hardware.
 *
 * manners DEVICE
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#endif
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { MARK = 77, BYTES = 8192, SECONDS = 30 };

/* Of a call that has to succeed. */
#define GOOD(call)                                                                                                     \
    do {                                                                                                               \
        errno = MARK;                                                                                                  \
        if (call)                                                                                                      \
            perror(#call), exit(1);                                                                                    \
        if (errno != MARK)                                                                                             \
            printf("%s: errno is %d\n", #call, errno);                                                                 \
    } while (0)
#define MADE(pointer, call) GOOD(!((pointer) = (call)))

/* Of one that has to fail: what it returns, and errno; 0: it sets none. */
#define FAILS(call, returned, error)                                                                                   \
    do {                                                                                                               \
        errno = MARK;                                                                                                  \
        long got_ = (long)(call);                                                                                      \
        if (got_ != (returned) || errno != (error ? error : MARK))                                                     \
            printf("%s: %ld, errno is %d\n", #call, got_, errno);                                                      \
    } while (0)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char *memory;

static int open_it(const char *name) {
    struct ibv_device **list;
    int i;
    MADE(list, ibv_get_device_list(NULL));
    for (i = 0; list[i]; i++)
        if (!strcmp(ibv_get_device_name(list[i]), name))
            MADE(context, ibv_open_device(list[i]));
    ibv_free_device_list(list);
    return context != NULL;
}

static void make(void) {
    MADE(pd, ibv_alloc_pd(context));
    MADE(channel, ibv_create_comp_channel(context));
    MADE(cq, ibv_create_cq(context, 64, NULL, channel, 0));
    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MADE(mr, ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND));
}

static struct ibv_qp *create_qp(void) {
    struct ibv_qp_init_attr attr = {
        .send_cq = cq, .recv_cq = cq, .cap = {16, 16, 1, 1, 0}, .qp_type = IBV_QPT_RC, .sq_sig_all = 1};
    struct ibv_qp *qp;
    MADE(qp, ibv_create_qp(pd, &attr));
    return qp;
}

static void connect_to(struct ibv_qp *qp, const struct ibv_qp *peer) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    GOOD(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                                .path_mtu = IBV_MTU_1024,
                                .dest_qp_num = peer->qp_num,
                                .min_rnr_timer = 1,
                                .ah_attr = {.port_num = 1, .is_global = 1, .grh = {.hop_limit = 1}}};
    GOOD(ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
    GOOD(ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
    GOOD(ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC));
}

static void wait_for(int left) {
    time_t limit = time(NULL) + SECONDS;
    struct ibv_wc wc;
    int n;
    for (; left; left -= n) {
        GOOD((n = ibv_poll_cq(cq, 1, &wc)) < 0 || time(NULL) > limit);
        if (n && wc.status)
            fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status)), exit(1);
    }
}

static void use(struct ibv_qp *from, struct ibv_qp *to) {
    struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
    struct ibv_recv_wr receive = {.sg_list = &sge, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
    struct ibv_cq *which;
    void *anything;
    wr.wr.rdma.remote_addr = (uintptr_t)memory + 4096;
    wr.wr.rdma.rkey = mr->rkey;
    GOOD(ibv_req_notify_cq(cq, 0));
    GOOD(ibv_post_send(from, &wr, &bad));
    GOOD(ibv_get_cq_event(channel, &which, &anything));
    ibv_ack_cq_events(cq, 1);
    wait_for(1);
    wr.opcode = IBV_WR_SEND;
    GOOD(ibv_post_recv(to, &receive, &bad_receive));
    GOOD(ibv_post_send(from, &wr, &bad));
    wait_for(2);
}

static void end_qp(struct ibv_qp *qp) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    GOOD(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    attr.qp_state = IBV_QPS_RESET;
    GOOD(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    GOOD(ibv_destroy_qp(qp));
}

static void refused_memory(void) {
    char *fixed = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ibv_mr *read_only;
    FAILS(ibv_reg_mr(pd, fixed, BYTES, IBV_ACCESS_LOCAL_WRITE), 0, EFAULT);
    FAILS(ibv_reg_mr(pd, fixed + 5, 10, IBV_ACCESS_LOCAL_WRITE), 0, EFAULT);
    MADE(read_only, ibv_reg_mr(pd, fixed, BYTES, 0));
    GOOD(ibv_dereg_mr(read_only));
    FAILS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT, EINVAL);
    FAILS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, BYTES, 0), IBV_REREG_MR_ERR_INPUT, EINVAL);
    FAILS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, 0, 0), IBV_REREG_MR_ERR_INPUT, EINVAL);
    FAILS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, BYTES, IBV_ACCESS_LOCAL_WRITE),
          IBV_REREG_MR_ERR_INPUT, EINVAL);
    GOOD(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, BYTES, 0));
}

static void refused_work(struct ibv_qp *qp) {
    struct ibv_send_wr wr = {.opcode = (enum ibv_wr_opcode)99}, *bad = NULL;
    FAILS(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &wr, 1, 0);
    wr.opcode = IBV_WR_TSO;
    FAILS(ibv_post_send(qp, &wr, &bad), EINVAL, 0);
}

/* The window's key is the program's own record: work requests change it with no driver. */
static void windows(struct ibv_qp *qp) {
    struct ibv_mw *mw;
    struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW}, invalidate = {.opcode = IBV_WR_LOCAL_INV}, *bad;
    uint32_t key;
    int i;
    MADE(mw, ibv_alloc_mw(pd, IBV_MW_TYPE_2));
    wr.bind_mw.mw = mw;
    wr.bind_mw.bind_info = (struct ibv_mw_bind_info){mr, (uintptr_t)memory, 64, IBV_ACCESS_REMOTE_WRITE};
    for (i = 0; i < 2; i++) {
        key = mw->rkey;
        wr.bind_mw.rkey = ibv_inc_rkey(key);
        GOOD(ibv_post_send(qp, &wr, &bad));
        wait_for(1);
        if (mw->rkey != key)
            printf("ibv_post_send has changed the window's key\n");
        mw->rkey = invalidate.invalidate_rkey = wr.bind_mw.rkey;
        GOOD(ibv_post_send(qp, &invalidate, &bad));
        wait_for(1);
    }
    GOOD(ibv_dealloc_mw(mw));
}

/* What is asked for receives that a queue pair does not have is nobody's to look at. */
static void sizes(void) {
    struct ibv_srq_init_attr of_srq = {.attr = {.max_wr = 1, .max_sge = 1}};
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    MADE(srq, ibv_create_srq(pd, &of_srq));
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_init_attr attr = {
            .send_cq = cq, .recv_cq = cq, .srq = srq, .cap = {4, UINT32_MAX, 1, UINT32_MAX, 0}};
        attr.qp_type = i ? IBV_QPT_UD : IBV_QPT_RC;
        MADE(qp, ibv_create_qp(pd, &attr));
        if (attr.cap.max_send_wr != 4 || attr.cap.max_recv_wr || attr.cap.max_recv_sge)
            printf("granted are %u sends, %u receives\n", attr.cap.max_send_wr, attr.cap.max_recv_wr);
        GOOD(ibv_destroy_qp(qp));
        attr.srq = NULL;
        attr.cap.max_recv_wr = UINT32_MAX;
        FAILS(ibv_create_qp(pd, &attr), 0, EINVAL);
    }
    GOOD(ibv_destroy_srq(srq));
}

/* A bit that means nothing yet. */
static void unknown_bits(void) {
    const uint32_t bit = 1u << 20;
    struct ibv_qp_init_attr_ex qp = {.send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_srq_init_attr_ex srq = {.attr = {1, 1, 0}, .comp_mask = IBV_SRQ_INIT_ATTR_PD | bit, .pd = pd};
    struct ibv_cq_init_attr_ex queue = {.cqe = 1, .comp_mask = bit};
    struct ibv_wq_init_attr wq = {.max_wr = 1, .max_sge = 1, .pd = pd, .cq = cq, .comp_mask = bit};
    struct ibv_rwq_ind_table_init_attr table = {.comp_mask = bit};
    struct ibv_xrcd_init_attr domain = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS | bit, .fd = -1};
    struct ibv_qp_open_attr opened = {.qp_type = IBV_QPT_XRC_RECV};
    struct ibv_td_init_attr td = {.comp_mask = bit};
    struct ibv_parent_domain_init_attr parent = {.pd = pd, .comp_mask = bit};
    struct ibv_alloc_dm_attr dm = {.length = 64, .comp_mask = bit};
    struct ibv_counters_init_attr counters = {.comp_mask = bit};
    struct ibv_mr_init_attr region = {.addr = memory, .length = BYTES, .comp_mask = IBV_REG_MR_MASK_ADDR | bit};
    struct ibv_query_device_ex_input input = {.comp_mask = bit};
    struct ibv_device_attr_ex device;
    struct ibv_xrcd *xrcd;
    qp.pd = pd;
    qp.comp_mask = IBV_QP_INIT_ATTR_PD | bit;
    FAILS(ibv_create_qp_ex(context, &qp), 0, EOPNOTSUPP);
    qp.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH;
    FAILS(ibv_create_qp_ex(context, &qp), 0, EINVAL);
    FAILS(ibv_create_srq_ex(context, &srq), 0, EINVAL);
    FAILS(ibv_create_cq_ex(context, &queue), 0, EINVAL);
    FAILS(ibv_create_wq(context, &wq), 0, EINVAL);
    FAILS(ibv_create_rwq_ind_table(context, &table), 0, EINVAL);
    FAILS(ibv_open_xrcd(context, &domain), 0, EOPNOTSUPP);
    domain.comp_mask &= ~bit;
    domain.oflags = O_CREAT;
    MADE(xrcd, ibv_open_xrcd(context, &domain));
    opened.xrcd = qp.xrcd = xrcd;
    opened.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE | bit;
    FAILS(ibv_open_qp(context, &opened), 0, EOPNOTSUPP);
    qp.qp_type = IBV_QPT_XRC_RECV;
    qp.comp_mask = IBV_QP_INIT_ATTR_XRCD | bit;
    FAILS(ibv_create_qp_ex(context, &qp), 0, EOPNOTSUPP);
    GOOD(ibv_close_xrcd(xrcd));
    FAILS(ibv_alloc_td(context, &td), 0, EINVAL);
    FAILS(ibv_alloc_parent_domain(context, &parent), 0, EINVAL);
    FAILS(ibv_alloc_dm(context, &dm), 0, EINVAL);
    FAILS(ibv_create_counters(context, &counters), 0, EINVAL);
    FAILS(ibv_reg_mr_ex(pd, &region), 0, EINVAL);
    FAILS(ibv_query_device_ex(context, &input, &device), EINVAL, 0);
}

static void without_a_channel(void) {
    struct ibv_cq *silent;
    MADE(silent, ibv_create_cq(context, 1, NULL, NULL, 0));
    GOOD(ibv_req_notify_cq(silent, 0));
    GOOD(ibv_destroy_cq(silent));
}

/* The state in the program's object is what it has last asked for, or made. */
static void known_state(struct ibv_qp *qp) {
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    qp->state = IBV_QPS_RTS;
    GOOD(ibv_query_qp(qp, &attr, IBV_QP_AV | IBV_QP_DEST_QPN, &init));
    if (qp->state != IBV_QPS_RTS)
        printf("a query without IBV_QP_STATE has changed the state to %d\n", qp->state);
    GOOD(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
    if (qp->state != IBV_QPS_RESET)
        printf("a query with IBV_QP_STATE leaves the state at %d\n", qp->state);
}

/* What is left is the context's to take back. */
static void *end(void *arg) {
    GOOD(ibv_destroy_cq(cq));
    GOOD(ibv_destroy_comp_channel(channel));
    GOOD(ibv_close_device(context));
    return arg;
}

static void *list(void *arg) {
    struct ibv_device **devices;
    MADE(devices, ibv_get_device_list(NULL));
    ibv_free_device_list(devices);
    return arg;
}

/* In a thread with the smallest stack that there is. */
static void small(void *(*call)(void *)) {
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    GOOD(pthread_attr_setstacksize(&attr, 16384));
    GOOD(pthread_create(&thread, &attr, call, NULL));
    GOOD(pthread_join(thread, NULL));
    pthread_attr_destroy(&attr);
}

int main(int argc, char **argv) {
    struct ibv_qp *a, *b;
    if (argc != 2 || !open_it(argv[1]))
        return 2;
    make();
    sizes();
    unknown_bits();
    without_a_channel();
    a = create_qp();
    b = create_qp();
    known_state(a);
    connect_to(a, b);
    connect_to(b, a);
    use(a, b);
    refused_memory();
    refused_work(a);
    windows(a);
    end_qp(a);
    end_qp(b);
    small(list);
    small(end);
    return 0;
}
