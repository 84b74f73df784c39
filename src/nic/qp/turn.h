/* SPDX-License-Identifier: Apache-2.0
 *
 * What a turn is, and what the scheduler knows of a queue pair (run/sched.c): nobody else reads or writes it, but for
 * qp_forget_written().
 */
#ifndef RNIC_QP_TURN_H
#define RNIC_QP_TURN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What a queue pair may do in a turn, so that they take turns: */
#define BURST 60          /* packets a turn at most, so that queue pairs take turns: four datagrams of 4 KiB packets */
#define PACKET_COST 256   /* bytes that a packet takes in a peer's socket buffer beside its payload */
#define DIRECT_TURN (4u << 20) /* bytes, after which it is others' turn: they take some 0.5 ms */

struct link;
struct qp;

struct qp_turn {
    bool ready; /* in the ready list */
    struct qp *ready_next;
    bool in_held;
    struct qp *held_next;
    struct link *parked; /* for whose room it waits, or NULL */
    struct qp *parked_next;
    uint64_t written;   /* by its port, with its last request: written() of its link */
    uint64_t left_seen; /* left() of it when a timer was last looked at; NEVER: none was */
    uint64_t left_at;   /* and when that had changed */
    _Atomic bool rung;  /* in the doorbell stack */
    struct qp *rung_next;
    uint64_t timer_at; /* key in the timer heap; NEVER: not in it */
    uint32_t timer_pos;
};

#endif
