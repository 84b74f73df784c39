/* SPDX-License-Identifier: Apache-2.0
 *
 * Extended reliable connections on virtual time: a sends, b has shared receive queues in a domain.
 */
#include <errno.h>
#include <string.h>

#include "check.h"
#include "load.h"
#include "roce/roce.h"
#include "transitions.h"
#include "wire/bth.h"

#define MTU 256u

static struct pair p;

#define OPEN(...) pair_open(&p, .type = RNIC_QPT_XRC_SEND, .mtu = RNIC_MTU_256, __VA_ARGS__)

/* One more shared receive queue of b, with a protection domain and a completion queue of its own. */
static struct {
    struct srq *srq;
    struct cq *cq;
    struct mr *mr;
} other;

static void open_other(struct xrc_domain *domain) {
    other.cq = fabric_cq(16, NULL);
    other.srq = fabric_srq(p.b.node, domain, &p.b.node->other_pd, other.cq, 8);
    other.mr = fabric_mr(p.b.node, &p.b.node->other_pd, p.b.mem, p.b.bytes, ALL_ACCESS);
}

static void drop_other_srq(void) {
    if (other.srq)
        fabric_drop_srq(p.b.node, other.srq);
    other.srq = NULL;
}

static void close_other(void) {
    drop_other_srq();
    WANT_NONE(other.cq);
    fabric_drop_cq(other.cq);
    fabric_drop_mr(p.b.node, other.mr);
}

static void post_other_recv(uint64_t id, uint64_t at, uint32_t n) {
    struct rnic_recv_wr wr = {.wr_id = id, SGL({(uintptr_t)p.b.mem + at, n, other.mr->pub.lkey})};
    const struct rnic_recv_wr *bad;
    CHECK_EQ(rq_post(&other.srq->q, &wr, &bad, NULL), 0);
}

static void post_to(uint32_t srqn, uint64_t id, int opcode, uint32_t n, uint32_t rkey) {
    post(&p.a, (struct rnic_send_wr){.wr_id = id,
                                     .opcode = opcode,
                                     .send_flags = RNIC_SEND_SIGNALED,
                                     .imm_data = 0x01020304,
                                     .wr.rdma = {(uintptr_t)p.b.mem + 32768, rkey},
                                     .qp_type.xrc.remote_srqn = srqn,
                                     SGL(SGE(&p.a, 0, n))});
}

/* ---------------------------------------------------------------- what arrives */

static void messages_of_every_length_arrive(void) {
    static const uint32_t sizes[] = {0, 1, MTU - 1, MTU, MTU + 1, 3 * MTU, 10 * MTU + 5, 60000};
    OPEN(0);
    for (uint64_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint32_t n = sizes[i];
        fill(p.a.mem, n, i);
        memset(p.b.mem, 0, n);
        post_recv(&p.b, i, 0, n);
        post_send(&p.a, i, 0, n);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, i, SUCCESS);
        struct rnic_wc wc = WANT(p.b.recv_cq, i, SUCCESS);
        CHECK(wc.byte_len == n && wc.qp_num == p.b.qp->pub.qp_num && wc.src_qp == p.a.qp->pub.qp_num);
        CHECK(filled(p.b.mem, n, i));
        memset(p.b.mem, 0, n);
        post_write(&p.a, 100 + i, 0, 0, n);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 100 + i, SUCCESS);
        CHECK(filled(p.b.mem, n, i));
        memset(p.a.mem, 0, n);
        post_read(&p.a, 200 + i, 0, 0, n);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 200 + i, SUCCESS);
        CHECK(filled(p.a.mem, n, i));
    }
    CHECK_EQ(fabric_count(&p.f, p.a.node, 1, ROCE_XRC_SEND_ONLY), 4);
    CHECK_EQ(fabric_count(&p.f, p.b.node, 0, ROCE_RC_ACK), 0);
    CHECK(fabric_count(&p.f, p.b.node, 0, ROCE_XRC_ACK) > 0);
    pair_close_quietly(&p);
}

