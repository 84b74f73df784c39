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

/* ---------------------------------------------------------------- timer heap */

static void heap_set(struct timer_heap *h, uint32_t i, struct qp *qp) {
    h->at[i] = qp;
    qp->timer_pos = i;
}

static void heap_up(struct timer_heap *h, uint32_t i) {
    struct qp *qp = h->at[i];
    for (; i && h->at[(i - 1) / 2]->timer_at > qp->timer_at; i = (i - 1) / 2)
        heap_set(h, i, h->at[(i - 1) / 2]);
    heap_set(h, i, qp);
}

static void heap_down(struct timer_heap *h, uint32_t i) {
    struct qp *qp = h->at[i];
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child + 1 < h->count && h->at[child + 1]->timer_at < h->at[child]->timer_at)
            child++;
        if (child >= h->count || h->at[child]->timer_at >= qp->timer_at)
            break;
        heap_set(h, i, h->at[child]);
        i = child;
    }
    heap_set(h, i, qp);
}

static void heap_remove(struct timer_heap *h, struct qp *qp) {
    uint32_t i = qp->timer_pos;
    if (qp->timer_at == NEVER)
        return;
    qp->timer_at = NEVER;
    struct qp *last = h->at[--h->count];
    if (last == qp)
        return;
    heap_set(h, i, last);
    heap_up(h, i);
    heap_down(h, last->timer_pos);
}

/* The device makes room for every QP when it creates one, see verbs_qp.c. */
static void heap_insert(struct timer_heap *h, struct qp *qp, uint64_t at) {
    qp->timer_at = at;
    heap_set(h, h->count++, qp);
    heap_up(h, qp->timer_pos);
}

static void refresh_timer(struct dev *dev, struct qp *qp) {
    uint64_t deadline = qp->engine->deadline(qp);
    if (deadline >= qp->timer_at)
        return;
    heap_remove(&dev->timers, qp);
    heap_insert(&dev->timers, qp, deadline);
}

/* ---------------------------------------------------------------- lists */

void sched_ready(struct dev *dev, struct qp *qp) {
    if (qp->ready)
        return;
    qp->ready = true;
    qp->ready_next = NULL;
    if (dev->ready_last)
        dev->ready_last->ready_next = qp;
    else
        dev->ready_first = qp;
    dev->ready_last = qp;
}

static struct qp *pop_ready(struct dev *dev) {
    struct qp *qp = dev->ready_first;
    if (!qp)
        return NULL;
    dev->ready_first = qp->ready_next;
    if (!dev->ready_first)
        dev->ready_last = NULL;
    qp->ready = false;
    return qp;
}

void sched_ring(struct dev *dev, struct qp *qp) {
    if (atomic_exchange(&qp->rung, true))
        return;
    struct qp *head = atomic_load(&dev->bells);
    do
        qp->rung_next = head;
    while (!atomic_compare_exchange_weak(&dev->bells, &head, qp));
}

void sched_bells(struct dev *dev) {
    struct qp *qp = atomic_load(&dev->bells) ? atomic_exchange(&dev->bells, NULL) : NULL;
    while (qp) {
        struct qp *next = qp->rung_next;
        atomic_store(&qp->rung, false);
        sched_ready(dev, qp);
        qp = next;
    }
}

/* Until there is room: who tries again at once would try all the time. */
static void park(struct dev *dev, struct qp *qp) {
    if (qp->parked)
        return;
    qp->parked = true;
    qp->parked_next = dev->parked;
    dev->parked = qp;
}

void sched_unpark(struct dev *dev) {
    struct qp *qp;
    while ((qp = dev->parked)) {
        dev->parked = qp->parked_next;
        qp->parked = false;
        sched_ready(dev, qp);
    }
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
    if (qp->ready) {
        unlink_from(&dev->ready_first, qp, offsetof(struct qp, ready_next));
        dev->ready_last = dev->ready_first;
        while (dev->ready_last && dev->ready_last->ready_next)
            dev->ready_last = dev->ready_last->ready_next;
    }
    if (qp->in_held)
        unlink_from(&dev->held, qp, offsetof(struct qp, held_next));
    if (qp->parked)
        unlink_from(&dev->parked, qp, offsetof(struct qp, parked_next));
    qp->ready = qp->in_held = qp->parked = false;
    heap_remove(&dev->timers, qp);
}

/* ---------------------------------------------------------------- a pass */

void sched_timers(struct dev *dev, uint64_t now) {
    moderation_timer(&dev->nic.cq_timing, now);
    while (dev->timers.count && dev->timers.at[0]->timer_at <= now) {
        struct qp *qp = dev->timers.at[0];
        heap_remove(&dev->timers, qp);
        qp->engine->timer(qp, &dev->tx.tx, now);
        sched_ready(dev, qp); /* its run looks at the deadline again */
    }
    for (struct qp **at = &dev->held; *at;) {
        struct qp *qp = *at;
        if (qp->engine->held(qp) > now && qp->engine->held(qp) != NEVER) {
            at = &qp->held_next;
            continue;
        }
        *at = qp->held_next;
        qp->in_held = false;
        sched_ready(dev, qp);
    }
}

static void hold(struct dev *dev, struct qp *qp) {
    if (qp->in_held || qp->engine->held(qp) == NEVER)
        return;
    qp->in_held = true;
    qp->held_next = dev->held;
    dev->held = qp;
}

void sched_input(struct dev *dev, struct qp *qp, uint64_t now) {
    if (qp->ready || !qp->engine->owes || qp->engine->owes(qp, now)) {
        sched_ready(dev, qp);
        return;
    }
    hold(dev, qp);
    refresh_timer(dev, qp);
}

static bool leads_to_stuck(const struct flow *flow) { return flow->local && lane_of(flow->local)->stuck; }

static bool is_stuck(const struct qp *qp) {
    return leads_to_stuck(&qp->flow) || (qp->apart && leads_to_stuck(&qp->answers));
}

bool sched_run(struct dev *dev, uint64_t now) {
    struct qp *last = dev->ready_last, *qp;
    bool any = last != NULL;
    dev->tx.now = now;
    while ((qp = pop_ready(dev))) {
        if (qp->way == WAY_OPEN && !lanes_decide(dev, qp, now))
            ; /* a packet of its peer, or the lane, makes it ready */
        else if (qp->engine->next(qp, &dev->tx.tx, now))
            is_stuck(qp) ? park(dev, qp) : sched_ready(dev, qp);
        else
            hold(dev, qp);
        refresh_timer(dev, qp);
        if (qp == last) /* one turn for each: those that want more go to the end */
            break;
    }
    udp_tx_flush(&dev->tx);
    lanes_flush(dev);
    return any;
}

void sched_settle(struct dev *dev, struct qp *qp) {
    if (!qp->engine->settle(qp))
        return;
    qp->engine->next(qp, &dev->tx.tx, dev_clock());
    udp_tx_flush(&dev->tx);
    lanes_flush(dev);
}

uint64_t sched_deadline(const struct dev *dev) {
    uint64_t first = dev->timers.count ? dev->timers.at[0]->timer_at : NEVER;
    uint64_t event = moderation_deadline(&dev->nic.cq_timing);
    first = event < first ? event : first;
    for (const struct qp *qp = dev->held; qp; qp = qp->held_next) {
        uint64_t at = qp->engine->held(qp);
        first = at < first ? at : first;
    }
    return first;
}
