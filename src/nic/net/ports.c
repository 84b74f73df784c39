/* SPDX-License-Identifier: Apache-2.0
 *
 * The GID table and the ports behind it (IBA A17.4; man ibv_query_gid): one entry for each IP address of the netdev.
 *
 * An address keeps its index while the netdev has it.  When it goes, its socket is closed and the entry is empty; while
 * queue pairs and address handles still name the entry it stays reserved for that address, should it come back, so that
 * nothing ever leaves from another address than it was meant to.  An address that cannot be bound yet (an IPv6 one whose
 * duplicate check still runs) has its entry already, which is empty until then: all processes count it, whenever they look.
 */
#include <errno.h>
#include <string.h>

#include "link/udp/steerprog.h"
#include "net/net.h"
#include "qp/ah.h"

#define WINDOW_MAX (512u << 10) /* bytes in flight where the peer answers at once: as much as a cache holds */
#define SETTLE_LOOKS 10000      /* of 0.1 ms: a place is learnt in a few ms, unless members are stopped */
#define WINDOW_SHARE 3          /* a QP's part of a socket buffer like ours, in which packets take more than their bytes */

#define AGAIN_FIRST_NS 1000000000ull /* until an address that is taken is tried again; then twice as long each time, */
#define AGAIN_MOST_NS 60000000000ull /* up to this: each try keeps the device from its work for 25 ms an address */

static const union rnic_gid none;

static bool same(const union rnic_gid *a, const union rnic_gid *b) { return !memcmp(a, b, sizeof *a); }

static void set_gid(struct net *net, int index, union rnic_gid gid) {
    pthread_mutex_lock(&net->lock);
    net->netdev.gids[index] = gid;
    pthread_mutex_unlock(&net->lock);
}

/* It is the address's from now on, whether that can be bound yet or not. */
static void take_entry(struct net *net, int index, union rnic_gid gid) {
    pthread_mutex_lock(&net->lock);
    net->had[index] = gid;
    pthread_mutex_unlock(&net->lock);
    if (index >= net->netdev.ngids)
        net->netdev.ngids = index + 1;
}

void ports_init(struct net *net) {
    for (int i = 0; i < NETDEV_MAX_GIDS; i++) {
        net->ports[i].rx_fd = net->ports[i].tx_fd = -1;
        net->watched_rx[i].fd = net->watched_tx[i].fd = -1;
        net->port_list[i] = &net->ports[i];
    }
}

static int open_port(struct net *net, int index, union rnic_gid gid, uint64_t now, struct rnic_err *err) {
    struct sockaddr_in6 addr = {.sin6_family = AF_INET6};
    struct port *port = &net->ports[index];
    take_entry(net, index, gid);
    memcpy(&addr.sin6_addr, gid.raw, sizeof addr.sin6_addr);
    int rc = port_open(port, &addr, net->netdev.ifindex, net->slot, net->rcvbuf, now, err);
    if (rc) {
        port->addr = (struct sockaddr_in6){0};
        return rc;
    }
    for (int i = 0; i < net->nmore; i++)
        port_add_slot(port, net->more_slots[i]);
    if (net->nic->ib.congestion)
        port_take_marks(port);
    if (net->shows_headers)
        port_show_headers(port, true);
    struct rnic_err why;
    net->nic->counters.value[RNIC_CNT_unfit_ip_ids] += port_check_ids(port, &why) == -EPROTO;
    set_gid(net, index, gid);
    net->watched_rx[index].fd = net->watched_tx[index].fd = -1; /* an earlier one may have had the same number */
    return 0;
}

/* Entries that are empty stay so (netdev_arrange).  A device opens, as a kernel's, although no address can be bound yet:
 * the notice of one that can be opens its port. */
int ports_open(struct net *net, struct rnic_err *err) {
    const struct netdev read = net->netdev;
    int rc = 0;
    net->netdev.ngids = 0;
    memset(net->netdev.gids, 0, sizeof net->netdev.gids);
    for (int i = 0; i < read.ngids && (!rc || rc == -EADDRNOTAVAIL); i++) {
        if (!same(&read.gids[i], &none))
            rc = open_port(net, i, read.gids[i], run_clock(), err);
    }
    return rc == -EADDRNOTAVAIL ? 0 : rc;
}

static bool settled(struct net *net) {
    bool all = true;
    run_lock(net->run);
    for (int i = 0; i < net->netdev.ngids; i++)
        all &= !net->ports[i].steering || port_settled(&net->ports[i]);
    run_unlock(net->run);
    return all;
}

/* By lo the processes of an address tell each other which packets are whose.  A fork meets no socket that asks for it:
 * it waits for the lock. */
static bool can_settle(struct net *net) {
    struct netdev lo;
    run_lock(net->run);
    bool up = netdev_read(STEERPROG_LOOPBACK, &lo) == 0 && lo.up;
    run_unlock(net->run);
    return up;
}

/* Until then packets fall to other processes, and come by a queue of ten: too few for a message of a service that
 * repeats nothing. */
void ports_settle(struct net *net) {
    const struct timespec look = {.tv_nsec = 100000};
    int looks = can_settle(net) ? SETTLE_LOOKS : 0;
    for (int i = 0; i < looks && !settled(net); i++)
        nanosleep(&look, NULL);
}

int ports_add_slot(struct net *net, uint32_t slot) {
    int rc = 0;
    net->more_slots[net->nmore++] = slot;
    for (int i = 0; !rc && i < net->netdev.ngids; i++)
        rc = net->ports[i].steering ? port_add_slot(&net->ports[i], slot) : 0;
    return rc;
}

