/* SPDX-License-Identifier: Apache-2.0
 *
 * How often and when retries go out, and what may happen before what is repeated: memory goes, answers come late.
 */
#include "check.h"
#include "hand.h"
#include "roce/roce.h"
#include "wire/bth.h"

static struct pair p;

#define SIGNALED .send_flags = RNIC_SEND_SIGNALED

/* ---------------------------------------------------------------- retries, exactly */

static void a_silent_peer_is_RETRY_EXC_ERR_after_retry_cnt_retries(void) {
    for (uint8_t count = 0; count <= 7; count++) {
        for (uint8_t timeout = 8; timeout <= 20; timeout += 4) {
            check_note("retry_cnt %u, timeout %u", count, timeout);
            pair_open(&p, .retry_cnt = count ? count : NONE, .timeout = timeout);
            CHECK_EQ(move(p.b.qp, RNIC_QPS_RESET), 0);
            uint64_t start = p.f.now;
            post_write(&p.a, 1, 0, 0, 10);
            post_recv(&p.a, 2, 0, 10);
            post_write(&p.a, 3, 0, 0, 10);
            fabric_settle(&p.f);
            WANT_ERR(p.a.send_cq, 1, RETRY_EXC_ERR, TIMEOUT);
            WANT_ERR(p.a.send_cq, 3, WR_FLUSH_ERR, FLUSHED);
            WANT_ERR(p.a.recv_cq, 2, WR_FLUSH_ERR, FLUSHED);
            CHECK_EQ(p.f.now - start, (count + 1) * (4096ull << timeout));
            CHECK_EQ(COUNTER(&p.a, timeouts), count + 1);
            CHECK_EQ(COUNTER(&p.b, drop_bad_state) > count, 1);
            pair_close(&p);
        }
    }
}

/* The IBA lets a timer run between one and four times its time: what a crowded host needs is taken out of that. */
static void a_host_that_is_late_waits_longer(void) {
    const uint64_t timeout = 4096ull << 16;
    const struct {
        uint64_t late, wait;
    } table[] = {{timeout / 400, timeout + timeout / 400 * 4},
                 {timeout / 2, 3 * timeout},
                 {timeout / 4 * 3, 4 * timeout},
                 {100 * timeout, 4 * timeout}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        check_note("case %zu", i);
        pair_open(&p, .timeout = 16);
        fabric_silence(p.a.node);
        p.a.node->nic.late = table[i].late;
        uint64_t start = p.f.now;
        post_write(&p.a, 1, 0, 0, 10);
        fabric_settle(&p.f);
        WANT_ERR(p.a.send_cq, 1, RETRY_EXC_ERR, TIMEOUT);
        CHECK_EQ(p.f.now - start, 8 * table[i].wait);
        pair_close(&p);
    }
}

/* The IBA allows a timer to be off: then only probes go out, and the queue pair waits. */
static void timeout_0_waits_forever(void) {
    pair_open(&p, .timeout = NONE);
    fabric_silence(p.a.node);
    post_write(&p.a, 1, 0, 0, 10);
    fabric_settle(&p.f);
    WANT_NONE(p.a.send_cq);
    CHECK_EQ(p.a.qp->state, RNIC_QPS_RTS);
    CHECK(fabric_count(&p.f, p.a.node, 0, -1) <= 1 + PROBES);
    pair_close(&p);
}

static enum verdict lose_middle(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)arg;
    (void)from;
    (void)nth;
    return bth[0] == ROCE_RC_WRITE_MIDDLE ? LOSE : PASS;
}

