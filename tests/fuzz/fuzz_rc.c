/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile packets to live RC engines, on the fabric of tests/c and on virtual time.
 *
 *   fuzz_rc [seed [cases]]       or, built with -DLIBFUZZER -fsanitize=fuzzer, a libFuzzer target
 *
 * A case is a packet that a liar sends in the name of the peer, between work of the applications themselves.  After
 * each, what must hold however a peer behaves is checked: see check_end().  A world (two queue pairs that know each
 * other, their memory, a wire that may lose everything) lives for some hundred cases; a queue pair that has gone to
 * the error state is reset and connected anew.
 */
#include <sanitizer/asan_interface.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"
#include "fabric.h"
#include "forge.h"
#include "roce/roce.h"
#include "wire/bth.h"

#define LIFE 300 /* cases of a world */
#define GAP 4096
#define ARENA (1 << 18)
#define INBOX_SLOTS 8
#define INBOX_SLOT 16384
#define HUGE_BYTES ((5ull << 30) + 123)
#define CANARY 0xC5
#define IDS 1024 /* more than work that can be outstanding */

static void *huge; /* READs of 4 GiB need as much memory: pages of zeros that nobody ever makes real */

/* SHOWN: a memory window lets the peer see its middle; it has no rights of its own. */
enum { OPEN, READABLE, FOREIGN, INBOX, LOOSE, SHOWN, HUGE_ONE };
#define EDGE 1024 /* bytes of SHOWN before and after the window */

/* What an application may expect of its queue pair: each work request completes once, and in order. */
struct ledger {
    uint64_t posted, next; /* ids are counted */
    bool failed;           /* a completion has had an error */
    bool signaled[IDS];
};

struct side {
    struct end *end;
    uint8_t *arena;
    uint8_t *part[REGIONS];
    struct mr *mr[REGIONS];
    struct mw window;
    struct grounds grounds;
    struct ledger sends, recvs;
    bool exact; /* its completion queues have room for everything: the ledgers must balance */
};

struct world {
    struct pair pair;
    struct options options;
    struct side side[2];
    uint32_t lossy; /* one packet in so many arrives; 0: all */
    struct dice *dice;
};

static struct world w;
static uint64_t seed, number; /* what a failure is reported with */
static uint64_t executed, completed, failed, deaths, worlds, sent_bad, statuses[32][RNIC_VE_MAX];

/* Takes the place of tests/c/check.c: a failure ends the process, as one that AddressSanitizer finds does. */
void check_fail(const char *file, int line, const char *fmt, ...) {
    va_list ap;
    fprintf(stderr, "fuzz_rc: seed %llu, case %llu: %s:%d: ", (unsigned long long)seed, (unsigned long long)number,
            file, line);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}

/* ---------------------------------------------------------------- memory */

static const struct {
    uint32_t bytes, access;
    bool foreign;
} parts[REGIONS] = {
    [OPEN] = {8192, ALL_ACCESS, false},   [READABLE] = {4096, RNIC_ACCESS_REMOTE_READ, false},
    [FOREIGN] = {4096, ALL_ACCESS, true}, [INBOX] = {INBOX_SLOTS * INBOX_SLOT, RNIC_ACCESS_LOCAL_WRITE, false},
    [LOOSE] = {4096, ALL_ACCESS, false},  [SHOWN] = {4096, RNIC_ACCESS_LOCAL_WRITE | RNIC_ACCESS_MW_BIND, false},
};

static void register_part(struct side *s, int i) {
    struct node *node = s->end->node;
    void *addr = i == HUGE_ONE ? huge : s->part[i];
    uint64_t bytes = i == HUGE_ONE ? HUGE_BYTES : parts[i].bytes;
    uint32_t access = i == HUGE_ONE ? RNIC_ACCESS_REMOTE_READ : parts[i].access;
    s->mr[i] = fabric_mr(node, parts[i].foreign ? &node->other_pd : &node->pd, addr, bytes, access);
    s->grounds.region[i] = (struct region){(uintptr_t)addr, bytes, s->mr[i]->pub.rkey};
}

