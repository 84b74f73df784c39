/* SPDX-License-Identifier: Apache-2.0
 *
 * Tag matching on virtual time: eager and rendezvous messages, what matches and in which order, what nothing matches,
 * faults, and what a peer may send that means no good.
 */
#include <string.h>

#include "check.h"
#include "fabric.h"
#include "qp/tagged.h"
#include "roce/roce.h"

#define MTU 256u
#define TAGS 8
#define CTX 0xC0FFEEu

static struct pair p;
static struct srq srq;
static struct tag_list list;
static struct tagged tagged;

static void open_tagged(const struct options *o) {
    struct options all = *o;
    all.mtu = RNIC_MTU_256;
    pair_open_options(&p, &all);
    memset(&srq, 0, sizeof srq);
    CHECK_EQ(srq_init(&srq, 16, 4), 0);
    CHECK_EQ(tag_list_init(&list, TAGS, 4, 16), 0);
    tagged = (struct tagged){.list = &list};
    p.b.qp->srq = &srq;
    p.b.qp->tagged = &tagged;
}
#define OPEN(...) open_tagged(&(struct options){__VA_ARGS__})

static void close_tagged(void) {
    pair_close(&p);
    srq_free(&srq);
    tag_list_free(&list);
}

static void close_quietly(void) {
    pair_quiet(&p);
    close_tagged();
}

static uint32_t add_masked(uint64_t id, uint64_t tag, uint64_t mask, uint64_t at, uint32_t n) {
    struct rnic_sge sge = SGE(&p.b, at, n);
    struct rnic_ops_wr wr = {.tm.add = {.recv_wr_id = id, .sg_list = &sge, .num_sge = 1, .tag = tag, .mask = mask}};
    struct tag_entry *e = tag_add(&list, &wr);
    CHECK(e != NULL);
    return e->handle;
}

static uint32_t add(uint64_t id, uint64_t tag, uint64_t at, uint32_t n) {
    return add_masked(id, tag, UINT64_MAX, at, n);
}

static void post_shared(uint64_t id, uint64_t at, uint32_t n) {
    struct rnic_recv_wr wr = {.wr_id = id, SGL(SGE(&p.b, at, n))};
    const struct rnic_recv_wr *bad;
    CHECK_EQ(rq_post(&srq.q, &wr, &bad, NULL), 0);
}

static void put_header(uint8_t *to, int opcode, uint64_t tag) {
    memset(to, 0, TMH_BYTES);
    tmh_set_opcode(to, (uint8_t)opcode);
    put_be32(to + 4, CTX);
    put_be64(to + 8, tag);
}

/* From a: header and n bytes behind it, which have lain there. */
static void send_eager(uint64_t id, uint64_t tag, uint64_t at, uint32_t n) {
    put_header(p.a.mem + at, TMH_EAGER, tag);
    post_send(&p.a, id, at, TMH_BYTES + n);
}

static void send_request(uint64_t id, uint64_t tag, uint64_t at, uint64_t data, uint32_t n, uint32_t rkey) {
    uint8_t *to = p.a.mem + at;
    put_header(to, TMH_RNDV, tag);
    put_be64(to + 16, (uintptr_t)p.a.mem + data);
    put_be32(to + 24, rkey);
    put_be32(to + 28, n);
    post_send(&p.a, id, at, TMH_BYTES + RVH_BYTES);
}

static struct rnic_wc want(uint64_t id, int opcode, uint32_t flags, uint32_t n) {
    struct rnic_wc wc = WANT(p.b.recv_cq, id, SUCCESS);
    CHECK_EQ(wc.opcode, opcode);
    CHECK_EQ(wc.wc_flags, flags);
    CHECK_EQ(wc.byte_len, n);
    CHECK_EQ(wc.qp_num, p.b.qp->pub.qp_num);
    return wc;
}

#define MATCH RNIC_WCF_TM_MATCH
#define DATA RNIC_WCF_TM_DATA_VALID

/* ---------------------------------------------------------------- eager */

