/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversations of two Linux kernels (siw; tests/vectors), with an engine in the place of either end: what it hears it reads,
 * cut at every byte; what it says, when it has the same to say, is the same, byte for byte.
 *
 * A READ's sink is an engine's own affair: the kernel's key and offset are exchanged for ours, in the request and its answer.
 */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "segment.h"

#define MOST 65536u /* bytes of one direction; of a region */
#define EVENTS 300
#define RECEIVES 200
#define RECEIVE 4096u
#define POSTED (RECEIVES * RECEIVE) /* where in memory messages are that are posted */
#define REGIONS 8

/* ---------------------------------------------------------------- captures */

struct flow {               /* one direction of a connection */
    uint32_t from, to, seq; /* ports; the next byte's number */
    uint8_t bytes[MOST];
    uint32_t n, start; /* behind MPA's start-up */
};

static struct flow flows[4];
static int flow_count;
static struct {
    int flow;
    uint32_t n; /* bytes of it that were there then */
} events[EVENTS];
static int event_count;

static int flow_of(uint32_t from, uint32_t to) {
    for (int i = 0; i < flow_count; i++) {
        if (flows[i].from == from && flows[i].to == to)
            return i;
    }
    CHECK(flow_count < 4);
    flows[flow_count] = (struct flow){.from = from, .to = to};
    return flow_count++;
}

static void take_tcp(const uint8_t *tcp, uint32_t n) {
    int number = flow_of(get_be16(tcp), get_be16(tcp + 2));
    struct flow *f = &flows[number];
    uint32_t header = (tcp[12] >> 4) * 4u, seq = get_be32(tcp + 4);
    if (tcp[13] & 2) /* SYN */
        f->seq = seq + 1;
    if (tcp[13] & 2 || n == header || (int32_t)(seq - f->seq) < 0) /* the last: sent again */
        return;
    CHECK_EQ(seq, f->seq);
    CHECK(f->n + n - header <= MOST && event_count < EVENTS);
    memcpy(f->bytes + f->n, tcp + header, n - header);
    f->n += n - header;
    f->seq += n - header;
    events[event_count].flow = number;
    events[event_count++].n = f->n;
}

static void take_frame(const uint8_t *eth, uint32_t n) {
    const uint8_t *ip = eth + 14;
    if (n < 34 || get_be16(eth + 12) != 0x0800 || ip[9] != IPPROTO_TCP)
        return;
    uint32_t header = (ip[0] & 15) * 4u;
    take_tcp(ip + header, get_be16(ip + 2) - header);
}

/* Wherever this is run: the program lies in a folder of the repository. */
static FILE *open_capture(const char *name) {
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 100);
    FILE *f = NULL;
    CHECK(n > 0);
    path[n] = 0;
    for (char *end; !f && (end = strrchr(path, '/')); *end = 0) {
        snprintf(end, 100, "/tests/vectors/siw-%s.pcap", name);
        f = fopen(path, "rb");
    }
    CHECK(f);
    return f;
}

static void read_capture(const char *name) {
    static uint8_t file[1 << 20];
    FILE *f = open_capture(name);
    size_t n = fread(file, 1, sizeof file, f);
    fclose(f);
    flow_count = event_count = 0;
    CHECK(get_le32(file) == 0xA1B2C3D4u && get_le32(file + 20) == 1);
    for (size_t at = 24; at < n; at += 16 + get_le32(file + at + 8))
        take_frame(file + at + 16, get_le32(file + at + 8));
    for (int i = 0; i < flow_count; i++) {
        CHECK(!memcmp(flows[i].bytes, "MPA ID Re", 9));
        CHECK(!(flows[i].bytes[16] & 0xC0)); /* neither markers nor CRC */
        flows[i].start = 20u + get_be16(flows[i].bytes + 18);
    }
}

