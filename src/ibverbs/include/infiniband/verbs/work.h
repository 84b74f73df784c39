/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs/work.h: work requests, what they point to, and their completions.
 */
#ifndef RNIC_VERBS_WORK_H
#define RNIC_VERBS_WORK_H

#include <infiniband/verbs/memory.h>

/* ---------------------------------------------------------------- addresses */

struct ibv_global_route { /* of a GRH, or of an IP header in its place */
    union ibv_gid dgid;
    uint32_t flow_label;
    uint8_t sgid_index, hop_limit, traffic_class;
};
struct ibv_grh { /* before the bytes of a datagram that was received */
    __be32 version_tclass_flow;
    __be16 paylen;
    uint8_t next_hdr, hop_limit;
    union ibv_gid sgid, dgid;
};
struct ibv_ah_attr { /* man ibv_create_ah */
    struct ibv_global_route grh;
    uint16_t dlid;
    uint8_t sl, src_path_bits, static_rate /* enum ibv_rate */, is_global /* grh counts */, port_num;
};
struct ibv_ah {
    struct ibv_context *context;
    struct ibv_pd *pd;
    uint32_t handle;
};

/* ---------------------------------------------------------------- requests */

struct ibv_sge {
    uint64_t addr;
    uint32_t length, lkey;
};
struct ibv_data_buf { /* bytes to be sent inline */
    void *addr;
    size_t length;
};

enum ibv_wr_opcode {
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    IBV_WR_RDMA_READ,
    IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_LOCAL_INV,
    IBV_WR_BIND_MW,
    IBV_WR_SEND_WITH_INV,
    IBV_WR_TSO,
    IBV_WR_DRIVER1,
    IBV_WR_FLUSH = 14, /* newer than rdma-core 44 */
    IBV_WR_ATOMIC_WRITE = 15
};
enum ibv_send_flags {
    IBV_SEND_FENCE = 1 << 0,
    IBV_SEND_SIGNALED = 1 << 1,
    IBV_SEND_SOLICITED = 1 << 2,
    IBV_SEND_INLINE = 1 << 3,
    IBV_SEND_IP_CSUM = 1 << 4
};
/* What a FLUSH makes sure of, and of which bytes (IBA A19.4.3; newer than rdma-core 44). */
enum ibv_placement_type { IBV_FLUSH_GLOBAL = 1 << 0, IBV_FLUSH_PERSISTENT = 1 << 1 };
enum ibv_selectivity_level { IBV_FLUSH_RANGE, IBV_FLUSH_MR };

struct ibv_send_wr { /* man ibv_post_send */
    uint64_t wr_id;
    struct ibv_send_wr *next;
    struct ibv_sge *sg_list;
    int num_sge;
    enum ibv_wr_opcode opcode;
    unsigned int send_flags; /* enum ibv_send_flags */
    __extension__ union {
        __be32 imm_data;          /* _WITH_IMM */
        uint32_t invalidate_rkey; /* _INV */
    };
    union {
        struct {
            uint64_t remote_addr;
            uint32_t rkey;
        } rdma;
        struct {
            uint64_t remote_addr, compare_add, swap;
            uint32_t rkey;
        } atomic;
        struct {
            struct ibv_ah *ah;
            uint32_t remote_qpn, remote_qkey;
        } ud;
    } wr;
    union {
        struct {
            uint32_t remote_srqn;
        } xrc;
    } qp_type;
    __extension__ union {
        struct {
            struct ibv_mw *mw;
            uint32_t rkey;
            struct ibv_mw_bind_info bind_info;
        } bind_mw;
        struct {
            void *hdr;
            uint16_t hdr_sz, mss; /* bytes */
        } tso;
    };
};

struct ibv_recv_wr { /* man ibv_post_recv */
    uint64_t wr_id;
    struct ibv_recv_wr *next;
    struct ibv_sge *sg_list;
    int num_sge;
};

