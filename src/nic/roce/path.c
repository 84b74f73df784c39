/* SPDX-License-Identifier: Apache-2.0 */
#include "roce/path.h"

#include <errno.h>
#include <string.h>

#include "base/fail.h"
#include "roce/partition.h"
#include "wire/bth.h"

#define STATE(qp) ((qp)->attr.path_mig_state)

/* ---------------------------------------------------------------- the program's part */

static int check_state(const struct qp *qp, int to, bool loaded, struct rnic_err *err) {
    int from = STATE(qp);
    if (to == RNIC_MIG_ARMED)
        return fail(err, -EINVAL,
                    "path_mig_state ARMED is the device's to set, when the peer has rearmed, too: use REARM");
    if (to == RNIC_MIG_REARM && !loaded)
        return fail(err, -EINVAL,
                    "path_mig_state REARM needs an alternate path: set alt_ah_attr and the other alt_ attributes");
    if (to == RNIC_MIG_MIGRATED && from == RNIC_MIG_REARM)
        return fail(err, -EINVAL, "path_mig_state is REARM: the peer does not know of the alternate path yet (ARMED)");
    return to == RNIC_MIG_REARM || to == RNIC_MIG_MIGRATED ? 0
                                                           : fail(err, -EINVAL, "path_mig_state %d does not exist", to);
}

int path_check(const struct qp *qp, const struct rnic_qp_attr *attr, uint32_t mask, struct rnic_err *err) {
    bool load = mask & RNIC_QP_ALT_PATH, set = mask & RNIC_QP_PATH_MIG_STATE;
    if (load && STATE(qp) != RNIC_MIG_MIGRATED && !(set && attr->path_mig_state == RNIC_MIG_REARM))
        return fail(err, -EINVAL, "the alternate path is in use: load another one together with path_mig_state REARM");
    return set ? check_state(qp, attr->path_mig_state, load || qp->ib.alt_loaded, err) : 0;
}

int path_resolve(const struct qp *qp, const struct rnic_qp_attr *attr, uint32_t mask, struct paths *out,
                 struct rnic_err *err) {
    uint32_t dest = mask & RNIC_QP_DEST_QPN ? attr->dest_qp_num : qp->attr.dest_qp_num;
    int rc = 0;
    if (mask & RNIC_QP_AV)
        rc = link_resolve(qp->nic->wire, &attr->ah_attr, dest, &out->to, &out->from, err);
    if (!rc && (mask & RNIC_QP_ALT_PATH))
        rc = link_resolve(qp->nic->wire, &attr->alt_ah_attr, dest, &out->alt, &out->alt_from, err);
    return rc;
}

static void take(struct way *old, const struct way *fresh) {
    way_release(old);
    *old = *fresh;
    way_hold(old);
}

void path_take(struct qp *qp, uint32_t mask, const struct paths *paths) {
    if (mask & RNIC_QP_AV) {
        take(&qp->way, &paths->to);
        qp->ib.from = paths->from;
        memset(qp->ib.heard, 0, sizeof qp->ib.heard);
    }
    if (mask & RNIC_QP_ALT_PATH) {
        take(&qp->ib.alt, &paths->alt);
        qp->ib.alt_from = paths->alt_from;
        qp->ib.alt_loaded = true;
    }
}

/* The two may have changed places in a migration: together they are those that were taken. */
void path_leave(struct qp *qp) {
    way_release(&qp->way);
    way_release(&qp->ib.alt);
}

/* ---------------------------------------------------------------- migration */

static void swap(struct way *a, struct way *b) {
    struct way kept = *a;
    *a = *b;
    *b = kept;
}

/* What was the alternate path is the path, and there is no alternate until another one is loaded.  The way that was left
 * is still held. */
static void migrate(struct qp *qp) {
    struct rnic_qp_attr *a = &qp->attr;
    swap(&qp->way, &qp->ib.alt);
    swap(&qp->ib.from, &qp->ib.alt_from);
    qp_forget_written(qp);
    memset(qp->ib.heard, 0, sizeof qp->ib.heard);
    qp->ib.alt_loaded = false;
    a->ah_attr = a->alt_ah_attr;
    a->pkey_index = a->alt_pkey_index;
    a->port_num = a->alt_port_num;
    a->timeout = a->alt_timeout;
    a->path_mig_state = RNIC_MIG_MIGRATED;
    qp->ib.pkey = qp->nic->ib.pkeys[a->pkey_index];
    qp_event(qp, RNIC_EVENT_PATH_MIG);
}

void path_set_state(struct qp *qp, int state) {
    if (state == RNIC_MIG_REARM) {
        STATE(qp) = state;
        qp->ib.mig_refused = false;
    } else if (STATE(qp) == RNIC_MIG_ARMED) {
        migrate(qp);
    }
}

bool path_fail_over(struct qp *qp) {
    if (STATE(qp) != RNIC_MIG_ARMED)
        return false;
    migrate(qp);
    return true;
}

/* ---------------------------------------------------------------- the peer's part */

static bool same(const struct sockaddr_in6 *a, const struct sockaddr_in6 *b) {
    return !memcmp(&a->sin6_addr, &b->sin6_addr, sizeof a->sin6_addr);
}

static bool is_from(const struct way *from, const struct sockaddr_in6 *src, const struct sockaddr_in6 *dst) {
    return same(&from->src, src) && same(&from->dst, dst);
}

struct way *path_of(struct qp *qp, const struct sockaddr_in6 *src, const struct sockaddr_in6 *dst) {
    if (is_from(&qp->ib.from, src, dst))
        return &qp->ib.from;
    return qp->ib.alt_loaded && is_from(&qp->ib.alt_from, src, dst) ? &qp->ib.alt_from : NULL;
}

/* The peer has migrated to where this end cannot follow: told once. */
static void refuse(struct qp *qp) {
    if (!qp->ib.mig_refused && STATE(qp) != RNIC_MIG_MIGRATED)
        qp_event(qp, RNIC_EVENT_PATH_MIG_ERR);
    qp->ib.mig_refused = true;
}

/* On the primary path, MigReq 1 in ARMED is a packet from before the peer rearmed, which was under way for long.  Anybody
 * can send from the peer's addresses: MigReq counts in packets that the engine expects. */
bool path_input(struct qp *qp, const struct way *from, const struct packet *pkt) {
    bool primary = from == &qp->ib.from, mig_req = bth_m(pkt->bth);
    if (from && !pkey_match(primary ? qp->ib.pkey : qp->nic->ib.pkeys[qp->attr.alt_pkey_index], bth_pkey(pkt->bth)))
        return false;
    if (primary) {
        if (!mig_req && STATE(qp) == RNIC_MIG_REARM && qp->engine->expects(qp, pkt))
            STATE(qp) = RNIC_MIG_ARMED;
        return true;
    }
    if (!mig_req || !qp->engine->expects(qp, pkt))
        return false;
    if (!from || STATE(qp) != RNIC_MIG_ARMED) {
        refuse(qp);
        return false;
    }
    migrate(qp);
    return true;
}
