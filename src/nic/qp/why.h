/* SPDX-License-Identifier: Apache-2.0
 *
 * Why something has failed, for people who look for a mistake: WC.explain(), `rnic run --explain`.  All of it is found out when
 * something has failed, from what is there then; nothing is kept for it before, but the keys of deregistered regions.
 *
 * What a responder finds travels to a requester of the same user on the same host, behind the NAK (resp_out.c).  On the wire nothing
 * may carry it, and it is said at the responder's end.
 */
#ifndef RNIC_QP_WHY_H
#define RNIC_QP_WHY_H

#include "qp/qp.h"

/* What an end that refuses a request, or a request's own memory, has found.  Between two processes as it is; so it is only
 * numbers, and none of them is trusted. */
struct finding {
    uint64_t addr, length; /* asked for */
    uint64_t start, size;  /* of the region that the key names, or bytes of the receive; size 0: there is none */
    uint64_t gone;         /* ns since the region was deregistered; 0: it is not known that there was one */
    uint32_t key;
    uint32_t lacks;      /* rights that were asked for and are not granted (enum rnic_access_flags), */
    uint32_t by_qp;      /* by the queue pair: it is one of its attributes */
    uint32_t vendor_err; /* enum rnic_vendor_err; 0: nothing was found */
};

/* So that a NAK with it behind is not taken for an ACK with a short packet behind (link_ops, put). */
_Static_assert(sizeof(struct finding) > LINK_JOINED - 16, "it is longer than what may be joined");

struct why {
    struct finding here;  /* what this end has refused last */
    struct finding there; /* what the peer says that it has refused */
    bool strange;         /* the peer has answered nothing of what was sent, but this PSN: */
    uint32_t answered;
    struct rnic_wc wc; /* the last completion that failed, and was not flushed: wr_id and status, */
    struct rnic_cause cause;
};

/* Of memory that a key was to give access to, which has been refused. */
struct finding why_memory(const struct qp *qp, int vendor_err, uint32_t key, uint64_t addr, uint64_t length,
                          uint32_t access, uint64_t now);
/* The same of the oldest receive's own memory. */
struct finding why_receive(struct qp *qp, int vendor_err);
/* This end refuses what its peer asks for: to be called before anything is completed or raised.  what: "SEND" */
void why_refuse(struct qp *qp, const char *what, const struct finding *found);
/* The peer has refused what this end has asked for; bytes: a finding, or what somebody sends in its place. */
void why_refused(struct qp *qp, const void *bytes, size_t n);
/* The peer has never answered but with this PSN, which it was not sent; the request under way is given up. */
void why_strange(struct qp *qp, uint32_t psn);
/* The oldest element of a queue completes with an error: wc is its completion. */
void why_send_failed(struct qp *qp, const struct send_wqe *wqe, const struct rnic_wc *wc);
void why_receive_failed(struct qp *qp, const struct rnic_wc *wc);
/* A packet for a queue pair was dropped; qp: NULL, there is none of that number.  counter: of the reason */
void why_drop(struct nic *nic, const struct qp *qp, uint32_t qpn, int counter);

#endif
