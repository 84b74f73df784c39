/* SPDX-License-Identifier: Apache-2.0
 *
 * Who waits, drives: a thread that is going to sleep does the engine's work meanwhile, and the packet that it waits for wakes
 * no other thread.
 *
 * It sleeps on the busy set itself, which the engine then leaves alone.  When it leaves, nobody is told: the engine looks
 * up now and then, as beside a program that polls, and finds that nobody drives.  Only an engine that has gone to sleep for
 * long, or a thread that waits as well, is woken.
 */
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "run/run.h"

#define LEAVES_US 50 /* between two looks whether all have left */

enum { SLEEP_FD, SLEEP_OTHER, SLEEP_FDS };

/* 0: something has come, or the time has; 1: to `fd`; -EINTR. */
static int sleep_on(int fd, int other, uint64_t until) {
    struct pollfd fds[SLEEP_FDS] = {{.fd = fd, .events = POLLIN}, {.fd = other, .events = POLLIN}};
    uint64_t now = run_clock(), ns = until > now ? until - now : 0;
    struct timespec ts = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    int n = ppoll(fds, SLEEP_FDS, until == NEVER ? NULL : &ts, NULL);
    return n < 0 ? -EINTR : n > 0 && fds[SLEEP_FD].revents;
}

/* ---------------------------------------------------------------- one that drives */

static bool begin(struct run *run) {
    bool driven = false;
    return atomic_compare_exchange_strong(&run->driven, &driven, true);
}

/* A thread that waits drives next, or the engine does the work. */
static void end(struct run *run) {
    atomic_store(&run->driven_at, run_clock());
    atomic_fetch_add(&run->drives, 1);
    atomic_store(&run->driven, false);
    uint64_t one = 1;
    if (atomic_load(&run->waiters) && syscall(SYS_write, run->turn_fd, &one, sizeof one) < 0)
        return; /* cannot be: the counter is full */
    engine_wake_for(run, atomic_load(&run->driven_at) + 3 * ENGINE_LOOKS_NS); /* it sleeps for long */
}

/* Takes what has come, and what is due; when the thread may sleep until, or 0: what it waits for is there, or more work. */
static uint64_t pass(struct run *run, const struct drive *d, bool come) {
    run_lock(run);
    d->arm(d->of, false);
    engine_leave(run);
    uint64_t now = run_clock(), due = 0;
    bool may = true;
    if (come) {
        progress_hold(run, now, true);
        progress(run, now, false);
        progress_finish(run, now);
    }
    if (!d->has(d->of)) {
        run->nic->ack_hold = 0; /* no answer will take it along */
        sched_timers(run, now);
        progress_finish(run, now);
        EACH_SOURCE(run, s, may_sleep)
        may &= s->is->may_sleep(s->owner);
        due = run->ready_first || !may ? 0 : progress_deadline(run);
        d->arm(d->of, true);
    }
    run_unlock(run);
    return due;
}

static int drive(struct run *run, const struct drive *d, uint64_t until) {
    uint64_t due = pass(run, d, false);
    int rc = 0;
    while (!d->has(d->of) && !rc && !atomic_load(&run->closes) && run_clock() < until) {
        rc = due ? sleep_on(d->fd, run->busy_fd, due < until ? due : until) : 0;
        due = pass(run, d, true);
    }
    return rc;
}

/* ---------------------------------------------------------------- one that waits for its turn */

static int wait_for_turn(struct run *run, const struct drive *d, uint64_t until) {
    uint64_t count;
    atomic_fetch_add(&run->waiters, 1);
    d->arm(d->of, true);
    int rc = d->has(d->of) || !atomic_load(&run->driven) ? 0 : sleep_on(d->fd, run->turn_fd, until);
    atomic_fetch_sub(&run->waiters, 1);
    if (rc == 0 && syscall(SYS_read, run->turn_fd, &count, sizeof count) < 0)
        return 0; /* it is another one's turn */
    return rc;
}

static int wait_for(struct run *run, const struct drive *d, uint64_t until) {
    int rc = 0;
    while (!rc && !d->has(d->of) && !atomic_load(&run->closes) && run_clock() < until) {
        if (!begin(run)) {
            rc = wait_for_turn(run, d, until);
            continue;
        }
        rc = drive(run, d, until);
        end(run);
    }
    d->arm(d->of, false);
    return rc;
}

int drive_wait(struct run *run, const struct drive *d, uint64_t until) {
    atomic_fetch_add(&run->inside, 1);
    int rc = atomic_load(&run->closes) ? 0 : wait_for(run, d, until);
    atomic_fetch_sub(&run->inside, 1);
    return rc;
}

void drive_end(struct run *run) {
    uint64_t all = 1 << 20;
    atomic_store(&run->closes, true);
    if (!atomic_load(&run->inside))
        return;
    engine_watch_turns(run);
    while (syscall(SYS_write, run->turn_fd, &all, sizeof all) == sizeof all && atomic_load(&run->inside))
        usleep(LEAVES_US);
}
