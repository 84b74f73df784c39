/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs/queues.h: completion queues, shared receive queues, work queues, queue pairs: attributes and objects.
 *
 * mutex, cond and the counts of events behind them are the library's.
 */
#ifndef RNIC_VERBS_QUEUES_H
#define RNIC_VERBS_QUEUES_H

#include <infiniband/verbs/device.h>
#include <infiniband/verbs/work.h>

/* ---------------------------------------------------------------- completion queues */

struct ibv_comp_channel { /* man ibv_create_comp_channel */
    struct ibv_context *context;
    int fd, refcnt;
};
struct ibv_cq { /* man ibv_create_cq */
    struct ibv_context *context;
    struct ibv_comp_channel *channel;
    void *cq_context;
    uint32_t handle;
    int cqe;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t comp_events_completed, async_events_completed;
};

enum ibv_create_cq_wc_flags { /* what can be read of its completions */
                              IBV_WC_EX_WITH_BYTE_LEN = 1 << 0,
                              IBV_WC_EX_WITH_IMM = 1 << 1,
                              IBV_WC_EX_WITH_QP_NUM = 1 << 2,
                              IBV_WC_EX_WITH_SRC_QP = 1 << 3,
                              IBV_WC_EX_WITH_SLID = 1 << 4,
                              IBV_WC_EX_WITH_SL = 1 << 5,
                              IBV_WC_EX_WITH_DLID_PATH_BITS = 1 << 6,
                              IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 1 << 7,
                              IBV_WC_EX_WITH_CVLAN = 1 << 8,
                              IBV_WC_EX_WITH_FLOW_TAG = 1 << 9,
                              IBV_WC_EX_WITH_TM_INFO = 1 << 10,
                              IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11
};
enum { IBV_WC_STANDARD_FLAGS = 0x7f };       /* what struct ibv_wc has: BYTE_LEN to DLID_PATH_BITS */
enum { IBV_CREATE_CQ_SUP_WC_FLAGS = 0xfff }; /* all */

enum ibv_cq_init_attr_mask { IBV_CQ_INIT_ATTR_MASK_FLAGS = 1 << 0, IBV_CQ_INIT_ATTR_MASK_PD = 1 << 1 };
enum ibv_create_cq_attr_flags {
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1 << 0,
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 1 << 1
};
struct ibv_cq_init_attr_ex { /* man ibv_create_cq_ex */
    uint32_t cqe;            /* at least so many */
    void *cq_context;
    struct ibv_comp_channel *channel; /* or NULL */
    uint32_t comp_vector;
    uint64_t wc_flags;  /* enum ibv_create_cq_wc_flags */
    uint32_t comp_mask; /* enum ibv_cq_init_attr_mask */
    uint32_t flags;     /* enum ibv_create_cq_attr_flags */
    struct ibv_pd *parent_domain;
};

enum ibv_cq_attr_mask { IBV_CQ_ATTR_MODERATE = 1 << 0, IBV_CQ_ATTR_RESERVED = 1 << 1 };
struct ibv_moderate_cq {
    uint16_t cq_count, cq_period; /* completions; microseconds */
};
struct ibv_modify_cq_attr { /* man ibv_modify_cq */
    uint32_t attr_mask;     /* enum ibv_cq_attr_mask */
    struct ibv_moderate_cq moderate;
};

/* ---------------------------------------------------------------- shared receive queues */

enum ibv_srq_attr_mask { IBV_SRQ_MAX_WR = 1 << 0, IBV_SRQ_LIMIT = 1 << 1 };
struct ibv_srq_attr {
    uint32_t max_wr, max_sge, srq_limit;
};
struct ibv_srq_init_attr { /* man ibv_create_srq */
    void *srq_context;
    struct ibv_srq_attr attr;
};

