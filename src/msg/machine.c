/* SPDX-License-Identifier: Apache-2.0
 *
 * The pump: what has completed is handled, and what may go is posted.
 */
#include "msg/machine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct msg) <= 4096, "a connection's state is small beside its buffers");

static void copy_plainly(void *arg, void *to, const void *from, uint64_t bytes) {
    (void)arg;
    if (bytes)
        memcpy(to, from, bytes);
}

struct msg *msg_open(const struct msg_config *config, const struct msg_memory *memory, const struct msg_hooks *hooks,
                     struct rnic_qp *qp, struct rnic_cq *send_cq, struct rnic_cq *recv_cq) {
    struct msg *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->how = *config;
    m->memory = *memory;
    m->hooks = *hooks;
    if (!m->hooks.copy)
        m->hooks.copy = copy_plainly;
    m->qp = qp;
    m->send_cq = send_cq;
    m->recv_cq = recv_cq;
    m->ops = qp->ctx->ops;
    m->quick = rnic_extension(qp->ctx, RNIC_EXT_NOW);
    m->close_by = MSG_NEVER;
    m->credits.receives = config->receives + MSG_SPARE;
    m->credits.threshold = config->receives / 2 > MIN_REFILL ? config->receives / 2 : MIN_REFILL;
    m->operations.done_end = &m->operations.done;
    return m;
}

void msg_release(struct msg *m) {
    msg_lost(m, "the connection was given back");
    msg_fail_operations(m);
    msg_fetch_close(m);
    msg_out_clear(m); /* an announced message stays after an abort */
}

void msg_free(struct msg *m) {
    msg_release(m);
    msg_in_let_go(m);
    while (m->in.first) {
        struct msg_in *in = m->in.first;
        m->in.first = in->next;
        msg_drop(m, in);
    }
    free(m->theirs.known);
    free(m);
}

/* The peer's hello has come in band.  Its receive is the one that takes TAKEN from now on, which needs no credit either. */
static void take_hello(struct msg *m) {
    m->polled_at++;
    m->in.seen++;
    m->credits.arrived++;
    m->credits.told++;
    m->credits.freed++;
    m->established = true;
}

void msg_greet(struct msg *m, const struct msg_peer *peer, int64_t now) {
    if (m->in_band)
        take_hello(m);
    m->peer = *peer;
    m->credits.given = peer->receives;
    m->heard_at = now;
    msg_ends_step(m, GREETED);
    if (m->in_band)
        msg_flush(m); /* which posts the receive again */
}

void msg_greet_raw(struct msg *m) {
    m->raw = true;
    msg_ends_step(m, NO_HELLO);
}

void msg_establish(struct msg *m) { m->established = true; }
bool msg_established(const struct msg *m) { return m->established; }

void msg_count(const struct msg *m, struct msg_statistics *out) {
    uint64_t queued;
    msg_out_messages(m, &queued);
    *out = (struct msg_statistics){.state = m->state,
                                   .messages_sent = m->out.delivered,
                                   .messages_received = m->in.complete - m->in.stopped,
                                   .sends = m->out.handed_out - m->out.probes,
                                   .receives = m->in.seen,
                                   .credit_sends = m->out.credit_sends,
                                   .probes = m->out.probes,
                                   .credits = credits_left(&m->credits),
                                   .queued = queued,
                                   .backlog = m->in.weight,
                                   .held = m->credits.arrived - m->credits.freed,
                                   .partial = m->in.there};
}

/* ---------------------------------------------------------------- posting */

static uint8_t *receive_place(const struct msg *m, uint64_t number) {
    return m->memory.base + number % m->credits.receives * m->how.receive_size;
}

