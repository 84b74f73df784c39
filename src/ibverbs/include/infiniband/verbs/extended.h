/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs/extended.h: queue pairs that are told one attribute of a request at a time (man ibv_wr_post), completion queues
 * that are asked for one of a completion at a time (man ibv_create_cq_ex).
 *
 * Either is the plain object with functions behind it, that the ibv_wr_ and ibv_wc_ calls go through.
 */
#ifndef RNIC_VERBS_EXTENDED_H
#define RNIC_VERBS_EXTENDED_H

#include <infiniband/verbs/queues.h>

/* ---------------------------------------------------------------- posting */

struct ibv_qp_ex {
    struct ibv_qp qp_base;
    uint64_t comp_mask;
    uint64_t wr_id;        /* of the next request: the program's to write */
    unsigned int wr_flags; /* of the next request: enum ibv_send_flags */
    void (*wr_atomic_cmp_swp)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, uint64_t compare,
                              uint64_t swap);
    void (*wr_atomic_fetch_add)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, uint64_t add);
    void (*wr_bind_mw)(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey,
                       const struct ibv_mw_bind_info *bind_info);
    void (*wr_local_inv)(struct ibv_qp_ex *qp, uint32_t invalidate_rkey);
    void (*wr_rdma_read)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr);
    void (*wr_rdma_write)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr);
    void (*wr_rdma_write_imm)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, __be32 imm_data);
    void (*wr_send)(struct ibv_qp_ex *qp);
    void (*wr_send_imm)(struct ibv_qp_ex *qp, __be32 imm_data);
    void (*wr_send_inv)(struct ibv_qp_ex *qp, uint32_t invalidate_rkey);
    void (*wr_send_tso)(struct ibv_qp_ex *qp, void *hdr, uint16_t hdr_sz, uint16_t mss);
    void (*wr_set_ud_addr)(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t remote_qpn, uint32_t remote_qkey);
    void (*wr_set_xrc_srqn)(struct ibv_qp_ex *qp, uint32_t remote_srqn);
    void (*wr_set_inline_data)(struct ibv_qp_ex *qp, void *addr, size_t length);
    void (*wr_set_inline_data_list)(struct ibv_qp_ex *qp, size_t num_buf, const struct ibv_data_buf *buf_list);
    void (*wr_set_sge)(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length);
    void (*wr_set_sge_list)(struct ibv_qp_ex *qp, size_t num_sge, const struct ibv_sge *sg_list);
    void (*wr_start)(struct ibv_qp_ex *qp);
    int (*wr_complete)(struct ibv_qp_ex *qp);
    void (*wr_abort)(struct ibv_qp_ex *qp);
    void (*wr_atomic_write)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, const void *atomic_wr);
    /* Newer than rdma-core 44: there only if the queue pair was made with IBV_QP_EX_WITH_FLUSH. */
    void (*wr_flush)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, size_t len, uint8_t type,
                     uint8_t level);
};

/* Between start and complete, or abort: requests, each followed by its addresses and its bytes. */
static inline void ibv_wr_start(struct ibv_qp_ex *qp) { qp->wr_start(qp); }
static inline int ibv_wr_complete(struct ibv_qp_ex *qp) { return qp->wr_complete(qp); }
static inline void ibv_wr_abort(struct ibv_qp_ex *qp) { qp->wr_abort(qp); }

