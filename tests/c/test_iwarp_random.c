/* SPDX-License-Identifier: Apache-2.0
 *
 * Random conversations of two engines against a model of memory and of completions, over streams that are cut at random.
 *
 * test_iwarp_random [SEEDS]: so many (or SEEDS in the environment).  ONLY_SEED: that one alone.
 *
 * What is under way at once touches different bytes, so that the model need not know which comes first.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "stream.h"

#define BYTES (1u << 20)
#define BATCHES 6
#define MOST 24 /* operations of a batch, at each end */

struct side {
    struct end *end;
    uint8_t *model;           /* what its memory is to be */
    uint32_t next;            /* its bytes from here on are not in use */
    uint64_t sends, receives; /* ids */
    struct expected {
        uint64_t id;
        uint32_t length, flags;
        int opcode;
        bool silent;
    } send[MOST], receive[MOST];
    int send_count, receive_count;
};

static struct stream s;
static struct side sides[2];
static struct rng rng;
static struct stream_options options;

static uint32_t below(uint32_t n) { return (uint32_t)(rng_next(&rng) >> 32) % n; }
static bool one_in(uint32_t n) { return !below(n); }

static uint32_t some_length(void) {
    switch (below(6)) {
    case 0:
        return below(4);
    case 1:
        return 1000 + below(3000);
    case 2:
        return one_in(6) ? 60000 + below(30000) : below(2000);
    default:
        return below(130);
    }
}

/* Bytes that nothing else under way touches; false: there are none left in this batch. */
static bool take(struct side *side, uint32_t n, uint32_t *at) {
    *at = side->next + below(9);
    if (*at + n + 64 > BYTES)
        return false;
    side->next = *at + n;
    return true;
}

/* ---------------------------------------------------------------- the streams */

static void vary_pipe(struct pipe *p) {
    p->most_read = one_in(3) ? 1 + below(3000) : 0;
    p->most_written = one_in(3) ? 1 + below(70000) : 0;
    p->most_in_pipe = one_in(3) ? 1 + below(20000) : 0;
    p->held = false;
    if (one_in(4))
        p->segment = 60 + below(one_in(2) ? 200 : 70000);
}

static void open_streams(void) {
    options = (struct stream_options){.bytes = BYTES,
                                      .no_crc = one_in(2),
                                      .markers = one_in(3),
                                      .rfc7306 = true,
                                      .rtr = (uint8_t)below(4),
                                      .rd_atomic = 1 + below(6),
                                      .segment = 100 + below(70000),
                                      .sge = 4};
    options.dest_rd_atomic = options.rd_atomic + below(3);
    stream_open_options(&s, &options);
    if (one_in(2)) {
        iwarp_confirm(s.a.qp, true);
        iwarp_confirm(s.b.qp, true);
    }
    for (int i = 0; i < 2; i++) {
        sides[i] = (struct side){.end = i ? &s.b : &s.a, .model = sides[i].model};
        fill(sides[i].end->mem, BYTES, rng_next(&rng));
        memcpy(sides[i].model, sides[i].end->mem, BYTES);
    }
}

/* ---------------------------------------------------------------- operations */

static void note_send(struct side *side, int opcode, uint32_t length, bool silent) {
    side->send[side->send_count++] =
        (struct expected){.id = side->sends++, .length = length, .opcode = opcode, .silent = silent};
}

/* A list of one to four elements of memory that is in one piece. */
static int scatter(struct side *side, uint32_t at, uint32_t n, struct rnic_sge *sge) {
    int count = 1 + (int)below(4);
    for (int i = 0; i < count; i++) {
        uint32_t part = i == count - 1 ? n : below(n + 1);
        sge[i] = (struct rnic_sge){(uintptr_t)side->end->mem + at, part, side->end->mr->pub.lkey};
        at += part;
        n -= part;
    }
    return count;
}

