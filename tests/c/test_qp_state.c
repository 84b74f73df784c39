/* SPDX-License-Identifier: Apache-2.0
 *
 * The state machine of an RC queue pair: every attribute in every transition against the table below, which is written
 * from IBA 11.2.5.2 (table 91) and man ibv_modify_qp, not from qp/attr.c; the send queue's drain; reset and reuse.
 */
#include <errno.h>
#include <string.h>

#include "check.h"
#include "fabric.h"
#include "roce/roce.h"
#include "transitions.h"
#include "wire/bth.h"

static struct pair p;
static const struct options standard = {.quiet = true};

/* R: required, o: optional; attributes by the letters in `letters`. Two states without a row: not allowed. */
static const char letters[] = "skqpaPQvMtrnDxAmZdiCN";
static const uint32_t bits[] = {RNIC_QP_CUR_STATE,
                                RNIC_QP_PKEY_INDEX,
                                RNIC_QP_EN_SQD_ASYNC_NOTIFY,
                                RNIC_QP_PORT,
                                RNIC_QP_ACCESS_FLAGS,
                                RNIC_QP_PATH_MTU,
                                RNIC_QP_QKEY,
                                RNIC_QP_AV,
                                RNIC_QP_MAX_QP_RD_ATOMIC,
                                RNIC_QP_TIMEOUT,
                                RNIC_QP_RETRY_CNT,
                                RNIC_QP_RNR_RETRY,
                                RNIC_QP_MAX_DEST_RD_ATOMIC,
                                RNIC_QP_RQ_PSN,
                                RNIC_QP_ALT_PATH,
                                RNIC_QP_MIN_RNR_TIMER,
                                RNIC_QP_SQ_PSN,
                                RNIC_QP_DEST_QPN,
                                RNIC_QP_PATH_MIG_STATE,
                                RNIC_QP_CAP,
                                RNIC_QP_RATE_LIMIT};
#define BITS (sizeof bits / sizeof *bits)

static const struct {
    int from, to;
    const char *required, *optional;
} rows[] = {
    {RESET, INIT, "kpa", ""},       /* */
    {INIT, INIT, "", "kpa"},        /* */
    {INIT, RTR, "vPdxDm", "Aak"},   /* */
    {RTR, RTS, "trnZM", "sAami"},   /* */
    {RTS, RTS, "", "sAami"},        /* */
    {RTS, SQD, "", "q"},            /* */
    {SQD, RTS, "", "sAami"},        /* */
    {SQD, SQD, "", "pvtrnMDAakmi"}, /* */
    {RESET, RESET, "", ""},
    {INIT, RESET, "", ""},
    {RTR, RESET, "", ""},
    {RTS, RESET, "", ""},
    {SQD, RESET, "", ""},
    {ERR, RESET, "", ""},
    {RESET, ERR, "", ""},
    {INIT, ERR, "", ""},
    {RTR, ERR, "", ""},
    {RTS, ERR, "", ""},
    {SQD, ERR, "", ""},
    {ERR, ERR, "", ""},
};
#define ROWS (int)(sizeof rows / sizeof *rows)

static uint32_t mask_of(const char *attributes) {
    uint32_t mask = 0;
    for (; *attributes; attributes++)
        mask |= bits[strchr(letters, *attributes) - letters];
    return mask;
}

static int row_of(int from, int to) {
    for (int i = 0; i < ROWS; i++) {
        if (rows[i].from == from && rows[i].to == to)
            return i;
    }
    return -1;
}

