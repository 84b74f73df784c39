/* SPDX-License-Identifier: Apache-2.0
 *
 * nic.h: all that a binding may know of the device.
 *
 * Objects are opaque behind small public structs; every verb goes through one operations table (struct rnic_ops).
 * The software RNIC in this directory is its first implementation.  Values of enumerations and the fields of work
 * requests, scatter/gather elements, completions and attributes are libibverbs' own (man ibv_post_send, ...), so
 * that a provider over rdma-core, or a library with libibverbs' ABI, can sit on the same table.
 *
 * Conventions: functions return 0 (or a count) or a negative errno; on failure they write why into *err when err is
 * not NULL.  Times are nanoseconds of CLOCK_MONOTONIC.  No function here calls back into its caller.  All of them may
 * be called from any thread.
 */
#ifndef RNIC_NIC_H
#define RNIC_NIC_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "nic_raw.h"

/* ---------------------------------------------------------------- enumerations (X-macros: name, value) */

#define RNIC_QP_STATES(X) X(RESET, 0) X(INIT, 1) X(RTR, 2) X(RTS, 3) X(SQD, 4) X(SQE, 5) X(ERR, 6)

/* GSI is the kernel's: libibverbs gives QP1 to nobody. */
#define RNIC_QP_TYPES(X) X(GSI, 1) X(RC, 2) X(UC, 3) X(UD, 4) X(RAW_PACKET, 8) X(XRC_SEND, 9) X(XRC_RECV, 10)

#define RNIC_MTUS(X) X(MTU_256, 1) X(MTU_512, 2) X(MTU_1024, 3) X(MTU_2048, 4) X(MTU_4096, 5)

#define RNIC_MIG_STATES(X) X(MIGRATED, 0) X(REARM, 1) X(ARMED, 2)

#define RNIC_PORT_STATES(X) X(NOP, 0) X(DOWN, 1) X(INIT, 2) X(ARMED, 3) X(ACTIVE, 4) X(ACTIVE_DEFER, 5)

#define RNIC_LINK_LAYERS(X) X(UNSPECIFIED, 0) X(INFINIBAND, 1) X(ETHERNET, 2)

#define RNIC_GID_TYPES(X) X(IB, 0) X(ROCE_V1, 1) X(ROCE_V2, 2)

#define RNIC_TRANSPORTS(X) X(UNKNOWN, -1) X(IB, 0) X(IWARP, 1)

#define RNIC_NODE_TYPES(X) X(CA, 1) X(RNIC, 4)

#define RNIC_ATOMIC_CAPS(X) X(NONE, 0) X(HCA, 1) X(GLOB, 2)

#define RNIC_ACCESS_FLAGS(X)                                                                                           \
    X(LOCAL_WRITE, 1 << 0) X(REMOTE_WRITE, 1 << 1) X(REMOTE_READ, 1 << 2) X(REMOTE_ATOMIC, 1 << 3)                     \
    X(MW_BIND, 1 << 4) X(ZERO_BASED, 1 << 5) X(ON_DEMAND, 1 << 6) X(HUGETLB, 1 << 7) X(RELAXED_ORDERING, 1 << 20)      \
    X(FLUSH_GLOBAL, 1 << 8) X(FLUSH_PERSISTENT, 1 << 9)

#define RNIC_ATTR_MASKS(X)                                                                                             \
    X(STATE, 1 << 0) X(CUR_STATE, 1 << 1) X(EN_SQD_ASYNC_NOTIFY, 1 << 2) X(ACCESS_FLAGS, 1 << 3)                       \
    X(PKEY_INDEX, 1 << 4) X(PORT, 1 << 5) X(QKEY, 1 << 6) X(AV, 1 << 7) X(PATH_MTU, 1 << 8) X(TIMEOUT, 1 << 9)         \
    X(RETRY_CNT, 1 << 10) X(RNR_RETRY, 1 << 11) X(RQ_PSN, 1 << 12) X(MAX_QP_RD_ATOMIC, 1 << 13)                        \
    X(ALT_PATH, 1 << 14) X(MIN_RNR_TIMER, 1 << 15) X(SQ_PSN, 1 << 16) X(MAX_DEST_RD_ATOMIC, 1 << 17)                   \
    X(PATH_MIG_STATE, 1 << 18) X(CAP, 1 << 19) X(DEST_QPN, 1 << 20) X(RATE_LIMIT, 1 << 25)

#define RNIC_WR_OPCODES(X)                                                                                             \
    X(RDMA_WRITE, 0) X(RDMA_WRITE_WITH_IMM, 1) X(SEND, 2) X(SEND_WITH_IMM, 3) X(RDMA_READ, 4)                          \
    X(ATOMIC_CMP_AND_SWP, 5) X(ATOMIC_FETCH_AND_ADD, 6) X(LOCAL_INV, 7) X(BIND_MW, 8) X(SEND_WITH_INV, 9)              \
    X(TSO, 10) X(ATOMIC_WRITE, 15) X(FLUSH, 14)

#define RNIC_SRQ_ATTR_MASKS(X) X(MAX_WR, 1 << 0) X(LIMIT, 1 << 1)

#define RNIC_SRQ_TYPES(X) X(BASIC, 0) X(XRC, 1) X(TM, 2)

#define RNIC_SEND_FLAGS(X) X(FENCE, 1 << 0) X(SIGNALED, 1 << 1) X(SOLICITED, 1 << 2) X(INLINE, 1 << 3) X(IP_CSUM, 1 << 4)

#define RNIC_WC_STATUSES(X)                                                                                            \
    X(SUCCESS, 0) X(LOC_LEN_ERR, 1) X(LOC_QP_OP_ERR, 2) X(LOC_EEC_OP_ERR, 3) X(LOC_PROT_ERR, 4) X(WR_FLUSH_ERR, 5)     \
    X(MW_BIND_ERR, 6) X(BAD_RESP_ERR, 7) X(LOC_ACCESS_ERR, 8) X(REM_INV_REQ_ERR, 9) X(REM_ACCESS_ERR, 10)              \
    X(REM_OP_ERR, 11) X(RETRY_EXC_ERR, 12) X(RNR_RETRY_EXC_ERR, 13) X(LOC_RDD_VIOL_ERR, 14)                            \
    X(REM_INV_RD_REQ_ERR, 15) X(REM_ABORT_ERR, 16) X(INV_EECN_ERR, 17) X(INV_EEC_STATE_ERR, 18) X(FATAL_ERR, 19)       \
    X(RESP_TIMEOUT_ERR, 20) X(GENERAL_ERR, 21) X(TM_ERR, 22) X(TM_RNDV_INCOMPLETE, 23)

#define RNIC_WC_OPCODES(X)                                                                                             \
    X(SEND, 0) X(RDMA_WRITE, 1) X(RDMA_READ, 2) X(COMP_SWAP, 3) X(FETCH_ADD, 4) X(BIND_MW, 5) X(LOCAL_INV, 6)          \
    X(TSO, 7) X(FLUSH, 8) X(ATOMIC_WRITE, 9) X(RECV, 128) X(RECV_RDMA_WITH_IMM, 129) X(TM_ADD, 130) X(TM_DEL, 131)     \
    X(TM_SYNC, 132) X(TM_RECV, 133) X(TM_NO_TAG, 134)

#define RNIC_WC_FLAGS(X)                                                                                               \
    X(GRH, 1 << 0) X(WITH_IMM, 1 << 1) X(IP_CSUM_OK, 1 << 2) X(WITH_INV, 1 << 3) X(TM_SYNC_REQ, 1 << 4)                \
    X(TM_MATCH, 1 << 5) X(TM_DATA_VALID, 1 << 6)

/* Of a tag matching SRQ (ibv_post_srq_ops(3)). */
#define RNIC_OPS_WR_OPCODES(X) X(TAG_ADD, 0) X(TAG_DEL, 1) X(TAG_SYNC, 2)

#define RNIC_OPS_FLAGS(X) X(SIGNALED, 1 << 0) X(TM_SYNC, 1 << 1)

#define RNIC_TM_CAP_FLAGS(X) X(RC, 1 << 0)

#define RNIC_EVENT_TYPES(X)                                                                                            \
    X(CQ_ERR, 0) X(QP_FATAL, 1) X(QP_REQ_ERR, 2) X(QP_ACCESS_ERR, 3) X(COMM_EST, 4) X(SQ_DRAINED, 5) X(PATH_MIG, 6)    \
    X(PATH_MIG_ERR, 7) X(DEVICE_FATAL, 8) X(PORT_ACTIVE, 9) X(PORT_ERR, 10) X(LID_CHANGE, 11) X(PKEY_CHANGE, 12)       \
    X(SM_CHANGE, 13) X(SRQ_ERR, 14) X(SRQ_LIMIT_REACHED, 15) X(QP_LAST_WQE_REACHED, 16) X(CLIENT_REREGISTER, 17)       \
    X(GID_CHANGE, 18) X(WQ_FATAL, 19)

