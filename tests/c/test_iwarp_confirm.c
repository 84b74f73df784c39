/* SPDX-License-Identifier: Apache-2.0
 *
 * SENDs and WRITEs of iWARP that complete when the peer has them: by READs of no bytes behind them, which no program sees.
 */
#include <errno.h>

#include "check.h"
#include "iwarp/engine.h"
#include "mem/mw.h"
#include "segment.h"
#include "stream.h"
#include "wire/mpa.h"
#include "wire/rdmap.h"

static struct stream s;

#define open_confirmed(...)                                                                                            \
    do {                                                                                                               \
        stream_open(&s, .rtr = RNIC_STREAM_RTR_WRITE, __VA_ARGS__);                                                    \
        iwarp_confirm(s.a.qp, true);                                                                                   \
        iwarp_confirm(s.b.qp, true);                                                                                   \
        stream_run(&s);                                                                                                \
    } while (0)

/* READ requests among the frames that an end has written. */
static int reads_in(const struct pipe *p) {
    int reads = 0;
    for (uint64_t at = 0; at < p->written; at += mpa_fpdu(mpa_length(p->bytes + at)))
        reads += mpa_length(p->bytes + at) && rdmap_opcode(p->bytes + at + MPA_LENGTH_BYTES) == RDMAP_READ_REQUEST;
    return reads;
}

static int close_it(struct end *e) { return stream_move(e, RNIC_QPS_SQD, NULL); }

/* ---------------------------------------------------------------- completion */

static void not_before_the_peer_has_it(void) {
    for (int write = 0; write < 2; write++) {
        check_note("%s", write ? "WRITE" : "SEND");
        open_confirmed(.rd_atomic = 4);
        s.ab.held = true;
        post_recv(&s.b, 11, 0, 8);
        if (write)
            post_write(&s.a, 1, 0, 100, 8);
        else
            post_send(&s.a, 1, 0, 8);
        stream_run(&s);
        WANT_NONE(s.a.send_cq);
        s.ab.held = false;
        stream_run(&s);
        WANT(s.a.send_cq, 1, SUCCESS);
        CHECK_EQ(reads_in(&s.ab), 1);
        CHECK_EQ(reads_in(&s.ba), 0);
        stream_close(&s);
    }
}

static void one_question_speaks_for_all_before_it(void) {
    open_confirmed(.rd_atomic = 4);
    s.ab.held = true;
    for (uint64_t i = 1; i <= 20; i++) {
        post_write(&s.a, i, 0, 0, 8);
        stream_run(&s);
    }
    WANT_NONE(s.a.send_cq);
    CHECK_EQ(reads_in(&s.ab), 1);
    s.ab.held = false;
    stream_run(&s);
    for (uint64_t i = 1; i <= 20; i++)
        WANT(s.a.send_cq, i, SUCCESS);
    CHECK_EQ(reads_in(&s.ab), 2);
    stream_close(&s);
}

/* An answer says nothing of what went behind its question. */
static void a_question_does_not_speak_for_what_follows(void) {
    open_confirmed(.rd_atomic = 4);
    s.ab.held = true;
    post_write(&s.a, 1, 0, 0, 8);
    stream_run(&s);
    uint64_t question = s.ab.written;
    post_write(&s.a, 2, 0, 64, 8);
    stream_run(&s);
    s.ab.held = false;
    s.ab.cut_read = question;
    while (s.ab.read < question)
        CHECK(stream_step(&s));
    s.ab.held = true;
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    WANT_NONE(s.a.send_cq);
    s.ab.held = false;
    stream_run(&s);
    WANT(s.a.send_cq, 2, SUCCESS);
    stream_close(&s);
}

