/* SPDX-License-Identifier: Apache-2.0
 *
 * The RC engine on wires that lose, duplicate, delay and reorder.  Every run must end with the right data and every
 * operation executed once, or with the status that the specification gives when retries are used up.
 *
 * test_rc_loss [SEEDS]: random runs at each rate of loss (or SEEDS in the environment).  ONLY_SEED: that one alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "fabric.h"
#include "load.h"
#include "roce/roce.h"

static struct pair p;
static struct loads l;

/* ---------------------------------------------------------------- one packet, wherever it is */

struct mark { /* what happens to the nth packets of a node, or of an opcode from it */
    int node, opcode;
    uint32_t nth[2];
    enum verdict verdict;
    uint32_t seen;
};

static enum verdict judge(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    struct mark *m = arg;
    if (from != &from->fabric->node[m->node] || (m->opcode >= 0 && bth[0] != m->opcode))
        return PASS;
    nth = m->opcode < 0 ? nth : m->seen++;
    return nth == m->nth[0] || nth == m->nth[1] ? m->verdict : PASS;
}

#define SEND_OP(n) {.opcode = RNIC_WR_SEND, .length = (n)}
#define SEND_IMM(n) {.opcode = RNIC_WR_SEND_WITH_IMM, .length = (n)}
#define WRITE_OP(n) {.opcode = RNIC_WR_RDMA_WRITE, .length = (n)}
#define WRITE_IMM(n) {.opcode = RNIC_WR_RDMA_WRITE_WITH_IMM, .length = (n)}
#define READ_OP(n) {.opcode = RNIC_WR_RDMA_READ, .length = (n)}
#define ADD_OP(w, x) {.opcode = RNIC_WR_ATOMIC_FETCH_AND_ADD, .length = 8, .word = (w), .operand = (x)}
#define SWAP_OP(w, x, y) {.opcode = RNIC_WR_ATOMIC_CMP_AND_SWP, .length = 8, .word = (w), .operand = (x), .swap = (y)}

/* Every packet type there is, each of them first, in the middle and last in a stream. */
static const struct load_op mixture[] = {
    SEND_OP(1000),  ADD_OP(0, 3),  WRITE_OP(900),    READ_OP(1100),     SEND_IMM(10), SWAP_OP(0, 3, 8),
    WRITE_IMM(700), WRITE_IMM(12), READ_OP(20),      ADD_OP(0, 1),      SEND_OP(0),   READ_OP(600),
    READ_OP(256),   SEND_IMM(600), SWAP_OP(1, 9, 9), SWAP_OP(1, 0, 44), WRITE_OP(5),  ADD_OP(1, 1)};
#define MIXTURE (int)(sizeof mixture / sizeof *mixture)

static uint64_t mixture_run(struct mark *mark, uint64_t late, struct options o) {
    o.mtu = RNIC_MTU_256;
    o.quiet = true;
    o.sq_psn = 0xFFFFF8;
    loads_open_fixed(&l, &p, &o, mixture, MIXTURE);
    p.f.judge = mark ? judge : NULL;
    p.f.judge_arg = mark;
    p.f.late = late;
    loads_run(&l, &p, true);
    uint64_t took = p.f.now - l.started;
    loads_verify(&l, &p);
    CHECK_EQ(l.ab.done, MIXTURE);
    CHECK_EQ(l.ab.failed, -1);
    CHECK_EQ(memcmp(p.b.mem, l.ab.word[MIXTURE], sizeof l.ab.word[0]), 0);
    CHECK_EQ(l.ab.recv_done, l.ab.receives);
    return took;
}

static const struct {
    enum verdict verdict;
    uint64_t late;
    const char *name;
} harms[] = {{LOSE, 0, "lost"},
             {TWICE, 0, "twice"},
             {LATE, 3 * US, "late by 3 us"},
             {LATE, 60 * US, "late by 60 us"},
             {LATE, 3 * MS, "late by 3 ms"},
             {LATE, 200 * MS, "late by 200 ms"}};
#define HARMS (int)(sizeof harms / sizeof *harms)

