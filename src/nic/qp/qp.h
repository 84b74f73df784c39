/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue pairs: the object, its attributes and states, and what all transports share: consuming a receive, generating
 * completions, moving to the error state and flushing.
 *
 * Everything but posting runs under the device's lock.
 */
#ifndef RNIC_QP_QP_H
#define RNIC_QP_QP_H

#include "link/link.h"
#include "mem/mw.h"
#include "mem/remote.h"
#include "qp/ib.h"
#include "qp/pace.h"
#include "qp/transport.h"
#include "qp/turn.h"
#include "queue/comp_cntr.h"
#include "queue/cq.h"
#include "queue/events.h"
#include "queue/srq.h"
#include "queue/wq.h"
#include "wire/packet.h"

struct qp;
struct raw_net;
struct tagged;
struct xrc_domain;
struct why;

/* How packets of a connected queue pair go: requests the way that their sender has chosen, answers the way that the
 * requests have come, so that the two ends need not agree. */
enum reach {
    REACH_WIRE,
    REACH_OPEN, /* its peer may be on this host: not decided yet */
    REACH_LOCAL,
};

/* For transports without answers: their one timer is the pace's. */
void engine_pace_timer(struct qp *qp, uint64_t now);
uint64_t engine_pace_deadline(const struct qp *qp);
uint64_t engine_never(const struct qp *qp);
bool engine_never_settles(struct qp *qp);

/* Where a look stands at who of this host is inside a copy that began before it. */
struct farewell {
    uint32_t peer; /* number of a queue pair of the process that is meant; 0: all are */
    bool begun;
    uint64_t lane; /* the one that is looked at; 0: all have been, and nobody is inside */
    uint32_t mark; /* which it had */
};

/* What the QPs of one device share; the device owns it. */
struct nic {
    uint32_t mtu; /* payload bytes that a packet of the port can have */
    struct mr_table mrs;
    struct event_queue events;
    struct cq_timing cq_timing;
    struct rnic_counters counters;
    uint64_t useless; /* packets that nobody needed: by them a flood is known */
    struct rng rng;
    uint32_t max_window;  /* bytes in flight a QP */
    uint32_t slow_window; /* the same where round trips are long; at least max_window */
    uint32_t turn;        /* packets that a QP sends a turn, where a slow link is shared; 0: as many as it likes */
    bool faulty;          /* the injector is on: all goes by packets, that can be lost */
    struct link *wire;    /* packets go by it, but for those to peers on this host: */
    struct link *(*local_way)(void *arg, uint32_t qpn,
                              const struct in6_addr *to); /* of a datagram; NULL: by the wire */
    void *local_arg;
    bool (*have_left)(void *arg, struct farewell *f); /* nobody is inside any more; NULL: nobody ever is */
    uint64_t silent;       /* peers' WRITEs, READs and atomics, of which no completion tells */
    uint64_t copied;       /* bytes, by direct operations (roce/direct.h) of what was posted before */
    struct store *store;   /* where processes of this host find what their peers allow; NULL: nowhere */
    struct srq **xrc_srqs; /* see qp/xrc.h; NULL: there has been none */
    struct raw_net *raw;   /* of RAW_PACKET queue pairs; NULL: there is none */
    uint64_t answered;     /* when a peer has last answered any of the queue pairs by a link, */
    uint64_t slowest;      /* and by how much such an answer was late of late, at most, ns */
    uint64_t late;         /* so long this host has lately kept the device waiting: its peers, too, it may be */
    bool unread;           /* answers may lie in a socket or a lane: what they answer is not given up */
    uint64_t ack_hold;     /* ns that an ACK of a receive may wait for the application's answer; 0: it does not poll */
    bool hold_local;       /* also one to a peer on this host, who may have to be woken for it */
    /* Of transports that go by streams: one has ended, and whoever has made it is to be told. NULL: nobody */
    void (*stream_told)(void *arg, struct qp *qp, const struct rnic_stream_event *event);
    void *stream_arg;
    bool (*is_open)(void); /* may other processes of this user look into this one? NULL: they may not */
    rnic_told *told;       /* of what fails (nic_ext.h); NULL: nobody is */
    void *told_arg;
    struct ah *dying_ahs; /* destroyed, and named by send elements still, see qp/ah.h */
    struct nic_ib ib;     /* InfiniBand's transports' */
};

