/* SPDX-License-Identifier: Apache-2.0
 *
 * raw/ by itself: frames whose headers lie, rules in their order, and queue pairs whose wire is the test.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "check.h"
#include "fabric.h"
#include "raw/raw.h"
#include "transitions.h"

#define MTU 1500
#define SLOT 2048
#define SLOTS 8

/* ---------------------------------------------------------------- frames */

/* A UDP datagram over IPv4, its checksums right: 14 + 20 + 8 + n bytes. */
static uint32_t build_ipv4(uint8_t *p, uint32_t n) {
    struct frame f;
    memset(p, 0, 42 + n);
    memcpy(p, "\2\0\0\0\0\1\2\0\0\0\0\2\x08\x00\x45", 15);
    put_be16(p + 16, (uint16_t)(28 + n));
    p[22] = 64;
    p[23] = IPPROTO_UDP;
    put_be32(p + 26, 0x0A000001);
    put_be32(p + 30, 0x0A000002);
    put_be16(p + 34, 1000);
    put_be16(p + 36, 53);
    put_be16(p + 38, (uint16_t)(8 + n));
    for (uint32_t i = 0; i < n; i++)
        p[42 + i] = (uint8_t)i;
    CHECK(frame_parse(&f, p, 42 + n));
    frame_put_csums(&f, p);
    return 42 + n;
}

/* TCP over IPv6 behind hop-by-hop options, a routing header and a destination header. */
static uint32_t build_ipv6(uint8_t *p) {
    uint32_t n = 14 + 40 + 8 + 24 + 8 + 20;
    memset(p, 0, n);
    memcpy(p, "\2\0\0\0\0\1\2\0\0\0\0\2\x86\xdd\x60", 15);
    put_be16(p + 18, (uint16_t)(n - 54));
    p[20] = IPPROTO_HOPOPTS;
    p[21] = 9;
    p[22] = 0xFD;
    p[38] = 0xFC;
    p[54] = IPPROTO_ROUTING;
    p[62] = IPPROTO_DSTOPTS;
    p[63] = 2;
    p[86] = IPPROTO_TCP;
    put_be16(p + 94, 1);
    put_be16(p + 96, 80);
    p[106] = 0x50;
    return n;
}

/* Parses bytes that end where the heap's do, so that the sanitizer sees a read beyond. */
static struct frame parse_exactly(const uint8_t *bytes, uint32_t n) {
    uint8_t *copy = malloc(n ? n : 1);
    struct frame f;
    memcpy(copy, bytes, n);
    CHECK_EQ(frame_parse(&f, copy, n), n >= ETH_BYTES);
    if (n >= ETH_BYTES) {
        frame_csum_ok(&f);
        frame_put_csums(&f, copy);
    }
    free(copy);
    f.bytes = NULL;
    return f;
}

static void a_frame_is_read(void) {
    uint8_t p[256];
    struct frame f = parse_exactly(p, build_ipv4(p, 10));
    CHECK_EQ(f.key.ip_version, 4);
    CHECK_EQ(f.key.transport, IPPROTO_UDP);
    CHECK_EQ(get_be16(f.key.src_port), 1000);
    CHECK_EQ(get_be16(f.key.dst_port), 53);
    CHECK_EQ(get_be32(f.key.dst_ip), 0x0A000002);
    CHECK_EQ(f.key.ttl, 64);
    f = parse_exactly(p, build_ipv6(p));
    CHECK_EQ(f.key.ip_version, 6);
    CHECK_EQ(f.key.proto, IPPROTO_TCP);
    CHECK_EQ(f.key.transport, IPPROTO_TCP);
    CHECK_EQ(get_be16(f.key.dst_port), 80);
    CHECK_EQ(f.key.ttl, 9);
}

static void a_frame_that_is_cut_anywhere_is_read_to_where_it_fits(void) {
    uint8_t p[256];
    uint32_t n = build_ipv4(p, 10);
    for (uint32_t i = 0; i < n; i++) {
        struct frame f = parse_exactly(p, i);
        CHECK_EQ(f.key.ip_version, i < 34 ? 0 : 4);
        CHECK_EQ(f.key.transport, i < 42 ? 0 : IPPROTO_UDP);
    }
    n = build_ipv6(p);
    for (uint32_t i = 0; i < n; i++)
        CHECK_EQ(parse_exactly(p, i).key.ip_version, i < 54 ? 0 : 6);
}

