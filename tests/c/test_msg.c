/* SPDX-License-Identifier: Apache-2.0
 *
 * Two ends of src/msg over a fabric on virtual time: what arrives is what was sent, whatever is lost, late, cancelled or
 * asked for by its tag, and however few receives and bytes there are.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "check.h"
#include "talk.h"

/* ---------------------------------------------------------------- messages */

static void a_message_of_any_length_arrives(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    const uint64_t sizes[] = {0, 1, 7, 1007, 1008, 1009, 2024, 2025, 4096, 30000, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        check_note("%llu bytes", (unsigned long long)sizes[i]);
        uint64_t handle;
        uint8_t *data = bytes_of(sizes[i], i);
        int rc = msg_send(a.m, data, sizes[i], i % 3, &handle);
        CHECK(rc == 0 || (rc == 1 && sizes[i] > 1008));
        msg_want(b.m, true, false);
        talk_settle();
        CHECK_EQ(msg_left(a.m), i + 1);
        free(data);
        hear(&b, MSG_ANY, sizes[i], i);
    }
    talk_goodbye();
    talk_close();
}

static void a_message_that_nobody_wants_waits_at_its_sender(void) {
    talk_open_both(&(struct how){0}, &(struct how){.backlog = 4000});
    uint8_t *data[20];
    for (int i = 0; i < 20; i++) {
        uint64_t handle;
        data[i] = bytes_of(1000, (uint64_t)i);
        CHECK(msg_send(a.m, data[i], 1000, 0, &handle) >= 0);
        talk_settle();
    }
    struct msg_statistics s;
    msg_count(b.m, &s);
    CHECK(s.backlog < 4000 + 9 * 1064 && s.held > 0); /* beyond the backlog only what fits the receives */
    CHECK(msg_left(a.m) < 20);
    for (int i = 0; i < 20; i++) {
        hear(&b, MSG_ANY, 1000, (uint64_t)i);
        talk_settle();
    }
    CHECK_EQ(msg_left(a.m), 20);
    for (int i = 0; i < 20; i++)
        free(data[i]);
    talk_goodbye();
    talk_close();
}

static void whoever_takes_makes_room_at_once(void) {
    talk_open_both(&(struct how){0}, &(struct how){.backlog = 4000});
    uint64_t handle;
    static const uint8_t data[1000];
    for (int i = 0; i < 60; i++)
        CHECK(msg_send(a.m, data, 1000, 0, &handle) >= 0);
    talk_settle();
    CHECK(msg_left(a.m) < 14);
    while (msg_find(b.m, MSG_ANY)) { /* b is not pumped: its program does something else */
        struct msg_in *in = msg_find(b.m, MSG_ANY);
        msg_take(b.m, in);
        msg_drop(b.m, in);
        fabric_settle(&p.f);
    }
    for (int i = 0; i < 3; i++) {
        talk_pump(&a);
        fabric_settle(&p.f);
    }
    CHECK(msg_left(a.m) > 13);
    talk_close();
}

static void a_tag_finds_its_message_behind_others(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    for (uint64_t i = 0; i < 5; i++)
        free(say(&a, 100 + i, i, i, 0));
    talk_settle();
    const uint64_t order[] = {3, 1, 4, 0, 2};
    for (int i = 0; i < 5; i++)
        hear(&b, &order[i], 100 + order[i], order[i]);
    CHECK(msg_find(b.m, MSG_ANY) == NULL);
    talk_close();
}

static void what_a_call_asks_for_comes_although_the_backlog_is_full(void) {
    talk_open_both(&(struct how){0}, &(struct how){.backlog = 500});
    const uint64_t tag = 9;
    free(say(&a, 600, 1, 1, 0));
    uint8_t *data = say(&a, 20000, tag, 2, 1);
    talk_settle();
    CHECK(msg_left(a.m) < 2);
    b.asked = &tag;
    msg_want(b.m, false, true);
    talk_settle();
    CHECK_EQ(msg_left(a.m), 2);
    hear(&b, &tag, 20000, 2);
    hear(&b, MSG_ANY, 600, 1);
    free(data);
    talk_close();
}

static void messages_cross_with_the_fewest_receives(void) {
    struct how few = {.receives = 3, .receive_size = 64, .send_size = 64, .backlog = 1 << 20};
    talk_open_both(&few, &few);
    uint8_t *one = say(&a, 5000, 0, 1, 1), *two = say(&b, 7000, 5, 2, 1);
    talk_settle();
    hear(&b, MSG_ANY, 5000, 1);
    hear(&a, MSG_ANY, 7000, 2);
    free(one);
    free(two);
    talk_goodbye();
    talk_close();
}

static void what_needs_one_piece_more_than_there_are_credits_is_queued(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    for (uint64_t i = 0; i < 6; i++)
        free(say(&a, 10, 0, i, 0));
    uint8_t *data = say(&a, 1009, 0, 6, 1); /* two pieces; of two credits one is kept */
    talk_settle();
    CHECK_EQ(msg_left(a.m), 7);
    free(data);
    for (uint64_t i = 0; i < 7; i++)
        hear(&b, MSG_ANY, i < 6 ? 10 : 1009, i);
    talk_goodbye();
    talk_close();
}

static void too_long_a_message_is_not_sent(void) {
    talk_open_both(&(struct how){0}, &(struct how){.max_message = 100});
    uint64_t handle;
    uint8_t data[101] = {0};
    CHECK_EQ(msg_send(a.m, data, 101, 0, &handle), -EMSGSIZE);
    CHECK_EQ(msg_send(a.m, data, 100, 0, &handle), 0);
    talk_close();
}

static void a_peer_of_version_1_gets_no_tags(void) {
    struct how old = {.version = 1, .announce = 100};
    talk_open_both(&old, &old);
    uint64_t handle;
    uint8_t data[200];
    fill(data, sizeof data, 1);
    CHECK_EQ(msg_send(a.m, data, 200, 1, &handle), -EOPNOTSUPP);
    CHECK_EQ(msg_send(a.m, data, 200, 0, &handle), 0);
    talk_settle();
    hear(&b, MSG_ANY, 200, 1);
    talk_close();
}

/* The bits of docs/endpoint-protocol.md: 1 ANNOUNCE, 2 TAG, 4 STOP, 8 DESCRIBE. */
static void a_peer_gets_what_its_capabilities_name_and_nothing_else(void) {
    uint8_t array[] = {0, 3, 0, 0, 0, 0, 0, 0, '<', 'f', '4'};
    for (uint32_t knows = 1; knows <= 8; knows *= 2) {
        check_note("capability %u", knows);
        struct how h = {.capabilities = knows, .announce = 5000, .backlog = 1};
        talk_open_both(&h, &h);
        uint64_t handle;
        struct msg_region r = {
            .access = RNIC_ACCESS_REMOTE_READ, .length = 4, .array = array, .array_bytes = sizeof array};
        CHECK_EQ(msg_share(a.m, &r), 0);
        talk_settle();
        CHECK_EQ(b.m->theirs.known[0].array != NULL, knows == 8);
        CHECK_EQ(msg_send(a.m, "x", 1, 9, &handle), knows == 2 ? 0 : -EOPNOTSUPP);
        uint8_t *one = say(&a, 9000, 0, 1, 1);
        talk_settle();
        CHECK_EQ(msg_offered(b.m), knows == 1 ? 9000 : 0);
        CHECK_EQ(msg_take_back(a.m, msg_handle(a.m)), knows != 4);
        free(one);
        talk_close();
    }
}

static void statistics_count(void) {
    struct msg_statistics s;
    talk_open_both(&(struct how){.receives = 16}, &(struct how){.receives = 16});
    for (uint64_t i = 0; i < 40; i++) {
        free(say(&a, 10, 0, i, 0));
        talk_settle();
        hear(&b, MSG_ANY, 10, i);
    }
    CHECK_EQ(a.signaled, 5); /* one in half a window of 16 */
    msg_count(a.m, &s);
    CHECK_EQ(s.sends, 40);
    CHECK_EQ(s.messages_sent, 40);
    CHECK_EQ(s.receives, 5); /* credits, 8 at a time */
    CHECK_EQ(s.messages_received, 0);
    CHECK_EQ(s.credits, 16);
    CHECK_EQ(s.queued, 0);
    msg_count(b.m, &s);
    CHECK_EQ(s.messages_sent, 0);
    CHECK_EQ(s.messages_received, 40);
    CHECK_EQ(s.receives, 40);
    CHECK_EQ(s.credit_sends, 5);
    CHECK_EQ(s.backlog, 0);
    CHECK_EQ(s.held, 0);
    CHECK_EQ(s.probes, 0);
    talk_close();
}

static void a_completion_stands_for_half_a_window(void) {
    static const uint32_t windows[][2] = {{3, 2}, {7, 4}, {8, 4}, {32, 16}, {64, 16}};
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        struct how h = {.receives = windows[i][0], .send_size = 64, .receive_size = 64};
        talk_open_both(&h, &h);
        for (uint32_t sent = 1; sent <= 3 * windows[i][1]; sent++) {
            free(say(&a, 10, 0, 1, 0));
            talk_settle();
            CHECK_EQ(a.signaled, sent / windows[i][1]);
            hear(&b, MSG_ANY, 10, 1);
            talk_settle();
        }
        talk_close();
    }
}

