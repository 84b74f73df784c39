/* SPDX-License-Identifier: Apache-2.0
 *
 * Unreliable connections on virtual time: what arrives, what a loss costs, what is dropped in silence, and states.
 */
#include <string.h>

#include "check.h"
#include "fabric.h"
#include "roce/roce.h"
#include "transitions.h"
#include "wire/bth.h"

#define MTU 256u

static struct pair p;

#define OPEN(...) pair_open(&p, .type = RNIC_QPT_UC, .mtu = RNIC_MTU_256, __VA_ARGS__)

static void post_imm(uint64_t id, int opcode, uint32_t n, uint32_t imm) {
    post(&p.a, (struct rnic_send_wr){.wr_id = id,
                                     .opcode = opcode,
                                     .send_flags = RNIC_SEND_SIGNALED,
                                     .imm_data = imm,
                                     REMOTE(&p.b, 0),
                                     SGL(SGE(&p.a, 0, n))});
}

/* ---------------------------------------------------------------- what arrives */

static void messages_of_every_length_arrive_and_nobody_answers(void) {
    static const uint32_t sizes[] = {0, 1, MTU - 1, MTU, MTU + 1, 3 * MTU, 10 * MTU + 5, 60000};
    OPEN(.latency = 0);
    for (uint64_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint32_t n = sizes[i];
        fill(p.a.mem, n, i);
        memset(p.b.mem, 0, n);
        post_recv(&p.b, i, 0, n);
        post_send(&p.a, i, 0, n);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, i, SUCCESS);
        CHECK_EQ(WANT(p.b.recv_cq, i, SUCCESS).byte_len, n);
        CHECK(filled(p.b.mem, n, i));
        CHECK_EQ(p.b.qp->nic->silent, i);
        memset(p.b.mem, 0, n);
        post_write(&p.a, 100 + i, 0, 0, n);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 100 + i, SUCCESS);
        CHECK(filled(p.b.mem, n, i));
        CHECK_EQ(p.b.qp->nic->silent, i + 1);
    }
    CHECK_EQ(fabric_count(&p.f, p.b.node, 0, -1), 0);
    CHECK_EQ(fabric_count(&p.f, p.a.node, 1, ROCE_UC_SEND_ONLY), 4);
    pair_close_quietly(&p);
}

static void a_send_completes_before_it_arrives(void) {
    OPEN(.latency = 5 * MS);
    post_recv(&p.b, 1, 0, 1000);
    post_send(&p.a, 2, 0, 1000);
    WANT(p.a.send_cq, 2, SUCCESS);
    WANT_NONE(p.b.recv_cq);
    fabric_settle(&p.f);
    WANT(p.b.recv_cq, 1, SUCCESS);
    pair_close_quietly(&p);
}

/* By b, as its queue pair and its device both count it. */
static uint64_t dropped(int counter) {
    uint64_t n = p.b.node->nic.counters.value[counter];
    CHECK_EQ(p.b.qp->counters.value[counter], n);
    return n;
}
#define DROPPED(name) dropped(RNIC_CNT_##name)

static void immediate_data_completes_a_receive(void) {
    OPEN(0);
    for (uint64_t i = 0; i < 4; i++)
        post_recv(&p.b, i, 4096, 2000);
    post_imm(1, RNIC_WR_SEND_WITH_IMM, 10, 0x01020304);
    post_imm(2, RNIC_WR_SEND_WITH_IMM, 1000, 5);
    post_imm(3, RNIC_WR_RDMA_WRITE_WITH_IMM, 1000, 6);
    post_imm(4, RNIC_WR_RDMA_WRITE_WITH_IMM, 0, 7);
    fabric_settle(&p.f);
    static const struct {
        uint32_t length, imm;
        int opcode;
    } want[] = {{10, 0x01020304, RNIC_WCO_RECV},
                {1000, 5, RNIC_WCO_RECV},
                {1000, 6, RNIC_WCO_RECV_RDMA_WITH_IMM},
                {0, 7, RNIC_WCO_RECV_RDMA_WITH_IMM}};
    for (uint64_t i = 0; i < 4; i++) {
        WANT(p.a.send_cq, i + 1, SUCCESS);
        struct rnic_wc wc = WANT(p.b.recv_cq, i, SUCCESS);
        CHECK_EQ(wc.byte_len, want[i].length);
        CHECK_EQ(wc.imm_data, want[i].imm);
        CHECK_EQ(wc.opcode, want[i].opcode);
        CHECK_EQ(wc.wc_flags, RNIC_WCF_WITH_IMM);
    }
    pair_close_quietly(&p);
}

