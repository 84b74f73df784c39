/* SPDX-License-Identifier: Apache-2.0
 *
 * What a requester of a reliable connection counts, number by number: round trips, the window, retries, repetitions, bytes
 * under way, and which packets ask for an ACK.  Each test sets what has been counted so far, lets one thing happen, and
 * looks at what has become of it.
 */
#include "check.h"
#include "hand.h"
#include "roce/message.h"
#include "wire/bth.h"
#include "wire/icrc.h"

#define ALL UINT32_MAX
#define LATENCY (10 * US)
#define FULL (256u + PACKET_COST) /* what a packet counts for */
#define LEAST (2 * FULL)

static struct pair p;
static struct requester *req; /* a's, of an RC */

/* No end has a turn but by turn(). */
static void begin_with(struct options o) {
    o.lazy = 3000 * SEC;
    o.mtu = RNIC_MTU_256;
    pair_open_options(&p, &o);
    req = &rc_of(p.a.qp)->req;
}
#define BEGIN(...) begin_with((struct options){__VA_ARGS__})

static void turn(uint32_t room) {
    p.a.node->sink.budget = room;
    p.a.qp->engine->next(p.a.qp, p.f.now);
}

/* So many packets of one message are under way. */
static void begin_sent(uint32_t packets, struct options o) {
    begin_with(o);
    post_write(&p.a, 1, 0, 0, packets * 256);
    turn(ALL);
    req->timing = false;
    CHECK_EQ(p.f.judged[0], packets);
}
#define BEGIN_SENT(packets, ...) begin_sent(packets, (struct options){__VA_ARGS__})

/* An answer of b arrives; its PSN is so far from the oldest that waits for one. */
static void answer(uint8_t syndrome, int psn) {
    inject(&p.b, &(struct hand){.opcode = ROCE_RC_ACK, .syndrome = syndrome, .psn = psn});
    fabric_run(&p.f, p.f.now + LATENCY);
}
#define ACK(psn) answer(AETH_ACK | AETH_CREDIT_INVALID, psn)
#define NAK(psn) answer(AETH_NAK_PSN_SEQ, psn)

/* ---------------------------------------------------------------- round trips */