/* An end in some state; attributes that differ from those that it has. */
static struct rnic_qp_attr open_in(int state) {
    static const int way[] = {RESET, INIT, RTR, RTS, SQD};
    pair_open_options(&p, &standard);
    struct rnic_qp_attr attr = pair_attr(&p.a, &standard);
    CHECK_EQ(move(p.a.qp, RESET), 0);
    if (state == ERR)
        CHECK_EQ(move(p.a.qp, ERR), 0);
    for (int i = 1; state != ERR && i <= state; i++) {
        attr.qp_state = way[i];
        uint32_t mask = RNIC_QP_STATE | mask_of(rows[row_of(way[i - 1], way[i])].required);
        CHECK_EQ(fabric_modify(p.a.qp, &attr, mask, NULL), 0);
    }
    fabric_settle(&p.f);
    while (take_event(&p.a) >= 0)
        ;
    CHECK_EQ(p.a.qp->state, state);
    CHECK(!p.a.qp->sq_draining);
    attr.cur_qp_state = state;
    attr.en_sqd_async_notify = 1;
    attr.qp_access_flags = RNIC_ACCESS_REMOTE_READ;
    attr.path_mtu = RNIC_MTU_2048;
    attr.timeout = 9;
    attr.retry_cnt = 3;
    attr.rnr_retry = 2;
    attr.max_rd_atomic = 11;
    attr.max_dest_rd_atomic = 13;
    attr.min_rnr_timer = 6;
    attr.sq_psn ^= 0x10;
    attr.rq_psn ^= 0x10;
    attr.ah_attr.grh.hop_limit = 33;
    return attr;
}

/* Tries a change; a refusal leaves everything as it was and says why. */
static int attempt(const struct rnic_qp_attr *attr, uint32_t mask) {
    struct rnic_qp_attr before = p.a.qp->attr;
    int state = p.a.qp->state;
    struct rnic_err err = {0};
    int rc = fabric_modify(p.a.qp, attr, mask, &err);
    if (rc) {
        CHECK(!memcmp(&before, &p.a.qp->attr, sizeof before));
        CHECK_EQ(p.a.qp->state, state);
        CHECK(err.text[0]);
    } else {
        CHECK_EQ(p.a.qp->state, mask & RNIC_QP_STATE ? attr->qp_state : state);
    }
    return rc;
}

static int one_attempt(int from, int to, uint32_t mask) {
    struct rnic_qp_attr attr = open_in(from);
    attr.qp_state = to;
    int rc = attempt(&attr, mask);
    pair_close(&p);
    return rc;
}

static void every_pair_of_states_is_allowed_or_refused(void) {
    for (int from = RESET; from < STATES; from++) {
        for (int to = RESET; from != SQE && to < STATES + 2; to++) {
            int row = row_of(from, to);
            check_note("%s -> %s", qp_state_name(from), qp_state_name(to));
            uint32_t mask = RNIC_QP_STATE | (row < 0 ? 0 : mask_of(rows[row].required));
            CHECK_EQ(one_attempt(from, to, mask), row < 0 ? -EINVAL : 0);
            if (row < 0) /* whatever is given with it */
                CHECK_EQ(one_attempt(from, to, mask_init | mask_rtr | mask_rts), -EINVAL);
        }
        if (from != SQE)
            CHECK_EQ(one_attempt(from, -1, RNIC_QP_STATE), -EINVAL);
    }
}

static void every_attribute_is_required_optional_or_refused(void) {
    int tried = 0;
    for (int i = 0; i < ROWS; i++) {
        uint32_t required = mask_of(rows[i].required), optional = mask_of(rows[i].optional);
        for (size_t b = 0; b < BITS; b++) {
            check_note("%s -> %s, attribute '%c'", qp_state_name(rows[i].from), qp_state_name(rows[i].to), letters[b]);
            int want = (required | optional) & bits[b] ? 0 : -EINVAL;
            CHECK_EQ(one_attempt(rows[i].from, rows[i].to, RNIC_QP_STATE | required | bits[b]), want);
            if (required & bits[b])
                CHECK_EQ(one_attempt(rows[i].from, rows[i].to, RNIC_QP_STATE | (required & ~bits[b])), -EINVAL);
            if (rows[i].from == rows[i].to && !required) /* the same without naming the state */
                CHECK_EQ(one_attempt(rows[i].from, rows[i].to, bits[b]), want);
            tried++;
        }
        uint32_t all = RNIC_QP_STATE | required | optional;
        CHECK_EQ(one_attempt(rows[i].from, rows[i].to, all), 0);
        CHECK_EQ(one_attempt(rows[i].from, rows[i].to, all | 1u << 30), -EINVAL);
    }
    CHECK_EQ(tried, 20 * 21);
}

