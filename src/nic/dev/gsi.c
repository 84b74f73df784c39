/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue pair 1 on a host of many processes.  A packet for it reaches any of them; the communication manager's messages
 * say themselves whose they are: a request by its service, everything else by the communication id of whoever it is for,
 * which has the slot of its process in its upper bits.  So a busy interpreter delays nobody's handshake but its own.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/address.h"
#include "base/fail.h"
#include "dev/dev.h"
#include "names/listen.h"
#include "roce/partition.h"
#include "roce/roce.h"
#include "wire/bth.h"
#include "wire/icrc.h"
#include "wire/mad.h"

#define COMM_ID_INDEX_BITS (32 - SLOT_BITS)
#define HOPS 64

/* ---------------------------------------------------------------- whose message is it */

enum found { NOBODY, OURS, HANDED_ON };

static enum found hand_on(struct dev *dev, struct port *port, const struct abstract_name *to,
                          const struct slot_packet *p, const uint8_t *bth, uint64_t now) {
    int rc = outbox_send(dev, port, to, p, bth, now);
    if (rc == -ECONNREFUSED)
        return NOBODY;
    if (rc)
        demux_count_forward(dev, rc, 1);
    return HANDED_ON;
}

/* To another process' listener of that address, or of all addresses. */
static enum found hand_to_listener(struct dev *dev, struct port *port, uint64_t service_id, bool any,
                                   const struct slot_packet *p, const uint8_t *bth, uint64_t now) {
    const struct stray_name key = {.service_id = service_id, .port = port, .any = any};
    struct abstract_name name;
    if (strays_no_name(dev, &key, now))
        return NOBODY;
    if (any)
        listen_any_name(&name, service_id, address_is_v4(&port->addr), dev->net.ifindex);
    else
        listen_name(&name, service_id, &port->addr);
    enum found found = hand_on(dev, port, &name, p, bth, now);
    if (found == NOBODY)
        strays_missed_name(dev, &key, now);
    return found;
}

/* The exact address goes before the wildcard, whoever has them. */
static enum found find_listener(struct dev *dev, struct port *port, uint64_t service_id, const struct slot_packet *p,
                                const uint8_t *bth, uint64_t now) {
    if (listeners_have(dev, service_id, port, true))
        return OURS;
    enum found found = hand_to_listener(dev, port, service_id, false, p, bth, now);
    if (found != NOBODY)
        return found;
    if (listeners_have(dev, service_id, port, false))
        return OURS;
    return hand_to_listener(dev, port, service_id, true, p, bth, now);
}

static enum found hand_to_slot(struct dev *dev, struct port *port, uint32_t slot, const struct slot_packet *p,
                               const uint8_t *bth, uint64_t now) {
    struct abstract_name name;
    if (strays_no_slot(dev, slot, now))
        return NOBODY;
    abstract_name(&name, SLOT_NAME, slot);
    enum found found = hand_on(dev, port, &name, p, bth, now);
    if (found == NOBODY)
        strays_missed_slot(dev, slot, now);
    else
        floods_handed_on(dev, slot, now);
    return found;
}

static enum found find_slot(struct dev *dev, struct port *port, uint32_t comm_id, const struct slot_packet *p,
                            const uint8_t *bth, uint64_t now) {
    uint32_t slot = comm_id >> COMM_ID_INDEX_BITS;
    if (comm_id == 0 || qpn_is_ours(dev, slot)) /* 0 is nobody's: a REJ by a peer that never had an answer */
        return OURS;
    enum found found = hand_to_slot(dev, port, slot, p, bth, now);
    if (found == NOBODY)
        demux_count_forward(dev, -ECONNREFUSED, 1);
    return found;
}

/* ---------------------------------------------------------------- it is for nobody */

static void send_mad(struct dev *dev, struct way *to, uint32_t dqpn, uint16_t pkey, const uint8_t mad[MAD_BYTES]) {
    struct datagram d = {.dqpn = dqpn, .sqpn = QPN_GSI, .qkey = GSI_QKEY, .psn = dev->gsi_psn};
    struct out out;
    udp_tx_flush(&dev->tx);
    if (!out_open_to(to, &out, ROCE_UD_SEND_ONLY, MAD_BYTES, d.dqpn, d.psn, pkey)) {
        dev->nic.counters.value[RNIC_CNT_tx_errors]++; /* the link is busy; its sender asks again */
        return;
    }
    out_deth(&out, &d);
    out_headers(&out);
    out.crc = crc32_copy(out.crc, out_payload(&out), mad, MAD_BYTES);
    dev->nic.counters.value[RNIC_CNT_tx_bytes] += out_close_to(&out);
    dev->nic.counters.value[RNIC_CNT_tx_packets]++;
    dev->gsi_psn = psn_add(dev->gsi_psn, 1);
    udp_tx_flush(&dev->tx);
}

static void answer(struct dev *dev, struct port *port, struct incoming *in, const struct udp_datagram *d, uint32_t n,
                   bool refusal, uint64_t now) {
    uint8_t mad[MAD_BYTES];
    int index = pkey_find(&dev->nic, bth_pkey(in->pkt.bth));
    if (index < 0)
        dev->nic.counters.value[RNIC_CNT_drop_bad_pkey]++;
    if (index < 0 || !mad_answer(mad, in->pkt.payload) || !demux_icrc(dev, in, d, n))
        return;
    if (refusal && !demux_may_ask(dev, d, now))
        return;
    if (!strays_may_answer(dev, now)) {
        dev->nic.counters.value[RNIC_CNT_drop_unanswered]++;
        return;
    }
    struct way to = {.link = dev->nic.wire, .src = port->addr, .dst = d->src, .hop_limit = HOPS};
    udp_way(&to)->port = port;
    to.dst.sin6_port = htons(ROCE_UDP_PORT);
    dev->nic.counters.value[RNIC_CNT_cm_refused] += refusal;
    send_mad(dev, &to, deth_source(&in->pkt), dev->nic.ib.pkeys[index], mad);
}

bool gsi_is_request(const struct packet *pkt) {
    return pkt->length == MAD_BYTES && deth_qkey(pkt->bth + pkt->row->deth) == GSI_QKEY &&
           mad_address(pkt->payload).target == MAD_FOR_SERVICE;
}

bool gsi_elsewhere(struct dev *dev, struct port *port, struct incoming *in, const struct udp_datagram *d, uint32_t n,
                   uint64_t now) {
    const struct packet *pkt = &in->pkt;
    struct slot_packet p = {
        .src = d->src, .length = n, .hops = d->hops, .tclass = d->tclass, .flow_label = d->flow_label};
    if (pkt->length != MAD_BYTES || deth_qkey(pkt->bth + pkt->row->deth) != GSI_QKEY)
        return false;
    struct mad_address to = mad_address(pkt->payload);
    enum found found = OURS;
    if (to.target == MAD_FOR_ID)
        found = find_slot(dev, port, to.comm_id, &p, pkt->bth, now);
    else if (to.target == MAD_FOR_SERVICE)
        found = find_listener(dev, port, to.service_id, &p, pkt->bth, now);
    if (found == NOBODY)
        answer(dev, port, in, d, n, to.target == MAD_FOR_SERVICE, now);
    return found != OURS;
}
