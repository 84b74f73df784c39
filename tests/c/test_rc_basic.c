/* SPDX-License-Identifier: Apache-2.0
 *
 * The RC engine on a fabric without faults: every operation, every size, every path MTU; what flags and lists do.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "fabric.h"
#include "roce/roce.h"

static struct pair p;

#define SIGNALED .send_flags = RNIC_SEND_SIGNALED
#define GUARD 64 /* bytes around a target that stay as they were */

static bool untouched(const uint8_t *mem, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        if (mem[i] != 0xEE)
            return false;
    }
    return true;
}

/* ---------------------------------------------------------------- one message of n bytes */

static void message(int opcode, uint32_t n) {
    struct end *from = opcode == RNIC_WR_RDMA_READ ? &p.b : &p.a, *to = from->peer;
    bool receives = opcode != RNIC_WR_RDMA_WRITE && opcode != RNIC_WR_RDMA_READ;
    bool imm = opcode == RNIC_WR_SEND_WITH_IMM || opcode == RNIC_WR_RDMA_WRITE_WITH_IMM;
    bool send = opcode == RNIC_WR_SEND || opcode == RNIC_WR_SEND_WITH_IMM;
    uint64_t silent = p.b.qp->nic->silent; /* of which no completion of b tells */
    fill(from->mem, n, n + 1);
    memset(to->mem, 0xEE, n + 2 * GUARD);
    if (receives)
        post_recv(&p.b, 1000 + n, send ? GUARD : 0, send ? n : 0);
    if (opcode == RNIC_WR_RDMA_READ)
        post_read(&p.a, n, GUARD, 0, n);
    else
        post(&p.a, (struct rnic_send_wr){.wr_id = n,
                                         .opcode = opcode,
                                         SIGNALED,
                                         .imm_data = htonl(0xAABB0000 + n),
                                         REMOTE(&p.b, GUARD),
                                         SGL(SGE(&p.a, 0, n))});
    fabric_settle(&p.f);
    struct rnic_wc wc = WANT(p.a.send_cq, n, SUCCESS);
    CHECK_EQ(wc.byte_len, n);
    CHECK_EQ(wc.qp_num, p.a.qp->pub.qp_num);
    if (receives) {
        wc = WANT(p.b.recv_cq, 1000 + n, SUCCESS);
        CHECK_EQ(wc.byte_len, n);
        CHECK_EQ(wc.opcode, send ? RNIC_WCO_RECV : RNIC_WCO_RECV_RDMA_WITH_IMM);
        CHECK_EQ(wc.wc_flags, imm ? RNIC_WCF_WITH_IMM : 0);
        CHECK_EQ(wc.qp_num, p.b.qp->pub.qp_num);
        CHECK_EQ(wc.src_qp, p.a.qp->pub.qp_num);
        if (imm)
            CHECK_EQ(ntohl(wc.imm_data), 0xAABB0000 + n);
    }
    silent = p.b.qp->nic->silent - silent;
    CHECK(receives ? silent == 0 : opcode == RNIC_WR_RDMA_WRITE ? silent == 1 : silent > 0);
    CHECK(filled(to->mem + GUARD, n, n + 1));
    CHECK(untouched(to->mem, GUARD) && untouched(to->mem + GUARD + n, GUARD));
    WANT_NONE(p.a.send_cq);
    WANT_NONE(p.b.recv_cq);
}

static const int opcodes[] = {RNIC_WR_SEND, RNIC_WR_SEND_WITH_IMM, RNIC_WR_RDMA_WRITE, RNIC_WR_RDMA_WRITE_WITH_IMM,
                              RNIC_WR_RDMA_READ};
#define OPCODES (sizeof opcodes / sizeof *opcodes)

static void every_size_crosses_every_path_mtu(void) {
    for (int mtu = RNIC_MTU_256; mtu <= RNIC_MTU_4096; mtu++) {
        uint32_t m = mtu_bytes(mtu);
        const uint32_t sizes[] = {0, 1, 2, 3, 5, 127, m - 1, m, m + 1, 2 * m - 3, 2 * m, 3 * m + 1, 17 * m + 5};
        /* PSNs wrap on the way */
        pair_open(&p, .mtu = mtu, .sq_psn = 0xFFFFF0, .rq_psn = 0xFFFFF8, .bytes = 20 * m, .ipv6 = mtu & 1);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            for (size_t i = 0; i < OPCODES; i++) {
                check_note("opcode %d, %u bytes, mtu %u", opcodes[i], sizes[s], m);
                message(opcodes[i], sizes[s]);
            }
        }
        CHECK_EQ(COUNTER(&p.a, requests_resent) + COUNTER(&p.b, requests_resent), 0);
        CHECK_EQ(COUNTER(&p.a, drop_bad_psn) + COUNTER(&p.b, drop_bad_psn), 0);
        CHECK_EQ(COUNTER(&p.a, timeouts), 0);
        CHECK(p.f.logged && rc_of(p.a.qp)->req.una < 0x800000);
        pair_close(&p);
    }
}

static void several_mebibytes_are_one_message(void) {
    const uint32_t n = 3 << 20 | 77;
    pair_open(&p, .mtu = RNIC_MTU_4096, .bytes = n + 2 * GUARD, .sq_psn = 0xFFFF00, .bandwidth = 1000000000);
    for (size_t i = 0; i < OPCODES; i++)
        message(opcodes[i], n);
    CHECK_EQ(COUNTER(&p.a, requests_resent), 0);
    pair_close(&p);
}