static void only_sends_and_writes_can_be_posted(void) {
    OPEN(0);
    for (int opcode = RNIC_WR_RDMA_READ; opcode <= RNIC_WR_SEND_WITH_INV; opcode++)
        CHECK(try_post(&p.a, (struct rnic_send_wr){.opcode = opcode, SGL(SGE(&p.a, 0, 8))}) < 0);
    pair_close_quietly(&p);
}

/* ---------------------------------------------------------------- loss */

static enum verdict lose_nth(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)bth;
    return from == p.a.node && nth == *(const uint32_t *)arg ? LOSE : PASS;
}

/* Three messages of four packets: whichever packet is lost, its message is, and the others are whole. */
static void a_lost_packet_costs_its_message_alone(void) {
    enum { MESSAGES = 3, PACKETS = 4, BYTES = PACKETS * MTU - 10 };
    for (uint32_t lost = 0; lost < MESSAGES * PACKETS; lost++) {
        check_note("packet %u", lost);
        OPEN(0);
        p.f.judge = lose_nth;
        p.f.judge_arg = &lost;
        for (uint64_t i = 0; i < MESSAGES; i++) {
            fill(p.a.mem + i * 4096, BYTES, i);
            post_recv(&p.b, i, i * 4096, BYTES);
        }
        for (uint64_t i = 0; i < MESSAGES; i++)
            post_send(&p.a, i, i * 4096, BYTES);
        fabric_settle(&p.f);
        for (uint64_t i = 0; i < MESSAGES; i++)
            WANT(p.a.send_cq, i, SUCCESS);
        uint64_t receive = 0;
        for (uint64_t i = 0; i < MESSAGES; i++) {
            if (i == lost / PACKETS)
                continue;
            CHECK_EQ(WANT(p.b.recv_cq, receive, SUCCESS).byte_len, BYTES); /* of the lost one a later message's */
            CHECK(filled(p.b.mem + receive * 4096, BYTES, i));
            receive++;
        }
        bool seen = lost < MESSAGES * PACKETS - 1; /* nothing comes after the last packet that would show it */
        CHECK_EQ(COUNTER(&p.b, out_of_sequence), seen ? 1 : 0);
        CHECK_EQ(DROPPED(drop_incomplete), seen ? PACKETS - 1 - lost % PACKETS : 0);
        pair_close_quietly(&p);
    }
}

static void random_loss_never_shows_half_a_message(void) {
    enum { MESSAGES = 400, BYTES = 3 * MTU };
    struct rnic_fault fault = {.seed = 9, .loss = 100000, .duplicate = 50000, .reorder = 50000};
    uint32_t arrived = 0;
    OPEN(.bytes = 1 << 20);
    fault_set(&p.a.node->fault, &fault);
    post_recv(&p.b, 0, 0, BYTES);
    for (uint64_t i = 0; i < MESSAGES; i++) {
        memset(p.a.mem, (int)(i & 0xFF), BYTES);
        post_send(&p.a, i, 0, BYTES);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, i, SUCCESS);
        struct rnic_wc wc;
        while (cq_take(p.b.recv_cq, 1, &wc) == 1) {
            CHECK_EQ(wc.status, RNIC_WC_SUCCESS);
            CHECK_EQ(wc.byte_len, BYTES);
            for (uint32_t at = 1; at < BYTES; at++)
                CHECK(p.b.mem[at] == p.b.mem[0]);
            memset(p.b.mem, 0, BYTES);
            arrived++;
            post_recv(&p.b, i, 0, BYTES);
        }
    }
    CHECK(arrived > MESSAGES / 4 && arrived < MESSAGES);
    pair_close_quietly(&p);
}

/* ---------------------------------------------------------------- what is dropped */

static void without_a_receive_a_message_is_lost(void) {
    OPEN(0);
    post_send(&p.a, 1, 0, 3 * MTU);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    post_recv(&p.b, 2, 0, 3 * MTU);
    CHECK_EQ(DROPPED(drop_no_receive), 1);
    CHECK_EQ(DROPPED(drop_incomplete), 2);
    post_send(&p.a, 3, 0, 3 * MTU);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 3, SUCCESS);
    WANT(p.b.recv_cq, 2, SUCCESS);
    pair_close_quietly(&p);
}

static void a_message_longer_than_its_receive_leaves_it_to_the_next(void) {
    OPEN(0);
    post_recv(&p.b, 1, 0, 2 * MTU + 1);
    post_send(&p.a, 1, 0, 2 * MTU + 2);
    post_send(&p.a, 2, 0, 2 * MTU + 1);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    WANT(p.a.send_cq, 2, SUCCESS);
    CHECK_EQ(WANT(p.b.recv_cq, 1, SUCCESS).byte_len, 2 * MTU + 1);
    CHECK_EQ(DROPPED(drop_too_long), 1);
    pair_close_quietly(&p);
}

