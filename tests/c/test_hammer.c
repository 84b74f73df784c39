/* SPDX-License-Identifier: Apache-2.0
 *
 * Random calls from four threads on shared objects, by the operations table alone: create, post, poll, modify, reset,
 * re-register, count, fork, close.  Nothing is asked of their results but that they are ones that a call can have, that
 * nothing hangs, and that all can be closed at the end; the sanitizers see the rest (make ctest, make tsan).
 *
 * A thread that destroys an object has it to itself, as the API demands; all other calls meet each other.
 * SEED chooses the calls, SECONDS_EACH says how long they go on; 1 by default.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "ext.h"
#include "live.h"
#include "nic.h"

#define THREADS 4
#define QPS 6
#define MRS 3
#define BYTES 8192
#define DEPTH 16
#define INLINE_MOST 64
#define HANG_S 300

static struct rnic_context *ctx;
static const struct rnic_ops *ops;
static const struct rnic_ext_behind *behind;
static struct rnic_gid_entry here;
static struct rnic_pd *pd;
static struct rnic_comp_channel *channel;
static struct rnic_cq *cqs[2];
static struct rnic_srq *srq;
static struct rnic_comp_cntr *cntr;
static uint8_t memory[2][BYTES], constant[INLINE_MOST];
static _Atomic bool stop;
static _Atomic uint64_t calls;

struct slot { /* an object; who destroys it holds the lock alone */
    pthread_rwlock_t lock;
    union {
        struct rnic_qp *qp;
        struct rnic_mr *mr;
        struct rnic_ah *ah;
        struct rnic_mw *mw;
        struct rnic_wq *wq;
    };
    uint64_t base; /* of a region, as it was made: what it is now another thread may be changing */
    bool ours;     /* in memory[] */
};

static struct slot qps[QPS], mrs[MRS], ah, mw, wq;

struct dice {
    uint64_t state;
};

static uint32_t roll(struct dice *d, uint32_t n) {
    d->state ^= d->state << 13;
    d->state ^= d->state >> 7;
    d->state ^= d->state << 17;
    return (uint32_t)(d->state >> 32) % n;
}

/* Of a call beside others; whatever is none of these is a mistake. */
static int may(int rc) {
    static const int known[] = {EINVAL, ENOMEM, EBUSY, EOPNOTSUPP, EAGAIN, EFAULT, EOVERFLOW, EPERM};
    bool good = rc >= 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        good |= rc == -known[i];
    if (!good) {
        printf("a call returned %d\n", rc);
        abort();
    }
    atomic_fetch_add(&calls, 1);
    return rc;
}

static struct slot *hold(struct slot *s) {
    pthread_rwlock_rdlock(&s->lock);
    return s;
}

static void let_go(struct slot *s) { pthread_rwlock_unlock(&s->lock); }

/* ---------------------------------------------------------------- objects that come and go */

static void turn_qp(struct dice *d) {
    static const int types[] = {RNIC_QPT_RC, RNIC_QPT_RC, RNIC_QPT_UC, RNIC_QPT_UD};
    struct slot *s = &qps[roll(d, QPS)];
    pthread_rwlock_wrlock(&s->lock);
    if (s->qp) {
        if (may(ops->destroy_qp(s->qp, NULL)) == 0)
            s->qp = NULL;
    } else {
        int type = types[roll(d, 4)];
        struct rnic_qp_init_attr init = {.qp_context = s,
                                         .send_cq = cqs[roll(d, 2)],
                                         .recv_cq = cqs[roll(d, 2)],
                                         .srq = type == RNIC_QPT_RC && roll(d, 2) ? srq : NULL,
                                         .cap = {DEPTH, DEPTH, 2, 2, INLINE_MOST},
                                         .qp_type = type,
                                         .sq_sig_all = (int)roll(d, 2)};
        may(ops->create_qp(pd, &init, &s->qp, NULL));
    }
    pthread_rwlock_unlock(&s->lock);
}

#define ALL_ACCESS 0x1F /* and that a window be bound to it */

