/* SPDX-License-Identifier: Apache-2.0
 *
 * What the responder of a reliable connection makes of requests that come again: the answers that it has saved, how old
 * they may be, which part of them is asked for, and when a gap is told once more.
 */
#include <string.h>

#include "check.h"
#include "fabric.h"
#include "hand.h"
#include "roce/resp.h"
#include "roce/roce.h"
#include "wire/bth.h"

static struct pair p;

static void send_by_hand(struct end *from, uint8_t *bytes, uint8_t opcode, uint32_t psn, uint32_t n) {
    bth_set_opcode(bytes, opcode);
    bth_set_m(bytes, 1);
    bth_set_pkey(bytes, 0xFFFF);
    bth_set_dqpn(bytes, from->peer->qp->pub.qp_num);
    bth_set_psn(bytes, psn);
    fabric_inject(from->node, &from->qp->way, bytes, n);
}

/* ---------------------------------------------------------------- a lap of PSNs */

/* As if so many packets had gone from a to b, which takes some seconds of any machine for a lap. */
static void pass_over(uint32_t packets) {
    struct requester *req = &rc_of(p.a.qp)->req;
    struct responder *resp = &rc_of(p.b.qp)->resp;
    CHECK_EQ(req->una, req->max_psn);
    CHECK_EQ(req->una, resp->psn);
    req->psn = req->max_psn = req->una = resp->psn = psn_add(resp->psn, (int32_t)packets);
    resp->acked = psn_add(resp->psn, -1);
    resp->count += packets;
}

static enum verdict lose_an_atomic_ack(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    bool *lost = arg;
    (void)from;
    (void)nth;
    if (*lost || bth_opcode(bth) != ROCE_RC_ATOMIC_ACK)
        return PASS;
    *lost = true;
    return LOSE;
}

static uint64_t word(const struct end *e, uint64_t at) {
    uint64_t v;
    memcpy(&v, e->mem + at, sizeof v);
    return v;
}

/* The same PSN comes again after 2^24 packets, and the place of the first answer has not been needed in between. */
static void an_answer_of_a_lap_ago_answers_nothing(void) {
    bool lost = true;
    pair_open(&p);
    p.f.judge = lose_an_atomic_ack;
    p.f.judge_arg = &lost;
    post_add(&p.a, 1, 0, 0, 1000);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    pass_over(PSN_MASK); /* and the atomic was one */
    lost = false;
    post_add(&p.a, 2, 8, 0, 1);
    fabric_settle(&p.f);
    CHECK(lost);
    WANT(p.a.send_cq, 2, SUCCESS);
    CHECK_EQ(word(&p.a, 8), 1000);
    CHECK_EQ(word(&p.b, 0), 1001);
    CHECK_EQ(COUNTER(&p.b, duplicate_requests), 1);
    pair_close_quietly(&p);
}

/* What has no place any more is not answered with what lies there now. */
static void an_answer_of_before_the_connection_began_is_none(void) {
    pair_open(&p, .sq_psn = 5);
    const struct hand first = {ROCE_RC_FETCH_ADD, 0, 0, 0, -1, 0};
    inject(&p.a, &first);
    fabric_settle(&p.f);
    CHECK_EQ(COUNTER(&p.b, drop_duplicate), 1);
    CHECK_EQ(word(&p.b, 0), 0);
    pair_close_quietly(&p);
}

static uint32_t psn_of_last_ack(void) {
    for (uint32_t i = p.f.logged; i--;) {
        if (p.f.log[i].from == 1 && !p.f.log[i].arrived && p.f.log[i].opcode == ROCE_RC_ACK)
            return p.f.log[i].psn;
    }
    check_fail(__FILE__, __LINE__, "there was no ACK");
    return 0;
}

/* A duplicate is answered with the PSN of the last SEND or WRITE.  Where READs alone have followed it for a lap, that PSN
 * would be of what the requester has under way now. */
