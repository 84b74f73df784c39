/* SPDX-License-Identifier: Apache-2.0
 *
 * What else ends in an error: requests and responses that contradict each other, a flush, an overrun; and its events.
 */
#include <string.h>

#include "check.h"
#include "hand.h"
#include "roce/roce.h"
#include "wire/bth.h"

static struct pair p;

#define SIGNALED .send_flags = RNIC_SEND_SIGNALED

/* ---------------------------------------------------------------- invalid requests */

static void a_misaligned_atomic_is_REM_INV_REQ_ERR(void) {
    for (uint64_t off = 1; off < 8; off++) {
        pair_open(&p);
        post_add(&p.a, 1, 0, off, 1);
        fabric_settle(&p.f);
        WANT_ERR(p.a.send_cq, 1, REM_INV_REQ_ERR, NAK_INVALID);
        WANT_EVENT(&p.b, QP_REQ_ERR);
        for (int i = 0; i < 16; i++)
            CHECK_EQ(p.b.mem[i], 0);
        pair_close(&p);
    }
}

/* The address that the request names and the one where the bytes lie: a region may begin at any. */
static void both_addresses_of_an_atomic_are_aligned(void) {
    for (uint64_t off = 0; off < 8; off += 4) {
        check_note("%u behind the region's beginning", (unsigned)off);
        pair_open(&p);
        p.b.mr->pub.iova += 4;
        p.b.mr->shift = (uint64_t)-4;
        post_add(&p.a, 1, 0, 4 + off, 1);
        fabric_settle(&p.f);
        WANT_ERR(p.a.send_cq, 1, REM_INV_REQ_ERR, NAK_INVALID);
        WANT_EVENT(&p.b, QP_REQ_ERR);
        for (int i = 0; i < 16; i++)
            CHECK_EQ(p.b.mem[i], 0);
        pair_close(&p);
    }
}

static void more_reads_than_the_responder_grants_is_REM_INV_REQ_ERR(void) {
    pair_open(&p, .dest_rd_atomic = NONE);
    post_read(&p.a, 1, 0, 0, 8);
    fabric_settle(&p.f);
    WANT_ERR(p.a.send_cq, 1, REM_INV_REQ_ERR, NAK_INVALID);
    WANT_EVENT(&p.b, QP_REQ_ERR);
    pair_close(&p);
    pair_open(&p, .rd_atomic = 5, .dest_rd_atomic = 4, .lazy = 100);
    for (uint64_t i = 0; i < 5; i++)
        post_read(&p.a, i, 0, 0, 8);
    fabric_settle(&p.f);
    /* The NAK acknowledges the four before it. */
    for (uint64_t i = 0; i < 4; i++)
        WANT(p.a.send_cq, i, SUCCESS);
    WANT_ERR(p.a.send_cq, 4, REM_INV_REQ_ERR, NAK_INVALID);
    WANT_EVENT(&p.b, QP_REQ_ERR);
    pair_close(&p);
}

