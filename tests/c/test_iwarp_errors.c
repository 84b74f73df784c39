/* SPDX-License-Identifier: Apache-2.0
 *
 * Every Terminate message: sent for what it is for, with the headers that belong to it; and what one that comes means to the
 * requests under way.
 */
#include <errno.h>
#include <string.h>

#include "check.h"
#include "segment.h"
#include "wire/crc32c.h"

static struct stream s;
static struct segment g, sent;

enum { RDMAP, DDP, MPA };

/* ---------------------------------------------------------------- sent */

/* The end has refused what came: by that Terminate message, with so many bytes of the headers of the segment; its event; it
 * ends in error, in which it wants nothing but the peer's end. */
static void want_terminate(struct end *e, int layer, int type, int code, uint32_t headers, int event) {
    const struct ending *ending = ending_of(&s, e);
    stream_run(&s);
    CHECK(segment_last(pipe_from(&s, e), &sent));
    const uint8_t *control = segment_behind(&sent);
    CHECK_EQ(rdmap_opcode(sent.ddp), RDMAP_TERMINATE);
    CHECK(ddp_last(sent.ddp) && !ddp_tagged(sent.ddp));
    CHECK_EQ(ddp_qn(sent.ddp), 2);
    CHECK_EQ(ddp_msn(sent.ddp), 1);
    CHECK_EQ(ddp_mo(sent.ddp), 0);
    CHECK_EQ(terminate_layer(control), layer);
    CHECK_EQ(terminate_type(control), type);
    CHECK_EQ(terminate_code(control), code);
    CHECK_EQ(terminate_m(control), headers > 0);
    CHECK_EQ(terminate_d(control), headers > 0);
    CHECK_EQ(terminate_r(control), headers > 18);
    CHECK(!(control[2] & 0x1F) && !control[3]);
    CHECK_EQ(sent.n, DDP_UNTAGGED_BYTES + TERMINATE_BYTES + (headers ? 2 + headers : 0));
    if (headers) {
        CHECK_EQ(terminate_length(control), g.n);
        CHECK(!memcmp(control + TERMINATED_AT, g.ddp, headers));
    }
    CHECK_EQ(ending->count, 1);
    CHECK_EQ(ending->event.end, RNIC_STREAM_REFUSED);
    CHECK_EQ(ending->event.layer, layer);
    CHECK_EQ(ending->event.type, type);
    CHECK_EQ(ending->event.code, code);
    CHECK_EQ(e->qp->state, RNIC_QPS_ERR);
    CHECK(pipe_from(&s, e)->finished);
    want_event(e, event, __FILE__, __LINE__);
    WANT_NO_EVENT(e);
    CHECK_EQ(COUNTER(e, terminates_sent), 1);
    CHECK_EQ(COUNTER(e->peer, terminates_received), 1);
    CHECK_EQ(ending_of(&s, e->peer)->event.end, RNIC_STREAM_TERMINATED);
    CHECK_EQ(ending_of(&s, e->peer)->event.code, code);
}

static void begin(const char *what) {
    check_note("%s", what);
    stream_open(&s, .rfc7306 = true);
}

static void give(void) { segment_give(&s, &s.b, &g); }

/* Refused by b, which has posted a receive, flushed. */
static void refused(int layer, int type, int code, uint32_t headers, int event) {
    post_recv(&s.b, 90, 200000, 16);
    give();
    want_terminate(&s.b, layer, type, code, headers, event);
    WANT_ERR(s.b.recv_cq, 90, WR_FLUSH_ERR, FLUSHED);
    stream_close(&s);
}

#define REQ RNIC_EVENT_QP_REQ_ERR
#define ACCESS RNIC_EVENT_QP_ACCESS_ERR
#define FATAL RNIC_EVENT_QP_FATAL

static void versions_and_opcodes(void) {
    begin("DDP's version, tagged");
    segment_tagged(&g, RDMAP_WRITE, true, s.b.mr->pub.rkey, (uintptr_t)s.b.mem, "x", 1);
    ddp_set_version(g.ddp, 2);
    refused(DDP, 1, 4, 0, REQ);
    begin("DDP's version, untagged");
    segment_untagged(&g, RDMAP_SEND, true, 1, 0, "x", 1);
    ddp_set_version(g.ddp, 0);
    refused(DDP, 2, 6, 0, REQ);
    begin("RDMAP's version");
    segment_untagged(&g, RDMAP_SEND, true, 1, 0, "x", 1);
    rdmap_set_version(g.ddp, 0);
    refused(RDMAP, 2, 5, 0, REQ);
    for (unsigned opcode = RDMAP_OPCODES; opcode < 16; opcode++) {
        begin("an opcode that does not exist");
        segment_untagged(&g, RDMAP_SEND, true, 1, 0, "x", 1);
        rdmap_set_opcode(g.ddp, (uint8_t)opcode);
        refused(RDMAP, 2, 6, 0, REQ);
    }
    for (unsigned opcode = 0; opcode < RDMAP_OPCODES; opcode++) {
        begin("the other kind of segment");
        check_note("opcode %u, the other kind of segment", opcode);
        segment_untagged(&g, RDMAP_SEND, true, 1, 0, "x", 1);
        ddp_put_control(g.ddp, opcode, !rdmap_row(opcode)->tagged, true);
        refused(RDMAP, 2, 6, 0, REQ);
    }
}

