/* SPDX-License-Identifier: Apache-2.0
 *
 * Unreliable datagrams on virtual time: what is sent, what a receive gets, what is dropped, and what a hostile sender
 * can do.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "fabric.h"
#include "roce/roce.h"
#include "transitions.h"
#include "wire/bth.h"
#include "wire/grh.h"
#include "wire/mad.h"

#define QKEY 0x11223344u
#define BYTES 8192

static struct fabric f;
static struct side { /* one queue pair with all that it needs */
    struct node *node;
    struct qp *qp;
    struct cq *sends, *receives;
    struct mr *mr;
    uint8_t mem[BYTES];
} a, b;
static struct ah *to_b;

static void open_side(struct side *s, int i, int type, uint32_t qkey) {
    memset(s, 0, sizeof *s);
    s->node = &f.node[i];
    s->sends = fabric_cq(64, NULL);
    s->receives = fabric_cq(64, NULL);
    s->qp = fabric_ud(s->node, type, qkey, s->sends, s->receives);
    s->mr = fabric_mr(s->node, &s->node->pd, s->mem, BYTES, RNIC_ACCESS_LOCAL_WRITE);
}

static void open_pair(int type, uint32_t qkey, bool ipv6) {
    fabric_open(&f, ipv6);
    open_side(&a, 0, type, qkey);
    open_side(&b, 1, type, qkey);
    to_b = fabric_ah(a.node, b.node);
}

static void open_both(void) { open_pair(RNIC_QPT_UD, QKEY, false); }

static void close_both(void) {
    struct ah *ah = to_b;
    while (a.node->qps)
        fabric_destroy(a.node->qp[0]);
    CHECK_EQ(ah->head.users, 1);
    struct side sides[] = {a, b};
    for (int i = 0; i < 2; i++) {
        if (sides[i].mr)
            mr_remove(&sides[i].node->nic.mrs, sides[i].mr);
    }
    fabric_close(&f);
    for (int i = 0; i < 2; i++) {
        free(sides[i].mr);
        fabric_drop_cq(sides[i].sends);
        fabric_drop_cq(sides[i].receives);
    }
}

static struct rnic_sge piece(const struct side *s, uint64_t at, uint32_t n) {
    return (struct rnic_sge){(uintptr_t)s->mem + at, n, s->mr->pub.lkey};
}

static int try_send(struct side *s, struct rnic_send_wr wr, uint32_t n) {
    const struct rnic_send_wr *bad;
    struct rnic_sge sge = piece(s, 0, n);
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.send_flags |= RNIC_SEND_SIGNALED;
    wr.wr.ud.ah = &to_b->head.pub;
    if (!wr.wr.ud.remote_qpn)
        wr.wr.ud.remote_qpn = b.qp->pub.qp_num;
    if (!wr.wr.ud.remote_qkey)
        wr.wr.ud.remote_qkey = QKEY;
    if (!wr.opcode)
        wr.opcode = RNIC_WR_SEND;
    int rc = sq_post(&s->qp->sq, &wr, &bad, NULL);
    if (!rc)
        fabric_turn(s->qp);
    return rc;
}

/* A SEND unless it is something else; RDMA_WRITE is 0 and not sent so. */
#define SEND(n, ...) CHECK_EQ(try_send(&a, (struct rnic_send_wr){__VA_ARGS__}, n), 0)

static void receive(struct side *s, uint64_t id, uint32_t n) {
    struct rnic_sge sge = piece(s, 0, n);
    struct rnic_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1};
    const struct rnic_recv_wr *bad;
    CHECK_EQ(rq_post(&s->qp->rq, &wr, &bad, NULL), 0);
    if (s->qp->state == RNIC_QPS_ERR)
        fabric_turn(s->qp);
}

static uint64_t counted(const struct side *s, int counter) { return s->node->nic.counters.value[counter]; }
#define COUNTED(s, name) counted(s, RNIC_CNT_##name)