/* The length of a window of address space, all of it the same page: what counts is the bookkeeping. */
#define LONGEST 0x7FFFFFFFu
#define STRETCH (2u << 20)
static uint8_t *same_page_everywhere(int *fd) {
    uint8_t *at = mmap(NULL, LONGEST + 1ull, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *fd = memfd_create("page", 0);
    CHECK(at != MAP_FAILED && *fd >= 0 && ftruncate(*fd, STRETCH) == 0);
    for (uint64_t i = 0; i < LONGEST; i += STRETCH)
        CHECK(mmap(at + i, STRETCH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, *fd, 0) != MAP_FAILED);
    return at;
}

static void the_longest_message(int opcode) {
    int fd;
    pair_open(&p, .mtu = RNIC_MTU_4096, .quiet = true, .window = 4 << 20, .sq_psn = 0xFF0000);
    uint8_t *mem = same_page_everywhere(&fd);
    struct mr *here = fabric_mr(p.a.node, &p.a.node->pd, mem, LONGEST, ALL_ACCESS);
    struct mr *there = fabric_mr(p.b.node, &p.b.node->pd, mem, LONGEST, ALL_ACCESS);
    struct rnic_sge list[] = {{(uintptr_t)mem, LONGEST, here->pub.lkey}, {(uintptr_t)mem, 1, here->pub.lkey}};
    struct rnic_send_wr wr = {.wr_id = 1, .opcode = opcode, SIGNALED, .sg_list = list, .num_sge = 2};
    CHECK_EQ(try_post(&p.a, wr), -EINVAL);
    wr.num_sge = 1;
    wr.wr.rdma.remote_addr = (uintptr_t)mem;
    wr.wr.rdma.rkey = there->pub.rkey;
    post(&p.a, wr);
    fabric_settle(&p.f);
    CHECK_EQ(WANT(p.a.send_cq, 1, SUCCESS).byte_len, LONGEST);
    CHECK_EQ(opcode == RNIC_WR_RDMA_READ ? COUNTER(&p.b, responses_sent) : COUNTER(&p.b, requests_executed), 524288);
    CHECK_EQ(rc_of(p.b.qp)->resp.psn, psn_add(0xFF0000, 524288));
    CHECK_EQ(COUNTER(&p.a, requests_resent), 0);
    /* The most PSNs that a message can take is half of them all, which psn_diff() still tells from the past. */
    CHECK_EQ(packets_of(LONGEST, 256), 1 << 23);
    CHECK_EQ(psn_diff(psn_add(5, (1 << 23) - 1), 5), (1 << 23) - 1);
    CHECK_EQ(packet_length(LONGEST, 256, (1 << 23) - 1), 255);
    munmap(mem, LONGEST + 1ull);
    close(fd);
    fabric_drop_mr(p.a.node, here);
    fabric_drop_mr(p.b.node, there);
    pair_close(&p);
}

static void the_longest_WRITE_is_2_GiB_less_1(void) { the_longest_message(RNIC_WR_RDMA_WRITE); }
static void the_longest_READ_is_2_GiB_less_1(void) { the_longest_message(RNIC_WR_RDMA_READ); }

/* ---------------------------------------------------------------- atomics */

static uint64_t word(const struct end *e, uint64_t at) {
    uint64_t v;
    memcpy(&v, e->mem + at, sizeof v);
    return v;
}

static void set_word(struct end *e, uint64_t at, uint64_t v) { memcpy(e->mem + at, &v, sizeof v); }

static void atomics_return_what_was_there(void) {
    pair_open(&p, .sq_psn = 0xFFFFFD);
    set_word(&p.b, 64, 0xFFFFFFFFFFFFFFFFu);
    set_word(&p.b, 72, 5);
    post_add(&p.a, 1, 0, 64, 3);
    post_add(&p.a, 2, 8, 64, 0x100000000u);
    post_swap(&p.a, 3, 16, 72, 5, 99);
    post_swap(&p.a, 4, 24, 72, 5, 100);
    fabric_settle(&p.f);
    CHECK_EQ(WANT(p.a.send_cq, 1, SUCCESS).opcode, RNIC_WCO_FETCH_ADD);
    CHECK_EQ(WANT(p.a.send_cq, 2, SUCCESS).byte_len, 8);
    CHECK_EQ(WANT(p.a.send_cq, 3, SUCCESS).opcode, RNIC_WCO_COMP_SWAP);
    WANT(p.a.send_cq, 4, SUCCESS);
    CHECK_EQ(word(&p.a, 0), -1);
    CHECK_EQ(word(&p.a, 8), 2);
    CHECK_EQ(word(&p.a, 16), 5);
    CHECK_EQ(word(&p.a, 24), 99);
    CHECK_EQ(word(&p.b, 64), 0x100000002);
    CHECK_EQ(word(&p.b, 72), 99);
    pair_close(&p);
}

/* ---------------------------------------------------------------- flags */

static void inline_data_may_change_after_the_post(void) {
    pair_open(&p, .lazy = US, .inline_data = 200);
    const int sends[] = {RNIC_WR_SEND, RNIC_WR_SEND_WITH_IMM, RNIC_WR_RDMA_WRITE, RNIC_WR_RDMA_WRITE_WITH_IMM};
    for (int i = 0; i < 4; i++) {
        post_recv(&p.b, 1, 0, 200);
        uint8_t bytes[200];
        fill(bytes, sizeof bytes, 9);
        post(&p.a, (struct rnic_send_wr){.wr_id = 1,
                                         .opcode = sends[i],
                                         .send_flags = RNIC_SEND_SIGNALED | RNIC_SEND_INLINE,
                                         REMOTE(&p.b, 0),
                                         /* keys of inline data are not looked at */
                                         SGL({(uintptr_t)bytes, 77, 0xBAD}, {(uintptr_t)bytes + 77, 123, 0xBAD})});
        memset(bytes, 0, sizeof bytes);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 1, SUCCESS);
        CHECK(filled(p.b.mem, 200, 9));
        memset(p.b.mem, 0, 200);
        if (sends[i] == RNIC_WR_RDMA_WRITE) /* took no receive */
            WANT_NONE(p.b.recv_cq);
        else
            WANT(p.b.recv_cq, 1, SUCCESS);
    }
    struct rnic_send_wr wr = {.opcode = RNIC_WR_SEND, .send_flags = RNIC_SEND_INLINE, SGL(SGE(&p.a, 0, 4096))};
    CHECK_EQ(try_post(&p.a, wr), -EINVAL);
    wr = (struct rnic_send_wr){.opcode = RNIC_WR_RDMA_READ, .send_flags = RNIC_SEND_INLINE, SGL(SGE(&p.a, 0, 4))};
    CHECK_EQ(try_post(&p.a, wr), -EINVAL);
    pair_close(&p);
}

