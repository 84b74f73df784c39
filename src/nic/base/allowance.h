/* SPDX-License-Identifier: Apache-2.0
 *
 * What others may make us do: one thing in each_ns in the long run, of which at_once may come together.
 */
#ifndef RNIC_BASE_ALLOWANCE_H
#define RNIC_BASE_ALLOWANCE_H

#include <stdbool.h>
#include <stdint.h>

struct allowance {
    uint64_t paid_until; /* ns: all that was done is paid for then */
};

static inline bool allowance_has(const struct allowance *a, uint64_t each_ns, uint32_t at_once, uint64_t now) {
    return a->paid_until < now + at_once * each_ns;
}

static inline void allowance_pay(struct allowance *a, uint64_t each_ns, uint32_t n, uint64_t now) {
    a->paid_until = (a->paid_until > now ? a->paid_until : now) + n * each_ns;
}

#endif