static void a_message_that_was_taken_is_put_back_ahead_of_others(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    for (uint64_t i = 0; i < 3; i++)
        free(say(&a, 100 + i, i, i, 0));
    talk_settle();
    struct msg_in *in = msg_find(b.m, MSG_ANY);
    uint8_t *data = in->data;
    void *object = in->object;
    msg_take(b.m, in);
    in->object = NULL;
    msg_drop(b.m, in);
    CHECK_EQ(msg_put_back(b.m, data, 100, 0, object), 0);
    for (uint64_t i = 0; i < 3; i++)
        hear(&b, MSG_ANY, 100 + i, i);
    CHECK_EQ(msg_put_back(b.m, data, 0, 0, NULL), 0);
    hear(&b, MSG_ANY, 0, 0);
    talk_close();
}

static void a_message_that_is_put_back_counts_and_others_come_behind_it(void) {
    struct msg_statistics s;
    talk_open_both(&(struct how){0}, &(struct how){0});
    free(say(&a, 100, 5, 1, 0));
    talk_settle();
    struct msg_in *in = msg_find(b.m, MSG_ANY), taken = *in;
    msg_take(b.m, in);
    in->object = NULL;
    msg_drop(b.m, in);
    msg_count(b.m, &s);
    CHECK_EQ(s.backlog, 0);
    CHECK_EQ(msg_put_back(b.m, taken.data, 100, 5, taken.object), 0);
    msg_count(b.m, &s);
    CHECK_EQ(s.backlog, EVENT_WEIGHT + 100);
    free(say(&a, 50, 6, 2, 0));
    talk_settle();
    CHECK_EQ(msg_find(b.m, MSG_ANY)->tag, 5);
    hear(&b, MSG_ANY, 100, 1);
    hear(&b, MSG_ANY, 50, 2);
    msg_count(b.m, &s);
    CHECK(s.backlog == 0 && b.m->in.n == 0);
    talk_close();
}

/* ---------------------------------------------------------------- how much comes in */

static uint64_t held(void) {
    struct msg_statistics s;
    msg_count(b.m, &s);
    return s.held;
}

static void the_backlog_is_full_to_the_byte(void) {
    for (uint64_t more = 0; more < 2; more++) {
        talk_open_both(&(struct how){0}, &(struct how){.backlog = EVENT_WEIGHT + 100 + more});
        free(say(&a, 100, 0, 1, 0));
        talk_settle();
        CHECK_EQ(held(), 1 - more);
        talk_close();
    }
}

static void a_call_that_wants_nothing_makes_no_room(void) {
    talk_open_both(&(struct how){0}, &(struct how){.backlog = 100});
    free(say(&a, 100, 0, 1, 0));
    free(say(&a, 100, 0, 2, 0));
    talk_settle();
    CHECK_EQ(held(), 2);
    msg_want(b.m, false, false);
    CHECK_EQ(held(), 2);
    msg_want(b.m, true, false); /* there is one already */
    CHECK_EQ(held(), 2);
    hear(&b, MSG_ANY, 100, 1);
    CHECK_EQ(held(), 2);
    hear(&b, MSG_ANY, 100, 2);
    CHECK_EQ(held(), 0);
    talk_close();
}

static void whoever_asks_for_another_tag_makes_no_room(void) {
    const uint64_t tag = 9, other = 8;
    for (uint64_t announce = 0; announce <= 5000; announce += 5000) {
        talk_open_both(&(struct how){.announce = announce}, &(struct how){.backlog = 500});
        free(say(&a, 600, 1, 1, 0));
        uint8_t *data = say(&a, 20000, tag, 2, 1);
        b.asked = &other;
        msg_want(b.m, false, true);
        talk_settle();
        CHECK_EQ(msg_left(a.m), 1);
        CHECK(msg_find(b.m, &tag) == NULL);
        b.asked = &tag;
        msg_want(b.m, false, false); /* of which msg_want() does not say that it waits */
        talk_settle();
        CHECK_EQ(msg_left(a.m), 1);
        CHECK(msg_find(b.m, &tag) == NULL);
        msg_want(b.m, false, true);
        talk_settle();
        CHECK_EQ(msg_left(a.m), 2);
        hear(&b, &tag, 20000, 2);
        free(data);
        talk_close();
    }
}

static void memory_grows_with_the_bytes_that_have_come(void) {
    const uint64_t at_once = 9 * 1024; /* bytes of all receives */
    static const uint64_t sizes[] = {100, 9 * 1024 - 1, 9 * 1024, 9 * 1024 + 1, 27000, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        check_note("%llu bytes", (unsigned long long)sizes[i]);
        talk_open_both(&(struct how){0}, &(struct how){0});
        uint64_t handle;
        uint8_t *one = bytes_of(sizes[i], 1);
        CHECK(msg_send(a.m, one, sizes[i], 0, &handle) >= 0);
        msg_want(b.m, true, false);
        while (!msg_find(b.m, MSG_ANY)) {
            CHECK(fabric_step(&p.f, NEVER));
            talk_pump(&b);
            talk_pump(&a);
            if (!b.m->in.partial)
                continue;
            uint64_t most = b.m->in.there <= at_once ? at_once : 2 * b.m->in.there;
            CHECK(b.room <= (most < sizes[i] ? most : sizes[i]));
        }
        CHECK_EQ(b.room, sizes[i]);
        CHECK(sizes[i] <= at_once ? b.grown == 0 : b.grown > 0);
        CHECK(b.grown < 8); /* and not with each fragment */
        hear(&b, MSG_ANY, sizes[i], 1);
        talk_settle();
        free(one);
        talk_close();
    }
}

static void whoever_closes_returns_the_receives_of_a_message_that_has_begun(void) {
    talk_open_both(&(struct how){0}, &(struct how){.backlog = 1});
    uint8_t *one = say(&a, 9000, 0, 1, 1);
    talk_settle();
    CHECK(b.m->in.partial && !b.m->in.first && held() > 0);
    msg_close(b.m, (int64_t)p.f.now, MSG_NEVER);
    CHECK_EQ(held(), 0);
    talk_settle();
    CHECK_EQ(msg_left(a.m), 1);
    free(one);
    talk_close();
}

static void whoever_closes_drops_all_that_has_come(void) {
    struct msg_statistics s;
    for (uint64_t announce = 0; announce <= 5000; announce += 5000) {
        talk_open_both(&(struct how){.announce = announce}, &(struct how){.backlog = 1000});
        for (uint64_t i = 0; i < 3; i++)
            free(say(&a, 100, 0, i, 0));
        uint8_t *one = say(&a, 20000, 0, 3, 1);
        talk_settle();
        CHECK(announce ? b.m->in.offered : b.m->in.partial);
        CHECK_EQ(b.objects, announce ? 3 : 4);
        msg_close(b.m, (int64_t)p.f.now, MSG_NEVER);
        CHECK_EQ(b.objects, 0);
        CHECK(msg_find(b.m, MSG_ANY) == NULL);
        msg_count(b.m, &s);
        CHECK(s.backlog == 0 && s.held == 0);
        talk_settle();
        CHECK_EQ(msg_left(a.m), 4);
        CHECK_EQ(b.m->operations.posted_n, 0);
        CHECK_EQ(b.objects, 0);
        CHECK(msg_find(b.m, MSG_ANY) == NULL);
        free(one);
        talk_close();
    }
}

/* ---------------------------------------------------------------- cancelled messages */

static void a_message_that_has_not_begun_is_taken_back(void) {
    talk_open_both(&(struct how){0}, &(struct how){.backlog = 1});
    uint8_t *one = say(&a, 9000, 0, 1, 1), *two = say(&a, 10, 0, 2, 1);
    msg_take_back(a.m, 2);
    CHECK_EQ(msg_left(a.m), 0);
    free(two);
    msg_want(b.m, true, false);
    talk_settle();
    hear(&b, MSG_ANY, 9000, 1);
    CHECK(msg_find(b.m, MSG_ANY) == NULL);
    free(one);
    talk_goodbye();
    talk_close();
}

static void a_message_that_has_begun_is_stopped(void) {
    talk_open_both(&(struct how){0}, &(struct how){.backlog = 1});
    uint8_t *one = say(&a, 9000, 0, 1, 1);
    talk_settle();
    CHECK(b.m->in.partial);
    struct msg_statistics s;
    msg_count(a.m, &s);
    CHECK_EQ(s.queued, 9000 - b.m->in.there);
    CHECK(!msg_take_back(a.m, 1));
    msg_count(a.m, &s);
    CHECK_EQ(s.queued, 0);
    CHECK_EQ(msg_left(a.m), 1);
    free(one);
    msg_want(b.m, true, false);
    talk_settle();
    CHECK_EQ(b.m->in.stopped, 1);
    CHECK_EQ(b.objects, 0);
    msg_count(b.m, &s);
    CHECK(s.partial == 0 && s.messages_received == 0);
    uint8_t *two = say(&a, 10, 0, 2, 0);
    talk_settle();
    CHECK_EQ(msg_left(a.m), 2);
    hear(&b, MSG_ANY, 10, 2);
    free(two);
    talk_goodbye();
    talk_close();
}

static void a_peer_that_knows_no_stop_gets_the_rest_from_a_copy(void) {
    struct how old = {.version = 1, .backlog = 1};
    talk_open_both(&old, &old);
    uint8_t *one = say(&a, 9000, 0, 1, 1);
    talk_settle();
    CHECK(msg_take_back(a.m, 1));
    CHECK_EQ(msg_left(a.m), 1);
    memset(one, 0, 9000);
    free(one);
    msg_want(b.m, true, false);
    talk_settle();
    hear(&b, MSG_ANY, 9000, 1);
    talk_goodbye();
    talk_close();
}

/* ---------------------------------------------------------------- announced messages */

