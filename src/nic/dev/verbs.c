/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations table of the software RNIC (IBA chapter 11; the man pages of libibverbs).
 */
#include <errno.h>
#include <string.h>

#include "base/fail.h"
#include "dev/verbs.h"
#include "roce/roce.h"

#define HEADERS_MAX 84 /* IPv6, UDP, BTH, RETH, ImmDt, ICRC: what the netdev's MTU must leave room for */

int dev_check_alive(const struct dev *dev, struct rnic_err *err) {
    return atomic_load(&dev->dead)
               ? fail(err, -EINVAL,
                      "this device was opened before a fork(), in the parent process; open it again "
                      "in the child")
               : 0;
}

static int check_port(int port, struct rnic_err *err) {
    return port == 1 ? 0 : fail(err, -EINVAL, "port %d does not exist; the device has port 1", port);
}

/* ---------------------------------------------------------------- device */

static int soft_close(struct rnic_context *ctx, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    int pds = dev->pds, cqs = dev->cqs, channels = dev->channels, listeners = gsi_listeners(dev);
    int others = dev->raw_objects;
    dev_unlock(dev);
    if (pds || cqs || channels || listeners || others)
        return fail(err, -EBUSY,
                    "still open: %d protection domains, %d completion queues, %d completion channels, %d listeners, "
                    "%d work queues, tables and counters of frames",
                    pds, cqs, channels, listeners, others);
    return device_close(ctx);
}

static int soft_query_device(struct rnic_context *ctx, struct rnic_device_attr *attr, struct rnic_err *err) {
    const struct dev *dev = dev_of(ctx);
    (void)err;
    *attr = (struct rnic_device_attr){
        .fw_ver = RNIC_VERSION,
        .node_guid = dev->net.guid,
        .sys_image_guid = dev->net.guid,
        .max_mr_size = 1ull << 47,
        .page_size_cap = 0xFFFFF000,
        .max_qp = MAX_QP,
        .max_qp_wr = MAX_QP_WR,
        .device_cap_flags = RNIC_DEVICE_CURR_QP_STATE_MOD | RNIC_DEVICE_SYS_IMAGE_GUID | RNIC_DEVICE_RC_RNR_NAK_GEN |
                            RNIC_DEVICE_SRQ_RESIZE | RNIC_DEVICE_N_NOTIFY_CQ | RNIC_DEVICE_RAW_IP_CSUM |
                            RNIC_DEVICE_MANAGED_FLOW_STEERING,
        .max_sge = MAX_SGE,
        .max_sge_rd = MAX_SGE,
        .max_cq = MAX_CQ,
        .max_cqe = MAX_CQE,
        .max_mr = MAX_MR,
        .max_pd = MAX_PD,
        .max_qp_rd_atom = MAX_RD_ATOMIC,
        .max_res_rd_atom = MAX_RD_ATOMIC * MAX_QP,
        .max_qp_init_rd_atom = MAX_RD_ATOMIC,
        .atomic_cap = RNIC_ATOMIC_GLOB,
        .max_mcast_grp = MAX_GROUPS,
        .max_mcast_qp_attach = MAX_QP,
        .max_ah = MAX_AH,
        .max_srq = MAX_SRQ,
        .max_srq_wr = MAX_SRQ_WR,
        .max_srq_sge = MAX_SGE,
        .max_pkeys = 1,
        .local_ca_ack_delay = 15, /* 4.096 us * 2^15: a host under load */
        .phys_port_cnt = 1,
        .max_inline_data = MAX_INLINE,
    };
    return 0;
}

int dev_active_mtu(const struct dev *dev) {
    int mtu = RNIC_MTU_4096;
    while (mtu && (int)mtu_bytes(mtu) + HEADERS_MAX > dev->net.mtu)
        mtu--;
    return mtu;
}

static uint64_t qkey_violations(struct dev *dev) {
    if (atomic_load(&dev->dead)) /* its lock is held for ever */
        return 0;
    dev_lock(dev);
    uint64_t n = dev->nic.counters.value[RNIC_CNT_drop_bad_qkey];
    dev_unlock(dev);
    return n;
}

static int soft_query_port(struct rnic_context *ctx, int port, struct rnic_port_attr *attr, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = check_port(port, err);
    if (rc)
        return rc;
    uint64_t violations = qkey_violations(dev);
    *attr = (struct rnic_port_attr){
        .state = dev->net.up ? RNIC_PORT_ACTIVE : RNIC_PORT_DOWN,
        .max_mtu = RNIC_MTU_4096,
        .active_mtu = dev_active_mtu(dev),
        .gid_tbl_len = dev->net.ngids,
        .port_cap_flags = 0x00010000, /* CM is supported: IB_PORT_CM_SUP */
        .max_msg_sz = 0x7FFFFFFF,
        .qkey_viol_cntr = violations < 0xFFFF ? (uint32_t)violations : 0xFFFF, /* 16 bits wide (IBA 14.2.5.6) */
        .pkey_tbl_len = 1,
        .max_vl_num = 1,
        .active_width = 1,
        .active_speed = 1,
        .phys_state = dev->net.up ? 5 : 3, /* LinkUp, Disabled */
        .link_layer = RNIC_LINK_LAYER_ETHERNET,
    };
    return 0;
}

