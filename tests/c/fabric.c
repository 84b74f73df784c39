/* SPDX-License-Identifier: Apache-2.0 */
#include "fabric.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "link/udp/way.h"
#include "roce/partition.h"
#include "roce/path.h"
#include "roce/roce.h"
#include "wire/bth.h"
#include "wire/grh.h"
#include "wire/icrc.h"

#define FIRST_QPN 0x010203 /* of node 0; the others' follow in steps of 0x10000 */
#define SPIN 100000        /* turns without time going on: the engine never comes to rest */

/* ---------------------------------------------------------------- wires */

struct in_flight {
    uint64_t at, sequence;
    struct node *from, *to;
    struct way way;
    uint32_t n;
    uint8_t bytes[];
};

static bool earlier(const struct in_flight *x, const struct in_flight *y) {
    return x->at != y->at ? x->at < y->at : x->sequence < y->sequence;
}

static void heap_push(struct fabric *f, struct in_flight *p) {
    if (f->in_heap == f->heap_room) {
        f->heap_room = f->heap_room * 2 + 64;
        f->heap = realloc(f->heap, f->heap_room * sizeof *f->heap);
    }
    uint32_t i = f->in_heap++;
    for (; i && earlier(p, f->heap[(i - 1) / 2]); i = (i - 1) / 2)
        f->heap[i] = f->heap[(i - 1) / 2];
    f->heap[i] = p;
}

static struct in_flight *heap_pop(struct fabric *f) {
    struct in_flight *first = f->heap[0], *last = f->heap[--f->in_heap];
    uint32_t i = 0;
    for (uint32_t child; (child = 2 * i + 1) < f->in_heap; i = child) {
        if (child + 1 < f->in_heap && earlier(f->heap[child + 1], f->heap[child]))
            child++;
        if (!earlier(f->heap[child], last))
            break;
        f->heap[i] = f->heap[child];
    }
    f->heap[i] = last;
    return first;
}

static bool same_address(const struct sockaddr_in6 *a, const struct sockaddr_in6 *b) {
    return !memcmp(&a->sin6_addr, &b->sin6_addr, sizeof a->sin6_addr);
}

static struct node *node_at(struct fabric *f, const struct sockaddr_in6 *addr) {
    for (int i = 0; i < NODES; i++) {
        if (same_address(&f->node[i].addr, addr) || same_address(&f->node[i].addr2, addr))
            return &f->node[i];
    }
    return NULL;
}

static void note_packet(struct node *from, int arrived, const uint8_t *bth, uint32_t payload) {
    struct fabric *f = from->fabric;
    const struct roce_opcode *row = roce_opcode(bth_opcode(bth));
    struct record r = {.at = f->now,
                       .from = (uint8_t)(from - f->node),
                       .arrived = (uint8_t)arrived,
                       .opcode = bth_opcode(bth),
                       .ackreq = bth_ackreq(bth),
                       .solicited = bth_se(bth),
                       .psn = bth_psn(bth),
                       .length = payload};
    if (row->aeth) {
        r.syndrome = aeth_syndrome(bth + row->aeth);
        r.msn = aeth_msn(bth + row->aeth);
    }
    if (row->reth) {
        r.va = reth_va(bth + row->reth);
        if (row->mask & OPC_READ)
            r.length = reth_len(bth + row->reth);
    }
    if (getenv("TRACE"))
        fprintf(stderr, "%12.3f us  %d %s %-24s psn %06x length %u%s syndrome %02x msn %u\n", (double)f->now / 1000.0,
                r.from, arrived ? "->" : "  ", row->name, r.psn, r.length, r.ackreq ? " A" : "", r.syndrome, r.msn);
    if (f->quiet)
        return;
    if (f->logged == f->log_room) {
        f->log_room = f->log_room * 2 + 256;
        f->log = realloc(f->log, f->log_room * sizeof *f->log);
    }
    f->log[f->logged++] = r;
}

/* ---------------------------------------------------------------- all packets of a program, in one number */

static uint64_t packets, digest = 0xCBF29CE484222325u;

static void take_in(const void *bytes, size_t n) { /* FNV-1a */
    for (size_t i = 0; i < n; i++)
        digest = (digest ^ ((const uint8_t *)bytes)[i]) * 0x100000001B3u;
}

static void append_digest(void) {
    FILE *file = fopen(getenv("PACKETS"), "a");
    if (!file)
        return;
    fprintf(file, "%s %" PRIu64 " %016" PRIx64 "\n", program_invocation_short_name, packets, digest);
    fclose(file);
}

static void blank(uint8_t *bytes, uint32_t at, uint32_t n) {
    if (at)
        memset(bytes + at, 0, n);
}

/* With PACKETS=FILE in the environment the program appends its name, the number of packets, and a digest of when which node has sent what.
 * Two versions that send the same packets at the same times write the same lines.  Addresses and keys differ from run to
 * run, and the ICRC with them: they are left out. */
static void witness_packet(const struct node *from, const uint8_t *bytes, uint32_t n) {
    const struct roce_opcode *row = roce_opcode(bth_opcode(bytes));
    const uint64_t head[] = {from->fabric->now, (uint64_t)(from - from->fabric->node), n};
    uint8_t copy[sizeof from->sink.bytes];
    if (!getenv("PACKETS"))
        return;
    if (!packets++)
        atexit(append_digest);
    memcpy(copy, bytes, n);
    blank(copy, row->reth, 12);
    blank(copy, row->atomic_eth, 12);
    blank(copy, row->ieth, 4);
    take_in(head, sizeof head);
    take_in(copy, n - ICRC_BYTES);
}

