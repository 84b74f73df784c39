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
    uint8_t *two = say(&a, 10, 0, 2, 1);
    msg_want(b.m, true, false);
    talk_settle();
    CHECK_EQ(b.m->in.stopped, 1);
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
    struct how h = {.announce = 5000};
    talk_open_both(&h, &h);
    uint8_t *one = say(&a, 6000, 0, 1, 1), *two = say(&a, 6000, 0, 2, 1), *room = malloc(6000);
    msg_target(b.m, room, 6000);
    msg_want(b.m, true, false);
    talk_settle();
    struct msg_in *in = msg_find(b.m, MSG_ANY);
    CHECK(in && in->data == room);
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
        one[i].next = &one[0]; /* which means nothing */
        msg_operate(a.m, &one[i]);
    }
    talk_settle();
    for (uint64_t i = 0; i < 70; i++) {
        CHECK(msg_done(a.m) == &one[i]);
        CHECK_EQ(one[i].found, 3 * i);
    }
    CHECK(msg_done(a.m) == NULL && !msg_operates(a.m));
    talk_close();
}

static void operations_that_are_under_way_fail_with_the_connection(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    struct msg_region r = share_half(&b, RNIC_ACCESS_REMOTE_READ);
    struct msg_op one[100];
    for (int i = 0; i < 100; i++) {
        one[i] = op_on(&r, RNIC_WR_RDMA_READ, 0);
        one[i].sge = (struct rnic_sge){(uintptr_t)a.end->mem + MEMORY / 2, 1000, a.end->mr->pub.lkey};
        msg_operate(a.m, &one[i]);
    }
    talk_pump(&a);
    CHECK_EQ(one[0].state, MSG_OP_POSTED);
    CHECK_EQ(one[99].state, MSG_OP_QUEUED);
    msg_lost(a.m, "the cable was cut");
    CHECK(msg_done(a.m) == NULL);
    msg_fail_operations(a.m);
    for (int i = 0; i < 100; i++) {
        CHECK(msg_done(a.m) == &one[i]);
        CHECK_EQ(one[i].status, RNIC_WC_WR_FLUSH_ERR);
    }
    CHECK(!msg_operates(a.m));
    struct msg_op late = op_on(&r, RNIC_WR_RDMA_READ, 0);
    msg_operate(a.m, &late);
    CHECK(msg_done(a.m) == &late);
    talk_close();
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
                            .announce = below(2) ? 2000 : 0};
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
    RUN(statistics_count);
    RUN(a_message_that_was_taken_is_put_back_ahead_of_others);
    RUN(a_message_that_has_not_begun_is_taken_back);
    RUN(a_message_that_has_begun_is_stopped);
    RUN(a_peer_that_knows_no_stop_gets_the_rest_from_a_copy);
    RUN(a_long_message_is_read_from_where_it_lies);
    RUN(an_announced_message_lands_in_the_memory_that_waits_for_it);
    RUN(a_message_that_was_taken_keeps_its_memory_from_the_next);
    RUN(memory_that_is_withdrawn_meanwhile_is_not_what_the_program_gets);
    RUN(other_memory_takes_the_place_of_the_first);
    RUN(too_small_a_memory_leaves_the_message_with_its_sender);
    RUN(an_announced_message_is_taken_back);
    RUN(a_read_that_cannot_be_posted_is_told_once_and_tried_again);
    RUN(whoever_has_closed_takes_an_announced_message_without_reading_it);
    RUN(memory_that_cannot_be_deregistered_is_the_owners);
    RUN(without_memory_to_register_a_long_message_goes_in_pieces);
    RUN(operations_reach_the_region_of_the_peer);
    RUN(each_atomic_finds_its_own_value);
    RUN(operations_that_are_under_way_fail_with_the_connection);
    RUN(an_operation_after_the_end_leaves_the_others_alone);
    RUN(a_withdrawn_region_is_released_behind_all_operations);
    RUN(an_array_is_described_to_those_who_know_it);
    RUN(messages_go_on_beyond_2_to_the_32);
    RUN(the_last_number_before_2_to_the_32_is_stopped);
    RUN(regions_and_operations_go_on_beyond_2_to_the_32);
    RUN(random_programs_lose_nothing);
    return check_done();
}
