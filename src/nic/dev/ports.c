/* SPDX-License-Identifier: Apache-2.0
 *
 * The GID table and the ports behind it (IBA A17.4; man ibv_query_gid): one entry for each IP address of the netdev.
 *
 * An address keeps its index while the netdev has it.  When it goes, its socket is closed and the entry is empty; while
 * queue pairs and address handles still name the entry it stays reserved for that address, should it come back, so that
 * nothing ever leaves from another address than it was meant to.
 */
#include <errno.h>
#include <string.h>

#include "dev/dev.h"
#include "link/udp/steerprog.h"
#include "qp/ah.h"

#define WINDOW_MAX (512u << 10) /* bytes in flight where the peer answers at once: as much as a cache holds */
#define SETTLE_LOOKS 10000      /* of 0.1 ms: a place is learnt in a few ms, unless members are stopped */
#define WINDOW_SHARE 3          /* a QP's part of a socket buffer like ours, in which packets take more than their bytes */

static const union rnic_gid none;

static bool same(const union rnic_gid *a, const union rnic_gid *b) { return !memcmp(a, b, sizeof *a); }

static void set_gid(struct dev *dev, int index, union rnic_gid gid) {
    pthread_mutex_lock(&dev->net_lock);
    dev->net.gids[index] = gid;
    pthread_mutex_unlock(&dev->net_lock);
}

static int open_port(struct dev *dev, int index, union rnic_gid gid, uint64_t now, struct rnic_err *err) {
    struct sockaddr_in6 addr = {.sin6_family = AF_INET6};
    struct port *port = &dev->ports[index];
    memcpy(&addr.sin6_addr, gid.raw, sizeof addr.sin6_addr);
    int rc = port_open(port, &addr, dev->net.ifindex, &dev->slots[0], dev->rcvbuf, now, err);
    if (rc) {
        port->addr = (struct sockaddr_in6){0};
        return rc;
    }
    for (int i = 1; i < dev->nslots; i++)
        port_add_slot(port, dev->slots[i].number);
    if (dev->nic.ib.congestion)
        port_take_marks(port);
    if (dev->objects.datagram_qps)
        port_show_headers(port, true);
    struct rnic_err why;
    dev->nic.counters.value[RNIC_CNT_unfit_ip_ids] += port_check_ids(port, &why) == -EPROTO;
    set_gid(dev, index, gid);
    dev->had[index] = gid;
    dev->port_list[index] = port;
    dev->watched_rx[index].fd = dev->watched_tx[index].fd = -1; /* an earlier one may have had the same number */
    if (index >= dev->net.ngids)
        dev->net.ngids = index + 1;
    return 0;
}

/* An address that cannot be bound yet (an IPv6 one whose duplicate check still runs) is left out of the GID table. */
int ports_open(struct dev *dev, struct rnic_err *err) {
    int n = dev->net.ngids, rc = 0;
    dev->net.ngids = 0;
    for (int i = 0; i < n && (!rc || rc == -EADDRNOTAVAIL); i++)
        rc = open_port(dev, dev->net.ngids, dev->net.gids[i], run_clock(), err);
    for (int i = dev->net.ngids; i < n; i++)
        dev->net.gids[i] = none;
    return rc == -EADDRNOTAVAIL && dev->net.ngids ? 0 : rc;
}

static bool settled(struct dev *dev) {
    bool all = true;
    dev_lock(dev);
    for (int i = 0; i < dev->net.ngids; i++)
        all &= !dev->ports[i].steering || port_settled(&dev->ports[i]);
    dev_unlock(dev);
    return all;
}

/* By lo the processes of an address tell each other which packets are whose.  A fork meets no socket that asks for it:
 * it waits for the lock. */
static bool can_settle(struct dev *dev) {
    struct netdev lo;
    dev_lock(dev);
    bool up = netdev_read(STEERPROG_LOOPBACK, &lo) == 0 && lo.up;
    dev_unlock(dev);
    return up;
}

/* Until then packets fall to other processes, and come by a queue of ten: too few for a message of a service that
 * repeats nothing. */
