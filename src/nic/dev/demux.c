/* SPDX-License-Identifier: Apache-2.0
 *
 * A datagram in: packet by packet to its process and its queue pair, or dropped with a reason.
 */
#include <string.h>

#include "base/address.h"
#include "dev/dev.h"
#include "qp/why.h"
#include "roce/partition.h"
#include "roce/path.h"
#include "wire/bth.h"
#include "wire/icrc.h"

/* ---------------------------------------------------------------- one packet */

/* What a peer sends us, seen from its end; its source port is only known now. */
static struct way *reverse_way(struct way *from, const struct sockaddr_in6 *src) {
    if (from->src.sin6_port != src->sin6_port) {
        from->src.sin6_port = src->sin6_port;
        way_forget_seeds(from);
    }
    return from;
}

/* There is no queue pair 0 over RoCE: its number is nobody's (IBA CA17-33). */
static struct qp *find_qp(const struct dev *dev, uint32_t qpn) {
    return qpn == QPN_GSI ? dev->host.gsi : qpn_find(&dev->host, qpn);
}

/* The same where there is an alternate path: on either of the two, or where the peer may have migrated to. */
static bool from_either(struct dev *dev, struct qp *qp, const struct incoming *in, uint32_t n,
                        const struct udp_datagram *d) {
    struct way *from = path_of(qp, &d->src, in->dst);
    struct way *way = from ? reverse_way(from, &d->src) : incoming_way(&dev->net, &d->src, in->dst);
    if (incoming_id(way, in->pkt.bth, n, in->guess) < 0)
        return COUNT_USELESS(qp, drop_bad_icrc), false;
    if (!path_input(qp, from, &in->pkt))
        return COUNT_USELESS(qp, drop_bad_source), false;
    return true;
}

/* Is it from the queue pair's peer, unharmed? */
static bool from_peer(struct dev *dev, struct qp *qp, const struct incoming *in, uint32_t n,
                      const struct udp_datagram *d) {
    if (qp->ib.alt_loaded)
        return from_either(dev, qp, in, n, d);
    if (memcmp(&qp->way.dst.sin6_addr, &d->src.sin6_addr, sizeof d->src.sin6_addr)) /* IBA 9.6.1.2.3 */
        return COUNT_USELESS(qp, drop_bad_source), false;
    if (incoming_id(reverse_way(&qp->ib.from, &d->src), in->pkt.bth, n, in->guess) < 0)
        return COUNT_USELESS(qp, drop_bad_icrc), false;
    return true;
}

/* Does it come the way that it should? */
static bool by_this_way(struct dev *dev, struct qp *qp, const struct incoming *in) {
    if ((qp->reach == REACH_WIRE && qp->reach_in == REACH_WIRE) || lanes_hear_wire(&dev->host, qp, &in->pkt))
        return true;
    return COUNT_USELESS(qp, drop_bad_source), false;
}

/* IBA 9.6.1.2, 10.9.3 */
static bool same_partition(struct qp *qp, struct packet *pkt) {
    int index = qp_pkey_index(qp, bth_pkey(pkt->bth));
    pkt->pkey_index = (uint16_t)index;
    return index >= 0;
}

/* From another port than before: the peer's from now on, if it moves the queue pair on.  What the peer could not send now
 * is dropped, as a NAK would have the peer repeat what is not lost.  Notifications of congestion come from any port. */
static void hear(struct dev *dev, struct qp *qp, const struct packet *pkt, uint32_t n, uint16_t port, uint64_t now) {
    const uint64_t *executed = &qp->counters.value[RNIC_CNT_requests_executed];
    uint64_t before = *executed;
    bool notice = pkt->row->mask & OPC_CNP, expected = !notice && qp->engine->expects(qp, pkt);
    if (qp->ib.heard[0] && !expected && !notice) {
        COUNT_USELESS(qp, drop_bad_source);
        return;
    }
    sched_deliver(&dev->run, qp, pkt, n, now);
    if (!port || (*executed == before && !(expected && pkt->row->mask & OPC_RESPONSE)))
        return;
    qp->ib.heard[1] = qp->ib.heard[0];
    qp->ib.heard[0] = port;
}

/* Not inlined: what most packets are shall not save registers for it. */
static __attribute__((noinline)) bool is_ours(struct dev *dev, struct port *port, struct incoming *in,
                                              const struct udp_datagram *d, uint32_t n, bool forwarded, uint64_t now,
                                              bool *checked) {
    return mads_is_ours(&dev->mads, &(struct mad_message){port, in, d, n, now}, forwarded, checked);
}

