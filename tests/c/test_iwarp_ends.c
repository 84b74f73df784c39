/* SPDX-License-Identifier: Apache-2.0
 *
 * How connections of iWARP end: in order, by this end, the other, or both; within a message; by an error of the link; by the
 * program; and with a peer that does not close.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "segment.h"

static struct stream s;
static struct segment g;

static void want_end(struct end *e, int end, int error) {
    const struct ending *ending = ending_of(&s, e);
    CHECK_EQ(ending->count, 1);
    CHECK_EQ(ending->event.end, end);
    CHECK_EQ(ending->event.error, error);
    CHECK_EQ(e->qp->state, RNIC_QPS_ERR);
    CHECK(pipe_from(&s, e)->finished || pipe_from(&s, e)->broken || error);
}

static int close_it(struct end *e) { return stream_move(e, RNIC_QPS_SQD, NULL); }

/* ---------------------------------------------------------------- in order */

static void by_either_end(void) {
    for (int who = 0; who < 2; who++) {
        check_note("%d", who);
        stream_open(&s);
        struct end *first = who ? &s.b : &s.a, *other = who ? &s.a : &s.b;
        post_recv(&s.b, 1, 0, 8);
        post_send(&s.a, 1, 0, 8);
        post_recv(&s.a, 2, 0, 8);
        stream_run(&s);
        CHECK_EQ(close_it(first), 0);
        post_recv(&s.b, 2, 0, 8);
        stream_run(&s);
        want_end(first, RNIC_STREAM_CLOSED, 0);
        want_end(other, RNIC_STREAM_FIN, 0);
        WANT(s.a.send_cq, 1, SUCCESS);
        WANT(s.b.recv_cq, 1, SUCCESS);
        WANT(s.b.recv_cq, 2, WR_FLUSH_ERR);
        WANT(s.a.recv_cq, 2, WR_FLUSH_ERR);
        WANT_NO_EVENT(&s.a);
        WANT_NO_EVENT(&s.b);
        stream_close(&s);
    }
}

/* Both send what they have. */
static void by_both_at_once(void) {
    for (uint32_t n = 1; n < 100000; n *= 9) {
        check_note("%u bytes", n);
        stream_open(&s, .rtr = RNIC_STREAM_RTR_WRITE);
        s.ab.most_written = s.ba.most_written = 1000;
        post_recv(&s.a, 1, 0, n);
        post_recv(&s.b, 1, 0, n);
        stream_run(&s);
        post_send(&s.a, 2, 0, n);
        post_send(&s.b, 2, 0, n);
        CHECK_EQ(close_it(&s.a), 0);
        CHECK_EQ(close_it(&s.b), 0);
        stream_run(&s);
        WANT(s.a.send_cq, 2, SUCCESS);
        WANT(s.b.send_cq, 2, SUCCESS);
        WANT(s.a.recv_cq, 1, SUCCESS);
        WANT(s.b.recv_cq, 1, SUCCESS);
        want_end(&s.a, RNIC_STREAM_CLOSED, 0);
        want_end(&s.b, RNIC_STREAM_CLOSED, 0);
        stream_close(&s);
    }
}

/* The peer has closed while this end, which closes, too, still writes. */
static void behind_the_peer(void) {
    stream_open(&s, .rtr = RNIC_STREAM_RTR_WRITE);
    stream_run(&s);
    s.ab.most_in_pipe = 3000;
    post_recv(&s.b, 1, 0, 20000);
    post_send(&s.a, 2, 0, 20000);
    CHECK_EQ(close_it(&s.a), 0);
    s.ab.held = true;
    stream_run(&s);
    CHECK_EQ(close_it(&s.b), 0);
    stream_run(&s);
    CHECK(s.ba.finished);
    CHECK_EQ(s.a.qp->state, RNIC_QPS_SQD);
    s.ab.held = false;
    stream_run(&s);
    WANT(s.a.send_cq, 2, SUCCESS);
    WANT(s.b.recv_cq, 1, SUCCESS);
    want_end(&s.a, RNIC_STREAM_CLOSED, 0);
    want_end(&s.b, RNIC_STREAM_CLOSED, 0);
    stream_close(&s);
}

