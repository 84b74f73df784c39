/* SPDX-License-Identifier: Apache-2.0
 *
 * dev/lost.c, base/guard.c: a program that takes memory back before it deregisters the region is told which one it is when a
 * request uses it.  The request fails, and the program goes on.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "live.h"

#define BYTES 65536u
#define PART 100u
#define AT 5000u
#define WORD_AT 8000u
#define MINE 9 /* exit code of a program's own handler */
#define DONE 7 /* of one that has seen what it should */

static struct live a, b;
static char said[16384];

static void own_handler(int number) {
    (void)number;
    _exit(MINE);
}

enum loss { UNMAPPED, PROTECTED, TRUNCATED, LOSSES, READ_ONLY = LOSSES /* is lost to writes alone */ };

/* What is done by a request while one end's memory is lost, and what becomes of it. */
struct use {
    const char *name;
    int opcode;
    bool ours; /* the requester's memory is lost, else the peer's */
    uint32_t n;
    enum rnic_wc_status status; /* of the request */
    int event;                  /* at the peer; -1: none */
};

static const struct use uses[] = {
    {"WRITE to", RNIC_WR_RDMA_WRITE, false, PART, RNIC_WC_REM_ACCESS_ERR, RNIC_EVENT_QP_ACCESS_ERR},
    {"short WRITE to", RNIC_WR_RDMA_WRITE, false, 8, RNIC_WC_REM_ACCESS_ERR, RNIC_EVENT_QP_ACCESS_ERR},
    {"long WRITE to", RNIC_WR_RDMA_WRITE, false, BYTES - WORD_AT, RNIC_WC_REM_ACCESS_ERR, RNIC_EVENT_QP_ACCESS_ERR},
    {"READ of", RNIC_WR_RDMA_READ, false, PART, RNIC_WC_REM_ACCESS_ERR, RNIC_EVENT_QP_ACCESS_ERR},
    {"atomic on", RNIC_WR_ATOMIC_FETCH_AND_ADD, false, 8, RNIC_WC_REM_ACCESS_ERR, RNIC_EVENT_QP_ACCESS_ERR},
    {"ATOMIC WRITE to", RNIC_WR_ATOMIC_WRITE, false, 8, RNIC_WC_REM_ACCESS_ERR, RNIC_EVENT_QP_ACCESS_ERR},
    {"SEND into", RNIC_WR_SEND, false, PART, RNIC_WC_REM_OP_ERR, -1},
    {"SEND from", RNIC_WR_SEND, true, PART, RNIC_WC_LOC_PROT_ERR, -1},
    {"long SEND from", RNIC_WR_SEND, true, BYTES - WORD_AT, RNIC_WC_LOC_PROT_ERR, -1},
    {"WRITE from", RNIC_WR_RDMA_WRITE, true, PART, RNIC_WC_LOC_PROT_ERR, -1},
    {"READ into", RNIC_WR_RDMA_READ, true, PART, RNIC_WC_LOC_PROT_ERR, -1},
    {"atomic into", RNIC_WR_ATOMIC_FETCH_AND_ADD, true, 8, RNIC_WC_LOC_PROT_ERR, -1},
};
#define USES ((int)(sizeof uses / sizeof *uses))

/* Memory with a region, and the file that it is of. */
struct losable {
    uint8_t *at;
    int file;
    struct rnic_mr *mr;
};

static struct losable losable(struct live *l, enum loss how) {
    struct losable m = {.file = memfd_create("lost", MFD_CLOEXEC)};
    CHECK_EQ(ftruncate(m.file, BYTES), 0);
    m.at = how == TRUNCATED ? mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, m.file, 0)
                            : mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(m.at != MAP_FAILED);
    memset(m.at, 1, BYTES);
    CHECK_EQ(l->ops->reg_mr(l->pd, m.at, BYTES, 0xF, &m.mr, NULL), 0);
    return m;
}

