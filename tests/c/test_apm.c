/* SPDX-License-Identifier: Apache-2.0
 *
 * Automatic path migration on virtual time (IBA 17.2.8): arming, migration by the program, by a broken path and by the
 * peer, what is refused, and partitions.
 */
#include <errno.h>
#include <string.h>

#include "check.h"
#include "fabric.h"
#include "roce/partition.h"
#include "roce/path.h"
#include "roce/roce.h"
#include "wire/bth.h"

static struct pair p;

static const uint32_t mask_alt = RNIC_QP_ALT_PATH, mask_mig = RNIC_QP_PATH_MIG_STATE;

static struct rnic_qp_attr alt_attr(const struct end *e, int state) {
    struct rnic_qp_attr attr = {.path_mig_state = state, .alt_port_num = 1, .alt_timeout = 13};
    attr.alt_ah_attr = (struct rnic_ah_attr){.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 64}};
    memcpy(attr.alt_ah_attr.grh.dgid.raw, &e->peer->node->addr2.sin6_addr, 16);
    return attr;
}

static int modify(const struct end *e, int state, uint32_t mask) {
    struct rnic_qp_attr attr = alt_attr(e, state);
    return fabric_modify(e->qp, &attr, mask, NULL);
}

static void rearm(const struct end *e) { CHECK_EQ(modify(e, RNIC_MIG_REARM, mask_alt | mask_mig), 0); }

static int mig_state(const struct end *e) { return e->qp->attr.path_mig_state; }

static bool on_second(const struct end *e) {
    return !memcmp(&e->qp->way.src.sin6_addr, &e->node->addr2.sin6_addr, 16) &&
           !memcmp(&e->qp->way.dst.sin6_addr, &e->peer->node->addr2.sin6_addr, 16);
}

static void send_one(struct end *from, uint64_t id, uint32_t n) {
    memset(from->peer->mem, 0, n);
    fill(from->mem, n, id);
    post_recv(from->peer, id, 0, n);
    post_send(from, id, 0, n);
    fabric_settle(&p.f);
    WANT(from->send_cq, id, SUCCESS);
    CHECK_EQ(WANT(from->peer->recv_cq, id, SUCCESS).byte_len, n);
    CHECK(filled(from->peer->mem, n, id));
}

static void arm_both(void) {
    rearm(&p.a);
    rearm(&p.b);
    send_one(&p.a, 1, 100);
    CHECK_EQ(mig_state(&p.a), RNIC_MIG_ARMED);
    CHECK_EQ(mig_state(&p.b), RNIC_MIG_ARMED);
    CHECK_EQ(take_event(&p.a), -1);
    CHECK_EQ(take_event(&p.b), -1);
}

/* MigReq of the last packet that a node sent. */
static uint8_t last_m[NODES];

static enum verdict watch_m(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)arg;
    (void)nth;
    last_m[from - p.f.node] = bth_m(bth);
    return PASS;
}

static void closes(void) {
    fabric_settle(&p.f);
    pair_close(&p);
}

/* ---------------------------------------------------------------- arming */

static void both_ends_arm_with_the_next_packets_after_both_have_rearmed(void) {
    pair_open(&p, 0);
    p.f.judge = watch_m;
    send_one(&p.a, 1, 100);
    CHECK(last_m[0] == 1 && last_m[1] == 1);
    CHECK_EQ(mig_state(&p.a), RNIC_MIG_MIGRATED);
    rearm(&p.a);
    send_one(&p.a, 2, 100);
    CHECK(last_m[0] == 0 && last_m[1] == 1); /* the peer has not rearmed: it stays migrated, and so this end in REARM */
    CHECK_EQ(mig_state(&p.a), RNIC_MIG_REARM);
    CHECK_EQ(mig_state(&p.b), RNIC_MIG_MIGRATED);
    rearm(&p.b);
    send_one(&p.a, 3, 100);
    CHECK(last_m[0] == 0 && last_m[1] == 0);
    CHECK_EQ(mig_state(&p.a), RNIC_MIG_ARMED);
    CHECK_EQ(mig_state(&p.b), RNIC_MIG_ARMED);
    CHECK_EQ(take_event(&p.a), -1);
    closes();
}

