/* SPDX-License-Identifier: Apache-2.0
 *
 * Address handles: the way that a datagram takes (IBA 11.2.2).
 */
#ifndef RNIC_QP_AH_H
#define RNIC_QP_AH_H

#include "queue/wq.h"
#include "wire/packet.h"

struct ah {
    struct ah_head head;
    struct rnic_ah_attr attr;
    struct flow flow;
    struct ah *next; /* among those that are destroyed and still named by send elements */
};

#endif
