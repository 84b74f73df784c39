/* SPDX-License-Identifier: Apache-2.0
 *
 * What the fuzzers of tests/fuzz found, each as the shortest run that shows it.
 */
#include <string.h>
#include <sys/mman.h>

#include "check.h"
#include "fabric.h"
#include "roce/roce.h"
#include "wire/bth.h"

static struct pair p;

/* The completion queue is full, so the queue pair goes to ERR in the middle of taking an ACK. */
static void an_ack_that_overruns_the_completion_queue_ends_in_error(void) {
    pair_open(&p, .cqe = 2);
    for (uint64_t id = 0; id < 5; id++)
        post_write(&p.a, id, 0, 0, 100);
    fabric_settle(&p.f);
    CHECK_EQ(p.a.qp->state, RNIC_QPS_ERR);
    CHECK(wq_empty(&p.a.qp->sq));
    pair_close(&p);
}

/* More PSNs than there are: the responder would expect the PSN that it has just taken. */
static void a_read_of_more_than_2_gib_is_refused(void) {
    const uint64_t bytes = 5ull << 30; /* pages that stay unreal */
    void *memory = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
    pair_open(&p, .mtu = RNIC_MTU_256);
    struct mr *mr = fabric_mr(p.b.node, &p.b.node->pd, memory, bytes, RNIC_ACCESS_REMOTE_READ);
    uint8_t packet[BTH_BYTES + RETH_BYTES] = {ROCE_RC_READ_REQUEST};
    bth_set_pkey(packet, 0xFFFF);
    bth_set_dqpn(packet, p.b.qp->pub.qp_num);
    bth_set_psn(packet, rc_of(p.b.qp)->resp.psn);
    reth_set_va(packet + BTH_BYTES, (uintptr_t)memory);
    reth_set_rkey(packet + BTH_BYTES, mr->pub.rkey);
    reth_set_len(packet + BTH_BYTES, 0x80000001);
    fabric_inject(p.a.node, &p.a.qp->way, packet, sizeof packet);
    fabric_run(&p.f, p.f.now + MS);
    CHECK_EQ(COUNTER(&p.b, nak_remote_sent), 1);
    CHECK_EQ(p.b.qp->state, RNIC_QPS_ERR);
    fabric_drop_mr(p.b.node, mr);
    pair_close(&p);
    munmap(memory, bytes);
}

static uint32_t lost; /* answers of b, the others are late */

static enum verdict late_answers(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)bth;
    if (from != arg)
        return PASS;
    return nth < lost ? LOSE : LATE;
}

/* The last packet is to go out once more, but its memory is gone: the ACK of its first sending is as good. */
static void a_probe_whose_memory_is_gone_harms_nothing(void) {
    pair_open(&p, 0);
    p.f.judge = late_answers;
    p.f.judge_arg = p.b.node;
    p.f.late = 20 * MS;
    lost = 0;
    post_write(&p.a, 1, 0, 0, 100);
    fabric_run(&p.f, p.f.now + 1); /* sent */
    mr_remove(&p.a.node->nic.mrs, p.a.mr);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    WANT_NONE(p.a.send_cq);
    CHECK_EQ(p.a.qp->state, RNIC_QPS_RTS);
    CHECK(wq_empty(&p.a.qp->sq));
    pair_close(&p);
}

/* The same for a retry after a timeout: the second of two messages cannot be sent again, then one ACK comes for both. */
static void an_ack_completes_what_could_not_be_sent_again(void) {
    static uint8_t other[100];
    pair_open(&p, 0);
    p.f.judge = late_answers;
    p.f.judge_arg = p.b.node;
    p.f.late = 75 * MS; /* the timeout is 67 */
    lost = 1;
    struct mr *mr = fabric_mr(p.a.node, &p.a.node->pd, other, sizeof other, ALL_ACCESS);
    post_write(&p.a, 1, 0, 0, 100);
    post(&p.a, (struct rnic_send_wr){.wr_id = 2,
                                     .opcode = RNIC_WR_RDMA_WRITE,
                                     .send_flags = RNIC_SEND_SIGNALED,
                                     REMOTE(&p.b, 0),
                                     SGL({(uintptr_t)other, sizeof other, mr->pub.lkey})});
    fabric_run(&p.f, p.f.now + 1);
    fabric_drop_mr(p.a.node, mr);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    WANT(p.a.send_cq, 2, SUCCESS);
    CHECK_EQ(p.a.qp->state, RNIC_QPS_RTS);
    pair_close(&p);
}

int main(void) {
    RUN(an_ack_that_overruns_the_completion_queue_ends_in_error);
    RUN(a_read_of_more_than_2_gib_is_refused);
    RUN(a_probe_whose_memory_is_gone_harms_nothing);
    RUN(an_ack_completes_what_could_not_be_sent_again);
    return check_done();
}