static void what_is_not_signaled_completes_in_silence(void) {
    pair_open(&p, .lazy = US);
    for (uint32_t i = 0; i < 40; i++) {
        struct rnic_send_wr wr = {.wr_id = i, .opcode = RNIC_WR_RDMA_WRITE, REMOTE(&p.b, i), SGL(SGE(&p.a, i, 1))};
        wr.send_flags = i % 10 == 9 ? RNIC_SEND_SIGNALED : 0;
        post(&p.a, wr);
    }
    fabric_settle(&p.f);
    for (uint32_t i = 9; i < 40; i += 10)
        WANT(p.a.send_cq, i, SUCCESS);
    WANT_NONE(p.a.send_cq);
    CHECK(wq_empty(&p.a.qp->sq));
    pair_close(&p);
    pair_open(&p, .sig_all = true);
    post(&p.a, (struct rnic_send_wr){.wr_id = 5, .opcode = RNIC_WR_RDMA_WRITE, REMOTE(&p.b, 0), SGL(SGE(&p.a, 0, 1))});
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 5, SUCCESS);
    pair_close(&p);
}

static int events(struct end *e) {
    int n = 0;
    struct cq *cq;
    while ((cq = channel_take(&e->channel)) != NULL) {
        CHECK_EQ(cq_ack(cq, 1, NULL), 0);
        n++;
    }
    return n;
}

static void deliver(uint32_t flags) {
    post_recv(&p.b, 1, 0, 64);
    post(&p.a, (struct rnic_send_wr){.opcode = RNIC_WR_SEND, .send_flags = flags, SGL(SGE(&p.a, 0, 64))});
    fabric_settle(&p.f);
    WANT(p.b.recv_cq, 1, SUCCESS);
}

static void a_solicited_event_is_raised_by_the_flag_alone(void) {
    pair_open(&p, .lazy = US);
    deliver(RNIC_SEND_SOLICITED);
    CHECK_EQ(events(&p.b), 0); /* not armed */
    cq_arm(p.b.recv_cq, true);
    deliver(0);
    CHECK_EQ(events(&p.b), 0);
    deliver(RNIC_SEND_SOLICITED);
    CHECK_EQ(events(&p.b), 1);
    deliver(RNIC_SEND_SOLICITED);
    CHECK_EQ(events(&p.b), 0); /* one event an arming */
    cq_arm(p.b.recv_cq, false);
    deliver(0);
    CHECK_EQ(events(&p.b), 1);
    cq_arm(p.b.recv_cq, false);
    cq_arm(p.b.recv_cq, true); /* the wider stays */
    deliver(0);
    CHECK_EQ(events(&p.b), 1);
    cq_arm(p.b.recv_cq, true); /* a failed completion counts as solicited */
    post_recv(&p.b, 2, 0, 64);
    CHECK_EQ(move(p.b.qp, RNIC_QPS_ERR), 0);
    CHECK_EQ(events(&p.b), 1);
    /* a WRITE without immediate takes no receive and so solicits nothing; nor does the bit go out */
    pair_close(&p);
    pair_open(&p);
    post(&p.a, (struct rnic_send_wr){.opcode = RNIC_WR_RDMA_WRITE,
                                     .send_flags = RNIC_SEND_SOLICITED | RNIC_SEND_SIGNALED,
                                     REMOTE(&p.b, 0),
                                     SGL(SGE(&p.a, 0, 9))});
    fabric_settle(&p.f);
    CHECK(!p.f.log[0].solicited);
    pair_close(&p);
}

static void the_solicited_bit_is_on_the_last_packet(void) {
    pair_open(&p);
    post_recv(&p.b, 1, 0, 3000);
    post(&p.a, (struct rnic_send_wr){
                   .opcode = RNIC_WR_SEND_WITH_IMM, .send_flags = RNIC_SEND_SOLICITED, SGL(SGE(&p.a, 0, 3000))});
    fabric_settle(&p.f);
    CHECK_EQ(p.f.log[2].opcode, ROCE_RC_SEND_LAST_WITH_IMM);
    CHECK(!p.f.log[0].solicited && !p.f.log[1].solicited && p.f.log[2].solicited);
    pair_close(&p);
}

/* A READ takes a round trip, the WRITE behind it does not wait for it, unless it is fenced. */
static void a_fence_waits_for_reads_and_atomics(void) {
    for (int fenced = 0; fenced < 2; fenced++) {
        pair_open(&p, .lazy = 1);
        post_read(&p.a, 1, 0, 0, 100);
        post_add(&p.a, 2, 200, 256, 1);
        post(&p.a, (struct rnic_send_wr){.wr_id = 3,
                                         .opcode = RNIC_WR_RDMA_WRITE,
                                         .send_flags = RNIC_SEND_SIGNALED | (fenced ? RNIC_SEND_FENCE : 0),
                                         REMOTE(&p.b, 512),
                                         SGL(SGE(&p.a, 0, 100))});
        fabric_settle(&p.f);
        uint64_t answered = 0, written = 0;
        for (uint32_t i = 0; i < p.f.logged; i++) {
            if (p.f.log[i].opcode == ROCE_RC_ATOMIC_ACK && p.f.log[i].arrived)
                answered = p.f.log[i].at;
            if (p.f.log[i].opcode == ROCE_RC_WRITE_ONLY && !p.f.log[i].arrived)
                written = p.f.log[i].at;
        }
        CHECK(answered && written);
        CHECK_EQ(written >= answered, fenced);
        WANT(p.a.send_cq, 1, SUCCESS);
        WANT(p.a.send_cq, 2, SUCCESS);
        WANT(p.a.send_cq, 3, SUCCESS);
        pair_close(&p);
    }
}

