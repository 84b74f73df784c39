/* SPDX-License-Identifier: Apache-2.0
 *
 * Borders of a reliable connection: the last message that there is credit for, a gap whose repetition is lost again, the
 * last byte that a repeated READ may ask for, an answer that is asked for again while it is given, the last byte of a
 * scatter list's pieces, waits, and rights of sources.
 */
#include <string.h>

#include "check.h"
#include "fabric.h"
#include "hand.h"
#include "roce/roce.h"
#include "wire/bth.h"

static struct pair p;

/* Packets of an opcode that a sent up to a time. */
static uint32_t sent(int opcode, uint64_t until) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p.f.logged; i++) {
        const struct record *r = &p.f.log[i];
        n += r->from == 0 && !r->arrived && r->opcode == opcode && r->at <= until;
    }
    return n;
}

static void all_messages_that_there_is_credit_for_go_out_at_once(void) {
    for (uint32_t credits = 1; credits <= 4; credits++) { /* what 5 bits can say exactly */
        check_note("%u credits", credits);
        pair_open(&p);
        for (uint32_t i = 0; i <= credits; i++)
            post_recv(&p.b, i, 0, 10);
        post_send(&p.a, 0, 0, 10); /* its ACK tells how many are left */
        fabric_settle(&p.f);
        uint64_t now = p.f.now;
        for (uint32_t i = 1; i <= credits + 2; i++)
            post_send(&p.a, i, 0, 10);
        fabric_run(&p.f, now + 5 * US); /* no answer has come yet */
        CHECK_EQ(sent(ROCE_RC_SEND_ONLY, p.f.now), 1 + credits);
        for (uint32_t i = 0; i < 2; i++)
            post_recv(&p.b, 100 + i, 0, 10);
        fabric_settle(&p.f);
        CHECK_EQ(COUNTER(&p.a, rnr_nak_received), 0);
        pair_close(&p);
    }
}

static enum verdict lose_nth_of_b(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)bth;
    return from == p.b.node && nth == *(const uint32_t *)arg ? LOSE : PASS;
}

/* Whatever tells of receives may be lost: a requester without credit asks again by what is under way, or by the next
 * message, which may go out alone (IBA 9.7.7.2.5).  The WRITE asks for no ACK, as nothing waits for it when it goes out. */
static void an_answer_that_told_of_receives_may_be_lost(void) {
    for (uint32_t lost = 0; lost < 30; lost++) {
        check_note("answer %u is lost", lost);
        pair_open(&p);
        p.f.judge = lose_nth_of_b;
        p.f.judge_arg = &lost;
        for (uint64_t i = 0; i < 8; i++) {
            struct rnic_send_wr silent = {.opcode = RNIC_WR_RDMA_WRITE, REMOTE(&p.b, 0), SGL(SGE(&p.a, 0, 8))};
            post_recv(&p.b, i, 0, 10);
            post(&p.a, silent);
            post_send(&p.a, i, 0, 10);
            fabric_run(&p.f, p.f.now + 10 * US * (lost % 7));
        }
        fabric_settle(&p.f);
        for (uint64_t i = 0; i < 8; i++) {
            WANT(p.a.send_cq, i, SUCCESS);
            WANT(p.b.recv_cq, i, SUCCESS);
        }
        CHECK_EQ(COUNTER(&p.a, timeouts), 0);
        pair_close_quietly(&p);
    }
}

static enum verdict lose_twice(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    static uint32_t lost;
    (void)arg;
    if (from != p.a.node)
        return PASS;
    if (nth == 0)
        lost = 0;
    if (bth_psn(bth) != psn_add(0x123456, 2) || lost == 2)
        return PASS;
    lost++;
    return LOSE;
}

