/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile datagrams to an open device, over sockets and in real time: what demultiplexer, port and slot make of them.
 *
 *   fuzz_device [seed [cases]]
 *
 * The device is roce_lo, in a network namespace of its own where that is allowed.  Target queue pairs of RC, UC and
 * XRC, whose peer address is the attacker's, get forged packets singly, as UDP_SEGMENT batches and through the slot's
 * unix socket, beside probes and noise; a datagram queue pair that is in a multicast group, and queue pair 1 with a listener, get
 * theirs.  Between them a WRITE and a READ of a healthy pair must arrive unharmed.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "ext.h"
#include "forge.h"
#include "link/group/group.h"
#include "link/udp/udpsock.h"
#include "names/abstract.h"
#include "names/listen.h"
#include "names/slotmsg.h"
#include "verbs/verbs.h"
#include "wire/bth.h"
#include "wire/icrc.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

#define BYTES 8192
#define GUARD 4096
#define EVERY 250   /* cases between two looks at the healthy pair */
#define PATIENCE 10 /* seconds for a WRITE and a READ */
#define CANARY 0xC5
#define QKEY 0x11223344
#define SERVICE 0x01061234
#define GROUP "239.77.3.4"

enum { TARGET, UNRELIABLE, XRC_IN, XRC_OUT, TARGETS, LEFT = TARGETS, RIGHT, QPS };
static const int types[QPS] = {RNIC_QPT_RC,       RNIC_QPT_UC, RNIC_QPT_XRC_RECV,
                               RNIC_QPT_XRC_SEND, RNIC_QPT_RC, RNIC_QPT_RC};

static struct {
    struct rnic_context *ctx;
    struct rnic_pd *pd;
    struct rnic_cq *cq;
    struct rnic_qp *qp[QPS], *ud, *gsi;
    struct rnic_xrcd *xrcd;
    struct rnic_srq *srq[SRQS - 1];
    struct rnic_listener *listener;
    uint8_t arena[GUARD + BYTES + GUARD];
    uint8_t *memory;
    struct rnic_mr *mr;
    struct grounds grounds;
    uint8_t gid;
    uint8_t left[BYTES], back[BYTES], right[BYTES]; /* of the healthy pair */
    struct rnic_mr *left_mr, *back_mr, *right_mr;
    int udp;
    struct sockaddr_in6 here;
    struct dice dice;
} w;

static uint64_t seed, number, deaths, transfers;

void check_fail(const char *file, int line, const char *fmt, ...) {
    va_list ap;
    fprintf(stderr, "fuzz_device: seed %llu, case %llu: %s:%d: ", (unsigned long long)seed, (unsigned long long)number,
            file, line);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}

/* ---------------------------------------------------------------- a device */

/* Without the right to a namespace the host's own lo serves as well. */
static void isolate(void) {
    struct ifreq ifr = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET)) {
        printf("fuzz_device: no network namespace of its own: %s\n", strerror(errno));
        return;
    }
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(ioctl(fd, SIOCSIFFLAGS, &ifr), 0);
    close(fd);
}

static void localhost(struct sockaddr_in6 *addr, uint16_t port) {
    *addr = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
    const uint8_t ip[16] = {[10] = 0xFF, [11] = 0xFF, [12] = 127, [15] = 1};
    memcpy(&addr->sin6_addr, ip, sizeof ip);
}

static uint8_t find_gid(void) {
    struct rnic_gid_entry e;
    for (int i = 0; !w.ctx->ops->query_gid(w.ctx, 1, i, &e, NULL); i++) {
        if (!memcmp(e.gid.raw, &w.here.sin6_addr, 16))
            return (uint8_t)i;
    }
    check_fail(__FILE__, __LINE__, "roce_lo has no GID for 127.0.0.1");
}

static struct rnic_mr *reg(void *addr, uint64_t length) {
    struct rnic_mr *mr;
    CHECK_EQ(w.ctx->ops->reg_mr(w.pd, addr, length, 0xF, &mr, NULL), 0);
    return mr;
}

