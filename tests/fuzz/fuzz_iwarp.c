/* SPDX-License-Identifier: Apache-2.0
 *
 * A hostile stream to a live engine of iWARP, on virtual time.
 *
 *   fuzz_iwarp [seed [cases]]       or, built with -DLIBFUZZER -fsanitize=fuzzer, a libFuzzer target
 *
 * A case is a frame from a liar in the place of the peer, who knows what the engine expects: message numbers, keys, READs that
 * wait.  Usually it stays as the engine has reason to accept it, with a right CRC; else some of it is changed.  It is cut
 * anywhere.  Between the cases the application works, changes states, and takes memory away.  After each, what must hold however
 * a peer behaves is checked.
 */
#include <errno.h>
#include <sanitizer/asan_interface.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "dice.h"
#include "iwarp/engine.h"
#include "segment.h"
#include "wire/crc32c.h"

#define LIFE 300 /* cases of a world */
#define GAP 4096
#define ARENA (1 << 18)
#define INBOX_SLOTS 8
#define INBOX_SLOT 8192
#define CANARY 0xC5
#define IDS 1024 /* more than work that can be outstanding */

/* SHOWN: a memory window lets the peer see its middle. BARE: without an address. */
enum { OPEN, READABLE, FOREIGN, INBOX, LOOSE, SHOWN, BARE, REGIONS };
#define EDGE 1024 /* bytes of SHOWN before and after the window */

static const struct {
    uint32_t bytes, access;
    bool foreign;
} parts[REGIONS] = {
    [OPEN] = {16384, ALL_ACCESS, false},  [READABLE] = {4096, RNIC_ACCESS_REMOTE_READ, false},
    [FOREIGN] = {4096, ALL_ACCESS, true}, [INBOX] = {INBOX_SLOTS * INBOX_SLOT, RNIC_ACCESS_LOCAL_WRITE, false},
    [LOOSE] = {4096, ALL_ACCESS, false},  [SHOWN] = {4096, RNIC_ACCESS_LOCAL_WRITE | RNIC_ACCESS_MW_BIND, false},
    [BARE] = {4096, ALL_ACCESS, false},
};

/* What an application may expect of its queue pair: each work request completes once, and in order. */
struct ledger {
    uint64_t posted, next;
    bool failed; /* a completion has had an error */
    bool signaled[IDS];
};

static struct world {
    struct stream stream;
    struct stream_options options;
    struct end *end;
    struct qp *qp;
    uint8_t *arena;
    uint8_t *part[REGIONS];
    struct mr *mr[REGIONS];
    struct mw window;
    struct ledger sends, recvs;
    uint32_t position; /* of the liar's stream, for markers */
    bool initiator, exact;
    struct dice *dice;
} w;

static uint64_t seed, number; /* what a failure is reported with */
static uint64_t executed, refused, completed, failed, deaths, worlds, endings[8], statuses[32][RNIC_VE_MAX];

void check_fail(const char *file, int line, const char *fmt, ...) {
    va_list ap;
    fprintf(stderr, "fuzz_iwarp: seed %llu, case %llu: %s:%d: ", (unsigned long long)seed, (unsigned long long)number,
            file, line);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}

/* ---------------------------------------------------------------- memory */

static void register_part(int i) {
    struct node *node = w.end->node;
    w.mr[i] =
        fabric_mr(node, parts[i].foreign ? &node->other_pd : &node->pd, w.part[i], parts[i].bytes, parts[i].access);
    w.mr[i]->kind = i == BARE ? MR_GUARDED : MR_PLAIN;
}

/* Regions with a poisoned gap before and after each. */
static void make_memory(void) {
    uint32_t at = GAP;
    w.arena = aligned_alloc(4096, ARENA);
    memset(w.arena, CANARY, ARENA);
    for (int i = 0; i < REGIONS; i++) {
        w.part[i] = w.arena + at;
        at += parts[i].bytes;
        ASAN_POISON_MEMORY_REGION(w.arena + at, GAP);
        at += GAP;
        register_part(i);
    }
    ASAN_POISON_MEMORY_REGION(w.arena, GAP);
    CHECK(at <= ARENA);
    w.window.pub = (struct rnic_mw){.pd = &w.end->node->pd.pub, .type = 1 + (int)dice_below(w.dice, 2)};
    CHECK_EQ(mw_insert(&w.end->node->nic.mrs, &w.window), 0);
}

