/* SPDX-License-Identifier: Apache-2.0
 *
 * What a port's socket does not even take in: the kernel drops it (a classic BPF program, SO_ATTACH_FILTER) before it has
 * room in the socket that live queue pairs need, and wakes nobody for it.
 *
 * Two kinds: messages of the steering that come from the wire, and what comes from sources that are muted for a while.
 * A muted source is still heard now and then: of its packets one in SIEVE_PASSES comes through.
 */
#ifndef RNIC_LINK_SIEVE_H
#define RNIC_LINK_SIEVE_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#define SIEVE_SOURCES 16
#define SIEVE_SPARED 16
#define SIEVE_PASSES 128

struct sieve_source {
    struct in6_addr from; /* IPv4 mapped */
    uint16_t port;        /* UDP source port, network order; 0: all of that address but those that are spared */
    uint16_t spared[SIEVE_SPARED]; /* network order */
    uint32_t nspared;
    uint64_t until; /* muted until then */
};

struct sieve {
    struct sieve_source muted[SIEVE_SOURCES];
    uint32_t count;
};

/* A source that is known already is muted anew; where there is no room, the one goes whose time is up first. */
void sieve_mute(struct sieve *s, const struct sieve_source *source);
/* What is the reason that a packet from there is seldom heard? NULL: it is heard. */
const struct sieve_source *sieve_find(const struct sieve *s, const struct in6_addr *from, uint16_t port);
bool sieve_expire(struct sieve *s, uint64_t now); /* true: somebody is heard again */
uint64_t sieve_deadline(const struct sieve *s);   /* UINT64_MAX: nobody is muted */

/* Has the kernel do so from now on. A kernel that refuses takes everything in. */
void sieve_attach(const struct sieve *s, int fd, bool v4);

#endif
