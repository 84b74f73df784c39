/* SPDX-License-Identifier: Apache-2.0
 *
 * Multicast (IBA 10.5): the groups that a device's queue pairs are attached to.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/address.h"
#include "base/fail.h"
#include "link/group/group.h"
#include "net/net.h"
#include "roce/partition.h"
#include "wire/bth.h"

struct group {
    struct group *next;
    struct port in; /* no port of the device: it only receives */
    struct qp **member;
    int members;
};

/* ---------------------------------------------------------------- attach, detach */

static struct group **group_at(struct net *net, const union rnic_gid *gid) {
    struct group **at = &net->groups;
    while (*at && memcmp(&(*at)->in.addr.sin6_addr, gid->raw, sizeof gid->raw))
        at = &(*at)->next;
    return at;
}

static int member_at(const struct group *g, const struct qp *qp) {
    for (int i = 0; i < g->members; i++) {
        if (g->member[i] == qp)
            return i;
    }
    return -1;
}

static struct group *open_group(struct net *net, const union rnic_gid *gid, struct rnic_err *err) {
    struct group *g = calloc(1, sizeof *g);
    if (!g) {
        fail(err, -ENOMEM, "no memory");
        return NULL;
    }
    char text[ADDRESS_TEXT];
    g->in = (struct port){.addr = {.sin6_family = AF_INET6}, .tx_fd = -1};
    memcpy(&g->in.addr.sin6_addr, gid->raw, sizeof gid->raw);
    g->in.rx_fd = group_open(&g->in.addr, net->netdev.ifindex);
    if (g->in.rx_fd >= 0)
        return g;
    fail(err, g->in.rx_fd, "no socket for the group %s on %s: %s", address_text(&g->in.addr, text), net->netdev.name,
         strerror(-g->in.rx_fd));
    errno = -g->in.rx_fd;
    free(g);
    return NULL;
}

static int add_member(struct group *g, struct qp *qp) {
    struct qp **member = realloc(g->member, (size_t)(g->members + 1) * sizeof *member);
    if (!member)
        return -ENOMEM;
    g->member = member;
    g->member[g->members++] = qp;
    qp->groups++;
    return 0;
}

static void remove_group(struct group **at) {
    struct group *g = *at;
    *at = g->next;
    close(g->in.rx_fd);
    free(g->member);
    free(g);
}

/* The group goes with its last one. */
static bool remove_member(struct group **at, struct qp *qp) {
    struct group *g = *at;
    int i = member_at(g, qp);
    if (i < 0)
        return false;
    g->member[i] = g->member[--g->members];
    qp->groups--;
    if (!g->members)
        remove_group(at);
    return true;
}

int mcast_attach(struct net *net, struct qp *qp, const union rnic_gid *gid, struct rnic_err *err) {
    struct group **at = group_at(net, gid);
    bool fresh = !*at;
    if (!fresh && member_at(*at, qp) >= 0)
        return 0; /* once is enough */
    if (fresh) {
        *at = open_group(net, gid, err);
        if (!*at)
            return -errno;
        engine_watch(net->run, (*at)->in.rx_fd);
    }
    int rc = add_member(*at, qp);
    if (rc && fresh)
        remove_group(at);
    return rc ? fail(err, rc, "no memory") : 0;
}

int mcast_detach(struct net *net, struct qp *qp, const union rnic_gid *gid, struct rnic_err *err) {
    struct group **at = group_at(net, gid);
    return *at && remove_member(at, qp) ? 0 : fail(err, -EINVAL, "the queue pair is not attached to the group");
}

void mcast_leave(struct net *net, struct qp *qp) {
    for (struct group **at = &net->groups; qp->groups && *at;) {
        struct group *g = *at;
        remove_member(at, qp);
        if (*at == g) /* it has others */
            at = &g->next;
    }
}

void mcast_abandon(struct net *net) {
    for (struct group *g = net->groups; g; g = g->next)
        close(g->in.rx_fd);
}

/* ---------------------------------------------------------------- receive */

/* Each member gets its own copy, but the sender none (IBA 10.5.2). */
static void deliver(struct net *net, const struct group *g, struct packet *pkt, const struct udp_datagram *d,
                    uint64_t now) {
    uint32_t sender = ports_find(net, &d->src.sin6_addr) ? deth_source(pkt) : 0;
    for (int i = 0; i < g->members; i++) {
        struct qp *qp = g->member[i];
        int index = qp_pkey_index(qp, bth_pkey(pkt->bth));
        pkt->pkey_index = (uint16_t)index;
        if (qp->pub.qp_num == sender)
            continue;
        if (index >= 0)
            sched_deliver(net->run, qp, pkt, d->length, now);
        else
            COUNT(qp, drop_bad_pkey);
    }
}

static void input(struct net *net, const struct group *g, const struct udp_datagram *d, uint64_t now) {
    struct incoming in;
    net->nic->counters.value[RNIC_CNT_rx_packets]++;
    net->nic->counters.value[RNIC_CNT_rx_bytes] += d->length;
    if (!incoming_check(net, &in, &g->in.addr, d))
        return;
    if (bth_dqpn(in.pkt.bth) == QPN_MULTICAST)
        deliver(net, g, &in.pkt, d, now);
    else
        net->nic->counters.value[RNIC_CNT_drop_bad_qpn]++;
}

static bool receive(void *owner, uint64_t now) {
    struct net *net = owner;
    bool any = false;
    for (const struct group *g = net->groups; g; g = g->next) {
        int n = udp_receive(&net->rx, &g->in);
        for (int i = 0; i < n; i++)
            input(net, g, &net->rx.datagram[i], now);
        any |= n > 0;
    }
    return any;
}

const struct source mcast_source = {.name = "mcast", .receive_rare = receive};
