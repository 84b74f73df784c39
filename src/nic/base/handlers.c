/* SPDX-License-Identifier: Apache-2.0 */
#include "base/handlers.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#define LATELY_NS 100000000

static _Atomic uint64_t looked_at; /* 0: never */
static _Atomic int seen;

static uint64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

enum handlers handlers_now(void) {
    int restart = 0, end = 0;
    for (int sig = 1; sig < NSIG; sig++) {
        struct sigaction action;
        if (sigaction(sig, NULL, &action) ||
            (!(action.sa_flags & SA_SIGINFO) && (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN)))
            continue;
        if (action.sa_flags & SA_RESTART)
            restart++;
        else
            end++;
    }
    enum handlers found = !end ? HANDLERS_RESTART : !restart ? HANDLERS_END : HANDLERS_DIFFER;
    atomic_store(&seen, (int)found);
    atomic_store(&looked_at, now_ns());
    return found;
}

enum handlers handlers_lately(uint64_t *until) {
    uint64_t at = atomic_load(&looked_at);
    bool fresh = !at || now_ns() >= at + LATELY_NS;
    *until = fresh ? UINT64_MAX : at + LATELY_NS;
    return fresh ? handlers_now() : (enum handlers)atomic_load(&seen);
}