static void a_packet_longer_than_its_frame_has_fields_and_no_checksums(void) {
    uint8_t p[256], before[256];
    struct frame f;
    uint32_t n = build_ipv6(p);
    put_be16(p + 18, 0xFFFF);
    memcpy(before, p, n);
    CHECK(frame_parse(&f, p, n));
    CHECK_EQ(f.key.ip_version, 6);
    CHECK_EQ(get_be16(f.key.dst_port), 80);
    frame_put_csums(&f, p);
    CHECK(!memcmp(p, before, n));
    n = build_ipv4(p, 10);
    put_be16(p + 16, 39);
    put_be16(p + 24, 0);
    CHECK(frame_parse(&f, p, n));
    frame_put_csums(&f, p); /* that of the header is right now, */
    CHECK_EQ(get_be16(f.key.dst_port), 53);
    CHECK(!frame_csum_ok(&f)); /* that of UDP is not known */
}

static void lengths_that_lie_make_a_frame_of_no_protocol(void) {
    uint8_t p[256];
    static const struct {
        uint32_t at;
        uint8_t value;
    } lies[] = {{14, 0x44}, {14, 0x4F}, {14, 0x65}, {17, 19}};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        uint32_t n = build_ipv4(p, 10);
        p[lies[i].at] = lies[i].value;
        check_note("lie %zu", i);
        CHECK_EQ(parse_exactly(p, n).key.ip_version, 0);
    }
    uint32_t n = build_ipv4(p, 10);
    put_be16(p + 16, 27); /* room for 7 bytes of a header of 8 */
    struct frame f = parse_exactly(p, n);
    CHECK_EQ(f.key.ip_version, 4);
    CHECK_EQ(f.key.transport, 0);
}

static void a_datagrams_length_that_lies_has_no_checksum(void) {
    uint8_t p[256];
    static const uint16_t lies[] = {0, 7, 19, 0xFFFF};
    for (int i = 0; i < 4; i++) {
        struct frame f;
        uint32_t n = build_ipv4(p, 10);
        put_be16(p + 38, lies[i]);
        CHECK(frame_parse(&f, p, n));
        CHECK(!frame_csum_ok(&f));
        frame_put_csums(&f, p);
    }
}

static void trailing_bytes_do_not_belong_to_the_packet(void) {
    uint8_t p[256];
    struct frame f;
    uint32_t n = build_ipv4(p, 0);
    memset(p + n, 0xAA, 18); /* padding of a short frame, not even zeros */
    CHECK(frame_parse(&f, p, n + 18));
    CHECK(frame_csum_ok(&f));
}

static void extension_headers_that_do_not_end_are_given_up(void) {
    uint8_t p[256];
    uint32_t n = build_ipv6(p);
    p[86] = IPPROTO_DSTOPTS; /* then what was TCP is a header of 8 bytes, and another of kind 0 ... */
    CHECK_EQ(parse_exactly(p, n).key.transport, 0);
    n = build_ipv6(p);
    p[87] = 200; /* longer than the packet */
    CHECK_EQ(parse_exactly(p, n).key.transport, 0);
    memset(p, 0, sizeof p); /* hop-by-hop options without end */
    n = build_ipv6(p);
    memset(p + 54, 0, n - 54);
    CHECK_EQ(parse_exactly(p, n).key.transport, 0);
    CHECK_EQ(parse_exactly(p, n).key.ip_version, 6);
}

static void fragments_have_no_ports(void) {
    uint8_t p[256];
    static const uint16_t fragments[] = {0x2000, 0x2010, 0x0010};
    for (int i = 0; i < 3; i++) {
        uint32_t n = build_ipv4(p, 10);
        put_be16(p + 20, fragments[i]);
        struct frame f = parse_exactly(p, n);
        CHECK_EQ(f.key.ip_version, 4);
        CHECK_EQ(f.key.transport, 0);
    }
    uint32_t n = build_ipv6(p);
    p[86] = IPPROTO_FRAGMENT;
    p[94] = IPPROTO_UDP;
    put_be16(p + 96, 1); /* more fragments */
    CHECK_EQ(parse_exactly(p, n).key.transport, 0);
    CHECK_EQ(parse_exactly(p, n).key.proto, IPPROTO_UDP);
    put_be16(p + 96, 0); /* the only one */
    CHECK_EQ(parse_exactly(p, n).key.transport, IPPROTO_UDP);
}

