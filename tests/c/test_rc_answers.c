/* SPDX-License-Identifier: Apache-2.0
 *
 * What the responder of a reliable connection says, packet by packet: message sequence numbers, credits, one NAK a gap,
 * and the answers to what it has had already.
 */
#include <string.h>

#include "check.h"
#include "fabric.h"
#include "hand.h"
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
        CHECK(!last->ackreq && !last->solicited); /* of requests alone */
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

/* So many that 5 bits cannot say them exactly, or at all: the largest number that they can is 32768. */
static void an_answer_tells_of_many_receives_as_well_as_it_can(void) {
    static const uint32_t cases[][2] = {{24575, 16384}, {24576, 24576}, {32767, 24576},  {32768, 32768},
                                        {49151, 32768}, {49152, 32768}, {1 << 20, 32768}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_note("%u posted", cases[i][0]);
        pair_open(&p);
        _Atomic uint32_t *head = &p.b.qp->rq.head;
        atomic_fetch_add(head, cases[i][0]); /* a WRITE takes none of them */
        post_write(&p.a, 1, 0, 0, 10);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 1, SUCCESS);
        atomic_fetch_sub(head, cases[i][0]);
        CHECK_EQ(rc_of(p.a.qp)->req.lsn, 1 + cases[i][1]);
        pair_close(&p);
    }
}

/* The kernel's requester now and then goes on by its timer alone, which waits for what is not acknowledged. */
static void no_more_is_acknowledged_than_was_asked_for(void) {
    pair_open(&p, .mtu = RNIC_MTU_256, .ack_hold = 100 * US); /* while the others come */
    post_recv(&p.b, 1, 0, 4096);
    post_recv(&p.b, 2, 0, 4096);
    uint32_t asked = rc_of(p.b.qp)->resp.psn;
    inject(&p.a, &(struct hand){.opcode = ROCE_RC_SEND_ONLY, .length = 256});
    inject_unasked(&p.a, &(struct hand){.opcode = ROCE_RC_SEND_FIRST, .length = 256, .psn = 1});
    inject_unasked(&p.a, &(struct hand){.opcode = ROCE_RC_SEND_MIDDLE, .length = 256, .psn = 2});
    fabric_run(&p.f, p.f.now + 1000 * US);
    CHECK_EQ(rc_of(p.b.qp)->resp.psn, psn_add(asked, 3));
    CHECK_EQ(answer(ROCE_RC_ACK, 0)->psn, asked);
    CHECK(answer(ROCE_RC_ACK, 1) == NULL);
    inject_unasked(&p.a, &(struct hand){.opcode = ROCE_RC_SEND_FIRST, .length = 256, .psn = -2});
    fabric_run(&p.f, p.f.now + 1000 * US);
    CHECK_EQ(answer(ROCE_RC_ACK, 1)->psn, psn_add(asked, 1)); /* what comes again */
    inject_unasked(&p.a, &(struct hand){.opcode = ROCE_RC_SEND_LAST, .length = 256});
    fabric_run(&p.f, p.f.now + 1000 * US);
    CHECK_EQ(answer(ROCE_RC_ACK, 2)->psn, psn_add(asked, 3));
    WANT(p.b.recv_cq, 1, SUCCESS);
    WANT(p.b.recv_cq, 2, SUCCESS);
    pair_close(&p);
}

/* Of the message under way all that has come is acknowledged to one that asks again: an ACK may have been lost. */
static void what_asks_again_is_told_of_all_that_has_come(void) {
    pair_open(&p, .mtu = RNIC_MTU_256);
    post_recv(&p.b, 1, 0, 4096);
    uint32_t first = rc_of(p.b.qp)->resp.psn;
    inject_unasked(&p.a, &(struct hand){.opcode = ROCE_RC_SEND_FIRST, .length = 256});
    inject_unasked(&p.a, &(struct hand){.opcode = ROCE_RC_SEND_MIDDLE, .length = 256, .psn = 1});
    fabric_run(&p.f, p.f.now + 1000 * US);
    CHECK(answer(ROCE_RC_ACK, 0) == NULL);
    inject(&p.a, &(struct hand){.opcode = ROCE_RC_SEND_FIRST, .length = 256, .psn = -2});
    fabric_run(&p.f, p.f.now + 1000 * US);
    CHECK_EQ(answer(ROCE_RC_ACK, 0)->psn, psn_add(first, 1));
    pair_close(&p);
}

