/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that has opened a device, and a child that uses it for the first time after the fork: a context of its own works,
 * its parent's is an error and no trap, and the parent goes on.
 */
#include <sys/wait.h>

#define main in_one_process
#include "newer.c"
#undef main

static int in_child(struct ibv_context *of_parent, int argc, char **argv) {
    CHECK(!ibv_alloc_pd(of_parent) && errno);
    return in_one_process(argc, argv);
}

int main(int argc, char **argv) {
    int status;
    CHECK(argc == 2 && !ibv_fork_init());
    CHECK(ibv_is_fork_initialized() != IBV_FORK_DISABLED);
    struct ibv_context *context = open_named(argv[1]);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child)
        exit(in_child(context, argc, argv));
    CHECK(waitpid(child, &status, 0) == child && !status);
    CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
    return in_one_process(argc, argv);
}
