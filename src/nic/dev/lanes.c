/* SPDX-License-Identifier: Apache-2.0
 *
 * Peers on this host: which queue pairs go by shared memory, and what comes from there.
 *
 * A connected queue pair's requests take one way for as long as it is connected.  It is decided when it first has
 * something to send, or when the first packet of its peer comes: by the lane if there is one, or whoever has the peer's
 * slot opens one and says that the peer's address is its own; else by the wire.  What it answers goes the way that the
 * peer's requests come.  So two ends that decide differently, since one asked when the other could not answer, or has an
 * alternate path, understand each other.  Datagrams go by the lane that is there, each for itself.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "dev/dev.h"
#include "names/user.h"
#include "roce/direct.h"
#include "roce/partition.h"
#include "roce/path.h"
#include "wire/bth.h"
#include "wire/grh.h"

#define PACKETS 64           /* of a lane, at a time */
#define CALLERS 64           /* at a door, likewise */
#define SLOT_BUFFER 65536u
#define LANES (SLOT_COUNT + 64) /* more than there are contexts: the rest are not what they say */
#define STRANGERS 64      /* of them other users' */
#define PREPARE_LOOKS 200 /* of 50 us */
#define AGAIN_NS 1000000000ull
#define DROP(dev, reason) ((dev)->nic.counters.value[RNIC_CNT_drop_##reason]++)

static void know_self(const struct dev *dev, struct lane_self *self) {
    *self = (struct lane_self){.party.nslots = (uint32_t)dev->nslots, .file = user_may_look() ? dev->store.fd : -1};
    for (int i = 0; i < dev->nslots; i++)
        self->party.slots[i] = dev->slots[i].number;
    for (int i = 0; i < dev->net.ngids; i++) {
        if (dev->ports[i].steering)
            self->party.addresses[self->party.naddresses++] = dev->ports[i].addr.sin6_addr;
    }
}

static bool leads_by(const struct way *way, const void *link) { return way->link == link; }

static void discard(struct dev *dev, struct lane *l) {
    sched_unpark(&dev->run, &l->link); /* of answers that go another way by now */
    fault_forget(&dev->fault, leads_by, &l->link);
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

static struct link *link_to(void *arg, uint32_t qpn, const struct in6_addr *to);
static bool have_left(void *arg, struct farewell *f);

void lanes_open(struct dev *dev, int slot) {
    dev->nic.local_way = dev->local ? link_to : NULL;
    dev->nic.local_arg = dev;
    dev->nic.have_left = dev->local ? have_left : NULL;
    dev->here.shared = (struct lane_shared){&dev->fault, &dev->nic.counters, &dev->run.now};
    dev->here.doors[slot] = dev->local ? lane_listen(dev->slots[slot].number) : -1;
}

/* Who does not answer, or hangs up, is not asked again at once. */
static void forget(struct dev *dev, const struct lane *l) {
    uint64_t again = run_clock() + AGAIN_NS;
    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        if (dev->here.to[i] != l)
            continue;
        dev->here.to[i] = NULL;
        dev->here.ask_again[i] = again;
    }
}

void lanes_close(struct dev *dev) {
    for (struct lane *l = dev->here.lanes, *next; l; l = next) {
        next = l->next;
        discard(dev, l);
    }
    dev->here.lanes = NULL;
    for (int i = 0; i < dev->nslots; i++) {
        if (dev->here.doors[i] >= 0)
            close(dev->here.doors[i]);
    }
}

void lanes_abandon(struct dev *dev) {
    for (const struct lane *l = dev->here.lanes; l; l = l->next) {
        if (l->fd >= 0)
            close(l->fd);
        if (l->file >= 0)
            close(l->file);
        if (l->remote)
            remote_abandon(l->remote);
    }
    for (int i = 0; i < dev->nslots; i++) {
        if (dev->here.doors[i] >= 0)
            close(dev->here.doors[i]);
    }
}

/* ---------------------------------------------------------------- lanes come and go */

static void enter(struct dev *dev, struct lane *l) {
    l->number = ++dev->here.numbers;
    l->next = dev->here.lanes;
    dev->here.lanes = l;
    dev->here.count++;
    engine_watch(&dev->run, l->fd);
}