#define RNIC_DEVICE_CAPS(X)                                                                                            \
    X(CURR_QP_STATE_MOD, 1 << 7) X(PORT_ACTIVE_EVENT, 1 << 10) X(SYS_IMAGE_GUID, 1 << 11) X(RC_RNR_NAK_GEN, 1 << 12)   \
    X(SRQ_RESIZE, 1 << 13) X(N_NOTIFY_CQ, 1 << 14) X(MEM_WINDOW, 1 << 17) X(XRC, 1 << 20)                              \
    X(MEM_WINDOW_TYPE_2A, 1 << 23) X(MEM_WINDOW_TYPE_2B, 1 << 24) X(BAD_PKEY_CNTR, 1 << 1)                             \
    X(BAD_QKEY_CNTR, 1 << 2) X(AUTO_PATH_MIG, 1 << 4) X(RAW_IP_CSUM, 1 << 26) X(MANAGED_FLOW_STEERING, 1 << 29)

#define RNIC_MW_TYPES(X) X(TYPE_1, 1) X(TYPE_2, 2)

/* Completion queues: which fields of a completion an extended one keeps, and how it is created and modified. */
#define RNIC_CREATE_CQ_WC_FLAGS(X)                                                                                     \
    X(WITH_BYTE_LEN, 1 << 0) X(WITH_IMM, 1 << 1) X(WITH_QP_NUM, 1 << 2) X(WITH_SRC_QP, 1 << 3) X(WITH_SLID, 1 << 4)    \
    X(WITH_SL, 1 << 5) X(WITH_DLID_PATH_BITS, 1 << 6) X(WITH_COMPLETION_TIMESTAMP, 1 << 7) X(WITH_CVLAN, 1 << 8)       \
    X(WITH_FLOW_TAG, 1 << 9) X(WITH_TM_INFO, 1 << 10) X(WITH_COMPLETION_TIMESTAMP_WALLCLOCK, 1 << 11)

#define RNIC_CQ_INIT_ATTR_MASKS(X) X(FLAGS, 1 << 0) X(PD, 1 << 1)

#define RNIC_CREATE_CQ_ATTR_FLAGS(X) X(SINGLE_THREADED, 1 << 0) X(IGNORE_OVERRUN, 1 << 1)

#define RNIC_CQ_ATTR_MASKS(X) X(MODERATE, 1 << 0)

#define RNIC_VALUES_MASKS(X) X(RAW_CLOCK, 1 << 0)

#define RNIC_COUNTER_DESCRIPTIONS(X) X(PACKETS, 0) X(BYTES, 1)

#define RNIC_READ_COUNTERS_FLAGS(X) X(PREFER_CACHED, 1 << 0)

/* Completion counters (rdma-core 64: ibv_create_comp_cntr(3), ibv_qp_attach_comp_cntr(3)). */
#define RNIC_COMP_CNTR_TYPES(X) X(WRS, 0) X(BYTES, 1)

#define RNIC_COMP_CNTR_OPS(X)                                                                                          \
    X(SEND, 1 << 0) X(RECV, 1 << 1) X(RDMA_READ, 1 << 2) X(REMOTE_RDMA_READ, 1 << 3) X(RDMA_WRITE, 1 << 4)             \
    X(REMOTE_RDMA_WRITE, 1 << 5)

#define RNIC_REREG_MR_FLAGS(X) X(CHANGE_TRANSLATION, 1 << 0) X(CHANGE_PD, 1 << 1) X(CHANGE_ACCESS, 1 << 2)

#define RNIC_ODP_GENERAL_CAPS(X) X(SUPPORT, 1 << 0) X(SUPPORT_IMPLICIT, 1 << 1)

#define RNIC_ODP_TRANSPORT_CAPS(X)                                                                                     \
    X(SEND, 1 << 0) X(RECV, 1 << 1) X(WRITE, 1 << 2) X(READ, 1 << 3) X(ATOMIC, 1 << 4) X(SRQ_RECV, 1 << 5)

#define RNIC_ADVISE_MR_ADVICES(X) X(PREFETCH, 0) X(PREFETCH_WRITE, 1) X(PREFETCH_NO_FAULT, 2)

#define RNIC_ADVISE_MR_FLAGS(X) X(FLUSH, 1 << 0)

/* device_cap_flags_ex beyond 32 bits; the kernel's (rdma/ib_user_verbs.h) where libibverbs has no name. */
#define RNIC_DEVICE_CAPS_EX(X)                                                                                         \
    X(FLUSH_GLOBAL, 1ll << 38) X(FLUSH_PERSISTENT, 1ll << 39) X(ATOMIC_WRITE, 1ll << 40)

/* What a FLUSH makes sure of, and of which bytes (IBA A19.4.3; the kernel's ib_placement_type, ib_selectivity_level). */
#define RNIC_PLACEMENT_TYPES(X) X(GLOBAL, 1 << 0) X(PERSISTENT, 1 << 1)
#define RNIC_SELECTIVITY_LEVELS(X) X(RANGE, 0) X(MR, 1)

#define RNIC_QP_INIT_ATTR_MASKS(X)                                                                                     \
    X(PD, 1 << 0) X(XRCD, 1 << 1) X(CREATE_FLAGS, 1 << 2) X(MAX_TSO_HEADER, 1 << 3) X(IND_TABLE, 1 << 4)               \
    X(RX_HASH, 1 << 5) X(SEND_OPS_FLAGS, 1 << 6)

#define RNIC_QP_CREATE_FLAGS(X)                                                                                        \
    X(BLOCK_SELF_MCAST_LB, 1 << 1) X(SCATTER_FCS, 1 << 8) X(CVLAN_STRIPPING, 1 << 9) X(SOURCE_QPN, 1 << 10)            \
    X(PCI_WRITE_END_PADDING, 1 << 11)

#define RNIC_QP_SEND_OPS(X)                                                                                            \
    X(RDMA_WRITE, 1 << 0) X(RDMA_WRITE_WITH_IMM, 1 << 1) X(SEND, 1 << 2) X(SEND_WITH_IMM, 1 << 3) X(RDMA_READ, 1 << 4) \
    X(ATOMIC_CMP_AND_SWP, 1 << 5) X(ATOMIC_FETCH_AND_ADD, 1 << 6) X(LOCAL_INV, 1 << 7) X(BIND_MW, 1 << 8)              \
    X(SEND_WITH_INV, 1 << 9) X(TSO, 1 << 10) X(FLUSH, 1 << 11) X(ATOMIC_WRITE, 1 << 12)

/* Counters of a device and of a QP (struct rnic_counters): name, what it counts. */
#define RNIC_COUNTERS(X)                                                                                               \
    X(tx_packets, "packets handed to the link, retransmissions included")                                              \
    X(tx_bytes, "bytes handed to the link, from the BTH to the ICRC, or of whole frames")                              \
    X(tx_syscalls, "sendmsg calls")                                                                                    \
    X(tx_errors, "packets that the socket refused")                                                                    \
    X(rx_packets, "packets taken from the link, dropped ones included")                                                \
    X(rx_bytes, "bytes taken from the link, from the BTH to the ICRC, or of whole frames")                             \
    X(rx_syscalls, "recvmsg calls that returned data")                                                                 \
    X(requests_sent, "request packets sent for the first time")                                                        \
    X(requests_resent, "request packets sent again")                                                                   \
    X(probes_sent, "of these, the ones that ask for an answer that is late")                                           \
    X(requests_executed, "request packets executed in order")                                                          \
    X(responses_sent, "READ response and atomic acknowledge packets sent")                                             \
    X(acks_sent, "ACK packets sent")                                                                                   \
    X(acks_received, "ACK packets received")                                                                           \
    X(nak_seq_sent, "NAK PSN sequence error sent")                                                                     \
    X(nak_seq_received, "NAK PSN sequence error received")                                                             \
    X(nak_remote_sent, "NAK invalid request, remote access or operational error sent")                                 \
    X(nak_remote_received, "NAK invalid request, remote access or operational error received")                         \
    X(rnr_nak_sent, "RNR NAK sent")                                                                                    \
    X(rnr_nak_received, "RNR NAK received")                                                                            \
    X(timeouts, "transport timers that expired")                                                                       \
    X(duplicate_requests, "requests that came again: answered, not executed again")                                    \
    X(out_of_sequence, "requests beyond the expected PSN")                                                             \
    X(implied_naks, "responses that showed that an earlier one was lost")                                              \
    X(forwarded_out, "packets handed to another process of this host")                                                 \
    X(forwarded_in, "packets received from another process of this host")                                              \
    X(cm_refused, "CM requests answered with a refusal because nobody on this host listens")                           \
    X(port_remaps, "times this context rebuilt the packet steering of the shared port")                                \
    X(unfit_ip_ids, "addresses whose IP headers this kernel fills otherwise than the ICRC needs")                      \
    X(fault_lost, "packets that the fault injector lost")                                                              \
    X(fault_duplicated, "packets that the fault injector sent twice")                                                  \
    X(fault_reordered, "packets that the fault injector held back behind later ones")                                  \
    X(fault_delayed, "packets that the fault injector delayed")                                                        \
    X(fault_flipped, "packets in which the fault injector flipped a bit")                                              \
    X(fault_marked, "packets that the fault injector marked as having met congestion")                                 \
    X(ecn_marked, "packets received with a mark of congestion")                                                        \
    X(cnp_sent, "congestion notifications sent")                                                                       \
    X(cnp_handled, "congestion notifications received")                                                                \
    X(local_sent, "packets that went to processes of this host by shared memory")                                      \
    X(local_received, "packets that came from processes of this host by shared memory")                                \
    RNIC_DROPS(X)