/* Regions with a poisoned gap before and after each. */
static void make_memory(struct side *s) {
    uint32_t at = GAP;
    s->arena = aligned_alloc(4096, ARENA);
    memset(s->arena, CANARY, ARENA);
    for (int i = 0; i < HUGE_ONE; i++) {
        s->part[i] = s->arena + at;
        at += parts[i].bytes;
        ASAN_POISON_MEMORY_REGION(s->arena + at, GAP);
        at += GAP;
    }
    ASAN_POISON_MEMORY_REGION(s->arena, GAP);
    CHECK(at <= ARENA);
    for (int i = 0; i < REGIONS; i++)
        register_part(s, i);
    s->window.pub = (struct rnic_mw){.pd = &s->end->node->pd.pub, .type = 1 + (int)dice_below(w.dice, 2)};
    CHECK_EQ(mw_insert(&s->end->node->nic.mrs, &s->window), 0);
    s->grounds.region[SHOWN] =
        (struct region){(uintptr_t)s->part[SHOWN] + EDGE, parts[SHOWN].bytes - 2 * EDGE, s->window.pub.rkey};
}

static void drop_memory(struct side *s) {
    mw_remove(&s->end->node->nic.mrs, &s->window);
    for (int i = 0; i < REGIONS; i++)
        fabric_drop_mr(s->end->node, s->mr[i]);
    ASAN_UNPOISON_MEMORY_REGION(s->arena, ARENA);
    free(s->arena);
}

static void check_canary(const uint8_t *p, uint32_t n, const char *what) {
    for (uint32_t i = 0; i < n; i++) {
        if (p[i] != CANARY)
            check_fail(__FILE__, __LINE__, "%s: byte %u has changed", what, i);
    }
}

/* Of what no peer may write: no right, another protection domain, and the half of an inbox slot that no receive has. */
static void check_memory(const struct side *s) {
    check_canary(s->part[READABLE], parts[READABLE].bytes, "memory for remote reads");
    check_canary(s->part[FOREIGN], parts[FOREIGN].bytes, "memory of another protection domain");
    check_canary(s->part[SHOWN], EDGE, "memory before a window");
    check_canary(s->part[SHOWN] + parts[SHOWN].bytes - EDGE, EDGE, "memory behind a window");
    for (int i = 0; i < INBOX_SLOTS; i++)
        check_canary(s->part[INBOX] + i * INBOX_SLOT + INBOX_SLOT / 2, INBOX_SLOT / 2, "memory beside a receive");
}

/* ---------------------------------------------------------------- the applications */

static void begin_ledger(struct ledger *l) {
    l->next = l->posted;
    l->failed = false;
}

static void check_wc(const struct side *s, struct ledger *l, const struct rnic_wc *wc, bool send) {
    CHECK(wc->wr_id >= l->next && wc->wr_id < l->posted);
    CHECK(wc->status <= RNIC_WC_TM_RNDV_INCOMPLETE && wc->vendor_err < RNIC_VE_MAX);
    CHECK(wc->qp_num == s->end->qp->pub.qp_num);
    if (!send && wc->status == RNIC_WC_SUCCESS)
        CHECK(wc->opcode == RNIC_WCO_RECV_RDMA_WITH_IMM || wc->byte_len <= INBOX_SLOT / 2);
    for (uint64_t id = l->next; s->exact && id < wc->wr_id; id++)
        CHECK(!l->signaled[id % IDS]); /* was skipped */
    l->next = wc->wr_id + 1;
    if (wc->status != RNIC_WC_SUCCESS) {
        CHECK(s->end->qp->state == RNIC_QPS_ERR);
        CHECK(!l->failed || wc->status == RNIC_WC_WR_FLUSH_ERR);
        l->failed = true;
        failed++;
        statuses[wc->status][wc->vendor_err]++;
    } else {
        CHECK(!l->failed);
        completed++;
    }
}

static void poll_side(struct side *s, bool sends) {
    struct rnic_wc wc[16];
    int n;
    do {
        n = cq_take(sends ? s->end->send_cq : s->end->recv_cq, 16, wc);
        for (int i = 0; i < n; i++)
            check_wc(s, sends ? &s->sends : &s->recvs, &wc[i], sends);
    } while (n == 16);
}

