/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue pairs that end, or are kept from it: what their peers have been promised holds.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "dev/dev.h"
#include "live.h"
#include "mem/remote.h"
#include "nic_heap.h"

#define LONG 16384u /* bytes that a lane carries by reference */
#define FOREVER 0   /* a timeout */

/* ---------------------------------------------------------------- a socket that is full */

static _Atomic int full_fd = -1;

/* In the C library's place: the link calls it to send and to receive. */
/* It reads six arguments, however many there are. */
__attribute__((no_sanitize("address"))) long syscall(long number, ...) {
    long a[6];
    va_list ap;
    va_start(ap, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(ap, long);
    va_end(ap);
    if ((number == SYS_sendto || number == SYS_sendmsg) && a[0] == atomic_load(&full_fd)) {
        errno = EAGAIN;
        return -1;
    }
    return live_syscall(number, a);
}

static struct live a, b, c;

static struct dev *dev(const struct live *l) { return dev_of(l->ctx); }

static int destroy(struct live *l, struct rnic_qp *qp) { return l->ops->destroy_qp(qp, NULL); }

struct release {
    struct live *of;
    struct qp *qp;
    _Atomic bool over;
};

/* The socket has room again when the queue pair's end waits for it, or has not waited. */
static void *release(void *arg) {
    struct release *r = arg;
    bool waits = false;
    while (!waits && !atomic_load(&r->over)) {
        live_nap();
        dev_lock(dev(r->of));
        waits = !atomic_load(&r->over) && r->qp->leaving;
        dev_unlock(dev(r->of));
    }
    atomic_store(&full_fd, -1);
    return NULL;
}

/* The first ACK is the batch that waits, the second has no room. */
static void send_without_room(struct rnic_qp *from[2], struct rnic_qp *to[2]) {
    live_open(&a, -1);
    live_open(&b, -1);
    for (int i = 0; i < 2; i++) {
        from[i] = live_qp(&a);
        to[i] = live_qp(&b);
        live_join(&a, from[i], &b, to[i], 16, 1);
        live_post_recv(&b, to[i], 10, 0, 64);
    }
    atomic_store(&full_fd, dev(&b)->net.ports[0].tx_fd);
    for (int i = 0; i < 2; i++) {
        live_post(&a, from[i], RNIC_WR_SEND, (uint64_t)i, 0, 64, &b);
        CHECK_EQ(live_wait(&b).status, RNIC_WC_SUCCESS);
    }
}

static void test_the_last_ack_waits_for_room(void) {
    struct rnic_qp *from[2], *to[2];
    send_without_room(from, to);
    struct release r = {.of = &b, .qp = (struct qp *)to[1]};
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, release, &r), 0);
    CHECK_EQ(destroy(&b, to[1]), 0);
    atomic_store(&r.over, true);
    pthread_join(thread, NULL);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(live_wait(&a).status, RNIC_WC_SUCCESS);
    CHECK_EQ(destroy(&b, to[0]), 0);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(destroy(&a, from[i]), 0);
    live_close(&a);
    live_close(&b);
}

static void *end_queue_pair(void *qp) {
    const struct rnic_qp_attr err = {.qp_state = RNIC_QPS_ERR};
    return (void *)(intptr_t)b.ops->modify_qp(qp, &err, RNIC_QP_STATE, NULL);
}

static void *destroy_queue_pair(void *qp) { return (void *)(intptr_t)destroy(&b, qp); }

static bool is_leaving(struct rnic_qp *qp) {
    dev_lock(dev(&b));
    bool leaving = ((struct qp *)qp)->leaving;
    dev_unlock(dev(&b));
    return leaving;
}

/* One thread ends a queue pair, and waits for room for its last ACK.  Others that come meanwhile have their turn behind it. */
static void two_threads_end(void *(*second)(void *), intptr_t rc) {
    pthread_t threads[2];
    void *result[2];
    struct rnic_qp *from[2], *to[2];
    send_without_room(from, to);
    CHECK_EQ(pthread_create(&threads[0], NULL, end_queue_pair, to[1]), 0);
    while (!is_leaving(to[1]))
        live_nap();
    CHECK_EQ(pthread_create(&threads[1], NULL, second, to[1]), 0);
    for (int i = 0; i < 20; i++) /* it comes meanwhile, most likely */
        live_nap();
    atomic_store(&full_fd, -1);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_join(threads[i], &result[i]), 0);
    CHECK_EQ((intptr_t)result[0], 0);
    CHECK_EQ((intptr_t)result[1], rc);
    if (second != destroy_queue_pair)
        CHECK_EQ(destroy(&b, to[1]), 0);
    CHECK_EQ(destroy(&b, to[0]), 0);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(destroy(&a, from[i]), 0);
    live_close(&a);
    live_close(&b);
}