static void a_round_trip_is_taken_from_the_timed_packet_or_a_later_one(void) {
    static const struct {
        bool timing, guessed;
        uint64_t srtt;
        uint8_t probes;
        int timed, psn;
        uint64_t took, want;
        bool guess, still;
    } rows[] = {
        {true, false, 0, 0, 0, 0, 50000, 50000, false, false},
        {true, false, 0, 1, 0, 0, 50000, 50000, true, false},      /* it may be the probe's answer */
        {true, false, 80000, 1, 0, 0, 50000, 76250, false, false}, /* an eighth of the way */
        {true, false, 40000, 0, 0, 0, 80000, 45000, false, false},
        {true, true, 80000, 0, 0, 0, 50000, 50000, false, false}, /* a guess is replaced */
        {true, true, 80000, 3, 0, 0, 50000, 50000, false, false},
        {true, false, 0, 0, 1, 1, 50000, 50000, false, false},
        {true, false, 0, 0, 1, 2, 50000, 50000, false, false},
        {true, false, 0, 0, 1, 0, 50000, 0, false, true}, /* of an earlier packet */
        {true, false, 80000, 0, 2, 1, 50000, 80000, false, true},
        {false, false, 80000, 0, 0, 0, 50000, 80000, false, false},
        {true, false, 80000, 0, 0, 0, -1ull, 80000, false, false}, /* sent after the clock was read */
        {true, false, 0, 0, 0, 0, 0, 0, false, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        BEGIN_SENT(3);
        req->timing = rows[i].timing;
        req->guessed = rows[i].guessed;
        req->srtt = rows[i].srtt;
        req->probes = rows[i].probes;
        req->timed_psn = psn_add(req->una, rows[i].timed);
        req->timed_at = p.f.now + LATENCY - rows[i].took;
        ACK(rows[i].psn);
        CHECK_EQ(req->srtt, rows[i].want);
        CHECK_EQ(req->guessed, rows[i].guess);
        CHECK_EQ(req->timing, rows[i].still);
        pair_close(&p);
    }
}

/* The first packet that is to be answered at once is timed, one at a time, and none that goes out again. */
static void a_packet_that_asks_is_timed(void) {
    BEGIN(.sig_all = true);
    CHECK(!req->timing);
    post_write(&p.a, 1, 0, 0, 3 * 256);
    turn(2);
    CHECK(!req->timing); /* neither asks */
    p.f.now += 7;
    turn(1);
    CHECK(req->timing);
    CHECK_EQ(req->timed_psn, psn_add(req->una, 2));
    CHECK_EQ(req->timed_at, p.f.now);
    p.f.now += 7;
    post_read(&p.a, 2, 0, 0, 256);
    turn(1);
    CHECK_EQ(req->timed_psn, psn_add(req->una, 2));
    CHECK_EQ(req->timed_at, p.f.now - 7);
    req->timing = false;
    post_read(&p.a, 3, 0, 0, 256);
    turn(1);
    CHECK(req->timing);
    CHECK_EQ(req->timed_psn, psn_add(req->una, 4));
    req_rewind(p.a.qp);
    CHECK(req->timing); /* of none that is known: the first answer is better than none */
    req->srtt = 5;
    req_rewind(p.a.qp);
    CHECK(!req->timing);
    turn(ALL);
    CHECK(!req->timing);
    pair_close(&p);
}

/* ---------------------------------------------------------------- the window */

static void each_answer_widens_the_window(void) {
    enum { FAST = 20000, SLOW = 40000 };
    static const struct {
        uint32_t window, threshold;
        uint64_t srtt;
        int packets;
        uint32_t want;
    } rows[] = {
        {2048, SLOW, 5, 1, 2048 + 512},
        {2048, SLOW, 5, 3, 2048 + 3 * 512},
        {5120, 5121, 5, 2, 5120 + 1024},
        {5120, 5120, 5, 2, 5120 + 1024 * 512 / 5120 + 1}, /* a packet a round trip */
        {5120, 100, 5, 1, 5120 + 512 * 512 / 5120 + 1},
        {FAST - 513, SLOW, 5, 1, FAST - 1},
        {FAST - 512, SLOW, 5, 1, FAST},
        {FAST - 1, SLOW, 5, 1, FAST},
        {FAST, SLOW, 5, 1, FAST},
        {30000, SLOW, 5, 1, FAST},
        {30000, SLOW, SLOW_NS, 1, FAST},
        {30000, SLOW, SLOW_NS + 1, 1, 30512},
        {SLOW - 1, SLOW, SLOW_NS + 1, 1, SLOW},
        {SLOW, SLOW, SLOW_NS + 1, 1, SLOW},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        BEGIN_SENT(4);
        p.a.node->nic.max_window = FAST;
        p.a.node->nic.slow_window = SLOW;
        req->window = rows[i].window;
        req->threshold = rows[i].threshold;
        req->srtt = rows[i].srtt;
        ACK(rows[i].packets - 1);
        CHECK_EQ(req->window, rows[i].want);
        CHECK_EQ(req->threshold, rows[i].threshold);
        pair_close(&p);
    }
}

static void a_loss_narrows_the_window_down_to_two_packets(void) {
    static const struct {
        bool told; /* by a NAK, else by the timer */
        uint32_t window, want, threshold;
    } rows[] = {
        {true, 10000, 5000, 5000},
        {true, 2 * LEAST, LEAST, LEAST},
        {true, 2 * LEAST + 2, LEAST + 1, LEAST + 1},
        {true, 2 * LEAST - 2, LEAST, LEAST},
        {true, LEAST, LEAST, LEAST},
        {false, 10000, 2500, 5000},
        {false, 4 * LEAST, LEAST, 2 * LEAST},
        {false, 4 * LEAST + 4, LEAST + 1, 2 * LEAST + 2},
        {false, 3 * LEAST, LEAST, 3 * LEAST / 2},
        {false, LEAST, LEAST, LEAST},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        BEGIN_SENT(4);
        req->window = rows[i].window;
        if (rows[i].told)
            NAK(0);
        else
            comp_timeout(p.a.qp, p.f.now);
        CHECK_EQ(req->window, rows[i].want);
        CHECK_EQ(req->threshold, rows[i].threshold);
        pair_close(&p);
    }
}

static void a_connection_begins_with_the_whole_window(void) {
    BEGIN(.rnr_retry = 5, .retry_cnt = 6);
    p.a.node->nic.max_window = 3000;
    p.a.node->nic.slow_window = 9000;
    req_init(p.a.qp);
    CHECK_EQ(req->window, 3000);
    CHECK_EQ(req->threshold, 9000);
    CHECK_EQ(req->retries, 6);
    CHECK_EQ(req->rnr_retries, 5);
    CHECK(req->psn == 0x123456 && req->una == 0x123456 && req->max_psn == 0x123456);
    pair_close(&p);
}

/* ---------------------------------------------------------------- retries and repetitions */

static void spend(void) {
    req->retries = req->rnr_retries = 1;
    req->probed_part = req->refused = true;
    req->rewound = req->progress = p.f.now - 1;
    req->rewinds = 3;
    req->probes = 4;
}

static void what_the_peer_answers_gives_all_back(void) {
    BEGIN_SENT(3, .retry_cnt = 6, .rnr_retry = 5);
    uint64_t before = p.f.now - 1;
    spend();
    ACK(-1); /* that one has been answered before */
    CHECK(req->retries == 1 && req->rnr_retries == 1 && req->probed_part && req->refused);
    CHECK(req->rewound == before && req->progress == before && req->rewinds == 3 && req->probes == 4);
    ACK(0);
    CHECK_EQ(req->retries, 6);
    CHECK_EQ(req->rnr_retries, 5);
    CHECK_EQ(req->progress, p.f.now);
    CHECK(!req->probed_part && !req->refused && !req->rewound && !req->rewinds && !req->probes);
    spend();
    answer(AETH_RNR | 5, 0);
    CHECK_EQ(req->retries, 6);
    CHECK_EQ(req->rnr_retries, 0);
    CHECK_EQ(req->progress, p.f.now);
    CHECK_EQ(req->rnr_until, p.f.now + rnr_delay(5));
    CHECK(!req->probed_part && req->refused && !req->rewound && !req->rewinds && !req->probes);
    CHECK(req->psn == req->una && req->unasked == ACK_EVERY);
    pair_close(&p);
}

/* Answers that can have been given before the repetition arrived tell nothing new. */
static void a_nak_counts_if_it_can_be_of_the_repetition(void) {
    static const struct {
        uint64_t ago, srtt;
        uint8_t rewinds;
        bool refused, counts;
    } rows[] = {
        {0, 8000, 0, false, true}, /* 0: nothing was repeated */
        {PROBE_MIN / 2 - 1, 0, 0, false, false},
        {PROBE_MIN / 2, 0, 0, false, true},
        {5999, 8000, 0, false, false},
        {6000, 8000, 0, false, true},
        {6000, 8000, 1, false, false},
        {23999, 8000, 2, false, false},
        {24000, 8000, 2, false, true},
        {6000 * 1024ull, 8000, MAX_REWINDS, false, true},
        {24000, 8000, 2, true, false},
        {0, 8000, 0, true, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        BEGIN_SENT(3);
        uint64_t rewound = rows[i].ago ? p.f.now + LATENCY - rows[i].ago : 0, before = p.f.now - 1;
        req->rewound = rewound;
        req->rewinds = rows[i].rewinds;
        req->srtt = rows[i].srtt;
        req->refused = rows[i].refused;
        req->probes = 5;
        req->progress = before;
        NAK(0);
        bool counts = rows[i].counts;
        uint8_t more = (uint8_t)(rows[i].rewinds + (rows[i].rewinds < MAX_REWINDS));
        CHECK_EQ(req->retries, counts ? 6 : 7);
        CHECK_EQ(req->rewound, counts ? p.f.now : rewound);
        CHECK_EQ(req->rewinds, counts ? more : rows[i].rewinds);
        CHECK_EQ(req->probes, counts ? 0 : 5);
        CHECK_EQ(req->progress, counts ? p.f.now : before);
        CHECK_EQ(req->psn, counts ? req->una : psn_add(req->una, 3));
        CHECK_EQ(COUNTER(&p.a, nak_seq_received), 1);
        pair_close(&p);
    }
}

/* A READ of two packets and a WRITE, whose ACK jumps over what the READ waits for. */
static void an_answer_that_jumps_over_a_read_is_a_loss_if_it_is_new(void) {
    static const struct {
        uint64_t ago;
        int ghost; /* from the oldest that waits for an answer */
        bool lost;
    } rows[] = {
        {0, 0, true},     {0, 9, true},    /* nothing was repeated yet */
        {5999, 9, false},                  /* just now */
        {6000, 9, true},  {6000, 3, true}, /* the last one was ahead of this */
        {6000, 2, false}, {6000, 1, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        BEGIN(0);
        post_read(&p.a, 1, 0, 0, 512);
        post_write(&p.a, 2, 0, 0, 10);
        turn(ALL);
        req->timing = false;
        req->srtt = 8000;
        req->rewound = rows[i].ago ? p.f.now + LATENCY - rows[i].ago : 0;
        req->ghost = psn_add(req->una, rows[i].ghost);
        req->window = 8192;
        ACK(2);
        CHECK_EQ(COUNTER(&p.a, implied_naks), rows[i].lost);
        CHECK_EQ(req->retries, 7); /* the peer is there */
        CHECK_EQ(req->window, rows[i].lost ? 4096 : 8192);
        CHECK_EQ(req->psn, rows[i].lost ? req->una : req->max_psn);
        CHECK_EQ(req->ghost, psn_add(req->una, 2));
        WANT_NONE(p.a.send_cq);
        pair_close(&p);
    }
}

/* After a repetition all that were sent before it are such. */
static void behind_a_repetition_every_answer_may_be_of_the_old_flight(void) {
    BEGIN_SENT(3);
    req->ghost = 0;
    NAK(0);
    CHECK_EQ(req->ghost, psn_add(req->una, 3));
    CHECK_EQ(req->rewinds, 1);
    pair_close(&p);
}

/* One that came again, if it can be an answer to something that was repeated. */
static void an_answer_that_comes_again_is_noted(void) {
    static const struct {
        int psn;
        bool noted;
    } rows[] = {{-1, true}, {-MAX_REPEATED, true}, {-MAX_REPEATED - 1, false}, {3, false}, {4, false}, {1000, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        BEGIN_SENT(3);
        ACK(rows[i].psn);
        CHECK_EQ(req->echo, rows[i].noted ? p.f.now : 0);
        CHECK_EQ(COUNTER(&p.a, drop_bad_psn), 1);
        CHECK_EQ(COUNTER(&p.a, acks_received), 0);
        pair_close(&p);
    }
}

/* READs of eight packets go out in parts of four.  The answer of one packet to a probe shows that the rest of its part is
 * lost, if it has a rest. */
static void the_answer_to_a_probe_shows_the_loss_of_a_rest(void) {
    static const struct {
        uint32_t done;
        bool probed;
        uint8_t opcode;
        bool lost;
    } rows[] = {
        {0, true, ROCE_RC_READ_RESP_ONLY, true},   {1, true, ROCE_RC_READ_RESP_ONLY, true},
        {2, true, ROCE_RC_READ_RESP_ONLY, true},   {3, true, ROCE_RC_READ_RESP_ONLY, false},
        {4, true, ROCE_RC_READ_RESP_ONLY, true},   {6, true, ROCE_RC_READ_RESP_ONLY, true},
        {7, true, ROCE_RC_READ_RESP_ONLY, false},  {8, true, ROCE_RC_READ_RESP_ONLY, false},
        {1, false, ROCE_RC_READ_RESP_ONLY, false}, {1, true, ROCE_RC_READ_RESP_FIRST, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        BEGIN(.window = 16 * FULL);
        post_read(&p.a, 1, 0, 0, 9 * 256);
        turn(ALL);
        CHECK_EQ(p.f.judged[0], 3);
        req->una = psn_add(req->una, (int32_t)rows[i].done);
        req->probed_part = rows[i].probed;
        inject(&p.b, &(struct hand){.opcode = rows[i].opcode, .syndrome = AETH_CREDIT_INVALID, .length = 256});
        fabric_run(&p.f, p.f.now + LATENCY);
        CHECK_EQ(req->rewinds, rows[i].lost);
        CHECK_EQ(req->una, psn_add(0x123456, (int32_t)rows[i].done + 1));
        pair_close(&p);
    }
}

/* ---------------------------------------------------------------- packets */

static void packets_and_their_bytes_are_counted(void) {
    static const struct {
        int type;
        uint32_t header; /* of a WRITE of one packet */
    } rows[] = {{RNIC_QPT_RC, 12 + 16}, {RNIC_QPT_UC, 12 + 16}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        BEGIN(.type = rows[i].type);
        const uint64_t *value = p.a.qp->counters.value, *all = p.a.node->nic.counters.value;
        for (uint32_t n = 5; n <= 8; n++)
            post_write(&p.a, 1, 0, 0, n);
        turn(ALL);
        CHECK_EQ(value[RNIC_CNT_tx_packets], 4);
        CHECK_EQ(value[RNIC_CNT_tx_bytes], 4 * (rows[i].header + 8 + ICRC_BYTES)); /* padded to 8 */
        CHECK_EQ(value[RNIC_CNT_requests_sent], 4);
        CHECK_EQ(all[RNIC_CNT_tx_packets], 4);
        CHECK_EQ(all[RNIC_CNT_tx_bytes], value[RNIC_CNT_tx_bytes]);
        CHECK_EQ(all[RNIC_CNT_requests_sent], 4);
        pair_close(&p);
    }
}

/* An answer counts for what it is; one of a kind that is reserved is none. */
static void answers_are_counted_by_their_kind(void) {
    BEGIN_SENT(3);
    answer(AETH_RESERVED | 1, 0);
    CHECK_EQ(COUNTER(&p.a, drop_malformed), 1);
    CHECK_EQ(req->una, 0x123456);
    ACK(0);
    CHECK_EQ(COUNTER(&p.a, acks_received), 1);
    answer(AETH_RNR | 1, 0);
    CHECK_EQ(COUNTER(&p.a, rnr_nak_received), 1);
    NAK(0);
    CHECK_EQ(COUNTER(&p.a, nak_seq_received), 1);
    CHECK_EQ(COUNTER(&p.a, acks_received), 1);
    answer(AETH_NAK_REMOTE_ACCESS, 0);
    CHECK_EQ(COUNTER(&p.a, nak_remote_received), 1);
    CHECK_EQ(COUNTER(&p.a, drop_malformed), 1);
    WANT_ERR(p.a.send_cq, 1, REM_ACCESS_ERR, NAK_ACCESS);
    ACK(0);
    CHECK_EQ(COUNTER(&p.a, drop_bad_state), 1); /* it is in error now */
    pair_close(&p);
}

/* Requests and answers that come when the queue pair takes none. */
static void packets_out_of_season_are_counted(void) {
    static const struct {
        int type, state;
        uint8_t opcode;
        bool dropped;
    } rows[] = {
        {RNIC_QPT_RC, RNIC_QPS_RTR, ROCE_RC_ACK, true},         {RNIC_QPT_RC, RNIC_QPS_RTR, ROCE_RC_WRITE_ONLY, false},
        {RNIC_QPT_RC, RNIC_QPS_RTS, ROCE_RC_WRITE_ONLY, false}, {RNIC_QPT_RC, RNIC_QPS_SQD, ROCE_RC_WRITE_ONLY, false},
        {RNIC_QPT_RC, RNIC_QPS_ERR, ROCE_RC_WRITE_ONLY, true},  {RNIC_QPT_RC, RNIC_QPS_ERR, ROCE_RC_ACK, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        BEGIN(.type = rows[i].type);
        p.b.qp->state = rows[i].state;
        inject(&p.a,
               &(struct hand){.opcode = rows[i].opcode, .length = rows[i].opcode == ROCE_RC_ACK ? 0 : 4, .dma = 4});
        fabric_run(&p.f, p.f.now + LATENCY);
        CHECK_EQ(COUNTER(&p.b, drop_bad_state), rows[i].dropped);
        CHECK_EQ(p.b.qp->counters.value[RNIC_CNT_drop_bad_state], rows[i].dropped);
        CHECK_EQ(COUNTER(&p.b, requests_executed), !rows[i].dropped);
        pair_close(&p);
    }
    BEGIN(.type = RNIC_QPT_UC);
    p.b.qp->state = RNIC_QPS_ERR;
    post_write(&p.a, 1, 0, 0, 10);
    turn(ALL);
    fabric_run(&p.f, p.f.now + LATENCY);
    CHECK_EQ(COUNTER(&p.b, drop_bad_state), 1);
    CHECK_EQ(COUNTER(&p.b, requests_executed), 0);
    pair_close(&p);
}

/* ---------------------------------------------------------------- receives of the peer */

/* Of responses to a READ the first and the last tell of receives, if they say that they do. */
static void an_answer_tells_of_receives_if_it_says_so(void) {
    static const struct {
        uint8_t opcode, syndrome;
        uint32_t want; /* lsn: 9, and 8 more by code 6 */
        bool limited;
    } rows[] = {
        {ROCE_RC_READ_RESP_FIRST, AETH_ACK | 6, 8, true},
        {ROCE_RC_READ_RESP_FIRST, AETH_RNR | 6, 9, true},
        {ROCE_RC_READ_RESP_FIRST, AETH_NAK_REMOTE_ACCESS, 9, true},
        {ROCE_RC_READ_RESP_MIDDLE, AETH_ACK | 6, 9, true},
        {ROCE_RC_READ_RESP_FIRST, AETH_ACK | AETH_CREDIT_INVALID, 9, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        BEGIN(0);
        post_read(&p.a, 1, 0, 0, 3 * 256);
        turn(ALL);
        req->lsn = 9;
        req->limited = true;
        inject(&p.b, &(struct hand){.opcode = rows[i].opcode, .syndrome = rows[i].syndrome, .length = 256});
        fabric_run(&p.f, p.f.now + LATENCY);
        CHECK_EQ(req->una, 0x123456 + 1);
        CHECK_EQ(req->lsn, rows[i].want);
        CHECK_EQ(req->limited, rows[i].limited);
        pair_close(&p);
    }
}

/* ---------------------------------------------------------------- kinds of operations */

static void some_take_a_receive_and_some_wait_for_their_own_answer(void) {
    static const struct {
        int opcode;
        bool receive, waits;
    } rows[] = {
        {RNIC_WR_RDMA_WRITE, false, false},
        {RNIC_WR_RDMA_WRITE_WITH_IMM, true, false},
        {RNIC_WR_SEND, true, false},
        {RNIC_WR_SEND_WITH_IMM, true, false},
        {RNIC_WR_SEND_WITH_INV, true, false},
        {RNIC_WR_RDMA_READ, false, true},
        {RNIC_WR_ATOMIC_CMP_AND_SWP, false, true},
        {RNIC_WR_ATOMIC_FETCH_AND_ADD, false, true},
        {RNIC_WR_ATOMIC_WRITE, false, true},
        {RNIC_WR_FLUSH, false, true},
        {RNIC_WR_LOCAL_INV, false, false},
        {RNIC_WR_BIND_MW, false, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct send_wqe wqe = {.opcode = (uint8_t)rows[i].opcode};
        check_note("opcode %d", rows[i].opcode);
        CHECK_EQ(wqe_takes_receive(&wqe), rows[i].receive);
        CHECK_EQ(wqe_waits(&wqe), rows[i].waits);
    }
}

/* ---------------------------------------------------------------- what is under way */

static uint32_t flight(void) { return req_flight(p.a.qp); }

static void bytes_under_way_are_those_of_packets_and_answers(void) {
    BEGIN(.window = 16 * FULL);
    CHECK_EQ(flight(), 0);
    post_write(&p.a, 1, 0, 0, 2 * 256 + 10);
    CHECK_EQ(flight(), 0);
    turn(1);
    CHECK_EQ(flight(), FULL);
    turn(1);
    CHECK_EQ(flight(), 2 * FULL);
    turn(1);
    CHECK_EQ(flight(), 3 * FULL - 246);
    post_read(&p.a, 2, 0, 0, 5 * 256 + 1);
    CHECK_EQ(flight(), 3 * FULL - 246);
    turn(1);
    CHECK_EQ(flight(), 7 * FULL - 246);
    turn(1);
    CHECK_EQ(flight(), 9 * FULL - 246 - 255);
    post_add(&p.a, 3, 0, 0, 1);
    turn(1);
    CHECK_EQ(flight(), 9 * FULL - 246 - 255 + 8 + PACKET_COST);
    ACK(0);
    CHECK_EQ(flight(), 8 * FULL - 246 - 255 + 8 + PACKET_COST);
    ACK(1);
    WANT(p.a.send_cq, 1, SUCCESS);
    CHECK_EQ(flight(), 6 * FULL - 255 + 8 + PACKET_COST);
    req_rewind(p.a.qp);
    CHECK_EQ(flight(), 0);
    turn(1);
    CHECK_EQ(flight(), 4 * FULL);
    pair_close(&p);
}

static void a_packet_goes_out_if_it_fits_the_window(void) {
    for (uint32_t less = 0; less < 2; less++) {
        check_note("%u less", less);
        BEGIN(0);
        req->window = 5 * FULL - less;
        post_write(&p.a, 1, 0, 0, 20 * 256);
        turn(ALL);
        CHECK_EQ(p.f.judged[0], 5 - less);
        pair_close(&p);
    }
    BEGIN(0); /* one may always go */
    req->window = 10;
    post_write(&p.a, 1, 0, 0, 20 * 256);
    turn(ALL);
    CHECK_EQ(p.f.judged[0], 1);
    pair_close(&p);
}

/* So that as many as may be outstanding fill the window, up to four. */
static void a_read_goes_out_in_parts_of_the_window(void) {
    static const struct {
        uint32_t rd_atomic, window, want;
    } rows[] = {{1, 8 * FULL, 8},     {2, 8 * FULL, 4}, {4, 8 * FULL, 2},     {5, 8 * FULL, 2}, {16, 8 * FULL, 2},
                {4, 8 * FULL - 1, 1}, {4, 100, 1},      {1, 8 * FULL - 1, 7}, {3, 9 * FULL, 3}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        BEGIN(.rd_atomic = rows[i].rd_atomic, .dest_rd_atomic = 16, .window = rows[i].window);
        post_read(&p.a, 1, 0, 0, 64 * 256);
        turn(1);
        CHECK_EQ(p.f.log[0].length, rows[i].want * 256);
        CHECK_EQ(req->ssn, (64 - 1) / rows[i].want + 1);
        pair_close(&p);
    }
}

static void reads_and_atomics_go_out_as_many_as_may(void) {
    for (uint32_t most = 1; most <= 3; most++) {
        check_note("%u", most);
        BEGIN(.rd_atomic = most);
        for (uint64_t i = 0; i < 5; i++)
            i % 2 ? post_add(&p.a, i, 0, 0, 1) : post_read(&p.a, i, 0, 0, 10);
        turn(ALL);
        CHECK_EQ(p.f.judged[0], most);
        CHECK_EQ(req->rd_count, most);
        for (uint32_t i = 0; i < most; i++)
            CHECK_EQ(req->rd_end[(req->rd_head + i) % MAX_RD_ATOMIC], psn_add(0x123456, (int32_t)i + 1));
        inject(&p.b, &(struct hand){.opcode = ROCE_RC_READ_RESP_ONLY, .syndrome = AETH_CREDIT_INVALID, .length = 10});
        fabric_run(&p.f, p.f.now + LATENCY);
        CHECK_EQ(req->rd_count, most - 1);
        CHECK_EQ(req->rd_head, 1);
        turn(ALL);
        CHECK_EQ(p.f.judged[0], most + 1);
        req_rewind(p.a.qp);
        CHECK_EQ(req->rd_count, 0);
        turn(ALL);
        CHECK_EQ(req->rd_count, most);
        CHECK_EQ(COUNTER(&p.a, requests_resent), most);
        CHECK_EQ(COUNTER(&p.a, requests_sent), most + 1);
        pair_close(&p);
    }
}

/* ---------------------------------------------------------------- which packets ask for an ACK */

/* Of those that a has sent, as bits; the first is bit 0. */
static uint64_t asking(void) {
    uint64_t bits = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < p.f.logged; i++) {
        if (p.f.log[i].from == 0 && !p.f.log[i].arrived)
            bits |= (uint64_t)p.f.log[i].ackreq << n++;
    }
    return bits;
}

static void write_silently(uint32_t n) {
    post(&p.a, (struct rnic_send_wr){.opcode = RNIC_WR_RDMA_WRITE, REMOTE(&p.b, 0), SGL(SGE(&p.a, 0, n))});
}

static void one_of_so_many_packets_asks(void) {
    BEGIN(0);
    for (uint32_t i = 0; i < ACK_EVERY + 3; i++)
        write_silently(10);
    turn(ALL);
    CHECK_EQ(asking(), 1ull << (ACK_EVERY - 1));
    CHECK_EQ(req->unasked, 3);
    pair_close(&p);
    BEGIN(0);
    write_silently((ACK_EVERY + 3) * 256);
    turn(ALL);
    CHECK_EQ(asking(), 1ull << (ACK_EVERY - 1));
    pair_close(&p);
    BEGIN(0); /* what is answered asks in any case */
    write_silently(10);
    post_read(&p.a, 1, 0, 0, 10);
    for (uint32_t i = 0; i < ACK_EVERY; i++)
        write_silently(10);
    turn(ALL);
    CHECK_EQ(asking(), 2 | 1ull << (ACK_EVERY + 1));
    pair_close(&p);
}

static void the_packet_behind_which_the_window_is_full_asks(void) {
    for (uint32_t more = 0; more < 2; more++) {
        check_note("%u more", more);
        BEGIN(0);
        req->window = 5 * FULL + more * (FULL - 1);
        write_silently(20 * 256);
        turn(ALL);
        CHECK_EQ(p.f.judged[0], 5);
        CHECK_EQ(asking(), 1 << 4);
        pair_close(&p);
    }
}

static void the_last_one_asks_if_its_completion_is_waited_for(void) {
    enum { SILENT, SIGNALED, ALL_SIGNALED, DRAINED, PACED, FOLLOWED, CASES };
    static const uint64_t want[] = {[SILENT] = 0,  [SIGNALED] = 4, [ALL_SIGNALED] = 4,
                                    [DRAINED] = 4, [PACED] = 7,    [FOLLOWED] = 0};
    for (int i = 0; i < CASES; i++) {
        check_note("case %d", i);
        BEGIN(.sig_all = i == ALL_SIGNALED);
        if (i == SIGNALED)
            post_write(&p.a, 1, 0, 0, 3 * 256);
        else
            write_silently(3 * 256);
        if (i == FOLLOWED)
            write_silently(10);
        p.a.qp->pace = (struct pace){.rate = i == PACED ? 1000 : 0, .slack = SEC};
        turn(1);
        p.a.qp->state = i == DRAINED ? RNIC_QPS_SQD : RNIC_QPS_RTS;
        turn(ALL);
        CHECK_EQ(asking(), want[i]);
        p.a.qp->state = RNIC_QPS_RTS;
        pair_close(&p);
    }
}

/* SENDs ask when the peer has few receives left; and when the next one has none, as it waits for what the ACK tells. */
static void a_send_asks_when_receives_are_short(void) {
    static const struct {
        bool limited;
        uint32_t receives;
        uint64_t asks;
        uint32_t sent;
    } rows[] = {
        {false, 0, 0, 4},
        {true, ACK_EVERY + 4, 0, 4},
        {true, ACK_EVERY + 3, 8, 4},
        {true, ACK_EVERY + 1, 14, 4},
        {true, 4, 15, 4},
        {true, 3, 7, 3},
        {true, 0, 1, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        BEGIN(0);
        req->limited = rows[i].limited;
        req->lsn = rows[i].receives;
        for (int n = 0; n < 4; n++)
            post(&p.a, (struct rnic_send_wr){.opcode = RNIC_WR_SEND, SGL(SGE(&p.a, 0, 10))});
        turn(ALL);
        CHECK_EQ(p.f.judged[0], rows[i].sent);
        CHECK_EQ(asking(), rows[i].asks);
        pair_close(&p);
    }
    BEGIN(0); /* a WRITE asks for those that wait behind it */
    req->limited = true;
    write_silently(10);
    write_silently(10);
    post(&p.a, (struct rnic_send_wr){.opcode = RNIC_WR_SEND, SGL(SGE(&p.a, 0, 10))});
    turn(ALL);
    CHECK_EQ(p.f.judged[0], 2);
    CHECK_EQ(asking(), 2);
    pair_close(&p);
}

/* ---------------------------------------------------------------- probes */

static const struct record *last_sent(void) {
    const struct record *r = &p.f.log[p.f.logged - 1];
    CHECK(r->from == 0 && !r->arrived);
    return r;
}

static void probe(void) {
    p.a.node->sink.budget = ALL;
    req_probe(p.a.qp, p.f.now);
}

/* The last packet, whose answer covers all; while a repetition is under way the oldest. */
static void a_probe_asks_by_the_last_packet_or_by_the_oldest(void) {
    BEGIN(0);
    probe();
    CHECK_EQ(p.f.judged[0], 0); /* nothing is under way */
    write_silently(3 * 256);
    write_silently(2 * 256);
    turn(ALL);
    p.f.now += 100;
    probe();
    CHECK_EQ(last_sent()->psn, psn_add(0x123456, 4));
    CHECK(last_sent()->ackreq);
    CHECK_EQ(COUNTER(&p.a, probes_sent), 1);
    CHECK_EQ(COUNTER(&p.a, requests_resent), 1);
    CHECK_EQ(COUNTER(&p.a, requests_sent), 5);
    CHECK_EQ(req->timed_at, p.f.now);
    CHECK(!req->probed_part);
    ACK(0);
    req_rewind(p.a.qp);
    turn(2);
    CHECK_EQ(last_sent()->psn, psn_add(0x123456, 2));
    probe();
    CHECK_EQ(last_sent()->psn, psn_add(0x123456, 1));
    turn(ALL);
    probe();
    CHECK_EQ(last_sent()->psn, psn_add(0x123456, 4));
    p.a.node->sink.budget = 0; /* without room there is none */
    req_probe(p.a.qp, p.f.now);
    CHECK_EQ(COUNTER(&p.a, probes_sent), 3);
    pair_close(&p);
}

/* A probe is paid for as any other packet. */
static void a_probe_counts_for_the_pace(void) {
    BEGIN(0);
    write_silently(10);
    turn(ALL);
    p.a.qp->pace = (struct pace){.rate = 1000, .slack = SEC};
    uint64_t bytes = p.a.qp->counters.value[RNIC_CNT_tx_bytes];
    probe();
    CHECK_EQ(p.a.qp->counters.value[RNIC_CNT_tx_bytes], 2 * bytes);
    CHECK_EQ(p.a.qp->pace.paid_at, p.f.now + bytes * 8000);
    pair_close(&p);
}

/* Of a READ whose answer has begun, the next packet; of others, all that their request asked for. */
static void a_probe_of_a_read_asks_for_a_packet_or_for_all(void) {
    static const struct {
        uint32_t done, from, length;
        bool part;
    } rows[] = {{0, 8, 10, false}, {1, 1, 256, true}, {3, 3, 256, true}, {4, 8, 10, false}, {5, 5, 256, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        BEGIN(.window = 16 * FULL);
        post_read(&p.a, 1, 0, 0, 8 * 256 + 10);
        turn(ALL);
        CHECK_EQ(p.f.judged[0], 3);
        req->una = psn_add(req->una, (int32_t)rows[i].done);
        probe();
        CHECK_EQ(last_sent()->psn, psn_add(0x123456, (int32_t)rows[i].from));
        CHECK_EQ(last_sent()->length, rows[i].length);
        CHECK_EQ(last_sent()->va, (uintptr_t)p.b.mem + 256ull * rows[i].from);
        CHECK_EQ(req->probed_part, rows[i].part);
        pair_close(&p);
    }
}

/* What brings many packets is not taken for the beginning of a round trip, as long as none is known. */
static void a_probe_for_many_packets_does_not_begin_a_round_trip(void) {
    for (int known = 0; known < 2; known++) {
        BEGIN(.window = 16 * FULL);
        post_read(&p.a, 1, 0, 0, 4 * 256);
        turn(ALL);
        uint64_t start = p.f.now;
        CHECK_EQ(req->timed_at, start);
        p.f.now += 100;
        req->srtt = (uint64_t)known;
        probe();
        CHECK_EQ(req->timed_at, known ? p.f.now : start);
        pair_close(&p);
    }
}

int main(void) {
    RUN(a_round_trip_is_taken_from_the_timed_packet_or_a_later_one);
    RUN(a_packet_that_asks_is_timed);
    RUN(each_answer_widens_the_window);
    RUN(a_loss_narrows_the_window_down_to_two_packets);
    RUN(a_connection_begins_with_the_whole_window);
    RUN(what_the_peer_answers_gives_all_back);
    RUN(a_nak_counts_if_it_can_be_of_the_repetition);
    RUN(an_answer_that_jumps_over_a_read_is_a_loss_if_it_is_new);
    RUN(behind_a_repetition_every_answer_may_be_of_the_old_flight);
    RUN(an_answer_that_comes_again_is_noted);
    RUN(the_answer_to_a_probe_shows_the_loss_of_a_rest);
    RUN(packets_and_their_bytes_are_counted);
    RUN(answers_are_counted_by_their_kind);
    RUN(packets_out_of_season_are_counted);
    RUN(an_answer_tells_of_receives_if_it_says_so);
    RUN(some_take_a_receive_and_some_wait_for_their_own_answer);
    RUN(bytes_under_way_are_those_of_packets_and_answers);
    RUN(a_packet_goes_out_if_it_fits_the_window);
    RUN(a_read_goes_out_in_parts_of_the_window);
    RUN(reads_and_atomics_go_out_as_many_as_may);
    RUN(one_of_so_many_packets_asks);
    RUN(the_packet_behind_which_the_window_is_full_asks);
    RUN(the_last_one_asks_if_its_completion_is_waited_for);
    RUN(a_send_asks_when_receives_are_short);
    RUN(a_probe_asks_by_the_last_packet_or_by_the_oldest);
    RUN(a_probe_counts_for_the_pace);
    RUN(a_probe_of_a_read_asks_for_a_packet_or_for_all);
    RUN(a_probe_for_many_packets_does_not_begin_a_round_trip);
    return check_done();
}
