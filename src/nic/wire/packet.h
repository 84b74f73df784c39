/* SPDX-License-Identifier: Apache-2.0
 *
 * A received packet, as it goes from a link to a queue pair.
 */
#ifndef RNIC_WIRE_PACKET_H
#define RNIC_WIRE_PACKET_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/opcode.h"

/* A received packet: lengths, opcode and ICRC are checked. */
struct packet {
    const uint8_t *bth;
    const struct roce_opcode *row;
    const uint8_t *payload;
    uint32_t length; /* of the payload, pad excluded */
    uint32_t psn;
    uint8_t opcode;
    bool ackreq, solicited;
    bool marked;         /* a router on its way was congested */
    uint8_t sl;          /* of datagrams: the priority that the IP header asks for, */
    uint16_t pkey_index; /* and the entry of our P_Key table that it matches */
    const uint8_t *grh;  /* of datagrams: the GRH_BYTES that a receive gets ahead of the payload, see wire/grh.h */
};

#endif
