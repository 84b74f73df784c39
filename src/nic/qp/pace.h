/* SPDX-License-Identifier: Apache-2.0
 *
 * The rate at which a queue pair may send (ibv_modify_qp_rate_limit(3)): a token bucket that knows no clock.
 *
 * `paid_at` is when a wire of that rate would have carried all that was sent.  A packet may go when that is at most
 * `slack` ahead: what an idle queue pair has saved up for a burst.
 */
#ifndef RNIC_QP_PACE_H
#define RNIC_QP_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "nic.h"

#define PACE_MIN_RATE 1u          /* kbit/s */
#define PACE_MAX_RATE 400000000u  /* beyond, a packet's time is a few ns */
#define PACE_BURST 16384u         /* bytes, or four packets: a batch for the link */

struct pace {
    uint32_t rate;    /* kbit/s; 0: no limit */
    uint64_t slack;   /* ns */
    uint64_t paid_at; /* ns */
    uint64_t wait;    /* a packet that could go otherwise waits until then; 0: none does */
};

/* mtu: bytes of a packet when attr does not say. */
void pace_set(struct pace *p, const struct rnic_qp_rate_limit_attr *attr, uint32_t mtu);
bool pace_allows(struct pace *p, uint64_t now); /* false: p->wait is set */
void pace_sent(struct pace *p, uint64_t bytes, uint64_t now);

#endif