/* A slot that nobody of this host has is asked for again after a while: it may be another host's. */
static struct lane *ask(struct dev *dev, uint32_t slot, uint64_t now) {
    struct lane_self self;
    struct lane *l;
    if (now < dev->here.ask_again[slot])
        return NULL;
    know_self(dev, &self);
    if (lane_ask(&l, slot, &self, &dev->here.shared, now)) {
        dev->here.ask_again[slot] = now + AGAIN_NS;
        return NULL;
    }
    enter(dev, l);
    return dev->here.to[slot] = l;
}

static bool has_room_for(const struct dev *dev, const struct lane *l) {
    uint32_t strangers = 0;
    for (const struct lane *other = dev->here.lanes; other && !l->trusted; other = other->next)
        strangers += !other->trusted;
    return dev->here.count < LANES && strangers < STRANGERS;
}

/* Some at a time: who calls and hangs up all the time would keep everybody from the lock.  Without descriptors for it,
 * whoever waits there would wake the engine for ever. */
static void answer(struct dev *dev, int door, uint64_t now) {
    struct lane *l = NULL;
    for (int i = 0; i < CALLERS && (l = lane_answer(door, &dev->here.shared, now)); i++)
        has_room_for(dev, l) ? enter(dev, l) : lane_free(l);
    if (!l && (errno == EMFILE || errno == ENFILE)) {
        engine_unwatch(&dev->run, door);
        dev->here.doors_again = now + AGAIN_NS;
    }
}

static void watch_doors(struct dev *dev) {
    for (int i = 0; i < dev->nslots; i++) {
        if (dev->here.doors[i] >= 0)
            engine_watch(&dev->run, dev->here.doors[i]);
    }
    dev->here.doors_again = NEVER;
}

void lanes_tell(struct dev *dev) {
    struct lane_self self;
    know_self(dev, &self);
    for (struct lane *l = dev->here.lanes; l; l = l->next) {
        lane_look_again(l);
        lane_tell(l, &self);
    }
}

/* Those that wait for it find out; whoever went by one that has gone stays there, and is not heard. */
static void wake_waiting(struct dev *dev, struct qp *qp) {
    if (qp->reach == REACH_OPEN)
        sched_ready(&dev->run, qp);
}

/* What the process of a dead peer has left is nobody's. */
static void stay_outside(struct dev *dev, struct qp *qp) {
    (void)dev;
    if (qp->reach == REACH_LOCAL && lane_of(qp->way.link)->state == LANE_DOWN) {
        qp->remote = NULL;
        atomic_store(&qp->at_once, 0);
    }
}

static void changed(struct dev *dev, struct lane *l) {
    if (l->state == LANE_UP && l->file >= 0)
        reach(l);
    for (uint32_t i = 0; l->state == LANE_UP && i < l->peer.nslots; i++) {
        uint32_t slot = l->peer.slots[i];
        if (slot < SLOT_COUNT && (!dev->here.to[slot] || dev->here.to[slot]->state != LANE_UP))
            dev->here.to[slot] = l;
    }
    if (l->state == LANE_DOWN) {
        forget(dev, l);
        sched_unpark(&dev->run, &l->link);
        qpn_each(dev, stay_outside);
    }
    if (l->state == LANE_UP || l->state == LANE_DOWN)
        qpn_each(dev, wake_waiting);
}

static void reap(struct dev *dev) {
    for (struct lane **at = &dev->here.lanes, *l; (l = *at);) {
        if (l->state != LANE_DOWN || l->users) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        dev->here.count--;
        discard(dev, l);
    }
}

/* Whoever has been answered may be using the lane already: only one that never meant to is given up. */
static uint64_t patience(const struct lane *l) {
    if (l->state >= LANE_UP)
        return NEVER;
    return l->since + (l->state == LANE_ANSWERED ? 100 * LANE_PATIENCE : LANE_PATIENCE);
}

/* Whatever is said on the lanes' sockets, and asked at our doors. */
static void listen_all(struct dev *dev, uint64_t now) {
    struct lane_self self;
    if (!dev->local)
        return;
    know_self(dev, &self);
    if (now >= dev->here.doors_again)
        watch_doors(dev);
    for (int i = 0; i < dev->nslots; i++) {
        if (dev->here.doors[i] >= 0)
            answer(dev, dev->here.doors[i], now);
    }
    for (struct lane *l = dev->here.lanes; l; l = l->next) {
        bool news = l->fd >= 0 && lane_listen_to(l, &self);
        if (l->fd >= 0 && now >= patience(l)) {
            lane_hang_up(l);
            news = true;
        }
        if (news)
            changed(dev, l);
    }
    reap(dev);
}

