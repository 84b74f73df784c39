/* SPDX-License-Identifier: Apache-2.0
 *
 * WRITEs of a piece and of a word that are posted behind others (rnic.behind/1): what is joined, and what is not.
 */
#include "check.h"
#include "fabric.h"
#include "roce/roce.h"

static struct pair p;

#define WORD 4096u  /* of the word in either end's memory, behind the pieces */
#define PIECE 32u   /* bytes */
#define ID_WORD 100 /* of the word whose pair has id 0 */

struct written {
    struct rnic_send_wr piece, word;
    struct rnic_sge at;
    uint64_t value;
    struct rnic_sge value_at;
};

/* Bytes at `at`, which go to the same place there, and a word. */
static struct written *pair_of(struct written *w, uint64_t at, uint32_t n, uint64_t value) {
    *w = (struct written){.at = SGE(&p.a, at, n), .value = value};
    w->value_at = (struct rnic_sge){(uintptr_t)&w->value, sizeof w->value, 0};
    w->word = (struct rnic_send_wr){.wr_id = ID_WORD + value,
                                    .opcode = RNIC_WR_RDMA_WRITE,
                                    .send_flags = RNIC_SEND_INLINE,
                                    REMOTE(&p.b, WORD),
                                    .sg_list = &w->value_at,
                                    .num_sge = 1};
    w->piece = (struct rnic_send_wr){.wr_id = value,
                                     .next = &w->word,
                                     .opcode = RNIC_WR_RDMA_WRITE,
                                     REMOTE(&p.b, at),
                                     .sg_list = &w->at,
                                     .num_sge = 1};
    return w;
}

static bool behind(uint64_t at, uint32_t n, uint64_t value) {
    struct written w;
    return sq_post_pair(&p.a.qp->sq, &pair_of(&w, at, n, value)->piece);
}

static uint32_t elements(void) { return wq_head(&p.a.qp->sq) - wq_tail(&p.a.qp->sq); }

static uint64_t word_there(void) {
    uint64_t word;
    memcpy(&word, p.b.mem + WORD, sizeof word);
    return word;
}

static uint32_t sent(void) { return fabric_count(&p.f, p.a.node, 0, ROCE_RC_WRITE_ONLY); }

/* With a signaled WRITE under way, that nobody has answered. */
#define OPEN(...)                                                                                                      \
    pair_open(&p, __VA_ARGS__);                                                                                        \
    fill(p.a.mem, WORD, 7);                                                                                            \
    post_write(&p.a, 1000, 2 * WORD, 2 * WORD, 8)

/* It asks for a completion, and takes along what was posted before. */
static void close_when_all_is_there(uint32_t bytes, uint64_t word) {
    post_write(&p.a, 2000, 2 * WORD, 2 * WORD, 8);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1000, SUCCESS);
    WANT(p.a.send_cq, 2000, SUCCESS);
    CHECK(filled(p.b.mem, bytes, 7));
    CHECK_EQ(word_there(), word);
    pair_close(&p);
}

static void pairs_that_go_on_are_joined(void) {
    OPEN(.wr = 8);
    for (uint64_t i = 0; i < 40; i++)
        CHECK(behind(i * PIECE, PIECE, i));
    CHECK_EQ(elements(), 3);
    CHECK_EQ(sent(), 1);
    CHECK_EQ(sq_wqe(&p.a.qp->sq, wq_head(&p.a.qp->sq) - 2)->wr_id, 39);
    CHECK_EQ(sq_wqe(&p.a.qp->sq, wq_head(&p.a.qp->sq) - 1)->wr_id, ID_WORD + 39);
    close_when_all_is_there(40 * PIECE, 39);
}

static void the_answer_to_what_is_under_way_lets_them_leave(void) {
    OPEN();
    CHECK(behind(0, PIECE, 1) && behind(PIECE, PIECE, 2));
    uint64_t start = p.f.now;
    fabric_settle(&p.f);
    CHECK_EQ(p.f.now - start, 40 * US); /* two round trips: the peer answers them at once, too */
    CHECK_EQ(sent(), 3);
    CHECK(filled(p.b.mem, 2 * PIECE, 7));
    CHECK_EQ(word_there(), 2);
    close_when_all_is_there(2 * PIECE, 2);
}