static void an_ack_never_names_what_is_still_to_come(void) {
    const uint32_t bytes = 1u << 23;
    pair_open(&p, .mtu = RNIC_MTU_256, .bytes = bytes, .quiet = true, .window = 1 << 24);
    post_write(&p.a, 1, 0, 0, 10);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    for (int i = 0; i < 2; i++) {
        struct requester *req = &rc_of(p.a.qp)->req;
        struct responder *resp = &rc_of(p.b.qp)->resp;
        uint32_t leap = PSN_HALF - 40000; /* as of READs, after which one more is executed */
        req->psn = req->max_psn = req->una = resp->psn = psn_add(resp->psn, (int32_t)leap);
        resp->count += leap;
        post_read(&p.a, 2, 0, 0, bytes);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 2, SUCCESS);
    }
    p.f.quiet = false;
    const struct hand again = {ROCE_RC_WRITE_ONLY, 4, 4, 0, -40000, 0};
    inject(&p.a, &again);
    fabric_settle(&p.f);
    int32_t ahead = psn_diff(psn_of_last_ack(), rc_of(p.a.qp)->req.una);
    CHECK(ahead < 0);
    pair_close_quietly(&p);
}

/* ---------------------------------------------------------------- parts of a READ */

/* Of a READ of 2500 bytes in packets of 1024: what is asked for again, and how many packets answer. */
static void a_part_of_a_read_is_answered_if_it_is_a_part(void) {
    static const struct {
        uint32_t packet, offset, length;
        int32_t key;
        uint32_t answers;
    } cases[] = {
        {0, 0, 2500, 0, 3},       /* all of it */
        {1, 1024, 1476, 0, 2},    /* the rest */
        {2, 2048, 452, 0, 1},     /* its end */
        {0, 0, 1024, 0, 1},       /* one packet */
        {0, 0, 2048, 0, 2},       /* the first two */
        {1, 1024, 1024, 0, 1},    /* the one in the middle */
        {0, 0, 2501, 0, 0},       /* longer than it was, by a byte */
        {0, 0, 4096, 0, 0},       /* and by a packet */
        {1, 1024, 1477, 0, 0},    /* a rest that is too long */
        {2, 2048, 1024, 0, 0},    /* */
        {2, 2048, 453, 0, 0},     /* */
        {0, 0, 1000, 0, 0},       /* an end in the middle of a packet */
        {1, 1024, 1475, 0, 0},    /* */
        {1, 1023, 1476, 0, 0},    /* another address than that PSN's */
        {1, 0, 1476, 0, 0},       /* */
        {0, 0, 2500, 1, 0},       /* another key */
        {0, 0, 0xFFFFFFF0, 0, 0}, /* beyond all */
        {1, 1024, 0x80000000, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_note("case %zu", i);
        pair_open(&p);
        uint8_t again[BTH_BYTES + RETH_BYTES] = {0};
        uint32_t psn = rc_of(p.b.qp)->resp.psn;
        post_read(&p.a, 1, 0, 100, 2500);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 1, SUCCESS);
        reth_set_va(again + BTH_BYTES, (uintptr_t)p.b.mem + 100 + cases[i].offset);
        reth_set_rkey(again + BTH_BYTES, p.b.mr->pub.rkey + (uint32_t)cases[i].key);
        reth_set_len(again + BTH_BYTES, cases[i].length);
        send_by_hand(&p.a, again, ROCE_RC_READ_REQUEST, psn_add(psn, (int32_t)cases[i].packet), sizeof again);
        uint64_t before = COUNTER(&p.b, responses_sent);
        fabric_settle(&p.f);
        CHECK_EQ(COUNTER(&p.b, responses_sent) - before, cases[i].answers);
        CHECK_EQ(COUNTER(&p.b, drop_duplicate), !cases[i].answers);
        pair_close_quietly(&p);
    }
}

static void ask_again(uint32_t psn, uint32_t from, uint32_t packets) {
    uint8_t again[BTH_BYTES + RETH_BYTES] = {0};
    reth_set_va(again + BTH_BYTES, (uintptr_t)p.b.mem + from * 256);
    reth_set_rkey(again + BTH_BYTES, p.b.mr->pub.rkey);
    reth_set_len(again + BTH_BYTES, packets * 256);
    send_by_hand(&p.a, again, ROCE_RC_READ_REQUEST, psn_add(psn, (int32_t)from), sizeof again);
}

struct responses { /* PSNs of b's READ responses from a place in the log on */
    uint32_t n;
    uint32_t psn[64];
    uint8_t opcode[64];
};