static uint64_t deadline(const void *owner) {
    const struct dev *dev = owner;
    uint64_t first = dev->here.doors_again;
    for (const struct lane *l = dev->here.lanes; l; l = l->next) {
        uint64_t at = patience(l);
        first = at < first ? at : first;
    }
    return first;
}

/* ---------------------------------------------------------------- which way */

static void go_local(struct qp *qp, struct lane *l) {
    way_release(&qp->way);
    qp->way.link = &l->link;
    way_hold(&qp->way);
    qp->remote = qp->ib.service == OPC_UC ? NULL : l->remote;
    atomic_store(&qp->at_once, direct_operations(qp));
    qp->remote_qp = (struct remote_qp){0};
    qp->reach = REACH_LOCAL;
    qp->engine->set_mtu(qp, LANE_MTU);
}

/* Answers go the way that requests do. */
static void join(struct qp *qp) {
    if (qp->apart)
        way_release(&qp->answers);
    qp->apart = false;
}

/* Answers go another way, l, or NULL: the wire. */
static bool part(struct dev *dev, struct qp *qp, struct lane *l) {
    struct way to;
    if (!l && link_resolve(dev->nic.wire, &qp->attr.ah_attr, qp->attr.dest_qp_num, &to, NULL, NULL))
        return false; /* the address has gone */
    if (l) {
        to = qp->way;
        to.held = false;
        to.link = &l->link;
    }
    way_hold(&to);
    qp->answers = to;
    return qp->apart = true;
}

/* The way of the peer's requests is known by the first that was expected: what came before it may be older than the
 * connection. */
static bool hear(struct dev *dev, struct qp *qp, struct lane *l) {
    enum reach reach = l ? REACH_LOCAL : REACH_WIRE;
    if (qp->reach_in == reach)
        return true;
    if (qp->reach_in != REACH_OPEN && qp->engine->has_begun(qp))
        return false;
    join(qp);
    if (qp->reach != reach && !part(dev, qp, l))
        return false;
    qp->reach_in = reach;
    qp->engine->set_mtu_in(qp, l ? LANE_MTU : mtu_bytes(qp->attr.path_mtu));
    return true;
}

/* Which way requests go is decided at the latest when the peer's come. */
static bool takes(struct dev *dev, struct qp *qp, const struct packet *pkt, struct lane *l) {
    enum reach reach = l ? REACH_LOCAL : REACH_WIRE;
    if (pkt->row->mask & OPC_CNP) /* which is for either */
        return qp->reach == reach || qp->reach_in == reach;
    if (!(pkt->row->mask & OPC_REQUEST))
        return qp->reach == reach;
    if (qp->reach == REACH_OPEN && l && !qp->ib.alt_loaded)
        go_local(qp, l);
    else if (qp->reach == REACH_OPEN)
        qp->reach = REACH_WIRE;
    return hear(dev, qp, l);
}

bool lanes_hear_wire(struct dev *dev, struct qp *qp, const struct packet *pkt) { return takes(dev, qp, pkt, NULL); }

void lanes_leave(struct dev *dev, struct qp *qp) {
    join(qp);
    if (qp->reach_in == REACH_LOCAL)
        qp->engine->set_mtu_in(qp, mtu_bytes(qp->attr.path_mtu));
    if (qp->reach == REACH_LOCAL) {
        way_release(&qp->way);
        qp->way.link = dev->nic.wire;
        qp->engine->set_mtu(qp, mtu_bytes(qp->attr.path_mtu));
    }
    qp->reach = qp->reach_in = REACH_WIRE;
    qp->remote = NULL;
    qp->known_lane = 0;
    atomic_store(&qp->at_once, 0);
}

/* The peer's slot is the lane's, so it is the peer: whoever may be behind another lane is not. */
static bool is_peer(const struct lane *l, uint32_t qpn) {
    for (uint32_t i = 0; i < l->peer.nslots; i++) {
        if (l->peer.slots[i] == qpn_slot(qpn))
            return true;
    }
    return false;
}

static bool is_to(const struct lane *l, uint32_t qpn, const struct in6_addr *addr) {
    return is_peer(l, qpn) && lane_is_to(l, addr);
}

