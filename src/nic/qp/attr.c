/* SPDX-License-Identifier: Apache-2.0
 *
 * Changes of a queue pair, held against the states that its service has and the limits of its attributes (IBA 10.3.1 and
 * 11.2.5.2; man ibv_modify_qp).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "qp/qp.h"

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

int qp_check_limits(const struct attr_limit *rows, size_t n, uint32_t mask, struct rnic_err *err) {
    for (size_t i = 0; i < n; i++) {
        if ((mask & rows[i].bit) && (rows[i].value < rows[i].least || rows[i].value > rows[i].most))
            return fail(err, -EINVAL, "%s is %u; allowed are %u to %u", rows[i].name, rows[i].value, rows[i].least,
                        rows[i].most);
    }
    return 0;
}

/* What every transport has: IBA 11.2.5.2, and what this device has. */
#define MAX_RD_ATOMIC 128
#define ACCESS_MOST 0x3FFu /* flags of regions, too: what says nothing to a queue pair is kept and means nothing */
static int check_limits(const struct rnic_qp_attr *a, uint32_t mask, struct rnic_err *err) {
    const struct attr_limit rows[] = {
        {M(PORT), a->port_num, 1, 1, "port_num"},
        {M(MAX_QP_RD_ATOMIC), a->max_rd_atomic, 0, MAX_RD_ATOMIC, "max_rd_atomic"},
        {M(MAX_DEST_RD_ATOMIC), a->max_dest_rd_atomic, 0, MAX_RD_ATOMIC, "max_dest_rd_atomic"},
        {M(ACCESS_FLAGS), a->qp_access_flags & ~(uint32_t)RNIC_ACCESS_RELAXED_ORDERING, 0, ACCESS_MOST,
         "qp_access_flags but RELAXED_ORDERING"},
        {M(EN_SQD_ASYNC_NOTIFY), a->en_sqd_async_notify, 0, 1, "en_sqd_async_notify"},
    };
    return qp_check_limits(rows, sizeof rows / sizeof *rows, mask, err);
}

static int not_taken(const struct qp *qp, int from, int to, uint32_t extra, struct rnic_err *err) {
    char names[200];
    const char *cure = qp->service->connected;
    return fail(err, -EINVAL, "%s -> %s does not take %s%s%s", qp_state_name(from), qp_state_name(to),
                attr_names(extra, names, sizeof names), cure ? ": " : "", cure ? cure : "");
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
        return not_taken(qp, from, to, extra, err);
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
    if (!rc && qp->engine->check)
        rc = qp->engine->check(qp, attr, mask, err);
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
    if (qp->engine->take)
        qp->engine->take(qp);
}

void qp_attr_restore(struct qp *qp, const struct rnic_qp_attr *before) {
    qp->attr = *before;
    if (qp->engine->take)
        qp->engine->take(qp);
}

void qp_query(const struct qp *qp, struct rnic_qp_attr *out) {
    *out = qp->attr;
    out->qp_state = out->cur_qp_state = qp->state;
    out->sq_draining = qp->sq_draining;
    out->rate_limit = qp->pace.rate;
}
