/* SPDX-License-Identifier: Apache-2.0
 *
 * The UDP link of a device: its ports are received from, what waits for room or for the injector's time leaves, and
 * the engine is told what to wait for.
 */
#include <sys/epoll.h>

#include "net/net.h"

#define FULL_NS 2000000 /* a socket that is full and does not say that it has room is tried again */

/* What was there was all, or as much as the socket holds. */
static void count_unread(struct net *net, struct port *port, int n) {
    for (int i = 0; i < n; i++) {
        uint32_t bytes = net->rx.datagram[i].length;
        port->unread -= bytes < port->unread ? bytes : port->unread;
    }
    if (net->rx.all)
        port->unread = 0;
}

static bool receive_port(struct net *net, struct port *port, uint64_t now) {
    int n = udp_receive(&net->rx, port);
    if (port->unread)
        count_unread(net, port, n);
    for (int i = 0; i < n; i++)
        net_arrived(net, port, &net->rx.datagram[i], false, now);
    net->nic->counters.value[RNIC_CNT_rx_syscalls] += n > 0;
    net->run->more |= !net->rx.all;
    if (net->rx.all && port->unsettled)
        port_settle(port);
    return n > 0;
}

static bool receive(void *owner, uint64_t now, bool all) {
    struct net *net = owner;
    bool any = false;
    for (int i = 0; i < net->netdev.ngids; i++) {
        if (all || net->port_users[i])
            any |= receive_port(net, &net->ports[i], now);
    }
    return any;
}

static bool is_used(const void *owner) {
    const struct net *net = owner;
    bool any = net->fault.held;
    for (int i = 0; i < net->netdev.ngids; i++)
        any |= net->port_users[i] > 0;
    return any;
}

/* The engine is called when there is room; a thread that polls tries now and then. */
static void try_again(struct net *net, uint64_t now, bool called) {
    if (!called && now < net->tx.retry_at)
        return;
    const struct port *port = udp_port(net->tx.way);
    if (!udp_tx_resume(&net->tx, now))
        return;
    sched_link_free(net->run, &net->tx.link, port->sndbuf / 2);
    engine_rearm(net->run);
}

static void resume(void *owner, uint64_t now, bool called) {
    struct net *net = owner;
    if (net->tx.link.full)
        try_again(net, now, called);
    if (net->fault.held)
        udp_tx_release(&net->tx, now);
}

/* A full socket tells when half of it is free; should one neighbour that nobody finds hold as much, it never does. */
static uint64_t deadline(const void *owner) {
    const struct net *net = owner;
    if (net->tx.link.full)
        return net->tx.retry_at + FULL_NS;
    return net->fault.held ? fault_deadline(&net->fault) : NEVER;
}

static void note(void *owner) {
    struct net *net = owner;
    for (int i = 0; i < net->netdev.ngids; i++)
        net->ports[i].unread = net->ports[i].rx_fd < 0 ? 0 : net->ports[i].rcvbuf;
}

static bool has_reached(const void *owner) {
    const struct net *net = owner;
    bool all = true;
    for (int i = 0; i < net->netdev.ngids; i++)
        all &= !net->ports[i].unread;
    return all;
}

static void flush(void *owner) { udp_tx_flush(&((struct net *)owner)->tx); }

/* ---------------------------------------------------------------- the ports' own affairs */

static void timer(void *owner, uint64_t now) {
    struct net *net = owner;
    for (int i = 0; i < net->netdev.ngids; i++) {
        struct port *port = &net->ports[i];
        if (port->steering && port_deadline(port) <= now && port_timer(port, now))
            engine_rearm(net->run);
    }
}

static uint64_t timer_at(const void *owner) {
    const struct net *net = owner;
    uint64_t first = NEVER;
    for (int i = 0; i < net->netdev.ngids; i++) {
        uint64_t at = net->ports[i].steering ? port_deadline(&net->ports[i]) : NEVER;
        first = at < first ? at : first;
    }
    return first;
}

/* What a port sends from is, as a rule, what it receives from.  Sockets that no queue pair uses stay the engine's: nobody
 * polls them. */
static void arm_port(struct net *net, int i) {
    const struct port *port = &net->ports[i];
    uint32_t out = net->tx.link.full && udp_port(net->tx.way) == port ? EPOLLOUT : 0;
    bool one = port->rx_fd == port->tx_fd;
    engine_watch_for(net->run, &net->watched_rx[i], port->rx_fd, EPOLLIN | (one ? out : 0), net->port_users[i]);
    if (!one)
        engine_watch_for(net->run, &net->watched_tx[i], port->tx_fd, out, true);
}

static void arm(void *owner, bool armed) {
    struct net *net = owner;
    (void)armed;
    for (int i = 0; i < net->netdev.ngids; i++)
        arm_port(net, i);
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
    .note = note,
    .has_reached = has_reached,
};