/* ---------------------------------------------------------------- onto the wire */

/* What the fault injector lets through goes onto the wire. */
static void launch(struct link *link, const struct way *way, const uint8_t *bytes, uint32_t n) {
    struct node *from = ((struct sink *)link)->node;
    struct fabric *f = from->fabric;
    struct in_flight *p = malloc(sizeof *p + n);
    uint64_t start = from->wire_free > f->now ? from->wire_free : f->now;
    from->wire_free = f->bandwidth ? start + n * SEC / f->bandwidth : start;
    *p = (struct in_flight){.at = from->wire_free + f->latency,
                            .sequence = f->sequence++,
                            .from = from,
                            .to = node_at(f, &way->dst),
                            .way = *way,
                            .n = n};
    memcpy(p->bytes, bytes, n);
    heap_push(f, p);
}

static void send_packet(struct node *from, const struct way *way, const uint8_t *bytes, uint32_t n) {
    struct fabric *f = from->fabric;
    witness_packet(from, bytes, n);
    enum verdict verdict = PASS;
    uint32_t nth = f->judged[from - f->node]++;
    if (f->judge)
        verdict = f->judge(f->judge_arg, from, nth, bytes);
    if (verdict == LOSE || (f->dead && (same_address(f->dead, &way->src) || same_address(f->dead, &way->dst))))
        return;
    for (int i = 0; i < (verdict == TWICE ? 2 : 1); i++) {
        if (from->fault.on)
            fault_send(&from->fault, &from->nic.counters, way, bytes, n, f->now);
        else
            launch(&from->sink.link, way, bytes, n);
    }
    if (verdict == LATE) { /* it is the youngest in the heap: take it out and delay it */
        for (uint32_t i = 0; i < f->in_heap; i++) {
            struct in_flight *p = f->heap[i];
            if (p->sequence != f->sequence - 1)
                continue;
            struct in_flight **rest = f->heap;
            uint32_t count = f->in_heap;
            p->at += f->late;
            f->heap = NULL;
            f->in_heap = f->heap_room = 0;
            for (uint32_t k = 0; k < count; k++)
                heap_push(f, rest[k]);
            free(rest);
            break;
        }
    }
}

/* ---------------------------------------------------------------- the sink that engines write into */

static uint8_t *reserve(struct link *link, struct way *way, uint32_t n, uint32_t *crc) {
    struct sink *sink = (struct sink *)link;
    if (!sink->budget)
        return NULL;
    if (n > sizeof sink->bytes)
        check_fail(__FILE__, __LINE__, "a packet of %u bytes", n);
    sink->way = way;
    sink->n = n;
    *crc = icrc_seed(&way->src, &way->dst, 0, n);
    return sink->bytes;
}

/* READ responses go on as the ones before began, or begin anew; rdma_rxe for one takes nothing else. */
static void check_responses(struct sink *sink) {
    const uint8_t *bth = sink->bytes;
    uint32_t mask = roce_opcode(bth_opcode(bth))->mask, psn = bth_psn(bth);
    if (!(mask & OPC_READ_RESP) || sink->node->qps > 1)
        return;
    bool follows = sink->in_response && psn == psn_add(sink->response_psn, 1);
    if (!follows && !(mask & OPC_FIRST))
        check_fail(__FILE__, __LINE__, "READ response %06x in the middle of nothing", psn);
    if (follows && (mask & OPC_FIRST))
        check_fail(__FILE__, __LINE__, "READ response %06x begins anew", psn);
    sink->in_response = !(mask & OPC_LAST);
    sink->response_psn = psn;
}

/* What may say "solicited", and what asks for an answer. */
static void check_bits(const uint8_t *bth) {
    const struct roce_opcode *row = roce_opcode(bth_opcode(bth));
    CHECK(!bth_se(bth) || row->mask & OPC_USES_RQ);
    CHECK(!bth_ackreq(bth) || row->mask & OPC_REQUEST);
    CHECK(bth_ackreq(bth) || !(row->mask & OPC_WAITS));
}

static void commit(struct link *link) {
    struct sink *sink = (struct sink *)link;
    const struct roce_opcode *row = roce_opcode(bth_opcode(sink->bytes));
    sink->budget--;
    check_responses(sink);
    check_bits(sink->bytes);
    note_packet(sink->node, 0, sink->bytes, sink->n - row->header - ICRC_BYTES - bth_pad(sink->bytes));
    send_packet(sink->node, sink->way, sink->bytes, sink->n);
}

/* The addresses of RoCE, each of them taken at its word. */
static int resolve(struct link *link, const struct rnic_ah_attr *av, uint32_t qpn, struct way *to, struct way *from,
                   struct rnic_err *err) {
    const struct node *node = ((struct sink *)link)->node;
    const struct sockaddr_in6 *here = av->grh.sgid_index ? &node->addr2 : &node->addr;
    (void)qpn;
    *to = (struct way){.link = link, .src = *here, .dst = *here, .hop_limit = 64};
    memcpy(&to->dst.sin6_addr, av->grh.dgid.raw, 16);
    to->traffic_class = node->nic.ib.congestion ? ECN_CAPABLE : 0;
    *from = (struct way){.src = to->dst, .dst = to->src};
    return udp_av_check(av, err);
}

