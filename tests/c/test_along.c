/* SPDX-License-Identifier: Apache-2.0
 *
 * An ACK that goes along with a short SEND to a peer on this host, in one piece.
 */
#include <string.h>

#include "check.h"
#include "dev/dev.h"
#include "host/lanes.h"
#include "live.h"
#include "roce/roce.h"
#include "wire/bth.h"

#define HANG_S 60
#define ROUNDS 400
#define PATIENT 22 /* of timeouts: 17 s */

static struct live a, b;
static struct rnic_qp *from, *to;

static uint64_t counted(const struct live *l, int counter) { return dev_of(l->ctx)->nic.counters.value[counter]; }

static void open_both(void) {
    live_open(&a, 1);
    live_open(&b, 1);
    from = live_qp(&a);
    to = live_qp(&b);
    live_join(&a, from, &b, to, PATIENT, 0);
}

static void close_both(void) {
    CHECK_EQ(a.ops->destroy_qp(from, NULL), 0);
    CHECK_EQ(b.ops->destroy_qp(to, NULL), 0);
    live_close(&a);
    live_close(&b);
}

/* A message from one end to the other, whose receive is taken there; n: bytes */
static void tell(struct live *l, struct rnic_qp *qp, struct live *peer, struct rnic_qp *theirs, int i, uint32_t n) {
    uint8_t *message = l->mem + 64 * (i % 64), *there = peer->mem + 64 * (i % 64);
    live_post_recv(peer, theirs, 2, 64 * (uint64_t)(i % 64), 64);
    memset(there, 0, 64);
    memset(message, i + 1, n);
    live_post(l, qp, RNIC_WR_SEND, 1, 64 * (uint64_t)(i % 64), n, peer);
    struct rnic_wc wc;
    do {
        wc = live_wait(peer);
        CHECK_EQ(wc.status, RNIC_WC_SUCCESS);
    } while (wc.wr_id != 2);
    CHECK_EQ(wc.byte_len, n);
    for (uint32_t at = 0; at < 64; at++)
        CHECK_EQ(there[at], at < n ? (uint8_t)(i + 1) : 0);
}

/* Each is acknowledged with what is answered, by a program that polls; all lengths, of which the longest are in no cell. */
static void test_answers_arrive_with_acks_ahead_of_them(void) {
    open_both();
    for (int i = 0; i < ROUNDS; i++) {
        tell(&a, from, &b, to, i, (uint32_t)i % 40);
        tell(&b, to, &a, from, i + 1, (uint32_t)(i + 7) % 40);
    }
    close_both();
}

/* Puts an ACK, and behind it a SEND, into the lane that a sends by. */
static void put_both(uint8_t opcode, uint32_t psn) {
    struct qp *qp = (struct qp *)from;
    uint8_t bytes[ACK_BYTES + BTH_BYTES + 8] = {0};
    bth_build(bytes, ROCE_RC_ACK, 0, qp->ib.pkey, qp->attr.dest_qp_num, psn);
    bth_build(bytes + ACK_BYTES, opcode, 0, qp->ib.pkey, qp->attr.dest_qp_num, psn);
    dev_lock(dev_of(a.ctx));
    CHECK(qp->way.link->ops->put(qp->way.link, &qp->way, bytes, sizeof bytes));
    qp->way.link->ops->flush(qp->way.link);
    dev_unlock(dev_of(a.ctx));
}

static void await(int counter, uint64_t value) {
    for (double until = live_seconds() + HANG_S; counted(&b, counter) < value;) {
        CHECK(live_seconds() < until);
        live_nap();
    }
}

/* Nothing of it counts if the packet behind is not for such a queue pair; of one that is, what was never sent is nothing. */
static void test_an_ack_that_cannot_be_is_dropped(void) {
    open_both();
    tell(&a, from, &b, to, 0, 8);
    uint64_t received = counted(&b, RNIC_CNT_local_received);
    put_both(ROCE_UC_SEND_ONLY, 0);
    await(RNIC_CNT_drop_bad_opcode, 1);
    put_both(ROCE_RC_SEND_ONLY, 1000); /* out of sequence, as the SEND is */
    await(RNIC_CNT_drop_bad_psn, 1);
    put_both(0xFF, 0);
    await(RNIC_CNT_drop_bad_opcode, 2);
    CHECK(counted(&b, RNIC_CNT_local_received) >= received + 3);
    struct qp *qp = (struct qp *)to;
    qp->reach = REACH_WIRE; /* so that nothing that comes by a lane answers it */
    put_both(ROCE_RC_SEND_ONLY, 2000);
    await(RNIC_CNT_drop_bad_source, 1);
    qp->reach = REACH_LOCAL;
    close_both();
}

/* Each end has asked for a lane at the same moment, and sends by its own. */
static void test_an_ack_by_the_lane_of_the_peer_counts(void) {
    open_both();
    tell(&a, from, &b, to, 0, 8);
    tell(&b, to, &a, from, 0, 8);
    uint64_t received = counted(&b, RNIC_CNT_local_received);
    struct qp *qp = (struct qp *)to;
    struct link *lane = qp->way.link;
    qp->way.link = dev_of(b.ctx)->nic.wire; /* another than what comes by */
    put_both(ROCE_RC_SEND_ONLY, 1000);
    await(RNIC_CNT_local_received, received + 2);
    await(RNIC_CNT_drop_bad_psn, 1);
    CHECK_EQ(counted(&b, RNIC_CNT_drop_bad_source), 0);
    qp->way.link = lane;
    close_both();
}

/* What the peer is due before it: answers to READs and atomics, or a NAK. */
static void test_no_ack_overtakes_what_is_due_before_it(void) {
    uint8_t packet[ACK_BYTES];
    open_both();
    tell(&a, from, &b, to, 0, 8);
    struct qp *qp = (struct qp *)to;
    dev_lock(dev_of(b.ctx));
    struct responder *resp = &rc_of(qp)->resp, was = *resp;
    resp->ack = ACK_ASKED;
    CHECK_EQ(resp_join_ack(qp, packet), ACK_BYTES);
    resp->queue_count++;
    CHECK_EQ(resp_join_ack(qp, packet), 0);
    resp->queue_count--;
    resp->nak_pending = true;
    CHECK_EQ(resp_join_ack(qp, packet), 0);
    *resp = was;
    dev_unlock(dev_of(b.ctx));
    close_both();
}

int main(void) {
    live_isolate();
    RUN(test_answers_arrive_with_acks_ahead_of_them);
    RUN(test_an_ack_that_cannot_be_is_dropped);
    RUN(test_an_ack_by_the_lane_of_the_peer_counts);
    RUN(test_no_ack_overtakes_what_is_due_before_it);
    return check_done();
}