void ports_show_headers(struct net *net, bool show) {
    net->shows_headers = show;
    for (int i = 0; i < net->netdev.ngids; i++)
        port_show_headers(&net->ports[i], show);
}

struct port *ports_find(struct net *net, const struct in6_addr *addr) {
    for (int i = 0; i < net->netdev.ngids; i++) {
        if (IN6_ARE_ADDR_EQUAL(&net->ports[i].addr.sin6_addr, addr))
            return &net->ports[i];
    }
    return NULL;
}

uint64_t ports_remaps(const struct net *net) {
    uint64_t remaps = 0;
    for (int i = 0; i < net->netdev.ngids; i++)
        remaps += net->ports[i].steering ? net->ports[i].remaps : 0;
    return remaps;
}

void ports_measure(struct net *net) {
    uint32_t most = UINT32_MAX;
    for (int i = 0; i < net->netdev.ngids; i++) {
        uint32_t share = net->ports[i].rcvbuf / WINDOW_SHARE;
        if (net->ports[i].steering)
            most = share < most ? share : most;
    }
    net->nic->slow_window = net->window_asked ? net->window_asked : most;
    net->nic->max_window = net->nic->slow_window < WINDOW_MAX || net->window_asked ? net->nic->slow_window : WINDOW_MAX;
    net->nic->mtu = net_active_mtu(net) ? mtu_bytes(net_active_mtu(net)) : 0;
}

/* ---------------------------------------------------------------- addresses come and go */

static void vacate(struct net *net, int index) {
    struct port *port = &net->ports[index];
    udp_tx_flush(&net->tx);
    if (udp_tx_forget(&net->tx, port))
        sched_link_free(net->run, &net->tx.link, port->sndbuf / 2);
    fault_forget(&net->fault, udp_leads_by, port);
    port_close(port);
    port->addr = (struct sockaddr_in6){0};
    set_gid(net, index, none);
    net->watched_rx[index].fd = net->watched_tx[index].fd = -1;
}

void ports_close(struct net *net) {
    for (int i = 0; i < net->netdev.ngids; i++) {
        if (net->ports[i].steering)
            vacate(net, i);
    }
}

static bool is_in(const union rnic_gid *list, int n, const union rnic_gid *gid) {
    for (int i = 0; i < n; i++) {
        if (same(&list[i], gid))
            return true;
    }
    return false;
}

/* Where an address of a netdev goes: where it was, else into an entry that nobody names and no other address waits for. */
static int place_for(const struct net *net, const struct netdev *fresh, const union rnic_gid *gid) {
    for (int i = 0; i < net->netdev.ngids; i++) {
        if (same(&net->had[i], gid))
            return i;
    }
    for (int i = 0; i < net->netdev.ngids; i++) {
        if (!net->ports[i].steering && !net->port_users[i] && !is_in(fresh->gids, fresh->ngids, &net->had[i]))
            return i;
    }
    return net->netdev.ngids < NETDEV_MAX_GIDS ? net->netdev.ngids : -1;
}

/* Of those that are taken each is tried when it comes, and then by time: another user can take any, and make notices. */
static void note_tried(struct net *net, bool again, uint64_t now) {
    if (!again && net->taken_again)
        return;
    net->taken_wait = !net->ntaken ? 0 : net->taken_wait ? 2 * net->taken_wait : AGAIN_FIRST_NS;
    net->taken_wait = net->taken_wait < AGAIN_MOST_NS ? net->taken_wait : AGAIN_MOST_NS;
    net->taken_again = net->ntaken ? now + net->taken_wait : 0;
}

/* All of them, or those that have gone. */
static void forget_taken(struct net *net, const struct netdev *fresh, bool all) {
    int kept = 0;
    for (int i = 0; i < net->ntaken; i++) {
        if (!all && is_in(fresh->gids, fresh->ngids, &net->taken[i]))
            net->taken[kept++] = net->taken[i];
    }
    net->ntaken = kept;
}

uint64_t ports_again(const struct net *net) { return net->taken_again ? net->taken_again : NEVER; }

void ports_put_off(struct net *net, uint64_t now) {
    if (net->taken_again && now >= net->taken_again)
        net->taken_again = now + AGAIN_FIRST_NS;
}

/* True: it is there, and has a port now.  Else it cannot be bound yet, and the kernel tells when; or it is taken, or something
 * else was missing. */
static bool welcome(struct net *net, const struct netdev *fresh, const union rnic_gid *gid, uint64_t now) {
    bool known = is_in(net->netdev.gids, net->netdev.ngids, gid) || is_in(net->taken, net->ntaken, gid);
    int at = known ? -1 : place_for(net, fresh, gid), rc = at < 0 ? -ENOSPC : open_port(net, at, *gid, now, NULL);
    if (rc && rc != -EADDRNOTAVAIL && rc != -ENOSPC)
        net->taken[net->ntaken++] = *gid;
    return !rc;
}

bool ports_follow(struct net *net, const struct netdev *fresh, uint64_t now) {
    bool changed = false, again = now >= net->taken_again;
    for (int i = 0; i < net->netdev.ngids; i++) {
        if (!net->ports[i].steering || is_in(fresh->gids, fresh->ngids, &net->netdev.gids[i]))
            continue;
        vacate(net, i);
        changed = true;
    }
    ah_reap(net->nic); /* they may be the last that name an entry */
    forget_taken(net, fresh, again);
    for (int i = 0; i < fresh->ngids; i++)
        changed |= welcome(net, fresh, &fresh->gids[i], now);
    note_tried(net, again, now);
    return changed;
}
