/* SPDX-License-Identifier: Apache-2.0
 *
 * What an engine tells the device: whether there is more to write, whether anything is owed, when its timers are due, and
 * how a connection is getting on.  The device asks; here the test does.
 */
#include "check.h"
#include "hand.h"
#include "roce/roce.h"
#include "wire/bth.h"

#define TIMEOUT (4096ull << 14)
#define ALL UINT32_MAX

static struct pair p;

/* No end has a turn but by turn(). */
static void begin_with(struct options o) {
    o.lazy = 3000 * SEC;
    pair_open_options(&p, &o);
}
#define BEGIN(...) begin_with((struct options){__VA_ARGS__})

/* With room for so many packets: whether there is more to write. */
static bool turn(struct end *e, uint32_t room) {
    e->node->sink.budget = room;
    return e->qp->engine->next(e->qp, p.f.now);
}

static uint32_t sent(const struct end *e) { return p.f.judged[e->node - p.f.node]; }

static bool owes(const struct end *e) { return e->qp->engine->owes(e->qp, p.f.now); }

static void arrive(void) { fabric_run(&p.f, p.f.now + MS); }

/* ---------------------------------------------------------------- more to write */

static void requests_that_find_no_room_are_told(void) {
    BEGIN(.mtu = RNIC_MTU_256);
    CHECK(!turn(&p.a, ALL));
    post_write(&p.a, 1, 0, 0, 3 * 256);
    CHECK(turn(&p.a, 0));
    CHECK(turn(&p.a, 2));
    CHECK_EQ(sent(&p.a), 2);
    CHECK(!turn(&p.a, 2));
    CHECK_EQ(sent(&p.a), 3);
    CHECK(!turn(&p.a, ALL));
    CHECK_EQ(sent(&p.a), 3);
    pair_close(&p);
}

static void answers_that_find_no_room_are_told(void) {
    BEGIN(.mtu = RNIC_MTU_256);
    post_read(&p.a, 1, 0, 0, 3 * 256);
    turn(&p.a, ALL);
    arrive();
    CHECK(turn(&p.b, 0));
    CHECK(turn(&p.b, 2));
    CHECK_EQ(sent(&p.b), 2);
    CHECK(!turn(&p.b, 2));
    CHECK_EQ(sent(&p.b), 3);
    pair_close(&p);
}

static void an_ack_or_a_nak_that_finds_no_room_is_told(void) {
    for (int ahead = 0; ahead < 2; ahead++) {
        check_note("%d ahead", ahead);
        BEGIN(0);
        inject(&p.a, &(struct hand){.opcode = ROCE_RC_WRITE_ONLY, .length = 4, .dma = 4, .psn = ahead});
        arrive();
        CHECK(turn(&p.b, 0));
        CHECK(owes(&p.b));
        CHECK(!turn(&p.b, 1));
        CHECK_EQ(COUNTER(&p.b, nak_seq_sent), ahead);
        CHECK_EQ(COUNTER(&p.b, acks_sent), !ahead);
        CHECK(!owes(&p.b));
        CHECK(!turn(&p.b, ALL));
        CHECK_EQ(sent(&p.b), 1);
        pair_close(&p);
    }
}

/* It goes first; what else there is does not make up for it. */
static void a_notification_that_finds_no_room_is_told(void) {
    for (int type = RNIC_QPT_RC; type <= RNIC_QPT_UC; type++) {
        check_note("type %d", type);
        BEGIN(.type = type);
        struct congestion *way = type == RNIC_QPT_RC ? &rc_of(p.a.qp)->congestion : &uc_of(p.a.qp)->congestion;
        way->owes = true;
        CHECK(turn(&p.a, 0));
        CHECK(way->owes);
        post_write(&p.a, 1, 0, 0, 10);
        CHECK(turn(&p.a, 1));
        CHECK_EQ(COUNTER(&p.a, cnp_sent), 1);
        CHECK_EQ(COUNTER(&p.a, requests_sent), 0);
        CHECK(!way->owes);
        CHECK(!turn(&p.a, 1));
        CHECK_EQ(COUNTER(&p.a, requests_sent), 1);
        CHECK_EQ(sent(&p.a), 2);
        pair_close(&p);
    }
}

