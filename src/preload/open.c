/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that open files.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>

#include "preload.h"

#ifdef __GLIBC__
/* What a program calls that was compiled with _FORTIFY_SOURCE: there is no mode. */
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int dirfd, const char *path, int flags);
int __openat64_2(int dirfd, const char *path, int flags);
#endif

/* The mode is there only if a file can be made. */
#define MODE_OF(flags)                                                                                                 \
    ({                                                                                                                 \
        mode_t mode_ = 0;                                                                                              \
        if ((flags) & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) {                                                        \
            va_list list_;                                                                                             \
            va_start(list_, flags);                                                                                    \
            mode_ = va_arg(list_, mode_t);                                                                             \
            va_end(list_);                                                                                             \
        }                                                                                                              \
        mode_;                                                                                                         \
    })

#define OPEN(name)                                                                                                     \
    EXPORT int name(const char *path, int flags, ...) {                                                                \
        char room[room_for(path)];                                                                                     \
        mode_t mode = MODE_OF(flags);                                                                                  \
        const char *where = redirected(path, room, sizeof room); \
        return is_ucma_path(where) ? ucma_open(flags) : NEXT(name)(where, flags, mode);                \
    }
#define OPENAT(name)                                                                                                   \
    EXPORT int name(int dirfd, const char *path, int flags, ...) {                                                     \
        char room[room_for(path)];                                                                                     \
        mode_t mode = MODE_OF(flags);                                                                                  \
        const char *where = redirected_at(dirfd, path, room, sizeof room); \
        return is_ucma_path(where) ? ucma_open(flags) : NEXT(name)(dirfd, where, flags, mode);         \
    }
#define OPEN_2(name)                                                                                                   \
    EXPORT int name(const char *path, int flags) {                                                                     \
        char room[room_for(path)];                                                                                     \
        const char *where = redirected(path, room, sizeof room); \
        return is_ucma_path(where) ? ucma_open(flags) : NEXT(name)(where, flags);                      \
    }
#define OPENAT_2(name)                                                                                                 \
    EXPORT int name(int dirfd, const char *path, int flags) {                                                          \
        char room[room_for(path)];                                                                                     \
        const char *where = redirected_at(dirfd, path, room, sizeof room); \
        return is_ucma_path(where) ? ucma_open(flags) : NEXT(name)(dirfd, where, flags);               \
    }

OPEN(open)
OPENAT(openat)
#ifdef __GLIBC__
OPEN(open64)
OPENAT(openat64)
OPEN_2(__open_2)
OPEN_2(__open64_2)
OPENAT_2(__openat_2)
OPENAT_2(__openat64_2)
#endif

EXPORT FILE *freopen(const char *path, const char *mode, FILE *file) {
    char room[room_for(path)];
    return NEXT(freopen)(redirected(path, room, sizeof room), mode, file);
}

EXPORT FILE *fopen(const char *path, const char *mode) {
    char room[room_for(path)];
    return NEXT(fopen)(redirected(path, room, sizeof room), mode);
}

#ifdef __GLIBC__
EXPORT FILE *freopen64(const char *path, const char *mode, FILE *file) {
    char room[room_for(path)];
    return NEXT(freopen64)(redirected(path, room, sizeof room), mode, file);
}

EXPORT FILE *fopen64(const char *path, const char *mode) {
    char room[room_for(path)];
    return NEXT(fopen64)(redirected(path, room, sizeof room), mode);
}
#endif