static void lose(enum loss how, struct losable m) {
    if (how == UNMAPPED)
        CHECK_EQ(munmap(m.at, BYTES), 0);
    if (how == PROTECTED)
        CHECK_EQ(mprotect(m.at, BYTES, PROT_NONE), 0);
    if (how == TRUNCATED)
        CHECK_EQ(ftruncate(m.file, 0), 0);
    if (how == READ_ONLY)
        CHECK_EQ(mprotect(m.at, BYTES, PROT_READ), 0);
}

static void start_plain(bool handles) {
    struct sigaction plain = {.sa_handler = handles ? own_handler : SIG_DFL};
    sigaction(SIGSEGV, &plain, NULL); /* without the sanitizer's */
    sigaction(SIGBUS, &plain, NULL);
}

static void post(struct rnic_qp *qp, const struct use *use, uint8_t *ours, uint32_t lkey, uint8_t *theirs,
                 uint32_t rkey) {
    struct rnic_sge sge = {(uintptr_t)ours + WORD_AT, use->n, lkey};
    struct rnic_send_wr wr = {.opcode = use->opcode, .send_flags = RNIC_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1};
    const struct rnic_send_wr *bad;
    if (use->opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = (uintptr_t)theirs + WORD_AT;
        wr.wr.atomic.rkey = rkey;
        wr.wr.atomic.compare_add = 1;
    } else {
        wr.wr.rdma.remote_addr = (uintptr_t)theirs + WORD_AT;
        wr.wr.rdma.rkey = rkey;
    }
    CHECK_EQ(a.ops->post_send(qp, &wr, &bad, NULL), 0);
}

static void receive_into(struct rnic_qp *qp, uint8_t *at, uint32_t lkey) {
    struct rnic_sge sge = {(uintptr_t)at, BYTES, lkey};
    struct rnic_recv_wr wr = {.sg_list = &sge, .num_sge = 1};
    const struct rnic_recv_wr *bad;
    CHECK_EQ(b.ops->post_recv(qp, &wr, &bad, NULL), 0);
}

/* The first message finds out where the peer is; those that follow may take the shortest way. */
static void exchange(void) {
    struct rnic_qp *qa = live_qp(&a), *qb = live_qp(&b);
    live_join(&a, qa, &b, qb, 14, 7);
    for (int i = 0; i < 3; i++) {
        live_post_recv(&b, qb, 1, 0, PART);
        live_post(&a, qa, RNIC_WR_SEND, 1, 0, PART, &b);
        CHECK_EQ(live_wait(&a).status, RNIC_WC_SUCCESS);
        CHECK_EQ(live_wait(&b).status, RNIC_WC_SUCCESS);
    }
}

static struct rnic_qp *joined(struct rnic_qp **qb) {
    struct rnic_qp *qa = live_qp(&a);
    *qb = live_qp(&b);
    live_join(&a, qa, &b, *qb, 14, 7);
    live_post(&a, qa, RNIC_WR_RDMA_WRITE, 1, 0, 8, &b);
    CHECK_EQ(live_wait(&a).status, RNIC_WC_SUCCESS);
    return qa;
}

static int state_of(struct live *l, struct rnic_qp *qp) {
    struct rnic_qp_attr attr;
    struct rnic_qp_init_attr init;
    CHECK_EQ(l->ops->query_qp(qp, &attr, &init, NULL), 0);
    return attr.qp_state;
}

static int event_of(struct live *l) {
    struct rnic_async_event event;
    CHECK_EQ(l->ops->get_async_event(l->ctx, &event, NULL), 0);
    CHECK_EQ(l->ops->ack_async_event(l->ctx, &event, NULL), 0);
    return (int)event.event_type;
}

/* Rounding and traps of this thread, other ones than a program begins with. */
static uint64_t arithmetic(bool change) {
    uint32_t mxcsr = 0x5f80;
    uint16_t cw = 0x0b7f;
#ifdef __x86_64__
    if (change)
        __asm__ volatile("fldcw %0\n\tldmxcsr %1" ::"m"(cw), "m"(mxcsr));
    __asm__ volatile("fnstcw %0\n\tstmxcsr %1" : "=m"(cw), "=m"(mxcsr));
#else
    (void)change;
#endif
    return (uint64_t)cw << 32 | (mxcsr & 0xffc0); /* not what the last sum found */
}