/* It would complete the READ, or end the queue pair. */
static void a_WRITE_with_the_PSN_of_a_READ_draws_no_ACK_of_it(void) {
    pair_open(&p, .mtu = RNIC_MTU_256);
    uint32_t was = rc_of(p.b.qp)->resp.psn;
    inject(&p.a, &(struct hand){.opcode = ROCE_RC_WRITE_ONLY, .length = 256, .dma = 256});
    fabric_run(&p.f, p.f.now + 100 * US);
    inject(&p.a, &(struct hand){.opcode = ROCE_RC_READ_REQUEST, .dma = 1024});
    fabric_run(&p.f, p.f.now + 100 * US);
    inject(&p.a, &(struct hand){.opcode = ROCE_RC_WRITE_ONLY, .length = 256, .dma = 256, .psn = -2});
    fabric_run(&p.f, p.f.now + 1000 * US);
    CHECK_EQ(answer(ROCE_RC_ACK, 0)->psn, was);
    CHECK_EQ(answer(ROCE_RC_ACK, 1)->psn, was);
    pair_close(&p);
}

/* 2^31 bytes in packets of 256, behind a lap of READs. */
static void an_ACK_is_never_ahead_however_long_nobody_asks(void) {
    pair_open(&p, .mtu = RNIC_MTU_256);
    struct responder *resp = &rc_of(p.b.qp)->resp;
    resp->acked = psn_add(resp->psn, -PSN_HALF / 2);
    inject_unasked(&p.a, &(struct hand){.opcode = ROCE_RC_WRITE_FIRST, .length = 256, .dma = 4096});
    fabric_run(&p.f, p.f.now + 100 * US);
    for (int i = 0; i < 4; i++) { /* all but a few of its packets have come */
        resp->psn = psn_add(resp->psn, PSN_HALF / 4);
        resp->count += PSN_HALF / 4;
        inject_unasked(&p.a, &(struct hand){.opcode = ROCE_RC_WRITE_MIDDLE, .length = 256});
        fabric_run(&p.f, p.f.now + 100 * US);
    }
    inject_unasked(&p.a, &(struct hand){.opcode = ROCE_RC_WRITE_MIDDLE, .length = 256, .psn = -1}); /* again */
    fabric_run(&p.f, p.f.now + 1000 * US);
    CHECK_EQ(answer(ROCE_RC_ACK, 0)->psn, psn_add(resp->psn, -1));
    pair_close(&p);
}

struct lost {
    int node;
    uint32_t nth;
};

