/* SPDX-License-Identifier: Apache-2.0
 *
 * Rate limits on virtual time: a queue pair sends as fast as it may, no faster, in bursts no longer than it was told, and
 * neither loses nor repeats anything for it.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "fabric.h"
#include "roce/roce.h"

#define MTU 1024u
#define KBIT 100000u /* 100 Mbit/s: 12.5 bytes a microsecond */
#define BYTES 65536u
#define HEADERS 64u /* at most, around the payload that a typical packet is taken to have */

static struct pair p;

static void limit(struct end *e, uint32_t rate, uint32_t burst, uint16_t typical) {
    struct rnic_qp_rate_limit_attr attr = {rate, burst, typical, 0};
    pace_set(&e->qp->pace, &attr, MTU);
    fabric_turn(e->qp);
}

struct sent {
    uint64_t bytes, first, last, longest; /* longest burst: bytes without a pause of a microsecond */
};

/* What one end has sent, headers of RC WRITE and ICRC included. */
static struct sent sent_by(const struct end *e) {
    struct sent s = {0};
    uint64_t burst = 0;
    for (uint32_t i = 0; i < p.f.logged; i++) {
        const struct record *r = &p.f.log[i];
        if (r->arrived || r->from != e->node - p.f.node)
            continue;
        uint64_t n = roce_opcode(r->opcode)->header + r->length + 4;
        if (!s.bytes)
            s.first = r->at;
        burst = s.bytes && r->at - s.last < US ? burst + n : n;
        s.longest = burst > s.longest ? burst : s.longest;
        s.bytes += n;
        s.last = r->at;
    }
    return s;
}

static uint64_t time_at(uint64_t bytes, uint32_t kbit) { return bytes * 8000000 / kbit; }

/* Within the time that the rate gives, less one burst, and not much later. */
static void check_rate(const struct sent *s, uint32_t kbit, uint64_t burst) {
    uint64_t took = s->last - s->first, least = time_at(s->bytes - burst - HEADERS, kbit),
             most = time_at(s->bytes, kbit);
    check_note("%llu ns for %llu bytes, allowed %llu to %llu", (unsigned long long)took, (unsigned long long)s->bytes,
               (unsigned long long)least, (unsigned long long)most);
    CHECK(took >= least && took <= most);
    CHECK(s->longest <= burst);
}

static void a_message_takes_as_long_as_its_rate_says(void) {
    static const int types[] = {RNIC_QPT_RC, RNIC_QPT_UC};
    for (int i = 0; i < 2; i++) {
        pair_open(&p, .type = types[i]);
        limit(&p.a, KBIT, 8192, 0);
        fill(p.a.mem, BYTES, 1);
        post_write(&p.a, 1, 0, 0, BYTES);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 1, SUCCESS);
        CHECK(filled(p.b.mem, BYTES, 1));
        struct sent s = sent_by(&p.a);
        check_rate(&s, KBIT, 8192);
        CHECK(s.longest > 4096);
        CHECK_EQ(fabric_count(&p.f, p.a.node, 0, -1), BYTES / MTU); /* a pause is no loss */
        pair_close(&p);
    }
}

/* 8 kbit/s: a packet a second, with a transport timer of 67 ms. */
static void a_pause_longer_than_the_transport_timer_is_no_loss(void) {
    pair_open(&p, .timeout = 14, .retry_cnt = 1);
    limit(&p.a, 8, 1, 0);
    fill(p.a.mem, 5000, 2);
    post_recv(&p.b, 1, 0, 5000);
    post_send(&p.a, 1, 0, 5000);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    WANT(p.b.recv_cq, 1, SUCCESS);
    CHECK(filled(p.b.mem, 5000, 2));
    CHECK_EQ(fabric_count(&p.f, p.a.node, 0, -1), 5);
    struct sent s = sent_by(&p.a);
    CHECK(s.last - s.first >= 4 * SEC);
    pair_close(&p);
}

static void a_burst_is_one_packet_where_that_was_asked_for(void) {
    pair_open(&p, .type = RNIC_QPT_UC);
    limit(&p.a, KBIT, 1, 0);
    for (uint64_t i = 0; i < 20; i++)
        post_write(&p.a, i, 0, 0, 1000);
    fabric_settle(&p.f);
    struct sent s = sent_by(&p.a);
    CHECK(s.longest < 2000);
    check_rate(&s, KBIT, 1100);
    pair_close(&p);
}

static void an_idle_time_saves_up_one_burst_and_no_more(void) {
    pair_open(&p, .type = RNIC_QPT_UC);
    limit(&p.a, KBIT, 8192, 0);
    for (int round = 0; round < 3; round++) {
        p.f.logged = 0;
        post_write(&p.a, 1, 0, 0, BYTES);
        fabric_settle(&p.f);
        struct sent s = sent_by(&p.a);
        check_rate(&s, KBIT, 8192);
        fabric_run(&p.f, p.f.now + 10 * SEC);
        WANT(p.a.send_cq, 1, SUCCESS);
    }
    pair_close(&p);
}

static void repetitions_are_paid_for_and_all_arrives(void) {
    for (uint64_t seed = 1; seed < 20; seed++) {
        check_note("seed %llu", (unsigned long long)seed);
        pair_open(&p, .timeout = 10);
        limit(&p.a, KBIT, 4096, 0);
        struct rnic_fault fault = {.seed = seed, .loss = 50000, .duplicate = 50000};
        fault_set(&p.a.node->fault, &fault);
        fault_set(&p.b.node->fault, &fault);
        fill(p.a.mem, BYTES, seed);
        post_write(&p.a, 1, 0, 0, BYTES);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 1, SUCCESS);
        CHECK(filled(p.b.mem, BYTES, seed));
        struct sent s = sent_by(&p.a);
        CHECK(s.last - s.first >= time_at(s.bytes - 8192, KBIT));
        pair_close(&p);
    }
}