static void test_two_threads_end_a_queue_pair_at_once(void) {
    two_threads_end(end_queue_pair, 0);
    two_threads_end(destroy_queue_pair, 0);
}

static bool watches_room(const struct dev *d) {
    for (size_t i = 0; i < NETDEV_MAX_GIDS; i++) {
        if ((d->net.watched_rx[i].events | d->net.watched_tx[i].events) & EPOLLOUT)
            return true;
    }
    return false;
}

/* Nobody else may send anything for long. */
static void test_somebody_looks_for_room_for_a_last_ack(void) {
    struct rnic_sge sge;
    const struct rnic_send_wr *bad;
    live_open(&a, -1);
    live_open(&b, -1);
    struct rnic_qp *from = live_qp(&a), *to = live_qp(&b);
    live_join(&a, from, &b, to, 16, 7);
    live_post_recv(&b, to, 10, 0, 64);
    struct qp *qp = (struct qp *)to;
    ((struct qp *)from)->sq_sig_all = false; /* what completes silently is acknowledged later */
    sge = (struct rnic_sge){(uintptr_t)a.mem, 64, a.mr->lkey};
    struct rnic_send_wr wr = {.opcode = RNIC_WR_SEND, .sg_list = &sge, .num_sge = 1};
    dev_lock(dev(&b));
    CHECK_EQ(a.ops->post_send(from, &wr, &bad, NULL), 0);
    while (!qp->counters.value[RNIC_CNT_requests_executed])
        progress(&dev(&b)->run, run_clock(), true);
    atomic_store(&full_fd, dev(&b)->net.ports[0].tx_fd);
    sched_settle(&dev(&b)->run, qp);
    CHECK(!dev(&b)->net.tx.link.full || watches_room(dev(&b)));
    dev_unlock(dev(&b));
    atomic_store(&full_fd, -1);
    CHECK_EQ(live_wait(&b).status, RNIC_WC_SUCCESS);
    CHECK_EQ(destroy(&a, from), 0);
    CHECK_EQ(destroy(&b, to), 0);
    live_close(&a);
    live_close(&b);
}

/* ---------------------------------------------------------------- peers that are inside a copy */

static struct lane *lane_between(const struct live *l, const struct rnic_qp *peer) {
    for (struct lane *at = dev(l)->host.here.lanes; at; at = at->next) {
        for (uint32_t i = 0; i < at->peer.nslots; i++) {
            if (at->state == LANE_UP && at->peer.slots[i] == qpn_slot(peer->qp_num))
                return at;
        }
    }
    check_fail(__FILE__, __LINE__, "there is no lane");
}

static struct lane *entered;

/* As if the peer's process had been stopped in the middle. */
static void stand_still(const struct live *l, const struct rnic_qp *peer) {
    entered = lane_between(l, peer);
    atomic_fetch_add(&entered->in.mem->mark, 1);
}

/* By the same lane: where both ends have asked late there may be another by now. */
static void go_on(void) { atomic_fetch_add(&entered->in.mem->mark, 1); }

/* Two queue pairs of which each knows that the other is on this host. */
static void join_locally(struct live *l, struct rnic_qp *qp, struct live *m, struct rnic_qp *peer) {
    live_join(l, qp, m, peer, FOREVER, 0);
    live_post(l, qp, RNIC_WR_RDMA_WRITE, 1, 0, 8, m);
    CHECK_EQ(live_wait(l).status, RNIC_WC_SUCCESS);
    live_post(m, peer, RNIC_WR_RDMA_WRITE, 1, 8, 8, l);
    CHECK_EQ(live_wait(m).status, RNIC_WC_SUCCESS);
    CHECK_EQ(((struct qp *)qp)->reach, REACH_LOCAL);
}

static void test_a_peer_that_stands_still_keeps_up_its_own_queue_pairs_alone(void) {
    live_open(&a, 1);
    live_open(&b, 1);
    live_open(&c, 1);
    struct rnic_qp *ab = live_qp(&a), *ba = live_qp(&b), *ac = live_qp(&a), *ca = live_qp(&c);
    join_locally(&a, ab, &b, ba);
    join_locally(&a, ac, &c, ca);
    stand_still(&a, ca);
    CHECK_EQ(destroy(&a, ab), 0);
    CHECK_EQ(destroy(&a, ac), -EBUSY);
    go_on();
    CHECK_EQ(destroy(&a, ac), 0);
    CHECK_EQ(destroy(&b, ba), 0);
    CHECK_EQ(destroy(&c, ca), 0);
    live_close(&a);
    live_close(&b);
    live_close(&c);
}

