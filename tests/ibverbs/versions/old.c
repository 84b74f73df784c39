/* SPDX-License-Identifier: Apache-2.0
 *
 * A program as it was compiled before libibverbs 1.1: objects of the layout of then, and the symbols of IBVERBS_1.0.  A queue
 * pair sends to itself more requests than the library copies at once; the completions come with an event.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno);                                  \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define MESSAGES 20

struct then_pd;
struct then_device;
struct then_cq;
struct then_qp;
struct then_send_wr {
    struct then_send_wr *next;
    uint64_t wr_id;
    struct ibv_sge *sg_list;
    int num_sge;
    enum ibv_wr_opcode opcode;
    int send_flags;
    uint32_t imm_data;
    uint64_t wr[4];
};
struct then_recv_wr {
    struct then_recv_wr *next;
    uint64_t wr_id;
    struct ibv_sge *sg_list;
    int num_sge;
};
struct then_context {
    struct then_device *device;
    void *before_poll[7];
    int (*poll_cq)(struct then_cq *cq, int n, struct ibv_wc *wc);
    int (*req_notify_cq)(struct then_cq *cq, int solicited_only);
    void *before_send[12];
    int (*post_send)(struct then_qp *qp, struct then_send_wr *wr, struct then_send_wr **bad);
    int (*post_recv)(struct then_qp *qp, struct then_recv_wr *wr, struct then_recv_wr **bad);
    void *multicast[4];
    int cmd_fd, async_fd, num_comp_vectors;
};
struct then_mr {
    struct then_context *context;
    struct then_pd *pd;
    uint32_t handle, lkey, rkey;
};
struct then_qp {
    struct then_context *context;
    void *qp_context;
    struct then_pd *pd;
    struct then_cq *send_cq, *recv_cq;
    void *srq;
    uint32_t handle, qp_num;
    enum ibv_qp_state state;
};
struct then_qp_init_attr {
    void *qp_context;
    struct then_cq *send_cq, *recv_cq;
    void *srq;
    struct ibv_qp_cap cap;
    enum ibv_qp_type qp_type;
    int sq_sig_all;
};

#define THEN(result, name, ...)                                                                                        \
    result then_##name(__VA_ARGS__);                                                                                   \
    __asm__(".symver then_" #name ", ibv_" #name "@IBVERBS_1.0")
THEN(struct then_device **, get_device_list, int *n);
THEN(void, free_device_list, struct then_device **list);
THEN(const char *, get_device_name, struct then_device *device);
THEN(struct then_context *, open_device, struct then_device *device);
THEN(int, close_device, struct then_context *context);
THEN(int, query_gid, struct then_context *context, uint8_t port, int index, union ibv_gid *gid);
THEN(struct then_pd *, alloc_pd, struct then_context *context);
THEN(int, dealloc_pd, struct then_pd *pd);
THEN(struct then_mr *, reg_mr, struct then_pd *pd, void *addr, size_t length, int access);
THEN(int, dereg_mr, struct then_mr *mr);
THEN(struct ibv_comp_channel *, create_comp_channel, struct then_context *context);
THEN(struct then_cq *, create_cq, struct then_context *context, int cqe, void *cq_context,
     struct ibv_comp_channel *channel, int vector);
THEN(int, get_cq_event, struct ibv_comp_channel *channel, struct then_cq **cq, void **cq_context);
THEN(void, ack_cq_events, struct then_cq *cq, unsigned n);
THEN(int, destroy_cq, struct then_cq *cq);
THEN(struct then_qp *, create_qp, struct then_pd *pd, struct then_qp_init_attr *attr);
THEN(int, modify_qp, struct then_qp *qp, struct ibv_qp_attr *attr, int mask);
THEN(int, query_qp, struct then_qp *qp, struct ibv_qp_attr *attr, int mask, struct then_qp_init_attr *init);
THEN(int, destroy_qp, struct then_qp *qp);

static struct then_context *open_named(const char *name) {
    int n = 0;
    struct then_device **list = then_get_device_list(&n);
    struct then_context *context = NULL;
    CHECK(list && n && !list[n]);
    for (int i = 0; i < n; i++) {
        if (!strcmp(then_get_device_name(list[i]), name))
            context = then_open_device(list[i]);
    }
    then_free_device_list(list);
    CHECK(context && context->async_fd >= 0);
    CHECK(!strcmp(then_get_device_name(context->device), name));
    return context;
}

static void connect_to_itself(struct then_qp *qp) {
    union ibv_gid gid;
    CHECK(!then_query_gid(qp->context, 1, 0, &gid));
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    CHECK(!then_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num};
    attr.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 1}};
    CHECK(!then_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
    CHECK(!then_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                              IBV_QP_MAX_QP_RD_ATOMIC));
    CHECK(qp->state == IBV_QPS_RTS);
}

static void post(struct then_qp *qp, struct then_mr *mr, uint32_t *values) {
    struct then_send_wr sends[MESSAGES], *bad_send;
    struct then_recv_wr recvs[MESSAGES], *bad_recv;
    struct ibv_sge from[MESSAGES], to[MESSAGES];
    for (int i = 0; i < MESSAGES; i++) {
        values[i] = 100 + (uint32_t)i;
        from[i] = (struct ibv_sge){(uintptr_t)&values[i], 4, mr->lkey};
        to[i] = (struct ibv_sge){(uintptr_t)&values[MESSAGES + i], 4, mr->lkey};
        recvs[i] = (struct then_recv_wr){i + 1 < MESSAGES ? &recvs[i + 1] : NULL, (uint64_t)i, &to[i], 1};
        sends[i] = (struct then_send_wr){.next = i + 1 < MESSAGES ? &sends[i + 1] : NULL, .wr_id = 1000 + (uint64_t)i};
        sends[i].sg_list = &from[i];
        sends[i].num_sge = 1;
        sends[i].opcode = IBV_WR_SEND;
    }
    CHECK(!qp->context->post_recv(qp, recvs, &bad_recv));
    CHECK(!qp->context->post_send(qp, sends, &bad_send));
    sends[MESSAGES - 1].num_sge = 99;
    CHECK(qp->context->post_send(qp, &sends[MESSAGES - 1], &bad_send) && bad_send == &sends[MESSAGES - 1]);
}

static void collect(struct then_context *context, struct then_cq *cq, struct ibv_comp_channel *channel) {
    struct ibv_wc wc;
    struct then_cq *told;
    void *with;
    int left = 2 * MESSAGES;
    CHECK(!then_get_cq_event(channel, &told, &with) && told == cq && with == &errno);
    then_ack_cq_events(cq, 1);
    while (left) {
        int n = context->poll_cq(cq, 1, &wc);
        CHECK(n >= 0 && (!n || wc.status == IBV_WC_SUCCESS));
        left -= n;
    }
}

int main(int argc, char **argv) {
    uint32_t values[2 * MESSAGES] = {0};
    struct ibv_qp_attr attr;
    CHECK(argc == 2);
    struct then_context *context = open_named(argv[1]);
    struct then_pd *pd = then_alloc_pd(context);
    struct then_mr *mr = then_reg_mr(pd, values, sizeof values, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_comp_channel *channel = then_create_comp_channel(context);
    struct then_cq *cq = then_create_cq(context, 2 * MESSAGES, &errno, channel, 0);
    struct then_qp_init_attr init = {&init, cq, cq, NULL, {MESSAGES, MESSAGES, 1, 1, 0}, IBV_QPT_RC, 1};
    struct then_qp *qp = then_create_qp(pd, &init);
    CHECK(mr && qp && qp->qp_context == &init && qp->send_cq == cq);
    connect_to_itself(qp);
    CHECK(!context->req_notify_cq(cq, 0));
    post(qp, mr, values);
    collect(context, cq, channel);
    for (int i = 0; i < MESSAGES; i++)
        CHECK(values[MESSAGES + i] == 100 + (uint32_t)i);
    memset(&init, 0, sizeof init);
    CHECK(!then_query_qp(qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_RTS && init.send_cq == cq);
    CHECK(!then_destroy_qp(qp) && !then_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
    CHECK(!then_dereg_mr(mr) && !then_dealloc_pd(pd) && !then_close_device(context));
    puts("ok");
    return 0;
}