static void requests_name_the_queue_that_they_are_for(void) {
    OPEN(0);
    open_other(&p.b.domain);
    for (uint64_t i = 0; i < 6; i++) {
        fill(p.a.mem, 700, i);
        post_recv(&p.b, i, 0, 1000);
        post_other_recv(100 + i, 2000, 1000);
        post_to(p.b.srq->pub.srq_num, i, RNIC_WR_SEND, 700, 0);
        post_to(other.srq->pub.srq_num, 100 + i, RNIC_WR_SEND_WITH_IMM, 700, 0);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, i, SUCCESS);
        WANT(p.a.send_cq, 100 + i, SUCCESS);
        CHECK_EQ(WANT(p.b.recv_cq, i, SUCCESS).wc_flags, 0);
        CHECK_EQ(WANT(other.cq, 100 + i, SUCCESS).imm_data, 0x01020304);
        CHECK(filled(p.b.mem, 700, i) && filled(p.b.mem + 2000, 700, i));
    }
    close_other();
    pair_close_quietly(&p);
}

static void a_queue_without_receives_delays_its_messages_alone(void) {
    OPEN(0);
    open_other(&p.b.domain);
    post_recv(&p.b, 1, 0, 100);
    post_to(p.b.srq->pub.srq_num, 1, RNIC_WR_SEND, 10, 0);
    post_to(other.srq->pub.srq_num, 2, RNIC_WR_SEND, 10, 0);
    fabric_run(&p.f, p.f.now + 5 * MS);
    WANT(p.a.send_cq, 1, SUCCESS);
    WANT(p.b.recv_cq, 1, SUCCESS);
    WANT_NONE(p.a.send_cq);
    CHECK(COUNTER(&p.b, rnr_nak_sent) > 0);
    post_other_recv(2, 0, 100);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 2, SUCCESS);
    WANT(other.cq, 2, SUCCESS);
    close_other();
    pair_close_quietly(&p);
}

static void no_receive_in_time_is_an_error_of_the_sender(void) {
    OPEN(.rnr_retry = 1);
    post_send(&p.a, 1, 0, 10);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, RNR_RETRY_EXC_ERR);
    CHECK_EQ(p.b.qp->state, RNIC_QPS_RTS);
    pair_close(&p);
}

static void the_limit_is_told_once(void) {
    OPEN(0);
    for (uint64_t i = 0; i < 4; i++)
        post_recv(&p.b, i, 0, 10);
    p.b.srq->limit = 3;
    for (uint64_t i = 0; i < 4; i++) {
        post_send(&p.a, i, 0, 10);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, i, SUCCESS);
        WANT(p.b.recv_cq, i, SUCCESS);
        CHECK_EQ(take_event(&p.b), i == 1 ? RNIC_EVENT_SRQ_LIMIT_REACHED : -1);
    }
    pair_close_quietly(&p);
}

/* ---------------------------------------------------------------- whose memory */