void ports_settle(struct dev *dev) {
    const struct timespec look = {.tv_nsec = 100000};
    int looks = can_settle(dev) ? SETTLE_LOOKS : 0;
    for (int i = 0; i < looks && !settled(dev); i++)
        nanosleep(&look, NULL);
}

uint64_t ports_remaps(const struct dev *dev) {
    uint64_t remaps = 0;
    for (int i = 0; i < dev->net.ngids; i++)
        remaps += dev->ports[i].steering ? dev->ports[i].remaps : 0;
    return remaps;
}

int dev_mtu_of(int netdev_mtu) {
    int mtu = RNIC_MTU_4096;
    while (mtu && (int)mtu_bytes(mtu) + DEV_HEADERS_MAX > netdev_mtu)
        mtu--;
    return mtu;
}

int dev_active_mtu(const struct dev *dev) { return dev_mtu_of(dev->net.mtu); }

void ports_measure(struct dev *dev) {
    uint32_t most = UINT32_MAX;
    for (int i = 0; i < dev->net.ngids; i++) {
        uint32_t share = dev->ports[i].rcvbuf / WINDOW_SHARE;
        if (dev->ports[i].steering)
            most = share < most ? share : most;
    }
    dev->nic.slow_window = dev->window_asked ? dev->window_asked : most;
    dev->nic.max_window = dev->nic.slow_window < WINDOW_MAX || dev->window_asked ? dev->nic.slow_window : WINDOW_MAX;
    dev->nic.mtu = dev_active_mtu(dev) ? mtu_bytes(dev_active_mtu(dev)) : 0;
}

/* ---------------------------------------------------------------- addresses come and go */

static void vacate(struct dev *dev, int index) {
    struct port *port = &dev->ports[index];
    udp_tx_flush(&dev->tx);
    if (udp_tx_forget(&dev->tx, port))
        sched_link_free(&dev->run, &dev->tx.link, port->sndbuf / 2);
    fault_forget(&dev->fault, udp_leads_by, port);
    port_close(port);
    port->addr = (struct sockaddr_in6){0};
    set_gid(dev, index, none);
    dev->watched_rx[index].fd = dev->watched_tx[index].fd = -1;
}

void ports_say_goodbye(struct dev *dev) {
    for (int i = 0; i < dev->net.ngids; i++) {
        if (dev->ports[i].steering)
            port_leave(&dev->ports[i]);
    }
}

void ports_close(struct dev *dev) {
    for (int i = 0; i < dev->net.ngids; i++) {
        if (dev->ports[i].steering)
            vacate(dev, i);
    }
}

static bool is_in(const union rnic_gid *list, int n, const union rnic_gid *gid) {
    for (int i = 0; i < n; i++) {
        if (same(&list[i], gid))
            return true;
    }
    return false;
}

/* Where an address goes: where it was, else into an entry that nobody names. */
static int place_for(const struct dev *dev, const union rnic_gid *gid) {
    for (int i = 0; i < dev->net.ngids; i++) {
        if (same(&dev->had[i], gid))
            return i;
    }
    for (int i = 0; i < dev->net.ngids; i++) {
        if (!dev->ports[i].steering && !dev->port_users[i])
            return i;
    }
    return dev->net.ngids < NETDEV_MAX_GIDS ? dev->net.ngids : -1;
}

bool ports_follow(struct dev *dev, const struct netdev *fresh, uint64_t now) {
    bool changed = false;
    for (int i = 0; i < dev->net.ngids; i++) {
        if (!dev->ports[i].steering || is_in(fresh->gids, fresh->ngids, &dev->net.gids[i]))
            continue;
        vacate(dev, i);
        changed = true;
    }
    ah_reap(&dev->nic); /* they may be the last that name an entry */
    for (int i = 0; i < fresh->ngids; i++) {
        int at = is_in(dev->net.gids, dev->net.ngids, &fresh->gids[i]) ? -1 : place_for(dev, &fresh->gids[i]);
        if (at >= 0 &&
            !open_port(dev, at, fresh->gids[i], now, NULL)) /* else not to be bound yet: the kernel tells when */
            changed = true;
    }
    return changed;
}