static void a_packet_that_never_passes_is_RETRY_EXC_ERR(void) {
    for (uint8_t count = 0; count <= 7; count++) {
        check_note("retry_cnt %u", count);
        pair_open(&p, .retry_cnt = count ? count : NONE, .latency = 100 * US);
        p.f.judge = lose_middle;
        post_write(&p.a, 1, 0, 0, 3000);
        fabric_settle(&p.f);
        struct rnic_wc wc = WANT(p.a.send_cq, 1, RETRY_EXC_ERR);
        CHECK(wc.vendor_err == RNIC_VE_SEQ_RETRY || wc.vendor_err == RNIC_VE_TIMEOUT);
        CHECK(fabric_count(&p.f, p.a.node, 0, ROCE_RC_WRITE_MIDDLE) >= count + 1u);
        CHECK_EQ(fabric_count(&p.f, p.a.node, 0, ROCE_RC_WRITE_FIRST), 1); /* acknowledged by the first NAK */
        pair_close(&p);
    }
}

static const double rnr_ms[32] = {655.36, 0.01,  0.02,  0.03,  0.04,  0.06,   0.08,   0.12,   0.16,   0.24,  0.32,
                                  0.48,   0.64,  0.96,  1.28,  1.92,  2.56,   3.84,   5.12,   7.68,   10.24, 15.36,
                                  20.48,  30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52};

static void no_receive_is_RNR_RETRY_EXC_ERR_after_rnr_retry_retries(void) {
    for (uint8_t timer = 0; timer < 32; timer++) {
        uint8_t count = timer % 7;
        check_note("rnr_retry %u, min_rnr_timer %u", count, timer);
        pair_open(&p, .rnr_retry = count ? count : NONE, .min_rnr_timer = timer ? timer : NONE);
        uint64_t start = p.f.now;
        if (timer & 1)
            post_send(&p.a, 1, 0, 10);
        else
            post(&p.a, (struct rnic_send_wr){.wr_id = 1,
                                             .opcode = RNIC_WR_RDMA_WRITE_WITH_IMM,
                                             SIGNALED,
                                             REMOTE(&p.b, 0),
                                             SGL(SGE(&p.a, 0, 10))});
        post_send(&p.a, 2, 0, 10);
        fabric_settle(&p.f);
        WANT_ERR(p.a.send_cq, 1, RNR_RETRY_EXC_ERR, RNR);
        WANT_ERR(p.a.send_cq, 2, WR_FLUSH_ERR, FLUSHED);
        CHECK_EQ(COUNTER(&p.b, rnr_nak_sent), count + 1);
        CHECK_EQ(COUNTER(&p.a, rnr_nak_received), count + 1);
        CHECK_EQ(COUNTER(&p.a, timeouts), 0);
        uint64_t wait = (uint64_t)(rnr_ms[timer] * 1000000 + 0.5);
        CHECK_EQ(p.f.now - start, 20 * US + count * (wait + 20 * US));
        CHECK_EQ(p.b.qp->state, RNIC_QPS_RTS); /* the responder does not mind */
        pair_close(&p);
    }
}

static void rnr_retry_7_waits_for_the_receive(void) {
    pair_open(&p, .min_rnr_timer = 1, .wr = 16);
    for (uint64_t i = 0; i < 8; i++)
        post_send(&p.a, i, 0, 3000);
    fabric_run(&p.f, p.f.now + 50 * MS);
    CHECK(COUNTER(&p.b, rnr_nak_sent) > 1000);
    CHECK(COUNTER(&p.a, requests_resent) < 2 * 3 * COUNTER(&p.b, rnr_nak_sent)); /* one message, not eight */
    WANT_NONE(p.a.send_cq);
    for (uint64_t i = 0; i < 8; i++)
        post_recv(&p.b, i, 0, 3000);
    fabric_settle(&p.f);
    for (uint64_t i = 0; i < 8; i++)
        WANT(p.a.send_cq, i, SUCCESS);
    pair_close(&p);
}

static enum verdict double_naks(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)arg;
    (void)nth;
    return from == &from->fabric->node[1] && bth[0] == ROCE_RC_ACK ? TWICE : PASS;
}

/* One RNR NAK, however often the wire repeats it, is one retry. */
static void a_doubled_RNR_NAK_counts_once(void) {
    pair_open(&p, .rnr_retry = 3, .min_rnr_timer = 5);
    p.f.judge = double_naks;
    post_send(&p.a, 1, 0, 10);
    fabric_run(&p.f, p.f.now + 150 * US);
    CHECK_EQ(p.a.qp->state, RNIC_QPS_RTS);
    CHECK_EQ(COUNTER(&p.b, rnr_nak_sent), 2);
    post_recv(&p.b, 1, 0, 10);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    pair_close(&p);
}