static void post_receive(struct side *s) {
    uint64_t id = s->recvs.posted;
    uint64_t va = s->grounds.region[INBOX].va + id % INBOX_SLOTS * INBOX_SLOT;
    uint32_t n = INBOX_SLOT / 2 - dice_below(w.dice, dice_one_in(w.dice, 4) ? INBOX_SLOT / 2 + 1 : 8),
             first = dice_below(w.dice, n + 1);
    uint32_t lkey = s->grounds.region[INBOX].rkey ^ dice_one_in(w.dice, 256);
    struct rnic_sge sge[2] = {{va, first, lkey}, {va + first, n - first, lkey}};
    struct rnic_recv_wr wr = {.wr_id = id, .sg_list = sge, .num_sge = 1 + (n > first)};
    const struct rnic_recv_wr *bad;
    if (s->end->qp->state == RNIC_QPS_RESET || rq_post(&s->end->qp->rq, &wr, &bad, NULL))
        return;
    s->recvs.signaled[id % IDS] = true;
    s->recvs.posted++;
    if (s->end->qp->state == RNIC_QPS_ERR)
        fabric_turn(s->end->qp);
}

static uint32_t message_length(struct dice *d) {
    uint32_t mtu = mtu_bytes(w.options.mtu);
    return (uint32_t)DICE_PICK(d, 0, 1, 8, dice_below(d, 512), mtu - 1, mtu, dice_below(d, 4097)) & 0x1FFF;
}

static void hand_over(struct side *s, struct rnic_send_wr wr) {
    wr.wr_id = s->sends.posted;
    if (s->end->qp->state < RNIC_QPS_RTS || try_post(s->end, wr))
        return;
    s->sends.signaled[s->sends.posted % IDS] = wr.send_flags & RNIC_SEND_SIGNALED;
    s->sends.posted++;
}

/* The window is bound, or this end or the peer takes it away. */
static void post_window(struct side *s) {
    struct dice *d = w.dice;
    struct region *shown = &s->grounds.region[SHOWN];
    const struct region *theirs = &w.side[s == &w.side[0]].grounds.region[SHOWN];
    struct rnic_send_wr wr = {
        .opcode = (int)DICE_PICK(d, RNIC_WR_BIND_MW, RNIC_WR_BIND_MW, RNIC_WR_LOCAL_INV, RNIC_WR_SEND_WITH_INV),
        .send_flags = dice_below(d, 4) ? RNIC_SEND_SIGNALED : 0};
    if (wr.opcode == RNIC_WR_BIND_MW) {
        bool none = dice_one_in(d, 4), all = dice_below(d, 2);
        uint32_t rights = dice_below(d, 16) << 1 & (ALL_ACCESS & ~RNIC_ACCESS_LOCAL_WRITE);
        struct rnic_mw_bind_info info = {&s->mr[SHOWN]->pub, shown->va, shown->length, all ? ALL_ACCESS - 1 : rights};
        wr.bind_mw.mw = &s->window.pub;
        wr.bind_mw.rkey = (s->window.pub.rkey & ~0xFFu) | dice_below(d, 256);
        wr.bind_mw.bind_info = none ? (struct rnic_mw_bind_info){0} : info;
    } else {
        wr.invalidate_rkey = (wr.opcode == RNIC_WR_LOCAL_INV ? shown : theirs)->rkey ^ dice_one_in(d, 16);
    }
    hand_over(s, wr);
    shown->rkey = s->window.pub.rkey;
}

static void post_request(struct side *s) {
    static const uint8_t opcodes[] = {RNIC_WR_RDMA_WRITE,         RNIC_WR_RDMA_WRITE_WITH_IMM, RNIC_WR_SEND,
                                      RNIC_WR_SEND_WITH_IMM,      RNIC_WR_RDMA_READ,           RNIC_WR_RDMA_READ,
                                      RNIC_WR_ATOMIC_CMP_AND_SWP, RNIC_WR_ATOMIC_FETCH_AND_ADD};
    struct dice *d = w.dice;
    const struct region *local = &s->grounds.region[dice_one_in(d, 4) ? LOOSE : OPEN];
    const struct region *remote = &w.side[s == &w.side[0]].grounds.region[OPEN];
    uint8_t opcode = opcodes[dice_below(d, sizeof opcodes)];
    bool atomic = opcode >= RNIC_WR_ATOMIC_CMP_AND_SWP;
    uint32_t n = atomic ? 8 : message_length(d), first = dice_below(d, n + 1);
    if (n > local->length)
        n = first = (uint32_t)local->length;
    struct rnic_sge sge[2] = {{local->va, first, local->rkey}, {local->va + first, n - first, local->rkey}};
    struct rnic_send_wr wr = {.sg_list = sge, .num_sge = 2, .opcode = opcode};
    if (dice_below(d, 4))
        wr.send_flags |= RNIC_SEND_SIGNALED;
    if (dice_one_in(d, 8))
        wr.send_flags |= RNIC_SEND_FENCE;
    if (opcode < RNIC_WR_RDMA_READ && n <= s->end->qp->sq.max_inline && dice_one_in(d, 4))
        wr.send_flags |= RNIC_SEND_INLINE;
    uint64_t va = remote->va + dice_below(d, 4096) / 8 * 8;
    uint32_t rkey = remote->rkey ^ dice_one_in(d, 256);
    if (atomic) {
        wr.wr.atomic.remote_addr = va;
        wr.wr.atomic.rkey = rkey;
    } else {
        wr.wr.rdma.remote_addr = va;
        wr.wr.rdma.rkey = rkey;
    }
    hand_over(s, wr);
}