/* Every dropped packet has a reason. */
#define RNIC_DROPS(X)                                                                                                  \
    X(drop_short, "shorter than its headers, or a length that its opcode cannot have")                                 \
    X(drop_bad_version, "transport header version is not 0")                                                           \
    X(drop_bad_opcode, "opcode unknown, or not of the QP's service")                                                   \
    X(drop_bad_pkey, "partition key does not match")                                                                   \
    X(drop_bad_icrc, "ICRC wrong")                                                                                     \
    X(drop_bad_qpn, "no such queue pair here")                                                                         \
    X(drop_bad_source, "not from the queue pair's peer address")                                                       \
    X(drop_bad_state, "queue pair is not in a state that receives this")                                               \
    X(drop_bad_psn, "response PSN outside what is outstanding")                                                        \
    X(drop_duplicate, "duplicate READ or atomic whose saved result is gone")                                           \
    X(drop_resources, "no room to queue a response")                                                                   \
    X(drop_malformed, "headers contradict each other")                                                                 \
    X(drop_slot_full, "for a process whose forwarding queue is full")                                                  \
    X(drop_no_slot, "for a process that is not there (any more)")                                                      \
    X(drop_incomplete, "part of an unreliable message that has lost another one")                                      \
    X(drop_too_long, "unreliable message that is longer than its receive")                                             \
    X(drop_access, "unreliable WRITE that the memory region or the queue pair does not grant")                         \
    X(drop_bad_qkey, "datagram with another Q_Key than the queue pair's")                                              \
    X(drop_no_receive, "datagram or unreliable message for a queue pair that has no receive posted")                   \
    X(drop_no_flow, "frame that no flow rule gives to a queue pair")                                                   \
    X(drop_flow_rule, "frame that a flow rule says to drop")

#define RNIC_ENUM_QP_STATE(n, v) RNIC_QPS_##n = v,
enum rnic_qp_state { RNIC_QP_STATES(RNIC_ENUM_QP_STATE) };
#define RNIC_ENUM_QP_TYPE(n, v) RNIC_QPT_##n = v,
enum rnic_qp_type { RNIC_QP_TYPES(RNIC_ENUM_QP_TYPE) };
#define RNIC_ENUM_MTU(n, v) RNIC_##n = v,
enum rnic_mtu { RNIC_MTUS(RNIC_ENUM_MTU) };
#define RNIC_ENUM_MIG(n, v) RNIC_MIG_##n = v,
enum rnic_mig_state { RNIC_MIG_STATES(RNIC_ENUM_MIG) };
#define RNIC_ENUM_PORT(n, v) RNIC_PORT_##n = v,
enum rnic_port_state { RNIC_PORT_STATES(RNIC_ENUM_PORT) };
#define RNIC_ENUM_LINK(n, v) RNIC_LINK_LAYER_##n = v,
enum rnic_link_layer { RNIC_LINK_LAYERS(RNIC_ENUM_LINK) };
#define RNIC_ENUM_GIDT(n, v) RNIC_GID_TYPE_##n = v,
enum rnic_gid_type { RNIC_GID_TYPES(RNIC_ENUM_GIDT) };
#define RNIC_ENUM_TRANSPORT(n, v) RNIC_TRANSPORT_##n = v,
enum rnic_transport { RNIC_TRANSPORTS(RNIC_ENUM_TRANSPORT) };
#define RNIC_ENUM_NODE(n, v) RNIC_NODE_##n = v,
enum rnic_node_type { RNIC_NODE_TYPES(RNIC_ENUM_NODE) };
#define RNIC_ENUM_ATOMIC(n, v) RNIC_ATOMIC_##n = v,
enum rnic_atomic_cap { RNIC_ATOMIC_CAPS(RNIC_ENUM_ATOMIC) };
#define RNIC_ENUM_ACCESS(n, v) RNIC_ACCESS_##n = v,
enum rnic_access_flags { RNIC_ACCESS_FLAGS(RNIC_ENUM_ACCESS) };
#define RNIC_ENUM_ATTR(n, v) RNIC_QP_##n = v,
enum rnic_qp_attr_mask { RNIC_ATTR_MASKS(RNIC_ENUM_ATTR) };
#define RNIC_ENUM_SRQ(n, v) RNIC_SRQ_##n = v,
enum rnic_srq_attr_mask { RNIC_SRQ_ATTR_MASKS(RNIC_ENUM_SRQ) };
#define RNIC_ENUM_SRQT(n, v) RNIC_SRQT_##n = v,
enum rnic_srq_type { RNIC_SRQ_TYPES(RNIC_ENUM_SRQT) };
#define RNIC_ENUM_WR(n, v) RNIC_WR_##n = v,
enum rnic_wr_opcode { RNIC_WR_OPCODES(RNIC_ENUM_WR) };
#define RNIC_ENUM_SEND(n, v) RNIC_SEND_##n = v,
enum rnic_send_flags { RNIC_SEND_FLAGS(RNIC_ENUM_SEND) };
#define RNIC_ENUM_WCS(n, v) RNIC_WC_##n = v,
enum rnic_wc_status { RNIC_WC_STATUSES(RNIC_ENUM_WCS) };
#define RNIC_ENUM_WCO(n, v) RNIC_WCO_##n = v,
enum rnic_wc_opcode { RNIC_WC_OPCODES(RNIC_ENUM_WCO) };
#define RNIC_ENUM_WCF(n, v) RNIC_WCF_##n = v,
enum rnic_wc_flags { RNIC_WC_FLAGS(RNIC_ENUM_WCF) };
#define RNIC_ENUM_OPS_WR(n, v) RNIC_WR_##n = v,
enum rnic_ops_wr_opcode { RNIC_OPS_WR_OPCODES(RNIC_ENUM_OPS_WR) };
#define RNIC_ENUM_OPS_FLAG(n, v) RNIC_OPS_##n = v,
enum rnic_ops_flags { RNIC_OPS_FLAGS(RNIC_ENUM_OPS_FLAG) };
#define RNIC_ENUM_TM_CAP(n, v) RNIC_TM_CAP_##n = v,
enum rnic_tm_cap_flags { RNIC_TM_CAP_FLAGS(RNIC_ENUM_TM_CAP) };
#define RNIC_ENUM_EVENT(n, v) RNIC_EVENT_##n = v,
enum rnic_event_type { RNIC_EVENT_TYPES(RNIC_ENUM_EVENT) };
#define RNIC_ENUM_CAP(n, v) RNIC_DEVICE_##n = v,
enum rnic_device_cap { RNIC_DEVICE_CAPS(RNIC_ENUM_CAP) };
#define RNIC_ENUM_WC_EX(n, v) RNIC_WC_EX_##n = v,
enum rnic_create_cq_wc_flags { RNIC_CREATE_CQ_WC_FLAGS(RNIC_ENUM_WC_EX) };
#define RNIC_ENUM_CQ_INIT(n, v) RNIC_CQ_INIT_ATTR_MASK_##n = v,
enum rnic_cq_init_attr_mask { RNIC_CQ_INIT_ATTR_MASKS(RNIC_ENUM_CQ_INIT) };
#define RNIC_ENUM_CQ_CREATE(n, v) RNIC_CREATE_CQ_ATTR_##n = v,
enum rnic_create_cq_attr_flags { RNIC_CREATE_CQ_ATTR_FLAGS(RNIC_ENUM_CQ_CREATE) };
#define RNIC_ENUM_CQ_ATTR(n, v) RNIC_CQ_ATTR_##n = v,
enum rnic_cq_attr_mask { RNIC_CQ_ATTR_MASKS(RNIC_ENUM_CQ_ATTR) };
#define RNIC_ENUM_VALUES(n, v) RNIC_VALUES_MASK_##n = v,
enum rnic_values_mask { RNIC_VALUES_MASKS(RNIC_ENUM_VALUES) };
#define RNIC_ENUM_DESCRIPTION(n, v) RNIC_COUNTER_##n = v,
enum rnic_counter_description { RNIC_COUNTER_DESCRIPTIONS(RNIC_ENUM_DESCRIPTION) };
#define RNIC_ENUM_READ_COUNTERS(n, v) RNIC_READ_COUNTERS_ATTR_##n = v,
enum rnic_read_counters_flags { RNIC_READ_COUNTERS_FLAGS(RNIC_ENUM_READ_COUNTERS) };
#define RNIC_ENUM_CNTR_TYPE(n, v) RNIC_COMP_CNTR_TYPE_##n = v,
enum rnic_comp_cntr_type { RNIC_COMP_CNTR_TYPES(RNIC_ENUM_CNTR_TYPE) };
#define RNIC_ENUM_CNTR_OP(n, v) RNIC_COMP_CNTR_OP_##n = v,
enum rnic_comp_cntr_op { RNIC_COMP_CNTR_OPS(RNIC_ENUM_CNTR_OP) };
#define RNIC_ENUM_REREG(n, v) RNIC_REREG_MR_##n = v,
enum rnic_rereg_mr_flags { RNIC_REREG_MR_FLAGS(RNIC_ENUM_REREG) };
#define RNIC_ENUM_ODP(n, v) RNIC_ODP_##n = v,
enum rnic_odp_general_caps { RNIC_ODP_GENERAL_CAPS(RNIC_ENUM_ODP) };
#define RNIC_ENUM_ODP_SUPPORT(n, v) RNIC_ODP_SUPPORT_##n = v,
enum rnic_odp_transport_cap_bits { RNIC_ODP_TRANSPORT_CAPS(RNIC_ENUM_ODP_SUPPORT) };
#define RNIC_ENUM_ADVICE(n, v) RNIC_ADVISE_MR_ADVICE_##n = v,
enum rnic_advise_mr_advice { RNIC_ADVISE_MR_ADVICES(RNIC_ENUM_ADVICE) };
#define RNIC_ENUM_ADVISE_FLAG(n, v) RNIC_ADVISE_MR_FLAG_##n = v,
enum rnic_advise_mr_flag { RNIC_ADVISE_MR_FLAGS(RNIC_ENUM_ADVISE_FLAG) };
#define RNIC_ENUM_MW(n, v) RNIC_MW_##n = v,
enum rnic_mw_type { RNIC_MW_TYPES(RNIC_ENUM_MW) };
enum rnic_device_cap_ex { RNIC_DEVICE_CAPS_EX(RNIC_ENUM_CAP) };
#define RNIC_ENUM_FLUSH(n, v) RNIC_FLUSH_##n = v,
enum rnic_placement_type { RNIC_PLACEMENT_TYPES(RNIC_ENUM_FLUSH) };
enum rnic_selectivity_level { RNIC_SELECTIVITY_LEVELS(RNIC_ENUM_FLUSH) };
#define RNIC_ENUM_INIT(n, v) RNIC_QP_INIT_ATTR_##n = v,
enum rnic_qp_init_attr_mask { RNIC_QP_INIT_ATTR_MASKS(RNIC_ENUM_INIT) };
#define RNIC_ENUM_CREATE(n, v) RNIC_QP_CREATE_##n = v,
enum rnic_qp_create_flags { RNIC_QP_CREATE_FLAGS(RNIC_ENUM_CREATE) };
#define RNIC_ENUM_OPS(n, v) RNIC_QP_EX_WITH_##n = v,
enum rnic_qp_create_send_ops_flags { RNIC_QP_SEND_OPS(RNIC_ENUM_OPS) };
#define RNIC_ENUM_COUNTER(n, t) RNIC_CNT_##n,
enum rnic_counter { RNIC_COUNTERS(RNIC_ENUM_COUNTER) RNIC_CNT_MAX };