static void drop_memory(void) {
    mw_remove(&w.end->node->nic.mrs, &w.window);
    for (int i = 0; i < REGIONS; i++)
        fabric_drop_mr(w.end->node, w.mr[i]);
    ASAN_UNPOISON_MEMORY_REGION(w.arena, ARENA);
    free(w.arena);
}

static void check_canary(const uint8_t *p, uint32_t n, const char *what) {
    for (uint32_t i = 0; i < n; i++) {
        if (p[i] != CANARY)
            check_fail(__FILE__, __LINE__, "%s: byte %u has changed", what, i);
    }
}

static void check_memory(void) {
    check_canary(w.part[READABLE], parts[READABLE].bytes, "memory for remote reads");
    check_canary(w.part[FOREIGN], parts[FOREIGN].bytes, "memory of another protection domain");
    check_canary(w.part[SHOWN], EDGE, "memory before a window");
    check_canary(w.part[SHOWN] + parts[SHOWN].bytes - EDGE, EDGE, "memory behind a window");
    for (int i = 0; i < INBOX_SLOTS; i++)
        check_canary(w.part[INBOX] + i * INBOX_SLOT + INBOX_SLOT / 2, INBOX_SLOT / 2, "memory beside a receive");
}

/* ---------------------------------------------------------------- the application */

static void check_wc(struct ledger *l, const struct rnic_wc *wc, bool send) {
    CHECK(wc->wr_id >= l->next && wc->wr_id < l->posted);
    CHECK(wc->status <= RNIC_WC_TM_RNDV_INCOMPLETE && wc->vendor_err < RNIC_VE_MAX);
    CHECK(wc->qp_num == w.qp->pub.qp_num);
    if (!send && wc->status == RNIC_WC_SUCCESS)
        CHECK(wc->opcode == RNIC_WCO_RECV_RDMA_WITH_IMM || wc->byte_len <= INBOX_SLOT / 2);
    for (uint64_t id = l->next; w.exact && id < wc->wr_id; id++)
        CHECK(!l->signaled[id % IDS]); /* was skipped */
    l->next = wc->wr_id + 1;
    if (wc->status != RNIC_WC_SUCCESS) {
        CHECK(w.qp->state == RNIC_QPS_ERR);
        l->failed = true;
        failed++;
        statuses[wc->status][wc->vendor_err]++;
    } else {
        CHECK(!l->failed);
        completed++;
    }
}

static void poll_queue(bool sends) {
    struct rnic_wc wc[16];
    int n;
    do {
        n = cq_take(sends ? w.end->send_cq : w.end->recv_cq, 16, wc);
        for (int i = 0; i < n; i++)
            check_wc(sends ? &w.sends : &w.recvs, &wc[i], sends);
    } while (n == 16);
}

static uint32_t some_length(void) {
    struct dice *d = w.dice;
    return (uint32_t)DICE_PICK(d, 0, 1, 7, 8, 9, dice_below(d, 512), 4095, 4096, dice_below(d, 9000)) & 0x3FFF;
}

static void post_receive(void) {
    struct dice *d = w.dice;
    uint64_t id = w.recvs.posted, va = (uintptr_t)w.part[INBOX] + id % INBOX_SLOTS * INBOX_SLOT;
    uint32_t n = INBOX_SLOT / 2 - dice_below(d, dice_one_in(d, 4) ? INBOX_SLOT / 2 + 1 : 8),
             first = dice_below(d, n + 1);
    uint32_t lkey = w.mr[INBOX]->pub.lkey ^ (dice_below(d, 512) == 0);
    struct rnic_sge sge[2] = {{va, first, lkey}, {va + first, n - first, lkey}};
    struct rnic_recv_wr wr = {.wr_id = id, .sg_list = sge, .num_sge = 1 + (n > first)};
    const struct rnic_recv_wr *bad;
    if (w.qp->state == RNIC_QPS_RESET || rq_post(&w.qp->rq, &wr, &bad, NULL))
        return;
    w.recvs.signaled[id % IDS] = true;
    w.recvs.posted++;
}

