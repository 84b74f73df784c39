/* SPDX-License-Identifier: Apache-2.0
 *
 * What rnic's processes say to each other over their slot sockets. Both ends are on one host: fields are in host byte
 * order. A message is hostile until checked; a change of this layout changes the "1" in the sockets' names.
 */
#ifndef RNIC_LINK_SLOTMSG_H
#define RNIC_LINK_SLOTMSG_H

#include <netinet/in.h>
#include <stdint.h>

#define SLOTMSG_MAGIC 0x524e4943u /* "RNIC" */
#define SLOTMSG_VERSION 1

enum slotmsg_type {
    SLOTMSG_FORWARD = 1,  /* a datagram of UDP 4791 follows: length, segment, src, dst */
    SLOTMSG_OWNER_QUERY,  /* is dst's address yours? (nonce) */
    SLOTMSG_OWNER_ANSWER, /* it is (nonce, dst) */
    SLOTMSG_PROBE_ANSWER, /* that probe reached me: nonce, index, dst; my slots follow as uint32_t[length / 4] */
    SLOTMSG_SHOW,         /* what you forward to dst lacks what I need to know: have your socket show it */
    SLOTMSG_HEARD,        /* the steward of dst has what you said */
    SLOTMSG_WELCOME,      /* packets to dst for your slots are given to you; index: 1: some member is stopped */
};

/* What is known of a packet's IP header. */
enum slotmsg_shown {
    SLOTMSG_TCLASS = 1,
    SLOTMSG_HOPS = 2, /* and flow label */
};

struct slotmsg {
    uint32_t magic;
    uint16_t version, type; /* type: enum slotmsg_type */
    uint32_t length;        /* bytes after this header */
    uint32_t segment;       /* FORWARD: GRO segment size; 0: one packet */
    uint64_t nonce;         /* of the question that this answers, HEARD and WELCOME included */
    union {
        uint32_t index;      /* PROBE_ANSWER: the index that the probe named; WELCOME */
        uint32_t flow_label; /* FORWARD: of its IPv6 header; 0: not known */
    };
    uint8_t hops, tclass; /* FORWARD: of its IP header; 0: not known */
    uint16_t shown;       /* FORWARD, SHOW: enum slotmsg_shown */
    struct sockaddr_in6 src, dst;
};

#endif
