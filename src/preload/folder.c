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
    char room[room_for(path)];
    return NEXT(opendir)(redirected(path, room, sizeof room));
}

#define SCANDIR(name, type)                                                                                            \
    EXPORT int name(const char *path, struct type ***list, int (*choose)(const struct type *),                         \
                    int (*compare)(const struct type **, const struct type **)) {                                      \
        char room[room_for(path)];                                                                                     \
        return NEXT(name)(redirected(path, room, sizeof room), list, choose, compare);                                              \
    }
SCANDIR(scandir, dirent)
#ifdef __GLIBC__
SCANDIR(scandir64, dirent64)

#define SCANDIRAT(name, type)                                                                                          \
    EXPORT int name(int dirfd, const char *path, struct type ***list, int (*choose)(const struct type *),              \
                    int (*compare)(const struct type **, const struct type **)) {                                      \
        char room[room_for(path)];                                                                                     \
        return NEXT(name)(dirfd, redirected_at(dirfd, path, room, sizeof room), list, choose, compare);                                       \
    }
SCANDIRAT(scandirat, dirent)
SCANDIRAT(scandirat64, dirent64)
#endif

EXPORT ssize_t readlink(const char *path, char *buf, size_t length) {
    char room[room_for(path)];
    return NEXT(readlink)(redirected(path, room, sizeof room), buf, length);
}

EXPORT ssize_t readlinkat(int dirfd, const char *path, char *buf, size_t length) {
    char room[room_for(path)];
    return NEXT(readlinkat)(dirfd, redirected_at(dirfd, path, room, sizeof room), buf, length);
}

#ifdef __GLIBC__
EXPORT ssize_t __readlink_chk(const char *path, char *buf, size_t length, size_t size) {
    char room[room_for(path)];
    return NEXT(__readlink_chk)(redirected(path, room, sizeof room), buf, length, size);
}

EXPORT ssize_t __readlinkat_chk(int dirfd, const char *path, char *buf, size_t length, size_t size) {
    char room[room_for(path)];
    return NEXT(__readlinkat_chk)(dirfd, redirected_at(dirfd, path, room, sizeof room), buf, length, size);
}
#endif

EXPORT char *realpath(const char *path, char *resolved) {
    char room[room_for(path)];
    return NEXT(realpath)(redirected(path, room, sizeof room), resolved);
}

#ifdef __GLIBC__
EXPORT char *__realpath_chk(const char *path, char *resolved, size_t size) {
    char room[room_for(path)];
    return NEXT(__realpath_chk)(redirected(path, room, sizeof room), resolved, size);
}

EXPORT char *canonicalize_file_name(const char *path) {
    char room[room_for(path)];
    return NEXT(canonicalize_file_name)(redirected(path, room, sizeof room));
}
#endif

EXPORT int chdir(const char *path) {
    char room[room_for(path)];
    return NEXT(chdir)(redirected(path, room, sizeof room));
}

#define GETXATTR(name)                                                                                                 \
    EXPORT ssize_t name(const char *path, const char *attribute, void *value, size_t size) {                           \
        char room[room_for(path)];                                                                                     \
        return NEXT(name)(redirected(path, room, sizeof room), attribute, value, size);                                             \
    }
GETXATTR(getxattr)
GETXATTR(lgetxattr)

#define LISTXATTR(name)                                                                                                \
    EXPORT ssize_t name(const char *path, char *list, size_t size) {                                                   \
        char room[room_for(path)];                                                                                     \
        return NEXT(name)(redirected(path, room, sizeof room), list, size);                                                         \
    }
LISTXATTR(listxattr)
LISTXATTR(llistxattr)
