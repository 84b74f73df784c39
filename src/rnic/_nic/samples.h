/* SPDX-License-Identifier: Apache-2.0
 *
 * Samples of time: the clock, and the histogram that they are counted in.
 */
#ifndef RNIC_SAMPLES_H
#define RNIC_SAMPLES_H

#include <stdint.h>
#include <time.h>

#define SECOND 1000000000ull

/* An HDR histogram of three significant digits: 1024 buckets for each power of two, so that a value is known to 0.1 %;
 * ns below 2048 are exact.  216 KiB, however many samples there are. */
#define PERF_SUB_BITS 10
#define PERF_TOP_BIT 36 /* 69 s; what is longer counts as that */
#define PERF_BUCKETS ((PERF_TOP_BIT - PERF_SUB_BITS + 1) << PERF_SUB_BITS)

struct perf_histogram {
    uint64_t count, min, max; /* ns */
    double sum, squares;
    uint64_t bucket[PERF_BUCKETS];
};

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/* One more. */
void perf_sample(struct perf_histogram *h, uint64_t ns);

/* The ns that so many of a hundred samples do not exceed, to 0.1 %; 0 without samples. */
double perf_percentile(const struct perf_histogram *h, double percent);

#endif