static void responses_cost_nothing(void) {
    pair_open(&p, .bandwidth = 0);
    limit(&p.b, 8, 1, 0);
    fill(p.b.mem, 20000, 3);
    post_read(&p.a, 1, 0, 0, 20000);
    post_write(&p.a, 2, 30000, 30000, 1000);
    uint64_t start = p.f.now;
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    WANT(p.a.send_cq, 2, SUCCESS);
    CHECK(p.f.now - start < SEC);
    CHECK(filled(p.a.mem, 20000, 3));
    pair_close(&p);
}

static void a_new_rate_counts_at_once(void) {
    pair_open(&p, .type = RNIC_QPT_UC);
    limit(&p.a, 1, 1, 0); /* 8 s a packet */
    post_write(&p.a, 1, 0, 0, 10000);
    fabric_run(&p.f, p.f.now + MS);
    CHECK_EQ(fabric_count(&p.f, p.a.node, 0, -1), 1);
    uint64_t start = p.f.now;
    limit(&p.a, 0, 0, 0); /* none */
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    CHECK(p.f.now - start < SEC);
    pair_close(&p);
}

static void a_queue_pair_in_error_waits_for_nothing(void) {
    for (int reset = 0; reset < 2; reset++) {
        pair_open(&p, .timeout = 14);
        limit(&p.a, 1, 1, 0);
        post_write(&p.a, 1, 0, 0, 10000);
        post_write(&p.a, 2, 0, 0, 10000);
        fabric_run(&p.f, p.f.now + MS);
        CHECK_EQ(move(p.a.qp, reset ? RNIC_QPS_RESET : RNIC_QPS_ERR), 0);
        fabric_settle(&p.f);
        CHECK_EQ(p.a.qp->pace.rate, reset ? 0 : 1);
        if (!reset) {
            WANT(p.a.send_cq, 1, WR_FLUSH_ERR);
            WANT(p.a.send_cq, 2, WR_FLUSH_ERR);
        }
        pair_close(&p);
    }
}

static void a_paced_send_queue_drains(void) {
    pair_open(&p, .timeout = 14);
    limit(&p.a, KBIT, 1, 0);
    post_write(&p.a, 1, 0, 0, 10000);
    post_write(&p.a, 2, 0, 0, 10000);
    struct rnic_qp_attr attr = {.qp_state = RNIC_QPS_SQD, .en_sqd_async_notify = 1};
    CHECK_EQ(fabric_modify(p.a.qp, &attr, RNIC_QP_STATE | RNIC_QP_EN_SQD_ASYNC_NOTIFY, NULL), 0);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    WANT_NONE(p.a.send_cq);
    CHECK_EQ(take_event(&p.a), RNIC_EVENT_SQ_DRAINED);
    CHECK_EQ(move(p.a.qp, RNIC_QPS_RTS), 0);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 2, SUCCESS);
    pair_close(&p);
}

static void datagrams_keep_their_rate(void) {
    struct fabric *f = &p.f;
    memset(&p, 0, sizeof p);
    fabric_open(f, false);
    struct cq *cq = fabric_cq(64, NULL), *rcq = fabric_cq(64, NULL);
    p.a.node = &f->node[0];
    p.a.qp = fabric_ud(&f->node[0], RNIC_QPT_UD, 5, cq, cq);
    struct qp *to = fabric_ud(&f->node[1], RNIC_QPT_UD, 5, rcq, rcq);
    struct ah *ah = fabric_ah(&f->node[0], &f->node[1]);
    uint8_t mem[1024] = {0};
    struct mr *mr = fabric_mr(&f->node[0], &f->node[0].pd, mem, sizeof mem, RNIC_ACCESS_LOCAL_WRITE);
    limit(&p.a, KBIT, 4096, 0);
    for (uint64_t i = 0; i < 16; i++) {
        post(&p.a, (struct rnic_send_wr){.wr_id = i,
                                         .opcode = RNIC_WR_SEND,
                                         .send_flags = RNIC_SEND_SIGNALED,
                                         .wr.ud = {&ah->head.pub, to->pub.qp_num, 5},
                                         SGL({(uintptr_t)mem, 1000, mr->pub.lkey})});
    }
    fabric_settle(f);
    struct sent s = sent_by(&p.a);
    check_rate(&s, KBIT, 4096);
    for (uint64_t i = 0; i < 16; i++)
        WANT(cq, i, SUCCESS);
    fabric_close(f);
    fabric_drop_cq(cq);
    fabric_drop_cq(rcq);
    free(mr);
}

int main(void) {
    RUN(a_message_takes_as_long_as_its_rate_says);
    RUN(a_pause_longer_than_the_transport_timer_is_no_loss);
    RUN(a_burst_is_one_packet_where_that_was_asked_for);
    RUN(an_idle_time_saves_up_one_burst_and_no_more);
    RUN(repetitions_are_paid_for_and_all_arrives);
    RUN(responses_cost_nothing);
    RUN(a_new_rate_counts_at_once);
    RUN(a_queue_pair_in_error_waits_for_nothing);
    RUN(a_paced_send_queue_drains);
    RUN(datagrams_keep_their_rate);
    return check_done();
}
