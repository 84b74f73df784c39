/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs/device.h: what devices and their ports say of themselves, and the events that they report.
 */
#ifndef RNIC_VERBS_DEVICE_H
#define RNIC_VERBS_DEVICE_H

#include <infiniband/verbs/base.h>

/* ---------------------------------------------------------------- devices */

enum ibv_node_type {
    IBV_NODE_UNKNOWN = -1,
    IBV_NODE_CA = 1,
    IBV_NODE_SWITCH,
    IBV_NODE_ROUTER,
    IBV_NODE_RNIC,
    IBV_NODE_USNIC,
    IBV_NODE_USNIC_UDP,
    IBV_NODE_UNSPECIFIED
};
enum ibv_transport_type {
    IBV_TRANSPORT_UNKNOWN = -1,
    IBV_TRANSPORT_IB,
    IBV_TRANSPORT_IWARP,
    IBV_TRANSPORT_USNIC,
    IBV_TRANSPORT_USNIC_UDP,
    IBV_TRANSPORT_UNSPECIFIED
};
enum ibv_fork_status { IBV_FORK_DISABLED, IBV_FORK_ENABLED, IBV_FORK_UNNEEDED };

enum ibv_device_cap_flags {
    IBV_DEVICE_RESIZE_MAX_WR = 1 << 0,
    IBV_DEVICE_BAD_PKEY_CNTR = 1 << 1,
    IBV_DEVICE_BAD_QKEY_CNTR = 1 << 2,
    IBV_DEVICE_RAW_MULTI = 1 << 3,
    IBV_DEVICE_AUTO_PATH_MIG = 1 << 4,
    IBV_DEVICE_CHANGE_PHY_PORT = 1 << 5,
    IBV_DEVICE_UD_AV_PORT_ENFORCE = 1 << 6,
    IBV_DEVICE_CURR_QP_STATE_MOD = 1 << 7,
    IBV_DEVICE_SHUTDOWN_PORT = 1 << 8,
    IBV_DEVICE_INIT_TYPE = 1 << 9,
    IBV_DEVICE_PORT_ACTIVE_EVENT = 1 << 10,
    IBV_DEVICE_SYS_IMAGE_GUID = 1 << 11,
    IBV_DEVICE_RC_RNR_NAK_GEN = 1 << 12,
    IBV_DEVICE_SRQ_RESIZE = 1 << 13,
    IBV_DEVICE_N_NOTIFY_CQ = 1 << 14,
    IBV_DEVICE_MEM_WINDOW = 1 << 17,
    IBV_DEVICE_UD_IP_CSUM = 1 << 18,
    IBV_DEVICE_XRC = 1 << 20,
    IBV_DEVICE_MEM_MGT_EXTENSIONS = 1 << 21,
    IBV_DEVICE_MEM_WINDOW_TYPE_2A = 1 << 23,
    IBV_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24,
    IBV_DEVICE_RC_IP_CSUM = 1 << 25,
    IBV_DEVICE_RAW_IP_CSUM = 1 << 26,
    IBV_DEVICE_MANAGED_FLOW_STEERING = 1 << 29
};
/* Further bits of device_cap_flags_ex. */
#define IBV_DEVICE_RAW_SCATTER_FCS (1ULL << 34)
#define IBV_DEVICE_PCI_WRITE_END_PADDING (1ULL << 36)

enum ibv_atomic_cap { IBV_ATOMIC_NONE, IBV_ATOMIC_HCA, IBV_ATOMIC_GLOB };

struct ibv_device_attr { /* man ibv_query_device */
    char fw_ver[64];
    __be64 node_guid, sys_image_guid;
    uint64_t max_mr_size, page_size_cap;
    uint32_t vendor_id, vendor_part_id, hw_ver;
    int max_qp, max_qp_wr;
    unsigned int device_cap_flags;
    int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd;
    int max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom;
    enum ibv_atomic_cap atomic_cap;
    int max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp;
    int max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach;
    int max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge;
    uint16_t max_pkeys;
    uint8_t local_ca_ack_delay, phys_port_cnt;
};

