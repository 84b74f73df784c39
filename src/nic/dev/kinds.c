/* SPDX-License-Identifier: Apache-2.0 */
#include "dev/kinds.h"

#include "dev/dev.h"
#include "iwarp/iwarp.h"
#include "raw/raw.h"
#include "roce/roce.h"

#define CM_SUP 0x00010000u       /* of IB_PORT_: connections are managed, */
#define DEVICE_MGMT_SUP 0x00080000u /* and devices */

#define OF(what, owner)                                                                                                \
    { &what##_source, offsetof(struct dev, owner) }

/* What all have. */
#define COMMON_CAPS                                                                                                    \
    (RNIC_DEVICE_CURR_QP_STATE_MOD | RNIC_DEVICE_SYS_IMAGE_GUID | RNIC_DEVICE_SRQ_RESIZE | RNIC_DEVICE_N_NOTIFY_CQ |   \
     RNIC_DEVICE_MEM_WINDOW | RNIC_DEVICE_MEM_WINDOW_TYPE_2B | RNIC_DEVICE_PORT_ACTIVE_EVENT)
#define COMMON_ATTR                                                                                                    \
    .fw_ver = RNIC_VERSION, .max_mr_size = 1ull << 47, .page_size_cap = 0xFFFFF000, .max_qp = MAX_QP,                  \
    .max_qp_wr = MAX_QP_WR, .max_sge = MAX_SGE, .max_sge_rd = MAX_SGE, .max_cq = MAX_CQ, .max_cqe = MAX_CQE,           \
    .max_mr = MAX_MR, .max_pd = MAX_PD, .max_qp_rd_atom = MAX_RD_ATOMIC, .max_res_rd_atom = MAX_RD_ATOMIC * MAX_QP,    \
    .max_qp_init_rd_atom = MAX_RD_ATOMIC, .atomic_cap = RNIC_ATOMIC_GLOB, .max_mw = MW_MAX, .max_srq = MAX_SRQ,        \
    .max_srq_wr = MAX_SRQ_WR, .max_srq_sge = MAX_SGE, .phys_port_cnt = 1, .vendor_id = VENDOR_ID,                      \
    .max_inline_data = MAX_INLINE

const struct device_kind device_kinds[DEVICE_KINDS] = {
    {
        .name = "RoCE",
        .article = "a",
        .prefix = "roce_",
        .transport = RNIC_TRANSPORT_IB,
        .node_type = RNIC_NODE_CA,
        .has = HAS_DATAGRAMS | HAS_XRC | HAS_TAGS | HAS_FRAMES | HAS_PARTITIONS | HAS_GSI | HAS_LANES,
        .transports = {&roce_transport, &raw_transport},
        .sources = {OF(wire, net),
                    OF(forward, host),
                    OF(outbox, host),
                    OF(lanes, host),
                    OF(doors, host),
                    OF(mcast, net),
                    OF(listeners, host),
                    OF(roles, host),
                    OF(follow, net),
                    OF(frames, net),
                    {&planned_source, 0}},
        .net = &net_ports,
        .gids = NETDEV_MAX_GIDS,
        .gid_type = RNIC_GID_TYPE_ROCE_V2, /* IBA CA17-26 */
        .pkeys = PKEYS,
        .port_cap_flags = CM_SUP,
        .more_caps = RNIC_DEVICE_ATOMIC_WRITE | RNIC_DEVICE_FLUSH_GLOBAL | RNIC_DEVICE_FLUSH_PERSISTENT,
        .attr = {COMMON_ATTR,
                 .device_cap_flags = COMMON_CAPS | RNIC_DEVICE_RC_RNR_NAK_GEN | RNIC_DEVICE_XRC |
                                     RNIC_DEVICE_BAD_PKEY_CNTR | RNIC_DEVICE_BAD_QKEY_CNTR | RNIC_DEVICE_AUTO_PATH_MIG |
                                     RNIC_DEVICE_RAW_IP_CSUM | RNIC_DEVICE_MANAGED_FLOW_STEERING,
                 .max_mcast_grp = MAX_GROUPS, .max_mcast_qp_attach = MAX_QP, .max_ah = MAX_AH, .max_pkeys = PKEYS,
                 .local_ca_ack_delay = 15}, /* 4.096 us * 2^15: a host under load */
    },
    {
        .name = "iWARP",
        .article = "an",
        .prefix = "iwarp_",
        .transport = RNIC_TRANSPORT_IWARP,
        .node_type = RNIC_NODE_RNIC,
        .guid = GUID_MIDDLE(RNIC_ENV_DEVICES),
        .has = HAS_STREAMS,
        .transports = {&iwarp_transport},
        .sources = {OF(streams, net), OF(forward, host), OF(follow, net), {&planned_source, 0}},
        .net = &net_streams,
        .gids = 1,
        .gid_type = RNIC_GID_TYPE_IB,
        .port_cap_flags = CM_SUP | DEVICE_MGMT_SUP, /* as the kernel's siw */
        .attr = {COMMON_ATTR, .device_cap_flags = COMMON_CAPS},
    },
};

const struct device_kind *device_kind_of(int transport) {
    int i = 0;
    while (i < DEVICE_KINDS - 1 && device_kinds[i].transport != transport)
        i++;
    return &device_kinds[i];
}