static void vlan_tags_are_looked_behind_twice(void) {
    uint8_t p[256] = {0}, ip[256];
    uint32_t n = build_ipv4(ip, 4);
    for (uint32_t tags = 0; tags < 4; tags++) {
        memcpy(p, ip, 12);
        for (uint32_t i = 0; i < tags; i++) {
            put_be16(p + 12 + 4 * i, i ? 0x8100 : 0x88A8);
            put_be16(p + 14 + 4 * i, (uint16_t)(100 + i));
        }
        memcpy(p + 12 + 4 * tags, ip + 12, n - 12);
        struct frame f = parse_exactly(p, n + 4 * tags);
        CHECK_EQ(f.key.ip_version, tags < 3 ? 4 : 0);
        CHECK_EQ(f.key.tagged, tags > 0);
        CHECK_EQ(get_be16(f.key.vlan_tag), tags ? 100 : 0);
        for (uint32_t cut = 0; cut < n + 4 * tags; cut++)
            parse_exactly(p, cut);
    }
}

/* ---------------------------------------------------------------- queue pairs */

struct end_of_raw {
    struct qp *qp;
    struct cq *cq;
    uint8_t mem[SLOT * (SLOTS + 1)];
    struct mr *mr;
};

static struct fabric fabric;
static struct raw_net net;
static uint8_t room[RAW_FRAME_ROOM(MTU)];
static struct end_of_raw a, b, c;
static enum verdict (*wire)(uint32_t nth);
static uint32_t nth, left; /* frames sent; of them, those that nobody wanted */
static uint8_t late[RAW_FRAME_ROOM(MTU)];
static uint32_t late_bytes;

static void give(const struct qp *from, const uint8_t *frame, uint32_t n) { left += !raw_input(&net, from, frame, n); }

static bool sink(struct link *link, const struct way *way, const uint8_t *frame, uint32_t n) {
    enum verdict verdict = wire ? wire(nth) : PASS;
    const struct qp *from = raw_way(way)->from;
    CHECK(link == &net.link);
    nth++;
    if (verdict == LATE) {
        memcpy(late, frame, n);
        late_bytes = n;
        return true;
    }
    for (int i = 0; i < (verdict == LOSE ? 0 : verdict == TWICE ? 2 : 1); i++)
        give(from, frame, n);
    if (late_bytes) {
        give(from, late, late_bytes);
        late_bytes = 0;
    }
    return true;
}

static const struct link_ops sink_ops = {.put = sink};

static void open_end(struct end_of_raw *e) {
    struct node *node = &fabric.node[0];
    struct qp *qp = calloc(1, sizeof *qp);
    e->cq = fabric_cq(64, NULL);
    e->mr = fabric_mr(node, &node->pd, e->mem, sizeof e->mem, ALL_ACCESS);
    qp->pub = (struct rnic_qp){
        .pd = &node->pd.pub, .send_cq = &e->cq->pub, .recv_cq = &e->cq->pub, .qp_type = RNIC_QPT_RAW_PACKET};
    qp->nic = &node->nic;
    qp_set_service(qp, transport_service(&raw_transport, RNIC_QPT_RAW_PACKET));
    raw_set_way(qp, &net.link);
    qp->sq.pd = qp->rq.pd = &node->pd.pub;
    CHECK_EQ(wq_init(&qp->sq, 64, 2, 64, sizeof(struct send_wqe)), 0);
    CHECK_EQ(wq_init(&qp->rq, SLOTS, 2, 0, sizeof(struct recv_wqe)), 0);
    CHECK_EQ(qp->engine->create(qp), 0);
    qp->state = RNIC_QPS_RTS;
    e->qp = qp;
}

static void close_end(struct end_of_raw *e) {
    e->qp->engine->destroy(e->qp);
    free(e->qp->why);
    wq_free(&e->qp->sq);
    wq_free(&e->qp->rq);
    free(e->qp);
    fabric_drop_mr(&fabric.node[0], e->mr);
    fabric_drop_cq(e->cq);
}

static void open_all(void) {
    fabric_open(&fabric, false);
    net = (struct raw_net){.link.ops = &sink_ops, .nic = &fabric.node[0].nic, .mtu = MTU, .frame = room};
    fabric.node[0].nic.raw = &net;
    wire = NULL;
    nth = left = late_bytes = 0;
    open_end(&a);
    open_end(&b);
    open_end(&c);
}