static void opcodes_of_rfc_7306_where_it_was_not_agreed(void) {
    for (unsigned opcode = RDMAP_IMMEDIATE; opcode < RDMAP_OPCODES; opcode++) {
        check_note("opcode %u", opcode);
        stream_open(&s);
        segment_untagged(&g, opcode, true, 1, 0, NULL, 0);
        refused(RDMAP, 2, 6, 0, REQ);
    }
}

static void lengths(void) {
    for (uint32_t n = 0; n < DDP_UNTAGGED_BYTES; n++) {
        begin("shorter than the headers");
        segment_untagged(&g, RDMAP_SEND, true, 1, 0, NULL, 0);
        g.n = n;
        refused(RDMAP, 2, 0xFF, 0, REQ);
    }
    for (uint32_t n = DDP_CONTROL_BYTES; n < DDP_TAGGED_BYTES; n++) {
        begin("shorter than the headers of a tagged one");
        segment_tagged(&g, RDMAP_WRITE, true, 1, 0, NULL, 0);
        g.n = n;
        refused(RDMAP, 2, 0xFF, 0, REQ);
    }
    static const unsigned whole[] = {RDMAP_READ_REQUEST, RDMAP_ATOMIC_REQUEST, RDMAP_IMMEDIATE};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        begin("a request that is too long");
        segment_untagged(&g, whole[i], true, 1, 0, "x", 1);
        refused(RDMAP, 2, 0xFF, 0, REQ);
        begin("a request that is to go on");
        segment_untagged(&g, whole[i], false, 1, 0, NULL, 0);
        refused(RDMAP, 2, 0xFF, 0, REQ);
        begin("a request that is too short");
        segment_untagged(&g, whole[i], true, 1, 0, NULL, 0);
        g.n--;
        refused(RDMAP, 2, 0xFF, 0, REQ);
    }
}

static void queues_and_numbers(void) {
    static const unsigned opcodes[] = {RDMAP_SEND,           RDMAP_SEND_SE_INV,     RDMAP_READ_REQUEST,
                                       RDMAP_ATOMIC_REQUEST, RDMAP_ATOMIC_RESPONSE, RDMAP_IMMEDIATE};
    for (size_t i = 0; i < sizeof opcodes / sizeof *opcodes; i++) {
        bool request = opcodes[i] == RDMAP_READ_REQUEST || opcodes[i] == RDMAP_ATOMIC_REQUEST;
        uint32_t headers = request ? rdmap_header(rdmap_row(opcodes[i])) : DDP_UNTAGGED_BYTES;
        begin("another queue");
        segment_untagged(&g, opcodes[i], true, 1, 0, NULL, 0);
        ddp_set_qn(g.ddp, ddp_qn(g.ddp) ^ 1);
        refused(DDP, 2, 1, headers, REQ);
        begin("a queue that does not exist");
        segment_untagged(&g, opcodes[i], true, 1, 0, NULL, 0);
        ddp_set_qn(g.ddp, 0x80000000u | ddp_qn(g.ddp));
        refused(DDP, 2, 1, headers, REQ);
        begin("an MSN ahead");
        segment_untagged(&g, opcodes[i], true, 2, 0, NULL, 0);
        refused(DDP, 2, 3, headers, REQ);
        begin("an MSN behind");
        segment_untagged(&g, opcodes[i], true, 0, 0, NULL, 0);
        refused(DDP, 2, 3, headers, REQ);
        begin("an offset");
        segment_untagged(&g, opcodes[i], true, 1, 4, NULL, 0);
        refused(DDP, 2, 4, headers, REQ);
    }
}

static void segments_of_a_send(void) {
    begin("an offset beyond the next one");
    post_recv(&s.b, 1, 0, 100);
    segment_untagged(&g, RDMAP_SEND, false, 1, 0, "abcd", 4);
    give();
    segment_untagged(&g, RDMAP_SEND, true, 1, 5, "efgh", 4);
    give();
    want_terminate(&s.b, DDP, 2, 4, 18, REQ);
    WANT(s.b.recv_cq, 1, REM_INV_REQ_ERR);
    stream_close(&s);
    begin("another opcode in its middle");
    post_recv(&s.b, 1, 0, 100);
    segment_untagged(&g, RDMAP_SEND, false, 1, 0, "abcd", 4);
    give();
    segment_untagged(&g, RDMAP_SEND_SE, true, 1, 4, "efgh", 4);
    give();
    want_terminate(&s.b, RDMAP, 2, 6, 0, REQ);
    WANT_ERR(s.b.recv_cq, 1, WR_FLUSH_ERR, FLUSHED);
    stream_close(&s);
    begin("the next one before its end");
    post_recv(&s.b, 1, 0, 100);
    segment_untagged(&g, RDMAP_SEND, false, 1, 0, "abcd", 4);
    give();
    segment_untagged(&g, RDMAP_SEND, true, 2, 0, "efgh", 4);
    give();
    want_terminate(&s.b, DDP, 2, 3, 18, REQ);
    WANT_ERR(s.b.recv_cq, 1, WR_FLUSH_ERR, FLUSHED);
    stream_close(&s);
}