static void what_is_given_is_in_force_and_nothing_else(void) {
    struct rnic_qp_attr attr = open_in(SQD);
    struct rnic_qp_attr was = p.a.qp->attr;
    CHECK_EQ(attempt(&attr, RNIC_QP_TIMEOUT | RNIC_QP_RETRY_CNT), 0);
    was.timeout = 9;
    was.retry_cnt = 3;
    CHECK(!memcmp(&was, &p.a.qp->attr, sizeof was));
    CHECK_EQ(attempt(&attr, RNIC_QP_AV | RNIC_QP_MIN_RNR_TIMER | RNIC_QP_MAX_QP_RD_ATOMIC), 0);
    CHECK_EQ(p.a.qp->attr.ah_attr.grh.hop_limit, 33);
    CHECK_EQ(p.a.qp->attr.min_rnr_timer, 6);
    CHECK_EQ(p.a.qp->attr.max_rd_atomic, 11);
    CHECK_EQ(p.a.qp->attr.rnr_retry, was.rnr_retry);
    pair_close(&p);
}

static void values_out_of_range_are_refused(void) {
    static const struct {
        int state, to;
        uint32_t bit;
        size_t at, size;
        uint32_t least, most;
    } ranges[] = {
#define RANGE(from, to, bit, field, least, most)                                                                       \
    {from, to, RNIC_QP_##bit, offsetof(struct rnic_qp_attr, field), sizeof(((struct rnic_qp_attr *)0)->field), least, most}
        RANGE(RESET, INIT, PKEY_INDEX, pkey_index, 0, 0),
        RANGE(RESET, INIT, PORT, port_num, 1, 1),
        RANGE(RESET, INIT, ACCESS_FLAGS, qp_access_flags, 0, 0x3FF),
        RANGE(INIT, RTR, PATH_MTU, path_mtu, 1, 5),
        RANGE(INIT, RTR, DEST_QPN, dest_qp_num, 0, 0xFFFFFF),
        RANGE(INIT, RTR, RQ_PSN, rq_psn, 0, 0xFFFFFF),
        RANGE(INIT, RTR, MAX_DEST_RD_ATOMIC, max_dest_rd_atomic, 0, MAX_RD_ATOMIC),
        RANGE(INIT, RTR, MIN_RNR_TIMER, min_rnr_timer, 0, 31),
        RANGE(RTR, RTS, TIMEOUT, timeout, 0, 31),
        RANGE(RTR, RTS, RETRY_CNT, retry_cnt, 0, 7),
        RANGE(RTR, RTS, RNR_RETRY, rnr_retry, 0, 7),
        RANGE(RTR, RTS, SQ_PSN, sq_psn, 0, 0xFFFFFF),
        RANGE(RTR, RTS, MAX_QP_RD_ATOMIC, max_rd_atomic, 0, MAX_RD_ATOMIC),
        RANGE(RTS, SQD, EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify, 0, 1),
#undef RANGE
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        const uint32_t values[] = {ranges[i].least, ranges[i].most, ranges[i].most + 1, ranges[i].least - 1};
        for (int v = 0; v < (ranges[i].least ? 4 : 3); v++) {
            check_note("range %zu, value %u", i, values[v]);
            struct rnic_qp_attr attr = open_in(ranges[i].state);
            attr.qp_state = ranges[i].to;
            memcpy((char *)&attr + ranges[i].at, &values[v], ranges[i].size); /* little-endian */
            uint32_t mask = RNIC_QP_STATE | mask_of(rows[row_of(ranges[i].state, ranges[i].to)].required);
            CHECK_EQ(attempt(&attr, mask | ranges[i].bit), v < 2 ? 0 : -EINVAL);
            pair_close(&p);
        }
    }
    /* the current state must be the current one */
    struct rnic_qp_attr attr = open_in(RTS);
    attr.cur_qp_state = RTR;
    CHECK_EQ(attempt(&attr, RNIC_QP_CUR_STATE), -EINVAL);
    attr.cur_qp_state = 77;
    CHECK_EQ(attempt(&attr, RNIC_QP_CUR_STATE), -EINVAL);
    pair_close(&p);
}

static void an_address_vector_is_one_of_RoCE(void) {
    for (int i = 0; i < 11; i++) {
        struct rnic_qp_attr attr = open_in(INIT);
        attr.qp_state = RTR;
        int want = i == 0 || i == 6 || i == 8 || i == 9 ? 0 : i == 7 ? -EOPNOTSUPP : -EINVAL;
        if (i == 1)
            attr.ah_attr.is_global = 0;
        if (i == 2)
            attr.ah_attr.port_num = 0;
        if (i == 3)
            attr.ah_attr.port_num = 2;
        if (i == 4) /* Ethernet has eight priorities */
            attr.ah_attr.sl = 8;
        if (i == 5 || i == 8) { /* that of the traffic class is another; the same */
            attr.ah_attr.sl = i == 5 ? 1 : 3;
            attr.ah_attr.grh.traffic_class = 0x7F;
        }
        if (i == 6) /* over IPv4, where it says nothing */
            attr.ah_attr.grh.flow_label = 0xFFFFF;
        if (i == 7)
            attr.ah_attr.static_rate = 1;
        if (i == 9)
            attr.ah_attr.sl = 7;
        if (i == 10)
            attr.ah_attr.grh.flow_label = 0x100000;
        CHECK_EQ(attempt(&attr, mask_rtr), want);
        pair_close(&p);
    }
}

/* ---------------------------------------------------------------- draining the send queue */

static int drain(bool notify) {
    struct rnic_qp_attr attr = {.qp_state = SQD, .en_sqd_async_notify = notify};
    return fabric_modify(p.a.qp, &attr, RNIC_QP_STATE | RNIC_QP_EN_SQD_ASYNC_NOTIFY, NULL);
}

static void an_idle_send_queue_is_drained_at_once(void) {
    pair_open_options(&p, &standard);
    CHECK_EQ(drain(true), 0);
    CHECK_EQ(take_event(&p.a), RNIC_EVENT_SQ_DRAINED);
    CHECK_EQ(take_event(&p.a), -1);
    CHECK(!p.a.qp->sq_draining);
    CHECK_EQ(move(p.a.qp, RTS), 0);
    CHECK_EQ(drain(false), 0);
    CHECK_EQ(take_event(&p.a), -1);
    CHECK_EQ(move(p.a.qp, RTS), 0);
    CHECK_EQ(drain(true), 0);
    CHECK_EQ(take_event(&p.a), RNIC_EVENT_SQ_DRAINED);
    CHECK_EQ(move(p.a.qp, RTS), 0);
    CHECK_EQ(move(p.a.qp, SQD), 0); /* the wish is that of one transition */
    CHECK_EQ(take_event(&p.a), -1);
    pair_close(&p);
}

static void a_message_under_way_is_finished_and_none_begun(void) {
    pair_open(&p, .lazy = 1, .window = 3000, .bandwidth = 10000000);
    fill(p.a.mem, 10000, 1);
    post_recv(&p.b, 1, 20000, 10000);
    post_recv(&p.b, 2, 40000, 10);
    post_send(&p.a, 1, 0, 10000);
    post_send(&p.a, 2, 0, 10);
    fabric_run(&p.f, p.f.now + 50 * US);
    CHECK_EQ(drain(true), 0);
    struct rnic_qp_attr attr = pair_attr(&p.a, &standard);
    attr.timeout = 3;
    CHECK_EQ(fabric_modify(p.a.qp, &attr, RNIC_QP_TIMEOUT, NULL), -EINVAL); /* still draining */
    CHECK_EQ(take_event(&p.a), -1);
    fabric_settle(&p.f);
    CHECK_EQ(take_event(&p.a), RNIC_EVENT_SQ_DRAINED);
    WANT(p.a.send_cq, 1, SUCCESS);
    WANT_NONE(p.a.send_cq);
    CHECK(filled(p.b.mem + 20000, 10000, 1));
    CHECK_EQ(fabric_modify(p.a.qp, &attr, RNIC_QP_TIMEOUT, NULL), 0);
    CHECK_EQ(p.a.qp->attr.timeout, 3);
    post_send(&p.a, 3, 0, 10); /* waits too */
    post_recv(&p.b, 3, 40000, 10);
    post_write(&p.b, 9, 0, 0, 10); /* the responder goes on */
    fabric_settle(&p.f);
    WANT(p.b.send_cq, 9, SUCCESS);
    WANT_NONE(p.a.send_cq);
    CHECK_EQ(take_event(&p.a), -1);
    CHECK_EQ(move(p.a.qp, RTS), 0);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 2, SUCCESS);
    WANT(p.a.send_cq, 3, SUCCESS);
    pair_close(&p);
}