static void a_long_message_is_read_from_where_it_lies(void) {
    struct how h = {.announce = 5000};
    talk_open_both(&h, &h);
    uint8_t *one = say(&a, 300000, 7, 1, 1);
    talk_settle();
    CHECK_EQ(msg_offered(b.m), 300000);
    CHECK_EQ(msg_left(a.m), 0);
    msg_want(b.m, true, false);
    talk_settle();
    hear(&b, MSG_ANY, 300000, 1);
    CHECK_EQ(msg_left(a.m), 1);
    free(one);
    talk_goodbye();
    talk_close();
}

static void an_announced_message_lands_in_the_memory_that_waits_for_it(void) {
    struct how h = {.announce = 5000};
    talk_open_both(&h, &h);
    uint8_t *one = say(&a, 6000, 0, 1, 1), *room = malloc(6000);
    msg_target(b.m, room, 6000);
    msg_want(b.m, true, false);
    talk_settle();
    struct msg_in *in = msg_find(b.m, MSG_ANY);
    CHECK(in && in->data == room && !in->object && filled(room, 6000, 1));
    msg_target(b.m, NULL, 0); /* the call has ended without it */
    memset(room, 0, 6000);
    free(room);
    hear(&b, MSG_ANY, 6000, 1);
    free(one);
    talk_close();
}

static void a_message_that_was_taken_keeps_its_memory_from_the_next(void) {
    talk_open_both(&(struct how){.announce = 5000}, &(struct how){.backlog = 5000});
    uint8_t *one = say(&a, 6000, 0, 1, 1), *two = say(&a, 6000, 0, 2, 1), *room = malloc(6000);
    msg_target(b.m, room, 6000);
    msg_want(b.m, true, false);
    talk_settle();
    struct msg_in *in = msg_find(b.m, MSG_ANY);
    CHECK(in && in->data == room);
    CHECK(b.m->in.first == b.m->in.last); /* the next has not come */
    msg_take(b.m, in);
    talk_settle();
    CHECK(filled(room, 6000, 1));
    msg_drop(b.m, in);
    hear(&b, MSG_ANY, 6000, 2);
    free(one);
    free(two);
    free(room);
    talk_close();
}

static void a_message_that_was_taken_from_other_memory_leaves_the_named_memory_named(void) {
    struct how h = {.announce = 5000};
    talk_open_both(&h, &h);
    uint8_t *room = malloc(6000);
    free(say(&a, 100, 0, 1, 0));
    talk_settle();
    msg_target(b.m, room, 6000);
    hear(&b, MSG_ANY, 100, 1);
    uint8_t *one = say(&a, 6000, 0, 2, 1);
    talk_settle();
    CHECK(msg_find(b.m, MSG_ANY)->data == room);
    hear(&b, MSG_ANY, 6000, 2);
    free(one);
    free(room);
    talk_close();
}

static void memory_that_is_withdrawn_meanwhile_is_not_what_the_program_gets(void) {
    struct how h = {.announce = 5000};
    talk_open_both(&h, &h);
    uint8_t *one = say(&a, 60000, 0, 1, 1), *room = malloc(60000);
    msg_target(b.m, room, 60000);
    msg_want(b.m, true, false);
    while (!msg_is_landing(b.m)) {
        talk_pump(&a);
        talk_pump(&b);
        CHECK(fabric_step(&p.f, NEVER) || msg_is_landing(b.m));
    }
    msg_target(b.m, NULL, 0);
    talk_settle();
    CHECK(!msg_is_landing(b.m));
    free(room);
    hear(&b, MSG_ANY, 60000, 1);
    free(one);
    talk_close();
}

static void other_memory_takes_the_place_of_the_first(void) {
    struct how h = {.announce = 5000};
    talk_open_both(&h, &h);
    uint8_t *one = say(&a, 60000, 0, 1, 1), *room = malloc(60000), *other = malloc(60000);
    msg_target(b.m, room, 60000);
    msg_want(b.m, true, false);
    while (!msg_is_landing(b.m)) {
        talk_pump(&a);
        talk_pump(&b);
        fabric_step(&p.f, NEVER);
    }
    msg_target(b.m, other, 60000);
    talk_settle();
    free(room);
    struct msg_in *in = msg_find(b.m, MSG_ANY);
    CHECK(in && in->data != room && filled(in->data, 60000, 1));
    msg_target(b.m, NULL, 0);
    free(other);
    hear(&b, MSG_ANY, 60000, 1);
    free(one);
    talk_close();
}

static void too_small_a_memory_leaves_the_message_with_its_sender(void) {
    struct how h = {.announce = 5000};
    talk_open_both(&h, &h);
    uint8_t *one = say(&a, 6000, 0, 1, 1), room[100];
    msg_target(b.m, room, sizeof room);
    msg_want(b.m, true, false);
    talk_settle();
    CHECK_EQ(msg_offered(b.m), 6000);
    CHECK(msg_find(b.m, MSG_ANY) == NULL);
    msg_target(b.m, NULL, 0);
    talk_settle();
    hear(&b, MSG_ANY, 6000, 1);
    free(one);
    talk_close();
}

static void a_message_of_so_many_bytes_is_announced_and_counts_when_it_was_taken(void) {
    struct msg_statistics s;
    talk_open_both(&(struct how){.announce = 5000}, &(struct how){.backlog = 1000});
    uint8_t *one = say(&a, 5000, 0, 1, 1);
    talk_settle();
    CHECK_EQ(msg_offered(b.m), 5000);
    CHECK(msg_is_sending(a.m));
    msg_count(a.m, &s);
    CHECK_EQ(s.messages_sent, 0);
    CHECK_EQ(s.queued, 5000);
    msg_want(b.m, true, false);
    talk_settle();
    hear(&b, MSG_ANY, 5000, 1);
    free(one);
    msg_count(a.m, &s);
    CHECK_EQ(s.messages_sent, 1);
    CHECK_EQ(s.queued, 0);
    one = say(&a, 4999, 0, 2, 0);
    talk_settle();
    hear(&b, MSG_ANY, 4999, 2);
    free(one);
    msg_want(b.m, false, false);
    one = say(&a, 6000, 0, 3, 1);
    talk_settle();
    msg_take_back(a.m, 3);
    free(one);
    talk_settle();
    msg_count(a.m, &s);
    CHECK_EQ(s.messages_sent, 2); /* of which none was taken back */
    talk_close();
}

/* SENDs of `size` bytes that a message of n bytes takes. */
static uint64_t sends_of(uint64_t n, uint64_t size) {
    uint64_t sends = 1;
    for (uint64_t there = size - FRAME_HEADER - FRAME_TOTAL; there < n; there += size - FRAME_HEADER)
        sends++;
    return sends;
}

static void a_message_that_cannot_go_at_once_is_remembered(void) {
    const struct how h = {.receives = 16, .receive_size = 64, .send_size = 64};
    for (uint64_t n = 0; n < 1200; n += n % 8 ? 1 : 7) {
        check_note("%llu bytes", (unsigned long long)n);
        talk_open_both(&h, &h);
        uint64_t sends = sends_of(n, 64);
        uint8_t *data = say(&a, n, 0, 1, sends > 15);
        CHECK_EQ(a.m->out.handed_out, sends > 15 ? 15 : sends);
        CHECK(sends > 15 ? a.m->out.first && !a.m->out.first->on_stack : !a.m->out.first);
        talk_settle();
        hear(&b, MSG_ANY, n, 1);
        free(data);
        talk_close();
    }
}

static void an_announced_message_is_taken_back(void) {
    struct how h = {.announce = 5000, .backlog = 1000};
    talk_open_both(&h, &h);
    uint8_t *one = say(&a, 6000, 0, 1, 1);
    talk_settle();
    CHECK_EQ(msg_offered(b.m), 6000);
    msg_take_back(a.m, 1);
    CHECK_EQ(msg_left(a.m), 1);
    free(one);
    talk_settle();
    CHECK_EQ(msg_offered(b.m), 0);
    CHECK_EQ(a.m->out.handed_out, 2); /* ANNOUNCE, STOP */
    free(say(&a, 10, 0, 2, 0));
    talk_settle();
    hear(&b, MSG_ANY, 10, 2);
    talk_goodbye();
    talk_close();
}

static void a_read_that_cannot_be_posted_is_told_once_and_tried_again(void) {
    struct how h = {.announce = 5000};
    talk_open_both(&h, &h);
    uint8_t *one = say(&a, 6000, 0, 1, 1);
    b.refused = 1;
    msg_want(b.m, true, false);
    talk_settle();
    CHECK_EQ(msg_fetch_error(b.m), -ENOMEM);
    CHECK_EQ(msg_fetch_error(b.m), 0);
    talk_settle();
    hear(&b, MSG_ANY, 6000, 1);
    free(one);
    talk_close();
}

static void whoever_has_closed_takes_an_announced_message_without_reading_it(void) {
    struct how h = {.announce = 5000, .backlog = 1000};
    talk_open_both(&h, &h);
    msg_close(b.m, (int64_t)p.f.now, MSG_NEVER);
    talk_settle();
    uint8_t *one = say(&a, 6000, 0, 1, 1);
    talk_settle();
    CHECK_EQ(msg_left(a.m), 1);
    CHECK_EQ(b.m->operations.posted_n, 0);
    free(one);
    msg_close(a.m, (int64_t)p.f.now, MSG_NEVER);
    talk_settle();
    CHECK_EQ(msg_state(b.m), MSG_CLOSED);
    talk_close();
}