/* ---------------------------------------------------------------- lists, queues */

static void lists_scatter_and_gather_at_every_boundary(void) {
    const int ops[] = {RNIC_WR_SEND, RNIC_WR_RDMA_WRITE, RNIC_WR_RDMA_READ};
    struct rng r;
    rng_seed(&r, 5);
    for (int round = 0; round < 60; round++) {
        pair_open(&p, .mtu = RNIC_MTU_256, .sge = 16, .bytes = 8192);
        uint32_t total = 0, cut = 0;
        struct rnic_sge from[16], to[16];
        int n = 1 + (int)(rng_next(&r) % 16), m = 1 + (int)(rng_next(&r) % 15);
        for (int i = 0; i < n; i++) { /* elements of 0 to 200 bytes, now and then longer */
            uint32_t length = (uint32_t)(rng_next(&r) % (rng_next(&r) % 4 ? 60 : 400));
            from[i] = (struct rnic_sge)SGE(&p.a, total, length);
            total += length;
        }
        for (int i = 0; i < m; i++) {
            uint32_t length = (uint32_t)(rng_next(&r) % 200);
            length = length < total - cut ? length : total - cut;
            to[i] = (struct rnic_sge)SGE(&p.b, cut, length);
            cut += length;
        }
        to[m++] = (struct rnic_sge)SGE(&p.b, cut, total - cut);
        fill(p.a.mem, total, 3);
        int op = ops[round % 3];
        check_note("round %d, opcode %d, %u bytes of %d elements into %d", round, op, total, n, m);
        if (op == RNIC_WR_SEND) {
            struct rnic_recv_wr recv = {.wr_id = 2, .sg_list = to, .num_sge = m};
            const struct rnic_recv_wr *bad;
            CHECK_EQ(rq_post(&p.b.qp->rq, &recv, &bad, NULL), 0);
            post(&p.a, (struct rnic_send_wr){.wr_id = 1, .opcode = op, SIGNALED, .sg_list = from, .num_sge = n});
        } else if (op == RNIC_WR_RDMA_WRITE) {
            post(&p.a, (struct rnic_send_wr){
                           .wr_id = 1, .opcode = op, SIGNALED, REMOTE(&p.b, 0), .sg_list = from, .num_sge = n});
        } else { /* b reads from a */
            post(&p.b, (struct rnic_send_wr){
                           .wr_id = 1, .opcode = op, SIGNALED, REMOTE(&p.a, 0), .sg_list = to, .num_sge = m});
        }
        fabric_settle(&p.f);
        WANT(op == RNIC_WR_RDMA_READ ? p.b.send_cq : p.a.send_cq, 1, SUCCESS);
        if (op == RNIC_WR_SEND)
            CHECK_EQ(WANT(p.b.recv_cq, 2, SUCCESS).byte_len, total);
        CHECK(filled(p.b.mem, total, 3));
        pair_close(&p);
    }
}

static void a_message_may_be_shorter_than_its_receive(void) {
    pair_open(&p);
    memset(p.b.mem, 0xEE, 8192);
    post_recv(&p.b, 1, 0, 8192);
    post_send(&p.a, 1, 0, 2001);
    fabric_settle(&p.f);
    CHECK_EQ(WANT(p.b.recv_cq, 1, SUCCESS).byte_len, 2001);
    CHECK(untouched(p.b.mem + 2001, 8192 - 2001));
    pair_close(&p);
}

static void no_elements_are_an_empty_message(void) {
    pair_open(&p);
    post_recv(&p.b, 1, 0, 0);
    post(&p.a, (struct rnic_send_wr){.wr_id = 1, .opcode = RNIC_WR_SEND, SIGNALED});
    post(&p.a, (struct rnic_send_wr){.wr_id = 2, .opcode = RNIC_WR_RDMA_WRITE, SIGNALED}); /* no key needed */
    post(&p.a, (struct rnic_send_wr){.wr_id = 3, .opcode = RNIC_WR_RDMA_READ, SIGNALED});
    fabric_settle(&p.f);
    for (uint64_t id = 1; id <= 3; id++)
        WANT(p.a.send_cq, id, SUCCESS);
    CHECK_EQ(WANT(p.b.recv_cq, 1, SUCCESS).byte_len, 0);
    pair_close(&p);
}

static void a_full_queue_refuses_the_rest_of_a_chain(void) {
    pair_open(&p, .wr = 8);
    struct rnic_send_wr wr[10];
    const struct rnic_send_wr *bad = NULL;
    for (int i = 0; i < 10; i++)
        wr[i] = (struct rnic_send_wr){
            .wr_id = (uint64_t)i, .next = i < 9 ? &wr[i + 1] : NULL, .opcode = RNIC_WR_RDMA_WRITE, SIGNALED};
    CHECK_EQ(sq_post(&p.a.qp->sq, wr, &bad, NULL), -ENOMEM);
    CHECK(bad == &wr[8]);
    fabric_turn(p.a.qp);
    fabric_settle(&p.f);
    for (uint64_t i = 0; i < 8; i++)
        WANT(p.a.send_cq, i, SUCCESS);
    WANT_NONE(p.a.send_cq);
    wr[2].opcode = RNIC_WR_TSO;
    CHECK_EQ(sq_post(&p.a.qp->sq, wr, &bad, NULL), -EOPNOTSUPP);
    CHECK(bad == &wr[2]);
    struct rnic_recv_wr recv[9];
    const struct rnic_recv_wr *bad_recv = NULL;
    for (int i = 0; i < 9; i++)
        recv[i] = (struct rnic_recv_wr){.next = i < 8 ? &recv[i + 1] : NULL};
    CHECK_EQ(rq_post(&p.b.qp->rq, recv, &bad_recv, NULL), -ENOMEM);
    CHECK(bad_recv == &recv[8]);
    pair_close(&p);
}