/* The socket has all, and the peer takes it slowly: for as long as it goes on, nothing is given up. */
static void a_peer_that_reads_slowly(void) {
    stream_open(&s, .rtr = RNIC_STREAM_RTR_WRITE);
    stream_run(&s);
    post_recv(&s.b, 1, 0, 2000);
    s.ab.held = true;
    post_send(&s.a, 2, 0, 2000);
    CHECK_EQ(close_it(&s.a), 0);
    stream_run(&s);
    CHECK(s.ab.finished);
    s.ab.most_read = 200;
    while (s.a.qp->state != RNIC_QPS_ERR) {
        s.ab.held = false;
        (void)stream_step(&s);
        s.ab.held = true;
        if (s.ab.read < s.ab.written)
            stream_later(&s);
    }
    want_end(&s.a, RNIC_STREAM_CLOSED, 0);
    WANT(s.b.recv_cq, 1, SUCCESS);
    stream_close(&s);
}

/* A READ that has not gone when the peer closes has no answer. */
static void behind_a_peer_that_will_not_answer(void) {
    stream_open(&s, .rtr = RNIC_STREAM_RTR_WRITE);
    stream_run(&s);
    s.ab.most_in_pipe = 1000;
    s.ab.held = true;
    post_write(&s.a, 1, 0, 0, 250000);
    post_read(&s.a, 2, 0, 0, 8);
    stream_run(&s);
    CHECK_EQ(close_it(&s.a), 0);
    CHECK_EQ(close_it(&s.b), 0);
    stream_run(&s);
    s.ab.most_in_pipe = 0;
    s.ab.held = false;
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    WANT(s.a.send_cq, 2, WR_FLUSH_ERR);
    want_end(&s.a, RNIC_STREAM_FIN, 0);
    stream_close(&s);
}

/* It gives up what the peer does not read any more, or when the socket breaks. */
static void behind_a_peer_that_does_not_read(void) {
    for (int reset = 0; reset < 2; reset++) {
        check_note("%s", reset ? "reset" : "silent");
        stream_open(&s, .rtr = RNIC_STREAM_RTR_WRITE);
        stream_run(&s);
        s.ab.most_in_pipe = 3000;
        s.ab.held = true;
        post_send(&s.a, 2, 0, 200000);
        CHECK_EQ(close_it(&s.a), 0);
        stream_run(&s);
        s.ba.finished = true;
        stream_run(&s);
        CHECK_EQ(s.a.qp->state, RNIC_QPS_SQD);
        if (reset)
            iwarp_ended(s.a.qp, -ECONNRESET, s.f.now);
        else
            stream_later(&s);
        want_end(&s.a, RNIC_STREAM_LOST, reset ? ECONNRESET : ETIMEDOUT);
        WANT_ERR(s.a.send_cq, 2, RETRY_EXC_ERR, STREAM_LOST);
        stream_close(&s);
    }
}

static void what_was_posted_goes_out_and_nothing_else(void) {
    struct rnic_async_event event;
    struct rnic_qp_attr attr = {.qp_state = RNIC_QPS_SQD, .en_sqd_async_notify = 1};
    stream_open(&s);
    s.ab.held = true;
    post_recv(&s.b, 1, 0, 8);
    post_read(&s.a, 1, 0, 0, 8);
    post_send(&s.a, 2, 0, 8);
    CHECK_EQ(qp_attr_check(s.a.qp, &attr, RNIC_QP_STATE | RNIC_QP_EN_SQD_ASYNC_NOTIFY, NULL), 0);
    qp_attr_apply(s.a.qp, &attr, RNIC_QP_STATE | RNIC_QP_EN_SQD_ASYNC_NOTIFY);
    CHECK_EQ(qp_transition(s.a.qp, RNIC_QPS_SQD, NULL), 0);
    post_send(&s.a, 3, 0, 8);
    stream_run(&s);
    CHECK(!s.ab.finished);
    WANT_NO_EVENT(&s.a);
    CHECK(s.a.qp->sq_draining);
    s.ab.held = false;
    stream_run(&s);
    CHECK(event_take(&s.a.node->nic.events, &event));
    CHECK_EQ(event.event_type, RNIC_EVENT_SQ_DRAINED);
    WANT(s.a.send_cq, 1, SUCCESS);
    WANT(s.a.send_cq, 2, SUCCESS);
    WANT(s.a.send_cq, 3, WR_FLUSH_ERR);
    WANT(s.b.recv_cq, 1, SUCCESS);
    want_end(&s.a, RNIC_STREAM_CLOSED, 0);
    stream_close(&s);
}

