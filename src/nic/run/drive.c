/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread that is going to sleep does the engine's work meanwhile ("drives"). The packet that it waits for wakes no other
 * thread.
 *
 * The thread sleeps on the busy set itself, which the engine then leaves alone.  The engine is not told when the thread leaves:
 * it looks up now and then, as beside a program that polls, and finds that nobody drives.  The leaving thread wakes only an engine
 * that has gone to sleep for long, or one other thread that waits.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "run/run.h"

#define AGAIN_NS 250000000 /* a thread that waits alone asks after that time whether it may be next, then after twice as long, */
#define AGAIN_MOST_NS 8000000000 /* and so on */
#define LEAVES_US 50 /* between two looks whether all have left */

enum { SLEEP_FD, SLEEP_TURN, SLEEP_BUSY, SLEEP_FDS };
enum sleeps { SLEEPS_ALONE, SLEEPS_NEXT, SLEEPS_DRIVER };

/* 0: something has come for the device, or the time has, or the thread that drives has changed; 1: to `fd`; -EINTR. */
static int sleep_on(struct run *run, int fd, enum sleeps how, uint64_t until) {
    struct pollfd fds[SLEEP_FDS] = {{.fd = fd, .events = POLLIN}, /* poll(2) leaves out what is negative */
                                    {.fd = how == SLEEPS_ALONE ? run->stop_fd : run->turn_fd, .events = POLLIN},
                                    {.fd = how == SLEEPS_DRIVER ? run->busy_fd : -1, .events = POLLIN}};
    uint64_t now = run_clock(), ns = until > now ? until - now : 0, turn;
    struct timespec ts = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    int n = ppoll(fds, SLEEP_FDS, until == NEVER ? NULL : &ts, NULL);
    if (n < 0)
        return -EINTR;
    if (n == 0 || fds[SLEEP_FD].revents)
        return n > 0;
    if (how != SLEEPS_ALONE && fds[SLEEP_TURN].revents && syscall(SYS_read, run->turn_fd, &turn, sizeof turn) < 0)
        return 0; /* another one's turn */
    return 0;
}

/* ---------------------------------------------------------------- one that drives */

static bool begin(struct run *run) {
    bool driven = false;
    return atomic_compare_exchange_strong(&run->driven, &driven, true);
}

/* An engine that sleeps for long would not know of the timers that a program may set from now on. */
static void rouse_engine(struct run *run) {
    engine_wake_for(run, atomic_load(&run->driven_at) + ENGINE_RARE_NS + ENGINE_LOOKS_NS);
}

/* Whoever waits drives next, if nobody does. */
static void pass_turn(struct run *run) {
    uint64_t one = 1;
    if (atomic_load(&run->next) && !atomic_load(&run->driven) && syscall(SYS_write, run->turn_fd, &one, sizeof one) < 0)
        return; /* cannot be: the counter is full */
}

/* A thread that waits drives next, or the engine does the work: also when the one that waits is leaving, too. */
static void end(struct run *run, bool comes_back) {
    atomic_store(&run->driven_at, run_clock());
    atomic_fetch_add(&run->drives, !comes_back);
    atomic_store(&run->drives_at, 0);
    atomic_store(&run->driven, false);
    if (comes_back)
        return;
    pass_turn(run);
    rouse_engine(run);
}

/* Takes what has come.  True: there was something.  Under the lock, as the others. */
static bool take(struct run *run) {
    uint64_t now = run_clock();
    progress_hold(run, now, true);
    run->roused = true;
    bool any = progress(run, now, false);
    run->roused = false;
    progress_finish(run, now);
    return any;
}

/* The program has nothing to answer: ACKs leave. */
static void acknowledge(struct run *run) {
    uint64_t now = run_clock();
    run->nic->ack_hold = 0;
    sched_timers(run, now);
    progress_finish(run, now);
}

/* Before a sleep: when it may last until; 0: there is something to do. */
static uint64_t settle(struct run *run) {
    bool may = true;
    acknowledge(run);
    EACH_SOURCE(run, s, may_sleep)
    may &= s->is->may_sleep(s->owner);
    return run->ready_first || !may ? 0 : progress_deadline(run);
}

/* When the thread may sleep until; 0: what it waits for is there, or there is more to do, or there may soon be.  busy: when
 * something has come last, if the thread was woken. */
static uint64_t pass(struct run *run, const struct drive *d, uint64_t *busy) {
    uint64_t due = 0;
    run_lock(run);
    atomic_store(&run->drives_at, 0);
    drive_answer(run);
    d->arm(d->of, false);
    engine_leave(run);
    if (busy && (take(run) || take(run))) /* a look costs less than the yield behind it */
        *busy = run->now;
    bool has = d->has(d->of), lingers = !has && busy && engine_lingers(run, *busy, run_clock());
    if (lingers)
        acknowledge(run);
    if (!has && !lingers) {
        due = settle(run);
        d->arm(d->of, true);
        atomic_store(&run->drives_at, due);
    }
    run_unlock(run);
    if (lingers)
        engine_give_way(run);
    return due;
}

static int drive(struct run *run, const struct drive *d, uint64_t until) {
    uint64_t due = pass(run, d, NULL), busy = 0;
    int rc = 0;
    while (!d->has(d->of) && !rc && !atomic_load(&run->closes) && run_clock() < until) {
        rc = due ? sleep_on(run, d->fd, SLEEPS_DRIVER, due < until ? due : until) : 0;
        due = pass(run, d, &busy);
    }
    return rc;
}

