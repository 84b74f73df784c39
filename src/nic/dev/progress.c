/* SPDX-License-Identifier: Apache-2.0
 *
 * One pass over everything that can happen, by whoever holds the lock: the engine thread, or a thread that posts or
 * polls.
 */
#include <errno.h>
#include <sched.h>

#include "dev/dev.h"
#include "roce/direct.h"

#define ACK_HOLD_NS 15000  /* an ACK waits so long for the answer of an application that polls all the time */
#define YIELD_POLLS 64     /* polls in vain, some 20 us, with the short looks in between */
#define FORWARDED_AT_ONCE 16
#define FULL_NS 2000000    /* a socket that is full and does not say that it has room is tried again */
#define LEAVING 64         /* looks at the sockets before they close */
#define ROUNDS 8           /* of sending, for a thread that posts or polls */
#define POLLING_NS 20000   /* which is one that polled so shortly before */
#define REFUSALS 64        /* polls in a row that leave the lock to others; the next one waits for it */
#define UNREAD_NS 1000000000ull /* so long a flood of packets may keep a timer from counting */
#define STOPPED_NS 500000000ull /* between two looks: nobody had a processor to look again */
#define CALM_POLLS 15      /* of such a one look at the lanes alone, then one at the time and the sockets, too */

static bool receive_port(struct dev *dev, struct port *port, uint64_t now) {
    int n = udp_receive(&dev->rx, port);
    for (int i = 0; i < n; i++)
        demux_datagram(dev, port, &dev->rx.datagram[i], false, now);
    dev->nic.counters.value[RNIC_CNT_rx_syscalls] += n > 0;
    dev->more |= !dev->rx.all;
    if (dev->rx.all && port->unsettled)
        port_settle(port);
    return n > 0;
}

static struct port *port_at(struct dev *dev, const struct sockaddr_in6 *addr) {
    for (int i = 0; i < dev->net.ngids; i++) {
        if (IN6_ARE_ADDR_EQUAL(&dev->ports[i].addr.sin6_addr, &addr->sin6_addr))
            return &dev->ports[i];
    }
    return NULL;
}

static int take_forwarded(struct dev *dev, const struct slot *slot, uint64_t now) {
    struct slot_packet p;
    int rc = port_slot_input(slot, dev->port_list, dev->net.ngids, dev->slot_buffer, 65536, &p, now);
    if (rc == 1 && p.length) {
        struct udp_datagram d = {.bytes = dev->slot_buffer,
                                 .length = p.length,
                                 .segment = p.segment ? p.segment : p.length,
                                 .src = p.src,
                                 .hops = p.hops,
                                 .tclass = p.tclass,
                                 .flow_label = p.flow_label};
        struct port *port = port_at(dev, &p.dst);
        dev->nic.counters.value[RNIC_CNT_forwarded_in] += (d.length + d.segment - 1) / d.segment;
        if (port)
            demux_datagram(dev, port, &d, true, now);
    }
    return rc;
}

/* Packets that other processes hand on, and their control messages: all that fits such a socket, as who sends more waits
 * for room. */
bool progress_forwarded(struct dev *dev, const struct slot *slot, uint64_t now) {
    int n = 0;
    while (n < FORWARDED_AT_ONCE && take_forwarded(dev, slot, now) >= 0)
        n++;
    return n > 0;
}

/* The slot's socket carries bulk data only while another user's process has the port. */
static bool receive(struct dev *dev, uint64_t now, bool everything) {
    bool any = false, forwarded = false;
    dev->more = false;
    for (int i = 0; i < dev->net.ngids; i++) {
        forwarded |= dev->ports[i].rx_fd < 0 && dev->ports[i].steering;
        if (everything || dev->port_users[i])
            any |= receive_port(dev, &dev->ports[i], now);
    }
    for (int i = 0; (everything || forwarded) && i < dev->nslots; i++)
        any |= progress_forwarded(dev, &dev->slots[i], now);
    for (int i = 0; everything && i < dev->nslots; i++)
        engine_watchers(dev, &dev->slots[i]);
    any |= lanes_receive(dev, now);
    if (everything)
        lanes_listen(dev, now);
    if (everything)
        any |= mcast_receive(dev, now) | listeners_receive(dev, now) | follow_receive(dev, now) | raw_receive(dev);
    return any;
}

/* The engine is called when there is room; a thread that polls tries now and then. */
static void resume(struct dev *dev, uint64_t now, bool called) {
    if (!called && now < dev->tx.retry_at)
        return;
    const struct port *port = dev->tx.way->port;
    if (!udp_tx_resume(&dev->tx, now))
        return;
    sched_link_free(dev, port->sndbuf / 2);
    engine_watch_room(dev);
}

/* May answers lie here unread?  Not for ever: who sends more than is read puts off no timer.  Time in which nobody looked,
 * as of a process that was stopped, does not count. */
static void judge_unread(struct dev *dev, uint64_t now) {
    if (!dev->more)
        dev->more_since = 0;
    else if (!dev->more_since || now > dev->looked_at + STOPPED_NS)
        dev->more_since = now;
    if (now > dev->looked_at) /* it may have been read before the lock was had */
        dev->looked_at = now;
    dev->nic.unread = dev->more && now < dev->more_since + UNREAD_NS;
}

