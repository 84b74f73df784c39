/* SPDX-License-Identifier: Apache-2.0
 *
 * A datagram in: packet by packet to its process and its queue pair, or dropped with a reason.
 */
#include <errno.h>
#include <string.h>

#include "dev/dev.h"
#include "wire/bth.h"
#include "wire/icrc.h"

#define DROP(dev, reason) ((dev)->nic.counters.value[RNIC_CNT_drop_##reason]++)
#define STRANGERS 3 /* packets in a row with identifications that rnic does not send make the source a counting one */

/* ---------------------------------------------------------------- ICRC */

/* Is this an identification that the source could have sent? An rnic peer's is the place in its batch; a kernel's
 * counts, and jumps after a pause, so that any value is possible (docs/architecture.md, "The ICRC without a header"). */
static bool plausible_id(struct ip_id_state *id, uint16_t value) {
    if (value < UDP_BATCH_PACKETS) {
        id->strangers = 0;
    } else if (!id->counting) {
        if (id->known && ++id->strangers < STRANGERS)
            return false;
        id->counting = true;
    }
    return id->known = true;
}

/* The flow's addresses and ports must be those of the datagram: from is the peer's port, which may change. */
static bool icrc_right(struct flow *from, const uint8_t *bth, uint32_t n, uint16_t guess) {
    uint32_t body = n - ICRC_BYTES, wire = get_le32(bth + body);
    bool ipv4 = IN6_IS_ADDR_V4MAPPED(&from->src.sin6_addr);
    uint32_t state = flow_seed(from, n) ^ (ipv4 ? icrc_id_delta(guess) : 0);
    state = icrc_bth(state, bth);
    state = crc32_update(state, bth + BTH_BYTES, body - BTH_BYTES);
    uint32_t diff = wire ^ ~state;
    if (diff == 0)
        return !ipv4 || plausible_id(&from->id, guess);
    if (!ipv4)
        return false;
    int id = icrc_recover_id(diff, body);
    return id >= 0 && plausible_id(&from->id, (uint16_t)(id ^ guess));
}

/* ---------------------------------------------------------------- one packet */

static bool parse(struct dev *dev, struct packet *pkt, const uint8_t *bth, uint32_t n) {
    if (n < BTH_BYTES + ICRC_BYTES)
        return DROP(dev, short), false;
    pkt->row = roce_opcode(bth_opcode(bth));
    if (!pkt->row || !(pkt->row->mask & OPC_RC))
        return DROP(dev, bad_opcode), false;
    if (bth_tver(bth))
        return DROP(dev, bad_version), false;
    uint32_t overhead = pkt->row->header + bth_pad(bth) + ICRC_BYTES;
    if (n < overhead)
        return DROP(dev, short), false;
    if ((bth_pkey(bth) & 0x7FFF) != 0x7FFF) /* the default partition, full or limited member (IBA 10.9.1.1) */
        return DROP(dev, bad_pkey), false;
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
static struct flow *reverse_flow(struct qp *qp, const struct sockaddr_in6 *src) {
    struct flow *from = &qp->from;
    if (from->src.sin6_port != src->sin6_port) {
        from->src.sin6_port = src->sin6_port;
        memset(from->seed_n, 0, sizeof from->seed_n);
    }
    return from;
}

static void input(struct dev *dev, const uint8_t *bth, uint32_t n, const struct udp_datagram *d, uint16_t guess,
                  uint64_t now) {
    struct packet pkt;
    if (!parse(dev, &pkt, bth, n))
        return;
    struct qp *qp = qpn_find(dev, bth_dqpn(bth));
    if (!qp) {
        DROP(dev, bad_qpn);
        return;
    }
    if (qp->state < RNIC_QPS_RTR) {
        COUNT(qp, drop_bad_state);
        return;
    }
    if (memcmp(&qp->flow.dst.sin6_addr, &d->src.sin6_addr, sizeof d->src.sin6_addr)) { /* C9-43, C9-44 */
        COUNT(qp, drop_bad_source);
        return;
    }
    if (!icrc_right(reverse_flow(qp, &d->src), bth, n, guess)) {
        COUNT(qp, drop_bad_icrc);
        return;
    }
    qp->counters.value[RNIC_CNT_rx_packets]++;
    qp->counters.value[RNIC_CNT_rx_bytes] += n;
    qp->engine->input(qp, &pkt, now);
    sched_input(dev, qp);
}

/* ---------------------------------------------------------------- one datagram */

/* The slot that a packet is for; 0xFFFFFFFF when it is too short to say, which counts as ours. */
static uint32_t slot_at(const struct udp_datagram *d, uint32_t at) {
    return d->length - at < BTH_BYTES ? UINT32_MAX : qpn_slot(bth_dqpn(d->bytes + at));
}

static void forward(struct dev *dev, struct port *port, const struct udp_datagram *d, uint32_t at, uint32_t end,
                    uint32_t slot, uint64_t now) {
    uint32_t packets = (end - at + d->segment - 1) / d->segment;
    int rc = port_forward(port, slot, &d->src, d->bytes + at, end - at, d->segment, now);
    int counter = rc == 0 ? RNIC_CNT_forwarded_out : rc == -EAGAIN ? RNIC_CNT_drop_slot_full : RNIC_CNT_drop_no_slot;
    dev->nic.counters.value[counter] += packets;
}

void demux_datagram(struct dev *dev, struct port *port, const struct udp_datagram *d, bool forwarded, uint64_t now) {
    uint64_t *count = dev->nic.counters.value;
    uint16_t index = 0;
    if (d->length && d->bytes[0] == PORT_PROBE_OPCODE) {
        if (!forwarded)
            port_probe_input(port, d->bytes, d->length, &d->src);
        return;
    }
    for (uint32_t at = 0; at < d->length;) {
        uint32_t slot = slot_at(d, at), end = at, left = d->length - at;
        if (slot == UINT32_MAX || forwarded || qpn_is_ours(dev, slot)) {
            uint32_t n = left < d->segment ? left : d->segment;
            count[RNIC_CNT_rx_packets]++;
            count[RNIC_CNT_rx_bytes] += n;
            input(dev, d->bytes + at, n, d, index++, now);
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
