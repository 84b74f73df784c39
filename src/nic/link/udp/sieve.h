/* SPDX-License-Identifier: Apache-2.0
 *
 * What a port's socket does not even take in: the kernel drops it (a classic BPF program, SO_ATTACH_FILTER) before it has
 * room in the socket that live queue pairs need, and wakes nobody for it.
 *
 * Two kinds: messages of the steering that come from the wire, and what is muted for a while: packets from an address to a
 * queue pair, or to all that are not spared.  Of these one in SIEVE_PASSES comes through.
 *
 * Of packets that come together (UDP_GRO) the kernel shows a filter the first one, and drops all or none.  They have one
 * source port.  So they may come together as long as what is muted and what is heard come from different ports.
 */
#ifndef RNIC_LINK_SIEVE_H
#define RNIC_LINK_SIEVE_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#define SIEVE_RULES 8
#define SIEVE_HEARD 2
#define SIEVE_SPARED 16
#define SIEVE_PASSES 128
#define SIEVE_PORTS 4096       /* that are told from each other: they have the same last bits */
#define SIEVE_SLOT 0x80000000u /* | a slot: all of its queue pairs are spared */

struct sieve_rule {
    struct in6_addr from;          /* IPv4 mapped */
    uint16_t port;                 /* UDP source port, network order, like all ports here; 0: any */
    uint16_t heard[SIEVE_HEARD];   /* but these; 0: none */
    uint32_t qpn;                  /* where it goes; 0: any queue pair but 1 */
    uint32_t spared[SIEVE_SPARED]; /* and but these */
    uint32_t nspared;
    uint8_t used[SIEVE_PORTS / 8]; /* the ports from which others may be heard: a bit for each */
    bool apart;                    /* it is muted at one of these, too: packets are taken apart, and each is judged */
    uint64_t until;                /* muted until then */
    uint64_t since;                /* for whoever counts what comes through: the begin of its window, */
    uint32_t passed;               /* and how many did in it */
};

struct sieve {
    struct sieve_rule rules[SIEVE_RULES];
    uint32_t count;
};

/* A rule for the same address, port and queue pair is replaced, and stays apart; where there is no room, the one whose time
 * is up first. */
void sieve_mute(struct sieve *s, const struct sieve_rule *rule);
/* The rule that such a packet falls under; NULL: it is heard. */
struct sieve_rule *sieve_find(struct sieve *s, const struct in6_addr *from, uint16_t port, uint32_t qpn);
/* That queue pair, or slot (SIEVE_SLOT |), is heard from that address from now on; NULL: from all. True: it was not. */
bool sieve_spare(struct sieve *s, const struct in6_addr *from, uint32_t place);
/* Somebody whom the rule leaves alone may be heard from that port. */
void sieve_uses(struct sieve_rule *rule, uint16_t port);
/* Such a packet has come; mixed: together with one that is heard.  True: it is muted, and sieve_batch() has to be called. */
bool sieve_part(struct sieve *s, const struct in6_addr *from, uint16_t port, uint32_t qpn, bool mixed);
bool sieve_expire(struct sieve *s, uint64_t now); /* true: something is heard again */
uint64_t sieve_deadline(const struct sieve *s);   /* UINT64_MAX: nothing is muted */

/* Has the kernel do so from now on, and sets UDP_GRO as sieve_batch().  A kernel that refuses takes everything in, but for
 * what comes to the steering. */
bool sieve_attach(const struct sieve *s, int fd, bool v4);
/* Has packets come together, or apart.  False: not yet, as something lies in the socket.  Of a batch there the kernel would
 * not tell any more where its packets end, and they would be lost. */
bool sieve_batch(const struct sieve *s, int fd);

#endif
