/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine of a reliable connected queue pair: requester, completer and responder joined, and their timers.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/fail.h"
#include "roce/resp.h"

/* Between two looks at a peer that is inside a copy: twice as long each time. */
#define LINGER_NS 50000
#define LINGER_MOST_NS 10000000

static int create(struct qp *qp) {
    qp->engine_state = calloc(1, sizeof(struct rc));
    return qp->engine_state ? 0 : -ENOMEM;
}

static void destroy(struct qp *qp) {
    resp_free(qp);
    free(qp->engine_state);
}

static void reset(struct qp *qp) {
    resp_free(qp);
    roce_forget(qp);
    *rc_of(qp) = (struct rc){0};
}

/* A connection is made in two steps: from RTR on the queue pair answers, from RTS on it asks. */
static int enter(struct qp *qp, int from, int to, struct rnic_err *err) {
    if (to == RNIC_QPS_RTS && from == RNIC_QPS_RTR)
        req_init(qp);
    if (to != RNIC_QPS_RTR)
        return 0;
    rc_of(qp)->mtu = mtu_bytes(qp->attr.path_mtu);
    return resp_init(qp) ? fail(err, -ENOMEM, "no memory for %u responder resources", qp->attr.max_dest_rd_atomic) : 0;
}

static void input(struct qp *qp, const struct packet *pkt, uint64_t now) {
    if (pkt->marked)
        congestion_marked(qp, &rc_of(qp)->congestion, now);
    if (qp->state == RNIC_QPS_ERR)
        COUNT(qp, drop_bad_state);
    else if (pkt->row->mask & OPC_REQUEST)
        resp_input(qp, pkt, now);
    else if (pkt->row->mask & OPC_CNP)
        congestion_cut(qp, &rc_of(qp)->congestion, now);
    else if (qp->state >= RNIC_QPS_RTS)
        comp_input(qp, pkt, now);
    else
        COUNT(qp, drop_bad_state);
}

static bool expects(const struct qp *qp, const struct packet *pkt) {
    if (qp->state == RNIC_QPS_ERR || pkt->row->mask & OPC_CNP)
        return false;
    return pkt->row->mask & OPC_REQUEST ? resp_expects(qp, pkt) : comp_expects(qp, pkt);
}

/* What completes gives its memory back, so nobody may be reading or writing it any more. */
static void flush(struct qp *qp) {
    struct rc *rc = rc_of(qp);
    if (!rc->lingers)
        rc->pause = LINGER_NS;
    rc->lingers = !qp_is_left(qp);
    if (!rc->lingers)
        qp_flush(qp);
    rc->req = (struct requester){.next = wq_tail(&qp->sq)};
}

static bool resp_owes(const struct qp *qp, uint64_t now) {
    const struct responder *resp = &rc_of(qp)->resp;
    return resp->queue_count || resp->nak_pending || (resp->ack != ACK_NONE && now >= resp_due(qp));
}

static bool req_owes(struct qp *qp) {
    const struct requester *req = &rc_of(qp)->req;
    return req->halted || req->next != wq_head(&qp->sq);
}

static bool owes(struct qp *qp, uint64_t now) {
    return qp->state > RNIC_QPS_RTS || congestion_owes(&rc_of(qp)->congestion) || resp_owes(qp, now) ||
           (qp->state == RNIC_QPS_RTS && req_owes(qp));
}

static void look_later(struct rc *rc, uint64_t now) {
    if (rc->look_at > now)
        return;
    rc->look_at = now + rc->pause;
    rc->pause = rc->pause < LINGER_MOST_NS / 2 ? 2 * rc->pause : LINGER_MOST_NS;
}

/* Responses first, since the peer waits for them; an ACK last, so that it can ride in the batch of an answer, unless somebody
 * sleeps. */
static bool next(struct qp *qp, uint64_t now) {
    bool sent = false;
    if (qp->state == RNIC_QPS_ERR)
        flush(qp);
    if (rc_of(qp)->lingers)
        look_later(rc_of(qp), now);
    bool more = congestion_owes(&rc_of(qp)->congestion) && !congestion_notify(qp, &rc_of(qp)->congestion, now);
    resp_next(qp, now);
    more |= resp_ack_ahead(qp, now);
    if (qp->state == RNIC_QPS_RTS || qp->state == RNIC_QPS_SQD) {
        more |= req_next(qp, now, &sent);
        if (sent)
            resp_note_answer(&rc_of(qp)->resp, now);
        comp_halted(qp);
        req_drained(qp);
    }
    return resp_ack(qp, now, sent) || more;
}

/* At least so long, and at most four times as long (IBA 9.7.6.1.3, C9-140): a host that is late keeps its own peers waiting,
 * too, for each of the steps that an answer takes. */
static uint64_t ack_timeout(const struct qp *qp) {
    uint64_t least = 4096ull << qp->attr.timeout, more = 4 * qp->nic->late;
    return qp->attr.timeout ? least + (more < 3 * least ? more : 3 * least) : NEVER;
}

static uint64_t later(uint64_t t, uint64_t delay) { return delay == NEVER ? NEVER : t + delay; }

/* So long an answer may stand in the queue of a slow link behind those for other queue pairs, while these come.  left: until
 * the transport timer counts, with the probe's own delay taken off. */
static uint64_t queue_time(const struct requester *req, uint64_t left) {
    uint64_t most = req->srtt < QUEUE_SLOW_NS / 16 ? 16 * req->srtt : QUEUE_SLOW_NS;
    most = req->srtt ? most : QUEUE_MOST_NS;
    return most < left / 2 ? most : left / 2;
}

