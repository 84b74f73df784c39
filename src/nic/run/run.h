/* SPDX-License-Identifier: Apache-2.0
 *
 * Who makes progress when: the room's face.
 *
 *   lock.c      the device's lock, and the clock
 *   progress.c  one pass: receive, time, doorbells, send
 *   sched.c     which queue pair has something to do: ready list, held ACKs, timers, those that wait for a link
 *   engine.c    the thread that makes progress while no application does
 *   drive.c     a thread of the application that waits makes progress meanwhile
 *
 * The room knows queue pairs, links by their table, and a list of sources; it does not know what they are.  struct run is
 * its own: others call the functions, and write none of its members but decide's.  All is under the lock but posting (a
 * doorbell), and what says otherwise.
 */
#ifndef RNIC_RUN_RUN_H
#define RNIC_RUN_RUN_H

#include <pthread.h>
#include <stdatomic.h>

#include "qp/qp.h"

/* Where something may come from, or waits until it can leave: the sockets of a link, shared memory, the kernel's notices.
 * `owner` is what it is a source of (struct run_source).  Functions that a source does not need are NULL. */
struct source {
    const char *name;
    /* Takes what has come. all: also by what no queue pair uses. True: there was something. */
    bool (*receive)(void *owner, uint64_t now, bool all);
    bool (*receive_rare)(void *owner, uint64_t now); /* the same of what comes rarely, and nobody waits for */
    /* Of a source that is memory: is there something to be received, or room again for who waits?  Without a system call. */
    bool (*wants)(const void *owner);
    /* Queue pairs use its sockets: a look at memory alone would miss what comes. */
    bool (*is_used)(const void *owner);
    /* Before queue pairs have their turn: what waits for room is tried again, and what is due leaves. called: the engine has
     * been woken, or looks at everything; else a thread polls, and may try less often. */
    void (*resume)(void *owner, uint64_t now, bool called);
    uint64_t (*deadline)(const void *owner); /* when that is due at the latest */
    /* After their turn: what they have written leaves, and who sleeps and has got something is woken. */
    void (*flush)(void *owner);
    /* Its own household: by the engine thread alone, when it is due. */
    void (*timer)(void *owner, uint64_t now);
    uint64_t (*timer_at)(const void *owner);
    /* Which descriptors wake the engine (run_watch); busy ones do not while an application polls: armed is false. */
    void (*arm)(void *owner, bool armed);
    /* Of a source that is memory: from now on whoever sends wakes us. False: something is there. awake: not any more. */
    bool (*may_sleep)(void *owner);
    void (*awake)(void *owner);
    /* Of a source that knows when all has been received that was there when it was noted, however much has come since. */
    void (*note)(void *owner);
    bool (*has_reached)(const void *owner);
};

struct run_source {
    const struct source *is; /* NULL: the end of a list */
    void *owner;             /* the room's own struct whose source it is */
};

struct timer_heap {
    struct qp **at;
    uint32_t count, room;
};

enum sleeper { SLEEPER_NONE /* a program polls */, SLEEPER_DRIVER, SLEEPER_ENGINE };

struct watched { /* what the engine's epoll set has of a descriptor */
    int fd;      /* -1: none yet */
    uint32_t events;
    int set; /* the set that it is in */
};

#define RUN_SOURCES 11

struct run {
    struct nic *nic;
    struct { /* the sources that have such a function, in their order */
        struct run_source receive[RUN_SOURCES + 1], receive_rare[RUN_SOURCES + 1], wants[RUN_SOURCES + 1],
            is_used[RUN_SOURCES + 1], resume[RUN_SOURCES + 1], deadline[RUN_SOURCES + 1], flush[RUN_SOURCES + 1],
            timer[RUN_SOURCES + 1], timer_at[RUN_SOURCES + 1], arm[RUN_SOURCES + 1], may_sleep[RUN_SOURCES + 1],
            awake[RUN_SOURCES + 1], note[RUN_SOURCES + 1], has_reached[RUN_SOURCES + 1];
    } with;
    /* A queue pair that can go two ways is to send for the first time.  False: it is not known yet which, and it becomes
     * ready when it is.  Set with its owner by whoever opens the device. */
    bool (*decide)(void *decider, struct qp *qp, uint64_t now);
    void *decider;

    pthread_mutex_t lock;
    _Atomic(const void *) holder; /* the thread that has it; written by that one */
    bool uncancelled;             /* pthread_cancel() is off for the thread that has the lock; its state before: */
    int cancel_state;
    struct run *outer;        /* whose lock the holder had before, and has yet; its own */
    _Atomic bool stuck;       /* the holder waits for a fork: run_wait_to_fork() */
    _Atomic int waiting;      /* threads that wait for the lock for a verb; whoever makes progress makes way */
    _Atomic uint32_t refused; /* polls since the last one that got the lock */
    uint64_t now;             /* of the pass */
    bool more;                /* the last look at what has come may have left some of it: sources say so */
    bool unnoted;             /* also of a source that has no note() */
    uint64_t more_since;      /* as every look since then; 0: it has not */
    uint64_t looked_at;       /* when that last look was */