/* On demand paging: what requests may find their memory absent. */
enum ibv_odp_general_caps { IBV_ODP_SUPPORT = 1 << 0, IBV_ODP_SUPPORT_IMPLICIT = 1 << 1 };
enum ibv_odp_transport_cap_bits {
    IBV_ODP_SUPPORT_SEND = 1 << 0,
    IBV_ODP_SUPPORT_RECV = 1 << 1,
    IBV_ODP_SUPPORT_WRITE = 1 << 2,
    IBV_ODP_SUPPORT_READ = 1 << 3,
    IBV_ODP_SUPPORT_ATOMIC = 1 << 4,
    IBV_ODP_SUPPORT_SRQ_RECV = 1 << 5
};
struct ibv_odp_caps {
    uint64_t general_caps; /* enum ibv_odp_general_caps */
    struct {
        uint32_t rc_odp_caps, uc_odp_caps, ud_odp_caps; /* enum ibv_odp_transport_cap_bits */
    } per_transport_caps;
};

/* Offloads of raw packets and of UD. supported_qpts: bits 1 << enum ibv_qp_type. */
struct ibv_tso_caps {
    uint32_t max_tso /* bytes */, supported_qpts;
};
enum ibv_rx_hash_function_flags { IBV_RX_HASH_FUNC_TOEPLITZ = 1 };
__extension__ enum ibv_rx_hash_fields { /* of a packet, that its hash is made of */
                                        IBV_RX_HASH_SRC_IPV4 = 1 << 0,
                                        IBV_RX_HASH_DST_IPV4 = 1 << 1,
                                        IBV_RX_HASH_SRC_IPV6 = 1 << 2,
                                        IBV_RX_HASH_DST_IPV6 = 1 << 3,
                                        IBV_RX_HASH_SRC_PORT_TCP = 1 << 4,
                                        IBV_RX_HASH_DST_PORT_TCP = 1 << 5,
                                        IBV_RX_HASH_SRC_PORT_UDP = 1 << 6,
                                        IBV_RX_HASH_DST_PORT_UDP = 1 << 7,
                                        IBV_RX_HASH_IPSEC_SPI = 1 << 8,
                                        IBV_RX_HASH_INNER = 1u << 31
};
struct ibv_rss_caps {
    uint32_t supported_qpts, max_rwq_indirection_tables, max_rwq_indirection_table_size;
    uint64_t rx_hash_fields_mask; /* enum ibv_rx_hash_fields */
    uint8_t rx_hash_function;     /* enum ibv_rx_hash_function_flags */
};
struct ibv_packet_pacing_caps {
    uint32_t qp_rate_limit_min, qp_rate_limit_max; /* kbit/s */
    uint32_t supported_qpts;
};
enum ibv_raw_packet_caps {
    IBV_RAW_PACKET_CAP_CVLAN_STRIPPING = 1 << 0,
    IBV_RAW_PACKET_CAP_SCATTER_FCS = 1 << 1,
    IBV_RAW_PACKET_CAP_IP_CSUM = 1 << 2,
    IBV_RAW_PACKET_CAP_DELAY_DROP = 1 << 3
};

enum ibv_tm_cap_flags { IBV_TM_CAP_RC = 1 };
struct ibv_tm_caps {            /* tag matching */
    uint32_t max_rndv_hdr_size; /* bytes of a rendezvous request */
    uint32_t max_num_tags;      /* receives in a matching list */
    uint32_t flags;             /* enum ibv_tm_cap_flags */
    uint32_t max_ops;           /* operations on the list that are under way */
    uint32_t max_sge;           /* of a receive in the list */
};
struct ibv_cq_moderation_caps {
    uint16_t max_cq_count, max_cq_period; /* completions; microseconds */
};
enum ibv_pci_atomic_op_size {
    IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP = 1 << 0,
    IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP = 1 << 1,
    IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP = 1 << 2
};
struct ibv_pci_atomic_caps {
    uint16_t fetch_add, swap, compare_swap; /* enum ibv_pci_atomic_op_size */
};