/* Others wait behind a pair for an answer (rnic.behind/1), though nobody hears of its completion. */
static void a_pair_that_others_wait_behind_is_asked_for(void) {
    open_confirmed(.rd_atomic = 4);
    uint64_t value = 7;
    struct rnic_send_wr word = {.opcode = RNIC_WR_RDMA_WRITE,
                                .send_flags = RNIC_SEND_INLINE,
                                SGL({(uintptr_t)&value, sizeof value, 0}),
                                REMOTE(&s.b, 64)};
    struct rnic_send_wr piece = {.next = &word, .opcode = RNIC_WR_RDMA_WRITE, SGL(SGE(&s.a, 0, 8)), REMOTE(&s.b, 0)};
    CHECK(sq_post_pair(&s.a.qp->sq, &piece));
    stream_run(&s);
    CHECK_EQ(*(uint64_t *)(s.b.mem + 64), value);
    CHECK_EQ(reads_in(&s.ab), 1);
    CHECK(!sq_awaits(&s.a.qp->sq));
    stream_close(&s);
}

/* The answer to a READ of the program's says the same, and waits for no other. */
static void a_read_behind_it_is_question_enough(void) {
    open_confirmed(.rd_atomic = 1);
    struct rnic_send_wr read = {.wr_id = 2, .opcode = RNIC_WR_RDMA_READ, SGL(SGE(&s.a, 0, 8)), REMOTE(&s.b, 0)};
    struct rnic_send_wr write = {.wr_id = 1,
                                 .opcode = RNIC_WR_RDMA_WRITE,
                                 .send_flags = RNIC_SEND_SIGNALED,
                                 SGL(SGE(&s.a, 0, 8)),
                                 REMOTE(&s.b, 64)};
    read.send_flags = RNIC_SEND_SIGNALED;
    s.ab.held = true;
    post_read(&s.a, 0, 0, 0, 8); /* the one that may be under way */
    post(&s.a, write);
    post(&s.a, read);
    stream_run(&s);
    WANT_NONE(s.a.send_cq);
    s.ab.held = false;
    stream_run(&s);
    for (uint64_t i = 0; i <= 2; i++)
        WANT(s.a.send_cq, i, SUCCESS);
    WANT_NONE(s.a.send_cq);
    stream_close(&s);
}

/* Answers come in order, the program's and the others. */
static void among_reads_and_atomics(void) {
    open_confirmed(.rd_atomic = 4, .rfc7306 = true);
    s.ab.held = true;
    for (uint64_t i = 0; i < 12; i += 3) {
        post_write(&s.a, i, 0, 64, 8);
        post_read(&s.a, i + 1, 8, 64, 8);
        post_add(&s.a, i + 2, 16, 128, 1);
        stream_run(&s);
    }
    s.ab.held = false;
    stream_run(&s);
    for (uint64_t i = 0; i < 12; i++)
        WANT(s.a.send_cq, i, SUCCESS);
    CHECK_EQ(s.a.qp->state, RNIC_QPS_RTS);
    CHECK_EQ(*(uint64_t *)(s.b.mem + 128), 4);
    stream_close(&s);
}

/* An atomic behind a question does not wait for its answer, so that no WRITE overtakes it. */
static void a_question_holds_nothing_up(void) {
    open_confirmed(.rd_atomic = 4, .rfc7306 = true);
    *(uint64_t *)s.a.mem = 7;
    s.ab.held = true;
    post_write(&s.a, 1, 8, 128, 8);
    stream_run(&s);
    post_add(&s.a, 2, 16, 64, 1);
    post_write(&s.a, 3, 0, 64, 8);
    stream_run(&s);
    s.ab.held = false;
    stream_run(&s);
    for (uint64_t i = 1; i <= 3; i++)
        WANT(s.a.send_cq, i, SUCCESS);
    CHECK_EQ(*(uint64_t *)(s.a.mem + 16), 0);
    CHECK_EQ(*(uint64_t *)(s.b.mem + 64), 7);
    stream_close(&s);
}

/* As after 2^31 READs and no WRITE: the counters of the ring are moved on, and nothing is asked. */
static void no_question_behind_half_a_lap_of_reads(void) {
    const uint32_t lap = 0x80000000u + 7 * 64;
    open_confirmed(.rd_atomic = 4);
    struct wq *q = &s.a.qp->sq;
    post_write(&s.a, 1, 0, 0, 8);
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    for (int half = 0; half < 2; half++) {
        q->head += lap / 2;
        q->tail += lap / 2;
        q->freed += lap / 2;
        iwarp_of(s.a.qp)->snd.next += lap / 2;
        post_read(&s.a, 2, 0, 0, 8);
        stream_run(&s);
        WANT(s.a.send_cq, 2, SUCCESS);
    }
    CHECK_EQ(reads_in(&s.ab), 3);
    stream_close(&s);
}