static int post_receives(struct msg *m, struct rnic_err *err) {
    struct rnic_recv_wr wr[CHAIN];
    struct rnic_sge sge[CHAIN];
    const struct rnic_recv_wr *bad;
    struct credits *c = &m->credits;
    while (credits_to_post(c)) {
        int n = 0;
        for (; n < CHAIN && (uint64_t)n < credits_to_post(c); n++) {
            uint64_t number = c->posted + (uint64_t)n;
            sge[n] = (struct rnic_sge){(uintptr_t)receive_place(m, number), m->how.receive_size, m->memory.lkey};
            wr[n] = (struct rnic_recv_wr){number * WR_KINDS + WR_RECEIVE, NULL, &sge[n], 1};
            if (n)
                wr[n - 1].next = &wr[n];
        }
        int rc = m->ops->post_recv(m->qp, wr, &bad, err);
        c->posted += (uint64_t)(rc < 0 ? bad - wr : n);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int msg_post_receives(struct msg *m, struct rnic_err *err) {
    int rc = post_receives(m, err);
    m->credits.told = m->credits.posted; /* this end's hello says so */
    return rc;
}

int msg_post(struct msg *m, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad, struct rnic_err *err) {
    *bad = wr;
    while (m->quick && *bad) {
        struct rnic_send_wr one = **bad;
        one.next = NULL;
        if (!m->quick->post_send(m->qp, &one))
            break;
        *bad = (*bad)->next;
    }
    return *bad ? m->ops->post_send(m->qp, *bad, bad, err) : 0;
}

static uint8_t *send_place(const struct msg *m, uint64_t number) {
    return m->memory.base + m->memory.sends_at + number % m->memory.bounces * m->how.send_size;
}

int msg_say_hello(struct msg *m, const void *hello, uint32_t bytes, uint32_t access, int64_t now,
                  struct rnic_err *err) {
    if (m->in_band)
        return 0;
    uint64_t number = m->out.handed_out + 1;
    uint8_t *to = send_place(m, number);
    const struct rnic_send_wr *bad;
    struct rnic_sge sge = {(uintptr_t)to, bytes, m->memory.lkey};
    struct rnic_send_wr wr = {.wr_id = number * WR_KINDS + WR_SEND,
                              .sg_list = &sge,
                              .num_sge = 1,
                              .opcode = RNIC_WR_SEND,
                              .send_flags = RNIC_SEND_SIGNALED};
    memcpy(to, hello, bytes);
    int rc = msg_post(m, &wr, &bad, err);
    if (rc < 0)
        return rc;
    m->in_band = true;
    m->peer.access = access;
    m->heard_at = now;
    m->out.handed_out = m->out.signaled = number;
    return 0;
}

/* Posts SENDs, and probes, while there is something to say and a place for it.  Half a window needs a completion, which
 * stands for all before it. */
static int post_sends(struct msg *m, struct rnic_err *err) {
    struct posting p;
    const struct rnic_send_wr *bad;
    while (m->out.handed_out - m->out.completed < m->memory.bounces) {
        uint8_t *to = send_place(m, m->out.handed_out + 1);
        if (!msg_out_next(m, to, &p))
            break;
        struct rnic_sge sge = {(uintptr_t)to, p.header + p.bytes, m->memory.lkey};
        struct rnic_send_wr wr = {.wr_id = p.number * WR_KINDS + WR_SEND,
                                  .sg_list = &sge,
                                  .num_sge = !p.probe,
                                  .opcode = p.probe ? RNIC_WR_RDMA_WRITE : RNIC_WR_SEND};
        bool signaled = p.signaled || p.number - m->out.signaled >= (m->memory.bounces + 1) / 2;
        wr.send_flags = (signaled ? RNIC_SEND_SIGNALED : 0) | (p.fence ? RNIC_SEND_FENCE : 0);
        if (signaled)
            m->out.signaled = p.number;
        int rc = msg_post(m, &wr, &bad, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Receives before SENDs, as each SEND returns all credits; operations before them, as none may follow the RELEASE of its
 * region. */
void msg_flush(struct msg *m) {
    struct rnic_err err = {.text = ""};
    if (m->state == MSG_HELLO || (is_over(m) && !msg_ends_owes_farewell(m)))
        return;
    int rc = post_receives(m, &err);
    if (rc == 0 && m->established && (is_live(m) || is_raw(m)))
        msg_ops_post(m);
    if (rc == 0 && m->established)
        rc = post_sends(m, &err);
    if (rc < 0)
        msg_lost(m, err.text);
}

/* ---------------------------------------------------------------- completions */

static int polled(struct msg *m, int n) {
    m->polled_at = 0;
    m->polled_n = n > 0 ? n : 0;
    return n;
}

/* Receives first: what the peer has said counts more than a SEND that has failed because the peer has gone. */
static int poll_queues(struct msg *m, int (*poll)(struct rnic_cq *cq, int n, struct rnic_wc *wc)) {
    int n = poll(m->recv_cq, POLLED, m->polled);
    if (m->send_cq == m->recv_cq || n < 0 || n == POLLED)
        return polled(m, n);
    int more = poll(m->send_cq, POLLED - n, m->polled + n);
    return polled(m, more > 0 || !n ? n + more : n);
}

int msg_poll_now(struct msg *m) {
    if (m->polled_at < m->polled_n)
        return m->polled_n - m->polled_at;
    return m->quick ? poll_queues(m, m->quick->poll_cq) : -EAGAIN;
}

int msg_poll(struct msg *m) {
    int n = msg_poll_now(m);
    return n == -EAGAIN ? poll_queues(m, m->ops->poll_cq) : n;
}

const struct rnic_wc *msg_failed(const struct msg *m) { return m->has_failed ? &m->failed : NULL; }

/* The first one that says why counts; one that was only flushed does not. */
static void note_failed(struct msg *m, const struct rnic_wc *wc) {
    if (!m->has_failed || (m->failed.status == RNIC_WC_WR_FLUSH_ERR && wc->status != RNIC_WC_WR_FLUSH_ERR))
        m->failed = *wc;
    m->has_failed = true;
}

static void completed(struct msg *m, const struct rnic_wc *wc, int64_t now) {
    uint64_t number = wc->wr_id / WR_KINDS;
    int kind = (int)(wc->wr_id % WR_KINDS);
    if (wc->status != RNIC_WC_SUCCESS)
        note_failed(m, wc);
    else
        m->heard_at = now;
    if (kind == WR_OPERATION)
        msg_ops_completed(m, wc);
    else if (wc->status != RNIC_WC_SUCCESS)
        return;
    else if (kind == WR_SEND)
        msg_out_completed(m, number);
    else { /* a WRITE with immediate takes a receive and leaves nothing in it */
        m->established = true;
        msg_in_take(m, receive_place(m, number), wc->opcode == RNIC_WCO_RECV ? wc->byte_len : 0);
    }
}

/* Handles the completions that one poll has found; returns how many there were. */
static int take_completions(struct msg *m, int64_t now, int (*poll)(struct msg *m)) {
    int n = poll(m);
    while (m->polled_at < m->polled_n)
        completed(m, &m->polled[m->polled_at++], now);
    return n;
}

int msg_hear_hello(struct msg *m, int64_t now, const uint8_t **hello, uint32_t *bytes) {
    struct rnic_err err = {.text = ""};
    int n = 0;
    while (m->state == MSG_HELLO && (n = msg_poll(m)) > 0) {
        const struct rnic_wc *wc = &m->polled[m->polled_at];
        if (wc->status == RNIC_WC_SUCCESS && wc->wr_id % WR_KINDS == WR_RECEIVE) {
            *hello = receive_place(m, wc->wr_id / WR_KINDS);
            *bytes = wc->opcode == RNIC_WCO_RECV ? wc->byte_len : 0;
            return 1;
        }
        m->polled_at++;
        completed(m, wc, now);
    }
    msg_ends_timer(m, now);
    if (post_sends(m, &err) < 0)
        msg_lost(m, err.text);
    return n < 0 || m->has_failed ? -EIO : 0;
}

int msg_pump(struct msg *m, int64_t now) {
    if (m->state == MSG_HELLO) /* what comes waits until it can be understood */
        return 0;
    for (int round = 0; round < ROUNDS; round++) {
        bool posts = !round && m->operations.first; /* some end at once, and the next round finds them */
        int n = take_completions(m, now, posts ? msg_poll_now : msg_poll);
        bool fetches = msg_fetch_step(m);
        msg_ends_close_when_idle(m);
        msg_ends_timer(m, now);
        msg_flush(m);
        if (n < POLLED && !fetches && !posts)
            return n < 0 || m->has_failed ? -EIO : 0;
    }
    return 1;
}
