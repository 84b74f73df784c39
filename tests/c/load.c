/* SPDX-License-Identifier: Apache-2.0 */
#include "load.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

#define UNTOUCHED 0xEE
#define GUARD 16 /* between two places */
#define WORDS_BYTES (LOAD_WORDS * 8)
#define TIME_LIMIT (600 * SEC)

/* An end's memory: the words that its peer's atomics work on; then sources, targets of the peer's operations, and what
 * its own READs and atomics bring. */
static uint64_t source(const struct load *l, int i) { return WORDS_BYTES + l->op[i].place; }
static uint64_t target(const struct load *l, int i) { return WORDS_BYTES + l->area + l->op[i].place; }
static uint64_t result(const struct load *l, int i) { return WORDS_BYTES + 2 * l->area + l->op[i].place; }

static bool is_atomic(const struct load_op *op) {
    return op->opcode == RNIC_WR_ATOMIC_CMP_AND_SWP || op->opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD;
}

static bool is_send(const struct load_op *op) {
    return op->opcode == RNIC_WR_SEND || op->opcode == RNIC_WR_SEND_WITH_IMM;
}

static bool has_imm(const struct load_op *op) {
    return op->opcode == RNIC_WR_SEND_WITH_IMM || op->opcode == RNIC_WR_RDMA_WRITE_WITH_IMM;
}

static uint32_t imm_of(int i) { return htonl(0xC0DE0000u + (uint32_t)i); }

/* ---------------------------------------------------------------- making */

static void model(struct load *l) {
    uint64_t place = 0;
    l->failed = -1;
    for (int i = 0; i < l->ops; i++) {
        struct load_op *op = &l->op[i];
        uint64_t *word = &l->word[i + 1][op->word];
        memcpy(l->word[i + 1], l->word[i], sizeof l->word[i]);
        op->place = place;
        place += ((is_atomic(op) ? 8 : op->length) + GUARD + 7) & ~7ull;
        if (is_send(op) || has_imm(op))
            l->recv_op[l->receives++] = i;
        op->before = *word;
        if (op->opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD)
            *word += op->operand;
        else if (op->opcode == RNIC_WR_ATOMIC_CMP_AND_SWP && *word == op->operand)
            *word = op->swap;
    }
    l->area = place;
}

static void invent(struct load *l, struct rng *r, int ops, uint32_t longest) {
    l->ops = ops;
    for (int i = 0; i < ops; i++) {
        struct load_op *op = &l->op[i];
        uint64_t dice = rng_next(r);
        *op = (struct load_op){.opcode = (int)((dice >> 8) % 7), .word = (dice >> 16) % LOAD_WORDS};
        op->length = (uint32_t)((dice >> 24) % ((dice >> 60) < 4 ? 20 : longest + 1));
        op->flags = (dice >> 56) % 8 == 0 ? RNIC_SEND_FENCE : 0;
        op->silent = (dice >> 36) % 3 == 0 && i < ops - 1;
        if (is_atomic(op)) {
            op->length = 8;
            op->operand = (dice >> 40) % 3; /* comparisons that are equal now and then */
            op->swap = (dice >> 44) % 3;
        }
    }
}

static void open_pair(struct loads *l, struct pair *p, struct options *o) {
    model(&l->ab);
    model(&l->ba);
    l->ab.from = l->ba.to = &p->a;
    l->ab.to = l->ba.from = &p->b;
    uint64_t area = l->ab.area > l->ba.area ? l->ab.area : l->ba.area;
    l->ab.area = l->ba.area = area;
    o->bytes = WORDS_BYTES + 3 * area;
    if (!o->wr)
        o->wr = LOAD_OPS;
    pair_open_options(p, o);
    memset(p->a.mem + WORDS_BYTES + area, UNTOUCHED, 2 * area);
    memset(p->b.mem + WORDS_BYTES + area, UNTOUCHED, 2 * area);
    for (int k = 0; k < 2; k++) {
        struct load *one = k ? &l->ba : &l->ab;
        for (int i = 0; i < one->ops; i++) {
            struct end *holder = one->op[i].opcode == RNIC_WR_RDMA_READ ? one->to : one->from;
            uint64_t at = holder == one->to ? target(one, i) : source(one, i);
            fill(holder->mem + at, one->op[i].length, one->seed + (uint64_t)i);
        }
    }
    l->started = p->f.now;
}

