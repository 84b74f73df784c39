/* SPDX-License-Identifier: Apache-2.0
 *
 * Regions that are not plain, on virtual time: missing pages, other addresses, another process' memory, none at all,
 * with packets lost, doubled and late.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "fabric.h"
#include "wire/bth.h"

#define MTU 1024u
#define PAGES 4

static struct pair p;
static uint8_t *pages; /* memory of b, of which pages can be taken away */
static uint64_t page;
static struct mr *there; /* and its region */

static void begin(enum mr_kind kind, struct options o) {
    pair_open_options(&p, &o);
    page = (uint64_t)sysconf(_SC_PAGESIZE);
    pages = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    there = fabric_mr(p.b.node, &p.b.node->pd, pages, PAGES * page, ALL_ACCESS & ~RNIC_ACCESS_REMOTE_ATOMIC);
    there->kind = kind;
}

static void end(void) {
    fabric_drop_mr(p.b.node, there);
    munmap(pages, PAGES * page);
    pair_close(&p);
}

static void one_sided(uint64_t id, int opcode, uint64_t remote, uint32_t n) {
    post(&p.a, (struct rnic_send_wr){.wr_id = id,
                                     .opcode = opcode,
                                     .send_flags = RNIC_SEND_SIGNALED,
                                     .wr.rdma = {remote, there->pub.rkey},
                                     SGL(SGE(&p.a, 0, n))});
}

static enum verdict every_seventh(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    static const enum verdict turn[] = {LOSE, TWICE, LATE};
    (void)arg, (void)from, (void)bth;
    return nth % 7 == 3 ? turn[nth / 7 % 3] : PASS;
}

/* WRITE, READ, SEND from and receive into it, over and over, every byte checked. */
static void traffic(uint64_t name) {
    p.f.judge = every_seventh;
    p.f.late = 60 * US;
    for (uint64_t i = 0; i < 20; i++) {
        uint32_t n = (uint32_t)(1 + i * 577);
        fill(p.a.mem, n, i);
        one_sided(i, RNIC_WR_RDMA_WRITE, name + i, n);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, i, SUCCESS);
        CHECK(filled(pages + i, n, i));
        memset(p.a.mem, 0, n);
        one_sided(i, RNIC_WR_RDMA_READ, name + i, n);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, i, SUCCESS);
        CHECK(filled(p.a.mem, n, i));
        post_recv(&p.a, i, 0, n);
        struct rnic_sge out[2] = {{name + i, n / 2, there->pub.lkey}, {name + i + n / 2, n - n / 2, there->pub.lkey}};
        post(&p.b,
             (struct rnic_send_wr){
                 .wr_id = i, .opcode = RNIC_WR_SEND, .send_flags = RNIC_SEND_SIGNALED, .sg_list = out, .num_sge = 2});
        memset(p.a.mem, 0, n);
        fabric_settle(&p.f);
        WANT(p.b.send_cq, i, SUCCESS);
        CHECK_EQ(WANT(p.a.recv_cq, i, SUCCESS).byte_len, n);
        CHECK(filled(p.a.mem, n, i));
        fill(p.b.mem, n, i + 100);
        post_read(&p.b, i, 0, 0, 0); /* so that both ends' counters move; of no bytes */
        fabric_settle(&p.f);
        WANT(p.b.send_cq, i, SUCCESS);
    }
}

static void guarded_memory_survives_a_bad_wire(void) {
    begin(MR_GUARDED, (struct options){0});
    traffic((uintptr_t)pages);
    end();
}

static void another_name_for_the_same_bytes_survives_a_bad_wire(void) {
    begin(MR_PLAIN, (struct options){0});
    there->pub.iova = 16;
    there->shift = (uintptr_t)pages - 16;
    traffic(16);
    end();
}

static void guarded_memory_under_another_name_too(void) {
    begin(MR_GUARDED, (struct options){.ipv6 = true});
    there->pub.iova = 0;
    there->shift = (uintptr_t)pages;
    traffic(0);
    end();
}