/* A region goes while work that names it may be under way, and another takes its place. */
static void swap_region(struct side *s) {
    int i = dice_one_in(w.dice, 4) ? OPEN : LOOSE;
    fabric_drop_mr(s->end->node, s->mr[i]);
    register_part(s, i);
}

/* ---------------------------------------------------------------- states */

static void settle_ledgers(struct side *s) {
    poll_side(s, true);
    poll_side(s, false);
    begin_ledger(&s->sends);
    begin_ledger(&s->recvs);
}

/* RESET, and up to a state. */
static void reconnect(struct side *s, int state) {
    struct rnic_qp_attr attr = pair_attr(s->end, &w.options);
    settle_ledgers(s);
    CHECK_EQ(move(s->end->qp, RNIC_QPS_RESET), 0);
    const uint32_t masks[] = {mask_init, mask_rtr, mask_rts};
    for (int to = RNIC_QPS_INIT; to <= state; to++) {
        attr.qp_state = to;
        CHECK_EQ(fabric_modify(s->end->qp, &attr, masks[to - RNIC_QPS_INIT], NULL), 0);
    }
}

static void change_state(struct side *s) {
    struct qp *qp = s->end->qp;
    if (dice_below(w.dice, 4) == 0)
        reconnect(s, (int)DICE_PICK(w.dice, RNIC_QPS_RESET, RNIC_QPS_INIT, RNIC_QPS_RTR, RNIC_QPS_RTS));
    else if (dice_below(w.dice, 4) == 0)
        CHECK_EQ(move(qp, RNIC_QPS_ERR), 0);
    else if (qp->state == RNIC_QPS_RTS)
        CHECK_EQ(move(qp, RNIC_QPS_SQD), 0);
    else if (qp->state == RNIC_QPS_SQD)
        CHECK_EQ(move(qp, RNIC_QPS_RTS), 0);
}

/* ---------------------------------------------------------------- what must hold */

static void check_queue(struct wq *q) { CHECK(wq_head(q) - wq_tail(q) <= q->max_wr); }

static void check_requester(struct qp *qp) {
    const struct requester *req = &rc_of(qp)->req;
    uint32_t head = wq_head(&qp->sq), tail = wq_tail(&qp->sq);
    CHECK(req->next - tail <= head - tail);
    CHECK(req->rd_count <= MAX_RD_ATOMIC && req->rd_head < MAX_RD_ATOMIC);
    CHECK(psn_diff(req->psn, req->una) >= 0 && psn_diff(req->max_psn, req->psn) >= 0);
    uint32_t locals = 0;
    for (uint32_t i = tail; i != head; i++)
        locals += sq_wqe(&qp->sq, i)->started && !sq_wqe(&qp->sq, i)->packets;
    CHECK_EQ(req->locals, locals);
    if (!req_outstanding(req))
        return;
    const struct send_wqe *oldest = sq_wqe(&qp->sq, tail);
    CHECK(head != tail && oldest->started);
    CHECK(psn_mask(req->una - oldest->first_psn) < oldest->packets);
}

