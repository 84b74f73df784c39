/* SPDX-License-Identifier: Apache-2.0
 *
 * The device's lock, and the clock.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "run/run.h"

uint64_t run_clock(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void add(struct run_source *list, const struct run_source *source, bool has) {
    while (list->is)
        list++;
    if (has)
        *list = *source;
}

static void enter(struct run *run, const struct run_source *s) {
    add(run->with.receive, s, s->is->receive);
    add(run->with.receive_rare, s, s->is->receive_rare);
    add(run->with.wants, s, s->is->wants);
    add(run->with.is_used, s, s->is->is_used);
    add(run->with.resume, s, s->is->resume);
    add(run->with.deadline, s, s->is->deadline);
    add(run->with.flush, s, s->is->flush);
    add(run->with.timer, s, s->is->timer);
    add(run->with.timer_at, s, s->is->timer_at);
    add(run->with.arm, s, s->is->arm);
    add(run->with.may_sleep, s, s->is->may_sleep);
    add(run->with.awake, s, s->is->awake);
}

void run_init(struct run *run, struct nic *nic, const struct run_source *sources) {
    run->nic = nic;
    for (; sources->is; sources++)
        enter(run, sources);
    run->epoll_fd = run->wake_fd = -1;
    pthread_mutex_init(&run->lock, NULL);
}

void run_free(struct run *run) {
    free(run->timers.at);
    pthread_mutex_destroy(&run->lock);
}

int run_reserve(struct run *run, uint32_t qps) {
    struct timer_heap *h = &run->timers;
    if (qps < h->room)
        return 0;
    uint32_t room = h->room ? h->room * 2 : 64;
    struct qp **at = realloc(h->at, room * sizeof(struct qp *));
    if (!at)
        return -ENOMEM;
    h->at = at;
    h->room = room;
    return 0;
}

void run_abandon(struct run *run) {
    close(run->epoll_fd);
    close(run->wake_fd);
}

/* For a verb: whoever works meanwhile makes way, see run_trylock() and engine.c. */
void run_lock(struct run *run) {
    if (pthread_mutex_trylock(&run->lock)) {
        atomic_fetch_add(&run->waiting, 1);
        pthread_mutex_lock(&run->lock);
        atomic_fetch_sub(&run->waiting, 1);
    }
    run_uncancelled(run);
}

void run_uncancelled(struct run *run) {
    if (run->uncancelled)
        return;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &run->cancel_state);
    run->uncancelled = true;
}

static void unlock(struct run *run) {
    bool was = run->uncancelled;
    int state = run->cancel_state;
    run->uncancelled = false;
    pthread_mutex_unlock(&run->lock);
    if (was)
        pthread_setcancelstate(state, NULL);
}

/* Nothing after it is read before the lock is free.  A processor of this kind gives it away by an instruction that is a
 * full barrier itself. */
static inline void barrier_after_unlock(void) {
#if defined(__x86_64__)
    atomic_signal_fence(memory_order_seq_cst);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* Whoever posts or polls all the time would have the lock again before one that sleeps is awake. So it is left to that
 * one, who looks at the bells when it unlocks. */
bool run_trylock(struct run *run) { return !atomic_load(&run->waiting) && pthread_mutex_trylock(&run->lock) == 0; }

void run_unlock(struct run *run) {
    for (;;) {
        unlock(run);
        barrier_after_unlock(); /* a bell rung before a failed try-lock is seen here */
        if (!atomic_load(&run->bells) || !run_trylock(run))
            return;
        progress_finish(run, run_clock());
    }
}

void run_let_others(struct run *run) {
    const struct timespec pause = {.tv_nsec = 50000};
    int state;
    run_unlock(run);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state); /* whoever calls has not finished */
    nanosleep(&pause, NULL);
    pthread_setcancelstate(state, NULL);
    run_lock(run);
}
