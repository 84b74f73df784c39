/* SPDX-License-Identifier: Apache-2.0
 *
 * What the ways of queue pairs and address handles hold: entries of the GID table, and lanes.  Each is given back when its
 * user has gone, or goes by another.
 */
#include "check.h"
#include "dev/dev.h"
#include "host/lanes.h"
#include "live.h"
#include "qp/ah.h"

#define FOREVER 0 /* a timeout */
#define QKEY 7

static struct live a, b;

static struct dev *dev(const struct live *l) { return dev_of(l->ctx); }

static void begin(void) {
    live_open(&a, 1);
    live_open(&b, 1);
}

static void end(void) {
    live_close(&a);
    live_close(&b);
}

/* Ways by all entries, and by all lanes. */
static int entries_in_use(const struct live *l) {
    int n = 0;
    dev_lock(dev(l));
    for (size_t i = 0; i < NETDEV_MAX_GIDS; i++)
        n += dev(l)->net.port_users[i];
    dev_unlock(dev(l));
    return n;
}

static int lanes_in_use(const struct live *l) {
    int n = 0;
    dev_lock(dev(l));
    for (const struct lane *at = dev(l)->host.here.lanes; at; at = at->next)
        n += at->users;
    dev_unlock(dev(l));
    return n;
}

static void want(const struct live *l, int entries, int by_lanes) {
    CHECK_EQ(entries_in_use(l), entries);
    CHECK_EQ(lanes_in_use(l), by_lanes);
}

static void write_to(struct live *l, struct rnic_qp *qp, const struct live *peer) {
    live_post(l, qp, RNIC_WR_RDMA_WRITE, 1, 0, 8, peer);
    CHECK_EQ(live_wait(l).status, RNIC_WC_SUCCESS);
}

static void reset(struct live *l, struct rnic_qp *qp) {
    struct rnic_qp_attr attr = {.qp_state = RNIC_QPS_RESET};
    CHECK_EQ(l->ops->modify_qp(qp, &attr, RNIC_QP_STATE, NULL), 0);
}

static void destroy(struct live *l, struct rnic_qp *qp) { CHECK_EQ(l->ops->destroy_qp(qp, NULL), 0); }

static void a_queue_pair_holds_its_address_until_it_goes_by_a_lane(void) {
    begin();
    struct rnic_qp *ab = live_qp(&a), *ba = live_qp(&b);
    want(&a, 0, 0);
    for (int i = 0; i < 3; i++) {
        live_join(&a, ab, &b, ba, FOREVER, 0);
        want(&a, 1, 0);
        want(&b, 1, 0);
        write_to(&a, ab, &b);
        write_to(&b, ba, &a);
        want(&a, 0, 1);
        want(&b, 0, 1);
        reset(&a, ab);
        reset(&b, ba);
        CHECK_EQ(lanes_in_use(&a), 0);
        CHECK_EQ(lanes_in_use(&b), 0);
    }
    live_join(&a, ab, &b, ba, FOREVER, 0);
    write_to(&a, ab, &b);
    destroy(&a, ab);
    destroy(&b, ba);
    want(&a, 0, 0);
    want(&b, 0, 0);
    end();
}

/* One end has decided for the wire; each answers the way that it is asked. */
static void answers_that_go_another_way_hold_it_as_well(void) {
    begin();
    struct rnic_qp *ab = live_qp(&a), *ba = live_qp(&b);
    for (int i = 0; i < 3; i++) {
        live_join(&a, ab, &b, ba, FOREVER, 0);
        dev_lock(dev(&a));
        ((struct qp *)ab)->reach = REACH_WIRE;
        dev_unlock(dev(&a));
        write_to(&b, ba, &a);
        write_to(&a, ab, &b);
        CHECK(((struct qp *)ab)->apart && ((struct qp *)ba)->apart);
        want(&a, 1, 1);
        want(&b, 1, 1);
        reset(&a, ab);
        reset(&b, ba);
        CHECK_EQ(lanes_in_use(&a), 0);
        CHECK_EQ(lanes_in_use(&b), 0);
    }
    destroy(&a, ab);
    destroy(&b, ba);
    want(&a, 0, 0);
    want(&b, 0, 0);
    end();
}

/* A datagram queue pair; its completion queue is the context's. */
static struct rnic_qp *datagrams(struct live *l) {
    struct rnic_qp_init_attr init = {
        .send_cq = l->cq, .recv_cq = l->cq, .cap = {64, 64, 1, 1, 0}, .qp_type = RNIC_QPT_UD, .sq_sig_all = 1};
    static const uint32_t masks[] = {[RNIC_QPS_INIT] = RNIC_QP_STATE | RNIC_QP_PKEY_INDEX | RNIC_QP_PORT | RNIC_QP_QKEY,
                                     [RNIC_QPS_RTR] = RNIC_QP_STATE,
                                     [RNIC_QPS_RTS] = RNIC_QP_STATE | RNIC_QP_SQ_PSN};
    struct rnic_qp_attr attr = {.port_num = 1, .qkey = QKEY};
    struct rnic_qp *qp;
    CHECK_EQ(l->ops->create_qp(l->pd, &init, &qp, NULL), 0);
    for (attr.qp_state = RNIC_QPS_INIT; attr.qp_state <= RNIC_QPS_RTS; attr.qp_state++)
        CHECK_EQ(l->ops->modify_qp(qp, &attr, masks[attr.qp_state], NULL), 0);
    return qp;
}