static void turn_mr(struct dice *d) {
    struct slot *s = &mrs[roll(d, MRS)];
    pthread_rwlock_wrlock(&s->lock);
    if (s->mr) {
        if (may(ops->dereg_mr(s->mr, NULL)) == 0)
            s->mr = NULL;
    } else if (roll(d, 2)) {
        may(ops->reg_mr(pd, memory[roll(d, 2)], BYTES, ALL_ACCESS, &s->mr, NULL));
    } else {
        may(ext_memory(ctx)->alloc_mr(pd, BYTES, ALL_ACCESS, &s->mr, NULL));
    }
    s->base = s->mr ? s->mr->iova : 0;
    s->ours = s->base >= (uintptr_t)memory && s->base < (uintptr_t)(memory + 2);
    pthread_rwlock_unlock(&s->lock);
}

static void turn_ah(struct dice *d) {
    struct rnic_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = here.gid, .hop_limit = 64}};
    (void)d;
    pthread_rwlock_wrlock(&ah.lock);
    if (ah.ah && may(ops->destroy_ah(ah.ah, NULL)) == 0)
        ah.ah = NULL;
    else if (!ah.ah)
        may(ops->create_ah(pd, &to, &ah.ah, NULL));
    pthread_rwlock_unlock(&ah.lock);
}

static void turn_mw(struct dice *d) {
    pthread_rwlock_wrlock(&mw.lock);
    if (mw.mw && may(ops->dealloc_mw(mw.mw, NULL)) == 0)
        mw.mw = NULL;
    else if (!mw.mw)
        may(ops->alloc_mw(pd, roll(d, 2) ? RNIC_MW_TYPE_1 : RNIC_MW_TYPE_2, &mw.mw, NULL));
    pthread_rwlock_unlock(&mw.lock);
}

static void turn_wq(struct dice *d) {
    struct rnic_wq_init_attr init = {
        .wq_context = &wq, .wq_type = RNIC_WQT_RQ, .max_wr = DEPTH, .max_sge = 1, .pd = pd, .cq = cqs[roll(d, 2)]};
    pthread_rwlock_wrlock(&wq.lock);
    if (wq.wq && may(ops->destroy_wq(wq.wq, NULL)) == 0)
        wq.wq = NULL;
    else if (!wq.wq)
        may(ops->create_wq(ctx, &init, &wq.wq, NULL));
    pthread_rwlock_unlock(&wq.lock);
}

static void turn_device(struct dice *d) {
    struct rnic_context *own;
    if (roll(d, 20))
        return;
    if (may(rnic_soft.open("roce_lo", NULL, &own, NULL)) == 0)
        may(own->ops->close(own, NULL));
}

/* The child has no device, and says so. */
static void fork_once(struct dice *d) {
    struct rnic_port_attr port;
    struct rnic_pd *none;
    if (roll(d, 20))
        return;
    pid_t pid = fork();
    if (pid == 0) {
        bool dead = ops->alloc_pd(ctx, &none, NULL) == -EINVAL && ops->query_port(ctx, 1, &port, NULL) == 0;
        _exit(dead ? 0 : 1);
    }
    int status = 1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
        abort();
}

/* ---------------------------------------------------------------- what is done to them */

static void move_on(struct dice *d) {
    static const uint32_t init = RNIC_QP_STATE | RNIC_QP_PKEY_INDEX | RNIC_QP_PORT;
    struct slot *s = hold(&qps[roll(d, QPS)]);
    struct rnic_qp_attr a = {.port_num = 1, .qkey = 7, .qp_access_flags = 0xF};
    if (!s->qp) {
        let_go(s);
        return;
    }
    switch (roll(d, 6)) {
    case 0:
        a.qp_state = RNIC_QPS_RESET;
        may(ops->modify_qp(s->qp, &a, RNIC_QP_STATE, NULL));
        break;
    case 1:
        a.qp_state = RNIC_QPS_ERR;
        may(ops->modify_qp(s->qp, &a, RNIC_QP_STATE, NULL));
        break;
    case 2:
        a.qp_state = roll(d, 2) ? RNIC_QPS_SQD : RNIC_QPS_RTS;
        may(ops->modify_qp(s->qp, &a, RNIC_QP_STATE, NULL));
        break;
    default:
        if (s->qp->qp_type == RNIC_QPT_UD) {
            a.qp_state = RNIC_QPS_INIT;
            may(ops->modify_qp(s->qp, &a, init | RNIC_QP_QKEY, NULL));
            a.qp_state = RNIC_QPS_RTR;
            may(ops->modify_qp(s->qp, &a, RNIC_QP_STATE, NULL));
            a.qp_state = RNIC_QPS_RTS;
            may(ops->modify_qp(s->qp, &a, RNIC_QP_STATE | RNIC_QP_SQ_PSN, NULL));
        } else {
            may(live_connect(s->qp, &here, s->qp->qp_num)); /* of UC only as far as INIT */
        }
    }
    let_go(s);
}

