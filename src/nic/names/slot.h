/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots: how the processes of one network namespace share the QPN space and find each other.
 *
 * A slot is a bound abstract unix datagram socket, "\0rnic/1/slot/<n>"; the kernel frees it when the process dies.
 * The upper SLOT_BITS of every QPN that a context hands out are its slot's number.
 */
#ifndef RNIC_LINK_SLOT_H
#define RNIC_LINK_SLOT_H

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>

#include "names/lifeline.h"
#include "nic.h"

#define SLOT_BITS 10
#define SLOT_COUNT (1u << SLOT_BITS)
#define SLOTS_EACH 16 /* that one context may have */
#define QPN_INDEX_BITS (24 - SLOT_BITS)
#define SLOT_NAME "rnic/1/slot/%u" /* without the leading NUL */

static inline uint32_t qpn_slot(uint32_t qpn) { return qpn >> QPN_INDEX_BITS; }

struct slot {
    int fd; /* non-blocking, close-on-exec, pollable */
    uint32_t number;
    struct lifeline life; /* who watches us; the owner of the slot's name has this one, too */
};

/* A datagram of UDP 4791 that another process received and handed on. */
struct slot_packet {
    struct sockaddr_in6 src, dst; /* IPv4 as ::ffff:a.b.c.d; ports included */
    uint32_t length;              /* bytes in the caller's buffer */
    uint32_t segment;             /* GRO segment size; 0: one packet */
    uint8_t hops, tclass;         /* of its IP header; 0: not known */
    uint32_t flow_label;          /* the same, of IPv6 */
};

/* Claims a free slot, starting the search at a random one. 0 or -errno (-EUSERS: all are taken). */
int slot_claim(struct slot *s, struct rnic_err *err);
void slot_release(struct slot *s);

/* A descriptor that hangs up when the slot's owner dies or gives it up, or -errno: -ECONNREFUSED when it has none. */
int slot_watch(uint32_t number);
bool slot_taken(uint32_t number); /* false: it has none; true, too, where that cannot be found out */

#endif
