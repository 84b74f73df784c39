/* SPDX-License-Identifier: Apache-2.0
 *
 * How a connection of src/msg begins and ends: goodbye, abort, loss, silence, time; hellos in band; peers without one.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "talk.h"

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
    CHECK_EQ(msg_state(a.m), MSG_FAILED);
    CHECK_EQ(msg_state(b.m), MSG_FAILED);
    CHECK_EQ(msg_error(b.m)->kind, MSG_ABORTED);
    CHECK_EQ(msg_error(b.m)->reason, MSG_APPLICATION);
    CHECK(!strcmp(msg_error(b.m)->text, "the peer aborted the connection: enough"));
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
    msg_lost(a.m, "the cable was cut");
    CHECK_EQ(msg_undelivered(a.m), 5);
    CHECK_EQ(msg_left(a.m), 5); /* all memory is the program's again */
    for (int i = 0; i < 5; i++)
        free(data[i]);
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

/* ---------------------------------------------------------------- in band */

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
        pass_time();
    }
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
    RUN(an_abort_keeps_within_its_place);
    RUN(goodbyes_that_are_not_said_in_time_abort);
    RUN(another_close_moves_the_limit);
    RUN(what_the_disconnect_says_counts);
    RUN(what_comes_first_establishes_the_connection);
    RUN(a_silent_peer_is_probed);
    RUN(a_probe_comes_when_the_peer_was_silent_for_so_long_and_not_before);
    RUN(a_peer_that_grants_no_write_is_not_probed);
    RUN(lost_work_ends_the_connection_with_what_failed);
    RUN(what_the_peer_has_perhaps_not_received_is_counted);
    RUN(an_overrun_queue_is_told);
    RUN(the_first_send_is_the_hello);
    RUN(the_last_word_stands_for_an_acknowledgement);
    RUN(who_has_the_last_word_says_none);
    RUN(a_peer_that_says_no_hello_is_probed);
    RUN(a_raw_message_is_one_send);
    RUN(a_raw_peer_waits_for_receives);
    RUN(a_raw_peer_is_told_nothing_but_messages);
    RUN(a_raw_message_that_is_put_back_takes_no_receive_back);
    RUN(a_raw_peer_that_leaves_early_is_an_error);
    RUN(an_abort_during_a_fetch_tells_why);
    RUN(the_owner_makes_the_copy_of_a_message_that_it_takes_back);
    RUN(an_abort_without_a_credit_keeps_the_message_until_the_release);
    return check_done();
}
