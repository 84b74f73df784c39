/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops of perf.h between processes, and what they do printed: what the device does without Python.  One end of a
 * connection in each process, joined by an inherited stream socket over which both say what the other has to know; or
 * both ends in one process, for callgrind.
 *
 *   native FD serve sleep|burn|sink|echo|memory [name=value ...]
 *   native FD write|send|read|write_latency|read_latency|atomic_latency|send_pingpong|memory_pingpong [name=value ...]
 *   native - single [loop=chain|read|pingpong] [chain=32] [count=100000] [size=8]
 *
 * size      bytes of a message                      seconds  how long to measure
 * chain     work requests of one post, the last of which is signaled
 * depth     work requests outstanding at most       mtu      bytes of the path MTU
 * inline    1: INLINE
 * bufmax    what net.core.rmem_max and wmem_max would be, for this process alone
 * local     1: by shared memory, with memory that the other process reaches
 * iwarp     1: over TCP; and then crc=0: without CRCs
 * qps       queue pairs that take turns; for WRITEs and READs
 * at        nanoseconds of CLOCK_MONOTONIC at which to begin; who is late does not measure
 *
 * The client prints one line of JSON; the server's half of it comes over the socket.
 */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "loops.h"
#include "perf.h"
#include "tcp.h"

#define NETDEV "lo"
#define QUEUE 1024
#define MAX_QPS 1000
#define RECEIVES 512
#define RD_ATOMIC 16
#define SIGNAL_EVERY 32 /* of the answers of "single" */
#define INLINE 64
#define LIMIT (20 * SECOND)
#define NO_LOOP -1
#define REMOTE (RNIC_ACCESS_REMOTE_WRITE | RNIC_ACCESS_REMOTE_READ | RNIC_ACCESS_REMOTE_ATOMIC)
#define ACCESS (RNIC_ACCESS_LOCAL_WRITE | REMOTE)
#define BUFFER_BYTES (4u << 20)
#define WORDS_BYTES 4096u /* behind it, of iWARP's streams */
#define REGION_BYTES (BUFFER_BYTES + WORDS_BYTES)
#define MARK 64 /* where a memory_pingpong's peer writes; all else goes into the memory that it comes from */

struct hello {
    uint32_t qpn, psn, rkey;
    uint64_t addr;
    uint16_t port; /* where the serving end of an iWARP connection waits */
};

struct end {
    const struct rnic_ops *ops;
    const struct rnic_ext_stats *stats;
    struct rnic_context *ctx;
    struct rnic_pd *pd;
    struct rnic_cq *cq;
    struct rnic_mr *mr;
    struct perf_qp qps[MAX_QPS];
    struct perf_end loops; /* of these */
    uint8_t *buffer;
    struct hello local, peer;
    double main_cpu, all_cpu; /* seconds until measuring began */
    struct rusage usage;
    struct rnic_counters before;
};

/* What an end does. */
struct role {
    const char *name;
    int loop; /* or NO_LOOP */
    int opcode;
    bool receives, serving;
};

static const struct role roles[] = {
    {"write", PERF_STREAM, RNIC_WR_RDMA_WRITE, false, false},
    {"send", PERF_STREAM, RNIC_WR_SEND, false, false},
    {"read", PERF_STREAM, RNIC_WR_RDMA_READ, false, false},
    {"write_latency", PERF_LATENCY, RNIC_WR_RDMA_WRITE, false, false},
    {"read_latency", PERF_LATENCY, RNIC_WR_RDMA_READ, false, false},
    {"atomic_latency", PERF_LATENCY, RNIC_WR_ATOMIC_FETCH_AND_ADD, false, false},
    {"send_pingpong", PERF_PINGPONG, RNIC_WR_SEND, true, false},
    {"memory_pingpong", PERF_MEMORY, RNIC_WR_RDMA_WRITE, false, false},
    {"sleep", NO_LOOP, 0, false, true},
    {"burn", NO_LOOP, 0, false, true},
    {"sink", PERF_SINK, RNIC_WR_SEND, true, true},
    {"echo", PERF_PINGPONG, RNIC_WR_SEND, true, true},
    {"memory", PERF_MEMORY, RNIC_WR_RDMA_WRITE, false, true},
};