struct ibv_query_device_ex_input {
    uint32_t comp_mask; /* 0 */
};
struct ibv_device_attr_ex { /* man ibv_query_device_ex */
    struct ibv_device_attr orig_attr;
    uint32_t comp_mask;
    struct ibv_odp_caps odp_caps;
    uint64_t completion_timestamp_mask; /* bits of a timestamp that count; 0: there are none */
    uint64_t hca_core_clock;            /* kHz */
    uint64_t device_cap_flags_ex;
    struct ibv_tso_caps tso_caps;
    struct ibv_rss_caps rss_caps;
    uint32_t max_wq_type_rq;
    struct ibv_packet_pacing_caps packet_pacing_caps;
    uint32_t raw_packet_caps; /* enum ibv_raw_packet_caps */
    struct ibv_tm_caps tm_caps;
    struct ibv_cq_moderation_caps cq_mod_caps;
    uint64_t max_dm_size; /* bytes */
    struct ibv_pci_atomic_caps pci_atomic_caps;
    uint32_t xrc_odp_caps; /* enum ibv_odp_transport_cap_bits */
    uint32_t phys_port_cnt_ex;
};

enum ibv_values_mask { IBV_VALUES_MASK_RAW_CLOCK = 1 << 0, IBV_VALUES_MASK_RESERVED = 1 << 1 };
struct ibv_values_ex { /* man ibv_query_rt_values_ex */
    uint32_t comp_mask;
    struct timespec raw_clock;
};

/* ---------------------------------------------------------------- ports */

enum ibv_mtu { IBV_MTU_256 = 1, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096 };
enum ibv_port_state {
    IBV_PORT_NOP,
    IBV_PORT_DOWN,
    IBV_PORT_INIT,
    IBV_PORT_ARMED,
    IBV_PORT_ACTIVE,
    IBV_PORT_ACTIVE_DEFER
};
enum { IBV_LINK_LAYER_UNSPECIFIED, IBV_LINK_LAYER_INFINIBAND, IBV_LINK_LAYER_ETHERNET };

enum ibv_port_cap_flags { /* IBA 14.2.5.6 PortInfo, CapabilityMask */
                          IBV_PORT_SM = 1 << 1,
                          IBV_PORT_NOTICE_SUP = 1 << 2,
                          IBV_PORT_TRAP_SUP = 1 << 3,
                          IBV_PORT_OPT_IPD_SUP = 1 << 4,
                          IBV_PORT_AUTO_MIGR_SUP = 1 << 5,
                          IBV_PORT_SL_MAP_SUP = 1 << 6,
                          IBV_PORT_MKEY_NVRAM = 1 << 7,
                          IBV_PORT_PKEY_NVRAM = 1 << 8,
                          IBV_PORT_LED_INFO_SUP = 1 << 9,
                          IBV_PORT_SYS_IMAGE_GUID_SUP = 1 << 11,
                          IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP = 1 << 12,
                          IBV_PORT_EXTENDED_SPEEDS_SUP = 1 << 14,
                          IBV_PORT_CAP_MASK2_SUP = 1 << 15,
                          IBV_PORT_CM_SUP = 1 << 16,
                          IBV_PORT_SNMP_TUNNEL_SUP = 1 << 17,
                          IBV_PORT_REINIT_SUP = 1 << 18,
                          IBV_PORT_DEVICE_MGMT_SUP = 1 << 19,
                          IBV_PORT_VENDOR_CLASS_SUP = 1 << 20,
                          IBV_PORT_DR_NOTICE_SUP = 1 << 21,
                          IBV_PORT_CAP_MASK_NOTICE_SUP = 1 << 22,
                          IBV_PORT_BOOT_MGMT_SUP = 1 << 23,
                          IBV_PORT_LINK_LATENCY_SUP = 1 << 24,
                          IBV_PORT_CLIENT_REG_SUP = 1 << 25,
                          IBV_PORT_IP_BASED_GIDS = 1 << 26
};
enum ibv_port_cap_flags2 { /* CapabilityMask2 */
                           IBV_PORT_SET_NODE_DESC_SUP = 1 << 0,
                           IBV_PORT_INFO_EXT_SUP = 1 << 1,
                           IBV_PORT_VIRT_SUP = 1 << 2,
                           IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP = 1 << 3,
                           IBV_PORT_LINK_WIDTH_2X_SUP = 1 << 4,
                           IBV_PORT_LINK_SPEED_HDR_SUP = 1 << 5,
                           IBV_PORT_LINK_SPEED_NDR_SUP = 1 << 10
};
struct ibv_port_attr { /* man ibv_query_port */
    enum ibv_port_state state;
    enum ibv_mtu max_mtu, active_mtu;
    int gid_tbl_len;
    uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
    uint16_t pkey_tbl_len, lid, sm_lid;
    uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state;
    uint8_t link_layer; /* IBV_LINK_LAYER_ */
    uint8_t flags;      /* IBV_QPF_GRH_REQUIRED */
    uint16_t port_cap_flags2;
};