/* One fault is repaired by a NAK, an implied one or a probe, never by the transport timer. */
static void every_packet(const struct options *o) {
    mixture_run(NULL, 0, *o);
    uint32_t sent[2] = {p.f.judged[0], p.f.judged[1]};
    pair_close(&p);
    for (int h = 0; h < HARMS; h++) {
        for (int node = 0; node < 2; node++) {
            for (uint32_t n = 0; n < sent[node]; n++) {
                struct mark mark = {node, -1, {n, UINT32_MAX}, harms[h].verdict, 0};
                check_note("packet %u of node %d %s", n, node, harms[h].name);
                struct options with = *o;
                mixture_run(&mark, harms[h].late, with);
                CHECK_EQ(COUNTER(&p.a, timeouts), 0);
                pair_close(&p);
            }
        }
    }
}

static void any_one_packet_may_be_lost_doubled_or_late(void) { every_packet(&(struct options){.lazy = 1}); }

static void also_with_one_message_at_a_time(void) { every_packet(&(struct options){.rd_atomic = 1, .window = 1}); }

static void also_when_inputs_come_in_batches(void) {
    every_packet(&(struct options){.lazy = 15 * US, .budget = 4, .pause = 2 * US, .bandwidth = 100000000});
}

static void any_two_packets_may_be_lost(void) {
    const struct options o = {.lazy = 1};
    mixture_run(NULL, 0, o);
    uint32_t sent[2] = {p.f.judged[0], p.f.judged[1]};
    pair_close(&p);
    for (int node = 0; node < 2; node++) {
        for (uint32_t n = 0; n < sent[node]; n++) {
            for (uint32_t m = n + 1; m < sent[node] + 12; m++) { /* those sent again too */
                struct mark mark = {node, -1, {n, m}, LOSE, 0};
                check_note("packets %u and %u of node %d lost", n, m, node);
                mixture_run(&mark, 0, o);
                pair_close(&p);
            }
        }
    }
}

/* "Lose the nth packet of this kind", as a user says it, and so many after it: fewer than retries. */
static void the_nth_of_every_kind_may_be_lost_by_rule(void) {
    const struct options o = {.lazy = 1};
    mixture_run(NULL, 0, o);
    uint32_t tried = 0;
    for (int opcode = 0; opcode < 256; opcode++) {
        for (int node = 0; node < 2; node++) {
            for (uint32_t nth = 1; nth <= 4; nth++) {
                for (uint32_t count = 1; count <= 3; count++) {
                    pair_close(&p);
                    struct rnic_fault fault = {.lose[0] = {opcode, nth, count}};
                    check_note("%u of opcode %d of node %d from the %u. on", count, opcode, node, nth);
                    struct options with = o;
                    with.mtu = RNIC_MTU_256;
                    with.quiet = true;
                    loads_open_fixed(&l, &p, &with, mixture, MIXTURE);
                    fault_set(&p.f.node[node].fault, &fault);
                    loads_run(&l, &p, true);
                    loads_verify(&l, &p);
                    CHECK_EQ(l.ab.failed, -1);
                    uint64_t lost = p.f.node[node].nic.counters.value[RNIC_CNT_fault_lost];
                    CHECK(lost <= count);
                    tried += lost == count;
                    if (!lost && nth == 1 && count == 1)
                        nth = 5; /* there are none of these */
                }
            }
        }
    }
    pair_close(&p);
    CHECK(tried > 100);
}

/* The last response is lost, and nothing comes after it that would show that. */
static void a_probe_asks_only_for_the_rest_of_a_read(void) {
    struct mark mark = {1, ROCE_RC_READ_RESP_LAST, {0, UINT32_MAX}, LOSE, 0};
    pair_open(&p);
    p.f.judge = judge;
    p.f.judge_arg = &mark;
    post_read(&p.a, 1, 0, 0, 10 * 1024);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    CHECK_EQ(COUNTER(&p.a, timeouts), 0);
    CHECK_EQ(COUNTER(&p.b, responses_sent), 11);
    pair_close(&p);
}

