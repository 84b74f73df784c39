/* SPDX-License-Identifier: Apache-2.0
 *
 * The device: an open context of the software RNIC.  The only room that knows what links are made of.
 *
 *   device.c    open and close: ports, slot, engine thread
 *   check.c     what verbs check first
 *   qpn.c       queue pair numbers: slot and index
 *   ah.c        address vectors, and handles that are destroyed
 *   ports.c     the GID table: a port for each address
 *   pkeys.c     the P_Key table
 *   follow.c    what becomes of the netdev
 *   mcast.c     multicast groups
 *   gsi.c       queue pair 1: whose process a message is for
 *   listeners.c who listens
 *   raw.c       frames of RAW_PACKET queue pairs: in and out
 *   wire.c      the UDP link: what comes by the ports, and what waits to leave
 *   forward.c   what other processes of this host hand on
 *   lanes.c     peers on this host
 *   outbox.c    CM messages that wait for room in another process' socket
 *   strays.c    what packets may cost that are for nobody
 *   floods.c    floods: what nobody needs is muted, requests for connections are counted
 *   demux.c     a datagram in: which process, which QP, is its ICRC right
 *   fork.c      what a forked child does
 *   netdev.c    network devices of the host
 *
 * Everything is under the lock but posting (per-queue locks, then a doorbell) and polling (the CQ's lock).
 */
#ifndef RNIC_DEV_DEV_H
#define RNIC_DEV_DEV_H

#include "dev/netdev.h"
#include "link/lane/lane.h"
#include "link/udp/udp.h"
#include "mem/store.h"
#include "qp/qp.h"
#include "qp/xrc.h"
#include "run/run.h"
#include "wire/bth.h"

#define DEV_MAX_SLOTS 16
#define DEV_HEADERS_MAX 88 /* IPv6, UDP, BTH, XRCETH, RETH, ImmDt, ICRC: what the netdev's MTU must leave room for */
#define COMP_VECTORS 1 /* the engine thread: it alone raises completion events */
#define DEV_SOURCES 16 /* senders of datagrams that are known at a time */
#define STRAY_NAMES 256
#define FLOOD_SOURCES 64
#define QPN_INDICES (1u << QPN_INDEX_BITS)

/* An XRC domain that processes find by a file (verbs/xrc.c). */
struct xrc_inode {
    struct xrc_domain domain;
    struct xrc_inode *next; /* in the device's list; of files only */
    dev_t device;
    ino_t inode;
    int name; /* socket that has the file's name; -1: it is of no file */
};

/* What nobody was found to have, see strays.c. */
struct stray_name { /* of a listener: at the port's address, or at all of its family */
    uint64_t service_id;
    const struct port *port;
    bool any;
    uint64_t until;
};
struct strays {
    uint64_t looks, answers;            /* those that there were are paid for until then */
    uint64_t no_slot_until[SLOT_COUNT]; /* not looked for before that */
    struct stray_name names[STRAY_NAMES];
};

/* Who sends what nobody needs, see floods.c. */
struct flood_source {
    struct in6_addr from;
    uint32_t qpn;     /* where to; 0: anywhere */
    uint32_t count;   /* packets in this window */
    uint32_t windows; /* that it has flooded before this one, without a pause */
    uint16_t port;    /* that most of them come from, if most come from one */
    uint32_t votes;
};
struct flood_asker {
    struct in6_addr from;
    uint16_t port;
    uint64_t paid_until; /* for the requests that there were */
    bool known;          /* when last looked at: it is a peer */
};
struct floods {
    uint64_t since; /* the window's begin */
    bool judged;    /* in this window: there is one judgement in each */
    struct flood_source sources[FLOOD_SOURCES];
    struct flood_asker askers[FLOOD_SOURCES];
    uint64_t looked_at;             /* the queue pairs, for an asker */
    uint64_t handed_on[SLOT_COUNT]; /* when a packet last was, to a living process; 0: never, or it has died */
    struct sieve_rule rule;         /* in the making, and what the look at the queue pairs has found: */
    bool is_peer, many;             /* one is connected to that address; more are than can be spared */
};