static void memory_that_cannot_be_deregistered_is_the_owners(void) {
    struct how h = {.announce = 5000};
    talk_open_both(&h, &h);
    uint8_t *one = say(&a, 6000, 0, 1, 1);
    a.kept = 1;
    talk_settle();
    hear(&b, MSG_ANY, 6000, 1);
    CHECK(a.late && a.late->addr == one);
    fabric_drop_mr(a.end->node, (struct mr *)a.late);
    free(one);
    talk_close();
}

static void without_memory_to_register_a_long_message_goes_in_pieces(void) {
    struct how h = {.announce = 5000};
    talk_open_both(&h, &h);
    a.refused = 1;
    msg_want(b.m, true, false);
    free(say(&a, 6000, 0, 1, 0));
    talk_settle();
    hear(&b, MSG_ANY, 6000, 1);
    talk_close();
}

static void a_message_that_is_taken_back_twice_is_taken_back_once(void) {
    for (int version = 1; version <= 2; version++) {
        for (uint64_t announce = 0; announce <= 5000; announce += 5000) {
            struct how h = {.version = version, .announce = announce, .backlog = 1};
            talk_open_both(&h, &h);
            uint8_t *one = say(&a, 9000, 0, 1, 1);
            talk_settle();
            CHECK_EQ(msg_take_back(a.m, 1), version == 1); /* it goes on from a copy, or is stopped */
            free(one);
            CHECK_EQ(msg_take_back(a.m, 1), version == 1);
            CHECK(!msg_take_back(a.m, 2)); /* there is none */
            msg_want(b.m, version == 1 || !announce, false);
            talk_settle();
            CHECK_EQ(b.m->in.stopped, version == 2);
            CHECK(!msg_take_back(a.m, 1)); /* it has left */
            if (version == 1)
                hear(&b, MSG_ANY, 9000, 1);
            CHECK(msg_find(b.m, MSG_ANY) == NULL);
            CHECK_EQ(a.regions, 0);
            talk_goodbye();
            talk_close();
        }
    }
}

static void memory_whose_key_cannot_be_moved_is_deregistered_at_once(void) {
    talk_open_both(&(struct how){.announce = 5000}, &(struct how){.backlog = 1});
    uint8_t *one = say(&a, 9000, 0, 1, 1);
    talk_settle();
    a.fixed = 1;
    CHECK_EQ(a.regions, 1);
    CHECK(!msg_take_back(a.m, 1));
    CHECK_EQ(a.regions, 0);
    free(one);
    talk_settle();
    CHECK_EQ(msg_left(a.m), 1);
    CHECK_EQ(b.m->in.stopped, 1);
    talk_goodbye();
    talk_close();
}

static void a_message_is_taken_back_from_between_two_others(void) {
    talk_open_both(&(struct how){0}, &(struct how){.backlog = 1});
    uint8_t *data[5];
    for (uint64_t i = 0; i < 4; i++)
        data[i] = say(&a, i ? 10 : 9000, 0, i, 1);
    CHECK(!msg_take_back(a.m, 3)); /* from the middle, */
    CHECK(!msg_take_back(a.m, 4)); /* and from the end */
    free(data[2]);
    free(data[3]);
    data[4] = say(&a, 20, 0, 4, 1);
    CHECK_EQ(msg_left(a.m), 0);
    for (uint64_t i = 0; i < 5; i++) {
        if (i == 2 || i == 3)
            continue;
        msg_want(b.m, true, false);
        talk_settle();
        hear(&b, MSG_ANY, i == 0 ? 9000 : i == 4 ? 20 : 10, i);
        free(data[i]);
    }
    CHECK_EQ(msg_left(a.m), 5);
    CHECK(!msg_is_sending(a.m) || a.m->out.first == NULL);
    talk_goodbye();
    talk_close();
}

/* Until b READs the announced message. */
static void begin_read(void) {
    while (!b.m->in.fetching) {
        talk_pump(&a);
        talk_pump(&b);
        CHECK(fabric_step(&p.f, NEVER) || b.m->in.fetching);
    }
}

static void nothing_is_read_unless_it_was_announced(void) {
    talk_open_both(&(struct how){.announce = 5000}, &(struct how){0});
    msg_want(b.m, true, false);
    CHECK_EQ(talk_pump(&b), 0);
    CHECK_EQ(b.m->operations.posted_n, 0);
    CHECK_EQ(b.objects, 0);
    CHECK(!msg_is_landing(b.m));
    talk_close();
}

static void an_announced_message_comes_unasked_if_it_is_shorter_than_the_backlog(void) {
    for (uint64_t more = 0; more < 2; more++) {
        talk_open_both(&(struct how){.announce = 5000}, &(struct how){.backlog = 6000 + more});
        uint8_t *one = say(&a, 6000, 0, 1, 1);
        talk_settle();
        CHECK_EQ(msg_offered(b.m), more ? 0 : 6000);
        CHECK_EQ(msg_find(b.m, MSG_ANY) != NULL, more);
        free(one);
        talk_close();
    }
}

static void a_message_that_is_being_read_is_not_stopped(void) {
    talk_open_both(&(struct how){.announce = 5000}, &(struct how){0});
    uint8_t *one = say(&a, 60000, 0, 1, 1);
    begin_read();
    CHECK_EQ(talk_pump(&b), 0);  /* nothing is left to be done until it completes */
    CHECK(!msg_is_landing(b.m)); /* it goes to memory of the machine's */
    CHECK(!msg_take_back(a.m, 1));
    memset(one, 0, 60000);
    free(one);
    talk_settle();
    CHECK_EQ(b.m->in.stopped, 0);
    hear(&b, MSG_ANY, 60000, 1);
    talk_goodbye();
    talk_close();
}

static void memory_that_comes_late_leaves_a_read_where_it_is(void) {
    talk_open_both(&(struct how){.announce = 5000}, &(struct how){0});
    uint8_t *one = say(&a, 60000, 0, 1, 1), room[10];
    begin_read();
    msg_target(b.m, room, sizeof room);
    talk_settle();
    CHECK_EQ(b.m->operations.posted_n, 1);
    hear(&b, MSG_ANY, 60000, 1);
    free(one);
    talk_close();
}

#define PIECE (1ull << 24) /* bytes of a READ, at most */

static void a_message_longer_than_a_read_comes_in_pieces(void) {
    static const uint64_t sizes[] = {PIECE, PIECE + 5000};
    for (uint64_t i = 0; i < 2; i++) {
        struct how h = {.announce = 5000, .max_message = 1 << 30};
        talk_open_both(&h, &h);
        uint8_t *one = say(&a, sizes[i], 0, 1, 1);
        msg_want(b.m, true, false);
        talk_settle();
        CHECK_EQ(b.m->operations.posted_n, i + 1);
        CHECK_EQ(b.regions, 0);
        hear(&b, MSG_ANY, sizes[i], 1);
        free(one);
        talk_close();
    }
}

/* Completions at b that one pump takes all but those of its last round, and b's operations that make them. */
#define MANY 50
static void operate_before(struct msg_op *many) {
    struct msg_region r = {.rkey = a.end->mr->pub.rkey,
                           .access = RNIC_ACCESS_REMOTE_READ,
                           .addr = (uintptr_t)a.end->mem + MEMORY / 2,
                           .length = MEMORY / 2};
    CHECK_EQ(msg_share(a.m, &r), 0);
    talk_settle();
    for (int i = 0; i < MANY; i++) {
        many[i] = (struct msg_op){.opcode = RNIC_WR_RDMA_READ, .region = r.id, .addr = r.addr, .rkey = r.rkey};
        msg_operate(b.m, &many[i]);
    }
}

static void memory_is_withdrawn_between_two_pieces(void) {
    struct msg_op many[MANY];
    struct how h = {.announce = 5000, .max_message = 1 << 30};
    talk_open_both(&h, &h);
    operate_before(many);
    uint8_t *one = say(&a, PIECE + 5000, 0, 1, 1), *room = malloc(PIECE + 5000);
    fabric_settle(&p.f);
    msg_target(b.m, room, PIECE + 5000);
    msg_want(b.m, true, false);
    talk_pump(&b);
    CHECK(msg_is_landing(b.m));
    fabric_settle(&p.f);
    CHECK_EQ(talk_pump(&b), 1); /* the last round of which takes the READ's completion */
    CHECK(b.m->fetch.here == PIECE && !msg_is_landing(b.m));
    msg_target(b.m, NULL, 0);
    fill(room, PIECE + 5000, 2);
    CHECK_EQ(msg_fetch_error(b.m), 0);
    talk_settle();
    CHECK(msg_find(b.m, MSG_ANY)->object && filled(room, PIECE + 5000, 2));
    hear(&b, MSG_ANY, PIECE + 5000, 1);
    free(room);
    free(one);
    talk_close();
}

static void what_was_read_is_not_taken_for_the_next_message(void) {
    struct msg_op many[MANY];
    struct how h = {.announce = 5000};
    talk_open_both(&h, &(struct how){.backlog = 5000});
    operate_before(many);
    uint8_t *one = say(&a, 6000, 0, 1, 1), *two = say(&a, 12000, 0, 2, 1);
    fabric_settle(&p.f);
    msg_want(b.m, true, false);
    talk_pump(&b);
    fabric_settle(&p.f);
    CHECK_EQ(talk_pump(&b), 1);
    hear(&b, MSG_ANY, 6000, 1);
    talk_settle();
    hear(&b, MSG_ANY, 12000, 2);
    free(one);
    free(two);
    talk_close();
}

