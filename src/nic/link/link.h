/* SPDX-License-Identifier: Apache-2.0
 *
 * A link: how packets leave for a peer.  The face of this room for queue pairs, transports and the scheduler, who know
 * no socket and no shared memory; what a link is made of is in the other headers, which only the device includes.
 *
 *   udp      RoCEv2: datagrams of port 4791, by the ports of the device's addresses
 *   lane     shared memory of two contexts of one host
 *   packet   Ethernet frames by a packet socket
 *
 * All functions are called under the device's lock.  None blocks.
 */
#ifndef RNIC_LINK_LINK_H
#define RNIC_LINK_LINK_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#include "nic.h"

struct link;
struct qp;

/* What the sender of a way does with the IPv4 identification field: the ICRC covers it, and no socket shows it. */
struct ip_id_state {
    bool known;        /* a packet has been accepted */
    bool counting;     /* it counts up, as the Linux kernel's rxe: any value is possible */
    uint8_t strangers; /* packets in a row whose identification an rnic peer would not send */
    uint16_t last;     /* of those accepted */
};

#define WAY_SEEDS 4

/* The lower bits of the traffic class (RFC 3168): what may be marked, and what a congested router has marked. */
#define ECN_MASK 3u
#define ECN_CAPABLE 2u
#define ECN_MARKED 3u

/* The way to one peer, or from it: what an address vector becomes.  A link sends along it; a transport passes it on. */
struct way {
    struct link *link;            /* by which it goes */
    struct sockaddr_in6 src, dst; /* IPv4 mapped, ports in network order */
    void *port;                   /* the link's: the socket to send from */
    bool datagrams;               /* they tell where they come from, each for itself */
    uint32_t dst_slot; /* process of the peer's host that owns the QPN: packets of two are never in one batch */
    uint8_t traffic_class, hop_limit;
    uint32_t flow_label;                         /* of IPv6; IPv4 has none */
    struct ip_id_state id;                       /* of what src sends, where this is the way from a peer to us */
    uint32_t seed[WAY_SEEDS], seed_n[WAY_SEEDS]; /* cache: icrc_seed(src, dst, 0, seed_n); 0: empty */
    uint32_t seed_next;
};

struct link_ops {
    const char *name;
    /* Room for one packet of n bytes, from the BTH on; *crc: the state to continue from at the BTH, if the link has an
     * ICRC. NULL: not now; the link is full then. */
    uint8_t *(*reserve)(struct link *link, struct way *way, uint32_t n, uint32_t *crc);
    /* The packet last reserved is written. */
    void (*commit)(struct link *link);
    /* All of a packet that is at hand: of a short one the quicker way, of a frame the only one. False: not now. */
    bool (*put)(struct link *link, const struct way *way, const uint8_t *bytes, uint32_t n);
    /* What has been put leaves, or its reader is woken, without waiting for the end of the pass. */
    void (*flush)(struct link *link);
    /* What the fault injector lets go, from that way to this link: it has no room, it is lost. */
    void (*emit)(struct link *link, const struct way *way, const uint8_t *bytes, uint32_t n);
    /* Where it can be known: bytes written along the way up to now, and those of them that have left this host. */
    uint64_t (*written)(const struct link *link, const struct way *way);
    uint64_t (*left)(const struct link *link, const struct way *way);
    /* Where the peer can read our memory, else NULL.  refer: instead of commit(): the packet's first n bytes are written,
     * and the element behind them says where the payload is. take_back: from now on the peer is to find it no more, in any
     * such packet of that queue pair. */
    void (*refer)(struct link *link, uint32_t n, const struct rnic_sge *payload, uint32_t qpn);
    void (*take_back)(struct link *link, uint32_t qpn);
};

struct link {
    const struct link_ops *ops;
    bool bare;                         /* packets are without padding and ICRC: both ends are on this host */
    bool full;                         /* the last packet had no room: whoever wants to send waits until it has some, */
    struct qp *waiting, *waiting_last; /* in this list, which is the scheduler's */
};

static inline bool way_is_bare(const struct way *way) { return way->link && way->link->bare; }

#endif
