/* SPDX-License-Identifier: Apache-2.0
 *
 * nic_raw.h: the part of nic.h, which includes it, that is about Ethernet frames: RAW_PACKET queue pairs, the rules that
 * steer frames to them, and the work queues among which a queue pair spreads them.
 *
 * The specifications of a rule lie behind its struct rnic_flow_attr, one after the other, in libibverbs' layout; values
 * and masks are in network byte order (man ibv_create_flow).
 */
#ifndef RNIC_NIC_RAW_H
#define RNIC_NIC_RAW_H

#include <stdint.h>

#define RNIC_FLOW_ATTR_TYPES(X) X(NORMAL, 0) X(ALL_DEFAULT, 1) X(MC_DEFAULT, 2) X(SNIFFER, 3)

#define RNIC_FLOW_FLAGS(X) X(DONT_TRAP, 1 << 1) X(EGRESS, 1 << 2)

#define RNIC_FLOW_SPEC_TYPES(X)                                                                                        \
    X(ETH, 0x20) X(IPV4, 0x30) X(IPV6, 0x31) X(IPV4_EXT, 0x32) X(ESP, 0x34) X(TCP, 0x40) X(UDP, 0x41)                  \
    X(VXLAN_TUNNEL, 0x50) X(GRE, 0x51) X(MPLS, 0x60) X(INNER, 0x100) X(ACTION_TAG, 0x1000) X(ACTION_DROP, 0x1001)      \
    X(ACTION_HANDLE, 0x1002) X(ACTION_COUNT, 0x1003)

#define RNIC_RX_HASH_FUNCTIONS(X) X(TOEPLITZ, 1 << 0)

#define RNIC_RX_HASH_FIELDS(X)                                                                                         \
    X(SRC_IPV4, 1 << 0) X(DST_IPV4, 1 << 1) X(SRC_IPV6, 1 << 2) X(DST_IPV6, 1 << 3) X(SRC_PORT_TCP, 1 << 4)            \
    X(DST_PORT_TCP, 1 << 5) X(SRC_PORT_UDP, 1 << 6) X(DST_PORT_UDP, 1 << 7) X(IPSEC_SPI, 1 << 8) X(INNER, 1u << 31)

#define RNIC_WQ_TYPES(X) X(RQ, 0)

#define RNIC_WQ_FLAGS(X) X(CVLAN_STRIPPING, 1 << 0) X(SCATTER_FCS, 1 << 1) X(DELAY_DROP, 1 << 2) X(PCI_WRITE_END_PADDING, 1 << 3)

#define RNIC_WQ_STATES(X) X(RESET, 0) X(RDY, 1) X(ERR, 2) X(UNKNOWN, 3)

#define RNIC_WQ_ATTR_MASKS(X) X(STATE, 1 << 0) X(CURR_STATE, 1 << 1) X(FLAGS, 1 << 2)

#define RNIC_RAW_PACKET_CAPS(X) X(CVLAN_STRIPPING, 1 << 0) X(SCATTER_FCS, 1 << 1) X(IP_CSUM, 1 << 2) X(DELAY_DROP, 1 << 3)

#define RNIC_ENUM_FLOW_ATTR(n, v) RNIC_FLOW_ATTR_##n = v,
enum rnic_flow_attr_type { RNIC_FLOW_ATTR_TYPES(RNIC_ENUM_FLOW_ATTR) };
#define RNIC_ENUM_FLOW_FLAG(n, v) RNIC_FLOW_ATTR_FLAGS_##n = v,
enum rnic_flow_flags { RNIC_FLOW_FLAGS(RNIC_ENUM_FLOW_FLAG) };
#define RNIC_ENUM_FLOW_SPEC(n, v) RNIC_FLOW_SPEC_##n = v,
enum rnic_flow_spec_type { RNIC_FLOW_SPEC_TYPES(RNIC_ENUM_FLOW_SPEC) };
#define RNIC_ENUM_HASH_FUNC(n, v) RNIC_RX_HASH_FUNC_##n = v,
enum rnic_rx_hash_function_flags { RNIC_RX_HASH_FUNCTIONS(RNIC_ENUM_HASH_FUNC) };
#define RNIC_ENUM_HASH_FIELD(n, v) RNIC_RX_HASH_##n = v,
enum rnic_rx_hash_fields { RNIC_RX_HASH_FIELDS(RNIC_ENUM_HASH_FIELD) };
#define RNIC_ENUM_WQT(n, v) RNIC_WQT_##n = v,
enum rnic_wq_type { RNIC_WQ_TYPES(RNIC_ENUM_WQT) };
#define RNIC_ENUM_WQF(n, v) RNIC_WQ_FLAGS_##n = v,
enum rnic_wq_flags { RNIC_WQ_FLAGS(RNIC_ENUM_WQF) };
#define RNIC_ENUM_WQS(n, v) RNIC_WQS_##n = v,
enum rnic_wq_state { RNIC_WQ_STATES(RNIC_ENUM_WQS) };
#define RNIC_ENUM_WQ_ATTR(n, v) RNIC_WQ_ATTR_##n = v,
enum rnic_wq_attr_mask { RNIC_WQ_ATTR_MASKS(RNIC_ENUM_WQ_ATTR) };
#define RNIC_ENUM_RAW_CAP(n, v) RNIC_RAW_PACKET_CAP_##n = v,
enum rnic_raw_packet_caps { RNIC_RAW_PACKET_CAPS(RNIC_ENUM_RAW_CAP) };

