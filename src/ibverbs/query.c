/* SPDX-License-Identifier: Apache-2.0
 *
 * What a device, its port and its tables say (man ibv_query_device, ibv_query_port, ibv_query_gid, ibv_query_pkey).
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "lib.h"
#include "versioned.h"

static void show_device(const struct rnic_device_attr *from, struct ibv_device_attr *to) {
    *to = (struct ibv_device_attr){
        .node_guid = __builtin_bswap64(from->node_guid),
        .sys_image_guid = __builtin_bswap64(from->sys_image_guid),
        .max_mr_size = from->max_mr_size,
        .page_size_cap = from->page_size_cap,
        .vendor_id = from->vendor_id,
        .vendor_part_id = from->vendor_part_id,
        .hw_ver = from->hw_ver,
        .max_qp = from->max_qp,
        .max_qp_wr = from->max_qp_wr,
        .device_cap_flags = from->device_cap_flags,
        .max_sge = from->max_sge,
        .max_sge_rd = from->max_sge_rd,
        .max_cq = from->max_cq,
        .max_cqe = from->max_cqe,
        .max_mr = from->max_mr,
        .max_pd = from->max_pd,
        .max_qp_rd_atom = from->max_qp_rd_atom,
        .max_res_rd_atom = from->max_res_rd_atom,
        .max_qp_init_rd_atom = from->max_qp_init_rd_atom,
        .atomic_cap = (enum ibv_atomic_cap)from->atomic_cap,
        .max_mw = from->max_mw,
        .max_raw_ethy_qp = from->max_qp,
        .max_mcast_grp = from->max_mcast_grp,
        .max_mcast_qp_attach = from->max_mcast_qp_attach,
        .max_total_mcast_qp_attach = from->max_mcast_grp,
        .max_ah = from->max_ah,
        .max_srq = from->max_srq,
        .max_srq_wr = from->max_srq_wr,
        .max_srq_sge = from->max_srq_sge,
        .max_pkeys = from->max_pkeys,
        .local_ca_ack_delay = from->local_ca_ack_delay,
        .phys_port_cnt = from->phys_port_cnt,
    };
    memcpy(to->fw_ver, from->fw_ver, sizeof to->fw_ver);
}

EXPORT int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
    struct context *c = context_of(context);
    struct rnic_device_attr got;
    struct rnic_err err = {0};
    int rc = CALL(c->ops, query_device, c->nic, &got, &err);
    if (!rc)
        show_device(&got, attr);
    return failed("query_device", rc, &err);
}

static int query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
                           struct ibv_device_attr_ex *attr, size_t size) {
    struct context *c = context_of(context);
    struct ibv_device_attr_ex all = {0};
    struct rnic_device_attr_ex got;
    struct rnic_err err = {0};
    if (input && input->comp_mask)
        return refused("query_device_ex", EINVAL, "input->comp_mask is not 0");
    int rc = CALL(c->ops, query_device_ex, c->nic, &got, &err);
    if (rc)
        return failed("query_device_ex", rc, &err);
    show_device(&got.orig_attr, &all.orig_attr);
    all.odp_caps.general_caps = got.odp_caps.general_caps;
    all.odp_caps.per_transport_caps.rc_odp_caps = got.odp_caps.per_transport_caps.rc_odp_caps;
    all.odp_caps.per_transport_caps.uc_odp_caps = got.odp_caps.per_transport_caps.uc_odp_caps;
    all.odp_caps.per_transport_caps.ud_odp_caps = got.odp_caps.per_transport_caps.ud_odp_caps;
    all.completion_timestamp_mask = got.completion_timestamp_mask;
    all.hca_core_clock = got.hca_core_clock;
    all.device_cap_flags_ex = got.device_cap_flags_ex;
    all.tso_caps = (struct ibv_tso_caps){got.tso_caps.max_tso, got.tso_caps.supported_qpts};
    all.rss_caps.supported_qpts = got.rss_caps.supported_qpts;
    all.rss_caps.max_rwq_indirection_tables = got.rss_caps.max_rwq_indirection_tables;
    all.rss_caps.max_rwq_indirection_table_size = got.rss_caps.max_rwq_indirection_table_size;
    all.rss_caps.rx_hash_fields_mask = got.rss_caps.rx_hash_fields_mask;
    all.rss_caps.rx_hash_function = got.rss_caps.rx_hash_function;
    all.max_wq_type_rq = got.max_wq_type_rq;
    all.packet_pacing_caps.qp_rate_limit_min = got.packet_pacing_caps.qp_rate_limit_min;
    all.packet_pacing_caps.qp_rate_limit_max = got.packet_pacing_caps.qp_rate_limit_max;
    all.packet_pacing_caps.supported_qpts = got.packet_pacing_caps.supported_qpts;
    all.raw_packet_caps = got.raw_packet_caps;
    all.tm_caps.max_rndv_hdr_size = got.tm_caps.max_rndv_hdr_size;
    all.tm_caps.max_num_tags = got.tm_caps.max_num_tags;
    all.tm_caps.flags = got.tm_caps.flags;
    all.tm_caps.max_ops = got.tm_caps.max_ops;
    all.tm_caps.max_sge = got.tm_caps.max_sge;
    all.cq_mod_caps = (struct ibv_cq_moderation_caps){got.cq_mod_caps.max_cq_count, got.cq_mod_caps.max_cq_period};
    all.max_dm_size = got.max_dm_size;
    all.xrc_odp_caps = got.xrc_odp_caps;
    all.phys_port_cnt_ex = got.orig_attr.phys_port_cnt;
    memset(attr, 0, size);
    memcpy(attr, &all, size < sizeof all ? size : sizeof all);
    return 0;
}

/* ---------------------------------------------------------------- the port */

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr, size_t size) {
    struct context *c = context_of(context);
    struct rnic_port_attr got;
    struct rnic_err err = {0};
    int rc = CALL(c->ops, query_port, c->nic, port, &got, &err);
    if (rc)
        return failed("query_port", rc, &err);
    struct ibv_port_attr all = {
        .state = (enum ibv_port_state)got.state,
        .max_mtu = (enum ibv_mtu)got.max_mtu,
        .active_mtu = (enum ibv_mtu)got.active_mtu,
        .gid_tbl_len = got.gid_tbl_len,
        .port_cap_flags = got.port_cap_flags,
        .max_msg_sz = got.max_msg_sz,
        .bad_pkey_cntr = got.bad_pkey_cntr,
        .qkey_viol_cntr = got.qkey_viol_cntr,
        .pkey_tbl_len = got.pkey_tbl_len,
        .lid = got.lid,
        .sm_lid = got.sm_lid,
        .lmc = got.lmc,
        .max_vl_num = got.max_vl_num,
        .sm_sl = got.sm_sl,
        .subnet_timeout = got.subnet_timeout,
        .init_type_reply = got.init_type_reply,
        .active_width = got.active_width,
        .active_speed = got.active_speed,
        .phys_state = got.phys_state,
        .link_layer = got.link_layer,
        .flags = got.flags,
    };
    memset(attr, 0, size);
    memcpy(attr, &all, size < sizeof all ? size : sizeof all);
    return 0;
}