/* RFC 5041, 5.3 allows what siw does not: they are carried out there and then. */
static void other_messages_amid_a_send(void) {
    begin("WRITE, READ and atomic");
    s.ba.held = true; /* the answers are to nothing that a has asked for */
    post_recv(&s.b, 1, 0, 8);
    segment_untagged(&g, RDMAP_SEND, false, 1, 0, "abcd", 4);
    give();
    segment_tagged(&g, RDMAP_WRITE, true, s.b.mr->pub.rkey, (uintptr_t)s.b.mem + 100, "written", 7);
    give();
    CHECK(!memcmp(s.b.mem + 100, "written", 7));
    segment_read(&g, 1, 77, 0, 8, s.b.mr->pub.rkey, (uintptr_t)s.b.mem);
    give();
    segment_untagged(&g, RDMAP_ATOMIC_REQUEST, true, 2, 0, NULL, 0);
    atomic_set_stag(segment_behind(&g), s.b.mr->pub.rkey);
    atomic_set_to(segment_behind(&g), (uintptr_t)s.b.mem + 200);
    atomic_set_data(segment_behind(&g), 5);
    give();
    stream_run(&s);
    CHECK_EQ(s.b.mem[200], 5);
    CHECK_EQ(COUNTER(&s.b, responses_sent), 2);
    segment_untagged(&g, RDMAP_SEND, true, 1, 4, "efgh", 4);
    give();
    WANT(s.b.recv_cq, 1, SUCCESS);
    CHECK(!memcmp(s.b.mem, "abcdefgh", 8));
    CHECK_EQ(s.b.qp->state, RNIC_QPS_RTS);
    stream_close(&s);
}

static void receives(void) {
    static const unsigned opcodes[] = {RDMAP_SEND, RDMAP_SEND_INV, RDMAP_SEND_SE, RDMAP_SEND_SE_INV, RDMAP_IMMEDIATE};
    for (size_t i = 0; i < sizeof opcodes / sizeof *opcodes; i++) {
        begin("no receive");
        segment_untagged(&g, opcodes[i], true, 1, 0, NULL, 0);
        give();
        want_terminate(&s.b, DDP, 2, 2, 18, REQ);
        stream_close(&s);
    }
    begin("too long");
    post_recv(&s.b, 1, 0, 3);
    segment_untagged(&g, RDMAP_SEND, true, 1, 0, "abcd", 4);
    give();
    want_terminate(&s.b, DDP, 2, 5, 18, -1);
    WANT_ERR(s.b.recv_cq, 1, LOC_LEN_ERR, RECV_TOO_SMALL);
    CHECK(!s.b.mem[0]);
    stream_close(&s);
    begin("too long with its second segment");
    post_recv(&s.b, 1, 0, 6);
    segment_untagged(&g, RDMAP_SEND, false, 1, 0, "abcd", 4);
    give();
    segment_untagged(&g, RDMAP_SEND, false, 1, 4, "efg", 3);
    give();
    want_terminate(&s.b, DDP, 2, 5, 18, -1);
    WANT_ERR(s.b.recv_cq, 1, LOC_LEN_ERR, RECV_TOO_SMALL);
    CHECK(!s.b.mem[4]);
    stream_close(&s);
    begin("a key that may not be invalidated");
    post_recv(&s.b, 1, 0, 6);
    segment_untagged(&g, RDMAP_SEND_INV, true, 1, 0, "abcd", 4);
    rdmap_set_inv_stag(g.ddp, s.b.mr->pub.rkey);
    give();
    want_terminate(&s.b, RDMAP, 2, 9, 18, ACCESS);
    WANT_ERR(s.b.recv_cq, 1, REM_INV_REQ_ERR, INVALIDATE_REGION);
    stream_close(&s);
    begin("a receive whose key is bad");
    struct rnic_sge bad = {(uintptr_t)s.b.mem, 8, s.b.mr->pub.lkey + 1};
    struct rnic_recv_wr wr = {.wr_id = 1, .sg_list = &bad, .num_sge = 1};
    const struct rnic_recv_wr *bad_wr;
    CHECK_EQ(rq_post(&s.b.qp->rq, &wr, &bad_wr, NULL), 0);
    segment_untagged(&g, RDMAP_SEND, true, 1, 0, "abcd", 4);
    give();
    want_terminate(&s.b, RDMAP, 0, 0, 0, -1);
    WANT_ERR(s.b.recv_cq, 1, LOC_PROT_ERR, SGE_BAD_LKEY);
    stream_close(&s);
}

/* ---------------------------------------------------------------- memory of the target */

struct range {
    const char *what;
    uint32_t access; /* of the region; of the queue pair: all, or what `denied` says */
    int64_t key;     /* added to it */
    uint64_t to;     /* offset into the memory; or far: ahead of the last address but three */
    bool far, other_pd, denied;
    int write[3], read[3]; /* layer, type, code of either */
};

static const struct range ranges[] = {
    {"no such key", ALL_ACCESS, 1, 0, false, false, false, {DDP, 1, 0}, {RDMAP, 1, 0}},
    {"ahead of the region", ALL_ACCESS, 0, (uint64_t)-1, false, false, false, {DDP, 1, 1}, {RDMAP, 1, 1}},
    {"behind it", ALL_ACCESS, 0, 93, false, false, false, {DDP, 1, 1}, {RDMAP, 1, 1}},
    {"around the end of all addresses", ALL_ACCESS, 0, 0, true, false, false, {DDP, 1, 3}, {RDMAP, 1, 4}},
    {"up to the end of all addresses", ALL_ACCESS, 0, 4, true, false, false, {DDP, 1, 1}, {RDMAP, 1, 1}},
    {"no right", RNIC_ACCESS_LOCAL_WRITE, 0, 0, false, false, false, {RDMAP, 1, 2}, {RDMAP, 1, 2}},
    {"no right of the queue pair", ALL_ACCESS, 0, 0, false, false, true, {RDMAP, 1, 2}, {RDMAP, 1, 2}},
    {"another protection domain", ALL_ACCESS, 0, 0, false, true, false, {DDP, 1, 2}, {RDMAP, 1, 3}},
};

