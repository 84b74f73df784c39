/* SPDX-License-Identifier: Apache-2.0
 *
 * sa.h: records of InfiniBand's subnet administration (IBA 15.2.5), and paths as RDMA_OPTION_IB_PATH takes them.
 *
 * Members without __be types are in the host's byte order. A selector says how the value beside it is meant: 0 greater
 * than, 1 less than, 2 exactly, 3 the largest (or smallest) there is.
 */
#ifndef INFINIBAND_SA_H
#define INFINIBAND_SA_H

#include <infiniband/verbs.h>

struct ibv_sa_path_rec { /* unpacked: a member for each field */
    union ibv_gid dgid, sgid;
    __be16 dlid, slid;
    int raw_traffic;
    __be32 flow_label;
    uint8_t hop_limit, traffic_class;
    int reversible;
    uint8_t numb_path;
    __be16 pkey;
    uint8_t sl;
    uint8_t mtu_selector, mtu /* enum ibv_mtu */;
    uint8_t rate_selector, rate /* enum ibv_rate */;
    uint8_t packet_life_time_selector, packet_life_time /* 4.096 us * 2^n */;
    uint8_t preference;
};
struct ibv_sa_mcmember_rec {
    union ibv_gid mgid, port_gid;
    uint32_t qkey;
    uint16_t mlid;
    uint8_t mtu_selector, mtu, traffic_class;
    uint16_t pkey;
    uint8_t rate_selector, rate, packet_life_time_selector, packet_life_time, sl;
    uint32_t flow_label;
    uint8_t hop_limit, scope, join_state;
    int proxy_join;
};
struct ibv_sa_service_rec {
    uint64_t id;
    union ibv_gid gid;
    uint16_t pkey;
    uint32_t lease; /* seconds */
    uint8_t key[16], name[64], data8[16];
    uint16_t data16[8];
    uint32_t data32[4];
    uint64_t data64[2];
};

#define IBV_PATH_RECORD_REVERSIBLE 0x80 /* in reversible_numpath */
struct ibv_path_record { /* as in a MAD */
    __be64 service_id;
    union ibv_gid dgid, sgid;
    __be16 dlid, slid;
    __be32 flowlabel_hoplimit; /* 27-8, 7-0 */
    uint8_t tclass, reversible_numpath /* 7, 6-0 */;
    __be16 pkey, qosclass_sl /* 15-4, 3-0 */;
    uint8_t mtu, rate, packetlifetime; /* selector in 7-6, value in 5-0 */
    uint8_t preference, reserved[6];
};

#define IBV_PATH_FLAG_GMP (1 << 0)
#define IBV_PATH_FLAG_PRIMARY (1 << 1)
#define IBV_PATH_FLAG_ALTERNATE (1 << 2)
#define IBV_PATH_FLAG_OUTBOUND (1 << 3)
#define IBV_PATH_FLAG_INBOUND (1 << 4)
#define IBV_PATH_FLAG_INBOUND_REVERSE (1 << 5)
#define IBV_PATH_FLAG_BIDIRECTIONAL (IBV_PATH_FLAG_OUTBOUND | IBV_PATH_FLAG_INBOUND_REVERSE)
struct ibv_path_data {
    uint32_t flags; /* IBV_PATH_FLAG_ */
    uint32_t reserved;
    struct ibv_path_record path;
};

#endif