struct qp {
    struct rnic_qp pub;
    struct nic *nic;
    const struct service *service;   /* what it is, */
    const struct engine_ops *engine; /* how that works, */
    void *engine_state;              /* and the engine's own */
    _Atomic int state;               /* enum rnic_qp_state */
    struct rnic_qp_attr attr;        /* as set; states and cap kept elsewhere */
    bool datagrams;                  /* each message names its own peer: as of the service */
    bool sq_sig_all;
    bool sq_draining;      /* SQD: messages under way are not finished yet */
    int groups;            /* multicast groups that it is attached to */
    bool last_due;         /* QP_LAST_WQE_REACHED is to be raised when it has been flushed */
    bool last_wqe;         /* QP_REQ_ERR, QP_ACCESS_ERR or QP_FATAL has been raised */
    struct wq sq, rq;      /* with a shared receive queue, rq holds the one receive that a message has taken from it */
    struct srq *srq;       /* or NULL; of XRC_RECV: of the request under way, or the last one */
    struct mw *windows;    /* of type 2, bound through it */
    struct tagged *tagged; /* where that matches tags, or NULL */
    bool no_receives;      /* none are posted to rq: they come from shared queues, or there are none */
    struct comp_cntrs *cntrs;   /* NULL: no completion counter is attached */
    struct pace pace;           /* of what the send queue sends */
    enum reach reach;           /* of our requests */
    enum reach reach_in;        /* of the peer's, and our answers; REACH_OPEN: there was none */
    struct way way;             /* to the peer */
    uint64_t known_lane;        /* one more by which its peer was found to send, see lanes_in.c; 0: none */
    bool apart;                 /* answers go another way than requests do: */
    struct way answers;         /* that one */
    struct remote *remote;      /* memory that it can reach itself, or NULL */
    _Atomic uint32_t at_once;   /* operations (1 << enum rnic_wr_opcode) that may be done while they are posted */
    struct remote_qp remote_qp; /* what its peer allows there */
    struct rnic_counters counters;
    int record;   /* in nic->store; -1: none */
    bool exposed; /* a peer of this host may be inside a copy that it makes by this queue pair */
    bool leaving; /* a thread waits for such, to destroy or change it: */
    pthread_t leaver;
    bool destroying;  /* and it is to be no more then */
    uint32_t waiting; /* threads that wait for that one */
    bool failed;      /* the oldest send element ends with its own status when the queue is flushed */
    struct farewell farewell;
    struct why *why; /* NULL: nothing has failed yet, see qp/why.h */

    struct xrc_domain *xrc;     /* of XRC_RECV, or NULL */
    struct qp *xrc_next;        /* in the domain's list */
    struct xrc_handle *handles; /* as programs have it open, if they have no other way to it; events go to each */
    struct qp *real;            /* itself, unless it is but a handle; the device's */
    struct listed listed;       /* in the context's list, unless it has handles: those are there */

    struct qp_ib ib;     /* InfiniBand's transports' */
    struct qp_turn turn; /* the scheduler's */
};

