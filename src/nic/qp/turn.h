/* SPDX-License-Identifier: Apache-2.0
 *
 * What the scheduler knows of a queue pair (dev/sched.c): nobody else reads or writes it, but for qp_forget_written().
 */
#ifndef RNIC_QP_TURN_H
#define RNIC_QP_TURN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct link;
struct qp;

struct qp_turn {
    bool ready; /* in the ready list */
    struct qp *ready_next;
    bool in_held;
    struct qp *held_next;
    struct link *parked; /* for whose room it waits, or NULL */
    struct qp *parked_next;
    uint64_t written;   /* by its port, with its last request (udp_tx_written) */
    uint64_t left_seen; /* port_left() when a timer was last looked at; NEVER: none was */
    uint64_t left_at;   /* and when that had changed */
    _Atomic bool rung;  /* in the doorbell stack */
    struct qp *rung_next;
    uint64_t timer_at; /* key in the timer heap; NEVER: not in it */
    uint32_t timer_pos;
};

#endif
