/* SPDX-License-Identifier: Apache-2.0
 *
 * iWARP between two engines: what each operation does, in which order they complete, and how a connection begins and ends.
 */
#include <errno.h>
#include <string.h>

#include "check.h"
#include "stream.h"

static struct stream s;

/* ---------------------------------------------------------------- operations */

static void a_send_fills_a_receive(void) {
    stream_open(&s);
    fill(s.a.mem, 1000, 1);
    post_recv(&s.b, 11, 4096, 2000);
    post_send(&s.a, 1, 0, 1000);
    stream_run(&s);
    CHECK_EQ(WANT(s.a.send_cq, 1, SUCCESS).opcode, RNIC_WCO_SEND);
    struct rnic_wc wc = WANT(s.b.recv_cq, 11, SUCCESS);
    CHECK_EQ(wc.byte_len, 1000);
    CHECK_EQ(wc.opcode, RNIC_WCO_RECV);
    CHECK_EQ(wc.wc_flags, 0);
    CHECK_EQ(wc.qp_num, s.b.qp->pub.qp_num);
    CHECK(filled(s.b.mem + 4096, 1000, 1));
    stream_close(&s);
}

static void a_write_lands_where_it_says(void) {
    stream_open(&s);
    fill(s.a.mem, 100000, 2);
    post_write(&s.a, 1, 0, 1000, 100000);
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    WANT_NONE(s.b.recv_cq);
    CHECK(filled(s.b.mem + 1000, 100000, 2));
    CHECK(!s.b.mem[999] && !s.b.mem[101000]);
    stream_close(&s);
}

static void a_read_fetches(void) {
    stream_open(&s);
    fill(s.b.mem + 500, 150000, 3);
    post_read(&s.a, 1, 0, 500, 150000);
    post_send(&s.b, 2, 0, 0); /* what makes it speak, so that it has been spoken to */
    post_recv(&s.a, 12, 0, 0);
    stream_run(&s);
    CHECK_EQ(WANT(s.a.send_cq, 1, SUCCESS).byte_len, 150000);
    WANT(s.b.send_cq, 2, SUCCESS);
    WANT(s.a.recv_cq, 12, SUCCESS);
    CHECK(filled(s.a.mem, 150000, 3));
    stream_close(&s);
}

static void messages_of_no_bytes(void) {
    stream_open(&s);
    post_recv(&s.b, 11, 0, 0);
    post_recv(&s.b, 12, 0, 100);
    post_send(&s.a, 1, 0, 0);
    post_write(&s.a, 2, 0, 0, 0);
    post_read(&s.a, 3, 0, 0, 0);
    post(&s.a, (struct rnic_send_wr){.wr_id = 4, .opcode = RNIC_WR_SEND, .send_flags = RNIC_SEND_SIGNALED});
    stream_run(&s);
    for (uint64_t i = 1; i <= 4; i++)
        WANT(s.a.send_cq, i, SUCCESS);
    CHECK_EQ(WANT(s.b.recv_cq, 11, SUCCESS).byte_len, 0);
    CHECK_EQ(WANT(s.b.recv_cq, 12, SUCCESS).byte_len, 0);
    stream_close(&s);
}

static void completions_keep_the_order_of_posts(void) {
    stream_open(&s);
    s.ba.held = true; /* the READ's answer is late */
    post_recv(&s.b, 11, 0, 8);
    post_write(&s.a, 1, 0, 0, 8);
    post_read(&s.a, 2, 0, 64, 8);
    post_send(&s.a, 3, 0, 8);
    post_write(&s.a, 4, 0, 0, 8);
    stream_run(&s);
    WANT(s.b.recv_cq, 11, SUCCESS);
    WANT(s.a.send_cq, 1, SUCCESS);
    WANT_NONE(s.a.send_cq);
    s.ba.held = false;
    stream_run(&s);
    for (uint64_t i = 2; i <= 4; i++)
        WANT(s.a.send_cq, i, SUCCESS);
    stream_close(&s);
}

static void unsignaled_ones_complete_silently(void) {
    stream_open(&s);
    post(&s.a, (struct rnic_send_wr){.wr_id = 1, .opcode = RNIC_WR_RDMA_WRITE, REMOTE(&s.b, 0), SGL(SGE(&s.a, 0, 8))});
    post_write(&s.a, 2, 0, 0, 8);
    stream_run(&s);
    WANT(s.a.send_cq, 2, SUCCESS);
    WANT_NONE(s.a.send_cq);
    stream_close(&s);
}