/* Four round trips, or four of the slowest queue pair's, since a slow link may stand before both; of these so many that
 * the probe still goes out well before the timer would count. */
static uint64_t probe_delay(const struct requester *req, uint64_t slowest, uint64_t timeout) {
    uint64_t most = timeout < 2 * QUEUE_SLOW_NS ? timeout / 2 : QUEUE_SLOW_NS;
    uint64_t slow = 4 * slowest < most ? 4 * slowest : most, own = req->srtt ? 4 * req->srtt : PROBE_FIRST;
    uint64_t delay = own > slow ? own : slow;
    return delay > PROBE_MIN ? delay : PROBE_MIN;
}

/* Answers that come again are a sign that others are on their way behind them; but the probe goes out before the timer would
 * count a retry. */
static uint64_t probe_time(const struct requester *req, uint64_t timeout, const struct nic *nic) {
    uint64_t since = req->rewound > req->progress ? req->rewound : req->progress, answered = nic->answered;
    if (req->probes == PROBES)
        return NEVER;
    uint64_t delay = probe_delay(req, nic->slowest, timeout - req->progress) << req->probes;
    uint64_t queued = since + delay < timeout ? queue_time(req, timeout - since - delay) : 0;
    if (answered > since)
        since = answered - since < queued ? answered : since + queued;
    return req->echo > since && req->echo + delay < timeout ? req->echo + delay : since + delay;
}

static uint64_t req_deadline(const struct requester *req, const struct qp *qp) {
    if (req->rnr_until)
        return req->rnr_until;
    if (!req_outstanding(req))
        return NEVER;
    uint64_t timeout = later(req->progress, ack_timeout(qp)), probe = probe_time(req, timeout, qp->nic);
    return probe < timeout ? probe : timeout;
}

static uint64_t deadline(const struct qp *qp) {
    const struct rc *rc = rc_of(qp);
    uint64_t first = req_deadline(&rc->req, qp), ack = rc->resp.ack == ACK_UNASKED ? resp_due(qp) : NEVER;
    uint64_t free = congestion_deadline(&rc->congestion), pace = engine_pace_deadline(qp);
    first = rc->lingers && rc->look_at < first ? rc->look_at : first;
    first = ack < first ? ack : first;
    first = free < first ? free : first;
    return pace < first ? pace : first;
}

/* next() does the sending; this only says what is to be sent again. */
static void timer(struct qp *qp, uint64_t now) {
    struct requester *req = &rc_of(qp)->req;
    engine_pace_timer(qp, now);
    if (req_deadline(req, qp) > now)
        return; /* an ACK is due, or the way is free again, or the pace allows more: next() sends */
    if (req->rnr_until) {
        req->rnr_until = 0;
        req->progress = now;
    } else if (now >= later(req->progress, ack_timeout(qp))) {
        if (!qp->nic->unread) /* else it is judged when all that has come is read */
            comp_timeout(qp, now);
    } else {
        req->probes++;
        req_probe(qp, now);
    }
}

static void not_left(struct qp *qp, uint64_t now) { rc_of(qp)->req.progress = now; }

/* Packets are under way that ask for no answer, and another one follows: after a return to una, or in the middle of a message. */
static bool has_not_asked(struct qp *qp) {
    const struct requester *req = &rc_of(qp)->req;
    return req_outstanding(req) && !req_has_asked(req) && req_goes_on(qp);
}

static uint64_t held(const struct qp *qp) { return rc_of(qp)->resp.ack == ACK_ASKED ? resp_due(qp) : NEVER; }

static bool settle(struct qp *qp) {
    struct responder *resp = &rc_of(qp)->resp;
    resp->ack = resp->ack == ACK_NONE ? ACK_NONE : ACK_NOW;
    return resp->ack == ACK_NOW;
}

/* As after an RNR NAK: answers to what was sent behind it say nothing. */
static void again(struct qp *qp) {
    struct requester *req = &rc_of(qp)->req;
    if (qp->state != RNIC_QPS_RTS && qp->state != RNIC_QPS_SQD)
        return;
    req->refused = req_outstanding(req);
    req_rewind(qp);
}

static void stats(struct qp *qp, struct rnic_qp_stats *out) {
    const struct rc *rc = rc_of(qp);
    out->snd_psn = rc->req.psn;
    out->snd_una = rc->req.una;
    out->rcv_psn = rc->resp.psn;
    out->msn = rc->resp.msn;
    out->window = rc->req.window;
    out->in_flight = req_flight(qp);
    out->retries_left = rc->req.retries;
    out->rnr_retries_left = rc->req.rnr_retries;
    out->srtt = rc->req.srtt;
    out->rate = congestion_rate(&rc->congestion);
}

static void set_mtu(struct qp *qp, uint32_t bytes) { rc_of(qp)->mtu = bytes; }

static void set_mtu_in(struct qp *qp, uint32_t bytes) { rc_of(qp)->resp.mtu = bytes; }

static bool has_begun(const struct qp *qp) { return rc_of(qp)->resp.begun; }

const struct engine_ops roce_rc_ops = {
    .create = create,
    .destroy = destroy,
    .reset = reset,
    .check = roce_check,
    .take = roce_take,
    .enter = enter,
    .disconnect = roce_disconnect,
    .input = input,
    .expects = expects,
    .owes = owes,
    .next = next,
    .timer = timer,
    .not_left = not_left,
    .has_not_asked = has_not_asked,
    .deadline = deadline,
    .held = held,
    .again = again,
    .settle = settle,
    .flush = flush,
    .stats = stats,
    .set_mtu = set_mtu,
    .set_mtu_in = set_mtu_in,
    .has_begun = has_begun,
};
