/* SPDX-License-Identifier: Apache-2.0 */
#include "talk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "nic_ext.h"

struct pair p;
struct side a, b;

static struct side *side_of(const struct rnic_qp *qp) { return qp == &p.a.qp->pub ? &a : &b; }

static int send_ops(struct rnic_qp *qp, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad,
                    struct rnic_err *err) {
    struct side *s = side_of(qp);
    for (const struct rnic_send_wr *one = wr; one; one = one->next)
        s->signaled += one->opcode == RNIC_WR_SEND && one->send_flags & RNIC_SEND_SIGNALED;
    int rc = 0;
    *bad = wr;
    while (rc == 0 && *bad && !(s->full && s->takes-- <= 0)) {
        struct rnic_send_wr one = **bad;
        one.next = NULL;
        const struct rnic_send_wr *same;
        rc = sq_post(&s->end->qp->sq, &one, &same, err);
        *bad = rc == 0 ? (*bad)->next : *bad;
        s->flags = one.send_flags;
    }
    fabric_turn(s->end->qp);
    return rc == 0 && *bad ? -ENOMEM : rc;
}

static int recv_ops(struct rnic_qp *qp, const struct rnic_recv_wr *wr, const struct rnic_recv_wr **bad,
                    struct rnic_err *err) {
    struct side *s = side_of(qp);
    int rc = rq_post(&s->end->qp->rq, wr, bad, err);
    if (s->end->qp->state == RNIC_QPS_ERR)
        fabric_turn(s->end->qp);
    return rc;
}

static int poll_ops(struct rnic_cq *cq, int n, struct rnic_wc *wc) {
    bool of_a = cq == &p.a.recv_cq->pub || cq == &p.a.send_cq->pub;
    struct side *s = of_a ? &a : &b;
    struct end *e = s->end;
    CHECK(n >= 0 && n <= POLLED);
    return s->overrun && cq != s->well ? -EOVERFLOW : cq_take(cq == &e->recv_cq->pub ? e->recv_cq : e->send_cq, n, wc);
}

static int reg_ops(struct rnic_pd *pd, void *addr, uint64_t length, uint32_t access, struct rnic_mr **mr,
                   struct rnic_err *err) {
    (void)err;
    struct side *s = pd == &p.a.node->pd.pub ? &a : &b;
    if (s->refused) {
        s->refused--;
        *mr = (struct rnic_mr *)s; /* which means nothing */
        return -ENOMEM;
    }
    struct mr *made = fabric_mr(s->end->node, &s->end->node->pd, addr, length, access);
    if (access & RNIC_ACCESS_ZERO_BASED) {
        made->pub.iova = 0;
        made->shift = (uintptr_t)addr;
    }
    made->pub.ctx = &s->ctx;
    s->regions++;
    *mr = &made->pub;
    return 0;
}

static int dereg_ops(struct rnic_mr *mr, struct rnic_err *err) {
    (void)err;
    struct side *s = mr->ctx == &a.ctx ? &a : &b;
    if (s->kept) {
        s->kept--;
        return -EBUSY;
    }
    s->regions--;
    fabric_drop_mr(s->end->node, (struct mr *)mr);
    return 0;
}

static int rereg_ops(struct rnic_mr *mr, uint32_t flags, struct rnic_pd *pd, void *addr, uint64_t length,
                     uint32_t access, struct rnic_err *err) {
    (void)flags, (void)pd, (void)access, (void)err;
    CHECK_EQ(length, mr->length);
    struct side *s = mr->ctx == &a.ctx ? &a : &b;
    if (s->fixed) {
        s->fixed--;
        return -EBUSY;
    }
    mr->addr = addr;
    ((struct mr *)mr)->shift = (uintptr_t)addr - mr->iova;
    return 0;
}

static const struct rnic_ops ops = {.post_send = send_ops,
                                    .post_recv = recv_ops,
                                    .poll_cq = poll_ops,
                                    .reg_mr = reg_ops,
                                    .dereg_mr = dereg_ops,
                                    .rereg_mr = rereg_ops};