/* ---------------------------------------------------------------- both ways, ordering, windows */

static void both_ends_send_at_once(void) {
    pair_open(&p, .mtu = RNIC_MTU_512, .bandwidth = 100000000, .ack_hold = 20 * US, .wr = 128, .bytes = 1 << 20);
    fill(p.a.mem, 4096, 1);
    fill(p.b.mem, 4096, 2);
    for (uint32_t i = 0; i < 100; i++) {
        post_recv(&p.a, i, 4096 + 4096 * i, 4096);
        post_recv(&p.b, i, 4096 + 4096 * i, 4096);
    }
    for (uint32_t i = 0; i < 100; i++) {
        post_send(&p.a, i, 0, 4096);
        post_send(&p.b, i, 0, 4096);
    }
    fabric_settle(&p.f);
    for (uint32_t i = 0; i < 100; i++) {
        WANT(p.a.send_cq, i, SUCCESS);
        WANT(p.b.send_cq, i, SUCCESS);
        WANT(p.a.recv_cq, i, SUCCESS);
        WANT(p.b.recv_cq, i, SUCCESS);
        CHECK(filled(p.a.mem + 4096 + 4096 * i, 4096, 2));
        CHECK(filled(p.b.mem + 4096 + 4096 * i, 4096, 1));
    }
    CHECK(COUNTER(&p.a, requests_resent) <= 3); /* probes: the first ACK stands in the queue of the other direction */
    pair_close(&p);
}

static void an_ack_waits_for_the_answer_that_it_can_ride_with(void) {
    pair_open(&p, .ack_hold = 50 * US);
    post_recv(&p.b, 1, 0, 8);
    post_recv(&p.a, 1, 0, 8);
    post_send(&p.a, 1, 0, 8);
    CHECK(!fabric_run(&p.f, p.f.now + 30 * US));
    WANT(p.b.recv_cq, 1, SUCCESS);
    CHECK_EQ(fabric_count(&p.f, p.b.node, 0, ROCE_RC_ACK), 0);
    post_send(&p.b, 2, 0, 8);
    CHECK_EQ(fabric_count(&p.f, p.b.node, 0, ROCE_RC_ACK), 1); /* at once, beside the SEND */
    CHECK_EQ(p.f.log[p.f.logged - 1].at, p.f.log[p.f.logged - 2].at);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    WANT(p.b.send_cq, 2, SUCCESS);
    /* Without an answer it goes when the hold is over; WRITEs are acknowledged at once. */
    uint64_t start = p.f.now;
    post_recv(&p.b, 1, 0, 8);
    post_send(&p.a, 3, 0, 8);
    fabric_settle(&p.f);
    CHECK_EQ(p.f.now - start, 70 * US);
    start = p.f.now;
    post_write(&p.a, 4, 0, 0, 8);
    fabric_settle(&p.f);
    CHECK_EQ(p.f.now - start, 20 * US);
    pair_close(&p);
}

/* A program that sees a WRITE in its memory and answers it polls for the completion of the answer next. The same polls take in the
 * next WRITE if that comes ahead of the ACK. */
static void the_ack_of_a_write_waits_for_a_program_that_has_answered_one(void) {
    pair_open(&p, .ack_hold = 50 * US);
    post_write(&p.a, 1, 0, 0, 8);
    fabric_settle(&p.f);
    CHECK_EQ(fabric_count(&p.f, p.b.node, 0, ROCE_RC_ACK), 1); /* at once: it has answered none yet */
    post_write(&p.b, 1, 0, 0, 8);
    fabric_settle(&p.f);
    post_write(&p.a, 2, 0, 0, 8);
    CHECK(!fabric_run(&p.f, p.f.now + 30 * US));
    CHECK_EQ(fabric_count(&p.f, p.b.node, 0, ROCE_RC_ACK), 1);
    post_write(&p.b, 2, 0, 0, 8);
    CHECK_EQ(fabric_count(&p.f, p.b.node, 0, ROCE_RC_ACK), 2); /* beside the answer */
    CHECK_EQ(p.f.log[p.f.logged - 1].at, p.f.log[p.f.logged - 2].at);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    WANT(p.a.send_cq, 2, SUCCESS);
    uint64_t start = p.f.now; /* one without an answer is acknowledged late, the next one at once */
    post_write(&p.a, 3, 0, 0, 8);
    fabric_settle(&p.f);
    CHECK_EQ(p.f.now - start, 70 * US);
    start = p.f.now;
    post_write(&p.a, 4, 0, 0, 8);
    fabric_settle(&p.f);
    CHECK_EQ(p.f.now - start, 20 * US);
    pair_close(&p);
}

static void silent_write(struct end *e) {
    post(e, (struct rnic_send_wr){.opcode = RNIC_WR_RDMA_WRITE, SGL(SGE(e, 0, 8)), REMOTE(e->peer, 0)});
}

static void silent_send(struct end *e) {
    post_recv(e->peer, 0, 0, 8);
    post(e, (struct rnic_send_wr){.opcode = RNIC_WR_SEND, SGL(SGE(e, 0, 8))});
}

static void what_completes_silently_asks_for_no_ack_of_its_own(void) {
    pair_open(&p, .wr = 128);
    for (int i = 0; i < 10; i++) {
        silent_write(&p.a);
        CHECK(!fabric_run(&p.f, p.f.now + 5 * US));
    }
    CHECK(!fabric_run(&p.f, p.f.now + 50 * US));
    CHECK_EQ(fabric_count(&p.f, p.b.node, 0, -1), 0);
    uint64_t start = p.f.now;
    fabric_settle(&p.f); /* the peer says it when nothing has come for a while */
    CHECK_EQ(fabric_count(&p.f, p.b.node, 0, ROCE_RC_ACK), 1);
    CHECK(p.f.now - start < 100 * US);
    CHECK_EQ(COUNTER(&p.a, requests_resent), 0);
    for (int i = 0; i < 10; i++)
        silent_write(&p.a);
    post_write(&p.a, 7, 0, 0, 8); /* this one's completion is waited for */
    start = p.f.now;
    fabric_settle(&p.f);
    CHECK_EQ(p.f.now - start, 20 * US);
    CHECK_EQ(fabric_count(&p.f, p.b.node, 0, ROCE_RC_ACK), 2);
    WANT(p.a.send_cq, 7, SUCCESS);
    WANT_NONE(p.a.send_cq);
    pair_close(&p);
}

