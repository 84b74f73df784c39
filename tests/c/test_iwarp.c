/* SPDX-License-Identifier: Apache-2.0
 *
 * iWARP between two engines: what each operation does, in which order they complete, and how a connection begins and ends.
 */
#include <errno.h>
#include <string.h>

#include "check.h"
#include "iwarp/engine.h"
#include "segment.h"
#include "stream.h"
#include "wire/mpa.h"
#include "wire/rdmap.h"

static struct stream s;

/* Bytes of the marked FPDU that begins there. */
static uint64_t frame_bytes(uint64_t begin) {
    const uint8_t *at = s.ab.bytes + begin + (begin % 512 ? 0 : 4);
    uint64_t n = mpa_fpdu(mpa_length(at)), end = begin;
    for (; n; n--, end++)
        end += end % 512 ? 0 : 4;
    return end - begin;
}

/* ---------------------------------------------------------------- operations */

static void a_send_fills_a_receive(void) {
    stream_open(&s);
    fill(s.a.mem, 1000, 1);
    post_recv(&s.b, 11, 4096, 2000);
    post_send(&s.a, 1, 0, 1000);
    stream_run(&s);
    CHECK_EQ(WANT(s.a.send_cq, 1, SUCCESS).opcode, RNIC_WCO_SEND);
    struct rnic_wc wc = WANT(s.b.recv_cq, 11, SUCCESS);
    CHECK_EQ(wc.byte_len, 1000);
    CHECK_EQ(wc.opcode, RNIC_WCO_RECV);
    CHECK_EQ(wc.wc_flags, 0);
    CHECK_EQ(wc.qp_num, s.b.qp->pub.qp_num);
    CHECK(filled(s.b.mem + 4096, 1000, 1));
    CHECK_EQ(s.b.qp->nic->silent, 0);
    stream_close(&s);
}

static void a_write_lands_where_it_says(void) {
    stream_open(&s);
    fill(s.a.mem, 100000, 2);
    post_write(&s.a, 1, 0, 1000, 100000);
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    WANT_NONE(s.b.recv_cq);
    CHECK(filled(s.b.mem + 1000, 100000, 2));
    CHECK(!s.b.mem[999] && !s.b.mem[101000]);
    CHECK_EQ(s.b.qp->nic->silent, 1);
    stream_close(&s);
}

static void a_read_fetches(void) {
    stream_open(&s);
    fill(s.b.mem + 500, 150000, 3);
    post_read(&s.a, 1, 0, 500, 150000);
    post_read(&s.a, 3, 150000, 500, 1);
    post_send(&s.b, 2, 0, 0); /* what makes it speak, so that it has been spoken to */
    post_recv(&s.a, 12, 0, 0);
    stream_run(&s);
    CHECK_EQ(WANT(s.a.send_cq, 1, SUCCESS).byte_len, 150000);
    CHECK_EQ(WANT(s.a.send_cq, 3, SUCCESS).byte_len, 1);
    WANT(s.b.send_cq, 2, SUCCESS);
    WANT(s.a.recv_cq, 12, SUCCESS);
    CHECK(filled(s.a.mem, 150000, 3));
    CHECK_EQ(s.a.mem[150000], s.b.mem[500]);
    CHECK_EQ(s.b.qp->nic->silent, 2);
    stream_close(&s);
}

static void messages_of_no_bytes(void) {
    stream_open(&s);
    post_recv(&s.b, 11, 0, 0);
    post_recv(&s.b, 12, 0, 100);
    post_send(&s.a, 1, 0, 0);
    post_write(&s.a, 2, 0, 0, 0);
    post_read(&s.a, 3, 0, 0, 0);
    post(&s.a, (struct rnic_send_wr){.wr_id = 4, .opcode = RNIC_WR_SEND, .send_flags = RNIC_SEND_SIGNALED});
    stream_run(&s);
    for (uint64_t i = 1; i <= 4; i++)
        WANT(s.a.send_cq, i, SUCCESS);
    CHECK_EQ(WANT(s.b.recv_cq, 11, SUCCESS).byte_len, 0);
    CHECK_EQ(WANT(s.b.recv_cq, 12, SUCCESS).byte_len, 0);
    stream_close(&s);
}

static void completions_keep_the_order_of_posts(void) {
    stream_open(&s);
    s.ba.held = true; /* the READ's answer is late */
    post_recv(&s.b, 11, 0, 8);
    post_write(&s.a, 1, 0, 0, 8);
    post_read(&s.a, 2, 0, 64, 8);
    post_send(&s.a, 3, 0, 8);
    post_write(&s.a, 4, 0, 0, 8);
    stream_run(&s);
    WANT(s.b.recv_cq, 11, SUCCESS);
    WANT(s.a.send_cq, 1, SUCCESS);
    WANT_NONE(s.a.send_cq);
    s.ba.held = false;
    stream_run(&s);
    for (uint64_t i = 2; i <= 4; i++)
        WANT(s.a.send_cq, i, SUCCESS);
    stream_close(&s);
}

static void unsignaled_ones_complete_silently(void) {
    stream_open(&s);
    post(&s.a, (struct rnic_send_wr){.wr_id = 1, .opcode = RNIC_WR_RDMA_WRITE, REMOTE(&s.b, 0), SGL(SGE(&s.a, 0, 8))});
    post_write(&s.a, 2, 0, 0, 8);
    stream_run(&s);
    WANT(s.a.send_cq, 2, SUCCESS);
    WANT_NONE(s.a.send_cq);
    stream_close(&s);
}

