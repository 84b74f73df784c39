/* SPDX-License-Identifier: Apache-2.0
 *
 * Every completion status and asynchronous event of the RC engine, provoked by what an application, a peer or a wire
 * does; how often and when retries go out; what packets that nobody should send lead to.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "fabric.h"
#include "roce/roce.h"
#include "wire/bth.h"

static struct pair p;

#define SIGNALED .send_flags = RNIC_SEND_SIGNALED

static void want_err(struct cq *cq, uint64_t id, int status, int vendor, int line) {
    struct rnic_wc wc = want_wc(cq, id, status, __FILE__, line);
    if ((int)wc.vendor_err != vendor)
        check_fail(__FILE__, line, "vendor_err is %u, expected %d", wc.vendor_err, vendor);
}
#define WANT_ERR(cq, id, status, vendor) want_err(cq, id, RNIC_WC_##status, RNIC_VE_##vendor, __LINE__)

static void want_event(struct end *e, int event, int line) {
    int got = take_event(e);
    if (got != event)
        check_fail(__FILE__, line, "event %d, expected %d", got, event);
}
#define WANT_EVENT(e, event) want_event(e, RNIC_EVENT_##event, __LINE__)
#define WANT_NO_EVENT(e) want_event(e, -1, __LINE__)

/* ---------------------------------------------------------------- the requester's own memory */

/* A faulty element between two good ones: the first completes, the faulty one fails, the third is flushed. */
static void local_fault(struct rnic_send_wr bad, int status, int vendor, int line) {
    post_recv(&p.b, 50, 0, 4096);
    post_recv(&p.b, 51, 0, 4096);
    post_write(&p.a, 1, 0, 0, 3000);
    bad.wr_id = 2;
    bad.wr.rdma.remote_addr = bad.wr.atomic.remote_addr = (uintptr_t)p.b.mem;
    if (bad.opcode >= RNIC_WR_ATOMIC_CMP_AND_SWP)
        bad.wr.atomic.rkey = p.b.mr->pub.rkey;
    else
        bad.wr.rdma.rkey = p.b.mr->pub.rkey;
    post(&p.a, bad);
    post_send(&p.a, 3, 0, 100);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    want_err(p.a.send_cq, 2, status, vendor, line);
    WANT_ERR(p.a.send_cq, 3, WR_FLUSH_ERR, FLUSHED);
    WANT_NONE(p.a.send_cq);
    CHECK_EQ(p.a.qp->state, RNIC_QPS_ERR);
    CHECK_EQ(p.b.qp->state, RNIC_QPS_RTS);
    WANT_NONE(p.b.recv_cq); /* nothing of it reached the peer as a message */
    WANT_NO_EVENT(&p.a);
    WANT_NO_EVENT(&p.b);
}

static void a_bad_local_element_is_LOC_PROT_ERR(void) {
    enum { BAD_LKEY, BEYOND, BEFORE, SECOND, OTHER_PD, READ_ONLY, ATOMIC_READ_ONLY, GONE, CASES };
    static const int vendors[] = {RNIC_VE_SGE_BAD_LKEY, RNIC_VE_SGE_BOUNDS, RNIC_VE_SGE_BOUNDS, RNIC_VE_SGE_BOUNDS,
                                  RNIC_VE_SGE_PD,       RNIC_VE_SGE_ACCESS, RNIC_VE_SGE_ACCESS, RNIC_VE_SGE_BAD_LKEY};
    for (int i = 0; i < CASES; i++) {
        check_note("case %d", i);
        pair_open(&p, .lazy = 1);
        uint8_t mem[256];
        struct pd *pd = i == OTHER_PD ? &p.a.node->other_pd : &p.a.node->pd;
        struct mr *mr = fabric_mr(p.a.node, pd, mem, sizeof mem, 0);
        struct rnic_sge list[2] = {{(uintptr_t)mem, 8, mr->pub.lkey}, {(uintptr_t)mem, 8, mr->pub.lkey}};
        struct rnic_send_wr wr = {.opcode = RNIC_WR_SEND, SIGNALED, .sg_list = list, .num_sge = 1};
        if (i == BAD_LKEY)
            list[0].lkey ^= 0x100;
        if (i == GONE)
            mr_remove(&p.a.node->nic.mrs, mr);
        if (i == BEYOND)
            list[0] = (struct rnic_sge){(uintptr_t)mem + 200, 57, mr->pub.lkey};
        if (i == BEFORE)
            list[0].addr--;
        if (i == SECOND) {
            list[1].length = 257;
            wr.num_sge = 2;
        }
        if (i == READ_ONLY)
            wr.opcode = RNIC_WR_RDMA_READ;
        if (i == ATOMIC_READ_ONLY)
            wr.opcode = RNIC_WR_ATOMIC_FETCH_AND_ADD;
        local_fault(wr, RNIC_WC_LOC_PROT_ERR, vendors[i], __LINE__);
        if (i == GONE)
            free(mr);
        else
            fabric_drop_mr(p.a.node, mr);
        pair_close(&p);
    }
}

static void an_atomic_of_other_than_8_bytes_is_LOC_LEN_ERR(void) {
    for (uint32_t n = 0; n <= 16; n += 4) {
        if (n == 8)
            continue;
        pair_open(&p, .lazy = 1);
        local_fault((struct rnic_send_wr){.opcode = RNIC_WR_ATOMIC_CMP_AND_SWP, SIGNALED, SGL(SGE(&p.a, 0, n))},
                    RNIC_WC_LOC_LEN_ERR, RNIC_VE_BAD_LENGTH, __LINE__);
        pair_close(&p);
    }
}

static void a_read_without_initiator_depth_is_LOC_QP_OP_ERR(void) {
    const int ops[] = {RNIC_WR_RDMA_READ, RNIC_WR_ATOMIC_FETCH_AND_ADD};
    for (int i = 0; i < 2; i++) {
        pair_open(&p, .lazy = 1, .rd_atomic = NONE);
        local_fault((struct rnic_send_wr){.opcode = ops[i], SIGNALED, SGL(SGE(&p.a, 0, 8))}, RNIC_WC_LOC_QP_OP_ERR,
                    RNIC_VE_NO_RD_ATOMIC, __LINE__);
        pair_close(&p);
    }
}

/* ---------------------------------------------------------------- the receiver's memory */