static const struct rnic_provider provider = {.name = "fabric", .ops = &ops};

/* The quick way takes two posts and polls in three. */
static bool quick_send(struct rnic_qp *qp, const struct rnic_send_wr *wr) {
    const struct rnic_send_wr *bad;
    CHECK(!wr->next);
    return ++side_of(qp)->quick_posts % 3 && send_ops(qp, wr, &bad, NULL) == 0;
}

static int quick_poll(struct rnic_cq *cq, int n, struct rnic_wc *wc) {
    static unsigned polls;
    return ++polls % 3 ? poll_ops(cq, n, wc) : -EAGAIN;
}

static const struct rnic_ext_now now = {quick_send, quick_poll};
static const struct rnic_extension extensions[] = {{RNIC_EXT_NOW, &now}, {NULL, NULL}};
static const struct rnic_provider quick = {.name = "quick", .ops = &ops, .extensions = extensions};

/* Memory of the program, with bytes behind it that nobody may write. */
struct object {
    uint64_t bytes;
    uint8_t data[];
};
#define GUARD 16
#define GUARD_BYTE 0xE7

static uint8_t *guard(struct object *o, uint64_t bytes) {
    o->bytes = bytes;
    memset(o->data + bytes, GUARD_BYTE, GUARD);
    return o->data;
}

static void check_guard(const struct object *o) {
    for (int i = 0; i < GUARD; i++)
        CHECK_EQ(o->data[o->bytes + i], GUARD_BYTE);
}

static uint8_t *make(void *arg, uint64_t bytes, void **object) {
    struct side *s = arg;
    *object = s; /* which means nothing if there is no memory */
    if (s->most_memory && bytes > s->most_memory)
        return NULL;
    s->objects++;
    s->room = bytes;
    return guard(*object = malloc(sizeof(struct object) + bytes + GUARD), bytes);
}

static uint8_t *grow(void *arg, uint64_t bytes, void **object) {
    struct side *s = arg;
    check_guard(*object);
    if (s->most_memory && bytes > s->most_memory)
        return NULL;
    s->grown++;
    s->room = bytes;
    return guard(*object = realloc(*object, sizeof(struct object) + bytes + GUARD), bytes);
}

static void drop(void *arg, void *object) {
    struct side *s = arg;
    check_guard(object);
    s->objects--;
    free(object);
}

static void later(void *arg, struct rnic_mr *mr) {
    struct side *s = arg;
    CHECK(!s->late);
    s->late = mr;
    s->regions--;
}

static bool asks(void *arg, uint64_t tag) {
    struct side *s = arg;
    return s->asked && *s->asked == tag;
}

static struct msg_config config_of(const struct how *h) {
    return (struct msg_config){.receives = h->receives ? h->receives : 8,
                               .receive_size = h->receive_size ? h->receive_size : 1024,
                               .send_size = h->send_size ? h->send_size : 1024,
                               .max_regions = h->regions ? h->regions : 16,
                               .max_message = h->max_message ? h->max_message : 1 << 20,
                               .max_backlog = h->backlog ? h->backlog : 1 << 16,
                               .announce = h->announce,
                               .idle = h->idle};
}

void talk_open(struct side *s, struct end *e, const struct how *h) {
    struct msg_config config = config_of(h);
    uint32_t bounces = config.receives < MSG_BOUNCES ? config.receives : MSG_BOUNCES;
    struct msg_memory memory = {.base = e->mem, .lkey = e->mr->pub.lkey, .bounces = bounces};
    memory.sends_at = (uint64_t)(config.receives + MSG_SPARE) * config.receive_size;
    memory.results_at = (memory.sends_at + (uint64_t)bounces * config.send_size + 7) / 8 * 8;
    CHECK(memory.results_at + MSG_OPS * MSG_RESULT <= e->bytes / 2);
    *s = (struct side){.end = e, .ctx = {.ops = &ops, .provider = h->quick ? &quick : &provider}};
    e->qp->pub.ctx = &s->ctx;
    struct msg_hooks hooks = {s, make, grow, drop, NULL, later, asks};
    s->m = msg_open(&config, &memory, &hooks, &e->qp->pub, &e->send_cq->pub, &e->recv_cq->pub);
    CHECK(s->m != NULL);
    CHECK_EQ(msg_post_receives(s->m, NULL), 0);
}

