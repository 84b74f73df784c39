/* SPDX-License-Identifier: Apache-2.0
 *
 * Which queue pairs have something to do.
 *
 * A QP's place in the timer heap is a lower bound of its deadline: deadlines move away with every acknowledge, and
 * moving a heap entry each time would cost more than looking again when the early time has come.
 */
#include <stdlib.h>

#include "queue/moderation.h"
#include "run/run.h"

/* In a pass, which nobody else gets the lock in; the next one goes on where this one has ended. */
#define TURNS 64   /* of queue pairs: each writes some packets, or copies DIRECT_TURN and one element more */
#define TIMERS 256 /* that are due */

#define STANDSTILL_NS 1000000000ull /* a slow link sends 64 KiB meanwhile, the longest that counts as a whole */

/* ---------------------------------------------------------------- timer heap */

static void heap_set(struct timer_heap *h, uint32_t i, struct qp *qp) {
    h->at[i] = qp;
    qp->turn.timer_pos = i;
}

static void heap_up(struct timer_heap *h, uint32_t i) {
    struct qp *qp = h->at[i];
    for (; i && h->at[(i - 1) / 2]->turn.timer_at > qp->turn.timer_at; i = (i - 1) / 2)
        heap_set(h, i, h->at[(i - 1) / 2]);
    heap_set(h, i, qp);
}

static void heap_down(struct timer_heap *h, uint32_t i) {
    struct qp *qp = h->at[i];
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child + 1 < h->count && h->at[child + 1]->turn.timer_at < h->at[child]->turn.timer_at)
            child++;
        if (child >= h->count || h->at[child]->turn.timer_at >= qp->turn.timer_at)
            break;
        heap_set(h, i, h->at[child]);
        i = child;
    }
    heap_set(h, i, qp);
}

static void heap_remove(struct timer_heap *h, struct qp *qp) {
    uint32_t i = qp->turn.timer_pos;
    if (qp->turn.timer_at == NEVER)
        return;
    qp->turn.timer_at = NEVER;
    struct qp *last = h->at[--h->count];
    if (last == qp)
        return;
    heap_set(h, i, last);
    heap_up(h, i);
    heap_down(h, last->turn.timer_pos);
}

/* There is room for every queue pair: run_reserve(). */
static void heap_insert(struct timer_heap *h, struct qp *qp, uint64_t at) {
    qp->turn.timer_at = at;
    heap_set(h, h->count++, qp);
    heap_up(h, qp->turn.timer_pos);
}

static void refresh_timer(struct run *run, struct qp *qp) {
    uint64_t deadline = qp->engine->deadline(qp);
    if (deadline >= qp->turn.timer_at)
        return;
    heap_remove(&run->timers, qp);
    heap_insert(&run->timers, qp, deadline);
}

/* ---------------------------------------------------------------- lists */

void sched_ready(struct run *run, struct qp *qp) {
    if (qp->turn.ready)
        return;
    qp->turn.ready = true;
    qp->turn.ready_next = NULL;
    if (run->ready_last)
        run->ready_last->turn.ready_next = qp;
    else
        run->ready_first = qp;
    run->ready_last = qp;
}

static struct qp *pop_ready(struct run *run) {
    struct qp *qp = run->ready_first;
    if (!qp)
        return NULL;
    run->ready_first = qp->turn.ready_next;
    if (!run->ready_first)
        run->ready_last = NULL;
    qp->turn.ready = false;
    return qp;
}

void sched_ring(struct run *run, struct qp *qp) {
    if (atomic_exchange(&qp->turn.rung, true))
        return;
    struct qp *head = atomic_load(&run->bells);
    do
        qp->turn.rung_next = head;
    while (!atomic_compare_exchange_weak(&run->bells, &head, qp));
}

void sched_bells(struct run *run) {
    struct qp *qp = atomic_load(&run->bells) ? atomic_exchange(&run->bells, NULL) : NULL;
    while (qp) {
        struct qp *next = qp->turn.rung_next;
        atomic_store(&qp->turn.rung, false);
        sched_ready(run, qp);
        qp = next;
    }
}

/* Until there is room: who tries again at once would try all the time.  In the order in which they will be served. */
static void park(struct qp *qp, struct link *link) {
    if (qp->turn.parked)
        return;
    qp->turn.parked = link;
    qp->turn.parked_next = NULL;
    *(link->waiting ? &link->waiting_last->turn.parked_next : &link->waiting) = qp;
    link->waiting_last = qp;
}

