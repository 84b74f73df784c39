/* SPDX-License-Identifier: Apache-2.0 */
#include "live.h"

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

void live_isolate(void) {
    struct ifreq ifr = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET))
        return;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(ioctl(fd, SIOCSIFFLAGS, &ifr), 0);
    close(fd);
}

int live_connect(struct rnic_qp *qp, const struct rnic_gid_entry *to, uint32_t dest) {
    static const uint32_t masks[] = {
        [RNIC_QPS_INIT] = RNIC_QP_STATE | RNIC_QP_PKEY_INDEX | RNIC_QP_PORT | RNIC_QP_ACCESS_FLAGS,
        [RNIC_QPS_RTR] = RNIC_QP_STATE | RNIC_QP_AV | RNIC_QP_PATH_MTU | RNIC_QP_DEST_QPN | RNIC_QP_RQ_PSN |
                         RNIC_QP_MAX_DEST_RD_ATOMIC | RNIC_QP_MIN_RNR_TIMER,
        [RNIC_QPS_RTS] = RNIC_QP_STATE | RNIC_QP_TIMEOUT | RNIC_QP_RETRY_CNT | RNIC_QP_RNR_RETRY | RNIC_QP_SQ_PSN |
                         RNIC_QP_MAX_QP_RD_ATOMIC};
    struct rnic_qp_attr a = {.path_mtu = RNIC_MTU_1024,
                             .port_num = 1,
                             .qp_access_flags = 0xF,
                             .dest_qp_num = dest,
                             .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = to->gid, .hop_limit = 64}},
                             .sq_psn = 0xFFFFF0,
                             .rq_psn = 0xFFFFF0,
                             .max_rd_atomic = 16,
                             .max_dest_rd_atomic = 16,
                             .timeout = 14,
                             .retry_cnt = 7,
                             .rnr_retry = 7,
                             .min_rnr_timer = 1};
    for (a.qp_state = RNIC_QPS_INIT; a.qp_state <= RNIC_QPS_RTS; a.qp_state++) {
        int rc = qp->ctx->ops->modify_qp(qp, &a, masks[a.qp_state], NULL);
        if (rc)
            return rc;
    }
    return 0;
}
