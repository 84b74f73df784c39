/* SPDX-License-Identifier: Apache-2.0 */
#include "raw/flow.h"

#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>

#include "base/fail.h"

/* ---------------------------------------------------------------- specifications */

enum layer { LAYER_L2 = 1, LAYER_L3 = 2, LAYER_L4 = 4, LAYER_TAG = 8, LAYER_DROP = 16, LAYER_COUNT = 32 };
#define MATCHES (LAYER_L2 | LAYER_L3 | LAYER_L4)

/* A specification that is being read: where its two filters are, and the rule. */
struct spec {
    const void *val, *mask;
    struct flow_rule *rule;
};

#define WANT(spec, field, val, mask) want((spec)->rule, offsetof(struct frame_key, field), val, mask, sizeof *(val))
static void want(struct flow_rule *rule, size_t at, const void *val, const void *mask, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint8_t m = ((const uint8_t *)mask)[i];
        ((uint8_t *)&rule->mask)[at + i] |= m;
        ((uint8_t *)&rule->value)[at + i] |= ((const uint8_t *)val)[i] & m;
    }
}

static void want_byte(struct flow_rule *rule, size_t at, uint8_t val) {
    static const uint8_t all = 0xFF;
    want(rule, at, &val, &all, 1);
}

static int read_eth(struct spec *s, struct rnic_err *err) {
    const struct rnic_flow_eth_filter *v = s->val, *m = s->mask;
    (void)err;
    WANT(s, dst_mac, &v->dst_mac, &m->dst_mac);
    WANT(s, src_mac, &v->src_mac, &m->src_mac);
    WANT(s, ether_type, &v->ether_type, &m->ether_type);
    WANT(s, vlan_tag, &v->vlan_tag, &m->vlan_tag);
    if (m->vlan_tag) /* a frame without a tag is not one with tag 0 */
        want_byte(s->rule, offsetof(struct frame_key, tagged), 1);
    return 0;
}

static int read_ipv4(struct spec *s, struct rnic_err *err) {
    const struct rnic_flow_ipv4_filter *v = s->val, *m = s->mask;
    (void)err;
    want_byte(s->rule, offsetof(struct frame_key, ip_version), 4);
    WANT(s, src_ip, &v->src_ip, &m->src_ip);
    WANT(s, dst_ip, &v->dst_ip, &m->dst_ip);
    return 0;
}

static int read_ipv4_ext(struct spec *s, struct rnic_err *err) {
    const struct rnic_flow_ipv4_ext_filter *v = s->val, *m = s->mask;
    if (m->flags & ~6u)
        return fail(err, -EINVAL,
                    "the mask of the IPv4 flags is 0x%x; known are 2 (do not fragment) and 4 (more fragments)",
                    m->flags);
    want_byte(s->rule, offsetof(struct frame_key, ip_version), 4);
    WANT(s, src_ip, &v->src_ip, &m->src_ip);
    WANT(s, dst_ip, &v->dst_ip, &m->dst_ip);
    WANT(s, proto, &v->proto, &m->proto);
    WANT(s, tos, &v->tos, &m->tos);
    WANT(s, ttl, &v->ttl, &m->ttl);
    WANT(s, ip_flags, &v->flags, &m->flags);
    return 0;
}

static int read_ipv6(struct spec *s, struct rnic_err *err) {
    const struct rnic_flow_ipv6_filter *v = s->val, *m = s->mask;
    if (m->flow_label & ~htonl(0xFFFFF))
        return fail(err, -EINVAL, "the mask of flow_label has more than 20 bits");
    want_byte(s->rule, offsetof(struct frame_key, ip_version), 6);
    WANT(s, src_ip, &v->src_ip, &m->src_ip);
    WANT(s, dst_ip, &v->dst_ip, &m->dst_ip);
    WANT(s, flow_label, &v->flow_label, &m->flow_label);
    WANT(s, proto, &v->next_hdr, &m->next_hdr);
    WANT(s, tos, &v->traffic_class, &m->traffic_class);
    WANT(s, ttl, &v->hop_limit, &m->hop_limit);
    return 0;
}

static void read_ports(struct spec *s, uint8_t transport) {
    const struct rnic_flow_tcp_udp_filter *v = s->val, *m = s->mask;
    want_byte(s->rule, offsetof(struct frame_key, transport), transport);
    WANT(s, dst_port, &v->dst_port, &m->dst_port);
    WANT(s, src_port, &v->src_port, &m->src_port);
}

static int read_tcp(struct spec *s, struct rnic_err *err) {
    (void)err;
    read_ports(s, IPPROTO_TCP);
    return 0;
}

