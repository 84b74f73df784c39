/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a connection: it begins in RTS, on a stream whose start-up has been agreed upon; it is closed in order, or ends
 * with an error.
 *
 * In order (RFC 5044, 7.2): in SQD what was posted goes out, then the end of the stream; when the peer's end has come, all is
 * flushed.  With an error (RFC 5040, 6.2): a Terminate message goes out, then the end of the stream, and what comes is read until
 * the peer has closed, since a socket with bytes that nobody has read ends its connection at once, and what is on its way is lost.
 */
#include "iwarp/engine.h"

#include <errno.h>
#include <stdlib.h>

#include "base/fail.h"

/* A peer that has read the end of the stream, or could have, closes within that time; and one that has closed lets this end
 * write what was posted.  It begins again while the peer's host takes what the socket has. */
#define CLOSE_NS 10000000000ull
/* A peer that confirms its messages asks for the last one within that time. */
#define LINGER_NS 1000000000ull
/* Buffers full in a turn, before others have theirs. */
#define TURN 4

/* ---------------------------------------------------------------- a queue pair */

static int create(struct qp *qp) {
    qp->engine_state = calloc(1, sizeof(struct iwarp));
    return qp->engine_state ? 0 : -ENOMEM;
}

static void free_buffers(struct qp *qp) {
    struct iwarp *iw = iwarp_of(qp);
    free(iw->out.bytes);
    free(iw->in.ahead);
    iw->out.bytes = iw->in.ahead = NULL;
    serve_free(qp);
}

static void let_go(struct qp *qp) {
    free_buffers(qp);
    *iwarp_of(qp) = (struct iwarp){0};
}

static void destroy(struct qp *qp) {
    let_go(qp);
    free(qp->engine_state);
}

static void reset(struct qp *qp) {
    let_go(qp);
    qp->sq.rules = qp->service->sends;
}

void iwarp_agree(struct qp *qp, const struct rnic_stream_attr *agreed) {
    struct iwarp *iw = iwarp_of(qp);
    iw->agreed = *agreed;
    iw->is_agreed = true;
}

/* ---------------------------------------------------------------- states */

static int begin(struct qp *qp, struct rnic_err *err) {
    struct iwarp *iw = iwarp_of(qp);
    if (!iw->is_agreed || !qp->way.held)
        return fail(
            err, -ENOTCONN,
            "RTS needs a connection: an iWARP queue pair gets it from RDMA-CM (rnic.connect, rnic.rdmacm), which "
            "then changes the state itself");
    iw->out.bytes = malloc(OUT_ROOM + OUT_RESERVE);
    iw->in.ahead = malloc(IN_AHEAD);
    if (!iw->out.bytes || !iw->in.ahead || serve_init(qp)) {
        free_buffers(qp);
        return fail(err, -ENOMEM, "no memory for the buffers of a connection");
    }
    in_start(qp);
    send_init(qp);
    iw->why = (struct rnic_stream_event){.end = RNIC_STREAM_CLOSED};
    qp->sq.rules = iw->agreed.rfc7306 ? qp->service->sends : &iwarp_sends_plain;
    iw->connected = true;
    return 0;
}

static int enter(struct qp *qp, int from, int to, struct rnic_err *err) {
    (void)from;
    if (to == RNIC_QPS_SQD)
        iwarp_of(qp)->snd.limit = wq_head(&qp->sq);
    return to == RNIC_QPS_RTS ? begin(qp, err) : 0;
}

/* What the socket does not take now is lost. */
static void disconnect(struct qp *qp) {
    struct iwarp *iw = iwarp_of(qp);
    if (iw->connected && !iw->out.finished)
        (void)out_drain(qp);
    iw->connected = iw->is_agreed = false;
    way_release(&qp->way);
}

/* ---------------------------------------------------------------- its end */

static void tell(struct qp *qp, const struct rnic_stream_event *what) {
    struct rnic_stream_event event = *what;
    event.qp_num = qp->pub.qp_num;
    if (qp->nic->stream_told)
        qp->nic->stream_told(qp->nic->stream_arg, qp, &event);
}

void iwarp_hears(struct qp *qp) {
    struct iwarp *iw = iwarp_of(qp);
    const struct rnic_stream_event ready = {.end = RNIC_STREAM_READY};
    iw->in.heard = true;
    if (iw->agreed.tell_ready && !iw->told)
        tell(qp, &ready);
}

