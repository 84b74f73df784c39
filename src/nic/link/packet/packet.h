/* SPDX-License-Identifier: Apache-2.0
 *
 * A packet socket (man packet): whole Ethernet frames of one network device. It needs CAP_NET_RAW.
 */
#ifndef RNIC_LINK_PACKET_H
#define RNIC_LINK_PACKET_H

#include <stdbool.h>
#include <stdint.h>

#include "nic.h"

#define PACKET_ROOM 4 /* bytes ahead of a received frame, for a VLAN tag that the kernel took out */

/* A socket that only sends until packet_listen(); non-blocking. Its descriptor, or -errno. */
int packet_open(struct rnic_err *err);
/* From now on it receives, too: all that comes by the device, whoever it is for, and what other sockets of this kind
 * send by it; not what the kernel sends.  By the loopback interface nothing comes but that. */
int packet_listen(int fd, int ifindex, bool loopback, struct rnic_err *err);
int packet_send(int fd, int ifindex, const uint8_t *frame, uint32_t n); /* 0, -errno */
/* One frame into buffer, of size bytes, PACKET_ROOM of them at its beginning; *frame is where it begins. Its length,
 * which is more than there was room for when it was cut; -EAGAIN: there is none. *partial: the kernel left the checksums
 * of TCP and UDP to the hardware that would have sent it. */
int packet_receive(int fd, uint8_t *buffer, uint32_t size, uint8_t **frame, bool *partial);

#endif
