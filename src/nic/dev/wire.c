/* SPDX-License-Identifier: Apache-2.0
 *
 * The UDP link of a device: its ports are received from, what waits for room or for the injector's time leaves, and
 * the engine is told what to wait for.
 */
#include <sys/epoll.h>

#include "dev/dev.h"

#define FULL_NS 2000000 /* a socket that is full and does not say that it has room is tried again */

static bool receive_port(struct dev *dev, struct port *port, uint64_t now) {
    int n = udp_receive(&dev->rx, port);
    for (int i = 0; i < n; i++)
        demux_datagram(dev, port, &dev->rx.datagram[i], false, now);
    dev->nic.counters.value[RNIC_CNT_rx_syscalls] += n > 0;
    dev->run.more |= !dev->rx.all;
    if (dev->rx.all && port->unsettled)
        port_settle(port);
    return n > 0;
}

static bool receive(void *owner, uint64_t now, bool all) {
    struct dev *dev = owner;
    bool any = false;
    for (int i = 0; i < dev->net.ngids; i++) {
        if (all || dev->port_users[i])
            any |= receive_port(dev, &dev->ports[i], now);
    }
    return any;
}

static bool is_used(const void *owner) {
    const struct dev *dev = owner;
    bool any = dev->fault.held;
    for (int i = 0; i < dev->net.ngids; i++)
        any |= dev->port_users[i] > 0;
    return any;
}

/* The engine is called when there is room; a thread that polls tries now and then. */
static void try_again(struct dev *dev, uint64_t now, bool called) {
    if (!called && now < dev->tx.retry_at)
        return;
    const struct port *port = udp_port(dev->tx.way);
    if (!udp_tx_resume(&dev->tx, now))
        return;
    sched_link_free(&dev->run, &dev->tx.link, port->sndbuf / 2);
    engine_rearm(&dev->run);
}

static void resume(void *owner, uint64_t now, bool called) {
    struct dev *dev = owner;
    if (dev->tx.link.full)
        try_again(dev, now, called);
    if (dev->fault.held)
        udp_tx_release(&dev->tx, now);
}

/* A full socket tells when half of it is free; should one neighbour that nobody finds hold as much, it never does. */
static uint64_t deadline(const void *owner) {
    const struct dev *dev = owner;
    if (dev->tx.link.full)
        return dev->tx.retry_at + FULL_NS;
    return dev->fault.held ? fault_deadline(&dev->fault) : NEVER;
}

static void flush(void *owner) { udp_tx_flush(&((struct dev *)owner)->tx); }

/* ---------------------------------------------------------------- the ports' own affairs */

static void timer(void *owner, uint64_t now) {
    struct dev *dev = owner;
    for (int i = 0; i < dev->net.ngids; i++) {
        struct port *port = &dev->ports[i];
        if (port->steering && port_deadline(port) <= now && port_timer(port, now))
            engine_rearm(&dev->run);
    }
}

static uint64_t timer_at(const void *owner) {
    const struct dev *dev = owner;
    uint64_t first = NEVER;
    for (int i = 0; i < dev->net.ngids; i++) {
        uint64_t at = dev->ports[i].steering ? port_deadline(&dev->ports[i]) : NEVER;
        first = at < first ? at : first;
    }
    return first;
}

/* What a port sends from is, as a rule, what it receives from.  Sockets that no queue pair uses stay the engine's: nobody
 * polls them. */
static void arm_port(struct dev *dev, int i, bool armed) {
    const struct port *port = &dev->ports[i];
    uint32_t in = armed || !dev->port_users[i] ? EPOLLIN : 0,
             out = dev->tx.link.full && udp_port(dev->tx.way) == port ? EPOLLOUT : 0;
    bool one = port->rx_fd == port->tx_fd;
    engine_watch_for(&dev->run, &dev->watched_rx[i], port->rx_fd, in | (one ? out : 0));
    if (!one)
        engine_watch_for(&dev->run, &dev->watched_tx[i], port->tx_fd, out);
}

static void arm(void *owner, bool armed) {
    struct dev *dev = owner;
    for (int i = 0; i < dev->net.ngids; i++)
        arm_port(dev, i, armed);
}

const struct source wire_source = {
    .name = "wire",
    .receive = receive,
    .is_used = is_used,
    .resume = resume,
    .deadline = deadline,
    .flush = flush,
    .timer = timer,
    .timer_at = timer_at,
    .arm = arm,
};
