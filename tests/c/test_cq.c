/* SPDX-License-Identifier: Apache-2.0
 *
 * Completion queues by themselves, on a clock of the test's own: moderation of events, timestamps, overruns, resizing;
 * and completion counters, of queue pairs on virtual time.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "check.h"
#include "fabric.h"
#include "queue/moderation.h"
#include "queue/semaphore.h"
#include "roce/roce.h"
#include "wire/bth.h"

static uint64_t clock_now;
static struct cq_timing timing;
static struct channel channel;
static struct cq cq;

static uint64_t read_clock(void *arg) {
    (void)arg;
    return clock_now;
}

static uint64_t read_wallclock(void *arg) {
    (void)arg;
    return clock_now + 7 * SEC;
}

static void open_cq(int cqe, uint64_t wc_flags, uint32_t flags) {
    clock_now = SEC;
    timing = (struct cq_timing){read_clock, read_wallclock, NULL, NULL};
    memset(&channel, 0, sizeof channel);
    CHECK_EQ(channel_init(&channel), 0);
    memset(&cq, 0, sizeof cq);
    cq.timing = &timing;
    cq.wc_flags = wc_flags;
    cq.flags = flags;
    CHECK_EQ(cq_init(&cq, cqe), 0);
    cq.pub.channel = &channel.pub;
}

static void close_cq(void) {
    moderation_forget(&cq);
    CHECK(timing.held == NULL);
    channel_forget(&channel, &cq);
    cq_free(&cq);
    channel_free(&channel);
}

static bool push(uint64_t id, bool solicited) { return cq_push(&cq, &(struct cqe){.wc = {.wr_id = id}}, solicited); }

static bool event(void) {
    struct cq *got = channel_take(&channel);
    if (!got)
        return false;
    CHECK(got == &cq);
    CHECK_EQ(cq_ack(&cq, 1, NULL), 0);
    return true;
}

/* The device's turn. */
static void advance(uint64_t to) {
    clock_now = to;
    moderation_timer(&timing, to);
}

static void moderate(uint16_t count, uint16_t period_us) {
    moderation_set(&cq, &(struct rnic_moderate_cq){count, period_us});
}

/* ---------------------------------------------------------------- queues that go */

static void a_queue_that_goes_takes_its_completions_out_and_no_others(void) {
    _Atomic uint32_t freed[2] = {0};
    open_cq(8, RNIC_WC_EX_WITH_COMPLETION_TIMESTAMP, 0);
    for (uint32_t turn = 0; turn < 50; turn++) { /* at every place of the ring */
        struct rnic_wc wc[8];
        struct rnic_wc_ex ex[8];
        for (uint32_t i = 0; i < 7; i++) {
            clock_now = SEC + i;
            CHECK(
                cq_push(&cq, &(struct cqe){.wc = {.wr_id = i}, .freed = &freed[turn >> i & 1], .upto = i + 1}, false));
        }
        cq_forget(&cq, &freed[1]);
        int n = cq_take_ex(&cq, 8, wc, ex), want = 0;
        for (uint32_t i = 0; i < 7; i++) {
            if (turn >> i & 1)
                continue;
            CHECK_EQ(wc[want].wr_id, i);
            CHECK_EQ(ex[want++].raw, SEC + i);
        }
        CHECK_EQ(n, want);
        CHECK_EQ(freed[1], 0);
    }
    close_cq();
}

static void a_queue_pair_in_reset_has_no_completions(void) {
    struct pair p;
    struct rnic_wc wc[8];
    pair_open(&p, .mtu = RNIC_MTU_256);
    post_recv(&p.b, 1, 0, 100);
    post_recv(&p.b, 2, 0, 100);
    post_send(&p.a, 3, 0, 100);
    fabric_settle(&p.f);
    CHECK_EQ(qp_transition(p.b.qp, RNIC_QPS_ERR, NULL), 0); /* the other receive is flushed */
    CHECK_EQ(qp_transition(p.b.qp, RNIC_QPS_RESET, NULL), 0);
    CHECK_EQ(cq_take((struct cq *)p.b.qp->pub.recv_cq, 8, wc), 0);
    CHECK_EQ(cq_take((struct cq *)p.a.qp->pub.send_cq, 8, wc), 1);
    CHECK_EQ(wc[0].wr_id, 3);
    pair_close(&p);
}

/* ---------------------------------------------------------------- moderation */

