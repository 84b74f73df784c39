/* SPDX-License-Identifier: Apache-2.0
 *
 * Address handles: the way that a datagram takes (IBA 11.2.2).
 */
#ifndef RNIC_QP_AH_H
#define RNIC_QP_AH_H

#include "qp/qp.h"

struct ah {
    struct ah_head head;
    struct rnic_ah_attr attr;
    struct way way;       /* held by the device's wire */
    struct ah *next;      /* among those that are destroyed and still named by send elements */
    struct listed listed; /* in the context's list of its kind; device's lock */
};

/* The program's own name for it goes; it stays until no send element names it. */
void ah_destroy(struct nic *nic, struct ah *ah);
void ah_reap(struct nic *nic);     /* frees those that nothing names any more; when nothing lies in the sending batch */
void ah_free_all(struct nic *nic); /* the device closes, and its ports have */

#endif
