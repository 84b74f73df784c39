/* SPDX-License-Identifier: Apache-2.0
 *
 * How a connection of src/msg begins and ends: goodbye, abort, loss, silence, time; hellos in band; peers without one.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "talk.h"

/* Two ends that nobody has greeted. */
static void open_unknown(const struct how *h) {
    pair_open(&p, .bytes = MEMORY, .wr = 256, .cqe = 512, .quiet = true, .rd_atomic = 16, .dest_rd_atomic = 16);
    talk_open(&a, &p.a, h);
    talk_open(&b, &p.b, h);
}

static int await_hello(struct side *s) {
    const uint8_t *hello = NULL;
    uint32_t bytes = 0;
    int came = msg_hear_hello(s->m, (int64_t)p.f.now, &hello, &bytes);
    CHECK(came != 1 || (bytes == 5 && !memcmp(hello, "hello", 5)));
    return came;
}

/* ---------------------------------------------------------------- the end */

static void the_goodbye_comes_behind_all_that_was_sent(void) {
    talk_open_both(&(struct how){0}, &(struct how){.backlog = 1});
    uint8_t *one = say(&a, 50000, 0, 1, 1);
    msg_close(a.m, (int64_t)p.f.now, MSG_NEVER);
    talk_settle();
    CHECK_EQ(msg_state(b.m), MSG_OPEN);
    uint64_t handle;
    CHECK_EQ(msg_send(a.m, one, 1, 0, &handle), -ESHUTDOWN);
    msg_want(b.m, true, false);
    talk_settle();
    CHECK(msg_heard_goodbye(b.m) && !msg_is_spent(b.m));
    hear(&b, MSG_ANY, 50000, 1);
    CHECK(msg_is_spent(b.m));
    free(say(&b, 100, 0, 2, 0)); /* which nobody takes */
    msg_close(b.m, (int64_t)p.f.now, MSG_NEVER);
    talk_settle();
    CHECK_EQ(msg_state(a.m), MSG_CLOSED);
    CHECK_EQ(msg_state(b.m), MSG_CLOSED);
    free(one);
    talk_close();
}

static void an_abort_tells_why(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    msg_abort(a.m, "enough");
    talk_settle();
    CHECK_EQ(a.m->out.handed_out, 1); /* once, */
    CHECK_EQ(a.m->out.delivered, 0);  /* and it is no message */
    CHECK_EQ(msg_state(a.m), MSG_FAILED);
    CHECK_EQ(msg_state(b.m), MSG_FAILED);
    CHECK_EQ(msg_error(b.m)->kind, MSG_ABORTED);
    CHECK_EQ(msg_error(b.m)->reason, MSG_APPLICATION);
    CHECK(!strcmp(msg_error(b.m)->text, "the peer aborted the connection: enough"));
    talk_close();
}

/* The SEND of an ABORT with a text of so many bytes, 'x' each; returns its length. */
static uint32_t long_abort(uint8_t *to, uint32_t text) {
    uint32_t n = msg_frame_put(to, FRAME_ABORT, 0, 0, MSG_APPLICATION);
    memset(to + n, 'x', text);
    return n + text;
}

static void a_long_text_of_the_peer_is_cut_to_the_place_for_it(void) {
    uint8_t word[600];
    const uint32_t room = sizeof msg_error(NULL)->text - 1, head = 33; /* "the peer aborted the connection: " */
    for (uint32_t text = room - head - 1; text<500; text += text> room ? 100 : 1) {
        check_note("%u bytes", text);
        talk_open_both(&(struct how){0}, &(struct how){0});
        msg_disconnected(a.m, word, long_abort(word, text));
        const char *told = msg_error(a.m)->text;
        uint32_t want = head + text < room ? head + text : room;
        CHECK_EQ(strnlen(told, room + 1), want);
        CHECK(!strncmp(told, "the peer aborted the connection: xxx", head + 3) && told[want - 1] == 'x');
        talk_close();
    }
    for (uint32_t text = 0; text < 4; text++) { /* what lies behind the text is none of it */
        talk_open_both(&(struct how){0}, &(struct how){0});
        long_abort(word, 500);
        msg_disconnected(a.m, word, FRAME_HEADER + text);
        CHECK_EQ(strlen(msg_error(a.m)->text), head + text);
        talk_close();
    }
}

static void an_abort_that_is_under_way_ends_with_the_connection(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    msg_abort(a.m, "enough");
    talk_pump(&a);
    CHECK_EQ(msg_state(a.m), MSG_ABORTING);
    CHECK(!msg_may_leave(a.m));
    msg_lost(a.m, "the cable was cut");
    CHECK_EQ(msg_state(a.m), MSG_FAILED);
    CHECK(msg_may_leave(a.m));
    CHECK(!strcmp(msg_error(a.m)->text, "enough")); /* the first error counts */
    talk_close();
}

static void whoever_closes_before_the_hello_has_failed(void) {
    open_unknown(&(struct how){0});
    msg_close(a.m, (int64_t)p.f.now, MSG_NEVER);
    CHECK_EQ(msg_state(a.m), MSG_FAILED);
    CHECK_EQ(msg_error(a.m)->kind, MSG_ABORTED);
    CHECK(!strcmp(msg_error(a.m)->text, "closed before the handshake was over"));
    msg_disconnected(b.m, "", 0);
    CHECK_EQ(msg_state(b.m), MSG_FAILED);
    CHECK_EQ(msg_error(b.m)->kind, MSG_LOST);
    CHECK(!strcmp(msg_error(b.m)->text, "disconnected"));
    talk_close();
}

static void an_abort_keeps_within_its_place(void) {
    talk_open_both(&(struct how){.send_size = 64}, &(struct how){0});
    free(say(&a, 5 * 56 - 8, 0, 1, 0));
    free(say(&a, 40, 0, 2, 0));
    free(say(&a, 40, 0, 3, 0));
    CHECK_EQ(a.m->out.handed_out, 7); /* in places 1 to 7 of 8 */
    uint8_t before[64], *place = a.m->memory.base + a.m->memory.sends_at + 64;
    memcpy(before, place, 64);
    char text[141] = {0};
    memset(text, 'x', 140);
    msg_abort(a.m, text);
    msg_abort(a.m, "once more");
    talk_pump(&a);
    CHECK_EQ(a.m->out.handed_out, 8);
    CHECK(memcmp(before, place, 64) == 0);
    talk_settle();
    CHECK_EQ(strlen(msg_error(b.m)->text), strlen("the peer aborted the connection: ") + 56);
    talk_close();
}