static struct mr *region(const struct range *r) {
    struct node *node = s.b.node;
    return fabric_mr(node, r->other_pd ? &node->other_pd : &node->pd, s.b.mem + 1000, 100, r->access);
}

static void try_range(const struct range *r, bool write) {
    check_note("%s, %s", write ? "WRITE" : "READ", r->what);
    stream_open(&s, .access = r->denied ? NONE : ALL_ACCESS);
    struct mr *mr = region(r);
    uint32_t key = mr->pub.rkey + (uint32_t)r->key;
    uint64_t to = r->far ? UINT64_MAX - 3 - r->to : (uintptr_t)s.b.mem + 1000 + r->to;
    const int *code = write ? r->write : r->read;
    if (write)
        segment_tagged(&g, RDMAP_WRITE, true, key, to, "12345678", 8);
    else
        segment_read(&g, 1, 77, 0, 8, key, to);
    give();
    want_terminate(&s.b, code[0], code[1], code[2], write ? 14 : 46, ACCESS);
    for (int i = 0; i < 2000; i++)
        CHECK(!s.b.mem[i]);
    fabric_drop_mr(s.b.node, mr);
    stream_close(&s);
}

static void memory_of_the_target(void) {
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        try_range(&ranges[i], true);
        try_range(&ranges[i], false);
    }
}

/* The answers to those before it come first. */
static void a_bad_read_behind_good_ones(void) {
    begin("");
    fill(s.b.mem, 50, 7);
    post_read(&s.a, 1, 100, 0, 50);
    post(&s.a, (struct rnic_send_wr){.wr_id = 2,
                                     .opcode = RNIC_WR_RDMA_READ,
                                     .wr.rdma = {(uintptr_t)s.b.mem, s.b.mr->pub.rkey + 1},
                                     SGL(SGE(&s.a, 200, 50))});
    post_read(&s.a, 3, 300, 0, 50);
    post_send(&s.a, 4, 0, 8);
    post_recv(&s.b, 11, 1000, 8);
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    CHECK(filled(s.a.mem + 100, 50, 7));
    WANT_ERR(s.a.send_cq, 2, REM_ACCESS_ERR, PEER_STAG);
    WANT_ERR(s.a.send_cq, 3, WR_FLUSH_ERR, FLUSHED);
    WANT_ERR(s.a.send_cq, 4, WR_FLUSH_ERR, FLUSHED);
    WANT(s.b.recv_cq, 11, SUCCESS);
    WANT_EVENT(&s.b, QP_ACCESS_ERR);
    WANT_EVENT(&s.a, QP_FATAL);
    CHECK_EQ(s.a_end.event.end, RNIC_STREAM_TERMINATED);
    stream_close(&s);
}

/* ---------------------------------------------------------------- READs and atomics */

static void more_reads_than_there_is_room_for(void) {
    stream_open(&s, .dest_rd_atomic = 2);
    for (uint32_t i = 1; i <= 3; i++) {
        segment_read(&g, i, 77, 0, 8, s.b.mr->pub.rkey, (uintptr_t)s.b.mem);
        give();
    }
    want_terminate(&s.b, DDP, 2, 2, 46, REQ);
    stream_close(&s);
    stream_open(&s, .dest_rd_atomic = NONE);
    segment_read(&g, 1, 77, 0, 0, 0, 0);
    give();
    want_terminate(&s.b, DDP, 2, 2, 46, REQ);
    stream_close(&s);
    stream_open(&s, .dest_rd_atomic = NONE); /* in the middle of a SEND, which is not to blame */
    post_recv(&s.b, 90, 0, 16);
    segment_untagged(&g, RDMAP_SEND, false, 1, 0, "x", 1);
    give();
    segment_read(&g, 1, 77, 0, 0, 0, 0);
    give();
    want_terminate(&s.b, DDP, 2, 2, 46, REQ);
    WANT_ERR(s.b.recv_cq, 90, WR_FLUSH_ERR, FLUSHED);
    stream_close(&s);
}

static void try_atomic(const char *what, int opcode, uint64_t at, uint64_t mask, uint64_t compare_mask, int type,
                       int code, int event) {
    begin(what);
    segment_untagged(&g, RDMAP_ATOMIC_REQUEST, true, 1, 0, NULL, 0);
    uint8_t *atomic = segment_behind(&g);
    atomic_set_opcode(atomic, (uint32_t)opcode);
    atomic_set_stag(atomic, s.b.mr->pub.rkey);
    atomic_set_to(atomic, (uintptr_t)s.b.mem + at);
    atomic_set_data(atomic, 5);
    atomic_set_data_mask(atomic, mask);
    atomic_set_compare_mask(atomic, compare_mask);
    give();
    want_terminate(&s.b, RDMAP, type, code, 70, event);
    CHECK(!s.b.mem[0] && !s.b.mem[7]);
    stream_close(&s);
}

static void atomics(void) {
    try_atomic("not aligned", ATOMIC_FETCH_ADD, 1, 0, 0, 2, 7, REQ);
    try_atomic("an operation that does not exist", 3, 0, UINT64_MAX, UINT64_MAX, 2, 7, REQ);
    try_atomic("a mask", ATOMIC_CMP_SWAP, 0, 0xFF, UINT64_MAX, 2, 7, REQ);
    try_atomic("a mask of what is compared", ATOMIC_CMP_SWAP, 0, UINT64_MAX, 0xFF, 2, 7, REQ);
    try_atomic("parts of an addition", ATOMIC_FETCH_ADD, 0, 0x80, 0, 2, 7, REQ);
    try_atomic("behind the region", ATOMIC_FETCH_ADD, 256 << 10, 0, 0, 1, 1, ACCESS);
}