static struct rnic_err err;
static uint32_t buffer_max;
static bool by_lane;        /* both ends are on this host: by shared memory */
static bool by_tcp, summed; /* iWARP, and with CRCs */
static _Atomic bool parked; /* engine threads stay asleep: all work is the main thread's, and can be counted */

static void die(const char *what) {
    fprintf(stderr, "native: %s: %s\n", what, err.text[0] ? err.text : strerror(errno));
    exit(1);
}

static void need(int rc, const char *what) {
    if (rc < 0)
        die(what);
}

static void need_loop(const struct end *e, int rc) {
    if (rc >= 0)
        return;
    const struct rnic_wc *bad = &e->loops.bad;
    if (rc == -EIO)
        snprintf(err.text, sizeof err.text, "status %d: %s", bad->status, rnic_vendor_err_text((int)bad->vendor_err));
    else if (rc == -ETIMEDOUT)
        snprintf(err.text, sizeof err.text, "nothing completed in time");
    else
        err = e->loops.err;
    die(rc == -EIO || rc == -ETIMEDOUT ? "completion" : e->loops.verb);
}

static const struct role *role_of(const char *name) {
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (!strcmp(roles[i].name, name))
            return &roles[i];
    }
    return NULL;
}

/* The core's calls come here: the sysctl belongs to the whole host, this process' share of it can be smaller. */
int setsockopt(int fd, int level, int name, const void *value, socklen_t length) {
    int size;
    if (buffer_max && level == SOL_SOCKET && (name == SO_RCVBUF || name == SO_SNDBUF)) {
        memcpy(&size, value, sizeof size);
        if (size > (int)buffer_max) {
            size = (int)buffer_max;
            value = &size;
        }
        return (int)syscall(SYS_setsockopt, fd, level, name, &size, sizeof size);
    }
    return (int)syscall(SYS_setsockopt, fd, level, name, value, length);
}

int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask) {
    struct timespec left = timeout ? *timeout : (struct timespec){0}; /* the system call writes to it */
    while (atomic_load(&parked))
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    return (int)syscall(SYS_ppoll, fds, n, timeout ? &left : NULL, mask, 8);
}

/* ---------------------------------------------------------------- a connection */

static int gid_index(struct end *e) {
    static const uint8_t loopback[16] = {[10] = 0xFF, [11] = 0xFF, [12] = 127, [15] = 1};
    struct rnic_port_attr port;
    struct rnic_gid_entry entry;
    need(e->ops->query_port(e->ctx, 1, &port, &err), "query_port");
    for (int i = 0; i < port.gid_tbl_len; i++) {
        if (e->ops->query_gid(e->ctx, 1, i, &entry, &err) == 0 && !memcmp(entry.gid.raw, loopback, sizeof loopback))
            return i;
    }
    fprintf(stderr, "native: " NETDEV " does not have 127.0.0.1\n");
    exit(1);
}

/* The device's own memory is what a peer on this host can reach itself. */
static void get_memory(struct end *e) {
    if (by_lane) {
        const struct rnic_ext_memory *memory = rnic_extension(e->ctx, RNIC_EXT_MEMORY);
        need(memory->alloc_mr(e->pd, REGION_BYTES, ACCESS, &e->mr, &err), "alloc_mr");
        e->buffer = e->mr->addr;
        return;
    }
    e->buffer = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (e->buffer == MAP_FAILED)
        die("mmap");
    need(e->ops->reg_mr(e->pd, e->buffer, REGION_BYTES, ACCESS, &e->mr, &err), "reg_mr");
}