static void an_event_waits_until_enough_completions_are_there(void) {
    open_cq(16, 0, 0);
    moderate(4, 100);
    cq_arm(&cq, false);
    for (uint64_t i = 0; i < 3; i++) {
        CHECK(push(i, false));
        CHECK(!event());
    }
    CHECK_EQ(moderation_deadline(&timing), SEC + 100 * US);
    CHECK(push(3, false));
    CHECK(event());
    CHECK_EQ(moderation_deadline(&timing), UINT64_MAX);
    advance(2 * SEC);
    CHECK(!event());
    close_cq();
}

static void an_event_waits_no_longer_than_the_period_from_the_first_completion(void) {
    open_cq(16, 0, 0);
    moderate(0, 100);
    cq_arm(&cq, false);
    push(1, false);
    advance(SEC + 60 * US);
    push(2, false); /* begins no period of its own */
    advance(SEC + 100 * US - 1);
    CHECK(!event());
    CHECK_EQ(moderation_deadline(&timing), SEC + 100 * US);
    advance(SEC + 100 * US);
    CHECK(event());
    CHECK(!event());
    push(3, false); /* not armed: nothing waits for it */
    CHECK_EQ(moderation_deadline(&timing), UINT64_MAX);
    cq_arm(&cq, false);
    push(4, false);
    CHECK_EQ(moderation_deadline(&timing), SEC + 200 * US);
    advance(SEC + 200 * US);
    CHECK(event());
    close_cq();
}

static void a_count_of_one_or_no_period_is_no_moderation(void) {
    open_cq(16, 0, 0);
    for (uint16_t i = 0; i < 2; i++) {
        moderate(i ? 1 : 9, i ? 100 : 0);
        cq_arm(&cq, false);
        push(i, false);
        CHECK(event());
        CHECK(timing.held == NULL);
    }
    close_cq();
}

static void only_what_would_raise_the_event_counts(void) {
    open_cq(16, 0, 0);
    moderate(2, 100);
    cq_arm(&cq, true);
    push(1, false);
    push(2, false);
    CHECK(timing.held == NULL);
    push(3, true);
    CHECK(timing.held == &cq);
    push(4, false);
    CHECK(!event());
    push(5, true);
    CHECK(event());
    close_cq();
}

static void an_event_that_waits_comes_when_the_limits_change(void) {
    open_cq(16, 0, 0);
    moderate(9, 100);
    cq_arm(&cq, false);
    push(1, false);
    moderate(0, 0);
    CHECK(event());
    CHECK(timing.held == NULL);
    moderate(9, 100);
    CHECK(!event());
    close_cq();
}

static void a_queue_that_goes_takes_its_waiting_event_along(void) {
    static struct cq other;
    open_cq(16, 0, 0);
    moderate(9, 100);
    cq_arm(&cq, false);
    push(1, false);
    memset(&other, 0, sizeof other);
    other.timing = &timing;
    other.pub.channel = &channel.pub;
    CHECK_EQ(cq_init(&other, 4), 0);
    moderation_set(&other, &(struct rnic_moderate_cq){9, 50});
    cq_arm(&other, false);
    cq_push(&other, &(struct cqe){.wc = {.wr_id = 1}}, false);
    CHECK_EQ(moderation_deadline(&timing), SEC + 50 * US);
    moderation_forget(&other);
    cq_free(&other);
    CHECK_EQ(moderation_deadline(&timing), SEC + 100 * US);
    advance(SEC + 100 * US);
    CHECK(event());
    close_cq();
}

/* Whatever comes when: of completions that an armed queue would tell of, the first is told of within the period. */
static void no_event_is_ever_lost(void) {
    struct rnic_wc wc;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct rng r;
        uint64_t due = UINT64_MAX;
        uint32_t ripe = 0, count = 0, period = 0;
        bool armed = false;
        check_note("seed %llu", (unsigned long long)seed);
        rng_seed(&r, seed);
        open_cq(8, 0, RNIC_CREATE_CQ_ATTR_IGNORE_OVERRUN);
        for (int step = 0; step < 400; step++) {
            bool told = false;
            switch (rng_next(&r) >> 33 & 7) {
            case 0:
                count = rng_next(&r) >> 33 & 7;
                period = (rng_next(&r) >> 33 & 3) * 10;
                moderate((uint16_t)count, (uint16_t)period);
                told = ripe > 0;
                break;
            case 1:
            case 2:
                cq_arm(&cq, false);
                armed = true;
                break;
            case 3:
            case 4:
            case 5:
                push(1, false);
                if (armed && ripe++ == 0)
                    due = clock_now + period * US;
                told = armed && (!period || (count && ripe >= count));
                break;
            case 6:
                advance(clock_now + (rng_next(&r) >> 33 & 15) * US);
                told = ripe && due <= clock_now;
                break;
            default:
                cq_take(&cq, 1, &wc);
            }
            CHECK_EQ(event(), told);
            if (!told)
                continue;
            armed = false;
            ripe = 0;
        }
        close_cq();
    }
}