static void a_silent_message_asks_when_receives_run_short(void) {
    pair_open(&p, .wr = 128);
    for (int i = 0; i < 40; i++)
        post_recv(&p.b, 0, 0, 8);
    post_send(&p.a, 1, 0, 8); /* its ACK tells the credits */
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    uint32_t acks = fabric_count(&p.f, p.b.node, 0, ROCE_RC_ACK);
    for (int i = 0; i < 40; i++)
        silent_send(&p.a);
    CHECK(!fabric_run(&p.f, p.f.now + 25 * US));
    CHECK(fabric_count(&p.f, p.b.node, 0, ROCE_RC_ACK) > acks);
    fabric_settle(&p.f);
    CHECK_EQ(COUNTER(&p.a, requests_resent), 0);
    pair_close(&p);
}

static void a_lost_silent_message_is_repeated(void) {
    pair_open(&p);
    fill(p.a.mem, 8, 3);
    struct rnic_fault fault = {.lose[0] = {ROCE_RC_WRITE_ONLY, 1, 1}};
    fault_set(&p.a.node->fault, &fault);
    silent_write(&p.a);
    fabric_settle(&p.f);
    CHECK(filled(p.b.mem, 8, 3));
    CHECK_EQ(COUNTER(&p.a, requests_resent), 1);
    CHECK_EQ(COUNTER(&p.a, probes_sent), 1);
    pair_close(&p);
}

static void more_is_in_flight_where_round_trips_are_long(void) {
    enum { WINDOW = 64 << 10, SLOW = 512 << 10, MESSAGE = 1 << 20 };
    pair_open(&p, .window = WINDOW, .latency = 2 * MS, .bytes = MESSAGE);
    p.a.node->nic.slow_window = SLOW;
    const struct requester *req = &rc_of(p.a.qp)->req;
    for (uint64_t i = 0; i < 120; i++) {
        post_write(&p.a, i, 0, 0, MESSAGE);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, i, SUCCESS);
        CHECK(req->window >= WINDOW && req->window <= SLOW);
    }
    CHECK_EQ(req->window, SLOW);
    p.f.latency = 10 * US;
    for (uint64_t i = 0; i < 120; i++) {
        post_write(&p.a, i, 0, 0, MESSAGE);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, i, SUCCESS);
    }
    CHECK_EQ(req->window, WINDOW);
    CHECK_EQ(COUNTER(&p.a, timeouts), 0);
    pair_close(&p);
}

/* Bytes in flight at the requester, seen from outside: requests and the responses that they ask for. */
static uint64_t most_in_flight(const struct fabric *f, const struct end *from, uint32_t mtu) {
    uint64_t most = 0, sent = 0, answered = 0;
    uint32_t una = 0, known = 0;
    uint64_t cost[4096] = {0}; /* of the PSNs from the first on */
    for (uint32_t i = 0; i < f->logged; i++) {
        const struct record *r = &f->log[i];
        bool ours = &f->node[r->from] == from->node;
        uint32_t mask = roce_opcode(r->opcode)->mask;
        uint32_t at = psn_mask(r->psn - f->log[0].psn);
        CHECK(at < 4096);
        if (ours && !r->arrived && (mask & OPC_REQUEST) && at == known) { /* else it is a probe */
            uint32_t packets = mask & OPC_READ ? packets_of(r->length, mtu) : 1;
            for (uint32_t k = 0; k < packets; k++) {
                cost[known++] = packet_length(r->length, mtu, k) + PACKET_COST;
                sent += cost[known - 1];
            }
            most = sent - answered > most ? sent - answered : most;
        } else if (!ours && r->arrived && (mask & OPC_RESPONSE)) {
            while (una <= at)
                answered += cost[una++];
        }
    }
    return most;
}

static void what_is_in_flight_stays_within_the_window(void) {
    const uint32_t windows[] = {3000, 8000, 40000, 200000};
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
        for (int reads = 0; reads < 2; reads++) {
            check_note("window %u, reads %d", windows[w], reads);
            pair_open(&p, .window = windows[w], .bytes = 1 << 20, .latency = MS, .rd_atomic = 16, .dest_rd_atomic = 16);
            for (uint32_t i = 0; i < 10; i++) {
                if (reads)
                    post_read(&p.a, i, 50000 * i, 50000 * i, 50000);
                else
                    post_write(&p.a, i, 50000 * i, 50000 * i, 50000);
            }
            fabric_settle(&p.f);
            for (uint32_t i = 0; i < 10; i++)
                WANT(p.a.send_cq, i, SUCCESS);
            uint64_t most = most_in_flight(&p.f, &p.a, 1024);
            CHECK(most <= windows[w]);
            CHECK(most > windows[w] / 2);
            pair_close(&p);
        }
    }
}

/* The READs and atomics that a responder has got and not answered, at most. */
static uint32_t most_outstanding(const struct fabric *f) {
    uint32_t most = 0, open = 0;
    for (uint32_t i = 0; i < f->logged; i++) {
        const struct record *r = &f->log[i];
        uint32_t mask = roce_opcode(r->opcode)->mask;
        if (!r->arrived && (mask & (OPC_READ | OPC_ATOMIC)))
            most = ++open > most ? open : most;
        else if (r->arrived && ((mask & OPC_ATMACK) || ((mask & OPC_READ_RESP) && (mask & OPC_LAST))))
            open--;
    }
    CHECK_EQ(open, 0);
    return most;
}

