/* SPDX-License-Identifier: Apache-2.0 */
#include "transitions.h"

#include "check.h"

const struct change *transition_of(const struct change *rows, size_t n, int from, int to) {
    for (size_t i = 0; i < n; i++) {
        if (rows[i].from == from && rows[i].to == to)
            return &rows[i];
    }
    return NULL;
}

void check_transitions(const struct change *rows, size_t n, uint32_t known,
                       int (*attempt)(int from, int to, uint32_t mask)) {
    for (int from = RESET; from < STATES; from++) {
        for (int to = RESET; to < STATES; to++) {
            const struct change *row = transition_of(rows, n, from, to);
            bool allowed = row || to == RESET || to == ERR;
            uint32_t required = row ? row->required : 0, all = IN(STATE) | required | (row ? row->optional : 0);
            for (uint32_t i = 0; i < 32; i++) {
                uint32_t mask = IN(STATE) | (required ^ (known & 1u << i));
                bool fits = !(required & ~mask) && !(mask & ~all);
                check_note("%s -> %s with 0x%x", qp_state_name(from), qp_state_name(to), mask);
                CHECK_EQ(attempt(from, to, mask) == 0, allowed && fits);
            }
        }
    }
    check_note("%s", "");
}

int try_transition(struct qp *qp, struct rnic_qp_attr attr, int from, int to, uint32_t mask) {
    attr.qp_state = to;
    attr.cur_qp_state = from;
    qp->state = from;
    qp->sq_draining = false;
    return qp_attr_check(qp, &attr, mask, NULL);
}