/* Local causes behind a failed completion, in wc.vendor_err: what wc.status alone does not tell (name, text). */
#define RNIC_VENDOR_ERRS(X)                                                                                            \
    X(NONE, "")                                                                                                        \
    X(SGE_BAD_LKEY, "a scatter/gather element names an lkey that is not registered")                                   \
    X(SGE_BOUNDS, "a scatter/gather element reaches outside its memory region")                                        \
    X(SGE_PD, "a scatter/gather element's memory region belongs to another protection domain")                         \
    X(SGE_ACCESS, "a scatter/gather element's memory region lacks LOCAL_WRITE")                                        \
    X(RECV_TOO_SMALL, "the message was longer than the receive buffer")                                                \
    X(RKEY_BAD, "the rkey is not registered")                                                                          \
    X(RKEY_BOUNDS, "the remote address range reaches outside the memory region")                                       \
    X(RKEY_PD, "the memory region belongs to another protection domain than the queue pair")                           \
    X(RKEY_ACCESS, "the memory region, or the queue pair, does not grant this remote access")                          \
    X(ATOMIC_ALIGN, "the address of an atomic is not a multiple of 8")                                                 \
    X(NO_RD_ATOMIC, "READ or atomic, but max_rd_atomic (or the responder's max_dest_rd_atomic) is 0")                  \
    X(BAD_SEQUENCE, "a request's opcode does not follow from the one before")                                          \
    X(BAD_LENGTH, "a request's length contradicts its headers or the path MTU")                                        \
    X(BAD_RESPONSE, "a response contradicts its request")                                                              \
    X(NAK_INVALID, "the peer answered NAK invalid request")                                                            \
    X(NAK_ACCESS, "the peer answered NAK remote access error")                                                         \
    X(NAK_OPERATION, "the peer answered NAK remote operational error")                                                 \
    X(TIMEOUT, "the peer did not answer, retry_cnt times")                                                             \
    X(SEQ_RETRY, "the peer kept reporting lost packets, retry_cnt times")                                              \
    X(RNR, "the peer had no receive posted, rnr_retry times")                                                          \
    X(FLUSHED, "the queue pair was in the error state")                                                                \
    X(CQ_OVERRUN, "a completion queue was full")                                                                       \
    X(XRC_SRQ, "a request names no shared receive queue of the XRC domain, or another one than its message began with")\
    X(SGE_UNMAPPED, "a scatter/gather element's pages are not mapped, or not for this access")                         \
    X(RKEY_UNMAPPED, "the pages behind the rkey are not mapped, or not for this access")                              \
    X(WINDOW_GONE, "no memory window has this rkey (any more)")                                                        \
    X(WINDOW_FREE, "the memory window is not bound")                                                                   \
    X(WINDOW_QP, "the memory window of type 2 was bound through another queue pair")                                   \
    X(WINDOW_BOUND, "the memory window of type 2 is bound: invalidate it before it is bound again")                    \
    X(WINDOW_TYPE, "a memory window of type 1 is not invalidated, but bound with length 0")                            \
    X(BIND_REGION, "the memory region to bind to is not registered (any more)")                                        \
    X(BIND_PD, "queue pair, memory window and memory region are not all of one protection domain")                     \
    X(BIND_ACCESS, "the memory region lacks MW_BIND or, for a window that is written to, LOCAL_WRITE")                 \
    X(BIND_BOUNDS, "the memory window reaches outside the memory region, or is of type 2 and empty")                   \
    X(INVALIDATE_REGION, "the key is a memory region's, which is deregistered, not invalidated")
#define RNIC_ENUM_VENDOR(n, t) RNIC_VE_##n,
enum rnic_vendor_err { RNIC_VENDOR_ERRS(RNIC_ENUM_VENDOR) RNIC_VE_MAX };

/* ---------------------------------------------------------------- attributes (fields as in libibverbs) */

struct rnic_err {
    char text[256]; /* why a call failed, one sentence without a full stop; "" when there is nothing to add */
};

union rnic_gid {
    uint8_t raw[16];
};

struct rnic_device_info { /* a device as listed, before it is opened */
    char name[32];        /* roce_<netdev> */
    char netdev[16];
    uint64_t guid; /* EUI-64 of the netdev's hardware address; host byte order */
    int ifindex;
    int transport; /* enum rnic_transport */
    int node_type; /* enum rnic_node_type */
};

struct rnic_device_attr {
    char fw_ver[64];
    uint64_t node_guid, sys_image_guid; /* host byte order */
    uint64_t max_mr_size, page_size_cap;
    uint32_t vendor_id, vendor_part_id, hw_ver;
    int max_qp, max_qp_wr;
    uint32_t device_cap_flags;
    int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd;
    int max_qp_rd_atom, max_res_rd_atom, max_qp_init_rd_atom;
    int atomic_cap; /* enum rnic_atomic_cap */
    int max_mw, max_mcast_grp, max_mcast_qp_attach, max_ah, max_srq, max_srq_wr, max_srq_sge;
    uint16_t max_pkeys;
    uint8_t local_ca_ack_delay, phys_port_cnt;
    uint32_t max_inline_data; /* not in ibv_device_attr: the largest max_inline_data of a QP */
};

struct rnic_cq_moderation_caps {
    uint16_t max_cq_count, max_cq_period; /* completions; microseconds */
};

struct rnic_tm_caps {
    uint32_t max_rndv_hdr_size; /* bytes of a rendezvous request: headers, and what follows them */
    uint32_t max_num_tags, flags /* enum rnic_tm_cap_flags */, max_ops, max_sge;
};

struct rnic_odp_transport_caps { /* enum rnic_odp_transport_cap_bits */
    uint32_t rc_odp_caps, uc_odp_caps, ud_odp_caps;
};
struct rnic_odp_caps {     /* what may be done to memory that is registered ON_DEMAND */
    uint64_t general_caps; /* enum rnic_odp_general_caps */
    struct rnic_odp_transport_caps per_transport_caps;
};