uint32_t sched_unpark(struct run *run, struct link *link) {
    struct qp *qp;
    uint32_t n = 0;
    for (; (qp = link->waiting); n++) {
        link->waiting = qp->turn.parked_next;
        qp->turn.parked = NULL;
        sched_ready(run, qp);
    }
    return n;
}

/* Half of the socket's buffer is free when it says that it has room: shared by those that wait for it, so that a round of
 * all of them is short, and who has but an ACK to send waits no longer than that. */
void sched_link_free(struct run *run, struct link *link, uint32_t room) {
    uint32_t n = sched_unpark(run, link), packet = run->nic->mtu + PACKET_COST;
    run->nic->turn = n && room / packet > n ? room / packet / n : 1;
}

/* A pass that the link has taken without a pause. */
static void link_keeps_up(struct run *run) {
    run->nic->turn *= 2;
    if (run->nic->turn >= BURST)
        run->nic->turn = 0;
}

static void unlink_from(struct qp **list, struct qp *qp, size_t link) {
    for (struct qp **at = list; *at; at = (struct qp **)(void *)((char *)*at + link)) {
        if (*at != qp)
            continue;
        *at = *(struct qp **)(void *)((char *)qp + link);
        return;
    }
}

void sched_forget(struct run *run, struct qp *qp) {
    sched_bells(run);
    if (qp->turn.ready) {
        unlink_from(&run->ready_first, qp, offsetof(struct qp, turn.ready_next));
        run->ready_last = run->ready_first;
        while (run->ready_last && run->ready_last->turn.ready_next)
            run->ready_last = run->ready_last->turn.ready_next;
    }
    if (qp->turn.in_held)
        unlink_from(&run->held, qp, offsetof(struct qp, turn.held_next));
    if (qp->turn.parked) {
        struct link *link = qp->turn.parked;
        unlink_from(&link->waiting, qp, offsetof(struct qp, turn.parked_next));
        link->waiting_last = link->waiting;
        while (link->waiting_last && link->waiting_last->turn.parked_next)
            link->waiting_last = link->waiting_last->turn.parked_next;
    }
    qp->turn.ready = qp->turn.in_held = false;
    qp->turn.parked = NULL;
    qp_forget_written(qp);
    heap_remove(&run->timers, qp);
}

/* ---------------------------------------------------------------- a pass */

/* Does what its port has been given move?  Packets for a neighbour that nobody can find do not, though the socket has room:
 * they count for one timer only.  A socket that is full may wait for the end of a long datagram. */
static bool moves(struct qp *qp, uint64_t left, uint64_t now) {
    bool moved = left != qp->turn.left_seen;
    qp->turn.left_at = moved ? now : qp->turn.left_at;
    qp->turn.left_seen = left;
    return moved || (qp->way.link->full && now - qp->turn.left_at < STANDSTILL_NS);
}

/* Does its link tell what has left this host? */
static bool is_counted(const struct qp *qp) { return qp->way.held && qp->way.link->ops->left; }

/* Is the request that a timer runs for still on its way out of this host, or to be written when its turn comes?  What
 * else the queue pair sends, answers and later requests, puts nothing off. */
static bool still_here(struct qp *qp, uint64_t now) {
    if (!is_counted(qp))
        return false;
    bool waits = qp->engine->has_not_asked(qp);
    if (waits && qp->turn.ready) /* its turn comes now */
        return true;
    uint64_t left = qp->way.link->ops->left(qp->way.link, &qp->way);
    return moves(qp, left, now) && ((waits && qp->turn.parked) || qp->turn.written > left);
}

/* before: qp_requests() then. */
static void note_written(struct qp *qp, uint64_t before) {
    if (qp_requests(qp) != before && is_counted(qp))
        qp->turn.written = qp->way.link->ops->written(qp->way.link, &qp->way);
}

