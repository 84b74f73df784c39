/* SPDX-License-Identifier: Apache-2.0
 *
 * Announced messages: this end READs each from where it lies, piece by piece, into the program's memory or its own.
 */
#include <errno.h>
#include <stdlib.h>

#include "msg/machine.h"

#define PIECE (1u << 24) /* bytes of one READ at most, so that the owner gets to other work in between */

void msg_let_go(struct msg *m, struct rnic_mr *mr) {
    if (m->ops->dereg_mr(mr, NULL) < 0)
        m->hooks.later(m->hooks.arg, mr);
}

/* Whether to READ the announced message now: a call waits for it, or there is room. */
static bool may_begin(const struct msg *m) {
    const struct incoming *in = &m->in;
    if (!in->offered || m->fetch.error || m->has_failed)
        return false;
    return (in->wanted && !in->first) || msg_in_asks(m, in->offer.tag) ||
           in->weight + in->offer.total < m->how.max_backlog;
}

uint64_t msg_offered(const struct msg *m) {
    return m->in.offered && !m->in.fetching && !m->in.first ? m->in.offer.total : 0;
}

static bool uses_target(const struct msg *m) { return m->fetch.in && !m->fetch.in->object; }

static bool is_under_way(const struct msg *m) {
    return m->fetch.op.state == MSG_OP_QUEUED || m->fetch.op.state == MSG_OP_POSTED;
}

bool msg_is_landing(const struct msg *m) { return uses_target(m) && is_under_way(m); }

int msg_fetch_error(struct msg *m) {
    int error = m->fetch.error;
    m->fetch.error = 0;
    return error;
}

bool msg_has_fetch_error(const struct msg *m) { return m->fetch.error; }

/* Where the message goes: to the program's memory if it comes next and fits there. */
static int begin(struct msg *m) {
    struct fetch *f = &m->fetch;
    uint64_t total = m->in.offer.total;
    bool lands = f->target && !f->own && !m->in.first;
    if (lands && f->target_bytes < total)
        return -EMSGSIZE; /* the owner says so: msg_offered() */
    f->in = lands ? calloc(1, sizeof *f->in) : msg_in_make(m, total);
    if (!f->in)
        return -ENOMEM;
    if (lands)
        f->in->data = f->target;
    f->in->bytes = total;
    f->in->tag = m->in.offer.tag;
    f->here = 0;
    f->unwanted = false;
    m->in.fetching = true; /* from now on a STOP is too late */
    return 0;
}

/* Queues the READ of the next piece; one is registered at a time, so that a peer's claim pins no pages. */
static int read_piece(struct msg *m) {
    struct fetch *f = &m->fetch;
    uint64_t left = m->in.offer.total - f->here, bytes = left < PIECE ? left : PIECE;
    int rc = m->ops->reg_mr(m->qp->pd, f->in->data + f->here, bytes, RNIC_ACCESS_LOCAL_WRITE, &f->mr, NULL);
    if (rc < 0) {
        f->mr = NULL;
        return rc;
    }
    f->op = (struct msg_op){.opcode = RNIC_WR_RDMA_READ,
                            .anywhere = true,
                            .addr = m->in.offer.addr + f->here,
                            .rkey = m->in.offer.rkey,
                            .sge = {f->mr->iova, (uint32_t)bytes, f->mr->lkey}};
    msg_ops_queue(m, &f->op);
    return 0;
}

void msg_fetch_close(struct msg *m) {
    struct fetch *f = &m->fetch;
    if (f->mr)
        msg_let_go(m, f->mr);
    if (f->in)
        msg_drop(m, f->in);
    f->mr = NULL;
    f->in = NULL;
}

/* The READ has failed, or its memory is not wanted: the message stays with the peer, and is fetched once more. */
static void give_up(struct msg *m, int error) {
    m->fetch.own = m->fetch.unwanted;
    m->fetch.error = error;
    msg_fetch_close(m);
    m->in.fetching = false;
    if (m->in.discards && m->in.offered)
        msg_in_taken(m);
}

/* A message that lies in the program's memory goes to memory of its own.  Without such memory it is lost, which ends the
 * connection. */
static void move_out(struct msg *m, struct msg_in *in) {
    uint8_t *data = m->hooks.make(m->hooks.arg, in->bytes, &in->object);
    if (!data) {
        in->object = NULL;
        msg_take(m, in);
        msg_drop(m, in);
        msg_abort(m, "there is no memory for a message whose buffer was withdrawn");
        return;
    }
    m->hooks.copy(m->hooks.arg, data, in->data, in->bytes);
    in->data = data;
}

void msg_target(struct msg *m, void *data, uint64_t bytes) {
    if (msg_is_landing(m))
        m->fetch.unwanted = true;
    else if (uses_target(m))
        give_up(m, 0);
    for (struct msg_in *in = m->in.first, *next; in; in = next) {
        next = in->next;
        if (!in->object)
            move_out(m, in);
    }
    m->fetch.target = data;
    m->fetch.target_bytes = bytes;
}

static void hand_over(struct msg *m) {
    struct msg_in *in = m->fetch.in;
    m->fetch.in = NULL;
    m->fetch.own = false;
    if (m->in.discards)
        msg_drop(m, in);
    else
        msg_in_put(m, in);
    msg_in_taken(m);
}

/* A piece has come, or could not be READ. */
static void piece_done(struct msg *m) {
    struct fetch *f = &m->fetch;
    msg_let_go(m, f->mr);
    f->mr = NULL;
    f->here += f->op.sge.length;
    if (f->op.status != RNIC_WC_SUCCESS)
        give_up(m, f->op.status < 0 ? f->op.status : 0); /* else the queue pair has failed, msg_failed() */
    else if (f->unwanted)
        give_up(m, 0);
    else if (f->here == m->in.offer.total)
        hand_over(m);
    else
        f->op.state = MSG_OP_NEW;
}

bool msg_fetch_step(struct msg *m) {
    struct fetch *f = &m->fetch;
    int rc = 0;
    if (is_under_way(m))
        return false;
    if (f->in && !m->in.offered) { /* the connection has ended */
        msg_fetch_close(m);
        return false;
    }
    if (f->in && f->op.state == MSG_OP_DONE) {
        piece_done(m);
        return true;
    }
    if (!f->in) {
        if (!may_begin(m))
            return false;
        rc = begin(m);
    }
    if (rc == 0)
        rc = read_piece(m);
    if (rc < 0 && rc != -EMSGSIZE)
        give_up(m, m->in.wanted || m->in.tagged ? rc : 0); /* else the next call tries again */
    return rc == 0;
}
