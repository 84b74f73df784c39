/* SPDX-License-Identifier: Apache-2.0
 *
 * Steering: which socket of the kernel's reuseport group gets a packet.
 *
 * The group is an array of sockets in the order of their binds; when one closes, the last takes its place.  A classic
 * BPF program returns an index into it (beyond the end: the kernel picks by hash).  Nobody tells a process its index,
 * so it is learnt by a *remap*:
 *
 *     IDLE --(due)--> LOCK --(lock name bound, or its holder does not move)--> PROBE --> attach the map, IDLE
 *
 * PROBE sends datagrams to the own address that the program steers to index 0, 1, 2, ... in windows of 8 (as many
 * answers fit a unix socket's queue).  Every member answers with the index and its slots.  What is beyond the end
 * falls to the hash, so to one and the same member, which answers twice: that is how the end shows.  Any program ever
 * attached steers probes, so a joining member need not disturb the one in place; only when its result cannot be right
 * (not even itself, or itself at every index) it attaches a program that knows probes alone and asks again.
 *
 * A member that is killed holds no lock (the kernel frees the name); one that is stopped holds it for at most
 * LOCK_PATIENCE; one that does not answer keeps the row it had, or has none, and gets no requests of the CM meanwhile.  A wrong map costs forwards, not packets,
 * and forwards make a remap due.  What falls to a stopped member makes no forwards, so while one is silent the remap
 * repeats, at a growing distance.
 */
#ifndef RNIC_LINK_STEERING_H
#define RNIC_LINK_STEERING_H

#include <stdbool.h>
#include <stdint.h>

#include "link/port.h"

#define STEERING_SLOTS 16 /* slots that one context may hold */

struct steering_member {
    uint32_t index; /* in the kernel's group */
    bool silent;    /* it did not answer, and keeps the row that it had */
    uint32_t nslots;
    uint32_t slots[STEERING_SLOTS]; /* the first one identifies the member */
};

struct steering_map {
    bool valid;     /* false: nothing was learnt yet */
    uint32_t count; /* members of the group, silent ones included; 0: not known */
    uint32_t nmembers;
    struct steering_member members[PORT_MAX_MEMBERS]; /* by index */
};

struct slot_set {
    uint64_t bits[SLOT_COUNT / 64];
};

enum steering_phase { STEERING_IDLE, STEERING_LOCK, STEERING_PROBE };

/* Times are of the caller's clock, ns; UINT64_MAX: never. */
struct port_steering {
    enum steering_phase phase;
    uint64_t wake;  /* when steering_timer() has something to do */
    uint64_t since; /* when this remap began to wait for its lock */

    /* a remap under way */
    int lock_fd, reply_fd;              /* -1: not open */
    uint64_t nonce;                     /* of this pass's probes, and the name of reply_fd */
    int pass;                           /* 0: with the program in place; 1: with one of our own */
    uint32_t window;                    /* first index of the window */
    int tries;                          /* how often the window's probes were sent */
    uint64_t try_until;                 /* when they are sent again, or given up */
    int32_t answered[PORT_MAX_MEMBERS]; /* first slot of the member that answered this index; -1: nobody did */
    struct steering_map found;

    /* what is known */
    struct steering_map map; /* the one that we attached last */
    bool stale;              /* somebody else has learnt a newer one since */
    uint32_t nslots;         /* the own ones: what an answer to a probe carries */
    uint32_t slots[STEERING_SLOTS];

    /* when to remap */
    bool watch; /* again without being asked: a member is silent, or misses us, and nobody else may notice */
    uint64_t last, interval;   /* the last remap's end; distance to the next for slots that it did not help */
    bool others_remap;         /* somebody else's probe came, and `last` does not say so yet */
    struct slot_set pending;   /* slots whose forwards asked for the next remap */
    struct slot_set offenders; /* slots whose forwards asked for the last one */

    /* a bound on answers, as probes may come from anybody on this host */
    uint32_t credits;
    uint64_t refill; /* when they are full again */

    /* while another user's process owns the address */
    int claim_fd; /* a socket that is ready to be bound; -1: none */
    uint64_t claim_at;
    uint32_t owner_uid; /* of whoever may forward to us */
    bool owner_stale;   /* somebody else tried */
};

/* The first remap is due at once. */
void steering_start(struct port *p, uint64_t now);

/* Leaves the group an order that will be right when our socket is closed, when we know it; closes descriptors. */
void steering_stop(struct port *p);

void steering_probe_input(struct port *p, const uint8_t *data, uint32_t length, const struct sockaddr_in6 *src);

/* A packet for a slot came here though it should not have. */
void steering_forwarded(struct port *p, uint32_t slot, uint64_t now);

void steering_timer(struct port *p, uint64_t now);
uint64_t steering_deadline(const struct port_steering *st);

#endif