static void goodbyes_that_are_not_said_in_time_abort(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    msg_close(a.m, (int64_t)p.f.now, 1000);
    CHECK_EQ(msg_deadline(a.m), (int64_t)p.f.now + 1000);
    talk_settle();
    p.f.now += 2000;
    talk_settle();
    CHECK_EQ(msg_error(a.m)->reason, MSG_TIMEOUT);
    CHECK_EQ(msg_state(b.m), MSG_FAILED);
    talk_close();
}

static void another_close_moves_the_limit(void) {
    for (int64_t limit = 500; limit <= 5000; limit += 4500) {
        talk_open_both(&(struct how){0}, &(struct how){0});
        int64_t now = (int64_t)p.f.now + MS;
        msg_close(a.m, now, 1000);
        CHECK_EQ(msg_deadline(a.m), now + 1000);
        msg_close(a.m, now, MSG_NEVER);
        CHECK_EQ(msg_deadline(a.m), MSG_NEVER);
        msg_close(a.m, now, limit);
        CHECK_EQ(msg_deadline(a.m), now + limit);
        p.f.now = (uint64_t)(now + limit - 1);
        talk_pump(&a);
        CHECK_EQ(msg_error(a.m)->kind, MSG_WELL);
        p.f.now++;
        talk_pump(&a);
        CHECK_EQ(msg_error(a.m)->reason, MSG_TIMEOUT);
        talk_close();
    }
}

static void what_the_disconnect_says_counts(void) {
    uint8_t word[148] = {0};
    talk_open_both(&(struct how){0}, &(struct how){0});
    msg_close(b.m, (int64_t)p.f.now, MSG_NEVER);
    talk_settle();
    msg_close(a.m, (int64_t)p.f.now, MSG_NEVER);
    talk_pump(&a); /* the goodbye leaves */
    CHECK_EQ(msg_state(a.m), MSG_PEER_LEFT);
    word[0] = FRAME_GOODBYE;
    msg_disconnected(a.m, word, sizeof word);
    CHECK_EQ(msg_state(a.m), MSG_CLOSED);
    CHECK_EQ(msg_farewell(a.m, word), FRAME_HEADER);
    CHECK(!memcmp(word, ((uint8_t[]){FRAME_GOODBYE, 0, 0, 0, 0, 0, 0, 0}), FRAME_HEADER));
    talk_close();
    talk_open_both(&(struct how){0}, &(struct how){0});
    msg_disconnected(a.m, "", 0);
    CHECK_EQ(msg_error(a.m)->kind, MSG_LOST);
    talk_close();
    talk_open_both(&(struct how){0}, &(struct how){0});
    word[0] = FRAME_ABORT;
    word[7] = 3;
    memcpy(word + FRAME_HEADER, "too much", 8);
    msg_disconnected(a.m, word, sizeof word);
    CHECK_EQ(msg_error(a.m)->reason, 3);
    CHECK(!strcmp(msg_error(a.m)->text, "the peer aborted the connection: too much"));
    talk_close();
}

static void the_disconnect_counts_if_its_number_is_right_and_the_goodbye_is_under_way(void) {
    static const struct {
        uint8_t word[FRAME_HEADER + 1];
        bool left, said; /* the peer has said goodbye, this end has */
        const char *text;
    } words[] = {
        {{FRAME_GOODBYE, [7] = 1, [8] = 9}, true, true, ""},
        {{FRAME_GOODBYE, [7] = 2}, true, true, "the peer has closed the connection without waiting for this end"},
        {{FRAME_GOODBYE, [7] = 1}, true, false, "the peer has closed the connection without waiting for this end"},
        {{FRAME_CREDIT, [7] = 1}, true, true, "the peer has closed the connection without waiting for this end"},
        {{FRAME_GOODBYE, [7] = 1},
         false,
         true,
         "the peer disconnected without a goodbye: perhaps its process has ended"},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        check_note("word %d", (int)i);
        talk_open_both(&(struct how){0}, &(struct how){0});
        free(say(&a, 10, 0, 1, 0));
        talk_settle();
        hear(&b, MSG_ANY, 10, 1);
        if (words[i].left)
            msg_close(b.m, (int64_t)p.f.now, MSG_NEVER);
        talk_settle();
        if (words[i].said)
            msg_close(a.m, (int64_t)p.f.now, MSG_NEVER);
        talk_pump(&a); /* the goodbye leaves, and is not acknowledged yet */
        CHECK_EQ(msg_state(a.m), words[i].left ? MSG_PEER_LEFT : MSG_OPEN);
        msg_disconnected(a.m, words[i].word, FRAME_HEADER);
        CHECK_EQ(msg_state(a.m), *words[i].text ? MSG_FAILED : MSG_CLOSED);
        CHECK(!strcmp(msg_error(a.m)->text, words[i].text));
        talk_close();
    }
}

static void the_disconnect_carries_the_abort_once_more(void) {
    uint8_t word[148] = {0};
    talk_open_both(&(struct how){0}, &(struct how){0});
    msg_abort(a.m, "enough");
    CHECK_EQ(msg_farewell(a.m, word), FRAME_HEADER + 6);
    CHECK(!memcmp(word, ((uint8_t[]){FRAME_ABORT, 0, 0, 0, 0, 0, 0, 1, 'e', 'n', 'o', 'u', 'g', 'h'}), 14));
    CHECK_EQ(word[14], 0);
    talk_close();
}

static void what_comes_first_establishes_the_connection(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    b.m->established = false; /* the last word of the handshake is late */
    uint64_t handle;
    CHECK_EQ(msg_send(b.m, "y", 1, 0, &handle), 1);
    talk_settle();
    CHECK(!msg_established(b.m) && msg_left(b.m) == 0);
    free(say(&a, 10, 0, 1, 0));
    talk_settle();
    CHECK(msg_established(b.m) && msg_left(b.m) == 1);
    hear(&b, MSG_ANY, 10, 1);
    talk_close();
}