/* As the queue pair and the device both count it. */
static uint64_t dropped(const struct side *s, int counter) {
    CHECK_EQ(s->qp->counters.value[counter], counted(s, counter));
    return counted(s, counter);
}
#define DROPPED(s, name) dropped(s, RNIC_CNT_##name)

/* ---------------------------------------------------------------- what arrives */

static void a_datagram_arrives_behind_40_bytes_and_completes_its_send_at_once(void) {
    open_both();
    fill(a.mem, 1000, 1);
    receive(&b, 7, BYTES);
    SEND(1000, .wr_id = 3);
    WANT(a.sends, 3, SUCCESS);
    CHECK(wq_empty(&a.qp->sq));
    fabric_settle(&f);
    struct rnic_wc wc = WANT(b.receives, 7, SUCCESS);
    CHECK_EQ(wc.byte_len, 1040);
    CHECK_EQ(wc.opcode, RNIC_WCO_RECV);
    CHECK_EQ(wc.src_qp, a.qp->pub.qp_num);
    CHECK_EQ(wc.ip_version, 4);
    CHECK_EQ(wc.wc_flags, RNIC_WCF_GRH);
    CHECK(filled(b.mem + GRH_BYTES, 1000, 1));
    CHECK_EQ(fabric_count(&f, a.node, 1, -1), 1);
    CHECK_EQ(fabric_count(&f, b.node, 0, -1), 0); /* nobody answers */
    CHECK(COUNTED(&a, requests_sent) == 1 && COUNTED(&b, requests_executed) == 1);
    CHECK_EQ(f.log[0].psn, 0xFFFFFF);
    a.mr->access = 0; /* what is sent need not be written */
    SEND(1, 0);
    CHECK_EQ(f.log[f.logged - 1].psn, 0);
    close_both();
}

static enum verdict look_at_the_reserved_byte(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)from, (void)nth;
    *(int *)arg = bth[12 + 4]; /* of the DETH, between Q_Key and queue pair (IBA 9.3.2) */
    return PASS;
}

static void what_is_reserved_in_the_header_is_0(void) {
    int byte = -1;
    open_both();
    f.judge = look_at_the_reserved_byte;
    f.judge_arg = &byte;
    receive(&b, 1, BYTES);
    SEND(4, 0);
    fabric_settle(&f);
    WANT(b.receives, 1, SUCCESS);
    CHECK_EQ(byte, 0);
    close_both();
}

static void an_immediate_and_the_solicited_bit_arrive(void) {
    open_both();
    receive(&b, 1, BYTES);
    SEND(4, .opcode = RNIC_WR_SEND_WITH_IMM, .imm_data = 0x01020304, .send_flags = RNIC_SEND_SOLICITED);
    fabric_settle(&f);
    struct rnic_wc wc = WANT(b.receives, 1, SUCCESS);
    CHECK_EQ(wc.wc_flags, RNIC_WCF_GRH | RNIC_WCF_WITH_IMM);
    CHECK_EQ(wc.imm_data, 0x01020304);
    CHECK(f.log[0].solicited);
    close_both();
}

static void the_header_of_ipv4_stands_in_the_last_20_bytes(void) {
    static const uint8_t want[20] = {0x45, 0x68, 0, 20 + 8 + 24 + 4, 0, 0, 0x40, 0, 33, 17, 0, 0, 10, 0, 0, 1, 10,
                                     0,    0,    2};
    open_both();
    receive(&b, 1, BYTES);
    memset(b.mem, 0xEE, 64);
    SEND(3, 0);
    fabric_settle(&f);
    WANT(b.receives, 1, SUCCESS);
    uint32_t sum = 0;
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(b.mem[i], 0);
        if (i != 10 && i != 11)
            CHECK_EQ(b.mem[20 + i], want[i]);
        sum += (uint32_t)b.mem[20 + i] << (i & 1 ? 0 : 8);
    }
    CHECK_EQ((sum & 0xFFFF) + (sum >> 16), 0xFFFF);
    close_both();
}

