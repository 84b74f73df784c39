/* SPDX-License-Identifier: Apache-2.0
 *
 * What InfiniBand's transport adds to queue pairs: packets of a service, P_Keys, congestion control, and an alternate
 * path.  Transports of that kind, and what finds their queue pairs for a packet, read and write it; qp/ only has room for it.
 */
#ifndef RNIC_QP_IB_H
#define RNIC_QP_IB_H

#include <stdbool.h>
#include <stdint.h>

#include "link/link.h"

#define PKEYS 32 /* entries of the P_Key table */

/* Of a service: enum roce_opcode_mask but for the last.  All 0: it has no packets of that kind. */
struct ib_service {
    uint32_t service; /* its transport service, */
    uint32_t takes;   /* and the packets that it takes: of that service, and CNPs where it has a peer */
    uint8_t opcodes;  /* ROCE_SERVICE_: of those that it sends */
};

/* Of a device. */
struct nic_ib {
    uint16_t pkeys[PKEYS]; /* the port's P_Key table; 0: empty */
    bool congestion;       /* it is controlled */
};

/* Of a queue pair. */
struct qp_ib {
    uint32_t service, takes; /* as of its service */
    uint8_t opcodes;
    bool alt_loaded;          /* the alternate path is of use: both of its ways are known, see roce/path.h */
    bool mig_refused;         /* PATH_MIG_ERR has been raised since the last REARM */
    uint16_t pkey;            /* what attr.pkey_index stands for now; 0: nothing that anybody matches */
    uint16_t heard[2];        /* ports of those that it could have sent, the last one first; 0: none (demux.c) */
    struct way from;          /* from the peer: the source port is that of its last packet */
    struct way alt, alt_from; /* the alternate path; after a migration the one that was left */
};

static inline uint32_t mtu_bytes(int mtu) { return 128u << mtu; } /* of enum rnic_mtu */

/* Has the peer been heard from that port?  Nobody is heard from port 0, which a forger can write. */
static inline bool ib_hears_port(const struct qp_ib *ib, uint16_t port) {
    return port && (ib->heard[0] == port || ib->heard[1] == port);
}

#endif