static void a_message_longer_than_its_receive_is_LOC_LEN_ERR(void) {
    const uint32_t room[] = {0, 10, 1023, 1024, 2999};
    for (int i = 0; i < 5; i++) {
        uint32_t n = i < 2 ? room[i] + 1 : 3000;
        check_note("%u bytes into %u", n, room[i]);
        pair_open(&p);
        memset(p.b.mem, 0xEE, 4096);
        memset(p.a.mem, 0x11, 4096);
        post_recv(&p.b, 7, 0, room[i]);
        post_recv(&p.b, 8, 0, 4096);
        post_send(&p.a, 1, 0, n);
        fabric_settle(&p.f);
        WANT_ERR(p.b.recv_cq, 7, LOC_LEN_ERR, RECV_TOO_SMALL);
        WANT_ERR(p.b.recv_cq, 8, WR_FLUSH_ERR, FLUSHED);
        WANT_ERR(p.a.send_cq, 1, REM_INV_REQ_ERR, NAK_INVALID);
        CHECK_EQ(p.b.mem[room[i]], 0xEE);
        CHECK_EQ(p.a.qp->state, RNIC_QPS_ERR);
        CHECK_EQ(p.b.qp->state, RNIC_QPS_ERR);
        pair_close(&p);
    }
}

static void a_receive_into_bad_memory_is_LOC_PROT_ERR_and_REM_OP_ERR(void) {
    for (int i = 0; i < 3; i++) {
        pair_open(&p);
        struct mr *other = fabric_mr(p.b.node, &p.b.node->other_pd, p.b.mem, 4096, ALL_ACCESS);
        struct mr *fixed = fabric_mr(p.b.node, &p.b.node->pd, p.b.mem, 4096, 0);
        struct rnic_sge sge = SGE(&p.b, 0, 4096);
        sge.lkey = i == 0 ? 0x12345678 : i == 1 ? other->pub.lkey : fixed->pub.lkey;
        struct rnic_recv_wr wr = {.wr_id = 7, .sg_list = &sge, .num_sge = 1};
        const struct rnic_recv_wr *bad;
        CHECK_EQ(rq_post(&p.b.qp->rq, &wr, &bad, NULL), 0);
        post_send(&p.a, 1, 0, 2000);
        fabric_settle(&p.f);
        const int vendors[] = {RNIC_VE_SGE_BAD_LKEY, RNIC_VE_SGE_PD, RNIC_VE_SGE_ACCESS};
        want_err(p.b.recv_cq, 7, RNIC_WC_LOC_PROT_ERR, vendors[i], __LINE__);
        WANT_ERR(p.a.send_cq, 1, REM_OP_ERR, NAK_OPERATION);
        fabric_drop_mr(p.b.node, other);
        fabric_drop_mr(p.b.node, fixed);
        pair_close(&p);
    }
}

/* A READ's answer for memory that has gone meanwhile. */
static void an_answer_into_memory_that_has_gone_is_LOC_PROT_ERR(void) {
    pair_open(&p);
    struct mr *mr = fabric_mr(p.a.node, &p.a.node->pd, p.a.mem, 4096, ALL_ACCESS);
    struct rnic_sge sge = {(uintptr_t)p.a.mem, 4000, mr->pub.lkey};
    post(&p.a, (struct rnic_send_wr){
                   .wr_id = 1, .opcode = RNIC_WR_RDMA_READ, SIGNALED, REMOTE(&p.b, 0), .sg_list = &sge, .num_sge = 1});
    fabric_drop_mr(p.a.node, mr);
    fabric_settle(&p.f);
    WANT_ERR(p.a.send_cq, 1, LOC_PROT_ERR, SGE_BAD_LKEY);
    pair_close(&p);
}

/* ---------------------------------------------------------------- keys, bounds, rights */

static void access_fault(int opcode, uint64_t addr, uint32_t rkey, uint32_t n, int vendor, int line) {
    struct rnic_send_wr wr = {.wr_id = 1, .opcode = opcode, SIGNALED, SGL(SGE(&p.a, 0, n))};
    if (opcode >= RNIC_WR_ATOMIC_CMP_AND_SWP) {
        wr.wr.atomic.remote_addr = addr;
        wr.wr.atomic.rkey = rkey;
        wr.wr.atomic.compare_add = 0xEEEEEEEEEEEEEEEE;
    } else {
        wr.wr.rdma.remote_addr = addr;
        wr.wr.rdma.rkey = rkey;
    }
    bool imm = opcode == RNIC_WR_RDMA_WRITE_WITH_IMM;
    post_recv(&p.b, 7, 0, 64);
    memset(p.a.mem, 0x55, 8192);
    memset(p.b.mem, 0xEE, p.b.bytes);
    post(&p.a, wr);
    post_write(&p.a, 2, 0, 0, 8); /* behind it: not executed */
    fabric_settle(&p.f);
    want_err(p.a.send_cq, 1, RNIC_WC_REM_ACCESS_ERR, RNIC_VE_NAK_ACCESS, line);
    WANT_ERR(p.a.send_cq, 2, WR_FLUSH_ERR, FLUSHED);
    want_err(p.b.recv_cq, 7, imm ? RNIC_WC_LOC_ACCESS_ERR : RNIC_WC_WR_FLUSH_ERR, imm ? vendor : RNIC_VE_FLUSHED, line);
    want_event(&p.b, RNIC_EVENT_QP_ACCESS_ERR, line);
    WANT_NO_EVENT(&p.b);
    WANT_NO_EVENT(&p.a);
    CHECK_EQ(p.b.qp->state, RNIC_QPS_ERR);
    CHECK_EQ(COUNTER(&p.b, nak_remote_sent), 1);
    CHECK_EQ(COUNTER(&p.a, nak_remote_received), 1);
    for (uint64_t i = 0; i < p.b.bytes; i++)
        CHECK_EQ(p.b.mem[i], 0xEE);
    for (int i = 0; i < 4096; i++)
        CHECK_EQ(p.a.mem[i], 0x55);
}

static const int remote_ops[] = {RNIC_WR_RDMA_WRITE, RNIC_WR_RDMA_WRITE_WITH_IMM, RNIC_WR_RDMA_READ,
                                 RNIC_WR_ATOMIC_CMP_AND_SWP, RNIC_WR_ATOMIC_FETCH_AND_ADD};
static const uint32_t rights[] = {RNIC_ACCESS_REMOTE_WRITE, RNIC_ACCESS_REMOTE_WRITE, RNIC_ACCESS_REMOTE_READ,
                                  RNIC_ACCESS_REMOTE_ATOMIC, RNIC_ACCESS_REMOTE_ATOMIC};

