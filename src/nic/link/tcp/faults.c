/* SPDX-License-Identifier: Apache-2.0 */
#include "link/tcp/faults.h"

#include "base/tally.h"

void stream_faults_set(struct stream_faults *f, const struct rnic_fault *cfg) {
    *f = (struct stream_faults){.on = cfg != NULL};
    if (!cfg)
        return;
    f->cfg = *cfg;
    rng_seed(&f->rng, cfg->seed);
}

/* It happens by chance, or behind so many bytes, which go before it: *n. */
static bool is_due(struct stream_faults *f, uint32_t ppm, uint64_t after, const struct stream_harm *harm, size_t *n) {
    uint64_t left = after > harm->written ? after - harm->written : 0;
    if (rng_ppm(&f->rng, ppm) || (after && !left))
        return true;
    if (after && left < *n)
        *n = left;
    return false;
}

static size_t some_of(struct stream_faults *f, size_t n) {
    uint32_t most = f->cfg.chunk;
    size_t some = most ? 1 + rng_next(&f->rng) % most : n;
    return some < n ? some : n;
}

enum harm stream_faults_write(struct stream_faults *f, struct rnic_counters *cnt, struct stream_harm *harm, size_t *n,
                              uint64_t now) {
    if (harm->until > now)
        return HARM_WAIT;
    harm->until = 0;
    if (is_due(f, f->cfg.reset, f->cfg.reset_after, harm, n)) {
        tally_fault(cnt, RNIC_CNT_fault_reset);
        return HARM_RESET;
    }
    if (is_due(f, f->cfg.stall, f->cfg.stall_after, harm, n)) {
        tally_fault(cnt, RNIC_CNT_fault_stalled);
        harm->until = UINT64_MAX;
        return HARM_STALL;
    }
    if (!harm->waited && rng_ppm(&f->rng, f->cfg.delay)) {
        tally_fault(cnt, RNIC_CNT_fault_delayed);
        harm->until = now + f->cfg.delay_ns;
        harm->waited = true;
        return HARM_WAIT;
    }
    harm->waited = false;
    *n = some_of(f, *n);
    return HARM_NONE;
}

size_t stream_faults_read(struct stream_faults *f, size_t n) { return some_of(f, n); }

void stream_faults_spoil(struct stream_faults *f, struct rnic_counters *cnt, uint8_t *bytes, uint32_t n, bool sealed) {
    if (!n || !rng_ppm(&f->rng, sealed ? f->cfg.flip : f->cfg.flip_header))
        return;
    uint64_t bit = rng_next(&f->rng) % (n * 8ull);
    bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    tally_fault(cnt, RNIC_CNT_fault_flipped);
}