/* Until the peer closes, too, its messages are taken; but it gets no more answers. */
static void a_peer_that_goes_on(void) {
    stream_open(&s, .rtr = RNIC_STREAM_RTR_WRITE);
    stream_run(&s);
    s.ab.held = true; /* b does not see that a closes */
    CHECK_EQ(close_it(&s.a), 0);
    stream_run(&s);
    CHECK(s.ab.finished);
    post_recv(&s.a, 1, 0, 8);
    post_send(&s.b, 1, 0, 8);
    stream_run(&s);
    WANT(s.a.recv_cq, 1, SUCCESS);
    post_read(&s.b, 2, 0, 0, 8);
    stream_run(&s);
    CHECK_EQ(s.a.qp->state, RNIC_QPS_SQD);
    s.ab.held = false;
    stream_run(&s);
    WANT(s.b.send_cq, 1, SUCCESS);
    WANT(s.b.send_cq, 2, WR_FLUSH_ERR);
    want_end(&s.a, RNIC_STREAM_CLOSED, 0);
    want_end(&s.b, RNIC_STREAM_FIN, 0);
    stream_close(&s);
}

static void a_peer_that_never_closes(void) {
    stream_open(&s, .rtr = RNIC_STREAM_RTR_WRITE);
    stream_run(&s);
    s.ab.held = true;
    uint64_t before = s.f.now;
    CHECK_EQ(close_it(&s.a), 0);
    post_recv(&s.a, 1, 0, 8);
    stream_run(&s);
    stream_later(&s);
    CHECK_EQ(s.f.now - before, 10 * SEC);
    stream_run(&s);
    want_end(&s.a, RNIC_STREAM_LOST, ETIMEDOUT);
    WANT(s.a.recv_cq, 1, WR_FLUSH_ERR);
    struct iovec pieces[IWARP_PIECES];
    CHECK_EQ(iwarp_want(s.a.qp, pieces), 0);
    CHECK_EQ(s.a.qp->engine->deadline(s.a.qp), NEVER);
    stream_close(&s);
}

static void the_peer_closes_while_a_read_waits(void) {
    for (int closing = 0; closing < 2; closing++) {
        check_note("%s", closing ? "in SQD" : "in RTS");
        stream_open(&s);
        s.ab.held = true;
        post_read(&s.a, 1, 0, 0, 8);
        stream_run(&s);
        if (closing)
            CHECK_EQ(close_it(&s.a), 0);
        s.ba.finished = true; /* as if b had: it answers no more */
        s.b.qp->engine->disconnect(s.b.qp);
        stream_run(&s);
        want_end(&s.a, RNIC_STREAM_FIN, 0);
        WANT_ERR(s.a.send_cq, 1, WR_FLUSH_ERR, FLUSHED);
        stream_close(&s);
    }
}

/* ---------------------------------------------------------------- within a message */

static void within_every_frame(void) {
    static uint8_t frame[200];
    segment_untagged(&g, RDMAP_SEND, true, 1, 0, "twenty bytes in here", 20);
    uint32_t n = segment_frame(&g, true, frame);
    for (uint32_t at = 1; at < n; at++) {
        check_note("byte %u of %u", at, n);
        stream_open(&s);
        post_recv(&s.b, 1, 0, 20);
        stream_give(&s, &s.b, frame, at);
        iwarp_ended(s.b.qp, 0, s.f.now);
        want_end(&s.b, RNIC_STREAM_LOST, ECONNRESET);
        WANT_ERR(s.b.recv_cq, 1, WR_FLUSH_ERR, FLUSHED);
        WANT_EVENT(&s.b, QP_FATAL);
        stream_close(&s);
    }
}