/* Operations on the matching list of a tag matching SRQ. */
enum ibv_ops_wr_opcode { IBV_WR_TAG_ADD, IBV_WR_TAG_DEL, IBV_WR_TAG_SYNC };
enum ibv_ops_flags { IBV_OPS_SIGNALED = 1 << 0, IBV_OPS_TM_SYNC = 1 << 1 };
struct ibv_ops_wr { /* man ibv_post_srq_ops */
    uint64_t wr_id;
    struct ibv_ops_wr *next;
    enum ibv_ops_wr_opcode opcode;
    int flags; /* enum ibv_ops_flags */
    struct {
        uint32_t unexpected_cnt, handle /* ADD: written; DEL: read */;
        struct {
            uint64_t recv_wr_id;
            struct ibv_sge *sg_list;
            int num_sge;
            uint64_t tag, mask;
        } add;
    } tm;
};

/* ---------------------------------------------------------------- completions */

enum ibv_wc_status {
    IBV_WC_SUCCESS,
    IBV_WC_LOC_LEN_ERR,
    IBV_WC_LOC_QP_OP_ERR,
    IBV_WC_LOC_EEC_OP_ERR,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WC_MW_BIND_ERR,
    IBV_WC_BAD_RESP_ERR,
    IBV_WC_LOC_ACCESS_ERR,
    IBV_WC_REM_INV_REQ_ERR,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_OP_ERR,
    IBV_WC_RETRY_EXC_ERR,
    IBV_WC_RNR_RETRY_EXC_ERR,
    IBV_WC_LOC_RDD_VIOL_ERR,
    IBV_WC_REM_INV_RD_REQ_ERR,
    IBV_WC_REM_ABORT_ERR,
    IBV_WC_INV_EECN_ERR,
    IBV_WC_INV_EEC_STATE_ERR,
    IBV_WC_FATAL_ERR,
    IBV_WC_RESP_TIMEOUT_ERR,
    IBV_WC_GENERAL_ERR,
    IBV_WC_TM_ERR,
    IBV_WC_TM_RNDV_INCOMPLETE
};
enum ibv_wc_opcode {
    IBV_WC_SEND,
    IBV_WC_RDMA_WRITE,
    IBV_WC_RDMA_READ,
    IBV_WC_COMP_SWAP,
    IBV_WC_FETCH_ADD,
    IBV_WC_BIND_MW,
    IBV_WC_LOCAL_INV,
    IBV_WC_TSO,
    IBV_WC_FLUSH, /* newer than rdma-core 44 */
    IBV_WC_ATOMIC_WRITE,
    IBV_WC_RECV = 128, /* this bit is set in each that is of a receive */
    IBV_WC_RECV_RDMA_WITH_IMM,
    IBV_WC_TM_ADD,
    IBV_WC_TM_DEL,
    IBV_WC_TM_SYNC,
    IBV_WC_TM_RECV,
    IBV_WC_TM_NO_TAG,
    IBV_WC_DRIVER1,
    IBV_WC_DRIVER2,
    IBV_WC_DRIVER3
};
enum { IBV_WC_IP_CSUM_OK_SHIFT = 2 };
enum ibv_wc_flags {
    IBV_WC_GRH = 1 << 0,
    IBV_WC_WITH_IMM = 1 << 1,
    IBV_WC_IP_CSUM_OK = 1 << 2,
    IBV_WC_WITH_INV = 1 << 3,
    IBV_WC_TM_SYNC_REQ = 1 << 4,
    IBV_WC_TM_MATCH = 1 << 5,
    IBV_WC_TM_DATA_VALID = 1 << 6
};

struct ibv_wc { /* man ibv_poll_cq; of one that failed: wr_id, status, vendor_err and qp_num alone */
    uint64_t wr_id;
    enum ibv_wc_status status;
    enum ibv_wc_opcode opcode;
    uint32_t vendor_err, byte_len;
    __extension__ union {
        __be32 imm_data;           /* IBV_WC_WITH_IMM */
        uint32_t invalidated_rkey; /* IBV_WC_WITH_INV */
    };
    uint32_t qp_num, src_qp;
    unsigned int wc_flags; /* enum ibv_wc_flags */
    uint16_t pkey_index, slid;
    uint8_t sl, dlid_path_bits;
};

#endif