/* Progress gives all retries back. */
static void retries_are_counted_from_the_last_progress(void) {
    pair_open(&p, .rnr_retry = 2, .min_rnr_timer = 5, .wr = 32);
    for (uint64_t i = 0; i < 20; i++)
        post_send(&p.a, i, 0, 10);
    for (uint64_t i = 0; i < 20; i++) { /* two RNR NAKs before each */
        uint64_t naks = COUNTER(&p.b, rnr_nak_sent);
        while (COUNTER(&p.b, rnr_nak_sent) < naks + 2)
            CHECK(fabric_step(&p.f, NEVER));
        post_recv(&p.b, i, 0, 10);
        while (!cq_take(p.b.recv_cq, 1, &(struct rnic_wc){0}))
            CHECK(fabric_step(&p.f, NEVER));
    }
    fabric_settle(&p.f);
    for (uint64_t i = 0; i < 20; i++)
        WANT(p.a.send_cq, i, SUCCESS);
    pair_close(&p);
}

/* ---------------------------------------------------------------- a receive that comes late */

/* rdma_rxe answers the first packet that comes behind one without a receive with a sequence error NAK, and again each time
 * when the expected one has come in between.  rnic is silent then; so this adds rxe's NAK to what rnic answers. */
struct rxe {
    bool told; /* since the expected packet came last */
    uint32_t naks;
};

static void answer_as_rxe(void *arg, const struct qp *to, const struct packet *pkt) {
    struct rxe *rxe = arg;
    const struct responder *resp = &rc_of(to)->resp;
    if (to != p.b.qp || !(pkt->row->mask & OPC_REQUEST))
        return;
    int32_t ahead = psn_diff(pkt->psn, resp->psn);
    if (ahead == 0)
        rxe->told = false;
    if (ahead <= 0 || rxe->told)
        return;
    const struct hand nak = {
        .opcode = ROCE_RC_ACK, .syndrome = AETH_NAK_PSN_SEQ, .psn = psn_diff(resp->psn, rc_of(p.a.qp)->req.una)};
    rxe->told = true;
    rxe->naks++;
    inject(&p.b, &nak);
}

#define LATE_IMM(n) {.opcode = RNIC_WR_RDMA_WRITE_WITH_IMM, SIGNALED, REMOTE(&p.b, 0), SGL(SGE(&p.a, 0, n))}

/* What is refused, and then one of each that takes no receive, which the peer would answer with a NAK of their own. */
static void post_refused(int kind) {
    switch (kind) {
    case 0:
        post_send(&p.a, 0, 0, 5000);
        break;
    case 1:
        post_send(&p.a, 0, 0, 10);
        break;
    case 2:
        post(&p.a, (struct rnic_send_wr)LATE_IMM(10));
        break;
    default:
        post(&p.a, (struct rnic_send_wr)LATE_IMM(5000));
    }
    post_write(&p.a, 1, 0, 0, 3000);
    post_read(&p.a, 2, 0, 0, 3000);
    post_add(&p.a, 3, 0, 0, 1);
    post_send(&p.a, 4, 0, 10);
}

