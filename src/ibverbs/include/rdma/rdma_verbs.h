/* SPDX-License-Identifier: Apache-2.0
 *
 * rdma_verbs.h: verbs on an identifier of rdma_cma.h, its queue pair, domain and completion queues.
 *
 * context is the program's: completions bring it back as wr_id. Calls return 0, or -1 with errno set.
 */
#ifndef RDMA_VERBS_H
#define RDMA_VERBS_H

#include <assert.h>

#include <rdma/rdma_cma.h>

#ifdef __cplusplus
extern "C" {
#endif

int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd /* or NULL */, struct ibv_srq_init_attr *attr);
int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr);
void rdma_destroy_srq(struct rdma_cm_id *id);

#ifdef __cplusplus
}
#endif

/* What a verb returned, an errno, as librdmacm's calls say it. */
static inline int rdma_seterrno(int ret) {
    if (!ret)
        return 0;
    errno = ret;
    return -1;
}

/* ---------------------------------------------------------------- memory */

static inline struct ibv_mr *rdma_reg_msgs(struct rdma_cm_id *id, void *addr, size_t length) {
    return ibv_reg_mr(id->pd, addr, length, IBV_ACCESS_LOCAL_WRITE);
}
static inline struct ibv_mr *rdma_reg_read(struct rdma_cm_id *id, void *addr, size_t length) {
    return ibv_reg_mr(id->pd, addr, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
}
static inline struct ibv_mr *rdma_reg_write(struct rdma_cm_id *id, void *addr, size_t length) {
    return ibv_reg_mr(id->pd, addr, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}
static inline int rdma_dereg_mr(struct ibv_mr *mr) { return rdma_seterrno(ibv_dereg_mr(mr)); }

/* ---------------------------------------------------------------- requests of several pieces */

static inline struct ibv_send_wr _rdma_send_wr(enum ibv_wr_opcode opcode, void *context, struct ibv_sge *sgl, int nsge,
                                               int flags) {
    struct ibv_send_wr wr;
    memset(&wr, 0, sizeof(wr));
    wr.wr_id = (uintptr_t)context;
    wr.sg_list = sgl;
    wr.num_sge = nsge;
    wr.opcode = opcode;
    wr.send_flags = (unsigned int)flags;
    return wr;
}
static inline int _rdma_post(struct rdma_cm_id *id, struct ibv_send_wr *wr) {
    struct ibv_send_wr *bad;
    return rdma_seterrno(ibv_post_send(id->qp, wr, &bad));
}
static inline int _rdma_post_tagged(struct rdma_cm_id *id, struct ibv_send_wr *wr, uint64_t remote_addr,
                                    uint32_t rkey) {
    wr->wr.rdma.remote_addr = remote_addr;
    wr->wr.rdma.rkey = rkey;
    return _rdma_post(id, wr);
}

static inline int rdma_post_recvv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge) {
    struct ibv_recv_wr wr, *bad;
    wr.wr_id = (uintptr_t)context;
    wr.next = NULL;
    wr.sg_list = sgl;
    wr.num_sge = nsge;
    return rdma_seterrno(id->srq ? ibv_post_srq_recv(id->srq, &wr, &bad) : ibv_post_recv(id->qp, &wr, &bad));
}
static inline int rdma_post_sendv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge, int flags) {
    struct ibv_send_wr wr = _rdma_send_wr(IBV_WR_SEND, context, sgl, nsge, flags);
    return _rdma_post(id, &wr);
}
static inline int rdma_post_readv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge, int flags,
                                  uint64_t remote_addr, uint32_t rkey) {
    struct ibv_send_wr wr = _rdma_send_wr(IBV_WR_RDMA_READ, context, sgl, nsge, flags);
    return _rdma_post_tagged(id, &wr, remote_addr, rkey);
}
static inline int rdma_post_writev(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge, int flags,
                                   uint64_t remote_addr, uint32_t rkey) {
    struct ibv_send_wr wr = _rdma_send_wr(IBV_WR_RDMA_WRITE, context, sgl, nsge, flags);
    return _rdma_post_tagged(id, &wr, remote_addr, rkey);
}

/* ---------------------------------------------------------------- requests of one piece */

/* mr NULL: of bytes that are sent inline. */
static inline struct ibv_sge _rdma_sge(void *addr, size_t length, struct ibv_mr *mr) {
    struct ibv_sge sge;
    sge.addr = (uintptr_t)addr;
    sge.length = (uint32_t)length;
    sge.lkey = mr ? mr->lkey : 0;
    return sge;
}

static inline int rdma_post_recv(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr) {
    struct ibv_sge sge = _rdma_sge(addr, length, mr);
    assert((char *)addr >= (char *)mr->addr && (char *)addr + length <= (char *)mr->addr + mr->length);
    return rdma_post_recvv(id, context, &sge, 1);
}
static inline int rdma_post_send(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr,
                                 int flags) {
    struct ibv_sge sge = _rdma_sge(addr, length, mr);
    return rdma_post_sendv(id, context, &sge, 1, flags);
}
static inline int rdma_post_read(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr,
                                 int flags, uint64_t remote_addr, uint32_t rkey) {
    struct ibv_sge sge = _rdma_sge(addr, length, mr);
    return rdma_post_readv(id, context, &sge, 1, flags, remote_addr, rkey);
}
static inline int rdma_post_write(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr,
                                  int flags, uint64_t remote_addr, uint32_t rkey) {
    struct ibv_sge sge = _rdma_sge(addr, length, mr);
    return rdma_post_writev(id, context, &sge, 1, flags, remote_addr, rkey);
}
static inline int rdma_post_ud_send(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr,
                                    int flags, struct ibv_ah *ah, uint32_t remote_qpn) {
    struct ibv_sge sge = _rdma_sge(addr, length, mr);
    struct ibv_send_wr wr = _rdma_send_wr(IBV_WR_SEND, context, &sge, 1, flags);
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = remote_qpn;
    wr.wr.ud.remote_qkey = RDMA_UDP_QKEY;
    return _rdma_post(id, &wr);
}

/* ---------------------------------------------------------------- completions */

/* Waits for one: 1, or -1 with errno set. It is looked for once more after the queue was asked to tell, as one may have
 * come in between. */
static inline int _rdma_get_comp(struct ibv_comp_channel *channel, struct ibv_cq *cq, struct ibv_wc *wc) {
    struct ibv_cq *told;
    void *context;
    int n;
    for (;;) {
        n = ibv_poll_cq(cq, 1, wc);
        if (!n) {
            n = ibv_req_notify_cq(cq, 0);
            if (n)
                return rdma_seterrno(n);
            n = ibv_poll_cq(cq, 1, wc);
        }
        if (n)
            return n < 0 ? rdma_seterrno(n) : n;
        n = ibv_get_cq_event(channel, &told, &context);
        if (n)
            return n;
        assert(told == cq);
        ibv_ack_cq_events(cq, 1);
    }
}
static inline int rdma_get_send_comp(struct rdma_cm_id *id, struct ibv_wc *wc) {
    return _rdma_get_comp(id->send_cq_channel, id->send_cq, wc);
}
static inline int rdma_get_recv_comp(struct rdma_cm_id *id, struct ibv_wc *wc) {
    return _rdma_get_comp(id->recv_cq_channel, id->recv_cq, wc);
}

#endif
