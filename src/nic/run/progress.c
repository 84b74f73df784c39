/* SPDX-License-Identifier: Apache-2.0
 *
 * One pass over everything that can happen, by whoever holds the lock: the engine thread, or a thread that posts or
 * polls.
 */
#include <sched.h>

#include "run/run.h"

#define ACK_HOLD_NS 15000  /* an ACK waits so long for the answer of an application that polls all the time, */
#define DRIVEN_NS 1000000  /* or of one that has slept so lately, and sends it, if there is no answer, before it sleeps again: */
#define DRIVEN_HOLD_NS 200000 /* if it does */

#define YIELD_POLLS 64     /* polls in vain, some 20 us, with the short looks in between */
#define LEAVING 64         /* looks at the sockets before they close */
#define ENDING 64          /* passes before a queue pair ends: more than a socket of the usual size holds */
#define ROUNDS 8           /* of sending, for a thread that posts or polls */
#define POLLING_NS 20000   /* which is one that polled so shortly before */
#define REFUSALS 64        /* polls in a row that leave the lock to others; the next one waits for it */
#define UNREAD_NS 1000000000ull /* so long a flood of packets may keep a timer from counting */
#define STOPPED_NS 500000000ull /* between two looks: nobody had a processor to look again */
#define CALM_POLLS 15      /* of such a , then one at the time and the sockets, too */

static bool receive(struct run *run, uint64_t now, bool everything) {
    bool any = false, more = false;
    run->unnoted = false;
    EACH_SOURCE(run, s, receive) {
        run->more = false;
        any |= s->is->receive(s->owner, now, everything);
        run->unnoted |= run->more && !s->is->note;
        more |= run->more;
    }
    run->more = false;
    if (everything)
        EACH_SOURCE(run, s, receive_rare)
    any |= s->is->receive_rare(s->owner, now);
    run->unnoted |= run->more;
    run->more |= more;
    return any;
}

/* May answers lie here unread?  Not for ever: who sends more than is read puts off no timer.  Time in which nobody looked,
 * as of a process that was stopped, does not count. */
static void judge_unread(struct run *run, uint64_t now) {
    if (!run->more)
        run->more_since = 0;
    else if (!run->more_since || now > run->looked_at + STOPPED_NS)
        run->more_since = now;
    if (now > run->looked_at) /* it may have been read before the lock was had */
        run->looked_at = now;
    run->nic->unread = run->more && now < run->more_since + UNREAD_NS;
}

bool progress(struct run *run, uint64_t now, bool everything) {
    run->now = now;
    bool any = receive(run, now, everything);
    judge_unread(run, now);
    run->nic->late = engine_late(run, now);
    EACH_SOURCE(run, s, resume)
    s->is->resume(s->owner, now, everything);
    sched_bells(run);
    sched_timers(run, now);
    any |= sched_run(run, now);
    if (any)
        drive_taken(run);
    return any;
}

uint64_t progress_deadline(const struct run *run) {
    uint64_t first = sched_deadline(run);
    EACH_SOURCE(run, s, deadline) {
        uint64_t at = s->is->deadline(s->owner);
        first = at < first ? at : first;
    }
    return first;
}

/* What is left for want of time is the engine's, unless the application comes again anyway. */
void progress_finish(struct run *run, uint64_t now) {
    uint64_t copied = run->nic->copied;
    sched_bells(run);
    for (int i = 0; i < ROUNDS && run->ready_first && run->nic->copied - copied < DIRECT_TURN; i++)
        sched_run(run, now);
    if (!atomic_load(&run->disarmed) && atomic_load(&run->wakes_at)) /* it sleeps */
        engine_wake_for(run, run->ready_first ? now : progress_deadline(run));
    if (atomic_load(&run->drives_at))
        drive_wake_for(run, run->ready_first ? now : progress_deadline(run));
}

void progress_hold(struct run *run, uint64_t now, bool again) {
    run->nic->hold_local = now < atomic_load(&run->driven_at) + DRIVEN_NS;
    run->nic->ack_hold = run->nic->hold_local ? DRIVEN_HOLD_NS : again ? ACK_HOLD_NS : 0;
}

static bool has_sockets(const struct run *run) {
    bool any = false;
    EACH_SOURCE(run, s, is_used)
    any |= s->is->is_used(s->owner);
    return any;
}

/* True: there was work. */
static bool work(struct run *run, uint64_t now, bool again) {
    progress_hold(run, now, again);
    run->calm = again && !has_sockets(run) ? CALM_POLLS : 0;
    bool any = progress(run, now, false);
    progress_finish(run, now);
    return any;
}

/* Work may take longer than the time between two polls: it is no pause of the application's. */
static void note_polled(struct run *run, bool again) {
    uint64_t now = run_clock();
    if (atomic_load(&run->last_poll))
        atomic_store(&run->last_poll, now);
    if (again)
        atomic_store(&run->polls_at, now);
}