static void what_a_key_does_not_cover_is_REM_ACCESS_ERR(void) {
    enum { BAD_RKEY, BAD_TAG, BEYOND, WHOLLY_BEYOND, BEFORE, WRAPS, OTHER_PD, MR_RIGHT, QP_RIGHT, GONE, CASES };
    static const int vendors[] = {RNIC_VE_RKEY_BAD,    RNIC_VE_RKEY_BAD,    RNIC_VE_RKEY_BOUNDS, RNIC_VE_RKEY_BOUNDS,
                                  RNIC_VE_RKEY_BOUNDS, RNIC_VE_RKEY_BOUNDS, RNIC_VE_RKEY_PD,     RNIC_VE_RKEY_ACCESS,
                                  RNIC_VE_RKEY_ACCESS, RNIC_VE_RKEY_BAD};
    for (int i = 0; i < CASES; i++) {
        for (int op = 0; op < 5; op++) {
            check_note("case %d, opcode %d", i, remote_ops[op]);
            /* an immediate is known of only with its packet */
            uint32_t others = ALL_ACCESS & ~rights[op], n = op == 1 ? 1000 : op < 3 ? 2500 : 8;
            pair_open(&p, .access = i == QP_RIGHT ? others : ALL_ACCESS);
            struct pd *pd = i == OTHER_PD ? &p.b.node->other_pd : &p.b.node->pd;
            struct mr *mr = fabric_mr(p.b.node, pd, p.b.mem + 4096, 4096, i == MR_RIGHT ? others : ALL_ACCESS);
            uint64_t start = (uintptr_t)p.b.mem + 4096, addr = start;
            uint32_t rkey = mr->pub.rkey;
            rkey ^= i == BAD_RKEY ? 0x10000 : i == BAD_TAG ? 1 : 0;
            addr = i == BEYOND ? start + 4096 - n + 8 : i == WHOLLY_BEYOND ? start + 8192 : addr;
            addr = i == BEFORE ? start - 8 : i == WRAPS ? UINT64_MAX - 7 : addr;
            if (i == GONE)
                mr_remove(&p.b.node->nic.mrs, mr);
            access_fault(remote_ops[op], addr, rkey, n, vendors[i], __LINE__);
            if (i == GONE)
                free(mr);
            else
                fabric_drop_mr(p.b.node, mr);
            pair_close(&p);
        }
    }
}

static void the_first_and_last_byte_of_a_region_are_in_it(void) {
    pair_open(&p, .lazy = 1);
    post_write(&p.a, 1, 0, 0, 1);
    post_write(&p.a, 2, 0, p.b.bytes - 1, 1);
    post_read(&p.a, 3, 0, p.b.bytes - 1500, 1500);
    post_add(&p.a, 4, 0, p.b.bytes - 8, 0);
    post_write(&p.a, 5, 0, p.b.bytes, 0);           /* no bytes, no bounds */
    post_write(&p.a, 6, 0, 0, (uint32_t)p.b.bytes); /* all */
    fabric_settle(&p.f);
    for (uint64_t id = 1; id <= 6; id++)
        WANT(p.a.send_cq, id, SUCCESS);
    pair_close(&p);
}

/* A region that goes while a WRITE or a READ is under way: not a byte more. */
static void a_region_may_go_in_the_middle_of_a_message(void) {
    for (int reads = 0; reads < 2; reads++) {
        pair_open(&p, .budget = 2, .pause = 100 * US, .mtu = RNIC_MTU_256);
        struct mr *mr = fabric_mr(p.b.node, &p.b.node->pd, p.b.mem, 4096, ALL_ACCESS);
        memset(p.a.mem, 0x55, 4096);
        post(&p.a, (struct rnic_send_wr){.wr_id = 1,
                                         .opcode = reads ? RNIC_WR_RDMA_READ : RNIC_WR_RDMA_WRITE,
                                         SIGNALED,
                                         .wr.rdma = {(uintptr_t)p.b.mem, mr->pub.rkey},
                                         SGL(SGE(&p.a, 0, 4096))});
        fabric_run(&p.f, p.f.now + 350 * US);
        fabric_drop_mr(p.b.node, mr);
        fabric_settle(&p.f);
        WANT_ERR(p.a.send_cq, 1, REM_ACCESS_ERR, NAK_ACCESS);
        WANT_EVENT(&p.b, QP_ACCESS_ERR);
        CHECK_EQ((reads ? p.a.mem : p.b.mem)[256], reads ? 0 : 0x55);
        CHECK_EQ((reads ? p.a.mem : p.b.mem)[4095], reads ? 0x55 : 0);
        pair_close(&p);
    }
}

/* ---------------------------------------------------------------- invalid requests */

static void a_misaligned_atomic_is_REM_INV_REQ_ERR(void) {
    for (uint64_t off = 1; off < 8; off++) {
        pair_open(&p);
        post_add(&p.a, 1, 0, off, 1);
        fabric_settle(&p.f);
        WANT_ERR(p.a.send_cq, 1, REM_INV_REQ_ERR, NAK_INVALID);
        WANT_EVENT(&p.b, QP_REQ_ERR);
        for (int i = 0; i < 16; i++)
            CHECK_EQ(p.b.mem[i], 0);
        pair_close(&p);
    }
}

static void more_reads_than_the_responder_grants_is_REM_INV_REQ_ERR(void) {
    pair_open(&p, .dest_rd_atomic = NONE);
    post_read(&p.a, 1, 0, 0, 8);
    fabric_settle(&p.f);
    WANT_ERR(p.a.send_cq, 1, REM_INV_REQ_ERR, NAK_INVALID);
    WANT_EVENT(&p.b, QP_REQ_ERR);
    pair_close(&p);
    pair_open(&p, .rd_atomic = 5, .dest_rd_atomic = 4, .lazy = 100);
    for (uint64_t i = 0; i < 5; i++)
        post_read(&p.a, i, 0, 0, 8);
    fabric_settle(&p.f);
    /* The NAK acknowledges the four before it. */
    for (uint64_t i = 0; i < 4; i++)
        WANT(p.a.send_cq, i, SUCCESS);
    WANT_ERR(p.a.send_cq, 4, REM_INV_REQ_ERR, NAK_INVALID);
    WANT_EVENT(&p.b, QP_REQ_ERR);
    pair_close(&p);
}

/* A packet by hand, from one end to the other: the expected PSN plus a distance. */
struct hand {
    uint8_t opcode;
    uint32_t length; /* of the payload */
    uint32_t dma;    /* reth_len */
    uint8_t syndrome;
    int psn;
};

static void inject(struct end *from, const struct hand *h) {
    uint8_t bytes[8192] = {0};
    const struct roce_opcode *row = roce_opcode(h->opcode);
    const struct rc *rc = rc_of(from->peer->qp);
    uint32_t base = row->mask & OPC_REQUEST ? rc->resp.psn : rc->req.una, pad = -h->length & 3;
    bth_set_opcode(bytes, h->opcode);
    bth_set_m(bytes, 1);
    bth_set_pad(bytes, (uint8_t)pad);
    bth_set_pkey(bytes, 0xFFFF);
    bth_set_dqpn(bytes, from->peer->qp->pub.qp_num);
    bth_set_ackreq(bytes, 1);
    bth_set_psn(bytes, psn_add(base, h->psn));
    if (row->reth) {
        reth_set_va(bytes + row->reth, (uintptr_t)from->peer->mem);
        reth_set_rkey(bytes + row->reth, from->peer->mr->pub.rkey);
        reth_set_len(bytes + row->reth, h->dma);
    }
    if (row->atomic_eth) {
        atmeth_set_va(bytes + row->atomic_eth, (uintptr_t)from->peer->mem);
        atmeth_set_rkey(bytes + row->atomic_eth, from->peer->mr->pub.rkey);
    }
    if (row->aeth)
        aeth_set_syndrome(bytes + row->aeth, h->syndrome);
    fabric_inject(from->node, &from->qp->flow, bytes, row->header + h->length + pad);
}