/* Each wait for an answer that was lost counted as a round trip once, and made the next wait four times as long. */
static void the_wait_for_a_lost_answer_is_no_round_trip(void) {
    pair_open(&p, .timeout = 18);
    struct rnic_fault fault = {.seed = 3, .loss = 200000};
    fault_set(&p.a.node->fault, &fault);
    fault_set(&p.b.node->fault, &fault);
    uint64_t began = p.f.now;
    for (uint64_t i = 0; i < 500; i++) {
        post_add(&p.a, i, 0, 8, 1);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, i, SUCCESS);
        CHECK(rc_of(p.a.qp)->req.srtt <= 3 * p.f.latency);
    }
    CHECK(p.f.now - began < 500 * 3 * MS);
    CHECK_EQ(COUNTER(&p.a, timeouts), 0);
    pair_close(&p);
}

/* ---------------------------------------------------------------- a peer that becomes slow */

struct slowdown { /* a peer's nth packet is lost, and all after it take long */
    uint32_t nth;
    uint64_t latency;
};

static enum verdict slow_down(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    const struct slowdown *s = arg;
    (void)bth;
    if (from != p.b.node || nth != s->nth)
        return PASS;
    p.f.latency = s->latency;
    return LOSE;
}

static void reads_at(struct slowdown *s, const struct options *o) {
    check_note("from packet %u on %llu ms", s->nth, (unsigned long long)(s->latency / MS));
    pair_open_options(&p, o);
    p.f.judge = slow_down;
    p.f.judge_arg = s;
    for (uint32_t i = 0; i < 4; i++)
        post_read(&p.a, i, i * 262144, i * 262144, 262144);
    fabric_settle(&p.f);
    for (uint32_t i = 0; i < 4; i++)
        WANT(p.a.send_cq, i, SUCCESS);
    CHECK(COUNTER(&p.b, responses_sent) < 8 * 1024);
    pair_close(&p);
}

/* Each probe and each repetition of a READ is answered in full.  All these answers jump over the one that is missing, and
 * none of them says that its repetition was lost too. */
static void late_answers_use_up_no_retries(void) {
    for (uint64_t ms = 5; ms <= 60; ms += 5) {
        for (uint32_t nth = 0; nth < 600; nth += 50) {
            struct slowdown s = {nth, ms * MS};
            reads_at(&s, &(struct options){.bytes = 1 << 20, .retry_cnt = 3, .timeout = 17, .quiet = true});
        }
    }
}

/* Not one round trip could be measured before the first timeout. */
static void also_when_the_round_trip_is_longer_than_the_timeout(void) {
    for (uint32_t nth = 0; nth < 600; nth += 50) {
        struct slowdown s = {nth, 40 * MS};
        reads_at(&s, &(struct options){.bytes = 1 << 20, .latency = 40 * MS, .quiet = true});
    }
}

/* ---------------------------------------------------------------- at random */

static int seeds = 1000;

static void random_options(struct options *o, struct rng *r) {
    const uint32_t reads[] = {1, 2, 4, 16};
    const uint64_t bandwidths[] = {0, 20000000, 1000000000};
    *o = (struct options){.mtu = RNIC_MTU_256 + (int)(rng_next(r) % 3),
                          .sq_psn = psn_mask(0xFFFFC0 + (uint32_t)(rng_next(r) % 128)),
                          .rq_psn = psn_mask(0x7FFFC0 + (uint32_t)(rng_next(r) % 128)),
                          .rd_atomic = reads[rng_next(r) % 4],
                          .window = 3000u << rng_next(r) % 7,
                          .latency = 1000u << rng_next(r) % 8,
                          .bandwidth = bandwidths[rng_next(r) % 3],
                          .ack_hold = rng_next(r) % 2 ? 20 * US : 0,
                          .lazy = rng_next(r) % 3 ? 0 : rng_next(r) % (30 * US),
                          .timeout = (uint8_t)(8 + rng_next(r) % 5),
                          .rnr_retry = rng_next(r) % 4 ? 7 : 3,
                          .min_rnr_timer = (uint8_t)(1 + rng_next(r) % 10),
                          .quiet = true};
    o->dest_rd_atomic = o->rd_atomic;
    if (rng_next(r) % 4 == 0) {
        o->budget = 1 + rng_next(r) % 8;
        o->pause = 1 + rng_next(r) % (5 * US);
    }
}