/* What came before the missing page is written, nothing of it or behind it. */
static void a_write_stops_at_the_missing_page(void) {
    begin(MR_GUARDED, (struct options){0});
    munmap(pages + 2 * page, page);
    fill(p.a.mem, 3 * (uint32_t)page, 5);
    one_sided(1, RNIC_WR_RDMA_WRITE, (uintptr_t)pages + page, 3 * (uint32_t)page);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, REM_ACCESS_ERR);
    CHECK(filled(pages + page, page, 5));
    for (uint64_t i = 0; i < page; i++)
        CHECK_EQ(pages[3 * page + i], 0);
    CHECK_EQ(take_event(&p.b), RNIC_EVENT_QP_ACCESS_ERR);
    end();
}

static void a_read_answers_up_to_the_missing_page(void) {
    begin(MR_GUARDED, (struct options){0});
    memset(pages, 7, page);
    munmap(pages + page, page);
    one_sided(1, RNIC_WR_RDMA_READ, (uintptr_t)pages, 2 * (uint32_t)page);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, REM_ACCESS_ERR);
    CHECK_EQ(p.a.mem[page - 1], 7);
    CHECK_EQ(take_event(&p.b), RNIC_EVENT_QP_ACCESS_ERR);
    end();
}

static enum verdict lose_first_response(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)nth;
    if (from != p.b.node || bth[0] != ROCE_RC_READ_RESP_ONLY)
        return PASS;
    return (*(int *)arg)++ == 0 ? LOSE : PASS;
}

/* The answer was given once; that it cannot be given again is not an error of this end. */
static void a_page_that_went_before_the_repetition(void) {
    int seen = 0;
    begin(MR_GUARDED, (struct options){.retry_cnt = 1, .latency = 50 * US});
    p.f.judge = lose_first_response;
    p.f.judge_arg = &seen;
    one_sided(1, RNIC_WR_RDMA_READ, (uintptr_t)pages, 8);
    while (!seen)
        fabric_step(&p.f, NEVER - 1);
    munmap(pages, page);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, RETRY_EXC_ERR);
    CHECK_EQ(p.b.qp->state, RNIC_QPS_RTS);
    CHECK(COUNTER(&p.b, drop_duplicate) > 0);
    end();
}

/* A region of another process ends in the middle of a message. */
static void what_the_owner_takes_back_is_gone_at_once(void) {
    uint64_t serial = 77;
    begin(MR_FOREIGN, (struct options){.bandwidth = 100000000});
    there->is = &serial;
    there->was = 77;
    fill(p.a.mem, 16000, 1);
    one_sided(1, RNIC_WR_RDMA_WRITE, (uintptr_t)pages, 16000);
    fabric_run(&p.f, p.f.now + 60 * US);
    CHECK(pages[0]);
    CHECK_EQ(pages[15999], 0);
    serial = 78;
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, REM_ACCESS_ERR);
    CHECK_EQ(pages[15999], 0);
    end();
    begin(MR_FOREIGN, (struct options){0});
    there->is = &serial;
    there->was = 77;
    struct rnic_sge sge = {(uintptr_t)pages, 8, there->pub.lkey};
    post(&p.b, (struct rnic_send_wr){.wr_id = 2, .opcode = RNIC_WR_SEND, .sg_list = &sge, .num_sge = 1});
    fabric_settle(&p.f);
    CHECK_EQ(WANT(p.b.send_cq, 2, LOC_PROT_ERR).vendor_err, RNIC_VE_SGE_BAD_LKEY);
    end();
}

static void a_null_region_is_zeros_in_a_list(void) {
    begin(MR_NULL, (struct options){0});
    there->pub.iova = 0;
    there->pub.length = UINT64_MAX;
    memset(p.b.mem, 9, 3000);
    memset(p.a.mem, 1, 6000);
    post_recv(&p.a, 1, 0, 6000);
    struct rnic_sge out[3] = {SGE(&p.b, 0, 1500), {0, 2500, there->pub.lkey}, SGE(&p.b, 0, 1500)};
    post(&p.b, (struct rnic_send_wr){
                   .wr_id = 2, .opcode = RNIC_WR_SEND, .send_flags = RNIC_SEND_SIGNALED, .sg_list = out, .num_sge = 3});
    fabric_settle(&p.f);
    WANT(p.b.send_cq, 2, SUCCESS);
    CHECK_EQ(WANT(p.a.recv_cq, 1, SUCCESS).byte_len, 5500);
    for (int i = 0; i < 5500; i++)
        CHECK_EQ(p.a.mem[i], i < 1500 || i >= 4000 ? 9 : 0);
    end();
}