static struct responses responses_since(uint32_t from) {
    struct responses r = {0};
    for (uint32_t i = from; i < p.f.logged; i++) {
        const struct record *x = &p.f.log[i];
        if (x->from == 1 && !x->arrived && roce_opcode(x->opcode)->mask & OPC_READ_RESP) {
            CHECK(r.n < 64);
            r.opcode[r.n] = x->opcode;
            r.psn[r.n++] = x->psn;
        }
    }
    return r;
}

/* Asked again while it is being answered: from there on, to the end, each packet once more and none left out. */
static void a_read_that_is_asked_for_again_meanwhile_is_answered_from_there_on(void) {
    for (uint32_t at = 0; at < 10; at++) { /* packets that were sent before */
        for (uint32_t from = 0; from < 10; from++) {
            check_note("from %u after %u", from, at);
            pair_open(&p, .mtu = RNIC_MTU_256, .budget = 1, .pause = 10 * US, .latency = US);
            uint32_t psn = rc_of(p.b.qp)->resp.psn, before = p.f.logged;
            fill(p.b.mem, 2560, 9);
            post_read(&p.a, 1, 0, 0, 2560);
            while (responses_since(before).n < at)
                CHECK(fabric_step(&p.f, p.f.now + SEC));
            ask_again(psn, from, 10 - from);
            fabric_settle(&p.f);
            WANT(p.a.send_cq, 1, SUCCESS);
            CHECK(filled(p.a.mem, 2560, 9));
            struct responses r = responses_since(before);
            bool went_back = r.n > 10;
            for (uint32_t i = 1, seen = 0; i < r.n; i++) {
                bool jumps = r.psn[i] != psn_add(r.psn[i - 1], 1);
                seen += jumps;
                if (jumps)
                    CHECK_EQ(r.psn[i], psn_add(psn, (int32_t)from));
                CHECK(seen <= 1);
            }
            CHECK_EQ(r.psn[r.n - 1], psn_add(psn, 9));
            if (went_back) /* from what was asked for on, to the end */
                CHECK(r.n >= 10 + 1 && r.n <= 10 + 10 - from);
            else
                CHECK(from >= at);
            pair_close_quietly(&p);
        }
    }
}

/* A short repetition waits to be answered when a longer one comes. */
static void of_two_repetitions_the_longer_one_counts(void) {
    pair_open(&p, .mtu = RNIC_MTU_256);
    uint32_t psn = rc_of(p.b.qp)->resp.psn;
    post_read(&p.a, 1, 0, 0, 2560);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    uint32_t before = p.f.logged;
    p.b.node->lazy = 50 * US; /* they come in one batch */
    ask_again(psn, 4, 2);
    ask_again(psn, 4, 6);
    ask_again(psn, 4, 1);
    fabric_settle(&p.f);
    struct responses r = responses_since(before);
    CHECK_EQ(r.n, 6);
    for (uint32_t i = 0; i < r.n; i++)
        CHECK_EQ(r.psn[i], psn_add(psn, 4 + (int32_t)i));
    pair_close_quietly(&p);
}

/* ---------------------------------------------------------------- gaps */

/* One NAK a gap; and one more when what comes shows that the requester has gone back and lost the expected packet again:
 * its PSN is none that is further than the last one.  (IBA 9.7.5.2.8) */
static void a_gap_is_told_again_when_its_repetition_is_lost(void) {
    static const struct {
        int psn;
        uint64_t naks;
    } steps[] = {{2, 1}, {3, 1}, {4, 1}, {5, 1}, /* behind the gap, one after the other */
                 {1, 2},                         /* from the beginning again, without the first */
                 {2, 2}, {3, 2}, {4, 2},         /* goes on upwards */
                 {4, 3},                         /* the same once more: somebody asks */
                 {9, 3}, {3, 4}};
    pair_open(&p);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        check_note("step %zu", i);
        const struct hand h = {ROCE_RC_WRITE_ONLY, 4, 4, 0, steps[i].psn, 0};
        inject(&p.a, &h);
        fabric_settle(&p.f);
        CHECK_EQ(COUNTER(&p.b, nak_seq_sent), steps[i].naks);
    }
    const struct hand expected = {ROCE_RC_WRITE_ONLY, 4, 4, 0, 0, 0}, behind = {ROCE_RC_WRITE_ONLY, 4, 4, 0, 7, 0};
    inject(&p.a, &expected);
    fabric_settle(&p.f);
    CHECK_EQ(COUNTER(&p.b, nak_seq_sent), 4);
    inject(&p.a, &behind); /* another gap */
    fabric_settle(&p.f);
    CHECK_EQ(COUNTER(&p.b, nak_seq_sent), 5);
    pair_close(&p);
}