/* The first tick of the clock a second behind the last sign of life. */
static int64_t silent_at(int64_t heard) {
    int64_t tick = SEC / IDLE_TICKS + 1;
    return (heard + SEC + tick - 1) / tick * tick;
}

static void a_silent_peer_is_probed(void) {
    struct how h = {.idle = SEC};
    talk_open_both(&h, &h);
    CHECK_EQ(msg_deadline(a.m), silent_at((int64_t)p.f.now));
    p.f.now = (uint64_t)msg_deadline(a.m);
    talk_settle();
    struct msg_statistics s;
    msg_count(a.m, &s);
    CHECK_EQ(s.probes, 1);
    CHECK_EQ(s.sends, 0);
    CHECK_EQ(s.messages_sent, 0);
    CHECK(msg_deadline(a.m) > (int64_t)p.f.now);
    talk_close();
}

static uint64_t probes_at(struct side *s, int64_t now) {
    struct msg_statistics n;
    p.f.now = (uint64_t)now;
    talk_pump(s);
    msg_count(s->m, &n);
    return n.probes;
}

static void a_probe_comes_when_the_peer_was_silent_for_so_long_and_not_before(void) {
    struct how h = {.idle = SEC};
    talk_open_both(&h, &(struct how){0});
    int64_t heard = (int64_t)p.f.now;
    int64_t late = silent_at(heard) - heard;
    CHECK(late >= (int64_t)SEC && late <= (int64_t)(SEC + SEC / IDLE_TICKS));
    CHECK_EQ(probes_at(&a, silent_at(heard) - 1), 0);
    CHECK_EQ(probes_at(&a, silent_at(heard)), 1);
    CHECK_EQ(msg_deadline(a.m), MSG_NEVER); /* until it has completed */
    CHECK_EQ(probes_at(&a, heard + 3 * SEC), 1);
    talk_settle();
    heard = a.m->heard_at;
    CHECK_EQ(msg_deadline(a.m), silent_at(heard));
    for (int i = 0; i < 3; i++) { /* each message puts it off */
        p.f.now = (uint64_t)heard + SEC - MS;
        free(say(&b, 10, 0, 1, 0));
        fabric_settle(&p.f);
        CHECK_EQ(probes_at(&a, (int64_t)p.f.now), 1);
        CHECK(a.m->heard_at > heard);
        heard = a.m->heard_at;
        CHECK_EQ(msg_deadline(a.m), silent_at(heard));
    }
    CHECK_EQ(probes_at(&a, silent_at(heard) - 1), 1);
    CHECK_EQ(probes_at(&a, silent_at(heard)), 2);
    talk_close();
}

static void a_probe_comes_at_a_tick_that_all_ends_share(void) {
    const int64_t tick = SEC / IDLE_TICKS + 1, first = 20 * tick;
    for (int64_t after = -2; after <= 2; after++) {
        check_note("%lld ns after a tick", (long long)after);
        talk_open_both(&(struct how){.idle = SEC}, &(struct how){0});
        a.m->heard_at = first - (int64_t)SEC + after;
        CHECK_EQ(msg_deadline(a.m), after <= 0 ? first : first + tick);
        talk_close();
    }
}

static void a_peer_that_grants_no_write_is_not_probed(void) {
    struct how h = {.idle = SEC};
    talk_open_both(&h, &h);
    a.m->peer.access = RNIC_ACCESS_REMOTE_READ;
    CHECK_EQ(msg_deadline(a.m), MSG_NEVER);
    CHECK_EQ(probes_at(&a, (int64_t)p.f.now + 2 * SEC), 0);
    talk_close();
}

static void lost_work_ends_the_connection_with_what_failed(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    uint8_t *one = say(&a, 100, 0, 1, 0);
    move(p.a.qp, RNIC_QPS_ERR);
    talk_settle();
    CHECK(msg_failed(a.m) != NULL);
    msg_lost(a.m, "the queue pair has failed");
    CHECK_EQ(msg_undelivered(a.m), 1);
    CHECK_EQ(msg_state(a.m), MSG_FAILED);
    free(one);
    talk_close();
}

static void what_the_peer_has_perhaps_not_received_is_counted(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    uint8_t *data[5];
    for (int i = 0; i < 3; i++)
        data[i] = say(&a, 10, 0, 1, 0);
    data[3] = say(&a, 20000, 0, 1, 1);
    data[4] = say(&a, 10, 0, 1, 1);
    CHECK_EQ(msg_sent(a.m), 3);
    msg_lost(a.m, "the cable was cut");
    CHECK_EQ(msg_undelivered(a.m), 5);
    CHECK_EQ(msg_sent(a.m), 3);
    CHECK_EQ(msg_left(a.m), 5); /* all memory is the program's again */
    for (int i = 0; i < 5; i++)
        free(data[i]);
    talk_close();
    talk_open_both(&(struct how){0}, &(struct how){0});
    for (int i = 0; i < 5; i++)
        free(say(&a, 10, 0, 1, 0));
    talk_settle();
    CHECK_EQ(a.m->out.completed, 4); /* a completion of one in half a window */
    msg_lost(a.m, "the cable was cut");
    CHECK_EQ(msg_undelivered(a.m), 1);
    talk_close();
}

static void what_is_no_message_is_not_counted_as_one(void) {
    struct msg_statistics s;
    struct how h = {.announce = 5000};
    talk_open_both(&h, &h);
    struct msg_region r = {.access = RNIC_ACCESS_REMOTE_READ, .length = 1};
    CHECK_EQ(msg_share(b.m, &r), 0);
    for (int i = 0; i < 4; i++)
        free(say(&a, 10, 0, 1, 0));
    uint8_t *one = say(&b, 6000, 0, 1, 1);
    talk_settle(); /* b has said SHARE, CREDIT and ANNOUNCE */
    free(one);
    msg_count(b.m, &s);
    CHECK(s.sends >= 3 && s.credit_sends == 1 && s.messages_sent == 1);
    CHECK_EQ(b.m->out.completed, 0);
    msg_lost(b.m, "the cable was cut");
    CHECK_EQ(msg_undelivered(b.m), 0);
    talk_close();
}