static void a_short_message_goes_into_the_receive_with_its_tag(void) {
    OPEN(0);
    add(7, 42, 1000, 100);
    fill(p.a.mem + TMH_BYTES, 100, 1);
    send_eager(1, 42, 0, 100);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    want(7, RNIC_WCO_TM_RECV, MATCH | DATA, 100);
    CHECK(filled(p.b.mem + 1000, 100, 1));
    CHECK_EQ(list.used, 0);
    close_quietly();
}

static void a_long_message_tells_of_its_match_first(void) {
    enum { BYTES = 5 * MTU + 3 };
    OPEN(.latency = MS);
    add(7, 42, 1000, BYTES);
    fill(p.a.mem + TMH_BYTES, BYTES, 2);
    send_eager(1, 42, 0, BYTES);
    fabric_run(&p.f, p.f.now + MS);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    want(7, RNIC_WCO_TM_RECV, MATCH, 0);
    want(7, RNIC_WCO_TM_RECV, DATA, BYTES);
    CHECK(filled(p.b.mem + 1000, BYTES, 2));
    close_quietly();
}

static void an_empty_message_matches_too(void) {
    OPEN(0);
    add(7, 0, 1000, 0);
    send_eager(1, 0, 0, 0);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    want(7, RNIC_WCO_TM_RECV, MATCH | DATA, 0);
    close_quietly();
}

static void the_oldest_that_matches_is_taken(void) {
    OPEN(0);
    add(1, 5, 0, 64);
    add(2, 0x100, 64, 64);
    add_masked(3, 0x100, 0xF00, 128, 64); /* 0x1.. */
    add(4, 0x123, 192, 64);
    send_eager(1, 0x123, 1000, 8);
    send_eager(2, 0x123, 1000, 8);
    send_eager(3, 0x100, 2000, 8);
    fabric_settle(&p.f);
    for (uint64_t i = 1; i <= 3; i++)
        WANT(p.a.send_cq, i, SUCCESS);
    want(3, RNIC_WCO_TM_RECV, MATCH | DATA, 8);
    want(4, RNIC_WCO_TM_RECV, MATCH | DATA, 8);
    want(2, RNIC_WCO_TM_RECV, MATCH | DATA, 8);
    CHECK_EQ(list.used, 1);
    close_quietly();
}

/* ---------------------------------------------------------------- what nothing matches */

static void what_matches_nothing_goes_whole_into_a_shared_receive(void) {
    OPEN(0);
    add(7, 42, 1000, 100);
    post_shared(9, 2000, 200);
    fill(p.a.mem + TMH_BYTES, 100, 3);
    send_eager(1, 43, 0, 100);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    want(9, RNIC_WCO_TM_RECV, 0, TMH_BYTES + 100);
    CHECK(!memcmp(p.b.mem + 2000, p.a.mem, TMH_BYTES + 100));
    CHECK_EQ(list.unexpected, 1);
    close_quietly();
}

/* The program may be about to match the message that nothing matched: what it adds meanwhile must not overtake it. */
static void what_is_added_meanwhile_waits_until_the_counts_agree(void) {
    OPEN(0);
    add(1, 42, 0, 100);
    post_shared(9, 2000, 200);
    post_shared(10, 2200, 200);
    send_eager(1, 50, 0, 10);
    fabric_settle(&p.f);
    want(9, RNIC_WCO_TM_RECV, 0, TMH_BYTES + 10);
    add(2, 50, 100, 100);
    send_eager(2, 50, 0, 10); /* not into 2 */
    send_eager(3, 42, 0, 10); /* but 1 is as before */
    fabric_settle(&p.f);
    want(10, RNIC_WCO_TM_RECV, 0, TMH_BYTES + 10);
    want(1, RNIC_WCO_TM_RECV, MATCH | DATA, 10);
    tag_report(&list, 1);
    post_shared(11, 2000, 200);
    send_eager(4, 50, 0, 10);
    fabric_settle(&p.f);
    want(11, RNIC_WCO_TM_RECV, 0, TMH_BYTES + 10);
    tag_report(&list, 3);
    send_eager(5, 50, 0, 10);
    fabric_settle(&p.f);
    want(2, RNIC_WCO_TM_RECV, MATCH | DATA, 10);
    for (uint64_t i = 1; i <= 5; i++)
        WANT(p.a.send_cq, i, SUCCESS);
    close_quietly();
}

