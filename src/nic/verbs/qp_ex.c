/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue pairs, what came later: extended creation, pacing, order of data, enhanced connections (man ibv_create_qp_ex,
 * ibv_modify_qp_rate_limit, ibv_query_qp_data_in_order, ibv_set_ece).
 */
#include <errno.h>
#include <inttypes.h>

#include "base/fail.h"
#include "verbs/verbs.h"

/* ---------------------------------------------------------------- creation */

#define KNOWN_FIELDS                                                                                                   \
    (RNIC_QP_INIT_ATTR_PD | RNIC_QP_INIT_ATTR_CREATE_FLAGS | RNIC_QP_INIT_ATTR_MAX_TSO_HEADER |                        \
     RNIC_QP_INIT_ATTR_SEND_OPS_FLAGS)

/* The bit of an operation is 1 << its number, but for the last two. */
static int opcode_of_bit(int bit) {
    return bit <= RNIC_WR_TSO ? bit : 1 << bit == RNIC_QP_EX_WITH_FLUSH ? RNIC_WR_FLUSH : RNIC_WR_ATOMIC_WRITE;
}

static int check_send_ops(const struct dev *dev, int qp_type, uint64_t ops, struct rnic_err *err) {
    const struct service *service = verbs_service(dev, qp_type);
    if (ops >= RNIC_QP_EX_WITH_ATOMIC_WRITE << 1)
        return fail(err, -EOPNOTSUPP, "send_ops_flags 0x%" PRIx64 " has operations that this device does not know",
                    ops);
    for (int bit = 0; service && ops >> bit; bit++) {
        if (!(ops >> bit & 1))
            continue;
        int rc = sq_check_opcode(service->sends, opcode_of_bit(bit), err);
        if (rc) /* man ibv_wr_post: creation fails */
            return -EOPNOTSUPP;
    }
    return 0;
}

/* A sender never gets its own copy of a multicast datagram here, so that BLOCK_SELF_MCAST_LB is always so. */
static int check_extension(const struct dev *dev, const struct rnic_qp_init_attr_ex *a, struct rnic_err *err) {
    uint32_t flags = a->comp_mask & RNIC_QP_INIT_ATTR_CREATE_FLAGS ? a->create_flags : 0;
    if (a->comp_mask & ~(uint32_t)KNOWN_FIELDS)
        return fail(err, -EOPNOTSUPP, "comp_mask 0x%x has fields that this device does not know",
                    a->comp_mask & ~(uint32_t)KNOWN_FIELDS);
    if (flags & ~(uint32_t)RNIC_QP_CREATE_BLOCK_SELF_MCAST_LB)
        return fail(err, -EOPNOTSUPP, "create_flags 0x%x: this device has BLOCK_SELF_MCAST_LB only", flags);
    if ((a->comp_mask & RNIC_QP_INIT_ATTR_MAX_TSO_HEADER) && a->max_tso_header)
        return fail(err, -EOPNOTSUPP, "max_tso_header is %u: this device does not segment (TSO)", a->max_tso_header);
    if (!(a->comp_mask & RNIC_QP_INIT_ATTR_SEND_OPS_FLAGS))
        return 0;
    return check_send_ops(dev, a->base.qp_type, a->send_ops_flags, err);
}

int soft_create_qp_ex(struct rnic_pd *pd, struct rnic_qp_init_attr_ex *attr, struct rnic_qp **out,
                      struct rnic_err *err) {
    int rc = check_extension(dev_of(pd->ctx), attr, err);
    return rc ? rc : soft_create_qp(pd, &attr->base, out, err);
}

/* ---------------------------------------------------------------- pacing */

uint32_t verbs_paced_types(const struct dev *dev) {
    uint32_t types = 0;
    for (int type = 0; type < 32; type++) {
        const struct service *service = verbs_service(dev, type);
        types |= service && service->paced ? 1u << type : 0;
    }
    return types;
}

static uint32_t packet_bytes(const struct dev *dev, const struct qp *qp) {
    if (qp->pub.qp_type == RNIC_QPT_RAW_PACKET)
        return (uint32_t)dev->net.netdev.mtu;
    return mtu_bytes(qp->attr.path_mtu ? qp->attr.path_mtu : net_active_mtu(&dev->net));
}