static void a_credit_has_the_bytes_of_the_protocol(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    for (int i = 0; i < 4; i++)
        free(say(&a, 10, 0, 1, 0));
    talk_settle();
    CHECK_EQ(b.m->out.handed_out, 1);
    const uint8_t *place = b.m->memory.base + b.m->memory.sends_at + b.m->how.send_size;
    CHECK(!memcmp(place, ((uint8_t[]){FRAME_CREDIT, 0, 0, 4, 0, 0, 0, 0}), FRAME_HEADER));
    talk_close();
}

static void a_probe_returns_no_credits(void) {
    talk_open_both(&(struct how){0}, &(struct how){.idle = SEC});
    for (int i = 0; i < 3; i++)
        free(say(&a, 10, 0, 1, 0));
    talk_settle();
    p.f.now = (uint64_t)msg_deadline(b.m);
    talk_settle();
    CHECK(b.m->out.probes == 1 && a.m->credits.returned == 0);
    free(say(&b, 10, 0, 1, 0));
    talk_settle();
    CHECK_EQ(a.m->credits.returned, 3);
    talk_close();
}

static void an_overrun_queue_is_told(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    CHECK_EQ(talk_pump(&a), 0);
    a.overrun = true;
    CHECK_EQ(talk_pump(&a), -EIO);
    CHECK(msg_failed(a.m) == NULL);
    talk_close();
}

static void what_came_counts_before_a_queue_that_is_overrun(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    free(say(&a, 10, 0, 1, 0));
    fabric_settle(&p.f);
    b.overrun = true;
    b.well = &b.end->recv_cq->pub;
    CHECK_EQ(talk_pump(&b), 0);
    hear(&b, MSG_ANY, 10, 1);
    CHECK_EQ(talk_pump(&b), -EIO);
    talk_close();
}

static void what_was_polled_waits_to_be_handled(void) {
    open_unknown(&(struct how){0});
    CHECK_EQ(msg_say_hello(a.m, "hello", 5, 0, 0, NULL), 0);
    CHECK_EQ(msg_say_hello(b.m, "hello", 5, 0, 0, NULL), 0);
    fabric_settle(&p.f);
    CHECK_EQ(msg_poll(a.m), 2); /* the peer's hello, and the completion of this end's */
    CHECK_EQ(msg_poll(a.m), 2);
    CHECK_EQ(await_hello(&a), 1);
    talk_greet(&a, &(struct how){0});
    CHECK_EQ(msg_poll(a.m), 1);
    CHECK_EQ(talk_pump(&a), 0);
    CHECK_EQ(a.m->out.completed, 1);
    CHECK_EQ(msg_poll(a.m), 0);
    talk_close();
}

static void the_failure_that_says_why_counts_not_what_was_flushed(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    struct msg_op op = {.opcode = RNIC_WR_RDMA_READ, .anywhere = true, .addr = (uintptr_t)b.end->mem, .rkey = 0xBAD};
    op.sge = (struct rnic_sge){(uintptr_t)a.end->mem + MEMORY / 2, 8, a.end->mr->pub.lkey};
    msg_operate(a.m, &op);
    talk_settle();
    CHECK(msg_failed(a.m) && msg_failed(a.m)->status == RNIC_WC_REM_ACCESS_ERR);
    CHECK_EQ(op.status, RNIC_WC_REM_ACCESS_ERR);
    CHECK(op.vendor_err && op.vendor_err == msg_failed(a.m)->vendor_err);
    talk_close();
    talk_open_both(&(struct how){0}, &(struct how){0});
    move(p.a.qp, RNIC_QPS_ERR);
    talk_settle();
    CHECK_EQ(msg_failed(a.m)->status, RNIC_WC_WR_FLUSH_ERR);
    CHECK_EQ(msg_failed(a.m)->wr_id, WR_RECEIVE); /* the first one */
    talk_close();
}

static void a_send_that_cannot_be_posted_ends_the_connection(void) {
    uint64_t handle;
    talk_open_both(&(struct how){0}, &(struct how){0});
    a.full = true;
    CHECK_EQ(msg_send(a.m, "x", 1, 0, &handle), -ESHUTDOWN);
    CHECK_EQ(msg_state(a.m), MSG_FAILED);
    CHECK_EQ(msg_error(a.m)->kind, MSG_LOST);
    talk_close();
}

static void after_the_end_no_receives_are_posted(void) {
    talk_open_both(&(struct how){0}, &(struct how){.backlog = 1});
    for (int i = 0; i < 3; i++)
        free(say(&a, 10, 0, 1, 0));
    talk_settle();
    msg_lost(b.m, "the cable was cut");
    uint64_t before = b.m->credits.posted;
    for (int i = 0; i < 3; i++)
        hear(&b, MSG_ANY, 10, 1);
    talk_pump(&b);
    CHECK_EQ(b.m->credits.posted, before);
    talk_close();
}

static void operations_wait_for_the_handshake_and_not_for_an_abort(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    struct msg_op op = {
        .opcode = RNIC_WR_RDMA_READ, .anywhere = true, .addr = (uintptr_t)b.end->mem, .rkey = b.end->mr->pub.rkey};
    struct msg_op late = op;
    a.m->established = false;
    msg_operate(a.m, &op);
    talk_settle();
    CHECK_EQ(op.state, MSG_OP_QUEUED);
    msg_establish(a.m);
    talk_settle();
    CHECK(msg_done(a.m) == &op && op.status == RNIC_WC_SUCCESS);
    msg_operate(a.m, &late);
    msg_abort(a.m, "enough");
    CHECK_EQ(msg_state(a.m), MSG_ABORTING);
    talk_pump(&a);
    CHECK_EQ(late.state, MSG_OP_QUEUED);
    talk_close();
}

static void a_credit_is_owed_when_half_of_the_receives_are(void) {
    static const uint32_t thresholds[][2] = {{3, 2}, {4, 2}, {5, 2}, {6, 3}, {7, 3}, {8, 4}, {9, 4}};
    for (size_t i = 0; i < sizeof thresholds / sizeof *thresholds; i++) {
        talk_open_both(&(struct how){0}, &(struct how){.receives = thresholds[i][0]});
        struct msg_statistics s;
        for (uint32_t sent = 1; sent <= thresholds[i][1]; sent++) {
            free(say(&a, 10, 0, 1, 0));
            talk_settle();
            msg_count(b.m, &s);
            CHECK_EQ(s.credit_sends, sent == thresholds[i][1]);
        }
        talk_close();
    }
}

