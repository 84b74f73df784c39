/* SPDX-License-Identifier: Apache-2.0
 *
 * A hostile peer to a live end of src/msg, whose program works and ends at random, on virtual time.
 *
 *   fuzz_msg [seed [cases]]
 *
 * A case is a SEND of a liar, who knows what the end expects: the number of the message, its credits, its regions, what it has
 * announced.  Usually the SEND stays as the end has reason to accept it; else some of it is changed.  Between the cases the
 * program sends, takes, asks for tags, cancels, shares, operates, and closes.  After each, what must hold however a peer
 * behaves is checked.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "check.h"
#include "dice.h"
#include "talk.h"

#define LIFE 100 /* cases of a world */
#define SAID 64 /* messages of the program that are not sent yet, and operations */

static struct world {
    struct how how;
    struct dice *dice;
    uint8_t *said[SAID];
    uint64_t handle[SAID];
    struct msg_op op[SAID];
    uint8_t *target;
    uint64_t tag;
    uint32_t regions[4], shared, withdrawn; /* of the program's */
} w;

static uint64_t seed, number, states[MSG_STATES], kinds[MSG_LOST + 1], types[FRAME_TYPES];

void check_fail(const char *file, int line, const char *fmt, ...) {
    va_list ap;
    fprintf(stderr, "fuzz_msg: seed %llu, case %llu: %s:%d: ", (unsigned long long)seed, (unsigned long long)number,
            file, line);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}

static uint32_t below(uint32_t n) { return dice_below(w.dice, n); }
static bool one_in(uint32_t n) { return dice_one_in(w.dice, n); }

/* ---------------------------------------------------------------- the liar */

static uint32_t used(void) { return (uint32_t)(b.m->credits.spent - b.m->credits.returned); }
static uint16_t some_credits(void) { return (uint16_t)below(used() + 1); }
static bool announced(void) { return b.m->in.offered || b.m->in.has_unconfirmed; }
/* The message that the end has announced; NULL: there is none. */
static const struct item *offer_of_the_end(void) {
    const struct item *item = b.m->out.first;
    return item && item->kind == FRAME_ANNOUNCE && item->begun ? item : NULL;
}
static uint32_t announced_here(void) {
    const struct item *item = offer_of_the_end();
    return item ? item->number : 0;
}

static uint32_t free_id(void) {
    uint32_t id = below(6);
    while (msg_regions_find(b.m, id))
        id++;
    return id;
}

/* Whether the end has reason to accept a SEND of that type. */
static bool is_due(int type) {
    const struct msg *m = b.m;
    uint64_t left = m->credits.told - m->credits.arrived - MSG_SPARE;
    if (type == FRAME_TAKEN)
        return offer_of_the_end();
    if (left <= (type == FRAME_CREDIT || type == FRAME_ABORT ? 0 : RESERVED) || m->state == MSG_PEER_LEFT)
        return false;
    switch (type) {
    case FRAME_MESSAGE:
        return !m->in.partial && !announced();
    case FRAME_MORE:
        return m->in.partial;
    case FRAME_CREDIT:
        return used() >= 2;
    case FRAME_SHARE:
        return m->theirs.n < m->how.max_regions;
    case FRAME_WITHDRAW:
        return m->theirs.n;
    case FRAME_RELEASE:
        return m->out.released != m->out.withdrawn;
    case FRAME_GOODBYE:
        return !m->in.partial && !announced() && one_in(30);
    case FRAME_ABORT:
        return one_in(60);
    case FRAME_ANNOUNCE:
        return m->peer.version >= 2 && !m->in.partial && !announced();
    case FRAME_STOP:
        return m->peer.version >= 2 && (m->in.partial || m->in.offered);
    default:
        return false;
    }
}

/* A SEND of that type; its length. */
static uint32_t frame_of(int type, uint8_t *f) {
    static const uint8_t array[] = {1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, '<', 'f', '4'};
    uint32_t room = w.how.receive_size - 24, n = 1 + below(room), due = (uint32_t)b.m->in.complete;
    uint64_t tag = b.m->peer.version >= 2 ? below(3) : 0, left = b.m->in.total - b.m->in.there;
    struct msg_region region = {.id = free_id(), .rkey = below(9), .access = RNIC_ACCESS_REMOTE_READ};
    struct msg_offer offer = {due, a.end->mr->pub.rkey, 1 + below(30000), (uintptr_t)a.end->mem, tag};
    bool knows = b.m->peer.version >= 2;
    switch (type) {
    case FRAME_MESSAGE:
        left = n + below(3) * below(3 * room);
        return msg_frame_put_message(f, some_credits(), due, left, tag, left == n) + n;
    case FRAME_MORE:
        n = left < n ? (uint32_t)left : n;
        return msg_frame_put(f, FRAME_MORE, left == n ? FRAME_LAST : 0, some_credits(), due) + n;
    case FRAME_CREDIT:
        return msg_frame_put(f, FRAME_CREDIT, 0, (uint16_t)used(), 0);
    case FRAME_SHARE:
        region.length = below(999);
        region.array = array;
        region.array_bytes = sizeof array;
        return msg_frame_put_region(f, some_credits(), &region, knows && below(2));
    case FRAME_WITHDRAW:
        return msg_frame_put(f, type, 0, some_credits(),
                             b.m->theirs.n ? b.m->theirs.known[below(b.m->theirs.n)].id : 1);
    case FRAME_RELEASE:
        return msg_frame_put(f, type, 0, some_credits(), b.m->out.released + 1);
    case FRAME_ABORT:
        return msg_frame_put_abort(f, 200, below(9), "the liar has had enough");
    case FRAME_ANNOUNCE:
        return msg_frame_put_offer(f, some_credits(), &offer);
    case FRAME_TAKEN:
        return msg_frame_put(f, type, 0, some_credits(), announced_here());
    default:
        return msg_frame_put(f, type, 0, some_credits(), due);
    }
}