static void a_message_without_a_tag_counts_for_nothing(void) {
    OPEN(0);
    add_masked(7, 0, 0, 1000, 100); /* matches all that has a tag */
    for (uint64_t i = 0; i < 4; i++)
        post_shared(i, 2000 + i * 1000, 1000);
    put_header(p.a.mem, TMH_NO_TAG, 42);
    post_send(&p.a, 1, 0, 700);
    post_send(&p.a, 2, 0, 5); /* too short for a header */
    post_send(&p.a, 3, 0, 0);
    put_header(p.a.mem + 1000, TMH_FIN, 42);
    post_send(&p.a, 4, 1000, 32);
    fabric_settle(&p.f);
    static const uint32_t lengths[] = {700, 5, 0, 32};
    for (uint64_t i = 0; i < 4; i++) {
        WANT(p.a.send_cq, i + 1, SUCCESS);
        want(i, RNIC_WCO_TM_NO_TAG, 0, lengths[i]);
    }
    CHECK_EQ(list.unexpected, 0);
    CHECK_EQ(list.used, 1);
    close_quietly();
}

static void a_write_with_immediate_takes_a_shared_receive(void) {
    OPEN(0);
    add_masked(7, 0, 0, 1000, 100);
    post_shared(9, 2000, 0);
    post(&p.a, (struct rnic_send_wr){.wr_id = 1,
                                     .opcode = RNIC_WR_RDMA_WRITE_WITH_IMM,
                                     .send_flags = RNIC_SEND_SIGNALED,
                                     .imm_data = 5,
                                     REMOTE(&p.b, 0),
                                     SGL(SGE(&p.a, 0, 600))});
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    CHECK_EQ(want(9, RNIC_WCO_RECV_RDMA_WITH_IMM, RNIC_WCF_WITH_IMM, 600).imm_data, 5);
    CHECK_EQ(list.used, 1);
    close_quietly();
}

static void without_a_receive_the_sender_is_told_to_wait(void) {
    OPEN(0);
    send_eager(1, 42, 0, 10);
    fabric_run(&p.f, p.f.now + 100 * US);
    CHECK_EQ(COUNTER(&p.b, rnr_nak_sent), 1);
    CHECK_EQ(list.unexpected, 0);
    add(7, 42, 1000, 100);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    want(7, RNIC_WCO_TM_RECV, MATCH | DATA, 10);
    close_quietly();
}

/* ---------------------------------------------------------------- rendezvous */

static void want_fin(uint64_t id, uint64_t at, const uint8_t *request) {
    CHECK_EQ(WANT(p.a.recv_cq, id, SUCCESS).byte_len, 32);
    CHECK_EQ(tmh_opcode(p.a.mem + at), TMH_FIN);
    CHECK(!memcmp(p.a.mem + at + 1, request + 1, 31));
}

static void a_rendezvous_is_read_and_then_finished(void) {
    enum { BYTES = 20000 };
    OPEN(0);
    add(7, 42, 1000, 30000);
    post_recv(&p.a, 8, 60000, 100);
    fill(p.a.mem + 4096, BYTES, 4);
    send_request(1, 42, 0, 4096, BYTES, p.a.mr->pub.rkey);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    want(7, RNIC_WCO_TM_RECV, MATCH, 0);
    want(7, RNIC_WCO_TM_RECV, DATA, BYTES);
    CHECK(filled(p.b.mem + 1000, BYTES, 4));
    CHECK_EQ(p.b.mem[1000 + BYTES], 0);
    want_fin(8, 60000, p.a.mem);
    CHECK_EQ(list.used, 0);
    close_quietly();
}

static void a_rendezvous_of_nothing_is_finished_too(void) {
    OPEN(0);
    add(7, 42, 1000, 0);
    post_recv(&p.a, 8, 60000, 100);
    send_request(1, 42, 0, 4096, 0, 0);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    want(7, RNIC_WCO_TM_RECV, MATCH, 0);
    want(7, RNIC_WCO_TM_RECV, DATA, 0);
    want_fin(8, 60000, p.a.mem);
    close_quietly();
}