static void post_send(struct dice *d) {
    static const int opcodes[] = {RNIC_WR_SEND, RNIC_WR_RDMA_WRITE, RNIC_WR_RDMA_READ, RNIC_WR_ATOMIC_FETCH_AND_ADD,
                                  RNIC_WR_SEND_WITH_IMM};
    struct slot *s = hold(&qps[roll(d, QPS)]), *m = hold(&mrs[roll(d, MRS)]), *to = hold(&ah), *window = hold(&mw);
    const struct rnic_send_wr *bad;
    if (s->qp && m->mr) {
        uint64_t base = m->base;
        int opcode = s->qp->qp_type == RNIC_QPT_UD ? RNIC_WR_SEND : opcodes[roll(d, 5)];
        bool atomic = opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD;
        bool inlined = opcode == RNIC_WR_SEND && roll(d, 2);
        struct rnic_sge sge = {base, atomic ? 8 : roll(d, 2) ? 16 : 4096, m->mr->lkey};
        if (inlined)
            sge = (struct rnic_sge){(uintptr_t)constant, sizeof constant, 0};
        struct rnic_send_wr wr[2] = {{.opcode = opcode, .sg_list = &sge, .num_sge = 1}};
        wr[0].send_flags = (inlined ? RNIC_SEND_INLINE : 0u) | (roll(d, 4) ? RNIC_SEND_SIGNALED : 0u);
        if (s->qp->qp_type == RNIC_QPT_UD)
            wr[0].wr.ud.ah = to->ah, wr[0].wr.ud.remote_qpn = s->qp->qp_num, wr[0].wr.ud.remote_qkey = 7;
        else if (atomic)
            wr[0].wr.atomic.remote_addr = base, wr[0].wr.atomic.rkey = m->mr->rkey;
        else
            wr[0].wr.rdma.remote_addr = base, wr[0].wr.rdma.rkey = m->mr->rkey;
        wr[1] = wr[0];
        if (roll(d, 2))
            wr[0].next = &wr[1];
        may(roll(d, 2) ? ops->post_send(s->qp, wr, &bad, NULL) : ops->post_send_whole(s->qp, wr, &bad, NULL));
        struct rnic_mw_bind bind = {.bind_info = {m->mr, base, 64, RNIC_ACCESS_REMOTE_READ}};
        if (window->mw && window->mw->type == RNIC_MW_TYPE_1 && roll(d, 8) == 0)
            may(ops->bind_mw(s->qp, window->mw, &bind, NULL));
    }
    let_go(window);
    let_go(to);
    let_go(m);
    let_go(s);
}

/* Pairs that go on from one another, and those that do not. */
static void post_behind(struct dice *d) {
    struct slot *s = hold(&qps[roll(d, QPS)]), *m = hold(&mrs[roll(d, MRS)]);
    if (s->qp && m->mr && s->qp->qp_type != RNIC_QPT_UD) {
        for (uint32_t i = roll(d, 8); i < 8; i++) {
            struct rnic_sge at = {m->base + 64 * i, 64, m->mr->lkey}, value = {(uintptr_t)constant, 8, 0};
            struct rnic_send_wr word = {
                .opcode = RNIC_WR_RDMA_WRITE, .send_flags = RNIC_SEND_INLINE, .sg_list = &value, .num_sge = 1};
            struct rnic_send_wr piece = {.next = &word, .opcode = RNIC_WR_RDMA_WRITE, .sg_list = &at, .num_sge = 1};
            piece.wr.rdma.remote_addr = at.addr, piece.wr.rdma.rkey = m->mr->rkey;
            word.wr.rdma.remote_addr = m->base + 1024, word.wr.rdma.rkey = m->mr->rkey;
            behind->post_send(s->qp, &piece);
        }
    }
    let_go(m);
    let_go(s);
}