static void between_two_frames_of_a_message(void) {
    for (int kind = 0; kind < 3; kind++) {
        check_note("kind %d", kind);
        stream_open(&s);
        post_recv(&s.b, 1, 0, 20);
        if (kind == 0)
            segment_untagged(&g, RDMAP_SEND, false, 1, 0, "abcd", 4);
        else
            segment_tagged(&g, RDMAP_WRITE, false, s.b.mr->pub.rkey, (uintptr_t)s.b.mem, "abcd", 4);
        if (kind == 2) {
            segment_untagged(&g, RDMAP_SEND, true, 1, 0, NULL, 0);
            segment_give(&s, &s.b, &g);
            WANT(s.b.recv_cq, 1, SUCCESS);
            post_recv(&s.b, 1, 0, 20);
            post_read(&s.b, 2, 0, 0, 8);
            stream_step(&s);
            segment_tagged(&g, RDMAP_READ_RESPONSE, false, 1, 0, "abcd", 4);
        }
        segment_give(&s, &s.b, &g);
        iwarp_ended(s.b.qp, 0, s.f.now);
        stream_step(&s);
        want_end(&s.b, RNIC_STREAM_LOST, ECONNRESET);
        WANT_ERR(s.b.recv_cq, 1, WR_FLUSH_ERR, FLUSHED);
        if (kind == 2)
            WANT_ERR(s.b.send_cq, 2, RETRY_EXC_ERR, STREAM_LOST);
        WANT_EVENT(&s.b, QP_FATAL);
        stream_close(&s);
    }
}

/* ---------------------------------------------------------------- errors of the link */

static void a_connection_is_reset(void) {
    stream_open(&s);
    s.ab.held = true;
    post_read(&s.a, 1, 0, 0, 8);
    post_send(&s.a, 2, 0, 8);
    post_recv(&s.a, 3, 0, 8);
    stream_run(&s);
    s.ba.error = ECONNRESET;
    s.ab.broken = true;
    stream_run(&s);
    want_end(&s.a, RNIC_STREAM_LOST, ECONNRESET);
    WANT_ERR(s.a.send_cq, 1, RETRY_EXC_ERR, STREAM_LOST);
    WANT_ERR(s.a.send_cq, 2, WR_FLUSH_ERR, FLUSHED);
    WANT_ERR(s.a.recv_cq, 3, WR_FLUSH_ERR, FLUSHED);
    WANT_EVENT(&s.a, QP_FATAL);
    CHECK(!s.ab.finished);
    stream_close(&s);
}

/* The writer meets it first; whoever reads says so. */
static void a_write_fails(void) {
    stream_open(&s, .no_crc = true);
    s.ab.broken = true;
    post_write(&s.a, 1, 0, 0, 100000);
    stream_run(&s);
    CHECK_EQ(s.a.qp->state, RNIC_QPS_RTS);
    s.ba.error = EPIPE;
    stream_run(&s);
    want_end(&s.a, RNIC_STREAM_LOST, EPIPE);
    WANT_ERR(s.a.send_cq, 1, RETRY_EXC_ERR, STREAM_LOST);
    stream_close(&s);
}

/* ---------------------------------------------------------------- by the program */

/* A stream that was given to a queue pair goes with it, also ahead of RTS. */
static void err_ahead_of_rts(void) {
    const struct stream_options o = {.not_yet = true};
    stream_open_options(&s, &o);
    stream_join(&s.a, &s.ab);
    stream_agree(&s, &s.a, &o);
    CHECK_EQ(stream_move(&s.a, RNIC_QPS_RTR, NULL), 0);
    CHECK_EQ(s.users, 1);
    CHECK_EQ(stream_move(&s.a, RNIC_QPS_ERR, NULL), 0);
    CHECK_EQ(s.users, 0);
    CHECK(s.ab.finished);
    CHECK_EQ(s.a_end.count, 0);
    stream_close(&s);
}

