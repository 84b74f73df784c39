/* SPDX-License-Identifier: Apache-2.0
 *
 * Peers on this host: which lanes there are, and who is behind them.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "host/lanes.h"
#include "names/user.h"

#define HEARD 8 /* lanes at a time */

#define CALLERS 64              /* at a door, at a time */
#define LANES (SLOT_COUNT + 64) /* more than there are contexts: the rest are not what they say */
#define STRANGERS 64            /* of them other users' */
#define CALLS_AT_ONCE 128       /* of other users, */
#define CALL_NS 2000000ull      /* and in the long run one in this time: to take one in and to find out who it is takes work */
#define CALLS_LATER 16          /* so many are waited for, when there were too many */
#define AGAIN_NS 1000000000ull

void lanes_self(const struct host *host, struct lane_self *self) {
    *self =
        (struct lane_self){.party.nslots = (uint32_t)host->nslots, .file = user_may_look() ? host->nic->store->fd : -1};
    for (int i = 0; i < host->nslots; i++)
        self->party.slots[i] = host->slots[i].number;
    for (int i = 0; i < host->net->netdev.ngids; i++) {
        if (host->net->ports[i].steering)
            self->party.addresses[self->party.naddresses++] = host->net->ports[i].addr.sin6_addr;
    }
}

static bool leads_by(const struct way *way, const void *link) { return way->link == link; }

static void discard(struct host *host, struct lane *l) {
    sched_unpark(host->run, &l->link); /* of answers that go another way by now */
    fault_forget(&host->net->fault, leads_by, &l->link);
    if (l->remote)
        remote_close(l->remote);
    free(l->remote);
    lane_free(l);
}

/* The peer has given its memory file. */
static void reach(struct lane *l) {
    l->remote = calloc(1, sizeof(struct remote));
    if (!l->remote || !remote_open(l->remote, l->file, l->pid, l->fd, &l->out.mem->mark))
        return;
    free(l->remote);
    l->remote = NULL;
}

void lanes_open(struct host *host, int slot) {
    host->here.shared = (struct lane_shared){&host->net->fault, &host->nic->counters, &host->run->now};
    host->here.doors[slot] = host->local ? lane_listen(host->slots[slot].number) : -1;
}

/* A lane that does not answer, or ends, is not asked for again at once. */
static void forget(struct host *host, const struct lane *l) {
    uint64_t again = run_clock() + AGAIN_NS;
    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        if (host->here.to[i] != l)
            continue;
        host->here.to[i] = NULL;
        host->here.ask_again[i] = again;
    }
}

void lanes_close(struct host *host) {
    for (struct lane *l = host->here.lanes, *next; l; l = next) {
        next = l->next;
        discard(host, l);
    }
    host->here.lanes = NULL;
    for (int i = 0; i < host->nslots; i++) {
        if (host->here.doors[i] >= 0)
            close(host->here.doors[i]);
    }
    if (host->here.bells_fd >= 0)
        close(host->here.bells_fd);
    host->here.bells_fd = -1;
}

void lanes_abandon(struct host *host) {
    for (const struct lane *l = host->here.lanes; l; l = l->next) {
        if (l->fd >= 0)
            close(l->fd);
        if (l->file >= 0)
            close(l->file);
        if (l->remote)
            remote_abandon(l->remote);
    }
    for (int i = 0; i < host->nslots; i++) {
        if (host->here.doors[i] >= 0)
            close(host->here.doors[i]);
    }
    if (host->here.bells_fd >= 0)
        close(host->here.bells_fd);
    host->here.bells_fd = -1;
}

/* ---------------------------------------------------------------- lanes come and go */

/* A peer that has been answered may be using the lane already: a lane is given up only if the peer never meant to use it. */
static uint64_t patience(const struct lane *l) {
    if (l->state >= LANE_UP)
        return NEVER;
    return l->since + (l->state == LANE_ANSWERED ? 100 * LANE_PATIENCE : LANE_PATIENCE);
}

static void enter(struct host *host, struct lane *l) {
    l->number = ++host->here.numbers;
    l->next = host->here.lanes;
    host->here.lanes = l;
    host->here.count++;
    host->here.strangers += !l->trusted;
    engine_wake_for(host->run, patience(l));
    epoll_ctl(host->here.bells_fd, EPOLL_CTL_ADD, l->fd, &(struct epoll_event){EPOLLIN, {.u64 = l->number}});
}

