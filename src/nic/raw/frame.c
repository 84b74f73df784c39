/* SPDX-License-Identifier: Apache-2.0 */
#include "raw/frame.h"

#include <netinet/in.h>
#include <string.h>

#include "base/bytes.h"

#define IPV4_BYTES 20
#define IPV6_BYTES 40
#define TCP_BYTES 20
#define UDP_BYTES 8
#define EXT_HEADERS 8 /* of IPv6, at most */
#define TYPE_IPV4 0x0800
#define TYPE_IPV6 0x86DD
#define TYPE_VLAN 0x8100
#define TYPE_QINQ 0x88A8
#define CSUM_AT_IPV4 10
#define CSUM_AT_TCP 16
#define CSUM_AT_UDP 6

/* ---------------------------------------------------------------- parse */

static bool is_vlan(uint32_t type) { return type == TYPE_VLAN || type == TYPE_QINQ; }

static void parse_ethernet(struct frame *f) {
    uint32_t at = 12;
    memcpy(f->key.dst_mac, f->bytes, 6);
    memcpy(f->key.src_mac, f->bytes + 6, 6);
    for (int i = 0; i < MAX_VLANS && is_vlan(get_be16(f->bytes + at)) && f->length >= at + 2 + VLAN_BYTES; i++) {
        if (!f->key.tagged)
            memcpy(f->key.vlan_tag, f->bytes + at + 2, 2);
        f->key.tagged = 1;
        at += VLAN_BYTES;
    }
    memcpy(f->key.ether_type, f->bytes + at, 2);
    f->payload = at + 2;
}

/* An IP packet of n bytes at l3, of `left` bytes of the frame. */
static void set_end(struct frame *f, uint32_t n, uint32_t left) {
    f->cut = n > left;
    f->end = f->l3 + (f->cut ? left : n);
}

static void parse_transport(struct frame *f) {
    uint32_t left = f->end - f->l4;
    bool tcp = f->key.proto == IPPROTO_TCP && left >= TCP_BYTES;
    bool udp = f->key.proto == IPPROTO_UDP && left >= UDP_BYTES;
    if (!tcp && !udp)
        return;
    f->key.transport = f->key.proto;
    memcpy(f->key.src_port, f->bytes + f->l4, 2);
    memcpy(f->key.dst_port, f->bytes + f->l4 + 2, 2);
}

static void parse_ipv4(struct frame *f) {
    uint32_t at = f->payload;
    const uint8_t *ip = f->bytes + at;
    uint32_t left = f->length - at;
    if (left < IPV4_BYTES || ip[0] >> 4 != 4)
        return;
    uint32_t header = (ip[0] & 15u) * 4, total = get_be16(ip + 2), fragment = get_be16(ip + 6);
    if (header < IPV4_BYTES || header > left || total < header)
        return;
    f->l3 = at;
    f->l4 = at + header;
    set_end(f, total, left);
    f->key.ip_version = 4;
    f->key.tos = ip[1];
    f->key.ip_flags = (uint8_t)((fragment & 0x4000 ? 2 : 0) | (fragment & 0x2000 ? 4 : 0));
    f->key.ttl = ip[8];
    f->key.proto = ip[9];
    memcpy(f->key.src_ip, ip + 12, 4);
    memcpy(f->key.dst_ip, ip + 16, 4);
    if (!(fragment & 0x3FFF)) /* not one of several: the ports of later ones are elsewhere, and all go one way */
        parse_transport(f);
}

/* Goes behind the extension headers (RFC 8200 4). False: a fragment, or they do not fit. */
static bool skip_extensions(struct frame *f) {
    for (int i = 0; i < EXT_HEADERS; i++) {
        const uint8_t *ext = f->bytes + f->l4;
        uint32_t left = f->end - f->l4, n;
        uint8_t kind = f->key.proto;
        bool options = kind == IPPROTO_HOPOPTS || kind == IPPROTO_ROUTING || kind == IPPROTO_DSTOPTS;
        if (!options && kind != IPPROTO_FRAGMENT && kind != IPPROTO_AH)
            return true;
        if (left < 8)
            return false;
        n = kind == IPPROTO_FRAGMENT ? 8 : kind == IPPROTO_AH ? (ext[1] + 2u) * 4 : (ext[1] + 1u) * 8;
        if (n > left)
            return false;
        f->key.proto = ext[0];
        f->l4 += n;
        if (kind == IPPROTO_FRAGMENT && (get_be16(ext + 2) & 0xFFF9))
            return false;
    }
    return false;
}