/* Both ways at once, more than the pipe holds, and lists of several elements. */
static void a_lot_both_ways(void) {
    stream_open(&s);
    s.ab.most_in_pipe = 7000;
    s.ba.most_in_pipe = 5000;
    fill(s.a.mem, 60000, 4);
    fill(s.b.mem, 60000, 5);
    for (uint64_t i = 0; i < 8; i++) {
        post_recv(&s.a, 20 + i, 100000 + 8000 * i, 8000);
        post_recv(&s.b, 20 + i, 100000 + 8000 * i, 8000);
        post(&s.a, (struct rnic_send_wr){.wr_id = i,
                                         .opcode = RNIC_WR_SEND,
                                         .send_flags = RNIC_SEND_SIGNALED,
                                         SGL(SGE(&s.a, 7000 * i, 1), SGE(&s.a, 7000 * i + 1, 0),
                                             SGE(&s.a, 7000 * i + 1, 4000), SGE(&s.a, 7000 * i + 4001, 2999))});
        post_send(&s.b, i, 7000 * i, 7000);
    }
    stream_run(&s);
    for (uint64_t i = 0; i < 8; i++) {
        WANT(s.a.send_cq, i, SUCCESS);
        WANT(s.b.send_cq, i, SUCCESS);
        CHECK_EQ(WANT(s.a.recv_cq, 20 + i, SUCCESS).byte_len, 7000);
        CHECK_EQ(WANT(s.b.recv_cq, 20 + i, SUCCESS).byte_len, 7000);
        CHECK(!memcmp(s.b.mem + 100000 + 8000 * i, s.a.mem + 7000 * i, 7000));
        CHECK(!memcmp(s.a.mem + 100000 + 8000 * i, s.b.mem + 7000 * i, 7000));
    }
    stream_close(&s);
}

/* ---------------------------------------------------------------- more of them */

static void fence_waits_for_answers(void) {
    stream_open(&s);
    s.ba.held = true;
    post_recv(&s.b, 11, 0, 8);
    post_read(&s.a, 1, 0, 64, 8);
    post(&s.a, (struct rnic_send_wr){.wr_id = 2,
                                     .opcode = RNIC_WR_SEND,
                                     .send_flags = RNIC_SEND_SIGNALED | RNIC_SEND_FENCE,
                                     SGL(SGE(&s.a, 0, 8))});
    stream_run(&s);
    WANT_NONE(s.b.recv_cq);
    fill(s.b.mem + 64, 8, 9);
    s.ba.held = false;
    stream_run(&s);
    WANT(s.b.recv_cq, 11, SUCCESS);
    WANT(s.a.send_cq, 1, SUCCESS);
    WANT(s.a.send_cq, 2, SUCCESS);
    stream_close(&s);
}

/* No more READs and atomics are asked for at once than max_rd_atomic; what stands behind the next one waits, too. */
static void reads_wait_for_each_other(void) {
    stream_open(&s, .rd_atomic = 2, .dest_rd_atomic = 2, .rfc7306 = true);
    s.ba.held = true;
    for (uint64_t i = 1; i <= 3; i++)
        post_read(&s.a, i, 0, 0, 8);
    post_add(&s.a, 4, 8, 8, 1);
    post_recv(&s.b, 11, 64, 8);
    post_send(&s.a, 5, 0, 8);
    stream_run(&s);
    CHECK_EQ(s.ab.written, 2 * (2 + 18 + 28 + 4));
    WANT_NONE(s.b.recv_cq);
    s.ba.held = false;
    stream_run(&s);
    for (uint64_t i = 1; i <= 5; i++)
        WANT(s.a.send_cq, i, SUCCESS);
    WANT(s.b.recv_cq, 11, SUCCESS);
    stream_close(&s);
}

/* The READ that makes a connection of equals ready counts, too. */
static void one_read_at_a_time_beside_the_ready_message(void) {
    stream_open(&s, .rd_atomic = 1, .dest_rd_atomic = 1, .rtr = RNIC_STREAM_RTR_READ);
    post_read(&s.a, 1, 0, 0, 8);
    post_read(&s.a, 2, 0, 0, 8);
    s.ab.held = true;
    stream_run(&s);
    CHECK_EQ(s.ab.written, 2 + 18 + 28 + 4);
    s.ab.held = false;
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    WANT(s.a.send_cq, 2, SUCCESS);
    stream_close(&s);
}

static void answers_and_requests_take_turns(void) {
    uint64_t first_answer = 0;
    stream_open(&s, .rtr = RNIC_STREAM_RTR_WRITE);
    stream_run(&s);
    s.ba.most_in_pipe = 2000;
    s.ba.held = true;
    for (uint64_t i = 0; i < 5; i++)
        post_write(&s.b, i, 0, 0, 50000);
    post_read(&s.a, 1, 100000, 0, 1000);
    stream_run(&s);
    s.ba.held = false;
    stream_run(&s);
    for (uint64_t at = 0; at < s.ba.written && !first_answer; at += mpa_fpdu(mpa_length(s.ba.bytes + at))) {
        if (rdmap_opcode(s.ba.bytes + at + 2) == RDMAP_READ_RESPONSE)
            first_answer = at;
    }
    CHECK(first_answer && first_answer < s.ba.written - 100000);
    WANT(s.a.send_cq, 1, SUCCESS);
    stream_close(&s);
}