static void check_responder(struct qp *qp) {
    const struct responder *resp = &rc_of(qp)->resp;
    uint32_t queued = 0;
    for (uint32_t i = 0; i < resp->res_size; i++) {
        const struct resource *res = &resp->res[i];
        CHECK(!res->valid || res->packets <= 1 << 23); /* more than half of all PSNs cannot be told from fewer */
        if (!res->queued)
            continue;
        CHECK(res->valid && res->cur < res->end && res->end <= res->packets);
        queued++;
    }
    CHECK(resp->queue_count == queued || qp->state == RNIC_QPS_ERR);
    CHECK(!resp->in.message || resp->in.message == OPC_SEND || resp->in.message == OPC_WRITE);
    CHECK(resp->in.message != OPC_SEND || qp->state == RNIC_QPS_ERR || !wq_empty(&qp->rq));
    CHECK(resp->in.message != OPC_WRITE || resp->in.left > 0);
}

static void check_end(struct side *s) {
    struct qp *qp = s->end->qp;
    CHECK(qp->state >= RNIC_QPS_RESET && qp->state <= RNIC_QPS_ERR && qp->state != RNIC_QPS_SQE);
    check_queue(&qp->sq);
    check_queue(&qp->rq);
    if (qp->state != RNIC_QPS_ERR)
        check_requester(qp);
    check_responder(qp);
    poll_side(s, true);
    poll_side(s, false);
    if (qp->state == RNIC_QPS_ERR && wq_empty(&qp->sq) && wq_empty(&qp->rq) && s->exact)
        CHECK(s->recvs.next == s->recvs.posted);
    for (struct rnic_async_event event; event_take(&s->end->node->nic.events, &event);)
        ;
}

/* ---------------------------------------------------------------- a world */

static enum verdict judge(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)arg, (void)from, (void)nth, (void)bth;
    return w.lossy && !dice_one_in(w.dice, w.lossy) ? LOSE : PASS;
}

static uint32_t some_psn(struct dice *d) {
    return (uint32_t)DICE_PICK(d, 1, 0xFFFFF0, 0x7FFFF0, 0x800000, dice_bits(d, 3)) & PSN_MASK;
}

/* A second queue pair, in RESET: packets may name it. With two of them the fabric does not ask either that READ responses
 * follow one another as for an honest requester; a liar's requests interleave. */
static void add_bystander(struct side *s) {
    fabric_qp(s->end->node, &(struct rnic_qp_cap){1, 1, 1, 1, 0}, s->end->send_cq, s->end->recv_cq);
}

static void open_world(struct dice *d) {
    w = (struct world){.dice = d};
    w.options = (struct options){.mtu = RNIC_MTU_256 + (int)dice_below(d, 5),
                                 .sq_psn = some_psn(d) | 1,
                                 .rq_psn = some_psn(d) | 1,
                                 .rd_atomic = (uint32_t)DICE_PICK(d, NONE, 1, 2, 4, 16, 128),
                                 .dest_rd_atomic = (uint32_t)DICE_PICK(d, NONE, 1, 2, 4, 16, 128),
                                 .access = dice_one_in(d, 16) ? RNIC_ACCESS_REMOTE_READ : ALL_ACCESS,
                                 .window = (uint32_t)DICE_PICK(d, 2000, 20000, 1 << 20),
                                 .retry_cnt = (uint8_t)DICE_PICK(d, NONE, 1, 7, 7),
                                 .rnr_retry = (uint8_t)DICE_PICK(d, NONE, 1, 7, 7),
                                 .timeout = (uint8_t)DICE_PICK(d, NONE, 5, 14),
                                 .wr = (uint32_t)DICE_PICK(d, 2, 16, 64),
                                 .cqe = dice_one_in(d, 8) ? 2 : 1024,
                                 .latency = 1 * US,
                                 .ack_hold = dice_below(d, 2) ? 15 * US : 0,
                                 .pause = 10 * US,
                                 .budget = 1 + dice_below(d, 16),
                                 .ipv6 = dice_below(d, 2),
                                 .quiet = true};
    w.lossy = (uint32_t)DICE_PICK(d, 0, 2, 1000000);
    pair_open_options(&w.pair, &w.options);
    w.pair.f.judge = judge;
    for (int i = 0; i < 2; i++) {
        w.side[i].end = i ? &w.pair.b : &w.pair.a;
        w.side[i].exact = w.options.cqe > 2;
        make_memory(&w.side[i]);
        add_bystander(&w.side[i]);
    }
    worlds++;
}

static void close_world(void) {
    for (int i = 0; i < 2; i++) {
        check_memory(&w.side[i]);
        executed += w.side[i].end->node->nic.counters.value[RNIC_CNT_requests_executed];
        sent_bad += w.side[i].end->node->nic.counters.value[RNIC_CNT_nak_remote_sent];
        drop_memory(&w.side[i]);
    }
    pair_close(&w.pair);
}