/* Queue pairs take turns of so many packets, requests and answers each for themselves. */
static void a_turn_has_an_end(void) {
    static const struct {
        int type;
        bool reads;
        uint32_t turn, want;
    } rows[] = {
        {RNIC_QPT_RC, false, 0, BURST}, {RNIC_QPT_RC, false, 7, 7}, {RNIC_QPT_RC, false, BURST + 1, BURST},
        {RNIC_QPT_RC, true, 0, BURST},  {RNIC_QPT_RC, true, 7, 7},  {RNIC_QPT_UC, false, 0, BURST},
        {RNIC_QPT_UC, false, 7, 7},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        BEGIN(.type = rows[i].type, .mtu = RNIC_MTU_256);
        struct end *e = rows[i].reads ? &p.b : &p.a;
        if (rows[i].reads)
            post_read(&p.a, 1, 0, 0, 2 * 256 * rows[i].want);
        else
            post_write(&p.a, 1, 0, 0, 2 * 256 * rows[i].want);
        if (rows[i].reads) {
            turn(&p.a, ALL);
            arrive();
        }
        e->node->nic.turn = rows[i].turn;
        CHECK(turn(e, ALL));
        CHECK_EQ(sent(e), rows[i].want);
        turn(e, ALL);
        CHECK_EQ(sent(e), 2 * rows[i].want);
        CHECK(!turn(e, ALL));
        pair_close(&p);
    }
}

/* Who may not send before a time has nothing to write until then, and is called by its deadline. */
static void what_the_rate_holds_back_is_not_to_be_written_now(void) {
    for (int answers = 0; answers < 2; answers++) {
        check_note("answers %d", answers);
        BEGIN(0);
        struct end *e = answers ? &p.b : &p.a;
        post_read(&p.a, 1, 0, 0, 10);
        if (answers) {
            turn(&p.a, ALL);
            arrive();
        }
        uint64_t at = p.f.now + 100 * US;
        rc_of(e->qp)->congestion = (struct congestion){.limiting = true,
                                                       .rate = 1 << 20,
                                                       .target = 1 << 20,
                                                       .line = 1 << 30,
                                                       .free_at = at,
                                                       .raise_at = NEVER,
                                                       .decay_at = NEVER};
        uint32_t before = sent(e);
        CHECK(!turn(e, ALL));
        CHECK_EQ(sent(e), before);
        CHECK_EQ(e->qp->engine->deadline(e->qp), at);
        p.f.now = at;
        CHECK(!turn(e, ALL));
        CHECK_EQ(sent(e), before + 1);
        CHECK(e->qp->engine->deadline(e->qp) > at);
        pair_close(&p);
    }
}

/* Where congestion is looked after, what is sent counts in full packets; what asks for an answer, or is no data, does not. */
static void what_is_sent_counts_for_the_rate(void) {
    BEGIN(.mtu = RNIC_MTU_256, .congestion = true);
    const struct congestion *asks = &rc_of(p.a.qp)->congestion, *answers = &rc_of(p.b.qp)->congestion;
    post_write(&p.a, 1, 0, 0, 256 + 1);
    turn(&p.a, ALL);
    CHECK_EQ(asks->sample, 2 * 256);
    post_read(&p.a, 2, 0, 0, 2 * 256 + 1);
    post_add(&p.a, 3, 0, 0, 1);
    turn(&p.a, ALL);
    CHECK_EQ(asks->sample, 2 * 256);
    arrive();
    turn(&p.b, 2);
    CHECK_EQ(answers->sample, 2 * 256);
    turn(&p.b, ALL);
    CHECK_EQ(sent(&p.b), 4);
    CHECK_EQ(answers->sample, 3 * 256);
    pair_close(&p);
    BEGIN(.type = RNIC_QPT_UC, .mtu = RNIC_MTU_256, .congestion = true);
    post_write(&p.a, 1, 0, 0, 256 + 1);
    turn(&p.a, ALL);
    CHECK_EQ(uc_of(p.a.qp)->congestion.sample, 2 * 256);
    pair_close(&p);
}

/* ---------------------------------------------------------------- what is owed */

