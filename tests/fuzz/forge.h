/* SPDX-License-Identifier: Apache-2.0
 *
 * Packets that a hostile peer would send, made with full knowledge of the queue pair they are for: first the packet
 * that it expects next, then what an attacker would change in it.
 */
#ifndef RNIC_TESTS_FORGE_H
#define RNIC_TESTS_FORGE_H

#include "dice.h"
#include "qp/qp.h"

struct region { /* memory of the target's node */
    uint64_t va, length;
    uint32_t rkey;
};

#define REGIONS 7
#define SRQS 4
struct grounds {
    struct region region[REGIONS]; /* the first may be written, read and changed */
    uint32_t srqn[SRQS];           /* of the target's XRC domain, and one that is not */
};

struct forged {
    uint32_t n;                        /* from the BTH to the pad, without ICRC */
    uint8_t bytes[(64 << 10) + 16384]; /* longer than any packet */
};

/* A packet that the queue pair has reason to accept: the next request, one that it knows, or an answer. */
void forge_valid(struct forged *f, const struct qp *qp, const struct grounds *g, struct dice *d);
/* Changes one to three things of it. */
void forge_mutate(struct forged *f, const struct qp *qp, const struct grounds *g, struct dice *d);
/* A datagram for a queue pair with that number and Q_Key. */
void forge_datagram(struct forged *f, uint32_t qpn, uint32_t qkey, struct dice *d);
/* A CM message for queue pair 1: for that service or a communication id of that slot, as a rule. */
void forge_mad(struct forged *f, uint64_t service_id, uint32_t slot, struct dice *d);
/* Bytes without sense. */
void forge_noise(struct forged *f, struct dice *d);

#endif