static void requests_that_contradict_are_NAK_invalid_request(void) {
    static const struct hand cases[][2] = {
        /* a first packet, or none, and one that does not follow from it */
        {{0}, {ROCE_RC_SEND_MIDDLE, 1024, 0, 0, 0}},
        {{0}, {ROCE_RC_SEND_LAST, 8, 0, 0, 0}},
        {{0}, {ROCE_RC_SEND_LAST_WITH_IMM, 8, 0, 0, 0}},
        {{0}, {ROCE_RC_WRITE_MIDDLE, 1024, 0, 0, 0}},
        {{0}, {ROCE_RC_WRITE_LAST, 8, 0, 0, 0}},
        {{0}, {ROCE_RC_WRITE_LAST_WITH_IMM, 8, 0, 0, 0}},
        {{ROCE_RC_SEND_FIRST, 1024, 0, 0, 0}, {ROCE_RC_SEND_FIRST, 1024, 0, 0, 0}},
        {{ROCE_RC_SEND_FIRST, 1024, 0, 0, 0}, {ROCE_RC_SEND_ONLY, 8, 0, 0, 0}},
        {{ROCE_RC_SEND_FIRST, 1024, 0, 0, 0}, {ROCE_RC_WRITE_MIDDLE, 1024, 0, 0, 0}},
        {{ROCE_RC_SEND_FIRST, 1024, 0, 0, 0}, {ROCE_RC_WRITE_ONLY, 8, 8, 0, 0}},
        {{ROCE_RC_SEND_FIRST, 1024, 0, 0, 0}, {ROCE_RC_READ_REQUEST, 0, 8, 0, 0}},
        {{ROCE_RC_SEND_FIRST, 1024, 0, 0, 0}, {ROCE_RC_FETCH_ADD, 0, 0, 0, 0}},
        {{ROCE_RC_WRITE_FIRST, 1024, 2048, 0, 0}, {ROCE_RC_SEND_LAST, 1024, 0, 0, 0}},
        {{ROCE_RC_WRITE_FIRST, 1024, 2048, 0, 0}, {ROCE_RC_WRITE_FIRST, 1024, 2048, 0, 0}},
        {{ROCE_RC_WRITE_FIRST, 1024, 2048, 0, 0}, {ROCE_RC_READ_REQUEST, 0, 8, 0, 0}},
        /* lengths */
        {{0}, {ROCE_RC_SEND_FIRST, 1023, 0, 0, 0}},
        {{0}, {ROCE_RC_SEND_FIRST, 0, 0, 0, 0}},
        {{0}, {ROCE_RC_SEND_ONLY, 1025, 0, 0, 0}},
        {{ROCE_RC_SEND_FIRST, 1024, 0, 0, 0}, {ROCE_RC_SEND_MIDDLE, 1000, 0, 0, 0}},
        {{ROCE_RC_SEND_FIRST, 1024, 0, 0, 0}, {ROCE_RC_SEND_LAST, 0, 0, 0, 0}},
        {{ROCE_RC_SEND_FIRST, 1024, 0, 0, 0}, {ROCE_RC_SEND_LAST, 1025, 0, 0, 0}},
        {{0}, {ROCE_RC_WRITE_FIRST, 1024, 1024, 0, 0}},
        {{0}, {ROCE_RC_WRITE_FIRST, 1024, 8, 0, 0}},
        {{0}, {ROCE_RC_WRITE_ONLY, 8, 9, 0, 0}},
        {{0}, {ROCE_RC_WRITE_ONLY, 8, 7, 0, 0}},
        {{0}, {ROCE_RC_WRITE_ONLY_WITH_IMM, 8, 0, 0, 0}},
        {{ROCE_RC_WRITE_FIRST, 1024, 2000, 0, 0}, {ROCE_RC_WRITE_MIDDLE, 1024, 0, 0, 0}},
        {{ROCE_RC_WRITE_FIRST, 1024, 2000, 0, 0}, {ROCE_RC_WRITE_LAST, 975, 0, 0, 0}},
        {{ROCE_RC_WRITE_FIRST, 1024, 2000, 0, 0}, {ROCE_RC_WRITE_LAST, 977, 0, 0, 0}},
        {{0}, {ROCE_RC_READ_REQUEST, 4, 8, 0, 0}},
        {{0}, {ROCE_RC_READ_REQUEST, 0, 0x80000001, 0, 0}},
        {{0}, {ROCE_RC_FETCH_ADD, 4, 0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct hand *first = &cases[i][0], *second = &cases[i][1];
        check_note("case %zu", i);
        pair_open(&p);
        post_recv(&p.b, 1, 8192, 8192);
        if (first->length) {
            inject(&p.a, first);
            fabric_settle(&p.f);
            CHECK_EQ(p.b.qp->state, RNIC_QPS_RTS);
        }
        inject(&p.a, second);
        fabric_settle(&p.f);
        CHECK_EQ(p.b.qp->state, RNIC_QPS_ERR);
        WANT_EVENT(&p.b, QP_REQ_ERR);
        CHECK_EQ(COUNTER(&p.b, nak_remote_sent), 1);
        const struct record *last = &p.f.log[p.f.logged - 1];
        while (last->arrived || last->from == 0)
            last--;
        CHECK_EQ(last->syndrome, AETH_NAK_INVALID_REQUEST);
        struct rnic_wc wc = TAKE(p.b.recv_cq);
        CHECK(wc.status == RNIC_WC_REM_INV_REQ_ERR || wc.status == RNIC_WC_WR_FLUSH_ERR);
        WANT_NONE(p.b.recv_cq);
        pair_close(&p);
    }
}

/* ---------------------------------------------------------------- responses by hand */

static void responses_that_contradict_are_BAD_RESP_ERR(void) {
    static const struct {
        int op; /* outstanding */
        struct hand hand;
    } cases[] = {
        {RNIC_WR_RDMA_READ, {ROCE_RC_READ_RESP_ONLY, 99, 0, 0, 0}},
        {RNIC_WR_RDMA_READ, {ROCE_RC_READ_RESP_ONLY, 101, 0, 0, 0}},
        {RNIC_WR_RDMA_READ, {ROCE_RC_READ_RESP_FIRST, 1024, 0, 0, 0}},
        {RNIC_WR_RDMA_READ, {ROCE_RC_ATOMIC_ACK, 0, 0, 0, 0}},
        {RNIC_WR_ATOMIC_FETCH_AND_ADD, {ROCE_RC_READ_RESP_ONLY, 8, 0, 0, 0}},
        {RNIC_WR_RDMA_WRITE, {ROCE_RC_READ_RESP_ONLY, 100, 0, 0, 0}},
        {RNIC_WR_RDMA_WRITE, {ROCE_RC_ATOMIC_ACK, 0, 0, 0, 0}},
        {RNIC_WR_RDMA_WRITE, {ROCE_RC_ACK, 0, 0, AETH_NAK | 4, 0}}, /* of reliable datagrams */
        {RNIC_WR_RDMA_WRITE, {ROCE_RC_ACK, 0, 0, AETH_NAK | 31, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_note("case %zu", i);
        pair_open(&p, .latency = MS);
        memset(p.a.mem, 0x55, 200);
        struct rnic_send_wr wr = {.wr_id = 1, .opcode = cases[i].op, SIGNALED, REMOTE(&p.b, 0), SGL(SGE(&p.a, 0, 100))};
        if (cases[i].op == RNIC_WR_ATOMIC_FETCH_AND_ADD)
            post_add(&p.a, 1, 0, 0, 0);
        else
            post(&p.a, wr);
        post_write(&p.a, 2, 0, 0, 10);
        inject(&p.b, &cases[i].hand);
        fabric_settle(&p.f);
        WANT_ERR(p.a.send_cq, 1, BAD_RESP_ERR, BAD_RESPONSE);
        WANT_ERR(p.a.send_cq, 2, WR_FLUSH_ERR, FLUSHED);
        CHECK_EQ(p.a.qp->state, RNIC_QPS_ERR);
        pair_close(&p);
    }
}

/* Ghosts, and answers to what was never sent, are counted and change nothing. */
static void responses_to_nothing_are_dropped(void) {
    static const struct hand ghosts[] = {{ROCE_RC_ACK, 0, 0, 0, -1},
                                         {ROCE_RC_ACK, 0, 0, 0, -1000},
                                         {ROCE_RC_ACK, 0, 0, 0, 1},
                                         {ROCE_RC_ACK, 0, 0, 0, 0x7FFFFF},
                                         {ROCE_RC_ACK, 0, 0, AETH_NAK_PSN_SEQ, 5},
                                         {ROCE_RC_ACK, 0, 0, AETH_NAK_REMOTE_ACCESS, -1},
                                         {ROCE_RC_ACK, 0, 0, AETH_RNR | 3, 1},
                                         {ROCE_RC_READ_RESP_ONLY, 9, 0, 0, -1},
                                         {ROCE_RC_READ_RESP_MIDDLE, 1024, 0, 0, 2},
                                         {ROCE_RC_ATOMIC_ACK, 0, 0, 0, 3}};
    const uint32_t n = sizeof ghosts / sizeof *ghosts;
    for (int outstanding = 0; outstanding < 2; outstanding++) {
        pair_open(&p, .latency = MS);
        if (outstanding)
            post_write(&p.a, 1, 0, 0, 10);
        for (uint32_t i = 0; i < n; i++)
            inject(&p.b, &ghosts[i]);
        fabric_run(&p.f, p.f.now + MS + 500 * US);
        CHECK_EQ(COUNTER(&p.a, drop_bad_psn), n);
        CHECK_EQ(p.a.qp->state, RNIC_QPS_RTS);
        WANT_NONE(p.a.send_cq);
        fabric_settle(&p.f);
        if (outstanding)
            WANT(p.a.send_cq, 1, SUCCESS);
        pair_close(&p);
    }
}

/* ---------------------------------------------------------------- retries, exactly */

static enum verdict lose_all(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)nth;
    (void)bth;
    return from == arg ? LOSE : PASS;
}

static void a_silent_peer_is_RETRY_EXC_ERR_after_retry_cnt_retries(void) {
    for (uint8_t count = 0; count <= 7; count++) {
        for (uint8_t timeout = 8; timeout <= 20; timeout += 4) {
            check_note("retry_cnt %u, timeout %u", count, timeout);
            pair_open(&p, .retry_cnt = count ? count : NONE, .timeout = timeout);
            CHECK_EQ(move(p.b.qp, RNIC_QPS_RESET), 0);
            uint64_t start = p.f.now;
            post_write(&p.a, 1, 0, 0, 10);
            post_recv(&p.a, 2, 0, 10);
            post_write(&p.a, 3, 0, 0, 10);
            fabric_settle(&p.f);
            WANT_ERR(p.a.send_cq, 1, RETRY_EXC_ERR, TIMEOUT);
            WANT_ERR(p.a.send_cq, 3, WR_FLUSH_ERR, FLUSHED);
            WANT_ERR(p.a.recv_cq, 2, WR_FLUSH_ERR, FLUSHED);
            CHECK_EQ(p.f.now - start, (count + 1) * (4096ull << timeout));
            CHECK_EQ(COUNTER(&p.a, timeouts), count + 1);
            CHECK_EQ(COUNTER(&p.b, drop_bad_state) > count, 1);
            pair_close(&p);
        }
    }
}

/* The IBA allows a timer to be off: then only probes go out, and the queue pair waits. */
static void timeout_0_waits_forever(void) {
    pair_open(&p, .timeout = NONE);
    p.f.judge = lose_all;
    p.f.judge_arg = p.a.node;
    post_write(&p.a, 1, 0, 0, 10);
    fabric_settle(&p.f);
    WANT_NONE(p.a.send_cq);
    CHECK_EQ(p.a.qp->state, RNIC_QPS_RTS);
    CHECK(fabric_count(&p.f, p.a.node, 0, -1) <= 1 + PROBES);
    pair_close(&p);
}

static enum verdict lose_middle(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)arg;
    (void)from;
    (void)nth;
    return bth[0] == ROCE_RC_WRITE_MIDDLE ? LOSE : PASS;
}

static void a_packet_that_never_passes_is_RETRY_EXC_ERR(void) {
    for (uint8_t count = 0; count <= 7; count++) {
        check_note("retry_cnt %u", count);
        pair_open(&p, .retry_cnt = count ? count : NONE, .latency = 100 * US);
        p.f.judge = lose_middle;
        post_write(&p.a, 1, 0, 0, 3000);
        fabric_settle(&p.f);
        struct rnic_wc wc = WANT(p.a.send_cq, 1, RETRY_EXC_ERR);
        CHECK(wc.vendor_err == RNIC_VE_SEQ_RETRY || wc.vendor_err == RNIC_VE_TIMEOUT);
        CHECK(fabric_count(&p.f, p.a.node, 0, ROCE_RC_WRITE_MIDDLE) >= count + 1u);
        CHECK_EQ(fabric_count(&p.f, p.a.node, 0, ROCE_RC_WRITE_FIRST), 1); /* acknowledged by the first NAK */
        pair_close(&p);
    }
}

static const double rnr_ms[32] = {655.36, 0.01,  0.02,  0.03,  0.04,  0.06,   0.08,   0.12,   0.16,   0.24,  0.32,
                                  0.48,   0.64,  0.96,  1.28,  1.92,  2.56,   3.84,   5.12,   7.68,   10.24, 15.36,
                                  20.48,  30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52};

static void no_receive_is_RNR_RETRY_EXC_ERR_after_rnr_retry_retries(void) {
    for (uint8_t timer = 0; timer < 32; timer++) {
        uint8_t count = timer % 7;
        check_note("rnr_retry %u, min_rnr_timer %u", count, timer);
        pair_open(&p, .rnr_retry = count ? count : NONE, .min_rnr_timer = timer ? timer : NONE);
        uint64_t start = p.f.now;
        if (timer & 1)
            post_send(&p.a, 1, 0, 10);
        else
            post(&p.a, (struct rnic_send_wr){.wr_id = 1,
                                             .opcode = RNIC_WR_RDMA_WRITE_WITH_IMM,
                                             SIGNALED,
                                             REMOTE(&p.b, 0),
                                             SGL(SGE(&p.a, 0, 10))});
        post_send(&p.a, 2, 0, 10);
        fabric_settle(&p.f);
        WANT_ERR(p.a.send_cq, 1, RNR_RETRY_EXC_ERR, RNR);
        WANT_ERR(p.a.send_cq, 2, WR_FLUSH_ERR, FLUSHED);
        CHECK_EQ(COUNTER(&p.b, rnr_nak_sent), count + 1);
        CHECK_EQ(COUNTER(&p.a, rnr_nak_received), count + 1);
        CHECK_EQ(COUNTER(&p.a, timeouts), 0);
        uint64_t wait = (uint64_t)(rnr_ms[timer] * 1000000 + 0.5);
        CHECK_EQ(p.f.now - start, 20 * US + count * (wait + 20 * US));
        CHECK_EQ(p.b.qp->state, RNIC_QPS_RTS); /* the responder does not mind */
        pair_close(&p);
    }
}

static void rnr_retry_7_waits_for_the_receive(void) {
    pair_open(&p, .min_rnr_timer = 1, .wr = 16);
    for (uint64_t i = 0; i < 8; i++)
        post_send(&p.a, i, 0, 3000);
    fabric_run(&p.f, p.f.now + 50 * MS);
    CHECK(COUNTER(&p.b, rnr_nak_sent) > 1000);
    CHECK(COUNTER(&p.a, requests_resent) < 2 * 3 * COUNTER(&p.b, rnr_nak_sent)); /* one message, not eight */
    WANT_NONE(p.a.send_cq);
    for (uint64_t i = 0; i < 8; i++)
        post_recv(&p.b, i, 0, 3000);
    fabric_settle(&p.f);
    for (uint64_t i = 0; i < 8; i++)
        WANT(p.a.send_cq, i, SUCCESS);
    pair_close(&p);
}

static enum verdict double_naks(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)arg;
    (void)nth;
    return from == &from->fabric->node[1] && bth[0] == ROCE_RC_ACK ? TWICE : PASS;
}

/* One RNR NAK, however often the wire repeats it, is one retry. */
static void a_doubled_RNR_NAK_counts_once(void) {
    pair_open(&p, .rnr_retry = 3, .min_rnr_timer = 5);
    p.f.judge = double_naks;
    post_send(&p.a, 1, 0, 10);
    fabric_run(&p.f, p.f.now + 150 * US);
    CHECK_EQ(p.a.qp->state, RNIC_QPS_RTS);
    CHECK_EQ(COUNTER(&p.b, rnr_nak_sent), 2);
    post_recv(&p.b, 1, 0, 10);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    pair_close(&p);
}

/* Progress gives all retries back. */
static void retries_are_counted_from_the_last_progress(void) {
    pair_open(&p, .rnr_retry = 2, .min_rnr_timer = 5, .wr = 32);
    for (uint64_t i = 0; i < 20; i++)
        post_send(&p.a, i, 0, 10);
    for (uint64_t i = 0; i < 20; i++) { /* two RNR NAKs before each */
        uint64_t naks = COUNTER(&p.b, rnr_nak_sent);
        while (COUNTER(&p.b, rnr_nak_sent) < naks + 2)
            CHECK(fabric_step(&p.f, NEVER));
        post_recv(&p.b, i, 0, 10);
        while (!cq_take(p.b.recv_cq, 1, &(struct rnic_wc){0}))
            CHECK(fabric_step(&p.f, NEVER));
    }
    fabric_settle(&p.f);
    for (uint64_t i = 0; i < 20; i++)
        WANT(p.a.send_cq, i, SUCCESS);
    pair_close(&p);
}

/* ---------------------------------------------------------------- flushing, events */

static void what_is_posted_is_flushed_in_order(void) {
    pair_open(&p);
    p.f.judge = lose_all;
    p.f.judge_arg = p.a.node;
    for (uint64_t i = 0; i < 10; i++) {
        post(&p.a, (struct rnic_send_wr){.wr_id = i, .opcode = RNIC_WR_RDMA_WRITE, REMOTE(&p.b, 0)}); /* unsignaled */
        post_recv(&p.a, 100 + i, 0, 10);
    }
    CHECK_EQ(move(p.a.qp, RNIC_QPS_ERR), 0);
    for (uint64_t i = 0; i < 10; i++) {
        WANT_ERR(p.a.send_cq, i, WR_FLUSH_ERR, FLUSHED);
        WANT_ERR(p.a.recv_cq, 100 + i, WR_FLUSH_ERR, FLUSHED);
    }
    post_read(&p.a, 20, 0, 0, 10); /* and what is posted later, at once */
    post_recv(&p.a, 21, 0, 10);
    WANT_ERR(p.a.send_cq, 20, WR_FLUSH_ERR, FLUSHED);
    WANT_ERR(p.a.recv_cq, 21, WR_FLUSH_ERR, FLUSHED);
    WANT_NO_EVENT(&p.a); /* the application knows */
    fabric_settle(&p.f);
    WANT_NONE(p.a.send_cq);
    pair_close(&p);
}

static void a_queue_pair_in_error_executes_nothing(void) {
    pair_open(&p, .retry_cnt = 1, .timeout = 8);
    post_recv(&p.b, 1, 0, 100);
    CHECK_EQ(move(p.b.qp, RNIC_QPS_ERR), 0);
    WANT(p.b.recv_cq, 1, WR_FLUSH_ERR);
    memset(p.a.mem, 0x55, 100);
    post_write(&p.a, 1, 0, 0, 100);
    post_add(&p.a, 2, 0, 0, 1);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, RETRY_EXC_ERR);
    CHECK_EQ(p.b.mem[0], 0);
    CHECK_EQ(fabric_count(&p.f, p.b.node, 0, -1), 0);
    CHECK(COUNTER(&p.b, drop_bad_state) >= 4);
    pair_close(&p);
}