/* A bind of a window: work that is done without the peer. */
static void post_local(struct mw *window, uint64_t id) {
    *window = (struct mw){.pub = {.pd = &s.a.node->pd.pub, .type = RNIC_MW_TYPE_2}};
    CHECK_EQ(mw_insert(&s.a.node->nic.mrs, window), 0);
    uint32_t key = (window->pub.rkey & ~0xFFu) | ((window->pub.rkey + 1) & 0xFF);
    post(&s.a, (struct rnic_send_wr){.wr_id = id,
                                     .opcode = RNIC_WR_BIND_MW,
                                     .send_flags = RNIC_SEND_SIGNALED,
                                     .bind_mw = {&window->pub, key, {&s.a.mr->pub, (uintptr_t)s.a.mem, 64, 0}}});
    stream_run(&s);
}

static void remove_window(struct mw *window) { mw_remove(&s.a.node->nic.mrs, window); }

/* Completions come in order, so somebody hears of the WRITE, too. */
static void local_work_behind_one_that_is_not_signaled(void) {
    struct mw window;
    open_confirmed(.rd_atomic = 4);
    post(&s.a, (struct rnic_send_wr){.wr_id = 1, .opcode = RNIC_WR_RDMA_WRITE, REMOTE(&s.b, 0), SGL(SGE(&s.a, 0, 8))});
    post_local(&window, 2);
    WANT(s.a.send_cq, 2, SUCCESS);
    remove_window(&window);
    stream_close(&s);
}

/* As after 2^31 elements of the device's own, which ask nothing: a WRITE behind them is not complete too early. */
static void behind_half_a_lap_of_local_work(void) {
    const uint32_t lap = 0x80000000u + 640;
    struct mw window[2];
    open_confirmed(.rd_atomic = 4);
    struct wq *q = &s.a.qp->sq;
    for (int half = 0; half < 2; half++) {
        q->head += lap / 2;
        q->tail += lap / 2;
        q->freed += lap / 2;
        iwarp_of(s.a.qp)->snd.next += lap / 2;
        post_local(&window[half], 2);
        WANT(s.a.send_cq, 2, SUCCESS);
    }
    s.ab.held = true;
    post_write(&s.a, 3, 0, 0, 8);
    stream_run(&s);
    WANT_NONE(s.a.send_cq);
    s.ab.held = false;
    stream_run(&s);
    WANT(s.a.send_cq, 3, SUCCESS);
    remove_window(&window[0]);
    remove_window(&window[1]);
    stream_close(&s);
}

/* Whose answer is due is known by numbers, and behind the last one comes 0. */
static void numbers_that_begin_again(void) {
    for (uint32_t first = UINT32_MAX - 3; first != 1; first++) {
        check_note("from %u on", first);
        open_confirmed(.rd_atomic = 4);
        iwarp_of(s.a.qp)->snd.msn[1] = iwarp_of(s.b.qp)->in.msn[QUEUE_REQUEST] = first;
        s.ab.held = true;
        post_read(&s.a, 1, 0, 0, 8);
        post_write(&s.a, 2, 0, 64, 8);
        stream_run(&s);
        post_read(&s.a, 3, 0, 0, 8);
        stream_run(&s);
        CHECK_EQ(reads_in(&s.ab), 3);
        s.ab.held = false;
        stream_run(&s);
        for (uint64_t i = 1; i <= 3; i++)
            WANT(s.a.send_cq, i, SUCCESS);
        CHECK_EQ(iwarp_of(s.a.qp)->snd.msn[1], first + 3);
        stream_close(&s);
    }
}

/* A READ makes the connection ready, whose answer stands ahead of the others. */
static void behind_the_read_that_makes_a_connection_ready(void) {
    stream_open(&s, .rtr = RNIC_STREAM_RTR_READ);
    iwarp_confirm(s.a.qp, false);
    post_write(&s.a, 1, 0, 0, 8);
    post_read(&s.a, 2, 0, 0, 8);
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    WANT(s.a.send_cq, 2, SUCCESS);
    stream_close(&s);
}