static void send_datagram(struct rnic_qp *from, struct rnic_ah *ah, const struct rnic_qp *to) {
    struct rnic_sge sge = {(uintptr_t)a.mem, 8, a.mr->lkey};
    struct rnic_send_wr wr = {.opcode = RNIC_WR_SEND, .sg_list = &sge, .num_sge = 1, .wr.ud = {ah, to->qp_num, QKEY}};
    const struct rnic_send_wr *bad;
    CHECK_EQ(a.ops->post_send(from, &wr, &bad, NULL), 0);
    CHECK_EQ(live_wait(&a).status, RNIC_WC_SUCCESS);
}

static bool goes_by_lane(const struct rnic_ah *ah) {
    dev_lock(dev(&a));
    bool by_lane = ((const struct ah *)ah)->way.link != dev(&a)->nic.wire;
    dev_unlock(dev(&a));
    return by_lane;
}

/* A lane lasts as long as its peer, and its datagrams hold nothing. */
static void an_address_handle_holds_its_address_whichever_way_its_datagrams_go(void) {
    begin();
    struct rnic_qp *from = datagrams(&a), *to = datagrams(&b);
    struct rnic_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = b.gid.gid, .hop_limit = 64}};
    struct rnic_ah *ah;
    CHECK_EQ(a.ops->create_ah(a.pd, &attr, &ah, NULL), 0);
    want(&a, 1, 0);
    double until = live_seconds() + 30;
    do { /* the first go by the wire, while there is no lane */
        send_datagram(from, ah, to);
        CHECK(live_seconds() < until);
        live_nap();
    } while (!goes_by_lane(ah));
    want(&a, 1, 0);
    CHECK_EQ(a.ops->destroy_ah(ah, NULL), 0);
    want(&a, 0, 0);
    destroy(&a, from);
    destroy(&b, to);
    end();
}

/* ---------------------------------------------------------------- lanes that are full */

static struct lane *lane_of_qp(const struct qp *qp) {
    CHECK_EQ(qp->reach, REACH_LOCAL);
    return lane_of(qp->way.link);
}

/* b does not read, until a queue pair of a waits for room in the lane.  Both stay locked. */
static struct qp *fill_lane(struct rnic_qp *ab, struct rnic_qp *ba) {
    static const uint8_t noise[32]; /* a cell each, until none is left */
    struct qp *qp = (struct qp *)ab;
    live_join(&a, ab, &b, ba, FOREVER, 0);
    write_to(&a, ab, &b);
    dev_lock(dev(&b));
    dev_lock(dev(&a));
    qp->remote = NULL; /* by the ring, and not at once */
    atomic_store(&qp->at_once, 0);
    while (qp->way.link->ops->put(qp->way.link, &qp->way, noise, sizeof noise))
        continue;
    live_post(&a, ab, RNIC_WR_RDMA_WRITE, 2, 0, 8, &b);
    for (int i = 0; i < 10000 && !qp->turn.parked; i++)
        progress(&dev(&a)->run, run_clock(), true);
    CHECK(qp->turn.parked == qp->way.link);
    return qp;
}

static void give_up(struct rnic_qp *ab, struct rnic_qp *ba) {
    dev_unlock(dev(&a));
    dev_unlock(dev(&b));
    destroy(&a, ab);
    destroy(&b, ba);
    end();
}

static void nobody_waits_for_room_in_a_lane_that_is_down(void) {
    begin();
    struct rnic_qp *ab = live_qp(&a), *ba = live_qp(&b);
    struct qp *qp = fill_lane(ab, ba);
    struct lane *l = lane_of_qp(qp);
    lane_hang_up(l);
    lanes_changed(&dev(&a)->host, l);
    CHECK(!l->link.waiting);
    CHECK(!qp->turn.parked && qp->turn.ready);
    give_up(ab, ba);
}

/* It waits in the lane's list for room, but goes by the wire by now, so that nothing keeps the lane. */
static void nor_in_one_that_is_freed(void) {
    begin();
    struct rnic_qp *ab = live_qp(&a), *ba = live_qp(&b);
    struct qp *qp = fill_lane(ab, ba);
    uint32_t before = dev(&a)->host.here.count;
    lanes_leave(&dev(&a)->host, qp);
    lane_hang_up(lane_of(qp->turn.parked));
    doors_source.receive_rare(&dev(&a)->host, run_clock());
    CHECK(dev(&a)->host.here.count < before);
    CHECK(!qp->turn.parked && qp->turn.ready);
    give_up(ab, ba);
}

int main(void) {
    live_isolate();
    RUN(a_queue_pair_holds_its_address_until_it_goes_by_a_lane);
    RUN(answers_that_go_another_way_hold_it_as_well);
    RUN(an_address_handle_holds_its_address_whichever_way_its_datagrams_go);
    RUN(nobody_waits_for_room_in_a_lane_that_is_down);
    RUN(nor_in_one_that_is_freed);
    return check_done();
}