static void hold(struct link *link, const struct way *way) {
    (void)way;
    ((struct sink *)link)->users++;
}

static void release(struct link *link, const struct way *way) {
    (void)way;
    CHECK(((struct sink *)link)->users-- > 0);
}

static const struct link_ops sink_ops = {.name = "sink",
                                         .resolve = resolve,
                                         .hold = hold,
                                         .release = release,
                                         .reserve = reserve,
                                         .commit = commit,
                                         .emit = launch};

/* ---------------------------------------------------------------- what the device does between link and engine */

static void drop(struct node *node, int reason) { node->nic.counters.value[reason]++; }

/* Checks as a device does them; the queue pair that the packet is for, or NULL. */
static struct qp *parse(struct node *node, const struct in_flight *p, struct packet *pkt) {
    uint32_t n = p->n;
    if (n < BTH_BYTES + ICRC_BYTES)
        return drop(node, RNIC_CNT_drop_short), NULL;
    uint32_t icrc = icrc_compute(&p->way.src, &p->way.dst, 0, p->bytes, n - ICRC_BYTES);
    if (icrc != get_le32(p->bytes + n - ICRC_BYTES))
        return drop(node, RNIC_CNT_drop_bad_icrc), NULL;
    const struct roce_opcode *row = roce_opcode(bth_opcode(p->bytes));
    if (!row)
        return drop(node, RNIC_CNT_drop_bad_opcode), NULL;
    uint32_t pad = bth_pad(p->bytes);
    if (n < row->header + pad + ICRC_BYTES)
        return drop(node, RNIC_CNT_drop_short), NULL;
    *pkt = (struct packet){.bth = p->bytes,
                           .row = row,
                           .payload = p->bytes + row->header,
                           .length = n - row->header - pad - ICRC_BYTES,
                           .psn = bth_psn(p->bytes),
                           .opcode = bth_opcode(p->bytes),
                           .ackreq = bth_ackreq(p->bytes),
                           .solicited = bth_se(p->bytes),
                           .marked = (p->way.traffic_class & ECN_MASK) == ECN_MARKED};
    for (int i = 0; i < node->qps; i++) {
        struct qp *qp = node->qp[i];
        if (qp->pub.qp_num == bth_dqpn(p->bytes))
            return row->mask & qp->ib.takes ? qp : (drop(node, RNIC_CNT_drop_bad_opcode), NULL);
    }
    return drop(node, RNIC_CNT_drop_bad_qpn), NULL;
}

static void invariants(const struct qp *qp) {
    const struct rc *rc = rc_of(qp);
    const struct requester *req = &rc->req;
    if (qp->state < RNIC_QPS_RTS || qp->engine != &roce_rc_ops)
        return;
    CHECK(req->rd_count <= qp->attr.max_rd_atomic);
    CHECK(psn_diff(req->psn, req->una) >= 0 && psn_diff(req->max_psn, req->psn) >= 0);
    CHECK(rc->resp.queue_count <= rc->resp.res_size);
    CHECK(req->window <= qp->nic->slow_window || req->window <= 2 * (rc->mtu + PACKET_COST));
}

/* The engine's turn; what the sink did not take waits for the next. */
static void turn(struct node *node) {
    bool more = false;
    node->run_at = NEVER;
    for (int i = 0; i < node->qps; i++) {
        struct qp *qp = node->qp[i];
        if (qp->state == RNIC_QPS_RESET || qp->state == RNIC_QPS_INIT)
            continue;
        for (int spins = 0; spins < SPIN; spins++) {
            node->sink.budget = node->budget ? node->budget : UINT32_MAX;
            bool again = qp->engine->next(qp, node->fabric->now);
            invariants(qp);
            if (!again)
                break;
            if (node->pause) {
                more = true;
                break;
            }
            CHECK(spins < SPIN - 1);
        }
    }
    if (more)
        node->run_at = node->fabric->now + node->pause;
}

static void turn_soon(struct node *node) {
    uint64_t at = node->fabric->now + node->lazy;
    if (!node->lazy && !(node->pause && node->run_at != NEVER))
        turn(node);
    else if (node->run_at == NEVER)
        node->run_at = at;
}

static bool admit(struct qp *qp, const struct in_flight *p, struct packet *pkt) {
    int index = qp_pkey_index(qp, bth_pkey(p->bytes));
    pkt->pkey_index = (uint16_t)index;
    if (index < 0)
        COUNT(qp, drop_bad_pkey);
    else if (qp->ib.alt_loaded && !path_input(qp, path_of(qp, &p->way.src, &p->way.dst), pkt))
        COUNT(qp, drop_bad_source);
    else
        return true;
    return false;
}

