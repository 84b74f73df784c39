# SPDX-License-Identifier: Apache-2.0
"""src/nic/nic.h as Cython sees it: nothing more, nothing less than the binding uses."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    # A byte that is a number: Cython would turn an array of uint8_t into a string and stop at the first 0.
    ctypedef unsigned short octet "uint8_t"


cdef extern from "nic.h" nogil:
    enum:
        RNIC_CNT_MAX
        RNIC_FAULT_RULES
        RNIC_WC_SUCCESS
        RNIC_WC_WR_FLUSH_ERR
        RNIC_WCF_WITH_IMM
        RNIC_WCF_WITH_INV
        RNIC_WR_RDMA_WRITE
        RNIC_WR_RDMA_WRITE_WITH_IMM
        RNIC_WR_RDMA_READ
        RNIC_WR_ATOMIC_CMP_AND_SWP
        RNIC_WR_ATOMIC_FETCH_AND_ADD
        RNIC_WR_LOCAL_INV
        RNIC_SEND_FENCE
        RNIC_SEND_INLINE
        RNIC_SEND_SIGNALED
        RNIC_WCO_RECV
        RNIC_WR_BIND_MW
        RNIC_WR_SEND
        RNIC_WR_SEND_WITH_IMM
        RNIC_WR_SEND_WITH_INV
        RNIC_WR_FLUSH
        RNIC_LISTEN_REUSE
        RNIC_LISTEN_AFONLY
        RNIC_LISTEN_HOLD
        RNIC_ACCESS_LOCAL_WRITE
        RNIC_ACCESS_REMOTE_WRITE
        RNIC_ACCESS_REMOTE_READ
        RNIC_ACCESS_REMOTE_ATOMIC
        RNIC_QPT_XRC_RECV
        RNIC_WC_EX_WITH_BYTE_LEN
        RNIC_WC_EX_WITH_IMM
        RNIC_WC_EX_WITH_QP_NUM
        RNIC_WC_EX_WITH_SRC_QP
        RNIC_WC_EX_WITH_SLID
        RNIC_WC_EX_WITH_SL
        RNIC_WC_EX_WITH_DLID_PATH_BITS
        RNIC_WC_EX_WITH_FLOW_TAG
        RNIC_WC_EX_WITH_TM_INFO
        RNIC_WC_EX_WITH_COMPLETION_TIMESTAMP
        RNIC_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
        RNIC_CQ_INIT_ATTR_MASK_PD

    struct rnic_err:
        char text[256]

    union rnic_gid:
        octet raw[16]

    struct rnic_device_info:
        char name[32]
        char netdev[16]
        uint64_t guid
        int ifindex, transport, node_type

    struct rnic_device_attr:
        char fw_ver[64]
        uint64_t node_guid, sys_image_guid
        uint64_t max_mr_size, page_size_cap
        uint32_t vendor_id, vendor_part_id, hw_ver
        int max_qp, max_qp_wr
        uint32_t device_cap_flags
        int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd
        int max_qp_rd_atom, max_res_rd_atom, max_qp_init_rd_atom
        int atomic_cap
        int max_mw, max_mcast_grp, max_mcast_qp_attach, max_ah, max_srq, max_srq_wr, max_srq_sge
        uint16_t max_pkeys
        uint8_t local_ca_ack_delay, phys_port_cnt
        uint32_t max_inline_data

    struct rnic_odp_transport_caps:
        uint32_t rc_odp_caps, uc_odp_caps, ud_odp_caps

    struct rnic_odp_caps:
        uint64_t general_caps
        rnic_odp_transport_caps per_transport_caps

    struct rnic_cq_moderation_caps:
        uint16_t max_cq_count, max_cq_period

    struct rnic_tm_caps:
        uint32_t max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge

    struct rnic_packet_pacing_caps:
        uint32_t qp_rate_limit_min, qp_rate_limit_max
        uint32_t supported_qpts

    struct rnic_rss_caps:
        uint32_t supported_qpts
        uint32_t max_rwq_indirection_tables, max_rwq_indirection_table_size
        uint64_t rx_hash_fields_mask
        uint8_t rx_hash_function

    struct rnic_tso_caps:
        uint32_t max_tso, supported_qpts

    struct rnic_device_attr_ex:
        rnic_device_attr orig_attr
        rnic_odp_caps odp_caps
        uint64_t completion_timestamp_mask, hca_core_clock, device_cap_flags_ex
        rnic_cq_moderation_caps cq_mod_caps
        rnic_tm_caps tm_caps
        rnic_rss_caps rss_caps
        uint32_t max_wq_type_rq, raw_packet_caps
        rnic_tso_caps tso_caps
        uint32_t xrc_odp_caps
        uint64_t max_dm_size
        rnic_packet_pacing_caps packet_pacing_caps

    enum:
        RNIC_MR_INIT_IOVA
        RNIC_MR_INIT_FD
        RNIC_MR_INIT_DM
        RNIC_MR_INIT_ALLOC
        RNIC_MR_INIT_LOCK
        RNIC_REREG_MR_CHANGE_TRANSLATION
        RNIC_REREG_MR_CHANGE_PD
        RNIC_REREG_MR_CHANGE_ACCESS

    struct rnic_td:
        pass

    struct rnic_dm:
        uint64_t length
        uint32_t handle

    struct rnic_mr_init_attr:
        uint32_t comp_mask, access
        void *addr
        uint64_t length, iova, fd_offset
        int fd
        rnic_dm *dm

    struct rnic_port_attr:
        int state
        int max_mtu, active_mtu
        int gid_tbl_len
        uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr
        uint16_t pkey_tbl_len, lid, sm_lid
        uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state
        uint8_t link_layer
        uint8_t flags

    struct rnic_gid_entry:
        rnic_gid gid
        uint32_t gid_index, port_num, gid_type, ndev_ifindex

    struct rnic_global_route:
        rnic_gid dgid
        uint32_t flow_label
        uint8_t sgid_index, hop_limit, traffic_class

    struct rnic_ah_attr:
        rnic_global_route grh
        uint16_t dlid
        uint8_t sl, src_path_bits, static_rate, is_global, port_num

    struct rnic_qp_cap:
        uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data

    struct rnic_qp_attr:
        int qp_state, cur_qp_state
        int path_mtu
        int path_mig_state
        uint32_t qkey, rq_psn, sq_psn, dest_qp_num
        uint32_t qp_access_flags
        rnic_qp_cap cap
        rnic_ah_attr ah_attr, alt_ah_attr
        uint16_t pkey_index, alt_pkey_index
        uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout
        uint8_t retry_cnt, rnr_retry, alt_port_num, alt_timeout
        uint32_t rate_limit

    struct c_timespec "timespec":
        long tv_sec, tv_nsec

    struct rnic_values_ex:
        uint32_t comp_mask
        c_timespec raw_clock

    struct rnic_moderate_cq:
        uint16_t cq_count, cq_period

    struct rnic_modify_cq_attr:
        uint32_t attr_mask
        rnic_moderate_cq moderate

    struct rnic_wc_ex:
        uint64_t raw, wallclock_ns, tag
        uint32_t tm_priv

    struct rnic_counter_attach_attr:
        int counter_desc
        uint32_t index, comp_mask

    struct rnic_comp_cntr_init_attr:
        uint32_t comp_mask
        int type
        uint32_t flags

    struct rnic_comp_cntr_caps:
        uint64_t max_value
        uint32_t max_counters, supported_qp_attach_ops

    struct rnic_comp_cntr:
        pass

    struct rnic_flow_counters:
        pass

    struct rnic_context:
        const rnic_ops *ops
        const rnic_provider *provider
        int async_fd, cmd_fd, num_comp_vectors

    struct rnic_pd:
        uint32_t handle

    struct rnic_mr:
        void *addr
        uint64_t length
        uint32_t lkey, rkey, handle
        uint64_t iova

    struct rnic_mw:
        uint32_t rkey
        int type

    struct rnic_mw_bind_info:
        rnic_mr *mr
        uint64_t addr, length
        uint32_t mw_access_flags

    struct rnic_mw_bind:
        uint64_t wr_id
        uint32_t send_flags
        rnic_mw_bind_info bind_info

    struct rnic_comp_channel:
        int fd

    struct rnic_cq:
        rnic_context *ctx
        void *cq_context
        int cqe

    struct rnic_ah:
        pass

    struct rnic_listener:
        pass

    struct rnic_qp:
        uint32_t qp_num
        int qp_type

    struct rnic_srq:
        void *srq_context
        uint32_t srq_num

    struct rnic_xrcd:
        pass

    struct rnic_xrcd_init_attr:
        int fd, oflags

    struct rnic_srq_attr:
        uint32_t max_wr, max_sge, srq_limit

    struct rnic_rx_hash_conf:
        uint8_t rx_hash_function, rx_hash_key_len
        const uint8_t *rx_hash_key
        uint64_t rx_hash_fields_mask

    struct rnic_rwq_ind_table:
        uint32_t ind_tbl_num

    struct rnic_qp_init_attr:
        void *qp_context
        rnic_cq *send_cq
        rnic_cq *recv_cq
        rnic_srq *srq
        rnic_qp_cap cap
        int qp_type
        int sq_sig_all
        rnic_rwq_ind_table *rwq_ind_tbl
        rnic_rx_hash_conf rx_hash_conf

    struct rnic_tm_cap:
        uint32_t max_num_tags, max_ops

    struct rnic_srq_init_attr_ex:
        void *srq_context
        rnic_srq_attr attr
        int srq_type
        rnic_pd *pd
        rnic_xrcd *xrcd
        rnic_cq *cq
        rnic_tm_cap tm_cap

    struct rnic_qp_open_attr:
        uint32_t qp_num
        rnic_xrcd *xrcd
        void *qp_context
        int qp_type

    struct rnic_qp_init_attr_ex:
        rnic_qp_init_attr base
        uint32_t comp_mask
        uint32_t create_flags
        uint32_t source_qpn
        uint16_t max_tso_header
        uint64_t send_ops_flags

    struct rnic_qp_rate_limit_attr:
        uint32_t rate_limit
        uint32_t max_burst_sz
        uint16_t typical_pkt_sz
        uint32_t comp_mask

    struct rnic_ece:
        uint32_t vendor_id, options, comp_mask

    struct rnic_flow_attr:
        uint16_t size

    struct rnic_flow:
        pass

    struct rnic_wq:
        uint32_t wq_num

    struct rnic_wq_init_attr:
        void *wq_context
        int wq_type
        uint32_t max_wr, max_sge
        rnic_pd *pd
        rnic_cq *cq
        uint32_t create_flags

    struct rnic_wq_attr:
        uint32_t attr_mask
        int wq_state, curr_wq_state
        uint32_t flags, flags_mask

    struct rnic_rwq_ind_table_init_attr:
        uint32_t log_ind_tbl_size
        rnic_wq **ind_tbl

    struct rnic_raw_attr:
        uint32_t max_frame
        uint8_t wire
        char why[128]

    struct rnic_sge:
        uint64_t addr
        uint32_t length
        uint32_t lkey

    # The anonymous structs and unions have names here only because Cython needs them.
    struct rnic_wr_rdma:
        uint64_t remote_addr
        uint32_t rkey

    struct rnic_wr_atomic:
        uint64_t remote_addr, compare_add, swap
        uint32_t rkey

    struct rnic_wr_ud:
        rnic_ah *ah
        uint32_t remote_qpn, remote_qkey

    struct rnic_wr_flush:
        uint64_t remote_addr
        uint32_t length, rkey
        uint8_t type
        uint8_t level

    union rnic_wr_arm:
        rnic_wr_rdma rdma
        rnic_wr_atomic atomic
        rnic_wr_ud ud
        rnic_wr_flush flush

    struct rnic_wr_xrc:
        uint32_t remote_srqn

    union rnic_wr_kind:
        rnic_wr_xrc xrc

    struct rnic_wr_bind_mw:
        rnic_mw *mw
        uint32_t rkey
        rnic_mw_bind_info bind_info

    struct rnic_send_wr:
        uint64_t wr_id
        rnic_send_wr *next
        rnic_sge *sg_list
        int num_sge
        int opcode
        uint32_t send_flags
        uint32_t imm_data
        uint32_t invalidate_rkey
        rnic_wr_arm wr
        rnic_wr_kind qp_type
        rnic_wr_bind_mw bind_mw

    struct rnic_ops_add:
        uint64_t recv_wr_id
        rnic_sge *sg_list
        int num_sge
        uint64_t tag, mask

    struct rnic_ops_tm:
        uint32_t unexpected_cnt, handle
        rnic_ops_add add

    struct rnic_ops_wr:
        uint64_t wr_id
        rnic_ops_wr *next
        int opcode, flags
        rnic_ops_tm tm

    struct rnic_recv_wr:
        uint64_t wr_id
        rnic_recv_wr *next
        rnic_sge *sg_list
        int num_sge

    struct rnic_wc:
        uint64_t wr_id
        int status
        int opcode
        uint32_t vendor_err
        uint32_t byte_len
        uint32_t imm_data
        uint32_t invalidated_rkey
        uint32_t flow_tag
        uint32_t qp_num, src_qp
        uint32_t wc_flags
        uint16_t pkey_index, slid
        uint8_t sl, dlid_path_bits

    struct rnic_cq_init_attr_ex:
        uint32_t cqe
        void *cq_context
        rnic_comp_channel *channel
        uint32_t comp_vector
        uint64_t wc_flags
        uint32_t comp_mask, flags
        rnic_pd *parent_domain

    struct rnic_async_event:
        int event_type
        int port_num
        uint32_t number
        void *context

    struct rnic_counters:
        uint64_t value[RNIC_CNT_MAX]

    struct rnic_qp_stats:
        rnic_counters counters
        uint32_t snd_psn, snd_una, rcv_psn, msn
        uint32_t sq_depth, rq_depth
        uint32_t window
        uint32_t in_flight
        uint8_t retries_left, rnr_retries_left
        uint64_t srtt, rate

    struct rnic_fault_rule:
        int opcode
        uint32_t nth, count

    struct rnic_fault:
        uint64_t seed
        uint32_t loss, duplicate, reorder, delay, flip
        uint32_t reorder_gap
        uint64_t delay_ns
        uint32_t mark
        rnic_fault_rule lose[RNIC_FAULT_RULES]
        uint32_t reset, stall
        uint64_t reset_after, stall_after
        uint32_t chunk, flip_header

    struct rnic_open_attr:
        uint32_t rcvbuf, max_window, no_gso
        const uint16_t *pkeys
        uint32_t num_pkeys
        int congestion
        int local

    struct rnic_ops:
        int (*close)(rnic_context *, rnic_err *) noexcept nogil
        int (*close_all)(rnic_context *, rnic_err *) noexcept nogil
        int (*query_device)(rnic_context *, rnic_device_attr *, rnic_err *) noexcept nogil
        int (*query_port)(rnic_context *, int, rnic_port_attr *, rnic_err *) noexcept nogil
        int (*query_gid)(rnic_context *, int, int, rnic_gid_entry *, rnic_err *) noexcept nogil
        int (*query_pkey)(rnic_context *, int, int, uint16_t *, rnic_err *) noexcept nogil

        int (*alloc_pd)(rnic_context *, rnic_pd **, rnic_err *) noexcept nogil
        int (*dealloc_pd)(rnic_pd *, rnic_err *) noexcept nogil
        int (*reg_mr)(rnic_pd *, void *, uint64_t, uint32_t, rnic_mr **, rnic_err *) noexcept nogil
        int (*dereg_mr)(rnic_mr *, rnic_err *) noexcept nogil

        int (*create_comp_channel)(rnic_context *, rnic_comp_channel **, rnic_err *) noexcept nogil
        int (*destroy_comp_channel)(rnic_comp_channel *, rnic_err *) noexcept nogil
        int (*get_cq_event)(rnic_comp_channel *, rnic_cq **, rnic_err *) noexcept nogil
        int (*create_cq)(
            rnic_context *, int, rnic_comp_channel *, uint32_t, void *, rnic_cq **, rnic_err *) noexcept nogil
        int (*resize_cq)(rnic_cq *, int, rnic_err *) noexcept nogil
        int (*destroy_cq)(rnic_cq *, rnic_err *) noexcept nogil
        int (*poll_cq)(rnic_cq *, int, rnic_wc *) noexcept nogil
        int (*req_notify_cq)(rnic_cq *, int, rnic_err *) noexcept nogil
        int (*ack_cq_events)(rnic_cq *, unsigned, rnic_err *) noexcept nogil

        int (*create_qp)(rnic_pd *, rnic_qp_init_attr *, rnic_qp **, rnic_err *) noexcept nogil
        int (*modify_qp)(rnic_qp *, const rnic_qp_attr *, uint32_t, rnic_err *) noexcept nogil
        int (*query_qp)(rnic_qp *, rnic_qp_attr *, rnic_qp_init_attr *, rnic_err *) noexcept nogil
        int (*destroy_qp)(rnic_qp *, rnic_err *) noexcept nogil
        int (*post_send)(rnic_qp *, const rnic_send_wr *, const rnic_send_wr **, rnic_err *) noexcept nogil
        int (*post_recv)(rnic_qp *, const rnic_recv_wr *, const rnic_recv_wr **, rnic_err *) noexcept nogil

        int (*create_qp_ex)(rnic_pd *, rnic_qp_init_attr_ex *, rnic_qp **, rnic_err *) noexcept nogil
        int (*post_send_whole)(rnic_qp *, const rnic_send_wr *, const rnic_send_wr **, rnic_err *) noexcept nogil
        int (*modify_qp_rate_limit)(rnic_qp *, const rnic_qp_rate_limit_attr *, rnic_err *) noexcept nogil
        int (*query_qp_data_in_order)(rnic_qp *, int, uint32_t, rnic_err *) noexcept nogil
        int (*set_ece)(rnic_qp *, rnic_ece *, rnic_err *) noexcept nogil
        int (*query_ece)(rnic_qp *, rnic_ece *, rnic_err *) noexcept nogil

        int (*create_srq)(rnic_pd *, void *, rnic_srq_attr *, rnic_srq **, rnic_err *) noexcept nogil
        int (*modify_srq)(rnic_srq *, const rnic_srq_attr *, uint32_t, rnic_err *) noexcept nogil
        int (*query_srq)(rnic_srq *, rnic_srq_attr *, rnic_err *) noexcept nogil
        int (*destroy_srq)(rnic_srq *, rnic_err *) noexcept nogil
        int (*post_srq_recv)(rnic_srq *, const rnic_recv_wr *, const rnic_recv_wr **, rnic_err *) noexcept nogil

        int (*post_srq_ops)(rnic_srq *, rnic_ops_wr *, rnic_ops_wr **, rnic_err *) noexcept nogil
        int (*open_xrcd)(rnic_context *, const rnic_xrcd_init_attr *, rnic_xrcd **, rnic_err *) noexcept nogil
        int (*close_xrcd)(rnic_xrcd *, rnic_err *) noexcept nogil
        int (*create_srq_ex)(rnic_context *, rnic_srq_init_attr_ex *, rnic_srq **, rnic_err *) noexcept nogil
        int (*create_xrc_qp)(rnic_xrcd *, rnic_qp_init_attr *, rnic_qp **, rnic_err *) noexcept nogil
        int (*open_qp)(rnic_context *, const rnic_qp_open_attr *, rnic_qp **, rnic_err *) noexcept nogil
        int (*alloc_mw)(rnic_pd *, int, rnic_mw **, rnic_err *) noexcept nogil
        int (*dealloc_mw)(rnic_mw *, rnic_err *) noexcept nogil
        int (*bind_mw)(rnic_qp *, rnic_mw *, const rnic_mw_bind *, rnic_err *) noexcept nogil

        int (*create_ah)(rnic_pd *, const rnic_ah_attr *, rnic_ah **, rnic_err *) noexcept nogil
        int (*destroy_ah)(rnic_ah *, rnic_err *) noexcept nogil
        int (*attach_mcast)(rnic_qp *, const rnic_gid *, uint16_t, rnic_err *) noexcept nogil
        int (*detach_mcast)(rnic_qp *, const rnic_gid *, uint16_t, rnic_err *) noexcept nogil

        int (*query_device_ex)(rnic_context *, rnic_device_attr_ex *, rnic_err *) noexcept nogil
        int (*query_rt_values)(rnic_context *, rnic_values_ex *, rnic_err *) noexcept nogil
        int (*create_cq_ex)(
            rnic_context *, const rnic_cq_init_attr_ex *, rnic_cq **, rnic_err *) noexcept nogil
        int (*poll_cq_ex)(rnic_cq *, int, rnic_wc *, rnic_wc_ex *) noexcept nogil
        int (*modify_cq)(rnic_cq *, const rnic_modify_cq_attr *, rnic_err *) noexcept nogil

        int (*create_counters)(rnic_context *, rnic_flow_counters **, rnic_err *) noexcept nogil
        int (*destroy_counters)(rnic_flow_counters *, rnic_err *) noexcept nogil
        int (*attach_counters_point_flow)(
            rnic_flow_counters *, const rnic_counter_attach_attr *, void *, rnic_err *) noexcept nogil
        int (*read_counters)(rnic_flow_counters *, uint64_t *, uint32_t, uint32_t, rnic_err *) noexcept nogil

        int (*query_comp_cntr_caps)(rnic_context *, rnic_comp_cntr_caps *, rnic_err *) noexcept nogil
        int (*create_comp_cntr)(
            rnic_context *, const rnic_comp_cntr_init_attr *, rnic_comp_cntr **, rnic_err *) noexcept nogil
        int (*destroy_comp_cntr)(rnic_comp_cntr *, rnic_err *) noexcept nogil
        int (*set_comp_cntr)(rnic_comp_cntr *, bint, uint64_t, rnic_err *) noexcept nogil
        int (*inc_comp_cntr)(rnic_comp_cntr *, bint, uint64_t, rnic_err *) noexcept nogil
        int (*read_comp_cntr)(rnic_comp_cntr *, bint, uint64_t *, rnic_err *) noexcept nogil
        int (*attach_comp_cntr)(rnic_qp *, rnic_comp_cntr *, uint32_t, rnic_err *) noexcept nogil
        int (*reg_mr_ex)(rnic_pd *, const rnic_mr_init_attr *, rnic_mr **, rnic_err *) noexcept nogil
        int (*alloc_null_mr)(rnic_pd *, rnic_mr **, rnic_err *) noexcept nogil
        int (*rereg_mr)(rnic_mr *, uint32_t, rnic_pd *, void *, uint64_t, uint32_t, rnic_err *) noexcept nogil
        int (*advise_mr)(rnic_pd *, int, uint32_t, const rnic_sge *, int, rnic_err *) noexcept nogil
        int (*alloc_dm)(rnic_context *, uint64_t, uint32_t, rnic_dm **, rnic_err *) noexcept nogil
        int (*free_dm)(rnic_dm *, rnic_err *) noexcept nogil
        int (*memcpy_to_dm)(rnic_dm *, uint64_t, const void *, uint64_t, rnic_err *) noexcept nogil
        int (*memcpy_from_dm)(void *, rnic_dm *, uint64_t, uint64_t, rnic_err *) noexcept nogil

        int (*alloc_td)(rnic_context *, rnic_td **, rnic_err *) noexcept nogil
        int (*dealloc_td)(rnic_td *, rnic_err *) noexcept nogil
        int (*alloc_parent_domain)(rnic_pd *, rnic_td *, rnic_pd **, rnic_err *) noexcept nogil

        int (*import_pd)(rnic_context *, uint32_t, rnic_pd **, rnic_err *) noexcept nogil
        int (*unimport_pd)(rnic_pd *, rnic_err *) noexcept nogil
        int (*import_mr)(rnic_pd *, uint32_t, rnic_mr **, rnic_err *) noexcept nogil
        int (*unimport_mr)(rnic_mr *, rnic_err *) noexcept nogil
        int (*import_dm)(rnic_context *, uint32_t, rnic_dm **, rnic_err *) noexcept nogil
        int (*unimport_dm)(rnic_dm *, rnic_err *) noexcept nogil

        int (*create_flow)(rnic_qp *, const rnic_flow_attr *, rnic_flow **, rnic_err *) noexcept nogil
        int (*destroy_flow)(rnic_flow *, rnic_err *) noexcept nogil
        int (*create_wq)(rnic_context *, rnic_wq_init_attr *, rnic_wq **, rnic_err *) noexcept nogil
        int (*modify_wq)(rnic_wq *, const rnic_wq_attr *, rnic_err *) noexcept nogil
        int (*destroy_wq)(rnic_wq *, rnic_err *) noexcept nogil
        int (*post_wq_recv)(rnic_wq *, const rnic_recv_wr *, const rnic_recv_wr **, rnic_err *) noexcept nogil
        int (*create_rwq_ind_table)(
            rnic_context *, const rnic_rwq_ind_table_init_attr *, rnic_rwq_ind_table **, rnic_err *) noexcept nogil
        int (*destroy_rwq_ind_table)(rnic_rwq_ind_table *, rnic_err *) noexcept nogil

        int (*get_async_event)(rnic_context *, rnic_async_event *, rnic_err *) noexcept nogil
        int (*ack_async_event)(rnic_context *, const rnic_async_event *, rnic_err *) noexcept nogil
        int (*failed_fd)(rnic_context *) noexcept nogil
        int (*wait)(rnic_context *, rnic_comp_channel *) noexcept nogil

    struct rnic_env_row:
        const char *name
        const char *values
        const char *otherwise
        const char *text

    const rnic_env_row *rnic_env_row_at "rnic_env_row"(int)
    int rnic_env_check(const char *, const char *, rnic_err *)
    struct rnic_fail:
        int call
        uint32_t nth
        uint32_t ppm
        uint64_t seed
        int error
    enum:
        RNIC_ENV_FAIL
    int rnic_env_fail(rnic_fail *, rnic_err *)
    bint rnic_fail_hits(const rnic_fail *, uint64_t)
    const char *rnic_fail_name(int)
    const char *rnic_env_device()
    int rnic_env_local(rnic_err *)
    int rnic_env_mpa_crc(rnic_err *)
    int rnic_env_pkeys(uint16_t *, int, rnic_err *)

    struct rnic_extension_row "rnic_extension":
        const char *name

    struct rnic_provider:
        const char *name
        int (*list)(rnic_device_info *, int, rnic_err *) noexcept nogil
        int (*open)(const char *, const rnic_open_attr *, rnic_context **, rnic_err *) noexcept nogil
        int (*import_ "import")(int, rnic_context **, rnic_device_info *, rnic_err *) noexcept nogil
        const rnic_extension_row *extensions

    const rnic_provider *rnic_provider_at "rnic_provider"(int)
    int rnic_provider_add(const rnic_provider *, rnic_err *)
    int rnic_provider_check(const rnic_provider *, rnic_err *)
    const void *rnic_extension(const rnic_context *, const char *)
    int rnic_init_ah_from_wc(
        rnic_context *, int, const rnic_wc *, const uint8_t *, int, rnic_ah_attr *, rnic_err *) nogil

    const char *RNIC_EXT_CM
    const char *RNIC_EXT_NOW
    const char *RNIC_EXT_BEHIND
    const char *RNIC_EXT_DRIVE
    const char *RNIC_EXT_STATS
    const char *RNIC_EXT_CAUSES
    const char *RNIC_EXT_FAULTS
    const char *RNIC_EXT_EVENTS
    const char *RNIC_EXT_PKEYS
    const char *RNIC_EXT_MEMORY
    const char *RNIC_EXT_QUERY
    const char *RNIC_EXT_STREAM

    struct rnic_ext_cm:
        int (*listen)(rnic_context *, uint64_t, const rnic_gid *, uint32_t, rnic_listener **, rnic_err *) noexcept nogil
        int (*unlisten)(rnic_listener *, rnic_err *) noexcept nogil
        int (*slot)(rnic_context *, uint32_t *, rnic_err *) noexcept nogil
        int (*watch)(rnic_context *, uint32_t, int *, rnic_err *) noexcept nogil
        int (*watch_service)(rnic_context *, uint64_t, const rnic_gid *, int *, rnic_err *) noexcept nogil

    struct rnic_ext_now:
        bint (*post_send)(rnic_qp *, const rnic_send_wr *) noexcept nogil
        int (*poll_cq)(rnic_cq *, int, rnic_wc *) noexcept nogil

    struct rnic_ext_drive:
        int (*wait_cq)(rnic_cq **, int, int, uint64_t, bint) noexcept nogil
        int (*wait_channel)(rnic_comp_channel *, uint64_t, bint) noexcept nogil
        int (*descriptor)(rnic_context *) noexcept nogil
        bint (*look)(rnic_context *) noexcept nogil
        bint (*settle)(rnic_context *) noexcept nogil
        void (*give_way)(rnic_context *) noexcept nogil
        bint (*has)(rnic_cq *) noexcept nogil

    struct rnic_ext_behind:
        bint (*post_send)(rnic_qp *, const rnic_send_wr *) noexcept nogil

    struct rnic_ext_stats:
        int (*query_counters)(rnic_context *, rnic_counters *, rnic_err *) noexcept nogil
        int (*query_qp)(rnic_qp *, rnic_qp_stats *, rnic_err *) noexcept nogil

    struct rnic_cause:
        char found[256]
        char cure[192]

    struct rnic_ext_causes:
        bint (*of)(rnic_context *, const rnic_wc *, rnic_cause *) noexcept nogil
        void (*listen)(rnic_context *, void *, void *) noexcept nogil

    struct rnic_ext_faults:
        int (*set)(rnic_context *, const rnic_fault *, rnic_err *) noexcept nogil

    struct rnic_ext_events:
        int (*raise_ "raise")(rnic_context *, int, uint64_t, rnic_err *) noexcept nogil

    struct rnic_ext_pkeys:
        int (*set)(rnic_context *, int, const uint16_t *, int, rnic_err *) noexcept nogil

    struct rnic_stream_attr:
        int fd
        int line
        const uint8_t *bytes
        uint32_t nbytes
        uint8_t rtr
        bint initiator, crc, markers_in, markers_out, rfc7306, tell_ready

    struct rnic_stream_event:
        uint32_t qp_num
        uint8_t end, layer, type, code
        int error

    struct rnic_ext_stream:
        int (*attach)(rnic_qp *, const rnic_stream_attr *, rnic_err *) noexcept nogil
        int (*fd)(rnic_context *) noexcept nogil
        int (*next_event)(rnic_context *, rnic_stream_event *, rnic_err *) noexcept nogil
        int (*confirm)(rnic_qp *, bint, rnic_err *) noexcept nogil

    struct rnic_ext_memory:
        int (*alloc_mr)(rnic_pd *, uint64_t, uint32_t, rnic_mr **, rnic_err *) noexcept nogil

    struct rnic_ext_query:
        int (*mw)(rnic_mw *, rnic_mw_bind_info *, rnic_err *) noexcept nogil
        int (*wq)(rnic_wq *, int *, uint32_t *, rnic_err *) noexcept nogil
        int (*ah)(rnic_ah *, rnic_ah_attr *, rnic_err *) noexcept nogil
        int (*raw)(rnic_context *, rnic_raw_attr *, rnic_err *) noexcept nogil

    const char *rnic_counter_name(int)
    const char *rnic_counter_text(int)
    const char *rnic_vendor_err_name(int)
    const char *rnic_vendor_err_text(int)

    enum:
        RNIC_EXPLAINED
    void rnic_explain(const rnic_wc *, const rnic_cause *, char *, size_t)

    struct rnic_enum_row:
        const char *group
        const char *name
        int64_t value

    const rnic_enum_row *rnic_enum_row_at "rnic_enum_row"(int)
