/* SPDX-License-Identifier: Apache-2.0 */
#include "perf.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#ifdef __x86_64__
#include <x86intrin.h>
#endif

#define WINDOW (SECOND / 100)  /* over which a peak is taken: shorter ones show how completions are batched */
#define LOOK_EVERY 256         /* empty polls, or operations, between looks at the clock, */
#define LOOK_NS (SECOND / 50)  /* and time between looks at the line and signals: one that serves looks in a sample */
#define SLEEP_MS 250           /* a signal's handler waits no longer */
#define SIGNAL_EVERY 32        /* of a ping-pong */
#define RECEIVE (1ull << 63)   /* in wr_id; */
#define TOLD (1ull << 62)      /* or of a word; otherwise the operations that the completion stands for, above the */
#define COUNT_SHIFT 32         /* index of the queue pair */
#define BATCH 32
#define TICK_SHIFT 32            /* of perf_end.tick */
#define CALIBRATION (SECOND / 50) /* ns that the TSC is held against the clock: to some 1e-6 */
#define STAMPS 1000

/* The time of a sample, in ticks. */
static uint64_t stamp(const struct perf_end *e) {
#ifdef __x86_64__
    if (e->tsc)
        return __rdtsc();
#endif
    (void)e;
    return now_ns();
}

static uint64_t ns_of(const struct perf_end *e, uint64_t ticks) {
    return e->tsc ? (uint64_t)((unsigned __int128)ticks * e->tick >> TICK_SHIFT) : ticks;
}

/* What stamp() and now_ns() say at one moment: of some tries the one that nothing came between. */
static void read_both(const struct perf_end *e, uint64_t *ticks, uint64_t *ns) {
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 8; i++) {
        uint64_t before = stamp(e), now = now_ns(), took = stamp(e) - before;
        if (took >= least)
            continue;
        least = took;
        *ticks = before + took / 2;
        *ns = now;
    }
}

void perf_calibrate(struct perf_end *e) {
    uint64_t ticks[2] = {0}, ns[2] = {0};
    read_both(e, &ticks[0], &ns[0]);
    nanosleep(&(struct timespec){.tv_nsec = CALIBRATION}, NULL);
    read_both(e, &ticks[1], &ns[1]);
    e->tick = (uint64_t)((double)(1ull << TICK_SHIFT) * (double)(ns[1] - ns[0]) / (double)(ticks[1] - ticks[0]));
    uint64_t start = stamp(e), end = start;
    for (int i = 0; i < STAMPS; i++)
        end = stamp(e);
    e->stamp_ns = (double)ns_of(e, end - start) / STAMPS;
}

static int failed(struct perf_end *e, int rc, const char *verb) {
    e->verb = verb;
    return rc;
}

/* ---------------------------------------------------------------- waiting */

struct wait {
    uint32_t empty; /* polls that found nothing, one after the other, */
    uint32_t kept;  /* and those of them since others might have the processor */
    uint64_t since; /* ns, when something last moved; 0: not looked at yet */
    uint64_t moved; /* packets, by then */
};

/* Packets so far, and copies in their place: where many queue pairs share a slow link, no message is whole for long.  A
 * refusal for want of a receive moves nothing, nor does what is sent again. */
static uint64_t packets_moved(const struct perf_end *e) {
    const struct rnic_ext_stats *stats = rnic_extension(e->cq->ctx, RNIC_EXT_STATS);
    struct rnic_counters c;
    if (!stats || stats->query_counters(e->cq->ctx, &c, NULL) < 0)
        return 0;
    uint64_t in = c.value[RNIC_CNT_rx_packets] - c.value[RNIC_CNT_rnr_nak_received];
    uint64_t out = c.value[RNIC_CNT_tx_packets] - c.value[RNIC_CNT_requests_resent];
    return in + out + c.value[RNIC_CNT_local_direct];
}

/* What the other end says is for later: it has streamed all of its own while this one has not. */
static bool defers(const struct perf_end *e) { return e->plan->both_ways && e->plan->serving; }

