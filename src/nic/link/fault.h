/* SPDX-License-Identifier: Apache-2.0
 *
 * The fault injector: what a link does to packets on their way out, repeatable by its seed.
 */
#ifndef RNIC_LINK_FAULT_H
#define RNIC_LINK_FAULT_H

#include "base/rng.h"
#include "wire/packet.h"

#include "nic.h"

/* A packet that is kept back. */
struct held_packet {
    struct held_packet *next;
    struct flow flow;
    uint64_t until; /* leaves then, ns */
    uint32_t gap;   /* or after so many later packets; 0: only by time */
    uint32_t length;
    uint8_t bytes[];
};

typedef void fault_emit(void *arg, const struct flow *flow, const uint8_t *bytes, uint32_t length);

struct fault {
    bool on;
    struct rnic_fault cfg;
    uint32_t seen[RNIC_FAULT_RULES]; /* packets that matched a lose rule so far */
    struct rng rng;
    struct held_packet *held;
};

void fault_set(struct fault *f, const struct rnic_fault *cfg); /* NULL: off; what is held is lost */
/* Sends a packet through the injector. */
void fault_send(struct fault *f, struct rnic_counters *cnt, const struct flow *flow, const uint8_t *bytes,
                uint32_t length, uint64_t now, fault_emit *emit, void *arg);
/* Lets go what is due. */
void fault_release(struct fault *f, uint64_t now, fault_emit *emit, void *arg);
uint64_t fault_deadline(const struct fault *f);
/* Forgets what is held for a flow's port, or its local way, that is being closed. */
void fault_forget(struct fault *f, const void *way);

#endif