static void close_all(void) {
    while (net.rules) {
        struct flow_rule *rule = net.rules;
        flow_remove(&net.rules, rule);
        free(rule);
    }
    close_end(&a);
    close_end(&b);
    close_end(&c);
    fabric_close(&fabric);
}

static struct flow_rule *add_rule(struct end_of_raw *e, int type, int priority, uint32_t flags) {
    struct flow_rule *rule = calloc(1, sizeof *rule);
    struct rnic_flow_attr attr = {
        .type = type, .size = sizeof attr, .priority = (uint16_t)priority, .port = 1, .flags = flags};
    CHECK_EQ(flow_compile(&attr, rule, NULL), 0);
    rule->qp = e->qp;
    flow_insert(&net.rules, rule);
    return rule;
}

static void receive(struct end_of_raw *e, uint64_t id, uint32_t n) {
    struct rnic_sge sge = {(uintptr_t)e->mem + id * SLOT, n, e->mr->pub.lkey};
    const struct rnic_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    CHECK_EQ(rq_post(&e->qp->rq, &wr, &bad, NULL), 0);
}

static void send_n(struct end_of_raw *e, uint64_t id, const uint8_t *frame, uint32_t n) {
    struct rnic_sge sge = {(uintptr_t)e->mem + SLOTS * SLOT, n, e->mr->pub.lkey};
    const struct rnic_send_wr wr = {.wr_id = id,
                                    .sg_list = &sge,
                                    .num_sge = 1,
                                    .opcode = RNIC_WR_SEND,
                                    .send_flags = RNIC_SEND_SIGNALED},
                              *bad;
    memcpy(e->mem + SLOTS * SLOT, frame, n);
    CHECK_EQ(sq_post(&e->qp->sq, &wr, &bad, NULL), 0);
    while (e->qp->engine->next(e->qp, 0))
        ;
}

static void send_numbered(struct end_of_raw *e, uint8_t number) {
    uint8_t frame[60] = {2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xB5, number};
    send_n(e, 100 + number, frame, sizeof frame);
    WANT(e->cq, 100 + number, SUCCESS);
}

static void want_number(struct end_of_raw *e, uint64_t id, uint8_t number) {
    CHECK_EQ(WANT(e->cq, id, SUCCESS).byte_len, 60);
    CHECK_EQ(e->mem[id * SLOT + 14], number);
}

static enum verdict second_is_lost(uint32_t i) { return i == 1 ? LOSE : PASS; }
static enum verdict second_comes_twice(uint32_t i) { return i == 1 ? TWICE : PASS; }
static enum verdict second_comes_late(uint32_t i) { return i == 1 ? LATE : PASS; }

static void a_wire_that_loses_doubles_and_reorders_does_so_to_frames_alone(void) {
    static const struct {
        enum verdict (*wire)(uint32_t);
        int n;
        uint8_t number[4];
    } rows[] = {{second_is_lost, 2, {0, 2}}, {second_comes_twice, 4, {0, 1, 1, 2}}, {second_comes_late, 3, {0, 2, 1}}};
    for (int r = 0; r < 3; r++) {
        open_all();
        wire = rows[r].wire;
        add_rule(&b, RNIC_FLOW_ATTR_NORMAL, 0, 0);
        for (uint64_t i = 0; i < 4; i++)
            receive(&b, i, SLOT);
        for (uint8_t i = 0; i < 3; i++)
            send_numbered(&a, i);
        for (int i = 0; i < rows[r].n; i++)
            want_number(&b, (uint64_t)i, rows[r].number[i]);
        WANT_NONE(b.cq);
        close_all();
    }
}