/* 0, PERF_HEARD (it spoke, or closed the line: who reads it will see) or -ECONNRESET. */
static int listen_to(const struct perf_end *e) {
    struct pollfd line = {.fd = e->line, .events = POLLIN | POLLRDHUP};
    if (poll(&line, 1, 0) <= 0)
        return 0;
    if (!defers(e))
        return PERF_HEARD;
    return line.revents & ~POLLIN ? -ECONNRESET : 0;
}

static int look(struct perf_end *e, struct wait *w) {
    int rc = listen_to(e);
    if (rc)
        return rc;
    if (e->interrupted(e->owner) < 0)
        return -EINTR;
    uint64_t moved = packets_moved(e);
    e->looked = now_ns();
    if (!w->since || moved != w->moved)
        w->since = e->looked;
    w->moved = moved;
    return e->looked - w->since > e->quiet_ns ? -ETIMEDOUT : 0;
}

/* A look, if the last one is some time ago. */
static int look_again(struct perf_end *e, struct wait *w) { return now_ns() - e->looked < LOOK_NS ? 0 : look(e, w); }

/* The same where no poll is empty, after operation or round `i`. */
static int glance(struct perf_end *e, uint64_t i) {
    struct wait w = {0};
    return i % LOOK_EVERY ? 0 : look_again(e, &w);
}

/* Arms the queue the first time, so that it is polled once more before anybody sleeps. */
static int sleep_on_channel(struct perf_end *e, struct wait *w) {
    struct rnic_cq *cq;
    if (!e->armed) {
        e->armed = true;
        int rc = e->ops->req_notify_cq(e->cq, 0, &e->err);
        return rc < 0 ? failed(e, rc, "req_notify_cq") : 0;
    }
    struct pollfd fds[2] = {{.fd = e->channel->fd, .events = POLLIN}, {.fd = e->line, .events = POLLIN}};
    const struct rnic_ext_drive *drive = rnic_extension(e->channel->ctx, RNIC_EXT_DRIVE);
    if (!drive || drive->wait_channel(e->channel, now_ns() + SLEEP_MS * 1000000ull, true) == -EAGAIN)
        poll(fds, defers(e) ? 1 : 2, SLEEP_MS);
    int rc = e->ops->get_cq_event(e->channel, &cq, &e->err);
    if (rc == 0) {
        e->armed = false;
        e->events++;
        return 0;
    }
    return rc == -EAGAIN ? look(e, w) : failed(e, rc, "get_cq_event");
}

/* After a poll that found nothing; 0: poll again. */
static int idle(struct perf_end *e, struct wait *w) {
    if (e->channel)
        return sleep_on_channel(e, w);
    w->empty++;
    if (++w->kept == e->yield_polls) {
        w->kept = 0;
        sched_yield();
    }
    return w->empty % LOOK_EVERY ? 0 : look_again(e, w);
}

/* ---------------------------------------------------------------- completions and receives */

/* How many were taken. */
static int take(struct perf_end *e) {
    struct rnic_wc wc[BATCH];
    int n = e->ops->poll_cq(e->cq, BATCH, wc);
    if (n < 0) {
        strcpy(e->err.text, "the completion queue overran");
        return failed(e, n, "poll_cq");
    }
    for (int i = 0; i < n; i++) {
        if (wc[i].status != RNIC_WC_SUCCESS) {
            e->bad = wc[i];
            return -EIO;
        }
        struct perf_qp *q = &e->qps[(uint32_t)wc[i].wr_id];
        if (wc[i].wr_id & RECEIVE) {
            q->receives--;
            q->taken++;
            e->received++;
        } else if (wc[i].wr_id & TOLD) {
            q->telling = false;
        } else {
            uint32_t count = (uint32_t)(wc[i].wr_id >> COUNT_SHIFT);
            q->out -= count;
            e->completed += count;
        }
    }
    return n;
}

