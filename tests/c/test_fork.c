/* SPDX-License-Identifier: Apache-2.0
 *
 * dev/fork.c: a child has no descriptor of what other threads ask or open just then; a handler of a signal may fork at any
 * moment.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* RTLD_NEXT */
#endif
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "dev/dev.h"
#include "live.h"
#include "nic.h"

#define CHILDREN 300

static atomic_bool done;

static void *list_devices(void *unused) {
    struct rnic_device_info some[4];
    while (!atomic_load(&done))
        CHECK(rnic_soft.list(some, 4, NULL) >= 1);
    return unused;
}

static void *open_and_close(void *unused) {
    while (!atomic_load(&done)) {
        struct rnic_context *ctx;
        CHECK_EQ(rnic_soft.open("roce_lo", NULL, &ctx, NULL), 0);
        CHECK_EQ(ctx->ops->close(ctx, NULL), 0);
    }
    return unused;
}

static void fork_beside(void *(*work)(void *)) {
    int before = check_descriptors();
    pthread_t thread;
    atomic_store(&done, false);
    CHECK_EQ(pthread_create(&thread, NULL, work, NULL), 0);
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        pid_t child = fork();
        if (child == 0)
            _exit(check_descriptors());
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK(WIFEXITED(status));
        CHECK_EQ(WEXITSTATUS(status), before);
    }
    atomic_store(&done, true);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(check_descriptors(), before);
}

static void a_child_beside_one_that_lists_devices(void) { fork_beside(list_devices); }

static void a_child_beside_one_that_opens_and_closes(void) { fork_beside(open_and_close); }

static void *list_cancelled(void *arg) {
    struct rnic_device_info some[4];
    CHECK_EQ(pthread_cancel(pthread_self()), 0);
    CHECK(rnic_soft.list(some, 4, NULL) >= 1);
    return arg;
}

/* Fork waits for who lists or opens devices. */
static void a_child_after_a_thread_that_was_to_be_cancelled_meanwhile(void) {
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, list_cancelled, &done), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    CHECK_EQ(waitpid(child, NULL, 0), child);
}

/* ---------------------------------------------------------------- a child amid what fork waits for */

static atomic_bool keeps, lets;

static void *keep_out(void *unused) {
    int state = fork_keep_out();
    atomic_store(&keeps, true);
    for (int i = 0; i < 50; i++) /* time for a fork that does not wait */
        live_nap();
    atomic_store(&lets, true);
    fork_let_in(state);
    return unused;
}

static void *fork_meanwhile(void *unused) {
    int status;
    while (!atomic_load(&keeps))
        live_nap();
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    if (waitpid(child, &status, 0) != child || !atomic_load(&lets))
        _exit(1);
    return unused;
}

/* In the child of a handler that has interrupted such a thread, and that goes on. */
static void forks_of_its_own_wait(int state) {
    pthread_t keeper, forker;
    fork_let_in(state);
    CHECK_EQ(pthread_create(&keeper, NULL, keep_out, NULL), 0);
    CHECK_EQ(pthread_create(&forker, NULL, fork_meanwhile, NULL), 0);
    CHECK_EQ(pthread_join(keeper, NULL), 0);
    CHECK_EQ(pthread_join(forker, NULL), 0);
    _exit(0);
}

static void a_child_that_keeps_out_itself_goes_on(void) {
    int status, state = fork_keep_out();
    pid_t child = fork();
    if (child == 0)
        forks_of_its_own_wait(state);
    fork_let_in(state);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The heap's own lock, which a thread that forks takes as well. */
static pthread_mutex_t heap = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t both;
static atomic_bool plain; /* a thread forks that does nothing else */

void rnic_heap_before_fork(void) { CHECK_EQ(pthread_mutex_lock(&heap), 0); }

void rnic_heap_after_fork(void) { CHECK_EQ(pthread_mutex_unlock(&heap), 0); }

static void heap_in_child(void) { pthread_mutex_init(&heap, NULL); }

static void fork_once(void) {
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    CHECK_EQ(waitpid(child, &status, 0), child);
}

static void *fork_plainly(void *unused) {
    atomic_store(&plain, true);
    fork_once();
    return unused;
}

/* As a handler that has interrupted a thread which opens a device. */
static void a_thread_that_keeps_out_forks_while_another_one_waits_for_it(void) {
    for (int i = 0; i < 20; i++) {
        pthread_t forker;
        int state = fork_keep_out();
        atomic_store(&plain, false);
        CHECK_EQ(pthread_create(&forker, NULL, fork_plainly, NULL), 0);
        while (!atomic_load(&plain))
            live_nap();
        live_nap(); /* it waits by now, mostly */
        fork_once();
        fork_let_in(state);
        CHECK_EQ(pthread_join(forker, NULL), 0);
    }
}

static void *keep_out_and_fork(void *unused) {
    int state = fork_keep_out();
    pthread_barrier_wait(&both);
    fork_once();
    fork_let_in(state);
    return unused;
}

static void two_threads_that_keep_out_fork(void) {
    pthread_t of[2];
    CHECK_EQ(pthread_barrier_init(&both, NULL, 2), 0);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&of[i], NULL, keep_out_and_fork, NULL), 0);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_join(of[i], NULL), 0);
    CHECK_EQ(pthread_barrier_destroy(&both), 0);
}

