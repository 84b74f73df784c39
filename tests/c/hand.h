/* SPDX-License-Identifier: Apache-2.0
 *
 * A packet of a reliable connection by hand, from one end to the other: the expected PSN plus a distance.
 */
#ifndef RNIC_TESTS_HAND_H
#define RNIC_TESTS_HAND_H

#include "fabric.h"

struct hand {
    uint8_t opcode;
    uint32_t length; /* of the payload */
    uint32_t dma;    /* reth_len */
    uint8_t syndrome;
    int psn;
    uint64_t at; /* of the peer's memory */
};

void inject(struct end *from, const struct hand *h);
void inject_unasked(struct end *from, const struct hand *h); /* without AckReq */

#endif
