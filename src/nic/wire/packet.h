/* SPDX-License-Identifier: Apache-2.0
 *
 * How packets travel between links and engines: a received packet, the way to a peer, and the sink for what is sent.
 */
#ifndef RNIC_WIRE_PACKET_H
#define RNIC_WIRE_PACKET_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#include "nic.h"
#include "wire/opcode.h"

/* What the sender of a flow does with the IPv4 identification field (design: the ICRC covers it, no socket shows it). */
struct ip_id_state {
    bool known;        /* a packet has been accepted */
    bool counting;     /* it counts up, as the Linux kernel's rxe: any value is possible */
    uint8_t strangers; /* packets in a row whose identification an rnic peer would not send */
    uint16_t last;     /* of those accepted */
};

#define FLOW_SEEDS 4

/* The lower bits of the traffic class (RFC 3168): what may be marked, and what a congested router has marked. */
#define ECN_MASK 3u
#define ECN_CAPABLE 2u
#define ECN_MARKED 3u

struct tx;

/* The way to one peer.  A link sends along it; an engine only passes it on. */
struct flow {
    struct sockaddr_in6 src, dst; /* IPv4 mapped, ports in network order */
    void *port;                   /* the link's: the socket to send from */
    bool datagrams;               /* they tell where they come from, each for itself */
    struct tx *local;             /* NULL, or where packets for a peer on this host go: without padding and ICRC */
    uint32_t dst_slot; /* process of the peer's host that owns the QPN: packets of two are never in one batch */
    uint8_t traffic_class, hop_limit;
    uint32_t flow_label;                           /* of IPv6; IPv4 has none */
    struct ip_id_state id;                         /* of what src sends, where this is the way from a peer to us */
    uint32_t seed[FLOW_SEEDS], seed_n[FLOW_SEEDS]; /* cache: icrc_seed(src, dst, 0, seed_n); 0: empty */
    uint32_t seed_next;
};

/* A received packet: lengths, opcode and ICRC are checked. */
struct packet {
    const uint8_t *bth;
    const struct roce_opcode *row;
    const uint8_t *payload;
    uint32_t length; /* of the payload, pad excluded */
    uint32_t psn;
    uint8_t opcode;
    bool ackreq, solicited;
    bool marked;         /* a router on its way was congested */
    uint8_t sl;          /* of datagrams: the priority that the IP header asks for, */
    uint16_t pkey_index; /* and the entry of our P_Key table that it matches */
    const uint8_t *grh;  /* of datagrams: the GRH_BYTES that a receive gets ahead of the payload, see wire/grh.h */
};

/* Where an engine writes packets. */
struct tx {
    /* Room for one packet of n bytes (BTH to ICRC); *crc: the state to continue from at the BTH. NULL: not now. */
    uint8_t *(*reserve)(struct tx *tx, struct flow *flow, uint32_t n, uint32_t *crc);
    /* The packet last reserved is written. */
    void (*commit)(struct tx *tx);
    /* Or of a local one: its first n bytes are, and the element behind them says where the peer finds the payload.
     * take_back: from now on it is to find it no more, in any such packet of that queue pair. */
    void (*refer)(struct tx *tx, uint32_t n, const struct rnic_sge *payload, uint32_t qpn);
    void (*take_back)(struct tx *tx, uint32_t qpn);
    /* Or of a local one that is short: all of it at once. False: not now. */
    bool (*put)(struct tx *tx, const struct flow *flow, const uint8_t *bytes, uint32_t n);
};

#endif
