/* SPDX-License-Identifier: Apache-2.0
 *
 * The measuring loops in C on nic.h: what the device does without Python.  One end of a connection in each process,
 * joined by an inherited stream socket over which both say what the other has to know; or both ends in one process,
 * for callgrind.
 *
 *   native FD serve sleep|burn|sink|echo|memory [name=value ...]
 *   native FD write|send|read|write_latency|read_latency|atomic_latency|send_pingpong|memory_pingpong [name=value ...]
 *   native - single [loop=chain|pingpong] [chain=32] [count=100000] [size=8]
 *
 * size      bytes of a message                      seconds  how long to measure
 * chain     work requests of one post, the last of which is signaled
 * depth     work requests outstanding at most       polls    memory_pingpong: poll the queue too while waiting (1)
 * inline    1: INLINE                               mtu      bytes of the path MTU
 * bufmax    what net.core.rmem_max and wmem_max would be, for this process alone
 * local     1: by shared memory, with memory that the other process reaches
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
#include "nic.h"

#define NETDEV "lo"
#define QUEUE 1024
#define MAX_QPS 1000
#define RECEIVES 512
#define RD_ATOMIC 16
#define SIGNAL_EVERY 32 /* of a ping-pong */
#define LIMIT (20 * SECOND)
#define REMOTE (RNIC_ACCESS_REMOTE_WRITE | RNIC_ACCESS_REMOTE_READ | RNIC_ACCESS_REMOTE_ATOMIC)
#define ACCESS (RNIC_ACCESS_LOCAL_WRITE | REMOTE)
#define BUFFER_BYTES (4u << 20)
#define MARK 64 /* where a memory_pingpong's peer writes */

struct hello {
    uint32_t qpn, psn, rkey;
    uint64_t addr;
};

struct end {
    const struct rnic_ops *ops;
    struct rnic_context *ctx;
    struct rnic_pd *pd;
    struct rnic_cq *cq;
    struct rnic_mr *mr;
    struct rnic_qp *qp[MAX_QPS];
    uint32_t qps, turn; /* how many, and whose turn it is */
    uint8_t *buffer;
    struct hello local, peer;
    int line;                 /* to the other process */
    double main_cpu, all_cpu; /* seconds until measuring began */
    struct rusage usage;
    struct rnic_counters before;
};

struct figures {
    uint64_t operations, ns;
    struct samples samples;
};

static struct rnic_err err;
static uint32_t buffer_max;
static bool by_lane;        /* both ends are on this host: by shared memory */
static _Atomic bool parked; /* engine threads stay asleep: all work is the main thread's, and can be counted */

static void die(const char *what) {
    fprintf(stderr, "native: %s: %s\n", what, err.text[0] ? err.text : strerror(errno));
    exit(1);
}

static void need(int rc, const char *what) {
    if (rc < 0)
        die(what);
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
        need(e->ops->alloc_mr(e->pd, BUFFER_BYTES, ACCESS, &e->mr, &err), "alloc_mr");
        e->buffer = e->mr->addr;
        return;
    }
    e->buffer = mmap(NULL, BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (e->buffer == MAP_FAILED)
        die("mmap");
    need(e->ops->reg_mr(e->pd, e->buffer, BUFFER_BYTES, ACCESS, &e->mr, &err), "reg_mr");
}

static void open_qp(struct end *e, struct rnic_qp **qp) {
    struct rnic_qp_init_attr init = {
        .send_cq = e->cq,
        .recv_cq = e->cq,
        .qp_type = RNIC_QPT_RC,
        .cap = {QUEUE, QUEUE, 1, 1, 64},
    };
    need(e->ops->create_qp(e->pd, &init, qp, &err), "create_qp");
    struct rnic_qp_attr attr = {.qp_state = RNIC_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS};
    need(e->ops->modify_qp(*qp, &attr, RNIC_QP_STATE | RNIC_QP_PKEY_INDEX | RNIC_QP_PORT | RNIC_QP_ACCESS_FLAGS, &err),
         "INIT");
}

