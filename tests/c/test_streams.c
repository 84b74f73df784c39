/* SPDX-License-Identifier: Apache-2.0
 *
 * net/streams: how the sockets of a live iWARP device are looked at, by the engine and by a program that polls.
 */
#include <arpa/inet.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "dev/dev.h"
#include "live.h"

#define HANG_S 120
#define PAIRS 3 /* more than are read without a look at the set */

static struct rnic_context *ctx;
static const struct rnic_ops *ops;
static struct rnic_pd *pd;
static struct rnic_cq *cq;
static struct rnic_mr *mr;
static struct rnic_qp *qps[2 * PAIRS];
static uint32_t num_qps;
static uint8_t memory[4096];

static void open_device(void) {
    struct rnic_err err = {0};
    if (rnic_soft.open("iwarp_lo", NULL, &ctx, &err))
        check_fail(__FILE__, __LINE__, "%s", err.text);
    ops = ctx->ops;
    CHECK_EQ(ops->alloc_pd(ctx, &pd, NULL), 0);
    CHECK_EQ(ops->create_cq(ctx, 16, NULL, 0, NULL, &cq, NULL), 0);
    CHECK_EQ(ops->reg_mr(pd, memory, sizeof memory, 0xF, &mr, NULL), 0);
}

static void close_device(void) {
    while (num_qps)
        CHECK_EQ(ops->destroy_qp(qps[--num_qps], NULL), 0);
    CHECK_EQ(ops->dereg_mr(mr, NULL), 0);
    CHECK_EQ(ops->destroy_cq(cq, NULL), 0);
    CHECK_EQ(ops->dealloc_pd(pd, NULL), 0);
    CHECK_EQ(ops->close(ctx, NULL), 0);
}

static void add_end(int fd, bool initiator) {
    const struct rnic_ext_stream *streams = rnic_extension(ctx, RNIC_EXT_STREAM);
    const struct rnic_stream_attr stream = {.fd = fd, .line = -1, .initiator = initiator, .crc = true};
    struct rnic_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 0}, .qp_type = RNIC_QPT_RC, .sq_sig_all = 1};
    struct rnic_qp_attr attr = {.qp_state = RNIC_QPS_INIT, .port_num = 1, .qp_access_flags = 0xF};
    struct rnic_qp **qp = &qps[num_qps++];
    CHECK_EQ(ops->create_qp(pd, &init, qp, NULL), 0);
    CHECK_EQ(ops->modify_qp(*qp, &attr, RNIC_QP_STATE | RNIC_QP_PORT | RNIC_QP_ACCESS_FLAGS, NULL), 0);
    CHECK_EQ(streams->attach(*qp, &stream, NULL), 0);
    attr.qp_state = RNIC_QPS_RTS;
    CHECK_EQ(ops->modify_qp(*qp, &attr, RNIC_QP_STATE, NULL), 0);
}

/* Two queue pairs, joined through loopback. */
static void add_pair(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&at, n) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &n) == 0);
    CHECK(connect(fd, (struct sockaddr *)&at, n) == 0);
    add_end(fd, true);
    add_end(accept(listener, NULL, NULL), false);
    close(listener);
}

/* How many streams the set has for what comes. */
static uint32_t watched(void) {
    uint32_t n = 0;
    dev_lock(dev_of(ctx));
    for (const struct tcp_stream *s = dev_of(ctx)->net.tcp.streams[TCP_OPEN]; s; s = s->next)
        n += (s->watched & EPOLLIN) != 0;
    dev_unlock(dev_of(ctx));
    return n;
}

/* As one does that polls without end, or has ceased to. */
static void program_polls(bool polls) {
    struct run *run = &dev_of(ctx)->run;
    atomic_store(&run->polls_at, polls ? UINT64_MAX : 0);
    engine_wake(run);
}

static void await_watched(uint32_t n) {
    for (double until = live_seconds() + HANG_S; watched() != n; live_nap()) {
        dev_lock(dev_of(ctx));
        progress(&dev_of(ctx)->run, run_clock(), false);
        dev_unlock(dev_of(ctx));
        CHECK(live_seconds() < until);
    }
}

/* Nobody polls: it is the engine that carries it out. */
static void write_and_look(uint8_t value) {
    struct rnic_sge sge = {(uintptr_t)memory, 1, mr->lkey};
    struct rnic_send_wr wr = {.opcode = RNIC_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1};
    const struct rnic_send_wr *bad;
    wr.wr.rdma.remote_addr = (uintptr_t)memory + 64;
    wr.wr.rdma.rkey = mr->rkey;
    memory[0] = value;
    CHECK_EQ(ops->post_send(qps[0], &wr, &bad, NULL), 0);
    for (double until = live_seconds() + HANG_S; atomic_load((_Atomic uint8_t *)&memory[64]) != value; live_nap())
        CHECK(live_seconds() < until);
}

static void few_streams_are_in_no_set_while_a_program_polls(void) {
    open_device();
    add_pair();
    await_watched(2);
    program_polls(true);
    await_watched(0);
    program_polls(false);
    await_watched(2);
    write_and_look(1);
    close_device();
}

static void of_many_all_are_in_the_set(void) {
    open_device();
    add_pair();
    program_polls(true);
    await_watched(0);
    while (num_qps < 2 * PAIRS)
        add_pair();
    await_watched(2 * PAIRS);
    while (num_qps > 2)
        CHECK_EQ(ops->destroy_qp(qps[--num_qps], NULL), 0);
    await_watched(0);
    program_polls(false);
    write_and_look(2);
    close_device();
}

int main(void) {
    live_isolate();
    RUN(few_streams_are_in_no_set_while_a_program_polls);
    RUN(of_many_all_are_in_the_set);
    return check_done();
}