static void a_receive_may_come_late_at_a_peer_that_answers_what_is_behind(void) {
    for (int kind = 0; kind < 4; kind++) {
        for (uint8_t timer = 1; timer < 32; timer += 6) {
            check_note("kind %d, min_rnr_timer %u", kind, timer);
            struct rxe rxe = {0};
            pair_open(&p, .min_rnr_timer = timer, .retry_cnt = NONE, .latency = 500 * US);
            p.f.witness = answer_as_rxe;
            p.f.witness_arg = &rxe;
            post_refused(kind);
            fabric_run(&p.f, p.f.now + 20 * SEC);
            WANT_NONE(p.a.send_cq);
            CHECK_EQ(p.a.qp->state, RNIC_QPS_RTS);
            uint64_t rnrs = COUNTER(&p.b, rnr_nak_sent), sent = COUNTER(&p.a, tx_packets);
            CHECK(rnrs > 10);
            CHECK_EQ(rxe.naks, 1);               /* for what was on its way when the first packet was refused, */
            CHECK(sent <= rnrs + 5 + 3 + 2 + 1); /* and from then on one packet asks */
            CHECK_EQ(COUNTER(&p.a, timeouts), 0);
            uint64_t probes = COUNTER(&p.a, probes_sent);
            post_recv(&p.b, 10, 0, 5000);
            post_recv(&p.b, 11, 0, 5000);
            fabric_settle(&p.f);
            CHECK_EQ(COUNTER(&p.a, probes_sent), probes); /* it has asked for the ACK that lets the others go */
            for (uint64_t i = 0; i < 5; i++)
                WANT(p.a.send_cq, i, SUCCESS);
            WANT(p.b.recv_cq, 10, SUCCESS);
            WANT(p.b.recv_cq, 11, SUCCESS);
            pair_close(&p);
        }
    }
}

/* Retries count what is not answered, and a refusal is an answer: on a wire that loses a packet now and then, the losses
 * before it do not add up. */
static enum verdict lose_some(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    struct rng *rng = arg;
    (void)from;
    (void)nth;
    (void)bth;
    return rng_next(rng) >> 60 ? PASS : LOSE; /* one of sixteen */
}

static void a_refusal_gives_the_retries_back(void) {
    for (uint64_t seed = 0; seed < 5; seed++) {
        struct rng rng;
        struct rxe rxe = {0};
        rng_seed(&rng, seed);
        check_note("seed %u", (unsigned)seed);
        pair_open(&p, .min_rnr_timer = 13, .retry_cnt = 5, .timeout = 8);
        p.f.judge = lose_some;
        p.f.judge_arg = &rng;
        p.f.witness = answer_as_rxe;
        p.f.witness_arg = &rxe;
        post_refused((int)seed % 4);
        fabric_run(&p.f, p.f.now + 2 * SEC);
        WANT_NONE(p.a.send_cq);
        CHECK(COUNTER(&p.a, timeouts) > 5);
        p.f.judge = NULL;
        post_recv(&p.b, 10, 0, 5000);
        post_recv(&p.b, 11, 0, 5000);
        fabric_settle(&p.f);
        for (uint64_t i = 0; i < 5; i++)
            WANT(p.a.send_cq, i, SUCCESS);
        pair_close(&p);
    }
}

/* ---------------------------------------------------------------- answers that take long */

/* Nothing is lost, but a packet takes 4 ms on that wire, and what is under way a second: each packet that is asked for
 * twice makes all others wait longer.  Some are asked for again before it is known how slow it is. */
static void on_a_slow_wire_hardly_anything_is_asked_for_twice(void) {
    static const struct {
        int reads;
        uint32_t bytes;
    } loads[] = {{8, 1 << 20}, {32, 100000}, {32, 4096}, {1, 1 << 20}};
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
        for (uint64_t bandwidth = 1000000; bandwidth <= 25000000; bandwidth *= 5) {
            check_note("%d READs of %u bytes at %u bytes/s", loads[i].reads, loads[i].bytes, (unsigned)bandwidth);
            pair_open(&p, .bandwidth = bandwidth, .mtu = RNIC_MTU_4096, .bytes = 1 << 20, .timeout = 18, .quiet = true);
            for (int n = 0; n < loads[i].reads; n++)
                post_read(&p.a, 1, 0, 0, loads[i].bytes);
            fabric_settle(&p.f);
            for (int n = 0; n < loads[i].reads; n++)
                WANT(p.a.send_cq, 1, SUCCESS);
            uint64_t needed = (uint64_t)loads[i].reads * packets_of(loads[i].bytes, 4096);
            CHECK(COUNTER(&p.b, responses_sent) <= needed + 3 * 60); /* a request asks for 60 */
            CHECK(COUNTER(&p.a, probes_sent) <= 16);
            CHECK_EQ(COUNTER(&p.a, timeouts), 0);
            pair_close(&p);
        }
    }
}

