/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile frames and hostile rules to raw/: what the parser, the checksums, the rules and the hash make of them.
 *
 *   fuzz_frame [seed [cases]]
 *
 * A frame begins as one of TCP or UDP over IPv4 or IPv6, with tags and extension headers, and has some bytes changed and
 * its end cut off. It lies at the end of a block of the heap, so that the sanitizer sees each byte read beyond. After each
 * case: offsets in order and within the frame; checksums that were written are found right; a rule made of the frame's own
 * fields matches it.  A rule is built likewise, and compiled.
 */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "dice.h"
#include "raw/flow.h"
#include "raw/rwq.h"

#define LONGEST 400

static uint64_t seed = 1, number, with_ip, with_ports, compiled;

static void want(bool holds, const char *what) {
    if (holds)
        return;
    printf("fuzz_frame: seed %llu, case %llu: %s\n", (unsigned long long)seed, (unsigned long long)number, what);
    abort();
}

static uint32_t add_ipv6(struct dice *d, uint8_t *p, uint32_t at, uint32_t n) {
    static const uint8_t kinds[] = {IPPROTO_HOPOPTS, IPPROTO_ROUTING, IPPROTO_FRAGMENT, IPPROTO_AH,
                                    IPPROTO_DSTOPTS, IPPROTO_TCP,     IPPROTO_UDP};
    p[at] = 0x60;
    put_be16(p + at + 4, (uint16_t)(n - at - 40));
    uint8_t *kind = p + at + 6;
    for (uint32_t ext = at + 40; ext + 40 < n && !dice_one_in(d, 3); ext += 8) {
        *kind = kinds[dice_below(d, 5)];
        kind = p + ext;
        p[ext + 1] = *kind == IPPROTO_AH ? 0 : p[ext + 1] & 1;
    }
    *kind = kinds[5 + dice_below(d, 2)];
    return 0x86DD;
}

static uint32_t add_ipv4(struct dice *d, uint8_t *p, uint32_t at, uint32_t n) {
    p[at] = (uint8_t)(0x45 + dice_below(d, 2));
    put_be16(p + at + 2, (uint16_t)(n - at));
    put_be16(p + at + 6, dice_one_in(d, 4) ? 0x2000 : 0);
    p[at + 9] = dice_one_in(d, 2) ? IPPROTO_TCP : IPPROTO_UDP;
    return 0x0800;
}

static uint32_t build(struct dice *d, uint8_t *p) {
    uint32_t n = 60 + dice_below(d, LONGEST - 60), at = 12, type;
    for (uint32_t i = 0; i < n; i++)
        p[i] = (uint8_t)dice_bits(d, 1);
    for (uint32_t tags = dice_below(d, 4); tags; tags--, at += 4)
        put_be16(p + at, 0x8100);
    type = dice_one_in(d, 2) ? add_ipv4(d, p, at + 2, n) : add_ipv6(d, p, at + 2, n);
    put_be16(p + at, (uint16_t)type);
    for (uint32_t changes = dice_below(d, 4); changes; changes--)
        p[dice_below(d, n < 80 ? n : 80)] = (uint8_t)dice_bits(d, 1);
    return dice_one_in(d, 3) ? dice_below(d, n) : n;
}

static void check_offsets(const struct frame *f) {
    want(f->payload >= ETH_BYTES && f->payload <= f->length, "the Ethernet header ends within the frame");
    if (!f->key.ip_version) {
        want(!f->key.transport && !f->end, "without IP there is nothing in it");
        return;
    }
    with_ip++;
    want(f->l3 == f->payload && f->l3 < f->l4 && f->l4 <= f->end && f->end <= f->length, "offsets are in order");
    want(!f->key.transport || f->end - f->l4 >= 8, "ports are within the packet");
    with_ports += f->key.transport != 0;
}

/* Checksums that were written are right, unless a length left nothing to write. */
static void check_sums(const struct frame *f, uint8_t *bytes) {
    bool udp = f->key.transport == IPPROTO_UDP;
    uint32_t length = udp ? get_be16(bytes + f->l4 + 4) : 0;
    frame_put_csums(f, bytes);
    bool fits = udp && length >= 8 && length <= f->end - f->l4;
    bool whole = !f->cut && (f->key.transport == IPPROTO_TCP || fits);
    want(frame_csum_ok(f) == (f->key.ip_version == 4 && whole), "a checksum that was written is right");
}

