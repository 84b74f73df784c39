/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations table of the software RNIC (IBA chapter 11; the man pages of libibverbs).
 */
#include <errno.h>
#include <string.h>

#include "base/fail.h"
#include "base/handlers.h"
#include "roce/roce.h"
#include "verbs/verbs.h"

/* ---------------------------------------------------------------- device */

static int soft_query_device(struct rnic_context *ctx, struct rnic_device_attr *attr, struct rnic_err *err) {
    const struct dev *dev = dev_of(ctx);
    int rc = dev_check_working(dev, err);
    if (rc)
        return rc;
    *attr = dev->attr;
    return 0;
}

static int soft_query_rt_values(struct rnic_context *ctx, struct rnic_values_ex *values, struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(ctx), err);
    if (rc)
        return rc;
    if (values->comp_mask & ~(uint32_t)RNIC_VALUES_MASK_RAW_CLOCK)
        return fail(err, -EINVAL, "comp_mask is 0x%x; the device has the raw clock (0x%x)", values->comp_mask,
                    RNIC_VALUES_MASK_RAW_CLOCK);
    uint64_t now = run_clock();
    if (values->comp_mask)
        values->raw_clock = (struct timespec){(time_t)(now / 1000000000), (long)(now % 1000000000)};
    return 0;
}

/* As the kernel has it now, whether or not the engine has read its notices: a program that has just given an address, or was
 * led to it by a route, asks for its GID.  In a forked child the lock may be held for ever, and nothing changes any more. */
static struct netdev netdev_now(struct dev *dev) {
    if (atomic_load(&dev->dead))
        return dev->net.netdev;
    dev_lock(dev);
    follow_receive(&dev->net, run_clock());
    struct netdev net = dev->net.netdev;
    dev_unlock(dev);
    return net;
}

static struct rnic_counters counters_now(struct dev *dev) {
    bool dead = atomic_load(&dev->dead);
    if (!dead)
        dev_lock(dev);
    struct rnic_counters counters = dev->nic.counters;
    if (!dead)
        dev_unlock(dev);
    return counters;
}

static uint32_t violations(uint64_t n) { return n < 0xFFFF ? (uint32_t)n : 0xFFFF; } /* 16 bits (IBA 14.2.5.6) */

static int soft_query_port(struct rnic_context *ctx, int port, struct rnic_port_attr *attr, struct rnic_err *err) {
    int rc = dev_check_working(dev_of(ctx), err);
    if (!rc)
        rc = dev_check_port(port, err);
    if (rc)
        return rc;
    struct netdev net = netdev_now(dev_of(ctx));
    struct rnic_counters counters = counters_now(dev_of(ctx));
    const struct device_kind *kind = dev_of(ctx)->kind;
    int mtu = kind->net->mtu_of(net.mtu);
    bool up = net.up && mtu;
    *attr = (struct rnic_port_attr){
        .state = up ? RNIC_PORT_ACTIVE : RNIC_PORT_DOWN,
        .max_mtu = RNIC_MTU_4096,
        .active_mtu = mtu ? mtu : RNIC_MTU_256,
        .gid_tbl_len = kind->gids,
        .port_cap_flags = kind->port_cap_flags,
        .max_msg_sz = 0x7FFFFFFF,
        .bad_pkey_cntr = violations(counters.value[RNIC_CNT_drop_bad_pkey]),
        .qkey_viol_cntr = violations(counters.value[RNIC_CNT_drop_bad_qkey]),
        .pkey_tbl_len = (uint16_t)kind->pkeys,
        .max_vl_num = 1,
        .active_width = dev_of(ctx)->rate.width,
        .active_speed = dev_of(ctx)->rate.speed,
        .phys_state = up ? 5 : 3, /* LinkUp, Disabled */
        .link_layer = RNIC_LINK_LAYER_ETHERNET,
    };
    return 0;
}

static int soft_query_gid(struct rnic_context *ctx, int port, int index, struct rnic_gid_entry *gid,
                          struct rnic_err *err) {
    int rc = dev_check_working(dev_of(ctx), err);
    if (!rc)
        rc = dev_check_port(port, err);
    if (rc)
        return rc;
    const struct device_kind *kind = dev_of(ctx)->kind;
    if (index < 0 || index >= kind->gids)
        return fail(err, -EINVAL, "GID index %d; the table has %d entries", index, kind->gids);
    struct netdev net = netdev_now(dev_of(ctx));
    *gid = (struct rnic_gid_entry){.gid = net.gids[index],
                                   .gid_index = (uint32_t)index,
                                   .port_num = 1,
                                   .gid_type = (uint32_t)kind->gid_type,
                                   .ndev_ifindex = (uint32_t)net.ifindex};
    return 0;
}

static int soft_query_pkey(struct rnic_context *ctx, int port, int index, uint16_t *pkey, struct rnic_err *err) {
    int rc = dev_check_port(port, err);
    if (rc)
        return rc;
    int pkeys = dev_of(ctx)->kind->pkeys;
    if (index < 0 || index >= pkeys)
        return fail(err, -EINVAL, "P_Key index %d; the table has %d entries", index, pkeys);
    *pkey = dev_of(ctx)->nic.ib.pkeys[index];
    return 0;
}

