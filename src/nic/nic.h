/* SPDX-License-Identifier: Apache-2.0
 *
 * nic.h: all that a binding may know of the device.
 *
 * Devices come from providers (struct rnic_provider), of which the software RNIC in this directory is the first.
 * Objects are opaque behind small public structs; every verb goes through its provider's operations table (struct
 * rnic_ops), and what libibverbs does not have through an extension (nic_ext.h).  Values of enumerations and the fields
 * of work requests, scatter/gather elements, completions and attributes are libibverbs' own (man ibv_post_send, ...), so
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

#include "nic_enums.h"
#include "nic_env.h"
#include "nic_ext.h"
#include "nic_raw.h"

/* ---------------------------------------------------------------- attributes (fields as in libibverbs) */

struct rnic_err {
    char text[256]; /* why a call failed, one sentence without a full stop; "" when there is nothing to add */
    /* Of a call that destroys an object and has answered -EBUSY: because of so many events that are not acknowledged, and
     * nothing else; 0: something uses the object. */
    uint32_t unacknowledged;
};

union rnic_gid {
    uint8_t raw[16];
};

struct rnic_device_info { /* a device as listed, before it is opened */
    char name[32];        /* roce_<netdev> or iwarp_<netdev> of a software RNIC; unique in its provider's list */
    char netdev[16];      /* the interface that has its addresses; "": none */
    uint64_t guid;        /* EUI-64 of the netdev's hardware address; host byte order */
    int ifindex;          /* of netdev; 0: none */
    int transport;        /* enum rnic_transport */
    int node_type;        /* enum rnic_node_type */
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
    RNIC_MR_INIT_ALLOC = 1 << 3, /* the device's own making, as by RNIC_EXT_MEMORY */
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
    const struct rnic_ops *ops; /* the provider's */
    const struct rnic_provider *provider;
    int async_fd; /* readable while asynchronous events wait; -1: none ever come */
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
    uint8_t ip_version; /* of a datagram: 4 or 6, the header that it came with (A17.4.5.1) */
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

/* ---------------------------------------------------------------- the provider seam */

struct rnic_open_attr {
    uint32_t rcvbuf;       /* bytes of socket buffer to ask for; 0: as much as the system grants */
    uint32_t max_window;   /* bytes in flight a QP; 0: from the granted socket buffer */
    uint32_t no_gso;       /* 1: one packet per system call */
    const uint16_t *pkeys; /* the P_Key table, num_pkeys entries; 0 of them: the default partition alone, 0xFFFF */
    uint32_t num_pkeys;
    int congestion; /* 1: control it, -1: not; 0: unless the netdev is the loopback, where nothing marks */
    int local;      /* -1: peers on this host are reached by the wire, 1, 0: by shared memory */
};

/* The verbs, each with a counterpart in libibverbs.  A provider fills in what it has; NULL: it lacks the verb, and the
 * caller says so (EOPNOTSUPP).  rnic_provider_check() knows which ones are not NULL in any table: what makes, connects and
 * drives an ordinary queue pair, and what gives an object back if the table has what makes it.  So who has an object need
 * not look whether it can be posted to, polled, armed or destroyed. */
struct rnic_ops {
    int (*close)(struct rnic_context *ctx, struct rnic_err *err); /* -EBUSY: objects are left in it */
    /* Closes a context with all that is left in it, as a kernel does at the end of a process: flow rules, queue pairs (which
     * leave their multicast groups), counters, indirection tables, work queues, shared receive queues, address handles,
     * windows, regions, device memory, XRC domains, completion queues and channels, listeners, and last the domains.
     * Imports end, and owners in other processes keep what is theirs.  Work that is under way is not completed, and no event
     * is told any more; those that are not acknowledged hold nothing back.
     *
     * 0, or 1: the context has another owner in this process (import), to whom all objects are left.  -EBUSY: a process that
     * has been stopped is inside a copy; all objects are there, queue pairs perhaps in the error state, and the call can be made again.
     * No thread may be in another call with the context or what is in it.  Descriptors go without a word to who waits for
     * them: wake such threads first, and have them leave. */
    int (*close_all)(struct rnic_context *ctx, struct rnic_err *err);
    int (*query_device)(struct rnic_context *ctx, struct rnic_device_attr *attr, struct rnic_err *err);
    int (*query_port)(struct rnic_context *ctx, int port, struct rnic_port_attr *attr, struct rnic_err *err);
    int (*query_gid)(struct rnic_context *ctx, int port, int index, struct rnic_gid_entry *gid, struct rnic_err *err);
    int (*query_pkey)(struct rnic_context *ctx, int port, int index, uint16_t *pkey, struct rnic_err *err);

    int (*alloc_pd)(struct rnic_context *ctx, struct rnic_pd **pd, struct rnic_err *err);
    int (*dealloc_pd)(struct rnic_pd *pd, struct rnic_err *err);
    int (*reg_mr)(struct rnic_pd *pd, void *addr, uint64_t length, uint32_t access, struct rnic_mr **mr,
                  struct rnic_err *err);
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