static void what_is_given_back_holds_nothing_but_messages(void) {
    struct how h = {.announce = 5000};
    talk_open_both(&h, &h);
    struct msg_region r = {.rkey = b.end->mr->pub.rkey,
                           .access = RNIC_ACCESS_REMOTE_READ,
                           .addr = (uintptr_t)b.end->mem,
                           .length = MEMORY};
    CHECK_EQ(msg_share(b.m, &r), 0);
    free(say(&b, 10, 0, 3, 0));
    talk_settle();
    uint8_t *mine = say(&a, 60000, 0, 1, 1), *theirs = say(&b, 60000, 0, 2, 1);
    struct msg_op op = {.opcode = RNIC_WR_RDMA_READ, .region = r.id, .addr = r.addr, .rkey = r.rkey};
    msg_operate(a.m, &op);
    while (!a.m->in.fetching) {
        fabric_step(&p.f, NEVER);
        talk_pump(&a);
    }
    CHECK(a.regions == 2 && a.objects == 2);
    msg_release(a.m);
    CHECK_EQ(msg_state(a.m), MSG_FAILED);
    CHECK_EQ(msg_error(a.m)->kind, MSG_LOST);
    CHECK(a.regions == 0 && a.objects == 1);
    CHECK(msg_done(a.m) == &op && !msg_operates(a.m));
    hear(&a, MSG_ANY, 10, 3);
    free(mine);
    msg_lost(b.m, "the cable was cut");
    free(theirs);
    talk_close();
}

/* ---------------------------------------------------------------- in band */

static void open_in_band(const struct how *h) {
    open_unknown(h);
    for (struct side *s = &a; s; s = s == &a ? &b : NULL)
        CHECK_EQ(msg_say_hello(s->m, "hello", 5, ALL_ACCESS, (int64_t)p.f.now, NULL), 0);
    fabric_settle(&p.f);
    for (struct side *s = &a; s; s = s == &a ? &b : NULL) {
        CHECK_EQ(await_hello(s), 1);
        CHECK_EQ(await_hello(s), 1); /* it stays until it has been read */
        talk_greet(s, h);
    }
}

static void the_first_send_is_the_hello(void) {
    struct msg_statistics n;
    open_unknown(&(struct how){0});
    CHECK_EQ(await_hello(&a), 0);
    CHECK_EQ(msg_say_hello(b.m, "hello", 5, 0, 0, NULL), 0);
    CHECK_EQ(msg_say_hello(b.m, "once more", 9, 0, 0, NULL), 0);
    CHECK_EQ(talk_pump(&a), 0);
    fabric_settle(&p.f);
    CHECK_EQ(await_hello(&a), 1);
    talk_close();
    open_in_band(&(struct how){.announce = 1000});
    msg_count(a.m, &n);
    CHECK(n.sends == 1 && n.receives == 1 && n.credits == 8); /* a hello takes no credit */
    uint8_t *first[7], *last;
    for (int i = 0; i < 7; i++)
        first[i] = say(&a, 10, 0, (uint64_t)i, 0); /* all that the hello allows, before the peer has looked */
    talk_settle();
    for (uint64_t i = 0; i < 7; i++) {
        hear(&b, MSG_ANY, 10, i);
        free(first[i]);
    }
    last = say(&b, 5000, 0, 9, 1); /* whose TAKEN comes where the hello has come */
    talk_settle();
    hear(&a, MSG_ANY, 5000, 9);
    free(last);
    CHECK(!msg_may_leave(a.m));
    talk_goodbye();
    CHECK(msg_may_leave(a.m) && msg_may_leave(b.m));
    talk_close();
}

static enum verdict lose_the_first(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)bth;
    return from == arg && nth == 0 ? LOSE : PASS;
}

static void a_hello_that_is_lost_is_repeated_with_its_bytes(void) {
    open_unknown(&(struct how){0});
    p.f.judge = lose_the_first;
    p.f.judge_arg = a.end->node;
    for (struct side *s = &a; s; s = s == &a ? &b : NULL)
        CHECK_EQ(msg_say_hello(s->m, "hello", 5, ALL_ACCESS, (int64_t)p.f.now, NULL), 0);
    while (await_hello(&a) == 0)
        CHECK(fabric_step(&p.f, NEVER));
    talk_greet(&a, &(struct how){0});
    for (uint64_t i = 0; i < 7; i++)
        free(say(&a, 10, 0, i, 0));
    fabric_settle(&p.f);
    CHECK_EQ(await_hello(&b), 1);
    talk_greet(&b, &(struct how){0});
    talk_settle();
    for (uint64_t i = 0; i < 7; i++)
        hear(&b, MSG_ANY, 10, i);
    talk_close();
}

static void the_hello_of_the_peer_establishes_the_connection(void) {
    open_unknown(&(struct how){0});
    CHECK_EQ(msg_say_hello(a.m, "hello", 5, 0, 0, NULL), 0);
    CHECK_EQ(msg_say_hello(b.m, "hello", 5, 0, 0, NULL), 0);
    fabric_settle(&p.f);
    CHECK_EQ(await_hello(&b), 1);
    CHECK(!msg_established(b.m));
    struct msg_peer peer = {.receives = 8, .receive_size = 1024, .version = 2};
    msg_greet(b.m, &peer, (int64_t)p.f.now);
    CHECK(msg_established(b.m));
    CHECK_EQ(b.m->credits.posted - b.m->credits.arrived, 9); /* its receive was posted again */
    talk_close();
}

static void the_last_word_stands_for_an_acknowledgement(void) {
    for (uint8_t number = 0; number < 2; number++) {
        uint8_t word[FRAME_HEADER] = {FRAME_GOODBYE, 0, 0, 0, 0, 0, 0, number};
        open_in_band(&(struct how){0});
        free(say(&a, 10, 0, 1, 0));
        msg_close(b.m, (int64_t)p.f.now, MSG_NEVER);
        talk_settle();
        msg_close(a.m, (int64_t)p.f.now, MSG_NEVER);
        talk_pump(&a); /* the goodbye leaves */
        CHECK_EQ(msg_state(a.m), MSG_PEER_LEFT);
        msg_in_take(a.m, word, sizeof word);
        CHECK_EQ(msg_may_leave(a.m), number == 1);
        CHECK_EQ(msg_state(a.m), number == 1 ? MSG_CLOSED : MSG_ABORTING);
        talk_close();
    }
}