static void hand_over(struct rnic_send_wr wr) {
    wr.wr_id = w.sends.posted;
    wr.send_flags |= dice_below(w.dice, 4) ? RNIC_SEND_SIGNALED : 0;
    if (w.qp->state < RNIC_QPS_RTS || try_post(w.end, wr))
        return;
    w.sends.signaled[w.sends.posted % IDS] = wr.send_flags & RNIC_SEND_SIGNALED;
    w.sends.posted++;
}

static void post_window(void) {
    struct dice *d = w.dice;
    struct rnic_send_wr wr = {.opcode = w.window.pub.type == RNIC_MW_TYPE_2 && w.window.mr ? RNIC_WR_LOCAL_INV
                                                                                           : RNIC_WR_BIND_MW};
    if (wr.opcode == RNIC_WR_BIND_MW) {
        struct mr *mr = dice_one_in(d, 16) ? w.mr[BARE] : w.mr[SHOWN];
        struct rnic_mw_bind_info info = {&mr->pub, (uintptr_t)w.part[SHOWN] + EDGE, parts[SHOWN].bytes - 2 * EDGE,
                                         ALL_ACCESS - 1};
        wr.bind_mw.mw = &w.window.pub;
        wr.bind_mw.rkey = (w.window.pub.rkey & ~0xFFu) | dice_below(d, 256);
        wr.bind_mw.bind_info = dice_one_in(d, 4) ? (struct rnic_mw_bind_info){0} : info;
    } else {
        wr.invalidate_rkey = w.window.pub.rkey ^ dice_one_in(d, 16);
    }
    hand_over(wr);
}

static void post_request(void) {
    static const uint8_t opcodes[] = {RNIC_WR_RDMA_WRITE,    RNIC_WR_RDMA_WRITE_WITH_IMM, RNIC_WR_SEND,
                                      RNIC_WR_SEND_WITH_INV, RNIC_WR_RDMA_READ,           RNIC_WR_RDMA_READ,
                                      RNIC_WR_RDMA_READ,     RNIC_WR_ATOMIC_CMP_AND_SWP,  RNIC_WR_ATOMIC_FETCH_AND_ADD};
    struct dice *d = w.dice;
    int part = (int)DICE_PICK(d, OPEN, OPEN, LOOSE, BARE);
    uint8_t opcode = opcodes[dice_below(d, sizeof opcodes)];
    bool atomic = opcode == RNIC_WR_ATOMIC_CMP_AND_SWP || opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD;
    uint32_t n = atomic ? 8 : some_length(), most = parts[part].bytes,
             lkey = w.mr[part]->pub.lkey ^ (dice_below(d, 512) == 0);
    n = n < most ? n : most;
    uint32_t first = dice_below(d, n + 1);
    struct rnic_sge sge[2] = {{(uintptr_t)w.part[part], first, lkey},
                              {(uintptr_t)w.part[part] + first, n - first, lkey}};
    struct rnic_send_wr wr = {.sg_list = sge, .num_sge = 2, .opcode = opcode};
    wr.send_flags = (dice_one_in(d, 8) ? RNIC_SEND_FENCE : 0) | (dice_one_in(d, 4) ? RNIC_SEND_SOLICITED : 0);
    bool inlines = n <= w.qp->sq.max_inline && !atomic && opcode != RNIC_WR_RDMA_READ && part != BARE;
    if (inlines && dice_one_in(d, 4))
        wr.send_flags |= RNIC_SEND_INLINE;
    if (atomic)
        wr.wr.atomic.compare_add = dice_bits(d, 8);
    hand_over(wr);
}