static int soft_set_pkeys(struct rnic_context *ctx, int port, const uint16_t *pkeys, int n, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_has(dev, HAS_PARTITIONS, "partitions", err);
    if (!rc)
        rc = dev_check_port(port, err);
    if (rc)
        return rc;
    dev_lock(dev);
    rc = pkeys_set(&dev->net, pkeys, (uint32_t)n, err);
    dev_unlock(dev);
    return rc;
}

static int soft_query_counters(struct rnic_context *ctx, struct rnic_counters *out, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    *out = dev->nic.counters;
    out->value[RNIC_CNT_port_remaps] = ports_remaps(&dev->net);
    dev_unlock(dev);
    return 0;
}

static int soft_set_fault(struct rnic_context *ctx, const struct rnic_fault *fault, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    rc = net_set_fault(&dev->net, fault, err);
    dev_unlock(dev);
    engine_wake(&dev->run); /* it may have to wait for what the injector holds */
    return rc;
}

static int soft_raise_event(struct rnic_context *ctx, int event_type, uint64_t after, struct rnic_err *err) {
    int rc = dev_check_usable(dev_of(ctx), err);
    return rc ? rc : planned_raise(dev_of(ctx), event_type, after, err);
}

static int soft_get_async_event(struct rnic_context *ctx, struct rnic_async_event *event, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    rc = event_take(&dev->nic.events, event);
    return rc < 0 ? fail(err, rc, "no memory to keep in mind that the event is to be acknowledged") : rc ? 0 : -EAGAIN;
}

static int soft_ack_async_event(struct rnic_context *ctx, const struct rnic_async_event *event, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    return event_ack(&dev->nic.events, event->context) ? fail(err, -EINVAL, "the event is acknowledged already") : 0;
}

static int soft_failed_fd(struct rnic_context *ctx) { return dev_of(ctx)->nic.events.end_fd; }

static int soft_wait(struct rnic_context *ctx, struct rnic_comp_channel *ch) {
    struct dev *dev = dev_of(ctx);
    struct event_queue *events = &dev->nic.events;
    struct pollfd fds[] = {{.fd = ch ? ch->fd : events->fd, .events = POLLIN},
                           {.fd = events->end_fd, .events = POLLIN}};
    if (atomic_load(&dev->dead))
        return 0;   /* whoever looks again is told */
    uint64_t until; /* whoever looks again waits on, and knows of handlers that were new */
    int rc = ch && handlers_lately(&until) != HANDLERS_DIFFER ? soft_wait_channel(ch, until, true) : -EAGAIN;
    if (rc == -EINTR)
        return handlers_now() == HANDLERS_RESTART ? 0 : rc;
    if (rc != -EAGAIN)
        return 0;
    return sleepers_wait(ch ? &((struct channel *)ch)->sleepers : &events->sleepers, fds, 2);
}

const struct rnic_ops soft_ops = {
    .close = soft_close,
    .close_all = soft_close_all,
    .query_device = soft_query_device,
    .query_port = soft_query_port,
    .query_gid = soft_query_gid,
    .query_pkey = soft_query_pkey,
    .alloc_pd = soft_alloc_pd,
    .dealloc_pd = soft_dealloc_pd,
    .reg_mr = soft_reg_mr,
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
    .destroy_qp = soft_destroy_qp,
    .post_send = soft_post_send,
    .post_recv = soft_post_recv,
    .create_qp_ex = soft_create_qp_ex,
    .post_send_whole = soft_post_send_whole,
    .modify_qp_rate_limit = soft_modify_qp_rate_limit,
    .query_qp_data_in_order = soft_query_qp_data_in_order,
    .set_ece = soft_set_ece,
    .query_ece = soft_query_ece,
    .create_srq = soft_create_srq,
    .modify_srq = soft_modify_srq,
    .query_srq = soft_query_srq,
    .destroy_srq = soft_destroy_srq,
    .post_srq_recv = soft_post_srq_recv,
    .post_srq_ops = soft_post_srq_ops,
    .open_xrcd = soft_open_xrcd,
    .close_xrcd = soft_close_xrcd,
    .create_srq_ex = soft_create_srq_ex,
    .create_xrc_qp = soft_create_xrc_qp,
    .open_qp = soft_open_qp,
    .alloc_mw = soft_alloc_mw,
    .dealloc_mw = soft_dealloc_mw,
    .bind_mw = soft_bind_mw,
    .create_ah = soft_create_ah,
    .destroy_ah = soft_destroy_ah,
    .attach_mcast = soft_attach_mcast,
    .detach_mcast = soft_detach_mcast,
    .query_device_ex = soft_query_device_ex,
    .query_rt_values = soft_query_rt_values,
    .create_cq_ex = soft_create_cq_ex,
    .poll_cq_ex = soft_poll_cq_ex,
    .modify_cq = soft_modify_cq,
    .create_counters = soft_create_counters,
    .destroy_counters = soft_destroy_counters,
    .attach_counters_point_flow = soft_attach_counters_point_flow,
    .read_counters = soft_read_counters,
    .query_comp_cntr_caps = soft_query_comp_cntr_caps,
    .create_comp_cntr = soft_create_comp_cntr,
    .destroy_comp_cntr = soft_destroy_comp_cntr,
    .set_comp_cntr = soft_set_comp_cntr,
    .inc_comp_cntr = soft_inc_comp_cntr,
    .read_comp_cntr = soft_read_comp_cntr,
    .attach_comp_cntr = soft_attach_comp_cntr,
    .reg_mr_ex = soft_reg_mr_ex,
    .alloc_null_mr = soft_alloc_null_mr,
    .rereg_mr = soft_rereg_mr,
    .advise_mr = soft_advise_mr,
    .alloc_dm = soft_alloc_dm,
    .free_dm = soft_free_dm,
    .memcpy_to_dm = soft_memcpy_to_dm,
    .memcpy_from_dm = soft_memcpy_from_dm,
    .alloc_td = soft_alloc_td,
    .dealloc_td = soft_dealloc_td,
    .alloc_parent_domain = soft_alloc_parent_domain,
    .import_pd = soft_import_pd,
    .unimport_pd = soft_unimport_pd,
    .import_mr = soft_import_mr,
    .unimport_mr = soft_unimport_mr,
    .import_dm = soft_import_dm,
    .unimport_dm = soft_unimport_dm,
    .create_flow = soft_create_flow,
    .destroy_flow = soft_destroy_flow,
    .create_wq = soft_create_wq,
    .modify_wq = soft_modify_wq,
    .destroy_wq = soft_destroy_wq,
    .post_wq_recv = soft_post_wq_recv,
    .create_rwq_ind_table = soft_create_rwq_ind_table,
    .destroy_rwq_ind_table = soft_destroy_rwq_ind_table,
    .get_async_event = soft_get_async_event,
    .ack_async_event = soft_ack_async_event,
    .failed_fd = soft_failed_fd,
    .wait = soft_wait,
};

