/* SPDX-License-Identifier: Apache-2.0
 *
 * Which queue pairs have something to do.
 *
 * A QP's place in the timer heap is a lower bound of its deadline: deadlines move away with every acknowledge, and
 * moving a heap entry each time would cost more than looking again when the early time has come.
 */
#include <stdlib.h>

#include "dev/dev.h"
#include "queue/moderation.h"
#include "roce/roce.h"

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

/* The device makes room for every QP when it creates one, see verbs/qp.c. */
static void heap_insert(struct timer_heap *h, struct qp *qp, uint64_t at) {
    qp->turn.timer_at = at;
    heap_set(h, h->count++, qp);
    heap_up(h, qp->turn.timer_pos);
}

static void refresh_timer(struct dev *dev, struct qp *qp) {
    uint64_t deadline = qp->engine->deadline(qp);
    if (deadline >= qp->turn.timer_at)
        return;
    heap_remove(&dev->timers, qp);
    heap_insert(&dev->timers, qp, deadline);
}

/* ---------------------------------------------------------------- lists */

void sched_ready(struct dev *dev, struct qp *qp) {
    if (qp->turn.ready)
        return;
    qp->turn.ready = true;
    qp->turn.ready_next = NULL;
    if (dev->ready_last)
        dev->ready_last->turn.ready_next = qp;
    else
        dev->ready_first = qp;
    dev->ready_last = qp;
}

static struct qp *pop_ready(struct dev *dev) {
    struct qp *qp = dev->ready_first;
    if (!qp)
        return NULL;
    dev->ready_first = qp->turn.ready_next;
    if (!dev->ready_first)
        dev->ready_last = NULL;
    qp->turn.ready = false;
    return qp;
}

void sched_ring(struct dev *dev, struct qp *qp) {
    if (atomic_exchange(&qp->turn.rung, true))
        return;
    struct qp *head = atomic_load(&dev->bells);
    do
        qp->turn.rung_next = head;
    while (!atomic_compare_exchange_weak(&dev->bells, &head, qp));
}