enum ibv_srq_type { IBV_SRQT_BASIC, IBV_SRQT_XRC, IBV_SRQT_TM };
enum ibv_srq_init_attr_mask {
    IBV_SRQ_INIT_ATTR_TYPE = 1 << 0,
    IBV_SRQ_INIT_ATTR_PD = 1 << 1,
    IBV_SRQ_INIT_ATTR_XRCD = 1 << 2,
    IBV_SRQ_INIT_ATTR_CQ = 1 << 3,
    IBV_SRQ_INIT_ATTR_TM = 1 << 4,
    IBV_SRQ_INIT_ATTR_RESERVED = 1 << 5
};
struct ibv_tm_cap {
    uint32_t max_num_tags, max_ops;
};
struct ibv_srq_init_attr_ex { /* man ibv_create_srq_ex; begins as struct ibv_srq_init_attr */
    void *srq_context;
    struct ibv_srq_attr attr;
    uint32_t comp_mask; /* enum ibv_srq_init_attr_mask */
    enum ibv_srq_type srq_type;
    struct ibv_pd *pd;
    struct ibv_xrcd *xrcd;
    struct ibv_cq *cq;
    struct ibv_tm_cap tm_cap;
};

struct ibv_srq {
    struct ibv_context *context;
    void *srq_context;
    struct ibv_pd *pd;
    uint32_t handle;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t events_completed;
};

/* ---------------------------------------------------------------- work queues */

enum ibv_wq_type { IBV_WQT_RQ };
enum ibv_wq_state { IBV_WQS_RESET, IBV_WQS_RDY, IBV_WQS_ERR, IBV_WQS_UNKNOWN };
enum ibv_wq_flags {
    IBV_WQ_FLAGS_CVLAN_STRIPPING = 1 << 0,
    IBV_WQ_FLAGS_SCATTER_FCS = 1 << 1,
    IBV_WQ_FLAGS_DELAY_DROP = 1 << 2,
    IBV_WQ_FLAGS_PCI_WRITE_END_PADDING = 1 << 3,
    IBV_WQ_FLAGS_RESERVED = 1 << 4
};
enum ibv_wq_init_attr_mask { IBV_WQ_INIT_ATTR_FLAGS = 1 << 0, IBV_WQ_INIT_ATTR_RESERVED = 1 << 1 };
struct ibv_wq_init_attr { /* man ibv_create_wq */
    void *wq_context;
    enum ibv_wq_type wq_type;
    uint32_t max_wr, max_sge;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    uint32_t comp_mask /* enum ibv_wq_init_attr_mask */, create_flags /* enum ibv_wq_flags */;
};

enum ibv_wq_attr_mask {
    IBV_WQ_ATTR_STATE = 1 << 0,
    IBV_WQ_ATTR_CURR_STATE = 1 << 1,
    IBV_WQ_ATTR_FLAGS = 1 << 2,
    IBV_WQ_ATTR_RESERVED = 1 << 3
};
struct ibv_wq_attr {    /* man ibv_modify_wq */
    uint32_t attr_mask; /* enum ibv_wq_attr_mask */
    enum ibv_wq_state wq_state, curr_wq_state;
    uint32_t flags, flags_mask; /* enum ibv_wq_flags; which of them count */
};

struct ibv_wq {
    struct ibv_context *context;
    void *wq_context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    uint32_t wq_num, handle;
    enum ibv_wq_state state;
    enum ibv_wq_type wq_type;
    int (*post_recv)(struct ibv_wq *current, struct ibv_recv_wr *recv_wr, struct ibv_recv_wr **bad_recv_wr);
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t events_completed, comp_mask;
};

/* The table that a hash of a packet chooses its work queue from. */
enum ibv_ind_table_init_attr_mask { IBV_CREATE_IND_TABLE_RESERVED = 1 };
struct ibv_rwq_ind_table_init_attr { /* man ibv_create_rwq_ind_table */
    uint32_t log_ind_tbl_size;
    struct ibv_wq **ind_tbl;
    uint32_t comp_mask;
};
struct ibv_rwq_ind_table {
    struct ibv_context *context;
    int ind_tbl_handle, ind_tbl_num;
    uint32_t comp_mask;
};
struct ibv_rx_hash_conf {
    uint8_t rx_hash_function; /* enum ibv_rx_hash_function_flags */
    uint8_t rx_hash_key_len, *rx_hash_key;
    uint64_t rx_hash_fields_mask; /* enum ibv_rx_hash_fields */
};