static void a_gap_whose_repetition_is_lost_is_told_again(void) {
    pair_open(&p, .mtu = RNIC_MTU_256);
    p.f.judge = lose_twice;
    fill(p.a.mem, 8192, 3);
    post_write(&p.a, 1, 0, 0, 8192);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    CHECK(filled(p.b.mem, 8192, 3));
    CHECK(COUNTER(&p.b, nak_seq_sent) >= 2 && COUNTER(&p.b, nak_seq_sent) <= 3);
    CHECK_EQ(COUNTER(&p.a, timeouts), 0);
    pair_close(&p);
}

/* A READ of 600 bytes, three packets, was answered; then it, or a part, is asked for again. */
static uint32_t answers_to(int psn, uint64_t at, uint32_t dma) {
    pair_open(&p, .mtu = RNIC_MTU_256);
    post_read(&p.a, 1, 0, 0, 600);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    uint32_t before = (uint32_t)COUNTER(&p.b, responses_sent);
    inject(&p.a, &(struct hand){.opcode = ROCE_RC_READ_REQUEST, .dma = dma, .psn = psn, .at = at});
    fabric_settle(&p.f);
    uint32_t n = (uint32_t)COUNTER(&p.b, responses_sent) - before;
    pair_close(&p);
    return n;
}

static void a_read_is_repeated_as_far_as_it_was_asked_for(void) {
    CHECK_EQ(answers_to(-3, 0, 600), 3);
    CHECK_EQ(answers_to(-3, 0, 601), 0);
    CHECK_EQ(answers_to(-3, 0, 512), 2);
    CHECK_EQ(answers_to(-3, 0, 511), 0); /* it would end within a packet of the first answer */
    CHECK_EQ(answers_to(-3, 1, 512), 0);
    CHECK_EQ(answers_to(-2, 256, 344), 2);
    CHECK_EQ(answers_to(-2, 256, 345), 0);
    CHECK_EQ(answers_to(-2, 255, 344), 0);
    CHECK_EQ(answers_to(-1, 512, 88), 1);
    CHECK_EQ(answers_to(-1, 512, 89), 0);
}

/* A READ of eight packets of which half are answered when it, or its end, is asked for again: packets in all. */
static uint32_t answers_when_asked_again(int psn, uint64_t at, uint32_t dma) {
    pair_open(&p, .mtu = RNIC_MTU_256, .budget = 2, .pause = 100 * US);
    fill(p.b.mem, 2048, 9);
    post_read(&p.a, 1, 0, 0, 2048);
    while (COUNTER(&p.b, responses_sent) < 4)
        CHECK(fabric_step(&p.f, p.f.now + SEC));
    inject(&p.a, &(struct hand){.opcode = ROCE_RC_READ_REQUEST, .dma = dma, .psn = psn, .at = at});
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    CHECK(filled(p.a.mem, 2048, 9));
    CHECK_EQ(COUNTER(&p.a, timeouts), 0);
    uint32_t n = (uint32_t)COUNTER(&p.b, responses_sent);
    pair_close(&p);
    return n;
}

static void an_answer_goes_back_when_it_is_asked_for_again_and_not_forward(void) {
    CHECK_EQ(answers_when_asked_again(-8, 0, 2048), 4 + 8);
    CHECK_EQ(answers_when_asked_again(-6, 512, 1536), 4 + 6);
    CHECK_EQ(answers_when_asked_again(-8, 0, 512), 8);      /* a probe: what is still to come shows what is lost */
    CHECK_EQ(answers_when_asked_again(-8, 0, 1280), 4 + 8); /* its end stays where it was */
    CHECK_EQ(answers_when_asked_again(-2, 1536, 512), 8);
}

/* Whether a message of so many bytes is received into ten bytes, and then so many at the end of the region. */
static bool received(uint32_t n, uint64_t before_end, uint32_t length) {
    pair_open(&p);
    fill(p.a.mem, 32, 5);
    struct rnic_sge sges[] = {SGE(&p.b, 0, 10), SGE(&p.b, p.b.bytes - before_end, length)};
    struct rnic_recv_wr wr = {.wr_id = 1, .sg_list = sges, .num_sge = 2};
    const struct rnic_recv_wr *bad;
    CHECK_EQ(rq_post(&p.b.qp->rq, &wr, &bad, NULL), 0);
    post_send(&p.a, 1, 0, n);
    fabric_settle(&p.f);
    bool good = TAKE(p.b.recv_cq).status == RNIC_WC_SUCCESS;
    if (good)
        WANT(p.a.send_cq, 1, SUCCESS);
    else
        WANT(p.a.send_cq, 1, REM_OP_ERR);
    pair_close(&p);
    return good;
}