static void a_rendezvous_that_does_not_fit_is_left_to_the_program(void) {
    OPEN(0);
    add(7, 42, 1000, 100);
    add(8, 43, 2000, 20); /* not even for the headers */
    send_request(1, 42, 0, 4096, 101, p.a.mr->pub.rkey);
    send_request(2, 43, 64, 4096, 101, p.a.mr->pub.rkey);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    WANT(p.a.send_cq, 2, SUCCESS);
    static const uint32_t lengths[] = {32, 20};
    for (uint64_t i = 0; i < 2; i++) {
        struct rnic_wc wc = WANT(p.b.recv_cq, 7 + i, TM_RNDV_INCOMPLETE);
        CHECK_EQ(wc.opcode, RNIC_WCO_TM_RECV);
        CHECK_EQ(wc.byte_len, lengths[i]);
        CHECK_EQ(wc.wc_flags, MATCH);
        CHECK(!memcmp(p.b.mem + 1000 * (i + 1), p.a.mem + 64 * i, lengths[i]));
    }
    CHECK_EQ(p.b.mem[2020], 0);
    CHECK_EQ(list.used, 0);
    close_quietly();
}

/* A READ brings 2 GiB - 1 at most, a receive of several elements may be longer. */
static void a_rendezvous_of_more_than_a_READ_brings_is_left_to_the_program(void) {
    static const uint32_t lengths[] = {0x80000000, 0xFFFFFFFF};
    for (int i = 0; i < 2; i++) {
        OPEN(0);
        struct rnic_sge room[] = {SGE(&p.b, 1000, 100), SGE(&p.b, 2000, 0xFFFFFFFF)};
        struct rnic_ops_wr wr = {.tm.add = {.recv_wr_id = 7, .sg_list = room, .num_sge = 2, .tag = 42, .mask = ~0ull}};
        CHECK(tag_add(&list, &wr) != NULL);
        send_request(1, 42, 0, 4096, lengths[i], p.a.mr->pub.rkey);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 1, SUCCESS);
        struct rnic_wc wc = WANT(p.b.recv_cq, 7, TM_RNDV_INCOMPLETE);
        CHECK_EQ(wc.byte_len, 32);
        CHECK(!memcmp(p.b.mem + 1000, p.a.mem, 32));
        CHECK_EQ(list.used, 0);
        close_quietly();
    }
}

static void an_unexpected_rendezvous_goes_whole_to_the_program(void) {
    OPEN(0);
    post_shared(9, 2000, 200);
    send_request(1, 42, 0, 4096, 100, p.a.mr->pub.rkey);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    want(9, RNIC_WCO_TM_RECV, 0, 32);
    close_quietly();
}

/* More of them than its send queue holds: the others wait. */
static uint32_t send_invalidating(uint64_t id, uint64_t at, uint32_t n, const struct mw *mw) {
    post(&p.a, (struct rnic_send_wr){.wr_id = id,
                                     .opcode = RNIC_WR_SEND_WITH_INV,
                                     .send_flags = RNIC_SEND_SIGNALED,
                                     .invalidate_rkey = mw->entry.pub.rkey,
                                     SGL(SGE(&p.a, at, n))});
    fabric_settle(&p.f);
    WANT(p.a.send_cq, id, SUCCESS);
    return mw->entry.pub.rkey;
}