static void faults(struct node *node, struct rng *r, uint32_t ppm) {
    struct rnic_fault fault = {.seed = rng_next(r), .loss = ppm};
    if (rng_next(r) % 2)
        fault.duplicate = ppm;
    if (rng_next(r) % 2) {
        fault.reorder = ppm;
        fault.reorder_gap = 1 + rng_next(r) % 6;
    }
    if (rng_next(r) % 4 == 0) {
        fault.delay = ppm / 2;
        fault.delay_ns = rng_next(r) % MS;
    }
    if (rng_next(r) % 2)
        fault.flip = ppm / 4;
    fault_set(&node->fault, &fault);
}

/* Runs that ended without an error. */
static uint64_t random_runs(uint32_t ppm) {
    uint64_t verified = 0, retry = 0, rnr = 0, packets = 0, lost = 0, resent = 0, timeouts = 0, flipped = 0, took = 0;
    const char *one = getenv("ONLY_SEED");
    for (int i = 0; i < seeds; i++) {
        uint64_t seed = one ? strtoull(one, NULL, 0) : (uint64_t)i;
        struct rng r;
        struct options o;
        rng_seed(&r, seed * 7 + ppm);
        random_options(&o, &r);
        if (!ppm)
            o.rnr_retry = 7;
        check_note("ONLY_SEED=%llu, loss %u ppm", (unsigned long long)seed, ppm);
        loads_open(&l, &p, &o, seed, LOAD_OPS / 2, 3000);
        faults(p.a.node, &r, ppm);
        faults(p.b.node, &r, ppm);
        loads_run(&l, &p, false);
        loads_verify(&l, &p);
        took += p.f.now - l.started;
        bool failed = l.ab.failed >= 0 || l.ba.failed >= 0;
        verified += !failed;
        rnr += l.ab.status == RNIC_WC_RNR_RETRY_EXC_ERR || l.ba.status == RNIC_WC_RNR_RETRY_EXC_ERR;
        retry += failed && l.ab.status != RNIC_WC_RNR_RETRY_EXC_ERR && l.ba.status != RNIC_WC_RNR_RETRY_EXC_ERR;
        for (int k = 0; k < 2; k++) {
            const uint64_t *count = p.f.node[k].nic.counters.value;
            packets += count[RNIC_CNT_tx_packets];
            lost += count[RNIC_CNT_fault_lost];
            flipped += count[RNIC_CNT_drop_bad_icrc];
            resent += count[RNIC_CNT_requests_resent];
            timeouts += count[RNIC_CNT_timeouts];
        }
        pair_close(&p);
        if (one)
            i = seeds;
    }
    printf(
        "# loss %u %%: %d seeds: %llu verified, %llu RETRY_EXC_ERR, %llu RNR_RETRY_EXC_ERR; %llu packets, %llu lost, "
        "%llu with a wrong ICRC, %llu requests resent, %llu timeouts, %llu ms\n",
        ppm / 10000, seeds, (unsigned long long)verified, (unsigned long long)retry, (unsigned long long)rnr,
        (unsigned long long)packets, (unsigned long long)lost, (unsigned long long)flipped, (unsigned long long)resent,
        (unsigned long long)timeouts, (unsigned long long)(took / MS));
    return verified;
}

static void random_runs_without_loss_all_succeed(void) { CHECK_EQ(random_runs(0), seeds); }
static void random_runs_at_1_percent_verify(void) { random_runs(10000); }
static void random_runs_at_5_percent_verify(void) { random_runs(50000); }
static void random_runs_at_20_percent_verify(void) { random_runs(200000); }

int main(int argc, char **argv) {
    const char *count = argc > 1 ? argv[1] : getenv("SEEDS");
    if (count)
        seeds = atoi(count);
    RUN(any_one_packet_may_be_lost_doubled_or_late);
    RUN(also_with_one_message_at_a_time);
    RUN(also_when_inputs_come_in_batches);
    RUN(any_two_packets_may_be_lost);
    RUN(the_nth_of_every_kind_may_be_lost_by_rule);
    RUN(a_probe_asks_only_for_the_rest_of_a_read);
    RUN(the_wait_for_a_lost_answer_is_no_round_trip);
    RUN(late_answers_use_up_no_retries);
    RUN(also_when_the_round_trip_is_longer_than_the_timeout);
    RUN(random_runs_without_loss_all_succeed);
    RUN(random_runs_at_1_percent_verify);
    RUN(random_runs_at_5_percent_verify);
    RUN(random_runs_at_20_percent_verify);
    return check_done();
}