/* Peers on this host: lanes.c alone reads and writes it. */
struct here {
    struct lane_shared shared;
    struct lane *lanes;
    uint32_t count;
    uint64_t numbers;               /* given out */
    struct lane *to[SLOT_COUNT];    /* by slot: asked for, or up; NULL: not asked */
    uint64_t ask_again[SLOT_COUNT]; /* not before */
    int doors[DEV_MAX_SLOTS];       /* where others ask; -1: closed */
    uint64_t doors_again;           /* watched again then; NEVER: they are watched */
    struct watched watched[DEV_MAX_SLOTS];
};

/* Messages of connection management that wait for room in another process' socket: outbox.c's. */
struct letters {
    struct outbox *boxes;
    uint32_t held; /* in all of them */
    uint64_t retry_at;
};

/* What programs have made: the verbs' (src/nic/verbs).  A forked child closes what has descriptors. */
struct objects {
    int pds, mrs, cqs, qps, channels, xrcds, tds;
    int cntrs;        /* completion counters, and flows' counters */
    int datagram_qps; /* while there are some, ports show what datagrams want to know */
    int wqs, rwq_tables;
    uint32_t wq_numbers; /* given out to work queues and their tables */
    struct pd *pd_list;
    struct dm *dm_list;
    uint64_t dm_used;             /* bytes of device memory */
    struct xrc_inode *xrc_inodes; /* XRC domains of files, see xrc.c there */
    struct channel *channel_list;
};

struct dev {
    struct rnic_context pub;
    struct nic nic;
    struct run run;           /* who makes progress; the lock */
    struct netdev net;        /* up, mtu and gids change: under both locks, so that one is enough to read them */
    pthread_mutex_t net_lock; /* held for no longer than a copy takes */
    _Atomic bool dead;        /* this process is a fork of the one that opened the device */
    _Atomic bool fatal;       /* the netdev has gone: nothing is left to do but to close */

    struct slot slots[DEV_MAX_SLOTS];
    struct qp **table[DEV_MAX_SLOTS]; /* by index within the slot */
    uint64_t *freed[DEV_MAX_SLOTS];   /* when the index was given back */
    int nslots;
    struct port ports[NETDEV_MAX_GIDS]; /* by GID index */
    struct port *port_list[NETDEV_MAX_GIDS];
    int port_users[NETDEV_MAX_GIDS];     /* QPs' paths and address handles that send from it */
    union rnic_gid had[NETDEV_MAX_GIDS]; /* the last address of each entry, which may be empty now */
    uint32_t rcvbuf, window_asked;       /* struct rnic_open_attr */

    struct qp *gsi;                       /* the queue pair with number 1; or NULL */
    uint32_t gsi_psn;                     /* of answers that the device itself sends for it */
    struct group *groups;                 /* multicast, see mcast.c */
    struct listener *listeners, *holders; /* see listeners.c */
    struct strays strays;
    struct floods floods;
    struct raw_link *raw; /* see raw.c; NULL without RAW_PACKET queue pairs */
    struct ah *dying_ahs; /* destroyed, and named by send elements still */
    struct way sources[DEV_SOURCES];

    bool local; /* peers on this host go by lanes: */
    struct here here;
    struct letters letters;
    struct objects objects;

    struct fault fault;
    struct udp_tx tx;
    struct udp_rx rx;
    uint8_t *slot_buffer; /* 64 KiB for one forwarded datagram */

    int follow_fd; /* netlink */
    /* What the engine's epoll set has: */
    struct watched watched_rx[NETDEV_MAX_GIDS], watched_tx[NETDEV_MAX_GIDS]; /* the ports' sockets, */
    struct watched watched_slots[DEV_MAX_SLOTS], watched_lives[DEV_MAX_SLOTS];
    struct watched watched_follow;

