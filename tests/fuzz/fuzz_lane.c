/* SPDX-License-Identifier: Apache-2.0
 *
 * A hostile process of the same host: what it says when it asks for a lane, and what it writes into the shared memory.
 *
 *   fuzz_lane [seed [cases]]
 *
 * The device is roce_lo, in a network namespace of its own where that is allowed.  The attacker has a slot and a lane, so
 * that the device takes it for the peer of its queue pairs; it forges packets that they expect, changes them, refers to
 * payloads that it has not, and writes cells and counts that cannot be.  Between the cases the device must still serve a
 * healthy pair, and nothing outside of the region that is the attacker's to write may have changed.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "ext.h"
#include "forge.h"
#include "live.h"
#include "names/abstract.h"
#include "names/slotmsg.h"
#include "verbs/verbs.h"
#include "wire/bth.h"

#define BYTES (256u << 10) /* more than a packet */
#define GUARD 4096
#define EVERY 500
#define PATIENCE 10 /* seconds */
#define CANARY 0xC5
#define QKEY 0x11223344
#define BEHIND 16 /* packets that the device may not have looked at */

enum { RELIABLE, UNRELIABLE, DATAGRAMS, TARGETS, LEFT = TARGETS, RIGHT, QPS };
static const int types[QPS] = {RNIC_QPT_RC, RNIC_QPT_UC, RNIC_QPT_UD, RNIC_QPT_RC, RNIC_QPT_RC};

static struct {
    struct rnic_context *ctx;
    struct rnic_pd *pd;
    struct rnic_cq *cq;
    struct rnic_qp *qp[QPS];
    struct rnic_mr *mr, *left, *right;
    uint8_t arena[GUARD + BYTES + GUARD];
    uint8_t *memory;
    struct grounds grounds;
    uint8_t gid;
    struct in6_addr here;

    struct slot slot; /* the attacker's */
    struct lane_self self;
    struct fault fault;
    struct rnic_counters counters;
    uint64_t now;
    struct lane_shared shared;
    struct lane *lane;
    struct dice dice;
} w;

static uint64_t seed, number, hung_up, deaths;

void check_fail(const char *file, int line, const char *fmt, ...) {
    va_list ap;
    fprintf(stderr, "fuzz_lane: seed %llu, case %llu: %s:%d: ", (unsigned long long)seed, (unsigned long long)number,
            file, line);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}

/* ---------------------------------------------------------------- the device */

static uint8_t find_gid(void) {
    struct rnic_gid_entry e;
    for (int i = 0; !w.ctx->ops->query_gid(w.ctx, 1, i, &e, NULL); i++) {
        if (!memcmp(e.gid.raw, &w.here, 16))
            return (uint8_t)i;
    }
    check_fail(__FILE__, __LINE__, "roce_lo has no GID for 127.0.0.1");
}