struct burst { /* that many of b's READ responses from the nth on are lost */
    uint32_t nth, count, seen;
};

static enum verdict lose_burst(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    struct burst *burst = arg;
    (void)nth;
    if (from != &from->fabric->node[1] || !(roce_opcode(bth_opcode(bth))->mask & OPC_READ_RESP))
        return PASS;
    uint32_t n = burst->seen++;
    return n >= burst->nth && n < burst->nth + burst->count ? LOSE : PASS;
}

/* A probe asks for one packet, whose answer shows that those behind it are lost, too: all come again at once. */
static void the_lost_end_of_a_read_comes_again_after_one_probe(void) {
    for (uint32_t nth = 1; nth < 60; nth += 7) {
        struct burst burst = {nth, 60 - nth, 0};
        check_note("%u of 60 come", nth);
        pair_open(&p);
        p.f.judge = lose_burst;
        p.f.judge_arg = &burst;
        fill(p.b.mem, 60 * 1024, nth);
        post_read(&p.a, 1, 0, 0, 60 * 1024);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 1, SUCCESS);
        CHECK(filled(p.a.mem, 60 * 1024, nth));
        CHECK_EQ(COUNTER(&p.a, probes_sent), 1);
        CHECK_EQ(COUNTER(&p.a, timeouts), 0);
        CHECK_EQ(COUNTER(&p.b, responses_sent), 60 + 60 - nth); /* nothing twice but what was lost */
        pair_close_quietly(&p);
    }
}

/* ---------------------------------------------------------------- order of things */

static enum verdict lose_first_ack(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    int *lost = arg;
    (void)nth;
    return from == &from->fabric->node[1] && bth[0] == ROCE_RC_ACK && (*lost)-- > 0 ? LOSE : PASS;
}

/* Memory may go when its message is acknowledged, not before; when it has gone a repetition cannot be made.  An
 * acknowledge that comes late still wins. */
static void memory_that_goes_before_the_ACK_fails_the_repetition_alone(void) {
    for (int late = 0; late < 2; late++) {
        check_note("late %d", late);
        int lost = 1;
        pair_open(&p, .lazy = 1);
        p.f.judge = lose_first_ack;
        p.f.judge_arg = &lost;
        struct mr *mr = fabric_mr(p.a.node, &p.a.node->pd, p.a.mem, 4096, 0);
        struct rnic_sge sge = {(uintptr_t)p.a.mem, 3000, mr->pub.lkey};
        post(&p.a,
             (struct rnic_send_wr){
                 .wr_id = 1, .opcode = RNIC_WR_RDMA_WRITE, SIGNALED, REMOTE(&p.b, 0), .sg_list = &sge, .num_sge = 1});
        fabric_run(&p.f, p.f.now + 100 * US);
        fabric_drop_mr(p.a.node, mr);
        if (late) {
            struct hand ack = {ROCE_RC_ACK, 0, 0, 31, 2, 0};
            inject(&p.b, &ack);
        }
        post_write(&p.a, 2, 0, 4096, 10);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 1, SUCCESS); /* if not by that ACK, by the next WRITE's, before any timer */
        WANT(p.a.send_cq, 2, SUCCESS);
        pair_close(&p);
    }
}

static void a_probe_of_memory_that_has_gone_fails_the_message(void) {
    pair_open(&p);
    fabric_silence(p.a.node);
    struct mr *mr = fabric_mr(p.a.node, &p.a.node->pd, p.a.mem, 4096, 0);
    struct rnic_sge sge = {(uintptr_t)p.a.mem, 3000, mr->pub.lkey};
    post(&p.a, (struct rnic_send_wr){
                   .wr_id = 1, .opcode = RNIC_WR_RDMA_WRITE, SIGNALED, REMOTE(&p.b, 0), .sg_list = &sge, .num_sge = 1});
    post_write(&p.a, 2, 0, 0, 10);
    fabric_drop_mr(p.a.node, mr);
    fabric_settle(&p.f);
    WANT_ERR(p.a.send_cq, 1, LOC_PROT_ERR, SGE_BAD_LKEY);
    WANT_ERR(p.a.send_cq, 2, WR_FLUSH_ERR, FLUSHED);
    CHECK_EQ(p.a.qp->state, RNIC_QPS_ERR);
    pair_close(&p);
}