static void post_receive(struct dice *d) {
    struct slot *s = hold(&qps[roll(d, QPS)]), *m = hold(&mrs[roll(d, MRS)]), *w = hold(&wq);
    const struct rnic_recv_wr *bad;
    if (m->mr) {
        struct rnic_sge sge = {m->base, 4096, m->mr->lkey};
        struct rnic_recv_wr wr[2] = {{.next = &wr[1], .sg_list = &sge, .num_sge = 1}, {.sg_list = &sge, .num_sge = 1}};
        uint32_t which = roll(d, 3);
        if (which == 0)
            may(ops->post_srq_recv(srq, wr, &bad, NULL));
        else if (which == 1 && w->wq)
            may(ops->post_wq_recv(w->wq, wr, &bad, NULL));
        else if (s->qp)
            may(ops->post_recv(s->qp, wr, &bad, NULL));
    }
    let_go(w);
    let_go(m);
    let_go(s);
}

static void poll_cq(struct dice *d) {
    struct rnic_wc wc[8];
    may(ops->poll_cq(cqs[roll(d, 2)], 8, wc));
}

static void change_mr(struct dice *d) {
    struct slot *m = hold(&mrs[roll(d, MRS)]);
    if (m->mr && m->ours)
        may(ops->rereg_mr(m->mr, RNIC_REREG_MR_CHANGE_TRANSLATION | RNIC_REREG_MR_CHANGE_ACCESS, NULL,
                          memory[roll(d, 2)], BYTES, roll(d, 2) ? ALL_ACCESS : RNIC_ACCESS_REMOTE_READ, NULL));
    let_go(m);
}

static void change_queues(struct dice *d) {
    struct slot *w = hold(&wq);
    struct rnic_wq_attr state = {.attr_mask = RNIC_WQ_ATTR_STATE, .wq_state = (int)roll(d, 3)};
    struct rnic_srq_attr shared = {.max_wr = DEPTH + roll(d, 32), .srq_limit = roll(d, DEPTH)};
    if (w->wq)
        may(ops->modify_wq(w->wq, &state, NULL));
    let_go(w);
    may(ops->modify_srq(srq, &shared, RNIC_SRQ_MAX_WR | RNIC_SRQ_LIMIT, NULL));
    may(ops->resize_cq(cqs[roll(d, 2)], 4096 << roll(d, 2), NULL));
    may(ops->req_notify_cq(cqs[0], 0, NULL));
}

static void ask(struct dice *d) {
    struct slot *s = hold(&qps[roll(d, QPS)]);
    struct rnic_qp_stats stats;
    struct rnic_qp_attr attr;
    struct rnic_qp_init_attr init;
    struct rnic_counters counters;
    if (s->qp) {
        may(ext_stats(ctx)->query_qp(s->qp, &stats, NULL));
        may(ops->query_qp(s->qp, &attr, &init, NULL));
        if (roll(d, 4) == 0)
            may(ops->attach_comp_cntr(s->qp, cntr, RNIC_COMP_CNTR_OP_SEND, NULL));
    }
    let_go(s);
    may(ext_stats(ctx)->query_counters(ctx, &counters, NULL));
}

static void take_events(struct dice *d) {
    struct rnic_async_event event;
    struct rnic_cq *cq;
    (void)d;
    if (may(ops->get_async_event(ctx, &event, NULL)) == 0)
        may(ops->ack_async_event(ctx, &event, NULL));
    if (may(ops->get_cq_event(channel, &cq, NULL)) == 0)
        may(ops->ack_cq_events(cq, 1, NULL));
}

static void *hammer(void *arg) {
    static void (*const all[])(struct dice *) = {
        turn_qp, turn_mr, turn_ah,   turn_mw,       turn_wq,   turn_device,  fork_once,
        move_on, move_on, post_send, post_send,     post_send, post_receive, post_receive,
        poll_cq, poll_cq, change_mr, change_queues, ask,       take_events,  post_behind};
    struct dice *d = arg;
    while (!atomic_load(&stop))
        all[roll(d, sizeof all / sizeof *all)](d);
    return NULL;
}