static void after_a_packet_it_is_asked_whether_anything_is_owed(void) {
    BEGIN(.ack_hold = MS);
    struct rc *rc = rc_of(p.a.qp);
    CHECK(!owes(&p.a));
    rc->congestion.owes = true;
    CHECK(owes(&p.a));
    rc->congestion.owes = false;
    rc->resp.nak_pending = true;
    CHECK(owes(&p.a));
    rc->resp.nak_pending = false;
    rc->resp.queue_count = 1;
    CHECK(owes(&p.a));
    rc->resp.queue_count = 0;
    rc->req.halted = true;
    CHECK(owes(&p.a));
    rc->req.halted = false;
    static const uint64_t waits[] = {[ACK_UNASKED] = UNASKED_NS, [ACK_ASKED] = MS, [ACK_NOW] = 0};
    rc->resp.ack_since = p.f.now;
    for (int how = ACK_UNASKED; how <= ACK_NOW; how++) {
        check_note("how %d", how);
        rc->resp.ack = (enum ack_urgency)how;
        uint64_t due = rc->resp.ack_since + waits[how];
        CHECK_EQ(resp_due(p.a.qp), due);
        p.f.now = due - 1;
        CHECK(!owes(&p.a));
        p.f.now = due;
        CHECK(owes(&p.a));
        CHECK_EQ(p.a.qp->engine->held(p.a.qp), how == ACK_ASKED ? due : NEVER);
    }
    rc->resp.ack = ACK_NONE;
    p.f.now += SEC;
    CHECK(!owes(&p.a));
    CHECK_EQ(resp_due(p.a.qp), NEVER);
    post_write(&p.a, 1, 0, 0, 10);
    CHECK(owes(&p.a));
    p.a.qp->state = RNIC_QPS_RTR; /* nothing is sent, whatever is posted */
    CHECK(!owes(&p.a));
    p.a.qp->state = RNIC_QPS_RTS;
    turn(&p.a, ALL);
    CHECK(!owes(&p.a));
    p.a.qp->state = RNIC_QPS_SQD;
    CHECK(owes(&p.a));
    p.a.qp->state = RNIC_QPS_ERR;
    CHECK(owes(&p.a));
    p.a.qp->state = RNIC_QPS_RTS;
    pair_close(&p);
}

/* To a peer of this host an ACK is cheap, so that it is held for no time worth the name; where none is held it is due. */
static void an_ack_is_held_for_a_peer_far_away_alone(void) {
    for (int local = 0; local < 2; local++) {
        for (uint64_t hold = 0; hold <= MS; hold += MS) {
            BEGIN(.ack_hold = hold);
            struct rc *rc = rc_of(p.a.qp);
            p.a.qp->reach_in = local ? REACH_LOCAL : REACH_WIRE;
            rc->resp.ack = ACK_ASKED;
            rc->resp.ack_since = p.f.now;
            uint64_t held = resp_due(p.a.qp) - p.f.now;
            CHECK(held == hold || (local && held < 10));
            pair_close(&p);
        }
    }
}

/* What was asked for goes along with a request at once; what nobody asked for waits for its time. */
static void an_ack_goes_along_with_a_request_if_it_was_asked_for(void) {
    for (int asked = 0; asked < 2; asked++) {
        BEGIN(.ack_hold = MS);
        struct rc *rc = rc_of(p.a.qp);
        rc->resp.ack = asked ? ACK_ASKED : ACK_UNASKED;
        rc->resp.ack_since = p.f.now;
        CHECK(!turn(&p.a, ALL));
        CHECK_EQ(sent(&p.a), 0);
        post_write(&p.a, 1, 0, 0, 10);
        CHECK(!turn(&p.a, ALL));
        CHECK_EQ(sent(&p.a), 1 + (uint32_t)asked);
        CHECK_EQ(rc->resp.ack, asked ? ACK_NONE : ACK_UNASKED);
        pair_close(&p);
    }
}

static void what_is_held_can_be_settled(void) {
    BEGIN(.ack_hold = MS);
    struct rc *rc = rc_of(p.a.qp);
    CHECK(!p.a.qp->engine->settle(p.a.qp));
    CHECK_EQ(rc->resp.ack, ACK_NONE);
    for (int how = ACK_UNASKED; how <= ACK_NOW; how++) {
        rc->resp.ack = (enum ack_urgency)how;
        rc->resp.ack_since = p.f.now;
        CHECK(p.a.qp->engine->settle(p.a.qp));
        CHECK_EQ(rc->resp.ack, ACK_NOW);
        uint32_t before = sent(&p.a);
        turn(&p.a, ALL);
        CHECK_EQ(sent(&p.a), before + 1);
        CHECK(!p.a.qp->engine->settle(p.a.qp));
    }
    pair_close(&p);
}

/* ---------------------------------------------------------------- when its timers are due */