/* ---------------------------------------------------------------- answers */

/* To a READ of 100 bytes that a has posted; b says something else. */
static void answer(const char *what, uint32_t stag, uint64_t to, uint32_t n, bool last, uint32_t before) {
    static const uint8_t bytes[200];
    begin(what);
    post_read(&s.a, 1, 0, 0, 100);
    post_send(&s.a, 2, 0, 0);
    s.ab.held = true;
    stream_run(&s);
    if (before) {
        segment_tagged(&g, RDMAP_READ_RESPONSE, false, 1, 0, bytes, before);
        segment_give(&s, &s.a, &g);
    }
    segment_tagged(&g, RDMAP_READ_RESPONSE, last, stag, to, bytes, n);
    segment_give(&s, &s.a, &g);
    s.ab.read = s.ab.written; /* b sees no more of it than the Terminate message */
    s.ab.held = false;
    want_terminate(&s.a, DDP, 1, 0, 14, -1);
    WANT_ERR(s.a.send_cq, 1, BAD_RESP_ERR, BAD_RESPONSE);
    WANT_ERR(s.a.send_cq, 2, WR_FLUSH_ERR, FLUSHED);
    stream_close(&s);
}

static void answers_that_are_not_due(void) {
    answer("another key", 2, 0, 100, true, 0);
    answer("another offset", 1, 1, 99, true, 0);
    answer("too long", 1, 0, 101, true, 0);
    answer("too short", 1, 0, 99, true, 0);
    answer("to go on behind its end", 1, 0, 100, false, 0);
    answer("nothing of it", 1, 0, 0, false, 0);
    answer("the beginning again", 1, 0, 50, false, 50);
    answer("too long with the second", 1, 50, 51, true, 50);
    begin("to no question");
    segment_tagged(&g, RDMAP_READ_RESPONSE, true, 1, 0, "x", 1);
    segment_give(&s, &s.a, &g);
    want_terminate(&s.a, DDP, 1, 0, 14, -1);
    stream_close(&s);
    check_note("to a READ that is still to be asked, in the place of an element that has been");
    stream_open(&s, .wr = 2);
    for (uint64_t i = 1; i <= 2; i++)
        post_write(&s.a, i, 0, 0, 8);
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    WANT(s.a.send_cq, 2, SUCCESS);
    post_read(&s.a, 3, 0, 0, 8);
    segment_tagged(&g, RDMAP_READ_RESPONSE, true, 0, 0, "12345678", 8);
    segment_give(&s, &s.a, &g);
    want_terminate(&s.a, DDP, 1, 0, 14, -1);
    WANT_ERR(s.a.send_cq, 3, WR_FLUSH_ERR, FLUSHED);
    stream_close(&s);
    begin("of an atomic to a READ");
    post_read(&s.a, 1, 0, 0, 8);
    stream_step(&s);
    segment_untagged(&g, RDMAP_ATOMIC_RESPONSE, true, 1, 0, NULL, 0);
    atomic_response_set_id(segment_behind(&g), 1);
    segment_give(&s, &s.a, &g);
    want_terminate(&s.a, DDP, 1, 0, 18, -1);
    WANT_ERR(s.a.send_cq, 1, BAD_RESP_ERR, BAD_RESPONSE);
    stream_close(&s);
    begin("of a READ to an atomic");
    post_add(&s.a, 1, 0, 0, 1);
    stream_step(&s);
    segment_tagged(&g, RDMAP_READ_RESPONSE, true, 1, 0, "12345678", 8);
    segment_give(&s, &s.a, &g);
    want_terminate(&s.a, DDP, 1, 0, 14, -1);
    WANT_ERR(s.a.send_cq, 1, BAD_RESP_ERR, BAD_RESPONSE);
    stream_close(&s);
}

/* ---------------------------------------------------------------- MPA */

static void a_wrong_crc(void) {
    static uint8_t frame[1000];
    static const uint32_t lengths_[] = {0, 1, 8, 9, 500};
    for (size_t i = 0; i < sizeof lengths_ / sizeof *lengths_; i++) {
        for (uint32_t piece = 1; piece < 1000; piece += 333) {
            begin("a wrong CRC");
            post_recv(&s.b, 1, 0, 600);
            segment_untagged(&g, RDMAP_SEND, true, 1, 0, s.a.mem, lengths_[i]);
            uint32_t n = segment_frame(&g, true, frame);
            frame[n - 1] ^= 1;
            for (uint32_t at = 0; at < n; at += piece)
                stream_give(&s, &s.b, frame + at, n - at < piece ? n - at : piece);
            want_terminate(&s.b, MPA, 0, 2, 0, FATAL);
            WANT_ERR(s.b.recv_cq, 1, WR_FLUSH_ERR, FLUSHED);
            stream_close(&s);
        }
    }
}

