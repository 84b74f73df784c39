/* SPDX-License-Identifier: Apache-2.0
 *
 * Verbs that rdma-core 65 has and 44 has not: a WRITE and a FLUSH from a queue pair to itself, counted; memory by
 *ibv_reg_mr_ex.  It compiles with rnic's headers and with those of rdma-core 65.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno);                                  \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define BYTES 8192
enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_FLUSH_GLOBAL };

static struct ibv_context *open_named(const char *name) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = NULL;
    for (int i = 0; list[i]; i++) {
        if (!strcmp(ibv_get_device_name(list[i]), name))
            context = ibv_open_device(list[i]);
    }
    ibv_free_device_list(list);
    CHECK(context);
    return context;
}

static struct ibv_qp *make_qp(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq) {
    struct ibv_qp_init_attr_ex attr = {.send_cq = cq,
                                       .recv_cq = cq,
                                       .cap = {4, 4, 1, 1, 0},
                                       .qp_type = IBV_QPT_RC,
                                       .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                       .pd = pd,
                                       .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_FLUSH};
    struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
    CHECK(qp);
    return qp;
}

static void connect_to_itself(struct ibv_qp *qp) {
    union ibv_gid gid;
    CHECK(!ibv_query_gid(qp->context, 1, 0, &gid));
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS};
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = qp->qp_num,
        .max_dest_rd_atomic = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 1}},
    };
    CHECK(!ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    CHECK(!ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                             IBV_QP_MAX_QP_RD_ATOMIC));
}

static void wait_for(struct ibv_cq *cq, int n) {
    struct ibv_wc wc;
    while (n) {
        int got = ibv_poll_cq(cq, 1, &wc);
        CHECK(got >= 0 && (!got || wc.status == IBV_WC_SUCCESS));
        n -= got;
    }
}

/* Bytes come to the second half; the flush says that they are there. */
static void write_and_flush(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_mr *mr, char *at) {
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
    uint64_t to = (uintptr_t)at + BYTES / 2;
    strcpy(at, "counted");
    ibv_wr_start(ex);
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(ex, mr->rkey, to);
    ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)at, 8);
    ibv_wr_flush(ex, mr->rkey, to, 8, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE);
    CHECK(!ibv_wr_complete(ex));
    wait_for(cq, 2);
    CHECK(!strcmp(at + BYTES / 2, "counted"));
}

static struct ibv_comp_cntr *make_counter(struct ibv_context *context) {
    struct ibv_comp_cntr_caps caps;
    struct ibv_comp_cntr_init_attr init = {0};
    CHECK(!ibv_query_comp_cntr_caps(context, &caps) && caps.max_counters);
    struct ibv_comp_cntr *cntr = ibv_create_comp_cntr(context, &init);
    CHECK(cntr && cntr->context == context);
    return cntr;
}

static void count(struct ibv_comp_cntr *cntr) {
    uint64_t done, failed;
    CHECK(!ibv_read_comp_cntr(cntr, &done) && done == 1);
    CHECK(!ibv_set_comp_cntr(cntr, 40) && !ibv_inc_comp_cntr(cntr, 2) && !ibv_inc_err_comp_cntr(cntr, 3));
    CHECK(!ibv_read_comp_cntr(cntr, &done) && !ibv_read_err_comp_cntr(cntr, &failed) && done == 42 && failed == 3);
    CHECK(!ibv_set_err_comp_cntr(cntr, 0) && !ibv_read_err_comp_cntr(cntr, &failed) && !failed);
}

/* Of a buffer, of plain memory by another name, and of a file; and what is none of them. */
static void register_others(struct ibv_pd *pd, struct ibv_buf *buf, char *at) {
    struct ibv_mr_init_attr attr = {.length = BYTES, .access = ACCESS, .comp_mask = IBV_REG_MR_MASK_ADDR, .addr = at};
    attr.comp_mask |= IBV_REG_MR_MASK_IOVA;
    attr.iova = 4096;
    struct ibv_mr *mr = ibv_reg_mr_ex(pd, &attr);
    CHECK(mr && !ibv_dereg_mr(mr));
    attr.comp_mask = IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET | IBV_REG_MR_MASK_IOVA;
    attr.fd = memfd_create("newer", MFD_CLOEXEC);
    CHECK(attr.fd >= 0 && !ftruncate(attr.fd, BYTES));
    mr = ibv_reg_mr_ex(pd, &attr);
    CHECK(mr && !ibv_dereg_mr(mr) && !close(attr.fd));
    CHECK(!ibv_reg_buf_mr(pd, buf, at + 1, BYTES, ACCESS) && errno == EINVAL);
    attr.comp_mask = IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_FD;
    CHECK(!ibv_reg_mr_ex(pd, &attr) && errno == EINVAL);
    attr.comp_mask = IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_DMAH;
    CHECK(!ibv_reg_mr_ex(pd, &attr) && errno == EINVAL);
}

