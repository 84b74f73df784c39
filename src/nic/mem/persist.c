/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/persist.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/fail.h"
#include "mem/mappings.h"

/* Files that live in memory: what is written to them is gone with the power. A file that has no name any more has none
 * by which its bytes could be found again. */
static bool is_on_disk(const char *path) {
    struct stat st;
    struct statfs fs;
    if (path[0] != '/' || stat(path, &st) || !S_ISREG(st.st_mode) || statfs(path, &fs))
        return false;
    return fs.f_type != TMPFS_MAGIC && fs.f_type != RAMFS_MAGIC && fs.f_type != HUGETLBFS_MAGIC;
}

static const char *obstacle(const struct mapping *m) {
    if (m->perms[3] != 's')
        return "is private memory";
    return is_on_disk(m->path) ? NULL : "is not a file's on a disk";
}

int mem_can_persist(const void *addr, uint64_t length, struct rnic_err *err) {
    const char *why;
    uint64_t at;
    if (!mappings_check(addr, length, obstacle, &why, &at))
        return fail(err, -EOPNOTSUPP, "FLUSH_PERSISTENT: /proc/self/maps, which says what memory is, cannot be read");
    if (!why)
        return 0;
    return fail(err, -EOPNOTSUPP,
                "FLUSH_PERSISTENT: the memory at 0x%" PRIx64
                " %s; map a file of a disk with MAP_SHARED and register that",
                at, why);
}

int mem_flush(uint8_t *at, uint64_t length, uint32_t type) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (!(type & RNIC_FLUSH_PERSISTENT) || !length)
        return 0;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)at & ~(page - 1);
    return msync((void *)from, (uintptr_t)at + length - from, MS_SYNC) ? -errno : 0;
}
