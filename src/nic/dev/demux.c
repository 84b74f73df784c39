/* SPDX-License-Identifier: Apache-2.0
 *
 * A datagram in: packet by packet to its process and its queue pair, or dropped with a reason.
 */
#include <errno.h>
#include <string.h>

#include "base/address.h"
#include "dev/dev.h"
#include "qp/path.h"
#include "wire/bth.h"
#include "wire/grh.h"
#include "wire/icrc.h"
#include "wire/mad.h"

#define DROP(dev, reason) ((dev)->nic.counters.value[RNIC_CNT_drop_##reason]++, (dev)->nic.useless++)
#define DEFAULT_HOPS 64 /* told of a packet whose IP header nobody saw */
#define STRANGERS 3 /* packets in a row with identifications that rnic does not send make the source a counting one */
#define ID_STRIDE 1024 /* so does one that follows the last: others of that host count too, and a pause jumps */

/* ---------------------------------------------------------------- ICRC */

/* Is this an identification that the source could have sent? An rnic peer's is the place in its batch; a kernel's
 * counts, and jumps after a pause, so that any value is possible (docs/rooms/links.md, "The ICRC without a header"). */
static bool plausible_id(struct ip_id_state *id, uint16_t value) {
    if (value < UDP_BATCH_PACKETS) {
        id->strangers = 0;
    } else if (!id->counting) {
        bool follows = (uint16_t)(value - id->last) < ID_STRIDE;
        if (id->known && !follows && ++id->strangers < STRANGERS)
            return false;
        id->counting = true;
    }
    id->last = value;
    return id->known = true;
}

/* The identification that the packet was sent with, 0 with IPv6; -1: its ICRC is wrong.  The way's addresses and ports
 * must be those of the datagram: from is the peer's port, which may change. */
static int icrc_id(struct way *from, const uint8_t *bth, uint32_t n, uint16_t guess) {
    uint32_t body = n - ICRC_BYTES, wire = get_le32(bth + body);
    bool ipv4 = IN6_IS_ADDR_V4MAPPED(&from->src.sin6_addr);
    uint32_t state = way_seed(from, n) ^ (ipv4 ? icrc_id_delta(guess) : 0);
    state = icrc_bth(state, bth);
    state = crc32_update(state, bth + BTH_BYTES, body - BTH_BYTES);
    uint32_t diff = wire ^ ~state;
    if (!ipv4)
        return diff == 0 ? 0 : -1;
    int id = diff == 0 ? 0 : icrc_recover_id(diff, body);
    return id >= 0 && plausible_id(&from->id, (uint16_t)(id ^ guess)) ? id ^ guess : -1;
}

/* ---------------------------------------------------------------- one packet */

/* Whether a header can be (IBA 9.6.1.1). FECN and BECN mean nothing over RoCEv2 (CA17-29). */
bool demux_parse(struct dev *dev, struct packet *pkt, const uint8_t *bth, uint32_t n, uint32_t trailer) {
    if (n < BTH_BYTES + trailer)
        return DROP(dev, short), false;
    pkt->row = roce_opcode(bth_opcode(bth));
    if (!pkt->row)
        return DROP(dev, bad_opcode), false;
    if (bth_tver(bth))
        return DROP(dev, bad_version), false;
    uint32_t overhead = pkt->row->header + bth_pad(bth) + trailer;
    if (n < overhead)
        return DROP(dev, short), false;
    pkt->bth = bth;
    pkt->payload = bth + pkt->row->header;
    pkt->length = n - overhead;
    pkt->psn = bth_psn(bth);
    pkt->opcode = bth_opcode(bth);
    pkt->ackreq = bth_ackreq(bth);
    pkt->solicited = bth_se(bth);
    return true;
}

/* What a peer sends us, seen from its end; its source port is only known now. */
static struct way *reverse_way(struct way *from, const struct sockaddr_in6 *src) {
    if (from->src.sin6_port != src->sin6_port) {
        from->src.sin6_port = src->sin6_port;
        memset(from->seed_n, 0, sizeof from->seed_n);
    }
    return from;
}

/* A datagram's way: anybody's, so that only the last few are known. */
static struct way *source_way(struct dev *dev, const struct sockaddr_in6 *src, const struct sockaddr_in6 *dst) {
    uint32_t key = get_be32(src->sin6_addr.s6_addr + 12) ^ src->sin6_port ^ dst->sin6_addr.s6_addr[15];
    struct way *way = &dev->sources[(key * 0x9E3779B1u >> 16) % DEV_SOURCES];
    if (way->src.sin6_port == src->sin6_port && address_same(&way->src, src) && address_same(&way->dst, dst))
        return way;
    *way = (struct way){.src = *src, .dst = *dst};
    way->dst.sin6_port = htons(ROCE_UDP_PORT);
    return way;
}