/* ---------------------------------------------------------------- migration */

static void check_migrated(void) {
    for (struct end *e = &p.a; e; e = e == &p.a ? &p.b : NULL) {
        CHECK(on_second(e));
        CHECK_EQ(mig_state(e), RNIC_MIG_MIGRATED);
        CHECK_EQ(e->qp->attr.ah_attr.grh.sgid_index, 1);
        CHECK_EQ(e->qp->attr.timeout, 13);
        CHECK_EQ(take_event(e), RNIC_EVENT_PATH_MIG);
        CHECK_EQ(take_event(e), -1);
    }
}

static void a_program_migrates_and_the_peer_follows(void) {
    for (int ipv6 = 0; ipv6 < 2; ipv6++) {
        pair_open(&p, .ipv6 = ipv6);
        arm_both();
        CHECK_EQ(modify(&p.a, RNIC_MIG_MIGRATED, mask_mig), 0);
        CHECK(on_second(&p.a) && !on_second(&p.b));
        send_one(&p.a, 2, 5000);
        check_migrated();
        send_one(&p.b, 3, 5000);
        CHECK_EQ(COUNTER(&p.a, timeouts) + COUNTER(&p.b, timeouts), 0);
        closes();
    }
}

/* On the other way the peer may have another one: what comes from there is no forger's (host/floods.c). */
static void the_ports_of_the_way_that_was_left_are_forgotten(void) {
    pair_open(&p, 0);
    arm_both();
    p.a.qp->ib.heard[0] = p.a.qp->ib.heard[1] = 1;
    CHECK_EQ(modify(&p.a, RNIC_MIG_MIGRATED, mask_mig), 0);
    CHECK(p.a.qp->ib.heard[0] == 0 && p.a.qp->ib.heard[1] == 0);
    send_one(&p.a, 2, 100);
    check_migrated();
    closes();
}

static void a_migrated_pair_can_go_back(void) {
    pair_open(&p, 0);
    arm_both();
    CHECK_EQ(modify(&p.a, RNIC_MIG_MIGRATED, mask_mig), 0);
    send_one(&p.a, 2, 100);
    check_migrated();
    for (struct end *e = &p.a; e; e = e == &p.a ? &p.b : NULL) {
        struct rnic_qp_attr attr = alt_attr(e, RNIC_MIG_REARM);
        attr.alt_ah_attr.grh.sgid_index = 0;
        memcpy(attr.alt_ah_attr.grh.dgid.raw, &e->peer->node->addr.sin6_addr, 16);
        CHECK_EQ(fabric_modify(e->qp, &attr, mask_alt | mask_mig, NULL), 0);
    }
    send_one(&p.a, 3, 100);
    CHECK_EQ(mig_state(&p.b), RNIC_MIG_ARMED);
    CHECK_EQ(modify(&p.b, RNIC_MIG_MIGRATED, mask_mig), 0);
    send_one(&p.b, 4, 100);
    CHECK(!on_second(&p.a) && !on_second(&p.b));
    closes();
}