/* Its place is none, and where its name is 0, so is what lies a packet further. */
static void a_null_region_alone_takes_and_gives_many_packets(void) {
    begin(MR_NULL, (struct options){0});
    there->pub.iova = 0;
    there->pub.length = UINT64_MAX;
    memset(p.a.mem, 1, 6000);
    post_recv(&p.a, 1, 0, 6000);
    struct rnic_sge all = {0, 6000, there->pub.lkey};
    post(&p.b,
         (struct rnic_send_wr){
             .wr_id = 2, .opcode = RNIC_WR_SEND, .send_flags = RNIC_SEND_SIGNALED, .sg_list = &all, .num_sge = 1});
    fabric_settle(&p.f);
    WANT(p.b.send_cq, 2, SUCCESS);
    CHECK_EQ(WANT(p.a.recv_cq, 1, SUCCESS).byte_len, 6000);
    for (int i = 0; i < 6000; i++)
        CHECK_EQ(p.a.mem[i], 0);
    post(&p.b, (struct rnic_send_wr){.wr_id = 3,
                                     .opcode = RNIC_WR_RDMA_READ,
                                     .send_flags = RNIC_SEND_SIGNALED,
                                     .wr.rdma = {(uintptr_t)p.a.mem, p.a.mr->pub.rkey},
                                     .sg_list = &all,
                                     .num_sge = 1});
    fabric_settle(&p.f);
    WANT(p.b.send_cq, 3, SUCCESS);
    end();
}

/* Of a list that has one element of another kind each is reached through its region. */
static void a_list_of_several_kinds_is_filled_in_its_order(void) {
    begin(MR_GUARDED, (struct options){0});
    there->pub.iova = 16;
    there->shift = (uintptr_t)pages - 16;
    struct rnic_sge in[] = {
        SGE(&p.b, 0, 700), {16 + 50, 900, there->pub.lkey}, {16 + 2000, 1, there->pub.lkey}, SGE(&p.b, 5000, 1400)};
    struct rnic_recv_wr wr = {.wr_id = 1, .sg_list = in, .num_sge = 4};
    const struct rnic_recv_wr *bad;
    CHECK_EQ(rq_post(&p.b.qp->rq, &wr, &bad, NULL), 0);
    fill(p.a.mem, 3000, 4);
    post(&p.a, (struct rnic_send_wr){.wr_id = 2, .opcode = RNIC_WR_SEND, SGL(SGE(&p.a, 0, 3000))});
    fabric_settle(&p.f);
    CHECK_EQ(WANT(p.b.recv_cq, 1, SUCCESS).byte_len, 3000);
    CHECK(!memcmp(p.b.mem, p.a.mem, 700));
    CHECK(!memcmp(pages + 50, p.a.mem + 700, 900));
    CHECK_EQ(pages[2000], p.a.mem[1600]);
    CHECK(!memcmp(p.b.mem + 5000, p.a.mem + 1601, 1399));
    CHECK(pages[49] == 0 && pages[950] == 0 && pages[2001] == 0);
    end();
}

static void a_parent_domain_protects_what_its_domain_does(void) {
    begin(MR_PLAIN, (struct options){0});
    struct pd parent = {.pub.parent = &p.b.node->pd.pub}, stranger = {.pub.parent = &p.b.node->other_pd.pub};
    there->pub.pd = &parent.pub;
    one_sided(1, RNIC_WR_RDMA_WRITE, (uintptr_t)pages, 8);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    there->pub.pd = &stranger.pub;
    one_sided(2, RNIC_WR_RDMA_WRITE, (uintptr_t)pages, 8);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 2, REM_ACCESS_ERR);
    end();
}

int main(void) {
    RUN(guarded_memory_survives_a_bad_wire);
    RUN(another_name_for_the_same_bytes_survives_a_bad_wire);
    RUN(guarded_memory_under_another_name_too);
    RUN(a_write_stops_at_the_missing_page);
    RUN(a_read_answers_up_to_the_missing_page);
    RUN(a_page_that_went_before_the_repetition);
    RUN(what_the_owner_takes_back_is_gone_at_once);
    RUN(a_null_region_is_zeros_in_a_list);
    RUN(a_null_region_alone_takes_and_gives_many_packets);
    RUN(a_list_of_several_kinds_is_filled_in_its_order);
    RUN(a_parent_domain_protects_what_its_domain_does);
    return check_done();
}