static void arrive(struct fabric *f, struct in_flight *p) {
    struct packet pkt;
    uint8_t grh[GRH_BYTES];
    struct node *node = p->to;
    node->nic.counters.value[RNIC_CNT_rx_packets]++;
    struct qp *qp = parse(node, p, &pkt);
    if (qp && (qp->state == RNIC_QPS_RESET || qp->state == RNIC_QPS_INIT)) {
        drop(node, RNIC_CNT_drop_bad_state);
    } else if (qp && admit(qp, p, &pkt)) {
        note_packet(p->from, 1, pkt.bth, pkt.length);
        grh_build(grh, &p->way.src, &p->way.dst, p->way.traffic_class, p->way.hop_limit, p->way.flow_label, 0, p->n);
        pkt.grh = grh;
        pkt.sl = p->way.traffic_class >> 5;
        if (f->witness)
            f->witness(f->witness_arg, qp, &pkt);
        qp->engine->input(qp, &pkt, f->now);
        invariants(qp);
        turn_soon(node);
    }
    free(p);
}

static struct node *node_of(const struct qp *qp) {
    return (struct node *)((char *)qp->nic - offsetof(struct node, nic));
}

void fabric_turn(struct qp *qp) { turn_soon(node_of(qp)); }

/* ---------------------------------------------------------------- time */

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* An ACK waits at least for the turn that is due. */
static uint64_t held(const struct node *node, const struct qp *qp) {
    return node->run_at == NEVER ? qp->engine->held(qp) : NEVER;
}

static uint64_t next_event(struct fabric *f) {
    uint64_t at = f->in_heap ? f->heap[0]->at : NEVER;
    for (int i = 0; i < NODES; i++) {
        struct node *node = &f->node[i];
        at = least(at, least(node->run_at, fault_deadline(&node->fault)));
        for (int k = 0; k < node->qps; k++) {
            struct qp *qp = node->qp[k];
            if (qp->state >= RNIC_QPS_RTR)
                at = least(at, least(qp->engine->deadline(qp), held(node, qp)));
        }
    }
    return at;
}

static void timers(struct node *node, struct qp *qp) {
    uint64_t now = node->fabric->now;
    if (qp->state < RNIC_QPS_RTR)
        return;
    bool due = qp->engine->deadline(qp) <= now, ack = held(node, qp) <= now;
    node->sink.budget = UINT32_MAX;
    if (due)
        qp->engine->timer(qp, now);
    if (due || ack)
        turn(node);
}

bool fabric_step(struct fabric *f, uint64_t until) {
    static int still;
    uint64_t at = next_event(f);
    if (at > until || at == NEVER)
        return false;
    still = at > f->now ? 0 : still + 1;
    CHECK(still < SPIN);
    f->now = at > f->now ? at : f->now;
    while (f->in_heap && f->heap[0]->at <= f->now)
        arrive(f, heap_pop(f));
    for (int i = 0; i < NODES; i++) {
        struct node *node = &f->node[i];
        fault_release(&node->fault, f->now);
        if (node->run_at <= f->now)
            turn(node);
        for (int k = 0; k < node->qps; k++)
            timers(node, node->qp[k]);
    }
    return true;
}

bool fabric_run(struct fabric *f, uint64_t until) {
    while (fabric_step(f, until))
        ;
    if (until != NEVER && f->now < until)
        f->now = until;
    return next_event(f) == NEVER;
}

static enum verdict lose_all_of(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)nth;
    (void)bth;
    return from == arg ? LOSE : PASS;
}

void fabric_silence(struct node *node) {
    node->fabric->judge = lose_all_of;
    node->fabric->judge_arg = node;
}

void fabric_settle(struct fabric *f) {
    uint64_t limit = f->now + 3600 * SEC;
    while (fabric_step(f, limit))
        ;
    CHECK(next_event(f) == NEVER);
}

uint32_t fabric_count(const struct fabric *f, const struct node *from, int arrived, int opcode) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->logged; i++) {
        const struct record *r = &f->log[i];
        n += r->from == from - f->node && r->arrived == arrived && (opcode < 0 || r->opcode == opcode);
    }
    return n;
}

void fabric_inject(struct node *from, struct way *way, const uint8_t *bytes, uint32_t n) {
    uint8_t packet[8192];
    memcpy(packet, bytes, n);
    put_le32(packet + n, icrc_compute(&way->src, &way->dst, 0, bytes, n));
    launch(&from->sink.link, way, packet, n + ICRC_BYTES);
}

/* ---------------------------------------------------------------- objects */

static void address(struct sockaddr_in6 *addr, bool ipv6, int i) {
    *addr = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(4791)};
    uint8_t *b = addr->sin6_addr.s6_addr;
    if (ipv6) {
        b[0] = 0xFD;
    } else {
        b[10] = b[11] = 0xFF;
        b[12] = 10;
    }
    b[15] = (uint8_t)(i + 1);
}

void fabric_open(struct fabric *f, bool ipv6) {
    memset(f, 0, sizeof *f);
    f->now = SEC;
    f->latency = 10 * US;
    for (int i = 0; i < NODES; i++) {
        struct node *node = &f->node[i];
        node->fabric = f;
        node->run_at = NEVER;
        node->nic.max_window = node->nic.slow_window = 1 << 20;
        node->nic.mtu = 1024;
        node->sink = (struct sink){.link.ops = &sink_ops, .node = node};
        node->nic.wire = &node->sink.link;
        address(&node->addr, ipv6, i);
        address(&node->addr2, ipv6, i);
        node->addr2.sin6_addr.s6_addr[14] = 1;
        node->nic.ib.pkeys[0] = 0xFFFF;
        rng_seed(&node->nic.rng, (uint64_t)i);
        CHECK_EQ(mr_table_init(&node->nic.mrs), 0);
        CHECK_EQ(event_queue_init(&node->nic.events), 0);
    }
}

