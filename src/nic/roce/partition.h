/* SPDX-License-Identifier: Apache-2.0
 *
 * Partitions (IBA 10.9): which packets a queue pair takes by their P_Key.
 */
#ifndef RNIC_ROCE_PARTITION_H
#define RNIC_ROCE_PARTITION_H

#include "qp/qp.h"

/* Do two P_Keys let their holders talk: one partition, and not both limited members (IBA 10.9.1, 10.9.3)? */
static inline bool pkey_match(uint16_t a, uint16_t b) {
    return ((a ^ b) & 0x7FFF) == 0 && (a & 0x7FFF) != 0 && ((a | b) & 0x8000) != 0;
}
int pkey_find(const struct nic *nic, uint16_t pkey); /* the index of an entry that matches; -1: there is none */
int qp_pkey_other(const struct qp *qp, uint16_t pkey);
/* The index of the entry by which a queue pair takes a packet of that P_Key; -1: it does not. */
static inline int qp_pkey_index(const struct qp *qp, uint16_t pkey) {
    return pkey_match(qp->ib.pkey, pkey) ? qp->attr.pkey_index : qp_pkey_other(qp, pkey);
}

#endif