static void only_an_answer_that_was_asked_for_is_waited_for(void) {
    pair_open(&p);
    fill(p.a.mem, WORD, 7);
    CHECK(!sq_awaits(&p.a.qp->sq));
    post(&p.a, (struct rnic_send_wr){.opcode = RNIC_WR_RDMA_WRITE, REMOTE(&p.b, 0), SGL(SGE(&p.a, 0, 8))});
    CHECK(!sq_awaits(&p.a.qp->sq)); /* a silent request is answered some time */
    CHECK(behind(0, PIECE, 1));
    CHECK(sq_awaits(&p.a.qp->sq));
    post_write(&p.a, 1000, 2 * WORD, 2 * WORD, 8);
    CHECK(sq_awaits(&p.a.qp->sq));
    fabric_settle(&p.f);
    CHECK(!sq_awaits(&p.a.qp->sq));
    WANT(p.a.send_cq, 1000, SUCCESS);
    CHECK(filled(p.b.mem, PIECE, 7));
    pair_close(&p);
}

static void what_has_begun_to_leave_is_not_changed(void) {
    OPEN();
    CHECK(behind(0, PIECE, 1));
    fabric_turn(p.a.qp);
    CHECK_EQ(sent(), 3);
    CHECK(behind(PIECE, PIECE, 2));
    CHECK_EQ(elements(), 5);
    close_when_all_is_there(2 * PIECE, 2);
}

static void pairs_that_do_not_go_on_are_not_joined(void) {
    struct written w;
    OPEN();
    CHECK(behind(0, PIECE, 1));
    CHECK(behind(2 * PIECE, PIECE, 2)); /* behind a gap */
    CHECK_EQ(elements(), 5);
    CHECK(behind(PIECE, PIECE, 3)); /* it goes back */
    CHECK_EQ(elements(), 7);
    pair_of(&w, 2 * PIECE, PIECE, 4)->word.wr.rdma.remote_addr += 8; /* another word */
    CHECK(sq_post_pair(&p.a.qp->sq, &w.piece));
    CHECK_EQ(elements(), 9);
    CHECK(behind(3 * PIECE, PIECE, 5)); /* it goes on behind the bytes, and not behind that word */
    CHECK_EQ(elements(), 11);
    pair_of(&w, 4 * PIECE, PIECE, 6)->piece.wr.rdma.remote_addr += PIECE; /* only here */
    CHECK(sq_post_pair(&p.a.qp->sq, &w.piece));
    CHECK_EQ(elements(), 13);
    CHECK(behind(4 * PIECE, PIECE, 7));
    close_when_all_is_there(5 * PIECE, 7);
}

static void a_piece_does_not_grow_for_ever(void) {
    pair_open(&p, .bytes = 1 << 18, .mtu = RNIC_MTU_4096);
    post_write(&p.a, 1000, 0, 0, 8);
    CHECK(behind(WORD + 8, 60000, 1) && behind(WORD + 60008, 5536, 2));
    CHECK_EQ(elements(), 3);
    CHECK(behind(WORD + 65544, 1, 3));
    CHECK_EQ(elements(), 5);
    CHECK(behind(WORD + 65545, 0xFFFFFF, 4)); /* it fails when it is sent, as another request */
    CHECK_EQ(elements(), 7);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1000, SUCCESS);
    WANT_ERR(p.a.send_cq, 4, LOC_PROT_ERR, SGE_BOUNDS);
    WANT(p.a.send_cq, ID_WORD + 4, WR_FLUSH_ERR);
    pair_close(&p);
}