/* Whatever is under way when the path breaks: everything arrives once, along the other one. */
static void a_broken_path_is_left_when_the_retries_are_used_up(void) {
    for (uint64_t seed = 0; seed < 8; seed++) {
        struct rnic_fault fault = {.seed = seed, .loss = seed ? 30000 : 0, .duplicate = 10000, .reorder = 20000};
        enum { MESSAGES = 12, BYTES = 9000, AT = 16384 };
        check_note("seed %llu", (unsigned long long)seed);
        pair_open(&p, .retry_cnt = 2, .bytes = 1 << 18, .bandwidth = 50000000);
        arm_both();
        fault_set(&p.a.node->fault, &fault);
        fault_set(&p.b.node->fault, &fault);
        fill(p.a.mem, MESSAGES * AT, seed);
        for (uint64_t i = 0; i < MESSAGES; i++) {
            post_recv(&p.b, i, i * AT, AT);
            post_send(&p.a, i, i * AT, BYTES);
        }
        fabric_run(&p.f, p.f.now + 300 * US + seed * 100 * US);
        p.f.dead = &p.a.node->addr;
        fabric_settle(&p.f);
        for (uint64_t i = 0; i < MESSAGES; i++) {
            WANT(p.a.send_cq, i, SUCCESS);
            WANT(p.b.recv_cq, i, SUCCESS);
            CHECK(!memcmp(p.a.mem + i * AT, p.b.mem + i * AT, BYTES));
        }
        WANT_NONE(p.b.recv_cq);
        check_migrated();
        CHECK(COUNTER(&p.a, timeouts) >= (seed ? 1 : 3)); /* of losses NAKs tell, too */
        closes();
    }
}

/* Whatever was used up, or known, is of the path that has been left. */
static void another_path_has_all_retries_and_a_round_trip_of_its_own(void) {
    pair_open(&p, .retry_cnt = 2);
    arm_both();
    struct requester *req = &rc_of(p.a.qp)->req;
    CHECK(req->srtt != 0);
    p.f.dead = &p.b.node->addr;
    post_write(&p.a, 1, 0, 0, 10);
    while (take_event(&p.a) != RNIC_EVENT_PATH_MIG)
        CHECK(fabric_step(&p.f, NEVER));
    CHECK_EQ(COUNTER(&p.a, timeouts), 3);
    CHECK_EQ(req->retries, 2);
    CHECK_EQ(req->srtt, 0);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    closes();
}

static void reads_and_atomics_migrate_too(void) {
    pair_open(&p, .retry_cnt = 1);
    arm_both();
    fill(p.b.mem, 8192, 9);
    memset(p.b.mem + 16384, 0, 8);
    p.f.dead = &p.b.node->addr;
    post_read(&p.a, 5, 0, 0, 8192);
    post_add(&p.a, 6, 8192, 16384, 7);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 5, SUCCESS);
    WANT(p.a.send_cq, 6, SUCCESS);
    CHECK(filled(p.a.mem, 8192, 9));
    CHECK_EQ(p.b.mem[16384], 7);
    check_migrated();
    closes();
}

static void when_both_paths_are_broken_the_request_fails(void) {
    pair_open(&p, .retry_cnt = 1);
    arm_both();
    p.f.dead = &p.b.node->addr;
    post_send(&p.a, 5, 0, 100);
    while (take_event(&p.a) != RNIC_EVENT_PATH_MIG)
        CHECK(fabric_step(&p.f, NEVER));
    p.f.dead = &p.b.node->addr2;
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 5, RETRY_EXC_ERR);
    CHECK_EQ(p.a.qp->state, RNIC_QPS_ERR);
    closes();
}

static void without_the_peers_consent_a_broken_path_fails_the_request(void) {
    pair_open(&p, .retry_cnt = 1);
    rearm(&p.a);
    p.f.dead = &p.b.node->addr;
    post_send(&p.a, 5, 0, 100);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 5, RETRY_EXC_ERR);
    closes();
}

static void unreliable_connections_migrate_with_the_peer(void) {
    pair_open(&p, .type = RNIC_QPT_UC);
    rearm(&p.a);
    rearm(&p.b);
    send_one(&p.a, 1, 100);
    send_one(&p.b, 2, 100);
    CHECK_EQ(mig_state(&p.a), RNIC_MIG_ARMED);
    CHECK_EQ(mig_state(&p.b), RNIC_MIG_ARMED);
    CHECK_EQ(modify(&p.b, RNIC_MIG_MIGRATED, mask_mig), 0);
    send_one(&p.b, 3, 3000);
    CHECK(on_second(&p.a) && on_second(&p.b));
    CHECK_EQ(take_event(&p.a), RNIC_EVENT_PATH_MIG);
    send_one(&p.a, 4, 3000);
    closes();
}