static void a_message_that_waits_for_a_receive_is_under_way(void) {
    pair_open(&p, .min_rnr_timer = 20, .rnr_retry = 7);
    post_send(&p.a, 1, 0, 10);
    fabric_run(&p.f, p.f.now + MS); /* RNR NAK, 10 ms */
    CHECK_EQ(drain(true), 0);
    fabric_run(&p.f, p.f.now + MS);
    CHECK_EQ(take_event(&p.a), -1);
    post_recv(&p.b, 1, 0, 10);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    CHECK_EQ(take_event(&p.a), RNIC_EVENT_SQ_DRAINED);
    pair_close(&p);
}

static void what_is_lost_while_draining_is_repeated(void) {
    pair_open(&p, .timeout = 10);
    fabric_silence(p.a.node);
    post_read(&p.a, 1, 0, 0, 3000);
    post_write(&p.a, 2, 0, 0, 3000);
    CHECK_EQ(drain(true), 0);
    fabric_run(&p.f, p.f.now + 5 * MS);
    CHECK_EQ(take_event(&p.a), -1);
    p.f.judge = NULL;
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    WANT(p.a.send_cq, 2, SUCCESS);
    CHECK_EQ(take_event(&p.a), RNIC_EVENT_SQ_DRAINED);
    pair_close(&p);
}

