/* SPDX-License-Identifier: Apache-2.0
 *
 * The network of a device is opened and closed.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/fail.h"
#include "net/net.h"

void net_init(struct net *net, const struct net_kind *kind, struct nic *nic, struct run *run,
              const struct net_calls *calls, void *owner) {
    net->kind = kind;
    net->nic = nic;
    net->run = run;
    net->calls = calls;
    net->owner = owner;
    net->follow_fd = -1;
    ports_init(net);
    tcp_init(&net->tcp);
    net->watched_streams.fd = -1;
    pthread_mutex_init(&net->lock, NULL);
}

int net_find(struct net *net, const char *netdev, struct rnic_err *err) {
    int rc = follow_open(net, err); /* first: whatever changes from now on is told */
    if (!rc)
        rc = netdev_find(netdev, &net->netdev, err);
    if (rc)
        net->netdev.ngids = 0; /* no port is open */
    return rc;
}

/* ---------------------------------------------------------------- faults on purpose */

static void start_faults(struct net *net) { net->kind->set_fault(net, net->has_faults ? &net->faults : NULL); }

/* A fault that is asked for, and who has it: others would accept it and do nothing. */
static int check_fault(const struct net *net, const struct rnic_fault *f, struct rnic_err *err) {
    bool lose = false;
    for (int i = 0; i < RNIC_FAULT_RULES; i++)
        lose |= f->lose[i].nth > 0;
    const struct {
        const char *name;
        bool asked;
        uint32_t of; /* enum net_faults */
    } rows[] = {
        {"loss", f->loss, FAULTS_OF_PACKETS},
        {"duplicate", f->duplicate, FAULTS_OF_PACKETS},
        {"reorder", f->reorder, FAULTS_OF_PACKETS},
        {"mark", f->mark, FAULTS_OF_PACKETS},
        {"lose", lose, FAULTS_OF_PACKETS},
        {"reset", f->reset, FAULTS_OF_STREAMS},
        {"stall", f->stall, FAULTS_OF_STREAMS},
        {"reset_after", f->reset_after, FAULTS_OF_STREAMS},
        {"stall_after", f->stall_after, FAULTS_OF_STREAMS},
        {"chunk", f->chunk, FAULTS_OF_STREAMS},
        {"flip_header", f->flip_header, FAULTS_OF_STREAMS},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].asked && !(rows[i].of & net->kind->faults))
            return fail(err, -EOPNOTSUPP, "%s is a fault of %s", rows[i].name,
                        rows[i].of == FAULTS_OF_PACKETS ? "packets, which TCP hides: a RoCE device has it"
                                                        : "streams: an iWARP device has it");
    }
    return 0;
}

int net_set_fault(struct net *net, const struct rnic_fault *fault, struct rnic_err *err) {
    int rc = fault ? check_fault(net, fault, err) : 0;
    if (rc)
        return rc;
    net->has_faults = fault != NULL;
    if (fault)
        net->faults = *fault;
    start_faults(net);
    return 0;
}

void net_find_unplugged(struct net *net) {
    net->unplugged = true;
    net->netdev.up = false;
    start_faults(net);
}

void net_unplug(struct net *net, bool unplugged, uint64_t now) {
    net->unplugged = unplugged;
    start_faults(net);
    follow_look(net, now);
}

/* The environment speaks to devices of both kinds: each takes the faults that it has. */
static void leave_others(const struct net *net, struct rnic_fault *f) {
    if (!(net->kind->faults & FAULTS_OF_PACKETS)) {
        f->loss = f->duplicate = f->reorder = f->mark = 0;
        memset(f->lose, 0, sizeof f->lose);
    }
    if (!(net->kind->faults & FAULTS_OF_STREAMS)) {
        f->reset = f->stall = f->chunk = f->flip_header = 0;
        f->reset_after = f->stall_after = 0;
    }
}