/* ---------------------------------------------------------------- what the peer may not do */

static void inject_opcode(struct way *way, uint8_t opcode, uint8_t m, uint32_t psn) {
    uint8_t packet[64] = {opcode};
    bth_set_m(packet, m);
    bth_set_pkey(packet, 0xFFFF);
    bth_set_dqpn(packet, p.b.qp->pub.qp_num);
    bth_set_psn(packet, psn);
    fabric_inject(p.a.node, way, packet, roce_opcode(opcode)->header);
    fabric_settle(&p.f);
}

static void inject(struct way *way, uint8_t m, uint32_t psn) { inject_opcode(way, ROCE_RC_SEND_ONLY, m, psn); }

static void a_migration_that_cannot_be_followed_is_told_once(void) {
    pair_open(&p, 0);
    rearm(&p.a);
    rearm(&p.b); /* no packet has come: REARM */
    struct way alt = p.a.qp->ib.alt;
    inject(&alt, 1, 0x123456);
    inject(&alt, 1, 0x123456);
    CHECK_EQ(take_event(&p.b), RNIC_EVENT_PATH_MIG_ERR);
    CHECK_EQ(take_event(&p.b), -1);
    CHECK_EQ(COUNTER(&p.b, drop_bad_source), 2);
    CHECK_EQ(COUNTER(&p.b, requests_executed), 0);
    send_one(&p.a, 1, 10);
    CHECK_EQ(mig_state(&p.b), RNIC_MIG_ARMED);
    struct way cross = p.a.qp->ib.alt; /* from the second address to the first: neither of the two paths */
    cross.dst = p.a.qp->way.dst;
    inject(&cross, 1, 0x123457);
    CHECK_EQ(mig_state(&p.b), RNIC_MIG_ARMED);
    CHECK_EQ(take_event(&p.b), -1); /* told since the last REARM */
    rearm(&p.b);
    inject(&cross, 1, 0x123457);
    CHECK_EQ(take_event(&p.b), RNIC_EVENT_PATH_MIG_ERR);
    closes();
}

static void packets_on_the_alternate_path_need_a_migration_request(void) {
    pair_open(&p, 0);
    arm_both();
    struct way alt = p.a.qp->ib.alt;
    inject(&alt, 0, 0x123457);
    CHECK_EQ(COUNTER(&p.b, drop_bad_source), 1);
    CHECK_EQ(mig_state(&p.b), RNIC_MIG_ARMED);
    CHECK_EQ(take_event(&p.b), -1);
    closes();
}

static void a_late_packet_of_before_is_no_request(void) {
    pair_open(&p, 0);
    arm_both();
    inject(&p.a.qp->way, 1, 0x123456); /* a duplicate */
    CHECK_EQ(COUNTER(&p.b, duplicate_requests), 1);
    CHECK_EQ(mig_state(&p.b), RNIC_MIG_ARMED);
    CHECK_EQ(take_event(&p.b), -1);
    closes();
}

/* The addresses and the number can be known to who is not the peer, the PSN hardly. */
static void a_packet_that_the_service_would_not_take_moves_nothing(void) {
    static const int32_t far[] = {1, 1000, PSN_HALF - 1, -20000, -PSN_HALF};
    pair_open(&p, 0);
    arm_both();
    struct way alt = p.a.qp->ib.alt, cross = alt;
    cross.dst = p.a.qp->way.dst;
    for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
        check_note("%d from the expected PSN", far[i]);
        inject(&alt, 1, psn_add(0x123457, far[i]));
        inject(&cross, 1, psn_add(0x123457, far[i]));
        CHECK_EQ(mig_state(&p.b), RNIC_MIG_ARMED);
        CHECK_EQ(take_event(&p.b), -1);
    }
    CHECK_EQ(COUNTER(&p.b, drop_bad_source), 2 * sizeof far / sizeof *far);
    inject_opcode(&alt, ROCE_RC_ACK, 1, 0x654321);       /* nothing has been asked */
    inject_opcode(&alt, ROCE_RC_SEND_LAST, 1, 0x123457); /* of no message */
    CHECK_EQ(mig_state(&p.b), RNIC_MIG_ARMED);
    inject(&alt, 1, 0x123457);
    CHECK_EQ(take_event(&p.b), RNIC_EVENT_PATH_MIG);
    closes();
}