static void ready(int i, uint32_t dest) {
    struct rnic_err err = {0};
    struct rnic_qp_attr a = {
        .path_mtu = RNIC_MTU_1024, .port_num = 1, .qp_access_flags = 0xF, .dest_qp_num = dest, .qkey = QKEY};
    a.ah_attr = (struct rnic_ah_attr){.is_global = 1, .port_num = 1, .grh = {.sgid_index = w.gid, .hop_limit = 64}};
    memcpy(a.ah_attr.grh.dgid.raw, &w.here, 16);
    a.sq_psn = a.rq_psn = 0xFFFFF0;
    a.max_rd_atomic = a.max_dest_rd_atomic = 16;
    a.timeout = 12;
    a.retry_cnt = a.rnr_retry = 7;
    a.min_rnr_timer = 1;
    const uint32_t rc = RNIC_QP_MAX_DEST_RD_ATOMIC | RNIC_QP_MIN_RNR_TIMER | RNIC_QP_TIMEOUT | RNIC_QP_RETRY_CNT |
                        RNIC_QP_RNR_RETRY | RNIC_QP_MAX_QP_RD_ATOMIC;
    const uint32_t connected = RNIC_QP_AV | RNIC_QP_PATH_MTU | RNIC_QP_DEST_QPN | RNIC_QP_RQ_PSN | RNIC_QP_ACCESS_FLAGS;
    const uint32_t without[] = {
        [RNIC_QPT_RC] = RNIC_QP_QKEY, [RNIC_QPT_UC] = RNIC_QP_QKEY | rc, [RNIC_QPT_UD] = rc | connected};
    const uint32_t masks[] = {RNIC_QP_STATE,
                              RNIC_QP_STATE | RNIC_QP_PKEY_INDEX | RNIC_QP_PORT | RNIC_QP_ACCESS_FLAGS | RNIC_QP_QKEY,
                              RNIC_QP_STATE | RNIC_QP_AV | RNIC_QP_PATH_MTU | RNIC_QP_DEST_QPN | RNIC_QP_RQ_PSN |
                                  RNIC_QP_MAX_DEST_RD_ATOMIC | RNIC_QP_MIN_RNR_TIMER,
                              RNIC_QP_STATE | RNIC_QP_TIMEOUT | RNIC_QP_RETRY_CNT | RNIC_QP_RNR_RETRY | RNIC_QP_SQ_PSN |
                                  RNIC_QP_MAX_QP_RD_ATOMIC};
    for (a.qp_state = RNIC_QPS_RESET; a.qp_state <= RNIC_QPS_RTS; a.qp_state++) {
        if (w.ctx->ops->modify_qp(w.qp[i], &a, masks[a.qp_state] & ~without[types[i]], &err) == 0)
            continue;
        if (qp_of(w.qp[i])->state != RNIC_QPS_ERR)
            check_fail(__FILE__, __LINE__, "%s", err.text);
        a.qp_state = RNIC_QPS_RESET - 1;
    }
}

static uint32_t attackers_qpn(int i) { return w.slot.number << QPN_INDEX_BITS | (uint32_t)(100 + i); }

static void open_device(void) {
    struct rnic_err err = {0};
    const uint8_t ip[16] = {[10] = 0xFF, [11] = 0xFF, [12] = 127, [15] = 1};
    memcpy(&w.here, ip, sizeof ip);
    if (rnic_soft.open("roce_lo", NULL, &w.ctx, &err))
        check_fail(__FILE__, __LINE__, "%s", err.text);
    const struct rnic_ops *ops = w.ctx->ops;
    w.gid = find_gid();
    CHECK_EQ(ops->alloc_pd(w.ctx, &w.pd, NULL), 0);
    CHECK_EQ(ops->create_cq(w.ctx, 4096, NULL, 0, NULL, &w.cq, NULL), 0);
    for (int i = 0; i < QPS; i++) {
        struct rnic_qp_init_attr init = {
            .send_cq = w.cq, .recv_cq = w.cq, .cap = {64, 64, 1, 1, 0}, .qp_type = types[i]};
        CHECK_EQ(ops->create_qp(w.pd, &init, &w.qp[i], NULL), 0);
    }
    memset(w.arena, CANARY, sizeof w.arena);
    w.memory = w.arena + GUARD;
    CHECK_EQ(ops->reg_mr(w.pd, w.memory, BYTES, 0xF, &w.mr, NULL), 0);
    CHECK_EQ(ext_memory(w.ctx)->alloc_mr(w.pd, BYTES, 0xF, &w.left, NULL), 0);
    CHECK_EQ(ext_memory(w.ctx)->alloc_mr(w.pd, BYTES, 0xF, &w.right, NULL), 0);
    for (int i = 0; i < REGIONS; i++)
        w.grounds.region[i] = (struct region){(uintptr_t)w.memory, BYTES, w.mr->rkey};
    for (int i = 0; i < TARGETS; i++)
        ready(i, attackers_qpn(i));
    ready(LEFT, w.qp[RIGHT]->qp_num);
    ready(RIGHT, w.qp[LEFT]->qp_num);
}

static void close_device(void) {
    const struct rnic_ops *ops = w.ctx->ops;
    for (int i = 0; i < QPS; i++)
        CHECK_EQ(ops->destroy_qp(w.qp[i], NULL), 0);
    CHECK_EQ(ops->dereg_mr(w.mr, NULL), 0);
    CHECK_EQ(ops->dereg_mr(w.left, NULL), 0);
    CHECK_EQ(ops->dereg_mr(w.right, NULL), 0);
    CHECK_EQ(ops->destroy_cq(w.cq, NULL), 0);
    CHECK_EQ(ops->dealloc_pd(w.pd, NULL), 0);
    CHECK_EQ(ops->close(w.ctx, NULL), 0);
}

