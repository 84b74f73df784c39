/* SPDX-License-Identifier: Apache-2.0
 *
 * An Ethernet frame read: what steering and hashing look at, and the checksums of what it carries.
 *
 * Everything in a frame is hostile.  Headers that do not fit are treated as bytes of no protocol: such a frame is still
 * one, for whoever asks for its addresses alone.  An IP packet that says it is longer than the frame ends with the frame:
 * it has all fields, as hardware reads them, and no checksums.
 */
#ifndef RNIC_RAW_FRAME_H
#define RNIC_RAW_FRAME_H

#include <stdbool.h>
#include <stdint.h>

#define ETH_BYTES 14
#define VLAN_BYTES 4
#define MAX_VLANS 2 /* tags that are looked behind */

/* Network byte order; what a frame does not have is 0. Words, so that it can be compared by them. */
struct frame_key {
    uint8_t dst_mac[6], src_mac[6];
    uint8_t ether_type[2]; /* behind the last VLAN tag */
    uint8_t vlan_tag[2];   /* of the outermost one */
    uint8_t tagged;        /* 1: there is one */
    uint8_t ip_version;    /* 4 or 6, of a header that is well-formed */
    uint8_t transport;     /* IPPROTO_TCP or IPPROTO_UDP when the ports are there: not of a fragment */
    uint8_t proto;         /* behind IPv6's extension headers */
    uint8_t tos, ttl;
    uint8_t ip_flags; /* 2: do not fragment, 4: more fragments */
    uint8_t unused;
    uint8_t flow_label[4];
    uint8_t src_ip[16], dst_ip[16]; /* IPv4: the first four bytes */
    uint8_t src_port[2], dst_port[2];
};
_Static_assert(sizeof(struct frame_key) == 64, "compared as eight words");

struct frame {
    const uint8_t *bytes;
    uint32_t length;
    struct frame_key key;
    uint32_t payload;     /* where the Ethernet header and its VLAN tags end */
    uint32_t l3, l4, end; /* where the IP header, what it carries, and the IP packet's end are */
    bool cut;             /* the IP header says that there is more than the frame has */
};

/* False: too short to be a frame. */
bool frame_parse(struct frame *f, const uint8_t *bytes, uint32_t n);
/* An IPv4 packet with TCP or UDP whose checksums, both, are right. */
bool frame_csum_ok(const struct frame *f);
/* Writes the checksums of IPv4 header, TCP and UDP, where there are such; bytes are the frame's. */
void frame_put_csums(const struct frame *f, uint8_t *bytes);

#endif