    struct store store; /* memory of its own making, and what of it other processes may import */
    struct peer peer;   /* the other process' context that this one has imported, if it has */
    int adopted;        /* times that this process has imported it; the devices' lock (fork.c) */

    struct dev *next; /* in the process' list of open devices */
};

static inline struct dev *dev_of(struct rnic_context *ctx) { return (struct dev *)ctx; }

/* device.c. netdev: a device's name is DEVICE_PREFIX and that of its netdev.  import: of the context that has this memory file, which may
 * be this process'. */
#define DEVICE_PREFIX "roce_"
void device_describe(const struct netdev *net, struct rnic_device_info *out);
int device_list(struct rnic_device_info *list, int max, struct rnic_err *err);
int device_open(const char *netdev, const struct rnic_open_attr *attr, const struct rnic_provider *provider,
                struct dev **out, struct rnic_err *err);
int device_import(int cmd_fd, const struct rnic_provider *provider, struct dev **out, struct rnic_err *err);
int device_close(struct rnic_context *ctx);

static inline void dev_lock(struct dev *dev) { run_lock(&dev->run); }
static inline bool dev_trylock(struct dev *dev) { return run_trylock(&dev->run); }
static inline void dev_unlock(struct dev *dev) { run_unlock(&dev->run); }

/* What the device listens to, in this order. */
extern const struct source wire_source, forward_source, lanes_source, mcast_source, listeners_source, follow_source,
    raw_source;

/* qpn.c. add: gives the QP a number. 0, -ENOMEM, -EUSERS */
int qpn_init(struct dev *dev, struct rnic_err *err);
void qpn_free(struct dev *dev);
int qpn_add(struct dev *dev, struct qp *qp, struct rnic_err *err);
void qpn_remove(struct dev *dev, struct qp *qp);
struct qp *qpn_find(const struct dev *dev, uint32_t qpn);
void qpn_each(struct dev *dev, void (*visit)(struct dev *dev, struct qp *qp)); /* the GSI queue pair, too */
bool qpn_rests(const struct dev *dev, uint32_t qpn, uint64_t now); /* its queue pair has gone a moment ago */
bool qpn_is_ours(const struct dev *dev, uint32_t slot);

/* check.c. 0, or -EINVAL that names fork */
int dev_check_alive(const struct dev *dev, struct rnic_err *err);
int dev_check_working(const struct dev *dev, struct rnic_err *err); /* 0, or -EIO: also for a forked child */
/* Both: for all that makes, changes or asks; what gives back and what is left to be read goes on. */
int dev_check_usable(const struct dev *dev, struct rnic_err *err);
int dev_check_port(int port, struct rnic_err *err);
/* An object is to be destroyed: -EBUSY while events of it are not acknowledged; leave: else those that wait are
 * forgotten. */
int dev_check_events(struct dev *dev, const void *context, struct rnic_err *err);
int dev_leave_events(struct dev *dev, const void *context, struct rnic_err *err);

/* ah.c */
int ah_resolve(struct dev *dev, const struct rnic_ah_attr *av, struct way *to, struct rnic_err *err);
/* The same to a connected queue pair. */
int ah_resolve_peer(struct dev *dev, const struct rnic_ah_attr *av, uint32_t qpn, struct way *to, struct rnic_err *err);
void ah_reap(struct dev *dev); /* frees those that nothing names any more; when nothing lies in the sending batch */
void ah_free_all(struct dev *dev);

/* ports.c */
int ports_open(struct dev *dev, struct rnic_err *err);
void ports_settle(struct dev *dev); /* waits until packets come to us, or a moment; the engine runs, without the lock */
/* The largest IBA MTU that fits the netdev's with all headers; 0: none does. */
int dev_mtu_of(int netdev_mtu);
int dev_active_mtu(const struct dev *dev);
uint64_t ports_remaps(const struct dev *dev); /* times that places in groups were learnt, for the counter */
void ports_say_goodbye(struct dev *dev);      /* before they close: packets then go to those who stay */
void ports_close(struct dev *dev);
void ports_measure(struct dev *dev);                                          /* what follows from buffers and MTU */
bool ports_follow(struct dev *dev, const struct netdev *fresh, uint64_t now); /* true: the GID table has changed */
/* What names a port keeps its entry for the same address. leave: way->port may be, and then is, NULL */
void ports_use(struct dev *dev, const struct way *way);
void ports_leave(struct dev *dev, struct way *way);