/* A region goes while work that names it may be under way, and another takes its place. */
static void swap_region(void) {
    int i = (int)DICE_PICK(w.dice, OPEN, LOOSE, LOOSE, BARE);
    fabric_drop_mr(w.end->node, w.mr[i]);
    register_part(i);
}

/* ---------------------------------------------------------------- states */

static void begin_ledger(struct ledger *l) {
    l->next = l->posted;
    l->failed = false;
}

static void start_over(void) {
    struct pipe *out = pipe_from(&w.stream, w.end);
    struct dice *d = w.dice;
    poll_queue(true);
    poll_queue(false);
    begin_ledger(&w.sends);
    begin_ledger(&w.recvs);
    CHECK_EQ(stream_move(w.end, RNIC_QPS_RESET, NULL), 0);
    free(out->bytes);
    *out = (struct pipe){.most_in_pipe = (uint32_t)DICE_PICK(d, 0, 100, 5000, 100000),
                         .most_written = (uint32_t)DICE_PICK(d, 0, 1, 1000),
                         .segment = (uint32_t)DICE_PICK(d, 65536, 65536, 1448, 300, 1),
                         .forgets = true};
    CHECK_EQ(stream_move(w.end, RNIC_QPS_INIT, NULL), 0);
    stream_join(w.end, out);
    struct rnic_stream_attr agreed = {.initiator = w.initiator,
                                      .rtr = (uint8_t)dice_below(d, 4),
                                      .crc = !w.options.no_crc,
                                      .markers_in = w.options.markers,
                                      .markers_out = dice_one_in(d, 4),
                                      .rfc7306 = w.options.rfc7306};
    iwarp_agree(w.qp, &agreed);
    if (dice_one_in(d, 2))
        iwarp_confirm(w.qp, dice_one_in(d, 2));
    struct rnic_qp_attr attr = {.qp_state = RNIC_QPS_RTS,
                                .qp_access_flags = dice_one_in(d, 16) ? RNIC_ACCESS_REMOTE_READ : ALL_ACCESS,
                                .max_rd_atomic = (uint8_t)(dice_one_in(d, 16) ? 0 : DICE_PICK(d, 1, 4, 128)),
                                .max_dest_rd_atomic = (uint8_t)DICE_PICK(d, 0, 1, 4, 128)};
    uint32_t mask = RNIC_QP_STATE | RNIC_QP_ACCESS_FLAGS | RNIC_QP_MAX_QP_RD_ATOMIC | RNIC_QP_MAX_DEST_RD_ATOMIC;
    CHECK_EQ(qp_attr_check(w.qp, &attr, mask, NULL), 0);
    qp_attr_apply(w.qp, &attr, mask);
    CHECK_EQ(qp_transition(w.qp, RNIC_QPS_RTS, NULL), 0);
    w.position = 0;
    ending_of(&w.stream, w.end)->count = 0;
}

static void end_somehow(void) {
    struct dice *d = w.dice;
    switch (dice_below(d, 5)) {
    case 0:
        CHECK_EQ(stream_move(w.end, RNIC_QPS_ERR, NULL), 0);
        break;
    case 1:
    case 2:
        if (w.qp->state == RNIC_QPS_RTS)
            CHECK_EQ(stream_move(w.end, RNIC_QPS_SQD, NULL), 0);
        break;
    case 3:
        iwarp_ended(w.qp, 0, w.stream.f.now);
        break;
    default:
        pipe_from(&w.stream, w.end)->broken = true;
        iwarp_ended(w.qp, -ECONNRESET, w.stream.f.now);
    }
}

/* ---------------------------------------------------------------- what must hold */

static void check_queue(struct wq *q) { CHECK(wq_head(q) - wq_tail(q) <= q->max_wr); }