static void solicited_events(void) {
    static const struct {
        int opcode;
        uint32_t flags;
        bool event;
    } rows[] = {{RNIC_WR_SEND, 0, false},
                {RNIC_WR_SEND, RNIC_SEND_SOLICITED, true},
                {RNIC_WR_RDMA_WRITE_WITH_IMM, 0, false},
                {RNIC_WR_RDMA_WRITE_WITH_IMM, RNIC_SEND_SOLICITED, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        stream_open(&s, .rfc7306 = true);
        cq_arm(s.b.recv_cq, true);
        post_recv(&s.b, 11, 0, 8);
        post(&s.a, (struct rnic_send_wr){.wr_id = 1,
                                         .opcode = rows[i].opcode,
                                         .send_flags = rows[i].flags,
                                         REMOTE(&s.b, 0),
                                         SGL(SGE(&s.a, 0, 8))});
        stream_run(&s);
        WANT(s.b.recv_cq, 11, SUCCESS);
        CHECK_EQ(channel_take(&s.b.channel) == s.b.recv_cq, rows[i].event);
        CHECK_EQ(cq_ack(s.b.recv_cq, rows[i].event, NULL), 0);
        stream_close(&s);
    }
}

static void inline_bytes_are_free_at_once(void) {
    uint8_t bytes[64];
    stream_open(&s);
    fill(bytes, sizeof bytes, 6);
    struct rnic_sge sge = {(uintptr_t)bytes, sizeof bytes, 0};
    post_recv(&s.b, 11, 0, 64);
    post(&s.a, (struct rnic_send_wr){.wr_id = 1,
                                     .opcode = RNIC_WR_SEND,
                                     .send_flags = RNIC_SEND_SIGNALED | RNIC_SEND_INLINE,
                                     .sg_list = &sge,
                                     .num_sge = 1});
    memset(bytes, 0, sizeof bytes);
    stream_run(&s);
    WANT(s.b.recv_cq, 11, SUCCESS);
    CHECK(filled(s.b.mem, 64, 6));
    stream_close(&s);
}

static void atomics_change_a_word(void) {
    uint64_t *word, *was;
    stream_open(&s, .rfc7306 = true);
    word = (uint64_t *)(void *)(s.b.mem + 64);
    was = (uint64_t *)(void *)s.a.mem;
    *word = 40;
    post_add(&s.a, 1, 0, 64, 2);
    post_swap(&s.a, 2, 8, 64, 42, 7);
    post_swap(&s.a, 3, 16, 64, 42, 9);
    stream_run(&s);
    CHECK_EQ(WANT(s.a.send_cq, 1, SUCCESS).opcode, RNIC_WCO_FETCH_ADD);
    CHECK_EQ(WANT(s.a.send_cq, 2, SUCCESS).opcode, RNIC_WCO_COMP_SWAP);
    WANT(s.a.send_cq, 3, SUCCESS);
    CHECK(was[0] == 40 && was[1] == 42 && was[2] == 7 && *word == 7);
    stream_close(&s);
}

/* Also one that comes together with it; unless it waits for a READ, which a WRITE may overtake. */
static void a_write_does_not_overtake_an_atomic(void) {
    for (int reads = 0; reads < 2; reads++) {
        uint64_t *word, *was;
        check_note("%s", reads ? "behind a READ" : "alone");
        stream_open(&s, .rfc7306 = true);
        word = (uint64_t *)(void *)(s.b.mem + 64);
        was = (uint64_t *)(void *)s.a.mem;
        *word = 40;
        was[3] = 7;
        if (reads)
            post_read(&s.a, 0, 32, 128, 8);
        post_add(&s.a, 1, 0, 64, 2);
        post_add(&s.a, 2, 8, 64, 2);
        post_write(&s.a, 3, 24, 64, 8);
        stream_run(&s);
        if (reads)
            WANT(s.a.send_cq, 0, SUCCESS);
        for (uint64_t i = 1; i <= 3; i++)
            WANT(s.a.send_cq, i, SUCCESS);
        CHECK_EQ(was[0], reads ? 7 : 40);
        CHECK_EQ(was[1], reads ? 9 : 42);
        CHECK_EQ(*word, reads ? 11 : 7);
        stream_close(&s);
    }
}

static void the_first_message_is_told_of_once(void) {
    for (int asked = 0; asked < 2; asked++) {
        check_note("%d", asked);
        stream_open(&s, .rtr = RNIC_STREAM_RTR_WRITE);
        iwarp_of(s.b.qp)->agreed.tell_ready = asked;
        CHECK_EQ(s.b_end.count, 0);
        stream_run(&s);
        post_write(&s.a, 1, 0, 0, 8);
        stream_run(&s);
        CHECK_EQ(s.b_end.count, asked);
        CHECK(!asked || s.b_end.event.end == RNIC_STREAM_READY);
        stream_close(&s);
    }
}

static int told[4], times_told;

static void note_end(void *arg, struct qp *qp, const struct rnic_stream_event *event) {
    (void)arg;
    if (qp == s.b.qp)
        told[times_told++ % 4] = event->end;
}

/* The first message of the peer is a Terminate message. */
static void nobody_is_told_of_a_beginning_behind_the_end(void) {
    struct segment g;
    const uint8_t control[4] = {0};
    stream_open(&s);
    times_told = 0;
    s.b.node->nic.stream_told = note_end;
    iwarp_of(s.b.qp)->agreed.tell_ready = true;
    segment_untagged(&g, RDMAP_TERMINATE, true, 1, 0, control, 0);
    g.n = DDP_UNTAGGED_BYTES + TERMINATE_BYTES;
    segment_give(&s, &s.b, &g);
    CHECK_EQ(times_told, 1);
    CHECK_EQ(told[0], RNIC_STREAM_TERMINATED);
    stream_close(&s);
}

/* As after 2^31 WRITEs and no READ: the counters of the ring are moved on. */
static void a_read_behind_half_a_lap_of_writes(void) {
    const uint32_t lap = 0x80000000u + 7 * 64;
    stream_open(&s, .rtr = RNIC_STREAM_RTR_WRITE);
    stream_run(&s);
    struct wq *q = &s.a.qp->sq;
    q->head += lap;
    q->tail += lap;
    q->freed += lap;
    iwarp_of(s.a.qp)->snd.next += lap;
    post_write(&s.a, 1, 0, 0, 8);
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    post_read(&s.a, 2, 0, 0, 8);
    stream_run(&s);
    WANT(s.a.send_cq, 2, SUCCESS);
    CHECK_EQ(s.a.qp->state, RNIC_QPS_RTS);
    stream_close(&s);
}

/* What the peer has not agreed upon is refused where it is posted. */
static void what_cannot_be_posted(void) {
    static const int never[] = {RNIC_WR_SEND_WITH_IMM, RNIC_WR_TSO, RNIC_WR_ATOMIC_WRITE, RNIC_WR_FLUSH};
    static const int perhaps[] = {RNIC_WR_RDMA_WRITE_WITH_IMM, RNIC_WR_ATOMIC_CMP_AND_SWP,
                                  RNIC_WR_ATOMIC_FETCH_AND_ADD};
    for (int rfc7306 = 0; rfc7306 < 2; rfc7306++) {
        stream_open(&s, .rfc7306 = rfc7306);
        for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
            check_note("opcode %d", never[i]);
            CHECK_EQ(try_post(&s.a, (struct rnic_send_wr){.opcode = never[i]}), -EOPNOTSUPP);
        }
        for (size_t i = 0; i < sizeof perhaps / sizeof *perhaps; i++) {
            struct rnic_err err = {.text = ""};
            check_note("opcode %d", perhaps[i]);
            int rc = sq_check_opcode(s.a.qp->sq.rules, perhaps[i], &err);
            CHECK_EQ(rc, rfc7306 ? 0 : -EOPNOTSUPP);
            CHECK(rfc7306 || strstr(err.text, "the peer"));
        }
        stream_close(&s);
    }
    CHECK_EQ(
        sq_check_opcode(transport_service(&iwarp_transport, RNIC_QPT_RC)->sends, RNIC_WR_RDMA_WRITE_WITH_IMM, NULL), 0);
}

