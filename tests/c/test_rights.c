/* SPDX-License-Identifier: Apache-2.0
 *
 * Which memory can be registered with which right: as a kernel answers (mappings.h).
 *
 * One answer differs on purpose: a newer kernel does not pin a file of a disk for writing, and here it can be made persistent.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* RTLD_NEXT */
#endif
#include <dlfcn.h>
#include <errno.h>

#include "mappings.h"
#include "verbs/verbs.h"

static bool no_populate; /* as before Linux 5.14 */

int madvise(void *from, size_t bytes, int advice) {
    static int (*next)(void *, size_t, int);
    if (!next)
        next = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "madvise");
    errno = EINVAL;
    return no_populate && (advice == 22 || advice == 23) ? -1 : next(from, bytes, advice);
}

static void try_row(const struct row *row) {
    static const uint32_t rights[] = {0, RNIC_ACCESS_REMOTE_READ, RNIC_ACCESS_LOCAL_WRITE,
                                      RNIC_ACCESS_LOCAL_WRITE | RNIC_ACCESS_REMOTE_WRITE};
    int fd = map_row(row);
    for (size_t i = 0; i < sizeof rights / sizeof *rights; i++) {
        struct rnic_err err = {0};
        bool writes = rights[i] & RNIC_ACCESS_LOCAL_WRITE;
        int expected = (writes ? row->can_be_written : row->can_be_read) ? 0 : -EFAULT;
        check_note("%s, access 0x%x%s: %s", row->name, rights[i], no_populate ? ", an old kernel" : "", err.text);
        CHECK_EQ(check_mapped(at + 7, PAGES * page - 7, rights[i], &err), expected);
        CHECK_EQ(err.text[0] != 0, expected != 0);
    }
    unmap_row(fd);
}

static void memory_is_registered_as_by_a_kernel(void) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        try_row(&rows[i]);
}

/* Without the kernel's help, whether a file is short enough is not seen. */
static void an_old_kernel_is_asked_for_the_mappings(void) {
    no_populate = true;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].damage != SHORT_FILE)
            try_row(&rows[i]);
    no_populate = false;
}

static void huge_pages_that_there_are_not_are_refused(void) {
    size_t bytes = 2u << 20;
    at = mmap(NULL, bytes, WRITES, ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return; /* this system knows none */
    int rc = check_mapped(at, bytes, RNIC_ACCESS_LOCAL_WRITE, NULL);
    CHECK(rc == 0 || rc == -EFAULT);
    if (!rc)
        at[bytes - 1] = 1;
    munmap(at, bytes);
}

int main(void) {
    page = (size_t)sysconf(_SC_PAGESIZE);
    RUN(memory_is_registered_as_by_a_kernel);
    RUN(an_old_kernel_is_asked_for_the_mappings);
    RUN(huge_pages_that_there_are_not_are_refused);
    return check_done();
}