bool progress(struct dev *dev, uint64_t now, bool everything) {
    bool any = receive(dev, now, everything);
    judge_unread(dev, now);
    dev->nic.late = engine_late(dev, now);
    if (dev->tx.link.full)
        resume(dev, now, everything);
    if (raw_waits(dev))
        raw_resume(dev, now);
    sched_bells(dev);
    sched_timers(dev, now);
    if (dev->fault.held)
        udp_tx_release(&dev->tx, now);
    if (dev->raw)
        raw_release(dev, now);
    return sched_run(dev, now) || any;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* A full socket tells when half of it is free; should one neighbour that nobody finds hold as much, it never does. */
uint64_t tx_deadline(const struct dev *dev) {
    if (dev->tx.link.full)
        return dev->tx.retry_at + FULL_NS;
    return dev->fault.held ? fault_deadline(&dev->fault) : NEVER;
}

static uint64_t deadline(const struct dev *dev) {
    uint64_t raw = dev->raw ? raw_deadline(dev) : NEVER;
    return least(least(sched_deadline(dev), outbox_deadline(dev)), least(tx_deadline(dev), raw));
}

/* What is left for want of time is the engine's, unless the application comes again anyway. */
void progress_finish(struct dev *dev, uint64_t now) {
    uint64_t copied = dev->nic.copied;
    sched_bells(dev);
    for (int i = 0; i < ROUNDS && dev->ready_first && dev->nic.copied - copied < DIRECT_TURN; i++)
        sched_run(dev, now);
    if (!atomic_load(&dev->disarmed))
        engine_wake_for(dev, dev->ready_first ? now : deadline(dev));
}

static bool has_sockets(const struct dev *dev) {
    bool any = dev->fault.held;
    for (int i = 0; i < dev->net.ngids; i++)
        any |= dev->port_users[i] > 0;
    return any;
}

static void poll_all(struct dev *dev, uint64_t now, bool again) {
    dev->nic.ack_hold = again ? ACK_HOLD_NS : 0;
    dev->calm = again && !has_sockets(dev) ? CALM_POLLS : 0;
    progress(dev, now, false);
    progress_finish(dev, now);
}

static void poll_lanes(struct dev *dev) {
    uint64_t now = dev_clock(); /* before the look, which waits for the other's cache if there is something */
    dev->calm--;
    dev->more = false;
    bool news = lanes_want(dev) && lanes_receive(dev, now);
    judge_unread(dev, now);
    if (dev->held) /* an ACK, whose time may have come */
        sched_timers(dev, now);
    if (dev->ready_first || (news && !atomic_load(&dev->disarmed)))
        progress_finish(dev, now);
}

bool progress_look(struct dev *dev) {
    if (!atomic_load_explicit(&dev->calm, memory_order_relaxed) || !dev_trylock(dev))
        return false;
    bool lanes = dev->calm && !dev->ready_first;
    if (lanes)
        poll_lanes(dev);
    dev_unlock(dev);
    return lanes;
}

/* Who has the lock makes progress, as a rule; but it may be verbs without end. */
static bool lock_to_poll(struct dev *dev) {
    bool locked = dev_trylock(dev);
    if (!locked && atomic_fetch_add_explicit(&dev->refused, 1, memory_order_relaxed) < REFUSALS)
        return false;
    if (!locked)
        dev_lock(dev);
    atomic_store_explicit(&dev->refused, 0, memory_order_relaxed);
    return true;
}

bool progress_poll(struct dev *dev, bool will_wait) {
    if (!will_wait && progress_look(dev))
        return false;
    uint64_t now = dev_clock(), last = atomic_exchange(&dev->last_poll, will_wait ? 0 : now);
    bool again = !will_wait && now - last < POLLING_NS;
    if (again)
        atomic_store(&dev->polls_at, now); /* the engine that has the lock sees it */
    if (lock_to_poll(dev)) {
        poll_all(dev, now, again);
        dev_unlock(dev);
    }
    if (will_wait)
        engine_take_over(dev);
    return true;
}

/* An application that polls in vain lets others have the processor now and then: its peer may be waiting for it, where
 * there is more to do than there are processors. */
void progress_polled(struct dev *dev, bool found) {
    uint32_t in_vain = found ? 0 : atomic_load_explicit(&dev->in_vain, memory_order_relaxed) + 1;
    atomic_store_explicit(&dev->in_vain, in_vain, memory_order_relaxed);
    if (in_vain % YIELD_POLLS == YIELD_POLLS - 1)
        sched_yield();
}

void progress_post(struct dev *dev, struct qp *qp) {
    if (dev_trylock(dev)) {
        sched_ready(dev, qp);
    } else {
        sched_ring(dev, qp);
        if (!dev_trylock(dev))
            return; /* who holds the lock looks at the doorbells when it lets go */
    }
    progress_finish(dev, dev_clock());
    dev_unlock(dev);
}

void progress_sent(struct dev *dev, struct qp *qp, uint64_t now) {
    lanes_flush(dev);
    sched_input(dev, qp, now);
    if (dev->ready_first || !atomic_load(&dev->disarmed))
        progress_finish(dev, now);
}

void progress_leave(struct dev *dev) {
    for (int i = 0; i < dev->net.ngids; i++) {
        if (dev->ports[i].steering)
            port_leave(&dev->ports[i]);
    }
    for (int i = 0; i < LEAVING && receive(dev, dev_clock(), true); i++)
        ;
}