/* The completion of what a request brings is the READ's, which tells of no key: such a request is one for the program. */
static void a_message_that_invalidates_matches_but_a_request_that_does_so_is_delivered_whole(void) {
    OPEN(0);
    struct mw mw = {.pub = {.pd = &p.b.node->pd.pub, .type = RNIC_MW_TYPE_2}};
    CHECK_EQ(mw_insert(&p.b.node->nic.mrs, &mw), 0);
    add(7, 42, 1000, 100);
    put_header(p.a.mem, TMH_EAGER, 42);
    uint32_t key = send_invalidating(1, 0, TMH_BYTES + 10, &mw);
    CHECK_EQ(want(7, RNIC_WCO_TM_RECV, MATCH | DATA | RNIC_WCF_WITH_INV, 10).invalidated_rkey, key);
    add(8, 43, 1000, 100);
    post_shared(9, 2000, 200);
    put_header(p.a.mem, TMH_RNDV, 43);
    put_be32(p.a.mem + 28, 50);
    key = send_invalidating(2, 0, TMH_BYTES + RVH_BYTES, &mw);
    CHECK_EQ(want(9, RNIC_WCO_TM_NO_TAG, RNIC_WCF_WITH_INV, 32).invalidated_rkey, key);
    CHECK(!memcmp(p.b.mem + 2000, p.a.mem, 32));
    CHECK_EQ(list.used, 1);
    CHECK_EQ(list.unexpected, 0);
    mw_remove(&p.b.node->nic.mrs, &mw);
    close_quietly();
}

static void many_rendezvous_take_turns(void) {
    OPEN(.wr = 4, .rd_atomic = 1, .dest_rd_atomic = 1);
    fill(p.a.mem + 8192, TAGS * 2000, 5);
    for (uint64_t i = 0; i < TAGS; i++)
        add(i, i, i * 4000, 2000);
    for (uint64_t i = 0; i < TAGS; i++) {
        post_recv(&p.a, i, 60000 + i * 32, 32);
        send_request(i, i, i * 32, 8192 + i * 2000, 2000, p.a.mr->pub.rkey);
        if (i % 4 == 3) {
            fabric_settle(&p.f);
            for (uint64_t k = i - 3; k <= i; k++)
                WANT(p.a.send_cq, k, SUCCESS);
            for (uint64_t k = i - 3; k <= i; k++)
                want_fin(k, 60000 + k * 32, p.a.mem + k * 32);
        }
    }
    CHECK(COUNTER(&p.b, rnr_nak_sent) > 0);
    uint32_t matched = 0, valid = 0;
    for (int i = 0; i < 2 * TAGS; i++) {
        struct rnic_wc wc = TAKE(p.b.recv_cq);
        CHECK_EQ(wc.status, RNIC_WC_SUCCESS);
        matched += wc.wc_flags == MATCH;
        valid += wc.wc_flags == DATA;
    }
    CHECK_EQ(matched, TAGS);
    CHECK_EQ(valid, TAGS);
    for (uint64_t i = 0; i < TAGS; i++)
        CHECK(!memcmp(p.b.mem + i * 4000, p.a.mem + 8192 + i * 2000, 2000));
    close_quietly();
}

/* ---------------------------------------------------------------- the list */

static void what_is_deleted_matches_nothing(void) {
    OPEN(0);
    uint32_t first = add(1, 42, 0, 100), second = add(2, 42, 100, 100);
    CHECK(tag_delete(&list, first));
    CHECK(!tag_delete(&list, first));
    send_eager(1, 42, 0, 10);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    want(2, RNIC_WCO_TM_RECV, MATCH | DATA, 10);
    CHECK(!tag_delete(&list, second));
    uint32_t third = add(3, 42, 0, 100);
    CHECK(third != first && third != second);
    CHECK(!tag_delete(&list, first));
    CHECK(!tag_delete(&list, third + TAGS));
    CHECK(tag_delete(&list, third));
    close_quietly();
}

static void a_full_list_takes_no_more(void) {
    OPEN(0);
    for (uint64_t i = 0; i < TAGS; i++)
        add(i, i, 0, 10);
    struct rnic_ops_wr wr = {.tm.add = {.mask = UINT64_MAX}};
    CHECK(tag_add(&list, &wr) == NULL);
    close_quietly();
}

/* ---------------------------------------------------------------- errors */

static void expect_dead(void) {
    CHECK_EQ(p.b.qp->state, RNIC_QPS_ERR);
    CHECK_EQ(list.used, 0);
    close_tagged();
}