/* Receives, and whoever is in error begins anew. */
static void refresh(void) {
    const struct rnic_recv_wr *bad;
    struct rnic_wc wc[64];
    while (w.ctx->ops->poll_cq(w.cq, 64, wc) == 64)
        ;
    for (int i = 0; i < TARGETS; i++) {
        if (((struct qp *)w.qp[i])->state == RNIC_QPS_ERR) {
            deaths++;
            ready(i, attackers_qpn(i));
        }
        struct rnic_sge sge = {(uintptr_t)w.memory, dice_one_in(&w.dice, 256) ? dice_below(&w.dice, BYTES) : BYTES,
                               w.mr->lkey};
        struct rnic_recv_wr wr = {.sg_list = &sge, .num_sge = 1};
        while (w.ctx->ops->post_recv(w.qp[i], &wr, &bad, NULL) == 0 && ((struct qp *)w.qp[i])->state != RNIC_QPS_ERR)
            ;
    }
}

/* ---------------------------------------------------------------- the attacker */

static void pause_us(long us) { nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL); }

/* Whoever asks who has our slot connects to its lifeline, and 4,096 of them are all that wait there. */
static void let_them_watch(void) {
    for (int fd; (fd = accept4(w.slot.life.fd, NULL, NULL, SOCK_CLOEXEC)) >= 0;)
        close(fd);
}

/* A lane that is up, in good manners. */
static void get_lane(void) {
    if (!w.lane || w.lane->state != LANE_UP)
        let_them_watch();
    while (!w.lane || w.lane->state != LANE_UP) {
        if (w.lane)
            lane_free(w.lane);
        w.lane = NULL;
        CHECK_EQ(lane_ask(&w.lane, qpn_slot(w.qp[0]->qp_num), &w.self, &w.shared, 0), 0);
        for (int i = 0; i < 100000 && w.lane->state == LANE_ASKING; i++) {
            lane_listen_to(w.lane, &w.self, LANE_ALL);
            pause_us(20);
        }
    }
}

static int connect_raw(void) {
    struct abstract_name name;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    abstract_name(&name, "rnic/1/lane/%u", qpn_slot(w.qp[0]->qp_num));
    CHECK_EQ(connect(fd, (struct sockaddr *)&name.un, name.length), 0);
    return fd;
}

/* Bytes and descriptors that are no greeting, or nearly one. */
static void bad_manners(void) {
    static uint8_t bytes[2048];
    struct dice *d = &w.dice;
    union {
        char bytes[CMSG_SPACE(4 * sizeof(int))];
        struct cmsghdr header;
    } control = {{0}};
    uint32_t magic = SLOTMSG_MAGIC, nslots = dice_one_in(d, 4) ? (uint32_t)dice_bits(d, 4) : 1;
    uint16_t version = SLOTMSG_VERSION, type = (uint16_t)dice_below(d, 6);
    const uint32_t whole = (uint32_t)(8 + sizeof(struct lane_party));
    int fd = connect_raw(), passed[4], n = (int)dice_below(d, 5);
    for (int i = 0; i < n; i++) {
        passed[i] = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        CHECK_EQ(ftruncate(passed[i], (off_t)DICE_PICK(d, 0, 4096, 1 << 20, 2 << 20, 8 << 20)), 0);
        if (dice_below(d, 2))
            fcntl(passed[i], F_ADD_SEALS, F_SEAL_SHRINK);
    }
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)dice_bits(d, 1);
    if (dice_below(d, 8)) {
        memcpy(bytes, &magic, 4);
        memcpy(bytes + 4, &version, 2);
        memcpy(bytes + 6, &type, 2);
        memcpy(bytes + 8, &nslots, 4);
        memcpy(bytes + 12, &nslots, 4);
    }
    struct iovec iov = {bytes, (size_t)DICE_PICK(d, whole, whole, 8, 0, 1, 7, 9, whole - 1, whole + 1, sizeof bytes)};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n) {
        mh.msg_control = &control;
        mh.msg_controllen = CMSG_SPACE((size_t)n * sizeof(int));
        control.header = (struct cmsghdr){CMSG_LEN((size_t)n * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), passed, (size_t)n * sizeof(int));
    }
    (void)sendmsg(fd, &mh, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (dice_below(d, 2))
        pause_us(100);
    close(fd);
    for (int i = 0; i < n; i++)
        close(passed[i]);
}