static struct msg_peer peer_of(const struct how *h) {
    struct msg_config c = config_of(h);
    return (struct msg_peer){.receives = c.receives,
                             .receive_size = c.receive_size,
                             .max_regions = c.max_regions,
                             .max_message = c.max_message,
                             .capabilities = h->version == 1   ? 0
                                             : h->capabilities ? h->capabilities
                                                               : 15,
                             .access = ALL_ACCESS,
                             .version = h->version ? h->version : 2};
}

void talk_greet(struct side *s, const struct how *of_the_peer) {
    struct msg_peer peer = peer_of(of_the_peer);
    msg_greet(s->m, &peer, (int64_t)p.f.now);
    msg_establish(s->m);
}

void talk_open_both(const struct how *of_a, const struct how *of_b) {
    pair_open(&p, .bytes = MEMORY, .wr = 256, .cqe = 512, .quiet = true, .rd_atomic = 16, .dest_rd_atomic = 16);
    talk_open(&a, &p.a, of_a);
    talk_open(&b, &p.b, of_b);
    talk_greet(&a, of_b);
    talk_greet(&b, of_a);
}

int talk_pump(struct side *s) { return msg_pump(s->m, (int64_t)p.f.now); }

/* What both have done so far: nothing more happens if a pump of both does not change it. */
static uint64_t activity(void) {
    uint64_t n = 0;
    for (struct side *s = &a; s; s = s == &a ? &b : NULL)
        n += s->m->out.handed_out + s->m->out.completed + s->m->in.seen + s->m->operations.ended_n +
             s->m->operations.posted_n + s->m->credits.posted;
    return n;
}

void talk_settle(void) {
    uint64_t before;
    do {
        fabric_settle(&p.f);
        before = activity();
        talk_pump(&a);
        talk_pump(&b);
    } while (activity() != before);
}

void talk_close(void) {
    msg_free(a.m);
    msg_free(b.m);
    CHECK_EQ(a.objects, 0);
    CHECK_EQ(b.objects, 0);
    CHECK_EQ(a.regions, 0);
    CHECK_EQ(b.regions, 0);
    pair_close(&p);
}

void talk_goodbye(void) {
    msg_close(a.m, (int64_t)p.f.now, MSG_NEVER);
    talk_settle();
    CHECK_EQ(msg_state(a.m), MSG_SAID_GOODBYE);
    CHECK_EQ(msg_state(b.m), MSG_PEER_LEFT);
    msg_close(b.m, (int64_t)p.f.now, MSG_NEVER);
    talk_settle();
    CHECK_EQ(msg_state(a.m), MSG_CLOSED);
    CHECK_EQ(msg_state(b.m), MSG_CLOSED);
    CHECK_EQ(msg_error(a.m)->kind, MSG_WELL);
}

uint8_t *bytes_of(uint64_t n, uint64_t seed) {
    uint8_t *data = malloc(n + 1);
    fill(data, n, seed);
    return data;
}

uint8_t *say(struct side *s, uint64_t n, uint64_t tag, uint64_t seed, int want) {
    uint64_t handle;
    uint8_t *data = bytes_of(n, seed);
    CHECK_EQ(msg_send(s->m, data, n, tag, &handle), want);
    return data;
}

void hear(struct side *s, const uint64_t *tag, uint64_t n, uint64_t seed) {
    struct msg_in *in = msg_find(s->m, tag);
    CHECK(in != NULL);
    CHECK_EQ(in->bytes, n);
    CHECK(filled(in->data, n, seed));
    msg_take(s->m, in);
    msg_drop(s->m, in);
}