static void a_shared_receive_queue(void) {
    static struct srq srq;
    struct rnic_async_event event;
    memset(&srq, 0, sizeof srq);
    CHECK_EQ(srq_init(&srq, 8, 2), 0);
    stream_open(&s, .srq = &srq);
    srq.pub.pd = &s.b.node->pd.pub;
    srq.q.pd = &s.b.node->pd.pub;
    srq.limit = 2;
    s.b.srq = &srq;
    for (uint64_t i = 0; i < 3; i++)
        post_recv(&s.b, i, 100 * i, 100);
    for (uint64_t i = 0; i < 4; i++)
        post_send(&s.a, i, 0, 90);
    stream_run(&s);
    for (uint64_t i = 0; i < 3; i++)
        WANT(s.b.recv_cq, i, SUCCESS);
    CHECK(event_take(&s.b.node->nic.events, &event) && event.event_type == RNIC_EVENT_SRQ_LIMIT_REACHED);
    WANT_EVENT(&s.b, QP_REQ_ERR); /* the fourth has met none */
    WANT_EVENT(&s.b, QP_LAST_WQE_REACHED);
    CHECK_EQ(s.b_end.event.code, 2);
    s.b.srq = NULL;
    stream_close(&s);
    srq_free(&srq);
}

static void memory_windows(void) {
    stream_open(&s);
    struct mw window = {.pub = {.pd = &s.b.node->pd.pub, .type = RNIC_MW_TYPE_2, .ctx = NULL}};
    CHECK_EQ(mw_insert(&s.b.node->nic.mrs, &window), 0);
    uint32_t key = window.pub.rkey + 1 - (window.pub.rkey % 256 == 255 ? 256 : 0);
    post(&s.b, (struct rnic_send_wr){.wr_id = 1,
                                     .opcode = RNIC_WR_BIND_MW,
                                     .send_flags = RNIC_SEND_SIGNALED,
                                     .bind_mw = {.mw = &window.pub,
                                                 .rkey = key,
                                                 .bind_info = {.mr = &s.b.mr->pub,
                                                               .addr = (uintptr_t)s.b.mem + 100,
                                                               .length = 50,
                                                               .mw_access_flags = RNIC_ACCESS_REMOTE_WRITE}}});
    post_recv(&s.b, 12, 200, 8);
    post_send(&s.a, 2, 0, 8); /* the responder waits for it with local requests, too: they keep their order */
    stream_run(&s);
    WANT(s.b.send_cq, 1, SUCCESS);
    fill(s.a.mem, 50, 8);
    const struct rnic_send_wr write = {.wr_id = 3,
                                       .opcode = RNIC_WR_RDMA_WRITE,
                                       .send_flags = RNIC_SEND_SIGNALED,
                                       .wr.rdma = {(uintptr_t)s.b.mem + 100, key},
                                       SGL(SGE(&s.a, 0, 50))};
    post(&s.a, write);
    stream_run(&s);
    CHECK(filled(s.b.mem + 100, 50, 8));
    post_recv(&s.b, 13, 200, 8);
    post(&s.a, (struct rnic_send_wr){
                   .wr_id = 4, .opcode = RNIC_WR_SEND_WITH_INV, .send_flags = RNIC_SEND_SIGNALED, .imm_data = key});
    stream_run(&s);
    WANT(s.b.recv_cq, 12, SUCCESS);
    CHECK_EQ(WANT(s.b.recv_cq, 13, SUCCESS).invalidated_rkey, key);
    post(&s.a, write);
    stream_run(&s);
    for (uint64_t id = 2; id <= 4; id++)
        WANT(s.a.send_cq, id, SUCCESS);
    CHECK_EQ(s.b_end.event.end, RNIC_STREAM_REFUSED);
    mw_remove(&s.b.node->nic.mrs, &window);
    stream_close(&s);
}