    int (*create_ah)(struct rnic_pd *pd, const struct rnic_ah_attr *attr, struct rnic_ah **ah, struct rnic_err *err);
    int (*destroy_ah)(struct rnic_ah *ah, struct rnic_err *err); /* at once: work that is posted keeps the way */
    int (*attach_mcast)(struct rnic_qp *qp, const union rnic_gid *gid, uint16_t lid, struct rnic_err *err);
    int (*detach_mcast)(struct rnic_qp *qp, const union rnic_gid *gid, uint16_t lid, struct rnic_err *err);

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
    int (*create_flow)(struct rnic_qp *qp, const struct rnic_flow_attr *attr, struct rnic_flow **flow,
                       struct rnic_err *err);
    int (*destroy_flow)(struct rnic_flow *flow, struct rnic_err *err);
    int (*create_wq)(struct rnic_context *ctx, struct rnic_wq_init_attr *attr, struct rnic_wq **wq,
                     struct rnic_err *err);
    int (*modify_wq)(struct rnic_wq *wq, const struct rnic_wq_attr *attr, struct rnic_err *err);
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
    /* A descriptor of the context that becomes readable when the device fails, and stays so. */
    int (*failed_fd)(struct rnic_context *ctx);
    /* Waits until failed_fd is readable or ch->fd is (NULL: async_fd), as a blocking read(2) does: 0, look again; -EINTR, after
     * a signal whose handler is without SA_RESTART.  A point of cancellation. */
    int (*wait)(struct rnic_context *ctx, struct rnic_comp_channel *ch);
};

/* A row of a provider's extensions: nic_ext.h. */
struct rnic_extension {
    const char *name;  /* RNIC_EXT_... */
    const void *table; /* struct rnic_ext_... */
};

/* Where devices come from: all that others need to know of one kind of hardware, or of software in its place. */
struct rnic_provider {
    const char *name; /* in messages, too */
    /* The devices that can be opened by this process: at most max into list; the number there are, or -errno. */
    int (*list)(struct rnic_device_info *list, int max, struct rnic_err *err);
    /* Opens a device by its name in the list.  attr, or NULL: wishes, of which a provider fulfils those that mean something
     * to it; but P_Keys that it cannot set are refused.  The context is open until ops->close(). */
    int (*open)(const char *name, const struct rnic_open_attr *attr, struct rnic_context **ctx, struct rnic_err *err);
    /* Or NULL.  The context that cmd_fd is of: the same one, if it is open in this process, which each of its owners then
     * closes; else a context of its own on the same device, which can import what the other process lets others have.
     * cmd_fd stays the caller's. -EINVAL: it is of no context of this provider. */
    int (*import)(int cmd_fd, struct rnic_context **ctx, struct rnic_device_info *info, struct rnic_err *err);
    const struct rnic_ops *ops;
    const struct rnic_extension *extensions; /* up to a row without a name; NULL: none */
};

/* The software RNIC: RoCEv2 and iWARP in this process, a device of each for each network interface with an address. */
extern const struct rnic_provider rnic_soft;

/* Provider i of this process, in the order in which their devices are listed; NULL past the end. */
const struct rnic_provider *rnic_provider(int i);

/* Adds one of the program's own, which is never taken away again.  -EINVAL: it lacks what rnic_provider_check() asks for;
 * -EEXIST: there is one of this name; -ENOSPC: there are too many. */
int rnic_provider_add(const struct rnic_provider *provider, struct rnic_err *err);

/* 0, or -EINVAL: a function that may not be NULL is. */
int rnic_provider_check(const struct rnic_provider *provider, struct rnic_err *err);

/* The table of an extension of the context's provider; NULL: it lacks it. */
const void *rnic_extension(const struct rnic_context *ctx, const char *name);

/* The address vector of the way back to the sender of a datagram, whose receive began with the 40 bytes grh; for a context of
 * any provider.  sgid_index: our own address to answer from; -1: the one that the datagram came to.  -EINVAL: that is none of
 * the port's, as with a multicast group, or there is no GRH. */
int rnic_init_ah_from_wc(struct rnic_context *ctx, int port, const struct rnic_wc *wc, const uint8_t grh[40],
                         int sgid_index, struct rnic_ah_attr *attr, struct rnic_err *err);

/* Names and texts of the X-macros, for bindings. NULL for a value that has none. */
const char *rnic_counter_name(int counter);
const char *rnic_counter_text(int counter);
const char *rnic_vendor_err_name(int vendor_err);
const char *rnic_vendor_err_text(int vendor_err);

/* A completion in words, on one line: what went wrong, on which side, and what to look at. cause: what the device knows beside
 * wc (nic_ext.h), or NULL. */
#define RNIC_EXPLAINED 1024 /* bytes that are enough for text */
void rnic_explain(const struct rnic_wc *wc, const struct rnic_cause *cause, char *text, size_t room);

struct rnic_enum_row {
    const char *group, *name; /* "wc_status", "SUCCESS" */
    int64_t value;
};
/* Row i of every enumeration of nic_enums.h and nic_raw.h, in order; NULL past the end. */
const struct rnic_enum_row *rnic_enum_row(int i);

#endif
