/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine thread: the device's own legs.  It makes progress whenever no application does, without the interpreter.
 *
 * While an application polls, or waits (drive.c), a second sleeper on the same socket would cost a wake-up for every packet.
 * So the engine then does not watch the set of the busy sockets ("disarmed") and only looks up now and then; when nobody has
 * polled or waited since, it watches them again.
 */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fail.h"
#include "run/run.h"

#define LASTING_LOOKS 4     /* a thread that has waited for so many looks waits on: it tells the engine when it does not */
#define LONGEST_NS 250000000 /* and it looks up after that time, whatever else it may have missed */
#define IN_USE_NS 200000    /* an application that polled within this time is still at it */
#define LOOKS_SKIPPED 15   /* of them in a row, while the application has the lock; fewer if they are rare */
#define GONE_NS 250000     /* an application that polls has not done so for this time, longer than it takes the engine to wake and look, */
#define LEFT_NS 50000      /* or for this time, and a WRITE has lain there: if something has at */
#define LEFT_LOOKS 2       /* so many looks in a row, it polls for something else, its memory perhaps, */
#define LEAVES_NS 50000000 /* and the engine does the work for this time, */
#define LOOKS_ELSEWHERE_NS 1000000000 /* and looks up often for this time; */
#define LEFT_HOLD_NS 100000 /* an ACK waits so long for the answer of that application */
#define STEADY_LOOKS 8     /* so many looks that have found it at work double the time between the next ones */
#define POLLED_RARE_NS 8000000 /* and how rare they get beside one that polls: at twice as many 1 % of its messages would wait */
#define PASSES 16           /* between two looks at who waits for the lock, and at sockets without queue pairs */
#define LATE_MOST_NS 1000000000ull /* a delay that is longer counts as that: the process was stopped */
#define LATE_MEMORY 16      /* a delay is remembered so many times as long as it was */
#define LINGER_NS 50000     /* after the last packet: falling asleep and being woken would take as long */
#define SLICE_NS 100000     /* the shortest that there is */
#define YIELDED_NS 5000     /* a yield that takes longer has let another thread run, perhaps one of ours that looked up; */
#define YIELDED_OFTEN 2     /* so many of these in a row, */
#define YIELDED_LONG_NS 200000 /* or one of this length, let another program run: */
#define CROWDED_NS 10000000 /* it is not kept waiting for so long, as it may be the peer that was just woken */

static void epoll_set(int set, int fd, uint32_t events) {
    struct epoll_event e = {.events = events, .data = {.fd = fd}};
    if (epoll_ctl(set, EPOLL_CTL_MOD, fd, &e) && errno == ENOENT)
        epoll_ctl(set, EPOLL_CTL_ADD, fd, &e);
}

void engine_watch(struct run *run, int fd) { epoll_set(run->epoll_fd, fd, EPOLLIN); }

void engine_unwatch(struct run *run, int fd) { epoll_ctl(run->epoll_fd, EPOLL_CTL_DEL, fd, NULL); }

void engine_watch_for(struct run *run, struct watched *w, int fd, uint32_t events, bool busy) {
    int set = busy ? run->busy_fd : run->epoll_fd;
    if (fd < 0 || (w->fd == fd && w->events == events && w->set == set))
        return;
    if (w->fd == fd && w->set != set)
        epoll_ctl(w->set, EPOLL_CTL_DEL, fd, NULL);
    *w = (struct watched){fd, events, set};
    epoll_set(set, fd, events);
}

static void arm_sources(struct run *run) {
    EACH_SOURCE(run, s, arm)
    s->is->arm(s->owner, run->sleeper != SLEEPER_NONE);
}

/* Whose the busy set is. */
static void arm(struct run *run, enum sleeper sleeper) {
    if ((run->sleeper == SLEEPER_ENGINE) != (sleeper == SLEEPER_ENGINE))
        epoll_set(run->epoll_fd, run->busy_fd, sleeper == SLEEPER_ENGINE ? EPOLLIN : 0);
    if (sleeper == SLEEPER_ENGINE && !atomic_load(&run->driven))
        drive_answer(run);
    run->sleeper = sleeper;
    arm_sources(run);
    atomic_store(&run->disarmed, sleeper != SLEEPER_ENGINE);
}

void engine_rearm(struct run *run) { arm_sources(run); }

void engine_leave(struct run *run) {
    if (run->sleeper != SLEEPER_DRIVER)
        arm(run, SLEEPER_DRIVER);
}