static int read_udp(struct spec *s, struct rnic_err *err) {
    (void)err;
    read_ports(s, IPPROTO_UDP);
    return 0;
}

static int read_tag(struct spec *s, struct rnic_err *err) {
    memcpy(&s->rule->tag, s->val, sizeof s->rule->tag);
    if (s->rule->tag > 0xFFFFFF)
        return fail(err, -EINVAL, "tag_id is 0x%x; a flow tag has 24 bits", s->rule->tag);
    return 0;
}

static int read_drop(struct spec *s, struct rnic_err *err) {
    (void)err;
    s->rule->drop = true;
    return 0;
}

static int read_count(struct spec *s, struct rnic_err *err) {
    struct rnic_flow_counters *counters;
    memcpy(&counters, s->val, sizeof counters);
    if (!counters)
        return fail(err, -EINVAL, "ACTION_COUNT names no counters");
    s->rule->counters = (struct flow_counters *)counters;
    return 0;
}

struct reader {
    const char *name;
    int type;
    size_t size, val, mask; /* of the struct; where its filters are */
    unsigned layer;         /* of which a rule has one at most */
    int (*read)(struct spec *s, struct rnic_err *err);
};

#define FILTERS(s) sizeof(struct rnic_flow_spec_##s), offsetof(struct rnic_flow_spec_##s, val), offsetof(struct rnic_flow_spec_##s, mask)
static const struct reader readers[] = {
    {"ETH", RNIC_FLOW_SPEC_ETH, FILTERS(eth), LAYER_L2, read_eth},
    {"IPV4", RNIC_FLOW_SPEC_IPV4, FILTERS(ipv4), LAYER_L3, read_ipv4},
    {"IPV4_EXT", RNIC_FLOW_SPEC_IPV4_EXT, FILTERS(ipv4_ext), LAYER_L3, read_ipv4_ext},
    {"IPV6", RNIC_FLOW_SPEC_IPV6, FILTERS(ipv6), LAYER_L3, read_ipv6},
    {"TCP", RNIC_FLOW_SPEC_TCP, FILTERS(tcp_udp), LAYER_L4, read_tcp},
    {"UDP", RNIC_FLOW_SPEC_UDP, FILTERS(tcp_udp), LAYER_L4, read_udp},
    {"ACTION_TAG", RNIC_FLOW_SPEC_ACTION_TAG, sizeof(struct rnic_flow_spec_action_tag),
     offsetof(struct rnic_flow_spec_action_tag, tag_id), 0, LAYER_TAG, read_tag},
    {"ACTION_DROP", RNIC_FLOW_SPEC_ACTION_DROP, sizeof(struct rnic_flow_spec_action_drop), 0, 0, LAYER_DROP, read_drop},
    {"ACTION_COUNT", RNIC_FLOW_SPEC_ACTION_COUNT, sizeof(struct rnic_flow_spec_counter_action),
     offsetof(struct rnic_flow_spec_counter_action, counters), 0, LAYER_COUNT, read_count},
};

static const struct reader *reader_of(int type) {
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        if (readers[i].type == type)
            return &readers[i];
    }
    return NULL;
}

/* One specification at `at`, of which `left` bytes are the attribute's; its size, or -errno. */
static int read_spec(struct flow_rule *rule, const uint8_t *at, uint32_t left, unsigned *layers, struct rnic_err *err) {
    union { /* aligned: sizes of those before need not keep it */
        uint8_t bytes[sizeof(struct rnic_flow_spec_ipv6)];
        struct rnic_flow_spec_hdr hdr;
        struct rnic_flow_spec_ipv6 largest;
        void *pointer;
    } u;
    if (left < sizeof u.hdr)
        return fail(err, -EINVAL, "size says that fewer specifications follow than num_of_specs");
    memcpy(&u.hdr, at, sizeof u.hdr);
    const struct reader *r = reader_of(u.hdr.type);
    if (!r)
        return fail(
            err, -EOPNOTSUPP,
            "flow specification 0x%x: this device has ETH, IPV4, IPV4_EXT, IPV6, TCP, UDP, and the actions TAG, "
            "DROP and COUNT",
            (unsigned)u.hdr.type);
    if (u.hdr.size != r->size || left < r->size)
        return fail(err, -EINVAL, "a specification %s of %u bytes; it has %zu", r->name, u.hdr.size, r->size);
    if (*layers & r->layer)
        return fail(err, -EINVAL, "the specification %s is of a layer that another one has described already", r->name);
    memcpy(u.bytes, at, r->size);
    *layers |= r->layer;
    struct spec s = {u.bytes + r->val, u.bytes + r->mask, rule};
    int rc = r->read(&s, err);
    return rc ? rc : (int)r->size;
}