static void connect_qp(struct rnic_qp *qp, uint32_t dest) {
    struct rnic_err err = {0};
    struct rnic_qp_attr a = {.path_mtu = RNIC_MTU_1024, .port_num = 1, .qp_access_flags = 0xF, .dest_qp_num = dest};
    a.ah_attr = (struct rnic_ah_attr){.is_global = 1, .port_num = 1, .grh = {.sgid_index = w.gid, .hop_limit = 64}};
    memcpy(a.ah_attr.grh.dgid.raw, &w.here.sin6_addr, 16);
    a.sq_psn = a.rq_psn = 0xFFFFF0;
    a.max_rd_atomic = a.max_dest_rd_atomic = 16;
    a.timeout = 12;
    a.retry_cnt = a.rnr_retry = 7;
    a.min_rnr_timer = 1;
    const uint32_t responds = RNIC_QP_MAX_DEST_RD_ATOMIC | RNIC_QP_MIN_RNR_TIMER;
    const uint32_t requests = RNIC_QP_RETRY_CNT | RNIC_QP_RNR_RETRY | RNIC_QP_MAX_QP_RD_ATOMIC;
    const uint32_t without[] = {[RNIC_QPT_UC] = responds | requests | RNIC_QP_TIMEOUT,
                                [RNIC_QPT_XRC_SEND] = responds,
                                [RNIC_QPT_XRC_RECV] = requests};
    const uint32_t masks[] = {RNIC_QP_STATE, RNIC_QP_STATE | RNIC_QP_PKEY_INDEX | RNIC_QP_PORT | RNIC_QP_ACCESS_FLAGS,
                              RNIC_QP_STATE | RNIC_QP_AV | RNIC_QP_PATH_MTU | RNIC_QP_DEST_QPN | RNIC_QP_RQ_PSN |
                                  RNIC_QP_MAX_DEST_RD_ATOMIC | RNIC_QP_MIN_RNR_TIMER,
                              RNIC_QP_STATE | RNIC_QP_TIMEOUT | RNIC_QP_RETRY_CNT | RNIC_QP_RNR_RETRY | RNIC_QP_SQ_PSN |
                                  RNIC_QP_MAX_QP_RD_ATOMIC};
    for (a.qp_state = RNIC_QPS_RESET; a.qp_state <= RNIC_QPS_RTS; a.qp_state++) {
        if (w.ctx->ops->modify_qp(qp, &a, masks[a.qp_state] & ~without[qp->qp_type], &err) == 0)
            continue;
        if (qp_of(qp)->state != RNIC_QPS_ERR)
            check_fail(__FILE__, __LINE__, "%s", err.text);
        a.qp_state = RNIC_QPS_RESET - 1; /* a late packet brought it down on its way: again */
    }
}

/* ---------------------------------------------------------------- datagrams */

static void group(union rnic_gid *gid) {
    *gid = (union rnic_gid){.raw = {[10] = 0xFF, [11] = 0xFF}};
    in_addr_t a = inet_addr(GROUP);
    memcpy(gid->raw + 12, &a, sizeof a);
}

static void ready_datagrams(struct rnic_qp *qp, uint32_t qkey) {
    struct rnic_qp_attr a = {.port_num = 1, .qkey = qkey};
    const uint32_t masks[] = {RNIC_QP_STATE, RNIC_QP_STATE | RNIC_QP_PKEY_INDEX | RNIC_QP_PORT | RNIC_QP_QKEY,
                              RNIC_QP_STATE, RNIC_QP_STATE | RNIC_QP_SQ_PSN};
    for (a.qp_state = RNIC_QPS_RESET; a.qp_state <= RNIC_QPS_RTS; a.qp_state++)
        CHECK_EQ(w.ctx->ops->modify_qp(qp, &a, masks[a.qp_state], NULL), 0);
}

static struct rnic_qp *open_datagrams(int type, uint32_t qkey) {
    struct rnic_qp *qp;
    struct rnic_qp_init_attr init = {.send_cq = w.cq, .recv_cq = w.cq, .cap = {16, 16, 1, 1, 0}, .qp_type = type};
    CHECK_EQ(w.ctx->ops->create_qp(w.pd, &init, &qp, NULL), 0);
    ready_datagrams(qp, qkey);
    return qp;
}

