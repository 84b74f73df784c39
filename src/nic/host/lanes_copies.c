/* SPDX-License-Identifier: Apache-2.0
 *
 * Peers on this host: who of them is inside a copy, from our memory or to it.
 */
#include <sched.h>

#include "host/lanes.h"

#define COPY_NS 1000000000ull /* a copy takes less, unless who makes it has been stopped */
#define SHORT_LOOKS 32        /* in which a copy usually ends; after these the lock is not kept any longer */

/* The mark is odd while its owner is inside a copy, and never the same again. */
static bool is_inside(const struct lane *l, uint32_t mark) {
    return l->state == LANE_UP && (mark & 1) && atomic_load_explicit(&l->in.mem->mark, memory_order_acquire) == mark;
}

/* They are in the list by number, the latest first. */
static struct lane *lane_before(const struct host *host, uint64_t number) {
    struct lane *l = host->here.lanes;
    while (l && l->number >= number)
        l = l->next;
    return l;
}

/* A slot is spoken of before anything is done from there. */
static void hear_of_slots(struct host *host) {
    struct lane_self self;
    lanes_self(host, &self);
    for (struct lane *l = host->here.lanes; l; l = l->next) {
        if (l->state == LANE_UP && lane_listen_to(l, &self, LANE_ALL))
            lanes_changed(host, l);
    }
}

/* The next whose owner is meant, and has been given the memory file. */
static void look_at_next(const struct host *host, struct farewell *f) {
    struct lane *l = lane_before(host, f->begun ? f->lane : UINT64_MAX);
    while (l && !(l->state == LANE_UP && l->trusted && (!f->peer || lanes_is_peer(l, f->peer))))
        l = l->next;
    f->lane = l ? l->number : 0;
    f->mark = l ? atomic_load(&l->in.mem->mark) : 0;
}

/* A lane may be freed between two calls. */
bool lanes_have_left(void *arg, struct farewell *f) {
    struct host *host = arg;
    if (!f->begun) {
        if (f->peer)
            hear_of_slots(host);
        /* What was withdrawn first, then the look: a peer does it the other way round. */
        atomic_thread_fence(memory_order_seq_cst);
        look_at_next(host, f);
        f->begun = true;
    }
    while (f->lane) {
        const struct lane *l = lane_before(host, f->lane + 1);
        if (l && l->number == f->lane && is_inside(l, f->mark))
            return false;
        look_at_next(host, f);
    }
    return true;
}

bool lanes_await(struct host *host, uint32_t peer) {
    uint64_t until = run_clock() + COPY_NS;
    struct farewell f = {.peer = peer};
    for (int looks = 0; !lanes_have_left(host, &f); looks++) {
        if (run_clock() > until)
            return false;
        looks < SHORT_LOOKS ? (void)sched_yield() : run_let_others(host->run);
    }
    return true;
}