static void check_end(void) {
    const struct iwarp *iw = iwarp_of(w.qp);
    const struct ending *ending = ending_of(&w.stream, w.end);
    check_queue(&w.qp->sq);
    check_queue(&w.qp->rq);
    if (w.qp->state != RNIC_QPS_ERR)
        CHECK(iw->snd.next - wq_tail(&w.qp->sq) <= wq_head(&w.qp->sq) - wq_tail(&w.qp->sq));
    CHECK(iw->snd.waiting <= w.qp->attr.max_rd_atomic || !w.qp->attr.max_rd_atomic);
    CHECK(iw->srv.count <= iw->srv.size);
    CHECK(iw->out.start <= iw->out.end && iw->out.end <= OUT_ROOM + OUT_RESERVE);
    CHECK(!iw->in.message || w.qp->state == RNIC_QPS_ERR || !wq_empty(&w.qp->rq));
    CHECK_EQ(ending->count, w.qp->state == RNIC_QPS_ERR);
    poll_queue(true);
    poll_queue(false);
    if (w.qp->state == RNIC_QPS_ERR && wq_empty(&w.qp->sq) && wq_empty(&w.qp->rq) && w.exact)
        CHECK(w.recvs.next == w.recvs.posted);
    for (struct rnic_async_event event; event_take(&w.end->node->nic.events, &event);)
        ;
}

/* ---------------------------------------------------------------- the liar's segments */

static struct segment g;
static uint8_t noise[70000];

static void some_place(uint32_t *key, uint64_t *va, uint32_t n) {
    struct dice *d = w.dice;
    int i = dice_one_in(d, 12) ? (int)DICE_PICK(d, SHOWN, READABLE, FOREIGN, INBOX)
                               : (int)DICE_PICK(d, OPEN, OPEN, LOOSE, BARE);
    i = i == OPEN && w.window.mr == w.mr[SHOWN] && dice_one_in(d, 3) ? SHOWN : i;
    uint32_t room = parts[i].bytes, at = n < room ? dice_below(d, room - n + 1) : 0;
    bool window = i == SHOWN || dice_one_in(d, 64);
    room -= i == SHOWN ? 2 * EDGE : 0;
    at = at + n > room ? 0 : at;
    *key = window ? w.window.pub.rkey : w.mr[i]->pub.rkey;
    *va = (uintptr_t)w.part[i] + (window && i == SHOWN ? EDGE : 0) + (dice_one_in(d, 3) ? 0 : at);
    if (dice_one_in(d, 64))
        *va = DICE_PICK(d, *va - 1, *va + room, UINT64_MAX - 3, 0);
}

static void forge_send(const struct reader *in) {
    struct dice *d = w.dice;
    bool invalidates = w.window.pub.type == RNIC_MW_TYPE_2 && dice_one_in(d, 4);
    unsigned opcode = in->message
                          ? in->message
                          : (invalidates || dice_one_in(d, 64) ? RDMAP_SEND_INV : RDMAP_SEND) + 2 * dice_below(d, 2);
    uint64_t room = wq_empty(&w.qp->rq) ? 0 : rq_wqe(&w.qp->rq, wq_tail(&w.qp->rq))->length;
    uint32_t n = some_length() % (INBOX_SLOT / 2);
    if (in->received + n > room && !dice_one_in(d, 64))
        n = room > in->received ? dice_below(d, (uint32_t)(room - in->received) + 1) : 0;
    segment_untagged(&g, opcode, dice_below(d, 3), in->msn[QUEUE_SEND], in->received, noise, n);
    if (opcode == RDMAP_SEND_INV || opcode == RDMAP_SEND_SE_INV)
        rdmap_set_inv_stag(g.ddp, w.window.pub.rkey);
}

static void forge_write(void) {
    struct dice *d = w.dice;
    uint32_t n = some_length(), key;
    uint64_t va;
    n = dice_one_in(d, 16) ? dice_below(d, 16384) : n % 4096;
    some_place(&key, &va, n);
    segment_tagged(&g, RDMAP_WRITE, dice_below(d, 3), key, va, noise, n);
}

static void forge_read(const struct reader *in) {
    uint32_t n = some_length(), key;
    uint64_t va;
    some_place(&key, &va, n);
    n = dice_one_in(w.dice, 64) ? (uint32_t)dice_bits(w.dice, 4) : n;
    segment_read(&g, in->msn[QUEUE_REQUEST], (uint32_t)dice_bits(w.dice, 4), dice_bits(w.dice, 8), n, key, va);
}