/* pkeys.c */
int pkeys_init(struct dev *dev, const struct rnic_open_attr *attr, struct rnic_err *err);
int pkeys_set(struct dev *dev, const uint16_t *pkeys, uint32_t n, struct rnic_err *err);

/* follow.c. concerns: do notices of the kernel speak of that netdev? apply: it is like this now. */
int follow_open(struct dev *dev, struct rnic_err *err);
void follow_close(struct dev *dev);
bool follow_concerns(const void *notices, uint32_t n, int ifindex);
void follow_look(struct dev *dev, uint64_t now);
void follow_apply(struct dev *dev, const struct netdev *fresh, uint64_t now);
void device_fail(struct dev *dev); /* IBA 11.6.3.3 */

/* A datagram's packet on its way to a queue pair. */
struct incoming {
    struct packet pkt;
    const struct sockaddr_in6 *dst; /* where it came to */
    uint16_t guess, id;             /* identification: the likely one, and what the ICRC says that it was */
    uint8_t grh[40];
};
static inline uint32_t deth_source(const struct packet *pkt) { return deth_sqpn(pkt->bth + pkt->row->deth); }

/* mcast.c */
int mcast_attach(struct dev *dev, struct qp *qp, const union rnic_gid *gid, struct rnic_err *err);
int mcast_detach(struct dev *dev, struct qp *qp, const union rnic_gid *gid, struct rnic_err *err);
void mcast_abandon(struct dev *dev); /* in a forked child */

/* gsi.c. elsewhere: true: the packet for QP1 is another process' and was handed on, or nobody's and was answered */
bool gsi_elsewhere(struct dev *dev, struct port *port, struct incoming *in, const struct udp_datagram *d, uint32_t n,
                   uint64_t now);
bool gsi_is_request(const struct packet *pkt); /* for a connection, or for the queue pair of a service */

/* listeners.c. close: frees it. have: the device's own, of that address (exact) or of all addresses of its family */
int listeners_open(struct dev *dev, uint64_t service_id, const union rnic_gid *addr, uint32_t flags,
                   struct rnic_listener **out, struct rnic_err *err);
void listeners_close(struct dev *dev, struct rnic_listener *listener);
int listeners_count(const struct dev *dev);
bool listeners_have(const struct dev *dev, uint64_t service_id, const struct port *port, bool exact);
void listeners_abandon(struct dev *dev);

/* outbox.c. send: 0: on its way, held, or counted as lost; -ECONNREFUSED: there is no such name */
int outbox_send(struct dev *dev, struct port *port, const struct abstract_name *to, const struct slot_packet *p,
                const uint8_t *bth, uint64_t now);
void outbox_timer(struct dev *dev, uint64_t now);
uint64_t outbox_deadline(const struct dev *dev);
void outbox_free(struct dev *dev);

/* strays.c. no: it is not worth a look, nobody has it.  missed: a look was in vain */
bool strays_may_answer(struct dev *dev, uint64_t now);
bool strays_no_slot(const struct dev *dev, uint32_t slot, uint64_t now);
void strays_missed_slot(struct dev *dev, uint32_t slot, uint64_t now);
bool strays_no_name(const struct dev *dev, const struct stray_name *name, uint64_t now);
void strays_missed_name(struct dev *dev, const struct stray_name *name, uint64_t now);