#define COUNT_N(qp, name, n)                                                                                           \
    ((qp)->counters.value[RNIC_CNT_##name] += (n), (qp)->nic->counters.value[RNIC_CNT_##name] += (n))
#define COUNT(qp, name) COUNT_N(qp, name, 1)
/* A packet that nobody needed, and that a peer as it should be does not send often. */
#define COUNT_USELESS(qp, name) (COUNT(qp, name), (qp)->nic->useless++)

/* By which a datagram to that queue pair goes. */
static inline struct link *nic_link_to(const struct nic *nic, uint32_t qpn, const struct in6_addr *to) {
    struct link *local = nic->local_way ? nic->local_way(nic->local_arg, qpn, to) : NULL;
    return local ? local : nic->wire;
}

/* It is a queue pair of that kind from now on. */
static inline void qp_set_service(struct qp *qp, const struct service *service) {
    qp->service = service;
    qp->engine = service->engine;
    qp->sq.rules = service->sends;
    qp->datagrams = service->datagrams;
    qp->ib.service = service->ib.service;
    qp->ib.takes = service->ib.takes;
    qp->ib.opcodes = service->ib.opcodes;
}

/* Pacing: bytes sent so far, and what has been sent since then is paid for; responses and ACKs cost nothing. */
static inline uint64_t qp_sent(const struct qp *qp) { return qp->counters.value[RNIC_CNT_tx_bytes]; }
static inline void qp_charge(struct qp *qp, uint64_t before, uint64_t now) {
    if (qp->pace.rate)
        pace_sent(&qp->pace, qp_sent(qp) - before, now);
}

/* Packets of requests so far, repeated ones and probes included. */
static inline uint64_t qp_requests(const struct qp *qp) {
    return qp->counters.value[RNIC_CNT_requests_sent] + qp->counters.value[RNIC_CNT_requests_resent];
}
/* It has another port now, or another connection: nothing of this one is on its way. */
static inline void qp_forget_written(struct qp *qp) {
    qp->turn.written = 0;
    qp->turn.left_seen = NEVER;
}

/* For completion counters: an operation has ended (enum rnic_comp_cntr_op). */
static inline void qp_count(const struct qp *qp, uint32_t op, bool success, uint64_t bytes) {
    if (qp->cntrs)
        comp_cntr_count(qp->cntrs, op, success, bytes);
}

/* Datagrams: no peer, each packet names its own. */
static inline bool qp_is_datagram(const struct qp *qp) { return qp->datagrams; }

/* Packets of a turn, of the most that an engine sends in one. */
static inline uint32_t qp_turn(const struct qp *qp, uint32_t most) {
    return qp->nic->turn && qp->nic->turn < most ? qp->nic->turn : most;
}

const char *qp_state_name(int state);
const char *qp_type_name(int type);

/* attr.c: validates a change against the state table and the limits of the specification (IBA 11.2.5.2, table 91)
 * without changing anything.  qp_attr_apply then cannot fail. */
int qp_attr_check(const struct qp *qp, const struct rnic_qp_attr *attr, uint32_t mask, struct rnic_err *err);
void qp_attr_apply(struct qp *qp, const struct rnic_qp_attr *attr, uint32_t mask);
void qp_attr_restore(struct qp *qp, const struct rnic_qp_attr *before); /* after that: the state could not be entered */
void qp_query(const struct qp *qp, struct rnic_qp_attr *out);           /* all but cap */
/* For check() of transports: attributes that are numbers with a least and a largest value. */
struct attr_limit {
    uint32_t bit; /* enum rnic_qp_attr_mask */
    uint32_t value, least, most;
    const char *name;
};
int qp_check_limits(const struct attr_limit *rows, size_t n, uint32_t mask, struct rnic_err *err);
/* What a transition does beside its attributes, which are in force already (IBA 10.3.1). 0, -errno: nothing changed */
int qp_transition(struct qp *qp, int to, struct rnic_err *err);

/* Key, bounds and rights of memory that the peer asks for, under a protection domain: 0, or enum rnic_vendor_err.
 * *ptr: as of mr_remote(). */
static inline int qp_remote_under(const struct qp *qp, const struct rnic_pd *pd, uint32_t key, uint64_t addr,
                                  uint64_t length, uint32_t access, uint8_t **ptr) {
    int ve = mr_remote(&qp->nic->mrs, pd, key, addr, length, access, ptr);
    return ve == RNIC_VE_RKEY_PD ? mw_remote(&qp->nic->mrs, &qp->pub, pd, key, addr, length, access, ptr) : ve;
}
static inline int qp_remote(const struct qp *qp, uint32_t key, uint64_t addr, uint64_t length, uint32_t access,
                            uint8_t **ptr) {
    return qp_remote_under(qp, qp->pub.pd, key, addr, length, access, ptr);
}

/* Is there a receive, at rq's tail, for the message that the packet belongs to? With a shared receive queue a message takes
 * one when it begins: its oldest, or, where tags are matched, that with its tag. */
bool qp_takes_shared(struct qp *qp);
void srq_look_at_limit(struct nic *nic, struct srq *srq); /* raises its event when fewer are left; that disarms it */
bool qp_takes(struct qp *qp, const struct packet *pkt);
static inline bool qp_has_receive(struct qp *qp, const struct packet *pkt) {
    return !wq_empty(&qp->rq) || (qp->srq && qp_takes(qp, pkt));
}

/* Completes the oldest send element (success when wqe->status is 0), unless it is unsignaled and successful. */
void qp_complete_send(struct qp *qp, struct send_wqe *wqe);
/* Completes the oldest receive element; wc holds status, opcode, byte_len, flags, imm, and of a datagram src_qp. */
void qp_complete_recv(struct qp *qp, struct rnic_wc *wc, bool solicited);
/* A completion that frees no element of a queue. */
void qp_tell(struct qp *qp, const struct rnic_wc *wc, bool solicited);
/* Of transports without answers: completes the oldest with an error, which concerns the send queue alone: it stops in SQE,
 * receives go on. */
void qp_refuse_send(struct qp *qp, struct send_wqe *wqe, int status, int vendor_err);
/* next() of transports whose messages are one packet, complete when it has gone out: send() for so many of the oldest
 * elements at most, as the pace allows. send: completes or refuses the element; false: the sink is full */
bool qp_send_some(struct qp *qp, uint64_t now, uint32_t most,
                  bool (*send)(struct qp *qp, struct send_wqe *wqe, uint64_t now));
void qp_flush_sends(struct qp *qp); /* all of a queue, WR_FLUSH_ERR */
void qp_flush_receives(struct qp *qp);
void qp_flush(struct qp *qp); /* both */
/* Nothing is under way (any more): the send queue has drained, if it was told to (IBA 10.3.1.5). */
void qp_drained(struct qp *qp);
/* The queues go, or start anew: completions that are not polled yet free nothing in them any more. */
void qp_forget_completions(struct qp *qp);
/* No process of this host begins to reach memory by it any more. */
static inline void qp_withdraw(struct qp *qp) {
    if (qp->nic->store)
        store_withdraw(qp->nic->store, qp->record);
    qp->record = -1;
}
/* The same, nor to read what it has sent by reference: that is lost, as the queue pair ends. */
void qp_close_off(struct qp *qp);
/* And whoever had begun has left it; to be asked again until it is so. */
bool qp_is_left(struct qp *qp);
/* Moves to ERR, raises event (or none: -1), flushes, at once or when it is left. */
void qp_error(struct qp *qp, int event);
void qp_event(struct qp *qp, int event);

#endif
