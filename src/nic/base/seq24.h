/* SPDX-License-Identifier: Apache-2.0
 *
 * Arithmetic on 24-bit sequence numbers (PSN, MSN, SSN).  They are kept in uint32_t with the upper byte zero; numbers
 * are compared by their signed distance, never by < (IBA 9.7.2: half of the space is ahead, half behind).
 */
#ifndef RNIC_BASE_SEQ24_H
#define RNIC_BASE_SEQ24_H

#include <stdint.h>

#define PSN_MASK 0xFFFFFFu
#define PSN_HALF 0x800000 /* psn_diff() lies in [-PSN_HALF, PSN_HALF) */

static inline uint32_t psn_mask(uint32_t psn) { return psn & PSN_MASK; }

/* psn + n; n may be negative. */
static inline uint32_t psn_add(uint32_t psn, int32_t n) { return (psn + (uint32_t)n) & PSN_MASK; }

/* How far a is ahead of b; negative: behind.  Bits above 24 of either do not count. */
static inline int32_t psn_diff(uint32_t a, uint32_t b) {
    uint32_t d = (a - b) & PSN_MASK;
    return (int32_t)(d ^ (uint32_t)PSN_HALF) - PSN_HALF;
}

#endif