static void who_has_the_last_word_says_none(void) {
    open_in_band(&(struct how){0});
    msg_close(a.m, (int64_t)p.f.now, MSG_NEVER);
    talk_settle();
    msg_close(b.m, (int64_t)p.f.now, MSG_NEVER);
    talk_settle();
    CHECK(a.m->in.farewell + b.m->in.farewell >= 1);
    CHECK_EQ(a.m->in.farewell, b.m->out.farewell != 0);
    CHECK_EQ(b.m->in.farewell, a.m->out.farewell != 0);
    talk_close();
}

static void the_last_word_is_said_once_and_waited_for(void) {
    open_in_band(&(struct how){0});
    msg_close(a.m, (int64_t)p.f.now, SEC);
    talk_settle();
    msg_close(b.m, (int64_t)p.f.now, MSG_NEVER);
    talk_pump(&b);
    fabric_settle(&p.f);
    uint64_t before = a.m->out.handed_out;
    CHECK(!msg_may_leave(a.m));
    talk_pump(&a); /* it has both goodbyes now, and says its last word */
    talk_pump(&a);
    CHECK_EQ(msg_state(a.m), MSG_CLOSED);
    CHECK_EQ(a.m->out.handed_out, before + 1);
    CHECK(!msg_may_leave(a.m));
    CHECK_EQ(msg_deadline(a.m), MSG_NEVER);
    fabric_settle(&p.f);
    talk_pump(&a);
    CHECK(msg_may_leave(a.m) && !a.m->in.farewell);
    talk_settle();
    CHECK_EQ(a.m->out.handed_out, before + 1);
    CHECK(a.m->out.delivered == 0); /* no word is a message */
    CHECK(msg_may_leave(b.m) && b.m->in.farewell && !b.m->out.farewell);
    talk_close();
}

static void whoever_has_not_said_the_last_word_stays_unless_work_has_failed(void) {
    uint8_t word[148] = {FRAME_GOODBYE};
    open_in_band(&(struct how){0});
    msg_close(b.m, (int64_t)p.f.now, MSG_NEVER);
    talk_settle();
    msg_close(a.m, (int64_t)p.f.now, MSG_NEVER);
    talk_pump(&a); /* the goodbye leaves */
    msg_disconnected(a.m, word, FRAME_HEADER);
    CHECK_EQ(msg_state(a.m), MSG_CLOSED);
    CHECK(!msg_may_leave(a.m));
    move(p.a.qp, RNIC_QPS_ERR);
    talk_settle();
    CHECK(msg_failed(a.m) && msg_may_leave(a.m));
    talk_close();
}

static void whoever_needs_no_last_word_leaves_when_both_have_closed(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    CHECK(!msg_may_leave(a.m));
    talk_goodbye();
    CHECK(msg_may_leave(a.m) && msg_may_leave(b.m));
    talk_close();
}

static void a_peer_that_says_no_hello_is_probed(void) {
    struct msg_statistics n;
    for (uint32_t access = 0; access <= RNIC_ACCESS_REMOTE_WRITE; access += RNIC_ACCESS_REMOTE_WRITE) {
        open_unknown(&(struct how){.idle = SEC});
        CHECK_EQ(msg_deadline(a.m), MSG_NEVER);
        CHECK_EQ(msg_say_hello(a.m, "hello", 5, access, (int64_t)p.f.now, NULL), 0);
        fabric_settle(&p.f);
        CHECK_EQ(await_hello(&a), 0);
        CHECK_EQ(msg_deadline(a.m), access ? silent_at((int64_t)p.f.now) : MSG_NEVER);
        p.f.now = (uint64_t)silent_at((int64_t)p.f.now);
        CHECK_EQ(await_hello(&a), 0);
        msg_count(a.m, &n);
        CHECK_EQ(n.probes, access != 0);
        move(p.a.qp, RNIC_QPS_ERR);
        fabric_settle(&p.f);
        CHECK_EQ(await_hello(&a), -EIO);
        CHECK(msg_failed(a.m) != NULL);
        talk_close();
    }
}

static void a_probe_for_a_hello_that_cannot_be_posted_ends_the_connection(void) {
    open_unknown(&(struct how){.idle = SEC});
    CHECK_EQ(msg_say_hello(a.m, "hello", 5, ALL_ACCESS, (int64_t)p.f.now, NULL), 0);
    fabric_settle(&p.f);
    CHECK_EQ(await_hello(&a), 0);
    p.f.now = (uint64_t)silent_at((int64_t)p.f.now);
    a.full = true;
    CHECK_EQ(await_hello(&a), 0);
    CHECK_EQ(msg_state(a.m), MSG_FAILED);
    CHECK_EQ(msg_error(a.m)->kind, MSG_LOST);
    talk_close();
}

/* ---------------------------------------------------------------- a peer without a hello */

static void open_raw(const struct how *of_b) {
    pair_open(&p, .bytes = MEMORY, .wr = 256, .cqe = 512, .quiet = true);
    talk_open(&a, &p.a, &(struct how){0});
    talk_open(&b, &p.b, of_b);
    for (struct side *s = &a; s; s = s == &a ? &b : NULL) {
        msg_greet_raw(s->m);
        msg_establish(s->m);
        CHECK_EQ(msg_state(s->m), MSG_RAW);
    }
}

static void a_raw_message_is_one_send(void) {
    open_raw(&(struct how){0});
    uint64_t handle;
    uint8_t data[1025];
    fill(data, sizeof data, 5);
    CHECK_EQ(msg_send(a.m, data, 1025, 0, &handle), -EMSGSIZE);
    CHECK_EQ(msg_send(a.m, data, 1, 1, &handle), -EOPNOTSUPP);
    for (uint64_t n = 0; n <= 1024; n += 256)
        CHECK_EQ(msg_send(a.m, data, n, 0, &handle), 0);
    talk_settle();
    for (uint64_t n = 0; n <= 1024; n += 256)
        hear(&b, MSG_ANY, n, 5);
    struct msg_region r = {.access = RNIC_ACCESS_REMOTE_READ, .length = 1};
    CHECK_EQ(msg_share(a.m, &r), -EOPNOTSUPP);
    msg_close(a.m, (int64_t)p.f.now, MSG_NEVER);
    talk_pump(&a);
    CHECK_EQ(msg_state(a.m), MSG_CLOSED);
    msg_disconnected(b.m, "", 0);
    CHECK(msg_is_spent(b.m));
    talk_close();
}