/* ---------------------------------------------------------------- timestamps, overrun, resize */

/* What somebody else counts there, who tells of his own news by the same descriptor, is his to take back. */
static void a_wake_up_of_somebody_else_costs_no_event(void) {
    open_cq(8, 0, 0);
    cq_arm(&cq, false);
    semaphore_raise(channel.pub.fd);
    CHECK(!event());
    push(1, false);
    CHECK(semaphore_lower(channel.pub.fd));
    CHECK(event());
    CHECK(!event());
    CHECK(!semaphore_lower(channel.pub.fd));
    close_cq();
}

static void timestamps_are_of_the_moment_of_the_completion(void) {
    struct rnic_wc wc[4];
    struct rnic_wc_ex times[4];
    open_cq(2, RNIC_WC_EX_WITH_COMPLETION_TIMESTAMP | RNIC_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, 0);
    for (uint64_t i = 0; i < 2; i++) {
        clock_now = SEC + i;
        push(i, false);
    }
    CHECK_EQ(cq_resize(&cq, 16, NULL), 0);
    clock_now = 5 * SEC;
    push(2, false);
    CHECK_EQ(cq_take_ex(&cq, 4, wc, times), 3);
    for (uint64_t i = 0; i < 3; i++) {
        CHECK_EQ(wc[i].wr_id, i);
        CHECK_EQ(times[i].raw, i < 2 ? SEC + i : 5 * SEC);
        CHECK_EQ(times[i].wallclock_ns, times[i].raw + 7 * SEC);
    }
    close_cq();
}

static void the_clock_is_read_only_for_the_timestamp_that_was_asked_for(void) {
    struct rnic_wc wc;
    struct rnic_wc_ex times = {.raw = 1, .wallclock_ns = 1};
    open_cq(2, RNIC_WC_EX_WITH_COMPLETION_TIMESTAMP, 0);
    timing.wallclock = NULL;
    push(1, false);
    CHECK_EQ(cq_take_ex(&cq, 1, &wc, &times), 1);
    CHECK_EQ(times.raw, SEC);
    CHECK_EQ(times.wallclock_ns, 0);
    close_cq();
    open_cq(2, 0, 0);
    timing.clock = NULL;
    push(1, false);
    CHECK_EQ(cq_take_ex(&cq, 1, &wc, &times), 1);
    CHECK_EQ(times.raw, 0);
    close_cq();
}

static void a_queue_that_has_overrun_takes_nothing_any_more(void) {
    struct rnic_wc wc[4];
    open_cq(2, 0, 0);
    CHECK(push(1, false));
    CHECK(push(2, false));
    CHECK(!push(3, false));
    CHECK_EQ(cq_take(&cq, 4, wc), 2);
    CHECK(!push(4, false));
    CHECK_EQ(cq_take(&cq, 4, wc), 0);
    close_cq();
}

static void with_IGNORE_OVERRUN_the_oldest_completion_is_lost_and_its_place_is_free(void) {
    struct rnic_wc wc[8];
    _Atomic uint32_t freed = 0;
    open_cq(4, 0, RNIC_CREATE_CQ_ATTR_IGNORE_OVERRUN);
    for (uint32_t i = 0; i < 7; i++)
        CHECK(cq_push(&cq, &(struct cqe){.wc = {.wr_id = i}, .freed = &freed, .upto = i + 1}, false));
    CHECK_EQ(freed, 3);
    CHECK_EQ(cq_take(&cq, 8, wc), 4);
    for (uint64_t i = 0; i < 4; i++)
        CHECK_EQ(wc[i].wr_id, i + 3);
    CHECK_EQ(freed, 7);
    CHECK(!atomic_load(&cq.overrun));
    close_cq();
}