static void no_room(void) {
    OPEN(.wr = 4);
    CHECK(behind(0, PIECE, 1));
    CHECK(!behind(2 * PIECE, PIECE, 2)); /* there is one place */
    CHECK_EQ(elements(), 3);
    CHECK(behind(PIECE, PIECE, 3)); /* it takes none */
    close_when_all_is_there(2 * PIECE, 3);
}

static void other_chains_are_refused(void) {
    struct written w;
    OPEN();
    pair_of(&w, 0, PIECE, 1)->piece.next = NULL;
    CHECK(!sq_post_pair(&p.a.qp->sq, &w.piece));
    pair_of(&w, 0, PIECE, 1)->word.next = &w.piece;
    CHECK(!sq_post_pair(&p.a.qp->sq, &w.piece));
    pair_of(&w, 0, PIECE, 1)->word.send_flags |= RNIC_SEND_SIGNALED;
    CHECK(!sq_post_pair(&p.a.qp->sq, &w.piece));
    pair_of(&w, 0, PIECE, 1)->piece.send_flags = RNIC_SEND_SIGNALED;
    CHECK(!sq_post_pair(&p.a.qp->sq, &w.piece));
    pair_of(&w, 0, PIECE, 1)->piece.opcode = RNIC_WR_SEND;
    CHECK(!sq_post_pair(&p.a.qp->sq, &w.piece));
    pair_of(&w, 0, PIECE, 1)->word.opcode = RNIC_WR_RDMA_WRITE_WITH_IMM;
    CHECK(!sq_post_pair(&p.a.qp->sq, &w.piece));
    pair_of(&w, 0, PIECE, 1)->piece.num_sge = 0;
    CHECK(!sq_post_pair(&p.a.qp->sq, &w.piece));
    pair_of(&w, 0, PIECE, 1)->value_at.length = 4;
    CHECK(!sq_post_pair(&p.a.qp->sq, &w.piece));
    CHECK_EQ(elements(), 1);
    CHECK(behind(0, PIECE, 1));
    close_when_all_is_there(PIECE, 1);
}

static void an_unreliable_connection_answers_nothing(void) {
    pair_open(&p, .type = RNIC_QPT_UC);
    fill(p.a.mem, WORD, 7);
    CHECK(behind(0, PIECE, 1));
    fabric_turn(p.a.qp);
    CHECK(!sq_awaits(&p.a.qp->sq));
    fabric_settle(&p.f);
    CHECK(filled(p.b.mem, PIECE, 7));
    CHECK_EQ(word_there(), 1);
    pair_close(&p);
}

static void pairs_of_xrc_are_refused(void) {
    pair_open(&p, .type = RNIC_QPT_XRC_SEND);
    CHECK(!behind(0, PIECE, 1));
    CHECK_EQ(elements(), 0);
    pair_close(&p);
}

static enum verdict lose_some(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)arg, (void)bth;
    return from == p.a.node && nth % 3 == 1 ? LOSE : PASS;
}

static void what_is_lost_comes_again_as_it_left(void) {
    OPEN();
    p.f.judge = lose_some;
    for (uint64_t i = 0; i < 60; i++) {
        CHECK(behind(i * PIECE, PIECE, i));
        if (i % 7 == 0)
            fabric_turn(p.a.qp);
        if (i % 10 == 0)
            fabric_run(&p.f, p.f.now + 15 * US);
    }
    p.f.judge = NULL;
    close_when_all_is_there(60 * PIECE, 59);
}

int main(void) {
    RUN(pairs_that_go_on_are_joined);
    RUN(the_answer_to_what_is_under_way_lets_them_leave);
    RUN(only_an_answer_that_was_asked_for_is_waited_for);
    RUN(what_has_begun_to_leave_is_not_changed);
    RUN(pairs_that_do_not_go_on_are_not_joined);
    RUN(a_piece_does_not_grow_for_ever);
    RUN(no_room);
    RUN(other_chains_are_refused);
    RUN(an_unreliable_connection_answers_nothing);
    RUN(pairs_of_xrc_are_refused);
    RUN(what_is_lost_comes_again_as_it_left);
    return check_done();
}
