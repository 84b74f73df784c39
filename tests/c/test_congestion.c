/* SPDX-License-Identifier: Apache-2.0
 *
 * Congestion control on virtual time: marks, notifications, and the rate that follows from them.
 */
#include <string.h>

#include "check.h"
#include "fabric.h"
#include "roce/roce.h"
#include "wire/bth.h"

#define BYTES (1u << 20)
#define GBIT (1000000000ull / 8)

static struct pair p;

#define OPEN(...) pair_open(&p, .congestion = true, .bytes = BYTES, .bandwidth = 10 * GBIT, .quiet = true, __VA_ARGS__)

static void mark(struct end *e, uint32_t ppm) {
    struct rnic_fault fault = {.seed = 5, .mark = ppm};
    fault_set(&e->node->fault, ppm ? &fault : NULL);
}

static uint64_t write_all(void) {
    uint64_t start = p.f.now;
    post_write(&p.a, 1, 0, 0, BYTES);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    return p.f.now - start;
}

static void close_verified(uint64_t seed) {
    CHECK(filled(p.b.mem, BYTES, seed));
    CHECK_EQ(p.a.qp->state, RNIC_QPS_RTS);
    CHECK_EQ(p.b.qp->state, RNIC_QPS_RTS);
    pair_close(&p);
}

static struct rnic_qp_stats stats(const struct end *e) {
    struct rnic_qp_stats out = {0};
    e->qp->engine->stats(e->qp, &out);
    return out;
}

/* ---------------------------------------------------------------- notifications */

static uint32_t cnps, cnp_length;
static uint8_t cnp_bytes[BTH_BYTES + CNP_RESERVED_BYTES];

static enum verdict see_cnp(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)arg;
    (void)nth;
    if (bth_opcode(bth) == ROCE_CNP) {
        CHECK(from == p.b.node);
        memcpy(cnp_bytes, bth, sizeof cnp_bytes);
        cnps++;
    }
    return PASS;
}

static void measure_cnp(void *arg, const struct qp *to, const struct packet *pkt) {
    (void)arg;
    if (to == p.a.qp && pkt->opcode == ROCE_CNP)
        cnp_length = pkt->length;
}

static void a_mark_is_answered_with_a_notification(void) {
    OPEN(0);
    p.f.judge = see_cnp;
    p.f.witness = measure_cnp;
    cnps = 0, cnp_length = 1;
    mark(&p.a, 1000000);
    fill(p.a.mem, BYTES, 1);
    post_write(&p.a, 1, 0, 0, 100);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    CHECK_EQ(cnps, 1);
    CHECK_EQ(bth_becn(cnp_bytes), 1);
    CHECK_EQ(bth_fecn(cnp_bytes), 0);
    CHECK_EQ(bth_dqpn(cnp_bytes), p.a.qp->pub.qp_num);
    CHECK_EQ(bth_psn(cnp_bytes), 0);
    CHECK_EQ(bth_ackreq(cnp_bytes), 0);
    CHECK_EQ(cnp_length, 0);
    CHECK_EQ(bth_pad(cnp_bytes), 0);
    CHECK_EQ(bth_m(cnp_bytes), 0);
    for (int i = 0; i < CNP_RESERVED_BYTES; i++)
        CHECK_EQ(cnp_bytes[BTH_BYTES + i], 0);
    CHECK_EQ(COUNTER(&p.a, fault_marked), 1);
    CHECK_EQ(COUNTER(&p.b, ecn_marked), 1);
    CHECK_EQ(COUNTER(&p.b, cnp_sent), 1);
    CHECK_EQ(COUNTER(&p.a, cnp_handled), 1);
    write_all();
    close_verified(1);
}

static void many_marks_are_one_notification_each_50_us(void) {
    OPEN(0);
    mark(&p.a, 1000000);
    fill(p.a.mem, BYTES, 2);
    uint64_t took = write_all();
    CHECK_EQ(COUNTER(&p.b, ecn_marked), BYTES / 1024);
    CHECK(COUNTER(&p.b, cnp_sent) <= took / (50 * US) + 1);
    CHECK(COUNTER(&p.b, cnp_sent) >= 10);
    close_verified(2);
}

