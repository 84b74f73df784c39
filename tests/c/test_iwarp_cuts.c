/* SPDX-License-Identifier: Apache-2.0
 *
 * The same conversation, with every operation, cut at every byte: of what is read, of what is written; and in pieces of a byte.
 */
#include <string.h>

#include "check.h"
#include "mem/mw.h"
#include "stream.h"

#define BYTES 4096u
#define HEARD 2048u /* where receives are */

static struct stream s;
static uint8_t want_a[BYTES], want_b[BYTES];
static struct mw window;

static const struct stream_options kinds[] = {
    {.rfc7306 = true},
    {.rfc7306 = true, .rtr = RNIC_STREAM_RTR_READ, .segment = 100},
    {.rfc7306 = true, .no_crc = true, .segment = 100, .rtr = RNIC_STREAM_RTR_SEND},
    {.rfc7306 = true, .markers = true},
    {.rfc7306 = true, .markers = true, .no_crc = true, .segment = 200, .rtr = RNIC_STREAM_RTR_WRITE},
};
#define KINDS (sizeof kinds / sizeof *kinds)

static void open_stream(size_t kind) {
    struct stream_options o = kinds[kind];
    o.bytes = BYTES;
    stream_open_options(&s, &o);
    fill(s.a.mem, HEARD, 1);
    fill(s.b.mem, HEARD, 2);
    memcpy(want_a, s.a.mem, BYTES);
    memcpy(want_b, s.b.mem, BYTES);
    window = (struct mw){.pub = {.pd = &s.b.node->pd.pub, .type = RNIC_MW_TYPE_2}};
    CHECK_EQ(mw_insert(&s.b.node->nic.mrs, &window), 0);
    const struct mw_binding binding = {.window = window.pub.rkey,
                                       .new_key = window.pub.rkey,
                                       .region = s.b.mr->pub.lkey,
                                       .access = RNIC_ACCESS_REMOTE_WRITE,
                                       .addr = (uintptr_t)s.b.mem,
                                       .length = 64};
    CHECK_EQ(mw_bind(&s.b.node->nic.mrs, &s.b.qp->pub, &s.b.qp->windows, &binding), 0);
}

static void close_stream(void) {
    mw_remove(&s.b.node->nic.mrs, &window);
    stream_close(&s);
}

static void receive(struct end *e, uint64_t id, uint32_t n) { post_recv(e, id, HEARD + 100 * id, n); }

static void say_a(void) {
    for (uint64_t id = 0; id < 5; id++)
        receive(&s.b, id, 99);
    post_write(&s.a, 1, 3, 1001, 333);
    post_send(&s.a, 2, 40, 13);
    post_send(&s.a, 3, 60, 0);
    post(&s.a, (struct rnic_send_wr){.wr_id = 4,
                                     .opcode = RNIC_WR_SEND_WITH_INV,
                                     .send_flags = RNIC_SEND_SIGNALED | RNIC_SEND_SOLICITED,
                                     .imm_data = window.pub.rkey,
                                     SGL(SGE(&s.a, 70, 5), SGE(&s.a, 90, 60), SGE(&s.a, 200, 7))});
    post_read(&s.a, 5, 1501, 205, 250);
    post_add(&s.a, 6, 1800, 1600, 5);
    post_swap(&s.a, 7, 1808, 1608, 1, 2);
    post(&s.a, (struct rnic_send_wr){.wr_id = 8,
                                     .opcode = RNIC_WR_RDMA_WRITE_WITH_IMM,
                                     .send_flags = RNIC_SEND_SIGNALED,
                                     .imm_data = 0x01020304,
                                     REMOTE(&s.b, 1400),
                                     SGL(SGE(&s.a, 7, 9))});
    post(&s.a, (struct rnic_send_wr){.wr_id = 9,
                                     .opcode = RNIC_WR_SEND,
                                     .send_flags = RNIC_SEND_SIGNALED | RNIC_SEND_INLINE,
                                     SGL(SGE(&s.a, 11, 33))});
}

static void say_b(void) {
    receive(&s.a, 0, 99);
    receive(&s.a, 1, 99);
    post_send(&s.b, 1, 400, 21);
    post_write(&s.b, 2, 411, 1301, 17);
    post_read(&s.b, 3, 1701, 350, 40);
    post_send(&s.b, 4, 450, 99);
}