/* ---------------------------------------------------------------- a thread comes and goes */

struct inside {
    struct run *run;
    const struct drive *d;
    bool drives, next;
    bool turn;      /* it has perhaps been told to drive, and has not done so */
    uint64_t again; /* ns until it asks whether it may be next */
};

/* Another thread drives.  One of those that wait besides is the next one; the others hear of what they wait for alone, and ask now
 * and then whether they may be it. */
static int wait_for_turn(struct inside *in, uint64_t until) {
    struct run *run = in->run;
    uint64_t again = run_clock() + in->again;
    in->again = in->again < AGAIN_MOST_NS ? 2 * in->again : AGAIN_MOST_NS;
    in->next = in->turn = !atomic_exchange(&run->next, true);
    in->d->arm(in->d->of, true);
    bool sleeps = !in->d->has(in->d->of) && atomic_load(&run->driven);
    int rc = sleeps ? sleep_on(run, in->d->fd, in->next ? SLEEPS_NEXT : SLEEPS_ALONE,
                               in->next || until < again ? until : again)
                    : 0;
    if (in->next)
        atomic_store(&run->next, false);
    in->next = false;
    return rc;
}

static int wait_once(struct inside *in, uint64_t until) {
    struct run *run = in->run;
    if (!(in->drives = begin(run)))
        return wait_for_turn(in, until);
    in->turn = false;
    int rc = drive(run, in->d, until);
    in->drives = false;
    end(run, in->d->goes_on && !rc && !in->d->has(in->d->of));
    return rc;
}

/* Also when the thread is cancelled while it sleeps. */
static void leave(void *arg) {
    struct inside *in = arg;
    if (in->drives)
        end(in->run, false);
    if (in->next)
        atomic_store(&in->run->next, false);
    if (in->turn)
        pass_turn(in->run);
    in->d->arm(in->d->of, false);
    atomic_fetch_sub(&in->run->inside, 1);
}

int drive_wait(struct run *run, const struct drive *d, uint64_t until) {
    struct inside in = {run, d, false, false, false, AGAIN_NS};
    int rc;
    atomic_fetch_add(&run->inside, 1);
    pthread_cleanup_push(leave, &in);
    for (rc = atomic_load(&run->closes) ? -EAGAIN : 0;
         !rc && !d->has(d->of) && !atomic_load(&run->closes) && run_clock() < until;)
        rc = wait_once(&in, until);
    pthread_cleanup_pop(true);
    return rc;
}

/* ---------------------------------------------------------------- what others do while it sleeps */

static void call(struct run *run) {
    uint64_t one = 1;
    atomic_store(&run->drives_at, 0); /* once is enough */
    run->called = syscall(SYS_write, run->call_fd, &one, sizeof one) > 0;
}

/* Takes the call back. While a thread drives, that thread alone does so: if another one did, the thread that drives would sleep on. */
void drive_answer(struct run *run) {
    uint64_t count;
    if (run->called && syscall(SYS_read, run->call_fd, &count, sizeof count) > 0)
        run->called = false;
}

void drive_taken(struct run *run) {
    bool may = true;
    if (!atomic_load(&run->drives_at))
        return;
    EACH_SOURCE(run, s, may_sleep)
    may &= s->is->may_sleep(s->owner);
    if (!may)
        call(run);
}

void drive_wake_for(struct run *run, uint64_t deadline) {
    if (deadline < atomic_load(&run->drives_at))
        call(run);
}

/* ---------------------------------------------------------------- a loop that waits for other things, too */

/* A thread has been here, and is expected to come back soon. */
static void note(struct run *run, uint64_t now) {
    atomic_store(&run->driven_at, now);
    atomic_fetch_add(&run->drives, 1);
}

bool drive_look(struct run *run) {
    run_lock(run);
    uint64_t now = run_clock();
    uint64_t last = atomic_load(&run->driven_at);
    bool often = now < (last > run->loop_at ? last : run->loop_at) + ENGINE_LEAVES_NS;
    run->loop_at = now;
    if (!atomic_load(&run->driven))
        drive_answer(run);
    if (often) { /* what comes rarely may wake the engine, too: it would look up for longer than that takes */
        note(run, now);
        engine_leave(run);
    }
    bool any = take(run);
    run_unlock(run);
    if (often)
        rouse_engine(run);
    return any;
}

void drive_give_way(struct run *run) {
    uint64_t now = run_clock();
    if (now < atomic_load(&run->driven_at) + ENGINE_LEAVES_NS) { /* as for a loop */
        note(run, now);
        rouse_engine(run); /* the caller may find what it waits for, and not come back */
    }
    sched_yield();
}

bool drive_settle(struct run *run) {
    run_lock(run);
    bool may = settle(run) != 0;
    run_unlock(run);
    return may;
}

void drive_stop(struct run *run) {
    const int fds[] = {run->turn_fd, run->stop_fd};
    uint64_t all = 1 << 20;
    atomic_store(&run->closes, true);
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        if (syscall(SYS_write, fds[i], &all, sizeof all) < 0)
            continue; /* the counter is full: the threads wake anyway */
    }
}

void drive_end(struct run *run) {
    for (drive_stop(run); atomic_load(&run->inside);)
        usleep(LEAVES_US);
}