static void memory_is_of_the_queues_protection_domain(void) {
    static const struct {
        int opcode;
        bool right;
    } cases[] = {{RNIC_WR_RDMA_WRITE, true},  {RNIC_WR_RDMA_READ, true},  {RNIC_WR_ATOMIC_FETCH_AND_ADD, true},
                 {RNIC_WR_RDMA_WRITE, false}, {RNIC_WR_RDMA_READ, false}, {RNIC_WR_ATOMIC_FETCH_AND_ADD, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_note("case %zu", i);
        OPEN(0);
        open_other(&p.b.domain);
        uint32_t rkey = cases[i].right ? other.mr->pub.rkey : p.b.mr->pub.rkey;
        struct rnic_send_wr wr = {.wr_id = 1,
                                  .opcode = cases[i].opcode,
                                  .send_flags = RNIC_SEND_SIGNALED,
                                  .qp_type.xrc.remote_srqn = other.srq->pub.srq_num,
                                  SGL(SGE(&p.a, 0, 8))};
        if (cases[i].opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD) {
            wr.wr.atomic.remote_addr = (uintptr_t)p.b.mem;
            wr.wr.atomic.rkey = rkey;
        } else {
            wr.wr.rdma.remote_addr = (uintptr_t)p.b.mem;
            wr.wr.rdma.rkey = rkey;
        }
        post(&p.a, wr);
        fabric_settle(&p.f);
        if (cases[i].right)
            WANT(p.a.send_cq, 1, SUCCESS);
        else
            WANT(p.a.send_cq, 1, REM_ACCESS_ERR);
        CHECK_EQ(p.b.qp->state, cases[i].right ? RNIC_QPS_RTS : RNIC_QPS_ERR);
        CHECK_EQ(take_event(&p.b), cases[i].right ? -1 : RNIC_EVENT_QP_ACCESS_ERR);
        CHECK_EQ(take_event(&p.b), cases[i].right ? -1 : RNIC_EVENT_QP_LAST_WQE_REACHED);
        close_other();
        pair_close(&p);
    }
}

/* Windows have no other queue pair than that through which they were bound, and an XRC_RECV one cannot bind. */
static void a_window_of_type_1_lets_requests_through_and_one_of_type_2_none(void) {
    static const int opcodes[] = {RNIC_WR_RDMA_WRITE, RNIC_WR_RDMA_READ};
    for (int i = 0; i < 4; i++) {
        int type = i < 2 ? RNIC_MW_TYPE_1 : RNIC_MW_TYPE_2, opcode = opcodes[i % 2];
        check_note("type %d, opcode %d", type, opcode);
        OPEN(0);
        struct mr_table *mrs = &p.b.node->nic.mrs;
        struct qp *binder = fabric_qp(p.b.node, &(struct rnic_qp_cap){1, 1, 1, 1, 0}, p.b.send_cq, p.b.recv_cq);
        struct mr *mr = fabric_mr(p.b.node, &p.b.node->pd, p.b.mem, p.b.bytes, ALL_ACCESS | RNIC_ACCESS_MW_BIND);
        struct mw mw = {.pub = {.pd = &p.b.node->pd.pub, .type = type}};
        CHECK_EQ(mw_insert(mrs, &mw), 0);
        struct mw_binding to = {.window = mw.pub.rkey,
                                .new_key = 1,
                                .region = mr->pub.lkey,
                                .access = RNIC_ACCESS_REMOTE_WRITE | RNIC_ACCESS_REMOTE_READ,
                                .addr = (uintptr_t)p.b.mem + 32768,
                                .length = 512};
        CHECK_EQ(mw_bind(mrs, &binder->pub, &binder->windows, &to), 0);
        fill(p.a.mem, 600, 1);
        memset(p.b.mem + 32768, 0xEE, 600);
        post_to(p.b.srq->pub.srq_num, 1, opcode, 512, mw.entry.pub.rkey);
        fabric_settle(&p.f);
        if (type == RNIC_MW_TYPE_1) {
            WANT(p.a.send_cq, 1, SUCCESS);
            CHECK(!memcmp(p.a.mem, p.b.mem + 32768, 512));
            post_to(p.b.srq->pub.srq_num, 2, opcode, 513, mw.entry.pub.rkey);
            fabric_settle(&p.f);
        }
        WANT(p.a.send_cq, type == RNIC_MW_TYPE_1 ? 2 : 1, REM_ACCESS_ERR);
        CHECK_EQ(p.b.mem[32768 + 512], 0xEE);
        mw_remove(mrs, &mw);
        fabric_drop_mr(p.b.node, mr);
        pair_close(&p);
    }
}

/* Of the shared queue's protection domain, a window that is free or serves this queue pair. */
static void a_send_can_invalidate_what_no_other_queue_pair_has_bound(void) {
    for (int taken = 0; taken < 2; taken++) {
        OPEN(0);
        struct mr_table *mrs = &p.b.node->nic.mrs;
        struct qp *binder = fabric_qp(p.b.node, &(struct rnic_qp_cap){1, 1, 1, 1, 0}, p.b.send_cq, p.b.recv_cq);
        struct mr *mr = fabric_mr(p.b.node, &p.b.node->pd, p.b.mem, p.b.bytes, ALL_ACCESS | RNIC_ACCESS_MW_BIND);
        struct mw mw = {.pub = {.pd = &p.b.node->pd.pub, .type = RNIC_MW_TYPE_2}};
        CHECK_EQ(mw_insert(mrs, &mw), 0);
        struct mw_binding to = {.window = mw.pub.rkey,
                                .new_key = 1,
                                .region = mr->pub.lkey,
                                .access = RNIC_ACCESS_REMOTE_READ,
                                .addr = (uintptr_t)p.b.mem,
                                .length = 512};
        if (taken)
            CHECK_EQ(mw_bind(mrs, &binder->pub, &binder->windows, &to), 0);
        post_recv(&p.b, 7, 0, 100);
        post(&p.a, (struct rnic_send_wr){.wr_id = 1,
                                         .opcode = RNIC_WR_SEND_WITH_INV,
                                         .send_flags = RNIC_SEND_SIGNALED,
                                         .invalidate_rkey = mw.entry.pub.rkey,
                                         .qp_type.xrc.remote_srqn = p.b.srq->pub.srq_num,
                                         SGL(SGE(&p.a, 0, 10))});
        fabric_settle(&p.f);
        if (taken) {
            WANT(p.a.send_cq, 1, REM_ACCESS_ERR);
            WANT(p.b.recv_cq, 7, REM_INV_REQ_ERR);
            CHECK(mw.mr == mr);
        } else {
            WANT(p.a.send_cq, 1, SUCCESS);
            struct rnic_wc wc = WANT(p.b.recv_cq, 7, SUCCESS);
            CHECK_EQ(wc.wc_flags, RNIC_WCF_WITH_INV);
            CHECK_EQ(wc.invalidated_rkey, mw.entry.pub.rkey);
        }
        mw_remove(mrs, &mw);
        fabric_drop_mr(p.b.node, mr);
        pair_close(&p);
    }
}

/* Two READs at once of two queues: their answers read under the right protection domain, whichever request came last. */
static void reads_of_two_queues_at_once(void) {
    OPEN(.window = 4000);
    open_other(&p.b.domain);
    fill(p.b.mem + 32768, 8000, 5);
    post_to(p.b.srq->pub.srq_num, 1, RNIC_WR_RDMA_READ, 8000, p.b.mr->pub.rkey);
    post_to(other.srq->pub.srq_num, 2, RNIC_WR_RDMA_READ, 8000, other.mr->pub.rkey);
    post_to(p.b.srq->pub.srq_num, 3, RNIC_WR_RDMA_READ, 8000, p.b.mr->pub.rkey);
    fabric_settle(&p.f);
    for (uint64_t i = 1; i <= 3; i++)
        WANT(p.a.send_cq, i, SUCCESS);
    CHECK(filled(p.a.mem, 8000, 5));
    close_other();
    pair_close_quietly(&p);
}

/* ---------------------------------------------------------------- errors */

static void want_invalid_request(uint64_t id) {
    fabric_settle(&p.f);
    CHECK_EQ(WANT(p.a.send_cq, id, REM_INV_REQ_ERR).vendor_err, RNIC_VE_NAK_INVALID);
    CHECK_EQ(p.b.qp->state, RNIC_QPS_ERR);
    CHECK_EQ(take_event(&p.b), RNIC_EVENT_QP_REQ_ERR);
    CHECK_EQ(take_event(&p.b), RNIC_EVENT_QP_LAST_WQE_REACHED);
    CHECK_EQ(take_event(&p.b), -1);
    WANT_NONE(p.b.recv_cq);
}

static void a_number_that_no_queue_has_is_an_invalid_request(void) {
    static const int opcodes[] = {RNIC_WR_SEND, RNIC_WR_RDMA_WRITE, RNIC_WR_RDMA_READ, RNIC_WR_RDMA_WRITE_WITH_IMM};
    for (size_t i = 0; i < sizeof opcodes / sizeof *opcodes; i++) {
        OPEN(0);
        post_recv(&p.b, 1, 0, 1000);
        post_to(p.b.srq->pub.srq_num ^ 0x10000, 1, opcodes[i], 8, p.b.mr->pub.rkey);
        want_invalid_request(1);
        CHECK_EQ(srq_depth(p.b.srq), 1);
        pair_close(&p);
    }
}

static void a_queue_of_another_domain_is_an_invalid_request(void) {
    struct xrc_domain elsewhere = {0};
    OPEN(0);
    open_other(&elsewhere);
    post_other_recv(1, 0, 100);
    post_to(other.srq->pub.srq_num, 1, RNIC_WR_SEND, 8, 0);
    want_invalid_request(1);
    CHECK_EQ(srq_depth(other.srq), 1);
    close_other();
    pair_close(&p);
}

static void inject(uint8_t opcode, uint32_t psn, uint32_t srqn, uint32_t payload) {
    uint8_t bytes[BTH_BYTES + XRCETH_BYTES + MTU] = {0};
    bth_set_opcode(bytes, opcode);
    bth_set_pkey(bytes, 0xFFFF);
    bth_set_dqpn(bytes, p.b.qp->pub.qp_num);
    bth_set_psn(bytes, psn);
    xrceth_set_srqn(bytes + BTH_BYTES, srqn);
    fabric_inject(p.a.node, &p.a.qp->way, bytes, BTH_BYTES + XRCETH_BYTES + payload);
    fabric_settle(&p.f);
}

static void a_message_that_changes_its_queue_is_an_invalid_request(void) {
    OPEN(0);
    open_other(&p.b.domain);
    post_recv(&p.b, 7, 0, 1000);
    post_other_recv(8, 0, 1000);
    inject(ROCE_XRC_SEND_FIRST, 0x123456, p.b.srq->pub.srq_num, MTU);
    inject(ROCE_XRC_SEND_LAST, 0x123457, other.srq->pub.srq_num, 8);
    CHECK_EQ(WANT(p.b.recv_cq, 7, REM_INV_REQ_ERR).vendor_err, RNIC_VE_XRC_SRQ);
    CHECK_EQ(p.b.qp->state, RNIC_QPS_ERR);
    CHECK_EQ(srq_depth(other.srq), 1);
    CHECK_EQ(fabric_count(&p.f, p.b.node, 0, ROCE_XRC_ACK), 1);
    close_other();
    pair_close(&p);
}

static void a_message_too_long_for_its_receive_fails_at_both_ends(void) {
    OPEN(0);
    post_recv(&p.b, 1, 0, 10);
    post_recv(&p.b, 2, 0, 10);
    post_send(&p.a, 3, 0, 11);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 3, REM_INV_REQ_ERR);
    WANT(p.b.recv_cq, 1, LOC_LEN_ERR);
    WANT_NONE(p.b.recv_cq);
    CHECK_EQ(srq_depth(p.b.srq), 1);
    pair_close(&p);
}

