/* SPDX-License-Identifier: Apache-2.0
 *
 * dev/fork.c: a child has no descriptor of what other threads ask or open just then.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
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

int main(void) {
    RUN(a_child_beside_one_that_lists_devices);
    RUN(a_child_beside_one_that_opens_and_closes);
    RUN(a_child_after_a_thread_that_was_to_be_cancelled_meanwhile);
    return check_done();
}