static void nor_does_it_arm(void) {
    pair_open(&p, 0);
    rearm(&p.b);
    inject(&p.a.qp->way, 0, 0x123457);
    CHECK_EQ(COUNTER(&p.b, out_of_sequence), 1);
    inject_opcode(&p.a.qp->way, ROCE_CNP, 0, 0); /* CNPs have MigReq 0 whatever the peer's state (A17.9.3) */
    CHECK_EQ(COUNTER(&p.b, cnp_handled), 1);
    CHECK_EQ(mig_state(&p.b), RNIC_MIG_REARM);
    inject(&p.a.qp->way, 0, 0x123456);
    CHECK_EQ(mig_state(&p.b), RNIC_MIG_ARMED);
    closes();
}

static enum verdict lose_answers(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)arg;
    (void)nth;
    (void)bth;
    return from == p.b.node && !on_second(&p.b) ? LOSE : PASS;
}

/* One direction of the path is broken: the peer repeats what has been done. */
static void a_repeated_request_is_a_migration_request(void) {
    pair_open(&p, .retry_cnt = 1);
    arm_both();
    post_recv(&p.b, 5, 0, 100);
    post_send(&p.a, 5, 0, 100);
    p.f.judge = lose_answers;
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 5, SUCCESS);
    WANT(p.b.recv_cq, 5, SUCCESS);
    CHECK(COUNTER(&p.b, duplicate_requests) >= 1);
    check_migrated();
    closes();
}

/* A packet that begins a message has whatever PSN it likes there (IBA 9.8.2.2). */
static void of_unreliable_connections_what_goes_on_with_nothing_moves_nothing(void) {
    pair_open(&p, .type = RNIC_QPT_UC);
    rearm(&p.a);
    rearm(&p.b);
    send_one(&p.a, 1, 100);
    struct way alt = p.a.qp->ib.alt;
    inject_opcode(&alt, ROCE_RC_SEND_LAST | ROCE_SERVICE_UC, 1, 0x123457);
    CHECK_EQ(mig_state(&p.b), RNIC_MIG_ARMED);
    inject_opcode(&alt, ROCE_RC_SEND_ONLY | ROCE_SERVICE_UC, 1, 0x345678);
    CHECK_EQ(take_event(&p.b), RNIC_EVENT_PATH_MIG);
    closes();
}

/* ---------------------------------------------------------------- what the program may not do */

