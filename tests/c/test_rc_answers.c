/* SPDX-License-Identifier: Apache-2.0
 *
 * What the responder of a reliable connection says, packet by packet: message sequence numbers, credits, one NAK a gap,
 * and the answers to what it has had already.
 */
#include <string.h>

#include "check.h"
#include "fabric.h"
#include "roce/roce.h"
#include "wire/bth.h"

static struct pair p;

/* The nth answer of b (from 0) of an opcode, as it was sent; NULL: there were not so many. */
static const struct record *answer(int opcode, uint32_t nth) {
    for (uint32_t i = 0; i < p.f.logged; i++) {
        const struct record *r = &p.f.log[i];
        if (r->from == 1 && !r->arrived && r->opcode == opcode && nth-- == 0)
            return r;
    }
    return NULL;
}

static void every_answer_says_how_many_messages_are_complete(void) {
    pair_open(&p, .mtu = RNIC_MTU_256);
    for (uint64_t i = 1; i <= 6; i++) { /* a message is one, however many packets it has */
        if (i <= 3) {
            post_recv(&p.b, i, 0, 4096);
            post_send(&p.a, i, 0, i == 2 ? 1000 : 10);
        } else if (i == 4) {
            post_write(&p.a, i, 0, 0, 2000);
        } else if (i == 5) {
            post_read(&p.a, i, 0, 0, 600);
        } else {
            post_add(&p.a, i, 0, 0, 1);
        }
        fabric_settle(&p.f);
        WANT(p.a.send_cq, i, SUCCESS);
        const struct record *last = &p.f.log[p.f.logged - 1];
        while (last->from == 0 || last->arrived)
            last--;
        CHECK_EQ(last->msn, i);
    }
    CHECK_EQ(answer(ROCE_RC_READ_RESP_FIRST, 0)->msn, 5);
    pair_close(&p);
}

static void a_write_that_has_not_ended_counts_as_no_message(void) {
    pair_open(&p, .mtu = RNIC_MTU_256, .budget = 3, .pause = 100 * US);
    post_write(&p.a, 1, 0, 0, 64 * 256);
    fabric_run(&p.f, p.f.now + 300 * US);
    CHECK_EQ(rc_of(p.b.qp)->resp.msn, 0);
    fabric_settle(&p.f);
    CHECK_EQ(rc_of(p.b.qp)->resp.msn, 1);
    pair_close(&p);
}

static void an_answer_tells_the_receives_that_are_left(void) {
    /* The largest number that the code can say and that is not beyond what is posted. */
    static const struct {
        int posted, left;
    } cases[] = {{1, 0}, {2, 1}, {3, 2}, {4, 3}, {5, 4}, {6, 4}, {7, 6}, {8, 6}, {9, 8}, {13, 12}, {17, 16}, {25, 24}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_note("%d posted", cases[i].posted);
        pair_open(&p);
        for (int n = 0; n < cases[i].posted; n++)
            post_recv(&p.b, 1, 0, 10);
        post_send(&p.a, 1, 0, 10);
        fabric_settle(&p.f);
        const struct record *ack = answer(ROCE_RC_ACK, 0);
        uint32_t code = ack->syndrome & AETH_VALUE, said = code < 2 ? code : (code & 1 ? 3u : 2u) << (code / 2 - 1);
        CHECK_EQ(ack->syndrome & AETH_TYPE, AETH_ACK);
        CHECK_EQ(said, cases[i].left);
        pair_close(&p);
    }
}

static enum verdict lose_third(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)bth;
    return from == arg && nth == 2 ? LOSE : PASS;
}

static void a_gap_is_told_once_with_the_psn_that_is_missing(void) {
    pair_open(&p, .mtu = RNIC_MTU_256);
    p.f.judge = lose_third;
    p.f.judge_arg = p.a.node;
    fill(p.a.mem, 8192, 3);
    post_write(&p.a, 1, 0, 0, 8192); /* 32 packets: 29 of them come out of sequence */
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    CHECK(filled(p.b.mem, 8192, 3));
    CHECK_EQ(COUNTER(&p.b, nak_seq_sent), 1);
    CHECK(COUNTER(&p.b, out_of_sequence) >= 29);
    const struct record *nak = answer(ROCE_RC_ACK, 0);
    while (nak->syndrome != AETH_NAK_PSN_SEQ || nak->arrived || nak->from == 0)
        nak++;
    CHECK_EQ(nak->psn, psn_add(0x123456, 2));
    pair_close(&p);
}