void fabric_close(struct fabric *f) {
    for (int i = 0; i < NODES; i++) {
        struct node *node = &f->node[i];
        while (node->qps)
            fabric_destroy(node->qp[0]);
        while (node->ahs)
            free(node->ah[--node->ahs]);
        CHECK_EQ(node->sink.users, 0);
        fault_set(&node->fault, NULL);
        mr_table_free(&node->nic.mrs);
        free(node->nic.xrc_srqs);
        event_queue_free(&node->nic.events);
    }
    while (f->in_heap)
        free(heap_pop(f));
    free(f->heap);
    free(f->log);
}

struct cq *fabric_cq(int cqe, struct channel *ch) {
    struct cq *cq = calloc(1, sizeof *cq);
    CHECK_EQ(cq_init(cq, cqe), 0);
    cq->pub.channel = ch ? &ch->pub : NULL;
    return cq;
}

void fabric_drop_cq(struct cq *cq) {
    cq_free(cq);
    free(cq);
}

struct mr *fabric_mr(struct node *node, struct pd *pd, void *addr, uint64_t length, uint32_t access) {
    struct mr *mr = calloc(1, sizeof *mr);
    mr->pub.pd = &pd->pub;
    mr->pub.addr = addr;
    mr->pub.iova = (uintptr_t)addr;
    mr->pub.length = length;
    mr->access = access;
    CHECK_EQ(mr_insert(&node->nic.mrs, mr), 0);
    return mr;
}

void fabric_drop_mr(struct node *node, struct mr *mr) {
    mr_remove(&node->nic.mrs, mr);
    free(mr);
}

static struct qp *make_qp(struct node *node, int type, const struct rnic_qp_cap *cap, struct cq *send_cq,
                          struct cq *recv_cq) {
    struct qp *qp = calloc(1, sizeof *qp);
    CHECK(node->qps < NODE_QPS);
    qp->pub.pd = &node->pd.pub;
    qp->pub.send_cq = &send_cq->pub;
    qp->pub.recv_cq = &recv_cq->pub;
    qp->pub.qp_num = FIRST_QPN + (uint32_t)((node - node->fabric->node) << 16) + (uint32_t)node->qps;
    qp->pub.qp_type = type;
    qp->sq.pd = qp->rq.pd = &node->pd.pub;
    qp->nic = &node->nic;
    qp->way.link = node->nic.wire;
    qp_set_service(qp, transport_service(&roce_transport, type));
    CHECK_EQ(wq_init(&qp->sq, cap->max_send_wr, cap->max_send_sge, cap->max_inline_data, sizeof(struct send_wqe)), 0);
    CHECK_EQ(wq_init(&qp->rq, cap->max_recv_wr, cap->max_recv_sge, 0, sizeof(struct recv_wqe)), 0);
    wq_reset(&qp->sq);
    wq_reset(&qp->rq);
    CHECK_EQ(qp->engine->create(qp), 0);
    node->qp[node->qps++] = qp;
    return qp;
}

struct qp *fabric_qp(struct node *node, const struct rnic_qp_cap *cap, struct cq *send_cq, struct cq *recv_cq) {
    return make_qp(node, RNIC_QPT_RC, cap, send_cq, recv_cq);
}

struct srq *fabric_srq(struct node *node, struct xrc_domain *domain, struct pd *pd, struct cq *cq, uint32_t max_wr) {
    struct srq *srq = calloc(1, sizeof *srq);
    CHECK_EQ(srq_init(srq, max_wr, 4), 0);
    srq->pub.pd = &pd->pub;
    CHECK_EQ(xrc_add_srq(&node->nic, srq, domain, &cq->pub), 0);
    return srq;
}

void fabric_drop_srq(struct node *node, struct srq *srq) {
    xrc_remove_srq(&node->nic, srq);
    srq_free(srq);
    free(srq);
}

/* As verbs/qp.c and verbs/xrc.c make them: the one sends alone, the other is of the domain alone. */
static void make_xrc(struct end *e, uint32_t receives) {
    struct qp *qp = e->qp;
    qp->no_receives = true;
    qp->pub.recv_cq = NULL;
    if (qp->pub.qp_type == RNIC_QPT_XRC_SEND)
        return;
    qp->pub.pd = NULL;
    qp->pub.send_cq = NULL;
    xrc_add_qp(qp, &e->domain);
    e->srq = fabric_srq(e->node, &e->domain, &e->node->pd, e->recv_cq, receives);
}

struct qp *fabric_ud(struct node *node, int type, uint32_t qkey, struct cq *send_cq, struct cq *recv_cq) {
    struct rnic_qp_cap cap = {16, 16, 4, 4, 64};
    struct qp *qp = make_qp(node, type, &cap, send_cq, recv_cq);
    struct rnic_qp_attr attr = {.qp_state = RNIC_QPS_INIT, .port_num = 1, .qkey = qkey, .sq_psn = 0xFFFFFF};
    if (type == RNIC_QPT_GSI)
        qp->pub.qp_num = QPN_GSI;
    CHECK_EQ(fabric_modify(qp, &attr, RNIC_QP_STATE | RNIC_QP_PKEY_INDEX | RNIC_QP_PORT | RNIC_QP_QKEY, NULL), 0);
    CHECK_EQ(move(qp, RNIC_QPS_RTR), 0);
    attr.qp_state = RNIC_QPS_RTS;
    CHECK_EQ(fabric_modify(qp, &attr, RNIC_QP_STATE | RNIC_QP_SQ_PSN, NULL), 0);
    return qp;
}