/* A slot that nobody of this host has is asked for again after a while: it may be another host's. */
struct lane *lanes_ask(struct host *host, uint32_t slot, uint64_t now) {
    struct lane_self self;
    struct lane *l;
    if (now < host->here.ask_again[slot])
        return NULL;
    run_uncancelled(host->run);
    lanes_self(host, &self);
    if (lane_ask(&l, slot, &self, &host->here.shared, now)) {
        host->here.ask_again[slot] = now + AGAIN_NS;
        return NULL;
    }
    enter(host, l);
    return host->here.to[slot] = l;
}

static bool has_room_for(const struct host *host, const struct lane *l) {
    return host->here.count < LANES && (l->trusted || host->here.strangers < STRANGERS);
}

static bool hears_calls(const struct host *host, uint64_t now) {
    return allowance_has(&host->here.calls, CALL_NS, CALLS_AT_ONCE, now);
}

/* False: nobody has called. */
static bool let_in(struct host *host, int door, uint64_t now) {
    struct lane *l = lane_answer(door, &host->here.shared, now);
    if (!l)
        return false;
    if (!l->trusted)
        allowance_pay(&host->here.calls, CALL_NS, 1, now);
    has_room_for(host, l) ? enter(host, l) : lane_free(l);
    return true;
}

/* Whoever waits at a door that is not answered would wake the engine for ever. */
static void leave_door(struct host *host, int door, uint64_t again) {
    engine_unwatch(host->run, door);
    host->here.doors_again = again;
}

/* Some at a time: who calls and hangs up all the time would keep everybody from the lock.  Nobody can tell whose call the next
 * one is before it is answered, so a flood of other users' keeps all who call waiting, and these go by the wire. */
static void answer(struct host *host, int door, uint64_t now) {
    int i = 0;
    while (i < CALLERS && hears_calls(host, now) && let_in(host, door, now))
        i++;
    if (!hears_calls(host, now))
        leave_door(host, door, now + CALLS_LATER * CALL_NS);
    else if (i < CALLERS && (errno == EMFILE || errno == ENFILE))
        leave_door(host, door, now + AGAIN_NS);
}

static void watch_doors(struct host *host) {
    for (int i = 0; i < host->nslots; i++) {
        if (host->here.doors[i] >= 0)
            engine_watch(host->run, host->here.doors[i]);
    }
    host->here.doors_again = NEVER;
}

void lanes_tell(struct host *host) {
    struct lane_self self;
    lanes_self(host, &self);
    for (struct lane *l = host->here.lanes; l; l = l->next) {
        lane_look_again(l);
        lane_tell(l, &self);
    }
}

/* Those that wait for it find out; whoever went by one that has gone stays there, and is not heard. */
static void wake_waiting(struct host *host, struct qp *qp) {
    if (qp->reach == REACH_OPEN)
        sched_ready(host->run, qp);
}

/* What the process of a dead peer has left is nobody's. */
static void stay_outside(struct host *host, struct qp *qp) {
    (void)host;
    if (qp->reach == REACH_LOCAL && lane_of(qp->way.link)->state == LANE_DOWN) {
        qp->remote = NULL;
        atomic_store(&qp->at_once, 0);
    }
}

/* True: one to the same slot was asked for, whose answer queue pairs may wait for. */
static bool lead_to_peer(struct host *host, struct lane *l) {
    bool awaited = false;
    for (uint32_t i = 0; i < l->peer.nslots; i++) {
        struct lane **to = l->peer.slots[i] < SLOT_COUNT ? &host->here.to[l->peer.slots[i]] : NULL;
        if (!to || (*to && (*to)->state == LANE_UP))
            continue;
        awaited |= *to && *to != l;
        *to = l;
    }
    return awaited;
}

/* To look at all queue pairs takes long: only where one can be waiting, or be using the lane.  Otherwise whoever calls and hangs
 * up all the time would keep the lock. */
void lanes_changed(struct host *host, struct lane *l) {
    bool awaited = l->asked;
    if (l->state == LANE_UP && l->file >= 0)
        reach(l);
    if (l->state == LANE_UP)
        awaited |= lead_to_peer(host, l);
    if (l->state == LANE_DOWN) {
        forget(host, l);
        sched_unpark(host->run, &l->link);
        if (l->users)
            qpn_each(host, stay_outside);
    }
    if (awaited && (l->state == LANE_UP || l->state == LANE_DOWN))
        qpn_each(host, wake_waiting);
}