static void who_does_not_listen_is_not_told(void) {
    open_confirmed(.rd_atomic = 4);
    for (int i = 0; i < 60; i++) {
        post(&s.a, (struct rnic_send_wr){.opcode = RNIC_WR_RDMA_WRITE, SGL(SGE(&s.a, 0, 8)), REMOTE(&s.b, 0)});
        stream_run(&s);
    }
    CHECK_EQ(reads_in(&s.ab), 0);
    stream_close(&s);

    open_confirmed(.sig_all = true);
    post(&s.a, (struct rnic_send_wr){.opcode = RNIC_WR_RDMA_WRITE, SGL(SGE(&s.a, 0, 8)), REMOTE(&s.b, 0)});
    stream_run(&s);
    WANT(s.a.send_cq, 0, SUCCESS);
    CHECK_EQ(reads_in(&s.ab), 1);
    stream_close(&s);
}

static void without_reads_as_before(void) {
    open_confirmed(.rd_atomic = NONE);
    s.ab.held = true;
    post_write(&s.a, 1, 0, 0, 8);
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    CHECK_EQ(reads_in(&s.ab), 0);
    stream_close(&s);
}

/* What went before is complete by itself. */
static void from_now_on(void) {
    stream_open(&s, .rtr = RNIC_STREAM_RTR_WRITE);
    stream_run(&s);
    s.ab.held = true;
    s.ab.most_in_pipe = 20;
    post_write(&s.a, 1, 0, 0, 8);
    stream_run(&s);
    WANT_NONE(s.a.send_cq);
    iwarp_confirm(s.a.qp, false);
    s.ab.most_in_pipe = 0;
    post_write(&s.a, 2, 0, 0, 8);
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    WANT_NONE(s.a.send_cq);
    s.ab.held = false;
    stream_run(&s);
    WANT(s.a.send_cq, 2, SUCCESS);
    stream_close(&s);
}

static void a_window_of_reads_that_is_full(void) {
    open_confirmed(.rd_atomic = 2, .dest_rd_atomic = 2);
    s.ab.held = true;
    post_read(&s.a, 1, 0, 0, 8);
    post_read(&s.a, 2, 0, 0, 8);
    post_write(&s.a, 3, 0, 0, 8);
    stream_run(&s);
    CHECK_EQ(reads_in(&s.ab), 2);
    s.ab.held = false;
    stream_run(&s);
    for (uint64_t i = 1; i <= 3; i++)
        WANT(s.a.send_cq, i, SUCCESS);
    CHECK_EQ(reads_in(&s.ab), 3);
    CHECK_EQ(s.b.qp->state, RNIC_QPS_RTS);
    stream_close(&s);
}

/* A READ for which there was no room goes behind the question that is due meanwhile, with the next number. */
static void a_question_goes_ahead_of_a_read_without_room(void) {
    for (uint32_t n = OUT_ROOM - 400; n < OUT_ROOM; n += 20) {
        check_note("%u bytes", n);
        open_confirmed(.rd_atomic = 4);
        s.ab.held = true;
        post_write(&s.a, 0, 0, 0, 8);
        stream_run(&s); /* a question is under way */
        s.ab.most_in_pipe = (uint32_t)(s.ab.written - s.ab.read) + 1;
        post_write(&s.a, 1, 0, 0, n);
        post_read(&s.a, 2, 0, 0, 8);
        stream_run(&s);
        s.ab.held = false;
        s.ab.most_in_pipe = 0;
        s.ab.most_written = 20; /* the answer comes before there is room */
        stream_run(&s);
        for (uint64_t i = 0; i <= 2; i++)
            WANT(s.a.send_cq, i, SUCCESS);
        CHECK_EQ(s.b.qp->state, RNIC_QPS_RTS);
        stream_close(&s);
    }
}

/* ---------------------------------------------------------------- what fails */

/* A peer that is stopped, whose kernel takes all: after two looks at most. One that is only slow answers some day. */
/* ---------------------------------------------------------------- a peer that is stopped, and a slow path */