struct ah *fabric_ah(struct node *node, const struct node *to) {
    struct ah *ah = calloc(1, sizeof *ah);
    CHECK(node->ahs < NODE_AHS);
    ah->head.pub.pd = &node->pd.pub;
    ah->head.users = 1;
    ah->way = (struct way){
        .link = node->nic.wire, .src = node->addr, .dst = to->addr, .traffic_class = 0x68, .hop_limit = 33};
    return node->ah[node->ahs++] = ah;
}

void fabric_destroy(struct qp *qp) {
    struct node *node = node_of(qp);
    int i = 0;
    while (node->qp[i] != qp)
        i++;
    node->qps--;
    memmove(&node->qp[i], &node->qp[i + 1], (size_t)(node->qps - i) * sizeof node->qp[0]);
    if (qp->engine->disconnect)
        qp->engine->disconnect(qp);
    qp->engine->destroy(qp);
    free(qp->why);
    if (qp->xrc)
        xrc_remove_qp(qp);
    wq_free(&qp->sq);
    wq_free(&qp->rq);
    free(qp);
}

/* As the device does it. */
int fabric_modify(struct qp *qp, const struct rnic_qp_attr *attr, uint32_t mask, struct rnic_err *err) {
    int to = mask & RNIC_QP_STATE ? attr->qp_state : qp->state;
    struct paths paths;
    int rc = qp_attr_check(qp, attr, mask, err);
    if (!rc)
        rc = path_resolve(qp, attr, mask, &paths, err);
    if (rc)
        return rc;
    qp_attr_apply(qp, attr, mask);
    if (mask & RNIC_QP_STATE) {
        if (to == RNIC_QPS_RESET && qp->engine->disconnect)
            qp->engine->disconnect(qp);
        rc = qp_transition(qp, to, err);
    }
    path_take(qp, mask, &paths);
    if (mask & RNIC_QP_PATH_MIG_STATE)
        path_set_state(qp, attr->path_mig_state);
    if (to >= RNIC_QPS_RTR)
        fabric_turn(qp);
    return rc;
}

/* ---------------------------------------------------------------- a connected pair */

const uint32_t mask_init = RNIC_QP_STATE | RNIC_QP_PKEY_INDEX | RNIC_QP_PORT | RNIC_QP_ACCESS_FLAGS;
const uint32_t mask_rtr = RNIC_QP_STATE | RNIC_QP_AV | RNIC_QP_PATH_MTU | RNIC_QP_DEST_QPN | RNIC_QP_RQ_PSN |
                          RNIC_QP_MAX_DEST_RD_ATOMIC | RNIC_QP_MIN_RNR_TIMER;
const uint32_t mask_rts =
    RNIC_QP_STATE | RNIC_QP_TIMEOUT | RNIC_QP_RETRY_CNT | RNIC_QP_RNR_RETRY | RNIC_QP_SQ_PSN | RNIC_QP_MAX_QP_RD_ATOMIC;

static uint32_t or_default(uint32_t value, uint32_t standard) { return value == NONE ? 0 : value ? value : standard; }

struct rnic_qp_attr pair_attr(const struct end *e, const struct options *o) {
    bool is_a = e->node == &e->node->fabric->node[0];
    uint32_t sends = or_default(o->sq_psn, 0x123456), expects = or_default(o->rq_psn, 0x654321);
    struct rnic_qp_attr attr = {.path_mtu = (int)or_default((uint32_t)o->mtu, RNIC_MTU_1024),
                                .sq_psn = is_a ? sends : expects,
                                .rq_psn = is_a ? expects : sends,
                                .dest_qp_num = e->peer->qp->pub.qp_num,
                                .qp_access_flags = or_default(o->access, ALL_ACCESS),
                                .ah_attr = {.is_global = 1, .port_num = 1, .grh.hop_limit = 64},
                                .port_num = 1,
                                .max_rd_atomic = (uint8_t)or_default(o->rd_atomic, 4),
                                .max_dest_rd_atomic = (uint8_t)or_default(o->dest_rd_atomic, 4),
                                .min_rnr_timer = (uint8_t)or_default(o->min_rnr_timer, 12),
                                .timeout = (uint8_t)or_default(o->timeout, 14),
                                .retry_cnt = (uint8_t)or_default(o->retry_cnt, 7),
                                .rnr_retry = (uint8_t)or_default(o->rnr_retry, 7)};
    memcpy(attr.ah_attr.grh.dgid.raw, &e->peer->node->addr.sin6_addr, 16);
    attr.alt_ah_attr = (struct rnic_ah_attr){.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 64}};
    memcpy(attr.alt_ah_attr.grh.dgid.raw, &e->peer->node->addr2.sin6_addr, 16);
    attr.alt_port_num = 1;
    return attr;
}