static void each_piece_of_a_list_lies_in_its_region_as_a_whole(void) {
    CHECK(received(15, 5, 5));
    CHECK(!received(15, 5, 6));
    CHECK(!received(11, 5, 6)); /* also when the message does not come that far */
    CHECK(!received(11, 0, 1));
}

/* IBA table 45: in steps of half an octave from 0.01 ms on, but 0, which is the longest. */
static void a_wait_of_two_codes_more_is_twice_as_long(void) {
    for (uint64_t code = 1; code <= 4; code++)
        CHECK_EQ(rnr_delay((unsigned)code), code * 10 * US);
    for (unsigned code = 5; code < 32; code++) {
        check_note("code %u", code);
        CHECK_EQ(rnr_delay(code), 2 * rnr_delay(code - 2));
    }
    CHECK_EQ(rnr_delay(0), 655360 * US);
    CHECK_EQ(rnr_delay(32 + 7), rnr_delay(7)); /* five bits count */
}

/* Of memory that may only be read: as the source of a SEND or WRITE it is good, as the target of a READ it is not. */
static void a_source_needs_no_right_to_be_written(void) {
    static const int types[] = {RNIC_QPT_RC, RNIC_QPT_UC};
    for (int i = 0; i < 2; i++) {
        check_note("type %d", types[i]);
        pair_open(&p, .type = types[i]);
        struct mr *mr = fabric_mr(p.a.node, &p.a.node->pd, p.a.mem, 64, 0);
        struct rnic_sge sge = {(uintptr_t)p.a.mem, 10, mr->pub.lkey};
        post_recv(&p.b, 1, 0, 10);
        post(&p.a,
             (struct rnic_send_wr){
                 .wr_id = 1, .opcode = RNIC_WR_SEND, .send_flags = RNIC_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1});
        post(&p.a, (struct rnic_send_wr){.wr_id = 2,
                                         .opcode = RNIC_WR_RDMA_WRITE,
                                         .send_flags = RNIC_SEND_SIGNALED,
                                         .sg_list = &sge,
                                         .num_sge = 1,
                                         REMOTE(&p.b, 0)});
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 1, SUCCESS);
        WANT(p.a.send_cq, 2, SUCCESS);
        WANT(p.b.recv_cq, 1, SUCCESS);
        if (types[i] == RNIC_QPT_RC) {
            post(&p.a, (struct rnic_send_wr){.wr_id = 3,
                                             .opcode = RNIC_WR_RDMA_READ,
                                             .send_flags = RNIC_SEND_SIGNALED,
                                             .sg_list = &sge,
                                             .num_sge = 1,
                                             REMOTE(&p.b, 0)});
            fabric_settle(&p.f);
            WANT(p.a.send_cq, 3, LOC_PROT_ERR);
        }
        fabric_drop_mr(p.a.node, mr);
        pair_close(&p);
    }
}

int main(void) {
    RUN(all_messages_that_there_is_credit_for_go_out_at_once);
    RUN(an_answer_that_told_of_receives_may_be_lost);
    RUN(a_gap_whose_repetition_is_lost_is_told_again);
    RUN(a_read_is_repeated_as_far_as_it_was_asked_for);
    RUN(an_answer_goes_back_when_it_is_asked_for_again_and_not_forward);
    RUN(each_piece_of_a_list_lies_in_its_region_as_a_whole);
    RUN(a_wait_of_two_codes_more_is_twice_as_long);
    RUN(a_source_needs_no_right_to_be_written);
    return check_done();
}