void engine_wake(struct run *run) {
    uint64_t one = 1;
    if (syscall(SYS_write, run->wake_fd, &one, sizeof one) < 0) /* the counter is full: it is awake */
        return;
}

void engine_wake_for(struct run *run, uint64_t deadline) {
    if (deadline < atomic_load(&run->wakes_at)) {
        atomic_store(&run->wakes_at, 0); /* once is enough */
        engine_wake(run);
    }
}

/* One that has waited by drive_wait() will do so again; if it does not, the engine finds out. */
static bool drives(const struct run *run, uint64_t now) {
    return atomic_load(&run->driven) || now < atomic_load(&run->driven_at) + ENGINE_LEAVES_NS;
}

void engine_take_over(struct run *run) {
    if (drives(run, run_clock()))
        return;
    atomic_store(&run->polls_at, 0);
    if (atomic_load(&run->disarmed))
        engine_wake(run);
}

/* ---------------------------------------------------------------- the thread */

/* The engine thread could have worked since then: more threads want a processor than there are, or the thread that has the
 * lock has none.  Peers on this host fare no better. */
static void note_late(struct run *run, uint64_t since) {
    uint64_t now = run_clock(), late = now - since < LATE_MOST_NS ? now - since : LATE_MOST_NS;
    if (late < engine_late(run, now))
        return;
    atomic_store(&run->late, late);
    atomic_store(&run->late_until, now + LATE_MEMORY * late);
}

uint64_t engine_late(const struct run *run, uint64_t now) {
    return now < atomic_load(&run->late_until) ? atomic_load(&run->late) : 0;
}

/* The engine has time: nobody makes way for it. */
static void engine_lock(struct run *run) {
    if (run_try_mutex(run))
        return;
    uint64_t since = run_clock();
    run_lock_mutex(run);
    note_late(run, since);
}

static void source_timers(struct run *run, uint64_t now) {
    EACH_SOURCE(run, s, timer)
    s->is->timer(s->owner, now);
}

static uint64_t first_timer(const struct run *run, uint64_t first) {
    EACH_SOURCE(run, s, timer_at) {
        uint64_t at = s->is->timer_at(s->owner);
        first = at < first ? at : first;
    }
    return first;
}

/* Does the application look for progress itself, all the time?  One that looks once, as threads that wait for events do
 * between two, leaves packets lying for as long as it does something else. */
static bool in_use(const struct run *run, uint64_t now) {
    uint64_t last = atomic_load(&run->polls_at);
    bool recently = last && (now < last || now - last <= IN_USE_NS || atomic_load(&run->polling));
    return atomic_load(&run->driven) || (now >= atomic_load(&run->left_until) && (recently || drives(run, now)));
}

/* To a thread that waits for the lock, or to a process that waits for a processor to send us something. */
void engine_give_way(struct run *run) {
    uint64_t since = run_clock();
    sched_yield();
    note_late(run, since);
    uint64_t now = run_clock(), away = now - since;
    uint32_t slow = away > YIELDED_NS ? atomic_load(&run->slow_yields) + 1 : 0;
    atomic_store(&run->slow_yields, slow);
    if (slow >= YIELDED_OFTEN || away > YIELDED_LONG_NS)
        atomic_store(&run->crowded_until, now + CROWDED_NS);
}

/* A pass that finds something is always followed by one more. */
bool engine_lingers(const struct run *run, uint64_t busy, uint64_t now) {
    return now - busy < (now < atomic_load(&run->crowded_until) ? 1 : LINGER_NS);
}

static void hold_acks(struct run *run, uint64_t now) {
    run->nic->ack_hold = now < atomic_load(&run->left_until) ? LEFT_HOLD_NS : 0;
}

/* Works until there is nothing to do or the application does it, making way for verbs after each pass: one is made whenever
 * the lock has been won, or verbs that follow on each other would keep everything else waiting. */
static uint64_t work(struct run *run) {
    bool more = true;
    uint64_t until = NEVER, busy = 0;
    while (more && !atomic_load(&run->stop)) {
        engine_lock(run);
        uint64_t began = run_clock();
        hold_acks(run, began);
        for (int i = 0; more && i < PASSES && (i == 0 || !atomic_load(&run->waiting)); i++) {
            uint64_t now = run_clock();
            source_timers(run, now);
            if (progress(run, now, i == 0))
                busy = now;
            more = engine_lingers(run, busy, now) && !in_use(run, now);
        }
        until = first_timer(run, progress_deadline(run));
        atomic_store(&run->wakes_at, until);
        run_unlock(run);
        if (atomic_load(&run->waiting) || !busy || busy < began)
            engine_give_way(run);
    }
    return until;
}