/* Memory that has no address: it is reached by copies. */
static void regions_without_addresses(void) {
    for (int kind = MR_GUARDED; kind <= MR_NULL; kind += MR_NULL - MR_GUARDED) {
        for (int crc = 0; crc < 2; crc++) {
            check_note("kind %d, %s CRC", kind, crc ? "with" : "without");
            stream_open(&s, .no_crc = !crc);
            s.ab.most_read = s.ba.most_read = 30000;
            s.a.mr->kind = s.b.mr->kind = (enum mr_kind)kind;
            fill(s.a.mem, 80000, 10);
            post_recv(&s.b, 11, 90000, 80000);
            post_write(&s.a, 1, 0, 0, 80000);
            post_send(&s.a, 2, 0, 80000);
            post_read(&s.a, 3, 100000, 0, 80000);
            stream_run(&s);
            for (uint64_t id = 1; id <= 3; id++)
                WANT(s.a.send_cq, id, SUCCESS);
            WANT(s.b.recv_cq, 11, SUCCESS);
            if (kind == MR_GUARDED) {
                CHECK(filled(s.b.mem, 80000, 10));
                CHECK(filled(s.b.mem + 90000, 80000, 10));
                CHECK(filled(s.a.mem + 100000, 80000, 10));
            } else {
                CHECK(!s.b.mem[0] && !s.b.mem[90000] && !s.a.mem[100000]);
            }
            stream_close(&s);
        }
    }
}

static void the_longest_message(void) {
    const uint32_t n = 0x7FFFFFFF;
    stream_open(&s, .no_crc = true);
    s.ba.forgets = true;
    s.ba.most_in_pipe = 1 << 18;
    struct mr *ours = fabric_mr(s.a.node, &s.a.node->pd, NULL, n, ALL_ACCESS);
    struct mr *theirs = fabric_mr(s.b.node, &s.b.node->pd, NULL, n, ALL_ACCESS);
    ours->kind = theirs->kind = MR_NULL;
    struct rnic_sge sge = {0, n, ours->pub.lkey};
    post(&s.a, (struct rnic_send_wr){.wr_id = 1,
                                     .opcode = RNIC_WR_RDMA_READ,
                                     .send_flags = RNIC_SEND_SIGNALED,
                                     .wr.rdma = {0, theirs->pub.rkey},
                                     .sg_list = &sge,
                                     .num_sge = 1});
    stream_run(&s);
    CHECK_EQ(WANT(s.a.send_cq, 1, SUCCESS).byte_len, n);
    fabric_drop_mr(s.a.node, ours);
    fabric_drop_mr(s.b.node, theirs);
    stream_close(&s);
}

static struct comp_cntr counter[2][COMP_CNTR_OPS];
#define DONE(e, op) counter[e][__builtin_ctz(RNIC_COMP_CNTR_OP_##op)].done
#define FAILED(e, op) counter[e][__builtin_ctz(RNIC_COMP_CNTR_OP_##op)].failed

static void open_counted(void) {
    static struct comp_cntrs counters[2];
    memset(counter, 0, sizeof counter);
    stream_open(&s);
    for (int e = 0; e < 2; e++) {
        for (int i = 0; i < COMP_CNTR_OPS; i++) {
            counter[e][i].bytes = true;
            counters[e].of[i] = &counter[e][i];
        }
    }
    s.a.qp->cntrs = &counters[0];
    s.b.qp->cntrs = &counters[1];
}

static void close_counted(void) {
    s.a.qp->cntrs = s.b.qp->cntrs = NULL;
    stream_close(&s);
}

/* Of an operation whose key is unknown to b. */
static void fail_counted(int opcode) {
    post(&s.a, (struct rnic_send_wr){.wr_id = 4, .opcode = opcode, .wr.rdma = {1, 1}, SGL(SGE(&s.a, 0, 8))});
    stream_run(&s);
}

static void completion_counters(void) {
    open_counted();
    post_recv(&s.b, 11, 0, 100000);
    post_send(&s.a, 1, 0, 70000);
    post_write(&s.a, 2, 0, 0, 80000);
    post_read(&s.a, 3, 0, 0, 90000);
    stream_run(&s);
    fail_counted(RNIC_WR_RDMA_READ);
    CHECK_EQ(DONE(0, SEND), 70000);
    CHECK_EQ(DONE(0, RDMA_WRITE), 80000);
    CHECK_EQ(DONE(0, RDMA_READ), 90000);
    CHECK_EQ(FAILED(0, RDMA_READ), 1);
    CHECK_EQ(DONE(1, RECV), 70000);
    CHECK_EQ(DONE(1, REMOTE_RDMA_WRITE), 80000);
    CHECK_EQ(DONE(1, REMOTE_RDMA_READ), 90000);
    CHECK_EQ(FAILED(1, REMOTE_RDMA_READ), 1);
    CHECK_EQ(FAILED(1, REMOTE_RDMA_WRITE), 0);
    close_counted();
    open_counted();
    fail_counted(RNIC_WR_RDMA_WRITE);
    CHECK_EQ(DONE(0, RDMA_WRITE), 8); /* it has been sent */
    CHECK_EQ(DONE(1, REMOTE_RDMA_WRITE), 0);
    CHECK_EQ(FAILED(1, REMOTE_RDMA_WRITE), 1);
    CHECK_EQ(FAILED(1, REMOTE_RDMA_READ), 0);
    close_counted();
}