/* A header that came out wrong is an error on the way, not one of the peer: whichever of its bits it is. */
static void a_flipped_bit_anywhere(void) {
    for (uint64_t at = 3; at <= 2 + 18 + 28 + 4; at++) {
        begin("");
        check_note("byte %llu", (unsigned long long)at);
        post_read(&s.a, 1, 0, 0, 64);
        s.ab.flip = at;
        stream_run(&s);
        WANT_ERR(s.a.send_cq, 1, REM_INV_REQ_ERR, PEER_CRC);
        CHECK_EQ(s.b_end.event.layer, MPA);
        CHECK_EQ(s.b_end.event.code, 2);
        stream_close(&s);
    }
}

static void a_wrong_marker(void) {
    stream_open(&s, .markers = true);
    post_recv(&s.b, 1, 0, 2000);
    post_send(&s.a, 1, 0, 2000);
    s.ab.flip = 512 + 4; /* of the second one's pointer, not where its lower two bits are */
    stream_run(&s);
    CHECK_EQ(s.b_end.event.layer, MPA);
    CHECK_EQ(s.b_end.event.code, 3);
    WANT_ERR(s.b.recv_cq, 1, WR_FLUSH_ERR, FLUSHED);
    CHECK_EQ(s.a_end.event.end, RNIC_STREAM_TERMINATED);
    CHECK_EQ(s.a_end.event.code, 3);
    stream_close(&s);
}

/* ---------------------------------------------------------------- this end's own requests */

static void want_local(int status, int vendor) {
    post_write(&s.a, 3, 0, 0, 8);
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    want_err(s.a.send_cq, 2, status, vendor, __FILE__, __LINE__);
    WANT_ERR(s.a.send_cq, 3, WR_FLUSH_ERR, FLUSHED);
    CHECK(segment_last(&s.ab, &sent));
    CHECK_EQ(rdmap_opcode(sent.ddp), RDMAP_TERMINATE);
    CHECK_EQ(terminate_type(segment_behind(&sent)), 0);
    CHECK_EQ(s.a_end.event.end, RNIC_STREAM_REFUSED);
    CHECK_EQ(s.b_end.event.end, RNIC_STREAM_TERMINATED);
    WANT_NO_EVENT(&s.a);
    stream_close(&s);
}

/* Behind a READ, whose answer comes first. */
static void a_request_that_is_wrong_by_itself(void) {
    begin("a bad key");
    post_read(&s.a, 1, 0, 0, 8);
    post(&s.a, (struct rnic_send_wr){.wr_id = 2, .opcode = RNIC_WR_SEND, SGL({(uintptr_t)s.a.mem, 8, 12345})});
    want_local(RNIC_WC_LOC_PROT_ERR, RNIC_VE_SGE_BAD_LKEY);
    begin("a READ into memory that may not be written");
    struct mr *mr = fabric_mr(s.a.node, &s.a.node->pd, s.a.mem, 100, 0);
    post_read(&s.a, 1, 0, 0, 8);
    post(&s.a,
         (struct rnic_send_wr){
             .wr_id = 2, .opcode = RNIC_WR_RDMA_READ, REMOTE(&s.b, 0), SGL({(uintptr_t)s.a.mem, 8, mr->pub.lkey})});
    post_write(&s.a, 3, 0, 0, 8);
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    WANT_ERR(s.a.send_cq, 2, LOC_PROT_ERR, SGE_ACCESS);
    WANT_ERR(s.a.send_cq, 3, WR_FLUSH_ERR, FLUSHED);
    fabric_drop_mr(s.a.node, mr);
    stream_close(&s);
    begin("an atomic of 4 bytes");
    post_read(&s.a, 1, 0, 0, 8);
    post(&s.a, (struct rnic_send_wr){.wr_id = 2,
                                     .opcode = RNIC_WR_ATOMIC_FETCH_AND_ADD,
                                     .wr.atomic = {.remote_addr = (uintptr_t)s.b.mem, .rkey = s.b.mr->pub.rkey},
                                     SGL(SGE(&s.a, 0, 4))});
    want_local(RNIC_WC_LOC_LEN_ERR, RNIC_VE_BAD_LENGTH);
    begin("a key of no window");
    post_read(&s.a, 1, 0, 0, 8);
    post(&s.a, (struct rnic_send_wr){.wr_id = 2, .opcode = RNIC_WR_LOCAL_INV, .imm_data = 5});
    want_local(RNIC_WC_LOC_QP_OP_ERR, RNIC_VE_WINDOW_GONE);
    stream_open(&s, .rd_atomic = NONE);
    post_write(&s.a, 1, 0, 0, 8);
    post(&s.a, (struct rnic_send_wr){.wr_id = 2, .opcode = RNIC_WR_RDMA_READ, REMOTE(&s.b, 0), SGL(SGE(&s.a, 0, 8))});
    want_local(RNIC_WC_LOC_QP_OP_ERR, RNIC_VE_NO_RD_ATOMIC);
}

/* ---------------------------------------------------------------- received */

/* A Terminate message for the last segment that a has sent, or for nothing in particular. */
static void terminate(int layer, int type, int code, const struct segment *of) {
    segment_untagged(&g, RDMAP_TERMINATE, true, 1, 0, NULL, 0);
    uint8_t *control = segment_behind(&g);
    terminate_set_layer(control, (uint8_t)layer);
    terminate_set_type(control, (uint8_t)type);
    terminate_set_code(control, (uint8_t)code);
    if (of) {
        terminate_set_m(control, 1);
        terminate_set_d(control, 1);
        terminate_set_length(control, (uint16_t)of->n);
        memcpy(control + TERMINATED_AT, of->ddp, DDP_UNTAGGED_BYTES);
        g.n = DDP_UNTAGGED_BYTES + TERMINATED_AT + (ddp_tagged(of->ddp) ? DDP_TAGGED_BYTES : DDP_UNTAGGED_BYTES);
    }
    s.ab.held = true;
    segment_give(&s, &s.a, &g);
}

