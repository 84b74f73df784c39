/* SPDX-License-Identifier: Apache-2.0
 *
 * Ways by UDP: what an address vector of RoCE means here (IBA A17.4), and what a way knows beside its addresses.
 */
#ifndef RNIC_LINK_UDP_WAY_H
#define RNIC_LINK_UDP_WAY_H

#include "link/link.h"
#include "link/udp/port.h"

/* What the sender of a way does with the IPv4 identification field: the ICRC covers it, and no socket shows it. */
struct ip_id_state {
    bool known;        /* a packet has been accepted */
    bool counting;     /* it counts up, as the Linux kernel's rxe: any value is possible */
    uint8_t strangers; /* packets in a row whose identification an rnic peer would not send */
    uint16_t last;     /* of those accepted */
};

#define WAY_SEEDS 4

/* The link's own part of a way, in way->own. */
struct udp_way {
    struct port *port;                           /* the socket to send from; NULL: it is one from a peer */
    uint32_t seed[WAY_SEEDS], seed_n[WAY_SEEDS]; /* cache: icrc_seed(src, dst, 0, seed_n); 0: empty */
    uint32_t seed_next;
    struct ip_id_state id; /* of what src sends, where this is the way from a peer to us */
} __attribute__((may_alias));
_Static_assert(sizeof(struct udp_way) <= WAY_OWN, "a way has room for it");

static inline struct udp_way *udp_way(struct way *way) { return (struct udp_way *)(void *)way->own; }
static inline struct port *udp_port(const struct way *way) {
    return ((const struct udp_way *)(const void *)way->own)->port;
}

/* The device's ports, for ways that are resolved, held and released. */
struct udp_ports {
    struct port *at; /* by GID index; one without steering is closed */
    int *users;      /* ways that are held, by the same: an entry that has some is kept for its address */
    int count;
    int ifindex; /* of the network device */
    const char *netdev;
};

/* Is it one that RoCE over Ethernet can have? 0, or -errno and what is wrong. */
int udp_av_check(const struct rnic_ah_attr *av, struct rnic_err *err);
/* The IP traffic class that an address vector asks for: of a service level alone, the class selector of that priority
 * (IBA A17.4.2). */
static inline uint8_t udp_av_traffic_class(const struct rnic_ah_attr *av) {
    return av->grh.traffic_class ? av->grh.traffic_class : (uint8_t)(av->sl << 5);
}
/* As of struct link_ops. */
int udp_resolve(const struct udp_ports *ports, struct link *link, const struct rnic_ah_attr *av, uint32_t qpn,
                struct way *to, struct way *from, struct rnic_err *err);

/* The CRC state at the BTH of a way's packet of n bytes. */
uint32_t way_seed(struct way *way, uint32_t n);
void way_forget_seeds(struct way *way); /* src or dst has changed, or its port */

#endif