/* Its host takes all for it, or nothing.  That this end goes on to write does not matter. */
static void a_peer_that_answers_nothing(void) {
    for (int how = 0; how < 4; how++) {
        bool stored = how & 1, busy = how & 2;
        check_note("%s, %s", stored ? "its host takes all" : "nothing goes", busy ? "more comes" : "one message");
        open_confirmed(.rd_atomic = 4, .rfc7306 = true);
        uint64_t begin = s.f.now;
        s.ab.held = true;
        s.ab.stored = stored;
        post_write(&s.a, 1, 0, 0, 8);
        stream_run(&s);
        for (int looks = 0; looks < 3 && s.a.qp->state == RNIC_QPS_RTS; looks++) {
            stream_later(&s);
            if (busy && s.a.qp->state == RNIC_QPS_RTS)
                post_write(&s.a, 2, 0, 0, 8);
            stream_run(&s);
        }
        CHECK(s.f.now - begin <= 15 * SEC);
        CHECK_EQ(s.a_end.event.end, RNIC_STREAM_LOST);
        CHECK_EQ(s.a_end.event.error, ETIMEDOUT);
        WANT_ERR(s.a.send_cq, 1, RETRY_EXC_ERR, STREAM_LOST);
        stream_close(&s);
    }
}

/* Messages of which nobody hears: one after the other, so that no time is without one. */
static void a_peer_that_is_stopped_behind_messages_without_completions(void) {
    open_confirmed(.rd_atomic = 4);
    uint64_t begin = s.f.now;
    s.ab.held = s.ab.stored = true;
    for (uint64_t id = 1; id < 30 && s.a.qp->state == RNIC_QPS_RTS; id++) {
        post(&s.a,
             (struct rnic_send_wr){.wr_id = id, .opcode = RNIC_WR_RDMA_WRITE, REMOTE(&s.b, 0), SGL(SGE(&s.a, 0, 8))});
        stream_run(&s);
        s.f.now += SEC;
        s.a.qp->engine->timer(s.a.qp, s.f.now);
        stream_run(&s);
    }
    CHECK(s.f.now - begin <= 20 * SEC);
    CHECK_EQ(s.a_end.event.error, ETIMEDOUT);
    stream_close(&s);
}

static void reads_that_are_not_answered(void) {
    open_confirmed(.rd_atomic = 1, .rfc7306 = true);
    s.ab.held = s.ab.stored = true;
    post_read(&s.a, 1, 0, 0, 8);
    post_write(&s.a, 2, 0, 0, 8);
    stream_run(&s);
    stream_later(&s);
    stream_later(&s);
    CHECK_EQ(s.a_end.event.error, ETIMEDOUT);
    WANT_ERR(s.a.send_cq, 1, RETRY_EXC_ERR, STREAM_LOST);
    stream_close(&s);
}

/* Of a long message some bytes arrive between two looks. */
static void a_slow_path(void) {
    open_confirmed(.rd_atomic = 4);
    s.ab.held = true;
    s.ab.most_read = 200;
    post_write(&s.a, 1, 0, 0, 4000);
    stream_run(&s);
    int looks = 0;
    for (; s.ab.read < s.ab.written; looks++) {
        stream_later(&s);
        CHECK_EQ(s.a.qp->state, RNIC_QPS_RTS);
        s.ab.held = false;
        (void)stream_step(&s);
        s.ab.held = true;
    }
    CHECK(looks > 10);
    s.ab.held = false;
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    stream_close(&s);
}

/* Of a long answer, too: the request was taken long ago. */
static void a_slow_answer(void) {
    open_confirmed(.rd_atomic = 4);
    post_read(&s.a, 1, 0, 0, 4000);
    s.ba.most_read = 200;
    while (s.ba.read == s.ba.written)
        CHECK(stream_step(&s));
    while (s.ba.read < s.ba.written) {
        s.ba.held = true;
        stream_later(&s);
        CHECK_EQ(s.a.qp->state, RNIC_QPS_RTS);
        s.ba.held = false;
        (void)stream_step(&s);
    }
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    stream_close(&s);
}

