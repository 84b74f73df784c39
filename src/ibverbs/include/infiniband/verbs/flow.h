/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs/flow.h: rules that steer Ethernet frames to queue pairs, what is done to the frames, and their counters.
 *
 * A rule (man ibv_create_flow) is a struct ibv_flow_attr with num_of_specs specifications behind it.  Each begins with
 * its type and its size in bytes; val is compared with the packet where mask has bits set. Numbers of headers are in
 * network byte order.
 */
#ifndef RNIC_VERBS_FLOW_H
#define RNIC_VERBS_FLOW_H

#include <infiniband/verbs/base.h>

enum ibv_flow_attr_type {
    IBV_FLOW_ATTR_NORMAL,      /* what the specifications say */
    IBV_FLOW_ATTR_ALL_DEFAULT, /* all that no other rule takes */
    IBV_FLOW_ATTR_MC_DEFAULT,  /* all multicast that no other rule takes */
    IBV_FLOW_ATTR_SNIFFER      /* a copy of all */
};
enum ibv_flow_flags { IBV_FLOW_ATTR_FLAGS_DONT_TRAP = 1 << 1, IBV_FLOW_ATTR_FLAGS_EGRESS = 1 << 2 };
struct ibv_flow_attr {
    uint32_t comp_mask;
    enum ibv_flow_attr_type type;
    uint16_t size /* bytes, with the specifications */, priority /* 0: the first */;
    uint8_t num_of_specs, port;
    uint32_t flags; /* enum ibv_flow_flags */
};
struct ibv_flow {
    uint32_t comp_mask;
    struct ibv_context *context;
    uint32_t handle;
};

/* ---------------------------------------------------------------- specifications */

enum ibv_flow_spec_type {
    IBV_FLOW_SPEC_ETH = 0x20,
    IBV_FLOW_SPEC_IPV4 = 0x30,
    IBV_FLOW_SPEC_IPV6 = 0x31,
    IBV_FLOW_SPEC_IPV4_EXT = 0x32,
    IBV_FLOW_SPEC_ESP = 0x34,
    IBV_FLOW_SPEC_TCP = 0x40,
    IBV_FLOW_SPEC_UDP = 0x41,
    IBV_FLOW_SPEC_VXLAN_TUNNEL = 0x50,
    IBV_FLOW_SPEC_GRE = 0x51,
    IBV_FLOW_SPEC_MPLS = 0x60,
    IBV_FLOW_SPEC_INNER = 0x100, /* or'ed: of the inner headers */
    IBV_FLOW_SPEC_ACTION_TAG = 0x1000,
    IBV_FLOW_SPEC_ACTION_DROP = 0x1001,
    IBV_FLOW_SPEC_ACTION_HANDLE = 0x1002,
    IBV_FLOW_SPEC_ACTION_COUNT = 0x1003
};

struct ibv_flow_eth_filter {
    uint8_t dst_mac[6], src_mac[6];
    uint16_t ether_type, vlan_tag;
};
struct ibv_flow_spec_eth {
    enum ibv_flow_spec_type type;
    uint16_t size;
    struct ibv_flow_eth_filter val, mask;
};

struct ibv_flow_ipv4_filter {
    uint32_t src_ip, dst_ip;
};
struct ibv_flow_spec_ipv4 {
    enum ibv_flow_spec_type type;
    uint16_t size;
    struct ibv_flow_ipv4_filter val, mask;
};

struct ibv_flow_ipv4_ext_filter {
    uint32_t src_ip, dst_ip;
    uint8_t proto, tos, ttl, flags;
};
struct ibv_flow_spec_ipv4_ext {
    enum ibv_flow_spec_type type;
    uint16_t size;
    struct ibv_flow_ipv4_ext_filter val, mask;
};

struct ibv_flow_ipv6_filter {
    uint8_t src_ip[16], dst_ip[16];
    uint32_t flow_label;
    uint8_t next_hdr, traffic_class, hop_limit;
};
struct ibv_flow_spec_ipv6 {
    enum ibv_flow_spec_type type;
    uint16_t size;
    struct ibv_flow_ipv6_filter val, mask;
};

struct ibv_flow_esp_filter {
    uint32_t spi, seq;
};
struct ibv_flow_spec_esp {
    enum ibv_flow_spec_type type;
    uint16_t size;
    struct ibv_flow_esp_filter val, mask;
};