static int post_receives(struct perf_end *e, struct perf_qp *q, uint32_t count) {
    struct rnic_sge sge = {e->target, e->room, e->lkey};
    struct rnic_recv_wr wr[BATCH];
    const struct rnic_recv_wr *bad;
    for (uint32_t n; count; count -= n) {
        n = count < BATCH ? count : BATCH;
        for (uint32_t i = 0; i < n; i++)
            wr[i] = (struct rnic_recv_wr){.wr_id = RECEIVE | (uint32_t)(q - e->qps),
                                          .next = i + 1 < n ? &wr[i + 1] : NULL,
                                          .sg_list = &sge,
                                          .num_sge = 1};
        int rc = e->ops->post_recv(q->qp, wr, &bad, &e->err);
        if (rc < 0)
            return failed(e, rc, "post_recv");
        q->receives += n;
    }
    return 0;
}

static int post(struct perf_end *e, struct perf_qp *q, const struct rnic_send_wr *wr) {
    const struct rnic_send_wr *bad;
    int rc = e->ops->post_send(q->qp, wr, &bad, &e->err);
    return rc < 0 ? failed(e, rc, "post_send") : 0;
}

/* The peer learns how many have been posted again, before it has used half of the others. */
static int tell(struct perf_end *e, struct perf_qp *q) {
    uint64_t now = q->taken - (e->rx_depth - q->receives);
    if (!e->allowance || q->telling || now - q->told <= e->rx_depth / 4)
        return 0;
    struct rnic_sge sge = {(uintptr_t)&now, sizeof now, 0};
    struct rnic_send_wr wr = {.wr_id = TOLD | (uint32_t)(q - e->qps),
                              .opcode = RNIC_WR_RDMA_WRITE,
                              .sg_list = &sge,
                              .num_sge = 1,
                              .send_flags = RNIC_SEND_INLINE | RNIC_SEND_SIGNALED};
    wr.wr.rdma.remote_addr = e->remote_words + sizeof now * (uint64_t)(q - e->qps);
    wr.wr.rdma.rkey = e->rkey;
    q->told = now;
    q->telling = true;
    return post(e, q, &wr);
}