static void open_qp(struct end *e, struct rnic_qp **qp) {
    struct rnic_qp_init_attr init = {
        .send_cq = e->cq,
        .recv_cq = e->cq,
        .qp_type = RNIC_QPT_RC,
        .cap = {QUEUE, QUEUE, 1, 1, INLINE},
    };
    need(e->ops->create_qp(e->pd, &init, qp, &err), "create_qp");
    struct rnic_qp_attr attr = {.qp_state = RNIC_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS};
    int pkey = by_tcp ? 0 : RNIC_QP_PKEY_INDEX;
    need(e->ops->modify_qp(*qp, &attr, RNIC_QP_STATE | RNIC_QP_PORT | RNIC_QP_ACCESS_FLAGS | pkey, &err), "INIT");
}

static void end_open(struct end *e, uint32_t qps) {
    struct rnic_open_attr how = {.local = by_lane ? 1 : by_tcp ? 0 : -1};
    need(rnic_soft.open(by_tcp ? "iwarp_" NETDEV : "roce_" NETDEV, &how, &e->ctx, &err), "open");
    e->ops = e->ctx->ops;
    e->stats = rnic_extension(e->ctx, RNIC_EXT_STATS);
    need(e->ops->alloc_pd(e->ctx, &e->pd, &err), "alloc_pd");
    need(e->ops->create_cq(e->ctx, 4 * QUEUE, NULL, 0, NULL, &e->cq, &err), "create_cq");
    get_memory(e);
    for (uint32_t *n = &e->loops.num_qps; *n < qps; (*n)++)
        open_qp(e, &e->qps[*n].qp);
    e->local = (struct hello){e->qps[0].qp->qp_num, 0x123456, e->mr->rkey, (uintptr_t)e->buffer, 0};
}

static int mtu_code(uint32_t bytes) {
    int code = RNIC_MTU_256;
    while (code < RNIC_MTU_4096 && 128u << code < bytes)
        code++;
    return code;
}

/* The queue pair that is the one of the last hello. */
static void end_connect(struct end *e, struct rnic_qp *qp, uint32_t mtu) {
    struct rnic_qp_attr attr = {.qp_state = RNIC_QPS_RTR,
                                .path_mtu = mtu_code(mtu),
                                .dest_qp_num = e->peer.qpn,
                                .rq_psn = e->peer.psn,
                                .max_dest_rd_atomic = RD_ATOMIC,
                                .min_rnr_timer = 1};
    int index = gid_index(e);
    struct rnic_gid_entry entry;
    need(e->ops->query_gid(e->ctx, 1, index, &entry, &err), "query_gid");
    attr.ah_attr = (struct rnic_ah_attr){.is_global = 1, .port_num = 1};
    attr.ah_attr.grh = (struct rnic_global_route){.dgid = entry.gid, .sgid_index = (uint8_t)index, .hop_limit = 64};
    need(e->ops->modify_qp(qp, &attr,
                           RNIC_QP_STATE | RNIC_QP_AV | RNIC_QP_PATH_MTU | RNIC_QP_DEST_QPN | RNIC_QP_RQ_PSN |
                               RNIC_QP_MAX_DEST_RD_ATOMIC | RNIC_QP_MIN_RNR_TIMER,
                           &err),
         "RTR");
    attr = (struct rnic_qp_attr){.qp_state = RNIC_QPS_RTS,
                                 .timeout = 14,
                                 .retry_cnt = 7,
                                 .rnr_retry = 7,
                                 .sq_psn = e->local.psn,
                                 .max_rd_atomic = RD_ATOMIC};
    need(e->ops->modify_qp(qp, &attr,
                           RNIC_QP_STATE | RNIC_QP_TIMEOUT | RNIC_QP_RETRY_CNT | RNIC_QP_RNR_RETRY | RNIC_QP_SQ_PSN |
                               RNIC_QP_MAX_QP_RD_ATOMIC,
                           &err),
         "RTS");
}

