/* SPDX-License-Identifier: Apache-2.0
 *
 * Peers on this host: which queue pairs go by shared memory.
 *
 * A connected queue pair's requests take one way for as long as it is connected.  It is decided when it first has
 * something to send, or when the first packet of its peer comes: by the lane if there is one, or whoever has the peer's
 * slot opens one and says that the peer's address is its own; else by the wire.  What it answers goes the way that the
 * peer's requests come.  So two ends that decide differently, since one asked when the other could not answer, or has an
 * alternate path, understand each other.  Datagrams go by the lane that is there, each for itself.
 */
#include <time.h>

#include "host/lanes.h"
#include "roce/direct.h"

#define PREPARE_LOOKS 200 /* of 50 us */

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
static bool part(struct host *host, struct qp *qp, struct lane *l) {
    struct way to;
    if (!l && link_resolve(host->nic->wire, &qp->attr.ah_attr, qp->attr.dest_qp_num, &to, NULL, NULL))
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
static bool hear(struct host *host, struct qp *qp, struct lane *l) {
    enum reach reach = l ? REACH_LOCAL : REACH_WIRE;
    if (qp->reach_in == reach)
        return true;
    if (qp->reach_in != REACH_OPEN && qp->engine->has_begun(qp))
        return false;
    join(qp);
    if (qp->reach != reach && !part(host, qp, l))
        return false;
    qp->reach_in = reach;
    qp->engine->set_mtu_in(qp, l ? LANE_MTU : mtu_bytes(qp->attr.path_mtu));
    return true;
}

/* Which way requests go is decided at the latest when the peer's come. */
bool lanes_takes(struct host *host, struct qp *qp, const struct packet *pkt, struct lane *l) {
    enum reach reach = l ? REACH_LOCAL : REACH_WIRE;
    if (pkt->row->mask & OPC_CNP) /* which is for either */
        return qp->reach == reach || qp->reach_in == reach;
    if (!(pkt->row->mask & OPC_REQUEST))
        return qp->reach == reach;
    if (qp->reach == REACH_OPEN && l && !qp->ib.alt_loaded)
        go_local(qp, l);
    else if (qp->reach == REACH_OPEN)
        qp->reach = REACH_WIRE;
    return hear(host, qp, l);
}

bool lanes_hear_wire(struct host *host, struct qp *qp, const struct packet *pkt) {
    return lanes_takes(host, qp, pkt, NULL);
}

void lanes_leave(struct host *host, struct qp *qp) {
    join(qp);
    if (qp->reach_in == REACH_LOCAL)
        qp->engine->set_mtu_in(qp, mtu_bytes(qp->attr.path_mtu));
    if (qp->reach == REACH_LOCAL) {
        way_release(&qp->way);
        qp->way.link = host->nic->wire;
        qp->engine->set_mtu(qp, mtu_bytes(qp->attr.path_mtu));
    }
    qp->reach = qp->reach_in = REACH_WIRE;
    qp->remote = NULL;
    qp->known_lane = 0;
    atomic_store(&qp->at_once, 0);
}

/* The lane to the queue pair's peer; *wait: it is not known yet whether there is one. */
static struct lane *find(struct host *host, struct qp *qp, uint64_t now, bool *wait) {
    uint32_t slot = qpn_slot(qp->attr.dest_qp_num);
    struct lane *l = host->here.to[slot];
    bool up = l && l->state == LANE_UP;
    if (up && !lanes_leads_to(host, l, qp->attr.dest_qp_num, &qp->way.dst.sin6_addr))
        return NULL;
    if (up && lanes_still_owns(host, l, slot))
        return l;
    if (!host->here.to[slot])
        l = lanes_ask(host, slot, now);
    *wait = l && l->state != LANE_UP && l->state != LANE_DOWN;
    return NULL;
}

/* For a datagram, which does not wait. */
struct link *lanes_link_to(void *arg, uint32_t qpn, const struct in6_addr *to) {
    struct host *host = arg;
    uint32_t slot = qpn_slot(qpn);
    struct lane *l = host->here.to[slot] ? host->here.to[slot] : lanes_ask(host, slot, host->run->now);
    return l && l->state == LANE_UP && !l->link.full && l->trusted && lanes_is_peer(l, qpn) && lane_is_to(l, to)
               ? &l->link
               : NULL;
}

static bool has_work(struct qp *qp) {
    return (qp->state == RNIC_QPS_RTS || qp->state == RNIC_QPS_SQD) && !wq_empty(&qp->sq);
}

/* Whoever is there answers at once; who does not is asked for longer while nobody waits for it. */
void lanes_prepare(struct host *host, struct qp *qp) {
    const struct timespec look = {.tv_nsec = 50000};
    bool wait = true;
    for (int i = 0; i < PREPARE_LOOKS && wait; i++) {
        if (i)
            nanosleep(&look, NULL);
        run_lock(host->run);
        wait = false;
        if (qp->reach == REACH_OPEN)
            find(host, qp, run_clock(), &wait);
        run_unlock(host->run);
    }
}

bool lanes_decide(void *decider, struct qp *qp, uint64_t now) {
    struct host *host = decider;
    bool wait = false;
    if (!has_work(qp)) /* what is posted in this moment is not to be sent before it is decided */
        return qp->state != RNIC_QPS_RTS;
    struct lane *l = qp->ib.alt_loaded ? NULL : find(host, qp, now, &wait);
    if (wait)
        return false;
    if (l)
        go_local(qp, l);
    else
        qp->reach = REACH_WIRE;
    return true;
}