static void rules_stand_in_the_order_of_rank_priority_and_age(void) {
    open_all();
    struct flow_rule *all = add_rule(&b, RNIC_FLOW_ATTR_ALL_DEFAULT, 0, 0);
    struct flow_rule *late_one = add_rule(&b, RNIC_FLOW_ATTR_NORMAL, 7, 0);
    struct flow_rule *first = add_rule(&b, RNIC_FLOW_ATTR_NORMAL, 3, 0);
    struct flow_rule *second = add_rule(&b, RNIC_FLOW_ATTR_NORMAL, 3, 0);
    struct flow_rule *group = add_rule(&b, RNIC_FLOW_ATTR_MC_DEFAULT, 0, 0);
    struct flow_rule *sniffer = add_rule(&b, RNIC_FLOW_ATTR_SNIFFER, 0xFFFF, 0);
    struct flow_rule *order[] = {sniffer, first, second, late_one, group, all};
    const struct flow_rule *rule = net.rules;
    for (int i = 0; i < 6; i++, rule = rule->next)
        CHECK(rule == order[i]);
    CHECK(!rule);
    close_all();
}

static void a_frame_goes_once_to_each_of_equal_rules_and_no_further(void) {
    open_all();
    add_rule(&b, RNIC_FLOW_ATTR_NORMAL, 1, 0);
    add_rule(&c, RNIC_FLOW_ATTR_NORMAL, 1, 0);
    add_rule(&b, RNIC_FLOW_ATTR_NORMAL, 2, 0);
    receive(&b, 0, SLOT);
    receive(&b, 1, SLOT);
    receive(&c, 0, SLOT);
    send_numbered(&a, 5);
    want_number(&b, 0, 5);
    want_number(&c, 0, 5);
    WANT_NONE(b.cq);
    close_all();
}

static void a_rule_of_the_sender_is_passed_over(void) {
    open_all();
    add_rule(&a, RNIC_FLOW_ATTR_NORMAL, 0, 0);
    receive(&a, 0, SLOT);
    send_numbered(&a, 1);
    WANT_NONE(a.cq);
    CHECK_EQ(left, 1);
    close_all();
}

static void an_overrun_of_the_receivers_queue_does_not_hurt_the_sender(void) {
    open_all();
    add_rule(&b, RNIC_FLOW_ATTR_NORMAL, 0, 0);
    fabric_drop_cq(b.cq);
    b.cq = fabric_cq(1, NULL);
    b.qp->pub.send_cq = b.qp->pub.recv_cq = &b.cq->pub;
    for (uint64_t i = 0; i < 4; i++)
        receive(&b, i, SLOT);
    for (uint8_t i = 0; i < 3; i++)
        send_numbered(&a, i);
    CHECK_EQ(a.qp->state, RNIC_QPS_RTS);
    CHECK_EQ(b.qp->state, RNIC_QPS_ERR);
    want_number(&b, 0, 0);
    close_all();
}

/* 8 Mbit/s are a byte a microsecond; a burst is two frames. */
static void a_rate_is_kept_frame_by_frame(void) {
    static const struct rnic_qp_rate_limit_attr attr = {8000, 120, 60, 0};
    enum { FRAMES = 6, US_EACH = 60 };
    uint8_t frame[60] = {2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xB5};
    open_all();
    pace_set(&a.qp->pace, &attr, MTU);
    for (uint64_t i = 0; i < FRAMES; i++)
        send_n(&a, i, frame, sizeof frame);
    CHECK_EQ(nth, 2);
    for (uint64_t now = 0; nth < FRAMES;) {
        uint64_t next = a.qp->engine->deadline(a.qp);
        CHECK_EQ(next, now + US_EACH * US);
        CHECK(!a.qp->engine->next(a.qp, next - 1));
        CHECK_EQ(nth, 2 + now / (US_EACH * US));
        now = next;
        a.qp->engine->timer(a.qp, now);
        a.qp->engine->next(a.qp, now);
    }
    for (uint64_t i = 0; i < FRAMES; i++)
        WANT(a.cq, i, SUCCESS);
    CHECK_EQ(a.qp->engine->deadline(a.qp), NEVER);
    close_all();
}

static void a_frame_from_outside_that_is_none_is_counted(void) {
    static const uint8_t zeros[RAW_FRAME_ROOM(MTU) + 100];
    open_all();
    add_rule(&b, RNIC_FLOW_ATTR_SNIFFER, 0, 0);
    receive(&b, 0, SLOT);
    raw_input(&net, NULL, zeros, ETH_BYTES - 1);
    raw_input(&net, NULL, zeros, MTU + ETH_BYTES + 1);
    CHECK_EQ(net.nic->counters.value[RNIC_CNT_drop_malformed], 2);
    WANT_NONE(b.cq);
    raw_input(&net, NULL, zeros, MTU + ETH_BYTES);
    CHECK_EQ(WANT(b.cq, 0, SUCCESS).byte_len, MTU + ETH_BYTES);
    close_all();
}