/* The failed element stands behind others that are only acknowledged later, by answers to their first sending. */
static void an_ACK_for_what_could_not_be_repeated_is_success(void) {
    pair_open(&p, .latency = 2 * MS, .timeout = 8, .lazy = 1);
    struct mr *mr = fabric_mr(p.a.node, &p.a.node->pd, p.a.mem, 4096, 0);
    struct rnic_sge sge = {(uintptr_t)p.a.mem, 3000, mr->pub.lkey};
    post_write(&p.a, 1, 0, 0, 10);
    post(&p.a, (struct rnic_send_wr){
                   .wr_id = 2, .opcode = RNIC_WR_RDMA_WRITE, SIGNALED, REMOTE(&p.b, 0), .sg_list = &sge, .num_sge = 1});
    post_write(&p.a, 3, 0, 0, 10);
    fabric_run(&p.f, p.f.now + US);
    fabric_drop_mr(p.a.node, mr);
    fabric_settle(&p.f); /* the timer goes off before the first answer */
    CHECK(COUNTER(&p.a, timeouts) >= 1);
    WANT(p.a.send_cq, 1, SUCCESS);
    WANT(p.a.send_cq, 2, SUCCESS);
    WANT(p.a.send_cq, 3, SUCCESS);
    CHECK_EQ(p.a.qp->state, RNIC_QPS_RTS);
    pair_close(&p);
}

/* A READ whose answer has arrived may come again from the wire, when its region has gone: nobody waits for that. */
static void a_late_duplicate_of_a_READ_whose_region_has_gone_is_dropped(void) {
    pair_open(&p);
    struct mr *mr = fabric_mr(p.b.node, &p.b.node->pd, p.b.mem, 4096, ALL_ACCESS);
    post(&p.a, (struct rnic_send_wr){.wr_id = 1,
                                     .opcode = RNIC_WR_RDMA_READ,
                                     SIGNALED,
                                     .wr.rdma = {(uintptr_t)p.b.mem, mr->pub.rkey},
                                     SGL(SGE(&p.a, 0, 100))});
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    uint8_t again[BTH_BYTES + RETH_BYTES] = {0};
    bth_set_opcode(again, ROCE_RC_READ_REQUEST);
    bth_set_pkey(again, 0xFFFF);
    bth_set_dqpn(again, p.b.qp->pub.qp_num);
    bth_set_psn(again, 0x123456);
    reth_set_va(again + BTH_BYTES, (uintptr_t)p.b.mem);
    reth_set_rkey(again + BTH_BYTES, mr->pub.rkey);
    reth_set_len(again + BTH_BYTES, 100);
    fabric_inject(p.a.node, &p.a.qp->way, again, sizeof again);
    fabric_settle(&p.f);
    CHECK_EQ(COUNTER(&p.b, responses_sent), 2);
    fabric_drop_mr(p.b.node, mr);
    fabric_inject(p.a.node, &p.a.qp->way, again, sizeof again);
    fabric_settle(&p.f);
    CHECK_EQ(p.b.qp->state, RNIC_QPS_RTS);
    CHECK_EQ(COUNTER(&p.b, drop_duplicate), 1);
    post_write(&p.a, 2, 0, 0, 10);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 2, SUCCESS);
    pair_close(&p);
}

static uint32_t psn_of_last(const struct node *from, int opcode) {
    uint32_t psn = UINT32_MAX;
    for (uint32_t i = 0; i < p.f.logged; i++) {
        const struct record *r = &p.f.log[i];
        if (!r->arrived && r->from == from - p.f.node && r->opcode == opcode)
            psn = r->psn;
    }
    return psn;
}