static void reap(struct host *host) {
    for (struct lane **at = &host->here.lanes, *l; (l = *at);) {
        if (l->state != LANE_DOWN || l->users) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        host->here.count--;
        host->here.strangers -= !l->trusted;
        discard(host, l);
    }
}

static void listen_to(struct host *host, struct lane *l, const struct lane_self *self, int most) {
    if (l->fd >= 0 && lane_listen_to(l, self, most))
        lanes_changed(host, l);
}

/* Whatever is said on the lanes' sockets, and asked at our doors. */
static void listen_all(struct host *host, uint64_t now) {
    struct lane_self self;
    if (!host->local)
        return;
    lanes_self(host, &self);
    if (now >= host->here.doors_again)
        watch_doors(host);
    for (int i = 0; i < host->nslots; i++) {
        if (host->here.doors[i] >= 0)
            answer(host, host->here.doors[i], now);
    }
    for (struct lane *l = host->here.lanes; l; l = l->next) {
        listen_to(host, l, &self, LANE_ALL);
        if (l->fd >= 0 && now >= patience(l)) {
            lane_hang_up(l);
            lanes_changed(host, l);
        }
    }
    reap(host);
}

void lanes_hear(struct host *host) {
    struct lane_self self;
    struct epoll_event heard[HEARD];
    int n = host->here.count ? epoll_wait(host->here.bells_fd, heard, HEARD, 0) : 0;
    if (n <= 0)
        return;
    lanes_self(host, &self);
    for (struct lane *l = host->here.lanes; l; l = l->next) {
        for (int i = 0; i < n; i++) {
            if (heard[i].data.u64 == l->number)
                listen_to(host, l, &self, 1); /* as a rule it has just woken us */
        }
    }
    reap(host);
}

static uint64_t deadline(const void *owner) {
    const struct host *host = owner;
    uint64_t first = host->here.doors_again;
    for (const struct lane *l = host->here.lanes; l; l = l->next) {
        uint64_t at = patience(l);
        first = at < first ? at : first;
    }
    return first;
}

/* ---------------------------------------------------------------- who is behind one */

/* The peer's slot is the lane's, so it is the peer: whoever may be behind another lane is not. */
bool lanes_is_peer(const struct lane *l, uint32_t qpn) {
    for (uint32_t i = 0; i < l->peer.nslots; i++) {
        if (l->peer.slots[i] == qpn_slot(qpn))
            return true;
    }
    return false;
}

static bool is_to(const struct lane *l, uint32_t qpn, const struct in6_addr *addr) {
    return lanes_is_peer(l, qpn) && lane_is_to(l, addr);
}

/* The same after a look at what it has said last: it speaks of a slot or address that is new before it sends from there. */
bool lanes_leads_to(struct host *host, struct lane *l, uint32_t qpn, const struct in6_addr *addr) {
    struct lane_self self;
    if (is_to(l, qpn, addr))
        return true;
    lanes_self(host, &self);
    if (lane_listen_to(l, &self, LANE_ALL))
        lanes_changed(host, l);
    return l->state == LANE_UP && is_to(l, qpn, addr);
}

/* Does it still own the slot?  A process of our user gives up its slots with the lane; another user's may have given them
 * to somebody else, and is then nobody that we know. */
bool lanes_still_owns(struct host *host, struct lane *l, uint32_t slot) {
    enum lane_answer owns = l->trusted ? LANE_YES : lane_owns(l, slot);
    if (owns == LANE_NO) {
        lane_hang_up(l);
        lanes_changed(host, l);
        host->here.ask_again[slot] = 0; /* whoever has it now was not asked */
    }
    return owns == LANE_YES;
}

/* ---------------------------------------------------------------- as a source */

static bool receive_rare(void *owner, uint64_t now) {
    listen_all(owner, now);
    return false;
}

static void timer(void *owner, uint64_t now) {
    if (deadline(owner) <= now)
        listen_all(owner, now);
}

/* A program that polls looks at the rings alone. */
static void arm(void *owner, bool armed) {
    struct host *host = owner;
    engine_watch_for(host->run, &host->here.watched_bells, host->here.bells_fd, EPOLLIN, armed);
    for (int i = 0; i < host->nslots; i++)
        engine_watch_for(host->run, &host->here.watched[i], host->here.doors[i], EPOLLIN, false);
}

const struct source doors_source = {
    .name = "doors", .receive_rare = receive_rare, .timer = timer, .timer_at = deadline, .arm = arm};