static void a_write_without_the_right_changes_nothing(void) {
    OPEN(.access = RNIC_ACCESS_LOCAL_WRITE);
    fill(p.a.mem, 1000, 1);
    post_write(&p.a, 1, 0, 0, 1000);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    CHECK_EQ(DROPPED(drop_access), 1);
    CHECK_EQ(p.b.mem[0], 0);
    pair_close_quietly(&p);
}

static void a_wrong_key_or_range_changes_nothing(void) {
    OPEN(0);
    struct rnic_send_wr wr = {.opcode = RNIC_WR_RDMA_WRITE, REMOTE(&p.b, 0), SGL(SGE(&p.a, 0, 1000))};
    wr.wr.rdma.rkey ^= 0x100;
    post(&p.a, wr);
    wr.wr.rdma.rkey ^= 0x100;
    wr.wr.rdma.remote_addr += p.b.bytes - 999;
    post(&p.a, wr);
    fabric_settle(&p.f);
    CHECK_EQ(DROPPED(drop_access), 2);
    CHECK_EQ(COUNTER(&p.b, requests_executed), 0);
    pair_close_quietly(&p);
}

static void packets_of_reliable_connections_are_not_its_own(void) {
    uint8_t packet[BTH_BYTES + 8] = {ROCE_RC_SEND_ONLY};
    OPEN(0);
    post_recv(&p.b, 1, 0, 100);
    bth_set_pkey(packet, 0xFFFF);
    bth_set_dqpn(packet, p.b.qp->pub.qp_num);
    bth_set_psn(packet, 0x123456);
    fabric_inject(p.a.node, &p.a.qp->way, packet, sizeof packet);
    fabric_settle(&p.f);
    CHECK_EQ(COUNTER(&p.b, drop_bad_opcode), 1);
    pair_close_quietly(&p);
}

/* From who knows PSN, key and addresses: any opcode of the service, any length, in any order. */
static void hostile_packets_write_nowhere_else(void) {
    static uint8_t packet[BTH_BYTES + RETH_BYTES + IMMDT_BYTES + 3 * MTU];
    enum { GUARD = 4096, SHARED = 8192 };
    struct rng r;
    rng_seed(&r, 11);
    OPEN(.bytes = GUARD + SHARED + GUARD);
    struct mr *shared = fabric_mr(p.b.node, &p.b.node->pd, p.b.mem + GUARD, SHARED, ALL_ACCESS);
    for (int i = 0; i < 40000; i++) {
        while (wq_head(&p.b.qp->rq) - wq_tail(&p.b.qp->rq) < 3) {
            struct rnic_sge sge = {(uintptr_t)shared->pub.addr, 2 * MTU, shared->pub.lkey};
            struct rnic_recv_wr wr = {.sg_list = &sge, .num_sge = 1};
            const struct rnic_recv_wr *bad;
            CHECK_EQ(rq_post(&p.b.qp->rq, &wr, &bad, NULL), 0);
        }
        uint8_t opcode = (uint8_t)(ROCE_UC_SEND_FIRST + rng_next(&r) % 12);
        const struct roce_opcode *row = roce_opcode(opcode);
        bool full = rng_next(&r) & 1;
        uint32_t n = full ? MTU : (uint32_t)(rng_next(&r) % (2 * MTU)) & ~3u;
        for (size_t k = 0; k < sizeof packet; k++)
            packet[k] = (uint8_t)rng_next(&r);
        bth_clear(packet);
        bth_set_opcode(packet, opcode);
        bth_set_pkey(packet, 0xFFFF);
        bth_set_dqpn(packet, p.b.qp->pub.qp_num);
        struct rnic_qp_stats stats;
        p.b.qp->engine->stats(p.b.qp, &stats);
        bth_set_psn(packet, psn_add(stats.rcv_psn, (int32_t)(rng_next(&r) % 8 ? 0 : rng_next(&r) % 5)));
        if (row->reth) {
            reth_set_va(packet + row->reth, (uintptr_t)p.b.mem + rng_next(&r) % (2 * GUARD + SHARED));
            reth_set_rkey(packet + row->reth, shared->pub.rkey ^ (rng_next(&r) % 8 ? 0 : 0x100));
            reth_set_len(packet + row->reth,
                         rng_next(&r) % 4 ? n * (uint32_t)(rng_next(&r) % 4) : (uint32_t)rng_next(&r));
        }
        fabric_inject(p.a.node, &p.a.qp->way, packet, row->header + n);
        fabric_settle(&p.f);
        struct rnic_wc wc;
        while (cq_take(p.b.recv_cq, 1, &wc) == 1)
            CHECK_EQ(wc.status, RNIC_WC_SUCCESS);
    }
    for (int k = 0; k < GUARD; k++)
        CHECK(p.b.mem[k] == 0 && p.b.mem[GUARD + SHARED + k] == 0);
    CHECK(COUNTER(&p.b, requests_executed) > 5000);
    CHECK(DROPPED(drop_access) > 1000 && DROPPED(drop_too_long) > 0 && DROPPED(drop_malformed) > 1000);
    CHECK_EQ(p.b.qp->state, RNIC_QPS_RTS);
    fabric_drop_mr(p.b.node, shared);
    pair_close_quietly(&p);
}

