/* SPDX-License-Identifier: Apache-2.0
 *
 * nic_enums.h: the part of nic.h, which includes it, that is names and numbers: each enumeration is an X-macro (name,
 * value, or name, text), from which the C type and the tables of enums.c are made.
 */
#ifndef RNIC_NIC_ENUMS_H
#define RNIC_NIC_ENUMS_H

#define RNIC_QP_STATES(X) X(RESET, 0) X(INIT, 1) X(RTR, 2) X(RTS, 3) X(SQD, 4) X(SQE, 5) X(ERR, 6)

/* GSI is the kernel's: libibverbs gives QP1 to nobody. */
#define RNIC_QP_TYPES(X) X(GSI, 1) X(RC, 2) X(UC, 3) X(UD, 4) X(RAW_PACKET, 8) X(XRC_SEND, 9) X(XRC_RECV, 10)

#define RNIC_MTUS(X) X(MTU_256, 1) X(MTU_512, 2) X(MTU_1024, 3) X(MTU_2048, 4) X(MTU_4096, 5)

#define RNIC_MIG_STATES(X) X(MIGRATED, 0) X(REARM, 1) X(ARMED, 2)

/* Of iWARP: the message that makes a connection of equals ready (RFC 6581, 9.2); a SEND takes no receive. */
#define RNIC_STREAM_RTRS(X) X(NONE, 0) X(SEND, 1) X(WRITE, 2) X(READ, 3)

/* FIN: the peer has closed in order, between two messages. LOST: reset, timed out, or closed within a message. TERMINATED: by
 * the peer's Terminate message. REFUSED: this end has sent one, or would have. CLOSED: both have closed in order, this end
 * first */
#define RNIC_STREAM_ENDS(X) X(FIN, 0) X(LOST, 1) X(TERMINATED, 2) X(REFUSED, 3) X(CLOSED, 4) X(READY, 5)

#define RNIC_PORT_STATES(X) X(NOP, 0) X(DOWN, 1) X(INIT, 2) X(ARMED, 3) X(ACTIVE, 4) X(ACTIVE_DEFER, 5)

#define RNIC_LINK_LAYERS(X) X(UNSPECIFIED, 0) X(INFINIBAND, 1) X(ETHERNET, 2)

#define RNIC_GID_TYPES(X) X(IB, 0) X(ROCE_V1, 1) X(ROCE_V2, 2)

#define RNIC_TRANSPORTS(X) X(UNKNOWN, -1) X(IB, 0) X(IWARP, 1)

#define RNIC_NODE_TYPES(X) X(UNKNOWN, -1) X(CA, 1) X(RNIC, 4)

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
    X(SEND, 1 << 0) X(RECV, 1 << 1) X(WRITE, 1 << 2) X(READ, 1 << 3) X(ATOMIC, 1 << 4) X(SRQ_RECV, 1 << 5)       \
    X(FLUSH, 1 << 6) X(ATOMIC_WRITE, 1 << 7)

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
    X(tx_forbidden, "packets that this host's firewall refused")                                                       \
    X(tx_too_long, "packets longer than the way there takes (EMSGSIZE): its MTU is smaller than path_mtu")             \
    X(tx_waits, "times that a full socket made packets, or a stream, wait for room")                                   \
    X(rx_packets, "packets taken from the link, dropped ones included")                                                \
    X(rx_bytes, "bytes taken from the link, from the BTH to the ICRC, or of whole frames")                             \
    X(rx_syscalls, "recvmsg calls that returned data, and reads of streams")                                           \
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
    X(terminates_sent, "iWARP: Terminate messages sent")                                                               \
    X(terminates_received, "iWARP: Terminate messages received")                                                       \
    X(qp_errors, "queue pairs that went to the error state")                                                           \
    X(forwarded_out, "packets handed to another process of this host")                                                 \
    X(forwarded_in, "packets received from another process of this host")                                              \
    X(cm_refused, "CM requests answered with a refusal because nobody on this host listens")                           \
    X(port_remaps, "times this context's place in the packet steering of the shared port was learnt")                  \
    X(sources_muted, "times that a flood of what nobody needs was muted for a second, or longer")                           \
    X(unfit_ip_ids, "addresses whose IP headers this kernel fills otherwise than the ICRC needs")                      \
    X(fault_lost, "packets that the fault injector lost")                                                              \
    X(fault_duplicated, "packets that the fault injector sent twice")                                                  \
    X(fault_reordered, "packets that the fault injector held back behind later ones")                                  \
    X(fault_delayed, "packets, or writes to a stream, that the fault injector delayed")                                \
    X(fault_reset, "streams that the fault injector reset")                                                            \
    X(fault_stalled, "streams that the fault injector let stand still")                                                \
    X(fault_flipped, "packets, or messages' segments, in which the fault injector flipped a bit")                      \
    X(fault_marked, "packets that the fault injector marked as having met congestion")                                 \
    X(ecn_marked, "packets received with a mark of congestion")                                                        \
    X(cnp_sent, "congestion notifications sent")                                                                       \
    X(cnp_handled, "congestion notifications received")                                                                \
    X(local_sent, "packets that went to processes of this host by shared memory")                                      \
    X(local_direct, "one-sided operations on memory of a process of this host, without that process")                 \
    X(local_received, "packets that came from processes of this host by shared memory")                                \
    RNIC_DROPS(X)