static bool receive(struct side *to, uint32_t n, const struct side *from, uint32_t at, int opcode, uint32_t flags) {
    uint32_t place, room = n + below(50);
    struct rnic_sge sge[4];
    const struct rnic_recv_wr *bad;
    bool immediate = opcode == RNIC_WCO_RECV_RDMA_WITH_IMM;
    if (to->receive_count == MOST || !take(to, room, &place))
        return false;
    struct rnic_recv_wr wr = {
        .wr_id = to->receives, .sg_list = sge, .num_sge = scatter(to, place, immediate ? 0 : room, sge)};
    CHECK_EQ(rq_post(&to->end->qp->rq, &wr, &bad, NULL), 0);
    if (!immediate)
        memcpy(to->model + place, from->model + at, n);
    to->receive[to->receive_count++] =
        (struct expected){.id = to->receives++, .length = n, .opcode = opcode, .flags = flags};
    return true;
}

static void operate(struct side *us, struct side *them) {
    uint32_t n = some_length(), at, there;
    int kind = (int)below(6);
    struct rnic_sge sge[4];
    struct rnic_send_wr wr = {.wr_id = us->sends,
                              .sg_list = sge,
                              .send_flags = (one_in(4) ? 0 : RNIC_SEND_SIGNALED) | (one_in(5) ? RNIC_SEND_FENCE : 0) |
                                            (one_in(3) ? RNIC_SEND_SOLICITED : 0)};
    bool atomic = kind == 4, inlined = (kind == 0 || kind == 1) && n <= 64 && one_in(2);
    n = atomic ? 8 : n;
    if (us->send_count == MOST || !take(us, n, &at) || !take(them, n + 8, &there))
        return;
    there = atomic ? (there + 7) / 8 * 8 : there;
    wr.num_sge = scatter(us, at, n, sge);
    wr.wr.rdma.remote_addr = (uintptr_t)them->end->mem + there;
    wr.wr.rdma.rkey = them->end->mr->pub.rkey;
    wr.send_flags |= inlined ? RNIC_SEND_INLINE : 0;
    switch (kind) {
    case 0:
        if (!receive(them, n, us, at, RNIC_WCO_RECV, 0))
            return;
        wr.opcode = RNIC_WR_SEND;
        break;
    case 1:
        wr.opcode = RNIC_WR_RDMA_WRITE;
        memcpy(them->model + there, us->model + at, n);
        break;
    case 2:
        if (!receive(them, n, us, at, RNIC_WCO_RECV_RDMA_WITH_IMM, RNIC_WCF_WITH_IMM))
            return;
        wr.opcode = RNIC_WR_RDMA_WRITE_WITH_IMM;
        wr.imm_data = (uint32_t)us->sends;
        memcpy(them->model + there, us->model + at, n);
        break;
    case 4: {
        uint64_t was, add = rng_next(&rng);
        memcpy(&was, them->model + there, 8);
        memcpy(us->model + at, &was, 8);
        bool swaps = one_in(2);
        wr.opcode = swaps ? RNIC_WR_ATOMIC_CMP_AND_SWP : RNIC_WR_ATOMIC_FETCH_AND_ADD;
        wr.wr.atomic.remote_addr = (uintptr_t)them->end->mem + there;
        wr.wr.atomic.rkey = them->end->mr->pub.rkey;
        wr.wr.atomic.compare_add = swaps ? was + one_in(3) : add;
        wr.wr.atomic.swap = add;
        uint64_t is = !swaps ? was + add : wr.wr.atomic.compare_add == was ? add : was;
        memcpy(them->model + there, &is, 8);
        break;
    }
    default:
        wr.opcode = RNIC_WR_RDMA_READ;
        memcpy(us->model + at, them->model + there, n);
    }
    note_send(us, wc_opcode_of(wr.opcode), n, !(wr.send_flags & RNIC_SEND_SIGNALED));
    post(us->end, wr);
    if (inlined) {
        memset(us->end->mem + at, 0, n);
        memset(us->model + at, 0, n);
    }
}