static void poll_all(struct run *run, uint64_t now, bool again) {
    atomic_store_explicit(&run->polling, again, memory_order_relaxed);
    if (work(run, now, again))
        note_polled(run, again);
    atomic_store_explicit(&run->polling, false, memory_order_relaxed);
}

static void poll_memory(struct run *run) {
    uint64_t now = run_clock(); /* before the look, which waits for the other's cache if there is something */
    run->calm--;
    run->more = false;
    bool news = false;
    EACH_SOURCE(run, s, wants) {
        if (!s->is->wants(s->owner))
            continue;
        run_uncancelled(run);
        news |= s->is->receive(s->owner, now, false);
    }
    judge_unread(run, now);
    if (news)
        drive_taken(run);
    if (run->held) /* an ACK, whose time may have come */
        sched_timers(run, now);
    if (run->ready_first || (news && (!atomic_load(&run->disarmed) || atomic_load(&run->drives_at))))
        progress_finish(run, now);
}

bool progress_look(struct run *run) {
    if (!atomic_load_explicit(&run->calm, memory_order_relaxed) || !run_trylock(run))
        return false;
    bool memory = run->calm && !run->ready_first;
    if (memory)
        poll_memory(run);
    run_unlock(run);
    return memory;
}

/* Who has the lock makes progress, as a rule; but it may be verbs without end. */
static bool lock_to_poll(struct run *run) {
    bool locked = run_trylock(run);
    if (!locked && atomic_fetch_add_explicit(&run->refused, 1, memory_order_relaxed) < REFUSALS)
        return false;
    if (!locked)
        run_lock(run);
    run_uncancelled(run);
    atomic_store_explicit(&run->refused, 0, memory_order_relaxed);
    return true;
}

bool progress_poll(struct run *run, bool will_wait) {
    if (!will_wait && progress_look(run))
        return false;
    uint64_t now = run_clock(), last = atomic_exchange(&run->last_poll, will_wait ? 0 : now);
    bool again = !will_wait && now - last < POLLING_NS;
    if (again)
        atomic_store(&run->polls_at, now); /* the engine that has the lock sees it */
    if (lock_to_poll(run)) {
        poll_all(run, now, again);
        run_unlock(run);
    }
    if (will_wait)
        engine_take_over(run);
    return true;
}

/* It says nothing of how often the application polls. */
static void look_again(struct run *run) {
    if (!lock_to_poll(run))
        return;
    poll_all(run, run_clock(), false);
    run_unlock(run);
}

/* An application that polls in vain lets others have the processor now and then: its peer may be waiting for it, where
 * there is more to do than there are processors.  Then it looks again.  Else it would hear that nothing has come when the peer
 * has sent its last message and disconnected; and a program that finds that event next gives up what it has not polled. */
bool progress_polled(struct run *run, bool found) {
    uint32_t in_vain = found ? 0 : atomic_load_explicit(&run->in_vain, memory_order_relaxed) + 1;
    atomic_store_explicit(&run->in_vain, in_vain, memory_order_relaxed);
    if (in_vain % YIELD_POLLS != YIELD_POLLS - 1)
        return false;
    sched_yield();
    look_again(run);
    return true;
}

void progress_post(struct run *run, struct qp *qp) {
    if (run_trylock(run)) {
        sched_ready(run, qp);
    } else {
        sched_ring(run, qp);
        if (!run_trylock(run))
            return; /* who holds the lock looks at the doorbells when it lets go */
    }
    progress_finish(run, run_clock());
    run_unlock(run);
}

void progress_sent(struct run *run, struct qp *qp, uint64_t now) {
    qp->way.link->ops->flush(qp->way.link);
    sched_input(run, qp, now);
    if (run->ready_first || !atomic_load(&run->disarmed) || atomic_load(&run->drives_at))
        progress_finish(run, now);
}

static bool has_taken(const struct run *run) {
    bool all = !run->more || !run->unnoted;
    if (run->more)
        EACH_SOURCE(run, s, has_reached)
    all &= s->is->has_reached(s->owner);
    return all;
}

/* Who sends without end keeps no queue pair from its end: what comes from now on is left, and anything after so many passes. */
void progress_take(struct run *run) {
    EACH_SOURCE(run, s, note)
    s->is->note(s->owner);
    for (int i = 0; i < ENDING; i++) {
        uint64_t now = run_clock();
        progress(run, now, true);
        progress_finish(run, now);
        if (has_taken(run))
            return;
        run_let_others(run);
    }
}

void progress_leave(struct run *run) {
    for (int i = 0; i < LEAVING && receive(run, run_clock(), true); i++)
        ;
}
