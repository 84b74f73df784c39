/* SPDX-License-Identifier: Apache-2.0
 *
 * Steering: which socket of the kernel's reuseport group gets a packet.
 *
 * The group is an array of sockets in the order of their binds; when one closes, the last takes its place.  A classic
 * BPF program returns an index into it (beyond the end: the kernel picks by hash).  Nobody tells a process its index.
 * One member, the *steward*, learns the order and attaches the program: whoever is at index 0.  So the kernel always
 * knows who that is, and has another when it goes.  Members speak to the steward by datagrams to the own address (opcode
 * PORT_PROBE_OPCODE), which any program ever attached gives to the index that they name, 0:
 *
 *     JOIN     I am new (or have more slots): find me
 *     MISSED   a packet for that slot came to me
 *     LEAVE    my socket closes now
 *
 * The steward looks with PROBEs: who is at this index?  The answer, with all slots of whoever is there, comes over the
 * slot sockets, from a process of the own user, or it counts for nothing.  (A user namespace shows many users as one: so
 * all that comes over slot sockets repeats a number that only the kernel's group has been told.)  What members say counts
 * when it comes from the group's own address and port, which other users do not have.  A new member is behind the last
 * one that is known, so that an arrival costs one look, however many members there are; many that arrive together cost
 * one look for all.  Only a steward that is new to it, or whom a PROBE has shown that the order is not as it was, looks
 * at every index (in windows of 8: as many answers fit a unix socket's queue).  What is beyond the end falls to the hash,
 * so to a member with a lower index: that is how the end shows.
 *
 * The steward says that it has heard (HEARD) and when the member is in the program (WELCOME).  A steward that is not
 * heard of is stopped, and the next index is asked, which then learns the order for itself.  Who is not heard by any of
 * the first eight learns it itself, and goes on looking until it has found itself, however many are silent ahead of it.
 * So there may be several stewards; whoever looks again sees by the index behind the last one whether another knows more.
 * Meanwhile, and whenever the program is wrong, packets reach other members, which forward them.  What falls to a stopped
 * member makes no forwards; so who has been told that there is one asks again now and then whether all is well.
 */
#ifndef RNIC_LINK_STEERING_H
#define RNIC_LINK_STEERING_H

#include <stdbool.h>
#include <stdint.h>

#include "link/udp/port.h"

#define STEERING_SLOTS 16 /* slots that one context may hold */
#define STEERING_NOBODY 0xFFFFu

/* Who is where: a member is known by its first slot. */
struct steering_map {
    uint32_t count;                   /* members; 0: nothing was learnt yet */
    uint16_t index_of[SLOT_COUNT];    /* the member that has the slot; STEERING_NOBODY */
    uint16_t first_slot[SLOT_COUNT];  /* of the member at that index; STEERING_NOBODY: it has never answered */
    uint64_t silent[SLOT_COUNT / 64]; /* bits by index: it did not answer */
};

struct slot_set {
    uint64_t bits[SLOT_COUNT / 64];
};

enum steering_phase {
    STEERING_IDLE,
    STEERING_LEARN, /* who is at index `from` and behind? */
    STEERING_CHECK, /* are those still there of whom we have a doubt? */
};

/* Times are of the caller's clock, ns; UINT64_MAX: never. */
struct port_steering {
    uint32_t nslots; /* the own ones */
    uint32_t slots[STEERING_SLOTS];

    /* as a member */
    uint64_t token;      /* which the steward repeats */
    bool joining;        /* no steward has welcomed us */
    uint64_t welcome_in; /* when we ask again, though one has heard us */
    bool watching;       /* some member is stopped: what falls to it is lost without a word */
    uint64_t watch_period;
    uint32_t asks;          /* without an answer */
    uint64_t ask_at;        /* when the steward is to hear from us */
    struct slot_set missed; /* slots to tell of, */
    struct slot_set told;   /* those told of before, which did not help: not again before */
    uint64_t tell_at, interval;

    /* as the steward */
    enum steering_phase phase;
    uint64_t wake;
    uint64_t nonce;                  /* of the look under way */
    bool own_program;                /* no program was there: one that knows probes alone has been attached */
    uint32_t from, window;           /* LEARN: the first index of all, and of this window */
    struct slot_set doubts, asked;   /* CHECK: indices to ask, and those of them that have been asked; */
    uint32_t cursor;                 /* the index behind the last probe */
    int tries;                       /* how often the window's probes were sent */
    uint64_t try_until;              /* when they are sent again, or given up */
    uint16_t answered[SLOT_COUNT];   /* first slot of who answered this index; STEERING_NOBODY */
    struct steering_map found, map;  /* of the look under way; the one that is attached */
    struct slot_set joins, suspects; /* slots that have asked for a look, or of which a packet went astray */
    uint64_t token_of[SLOT_COUNT];   /* of those that have asked */
    bool all;                        /* the order is not as we thought: every index is to be asked */
    bool left;                       /* the group knows that we close */
    uint64_t looked, look_interval;  /* the last look at every index; distance to the next */
    uint64_t spread_at;              /* somebody came, and has a part in them since; */
    uint64_t checked;                /* the last look at those that requests of the CM are spread over */

    /* a bound on answers, as probes may come from anybody on this host */
    uint32_t credits;
    uint64_t refill; /* when they are full again */

    /* while another user's process owns the address */
    int claim_fd; /* a socket that is ready to be bound; -1: none */
    uint64_t claim_at;
    uint32_t owner_uid; /* of whoever may forward to us */
    bool owner_stale;   /* somebody else tried */
};

/* We are a member: asks to be found, at once. */
void steering_start(struct port *p, uint64_t now);
/* A further slot is ours. */
void steering_join(struct port_steering *st);

/* Leaves the group an order that will be right when our socket is closed. */
void steering_stop(struct port *p);

/* A datagram with opcode PORT_PROBE_OPCODE; a message of the types PROBE_ANSWER, HEARD and WELCOME, of the own user. */
void steering_probe_input(struct port *p, const uint8_t *data, uint32_t length, const struct sockaddr_in6 *src,
                          uint64_t now);
struct slotmsg;
void steering_message(struct port *p, const struct slotmsg *msg, const uint8_t *data, uint64_t now);

/* A packet for a slot came here though it should not have. */
void steering_forwarded(struct port *p, uint32_t slot, uint64_t now);

void steering_timer(struct port *p, uint64_t now);
uint64_t steering_deadline(const struct port_steering *st);

#endif