static void an_eager_message_that_is_too_long_is_refused(void) {
    OPEN(0);
    add(7, 42, 1000, 300);
    send_eager(1, 42, 0, 301);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, REM_INV_REQ_ERR);
    want(7, RNIC_WCO_TM_RECV, MATCH, 0);
    CHECK_EQ(WANT(p.b.recv_cq, 7, LOC_LEN_ERR).opcode, RNIC_WCO_TM_RECV);
    CHECK_EQ(p.b.mem[1300], 0);
    expect_dead();
}

static void a_rendezvous_with_a_wrong_key_fails_as_a_read_does(void) {
    OPEN(0);
    add(7, 42, 1000, 300);
    send_request(1, 42, 0, 4096, 300, p.a.mr->pub.rkey ^ 0x100);
    fabric_settle(&p.f);
    CHECK_EQ(TAKE(p.a.send_cq).wr_id, 1);
    want(7, RNIC_WCO_TM_RECV, MATCH, 0);
    CHECK_EQ(WANT(p.b.recv_cq, 7, REM_ACCESS_ERR).opcode, RNIC_WCO_TM_RECV);
    WANT_NONE(p.b.recv_cq);
    expect_dead();
}

static void what_is_under_way_is_flushed(void) {
    OPEN(.latency = MS, .bandwidth = 1000000);
    add(7, 42, 1000, 3000);
    add(8, 43, 5000, 3000);
    send_request(1, 42, 0, 4096, 3000, p.a.mr->pub.rkey);
    send_eager(2, 43, 100, 3000);
    fabric_run(&p.f, p.f.now + 2 * MS);
    want(7, RNIC_WCO_TM_RECV, MATCH, 0);
    want(8, RNIC_WCO_TM_RECV, MATCH, 0);
    CHECK_EQ(move(p.b.qp, RNIC_QPS_ERR), 0);
    for (uint64_t id = 7; id <= 8; id++)
        CHECK_EQ(WANT(p.b.recv_cq, id, WR_FLUSH_ERR).opcode, RNIC_WCO_TM_RECV);
    expect_dead();
}

static void a_reset_gives_back_what_was_taken(void) {
    OPEN(.latency = MS);
    add(7, 42, 1000, 3000);
    send_request(1, 42, 0, 4096, 3000, p.a.mr->pub.rkey);
    fabric_run(&p.f, p.f.now + MS + 10 * US);
    want(7, RNIC_WCO_TM_RECV, MATCH, 0);
    CHECK_EQ(list.used, 1);
    CHECK_EQ(move(p.b.qp, RNIC_QPS_RESET), 0);
    CHECK_EQ(list.used, 0);
    close_tagged();
}

/* A request of several packets, or longer than max_rndv_hdr_size, is none: the program sees it. */
static void a_request_that_is_too_long_for_one_is_no_request(void) {
    OPEN(0);
    add(7, 42, 1000, 3000);
    post_shared(9, 5000, 1000);
    put_header(p.a.mem, TMH_RNDV, 42);
    post_send(&p.a, 1, 0, 400);
    post_shared(10, 6000, 1000);
    post_send(&p.a, 2, 0, 20); /* shorter than its headers */
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    WANT(p.a.send_cq, 2, SUCCESS);
    want(9, RNIC_WCO_TM_NO_TAG, 0, 400);
    want(10, RNIC_WCO_TM_NO_TAG, 0, 20);
    CHECK_EQ(list.used, 1);
    close_quietly();
}

/* ---------------------------------------------------------------- loss */