static void forge_atomic(const struct reader *in) {
    struct dice *d = w.dice;
    uint32_t key;
    uint64_t va;
    some_place(&key, &va, 8);
    segment_untagged(&g, RDMAP_ATOMIC_REQUEST, true, in->msn[QUEUE_REQUEST], 0, NULL, 0);
    uint8_t *atomic = segment_behind(&g);
    unsigned opcode = dice_below(d, dice_one_in(d, 16) ? 16 : 3);
    atomic_set_opcode(atomic, opcode);
    atomic_set_stag(atomic, key);
    atomic_set_to(atomic, dice_one_in(d, 8) ? va : va & ~7ull);
    atomic_set_data(atomic, dice_bits(d, 8));
    atomic_set_data_mask(atomic, opcode == ATOMIC_FETCH_ADD ? 0 : UINT64_MAX);
    atomic_set_compare_mask(atomic, UINT64_MAX);
}

/* What the engine waits for, or something else. */
static void forge_answer(const struct reader *in) {
    struct dice *d = w.dice;
    const struct sender *snd = &iwarp_of(w.qp)->snd;
    const struct send_wqe *wqe = send_awaited(w.qp);
    if (quiet_is_next(w.qp)) {
        segment_tagged(&g, RDMAP_READ_RESPONSE, true, snd->quiet.msn, 0, NULL, 0);
    } else if (wqe && wqe->opcode == RNIC_WR_RDMA_READ) {
        uint32_t left = wqe->length - wqe->arrived, n = dice_one_in(d, 2) ? left : dice_below(d, left + 1);
        segment_tagged(&g, RDMAP_READ_RESPONSE, n == left, wqe->msn, wqe->arrived, noise, n);
    } else {
        segment_untagged(&g, RDMAP_ATOMIC_RESPONSE, true, in->msn[QUEUE_RESPONSE], 0, NULL, 0);
        atomic_response_set_id(segment_behind(&g), wqe ? wqe->msn : 1);
    }
}

static void forge_terminate(void) {
    struct dice *d = w.dice;
    segment_untagged(&g, RDMAP_TERMINATE, true, 1, 0, noise, dice_below(d, 120));
    for (int i = 0; i < 3; i++)
        segment_behind(&g)[i] = (uint8_t)dice_bits(d, 1);
    if (g.n > DDP_UNTAGGED_BYTES + 26 && iwarp_of(w.qp)->srv.count)
        memcpy(segment_behind(&g) + TERMINATED_AT, iwarp_of(w.qp)->srv.ring[0].header, 18);
}

static void forge_nonsense(const struct reader *in) {
    switch (dice_below(w.dice, 16)) {
    case 0:
        forge_answer(in);
        break;
    case 1:
        forge_terminate();
        break;
    case 2:
        g.n = dice_below(w.dice, 100);
        memcpy(g.ddp, noise, g.n);
        break;
    default:
        forge_write();
    }
}

static void forge(void) {
    const struct reader *in = &iwarp_of(w.qp)->in;
    struct dice *d = w.dice;
    uint32_t kind = dice_below(d, 100);
    bool waits = send_awaited(w.qp) || iwarp_of(w.qp)->snd.quiet.waits;
    bool hears = !wq_empty(&w.qp->rq) || dice_one_in(d, 32),
         serves = iwarp_of(w.qp)->srv.count < iwarp_of(w.qp)->srv.size;
    serves |= dice_one_in(d, 32);
    if (waits && dice_below(d, 2))
        forge_answer(in);
    else if (in->message ? kind < 60 : hears && kind < 35)
        forge_send(in);
    else if (serves && kind < 50)
        forge_read(in);
    else if (serves && w.options.rfc7306 && kind < 58)
        forge_atomic(in);
    else if (kind < 90)
        forge_write();
    else if (hears && w.options.rfc7306 && !in->message && kind < 98)
        segment_untagged(&g, RDMAP_IMMEDIATE + dice_below(d, 2), true, in->msn[QUEUE_SEND], 0, NULL, 0);
    else
        forge_nonsense(in);
}