    struct qp *ready_first, *ready_last;
    struct qp *held;
    struct timer_heap timers;
    _Atomic(struct qp *) bells;

    pthread_t thread;
    bool thread_runs;
    int epoll_fd, wake_fd;         /* what the engine thread sleeps on, and what wakes it */
    int busy_fd;                   /* the set of what completions come by, which is in epoll_fd, too */
    enum sleeper sleeper;          /* whose it is; under the lock */
    _Atomic bool driven;           /* a thread that waits does the engine's work, see drive.c */
    _Atomic uint64_t driven_at;    /* when the last one has left; 0: none has */
    _Atomic uint32_t drives;       /* how many have */
    _Atomic uint64_t drives_at;    /* the thread that drives sleeps until then; 0: it is awake, or there is none */
    int call_fd;                   /* in busy_fd: wakes it before that, */
    bool called;                   /* and has been written; under the lock */
    uint64_t loop_at;              /* when a loop has last looked; under the lock */
    bool roused;                   /* who makes a pass was woken by what has come; under the lock */
    _Atomic bool next;             /* a thread waits as well, */
    int turn_fd;                   /* and drives next: who reads it */
    int stop_fd;                   /* wakes all others that wait, for good */
    _Atomic uint32_t inside;       /* threads in drive_wait(), */
    _Atomic bool closes;           /* which they are to leave */
    uint32_t seen_drives, lasting; /* the engine's own: looks in a row that have found the same thread waiting; */
    bool moves;                    /* threads have come and gone since the last look; */
    uint32_t steady;               /* looks since one that has found the program gone */
    _Atomic bool stop;
    _Atomic uint32_t in_vain;    /* polls since one found something, without the short looks */
    _Atomic uint32_t calm;       /* polls that need look at memory alone */
    _Atomic uint64_t last_poll;  /* when an application last looked for progress itself; 0: it has gone to sleep */
    _Atomic uint64_t polls_at;   /* the same of one that looks all the time: the engine leaves it to that one */
    _Atomic bool polling;        /* that one is at it */
    _Atomic uint64_t wakes_at;   /* the engine thread sleeps until then at most; 0: it is awake */
    _Atomic uint64_t late;       /* the longest that the engine thread has lately waited for a processor or the lock */
    _Atomic uint64_t late_until; /* when that is forgotten */
    _Atomic uint64_t crowded_until; /* who makes progress shares its processor, and does not linger */
    _Atomic uint32_t slow_yields;   /* in a row: others have run meanwhile */
    uint32_t skipped;               /* looks in a row that it has left out; its own */
    uint32_t left; /* looks in a row that have found something which the polling application had not; its own */
    _Atomic uint64_t left_until; /* that application looks elsewhere: the engine does the work until then */
    _Atomic bool disarmed;       /* the engine thread leaves the busy sockets to the polling application */
};

/* lock.c. Unlocking serves the doorbells that rang meanwhile, so that no post is left lying. */
uint64_t run_clock(void); /* CLOCK_MONOTONIC, ns */
void run_init(struct run *run, struct nic *nic, const struct run_source *sources);
void run_free(struct run *run);
int run_reserve(struct run *run, uint32_t qps); /* a timer for one more than so many; 0, -ENOMEM */
void run_lock(struct run *run);
bool run_trylock(struct run *run); /* false, too, while a thread waits for it */
void run_unlock(struct run *run);
void run_let_others(struct run *run);    /* have the lock for a moment */
bool run_try_mutex(struct run *run);     /* without making way for others, */
void run_lock_mutex(struct run *run);    /* and without making others make way */
bool run_is_held(const struct run *run); /* by this thread: a handler of a signal may ask */
/* False: this thread has it already, or it was not to be had. */
bool run_lock_to_fork(struct run *run);
/* This thread is going to wait until another one has forked.  If it has the lock of a device, as a handler of a signal may, that
 * other one does not wait for it. */
void run_wait_to_fork(bool waits);
void run_abandon(struct run *run); /* in a forked child */
/* Until it unlocks, the thread is not cancelled, or nobody would have the lock again.  run_lock() does so; whoever has it by
 * run_trylock() does so before what may call a function of libc that is a point of cancellation. */
void run_uncancelled(struct run *run);

/* sched.c. deliver: a packet of n bytes is for that queue pair, which takes it in if its state allows */
void sched_deliver(struct run *run, struct qp *qp, const struct packet *pkt, uint32_t n, uint64_t now);
void sched_ready(struct run *run, struct qp *qp);
void sched_input(struct run *run, struct qp *qp, uint64_t now); /* a packet has changed it: answers, timers */
void sched_ring(struct run *run, struct qp *qp);                /* any thread, without the lock */
void sched_bells(struct run *run);
uint32_t sched_unpark(struct run *run, struct link *link);               /* it has room; how many have waited */
void sched_link_free(struct run *run, struct link *link, uint32_t room); /* so many bytes of it */
void sched_timers(struct run *run, uint64_t now);
bool sched_run(struct run *run, uint64_t now); /* lets QPs send; true: some did */
uint64_t sched_deadline(const struct run *run);
/* Sends the ACK that waits, as the peer's work is done.  False: there is no room for it now */
bool sched_settle(struct run *run, struct qp *qp);
void sched_forget(struct run *run, struct qp *qp);

