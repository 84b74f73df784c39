/* SPDX-License-Identifier: Apache-2.0
 *
 * Changes of a queue pair, held against the states that its service has and the limits of its attributes (IBA 10.3.1 and
 * 11.2.5.2; man ibv_modify_qp).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "qp/path.h"
#include "wire/bth.h"

#define M(name) RNIC_QP_##name

static struct transition transition_of(const struct qp *qp, int from, int to) {
    if (to == RNIC_QPS_RESET || to == RNIC_QPS_ERR) /* from anywhere, IBA figure 124 */
        return (struct transition){true, 0, 0};
    return (*qp->service->states)[from][to];
}

/* The attributes that a mask names, as struct rnic_qp_attr and a Python program call them; bits that name none as a number. */
static const char *attr_names(uint32_t mask, char *out, size_t size) {
    static const struct {
        uint32_t bit;
        const char *name;
    } rows[] = {
        {M(STATE), "qp_state"},
        {M(CUR_STATE), "cur_qp_state"},
        {M(EN_SQD_ASYNC_NOTIFY), "en_sqd_async_notify"},
        {M(ACCESS_FLAGS), "qp_access_flags"},
        {M(PKEY_INDEX), "pkey_index"},
        {M(PORT), "port_num"},
        {M(QKEY), "qkey"},
        {M(AV), "ah_attr"},
        {M(PATH_MTU), "path_mtu"},
        {M(TIMEOUT), "timeout"},
        {M(RETRY_CNT), "retry_cnt"},
        {M(RNR_RETRY), "rnr_retry"},
        {M(RQ_PSN), "rq_psn"},
        {M(MAX_QP_RD_ATOMIC), "max_rd_atomic"},
        {M(ALT_PATH), "alt_ah_attr"},
        {M(MIN_RNR_TIMER), "min_rnr_timer"},
        {M(SQ_PSN), "sq_psn"},
        {M(MAX_DEST_RD_ATOMIC), "max_dest_rd_atomic"},
        {M(PATH_MIG_STATE), "path_mig_state"},
        {M(CAP), "cap"},
        {M(DEST_QPN), "dest_qp_num"},
        {M(RATE_LIMIT), "rate_limit"},
    };
    size_t n = 0;
    out[0] = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if ((mask & rows[i].bit) && n < size)
            n += (size_t)snprintf(out + n, size - n, "%s%s", n ? ", " : "", rows[i].name);
        mask &= ~rows[i].bit;
    }
    if (mask && n < size)
        snprintf(out + n, size - n, "%sthe mask's 0x%x, which is no attribute", n ? ", " : "", mask);
    return out;
}

