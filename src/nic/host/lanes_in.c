/* SPDX-License-Identifier: Apache-2.0
 *
 * Peers on this host: what comes by the lanes.
 */
#include <string.h>

#include "host/lanes.h"
#include "qp/why.h"
#include "roce/partition.h"
#include "wire/grh.h"

#define PACKETS 64 /* of a lane, at a time */
#define DROP(host, reason) ((host)->nic->counters.value[RNIC_CNT_drop_##reason]++)

/* Of two ends that have asked at once each may send by a lane of its own: another user's process is looked at once, and
 * there is no third. */
static bool is_known(struct host *host, struct qp *qp, struct lane *l) {
    if (l->trusted || qp->known_lane)
        return l->trusted || qp->known_lane == l->number;
    bool known = lanes_still_owns(host, l, qpn_slot(qp->attr.dest_qp_num));
    qp->known_lane = known ? l->number : 0;
    return known;
}

static bool from_peer(struct host *host, struct qp *qp, const struct packet *pkt, struct lane *l) {
    if (qp->way.link == &l->link && qp->reach_in == REACH_LOCAL) /* found to be, and all its packets come by it */
        return true;
    return lanes_leads_to(host, l, qp->attr.dest_qp_num, &qp->way.dst.sin6_addr) && is_known(host, qp, l) &&
           lanes_takes(host, qp, pkt, l);
}