static void check_rule(struct dice *d, const struct frame *f) {
    struct flow_rule rule = {.value = f->key};
    for (size_t i = 0; i < sizeof rule.mask; i++) {
        ((uint8_t *)&rule.mask)[i] = (uint8_t)dice_bits(d, 1);
        ((uint8_t *)&rule.value)[i] &= ((uint8_t *)&rule.mask)[i];
    }
    want(flow_matches(&rule, f), "a rule of the frame's own fields matches");
    rule.value.unused ^= rule.mask.unused = 1;
    want(!flow_matches(&rule, f), "a rule that wants a bit more does not");
}

static void check_hash(struct dice *d, const struct frame *f) {
    struct rss rss = {.fields = dice_bits(d, 1)};
    for (size_t i = 0; i < sizeof rss.key; i++)
        rss.key[i] = (uint8_t)dice_bits(d, 1);
    rss_hash(&rss, f);
}

static void one_frame(struct dice *d) {
    uint8_t p[LONGEST];
    uint32_t n = build(d, p);
    uint8_t *bytes = malloc(n ? n : 1);
    struct frame f;
    memcpy(bytes, p, n);
    bool good = frame_parse(&f, bytes, n);
    want(good == (n >= ETH_BYTES), "a frame has an Ethernet header");
    if (good) {
        check_offsets(&f);
        check_sums(&f, bytes);
        check_rule(d, &f);
        check_hash(d, &f);
    }
    free(bytes);
}

static void one_rule(struct dice *d) {
    static const uint16_t kinds[][2] = {{0x20, 40}, {0x30, 24}, {0x31, 88},   {0x32, 32},  {0x40, 16},
                                        {0x41, 16}, {0x34, 24}, {0x1000, 12}, {0x1001, 8}, {0x1003, 16}};
    uint8_t p[sizeof(struct rnic_flow_attr) + 8 * 88] = {0};
    uint32_t at = sizeof(struct rnic_flow_attr), specs = dice_below(d, 5);
    for (uint32_t i = 0; i < specs; i++) {
        const uint16_t *kind = kinds[dice_below(d, sizeof kinds / sizeof *kinds)];
        for (uint32_t j = 6; j < kind[1]; j++)
            p[at + j] = (uint8_t)(dice_one_in(d, 3) ? dice_bits(d, 1) : 0);
        memcpy(p + at, &(struct rnic_flow_spec_hdr){kind[0], kind[1]}, 6);
        at += kind[1];
    }
    struct rnic_flow_attr attr = {.type = (int)dice_below(d, 4),
                                  .size = (uint16_t)at,
                                  .num_of_specs = (uint8_t)specs,
                                  .port = 1,
                                  .flags = dice_one_in(d, 4) ? 2 : 0};
    attr.size = (uint16_t)(attr.size - (dice_one_in(d, 8) ? dice_below(d, attr.size) : 0));
    attr.num_of_specs = (uint8_t)(attr.num_of_specs + dice_one_in(d, 8));
    memcpy(p, &attr, sizeof attr);
    uint8_t *bytes = malloc(attr.size > sizeof attr ? attr.size : sizeof attr);
    memcpy(bytes, p, attr.size > sizeof attr ? attr.size : sizeof attr);
    struct flow_rule rule = {0};
    compiled += flow_compile((const struct rnic_flow_attr *)(const void *)bytes, &rule, NULL) == 0;
    free(bytes);
}

int main(int argc, char **argv) {
    uint64_t cases = argc > 2 ? strtoull(argv[2], NULL, 0) : 200000;
    struct dice d = {0};
    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    rng_seed(&d.rng, seed);
    for (number = 0; number < cases; number++) {
        one_frame(&d);
        one_rule(&d);
    }
    printf("fuzz_frame: %llu cases: %llu frames with IP, %llu with ports, %llu rules compiled\n",
           (unsigned long long)number, (unsigned long long)with_ip, (unsigned long long)with_ports,
           (unsigned long long)compiled);
    return 0;
}
