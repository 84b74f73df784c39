/* SPDX-License-Identifier: Apache-2.0
 *
 * What the measuring loops share: time, samples, CPU time, options "name=value".
 */
#ifndef BENCH_LOOPS_H
#define BENCH_LOOPS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define MAX_SAMPLES (1u << 20) /* even */
#define SECOND 1000000000ull

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

static inline double cpu_seconds(int who) {
    struct rusage u;
    getrusage(who, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* Of all that are added every 2^thinned-th is kept: the whole time counts, however long it is. */
struct samples {
    uint64_t *ns, added;
    uint32_t count, thinned;
};

static inline void samples_add(struct samples *s, uint64_t ns) {
    if (!s->ns)
        s->ns = malloc(MAX_SAMPLES * sizeof *s->ns);
    if (!s->ns || s->added++ & ((1ull << s->thinned) - 1))
        return;
    if (s->count == MAX_SAMPLES) {
        for (s->count = 0; s->count < MAX_SAMPLES / 2; s->count++)
            s->ns[s->count] = s->ns[2 * s->count];
        s->thinned++;
    }
    s->ns[s->count++] = ns;
}

static inline int compare_ns(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Microseconds below which that part of the samples lies; sorts them. */
static inline double samples_at(struct samples *s, double part) {
    if (!s->count)
        return 0;
    qsort(s->ns, s->count, sizeof *s->ns, compare_ns);
    return (double)s->ns[(uint32_t)(part * (s->count - 1))] / 1e3;
}

/* The value of option "name=" among the arguments, or otherwise. */
static inline const char *option(char **argv, const char *name, const char *otherwise) {
    size_t n = strlen(name);
    for (; *argv; argv++) {
        if (!strncmp(*argv, name, n) && (*argv)[n] == '=')
            return *argv + n + 1;
    }
    return otherwise;
}

static inline uint32_t option_number(char **argv, const char *name, uint32_t otherwise) {
    const char *text = option(argv, name, NULL);
    return text ? (uint32_t)strtoul(text, NULL, 0) : otherwise;
}

static inline uint64_t option_ns(char **argv, const char *name, const char *otherwise) {
    return (uint64_t)(strtod(option(argv, name, otherwise), NULL) * SECOND);
}

#endif