/* progress.c. receive: also takes packets from the sources. True: there was work, so there may be more. */
bool progress(struct run *run, uint64_t now, bool everything);
/* For an application's thread that polls, without the lock; does nothing when another has it. will_wait: it is going to
 * sleep until an event, so that progress is the engine thread's again. */
bool progress_look(struct run *run);                 /* a short look; false: there was none */
bool progress_poll(struct run *run, bool will_wait); /* false: a short look was enough */
/* After any other poll.  True: others have had the processor, and what came meanwhile has been taken in. */
bool progress_polled(struct run *run, bool found);
void progress_post(struct run *run, struct qp *qp);
void progress_sent(struct run *run, struct qp *qp, uint64_t now); /* the same of what has gone out; under the lock */
/* Takes what has come before a queue pair ends: an ACK that is there makes a success of what would be flushed, and a request
 * is executed and acknowledged.  Lets others have the lock between two passes. */
void progress_take(struct run *run);
void progress_leave(struct run *run); /* the device closes: what came here for other processes goes to them */
/* Sends what doorbells and ready queue pairs ask for, and wakes the engine for the rest. */
void progress_finish(struct run *run, uint64_t now);
/* How long ACKs wait for answers. again: the program polls all the time */
void progress_hold(struct run *run, uint64_t now, bool again);
uint64_t progress_deadline(const struct run *run); /* of all that it does */

/* engine.c */
int engine_start(struct run *run, struct rnic_err *err);
void engine_stop(struct run *run);
/* What wakes the engine. watch: from now on, until it is closed. unwatch: what waits there is looked at in passing. */
void engine_watch(struct run *run, int fd);
void engine_unwatch(struct run *run, int fd);
void engine_watch_for(struct run *run, struct watched *w, int fd, uint32_t events,
                      bool busy);   /* -1: nothing; EPOLLIN, EPOLLOUT */
void engine_rearm(struct run *run); /* a source has other descriptors, or waits for room in one, or no longer */
void engine_wake(struct run *run);
void engine_wake_for(struct run *run, uint64_t deadline); /* when it would sleep past it */
/* ns that it has lately waited for a processor, or the lock */
uint64_t engine_late(const struct run *run, uint64_t now);
/* The program looks for progress itself, or a thread of it drives (drive.c): the busy set is that one's.  Under the lock. */
void engine_leave(struct run *run);
/* Something has come at `busy`: more may come sooner than a thread falls asleep and wakes.  give_way: meanwhile, to others. */
bool engine_lingers(const struct run *run, uint64_t busy, uint64_t now);
void engine_give_way(struct run *run);
void engine_take_over(struct run *run); /* the application is going to wait: sockets are the engine's again */

#define ENGINE_LOOKS_NS 500000 /* how often the engine looks up while a program does its work, */
#define ENGINE_RARE_NS 4000000 /* and how rarely when that one has been at it for long, */
#define ENGINE_LEAVES_NS 5000000 /* and for how long after a thread has driven: it comes back */

/* drive.c: what a thread waits for */
struct drive {
    int fd;                      /* is readable when it is there, if it was armed: */
    bool (*has)(const void *of); /* is it there? */
    void (*arm)(const void *of, bool armed);
    const void *of;
    bool goes_on; /* when the time has come, the caller looks for signals, and comes back */
};
/* Waits until it is there or `fd` is readable, or until a time, and does the engine's work meanwhile, or waits for its turn to
 * do so.  0: look; 1: `fd` is readable; -EINTR: a signal has come; -EAGAIN: the device has failed. A point of cancellation. */
int drive_wait(struct run *run, const struct drive *d, uint64_t until);

/* For a loop that sleeps on busy_fd, among other things.  look: it has been woken. True: something had come.  settle: it is
 * going to sleep again. False: it is to look first. */
bool drive_look(struct run *run);
bool drive_settle(struct run *run);
/* For a thread that polls once more before it waits as one of these: others have the processor meanwhile. */
void drive_give_way(struct run *run);
/* For a pass of another thread, while one that drives sleeps, under the lock.  taken: it has taken what has come; what comes
 * next wakes that one again.  wake_for: there is something to do by then.  answer: whoever was called is awake. */
void drive_taken(struct run *run);
void drive_wake_for(struct run *run, uint64_t deadline);
void drive_answer(struct run *run);
/* The device fails: whoever waits is to leave, and to wait otherwise.  end: it closes, and they have left. */
void drive_stop(struct run *run);
void drive_end(struct run *run);

/* For each source that has the function. */
#define EACH_SOURCE(run, s, function) for (const struct run_source *s = (run)->with.function; s->is; s++)

#endif