static enum verdict lose_one(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    const struct lost *lost = arg;
    (void)bth;
    return from == &from->fabric->node[lost->node] && nth == lost->nth ? LOSE : PASS;
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

/* ---------------------------------------------------------------- credits */

static uint32_t sends_at_once(uint32_t want) {
    uint32_t before = fabric_count(&p.f, p.a.node, 0, ROCE_RC_SEND_ONLY);
    for (uint32_t i = 0; i < want; i++)
        post_send(&p.a, 100 + i, 0, 10);
    fabric_run(&p.f, p.f.now + 5 * US); /* no answer has come yet */
    return fabric_count(&p.f, p.a.node, 0, ROCE_RC_SEND_ONLY) - before;
}

static void finish_sends(uint32_t n, uint32_t posted) {
    while (posted++ < n)
        post_recv(&p.b, 1, 0, 10);
    fabric_settle(&p.f);
    for (uint32_t i = 0; i < n; i++) {
        WANT(p.a.send_cq, 100 + i, SUCCESS);
        WANT(p.b.recv_cq, 1, SUCCESS);
    }
    pair_close_quietly(&p);
}

/* Exactly as many as the peer has receives for, after every kind of message, also of those that the peer counts several
 * times; and one when there are none. */
static void as_many_messages_go_out_as_there_are_receives(void) {
    static const struct rnic_send_wr before[] = {
        {.opcode = RNIC_WR_RDMA_WRITE}, {.opcode = RNIC_WR_RDMA_READ}, {.opcode = RNIC_WR_ATOMIC_FETCH_AND_ADD}};
    static const uint32_t lengths[] = {0, 8, 100000};
    for (uint32_t k = 0; k < 9; k++) {
        for (uint32_t receives = 0; receives <= 4; receives++) {
            for (uint32_t start = 0; start < 2; start++) {
                uint32_t n = lengths[k / 3];
                struct rnic_send_wr wr = before[k % 3];
                bool adds = wr.opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD;
                check_note("opcode %d of %u bytes, %u receives, MSN %u", wr.opcode, n, receives, start);
                pair_open(&p, .mtu = RNIC_MTU_256, .bytes = 1 << 17, .window = 1 << 15);
                rc_of(p.a.qp)->req.ssn = rc_of(p.b.qp)->resp.msn = start ? PSN_MASK - 2 : 0;
                for (uint32_t i = 0; i < receives; i++)
                    post_recv(&p.b, 1, 0, 10);
                for (uint32_t i = 0; i < 3; i++) {
                    struct rnic_sge sge = SGE(&p.a, 0, adds ? 8 : n);
                    wr.wr_id = i;
                    wr.send_flags = RNIC_SEND_SIGNALED;
                    wr.sg_list = &sge;
                    wr.num_sge = 1;
                    if (adds) {
                        wr.wr.atomic.remote_addr = (uintptr_t)p.b.mem;
                        wr.wr.atomic.rkey = p.b.mr->pub.rkey;
                    } else {
                        wr.wr.rdma.remote_addr = (uintptr_t)p.b.mem;
                        wr.wr.rdma.rkey = p.b.mr->pub.rkey;
                    }
                    post(&p.a, wr);
                    fabric_settle(&p.f);
                    WANT(p.a.send_cq, i, SUCCESS);
                }
                pair_in_step(&p);
                CHECK_EQ(sends_at_once(10), receives ? receives : 1);
                finish_sends(10, receives);
            }
        }
    }
}

/* Parts of a READ are requests of their own; what is lost and asked for again, in part too, is none. */
static void reads_in_parts_are_counted_alike_whatever_is_lost(void) {
    for (int node = 0; node < 2; node++) {
        for (uint32_t nth = 0; nth < 60; nth++) {
            check_note("packet %u of node %d lost", nth, node);
            struct lost lost = {node, nth};
            pair_open(&p, .mtu = RNIC_MTU_256, .bytes = 1 << 14, .window = 1 << 13, .lazy = 1);
            rc_of(p.a.qp)->req.ssn = rc_of(p.b.qp)->resp.msn = PSN_MASK - 3;
            p.f.judge = lose_one;
            p.f.judge_arg = &lost;
            fill(p.b.mem, 1 << 14, 4);
            post_recv(&p.b, 7, 0, 100);
            post_read(&p.a, 1, 0, 0, 10000);
            post_read(&p.a, 2, 10000, 10000, 6000);
            post_send(&p.a, 3, 0, 100);
            fabric_settle(&p.f);
            for (uint64_t i = 1; i <= 3; i++)
                WANT(p.a.send_cq, i, SUCCESS);
            WANT(p.b.recv_cq, 7, SUCCESS);
            CHECK(!memcmp(p.a.mem + 100, p.b.mem + 100, 15900));
            CHECK(rc_of(p.b.qp)->resp.msn < 20); /* it wrapped */
            pair_close_quietly(&p);
        }
    }
}

/* A responder may say unasked that there are more receives, by repeating its last ACK (IBA 9.7.7.2). */
static void an_ack_that_nobody_asked_for_tells_of_more_receives(void) {
    static const struct {
        int psn;
        uint8_t code; /* of the credits: 6 is 8 receives */
        uint32_t sends;
    } cases[] = {{-1, 6, 8}, {-1, 0, 2}, {-1, AETH_CREDIT_INVALID, 10}, {-2, 6, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_note("case %zu", i);
        pair_open(&p);
        for (int k = 0; k < 3; k++)
            post_recv(&p.b, 1, 0, 10);
        post_send(&p.a, 1, 0, 10);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 1, SUCCESS);
        WANT(p.b.recv_cq, 1, SUCCESS); /* two are left, which its ACK has told */
        struct hand ack = {.opcode = ROCE_RC_ACK, .syndrome = cases[i].code, .psn = cases[i].psn};
        inject(&p.b, &ack);
        fabric_settle(&p.f);
        CHECK_EQ(COUNTER(&p.a, drop_bad_psn), cases[i].psn != -1);
        CHECK_EQ(sends_at_once(10), cases[i].sends);
        finish_sends(10, 2);
    }
}

int main(void) {
    RUN(every_answer_says_how_many_messages_are_complete);
    RUN(a_write_that_has_not_ended_counts_as_no_message);
    RUN(an_answer_tells_the_receives_that_are_left);
    RUN(an_answer_tells_of_many_receives_as_well_as_it_can);
    RUN(no_more_is_acknowledged_than_was_asked_for);
    RUN(what_asks_again_is_told_of_all_that_has_come);
    RUN(a_WRITE_with_the_PSN_of_a_READ_draws_no_ACK_of_it);
    RUN(an_ACK_is_never_ahead_however_long_nobody_asks);
    RUN(a_gap_is_told_once_with_the_psn_that_is_missing);
    RUN(what_comes_again_is_answered_and_not_done_again);
    RUN(an_rnr_nak_says_how_long_to_wait_and_that_is_waited);
    RUN(a_read_of_no_bytes_needs_no_key_and_takes_a_psn);
    RUN(as_many_messages_go_out_as_there_are_receives);
    RUN(reads_in_parts_are_counted_alike_whatever_is_lost);
    RUN(an_ack_that_nobody_asked_for_tells_of_more_receives);
    return check_done();
}