static void pass_time(void) {
    for (int i = 0; i < 100; i++) {
        fabric_run(&p.f, p.f.now + MS);
        talk_pump(&a);
        talk_pump(&b);
    }
}

static void a_raw_peer_waits_for_receives(void) {
    open_raw(&(struct how){.receives = 3});
    uint64_t handle;
    uint8_t data[20];
    fill(data, sizeof data, 5);
    for (uint64_t i = 0; i < 8; i++)
        CHECK_EQ(msg_send(a.m, data, i, 0, &handle), 0);
    CHECK_EQ(msg_send(a.m, data, 8, 0, &handle), 1); /* eight are under way */
    for (int i = 0; i < 200; i++) {                  /* the transport waits for receives */
        fabric_run(&p.f, p.f.now + MS);
        talk_pump(&a);
        talk_pump(&b);
    }
    struct msg_statistics s;
    msg_count(b.m, &s);
    CHECK_EQ(s.receives, 8);
    CHECK_EQ(s.held, 4);
    msg_want(b.m, true, false);
    CHECK_EQ(b.m->credits.arrived - b.m->credits.freed, 4);
    for (uint64_t i = 0; i < 9; i++) {
        hear(&b, MSG_ANY, i, 5);
        msg_count(b.m, &s);
        CHECK_EQ(s.held, b.m->in.n > 4 ? b.m->in.n - 4 : 0);
        pass_time();
    }
    msg_count(b.m, &s);
    CHECK(s.held == 0 && s.backlog == 0 && b.m->in.n == 0);
    CHECK_EQ(msg_left(a.m), 9);
    talk_close();
}

static void a_raw_peer_is_told_nothing_but_messages(void) {
    uint8_t word[148];
    open_raw(&(struct how){0});
    CHECK_EQ(msg_withdraw(a.m, 1), -EOPNOTSUPP);
    msg_close(a.m, (int64_t)p.f.now, MSG_NEVER);
    talk_pump(&a);
    CHECK_EQ(msg_state(a.m), MSG_CLOSED);
    CHECK_EQ(msg_farewell(a.m, word), 0);
    talk_close();
}

static void a_raw_message_that_is_put_back_takes_no_receive_back(void) {
    open_raw(&(struct how){.receives = 3});
    uint64_t handle;
    for (int i = 0; i < 5; i++)
        CHECK_EQ(msg_send(a.m, "x", 1, 0, &handle), 0);
    pass_time();
    struct msg_in *in = msg_find(b.m, MSG_ANY);
    uint8_t *data = in->data;
    void *object = in->object;
    msg_take(b.m, in);
    in->object = NULL;
    msg_drop(b.m, in);
    CHECK_EQ(msg_put_back(b.m, data, 1, 0, object), 0);
    msg_want(b.m, true, false);
    talk_pump(&b);
    CHECK_EQ(msg_state(b.m), MSG_RAW);
    talk_close();
}

static void a_raw_message_without_memory_for_it_is_lost(void) {
    struct msg_statistics s;
    open_raw(&(struct how){0});
    uint64_t handle;
    CHECK_EQ(msg_send(a.m, "xy", 2, 0, &handle), 0);
    talk_settle();
    msg_count(b.m, &s);
    CHECK_EQ(s.messages_received, 1);
    b.most_memory = 1;
    CHECK_EQ(msg_send(a.m, "xy", 2, 0, &handle), 0);
    talk_settle();
    CHECK_EQ(msg_state(b.m), MSG_FAILED);
    CHECK(!strcmp(msg_error(b.m)->text, "there is no memory for a message"));
    talk_close();
}

static void a_raw_message_for_whoever_has_closed_is_dropped(void) {
    open_raw(&(struct how){0});
    uint64_t handle;
    CHECK_EQ(msg_send(b.m, "x", 1, 0, &handle), 0);
    msg_close(b.m, (int64_t)p.f.now, MSG_NEVER);
    CHECK_EQ(msg_send(a.m, "x", 1, 0, &handle), 0);
    fabric_settle(&p.f);
    talk_pump(&b);
    CHECK_EQ(msg_state(b.m), MSG_CLOSED);
    CHECK_EQ(b.objects, 0);
    CHECK(msg_find(b.m, MSG_ANY) == NULL);
    talk_close();
}

static void a_raw_peer_that_leaves_early_is_an_error(void) {
    open_raw(&(struct how){0});
    uint64_t handle;
    CHECK_EQ(msg_send(a.m, "x", 1, 0, &handle), 0);
    msg_disconnected(a.m, "", 0);
    CHECK_EQ(msg_error(a.m)->kind, MSG_LOST);
    CHECK_EQ(msg_undelivered(a.m), 1);
    talk_close();
    open_raw(&(struct how){0});
    CHECK_EQ(msg_send(a.m, "x", 1, 0, &handle), 0);
    msg_close(a.m, (int64_t)p.f.now, 10);
    p.f.now += 10;
    talk_pump(&a);
    CHECK_EQ(msg_error(a.m)->reason, MSG_TIMEOUT);
    talk_close();
}

/* ---------------------------------------------------------------- the end of an announced message */

#define LONG 300000

/* a's message is announced, and b's READ of it is under way; the message's bytes. */
static uint8_t *open_fetching(void) {
    struct how h = {.announce = 5000};
    talk_open_both(&h, &h);
    uint8_t *data = say(&a, LONG, 0, 1, 1);
    msg_want(b.m, true, false);
    fabric_settle(&p.f);
    talk_pump(&b);
    CHECK_EQ(b.m->operations.posted_n - b.m->operations.ended_n, 1);
    return data;
}