static void a_read_that_has_failed_waits_until_that_was_told(void) {
    struct how h = {.announce = 5000};
    talk_open_both(&h, &h);
    uint8_t *one = say(&a, 6000, 0, 1, 1);
    b.refused = 1;
    msg_want(b.m, true, false);
    talk_settle();
    talk_settle();
    CHECK(msg_has_fetch_error(b.m) && !msg_find(b.m, MSG_ANY));
    CHECK_EQ(b.objects, 0);
    CHECK_EQ(msg_fetch_error(b.m), -ENOMEM);
    b.full = true; /* nor can the READ be posted */
    talk_settle();
    CHECK_EQ(b.regions, 0);
    b.full = false;
    CHECK_EQ(msg_fetch_error(b.m), -ENOMEM);
    talk_settle();
    hear(&b, MSG_ANY, 6000, 1);
    free(one);
    talk_close();
}

static void whatever_nobody_waits_for_fails_in_silence(void) {
    struct how h = {.announce = 5000};
    talk_open_both(&h, &h);
    uint8_t *one = say(&a, 6000, 0, 1, 1);
    b.refused = 1;
    talk_settle();
    CHECK(!msg_has_fetch_error(b.m));
    talk_settle();
    hear(&b, MSG_ANY, 6000, 1);
    free(one);
    talk_close();
}

static void a_read_that_the_connection_ends_gives_all_back_and_tells_no_error(void) {
    struct how h = {.announce = 5000};
    talk_open_both(&h, &h);
    uint8_t *one = say(&a, 60000, 0, 1, 1);
    msg_want(b.m, true, false);
    begin_read();
    move(p.b.qp, RNIC_QPS_ERR);
    CHECK_EQ(talk_pump(&b), -EIO);
    CHECK(msg_failed(b.m) && !msg_has_fetch_error(b.m));
    CHECK(b.objects == 0 && b.regions == 0);
    CHECK_EQ(talk_pump(&b), -EIO); /* and it is not READ again */
    CHECK(b.objects == 0 && b.regions == 0 && !b.m->operations.first);
    free(one);
    talk_close();
    talk_open_both(&h, &h);
    one = say(&a, 60000, 0, 1, 1);
    begin_read();
    msg_lost(b.m, "the cable was cut");
    CHECK(b.objects == 1 && b.regions == 1); /* the device may write there still */
    talk_settle();
    CHECK(b.objects == 0 && b.regions == 0);
    CHECK(!msg_find(b.m, MSG_ANY));
    free(one);
    talk_close();
}

static void whoever_closes_meanwhile_drops_what_was_read(void) {
    for (int withdrawn = 0; withdrawn < 2; withdrawn++) {
        talk_open_both(&(struct how){.announce = 5000}, &(struct how){.backlog = 1000});
        uint8_t *one = say(&a, 60000, 0, 1, 1), *room = malloc(60000);
        if (withdrawn)
            msg_target(b.m, room, 60000);
        msg_want(b.m, true, false);
        begin_read();
        if (withdrawn)
            msg_target(b.m, NULL, 0);
        msg_want(b.m, false, false);
        msg_close(b.m, (int64_t)p.f.now, MSG_NEVER);
        talk_settle();
        CHECK_EQ(msg_left(a.m), 1);
        CHECK_EQ(b.m->operations.posted_n, 1);
        CHECK_EQ(b.objects, 0);
        CHECK_EQ(msg_state(a.m), MSG_PEER_LEFT);
        free(room);
        free(one);
        talk_close();
    }
}

static void a_message_whose_memory_is_withdrawn_is_lost_without_other_memory(void) {
    struct how h = {.announce = 5000};
    talk_open_both(&h, &h);
    uint8_t *one = say(&a, 6000, 0, 1, 1), *room = malloc(6000);
    msg_target(b.m, room, 6000);
    msg_want(b.m, true, false);
    talk_settle();
    b.most_memory = 100;
    msg_target(b.m, NULL, 0);
    free(room);
    CHECK(msg_find(b.m, MSG_ANY) == NULL);
    CHECK(!strcmp(msg_error(b.m)->text, "there is no memory for a message whose buffer was withdrawn"));
    talk_settle();
    CHECK_EQ(msg_error(a.m)->kind, MSG_ABORTED);
    free(one);
    talk_close();
}

static void each_message_lands_in_the_memory_that_was_named_last(void) {
    struct how h = {.announce = 5000};
    talk_open_both(&h, &h);
    uint8_t *room = malloc(60000);
    for (uint64_t i = 0; i < 4; i++) {
        uint8_t *one = say(&a, 60000, 0, i, 1);
        msg_target(b.m, room, 60000);
        msg_want(b.m, true, false);
        begin_read();
        CHECK(msg_is_landing(b.m));
        if (i == 2)
            msg_target(b.m, room, 60000); /* another call's: the first READ counts for nothing */
        talk_settle();
        struct msg_in *in = msg_find(b.m, MSG_ANY);
        CHECK(in && filled(in->data, 60000, i));
        CHECK_EQ(in->data == room, i != 2);
        CHECK_EQ(in->object != NULL, i == 2);
        msg_take(b.m, in);
        msg_drop(b.m, in);
        free(one);
    }
    free(room);
    talk_close();
}

/* ---------------------------------------------------------------- regions and operations */

static struct msg_region share_half(struct side *s, uint32_t access) {
    struct msg_region r = {.rkey = s->end->mr->pub.rkey,
                           .access = access,
                           .addr = (uintptr_t)s->end->mem + MEMORY / 2,
                           .length = MEMORY / 2};
    CHECK_EQ(msg_share(s->m, &r), 0);
    talk_settle();
    return r;
}

static struct msg_op op_on(const struct msg_region *r, int opcode, uint64_t at) {
    return (struct msg_op){.opcode = opcode, .region = r->id, .addr = r->addr + at, .rkey = r->rkey};
}

static void run(struct side *s, struct msg_op *op, int status) {
    msg_operate(s->m, op);
    talk_settle();
    CHECK(msg_done(s->m) == op);
    CHECK_EQ(op->state, MSG_OP_DONE);
    CHECK_EQ(op->status, status);
    CHECK(msg_done(s->m) == NULL);
}

static void operations_reach_the_region_of_the_peer(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    struct msg_region r = share_half(&b, ALL_ACCESS & ~RNIC_ACCESS_LOCAL_WRITE);
    uint32_t n;
    const struct msg_region *known = msg_regions(a.m, &n);
    CHECK(n == 1 && known->id == r.id && known->addr == r.addr && known->length == r.length);
    uint8_t *here = a.end->mem + MEMORY / 2, *there = b.end->mem + MEMORY / 2;
    fill(here, 4000, 3);
    struct msg_op op = op_on(&r, RNIC_WR_RDMA_WRITE, 64);
    op.sge = (struct rnic_sge){(uintptr_t)here, 4000, a.end->mr->pub.lkey};
    run(&a, &op, RNIC_WC_SUCCESS);
    CHECK(filled(there + 64, 4000, 3));
    memset(here, 0, 4000);
    op.opcode = RNIC_WR_RDMA_READ;
    run(&a, &op, RNIC_WC_SUCCESS);
    CHECK(filled(here, 4000, 3));
    memset(there, 0, 8);
    op = op_on(&r, RNIC_WR_ATOMIC_FETCH_AND_ADD, 0);
    op.compare_add = 5;
    run(&a, &op, RNIC_WC_SUCCESS);
    op = op_on(&r, RNIC_WR_ATOMIC_CMP_AND_SWP, 0);
    op.compare_add = 5;
    op.swap = 77;
    run(&a, &op, RNIC_WC_SUCCESS);
    CHECK_EQ(op.found, 5);
    CHECK_EQ(*(uint64_t *)there, 77);
    talk_goodbye();
    talk_close();
}

static void each_atomic_finds_its_own_value(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    struct msg_region r = share_half(&b, RNIC_ACCESS_REMOTE_ATOMIC);
    struct msg_op one[70];
    memset(b.end->mem + MEMORY / 2, 0, 8);
    for (int i = 0; i < 70; i++) {
        one[i] = op_on(&r, RNIC_WR_ATOMIC_FETCH_AND_ADD, 0);
        one[i].compare_add = 3;
        one[i].next = &one[0]; /* which means nothing, */
        one[i].pieces_n = 8;   /* without pieces */
        msg_operate(a.m, &one[i]);
    }
    talk_settle();
    const uint64_t results = (uintptr_t)a.m->memory.base + a.m->memory.results_at;
    for (uint64_t i = 0; i < 70; i++) {
        CHECK(msg_done(a.m) == &one[i]);
        CHECK_EQ(one[i].found, 3 * i);
        CHECK(one[i].sge.addr >= results && one[i].sge.addr < results + MSG_OPS * MSG_RESULT);
    }
    CHECK(msg_done(a.m) == NULL && !msg_operates(a.m));
    talk_close();
}

static void a_quick_way_takes_one_request_at_a_time_and_keeps_their_order(void) {
    struct how h = {.quick = true};
    talk_open_both(&h, &h);
    struct msg_region r = share_half(&b, RNIC_ACCESS_REMOTE_ATOMIC);
    struct msg_op one[70];
    memset(b.end->mem + MEMORY / 2, 0, 8);
    for (int i = 0; i < 70; i++) {
        one[i] = op_on(&r, RNIC_WR_ATOMIC_FETCH_AND_ADD, 0);
        one[i].compare_add = 3;
        msg_operate(a.m, &one[i]);
    }
    talk_settle();
    CHECK(a.quick_posts > 0);
    for (uint64_t i = 0; i < 70; i++) {
        CHECK(msg_done(a.m) == &one[i]);
        CHECK_EQ(one[i].found, 3 * i);
    }
    uint8_t *data = say(&a, 30000, 0, 1, 1);
    talk_settle();
    hear(&b, MSG_ANY, 30000, 1);
    free(data);
    talk_goodbye();
    talk_close();
}