static void requests_that_contradict_are_NAK_invalid_request(void) {
    static const struct hand cases[][2] = {
        /* a first packet, or none, and one that does not follow from it */
        {{0}, {ROCE_RC_SEND_MIDDLE, 1024, 0, 0, 0, 0}},
        {{0}, {ROCE_RC_SEND_LAST, 8, 0, 0, 0, 0}},
        {{0}, {ROCE_RC_SEND_LAST_WITH_IMM, 8, 0, 0, 0, 0}},
        {{0}, {ROCE_RC_WRITE_MIDDLE, 1024, 0, 0, 0, 0}},
        {{0}, {ROCE_RC_WRITE_LAST, 8, 0, 0, 0, 0}},
        {{0}, {ROCE_RC_WRITE_LAST_WITH_IMM, 8, 0, 0, 0, 0}},
        {{ROCE_RC_SEND_FIRST, 1024, 0, 0, 0, 0}, {ROCE_RC_SEND_FIRST, 1024, 0, 0, 0, 0}},
        {{ROCE_RC_SEND_FIRST, 1024, 0, 0, 0, 0}, {ROCE_RC_SEND_ONLY, 8, 0, 0, 0, 0}},
        {{ROCE_RC_SEND_FIRST, 1024, 0, 0, 0, 0}, {ROCE_RC_WRITE_MIDDLE, 1024, 0, 0, 0, 0}},
        {{ROCE_RC_SEND_FIRST, 1024, 0, 0, 0, 0}, {ROCE_RC_WRITE_ONLY, 8, 8, 0, 0, 0}},
        {{ROCE_RC_SEND_FIRST, 1024, 0, 0, 0, 0}, {ROCE_RC_READ_REQUEST, 0, 8, 0, 0, 0}},
        {{ROCE_RC_SEND_FIRST, 1024, 0, 0, 0, 0}, {ROCE_RC_FETCH_ADD, 0, 0, 0, 0, 0}},
        {{ROCE_RC_WRITE_FIRST, 1024, 2048, 0, 0, 0}, {ROCE_RC_SEND_LAST, 1024, 0, 0, 0, 0}},
        {{ROCE_RC_WRITE_FIRST, 1024, 2048, 0, 0, 0}, {ROCE_RC_WRITE_FIRST, 1024, 2048, 0, 0, 0}},
        {{ROCE_RC_WRITE_FIRST, 1024, 2048, 0, 0, 0}, {ROCE_RC_READ_REQUEST, 0, 8, 0, 0, 0}},
        /* lengths */
        {{0}, {ROCE_RC_SEND_FIRST, 1023, 0, 0, 0, 0}},
        {{0}, {ROCE_RC_SEND_FIRST, 0, 0, 0, 0, 0}},
        {{0}, {ROCE_RC_SEND_ONLY, 1025, 0, 0, 0, 0}},
        {{ROCE_RC_SEND_FIRST, 1024, 0, 0, 0, 0}, {ROCE_RC_SEND_MIDDLE, 1000, 0, 0, 0, 0}},
        {{ROCE_RC_SEND_FIRST, 1024, 0, 0, 0, 0}, {ROCE_RC_SEND_LAST, 0, 0, 0, 0, 0}},
        {{ROCE_RC_SEND_FIRST, 1024, 0, 0, 0, 0}, {ROCE_RC_SEND_LAST, 1025, 0, 0, 0, 0}},
        {{0}, {ROCE_RC_WRITE_FIRST, 1024, 1024, 0, 0, 0}},
        {{0}, {ROCE_RC_WRITE_FIRST, 1024, 8, 0, 0, 0}},
        {{0}, {ROCE_RC_WRITE_ONLY, 8, 9, 0, 0, 0}},
        {{0}, {ROCE_RC_WRITE_ONLY, 8, 7, 0, 0, 0}},
        {{0}, {ROCE_RC_WRITE_ONLY_WITH_IMM, 8, 0, 0, 0, 0}},
        {{ROCE_RC_WRITE_FIRST, 1024, 2000, 0, 0, 0}, {ROCE_RC_WRITE_MIDDLE, 1024, 0, 0, 0, 0}},
        {{ROCE_RC_WRITE_FIRST, 1024, 2000, 0, 0, 0}, {ROCE_RC_WRITE_LAST, 975, 0, 0, 0, 0}},
        {{ROCE_RC_WRITE_FIRST, 1024, 2000, 0, 0, 0}, {ROCE_RC_WRITE_LAST, 977, 0, 0, 0, 0}},
        {{0}, {ROCE_RC_READ_REQUEST, 4, 8, 0, 0, 0}},
        {{0}, {ROCE_RC_READ_REQUEST, 0, 0x80000001, 0, 0, 0}},
        {{0}, {ROCE_RC_FETCH_ADD, 4, 0, 0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct hand *first = &cases[i][0], *second = &cases[i][1];
        check_note("case %zu", i);
        pair_open(&p);
        post_recv(&p.b, 1, 8192, 8192);
        if (first->length) {
            inject(&p.a, first);
            fabric_settle(&p.f);
            CHECK_EQ(p.b.qp->state, RNIC_QPS_RTS);
        }
        inject(&p.a, second);
        fabric_settle(&p.f);
        CHECK_EQ(p.b.qp->state, RNIC_QPS_ERR);
        WANT_EVENT(&p.b, QP_REQ_ERR);
        CHECK_EQ(COUNTER(&p.b, nak_remote_sent), 1);
        const struct record *last = &p.f.log[p.f.logged - 1];
        while (last->arrived || last->from == 0)
            last--;
        CHECK_EQ(last->syndrome, AETH_NAK_INVALID_REQUEST);
        struct rnic_wc wc = TAKE(p.b.recv_cq);
        CHECK(wc.status == RNIC_WC_REM_INV_REQ_ERR || wc.status == RNIC_WC_WR_FLUSH_ERR);
        WANT_NONE(p.b.recv_cq);
        pair_close(&p);
    }
}

/* ---------------------------------------------------------------- responses by hand */

static void responses_that_contradict_are_BAD_RESP_ERR(void) {
    static const struct {
        int op; /* outstanding */
        struct hand hand;
    } cases[] = {
        {RNIC_WR_RDMA_READ, {ROCE_RC_READ_RESP_ONLY, 99, 0, 0, 0, 0}},
        {RNIC_WR_RDMA_READ, {ROCE_RC_READ_RESP_ONLY, 101, 0, 0, 0, 0}},
        {RNIC_WR_RDMA_READ, {ROCE_RC_READ_RESP_FIRST, 1024, 0, 0, 0, 0}},
        {RNIC_WR_RDMA_READ, {ROCE_RC_ATOMIC_ACK, 0, 0, 0, 0, 0}},
        {RNIC_WR_ATOMIC_FETCH_AND_ADD, {ROCE_RC_READ_RESP_ONLY, 8, 0, 0, 0, 0}},
        {RNIC_WR_FLUSH, {ROCE_RC_READ_RESP_ONLY, 8, 0, 0, 0, 0}},
        {RNIC_WR_FLUSH, {ROCE_RC_READ_RESP_LAST, 0, 0, 0, 0, 0}},
        {RNIC_WR_FLUSH, {ROCE_RC_READ_RESP_FIRST, 1024, 0, 0, 0, 0}},
        {RNIC_WR_FLUSH, {ROCE_RC_ATOMIC_ACK, 0, 0, 0, 0, 0}},
        {RNIC_WR_ATOMIC_WRITE, {ROCE_RC_READ_RESP_ONLY, 8, 0, 0, 0, 0}},
        {RNIC_WR_RDMA_WRITE, {ROCE_RC_READ_RESP_ONLY, 100, 0, 0, 0, 0}},
        {RNIC_WR_RDMA_WRITE, {ROCE_RC_ATOMIC_ACK, 0, 0, 0, 0, 0}},
        {RNIC_WR_RDMA_WRITE, {ROCE_RC_ACK, 0, 0, AETH_NAK | 4, 0, 0}}, /* of reliable datagrams */
        {RNIC_WR_RDMA_WRITE, {ROCE_RC_ACK, 0, 0, AETH_NAK | 31, 0, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_note("case %zu", i);
        pair_open(&p, .latency = MS);
        memset(p.a.mem, 0x55, 200);
        struct rnic_send_wr wr = {.wr_id = 1, .opcode = cases[i].op, SIGNALED, REMOTE(&p.b, 0), SGL(SGE(&p.a, 0, 100))};
        wr.sg_list[0].length = cases[i].op == RNIC_WR_ATOMIC_WRITE ? 8 : 100;
        if (cases[i].op == RNIC_WR_FLUSH)
            wr = (struct rnic_send_wr){
                .wr_id = 1,
                .opcode = RNIC_WR_FLUSH,
                .send_flags = RNIC_SEND_SIGNALED,
                .wr.flush = {(uintptr_t)p.b.mem, 100, p.b.mr->pub.rkey, RNIC_FLUSH_GLOBAL, RNIC_FLUSH_RANGE}};
        if (cases[i].op == RNIC_WR_ATOMIC_FETCH_AND_ADD)
            post_add(&p.a, 1, 0, 0, 0);
        else
            post(&p.a, wr);
        post_write(&p.a, 2, 0, 0, 10);
        inject(&p.b, &cases[i].hand);
        fabric_settle(&p.f);
        WANT_ERR(p.a.send_cq, 1, BAD_RESP_ERR, BAD_RESPONSE);
        WANT_ERR(p.a.send_cq, 2, WR_FLUSH_ERR, FLUSHED);
        CHECK_EQ(p.a.qp->state, RNIC_QPS_ERR);
        pair_close(&p);
    }
}

/* Ghosts, and answers to what was never sent, are counted and change nothing. */
static void responses_to_nothing_are_dropped(void) {
    static const struct hand ghosts[] = {{ROCE_RC_ACK, 0, 0, 0, -1, 0},
                                         {ROCE_RC_ACK, 0, 0, 0, -1000, 0},
                                         {ROCE_RC_ACK, 0, 0, 0, 1, 0},
                                         {ROCE_RC_ACK, 0, 0, 0, 0x7FFFFF, 0},
                                         {ROCE_RC_ACK, 0, 0, AETH_NAK_PSN_SEQ, 5, 0},
                                         {ROCE_RC_ACK, 0, 0, AETH_NAK_REMOTE_ACCESS, -1, 0},
                                         {ROCE_RC_ACK, 0, 0, AETH_RNR | 3, 1, 0},
                                         {ROCE_RC_READ_RESP_ONLY, 9, 0, 0, -1, 0},
                                         {ROCE_RC_READ_RESP_MIDDLE, 1024, 0, 0, 2, 0},
                                         {ROCE_RC_ATOMIC_ACK, 0, 0, 0, 3, 0}};
    const uint32_t n = sizeof ghosts / sizeof *ghosts;
    for (int outstanding = 0; outstanding < 2; outstanding++) {
        pair_open(&p, .latency = MS);
        if (outstanding)
            post_write(&p.a, 1, 0, 0, 10);
        for (uint32_t i = 0; i < n; i++)
            inject(&p.b, &ghosts[i]);
        fabric_run(&p.f, p.f.now + MS + 500 * US);
        CHECK_EQ(COUNTER(&p.a, drop_bad_psn), n);
        CHECK_EQ(p.a.qp->state, RNIC_QPS_RTS);
        WANT_NONE(p.a.send_cq);
        fabric_settle(&p.f);
        if (outstanding)
            WANT(p.a.send_cq, 1, SUCCESS);
        pair_close(&p);
    }
}

/* ---------------------------------------------------------------- flushing, events */

static void what_is_posted_is_flushed_in_order(void) {
    pair_open(&p);
    fabric_silence(p.a.node);
    for (uint64_t i = 0; i < 10; i++) {
        post(&p.a, (struct rnic_send_wr){.wr_id = i, .opcode = RNIC_WR_RDMA_WRITE, REMOTE(&p.b, 0)}); /* unsignaled */
        post_recv(&p.a, 100 + i, 0, 10);
    }
    CHECK_EQ(move(p.a.qp, RNIC_QPS_ERR), 0);
    for (uint64_t i = 0; i < 10; i++) {
        WANT_ERR(p.a.send_cq, i, WR_FLUSH_ERR, FLUSHED);
        WANT_ERR(p.a.recv_cq, 100 + i, WR_FLUSH_ERR, FLUSHED);
    }
    post_read(&p.a, 20, 0, 0, 10); /* and what is posted later, at once */
    post_recv(&p.a, 21, 0, 10);
    WANT_ERR(p.a.send_cq, 20, WR_FLUSH_ERR, FLUSHED);
    WANT_ERR(p.a.recv_cq, 21, WR_FLUSH_ERR, FLUSHED);
    WANT_NO_EVENT(&p.a); /* the application knows */
    fabric_settle(&p.f);
    WANT_NONE(p.a.send_cq);
    pair_close(&p);
}

static void a_queue_pair_in_error_executes_nothing(void) {
    pair_open(&p, .retry_cnt = 1, .timeout = 8);
    post_recv(&p.b, 1, 0, 100);
    CHECK_EQ(move(p.b.qp, RNIC_QPS_ERR), 0);
    WANT(p.b.recv_cq, 1, WR_FLUSH_ERR);
    memset(p.a.mem, 0x55, 100);
    post_write(&p.a, 1, 0, 0, 100);
    post_add(&p.a, 2, 0, 0, 1);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, RETRY_EXC_ERR);
    CHECK_EQ(p.b.mem[0], 0);
    CHECK_EQ(fabric_count(&p.f, p.b.node, 0, -1), 0);
    CHECK(COUNTER(&p.b, drop_bad_state) >= 4);
    pair_close(&p);
}

static void a_full_completion_queue_is_an_error_of_its_own(void) {
    pair_open(&p, .cqe = 4);
    for (uint64_t i = 0; i < 6; i++)
        post_recv(&p.b, i, 0, 10);
    for (uint64_t i = 0; i < 6; i++)
        post(&p.a, (struct rnic_send_wr){.opcode = RNIC_WR_SEND});
    fabric_settle(&p.f);
    for (uint64_t i = 0; i < 4; i++)
        WANT(p.b.recv_cq, i, SUCCESS);
    WANT_NONE(p.b.recv_cq);
    WANT_EVENT(&p.b, CQ_ERR);
    WANT_EVENT(&p.b, QP_FATAL);
    WANT_NO_EVENT(&p.b);
    CHECK_EQ(p.b.qp->state, RNIC_QPS_ERR);
    pair_close(&p);
}

static void the_first_packet_in_RTR_is_COMM_EST(void) {
    struct options o = {.lazy = 1};
    pair_open_options(&p, &o);
    pair_respond(&p.b, &o);
    post_recv(&p.b, 1, 0, 100);
    post_send(&p.a, 1, 0, 50);
    post_read(&p.a, 2, 0, 0, 50); /* a responder answers in RTR */
    post_write(&p.a, 3, 0, 0, 50);
    fabric_settle(&p.f);
    WANT(p.b.recv_cq, 1, SUCCESS);
    for (uint64_t i = 1; i <= 3; i++)
        WANT(p.a.send_cq, i, SUCCESS);
    WANT_EVENT(&p.b, COMM_EST);
    WANT_NO_EVENT(&p.b);
    pair_close(&p);
}

/* With what was wrong, and for whoever waits for solicited completions alone, too. */
static void a_refused_message_ends_its_receive_with_the_reason(void) {
    static const struct {
        struct hand packet;
        int status, vendor;
    } rows[] = {
        {{ROCE_RC_SEND_MIDDLE, 1024, 0, 0, 0, 0}, RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_BAD_SEQUENCE},
        {{ROCE_RC_SEND_FIRST, 8, 0, 0, 0, 0}, RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_BAD_LENGTH},
        {{ROCE_RC_SEND_ONLY, 1028, 0, 0, 0, 0}, RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_BAD_LENGTH},
        {{ROCE_RC_SEND_ONLY, 104, 0, 0, 0, 0}, RNIC_WC_LOC_LEN_ERR, RNIC_VE_RECV_TOO_SMALL},
        {{ROCE_RC_WRITE_ONLY, 8, 4, 0, 0, 0}, RNIC_WC_WR_FLUSH_ERR, RNIC_VE_FLUSHED}, /* which takes none */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        pair_open(&p);
        post_recv(&p.b, 1, 0, 100);
        cq_arm(p.b.recv_cq, true);
        inject(&p.a, &rows[i].packet);
        fabric_settle(&p.f);
        want_err(p.b.recv_cq, 1, rows[i].status, rows[i].vendor, __FILE__, __LINE__);
        CHECK_EQ(p.b.recv_cq->armed, CQ_NOT_ARMED); /* the event has been raised */
        pair_close(&p);
    }
}

int main(void) {
    RUN(a_misaligned_atomic_is_REM_INV_REQ_ERR);
    RUN(both_addresses_of_an_atomic_are_aligned);
    RUN(more_reads_than_the_responder_grants_is_REM_INV_REQ_ERR);
    RUN(requests_that_contradict_are_NAK_invalid_request);
    RUN(responses_that_contradict_are_BAD_RESP_ERR);
    RUN(responses_to_nothing_are_dropped);
    RUN(what_is_posted_is_flushed_in_order);
    RUN(a_queue_pair_in_error_executes_nothing);
    RUN(a_full_completion_queue_is_an_error_of_its_own);
    RUN(the_first_packet_in_RTR_is_COMM_EST);
    RUN(a_refused_message_ends_its_receive_with_the_reason);
    return check_done();
}