/* ---------------------------------------------------------------- the test */

static void prepare(void) {
    struct slot *all[] = {&ah, &mw, &wq};
    struct rnic_srq_attr shared = {.max_wr = DEPTH, .max_sge = 1};
    struct rnic_comp_cntr_init_attr counts = {0};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pthread_rwlock_init(&all[i]->lock, NULL);
    for (int i = 0; i < QPS; i++)
        pthread_rwlock_init(&qps[i].lock, NULL);
    for (int i = 0; i < MRS; i++)
        pthread_rwlock_init(&mrs[i].lock, NULL);
    CHECK_EQ(rnic_soft.open("roce_lo", NULL, &ctx, NULL), 0);
    ops = ctx->ops;
    behind = rnic_extension(ctx, RNIC_EXT_BEHIND);
    CHECK_EQ(ops->query_gid(ctx, 1, 0, &here, NULL), 0);
    CHECK_EQ(ops->alloc_pd(ctx, &pd, NULL), 0);
    CHECK_EQ(ops->create_comp_channel(ctx, &channel, NULL), 0);
    CHECK_EQ(ops->create_cq(ctx, 8192, channel, 0, &cqs[0], &cqs[0], NULL), 0);
    CHECK_EQ(ops->create_cq(ctx, 8192, NULL, 0, &cqs[1], &cqs[1], NULL), 0);
    CHECK_EQ(ops->create_srq(pd, &srq, &shared, &srq, NULL), 0);
    CHECK_EQ(ops->create_comp_cntr(ctx, &counts, &cntr, NULL), 0);
}

static void all_is_given_back(void) {
    struct rnic_async_event event;
    while (ops->get_async_event(ctx, &event, NULL) == 0)
        CHECK_EQ(ops->ack_async_event(ctx, &event, NULL), 0);
    for (int i = 0; i < QPS; i++)
        CHECK_EQ(qps[i].qp ? ops->destroy_qp(qps[i].qp, NULL) : 0, 0);
    CHECK_EQ(mw.mw ? ops->dealloc_mw(mw.mw, NULL) : 0, 0);
    CHECK_EQ(wq.wq ? ops->destroy_wq(wq.wq, NULL) : 0, 0);
    CHECK_EQ(ah.ah ? ops->destroy_ah(ah.ah, NULL) : 0, 0);
    for (int i = 0; i < MRS; i++)
        CHECK_EQ(mrs[i].mr ? ops->dereg_mr(mrs[i].mr, NULL) : 0, 0);
    CHECK_EQ(ops->destroy_comp_cntr(cntr, NULL), 0);
    CHECK_EQ(ops->destroy_srq(srq, NULL), 0);
    CHECK_EQ(ops->destroy_cq(cqs[0], NULL), 0);
    CHECK_EQ(ops->destroy_cq(cqs[1], NULL), 0);
    CHECK_EQ(ops->destroy_comp_channel(channel, NULL), 0);
    CHECK_EQ(ops->dealloc_pd(pd, NULL), 0);
    CHECK_EQ(ops->close(ctx, NULL), 0);
}

static void random_calls_of_four_threads_leave_nothing_behind(void) {
    pthread_t threads[THREADS];
    struct dice dice[THREADS];
    uint64_t seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 0) : 1;
    double seconds = getenv("SECONDS_EACH") ? atof(getenv("SECONDS_EACH")) : 1;
    check_note("seed %llu", (unsigned long long)seed);
    alarm((unsigned)seconds + HANG_S);
    prepare();
    for (int i = 0; i < THREADS; i++) {
        dice[i].state = (seed * THREADS + (uint64_t)i + 1) * 0x9E3779B97F4A7C15u;
        CHECK_EQ(pthread_create(&threads[i], NULL, hammer, &dice[i]), 0);
    }
    nanosleep(&(struct timespec){(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)}, NULL);
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    all_is_given_back();
    CHECK(atomic_load(&calls) > 0);
}

int main(void) {
    live_isolate();
    RUN(random_calls_of_four_threads_leave_nothing_behind);
    return check_done();
}