/* The FPDU that begins there, if it is there up to n. */
static bool frame_at(const struct flow *f, uint32_t *at, uint32_t n, struct segment *g) {
    uint32_t ulpdu = n - *at < 2 ? 0 : mpa_length(f->bytes + *at);
    if (n - *at < 2 || n - *at < mpa_fpdu(ulpdu))
        return false;
    g->n = ulpdu;
    memcpy(g->ddp, f->bytes + *at + 2, ulpdu);
    *at += mpa_fpdu(ulpdu);
    return true;
}

/* ---------------------------------------------------------------- an engine in the place of one end */

static struct stream s;
static struct mr *regions[REGIONS];
static int region_count;
static uint8_t remote_mem[REGIONS * MOST];
static struct segment g;
static int our_flow, their_flow;
static uint32_t our_at, their_at;      /* where both stand */
static uint32_t asked, answered, sink; /* READs of ours; bytes of the answer to the oldest */
static uint64_t cut;                   /* what comes is cut there; and everywhere, if that is 0 */
static uint8_t expected[MOST];         /* what is to be sent */
static uint32_t expect;

/* A region of ours where the peer reads or writes. */
static uint8_t *place_of(uint32_t key, uint64_t to, uint32_t n) {
    struct mr *mr = mr_find(&s.a.node->nic.mrs, key);
    if (!mr) {
        CHECK(region_count < REGIONS);
        mr = calloc(1, sizeof *mr);
        mr->pub.pd = &s.a.node->pd.pub;
        mr->pub.iova = to;
        mr->access = ALL_ACCESS;
        mr->shift = (uint64_t)(uintptr_t)remote_mem + (uint64_t)region_count * MOST - to;
        CHECK_EQ(mr_insert_as(&s.a.node->nic.mrs, mr, key), 0);
        regions[region_count++] = mr;
    }
    CHECK(to >= mr->pub.iova && to + n - mr->pub.iova <= MOST);
    if (to + n - mr->pub.iova > mr->pub.length)
        mr->pub.length = to + n - mr->pub.iova;
    return (uint8_t *)(uintptr_t)(to + mr->shift);
}

static void open_talk(void) {
    struct rnic_qp_attr attr = {
        .qp_state = RNIC_QPS_RTS, .qp_access_flags = ALL_ACCESS, .max_rd_atomic = 16, .max_dest_rd_atomic = 16};
    uint32_t mask = RNIC_QP_STATE | RNIC_QP_ACCESS_FLAGS | RNIC_QP_MAX_QP_RD_ATOMIC | RNIC_QP_MAX_DEST_RD_ATOMIC;
    stream_open(&s, .bytes = POSTED + MOST, .wr = RECEIVES, .not_yet = true);
    memset(remote_mem, 0, sizeof remote_mem);
    region_count = 0;
    our_at = flows[our_flow].start;
    their_at = flows[their_flow].start;
    asked = answered = sink = expect = 0;
    s.ab.segment = 1448;
    stream_join(&s.a, &s.ab);
    iwarp_agree(s.a.qp, &(struct rnic_stream_attr){.initiator = !memcmp(flows[our_flow].bytes, "MPA ID Req", 10)});
    CHECK_EQ(qp_attr_check(s.a.qp, &attr, mask, NULL), 0);
    qp_attr_apply(s.a.qp, &attr, mask);
    CHECK_EQ(qp_transition(s.a.qp, RNIC_QPS_RTS, NULL), 0);
    for (uint64_t i = 0; i < RECEIVES; i++)
        post_recv(&s.a, 1000 + i, i * RECEIVE, RECEIVE);
}

static void close_talk(void) {
    while (region_count)
        fabric_drop_mr(s.a.node, regions[--region_count]);
    stream_close(&s);
}

static void work(void) {
    while (s.a.qp->engine->next(s.a.qp, s.f.now))
        ;
    CHECK_EQ(s.a.qp->state, RNIC_QPS_RTS);
}

/* ---------------------------------------------------------------- what it says */