static void input(struct dev *dev, struct port *port, const struct udp_datagram *d, const uint8_t *bth, uint32_t n,
                  uint16_t guess, bool forwarded, uint64_t now) {
    struct incoming in; /* not cleared: most packets are connected ones, and need little of it */
    in.dst = &port->addr;
    in.guess = guess;
    if (dev->net.unplugged) {
        dev->nic.counters.value[RNIC_CNT_drop_port_down]++;
        return;
    }
    if (!incoming_parse(&dev->nic, &in.pkt, bth, n, ICRC_BYTES))
        return;
    bool ud = in.pkt.row->mask & OPC_UD;
    bool checked = false;
    if (ud && bth_dqpn(bth) == QPN_GSI && !is_ours(dev, port, &in, d, n, forwarded, now, &checked))
        return;
    struct qp *qp = find_qp(dev, bth_dqpn(bth));
    if (!qp) {
        dev->nic.counters.value[RNIC_CNT_drop_bad_qpn]++;
        dev->nic.useless += !qpn_rests(&dev->host, bth_dqpn(bth), now);
        why_drop(&dev->nic, NULL, bth_dqpn(bth), RNIC_CNT_drop_bad_qpn);
        return;
    }
    if (!(in.pkt.row->mask & qp->ib.takes)) { /* C9-13 */
        COUNT_USELESS(qp, drop_bad_opcode);
        return;
    }
    if (qp->state < RNIC_QPS_RTR) {
        COUNT(qp, drop_bad_state);
        why_drop(&dev->nic, qp, qp->pub.qp_num, RNIC_CNT_drop_bad_state);
        return;
    }
    if (!same_partition(qp, &in.pkt)) {
        COUNT_USELESS(qp, drop_bad_pkey);
        why_drop(&dev->nic, qp, qp->pub.qp_num, RNIC_CNT_drop_bad_pkey);
        return;
    }
    if (ud ? !checked && !incoming_icrc(&dev->net, &in, d, n)
           : !from_peer(dev, qp, &in, n, d) || !by_this_way(dev, qp, &in))
        return;
    if (ud)
        incoming_show(&in, d, n);
    in.pkt.marked = (d->tclass & ECN_MASK) == ECN_MARKED;
    if (ud || ib_hears_port(&qp->ib, d->src.sin6_port))
        sched_deliver(&dev->run, qp, &in.pkt, n, now);
    else
        hear(dev, qp, &in.pkt, n, d->src.sin6_port, now);
}

/* ---------------------------------------------------------------- one datagram */

/* The slot that a packet is for; 0xFFFFFFFF: looked at here, when it is too short to say, or for a queue pair number that
 * is no process' own. */
static uint32_t slot_at(const struct udp_datagram *d, uint32_t at) {
    if (d->length - at < BTH_BYTES)
        return UINT32_MAX;
    uint32_t qpn = bth_dqpn(d->bytes + at);
    return qpn == QPN_SMI || qpn == QPN_GSI || qpn == QPN_MULTICAST ? UINT32_MAX : qpn_slot(qpn);
}

/* Not inlined: what is ours shall not save registers for it. */
static __attribute__((noinline)) void forward(struct dev *dev, struct port *port, const struct udp_datagram *d,
                                              uint32_t at, uint32_t end, uint32_t slot, uint64_t now) {
    struct slot_packet p = {.src = d->src,
                            .length = end - at,
                            .segment = d->segment,
                            .hops = d->hops,
                            .tclass = d->tclass,
                            .flow_label = d->flow_label};
    forward_to(&dev->host, port, slot, &p, d->bytes + at, now);
}

static void sort(struct dev *dev, struct port *port, const struct udp_datagram *d, bool forwarded, uint64_t now) {
    uint64_t *count = dev->nic.counters.value;
    uint16_t index = 0;
    dev->nic.useless += !d->length;
    if (d->length && d->bytes[0] == PORT_PROBE_OPCODE) {
        bool own = address_same(&d->src, &port->addr) && d->src.sin6_port == htons(ROCE_UDP_PORT);
        dev->nic.useless += !own;
        if (!forwarded)
            port_probe_input(port, d->bytes, d->length, &d->src, now);
        return;
    }
    for (uint32_t at = 0; at < d->length;) {
        uint32_t slot = slot_at(d, at), end = at, left = d->length - at;
        if (slot == UINT32_MAX || forwarded || qpn_is_ours(&dev->host, slot)) {
            uint32_t n = left < d->segment ? left : d->segment;
            count[RNIC_CNT_rx_packets]++;
            count[RNIC_CNT_rx_bytes] += n;
            input(dev, port, d, d->bytes + at, n, index++, forwarded, now);
            at += n;
            continue;
        }
        while (end < d->length && slot_at(d, end) == slot) /* a run for one other process */
            end += d->segment;
        end = end < d->length ? end : d->length;
        forward(dev, port, d, at, end, slot, now);
        at = end;
    }
}

void demux_datagram(struct dev *dev, struct port *port, const struct udp_datagram *d, bool forwarded, uint64_t now) {
    uint64_t before = dev->nic.useless;
    sort(dev, port, d, forwarded, now);
    if (dev->nic.useless != before && !forwarded)
        floods_note(&dev->host, port, d, (uint32_t)(dev->nic.useless - before), now);
}
