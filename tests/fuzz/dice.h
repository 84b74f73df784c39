/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a fuzzer's choices come from: a seed, or the bytes that libFuzzer gives.
 */
#ifndef RNIC_TESTS_DICE_H
#define RNIC_TESTS_DICE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/rng.h"

struct dice {
    struct rng rng;
    const uint8_t *at, *end; /* of the given bytes; NULL: seeded */
};

static inline bool dice_spent(const struct dice *d) { return d->at && d->at == d->end; }

static inline uint64_t dice_bits(struct dice *d, int bytes) {
    uint64_t v = 0;
    if (!d->at)
        return rng_next(&d->rng) >> (64 - 8 * bytes);
    while (bytes-- && d->at < d->end)
        v = v << 8 | *d->at++;
    return v;
}

/* 0 .. n - 1 */
static inline uint32_t dice_below(struct dice *d, uint32_t n) {
    return (uint32_t)(dice_bits(d, n <= 256 ? 1 : n <= 65536 ? 2 : 4) % (n ? n : 1));
}

static inline bool dice_one_in(struct dice *d, uint32_t n) { return dice_below(d, n) == n - 1; }

#define DICE_PICK(d, ...)                                                                                              \
    ((const uint64_t[]){__VA_ARGS__})[dice_below(d, sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))]

#endif