/* Under the lock, since the engine moves the state that it is made from. */
static void forge(struct forged *f) {
    int i = (int)dice_below(&w.dice, TARGETS);
    const struct qp *qp = qp_of(w.qp[i]);
    if (dice_one_in(&w.dice, 32)) {
        forge_noise(f, &w.dice);
        return;
    }
    dev_lock(dev_of(w.ctx));
    if (i == DATAGRAMS)
        forge_datagram(f, w.qp[i]->qp_num, QKEY, &w.dice);
    else
        forge_valid(f, qp, &w.grounds, &w.dice);
    if (dice_one_in(&w.dice, 6))
        forge_mutate(f, (const struct qp *)w.qp[RELIABLE], &w.grounds, &w.dice);
    dev_unlock(dev_of(w.ctx));
}

static uint32_t any_kind(void) {
    struct dice *d = &w.dice;
    return dice_below(d, 8) ? 0 : (uint32_t)DICE_PICK(d, LANE_MARKED, LANE_DATAGRAM, LANE_REFERS, 7, 0xFFFFFFFF);
}

/* Its payload would be here. */
static void refer(uint8_t *at, uint32_t n) {
    struct dice *d = &w.dice;
    struct rnic_sge sge = {dice_below(d, 2) ? w.left->iova : dice_bits(d, 8),
                           (uint32_t)DICE_PICK(d, 0, 1, 64, BYTES, 65536, 65537, 0xFFFFFFFF),
                           dice_below(d, 2) ? w.left->lkey : (uint32_t)dice_bits(d, 4)};
    memcpy(at + (n <= 48 ? n : 48), &sge, sizeof sge);
}

static void packet(void) {
    static struct forged f;
    struct dice *d = &w.dice;
    forge(&f);
    uint32_t kind = any_kind(), n = f.n, room = n + 128;
    bool refers = kind & LANE_REFERS && dice_below(d, 4), datagram = f.bytes[0] >> 5 == 3 && dice_below(d, 8);
    uint8_t *at = ring_reserve(&w.lane->out, refers ? LANE_REFERRING : room <= RING_LONGEST ? room : n);
    if (!at)
        return;
    if (refers) {
        memcpy(at, f.bytes, n < 48 ? n : 48);
        refer(at, n);
    } else {
        memcpy(at, f.bytes, n);
        w.lane->out.length = datagram ? n + 40 : n;
        if (dice_one_in(d, 128))
            w.lane->out.length =
                (uint32_t)DICE_PICK(d, 0, 1, 11, 12, 39, 48, 49, n + 128, RING_LONGEST, RING_LONGEST + 1, 0xFFFFFFFF);
    }
    uint32_t length = w.lane->out.length;
    if (length > room && !refers) /* the writer's own account is not to believe it either */
        w.lane->out.length = room;
    ring_commit(&w.lane->out, datagram ? kind | LANE_DATAGRAM : kind);
    w.lane->out.mem->cell[(w.lane->out.next - 1) % RING_CELLS].length = length;
}

/* Writes where it should not. */
static void scribble(void) {
    struct dice *d = &w.dice;
    struct ring_shared *mine = w.lane->out.mem, *theirs = w.lane->in.mem;
    switch (dice_below(d, 6)) {
    case 0:
        atomic_store(&theirs->taken, (uint32_t)dice_bits(d, 4));
        break;
    case 1:
        atomic_store(&mine->asleep, (uint32_t)dice_below(d, 2));
        break;
    case 2:
        atomic_store(&theirs->stuck, (uint32_t)dice_below(d, 2));
        break;
    case 3:
        atomic_store(&mine->mark, (uint32_t)dice_below(d, 1000) * 2);
        break;
    case 4:
        mine->cell[dice_below(d, RING_CELLS)].at = (uint32_t)dice_bits(d, 4);
        break;
    default:
        memset(mine->data + dice_below(d, RING_DATA - 64), (int)dice_bits(d, 1), 64);
        break;
    }
}