/* A request of the CM says from where to where it was sent: was that what its ICRC was computed for? */
static bool is_translated(const struct incoming *in, const struct udp_datagram *d, uint32_t n) {
    const struct packet *pkt = &in->pkt;
    if (bth_dqpn(pkt->bth) != QPN_GSI || pkt->length != MAD_BYTES || get_be16(pkt->payload + MAD_ATTRIBUTE) != CM_REQ)
        return false;
    struct way sent = {.src = d->src, .dst = *in->dst};
    memcpy(&sent.src.sin6_addr, pkt->payload + MAD_REQ_LOCAL_GID, sizeof sent.src.sin6_addr);
    memcpy(&sent.dst.sin6_addr, pkt->payload + MAD_REQ_REMOTE_GID, sizeof sent.dst.sin6_addr);
    sent.dst.sin6_port = htons(ROCE_UDP_PORT);
    if (icrc_id(&sent, pkt->bth, n, in->guess) >= 0)
        return true;
    sent.src.sin6_port = htons(ROCE_UDP_PORT); /* its port was changed, too */
    memset(sent.seed_n, 0, sizeof sent.seed_n);
    return icrc_id(&sent, pkt->bth, n, in->guess) >= 0;
}

/* What fits nothing is dropped in silence (IBA CA17-24). */
bool demux_icrc(struct dev *dev, struct incoming *in, const struct udp_datagram *d, uint32_t n) {
    int id = icrc_id(source_way(dev, &d->src, in->dst), in->pkt.bth, n, in->guess);
    if (id < 0 && is_translated(in, d, n))
        return DROP(dev, nat), false;
    if (id < 0)
        return DROP(dev, bad_icrc), false;
    in->id = (uint16_t)id;
    return true;
}

static void show_header(struct incoming *in, const struct udp_datagram *d, uint32_t n) {
    grh_build(in->grh, &d->src, in->dst, d->tclass, d->hops ? d->hops : DEFAULT_HOPS, d->flow_label, in->id, n);
    in->pkt.grh = in->grh;
    in->pkt.sl = d->tclass >> 5;
}

bool demux_check(struct dev *dev, struct incoming *in, const struct sockaddr_in6 *dst, const struct udp_datagram *d) {
    *in = (struct incoming){.dst = dst};
    if (!demux_parse(dev, &in->pkt, d->bytes, d->length, ICRC_BYTES))
        return false;
    if (!(in->pkt.row->mask & OPC_UD))
        return DROP(dev, bad_opcode), false;
    if (!demux_icrc(dev, in, d, d->length))
        return false;
    show_header(in, d, d->length);
    return true;
}

void demux_deliver(struct dev *dev, struct qp *qp, const struct packet *pkt, uint32_t n, uint64_t now) {
    if (qp->state < RNIC_QPS_RTR) {
        COUNT(qp, drop_bad_state);
        return;
    }
    qp->counters.value[RNIC_CNT_rx_packets]++;
    qp->counters.value[RNIC_CNT_rx_bytes] += n;
    qp->engine->input(qp, pkt, now);
    sched_input(&dev->run, qp, now);
}

/* There is no queue pair 0 over RoCE: its number is nobody's (IBA CA17-33). */
static struct qp *find_qp(const struct dev *dev, uint32_t qpn) {
    return qpn == QPN_GSI ? dev->gsi : qpn_find(dev, qpn);
}

/* The same where there is an alternate path: on either of the two, or where the peer may have migrated to. */
static bool from_either(struct dev *dev, struct qp *qp, const struct incoming *in, uint32_t n,
                        const struct udp_datagram *d) {
    struct way *from = path_of(qp, &d->src, in->dst);
    struct way *way = from ? reverse_way(from, &d->src) : source_way(dev, &d->src, in->dst);
    if (icrc_id(way, in->pkt.bth, n, in->guess) < 0)
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
    if (icrc_id(reverse_way(&qp->ib.from, &d->src), in->pkt.bth, n, in->guess) < 0)
        return COUNT_USELESS(qp, drop_bad_icrc), false;
    return true;
}

/* Does it come the way that it should? */
static bool by_this_way(struct dev *dev, struct qp *qp, const struct incoming *in) {
    if ((qp->reach == REACH_WIRE && qp->reach_in == REACH_WIRE) || lanes_hear_wire(dev, qp, &in->pkt))
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
    demux_deliver(dev, qp, pkt, n, now);
    if (!port || (*executed == before && !(expected && pkt->row->mask & OPC_RESPONSE)))
        return;
    qp->ib.heard[1] = qp->ib.heard[0];
    qp->ib.heard[0] = port;
}