static void parse_ipv6(struct frame *f) {
    uint32_t at = f->payload;
    const uint8_t *ip = f->bytes + at;
    uint32_t left = f->length - at;
    if (left < IPV6_BYTES || ip[0] >> 4 != 6)
        return;
    f->l3 = at;
    f->l4 = at + IPV6_BYTES;
    set_end(f, IPV6_BYTES + get_be16(ip + 4), left);
    f->key.ip_version = 6;
    f->key.tos = (uint8_t)(get_be16(ip) >> 4);
    put_be32(f->key.flow_label, get_be32(ip) & 0xFFFFF);
    f->key.proto = ip[6];
    f->key.ttl = ip[7];
    memcpy(f->key.src_ip, ip + 8, 16);
    memcpy(f->key.dst_ip, ip + 24, 16);
    if (skip_extensions(f))
        parse_transport(f);
}

bool frame_parse(struct frame *f, const uint8_t *bytes, uint32_t n) {
    *f = (struct frame){.bytes = bytes, .length = n};
    if (n < ETH_BYTES)
        return false;
    parse_ethernet(f);
    if (get_be16(f->key.ether_type) == TYPE_IPV4)
        parse_ipv4(f);
    else if (get_be16(f->key.ether_type) == TYPE_IPV6)
        parse_ipv6(f);
    return true;
}

/* ---------------------------------------------------------------- checksums (RFC 1071) */

static uint32_t add16(uint32_t sum, const uint8_t *p, uint32_t n) {
    uint64_t wide = sum;
    for (; n > 1; n -= 2, p += 2)
        wide += get_be16(p);
    if (n)
        wide += (uint32_t)*p << 8;
    while (wide >> 16)
        wide = (wide & 0xFFFF) + (wide >> 16);
    return (uint32_t)wide;
}

/* The bytes that the transport's checksum covers; 0: none, for want of one or of a length that fits. */
static uint32_t covered(const struct frame *f) {
    uint32_t left = f->cut ? 0 : f->end - f->l4;
    if (f->key.transport != IPPROTO_UDP)
        return f->key.transport ? left : 0;
    uint32_t n = get_be16(f->bytes + f->l4 + 4);
    return n >= UDP_BYTES && n <= left ? n : 0;
}

/* Over the pseudo header and n bytes from the transport's header on (RFC 9293 3.1, RFC 768, RFC 8200 8.1). */
static uint32_t sum_transport(const struct frame *f, const uint8_t *bytes, uint32_t n) {
    uint32_t ip = f->key.ip_version == 4 ? 4 : 16, sum = f->key.transport + n;
    sum = add16(sum, f->key.src_ip, ip);
    sum = add16(sum, f->key.dst_ip, ip);
    return add16(sum, bytes + f->l4, n);
}

bool frame_csum_ok(const struct frame *f) {
    uint32_t n = covered(f);
    if (f->key.ip_version != 4 || !n || add16(0, f->bytes + f->l3, f->l4 - f->l3) != 0xFFFF)
        return false;
    bool none = f->key.transport == IPPROTO_UDP && !get_be16(f->bytes + f->l4 + CSUM_AT_UDP); /* RFC 768 */
    return none || sum_transport(f, f->bytes, n) == 0xFFFF;
}

void frame_put_csums(const struct frame *f, uint8_t *bytes) {
    if (f->key.ip_version == 4) {
        uint8_t *at = bytes + f->l3 + CSUM_AT_IPV4;
        put_be16(at, 0);
        put_be16(at, (uint16_t)~add16(0, bytes + f->l3, f->l4 - f->l3));
    }
    uint32_t n = covered(f);
    if (!n)
        return;
    bool udp = f->key.transport == IPPROTO_UDP;
    uint8_t *at = bytes + f->l4 + (udp ? CSUM_AT_UDP : CSUM_AT_TCP);
    put_be16(at, 0);
    uint16_t sum = (uint16_t)~sum_transport(f, bytes, n);
    put_be16(at, udp && !sum ? 0xFFFF : sum); /* 0 says that there is none */
}