static void open_services(void) {
    union rnic_gid gid, any = {{0}};
    w.ud = open_datagrams(RNIC_QPT_UD, QKEY);
    w.gsi = open_datagrams(RNIC_QPT_GSI, GSI_QKEY);
    group(&gid);
    CHECK_EQ(w.ctx->ops->attach_mcast(w.ud, &gid, 0, NULL), 0);
    CHECK_EQ(ext_cm(w.ctx)->listen(w.ctx, SERVICE, &any, 0, &w.listener, NULL), 0);
}

static void close_services(void) {
    union rnic_gid gid;
    group(&gid);
    CHECK_EQ(ext_cm(w.ctx)->unlisten(w.listener, NULL), 0);
    CHECK_EQ(w.ctx->ops->detach_mcast(w.ud, &gid, 0, NULL), 0);
    CHECK_EQ(w.ctx->ops->destroy_qp(w.ud, NULL), 0);
    CHECK_EQ(w.ctx->ops->destroy_qp(w.gsi, NULL), 0);
}

/* Receives of all sizes; a message that is too long for one brings its queue pair down. */
static void refresh_datagrams(void) {
    struct rnic_qp *qps[] = {w.ud, w.gsi};
    const struct rnic_recv_wr *bad;
    for (int i = 0; i < 2; i++) {
        if (((struct qp *)qps[i])->state == RNIC_QPS_ERR)
            ready_datagrams(qps[i], i ? GSI_QKEY : QKEY);
        uint32_t n = dice_one_in(&w.dice, 16) ? dice_below(&w.dice, BYTES) : 4096 + 40;
        struct rnic_sge sge = {(uintptr_t)w.memory, i ? 296 : n, w.mr->lkey};
        struct rnic_recv_wr wr = {.sg_list = &sge, .num_sge = 1};
        while (w.ctx->ops->post_recv(qps[i], &wr, &bad, NULL) == 0 && ((struct qp *)qps[i])->state != RNIC_QPS_ERR)
            ;
    }
}

static void open_xrc(void) {
    struct rnic_xrcd_init_attr attr = {.fd = -1, .oflags = O_CREAT};
    CHECK_EQ(w.ctx->ops->open_xrcd(w.ctx, &attr, &w.xrcd, NULL), 0);
    for (int i = 0; i < SRQS - 1; i++) {
        struct rnic_srq_init_attr_ex init = {.attr = {.max_wr = 64, .max_sge = 1}, .srq_type = RNIC_SRQT_XRC};
        init.pd = w.pd;
        init.xrcd = w.xrcd;
        init.cq = w.cq;
        CHECK_EQ(w.ctx->ops->create_srq_ex(w.ctx, &init, &w.srq[i], NULL), 0);
        w.grounds.srqn[i] = w.srq[i]->srq_num;
    }
    w.grounds.srqn[SRQS - 1] = w.srq[0]->srq_num; /* only what is changed names none */
}

static struct rnic_qp *make_qp(int type) {
    struct rnic_qp *qp;
    struct rnic_qp_init_attr init = {.send_cq = w.cq, .recv_cq = w.cq, .cap = {64, 64, 1, 1, 0}, .qp_type = type};
    if (type == RNIC_QPT_XRC_SEND || type == RNIC_QPT_XRC_RECV)
        init.recv_cq = NULL;
    if (type == RNIC_QPT_XRC_RECV)
        init.send_cq = NULL;
    CHECK_EQ(type == RNIC_QPT_XRC_RECV ? w.ctx->ops->create_xrc_qp(w.xrcd, &init, &qp, NULL)
                                       : w.ctx->ops->create_qp(w.pd, &init, &qp, NULL),
             0);
    return qp;
}