static void want_terminated(int layer, int type, int code) {
    stream_step(&s);
    CHECK_EQ(s.a_end.count, 1);
    CHECK_EQ(s.a_end.event.end, RNIC_STREAM_TERMINATED);
    CHECK_EQ(s.a_end.event.layer, layer);
    CHECK_EQ(s.a_end.event.type, type);
    CHECK_EQ(s.a_end.event.code, code);
    CHECK_EQ(s.a.qp->state, RNIC_QPS_ERR);
    CHECK(s.ab.finished);
    WANT_EVENT(&s.a, QP_FATAL);
    CHECK_EQ(COUNTER(&s.a, terminates_received), 1);
    stream_close(&s);
}

/* Of three READs the second is meant. */
static void of_a_read(int layer, int type, int code, int status, int vendor) {
    uint64_t at = 0;
    begin("");
    check_note("layer %d, type %d, code %d", layer, type, code);
    s.ab.held = true;
    for (uint64_t i = 1; i <= 3; i++)
        post_read(&s.a, i, 0, 0, 8);
    stream_run(&s);
    CHECK(segment_next(&s.ab, &at, &sent) && segment_next(&s.ab, &at, &sent));
    terminate(layer, type, code, &sent);
    WANT_ERR(s.a.send_cq, 1, WR_FLUSH_ERR, FLUSHED);
    want_err(s.a.send_cq, 2, status, vendor, __FILE__, __LINE__);
    WANT_ERR(s.a.send_cq, 3, WR_FLUSH_ERR, FLUSHED);
    want_terminated(layer, type, code);
}

static const struct {
    int layer, type, code, status, vendor;
} meanings[] = {
    {RDMAP, 0, 0, RNIC_WC_REM_OP_ERR, RNIC_VE_PEER_ERROR},
    {RDMAP, 1, 0, RNIC_WC_REM_ACCESS_ERR, RNIC_VE_PEER_STAG},
    {RDMAP, 1, 1, RNIC_WC_REM_ACCESS_ERR, RNIC_VE_PEER_BOUNDS},
    {RDMAP, 1, 2, RNIC_WC_REM_ACCESS_ERR, RNIC_VE_PEER_RIGHTS},
    {RDMAP, 1, 3, RNIC_WC_REM_ACCESS_ERR, RNIC_VE_PEER_STAG},
    {RDMAP, 1, 4, RNIC_WC_REM_ACCESS_ERR, RNIC_VE_PEER_BOUNDS},
    {RDMAP, 2, 5, RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_PEER_PROTOCOL},
    {RDMAP, 2, 6, RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_PEER_PROTOCOL},
    {RDMAP, 2, 7, RNIC_WC_REM_OP_ERR, RNIC_VE_PEER_ERROR},
    {RDMAP, 2, 8, RNIC_WC_REM_OP_ERR, RNIC_VE_PEER_ERROR},
    {RDMAP, 2, 9, RNIC_WC_REM_ACCESS_ERR, RNIC_VE_PEER_INVALIDATE},
    {RDMAP, 2, 0xFF, RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_PEER_PROTOCOL},
    {DDP, 0, 0, RNIC_WC_REM_OP_ERR, RNIC_VE_PEER_ERROR},
    {DDP, 1, 0, RNIC_WC_REM_ACCESS_ERR, RNIC_VE_PEER_STAG},
    {DDP, 1, 1, RNIC_WC_REM_ACCESS_ERR, RNIC_VE_PEER_BOUNDS},
    {DDP, 1, 2, RNIC_WC_REM_ACCESS_ERR, RNIC_VE_PEER_STAG},
    {DDP, 1, 3, RNIC_WC_REM_ACCESS_ERR, RNIC_VE_PEER_BOUNDS},
    {DDP, 1, 4, RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_PEER_PROTOCOL},
    {DDP, 2, 1, RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_PEER_PROTOCOL},
    {DDP, 2, 2, RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_PEER_READS},
    {DDP, 2, 3, RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_PEER_PROTOCOL},
    {DDP, 2, 4, RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_PEER_PROTOCOL},
    {DDP, 2, 5, RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_PEER_TOO_LONG},
    {DDP, 2, 6, RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_PEER_PROTOCOL},
    {MPA, 0, 1, RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_PEER_PROTOCOL},
    {MPA, 0, 2, RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_PEER_CRC},
    {MPA, 0, 3, RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_PEER_PROTOCOL},
    {7, 7, 7, RNIC_WC_REM_INV_REQ_ERR, RNIC_VE_PEER_PROTOCOL}, /* who knows */
};

static void what_they_mean(void) {
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        of_a_read(meanings[i].layer, meanings[i].type, meanings[i].code, meanings[i].status, meanings[i].vendor);
}