static void operations_that_are_under_way_fail_with_the_connection(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    struct msg_region r = share_half(&b, RNIC_ACCESS_REMOTE_READ);
    struct msg_op one[100];
    for (int i = 0; i < 100; i++) {
        one[i] = op_on(&r, RNIC_WR_RDMA_READ, 0);
        one[i].sge = (struct rnic_sge){(uintptr_t)a.end->mem + MEMORY / 2, 1000, a.end->mr->pub.lkey};
        one[i].vendor_err = 7;
        msg_operate(a.m, &one[i]);
    }
    talk_pump(&a);
    for (int i = 0; i < 100; i++)
        CHECK_EQ(one[i].state, i < MSG_OPS ? MSG_OP_POSTED : MSG_OP_QUEUED);
    msg_lost(a.m, "the cable was cut");
    CHECK(msg_done(a.m) == NULL);
    CHECK(msg_operates(a.m));
    msg_fail_operations(a.m);
    CHECK(!msg_operates(a.m));
    talk_settle(); /* what completes afterwards is nobody's */
    for (int i = 0; i < 100; i++) {
        CHECK(msg_done(a.m) == &one[i]);
        CHECK(one[i].status == RNIC_WC_WR_FLUSH_ERR && one[i].vendor_err == 0);
    }
    CHECK(msg_done(a.m) == NULL && !msg_operates(a.m));
    struct msg_op late = op_on(&r, RNIC_WR_RDMA_READ, 0);
    late.next = &one[0]; /* which means nothing */
    late.vendor_err = 7;
    msg_operate(a.m, &late);
    CHECK(msg_done(a.m) == &late && msg_done(a.m) == NULL);
    CHECK(late.status == RNIC_WC_WR_FLUSH_ERR && late.vendor_err == 0);
    talk_close();
}

static void an_operation_has_its_pieces_and_its_fence(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    struct msg_region r = share_half(&b, RNIC_ACCESS_REMOTE_WRITE);
    uint8_t *here = a.end->mem + MEMORY / 2, *there = b.end->mem + MEMORY / 2;
    fill(here, 3000, 3);
    struct rnic_sge pieces[] = {SGE(a.end, MEMORY / 2, 1000), SGE(a.end, MEMORY / 2 + 1000, 2000)};
    struct msg_op op = op_on(&r, RNIC_WR_RDMA_WRITE, 0);
    op.pieces = pieces;
    op.pieces_n = 2;
    op.fence = true;
    op.found = 99;
    memset(there, 0, 4000);
    run(&a, &op, RNIC_WC_SUCCESS);
    CHECK_EQ(op.found, 99); /* only an atomic finds something */
    CHECK(filled(there, 3000, 3) && there[3000] == 0);
    CHECK_EQ(a.flags, RNIC_SEND_SIGNALED | RNIC_SEND_FENCE);
    op.pieces = NULL; /* and no memory at all is a piece of none */
    op.fence = false;
    op.sge.addr = 0xBAD;
    run(&a, &op, RNIC_WC_SUCCESS);
    CHECK_EQ(a.flags, RNIC_SEND_SIGNALED);
    op.rkey++; /* a key of before, perhaps */
    run(&a, &op, -ENOENT);
    CHECK_EQ(op.vendor_err, 0);
    op.rkey--;
    op.region++;
    run(&a, &op, -ENOENT);
    CHECK(msg_failed(a.m) == NULL);
    talk_close();
}

static void operations_that_cannot_be_posted_tell_why(void) {
    enum { ALL = 40, TAKEN = 21 };
    talk_open_both(&(struct how){0}, &(struct how){0});
    struct msg_region r = share_half(&b, RNIC_ACCESS_REMOTE_READ);
    struct msg_op one[ALL];
    for (int i = 0; i < ALL; i++) {
        one[i] = op_on(&r, RNIC_WR_RDMA_READ, 0);
        msg_operate(a.m, &one[i]);
    }
    a.full = true;
    a.takes = TAKEN;
    CHECK(msg_operates(a.m)); /* which are queued, */
    talk_pump(&a);
    a.full = false;
    CHECK(!a.m->operations.first && msg_operates(a.m)); /* and under way */
    CHECK_EQ(a.m->operations.posted_n, TAKEN);
    talk_settle();
    int taken = 0, refused = 0;
    for (struct msg_op *op; (op = msg_done(a.m));) {
        taken += op < one + TAKEN && op->status == RNIC_WC_SUCCESS;
        refused += op >= one + TAKEN && op->status == -ENOMEM && op->vendor_err == 0;
    }
    CHECK(taken == TAKEN && refused == ALL - TAKEN && !msg_operates(a.m));
    talk_close();
}

static void an_operation_that_ends_at_once_is_done_by_the_pump_that_posts_it(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    struct msg_region r = share_half(&b, RNIC_ACCESS_REMOTE_READ);
    struct msg_op op = op_on(&r, RNIC_WR_RDMA_READ, 0);
    move(p.a.qp, RNIC_QPS_ERR); /* which flushes it */
    msg_operate(a.m, &op);
    CHECK_EQ(talk_pump(&a), -EIO);
    CHECK(msg_done(a.m) == &op);
    talk_close();
}

static void a_pump_takes_so_many_completions_and_no_more(void) {
    for (int n = MSG_OPS - 1; n <= MSG_OPS; n++) {
        talk_open_both(&(struct how){0}, &(struct how){0});
        struct msg_region r = share_half(&b, RNIC_ACCESS_REMOTE_READ);
        struct msg_op one[MSG_OPS];
        for (int i = 0; i < n; i++) {
            one[i] = op_on(&r, RNIC_WR_RDMA_READ, 0);
            msg_operate(a.m, &one[i]);
        }
        CHECK_EQ(talk_pump(&a), 0);
        fabric_settle(&p.f);
        CHECK_EQ(talk_pump(&a), n == ROUNDS * POLLED);
        CHECK(!msg_operates(a.m));
        CHECK_EQ(talk_pump(&a), 0);
        talk_close();
    }
}

static void an_operation_after_the_end_leaves_the_others_alone(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    struct msg_region r = share_half(&b, RNIC_ACCESS_REMOTE_READ);
    struct msg_op op = op_on(&r, RNIC_WR_RDMA_READ, 0), late = op;
    op.sge = (struct rnic_sge){(uintptr_t)a.end->mem + MEMORY / 2, 4000, a.end->mr->pub.lkey};
    msg_operate(a.m, &op);
    talk_pump(&a);
    msg_abort(a.m, "enough");
    msg_operate(a.m, &late);
    CHECK_EQ(op.state, MSG_OP_POSTED); /* the device may write there still */
    CHECK(msg_done(a.m) == &late);
    talk_settle();
    CHECK(msg_done(a.m) == &op);
    talk_close();
}

static void a_withdrawn_region_is_released_behind_all_operations(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    struct msg_region r = share_half(&b, RNIC_ACCESS_REMOTE_READ);
    struct msg_op one[100];
    for (int i = 0; i < 100; i++) {
        one[i] = op_on(&r, RNIC_WR_RDMA_READ, 0);
        one[i].sge = (struct rnic_sge){(uintptr_t)a.end->mem + MEMORY / 2, 1000, a.end->mr->pub.lkey};
        msg_operate(a.m, &one[i]);
    }
    CHECK_EQ(msg_withdraw(b.m, r.id), 0);
    CHECK_EQ(msg_released(b.m), 0);
    talk_settle();
    CHECK_EQ(msg_released(b.m), 1);
    int n = 0;
    for (struct msg_op *op; (op = msg_done(a.m)); n++)
        CHECK(op->status == RNIC_WC_SUCCESS || op->status == -ENOENT);
    CHECK_EQ(n, 100);
    struct msg_op late = op_on(&r, RNIC_WR_RDMA_READ, 0);
    run(&a, &late, -ENOENT);
    talk_goodbye();
    talk_close();
}

static void regions_come_and_go_in_any_order(void) {
    enum { ALL = 40 };
    talk_open_both(&(struct how){0}, &(struct how){.regions = ALL});
    struct msg_region r[ALL];
    uint64_t serials = 0, before = msg_changes(b.m);
    uint32_t n;
    for (uint32_t i = 0; i < ALL; i++) {
        r[i] = (struct msg_region){
            .rkey = a.end->mr->pub.rkey, .access = RNIC_ACCESS_REMOTE_READ, .addr = 4096 * i, .length = i};
        CHECK_EQ(msg_share(a.m, &r[i]), 0);
        talk_settle();
        const struct msg_region *known = msg_regions(b.m, &n);
        CHECK_EQ(n, i + 1);
        CHECK_EQ(msg_changes(b.m), ++before);
        CHECK(known[i].serial > serials); /* no other one has had it */
        serials = known[i].serial;
    }
    for (uint32_t i = 0; i < ALL; i += 2) {
        CHECK_EQ(msg_withdraw(a.m, r[i].id), 0);
        talk_settle();
        CHECK_EQ(msg_changes(b.m), ++before);
    }
    for (uint32_t i = 0; i < ALL; i++) {
        const struct msg_region *known = msg_regions_find(b.m, r[i].id);
        CHECK_EQ(known != NULL, i % 2);
        CHECK(!known || (known->addr == r[i].addr && known->length == i));
    }
    msg_regions(b.m, &n);
    CHECK_EQ(n, ALL / 2);
    msg_lost(b.m, "the cable was cut");
    msg_regions(b.m, &n);
    CHECK_EQ(n, 0);
    CHECK_EQ(msg_changes(b.m), before + 1);
    talk_close();
}