static void the_states_that_a_program_can_set(void) {
    pair_open(&p, 0);
    CHECK_EQ(modify(&p.a, RNIC_MIG_REARM, mask_mig), -EINVAL); /* nothing is loaded */
    CHECK_EQ(modify(&p.a, RNIC_MIG_ARMED, mask_mig), -EINVAL);
    CHECK_EQ(modify(&p.a, 3, mask_mig), -EINVAL);
    CHECK_EQ(modify(&p.a, RNIC_MIG_MIGRATED, mask_mig), 0);            /* it is */
    CHECK_EQ(modify(&p.a, RNIC_MIG_MIGRATED, mask_mig | mask_alt), 0); /* and stays so */
    CHECK(!on_second(&p.a));
    CHECK_EQ(modify(&p.a, 0, mask_alt), 0);
    CHECK_EQ(mig_state(&p.a), RNIC_MIG_MIGRATED);
    CHECK_EQ(modify(&p.a, RNIC_MIG_REARM, mask_mig), 0);
    CHECK_EQ(modify(&p.a, RNIC_MIG_MIGRATED, mask_mig), -EINVAL); /* the peer does not know yet */
    CHECK_EQ(modify(&p.a, 0, mask_alt), -EINVAL);
    rearm(&p.b);
    send_one(&p.a, 1, 10);
    CHECK_EQ(mig_state(&p.a), RNIC_MIG_ARMED);
    CHECK_EQ(modify(&p.a, 0, mask_alt), -EINVAL);
    CHECK_EQ(modify(&p.a, RNIC_MIG_MIGRATED, mask_mig | mask_alt), -EINVAL);
    rearm(&p.a);
    CHECK_EQ(mig_state(&p.a), RNIC_MIG_REARM);
    struct rnic_qp_attr attr = alt_attr(&p.a, RNIC_MIG_REARM);
    attr.alt_port_num = 2;
    CHECK_EQ(fabric_modify(p.a.qp, &attr, mask_alt | mask_mig, NULL), -EINVAL);
    attr = alt_attr(&p.a, RNIC_MIG_REARM);
    attr.alt_pkey_index = 1; /* empty */
    CHECK_EQ(fabric_modify(p.a.qp, &attr, mask_alt | mask_mig, NULL), -EINVAL);
    attr.alt_pkey_index = PKEYS;
    CHECK_EQ(fabric_modify(p.a.qp, &attr, mask_alt | mask_mig, NULL), -EINVAL);
    CHECK_EQ(move(p.a.qp, RNIC_QPS_RESET), 0);
    CHECK(mig_state(&p.a) == RNIC_MIG_MIGRATED && !p.a.qp->ib.alt_loaded);
    closes();
}

/* ---------------------------------------------------------------- partitions (IBA 10.9.3) */