/* The payload of the message that begins there: into memory; its length. */
static uint32_t gather(const struct flow *f, uint32_t at, uint8_t *to) {
    static struct segment more;
    uint32_t length = 0;
    do {
        CHECK(frame_at(f, &at, f->n, &more));
        uint32_t header = rdmap_header(rdmap_row(rdmap_opcode(more.ddp)));
        memcpy(to + length, more.ddp + header, more.n - header);
        length += more.n - header;
    } while (!ddp_last(more.ddp));
    return length;
}

/* A message of ours begins. */
static void say(uint32_t begin) {
    unsigned opcode = rdmap_opcode(g.ddp);
    struct rnic_send_wr wr = {.opcode = RNIC_WR_SEND,
                              .send_flags = RNIC_SEND_SIGNALED | (opcode == RDMAP_SEND_SE ? RNIC_SEND_SOLICITED : 0)};
    struct rnic_sge sge = {(uintptr_t)s.a.mem + POSTED, 0, s.a.mr->pub.lkey};
    CHECK(opcode == RDMAP_SEND || opcode == RDMAP_SEND_SE || opcode == RDMAP_WRITE || opcode == RDMAP_READ_REQUEST);
    sge.length = gather(&flows[our_flow], begin, s.a.mem + POSTED);
    if (opcode == RDMAP_WRITE) {
        wr.opcode = RNIC_WR_RDMA_WRITE;
        wr.wr.rdma.remote_addr = ddp_to(g.ddp);
        wr.wr.rdma.rkey = ddp_stag(g.ddp);
    } else if (opcode == RDMAP_READ_REQUEST) {
        wr.opcode = RNIC_WR_RDMA_READ;
        wr.wr.rdma.remote_addr = read_to(segment_behind(&g));
        wr.wr.rdma.rkey = read_stag(segment_behind(&g));
        sge.length = read_length(segment_behind(&g));
    }
    wr.sg_list = &sge;
    wr.num_sge = sge.length > 0;
    post(&s.a, wr);
    work();
}

/* So the kernel has said it; a READ with our sink. */
static void expect_frame(void) {
    if (rdmap_opcode(g.ddp) == RDMAP_READ_REQUEST) {
        read_set_sink_stag(segment_behind(&g), ++asked);
        read_set_sink_to(segment_behind(&g), 0);
    }
    expect += segment_frame(&g, false, expected + expect);
}

static void ours(uint32_t n) {
    static bool goes_on;
    for (uint32_t begin = our_at; frame_at(&flows[our_flow], &our_at, n, &g); begin = our_at) {
        if (begin == flows[our_flow].start)
            goes_on = false;
        if (!goes_on && rdmap_opcode(g.ddp) != RDMAP_READ_RESPONSE)
            say(begin);
        goes_on = !ddp_last(g.ddp);
        expect_frame();
    }
}

/* ---------------------------------------------------------------- what it hears */

/* What the peer is going to find, where it asks for it. */
static void have_ready(const uint8_t *read) {
    static struct segment answer;
    uint32_t at = our_at, begin;
    uint8_t *to = place_of(read_stag(read), read_to(read), read_length(read));
    for (begin = at; frame_at(&flows[our_flow], &at, flows[our_flow].n, &answer); begin = at) {
        if (rdmap_opcode(answer.ddp) != RDMAP_READ_RESPONSE)
            continue;
        CHECK_EQ(gather(&flows[our_flow], begin, to), read_length(read));
        return;
    }
    CHECK(!"an answer");
}

static void give(uint32_t begin) {
    static uint8_t frame[MOST];
    uint32_t n = segment_frame(&g, false, frame), first = (uint32_t)(cut - begin);
    if (!cut) {
        for (uint32_t i = 0; i < n; i++)
            stream_give(&s, &s.a, frame + i, 1);
        return;
    }
    first = cut > begin && first < n ? first : n;
    stream_give(&s, &s.a, frame, first);
    stream_give(&s, &s.a, frame + first, n - first);
}