/* A silence before the request does not count. */
static void a_question_after_a_long_time(void) {
    open_confirmed(.rd_atomic = 4);
    for (uint64_t id = 1; id < 4; id++) {
        s.f.now += 60 * SEC;
        s.ab.held = s.ab.stored = true;
        post_write(&s.a, id, 0, 0, 8);
        stream_run(&s);
        stream_later(&s);
        CHECK_EQ(s.a.qp->state, RNIC_QPS_RTS);
        s.ab.held = false;
        stream_run(&s);
        WANT(s.a.send_cq, id, SUCCESS);
    }
    stream_close(&s);
}

static void lost_on_its_way(void) {
    open_confirmed(.rd_atomic = 4);
    s.ab.held = true;
    post_write(&s.a, 1, 0, 0, 8);
    post_write(&s.a, 2, 0, 0, 8);
    stream_run(&s);
    iwarp_ended(s.a.qp, -ECONNRESET, s.f.now);
    stream_run(&s);
    WANT_ERR(s.a.send_cq, 1, RETRY_EXC_ERR, STREAM_LOST);
    WANT(s.a.send_cq, 2, WR_FLUSH_ERR);
    stream_close(&s);
}

/* The one that holds all of the refused segment. */
static void refused_behind_one_that_overlaps(void) {
    open_confirmed(.bytes = 4096);
    post_write(&s.a, 1, 0, 0, 4096);
    post_write(&s.a, 2, 0, 4000, 200);
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    WANT(s.a.send_cq, 2, REM_ACCESS_ERR);
    stream_close(&s);
}

static void refused_by_the_peer(void) {
    open_confirmed(.access = RNIC_ACCESS_REMOTE_READ);
    post_recv(&s.b, 11, 0, 8);
    post_send(&s.a, 1, 0, 8);
    post_write(&s.a, 2, 0, 0, 8);
    post_write(&s.a, 3, 0, 0, 8);
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS); /* the peer has named the one behind it */
    WANT(s.a.send_cq, 2, REM_ACCESS_ERR);
    WANT(s.a.send_cq, 3, WR_FLUSH_ERR);
    stream_close(&s);
}

/* Also one that nobody would have heard of. */
static void refused_though_not_signaled(void) {
    open_confirmed(.access = RNIC_ACCESS_REMOTE_READ);
    s.ab.held = true;
    post(&s.a, (struct rnic_send_wr){.wr_id = 2, .opcode = RNIC_WR_RDMA_WRITE, SGL(SGE(&s.a, 0, 8)), REMOTE(&s.b, 0)});
    post_write(&s.a, 3, 0, 0, 8);
    stream_run(&s);
    s.ab.held = false;
    stream_run(&s);
    WANT(s.a.send_cq, 2, REM_ACCESS_ERR);
    WANT(s.a.send_cq, 3, WR_FLUSH_ERR);
    WANT_NONE(s.a.send_cq);
    stream_close(&s);
}

/* One that fails by itself is told when those before it are there. */
static void ahead_of_one_that_fails(void) {
    open_confirmed(.rd_atomic = 4);
    s.ab.held = true;
    post_write(&s.a, 1, 0, 0, 8);
    post(&s.a, (struct rnic_send_wr){.wr_id = 2,
                                     .opcode = RNIC_WR_RDMA_WRITE,
                                     .send_flags = RNIC_SEND_SIGNALED,
                                     SGL({(uintptr_t)s.a.mem, 8, 0xDEAD}),
                                     REMOTE(&s.b, 0)});
    stream_run(&s);
    WANT_NONE(s.a.send_cq);
    s.ab.held = false;
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    WANT(s.a.send_cq, 2, LOC_PROT_ERR);
    stream_close(&s);
}

/* Those before it are asked for, though nobody would hear of them. */
static void ahead_of_one_that_fails_and_not_signaled(void) {
    open_confirmed(.rd_atomic = 4);
    post(&s.a, (struct rnic_send_wr){.wr_id = 1, .opcode = RNIC_WR_RDMA_WRITE, SGL(SGE(&s.a, 0, 8)), REMOTE(&s.b, 0)});
    post(&s.a, (struct rnic_send_wr){.wr_id = 2,
                                     .opcode = RNIC_WR_RDMA_WRITE,
                                     .send_flags = RNIC_SEND_SIGNALED,
                                     SGL({(uintptr_t)s.a.mem, 8, 0xDEAD}),
                                     REMOTE(&s.b, 0)});
    stream_run(&s);
    WANT(s.a.send_cq, 2, LOC_PROT_ERR);
    CHECK_EQ(s.b.qp->state, RNIC_QPS_ERR);
    stream_close(&s);
}

