/* SPDX-License-Identifier: Apache-2.0
 *
 * Which attributes a transition takes, by a table that a test has from the specification: required, optional, no others.
 */
#ifndef RNIC_TESTS_TRANSITIONS_H
#define RNIC_TESTS_TRANSITIONS_H

#include "qp/qp.h"

enum { RESET, INIT, RTR, RTS, SQD, SQE, ERR, STATES };
#define IN(name) RNIC_QP_##name

struct change { /* RESET and ERR need no row: they are reached from anywhere, with the state alone */
    int from, to;
    uint32_t required, optional;
};

/* The row; NULL: there is none. */
const struct change *transition_of(const struct change *rows, size_t n, int from, int to);
/* Between any two states: what is required, and that with each known attribute more, or less. */
void check_transitions(const struct change *rows, size_t n, uint32_t known,
                       int (*attempt)(int from, int to, uint32_t mask));
#define CHECK_TRANSITIONS(rows, known, attempt)                                                                        \
    check_transitions(rows, sizeof(rows) / sizeof *(rows), known, attempt)
/* An attempt that changes nothing but the state it begins in. */
int try_transition(struct qp *qp, struct rnic_qp_attr attr, int from, int to, uint32_t mask);

#endif