/* The same over TCP. */
static void end_attach(struct end *e, struct rnic_qp *qp, int fd, bool initiator) {
    const struct rnic_ext_stream *streams = rnic_extension(e->ctx, RNIC_EXT_STREAM);
    struct rnic_stream_attr stream = {.fd = fd, .initiator = initiator, .crc = summed};
    struct rnic_qp_attr attr = {.qp_state = RNIC_QPS_RTR, .max_dest_rd_atomic = RD_ATOMIC};
    if (fd < 0)
        die("TCP");
    need(e->ops->modify_qp(qp, &attr, RNIC_QP_STATE | RNIC_QP_MAX_DEST_RD_ATOMIC, &err), "RTR");
    need(streams->attach(qp, &stream, &err), "attach");
    attr = (struct rnic_qp_attr){.qp_state = RNIC_QPS_RTS, .max_rd_atomic = RD_ATOMIC};
    need(e->ops->modify_qp(qp, &attr, RNIC_QP_STATE | RNIC_QP_MAX_QP_RD_ATOMIC, &err), "RTS");
}

static void say(const struct end *e, const char *text) {
    if (write(e->loops.line, text, strlen(text)) < 0)
        die("write");
}

/* One line from the other process. */
static void hear(const struct end *e, char *text, size_t room) {
    size_t n = 0;
    for (; n + 1 < room; n++) {
        if (read(e->loops.line, &text[n], 1) != 1)
            die("the other process has gone");
        if (text[n] == '\n')
            break;
    }
    text[n] = 0;
}

static bool heard(const struct end *e) {
    struct pollfd p = {e->loops.line, POLLIN, 0};
    return poll(&p, 1, 0) != 0;
}

static void greet(struct end *e, struct rnic_qp *qp, bool serving, uint32_t mtu) {
    char text[128];
    unsigned long long addr;
    int listener = by_tcp && serving ? tcp_listen(&e->local.port) : -1;
    snprintf(text, sizeof text, "%x %x %llx %x %hx\n", qp->qp_num, e->local.psn, (unsigned long long)e->local.addr,
             e->local.rkey, e->local.port);
    say(e, text);
    hear(e, text, sizeof text);
    if (sscanf(text, "%x %x %llx %x %hx", &e->peer.qpn, &e->peer.psn, &addr, &e->peer.rkey, &e->peer.port) != 5)
        die("hello");
    e->peer.addr = addr;
    if (by_tcp)
        end_attach(e, qp, serving ? tcp_accept(listener) : tcp_connect(e->peer.port), !serving);
    else
        end_connect(e, qp, mtu);
}

/* Both ends are ready to send and to receive. */
static void meet(const struct end *e) {
    char text[16];
    say(e, "ready\n");
    hear(e, text, sizeof text);
}

static void end_close(struct end *e) {
    while (e->loops.num_qps)
        e->ops->destroy_qp(e->qps[--e->loops.num_qps].qp, &err);
    e->ops->destroy_cq(e->cq, &err);
    e->ops->dereg_mr(e->mr, &err);
    e->ops->dealloc_pd(e->pd, &err);
    e->ops->close(e->ctx, &err);
}

/* ---------------------------------------------------------------- reports */

static void begin(struct end *e) {
    e->main_cpu = cpu_seconds(RUSAGE_THREAD);
    e->all_cpu = cpu_seconds(RUSAGE_SELF);
    getrusage(RUSAGE_SELF, &e->usage);
    e->stats->query_counters(e->ctx, &e->before, &err);
}

static void report(const struct end *e, char *text, size_t room) {
    double all = cpu_seconds(RUSAGE_SELF) - e->all_cpu, own = cpu_seconds(RUSAGE_THREAD) - e->main_cpu;
    struct rnic_counters now;
    struct rusage usage;
    e->stats->query_counters(e->ctx, &now, &err);
    getrusage(RUSAGE_SELF, &usage);
    int n = snprintf(text, room, "{\"main_cpu_s\": %.4f, \"engine_cpu_s\": %.4f, \"sleeps\": %ld, \"preemptions\": %ld",
                     own, all > own ? all - own : 0, usage.ru_nvcsw - e->usage.ru_nvcsw,
                     usage.ru_nivcsw - e->usage.ru_nivcsw);
    for (int i = 0; i < RNIC_CNT_MAX; i++) {
        uint64_t count = now.value[i] - e->before.value[i];
        if (count)
            n +=
                snprintf(text + n, room - (size_t)n, ", \"%s\": %llu", rnic_counter_name(i), (unsigned long long)count);
    }
    snprintf(text + n, room - (size_t)n, "}");
}