static void a_region_that_is_shared_keeps_its_own_description(void) {
    uint8_t array[] = {0, 3, 0, 0, 0, 0, 0, 0, '<', 'f', '4'};
    talk_open_both(&(struct how){.announce = 5000}, &(struct how){.backlog = 1});
    uint8_t *one = say(&a, 6000, 0, 1, 1); /* behind which the region waits */
    struct msg_region r = {.access = RNIC_ACCESS_REMOTE_READ, .length = 4, .array = array, .array_bytes = sizeof array};
    CHECK_EQ(msg_share(a.m, &r), 0);
    memset(array, 0xDD, sizeof array);
    msg_want(b.m, true, false);
    talk_settle();
    uint32_t n;
    const struct msg_region *known = msg_regions(b.m, &n);
    CHECK(n == 1 && known->array_bytes == 11 && !memcmp(known->array, "\0\3\0\0\0\0\0\0<f4", 11));
    free(one);
    talk_close();
}

static void a_release_is_fenced_behind_the_operations(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    struct msg_region r = share_half(&b, RNIC_ACCESS_REMOTE_READ);
    CHECK_EQ(msg_withdraw(b.m, r.id), 0);
    talk_pump(&b);
    fabric_settle(&p.f);
    talk_pump(&a);
    CHECK_EQ(a.m->theirs.confirmed, 1);
    CHECK(a.flags & RNIC_SEND_FENCE);
    free(say(&a, 10, 0, 1, 0));
    CHECK(!(a.flags & RNIC_SEND_FENCE));
    talk_close();
}