static void the_header_of_ipv6_fills_all_40(void) {
    open_pair(RNIC_QPT_UD, QKEY, true);
    receive(&b, 1, BYTES);
    SEND(3, 0);
    fabric_settle(&f);
    WANT(b.receives, 1, SUCCESS);
    CHECK_EQ(get_be32(b.mem), 0x66800000);
    CHECK_EQ(get_be16(b.mem + 4), 8 + 24 + 4);
    CHECK_EQ(b.mem[6], 17);
    CHECK_EQ(b.mem[7], 33);
    CHECK(!memcmp(b.mem + 8, &a.node->addr.sin6_addr, 16));
    CHECK(!memcmp(b.mem + 24, &b.node->addr.sin6_addr, 16));
    close_both();
}

static void the_privileged_q_key_stands_for_the_senders_own(void) {
    open_both();
    receive(&b, 1, BYTES);
    SEND(3, .wr.ud.remote_qkey = 0x80000000);
    fabric_settle(&f);
    WANT(b.receives, 1, SUCCESS);
    close_both();
}

static void work_keeps_its_address_handle_until_it_is_done(void) {
    open_both();
    struct side *s = &a;
    CHECK_EQ(move(s->qp, RNIC_QPS_SQD), 0);
    SEND(3, 0);
    SEND(3, 0);
    CHECK_EQ(to_b->head.users, 3);
    CHECK_EQ(move(s->qp, RNIC_QPS_RTS), 0);
    CHECK_EQ(to_b->head.users, 1);
    CHECK_EQ(move(s->qp, RNIC_QPS_SQD), 0);
    SEND(3, 0);
    CHECK_EQ(move(s->qp, RNIC_QPS_RESET), 0);
    CHECK_EQ(to_b->head.users, 1);
    close_both();
}

static void a_drained_send_queue_says_so_at_once(void) {
    struct rnic_async_event event;
    open_both();
    struct rnic_qp_attr attr = {.qp_state = RNIC_QPS_SQD, .en_sqd_async_notify = 1};
    CHECK_EQ(fabric_modify(a.qp, &attr, RNIC_QP_STATE | RNIC_QP_EN_SQD_ASYNC_NOTIFY, NULL), 0);
    CHECK(event_take(&a.node->nic.events, &event));
    CHECK_EQ(event.event_type, RNIC_EVENT_SQ_DRAINED);
    CHECK(!a.qp->sq_draining);
    close_both();
}

/* ---------------------------------------------------------------- what is refused, and what is dropped */

static void what_no_datagram_can_do_is_refused_when_posted(void) {
    open_both();
    CHECK(try_send(&a, (struct rnic_send_wr){.opcode = RNIC_WR_RDMA_WRITE_WITH_IMM}, 3) < 0);
    CHECK(try_send(&a, (struct rnic_send_wr){.opcode = RNIC_WR_RDMA_READ}, 3) < 0);
    CHECK(try_send(&a, (struct rnic_send_wr){.wr.ud.remote_qpn = 1 << 24}, 3) < 0);
    to_b->head.pub.pd = &a.node->other_pd.pub;
    CHECK(try_send(&a, (struct rnic_send_wr){0}, 3) < 0);
    to_b->head.pub.pd = &a.node->pd.pub;
    CHECK_EQ(to_b->head.users, 1);
    close_both();
}

