/* SPDX-License-Identifier: Apache-2.0 */
#include "live.h"

#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "ext.h"

void live_isolate(void) {
    struct ifreq ifr = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET))
        return;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(ioctl(fd, SIOCSIFFLAGS, &ifr), 0);
    close(fd);
}

int live_connect(struct rnic_qp *qp, const struct rnic_gid_entry *to, uint32_t dest) {
    return live_connect_with(qp, to, dest, 14, 7);
}

int live_connect_with(struct rnic_qp *qp, const struct rnic_gid_entry *to, uint32_t dest, uint8_t timeout,
                      uint8_t retries) {
    static const uint32_t masks[] = {
        [RNIC_QPS_INIT] = RNIC_QP_STATE | RNIC_QP_PKEY_INDEX | RNIC_QP_PORT | RNIC_QP_ACCESS_FLAGS,
        [RNIC_QPS_RTR] = RNIC_QP_STATE | RNIC_QP_AV | RNIC_QP_PATH_MTU | RNIC_QP_DEST_QPN | RNIC_QP_RQ_PSN |
                         RNIC_QP_MAX_DEST_RD_ATOMIC | RNIC_QP_MIN_RNR_TIMER,
        [RNIC_QPS_RTS] = RNIC_QP_STATE | RNIC_QP_TIMEOUT | RNIC_QP_RETRY_CNT | RNIC_QP_RNR_RETRY | RNIC_QP_SQ_PSN |
                         RNIC_QP_MAX_QP_RD_ATOMIC};
    static const uint32_t reliable = RNIC_QP_MAX_DEST_RD_ATOMIC | RNIC_QP_MIN_RNR_TIMER | RNIC_QP_TIMEOUT |
                                     RNIC_QP_RETRY_CNT | RNIC_QP_RNR_RETRY | RNIC_QP_MAX_QP_RD_ATOMIC;
    struct rnic_qp_attr a = {.path_mtu = RNIC_MTU_1024,
                             .port_num = 1,
                             .qp_access_flags = 0xF,
                             .dest_qp_num = dest,
                             .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = to->gid, .hop_limit = 64}},
                             .sq_psn = 0xFFFFF0,
                             .rq_psn = 0xFFFFF0,
                             .max_rd_atomic = 16,
                             .max_dest_rd_atomic = 16,
                             .timeout = timeout,
                             .retry_cnt = retries,
                             .rnr_retry = 7,
                             .min_rnr_timer = 1};
    uint32_t without = qp->qp_type == RNIC_QPT_UC ? reliable : 0;
    for (a.qp_state = RNIC_QPS_INIT; a.qp_state <= RNIC_QPS_RTS; a.qp_state++) {
        int rc = qp->ctx->ops->modify_qp(qp, &a, masks[a.qp_state] & ~without, NULL);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---------------------------------------------------------------- a context with all that is needed */

#define HANG_S 60

void live_open(struct live *l, int local) {
    struct rnic_open_attr attr = {.local = local};
    struct rnic_err err = {0};
    if (rnic_soft.open("roce_lo", &attr, &l->ctx, &err))
        check_fail(__FILE__, __LINE__, "%s", err.text);
    l->ops = l->ctx->ops;
    CHECK_EQ(l->ops->query_gid(l->ctx, 1, 0, &l->gid, NULL), 0);
    CHECK_EQ(l->ops->alloc_pd(l->ctx, &l->pd, NULL), 0);
    CHECK_EQ(l->ops->create_cq(l->ctx, 1024, NULL, 0, NULL, &l->cq, NULL), 0);
    CHECK_EQ(ext_memory(l->ctx)->alloc_mr(l->pd, LIVE_BYTES, 0xF, &l->mr, NULL), 0);
    l->mem = l->mr->addr;
}

void live_close(struct live *l) {
    CHECK_EQ(l->ops->dereg_mr(l->mr, NULL), 0);
    CHECK_EQ(l->ops->destroy_cq(l->cq, NULL), 0);
    CHECK_EQ(l->ops->dealloc_pd(l->pd, NULL), 0);
    CHECK_EQ(l->ops->close(l->ctx, NULL), 0);
}

struct rnic_qp *live_qp(struct live *l) {
    struct rnic_qp_init_attr init = {
        .send_cq = l->cq, .recv_cq = l->cq, .cap = {64, 64, 1, 1, 0}, .qp_type = RNIC_QPT_RC, .sq_sig_all = 1};
    struct rnic_qp *qp;
    CHECK_EQ(l->ops->create_qp(l->pd, &init, &qp, NULL), 0);
    qp->qp_context = qp;
    return qp;
}

void live_join(struct live *a, struct rnic_qp *qp_a, struct live *b, struct rnic_qp *qp_b, uint8_t timeout,
               uint8_t retries) {
    CHECK_EQ(live_connect_with(qp_a, &b->gid, qp_b->qp_num, timeout, retries), 0);
    CHECK_EQ(live_connect_with(qp_b, &a->gid, qp_a->qp_num, timeout, retries), 0);
}

void live_post(struct live *l, struct rnic_qp *qp, int opcode, uint64_t id, uint64_t offset, uint32_t n,
               const struct live *peer) {
    struct rnic_sge sge = {(uintptr_t)l->mem + offset, n, l->mr->lkey};
    struct rnic_send_wr wr = {.wr_id = id,
                              .opcode = opcode,
                              .sg_list = &sge,
                              .num_sge = 1,
                              .wr.rdma = {(uintptr_t)peer->mem + offset, peer->mr->rkey}};
    const struct rnic_send_wr *bad;
    CHECK_EQ(l->ops->post_send(qp, &wr, &bad, NULL), 0);
}

void live_post_recv(struct live *l, struct rnic_qp *qp, uint64_t id, uint64_t offset, uint32_t n) {
    struct rnic_sge sge = {(uintptr_t)l->mem + offset, n, l->mr->lkey};
    struct rnic_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1};
    const struct rnic_recv_wr *bad;
    CHECK_EQ(l->ops->post_recv(qp, &wr, &bad, NULL), 0);
}

double live_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void live_nap(void) {
    const struct timespec t = {.tv_nsec = 1000000};
    nanosleep(&t, NULL);
}

struct rnic_wc live_wait(struct live *l) {
    struct rnic_wc wc;
    double until = live_seconds() + HANG_S;
    while (l->ops->poll_cq(l->cq, 1, &wc) != 1) {
        CHECK(live_seconds() < until);
        live_nap();
    }
    return wc;
}

long live_syscall(long number, const long a[6]) {
    switch (number) {
    case SYS_sendto:
        return sendto((int)a[0], (const void *)a[1], (size_t)a[2], (int)a[3], (const struct sockaddr *)a[4],
                      (socklen_t)a[5]);
    case SYS_sendmsg:
        return sendmsg((int)a[0], (const struct msghdr *)a[1], (int)a[2]);
    case SYS_recvmsg:
        return recvmsg((int)a[0], (struct msghdr *)a[1], (int)a[2]);
    case SYS_recvmmsg:
        return recvmmsg((int)a[0], (struct mmsghdr *)a[1], (unsigned)a[2], (int)a[3], NULL);
    case SYS_write:
        return write((int)a[0], (const void *)a[1], (size_t)a[2]);
    case SYS_read:
        return read((int)a[0], (void *)a[1], (size_t)a[2]);
    default:
        errno = ENOSYS;
        return -1;
    }
}
