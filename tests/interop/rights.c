/* SPDX-License-Identifier: Apache-2.0
 *
 * Registers what tests/c/mappings.h has, with each right, on the first device that there is, and says where the answer is
 * another one than the table's.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create, mkostemp */
#endif
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>

#include "mappings.h"

static void try_row(struct ibv_pd *pd, const struct row *row) {
    static const int rights[] = {0, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_LOCAL_WRITE,
                                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
    int fd = map_row(row);
    for (size_t i = 0; i < sizeof rights / sizeof *rights; i++) {
        struct ibv_mr *mr = ibv_reg_mr(pd, at + 7, PAGES * page - 7, rights[i]);
        int error = mr ? 0 : errno;
        bool good = rights[i] & IBV_ACCESS_LOCAL_WRITE ? row->can_be_written : row->can_be_read;
        if (error != (good ? 0 : EFAULT))
            printf("%s, access 0x%x: %d\n", row->name, rights[i], error);
        if (mr)
            CHECK_EQ(ibv_dereg_mr(mr), 0);
    }
    unmap_row(fd);
}

static void each_mapping_with_each_right(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = list && *list ? ibv_open_device(*list) : NULL;
    struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
    CHECK(pd);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        try_row(pd, &rows[i]);
    CHECK_EQ(ibv_dealloc_pd(pd), 0);
    ibv_close_device(context);
    ibv_free_device_list(list);
}

int main(void) {
    page = (size_t)sysconf(_SC_PAGESIZE);
    RUN(each_mapping_with_each_right);
    return check_done();
}