struct rnic_packet_pacing_caps {
    uint32_t qp_rate_limit_min, qp_rate_limit_max; /* kbit/s */
    uint32_t supported_qpts;                       /* bits 1 << enum rnic_qp_type */
};

struct rnic_device_attr_ex { /* what libibverbs' query_device_ex tells, for the parts that this device has */
    struct rnic_device_attr orig_attr;
    struct rnic_odp_caps odp_caps;
    uint64_t completion_timestamp_mask; /* the bits of a timestamp that count; 0: completions carry no time */
    uint64_t hca_core_clock;            /* kHz: what a timestamp counts; 0: no clock can be read */
    uint64_t device_cap_flags_ex;       /* enum rnic_device_cap, enum rnic_device_cap_ex */
    struct rnic_cq_moderation_caps cq_mod_caps;
    struct rnic_tm_caps tm_caps;
    struct rnic_rss_caps rss_caps; /* nic_raw.h: frames */
    uint32_t max_wq_type_rq;
    uint32_t raw_packet_caps; /* enum rnic_raw_packet_caps */
    struct rnic_tso_caps tso_caps;
    uint32_t xrc_odp_caps;
    uint64_t max_dm_size; /* bytes of device memory in all */
    struct rnic_packet_pacing_caps packet_pacing_caps;
};

/* What a region is registered with, beyond struct rnic_pd, addr, length and access (ibv_mr_init_attr): one source of
 * memory, addr, or FD, DM, or ALLOC, and IOVA and LOCK as it may be. */
enum rnic_mr_init_mask {
    RNIC_MR_INIT_IOVA = 1 << 0,  /* requests name the first byte as iova */
    RNIC_MR_INIT_FD = 1 << 1,    /* the bytes from fd_offset on of a file descriptor, a dma-buf */
    RNIC_MR_INIT_DM = 1 << 2,    /* the bytes from fd_offset on of device memory */
    RNIC_MR_INIT_ALLOC = 1 << 3, /* the device's own making, as by alloc_mr */
    RNIC_MR_INIT_LOCK = 1 << 4,  /* in memory, not swapped (mlock) */
};
struct rnic_dm;
struct rnic_mr_init_attr {
    uint32_t comp_mask; /* enum rnic_mr_init_mask */
    uint32_t access;    /* enum rnic_access_flags */
    void *addr;
    uint64_t length, iova, fd_offset;
    int fd; /* the caller's to close */
    struct rnic_dm *dm;
};

struct rnic_values_ex {
    uint32_t comp_mask; /* enum rnic_values_mask: what is asked for; on return: what is there */
    struct timespec raw_clock;
};

struct rnic_port_attr {
    int state;               /* enum rnic_port_state */
    int max_mtu, active_mtu; /* enum rnic_mtu */
    int gid_tbl_len;
    uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
    uint16_t pkey_tbl_len, lid, sm_lid;
    uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state;
    uint8_t link_layer; /* enum rnic_link_layer */
    uint8_t flags;
};

struct rnic_gid_entry {
    union rnic_gid gid;
    uint32_t gid_index, port_num, gid_type, ndev_ifindex;
};

struct rnic_global_route {
    union rnic_gid dgid;
    uint32_t flow_label;
    uint8_t sgid_index, hop_limit, traffic_class;
};

struct rnic_ah_attr {
    struct rnic_global_route grh;
    uint16_t dlid;
    uint8_t sl, src_path_bits, static_rate, is_global, port_num;
};

struct rnic_qp_cap {
    uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
};

struct rnic_qp_attr {
    int qp_state, cur_qp_state; /* enum rnic_qp_state */
    int path_mtu;               /* enum rnic_mtu */
    int path_mig_state;         /* enum rnic_mig_state */
    uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
    uint32_t qp_access_flags;
    struct rnic_qp_cap cap;
    struct rnic_ah_attr ah_attr, alt_ah_attr;
    uint16_t pkey_index, alt_pkey_index;
    uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout;
    uint8_t retry_cnt, rnr_retry, alt_port_num, alt_timeout;
    uint32_t rate_limit;
};

/* ---------------------------------------------------------------- objects */

/* The public head of every object; a provider puts its own fields behind it. */
struct rnic_context {
    const struct rnic_ops *ops;
    int async_fd; /* readable while asynchronous events wait */
    int num_comp_vectors;
    int cmd_fd; /* whoever has a copy can import the context and what is in it; -1: this provider has none */
};
struct rnic_pd {
    struct rnic_context *ctx;
    struct rnic_pd *parent; /* of a parent domain: the protection domain that it stands for, else NULL */
    uint32_t handle;
};
/* Objects protect each other's memory by this one. */
static inline const struct rnic_pd *rnic_pd_root(const struct rnic_pd *pd) { return pd->parent ? pd->parent : pd; }
struct rnic_td { /* objects of one thread: a hint */
    struct rnic_context *ctx;
};
struct rnic_dm { /* memory of the device */
    struct rnic_context *ctx;
    uint64_t length;
    uint32_t handle;
};
struct rnic_mr {
    struct rnic_context *ctx;
    struct rnic_pd *pd;
    void *addr; /* where this process has the bytes; NULL: nowhere, or not for its own use */
    uint64_t length;
    uint32_t lkey, rkey;
    uint32_t handle;
    uint64_t iova; /* of the first byte, as requests name it: addr, 0 with ZERO_BASED, or as registered */
};
struct rnic_mw {
    struct rnic_context *ctx;
    struct rnic_pd *pd;
    uint32_t rkey; /* as the last bind that was posted makes it; the poster's, read by nobody else */
    int type;      /* enum rnic_mw_type */
};
struct rnic_comp_channel {
    struct rnic_context *ctx;
    int fd; /* readable while completion events wait */
};
struct rnic_cq {
    struct rnic_context *ctx;
    struct rnic_comp_channel *channel; /* or NULL */
    void *cq_context;                  /* the binding's; never read here */
    int cqe;                           /* capacity */
};
struct rnic_comp_cntr {
    struct rnic_context *ctx;
};
struct rnic_flow_counters { /* struct ibv_counters; rnic_counters are the device's own */
    struct rnic_context *ctx;
};
struct rnic_srq {
    struct rnic_context *ctx;
    struct rnic_pd *pd;
    void *srq_context; /* the binding's; never read here */
    uint32_t srq_num;  /* of an XRC one, else 0: what senders name it by, 24 bits */
};
struct rnic_xrcd { /* an XRC domain, as one opened it */
    struct rnic_context *ctx;
};
struct rnic_ah {
    struct rnic_context *ctx;
    struct rnic_pd *pd;
};
struct rnic_listener { /* not in libibverbs: who gets the CM requests for a service */
    struct rnic_context *ctx;
};
struct rnic_qp {
    struct rnic_context *ctx;
    struct rnic_pd *pd;
    struct rnic_cq *send_cq, *recv_cq;
    void *qp_context; /* the binding's; never read here */
    uint32_t qp_num;
    int qp_type; /* enum rnic_qp_type */
};

struct rnic_srq_attr {
    uint32_t max_wr, max_sge; /* as created or resized: what was granted, at least what was asked for */
    uint32_t srq_limit;       /* an event when fewer receives are left; 0: none */
};

struct rnic_qp_init_attr {
    void *qp_context;
    struct rnic_cq *send_cq, *recv_cq;
    struct rnic_srq *srq;
    struct rnic_qp_cap cap; /* on return: what was granted, at least what was asked for */
    int qp_type;            /* enum rnic_qp_type */
    int sq_sig_all;
    struct rnic_rwq_ind_table *rwq_ind_tbl; /* or NULL: spreads received frames by it; no recv_cq then */
    struct rnic_rx_hash_conf rx_hash_conf;  /* how */
};

struct rnic_xrcd_init_attr {
    int fd;     /* the domain is that of its inode; -1: of nobody else */
    int oflags; /* O_CREAT, O_EXCL */
};

struct rnic_tm_cap { /* of a tag matching SRQ */
    uint32_t max_num_tags, max_ops;
};

struct rnic_srq_init_attr_ex {
    void *srq_context;
    struct rnic_srq_attr attr; /* on return: what was granted */
    int srq_type;              /* enum rnic_srq_type */
    struct rnic_pd *pd;
    struct rnic_xrcd *xrcd; /* of an XRC one: whose queue pairs take from it, */
    struct rnic_cq *cq;     /* of that and of a tag matching one: where its receives complete */
    struct rnic_tm_cap tm_cap;
};

struct rnic_qp_open_attr {
    uint32_t qp_num;
    struct rnic_xrcd *xrcd;
    void *qp_context;
    int qp_type; /* enum rnic_qp_type: XRC_RECV */
};

