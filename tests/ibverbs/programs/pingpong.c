/* SPDX-License-Identifier: Apache-2.0
 *
 * pingpong.c: two queue pairs of one process send each other a message: the verbs that every program uses.
 *
 * pingpong [DEVICE]: 0 if it came through, 77 if there is no device.
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIZE = 4096, PORT = 1 };

static void need(int right, const char *what) {
    if (right)
        return;
    perror(what);
    exit(1);
}

static struct ibv_context *open_device(const char *name) {
    int i, n = 0;
    struct ibv_device **list = ibv_get_device_list(&n);
    struct ibv_context *context = NULL;
    for (i = 0; list && i < n && !context; i++)
        if (!name || !strcmp(ibv_get_device_name(list[i]), name))
            context = ibv_open_device(list[i]);
    if (list)
        ibv_free_device_list(list);
    return context;
}

static struct ibv_qp *make(struct ibv_pd *pd, struct ibv_cq *cq) {
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;
    struct ibv_qp *qp;
    memset(&init, 0, sizeof(init));
    init.send_cq = init.recv_cq = cq;
    init.cap.max_send_wr = init.cap.max_recv_wr = 4;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    init.qp_type = IBV_QPT_RC;
    qp = ibv_create_qp(pd, &init);
    need(qp != NULL, "ibv_create_qp");
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = PORT;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
    return qp;
}

static void connect_to(struct ibv_qp *qp, const struct ibv_qp *peer, const union ibv_gid *gid,
                       const struct ibv_port_attr *port) {
    struct ibv_qp_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = port->active_mtu;
    attr.dest_qp_num = peer->qp_num;
    attr.max_dest_rd_atomic = attr.max_rd_atomic = 1;
    attr.min_rnr_timer = 12;
    attr.ah_attr.is_global = port->link_layer == IBV_LINK_LAYER_ETHERNET;
    attr.ah_attr.grh.dgid = *gid;
    attr.ah_attr.grh.hop_limit = 1;
    attr.ah_attr.dlid = port->lid;
    attr.ah_attr.port_num = PORT;
    need(!ibv_modify_qp(qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
         "RTR");
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    need(!ibv_modify_qp(qp, &attr,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC),
         "RTS");
}

static void send_and_receive(struct ibv_qp *from, struct ibv_qp *to, struct ibv_cq *cq, struct ibv_mr *mr) {
    struct ibv_recv_wr recv, *bad_recv;
    struct ibv_send_wr send, *bad_send;
    struct ibv_sge source, sink;
    int left = 2;
    source.addr = (uintptr_t)mr->addr;
    sink.addr = source.addr + SIZE / 2;
    source.length = sink.length = SIZE / 2;
    source.lkey = sink.lkey = mr->lkey;
    memset(&recv, 0, sizeof(recv));
    recv.sg_list = &sink;
    recv.num_sge = 1;
    need(!ibv_post_recv(to, &recv, &bad_recv), "ibv_post_recv");
    memset(&send, 0, sizeof(send));
    send.opcode = IBV_WR_SEND_WITH_IMM;
    send.imm_data = 7;
    send.sg_list = &source;
    send.num_sge = 1;
    send.send_flags = IBV_SEND_SIGNALED;
    need(!ibv_post_send(from, &send, &bad_send), "ibv_post_send");
    while (left) {
        struct ibv_cq *told;
        void *context;
        struct ibv_wc wc[2];
        int i, n;
        need(!ibv_get_cq_event(cq->channel, &told, &context), "ibv_get_cq_event");
        ibv_ack_cq_events(told, 1);
        need(!ibv_req_notify_cq(told, 0), "ibv_req_notify_cq");
        n = ibv_poll_cq(told, 2, wc);
        need(n >= 0, "ibv_poll_cq");
        for (i = 0; i < n; i++) {
            if (wc[i].status != IBV_WC_SUCCESS)
                fprintf(stderr, "%s\n", ibv_wc_status_str(wc[i].status));
            need(wc[i].status == IBV_WC_SUCCESS, "completion");
            need(!(wc[i].opcode & IBV_WC_RECV) || (wc[i].imm_data == 7 && wc[i].byte_len == SIZE / 2), "receive");
        }
        left -= n;
    }
}

int main(int argc, char **argv) {
    struct ibv_context *context = open_device(argc > 1 ? argv[1] : NULL);
    struct ibv_comp_channel *channel;
    struct ibv_device_attr device;
    struct ibv_port_attr port;
    union ibv_gid gid;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    struct ibv_cq *cq;
    struct ibv_qp *a, *b;
    char *memory = (char *)calloc(1, SIZE);
    if (!context)
        return 77;
    need(!ibv_query_device(context, &device) && device.max_qp > 0, "ibv_query_device");
    need(!ibv_query_port(context, PORT, &port), "ibv_query_port");
    need(!ibv_query_gid(context, PORT, 0, &gid), "ibv_query_gid");
    channel = ibv_create_comp_channel(context);
    need(channel != NULL, "ibv_create_comp_channel");
    cq = ibv_create_cq(context, 8, NULL, channel, 0);
    need(cq != NULL && !ibv_req_notify_cq(cq, 0), "ibv_create_cq");
    pd = ibv_alloc_pd(context);
    need(pd != NULL, "ibv_alloc_pd");
    mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
    need(mr != NULL, "ibv_reg_mr");
    memset(memory, 'x', SIZE / 2);
    a = make(pd, cq);
    b = make(pd, cq);
    connect_to(a, b, &gid, &port);
    connect_to(b, a, &gid, &port);
    send_and_receive(a, b, cq, mr);
    send_and_receive(b, a, cq, mr);
    need(!memcmp(memory, memory + SIZE / 2, SIZE / 2), "bytes");
    need(!ibv_destroy_qp(a) && !ibv_destroy_qp(b), "ibv_destroy_qp");
    need(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd), "ibv_dealloc_pd");
    need(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel), "ibv_destroy_cq");
    need(!ibv_close_device(context), "ibv_close_device");
    free(memory);
    return 0;
}
