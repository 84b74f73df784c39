/* SPDX-License-Identifier: Apache-2.0
 *
 * A lane: the way between two contexts of one host, a ring in shared memory for each direction.
 *
 * The one that asks connects to the name "\0rnic/1/lane/<slot>", which the other's context listens on, and offers memory:
 *
 *     asker   HELLO (its slots and addresses, the memory)      ->
 *             <- WELCOME (the same of the other), or it hangs up
 *     asker   READY                                            ->
 *
 * The connection then carries nothing but wake-ups, and its end tells that the other has gone.  Packets in a ring are the
 * wire's without padding and ICRC; of datagrams the 40 bytes that a receive gets come ahead.  Whoever connects may be of
 * another user: all that comes from there is hostile until checked.
 */
#ifndef RNIC_LINK_LANE_H
#define RNIC_LINK_LANE_H

#include <netinet/in.h>
#include <sys/types.h>

#include "link/fault.h"
#include "link/lane/ring.h"
#include "link/link.h"
#include "nic.h"

#define LANE_MTU 65536u /* payload bytes of a packet: few, so that little is to be done for each, but several to a ring */
#define LANE_REFERRING 64 /* bytes of a packet whose payload is elsewhere: headers, and the place */
#define LANE_SLOTS 16
#define LANE_ADDRESSES 32
#define LANE_PATIENCE 100000000ull /* ns that an asker waits; who cannot answer by then is stopped */

/* Of a packet: the injector has marked it; it is a datagram, behind which stands what a receive gets ahead of its
 * payload, and whose traffic class is in the upper bits; it is but headers, and where its payload is (struct rnic_sge). */
enum lane_kind { LANE_MARKED = 1, LANE_DATAGRAM = 2, LANE_REFERS = 4, LANE_CLASS_SHIFT = 8 };

enum lane_state { LANE_ASKING, LANE_CALLED /* somebody has connected */, LANE_ANSWERED, LANE_UP, LANE_DOWN };

/* Who one is. */
struct lane_party {
    uint32_t nslots, naddresses;
    uint32_t slots[LANE_SLOTS];
    struct in6_addr addresses[LANE_ADDRESSES];
};

struct lane_self {
    struct lane_party party;
    int file; /* our memory file: whoever is of our user gets it; -1: nobody does */
};

/* What the lanes of a device share with its link. */
struct lane_shared {
    struct fault *fault;
    struct rnic_counters *counters;
    const uint64_t *now; /* of the pass */
};

struct lane {
    struct link link; /* first; full: the ring was, and whoever writes waits */
    enum lane_state state;
    const struct lane_shared *shared;
    const struct way *way; /* of the packet reserved, */
    uint8_t *at;           /* where it lies in the ring, */
    uint32_t reserved;     /* and its bytes */
    int fd;
    bool asked;     /* by us, not called by the peer */
    uint64_t since; /* when */
    struct lane_party peer;
    pid_t pid; /* the peer's; 0: not of this pid namespace */
    uid_t uid;
    bool trusted;           /* of our user when it came: a mapping cannot be revoked, nor can an address be believed */
    uint64_t parties_since; /* ns: when counting began, */
    uint32_t parties;       /* and how often it has said since then who it is */
    uint32_t woken;         /* wake-ups that have come for those that the rings have asked for */
    uint32_t unread;        /* packets that may be in the ring since that was noted; 0: none of these is any more */
    void *mem;              /* NULL: there is none yet */
    int file;               /* the peer's memory file, or -1 */
    struct ring_writer out;
    struct ring_reader in;
    bool dirty;      /* something was written since the last lane_flush() */
    int users;       /* ways that are held; with users it stays in memory after its end */
    void *remote;    /* the device's: what of the peer's memory is reached directly */
    uint64_t number; /* the device's: later ones have higher */
    struct lane *next;
    uint8_t aside[LANE_MTU + 128]; /* a packet for the injector, or for one that has gone */
};

/* A listening socket for a slot, or -errno. */
int lane_listen(uint32_t slot);

/* We are more than we were: what the peers know of us. */
void lane_tell(struct lane *l, const struct lane_self *self);
/* 0 and a lane that is LANE_ASKING, or -errno: nobody listens there. */
int lane_ask(struct lane **out, uint32_t slot, const struct lane_self *self, const struct lane_shared *shared,
             uint64_t now);
/* Somebody who has connected; NULL: nobody. */
struct lane *lane_answer(int listener, const struct lane_shared *shared, uint64_t now);
/* Takes what the other end says, so many messages of it at most. True: the state has changed. */
bool lane_listen_to(struct lane *l, const struct lane_self *self, int most);
#define LANE_ALL 16 /* messages at a time: wake-ups, mostly */
/* Hangs up: LANE_DOWN. */
void lane_hang_up(struct lane *l);
void lane_free(struct lane *l);

void lane_flush(struct lane *l);   /* wakes the other end if it sleeps */
bool lane_unstick(struct lane *l); /* one that was full has room again */
/* A number of packets has been taken from l->in: lets a writer that waits for room know. */
void lane_taken(struct lane *l);

/* Is it at this moment the owner of a slot?  What it has said it may have given up since. */
enum lane_answer { LANE_NO, LANE_YES, LANE_CANNOT_TELL /* descriptors or memory are short */ };
enum lane_answer lane_owns(const struct lane *l, uint32_t slot);

/* This host's addresses have changed: which of the peer's are among them? */
void lane_look_again(struct lane *l);
bool lane_is_to(const struct lane *l, const struct in6_addr *address);
static inline struct lane *lane_of(struct link *link) { return (struct lane *)link; }

#endif
