/* SPDX-License-Identifier: Apache-2.0
 *
 * What the device has: its attributes, which the environment can make smaller, and how much of it is used up.
 */
#include <errno.h>

#include "base/fail.h"
#include "roce/roce.h"
#include "verbs/verbs.h"

static const struct rnic_device_attr own = {
    .fw_ver = RNIC_VERSION,
    .max_mr_size = 1ull << 47,
    .page_size_cap = 0xFFFFF000,
    .max_qp = MAX_QP,
    .max_qp_wr = MAX_QP_WR,
    .device_cap_flags = RNIC_DEVICE_CURR_QP_STATE_MOD | RNIC_DEVICE_SYS_IMAGE_GUID | RNIC_DEVICE_RC_RNR_NAK_GEN |
                        RNIC_DEVICE_SRQ_RESIZE | RNIC_DEVICE_N_NOTIFY_CQ | RNIC_DEVICE_MEM_WINDOW |
                        RNIC_DEVICE_MEM_WINDOW_TYPE_2B | RNIC_DEVICE_XRC | RNIC_DEVICE_PORT_ACTIVE_EVENT |
                        RNIC_DEVICE_BAD_PKEY_CNTR | RNIC_DEVICE_BAD_QKEY_CNTR | RNIC_DEVICE_AUTO_PATH_MIG |
                        RNIC_DEVICE_RAW_IP_CSUM | RNIC_DEVICE_MANAGED_FLOW_STEERING,
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
    .max_mw = MW_MAX,
    .max_mcast_grp = MAX_GROUPS,
    .max_mcast_qp_attach = MAX_QP,
    .max_ah = MAX_AH,
    .max_srq = MAX_SRQ,
    .max_srq_wr = MAX_SRQ_WR,
    .max_srq_sge = MAX_SGE,
    .max_pkeys = PKEYS,
    .local_ca_ack_delay = 15, /* 4.096 us * 2^15: a host under load */
    .phys_port_cnt = 1,
    .vendor_id = VENDOR_ID,
    .max_inline_data = MAX_INLINE,
};

int verbs_read_attr(struct rnic_device_attr *attr, struct rnic_rate *rate, struct rnic_err *err) {
    *attr = own;
    *rate = (struct rnic_rate){.speed = 1, .width = 1}; /* 2.5 Gbit/s, one lane: nobody knows */
    int rc = rnic_env_limits(attr, err);
    attr->max_sge_rd = attr->max_sge;
    return rc ? rc : rnic_env_rate(rate, err);
}

void verbs_set_attr(struct dev *dev, const struct rnic_device_attr *attr, const struct rnic_rate *rate) {
    dev->attr = *attr;
    dev->attr.node_guid = dev->info.guid;
    dev->attr.sys_image_guid = dev->net.netdev.guid;
    dev->rate = *rate;
}

int verbs_check_room(const struct dev *dev, enum object_kind kind, struct rnic_err *err) {
    const struct {
        const char *name;
        int most, own;
    } rows[] = {[KIND_PD] = {"protection domains", dev->attr.max_pd, own.max_pd},
                [KIND_CQ] = {"completion queues", dev->attr.max_cq, own.max_cq},
                [KIND_QP] = {"queue pairs", dev->attr.max_qp, own.max_qp},
                [KIND_MR] = {"memory regions", dev->attr.max_mr, own.max_mr},
                [KIND_SRQ] = {"shared receive queues", dev->attr.max_srq, own.max_srq},
                [KIND_MW] = {"memory windows", dev->attr.max_mw, own.max_mw},
                [KIND_AH] = {"address handles", dev->attr.max_ah, own.max_ah}};
    if (rows[kind].most == rows[kind].own)
        return 0;
    int n = kind == KIND_QP ? dev->objects.qps : dev->objects.of[kind].count;
    return n < rows[kind].most
               ? 0
               : fail(err, -ENOMEM, "there are %d %s, all that the device has", rows[kind].most, rows[kind].name);
}