static void open_device(void) {
    struct rnic_err err = {0};
    localhost(&w.here, ROCE_UDP_PORT);
    const struct rnic_open_attr by_wire = {.local = -1};
    if (rnic_soft.open("roce_lo", &by_wire, &w.ctx, &err))
        check_fail(__FILE__, __LINE__, "%s", err.text);
    w.gid = find_gid();
    CHECK_EQ(w.ctx->ops->alloc_pd(w.ctx, &w.pd, NULL), 0);
    CHECK_EQ(w.ctx->ops->create_cq(w.ctx, 4096, NULL, 0, NULL, &w.cq, NULL), 0);
    open_xrc();
    for (int i = 0; i < QPS; i++)
        w.qp[i] = make_qp(types[i]);
    memset(w.arena, CANARY, sizeof w.arena);
    w.memory = w.arena + GUARD;
    w.mr = reg(w.memory, BYTES);
    w.left_mr = reg(w.left, BYTES);
    w.right_mr = reg(w.right, BYTES);
    w.back_mr = reg(w.back, BYTES);
    for (int i = 0; i < REGIONS; i++)
        w.grounds.region[i] = (struct region){(uintptr_t)w.memory, BYTES, w.mr->rkey};
    connect_qp(w.qp[LEFT], w.qp[RIGHT]->qp_num);
    connect_qp(w.qp[RIGHT], w.qp[LEFT]->qp_num);
    for (int i = 0; i < TARGETS; i++)
        connect_qp(w.qp[i], w.qp[i]->qp_num ^ 1);
    struct sockaddr_in6 any;
    localhost(&any, 0);
    w.udp = udpsock_open(&any);
    CHECK(w.udp >= 0 && udpsock_bind(w.udp, &any, 0) == 0);
    w.here.sin6_port = udpsock_port(w.udp); /* the attacker's from now on */
    CHECK_EQ(group_send_by(w.udp, true, (int)if_nametoindex("lo")), 0);
    open_services();
}

static void close_device(void) {
    struct rnic_mr *mrs[] = {w.mr, w.left_mr, w.right_mr, w.back_mr};
    close_services();
    for (int i = 0; i < QPS; i++)
        CHECK_EQ(w.ctx->ops->destroy_qp(w.qp[i], NULL), 0);
    for (int i = 0; i < SRQS - 1; i++)
        CHECK_EQ(w.ctx->ops->destroy_srq(w.srq[i], NULL), 0);
    CHECK_EQ(w.ctx->ops->close_xrcd(w.xrcd, NULL), 0);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(w.ctx->ops->dereg_mr(mrs[i], NULL), 0);
    CHECK_EQ(w.ctx->ops->destroy_cq(w.cq, NULL), 0);
    CHECK_EQ(w.ctx->ops->dealloc_pd(w.pd, NULL), 0);
    CHECK_EQ(w.ctx->ops->close(w.ctx, NULL), 0);
    close(w.udp);
}

/* ---------------------------------------------------------------- attacks */

/* Forged under the lock, since the engine thread moves the state that it is made from. */
static void forge(struct forged *f) {
    struct dev *dev = dev_of(w.ctx);
    const struct qp *qp = qp_of(w.qp[dice_below(&w.dice, 2) ? TARGET : dice_below(&w.dice, TARGETS)]);
    if (dice_one_in(&w.dice, 32)) {
        forge_noise(f, &w.dice);
        return;
    }
    dev_lock(dev);
    forge_valid(f, qp, &w.grounds, &w.dice);
    if (dice_below(&w.dice, 3) == 0)
        forge_mutate(f, qp, &w.grounds, &w.dice);
    dev_unlock(dev);
}

/* Appends the ICRC of packet i of a batch, mostly the right one. */
static uint32_t seal_for(struct forged *f, const struct sockaddr_in6 *device, uint32_t i) {
    if (f->n < BTH_BYTES)
        return f->n;
    uint32_t icrc = icrc_compute(&w.here, device, (uint16_t)i, f->bytes, f->n);
    put_le32(f->bytes + f->n, icrc ^ (dice_one_in(&w.dice, 64) ? (uint32_t)dice_bits(&w.dice, 4) : 0));
    return f->n + ICRC_BYTES;
}

static uint32_t seal(struct forged *f, uint32_t i) {
    struct sockaddr_in6 device;
    localhost(&device, ROCE_UDP_PORT);
    return seal_for(f, &device, i);
}

static void send_group(const uint8_t *bytes, uint32_t n) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(ROCE_UDP_PORT)};
    to.sin_addr.s_addr = inet_addr(GROUP);
    (void)sendto(w.udp, bytes, n, MSG_DONTWAIT, (struct sockaddr *)&to, sizeof to);
}

