/* SPDX-License-Identifier: Apache-2.0
 *
 * A link: how packets leave for a peer.  The face of this room for queue pairs, transports and the scheduler, who know
 * no socket and no shared memory; what a link is made of is in the other headers, which only the device includes.
 *
 *   udp      RoCEv2: datagrams of port 4791, by the ports of the device's addresses
 *   lane     shared memory of two contexts of one host
 *   packet   Ethernet frames by a packet socket
 *   tcp      connections of iWARP: a stream of bytes for each queue pair
 *
 * What comes in is not in this table: a link is how packets leave, a source (struct source of run/run.h) is where they
 * come from, and the two do not go in pairs.  One source serves all lanes, of which a device may have hundreds; groups,
 * listeners and the kernel's notices are sources without a link; and a pass asks its sources in their order, while a
 * queue pair needs its link alone.  Room and deadlines belong to who is called for them, which is the source, too.
 *
 * What a further link implements:
 *
 *   - a struct link, first in its own, with the table below.  It needs put(), or reserve() and commit(): its transports
 *     say which.  It needs emit() if it has a fault injector.  All else may be NULL.
 *   - resolve() where programs give address vectors, hold() and release() where what a way leads by can go.
 *   - what it keeps in WAY_OWN bytes of each way, if anything.  All 0 is a way that leads nowhere yet.
 *   - `full`: it sets it when a packet had no room, and the scheduler then parks the queue pair.  Its source clears it when
 *     there is room, and says so with sched_unpark() or sched_link_free().
 *   - a struct source in the device's list (dev/device.c): receive() if anything comes, resume() and deadline() for what
 *     waits for room or for the injector's time, flush() for what leaves at the end of a pass, arm() for its descriptors.
 *
 * tests/c/test_transport.c has a small one.
 *
 * All functions are called under the device's lock.  None blocks.
 */
#ifndef RNIC_LINK_LINK_H
#define RNIC_LINK_LINK_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "nic.h"

struct link;
struct qp;

/* The lower bits of the traffic class (RFC 3168): what may be marked, and what a congested router has marked. */
#define ECN_MASK 3u
#define ECN_CAPABLE 2u
#define ECN_MARKED 3u

#define WAY_OWN 56 /* bytes of a way that are its link's */
#define WAY_EACH UINT32_MAX /* in place of a peer's queue pair: each datagram names its own */

/* The way to one peer, or from it: what an address vector becomes.  A link sends along it; a transport passes it on.  It is
 * copied freely: of the copies one is held. */
struct way {
    struct link *link;            /* by which it goes; NULL: it is one from a peer */
    struct sockaddr_in6 src, dst; /* IPv4 mapped, ports in network order */
    bool held;                    /* the link counts it among its users, from way_hold() to way_release() */
    bool datagrams;               /* they tell where they come from, each for itself */
    uint8_t traffic_class, hop_limit;
    uint32_t dst_slot;   /* process of the peer's host that owns the QPN: packets of two are never in one batch */
    uint32_t flow_label; /* of IPv6; IPv4 has none */
    _Alignas(8) uint8_t own[WAY_OWN]; /* the link's: its header says what; udp/way.h for one */
};

struct link_ops {
    const char *name;
    /* The way that an address vector means, to a queue pair of that number (WAY_EACH: of datagrams), and from it, unless
     * `from` is NULL.  0, or -errno and which attribute is wrong.  NULL: addresses are no business of this link. */
    int (*resolve)(struct link *link, const struct rnic_ah_attr *av, uint32_t qpn, struct way *to, struct way *from,
                   struct rnic_err *err);
    /* What the way leads by is in use until it is released: an address keeps its place, a lane its memory. */
    void (*hold)(struct link *link, const struct way *way);
    void (*release)(struct link *link, const struct way *way);
    /* Room for one packet of n bytes, from the BTH on; *crc: the state to continue from at the BTH, if the link has an
     * ICRC. NULL: not now; the link is full then. */
    uint8_t *(*reserve)(struct link *link, struct way *way, uint32_t n, uint32_t *crc);
    /* The packet last reserved is written. */
    void (*commit)(struct link *link);
    /* Of a link that is a stream, in place of those three: takes as many of the bytes of n pieces as there is room for, and
     * says how many. 0: none now; its source makes the queue pair ready when there is room. -EFAULT: a piece is not there
     * any more; another -errno: it has broken, and its source will say so. */
    long (*write)(struct link *link, const struct way *way, const struct iovec *pieces, int n);
    void (*finish)(struct link *link,
                   const struct way *way); /* of a stream: the peer reads what was written, then its end */
    uint32_t (*segment)(struct link *link, const struct way *way); /* bytes that leave in one piece at most, now */
    /* Of a stream: bytes that were written, and that the peer's host has not acknowledged.  NULL: nobody knows */
    uint32_t (*queued)(struct link *link, const struct way *way);
    /* Of a stream: its injector may flip a bit of a segment's header before the CRC is computed, or sealed: of the whole
     * segment with its CRC. */
    void (*spoil)(struct link *link, uint8_t *bytes, uint32_t n, bool sealed);
    /* All of a packet that is at hand: of a short one the quicker way, of a frame the only one. False: not now.  By a bare
     * link an ACK may stand ahead of it, in one piece, of LINK_JOINED bytes at most. */
#define LINK_JOINED 64u
    bool (*put)(struct link *link, const struct way *way, const uint8_t *bytes, uint32_t n);
    /* What has been put leaves, or its reader is woken, without waiting for the end of the pass. */
    void (*flush)(struct link *link);
    /* What the fault injector lets go, from that way to this link: it has no room, it is lost. */
    void (*emit)(struct link *link, const struct way *way, const uint8_t *bytes, uint32_t n);
    /* Where it can be known: bytes written along a way that is held up to now, and those of them that have left this host. */
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

/* link.c. resolve: as the link does it; -EOPNOTSUPP: it has no address vectors. hold, release: the second time does nothing */
int link_resolve(struct link *link, const struct rnic_ah_attr *av, uint32_t qpn, struct way *to, struct way *from,
                 struct rnic_err *err);
void way_hold(struct way *way);
void way_release(struct way *way);

#endif