/* The buffer that a socket is granted which asks for as much as the device does. */
static int granted(int name) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), size = BUFFER_BYTES;
    socklen_t n = sizeof size;
    setsockopt(fd, SOL_SOCKET, name, &size, sizeof size);
    getsockopt(fd, SOL_SOCKET, name, &size, &n);
    close(fd);
    return size;
}

/* ---------------------------------------------------------------- the loops */

static int never(void *owner) {
    (void)owner;
    return 0;
}

/* Of messages, which nobody answers. */
static bool is_stream(const struct role *role) {
    return role->opcode == RNIC_WR_SEND && (role->loop == PERF_STREAM || role->loop == PERF_SINK);
}

/* The loops' end, of a connection that is ready. */
static void prepare(struct end *e, const struct role *role, uint32_t room, uint32_t depth) {
    uint64_t aside = role->loop == PERF_MEMORY ? MARK : 0;
    struct perf_end *l = &e->loops;
    l->ops = e->ops;
    l->qps = e->qps;
    l->cq = e->cq;
    l->source = (uintptr_t)e->buffer;
    l->target = l->source + aside;
    l->room = room;
    l->lkey = e->mr->lkey;
    l->remote_source = e->peer.addr;
    l->remote_target = e->peer.addr + aside;
    l->rkey = e->peer.rkey;
    l->depth = l->all_depth = depth;
    l->rx_depth = role->receives ? RECEIVES : 0;
    l->allowance = by_tcp && is_stream(role) ? RECEIVES : 0;
    l->words = l->source + BUFFER_BYTES;
    l->remote_words = l->remote_source + BUFFER_BYTES;
    l->yield_polls = UINT32_MAX;
    l->quiet_ns = LIMIT;
    l->interrupted = never;
    need_loop(e, perf_fill(l));
}

static void run(struct end *e, const struct perf_plan *plan) {
    int rc = perf_run(&e->loops, plan);
    need_loop(e, rc);
    if (rc == PERF_HEARD && !plan->serving)
        die("the other process has gone");
}

/* ---------------------------------------------------------------- the serving process */

static void burn(const struct end *e) {
    for (volatile uint32_t i = 1;; i++) {
        if (i % (1u << 20) == 0 && heard(e))
            return;
    }
}

static void serve(struct end *e, const struct role *role, const struct perf_plan *plan) {
    char text[4096];
    meet(e);
    begin(e);
    if (role->loop != NO_LOOP)
        run(e, plan);
    else if (!strcmp(role->name, "burn"))
        burn(e);
    hear(e, text, sizeof text); /* "sleep" does nothing else */
    report(e, text, sizeof text - 1);
    say(e, strcat(text, "\n"));
}

/* ---------------------------------------------------------------- the measuring process */

/* A sample of a ping-pong is the way there and back: half of it is told. */
static void print_latency(const struct perf_end *l, bool there_and_back) {
    double unit = there_and_back ? 2e3 : 1e3;
    if (l->histogram.count)
        printf("\"median_us\": %.3f, \"p99_us\": %.3f, ", perf_percentile(&l->histogram, 50) / unit,
               perf_percentile(&l->histogram, 99) / unit);
}

static void print(struct end *e, const struct perf_plan *plan) {
    char mine[4096], theirs[4096];
    double operations = (double)e->loops.operations, seconds = (double)e->loops.ns / 1e9;
    report(e, mine, sizeof mine);
    say(e, "end\n");
    hear(e, theirs, sizeof theirs);
    printf("{\"operations\": %.0f, \"seconds\": %.4f, \"messages_per_s\": %.0f, \"gbytes_per_s\": %.5f, ", operations,
           seconds, operations / seconds, operations * plan->size / seconds / 1e9);
    print_latency(&e->loops, plan->loop == PERF_PINGPONG || plan->loop == PERF_MEMORY);
    printf("\"rcvbuf\": %d, \"sndbuf\": %d, \"client\": %s, \"server\": %s}\n", granted(SO_RCVBUF), granted(SO_SNDBUF),
           mine, theirs);
}