/* One has much to send yet: what has been taken makes room, so that the socket is always full. */
static void both_close_on_a_slow_path(void) {
    stream_open(&s, .rtr = RNIC_STREAM_RTR_WRITE);
    stream_run(&s);
    s.ab.most_in_pipe = 4000;
    s.ab.most_read = 1000;
    s.ab.held = true;
    post_write(&s.a, 2, 0, 0, 100000);
    CHECK_EQ(stream_move(&s.a, RNIC_QPS_SQD, NULL), 0);
    CHECK_EQ(stream_move(&s.b, RNIC_QPS_SQD, NULL), 0);
    stream_run(&s);
    for (int looks = 0; looks < 30 && s.a.qp->state == RNIC_QPS_SQD; looks++) {
        for (int part = 0; part < 4; part++) {
            s.ab.held = false;
            (void)stream_step(&s);
            s.ab.held = true;
            (void)stream_step(&s);
        }
        if (s.a.qp->state == RNIC_QPS_SQD)
            stream_later(&s);
    }
    s.ab.held = false;
    stream_run(&s);
    CHECK_EQ(s.a_end.event.end, RNIC_STREAM_CLOSED);
    CHECK_EQ(s.b_end.event.end, RNIC_STREAM_CLOSED);
    stream_close(&s);
}

/* What has been begun goes out as whole frames, then the end. */
static void err_at_every_byte(void) {
    for (int crc = 0; crc < 2; crc++) {
        for (uint32_t at = 1; at < 2 * (6000 + 24); at += at < 50 || (at > 5990 && at < 6070) ? 1 : 331) {
            check_note("byte %u, %s CRC", at, crc ? "with" : "without");
            stream_open(&s, .no_crc = !crc, .segment = 6024);
            fill(s.a.mem, 40000, 3);
            s.ab.cut_written = at;
            s.ab.most_in_pipe = at;
            s.ab.held = true;
            post_write(&s.a, 1, 0, 0, 20000);
            stream_run(&s);
            CHECK_EQ(stream_move(&s.a, RNIC_QPS_ERR, NULL), 0);
            WANT_ERR(s.a.send_cq, 1, WR_FLUSH_ERR, FLUSHED);
            memset(s.a.mem, 0, 40000); /* it is the program's again */
            stream_run(&s);            /* nobody reads, and it waits for that */
            CHECK_EQ(s.a_end.count, 1);
            CHECK_EQ(s.a_end.event.end, RNIC_STREAM_CLOSED);
            s.ab.held = false;
            s.ab.most_in_pipe = 0;
            stream_run(&s);
            CHECK(s.ab.finished);
            bool all = s.ab.written % 6024;
            want_end(&s.b, all ? RNIC_STREAM_FIN : RNIC_STREAM_LOST, all ? 0 : ECONNRESET);
            CHECK_EQ(s.ab.written % 6024, all ? 20000 - 3 * 6004 + 20 : 0);
            CHECK(filled(s.b.mem, all ? 20000 : s.ab.written / 6024 * 6004, 3));
            WANT_NO_EVENT(&s.a);
            stream_close(&s);
        }
    }
}

/* A payload that was to go from its memory lies behind frames that wait to be written, too.  Padding and CRC are 0. */
static void err_behind_short_messages(void) {
    static const uint8_t trailer[3 + 4];
    for (uint32_t at = 1; at < 20240; at += at < 300 || at > 20200 ? 1 : 331) {
        check_note("byte %u", at);
        stream_open(&s, .no_crc = true);
        fill(s.a.mem, 40000, 3);
        for (uint32_t i = 0; i < 8; i++) /* by the buffer in which it will lie */
            post_write(&s.a, 4, 1, 100000, 4000);
        stream_run(&s);
        uint64_t before = s.ab.written;
        s.ab.most_in_pipe = at;
        s.ab.held = true;
        post_write(&s.a, 1, 0, 0, 100);
        post_write(&s.a, 2, 100, 100, 100);
        post_write(&s.a, 3, 200, 200, 20001);
        stream_run(&s);
        CHECK_EQ(s.ab.written - before, at);
        CHECK_EQ(stream_move(&s.a, RNIC_QPS_ERR, NULL), 0);
        memset(s.a.mem, 0, 40000);
        s.ab.held = false;
        s.ab.most_in_pipe = 0;
        stream_run(&s);
        want_end(&s.b, RNIC_STREAM_FIN, 0);
        CHECK(filled(s.b.mem, 20201, 3));
        CHECK(!memcmp(s.ab.bytes + s.ab.written - sizeof trailer, trailer, sizeof trailer));
        stream_close(&s);
    }
}