static void send_udp(const uint8_t *bytes, uint32_t n, uint16_t segment) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(ROCE_UDP_PORT)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    union {
        char bytes[CMSG_SPACE(sizeof(uint16_t))];
        struct cmsghdr header;
    } control = {.header = {CMSG_LEN(sizeof segment), IPPROTO_UDP, UDP_SEGMENT}};
    struct iovec iov = {(void *)(uintptr_t)bytes, n};
    struct msghdr mh = {.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &iov, .msg_iovlen = 1};
    if (segment && segment < n) {
        memcpy(CMSG_DATA(&control.header), &segment, sizeof segment);
        mh.msg_control = &control;
        mh.msg_controllen = sizeof control;
    }
    (void)sendmsg(w.udp, &mh, MSG_DONTWAIT); /* what the kernel refuses is not hostile enough */
}

/* Packets of one size behind each other, the last perhaps cut. */
static uint32_t batch(uint8_t *out, uint32_t room, uint16_t *segment) {
    static struct forged f;
    uint32_t n = 0, count = 1 + dice_below(&w.dice, dice_one_in(&w.dice, 4) ? 64 : 4);
    forge(&f);
    *segment = (uint16_t)(f.n + ICRC_BYTES);
    for (uint32_t i = 0; i < count && n + *segment <= room && f.n >= BTH_BYTES; i++) {
        if (i)
            forge(&f);
        f.n = *segment - ICRC_BYTES;
        seal(&f, i);
        memcpy(out + n, f.bytes, *segment);
        n += *segment;
    }
    if (n && dice_one_in(&w.dice, 4))
        n -= dice_below(&w.dice, *segment);
    return n;
}

static void attack_probe(void) {
    uint8_t probe[64] = {PORT_PROBE_OPCODE};
    const uint32_t magic = SLOTMSG_MAGIC;
    for (uint32_t i = 1; i < sizeof probe; i++)
        probe[i] = (uint8_t)dice_bits(&w.dice, 1);
    probe[2] = SLOTMSG_VERSION;
    if (dice_below(&w.dice, 4))
        memcpy(probe + 4, &magic, sizeof magic);
    send_udp(probe, (uint32_t)DICE_PICK(&w.dice, 16, 16, 16, 1, 15, 17, 64), 0);
}

static void attack_slot(void) {
    static uint8_t message[sizeof(struct slotmsg) + 65536];
    struct dice *d = &w.dice;
    struct slotmsg msg = {.magic = SLOTMSG_MAGIC, .version = SLOTMSG_VERSION, .type = SLOTMSG_FORWARD, .src = w.here};
    uint16_t segment;
    uint32_t n = batch(message + sizeof msg, 65507, &segment);
    localhost(&msg.dst, ROCE_UDP_PORT);
    msg.length = n;
    msg.segment = segment;
    switch (dice_below(d, 8)) {
    case 0:
        msg.type = (uint16_t)dice_below(d, 6);
        break;
    case 1:
        msg.length = (uint32_t)DICE_PICK(d, 0, n + 1, n - 1, 0xFFFFFFFF, 65537);
        break;
    case 2:
        msg.segment = (uint32_t)DICE_PICK(d, 0, 1, n - 1, n, n + 1, 0xFFFFFFFF, 11, 15);
        break;
    case 3:
        ((uint8_t *)&msg)[dice_below(d, sizeof msg)] ^= (uint8_t)(1u << dice_below(d, 8));
        break;
    default:
        break;
    }
    memcpy(message, &msg, sizeof msg);
    uint32_t total = (uint32_t)sizeof msg + n;
    if (dice_one_in(d, 16))
        total = dice_below(d, total);
    struct abstract_name name;
    abstract_name(&name, SLOT_NAME, qpn_slot(w.qp[TARGET]->qp_num));
    struct iovec iov = {message, total};
    (void)abstract_send(&name, &iov, 1); /* its queue may be full */
}

static void attack_datagrams(void) {
    static struct forged f;
    struct dice *d = &w.dice;
    bool multicast = dice_one_in(d, 4);
    if (multicast)
        forge_datagram(&f, QPN_MULTICAST, QKEY, d);
    else if (dice_below(d, 2))
        forge_datagram(&f, w.ud->qp_num, QKEY, d);
    else
        forge_mad(&f, SERVICE, qpn_slot(w.ud->qp_num), d);
    if (dice_one_in(d, 4)) {
        dev_lock(dev_of(w.ctx));
        forge_mutate(&f, (const struct qp *)w.qp[TARGET], &w.grounds, d);
        dev_unlock(dev_of(w.ctx));
    }
    struct sockaddr_in6 to;
    localhost(&to, ROCE_UDP_PORT);
    if (multicast)
        group((union rnic_gid *)&to.sin6_addr);
    uint32_t n = seal_for(&f, &to, 0);
    if (multicast)
        send_group(f.bytes, n);
    else
        send_udp(f.bytes, n, 0);
}