struct ibv_flow_tcp_udp_filter {
    uint16_t dst_port, src_port;
};
struct ibv_flow_spec_tcp_udp {
    enum ibv_flow_spec_type type;
    uint16_t size;
    struct ibv_flow_tcp_udp_filter val, mask;
};

struct ibv_flow_gre_filter { /* RFC 2784, RFC 2890 */
    uint16_t c_ks_res0_ver, protocol;
    uint32_t key;
};
struct ibv_flow_spec_gre {
    enum ibv_flow_spec_type type;
    uint16_t size;
    struct ibv_flow_gre_filter val, mask;
};

struct ibv_flow_mpls_filter { /* RFC 3032: a label stack entry */
    uint32_t label;
};
struct ibv_flow_spec_mpls {
    enum ibv_flow_spec_type type;
    uint16_t size;
    struct ibv_flow_mpls_filter val, mask;
};

struct ibv_flow_tunnel_filter { /* VXLAN */
    uint32_t tunnel_id;
};
struct ibv_flow_spec_tunnel {
    enum ibv_flow_spec_type type;
    uint16_t size;
    struct ibv_flow_tunnel_filter val, mask;
};

/* What is done to a packet that matches. */
struct ibv_flow_spec_action_tag {
    enum ibv_flow_spec_type type;
    uint16_t size;
    uint32_t tag_id; /* ibv_wc_read_flow_tag */
};
struct ibv_flow_spec_action_drop {
    enum ibv_flow_spec_type type;
    uint16_t size;
};
struct ibv_flow_spec_action_handle {
    enum ibv_flow_spec_type type;
    uint16_t size;
    const struct ibv_flow_action *action;
};
struct ibv_flow_spec_counter_action {
    enum ibv_flow_spec_type type;
    uint16_t size;
    struct ibv_counters *counters;
};

__extension__ struct ibv_flow_spec { /* any of them */
    union {
        struct {
            enum ibv_flow_spec_type type;
            uint16_t size;
        } hdr;
        struct ibv_flow_spec_eth eth;
        struct ibv_flow_spec_ipv4 ipv4;
        struct ibv_flow_spec_tcp_udp tcp_udp;
        struct ibv_flow_spec_ipv4_ext ipv4_ext;
        struct ibv_flow_spec_ipv6 ipv6;
        struct ibv_flow_spec_esp esp;
        struct ibv_flow_spec_tunnel tunnel;
        struct ibv_flow_spec_gre gre;
        struct ibv_flow_spec_mpls mpls;
        struct ibv_flow_spec_action_tag flow_tag;
        struct ibv_flow_spec_action_drop drop;
        struct ibv_flow_spec_action_handle handle;
        struct ibv_flow_spec_counter_action flow_count;
    };
};

/* ---------------------------------------------------------------- ESP */

struct ibv_flow_action { /* man ibv_create_flow_action_esp */
    struct ibv_context *context;
};
enum ibv_flow_action_esp_mask { IBV_FLOW_ACTION_ESP_MASK_ESN = 1 };
struct ibv_flow_action_esp_attr {
    struct ibv_flow_action_esp *esp_attr;
    enum ibv_flow_action_esp_keymat keymat_proto;
    uint16_t keymat_len;
    void *keymat_ptr; /* struct ibv_flow_action_esp_keymat_... */
    enum ibv_flow_action_esp_replay replay_proto;
    uint16_t replay_len;
    void *replay_ptr; /* struct ibv_flow_action_esp_replay_... */
    struct ibv_flow_action_esp_encap *esp_encap;
    uint32_t comp_mask; /* enum ibv_flow_action_esp_mask */
    uint32_t esn;       /* upper half of the sequence number */
};

/* ---------------------------------------------------------------- counters */

struct ibv_counters_init_attr {
    uint32_t comp_mask; /* 0 */
};
struct ibv_counters { /* man ibv_create_counters */
    struct ibv_context *context;
};
enum ibv_counter_description { IBV_COUNTER_PACKETS, IBV_COUNTER_BYTES };
struct ibv_counter_attach_attr { /* man ibv_attach_counters_point_flow */
    enum ibv_counter_description counter_desc;
    uint32_t index; /* where ibv_read_counters writes it */
    uint32_t comp_mask;
};
enum ibv_read_counters_flags { IBV_READ_COUNTERS_ATTR_PREFER_CACHED = 1 };

#endif
