/* SPDX-License-Identifier: Apache-2.0
 *
 * What stands ahead of a received datagram's payload (IBA 11.4.1.2; Annex A17.4.5): 40 bytes, of IPv6 the header, of
 * IPv4 20 bytes of zeros and the header.  A UDP socket does not show it, so it is built again from what is known.
 */
#ifndef RNIC_WIRE_GRH_H
#define RNIC_WIRE_GRH_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#define GRH_BYTES 40
#define GRH_IPV4 20 /* offset of the IPv4 header in it */

/* n: bytes from the BTH to the ICRC; id: IPv4 identification.  Addresses with IPv4 mapped, both of one family. */
void grh_build(uint8_t grh[GRH_BYTES], const struct sockaddr_in6 *src, const struct sockaddr_in6 *dst, uint8_t tclass,
               uint8_t hops, uint32_t flow_label, uint16_t id, uint32_t n);

/* 4 or 6: the header that is in it. */
static inline uint8_t grh_ip_version(const uint8_t grh[GRH_BYTES]) { return grh[0] >> 4 == 6 ? 6 : 4; }

/* The same, read: addresses with IPv4 mapped. */
struct grh {
    struct in6_addr src, dst;
    uint8_t tclass, hops;
    uint32_t flow_label;
};
/* False: it is neither an IPv6 header nor, behind 20 bytes, an IPv4 header whose checksum is right. */
bool grh_read(const uint8_t from[GRH_BYTES], struct grh *to);

#endif