/* a has ended: its program has its memory again, and b hears why, whatever became of the READ. */
static void heard_during_the_fetch(uint8_t *data, uint32_t reason, const char *text) {
    char expected[256] = "the peer aborted the connection: ";
    CHECK_EQ(msg_state(a.m), MSG_ABORTING);
    CHECK_EQ(msg_undelivered(a.m), 1);
    CHECK_EQ(msg_left(a.m), 1);
    free(data);
    talk_settle();
    CHECK_EQ(msg_state(a.m), MSG_FAILED);
    CHECK(!a.m->out.first);
    CHECK(msg_failed(b.m) == NULL);
    CHECK_EQ(msg_error(b.m)->reason, reason);
    CHECK(!strcmp(msg_error(b.m)->text, strcat(expected, text)));
    if (msg_find(b.m, MSG_ANY)) /* the READ was faster */
        hear(&b, MSG_ANY, LONG, 1);
    talk_close();
}

static void an_abort_during_a_fetch_tells_why(void) {
    uint8_t *data = open_fetching();
    msg_abort(a.m, "enough");
    heard_during_the_fetch(data, MSG_APPLICATION, "enough");
    data = open_fetching();
    CHECK(!msg_take_back(a.m, 1));
    msg_abort(a.m, "too late");
    heard_during_the_fetch(data, MSG_APPLICATION, "too late");
    data = open_fetching();
    msg_close(a.m, (int64_t)p.f.now, 0);
    talk_pump(&a);
    heard_during_the_fetch(data, MSG_TIMEOUT, "the goodbyes were not said in time");
}

static uint64_t copied; /* by the owner's hook, which lets other threads run meanwhile */

static void note_copy(void *arg, void *to, const void *from, uint64_t bytes) {
    (void)arg;
    memcpy(to, from, bytes);
    copied += bytes;
}

static void the_owner_makes_the_copy_of_a_message_that_it_takes_back(void) {
    for (int aborts = 0; aborts < 2; aborts++) {
        uint8_t *data = open_fetching();
        a.m->hooks.copy = note_copy;
        copied = 0;
        if (aborts)
            msg_abort(a.m, "enough");
        else
            msg_take_back(a.m, 1);
        CHECK_EQ(copied, LONG);
        msg_abort(a.m, "enough");
        CHECK_EQ(copied, LONG);
        heard_during_the_fetch(data, MSG_APPLICATION, "enough");
    }
}

/* Without a credit the disconnect carries the ABORT: until the owner has sent that, the message stays, too. */
static void an_abort_without_a_credit_keeps_the_message_until_the_release(void) {
    uint8_t *data = open_fetching();
    a.m->credits.spent = a.m->credits.given + a.m->credits.returned;
    msg_abort(a.m, "enough");
    CHECK_EQ(msg_state(a.m), MSG_FAILED);
    CHECK_EQ(msg_left(a.m), 1);
    free(data);
    talk_settle();
    CHECK(msg_failed(b.m) == NULL);
    hear(&b, MSG_ANY, LONG, 1);
    msg_release(a.m);
    CHECK(!a.m->out.first);
    talk_close();
}

int main(void) {
    RUN(the_goodbye_comes_behind_all_that_was_sent);
    RUN(an_abort_tells_why);
    RUN(a_long_text_of_the_peer_is_cut_to_the_place_for_it);
    RUN(an_abort_that_is_under_way_ends_with_the_connection);
    RUN(whoever_closes_before_the_hello_has_failed);
    RUN(an_abort_keeps_within_its_place);
    RUN(goodbyes_that_are_not_said_in_time_abort);
    RUN(another_close_moves_the_limit);
    RUN(what_the_disconnect_says_counts);
    RUN(the_disconnect_counts_if_its_number_is_right_and_the_goodbye_is_under_way);
    RUN(the_disconnect_carries_the_abort_once_more);
    RUN(what_comes_first_establishes_the_connection);
    RUN(a_silent_peer_is_probed);
    RUN(a_probe_comes_when_the_peer_was_silent_for_so_long_and_not_before);
    RUN(a_probe_comes_at_a_tick_that_all_ends_share);
    RUN(a_peer_that_grants_no_write_is_not_probed);
    RUN(lost_work_ends_the_connection_with_what_failed);
    RUN(what_the_peer_has_perhaps_not_received_is_counted);
    RUN(what_is_no_message_is_not_counted_as_one);
    RUN(a_credit_has_the_bytes_of_the_protocol);
    RUN(a_probe_returns_no_credits);
    RUN(an_overrun_queue_is_told);
    RUN(what_came_counts_before_a_queue_that_is_overrun);
    RUN(what_was_polled_waits_to_be_handled);
    RUN(the_failure_that_says_why_counts_not_what_was_flushed);
    RUN(a_send_that_cannot_be_posted_ends_the_connection);
    RUN(after_the_end_no_receives_are_posted);
    RUN(operations_wait_for_the_handshake_and_not_for_an_abort);
    RUN(a_credit_is_owed_when_half_of_the_receives_are);
    RUN(what_is_given_back_holds_nothing_but_messages);
    RUN(the_first_send_is_the_hello);
    RUN(a_hello_that_is_lost_is_repeated_with_its_bytes);
    RUN(the_hello_of_the_peer_establishes_the_connection);
    RUN(the_last_word_stands_for_an_acknowledgement);
    RUN(who_has_the_last_word_says_none);
    RUN(the_last_word_is_said_once_and_waited_for);
    RUN(whoever_has_not_said_the_last_word_stays_unless_work_has_failed);
    RUN(whoever_needs_no_last_word_leaves_when_both_have_closed);
    RUN(a_peer_that_says_no_hello_is_probed);
    RUN(a_probe_for_a_hello_that_cannot_be_posted_ends_the_connection);
    RUN(a_raw_message_is_one_send);
    RUN(a_raw_peer_waits_for_receives);
    RUN(a_raw_peer_is_told_nothing_but_messages);
    RUN(a_raw_message_that_is_put_back_takes_no_receive_back);
    RUN(a_raw_message_without_memory_for_it_is_lost);
    RUN(a_raw_message_for_whoever_has_closed_is_dropped);
    RUN(a_raw_peer_that_leaves_early_is_an_error);
    RUN(an_abort_during_a_fetch_tells_why);
    RUN(the_owner_makes_the_copy_of_a_message_that_it_takes_back);
    RUN(an_abort_without_a_credit_keeps_the_message_until_the_release);
    return check_done();
}
