/* SPDX-License-Identifier: Apache-2.0
 *
 * Attributes that InfiniBand's transport gives a queue pair: their limits (IBA 11.2.5.2), partitions, and what goes with them.
 */
#include <errno.h>

#include "base/fail.h"
#include "roce/partition.h"
#include "roce/path.h"
#include "roce/roce.h"
#include "wire/bth.h"

#define M(name) RNIC_QP_##name

int pkey_find(const struct nic *nic, uint16_t pkey) {
    for (int i = 0; i < PKEYS; i++) {
        if (pkey_match(nic->ib.pkeys[i], pkey))
            return i;
    }
    return -1;
}

/* Queue pair 1 takes packets of every partition of the port (IBA 10.9.2), one with an alternate path those of that one;
 * whether they have come on it is looked at there. */
int qp_pkey_other(const struct qp *qp, uint16_t pkey) {
    int alt = qp->attr.alt_pkey_index;
    if (qp->pub.qp_type == RNIC_QPT_GSI)
        return pkey_find(qp->nic, pkey);
    return qp->ib.alt_loaded && pkey_match(qp->nic->ib.pkeys[alt], pkey) ? alt : -1;
}

static int check_pkey(const struct qp *qp, int index, struct rnic_err *err) {
    return qp->nic->ib.pkeys[index] & 0x7FFF ? 0 : fail(err, -EINVAL, "the P_Key table is empty at index %d", index);
}

int roce_check(const struct qp *qp, const struct rnic_qp_attr *a, uint32_t mask, struct rnic_err *err) {
    const struct attr_limit rows[] = {
        {M(PKEY_INDEX), a->pkey_index, 0, PKEYS - 1, "pkey_index"},
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
    };
    int rc = qp_check_limits(rows, sizeof rows / sizeof *rows, mask, err);
    if (!rc && (mask & M(PKEY_INDEX)))
        rc = check_pkey(qp, a->pkey_index, err);
    if (!rc && (mask & M(ALT_PATH)))
        rc = check_pkey(qp, a->alt_pkey_index, err);
    if (!rc)
        rc = path_check(qp, a, mask, err);
    if (!rc && (mask & M(QKEY)) && qp->pub.qp_type == RNIC_QPT_GSI && a->qkey != GSI_QKEY)
        rc = fail(err, -EINVAL, "qkey is 0x%08x; that of a GSI queue pair is 0x%08x", a->qkey, GSI_QKEY);
    return rc;
}

void roce_take(struct qp *qp) { qp->ib.pkey = qp->nic->ib.pkeys[qp->attr.pkey_index]; }

void roce_forget(struct qp *qp) {
    qp->ib.alt_loaded = qp->ib.mig_refused = false;
    qp->ib.pkey = 0;
}

void roce_disconnect(struct qp *qp) { path_leave(qp); }
