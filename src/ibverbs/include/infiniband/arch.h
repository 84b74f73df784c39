/* SPDX-License-Identifier: Apache-2.0
 *
 * arch.h: byte order of 64 bits, for old programs; <endian.h> has the same.
 */
#ifndef INFINIBAND_ARCH_H
#define INFINIBAND_ARCH_H

#include <endian.h>
#include <stdint.h>

#ifndef ntohll
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
static inline uint64_t htonll(uint64_t x) { return __builtin_bswap64(x); }
#else
static inline uint64_t htonll(uint64_t x) { return x; }
#endif
static inline uint64_t ntohll(uint64_t x) { return htonll(x); }
#define htonll htonll
#define ntohll ntohll
#endif

#endif