static void theirs(uint32_t n) {
    for (uint32_t begin = their_at; frame_at(&flows[their_flow], &their_at, n, &g); begin = their_at) {
        unsigned opcode = rdmap_opcode(g.ddp);
        if (opcode == RDMAP_WRITE)
            (void)place_of(ddp_stag(g.ddp), ddp_to(g.ddp), g.n - DDP_TAGGED_BYTES);
        if (opcode == RDMAP_READ_REQUEST)
            have_ready(segment_behind(&g));
        if (opcode == RDMAP_READ_RESPONSE) {
            ddp_set_stag(g.ddp, answered + 1);
            ddp_set_to(g.ddp, sink);
            sink = ddp_last(g.ddp) ? 0 : sink + g.n - DDP_TAGGED_BYTES;
            answered += ddp_last(g.ddp);
        }
        give(begin);
        work();
    }
}

/* ---------------------------------------------------------------- what is tried */

static void check_heard(void) {
    uint32_t at = flows[their_flow].start, i = 0;
    for (uint32_t begin = at; frame_at(&flows[their_flow], &at, flows[their_flow].n, &g); begin = at) {
        static uint8_t payload[MOST];
        bool first = rdmap_opcode(g.ddp) >= RDMAP_SEND && ddp_mo(g.ddp) == 0;
        if (!first)
            continue;
        uint32_t length = gather(&flows[their_flow], begin, payload);
        CHECK_EQ(WANT(s.a.recv_cq, 1000 + i, SUCCESS).byte_len, length);
        CHECK(!memcmp(s.a.mem + i * RECEIVE, payload, length));
        i++;
    }
    WANT_NONE(s.a.recv_cq);
}

static void talk(void) {
    open_talk();
    for (int i = 0; i < event_count; i++) {
        if (events[i].flow == our_flow)
            ours(events[i].n);
        if (events[i].flow == their_flow)
            theirs(events[i].n);
    }
    CHECK_EQ(our_at, flows[our_flow].n);
    CHECK_EQ(their_at, flows[their_flow].n);
    check_heard();
}

static const char *const names[] = {"rping", "ucmatose", "rdma-server", "rcopy", "write-bw"};

static void each(void (*test)(void)) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        read_capture(names[i]);
        CHECK(flow_count && flow_count % 2 == 0);
        for (our_flow = 0; our_flow < flow_count; our_flow++) {
            their_flow = flow_of(flows[our_flow].to, flows[our_flow].from);
            check_note("%s, in the place of port %u", names[i], flows[our_flow].from);
            test();
        }
    }
}

static void check_said(void) {
    CHECK_EQ(s.ab.written, expect);
    CHECK(!expect || !memcmp(s.ab.bytes, expected, expect));
}

static void same_bytes(void) {
    cut = UINT64_MAX;
    talk();
    check_said();
    close_talk();
}

static void in_single_bytes(void) {
    cut = 0;
    talk();
    check_said();
    close_talk();
}

/* What was written is the same as without a cut. */
static void at_every_cut(void) {
    static uint8_t mem[sizeof remote_mem];
    cut = UINT64_MAX;
    talk();
    memcpy(mem, remote_mem, sizeof mem);
    close_talk();
    for (cut = flows[their_flow].start + 1; cut < flows[their_flow].n; cut += cut % 1448 < 70 ? 1 : 13) {
        talk();
        CHECK(!memcmp(mem, remote_mem, sizeof mem));
        check_said();
        close_talk();
    }
}

static void what_the_kernel_says_is_said_again(void) { each(same_bytes); }
static void what_the_kernel_says_is_read_in_single_bytes(void) { each(in_single_bytes); }
static void what_the_kernel_says_is_read_at_every_cut(void) { each(at_every_cut); }

int main(void) {
    RUN(what_the_kernel_says_is_said_again);
    RUN(what_the_kernel_says_is_read_in_single_bytes);
    RUN(what_the_kernel_says_is_read_at_every_cut);
    return check_done();
}
