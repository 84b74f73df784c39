/* SPDX-License-Identifier: Apache-2.0
 *
 * READs of no bytes, which no program has posted.  Their answers say that the peer has all that went before them (RFC 5040, 5.5).
 * One makes a connection of equals ready.  Others follow SENDs and WRITEs, when the queue pair is to tell their completion not when
 * they have been given to the link, but when the peer has them.  One is under way at a time, and speaks for all before it.
 */
#include "iwarp/engine.h"

#include <string.h>

/* A peer that answers nothing, while nothing else comes or goes either, is stopped or gone: within two such times it is given up.
 * TCP does not notice it, since the kernel of a stopped process takes what it has room for. */
#define SILENT_NS 5000000000ull

static bool comes_before(uint32_t element, uint32_t other) { return (int32_t)(other - element) > 0; }

bool quiet_is_on(const struct qp *qp) { return iwarp_of(qp)->confirm && qp->attr.max_rd_atomic; }

/* Those that are not answered anyway. */
bool quiet_confirms(const struct qp *qp, const struct send_wqe *wqe) {
    return quiet_is_on(qp) && !send_waits(wqe) && !wqe_is_local(wqe);
}

void quiet_follow(struct qp *qp, const struct send_wqe *wqe) {
    struct sender *snd = &iwarp_of(qp)->snd;
    uint32_t behind = snd->next + 1;
    if (send_waits(wqe)) /* all three, so that none is ever half a lap behind */
        snd->quiet.asked = snd->quiet.heard = snd->quiet.all = behind;
    if (!quiet_confirms(qp, wqe))
        return;
    snd->quiet.all = behind;
    if (qp->sq_sig_all || wqe->flags & RNIC_SEND_SIGNALED)
        snd->quiet.heard = behind;
}

/* For those whose completions somebody hears; before the end of the stream, and ahead of one that has failed, for all. */
bool quiet_may_go(const struct qp *qp) {
    const struct sender *snd = &iwarp_of(qp)->snd;
    const struct quiet_read *quiet = &snd->quiet;
    bool ends = snd->halted || qp->state == RNIC_QPS_SQD;
    return quiet_is_on(qp) && comes_before(quiet->asked, ends ? quiet->all : quiet->heard) && !quiet->waits &&
           snd->waiting < qp->attr.max_rd_atomic;
}

static uint64_t moved(const struct iwarp *iw) { return iw->out.written + iw->in.bytes; }

bool quiet_send(struct qp *qp, uint64_t now) {
    struct sender *snd = &iwarp_of(qp)->snd;
    struct fpdu f;
    if (!fpdu_open(qp, &f, DDP_UNTAGGED_BYTES + READ_REQUEST_BYTES, 0))
        return false;
    uint8_t *read = f.ddp + DDP_UNTAGGED_BYTES;
    snd->quiet.waits = true;
    snd->quiet.look_at = now + SILENT_NS;
    snd->quiet.moved = moved(iwarp_of(qp));
    snd->quiet.msn = snd->msn[1]++;
    snd->quiet.until = snd->quiet.asked = snd->next;
    ddp_put_untagged(f.ddp, RDMAP_READ_REQUEST, true, snd->quiet.msn, 0);
    memset(read, 0, READ_REQUEST_BYTES);
    read_set_sink_stag(read, snd->quiet.msn);
    read_set_stag(read, RTR_TAG);
    fpdu_headers(qp, &f);
    fpdu_close(qp, &f);
    return true;
}

uint64_t quiet_deadline(const struct qp *qp) {
    const struct iwarp *iw = iwarp_of(qp);
    return iw->confirm && iw->snd.quiet.waits && qp->state != RNIC_QPS_ERR ? iw->snd.quiet.look_at : NEVER;
}

bool quiet_is_in_vain(struct qp *qp, uint64_t now) {
    struct iwarp *iw = iwarp_of(qp);
    struct quiet_read *quiet = &iw->snd.quiet;
    if (now < quiet_deadline(qp))
        return false;
    bool vain = quiet->moved == moved(iw);
    quiet->moved = moved(iw);
    quiet->look_at = now + SILENT_NS;
    return vain;
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
    if (comes_before(snd->confirmed, element))
        snd->confirmed = element;
    send_complete(qp);
}

/* Those before the next one are complete by themselves. */
void quiet_start(struct qp *qp) {
    struct sender *snd = &iwarp_of(qp)->snd;
    snd->confirmed = snd->quiet.asked = snd->quiet.heard = snd->quiet.all = snd->next;
}

void iwarp_confirm(struct qp *qp, bool both) {
    struct iwarp *iw = iwarp_of(qp);
    if (!iw->confirm)
        quiet_start(qp);
    iw->confirm = true;
    iw->confirm_both = both;
}