static void test_a_context_that_cannot_be_closed_with_all_keeps_it(void) {
    struct rnic_mr *mr;
    live_open(&a, 1);
    live_open(&b, 1);
    struct rnic_qp *ab = live_qp(&a), *ba = live_qp(&b);
    join_locally(&a, ab, &b, ba);
    struct rnic_qp *newest = live_qp(&a); /* which would be the first one to go */
    CHECK_EQ(a.ops->reg_mr(a.pd, a.mem, 64, 0, &mr, NULL), 0);
    stand_still(&a, ba);
    CHECK_EQ(a.ops->close_all(a.ctx, NULL), -EBUSY);
    go_on();
    CHECK_EQ(destroy(&a, newest), 0);
    CHECK_EQ(destroy(&a, ab), 0);
    CHECK_EQ(a.ops->dereg_mr(mr, NULL), 0);
    CHECK_EQ(destroy(&b, ba), 0);
    live_close(&a);
    live_close(&b);
}

#define HEAP_LONG 65536u
static uint8_t *heap; /* memory that the program has allocated in a file, as of librnic_heap.so */
static int heap_fd;

bool rnic_heap_find(const void *addr, uint64_t length, struct rnic_heap_place *place) {
    struct stat st;
    uint64_t offset = (uint64_t)((const uint8_t *)addr - heap);
    if (!heap || fstat(heap_fd, &st))
        return false;
    *place = (struct rnic_heap_place){heap_fd, st.st_ino, offset};
    return (const uint8_t *)addr >= heap && offset + length <= HEAP_LONG;
}