#undef ibv_query_port
/* For programs of before port_cap_flags2. */
EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr) {
    return query_port(context, port, (struct ibv_port_attr *)attr, offsetof(struct ibv_port_attr, port_cap_flags2));
}

/* Of a lane, by its active_speed (a bit for each), in units of 100 Mbit/s; and how many lanes, by its active_width. */
static const uint16_t lane_speed[] = {25, 50, 100, 100, 140, 250, 500, 1000, 2000};
static const uint8_t lanes[] = {[1] = 1, [2] = 4, [4] = 8, [8] = 12, [16] = 2};

EXPORT int ibv_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed) {
    struct ibv_port_attr attr = {0};
    int rc = port > UINT8_MAX ? EINVAL : query_port(context, (uint8_t)port, &attr, sizeof attr);
    if (rc)
        return rc;
    unsigned bit = attr.active_speed ? (unsigned)__builtin_ctz(attr.active_speed) : 0;
    unsigned width = attr.active_width < sizeof lanes ? lanes[attr.active_width] : 0;
    *speed = (uint64_t)lane_speed[bit] * width;
    return 0;
}

static int query_rt_values(struct ibv_context *context, struct ibv_values_ex *values) {
    struct context *c = context_of(context);
    struct rnic_values_ex got = {.comp_mask = values->comp_mask};
    struct rnic_err err = {0};
    int rc = CALL(c->ops, query_rt_values, c->nic, &got, &err);
    if (!rc)
        *values = (struct ibv_values_ex){got.comp_mask, got.raw_clock};
    return failed("query_rt_values_ex", rc, &err);
}

/* ---------------------------------------------------------------- GIDs and P_Keys */

