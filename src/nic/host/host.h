/* SPDX-License-Identifier: Apache-2.0
 *
 * The host of a device: whose a packet is, of the processes and queue pairs that share the host's addresses.
 *
 *   qpn.c           queue pair numbers: slot and index
 *   lanes.c         peers on this host: which lanes there are,
 *   lanes_way.c     which queue pairs go by them,
 *   lanes_in.c      what comes by them,
 *   lanes_copies.c  and who of the peers is inside a copy
 *   forward.c       what other processes of this host hand on, and are handed
 *   outbox.c        CM messages that wait for room in another process' socket
 *   listeners.c     who listens
 *   roles.c         what a context is to the others, whatever is asked for
 *   strays.c        what packets may cost that are for nobody
 *   floods.c        floods: what nobody needs is muted, requests for connections are counted
 *   host.c          open and close; a further slot
 *
 * The room decides which process and which queue pair a number or a service names, and by which way queue pairs of two
 * processes reach each other.  It does not know what a packet asks for, nor who hands it in.
 *
 * struct host is the room's own.  Others read it, set nothing in it, and call the functions; all of that under the device's
 * lock.
 */
#ifndef RNIC_HOST_HOST_H
#define RNIC_HOST_HOST_H

#include "base/allowance.h"
#include "link/lane/lane.h"
#include "names/listen.h"
#include "net/net.h"

#define QPN_INDICES (1u << QPN_INDEX_BITS)
#define HOST_BUFFER 65536u /* bytes of one datagram that is handed on */
#define STRAY_NAMES 256
#define FLOOD_SOURCES 64

/* What nobody was found to have, see strays.c. */
enum listen_scope { LISTEN_ADDRESS, LISTEN_NETDEV, LISTEN_HOST }; /* at one address, or all of the family there */
struct stray_name { /* of a listener, for requests to the port's address */
    uint64_t service_id;
    const struct port *port;
    enum listen_scope scope;
    uint64_t until;
};
struct strays {
    struct allowance looks, answers;
    struct allowance copies;            /* of messages that go to several */
    uint64_t no_slot_until[SLOT_COUNT]; /* not looked for before that */
    uint64_t no_role_until[ROLES][ROLE_NUMBERS];
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

/* Peers on this host: lanes.c alone writes it, and its other files read it. */
struct here {
    struct lane_shared shared;
    struct lane *lanes;
    uint32_t count;
    uint32_t strangers;             /* of them other users' */
    struct allowance calls;         /* of other users at the doors */
    uint64_t numbers;               /* given out */
    struct lane *to[SLOT_COUNT];    /* by slot: asked for, or up; NULL: not asked */
    uint64_t ask_again[SLOT_COUNT]; /* not before */
    int doors[SLOTS_EACH];          /* where others ask; -1: closed */
    uint64_t doors_again;           /* watched again then; NEVER: they are watched */
    int bells_fd;                   /* the set of the lanes' sockets */
    struct watched watched[SLOTS_EACH], watched_bells;
};

/* Messages of connection management that wait for room in another process' socket: outbox.c's. */
struct letters {
    struct outbox *boxes;
    uint32_t held; /* in all of them */
    uint64_t retry_at;
};

struct host {
    struct nic *nic;
    struct run *run;
    struct net *net;

    struct slot slots[SLOTS_EACH];
    struct qp **table[SLOTS_EACH]; /* by index within the slot */
    uint64_t *freed[SLOTS_EACH];   /* when the index was given back */
    int nslots;
    struct qp *gsi; /* the queue pair with number 1, which the verbs set; or NULL */

