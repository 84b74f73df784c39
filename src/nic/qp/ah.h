/* SPDX-License-Identifier: Apache-2.0
 *
 * Address handles: the way that a datagram takes (IBA 11.2.2).
 */
#ifndef RNIC_QP_AH_H
#define RNIC_QP_AH_H

#include "link/link.h"
#include "queue/wq.h"

struct ah {
    struct ah_head head;
    struct rnic_ah_attr attr;
    struct way way;
    struct ah *next; /* among those that are destroyed and still named by send elements */
};

#endif