/* ---------------------------------------------------------------- errors and states */

static void bad_memory_of_a_send_stops_the_send_queue_alone(void) {
    OPEN(0);
    post_recv(&p.a, 7, 0, 100);
    post(&p.a, (struct rnic_send_wr){
                   .wr_id = 1, .opcode = RNIC_WR_SEND, SGL({(uintptr_t)p.a.mem, 10, p.a.mr->pub.lkey ^ 0x100})});
    WANT(p.a.send_cq, 1, LOC_PROT_ERR);
    CHECK_EQ(p.a.qp->state, RNIC_QPS_SQE);
    post_send(&p.a, 2, 0, 10);
    WANT(p.a.send_cq, 2, WR_FLUSH_ERR);
    post_send(&p.b, 3, 0, 10);
    fabric_settle(&p.f);
    WANT(p.b.send_cq, 3, SUCCESS);
    WANT(p.a.recv_cq, 7, SUCCESS);
    CHECK_EQ(move(p.a.qp, RNIC_QPS_RTS), 0);
    post_recv(&p.b, 4, 0, 10);
    post_send(&p.a, 5, 0, 10);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 5, SUCCESS);
    WANT(p.b.recv_cq, 4, SUCCESS);
    pair_close_quietly(&p);
}

static void bad_memory_of_a_receive_takes_the_queue_pair_down(void) {
    OPEN(0);
    struct rnic_sge sge = {(uintptr_t)p.b.mem, 100, p.b.mr->pub.lkey ^ 0x100};
    struct rnic_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1};
    const struct rnic_recv_wr *bad;
    CHECK_EQ(rq_post(&p.b.qp->rq, &wr, &bad, NULL), 0);
    post_recv(&p.b, 2, 0, 100);
    post_send(&p.a, 3, 0, 10);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 3, SUCCESS);
    WANT(p.b.recv_cq, 1, LOC_PROT_ERR);
    WANT(p.b.recv_cq, 2, WR_FLUSH_ERR);
    CHECK_EQ(p.b.qp->state, RNIC_QPS_ERR);
    pair_close(&p);
}

static void what_is_posted_in_error_is_flushed(void) {
    OPEN(0);
    CHECK_EQ(move(p.a.qp, RNIC_QPS_ERR), 0);
    post_recv(&p.a, 1, 0, 10);
    WANT(p.a.recv_cq, 1, WR_FLUSH_ERR);
    post_send(&p.a, 2, 0, 10);
    WANT(p.a.send_cq, 2, WR_FLUSH_ERR);
    pair_close(&p);
}

/* A completion with an error wakes who waits for solicited ones alone. */
static void a_receive_that_fails_counts_as_solicited(void) {
    OPEN(0);
    struct rnic_sge sge = {(uintptr_t)p.b.mem, 100, p.b.mr->pub.lkey ^ 0x100};
    struct rnic_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1};
    const struct rnic_recv_wr *bad;
    CHECK_EQ(rq_post(&p.b.qp->rq, &wr, &bad, NULL), 0);
    cq_arm(p.b.recv_cq, true);
    post_send(&p.a, 3, 0, 10);
    fabric_settle(&p.f);
    CHECK(channel_take(&p.b.channel) == p.b.recv_cq);
    CHECK(!channel_take(&p.b.channel));
    WANT(p.a.send_cq, 3, SUCCESS);
    WANT(p.b.recv_cq, 1, LOC_PROT_ERR);
    pair_close(&p);
}

static void data_before_rts_tells_of_it_once(void) {
    OPEN(0);
    pair_respond(&p.b, &(struct options){.mtu = RNIC_MTU_256});
    for (uint64_t i = 0; i < 2; i++) {
        post_recv(&p.b, i, 0, 10);
        post_send(&p.a, i, 0, 10);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, i, SUCCESS);
        WANT(p.b.recv_cq, i, SUCCESS);
    }
    CHECK_EQ(take_event(&p.b), RNIC_EVENT_COMM_EST);
    CHECK_EQ(take_event(&p.b), -1);
    pair_close(&p);
}

