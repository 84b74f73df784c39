/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/grh.h"

#include <string.h>

#include "base/bytes.h"

#define UDP_HEADER 8
#define IPV4_HEADER 20
#define DONT_FRAGMENT 0x4000

/* RFC 791: ones' complement of the ones' complement sum. */
static uint16_t checksum(const uint8_t header[IPV4_HEADER]) {
    uint32_t sum = 0;
    for (int i = 0; i < IPV4_HEADER; i += 2)
        sum += get_be16(header + i);
    while (sum >> 16)
        sum = (sum & 0xFFFF) + (sum >> 16);
    return (uint16_t)~sum;
}

static void build_ipv4(uint8_t *ip, const struct sockaddr_in6 *src, const struct sockaddr_in6 *dst, uint8_t tclass,
                       uint8_t hops, uint16_t id, uint32_t n) {
    ip[0] = 0x45;
    ip[1] = tclass;
    put_be16(ip + 2, (uint16_t)(IPV4_HEADER + UDP_HEADER + n));
    put_be16(ip + 4, id);
    put_be16(ip + 6, DONT_FRAGMENT);
    ip[8] = hops;
    ip[9] = IPPROTO_UDP;
    memcpy(ip + 12, src->sin6_addr.s6_addr + 12, 4);
    memcpy(ip + 16, dst->sin6_addr.s6_addr + 12, 4);
    put_be16(ip + 10, checksum(ip));
}

static void build_ipv6(uint8_t *ip, const struct sockaddr_in6 *src, const struct sockaddr_in6 *dst, uint8_t tclass,
                       uint8_t hops, uint32_t flow_label, uint32_t n) {
    put_be32(ip, 6u << 28 | (uint32_t)tclass << 20 | flow_label);
    put_be16(ip + 4, (uint16_t)(UDP_HEADER + n));
    ip[6] = IPPROTO_UDP;
    ip[7] = hops;
    memcpy(ip + 8, &src->sin6_addr, 16);
    memcpy(ip + 24, &dst->sin6_addr, 16);
}

void grh_build(uint8_t grh[GRH_BYTES], const struct sockaddr_in6 *src, const struct sockaddr_in6 *dst, uint8_t tclass,
               uint8_t hops, uint32_t flow_label, uint16_t id, uint32_t n) {
    memset(grh, 0, GRH_BYTES);
    if (IN6_IS_ADDR_V4MAPPED(&dst->sin6_addr))
        build_ipv4(grh + GRH_IPV4, src, dst, tclass, hops, id, n);
    else
        build_ipv6(grh, src, dst, tclass, hops, flow_label, n);
}

static void read_ipv4(const uint8_t *ip, struct grh *to) {
    to->src.s6_addr[10] = to->src.s6_addr[11] = to->dst.s6_addr[10] = to->dst.s6_addr[11] = 0xFF;
    memcpy(to->src.s6_addr + 12, ip + 12, 4);
    memcpy(to->dst.s6_addr + 12, ip + 16, 4);
    to->tclass = ip[1];
    to->hops = ip[8];
}

/* IPv4 first: those 20 bytes are a part of IPv6 addresses otherwise, whose checksum is not right. */
bool grh_read(const uint8_t from[GRH_BYTES], struct grh *to) {
    *to = (struct grh){0};
    if (from[GRH_IPV4] == 0x45 && checksum(from + GRH_IPV4) == 0) {
        read_ipv4(from + GRH_IPV4, to);
        return true;
    }
    if (from[0] >> 4 != 6)
        return false;
    memcpy(&to->src, from + 8, 16);
    memcpy(&to->dst, from + 24, 16);
    to->tclass = (uint8_t)(get_be32(from) >> 20);
    to->hops = from[7];
    to->flow_label = get_be32(from) & 0xFFFFF;
    return true;
}
