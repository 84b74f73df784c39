/* SPDX-License-Identifier: Apache-2.0
 *
 * What comes in at a port of a bare device (bare.h), on a clock of the test's: what demux_datagram() makes of it.
 */
#ifndef RNIC_TESTS_INLET_H
#define RNIC_TESTS_INLET_H

#include "dev/dev.h"
#include "wire/icrc.h"
#include "wire/mad.h"

#define MS 1000000ull
#define MAD_PACKET (BTH_BYTES + DETH_BYTES + MAD_BYTES + ICRC_BYTES)

extern struct dev *dev;
extern struct port *port; /* 127.0.0.1; rx_fd takes what nobody sends */
extern uint64_t now;      /* that the next packet comes */
extern bool handed;       /* by another process, which has found whose it is */

/* The end here of a queue pair that inlet_connect() made. */
extern struct qp qp;
extern bool expected;  /* by the transport: any packet is, or none */
extern uint32_t taken; /* packets that the transport was given */

void inlet_open(void);
void inlet_close(void);
uint32_t inlet_qpn(uint32_t index); /* of this process */
/* The device has that queue pair, ready to send. */
void inlet_enter(struct qp *q, uint32_t index);
/* RC, index 6, which has heard nothing yet. */
void inlet_connect(const struct sockaddr_in6 *peer);

/* One packet, which gets a right ICRC; or as it is. */
void inlet_arrive(const struct sockaddr_in6 *from, uint8_t *bytes, uint32_t n);
void inlet_datagram(const struct sockaddr_in6 *from, uint8_t *bytes, uint32_t n);
/* A message of connection management, for a communication ID. */
void inlet_mad(const struct sockaddr_in6 *from, uint16_t attribute);
void inlet_mad_for(const struct sockaddr_in6 *from, uint16_t attribute, uint32_t comm_id);

#endif