static void a_message_longer_than_the_mtu_stops_the_send_queue_alone(void) {
    open_both();
    CHECK_EQ(move(a.qp, RNIC_QPS_SQD), 0);
    SEND(1024, .wr_id = 1);
    SEND(1025, .wr_id = 2);
    SEND(3, .wr_id = 3);
    CHECK_EQ(move(a.qp, RNIC_QPS_RTS), 0);
    WANT(a.sends, 1, SUCCESS);
    WANT(a.sends, 2, LOC_LEN_ERR);
    WANT(a.sends, 3, WR_FLUSH_ERR);
    CHECK_EQ(a.qp->state, RNIC_QPS_SQE);
    SEND(3, .wr_id = 4);
    WANT(a.sends, 4, WR_FLUSH_ERR);
    CHECK_EQ(to_b->head.users, 1);

    receive(&a, 5, BYTES); /* receives go on */
    struct way from_b = {.src = b.node->addr, .dst = a.node->addr};
    uint8_t packet[BTH_BYTES + DETH_BYTES] = {ROCE_UD_SEND_ONLY};
    bth_set_pkey(packet, 0xFFFF);
    bth_set_dqpn(packet, a.qp->pub.qp_num);
    deth_set_qkey(packet + BTH_BYTES, QKEY);
    fabric_inject(b.node, &from_b, packet, sizeof packet);
    fabric_settle(&f);
    WANT(a.receives, 5, SUCCESS);

    CHECK_EQ(move(a.qp, RNIC_QPS_RTS), 0);
    SEND(3, .wr_id = 6);
    WANT(a.sends, 6, SUCCESS);
    close_both();
}

static void a_wrong_lkey_stops_the_send_queue_alone(void) {
    open_both();
    a.mr->pub.lkey ^= 0x100;
    SEND(3, .wr_id = 1);
    a.mr->pub.lkey ^= 0x100;
    WANT(a.sends, 1, LOC_PROT_ERR);
    CHECK_EQ(a.qp->state, RNIC_QPS_SQE);
    close_both();
}

static void another_q_key_is_dropped_and_counted(void) {
    open_both();
    receive(&b, 1, BYTES);
    SEND(3, .wr.ud.remote_qkey = QKEY + 1);
    fabric_settle(&f);
    WANT_NONE(b.receives);
    CHECK_EQ(DROPPED(&b, drop_bad_qkey), 1);
    CHECK_EQ(b.qp->state, RNIC_QPS_RTS);
    close_both();
}

static void without_a_receive_it_is_dropped_and_counted(void) {
    open_both();
    SEND(3, 0);
    fabric_settle(&f);
    CHECK_EQ(DROPPED(&b, drop_no_receive), 1);
    receive(&b, 1, BYTES);
    SEND(3, 0);
    fabric_settle(&f);
    WANT(b.receives, 1, SUCCESS);
    close_both();
}

static void a_receive_without_room_for_header_and_payload_ends_in_a_length_error(void) {
    open_both();
    receive(&b, 1, GRH_BYTES + 100);
    receive(&b, 2, BYTES);
    SEND(100, 0);
    fabric_settle(&f);
    WANT(b.receives, 1, SUCCESS);
    b.mem[0] = 0xEE;
    CHECK_EQ(move(b.qp, RNIC_QPS_RESET), 0);
    struct rnic_qp_attr attr = {.qp_state = RNIC_QPS_INIT, .port_num = 1, .qkey = QKEY};
    CHECK_EQ(fabric_modify(b.qp, &attr, RNIC_QP_STATE | RNIC_QP_PKEY_INDEX | RNIC_QP_PORT | RNIC_QP_QKEY, NULL), 0);
    CHECK_EQ(move(b.qp, RNIC_QPS_RTR), 0);
    receive(&b, 3, GRH_BYTES + 99);
    receive(&b, 4, BYTES);
    SEND(100, 0);
    fabric_settle(&f);
    WANT(b.receives, 3, LOC_LEN_ERR);
    WANT(b.receives, 4, WR_FLUSH_ERR);
    CHECK_EQ(b.qp->state, RNIC_QPS_ERR);
    CHECK_EQ(b.mem[0], 0xEE);
    close_both();
}

static void a_receive_whose_memory_is_gone_ends_in_an_error(void) {
    open_both();
    receive(&b, 1, BYTES);
    fabric_drop_mr(b.node, b.mr);
    b.mr = NULL;
    SEND(3, 0);
    fabric_settle(&f);
    WANT(b.receives, 1, LOC_PROT_ERR);
    CHECK_EQ(b.qp->state, RNIC_QPS_ERR);
    close_both();
}

