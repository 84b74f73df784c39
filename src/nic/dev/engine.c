/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine thread: the device's own legs.  It makes progress whenever no application does, without the interpreter.
 *
 * While an application polls, a second sleeper on the same socket would cost a wake-up for every packet.  So the
 * engine then takes its busy sockets out of its epoll set ("disarmed") and only looks up now and then; when nobody has
 * polled since, it takes them back.
 */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/fail.h"
#include "dev/dev.h"

#define LOOK_UP_NS 500000   /* how long a disarmed engine sleeps */
#define IN_USE_NS 200000    /* an application that polled within this time is still at it */
#define PASSES 16           /* between two looks at who waits for the lock, and at sockets without queue pairs */
#define LATE_MOST_NS 1000000000ull /* a delay that is longer counts as that: the process was stopped */
#define LATE_MEMORY 16      /* a delay is remembered so many times as long as it was */
#define LINGER_NS 50000     /* after the last packet: falling asleep and being woken would take as long */
#define YIELDED_NS 5000     /* a yield that takes longer has let somebody else run, */
#define CROWDED_NS 10000000 /* who is not kept waiting for so long: it may be who was just woken */

static void epoll_set(struct dev *dev, int fd, uint32_t events) {
    struct epoll_event e = {.events = events, .data = {.fd = fd}};
    if (epoll_ctl(dev->epoll_fd, EPOLL_CTL_MOD, fd, &e) && errno == ENOENT)
        epoll_ctl(dev->epoll_fd, EPOLL_CTL_ADD, fd, &e);
}

void engine_watch(struct dev *dev, int fd) { epoll_set(dev, fd, EPOLLIN); }

void engine_unwatch(struct dev *dev, int fd) { epoll_ctl(dev->epoll_fd, EPOLL_CTL_DEL, fd, NULL); }

/* What cannot be taken in would wake the engine for ever. */
void engine_watchers(struct dev *dev, struct slot *of) {
    if (!lifeline_accept(&of->life))
        engine_unwatch(dev, of->life.fd);
}

static void watch(struct dev *dev, struct watched *w, int fd, uint32_t events) {
    if (fd < 0 || (w->fd == fd && w->events == events))
        return;
    *w = (struct watched){fd, events};
    epoll_set(dev, fd, events);
}

/* What a port sends from is, as a rule, what it receives from. */
static void arm_port(struct dev *dev, int i, bool armed) {
    const struct port *port = &dev->ports[i];
    uint32_t in = armed || !dev->port_users[i] ? EPOLLIN : 0,
             out = dev->tx.link.full && dev->tx.way->port == port ? EPOLLOUT : 0;
    bool one = port->rx_fd == port->tx_fd;
    watch(dev, &dev->watched[i], port->rx_fd, in | (one ? out : 0));
    if (!one)
        watch(dev, &dev->watched[NETDEV_MAX_GIDS + i], port->tx_fd, out);
}

/* Sockets that no queue pair uses stay the engine's: nobody polls them. */
static void arm(struct dev *dev, bool armed) {
    for (int i = 0; i < dev->net.ngids; i++)
        arm_port(dev, i, armed);
    struct watched *slots = dev->watched + 2 * NETDEV_MAX_GIDS, *lives = slots + DEV_MAX_SLOTS,
                   *doors = lives + DEV_MAX_SLOTS;
    for (int i = 0; i < dev->nslots; i++) {
        watch(dev, &slots[i], dev->slots[i].fd, EPOLLIN);
        watch(dev, &lives[i], dev->slots[i].life.fd, EPOLLIN);
        watch(dev, &doors[i], dev->doors[i], EPOLLIN);
    }
    atomic_store(&dev->disarmed, !armed);
}

void engine_watch_room(struct dev *dev) {
    bool armed = !atomic_load(&dev->disarmed);
    for (int i = 0; i < dev->net.ngids; i++)
        arm_port(dev, i, armed);
}

void engine_wake(struct dev *dev) {
    uint64_t one = 1;
    if (write(dev->wake_fd, &one, sizeof one) < 0) /* the counter is full: it is awake */
        return;
}

