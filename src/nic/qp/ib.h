/* SPDX-License-Identifier: Apache-2.0
 *
 * What InfiniBand's transport adds to a queue pair: packets of a service, P_Keys, and an alternate path.  Transports of
 * that kind, and what finds their queue pairs for a packet, read and write it.
 */
#ifndef RNIC_QP_IB_H
#define RNIC_QP_IB_H

#include <stdbool.h>
#include <stdint.h>

#include "link/link.h"

struct qp_ib {
    uint32_t service;         /* enum roce_opcode_mask: its transport service; 0: it has no packets of that kind */
    uint32_t takes;           /* and the packets that it takes: of that service, and CNPs where it has a peer */
    uint8_t opcodes;          /* ROCE_SERVICE_: of those that it sends */
    bool alt_loaded;          /* the alternate path is of use: both of its ways are known, see path.h */
    bool mig_refused;         /* PATH_MIG_ERR has been raised since the last REARM */
    uint16_t pkey;            /* what attr.pkey_index stands for now; 0: nothing that anybody matches */
    uint16_t heard[2];        /* ports of those that it could have sent, the last one first; 0: none (demux.c) */
    struct way from;          /* from the peer: the source port is that of its last packet */
    struct way alt, alt_from; /* the alternate path; after a migration the one that was left */
};

#endif
