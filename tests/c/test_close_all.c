/* SPDX-License-Identifier: Apache-2.0
 *
 * A context is closed with all that is left in it: objects of every kind that need each other, events that nobody has
 * acknowledged, and imports.  What a forgotten one would keep is told by AddressSanitizer.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "ext.h"
#include "live.h"

static struct live l;

#define GOOD(call) CHECK_EQ((call), 0)

static struct rnic_qp *make(struct rnic_pd *pd, int type, struct rnic_srq *srq) {
    struct rnic_qp_init_attr init = {
        .send_cq = l.cq, .recv_cq = l.cq, .srq = srq, .cap = {4, 4, 1, 1, 0}, .qp_type = type};
    struct rnic_qp *qp;
    GOOD(l.ops->create_qp(pd, &init, &qp, NULL));
    return qp;
}

static void leave_memory(void) {
    static uint8_t memory[4096];
    struct rnic_mr *mr;
    struct rnic_mw *mw;
    struct rnic_dm *dm;
    struct rnic_mr_init_attr of_dm = {.comp_mask = RNIC_MR_INIT_DM, .access = RNIC_ACCESS_ZERO_BASED, .length = 64};
    GOOD(l.ops->reg_mr(l.pd, memory, sizeof memory, RNIC_ACCESS_REMOTE_READ | RNIC_ACCESS_MW_BIND, &mr, NULL));
    GOOD(l.ops->import_mr(l.pd, mr->handle, &mr, NULL));
    GOOD(l.ops->alloc_mw(l.pd, RNIC_MW_TYPE_2, &mw, NULL));
    GOOD(l.ops->alloc_dm(l.ctx, 4096, 0, &dm, NULL));
    of_dm.dm = dm;
    GOOD(l.ops->reg_mr_ex(l.pd, &of_dm, &mr, NULL));
    GOOD(l.ops->import_dm(l.ctx, dm->handle, &dm, NULL));
    GOOD(l.ops->alloc_null_mr(l.pd, &mr, NULL));
}

static void leave_domains(void) {
    struct rnic_td *td;
    struct rnic_pd *parent;
    struct rnic_cq *cq;
    struct rnic_cq_init_attr_ex attr = {.cqe = 4, .comp_mask = RNIC_CQ_INIT_ATTR_MASK_PD};
    GOOD(l.ops->alloc_td(l.ctx, &td, NULL));
    GOOD(l.ops->alloc_parent_domain(l.pd, td, &parent, NULL));
    attr.parent_domain = parent;
    GOOD(l.ops->create_cq_ex(l.ctx, &attr, &cq, NULL));
    GOOD(l.ops->import_pd(l.ctx, l.pd->handle, &parent, NULL));
}

static void leave_xrc(void) {
    struct rnic_xrcd_init_attr of_nobody = {.fd = -1, .oflags = O_CREAT};
    struct rnic_srq_init_attr_ex srq_attr = {.attr = {4, 1, 0}, .srq_type = RNIC_SRQT_XRC, .pd = l.pd, .cq = l.cq};
    struct rnic_qp_init_attr init = {.qp_type = RNIC_QPT_XRC_RECV};
    struct rnic_qp_open_attr again = {.qp_type = RNIC_QPT_XRC_RECV};
    struct rnic_srq *srq;
    struct rnic_qp *qp;
    GOOD(l.ops->open_xrcd(l.ctx, &of_nobody, &srq_attr.xrcd, NULL));
    GOOD(l.ops->create_srq_ex(l.ctx, &srq_attr, &srq, NULL));
    GOOD(l.ops->create_xrc_qp(srq_attr.xrcd, &init, &qp, NULL));
    again.qp_num = qp->qp_num;
    again.xrcd = srq_attr.xrcd;
    GOOD(l.ops->open_qp(l.ctx, &again, &qp, NULL));
}

static void leave_frames(void) {
    struct rnic_wq_init_attr attr = {.wq_type = RNIC_WQT_RQ, .max_wr = 4, .max_sge = 1, .pd = l.pd, .cq = l.cq};
    struct rnic_rwq_ind_table_init_attr table_attr = {0};
    struct rnic_rwq_ind_table *table;
    struct rnic_flow_counters *counters;
    struct rnic_wq *wq;
    GOOD(l.ops->create_wq(l.ctx, &attr, &wq, NULL));
    table_attr.ind_tbl = &wq;
    GOOD(l.ops->create_rwq_ind_table(l.ctx, &table_attr, &table, NULL));
    GOOD(l.ops->create_counters(l.ctx, &counters, NULL));
}

static void leave_datagrams(void) {
    union rnic_gid group = {{[10] = 0xFF, 0xFF, 239, 1, 2, 3}};
    struct rnic_ah_attr attr = {.grh.dgid = l.gid.gid, .is_global = 1, .port_num = 1};
    struct rnic_qp *qp = make(l.pd, RNIC_QPT_UD, NULL), *other = make(l.pd, RNIC_QPT_UD, NULL);
    struct rnic_listener *listener;
    struct rnic_ah *ah;
    GOOD(l.ops->attach_mcast(qp, &group, 0, NULL));
    GOOD(l.ops->attach_mcast(other, &group, 0, NULL));
    GOOD(l.ops->create_ah(l.pd, &attr, &ah, NULL));
    GOOD(ext_cm(l.ctx)->listen(l.ctx, 0x1000000000001, &l.gid.gid, 0, &listener, NULL));
    GOOD(ext_cm(l.ctx)->listen(l.ctx, 0x1000000000002, &l.gid.gid, RNIC_LISTEN_HOLD, &listener, NULL));
}

/* Events that are taken, and some that nobody has looked at; completions, and work under way. */
static void leave_events(void) {
    struct rnic_srq_attr srq_attr = {4, 1, 0}, limit = {.srq_limit = 1};
    struct rnic_comp_cntr_init_attr cntr_attr = {.type = RNIC_COMP_CNTR_TYPE_WRS};
    struct rnic_qp_attr error = {.qp_state = RNIC_QPS_ERR};
    struct rnic_comp_channel *channel;
    struct rnic_comp_cntr *cntr;
    struct rnic_async_event event;
    struct rnic_qp *a, *b;
    struct rnic_srq *srq;
    struct rnic_cq *cq;
    GOOD(l.ops->create_comp_channel(l.ctx, &channel, NULL));
    GOOD(l.ops->create_cq(l.ctx, 16, channel, 0, &cq, &cq, NULL));
    GOOD(l.ops->create_srq(l.pd, &srq, &srq_attr, &srq, NULL));
    GOOD(l.ops->create_comp_cntr(l.ctx, &cntr_attr, &cntr, NULL));
    a = live_qp(&l);
    b = live_qp(&l);
    GOOD(l.ops->attach_comp_cntr(a, cntr, RNIC_COMP_CNTR_OP_SEND, NULL));
    live_join(&l, a, &l, b, 14, 7);
    live_post(&l, a, RNIC_WR_SEND, 1, 0, 64, &l); /* for which no receive is posted */
    make(l.pd, RNIC_QPT_RC, srq);
    GOOD(l.ops->modify_srq(srq, &limit, RNIC_SRQ_LIMIT, NULL));
    while (l.ops->get_async_event(l.ctx, &event, NULL))
        live_nap();
    CHECK(event.context == &srq);
    GOOD(l.ops->modify_srq(srq, &limit, RNIC_SRQ_LIMIT, NULL));
    struct rnic_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 0}, .qp_type = RNIC_QPT_RC};
    GOOD(l.ops->create_qp(l.pd, &init, &b, NULL));
    GOOD(l.ops->modify_qp(b, &(struct rnic_qp_attr){.qp_state = RNIC_QPS_INIT, .port_num = 1},
                          RNIC_QP_STATE | RNIC_QP_PKEY_INDEX | RNIC_QP_PORT | RNIC_QP_ACCESS_FLAGS, NULL));
    live_post_recv(&l, b, 2, 0, 64);
    GOOD(l.ops->req_notify_cq(cq, 0, NULL));
    GOOD(l.ops->modify_qp(b, &error, RNIC_QP_STATE, NULL));
    while (l.ops->get_cq_event(channel, &cq, NULL))
        live_nap();
}

