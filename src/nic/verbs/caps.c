/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs/verbs.h"

/* A missing page fails the request with an access or protection error. */
static struct rnic_odp_caps odp_caps(const struct device_kind *kind) {
    bool placement = kind->more_caps & RNIC_DEVICE_ATOMIC_WRITE;
    uint32_t ud = RNIC_ODP_SUPPORT_SEND | RNIC_ODP_SUPPORT_RECV | RNIC_ODP_SUPPORT_SRQ_RECV;
    uint32_t uc = ud | RNIC_ODP_SUPPORT_WRITE, rc = uc | RNIC_ODP_SUPPORT_READ;
    uint32_t words = RNIC_ODP_SUPPORT_ATOMIC | (placement ? RNIC_ODP_SUPPORT_ATOMIC_WRITE : 0);
    rc |= placement ? RNIC_ODP_SUPPORT_FLUSH : 0;
    if (!kind_guard_works())
        return (struct rnic_odp_caps){0};
    if (guarded_word_works())
        rc |= words;
    if (!(kind->has & HAS_DATAGRAMS))
        uc = ud = 0;
    return (struct rnic_odp_caps){RNIC_ODP_SUPPORT | RNIC_ODP_SUPPORT_IMPLICIT, {rc, uc, ud}};
}

int soft_query_device_ex(struct rnic_context *ctx, struct rnic_device_attr_ex *attr, struct rnic_err *err) {
    const struct device_kind *kind = dev_of(ctx)->kind;
    struct rnic_odp_caps odp = odp_caps(kind);
    struct rnic_packet_pacing_caps pacing = {PACE_MIN_RATE, PACE_MAX_RATE, verbs_paced_types(dev_of(ctx))};
    *attr = (struct rnic_device_attr_ex){
        .odp_caps = odp,
        .completion_timestamp_mask = UINT64_MAX,
        .hca_core_clock = 1000000, /* ns */
        .cq_mod_caps = {UINT16_MAX, UINT16_MAX},
        .max_dm_size = MAX_DM,
    };
    if (kind->has & HAS_XRC)
        attr->xrc_odp_caps = odp.per_transport_caps.rc_odp_caps & ~(uint32_t)RNIC_ODP_SUPPORT_RECV;
    if (kind->has & HAS_TAGS)
        attr->tm_caps = verbs_tm_caps;
    if (kind->has & HAS_FRAMES)
        raw_caps(attr);
    if (pacing.supported_qpts)
        attr->packet_pacing_caps = pacing;
    int rc = ctx->ops->query_device(ctx, &attr->orig_attr, err);
    /* Its lower half is what ibv_device_attr has. */
    attr->device_cap_flags_ex = attr->orig_attr.device_cap_flags | kind->more_caps;
    return rc;
}
