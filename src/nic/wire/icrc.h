/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC-32 (the Ethernet polynomial, reflected) and the RoCEv2 invariant CRC (IBTA Annex A17, clause A17.3.3).
 *
 * "State" is the CRC register without the final complement; CRC_INIT is its start.  The register is linear in the
 * message, which is what the recovery of the IP identification field rests on.
 */
#ifndef RNIC_WIRE_ICRC_H
#define RNIC_WIRE_ICRC_H

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>

#define CRC_INIT 0xFFFFFFFFu
#define ICRC_BYTES 4

/* State after n more bytes. */
uint32_t crc32_update(uint32_t state, const void *data, size_t n);
/* The same while copying to dst; the CRC is that of the bytes as stored in dst, even when src changes meanwhile.
 * src and dst do not overlap.  Nothing outside the n bytes is touched; dst may be written more than once. */
uint32_t crc32_copy(uint32_t state, void *dst, const void *src, size_t n);
/* Which implementation runs: "vpclmul512", "pclmul" or "table", the fastest that the CPU has.  crc32_use() forces one
 * for the whole process, for tests (-1: no such, or not on this CPU). */
const char *crc32_name(void);
int crc32_use(const char *name);

/* State after the pseudo header (8 bytes of ones, IP header, UDP header, variant fields as ones) of a datagram whose
 * UDP payload is n bytes, from the BTH to the ICRC's own four included.  Addresses with IPv4 mapped; both of one
 * family; sin6_port is the UDP port.  id: the IPv4 identification field (ignored for IPv6); DF is set.  Flow labels are
 * variant and so do not enter. */
uint32_t icrc_seed(const struct sockaddr_in6 *src, const struct sockaddr_in6 *dst, uint16_t id, uint32_t n);
/* icrc_seed(.., id, ..) == icrc_seed(.., 0, ..) ^ icrc_id_delta(id), for every address and n. */
uint32_t icrc_id_delta(uint16_t id);
/* State after the BTH's 12 bytes with byte 4 (resv8a) as ones. */
uint32_t icrc_bth(uint32_t state, const uint8_t bth[12]);

/* Given n = bytes from the BTH up to the ICRC and diff = (ICRC received) ^ (ICRC computed with id 0): the
 * identification that explains the difference (0..65535), or -1 when none does.  Of arbitrary differences, one in
 * 65,536 is explained. */
int icrc_recover_id(uint32_t diff, uint32_t n);

/* The ICRC of a packet whose BTH, payload and pad are the n >= 12 bytes at bth, as a number; stored little-endian after
 * them on the wire. */
uint32_t icrc_compute(const struct sockaddr_in6 *src, const struct sockaddr_in6 *dst, uint16_t id, const uint8_t *bth,
                      uint32_t n);

#endif
