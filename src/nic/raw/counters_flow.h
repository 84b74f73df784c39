/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters that flow rules add to (man ibv_create_counters, ibv_attach_counters_point_flow).
 */
#ifndef RNIC_RAW_COUNTERS_FLOW_H
#define RNIC_RAW_COUNTERS_FLOW_H

#include "base/listed.h"
#include "nic.h"

#define FLOW_COUNTERS 16 /* values of a set at most */

struct flow_counters {
    struct rnic_flow_counters pub;
    uint64_t count[2];            /* by enum rnic_counter_description */
    int8_t desc[FLOW_COUNTERS];   /* what the value at an index is, */
    bool attached[FLOW_COUNTERS]; /* if one is there */
    int rules;                    /* that add to it */
    struct listed listed;         /* in the context's list of its kind; device's lock */
};

static inline void flow_count(struct flow_counters *c, uint32_t bytes) {
    c->count[RNIC_COUNTER_PACKETS]++;
    c->count[RNIC_COUNTER_BYTES] += bytes;
}

int flow_counters_attach(struct flow_counters *c, int desc, uint32_t index, struct rnic_err *err);
/* Values of indices where nothing is attached are 0. */
int flow_counters_read(const struct flow_counters *c, uint64_t *values, uint32_t n, struct rnic_err *err);

#endif