/* ---------------------------------------------------------------- queue pairs */

enum ibv_qp_type {
    IBV_QPT_RC = 2,
    IBV_QPT_UC = 3,
    IBV_QPT_UD = 4,
    IBV_QPT_RAW_PACKET = 8,
    IBV_QPT_XRC_SEND = 9,
    IBV_QPT_XRC_RECV = 10,
    IBV_QPT_DRIVER = 255
};
struct ibv_qp_cap {
    uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data /* bytes */;
};
struct ibv_qp_init_attr { /* man ibv_create_qp */
    void *qp_context;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_srq *srq;
    struct ibv_qp_cap cap;
    enum ibv_qp_type qp_type;
    int sq_sig_all; /* 1: each send completes, flagged or not */
};

enum ibv_qp_init_attr_mask {
    IBV_QP_INIT_ATTR_PD = 1 << 0,
    IBV_QP_INIT_ATTR_XRCD = 1 << 1,
    IBV_QP_INIT_ATTR_CREATE_FLAGS = 1 << 2,
    IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 1 << 3,
    IBV_QP_INIT_ATTR_IND_TABLE = 1 << 4,
    IBV_QP_INIT_ATTR_RX_HASH = 1 << 5,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6
};
enum ibv_qp_create_flags {
    IBV_QP_CREATE_BLOCK_SELF_MCAST_LB = 1 << 1,
    IBV_QP_CREATE_SCATTER_FCS = 1 << 8,
    IBV_QP_CREATE_CVLAN_STRIPPING = 1 << 9,
    IBV_QP_CREATE_SOURCE_QPN = 1 << 10,
    IBV_QP_CREATE_PCI_WRITE_END_PADDING = 1 << 11
};
enum ibv_qp_create_send_ops_flags { /* the ibv_wr_ calls that it will be used with */
                                    IBV_QP_EX_WITH_RDMA_WRITE = 1 << 0,
                                    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 1 << 1,
                                    IBV_QP_EX_WITH_SEND = 1 << 2,
                                    IBV_QP_EX_WITH_SEND_WITH_IMM = 1 << 3,
                                    IBV_QP_EX_WITH_RDMA_READ = 1 << 4,
                                    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 1 << 5,
                                    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 1 << 6,
                                    IBV_QP_EX_WITH_LOCAL_INV = 1 << 7,
                                    IBV_QP_EX_WITH_BIND_MW = 1 << 8,
                                    IBV_QP_EX_WITH_SEND_WITH_INV = 1 << 9,
                                    IBV_QP_EX_WITH_TSO = 1 << 10,
                                    IBV_QP_EX_WITH_FLUSH = 1 << 11, /* newer than rdma-core 44 */
                                    IBV_QP_EX_WITH_ATOMIC_WRITE = 1 << 12
};
struct ibv_qp_init_attr_ex { /* man ibv_create_qp_ex; begins as struct ibv_qp_init_attr */
    void *qp_context;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_srq *srq;
    struct ibv_qp_cap cap;
    enum ibv_qp_type qp_type;
    int sq_sig_all;
    uint32_t comp_mask; /* enum ibv_qp_init_attr_mask */
    struct ibv_pd *pd;
    struct ibv_xrcd *xrcd;
    uint32_t create_flags;   /* enum ibv_qp_create_flags */
    uint16_t max_tso_header; /* bytes */
    struct ibv_rwq_ind_table *rwq_ind_tbl;
    struct ibv_rx_hash_conf rx_hash_conf;
    uint32_t source_qpn;
    uint64_t send_ops_flags; /* enum ibv_qp_create_send_ops_flags */
};

