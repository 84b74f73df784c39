/* SPDX-License-Identifier: Apache-2.0
 *
 * A change of a queue pair that fails at its end, for want of memory: nothing of it is in force.
 */
#include <errno.h>

#include "check.h"
#include "dev/dev.h"
#include "live.h"

static int fails(struct qp *qp, int from, int to, struct rnic_err *err) {
    (void)qp, (void)from, (void)to, (void)err;
    return -ENOMEM;
}

static void test_a_state_that_cannot_be_entered_leaves_all_attributes_as_they_were(void) {
    static struct live l;
    live_isolate();
    live_open(&l, -1);
    struct dev *dev = dev_of(l.ctx);
    struct rnic_qp *pub = live_qp(&l);
    struct qp *qp = (struct qp *)pub;
    struct engine_ops engine = *qp->engine;
    const struct engine_ops *own = qp->engine;
    const uint16_t pkeys[] = {0xFFFF, 0x8001};
    CHECK_EQ(pkeys_set(&dev->net, pkeys, 2, NULL), 0);
    struct rnic_qp_attr attr = {.qp_state = RNIC_QPS_INIT, .port_num = 1};
    CHECK_EQ(
        l.ops->modify_qp(pub, &attr, RNIC_QP_STATE | RNIC_QP_PORT | RNIC_QP_PKEY_INDEX | RNIC_QP_ACCESS_FLAGS, NULL),
        0);
    engine.enter = fails;
    qp->engine = &engine;
    attr =
        (struct rnic_qp_attr){.qp_state = RNIC_QPS_RTR,
                              .pkey_index = 1,
                              .path_mtu = RNIC_MTU_1024,
                              .dest_qp_num = pub->qp_num,
                              .max_dest_rd_atomic = 1,
                              .min_rnr_timer = 12,
                              .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = l.gid.gid, .hop_limit = 64}}};
    CHECK_EQ(l.ops->modify_qp(pub, &attr,
                              RNIC_QP_STATE | RNIC_QP_PKEY_INDEX | RNIC_QP_AV | RNIC_QP_PATH_MTU | RNIC_QP_DEST_QPN |
                                  RNIC_QP_RQ_PSN | RNIC_QP_MAX_DEST_RD_ATOMIC | RNIC_QP_MIN_RNR_TIMER,
                              NULL),
             -ENOMEM);
    CHECK_EQ(qp->state, RNIC_QPS_INIT);
    CHECK_EQ(qp->attr.pkey_index, 0);
    CHECK_EQ(qp->ib.pkey, 0xFFFF);
    CHECK_EQ(qp->attr.dest_qp_num, 0);
    qp->engine = own;
    CHECK_EQ(l.ops->destroy_qp(pub, NULL), 0);
    live_close(&l);
}

int main(void) {
    RUN(test_a_state_that_cannot_be_entered_leaves_all_attributes_as_they_were);
    return check_done();
}