static void counters(void) {
    stream_open(&s, .segment = 1000);
    post_recv(&s.b, 11, 0, 3000);
    post_send(&s.a, 1, 0, 2500);    /* in 3 frames */
    post_write(&s.a, 2, 0, 0, 0);   /* 1 */
    post_read(&s.a, 3, 0, 0, 2000); /* 1, and 3 of the answer */
    stream_run(&s);
    CHECK_EQ(COUNTER(&s.a, tx_packets), 5);
    CHECK_EQ(COUNTER(&s.b, rx_packets), 5);
    CHECK_EQ(COUNTER(&s.b, tx_packets), 3);
    CHECK_EQ(COUNTER(&s.a, rx_packets), 3);
    CHECK_EQ(COUNTER(&s.a, tx_bytes), s.ab.written);
    CHECK_EQ(COUNTER(&s.b, rx_bytes), s.ab.written);
    CHECK_EQ(COUNTER(&s.b, tx_bytes), s.ba.written);
    CHECK_EQ(COUNTER(&s.a, rx_bytes), s.ba.written);
    CHECK_EQ(COUNTER(&s.a, requests_sent), 5);
    CHECK_EQ(COUNTER(&s.b, requests_executed), 5);
    CHECK_EQ(COUNTER(&s.b, responses_sent), 3);
    stream_close(&s);
}

/* 100 Mbit/s: 12.5 bytes a microsecond, after a burst. */
static void no_faster_than_its_rate(void) {
    const struct rnic_qp_rate_limit_attr attr = {.rate_limit = 100000, .max_burst_sz = 4096};
    stream_open(&s);
    fill(s.a.mem, 100000, 11);
    pace_set(&s.a.qp->pace, &attr, s.a.node->nic.mtu);
    uint64_t begun = s.f.now, longest = 0;
    post_write(&s.a, 1, 0, 0, 100000);
    for (uint64_t before = 0; wq_tail(&s.a.qp->sq) == 0; before = s.ab.written) {
        stream_run(&s);
        longest = s.ab.written - before > longest ? s.ab.written - before : longest;
        if (wq_tail(&s.a.qp->sq) == 0)
            stream_later(&s);
    }
    WANT(s.a.send_cq, 1, SUCCESS);
    CHECK(filled(s.b.mem, 100000, 11));
    uint64_t took = s.f.now - begun, bytes = s.ab.written;
    CHECK(longest <= 4096);
    CHECK(took >= (bytes - 4096) * 80 && took <= bytes * 80);
    /* answers cost nothing, and wait for nothing */
    post_read(&s.b, 2, 0, 0, 50000);
    stream_run(&s);
    WANT(s.b.send_cq, 2, SUCCESS);
    stream_close(&s);
}

/* Frames leave in one piece each, as the link says that pieces are now. */
static void frames_are_as_long_as_the_link_says(void) {
    static const uint32_t pieces[] = {1, 64, 100, 1447, 1448, 9000, 65483, 65536, 1 << 20};
    for (int markers = 0; markers < 2; markers++) {
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
            check_note("%u bytes, %s", pieces[i], markers ? "markers" : "no markers");
            stream_open(&s, .markers = markers, .segment = pieces[i]);
            fill(s.a.mem, 150000, 12);
            post_write(&s.a, 1, 0, 0, 150000);
            stream_run(&s);
            WANT(s.a.send_cq, 1, SUCCESS);
            CHECK(filled(s.b.mem, 150000, 12));
            uint32_t first = s.ab.bytes[markers ? 4 : 0] * 256u + s.ab.bytes[markers ? 5 : 1];
            uint32_t most = pieces[i] / 4 * 4;
            if (!markers && most >= 100 && most < 65540)
                CHECK_EQ(mpa_fpdu(first), most);
            CHECK(first <= 65534 && first % 4 == 2);
            stream_close(&s);
        }
    }
}

/* So that the next FPDU begins with one of TCP's segments. The rest of a message leaves with the next one's beginning. */
static void writes_end_with_a_piece(void) {
    static const struct {
        bool no_crc;
        uint32_t piece, bytes, messages, first, writes;
    } rows[] = {
        {false, 65483, 65536, 1, 65536 + 2 * 20, 1}, /* two FPDUs */
        {false, 65480, 200000, 1, 2 * 65480, 2},
        {false, 65480, 65536, 3, 2 * 65480, 2},
        {false, 1448, 150000, 1, 131080 / 1448 * 1448, 2},
        {false, 1448, 65536, 3, 65536 + 46 * 20 + 44 * 1448, 2}, /* one more would reach into the next piece */
        {true, 65480, 65536, 1, 65480, 2},
        {true, 65480, 65536, 3, 65480, 4},
        {true, 1448, 3000, 1, 3000 + 3 * 20, 1}, /* short payloads are copied */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("%u of %u bytes in pieces of %u", rows[i].messages, rows[i].bytes, rows[i].piece);
        stream_open(&s, .no_crc = rows[i].no_crc, .segment = rows[i].piece);
        fill(s.a.mem, rows[i].bytes, 13);
        for (uint32_t n = 0; n < rows[i].messages; n++)
            post_write(&s.a, n, 0, 0, rows[i].bytes);
        CHECK(stream_step(&s));
        CHECK_EQ(s.ab.first_write, rows[i].first);
        stream_run(&s);
        CHECK_EQ(s.ab.writes, rows[i].writes);
        CHECK(filled(s.b.mem, rows[i].bytes, 13));
        stream_close(&s);
    }
}

static void markers_stand_at_every_512th_place(void) {
    for (int crc = 0; crc < 2; crc++) {
        stream_open(&s, .markers = true, .no_crc = !crc, .segment = 3000);
        post_write(&s.a, 1, 0, 0, 10000);
        post_write(&s.a, 2, 0, 0, 3);
        stream_run(&s);
        uint64_t begin = 0;
        for (uint64_t at = 0; at < s.ab.written; at += 512) {
            while (begin + frame_bytes(begin) <= at)
                begin += frame_bytes(begin);
            uint64_t distance = at == begin ? 0 : at - begin - (begin % 512 ? 0 : 4);
            CHECK_EQ(get_be32(s.ab.bytes + at), distance);
        }
        stream_close(&s);
    }
}

/* ---------------------------------------------------------------- the beginning */