void loads_open(struct loads *l, struct pair *p, struct options *o, uint64_t seed, int ops, uint32_t longest) {
    memset(l, 0, sizeof *l);
    rng_seed(&l->rng, seed);
    l->ab.seed = seed * 1000;
    l->ba.seed = seed * 1000 + 500;
    invent(&l->ab, &l->rng, ops, longest);
    invent(&l->ba, &l->rng, o->type == RNIC_QPT_XRC_SEND ? 0 : ops, longest);
    open_pair(l, p, o);
}

void loads_open_fixed(struct loads *l, struct pair *p, struct options *o, const struct load_op *op, int ops) {
    memset(l, 0, sizeof *l);
    rng_seed(&l->rng, 1);
    l->ab.seed = 77000;
    memcpy(l->ab.op, op, (size_t)ops * sizeof *op);
    l->ab.ops = ops;
    open_pair(l, p, o);
}

/* ---------------------------------------------------------------- running */

static void post_op(struct load *l, int i) {
    const struct load_op *op = &l->op[i];
    bool gets = is_atomic(op) || op->opcode == RNIC_WR_RDMA_READ;
    uint64_t local = gets ? result(l, i) : source(l, i);
    uint32_t half = is_atomic(op) ? 8 : op->length / 3; /* two elements */
    struct rnic_send_wr wr = {.wr_id = (uint64_t)i,
                              .opcode = op->opcode,
                              .send_flags = (op->silent ? 0 : RNIC_SEND_SIGNALED) | op->flags,
                              .imm_data = imm_of(i),
                              SGL(SGE(l->from, local, half), SGE(l->from, local + half, op->length - half))};
    if (is_atomic(op)) {
        wr.wr.atomic.remote_addr = (uintptr_t)l->to->mem + 8 * op->word;
        wr.wr.atomic.rkey = l->to->mr->pub.rkey;
        wr.wr.atomic.compare_add = op->operand;
        wr.wr.atomic.swap = op->swap;
    } else {
        wr.wr.rdma.remote_addr = (uintptr_t)l->to->mem + target(l, i);
        wr.wr.rdma.rkey = l->to->mr->pub.rkey;
    }
    post(l->from, wr);
}

static void post_some(struct load *l, int sends, int receives) {
    bool dead = l->from->qp->state == RNIC_QPS_ERR;
    for (; receives && l->recv_posted < l->receives; receives--) {
        int i = l->recv_op[l->recv_posted];
        post_recv(l->to, (uint64_t)l->recv_posted++, target(l, i), is_send(&l->op[i]) ? l->op[i].length : 0);
    }
    for (; sends && !dead && l->posted < l->ops; sends--)
        post_op(l, l->posted++);
}

static void poll_sends(struct load *l) {
    struct rnic_wc wc;
    while (cq_take(l->from->send_cq, 1, &wc)) {
        for (; l->done < (int)wc.wr_id; l->done++)
            CHECK(l->op[l->done].silent && l->failed < 0);
        CHECK_EQ(wc.wr_id, l->done);
        CHECK(l->done < l->posted);
        if (l->failed >= 0) {
            CHECK_EQ(wc.status, RNIC_WC_WR_FLUSH_ERR);
        } else if (wc.status) {
            l->failed = l->done;
            l->status = wc.status;
        } else {
            CHECK_EQ(wc.byte_len, l->op[l->done].length);
        }
        l->done++;
    }
}

static void poll_receives(struct load *l) {
    struct rnic_wc wc;
    while (cq_take(l->to->recv_cq, 1, &wc)) {
        CHECK_EQ(wc.wr_id, l->recv_done);
        if (wc.status) {
            CHECK_EQ(wc.status, RNIC_WC_WR_FLUSH_ERR);
            CHECK_EQ(l->to->qp->state, RNIC_QPS_ERR);
            l->recv_posted = l->receives; /* no more */
            while (cq_take(l->to->recv_cq, 1, &wc))
                CHECK_EQ(wc.status, RNIC_WC_WR_FLUSH_ERR);
            return;
        }
        int i = l->recv_op[l->recv_done++];
        CHECK_EQ(wc.byte_len, l->op[i].length);
        CHECK_EQ(wc.opcode, is_send(&l->op[i]) ? RNIC_WCO_RECV : RNIC_WCO_RECV_RDMA_WITH_IMM);
        CHECK_EQ(wc.wc_flags, has_imm(&l->op[i]) ? RNIC_WCF_WITH_IMM : 0);
        if (has_imm(&l->op[i]))
            CHECK_EQ(wc.imm_data, imm_of(i));
    }
}