static int soft_query_gid(struct rnic_context *ctx, int port, int index, struct rnic_gid_entry *gid,
                          struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = check_port(port, err);
    if (rc)
        return rc;
    if (index < 0 || index >= dev->net.ngids)
        return fail(err, -EINVAL, "GID index %d; the table has %d entries", index, dev->net.ngids);
    *gid = (struct rnic_gid_entry){.gid = dev->net.gids[index],
                                   .gid_index = (uint32_t)index,
                                   .port_num = 1,
                                   .gid_type = RNIC_GID_TYPE_ROCE_V2,
                                   .ndev_ifindex = (uint32_t)dev->net.ifindex};
    return 0;
}

static int soft_query_pkey(struct rnic_context *ctx, int port, int index, uint16_t *pkey, struct rnic_err *err) {
    int rc = check_port(port, err);
    (void)ctx;
    if (rc)
        return rc;
    if (index != 0)
        return fail(err, -EINVAL, "P_Key index %d; the table has 1 entry", index);
    *pkey = 0xFFFF;
    return 0;
}

static int soft_query_counters(struct rnic_context *ctx, struct rnic_counters *out, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    *out = dev->nic.counters;
    dev_unlock(dev);
    return 0;
}

static int soft_set_fault(struct rnic_context *ctx, const struct rnic_fault *fault, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    udp_tx_flush(&dev->tx);
    fault_set(&dev->fault, fault);
    raw_set_fault(dev, fault);
    dev_unlock(dev);
    engine_wake(dev); /* it may have to wait for what the injector holds */
    return 0;
}

static int soft_get_async_event(struct rnic_context *ctx, struct rnic_async_event *event, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    return event_take(&dev->nic.events, event) ? 0 : -EAGAIN;
}

const struct rnic_ops soft_ops = {
    .name = "soft",
    .close = soft_close,
    .query_device = soft_query_device,
    .query_port = soft_query_port,
    .query_gid = soft_query_gid,
    .query_pkey = soft_query_pkey,
    .query_counters = soft_query_counters,
    .set_fault = soft_set_fault,
    .alloc_pd = soft_alloc_pd,
    .dealloc_pd = soft_dealloc_pd,
    .reg_mr = soft_reg_mr,
    .alloc_mr = soft_alloc_mr,
    .dereg_mr = soft_dereg_mr,
    .create_comp_channel = soft_create_comp_channel,
    .destroy_comp_channel = soft_destroy_comp_channel,
    .get_cq_event = soft_get_cq_event,
    .create_cq = soft_create_cq,
    .resize_cq = soft_resize_cq,
    .destroy_cq = soft_destroy_cq,
    .poll_cq = soft_poll_cq,
    .req_notify_cq = soft_req_notify_cq,
    .ack_cq_events = soft_ack_cq_events,
    .create_qp = soft_create_qp,
    .modify_qp = soft_modify_qp,
    .query_qp = soft_query_qp,
    .query_qp_stats = soft_query_qp_stats,
    .destroy_qp = soft_destroy_qp,
    .post_send = soft_post_send,
    .post_recv = soft_post_recv,
    .create_srq = soft_create_srq,
    .modify_srq = soft_modify_srq,
    .query_srq = soft_query_srq,
    .destroy_srq = soft_destroy_srq,
    .post_srq_recv = soft_post_srq_recv,
    .create_ah = soft_create_ah,
    .query_ah = soft_query_ah,
    .destroy_ah = soft_destroy_ah,
    .attach_mcast = soft_attach_mcast,
    .detach_mcast = soft_detach_mcast,
    .cm_listen = soft_cm_listen,
    .cm_unlisten = soft_cm_unlisten,
    .cm_slot = soft_cm_slot,
    .cm_watch = soft_cm_watch,
    .cm_watch_service = soft_cm_watch_service,
    .query_raw = soft_query_raw,
    .create_flow = soft_create_flow,
    .destroy_flow = soft_destroy_flow,
    .create_flow_counters = soft_create_flow_counters,
    .destroy_flow_counters = soft_destroy_flow_counters,
    .attach_flow_counter = soft_attach_flow_counter,
    .read_flow_counters = soft_read_flow_counters,
    .create_wq = soft_create_wq,
    .modify_wq = soft_modify_wq,
    .query_wq = soft_query_wq,
    .destroy_wq = soft_destroy_wq,
    .post_wq_recv = soft_post_wq_recv,
    .create_rwq_ind_table = soft_create_rwq_ind_table,
    .destroy_rwq_ind_table = soft_destroy_rwq_ind_table,
    .get_async_event = soft_get_async_event,
};