static void a_connected_packet_is_not_for_a_datagram_queue_pair_nor_the_other_way_round(void) {
    open_both();
    receive(&b, 1, BYTES);
    struct rnic_qp_cap cap = {16, 16, 4, 4, 64};
    struct qp *rc = fabric_qp(b.node, &cap, b.sends, b.receives);
    uint8_t packet[BTH_BYTES + DETH_BYTES] = {ROCE_RC_SEND_ONLY};
    bth_set_pkey(packet, 0xFFFF);
    bth_set_dqpn(packet, b.qp->pub.qp_num);
    fabric_inject(a.node, &to_b->way, packet, BTH_BYTES);
    bth_set_opcode(packet, ROCE_UD_SEND_ONLY);
    bth_set_dqpn(packet, rc->pub.qp_num);
    fabric_inject(a.node, &to_b->way, packet, sizeof packet);
    fabric_settle(&f);
    CHECK_EQ(COUNTED(&b, drop_bad_opcode), 2);
    WANT_NONE(b.receives);
    close_both();
}

static void more_than_4096_bytes_are_no_packet(void) {
    static uint8_t packet[BTH_BYTES + DETH_BYTES + 4100] = {ROCE_UD_SEND_ONLY};
    open_both();
    receive(&b, 1, BYTES);
    bth_set_pkey(packet, 0xFFFF);
    bth_set_dqpn(packet, b.qp->pub.qp_num);
    deth_set_qkey(packet + BTH_BYTES, QKEY);
    fabric_inject(a.node, &to_b->way, packet, sizeof packet);
    fabric_inject(a.node, &to_b->way, packet, sizeof packet - 4);
    fabric_settle(&f);
    CHECK_EQ(DROPPED(&b, drop_malformed), 1);
    CHECK_EQ(WANT(b.receives, 1, SUCCESS).byte_len, GRH_BYTES + 4096);
    close_both();
}

/* Its Q_Key is everybody's, so that a stranger must not bring it down. */
static void queue_pair_1_takes_mads_with_its_own_q_key_and_nothing_else(void) {
    open_pair(RNIC_QPT_GSI, GSI_QKEY, false);
    receive(&b, 1, GRH_BYTES + MAD_BYTES);
    SEND(MAD_BYTES, .wr.ud = {.remote_qpn = QPN_GSI, .remote_qkey = QKEY});
    SEND(MAD_BYTES + 1, .wr.ud = {.remote_qpn = QPN_GSI, .remote_qkey = 0x80000000});
    SEND(MAD_BYTES - 1, .wr.ud = {.remote_qpn = QPN_GSI, .remote_qkey = 0x80000000});
    fabric_settle(&f);
    CHECK_EQ(DROPPED(&b, drop_bad_qkey), 1);
    CHECK_EQ(DROPPED(&b, drop_malformed), 2);
    WANT_NONE(b.receives);
    SEND(MAD_BYTES, .wr.ud = {.remote_qpn = QPN_GSI, .remote_qkey = GSI_QKEY});
    fabric_settle(&f);
    CHECK_EQ(WANT(b.receives, 1, SUCCESS).src_qp, QPN_GSI);
    struct rnic_qp_attr attr = {.qkey = QKEY};
    CHECK(fabric_modify(b.qp, &attr, RNIC_QP_QKEY, NULL) < 0);
    close_both();
}

static void a_full_completion_queue_ends_in_error(void) {
    open_both();
    fabric_drop_cq(a.sends);
    a.sends = fabric_cq(2, NULL);
    a.qp->pub.send_cq = &a.sends->pub;
    CHECK_EQ(move(a.qp, RNIC_QPS_SQD), 0);
    for (int i = 0; i < 5; i++)
        SEND(3, 0);
    CHECK_EQ(move(a.qp, RNIC_QPS_RTS), 0);
    CHECK_EQ(a.qp->state, RNIC_QPS_ERR);
    CHECK(wq_empty(&a.qp->sq));
    CHECK_EQ(to_b->head.users, 1);
    close_both();
}

/* ---------------------------------------------------------------- states */