enum ibv_qp_open_attr_mask {
    IBV_QP_OPEN_ATTR_NUM = 1 << 0,
    IBV_QP_OPEN_ATTR_XRCD = 1 << 1,
    IBV_QP_OPEN_ATTR_CONTEXT = 1 << 2,
    IBV_QP_OPEN_ATTR_TYPE = 1 << 3,
    IBV_QP_OPEN_ATTR_RESERVED = 1 << 4
};
struct ibv_qp_open_attr { /* man ibv_open_qp */
    uint32_t comp_mask;   /* enum ibv_qp_open_attr_mask */
    uint32_t qp_num;
    struct ibv_xrcd *xrcd;
    void *qp_context;
    enum ibv_qp_type qp_type;
};

enum ibv_qp_state {
    IBV_QPS_RESET,
    IBV_QPS_INIT,
    IBV_QPS_RTR,
    IBV_QPS_RTS,
    IBV_QPS_SQD,
    IBV_QPS_SQE,
    IBV_QPS_ERR,
    IBV_QPS_UNKNOWN
};
enum ibv_mig_state { IBV_MIG_MIGRATED, IBV_MIG_REARM, IBV_MIG_ARMED };
enum ibv_qp_attr_mask {
    IBV_QP_STATE = 1 << 0,
    IBV_QP_CUR_STATE = 1 << 1,
    IBV_QP_EN_SQD_ASYNC_NOTIFY = 1 << 2,
    IBV_QP_ACCESS_FLAGS = 1 << 3,
    IBV_QP_PKEY_INDEX = 1 << 4,
    IBV_QP_PORT = 1 << 5,
    IBV_QP_QKEY = 1 << 6,
    IBV_QP_AV = 1 << 7,
    IBV_QP_PATH_MTU = 1 << 8,
    IBV_QP_TIMEOUT = 1 << 9,
    IBV_QP_RETRY_CNT = 1 << 10,
    IBV_QP_RNR_RETRY = 1 << 11,
    IBV_QP_RQ_PSN = 1 << 12,
    IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
    IBV_QP_ALT_PATH = 1 << 14,
    IBV_QP_MIN_RNR_TIMER = 1 << 15,
    IBV_QP_SQ_PSN = 1 << 16,
    IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
    IBV_QP_PATH_MIG_STATE = 1 << 18,
    IBV_QP_CAP = 1 << 19,
    IBV_QP_DEST_QPN = 1 << 20,
    IBV_QP_RATE_LIMIT = 1 << 25
};
struct ibv_qp_attr { /* man ibv_modify_qp */
    enum ibv_qp_state qp_state, cur_qp_state;
    enum ibv_mtu path_mtu;
    enum ibv_mig_state path_mig_state;
    uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
    unsigned int qp_access_flags; /* enum ibv_access_flags */
    struct ibv_qp_cap cap;
    struct ibv_ah_attr ah_attr, alt_ah_attr;
    uint16_t pkey_index, alt_pkey_index;
    uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic;
    uint8_t min_rnr_timer, port_num, timeout; /* timers: codes of IBA 9.7.5.2.8 and 9.7.6.1.3 */
    uint8_t retry_cnt, rnr_retry, alt_port_num, alt_timeout;
    uint32_t rate_limit; /* kbit/s */
};
struct ibv_qp_rate_limit_attr { /* man ibv_modify_qp_rate_limit */
    uint32_t rate_limit /* kbit/s */, max_burst_sz /* bytes */;
    uint16_t typical_pkt_sz; /* bytes */
    uint32_t comp_mask;      /* 0 */
};
struct ibv_ece { /* enhanced connection establishment: man ibv_query_ece */
    uint32_t vendor_id /* IEEE OUI */, options /* the vendor's */, comp_mask;
};
/* ibv_query_qp_data_in_order (newer than rdma-core 44): with this flag the answer is of these bits. */
enum ibv_query_qp_data_in_order_flags { IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS = 1 };
enum ibv_query_qp_data_in_order_caps {
    IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG = 1 << 0,
    IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES = 1 << 1
};

struct ibv_qp {
    struct ibv_context *context;
    void *qp_context;
    struct ibv_pd *pd;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_srq *srq;
    uint32_t handle, qp_num;
    enum ibv_qp_state state;
    enum ibv_qp_type qp_type;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t events_completed;
};

#endif
