/* SPDX-License-Identifier: Apache-2.0
 *
 * Completion counters: how many operations of queue pairs have completed, without an entry in a queue for each
 * (rdma-core 64: ibv_create_comp_cntr(3)).
 */
#ifndef RNIC_QUEUE_COMP_CNTR_H
#define RNIC_QUEUE_COMP_CNTR_H

#include <stdatomic.h>

#include "base/listed.h"
#include "nic.h"

#define COMP_CNTR_OPS 6 /* bits of enum rnic_comp_cntr_op */

struct comp_cntr {
    struct rnic_comp_cntr pub;
    _Atomic uint64_t done, failed; /* anybody's */
    bool bytes;                    /* `done` counts bytes, not work requests */
    int qps;                       /* that it is attached to, once for each operation; device's lock */
    struct listed listed;          /* in the context's list of its kind; device's lock */
};

/* Which counter an operation of a queue pair has, by its bit; NULL: none. */
struct comp_cntrs {
    struct comp_cntr *of[COMP_CNTR_OPS];
};

/* The enum rnic_comp_cntr_op of a send opcode; 0: atomics and local operations have none. */
uint32_t comp_cntr_op(int wr_opcode);
/* An operation is complete: what its status was, and how long its message. */
void comp_cntr_count(const struct comp_cntrs *cntrs, uint32_t op, bool success, uint64_t bytes);

#endif