static void an_error_while_draining_drains_nothing(void) {
    for (int own = 0; own < 2; own++) {
        pair_open(&p, .retry_cnt = 1, .timeout = 10);
        fabric_silence(p.a.node);
        post_write(&p.a, 1, 0, 0, 3000);
        CHECK_EQ(drain(true), 0);
        if (own)
            CHECK_EQ(move(p.a.qp, ERR), 0);
        fabric_settle(&p.f);
        CHECK_EQ(TAKE(p.a.send_cq).status, own ? RNIC_WC_WR_FLUSH_ERR : RNIC_WC_RETRY_EXC_ERR);
        CHECK_EQ(p.a.qp->state, ERR);
        CHECK_EQ(take_event(&p.a), -1);
        pair_close(&p);
    }
    /* an error that an answer brings */
    pair_open(&p, .latency = MS);
    post(&p.a, (struct rnic_send_wr){.wr_id = 1,
                                     .opcode = RNIC_WR_RDMA_WRITE,
                                     .send_flags = RNIC_SEND_SIGNALED,
                                     .wr.rdma = {4, 4},
                                     SGL(SGE(&p.a, 0, 10))});
    CHECK_EQ(drain(true), 0);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, REM_ACCESS_ERR);
    CHECK_EQ(take_event(&p.a), -1);
    pair_close(&p);
}

static void draining_may_be_broken_off(void) {
    pair_open(&p, .lazy = 1, .window = 3000, .latency = 100 * US);
    for (uint64_t i = 0; i < 5; i++)
        post_write(&p.a, i, 0, 0, 10000);
    fabric_run(&p.f, p.f.now + 350 * US);
    CHECK_EQ(drain(true), 0);
    CHECK_EQ(move(p.a.qp, RTS), 0);
    fabric_settle(&p.f);
    for (uint64_t i = 0; i < 5; i++)
        WANT(p.a.send_cq, i, SUCCESS);
    CHECK_EQ(take_event(&p.a), -1);
    pair_close(&p);
}

/* ---------------------------------------------------------------- reset and reuse */

