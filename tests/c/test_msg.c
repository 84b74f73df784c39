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

static uint8_t *bytes_of(uint64_t n, uint64_t seed) {
    uint8_t *data = malloc(n + 1);
    fill(data, n, seed);
    return data;
}

/* Sends a message of a seed's bytes; its memory, to be freed once the message has left it. */
static uint8_t *say(struct side *s, uint64_t n, uint64_t tag, uint64_t seed, int want) {
    uint64_t handle;
    uint8_t *data = bytes_of(n, seed);
    CHECK_EQ(msg_send(s->m, data, n, tag, &handle), want);
    return data;
}

static void hear(struct side *s, const uint64_t *tag, uint64_t n, uint64_t seed) {
    struct msg_in *in = msg_find(s->m, tag);
    CHECK(in != NULL);
    CHECK_EQ(in->bytes, n);
    CHECK(filled(in->data, n, seed));
    msg_take(s->m, in);
    msg_drop(s->m, in);
}

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
    CHECK(!msg_take_back(a.m, 1));
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

static void a_silent_peer_is_probed(void) {
    struct how h = {.idle = SEC};
    talk_open_both(&h, &h);
    CHECK_EQ(msg_deadline(a.m), (int64_t)(p.f.now + SEC));
    p.f.now += SEC;
    talk_settle();
    struct msg_statistics s;
    msg_count(a.m, &s);
    CHECK_EQ(s.probes, 1);
    CHECK_EQ(s.sends, 0);
    CHECK_EQ(s.messages_sent, 0);
    CHECK(msg_deadline(a.m) > (int64_t)p.f.now);
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
        CHECK_EQ(msg_deadline(a.m), access ? (int64_t)(p.f.now + SEC) : MSG_NEVER);
        p.f.now += SEC;
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

/* The example of docs/endpoint-protocol.md, and what is not in it. */
static void frames_have_the_bytes_of_the_protocol(void) {
    static const uint8_t array[] = {0, 3, 0, 0, 0, 0, 0, 0, '<', 'f', '4'};
    struct msg_region region = {.id = 1,
                                .rkey = 0x1234abcd,
                                .access = 2,
                                .addr = 0x7f0000001000,
                                .length = 65536,
                                .array = array,
                                .array_bytes = sizeof array};
    struct msg_offer offer = {7, 0x1234abcd, 0x10000, 0x7f0000001000, 0};
    uint8_t f[64];
#define IS(n, ...)                                                                                                     \
    do {                                                                                                               \
        static const uint8_t want[] = {__VA_ARGS__};                                                                   \
        memset(f, 0xEE, sizeof f);                                                                                     \
        CHECK_EQ(n, sizeof want);                                                                                      \
        CHECK(!memcmp(f, want, sizeof want) && f[sizeof want] == 0xEE);                                                \
    } while (0)
    IS(msg_frame_put_message(f, 0, 0, 5, 0, true), 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5);
    IS(msg_frame_put_message(f, 3, 1, 5, 9, false), 1, 2, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0,
       9);
    IS(msg_frame_put(f, FRAME_CREDIT, 0, 3, 0), 3, 0, 0, 3, 0, 0, 0, 0);
    IS(msg_frame_put_region(f, 1, &region, false), 4, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0x7f, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0,
       1, 0, 0, 0x12, 0x34, 0xab, 0xcd, 0, 0, 0, 2);
    IS(msg_frame_put_region(f, 1, &region, true), 4, 4, 0, 1, 0, 0, 0, 1, 0, 0, 0x7f, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0,
       1, 0, 0, 0x12, 0x34, 0xab, 0xcd, 0, 0, 0, 2, 0, 3, 0, 0, 0, 0, 0, 0, '<', 'f', '4');
    IS(msg_frame_put_offer(f, 2, &offer), 9, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0x7f, 0, 0, 0, 0x10, 0,
       0x12, 0x34, 0xab, 0xcd, 0, 0, 0, 0);
    offer.tag = 4;
    IS(msg_frame_put_offer(f, 2, &offer), 9, 2, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0x7f, 0, 0, 0, 0x10, 0,
       0x12, 0x34, 0xab, 0xcd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4);
    IS(msg_frame_put_abort(f, 64, 3, "too long"), 8, 0, 0, 0, 0, 0, 0, 3, 't', 'o', 'o', ' ', 'l', 'o', 'n', 'g');
    IS(msg_frame_put_abort(f, 11, 3, "a\xc3\xa9\xc3\xa9"), 8, 0, 0, 0, 0, 0, 0, 3, 'a', 0xc3, 0xa9);
    IS(msg_frame_put_abort(f, 12, 3, "a\xc3\xa9\xc3\xa9"), 8, 0, 0, 0, 0, 0, 0, 3, 'a', 0xc3, 0xa9);
#undef IS
}

/* ---------------------------------------------------------------- what a peer may not send */

static void inject(const void *bytes, uint32_t n) {
    memcpy(a.end->mem + MEMORY / 2, bytes, n);
    post(&p.a,
         (struct rnic_send_wr){.wr_id = UINT64_MAX / 4 * 4 + 3, .opcode = RNIC_WR_SEND, SGL(SGE(&p.a, MEMORY / 2, n))});
    fabric_settle(&p.f);
    talk_pump(&b);
}

static void a_frame_that_may_not_come_ends_the_connection(void) {
    static const struct {
        uint8_t bytes[48];
        uint32_t n, reason;
        const char *text;
    } wrong[] = {
        {{0}, 3, MSG_VIOLATION, "a SEND of 3 bytes has no room for the header of 8"},
        {{0, 0, 0, 0, 0, 0, 0, 0}, 8, MSG_VIOLATION, "there is no SEND of type 0"},
        {{12, 0, 0, 0, 0, 0, 0, 0}, 8, MSG_VIOLATION, "there is no SEND of type 12"},
        {{1, 4, 0, 0, 0, 0, 0, 0}, 16, MSG_VIOLATION, "MESSAGE has the flags 0x04"},
        {{1, 1, 0, 0, 0, 0, 0, 0}, 15, MSG_VIOLATION, "MESSAGE has 7 bytes after its header, 8 are needed"},
        {{1, 1, 0, 0, 0, 0, 0, 1}, 16, MSG_VIOLATION, "MESSAGE of message 1, where 0 is due"},
        {{1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
         16,
         MSG_VIOLATION,
         "MESSAGE of message 0 is empty, the message is not"},
        {{1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
         18,
         MSG_VIOLATION,
         "message 0 has 1 bytes, and a fragment goes to 2"},
        {{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
         17,
         MSG_VIOLATION,
         "MESSAGE of message 0 does not say LAST at 1 of 1 bytes"},
        {{1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2},
         17,
         MSG_VIOLATION,
         "MESSAGE of message 0 says LAST at 1 of 2 bytes"},
        {{1, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0, 0, 0, 0, 0, 0, 0},
         17,
         MSG_TOO_LONG,
         "message 0 of 18374686479671623680 bytes is longer than 1048576, the most we take"},
        {{2, 1, 0, 0, 0, 0, 0, 0}, 9, MSG_VIOLATION, "MORE of message 0, which was not begun"},
        {{3, 0, 0, 1}, 8, MSG_CREDIT, "1 credits returned where 0 of 8 were in use"},
        {{3, 0, 0, 0}, 8, MSG_CREDIT, "CREDIT returns 0, it must be two or more"},
        {{3, 0, 0, 0}, 9, MSG_VIOLATION, "CREDIT has 1 bytes after its header, not 0"},
        {{4, 0}, 31, MSG_VIOLATION, "SHARE has 23 bytes after its header, not 24"},
        {{4, 0, 0, 0, 0, 0, 0, 5}, 32, MSG_VIOLATION, "region 5 is shared with the access 0x0"},
        {{4, 0, 0, 0, 0, 0, 0, 5, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 2},
         32,
         MSG_VIOLATION,
         "region 5 ends beyond the address space"},
        {{4, 4, 0, 0, 0, 0, 0, 5, [31] = 4},
         39,
         MSG_VIOLATION,
         "SHARE has 7 bytes for the array of its region, which cannot be"},
        {{4, 4, 0, 0, 0, 0, 0, 5, [31] = 4, [33] = 1},
         41,
         MSG_VIOLATION,
         "SHARE has a type of elements that nobody can read"},
        {{5, 0, 0, 0, 0, 0, 0, 1}, 8, MSG_REGION, "region 1 is withdrawn, and was not shared"},
        {{6, 0, 0, 0, 0, 0, 0, 1}, 8, MSG_REGION, "RELEASE says 1, after 0 and with 0 to come"},
        {{7, 0, 0, 0, 0, 0, 0, 1}, 8, MSG_VIOLATION, "GOODBYE after 1 messages, 0 have come"},
        {{9, 0}, 31, MSG_VIOLATION, "ANNOUNCE has 23 bytes after its header, not 24"},
        {{9, 0}, 32, MSG_VIOLATION, "ANNOUNCE of 0 bytes at 0x0, which cannot be"},
        {{9, 0, 0, 0, 0, 0, 0, 2, [15] = 1}, 32, MSG_VIOLATION, "ANNOUNCE of message 2, where 0 is due"},
        {{10, 0}, 8, MSG_VIOLATION, "TAKEN of message 0, which waits for none"},
        {{11, 0}, 8, MSG_VIOLATION, "STOP of message 0, which was not begun"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        check_note("frame %d", (int)i);
        talk_open_both(&(struct how){0}, &(struct how){0});
        inject(wrong[i].bytes, wrong[i].n);
        const struct msg_error *e = msg_error(b.m);
        if (strcmp(e->text, wrong[i].text))
            check_fail(__FILE__, __LINE__, "\"%s\", not \"%s\"", e->text, wrong[i].text);
        CHECK_EQ(e->kind, MSG_PROTOCOL);
        CHECK_EQ(e->reason, wrong[i].reason);
        talk_settle();
        CHECK_EQ(msg_state(b.m), MSG_FAILED);
        CHECK(!strncmp(msg_error(a.m)->text, "the peer aborted the connection: ", 33));
        talk_close();
    }
}

#define BEGUN {1, 0, [15] = 2, [16] = 9}, 17     /* one byte of two */
#define ANNOUNCED {9, 0, [13] = 0x10, [16] = 1}, 32 /* more than the backlog has room for */
#define LEFT {7}, 8

static void a_frame_that_may_not_follow_ends_the_connection(void) {
    static const struct {
        uint8_t first[48];
        uint32_t first_n;
        uint8_t bytes[48];
        uint32_t n;
        const char *text;
    } wrong[] = {
        {BEGUN, {1, 1, [15] = 1}, 17, "MESSAGE 0 came before message 0 was complete"},
        {BEGUN, {2, 1}, 8, "MORE of message 0 is empty"},
        {BEGUN, {2, 1}, 10, "message 0 has 2 bytes, and a fragment goes to 3"},
        {BEGUN, {2, 0}, 9, "MORE of message 0 does not say LAST at 2 of 2 bytes"},
        {BEGUN, {2, 1, [7] = 1}, 9, "MORE of message 1, where 0 is due"},
        {BEGUN, {7}, 8, "GOODBYE inside of message 0"},
        {BEGUN, {9, [15] = 1}, 32, "ANNOUNCE inside of message 0"},
        {BEGUN, {11, [7] = 1}, 8, "STOP of message 1, which was not begun"},
        {ANNOUNCED, {1, 1, [15] = 1}, 17, "MESSAGE came before message 0 was taken"},
        {ANNOUNCED, {9, [15] = 1}, 32, "ANNOUNCE came before message 0 was taken"},
        {ANNOUNCED, {7}, 8, "GOODBYE came before message 0 was taken"},
        {{4, [7] = 5, [31] = 4}, 32, {4, [7] = 5, [31] = 4}, 32, "region 5 is shared twice"},
        {LEFT, {1, 1, 0, 9}, 16, "MESSAGE after GOODBYE"},
        {LEFT, {2, 1}, 9, "MORE after GOODBYE"},
        {LEFT, {4, [31] = 4}, 32, "SHARE after GOODBYE"},
        {LEFT, {5}, 8, "WITHDRAW after GOODBYE"},
        {LEFT, {7}, 8, "GOODBYE after GOODBYE"},
        {LEFT, {9, [15] = 1}, 32, "ANNOUNCE after GOODBYE"},
        {LEFT, {11}, 8, "STOP after GOODBYE"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        check_note("frame %d", (int)i);
        talk_open_both(&(struct how){0}, &(struct how){0});
        inject(wrong[i].first, wrong[i].first_n);
        CHECK_EQ(msg_error(b.m)->kind, MSG_WELL);
        inject(wrong[i].bytes, wrong[i].n);
        const struct msg_error *e = msg_error(b.m);
        if (strcmp(e->text, wrong[i].text))
            check_fail(__FILE__, __LINE__, "\"%s\", not \"%s\"", e->text, wrong[i].text);
        struct msg_statistics s;
        msg_count(b.m, &s);
        CHECK_EQ(s.partial, 0);
        talk_close();
    }
}

static void what_needs_no_program_may_follow_the_goodbye(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    struct msg_region r = {.access = RNIC_ACCESS_REMOTE_READ, .length = 1};
    CHECK_EQ(msg_share(b.m, &r), 0);
    CHECK_EQ(msg_withdraw(b.m, r.id), 0);
    talk_settle();
    CHECK_EQ(msg_released(b.m), 1);
    CHECK_EQ(msg_share(b.m, &r), 0);
    CHECK_EQ(msg_withdraw(b.m, r.id), 0);
    talk_pump(&b);
    inject((uint8_t[]){7, 0, 0, 0, 0, 0, 0, 0}, 8);
    inject((uint8_t[]){6, 0, 0, 2, 0, 0, 0, 2}, 8);
    CHECK_EQ(msg_error(b.m)->kind, MSG_WELL);
    CHECK_EQ(msg_released(b.m), 2);
    talk_close();
}

static void more_regions_than_were_agreed_end_the_connection(void) {
    talk_open_both(&(struct how){0}, &(struct how){.regions = 1});
    inject((uint8_t[32]){4, [7] = 5, [31] = 4}, 32);
    CHECK_EQ(msg_error(b.m)->kind, MSG_WELL);
    inject((uint8_t[32]){4, [7] = 6, [31] = 4}, 32);
    CHECK_EQ(msg_error(b.m)->reason, MSG_REGION);
    talk_close();
}

static void a_send_without_a_credit_ends_the_connection(void) {
    static const uint8_t empty[][16] = {{1, 1, 0, 0, 0, 0, 0, 0}, {1, 1, 0, 0, 0, 0, 0, 1}, {1, 1, 0, 0, 0, 0, 0, 2}};
    talk_open_both(&(struct how){0}, &(struct how){.receives = 3, .backlog = 1});
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(msg_state(b.m), MSG_OPEN);
        inject(empty[i], 16);
    }
    CHECK_EQ(msg_error(b.m)->reason, MSG_CREDIT);
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
    RUN(too_long_a_message_is_not_sent);
    RUN(a_peer_of_version_1_gets_no_tags);
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
    RUN(an_operation_after_the_end_leaves_the_others_alone);
    RUN(operations_that_are_under_way_fail_with_the_connection);
    RUN(a_withdrawn_region_is_released_behind_all_operations);
    RUN(an_array_is_described_to_those_who_know_it);
    RUN(the_goodbye_comes_behind_all_that_was_sent);
    RUN(an_abort_tells_why);
    RUN(an_abort_keeps_within_its_place);
    RUN(goodbyes_that_are_not_said_in_time_abort);
    RUN(what_the_disconnect_says_counts);
    RUN(what_comes_first_establishes_the_connection);
    RUN(a_silent_peer_is_probed);
    RUN(lost_work_ends_the_connection_with_what_failed);
    RUN(what_the_peer_has_perhaps_not_received_is_counted);
    RUN(an_overrun_queue_is_told);
    RUN(statistics_count);
    RUN(a_message_that_was_taken_is_put_back_ahead_of_others);
    RUN(the_first_send_is_the_hello);
    RUN(the_last_word_stands_for_an_acknowledgement);
    RUN(who_has_the_last_word_says_none);
    RUN(a_peer_that_says_no_hello_is_probed);
    RUN(a_raw_message_is_one_send);
    RUN(a_raw_peer_waits_for_receives);
    RUN(a_raw_peer_is_told_nothing_but_messages);
    RUN(a_raw_message_that_is_put_back_takes_no_receive_back);
    RUN(a_raw_peer_that_leaves_early_is_an_error);
    RUN(frames_have_the_bytes_of_the_protocol);
    RUN(a_frame_that_may_not_come_ends_the_connection);
    RUN(a_frame_that_may_not_follow_ends_the_connection);
    RUN(what_needs_no_program_may_follow_the_goodbye);
    RUN(more_regions_than_were_agreed_end_the_connection);
    RUN(a_send_without_a_credit_ends_the_connection);
    RUN(random_programs_lose_nothing);
    return check_done();
}