/* IBA 11.2.5.2 (table 91) and man ibv_modify_qp, for UD. */
static const struct change rows[] = {
    {RESET, INIT, IN(PKEY_INDEX) | IN(PORT) | IN(QKEY), 0},
    {INIT, INIT, 0, IN(PKEY_INDEX) | IN(PORT) | IN(QKEY)},
    {INIT, RTR, 0, IN(PKEY_INDEX) | IN(QKEY)},
    {RTR, RTS, IN(SQ_PSN), IN(CUR_STATE) | IN(QKEY)},
    {RTS, RTS, 0, IN(CUR_STATE) | IN(QKEY)},
    {RTS, SQD, 0, IN(EN_SQD_ASYNC_NOTIFY)},
    {SQD, RTS, 0, IN(CUR_STATE) | IN(QKEY)},
    {SQD, SQD, 0, IN(PKEY_INDEX) | IN(QKEY)},
    {SQE, RTS, 0, IN(CUR_STATE) | IN(QKEY)},
};

/* A fresh queue pair that is brought into a state. */
static void bring_to(int state) {
    static const int way[] = {RESET, INIT, RTR, RTS, SQD};
    struct rnic_qp_attr attr = {.port_num = 1};
    CHECK_EQ(move(a.qp, RESET), 0);
    for (int i = 1; i < 5 && state != RESET && (state >= SQE ? way[i] <= RTS : way[i] <= state); i++) {
        attr.qp_state = way[i];
        uint32_t required = transition_of(rows, sizeof rows / sizeof *rows, way[i - 1], way[i])->required;
        CHECK_EQ(fabric_modify(a.qp, &attr, IN(STATE) | required, NULL), 0);
    }
    if (state == ERR)
        CHECK_EQ(move(a.qp, ERR), 0);
    if (state == SQE)
        a.qp->state = SQE; /* no move leads there */
    CHECK_EQ(a.qp->state, state);
}

static int attempt(int from, int to, uint32_t mask) {
    struct rnic_qp_attr attr = {.qp_state = to, .cur_qp_state = from, .port_num = 1, .qkey = 7};
    attr.ah_attr = (struct rnic_ah_attr){.is_global = 1, .port_num = 1};
    attr.path_mtu = RNIC_MTU_1024;
    bring_to(from);
    return fabric_modify(a.qp, &attr, mask, NULL);
}

static void every_attribute_in_every_transition(void) {
    open_both();
    CHECK_TRANSITIONS(rows, (IN(DEST_QPN) << 1) - 1 - IN(STATE), attempt);
    close_both();
}

/* ---------------------------------------------------------------- MADs */

static void put_cm(uint8_t mad[MAD_BYTES], uint16_t attribute) {
    for (int i = 0; i < MAD_BYTES; i++)
        mad[i] = (uint8_t)(i ^ 0x5A);
    static const uint8_t head[4] = {1, CM_CLASS, CM_CLASS_VERSION, 3};
    memcpy(mad, head, sizeof head);
    put_be16(mad + 16, attribute);
    put_be32(mad + 24, 0xAAAAAAAA);
    put_be32(mad + 28, 0xBBBBBBBB);
    put_be64(mad + 32, 0x0000000001061234);
}

static void each_cm_message_says_whom_it_is_for(void) {
    uint8_t mad[MAD_BYTES];
    for (uint32_t attribute = 0; attribute < 0x10000; attribute++) {
        put_cm(mad, (uint16_t)attribute);
        struct mad_address to = mad_address(mad);
        check_note("attribute %x", attribute);
        if (attribute == CM_REQ || attribute == CM_SIDR_REQ)
            CHECK(to.target == MAD_FOR_SERVICE && to.service_id == 0x01061234);
        else if (attribute == CM_SIDR_REP)
            CHECK(to.target == MAD_FOR_ID && to.comm_id == 0xAAAAAAAA);
        else if (attribute >= CM_MRA && attribute <= CM_APR)
            CHECK(to.target == MAD_FOR_ID && to.comm_id == 0xBBBBBBBB);
        else
            CHECK_EQ(to.target, MAD_OTHER);
    }
    for (int i = 0; i < 4; i++) { /* base version, class, class version, method */
        put_cm(mad, CM_REQ);
        mad[i] ^= 0x40;
        CHECK_EQ(mad_address(mad).target, MAD_OTHER);
    }
    check_note("%s", "");
}