static bool answers_long(const struct side *s) {
    const struct responder *resp = &rc_of(s->end->qp)->resp;
    for (uint32_t i = 0; i < resp->res_size; i++) {
        if (resp->res[i].queued && resp->res[i].end - resp->res[i].cur > 1000)
            return true;
    }
    return false;
}

/* Time goes on; far enough for timers unless somebody is busy with 4 GiB. */
static void pass_time(void) {
    uint64_t ns = DICE_PICK(w.dice, 1, 1, 5, 20) * US;
    if (dice_one_in(w.dice, 16) && !answers_long(&w.side[0]) && !answers_long(&w.side[1]))
        ns = DICE_PICK(w.dice, 1, 10, 70) * MS;
    fabric_run(&w.pair.f, w.pair.f.now + ns);
}

static void inject(struct side *s) {
    static struct forged f;
    struct dice *d = w.dice;
    if (dice_one_in(d, 64)) {
        forge_noise(&f, d);
        if (f.n >= BTH_BYTES && dice_below(d, 2))
            bth_set_dqpn(f.bytes, s->end->qp->pub.qp_num);
    } else {
        forge_valid(&f, s->end->qp, &s->grounds, d);
        if (dice_below(d, 4) == 0)
            forge_mutate(&f, s->end->qp, &s->grounds, d);
    }
    if (f.n < BTH_BYTES || f.n > 8000)
        return;
    struct way way = {.src = s->end->peer->node->addr, .dst = s->end->node->addr};
    fabric_inject(s->end->peer->node, &way, f.bytes, f.n);
}

static void work(struct side *s) {
    struct dice *d = w.dice;
    struct qp *qp = s->end->qp;
    if (qp->state == RNIC_QPS_ERR ? dice_below(d, 2) : qp->state < RNIC_QPS_RTR && dice_one_in(d, 8)) {
        deaths += qp->state == RNIC_QPS_ERR;
        reconnect(s, RNIC_QPS_RTS);
    }
    for (uint32_t n = dice_below(d, 3); n; n--)
        post_receive(s);
    if (dice_below(d, 3) == 0)
        post_request(s);
    if (dice_one_in(d, 16))
        post_window(s);
    if (dice_one_in(d, 64))
        swap_region(s);
    if (dice_one_in(d, 128))
        change_state(s);
}

static void one_case(void) {
    struct side *s = &w.side[dice_below(w.dice, 2)];
    number++;
    work(s);
    inject(s);
    if (dice_below(w.dice, 4))
        pass_time(); /* else the next packet comes in the same breath */
    check_end(&w.side[0]);
    check_end(&w.side[1]);
    if (number % 32 == 0) {
        check_memory(&w.side[0]);
        check_memory(&w.side[1]);
    }
}

/* ---------------------------------------------------------------- where the choices come from */

static void prepare(void) {
    huge = mmap(NULL, HUGE_BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(huge != MAP_FAILED);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct dice d = {.at = data, .end = data + size};
    rng_seed(&d.rng, 1);
    if (!huge)
        prepare();
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
    prepare();
    number = from * LIFE;
    for (uint64_t world = from; number < cases; world++) {
        struct dice d = {0};
        rng_seed(&d.rng, seed * 1000003 + world);
        open_world(&d);
        for (int i = 0; i < LIFE && number < cases; i++)
            one_case();
        close_world();
    }
    printf("fuzz_rc: %llu cases in %llu worlds: %llu requests executed, %llu refused with a NAK, %llu completions, "
           "%llu with an error, %llu queue pairs went to ERR\n",
           (unsigned long long)number, (unsigned long long)worlds, (unsigned long long)executed,
           (unsigned long long)sent_bad, (unsigned long long)completed, (unsigned long long)failed,
           (unsigned long long)deaths);
    for (int i = 0; getenv("STATUSES") && i < 32 * RNIC_VE_MAX; i++) {
        if (statuses[i / RNIC_VE_MAX][i % RNIC_VE_MAX])
            printf("  status %d, %s: %llu\n", i / RNIC_VE_MAX, rnic_vendor_err_name(i % RNIC_VE_MAX),
                   (unsigned long long)statuses[i / RNIC_VE_MAX][i % RNIC_VE_MAX]);
    }
    return 0;
}
#endif