static inline void ibv_wr_send(struct ibv_qp_ex *qp) { qp->wr_send(qp); }
static inline void ibv_wr_send_imm(struct ibv_qp_ex *qp, __be32 imm_data) { qp->wr_send_imm(qp, imm_data); }
static inline void ibv_wr_send_inv(struct ibv_qp_ex *qp, uint32_t invalidate_rkey) {
    qp->wr_send_inv(qp, invalidate_rkey);
}
static inline void ibv_wr_send_tso(struct ibv_qp_ex *qp, void *hdr, uint16_t hdr_sz, uint16_t mss) {
    qp->wr_send_tso(qp, hdr, hdr_sz, mss);
}
static inline void ibv_wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr) {
    qp->wr_rdma_read(qp, rkey, remote_addr);
}
static inline void ibv_wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr) {
    qp->wr_rdma_write(qp, rkey, remote_addr);
}
static inline void ibv_wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, __be32 imm_data) {
    qp->wr_rdma_write_imm(qp, rkey, remote_addr, imm_data);
}
static inline void ibv_wr_atomic_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, uint64_t compare,
                                         uint64_t swap) {
    qp->wr_atomic_cmp_swp(qp, rkey, remote_addr, compare, swap);
}
static inline void ibv_wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, uint64_t add) {
    qp->wr_atomic_fetch_add(qp, rkey, remote_addr, add);
}
static inline void ibv_wr_atomic_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr,
                                       const void *atomic_wr /* 8 bytes */) {
    qp->wr_atomic_write(qp, rkey, remote_addr, atomic_wr);
}
static inline void ibv_wr_flush(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, size_t len,
                                uint8_t type /* enum ibv_placement_type */,
                                uint8_t level /* enum ibv_selectivity_level */) {
    qp->wr_flush(qp, rkey, remote_addr, len, type, level);
}
static inline void ibv_wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey,
                                  const struct ibv_mw_bind_info *bind_info) {
    qp->wr_bind_mw(qp, mw, rkey, bind_info);
}
static inline void ibv_wr_local_inv(struct ibv_qp_ex *qp, uint32_t invalidate_rkey) {
    qp->wr_local_inv(qp, invalidate_rkey);
}

static inline void ibv_wr_set_ud_addr(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t remote_qpn,
                                      uint32_t remote_qkey) {
    qp->wr_set_ud_addr(qp, ah, remote_qpn, remote_qkey);
}
static inline void ibv_wr_set_xrc_srqn(struct ibv_qp_ex *qp, uint32_t remote_srqn) {
    qp->wr_set_xrc_srqn(qp, remote_srqn);
}
static inline void ibv_wr_set_inline_data(struct ibv_qp_ex *qp, void *addr, size_t length) {
    qp->wr_set_inline_data(qp, addr, length);
}
static inline void ibv_wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t num_buf,
                                               const struct ibv_data_buf *buf_list) {
    qp->wr_set_inline_data_list(qp, num_buf, buf_list);
}
static inline void ibv_wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length) {
    qp->wr_set_sge(qp, lkey, addr, length);
}
static inline void ibv_wr_set_sge_list(struct ibv_qp_ex *qp, size_t num_sge, const struct ibv_sge *sg_list) {
    qp->wr_set_sge_list(qp, num_sge, sg_list);
}

/* ---------------------------------------------------------------- polling */

struct ibv_poll_cq_attr {
    uint32_t comp_mask; /* 0 */
};
struct ibv_wc_tm_info { /* of the tag matching header */
    uint64_t tag;
    uint32_t priv; /* the sender's app_ctx */
};

