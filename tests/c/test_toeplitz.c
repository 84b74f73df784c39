/* SPDX-License-Identifier: Apache-2.0
 *
 * The Toeplitz hash against the published verification suite of receive side scaling, alone and out of frames.
 */
#include <arpa/inet.h>
#include <string.h>

#include "base/bytes.h"
#include "check.h"
#include "raw/rwq.h"

static const uint8_t key[TOEPLITZ_KEY_BYTES] = {0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67,
                                                0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
                                                0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
                                                0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa};

static const struct vector {
    const char *src, *dst;
    uint16_t sport, dport;
    uint32_t addresses, all; /* the hashes */
} vectors[] = {
    {"66.9.149.187", "161.142.100.80", 2794, 1766, 0x323e8fc2, 0x51ccc178},
    {"199.92.111.2", "65.69.140.83", 14230, 4739, 0xd718262a, 0xc626b0ea},
    {"24.19.198.95", "12.22.207.184", 12898, 38024, 0xd2d0a5de, 0x5c2b394a},
    {"38.27.205.30", "209.142.163.6", 48228, 2217, 0x82989176, 0xafc7327f},
    {"153.39.163.191", "202.188.127.2", 44251, 1303, 0x5d1809c5, 0x10e828a2},
    {"3ffe:2501:200:1fff::7", "3ffe:2501:200:3::1", 2794, 1766, 0x2cc18cd5, 0x40207d3d},
    {"3ffe:501:8::260:97ff:fe40:efab", "ff02::1", 14230, 4739, 0x0f0c461c, 0xdde51bbf},
    {"3ffe:1900:4545:3:200:f8ff:fe21:67cf", "fe80::200:f8ff:fe21:67cf", 44251, 38024, 0x4b61e985, 0x02d1feef},
};
#define VECTORS (sizeof vectors / sizeof *vectors)

static struct frame frame_of(const struct vector *v, uint8_t proto) {
    struct frame f = {.key = {.proto = proto, .transport = proto}};
    bool six = strchr(v->src, ':') != NULL;
    f.key.ip_version = six ? 6 : 4;
    CHECK_EQ(inet_pton(six ? AF_INET6 : AF_INET, v->src, f.key.src_ip), 1);
    CHECK_EQ(inet_pton(six ? AF_INET6 : AF_INET, v->dst, f.key.dst_ip), 1);
    put_be16(f.key.src_port, v->sport);
    put_be16(f.key.dst_port, v->dport);
    return f;
}

static uint32_t hash(const struct frame *f, uint64_t fields) {
    struct rss rss = {.fields = fields};
    memcpy(rss.key, key, sizeof key);
    return rss_hash(&rss, f);
}

#define BIT(name) RNIC_RX_HASH_##name
#define ADDRESSES (BIT(SRC_IPV4) | BIT(DST_IPV4) | BIT(SRC_IPV6) | BIT(DST_IPV6))
#define TCP_PORTS (BIT(SRC_PORT_TCP) | BIT(DST_PORT_TCP))
#define UDP_PORTS (BIT(SRC_PORT_UDP) | BIT(DST_PORT_UDP))

static void the_published_hashes_come_out(void) {
    for (size_t i = 0; i < VECTORS; i++) {
        struct frame tcp = frame_of(&vectors[i], IPPROTO_TCP), udp = frame_of(&vectors[i], IPPROTO_UDP);
        check_note("vector %zu", i);
        CHECK_EQ(hash(&tcp, ADDRESSES), vectors[i].addresses);
        CHECK_EQ(hash(&tcp, ADDRESSES | TCP_PORTS), vectors[i].all);
        CHECK_EQ(hash(&udp, ADDRESSES | UDP_PORTS), vectors[i].all);
    }
}

static void fields_that_a_frame_does_not_have_are_left_out(void) {
    struct frame udp = frame_of(&vectors[0], IPPROTO_UDP), icmp = udp;
    icmp.key.transport = 0;
    CHECK_EQ(hash(&udp, ADDRESSES | TCP_PORTS), vectors[0].addresses);
    CHECK_EQ(hash(&icmp, ADDRESSES | UDP_PORTS), vectors[0].addresses);
    CHECK_EQ(hash(&udp, BIT(SRC_IPV6) | BIT(DST_IPV6)), 0);
    CHECK_EQ(hash(&udp, 0), 0);
}

static void one_field_alone_is_hashed_from_the_keys_beginning(void) {
    struct frame udp = frame_of(&vectors[0], IPPROTO_UDP);
    CHECK_EQ(hash(&udp, BIT(DST_IPV4)), toeplitz(key, udp.key.dst_ip, 4));
    CHECK_EQ(hash(&udp, BIT(DST_PORT_UDP)), toeplitz(key, udp.key.dst_port, 2));
}

static void every_bit_adds_the_key_at_its_place(void) {
    for (uint32_t bit = 0; bit < 36 * 8; bit++) {
        uint8_t input[36] = {0};
        uint64_t window = 0;
        input[bit / 8] = (uint8_t)(0x80 >> bit % 8);
        for (uint32_t i = 0; i < 5; i++)
            window = window << 8 | key[bit / 8 + i];
        CHECK_EQ(toeplitz(key, input, sizeof input), (uint32_t)(window >> (8 - bit % 8)));
    }
}

int main(void) {
    RUN(the_published_hashes_come_out);
    RUN(fields_that_a_frame_does_not_have_are_left_out);
    RUN(one_field_alone_is_hashed_from_the_keys_beginning);
    RUN(every_bit_adds_the_key_at_its_place);
    return check_done();
}