/* Both ways at once, more than the pipe holds, and lists of several elements. */
static void a_lot_both_ways(void) {
    stream_open(&s);
    s.ab.most_in_pipe = 7000;
    s.ba.most_in_pipe = 5000;
    fill(s.a.mem, 60000, 4);
    fill(s.b.mem, 60000, 5);
    for (uint64_t i = 0; i < 8; i++) {
        post_recv(&s.a, 20 + i, 100000 + 8000 * i, 8000);
        post_recv(&s.b, 20 + i, 100000 + 8000 * i, 8000);
        post(&s.a, (struct rnic_send_wr){.wr_id = i,
                                         .opcode = RNIC_WR_SEND,
                                         .send_flags = RNIC_SEND_SIGNALED,
                                         SGL(SGE(&s.a, 7000 * i, 1), SGE(&s.a, 7000 * i + 1, 0),
                                             SGE(&s.a, 7000 * i + 1, 4000), SGE(&s.a, 7000 * i + 4001, 2999))});
        post_send(&s.b, i, 7000 * i, 7000);
    }
    stream_run(&s);
    for (uint64_t i = 0; i < 8; i++) {
        WANT(s.a.send_cq, i, SUCCESS);
        WANT(s.b.send_cq, i, SUCCESS);
        CHECK_EQ(WANT(s.a.recv_cq, 20 + i, SUCCESS).byte_len, 7000);
        CHECK_EQ(WANT(s.b.recv_cq, 20 + i, SUCCESS).byte_len, 7000);
        CHECK(!memcmp(s.b.mem + 100000 + 8000 * i, s.a.mem + 7000 * i, 7000));
        CHECK(!memcmp(s.a.mem + 100000 + 8000 * i, s.b.mem + 7000 * i, 7000));
    }
    stream_close(&s);
}

/* ---------------------------------------------------------------- the beginning */

static void rts_needs_a_connection(void) {
    struct rnic_err err;
    const struct stream_options o = {0};
    stream_open(&s, .not_yet = true);
    CHECK_EQ(stream_move(&s.a, RNIC_QPS_RTS, &err), -ENOTCONN);
    CHECK(strstr(err.text, "RDMA-CM"));
    stream_agree(&s, &s.a, &o);
    CHECK_EQ(stream_move(&s.a, RNIC_QPS_RTS, &err), -ENOTCONN);
    stream_join(&s.a, &s.ab);
    CHECK_EQ(stream_move(&s.a, RNIC_QPS_RTS, &err), 0);
    stream_close(&s);
}

/* RFC 5044, 7.1 */
static void the_responder_waits_for_the_first_message(void) {
    stream_open(&s);
    post_recv(&s.a, 11, 0, 8);
    post_recv(&s.b, 12, 0, 8);
    post_send(&s.b, 2, 0, 8);
    stream_run(&s);
    CHECK_EQ(s.ba.written, 0);
    post_send(&s.a, 1, 0, 8);
    stream_run(&s);
    WANT(s.a.recv_cq, 11, SUCCESS);
    WANT(s.b.recv_cq, 12, SUCCESS);
    WANT(s.b.send_cq, 2, SUCCESS);
    stream_close(&s);
}

static void a_connection_of_equals(void) {
    static const uint8_t kinds[] = {RNIC_STREAM_RTR_SEND, RNIC_STREAM_RTR_WRITE, RNIC_STREAM_RTR_READ};
    for (size_t i = 0; i < sizeof kinds; i++) {
        check_note("kind %d", kinds[i]);
        stream_open(&s, .rtr = kinds[i]);
        post_recv(&s.a, 11, 0, 8);
        post_send(&s.b, 2, 0, 8);
        stream_run(&s);
        WANT(s.b.send_cq, 2, SUCCESS);
        WANT(s.a.recv_cq, 11, SUCCESS);
        WANT_NONE(s.b.recv_cq);
        WANT_NONE(s.a.send_cq);
        post_read(&s.a, 3, 0, 0, 8);
        stream_run(&s);
        WANT(s.a.send_cq, 3, SUCCESS);
        stream_close(&s);
    }
}

/* ---------------------------------------------------------------- the end */

static void want_end(struct end *e, int end, int error) {
    const struct ending *ending = ending_of(&s, e);
    CHECK_EQ(ending->count, 1);
    CHECK_EQ(ending->event.end, end);
    CHECK_EQ(ending->event.error, error);
    CHECK_EQ(e->qp->state, RNIC_QPS_ERR);
}

static void a_connection_is_closed_in_order(void) {
    stream_open(&s);
    post_recv(&s.a, 10, 0, 8);
    post_recv(&s.b, 11, 0, 8);
    post_recv(&s.b, 12, 0, 8);
    post_send(&s.a, 1, 0, 8);
    post_read(&s.a, 2, 8, 0, 8);
    CHECK_EQ(stream_move(&s.a, RNIC_QPS_SQD, NULL), 0);
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    WANT(s.a.send_cq, 2, SUCCESS);
    WANT(s.b.recv_cq, 11, SUCCESS);
    WANT(s.b.recv_cq, 12, WR_FLUSH_ERR);
    WANT(s.a.recv_cq, 10, WR_FLUSH_ERR);
    want_end(&s.a, RNIC_STREAM_CLOSED, 0);
    want_end(&s.b, RNIC_STREAM_FIN, 0);
    WANT_NO_EVENT(&s.a);
    WANT_NO_EVENT(&s.b);
    stream_close(&s);
}

int main(void) {
    RUN(a_send_fills_a_receive);
    RUN(a_write_lands_where_it_says);
    RUN(a_read_fetches);
    RUN(messages_of_no_bytes);
    RUN(completions_keep_the_order_of_posts);
    RUN(unsignaled_ones_complete_silently);
    RUN(a_lot_both_ways);
    RUN(rts_needs_a_connection);
    RUN(the_responder_waits_for_the_first_message);
    RUN(a_connection_of_equals);
    RUN(a_connection_is_closed_in_order);
    return check_done();
}