/* What a listener's socket gets. */
static void attack_listener(void) {
    static struct forged f;
    struct slotmsg msg = {.magic = SLOTMSG_MAGIC, .version = SLOTMSG_VERSION, .type = SLOTMSG_FORWARD, .src = w.here};
    struct abstract_name name;
    forge_mad(&f, SERVICE, qpn_slot(w.ud->qp_num), &w.dice);
    localhost(&msg.dst, ROCE_UDP_PORT);
    msg.length = seal(&f, 0);
    msg.hops = (uint8_t)dice_bits(&w.dice, 1);
    if (dice_one_in(&w.dice, 4))
        ((uint8_t *)&msg)[dice_below(&w.dice, sizeof msg)] ^= (uint8_t)(1u << dice_below(&w.dice, 8));
    struct iovec iov[2] = {{&msg, sizeof msg}, {f.bytes, f.n + ICRC_BYTES}};
    listen_any_name(&name, SERVICE, dice_below(&w.dice, 2), (int)if_nametoindex("lo"));
    (void)abstract_send(&name, iov, 2);
}

static void attack(void) {
    static uint8_t bytes[65536];
    static struct forged f;
    uint16_t segment;
    switch (dice_below(&w.dice, 16)) {
    case 0:
        attack_probe();
        break;
    case 1:
        attack_slot();
        break;
    case 2: {
        uint32_t n = batch(bytes, 65507, &segment);
        send_udp(bytes, n, dice_one_in(&w.dice, 8) ? (uint16_t)(1 + dice_below(&w.dice, 2000)) : segment);
        break;
    }
    case 3:
        attack_listener();
        break;
    case 4:
    case 5:
    case 6:
    case 7:
        attack_datagrams();
        break;
    default:
        forge(&f);
        send_udp(f.bytes, seal(&f, 0), 0);
        break;
    }
}

/* ---------------------------------------------------------------- the device lives */

static void post(int qp, int opcode, struct rnic_mr *from, uint64_t to, uint32_t rkey, uint32_t n) {
    struct rnic_sge sge = {(uintptr_t)from->addr, n, from->lkey};
    struct rnic_send_wr wr = {.wr_id = (uint64_t)qp, .sg_list = &sge, .num_sge = 1, .opcode = opcode};
    const struct rnic_send_wr *bad;
    wr.send_flags = qp < TARGETS ? 0 : RNIC_SEND_SIGNALED;
    if (opcode >= RNIC_WR_ATOMIC_CMP_AND_SWP) {
        wr.wr.atomic.remote_addr = to;
        wr.wr.atomic.rkey = rkey;
    } else {
        wr.wr.rdma.remote_addr = to;
        wr.wr.rdma.rkey = rkey;
    }
    int rc = w.ctx->ops->post_send(w.qp[qp], &wr, &bad, NULL);
    CHECK(rc == 0 || qp < TARGETS);
}

/* The target's completions are of no interest; the healthy pair's must be successful. */
static void wait_for(int qp) {
    struct rnic_wc wc;
    uint64_t until = run_clock() + PATIENCE * 1000000000ull;
    while (run_clock() < until) {
        int n = w.ctx->ops->poll_cq(w.cq, 1, &wc);
        CHECK(n >= 0);
        if (!n || wc.qp_num != w.qp[qp]->qp_num)
            continue;
        if (wc.status)
            check_fail(__FILE__, __LINE__, "the healthy pair's work ended with status %d", wc.status);
        return;
    }
    check_fail(__FILE__, __LINE__, "the device serves nobody any more");
}

