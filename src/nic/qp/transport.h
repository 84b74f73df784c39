/* SPDX-License-Identifier: Apache-2.0
 *
 * A transport is a room with one table: the kinds of queue pairs that it has, and for each the states, attributes and
 * operations, as data that qp/ and queue/ read, and the functions of its engine.  Each kind of device has a list of
 * transports (dev/kinds.c).
 *
 * A query needs no function: it shows qp->attr, and an engine that changes an attribute, such as path_mig_state, writes it
 * there.  What packets are is the transport's own affair, too: input() is for those with a BTH, which the device finds the
 * queue pair of; others come from their own source, by a function of their room (raw_input() of raw/raw.h).
 */
#ifndef RNIC_QP_TRANSPORT_H
#define RNIC_QP_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "nic.h"
#include "qp/ib.h"
#include "queue/wq.h"

struct packet;
struct qp;

#define NEVER UINT64_MAX

/* From state, to state: which attributes must be given, and which may be (enum rnic_qp_attr_mask). */
struct transition {
    bool allowed;
    uint32_t required, optional;
};
typedef const struct transition transitions[RNIC_QPS_ERR + 1][RNIC_QPS_ERR + 1];

/* How a queue pair of a transport works.  Nothing in it does I/O or reads a clock.  A function may be NULL where its comment
 * says so, and for transports without answers qp.h has timer(), deadline(), held() and settle() that do nothing:
 * engine_pace_timer(), engine_pace_deadline(), engine_never(), engine_never_settles(). */
struct engine_ops {
    int (*create)(struct qp *qp); /* allocates qp->engine_state */
    void (*destroy)(struct qp *qp);
    void (*reset)(struct qp *qp); /* to RESET */
    /* A change of attributes.  check: beside masks and what all transports check: 0, or -errno and why not; nothing changes.
     * take: they are in force.  NULL: there is nothing to do. */
    int (*check)(const struct qp *qp, const struct rnic_qp_attr *attr, uint32_t mask, struct rnic_err *err);
    void (*take)(struct qp *qp);
    /* The queue pair goes to another state than RESET and ERR; what the attributes say is in force.  So it is connected, of
     * InfiniBand by RTR and RTS, and closed in order, where a transport does that in SQD.  0, or -errno and why not, and
     * nothing has changed.  NULL: states mean nothing to it. */
    int (*enter)(struct qp *qp, int from, int to, struct rnic_err *err);
    /* It has no peer any more, as it goes to RESET or ends: what leads there is given back.  NULL: nothing does. */
    void (*disconnect)(struct qp *qp);
    /* A packet for this QP, from its peer.  NULL: its packets have no BTH */
    void (*input)(struct qp *qp, const struct packet *pkt, uint64_t now);
    /* Is it one that the peer could have sent now, by its PSN and opcode? Of connected services; changes nothing. */
    bool (*expects)(const struct qp *qp, const struct packet *pkt);
    /* After input(): has next() anything to do? NULL: it may. */
    bool (*owes)(struct qp *qp, uint64_t now);
    bool (*next)(struct qp *qp, uint64_t now);  /* write some packets; true: there is more to write now */
    void (*timer)(struct qp *qp, uint64_t now); /* deadline() may have passed; call next() after it */
    /* Before that: what was sent had not left this host yet; time begins now.  NULL: there is no answer to wait for, */
    void (*not_left)(struct qp *qp, uint64_t now);
    bool (*has_not_asked)(struct qp *qp);      /* or: nothing under way asks for one, and what will is yet to be sent */
    uint64_t (*deadline)(const struct qp *qp); /* when timer() wants to be called; NEVER */
    uint64_t (*held)(const struct qp *qp);     /* until when an ACK waits for company; NEVER: none does */
    /* What has gone out may have been taken back: it goes out again, and costs no retry. NULL: there is nothing to do */
    void (*again)(struct qp *qp);
    bool (*settle)(
        struct qp *qp); /* before it leaves: whatever ACK waits is due now, what was posted; false: nothing is */
    void (*flush)(struct qp *qp); /* the QP is in error: complete everything, WR_FLUSH_ERR */
    void (*stats)(struct qp *qp, struct rnic_qp_stats *out);
    /* Payload bytes of full packets: of our requests, before the first; of the peer's.  NULL: it has no peer */
    void (*set_mtu)(struct qp *qp, uint32_t bytes);
    void (*set_mtu_in)(struct qp *qp, uint32_t bytes);
    /* A request was the one that was expected, and so the peer's. */
    bool (*has_begun)(const struct qp *qp);
};

/* A kind of queue pair. */
struct service {
    int type;         /* enum rnic_qp_type */
    const char *name; /* "RC" */
    const struct engine_ops *engine;
    transitions *states;          /* beside those to RESET and ERR, which are from anywhere */
    const struct sq_rules *sends; /* what may be posted */
    bool datagrams;               /* each message names whom it is for */
    uint32_t counted;             /* enum rnic_comp_cntr_op: what completion counters count of it (IBA table 45) */
    bool paced;                   /* its rate can be limited */
    const char *connected;        /* how, if not by attributes of modify_qp; NULL: by these */
    bool exposed;                 /* peers on this host may reach memory by it themselves (mem/store.h) */
    struct ib_service ib;         /* of InfiniBand's services */
};

struct transport {
    const char *name;
    const struct service *services;
    int count;
};

/* The row of a type; NULL: the transport has no such queue pairs. */
static inline const struct service *transport_service(const struct transport *t, int type) {
    for (int i = 0; i < t->count; i++) {
        if (t->services[i].type == type)
            return &t->services[i];
    }
    return NULL;
}

#endif