/* What is written after the device has hung up attacks nobody. */
static void keep_pace(void) {
    for (int i = 0; i < 200 && w.lane->state == LANE_UP; i++) {
        if (lane_listen_to(w.lane, &w.self, LANE_ALL))
            hung_up += w.lane->state == LANE_DOWN;
        uint32_t taken = atomic_load(&w.lane->out.mem->taken);
        if (w.lane->out.next - taken < BEHIND)
            break;
        pause_us(20);
    }
}

static void attack(void) {
    struct dice *d = &w.dice;
    struct ring_packet p;
    uint32_t kind = dice_below(d, 200);
    get_lane();
    if (kind == 0)
        bad_manners();
    else if (kind < 20)
        scribble();
    else
        packet();
    lane_flush(w.lane);
    for (int i = 0; i < 64 && ring_peek(&w.lane->in, &p) == 1; i++)
        ring_take(&w.lane->in);
    keep_pace();
}

/* ---------------------------------------------------------------- the innocent */

static uint64_t seconds(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec;
}

static void transfer(void) {
    struct rnic_wc wc[16];
    const struct rnic_send_wr *bad;
    uint8_t *left = w.left->addr, *right = w.right->addr;
    for (uint32_t i = 0; i < BYTES; i++)
        left[i] = (uint8_t)dice_bits(&w.dice, 1);
    struct rnic_sge sge = {(uintptr_t)left, BYTES, w.left->lkey};
    struct rnic_send_wr wr = {
        .wr_id = 77, .sg_list = &sge, .num_sge = 1, .opcode = RNIC_WR_RDMA_WRITE, .send_flags = RNIC_SEND_SIGNALED};
    wr.wr.rdma.remote_addr = w.right->iova;
    wr.wr.rdma.rkey = w.right->rkey;
    CHECK_EQ(w.ctx->ops->post_send(w.qp[LEFT], &wr, &bad, NULL), 0);
    bool done = false;
    for (uint64_t until = seconds() + PATIENCE; !done && seconds() <= until;) {
        int n = w.ctx->ops->poll_cq(w.cq, 16, wc);
        for (int i = 0; i < n; i++) {
            done |= wc[i].qp_num == w.qp[LEFT]->qp_num;
            CHECK(wc[i].qp_num != w.qp[LEFT]->qp_num || wc[i].status == RNIC_WC_SUCCESS);
        }
    }
    CHECK(done);
    CHECK(!memcmp(left, right, BYTES));
    for (int i = 0; i < GUARD; i++)
        CHECK(w.arena[i] == CANARY && w.arena[GUARD + BYTES + i] == CANARY);
}

int main(int argc, char **argv) {
    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    uint64_t cases = argc > 2 ? strtoull(argv[2], NULL, 0) : 100000;
    rng_seed(&w.dice.rng, seed);
    live_isolate();
    CHECK_EQ(slot_claim(&w.slot, NULL), 0);
    w.self = (struct lane_self){.party = {.nslots = 1, .naddresses = 1, .slots = {w.slot.number}}, .file = -1};
    w.shared = (struct lane_shared){&w.fault, &w.counters, &w.now};
    open_device();
    memcpy(&w.self.party.addresses[0], &w.here, 16);
    w.self.file = dev_of(w.ctx)->store.fd; /* the attacker's memory file, for what it refers to */
    for (number = 0; number < cases; number++) {
        if (number % 8 == 0)
            refresh();
        if (number % EVERY == 0)
            transfer();
        attack();
    }
    transfer();
    struct rnic_counters c;
    CHECK_EQ(ext_stats(w.ctx)->query_counters(w.ctx, &c, NULL), 0);
    CHECK(c.value[RNIC_CNT_local_received] > 0 && c.value[RNIC_CNT_requests_executed] > 0);
    if (w.lane)
        lane_free(w.lane);
    close_device();
    slot_release(&w.slot);
    printf(
        "fuzz_lane: seed %llu: %llu cases: %llu packets taken, %llu requests executed, %llu queue pairs brought down, "
        "%llu lanes hung up\n",
        (unsigned long long)seed, (unsigned long long)cases, (unsigned long long)c.value[RNIC_CNT_local_received],
        (unsigned long long)c.value[RNIC_CNT_requests_executed], (unsigned long long)deaths,
        (unsigned long long)hung_up);
    return 0;
}