/* What ibv_qp_init_attr_ex has behind the fields of ibv_qp_init_attr; pd is an argument. */
struct rnic_qp_init_attr_ex {
    struct rnic_qp_init_attr base;
    uint32_t comp_mask;    /* enum rnic_qp_init_attr_mask */
    uint32_t create_flags; /* enum rnic_qp_create_flags */
    uint32_t source_qpn;
    uint16_t max_tso_header;
    uint64_t send_ops_flags; /* enum rnic_qp_create_send_ops_flags */
};

struct rnic_qp_rate_limit_attr {
    uint32_t rate_limit;     /* kbit/s; 0: none */
    uint32_t max_burst_sz;   /* bytes; 0: the device's choice */
    uint16_t typical_pkt_sz; /* bytes; 0: the path MTU */
    uint32_t comp_mask;      /* 0 */
};

struct rnic_ece {
    uint32_t vendor_id, options, comp_mask;
};

struct rnic_sge {
    uint64_t addr;
    uint32_t length;
    uint32_t lkey;
};

struct rnic_mw_bind_info {
    struct rnic_mr *mr;
    uint64_t addr, length;
    uint32_t mw_access_flags; /* enum rnic_access_flags */
};

struct rnic_mw_bind {
    uint64_t wr_id;
    uint32_t send_flags; /* enum rnic_send_flags */
    struct rnic_mw_bind_info bind_info;
};

struct rnic_send_wr {
    uint64_t wr_id;
    struct rnic_send_wr *next;
    struct rnic_sge *sg_list;
    int num_sge;
    int opcode;          /* enum rnic_wr_opcode */
    uint32_t send_flags; /* enum rnic_send_flags */
    union {
        uint32_t imm_data; /* network byte order */
        uint32_t invalidate_rkey;
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
            struct rnic_ah *ah;
            uint32_t remote_qpn, remote_qkey;
        } ud;
        struct { /* not in libibverbs */
            uint64_t remote_addr;
            uint32_t length, rkey; /* bytes, of RANGE */
            uint8_t type;          /* enum rnic_placement_type */
            uint8_t level;         /* enum rnic_selectivity_level */
        } flush;
    } wr;
    union {
        struct {
            uint32_t remote_srqn;
        } xrc;
    } qp_type;
    union {
        struct {
            struct rnic_mw *mw;
            uint32_t rkey; /* the new one: its lower 8 bits are the poster's choice */
            struct rnic_mw_bind_info bind_info;
        } bind_mw;
    };
};

struct rnic_recv_wr {
    uint64_t wr_id;
    struct rnic_recv_wr *next;
    struct rnic_sge *sg_list;
    int num_sge;
};

/* An operation on the matching list of a tag matching SRQ. */
struct rnic_ops_wr {
    uint64_t wr_id;
    struct rnic_ops_wr *next;
    int opcode; /* enum rnic_ops_wr_opcode */
    int flags;  /* enum rnic_ops_flags */
    struct {
        uint32_t unexpected_cnt; /* with TM_SYNC, and of TAG_SYNC: messages without a match that were handled so far */
        uint32_t handle;         /* of TAG_DEL: what TAG_ADD wrote here */
        struct {
            uint64_t recv_wr_id;
            struct rnic_sge *sg_list;
            int num_sge;
            uint64_t tag, mask; /* a message matches if its tag & mask is tag */
        } add;
    } tm;
};

struct rnic_wc {
    uint64_t wr_id;
    int status;          /* enum rnic_wc_status */
    int opcode;          /* enum rnic_wc_opcode */
    uint32_t vendor_err; /* enum rnic_vendor_err */
    uint32_t byte_len;
    union {
        uint32_t imm_data; /* network byte order */
        uint32_t invalidated_rkey;
        uint32_t flow_tag; /* of the rule that gave a frame to the queue; 0: none (ibv_wc_read_flow_tag) */
    };
    uint32_t qp_num, src_qp;
    uint32_t wc_flags; /* enum rnic_wc_flags */
    uint16_t pkey_index, slid;
    uint8_t sl, dlid_path_bits;
};

struct rnic_cq_init_attr_ex {
    uint32_t cqe;
    void *cq_context;
    struct rnic_comp_channel *channel;
    uint32_t comp_vector; /* less than the context's num_comp_vectors */
    uint64_t wc_flags;    /* enum rnic_create_cq_wc_flags */
    uint32_t comp_mask;   /* enum rnic_cq_init_attr_mask: which of the following count */
    uint32_t flags;       /* enum rnic_create_cq_attr_flags */
    struct rnic_pd *parent_domain;
};

struct rnic_moderate_cq {
    uint16_t cq_count;  /* completions an event, 0: any number */
    uint16_t cq_period; /* microseconds that the first of them waits at most; 0: none waits */
};

struct rnic_modify_cq_attr {
    uint32_t attr_mask; /* enum rnic_cq_attr_mask */
    struct rnic_moderate_cq moderate;
};

/* What an extended completion queue keeps beside a completion; 0 where wc_flags do not ask for it. */
struct rnic_wc_ex {
    uint64_t raw;          /* when it came about, by the device's clock, see hca_core_clock */
    uint64_t wallclock_ns; /* the same since 1970 */
    uint64_t tag;          /* of the message that a tag matching SRQ has matched, */
    uint32_t tm_priv;      /* and its app_ctx */
};

struct rnic_counter_attach_attr {
    int counter_desc; /* enum rnic_counter_description */
    uint32_t index;   /* of the counter in its object */
    uint32_t comp_mask;
};

struct rnic_comp_cntr_init_attr {
    uint32_t comp_mask; /* 0 */
    int type;           /* enum rnic_comp_cntr_type */
    uint32_t flags;     /* 0 */
};

struct rnic_comp_cntr_caps {
    uint64_t max_value; /* the next increment goes on from 0 */
    uint32_t max_counters;
    uint32_t supported_qp_attach_ops; /* enum rnic_comp_cntr_op */
};

struct rnic_async_event {
    int event_type;  /* enum rnic_event_type */
    int port_num;    /* of port events, else 0 */
    uint32_t number; /* qp_num of QP events, wq_num of WQ events, 0 else */
    void *context;   /* qp_context, cq_context or srq_context of the object, NULL for port and device events */
};

struct rnic_counters {
    uint64_t value[RNIC_CNT_MAX]; /* index: enum rnic_counter */
};

/* Where a QP stands: for people who debug. */
struct rnic_qp_stats {
    struct rnic_counters counters;
    uint32_t snd_psn, snd_una, rcv_psn, msn; /* next PSN to send, oldest unacknowledged, expected, message number */
    uint32_t sq_depth, rq_depth;             /* work requests not yet completed */
    uint32_t window;                         /* bytes that may be in flight now */
    uint32_t in_flight;                      /* bytes that are */
    uint8_t retries_left, rnr_retries_left;
    uint64_t srtt; /* smoothed round trip time, ns; 0: not known yet */
    uint64_t rate; /* bytes a second that congestion control allows; 0: it does not limit */
};

/* The fault injector: what the link does to packets that it sends (all probabilities in parts per million). */
#define RNIC_FAULT_RULES 8
struct rnic_fault {
    uint64_t seed;
    uint32_t loss, duplicate, reorder, delay, flip;
    uint32_t reorder_gap; /* a reordered packet leaves after this many later ones (at least 1) or after delay_ns */
    uint64_t delay_ns;    /* how long a delayed packet waits */
    uint32_t mark;        /* as a congested router does, where the packet may be marked (ECN) */
    struct {
        int opcode;     /* of the BTH (enum in wire/opcode.h), -1: any */
        uint32_t nth;   /* lose the nth such packet from now on, counted from 1; 0: rule not used */
        uint32_t count; /* and this many after it, 1: only that one */
    } lose[RNIC_FAULT_RULES];
};

/* ---------------------------------------------------------------- the provider seam */

enum rnic_listen_flags {
    RNIC_LISTEN_REUSE = 1
        << 0, /* an exact address and the wildcard do not exclude each other; the exact one goes first */
    RNIC_LISTEN_AFONLY = 1 << 1, /* the wildcard :: is for IPv6 alone */
    RNIC_LISTEN_HOLD = 1 << 2,   /* nobody listens: the service is taken, and requests for it are refused */
};

struct rnic_open_attr {
    uint32_t rcvbuf;       /* bytes of socket buffer to ask for; 0: as much as the system grants */
    uint32_t max_window;   /* bytes in flight a QP; 0: from the granted socket buffer */
    uint32_t no_gso;       /* 1: one packet per system call */
    const uint16_t *pkeys; /* the P_Key table, num_pkeys entries; 0 of them: the default partition alone, 0xFFFF */
    uint32_t num_pkeys;
    int congestion; /* 1: control it, -1: not; 0: unless the netdev is the loopback, where nothing marks */
    int local;      /* 1: peers on this host are reached by shared memory, -1, 0: by the wire */
};