    bool local; /* peers on this host go by lanes: */
    struct here here;
    struct letters letters;
    struct listener *listeners, *holders; /* see listeners.c */
    struct slot roles[ROLES];             /* roles.c's. number: of the name; fd -1: there is none */
    struct strays strays;
    struct floods floods;
    uint8_t *buffer; /* HOST_BUFFER, of what is being handed on */
    /* What the engine's epoll set has: */
    struct watched watched_slots[SLOTS_EACH], watched_lives[SLOTS_EACH];
};

/* What the device listens to. */
extern const struct source forward_source, outbox_source, lanes_source, doors_source, listeners_source, roles_source;

/* host.c. init: of what is all zero, after net_init().  open: with one slot.  free: when the ports are closed, which need
 * it.  add_qp: gives it a number. 0, -ENOMEM, -EUSERS */
void host_init(struct host *host, struct net *net);
int host_open(struct host *host, bool local, struct rnic_err *err);
void host_free(struct host *host);
void host_abandon(struct host *host); /* in a forked child */
int host_add_qp(struct host *host, struct qp *qp, struct rnic_err *err);

/* qpn.c. add_slot: 0, -ENOMEM, -EUSERS.  take: gives the QP a number; false: none is free */
int qpn_add_slot(struct host *host, struct rnic_err *err);
void qpn_free(struct host *host);
bool qpn_take(struct host *host, struct qp *qp);
void qpn_remove(struct host *host, struct qp *qp);
struct qp *qpn_find(const struct host *host, uint32_t qpn);
void qpn_each(struct host *host, void (*visit)(struct host *host, struct qp *qp)); /* the GSI queue pair, too */
bool qpn_rests(const struct host *host, uint32_t qpn, uint64_t now); /* its queue pair has gone a moment ago */
bool qpn_is_ours(const struct host *host, uint32_t slot);

/* listeners.c. close: frees it. have: the device's own, of that address (exact) or of all addresses of its family */
int listeners_open(struct host *host, struct rnic_context *ctx, uint64_t service_id, const union rnic_gid *addr,
                   uint32_t flags, struct rnic_listener **out, struct rnic_err *err);
void listeners_close(struct host *host, struct rnic_listener *listener);
void listeners_close_all(struct host *host);
int listeners_count(const struct host *host);
bool listeners_have(const struct host *host, uint64_t service_id, const struct port *port, bool exact);
void listeners_abandon(struct host *host);

/* roles.c. take: from now on others find this context in that role; 0, -errno.  drop: not any more, if they did */
void roles_init(struct host *host);
int roles_take(struct host *host, enum role role);
void roles_drop(struct host *host, enum role role);
void roles_abandon(struct host *host);

/* outbox.c. send: 0: on its way, held, or counted as lost; -ECONNREFUSED: there is no such name */
int outbox_send(struct host *host, struct port *port, const struct abstract_name *to, const struct slot_packet *p,
                const uint8_t *bth, uint64_t now);
void outbox_timer(struct host *host, uint64_t now);
uint64_t outbox_deadline(const struct host *host);
void outbox_free(struct host *host);

/* strays.c. no: it is not worth a look, nobody has it.  missed: a look was in vain.  copy: may a message go to several now?
 * copied: it did, to so many */
bool strays_may_answer(struct host *host, uint64_t now);
bool strays_no_slot(const struct host *host, uint32_t slot, uint64_t now);
void strays_missed_slot(struct host *host, uint32_t slot, uint64_t now);
bool strays_no_name(const struct host *host, const struct stray_name *name, uint64_t now);
void strays_missed_name(struct host *host, const struct stray_name *name, uint64_t now);
bool strays_no_role(const struct host *host, enum role role, uint32_t number, uint64_t now);
void strays_missed_role(struct host *host, enum role role, uint32_t number, uint64_t now);
bool strays_may_copy(const struct host *host, uint64_t now);
void strays_copied(struct host *host, uint32_t copies, uint64_t now);

/* floods.c. note: nobody needed n packets of a datagram. admit: false: dropped, as the sender has asked for connections
 * too often */
void floods_note(struct host *host, struct port *port, const struct udp_datagram *d, uint32_t n, uint64_t now);
void floods_handed_on(struct host *host, uint32_t slot, uint64_t now); /* a packet, to a living process */
/* A queue pair hears that address from now on; NULL: all. */
void floods_new_peer(struct host *host, const struct qp *qp, const struct in6_addr *from);
bool floods_admit(struct host *host, const struct sockaddr_in6 *src, uint64_t now);

/* lanes.c */
void lanes_open(struct host *host, int slot);
void lanes_close(struct host *host);
void lanes_abandon(struct host *host); /* in a forked child */
void lanes_tell(struct host *host);    /* our slots or addresses have changed */

/* lanes_way.c. prepare: asks, and waits a moment for an answer; without the lock.  decide: of struct run, whose decider is
 * the host.  leave: before it is reset.  hear_wire: a packet of the peer has come by the wire: may it?  link_to: of struct
 * nic (local_way) */
void lanes_prepare(struct host *host, struct qp *qp);
bool lanes_decide(void *decider, struct qp *qp, uint64_t now);
void lanes_leave(struct host *host, struct qp *qp);
bool lanes_hear_wire(struct host *host, struct qp *qp, const struct packet *pkt);
struct link *lanes_link_to(void *arg, uint32_t qpn, const struct in6_addr *to);

/* lanes_copies.c. await: until no process is inside a copy that began before, or not the one with that queue pair; false: it
 * stands still.  Lets go of the lock while it waits.  have_left: of struct nic */
bool lanes_await(struct host *host, uint32_t peer);
bool lanes_have_left(void *arg, struct farewell *f);

/* forward.c. to: some packets to the process that has the slot.  count: rc of port_forward(), port_hand_on() */
void forward_to(struct host *host, struct port *port, uint32_t slot, const struct slot_packet *p, const uint8_t *bytes,
                uint64_t now);
void forward_count(struct host *host, int rc, uint32_t packets);
bool forward_receive(struct host *host, const struct slot *from, uint64_t now); /* what waits in such a socket */
void forward_watchers(struct host *host, struct slot *of, uint64_t now); /* takes in who watches the owner of a name */

#endif