static void tell_end(struct qp *qp) {
    struct iwarp *iw = iwarp_of(qp);
    if (!iw->told)
        tell(qp, &iw->why);
    iw->told = true;
}

void iwarp_end(struct qp *qp, const struct rnic_stream_event *why, int event) {
    iwarp_of(qp)->why = *why;
    if (qp->state != RNIC_QPS_ERR)
        qp_error(qp, event);
}

/* Also when the program has moved it to ERR. */
static void flush(struct qp *qp) {
    struct iwarp *iw = iwarp_of(qp);
    iw->in.deaf = true;
    if (iw->connected) {
        out_own(qp);
        send_flush(qp);
    }
    qp_flush(qp);
    if (iw->connected)
        tell_end(qp);
    else
        disconnect(qp);
}

static void lose(struct qp *qp, int error) {
    const struct rnic_stream_event why = {.end = RNIC_STREAM_LOST, .error = error};
    uint32_t element;
    if (send_find(qp, NULL, &element))
        send_blame(qp, element, RNIC_WC_RETRY_EXC_ERR, RNIC_VE_STREAM_LOST);
    iwarp_end(qp, &why, RNIC_EVENT_QP_FATAL);
}

static void close_in_order(struct qp *qp, enum rnic_stream_end end) {
    const struct rnic_stream_event why = {.end = (uint8_t)end};
    iwarp_end(qp, &why, -1);
}

/* Bytes of both streams; in ERR what comes is forgotten, and keeps nothing open. */
static uint64_t moved(const struct qp *qp) {
    return out_taken(qp) + (qp->state == RNIC_QPS_ERR ? 0 : iwarp_of(qp)->in.bytes);
}

static void close_by(struct qp *qp, uint64_t now) {
    iwarp_of(qp)->close_at = now + CLOSE_NS;
    iwarp_of(qp)->moved = moved(qp);
}

/* The peer has had its time; or its host goes on to take what there is, or to give. */
static bool is_too_late(struct qp *qp, uint64_t now) {
    struct iwarp *iw = iwarp_of(qp);
    if (!iw->close_at || now < iw->close_at)
        return false;
    uint64_t before = iw->moved;
    if (iw->connected)
        close_by(qp, now);
    return !iw->connected || iw->moved == before;
}

static bool awaits_answers(const struct iwarp *iw) { return iw->snd.waiting || iw->snd.quiet.waits; }

/* The peer's end of the stream.  In SQD what was posted is still to go, unless it waits for answers that cannot come. */
static void peer_has_closed(struct qp *qp, uint64_t now) {
    struct iwarp *iw = iwarp_of(qp);
    if (iw->out.finished) {
        close_in_order(qp, RNIC_STREAM_CLOSED);
    } else if (qp->state == RNIC_QPS_SQD && !awaits_answers(iw)) {
        iw->peer_closed = true;
        close_by(qp, now);
    } else {
        close_in_order(qp, RNIC_STREAM_FIN);
    }
}

void iwarp_ended(struct qp *qp, int error, uint64_t now) {
    struct iwarp *iw = iwarp_of(qp);
    if (!iw->connected || (iw->in.ended && !error))
        return;
    iw->in.ended = true;
    iw->close_at = 0;
    iw->out.broken |= error != 0;
    if (qp->state == RNIC_QPS_ERR)
        return;
    bool amid = !in_is_between(iw) || (!iw->out.finished && in_is_amid(qp));
    if (error || amid)
        lose(qp, error ? -error : ECONNRESET);
    else
        peer_has_closed(qp, now);
}

/* ---------------------------------------------------------------- turns */

/* All has been written that is to be. */
static void finish(struct qp *qp, uint64_t now) {
    struct iwarp *iw = iwarp_of(qp);
    if (iw->out.finished)
        return;
    out_finish(qp);
    if (iw->peer_closed)
        close_in_order(qp, RNIC_STREAM_CLOSED);
    else if (!iw->in.ended)
        close_by(qp, now);
}