/* ---------------------------------------------------------------- answers that wait */

/* The others keep their order, wherever the queue begins in its ring. */
static void an_answer_that_is_not_needed_any_more_leaves_the_queue(void) {
    enum { PLACES = 6, WAIT = 5 };
    for (uint32_t head = 0; head < PLACES; head++) {
        for (uint32_t out = 0; out <= WAIT; out++) {
            struct resource res[PLACES] = {0};
            uint32_t queue[PLACES];
            struct responder resp = {.res = res, .res_size = PLACES, .queue = queue, .queue_head = head};
            check_note("head %u, out %u", head, out);
            for (uint32_t i = 0; i < WAIT; i++)
                resp_enqueue(&resp, &res[i], 0, 1);
            resp_unqueue(&resp, &res[out]); /* the last one waits for nothing */
            CHECK_EQ(resp.queue_count, out < WAIT ? WAIT - 1 : WAIT);
            for (uint32_t i = 0; i < resp.queue_count; i++)
                CHECK_EQ(queue[(head + i) % PLACES], i + (i >= out));
        }
    }
}

/* What is asked for again while it is being given: it goes back if it must, and as far as either asked for. */
static void an_answer_under_way_goes_on_to_the_farther_end(void) {
    static const struct {
        uint32_t from, end, start_after, cur_after, end_after;
    } rows[] = {{0, 8, 0, 0, 8}, {2, 8, 2, 2, 8}, {3, 6, 3, 3, 8}, {4, 9, 0, 4, 9},  {5, 7, 0, 4, 8},
                {3, 9, 3, 3, 9}, {0, 4, 0, 4, 8}, {0, 5, 0, 0, 8}, {6, 10, 0, 4, 10}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t queue[2];
        struct resource res[2] = {0};
        struct responder resp = {.res = res, .res_size = 2, .queue = queue, .queue_head = 1};
        check_note("row %zu", i);
        resp_enqueue(&resp, &res[1], 0, 8);
        CHECK(res[1].queued && queue[1] == 1 && res[1].start == 0 && res[1].cur == 0 && res[1].end == 8);
        res[1].cur = 4;
        resp_enqueue(&resp, &res[1], rows[i].from, rows[i].end);
        CHECK_EQ(resp.queue_count, 1);
        CHECK_EQ(res[1].start, rows[i].start_after);
        CHECK_EQ(res[1].cur, rows[i].cur_after);
        CHECK_EQ(res[1].end, rows[i].end_after);
    }
}

/* Such a WRITE was acknowledged by whoever had the connection; so it is once more, up to before the first PSN. */
static void an_ack_before_the_first_request_names_the_one_before_it(void) {
    pair_open(&p, .sq_psn = 5);
    const struct hand early = {ROCE_RC_WRITE_ONLY, 4, 4, 0, -3, 0};
    inject(&p.a, &early);
    fabric_settle(&p.f);
    CHECK_EQ(COUNTER(&p.b, requests_executed), 0);
    CHECK_EQ(psn_of_last_ack(), 4);
    pair_close_quietly(&p);
}

int main(void) {
    RUN(an_answer_of_a_lap_ago_answers_nothing);
    RUN(an_answer_of_before_the_connection_began_is_none);
    RUN(an_ack_never_names_what_is_still_to_come);
    RUN(a_part_of_a_read_is_answered_if_it_is_a_part);
    RUN(a_read_that_is_asked_for_again_meanwhile_is_answered_from_there_on);
    RUN(of_two_repetitions_the_longer_one_counts);
    RUN(a_gap_is_told_again_when_its_repetition_is_lost);
    RUN(an_answer_that_is_not_needed_any_more_leaves_the_queue);
    RUN(an_answer_under_way_goes_on_to_the_farther_end);
    RUN(an_ack_before_the_first_request_names_the_one_before_it);
    return check_done();
}
