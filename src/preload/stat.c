/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that ask what a file is.  Of RDMA-CM's device file, which is a socket in truth, they say what they say of its
 * path in the tree: a character device with the numbers of /dev/null.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "preload.h"

#ifdef __GLIBC__
/* What programs of older versions of glibc call. */
int __xstat(int version, const char *path, struct stat *buf);
int __xstat64(int version, const char *path, struct stat64 *buf);
int __lxstat(int version, const char *path, struct stat *buf);
int __lxstat64(int version, const char *path, struct stat64 *buf);
int __fxstat(int version, int fd, struct stat *buf);
int __fxstat64(int version, int fd, struct stat64 *buf);
int __fxstatat(int version, int dirfd, const char *path, struct stat *buf, int flags);
int __fxstatat64(int version, int dirfd, const char *path, struct stat64 *buf, int flags);
#endif

#define NULL_MAJOR 1
#define NULL_MINOR 3
#define DEVICE_MODE (S_IFCHR | 0666)

#define AS_DEVICE(rc, fd, buf)                                                                                         \
    ({                                                                                                                 \
        int rc_ = (rc);                                                                                                \
        if (!rc_ && S_ISSOCK((buf)->st_mode) && is_ucma(fd)) {                                                         \
            (buf)->st_mode = DEVICE_MODE;                                                                              \
            (buf)->st_rdev = makedev(NULL_MAJOR, NULL_MINOR);                                                          \
        }                                                                                                              \
        rc_;                                                                                                           \
    })

#define STAT(name, type)                                                                                               \
    EXPORT int name(const char *path, struct type *buf) {                                                              \
        char room[room_for(path)];                                                                                     \
        return NEXT(name)(redirected(path, room, sizeof room), buf);                                                                \
    }
#define XSTAT(name, type)                                                                                              \
    EXPORT int name(int version, const char *path, struct type *buf) {                                                 \
        char room[room_for(path)];                                                                                     \
        return NEXT(name)(version, redirected(path, room, sizeof room), buf);                                                       \
    }
#define FSTAT(name, type)                                                                                              \
    EXPORT int name(int fd, struct type *buf) { return AS_DEVICE(NEXT(name)(fd, buf), fd, buf); }
#define FXSTAT(name, type)                                                                                             \
    EXPORT int name(int version, int fd, struct type *buf) { return AS_DEVICE(NEXT(name)(version, fd, buf), fd, buf); }
#define FSTATAT(name, type)                                                                                            \
    EXPORT int name(int dirfd, const char *path, struct type *buf, int flags) {                                        \
        char room[room_for(path)];                                                                                     \
        return AS_DEVICE(NEXT(name)(dirfd, redirected_at(dirfd, path, room, sizeof room), buf, flags), dirfd, buf);                           \
    }
#define FXSTATAT(name, type)                                                                                           \
    EXPORT int name(int version, int dirfd, const char *path, struct type *buf, int flags) {                           \
        char room[room_for(path)];                                                                                     \
        return AS_DEVICE(NEXT(name)(version, dirfd, redirected_at(dirfd, path, room, sizeof room), buf, flags), dirfd, buf);                  \
    }

STAT(stat, stat)
STAT(lstat, stat)
FSTAT(fstat, stat)
FSTATAT(fstatat, stat)
#ifdef __GLIBC__
STAT(stat64, stat64)
STAT(lstat64, stat64)
FSTAT(fstat64, stat64)
FSTATAT(fstatat64, stat64)
XSTAT(__xstat, stat)
XSTAT(__xstat64, stat64)
XSTAT(__lxstat, stat)
XSTAT(__lxstat64, stat64)
FXSTAT(__fxstat, stat)
FXSTAT(__fxstat64, stat64)
FXSTATAT(__fxstatat, stat)
FXSTATAT(__fxstatat64, stat64)
#endif

#ifdef STATX_TYPE /* musl has it since 1.2.5 */
EXPORT int statx(int dirfd, const char *path, int flags, unsigned mask, struct statx *buf) {
    char room[room_for(path)];
    int rc = NEXT(statx)(dirfd, redirected_at(dirfd, path, room, sizeof room), flags, mask, buf);
    if (!rc && S_ISSOCK(buf->stx_mode) && is_ucma(dirfd)) {
        buf->stx_mode = DEVICE_MODE;
        buf->stx_rdev_major = NULL_MAJOR;
        buf->stx_rdev_minor = NULL_MINOR;
    }
    return rc;
}
#endif

/* ---------------------------------------------------------------- rights */

EXPORT int access(const char *path, int mode) {
    char room[room_for(path)];
    return NEXT(access)(redirected(path, room, sizeof room), mode);
}

EXPORT int euidaccess(const char *path, int mode) {
    char room[room_for(path)];
    return NEXT(euidaccess)(redirected(path, room, sizeof room), mode);
}

EXPORT int eaccess(const char *path, int mode) {
    char room[room_for(path)];
    return NEXT(eaccess)(redirected(path, room, sizeof room), mode);
}

EXPORT int faccessat(int dirfd, const char *path, int mode, int flags) {
    char room[room_for(path)];
    return NEXT(faccessat)(dirfd, redirected_at(dirfd, path, room, sizeof room), mode, flags);
}