static void every_message_arrives_once_over_a_bad_wire(void) {
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct rnic_fault fault = {
            .seed = seed, .loss = 100000, .duplicate = 50000, .reorder = 50000, .reorder_gap = 3};
        struct rng dice;
        uint32_t tags = 0, lengths[TAGS];
        bool rendezvous[TAGS];
        check_note("seed %llu", (unsigned long long)seed);
        OPEN(.timeout = 12, .quiet = true);
        rng_seed(&dice, seed + 1000);
        fault_set(&p.a.node->fault, &fault);
        fault_set(&p.b.node->fault, &fault);
        fill(p.a.mem + 8192, TAGS * 4000, seed);
        for (uint32_t i = 0; i < TAGS; i++) {
            lengths[i] = (uint32_t)(rng_next(&dice) % 3000);
            rendezvous[i] = rng_next(&dice) & 1;
            add(i, 100 + i, i * 4000, 3000);
            post_recv(&p.a, i, 60000 + i * 32, 32);
        }
        for (uint32_t i = 0; i < TAGS; i++) {
            uint64_t data = 8192 + i * 4000ull;
            if (rendezvous[i])
                send_request(i, 100 + i, i * 64, data, lengths[i], p.a.mr->pub.rkey);
            else
                send_eager(i, 100 + i, data - TMH_BYTES, lengths[i]);
        }
        fabric_settle(&p.f);
        CHECK_EQ(p.b.qp->state, RNIC_QPS_RTS);
        for (struct rnic_wc wc; cq_take(p.b.recv_cq, 1, &wc);) {
            CHECK_EQ(wc.status, RNIC_WC_SUCCESS);
            if (!(wc.wc_flags & DATA))
                continue;
            CHECK_EQ(wc.byte_len, lengths[wc.wr_id]);
            CHECK_EQ(tags & 1u << wc.wr_id, 0);
            tags |= 1u << wc.wr_id;
            CHECK(!memcmp(p.b.mem + wc.wr_id * 4000, p.a.mem + 8192 + wc.wr_id * 4000, wc.byte_len));
        }
        CHECK_EQ(tags, (1u << TAGS) - 1);
        CHECK_EQ(list.used, 0);
        for (uint32_t i = 0; i < TAGS; i++) {
            WANT(p.a.send_cq, i, SUCCESS);
            if (rendezvous[i])
                CHECK_EQ(TAKE(p.a.recv_cq).byte_len, 32);
        }
        close_quietly();
    }
}

/* As long as 32 bits allow: four entries, and each handle is one of 2^32. */
static void a_handle_does_not_come_again(void) {
    OPEN();
    uint32_t first = add(1, 1, 0, 8);
    CHECK(tag_delete(&list, first) && !tag_delete(&list, first));
    for (int i = 0; i < 200000; i++) {
        uint32_t handle = add(2, 2, 0, 8);
        CHECK(handle != first && tag_delete(&list, handle));
    }
    uint32_t kept = add(3, 3, 0, 8);
    CHECK(!tag_delete(&list, first));
    CHECK(tag_delete(&list, kept));
    close_quietly();
}

int main(void) {
    RUN(a_short_message_goes_into_the_receive_with_its_tag);
    RUN(a_long_message_tells_of_its_match_first);
    RUN(an_empty_message_matches_too);
    RUN(the_oldest_that_matches_is_taken);
    RUN(what_matches_nothing_goes_whole_into_a_shared_receive);
    RUN(what_is_added_meanwhile_waits_until_the_counts_agree);
    RUN(a_message_without_a_tag_counts_for_nothing);
    RUN(a_write_with_immediate_takes_a_shared_receive);
    RUN(without_a_receive_the_sender_is_told_to_wait);
    RUN(a_rendezvous_is_read_and_then_finished);
    RUN(a_rendezvous_of_nothing_is_finished_too);
    RUN(a_rendezvous_that_does_not_fit_is_left_to_the_program);
    RUN(a_rendezvous_of_more_than_a_READ_brings_is_left_to_the_program);
    RUN(an_unexpected_rendezvous_goes_whole_to_the_program);
    RUN(a_message_that_invalidates_matches_but_a_request_that_does_so_is_delivered_whole);
    RUN(many_rendezvous_take_turns);
    RUN(what_is_deleted_matches_nothing);
    RUN(a_full_list_takes_no_more);
    RUN(a_handle_does_not_come_again);
    RUN(an_eager_message_that_is_too_long_is_refused);
    RUN(a_rendezvous_with_a_wrong_key_fails_as_a_read_does);
    RUN(what_is_under_way_is_flushed);
    RUN(a_reset_gives_back_what_was_taken);
    RUN(a_request_that_is_too_long_for_one_is_no_request);
    RUN(every_message_arrives_once_over_a_bad_wire);
    return check_done();
}