static void a_full_completion_queue_is_an_error_of_its_own(void) {
    pair_open(&p, .cqe = 4);
    for (uint64_t i = 0; i < 6; i++)
        post_recv(&p.b, i, 0, 10);
    for (uint64_t i = 0; i < 6; i++)
        post(&p.a, (struct rnic_send_wr){.opcode = RNIC_WR_SEND});
    fabric_settle(&p.f);
    for (uint64_t i = 0; i < 4; i++)
        WANT(p.b.recv_cq, i, SUCCESS);
    WANT_NONE(p.b.recv_cq);
    WANT_EVENT(&p.b, CQ_ERR);
    WANT_EVENT(&p.b, QP_FATAL);
    WANT_NO_EVENT(&p.b);
    CHECK_EQ(p.b.qp->state, RNIC_QPS_ERR);
    pair_close(&p);
}

static void the_first_packet_in_RTR_is_COMM_EST(void) {
    struct options o = {.lazy = 1};
    pair_open_options(&p, &o);
    struct rnic_qp_attr attr = pair_attr(&p.b, &o);
    CHECK_EQ(move(p.b.qp, RNIC_QPS_RESET), 0);
    attr.qp_state = RNIC_QPS_INIT;
    CHECK_EQ(fabric_modify(p.b.qp, &attr, mask_init, NULL), 0);
    attr.qp_state = RNIC_QPS_RTR;
    CHECK_EQ(fabric_modify(p.b.qp, &attr, mask_rtr, NULL), 0);
    post_recv(&p.b, 1, 0, 100);
    post_send(&p.a, 1, 0, 50);
    post_read(&p.a, 2, 0, 0, 50); /* a responder answers in RTR */
    post_write(&p.a, 3, 0, 0, 50);
    fabric_settle(&p.f);
    WANT(p.b.recv_cq, 1, SUCCESS);
    for (uint64_t i = 1; i <= 3; i++)
        WANT(p.a.send_cq, i, SUCCESS);
    WANT_EVENT(&p.b, COMM_EST);
    WANT_NO_EVENT(&p.b);
    pair_close(&p);
}