/* Hints for the processor's caches: what cannot be is refused, and a handle stays while a region has it. */
static void register_with_hints(struct ibv_pd *pd, char *at) {
    struct ibv_dmah_init_attr hints = {.comp_mask = IBV_DMAH_INIT_ATTR_MASK_PH, .ph = 4, .cpu_id = 0xffff};
    CHECK(!ibv_alloc_dmah(pd->context, &hints) && errno == EINVAL);
    hints.comp_mask = IBV_DMAH_INIT_ATTR_MASK_CPU_ID;
    CHECK(!ibv_alloc_dmah(pd->context, &hints) && errno == EINVAL);
    hints = (struct ibv_dmah_init_attr){.comp_mask = IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE, .tph_mem_type = 2};
    CHECK(!ibv_alloc_dmah(pd->context, &hints) && errno == EINVAL);
    hints.comp_mask = 1 << 20;
    CHECK(!ibv_alloc_dmah(pd->context, &hints) && errno == EINVAL);
    hints = (struct ibv_dmah_init_attr){.comp_mask = 7, .cpu_id = 0, .ph = 3, .tph_mem_type = IBV_TPH_MEM_TYPE_PM};
    struct ibv_dmah *dmah = ibv_alloc_dmah(pd->context, &hints);
    CHECK(dmah && dmah->context == pd->context);
    struct ibv_mr_init_attr attr = {.length = BYTES, .access = IBV_ACCESS_ON_DEMAND, .addr = at, .dmah = dmah};
    attr.comp_mask = IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_DMAH;
    CHECK(!ibv_reg_mr_ex(pd, &attr) && errno == EINVAL);
    attr.access = ACCESS;
    struct ibv_mr *mr = ibv_reg_mr_ex(pd, &attr);
    CHECK(mr && ibv_dealloc_dmah(dmah) == EBUSY && !ibv_dereg_mr(mr) && !ibv_dealloc_dmah(dmah));
}

/* Memory that a confidential guest shares with its host: where the device is inside, all memory is as good. */
static void register_shared(struct ibv_pd *pd) {
    struct ibv_parent_domain_init_attr attr = {.pd = pd,
                                               .comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC};
    struct ibv_pd *parent = ibv_alloc_parent_domain(pd->context, &attr);
    CHECK(parent);
    struct ibv_buf *buf;
    char *at = ibv_alloc_buf(parent, BYTES, &buf);
    struct ibv_mr *mr = ibv_reg_buf_mr(parent, buf, at, BYTES, ACCESS);
    CHECK(mr && !ibv_dereg_mr(mr));
    CHECK(!ibv_reg_buf_mr(pd, buf, at, BYTES, ACCESS) && errno == EINVAL);
    ibv_free_buf(buf);
    CHECK(!ibv_dealloc_pd(parent));
}

static void ask_for_hardware(struct ibv_context *context, struct ibv_buf *buf) {
    struct ibv_alloc_dm_attr attr = {.length = 4096};
    struct ibv_dm *dm = ibv_alloc_dm(context, &attr);
    uint64_t speed;
    CHECK(dm && ibv_dm_export_dmabuf_fd(dm) == -1 && errno == EOPNOTSUPP);
    CHECK(!ibv_free_dm(dm));
    CHECK(ibv_export_buf_dmabuf_fd(buf) == -1 && errno == ENODATA);
    CHECK(!ibv_query_port_speed(context, 1, &speed) && speed);
    CHECK(ibv_query_port_speed(context, 7, &speed));
}

int main(int argc, char **argv) {
    struct ibv_buf *buf;
    CHECK(argc == 2);
    struct ibv_context *context = open_named(argv[1]);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
    char *at = ibv_alloc_buf(pd, BYTES, &buf);
    struct ibv_mr *mr = ibv_reg_buf_mr(pd, buf, at, BYTES, ACCESS);
    struct ibv_qp *qp = make_qp(context, pd, cq);
    struct ibv_comp_cntr *cntr = make_counter(context);
    struct ibv_qp_attach_comp_cntr_attr writes = {.op_mask = IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE};
    CHECK(mr && !ibv_qp_attach_comp_cntr(qp, cntr, &writes));
    connect_to_itself(qp);
    write_and_flush(qp, cq, mr, at);
    count(cntr);
    CHECK(ibv_destroy_comp_cntr(cntr) == EBUSY);
    register_others(pd, buf, at);
    register_with_hints(pd, at);
    register_shared(pd);
    ask_for_hardware(context, buf);
    CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_comp_cntr(cntr) && !ibv_dereg_mr(mr));
    ibv_free_buf(buf);
    make_counter(context); /* close takes it back */
    CHECK(!ibv_close_device(context));
    puts("ok");
    return 0;
}