static void rts_needs_a_connection(void) {
    struct rnic_err err;
    const struct stream_options o = {0};
    stream_open(&s, .not_yet = true);
    CHECK_EQ(stream_move(&s.a, RNIC_QPS_RTS, &err), -ENOTCONN);
    CHECK(strstr(err.text, "RDMA-CM"));
    stream_agree(&s, &s.a, &o);
    CHECK_EQ(stream_move(&s.a, RNIC_QPS_RTS, &err), -ENOTCONN);
    stream_join(&s.a, &s.ab);
    CHECK_EQ(stream_move(&s.a, RNIC_QPS_RTS, &err), 0);
    stream_close(&s);
}

static int changes(uint32_t mask) {
    const struct rnic_qp_attr attr = {.qp_state = RNIC_QPS_RTS,
                                      .cur_qp_state = RNIC_QPS_RTS,
                                      .port_num = 1,
                                      .qp_access_flags = RNIC_ACCESS_REMOTE_READ};
    int rc = qp_attr_check(s.b.qp, &attr, RNIC_QP_STATE | mask, NULL);
    if (!rc)
        qp_attr_apply(s.b.qp, &attr, RNIC_QP_STATE | mask);
    return rc ? rc : qp_transition(s.b.qp, RNIC_QPS_RTS, NULL);
}

/* What librdmacm's users say of a connection that is there, and what the peer may do. */
static void what_may_change_in_rts(void) {
    static const uint32_t others[] = {RNIC_QP_PKEY_INDEX,         RNIC_QP_MAX_QP_RD_ATOMIC,
                                      RNIC_QP_MAX_DEST_RD_ATOMIC, RNIC_QP_AV,
                                      RNIC_QP_PATH_MTU,           RNIC_QP_TIMEOUT,
                                      RNIC_QP_RETRY_CNT,          RNIC_QP_RQ_PSN,
                                      RNIC_QP_DEST_QPN,           RNIC_QP_EN_SQD_ASYNC_NOTIFY};
    stream_open(&s);
    post_write(&s.a, 1, 0, 0, 8);
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        CHECK(changes(others[i]) < 0);
    CHECK_EQ(changes(0), 0);
    CHECK_EQ(changes(RNIC_QP_PORT), 0);
    CHECK_EQ(changes(RNIC_QP_CUR_STATE), 0);
    CHECK_EQ(changes(RNIC_QP_PORT | RNIC_QP_ACCESS_FLAGS | RNIC_QP_CUR_STATE), 0);
    post_read(&s.a, 2, 0, 0, 8);
    stream_run(&s);
    WANT(s.a.send_cq, 2, SUCCESS);
    post_write(&s.a, 3, 0, 0, 8);
    stream_run(&s);
    CHECK_EQ(s.b_end.event.end, RNIC_STREAM_REFUSED);
    stream_close(&s);
}

/* RFC 5044, 7.1 */
static void the_responder_waits_for_the_first_message(void) {
    stream_open(&s);
    post_recv(&s.a, 11, 0, 8);
    post_recv(&s.b, 12, 0, 8);
    post_send(&s.b, 2, 0, 8);
    stream_run(&s);
    CHECK_EQ(s.ba.written, 0);
    post_send(&s.a, 1, 0, 8);
    stream_run(&s);
    WANT(s.a.recv_cq, 11, SUCCESS);
    WANT(s.b.recv_cq, 12, SUCCESS);
    WANT(s.b.send_cq, 2, SUCCESS);
    stream_close(&s);
}

/* Programs whose server speaks first run over siw, which does not wait. */
static void a_responder_does_not_wait_for_ever(void) {
    stream_open(&s);
    stream_run(&s);
    CHECK_EQ(s.b.qp->engine->deadline(s.b.qp), NEVER);
    post_recv(&s.a, 11, 0, 8);
    post_send(&s.b, 2, 0, 8);
    stream_run(&s);
    CHECK_EQ(s.ba.written, 0);
    CHECK_EQ(s.b.qp->engine->deadline(s.b.qp), s.f.now + 400000000);
    stream_later(&s);
    stream_run(&s);
    WANT(s.b.send_cq, 2, SUCCESS);
    WANT(s.a.recv_cq, 11, SUCCESS);
    CHECK_EQ(s.b.qp->engine->deadline(s.b.qp), NEVER);
    stream_close(&s);
}

static void a_connection_of_equals(void) {
    static const uint8_t kinds[] = {RNIC_STREAM_RTR_SEND, RNIC_STREAM_RTR_WRITE, RNIC_STREAM_RTR_READ};
    for (size_t i = 0; i < sizeof kinds; i++) {
        check_note("kind %d", kinds[i]);
        stream_open(&s, .rtr = kinds[i]);
        post_recv(&s.a, 11, 0, 8);
        post_send(&s.b, 2, 0, 8);
        stream_run(&s);
        WANT(s.b.send_cq, 2, SUCCESS);
        WANT(s.a.recv_cq, 11, SUCCESS);
        WANT_NONE(s.b.recv_cq);
        WANT_NONE(s.a.send_cq);
        post_read(&s.a, 3, 0, 0, 8);
        stream_run(&s);
        WANT(s.a.send_cq, 3, SUCCESS);
        stream_close(&s);
    }
}

/* siw may not see the first one. The READ is of that once: its answer counts. */
static void the_ready_message_goes_again_until_something_is_heard(void) {
    static const uint8_t kinds[] = {RNIC_STREAM_RTR_SEND, RNIC_STREAM_RTR_WRITE};
    const uint32_t write = mpa_fpdu(DDP_TAGGED_BYTES);
    for (size_t i = 0; i < sizeof kinds; i++) {
        check_note("kind %d", kinds[i]);
        stream_open(&s, .rtr = kinds[i]);
        stream_run(&s);
        uint64_t first = s.ab.written, now = s.f.now;
        for (uint64_t n = 1; n <= 3; n++) {
            stream_later(&s);
            stream_run(&s);
            CHECK_EQ(s.ab.written, first + n * write);
        }
        CHECK(s.f.now - now < 1000000000);
        CHECK_EQ(s.a.qp->engine->deadline(s.a.qp), NEVER);
        post_recv(&s.a, 11, 0, 8);
        post_send(&s.b, 2, 0, 8);
        stream_run(&s);
        WANT(s.a.recv_cq, 11, SUCCESS);
        stream_close(&s);
    }
}

