/* SPDX-License-Identifier: Apache-2.0
 *
 * driving.c DEVICE: ibv_get_cq_event() beside signals and pthread_cancel() is as read(2), which goes through the same: with
 * handlers of one kind alone, SA_RESTART or not, of both kinds, and of one that takes itself away.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* struct sigaction, gettid() */
#endif
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MANY = 10, MOST = 60000, ASLEEP = 5, LATELY = 200 /* ms; handlers are known by then */ };

#define NEED(what)                                                                                                     \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("%s, line %d: %s: %s\n", way->name, __LINE__, #what, strerror(errno));                              \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static int pipe_of[2];

/* ---------------------------------------------------------------- what is waited for: an event, or a byte */

struct way {
    const char *name;
    int (*wait)(void); /* 0; -1: errno */
    void (*come)(void);
};

static const struct way *way;

static int wait_for_event(void) {
    struct ibv_cq *found;
    void *anything;
    int rc = ibv_get_cq_event(channel, &found, &anything);
    if (!rc)
        ibv_ack_cq_events(found, 1);
    return rc;
}

/* A receive that is flushed. */
static void event_comes(void) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    struct ibv_recv_wr wr = {.wr_id = 1}, *bad;
    struct ibv_wc wc;
    NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1};
    NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    while (ibv_poll_cq(cq, 1, &wc) > 0)
        ;
    NEED(!ibv_post_recv(qp, &wr, &bad) && !ibv_req_notify_cq(cq, 0));
    attr.qp_state = IBV_QPS_ERR;
    NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

static int wait_for_byte(void) {
    char byte;
    return read(pipe_of[0], &byte, 1) == 1 ? 0 : -1;
}

static void byte_comes(void) { NEED(write(pipe_of[1], "", 1) == 1); }

static const struct way ways[] = {{"read", wait_for_byte, byte_comes}, {"get_cq_event", wait_for_event, event_comes}};

/* ---------------------------------------------------------------- a thread that waits */

static pthread_t thread;
static volatile pid_t number;
static volatile int handled, ended, rc, why;
static void (*volatile leaves)(int); /* what a handler makes of its signal, or NULL */

static void handler(int sig) {
    if (leaves)
        signal(sig, leaves);
    __atomic_fetch_add(&handled, 1, __ATOMIC_SEQ_CST);
}

static void handle(int sig, int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    NEED(!sigaction(sig, &action, NULL));
}

static void nap(void) {
    const struct timespec ms = {.tv_nsec = 1000000};
    nanosleep(&ms, NULL);
}

static void *waits(void *arg) {
    number = (pid_t)syscall(SYS_gettid);
    rc = way->wait();
    why = errno;
    __atomic_store_n(&ended, 1, __ATOMIC_SEQ_CST);
    return arg;
}

static int sleeps(void) {
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", number);
    FILE *stat = fopen(path, "r");
    if (stat && !fgets(text, sizeof text, stat))
        text[0] = 0;
    if (stat)
        fclose(stat);
    const char *state = strrchr(text, ')');
    return state && state[2] == 'S';
}

/* For some looks in a row: it is not a lock that it waits for. */
static void until_it_sleeps(void) {
    for (int in_a_row = 0, i = 0; in_a_row < ASLEEP && !ended; in_a_row = number && sleeps() ? in_a_row + 1 : 0, i++) {
        NEED(i < MOST);
        nap();
    }
}

static void start(void) {
    handled = ended = rc = why = number = 0;
    NEED(!pthread_create(&thread, NULL, waits, NULL));
    for (int i = 0; i < LATELY; i++)
        nap();
    until_it_sleeps();
}

static void send(int sig) {
    int before = handled;
    until_it_sleeps();
    NEED(!ended && !pthread_kill(thread, sig));
    for (int i = 0; handled == before; i++) {
        NEED(i < MOST);
        nap();
    }
}

static void join(void) {
    for (int i = 0; !ended; i++) {
        NEED(i < MOST);
        nap();
    }
    NEED(!pthread_join(thread, NULL));
}

static void ends_by_what_comes(void) {
    until_it_sleeps();
    NEED(!ended);
    way->come();
    join();
    NEED(rc == 0);
}

static void ends_by_the_signal(void) {
    join();
    errno = why;
    NEED(rc == -1 && why == EINTR);
}