static void make_heap(void) {
    heap_fd = memfd_create(RNIC_HEAP_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_EQ(ftruncate(heap_fd, HEAP_LONG), 0);
    CHECK_EQ(fcntl(heap_fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    heap = mmap(NULL, HEAP_LONG, PROT_READ | PROT_WRITE, MAP_SHARED, heap_fd, 0);
    CHECK(heap != MAP_FAILED);
    memset(heap, 0x5A, HEAP_LONG);
}

/* A peer may be reading it by itself, so that nothing but its mark tells that it has left. */
static void test_memory_of_the_heap_goes_when_no_peer_is_inside(void) {
    struct rnic_mr *mr;
    live_open(&a, 1);
    live_open(&b, 1);
    struct rnic_qp *ab = live_qp(&a), *ba = live_qp(&b);
    join_locally(&a, ab, &b, ba);
    make_heap();
    CHECK_EQ(a.ops->reg_mr(a.pd, heap + 100, 1000, RNIC_ACCESS_REMOTE_READ, &mr, NULL), 0);
    CHECK(((struct mr *)mr)->is_mapped);
    struct rnic_sge sge = {(uintptr_t)b.mem, 1000, b.mr->lkey};
    struct rnic_send_wr wr = {.opcode = RNIC_WR_RDMA_READ,
                              .send_flags = RNIC_SEND_SIGNALED,
                              .sg_list = &sge,
                              .num_sge = 1,
                              .wr.rdma = {(uintptr_t)heap + 100, mr->rkey}};
    const struct rnic_send_wr *bad;
    uint64_t before = dev(&b)->nic.counters.value[RNIC_CNT_local_direct];
    CHECK_EQ(b.ops->post_send(ba, &wr, &bad, NULL), 0);
    CHECK_EQ(live_wait(&b).status, RNIC_WC_SUCCESS);
    CHECK(!memcmp(b.mem, heap, 1000));
    CHECK_EQ(dev(&b)->nic.counters.value[RNIC_CNT_local_direct], before + 1);
    CHECK(remote_maps(lane_between(&b, ab)->remote, mr->rkey));
    stand_still(&a, ba);
    CHECK_EQ(a.ops->dereg_mr(mr, NULL), -EBUSY);
    go_on();
    CHECK_EQ(a.ops->dereg_mr(mr, NULL), 0);
    CHECK_EQ(destroy(&a, ab), 0);
    CHECK_EQ(destroy(&b, ba), 0);
    live_close(&a);
    live_close(&b);
    munmap(heap, HEAP_LONG);
    close(heap_fd);
    heap = NULL;
}

/* Two SENDs lie in the ring, then something becomes of their queue pair that is no end.  Neither is lost, as the second one
 * without the first would be refused, and there are no retries. */
static void sends_survive(int (*happens)(struct rnic_qp *qp, struct rnic_qp *peer), int rc) {
    live_open(&a, 1);
    live_open(&b, 1);
    struct rnic_qp *ab = live_qp(&a), *ba = live_qp(&b);
    join_locally(&a, ab, &b, ba);
    memset(a.mem, 0xA5, 2 * LONG);
    live_post_recv(&b, ba, 9, 0, 64);
    for (uint64_t i = 0; i < 2; i++)
        live_post_recv(&b, ba, 10 + i, LONG * i, LONG);
    live_post(&a, ab, RNIC_WR_SEND, 9, 0, 64, &b); /* its answer tells of the receives */
    CHECK_EQ(live_wait(&a).status, RNIC_WC_SUCCESS);
    CHECK_EQ(live_wait(&b).status, RNIC_WC_SUCCESS);
    dev_lock(dev(&b));
    for (uint64_t i = 0; i < 2; i++)
        live_post(&a, ab, RNIC_WR_SEND, i, LONG * i, LONG, &b);
    CHECK(((struct qp *)ab)->exposed);
    CHECK_EQ(happens(ab, ba), rc);
    dev_unlock(dev(&b));
    for (uint64_t i = 0; i < 2; i++) {
        CHECK_EQ(live_wait(&b).status, RNIC_WC_SUCCESS);
        CHECK_EQ(live_wait(&a).status, RNIC_WC_SUCCESS);
    }
    CHECK(!memcmp(b.mem, a.mem, 2 * LONG));
    CHECK_EQ(destroy(&a, ab), 0);
    CHECK_EQ(destroy(&b, ba), 0);
    live_close(&a);
    live_close(&b);
}

static int lose_a_right(struct rnic_qp *qp, struct rnic_qp *peer) {
    struct rnic_qp_attr attr = {.qp_access_flags = RNIC_ACCESS_REMOTE_WRITE};
    (void)peer;
    return a.ops->modify_qp(qp, &attr, RNIC_QP_ACCESS_FLAGS, NULL);
}

static int destroy_with_an_event(struct rnic_qp *qp, struct rnic_qp *peer) {
    struct rnic_async_event event;
    (void)peer;
    qp_event((struct qp *)qp, RNIC_EVENT_COMM_EST);
    CHECK(event_take(&dev(&a)->nic.events, &event));
    int rc = destroy(&a, qp);
    CHECK_EQ(event_ack(&dev(&a)->nic.events, event.context), 0);
    return rc;
}

static int destroy_while_the_peer_stands_still(struct rnic_qp *qp, struct rnic_qp *peer) {
    stand_still(&a, peer);
    int rc = destroy(&a, qp);
    go_on();
    return rc;
}

static void test_fewer_rights_take_nothing_back(void) { sends_survive(lose_a_right, 0); }

static void test_an_event_that_is_not_acknowledged_takes_nothing_back(void) {
    sends_survive(destroy_with_an_event, -EBUSY);
}

static void test_an_end_that_fails_takes_nothing_back(void) {
    sends_survive(destroy_while_the_peer_stands_still, -EBUSY);
}

/* ---------------------------------------------------------------- what has come before the end */

/* From here on the device takes in what comes when a call of the test does. */
static void stop_engine(const struct live *l) {
    struct run *run = &dev(l)->run;
    atomic_store(&run->stop, true);
    engine_wake(run);
    pthread_join(run->thread, NULL);
    run->thread_runs = false;
}

static int enter(struct live *l, struct rnic_qp *qp, int state) {
    return l->ops->modify_qp(qp, &(struct rnic_qp_attr){.qp_state = state}, RNIC_QP_STATE, NULL);
}

static int to_err(struct live *l, struct rnic_qp *qp) { return enter(l, qp, RNIC_QPS_ERR); }

static int to_reset(struct live *l, struct rnic_qp *qp) { return enter(l, qp, RNIC_QPS_RESET); }

/* local: by shared memory, else by the wire */
static void join_for_sends(int local, struct rnic_qp **from, struct rnic_qp **to) {
    live_open(&a, local);
    live_open(&b, local);
    *from = live_qp(&a);
    *to = live_qp(&b);
    if (local > 0)
        join_locally(&a, *from, &b, *to);
    else
        live_join(&a, *from, &b, *to, 14, 1);
}

static void close_both(void) {
    live_close(&a);
    live_close(&b);
}

/* The peer has the message and has ended; its ACK lies unread at the sender's, behind others if there are many. */
static void a_send_that_has_arrived_succeeds(int local, uint64_t sends) {
    struct rnic_qp *from, *to;
    join_for_sends(local, &from, &to);
    for (uint64_t i = 0; i < sends; i++)
        live_post_recv(&b, to, i, 0, 64);
    stop_engine(&a);
    for (uint64_t i = 0; i < sends; i++) {
        live_post(&a, from, RNIC_WR_SEND, i, 0, 64, &b);
        CHECK_EQ(live_wait(&b).status, RNIC_WC_SUCCESS);
    }
    CHECK_EQ(destroy(&b, to), 0);
    CHECK_EQ(to_err(&a, from), 0);
    for (uint64_t i = 0; i < sends; i++) {
        struct rnic_wc wc = live_wait(&a);
        CHECK_EQ(wc.wr_id, i);
        CHECK_EQ(wc.status, RNIC_WC_SUCCESS);
    }
    CHECK_EQ(destroy(&a, from), 0);
    close_both();
}

static void test_a_send_whose_ack_is_unread_is_not_flushed(void) {
    a_send_that_has_arrived_succeeds(1, 1);
    a_send_that_has_arrived_succeeds(-1, 1);
    a_send_that_has_arrived_succeeds(-1, 64);
}

/* The receiver's queue pair ends while a SEND lies unread: the sender hears that it was taken. */
static void a_send_that_lies_unread_is_taken(int local, int (*end)(struct live *, struct rnic_qp *)) {
    struct rnic_qp *from, *to;
    join_for_sends(local, &from, &to);
    live_post_recv(&b, to, 7, 0, 64);
    stop_engine(&b);
    live_post(&a, from, RNIC_WR_SEND, 1, 0, 64, &b);
    CHECK_EQ(end(&b, to), 0);
    CHECK_EQ(live_wait(&a).status, RNIC_WC_SUCCESS);
    if (end == to_err)
        CHECK_EQ(live_wait(&b).status, RNIC_WC_SUCCESS);
    if (end != destroy)
        CHECK_EQ(destroy(&b, to), 0);
    CHECK_EQ(destroy(&a, from), 0);
    close_both();
}

static void test_a_send_that_lies_unread_is_taken_before_the_end(void) {
    for (int local = -1; local <= 1; local += 2) {
        a_send_that_lies_unread_is_taken(local, to_err);
        a_send_that_lies_unread_is_taken(local, to_reset);
        a_send_that_lies_unread_is_taken(local, destroy);
    }
}

/* ---------------------------------------------------------------- what has come while others had the processor */

/* When this thread lets others go first: engines do so, too, at any time. */
static _Thread_local void (*others_turn)(void);

/* In the place of libc's: a busy machine. */
int sched_yield(void) {
    void (*turn)(void) = others_turn;
    others_turn = NULL;
    if (turn)
        turn();
    return 0;
}

static struct rnic_qp *peers_qp;

static void peer_sends(void) { live_post(&b, peers_qp, RNIC_WR_SEND, 1, 0, 64, &a); }

/* The poll that has let others go first must not say that nothing is there: the event of the connection's end may be. */
static void a_poll_that_let_others_go_first_looks_again(int local) {
    struct rnic_qp *to;
    struct rnic_wc wc;
    int got = 0;
    join_for_sends(local, &to, &peers_qp);
    live_post_recv(&a, to, 7, 0, 64);
    stop_engine(&a);
    others_turn = peer_sends;
    while (others_turn)
        got = a.ops->poll_cq(a.cq, 1, &wc);
    CHECK_EQ(got, 1);
    CHECK_EQ(wc.wr_id, 7);
    CHECK_EQ(destroy(&a, to), 0);
    CHECK_EQ(destroy(&b, peers_qp), 0);
    close_both();
}

static void test_a_poll_that_let_others_go_first_looks_again(void) {
    a_poll_that_let_others_go_first_looks_again(1);
    a_poll_that_let_others_go_first_looks_again(-1);
}

int main(void) {
    live_isolate();
    RUN(test_a_poll_that_let_others_go_first_looks_again);
    RUN(test_a_send_whose_ack_is_unread_is_not_flushed);
    RUN(test_a_send_that_lies_unread_is_taken_before_the_end);
    RUN(test_the_last_ack_waits_for_room);
    RUN(test_two_threads_end_a_queue_pair_at_once);
    RUN(test_somebody_looks_for_room_for_a_last_ack);
    RUN(test_a_peer_that_stands_still_keeps_up_its_own_queue_pairs_alone);
    RUN(test_a_context_that_cannot_be_closed_with_all_keeps_it);
    RUN(test_memory_of_the_heap_goes_when_no_peer_is_inside);
    RUN(test_fewer_rights_take_nothing_back);
    RUN(test_an_event_that_is_not_acknowledged_takes_nothing_back);
    RUN(test_an_end_that_fails_takes_nothing_back);
    return check_done();
}