/* An answer with another key, or with bytes, is none. */
static void an_answer_that_is_none(void) {
    open_confirmed(.rd_atomic = 4, .no_crc = true);
    s.ab.held = true;
    post_write(&s.a, 1, 0, 0, 8);
    stream_run(&s);
    uint8_t frame[MPA_LENGTH_BYTES + DDP_TAGGED_BYTES + MPA_CRC_BYTES] = {0, DDP_TAGGED_BYTES};
    ddp_put_tagged(frame + MPA_LENGTH_BYTES, RDMAP_READ_RESPONSE, true, 77, 0);
    stream_give(&s, &s.a, frame, sizeof frame);
    stream_run(&s);
    CHECK_EQ(s.a.qp->state, RNIC_QPS_ERR);
    WANT(s.a.send_cq, 1, WR_FLUSH_ERR);
    stream_close(&s);
}

/* ---------------------------------------------------------------- the end */

static void closing_waits_for_the_answer(void) {
    open_confirmed(.rd_atomic = 4);
    s.ab.held = true;
    post_recv(&s.b, 11, 0, 8);
    post_send(&s.a, 1, 0, 8);
    CHECK_EQ(close_it(&s.a), 0);
    stream_run(&s);
    WANT_NONE(s.a.send_cq);
    CHECK(!s.ab.finished);
    s.ab.held = false;
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    WANT(s.b.recv_cq, 11, SUCCESS);
    CHECK_EQ(s.a_end.event.end, RNIC_STREAM_CLOSED);
    stream_close(&s);
}

/* The peer's question is on its way when this end closes: it is answered first. */
static void the_last_word_is_confirmed(void) {
    open_confirmed(.rd_atomic = 4);
    s.ab.most_read = (uint32_t)mpa_fpdu(DDP_UNTAGGED_BYTES + 8);
    post_recv(&s.b, 11, 0, 8);
    post_send(&s.a, 1, 0, 8);
    while (wq_tail(&s.b.qp->rq) == 0)
        CHECK(stream_step(&s));
    s.ab.held = true;
    CHECK_EQ(close_it(&s.b), 0);
    stream_run(&s);
    CHECK(!s.ba.finished);
    s.ab.held = false;
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    CHECK(s.ba.finished);
    stream_close(&s);
}

/* A peer that does not ask is not waited for longer than a second; one that has closed, not at all. */
static void who_does_not_ask(void) {
    for (int closes = 0; closes < 2; closes++) {
        check_note("%s", closes ? "closes" : "stays");
        stream_open(&s, .rtr = RNIC_STREAM_RTR_WRITE, .rfc7306 = true);
        iwarp_confirm(s.b.qp, true);
        post_recv(&s.b, 11, 0, 8);
        post_send(&s.a, 1, 0, 8);
        stream_run(&s);
        CHECK_EQ(close_it(&s.b), 0);
        stream_run(&s);
        CHECK(!s.ba.finished);
        if (closes) {
            CHECK_EQ(close_it(&s.a), 0);
            stream_run(&s);
        } else {
            uint64_t before = s.f.now;
            stream_later(&s);
            CHECK_EQ(s.f.now, before + SEC);
            stream_run(&s);
        }
        CHECK(s.ba.finished);
        CHECK_EQ(s.b.qp->state, RNIC_QPS_ERR);
        stream_close(&s);
    }
}