/* The peer has sent something, and will ask whether it is here. */
static bool lingers(struct qp *qp, uint64_t now) {
    struct iwarp *iw = iwarp_of(qp);
    bool awaits = iw->confirm_both && iw->in.unasked && !iw->in.ended;
    if (awaits && !iw->linger_at)
        iw->linger_at = now + LINGER_NS;
    return awaits;
}

/* In ERR: what has been begun is written whole, or given up with the connection. */
static void wind_up(struct qp *qp, uint64_t now) {
    struct iwarp *iw = iwarp_of(qp);
    qp_flush(qp);
    if (!iw->connected || iw->out.finished)
        return;
    if (out_drain(qp) || iw->out.broken)
        finish(qp, now);
    else if (!iw->close_at)
        close_by(qp, now);
}

static bool is_paced(const struct qp *qp) { return engine_pace_deadline(qp) != NEVER; }

/* As much as a turn is; false: it does not go on. */
static bool work(struct qp *qp, uint64_t now) {
    enum result result = NO_ROOM;
    for (int i = 0; i < TURN && result == NO_ROOM; i++) {
        result = send_fill(qp, now);
        bool clear = out_drain(qp);
        send_complete(qp);
        if (!clear)
            return false;
    }
    if (send_drained(qp) && !send_owes(qp) && !lingers(qp, now))
        finish(qp, now);
    else if (result == IDLE && !is_paced(qp) && iwarp_of(qp)->peer_closed && awaits_answers(iwarp_of(qp)))
        close_in_order(qp, RNIC_STREAM_FIN); /* all has gone, and the answers will not come */
    return result == NO_ROOM;
}

static bool next(struct qp *qp, uint64_t now) {
    bool more = (qp->state == RNIC_QPS_RTS || qp->state == RNIC_QPS_SQD) && work(qp, now);
    if (qp->state == RNIC_QPS_ERR) /* or it is now */
        wind_up(qp, now);
    return more;
}

/* It has closed in order, and what was posted before may go yet. */
static bool settle(struct qp *qp) {
    return qp->state == RNIC_QPS_SQD && iwarp_of(qp)->connected && out_is_clear(&iwarp_of(qp)->out) && send_owes(qp);
}

static bool owes(struct qp *qp, uint64_t now) {
    const struct iwarp *iw = iwarp_of(qp);
    (void)now;
    return qp->state > RNIC_QPS_RTS || iw->snd.halted || send_owes(qp);
}

/* ---------------------------------------------------------------- time */

static uint64_t deadline(const struct qp *qp) {
    const struct iwarp *iw = iwarp_of(qp);
    uint64_t end = iw->linger_at ? iw->linger_at : iw->close_at;
    const uint64_t at[] = {engine_pace_deadline(qp), send_deadline(qp), quiet_deadline(qp), end ? end : NEVER};
    uint64_t first = NEVER;
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        first = at[i] < first ? at[i] : first;
    return first;
}

static void stop_lingering(struct iwarp *iw, uint64_t now) {
    if (!iw->linger_at || now < iw->linger_at)
        return;
    iw->linger_at = 0;
    iw->in.unasked = false;
}

static void timer(struct qp *qp, uint64_t now) {
    struct iwarp *iw = iwarp_of(qp);
    engine_pace_timer(qp, now);
    send_timer(qp, now);
    quiet_timer(qp, now);
    stop_lingering(iw, now);
    if (!is_too_late(qp, now) && !quiet_is_in_vain(qp, now))
        return;
    iw->close_at = 0;
    iw->in.ended = true;
    iw->out.broken = true;
    if (qp->state != RNIC_QPS_ERR)
        lose(qp, ETIMEDOUT);
}

static void stats(struct qp *qp, struct rnic_qp_stats *out) {
    const struct iwarp *iw = iwarp_of(qp);
    out->msn = iw->in.msn[QUEUE_SEND];
    out->in_flight = iw->out.end - iw->out.start + iw->out.referred + (uint32_t)(iw->out.written - out_taken(qp));
}

const struct engine_ops iwarp_ops = {
    .create = create,
    .destroy = destroy,
    .reset = reset,
    .enter = enter,
    .disconnect = disconnect,
    .owes = owes,
    .next = next,
    .timer = timer,
    .deadline = deadline,
    .held = engine_never,
    .settle = settle,
    .flush = flush,
    .stats = stats,
};