static void a_refusal_repeats_what_the_request_named(void) {
    uint8_t request[MAD_BYTES], answer[MAD_BYTES];
    put_cm(request, CM_REQ);
    CHECK(mad_answer(answer, request));
    CHECK_EQ(get_be16(answer + 16), CM_REJ);
    CHECK(!memcmp(answer + 8, request + 8, 8));
    CHECK_EQ(get_be32(answer + 24), 0);
    CHECK_EQ(get_be32(answer + 28), 0xAAAAAAAA);
    CHECK_EQ(get_be16(answer + 34), 8);
    put_cm(request, CM_SIDR_REQ);
    CHECK(mad_answer(answer, request));
    CHECK_EQ(get_be16(answer + 16), CM_SIDR_REP);
    CHECK_EQ(get_be32(answer + 24), 0xAAAAAAAA);
    CHECK_EQ(answer[28], 1);
    CHECK_EQ(get_be64(answer + 36), 0x01061234);
    CHECK_EQ(mad_address(answer).target, MAD_FOR_ID); /* never a request: no refusal is refused */
}

static void nothing_else_that_is_for_nobody_is_answered_but_the_end_of_a_connection(void) {
    uint8_t request[MAD_BYTES], answer[MAD_BYTES];
    for (uint16_t attribute = 0; attribute <= CM_APR; attribute++) {
        put_cm(request, attribute);
        check_note("attribute %x", attribute);
        CHECK_EQ(mad_answer(answer, request), attribute == CM_REQ || attribute == CM_SIDR_REQ || attribute == CM_DREQ);
    }
    put_cm(request, CM_DREQ);
    CHECK(mad_answer(answer, request));
    CHECK_EQ(get_be16(answer + 16), CM_DREP);
    CHECK(!memcmp(answer + 8, request + 8, 8));
    CHECK_EQ(get_be32(answer + 24), 0xBBBBBBBB);
    CHECK_EQ(get_be32(answer + 28), 0xAAAAAAAA);
    check_note("%s", "");
}

int main(void) {
    RUN(a_datagram_arrives_behind_40_bytes_and_completes_its_send_at_once);
    RUN(what_is_reserved_in_the_header_is_0);
    RUN(an_immediate_and_the_solicited_bit_arrive);
    RUN(the_header_of_ipv4_stands_in_the_last_20_bytes);
    RUN(the_header_of_ipv6_fills_all_40);
    RUN(the_privileged_q_key_stands_for_the_senders_own);
    RUN(work_keeps_its_address_handle_until_it_is_done);
    RUN(a_drained_send_queue_says_so_at_once);
    RUN(what_no_datagram_can_do_is_refused_when_posted);
    RUN(a_message_longer_than_the_mtu_stops_the_send_queue_alone);
    RUN(a_wrong_lkey_stops_the_send_queue_alone);
    RUN(another_q_key_is_dropped_and_counted);
    RUN(without_a_receive_it_is_dropped_and_counted);
    RUN(a_receive_without_room_for_header_and_payload_ends_in_a_length_error);
    RUN(a_receive_whose_memory_is_gone_ends_in_an_error);
    RUN(a_connected_packet_is_not_for_a_datagram_queue_pair_nor_the_other_way_round);
    RUN(more_than_4096_bytes_are_no_packet);
    RUN(queue_pair_1_takes_mads_with_its_own_q_key_and_nothing_else);
    RUN(a_full_completion_queue_ends_in_error);
    RUN(every_attribute_in_every_transition);
    RUN(each_cm_message_says_whom_it_is_for);
    RUN(a_refusal_repeats_what_the_request_named);
    RUN(nothing_else_that_is_for_nobody_is_answered_but_the_end_of_a_connection);
    return check_done();
}
