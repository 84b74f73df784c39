/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC32C (the Castagnoli polynomial, reflected), which MPA has in its frames (RFC 5044, 4.4).
 *
 * "State" is the register without the final complement; CRC32C_INIT is its start.  On the wire the complement stands with its
 * lowest byte first.
 */
#ifndef RNIC_WIRE_CRC32C_H
#define RNIC_WIRE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

#define CRC32C_INIT 0xFFFFFFFFu

/* State after n more bytes. */
uint32_t crc32c_update(uint32_t state, const void *data, size_t n);
/* The same while copying to dst; the CRC is that of the bytes as stored in dst, even when src changes meanwhile. src and dst
 * do not overlap. */
uint32_t crc32c_copy(uint32_t state, void *dst, const void *src, size_t n);
/* Which implementation runs: "vpclmul512", "instruction" or "table", the fastest that the CPU has.  crc32c_use() forces one for the whole
 * process, for tests (-1: no such, or not on this CPU). */
const char *crc32c_name(void);
int crc32c_use(const char *name);

#endif
