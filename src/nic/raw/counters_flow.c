/* SPDX-License-Identifier: Apache-2.0 */
#include "raw/counters_flow.h"

#include <errno.h>

#include "base/fail.h"

int flow_counters_attach(struct flow_counters *c, int desc, uint32_t index, struct rnic_err *err) {
    if (desc != RNIC_COUNTER_PACKETS && desc != RNIC_COUNTER_BYTES)
        return fail(err, -EINVAL, "counter description %d: there are PACKETS (0) and BYTES (1)", desc);
    if (index >= FLOW_COUNTERS)
        return fail(err, -EINVAL, "index %u; a set has room for %d values", index, FLOW_COUNTERS);
    if (c->attached[index])
        return fail(err, -EINVAL, "index %u has a counter already", index);
    c->attached[index] = true;
    c->desc[index] = (int8_t)desc;
    return 0;
}

int flow_counters_read(const struct flow_counters *c, uint64_t *values, uint32_t n, struct rnic_err *err) {
    if (n > FLOW_COUNTERS)
        return fail(err, -EINVAL, "%u values; a set has room for %d", n, FLOW_COUNTERS);
    for (uint32_t i = 0; i < n; i++)
        values[i] = c->attached[i] ? c->count[c->desc[i]] : 0;
    return 0;
}
