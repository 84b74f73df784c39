/* SPDX-License-Identifier: Apache-2.0
 *
 * The network of a device: its netdev, the addresses on it, and what comes and goes there.
 *
 *   netdev.c    network devices of the host
 *   ports.c     the GID table: a port for each address
 *   pkeys.c     the P_Key table
 *   wire.c      the UDP link: what comes by the ports, and what waits to leave
 *   streams.c   the TCP link of iWARP, in place of all that is about ports, datagrams, groups and frames
 *   incoming.c  a packet that has come: can its header be, is its ICRC right
 *   mcast.c     multicast groups
 *   frames.c    frames of RAW_PACKET queue pairs: in and out
 *   follow.c    what becomes of the netdev
 *   net.c       open and close
 *
 * The room decides which addresses there are, and whether what comes is as its sender has sent it.  It does not know which
 * process or queue pair a packet is for, but for groups and frames: struct net_calls tells whoever does.
 *
 * struct net is the room's own.  Others read it, set nothing in it, and call the functions; all of that under the device's
 * lock, but for what says otherwise.
 */
#ifndef RNIC_NET_NET_H
#define RNIC_NET_NET_H

#include "link/tcp/tcp.h"
#include "link/udp/udp.h"
#include "net/netdev.h"
#include "qp/qp.h"
#include "run/run.h"
#include "wire/bth.h"

#define NET_HEADERS_MAX 88 /* IPv6, UDP, BTH, XRCETH, RETH, ImmDt, ICRC: what the netdev's MTU must leave room for */
#define NET_SENDERS 16     /* of datagrams that are known at a time */

/* What the room tells those above it, who set the table before it is opened. */
struct net;
struct net_calls {
    /* A datagram has come by a port; handed_on: by another process of this host, which has received it. */
    void (*datagram)(void *owner, struct port *port, const struct udp_datagram *d, bool handed_on, uint64_t now);
    void (*readdressed)(void *owner);   /* the GID table has changed */
    void (*repartitioned)(void *owner); /* the P_Key table may have changed */
    void (*gone)(void *owner);          /* there is no netdev any more */
};

enum net_faults { FAULTS_OF_PACKETS = 1, FAULTS_OF_STREAMS = 2 };

/* What a network goes by. */
struct net_kind {
    int (*open)(struct net *net, const struct rnic_open_attr *attr, struct rnic_err *err);
    void (*close)(struct net *net);   /* whatever of it is open, if something is */
    void (*fail)(struct net *net);    /* the netdev has gone: nothing comes or goes any more */
    void (*abandon)(struct net *net); /* in a forked child */
    /* It is like this now. True: the GID table has changed */
    bool (*follow)(struct net *net, const struct netdev *fresh, uint64_t now);
    int (*mtu_of)(int netdev_mtu);                                      /* enum rnic_mtu that the port tells; 0: none */
    enum net_faults faults;                                             /* which it can inject */
    void (*set_fault)(struct net *net, const struct rnic_fault *fault); /* NULL: none; or it is unplugged */
};
extern const struct net_kind net_ports, net_streams;

struct net {
    const struct net_kind *kind;
    struct nic *nic;
    struct run *run;
    const struct net_calls *calls;
    void *owner; /* their argument */

    struct netdev netdev; /* up, mtu and gids change: under both locks, so that one is enough to read them */
    pthread_mutex_t lock; /* held for no longer than a copy takes */

    struct port ports[NETDEV_MAX_GIDS]; /* by GID index */
    struct port *port_list[NETDEV_MAX_GIDS];
    int port_users[NETDEV_MAX_GIDS]; /* QPs' paths and address handles that send from it; the UDP link counts */
    union rnic_gid
        had[NETDEV_MAX_GIDS];        /* the last address of each entry, which may be empty now; under both locks, too */
    uint32_t rcvbuf, window_asked;   /* struct rnic_open_attr */
    bool shows_headers;              /* ports tell what datagrams want to know */
    const struct slot *slot;         /* the context's first: answers to ports' questions come there */
    uint32_t more_slots[SLOTS_EACH]; /* numbers of the others */
    int nmore;

    struct group *groups;  /* multicast, see mcast.c */
    struct frames *frames; /* see frames.c; NULL without RAW_PACKET queue pairs */
    struct way senders[NET_SENDERS];

    struct fault fault;       /* what the injector holds, of this link and of lanes */
    struct rnic_fault faults; /* what is asked of it, */
    bool has_faults;          /* if something is */
    bool unplugged;           /* on purpose: nothing comes or goes, as if the cable were out */
    struct udp_tx tx;
    struct udp_rx rx;
    struct tcp tcp;

    union rnic_gid taken[NETDEV_MAX_GIDS]; /* addresses that have come, but somebody has their port who is not rnic: */
    int ntaken;
    bool look_left; /* a notice was read where the netdev cannot be looked at: the engine is to do that */
    uint64_t taken_again, taken_wait; /* when they are tried again, and how long it was until then */

    int follow_fd;    /* netlink, and */
    uint8_t *notices; /* room for what it says: threads that make progress may have small stacks */
    /* What the engine's epoll set has: */
    struct watched watched_rx[NETDEV_MAX_GIDS], watched_tx[NETDEV_MAX_GIDS]; /* the ports' sockets */
    struct watched watched_follow, watched_streams;
};

static inline void net_arrived(struct net *net, struct port *port, const struct udp_datagram *d, bool handed_on,
                               uint64_t now) {
    net->calls->datagram(net->owner, port, d, handed_on, now);
}

/* What the device listens to. */
extern const struct source wire_source, streams_source, mcast_source, follow_source, frames_source;

