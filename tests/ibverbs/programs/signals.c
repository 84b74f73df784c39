/* SPDX-License-Identifier: Apache-2.0
 *
 * signals.c DEVICE: who waits for an event goes on after signals whose handlers ask for it (SA_RESTART), as in read(2), and
 * ends with EINTR after one whose handler does not, also one that takes itself away.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* struct sigaction */
#endif
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MANY = 10, MOST = 2000 };

#define NEED(what)                                                                                                     \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("line %d: %s: %s\n", __LINE__, #what, strerror(errno));                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static pthread_t waits;
static volatile int handled, has_ended;
static void (*volatile leaves)(int); /* what a handler makes of its signal, or NULL */
static int flags_of_last;

static void handler(int number) {
    if (leaves)
        signal(number, leaves);
    handled++;
}

static void handle(int number, int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    NEED(!sigaction(number, &action, NULL));
}

static void nap(void) {
    const struct timespec ms = {.tv_nsec = 1000000};
    nanosleep(&ms, NULL);
}

static void interrupt(int number) {
    nap();
    NEED(!pthread_kill(waits, number));
}

static void *interrupts(void *arg) {
    for (int i = 0; i < MANY; i++)
        interrupt(SIGUSR1);
    while (handled < MANY && !has_ended)
        interrupt(SIGUSR1);
    NEED(!has_ended);
    handle(SIGUSR2, 0);
    while (!has_ended)
        interrupt(SIGUSR2);
    return arg;
}

/* A signal that comes before the wait is handled, and interrupts nothing: so there are some. */
static void *interrupts_once(void *arg) {
    for (int i = 0; i < MOST && !has_ended; i++) {
        int before = handled;
        handle(SIGUSR1, flags_of_last);
        interrupt(SIGUSR1);
        while (handled == before)
            sched_yield();
    }
    for (int i = 0; i < MOST && !has_ended; i++)
        nap();
    NEED(has_ended);
    return arg;
}

static int get_cq_event(struct ibv_context *context) {
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    struct ibv_cq *cq;
    void *anything;
    NEED(channel);
    int rc = ibv_get_cq_event(channel, &cq, &anything), why = errno;
    NEED(!ibv_destroy_comp_channel(channel));
    errno = why;
    return rc;
}

static int get_async_event(struct ibv_context *context) {
    struct ibv_async_event event;
    return ibv_get_async_event(context, &event);
}

static void is_interrupted(struct ibv_context *context, int (*get)(struct ibv_context *)) {
    pthread_t thread;
    handled = has_ended = 0;
    signal(SIGUSR2, SIG_IGN);
    handle(SIGUSR1, SA_RESTART);
    NEED(!pthread_create(&thread, NULL, interrupts, NULL));
    NEED(get(context) == -1 && errno == EINTR);
    has_ended = 1;
    NEED(!pthread_join(thread, NULL));
}

static void *ends_the_wait(void *arg) {
    for (int i = 0; i < MANY; i++)
        interrupt(SIGUSR1);
    while (handled < MANY && !has_ended)
        interrupt(SIGUSR1);
    NEED(!has_ended); /* by a handler that asked to go on */
    while (!has_ended)
        interrupt(SIGUSR2);
    return arg;
}

/* The program has both kinds of handlers before it waits. */
static void is_interrupted_by_one_of_two(struct ibv_context *context, int (*get)(struct ibv_context *)) {
    pthread_t thread;
    handled = has_ended = 0;
    handle(SIGUSR1, SA_RESTART);
    handle(SIGUSR2, 0);
    NEED(!pthread_create(&thread, NULL, ends_the_wait, NULL));
    NEED(get(context) == -1 && errno == EINTR);
    has_ended = 1;
    NEED(!pthread_join(thread, NULL));
}

static void is_interrupted_once(struct ibv_context *context, int (*get)(struct ibv_context *), void (*then)(int),
                                int flags) {
    pthread_t thread;
    handled = has_ended = 0;
    leaves = then;
    flags_of_last = flags;
    signal(SIGUSR2, SIG_IGN);
    NEED(!pthread_create(&thread, NULL, interrupts_once, NULL));
    NEED(get(context) == -1 && errno == EINTR);
    has_ended = 1;
    NEED(!pthread_join(thread, NULL));
    leaves = NULL;
}

static void is_interrupted_by_all(struct ibv_context *context, int (*get)(struct ibv_context *)) {
    is_interrupted(context, get);
    is_interrupted_by_one_of_two(context, get);
    is_interrupted_once(context, get, SIG_DFL, 0);
    is_interrupted_once(context, get, SIG_IGN, 0);
    is_interrupted_once(context, get, NULL, (int)SA_RESETHAND);
}

/* A program's handler of faults, as crash reporters have it, and none: nobody's waits end by them. */
static void waits_go_on_behind_faults(void) {
    struct sigaction bus;
    NEED(!sigaction(SIGBUS, NULL, &bus));
    NEED(bus.sa_handler == SIG_DFL || bus.sa_flags & SA_RESTART);
}

int main(int argc, char **argv) {
    handle(SIGSEGV, 0);
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = NULL;
    NEED(argc == 2 && list);
    for (int i = 0; list[i]; i++)
        if (!strcmp(ibv_get_device_name(list[i]), argv[1]))
            context = ibv_open_device(list[i]);
    ibv_free_device_list(list);
    NEED(context);
    waits_go_on_behind_faults();
    waits = pthread_self();
    is_interrupted_by_all(context, get_cq_event);
    is_interrupted_by_all(context, get_async_event);
    return ibv_close_device(context);
}