/* The same after a look at what it has said last: it speaks of a slot or address that is new before it sends from there. */
static bool leads_to(struct dev *dev, struct lane *l, uint32_t qpn, const struct in6_addr *addr) {
    struct lane_self self;
    if (is_to(l, qpn, addr))
        return true;
    know_self(dev, &self);
    if (lane_listen_to(l, &self))
        changed(dev, l);
    return l->state == LANE_UP && is_to(l, qpn, addr);
}

/* Does it still own the slot?  A process of our user gives up its slots with the lane; another user's may have given them
 * to somebody else, and is then nobody that we know. */
static bool still_owns(struct dev *dev, struct lane *l, uint32_t slot) {
    enum lane_answer owns = l->trusted ? LANE_YES : lane_owns(l, slot);
    if (owns == LANE_NO) {
        lane_hang_up(l);
        changed(dev, l);
        dev->here.ask_again[slot] = 0; /* whoever has it now was not asked */
    }
    return owns == LANE_YES;
}

/* The lane to the queue pair's peer; *wait: it is not known yet whether there is one. */
static struct lane *find(struct dev *dev, struct qp *qp, uint64_t now, bool *wait) {
    uint32_t slot = qpn_slot(qp->attr.dest_qp_num);
    struct lane *l = dev->here.to[slot];
    bool up = l && l->state == LANE_UP;
    if (up && !leads_to(dev, l, qp->attr.dest_qp_num, &qp->way.dst.sin6_addr))
        return NULL;
    if (up && still_owns(dev, l, slot))
        return l;
    if (!dev->here.to[slot])
        l = ask(dev, slot, now);
    *wait = l && l->state != LANE_UP && l->state != LANE_DOWN;
    return NULL;
}

/* For a datagram, which does not wait. */
static struct link *link_to(void *arg, uint32_t qpn, const struct in6_addr *to) {
    struct dev *dev = arg;
    uint32_t slot = qpn_slot(qpn);
    struct lane *l = dev->here.to[slot] ? dev->here.to[slot] : ask(dev, slot, dev->run.now);
    return l && l->state == LANE_UP && !l->link.full && l->trusted && is_peer(l, qpn) && lane_is_to(l, to) ? &l->link
                                                                                                           : NULL;
}

static bool has_work(struct qp *qp) {
    return (qp->state == RNIC_QPS_RTS || qp->state == RNIC_QPS_SQD) && !wq_empty(&qp->sq);
}

/* Whoever is there answers at once; who does not is asked for longer while nobody waits for it. */
void lanes_prepare(struct dev *dev, struct qp *qp) {
    const struct timespec look = {.tv_nsec = 50000};
    bool wait = true;
    for (int i = 0; i < PREPARE_LOOKS && wait; i++) {
        if (i)
            nanosleep(&look, NULL);
        dev_lock(dev);
        wait = false;
        if (qp->reach == REACH_OPEN)
            find(dev, qp, run_clock(), &wait);
        dev_unlock(dev);
    }
}

bool lanes_decide(void *owner, struct qp *qp, uint64_t now) {
    struct dev *dev = owner;
    bool wait = false;
    if (!has_work(qp)) /* what is posted in this moment is not to be sent before it is decided */
        return qp->state != RNIC_QPS_RTS;
    struct lane *l = qp->ib.alt_loaded ? NULL : find(dev, qp, now, &wait);
    if (wait)
        return false;
    if (l)
        go_local(qp, l);
    else
        qp->reach = REACH_WIRE;
    return true;
}

/* ---------------------------------------------------------------- in */

/* Of two ends that have asked at once each may send by a lane of its own: another user's process is looked at once, and
 * there is no third. */
static bool is_known(struct dev *dev, struct qp *qp, struct lane *l) {
    if (l->trusted || qp->known_lane)
        return l->trusted || qp->known_lane == l->number;
    bool known = still_owns(dev, l, qpn_slot(qp->attr.dest_qp_num));
    qp->known_lane = known ? l->number : 0;
    return known;
}

static bool from_peer(struct dev *dev, struct qp *qp, const struct packet *pkt, struct lane *l) {
    if (qp->way.link == &l->link && qp->reach_in == REACH_LOCAL) /* found to be, and all its packets come by it */
        return true;
    return leads_to(dev, l, qp->attr.dest_qp_num, &qp->way.dst.sin6_addr) && is_known(dev, qp, l) &&
           takes(dev, qp, pkt, l);
}

