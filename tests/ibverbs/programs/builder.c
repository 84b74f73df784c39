/* SPDX-License-Identifier: Apache-2.0
 *
 * builder.c: one chain of work requests whose bytes come in each of the ways that an extended queue pair has, from
 * one queue pair of this process to another. Prints what has come, a line for each request.
 *
 * builder DEVICE
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROOM = 64, COUNT = 5, SECONDS = 30 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void open_device(const char *name) {
    int i, count;
    struct ibv_device **list = ibv_get_device_list(&count);
    for (i = 0; list && i < count; i++)
        if (!strcmp(ibv_get_device_name(list[i]), name))
            context = ibv_open_device(list[i]);
    if (!context)
        die(name);
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    if (!pd || !cq)
        die("ibv_create_cq");
}

static struct ibv_qp *create_qp(void) {
    struct ibv_qp_init_attr_ex attr;
    struct ibv_qp *qp;
    memset(&attr, 0, sizeof(attr));
    attr.send_cq = attr.recv_cq = cq;
    attr.cap.max_send_wr = attr.cap.max_recv_wr = 16;
    attr.cap.max_send_sge = attr.cap.max_recv_sge = 2;
    attr.cap.max_inline_data = ROOM;
    attr.qp_type = IBV_QPT_RC;
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attr.pd = pd;
    attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
    qp = ibv_create_qp_ex(context, &attr);
    if (!qp)
        die("ibv_create_qp_ex");
    return qp;
}

static void connect_to(struct ibv_qp *qp, const struct ibv_qp *peer) {
    struct ibv_qp_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        die("INIT");
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer->qp_num;
    attr.min_rnr_timer = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.hop_limit = 1;
    if (ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid))
        die("ibv_query_gid");
    if (ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
        die("RTR");
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    if (ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                          IBV_QP_MAX_QP_RD_ATOMIC))
        die("RTS");
}

static void receives(struct ibv_qp *qp, char memory[COUNT][ROOM], const struct ibv_mr *mr) {
    int i;
    for (i = 0; i < COUNT; i++) {
        struct ibv_sge sge;
        struct ibv_recv_wr wr, *bad;
        memset(&wr, 0, sizeof(wr));
        sge.addr = (uintptr_t)memory[i];
        sge.length = ROOM;
        sge.lkey = mr->lkey;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        if (ibv_post_recv(qp, &wr, &bad))
            die("ibv_post_recv");
    }
}

/* The texts are the program's until they are posted: those that the builder has copied are overwritten before. */
static void build(struct ibv_qp_ex *qp, char texts[COUNT][ROOM], const struct ibv_mr *mr) {
    struct ibv_data_buf two[2];
    int i;
    ibv_wr_start(qp);
    for (i = 0; i < COUNT; i++) {
        uint32_t length = (uint32_t)strlen(texts[i]);
        qp->wr_id = (uint64_t)i;
        qp->wr_flags = IBV_SEND_SIGNALED | (i == 1 || i == 3 ? (unsigned int)IBV_SEND_INLINE : 0);
        ibv_wr_send(qp);
        switch (i) {
        case 0: /* copied by the builder */
            ibv_wr_set_inline_data(qp, texts[i], length);
            memset(texts[i], '!', length);
            break;
        case 1: /* inline by the program's own flag: no key is looked at */
        case 3:
            ibv_wr_set_sge(qp, 0, (uintptr_t)texts[i], length);
            break;
        case 2:
            ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)texts[i], length);
            break;
        default:
            two[0].addr = texts[i];
            two[0].length = 5;
            two[1].addr = texts[i] + 5;
            two[1].length = length - 5;
            ibv_wr_set_inline_data_list(qp, 2, two);
            memset(texts[i], '!', length);
        }
    }
    if (ibv_wr_complete(qp))
        die("ibv_wr_complete");
}