/* ---------------------------------------------------------------- what is checked */

static void check_side(struct side *side) {
    for (int i = 0; i < side->send_count; i++) {
        const struct expected *e = &side->send[i];
        if (!e->silent)
            CHECK_EQ(want_wc(side->end->send_cq, e->id, RNIC_WC_SUCCESS, __FILE__, __LINE__).opcode, e->opcode);
    }
    for (int i = 0; i < side->receive_count; i++) {
        const struct expected *e = &side->receive[i];
        struct rnic_wc wc = want_wc(side->end->recv_cq, e->id, RNIC_WC_SUCCESS, __FILE__, __LINE__);
        CHECK_EQ(wc.opcode, e->opcode);
        CHECK_EQ(wc.byte_len, e->length);
        CHECK_EQ(wc.wc_flags, e->flags);
    }
    WANT_NONE(side->end->send_cq);
    WANT_NONE(side->end->recv_cq);
    CHECK(!memcmp(side->end->mem, side->model, BYTES));
    CHECK_EQ(side->end->qp->state, RNIC_QPS_RTS);
    side->send_count = side->receive_count = 0;
    side->next = 0;
}

static void batch(void) {
    uint32_t n = 1 + below(2 * MOST);
    vary_pipe(&s.ab);
    vary_pipe(&s.ba);
    for (uint32_t i = 0; i < n; i++) {
        int who = (int)below(2);
        operate(&sides[who], &sides[1 - who]);
        for (uint32_t steps = one_in(3) ? below(5) : 0; steps; steps--)
            (void)stream_step(&s);
    }
    if (!options.rtr && !sides[0].send_count) { /* the other speaks when it has been spoken to */
        post_write(sides[0].end, sides[0].sends, 0, 0, 0);
        note_send(&sides[0], RNIC_WCO_RDMA_WRITE, 0, false);
    }
    stream_run(&s);
    check_side(&sides[0]);
    check_side(&sides[1]);
}

static void end_in_order(void) {
    struct end *first = one_in(2) ? &s.a : &s.b;
    CHECK_EQ(stream_move(first, RNIC_QPS_SQD, NULL), 0);
    if (one_in(2))
        CHECK_EQ(stream_move(first->peer, RNIC_QPS_SQD, NULL), 0);
    stream_run(&s);
    /* Nobody asks for a silent one. */
    for (int i = 0; i < 2 && s.a.qp->state + s.b.qp->state != 2 * RNIC_QPS_ERR; i++) {
        stream_later(&s);
        stream_run(&s);
    }
    CHECK(s.a.qp->state == RNIC_QPS_ERR && s.b.qp->state == RNIC_QPS_ERR);
    CHECK_EQ(ending_of(&s, first)->event.end, RNIC_STREAM_CLOSED);
    WANT_NO_EVENT(&s.a);
    WANT_NO_EVENT(&s.b);
}

static void run_seed(uint32_t seed) {
    check_note("seed %u", seed);
    rng_seed(&rng, seed);
    open_streams();
    for (int i = 0; i < BATCHES; i++)
        batch();
    end_in_order();
    stream_close(&s);
}

static uint32_t seeds;

static void random_conversations(void) {
    sides[0].model = malloc(BYTES);
    sides[1].model = malloc(BYTES);
    const char *only = getenv("ONLY_SEED");
    for (uint32_t seed = only ? (uint32_t)atoi(only) : 1; seed <= (only ? (uint32_t)atoi(only) : seeds); seed++)
        run_seed(seed);
    free(sides[0].model);
    free(sides[1].model);
}

int main(int argc, char **argv) {
    const char *count = argc > 1 ? argv[1] : getenv("SEEDS");
    seeds = count ? (uint32_t)atoi(count) : 60;
    RUN(random_conversations);
    return check_done();
}