static void check_alive(void) {
    for (uint32_t i = 0; i < BYTES; i++)
        w.left[i] = (uint8_t)rng_next(&w.dice.rng);
    post(LEFT, RNIC_WR_RDMA_WRITE, w.left_mr, (uintptr_t)w.right, w.right_mr->rkey, BYTES);
    wait_for(LEFT);
    CHECK(!memcmp(w.left, w.right, BYTES));
    post(LEFT, RNIC_WR_RDMA_READ, w.back_mr, (uintptr_t)w.right, w.right_mr->rkey, BYTES);
    wait_for(LEFT);
    CHECK(!memcmp(w.left, w.back, BYTES));
    transfers += 2;
    for (uint32_t i = 0; i < GUARD; i++)
        CHECK(w.arena[i] == CANARY && w.arena[GUARD + BYTES + i] == CANARY);
}

/* A target has receives and work of its own, and comes back when it was brought down. */
static void refresh_target(int target) {
    struct qp *qp = qp_of(w.qp[target]);
    struct rnic_async_event event;
    if (qp->state == RNIC_QPS_ERR) {
        deaths++;
        connect_qp(w.qp[target], w.qp[target]->qp_num ^ 1);
    }
    struct rnic_sge sge = {(uintptr_t)w.memory, BYTES, w.mr->lkey};
    struct rnic_recv_wr wr = {.sg_list = &sge, .num_sge = 1};
    const struct rnic_recv_wr *bad;
    struct rnic_srq *srq = w.srq[dice_below(&w.dice, SRQS - 1)];
    while ((target == XRC_IN ? w.ctx->ops->post_srq_recv(srq, &wr, &bad, NULL)
                             : w.ctx->ops->post_recv(w.qp[target], &wr, &bad, NULL)) == 0 &&
           qp->state != RNIC_QPS_ERR)
        ;
    static const uint8_t opcodes[] = {RNIC_WR_SEND, RNIC_WR_RDMA_WRITE, RNIC_WR_RDMA_READ,
                                      RNIC_WR_ATOMIC_FETCH_AND_ADD};
    uint8_t opcode = opcodes[dice_below(&w.dice, 4)];
    post(target, opcode, w.mr, (uintptr_t)w.memory, 1, opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD ? 8 : 3000);
    while (w.ctx->ops->get_async_event(w.ctx, &event, NULL) == 0)
        ;
}

/* Now and then the application makes the progress, and the attacker does not run away from the device. */
static void poll_all(void) {
    struct rnic_wc wc[16];
    CHECK(w.ctx->ops->poll_cq(w.cq, 16, wc) >= 0);
}

int main(int argc, char **argv) {
    uint64_t cases = argc > 2 ? strtoull(argv[2], NULL, 0) : 200000;
    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    rng_seed(&w.dice.rng, seed);
    isolate();
    open_device();
    for (number = 0; number < cases; number++) {
        if (number % 10 == 0) {
            refresh_target(number % 20 ? TARGET : (int)(number / 20 % TARGETS));
            refresh_datagrams();
        }
        attack();
        if (number / 1000 % 2 || number % 10 == 0)
            poll_all();
        if (number % EVERY == EVERY - 1)
            check_alive();
    }
    check_alive();
    struct rnic_counters c;
    CHECK_EQ(ext_stats(w.ctx)->query_counters(w.ctx, &c, NULL), 0);
    for (int i = 0; i < TARGETS; i++) {
        struct rnic_qp_stats stats;
        CHECK_EQ(ext_stats(w.ctx)->query_qp(w.qp[i], &stats, NULL), 0);
        printf("fuzz_device: queue pair type %d: %llu requests executed, %llu sent\n", types[i],
               (unsigned long long)stats.counters.value[RNIC_CNT_requests_executed],
               (unsigned long long)stats.counters.value[RNIC_CNT_requests_sent]);
    }
    close_device();
    printf("fuzz_device: %llu cases: %llu packets taken, %llu requests executed, %llu refused with a NAK, "
           "%llu forwarded in and %llu out, %llu CM requests refused, targets went to ERR %llu times; %llu transfers "
           "beside them verified\n",
           (unsigned long long)cases, (unsigned long long)c.value[RNIC_CNT_rx_packets],
           (unsigned long long)c.value[RNIC_CNT_requests_executed],
           (unsigned long long)c.value[RNIC_CNT_nak_remote_sent], (unsigned long long)c.value[RNIC_CNT_forwarded_in],
           (unsigned long long)c.value[RNIC_CNT_forwarded_out], (unsigned long long)c.value[RNIC_CNT_cm_refused],
           (unsigned long long)deaths, (unsigned long long)transfers);
    return 0;
}