/* ---------------------------------------------------------------- what libibverbs does not have */

static const struct rnic_ext_cm cm = {
    .listen = soft_cm_listen,
    .unlisten = soft_cm_unlisten,
    .slot = soft_cm_slot,
    .watch = soft_cm_watch,
    .watch_service = soft_cm_watch_service,
};
static const struct rnic_ext_now now = {.post_send = soft_post_send_now, .poll_cq = soft_poll_cq_now};
static int soft_descriptor(struct rnic_context *ctx) { return dev_of(ctx)->run.busy_fd; }

static bool soft_look(struct rnic_context *ctx) {
    return !atomic_load(&dev_of(ctx)->dead) && drive_look(&dev_of(ctx)->run);
}

static bool soft_settle(struct rnic_context *ctx) {
    return atomic_load(&dev_of(ctx)->dead) || drive_settle(&dev_of(ctx)->run);
}

static void soft_give_way(struct rnic_context *ctx) {
    if (!atomic_load(&dev_of(ctx)->dead))
        drive_give_way(&dev_of(ctx)->run);
}

static bool soft_has(struct rnic_cq *cq) { return !cq_empty((struct cq *)cq); }

static const struct rnic_ext_drive drive = {
    .wait_cq = soft_wait_cq,
    .wait_channel = soft_wait_channel,
    .descriptor = soft_descriptor,
    .look = soft_look,
    .settle = soft_settle,
    .give_way = soft_give_way,
    .has = soft_has,
};
static const struct rnic_ext_behind behind = {.post_send = soft_post_send_behind};
static const struct rnic_ext_stats stats = {.query_counters = soft_query_counters, .query_qp = soft_query_qp_stats};
static const struct rnic_ext_causes causes = {.of = soft_cause_of, .listen = soft_listen_causes};
static const struct rnic_ext_faults faults = {.set = soft_set_fault};
static const struct rnic_ext_events events = {.raise = soft_raise_event};
static const struct rnic_ext_pkeys pkeys = {.set = soft_set_pkeys};
static const struct rnic_ext_memory memory = {.alloc_mr = soft_alloc_mr};
static const struct rnic_ext_stream stream = {.attach = soft_attach_stream,
                                              .fd = soft_stream_fd,
                                              .next_event = soft_next_stream_event,
                                              .confirm = soft_confirm_stream};
static const struct rnic_ext_query query = {
    .mw = soft_query_mw,
    .wq = soft_query_wq,
    .ah = soft_query_ah,
    .raw = soft_query_raw,
};

const struct rnic_extension soft_extensions[] = {
    {RNIC_EXT_CM, &cm},
    {RNIC_EXT_NOW, &now},
    {RNIC_EXT_DRIVE, &drive},
    {RNIC_EXT_STATS, &stats},
    {RNIC_EXT_CAUSES, &causes},
    {RNIC_EXT_FAULTS, &faults},
    {RNIC_EXT_PKEYS, &pkeys},
    {RNIC_EXT_MEMORY, &memory},
    {RNIC_EXT_QUERY, &query},
    {RNIC_EXT_EVENTS, &events},
    {RNIC_EXT_STREAM, &stream},
    {RNIC_EXT_BEHIND, &behind},
    {0},
};
