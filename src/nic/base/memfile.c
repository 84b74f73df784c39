/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memfile.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

bool memfile_is_sound(int fd, uint64_t bytes) {
    struct statfs fs;
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) && fstatfs(fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC &&
           fstat(fd, &st) == 0 && (uint64_t)st.st_size >= bytes;
}

bool memfile_extend(int fd, uint64_t bytes) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) {
        errno = EFBIG;
        return false;
    }
    return ftruncate(fd, (off_t)bytes) == 0;
}