/* A READ or an atomic is acknowledged by its response alone.  There are requesters that take an ACK with its PSN for its
 * end, and complete it without the data. */
static void the_ACK_of_a_duplicate_names_no_READ_or_atomic(void) {
    for (int atomic = 0; atomic <= 1; atomic++) {
        pair_open(&p);
        uint32_t psn = rc_of(p.b.qp)->resp.psn;
        post_write(&p.a, 1, 0, 0, 2000); /* two packets */
        if (atomic)
            post_add(&p.a, 2, 0, 0, 1);
        else
            post_read(&p.a, 2, 0, 0, 100);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 1, SUCCESS);
        WANT(p.a.send_cq, 2, SUCCESS);
        const struct hand again = {ROCE_RC_WRITE_FIRST, 1024, 2000, 0, -3, 0};
        inject(&p.a, &again);
        fabric_settle(&p.f);
        CHECK_EQ(COUNTER(&p.b, duplicate_requests), 1);
        CHECK_EQ(psn_of_last(p.b.node, ROCE_RC_ACK), psn_add(psn, 1));
        pair_close(&p);
    }
}

/* A NAK that waits for its turn while the expected packet comes has nothing to say any more, but the ACK has. */
static void a_NAK_that_was_overtaken_is_not_sent(void) {
    pair_open(&p, .lazy = 1);
    struct rc *rc = rc_of(p.b.qp);
    p.b.node->lazy = 50 * US; /* the next packets come in one batch */
    const struct hand batch[] = {{ROCE_RC_WRITE_ONLY, 4, 4, 0, 1, 0}, {ROCE_RC_WRITE_ONLY, 4, 4, 0, 0, 0}};
    uint32_t psn = rc->resp.psn;
    inject(&p.a, &batch[0]);
    inject(&p.a, &batch[1]);
    fabric_run(&p.f, p.f.now + 20 * US);
    const struct hand repeated = {ROCE_RC_WRITE_ONLY, 4, 4, 0, 0, 0};
    CHECK_EQ(rc->resp.psn, psn_add(psn, 1));
    inject(&p.a, &repeated);
    fabric_settle(&p.f);
    CHECK_EQ(rc->resp.psn, psn_add(psn, 2));
    CHECK_EQ(COUNTER(&p.b, nak_seq_sent), 0);
    CHECK_EQ(COUNTER(&p.b, acks_sent), 1);
    /* the same with a receive that comes in time */
    const struct hand send = {ROCE_RC_SEND_ONLY, 4, 0, 0, 0, 0};
    inject(&p.a, &send);
    fabric_run(&p.f, p.f.now + 15 * US);
    post_recv(&p.b, 1, 0, 4);
    inject(&p.a, &send);
    fabric_settle(&p.f);
    WANT(p.b.recv_cq, 1, SUCCESS);
    CHECK_EQ(COUNTER(&p.b, rnr_nak_sent), 0);
    CHECK_EQ(COUNTER(&p.b, acks_sent), 2);
    pair_close(&p);
}

static enum verdict lose_all(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)arg;
    (void)nth;
    (void)bth;
    return from == p.a.node ? LOSE : PASS;
}

/* As when a packet is taken back, and its queue pair does not end after all. */
static void what_was_taken_back_goes_out_again_without_a_retry(void) {
    pair_open(&p, .retry_cnt = NONE, .timeout = NONE);
    for (uint64_t i = 0; i < 3; i++)
        post_recv(&p.b, i, 0, 2000);
    p.f.judge = lose_all;
    for (uint64_t i = 0; i < 2; i++)
        post_send(&p.a, i, 0, 2000);
    fabric_run(&p.f, p.f.now + 100 * US);
    p.f.judge = NULL;
    post_send(&p.a, 2, 0, 2000); /* which is refused, as what is ahead of it is missing */
    p.a.qp->engine->again(p.a.qp);
    fabric_turn(p.a.qp);
    fabric_settle(&p.f);
    for (uint64_t i = 0; i < 3; i++) {
        WANT(p.a.send_cq, i, SUCCESS);
        WANT(p.b.recv_cq, i, SUCCESS);
    }
    CHECK_EQ(COUNTER(&p.b, nak_seq_sent), 1);
    pair_close_quietly(&p);
}

