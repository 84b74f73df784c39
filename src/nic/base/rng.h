/* SPDX-License-Identifier: Apache-2.0
 *
 * Random numbers: seeded and repeatable (xorshift64*) for faults and jitter; from the kernel for keys and PSNs.
 */
#ifndef RNIC_BASE_RNG_H
#define RNIC_BASE_RNG_H

#include <stdint.h>
#include <sys/random.h>

struct rng {
    uint64_t state; /* never 0 */
};

static inline void rng_seed(struct rng *r, uint64_t seed) {
    seed += 0x9E3779B97F4A7C15u; /* splitmix64's step, so that neighbouring seeds differ at once */
    seed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9u;
    seed = (seed ^ (seed >> 27)) * 0x94D049BB133111EBu;
    r->state = (seed ^ (seed >> 31)) | 1;
}

static inline uint64_t rng_next(struct rng *r) {
    uint64_t x = r->state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    r->state = x;
    return x * 0x2545F4914F6CDD1Du;
}

/* True with a probability in parts per million. */
static inline int rng_ppm(struct rng *r, uint32_t ppm) { return ppm && (rng_next(r) >> 32) % 1000000u < ppm; }

/* 32 bits that nobody can guess: getrandom(2), which does not fail for 4 bytes once the kernel's pool is ready. */
static inline uint32_t rng_secret(void) {
    uint32_t v;
    while (getrandom(&v, sizeof v, 0) != sizeof v)
        ;
    return v;
}

#endif