static void use(uint64_t id) {
    fill(p.a.mem, 3000, id);
    post_recv(&p.b, id, 0, 3000);
    post_send(&p.a, id, 0, 3000);
    post_read(&p.a, id + 1, 4096, 0, 3000);
    post_add(&p.a, id + 2, 8192, 8192, id);
    fabric_settle(&p.f);
    WANT(p.b.recv_cq, id, SUCCESS);
    for (uint64_t i = 0; i < 3; i++)
        WANT(p.a.send_cq, id + i, SUCCESS);
    CHECK(filled(p.a.mem + 4096, 3000, id));
}

static void a_queue_pair_is_reused_after_reset(void) {
    struct options o = {.mtu = RNIC_MTU_1024};
    pair_open_options(&p, &o);
    for (int round = 0; round < 20; round++) {
        uint64_t id = 10 * (uint64_t)round;
        check_note("round %d", round);
        use(id);
        if (round % 3 == 1) { /* in the middle of things: what is posted is forgotten without completions */
            post_recv(&p.a, 1, 0, 10);
            post_read(&p.a, 1, 0, 0, 3000);
            fabric_run(&p.f, p.f.now + 5 * US);
        }
        if (round % 3 == 2) {
            CHECK_EQ(move(p.a.qp, ERR), 0);
            CHECK_EQ(move(p.b.qp, ERR), 0);
        }
        CHECK_EQ(move(p.a.qp, RESET), 0);
        CHECK_EQ(move(p.b.qp, RESET), 0);
        CHECK(wq_empty(&p.a.qp->sq) && wq_empty(&p.a.qp->rq));
        fabric_settle(&p.f);
        WANT_NONE(p.a.send_cq);
        WANT_NONE(p.a.recv_cq);
        CHECK_EQ(take_event(&p.a), -1);
        o.sq_psn = 0x1000u * ((uint32_t)round + 1);
        o.rq_psn = psn_mask(0xFFFFFFu - 3 * (uint32_t)round);
        o.mtu = RNIC_MTU_256 + round % 5;
        o.rd_atomic = o.dest_rd_atomic = 1 + (uint32_t)round;
        pair_connect(&p.a, &o);
        pair_connect(&p.b, &o);
        CHECK_EQ(rc_of(p.b.qp)->resp.msn, 0);
        CHECK_EQ(rc_of(p.b.qp)->resp.psn, o.sq_psn);
    }
    pair_close(&p);
}

/* Receives may be posted from INIT on and survive to RTS. */
static void receives_may_be_posted_early(void) {
    pair_open_options(&p, &standard);
    CHECK_EQ(move(p.b.qp, RESET), 0);
    struct rnic_qp_attr attr = pair_attr(&p.b, &standard);
    attr.qp_state = INIT;
    CHECK_EQ(fabric_modify(p.b.qp, &attr, mask_init, NULL), 0);
    post_recv(&p.b, 1, 0, 100);
    attr.qp_state = RTR;
    CHECK_EQ(fabric_modify(p.b.qp, &attr, mask_rtr, NULL), 0);
    post_recv(&p.b, 2, 0, 100);
    post_send(&p.a, 1, 0, 100);
    post_send(&p.a, 2, 0, 100);
    fabric_settle(&p.f);
    WANT(p.b.recv_cq, 1, SUCCESS);
    WANT(p.b.recv_cq, 2, SUCCESS);
    pair_close(&p);
}

int main(void) {
    RUN(every_pair_of_states_is_allowed_or_refused);
    RUN(every_attribute_is_required_optional_or_refused);
    RUN(what_is_given_is_in_force_and_nothing_else);
    RUN(values_out_of_range_are_refused);
    RUN(an_address_vector_is_one_of_RoCE);
    RUN(an_idle_send_queue_is_drained_at_once);
    RUN(a_message_under_way_is_finished_and_none_begun);
    RUN(a_message_that_waits_for_a_receive_is_under_way);
    RUN(what_is_lost_while_draining_is_repeated);
    RUN(an_error_while_draining_drains_nothing);
    RUN(draining_may_be_broken_off);
    RUN(a_queue_pair_is_reused_after_reset);
    RUN(receives_may_be_posted_early);
    return check_done();
}
