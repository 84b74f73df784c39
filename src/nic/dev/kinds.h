/* SPDX-License-Identifier: Apache-2.0
 *
 * What kinds of devices there are, and all in which they differ: one of each for every network interface.
 */
#ifndef RNIC_DEV_KINDS_H
#define RNIC_DEV_KINDS_H

#include <stddef.h>

#include "host/host.h"
#include "net/net.h"

#define MAX_QP (SLOTS_EACH * (int)QPN_INDICES / 2)
#define MAX_QP_WR 32768
#define MAX_SGE SGE_MAX
#define MAX_INLINE 4096
#define MAX_SRQ 65536
#define MAX_SRQ_WR 32768
#define MAX_CQE (1 << 20)
#define MAX_MR (1 << 22)
#define MAX_PD 65536
#define MAX_CQ 65536
#define MAX_AH (1 << 20)
#define MAX_GROUPS 1024 /* each has a socket of its own */

/* The middle of an EUI-64 is the same in all that are made of an Ethernet address. */
#define GUID_MIDDLE(bits) ((uint64_t)(bits) << 24)

/* What some kinds have, and others have not. */
enum device_has {
    HAS_DATAGRAMS = 1 << 0, /* address handles and multicast groups, too */
    HAS_XRC = 1 << 1,
    HAS_TAGS = 1 << 2,   /* shared receive queues that match them */
    HAS_FRAMES = 1 << 3, /* of Ethernet: flow rules, work queues */
    HAS_PARTITIONS = 1 << 4,
    HAS_GSI = 1 << 5,   /* queue pair 1, and listeners whose requests come there */
    HAS_LANES = 1 << 6, /* peers on this host may be reached by shared memory */
    HAS_STREAMS = 1 << 7,
};

struct device_kind {
    const char *name;                      /* of its transport, in messages */
    const char *article;                   /* that it takes */
    const char *prefix;                    /* ahead of the netdev's name, where a device has no other */
    int transport;                         /* enum rnic_transport */
    int node_type;                         /* enum rnic_node_type */
    uint64_t guid;                         /* GUID_MIDDLE: what is other in its GUIDs than in the netdev's */
    uint32_t has;                          /* enum device_has */
    const struct transport *transports[3]; /* of its queue pairs, up to NULL */
    struct {
        const struct source *is;
        size_t owner;           /* in struct dev */
    } sources[RUN_SOURCES + 1]; /* what it listens to, up to NULL */
    const struct net_kind *net;
    int gids, gid_type; /* entries of the table, and what they are */
    int pkeys;
    uint32_t port_cap_flags;
    uint64_t more_caps; /* enum rnic_device_cap_ex */
    struct rnic_device_attr attr;
};

#define DEVICE_KINDS 2
extern const struct device_kind device_kinds[DEVICE_KINDS];
const struct device_kind *device_kind_of(int transport);

#endif
