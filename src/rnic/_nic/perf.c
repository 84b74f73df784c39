/* SPDX-License-Identifier: Apache-2.0 */
#include "perf.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define SECOND 1000000000ull
#define WINDOW (SECOND / 100)  /* over which a peak is taken: shorter ones show how completions are batched */
#define LOOK_POLLS 4096        /* empty polls between looks at the clock, the line and signals */
#define LOOK_OPERATIONS 1024   /* operations likewise, where no poll is empty */
#define SLEEP_MS 250           /* a signal's handler waits no longer */
#define SIGNAL_EVERY 32        /* of a ping-pong */
#define MEMORY_LOOKS 16        /* at the target's byte for each poll, which makes progress on the wire */
#define RECEIVE (1ull << 63)   /* in wr_id; otherwise the operations that the completion stands for, above the */
#define COUNT_SHIFT 32         /* index of the queue pair */
#define BATCH 32

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

static int failed(struct perf_end *e, int rc, const char *verb) {
    e->verb = verb;
    return rc;
}

/* ---------------------------------------------------------------- samples */

static uint32_t bucket_of(uint64_t ns) {
    if (ns >> PERF_TOP_BIT)
        ns = (1ull << PERF_TOP_BIT) - 1;
    int shift = 63 - __builtin_clzll(ns | 1) - PERF_SUB_BITS;
    return shift <= 0 ? (uint32_t)ns : ((uint32_t)shift << PERF_SUB_BITS) + (uint32_t)(ns >> shift);
}

static void sample(struct perf_histogram *h, uint64_t ns) {
    double value = (double)ns;
    h->bucket[bucket_of(ns)]++;
    h->min = h->count && h->min < ns ? h->min : ns;
    h->max = h->max > ns ? h->max : ns;
    h->count++;
    h->sum += value;
    h->squares += value * value;
}

/* ---------------------------------------------------------------- waiting */

struct wait {
    uint32_t empty; /* polls that found nothing, one after the other */
    uint64_t since; /* ns; 0: not looked at yet */
};

