/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue pairs in error whose memory a process of this host is still reading or writing: they are flushed when it has left.
 */
#include "check.h"
#include "fabric.h"
#include "wire/opcode.h"

static struct pair p;

struct visitor { /* inside a copy until then; how often somebody has looked */
    uint64_t until;
    uint32_t looks;
};

static bool have_left(void *arg, struct farewell *f) {
    struct visitor *v = arg;
    (void)f;
    v->looks++;
    return p.f.now >= v->until;
}

static void visit(struct visitor *v, uint64_t ns) {
    *v = (struct visitor){.until = p.f.now + ns};
    p.b.node->nic.have_left = have_left;
    p.b.node->nic.local_arg = v;
    p.b.qp->exposed = true;
}

/* Soon looked for when it leaves soon, seldom when it stands still. */
static void who_stands_still_is_looked_for_ever_more_seldom(void) {
    struct visitor v;
    pair_open(&p);
    post_recv(&p.b, 1, 0, 100);
    visit(&v, SEC);
    uint64_t until = v.until;
    CHECK_EQ(move(p.b.qp, RNIC_QPS_ERR), 0);
    fabric_run(&p.f, until - 1);
    WANT_NONE(p.b.recv_cq);
    CHECK(v.looks > 50 && v.looks < 150);
    fabric_run(&p.f, until + 10 * MS);
    WANT(p.b.recv_cq, 1, WR_FLUSH_ERR);
    pair_close(&p);
}

static enum verdict lose_last(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)arg;
    (void)from;
    (void)nth;
    return (bth[0] & ROCE_OPERATION) == ROCE_RC_SEND_LAST ? LOSE : PASS;
}

/* The event says that no more of the shared receives is coming (IBA 11.6.3.2): behind the flush of the one in hand. */
static void the_last_receive_is_said_to_have_come_when_it_has(void) {
    struct visitor v;
    pair_open(&p, .type = RNIC_QPT_XRC_SEND);
    post_recv(&p.b, 1, 0, 4000);
    fabric_run(&p.f, p.f.now + MS);
    p.f.judge = lose_last;
    post_send(&p.a, 1, 0, 4000);
    fabric_run(&p.f, p.f.now + 100 * US);
    visit(&v, 5 * MS);
    CHECK_EQ(move(p.b.qp, RNIC_QPS_ERR), 0);
    fabric_run(&p.f, v.until - 1);
    WANT_NONE(p.b.recv_cq);
    WANT_NO_EVENT(&p.b);
    fabric_run(&p.f, v.until + 10 * MS);
    WANT(p.b.recv_cq, 1, WR_FLUSH_ERR);
    WANT_EVENT(&p.b, QP_LAST_WQE_REACHED);
    WANT_NO_EVENT(&p.b);
    pair_close(&p);
}

int main(void) {
    RUN(who_stands_still_is_looked_for_ever_more_seldom);
    RUN(the_last_receive_is_said_to_have_come_when_it_has);
    return check_done();
}
