/* SPDX-License-Identifier: Apache-2.0
 *
 * Flow steering: the rules of a device as a list in the order in which they are looked at (man ibv_create_flow).
 *
 * A sniffer's rules come first and only copy; then NORMAL ones, the lowest priority number first, and at equal
 * priority the oldest; then what wants multicast, or everything, that nobody else took.  A rule that says no DONT_TRAP
 * takes the frame; rules that are equal to it, but for their queue pair, get a copy each.
 */
#ifndef RNIC_RAW_FLOW_H
#define RNIC_RAW_FLOW_H

#include "qp/qp.h"
#include "raw/counters_flow.h"
#include "raw/frame.h"

struct flow_rule {
    struct rnic_flow pub;
    struct flow_rule *next;
    uint8_t rank; /* of its type: the lowest is looked at first */
    uint16_t priority;
    bool copies; /* the frame goes on to later rules */
    bool drop;
    uint32_t tag;
    struct frame_key value, mask; /* it wants frames whose key, masked, is the value */
    struct flow_counters *counters;
    struct qp *qp;
    struct listed listed; /* in the context's list of its kind; device's lock */
};

/* Checks an attribute with the specifications behind it, and makes a rule of it. 0, -EINVAL, -EOPNOTSUPP */
int flow_compile(const struct rnic_flow_attr *attr, struct flow_rule *rule, struct rnic_err *err);
void flow_insert(struct flow_rule **rules, struct flow_rule *rule);
void flow_remove(struct flow_rule **rules, struct flow_rule *rule);
bool flow_matches(const struct flow_rule *rule, const struct frame *f);
/* Has it the place and the frames of another one? */
bool flow_equal(const struct flow_rule *a, const struct flow_rule *b);
static inline bool flow_same_place(const struct flow_rule *a, const struct flow_rule *b) {
    return a->rank == b->rank && a->priority == b->priority;
}

#endif