/* The queue goes in the middle of a message, and of the answer to a READ. */
static void a_queue_that_goes_makes_what_is_under_way_invalid(void) {
    OPEN(0);
    open_other(&p.b.domain);
    post_other_recv(8, 0, 1000);
    inject(ROCE_XRC_SEND_FIRST, 0x123456, other.srq->pub.srq_num, MTU);
    CHECK_EQ(srq_depth(other.srq), 0);
    uint32_t number = other.srq->pub.srq_num;
    drop_other_srq();
    inject(ROCE_XRC_SEND_LAST, 0x123457, number, 8);
    CHECK_EQ(p.b.qp->state, RNIC_QPS_ERR);
    WANT_NONE(p.b.recv_cq);
    close_other();
    pair_close(&p);

    OPEN(.latency = MS, .budget = 2, .pause = MS);
    open_other(&p.b.domain);
    post_to(other.srq->pub.srq_num, 1, RNIC_WR_RDMA_READ, 20 * MTU, other.mr->pub.rkey);
    fabric_run(&p.f, p.f.now + 5 * MS);
    CHECK(COUNTER(&p.b, responses_sent) > 0 && COUNTER(&p.b, responses_sent) < 20);
    drop_other_srq();
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, REM_ACCESS_ERR);
    close_other();
    pair_close(&p);
}