/* Attributes that are numbers with a largest value: IBA 11.2.5.2, and what this device has. */
#define MAX_RD_ATOMIC 128
#define FLUSHES (RNIC_ACCESS_FLUSH_GLOBAL | RNIC_ACCESS_FLUSH_PERSISTENT)
static int check_limits(const struct rnic_qp_attr *a, uint32_t mask, struct rnic_err *err) {
    const struct {
        uint32_t bit, value, least, most;
        const char *name;
    } rows[] = {
        {M(PKEY_INDEX), a->pkey_index, 0, PKEYS - 1, "pkey_index"},
        {M(PORT), a->port_num, 1, 1, "port_num"},
        {M(ALT_PATH), a->alt_pkey_index, 0, PKEYS - 1, "alt_pkey_index"},
        {M(ALT_PATH), a->alt_port_num, 1, 1, "alt_port_num"},
        {M(ALT_PATH), a->alt_timeout, 0, 31, "alt_timeout"},
        {M(PATH_MTU), (uint32_t)a->path_mtu, RNIC_MTU_256, RNIC_MTU_4096, "path_mtu"},
        {M(TIMEOUT), a->timeout, 0, 31, "timeout"},
        {M(RETRY_CNT), a->retry_cnt, 0, 7, "retry_cnt"},
        {M(RNR_RETRY), a->rnr_retry, 0, 7, "rnr_retry"},
        {M(MIN_RNR_TIMER), a->min_rnr_timer, 0, 31, "min_rnr_timer"},
        {M(RQ_PSN), a->rq_psn, 0, 0xFFFFFF, "rq_psn"},
        {M(SQ_PSN), a->sq_psn, 0, 0xFFFFFF, "sq_psn"},
        {M(DEST_QPN), a->dest_qp_num, 0, 0xFFFFFF, "dest_qp_num"},
        {M(MAX_QP_RD_ATOMIC), a->max_rd_atomic, 0, MAX_RD_ATOMIC, "max_rd_atomic"},
        {M(MAX_DEST_RD_ATOMIC), a->max_dest_rd_atomic, 0, MAX_RD_ATOMIC, "max_dest_rd_atomic"},
        {M(ACCESS_FLAGS), a->qp_access_flags & ~(uint32_t)FLUSHES, 0, 0xF, "qp_access_flags but FLUSH_*"},
        {M(EN_SQD_ASYNC_NOTIFY), a->en_sqd_async_notify, 0, 1, "en_sqd_async_notify"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if ((mask & rows[i].bit) && (rows[i].value < rows[i].least || rows[i].value > rows[i].most))
            return fail(err, -EINVAL, "%s is %u; allowed are %u to %u", rows[i].name, rows[i].value, rows[i].least,
                        rows[i].most);
    }
    return 0;
}

/* Address vectors of RoCE are global (IBA A16.4.2, A17.4); what Ethernet has no field for is refused, not ignored.  Not so a
 * flow label over IPv4: it only advises routers, and Linux's RDMA-CM puts one into every route. */
int qp_av_check(const struct rnic_ah_attr *av, struct rnic_err *err) {
    if (!av->is_global)
        return fail(err, -EINVAL, "ah_attr.is_global is 0, but RoCE addresses are GIDs: give a GRH with dgid");
    if (av->port_num != 1)
        return fail(err, -EINVAL, "ah_attr.port_num is %u; this device has port 1", av->port_num);
    uint8_t tclass = av->grh.traffic_class;
    if (av->sl > 7)
        return fail(err, -EINVAL, "ah_attr.sl is %u; Ethernet has priorities 0 to 7", av->sl);
    if (av->sl && tclass && tclass >> 5 != av->sl)
        return fail(err, -EINVAL, "ah_attr.sl is %u, but traffic_class 0x%02x is of priority %d: set one of them",
                    av->sl, tclass, tclass >> 5);
    if (av->grh.flow_label > 0xFFFFF)
        return fail(err, -EINVAL, "ah_attr.grh.flow_label is 0x%x; it has 20 bits", av->grh.flow_label);
    if (av->static_rate)
        return fail(err, -EOPNOTSUPP, "ah_attr.static_rate is not supported: use 0");
    return 0;
}

static int check_pkey(const struct qp *qp, int index, struct rnic_err *err) {
    return qp->nic->pkeys[index] & 0x7FFF ? 0 : fail(err, -EINVAL, "the P_Key table is empty at index %d", index);
}

static int check_mask(const struct qp *qp, int from, int to, uint32_t mask, struct rnic_err *err) {
    char names[200];
    struct transition t = transition_of(qp, from, to);
    if (!t.allowed)
        return fail(err, -EINVAL, "%s -> %s is not allowed", qp_state_name(from), qp_state_name(to));
    uint32_t missing = t.required & ~mask, extra = mask & ~(t.required | t.optional | M(STATE));
    if (missing)
        return fail(err, -EINVAL, "%s -> %s needs %s", qp_state_name(from), qp_state_name(to),
                    attr_names(missing, names, sizeof names));
    if (extra)
        return fail(err, -EINVAL, "%s -> %s does not take %s", qp_state_name(from), qp_state_name(to),
                    attr_names(extra, names, sizeof names));
    return 0;
}

int qp_attr_check(const struct qp *qp, const struct rnic_qp_attr *attr, uint32_t mask, struct rnic_err *err) {
    int from = qp->state, to = mask & M(STATE) ? attr->qp_state : from;
    if (to < RNIC_QPS_RESET || to > RNIC_QPS_ERR)
        return fail(err, -EINVAL, "qp_state %d does not exist", to);
    if ((mask & M(CUR_STATE)) && attr->cur_qp_state != from)
        return fail(err, -EINVAL, "cur_qp_state is %s, but the queue pair is in %s", qp_state_name(attr->cur_qp_state),
                    qp_state_name(from));
    int rc = check_mask(qp, from, to, mask, err);
    if (rc)
        return rc;
    rc = check_limits(attr, mask, err);
    if (!rc && (mask & M(PKEY_INDEX)))
        rc = check_pkey(qp, attr->pkey_index, err);
    if (!rc && (mask & M(ALT_PATH)))
        rc = check_pkey(qp, attr->alt_pkey_index, err);
    if (!rc)
        rc = path_check(qp, attr, mask, err);
    if (!rc && (mask & M(QKEY)) && qp->pub.qp_type == RNIC_QPT_GSI && attr->qkey != GSI_QKEY)
        rc = fail(err, -EINVAL, "qkey is 0x%08x; that of a GSI queue pair is 0x%08x", attr->qkey, GSI_QKEY);
    if (!rc && (mask & M(AV)))
        rc = qp_av_check(&attr->ah_attr, err);
    if (!rc && from == RNIC_QPS_SQD && to == RNIC_QPS_SQD && qp->sq_draining)
        rc = fail(err, -EINVAL, "the send queue is still draining: wait for the SQ_DRAINED event");
    return rc;
}

void qp_attr_apply(struct qp *qp, const struct rnic_qp_attr *a, uint32_t mask) {
    struct rnic_qp_attr *q = &qp->attr;
    if ((mask & M(STATE)) && a->qp_state != qp->state) { /* both belong to one stay in SQD */
        q->en_sqd_async_notify = 0;
        qp->sq_draining = false;
    }
#define TAKE(bit, field)                                                                                               \
    if (mask & M(bit))                                                                                                 \
    q->field = a->field
    TAKE(EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify);
    TAKE(ACCESS_FLAGS, qp_access_flags);
    TAKE(PKEY_INDEX, pkey_index);
    TAKE(PORT, port_num);
    TAKE(AV, ah_attr);
    TAKE(PATH_MTU, path_mtu);
    TAKE(TIMEOUT, timeout);
    TAKE(RETRY_CNT, retry_cnt);
    TAKE(RNR_RETRY, rnr_retry);
    TAKE(QKEY, qkey);
    TAKE(RQ_PSN, rq_psn);
    TAKE(MAX_QP_RD_ATOMIC, max_rd_atomic);
    TAKE(MIN_RNR_TIMER, min_rnr_timer);
    TAKE(SQ_PSN, sq_psn);
    TAKE(MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
    TAKE(DEST_QPN, dest_qp_num);
    TAKE(ALT_PATH, alt_ah_attr);
    TAKE(ALT_PATH, alt_pkey_index);
    TAKE(ALT_PATH, alt_port_num);
    TAKE(ALT_PATH, alt_timeout);
#undef TAKE
    qp->ib.pkey = qp->nic->pkeys[q->pkey_index];
    qp->attr_set |= mask;
}