static void test_everything_that_is_left_goes(void) {
    struct rnic_err err = {0};
    live_open(&l, 0);
    leave_memory();
    leave_domains();
    leave_xrc();
    leave_frames();
    leave_datagrams();
    leave_events();
    CHECK_EQ(l.ops->close(l.ctx, &err), -EBUSY);
    CHECK(strstr(err.text, "protection domains") && strstr(err.text, "listeners"));
    GOOD(l.ops->close_all(l.ctx, &err));
}

/* Its address and service are free for the next one, and so are its descriptors. */
static void test_again_and_again(void) {
    int before = dup(0), after;
    close(before);
    for (int i = 0; i < 3; i++)
        test_everything_that_is_left_goes();
    after = dup(0);
    close(after);
    CHECK_EQ(after, before);
}

static void test_another_owner_keeps_everything(void) {
    struct rnic_device_info info;
    struct rnic_context *same;
    live_open(&l, 0);
    GOOD(rnic_soft.import(l.ctx->cmd_fd, &same, &info, NULL));
    CHECK(same == l.ctx);
    CHECK_EQ(l.ops->close_all(same, NULL), 1);
    struct rnic_qp *a = live_qp(&l), *b = live_qp(&l);
    live_join(&l, a, &l, b, 14, 7);
    live_post(&l, a, RNIC_WR_RDMA_WRITE, 3, 0, 64, &l);
    CHECK_EQ(live_wait(&l).wr_id, 3);
    CHECK_EQ(l.ops->close(l.ctx, NULL), -EBUSY);
    GOOD(l.ops->close_all(l.ctx, NULL));
}

int main(void) {
    live_isolate();
    RUN(test_everything_that_is_left_goes);
    RUN(test_again_and_again);
    RUN(test_another_owner_keeps_everything);
    return check_done();
}
