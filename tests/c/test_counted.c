/* SPDX-License-Identifier: Apache-2.0
 *
 * Completion counters on virtual time: each operation is counted once at either end, whatever the wire loses or doubles.
 */
#include <string.h>

#include "check.h"
#include "fabric.h"

#define ROUNDS 20
#define BYTES 3000u

static struct pair p;
static struct comp_cntr counter[2][COMP_CNTR_OPS]; /* by end */
static struct comp_cntrs counters[2];

static void begin(bool bytes) {
    pair_open_options(&p, &(struct options){0});
    struct qp *qps[] = {p.a.qp, p.b.qp};
    for (int e = 0; e < 2; e++) {
        for (int i = 0; i < COMP_CNTR_OPS; i++) {
            counter[e][i] = (struct comp_cntr){.bytes = bytes};
            counters[e].of[i] = &counter[e][i];
        }
        qps[e]->cntrs = &counters[e];
    }
}

static void end(void) {
    p.a.qp->cntrs = p.b.qp->cntrs = NULL;
    pair_close(&p);
}

/* What an end has counted, of the operations of enum rnic_comp_cntr_op in their order; then of those that failed. */
static void counted(int e, const uint64_t done[COMP_CNTR_OPS], const uint64_t failed[COMP_CNTR_OPS]) {
    for (int i = 0; i < COMP_CNTR_OPS; i++) {
        check_note("end %d, operation %d", e, i);
        CHECK_EQ(counter[e][i].done, done[i]);
        CHECK_EQ(counter[e][i].failed, failed[i]);
    }
}

static enum verdict every_seventh(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    static const enum verdict turn[] = {LOSE, TWICE, LATE};
    (void)arg, (void)from, (void)bth;
    return nth % 7 == 3 ? turn[nth / 7 % 3] : PASS;
}

static void each_operation_is_counted_once_at_either_end(void) {
    for (int bytes = 0; bytes < 2; bytes++) {
        uint64_t n = bytes ? ROUNDS * BYTES : ROUNDS;
        begin(bytes);
        p.f.judge = every_seventh;
        p.f.late = 60 * US;
        for (uint64_t i = 0; i < ROUNDS; i++) {
            post_recv(&p.b, i, 0, BYTES);
            post_send(&p.a, i, 0, BYTES);
            post_write(&p.a, i, 0, 8192, BYTES);
            post_read(&p.a, i, 0, 8192, BYTES);
            fabric_settle(&p.f);
            for (int k = 0; k < 3; k++)
                WANT(p.a.send_cq, i, SUCCESS);
            WANT(p.b.recv_cq, i, SUCCESS);
        }
        counted(0, (uint64_t[]){n, 0, n, 0, n, 0}, (uint64_t[COMP_CNTR_OPS]){0});
        counted(1, (uint64_t[]){0, n, 0, n, 0, n}, (uint64_t[COMP_CNTR_OPS]){0});
        end();
    }
}

static void what_is_refused_is_counted_as_failed(void) {
    static const uint64_t none[COMP_CNTR_OPS] = {0};
    for (int reads = 0; reads < 2; reads++) {
        begin(true);
        post(&p.a, (struct rnic_send_wr){.wr_id = 1,
                                         .opcode = reads ? RNIC_WR_RDMA_READ : RNIC_WR_RDMA_WRITE,
                                         .send_flags = RNIC_SEND_SIGNALED,
                                         .wr.rdma = {(uintptr_t)p.b.mem, p.b.mr->pub.rkey ^ 1},
                                         SGL(SGE(&p.a, 0, 8))});
        fabric_settle(&p.f);
        WANT_ERR(p.a.send_cq, 1, REM_ACCESS_ERR, NAK_ACCESS);
        counted(0, none, (uint64_t[]){0, 0, reads, 0, !reads, 0});
        counted(1, none, (uint64_t[]){0, 0, 0, reads, 0, !reads});
        end();
    }
}

/* Its memory has gone between the request and the answer. */
static void a_read_that_cannot_be_answered_is_counted_as_failed(void) {
    static const uint64_t none[COMP_CNTR_OPS] = {0};
    begin(false);
    struct mr *mr = fabric_mr(p.b.node, &p.b.node->pd, p.b.mem, 4096, ALL_ACCESS);
    p.b.node->lazy = 100 * US;
    post(&p.a, (struct rnic_send_wr){.wr_id = 1,
                                     .opcode = RNIC_WR_RDMA_READ,
                                     .send_flags = RNIC_SEND_SIGNALED,
                                     .wr.rdma = {(uintptr_t)p.b.mem, mr->pub.rkey},
                                     SGL(SGE(&p.a, 0, 8))});
    fabric_run(&p.f, p.f.now + 50 * US);
    fabric_drop_mr(p.b.node, mr);
    fabric_settle(&p.f);
    WANT_ERR(p.a.send_cq, 1, REM_ACCESS_ERR, NAK_ACCESS);
    counted(0, none, (uint64_t[]){0, 0, 1, 0, 0, 0});
    counted(1, none, (uint64_t[]){0, 0, 0, 1, 0, 0});
    end();
}

int main(void) {
    RUN(each_operation_is_counted_once_at_either_end);
    RUN(what_is_refused_is_counted_as_failed);
    RUN(a_read_that_cannot_be_answered_is_counted_as_failed);
    return check_done();
}