void sched_timers(struct run *run, uint64_t now) {
    moderation_timer(&run->nic->cq_timing, now);
    for (int n = 0; n < TIMERS && run->timers.count && run->timers.at[0]->turn.timer_at <= now; n++) {
        struct qp *qp = run->timers.at[0];
        heap_remove(&run->timers, qp);
        if (qp->engine->not_left && qp->engine->deadline(qp) <= now && still_here(qp, now))
            qp->engine->not_left(qp, now);
        uint64_t before = qp_requests(qp);
        qp->engine->timer(qp, now);
        note_written(qp, before);
        sched_ready(run, qp); /* its run looks at the deadline again */
    }
    for (struct qp **at = &run->held; *at;) {
        struct qp *qp = *at;
        if (qp->engine->held(qp) > now && qp->engine->held(qp) != NEVER) {
            at = &qp->turn.held_next;
            continue;
        }
        *at = qp->turn.held_next;
        qp->turn.in_held = false;
        sched_ready(run, qp);
    }
}

static void hold(struct run *run, struct qp *qp) {
    if (qp->turn.in_held || qp->engine->held(qp) == NEVER)
        return;
    qp->turn.in_held = true;
    qp->turn.held_next = run->held;
    run->held = qp;
}

void sched_input(struct run *run, struct qp *qp, uint64_t now) {
    if (qp->turn.ready || !qp->engine->owes || qp->engine->owes(qp, now)) {
        sched_ready(run, qp);
        return;
    }
    hold(run, qp);
    refresh_timer(run, qp);
}

void sched_deliver(struct run *run, struct qp *qp, const struct packet *pkt, uint32_t n, uint64_t now) {
    if (qp->state < RNIC_QPS_RTR) {
        COUNT(qp, drop_bad_state);
        return;
    }
    qp->counters.value[RNIC_CNT_rx_packets]++;
    qp->counters.value[RNIC_CNT_rx_bytes] += n;
    qp->engine->input(qp, pkt, now);
    sched_input(run, qp, now);
}

/* The link for whose room the rest waits, or NULL.  Of datagrams, each of which goes its own way, the oldest has met a full
 * link if the turn has sent none. */
static struct link *full_link(const struct qp *qp, bool sent) {
    if (qp->way.link->full && !(qp_is_datagram(qp) && sent))
        return qp->way.link;
    return qp->apart && qp->answers.link->full ? qp->answers.link : NULL;
}

/* One turn of a queue pair, which then waits for room, for the next turn, or for nothing but its deadlines. */
static void turn(struct run *run, struct qp *qp, uint64_t now) {
    uint64_t requests = qp_requests(qp), bytes = qp_sent(qp);
    bool more = qp->engine->next(qp, now);
    note_written(qp, requests);
    struct link *full = more ? full_link(qp, qp_sent(qp) != bytes) : NULL;
    if (!more)
        hold(run, qp);
    else
        full ? park(qp, full) : sched_ready(run, qp);
}

static void flush_sources(struct run *run) {
    EACH_SOURCE(run, s, flush)
    s->is->flush(s->owner);
}

bool sched_run(struct run *run, uint64_t now) {
    struct qp *last = run->ready_last, *qp;
    bool any = last != NULL;
    run->now = now;
    for (int turns = 0; turns < TURNS && (qp = pop_ready(run)); turns++) {
        if (qp->reach == REACH_OPEN && !run->decide(run->decider, qp, now))
            ; /* something makes it ready when it is known */
        else
            turn(run, qp, now);
        refresh_timer(run, qp);
        if (qp == last) /* one turn for each: those that want more go to the end */
            break;
    }
    flush_sources(run);
    if (run->nic->wire->full)
        engine_rearm(run);
    else if (run->nic->turn && any)
        link_keeps_up(run);
    return any;
}

bool sched_settle(struct run *run, struct qp *qp) {
    if (!qp->engine->settle(qp))
        return true;
    run->now = run_clock();
    turn(run, qp, run->now);
    flush_sources(run);
    if (run->nic->wire->full) {
        engine_rearm(run);
        engine_wake_for(run, progress_deadline(run));
    }
    return !qp->engine->settle(qp);
}

uint64_t sched_deadline(const struct run *run) {
    uint64_t first = run->timers.count ? run->timers.at[0]->turn.timer_at : NEVER;
    uint64_t event = moderation_deadline(&run->nic->cq_timing);
    first = event < first ? event : first;
    for (const struct qp *qp = run->held; qp; qp = qp->turn.held_next) {
        uint64_t at = qp->engine->held(qp);
        first = at < first ? at : first;
    }
    return first;
}
