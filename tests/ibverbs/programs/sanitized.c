/* SPDX-License-Identifier: Apache-2.0
 *
 * sanitized.c: registers memory in whole pages.  With an argument it forgets what cannot be registered.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* posix_memalign() */
#endif
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdlib.h>

enum { N = 8, BYTES = 8192 };

static void **pages[N]; /* the first word of each points to memory that is no leak while they are there */

static bool fill(struct ibv_pd *pd, int i) {
    if (posix_memalign((void **)&pages[i], 4096, BYTES))
        exit(3);
    pages[i][0] = malloc(1);
    struct ibv_mr *mr = ibv_reg_mr(pd, pages[i], BYTES, IBV_ACCESS_LOCAL_WRITE);
    return mr && !ibv_dereg_mr(mr);
}

int main(int argc, char **argv) {
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context = ibv_open_device(devices[0]);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    bool good = true;
    for (int i = 0; i < N; i++) {
        if (!fill(pd, i)) {
            good = false;
            if (argc > 1 && argv[1])
                pages[i] = NULL;
        }
    }
    if (ibv_dealloc_pd(pd) || ibv_close_device(context))
        return 3;
    ibv_free_device_list(devices);
    return !good;
}