/* ---------------------------------------------------------------- in a handler of a signal */

static struct live a, b;
static struct rnic_qp *qa, *qb;
static volatile int forks; /* so far */
static volatile sig_atomic_t
    calls_left; /* to functions of the lock, ahead of one that a signal comes behind; 0: none comes */
static pthread_t interrupted;

static void fork_here(int number) {
    int status = -1;
    pid_t child = fork();
    if (child == 0)
        _exit(7);
    if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7)
        forks++;
    if (number == SIGALRM) /* again, at some moment */
        setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_usec = 1 + forks * 7919 % 2000}, NULL);
}

static void count_call(void) {
    if (calls_left && pthread_equal(pthread_self(), interrupted) && !--calls_left)
        CHECK_EQ(raise(SIGUSR1), 0);
}

/* What the device calls to take and to give its lock: a signal comes when it has it, and has not noted that yet, or when it
 * has noted that it gives it. */
int pthread_mutex_trylock(pthread_mutex_t *mutex) {
    static int (*next)(pthread_mutex_t *);
    if (!next)
        next = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_trylock");
    int rc = next(mutex);
    count_call();
    return rc;
}

int pthread_mutex_unlock(pthread_mutex_t *mutex) {
    static int (*next)(pthread_mutex_t *);
    count_call();
    if (!next)
        next = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_unlock");
    return next(mutex);
}

static void begin(void) {
    struct sigaction forking = {.sa_handler = fork_here, .sa_flags = SA_RESTART};
    interrupted = pthread_self();
    forks = 0;
    CHECK_EQ(sigaction(SIGALRM, &forking, NULL) | sigaction(SIGUSR1, &forking, NULL), 0);
    live_open(&a, 1);
    live_open(&b, 1);
    qa = live_qp(&a);
    qb = live_qp(&b);
    live_join(&a, qa, &b, qb, 18, 7);
}

static void end(void) {
    CHECK_EQ(a.ops->destroy_qp(qa, NULL) | b.ops->destroy_qp(qb, NULL), 0);
    live_close(&a);
    live_close(&b);
}

static void write_once(void) {
    live_post(&a, qa, RNIC_WR_RDMA_WRITE, 1, 0, 64, &b);
    CHECK_EQ(live_wait(&a).status, RNIC_WC_SUCCESS);
}

static void a_handler_forks_wherever_a_thread_has_the_lock(void) {
    enum { CALLS = 60 };
    begin();
    for (int i = 1; i <= CALLS; i++) {
        check_note("call %d", i);
        calls_left = i;
        while (calls_left)
            write_once();
    }
    CHECK_EQ(forks, CALLS);
    end();
}

static void a_handler_forks_while_its_thread_opens_a_device(void) {
    enum { CALLS = 40 };
    begin();
    for (int i = 1; i <= CALLS; i++) {
        check_note("call %d", i);
        calls_left = i;
        while (calls_left) {
            struct rnic_context *ctx;
            CHECK_EQ(rnic_soft.open("roce_lo", NULL, &ctx, NULL), 0);
            CHECK_EQ(ctx->ops->close(ctx, NULL), 0);
        }
    }
    CHECK_EQ(forks, CALLS);
    write_once();
    end();
}

static void a_handler_forks_at_any_moment_of_traffic(void) {
    begin();
    CHECK_EQ(setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_usec = 500}, NULL), 0);
    while (forks < 30) /* each of which takes long under the sanitizers */
        write_once();
    signal(SIGALRM, SIG_IGN);
    write_once();
    end();
}

int main(void) {
    CHECK_EQ(pthread_atfork(NULL, NULL, heap_in_child), 0);
    live_isolate();
    RUN(a_child_beside_one_that_lists_devices);
    RUN(a_child_beside_one_that_opens_and_closes);
    RUN(a_child_after_a_thread_that_was_to_be_cancelled_meanwhile);
    RUN(a_child_that_keeps_out_itself_goes_on);
    RUN(a_thread_that_keeps_out_forks_while_another_one_waits_for_it);
    RUN(two_threads_that_keep_out_fork);
    RUN(a_handler_forks_wherever_a_thread_has_the_lock);
    RUN(a_handler_forks_while_its_thread_opens_a_device);
    RUN(a_handler_forks_at_any_moment_of_traffic);
    return check_done();
}