/* ---------------------------------------------------------------- order of things */

static enum verdict lose_first_ack(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    int *lost = arg;
    (void)nth;
    return from == &from->fabric->node[1] && bth[0] == ROCE_RC_ACK && (*lost)-- > 0 ? LOSE : PASS;
}

/* Memory may go when its message is acknowledged, not before; when it has gone a repetition cannot be made.  An
 * acknowledge that comes late still wins. */
static void memory_that_goes_before_the_ACK_fails_the_repetition_alone(void) {
    for (int late = 0; late < 2; late++) {
        check_note("late %d", late);
        int lost = 1;
        pair_open(&p, .lazy = 1);
        p.f.judge = lose_first_ack;
        p.f.judge_arg = &lost;
        struct mr *mr = fabric_mr(p.a.node, &p.a.node->pd, p.a.mem, 4096, 0);
        struct rnic_sge sge = {(uintptr_t)p.a.mem, 3000, mr->pub.lkey};
        post(&p.a,
             (struct rnic_send_wr){
                 .wr_id = 1, .opcode = RNIC_WR_RDMA_WRITE, SIGNALED, REMOTE(&p.b, 0), .sg_list = &sge, .num_sge = 1});
        fabric_run(&p.f, p.f.now + 100 * US);
        fabric_drop_mr(p.a.node, mr);
        if (late) {
            struct hand ack = {ROCE_RC_ACK, 0, 0, 31, 2};
            inject(&p.b, &ack);
        }
        post_write(&p.a, 2, 0, 4096, 10);
        fabric_settle(&p.f);
        if (late) {
            WANT(p.a.send_cq, 1, SUCCESS);
            WANT(p.a.send_cq, 2, SUCCESS);
        } else { /* the next WRITE's ACK acknowledges both, before any timer */
            WANT(p.a.send_cq, 1, SUCCESS);
            WANT(p.a.send_cq, 2, SUCCESS);
        }
        pair_close(&p);
    }
}

