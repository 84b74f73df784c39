/* SPDX-License-Identifier: Apache-2.0
 *
 * READs of no bytes, which no program has posted.  Their answers say that the peer has all that went before them (RFC 5040, 5.5).
 * One makes a connection of equals ready.  Others follow SENDs and WRITEs, when the queue pair is to tell their completion not when
 * they have been given to the link, but when the peer has them.  One is under way at a time, and speaks for all before it.
 */
#include "iwarp/engine.h"

#include <string.h>

void quiet_follow(struct qp *qp, const struct send_wqe *wqe, bool answered) {
    struct sender *snd = &iwarp_of(qp)->snd;
    snd->quiet.due = quiet_confirms(qp, wqe) || (snd->quiet.due && !answered);
}

/* Those that are not answered anyway, and that somebody hears of. */
bool quiet_confirms(const struct qp *qp, const struct send_wqe *wqe) {
    bool asked = iwarp_of(qp)->confirm && qp->attr.max_rd_atomic;
    return asked && (qp->sq_sig_all || wqe->flags & RNIC_SEND_SIGNALED) && !send_waits(wqe) && !wqe_is_local(wqe);
}

bool quiet_may_go(const struct qp *qp) {
    const struct sender *snd = &iwarp_of(qp)->snd;
    return snd->quiet.due && !snd->quiet.waits && snd->waiting < qp->attr.max_rd_atomic;
}

bool quiet_send(struct qp *qp) {
    struct sender *snd = &iwarp_of(qp)->snd;
    struct fpdu f;
    if (!fpdu_open(qp, &f, DDP_UNTAGGED_BYTES + READ_REQUEST_BYTES, 0))
        return false;
    uint8_t *read = f.ddp + DDP_UNTAGGED_BYTES;
    snd->quiet = (struct quiet_read){.waits = true, .msn = snd->msn[1]++, .until = snd->next};
    ddp_put_untagged(f.ddp, RDMAP_READ_REQUEST, true, snd->quiet.msn, 0);
    memset(read, 0, READ_REQUEST_BYTES);
    read_set_sink_stag(read, snd->quiet.msn);
    read_set_stag(read, RTR_TAG);
    fpdu_headers(qp, &f);
    fpdu_close(qp, &f);
    return true;
}

bool quiet_is_next(struct qp *qp) {
    const struct quiet_read *quiet = &iwarp_of(qp)->snd.quiet;
    const struct send_wqe *wqe = quiet->waits ? send_awaited(qp) : NULL;
    return quiet->waits && (!wqe || (int32_t)(quiet->msn - wqe->msn) < 0);
}

void quiet_answered(struct qp *qp) {
    struct sender *snd = &iwarp_of(qp)->snd;
    snd->quiet.waits = false;
    quiet_reached(qp, snd->quiet.until);
}

void quiet_reached(struct qp *qp, uint32_t element) {
    struct sender *snd = &iwarp_of(qp)->snd;
    if ((int32_t)(element - snd->confirmed) > 0)
        snd->confirmed = element;
    send_complete(qp);
}

void iwarp_confirm(struct qp *qp, bool both) {
    struct iwarp *iw = iwarp_of(qp);
    if (!iw->confirm)
        iw->snd.confirmed = iw->snd.next;
    iw->confirm = true;
    iw->confirm_both = both;
}