/* Datagrams may come from any queue pair of the lane's process, if we believe it that they do. */
static bool takes_datagram(const struct lane *l, const struct ring_packet *p, struct packet *pkt, uint8_t *grh) {
    if (!(p->kind & LANE_DATAGRAM) || !l->trusted || !is_peer(l, deth_source(pkt)))
        return false;
    memcpy(grh, p->bytes + p->length - GRH_BYTES, GRH_BYTES);
    pkt->grh = grh;
    pkt->sl = (uint8_t)(p->kind >> LANE_CLASS_SHIFT) >> 5;
    return true;
}

/* Its payload is in the sender's memory: there until it has an answer, takes the packet back, or has gone; the mark keeps it
 * from going meanwhile. */
static bool find_payload(struct lane *l, const struct ring_packet *p, struct packet *pkt) {
    struct rnic_sge at;
    if (!l->remote || p->length != LANE_REFERRING)
        return false;
    memcpy(&at, p->head + pkt->row->header, sizeof at);
    pkt->length = at.length;
    pkt->payload = at.length <= LANE_MTU ? remote_look(l->remote, at.lkey, at.addr, at.length) : NULL;
    if (pkt->payload && ring_is_void(&l->in)) {
        remote_leave(l->remote);
        pkt->payload = NULL;
    }
    return pkt->payload;
}

static void input(struct dev *dev, struct lane *l, const struct ring_packet *p, uint64_t now) {
    struct packet pkt = {0};
    uint8_t grh[GRH_BYTES];
    if (p->kind & RING_VOID) /* of a queue pair that is no more */
        return;
    if (!demux_parse(dev, &pkt, p->head, p->length, p->kind & LANE_DATAGRAM ? GRH_BYTES : 0))
        return;
    pkt.payload = p->bytes + pkt.row->header;
    bool refers = p->kind & LANE_REFERS;
    if (refers && !find_payload(l, p, &pkt)) {
        if (!ring_is_void(&l->in))
            DROP(dev, malformed);
        return;
    }
    pkt.marked = p->kind & LANE_MARKED;
    struct qp *qp = bth_dqpn(pkt.bth) == QPN_GSI ? NULL : qpn_find(dev, bth_dqpn(pkt.bth));
    int index = qp ? qp_pkey_index(qp, bth_pkey(pkt.bth)) : -1;
    pkt.pkey_index = (uint16_t)index;
    if (qp && qp->tagged && pkt.length <= SLOT_BUFFER) /* whose headers are in the payload: nobody is to change them */
        pkt.payload = memcpy(dev->slot_buffer, pkt.payload, pkt.length);
    if (!qp)
        DROP(dev, bad_qpn);
    else if (!(pkt.row->mask & qp->ib.takes))
        COUNT(qp, drop_bad_opcode);
    else if (qp->state < RNIC_QPS_RTR)
        COUNT(qp, drop_bad_state);
    else if (index < 0)
        COUNT(qp, drop_bad_pkey);
    else if (pkt.row->mask & OPC_UD ? !takes_datagram(l, p, &pkt, grh) : !from_peer(dev, qp, &pkt, l))
        COUNT(qp, drop_bad_source);
    else
        demux_deliver(dev, qp, &pkt, p->length, now);
    if (refers)
        remote_leave(l->remote);
}

static bool receive(struct dev *dev, struct lane *l, uint64_t now) {
    struct ring_packet p;
    int n = 0, rc = 0;
    uint64_t *count = dev->nic.counters.value;
    while (n < PACKETS && l->state == LANE_UP && (rc = ring_peek(&l->in, &p)) > 0) {
        count[RNIC_CNT_rx_packets]++;
        count[RNIC_CNT_rx_bytes] += p.length;
        count[RNIC_CNT_local_received]++;
        input(dev, l, &p, now);
        ring_take(&l->in);
        n++;
    }
    dev->run.more |= n == PACKETS;
    if (n)
        lane_taken(l);
    if (rc >= 0)
        return n > 0;
    lane_hang_up(l);
    changed(dev, l);
    return true;
}

static bool want(const void *owner) {
    const struct dev *dev = owner;
    for (const struct lane *l = dev->here.lanes; l; l = l->next) {
        if (l->state == LANE_UP && (l->link.full || ring_has_packet(&l->in)))
            return true;
    }
    return false;
}

