/* SPDX-License-Identifier: Apache-2.0 */
#include "link/fault.h"

#include <stdlib.h>
#include <string.h>

#include "base/tally.h"

#define REORDER_NS 1000000 /* a reordered packet waits at most this long for later ones */

void fault_forget(struct fault *f, bool (*leads_by)(const struct way *way, const void *what), const void *closed) {
    for (struct held_packet **at = &f->held; *at;) {
        struct held_packet *h = *at;
        if (leads_by && !leads_by(&h->way, closed)) {
            at = &h->next;
            continue;
        }
        *at = h->next;
        free(h);
    }
}

void fault_set(struct fault *f, const struct rnic_fault *cfg) {
    fault_forget(f, NULL, NULL);
    *f = (struct fault){.on = cfg != NULL};
    if (!cfg)
        return;
    f->cfg = *cfg;
    rng_seed(&f->rng, cfg->seed);
}

static bool lose(struct fault *f, uint8_t opcode) {
    bool hit = false;
    for (int i = 0; i < RNIC_FAULT_RULES; i++) {
        uint32_t nth = f->cfg.lose[i].nth, count = f->cfg.lose[i].count ? f->cfg.lose[i].count : 1;
        if (!nth || (f->cfg.lose[i].opcode >= 0 && f->cfg.lose[i].opcode != opcode))
            continue;
        uint32_t seen = ++f->seen[i];
        hit |= seen >= nth && seen - nth < count;
    }
    return rng_ppm(&f->rng, f->cfg.loss) || hit;
}

static bool hold(struct fault *f, const struct way *way, const uint8_t *bytes, uint32_t length, uint64_t until,
                 uint32_t gap) {
    struct held_packet *h = calloc(1, sizeof *h + length), **at = &f->held;
    if (!h)
        return false;
    *h = (struct held_packet){.way = *way, .until = until, .gap = gap, .length = length};
    memcpy(h->bytes, bytes, length);
    while (*at)
        at = &(*at)->next;
    *at = h;
    return true;
}

/* Counts a packet that passes those held back, and lets go the ones that have waited for enough. */
static void passed(struct fault *f, uint64_t now) {
    for (struct held_packet *h = f->held; h; h = h->next) {
        if (h->gap && --h->gap == 0)
            h->until = now;
    }
    fault_release(f, now);
}

static void emit(const struct way *way, const uint8_t *bytes, uint32_t n) {
    way->link->ops->emit(way->link, way, bytes, n);
}

static void send_one(struct fault *f, struct rnic_counters *cnt, const struct way *way, const uint8_t *bytes,
                     uint32_t length, uint64_t now) {
    if (rng_ppm(&f->rng, f->cfg.delay) && hold(f, way, bytes, length, now + f->cfg.delay_ns, 0)) {
        tally_fault(cnt, RNIC_CNT_fault_delayed);
        return;
    }
    uint32_t gap = f->cfg.reorder_gap ? f->cfg.reorder_gap : 1;
    if (rng_ppm(&f->rng, f->cfg.reorder) && hold(f, way, bytes, length, now + REORDER_NS, gap)) {
        tally_fault(cnt, RNIC_CNT_fault_reordered);
        return;
    }
    emit(way, bytes, length);
    passed(f, now);
}

void fault_send(struct fault *f, struct rnic_counters *cnt, const struct way *way, const uint8_t *bytes,
                uint32_t length, uint64_t now) {
    uint8_t flipped[8192];
    if (lose(f, bytes[0])) {
        tally_fault(cnt, RNIC_CNT_fault_lost);
        passed(f, now);
        return;
    }
    if (rng_ppm(&f->rng, f->cfg.flip) && (way->link->bare || length <= sizeof flipped)) {
        uint64_t bit = rng_next(&f->rng) % (length * 8ull);
        tally_fault(cnt, RNIC_CNT_fault_flipped);
        if (way->link->bare) { /* no ICRC would tell: memory checks itself */
            passed(f, now);
            return;
        }
        memcpy(flipped, bytes, length);
        flipped[bit / 8] ^= (uint8_t)(1u << bit % 8);
        bytes = flipped;
    }
    struct way marked;
    if ((way->traffic_class & ECN_MASK) == ECN_CAPABLE && rng_ppm(&f->rng, f->cfg.mark)) {
        marked = *way;
        marked.traffic_class |= ECN_MARKED;
        way = &marked;
        tally_fault(cnt, RNIC_CNT_fault_marked);
    }
    send_one(f, cnt, way, bytes, length, now);
    if (rng_ppm(&f->rng, f->cfg.duplicate)) {
        tally_fault(cnt, RNIC_CNT_fault_duplicated);
        send_one(f, cnt, way, bytes, length, now);
    }
}

void fault_release(struct fault *f, uint64_t now) {
    for (struct held_packet **at = &f->held; *at;) {
        struct held_packet *h = *at;
        if (h->until > now) {
            at = &h->next;
            continue;
        }
        *at = h->next;
        emit(&h->way, h->bytes, h->length);
        free(h);
    }
}

uint64_t fault_deadline(const struct fault *f) {
    uint64_t first = UINT64_MAX;
    for (const struct held_packet *h = f->held; h; h = h->next)
        first = h->until < first ? h->until : first;
    return first;
}