/* So many more messages find a receive. */
static bool may_send(const struct perf_end *e, const struct perf_qp *q, uint32_t count) {
    const uint64_t *word = (const uint64_t *)(uintptr_t)e->words + (q - e->qps);
    return !e->allowance || q->messages + count <= e->allowance + __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Posts receives where `missing` or more have been taken. */
static int refill(struct perf_end *e, uint32_t missing) {
    for (struct perf_qp *q = e->qps; q < e->qps + e->num_qps; q++) {
        bool enough = e->rx_depth - q->receives < missing;
        int rc = enough ? 0 : post_receives(e, q, e->rx_depth - q->receives);
        rc = rc < 0 ? rc : tell(e, q);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---------------------------------------------------------------- requests */

struct requests {
    struct rnic_sge sge;
    struct rnic_send_wr wr[PERF_GROUP_MAX]; /* the last is signaled */
    uint32_t count;
};

static struct rnic_send_wr request(const struct perf_end *e, struct rnic_sge *sge) {
    const struct perf_plan *plan = e->plan;
    struct rnic_send_wr wr = {.opcode = plan->opcode, .sg_list = sge, .num_sge = 1};
    wr.send_flags = plan->inlined ? RNIC_SEND_INLINE : 0;
    switch (plan->opcode) {
    case RNIC_WR_ATOMIC_FETCH_AND_ADD:
    case RNIC_WR_ATOMIC_CMP_AND_SWP: /* compares with 0 and stores it */
        wr.wr.atomic.remote_addr = e->remote_target;
        wr.wr.atomic.rkey = e->rkey;
        wr.wr.atomic.compare_add = plan->opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD;
        break;
    case RNIC_WR_RDMA_READ:
        wr.wr.rdma.remote_addr = e->remote_source;
        wr.wr.rdma.rkey = e->rkey;
        break;
    case RNIC_WR_RDMA_WRITE:
    case RNIC_WR_RDMA_WRITE_WITH_IMM:
        wr.wr.rdma.remote_addr = e->remote_target;
        wr.wr.rdma.rkey = e->rkey;
        break;
    default: /* SEND names nothing there */
        break;
    }
    return wr;
}

static void build(const struct perf_end *e, struct requests *r, uint32_t count, bool chained) {
    bool fetches = e->plan->opcode != RNIC_WR_SEND && e->plan->opcode != RNIC_WR_RDMA_WRITE &&
                   e->plan->opcode != RNIC_WR_RDMA_WRITE_WITH_IMM;
    r->sge = (struct rnic_sge){fetches ? e->target : e->source, e->plan->size, e->lkey};
    r->count = count;
    for (uint32_t i = 0; i < count; i++) {
        r->wr[i] = request(e, &r->sge);
        r->wr[i].next = chained && i + 1 < count ? &r->wr[i + 1] : NULL;
    }
    r->wr[count - 1].send_flags |= RNIC_SEND_SIGNALED;
}

/* The last `count` of the group. */
static int post_group(struct perf_end *e, struct perf_qp *q, struct requests *r, uint32_t count) {
    struct rnic_send_wr *last = &r->wr[r->count - 1];
    last->wr_id = (uint64_t)count << COUNT_SHIFT | (uint32_t)(q - e->qps);
    q->out += count;
    q->messages += count;
    if (e->plan->chained)
        return post(e, q, last - (count - 1));
    for (; count > 1; count--) {
        int rc = post(e, q, &r->wr[0]);
        if (rc < 0)
            return rc;
    }
    return post(e, q, last);
}

/* A message of a ping-pong: now and then it is signaled, for the send queue's sake. */
static int post_message(struct perf_end *e, struct rnic_send_wr *wr) {
    struct perf_qp *q = &e->qps[0];
    struct wait w = {0};
    while (q->out >= e->depth) {
        int n = take(e), rc = n < 0 ? n : n ? 0 : idle(e, &w);
        if (rc)
            return rc;
    }
    q->out++;
    q->silent++;
    wr->send_flags &= ~(uint32_t)RNIC_SEND_SIGNALED;
    if (q->silent >= SIGNAL_EVERY || q->out >= e->depth) {
        wr->send_flags |= RNIC_SEND_SIGNALED;
        wr->wr_id = (uint64_t)q->silent << COUNT_SHIFT;
        q->silent = 0;
    }
    return post(e, q, wr);
}

/* ---------------------------------------------------------------- streams */

struct stream {
    uint64_t left;  /* operations to post, of all queue pairs; unless it ends */
    uint64_t until; /* at this time, ns; 0: it does not */
    uint64_t posted;
    uint64_t before;             /* what had completed before it began */
    uint32_t turn;               /* which queue pair posts next */
    uint64_t last;               /* when something last completed, ns */
    uint64_t mark_ns, mark_done; /* of the window */
    bool measured;               /* not the warm-up */
};

static bool has_room(const struct perf_end *e, const struct stream *s, uint32_t group) {
    return s->posted - (e->completed - s->before) + group <= e->all_depth;
}

/* Queue pairs take turns, a group each, until there is no room or none of them has any. */
static int post_all(struct perf_end *e, struct requests *r, struct stream *s) {
    for (uint32_t full = 0; s->left && full < e->num_qps && has_room(e, s, r->count);) {
        struct perf_qp *q = &e->qps[s->turn];
        s->turn = s->turn + 1 < e->num_qps ? s->turn + 1 : 0;
        if (q->out + r->count > e->depth || !may_send(e, q, r->count)) {
            full++;
            continue;
        }
        uint32_t count = s->left < r->count ? (uint32_t)s->left : r->count;
        int rc = post_group(e, q, r, count);
        if (rc < 0)
            return rc;
        s->posted += count;
        s->left -= count;
        full = 0;
    }
    return 0;
}

static void completed(struct perf_end *e, struct stream *s) {
    uint64_t done = e->completed - s->before;
    s->last = now_ns();
    e->operations = s->measured ? done : 0;
    if (s->until && s->last >= s->until)
        s->left = 0;
    if (s->last - s->mark_ns < WINDOW)
        return;
    double rate = (double)(done - s->mark_done) * SECOND / (double)(s->last - s->mark_ns);
    e->peak = rate > e->peak ? rate : e->peak;
    s->mark_ns = s->last;
    s->mark_done = done;
}

/* Posts, takes completions, waits if there is nothing to do; 0 or what ends the stream. */
static int stream_round(struct perf_end *e, struct requests *r, struct stream *s, struct wait *w) {
    int rc = post_all(e, r, s);
    int n = rc < 0 ? rc : take(e);
    if (n <= 0)
        return n < 0 ? n : idle(e, w);
    *w = (struct wait){0};
    completed(e, s);
    return e->plan->both_ways ? refill(e, BATCH / 2) : 0;
}

static int stream_once(struct perf_end *e, struct requests *r, uint64_t iterations, uint64_t ns, bool measured) {
    uint64_t start = now_ns();
    struct stream s = {.left = iterations ? iterations * e->num_qps : UINT64_MAX,
                       .until = iterations ? 0 : start + ns,
                       .before = e->completed,
                       .last = start,
                       .mark_ns = start,
                       .measured = measured};
    struct wait w = {0};
    e->peak = 0;
    for (uint64_t i = 1; s.left || e->completed - s.before < s.posted; i++) {
        int rc = stream_round(e, r, &s, &w);
        if (!rc)
            rc = glance(e, i);
        if (rc)
            return rc;
    }
    e->operations = measured ? s.posted : 0;
    e->ns = s.last - start;
    return PERF_DONE;
}

static int stream(struct perf_end *e) {
    const struct perf_plan *plan = e->plan;
    struct requests r;
    build(e, &r, plan->group, plan->chained);
    int rc = stream_once(e, &r, 0, plan->warmup_ns, false);
    return rc == PERF_DONE ? stream_once(e, &r, plan->iterations, plan->ns, true) : rc;
}

static int sink(struct perf_end *e) {
    struct wait w = {0};
    int rc = 0;
    for (uint64_t i = 1; rc == 0; i++) {
        int n = take(e);
        if (n > 0) {
            w = (struct wait){0};
            rc = refill(e, BATCH / 2);
        }
        if (rc == 0)
            rc = n < 0 ? n : n == 0 ? idle(e, &w) : glance(e, i);
    }
    return rc;
}

/* ---------------------------------------------------------------- latencies */

/* Which of the operations are measured, and when there are enough.  A sample is the time between two timestamps, one
 * of which ends an operation and begins the next: one an operation, so that measuring costs little.  Ticks. */
struct course {
    uint64_t begun, last; /* the first timestamp and the latest */
    uint64_t start;       /* when measuring began; 0: not yet */
    uint64_t count;       /* operations so far, with those before measuring */
};

static struct course begin(const struct perf_end *e) {
    uint64_t now = stamp(e);
    return (struct course){.begun = now, .last = now};
}

/* An operation has ended. */
static bool enough(struct perf_end *e, struct course *c) {
    const struct perf_plan *plan = e->plan;
    uint64_t now = stamp(e), before = c->last;
    c->last = now;
    c->count++;
    if (!c->start) {
        if (ns_of(e, now - c->begun) >= plan->warmup_ns)
            c->start = now;
        return false;
    }
    perf_sample(&e->histogram, ns_of(e, now - before));
    e->operations = e->histogram.count;
    e->ns = ns_of(e, now - c->start);
    return plan->iterations ? e->operations >= plan->iterations : e->ns >= plan->ns;
}

/* A glance is in no sample. */
static int glance_between(struct perf_end *e, struct course *c) {
    if (c->count % LOOK_EVERY)
        return 0;
    int rc = glance(e, c->count);
    c->last = stamp(e);
    return rc;
}

static int wait_until(struct perf_end *e, const uint64_t *counter, uint64_t value) {
    struct wait w = {0};
    while (*counter < value) {
        int n = take(e), rc = n < 0 ? n : n ? 0 : idle(e, &w);
        if (rc && *counter < value)
            return rc;
    }
    return 0;
}

static int latency(struct perf_end *e) {
    struct course c = begin(e);
    struct requests r;
    build(e, &r, 1, true);
    int rc = 0;
    for (; rc == 0; rc = glance_between(e, &c)) {
        uint64_t target = e->completed + 1;
        rc = post_group(e, &e->qps[0], &r, 1);
        rc = rc < 0 ? rc : wait_until(e, &e->completed, target);
        if (rc)
            return rc;
        if (enough(e, &c))
            return PERF_DONE;
    }
    return rc;
}

/* Waits for message `i` (from 1) of this run. */
typedef int wait_message(struct perf_end *e, uint64_t i, uint64_t before);

static int wait_receive(struct perf_end *e, uint64_t i, uint64_t before) {
    return wait_until(e, &e->received, before + i);
}

static const uint8_t *mark(const struct perf_end *e) {
    return (const uint8_t *)(uintptr_t)(e->target + e->plan->size - 1);
}

static int wait_mark(struct perf_end *e, uint64_t i, uint64_t before) {
    struct wait w = {0};
    (void)before;
    while (__atomic_load_n(mark(e), __ATOMIC_ACQUIRE) != (uint8_t)i) {
        int rc = take(e); /* on the wire that is what makes progress; nearby it leaves the peer the cache line */
        rc = rc < 0 ? rc : idle(e, &w);
        if (rc)
            return rc;
    }
    return 0;
}

/* Message `i` goes out; receives are posted while it is on its way. */
static int send_message(struct perf_end *e, struct requests *r, uint64_t i) {
    uint8_t *value = (uint8_t *)(uintptr_t)(e->source + e->plan->size - 1);
    *value = (uint8_t)i;
    int rc = post_message(e, &r->wr[0]);
    return rc || !e->rx_depth ? rc : refill(e, 1);
}

static int pingpong(struct perf_end *e, wait_message *arrived) {
    uint64_t before = e->received;
    struct requests r;
    build(e, &r, 1, true);
    struct course c = begin(e);
    int rc = 0;
    for (uint64_t i = 1; rc == 0; i++) {
        rc = send_message(e, &r, i);
        rc = rc ? rc : arrived(e, i, before);
        if (rc)
            return rc;
        if (enough(e, &c))
            return PERF_DONE;
        rc = glance_between(e, &c);
    }
    return rc;
}

static int answer(struct perf_end *e, wait_message *arrived) {
    uint64_t before = e->received;
    struct requests r;
    int rc = 0;
    build(e, &r, 1, true);
    for (uint64_t i = 1; rc == 0; i++) {
        rc = arrived(e, i, before);
        rc = rc ? rc : send_message(e, &r, i);
        rc = rc ? rc : glance(e, i);
    }
    return rc;
}

/* ---------------------------------------------------------------- all of them */

int perf_run(struct perf_end *e, const struct perf_plan *plan) {
    e->plan = plan;
    e->operations = e->ns = 0;
    e->peak = 0;
    e->err.text[0] = 0;
    memset(&e->histogram, 0, sizeof e->histogram);
    switch (plan->loop) {
    case PERF_STREAM:
        return stream(e);
    case PERF_SINK:
        return sink(e);
    case PERF_LATENCY:
        return latency(e);
    case PERF_PINGPONG:
        return plan->serving ? answer(e, wait_receive) : pingpong(e, wait_receive);
    default:
        return plan->serving ? answer(e, wait_mark) : pingpong(e, wait_mark);
    }
}

int perf_fill(struct perf_end *e) {
    e->err.text[0] = 0;
    return refill(e, 1);
}

void perf_settle(struct perf_end *e) {
    if (e->events)
        e->ops->ack_cq_events(e->cq, e->events, &e->err);
    e->events = 0;
}