static void a_probe_of_memory_that_has_gone_fails_the_message(void) {
    pair_open(&p);
    p.f.judge = lose_all;
    p.f.judge_arg = p.a.node;
    struct mr *mr = fabric_mr(p.a.node, &p.a.node->pd, p.a.mem, 4096, 0);
    struct rnic_sge sge = {(uintptr_t)p.a.mem, 3000, mr->pub.lkey};
    post(&p.a, (struct rnic_send_wr){
                   .wr_id = 1, .opcode = RNIC_WR_RDMA_WRITE, SIGNALED, REMOTE(&p.b, 0), .sg_list = &sge, .num_sge = 1});
    post_write(&p.a, 2, 0, 0, 10);
    fabric_drop_mr(p.a.node, mr);
    fabric_settle(&p.f);
    WANT_ERR(p.a.send_cq, 1, LOC_PROT_ERR, SGE_BAD_LKEY);
    WANT_ERR(p.a.send_cq, 2, WR_FLUSH_ERR, FLUSHED);
    CHECK_EQ(p.a.qp->state, RNIC_QPS_ERR);
    pair_close(&p);
}

/* The failed element stands behind others that are only acknowledged later, by answers to their first sending. */
static void an_ACK_for_what_could_not_be_repeated_is_success(void) {
    pair_open(&p, .latency = 2 * MS, .timeout = 8, .lazy = 1);
    struct mr *mr = fabric_mr(p.a.node, &p.a.node->pd, p.a.mem, 4096, 0);
    struct rnic_sge sge = {(uintptr_t)p.a.mem, 3000, mr->pub.lkey};
    post_write(&p.a, 1, 0, 0, 10);
    post(&p.a, (struct rnic_send_wr){
                   .wr_id = 2, .opcode = RNIC_WR_RDMA_WRITE, SIGNALED, REMOTE(&p.b, 0), .sg_list = &sge, .num_sge = 1});
    post_write(&p.a, 3, 0, 0, 10);
    fabric_run(&p.f, p.f.now + US);
    fabric_drop_mr(p.a.node, mr);
    fabric_settle(&p.f); /* the timer goes off before the first answer */
    CHECK(COUNTER(&p.a, timeouts) >= 1);
    WANT(p.a.send_cq, 1, SUCCESS);
    WANT(p.a.send_cq, 2, SUCCESS);
    WANT(p.a.send_cq, 3, SUCCESS);
    CHECK_EQ(p.a.qp->state, RNIC_QPS_RTS);
    pair_close(&p);
}

