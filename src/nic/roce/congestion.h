/* SPDX-License-Identifier: Apache-2.0
 *
 * Congestion control of connected queue pairs (IBA Annex A17.9, RoCEv2 congestion management): whoever receives a packet
 * that a router has marked (ECN, RFC 3168) tells the sender with a congestion notification packet, CNP, and the sender
 * limits its rate as DCQCN does (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015).
 *
 * Rates are bytes a second, times nanoseconds.  No clock here: what is due is caught up with when it is asked for.
 */
#ifndef RNIC_ROCE_CONGESTION_H
#define RNIC_ROCE_CONGESTION_H

#include "qp/qp.h"

struct congestion {
    /* as receiver */
    bool owes;         /* a CNP */
    uint64_t notified; /* time of the last one; 0: never */

    /* as sender */
    bool limiting;
    uint32_t alpha;           /* how congested the way is taken to be: parts of ALPHA_ONE */
    uint64_t rate, target;    /* what is allowed now, and what it is raised towards */
    uint64_t line;            /* where the limit ends to matter: twice the rate that met congestion */
    uint64_t cut;             /* time of the last cut; 0: never */
    uint64_t decay_at;        /* alpha falls then */
    uint64_t raise_at;        /* the rate rises then, */
    uint64_t bytes;           /* or when so many have been sent: since the last such rise */
    uint32_t timed, counted;  /* rises since the last cut, by time and by bytes */
    uint64_t free_at;         /* nothing is sent before, while the rate is limited */
    bool waits;               /* something is to be sent then */
    uint64_t sample, sampled; /* bytes sent since that time, to know the rate when congestion is met, */
    uint64_t known;           /* and what it was before */
};

/* A packet of the peer came with a mark. */
void congestion_marked(struct qp *qp, struct congestion *c, uint64_t now);
static inline bool congestion_owes(const struct congestion *c) { return c->owes; }
/* Writes the CNP that is owed; false: the sink is full. */
bool congestion_notify(struct qp *qp, struct congestion *c, uint64_t now);
/* A CNP came. */
void congestion_cut(struct qp *qp, struct congestion *c, uint64_t now);
/* May a packet leave now?  When it has: sent, with its bytes. */
bool congestion_look(struct congestion *c, uint64_t now);
static inline bool congestion_free(struct congestion *c, uint64_t now) {
    return !c->limiting || congestion_look(c, now);
}
void congestion_count(struct congestion *c, uint32_t bytes, uint64_t now);
static inline void congestion_sent(const struct qp *qp, struct congestion *c, uint32_t bytes, uint64_t now) {
    if (qp->nic->ib.congestion)
        congestion_count(c, bytes, now);
}
/* When what waits may be sent; NEVER: nothing does. */
static inline uint64_t congestion_deadline(const struct congestion *c) { return c->waits ? c->free_at : NEVER; }
static inline uint64_t congestion_rate(const struct congestion *c) { return c->limiting ? c->rate : 0; }

#endif
