/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that read folders, symbolic links and, as ls(1) does, extended attributes.
 */
#include <dirent.h>
#include <stdlib.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "preload.h"

#ifdef __GLIBC__
/* What a program calls that was compiled with _FORTIFY_SOURCE. */
ssize_t __readlink_chk(const char *path, char *buf, size_t length, size_t room);
ssize_t __readlinkat_chk(int dirfd, const char *path, char *buf, size_t length, size_t room);
char *__realpath_chk(const char *path, char *resolved, size_t room);
#endif

EXPORT DIR *opendir(const char *path) {
    char room[PATH_MAX];
    return NEXT(opendir)(redirected(path, room));
}

#define SCANDIR(name, type)                                                                                            \
    EXPORT int name(const char *path, struct type ***list, int (*choose)(const struct type *),                         \
                    int (*compare)(const struct type **, const struct type **)) {                                      \
        char room[PATH_MAX];                                                                                           \
        return NEXT(name)(redirected(path, room), list, choose, compare);                                              \
    }
SCANDIR(scandir, dirent)
#ifdef __GLIBC__
SCANDIR(scandir64, dirent64)

#define SCANDIRAT(name, type)                                                                                          \
    EXPORT int name(int dirfd, const char *path, struct type ***list, int (*choose)(const struct type *),              \
                    int (*compare)(const struct type **, const struct type **)) {                                      \
        char room[PATH_MAX];                                                                                           \
        return NEXT(name)(dirfd, redirected(path, room), list, choose, compare);                                       \
    }
SCANDIRAT(scandirat, dirent)
SCANDIRAT(scandirat64, dirent64)
#endif

EXPORT ssize_t readlink(const char *path, char *buf, size_t length) {
    char room[PATH_MAX];
    return NEXT(readlink)(redirected(path, room), buf, length);
}

EXPORT ssize_t readlinkat(int dirfd, const char *path, char *buf, size_t length) {
    char room[PATH_MAX];
    return NEXT(readlinkat)(dirfd, redirected(path, room), buf, length);
}

#ifdef __GLIBC__
EXPORT ssize_t __readlink_chk(const char *path, char *buf, size_t length, size_t size) {
    char room[PATH_MAX];
    return NEXT(__readlink_chk)(redirected(path, room), buf, length, size);
}

EXPORT ssize_t __readlinkat_chk(int dirfd, const char *path, char *buf, size_t length, size_t size) {
    char room[PATH_MAX];
    return NEXT(__readlinkat_chk)(dirfd, redirected(path, room), buf, length, size);
}
#endif

EXPORT char *realpath(const char *path, char *resolved) {
    char room[PATH_MAX];
    return NEXT(realpath)(redirected(path, room), resolved);
}

#ifdef __GLIBC__
EXPORT char *__realpath_chk(const char *path, char *resolved, size_t size) {
    char room[PATH_MAX];
    return NEXT(__realpath_chk)(redirected(path, room), resolved, size);
}

EXPORT char *canonicalize_file_name(const char *path) {
    char room[PATH_MAX];
    return NEXT(canonicalize_file_name)(redirected(path, room));
}
#endif

EXPORT int chdir(const char *path) {
    char room[PATH_MAX];
    return NEXT(chdir)(redirected(path, room));
}

#define GETXATTR(name)                                                                                                 \
    EXPORT ssize_t name(const char *path, const char *attribute, void *value, size_t size) {                           \
        char room[PATH_MAX];                                                                                           \
        return NEXT(name)(redirected(path, room), attribute, value, size);                                             \
    }
GETXATTR(getxattr)
GETXATTR(lgetxattr)

#define LISTXATTR(name)                                                                                                \
    EXPORT ssize_t name(const char *path, char *list, size_t size) {                                                   \
        char room[PATH_MAX];                                                                                           \
        return NEXT(name)(redirected(path, room), list, size);                                                         \
    }
LISTXATTR(listxattr)
LISTXATTR(llistxattr)