static bool receive_all(struct dev *dev, uint64_t now) {
    bool any = false;
    for (struct lane *l = dev->here.lanes; l; l = l->next) {
        if (l->state != LANE_UP)
            continue;
        any |= receive(dev, l, now);
        if (l->link.full && lane_unstick(l))
            sched_unpark(&dev->run, &l->link);
    }
    return any;
}

static void flush(void *owner) {
    struct dev *dev = owner;
    for (struct lane *l = dev->here.lanes; l; l = l->next) {
        if (l->dirty)
            lane_flush(l);
    }
}

static bool may_sleep(void *owner) {
    struct dev *dev = owner;
    bool may = true;
    for (struct lane *l = dev->here.lanes; l; l = l->next) {
        if (l->state == LANE_UP)
            may &= ring_may_sleep(&l->in) && !(l->link.full && ring_has_room(&l->out));
    }
    return may;
}

static void awake(void *owner) {
    struct dev *dev = owner;
    for (struct lane *l = dev->here.lanes; l; l = l->next) {
        if (l->state == LANE_UP)
            ring_awake(&l->in);
    }
}

/* ---------------------------------------------------------------- copies of peers */

#define COPY_NS 1000000000ull /* a copy takes less, unless who makes it has been stopped */
#define SHORT_LOOKS 32        /* in which a copy usually ends; after these the lock is not kept any longer */

/* The mark is odd while its owner is inside a copy, and never the same again. */
static bool is_inside(const struct lane *l, uint32_t mark) {
    return l->state == LANE_UP && (mark & 1) && atomic_load_explicit(&l->in.mem->mark, memory_order_acquire) == mark;
}

/* They are in the list by number, the latest first. */
static struct lane *lane_before(const struct dev *dev, uint64_t number) {
    struct lane *l = dev->here.lanes;
    while (l && l->number >= number)
        l = l->next;
    return l;
}

/* A slot is spoken of before anything is done from there. */
static void hear_of_slots(struct dev *dev) {
    struct lane_self self;
    know_self(dev, &self);
    for (struct lane *l = dev->here.lanes; l; l = l->next) {
        if (l->state == LANE_UP && lane_listen_to(l, &self))
            changed(dev, l);
    }
}

/* The next whose owner is meant, and has been given the memory file. */
static void look_at_next(const struct dev *dev, struct farewell *f) {
    struct lane *l = lane_before(dev, f->begun ? f->lane : UINT64_MAX);
    while (l && !(l->state == LANE_UP && l->trusted && (!f->peer || is_peer(l, f->peer))))
        l = l->next;
    f->lane = l ? l->number : 0;
    f->mark = l ? atomic_load(&l->in.mem->mark) : 0;
}

/* A lane may be freed between two calls. */
static bool have_left(void *arg, struct farewell *f) {
    struct dev *dev = arg;
    if (!f->begun) {
        if (f->peer)
            hear_of_slots(dev);
        /* What was withdrawn first, then the look: a peer does it the other way round. */
        atomic_thread_fence(memory_order_seq_cst);
        look_at_next(dev, f);
        f->begun = true;
    }
    while (f->lane) {
        const struct lane *l = lane_before(dev, f->lane + 1);
        if (l && l->number == f->lane && is_inside(l, f->mark))
            return false;
        look_at_next(dev, f);
    }
    return true;
}

bool lanes_await(struct dev *dev, uint32_t peer) {
    uint64_t until = run_clock() + COPY_NS;
    struct farewell f = {.peer = peer};
    for (int looks = 0; !have_left(dev, &f); looks++) {
        if (run_clock() > until)
            return false;
        looks < SHORT_LOOKS ? (void)sched_yield() : run_let_others(&dev->run);
    }
    return true;
}

/* ---------------------------------------------------------------- as a source */

static bool source_receive(void *owner, uint64_t now, bool all) {
    (void)all;
    return receive_all(owner, now);
}

static bool receive_rare(void *owner, uint64_t now) {
    listen_all(owner, now);
    return false;
}

static void arm(void *owner, bool armed) {
    struct dev *dev = owner;
    (void)armed;
    for (int i = 0; i < dev->nslots; i++)
        engine_watch_for(&dev->run, &dev->here.watched[i], dev->here.doors[i], EPOLLIN);
}

const struct source lanes_source = {
    .name = "lanes",
    .receive = source_receive,
    .receive_rare = receive_rare,
    .wants = want,
    .flush = flush,
    .timer_at = deadline,
    .arm = arm,
    .may_sleep = may_sleep,
    .awake = awake,
};