static void no_size_is_too_small_but_one_below_what_the_queue_holds(void) {
    struct rnic_wc wc[8];
    struct rnic_err err;
    open_cq(8, 0, 0);
    for (uint64_t i = 0; i < 13; i++) { /* the ring has gone round */
        push(i, false);
        if (i < 8)
            CHECK_EQ(cq_take(&cq, 1, wc), 1);
    }
    CHECK_EQ(cq_resize(&cq, 4, &err), -EINVAL);
    CHECK_EQ(cq.pub.cqe, 8);
    CHECK_EQ(cq_take(&cq, 1, wc), 1);
    CHECK_EQ(cq_resize(&cq, 4, &err), 0);
    CHECK(!push(99, false));
    CHECK_EQ(cq_take(&cq, 8, wc), 4);
    for (uint64_t i = 0; i < 4; i++)
        CHECK_EQ(wc[i].wr_id, 9 + i);
    close_cq();
}

/* ---------------------------------------------------------------- counters */

static struct pair p;
static struct comp_cntr cntr[2][COMP_CNTR_OPS];
static struct comp_cntrs at[2];

static void count_everything(bool bytes) {
    struct end *ends[] = {&p.a, &p.b};
    for (int e = 0; e < 2; e++) {
        for (int i = 0; i < COMP_CNTR_OPS; i++) {
            cntr[e][i] = (struct comp_cntr){.bytes = bytes};
            at[e].of[i] = &cntr[e][i];
        }
        ends[e]->qp->cntrs = &at[e];
    }
}

static uint64_t done_at(int e, uint32_t op) { return cntr[e][__builtin_ctz(op)].done; }
static uint64_t failed_at(int e, uint32_t op) { return cntr[e][__builtin_ctz(op)].failed; }
#define DONE(e, op) done_at(e, RNIC_COMP_CNTR_OP_##op)
#define FAILED(e, op) failed_at(e, RNIC_COMP_CNTR_OP_##op)

static void post_each(uint32_t n) {
    post_recv(&p.b, 1, 0, 4000);
    post_send(&p.a, 1, 0, n);
    post_write(&p.a, 2, 0, 8192, n);
    post_read(&p.a, 3, 4096, 8192, n);
    post_add(&p.a, 4, 4096, 8192, 1);
}

static void each_operation_counts_once_at_both_ends(void) {
    pair_open(&p, .mtu = RNIC_MTU_256);
    for (int bytes = 0; bytes < 2; bytes++) {
        uint64_t want = bytes ? 3000 : 1;
        count_everything(bytes);
        post_each(3000);
        post(&p.a, (struct rnic_send_wr){.opcode = RNIC_WR_RDMA_WRITE, REMOTE(&p.b, 0)}); /* unsignaled, of no bytes */
        fabric_settle(&p.f);
        CHECK_EQ(DONE(0, SEND), want);
        CHECK_EQ(DONE(0, RDMA_WRITE), bytes ? 3000 : 2);
        CHECK_EQ(DONE(0, RDMA_READ), want);
        CHECK_EQ(DONE(0, RECV) + DONE(0, REMOTE_RDMA_READ) + DONE(0, REMOTE_RDMA_WRITE), 0);
        CHECK_EQ(DONE(1, RECV), want);
        CHECK_EQ(DONE(1, REMOTE_RDMA_WRITE), bytes ? 3000 : 2);
        CHECK_EQ(DONE(1, REMOTE_RDMA_READ), want);
        CHECK_EQ(DONE(1, SEND) + DONE(1, RDMA_READ) + DONE(1, RDMA_WRITE), 0);
        for (int e = 0; e < 2; e++)
            CHECK_EQ(FAILED(e, SEND) + FAILED(e, RECV) + FAILED(e, RDMA_READ) + FAILED(e, REMOTE_RDMA_READ), 0);
    }
    pair_close(&p);
}

/* A repeated request is answered again, but executed once (IBA 9.7.5.1): it counts once. */
static void loss_duplication_and_disorder_change_no_count(void) {
    for (uint64_t seed = 1; seed <= 40; seed++) {
        check_note("seed %llu", (unsigned long long)seed);
        pair_open(&p, .mtu = RNIC_MTU_256, .timeout = 8, .quiet = true);
        count_everything(false);
        for (int i = 0; i < 2; i++)
            fault_set(&p.f.node[i].fault, &(struct rnic_fault){.seed = seed + (uint64_t)i,
                                                               .loss = 60000,
                                                               .duplicate = 60000,
                                                               .reorder = 60000,
                                                               .reorder_gap = 2,
                                                               .delay_ns = 20 * US});
        for (int i = 0; i < 6; i++)
            post_each(2000);
        fabric_settle(&p.f);
        CHECK_EQ(p.a.qp->state, RNIC_QPS_RTS);
        CHECK_EQ(DONE(0, SEND), 6);
        CHECK_EQ(DONE(0, RDMA_WRITE), 6);
        CHECK_EQ(DONE(0, RDMA_READ), 6);
        CHECK_EQ(DONE(1, RECV), 6);
        CHECK_EQ(DONE(1, REMOTE_RDMA_WRITE), 6);
        CHECK_EQ(DONE(1, REMOTE_RDMA_READ), 6);
        pair_close(&p);
    }
}