static void what_may_not_be_marked_is_not(void) {
    pair_open(&p, .bytes = BYTES, .quiet = true);
    mark(&p.a, 1000000);
    fill(p.a.mem, BYTES, 3);
    write_all();
    CHECK_EQ(COUNTER(&p.a, fault_marked), 0);
    CHECK_EQ(COUNTER(&p.b, cnp_sent), 0);
    CHECK_EQ(stats(&p.a).rate, 0);
    close_verified(3);
}

/* ---------------------------------------------------------------- the rate */

static void a_sender_that_meets_congestion_slows_down(void) {
    OPEN(0);
    fill(p.a.mem, BYTES, 4);
    uint64_t freely = write_all();
    CHECK_EQ(stats(&p.a).rate, 0);
    mark(&p.a, 1000000);
    uint64_t marked = write_all();
    CHECK(marked > 2 * freely);
    CHECK(stats(&p.a).rate > 0 && stats(&p.a).rate < 10 * GBIT / 2);
    close_verified(4);
}

/* One mark halves the rate at which it was met, since nothing is known of the way yet (alpha begins at 1). */
static void one_mark_halves_the_rate(void) {
    OPEN(.window = 1 << 16);
    fill(p.a.mem, BYTES, 5);
    write_all();
    post_write(&p.a, 1, 0, 0, BYTES);
    fabric_run(&p.f, p.f.now + 200 * US);
    mark(&p.a, 1000000);
    fabric_run(&p.f, p.f.now + 5 * US);
    mark(&p.a, 0);
    fabric_run(&p.f, p.f.now + 80 * US);
    CHECK_EQ(COUNTER(&p.a, cnp_handled), 1);
    uint64_t rate = stats(&p.a).rate;
    CHECK(rate > 10 * GBIT / 4 && rate < 10 * GBIT * 6 / 10);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    close_verified(5);
}

static void the_limit_ends_when_congestion_has(void) {
    OPEN(0);
    fill(p.a.mem, BYTES, 6);
    uint64_t freely = write_all();
    mark(&p.a, 1000000);
    write_all();
    mark(&p.a, 0);
    for (int i = 0; i < 200 && stats(&p.a).rate; i++)
        write_all();
    CHECK_EQ(stats(&p.a).rate, 0);
    CHECK(write_all() <= freely + 2 * US);
    close_verified(6);
}

/* Marks without end: it goes on, slowly. */
static void it_never_stops_altogether(void) {
    OPEN(.timeout = 18);
    mark(&p.a, 1000000);
    fill(p.a.mem, BYTES, 7);
    for (int i = 0; i < 5; i++)
        write_all();
    CHECK(stats(&p.a).rate >= GBIT / 100);
    CHECK_EQ(COUNTER(&p.a, timeouts), 0);
    close_verified(7);
}

static void whoever_answers_a_read_is_limited_too(void) {
    OPEN(0);
    fill(p.b.mem, BYTES, 8);
    memset(p.a.mem, 0, BYTES);
    mark(&p.b, 1000000);
    post_read(&p.a, 1, 0, 0, BYTES);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    CHECK(filled(p.a.mem, BYTES, 8));
    CHECK(COUNTER(&p.b, cnp_handled) > 10);
    CHECK(stats(&p.b).rate > 0);
    close_verified(8);
}

static void an_unreliable_connection_is_limited_too(void) {
    OPEN(.type = RNIC_QPT_UC);
    mark(&p.a, 1000000);
    fill(p.a.mem, BYTES, 9);
    write_all();
    CHECK(COUNTER(&p.a, cnp_handled) > 10);
    CHECK(stats(&p.a).rate > 0);
    close_verified(9);
}

