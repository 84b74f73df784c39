/* SPDX-License-Identifier: Apache-2.0
 *
 * A packet that has come: can its header be, and has it come as it was sent?
 */
#include <string.h>

#include "base/address.h"
#include "net/net.h"
#include "wire/grh.h"
#include "wire/icrc.h"
#include "wire/mad.h"

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
int incoming_id(struct way *from, const uint8_t *bth, uint32_t n, uint16_t guess) {
    uint32_t body = n - ICRC_BYTES, wire = get_le32(bth + body);
    bool ipv4 = IN6_IS_ADDR_V4MAPPED(&from->src.sin6_addr);
    uint32_t state = way_seed(from, n) ^ (ipv4 ? icrc_id_delta(guess) : 0);
    state = icrc_bth(state, bth);
    state = crc32_update(state, bth + BTH_BYTES, body - BTH_BYTES);
    uint32_t diff = wire ^ ~state;
    if (!ipv4)
        return diff == 0 ? 0 : -1;
    int id = diff == 0 ? 0 : icrc_recover_id(diff, body);
    return id >= 0 && plausible_id(&udp_way(from)->id, (uint16_t)(id ^ guess)) ? id ^ guess : -1;
}

/* ---------------------------------------------------------------- one packet */

/* Whether a header can be (IBA 9.6.1.1). FECN and BECN mean nothing over RoCEv2 (CA17-29). */
bool incoming_parse(struct nic *nic, struct packet *pkt, const uint8_t *bth, uint32_t n, uint32_t trailer) {
    if (n < BTH_BYTES + trailer)
        return NET_DROP(nic, short), false;
    pkt->row = roce_opcode(bth_opcode(bth));
    if (!pkt->row)
        return NET_DROP(nic, bad_opcode), false;
    if (bth_tver(bth))
        return NET_DROP(nic, bad_version), false;
    uint32_t overhead = pkt->row->header + bth_pad(bth) + trailer;
    if (n < overhead)
        return NET_DROP(nic, short), false;
    pkt->bth = bth;
    pkt->payload = bth + pkt->row->header;
    pkt->length = n - overhead;
    pkt->psn = bth_psn(bth);
    pkt->opcode = bth_opcode(bth);
    pkt->ackreq = bth_ackreq(bth);
    pkt->solicited = bth_se(bth);
    return true;
}

/* A datagram's way: anybody's, so that only the last few are known. */
struct way *incoming_way(struct net *net, const struct sockaddr_in6 *src, const struct sockaddr_in6 *dst) {
    uint32_t key = get_be32(src->sin6_addr.s6_addr + 12) ^ src->sin6_port ^ dst->sin6_addr.s6_addr[15];
    struct way *way = &net->senders[(key * 0x9E3779B1u >> 16) % NET_SENDERS];
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
    if (incoming_id(&sent, pkt->bth, n, in->guess) >= 0)
        return true;
    sent.src.sin6_port = htons(ROCE_UDP_PORT); /* its port was changed, too */
    way_forget_seeds(&sent);
    return incoming_id(&sent, pkt->bth, n, in->guess) >= 0;
}

/* What fits nothing is dropped in silence (IBA CA17-24). */
bool incoming_icrc(struct net *net, struct incoming *in, const struct udp_datagram *d, uint32_t n) {
    int id = incoming_id(incoming_way(net, &d->src, in->dst), in->pkt.bth, n, in->guess);
    if (id < 0 && is_translated(in, d, n))
        return NET_DROP(net->nic, nat), false;
    if (id < 0)
        return NET_DROP(net->nic, bad_icrc), false;
    in->id = (uint16_t)id;
    return true;
}

void incoming_show(struct incoming *in, const struct udp_datagram *d, uint32_t n) {
    grh_build(in->grh, &d->src, in->dst, d->tclass, d->hops ? d->hops : DEFAULT_HOPS, d->flow_label, in->id, n);
    in->pkt.grh = in->grh;
    in->pkt.sl = d->tclass >> 5;
}

bool incoming_check(struct net *net, struct incoming *in, const struct sockaddr_in6 *dst,
                    const struct udp_datagram *d) {
    *in = (struct incoming){.dst = dst};
    if (!incoming_parse(net->nic, &in->pkt, d->bytes, d->length, ICRC_BYTES))
        return false;
    if (!(in->pkt.row->mask & OPC_UD))
        return NET_DROP(net->nic, bad_opcode), false;
    if (!incoming_icrc(net, in, d, d->length))
        return false;
    incoming_show(in, d, d->length);
    return true;
}