static bool nobody_reads;

static void lose_stderr(void) {
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    close(ends[0]);
    CHECK_EQ(dup2(ends[1], 2), 2);
    signal(SIGPIPE, SIG_DFL);
}

static void use_what_is_lost(const struct use *use, enum loss how, int local) {
    live_open(&a, local);
    live_open(&b, local);
    struct rnic_qp *qb, *qa = joined(&qb);
    struct losable lost = losable(use->ours ? &a : &b, how);
    dprintf(2, "region 0x%x\n", lost.mr->lkey);
    if (use->opcode == RNIC_WR_SEND)
        receive_into(qb, use->ours ? b.mem : lost.at, use->ours ? b.mr->lkey : lost.mr->lkey);
    lose(how, lost);
    if (nobody_reads)
        lose_stderr();
    uint64_t before = arithmetic(true);
    if (use->ours)
        post(qa, use, lost.at, lost.mr->lkey, b.mem, b.mr->rkey);
    else
        post(qa, use, a.mem, a.mr->lkey, lost.at, lost.mr->rkey);
    CHECK_EQ(live_wait(&a).status, use->status);
    if (use->status == RNIC_WC_REM_OP_ERR)
        CHECK_EQ(live_wait(&b).status, RNIC_WC_LOC_PROT_ERR);
    if (use->event >= 0)
        while (event_of(&b) != use->event)
            ;
    if (!use->ours)
        CHECK_EQ(state_of(&b, qb), RNIC_QPS_ERR);
    CHECK_EQ(arithmetic(false), before);
    exchange(); /* the devices are as they were */
    CHECK_EQ((use->ours ? a : b).ops->dereg_mr(lost.mr, NULL), 0);
    _exit(check_done() ? 1 : DONE);
}

static const struct use *the_use;
static enum loss the_loss;
static int the_local;
static void run_use(void) { use_what_is_lost(the_use, the_loss, the_local); }

static int end_of(const struct use *use, enum loss how, int local, bool handles) {
    int out[2], status = -1;
    size_t n = 0;
    CHECK_EQ(pipe(out), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(out[1], 1);
        dup2(out[1], 2);
        start_plain(handles);
        the_use = use;
        the_loss = how;
        the_local = local;
        check_run(use->name, run_use);
        _exit(1);
    }
    close(out[1]);
    for (ssize_t more; (more = read(out[0], said + n, sizeof said - 1 - n)) > 0;)
        n += (size_t)more;
    said[n] = 0;
    close(out[0]);
    CHECK_EQ(waitpid(child, &status, 0), child);
    return status;
}

static void is_told(void) {
    unsigned key = 0;
    char name[32];
    const char *begins = strstr(said, "region 0x");
    CHECK(begins && sscanf(begins, "region 0x%x", &key) == 1);
    snprintf(name, sizeof name, "lkey 0x%x ", key);
    const char *line = strstr(said, "is gone or protected");
    CHECK(line && strstr(said, name) && strstr(said, "deregister a region before"));
    CHECK(!strstr(line + 1, "is gone or protected")); /* once */
}

static void every_use_of_lost_memory_fails(int local) {
    for (int i = 0; i < USES; i++) {
        for (enum loss how = UNMAPPED; how < LOSSES; how++) {
            int status = end_of(&uses[i], how, local, false);
            check_note("%s memory lost by way %d, local %d: status 0x%x, said %s", uses[i].name, how, local, status,
                       said);
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == DONE);
            is_told();
        }
    }
}

static void lost_memory_fails_requests_over_the_wire(void) { every_use_of_lost_memory_fails(-1); }
static void lost_memory_fails_requests_within_the_host(void) { every_use_of_lost_memory_fails(1); }

static void a_programs_own_handler_does_not_hear_of_it(void) {
    for (enum loss how = UNMAPPED; how <= READ_ONLY; how++) {
        int status = end_of(&uses[0], how, -1, true);
        check_note("way %d: said %s", how, said);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == DONE);
        is_told();
    }
}