/* ---------------------------------------------------------------- signals */

static void goes_on(void) {
    handle(SIGUSR1, SA_RESTART);
    start();
    for (int i = 0; i < MANY; i++)
        send(SIGUSR1);
    ends_by_what_comes();
}

static void ends(void) {
    handle(SIGUSR1, 0);
    start();
    send(SIGUSR1);
    ends_by_the_signal();
}

static void one_of_two_ends(void) {
    handle(SIGUSR1, SA_RESTART);
    handle(SIGUSR2, 0);
    start();
    for (int i = 0; i < MANY; i++)
        send(SIGUSR1);
    NEED(!ended);
    send(SIGUSR2);
    ends_by_the_signal();
    signal(SIGUSR2, SIG_DFL);
}

static void ends_once(void (*then)(int), int flags) {
    leaves = then;
    handle(SIGUSR1, flags);
    start();
    send(SIGUSR1);
    ends_by_the_signal();
    leaves = NULL;
}

static void goes_on_once(void (*then)(int), int flags) {
    leaves = then;
    handle(SIGUSR1, SA_RESTART | flags);
    start();
    send(SIGUSR1);
    ends_by_what_comes();
    leaves = NULL;
}

static void comes_meanwhile(void) {
    signal(SIGUSR1, SIG_DFL);
    start();
    handle(SIGUSR1, 0);
    send(SIGUSR1);
    ends_by_the_signal();
}

/* It becomes another one while the thread waits.  Who has mistakes explained is not told of that for two seconds. */
static void handlers_change(void) {
    const char *explained = getenv("RNIC_VERBS_DEBUG");
    if (explained && !strcmp(explained, "1"))
        return;
    handle(SIGUSR1, 0);
    start();
    handle(SIGUSR1, SA_RESTART);
    send(SIGUSR1);
    until_it_sleeps();
    NEED(!ended);
    handle(SIGUSR1, 0);
    send(SIGUSR1);
    ends_by_the_signal();
}

static void stops_and_goes_on(void) {
    signal(SIGUSR1, SIG_IGN);
    start();
    NEED(!pthread_kill(thread, SIGUSR1));
    pid_t child = fork();
    if (!child) {
        nap();
        kill(getppid(), SIGCONT);
        _exit(0);
    }
    NEED(child > 0 && !raise(SIGSTOP));
    ends_by_what_comes();
}

/* ---------------------------------------------------------------- cancellation */

static void is_cancelled(void) {
    void *result;
    start();
    NEED(!pthread_cancel(thread) && !pthread_join(thread, &result) && result == PTHREAD_CANCELED);
    start(); /* another one takes its place */
    ends_by_what_comes();
}

/* ---------------------------------------------------------------- all */

static void all(void) {
    goes_on();
    ends();
    one_of_two_ends();
    ends_once(SIG_DFL, 0);
    ends_once(SIG_IGN, 0);
    ends_once(NULL, (int)SA_RESETHAND);
    goes_on_once(SIG_DFL, 0);
    goes_on_once(NULL, (int)SA_RESETHAND);
    comes_meanwhile();
    handlers_change();
    stops_and_goes_on();
    is_cancelled();
    handle(SIGUSR1, SA_RESTART);
    is_cancelled();
}

static void open_all(const char *device) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    NEED(list);
    for (int i = 0; list[i]; i++)
        if (!strcmp(ibv_get_device_name(list[i]), device))
            context = ibv_open_device(list[i]);
    ibv_free_device_list(list);
    NEED(context && (pd = ibv_alloc_pd(context)) && (channel = ibv_create_comp_channel(context)));
    NEED(cq = ibv_create_cq(context, 16, NULL, channel, 0));
    struct ibv_qp_init_attr init = {.send_cq = cq,
                                    .recv_cq = cq,
                                    .cap = {.max_send_wr = 1, .max_recv_wr = 4, .max_recv_sge = 1},
                                    .qp_type = IBV_QPT_RC};
    NEED(qp = ibv_create_qp(pd, &init));
    NEED(!pipe(pipe_of));
}

int main(int argc, char **argv) {
    way = ways;
    NEED(argc == 2);
    open_all(argv[1]);
    for (way = ways; way < ways + 2; way++)
        all();
    way = ways;
    NEED(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd));
    return ibv_close_device(context);
}