/* Usually one that the end has reason to accept. */
static uint32_t next_frame(uint8_t *f) {
    int type = FRAME_MESSAGE + (int)below(FRAME_TYPES - 1);
    for (int tries = 0; !is_due(type) && tries < 40; tries++)
        type = FRAME_MESSAGE + (int)below(FRAME_TYPES - 1);
    if (!is_due(type) && !one_in(100))
        return UINT32_MAX;
    types[type]++;
    return frame_of(type, f);
}

/* Changes some of a SEND, now and then. */
static uint32_t change(uint8_t *f, uint32_t n) {
    if (n == UINT32_MAX || !one_in(100))
        return n;
    switch (below(4)) {
    case 0:
        return below(n + 1);
    case 1:
        return n + below(40);
    case 2:
        f[below(n < 40 ? n : 40)] = (uint8_t)below(256);
        return n;
    default:
        f[below(8)] ^= (uint8_t)(1u << below(8));
        return n;
    }
}

static void say_any(void) {
    uint8_t *f = a.end->mem + MEMORY / 2;
    memset(f, 0x5A, 4096);
    uint32_t n = change(f, next_frame(f));
    struct rnic_send_wr wr = {.wr_id = 1, .opcode = RNIC_WR_SEND, SGL(SGE(&p.a, MEMORY / 2, n))};
    if (n <= w.how.receive_size)
        try_post(&p.a, wr);
    fabric_run(&p.f, p.f.now + MS);
}

/* ---------------------------------------------------------------- the program */

static void send_one(void) {
    uint32_t i = below(SAID), n = below(9000);
    if (w.said[i])
        return;
    w.said[i] = malloc(n + 1);
    memset(w.said[i], 1, n);
    if (msg_send(b.m, w.said[i], n, below(3), &w.handle[i]) < 0) {
        free(w.said[i]);
        w.said[i] = NULL;
    } else if (one_in(3)) {
        msg_take_back(b.m, w.handle[i]);
        free(w.said[i]);
        w.said[i] = NULL;
    }
}

static void free_left(void) {
    for (int i = 0; i < SAID; i++) {
        if (w.said[i] && w.handle[i] <= msg_left(b.m)) {
            free(w.said[i]);
            w.said[i] = NULL;
        }
    }
}

static void take_one(void) {
    const uint64_t *tag = below(2) ? &w.tag : MSG_ANY;
    w.tag = below(3);
    struct msg_in *in = msg_find(b.m, tag);
    if (in) {
        msg_take(b.m, in);
        msg_drop(b.m, in);
    }
}

static void aim(void) {
    if (w.target) {
        msg_target(b.m, NULL, 0);
        if (!msg_is_landing(b.m)) {
            free(w.target);
            w.target = NULL;
        }
    } else {
        uint32_t n = below(30000);
        w.target = malloc(n + 1);
        msg_target(b.m, w.target, n);
    }
}

static void operate(void) {
    uint32_t i = below(SAID);
    if (w.op[i].state == MSG_OP_QUEUED || w.op[i].state == MSG_OP_POSTED || !b.m->theirs.n)
        return;
    const struct msg_region *r = &b.m->theirs.known[below(b.m->theirs.n)];
    w.op[i] = (struct msg_op){.opcode = RNIC_WR_RDMA_WRITE, .region = r->id, .addr = r->addr, .rkey = r->rkey};
    msg_operate(b.m, &w.op[i]);
}

static void share(void) {
    struct msg_region r = {.access = RNIC_ACCESS_REMOTE_READ, .length = 1};
    if (w.shared - w.withdrawn < 4 && msg_share(b.m, &r) == 0)
        w.regions[w.shared++ % 4] = r.id;
    else if (w.shared != w.withdrawn && msg_withdraw(b.m, w.regions[w.withdrawn % 4]) == 0)
        w.withdrawn++;
}

static void work(void) {
    switch (below(10)) {
    case 0:
        send_one();
        break;
    case 1:
    case 2:
        take_one();
        break;
    case 3:
        b.asked = &w.tag;
        msg_want(b.m, below(2), below(2));
        break;
    case 4:
        aim();
        break;
    case 5:
        operate();
        break;
    case 6:
        share();
        break;
    case 7:
        if (one_in(20))
            msg_close(b.m, (int64_t)p.f.now, one_in(2) ? MSG_NEVER : (int64_t)(5 * MS));
        break;
    case 8:
        b.refused = one_in(8);
        if (one_in(40))
            msg_abort(b.m, "the program has had enough");
        break;
    default:
        b.most_memory = one_in(8) ? 500 : 0;
    }
}