static void a_line_that_nobody_reads_ends_nothing(void) {
    nobody_reads = true;
    int status = end_of(&uses[0], UNMAPPED, -1, false);
    nobody_reads = false;
    check_note("status 0x%x, said %s", status, said);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == DONE);
    CHECK(!strstr(said, "is gone or protected"));
}

/* How a child ends that does this, and what it has said. */
static int end_of_child(void (*does)(void)) {
    int out[2], status = -1;
    CHECK_EQ(pipe(out), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(out[1], 2);
        does();
        _exit(0);
    }
    close(out[1]);
    ssize_t n = read(out[0], said, sizeof said - 1);
    said[n < 0 ? 0 : n] = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    close(out[0]);
    return status;
}

static uint8_t *barred;

static void open_barrier(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    if ((uintptr_t)info->si_addr - (uintptr_t)barred >= BYTES || mprotect(barred, BYTES, PROT_READ | PROT_WRITE))
        _exit(MINE);
}

/* As collectors and checkpoints find out what is written: they make it read-only, and open it when it is. */
static void write_behind_barrier(void) {
    struct sigaction opens = {.sa_sigaction = open_barrier, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &opens, NULL);
    live_open(&a, -1);
    live_open(&b, -1);
    struct rnic_qp *qb, *qa = joined(&qb);
    struct losable m = losable(&b, UNMAPPED);
    barred = m.at;
    CHECK_EQ(mprotect(m.at, BYTES, PROT_READ), 0);
    post(qa, &uses[0], a.mem, a.mr->lkey, m.at, m.mr->rkey);
    CHECK_EQ(live_wait(&a).status, RNIC_WC_SUCCESS);
    _exit(DONE);
}

static void a_program_that_opens_memory_when_it_is_written_goes_on(void) {
    int status = end_of_child(write_behind_barrier);
    check_note("status 0x%x, said %s", status, said);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == DONE && !said[0]);
}

/* As Python's faulthandler: a line, and the one before has it. */
static struct sigaction before_reporter;

static void report(int number) {
    (void)!write(2, "reported\n", 9);
    sigaction(number, &before_reporter, NULL);
    raise(number);
}

static void set_reporter_between_devices(void) {
    struct sigaction plain = {.sa_handler = SIG_DFL}, reports = {.sa_handler = report, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &plain, NULL);
    live_open(&a, -1);
    sigaction(SIGSEGV, &reports, &before_reporter);
    live_open(&b, -1);
}

static void lose_behind_reporter(void) {
    set_reporter_between_devices();
    struct rnic_qp *qb, *qa = joined(&qb);
    struct losable m = losable(&b, PROTECTED);
    lose(PROTECTED, m);
    post(qa, &uses[0], a.mem, a.mr->lkey, m.at, m.mr->rkey);
    CHECK_EQ(live_wait(&a).status, RNIC_WC_REM_ACCESS_ERR);
    _exit(DONE);
}

static void fault_behind_reporter(void) {
    set_reporter_between_devices();
    *(volatile uint8_t *)mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) = 1;
}

static void a_handler_that_was_set_between_two_devices_changes_nothing(void) {
    int status = end_of_child(lose_behind_reporter);
    check_note("status 0x%x, said %s", status, said);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == DONE);
    status = end_of_child(fault_behind_reporter);
    check_note("status 0x%x, said %s", status, said);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(!strcmp(said, "reported\n"));
}

/* One that puts back what it has found, and lets the fault come again. */
static void report_and_return(int number) {
    static int times;
    if (times++ < 3)
        (void)!write(2, "reported\n", 9);
    if (times == 1000)
        _exit(MINE);
    sigaction(number, &before_reporter, NULL);
}

static void fault_behind_one_that_returns(void) {
    struct sigaction plain = {.sa_handler = SIG_DFL}, reports = {.sa_handler = report_and_return};
    sigaction(SIGSEGV, &plain, NULL);
    live_open(&a, -1);
    sigaction(SIGSEGV, &reports, &before_reporter);
    live_open(&b, -1);
    *(volatile uint8_t *)mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) = 1;
}