/* One step; without the attributes that the service does not have. */
static void step_to(struct end *e, struct rnic_qp_attr attr, int state, uint32_t mask) {
    static const uint32_t responds = RNIC_QP_MAX_DEST_RD_ATOMIC | RNIC_QP_MIN_RNR_TIMER;
    static const uint32_t requests = RNIC_QP_RETRY_CNT | RNIC_QP_RNR_RETRY | RNIC_QP_MAX_QP_RD_ATOMIC;
    static const uint32_t without[] = {[RNIC_QPT_UC] = responds | requests | RNIC_QP_TIMEOUT,
                                       [RNIC_QPT_XRC_SEND] = responds,
                                       [RNIC_QPT_XRC_RECV] = requests};
    attr.qp_state = state;
    CHECK_EQ(fabric_modify(e->qp, &attr, mask & ~without[e->qp->pub.qp_type], NULL), 0);
}

void pair_respond(struct end *e, const struct options *o) {
    CHECK_EQ(move(e->qp, RNIC_QPS_RESET), 0);
    step_to(e, pair_attr(e, o), RNIC_QPS_INIT, mask_init);
    step_to(e, pair_attr(e, o), RNIC_QPS_RTR, mask_rtr);
}

void pair_connect(struct end *e, const struct options *o) {
    pair_respond(e, o);
    step_to(e, pair_attr(e, o), RNIC_QPS_RTS, mask_rts);
}

static void open_end(struct end *e, struct end *peer, struct node *node, const struct options *o) {
    struct rnic_qp_cap cap = {or_default(o->wr, 64), or_default(o->wr, 64), or_default(o->sge, 4),
                              or_default(o->sge, 4), or_default(o->inline_data, 64)};
    e->node = node;
    e->peer = peer;
    e->bytes = o->bytes ? o->bytes : 65536;
    e->mem = calloc(1, e->bytes);
    e->mr = fabric_mr(node, &node->pd, e->mem, e->bytes, ALL_ACCESS);
    CHECK_EQ(channel_init(&e->channel), 0);
    e->send_cq = fabric_cq((int)or_default(o->cqe, 256), &e->channel);
    e->recv_cq = fabric_cq((int)or_default(o->cqe, 256), &e->channel);
    bool xrc = o->type == RNIC_QPT_XRC_SEND, sends = node == &node->fabric->node[0];
    int type = xrc && !sends ? RNIC_QPT_XRC_RECV : o->type ? o->type : RNIC_QPT_RC;
    e->qp = make_qp(node, type, &cap, e->send_cq, e->recv_cq);
    if (xrc)
        make_xrc(e, cap.max_recv_wr);
    e->qp->sq_sig_all = o->sig_all;
    node->lazy = o->lazy;
    node->pause = o->pause;
    node->budget = o->budget;
    node->nic.ack_hold = o->ack_hold;
    node->nic.ib.congestion = o->congestion;
    node->nic.max_window = node->nic.slow_window = or_default(o->window, 1 << 20);
}

void pair_open_options(struct pair *p, const struct options *o) {
    memset(p, 0, sizeof *p);
    fabric_open(&p->f, o->ipv6);
    p->f.quiet = o->quiet;
    p->f.bandwidth = o->bandwidth;
    p->f.latency = o->latency ? o->latency : 10 * US;
    open_end(&p->a, &p->b, &p->f.node[0], o);
    open_end(&p->b, &p->a, &p->f.node[1], o);
    pair_connect(&p->a, o);
    pair_connect(&p->b, o);
}

static void close_end(struct end *e) {
    fabric_drop_cq(e->send_cq);
    fabric_drop_cq(e->recv_cq);
    channel_free(&e->channel);
    if (e->mr)
        free(e->mr);
    free(e->mem);
}

void pair_close(struct pair *p) {
    if (p->b.srq)
        fabric_drop_srq(p->b.node, p->b.srq);
    fabric_close(&p->f);
    close_end(&p->a);
    close_end(&p->b);
}

/* PSNs and messages: were one more or fewer counted at one end, credits would be wrong from then on. */
static void in_step(const struct end *from) {
    if (from->qp->engine != &roce_rc_ops || from->qp->state != RNIC_QPS_RTS || from->peer->qp->state != RNIC_QPS_RTS)
        return;
    const struct requester *req = &rc_of(from->qp)->req;
    const struct responder *resp = &rc_of(from->peer->qp)->resp;
    CHECK_EQ(req->una, resp->psn);
    CHECK_EQ(req->ssn, resp->msn);
}

void pair_in_step(const struct pair *p) {
    in_step(&p->a);
    in_step(&p->b);
}

void pair_quiet(struct pair *p) {
    fabric_settle(&p->f);
    for (struct end *e = &p->a; e; e = e == &p->a ? &p->b : NULL) {
        WANT_NONE(e->send_cq);
        WANT_NONE(e->recv_cq);
        WANT_NO_EVENT(e);
        CHECK_EQ(e->qp->state, RNIC_QPS_RTS);
    }
    pair_in_step(p);
}

void pair_close_quietly(struct pair *p) {
    pair_quiet(p);
    pair_close(p);
}

int move(struct qp *qp, int state) {
    struct rnic_qp_attr attr = {.qp_state = state};
    return fabric_modify(qp, &attr, RNIC_QP_STATE, NULL);
}

/* ---------------------------------------------------------------- work */