enum ibv_gid_type { IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2 };
struct ibv_gid_entry { /* man ibv_query_gid_ex */
    union ibv_gid gid;
    uint32_t gid_index, port_num, gid_type /* enum ibv_gid_type */, ndev_ifindex;
};

enum ibv_rate { /* IBA's codes of a static rate */
                IBV_RATE_MAX = 0,
                IBV_RATE_2_5_GBPS = 2,
                IBV_RATE_10_GBPS = 3,
                IBV_RATE_30_GBPS = 4,
                IBV_RATE_5_GBPS = 5,
                IBV_RATE_20_GBPS = 6,
                IBV_RATE_40_GBPS = 7,
                IBV_RATE_60_GBPS = 8,
                IBV_RATE_80_GBPS = 9,
                IBV_RATE_120_GBPS = 10,
                IBV_RATE_14_GBPS = 11,
                IBV_RATE_56_GBPS = 12,
                IBV_RATE_112_GBPS = 13,
                IBV_RATE_168_GBPS = 14,
                IBV_RATE_25_GBPS = 15,
                IBV_RATE_100_GBPS = 16,
                IBV_RATE_200_GBPS = 17,
                IBV_RATE_300_GBPS = 18,
                IBV_RATE_28_GBPS = 19,
                IBV_RATE_50_GBPS = 20,
                IBV_RATE_400_GBPS = 21,
                IBV_RATE_600_GBPS = 22,
                IBV_RATE_800_GBPS = 23,
                IBV_RATE_1200_GBPS = 24
};

/* ---------------------------------------------------------------- events */

enum ibv_event_type { /* man ibv_get_async_event */
                      IBV_EVENT_CQ_ERR,
                      IBV_EVENT_QP_FATAL,
                      IBV_EVENT_QP_REQ_ERR,
                      IBV_EVENT_QP_ACCESS_ERR,
                      IBV_EVENT_COMM_EST,
                      IBV_EVENT_SQ_DRAINED,
                      IBV_EVENT_PATH_MIG,
                      IBV_EVENT_PATH_MIG_ERR,
                      IBV_EVENT_DEVICE_FATAL,
                      IBV_EVENT_PORT_ACTIVE,
                      IBV_EVENT_PORT_ERR,
                      IBV_EVENT_LID_CHANGE,
                      IBV_EVENT_PKEY_CHANGE,
                      IBV_EVENT_SM_CHANGE,
                      IBV_EVENT_SRQ_ERR,
                      IBV_EVENT_SRQ_LIMIT_REACHED,
                      IBV_EVENT_QP_LAST_WQE_REACHED,
                      IBV_EVENT_CLIENT_REREGISTER,
                      IBV_EVENT_GID_CHANGE,
                      IBV_EVENT_WQ_FATAL
};
struct ibv_async_event {
    union { /* what it is about, by its type */
        struct ibv_cq *cq;
        struct ibv_qp *qp;
        struct ibv_srq *srq;
        struct ibv_wq *wq;
        int port_num;
    } element;
    enum ibv_event_type event_type;
};

#endif
