/* SPDX-License-Identifier: Apache-2.0
 *
 * The extensions of the software RNIC, for tests of it: it has all of them.
 */
#ifndef RNIC_TESTS_EXT_H
#define RNIC_TESTS_EXT_H

#include "nic.h"

static inline const struct rnic_ext_cm *ext_cm(const struct rnic_context *ctx) {
    return rnic_extension(ctx, RNIC_EXT_CM);
}
static inline const struct rnic_ext_stats *ext_stats(const struct rnic_context *ctx) {
    return rnic_extension(ctx, RNIC_EXT_STATS);
}
static inline const struct rnic_ext_faults *ext_faults(const struct rnic_context *ctx) {
    return rnic_extension(ctx, RNIC_EXT_FAULTS);
}
static inline const struct rnic_ext_memory *ext_memory(const struct rnic_context *ctx) {
    return rnic_extension(ctx, RNIC_EXT_MEMORY);
}
static inline const struct rnic_ext_query *ext_query(const struct rnic_context *ctx) {
    return rnic_extension(ctx, RNIC_EXT_QUERY);
}

#endif