int verbs_check_rate(uint32_t rate, struct rnic_err *err) {
    return rate <= PACE_MAX_RATE
               ? 0
               : fail(err, -EINVAL, "rate_limit is %u kbit/s; the most is %u, and 0 is no limit", rate, PACE_MAX_RATE);
}

void verbs_set_rate(struct dev *dev, struct qp *qp, const struct rnic_qp_rate_limit_attr *attr) {
    pace_set(&qp->pace, attr, packet_bytes(dev, qp));
    sched_ready(&dev->run, qp); /* what waits may go earlier now */
}

static int check_rate(const struct qp *qp, const struct rnic_qp_rate_limit_attr *attr, struct rnic_err *err) {
    if (!qp->service->paced)
        return fail(err, -EOPNOTSUPP, "%s queue pairs of this device cannot be paced (packet_pacing_caps)",
                    qp->service->name);
    if (attr->comp_mask)
        return fail(err, -EINVAL, "comp_mask is 0x%x: there are no more fields", attr->comp_mask);
    if (!attr->rate_limit && (attr->max_burst_sz || attr->typical_pkt_sz))
        return fail(err, -EINVAL, "rate_limit is 0, which takes the limit away: it has no bursts and packets");
    if (qp->state < RNIC_QPS_RTR || qp->state == RNIC_QPS_ERR)
        return fail(err, -EINVAL, "the queue pair is in %s; a rate is set from RTR on, and forgotten in RESET",
                    qp_state_name(qp->state));
    return verbs_check_rate(attr->rate_limit, err);
}

int soft_modify_qp_rate_limit(struct rnic_qp *pub, const struct rnic_qp_rate_limit_attr *attr, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct qp *qp = qp_of(pub);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    rc = check_rate(qp, attr, err);
    if (!rc)
        verbs_set_rate(dev, qp, attr);
    dev_unlock(dev);
    engine_wake(&dev->run);
    return rc;
}

/* ---------------------------------------------------------------- order of data */

/* Packets are placed in order, and the last line of each behind the rest of it (base/ordered.h); but what is ahead of that
 * in whatever order memcpy, or the kernel, copies it.  So no message is in order as ibv_query_qp_data_in_order(3) means
 * it, nor any 128 bytes of one; ATOMIC WRITE is. */
int soft_query_qp_data_in_order(struct rnic_qp *pub, int opcode, uint32_t flags, struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(pub->ctx), err);
    if (rc)
        return rc;
    if (flags & ~1u) /* RETURN_CAPS: then the answer is a mask of what is in order */
        return fail(err, -EINVAL, "flags 0x%x: 0, or 1 (RETURN_CAPS)", flags);
    if (opcode < 0 || opcode > RNIC_WR_ATOMIC_WRITE)
        return fail(err, -EINVAL, "there is no opcode %d", opcode);
    return 0;
}

/* ---------------------------------------------------------------- enhanced connections */

static const struct rnic_ece no_options = {.vendor_id = VENDOR_ID}; /* librdmacm refuses those of vendor 0 */

/* The device has no options: whatever is asked for, none are accepted, and the answer says so. */
int soft_set_ece(struct rnic_qp *pub, struct rnic_ece *ece, struct rnic_err *err) {
    const struct qp *qp = qp_of(pub);
    int rc = dev_check_alive(dev_of(pub->ctx), err);
    if (rc)
        return rc;
    if (ece->comp_mask)
        return fail(err, -EINVAL, "comp_mask is 0x%x: struct ibv_ece has no more fields", ece->comp_mask);
    if (qp->state > RNIC_QPS_INIT)
        return fail(err, -EINVAL, "the queue pair is in %s; options are set before RTR", qp_state_name(qp->state));
    *ece = no_options;
    return 0;
}

int soft_query_ece(struct rnic_qp *pub, struct rnic_ece *ece, struct rnic_err *err) {
    *ece = no_options;
    return dev_check_alive(dev_of(pub->ctx), err);
}