/* A READ whose answer has arrived may come again from the wire, when its region has gone: nobody waits for that. */
static void a_late_duplicate_of_a_READ_whose_region_has_gone_is_dropped(void) {
    pair_open(&p);
    struct mr *mr = fabric_mr(p.b.node, &p.b.node->pd, p.b.mem, 4096, ALL_ACCESS);
    post(&p.a, (struct rnic_send_wr){.wr_id = 1,
                                     .opcode = RNIC_WR_RDMA_READ,
                                     SIGNALED,
                                     .wr.rdma = {(uintptr_t)p.b.mem, mr->pub.rkey},
                                     SGL(SGE(&p.a, 0, 100))});
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    uint8_t again[BTH_BYTES + RETH_BYTES] = {0};
    bth_set_opcode(again, ROCE_RC_READ_REQUEST);
    bth_set_pkey(again, 0xFFFF);
    bth_set_dqpn(again, p.b.qp->pub.qp_num);
    bth_set_psn(again, 0x123456);
    reth_set_va(again + BTH_BYTES, (uintptr_t)p.b.mem);
    reth_set_rkey(again + BTH_BYTES, mr->pub.rkey);
    reth_set_len(again + BTH_BYTES, 100);
    fabric_inject(p.a.node, &p.a.qp->flow, again, sizeof again);
    fabric_settle(&p.f);
    CHECK_EQ(COUNTER(&p.b, responses_sent), 2);
    fabric_drop_mr(p.b.node, mr);
    fabric_inject(p.a.node, &p.a.qp->flow, again, sizeof again);
    fabric_settle(&p.f);
    CHECK_EQ(p.b.qp->state, RNIC_QPS_RTS);
    CHECK_EQ(COUNTER(&p.b, drop_duplicate), 1);
    post_write(&p.a, 2, 0, 0, 10);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 2, SUCCESS);
    pair_close(&p);
}

static uint32_t psn_of_last(const struct node *from, int opcode) {
    uint32_t psn = UINT32_MAX;
    for (uint32_t i = 0; i < p.f.logged; i++) {
        const struct record *r = &p.f.log[i];
        if (!r->arrived && r->from == from - p.f.node && r->opcode == opcode)
            psn = r->psn;
    }
    return psn;
}

/* A READ or an atomic is acknowledged by its response alone.  There are requesters that take an ACK with its PSN for its
 * end, and complete it without the data. */
static void the_ACK_of_a_duplicate_names_no_READ_or_atomic(void) {
    for (int atomic = 0; atomic <= 1; atomic++) {
        pair_open(&p);
        uint32_t psn = rc_of(p.b.qp)->resp.psn;
        post_write(&p.a, 1, 0, 0, 2000); /* two packets */
        if (atomic)
            post_add(&p.a, 2, 0, 0, 1);
        else
            post_read(&p.a, 2, 0, 0, 100);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 1, SUCCESS);
        WANT(p.a.send_cq, 2, SUCCESS);
        const struct hand again = {ROCE_RC_WRITE_FIRST, 1024, 2000, 0, -3};
        inject(&p.a, &again);
        fabric_settle(&p.f);
        CHECK_EQ(COUNTER(&p.b, duplicate_requests), 1);
        CHECK_EQ(psn_of_last(p.b.node, ROCE_RC_ACK), psn_add(psn, 1));
        pair_close(&p);
    }
}

/* A NAK that waits for its turn while the expected packet comes has nothing to say any more, but the ACK has. */
static void a_NAK_that_was_overtaken_is_not_sent(void) {
    pair_open(&p, .lazy = 1);
    struct rc *rc = rc_of(p.b.qp);
    p.b.node->lazy = 50 * US; /* the next packets come in one batch */
    const struct hand batch[] = {{ROCE_RC_WRITE_ONLY, 4, 4, 0, 1}, {ROCE_RC_WRITE_ONLY, 4, 4, 0, 0}};
    uint32_t psn = rc->resp.psn;
    inject(&p.a, &batch[0]);
    inject(&p.a, &batch[1]);
    fabric_run(&p.f, p.f.now + 20 * US);
    const struct hand repeated = {ROCE_RC_WRITE_ONLY, 4, 4, 0, 0};
    CHECK_EQ(rc->resp.psn, psn_add(psn, 1));
    inject(&p.a, &repeated);
    fabric_settle(&p.f);
    CHECK_EQ(rc->resp.psn, psn_add(psn, 2));
    CHECK_EQ(COUNTER(&p.b, nak_seq_sent), 0);
    CHECK_EQ(COUNTER(&p.b, acks_sent), 1);
    /* the same with a receive that comes in time */
    const struct hand send = {ROCE_RC_SEND_ONLY, 4, 0, 0, 0};
    inject(&p.a, &send);
    fabric_run(&p.f, p.f.now + 15 * US);
    post_recv(&p.b, 1, 0, 4);
    inject(&p.a, &send);
    fabric_settle(&p.f);
    WANT(p.b.recv_cq, 1, SUCCESS);
    CHECK_EQ(COUNTER(&p.b, rnr_nak_sent), 0);
    CHECK_EQ(COUNTER(&p.b, acks_sent), 2);
    pair_close(&p);
}

int main(void) {
    RUN(a_bad_local_element_is_LOC_PROT_ERR);
    RUN(an_atomic_of_other_than_8_bytes_is_LOC_LEN_ERR);
    RUN(a_read_without_initiator_depth_is_LOC_QP_OP_ERR);
    RUN(a_message_longer_than_its_receive_is_LOC_LEN_ERR);
    RUN(a_receive_into_bad_memory_is_LOC_PROT_ERR_and_REM_OP_ERR);
    RUN(an_answer_into_memory_that_has_gone_is_LOC_PROT_ERR);
    RUN(what_a_key_does_not_cover_is_REM_ACCESS_ERR);
    RUN(the_first_and_last_byte_of_a_region_are_in_it);
    RUN(a_region_may_go_in_the_middle_of_a_message);
    RUN(a_misaligned_atomic_is_REM_INV_REQ_ERR);
    RUN(more_reads_than_the_responder_grants_is_REM_INV_REQ_ERR);
    RUN(requests_that_contradict_are_NAK_invalid_request);
    RUN(responses_that_contradict_are_BAD_RESP_ERR);
    RUN(responses_to_nothing_are_dropped);
    RUN(a_silent_peer_is_RETRY_EXC_ERR_after_retry_cnt_retries);
    RUN(timeout_0_waits_forever);
    RUN(a_packet_that_never_passes_is_RETRY_EXC_ERR);
    RUN(no_receive_is_RNR_RETRY_EXC_ERR_after_rnr_retry_retries);
    RUN(rnr_retry_7_waits_for_the_receive);
    RUN(a_doubled_RNR_NAK_counts_once);
    RUN(retries_are_counted_from_the_last_progress);
    RUN(what_is_posted_is_flushed_in_order);
    RUN(a_queue_pair_in_error_executes_nothing);
    RUN(a_full_completion_queue_is_an_error_of_its_own);
    RUN(the_first_packet_in_RTR_is_COMM_EST);
    RUN(memory_that_goes_before_the_ACK_fails_the_repetition_alone);
    RUN(a_probe_of_memory_that_has_gone_fails_the_message);
    RUN(an_ACK_for_what_could_not_be_repeated_is_success);
    RUN(a_late_duplicate_of_a_READ_whose_region_has_gone_is_dropped);
    RUN(the_ACK_of_a_duplicate_names_no_READ_or_atomic);
    RUN(a_NAK_that_was_overtaken_is_not_sent);
    return check_done();
}