void engine_wake_for(struct dev *dev, uint64_t deadline) {
    if (deadline < atomic_load(&dev->wakes_at)) {
        atomic_store(&dev->wakes_at, 0); /* once is enough */
        engine_wake(dev);
    }
}

void engine_take_over(struct dev *dev) {
    atomic_store(&dev->polls_at, 0);
    if (atomic_load(&dev->disarmed))
        engine_wake(dev);
}

/* ---------------------------------------------------------------- the thread */

/* The engine thread could have worked since then: more threads want a processor than there are, or the thread that has the
 * lock has none.  Peers on this host fare no better. */
static void note_late(struct dev *dev, uint64_t since) {
    uint64_t now = dev_clock(), late = now - since < LATE_MOST_NS ? now - since : LATE_MOST_NS;
    if (late < engine_late(dev, now))
        return;
    atomic_store(&dev->late, late);
    atomic_store(&dev->late_until, now + LATE_MEMORY * late);
}

uint64_t engine_late(const struct dev *dev, uint64_t now) {
    return now < atomic_load(&dev->late_until) ? atomic_load(&dev->late) : 0;
}

/* The engine has time: nobody makes way for it. */
static void engine_lock(struct dev *dev) {
    if (pthread_mutex_trylock(&dev->lock) == 0)
        return;
    uint64_t since = dev_clock();
    pthread_mutex_lock(&dev->lock);
    note_late(dev, since);
}

static void links_timer(struct dev *dev, uint64_t now) {
    outbox_timer(dev, now);
    for (int i = 0; i < dev->net.ngids; i++) {
        struct port *port = &dev->ports[i];
        if (!port->steering)
            continue;
        if (port_deadline(port) <= now && port_timer(port, now))
            arm(dev, !atomic_load(&dev->disarmed));
    }
}

static uint64_t earliest(const struct dev *dev) {
    uint64_t first = sched_deadline(dev), out = tx_deadline(dev), held = outbox_deadline(dev);
    first = out < first ? out : first;
    first = held < first ? held : first;
    held = lanes_deadline(dev);
    first = held < first ? held : first;
    uint64_t raw = dev->raw ? raw_deadline(dev) : NEVER;
    first = raw < first ? raw : first;
    for (int i = 0; i < dev->net.ngids; i++) {
        uint64_t at = dev->ports[i].steering ? port_deadline(&dev->ports[i]) : NEVER;
        first = at < first ? at : first;
    }
    return first;
}

/* Does the application look for progress itself, all the time?  One that looks once, as threads that wait for events do
 * between two, leaves packets lying for as long as it does something else. */
static bool in_use(const struct dev *dev, uint64_t now) {
    uint64_t last = atomic_load(&dev->polls_at);
    return last && (now < last || now - last <= IN_USE_NS);
}

/* To a thread that waits for the lock, or to a process that waits for a processor to send us something. */
static void give_way(struct dev *dev) {
    uint64_t since = dev_clock();
    sched_yield();
    note_late(dev, since);
    uint64_t now = dev_clock();
    if (now - since > YIELDED_NS)
        dev->crowded_until = now + CROWDED_NS;
}

/* A pass that finds something is always followed by one more. */
static uint64_t linger(const struct dev *dev, uint64_t now) { return now < dev->crowded_until ? 1 : LINGER_NS; }

/* Works until there is nothing to do or the application does it, making way for verbs after each pass: one is made whenever
 * the lock has been won, or verbs that follow on each other would keep everything else waiting. */
static uint64_t work(struct dev *dev) {
    bool more = true;
    uint64_t until = NEVER, busy = 0;
    while (more && !atomic_load(&dev->stop)) {
        engine_lock(dev);
        uint64_t began = dev_clock();
        dev->nic.ack_hold = 0;
        for (int i = 0; more && i < PASSES && (i == 0 || !atomic_load(&dev->waiting)); i++) {
            uint64_t now = dev_clock();
            links_timer(dev, now);
            if (progress(dev, now, i == 0))
                busy = now;
            more = now - busy < linger(dev, now) && !in_use(dev, now);
        }
        until = earliest(dev);
        atomic_store(&dev->wakes_at, until);
        dev_unlock(dev);
        if (atomic_load(&dev->waiting) || !busy || busy < began)
            give_way(dev);
    }
    return until;
}