static void no_more_than_max_rd_atomic_are_outstanding(void) {
    for (uint32_t max = 1; max <= 16; max *= 2) {
        pair_open(&p, .rd_atomic = max, .dest_rd_atomic = max, .bytes = 1 << 20, .lazy = 1, .wr = 128);
        for (uint32_t i = 0; i < 60; i++) {
            if (i % 3 == 2)
                post_add(&p.a, i, 8 * i, 0, 1);
            else
                post_read(&p.a, i, 4096 + 4000 * i, 4096 + 4000 * i, 1000 + 50 * i);
        }
        fabric_settle(&p.f);
        for (uint32_t i = 0; i < 60; i++)
            WANT(p.a.send_cq, i, SUCCESS);
        CHECK_EQ(most_outstanding(&p.f), max);
        pair_close(&p);
    }
    /* 128 is what the device grants */
    pair_open(&p, .rd_atomic = 128, .dest_rd_atomic = 128, .lazy = 1, .wr = 512, .cqe = 512);
    for (uint32_t i = 0; i < 500; i++)
        post_add(&p.a, i, 0, 0, 1);
    fabric_settle(&p.f);
    CHECK_EQ(word(&p.b, 0), 500);
    CHECK_EQ(most_outstanding(&p.f), 128);
    pair_close(&p);
}

static void a_long_read_goes_out_in_parts(void) {
    const uint32_t n = 300000, window = 64 * 1280;
    pair_open(&p, .window = window, .bytes = n, .rd_atomic = 4);
    fill(p.b.mem, n, 8);
    post_read(&p.a, 1, 0, 0, n);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    CHECK(filled(p.a.mem, n, 8));
    uint32_t requests = 0, psn = 0x123456;
    uint64_t va = (uintptr_t)p.b.mem;
    for (uint32_t i = 0; i < p.f.logged; i++) {
        const struct record *r = &p.f.log[i];
        if (r->arrived || r->opcode != ROCE_RC_READ_REQUEST)
            continue;
        CHECK_EQ(r->psn, psn); /* consecutive PSNs and addresses, none longer than the window */
        CHECK_EQ(r->va, va);
        CHECK(packets_of(r->length, 1024) * 1280 <= window);
        psn = psn_add(psn, (int32_t)packets_of(r->length, 1024));
        va += r->length;
        requests++;
    }
    CHECK_EQ(va - (uintptr_t)p.b.mem, n);
    CHECK_EQ(requests, 19);
    pair_close(&p);
}

/* A responder whose link takes few packets at a time still answers in order and within its resources. */
static void a_slow_sink_changes_nothing(void) {
    pair_open(&p, .budget = 3, .pause = 5 * US, .mtu = RNIC_MTU_256, .wr = 128, .bytes = 1 << 20, .rd_atomic = 4);
    fill(p.b.mem, 1 << 19, 1);
    fill(p.a.mem + (1 << 19), 1 << 19, 2);
    for (uint32_t i = 0; i < 100; i++) {
        if (i % 4 == 3)
            post_add(&p.a, i, 0, 1 << 19, 1);
        else if (i % 4 == 2)
            post_write(&p.a, i, (1 << 19) + 3000 * i, (1 << 19) + 8 + 3000 * i, 3000);
        else
            post_read(&p.a, i, 8 + 3000 * i, 8 + 3000 * i, 3000);
    }
    fabric_settle(&p.f);
    for (uint32_t i = 0; i < 100; i++)
        WANT(p.a.send_cq, i, SUCCESS);
    CHECK_EQ(word(&p.b, 1 << 19), 25);
    for (uint32_t i = 0; i < 100; i++) {
        if (i % 4 < 2)
            CHECK(!memcmp(p.a.mem + 8 + 3000 * i, p.b.mem + 8 + 3000 * i, 3000));
        if (i % 4 == 2)
            CHECK(!memcmp(p.a.mem + (1 << 19) + 3000 * i, p.b.mem + (1 << 19) + 8 + 3000 * i, 3000));
    }
    pair_close(&p);
}

/* ---------------------------------------------------------------- credits and ACKs */

static void credits_prevent_receiver_not_ready(void) {
    const uint32_t hold[] = {0, 50000};
    for (int h = 0; h < 2; h++) {
        pair_open(&p, .wr = 128, .ack_hold = hold[h]);
        for (uint32_t i = 0; i < 4; i++)
            post_recv(&p.b, i, 0, 64);
        for (uint32_t i = 0; i < 100; i++)
            post_send(&p.a, i, 0, 64);
        uint32_t got = 0;
        struct rnic_wc wc;
        for (uint64_t end = p.f.now + SEC; got < 100 && p.f.now < end;) {
            fabric_run(&p.f, p.f.now + 100 * US); /* the receiver takes one message each 100 us */
            if (cq_take(p.b.recv_cq, 1, &wc)) {
                CHECK_EQ(wc.status, RNIC_WC_SUCCESS);
                post_recv(&p.b, got++, 0, 64);
            }
        }
        CHECK_EQ(got, 100);
        fabric_settle(&p.f);
        /* The first burst knows of no limit.  Later, without credit, one message may always go out and ask, and that one
         * may meet no receive: it alone goes out again. */
        CHECK(COUNTER(&p.b, rnr_nak_sent) <= 25);
        CHECK(COUNTER(&p.a, requests_resent) <= 96 + 25);
        pair_close(&p);
    }
}