int try_post(struct end *e, struct rnic_send_wr wr) {
    const struct rnic_send_wr *bad;
    if (e->peer && e->peer->srq && !wr.qp_type.xrc.remote_srqn)
        wr.qp_type.xrc.remote_srqn = e->peer->srq->pub.srq_num;
    int rc = sq_post(&e->qp->sq, &wr, &bad, NULL);
    if (!rc)
        fabric_turn(e->qp);
    return rc;
}

void post(struct end *e, struct rnic_send_wr wr) { CHECK_EQ(try_post(e, wr), 0); }

void post_send(struct end *e, uint64_t id, uint64_t at, uint32_t n) {
    post(e, (struct rnic_send_wr){
                .wr_id = id, .opcode = RNIC_WR_SEND, .send_flags = RNIC_SEND_SIGNALED, SGL(SGE(e, at, n))});
}

void post_write(struct end *e, uint64_t id, uint64_t at, uint64_t to, uint32_t n) {
    post(e, (struct rnic_send_wr){.wr_id = id,
                                  .opcode = RNIC_WR_RDMA_WRITE,
                                  .send_flags = RNIC_SEND_SIGNALED,
                                  REMOTE(e->peer, to),
                                  SGL(SGE(e, at, n))});
}

void post_read(struct end *e, uint64_t id, uint64_t at, uint64_t from, uint32_t n) {
    post(e, (struct rnic_send_wr){.wr_id = id,
                                  .opcode = RNIC_WR_RDMA_READ,
                                  .send_flags = RNIC_SEND_SIGNALED,
                                  REMOTE(e->peer, from),
                                  SGL(SGE(e, at, n))});
}

static void post_atomic(struct end *e, int opcode, uint64_t id, uint64_t at, uint64_t remote, uint64_t compare_add,
                        uint64_t swap) {
    post(e, (struct rnic_send_wr){.wr_id = id,
                                  .opcode = opcode,
                                  .send_flags = RNIC_SEND_SIGNALED,
                                  .wr.atomic = {.remote_addr = (uintptr_t)e->peer->mem + remote,
                                                .compare_add = compare_add,
                                                .swap = swap,
                                                .rkey = e->peer->mr->pub.rkey},
                                  SGL(SGE(e, at, 8))});
}

void post_add(struct end *e, uint64_t id, uint64_t at, uint64_t remote, uint64_t add) {
    post_atomic(e, RNIC_WR_ATOMIC_FETCH_AND_ADD, id, at, remote, add, 0);
}

void post_swap(struct end *e, uint64_t id, uint64_t at, uint64_t remote, uint64_t compare, uint64_t swap) {
    post_atomic(e, RNIC_WR_ATOMIC_CMP_AND_SWP, id, at, remote, compare, swap);
}

void post_recv(struct end *e, uint64_t id, uint64_t at, uint32_t n) {
    struct rnic_recv_wr wr = {.wr_id = id, SGL(SGE(e, at, n))};
    const struct rnic_recv_wr *bad;
    CHECK_EQ(rq_post(e->srq ? &e->srq->q : &e->qp->rq, &wr, &bad, NULL), 0);
    if (e->qp->state == RNIC_QPS_ERR)
        fabric_turn(e->qp);
}

struct rnic_wc take_wc(struct cq *cq, const char *file, int line) {
    struct rnic_wc wc;
    if (cq_take(cq, 1, &wc) != 1)
        check_fail(file, line, "no completion");
    return wc;
}

struct rnic_wc want_wc(struct cq *cq, uint64_t id, int status, const char *file, int line) {
    struct rnic_wc wc = take_wc(cq, file, line);
    if (wc.wr_id != id || wc.status != status)
        check_fail(file, line, "completion of %llu with status %d (vendor %u), expected %llu with %d",
                   (unsigned long long)wc.wr_id, wc.status, wc.vendor_err, (unsigned long long)id, status);
    return wc;
}

void want_err(struct cq *cq, uint64_t id, int status, int vendor, const char *file, int line) {
    struct rnic_wc wc = want_wc(cq, id, status, file, line);
    if ((int)wc.vendor_err != vendor)
        check_fail(file, line, "vendor_err is %u, expected %d", wc.vendor_err, vendor);
}

void want_no_wc(struct cq *cq, const char *file, int line) {
    struct rnic_wc wc;
    if (cq_take(cq, 1, &wc))
        check_fail(file, line, "unexpected completion of %llu with status %d", (unsigned long long)wc.wr_id, wc.status);
}

int take_event(struct end *e) {
    struct rnic_async_event event;
    return event_take(&e->node->nic.events, &event) ? event.event_type : -1;
}

void want_event(struct end *e, int event, const char *file, int line) {
    int got = take_event(e);
    if (got != event)
        check_fail(file, line, "event %d, expected %d", got, event);
}

void fill(uint8_t *p, uint64_t n, uint64_t seed) {
    struct rng r;
    rng_seed(&r, seed);
    for (uint64_t i = 0; i < n; i++)
        p[i] = (uint8_t)(rng_next(&r) >> 56);
}

bool filled(const uint8_t *p, uint64_t n, uint64_t seed) {
    struct rng r;
    rng_seed(&r, seed);
    for (uint64_t i = 0; i < n; i++) {
        if (p[i] != (uint8_t)(rng_next(&r) >> 56))
            return false;
    }
    return true;
}

uint64_t count_of(const struct end *e, int counter) { return e->node->nic.counters.value[counter]; }