static void marks_and_losses_at_once_lose_nothing(void) {
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct rnic_fault fault = {.seed = seed, .mark = 100000, .loss = 50000, .duplicate = 20000, .reorder = 20000};
        check_note("seed %u", (unsigned)seed);
        OPEN(.timeout = 16);
        fault_set(&p.a.node->fault, &fault);
        fault_set(&p.b.node->fault, &fault);
        fill(p.a.mem, BYTES, seed);
        write_all();
        close_verified(seed);
    }
}

/* ---------------------------------------------------------------- beside a rate that the program has set */

static uint64_t paced_write(int type, uint32_t kbit, uint32_t marks, uint64_t seed) {
    struct rnic_qp_rate_limit_attr attr = {.rate_limit = kbit};
    OPEN(.type = type);
    mark(&p.a, marks);
    pace_set(&p.a.qp->pace, &attr, 1024);
    fill(p.a.mem, BYTES, seed);
    uint64_t took = write_all();
    CHECK(!marks || COUNTER(&p.a, cnp_handled) > 0);
    CHECK_EQ(COUNTER(&p.a, requests_resent), 0);
    CHECK_EQ(COUNTER(&p.a, timeouts), 0);
    close_verified(seed);
    return took;
}

static void the_lower_of_the_two_rates_holds(void) {
    static const int types[] = {RNIC_QPT_RC, RNIC_QPT_UC};
    for (int i = 0; i < 2; i++) {
        uint64_t slow = paced_write(types[i], 80000, 0, 1); /* 10 bytes a microsecond */
        CHECK(slow >= (BYTES - PACE_BURST) * 100ull && slow <= BYTES * 120ull);
        uint64_t slow_marked = paced_write(types[i], 80000, 1000000, 2);
        CHECK(slow_marked >= (BYTES - PACE_BURST) * 100ull);
        uint64_t marked = paced_write(types[i], 0, 1000000, 3), both = paced_write(types[i], 8000000, 1000000, 4);
        CHECK(both > paced_write(types[i], 8000000, 0, 5));
        CHECK(both >= marked / 2);
    }
}

/* ---------------------------------------------------------------- the arithmetic, to the byte a second */

enum { ONE = 1 << 16, G = 256, N = 50000, K = 55000, T = 300000, B = 10 << 20 };

static struct congestion c;
static uint64_t start;

/* A sender that meets congestion at 1000 bytes in each of so many microseconds. */
static void meet(uint64_t each_us) {
    c = (struct congestion){0};
    start = p.f.now + SEC;
    uint64_t step = each_us * US, now = start;
    for (; now < start + 2 * MS; now += step)
        congestion_count(&c, 1000, now);
    start = now;
    CHECK_EQ(congestion_rate(&c), 0);
    CHECK(congestion_free(&c, now));
    congestion_cut(p.a.qp, &c, now);
}

/* Alpha is 1 at first, so a cut halves the rate; what follows is DCQCN with g = 1/256. */
static void a_cut_takes_alpha_halves_of_the_rate(void) {
    OPEN(0);
    meet(10); /* 100 MB/s */
    uint64_t rate = c.rate, target = c.target, alpha = ONE;
    CHECK(target > 98000000 && target < 102000000);
    CHECK_EQ(c.line, 2 * target);
    CHECK_EQ(rate, target - target / 2);
    CHECK_EQ(c.alpha, ONE);
    for (uint64_t i = 1; i <= 5; i++) { /* without a CNP it falls, never below 0 */
        CHECK_EQ(c.decay_at, start + i * K);
        congestion_look(&c, start + i * K - 1);
        CHECK_EQ(c.alpha, alpha);
        congestion_look(&c, start + i * K);
        alpha -= (alpha + G - 1) / G;
        CHECK_EQ(c.alpha, alpha);
    }
    CHECK_EQ(c.rate, rate);
    CHECK_EQ(c.timed, 0);
    congestion_cut(p.a.qp, &c, start + 5 * K + 7);
    CHECK_EQ(c.target, rate);
    CHECK_EQ(c.rate, rate - rate * alpha / (2 * ONE));
    alpha += (ONE - alpha) / G;
    CHECK_EQ(c.alpha, alpha);
    CHECK(c.decay_at == start + 5 * K + 7 + K && c.raise_at == start + 5 * K + 7 + T);
    rate = c.rate;
    congestion_cut(p.a.qp, &c, start + 5 * K + 7 + N - 1); /* about the same congestion */
    CHECK_EQ(c.rate, rate);
    congestion_cut(p.a.qp, &c, start + 5 * K + 7 + N);
    CHECK_EQ(c.rate, rate - rate * alpha / (2 * ONE));
    CHECK_EQ(COUNTER(&p.a, cnp_handled), 4);
    pair_close(&p);
}