void sched_bells(struct dev *dev) {
    struct qp *qp = atomic_load(&dev->bells) ? atomic_exchange(&dev->bells, NULL) : NULL;
    while (qp) {
        struct qp *next = qp->turn.rung_next;
        atomic_store(&qp->turn.rung, false);
        sched_ready(dev, qp);
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

uint32_t sched_unpark(struct dev *dev, struct link *link) {
    struct qp *qp;
    uint32_t n = 0;
    for (; (qp = link->waiting); n++) {
        link->waiting = qp->turn.parked_next;
        qp->turn.parked = NULL;
        sched_ready(dev, qp);
    }
    return n;
}

/* Half of the socket's buffer is free when it says that it has room: shared by those that wait for it, so that a round of
 * all of them is short, and who has but an ACK to send waits no longer than that. */
void sched_link_free(struct dev *dev, uint32_t room) {
    uint32_t n = sched_unpark(dev, &dev->tx.link), packet = dev->nic.mtu + PACKET_COST;
    dev->nic.turn = n && room / packet > n ? room / packet / n : 1;
}

/* A pass that the link has taken without a pause. */
static void link_keeps_up(struct dev *dev) {
    dev->nic.turn *= 2;
    if (dev->nic.turn >= BURST)
        dev->nic.turn = 0;
}

static void unlink_from(struct qp **list, struct qp *qp, size_t link) {
    for (struct qp **at = list; *at; at = (struct qp **)(void *)((char *)*at + link)) {
        if (*at != qp)
            continue;
        *at = *(struct qp **)(void *)((char *)qp + link);
        return;
    }
}

void sched_forget(struct dev *dev, struct qp *qp) {
    sched_bells(dev);
    if (qp->turn.ready) {
        unlink_from(&dev->ready_first, qp, offsetof(struct qp, turn.ready_next));
        dev->ready_last = dev->ready_first;
        while (dev->ready_last && dev->ready_last->turn.ready_next)
            dev->ready_last = dev->ready_last->turn.ready_next;
    }
    if (qp->turn.in_held)
        unlink_from(&dev->held, qp, offsetof(struct qp, turn.held_next));
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
    heap_remove(&dev->timers, qp);
}

/* ---------------------------------------------------------------- a pass */

/* Does what its port has been given move?  Packets for a neighbour that nobody can find do not, though the socket has room:
 * they count for one timer only.  A socket that is full may wait for the end of a long datagram. */
static bool moves(const struct dev *dev, struct qp *qp, uint64_t left, uint64_t now) {
    bool moved = left != qp->turn.left_seen;
    qp->turn.left_at = moved ? now : qp->turn.left_at;
    qp->turn.left_seen = left;
    return moved || (dev->tx.link.full && now - qp->turn.left_at < STANDSTILL_NS);
}

/* Is the request that a timer runs for still on its way out of this host, or to be written now?  What else the queue pair
 * sends, answers and new requests, puts nothing off. */
static bool still_here(const struct dev *dev, struct qp *qp, uint64_t now) {
    const struct port *port = qp->way.port;
    if (way_is_bare(&qp->way) || !port)
        return false;
    bool again = qp->engine->begins_again(qp);
    if (again && qp->turn.ready) /* its turn comes now */
        return true;
    uint64_t left = port_left(port);
    return moves(dev, qp, left, now) && ((again && qp->turn.parked) || qp->turn.written > left);
}

/* before: qp_requests() then. */
static void note_written(const struct dev *dev, struct qp *qp, uint64_t before) {
    if (qp_requests(qp) != before && !way_is_bare(&qp->way) && qp->way.port)
        qp->turn.written = udp_tx_written(&dev->tx, qp->way.port);
}

void sched_timers(struct dev *dev, uint64_t now) {
    moderation_timer(&dev->nic.cq_timing, now);
    for (int n = 0; n < TIMERS && dev->timers.count && dev->timers.at[0]->turn.timer_at <= now; n++) {
        struct qp *qp = dev->timers.at[0];
        heap_remove(&dev->timers, qp);
        if (qp->engine->not_left && qp->engine->deadline(qp) <= now && still_here(dev, qp, now))
            qp->engine->not_left(qp, now);
        uint64_t before = qp_requests(qp);
        qp->engine->timer(qp, now);
        note_written(dev, qp, before);
        sched_ready(dev, qp); /* its run looks at the deadline again */
    }
    for (struct qp **at = &dev->held; *at;) {
        struct qp *qp = *at;
        if (qp->engine->held(qp) > now && qp->engine->held(qp) != NEVER) {
            at = &qp->turn.held_next;
            continue;
        }
        *at = qp->turn.held_next;
        qp->turn.in_held = false;
        sched_ready(dev, qp);
    }
}

static void hold(struct dev *dev, struct qp *qp) {
    if (qp->turn.in_held || qp->engine->held(qp) == NEVER)
        return;
    qp->turn.in_held = true;
    qp->turn.held_next = dev->held;
    dev->held = qp;
}

void sched_input(struct dev *dev, struct qp *qp, uint64_t now) {
    if (qp->turn.ready || !qp->engine->owes || qp->engine->owes(qp, now)) {
        sched_ready(dev, qp);
        return;
    }
    hold(dev, qp);
    refresh_timer(dev, qp);
}

/* The link for whose room the rest waits, or NULL.  Of datagrams, each of which goes its own way, the oldest has met a full
 * link if the turn has sent none. */
static struct link *full_link(const struct qp *qp, bool sent) {
    if (qp->way.link->full && !(qp_is_datagram(qp) && sent))
        return qp->way.link;
    return qp->apart && qp->answers.link->full ? qp->answers.link : NULL;
}

/* One turn of a queue pair, which then waits for room, for the next turn, or for nothing but its deadlines. */
static void turn(struct dev *dev, struct qp *qp, uint64_t now) {
    uint64_t requests = qp_requests(qp), bytes = qp_sent(qp);
    bool more = qp->engine->next(qp, now);
    note_written(dev, qp, requests);
    struct link *full = more ? full_link(qp, qp_sent(qp) != bytes) : NULL;
    if (!more)
        hold(dev, qp);
    else
        full ? park(qp, full) : sched_ready(dev, qp);
}

bool sched_run(struct dev *dev, uint64_t now) {
    struct qp *last = dev->ready_last, *qp;
    bool any = last != NULL;
    dev->tx.now = now;
    for (int turns = 0; turns < TURNS && (qp = pop_ready(dev)); turns++) {
        if (qp->reach == REACH_OPEN && !lanes_decide(dev, qp, now))
            ; /* a packet of its peer, or the lane, makes it ready */
        else
            turn(dev, qp, now);
        refresh_timer(dev, qp);
        if (qp == last) /* one turn for each: those that want more go to the end */
            break;
    }
    udp_tx_flush(&dev->tx);
    lanes_flush(dev);
    if (dev->tx.link.full)
        engine_watch_room(dev);
    else if (dev->nic.turn && any)
        link_keeps_up(dev);
    return any;
}

bool sched_settle(struct dev *dev, struct qp *qp) {
    if (!qp->engine->settle(qp))
        return true;
    dev->tx.now = dev_clock();
    turn(dev, qp, dev->tx.now);
    udp_tx_flush(&dev->tx);
    lanes_flush(dev);
    if (dev->tx.link.full) {
        engine_watch_room(dev);
        engine_wake_for(dev, tx_deadline(dev));
    }
    return !qp->engine->settle(qp);
}

uint64_t sched_deadline(const struct dev *dev) {
    uint64_t first = dev->timers.count ? dev->timers.at[0]->turn.timer_at : NEVER;
    uint64_t event = moderation_deadline(&dev->nic.cq_timing);
    first = event < first ? event : first;
    for (const struct qp *qp = dev->held; qp; qp = qp->turn.held_next) {
        uint64_t at = qp->engine->held(qp);
        first = at < first ? at : first;
    }
    return first;
}