static void what_fails_counts_as_failed_at_both_ends(void) {
    pair_open(&p, .mtu = RNIC_MTU_256);
    count_everything(true);
    post(&p.a, (struct rnic_send_wr){.opcode = RNIC_WR_RDMA_WRITE,
                                     SGL(SGE(&p.a, 0, 100)),
                                     .wr.rdma = {(uintptr_t)p.b.mem, p.b.mr->pub.rkey ^ 1}});
    post_send(&p.a, 2, 0, 10); /* is flushed */
    post_recv(&p.b, 1, 0, 10);
    fabric_settle(&p.f);
    CHECK_EQ(FAILED(0, RDMA_WRITE), 1);
    CHECK_EQ(FAILED(0, SEND), 1);
    CHECK_EQ(FAILED(1, REMOTE_RDMA_WRITE), 1);
    CHECK_EQ(FAILED(1, RECV), 1);
    CHECK_EQ(DONE(0, RDMA_WRITE) + DONE(1, REMOTE_RDMA_WRITE) + DONE(1, RECV), 0);
    pair_close(&p);
    pair_open(&p, .mtu = RNIC_MTU_256);
    count_everything(false);
    post(&p.a, (struct rnic_send_wr){.opcode = RNIC_WR_RDMA_READ,
                                     SGL(SGE(&p.a, 0, 100)),
                                     .wr.rdma = {(uintptr_t)p.b.mem, p.b.mr->pub.rkey ^ 1}});
    fabric_settle(&p.f);
    CHECK_EQ(FAILED(0, RDMA_READ), 1);
    CHECK_EQ(FAILED(1, REMOTE_RDMA_READ), 1);
    pair_close(&p);
}

static void unreliable_writes_count_when_all_of_them_has_come(void) {
    pair_open(&p, .type = RNIC_QPT_UC, .mtu = RNIC_MTU_256);
    count_everything(true);
    post_write(&p.a, 1, 0, 0, 1000);
    fabric_settle(&p.f);
    CHECK_EQ(DONE(1, REMOTE_RDMA_WRITE), 1000);
    fault_set(&p.f.node[0].fault,
              &(struct rnic_fault){.lose = {{.opcode = ROCE_UC_WRITE_MIDDLE, .nth = 1, .count = 1}}});
    post_write(&p.a, 2, 0, 0, 1000);
    fabric_settle(&p.f);
    CHECK_EQ(DONE(0, RDMA_WRITE), 2000);
    CHECK_EQ(DONE(1, REMOTE_RDMA_WRITE), 1000);
    pair_close(&p);
}

int main(void) {
    RUN(a_queue_that_goes_takes_its_completions_out_and_no_others);
    RUN(a_queue_pair_in_reset_has_no_completions);
    RUN(an_event_waits_until_enough_completions_are_there);
    RUN(an_event_waits_no_longer_than_the_period_from_the_first_completion);
    RUN(a_count_of_one_or_no_period_is_no_moderation);
    RUN(only_what_would_raise_the_event_counts);
    RUN(an_event_that_waits_comes_when_the_limits_change);
    RUN(a_queue_that_goes_takes_its_waiting_event_along);
    RUN(no_event_is_ever_lost);
    RUN(a_wake_up_of_somebody_else_costs_no_event);
    RUN(timestamps_are_of_the_moment_of_the_completion);
    RUN(the_clock_is_read_only_for_the_timestamp_that_was_asked_for);
    RUN(a_queue_that_has_overrun_takes_nothing_any_more);
    RUN(with_IGNORE_OVERRUN_the_oldest_completion_is_lost_and_its_place_is_free);
    RUN(no_size_is_too_small_but_one_below_what_the_queue_holds);
    RUN(each_operation_counts_once_at_both_ends);
    RUN(loss_duplication_and_disorder_change_no_count);
    RUN(what_fails_counts_as_failed_at_both_ends);
    RUN(unreliable_writes_count_when_all_of_them_has_come);
    return check_done();
}
