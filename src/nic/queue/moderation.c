/* SPDX-License-Identifier: Apache-2.0 */
#include "queue/moderation.h"

#include <stddef.h>

static void hold(struct cq *cq) {
    struct moderation *m = &cq->moderation;
    struct cq_timing *timing = cq->timing;
    m->due = timing->clock(timing->arg) + m->period;
    m->next = timing->held;
    m->at = &timing->held;
    if (m->next)
        m->next->moderation.at = &m->next;
    timing->held = cq;
}

static void release(struct cq *cq) {
    struct moderation *m = &cq->moderation;
    *m->at = m->next;
    if (m->next)
        m->next->moderation.at = m->at;
    m->ripe = 0;
}

bool moderation_holds(struct cq *cq) {
    struct moderation *m = &cq->moderation;
    if (m->ripe + 1 < m->count) {
        if (m->ripe++ == 0)
            hold(cq);
        return true;
    }
    moderation_forget(cq);
    return false;
}

void moderation_set(struct cq *cq, const struct rnic_moderate_cq *limits) {
    struct moderation *m = &cq->moderation;
    m->period = limits->cq_period * 1000ull;
    m->count = limits->cq_count ? limits->cq_count : UINT32_MAX;
    if (m->ripe) {
        release(cq);
        cq_raise(cq);
    }
}

void moderation_forget(struct cq *cq) {
    if (cq->moderation.ripe)
        release(cq);
}

void moderation_timer(struct cq_timing *timing, uint64_t now) {
    for (struct cq *cq = timing->held, *next; cq; cq = next) {
        next = cq->moderation.next;
        if (cq->moderation.due > now)
            continue;
        release(cq);
        cq_raise(cq);
    }
}

uint64_t moderation_deadline(const struct cq_timing *timing) {
    uint64_t first = UINT64_MAX;
    for (const struct cq *cq = timing->held; cq; cq = cq->moderation.next)
        first = cq->moderation.due < first ? cq->moderation.due : first;
    return first;
}