/* What is measured after others have begun is no figure: they had the machine without this one. */
static void await_turn(uint64_t at) {
    uint64_t now = now_ns();
    if (at && now > at) {
        snprintf(err.text, sizeof err.text, "ready %.2f s after the others were to begin",
                 (double)(now - at) / (double)SECOND);
        die("late");
    }
    while (now_ns() < at)
        usleep(100);
}

/* What is counted is without the warm-up where that can be told from the rest. */
static void measure(struct end *e, struct perf_plan *plan, uint64_t at) {
    struct perf_plan warm_up = *plan;
    warm_up.ns = plan->warmup_ns;
    warm_up.warmup_ns = 0;
    meet(e);
    await_turn(at);
    begin(e);
    if (plan->loop == PERF_STREAM) {
        plan->warmup_ns = 0;
        run(e, &warm_up);
        begin(e);
    }
    run(e, plan);
    print(e, plan);
}

/* ---------------------------------------------------------------- both ends in one process */

/* While the first end waits, this one works. */
static struct {
    struct end *end;
    bool answers;
    uint32_t answered;
} other;

static void answer(const struct end *e, const struct rnic_wc *wc) {
    struct rnic_sge sge = {(uintptr_t)e->buffer, wc->byte_len, e->mr->lkey};
    struct rnic_recv_wr recv = {.sg_list = &sge, .num_sge = 1};
    struct rnic_send_wr send = {.opcode = RNIC_WR_SEND, .sg_list = &sge, .num_sge = 1};
    const struct rnic_recv_wr *bad_recv;
    const struct rnic_send_wr *bad_send;
    if (wc->byte_len <= INLINE)
        send.send_flags |= RNIC_SEND_INLINE;
    if (other.answered++ % SIGNAL_EVERY == 0)
        send.send_flags |= RNIC_SEND_SIGNALED;
    need(e->ops->post_send(e->qps[0].qp, &send, &bad_send, &err), "post_send");
    need(e->ops->post_recv(e->qps[0].qp, &recv, &bad_recv, &err), "post_recv");
}

/* poll_cq() of the first end. */
static int poll_both(struct rnic_cq *cq, int n, struct rnic_wc *wc) {
    const struct end *e = other.end;
    struct rnic_wc theirs[4];
    int got = e->ops->poll_cq(cq, n, wc);
    if (got)
        return got;
    got = e->ops->poll_cq(e->cq, 4, theirs);
    need(got, "poll_cq");
    for (int i = 0; i < got; i++) {
        if (theirs[i].status != RNIC_WC_SUCCESS)
            die("the other end's completion");
        if (theirs[i].opcode == RNIC_WCO_RECV)
            answer(e, &theirs[i]);
    }
    return 0;
}

/* callgrind counts what happens in here: chains of WRITEs or READs, and the target's part of them; or messages and answers. */
__attribute__((noinline)) void counted_run(struct end *e, const struct perf_plan *plan) { run(e, plan); }

static void run_single(struct end end[2], const struct perf_plan *plan, uint32_t chain) {
    struct rnic_ops both = *end[0].ops;
    both.poll_cq = poll_both;
    for (int i = 0; i < 2; i++)
        prepare(&end[i], role_of(plan->loop == PERF_PINGPONG ? "echo" : "write"), plan->size, chain);
    end[0].loops.ops = &both;
    other.end = &end[1];
    atomic_store(&parked, true);
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    counted_run(&end[0], plan);
    atomic_store(&parked, false);
}

static void join(struct end end[2], uint32_t mtu) {
    uint16_t port;
    int listener = by_tcp ? tcp_listen(&port) : -1;
    for (int i = 0; i < 2; i++) {
        if (by_tcp)
            end_attach(&end[i], end[i].qps[0].qp, i ? tcp_accept(listener) : tcp_connect(port), !i);
        else
            end_connect(&end[i], end[i].qps[0].qp, mtu);
    }
}