/* Immediate data may come behind a question that does not speak for them: the peer will ask again. */
static void immediate_data_behind_a_question(void) {
    struct segment g;
    open_confirmed(.rfc7306 = true);
    s.ba.held = true; /* a has not asked */
    post_recv(&s.b, 11, 0, 8);
    segment_read(&g, 1, 1, 0, 0, RTR_TAG, 0);
    segment_give(&s, &s.b, &g);
    segment_untagged(&g, RDMAP_IMMEDIATE, true, 1, 0, NULL, 0);
    segment_give(&s, &s.b, &g);
    WANT(s.b.recv_cq, 11, SUCCESS);
    CHECK_EQ(close_it(&s.b), 0);
    stream_step(&s);
    CHECK(!s.ba.finished);
    segment_read(&g, 2, 2, 0, 0, RTR_TAG, 0);
    segment_give(&s, &s.b, &g);
    stream_step(&s);
    CHECK(s.ba.finished);
    stream_close(&s);
}

/* The peer has closed ahead of the question: the answer will not come, and nobody waits for it. */
static void the_peer_closes_ahead_of_the_question(void) {
    open_confirmed(.rd_atomic = 4);
    s.ab.most_in_pipe = 1000;
    s.ab.held = true;
    post_write(&s.a, 1, 0, 0, 250000);
    stream_run(&s);
    CHECK_EQ(close_it(&s.a), 0);
    CHECK_EQ(close_it(&s.b), 0);
    stream_run(&s);
    CHECK(s.ba.finished);
    s.ab.most_in_pipe = 0;
    s.ab.held = false;
    stream_run(&s);
    CHECK_EQ(s.a_end.event.end, RNIC_STREAM_FIN);
    WANT(s.a.send_cq, 1, WR_FLUSH_ERR);
    stream_close(&s);
}

static void both_close_at_once(void) {
    open_confirmed(.rd_atomic = 1, .dest_rd_atomic = 1);
    for (uint64_t i = 1; i <= 2; i++) {
        post_recv(&s.a, 10 + i, 0, 8);
        post_recv(&s.b, 10 + i, 0, 8);
        post_send(&s.a, i, 0, 8);
        post_send(&s.b, i, 0, 8);
        (void)stream_step(&s);
    }
    CHECK_EQ(close_it(&s.a), 0);
    CHECK_EQ(close_it(&s.b), 0);
    stream_run(&s);
    for (uint64_t i = 1; i <= 2; i++) {
        WANT(s.a.send_cq, i, SUCCESS);
        WANT(s.b.send_cq, i, SUCCESS);
    }
    CHECK_EQ(s.a_end.event.end, RNIC_STREAM_CLOSED);
    CHECK_EQ(s.b_end.event.end, RNIC_STREAM_CLOSED);
    stream_close(&s);
}

int main(void) {
    RUN(not_before_the_peer_has_it);
    RUN(one_question_speaks_for_all_before_it);
    RUN(a_question_does_not_speak_for_what_follows);
    RUN(a_pair_that_others_wait_behind_is_asked_for);
    RUN(a_read_behind_it_is_question_enough);
    RUN(among_reads_and_atomics);
    RUN(a_question_holds_nothing_up);
    RUN(no_question_behind_half_a_lap_of_reads);
    RUN(local_work_behind_one_that_is_not_signaled);
    RUN(behind_half_a_lap_of_local_work);
    RUN(numbers_that_begin_again);
    RUN(behind_the_read_that_makes_a_connection_ready);
    RUN(who_does_not_listen_is_not_told);
    RUN(without_reads_as_before);
    RUN(from_now_on);
    RUN(a_window_of_reads_that_is_full);
    RUN(a_question_goes_ahead_of_a_read_without_room);
    RUN(a_peer_that_answers_nothing);
    RUN(a_peer_that_is_stopped_behind_messages_without_completions);
    RUN(reads_that_are_not_answered);
    RUN(a_slow_path);
    RUN(a_slow_answer);
    RUN(a_question_after_a_long_time);
    RUN(lost_on_its_way);
    RUN(refused_by_the_peer);
    RUN(refused_behind_one_that_overlaps);
    RUN(refused_though_not_signaled);
    RUN(ahead_of_one_that_fails);
    RUN(ahead_of_one_that_fails_and_not_signaled);
    RUN(an_answer_that_is_none);
    RUN(closing_waits_for_the_answer);
    RUN(the_last_word_is_confirmed);
    RUN(who_does_not_ask);
    RUN(immediate_data_behind_a_question);
    RUN(the_peer_closes_ahead_of_the_question);
    RUN(both_close_at_once);
    return check_done();
}