/* ---------------------------------------------------------------- worlds */

static void check_all(void) {
    const struct msg *m = b.m;
    uint64_t weight = 0, waiting = 0;
    for (const struct msg_in *in = m->in.first; in; in = in->next, waiting++)
        weight += EVENT_WEIGHT + in->bytes;
    CHECK_EQ(m->in.weight, weight);
    CHECK((uint64_t)b.objects <= waiting + 2); /* and the part, and what is READ */
    CHECK(m->credits.spent <= m->credits.given + m->credits.returned);
    CHECK(m->credits.freed <= m->credits.arrived && m->credits.told <= m->credits.posted);
    CHECK(m->credits.posted <= m->credits.freed + m->credits.receives);
    CHECK(m->theirs.n <= m->how.max_regions);
    CHECK(m->out.handed_out - m->out.completed <= m->memory.bounces);
    CHECK((m->error.kind != MSG_WELL) == (m->state == MSG_FAILED || m->state == MSG_ABORTING));
    CHECK(m->error.kind == MSG_WELL || m->error.text[0]);
}

/* In band: the hello itself is the owner's to read, and as it should be. */
static void say_hellos(void) {
    const uint8_t *hello;
    uint32_t bytes;
    CHECK_EQ(msg_say_hello(b.m, "hello", 5, 0, (int64_t)p.f.now, NULL), 0);
    try_post(&p.a, (struct rnic_send_wr){.wr_id = 1, .opcode = RNIC_WR_SEND, SGL(SGE(&p.a, MEMORY / 2, 5))});
    fabric_run(&p.f, p.f.now + MS);
    CHECK_EQ(msg_hear_hello(b.m, (int64_t)p.f.now, &hello, &bytes), 1);
}

static void open_world(void) {
    memset(w.op, 0, sizeof w.op);
    w.shared = w.withdrawn = 0;
    w.how = (struct how){.receives = 3 + below(9),
                         .receive_size = 128 + below(900),
                         .send_size = 128 + below(900),
                         .regions = 1 + below(5),
                         .backlog = 1 + below(9000),
                         .announce = below(2) ? 3000 : 0,
                         .version = 1 + below(2)};
    pair_open(&p, .bytes = MEMORY, .wr = 256, .cqe = 512, .quiet = true);
    a = (struct side){.end = &p.a};
    talk_open(&b, &p.b, &w.how);
    for (uint32_t i = 0; i < 64; i++)
        post_recv(&p.a, i, MEMORY / 4, 4096); /* the liar hears all, and listens to nothing */
    if (below(2))
        say_hellos();
    talk_greet(&b, &w.how);
}

static void close_world(void) {
    states[msg_state(b.m)]++;
    kinds[msg_error(b.m)->kind]++;
    if (getenv("ENDS"))
        printf("%llu %s\n", (unsigned long long)(number % LIFE), msg_error(b.m)->text);
    move(p.b.qp, RNIC_QPS_ERR);
    fabric_run(&p.f, p.f.now + MS);
    while (msg_poll(b.m) > 0 || talk_pump(&b) > 0)
        talk_pump(&b);
    msg_lost(b.m, "the world ends");
    msg_fail_operations(b.m);
    CHECK(!msg_operates(b.m));
    msg_free(b.m);
    CHECK_EQ(b.objects, 0);
    for (int i = 0; i < SAID; i++) {
        free(w.said[i]);
        w.said[i] = NULL;
    }
    free(w.target);
    w.target = NULL;
    pair_close(&p);
}

int main(int argc, char **argv) {
    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    uint64_t cases = argc > 2 ? strtoull(argv[2], NULL, 0) : 200000;
    struct dice dice = {.at = NULL};
    rng_seed(&dice.rng, seed);
    w.dice = &dice;
    for (number = 0; number < cases; number++) {
        if (number % LIFE == 0)
            open_world();
        say_any();
        for (uint32_t n = below(3); n; n--)
            work();
        if (!one_in(30)) {
            talk_pump(&b);
            fabric_run(&p.f, p.f.now + MS);
        }
        while (msg_done(b.m))
            ;
        free_left();
        check_all();
        if (number % LIFE == LIFE - 1 || number == cases - 1)
            close_world();
    }
    printf("%llu cases; ended in state", (unsigned long long)cases);
    for (int i = 0; i < MSG_STATES; i++)
        printf(" %llu", (unsigned long long)states[i]);
    printf("; errors by kind");
    for (int i = 0; i <= MSG_LOST; i++)
        printf(" %llu", (unsigned long long)kinds[i]);
    printf("; SENDs");
    for (int i = 1; i < FRAME_TYPES; i++)
        printf(" %s %llu", msg_frame_name(i), (unsigned long long)types[i]);
    printf("\n");
    return 0;
}
