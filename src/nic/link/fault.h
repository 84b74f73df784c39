/* SPDX-License-Identifier: Apache-2.0
 *
 * The fault injector: what a link does to packets on their way out, repeatable by its seed.
 */
#ifndef RNIC_LINK_FAULT_H
#define RNIC_LINK_FAULT_H

#include "base/rng.h"
#include "link/link.h"

/* A packet that is kept back. */
struct held_packet {
    struct held_packet *next;
    struct way way;
    uint64_t until; /* leaves then, ns */
    uint32_t gap;   /* or after so many later packets; 0: only by time */
    uint32_t length;
    uint8_t bytes[];
};

struct fault {
    bool on;
    struct rnic_fault cfg;
    uint32_t seen[RNIC_FAULT_RULES]; /* packets that matched a lose rule so far */
    struct rng rng;
    struct held_packet *held;
};

void fault_set(struct fault *f, const struct rnic_fault *cfg); /* NULL: off; what is held is lost */
/* Sends a packet through the injector. */
void fault_send(struct fault *f, struct rnic_counters *cnt, const struct way *way, const uint8_t *bytes,
                uint32_t length, uint64_t now);
/* Lets go what is due: it goes by its way's link, whichever that is (emit() of its table). */
void fault_release(struct fault *f, uint64_t now);
uint64_t fault_deadline(const struct fault *f);
/* Forgets what is held for a way that leads by what is being closed, as its link tells; leads_by NULL: all. */
void fault_forget(struct fault *f, bool (*leads_by)(const struct way *way, const void *what), const void *closed);

#endif
