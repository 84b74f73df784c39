/* SPDX-License-Identifier: Apache-2.0
 *
 * The device's lock, and the clock.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/quick.h"
#include "run/run.h"

/* A thread that forks waits for the lock by looks. */
#define LOOK_NS 1000000
#define LOOKS 2000 /* nobody has it so long, but a thread that waits for this one: both fork */

/* Whose lock this thread takes or lets go just now, and has not noted yet: for a handler of a signal that forks. */
static _Thread_local QUICK struct run *volatile between;
/* Whose lock it has; of several the last one. */
static _Thread_local QUICK struct run *volatile held;

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
    add(run->with.note, s, s->is->note);
    add(run->with.has_reached, s, s->is->has_reached);
}

void run_init(struct run *run, struct nic *nic, const struct run_source *sources) {
    run->nic = nic;
    for (; sources->is; sources++)
        enter(run, sources);
    run->epoll_fd = run->busy_fd = run->wake_fd = run->turn_fd = run->stop_fd = run->call_fd = -1;
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
    close(run->busy_fd);
    close(run->wake_fd);
    close(run->turn_fd);
    close(run->stop_fd);
    close(run->call_fd);
}

static const void *this_thread(void) {
#if defined(__has_builtin) && __has_builtin(__builtin_thread_pointer)
    return __builtin_thread_pointer();
#else
    return (const void *)pthread_self();
#endif
}

static void hold(struct run *run) {
    atomic_store_explicit(&run->holder, this_thread(), memory_order_relaxed);
    run->outer = held;
    held = run;
}

bool run_try_mutex(struct run *run) {
    between = run;
    bool locked = pthread_mutex_trylock(&run->lock) == 0;
    if (locked)
        hold(run);
    between = NULL;
    return locked;
}

void run_lock_mutex(struct run *run) {
    between = run;
    pthread_mutex_lock(&run->lock);
    hold(run);
    between = NULL;
}

bool run_is_held(const struct run *run) {
    return atomic_load_explicit(&run->holder, memory_order_relaxed) == this_thread();
}

/* For a verb: whoever works meanwhile makes way, see run_trylock() and engine.c. */
void run_lock(struct run *run) {
    if (!run_try_mutex(run)) {
        atomic_fetch_add(&run->waiting, 1);
        run_lock_mutex(run);
        atomic_fetch_sub(&run->waiting, 1);
    }
    run_uncancelled(run);
}

/* So long at most. */
static bool lock_within(struct run *run, long ns) {
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_nsec += ns;
    limit.tv_sec += limit.tv_nsec / 1000000000;
    limit.tv_nsec %= 1000000000;
    return pthread_mutex_timedlock(&run->lock, &limit) == 0;
}

/* Between the lock and the note, or the other way round, no thread is noted. */
static bool is_ours(const struct run *run) {
    return run_is_held(run) || (between == run && !atomic_load(&run->holder));
}

void run_wait_to_fork(bool waits) {
    static _Thread_local QUICK struct run *stuck;
    struct run *run = held ? held : between;
    if (waits)
        stuck = run && is_ours(run) ? run : NULL;
    if (stuck)
        atomic_store(&stuck->stuck, waits);
}

bool run_lock_to_fork(struct run *run) {
    bool locked = pthread_mutex_trylock(&run->lock) == 0;
    atomic_fetch_add(&run->waiting, 1);
    for (int i = 0; !locked && !is_ours(run) && !atomic_load(&run->stuck) && i < LOOKS; i++)
        locked = lock_within(run, LOOK_NS);
    atomic_fetch_sub(&run->waiting, 1);
    if (!locked)
        return false;
    atomic_store_explicit(&run->holder, this_thread(), memory_order_relaxed);
    run_uncancelled(run);
    return true;
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
    struct run *other = between; /* of what a handler of a signal has interrupted */
    between = run;
    if (held == run)
        held = run->outer;
    atomic_store_explicit(&run->holder, NULL, memory_order_relaxed);
    pthread_mutex_unlock(&run->lock);
    between = other;
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
bool run_trylock(struct run *run) { return !atomic_load(&run->waiting) && run_try_mutex(run); }

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