static void alpha_falls_to_nothing(void) {
    OPEN(0);
    meet(10);
    c.raise_at = NEVER; /* that alone */
    uint32_t turns = 0;
    for (uint64_t now = start; c.alpha; now += K, turns++)
        congestion_look(&c, now);
    CHECK(turns > 1500 && turns < 2000);
    uint64_t now = start + 10 * SEC;
    congestion_look(&c, now);
    CHECK(c.decay_at == now + K && c.alpha == 0);
    pair_close(&p);
}

/* Half the way back five times, then the target rises by 5 MB/s a step, with both clocks past five by 50 MB/s. */
static void the_rate_rises_by_time_and_by_bytes(void) {
    for (int both = 0; both < 2; both++) {
        OPEN(0);
        meet(1); /* 1 GB/s */
        uint64_t rate = c.rate, target = c.target;
        for (uint32_t i = 1; i <= 9 && c.limiting; i++) {
            check_note("both %d, step %u", both, i);
            CHECK_EQ(c.raise_at, start + i * T);
            congestion_look(&c, start + i * T - 1);
            CHECK_EQ(c.rate, rate);
            congestion_look(&c, start + i * T);
            uint32_t counted = both ? i - 1 : 0;
            target += counted > 5 ? 50000000ull * (counted - 5) : i > 5 ? 5000000ull * (i - 5) : 0;
            rate = (rate + target) / 2;
            CHECK_EQ(c.timed, i);
            CHECK_EQ(c.target, target);
            CHECK_EQ(c.rate, rate);
            if (!both)
                continue;
            congestion_count(&c, B - 1, start + i * T);
            CHECK_EQ(c.counted, i - 1);
            congestion_count(&c, 1, start + i * T);
            CHECK_EQ(c.counted, i);
            CHECK_EQ(c.bytes, 0);
            target += i > 5 ? 50000000ull * (i - 5) : 0;
            rate = (rate + target) / 2;
            CHECK_EQ(c.rate, rate);
        }
        CHECK(both || c.limiting);
        pair_close(&p);
    }
}

/* At its rate, but for 20 us of it at once after a rest. */
static void bytes_leave_at_the_rate(void) {
    OPEN(0);
    meet(10);
    uint64_t rate = c.rate, now = start + MS / 10;
    c.raise_at = NEVER;
    congestion_count(&c, 3000, now);
    CHECK_EQ(c.free_at, now - 20000 + 3000ull * SEC / rate);
    CHECK(!congestion_free(&c, now) && c.waits && congestion_deadline(&c) == c.free_at);
    uint64_t free_at = c.free_at;
    congestion_count(&c, 5000, now);
    CHECK_EQ(c.free_at, free_at + 5000ull * SEC / rate);
    CHECK(!congestion_free(&c, c.free_at - 1));
    CHECK(congestion_free(&c, c.free_at) && congestion_deadline(&c) == NEVER);
    pair_close(&p);
}

