/* SPDX-License-Identifier: Apache-2.0
 *
 * Goodbye, abort, loss and time: how a connection ends (docs/endpoint-protocol.md, "The end").
 */
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "msg/machine.h"

/* ---------------------------------------------------------------- states */

#define STAYS MSG_STATES /* this cannot happen there, and changes nothing */

static const uint8_t next_state[MSG_STATES][INPUTS] = {
    /* in the order of enum input */
    [MSG_HELLO] = {MSG_OPEN, MSG_RAW, STAYS, STAYS, STAYS, MSG_FAILED, STAYS, STAYS},
    [MSG_RAW] = {STAYS, STAYS, STAYS, STAYS, STAYS, MSG_FAILED, STAYS, MSG_CLOSED},
    [MSG_OPEN] = {STAYS, STAYS, MSG_SAID_GOODBYE, MSG_PEER_LEFT, MSG_ABORTING, MSG_FAILED, STAYS, STAYS},
    [MSG_SAID_GOODBYE] = {STAYS, STAYS, STAYS, MSG_CLOSED, MSG_ABORTING, MSG_FAILED, STAYS, STAYS},
    [MSG_PEER_LEFT] = {STAYS, STAYS, MSG_CLOSED, STAYS, MSG_ABORTING, MSG_FAILED, STAYS, STAYS},
    [MSG_CLOSED] = {STAYS, STAYS, STAYS, STAYS, STAYS, STAYS, STAYS, STAYS},
    [MSG_ABORTING] = {STAYS, STAYS, STAYS, STAYS, STAYS, MSG_FAILED, MSG_FAILED, STAYS},
    [MSG_FAILED] = {STAYS, STAYS, STAYS, STAYS, STAYS, STAYS, STAYS, STAYS},
};

void msg_ends_step(struct msg *m, enum input what) {
    uint8_t next = next_state[m->state][what];
    if (next == STAYS)
        return;
    if (m->state == MSG_ABORTING) /* the peer knows why, or never will */
        msg_out_clear(m);
    m->state = next;
}

int msg_state(const struct msg *m) { return m->state; }
const struct msg_error *msg_error(const struct msg *m) { return &m->error; }
uint64_t msg_undelivered(const struct msg *m) { return m->undelivered; }

bool msg_heard_goodbye(const struct msg *m) { return m->in.goodbye; }
bool msg_is_spent(const struct msg *m) { return m->in.goodbye && !m->in.first; }

/* ---------------------------------------------------------------- errors */

static struct msg_error error_of(int kind, uint32_t reason, const char *text) {
    struct msg_error e = {.kind = kind, .reason = reason};
    snprintf(e.text, sizeof e.text, "%s", text);
    return e;
}

/* The connection ends: what was not delivered is counted, and what has come in part is dropped. */
static void finish(struct msg *m, const struct msg_error *error, enum input what) {
    uint64_t bytes;
    m->undelivered = msg_out_messages(m, &bytes);
    for (uint64_t i = m->out.completed + 1; i <= m->out.handed_out; i++)
        m->undelivered += m->out.under_way[i % UNDER_WAY].ends;
    m->out.sent_at_end = msg_left(m);
    m->error = *error;
    msg_in_let_go(m);
    msg_ends_step(m, what);
}

void msg_ends_end(struct msg *m, const struct msg_error *error) {
    if (m->state == MSG_ABORTING)
        msg_ends_step(m, LOST);
    else if (!is_over(m)) {
        finish(m, error, LOST);
        msg_out_clear(m);
    }
}

void msg_ends_fail(struct msg *m, const struct msg_error *error) {
    if (!is_live(m)) {
        msg_ends_end(m, error);
        return;
    }
    m->out.abort_bytes = msg_frame_put_abort(m->out.abort, frame_size(m), error->reason, error->text);
    finish(m, error, credits_allow(&m->credits, true) ? FAULT : LOST);
    msg_out_abort(m);
}

void msg_ends_aborted(struct msg *m, uint32_t reason, const uint8_t *text, uint32_t bytes) {
    struct msg_error e = error_of(MSG_ABORTED, reason, "the peer aborted the connection: ");
    size_t at = strlen(e.text), room = sizeof e.text - 1 - at;
    memcpy(e.text + at, text, bytes < room ? bytes : room);
    msg_ends_end(m, &e);
}

void msg_abort(struct msg *m, const char *text) {
    if (m->state == MSG_ABORTING) /* which says so already */
        return;
    struct msg_error e = error_of(MSG_ABORTED, MSG_APPLICATION, text);
    msg_ends_fail(m, &e);
}

void msg_lost(struct msg *m, const char *text) {
    struct msg_error e = error_of(MSG_LOST, MSG_VIOLATION, text);
    msg_ends_end(m, &e);
}

/* ---------------------------------------------------------------- the disconnect */

/* The peer's DREQ, or its last word in band, says that it has all messages: only the acknowledgement of this end's
 * goodbye was lost. */