/* As ibv_post_send() refuses it; nothing of it is posted. */
static void refuse_a_flag(struct ibv_qp_ex *qp, char *text, const struct ibv_mr *mr) {
    ibv_wr_start(qp);
    qp->wr_id = COUNT;
    qp->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM;
    ibv_wr_send(qp);
    ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)text, 1);
    if ((errno = ibv_wr_complete(qp)) != EINVAL)
        die("ibv_wr_complete with a flag that is not supported");
}

/* Lengths that come to less, or to nothing, in 32 or 64 bits. Nothing is copied, so that a short text will do. */
static void refuse_long(struct ibv_qp_ex *qp, char *text) {
    const size_t lengths[][2] = {{ROOM + 1, 0},        {8, ROOM},
                                 {8, (size_t)1 << 32}, {((size_t)1 << 32) + 8, 0},
                                 {SIZE_MAX - 15, 32},  {8, SIZE_MAX - 7}};
    const size_t elements[] = {3, ((size_t)1 << 32) + 1, (SIZE_MAX >> 1) + 2};
    struct ibv_sge sge = {(uintptr_t)text, 1, 0};
    size_t i;
    for (i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        struct ibv_data_buf two[2] = {{text, lengths[i][0]}, {text, lengths[i][1]}};
        ibv_wr_start(qp);
        ibv_wr_send(qp);
        if (lengths[i][1])
            ibv_wr_set_inline_data_list(qp, 2, two);
        else
            ibv_wr_set_inline_data(qp, text, lengths[i][0]);
        if ((errno = ibv_wr_complete(qp)) != EINVAL)
            die("ibv_wr_complete with too many bytes");
    }
    for (i = 0; i < sizeof(elements) / sizeof(*elements); i++) {
        ibv_wr_start(qp);
        ibv_wr_send(qp);
        ibv_wr_set_sge_list(qp, elements[i], &sge);
        if ((errno = ibv_wr_complete(qp)) != EINVAL)
            die("ibv_wr_complete with too many elements");
    }
}

static void wait_for(int left) {
    time_t limit = time(NULL) + SECONDS;
    while (left) {
        struct ibv_wc wc;
        int found = ibv_poll_cq(cq, 1, &wc);
        if (found < 0 || time(NULL) > limit)
            die("ibv_poll_cq");
        if (!found)
            continue;
        if (wc.status != IBV_WC_SUCCESS) {
            fprintf(stderr, "%s: %s\n", wc.opcode & IBV_WC_RECV ? "receive" : "send", ibv_wc_status_str(wc.status));
            exit(1);
        }
        left--;
    }
}

int main(int argc, char **argv) {
    static char texts[COUNT][ROOM] = {"copied", "inline, without a key", "by its key", "inline once more",
                                      "copied from two places"};
    static char came[COUNT][ROOM];
    struct ibv_qp *from, *to;
    struct ibv_mr *out, *into;
    int i;
    if (argc != 2)
        return 2;
    open_device(argv[1]);
    out = ibv_reg_mr(pd, texts, sizeof(texts), 0);
    into = ibv_reg_mr(pd, came, sizeof(came), IBV_ACCESS_LOCAL_WRITE);
    if (!out || !into)
        die("ibv_reg_mr");
    from = create_qp();
    to = create_qp();
    connect_to(from, to);
    connect_to(to, from);
    receives(to, came, into);
    refuse_a_flag(ibv_qp_to_qp_ex(from), texts[0], out);
    refuse_long(ibv_qp_to_qp_ex(from), texts[0]);
    build(ibv_qp_to_qp_ex(from), texts, out);
    wait_for(2 * COUNT);
    for (i = 0; i < COUNT; i++)
        printf("%s\n", came[i]);
    return ibv_destroy_qp(from) || ibv_destroy_qp(to) || ibv_dereg_mr(out) || ibv_dereg_mr(into) ||
           ibv_destroy_cq(cq) || ibv_dealloc_pd(pd) || ibv_close_device(context);
}