/* What was sent in the last whole millisecond or since then, whichever was more. */
static void the_rate_is_what_was_sent_lately(void) {
    OPEN(0);
    for (int i = 0; i < 4; i++) {
        uint64_t at = 5 * SEC;
        check_note("case %d", i);
        c = (struct congestion){0};
        congestion_count(&c, 100000, at);
        congestion_count(&c, 100000, at + MS); /* the same millisecond yet */
        CHECK(c.sampled == at && c.sample == 200000 && c.known == 0);
        congestion_count(&c, i < 2 ? 50 : 100000, at + MS + 1);
        CHECK(c.sampled == at + MS + 1 && c.sample == (i < 2 ? 50 : 100000));
        CHECK_EQ(c.known, 200000ull * SEC / (MS + 1));
        congestion_cut(p.a.qp, &c, at + MS + 1 + (i % 2 ? 2 * N : N / 2));
        uint64_t lately = (i < 2 ? 50ull : 100000ull) * SEC / (i % 2 ? 2 * N : N);
        CHECK_EQ(c.target, lately > c.known ? lately : c.known);
    }
    c = (struct congestion){0};
    congestion_cut(p.a.qp, &c, SEC); /* which has sent nothing */
    CHECK(c.rate == 10000000 / 8 && c.target == 10000000 / 8 && c.free_at == SEC);
    struct link lane = {.bare = true}, *wire = p.a.qp->way.link;
    p.a.qp->way.link = &lane;
    c = (struct congestion){0};
    congestion_cut(p.a.qp, &c, SEC);
    CHECK_EQ(c.rate, 160000000 / 8);
    p.a.qp->way.link = wire;
    pair_close(&p);
}

static void a_notification_is_owed_each_50_us(void) {
    OPEN(0);
    c = (struct congestion){0};
    congestion_marked(p.a.qp, &c, 5);
    CHECK(congestion_owes(&c));
    c.owes = false;
    c.notified = 1000;
    congestion_marked(p.a.qp, &c, 1000 + N - 1);
    CHECK(!congestion_owes(&c));
    congestion_marked(p.a.qp, &c, 1000 + N);
    CHECK(congestion_owes(&c));
    CHECK_EQ(COUNTER(&p.a, ecn_marked), 3);
    pair_close(&p);
}

/* ---------------------------------------------------------------- hostile */

static void notifications_out_of_nowhere_do_no_harm(void) {
    uint8_t cnp[BTH_BYTES + CNP_RESERVED_BYTES] = {0};
    OPEN(0);
    struct way way = p.b.qp->way;
    bth_set_opcode(cnp, ROCE_CNP);
    bth_set_pkey(cnp, 0xFFFF);
    bth_set_dqpn(cnp, p.a.qp->pub.qp_num);
    for (int i = 0; i < 1000; i++)
        fabric_inject(p.b.node, &way, cnp, sizeof cnp);
    fill(p.a.mem, BYTES, 10);
    write_all();
    CHECK_EQ(COUNTER(&p.a, cnp_handled), 1000);
    close_verified(10);
}

int main(void) {
    RUN(a_mark_is_answered_with_a_notification);
    RUN(many_marks_are_one_notification_each_50_us);
    RUN(what_may_not_be_marked_is_not);
    RUN(a_sender_that_meets_congestion_slows_down);
    RUN(one_mark_halves_the_rate);
    RUN(the_limit_ends_when_congestion_has);
    RUN(it_never_stops_altogether);
    RUN(whoever_answers_a_read_is_limited_too);
    RUN(an_unreliable_connection_is_limited_too);
    RUN(marks_and_losses_at_once_lose_nothing);
    RUN(the_lower_of_the_two_rates_holds);
    RUN(a_cut_takes_alpha_halves_of_the_rate);
    RUN(alpha_falls_to_nothing);
    RUN(the_rate_rises_by_time_and_by_bytes);
    RUN(bytes_leave_at_the_rate);
    RUN(the_rate_is_what_was_sent_lately);
    RUN(a_notification_is_owed_each_50_us);
    RUN(notifications_out_of_nowhere_do_no_harm);
    return check_done();
}