/* True when a socket has something, or somebody has called.  (epoll_wait would count whole ms, epoll_pwait2 needs Linux 5.11.) */
static bool sleep_until(struct run *run, uint64_t until) {
    struct pollfd fds[] = {{.fd = run->epoll_fd, .events = POLLIN}, {.fd = run->wake_fd, .events = POLLIN}};
    uint64_t now = run_clock(), count, ns = until > now ? until - now : 0;
    struct timespec ts = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    int n = ppoll(fds, 2, until == NEVER ? NULL : &ts, NULL);
    if (n == 0 && ns)
        note_late(run, until);
    if (n <= 0)
        return false;
    if (fds[1].revents && read(run->wake_fd, &count, sizeof count) < 0)
        return false; /* cannot be: nobody else reads it */
    return true;
}

static void take_back(struct run *run) {
    engine_lock(run);
    arm(run, SLEEPER_ENGINE);
    run_unlock(run);
    run->steady = 0;
}

/* Also for a socket that has got its first queue pair, or lost its last.  Under the lock. */
static void leave_to_program(struct run *run) { arm(run, drives(run, run_clock()) ? SLEEPER_DRIVER : SLEEPER_NONE); }

/* A program may poll its completion queue for a moment, and then its memory for a WRITE that only we can carry out; or compute
 * between two waits. */
static void note_look(struct run *run, uint64_t now, bool gone, bool left) {
    uint32_t drives = atomic_load(&run->drives);
    bool same = atomic_load(&run->driven) && drives == run->seen_drives;
    run->steady = gone ? 0 : run->steady + 1;
    run->moves = drives - run->seen_drives > 1;
    run->lasting = same ? run->lasting + 1 : 0;
    run->left = left && drives == run->seen_drives ? run->left + 1 : 0;
    run->seen_drives = drives;
    if (run->left < LEFT_LOOKS)
        return;
    run->left = 0;
    atomic_store(&run->left_until, now + LEAVES_NS);
}

/* The application has not looked for longer than that; one that has waited, for longer than between two looks. */
static bool is_absent(const struct run *run, uint64_t now, uint64_t polled_ago) {
    uint64_t last = atomic_load(&run->polls_at), left = atomic_load(&run->driven_at);
    uint64_t since = left > last ? left : last, patience = left > last ? ENGINE_LOOKS_NS : polled_ago;
    return now > since && now - since > patience && !atomic_load(&run->polling) && !atomic_load(&run->driven);
}

/* Each look interrupts the program where no processor is free, and keeps a message waiting. A program that has been at it for long
 * is looked at more rarely, unless it polls its memory. */
static uint64_t looks_apart(const struct run *run, uint64_t now) {
    uint64_t apart = run->moves ? 2 * ENGINE_LOOKS_NS : ENGINE_LOOKS_NS;
    uint64_t most = drives(run, now) ? ENGINE_RARE_NS : POLLED_RARE_NS;
    bool elsewhere = now < atomic_load(&run->left_until) + LOOKS_ELSEWHERE_NS;
    for (uint32_t i = run->steady / STEADY_LOOKS; i && apart < most && !elsewhere; i--)
        apart *= 2;
    return apart;
}

/* An application that polls has the lock most of the time, and whoever waits for it interrupts that one twice: a look that nothing
 * has asked for does so but now and then. */
static bool lock_to_look(struct run *run, uint64_t now, bool asked) {
    bool waits = asked || run->skipped * looks_apart(run, now) >= LOOKS_SKIPPED * ENGINE_LOOKS_NS;
    if (waits)
        engine_lock(run);
    bool locked = waits || run_trylock(run);
    run->skipped = locked ? 0 : run->skipped + 1;
    return locked;
}

/* What the polling application leaves to the engine: sockets without queue pairs, and the ports' timers. */
static void look_up(struct run *run, bool input) {
    uint64_t now = run_clock();
    bool absent = is_absent(run, now, LEFT_NS), gone = is_absent(run, now, GONE_NS), works = input || absent;
    if (!lock_to_look(run, now, works)) {
        note_look(run, now, gone, false);
        return;
    }
    uint64_t silent = run->nic->silent;
    hold_acks(run, now);
    leave_to_program(run);
    source_timers(run, now);
    bool found = works && progress(run, now, true);
    if (works)
        progress_finish(run, now);               /* a thread that drives hears of new timers */
    if (found && run->sleeper == SLEEPER_DRIVER) /* a loop that sleeps would not hear of more */
        EACH_SOURCE(run, s, may_sleep)
    s->is->may_sleep(s->owner);
    bool left = absent && (gone || run->sleeper == SLEEPER_DRIVER ? found : run->nic->silent != silent);
    run_unlock(run);
    note_look(run, now, gone, left);
}