/* The usual pair of WRITE and SEND, with few receives: the SEND waits for credit that only the WRITE's ACK brings. */
static void a_write_before_a_send_without_credit_asks_for_an_ack(void) {
    pair_open(&p, .lazy = 1);
    uint64_t start = p.f.now;
    for (uint32_t i = 0; i < 20; i++) {
        post_recv(&p.b, i, 0, 64);
        post_write(&p.a, 100 + i, 0, 0, 64);
        post_write(&p.a, 200 + i, 0, 0, 64);
        post_send(&p.a, 300 + i, 0, 64);
        if (i % 2)
            fabric_settle(&p.f);
    }
    CHECK(p.f.now - start < 10 * 100 * US);
    CHECK_EQ(COUNTER(&p.a, requests_resent), 0);
    pair_close(&p);
}

static void chains_are_acknowledged_together(void) {
    pair_open(&p, .lazy = 1, .wr = 256);
    for (uint32_t i = 0; i < 160; i++)
        post_write(&p.a, i, 0, 0, 8);
    fabric_settle(&p.f);
    CHECK_EQ(COUNTER(&p.b, requests_executed), 160);
    CHECK(COUNTER(&p.b, acks_sent) <= 160 / ACK_EVERY + 1);
    CHECK_EQ(COUNTER(&p.a, requests_resent), 0);
    pair_close(&p);
}

/* A READ's response and an atomic's acknowledge are all the answer that there is. */
static void responses_are_not_acknowledged_twice(void) {
    pair_open(&p, .lazy = 1);
    post_read(&p.a, 1, 0, 0, 3000);
    post_add(&p.a, 2, 0, 0, 1);
    post_write(&p.a, 3, 0, 0, 8);
    post_read(&p.a, 4, 0, 0, 3);
    fabric_settle(&p.f);
    CHECK_EQ(COUNTER(&p.b, responses_sent), 5);
    CHECK_EQ(COUNTER(&p.b, acks_sent), 0);
    CHECK_EQ(COUNTER(&p.a, drop_bad_psn), 0);
    pair_close(&p);
}

/* ---------------------------------------------------------------- several queue pairs */

/* Two queue pairs of one device with one completion queue, to two devices: the error of one is its own. */
static void queue_pairs_share_a_device_and_nothing_else(void) {
    struct options o = {.mtu = RNIC_MTU_1024};
    struct rnic_qp_cap cap = {16, 16, 1, 1, 0};
    struct end second, far;
    pair_open_options(&p, &o);
    second = p.a;
    far = p.b;
    second.peer = &far;
    far.peer = &second;
    far.node = &p.f.node[2];
    second.qp = fabric_qp(p.a.node, &cap, p.a.send_cq, p.a.recv_cq);
    far.mr = fabric_mr(far.node, &far.node->pd, p.b.mem, p.b.bytes, ALL_ACCESS);
    far.qp = fabric_qp(far.node, &cap, p.b.send_cq, p.b.recv_cq);
    pair_connect(&second, &o);
    pair_connect(&far, &o);
    for (uint32_t i = 0; i < 10; i++) {
        post_write(&p.a, i, 0, 0, 5000);
        post_read(&second, 100 + i, 8192, 0, 5000);
    }
    fabric_settle(&p.f);
    uint32_t seen[2] = {0, 0};
    for (int i = 0; i < 20; i++) {
        struct rnic_wc wc = TAKE(p.a.send_cq);
        CHECK_EQ(wc.status, RNIC_WC_SUCCESS);
        CHECK_EQ(wc.wr_id % 100, seen[wc.wr_id >= 100]++);
        CHECK_EQ(wc.qp_num, (wc.wr_id < 100 ? p.a.qp : second.qp)->pub.qp_num);
    }
    CHECK_EQ(p.a.qp->counters.value[RNIC_CNT_requests_sent] + second.qp->counters.value[RNIC_CNT_requests_sent],
             COUNTER(&p.a, requests_sent));
    CHECK_EQ(move(p.b.qp, RNIC_QPS_ERR), 0);
    post_write(&p.a, 1, 0, 0, 10);
    post_read(&second, 2, 0, 0, 10);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 2, SUCCESS);
    WANT(p.a.send_cq, 1, RETRY_EXC_ERR);
    CHECK_EQ(second.qp->state, RNIC_QPS_RTS);
    fabric_drop_mr(far.node, far.mr);
    pair_close(&p);
}

int main(void) {
    RUN(every_size_crosses_every_path_mtu);
    RUN(several_mebibytes_are_one_message);
    RUN(the_longest_WRITE_is_2_GiB_less_1);
    RUN(the_longest_READ_is_2_GiB_less_1);
    RUN(atomics_return_what_was_there);
    RUN(inline_data_may_change_after_the_post);
    RUN(what_is_not_signaled_completes_in_silence);
    RUN(a_solicited_event_is_raised_by_the_flag_alone);
    RUN(the_solicited_bit_is_on_the_last_packet);
    RUN(a_fence_waits_for_reads_and_atomics);
    RUN(lists_scatter_and_gather_at_every_boundary);
    RUN(a_message_may_be_shorter_than_its_receive);
    RUN(no_elements_are_an_empty_message);
    RUN(a_full_queue_refuses_the_rest_of_a_chain);
    RUN(both_ends_send_at_once);
    RUN(an_ack_waits_for_the_answer_that_it_can_ride_with);
    RUN(the_ack_of_a_write_waits_for_a_program_that_has_answered_one);
    RUN(what_completes_silently_asks_for_no_ack_of_its_own);
    RUN(a_silent_message_asks_when_receives_run_short);
    RUN(a_lost_silent_message_is_repeated);
    RUN(more_is_in_flight_where_round_trips_are_long);
    RUN(what_is_in_flight_stays_within_the_window);
    RUN(no_more_than_max_rd_atomic_are_outstanding);
    RUN(a_long_read_goes_out_in_parts);
    RUN(a_slow_sink_changes_nothing);
    RUN(credits_prevent_receiver_not_ready);
    RUN(a_write_before_a_send_without_credit_asks_for_an_ack);
    RUN(chains_are_acknowledged_together);
    RUN(responses_are_not_acknowledged_twice);
    RUN(queue_pairs_share_a_device_and_nothing_else);
    return check_done();
}