/* Nor one that calls what it has found. */
static void report_and_call(int number, siginfo_t *info, void *context) {
    static int times;
    if (times++ < 3)
        (void)!write(2, "reported\n", 9);
    if (times == 1000)
        _exit(MINE);
    before_reporter.sa_sigaction(number, info, context);
}

static void fault_behind_one_that_calls(void) {
    struct sigaction plain = {.sa_handler = SIG_DFL},
                     reports = {.sa_sigaction = report_and_call, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &plain, NULL);
    live_open(&a, -1);
    sigaction(SIGSEGV, &reports, &before_reporter);
    live_open(&b, -1);
    *(volatile uint8_t *)mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) = 1;
}

static void a_handler_between_two_devices_leads_to_what_was_before_it(void) {
    void (*const causes[])(void) = {fault_behind_one_that_returns, fault_behind_one_that_calls};
    for (int i = 0; i < 2; i++) {
        int status = end_of_child(causes[i]);
        check_note("status 0x%x, said %s", status, said);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV && !strcmp(said, "reported\n"));
    }
}

static sigjmp_buf landing;
static volatile int heard;

static void leave_a_fault(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    heard++;
    if (info->si_code > 0)
        siglongjmp(landing, 1);
}

static void a_handler_that_was_left_by_a_jump_hears_of_what_is_sent(void) {
    struct sigaction own = {.sa_sigaction = leave_a_fault, .sa_flags = SA_SIGINFO};
    pid_t child = fork();
    if (child == 0) {
        live_open(&a, -1);
        sigaction(SIGSEGV, &own, NULL);
        live_open(&b, -1);
        if (!sigsetjmp(landing, 1))
            *(volatile uint8_t *)mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) = 1;
        raise(SIGSEGV);
        _exit(heard == 2 ? MINE : 1);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == MINE);
}

static void touch_what_is_no_regions(void) {
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigaction(SIGSEGV, &plain, NULL);
    live_open(&a, 0);
    *(volatile uint8_t *)mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) = 1;
}

static void send_the_signal(void) {
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigaction(SIGSEGV, &plain, NULL);
    live_open(&a, 0);
    kill(getpid(), SIGSEGV);
}

static void any_other_fault_is_not_spoken_of(void) {
    static void (*const causes[])(void) = {touch_what_is_no_regions, send_the_signal};
    for (int i = 0; i < 2; i++) {
        int status = end_of_child(causes[i]);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV && !said[0]);
    }
}

static void leaving_handler(int number) {
    (void)number;
    siglongjmp(landing, 1);
}

/* As interpreters have it, whose handlers are left by a jump. */
static void a_handler_that_asked_for_no_mask_has_none(void) {
    struct sigaction own = {.sa_handler = leaving_handler, .sa_flags = SA_NODEFER};
    pid_t child = fork();
    if (child == 0) {
        sigaction(SIGSEGV, &own, NULL);
        live_open(&a, 0);
        uint8_t *none = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (volatile int i = 0; i < 3; i++)
            if (!sigsetjmp(landing, 0))
                *(volatile uint8_t *)none = 1;
        _exit(MINE);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == MINE);
}

int main(void) {
    live_isolate();
    RUN(lost_memory_fails_requests_over_the_wire);
    RUN(lost_memory_fails_requests_within_the_host);
    RUN(a_programs_own_handler_does_not_hear_of_it);
    RUN(a_line_that_nobody_reads_ends_nothing);
    RUN(a_program_that_opens_memory_when_it_is_written_goes_on);
    RUN(a_handler_that_was_set_between_two_devices_changes_nothing);
    RUN(a_handler_between_two_devices_leads_to_what_was_before_it);
    RUN(a_handler_that_was_left_by_a_jump_hears_of_what_is_sent);
    RUN(any_other_fault_is_not_spoken_of);
    RUN(a_handler_that_asked_for_no_mask_has_none);
    return check_done();
}