static void mutate(void) {
    struct dice *d = w.dice;
    for (uint32_t n = 1 + dice_below(d, 3); n; n--) {
        switch (dice_below(d, 8)) {
        case 0:
            g.ddp[dice_below(d, g.n < 80 ? g.n + 1 : 80)] ^= (uint8_t)(1u << dice_below(d, 8));
            break;
        case 1:
            g.ddp[0] ^= 0x40; /* the last, or not */
            break;
        case 2:
            ddp_set_msn(g.ddp, ddp_msn(g.ddp) + (uint32_t)DICE_PICK(d, 1, -1, 0x80000000));
            break;
        case 3:
            ddp_set_mo(g.ddp, ddp_mo(g.ddp) + (uint32_t)DICE_PICK(d, 1, -1, 0xFFFFFF00));
            break;
        case 4:
            g.n = dice_below(d, g.n + 1);
            break;
        case 5:
            g.n += dice_below(d, 100);
            break;
        case 6:
            ddp_set_qn(g.ddp, dice_below(d, 5));
            break;
        default:
            rdmap_set_opcode(g.ddp, (uint8_t)dice_below(d, 16));
        }
    }
}

/* ---------------------------------------------------------------- its stream */

/* Cut anywhere. */
static void give(const uint8_t *bytes, uint32_t n) {
    struct dice *d = w.dice;
    while (n) {
        uint32_t most = (uint32_t)DICE_PICK(d, 1, 3, 30, n, n, n), part = n < most ? n : most;
        stream_give(&w.stream, w.end, bytes, part);
        bytes += part;
        n -= part;
    }
}

/* The FPDU with markers, whose CRC covers them. */
static uint32_t mark(const uint8_t *frame, uint32_t n, uint8_t *to, bool crc) {
    uint32_t begun = 0;
    uint32_t size = marker_spread(to, frame, n - MPA_CRC_BYTES, &w.position, &begun);
    uint8_t sum[MPA_CRC_BYTES] = {0};
    size += marker_due(to + size, &w.position, &begun);
    if (crc)
        put_le32(sum, ~crc32c_update(CRC32C_INIT, to, size));
    return size + marker_spread(to + size, sum, sizeof sum, &w.position, &begun);
}

static void inject(void) {
    static uint8_t frame[71000], marked[73000];
    struct dice *d = w.dice;
    forge();
    if (dice_one_in(d, 16))
        mutate();
    uint32_t n = segment_frame(&g, !w.options.no_crc, frame);
    const uint8_t *bytes = frame;
    if (w.options.markers) {
        n = mark(frame, n, marked, !w.options.no_crc);
        bytes = marked;
    }
    if (dice_one_in(d, 128))
        ((uint8_t *)(uintptr_t)bytes)[dice_below(d, n)] ^= (uint8_t)(1u << dice_below(d, 8));
    bool ends = dice_one_in(d, 256);
    give(bytes, ends ? dice_below(d, n + 1) : n);
    if (ends)
        iwarp_ended(w.qp, dice_below(d, 2) ? -ECONNRESET : 0, w.stream.f.now);
}

/* ---------------------------------------------------------------- a world */

static void open_world(struct dice *d) {
    w = (struct world){.dice = d, .initiator = dice_below(d, 2), .exact = !dice_one_in(d, 8)};
    w.options = (struct stream_options){.no_crc = dice_one_in(d, 3),
                                        .markers = dice_one_in(d, 4),
                                        .rfc7306 = !dice_one_in(d, 4),
                                        .wr = (uint32_t)DICE_PICK(d, 2, 16, 64),
                                        .cqe = w.exact ? 1024 : 2,
                                        .not_yet = true};
    stream_open_options(&w.stream, &w.options);
    w.end = &w.stream.a;
    w.qp = w.end->qp;
    make_memory();
    start_over();
    worlds++;
}