/* ---------------------------------------------------------------- rules */

/* In the order of enum rnic_flow_attr_type. */
static const uint8_t ranks[] = {[RNIC_FLOW_ATTR_SNIFFER] = 0,
                                [RNIC_FLOW_ATTR_NORMAL] = 1,
                                [RNIC_FLOW_ATTR_MC_DEFAULT] = 2,
                                [RNIC_FLOW_ATTR_ALL_DEFAULT] = 3};

static int check(const struct rnic_flow_attr *attr, struct rnic_err *err) {
    if (attr->comp_mask)
        return fail(err, -EINVAL, "comp_mask is 0x%x; nothing is known beyond 0", attr->comp_mask);
    if (attr->type < 0 || attr->type > RNIC_FLOW_ATTR_SNIFFER)
        return fail(err, -EINVAL, "rule type %d does not exist", attr->type);
    if (attr->port != 1)
        return fail(err, -EINVAL, "port %u does not exist; the device has port 1", attr->port);
    if (attr->flags & RNIC_FLOW_ATTR_FLAGS_EGRESS)
        return fail(err, -EOPNOTSUPP, "rules for what is sent (EGRESS) are not supported");
    if (attr->flags & ~(uint32_t)RNIC_FLOW_ATTR_FLAGS_DONT_TRAP)
        return fail(err, -EINVAL, "flags 0x%x are unknown", attr->flags);
    if (attr->flags && attr->type != RNIC_FLOW_ATTR_NORMAL)
        return fail(err, -EINVAL, "DONT_TRAP is for rules of type NORMAL only");
    if (attr->size < sizeof *attr)
        return fail(err, -EINVAL, "size is %u; the attribute alone has %zu bytes", attr->size, sizeof *attr);
    return 0;
}

static int check_layers(const struct rnic_flow_attr *attr, const struct flow_rule *rule, unsigned layers,
                        struct rnic_err *err) {
    if (attr->type != RNIC_FLOW_ATTR_NORMAL && (layers & MATCHES))
        return fail(err, -EINVAL, "only a rule of type NORMAL takes specifications of what it matches");
    if (rule->drop && rule->copies)
        return fail(err, -EINVAL, "a rule that drops frames cannot let them go on (DONT_TRAP, SNIFFER)");
    return 0;
}

int flow_compile(const struct rnic_flow_attr *attr, struct flow_rule *rule, struct rnic_err *err) {
    unsigned layers = 0;
    int rc = check(attr, err);
    if (rc)
        return rc;
    rule->rank = ranks[attr->type];
    rule->priority = attr->priority;
    rule->copies = attr->flags || attr->type == RNIC_FLOW_ATTR_SNIFFER;
    uint32_t at = sizeof *attr;
    for (int i = 0; i < attr->num_of_specs; i++) {
        rc = read_spec(rule, (const uint8_t *)attr + at, attr->size - at, &layers, err);
        if (rc < 0)
            return rc;
        at += (uint32_t)rc;
    }
    if (attr->type == RNIC_FLOW_ATTR_MC_DEFAULT)
        rule->mask.dst_mac[0] = rule->value.dst_mac[0] = 1; /* the group bit */
    return check_layers(attr, rule, layers, err);
}

void flow_insert(struct flow_rule **rules, struct flow_rule *rule) {
    while (*rules &&
           ((*rules)->rank < rule->rank || ((*rules)->rank == rule->rank && (*rules)->priority <= rule->priority)))
        rules = &(*rules)->next;
    rule->next = *rules;
    *rules = rule;
}

void flow_remove(struct flow_rule **rules, struct flow_rule *rule) {
    while (*rules != rule)
        rules = &(*rules)->next;
    *rules = rule->next;
}

bool flow_matches(const struct flow_rule *rule, const struct frame *f) {
    uint64_t key[8], mask[8], value[8], differ = 0;
    memcpy(key, &f->key, sizeof key);
    memcpy(mask, &rule->mask, sizeof mask);
    memcpy(value, &rule->value, sizeof value);
    for (int i = 0; i < 8; i++)
        differ |= (key[i] & mask[i]) ^ value[i];
    return !differ;
}

bool flow_equal(const struct flow_rule *a, const struct flow_rule *b) {
    return flow_same_place(a, b) && !memcmp(&a->value, &b->value, sizeof a->value) &&
           !memcmp(&a->mask, &b->mask, sizeof a->mask);
}