/* floods.c. note: nobody needed n packets of a datagram. admit: false: it has asked for connections too often */
void floods_note(struct dev *dev, struct port *port, const struct udp_datagram *d, uint32_t n, uint64_t now);
void floods_handed_on(struct dev *dev, uint32_t slot, uint64_t now); /* a packet, to a living process */
/* A queue pair hears that address from now on; NULL: all. */
void floods_new_peer(struct dev *dev, const struct qp *qp, const struct in6_addr *from);
bool floods_admit(struct dev *dev, const struct sockaddr_in6 *src, uint64_t now);

/* raw.c. enter, leave: a RAW_PACKET queue pair comes and goes. listen: it has a rule, frames of the wire may be for it */
int raw_enter(struct dev *dev, struct qp *qp, struct rnic_err *err);
void raw_leave(struct dev *dev, struct qp *qp);
int raw_listen(struct dev *dev, struct rnic_err *err);
void raw_set_fault(struct dev *dev, const struct rnic_fault *fault);
/* Frames can leave this host; else err says why not. Whether a packet socket could be opened is known by trying. */
bool raw_reaches_wire(struct dev *dev, struct rnic_err *err);
void raw_measure(struct dev *dev); /* the MTU may have changed */
void raw_fail(struct dev *dev);    /* the netdev has gone */
void raw_abandon(struct dev *dev);

/* demux.c. check, icrc, may_ask: false: dropped */
bool demux_icrc(struct dev *dev, struct incoming *in, const struct udp_datagram *d, uint32_t n);
bool demux_check(struct dev *dev, struct incoming *in, const struct sockaddr_in6 *dst, const struct udp_datagram *d);
bool demux_may_ask(struct dev *dev, const struct udp_datagram *d, uint64_t now); /* this process to be connected to */
void demux_count_forward(struct dev *dev, int rc, uint32_t packets); /* rc of port_forward(), port_hand_on() */
void demux_deliver(struct dev *dev, struct qp *qp, const struct packet *pkt, uint32_t n, uint64_t now);
void demux_datagram(struct dev *dev, struct port *port, const struct udp_datagram *d, bool forwarded, uint64_t now);

bool demux_parse(struct dev *dev, struct packet *pkt, const uint8_t *bth, uint32_t n, uint32_t trailer);

/* lanes.c. decide: false: it is not known yet, and the queue pair becomes ready when it is. leave: before it is reset */
void lanes_open(struct dev *dev, int slot);
void lanes_close(struct dev *dev);
void lanes_abandon(struct dev *dev);                /* in a forked child */
void lanes_tell(struct dev *dev);                   /* our slots or addresses have changed */
void lanes_prepare(struct dev *dev, struct qp *qp); /* asks, and waits a moment for an answer; without the lock */
bool lanes_decide(void *owner, struct qp *qp, uint64_t now); /* of struct run */
void lanes_leave(struct dev *dev, struct qp *qp);
/* A packet of the peer has come by the wire: may it? */
bool lanes_hear_wire(struct dev *dev, struct qp *qp, const struct packet *pkt);
/* Until no process is inside a copy that began before, or not the one with that queue pair; false: it stands still.  Lets
 * go of the lock while it waits. */
bool lanes_await(struct dev *dev, uint32_t peer);

/* forward.c */
bool forward_receive(struct dev *dev, const struct slot *from, uint64_t now); /* what waits in such a socket */
void forward_watchers(struct dev *dev, struct slot *of); /* takes in who watches the owner of a name */

/* fork.c: the process' devices. adopt: the one that has this memory file, with one owner more, or NULL.
 * unregister: false: it has other owners, and stays; with a device that is busy, disown is asked first. */
void fork_register(struct dev *dev);
/* From here on, and until let_in, this thread makes or closes descriptors that no lock of a registered device covers: no
 * fork comes in between.  Not while such a lock is held, and not twice. */
void fork_keep_out(void);
void fork_let_in(void);
struct dev *fork_adopt(int cmd_fd);
bool fork_disown(struct dev *dev);
bool fork_unregister(struct dev *dev);

#endif