/* In error, what was posted last may have completed in silence before. */
static bool over(const struct load *l) {
    int seen = l->done;
    while (l->from->qp->state == RNIC_QPS_ERR && seen < l->posted && l->op[seen].silent)
        seen++;
    return seen == (l->from->qp->state == RNIC_QPS_ERR ? l->posted : l->ops);
}

void loads_run(struct loads *l, struct pair *p, bool eager) {
    if (eager) {
        post_some(&l->ab, LOAD_OPS, LOAD_OPS);
        post_some(&l->ba, LOAD_OPS, LOAD_OPS);
    }
    while (!over(&l->ab) || !over(&l->ba)) {
        uint64_t dice = rng_next(&l->rng);
        post_some(&l->ab, (dice >> 8) % 8, (dice >> 16) % 6);
        post_some(&l->ba, (dice >> 24) % 8, (dice >> 32) % 6);
        fabric_run(&p->f, p->f.now + (eager ? SEC : 1 + (dice >> 40) % (100 * US)));
        poll_sends(&l->ab);
        poll_sends(&l->ba);
        poll_receives(&l->ab);
        poll_receives(&l->ba);
        if (p->f.now > l->started + TIME_LIMIT)
            check_fail(__FILE__, __LINE__, "stuck: %d of %d and %d of %d are complete", l->ab.done, l->ab.ops,
                       l->ba.done, l->ba.ops);
    }
    fabric_settle(&p->f);
    poll_sends(&l->ab);
    poll_sends(&l->ba);
    poll_receives(&l->ab);
    poll_receives(&l->ba);
}

/* ---------------------------------------------------------------- judging */

static void verify_op(const struct load *l, int i) {
    const struct load_op *op = &l->op[i];
    uint64_t before;
    if (is_atomic(op)) {
        memcpy(&before, l->from->mem + result(l, i), sizeof before);
        CHECK_EQ(before, op->before);
        return;
    }
    const uint8_t *bytes = op->opcode == RNIC_WR_RDMA_READ ? l->from->mem + result(l, i) : l->to->mem + target(l, i);
    CHECK(filled(bytes, op->length, l->seed + (uint64_t)i));
    if (op->opcode != RNIC_WR_RDMA_READ) {
        for (int k = 0; k < GUARD; k++)
            CHECK_EQ(bytes[op->length + k], UNTOUCHED);
    }
}

static void verify(const struct load *l) {
    int good = l->failed < 0 ? l->done : l->failed, sends = 0, exact = -1;
    for (int i = 0; i < good; i++) {
        verify_op(l, i);
        sends += is_send(&l->op[i]) || has_imm(&l->op[i]);
    }
    for (int r = 0; r < l->recv_done; r++) { /* what was received was right, also where its ACK was lost */
        if (is_send(&l->op[l->recv_op[r]]))
            verify_op(l, l->recv_op[r]);
    }
    CHECK(l->recv_done >= sends);
    CHECK(l->recv_done <= l->receives && (l->recv_done == 0 || l->recv_op[l->recv_done - 1] < l->posted));
    /* The atomics that were executed are the first n, each of them once. */
    for (int n = good; n <= l->posted && exact < 0; n++)
        exact = memcmp(l->to->mem, l->word[n], WORDS_BYTES) ? -1 : n;
    CHECK(exact >= 0);
    if (l->failed >= 0)
        CHECK(l->status == RNIC_WC_RETRY_EXC_ERR || l->status == RNIC_WC_RNR_RETRY_EXC_ERR);
}

void loads_verify(const struct loads *l, struct pair *p) {
    verify(&l->ab);
    verify(&l->ba);
    pair_in_step(p);
    struct end *ends[] = {&p->a, &p->b};
    for (int k = 0; k < 2; k++) {
        CHECK_EQ(take_event(ends[k]), -1);
        CHECK_EQ(COUNTER(ends[k], nak_remote_sent), 0);
        CHECK_EQ(COUNTER(ends[k], drop_malformed), 0);
    }
}