/* One end gives requests, the other answers: packets of the wrong direction, or of RC, are nobody's. */
static void packets_of_the_other_direction_are_not_its_own(void) {
    OPEN(0);
    uint64_t before = COUNTER(&p.b, drop_bad_opcode);
    inject(ROCE_XRC_ACK, 0x123456, 0, 0);
    inject(ROCE_RC_SEND_ONLY, 0x123456, 0, 8);
    inject(ROCE_UC_SEND_ONLY, 0x123456, 0, 8);
    CHECK_EQ(COUNTER(&p.b, drop_bad_opcode), before + 3);
    CHECK_EQ(p.b.qp->state, RNIC_QPS_RTS);
    pair_close_quietly(&p);
}

static void a_number_of_more_than_24_bits_is_refused(void) {
    OPEN(0);
    struct rnic_send_wr wr = {.opcode = RNIC_WR_SEND, .qp_type.xrc.remote_srqn = 0x1000000};
    CHECK_EQ(try_post(&p.a, wr), -EINVAL);
    pair_close_quietly(&p);
}

/* ---------------------------------------------------------------- loss */

static struct loads l;

static void any_work_survives_any_weather(void) {
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct rng r;
        rng_seed(&r, seed);
        uint32_t ppm = (uint32_t)(rng_next(&r) % 4) * 50000;
        struct options o = {.type = RNIC_QPT_XRC_SEND,
                            .mtu = RNIC_MTU_256 + (int)(rng_next(&r) % 3),
                            .sq_psn = psn_mask(0xFFFFC0 + (uint32_t)(rng_next(&r) % 128)),
                            .window = 3000u << rng_next(&r) % 7,
                            .timeout = (uint8_t)(8 + rng_next(&r) % 5),
                            .lazy = rng_next(&r) % 3 ? 0 : rng_next(&r) % (30 * US),
                            .quiet = true};
        check_note("seed %llu, loss %u ppm", (unsigned long long)seed, ppm);
        loads_open(&l, &p, &o, seed, LOAD_OPS / 2, 3000);
        for (int k = 0; k < 2; k++) {
            struct rnic_fault fault = {.seed = rng_next(&r), .loss = ppm, .duplicate = ppm, .reorder = ppm};
            fault.reorder_gap = 1 + rng_next(&r) % 6;
            fault.flip = ppm / 4;
            fault_set(&p.f.node[k].fault, &fault);
        }
        loads_run(&l, &p, false);
        loads_verify(&l, &p);
        if (!ppm)
            CHECK(l.ab.failed < 0);
        pair_close(&p);
    }
}