static void a_queue_that_spreads_completes_for_its_work_queue(void) {
    struct rwq wq = {.pub = {.wq_num = 77}, .state = RNIC_WQS_RDY};
    struct rwq_table *table = calloc(1, sizeof *table + sizeof table->wq[0]);
    open_all();
    wq.nic = net.nic;
    wq.pub.cq = &c.cq->pub;
    wq.q.pd = b.qp->pub.pd;
    CHECK_EQ(wq_init(&wq.q, 4, 1, 0, sizeof(struct recv_wqe)), 0);
    table->size = 1;
    table->wq[0] = &wq;
    raw_of(b.qp)->rss.table = table;
    add_rule(&b, RNIC_FLOW_ATTR_NORMAL, 0, 0);
    struct rnic_sge sge = {(uintptr_t)b.mem, 60, b.mr->pub.lkey};
    const struct rnic_recv_wr wrs[] = {{.wr_id = 1, .sg_list = &sge, .num_sge = 1}, {.wr_id = 2}}, *bad;
    CHECK_EQ(rq_post(&wq.q, &wrs[0], &bad, NULL), 0);
    CHECK_EQ(rq_post(&wq.q, &wrs[1], &bad, NULL), 0);
    send_numbered(&a, 3);
    CHECK_EQ(WANT(c.cq, 1, SUCCESS).qp_num, b.qp->pub.qp_num);
    send_numbered(&a, 4);
    CHECK_EQ(WANT(c.cq, 2, LOC_LEN_ERR).qp_num, 77);
    CHECK_EQ(wq.state, RNIC_WQS_ERR);
    wq_free(&wq.q);
    free(table);
    close_all();
}

/* ---------------------------------------------------------------- states */

/* From man ibv_modify_qp, RAW_PACKET, not from qp/attr.c; a pair that is not here is allowed to RESET and ERR alone. */
static const struct change rows[] = {
    {RESET, INIT, IN(PORT), 0},
    {INIT, INIT, 0, IN(PORT)},
    {INIT, RTR, 0, 0},
    {RTR, RTS, 0, IN(CUR_STATE) | IN(RATE_LIMIT)},
    {RTS, RTS, 0, IN(CUR_STATE) | IN(RATE_LIMIT)},
    {RTS, SQD, 0, IN(EN_SQD_ASYNC_NOTIFY)},
    {SQD, RTS, 0, IN(CUR_STATE)},
    {SQD, SQD, 0, 0},
    {SQE, RTS, 0, IN(CUR_STATE)},
};

static int attempt(int from, int to, uint32_t mask) {
    return try_transition(a.qp, (struct rnic_qp_attr){.port_num = 1}, from, to, mask);
}

static void every_attribute_is_required_optional_or_refused_between_any_two_states(void) {
    open_all();
    CHECK_TRANSITIONS(rows, (1u << 26) - 1 - IN(STATE), attempt);
    close_all();
}

int main(void) {
    RUN(every_attribute_is_required_optional_or_refused_between_any_two_states);
    RUN(a_frame_is_read);
    RUN(a_frame_that_is_cut_anywhere_is_read_to_where_it_fits);
    RUN(a_packet_longer_than_its_frame_has_fields_and_no_checksums);
    RUN(lengths_that_lie_make_a_frame_of_no_protocol);
    RUN(a_datagrams_length_that_lies_has_no_checksum);
    RUN(trailing_bytes_do_not_belong_to_the_packet);
    RUN(extension_headers_that_do_not_end_are_given_up);
    RUN(fragments_have_no_ports);
    RUN(vlan_tags_are_looked_behind_twice);
    RUN(a_wire_that_loses_doubles_and_reorders_does_so_to_frames_alone);
    RUN(rules_stand_in_the_order_of_rank_priority_and_age);
    RUN(a_frame_goes_once_to_each_of_equal_rules_and_no_further);
    RUN(a_rule_of_the_sender_is_passed_over);
    RUN(an_overrun_of_the_receivers_queue_does_not_hurt_the_sender);
    RUN(a_rate_is_kept_frame_by_frame);
    RUN(a_frame_from_outside_that_is_none_is_counted);
    RUN(a_queue_that_spreads_completes_for_its_work_queue);
    return check_done();
}