struct rnic_ops {
    const char *name;
    int (*close)(struct rnic_context *ctx, struct rnic_err *err);
    int (*query_device)(struct rnic_context *ctx, struct rnic_device_attr *attr, struct rnic_err *err);
    int (*query_port)(struct rnic_context *ctx, int port, struct rnic_port_attr *attr, struct rnic_err *err);
    int (*query_gid)(struct rnic_context *ctx, int port, int index, struct rnic_gid_entry *gid, struct rnic_err *err);
    int (*query_pkey)(struct rnic_context *ctx, int port, int index, uint16_t *pkey, struct rnic_err *err);
    int (*query_counters)(struct rnic_context *ctx, struct rnic_counters *out, struct rnic_err *err);
    int (*set_fault)(struct rnic_context *ctx, const struct rnic_fault *fault, struct rnic_err *err); /* NULL: off */

    int (*alloc_pd)(struct rnic_context *ctx, struct rnic_pd **pd, struct rnic_err *err);
    int (*dealloc_pd)(struct rnic_pd *pd, struct rnic_err *err);
    int (*reg_mr)(struct rnic_pd *pd, void *addr, uint64_t length, uint32_t access, struct rnic_mr **mr,
                  struct rnic_err *err);
    int (*alloc_mr)(struct rnic_pd *pd, uint64_t length, uint32_t access, struct rnic_mr **mr, struct rnic_err *err);
    int (*dereg_mr)(struct rnic_mr *mr, struct rnic_err *err);

    int (*create_comp_channel)(struct rnic_context *ctx, struct rnic_comp_channel **ch, struct rnic_err *err);
    int (*destroy_comp_channel)(struct rnic_comp_channel *ch, struct rnic_err *err);
    /* Takes one completion event; -EAGAIN when none waits (wait on ch->fd). */
    int (*get_cq_event)(struct rnic_comp_channel *ch, struct rnic_cq **cq, struct rnic_err *err);
    int (*create_cq)(struct rnic_context *ctx, int cqe, struct rnic_comp_channel *ch, uint32_t comp_vector,
                     void *cq_context, struct rnic_cq **cq, struct rnic_err *err);
    int (*resize_cq)(struct rnic_cq *cq, int cqe, struct rnic_err *err);
    int (*destroy_cq)(struct rnic_cq *cq, struct rnic_err *err);
    /* Count, or -EOVERFLOW after an overrun, -EINVAL after a fork, -EBUSY: it is SINGLE_THREADED and polled already. */
    int (*poll_cq)(struct rnic_cq *cq, int n, struct rnic_wc *wc);
    int (*req_notify_cq)(struct rnic_cq *cq, int solicited_only, struct rnic_err *err);
    int (*ack_cq_events)(struct rnic_cq *cq, unsigned n, struct rnic_err *err);

    int (*create_qp)(struct rnic_pd *pd, struct rnic_qp_init_attr *attr, struct rnic_qp **qp, struct rnic_err *err);
    int (*modify_qp)(struct rnic_qp *qp, const struct rnic_qp_attr *attr, uint32_t mask, struct rnic_err *err);
    int (*query_qp)(struct rnic_qp *qp, struct rnic_qp_attr *attr, struct rnic_qp_init_attr *init,
                    struct rnic_err *err);
    int (*query_qp_stats)(struct rnic_qp *qp, struct rnic_qp_stats *out, struct rnic_err *err);
    int (*destroy_qp)(struct rnic_qp *qp, struct rnic_err *err);
    /* All before *bad are posted, none from it on.  *bad is only written on failure. */
    int (*post_send)(struct rnic_qp *qp, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad,
                     struct rnic_err *err);
    int (*post_recv)(struct rnic_qp *qp, const struct rnic_recv_wr *wr, const struct rnic_recv_wr **bad,
                     struct rnic_err *err);

    int (*create_qp_ex)(struct rnic_pd *pd, struct rnic_qp_init_attr_ex *attr, struct rnic_qp **qp,
                        struct rnic_err *err);
    /* What ibv_wr_complete does: the whole chain is posted, or nothing of it. */
    int (*post_send_whole)(struct rnic_qp *qp, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad,
                           struct rnic_err *err);
    int (*modify_qp_rate_limit)(struct rnic_qp *qp, const struct rnic_qp_rate_limit_attr *attr, struct rnic_err *err);
    /* 1: the bytes of each such message become visible in order; 0: not. */
    int (*query_qp_data_in_order)(struct rnic_qp *qp, int opcode, uint32_t flags, struct rnic_err *err);
    int (*set_ece)(struct rnic_qp *qp, struct rnic_ece *ece, struct rnic_err *err); /* on return: what was accepted */
    int (*query_ece)(struct rnic_qp *qp, struct rnic_ece *ece, struct rnic_err *err);

    int (*create_srq)(struct rnic_pd *pd, void *srq_context, struct rnic_srq_attr *attr, struct rnic_srq **srq,
                      struct rnic_err *err);
    int (*modify_srq)(struct rnic_srq *srq, const struct rnic_srq_attr *attr,
                      uint32_t mask /* enum rnic_srq_attr_mask */, struct rnic_err *err);
    int (*query_srq)(struct rnic_srq *srq, struct rnic_srq_attr *attr, struct rnic_err *err);
    int (*destroy_srq)(struct rnic_srq *srq, struct rnic_err *err);
    int (*post_srq_recv)(struct rnic_srq *srq, const struct rnic_recv_wr *wr, const struct rnic_recv_wr **bad,
                         struct rnic_err *err);

    /* Operations on the matching list of a tag matching SRQ; of TAG_ADD tm.handle is written. As post_srq_recv. */
    int (*post_srq_ops)(struct rnic_srq *srq, struct rnic_ops_wr *wr, struct rnic_ops_wr **bad, struct rnic_err *err);

    int (*open_xrcd)(struct rnic_context *ctx, const struct rnic_xrcd_init_attr *attr, struct rnic_xrcd **xrcd,
                     struct rnic_err *err);
    int (*close_xrcd)(struct rnic_xrcd *xrcd, struct rnic_err *err);
    int (*create_srq_ex)(struct rnic_context *ctx, struct rnic_srq_init_attr_ex *attr, struct rnic_srq **srq,
                         struct rnic_err *err);
    /* An XRC_RECV queue pair: of a domain, with neither protection domain nor completion queues of its own. */
    int (*create_xrc_qp)(struct rnic_xrcd *xrcd, struct rnic_qp_init_attr *attr, struct rnic_qp **qp,
                         struct rnic_err *err);
    /* The same one once more: it lives until each that was created or opened has been given to destroy_qp, and its events
     * go to all of them. */
    int (*open_qp)(struct rnic_context *ctx, const struct rnic_qp_open_attr *attr, struct rnic_qp **qp,
                   struct rnic_err *err);
    int (*alloc_mw)(struct rnic_pd *pd, int type /* enum rnic_mw_type */, struct rnic_mw **mw, struct rnic_err *err);
    int (*dealloc_mw)(struct rnic_mw *mw, struct rnic_err *err); /* bound or not */
    /* Posts a bind of a window of type 1; mw->rkey is the key that it will have. */
    int (*bind_mw)(struct rnic_qp *qp, struct rnic_mw *mw, const struct rnic_mw_bind *bind, struct rnic_err *err);
    /* What it is bound to now; info->mr is NULL: to nothing (IBA 11.2.8.10; libibverbs lacks it). */
    int (*query_mw)(struct rnic_mw *mw, struct rnic_mw_bind_info *info, struct rnic_err *err);

    int (*create_ah)(struct rnic_pd *pd, const struct rnic_ah_attr *attr, struct rnic_ah **ah, struct rnic_err *err);
    int (*query_ah)(struct rnic_ah *ah, struct rnic_ah_attr *attr, struct rnic_err *err);
    int (*destroy_ah)(struct rnic_ah *ah, struct rnic_err *err); /* at once: work that is posted keeps the way */
    int (*attach_mcast)(struct rnic_qp *qp, const union rnic_gid *gid, uint16_t lid, struct rnic_err *err);
    int (*detach_mcast)(struct rnic_qp *qp, const union rnic_gid *gid, uint16_t lid, struct rnic_err *err);

    /* From now on the CM's REQ and SIDR_REQ for service_id (host byte order) that are sent to addr come to this context's
     * GSI queue pair. addr: a GID of the device; ::ffff:0.0.0.0: every IPv4 one, ::: every one. -EADDRINUSE: another
     * listener of this host is in the way. */
    int (*cm_listen)(struct rnic_context *ctx, uint64_t service_id, const union rnic_gid *addr,
                     uint32_t flags /* enum rnic_listen_flags */, struct rnic_listener **listener,
                     struct rnic_err *err);
    int (*cm_unlisten)(struct rnic_listener *listener, struct rnic_err *err);
    /* The number of one of the context's slots: communication ids that it hands out have it in their upper 10 bits, so
     * that answers find their way on a host with many processes. */
    int (*cm_slot)(struct rnic_context *ctx, uint32_t *slot, struct rnic_err *err);
    /* A descriptor, the caller's to close, that hangs up (POLLHUP) when the process of this host that has a slot dies, or
     * gives it up: its context has closed. Not when it is stopped, or when another takes the slot. -ECONNREFUSED: nobody
     * has it; other errors: it cannot be known. */
    int (*cm_watch)(struct rnic_context *ctx, uint32_t slot, int *fd, struct rnic_err *err);
    /* The same for whoever would get a request for a service that is sent to an address of this device. */
    int (*cm_watch_service)(struct rnic_context *ctx, uint64_t service_id, const union rnic_gid *gid, int *fd,
                            struct rnic_err *err);