/* ---------------------------------------------------------------- states */

/* man ibv_modify_qp: which attributes the transitions of the two types take. */
#define BASE (IN(PKEY_INDEX) | IN(PORT) | IN(ACCESS_FLAGS))
#define PATH (IN(AV) | IN(PATH_MTU) | IN(DEST_QPN) | IN(RQ_PSN))
#define LIVE (IN(CUR_STATE) | IN(ACCESS_FLAGS))
static const struct change send_rows[] = {
    {RESET, INIT, BASE, 0},
    {INIT, INIT, 0, BASE},
    {INIT, RTR, PATH, IN(ACCESS_FLAGS) | IN(PKEY_INDEX)},
    {RTR, RTS, IN(TIMEOUT) | IN(RETRY_CNT) | IN(RNR_RETRY) | IN(SQ_PSN) | IN(MAX_QP_RD_ATOMIC), LIVE},
    {RTS, RTS, 0, LIVE},
    {RTS, SQD, 0, IN(EN_SQD_ASYNC_NOTIFY)},
    {SQD, RTS, 0, LIVE},
    {SQD, SQD, 0,
     IN(PORT) | IN(AV) | IN(TIMEOUT) | IN(RETRY_CNT) | IN(RNR_RETRY) | IN(MAX_QP_RD_ATOMIC) | IN(ACCESS_FLAGS) |
         IN(PKEY_INDEX)},
};
static const struct change recv_rows[] = {
    {RESET, INIT, BASE, 0},
    {INIT, INIT, 0, BASE},
    {INIT, RTR, PATH | IN(MAX_DEST_RD_ATOMIC) | IN(MIN_RNR_TIMER), IN(ACCESS_FLAGS) | IN(PKEY_INDEX)},
    {RTR, RTS, IN(TIMEOUT) | IN(SQ_PSN), LIVE | IN(MIN_RNR_TIMER)},
    {RTS, RTS, 0, LIVE | IN(MIN_RNR_TIMER)},
    {RTS, SQD, 0, IN(EN_SQD_ASYNC_NOTIFY)},
    {SQD, RTS, 0, LIVE | IN(MIN_RNR_TIMER)},
    {SQD, SQD, 0,
     IN(PORT) | IN(AV) | IN(TIMEOUT) | IN(MAX_DEST_RD_ATOMIC) | IN(ACCESS_FLAGS) | IN(PKEY_INDEX) | IN(MIN_RNR_TIMER)},
};
#define KNOWN                                                                                                          \
    (BASE | PATH | LIVE | IN(SQ_PSN) | IN(EN_SQD_ASYNC_NOTIFY) | IN(TIMEOUT) | IN(RETRY_CNT) | IN(RNR_RETRY) |         \
     IN(MAX_QP_RD_ATOMIC) | IN(MAX_DEST_RD_ATOMIC) | IN(MIN_RNR_TIMER) | IN(QKEY))

