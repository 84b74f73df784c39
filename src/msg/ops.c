/* SPDX-License-Identifier: Apache-2.0
 *
 * READs, WRITEs and atomics: queued, posted in chains while there is room, and ended one by one, in their order.
 */
#include <errno.h>
#include <string.h>

#include "msg/machine.h"

static bool is_atomic(const struct msg_op *op) {
    return op->opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD || op->opcode == RNIC_WR_ATOMIC_CMP_AND_SWP;
}

static uint64_t *result_of(const struct msg *m, uint64_t number) {
    return (uint64_t *)(m->memory.base + m->memory.results_at + number % MSG_OPS * MSG_RESULT);
}

void msg_ops_queue(struct msg *m, struct msg_op *op) {
    op->next = NULL;
    op->state = MSG_OP_QUEUED;
    *(m->operations.last ? &m->operations.last->next : &m->operations.first) = op;
    m->operations.last = op;
}

static struct msg_op *unqueue(struct msg *m) {
    struct msg_op *op = m->operations.first;
    m->operations.first = op->next;
    if (!op->next)
        m->operations.last = NULL;
    return op;
}

static void end(struct msg *m, struct msg_op *op, int status, uint32_t vendor_err) {
    op->state = MSG_OP_DONE;
    op->status = status;
    op->vendor_err = vendor_err;
    op->next = NULL;
    if (op == &m->fetch.op) /* nobody else's */
        return;
    *m->operations.done_end = op;
    m->operations.done_end = &op->next;
}

struct msg_op *msg_done(struct msg *m) {
    struct msg_op *op = m->operations.done;
    if (op) {
        m->operations.done = op->next;
        if (!op->next)
            m->operations.done_end = &m->operations.done;
    }
    return op;
}

void msg_operate(struct msg *m, struct msg_op *op) {
    if (is_over(m) || m->state == MSG_ABORTING)
        end(m, op, RNIC_WC_WR_FLUSH_ERR, 0); /* those that are posted go on until the queue pair is flushed */
    else
        msg_ops_queue(m, op);
}

bool msg_operates(const struct msg *m) {
    return m->operations.first || m->operations.posted_n != m->operations.ended_n;
}

/* ---------------------------------------------------------------- posting */

static bool is_shared(const struct msg *m, const struct msg_op *op) {
    const struct msg_region *region = msg_regions_find(m, op->region);
    return op->anywhere || (region && region->rkey == op->rkey);
}

static void fill(const struct msg *m, struct msg_op *op, struct rnic_send_wr *wr) {
    *wr = (struct rnic_send_wr){.wr_id = op->number * WR_KINDS + WR_OPERATION,
                                .sg_list = op->pieces ? op->pieces : &op->sge,
                                .num_sge = op->pieces ? op->pieces_n : op->sge.length > 0,
                                .opcode = op->opcode,
                                .send_flags = RNIC_SEND_SIGNALED | (op->fence ? RNIC_SEND_FENCE : 0)};
    if (is_atomic(op)) {
        op->sge = (struct rnic_sge){(uintptr_t)result_of(m, op->number), MSG_RESULT, m->memory.lkey};
        wr->num_sge = 1;
        wr->wr.atomic.remote_addr = op->addr;
        wr->wr.atomic.rkey = op->rkey;
        wr->wr.atomic.compare_add = op->compare_add;
        wr->wr.atomic.swap = op->swap;
    } else {
        wr->wr.rdma.remote_addr = op->addr;
        wr->wr.rdma.rkey = op->rkey;
    }
}

/* Those that can be posted in one call, at most CHAIN. */
static int next_chain(struct msg *m, struct rnic_send_wr *wr, struct msg_op **chain) {
    struct operations *o = &m->operations;
    int n = 0;
    while (o->first && n < CHAIN && o->posted_n + n - o->ended_n < MSG_OPS) {
        struct msg_op *op = unqueue(m);
        if (!is_shared(m, op)) {
            end(m, op, -ENOENT, 0);
            continue;
        }
        op->number = o->posted_n + 1 + n;
        fill(m, op, &wr[n]);
        if (n)
            wr[n - 1].next = &wr[n];
        chain[n++] = op;
    }
    return n;
}

void msg_ops_post(struct msg *m) {
    struct rnic_send_wr wr[CHAIN];
    struct msg_op *chain[CHAIN];
    int n;
    while ((n = next_chain(m, wr, chain)) > 0) {
        const struct rnic_send_wr *bad = NULL;
        int rc = msg_post(m, wr, &bad, NULL), went = rc < 0 ? (int)(bad - wr) : n;
        for (int i = 0; i < went; i++) {
            chain[i]->state = MSG_OP_POSTED;
            m->operations.posted[chain[i]->number % MSG_OPS] = chain[i];
        }
        m->operations.posted_n += (uint64_t)went;
        for (int i = went; i < n; i++)
            end(m, chain[i], rc, 0);
    }
}

/* ---------------------------------------------------------------- the end of one */

void msg_ops_completed(struct msg *m, const struct rnic_wc *wc) {
    uint64_t number = wc->wr_id / WR_KINDS;
    struct msg_op *op = m->operations.posted[number % MSG_OPS];
    if (!op || op->number != number)
        return;
    if (is_atomic(op) && wc->status == RNIC_WC_SUCCESS)
        op->found = *result_of(m, number);
    m->operations.posted[number % MSG_OPS] = NULL;
    m->operations.ended_n = number;
    end(m, op, wc->status, wc->vendor_err);
}

void msg_fail_operations(struct msg *m) {
    for (uint64_t i = m->operations.ended_n + 1; i <= m->operations.posted_n; i++) {
        struct msg_op *op = m->operations.posted[i % MSG_OPS];
        m->operations.posted[i % MSG_OPS] = NULL;
        if (op)
            end(m, op, RNIC_WC_WR_FLUSH_ERR, 0);
    }
    m->operations.ended_n = m->operations.posted_n;
    while (m->operations.first)
        end(m, unqueue(m), RNIC_WC_WR_FLUSH_ERR, 0);
}
