/* SPDX-License-Identifier: Apache-2.0 */
#include "link/fault.h"

#include <stdlib.h>
#include <string.h>

#define REORDER_NS 1000000 /* a reordered packet waits at most this long for later ones */

void fault_forget(struct fault *f, const void *way) {
    for (struct held_packet **at = &f->held; *at;) {
        struct held_packet *h = *at;
        if (way && h->flow.port != way && h->flow.local != way) {
            at = &h->next;
            continue;
        }
        *at = h->next;
        free(h);
    }
}

void fault_set(struct fault *f, const struct rnic_fault *cfg) {
    fault_forget(f, NULL);
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

static bool hold(struct fault *f, const struct flow *flow, const uint8_t *bytes, uint32_t length, uint64_t until,
                 uint32_t gap) {
    struct held_packet *h = calloc(1, sizeof *h + length), **at = &f->held;
    if (!h)
        return false;
    *h = (struct held_packet){.flow = *flow, .until = until, .gap = gap, .length = length};
    memcpy(h->bytes, bytes, length);
    while (*at)
        at = &(*at)->next;
    *at = h;
    return true;
}

/* Counts a packet that passes those held back, and lets go the ones that have waited for enough. */
static void passed(struct fault *f, uint64_t now, fault_emit *emit, void *arg) {
    for (struct held_packet *h = f->held; h; h = h->next) {
        if (h->gap && --h->gap == 0)
            h->until = now;
    }
    fault_release(f, now, emit, arg);
}

static void send_one(struct fault *f, struct rnic_counters *cnt, const struct flow *flow, const uint8_t *bytes,
                     uint32_t length, uint64_t now, fault_emit *emit, void *arg) {
    if (rng_ppm(&f->rng, f->cfg.delay) && hold(f, flow, bytes, length, now + f->cfg.delay_ns, 0)) {
        cnt->value[RNIC_CNT_fault_delayed]++;
        return;
    }
    uint32_t gap = f->cfg.reorder_gap ? f->cfg.reorder_gap : 1;
    if (rng_ppm(&f->rng, f->cfg.reorder) && hold(f, flow, bytes, length, now + REORDER_NS, gap)) {
        cnt->value[RNIC_CNT_fault_reordered]++;
        return;
    }
    emit(arg, flow, bytes, length);
    passed(f, now, emit, arg);
}

void fault_send(struct fault *f, struct rnic_counters *cnt, const struct flow *flow, const uint8_t *bytes,
                uint32_t length, uint64_t now, fault_emit *emit, void *arg) {
    uint8_t flipped[8192];
    if (lose(f, bytes[0])) {
        cnt->value[RNIC_CNT_fault_lost]++;
        passed(f, now, emit, arg);
        return;
    }
    if (rng_ppm(&f->rng, f->cfg.flip) && (flow->local || length <= sizeof flipped)) {
        uint64_t bit = rng_next(&f->rng) % (length * 8ull);
        cnt->value[RNIC_CNT_fault_flipped]++;
        if (flow->local) { /* no ICRC would tell: memory checks itself */
            passed(f, now, emit, arg);
            return;
        }
        memcpy(flipped, bytes, length);
        flipped[bit / 8] ^= (uint8_t)(1u << bit % 8);
        bytes = flipped;
    }
    struct flow marked;
    if ((flow->traffic_class & ECN_MASK) == ECN_CAPABLE && rng_ppm(&f->rng, f->cfg.mark)) {
        marked = *flow;
        marked.traffic_class |= ECN_MARKED;
        flow = &marked;
        cnt->value[RNIC_CNT_fault_marked]++;
    }
    send_one(f, cnt, flow, bytes, length, now, emit, arg);
    if (rng_ppm(&f->rng, f->cfg.duplicate)) {
        cnt->value[RNIC_CNT_fault_duplicated]++;
        send_one(f, cnt, flow, bytes, length, now, emit, arg);
    }
}

void fault_release(struct fault *f, uint64_t now, fault_emit *emit, void *arg) {
    for (struct held_packet **at = &f->held; *at;) {
        struct held_packet *h = *at;
        if (h->until > now) {
            at = &h->next;
            continue;
        }
        *at = h->next;
        emit(arg, &h->flow, h->bytes, h->length);
        free(h);
    }
}

uint64_t fault_deadline(const struct fault *f) {
    uint64_t first = UINT64_MAX;
    for (const struct held_packet *h = f->held; h; h = h->next)
        first = h->until < first ? h->until : first;
    return first;
}