/* An answer that comes again says that others are on their way, but none that could keep the timer from counting. */
static void a_probe_goes_out_before_a_retry_is_counted(void) {
    struct hand again = {.opcode = ROCE_RC_ACK, .syndrome = AETH_CREDIT_INVALID, .psn = -1};
    pair_open(&p, .timeout = 8); /* 1.05 ms; a probe waits for 1 ms */
    post_write(&p.a, 1, 0, 0, 10);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    p.f.judge = lose_all;
    post_write(&p.a, 2, 0, 0, 10);
    fabric_run(&p.f, p.f.now + 500 * US);
    p.f.judge = NULL;
    inject(&p.b, &again);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 2, SUCCESS);
    CHECK_EQ(COUNTER(&p.a, timeouts), 0);
    CHECK_EQ(COUNTER(&p.a, probes_sent), 1);
    pair_close_quietly(&p);
}

/* Nor do answers for other queue pairs, however many come. */
static void a_probe_goes_out_before_that_though_others_are_answered(void) {
    for (int first = 0; first < 2; first++) {
        check_note("first %d", first);
        pair_open(&p, .retry_cnt = NONE, .timeout = first ? 14 : 9, .latency = 10 * US); /* 67 ms, 2.1 ms */
        if (!first) {
            post_write(&p.a, 1, 0, 0, 10);
            fabric_settle(&p.f);
            WANT(p.a.send_cq, 1, SUCCESS);
            rc_of(p.a.qp)->req.srtt = 250 * US;
        }
        p.f.judge = lose_all;
        post_write(&p.a, 2, 0, 0, 10);
        p.a.node->nic.answered = p.f.now + SEC;
        fabric_run(&p.f, p.f.now + 500 * US);
        p.f.judge = NULL;
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 2, SUCCESS);
        CHECK_EQ(COUNTER(&p.a, timeouts), 0);
        CHECK_EQ(COUNTER(&p.a, probes_sent), 1);
        pair_close_quietly(&p);
    }
}

int main(void) {
    RUN(a_silent_peer_is_RETRY_EXC_ERR_after_retry_cnt_retries);
    RUN(a_host_that_is_late_waits_longer);
    RUN(timeout_0_waits_forever);
    RUN(a_packet_that_never_passes_is_RETRY_EXC_ERR);
    RUN(no_receive_is_RNR_RETRY_EXC_ERR_after_rnr_retry_retries);
    RUN(rnr_retry_7_waits_for_the_receive);
    RUN(a_doubled_RNR_NAK_counts_once);
    RUN(retries_are_counted_from_the_last_progress);
    RUN(a_receive_may_come_late_at_a_peer_that_answers_what_is_behind);
    RUN(a_refusal_gives_the_retries_back);
    RUN(on_a_slow_wire_hardly_anything_is_asked_for_twice);
    RUN(the_lost_end_of_a_read_comes_again_after_one_probe);
    RUN(memory_that_goes_before_the_ACK_fails_the_repetition_alone);
    RUN(a_probe_of_memory_that_has_gone_fails_the_message);
    RUN(an_ACK_for_what_could_not_be_repeated_is_success);
    RUN(a_late_duplicate_of_a_READ_whose_region_has_gone_is_dropped);
    RUN(the_ACK_of_a_duplicate_names_no_READ_or_atomic);
    RUN(a_NAK_that_was_overtaken_is_not_sent);
    RUN(what_was_taken_back_goes_out_again_without_a_retry);
    RUN(a_probe_goes_out_before_a_retry_is_counted);
    RUN(a_probe_goes_out_before_that_though_others_are_answered);
    return check_done();
}