struct ibv_cq_ex { /* begins as struct ibv_cq */
    struct ibv_context *context;
    struct ibv_comp_channel *channel;
    void *cq_context;
    uint32_t handle;
    int cqe;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t comp_events_completed, async_events_completed;
    uint32_t comp_mask;
    enum ibv_wc_status status; /* of the current completion */
    uint64_t wr_id;            /* of the current completion */
    int (*start_poll)(struct ibv_cq_ex *current, struct ibv_poll_cq_attr *attr);
    int (*next_poll)(struct ibv_cq_ex *current);
    void (*end_poll)(struct ibv_cq_ex *current);
    enum ibv_wc_opcode (*read_opcode)(struct ibv_cq_ex *current);
    uint32_t (*read_vendor_err)(struct ibv_cq_ex *current);
    uint32_t (*read_byte_len)(struct ibv_cq_ex *current);
    __be32 (*read_imm_data)(struct ibv_cq_ex *current);
    uint32_t (*read_qp_num)(struct ibv_cq_ex *current);
    uint32_t (*read_src_qp)(struct ibv_cq_ex *current);
    unsigned int (*read_wc_flags)(struct ibv_cq_ex *current);
    uint32_t (*read_slid)(struct ibv_cq_ex *current);
    uint8_t (*read_sl)(struct ibv_cq_ex *current);
    uint8_t (*read_dlid_path_bits)(struct ibv_cq_ex *current);
    uint64_t (*read_completion_ts)(struct ibv_cq_ex *current);
    uint16_t (*read_cvlan)(struct ibv_cq_ex *current);
    uint32_t (*read_flow_tag)(struct ibv_cq_ex *current);
    void (*read_tm_info)(struct ibv_cq_ex *current, struct ibv_wc_tm_info *tm_info);
    uint64_t (*read_completion_wallclock_ns)(struct ibv_cq_ex *current);
};

static inline struct ibv_cq *ibv_cq_ex_to_cq(struct ibv_cq_ex *cq) { return (struct ibv_cq *)cq; }

/* start and next: 0, ENOENT: there is none, or another errno. Only a start that gave 0 is followed by end. */
static inline int ibv_start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr) {
    return cq->start_poll(cq, attr);
}
static inline int ibv_next_poll(struct ibv_cq_ex *cq) { return cq->next_poll(cq); }
static inline void ibv_end_poll(struct ibv_cq_ex *cq) { cq->end_poll(cq); }

/* Of the current completion, what wc_flags of its queue asked for; opcode, vendor_err and wc_flags always. */
static inline enum ibv_wc_opcode ibv_wc_read_opcode(struct ibv_cq_ex *cq) { return cq->read_opcode(cq); }
static inline uint32_t ibv_wc_read_vendor_err(struct ibv_cq_ex *cq) { return cq->read_vendor_err(cq); }
static inline uint32_t ibv_wc_read_byte_len(struct ibv_cq_ex *cq) { return cq->read_byte_len(cq); }
static inline __be32 ibv_wc_read_imm_data(struct ibv_cq_ex *cq) { return cq->read_imm_data(cq); }
static inline uint32_t ibv_wc_read_invalidated_rkey(struct ibv_cq_ex *cq) { return cq->read_imm_data(cq); }
static inline uint32_t ibv_wc_read_qp_num(struct ibv_cq_ex *cq) { return cq->read_qp_num(cq); }
static inline uint32_t ibv_wc_read_src_qp(struct ibv_cq_ex *cq) { return cq->read_src_qp(cq); }
static inline unsigned int ibv_wc_read_wc_flags(struct ibv_cq_ex *cq) { return cq->read_wc_flags(cq); }
static inline uint32_t ibv_wc_read_slid(struct ibv_cq_ex *cq) { return cq->read_slid(cq); }
static inline uint8_t ibv_wc_read_sl(struct ibv_cq_ex *cq) { return cq->read_sl(cq); }
static inline uint8_t ibv_wc_read_dlid_path_bits(struct ibv_cq_ex *cq) { return cq->read_dlid_path_bits(cq); }
static inline uint64_t ibv_wc_read_completion_ts(struct ibv_cq_ex *cq) { return cq->read_completion_ts(cq); }
static inline uint64_t ibv_wc_read_completion_wallclock_ns(struct ibv_cq_ex *cq) {
    return cq->read_completion_wallclock_ns(cq);
}
static inline uint16_t ibv_wc_read_cvlan(struct ibv_cq_ex *cq) { return cq->read_cvlan(cq); }
static inline uint32_t ibv_wc_read_flow_tag(struct ibv_cq_ex *cq) { return cq->read_flow_tag(cq); }
static inline void ibv_wc_read_tm_info(struct ibv_cq_ex *cq, struct ibv_wc_tm_info *tm_info) {
    cq->read_tm_info(cq, tm_info);
}

#endif