static const union rnic_gid no_gid;

/* 0, or an errno: ENODATA for an entry that is empty, as of a kernel's table. */
static int gid_entry(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry) {
    struct context *c = context_of(context);
    struct rnic_gid_entry got;
    struct rnic_err err = {0};
    int rc = UNCANCELLED(c->ops->query_gid(c->nic, (int)port, (int)index, &got, &err));
    if (rc)
        return failed("query_gid", rc, &err);
    if (!memcmp(&got.gid, &no_gid, sizeof no_gid))
        return ENODATA;
    memcpy(entry, &got, sizeof *entry);
    return 0;
}

EXPORT int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
    struct ibv_gid_entry entry;
    if (failed("query_gid", FAILS(query_gid), NULL))
        return -1;
    int rc = gid_entry(context, port, (uint32_t)index, &entry);
    if (rc && rc != ENODATA)
        return -1;
    if (rc)
        memset(gid, 0, sizeof *gid);
    else
        *gid = entry.gid;
    return 0;
}

EXPORT int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
                             uint32_t flags, size_t size) {
    struct ibv_gid_entry all;
    if (flags)
        return refused("query_gid_ex", EINVAL, "flags is not 0");
    int rc = failed("query_gid_ex", FAILS(query_gid), NULL);
    if (!rc)
        rc = gid_entry(context, port, index, &all);
    if (!rc)
        memcpy(entry, &all, size < sizeof all ? size : sizeof all);
    return rc;
}

EXPORT ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max,
                                    uint32_t flags, size_t size) {
    struct ibv_port_attr port;
    struct ibv_gid_entry all;
    size_t n = 0;
    int rc = flags ? EINVAL : query_port(context, 1, &port, sizeof port);
    for (int i = 0; !rc && i < port.gid_tbl_len; i++) {
        int found = gid_entry(context, 1, (uint32_t)i, &all);
        if (found == ENODATA)
            continue;
        rc = found ? found : n == max ? EINVAL : 0;
        if (!rc)
            memcpy((char *)entries + size * n++, &all, size < sizeof all ? size : sizeof all);
    }
    return rc ? -rc : (ssize_t)n;
}

/* librdmacm's and the drivers' own: 0 for InfiniBand and RoCE v1, 1 for RoCE v2. */
enum gid_type_sysfs { GID_TYPE_IB_ROCE_V1, GID_TYPE_ROCE_V2 };
EXPORT int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned index, enum gid_type_sysfs *type) {
    struct ibv_gid_entry entry = {0};
    int rc = gid_entry(context, port, index, &entry);
    if (rc) {
        errno = rc;
        return -1;
    }
    *type = entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? GID_TYPE_ROCE_V2 : GID_TYPE_IB_ROCE_V1;
    return 0;
}
PRIVATE_VERSIONS(ibv_query_gid_type)

EXPORT int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey) {
    struct context *c = context_of(context);
    struct rnic_err err = {0};
    uint16_t got;
    int rc = CALL(c->ops, query_pkey, c->nic, port, index, &got, &err);
    if (rc) {
        failed("query_pkey", rc, &err);
        return -1;
    }
    *pkey = htons(got);
    return 0;
}

EXPORT int ibv_get_pkey_index(struct ibv_context *context, uint8_t port, __be16 pkey) {
    struct ibv_port_attr attr;
    __be16 found;
    int rc = query_port(context, port, &attr, sizeof attr);
    for (int i = 0; !rc && i < attr.pkey_tbl_len; i++) {
        if (ibv_query_pkey(context, port, i, &found) == 0 && found == pkey)
            return i;
    }
    return -1;
}

/* ---------------------------------------------------------------- sysfs */

EXPORT const char *ibv_get_sysfs_path(void) { return "/sys"; }

EXPORT int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size) {
    char path[512];
    if (snprintf(path, sizeof path, "%s/%s", dir, file) >= (int)sizeof path)
        return -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, buf, size);
    close(fd);
    if (n > 0 && buf[n - 1] == '\n')
        buf[--n] = '\0';
    else if (n >= 0 && (size_t)n < size)
        buf[n] = '\0';
    return (int)n;
}

void query_ops(struct verbs_context *ex, const struct rnic_ops *ops) {
    ex->query_port = query_port;
    GIVE(ex, query_device_ex, ops, query_device_ex, query_device_ex);
    GIVE(ex, query_rt_values, ops, query_rt_values, query_rt_values);
}