bool demux_may_ask(struct dev *dev, const struct udp_datagram *d, uint64_t now) {
    if (floods_admit(dev, &d->src, now))
        return true;
    dev->nic.counters.value[RNIC_CNT_drop_request]++;
    return false;
}

/* A message to queue pair 1, of which few are needed.  What is damaged uses up nobody's requests.  Not inlined: what most
 * packets are shall not save registers for it.  checked: its ICRC is right, else that is not known. */
static __attribute__((noinline)) bool is_ours(struct dev *dev, struct port *port, struct incoming *in,
                                              const struct udp_datagram *d, uint32_t n, bool forwarded, uint64_t now,
                                              bool *checked) {
    bool asks = gsi_is_request(&in->pkt);
    dev->nic.useless++;
    if (asks && !demux_icrc(dev, in, d, n))
        return false;
    if (!forwarded && gsi_elsewhere(dev, port, in, d, n, now))
        return false;
    *checked = asks;
    return !asks || demux_may_ask(dev, d, now);
}

static void input(struct dev *dev, struct port *port, const struct udp_datagram *d, const uint8_t *bth, uint32_t n,
                  uint16_t guess, bool forwarded, uint64_t now) {
    struct incoming in; /* not cleared: most packets are connected ones, and need little of it */
    in.dst = &port->addr;
    in.guess = guess;
    if (!demux_parse(dev, &in.pkt, bth, n, ICRC_BYTES))
        return;
    bool ud = in.pkt.row->mask & OPC_UD;
    bool checked = false;
    if (ud && bth_dqpn(bth) == QPN_GSI && !is_ours(dev, port, &in, d, n, forwarded, now, &checked))
        return;
    struct qp *qp = find_qp(dev, bth_dqpn(bth));
    if (!qp) {
        dev->nic.counters.value[RNIC_CNT_drop_bad_qpn]++;
        dev->nic.useless += !qpn_rests(dev, bth_dqpn(bth), now);
        return;
    }
    if (!(in.pkt.row->mask & qp->ib.takes)) { /* C9-13 */
        COUNT_USELESS(qp, drop_bad_opcode);
        return;
    }
    if (qp->state < RNIC_QPS_RTR) {
        COUNT(qp, drop_bad_state);
        return;
    }
    if (!same_partition(qp, &in.pkt)) {
        COUNT_USELESS(qp, drop_bad_pkey);
        return;
    }
    if (ud ? !checked && !demux_icrc(dev, &in, d, n) : !from_peer(dev, qp, &in, n, d) || !by_this_way(dev, qp, &in))
        return;
    if (ud)
        show_header(&in, d, n);
    in.pkt.marked = (d->tclass & ECN_MASK) == ECN_MARKED;
    if (ud || qp_hears_port(qp, d->src.sin6_port))
        demux_deliver(dev, qp, &in.pkt, n, now);
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

void demux_count_forward(struct dev *dev, int rc, uint32_t packets) {
    int counter = rc == 0 ? RNIC_CNT_forwarded_out : rc == -EAGAIN ? RNIC_CNT_drop_slot_full : RNIC_CNT_drop_no_slot;
    dev->nic.counters.value[counter] += packets;
    if (rc == -ECONNREFUSED)
        dev->nic.useless += packets;
}

static int hand_to_slot(struct dev *dev, struct port *port, uint32_t slot, const struct slot_packet *p,
                        const uint8_t *bytes, uint64_t now) {
    if (strays_no_slot(dev, slot, now))
        return -ECONNREFUSED;
    int rc = port_forward(port, slot, p, bytes, now);
    if (rc == -ECONNREFUSED)
        strays_missed_slot(dev, slot, now);
    else
        floods_handed_on(dev, slot, now);
    return rc;
}

/* Not inlined: what is ours shall not save registers for it. */
static __attribute__((noinline)) void forward(struct dev *dev, struct port *port, const struct udp_datagram *d,
                                              uint32_t at, uint32_t end, uint32_t slot, uint64_t now) {
    uint32_t packets = (end - at + d->segment - 1) / d->segment;
    struct slot_packet p = {.src = d->src,
                            .length = end - at,
                            .segment = d->segment,
                            .hops = d->hops,
                            .tclass = d->tclass,
                            .flow_label = d->flow_label};
    demux_count_forward(dev, hand_to_slot(dev, port, slot, &p, d->bytes + at, now), packets);
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
        if (slot == UINT32_MAX || forwarded || qpn_is_ours(dev, slot)) {
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
        floods_note(dev, port, d, (uint32_t)(dev->nic.useless - before), now);
}
