/* SPDX-License-Identifier: Apache-2.0
 *
 * A socket that is full: what is for it waits, in order and whole, and nothing takes the wait for a loss.
 */
#include <dlfcn.h>
#include <errno.h>
#include <netinet/udp.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "ext.h"
#include "link/udp/udp.h"
#include "live.h"

/* ---------------------------------------------------------------- a kernel that takes so many datagrams */

static _Atomic bool full;
static _Atomic uint32_t refused;
static uint8_t taken[4 * UDP_MAX_PAYLOAD];
static uint32_t ntaken, datagrams;
static bool recording;

static long take(const uint8_t *bytes, size_t n) {
    memcpy(taken + ntaken, bytes, n);
    ntaken += (uint32_t)n;
    datagrams++;
    return (long)n;
}

/* In the C library's place: the link calls it to send and to receive, nobody else in these tests does. */
/* It reads six arguments, however many there are. */
__attribute__((no_sanitize("address"))) long syscall(long number, ...) {
    long a[6];
    va_list ap;
    va_start(ap, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(ap, long);
    va_end(ap);
    bool sends = number == SYS_sendto || number == SYS_sendmsg;
    if (sends && atomic_load(&full)) {
        atomic_fetch_add(&refused, 1);
        errno = EAGAIN;
        return -1;
    }
    if (sends && recording && number == SYS_sendto)
        return take((const uint8_t *)a[1], (size_t)a[2]);
    if (sends && recording)
        return take(((const struct msghdr *)a[1])->msg_iov->iov_base, ((const struct msghdr *)a[1])->msg_iov->iov_len);
    return live_syscall(number, a);
}

/* What poll(2) says, one after the other; then it is asked itself. */
static int said[4];
static uint32_t nsaid, asked;
static void (*_Atomic meanwhile)(void);
static int patience[4];          /* that each of them was given, ms */
static _Atomic int64_t clock_ms; /* 0: the clock is the kernel's; each poll(2) takes NAP of it */
enum { NAP = 400 };

/* Likewise. */
int clock_gettime(clockid_t id, struct timespec *t) {
    int64_t ms = atomic_load(&clock_ms);
    if (!ms)
        return ((int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime"))(id, t);
    *t = (struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    return 0;
}

/* Likewise. */
int poll(struct pollfd *fds, nfds_t n, int ms) {
    struct timespec limit = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    void (*first)(void) = atomic_exchange(&meanwhile, NULL);
    if (first)
        first();
    if (asked == nsaid)
        return ppoll(fds, n, ms < 0 ? NULL : &limit, NULL);
    CHECK(n == 1 && fds->events == POLLOUT);
    patience[asked] = ms;
    clock_ms += clock_ms ? NAP : 0;
    int rc = said[asked++];
    errno = rc < 0 ? EINTR : 0;
    if (asked == nsaid)
        atomic_store(&full, false);
    return rc;
}

/* ---------------------------------------------------------------- the sink of packets */

static struct udp_tx tx;
static struct port port, other;
static struct fault fault;
static struct rnic_counters counters;
static struct way way;

static void open_sink(void) {
    memset(&counters, 0, sizeof counters);
    fault_set(&fault, NULL);
    static const uint64_t now;
    udp_tx_init(&tx, &fault, &counters, &now);
    port = other = (struct port){.gso = true};
    way = (struct way){.link = &tx.link};
    udp_way(&way)->port = &port;
    way.src.sin6_family = way.dst.sin6_family = AF_INET6;
    way.dst.sin6_addr.s6_addr[15] = 1;
    ntaken = datagrams = 0;
    recording = true;
    atomic_store(&full, false);
}

static bool put(uint8_t value, uint32_t n) {
    uint32_t crc;
    uint8_t *at = tx.link.ops->reserve(&tx.link, &way, n, &crc);
    if (!at)
        return false;
    memset(at, value, n);
    tx.link.ops->commit(&tx.link);
    return true;
}

static void test_a_batch_that_meets_a_full_socket_waits_and_is_sent_once(void) {
    open_sink();
    atomic_store(&full, true);
    for (uint8_t i = 0; i < 3; i++)
        CHECK(put(i, 100));
    udp_tx_flush(&tx);
    CHECK(tx.link.full && !put(9, 100));
    udp_tx_flush(&tx);
    CHECK(!udp_tx_resume(&tx, 1000) && tx.retry_at > 1000);
    atomic_store(&full, false);
    CHECK(udp_tx_resume(&tx, 2000) && !tx.link.full);
    CHECK_EQ(datagrams, 1);
    CHECK_EQ(ntaken, 300);
    CHECK(taken[0] == 0 && taken[100] == 1 && taken[299] == 2);
    CHECK(put(3, 100));
    udp_tx_flush(&tx);
    CHECK_EQ(ntaken, 400);
    CHECK_EQ(counters.value[RNIC_CNT_tx_errors], 0);
    CHECK_EQ(counters.value[RNIC_CNT_tx_waits], 1);
}

static void test_a_sink_says_that_it_has_no_room_when_a_full_batch_cannot_go(void) {
    uint32_t n = 0;
    open_sink();
    atomic_store(&full, true);
    while (put((uint8_t)n, 1000))
        n++;
    CHECK_EQ(n, 64); /* packets of a batch */
    atomic_store(&full, false);
    CHECK(udp_tx_resume(&tx, 1));
    CHECK_EQ(ntaken, 64 * 1000);
    CHECK_EQ(counters.value[RNIC_CNT_tx_errors], 0);
}

static void test_a_batch_waits_though_its_sender_has_gone(void) {
    open_sink();
    struct way *gone = malloc(sizeof *gone);
    *gone = way;
    uint32_t crc;
    memset(tx.link.ops->reserve(&tx.link, gone, 64, &crc), 5, 64);
    tx.link.ops->commit(&tx.link);
    atomic_store(&full, true);
    udp_tx_flush(&tx);
    free(gone);
    atomic_store(&full, false);
    CHECK(udp_tx_resume(&tx, 1));
    CHECK_EQ(ntaken, 64);
}

static void test_what_waits_for_a_port_that_closes_is_counted_as_lost(void) {
    open_sink();
    atomic_store(&full, true);
    put(1, 100);
    put(2, 100);
    udp_tx_flush(&tx);
    CHECK(!udp_tx_forget(&tx, &other));
    CHECK(udp_tx_forget(&tx, &port) && !tx.link.full);
    CHECK_EQ(counters.value[RNIC_CNT_tx_errors], 2);
    CHECK(put(3, 100));
}

static void test_signals_do_not_end_the_wait_for_room(void) {
    open_sink();
    atomic_store(&full, true);
    put(1, 100);
    udp_tx_flush(&tx);
    memcpy(said, (int[]){-1, -1, 1}, sizeof(int[3]));
    asked = 0, nsaid = 3;
    udp_wait_for_room(udp_tx_full(&tx));
    CHECK_EQ(asked, 3);
    udp_tx_finish(&tx);
    CHECK_EQ(udp_tx_full(&tx), -1);
    CHECK_EQ(ntaken, 100);
}

static void test_signals_do_not_make_the_wait_longer(void) {
    open_sink();
    memcpy(said, (int[]){-1, -1, -1, 1}, sizeof(int[4]));
    asked = 0, nsaid = 4;
    atomic_store(&clock_ms, 5999);
    udp_wait_for_room(0);
    atomic_store(&clock_ms, 0);
    CHECK_EQ(asked, 3);
    CHECK(patience[0] == 1000 && patience[1] == 1000 - NAP && patience[2] == 1000 - 2 * NAP);
    asked = nsaid;
}

static void test_a_packet_of_the_injectors_waits_too(void) {
    struct rnic_fault cfg = {.seed = 1};
    open_sink();
    fault_set(&fault, &cfg);
    atomic_store(&full, true);
    CHECK(put(7, 200));
    udp_tx_flush(&tx);
    CHECK(tx.link.full);
    atomic_store(&full, false);
    CHECK(udp_tx_resume(&tx, 1));
    CHECK_EQ(ntaken, 200);
    CHECK_EQ(counters.value[RNIC_CNT_tx_errors], 0);
    atomic_store(&full, true);
    CHECK(put(8, 200));
    udp_tx_flush(&tx);
    CHECK(udp_tx_forget(&tx, &port));
    CHECK_EQ(counters.value[RNIC_CNT_tx_errors], 1);
    cfg.duplicate = 1000000; /* for which there is no place beside the first */
    fault_set(&fault, &cfg);
    CHECK(put(9, 200));
    udp_tx_flush(&tx);
    CHECK(tx.link.full);
    CHECK_EQ(counters.value[RNIC_CNT_tx_errors], 2);
    CHECK(udp_tx_forget(&tx, &port));
    CHECK_EQ(counters.value[RNIC_CNT_tx_errors], 3);
    atomic_store(&full, false);
}

static void test_what_the_injector_holds_waits_behind_what_waits(void) {
    struct rnic_fault cfg = {.delay = 1000000, .delay_ns = 50};
    open_sink();
    fault_set(&fault, &cfg);
    CHECK(put(7, 200));
    udp_tx_flush(&tx);
    CHECK(!tx.link.full && ntaken == 0);
    fault.cfg.delay = 0;
    atomic_store(&full, true);
    CHECK(put(8, 100));
    udp_tx_flush(&tx);
    CHECK(tx.link.full);
    udp_tx_release(&tx, 1000);
    CHECK(fault_deadline(&fault) != UINT64_MAX); /* it is there yet */
    atomic_store(&full, false);
    CHECK(udp_tx_resume(&tx, 1000));
    CHECK_EQ(ntaken, 100);
    udp_tx_release(&tx, 49);
    CHECK_EQ(ntaken, 100);
    udp_tx_release(&tx, 50);
    CHECK_EQ(ntaken, 300);
    CHECK_EQ(counters.value[RNIC_CNT_tx_errors], 0);
    fault_set(&fault, NULL);
}

/* ---------------------------------------------------------------- a device */

#define QPS 8
#define EACH 12
#define BYTES 3000

static struct rnic_context *ctx;
static const struct rnic_ops *ops;
static struct rnic_gid_entry here;
static struct rnic_pd *pd;
static struct rnic_cq *cq;
static struct rnic_mr *mr;
static struct rnic_qp *from[QPS], *to[QPS];
static uint8_t source[BYTES], target[QPS][EACH][BYTES];

static void open_device(int type) {
    struct rnic_open_attr attr = {.local = -1};
    struct rnic_err err = {0};
    recording = false;
    atomic_store(&full, false);
    atomic_store(&refused, 0);
    if (rnic_soft.open("roce_lo", &attr, &ctx, &err))
        check_fail(__FILE__, __LINE__, "%s", err.text);
    ops = ctx->ops;
    CHECK_EQ(ops->query_gid(ctx, 1, 0, &here, NULL), 0);
    CHECK_EQ(ops->alloc_pd(ctx, &pd, NULL), 0);
    CHECK_EQ(ops->create_cq(ctx, 1024, NULL, 0, NULL, &cq, NULL), 0);
    CHECK_EQ(ops->reg_mr(pd, source, sizeof source, RNIC_ACCESS_LOCAL_WRITE, &mr, NULL), 0);
    for (int i = 0; i < QPS; i++) {
        struct rnic_qp_init_attr init = {
            .send_cq = cq, .recv_cq = cq, .cap = {EACH, EACH, 1, 1, 0}, .qp_type = type, .sq_sig_all = 1};
        CHECK_EQ(ops->create_qp(pd, &init, &from[i], NULL), 0);
        CHECK_EQ(ops->create_qp(pd, &init, &to[i], NULL), 0);
        CHECK_EQ(live_connect(to[i], &here, from[i]->qp_num), 0);
        CHECK_EQ(live_connect(from[i], &here, to[i]->qp_num), 0);
    }
}

static void close_device(struct rnic_mr *last) {
    for (int i = 0; i < QPS; i++) {
        CHECK_EQ(ops->destroy_qp(from[i], NULL), 0);
        CHECK_EQ(ops->destroy_qp(to[i], NULL), 0);
    }
    CHECK_EQ(ops->dereg_mr(last, NULL), 0);
    CHECK_EQ(ops->dereg_mr(mr, NULL), 0);
    CHECK_EQ(ops->destroy_cq(cq, NULL), 0);
    CHECK_EQ(ops->dealloc_pd(pd, NULL), 0);
    CHECK_EQ(ops->close(ctx, NULL), 0);
}

static void nap(long ms) {
    const struct timespec t = {.tv_nsec = ms * 1000000};
    nanosleep(&t, NULL);
}

static void post_all(const struct rnic_mr *there) {
    for (int k = 0; k < EACH; k++) {
        for (int i = 0; i < QPS; i++) {
            struct rnic_sge sge = {(uintptr_t)source, BYTES, mr->lkey};
            struct rnic_send_wr wr = {.opcode = RNIC_WR_RDMA_WRITE,
                                      .sg_list = &sge,
                                      .num_sge = 1,
                                      .wr.rdma = {(uintptr_t)target[i][k], there->rkey}};
            const struct rnic_send_wr *bad;
            CHECK_EQ(ops->post_send(from[i], &wr, &bad, NULL), 0);
        }
    }
}

/* Completions: all are successes. */
static int poll_some(void) {
    struct rnic_wc wc[16];
    int n = ops->poll_cq(cq, 16, wc);
    for (int i = 0; i < n; i++)
        CHECK_EQ(wc[i].status, RNIC_WC_SUCCESS);
    return n;
}

static uint64_t counted(int counter) {
    struct rnic_counters now;
    CHECK_EQ(ext_stats(ctx)->query_counters(ctx, &now, NULL), 0);
    return now.value[counter];
}

/* polls: the application makes progress itself meanwhile; else the engine. */
static void write_through_a_full_socket(int type, bool polls) {
    struct rnic_mr *there;
    int done = 0;
    open_device(type);
    memset(source, 0xA5, sizeof source);
    memset(target, 0, sizeof target);
    CHECK_EQ(ops->reg_mr(pd, target, sizeof target, RNIC_ACCESS_LOCAL_WRITE | RNIC_ACCESS_REMOTE_WRITE, &there, NULL),
             0);
    double begun = live_seconds();
    atomic_store(&full, true);
    post_all(there);
    while (live_seconds() < begun + 0.15) { /* two transport timeouts, and many times what a probe waits for */
        nap(1);
        done += polls ? poll_some() : 0;
    }
    CHECK(type == RNIC_QPT_UC || done == 0);
    CHECK(atomic_load(&refused) > 1);
    CHECK_EQ(counted(RNIC_CNT_tx_errors), 0);
    uint64_t timeouts = counted(RNIC_CNT_timeouts), resent = counted(RNIC_CNT_requests_resent);
    if (live_seconds() < begun + 1) /* a link that stands still for a second is waited for no longer */
        CHECK(timeouts == 0 && resent == 0);
    CHECK(counted(RNIC_CNT_tx_waits) == 1);
    atomic_store(&full, false);
    for (int i = 0; done < QPS * EACH; i++) {
        CHECK(i < 60000);
        int n = poll_some();
        done += n;
        if (!n)
            nap(1);
    }
    for (int i = 0; i < 60000 && counted(RNIC_CNT_requests_executed) < QPS * EACH * 3; i++)
        nap(1);
    for (int i = 0; i < QPS; i++) {
        for (int k = 0; k < EACH; k++)
            CHECK(!memcmp(target[i][k], source, BYTES));
    }
    CHECK_EQ(counted(RNIC_CNT_tx_errors), 0);
    close_device(there);
}

static void test_reliable_writes_wait_without_a_timeout(void) { write_through_a_full_socket(RNIC_QPT_RC, false); }

static void test_reliable_writes_wait_while_the_program_polls(void) { write_through_a_full_socket(RNIC_QPT_RC, true); }

static void test_unreliable_writes_are_not_thrown_away(void) { write_through_a_full_socket(RNIC_QPT_UC, true); }

static _Atomic bool forked;

static void *fork_once(void *arg) {
    (void)arg;
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    waitpid(pid, NULL, 0);
    atomic_store(&forked, true);
    return NULL;
}

/* In place of the wait for room: a fork, and the room. */
static void see_a_fork(void) {
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, fork_once, NULL), 0);
    for (int i = 0; i < 20000 && !atomic_load(&forked); i++)
        nap(1);
    CHECK(atomic_load(&forked));
    pthread_join(thread, NULL);
    atomic_store(&full, false);
}

static void test_a_fork_does_not_wait_for_a_device_that_waits_to_close(void) {
    struct rnic_mr *there;
    open_device(RNIC_QPT_UC);
    CHECK_EQ(ops->reg_mr(pd, target, sizeof target, RNIC_ACCESS_LOCAL_WRITE | RNIC_ACCESS_REMOTE_WRITE, &there, NULL),
             0);
    atomic_store(&full, true);
    post_all(there);
    for (int i = 0; i < 60000 && counted(RNIC_CNT_tx_waits) == 0; i++)
        nap(1);
    atomic_store(&forked, false);
    atomic_store(&meanwhile, see_a_fork);
    close_device(there);
    CHECK(atomic_load(&forked));
}

/* A link may stand still for a while, not for ever. */
static void test_a_socket_that_never_has_room_again_ends_in_an_error(void) {
    struct live l;
    recording = false;
    atomic_store(&full, false);
    live_open(&l, -1);
    struct rnic_qp *a = live_qp(&l), *b = live_qp(&l);
    live_join(&l, a, &l, b, 10, 1);
    atomic_store(&full, true);
    live_post(&l, a, RNIC_WR_RDMA_WRITE, 1, 0, 64, &l);
    CHECK_EQ(live_wait(&l).status, RNIC_WC_RETRY_EXC_ERR);
    atomic_store(&full, false);
    CHECK_EQ(l.ops->destroy_qp(a, NULL), 0);
    CHECK_EQ(l.ops->destroy_qp(b, NULL), 0);
    live_close(&l);
}

/* ---------------------------------------------------------------- datagrams, each of which goes its own way */

#define DATAGRAMS 150 /* some turns of a queue pair */
#define QKEY 17

static struct rnic_qp *datagram_qp(struct live *l) {
    struct rnic_qp_init_attr init = {
        .send_cq = l->cq, .recv_cq = l->cq, .cap = {DATAGRAMS, DATAGRAMS, 1, 1, 0}, .qp_type = RNIC_QPT_UD};
    struct rnic_qp_attr attr = {.qp_state = RNIC_QPS_INIT, .port_num = 1, .qkey = QKEY};
    struct rnic_qp *qp;
    CHECK_EQ(l->ops->create_qp(l->pd, &init, &qp, NULL), 0);
    CHECK_EQ(l->ops->modify_qp(qp, &attr, RNIC_QP_STATE | RNIC_QP_PKEY_INDEX | RNIC_QP_PORT | RNIC_QP_QKEY, NULL), 0);
    attr.qp_state = RNIC_QPS_RTR;
    CHECK_EQ(l->ops->modify_qp(qp, &attr, RNIC_QP_STATE, NULL), 0);
    attr.qp_state = RNIC_QPS_RTS;
    CHECK_EQ(l->ops->modify_qp(qp, &attr, RNIC_QP_STATE | RNIC_QP_SQ_PSN, NULL), 0);
    return qp;
}

static void send_datagrams(struct live *l, struct rnic_qp *qp, struct rnic_ah *ah, const struct rnic_qp *dest) {
    struct rnic_sge sge = {(uintptr_t)l->mem, 8, l->mr->lkey};
    struct rnic_send_wr wr[DATAGRAMS];
    const struct rnic_send_wr *bad;
    for (int i = 0; i < DATAGRAMS; i++) {
        wr[i] = (struct rnic_send_wr){.opcode = RNIC_WR_SEND, .sg_list = &sge, .num_sge = 1};
        wr[i].next = i + 1 < DATAGRAMS ? &wr[i + 1] : NULL;
        wr[i].wr.ud.ah = ah;
        wr[i].wr.ud.remote_qpn = dest->qp_num;
        wr[i].wr.ud.remote_qkey = QKEY;
    }
    CHECK_EQ(l->ops->post_send(qp, wr, &bad, NULL), 0);
}

static void test_datagrams_by_shared_memory_do_not_wait_for_the_wire(void) {
    struct live a, b, c;
    struct rnic_ah *ah;
    recording = false;
    atomic_store(&full, false);
    live_open(&a, 1);
    live_open(&b, 1);
    live_open(&c, -1);
    struct rnic_qp *ab = live_qp(&a), *ba = live_qp(&b), *ac = live_qp(&a), *ca = live_qp(&c);
    live_join(&a, ab, &b, ba, 14, 7); /* there is a lane now */
    live_join(&a, ac, &c, ca, 18, 7);
    live_post(&a, ab, RNIC_WR_RDMA_WRITE, 1, 0, 8, &b);
    live_post(&a, ac, RNIC_WR_RDMA_WRITE, 1, 0, 8, &c);
    CHECK_EQ(live_wait(&a).status, RNIC_WC_SUCCESS);
    CHECK_EQ(live_wait(&a).status, RNIC_WC_SUCCESS);
    struct rnic_qp *ud = datagram_qp(&a), *dest = datagram_qp(&b);
    struct rnic_ah_attr path = {.is_global = 1, .port_num = 1, .grh = {.dgid = b.gid.gid, .hop_limit = 64}};
    CHECK_EQ(a.ops->create_ah(a.pd, &path, &ah, NULL), 0);
    for (int i = 0; i < DATAGRAMS; i++)
        live_post_recv(&b, dest, 1, 0, 64);
    atomic_store(&full, true);
    live_post(&a, ac, RNIC_WR_RDMA_WRITE, 1, 0, 8, &c);
    send_datagrams(&a, ud, ah, dest);
    for (int i = 0; i < DATAGRAMS; i++)
        CHECK_EQ(live_wait(&b).status, RNIC_WC_SUCCESS);
    atomic_store(&full, false);
    CHECK_EQ(live_wait(&a).status, RNIC_WC_SUCCESS);
    CHECK_EQ(a.ops->destroy_ah(ah, NULL), 0);
    struct rnic_qp *const all[] = {ab, ba, ac, ca, ud, dest};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        CHECK_EQ(a.ops->destroy_qp(all[i], NULL), 0);
    live_close(&a);
    live_close(&b);
    live_close(&c);
}

int main(void) {
    live_isolate();
    RUN(test_a_batch_that_meets_a_full_socket_waits_and_is_sent_once);
    RUN(test_a_sink_says_that_it_has_no_room_when_a_full_batch_cannot_go);
    RUN(test_a_batch_waits_though_its_sender_has_gone);
    RUN(test_what_waits_for_a_port_that_closes_is_counted_as_lost);
    RUN(test_signals_do_not_end_the_wait_for_room);
    RUN(test_signals_do_not_make_the_wait_longer);
    RUN(test_a_packet_of_the_injectors_waits_too);
    RUN(test_what_the_injector_holds_waits_behind_what_waits);
    RUN(test_reliable_writes_wait_without_a_timeout);
    RUN(test_reliable_writes_wait_while_the_program_polls);
    RUN(test_unreliable_writes_are_not_thrown_away);
    RUN(test_a_fork_does_not_wait_for_a_device_that_waits_to_close);
    RUN(test_a_socket_that_never_has_room_again_ends_in_an_error);
    RUN(test_datagrams_by_shared_memory_do_not_wait_for_the_wire);
    return check_done();
}
