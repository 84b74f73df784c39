/* SPDX-License-Identifier: Apache-2.0
 *
 * What the measuring programs share: time and samples (samples.h), CPU time, options "name=value".
 */
#ifndef BENCH_LOOPS_H
#define BENCH_LOOPS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "samples.h"

static inline double cpu_seconds(int who) {
    struct rusage u;
    getrusage(who, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
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
