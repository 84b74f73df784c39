/* SPDX-License-Identifier: Apache-2.0 */
#include "roce/congestion.h"

#include "roce/roce.h"
#include "wire/bth.h"

#define CNP_EVERY 50000u  /* ns: one for all marks of so long; DCQCN's N */
#define CUT_EVERY 50000u  /* ns: a second CNP within is about the same congestion */
#define DECAY_EVERY 55000u /* ns without a CNP: alpha falls; DCQCN's K */
#define RAISE_EVERY 300000u
#define RAISE_BYTES (10u << 20)
#define FAST_RISES 5      /* half the way back to the target each; then the target rises, too */
#define ALPHA_ONE (1u << 16)
#define ALPHA_SHIFT 8     /* DCQCN's g = 1/256 */
#define RISE (40000000u / 8)
#define FAST_RISE (400000000u / 8)
#define RATE_MIN (10000000u / 8)
#define RATE_MIN_LOCAL (16 * RATE_MIN) /* as packets of a lane are that much longer: one must not take a timeout */
#define BURST_NS 20000u   /* what may leave at once: an engine does not look up for every packet */
#define SAMPLE_NS 1000000u
#define SEC 1000000000u

/* ---------------------------------------------------------------- the receiver's part */

/* One notification may stand for many marks (IBA CA17-44). */
void congestion_marked(struct qp *qp, struct congestion *c, uint64_t now) {
    COUNT(qp, ecn_marked);
    if (!c->notified || now - c->notified >= CNP_EVERY)
        c->owes = true;
}

/* The packet names nothing but the queue pair: 16 reserved bytes follow its BTH, in which BECN is set (A17.9.3). */
bool congestion_notify(struct qp *qp, struct congestion *c, uint64_t now) {
    struct out out;
    if (!out_open_to(&qp->way, &out, ROCE_CNP, 0, qp->attr.dest_qp_num, 0, qp->ib.pkey))
        return false;
    bth_set_becn(out.bth, 1);
    bth_set_m(out.bth, 0);
    memset(out.bth + BTH_BYTES, 0, CNP_RESERVED_BYTES);
    out_headers(&out);
    out_close(qp, &out);
    COUNT(qp, cnp_sent);
    c->owes = false;
    c->notified = now;
    return true;
}

/* ---------------------------------------------------------------- the sender's part */

/* What was sent a second, lately; a first packet meets no congestion that its sender could have made. */
static uint64_t measured(const struct congestion *c, uint64_t now) {
    uint64_t span = now - c->sampled, lately = c->sample * SEC / (span > CUT_EVERY ? span : CUT_EVERY);
    return lately > c->known ? lately : c->known;
}

static void restart(struct congestion *c, uint64_t now) {
    c->timed = c->counted = 0;
    c->bytes = 0;
    c->decay_at = now + DECAY_EVERY;
    c->raise_at = now + RAISE_EVERY;
}

static uint64_t at_least(const struct qp *qp, uint64_t rate) {
    uint64_t least = way_is_bare(&qp->way) ? RATE_MIN_LOCAL : RATE_MIN;
    return rate > least ? rate : least;
}

static void catch_up(struct congestion *c, uint64_t now);

/* How much is left to us (IBA CA17-45). */
void congestion_cut(struct qp *qp, struct congestion *c, uint64_t now) {
    COUNT(qp, cnp_handled);
    if (c->limiting)
        catch_up(c, now);
    if (c->cut && now - c->cut < CUT_EVERY) {
        qp->nic->useless++;
        return;
    }
    if (!c->limiting) {
        c->rate = at_least(qp, measured(c, now));
        c->line = 2 * c->rate;
        c->alpha = ALPHA_ONE;
        c->free_at = now;
        c->limiting = true;
    }
    c->cut = now;
    c->target = c->rate;
    c->rate = at_least(qp, c->rate - c->rate * c->alpha / (2 * ALPHA_ONE));
    c->alpha += (ALPHA_ONE - c->alpha) >> ALPHA_SHIFT;
    restart(c, now);
}

/* First quickly back to the rate at which congestion was met, then beyond it, slowly, then boldly (IBA CA17-46). */
static void rise(struct congestion *c) {
    uint32_t most = c->timed > c->counted ? c->timed : c->counted, least = c->timed + c->counted - most;
    if (least > FAST_RISES)
        c->target += (uint64_t)FAST_RISE * (least - FAST_RISES);
    else if (most > FAST_RISES)
        c->target += (uint64_t)RISE * (most - FAST_RISES);
    c->rate = (c->rate + c->target) / 2;
    c->limiting = c->rate < c->line;
    c->waits &= c->limiting;
}

static void catch_up(struct congestion *c, uint64_t now) {
    for (; c->limiting && c->raise_at <= now; c->raise_at += RAISE_EVERY) {
        c->timed++;
        rise(c);
    }
    for (; c->alpha && c->decay_at <= now; c->decay_at += DECAY_EVERY)
        c->alpha -= (c->alpha + (1u << ALPHA_SHIFT) - 1) >> ALPHA_SHIFT;
    if (c->decay_at <= now)
        c->decay_at = now + DECAY_EVERY;
}

bool congestion_look(struct congestion *c, uint64_t now) {
    catch_up(c, now);
    c->waits = c->limiting && c->free_at > now;
    return !c->waits;
}

void congestion_count(struct congestion *c, uint32_t bytes, uint64_t now) {
    if (now - c->sampled > SAMPLE_NS) {
        c->known = c->sampled ? c->sample * SEC / (now - c->sampled) : 0;
        c->sampled = now;
        c->sample = 0;
    }
    c->sample += bytes;
    if (!c->limiting)
        return;
    uint64_t from = now > BURST_NS && c->free_at < now - BURST_NS ? now - BURST_NS : c->free_at;
    c->free_at = from + (uint64_t)bytes * SEC / c->rate;
    c->bytes += bytes;
    for (; c->limiting && c->bytes >= RAISE_BYTES; c->bytes -= RAISE_BYTES) {
        c->counted++;
        rise(c);
    }
}
