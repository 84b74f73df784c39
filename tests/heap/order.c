/* SPDX-License-Identifier: Apache-2.0
 *
 * order.c: a thread polls the last byte of each WRITE that another context of this process makes, and then finds all of it.
 *
 * order DEVICE forks: opens the device and registers memory of the heap beside forks.
 * order DEVICE copy: a fork copies the heap, and a WRITE goes on meanwhile.
 * order DEVICE heap|malloc [POSTED]: where the memory is; how many WRITEs are posted at once, of which the last is polled for.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 1, MOST = 70000, EACH = 40, DEPTH = 128 };
static const unsigned sizes[] = {1, 2, 7, 8, 9, 63, 64, 65, 100, 4096, 5000, 20000, MOST};

#define NEED(what)                                                                                                     \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("line %d: %s\n", __LINE__, #what);                                                                  \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

struct side {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    union ibv_gid gid;
};

static void open_side(struct side *s, char *memory) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .port_num = PORT,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    NEED(!ibv_query_gid(s->context, PORT, 0, &s->gid));
    NEED((s->pd = ibv_alloc_pd(s->context)));
    NEED((s->cq = ibv_create_cq(s->context, DEPTH, NULL, NULL, 0)));
    NEED((s->mr = ibv_reg_mr(s->pd, memory, MOST,
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)));
    struct ibv_qp_init_attr init = {
        .send_cq = s->cq,
        .recv_cq = s->cq,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC};
    NEED((s->qp = ibv_create_qp(s->pd, &init)));
    NEED(!ibv_modify_qp(s->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

static void connect_to(const struct side *s, const struct side *peer) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_4096,
        .dest_qp_num = peer->qp->qp_num,
        .max_dest_rd_atomic = 1,
        .max_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .grh = {.dgid = peer->gid, .hop_limit = 1}, .port_num = PORT}};
    NEED(!ibv_modify_qp(s->qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    NEED(!ibv_modify_qp(s->qp, &attr,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC));
}

static char *memory[2];
static struct side writer, target;
static unsigned posted = 1;
static unsigned seen; /* messages that the poller has checked */

static void post(unsigned bytes, int signaled) {
    struct ibv_sge sge = {(uintptr_t)memory[0], bytes, writer.mr->lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = signaled ? IBV_SEND_SIGNALED : 0,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .wr.rdma = {(uintptr_t)memory[1], target.mr->rkey}},
                       *bad;
    NEED(!ibv_post_send(writer.qp, &wr, &bad));
}

static void *poll_last_bytes(void *arg) {
    for (unsigned i = 0; i < EACH * (sizeof sizes / sizeof *sizes); i++) {
        unsigned bytes = sizes[i / EACH], k = 0;
        char wanted = (char)(i % 250 + 1);
        while (__atomic_load_n(&memory[1][bytes - 1], __ATOMIC_ACQUIRE) != wanted)
            if (++k % 1000 == 0)
                sched_yield();
        for (k = 0; k < bytes; k++)
            if (memory[1][k] != wanted) {
                printf("%u bytes: byte %u is not there, the last one is\n", bytes, k);
                exit(1);
            }
        __atomic_store_n(&seen, i + 1, __ATOMIC_RELEASE);
    }
    return arg;
}

static void write_all(void) {
    for (unsigned i = 0; i < EACH * (sizeof sizes / sizeof *sizes); i++) {
        struct ibv_wc wc;
        int n;
        memset(memory[0], (char)(i % 250 + 1), MOST);
        for (unsigned k = 1; k <= posted; k++)
            post(sizes[i / EACH], k == posted);
        while (!(n = ibv_poll_cq(writer.cq, 1, &wc)))
            ;
        NEED(n == 1 && wc.status == IBV_WC_SUCCESS);
        while (__atomic_load_n(&seen, __ATOMIC_ACQUIRE) <= i)
            sched_yield();
    }
}

/* ---------------------------------------------------------------- forks beside registrations */

enum { CHILDREN = 100 };
static volatile int children;

#ifdef __GLIBC__
/* An allocator as programs bring: it holds its lock over forks, and who opens a device meanwhile waits for it. */
static pthread_mutex_t allocator = PTHREAD_MUTEX_INITIALIZER;
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);

void *malloc(size_t bytes) {
    pthread_mutex_lock(&allocator);
    void *at = __libc_malloc(bytes);
    pthread_mutex_unlock(&allocator);
    return at;
}

void *calloc(size_t count, size_t bytes) {
    pthread_mutex_lock(&allocator);
    void *at = __libc_calloc(count, bytes);
    pthread_mutex_unlock(&allocator);
    return at;
}