static void the_ready_message_goes_once_if_it_is_heard_of(void) {
    stream_open(&s, .rtr = RNIC_STREAM_RTR_READ);
    stream_run(&s); /* with its answer */
    CHECK_EQ(s.a.qp->engine->deadline(s.a.qp), NEVER);
    stream_close(&s);
    stream_open(&s, .rtr = RNIC_STREAM_RTR_WRITE);
    stream_run(&s);
    CHECK(s.a.qp->engine->deadline(s.a.qp) != NEVER);
    post_recv(&s.a, 11, 0, 8);
    post_send(&s.b, 2, 0, 8);
    stream_run(&s);
    CHECK_EQ(s.a.qp->engine->deadline(s.a.qp), NEVER);
    stream_close(&s);
    stream_open(&s, .rtr = RNIC_STREAM_RTR_WRITE, .rfc7306 = true);
    stream_run(&s);
    CHECK_EQ(s.a.qp->engine->deadline(s.a.qp), NEVER);
    stream_close(&s);
}

/* siw takes no other message between the segments of one. */
static void the_ready_message_waits_for_the_end_of_a_message(void) {
    stream_open(&s, .rtr = RNIC_STREAM_RTR_WRITE, .segment = 1000);
    s.ab.most_in_pipe = 4000;
    post_write(&s.a, 1, 0, 0, 100000);
    s.ab.held = true;
    stream_run(&s);
    stream_later(&s);
    s.ab.held = false;
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    uint64_t at = mpa_fpdu(DDP_TAGGED_BYTES), segments = 0, last = 0;
    for (; at < s.ab.written; at += mpa_fpdu(mpa_length(s.ab.bytes + at))) {
        segments += mpa_length(s.ab.bytes + at) > DDP_TAGGED_BYTES;
        last = mpa_length(s.ab.bytes + at);
    }
    CHECK(segments > 100);
    CHECK_EQ(last, DDP_TAGGED_BYTES);
    stream_close(&s);
}

/* ---------------------------------------------------------------- the end */

static void want_end(struct end *e, int end, int error) {
    const struct ending *ending = ending_of(&s, e);
    CHECK_EQ(ending->count, 1);
    CHECK_EQ(ending->event.end, end);
    CHECK_EQ(ending->event.error, error);
    CHECK_EQ(e->qp->state, RNIC_QPS_ERR);
}

static void a_connection_is_closed_in_order(void) {
    stream_open(&s);
    post_recv(&s.a, 10, 0, 8);
    post_recv(&s.b, 11, 0, 8);
    post_recv(&s.b, 12, 0, 8);
    post_send(&s.a, 1, 0, 8);
    post_read(&s.a, 2, 8, 0, 8);
    CHECK_EQ(stream_move(&s.a, RNIC_QPS_SQD, NULL), 0);
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    WANT(s.a.send_cq, 2, SUCCESS);
    WANT(s.b.recv_cq, 11, SUCCESS);
    WANT(s.b.recv_cq, 12, WR_FLUSH_ERR);
    WANT(s.a.recv_cq, 10, WR_FLUSH_ERR);
    want_end(&s.a, RNIC_STREAM_CLOSED, 0);
    want_end(&s.b, RNIC_STREAM_FIN, 0);
    WANT_NO_EVENT(&s.a);
    WANT_NO_EVENT(&s.b);
    stream_close(&s);
}

int main(void) {
    RUN(a_send_fills_a_receive);
    RUN(a_write_lands_where_it_says);
    RUN(a_read_fetches);
    RUN(messages_of_no_bytes);
    RUN(completions_keep_the_order_of_posts);
    RUN(unsignaled_ones_complete_silently);
    RUN(a_lot_both_ways);
    RUN(fence_waits_for_answers);
    RUN(reads_wait_for_each_other);
    RUN(one_read_at_a_time_beside_the_ready_message);
    RUN(answers_and_requests_take_turns);
    RUN(solicited_events);
    RUN(inline_bytes_are_free_at_once);
    RUN(atomics_change_a_word);
    RUN(a_write_does_not_overtake_an_atomic);
    RUN(the_first_message_is_told_of_once);
    RUN(nobody_is_told_of_a_beginning_behind_the_end);
    RUN(a_read_behind_half_a_lap_of_writes);
    RUN(what_cannot_be_posted);
    RUN(a_shared_receive_queue);
    RUN(memory_windows);
    RUN(regions_without_addresses);
    RUN(the_longest_message);
    RUN(completion_counters);
    RUN(counters);
    RUN(no_faster_than_its_rate);
    RUN(frames_are_as_long_as_the_link_says);
    RUN(writes_end_with_a_piece);
    RUN(markers_stand_at_every_512th_place);
    RUN(rts_needs_a_connection);
    RUN(what_may_change_in_rts);
    RUN(the_responder_waits_for_the_first_message);
    RUN(a_responder_does_not_wait_for_ever);
    RUN(a_connection_of_equals);
    RUN(the_ready_message_goes_again_until_something_is_heard);
    RUN(the_ready_message_goes_once_if_it_is_heard_of);
    RUN(the_ready_message_waits_for_the_end_of_a_message);
    RUN(a_connection_is_closed_in_order);
    return check_done();
}