static void only_members_of_one_partition_of_which_one_is_full_talk(void) {
    static const struct {
        uint16_t a, b;
        bool talk;
    } cases[] = {{0xFFFF, 0xFFFF, true},  {0xFFFF, 0x7FFF, true},  {0x7FFF, 0xFFFF, true},  {0x7FFF, 0x7FFF, false},
                 {0x8001, 0x8001, true},  {0x8001, 0x0001, true},  {0x0001, 0x0001, false}, {0x8001, 0x8002, false},
                 {0xFFFF, 0x8001, false}, {0x8000, 0x8000, false}, {0, 0xFFFF, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_note("0x%04x to 0x%04x", cases[i].a, cases[i].b);
        pair_open(&p, .retry_cnt = 1);
        p.a.qp->ib.pkey = p.a.node->nic.ib.pkeys[0] = cases[i].a;
        p.b.qp->ib.pkey = p.b.node->nic.ib.pkeys[0] = cases[i].b;
        CHECK_EQ(pkey_match(cases[i].a, cases[i].b), cases[i].talk);
        if (cases[i].talk) {
            send_one(&p.a, 1, 3000);
        } else {
            post_recv(&p.b, 1, 0, 100);
            post_send(&p.a, 1, 0, 100);
            fabric_settle(&p.f);
            WANT(p.a.send_cq, 1, RETRY_EXC_ERR);
            CHECK(COUNTER(&p.b, drop_bad_pkey) >= 2);
            CHECK_EQ(COUNTER(&p.b, requests_executed), 0);
        }
        closes();
    }
}

static void a_queue_pair_is_of_the_partition_at_its_index(void) {
    struct options o = {.retry_cnt = 1};
    struct cq *cq = fabric_cq(16, NULL);
    pair_open_options(&p, &o);
    p.a.node->nic.ib.pkeys[2] = 0x8123;
    struct rnic_qp_cap cap = {1, 1, 1, 1, 0};
    struct qp *qp = fabric_qp(p.a.node, &cap, cq, cq);
    struct rnic_qp_attr attr = {.qp_state = RNIC_QPS_INIT, .port_num = 1, .pkey_index = 1};
    CHECK_EQ(fabric_modify(qp, &attr, mask_init, NULL), -EINVAL); /* empty */
    attr.pkey_index = PKEYS;
    CHECK_EQ(fabric_modify(qp, &attr, mask_init, NULL), -EINVAL);
    attr.pkey_index = 2;
    CHECK_EQ(fabric_modify(qp, &attr, mask_init, NULL), 0);
    CHECK_EQ(qp->ib.pkey, 0x8123);
    CHECK_EQ(qp_pkey_index(qp, 0x0123), 2);
    CHECK_EQ(qp_pkey_index(qp, 0xFFFF), -1);
    qp->pub.qp_type = RNIC_QPT_GSI;
    CHECK_EQ(qp_pkey_index(qp, 0xFFFF), 0);
    CHECK_EQ(qp_pkey_index(qp, 0x8123), 2);
    closes();
    fabric_drop_cq(cq);
}

static void the_alternate_path_has_a_partition_of_its_own(void) {
    pair_open(&p, 0);
    for (struct end *e = &p.a; e; e = e == &p.a ? &p.b : NULL) {
        e->node->nic.ib.pkeys[1] = 0x8005;
        struct rnic_qp_attr attr = alt_attr(e, RNIC_MIG_REARM);
        attr.alt_pkey_index = 1;
        CHECK_EQ(fabric_modify(e->qp, &attr, mask_alt | mask_mig, NULL), 0);
    }
    send_one(&p.a, 1, 10);
    p.a.qp->ib.pkey = 0x8005; /* of the other path: no way in on this one */
    post_send(&p.a, 9, 0, 10);
    fabric_run(&p.f, p.f.now + MS);
    CHECK(COUNTER(&p.b, drop_bad_source) >= 1);
    CHECK_EQ(COUNTER(&p.b, requests_executed), 1);
    p.a.qp->ib.pkey = 0xFFFF;
    post_recv(&p.b, 9, 0, 10);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 9, SUCCESS);
    WANT(p.b.recv_cq, 9, SUCCESS);
    CHECK_EQ(modify(&p.a, RNIC_MIG_MIGRATED, mask_mig), 0);
    CHECK_EQ(p.a.qp->ib.pkey, 0x8005);
    send_one(&p.a, 2, 10);
    CHECK_EQ(p.b.qp->ib.pkey, 0x8005);
    CHECK_EQ(p.b.qp->attr.pkey_index, 1);
    closes();
}

int main(void) {
    RUN(both_ends_arm_with_the_next_packets_after_both_have_rearmed);
    RUN(a_program_migrates_and_the_peer_follows);
    RUN(the_ports_of_the_way_that_was_left_are_forgotten);
    RUN(a_migrated_pair_can_go_back);
    RUN(a_broken_path_is_left_when_the_retries_are_used_up);
    RUN(another_path_has_all_retries_and_a_round_trip_of_its_own);
    RUN(reads_and_atomics_migrate_too);
    RUN(when_both_paths_are_broken_the_request_fails);
    RUN(without_the_peers_consent_a_broken_path_fails_the_request);
    RUN(unreliable_connections_migrate_with_the_peer);
    RUN(a_migration_that_cannot_be_followed_is_told_once);
    RUN(packets_on_the_alternate_path_need_a_migration_request);
    RUN(a_late_packet_of_before_is_no_request);
    RUN(a_packet_that_the_service_would_not_take_moves_nothing);
    RUN(nor_does_it_arm);
    RUN(a_repeated_request_is_a_migration_request);
    RUN(of_unreliable_connections_what_goes_on_with_nothing_moves_nothing);
    RUN(the_states_that_a_program_can_set);
    RUN(only_members_of_one_partition_of_which_one_is_full_talk);
    RUN(a_queue_pair_is_of_the_partition_at_its_index);
    RUN(the_alternate_path_has_a_partition_of_its_own);
    return check_done();
}