bool msg_ends_is_last_word(const struct msg *m, uint32_t id) {
    return m->out.goodbye_said && id == (uint32_t)m->out.numbers && m->state == MSG_PEER_LEFT;
}

/* A raw peer says no goodbye, the end of the connection stands for it. */
static void raw_done(struct msg *m) {
    m->in.goodbye = true;
    msg_ends_step(m, RAW_DONE);
}

void msg_disconnected(struct msg *m, const void *private_data, uint32_t bytes) {
    const uint8_t *data = private_data;
    uint8_t type = bytes >= FRAME_HEADER ? data[0] : 0;
    if (is_raw(m) && msg_is_sending(m))
        msg_lost(m, "the peer disconnected with messages to it on their way");
    else if (is_raw(m))
        raw_done(m);
    else if (!is_live(m))
        msg_lost(m, "disconnected");
    else if (type == FRAME_ABORT)
        msg_ends_aborted(m, get_be32(data + 4), data + FRAME_HEADER, bytes - FRAME_HEADER);
    else if (type == FRAME_GOODBYE && msg_ends_is_last_word(m, get_be32(data + 4)))
        msg_ends_step(m, GOODBYE_DELIVERED);
    else if (m->state == MSG_PEER_LEFT)
        msg_lost(m, "the peer has closed the connection without waiting for this end");
    else
        msg_lost(m, "the peer disconnected without a goodbye: perhaps its process has ended");
}

uint32_t msg_farewell(const struct msg *m, uint8_t *to) {
    if (m->state == MSG_CLOSED && !m->raw)
        return msg_frame_put(to, FRAME_GOODBYE, 0, 0, (uint32_t)m->in.complete);
    memcpy(to, m->out.abort, m->out.abort_bytes);
    return m->out.abort_bytes;
}

/* In band the last word is a SEND; the end that has the other's needs none of its own. */
bool msg_ends_owes_farewell(const struct msg *m) {
    return m->in_band && m->state == MSG_CLOSED && !m->in.farewell && !m->out.farewell;
}

bool msg_may_leave(const struct msg *m) {
    bool said = m->out.farewell && m->out.completed >= m->out.farewell;
    return m->state == MSG_FAILED ||
           (m->state == MSG_CLOSED && (!m->in_band || m->in.farewell || said || m->has_failed));
}

/* ---------------------------------------------------------------- closing, time */

void msg_close(struct msg *m, int64_t now, int64_t timeout) {
    if (m->state == MSG_HELLO) {
        struct msg_error e = error_of(MSG_ABORTED, MSG_APPLICATION, "closed before the handshake was over");
        msg_ends_end(m, &e);
    }
    if (!is_live(m) && !is_raw(m))
        return;
    m->close_wanted = true;
    m->close_by = timeout == MSG_NEVER ? MSG_NEVER : now + timeout;
    msg_in_discard(m);
}

bool msg_is_closing(const struct msg *m) { return m->close_wanted; }

void msg_ends_close_when_idle(struct msg *m) {
    if (m->close_wanted && is_live(m) && !m->out.closing && !msg_operates(m))
        msg_out_goodbye(m);
    if (m->close_wanted && is_raw(m) && !msg_is_sending(m) && !msg_operates(m))
        raw_done(m);
}

/* The peer's hello comes in band: an end that waits for it probes the peer meanwhile. */
static bool waits_for_hello(const struct msg *m) { return m->state == MSG_HELLO && m->in_band; }

/* When an idle peer is probed; not while something is under way that tells as much.  All connections of a host probe at the same
 * ticks of the clock: one wake-up is enough for those of a loop, and for their peers. */
static int64_t idle_deadline(const struct msg *m) {
    bool probes = m->how.idle && m->peer.access & RNIC_ACCESS_REMOTE_WRITE && !m->out.probe_due;
    if (!probes || m->out.signaled > m->out.completed)
        return MSG_NEVER;
    int64_t tick = m->how.idle / IDLE_TICKS + 1, at = m->heard_at + m->how.idle + tick - 1;
    return at - at % tick;
}

int64_t msg_deadline(const struct msg *m) {
    if (is_raw(m))
        return m->close_by;
    if (!is_live(m) && !waits_for_hello(m))
        return MSG_NEVER;
    int64_t idle = idle_deadline(m);
    return m->close_by < idle ? m->close_by : idle;
}

void msg_ends_timer(struct msg *m, int64_t now) {
    if (!is_live(m) && !is_raw(m) && !waits_for_hello(m))
        return;
    if (now >= m->close_by) {
        struct msg_error e =
            error_of(MSG_ABORTED, MSG_TIMEOUT,
                     is_raw(m) ? "closed with messages on their way" : "the goodbyes were not said in time");
        msg_ends_fail(m, &e);
    } else if (!is_raw(m) && now >= idle_deadline(m)) {
        m->out.probe_due = true;
    }
}