/* 0, PERF_HEARD or -ECONNRESET. */
static int listen_to(const struct perf_end *e) {
    char byte;
    ssize_t n = recv(e->line, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -ECONNRESET;
    return n == 0 ? -ECONNRESET : e->plan->both_ways ? 0 : PERF_HEARD;
}

static int look(struct perf_end *e, struct wait *w) {
    int rc = listen_to(e);
    if (rc)
        return rc;
    if (e->interrupted(e->owner) < 0)
        return -EINTR;
    uint64_t now = now_ns();
    if (!w->since)
        w->since = now;
    return now - w->since > e->quiet_ns ? -ETIMEDOUT : 0;
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
    poll(fds, e->plan->both_ways ? 1 : 2, SLEEP_MS);
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
    if (w->empty % e->yield_polls == 0)
        sched_yield();
    return w->empty % LOOK_POLLS ? 0 : look(e, w);
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
            e->received++;
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

/* Posts receives where `missing` or more have been taken. */
static int refill(struct perf_end *e, uint32_t missing) {
    for (struct perf_qp *q = e->qps; q < e->qps + e->num_qps; q++) {
        if (e->rx_depth - q->receives < missing)
            continue;
        int rc = post_receives(e, q, e->rx_depth - q->receives);
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

static int post(struct perf_end *e, struct perf_qp *q, const struct rnic_send_wr *wr) {
    const struct rnic_send_wr *bad;
    int rc = e->ops->post_send(q->qp, wr, &bad, &e->err);
    return rc < 0 ? failed(e, rc, "post_send") : 0;
}

/* The last `count` of the group. */
static int post_group(struct perf_end *e, struct perf_qp *q, struct requests *r, uint32_t count) {
    struct rnic_send_wr *last = &r->wr[r->count - 1];
    last->wr_id = (uint64_t)count << COUNT_SHIFT | (uint32_t)(q - e->qps);
    q->out += count;
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
    uint64_t last;               /* when something last completed, ns */
    uint64_t mark_ns, mark_done; /* of the window */
};

static int post_all(struct perf_end *e, struct requests *r, struct stream *s) {
    for (struct perf_qp *q = e->qps; q < e->qps + e->num_qps; q++) {
        while (s->left && q->out + r->count <= e->depth) {
            uint32_t count = s->left < r->count ? (uint32_t)s->left : r->count;
            int rc = post_group(e, q, r, count);
            if (rc < 0)
                return rc;
            s->posted += count;
            s->left -= count;
        }
    }
    return 0;
}

static void completed(struct perf_end *e, struct stream *s, uint64_t done) {
    s->last = now_ns();
    if (s->until && s->last >= s->until)
        s->left = 0;
    if (s->last - s->mark_ns < WINDOW)
        return;
    double rate = (double)(done - s->mark_done) * SECOND / (double)(s->last - s->mark_ns);
    e->peak = rate > e->peak ? rate : e->peak;
    s->mark_ns = s->last;
    s->mark_done = done;
}

static int stream_once(struct perf_end *e, struct requests *r, uint64_t iterations, uint64_t ns) {
    uint64_t start = now_ns(), before = e->completed;
    struct stream s = {
        iterations ? iterations * e->num_qps : UINT64_MAX, iterations ? 0 : start + ns, 0, start, start, 0};
    struct wait w = {0};
    e->peak = 0;
    for (uint32_t i = 1; s.left || e->completed - before < s.posted; i++) {
        int rc = post_all(e, r, &s);
        int n = rc < 0 ? rc : take(e);
        if (n > 0) {
            w = (struct wait){0};
            completed(e, &s, e->completed - before);
        }
        rc = n < 0 ? n : n == 0 ? idle(e, &w) : i % LOOK_OPERATIONS ? 0 : look(e, &w);
        if (rc == 0 && e->plan->both_ways && n)
            rc = refill(e, BATCH / 2);
        if (rc)
            return rc;
    }
    e->operations = s.posted;
    e->ns = s.last - start;
    return PERF_DONE;
}

static int stream(struct perf_end *e) {
    const struct perf_plan *plan = e->plan;
    struct requests r;
    build(e, &r, plan->group, plan->chained);
    int rc = plan->warmup || plan->warmup_ns ? stream_once(e, &r, plan->warmup, plan->warmup_ns) : PERF_DONE;
    return rc == PERF_DONE ? stream_once(e, &r, plan->iterations, plan->ns) : rc;
}

static int sink(struct perf_end *e) {
    uint64_t start = now_ns(), before = e->received;
    struct wait w = {0};
    int rc = 0;
    for (uint32_t i = 1; rc == 0; i++) {
        int n = take(e);
        if (n > 0) {
            w = (struct wait){0};
            rc = refill(e, BATCH / 2);
        }
        if (rc == 0)
            rc = n < 0 ? n : n == 0 ? idle(e, &w) : i % LOOK_OPERATIONS ? 0 : look(e, &w);
    }
    e->operations = e->received - before;
    e->ns = now_ns() - start;
    return rc;
}

/* ---------------------------------------------------------------- latencies */

/* Which of the operations are measured, and when there are enough. */
struct course {
    uint64_t begun, count; /* ns when it began; operations so far, with those before measuring */
    uint64_t start;        /* ns when measuring began; 0: not yet */
};

static bool enough(struct perf_end *e, struct course *c, uint64_t before, uint64_t after) {
    const struct perf_plan *plan = e->plan;
    c->count++;
    if (!c->start) {
        if (plan->warmup ? c->count >= plan->warmup : after - c->begun >= plan->warmup_ns)
            c->start = after;
        return false;
    }
    sample(&e->histogram, after - before);
    e->operations = e->histogram.count;
    e->ns = after - c->start;
    return plan->iterations ? e->operations >= plan->iterations : e->ns >= plan->ns;
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
    struct course c = {.begun = now_ns()};
    struct requests r;
    build(e, &r, 1, true);
    for (bool end = false; !end;) {
        struct wait w = {0};
        uint64_t before = now_ns(), target = e->completed + 1;
        int rc = post_group(e, &e->qps[0], &r, 1);
        rc = rc < 0 ? rc : wait_until(e, &e->completed, target);
        if (rc)
            return rc;
        end = enough(e, &c, before, now_ns());
        rc = c.count % LOOK_OPERATIONS ? 0 : look(e, &w);
        if (rc)
            return rc;
    }
    return PERF_DONE;
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
    for (uint32_t looks = 1; __atomic_load_n(mark(e), __ATOMIC_ACQUIRE) != (uint8_t)i; looks++) {
        if (looks % MEMORY_LOOKS)
            continue;
        int rc = take(e);
        rc = rc < 0 ? rc : idle(e, &w);
        if (rc)
            return rc;
    }
    return 0;
}

static int pingpong(struct perf_end *e, wait_message *arrived) {
    struct course c = {.begun = now_ns()};
    bool serving = e->plan->serving;
    uint64_t before = e->received;
    uint8_t *value = (uint8_t *)(uintptr_t)(e->source + e->plan->size - 1);
    struct requests r;
    int rc = 0;
    build(e, &r, 1, true);
    for (uint64_t i = 1; rc == 0; i++) {
        struct wait w = {0};
        uint64_t began = now_ns();
        if (serving)
            rc = arrived(e, i, before);
        if (rc == 0) {
            *value = (uint8_t)i;
            rc = post_message(e, &r.wr[0]);
        }
        if (rc == 0 && !serving) {
            rc = arrived(e, i, before);
            if (rc == 0 && enough(e, &c, began, now_ns()))
                return PERF_DONE;
        }
        if (rc == 0 && arrived == wait_receive)
            rc = refill(e, e->rx_depth / 2);
        if (rc == 0 && i % LOOK_OPERATIONS == 0)
            rc = look(e, &w);
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
        return pingpong(e, wait_receive);
    default:
        return pingpong(e, wait_mark);
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
