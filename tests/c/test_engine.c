/* SPDX-License-Identifier: Apache-2.0
 *
 * Who makes progress: the engine leaves its sockets to an application that polls all the time, and to no other.
 */
#include <stdatomic.h>
#include <time.h>

#include "check.h"
#include "dev/dev.h"
#include "live.h"

#define LOOKS 300

static struct rnic_context *ctx;
static const struct rnic_ops *ops;
static struct rnic_comp_channel *channel;
static struct rnic_cq *cq;

static void open_device(void) {
    struct rnic_err err = {{0}};
    if (rnic_soft_open("lo", NULL, &ctx, &err))
        check_fail(__FILE__, __LINE__, "%s", err.text);
    ops = ctx->ops;
    CHECK_EQ(ops->create_comp_channel(ctx, &channel, NULL), 0);
    CHECK_EQ(ops->create_cq(ctx, 16, channel, 0, NULL, &cq, NULL), 0);
}

static void close_device(void) {
    CHECK_EQ(ops->destroy_cq(cq, NULL), 0);
    CHECK_EQ(ops->destroy_comp_channel(channel, NULL), 0);
    CHECK_EQ(ops->close(ctx, NULL), 0);
}

static void nap(long ns) {
    const struct timespec t = {.tv_nsec = ns};
    nanosleep(&t, NULL);
}

static void look(void) {
    struct rnic_wc wc;
    CHECK_EQ(ops->poll_cq(cq, 1, &wc), 0);
}

static bool engine_stands_by(void) { return atomic_load(&dev_of(ctx)->disarmed); }

static void test_an_application_that_polls_now_and_then_has_an_engine_at_work(void) {
    open_device();
    for (int i = 0; i < LOOKS; i++) {
        look();
        nap(100000);
        CHECK(!engine_stands_by());
    }
    close_device();
}

static void test_an_application_that_waits_for_events_has_an_engine_at_work(void) {
    open_device();
    for (int i = 0; i < LOOKS; i++) {
        CHECK_EQ(ops->req_notify_cq(cq, 0, NULL), 0);
        look();
        nap(50000);
        CHECK(!engine_stands_by());
    }
    close_device();
}

static void test_an_application_that_polls_all_the_time_has_the_sockets_to_itself(void) {
    open_device();
    for (uint64_t limit = dev_clock() + 60000000000u; !engine_stands_by();) {
        look();
        CHECK(dev_clock() < limit);
    }
    for (uint64_t limit = dev_clock() + 60000000000u; engine_stands_by();) { /* until it does not */
        nap(100000);
        CHECK(dev_clock() < limit);
    }
    close_device();
}

/* ---------------------------------------------------------------- threads that are always inside verbs */

#define HANG_S 20

static bool written(const struct live *l) { return atomic_load((_Atomic uint8_t *)&l->mem[63]) == 1; }

/* As if, whenever one has had the lock, another one waited for it. polls: the program looks for progress itself. */
static void write_beside_verbs(bool polls) {
    struct live from, to;
    struct rnic_wc wc;
    live_open(&from, -1);
    live_open(&to, -1);
    struct rnic_qp *qp = live_qp(&from), *peer = live_qp(&to);
    live_join(&from, qp, &to, peer, 14, 7);
    from.mem[63] = 1;
    atomic_fetch_add(&dev_of(from.ctx)->waiting, 1);
    live_post(&from, qp, RNIC_WR_RDMA_WRITE, 1, 0, 64, &to);
    double until = live_seconds() + HANG_S;
    while (polls ? from.ops->poll_cq(from.cq, 1, &wc) != 1 : !written(&to))
        CHECK(live_seconds() < until);
    atomic_fetch_sub(&dev_of(from.ctx)->waiting, 1);
    CHECK(written(&to));
    CHECK_EQ(from.ops->destroy_qp(qp, NULL), 0);
    CHECK_EQ(to.ops->destroy_qp(peer, NULL), 0);
    live_close(&from);
    live_close(&to);
}

static void test_the_engine_goes_on_beside_threads_inside_verbs(void) { write_beside_verbs(false); }

static void test_a_program_that_polls_goes_on_beside_threads_inside_verbs(void) { write_beside_verbs(true); }

int main(void) {
    live_isolate();
    RUN(test_an_application_that_polls_now_and_then_has_an_engine_at_work);
    RUN(test_an_application_that_waits_for_events_has_an_engine_at_work);
    RUN(test_an_application_that_polls_all_the_time_has_the_sockets_to_itself);
    RUN(test_the_engine_goes_on_beside_threads_inside_verbs);
    RUN(test_a_program_that_polls_goes_on_beside_threads_inside_verbs);
    return check_done();
}