static enum verdict twice(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)nth;
    (void)bth;
    return from == arg ? TWICE : PASS;
}

static void what_comes_again_is_answered_and_not_done_again(void) {
    pair_open(&p, .mtu = RNIC_MTU_256);
    p.f.judge = twice;
    p.f.judge_arg = p.a.node;
    post_recv(&p.b, 7, 1024, 1000);
    post_recv(&p.b, 8, 2048, 1000);
    post_send(&p.a, 1, 0, 700);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    WANT(p.b.recv_cq, 7, SUCCESS);
    WANT_NONE(p.b.recv_cq);
    CHECK_EQ(COUNTER(&p.b, requests_executed), 3);
    CHECK_EQ(COUNTER(&p.b, duplicate_requests), 3);
    for (uint32_t i = 0; answer(ROCE_RC_ACK, i); i++)
        CHECK(psn_diff(answer(ROCE_RC_ACK, i)->psn, psn_add(0x123456, 2)) <= 0);
    for (uint64_t i = 2; i <= 4; i++)
        post_add(&p.a, i, 0, 0, 5);
    fabric_settle(&p.f);
    uint64_t word;
    memcpy(&word, p.b.mem, sizeof word);
    CHECK_EQ(word, 15); /* each was added once */
    pair_close(&p);
}

static void an_rnr_nak_says_how_long_to_wait_and_that_is_waited(void) {
    for (uint8_t code = 1; code < 32; code += 5) {
        check_note("code %u", code);
        pair_open(&p, .min_rnr_timer = code);
        uint64_t start = p.f.now;
        post_send(&p.a, 1, 0, 10);
        while (!COUNTER(&p.a, rnr_nak_received))
            CHECK(fabric_step(&p.f, start + SEC));
        post_recv(&p.b, 1, 0, 10);
        CHECK_EQ(answer(ROCE_RC_ACK, 0)->syndrome, AETH_RNR | code);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 1, SUCCESS);
        uint64_t again = 0; /* when the request went out the second time */
        for (uint32_t i = 0; i < p.f.logged; i++) {
            if (p.f.log[i].from == 0 && !p.f.log[i].arrived)
                again = p.f.log[i].at;
        }
        CHECK(again - start >= rnr_delay(code));
        pair_close(&p);
    }
}

static void a_read_of_no_bytes_needs_no_key_and_takes_a_psn(void) {
    pair_open(&p);
    for (uint64_t i = 1; i <= 2; i++)
        post(&p.a, (struct rnic_send_wr){.wr_id = i,
                                         .opcode = i == 1 ? RNIC_WR_RDMA_READ : RNIC_WR_RDMA_WRITE,
                                         .send_flags = RNIC_SEND_SIGNALED,
                                         .wr.rdma = {0x1000, ~p.b.mr->pub.rkey}});
    post_write(&p.a, 3, 0, 0, 10);
    fabric_settle(&p.f);
    for (uint64_t i = 1; i <= 3; i++)
        WANT(p.a.send_cq, i, SUCCESS);
    CHECK_EQ(answer(ROCE_RC_READ_RESP_ONLY, 0)->psn, 0x123456);
    CHECK_EQ(rc_of(p.b.qp)->resp.psn, psn_add(0x123456, 3));
    pair_close(&p);
}

int main(void) {
    RUN(every_answer_says_how_many_messages_are_complete);
    RUN(a_write_that_has_not_ended_counts_as_no_message);
    RUN(an_answer_tells_the_receives_that_are_left);
    RUN(a_gap_is_told_once_with_the_psn_that_is_missing);
    RUN(what_comes_again_is_answered_and_not_done_again);
    RUN(an_rnr_nak_says_how_long_to_wait_and_that_is_waited);
    RUN(a_read_of_no_bytes_needs_no_key_and_takes_a_psn);
    return check_done();
}
