/* SPDX-License-Identifier: Apache-2.0
 *
 * READs of no bytes, which no program has posted.  Their answers say that the peer has all that went before them (RFC 5040, 5.5).
 * One makes a connection of equals ready.  Others follow SENDs and WRITEs, when the queue pair is to tell their completion not when
 * they have been given to the link, but when the peer has them.  One is under way at a time, and speaks for all before it.
 */
#include "iwarp/engine.h"

#include <string.h>

/* A peer that sends nothing for such a time is stopped or gone, if its host has all that waits for an answer, or takes nothing
 * either.  TCP does not notice it, since the kernel of a stopped process takes what it has room for.  A slow path is no such
 * peer: on it bytes are taken all the time. */
#define SILENT_NS 5000000000ull

static bool comes_before(uint32_t element, uint32_t other) { return (int32_t)(other - element) > 0; }

bool quiet_is_on(const struct qp *qp) { return iwarp_of(qp)->confirm && qp->attr.max_rd_atomic; }

/* Those that are not answered anyway. */
bool quiet_confirms(const struct qp *qp, const struct send_wqe *wqe) {
    return quiet_is_on(qp) && !send_waits(wqe) && !wqe_is_local(wqe);
}

void quiet_follow(struct qp *qp, const struct send_wqe *wqe) {
    struct sender *snd = &iwarp_of(qp)->snd;
    struct quiet_read *quiet = &snd->quiet;
    uint32_t behind = snd->next + 1;
    if (send_waits(wqe) || (wqe_is_local(wqe) && quiet->asked == quiet->all)) {
        if (!send_waits(wqe) && snd->confirmed == quiet->asked)
            snd->confirmed = behind;
        quiet->asked = quiet->heard = quiet->all = behind; /* so that none is ever half a lap behind */
    } else if (quiet_is_on(qp)) {
        quiet->all = behind;
        if (qp->sq_sig_all || wqe->asks || wqe->flags & RNIC_SEND_SIGNALED)
            quiet->heard = behind;
    }
}

/* For those whose completions somebody hears, or behind which others wait; before the end of the stream, and ahead of one that has failed, for all. */
bool quiet_may_go(const struct qp *qp) {
    const struct sender *snd = &iwarp_of(qp)->snd;
    const struct quiet_read *quiet = &snd->quiet;
    bool ends = snd->halted || qp->state == RNIC_QPS_SQD;
    return quiet_is_on(qp) && comes_before(quiet->asked, ends ? quiet->all : quiet->heard) && !quiet->waits &&
           snd->waiting < qp->attr.max_rd_atomic;
}

/* A request that waits for an answer has been put out.  What the peer's host has taken is not looked for yet: most requests are
 * answered at once, and it costs a system call. */
static void ask(struct qp *qp, uint64_t now) {
    struct iwarp *iw = iwarp_of(qp);
    if (iw->snd.waiting + iw->snd.quiet.waits == 1) /* the only one */
        iw->snd.watch = (struct watch){
            .look_at = now + SILENT_NS, .asked = iw->out.begun, .taken = UINT64_MAX, .came = iw->in.bytes};
}

bool quiet_send(struct qp *qp, uint64_t now) {
    struct sender *snd = &iwarp_of(qp)->snd;
    struct fpdu f;
    if (!fpdu_open(qp, &f, DDP_UNTAGGED_BYTES + READ_REQUEST_BYTES, 0))
        return false;
    uint8_t *read = f.ddp + DDP_UNTAGGED_BYTES;
    snd->quiet.waits = true;
    snd->quiet.msn = snd->msn[1]++;
    snd->quiet.until = snd->quiet.asked = snd->next;
    snd->quiet.ask_at = 0;
    ddp_put_untagged(f.ddp, RDMAP_READ_REQUEST, true, snd->quiet.msn, 0);
    memset(read, 0, READ_REQUEST_BYTES);
    read_set_sink_stag(read, snd->quiet.msn);
    read_set_stag(read, RTR_TAG);
    fpdu_headers(qp, &f);
    fpdu_close(qp, &f);
    ask(qp, now);
    return true;
}

/* ---------------------------------------------------------------- is anybody there? */

/* Behind unsignaled messages a peer that is stopped is to be noticed, too. */
void quiet_gone(struct qp *qp, const struct send_wqe *wqe, uint64_t now) {
    struct quiet_read *quiet = &iwarp_of(qp)->snd.quiet;
    if (send_waits(wqe))
        ask(qp, now);
    else if (quiet->asked != quiet->all && !quiet->ask_at)
        quiet->ask_at = now + SILENT_NS;
}

void quiet_timer(struct qp *qp, uint64_t now) {
    struct quiet_read *quiet = &iwarp_of(qp)->snd.quiet;
    if (!quiet->ask_at || now < quiet->ask_at)
        return;
    quiet->ask_at = 0;
    quiet->heard = quiet->all;
}

uint64_t quiet_deadline(const struct qp *qp) {
    const struct iwarp *iw = iwarp_of(qp);
    const struct quiet_read *quiet = &iw->snd.quiet;
    if (!iw->confirm || qp->state == RNIC_QPS_ERR)
        return NEVER;
    if (quiet->waits || iw->snd.waiting)
        return iw->snd.watch.look_at;
    return quiet->ask_at ? quiet->ask_at : NEVER;
}

bool quiet_is_in_vain(struct qp *qp, uint64_t now) {
    struct iwarp *iw = iwarp_of(qp);
    bool asks = iw->snd.waiting || iw->snd.quiet.waits;
    if (!asks || now < quiet_deadline(qp))
        return false;
    const struct watch last = iw->snd.watch;
    bool silent = iw->in.bytes == last.came;
    uint64_t asked = silent ? last.asked : iw->out.begun, taken = out_taken(qp);
    iw->snd.watch = (struct watch){now + SILENT_NS, asked, taken, iw->in.bytes, taken >= asked};
    return silent && (last.there || taken == last.taken);
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