    /* Extended completion queues, moderation, clocks. */
    int (*query_device_ex)(struct rnic_context *ctx, struct rnic_device_attr_ex *attr, struct rnic_err *err);
    int (*query_rt_values)(struct rnic_context *ctx, struct rnic_values_ex *values, struct rnic_err *err);
    int (*create_cq_ex)(struct rnic_context *ctx, const struct rnic_cq_init_attr_ex *attr, struct rnic_cq **cq,
                        struct rnic_err *err);
    int (*poll_cq_ex)(struct rnic_cq *cq, int n, struct rnic_wc *wc, struct rnic_wc_ex *times); /* as poll_cq */
    int (*modify_cq)(struct rnic_cq *cq, const struct rnic_modify_cq_attr *attr, struct rnic_err *err);

    /* Counters of flows: each index of the object counts what its points ask for. flow: NULL, a rule that is yet to be */
    int (*create_counters)(struct rnic_context *ctx, struct rnic_flow_counters **counters, struct rnic_err *err);
    int (*destroy_counters)(struct rnic_flow_counters *counters, struct rnic_err *err);
    int (*attach_counters_point_flow)(struct rnic_flow_counters *counters, const struct rnic_counter_attach_attr *attr,
                                      void *flow, struct rnic_err *err);
    int (*read_counters)(struct rnic_flow_counters *counters, uint64_t *values, uint32_t n, uint32_t flags,
                         struct rnic_err *err);

    /* Completion counters: `failed` chooses the error count. */
    int (*query_comp_cntr_caps)(struct rnic_context *ctx, struct rnic_comp_cntr_caps *caps, struct rnic_err *err);
    int (*create_comp_cntr)(struct rnic_context *ctx, const struct rnic_comp_cntr_init_attr *attr,
                            struct rnic_comp_cntr **cntr, struct rnic_err *err);
    int (*destroy_comp_cntr)(struct rnic_comp_cntr *cntr, struct rnic_err *err);
    int (*set_comp_cntr)(struct rnic_comp_cntr *cntr, bool failed, uint64_t value, struct rnic_err *err);
    int (*inc_comp_cntr)(struct rnic_comp_cntr *cntr, bool failed, uint64_t amount, struct rnic_err *err);
    int (*read_comp_cntr)(struct rnic_comp_cntr *cntr, bool failed, uint64_t *value, struct rnic_err *err);
    int (*attach_comp_cntr)(struct rnic_qp *qp, struct rnic_comp_cntr *cntr, uint32_t op_mask, struct rnic_err *err);
    /* Memory beyond reg_mr: other kinds of regions, advice. A re-registration that fails has changed
     * nothing. */
    int (*reg_mr_ex)(struct rnic_pd *pd, const struct rnic_mr_init_attr *attr, struct rnic_mr **mr,
                     struct rnic_err *err);
    int (*alloc_null_mr)(struct rnic_pd *pd, struct rnic_mr **mr, struct rnic_err *err);
    int (*rereg_mr)(struct rnic_mr *mr, uint32_t flags /* enum rnic_rereg_mr_flags */, struct rnic_pd *pd, void *addr,
                    uint64_t length, uint32_t access, struct rnic_err *err);
    int (*advise_mr)(struct rnic_pd *pd, int advice, uint32_t flags /* enum rnic_advise_mr_flag */,
                     const struct rnic_sge *sg_list, int num_sge, struct rnic_err *err);
    int (*alloc_dm)(struct rnic_context *ctx, uint64_t length, uint32_t log_align_req, struct rnic_dm **dm,
                    struct rnic_err *err);
    int (*free_dm)(struct rnic_dm *dm, struct rnic_err *err);
    int (*memcpy_to_dm)(struct rnic_dm *dm, uint64_t offset, const void *src, uint64_t length, struct rnic_err *err);
    int (*memcpy_from_dm)(void *dst, struct rnic_dm *dm, uint64_t offset, uint64_t length, struct rnic_err *err);

    /* Domains. dealloc_pd takes a parent domain back, too. */
    int (*alloc_td)(struct rnic_context *ctx, struct rnic_td **td, struct rnic_err *err);
    int (*dealloc_td)(struct rnic_td *td, struct rnic_err *err);
    int (*alloc_parent_domain)(struct rnic_pd *pd, struct rnic_td *td /* or NULL */, struct rnic_pd **parent,
                               struct rnic_err *err);

    /* What a handle names in an imported context, or in this one. Unimporting leaves the object to its owner. */
    int (*import_pd)(struct rnic_context *ctx, uint32_t handle, struct rnic_pd **pd, struct rnic_err *err);
    int (*unimport_pd)(struct rnic_pd *pd, struct rnic_err *err);
    int (*import_mr)(struct rnic_pd *pd, uint32_t handle, struct rnic_mr **mr, struct rnic_err *err);
    int (*unimport_mr)(struct rnic_mr *mr, struct rnic_err *err);
    int (*import_dm)(struct rnic_context *ctx, uint32_t handle, struct rnic_dm **dm, struct rnic_err *err);
    int (*unimport_dm)(struct rnic_dm *dm, struct rnic_err *err);
    /* Ethernet frames, nic_raw.h. create_flow: attr->num_of_specs specifications lie behind attr. */
    int (*query_raw)(struct rnic_context *ctx, struct rnic_raw_attr *attr, struct rnic_err *err);
    int (*create_flow)(struct rnic_qp *qp, const struct rnic_flow_attr *attr, struct rnic_flow **flow,
                       struct rnic_err *err);
    int (*destroy_flow)(struct rnic_flow *flow, struct rnic_err *err);
    int (*create_wq)(struct rnic_context *ctx, struct rnic_wq_init_attr *attr, struct rnic_wq **wq,
                     struct rnic_err *err);
    int (*modify_wq)(struct rnic_wq *wq, const struct rnic_wq_attr *attr, struct rnic_err *err);
    int (*query_wq)(struct rnic_wq *wq, int *state, uint32_t *depth, struct rnic_err *err); /* not in libibverbs */
    int (*destroy_wq)(struct rnic_wq *wq, struct rnic_err *err);
    int (*post_wq_recv)(struct rnic_wq *wq, const struct rnic_recv_wr *wr, const struct rnic_recv_wr **bad,
                        struct rnic_err *err);
    int (*create_rwq_ind_table)(struct rnic_context *ctx, const struct rnic_rwq_ind_table_init_attr *attr,
                                struct rnic_rwq_ind_table **table, struct rnic_err *err);
    int (*destroy_rwq_ind_table)(struct rnic_rwq_ind_table *table, struct rnic_err *err);

    /* Takes one asynchronous event; -EAGAIN when none waits (wait on ctx->async_fd). */
    int (*get_async_event)(struct rnic_context *ctx, struct rnic_async_event *event, struct rnic_err *err);
    /* Acknowledges one that was taken: until then the object that it is about cannot be destroyed, -EBUSY. */
    int (*ack_async_event)(struct rnic_context *ctx, const struct rnic_async_event *event, struct rnic_err *err);

    /* What the subnet manager of InfiniBand does: fills the port's P_Key table; what is not given is empty, 0. */
    int (*set_pkeys)(struct rnic_context *ctx, int port, const uint16_t *pkeys, int n, struct rnic_err *err);
};

/* ---------------------------------------------------------------- the software RNIC */

/* Lists the devices of this network namespace: at most max into list; the number there are, or -errno. */
int rnic_soft_list(struct rnic_device_info *list, int max, struct rnic_err *err);

/* Opens a device by its netdev's name.  The context's engine thread runs until ctx->ops->close(). */
int rnic_soft_open(const char *netdev, const struct rnic_open_attr *attr, struct rnic_context **ctx,
                   struct rnic_err *err);

/* The context that cmd_fd is of: the same one, if it is open in this process, which each of its owners then closes;
 * else a context of its own on the same device, which can import what lies in the memory files of the other process.
 * cmd_fd stays the caller's. */
int rnic_soft_import(int cmd_fd, struct rnic_context **ctx, struct rnic_device_info *info, struct rnic_err *err);

/* Names and texts of the X-macros, for bindings. NULL for a value that has none. */
const char *rnic_counter_name(int counter);
const char *rnic_counter_text(int counter);
const char *rnic_vendor_err_name(int vendor_err);
const char *rnic_vendor_err_text(int vendor_err);

struct rnic_enum_row {
    const char *group, *name; /* "wc_status", "SUCCESS" */
    int64_t value;
};
/* Row i of every enumeration above, in order; NULL past the end. */
const struct rnic_enum_row *rnic_enum_row(int i);

#endif