/* Every dropped packet has a reason. */
#define RNIC_DROPS(X)                                                                                                  \
    X(drop_short, "shorter than its headers, or a length that its opcode cannot have")                                 \
    X(drop_bad_version, "transport header version is not 0")                                                           \
    X(drop_bad_opcode, "opcode unknown, or not of the QP's service")                                                   \
    X(drop_bad_pkey, "partition key does not match")                                                                   \
    X(drop_bad_icrc, "ICRC wrong")                                                                                     \
    X(drop_nat, "ICRC right for other addresses: they were changed on the way (NAT)")                                  \
    X(drop_bad_qpn, "no such queue pair here")                                                                         \
    X(drop_bad_source, "not from the queue pair's peer, by its address, or by UDP port and PSN")                                                  \
    X(drop_bad_state, "queue pair is not in a state that receives this")                                               \
    X(drop_bad_psn, "response PSN outside what is outstanding")                                                        \
    X(drop_duplicate, "duplicate READ or atomic whose saved result is gone")                                           \
    X(drop_resources, "no room to queue a response")                                                                   \
    X(drop_malformed, "headers contradict each other")                                                                 \
    X(drop_slot_full, "for a process whose forwarding queue is full")                                                  \
    X(drop_port_down, "the port is down on purpose")                                                                   \
    X(drop_no_slot, "for a process that is not there (any more)")                                                      \
    X(drop_unanswered, "CM message for nobody, beyond those that are answered in a second")                            \
    X(drop_request, "CM request of a source that has made too many in a second")                                          \
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
#define RNIC_ENUM_STREAM_RTR(n, v) RNIC_STREAM_RTR_##n = v,
enum rnic_stream_rtr { RNIC_STREAM_RTRS(RNIC_ENUM_STREAM_RTR) };
#define RNIC_ENUM_STREAM_END(n, v) RNIC_STREAM_##n = v,
enum rnic_stream_end { RNIC_STREAM_ENDS(RNIC_ENUM_STREAM_END) };
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
    X(INVALIDATE_REGION, "the key is a memory region's, which is deregistered, not invalidated")                       \
    X(STREAM_LOST, "the connection was reset, or timed out, or was closed in the middle of a message")                 \
    X(PEER_STAG, "the peer has ended the connection: the rkey is not registered there, or not for this")               \
    X(PEER_BOUNDS, "the peer has ended the connection: the address range reaches outside its memory region")           \
    X(PEER_RIGHTS, "the peer has ended the connection: its memory region or queue pair does not grant this access")    \
    X(PEER_NO_RECEIVE, "the peer has ended the connection: it had no receive posted for a SEND")                       \
    X(PEER_TOO_LONG, "the peer has ended the connection: a SEND was longer than its receive")                          \
    X(PEER_READS, "the peer has ended the connection: more READs and atomics than its max_dest_rd_atomic")             \
    X(PEER_INVALIDATE, "the peer has ended the connection: this end may not invalidate that key")                      \
    X(PEER_CRC, "the peer has ended the connection: a CRC was wrong")                                                  \
    X(PEER_PROTOCOL, "the peer has ended the connection: it takes what it got for a violation of the protocol")        \
    X(PEER_ERROR, "the peer has ended the connection: an error of its own")
#define RNIC_ENUM_VENDOR(n, t) RNIC_VE_##n,
enum rnic_vendor_err { RNIC_VENDOR_ERRS(RNIC_ENUM_VENDOR) RNIC_VE_MAX };

#endif
