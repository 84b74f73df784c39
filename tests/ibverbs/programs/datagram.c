/* SPDX-License-Identifier: Apache-2.0
 *
 * datagram.c: a queue pair sends to itself, and answers by what the completion says of the sender.
 *
 * datagram DEVICE GID_INDEX: prints the service level of the completion, and those of the two ways back.
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QKEY = 7, GRH = 40, ROOM = 64 };

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char bytes[2 * ROOM];

static void need(int good, const char *what) {
    if (!good) {
        perror(what);
        exit(1);
    }
}

static struct ibv_context *opened(const char *name) {
    struct ibv_device **list = ibv_get_device_list(NULL), **at = list;
    struct ibv_context *context = NULL;
    for (; *at && !context; at++)
        context = strcmp(ibv_get_device_name(*at), name) ? NULL : ibv_open_device(*at);
    ibv_free_device_list(list);
    need(context != NULL, "open");
    return context;
}

static void make(struct ibv_context *context) {
    struct ibv_qp_init_attr how = {.qp_type = IBV_QPT_UD, .cap = {1, 1, 1, 1, 0}, .sq_sig_all = 1};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
    pd = ibv_alloc_pd(context);
    need((how.send_cq = how.recv_cq = cq = ibv_create_cq(context, 4, NULL, NULL, 0)) != NULL, "create_cq");
    need((mr = ibv_reg_mr(pd, bytes, sizeof(bytes), IBV_ACCESS_LOCAL_WRITE)) != NULL, "reg_mr");
    need((qp = ibv_create_qp(pd, &how)) != NULL, "create_qp");
    need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "INIT");
    attr.qp_state = IBV_QPS_RTR;
    need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "RTR");
    attr.qp_state = IBV_QPS_RTS;
    need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
}

/* The completion of the receive. */
static struct ibv_wc to_itself(struct ibv_ah *ah) {
    struct ibv_sge room = {(uintptr_t)bytes, ROOM, mr->lkey}, out = {(uintptr_t)(bytes + ROOM), 8, mr->lkey};
    struct ibv_recv_wr receive = {.sg_list = &room, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr send = {.sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
    struct ibv_wc wc, received = {0};
    send.wr.ud.ah = ah;
    send.wr.ud.remote_qpn = qp->qp_num;
    send.wr.ud.remote_qkey = QKEY;
    need(!ibv_post_recv(qp, &receive, &bad_receive), "post_recv");
    need(!ibv_post_send(qp, &send, &bad_send), "post_send");
    for (int left = 2; left;) {
        if (ibv_poll_cq(cq, 1, &wc) != 1)
            continue;
        need(wc.status == IBV_WC_SUCCESS, "completion");
        if (wc.opcode == IBV_WC_RECV)
            received = wc;
        left--;
    }
    return received;
}

int main(int argc, char **argv) {
    struct ibv_context *context = opened(argc > 2 ? argv[1] : "");
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1};
    struct ibv_wc wc;
    attr.grh.sgid_index = (uint8_t)atoi(argv[2]);
    attr.grh.hop_limit = 9;
    attr.grh.traffic_class = 0x60; /* of priority 3 */
    need(!ibv_query_gid(context, 1, attr.grh.sgid_index, &attr.grh.dgid), "query_gid");
    make(context);
    wc = to_itself(ibv_create_ah(pd, &attr));
    printf("%d", wc.sl);
    need(!ibv_init_ah_from_wc(context, 1, &wc, (struct ibv_grh *)bytes, &attr), "init_ah_from_wc");
    printf(" %d", attr.sl);
    wc = to_itself(ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)bytes, 1));
    attr.sl = wc.sl; /* as programs do that know no better */
    wc = to_itself(ibv_create_ah(pd, &attr));
    printf(" %d\n", wc.sl);
    return ibv_close_device(context);
}
