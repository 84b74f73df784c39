/* SPDX-License-Identifier: Apache-2.0
 *
 * The classic BPF program of a reuseport group: a packet to the index of the member that has its slot.
 */
#ifndef RNIC_LINK_STEERPROG_H
#define RNIC_LINK_STEERPROG_H

#include <stdint.h>

#define STEERPROG_SPREAD 16 /* members that requests of the CM are spread over */

/* index_of: by slot, 0xFFFF: nobody has it. first_slot: by index, 0xFFFF: nobody is known there; silent: bits by index.
 * What the kernel refuses for want of memory is attached with fewer rows, or not at all: then the hash spreads packets and
 * forwarding carries them. */
void steerprog_attach(int fd, const uint16_t *index_of, const uint16_t *first_slot, const uint64_t *silent);

#define STEERPROG_LOOPBACK 1 /* the index of lo, in every network namespace: the way of what members tell each other */

#endif