/* net.c. Up to leave: without the lock, as nobody else has it. init: of what is all zero; after it net_free() is needed,
 * whatever fails.  find: the netdev, whose changes are told from then on.  open: its ports; slot: the context's first, which
 * stays where it is until net_free().  leave: before they close, so that packets go to those who stay */
void net_init(struct net *net, const struct net_kind *kind, struct nic *nic, struct run *run,
              const struct net_calls *calls, void *owner);
int net_find(struct net *net, const char *netdev, struct rnic_err *err);
int net_open(struct net *net, const struct rnic_open_attr *attr, const struct slot *slot, struct rnic_err *err);
void net_leave(struct net *net);
void net_free(struct net *net);
void net_fail(struct net *net);    /* the netdev has gone: nothing comes or goes any more */
void net_abandon(struct net *net); /* in a forked child */
/* 0, or -EOPNOTSUPP: it is a fault of another kind of network, and nothing has changed. */
int net_set_fault(struct net *net, const struct rnic_fault *fault, struct rnic_err *err);
void net_unplug(struct net *net, bool unplugged, uint64_t now); /* and tells it */
void net_find_unplugged(struct net *net);                       /* while it is opened: it was so before */

/* ports.c */
void ports_init(struct net *net); /* all are closed */
int ports_open(struct net *net, struct rnic_err *err);
void ports_settle(struct net *net); /* waits until packets come to us, or a moment; the engine runs, without the lock */
int ports_add_slot(struct net *net, uint32_t slot); /* packets for it are ours, too. 0, -ENOSPC */
int net_active_mtu(const struct net *net);          /* as of its kind */
uint64_t ports_remaps(const struct net *net);       /* times that places in groups were learnt, for the counter */
void ports_close(struct net *net);
void ports_measure(struct net *net);                                          /* what follows from buffers and MTU */
bool ports_follow(struct net *net, const struct netdev *fresh, uint64_t now); /* true: the GID table has changed */
void ports_show_headers(struct net *net, bool show);
uint64_t ports_again(const struct net *net);       /* when addresses are tried again; NEVER */
void ports_put_off(struct net *net, uint64_t now); /* that could not be done now, if it is due yet */
struct port *ports_find(struct net *net, const struct in6_addr *addr); /* that has the address; NULL */

/* pkeys.c. None: the default partition alone */
int pkeys_init(struct net *net, const struct rnic_open_attr *attr, struct rnic_err *err);
int pkeys_set(struct net *net, const uint16_t *pkeys, uint32_t n, struct rnic_err *err);

/* follow.c. concerns: do notices of the kernel speak of that netdev? apply: it is like this now. */
int follow_open(struct net *net, struct rnic_err *err);
void follow_close(struct net *net);
bool follow_receive(void *net, uint64_t now); /* reads what waits; true: there was something */
bool follow_concerns(const void *notices, uint32_t n, int ifindex);
void follow_look(struct net *net, uint64_t now);
void follow_apply(struct net *net, const struct netdev *fresh, uint64_t now);

/* A datagram's packet on its way to a queue pair. */
struct incoming {
    struct packet pkt;
    const struct sockaddr_in6 *dst; /* where it came to */
    uint16_t guess, id;             /* identification: the likely one, and what the ICRC says that it was */
    uint8_t grh[40];
};
static inline uint32_t deth_source(const struct packet *pkt) { return deth_sqpn(pkt->bth + pkt->row->deth); }

/* incoming.c. parse, check, icrc: false: dropped, and counted.  check: all that can be said of a multicast packet.  show:
 * what a receive gets ahead of the payload */
bool incoming_parse(struct nic *nic, struct packet *pkt, const uint8_t *bth, uint32_t n, uint32_t trailer);
bool incoming_check(struct net *net, struct incoming *in, const struct sockaddr_in6 *dst, const struct udp_datagram *d);
bool incoming_icrc(struct net *net, struct incoming *in, const struct udp_datagram *d, uint32_t n);
void incoming_show(struct incoming *in, const struct udp_datagram *d, uint32_t n);
/* The identification that the packet was sent with, 0 with IPv6; -1: its ICRC is wrong.  The way's addresses and ports
 * must be those of the datagram. */
int incoming_id(struct way *from, const uint8_t *bth, uint32_t n, uint16_t guess);
/* The way of a datagram, which anybody may send: only those of the last few senders are known. */
struct way *incoming_way(struct net *net, const struct sockaddr_in6 *src, const struct sockaddr_in6 *dst);
#define NET_DROP(nic, reason) ((nic)->counters.value[RNIC_CNT_drop_##reason]++, (nic)->useless++)

/* mcast.c */
int mcast_attach(struct net *net, struct qp *qp, const union rnic_gid *gid, struct rnic_err *err);
int mcast_detach(struct net *net, struct qp *qp, const union rnic_gid *gid, struct rnic_err *err);
void mcast_leave(struct net *net, struct qp *qp); /* every group */
void mcast_abandon(struct net *net);              /* in a forked child */

/* frames.c. enter, leave: a RAW_PACKET queue pair comes and goes. listen: it has a rule, frames of the wire may be for it */
int frames_enter(struct net *net, struct qp *qp, struct rnic_err *err);
void frames_leave(struct net *net, struct qp *qp);
int frames_listen(struct net *net, struct rnic_err *err);
void frames_set_fault(struct net *net, const struct rnic_fault *fault);
/* Frames can leave this host; else err says why not. Whether a packet socket could be opened is known by trying. */
bool frames_reach_wire(struct net *net, struct rnic_err *err);
void frames_measure(struct net *net); /* the MTU may have changed */
void frames_fail(struct net *net);    /* the netdev has gone */
void frames_abandon(struct net *net);

#endif
