/* SPDX-License-Identifier: Apache-2.0 */
#include "base/guard.h"

#include <setjmp.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/ordered.h"
#include "base/quick.h"

/* Where to go on.  The compiler's own way saves three registers in place of all, which is half the time of a short copy. */
#if defined __x86_64__ && defined __GNUC__ && !defined __SANITIZE_THREAD__
typedef void *place[5];
#define MARK(place) __builtin_setjmp(place)
#define GO_TO(place) __builtin_longjmp(place, 1)
#else
typedef jmp_buf place;
#define MARK(place) _setjmp(place)
#define GO_TO(place) longjmp(place, 1)
#endif

struct mark {
    place landing;
    uintptr_t to, from;
    size_t n;
    struct mark *outer; /* a handler of a signal may have come in between, with an access of its own */
};

/* This thread's innermost one. */
static _Thread_local QUICK struct mark *volatile mark;

/* The body of a function that accesses `to` and `from`, n bytes each, and returns false if some are not there. */
#define GUARDED(to_, from_, n_, access)                                                                                \
    struct mark here = {.to = (uintptr_t)(to_), .from = (uintptr_t)(from_), .n = (n_), .outer = mark};                  \
    if (MARK(here.landing))                                                                                            \
        return false;                                                                                                  \
    atomic_signal_fence(memory_order_seq_cst);                                                                         \
    mark = &here;                                                                                                      \
    access;                                                                                                            \
    atomic_signal_fence(memory_order_seq_cst);                                                                         \
    mark = here.outer;                                                                                                 \
    return true

__attribute__((noinline)) bool guard(guard_access *access, void *to, const void *from, size_t n, void *more) {
    GUARDED(to, from, n, access(to, from, n, more));
}

bool guard_covers(const void *at) {
    const struct mark *here = mark;
    return here && ((uintptr_t)at - here->to < here->n || (uintptr_t)at - here->from < here->n);
}

__attribute__((noinline)) void guard_end(void) {
    struct mark *here = mark;
    mark = here->outer;
    GO_TO(here->landing);
}

/* ---------------------------------------------------------------- accesses */

__attribute__((noinline)) bool guard_copy(void *to, const void *from, size_t n) {
    GUARDED(to, from, n, ordered_copy(to, from, n));
}

struct change {
    const struct word_op *op;
    uint64_t was;
};

static void change(void *to, const void *from, size_t n, void *more) {
    struct change *c = more;
    (void)from, (void)n;
    c->was = word_apply(c->op, to);
}

bool guard_word(const struct word_op *op, uint64_t *word, uint64_t *was) {
    struct change c = {.op = op};
    bool done = guard(change, word, NULL, sizeof *word, &c);
    *was = c.was;
    return done;
}

#define STEP 4096u /* no page is smaller */

static void touch(void *to, const void *from, size_t n, void *more) {
    (void)more;
    for (size_t at = 0; at<n; at = n - at> STEP ? at + STEP : at + 1 < n ? n - 1 : n) {
        if (to)
            __atomic_fetch_or((uint8_t *)to + at, 0, __ATOMIC_RELAXED);
        if (from)
            (void)*((const volatile uint8_t *)from + at);
    }
}

bool guard_touch(void *to, const void *from, size_t n) { return guard(touch, to, from, n, NULL); }