struct waits { /* of a requester; times are from T on */
    int progress, rewound, echo;
    uint64_t srtt;
    uint8_t probes, timeout;
    uint64_t due; /* NEVER or from T on */
    uint64_t answered;
};
#define T SEC

static void a_probe_or_a_retry_is_due_whichever_is_first(void) {
    const uint64_t edge = TIMEOUT - PROBE_MIN; /* an echo then leaves no time for a probe before the timer */
    const struct waits rows[] = {
        {0, 0, 0, 1, 0, 14, PROBE_MIN, 0},
        {5, 0, 0, 1, 0, 14, 5 + PROBE_MIN, 0},
        {5, 9, 0, 1, 0, 14, 9 + PROBE_MIN, 0},
        {9, 5, 0, 1, 0, 14, 9 + PROBE_MIN, 0},
        {5, 0, 7, 1, 0, 14, 7 + PROBE_MIN, 0},
        {5, 9, 7, 1, 0, 14, 9 + PROBE_MIN, 0},
        {7, 0, 5, 1, 0, 14, 7 + PROBE_MIN, 0},
        {5, 7, 9, 1, 0, 14, 9 + PROBE_MIN, 0},
        {0, 0, (int)edge - 1, 1, 0, 14, TIMEOUT - 1, 0},
        {0, 0, (int)edge, 1, 0, 14, PROBE_MIN, 0},
        {0, 0, 0, PROBE_MIN / 4 - 1, 0, 14, PROBE_MIN, 0},
        {0, 0, 0, PROBE_MIN / 4 + 1, 0, 14, PROBE_MIN + 4, 0},
        {0, 0, 0, 2 * PROBE_MIN, 0, 14, 8 * PROBE_MIN, 0},
        {0, 0, 0, 1, 1, 14, 2 * PROBE_MIN, 0},
        {0, 0, 0, 1, 3, 14, 8 * PROBE_MIN, 0},
        {0, 0, 0, 1, PROBES - 1, 14, TIMEOUT, 0},
        {0, 0, 0, 1, PROBES - 1, 20, PROBE_MIN << (PROBES - 1), 0},
        {3, 0, 0, 1, PROBES, 20, 3 + (4096ull << 20), 0},
        {3, 8, 9, 1, PROBES, 14, 3 + TIMEOUT, 0},
        {3, 0, 0, 1, 0, 8, 3 + PROBE_MIN, 0},
        {3, 0, 0, 1, 0, 7, 3 + (4096ull << 7), 0},
        {3, 0, 0, 1, 4, 0, 3 + 16 * PROBE_MIN, 0},
        {3, 0, 0, 1, PROBES, 0, NEVER, 0},
        {3, 0, 0, 0, 0, 14, 3 + PROBE_FIRST, 0}, /* nothing has ever been answered */
        {3, 0, 0, 0, 2, 14, 3 + 4 * PROBE_FIRST, 0},
        {3, 0, 0, 0, 0, 14, 3 + PROBE_FIRST, 3}, /* others' answers come */
        {3, 0, 0, 0, 0, 14, 4 + PROBE_FIRST, 4},
        {3, 9, 0, 0, 0, 14, 9 + PROBE_FIRST, 8},
        {3, 9, 0, 0, 0, 14, 99 + PROBE_FIRST, 99},
        {3, 0, 0, 0, 0, 20, 2 + QUEUE_MOST_NS + PROBE_FIRST, 2 + QUEUE_MOST_NS},
        {3, 0, 0, 0, 0, 20, 3 + QUEUE_MOST_NS + PROBE_FIRST, SEC},
        {3, 0, 0, MS, 0, 20, 2 + 20 * MS, 2 + 16 * MS},
        {3, 0, 0, MS, 0, 20, 3 + 20 * MS, 4 + 16 * MS},
        {3, 0, 0, 4 * MS - 1, 0, 20, 3 + 20 * (4 * MS - 1), SEC},
        {3, 0, 0, 5 * MS, 0, 20, 3 + QUEUE_SLOW_NS + 20 * MS, SEC},
        {3, 0, 0, 5 * MS, 0, 14, 3 + (TIMEOUT + 20 * MS) / 2, SEC}, /* but a probe is ahead of the timer */
        {3, 0, 0, 0, 0, 14, 3 + (TIMEOUT + PROBE_FIRST) / 2, SEC},
        {3, 0, 0, 20 * MS, 0, 14, 3 + TIMEOUT, SEC},
        {3, 0, 0, 5 * MS, 0, 0, 3 + QUEUE_SLOW_NS + 20 * MS, SEC},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct waits *w = &rows[i];
        check_note("row %zu", i);
        BEGIN(.timeout = w->timeout ? w->timeout : NONE);
        struct requester *req = &rc_of(p.a.qp)->req;
        req->progress = T + (uint64_t)w->progress;
        req->rewound = w->rewound ? T + (uint64_t)w->rewound : 0;
        req->echo = w->echo ? T + (uint64_t)w->echo : 0;
        req->srtt = w->srtt;
        req->probes = w->probes;
        p.a.node->nic.answered = w->answered ? T + w->answered : 0;
        CHECK_EQ(p.a.qp->engine->deadline(p.a.qp), NEVER); /* nothing is under way */
        req->rnr_until = 77;
        CHECK_EQ(p.a.qp->engine->deadline(p.a.qp), 77);
        req->max_psn = psn_add(req->una, 1);
        CHECK_EQ(p.a.qp->engine->deadline(p.a.qp), 77);
        req->rnr_until = 0;
        CHECK_EQ(p.a.qp->engine->deadline(p.a.qp), w->due == NEVER ? NEVER : T + w->due);
        pair_close(&p);
    }
}