/* It waits for its time to send; nothing of that is left when it has ended. */
static void err_while_it_is_paced(void) {
    const struct rnic_qp_rate_limit_attr attr = {.rate_limit = 100000, .max_burst_sz = 4096};
    stream_open(&s);
    pace_set(&s.a.qp->pace, &attr, s.a.node->nic.mtu);
    post_write(&s.a, 1, 0, 0, 100000);
    stream_run(&s);
    CHECK(s.ab.written && s.ab.written < 100000);
    CHECK(s.a.qp->engine->deadline(s.a.qp) != NEVER);
    CHECK_EQ(stream_move(&s.a, RNIC_QPS_ERR, NULL), 0);
    stream_run(&s);
    stream_later(&s);
    CHECK_EQ(s.a.qp->engine->deadline(s.a.qp), NEVER);
    stream_close(&s);
}

/* Memory that is deregistered while its bytes go from there: the frame cannot be finished. */
static void memory_goes_while_it_is_sent(void) {
    stream_open(&s, .no_crc = true);
    struct mr *mr = fabric_mr(s.a.node, &s.a.node->pd, s.a.mem, 100000, ALL_ACCESS);
    s.ab.most_in_pipe = 1000;
    s.ab.held = true;
    post(&s.a, (struct rnic_send_wr){.wr_id = 1,
                                     .opcode = RNIC_WR_RDMA_WRITE,
                                     REMOTE(&s.b, 0),
                                     SGL({(uintptr_t)s.a.mem, 60000, mr->pub.lkey})});
    stream_run(&s);
    fabric_drop_mr(s.a.node, mr);
    s.ab.held = false;
    stream_run(&s);
    want_end(&s.a, RNIC_STREAM_REFUSED, 0);
    want_end(&s.b, RNIC_STREAM_LOST, ECONNRESET);
    WANT_ERR(s.a.send_cq, 1, LOC_PROT_ERR, SGE_BAD_LKEY);
    stream_close(&s);
}

/* Closed in order and left at once: what was posted may go first, as long as the socket takes it. */
static void left_behind_sqd(void) {
    for (int full = 0; full < 2; full++) {
        check_note("%s", full ? "the socket is full" : "there is room");
        stream_open(&s);
        const struct engine_ops *engine = s.a.qp->engine;
        s.ab.most_in_pipe = full ? 10 : 0;
        post_recv(&s.b, 11, 0, 8);
        post_write(&s.a, 1, 0, 0, 250000); /* more than is put into frames ahead of the socket */
        post_send(&s.a, 2, 0, 8);
        CHECK(!engine->settle(s.a.qp));
        CHECK_EQ(stream_move(&s.a, RNIC_QPS_SQD, NULL), 0);
        CHECK(engine->settle(s.a.qp));
        engine->next(s.a.qp, s.f.now);
        CHECK(!engine->settle(s.a.qp));
        CHECK_EQ(stream_move(&s.a, RNIC_QPS_RESET, NULL), 0);
        s.ab.most_in_pipe = 0;
        stream_run(&s);
        if (full)
            WANT(s.b.recv_cq, 11, WR_FLUSH_ERR);
        else
            WANT(s.b.recv_cq, 11, SUCCESS);
        want_end(&s.b, full ? RNIC_STREAM_LOST : RNIC_STREAM_FIN, full ? ECONNRESET : 0);
        stream_close(&s);
    }
}

static void what_is_posted_in_err_is_flushed(void) {
    stream_open(&s);
    CHECK_EQ(stream_move(&s.a, RNIC_QPS_ERR, NULL), 0);
    stream_run(&s);
    post_send(&s.a, 1, 0, 8);
    post_recv(&s.a, 2, 0, 8);
    stream_run(&s);
    WANT_ERR(s.a.send_cq, 1, WR_FLUSH_ERR, FLUSHED);
    WANT_ERR(s.a.recv_cq, 2, WR_FLUSH_ERR, FLUSHED);
    CHECK_EQ(s.a_end.count, 1);
    stream_close(&s);
}

