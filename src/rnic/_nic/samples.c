/* SPDX-License-Identifier: Apache-2.0 */
#include "samples.h"

static uint32_t bucket_of(uint64_t ns) {
    if (ns >> PERF_TOP_BIT)
        ns = (1ull << PERF_TOP_BIT) - 1;
    int shift = 63 - __builtin_clzll(ns | 1) - PERF_SUB_BITS;
    return shift <= 0 ? (uint32_t)ns : ((uint32_t)shift << PERF_SUB_BITS) + (uint32_t)(ns >> shift);
}

/* The middle of a bucket, ns. */
static double value_of(uint32_t bucket) {
    if (bucket < 2u << PERF_SUB_BITS)
        return bucket;
    uint32_t shift = (bucket >> PERF_SUB_BITS) - 1, within = bucket & ((1u << PERF_SUB_BITS) - 1);
    uint64_t low = (uint64_t)(within + (1u << PERF_SUB_BITS)) << shift;
    return (double)low + (double)((1ull << shift) - 1) / 2;
}

void perf_sample(struct perf_histogram *h, uint64_t ns) {
    double value = (double)ns;
    h->bucket[bucket_of(ns)]++;
    h->min = h->count && h->min < ns ? h->min : ns;
    h->max = h->max > ns ? h->max : ns;
    h->count++;
    h->sum += value;
    h->squares += value * value;
}

double perf_percentile(const struct perf_histogram *h, double percent) {
    uint64_t seen = h->bucket[0];
    uint32_t bucket = 0;
    double wanted = (double)h->count * percent / 100 - 1e-6; /* a product is inexact */
    if (!h->count || percent <= 0)
        return (double)h->min;
    while ((double)seen < wanted)
        seen += h->bucket[++bucket];
    double value = value_of(bucket);
    if (percent >= 100 || value > (double)h->max)
        return (double)h->max;
    return value < (double)h->min ? (double)h->min : value;
}