static void single(char **argv) {
    static struct end end[2];
    uint32_t size = option_number(argv, "size", 8), chain = option_number(argv, "chain", 32);
    uint32_t count = option_number(argv, "count", 100000);
    const char *loop = option(argv, "loop", "chain");
    bool pingpong = !strcmp(loop, "pingpong"), reads = !strcmp(loop, "read");
    struct perf_plan plan = {.loop = pingpong ? PERF_PINGPONG : PERF_STREAM,
                             .opcode = reads ? RNIC_WR_RDMA_READ : RNIC_WR_RDMA_WRITE,
                             .size = size,
                             .inlined = size <= INLINE && !reads,
                             .group = chain,
                             .chained = true,
                             .iterations = pingpong ? count / 2 : count};
    if (pingpong)
        plan.opcode = RNIC_WR_SEND;
    if (!chain || chain > PERF_GROUP_MAX || count < chain || size > BUFFER_BYTES)
        die("chain, count or size");
    end[0].loops.line = end[1].loops.line = -1; /* none, on which nobody speaks */
    for (int i = 0; i < 2; i++)
        end_open(&end[i], 1);
    for (int i = 0; i < 2; i++)
        end[i].peer = end[!i].local;
    join(end, option_number(argv, "mtu", 4096));
    run_single(end, &plan, pingpong ? QUEUE / 2 : chain);
    printf("{\"operations\": %u, \"ns_per_operation\": %.0f}\n", count, (double)end[0].loops.ns / count);
    for (int i = 0; i < 2; i++)
        end_close(&end[i]);
}

/* ---------------------------------------------------------------- the command line */

static int usage(void) {
    fprintf(stderr, "usage: see the head of bench/native.c\n");
    return 2;
}

static struct perf_plan plan_of(const struct role *role, char **argv) {
    struct perf_plan plan = {.loop = role->loop,
                             .opcode = role->opcode,
                             .size = option_number(argv, "size", 8),
                             .inlined = option_number(argv, "inline", 0),
                             .serving = role->serving,
                             .group = option_number(argv, "chain", 1),
                             .chained = true,
                             .ns = option_ns(argv, "seconds", "0.4")};
    plan.warmup_ns = plan.ns / 8;
    if (role->loop == PERF_MEMORY || role->opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD)
        plan.size = 8;
    plan.inlined |= role->loop == PERF_MEMORY;
    return plan;
}

int main(int argc, char **argv) {
    static struct end e;
    if (argc < 3 || (!strcmp(argv[2], "serve") && argc < 4))
        return usage();
    buffer_max = option_number(argv, "bufmax", 0);
    by_lane = option_number(argv, "local", 0) != 0;
    by_tcp = option_number(argv, "iwarp", 0) != 0;
    summed = option_number(argv, "crc", 1) != 0;
    if (!strcmp(argv[2], "single")) {
        single(argv);
        return 0;
    }
    const struct role *role = role_of(strcmp(argv[2], "serve") ? argv[2] : argv[3]);
    if (!role)
        return usage();
    struct perf_plan plan = plan_of(role, argv);
    uint32_t qps = option_number(argv, "qps", 1), depth = option_number(argv, "depth", 64);
    if (!qps || qps > MAX_QPS || plan.size > BUFFER_BYTES || !plan.group || plan.group > PERF_GROUP_MAX ||
        plan.group > depth || depth > QUEUE) {
        fprintf(stderr, "native: size, chain, depth or qps\n");
        return 2;
    }
    e.loops.line = atoi(argv[1]);
    end_open(&e, qps);
    for (uint32_t i = 0; i < qps; i++)
        greet(&e, e.qps[i].qp, role->serving, option_number(argv, "mtu", 4096));
    prepare(&e, role, plan.size, depth);
    if (role->serving)
        serve(&e, role, &plan);
    else
        measure(&e, &plan, strtoull(option(argv, "at", "0"), NULL, 0));
    end_close(&e);
    return 0;
}