/* And is connected anew. */
static void reset_in_the_middle(void) {
    static struct pipe fresh[2];
    const struct stream_options o = {.rfc7306 = true};
    stream_open(&s, .rtr = RNIC_STREAM_RTR_WRITE);
    s.ab.most_in_pipe = 1000;
    post_send(&s.a, 1, 0, 100000);
    post_recv(&s.a, 2, 0, 8);
    s.ab.held = true;
    stream_run(&s);
    CHECK_EQ(stream_move(&s.a, RNIC_QPS_RESET, NULL), 0);
    CHECK_EQ(stream_move(&s.b, RNIC_QPS_RESET, NULL), 0);
    CHECK_EQ(s.users, 0);
    WANT_NONE(s.a.send_cq);
    WANT_NONE(s.a.recv_cq);
    free(s.ab.bytes);
    free(s.ba.bytes);
    s.ab = fresh[0];
    s.ba = fresh[1];
    s.a_end.count = s.b_end.count = 0;
    for (struct end *e = &s.a;; e = &s.b) {
        CHECK_EQ(stream_move(e, RNIC_QPS_INIT, NULL), 0);
        stream_join(e, pipe_from(&s, e));
        stream_agree(&s, e, &o);
        CHECK_EQ(stream_move(e, RNIC_QPS_RTS, NULL), 0);
        if (e == &s.b)
            break;
    }
    post_recv(&s.b, 11, 0, 8);
    post_send(&s.a, 12, 0, 8);
    stream_run(&s);
    WANT(s.b.recv_cq, 11, SUCCESS);
    WANT(s.a.send_cq, 12, SUCCESS);
    stream_close(&s);
}

/* ---------------------------------------------------------------- behind a Terminate message */

/* What the peer has still on its way is read, and counts for nothing, up to its end; or to a limit. */
static void what_comes_behind_an_error_is_forgotten(void) {
    for (int silent = 0; silent < 2; silent++) {
        stream_open(&s);
        s.ba.held = true;
        post_write(&s.a, 1, 0, 256 << 10, 8);
        post_write(&s.a, 2, 0, 0, 200000);
        fill(s.a.mem, 200000, 1);
        stream_run(&s);
        CHECK_EQ(s.b.qp->state, RNIC_QPS_ERR);
        CHECK_EQ(s.ab.read, s.ab.written);
        for (int i = 0; i < 200000; i++)
            CHECK(!s.b.mem[i]);
        if (silent) {
            stream_later(&s);
            struct iovec pieces[IWARP_PIECES];
            CHECK_EQ(iwarp_want(s.b.qp, pieces), 0);
        }
        s.ba.held = false;
        stream_run(&s);
        CHECK_EQ(s.a_end.event.end, RNIC_STREAM_TERMINATED);
        CHECK_EQ(s.b_end.event.end, RNIC_STREAM_REFUSED);
        CHECK_EQ(s.b_end.count, 1);
        stream_close(&s);
    }
}

int main(void) {
    RUN(by_either_end);
    RUN(by_both_at_once);
    RUN(behind_the_peer);
    RUN(a_peer_that_reads_slowly);
    RUN(behind_a_peer_that_will_not_answer);
    RUN(behind_a_peer_that_does_not_read);
    RUN(what_was_posted_goes_out_and_nothing_else);
    RUN(a_peer_that_goes_on);
    RUN(a_peer_that_never_closes);
    RUN(the_peer_closes_while_a_read_waits);
    RUN(within_every_frame);
    RUN(between_two_frames_of_a_message);
    RUN(a_connection_is_reset);
    RUN(a_write_fails);
    RUN(err_ahead_of_rts);
    RUN(both_close_on_a_slow_path);
    RUN(err_at_every_byte);
    RUN(err_behind_short_messages);
    RUN(err_while_it_is_paced);
    RUN(memory_goes_while_it_is_sent);
    RUN(left_behind_sqd);
    RUN(what_is_posted_in_err_is_flushed);
    RUN(reset_in_the_middle);
    RUN(what_comes_behind_an_error_is_forgotten);
    return check_done();
}