/* All that one queue pair has learnt may be from before the link was full. */
static void a_probe_waits_for_what_other_queue_pairs_have_waited_for(void) {
    static const struct {
        uint64_t slowest, due;
        uint8_t timeout;
    } rows[] = {
        {1, PROBE_MIN, 14},     {3 * MS, 12 * MS, 14},  {20 * MS, TIMEOUT / 2, 14},
        {17 * MS, 64 * MS, 20}, {15 * MS, 60 * MS, 20}, {3 * MS, 12 * MS, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        BEGIN(.timeout = rows[i].timeout ? rows[i].timeout : NONE);
        struct requester *req = &rc_of(p.a.qp)->req;
        req->progress = T;
        req->srtt = 1;
        req->max_psn = psn_add(req->una, 1);
        p.a.node->nic.slowest = rows[i].slowest;
        CHECK_EQ(p.a.qp->engine->deadline(p.a.qp), T + rows[i].due);
        pair_close(&p);
    }
}

static void the_slowest_answer_of_late_is_forgotten_bit_by_bit(void) {
    pair_open(&p, .latency = 10 * US);
    p.a.node->nic.slowest = 100 * US;
    post_write(&p.a, 1, 0, 0, 10);
    fabric_settle(&p.f);
    CHECK_EQ(p.a.node->nic.slowest, 90 * US); /* an eighth of the way to 20 */
    p.f.latency = 400 * US;
    post_write(&p.a, 2, 0, 0, 10);
    fabric_settle(&p.f);
    CHECK_EQ(p.a.node->nic.slowest, 780 * US); /* it is used to 20 */
    WANT(p.a.send_cq, 1, SUCCESS);
    WANT(p.a.send_cq, 2, SUCCESS);
    pair_close_quietly(&p);
}

/* Each of what a queue pair waits for may be the first. */
static void the_first_of_all_that_is_waited_for_counts(void) {
    enum { ACK, FREE, PACE, LOOK, ANSWER, ALL_OF_THEM };
    for (int first = 0; first <= ALL_OF_THEM; first++) {
        check_note("first %d", first);
        BEGIN(0);
        struct rc *rc = rc_of(p.a.qp);
        uint64_t at[ALL_OF_THEM];
        for (int i = 0; i < ALL_OF_THEM; i++)
            at[i] = 10 * SEC + (uint64_t)i;
        if (first < ALL_OF_THEM)
            at[first] = 2 * SEC;
        rc->resp.ack = ACK_UNASKED;
        rc->resp.ack_since = at[ACK] - UNASKED_NS;
        rc->congestion.waits = true;
        rc->congestion.free_at = at[FREE];
        p.a.qp->pace.wait = at[PACE];
        rc->lingers = true;
        rc->look_at = at[LOOK];
        rc->req.rnr_until = at[ANSWER];
        CHECK_EQ(p.a.qp->engine->deadline(p.a.qp), first < ALL_OF_THEM ? 2 * SEC : at[0]);
        rc->resp.ack = ACK_ASKED; /* that one is held, see held() */
        if (first == ACK)
            CHECK_EQ(p.a.qp->engine->deadline(p.a.qp), at[FREE]);
        rc->lingers = false;
        if (first == LOOK)
            CHECK_EQ(p.a.qp->engine->deadline(p.a.qp), at[FREE]);
        pair_close(&p);
    }
}

/* In the queue of a link nothing stands behind answers that come by a lane. */
static void others_wait_for_answers_of_a_link_alone(void) {
    static struct link lane = {.bare = true};
    for (int local = 0; local < 2; local++) {
        BEGIN(0);
        post_write(&p.a, 1, 0, 0, 10);
        turn(&p.a, ALL);
        arrive();
        turn(&p.b, ALL);
        struct link *wire = p.a.qp->way.link;
        p.a.qp->way.link = local ? &lane : wire;
        arrive();
        p.a.qp->way.link = wire;
        WANT(p.a.send_cq, 1, SUCCESS);
        CHECK_EQ(p.a.node->nic.answered != 0, !local);
        pair_close(&p);
    }
}

static void timer(struct end *e) {
    e->node->sink.budget = ALL;
    e->qp->engine->timer(e->qp, p.f.now);
}

/* Before its time nothing happens; then a probe asks, or a retry is counted, but not while packets are still unread. */
static void the_timer_asks_and_then_counts(void) {
    BEGIN(0);
    struct requester *req = &rc_of(p.a.qp)->req;
    post_write(&p.a, 1, 0, 0, 10);
    turn(&p.a, ALL);
    uint64_t start = p.f.now;
    p.f.now = start + PROBE_FIRST - 1;
    timer(&p.a);
    CHECK_EQ(sent(&p.a), 1);
    p.f.now++;
    timer(&p.a);
    CHECK_EQ(sent(&p.a), 2);
    CHECK_EQ(req->probes, 1);
    CHECK_EQ(COUNTER(&p.a, probes_sent), 1);
    timer(&p.a); /* the next one is later */
    CHECK_EQ(req->probes, 1);
    p.f.now = start + TIMEOUT;
    p.a.node->nic.unread = true;
    timer(&p.a);
    CHECK_EQ(COUNTER(&p.a, timeouts), 0);
    p.a.node->nic.unread = false;
    timer(&p.a);
    CHECK_EQ(COUNTER(&p.a, timeouts), 1);
    CHECK_EQ(req->retries, 6);
    CHECK_EQ(req->probes, 0);
    CHECK_EQ(req->progress, p.f.now);
    CHECK_EQ(req->rewound, p.f.now);
    pair_close(&p);
}

static void a_wait_that_was_asked_for_ends_with_its_time(void) {
    BEGIN(0);
    struct requester *req = &rc_of(p.a.qp)->req;
    post_write(&p.a, 1, 0, 0, 10);
    turn(&p.a, ALL);
    req_rewind(p.a.qp);
    req->rnr_until = p.f.now + SEC;
    CHECK(!turn(&p.a, ALL));
    timer(&p.a);
    CHECK_EQ(req->rnr_until, p.f.now + SEC);
    p.f.now += SEC;
    timer(&p.a);
    CHECK_EQ(req->rnr_until, 0);
    CHECK_EQ(req->progress, p.f.now);
    CHECK_EQ(COUNTER(&p.a, timeouts), 0);
    CHECK_EQ(sent(&p.a), 1);
    turn(&p.a, ALL);
    CHECK_EQ(sent(&p.a), 2);
    pair_close(&p);
}

/* ---------------------------------------------------------------- what has not left, or has been taken back */

static void what_has_not_left_is_waited_for_from_now_on(void) {
    BEGIN(0);
    struct requester *req = &rc_of(p.a.qp)->req;
    const struct engine_ops *engine = p.a.qp->engine;
    CHECK(!engine->has_not_asked(p.a.qp));
    post_write(&p.a, 1, 0, 0, 2000);
    CHECK(!engine->has_not_asked(p.a.qp));
    turn(&p.a, ALL);
    CHECK(!engine->has_not_asked(p.a.qp));
    p.f.now += 5;
    engine->not_left(p.a.qp, p.f.now);
    CHECK_EQ(req->progress, p.f.now);
    req_rewind(p.a.qp);
    CHECK(engine->has_not_asked(p.a.qp));
    turn(&p.a, ALL);
    CHECK(!engine->has_not_asked(p.a.qp));
    pair_close(&p);
}

/* Where many queue pairs share a slow link, a turn is one packet, and there is a round between two of them. */
static void what_has_not_asked_is_not_waited_for_while_more_is_to_be_sent(void) {
    BEGIN(0);
    bool (*has_not_asked)(struct qp *qp) = p.a.qp->engine->has_not_asked;
    p.a.node->nic.turn = 1;
    post_write(&p.a, 1, 0, 0, 3000);
    for (int i = 0; i < 2; i++) {
        turn(&p.a, ALL);
        CHECK(has_not_asked(p.a.qp));
    }
    turn(&p.a, ALL);
    CHECK(!has_not_asked(p.a.qp)); /* the last packet has */
    arrive();
    turn(&p.b, ALL);
    arrive();
    post_write(&p.a, 2, 0, 0, 10);
    post_write(&p.a, 3, 0, 0, 10);
    turn(&p.a, ALL);
    CHECK(has_not_asked(p.a.qp)); /* the last message asks for all */
    CHECK_EQ(move(p.a.qp, RNIC_QPS_SQD), 0);
    CHECK(!has_not_asked(p.a.qp)); /* it is not sent any more */
    pair_close(&p);
}

/* A program that posts an unsignaled request now and then would never hear that its peer is dead. */
static void what_is_sent_behind_a_probe_does_not_put_the_timer_off(void) {
    BEGIN(.timeout = 14);
    const struct requester *req = &rc_of(p.a.qp)->req;
    const struct rnic_send_wr wr = {.opcode = RNIC_WR_RDMA_WRITE, SGL(SGE(&p.a, 0, 10)), REMOTE(&p.b, 0)};
    post(&p.a, wr);
    turn(&p.a, ALL);
    p.f.now += MS;
    post(&p.a, wr);
    turn(&p.a, ALL);
    CHECK_EQ(req->progress, p.f.now); /* nobody has been asked */
    uint64_t asked = p.f.now = p.a.qp->engine->deadline(p.a.qp);
    p.a.node->sink.budget = ALL;
    p.a.qp->engine->timer(p.a.qp, p.f.now);
    CHECK_EQ(COUNTER(&p.a, probes_sent), 1);
    uint64_t since = req->progress;
    CHECK(since < asked);
    p.f.now += MS;
    post(&p.a, wr);
    turn(&p.a, ALL);
    CHECK_EQ(req->progress, since);
    pair_close(&p);
}

static void what_may_have_been_taken_back_goes_out_alone(void) {
    static const int states[] = {RNIC_QPS_RTS, RNIC_QPS_SQD};
    BEGIN(0);
    p.a.qp->engine->again(p.a.qp);
    CHECK(!rc_of(p.a.qp)->req.refused); /* nothing was under way */
    pair_close(&p);
    for (int i = 0; i < 2; i++) {
        BEGIN(0);
        struct requester *req = &rc_of(p.a.qp)->req;
        post_write(&p.a, 1, 0, 0, 2000);
        turn(&p.a, ALL);
        p.a.qp->state = states[i];
        p.a.qp->engine->again(p.a.qp);
        CHECK_EQ(req->psn, req->una);
        CHECK(req->refused);
        turn(&p.a, ALL);
        CHECK_EQ(sent(&p.a), 3);
        CHECK(p.f.log[p.f.logged - 1].ackreq);
        pair_close(&p);
    }
}

static void a_peer_has_begun_with_the_request_that_was_expected(void) {
    BEGIN(0);
    CHECK(!p.b.qp->engine->has_begun(p.b.qp));
    inject(&p.a, &(struct hand){.opcode = ROCE_RC_WRITE_ONLY, .length = 4, .dma = 4, .psn = 1});
    inject(&p.a, &(struct hand){.opcode = ROCE_RC_WRITE_ONLY, .length = 4, .dma = 4, .psn = -1});
    arrive();
    CHECK(!p.b.qp->engine->has_begun(p.b.qp));
    inject(&p.a, &(struct hand){.opcode = ROCE_RC_WRITE_ONLY, .length = 4, .dma = 4});
    arrive();
    CHECK(p.b.qp->engine->has_begun(p.b.qp));
    pair_close(&p);
    BEGIN(.type = RNIC_QPT_UC);
    post_write(&p.a, 1, 0, 0, 10);
    turn(&p.a, ALL);
    arrive();
    CHECK_EQ(COUNTER(&p.b, requests_executed), 1);
    CHECK(!p.b.qp->engine->has_begun(p.b.qp)); /* any could have sent it */
    pair_close(&p);
}

/* ---------------------------------------------------------------- statistics */

static struct rnic_qp_stats stats(const struct end *e) {
    struct rnic_qp_stats out = {.rate = 1, .snd_psn = 1, .snd_una = 1, .rcv_psn = 1};
    e->qp->engine->stats(e->qp, &out);
    return out;
}

static void statistics_are_what_the_engine_knows(void) {
    BEGIN(.mtu = RNIC_MTU_256);
    struct rc *rc = rc_of(p.a.qp);
    post_write(&p.a, 1, 0, 0, 2 * 256 + 10);
    turn(&p.a, ALL);
    rc->req.una = psn_add(rc->req.una, 1);
    rc->req.window = 70000;
    rc->req.retries = 3;
    rc->req.rnr_retries = 2;
    rc->req.srtt = 1234;
    rc->resp.msn = 55;
    rc->congestion.rate = 99;
    struct rnic_qp_stats s = stats(&p.a);
    CHECK_EQ(s.snd_psn, 0x123456 + 3);
    CHECK_EQ(s.snd_una, 0x123456 + 1);
    CHECK_EQ(s.rcv_psn, 0x654321);
    CHECK_EQ(s.msn, 55);
    CHECK_EQ(s.window, 70000);
    CHECK_EQ(s.in_flight, 256 + 10 + 2 * PACKET_COST);
    CHECK_EQ(s.retries_left, 3);
    CHECK_EQ(s.rnr_retries_left, 2);
    CHECK_EQ(s.srtt, 1234);
    CHECK_EQ(s.rate, 0);
    rc->congestion.limiting = true;
    CHECK_EQ(stats(&p.a).rate, 99);
    pair_close(&p);
}

static void statistics_of_the_unreliable(void) {
    BEGIN(.type = RNIC_QPT_UC, .mtu = RNIC_MTU_256);
    post_write(&p.a, 1, 0, 0, 2 * 256 + 10);
    turn(&p.a, ALL);
    struct rnic_qp_stats s = stats(&p.a);
    CHECK_EQ(s.snd_psn, 0x123456 + 3);
    CHECK_EQ(s.snd_una, 0x123456 + 3);
    CHECK_EQ(s.rcv_psn, 0x654321);
    CHECK_EQ(s.rate, 0);
    uc_of(p.a.qp)->congestion = (struct congestion){.limiting = true, .rate = 99};
    CHECK_EQ(stats(&p.a).rate, 99);
    struct end ud = {.node = p.a.node, .qp = fabric_ud(p.a.node, RNIC_QPT_UD, 1, p.a.send_cq, p.a.recv_cq)};
    s = stats(&ud);
    CHECK_EQ(s.snd_psn, 0xFFFFFF);
    CHECK_EQ(s.snd_una, 0xFFFFFF);
    pair_close(&p);
}

int main(void) {
    RUN(requests_that_find_no_room_are_told);
    RUN(answers_that_find_no_room_are_told);
    RUN(an_ack_or_a_nak_that_finds_no_room_is_told);
    RUN(a_notification_that_finds_no_room_is_told);
    RUN(a_turn_has_an_end);
    RUN(what_the_rate_holds_back_is_not_to_be_written_now);
    RUN(what_is_sent_counts_for_the_rate);
    RUN(after_a_packet_it_is_asked_whether_anything_is_owed);
    RUN(an_ack_is_held_for_a_peer_far_away_alone);
    RUN(an_ack_goes_along_with_a_request_if_it_was_asked_for);
    RUN(what_is_held_can_be_settled);
    RUN(a_probe_or_a_retry_is_due_whichever_is_first);
    RUN(a_probe_waits_for_what_other_queue_pairs_have_waited_for);
    RUN(the_slowest_answer_of_late_is_forgotten_bit_by_bit);
    RUN(the_first_of_all_that_is_waited_for_counts);
    RUN(others_wait_for_answers_of_a_link_alone);
    RUN(the_timer_asks_and_then_counts);
    RUN(a_wait_that_was_asked_for_ends_with_its_time);
    RUN(what_has_not_left_is_waited_for_from_now_on);
    RUN(what_has_not_asked_is_not_waited_for_while_more_is_to_be_sent);
    RUN(what_is_sent_behind_a_probe_does_not_put_the_timer_off);
    RUN(what_may_have_been_taken_back_goes_out_alone);
    RUN(a_peer_has_begun_with_the_request_that_was_expected);
    RUN(statistics_are_what_the_engine_knows);
    RUN(statistics_of_the_unreliable);
    return check_done();
}