/* True when a socket has something.  (epoll_wait would count whole ms, epoll_pwait2 needs Linux 5.11.) */
static bool sleep_until(struct dev *dev, uint64_t until) {
    struct pollfd fds[] = {{.fd = dev->epoll_fd, .events = POLLIN}, {.fd = dev->wake_fd, .events = POLLIN}};
    uint64_t now = dev_clock(), count, ns = until > now ? until - now : 0;
    struct timespec ts = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    int n = ppoll(fds, 2, until == NEVER ? NULL : &ts, NULL);
    if (n == 0 && ns)
        note_late(dev, until);
    if (n <= 0)
        return false;
    if (fds[1].revents && read(dev->wake_fd, &count, sizeof count) < 0)
        return false; /* cannot be: nobody else reads it */
    return fds[0].revents != 0;
}

static void set_armed(struct dev *dev, bool armed) {
    engine_lock(dev);
    arm(dev, armed);
    dev_unlock(dev);
}

/* What the polling application leaves to the engine: sockets without queue pairs, and the ports' timers. */
static void look_up(struct dev *dev, bool input) {
    uint64_t now = dev_clock();
    engine_lock(dev);
    arm(dev, false); /* a socket may have got its first queue pair, or lost its last */
    links_timer(dev, now);
    if (input)
        progress(dev, now, true);
    dev_unlock(dev);
}

/* From now on whoever sends by a lane wakes us, or not any more; false: something has come. */
static bool lanes_asleep(struct dev *dev, bool asleep) {
    bool may = true;
    engine_lock(dev);
    if (asleep)
        may = lanes_may_sleep(dev);
    else
        lanes_awake(dev);
    dev_unlock(dev);
    return may;
}

/* One round: true while an application does the work. */
static bool stand_by(struct dev *dev) {
    uint64_t now = dev_clock();
    if (!in_use(dev, now))
        return false;
    set_armed(dev, false);
    atomic_store(&dev->wakes_at, now + LOOK_UP_NS);
    bool input = sleep_until(dev, now + LOOK_UP_NS);
    atomic_store(&dev->wakes_at, 0);
    look_up(dev, input);
    return true;
}

static void *run(void *arg) {
    struct dev *dev = arg;
    while (!atomic_load(&dev->stop)) {
        if (stand_by(dev))
            continue;
        set_armed(dev, true);
        uint64_t until = work(dev);
        if (in_use(dev, dev_clock()))
            continue;
        if (lanes_asleep(dev, true))
            sleep_until(dev, until);
        lanes_asleep(dev, false);
        atomic_store(&dev->wakes_at, 0);
    }
    return NULL;
}

/* The application's signals are for the application's threads, whose waits they shall end; only what a thread does to
 * itself stays deliverable here, for those who print a trace then. */
static int create_thread(struct dev *dev) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&blocked, own[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int rc = pthread_create(&dev->thread, NULL, run, dev);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

int engine_start(struct dev *dev, struct rnic_err *err) {
    dev->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    dev->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (dev->epoll_fd < 0 || dev->wake_fd < 0)
        return fail(err, -errno, "epoll or eventfd: %s", strerror(errno));
    arm(dev, true);
    engine_watch(dev, dev->follow_fd);
    int rc = create_thread(dev);
    if (rc)
        return fail(err, -rc, "engine thread: %s", strerror(rc));
    pthread_setname_np(dev->thread, "rnic-engine");
    dev->thread_runs = true;
    return 0;
}

void engine_stop(struct dev *dev) {
    if (dev->thread_runs) {
        atomic_store(&dev->stop, true);
        engine_wake(dev);
        pthread_join(dev->thread, NULL);
    }
    if (dev->epoll_fd >= 0)
        close(dev->epoll_fd);
    dev->epoll_fd = -1; /* what still comes while the device closes is watched no more */
    if (dev->wake_fd >= 0)
        close(dev->wake_fd);
}
