/* SPDX-License-Identifier: Apache-2.0
 *
 * A process forks while it closes a device: the child can open and close devices of its own.
 *
 * The provider's function that closes is replaced by one that forks, so that all is held that is held meanwhile.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "lib.h"

#define PATIENCE 60 /* seconds that only a hang takes */

static const struct rnic_ops *real;

static struct ibv_context *open_first(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
    ibv_free_device_list(list);
    return context;
}

static int open_and_close(void) {
    struct ibv_context *own = open_first();
    return own ? ibv_close_device(own) : -1;
}

static int fork_and_close_all(struct rnic_context *ctx, struct rnic_err *err) {
    int status;
    pid_t child = fork();
    if (!child) {
        alarm(PATIENCE);
        _exit(open_and_close() != 0);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    return real->close_all(ctx, err);
}

static void test_a_child_that_is_forked_meanwhile_opens_and_closes(void) {
    static struct rnic_ops forks;
    struct ibv_context *context = open_first();
    CHECK(context);
    real = context_of(context)->ops;
    forks = *real;
    forks.close_all = fork_and_close_all;
    context_of(context)->ops = &forks;
    CHECK_EQ(ibv_close_device(context), 0);
}

int main(void) {
    RUN(test_a_child_that_is_forked_meanwhile_opens_and_closes);
    return check_done();
}