/* SENDs and WRITEs that wait behind a READ for their completion. */
static void of_other_requests(void) {
    for (int which = 0; which < 3; which++) {
        begin("");
        check_note("request %d", which);
        s.ab.held = true;
        post_read(&s.a, 1, 0, 0, 8);
        post_send(&s.a, 2, 0, 8);
        post_write(&s.a, 3, 0, 64, 8);
        post_send(&s.a, 4, 0, 8);
        stream_run(&s);
        uint64_t at = 0;
        for (int i = 0; i < which + 2; i++)
            CHECK(segment_next(&s.ab, &at, &sent));
        int type = which == 1 ? 1 : 2, code = which == 1 ? 1 : 2;
        terminate(DDP, type, code, &sent);
        WANT_ERR(s.a.send_cq, 1, WR_FLUSH_ERR, FLUSHED);
        for (int i = 0; i < 3; i++) {
            bool meant = i == which;
            want_err(s.a.send_cq, 2 + (uint64_t)i,
                     !meant       ? RNIC_WC_WR_FLUSH_ERR
                     : which == 1 ? RNIC_WC_REM_ACCESS_ERR
                                  : RNIC_WC_RNR_RETRY_EXC_ERR,
                     !meant       ? RNIC_VE_FLUSHED
                     : which == 1 ? RNIC_VE_PEER_BOUNDS
                                  : RNIC_VE_PEER_NO_RECEIVE,
                     __FILE__, __LINE__);
        }
        want_terminated(DDP, type, code);
    }
}

static void without_headers_the_oldest_is_meant(void) {
    begin("");
    s.ab.held = true;
    post_read(&s.a, 1, 0, 0, 8);
    post_read(&s.a, 2, 0, 0, 8);
    stream_run(&s);
    terminate(RDMAP, 0, 0, NULL);
    WANT_ERR(s.a.send_cq, 1, REM_OP_ERR, PEER_ERROR);
    WANT_ERR(s.a.send_cq, 2, WR_FLUSH_ERR, FLUSHED);
    want_terminated(RDMAP, 0, 0);
}

static void of_a_message_that_has_completed(void) {
    begin("");
    post_send(&s.a, 1, 0, 8);
    s.ab.held = true;
    stream_run(&s);
    WANT(s.a.send_cq, 1, SUCCESS);
    CHECK(segment_last(&s.ab, &sent));
    post_recv(&s.a, 2, 0, 8);
    terminate(DDP, 2, 2, &sent);
    WANT_NONE(s.a.send_cq);
    WANT_ERR(s.a.recv_cq, 2, WR_FLUSH_ERR, FLUSHED);
    want_terminated(DDP, 2, 2);
}

/* As Linux's siw writes them on little-endian hosts. Of a READ that it refuses the header has a wrong MSN: it is the oldest one. */
static void turned_round(void) {
    for (size_t i = 0; i + 1 < sizeof meanings / sizeof *meanings; i++) {
        int layer = meanings[i].layer, type = meanings[i].type, code = meanings[i].code;
        bool version = (layer == DDP && ((type == 1 && code == 4) || (type == 2 && code == 6)));
        bool headers = (layer == DDP && !version) || (layer == RDMAP && type == 1);
        begin("");
        check_note("layer %d, type %d, code %d", layer, type, code);
        s.ab.held = true;
        post_read(&s.a, 1, 0, 0, 8);
        post_read(&s.a, 2, 0, 0, 8);
        stream_run(&s);
        CHECK(segment_last(&s.ab, &sent));
        segment_untagged(&g, RDMAP_TERMINATE, true, 1, 0, NULL, 0);
        uint8_t *control = segment_behind(&g);
        control[0] = (uint8_t)(type << 4 | layer);
        control[1] = (uint8_t)code;
        control[2] = headers ? 3 : 0;
        if (headers) {
            memcpy(control + TERMINATED_AT, sent.ddp, sent.n);
            if (layer == RDMAP)
                ddp_set_msn(control + TERMINATED_AT, 8);
            g.n += 2 + sent.n;
        }
        bool second = headers && layer == DDP;
        segment_give(&s, &s.a, &g);
        if (second)
            WANT_ERR(s.a.send_cq, 1, WR_FLUSH_ERR, FLUSHED);
        want_err(s.a.send_cq, second ? 2 : 1, meanings[i].status,
                 meanings[i].vendor == RNIC_VE_PEER_READS && !headers ? RNIC_VE_PEER_NO_RECEIVE : meanings[i].vendor,
                 __FILE__, __LINE__);
        want_terminated(layer, type, code);
    }
}

/* Terminate messages are not answered by others, whatever is wrong with them. */
static void a_bad_terminate_message(void) {
    begin("");
    segment_untagged(&g, RDMAP_TERMINATE, false, 9, 9, NULL, 0);
    ddp_set_qn(g.ddp, 0);
    segment_give(&s, &s.a, &g);
    s.ab.held = true;
    stream_step(&s);
    CHECK_EQ(s.ab.written, 0);
    want_terminated(RDMAP, 0, 0);
}

int main(void) {
    RUN(versions_and_opcodes);
    RUN(opcodes_of_rfc_7306_where_it_was_not_agreed);
    RUN(lengths);
    RUN(queues_and_numbers);
    RUN(segments_of_a_send);
    RUN(other_messages_amid_a_send);
    RUN(receives);
    RUN(memory_of_the_target);
    RUN(a_bad_read_behind_good_ones);
    RUN(more_reads_than_there_is_room_for);
    RUN(atomics);
    RUN(answers_that_are_not_due);
    RUN(a_wrong_crc);
    RUN(a_flipped_bit_anywhere);
    RUN(a_wrong_marker);
    RUN(a_request_that_is_wrong_by_itself);
    RUN(what_they_mean);
    RUN(of_other_requests);
    RUN(without_headers_the_oldest_is_meant);
    RUN(of_a_message_that_has_completed);
    RUN(turned_round);
    RUN(a_bad_terminate_message);
    return check_done();
}