/* From now on whoever sends by memory wakes us, or not any more, unless a thread drives that has gone to sleep meanwhile; false:
 * something has come. */
static bool memory_asleep(struct run *run, bool asleep) {
    bool may = true;
    engine_lock(run);
    if (asleep)
        EACH_SOURCE(run, s, may_sleep)
    may &= s->is->may_sleep(s->owner);
    else if (run->sleeper != SLEEPER_DRIVER) EACH_SOURCE(run, s, awake) s->is->awake(s->owner);
    run_unlock(run);
    return may;
}

/* When to look up. A thread that waits for long needs no look: it does all that is due. */
static uint64_t looks_up_at(struct run *run, uint64_t now) {
    uint64_t soon = now + looks_apart(run, now), at = soon;
    if (run->lasting > LASTING_LOOKS) {
        engine_lock(run);
        at = first_timer(run, now + LONGEST_NS);
        run_unlock(run);
    }
    atomic_store(&run->wakes_at, at);
    return atomic_load(&run->driven) || at <= soon ? at : soon;
}

/* One round: true while an application does the work. called: somebody has woken the engine from another sleep. */
static bool stand_by(struct run *run, bool called) {
    uint64_t now = run_clock();
    if (!in_use(run, now))
        return false;
    if (!atomic_load(&run->disarmed)) {
        engine_lock(run);
        leave_to_program(run);
        run_unlock(run);
    }
    bool input = called || sleep_until(run, looks_up_at(run, now));
    atomic_store(&run->wakes_at, 0);
    look_up(run, input);
    return true;
}

/* The engine works for a moment when something comes, and a program that spins does not make way for it. Linux (from 6.12 on)
 * gives the processor at once to whoever asks for shorter slices than the thread that has it. It may be forbidden. */
static void ask_for_short_slices(void) {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attr = {0}; /* of sched_setattr(2) */
    if (syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) || attr.policy != SCHED_OTHER)
        return;
    attr.runtime = SLICE_NS;
    (void)syscall(SYS_sched_setattr, 0, &attr, 0);
}

static void *thread(void *arg) {
    struct run *run = arg;
    ask_for_short_slices();
    bool called = false;
    while (!atomic_load(&run->stop)) {
        bool stands_by = stand_by(run, called);
        called = false;
        if (stands_by)
            continue;
        take_back(run);
        uint64_t until = work(run);
        if (in_use(run, run_clock()) || atomic_load(&run->disarmed)) /* a thread has been here meanwhile */
            continue;
        if (memory_asleep(run, true))
            called = sleep_until(run, until);
        memory_asleep(run, false);
        atomic_store(&run->wakes_at, 0);
    }
    return NULL;
}

/* The application's signals are for the application's threads, whose waits they shall end; only what a thread does to
 * itself stays deliverable here, for those who print a trace then. */
static int create_thread(struct run *run) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&blocked, own[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int rc = pthread_create(&run->thread, NULL, thread, run);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

static void close_fd(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

int engine_start(struct run *run, struct rnic_err *err) {
    run->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    run->busy_fd = epoll_create1(EPOLL_CLOEXEC);
    run->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    run->turn_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC | EFD_SEMAPHORE);
    run->stop_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    run->call_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (run->epoll_fd < 0 || run->busy_fd < 0 || run->wake_fd < 0 || run->turn_fd < 0 || run->stop_fd < 0 ||
        run->call_fd < 0)
        return fail(err, -errno, "epoll or eventfd: %s", strerror(errno));
    epoll_set(run->busy_fd, run->call_fd, EPOLLIN);
    arm(run, SLEEPER_ENGINE);
    int rc = create_thread(run);
    if (rc)
        return fail(err, -rc, "engine thread: %s", strerror(rc));
    pthread_setname_np(run->thread, "rnic-engine");
    run->thread_runs = true;
    return 0;
}

void engine_stop(struct run *run) {
    drive_end(run);
    if (run->thread_runs) {
        atomic_store(&run->stop, true);
        engine_wake(run);
        pthread_join(run->thread, NULL);
    }
    close_fd(&run->epoll_fd); /* what still comes while the device closes is watched no more */
    close_fd(&run->busy_fd);
    close_fd(&run->wake_fd);
    close_fd(&run->turn_fd);
    close_fd(&run->stop_fd);
    close_fd(&run->call_fd);
}