static void end_open(struct end *e, uint32_t qps) {
    struct rnic_open_attr how = {.local = by_lane ? 1 : -1};
    need(rnic_soft_open(NETDEV, &how, &e->ctx, &err), "open");
    e->ops = e->ctx->ops;
    need(e->ops->alloc_pd(e->ctx, &e->pd, &err), "alloc_pd");
    need(e->ops->create_cq(e->ctx, 4 * QUEUE, NULL, 0, NULL, &e->cq, &err), "create_cq");
    get_memory(e);
    for (; e->qps < qps; e->qps++)
        open_qp(e, &e->qp[e->qps]);
    e->local = (struct hello){e->qp[0]->qp_num, 0x123456, e->mr->rkey, (uintptr_t)e->buffer};
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

static void say(const struct end *e, const char *text) {
    if (write(e->line, text, strlen(text)) < 0)
        die("write");
}

/* One line from the other process. */
static void hear(const struct end *e, char *text, size_t room) {
    size_t n = 0;
    for (; n + 1 < room; n++) {
        if (read(e->line, &text[n], 1) != 1)
            die("the other process has gone");
        if (text[n] == '\n')
            break;
    }
    text[n] = 0;
}

static bool heard(const struct end *e) {
    struct pollfd p = {e->line, POLLIN, 0};
    return poll(&p, 1, 0) != 0;
}

static void greet(struct end *e, struct rnic_qp *qp, uint32_t mtu) {
    char text[128];
    unsigned long long addr;
    snprintf(text, sizeof text, "%x %x %llx %x\n", qp->qp_num, e->local.psn, (unsigned long long)e->local.addr,
             e->local.rkey);
    say(e, text);
    hear(e, text, sizeof text);
    if (sscanf(text, "%x %x %llx %x", &e->peer.qpn, &e->peer.psn, &addr, &e->peer.rkey) != 4)
        die("hello");
    e->peer.addr = addr;
    end_connect(e, qp, mtu);
}

/* Both ends are ready to send and to receive. */
static void meet(const struct end *e) {
    char text[16];
    say(e, "ready\n");
    hear(e, text, sizeof text);
}

static void end_close(struct end *e) {
    while (e->qps)
        e->ops->destroy_qp(e->qp[--e->qps], &err);
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
    e->ops->query_counters(e->ctx, &e->before, &err);
}

static void report(const struct end *e, char *text, size_t room) {
    double all = cpu_seconds(RUSAGE_SELF) - e->all_cpu, own = cpu_seconds(RUSAGE_THREAD) - e->main_cpu;
    struct rnic_counters now;
    struct rusage usage;
    e->ops->query_counters(e->ctx, &now, &err);
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

/* ---------------------------------------------------------------- completions */

static int take(struct end *e, struct rnic_wc *wc, int n) {
    int got = e->ops->poll_cq(e->cq, n, wc);
    need(got, "poll_cq");
    for (int i = 0; i < got; i++) {
        if (wc[i].status == RNIC_WC_SUCCESS)
            continue;
        snprintf(err.text, sizeof err.text, "status %d: %s", wc[i].status, rnic_vendor_err_text((int)wc[i].vendor_err));
        die("completion");
    }
    return got;
}

static void post(struct end *e, const struct rnic_send_wr *wr) {
    const struct rnic_send_wr *bad;
    need(e->ops->post_send(e->qp[e->turn], wr, &bad, &err), "post_send");
    if (++e->turn == e->qps)
        e->turn = 0;
}

static void post_receives(struct end *e, uint32_t count, uint32_t size) {
    struct rnic_sge sge = {(uintptr_t)e->buffer, size, e->mr->lkey};
    struct rnic_recv_wr wr[64];
    const struct rnic_recv_wr *bad;
    for (uint32_t n; count; count -= n) {
        n = count < 64 ? count : 64;
        for (uint32_t i = 0; i < n; i++)
            wr[i] = (struct rnic_recv_wr){.next = i + 1 < n ? &wr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1};
        need(e->ops->post_recv(e->qp[0], wr, &bad, &err), "post_recv");
    }
}

static struct rnic_send_wr request(struct end *e, int opcode, struct rnic_sge *sge, bool inlined) {
    struct rnic_send_wr wr = {.opcode = opcode, .sg_list = sge, .num_sge = 1};
    bool atomic = opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD;
    *sge = (struct rnic_sge){(uintptr_t)e->buffer, atomic ? 8 : sge->length, e->mr->lkey};
    wr.send_flags = inlined ? RNIC_SEND_INLINE : 0;
    if (atomic) {
        wr.wr.atomic.remote_addr = e->peer.addr;
        wr.wr.atomic.rkey = e->peer.rkey;
        wr.wr.atomic.compare_add = 1;
    } else if (opcode != RNIC_WR_SEND) {
        wr.wr.rdma.remote_addr = e->peer.addr;
        wr.wr.rdma.rkey = e->peer.rkey;
    }
    return wr;
}

/* ---------------------------------------------------------------- streams */

struct plan {
    int opcode;
    uint32_t size, chain, depth;
    bool inlined;
    uint64_t duration, at;
};

static void build_chain(struct end *e, const struct plan *plan, struct rnic_send_wr *wr, struct rnic_sge *sge) {
    sge->length = plan->size;
    for (uint32_t i = 0; i < plan->chain; i++) {
        wr[i] = request(e, plan->opcode, sge, plan->inlined);
        wr[i].next = i + 1 < plan->chain ? &wr[i + 1] : NULL;
    }
    wr[plan->chain - 1].send_flags |= RNIC_SEND_SIGNALED;
}

static void stream(struct end *e, const struct plan *plan, const struct rnic_send_wr *wr, uint64_t duration,
                   struct figures *out) {
    struct rnic_wc wc[16];
    uint64_t chains = plan->depth / plan->chain, posted = 0, done = 0;
    uint64_t start = now_ns(), last = start;
    bool more = true;
    while (more || done < posted) {
        for (; more && posted - done < chains; posted++)
            post(e, wr);
        int n = take(e, wc, 16);
        done += (uint64_t)n;
        uint64_t now = now_ns();
        if (n)
            last = now;
        more = now < start + duration;
        if (now > start + LIMIT)
            die("too slow");
    }
    *out = (struct figures){.operations = posted * plan->chain, .ns = last - start};
}

static void run_stream(struct end *e, const struct plan *plan, struct figures *out) {
    struct rnic_send_wr wr[QUEUE];
    struct rnic_sge sge;
    build_chain(e, plan, wr, &sge);
    stream(e, plan, wr, plan->duration / 8, out);
    begin(e);
    stream(e, plan, wr, plan->duration, out);
}

/* ---------------------------------------------------------------- latencies */

static void wait_one(struct end *e, uint64_t until) {
    struct rnic_wc wc;
    for (uint32_t i = 1; !take(e, &wc, 1); i++) {
        if (i % 65536 == 0 && now_ns() > until)
            die("no completion");
    }
}

/* Post to completion, one at a time. */
static void latency(struct end *e, const struct plan *plan, struct figures *out) {
    struct rnic_sge sge = {.length = plan->size};
    struct rnic_send_wr wr = request(e, plan->opcode, &sge, plan->inlined);
    uint64_t start = now_ns(), warm = start + plan->duration / 8, now = start;
    wr.send_flags |= RNIC_SEND_SIGNALED;
    for (; now < warm + plan->duration; out->operations++) {
        post(e, &wr);
        wait_one(e, start + LIMIT);
        uint64_t after = now_ns();
        if (now > warm)
            samples_add(&out->samples, after - now);
        now = after;
    }
    out->ns = now - start;
}

/* Until a receive completes; the completions of sends are taken on the way. */
static bool wait_message(struct end *e, uint32_t *receives, bool serving) {
    struct rnic_wc wc[4];
    uint64_t until = now_ns() + LIMIT;
    for (uint32_t i = 1;; i++) {
        bool got = false;
        for (int n = take(e, wc, 4); n > 0; n--) {
            got |= wc[n - 1].opcode == RNIC_WCO_RECV;
            *receives -= wc[n - 1].opcode == RNIC_WCO_RECV;
        }
        if (got)
            return true;
        if (i % 4096 == 0 && serving && heard(e))
            return false;
        if (i % 65536 == 0 && !serving && now_ns() > until)
            die("no message");
    }
}

static void refill(struct end *e, uint32_t *receives, uint32_t size) {
    if (*receives > RECEIVES / 2)
        return;
    post_receives(e, RECEIVES - *receives, size);
    *receives = RECEIVES;
}

static void send_one(struct end *e, struct rnic_send_wr *wr, uint32_t i) {
    wr->send_flags &= ~(uint32_t)RNIC_SEND_SIGNALED;
    wr->send_flags |= i % SIGNAL_EVERY == 0 ? RNIC_SEND_SIGNALED : 0;
    post(e, wr);
}

static void send_pingpong(struct end *e, const struct plan *plan, struct figures *out) {
    struct rnic_sge sge = {.length = plan->size};
    struct rnic_send_wr wr = request(e, RNIC_WR_SEND, &sge, plan->inlined);
    uint64_t start = now_ns(), warm = start + plan->duration / 8, now = start;
    uint32_t receives = RECEIVES;
    for (; now < warm + plan->duration; out->operations++) {
        send_one(e, &wr, (uint32_t)out->operations);
        wait_message(e, &receives, false);
        uint64_t after = now_ns();
        if (now > warm)
            samples_add(&out->samples, (after - now) / 2);
        refill(e, &receives, plan->size);
        now = now_ns();
    }
    out->ns = now - start;
}

static void echo(struct end *e, const struct plan *plan) {
    struct rnic_sge sge = {.length = plan->size};
    struct rnic_send_wr wr = request(e, RNIC_WR_SEND, &sge, plan->inlined);
    uint32_t receives = RECEIVES;
    for (uint32_t i = 0; wait_message(e, &receives, true); i++) {
        send_one(e, &wr, i);
        refill(e, &receives, plan->size);
    }
}

/* ---------------------------------------------------------------- latency of a WRITE that the target sees in memory */

static uint64_t mark(const struct end *e) {
    return __atomic_load_n((const uint64_t *)(const void *)(e->buffer + MARK), __ATOMIC_ACQUIRE);
}

/* Until the peer has written value; false: the peer has said that it is over. */
static bool wait_mark(struct end *e, uint64_t value, bool polls, bool serving) {
    struct rnic_wc wc[4];
    uint64_t until = now_ns() + LIMIT;
    for (uint32_t i = 1; mark(e) != value; i++) {
        if (polls)
            take(e, wc, 4);
        if (i % 4096 == 0 && serving && heard(e))
            return false;
        if (i % 65536 == 0 && !serving && now_ns() > until)
            die("the peer did not write");
    }
    return true;
}

static void write_mark(struct end *e, struct rnic_send_wr *wr, uint64_t value) {
    struct rnic_wc wc[4];
    memcpy(e->buffer, &value, sizeof value);
    send_one(e, wr, (uint32_t)value);
    if (value % SIGNAL_EVERY == 0)
        take(e, wc, 4);
}

static void memory_pingpong(struct end *e, const struct plan *plan, bool polls, bool serving, struct figures *out) {
    struct rnic_sge sge = {.length = 8};
    struct rnic_send_wr wr = request(e, RNIC_WR_RDMA_WRITE, &sge, true);
    uint64_t start = now_ns(), warm = start + plan->duration / 8, now = start;
    wr.wr.rdma.remote_addr += MARK;
    for (uint64_t i = 1; serving || now < warm + plan->duration; i++) {
        if (!serving)
            write_mark(e, &wr, i);
        if (!wait_mark(e, i, polls, serving))
            return;
        if (serving) {
            write_mark(e, &wr, i);
            continue;
        }
        uint64_t after = now_ns();
        if (now > warm)
            samples_add(&out->samples, (after - now) / 2);
        now = after;
        out->operations++;
    }
    out->ns = now - start;
}

/* ---------------------------------------------------------------- the serving process */

static void sink(struct end *e, uint32_t size) {
    struct rnic_wc wc[64];
    for (uint32_t idle = 1;; idle++) {
        int n = take(e, wc, 64);
        if (n)
            post_receives(e, (uint32_t)n, size);
        if (idle % 256 == 0 && heard(e))
            return;
    }
}

static void burn(const struct end *e) {
    for (volatile uint32_t i = 1;; i++) {
        if (i % (1u << 20) == 0 && heard(e))
            return;
    }
}

static void serve(struct end *e, const char *how, const struct plan *plan, bool polls) {
    char text[4096];
    bool receives = !strcmp(how, "sink") || !strcmp(how, "echo");
    if (receives)
        post_receives(e, RECEIVES, plan->size);
    meet(e);
    begin(e);
    if (!strcmp(how, "sink"))
        sink(e, plan->size);
    else if (!strcmp(how, "echo"))
        echo(e, plan);
    else if (!strcmp(how, "memory"))
        memory_pingpong(e, plan, polls, true, NULL);
    else if (!strcmp(how, "burn"))
        burn(e);
    hear(e, text, sizeof text); /* "sleep" does nothing else */
    report(e, text, sizeof text - 1);
    say(e, strcat(text, "\n"));
}

/* ---------------------------------------------------------------- the measuring process */

static int opcode_of(const char *test) {
    if (strstr(test, "read"))
        return RNIC_WR_RDMA_READ;
    if (strstr(test, "atomic"))
        return RNIC_WR_ATOMIC_FETCH_AND_ADD;
    return strstr(test, "send") ? RNIC_WR_SEND : RNIC_WR_RDMA_WRITE;
}

static void print(struct end *e, const struct plan *plan, struct figures *f) {
    char mine[4096], theirs[4096];
    double seconds = (double)f->ns / 1e9;
    report(e, mine, sizeof mine);
    say(e, "end\n");
    hear(e, theirs, sizeof theirs);
    printf("{\"operations\": %llu, \"seconds\": %.4f, \"messages_per_s\": %.0f, \"gbytes_per_s\": %.5f, ",
           (unsigned long long)f->operations, seconds, (double)f->operations / seconds,
           (double)f->operations * plan->size / seconds / 1e9);
    if (f->samples.count)
        printf("\"median_us\": %.3f, \"p99_us\": %.3f, ", samples_at(&f->samples, 0.5), samples_at(&f->samples, 0.99));
    printf("\"rcvbuf\": %d, \"sndbuf\": %d, \"client\": %s, \"server\": %s}\n", granted(SO_RCVBUF), granted(SO_SNDBUF),
           mine, theirs);
}

/* What is measured after others have begun is no figure: they had the machine without this one. */
static void await_turn(uint64_t at) {
    uint64_t now = now_ns();
    if (at && now > at) {
        snprintf(err.text, sizeof err.text, "ready %.2f s after the others were to begin", (double)(now - at) / SECOND);
        die("late");
    }
    while (now_ns() < at)
        usleep(100);
}

static void measure(struct end *e, const char *test, const struct plan *plan, bool polls) {
    struct figures f = {0};
    if (!strcmp(test, "send_pingpong"))
        post_receives(e, RECEIVES, plan->size);
    meet(e);
    await_turn(plan->at);
    begin(e);
    if (!strcmp(test, "send_pingpong"))
        send_pingpong(e, plan, &f);
    else if (!strcmp(test, "memory_pingpong"))
        memory_pingpong(e, plan, polls, false, &f);
    else if (strstr(test, "_latency"))
        latency(e, plan, &f);
    else
        run_stream(e, plan, &f);
    print(e, plan, &f);
}

/* ---------------------------------------------------------------- both ends in one process */

/* callgrind counts what happens in here: chains of WRITEs, and the target's part of them; */
__attribute__((noinline)) void counted_chain(struct end *e, struct end *target, const struct rnic_send_wr *wr,
                                             uint32_t chains) {
    struct rnic_wc wc[4];
    for (uint32_t i = 0; i < chains; i++) {
        post(e, wr);
        while (!take(e, wc, 1))
            take(target, wc, 1);
    }
}

/* and messages that go to and fro. */
__attribute__((noinline)) void counted_pingpong(struct end end[2], struct rnic_send_wr wr[2], uint32_t messages) {
    struct rnic_wc wc[4];
    for (uint32_t i = 0, received = 0; i < messages; i++, received = 0) {
        send_one(&end[i % 2], &wr[i % 2], i / 2);
        while (!received) {
            int n = take(&end[!(i % 2)], wc, 4);
            while (n > 0)
                received += wc[--n].opcode == RNIC_WCO_RECV;
            take(&end[i % 2], wc, 4);
        }
        post_receives(&end[!(i % 2)], 1, 8);
    }
}

static uint32_t run_single(struct end end[2], const struct plan *plan, uint32_t count, bool pingpong) {
    struct rnic_send_wr wr[QUEUE], both[2];
    struct rnic_sge sge[2];
    build_chain(&end[0], plan, wr, sge);
    for (int i = 0; i < 2; i++) {
        sge[i].length = plan->size;
        both[i] = request(&end[i], RNIC_WR_SEND, &sge[i], true);
        post_receives(&end[i], RECEIVES, plan->size);
    }
    atomic_store(&parked, true);
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    uint64_t start = now_ns();
    if (pingpong)
        counted_pingpong(end, both, count);
    else
        counted_chain(&end[0], &end[1], wr, count / plan->chain);
    uint64_t ns = now_ns() - start;
    atomic_store(&parked, false);
    return (uint32_t)(ns / count);
}

static void single(char **argv) {
    struct end end[2] = {0};
    struct plan plan = {
        RNIC_WR_RDMA_WRITE, option_number(argv, "size", 8), option_number(argv, "chain", 32), QUEUE, false, 0, 0};
    bool pingpong = !strcmp(option(argv, "loop", "chain"), "pingpong");
    uint32_t count = option_number(argv, "count", 100000);
    plan.inlined = plan.size <= 64;
    if (!plan.chain || plan.chain > QUEUE / 2 || count < plan.chain || plan.size > BUFFER_BYTES)
        die("chain, count or size");
    for (int i = 0; i < 2; i++)
        end_open(&end[i], 1);
    for (int i = 0; i < 2; i++) {
        end[i].peer = end[!i].local;
        end_connect(&end[i], end[i].qp[0], option_number(argv, "mtu", 4096));
    }
    uint32_t ns = run_single(end, &plan, count, pingpong);
    printf("{\"operations\": %u, \"ns_per_operation\": %u}\n", count, ns);
    for (int i = 0; i < 2; i++)
        end_close(&end[i]);
}

int main(int argc, char **argv) {
    if (argc < 3 || (!strcmp(argv[2], "serve") && argc < 4)) {
        fprintf(stderr, "usage: see the head of bench/native.c\n");
        return 2;
    }
    buffer_max = option_number(argv, "bufmax", 0);
    by_lane = option_number(argv, "local", 0) != 0;
    if (!strcmp(argv[2], "single")) {
        single(argv);
        return 0;
    }
    struct end e = {.line = atoi(argv[1])};
    struct plan plan = {.opcode = opcode_of(argv[2]),
                        .size = option_number(argv, "size", 8),
                        .chain = option_number(argv, "chain", 1),
                        .depth = option_number(argv, "depth", 64),
                        .inlined = option_number(argv, "inline", 0),
                        .duration = option_ns(argv, "seconds", "0.4"),
                        .at = strtoull(option(argv, "at", "0"), NULL, 0)};
    bool polls = option_number(argv, "polls", 1);
    uint32_t qps = option_number(argv, "qps", 1);
    if (!qps || qps > MAX_QPS || plan.size > BUFFER_BYTES || !plan.chain || plan.chain > plan.depth ||
        plan.depth > QUEUE) {
        fprintf(stderr, "native: size, chain, depth or qps\n");
        return 2;
    }
    end_open(&e, qps);
    for (uint32_t i = 0; i < qps; i++)
        greet(&e, e.qp[i], option_number(argv, "mtu", 4096));
    if (!strcmp(argv[2], "serve"))
        serve(&e, argv[3], &plan, polls);
    else
        measure(&e, argv[2], &plan, polls);
    end_close(&e);
    return 0;
}