/* What the environment asks for, where the program does not. */
static int read_faults(struct net *net, struct rnic_err *err) {
    struct rnic_fault faults;
    int rc = rnic_env_fault(&faults, err);
    if (rc > 0)
        leave_others(net, &faults);
    return rc < 0 ? rc : net_set_fault(net, rc ? &faults : NULL, err);
}

/* ---------------------------------------------------------------- open and close */

int net_open(struct net *net, const struct rnic_open_attr *attr, const struct slot *slot, struct rnic_err *err) {
    net->slot = slot;
    net->rcvbuf = attr->rcvbuf;
    int rc = net->kind->open(net, attr, err);
    return rc ? rc : read_faults(net, err);
}

void net_leave(struct net *net) {
    for (int i = 0; i < net->netdev.ngids; i++) {
        if (net->ports[i].steering)
            port_leave(&net->ports[i]);
    }
}

void net_free(struct net *net) {
    net->kind->close(net);
    follow_close(net);
    free(net->notices);
    pthread_mutex_destroy(&net->lock);
}

void net_fail(struct net *net) {
    net->kind->fail(net);
    follow_close(net);
}

void net_abandon(struct net *net) {
    net->kind->abandon(net);
    follow_close(net);
}

int net_active_mtu(const struct net *net) { return net->kind->mtu_of(net->netdev.mtu); }

/* ---------------------------------------------------------------- ports */

/* Where nothing can mark a packet, nobody is to look for marks. */
static bool controls_congestion(const struct net *net, int asked) { return asked ? asked > 0 : !net->netdev.loopback; }

static int open_ports(struct net *net, const struct rnic_open_attr *attr, struct rnic_err *err) {
    int rc = pkeys_init(net, attr, err);
    net->window_asked = attr->max_window;
    net->nic->ib.congestion = controls_congestion(net, attr->congestion);
    if (!rc && (rc = udp_rx_init(&net->rx)))
        fail(err, rc, "no memory for what comes by %s", net->netdev.name);
    if (!rc)
        rc = ports_open(net, err);
    if (rc)
        return rc;
    ports_measure(net);
    udp_tx_init(&net->tx, &net->fault, &net->nic->counters, &net->run->now);
    net->tx.ports =
        (struct udp_ports){net->ports, net->port_users, NETDEV_MAX_GIDS, net->netdev.ifindex, net->netdev.name};
    net->nic->wire = &net->tx.link;
    if (attr->no_gso)
        net->tx.max_packets = 1;
    return 0;
}

static void close_ports(struct net *net) {
    udp_tx_finish(&net->tx);
    fault_set(&net->fault, NULL);
    ports_close(net);
    udp_rx_free(&net->rx);
}

static void fail_ports(struct net *net) {
    frames_fail(net);
    ports_close(net);
}

static void abandon_ports(struct net *net) {
    for (int i = 0; i < net->netdev.ngids; i++)
        port_abandon(&net->ports[i]);
    mcast_abandon(net);
    frames_abandon(net);
}

static bool follow_ports(struct net *net, const struct netdev *fresh, uint64_t now) {
    bool readdressed = ports_follow(net, fresh, now);
    ports_measure(net);
    frames_measure(net);
    return readdressed;
}

/* The largest that fits the netdev's with all headers. */
static int mtu_of(int netdev_mtu) {
    int mtu = RNIC_MTU_4096;
    while (mtu && (int)mtu_bytes(mtu) + NET_HEADERS_MAX > netdev_mtu)
        mtu--;
    return mtu;
}

static void set_fault(struct net *net, const struct rnic_fault *fault) {
    static const struct rnic_fault all = {.loss = 1000000};
    if (net->unplugged)
        fault = &all;
    udp_tx_flush(&net->tx);
    fault_set(&net->fault, fault);
    net->nic->faulty = fault != NULL;
    frames_set_fault(net, fault);
}

const struct net_kind net_ports = {
    .open = open_ports,
    .close = close_ports,
    .fail = fail_ports,
    .abandon = abandon_ports,
    .follow = follow_ports,
    .mtu_of = mtu_of,
    .faults = FAULTS_OF_PACKETS,
    .set_fault = set_fault,
};