/* Datagrams may come from any queue pair of the lane's process, if we believe it that they do. */
static bool takes_datagram(const struct lane *l, const struct ring_packet *p, struct packet *pkt, uint8_t *grh) {
    if (!(p->kind & LANE_DATAGRAM) || !l->trusted || !lanes_is_peer(l, deth_source(pkt)))
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

/* Bytes of an ACK that stands ahead of the packet (struct link_ops, put): both are short, so all of them have been copied. */
static uint32_t ack_ahead(const struct ring_packet *p) {
    bool may =
        p->length >= ACK_BYTES + BTH_BYTES && p->length <= LINK_JOINED && !(p->kind & (LANE_REFERS | LANE_DATAGRAM));
    return may && bth_opcode(p->head) == ROCE_RC_ACK ? ACK_BYTES : 0;
}

/* It is for the queue pair that the packet behind it is for, and answers what went by a lane: by this one, or by that which this
 * end had asked for when the peer asked for this. */
static void take_ack(struct host *host, struct qp *qp, const uint8_t *bth, uint64_t now) {
    const struct roce_opcode *row = roce_opcode(ROCE_RC_ACK);
    const struct packet ack = {.bth = bth, .row = row, .psn = bth_psn(bth), .opcode = ROCE_RC_ACK};
    host->nic->counters.value[RNIC_CNT_local_received]++;
    if (!(row->mask & qp->ib.takes) || qp->reach != REACH_LOCAL) {
        COUNT(qp, drop_bad_source);
        return;
    }
    COUNT(qp, rx_packets);
    qp->counters.value[RNIC_CNT_rx_bytes] += ACK_BYTES;
    qp->engine->input(qp, &ack, now);
}

static void input(struct host *host, struct lane *l, const struct ring_packet *p, uint64_t now) {
    struct packet pkt = {0};
    uint8_t grh[GRH_BYTES];
    uint32_t ahead = ack_ahead(p), n = p->length - ahead;
    if (p->kind & RING_VOID) /* of a queue pair that is no more */
        return;
    if (host->net->unplugged) {
        DROP(host, port_down);
        return;
    }
    if (!incoming_parse(host->nic, &pkt, p->head + ahead, n, p->kind & LANE_DATAGRAM ? GRH_BYTES : 0))
        return;
    pkt.payload = p->bytes + ahead + pkt.row->header;
    bool refers = p->kind & LANE_REFERS;
    if (refers && !find_payload(l, p, &pkt)) {
        if (!ring_is_void(&l->in))
            DROP(host, malformed);
        return;
    }
    pkt.marked = p->kind & LANE_MARKED;
    struct qp *qp = bth_dqpn(pkt.bth) == QPN_GSI ? NULL : qpn_find(host, bth_dqpn(pkt.bth));
    int index = qp ? qp_pkey_index(qp, bth_pkey(pkt.bth)) : -1;
    pkt.pkey_index = (uint16_t)index;
    if (qp && qp->tagged && pkt.length <= HOST_BUFFER) /* whose headers are in the payload: nobody is to change them */
        pkt.payload = memcpy(host->buffer, pkt.payload, pkt.length);
    if (!qp)
        DROP(host, bad_qpn), why_drop(host->nic, NULL, bth_dqpn(pkt.bth), RNIC_CNT_drop_bad_qpn);
    else if (!(pkt.row->mask & qp->ib.takes))
        COUNT(qp, drop_bad_opcode);
    else if (qp->state < RNIC_QPS_RTR)
        COUNT(qp, drop_bad_state), why_drop(host->nic, qp, qp->pub.qp_num, RNIC_CNT_drop_bad_state);
    else if (index < 0)
        COUNT(qp, drop_bad_pkey), why_drop(host->nic, qp, qp->pub.qp_num, RNIC_CNT_drop_bad_pkey);
    else if (pkt.row->mask & OPC_UD ? !takes_datagram(l, p, &pkt, grh) : !from_peer(host, qp, &pkt, l))
        COUNT(qp, drop_bad_source);
    else {
        if (ahead)
            take_ack(host, qp, p->head, now);
        sched_deliver(host->run, qp, &pkt, n, now);
    }
    if (refers)
        remote_leave(l->remote);
}

static bool receive(struct host *host, struct lane *l, uint64_t now) {
    struct ring_packet p;
    int n = 0, rc = 0;
    uint64_t *count = host->nic->counters.value;
    while (n < PACKETS && l->state == LANE_UP && (rc = ring_peek(&l->in, &p)) > 0) {
        count[RNIC_CNT_rx_packets]++;
        count[RNIC_CNT_rx_bytes] += p.length;
        count[RNIC_CNT_local_received]++;
        input(host, l, &p, now);
        ring_take(&l->in);
        n++;
    }
    host->run->more |= n == PACKETS;
    l->unread = n < PACKETS || l->unread < PACKETS ? 0 : l->unread - PACKETS;
    if (n)
        lane_taken(l);
    if (rc >= 0)
        return n > 0;
    lane_hang_up(l);
    lanes_changed(host, l);
    return true;
}

static void note(void *owner) {
    struct host *host = owner;
    for (struct lane *l = host->here.lanes; l; l = l->next)
        l->unread = l->state == LANE_UP ? RING_CELLS : 0;
}

static bool has_reached(const void *owner) {
    const struct host *host = owner;
    bool all = true;
    for (const struct lane *l = host->here.lanes; l; l = l->next)
        all &= l->state != LANE_UP || !l->unread;
    return all;
}

static bool want(const void *owner) {
    const struct host *host = owner;
    for (const struct lane *l = host->here.lanes; l; l = l->next) {
        if (l->state == LANE_UP && (l->link.full || ring_has_packet(&l->in)))
            return true;
    }
    return false;
}

static bool receive_all(struct host *host, uint64_t now) {
    bool any = false;
    for (struct lane *l = host->here.lanes; l; l = l->next) {
        if (l->state != LANE_UP)
            continue;
        any |= receive(host, l, now);
        if (l->link.full && lane_unstick(l))
            sched_unpark(host->run, &l->link);
    }
    return any;
}

static void flush(void *owner) {
    struct host *host = owner;
    for (struct lane *l = host->here.lanes; l; l = l->next) {
        if (l->dirty)
            lane_flush(l);
    }
}

static bool may_sleep(void *owner) {
    struct host *host = owner;
    bool may = true;
    for (struct lane *l = host->here.lanes; l; l = l->next) {
        if (l->state == LANE_UP)
            may &= ring_may_sleep(&l->in) && !(l->link.full && ring_has_room(&l->out));
    }
    return may;
}

static void awake(void *owner) {
    struct host *host = owner;
    for (struct lane *l = host->here.lanes; l; l = l->next) {
        if (l->state == LANE_UP)
            ring_awake(&l->in);
    }
}

static bool source_receive(void *owner, uint64_t now, bool all) {
    struct host *host = owner;
    (void)all;
    if (host->local && host->run->roused)
        lanes_hear(host);
    return receive_all(owner, now);
}

const struct source lanes_source = {
    .name = "lanes",
    .receive = source_receive,
    .wants = want,
    .flush = flush,
    .may_sleep = may_sleep,
    .awake = awake,
    .note = note,
    .has_reached = has_reached,
};