static void an_array_is_described_where_the_description_fits(void) {
    static const struct {
        uint32_t send_size, letters; /* of the type */
        bool fits;
    } rows[] = {{64, 16, true}, {64, 17, false}, {65, 17, true}, {1024, 200, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint8_t array[16 + 200] = {1, (uint8_t)rows[i].letters, [15] = 9};
        memset(array + 16, '4', 200);
        talk_open_both(&(struct how){.send_size = rows[i].send_size}, &(struct how){0});
        struct msg_region r = {
            .access = RNIC_ACCESS_REMOTE_READ, .length = 36, .array = array, .array_bytes = 16 + rows[i].letters};
        CHECK_EQ(msg_share(a.m, &r), 0);
        talk_settle();
        uint32_t n;
        const struct msg_region *known = msg_regions(b.m, &n);
        CHECK(n == 1 && known->length == 36);
        CHECK_EQ(known->array_bytes, rows[i].fits ? 16 + rows[i].letters : 0);
        CHECK_EQ(known->array != NULL, rows[i].fits);
        talk_close();
    }
}

static void an_array_is_described_to_those_who_know_it(void) {
    static const uint8_t array[] = {1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, '<', 'f', '4'};
    for (int knows = 0; knows < 2; knows++) {
        talk_open_both(&(struct how){.capabilities = knows ? 15 : 7}, &(struct how){.capabilities = knows ? 15 : 7});
        struct msg_region r = {
            .access = RNIC_ACCESS_REMOTE_READ, .length = 36, .array = array, .array_bytes = sizeof array};
        CHECK_EQ(msg_share(a.m, &r), 0);
        talk_settle();
        uint32_t n;
        const struct msg_region *known = msg_regions(b.m, &n);
        CHECK_EQ(n, 1);
        CHECK_EQ(known->array_bytes, knows ? sizeof array : 0);
        CHECK(!knows || memcmp(known->array, array, sizeof array) == 0);
        talk_close();
    }
}

/* ---------------------------------------------------------------- numbers beyond 2^32 */

/* As if so much had gone from an end to its peer: messages, SENDs, operations, regions and withdrawals. */
static void grow_old(struct side *s, struct side *peer, uint64_t n) {
    struct msg *m = s->m, *to = peer->m;
    uint64_t sends = n - n % to->credits.receives; /* receives keep their places */
    m->out.handles += n;
    m->out.numbers += n;
    to->in.complete += n;
    m->out.handed_out += n;
    m->out.completed += n;
    m->out.signaled += n;
    m->credits.spent += sends;
    m->credits.returned += sends;
    to->credits.posted += sends;
    to->credits.told += sends;
    to->credits.arrived += sends;
    to->credits.freed += sends;
    m->operations.posted_n += n;
    m->operations.ended_n += n;
    m->out.region_ids += (uint32_t)n;
    m->out.withdrawn += (uint32_t)n;
    m->out.released += (uint32_t)n;
    to->theirs.withdrawals += (uint32_t)n;
    to->theirs.confirmed += (uint32_t)n;
}

static void open_old(const struct how *of_a, const struct how *of_b, uint64_t n) {
    talk_open_both(of_a, of_b);
    grow_old(&a, &b, n);
    grow_old(&b, &a, n);
}

static void messages_go_on_beyond_2_to_the_32(void) {
    static const uint64_t sizes[] = {10, 4000, 6000};
    const struct how h = {.announce = 5000};
    for (uint64_t before = 0; before < 7; before++) {
        check_note("%d before", (int)before);
        open_old(&h, &h, (1ull << 32) - before);
        for (uint64_t i = 0; i < 9; i++) {
            uint64_t handle;
            uint8_t *data = bytes_of(sizes[i % 3], i);
            CHECK(msg_send(a.m, data, sizes[i % 3], i, &handle) >= 0);
            CHECK_EQ(handle, (1ull << 32) - before + i + 1);
            msg_want(b.m, true, false);
            talk_settle();
            CHECK_EQ(msg_sent(a.m), handle);
            free(data);
            hear(&b, &i, sizes[i % 3], i);
        }
        talk_goodbye();
        talk_close();
    }
}

static void the_last_number_before_2_to_the_32_is_stopped(void) {
    for (uint64_t announce = 0; announce <= 5000; announce += 5000) {
        open_old(&(struct how){.announce = announce}, &(struct how){.backlog = 1}, (1ull << 32) - 1);
        for (uint64_t i = 0; i < 2; i++) {
            uint8_t *data = say(&a, 9000, 0, 1, 1);
            talk_settle();
            CHECK(announce ? b.m->in.offered : b.m->in.partial);
            msg_take_back(a.m, (1ull << 32) + i);
            free(data);
            msg_want(b.m, !announce, false); /* else the STOP has no credit; who wants what is announced READs it */
            talk_settle();
            CHECK_EQ(b.m->in.stopped, i + 1);
            CHECK_EQ(b.m->in.complete, (1ull << 32) + i);
            msg_want(b.m, false, false);
        }
        talk_goodbye();
        talk_close();
    }
}

static void regions_and_operations_go_on_beyond_2_to_the_32(void) {
    open_old(&(struct how){0}, &(struct how){0}, (1ull << 32) - 3);
    for (uint32_t i = 1; i <= 6; i++) {
        struct msg_region r = share_half(&a, RNIC_ACCESS_REMOTE_ATOMIC);
        CHECK_EQ(r.id, i - 3);
        struct msg_op add = op_on(&r, RNIC_WR_ATOMIC_FETCH_AND_ADD, 0);
        add.compare_add = 1;
        run(&b, &add, RNIC_WC_SUCCESS);
        CHECK_EQ(add.number, (1ull << 32) - 3 + i);
        CHECK_EQ(msg_withdraw(a.m, r.id), 0);
        talk_settle();
        CHECK_EQ(msg_released(a.m), i - 3);
        run(&b, &add, -ENOENT);
    }
    talk_goodbye();
    talk_close();
}

/* ---------------------------------------------------------------- random programs */

#define MOST 64
#define KEPT 1024
struct sent { /* a message that the other end has not taken */
    uint64_t handle, tag, bytes, seed;
    bool taken_back; /* it may come, or not */
};
struct model { /* what one end has sent */
    struct sent list[MOST];
    int n;
    uint64_t seeds;
    struct { /* memory that messages have not left */
        uint64_t handle, bytes;
        uint8_t *data;
    } kept[KEPT];
    int kept_n;
};

static struct rng rng;
static uint64_t below(uint64_t n) { return rng_next(&rng) % n; }

/* Memory is the program's again, and changes, as soon as the machine says so. */
static void free_left(struct side *s, struct model *sent) {
    int kept = 0;
    for (int i = 0; i < sent->kept_n; i++) {
        if (sent->kept[i].handle > msg_left(s->m)) {
            sent->kept[kept++] = sent->kept[i];
            continue;
        }
        memset(sent->kept[i].data, 0xDD, sent->kept[i].bytes);
        free(sent->kept[i].data);
    }
    sent->kept_n = kept;
}

static void forget(struct model *sent, int i) {
    sent->n--;
    memmove(&sent->list[i], &sent->list[i + 1], (size_t)(sent->n - i) * sizeof *sent->list);
}

static uint64_t some_length(void) {
    static const uint64_t most[] = {1, 30, 200, 1500, 9000, 40000};
    return 8 + below(most[below(6)] + 1);
}

static void send_one(struct side *s, struct model *sent) {
    if (sent->n == MOST || sent->kept_n == KEPT)
        return;
    struct sent one = {.tag = below(4), .bytes = some_length(), .seed = ++sent->seeds};
    uint8_t *data = bytes_of(one.bytes, one.seed);
    CHECK(msg_send(s->m, data, one.bytes, one.tag, &one.handle) >= 0);
    sent->list[sent->n++] = one;
    sent->kept[sent->kept_n].handle = one.handle;
    sent->kept[sent->kept_n].bytes = one.bytes;
    sent->kept[sent->kept_n++].data = data;
}

static void take_back_one(struct side *s, struct model *sent) {
    int i = sent->n ? (int)below((uint64_t)sent->n) : 0;
    if (i >= sent->n || sent->list[i].taken_back || sent->list[i].handle <= msg_left(s->m))
        return;
    uint64_t handle = sent->list[i].handle;
    msg_take_back(s->m, handle);
    sent->list[i].taken_back = true;
    for (i = 0; sent->kept[i].handle != handle; i++)
        ;
    memset(sent->kept[i].data, 0xDD, sent->kept[i].bytes);
    free(sent->kept[i].data);
    sent->kept[i] = sent->kept[--sent->kept_n];
}

/* The message is what was sent first of those that were asked for and not taken back. */
static void check_taken(const struct msg_in *in, const uint64_t *tag, struct model *sent) {
    for (int i = 0; i < sent->n;) {
        const struct sent *one = &sent->list[i];
        bool is_it = in->tag == one->tag && in->bytes == one->bytes && filled(in->data, in->bytes, one->seed);
        if (tag && one->tag != *tag) {
            i++;
            continue;
        }
        CHECK(is_it || one->taken_back);
        forget(sent, i);
        if (is_it)
            return;
    }
    CHECK(!"it was not sent");
}

static void take_one(struct side *s, struct model *sent) {
    static uint64_t tag;
    tag = below(4);
    const uint64_t *asked = below(2) ? &tag : MSG_ANY;
    s->asked = asked;
    msg_want(s->m, !asked, asked);
    talk_pump(s);
    struct msg_in *in = msg_find(s->m, asked);
    if (!below(4))
        msg_want(s->m, false, false);
    if (!in)
        return;
    check_taken(in, asked, sent);
    msg_take(s->m, in);
    msg_drop(s->m, in);
}

static int to_come(const struct model *sent) {
    int n = 0;
    for (int i = 0; i < sent->n; i++)
        n += !sent->list[i].taken_back;
    return n;
}

static void open_random_world(void) {
    static const uint32_t sizes[] = {64, 100, 512, 1024};
    struct how h[2];
    for (int i = 0; i < 2; i++)
        h[i] = (struct how){.receives = 3 + (uint32_t)below(12),
                            .receive_size = sizes[below(4)],
                            .send_size = sizes[below(4)],
                            .backlog = 1 + below(3) * 3000,
                            .announce = below(2) ? 2000 : 0,
                            .quick = below(2)};
    talk_open_both(&h[0], &h[1]);
    for (int i = 0; i < 2; i++) {
        struct rnic_fault lossy = {.seed = rng_next(&rng), .loss = 20000, .duplicate = 10000, .reorder = 10000};
        fault_set(&p.f.node[i].fault, below(2) ? &lossy : NULL);
    }
}

static struct model from_a, from_b;

static void random_step(struct side *s, struct model *mine, struct model *theirs) {
    switch (below(6)) {
    case 0:
        send_one(s, mine);
        break;
    case 1:
        take_one(s, theirs);
        break;
    case 2:
        talk_pump(s);
        break;
    case 3:
        if (below(3) == 0)
            take_back_one(s, mine);
        break;
    default:
        for (uint64_t n = below(20); n; n--)
            fabric_step(&p.f, p.f.now + MS);
    }
    CHECK_EQ(msg_error(s->m)->kind, MSG_WELL);
    free_left(s, mine);
}

static void random_program(uint64_t seed) {
    rng_seed(&rng, seed);
    open_random_world();
    from_a = from_b = (struct model){.n = 0};
    for (int step = 0; step < 300; step++) {
        if (below(2))
            random_step(&a, &from_a, &from_b);
        else
            random_step(&b, &from_b, &from_a);
    }
    for (int idle = 0; to_come(&from_a) || to_come(&from_b); idle++) {
        CHECK(idle < 2000);
        talk_settle();
        take_one(&a, &from_b);
        take_one(&b, &from_a);
    }
    talk_goodbye();
    free_left(&a, &from_a);
    free_left(&b, &from_b);
    CHECK(!from_a.kept_n && !from_b.kept_n);
    talk_close();
}

static void random_programs_lose_nothing(void) {
    const char *seeds = getenv("SEEDS");
    for (uint64_t seed = 1; seed <= (seeds ? strtoull(seeds, NULL, 0) : 200); seed++) {
        check_note("seed %llu", (unsigned long long)seed);
        random_program(seed);
    }
}

int main(void) {
    RUN(a_message_of_any_length_arrives);
    RUN(a_message_that_nobody_wants_waits_at_its_sender);
    RUN(whoever_takes_makes_room_at_once);
    RUN(a_tag_finds_its_message_behind_others);
    RUN(what_a_call_asks_for_comes_although_the_backlog_is_full);
    RUN(messages_cross_with_the_fewest_receives);
    RUN(what_needs_one_piece_more_than_there_are_credits_is_queued);
    RUN(too_long_a_message_is_not_sent);
    RUN(a_peer_of_version_1_gets_no_tags);
    RUN(a_peer_gets_what_its_capabilities_name_and_nothing_else);
    RUN(statistics_count);
    RUN(a_completion_stands_for_half_a_window);
    RUN(a_message_that_was_taken_is_put_back_ahead_of_others);
    RUN(a_message_that_is_put_back_counts_and_others_come_behind_it);
    RUN(the_backlog_is_full_to_the_byte);
    RUN(a_call_that_wants_nothing_makes_no_room);
    RUN(whoever_asks_for_another_tag_makes_no_room);
    RUN(memory_grows_with_the_bytes_that_have_come);
    RUN(whoever_closes_drops_all_that_has_come);
    RUN(whoever_closes_returns_the_receives_of_a_message_that_has_begun);
    RUN(a_message_that_has_not_begun_is_taken_back);
    RUN(a_message_that_has_begun_is_stopped);
    RUN(a_peer_that_knows_no_stop_gets_the_rest_from_a_copy);
    RUN(a_message_that_is_taken_back_twice_is_taken_back_once);
    RUN(memory_whose_key_cannot_be_moved_is_deregistered_at_once);
    RUN(a_message_is_taken_back_from_between_two_others);
    RUN(a_long_message_is_read_from_where_it_lies);
    RUN(an_announced_message_lands_in_the_memory_that_waits_for_it);
    RUN(a_message_that_was_taken_keeps_its_memory_from_the_next);
    RUN(a_message_that_was_taken_from_other_memory_leaves_the_named_memory_named);
    RUN(memory_that_is_withdrawn_meanwhile_is_not_what_the_program_gets);
    RUN(other_memory_takes_the_place_of_the_first);
    RUN(too_small_a_memory_leaves_the_message_with_its_sender);
    RUN(a_message_of_so_many_bytes_is_announced_and_counts_when_it_was_taken);
    RUN(a_message_that_cannot_go_at_once_is_remembered);
    RUN(an_announced_message_is_taken_back);
    RUN(a_read_that_cannot_be_posted_is_told_once_and_tried_again);
    RUN(whoever_has_closed_takes_an_announced_message_without_reading_it);
    RUN(memory_that_cannot_be_deregistered_is_the_owners);
    RUN(without_memory_to_register_a_long_message_goes_in_pieces);
    RUN(nothing_is_read_unless_it_was_announced);
    RUN(an_announced_message_comes_unasked_if_it_is_shorter_than_the_backlog);
    RUN(a_message_that_is_being_read_is_not_stopped);
    RUN(memory_that_comes_late_leaves_a_read_where_it_is);
    RUN(a_message_longer_than_a_read_comes_in_pieces);
    RUN(memory_is_withdrawn_between_two_pieces);
    RUN(what_was_read_is_not_taken_for_the_next_message);
    RUN(a_read_that_has_failed_waits_until_that_was_told);
    RUN(whatever_nobody_waits_for_fails_in_silence);
    RUN(a_read_that_the_connection_ends_gives_all_back_and_tells_no_error);
    RUN(whoever_closes_meanwhile_drops_what_was_read);
    RUN(a_message_whose_memory_is_withdrawn_is_lost_without_other_memory);
    RUN(each_message_lands_in_the_memory_that_was_named_last);
    RUN(operations_reach_the_region_of_the_peer);
    RUN(each_atomic_finds_its_own_value);
    RUN(a_quick_way_takes_one_request_at_a_time_and_keeps_their_order);
    RUN(operations_that_are_under_way_fail_with_the_connection);
    RUN(an_operation_has_its_pieces_and_its_fence);
    RUN(operations_that_cannot_be_posted_tell_why);
    RUN(an_operation_that_ends_at_once_is_done_by_the_pump_that_posts_it);
    RUN(a_pump_takes_so_many_completions_and_no_more);
    RUN(an_operation_after_the_end_leaves_the_others_alone);
    RUN(a_withdrawn_region_is_released_behind_all_operations);
    RUN(a_region_that_is_shared_keeps_its_own_description);
    RUN(regions_come_and_go_in_any_order);
    RUN(a_release_is_fenced_behind_the_operations);
    RUN(an_array_is_described_where_the_description_fits);
    RUN(an_array_is_described_to_those_who_know_it);
    RUN(messages_go_on_beyond_2_to_the_32);
    RUN(the_last_number_before_2_to_the_32_is_stopped);
    RUN(regions_and_operations_go_on_beyond_2_to_the_32);
    RUN(random_programs_lose_nothing);
    return check_done();
}
