/* SPDX-License-Identifier: Apache-2.0
 *
 * What memory, keys and rights do not allow, at both ends: the status of every such fault, and that nothing of it is done.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "fabric.h"
#include "roce/roce.h"

static struct pair p;

#define SIGNALED .send_flags = RNIC_SEND_SIGNALED

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
    want_err(p.a.send_cq, 2, status, vendor, __FILE__, line);
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
        want_err(p.b.recv_cq, 7, RNIC_WC_LOC_PROT_ERR, vendors[i], __FILE__, __LINE__);
        WANT_ERR(p.a.send_cq, 1, REM_OP_ERR, NAK_OPERATION);
        fabric_drop_mr(p.b.node, other);
        fabric_drop_mr(p.b.node, fixed);
        pair_close(&p);
    }
}

static void a_receive_that_fails_says_what_it_was_for(void) {
    for (int imm = 0; imm < 2; imm++) {
        pair_open(&p);
        post_recv(&p.b, 7, 0, 64);
        cq_arm(p.b.recv_cq, true);
        post(&p.a, (struct rnic_send_wr){.wr_id = 1,
                                         .opcode = imm ? RNIC_WR_RDMA_WRITE_WITH_IMM : RNIC_WR_SEND,
                                         SIGNALED,
                                         SGL(SGE(&p.a, 0, 100)),
                                         .wr.rdma = {(uintptr_t)p.b.mem, p.b.mr->pub.rkey ^ 0x10000}});
        fabric_settle(&p.f);
        struct rnic_wc wc = TAKE(p.b.recv_cq);
        CHECK_EQ(wc.status, imm ? RNIC_WC_LOC_ACCESS_ERR : RNIC_WC_LOC_LEN_ERR);
        CHECK_EQ(wc.opcode, imm ? RNIC_WCO_RECV_RDMA_WITH_IMM : RNIC_WCO_RECV);
        CHECK(channel_take(&p.b.channel) == p.b.recv_cq); /* whoever waits for solicited ones alone */
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
    want_err(p.a.send_cq, 1, RNIC_WC_REM_ACCESS_ERR, RNIC_VE_NAK_ACCESS, __FILE__, line);
    WANT_ERR(p.a.send_cq, 2, WR_FLUSH_ERR, FLUSHED);
    want_err(p.b.recv_cq, 7, imm ? RNIC_WC_LOC_ACCESS_ERR : RNIC_WC_WR_FLUSH_ERR, imm ? vendor : RNIC_VE_FLUSHED,
             __FILE__, line);
    want_event(&p.b, RNIC_EVENT_QP_ACCESS_ERR, __FILE__, line);
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
    enum { BAD_RKEY, BAD_TAG, BEYOND, WHOLLY_BEYOND, BEFORE, WRAPS, OTHER_PD, MR_RIGHT, GONE, CASES };
    static const int vendors[] = {RNIC_VE_RKEY_BAD,    RNIC_VE_RKEY_BAD,    RNIC_VE_RKEY_BOUNDS,
                                  RNIC_VE_RKEY_BOUNDS, RNIC_VE_RKEY_BOUNDS, RNIC_VE_RKEY_BOUNDS,
                                  RNIC_VE_RKEY_PD,     RNIC_VE_RKEY_ACCESS, RNIC_VE_RKEY_BAD};
    for (int i = 0; i < CASES; i++) {
        for (int op = 0; op < 5; op++) {
            check_note("case %d, opcode %d", i, remote_ops[op]);
            /* an immediate is known of only with its packet */
            uint32_t others = ALL_ACCESS & ~rights[op], n = op == 1 ? 1000 : op < 3 ? 2500 : 8;
            pair_open(&p);
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

/* As packets of a lane are, which are larger than the path MTU. */
static void larger_packets(uint32_t bytes) {
    p.a.qp->engine->set_mtu(p.a.qp, bytes);
    p.b.qp->engine->set_mtu_in(p.b.qp, bytes);
}

/* What a queue pair takes no requests of is an invalid request whatever the key (IBA 11.6.2): no receive is told. */
static void what_the_queue_pair_does_not_allow_is_REM_INV_REQ_ERR(void) {
    static const uint32_t sizes[] = {0, 8, 1024, 1025, 4000};
    for (int op = 0; op < 5; op++) {
        for (int size = 0; size < 5; size++) {
            for (int key = 0; key < 2; key++) {
                for (int large = 0; large < 2; large++) {
                    uint32_t n = op < 3 ? sizes[size] : 8;
                    check_note("opcode %d of %u bytes, key %d, large %d", remote_ops[op], n, key, large);
                    pair_open(&p, .access = ALL_ACCESS & ~rights[op]);
                    if (large)
                        larger_packets(4096);
                    for (uint64_t i = 7; i < 9 && !(key && size & 1); i++) /* without one it is no RNR either */
                        post_recv(&p.b, i, 0, 64);
                    struct rnic_send_wr wr = {.wr_id = 1, .opcode = remote_ops[op], SIGNALED, SGL(SGE(&p.a, 0, n))};
                    uint32_t rkey = p.b.mr->pub.rkey ^ (key ? 0x10000 : 0);
                    if (op < 3) {
                        wr.wr.rdma.remote_addr = (uintptr_t)p.b.mem;
                        wr.wr.rdma.rkey = rkey;
                    } else {
                        wr.wr.atomic.remote_addr = (uintptr_t)p.b.mem;
                        wr.wr.atomic.rkey = rkey;
                        wr.wr.atomic.compare_add = 1;
                    }
                    memset(p.a.mem, 0x55, 4096);
                    post(&p.a, wr);
                    fabric_settle(&p.f);
                    WANT_ERR(p.a.send_cq, 1, REM_INV_REQ_ERR, NAK_INVALID);
                    struct rnic_wc wc;
                    while (cq_take(p.b.recv_cq, 1, &wc))
                        CHECK_EQ(wc.status, RNIC_WC_WR_FLUSH_ERR);
                    WANT_EVENT(&p.b, QP_REQ_ERR);
                    WANT_NO_EVENT(&p.b);
                    CHECK_EQ(p.b.mem[0], 0);
                    CHECK_EQ(p.a.mem[0], 0x55);
                    pair_close(&p);
                }
            }
        }
    }
}

/* One that fits a packet of the path MTU; a longer one is refused at its beginning, and so it is in one packet, too. */
static void a_refused_WRITE_with_immediate_tells_its_receive_if_it_is_one_packet_of_the_path_MTU(void) {
    static const uint32_t sizes[] = {1, 1000, 1024, 1025, 2048, 4000};
    for (int size = 0; size < 6; size++) {
        for (int large = 0; large < 2; large++) {
            check_note("%u bytes, large %d", sizes[size], large);
            pair_open(&p);
            if (large)
                larger_packets(4096);
            post_recv(&p.b, 7, 0, 64);
            struct rnic_send_wr wr = {.wr_id = 1,
                                      .opcode = RNIC_WR_RDMA_WRITE_WITH_IMM,
                                      SIGNALED,
                                      SGL(SGE(&p.a, 0, sizes[size])),
                                      .wr.rdma = {(uintptr_t)p.b.mem, p.b.mr->pub.rkey ^ 0x10000}};
            post(&p.a, wr);
            fabric_settle(&p.f);
            CHECK_EQ(fabric_count(&p.f, p.a.node, 0, ROCE_RC_WRITE_ONLY_WITH_IMM), large || sizes[size] <= 1024);
            WANT_ERR(p.a.send_cq, 1, REM_ACCESS_ERR, NAK_ACCESS);
            if (sizes[size] <= 1024)
                WANT_ERR(p.b.recv_cq, 7, LOC_ACCESS_ERR, RKEY_BAD);
            else
                WANT_ERR(p.b.recv_cq, 7, WR_FLUSH_ERR, FLUSHED);
            WANT_EVENT(&p.b, QP_ACCESS_ERR);
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

int main(void) {
    RUN(a_bad_local_element_is_LOC_PROT_ERR);
    RUN(an_atomic_of_other_than_8_bytes_is_LOC_LEN_ERR);
    RUN(a_read_without_initiator_depth_is_LOC_QP_OP_ERR);
    RUN(a_message_longer_than_its_receive_is_LOC_LEN_ERR);
    RUN(a_receive_into_bad_memory_is_LOC_PROT_ERR_and_REM_OP_ERR);
    RUN(a_receive_that_fails_says_what_it_was_for);
    RUN(an_answer_into_memory_that_has_gone_is_LOC_PROT_ERR);
    RUN(what_a_key_does_not_cover_is_REM_ACCESS_ERR);
    RUN(what_the_queue_pair_does_not_allow_is_REM_INV_REQ_ERR);
    RUN(a_refused_WRITE_with_immediate_tells_its_receive_if_it_is_one_packet_of_the_path_MTU);
    RUN(the_first_and_last_byte_of_a_region_are_in_it);
    RUN(a_region_may_go_in_the_middle_of_a_message);
    return check_done();
}