/* What memory is to be, at both ends. */
static void expect(void) {
    uint64_t word, other;
    memcpy(&word, s.b.mem + 1600, 8); /* with 5 more */
    memcpy(want_b + 1001, want_a + 3, 333);
    memcpy(want_b + HEARD, want_a + 40, 13);
    memcpy(want_b + HEARD + 200, want_a + 70, 5);
    memcpy(want_b + HEARD + 205, want_a + 90, 60);
    memcpy(want_b + HEARD + 265, want_a + 200, 7);
    memcpy(want_a + 1501, want_b + 205, 250);
    memcpy(want_a + 1800, want_b + 1600, 8);
    memcpy(&other, want_b + 1600, 8);
    other += 5;
    memcpy(want_b + 1600, &other, 8);
    CHECK_EQ(word, other);
    memcpy(want_a + 1808, want_b + 1608, 8);
    memcpy(want_b + 1400, want_a + 7, 9);
    memcpy(want_b + HEARD + 400, want_a + 11, 33);
    memcpy(want_a + HEARD, want_b + 400, 21);
    memcpy(want_a + 1301, want_b + 411, 17);
    memcpy(want_b + 1701, want_a + 350, 40);
    memcpy(want_a + HEARD + 100, want_b + 450, 99);
    CHECK(!memcmp(s.a.mem, want_a, BYTES));
    CHECK(!memcmp(s.b.mem, want_b, BYTES));
}

static void want_receive(struct end *e, uint64_t id, uint32_t n, int opcode, uint32_t flags) {
    struct rnic_wc wc = WANT(e->recv_cq, id, SUCCESS);
    CHECK_EQ(wc.byte_len, n);
    CHECK_EQ(wc.opcode, opcode);
    CHECK_EQ(wc.wc_flags, flags);
    if (flags & RNIC_WCF_WITH_IMM)
        CHECK_EQ(wc.imm_data, 0x01020304);
    if (flags & RNIC_WCF_WITH_INV)
        CHECK_EQ(wc.invalidated_rkey, window.pub.rkey);
}

static void check_all(void) {
    for (uint64_t id = 1; id <= 9; id++)
        WANT(s.a.send_cq, id, SUCCESS);
    for (uint64_t id = 1; id <= 4; id++)
        WANT(s.b.send_cq, id, SUCCESS);
    want_receive(&s.b, 0, 13, RNIC_WCO_RECV, 0);
    want_receive(&s.b, 1, 0, RNIC_WCO_RECV, 0);
    want_receive(&s.b, 2, 72, RNIC_WCO_RECV, RNIC_WCF_WITH_INV);
    want_receive(&s.b, 3, 9, RNIC_WCO_RECV_RDMA_WITH_IMM, RNIC_WCF_WITH_IMM);
    want_receive(&s.b, 4, 33, RNIC_WCO_RECV, 0);
    want_receive(&s.a, 0, 21, RNIC_WCO_RECV, 0);
    want_receive(&s.a, 1, 99, RNIC_WCO_RECV, 0);
    WANT_NONE(s.a.send_cq);
    WANT_NONE(s.b.send_cq);
    CHECK(!window.mr);
    expect();
    CHECK_EQ(s.a.qp->state, RNIC_QPS_RTS);
    CHECK_EQ(s.b.qp->state, RNIC_QPS_RTS);
}

static void converse(void) {
    say_a();
    say_b();
    stream_run(&s);
    check_all();
}

static void all_at_once(void) {
    for (size_t kind = 0; kind < KINDS; kind++) {
        check_note("kind %zu", kind);
        open_stream(kind);
        converse();
        close_stream();
    }
}

static void in_pieces_of_few_bytes(void) {
    for (size_t kind = 0; kind < KINDS; kind++) {
        for (uint32_t n = 1; n <= 40; n++) {
            check_note("kind %zu, %u bytes", kind, n);
            open_stream(kind);
            s.ab.most_read = s.ba.most_read = n;
            s.ab.most_written = s.ba.most_written = 41 - n;
            converse();
            close_stream();
        }
    }
}

static void through_a_narrow_pipe(void) {
    for (size_t kind = 0; kind < KINDS; kind++) {
        for (uint32_t n = 1; n <= 40; n++) {
            check_note("kind %zu, %u bytes", kind, n);
            open_stream(kind);
            s.ab.most_in_pipe = s.ba.most_in_pipe = n;
            converse();
            close_stream();
        }
    }
}

/* Two cuts close to each other, one wherever the other may be: what is read between them is short. */
static void cut_at_every_byte(void) {
    for (size_t kind = 0; kind < KINDS; kind++) {
        uint64_t most = 1;
        for (uint64_t at = 1; at < most || at == 1; at++) {
            check_note("kind %zu, byte %llu", kind, (unsigned long long)at);
            open_stream(kind);
            s.ab.cut_read = s.ba.cut_read = at;
            s.ab.cut_written = s.ba.cut_written = at + at % 7;
            converse();
            most = s.ab.written > s.ba.written ? s.ab.written : s.ba.written;
            close_stream();
        }
    }
}

int main(void) {
    RUN(all_at_once);
    RUN(in_pieces_of_few_bytes);
    RUN(through_a_narrow_pipe);
    RUN(cut_at_every_byte);
    return check_done();
}