static int attempt(struct end *e, int from, int to, uint32_t mask) {
    return try_transition(e->qp, pair_attr(e, &(struct options){.mtu = RNIC_MTU_256}), from, to, mask);
}
static int attempt_to_send(int from, int to, uint32_t mask) { return attempt(&p.a, from, to, mask); }
static int attempt_to_receive(int from, int to, uint32_t mask) { return attempt(&p.b, from, to, mask); }

static void every_transition_takes_its_attributes_and_no_others(void) {
    OPEN(0);
    CHECK_TRANSITIONS(send_rows, KNOWN, attempt_to_send);
    CHECK_TRANSITIONS(recv_rows, KNOWN, attempt_to_receive);
    pair_close(&p);
}

static void a_message_before_rts_tells_of_it_and_begins_anew_after_reset(void) {
    OPEN(0);
    for (int round = 0; round < 2; round++) {
        struct options o = {.mtu = RNIC_MTU_256};
        pair_respond(&p.b, &o);
        pair_connect(&p.a, &o);
        post_recv(&p.b, 1, 0, 10);
        post_send(&p.a, 2, 0, 10);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 2, SUCCESS);
        WANT(p.b.recv_cq, 1, SUCCESS);
        CHECK_EQ(take_event(&p.b), RNIC_EVENT_COMM_EST);
        CHECK_EQ(take_event(&p.b), -1);
    }
    pair_close(&p);
}

int main(void) {
    RUN(messages_of_every_length_arrive);
    RUN(requests_name_the_queue_that_they_are_for);
    RUN(a_queue_without_receives_delays_its_messages_alone);
    RUN(no_receive_in_time_is_an_error_of_the_sender);
    RUN(the_limit_is_told_once);
    RUN(memory_is_of_the_queues_protection_domain);
    RUN(a_window_of_type_1_lets_requests_through_and_one_of_type_2_none);
    RUN(a_send_can_invalidate_what_no_other_queue_pair_has_bound);
    RUN(reads_of_two_queues_at_once);
    RUN(a_number_that_no_queue_has_is_an_invalid_request);
    RUN(a_queue_of_another_domain_is_an_invalid_request);
    RUN(a_message_that_changes_its_queue_is_an_invalid_request);
    RUN(a_message_too_long_for_its_receive_fails_at_both_ends);
    RUN(a_queue_that_goes_makes_what_is_under_way_invalid);
    RUN(packets_of_the_other_direction_are_not_its_own);
    RUN(a_number_of_more_than_24_bits_is_refused);
    RUN(any_work_survives_any_weather);
    RUN(every_transition_takes_its_attributes_and_no_others);
    RUN(a_message_before_rts_tells_of_it_and_begins_anew_after_reset);
    return check_done();
}