/* ---------------------------------------------------------------- steering */

struct rnic_flow_attr { /* num_of_specs specifications follow */
    uint32_t comp_mask; /* 0 */
    int type;           /* enum rnic_flow_attr_type */
    uint16_t size;      /* bytes, those of the specifications included */
    uint16_t priority;  /* the lowest number is looked at first */
    uint8_t num_of_specs;
    uint8_t port;
    uint32_t flags; /* enum rnic_flow_flags */
};

struct rnic_flow_spec_hdr {
    int type;      /* enum rnic_flow_spec_type */
    uint16_t size; /* of the whole specification */
};

struct rnic_flow_eth_filter {
    uint8_t dst_mac[6], src_mac[6];
    uint16_t ether_type; /* behind the last VLAN tag */
    uint16_t vlan_tag;   /* 802.1q: 3 bits priority, 1 bit DEI, 12 bits VLAN */
};
struct rnic_flow_spec_eth {
    int type;
    uint16_t size;
    struct rnic_flow_eth_filter val, mask;
};
struct rnic_flow_ipv4_filter {
    uint32_t src_ip, dst_ip;
};
struct rnic_flow_spec_ipv4 {
    int type;
    uint16_t size;
    struct rnic_flow_ipv4_filter val, mask;
};
struct rnic_flow_ipv4_ext_filter {
    uint32_t src_ip, dst_ip;
    uint8_t proto, tos, ttl, flags; /* flags: 2: do not fragment, 4: more fragments */
};
struct rnic_flow_spec_ipv4_ext {
    int type;
    uint16_t size;
    struct rnic_flow_ipv4_ext_filter val, mask;
};
struct rnic_flow_ipv6_filter {
    uint8_t src_ip[16], dst_ip[16];
    uint32_t flow_label;
    uint8_t next_hdr, traffic_class, hop_limit; /* next_hdr: of the header behind all extension headers */
};
struct rnic_flow_spec_ipv6 {
    int type;
    uint16_t size;
    struct rnic_flow_ipv6_filter val, mask;
};
struct rnic_flow_tcp_udp_filter {
    uint16_t dst_port, src_port;
};
struct rnic_flow_spec_tcp_udp {
    int type;
    uint16_t size;
    struct rnic_flow_tcp_udp_filter val, mask;
};
struct rnic_flow_spec_action_tag {
    int type;
    uint16_t size;
    uint32_t tag_id; /* 24 bits */
};
struct rnic_flow_spec_action_drop {
    int type;
    uint16_t size;
};
struct rnic_flow_spec_counter_action {
    int type;
    uint16_t size;
    struct rnic_flow_counters *counters;
};
struct rnic_flow {
    struct rnic_context *ctx;
    struct rnic_qp *qp;
};

/* ---------------------------------------------------------------- spreading */

struct rnic_wq { /* receives of their own, without a queue pair of their own */
    struct rnic_context *ctx;
    struct rnic_pd *pd;
    struct rnic_cq *cq;
    void *wq_context; /* the binding's; never read here */
    uint32_t wq_num;
    int wq_type; /* enum rnic_wq_type */
};
struct rnic_wq_init_attr {
    void *wq_context;
    int wq_type;              /* enum rnic_wq_type */
    uint32_t max_wr, max_sge; /* on return: what was granted, at least what was asked for */
    struct rnic_pd *pd;
    struct rnic_cq *cq;
    uint32_t create_flags; /* enum rnic_wq_flags */
};
struct rnic_wq_attr {
    uint32_t attr_mask; /* enum rnic_wq_attr_mask */
    int wq_state;       /* enum rnic_wq_state */
    int curr_wq_state;
    uint32_t flags, flags_mask; /* enum rnic_wq_flags */
};
struct rnic_rwq_ind_table {
    struct rnic_context *ctx;
    uint32_t ind_tbl_num;
};
struct rnic_rwq_ind_table_init_attr {
    uint32_t log_ind_tbl_size;
    struct rnic_wq **ind_tbl;
};
struct rnic_rx_hash_conf {
    uint8_t rx_hash_function; /* enum rnic_rx_hash_function_flags */
    uint8_t rx_hash_key_len;
    const uint8_t *rx_hash_key;
    uint64_t rx_hash_fields_mask; /* enum rnic_rx_hash_fields */
};

/* Members of struct rnic_device_attr_ex. */
struct rnic_rss_caps {
    uint32_t supported_qpts; /* bit n: queue pair type n */
    uint32_t max_rwq_indirection_tables, max_rwq_indirection_table_size;
    uint64_t rx_hash_fields_mask; /* enum rnic_rx_hash_fields */
    uint8_t rx_hash_function;     /* enum rnic_rx_hash_function_flags */
};
struct rnic_tso_caps { /* large sends that the device cuts up */
    uint32_t max_tso, supported_qpts;
};

/* Not in libibverbs: where frames go. */
struct rnic_raw_attr {
    uint32_t max_frame; /* bytes of the longest frame, without VLAN tags */
    uint8_t wire;       /* 1: frames leave and come by the network device; 0: among this context's queue pairs alone */
    char why[128];      /* when it is 0 */
};

#endif