static void close_world(void) {
    check_memory();
    executed += w.end->node->nic.counters.value[RNIC_CNT_requests_executed];
    refused += w.end->node->nic.counters.value[RNIC_CNT_terminates_sent];
    stream_move(w.end, RNIC_QPS_RESET, NULL);
    drop_memory();
    stream_close(&w.stream);
}

/* The liar reads some of what is sent, and time goes on. */
static void engines_turn(void) {
    struct pipe *out = pipe_from(&w.stream, w.end);
    struct dice *d = w.dice;
    for (int i = 0; i < 8; i++) {
        uint64_t left = out->written - out->read;
        out->read += dice_one_in(d, 4) ? dice_bits(d, 2) % (left + 1) : left;
        if (!w.qp->engine->next(w.qp, w.stream.f.now))
            break;
    }
    w.stream.f.now += DICE_PICK(d, 1, 1, US, MS);
    if (dice_one_in(d, 64))
        w.stream.f.now += 11 * SEC;
    if (w.qp->engine->deadline(w.qp) <= w.stream.f.now)
        w.qp->engine->timer(w.qp, w.stream.f.now);
}

static void one_case(void) {
    struct dice *d = w.dice;
    number++;
    if (w.qp->state == RNIC_QPS_ERR && dice_below(d, 2)) {
        deaths++;
        endings[ending_of(&w.stream, w.end)->event.end]++;
        start_over();
    }
    for (uint32_t n = dice_below(d, 3); n; n--)
        post_receive();
    if (dice_below(d, 3) == 0)
        post_request();
    if (dice_one_in(d, 32))
        post_window();
    if (dice_one_in(d, 128))
        swap_region();
    if (dice_one_in(d, 200))
        end_somehow();
    inject();
    if (dice_below(d, 4))
        engines_turn();
    check_end();
    if (number % 32 == 0)
        check_memory();
}

/* ---------------------------------------------------------------- where the choices come from */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct dice d = {.at = data, .end = data + size};
    rng_seed(&d.rng, 1);
    fill(noise, sizeof noise, 1);
    if (!size)
        return 0;
    open_world(&d);
    while (!dice_spent(&d))
        one_case();
    close_world();
    return 0;
}

#ifndef LIBFUZZER
/* Each world has its own seed, so that a failing one can be run alone: the third argument is where to begin. */
int main(int argc, char **argv) {
    uint64_t cases = argc > 2 ? strtoull(argv[2], NULL, 0) : 200000;
    uint64_t from = argc > 3 ? strtoull(argv[3], NULL, 0) / LIFE : 0;
    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    fill(noise, sizeof noise, 1);
    number = from * LIFE;
    for (uint64_t world = from; number < cases; world++) {
        struct dice d = {0};
        rng_seed(&d.rng, seed * 1000003 + world);
        open_world(&d);
        for (int i = 0; i < LIFE && number < cases; i++)
            one_case();
        close_world();
    }
    printf("fuzz_iwarp: %llu cases in %llu worlds: %llu requests executed, %llu refused with a Terminate message, %llu "
           "completions, %llu with an error, %llu connections ended\n",
           (unsigned long long)number, (unsigned long long)worlds, (unsigned long long)executed,
           (unsigned long long)refused, (unsigned long long)completed, (unsigned long long)failed,
           (unsigned long long)deaths);
    for (int i = 0; getenv("STATUSES") && i < 32 * RNIC_VE_MAX; i++) {
        if (statuses[i / RNIC_VE_MAX][i % RNIC_VE_MAX])
            printf("  status %d, %s: %llu\n", i / RNIC_VE_MAX, rnic_vendor_err_name(i % RNIC_VE_MAX),
                   (unsigned long long)statuses[i / RNIC_VE_MAX][i % RNIC_VE_MAX]);
    }
    for (int i = 0; getenv("STATUSES") && i < 8; i++)
        printf("  ending %d: %llu\n", i, (unsigned long long)endings[i]);
    return 0;
}
#endif