static void a_send_queue_drains(void) {
    OPEN(0);
    struct rnic_qp_attr attr = {.qp_state = RNIC_QPS_SQD, .en_sqd_async_notify = 1};
    CHECK_EQ(fabric_modify(p.a.qp, &attr, RNIC_QP_STATE | RNIC_QP_EN_SQD_ASYNC_NOTIFY, NULL), 0);
    CHECK_EQ(take_event(&p.a), RNIC_EVENT_SQ_DRAINED);
    post_recv(&p.b, 1, 0, 10);
    post_send(&p.a, 2, 0, 10);
    fabric_settle(&p.f);
    WANT_NONE(p.a.send_cq);
    CHECK_EQ(move(p.a.qp, RNIC_QPS_RTS), 0);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 2, SUCCESS);
    WANT(p.b.recv_cq, 1, SUCCESS);
    pair_close_quietly(&p);
}

/* IBA 11.2.5.2 (table 91) and man ibv_modify_qp, for UC. */
static const struct change rows[] = {
    {RESET, INIT, IN(PKEY_INDEX) | IN(PORT) | IN(ACCESS_FLAGS), 0},
    {INIT, INIT, 0, IN(PKEY_INDEX) | IN(PORT) | IN(ACCESS_FLAGS)},
    {INIT, RTR, IN(AV) | IN(PATH_MTU) | IN(DEST_QPN) | IN(RQ_PSN), IN(ACCESS_FLAGS) | IN(PKEY_INDEX)},
    {RTR, RTS, IN(SQ_PSN), IN(CUR_STATE) | IN(ACCESS_FLAGS)},
    {RTS, RTS, 0, IN(CUR_STATE) | IN(ACCESS_FLAGS)},
    {RTS, SQD, 0, IN(EN_SQD_ASYNC_NOTIFY)},
    {SQD, RTS, 0, IN(CUR_STATE) | IN(ACCESS_FLAGS)},
    {SQD, SQD, 0, IN(AV) | IN(ACCESS_FLAGS) | IN(PKEY_INDEX)},
    {SQE, RTS, 0, IN(CUR_STATE) | IN(ACCESS_FLAGS)},
};
#define KNOWN                                                                                                          \
    (IN(PKEY_INDEX) | IN(PORT) | IN(ACCESS_FLAGS) | IN(AV) | IN(PATH_MTU) | IN(DEST_QPN) | IN(RQ_PSN) | IN(SQ_PSN) |   \
     IN(CUR_STATE) | IN(EN_SQD_ASYNC_NOTIFY) | IN(TIMEOUT) | IN(RETRY_CNT) | IN(RNR_RETRY) | IN(MAX_QP_RD_ATOMIC) |    \
     IN(MAX_DEST_RD_ATOMIC) | IN(MIN_RNR_TIMER) | IN(QKEY))

static int attempt(int from, int to, uint32_t mask) {
    return try_transition(p.a.qp, pair_attr(&p.a, &(struct options){.mtu = RNIC_MTU_256}), from, to, mask);
}

static void every_transition_takes_its_attributes_and_no_others(void) {
    OPEN(0);
    CHECK_TRANSITIONS(rows, KNOWN, attempt);
    pair_close(&p);
}

int main(void) {
    RUN(messages_of_every_length_arrive_and_nobody_answers);
    RUN(a_send_completes_before_it_arrives);
    RUN(immediate_data_completes_a_receive);
    RUN(only_sends_and_writes_can_be_posted);
    RUN(a_lost_packet_costs_its_message_alone);
    RUN(random_loss_never_shows_half_a_message);
    RUN(without_a_receive_a_message_is_lost);
    RUN(a_message_longer_than_its_receive_leaves_it_to_the_next);
    RUN(a_write_without_the_right_changes_nothing);
    RUN(a_wrong_key_or_range_changes_nothing);
    RUN(packets_of_reliable_connections_are_not_its_own);
    RUN(hostile_packets_write_nowhere_else);
    RUN(bad_memory_of_a_send_stops_the_send_queue_alone);
    RUN(bad_memory_of_a_receive_takes_the_queue_pair_down);
    RUN(what_is_posted_in_error_is_flushed);
    RUN(a_receive_that_fails_counts_as_solicited);
    RUN(data_before_rts_tells_of_it_once);
    RUN(a_send_queue_drains);
    RUN(every_transition_takes_its_attributes_and_no_others);
    return check_done();
}