static void hold_allocator(void) { pthread_mutex_lock(&allocator); }
static void let_allocator_go(void) { pthread_mutex_unlock(&allocator); }

__attribute__((constructor)) static void begin_allocator(void) {
    pthread_atfork(hold_allocator, let_allocator_go, let_allocator_go);
}
#endif

static void *fork_all_the_time(void *arg) {
    for (; children < CHILDREN; children++) {
        int status;
        pid_t child = fork();
        if (!child)
            _exit(0);
        NEED(waitpid(child, &status, 0) == child && status == 0);
    }
    return arg;
}

/* The device is there before the heap is first used, and each has a lock that a fork takes. */
static void register_beside_forks(struct ibv_device *device) {
    pthread_t thread;
    void *at;
    struct ibv_context *context = ibv_open_device(device);
    struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
    NEED(pd && !posix_memalign(&at, 4096, MOST));
    NEED(!pthread_create(&thread, NULL, fork_all_the_time, NULL));
    while (children < CHILDREN) {
        struct ibv_mr *mr = ibv_reg_mr(pd, at, MOST, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        struct ibv_context *other = ibv_open_device(device);
        NEED(mr && other && !ibv_dereg_mr(mr) && !ibv_close_device(other));
    }
    NEED(!pthread_join(thread, NULL));
    free(at);
}

/* ---------------------------------------------------------------- a WRITE while a fork copies */

enum { PATIENCE = 20 }; /* seconds, which pass only if devices stand still until the copy is made */
static sem_t copies, written;
static volatile int forks; /* this process, and the copy has not begun */

/* In front of libc's, which the heap copies by: the copy waits for a WRITE of another thread. */
ssize_t pread(int fd, void *to, size_t bytes, off_t at) {
    struct timespec limit;
    if (forks) {
        forks = 0;
        clock_gettime(CLOCK_REALTIME, &limit);
        limit.tv_sec += PATIENCE;
        NEED(!sem_post(&copies) && !sem_timedwait(&written, &limit));
    }
    return syscall(SYS_pread64, fd, to, bytes, at);
}

#ifdef __GLIBC__ /* others have one name */
ssize_t pread64(int fd, void *to, size_t bytes, off_t at) { return pread(fd, to, bytes, at); }
#endif

static void *write_meanwhile(void *arg) {
    struct ibv_wc wc;
    int n;
    NEED(!sem_wait(&copies));
    post(MOST, 1);
    while (!(n = ibv_poll_cq(writer.cq, 1, &wc)))
        sched_yield();
    NEED(n == 1 && wc.status == IBV_WC_SUCCESS && !sem_post(&written));
    return arg;
}

static void fork_beside_a_write(void) {
    pthread_t thread;
    int status;
    memset(memory[0], 1, MOST);
    NEED(!sem_init(&copies, 0, 0) && !sem_init(&written, 0, 0));
    NEED(!pthread_create(&thread, NULL, write_meanwhile, NULL));
    forks = 1;
    pid_t child = fork();
    if (!child)
        _exit(memory[0][MOST - 1] != 1);
    NEED(!forks); /* the heap has been copied */
    NEED(waitpid(child, &status, 0) == child && status == 0);
    NEED(!pthread_join(thread, NULL) && memory[1][MOST - 1] == 1);
}

int main(int argc, char **argv) {
    int n;
    pthread_t poller;
    struct ibv_device **list = ibv_get_device_list(&n);
    if (!list || argc < 3)
        return 77;
    while (*list && strcmp(ibv_get_device_name(*list), argv[1]))
        list++;
    NEED(*list);
    if (!strcmp(argv[2], "forks")) {
        register_beside_forks(*list);
        return 0;
    }
    NEED((writer.context = ibv_open_device(*list)) && (target.context = ibv_open_device(*list)));
    for (int i = 0; i < 2; i++) {
        if (!strcmp(argv[2], "malloc"))
            NEED((memory[i] = malloc(MOST)));
        else
            NEED(!posix_memalign((void **)&memory[i], 4096, MOST));
        memset(memory[i], 0, MOST);
    }
    posted = argc > 3 ? (unsigned)atoi(argv[3]) : 1;
    open_side(&writer, memory[0]);
    open_side(&target, memory[1]);
    connect_to(&writer, &target);
    connect_to(&target, &writer);
    if (!strcmp(argv[2], "copy")) {
        fork_beside_a_write();
        return 0;
    }
    NEED(!pthread_create(&poller, NULL, poll_last_bytes, NULL));
    write_all();
    NEED(!pthread_join(poller, NULL));
    return 0;
}
