/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions on descriptors: write(), and those that copy one.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <unistd.h>

#include "preload.h"

EXPORT ssize_t write(int fd, const void *buf, size_t count) {
    return is_ucma(fd) ? ucma_write(fd, buf, count) : NEXT(write)(fd, buf, count);
}

/* A copy of a device file is one. */
static int copied(int from, int to) {
    if (to >= 0 && is_ucma(from))
        ucma_mark(to);
    return to;
}

EXPORT int dup(int fd) { return copied(fd, NEXT(dup)(fd)); }

EXPORT int dup2(int fd, int to) { return copied(fd, NEXT(dup2)(fd, to)); }

EXPORT int dup3(int fd, int to, int flags) { return copied(fd, NEXT(dup3)(fd, to, flags)); }

/* The third argument is a number or a pointer, or is not there: it is passed on as libc itself takes it. */
#define FCNTL(name)                                                                                                    \
    EXPORT int name(int fd, int command, ...) {                                                                        \
        va_list list;                                                                                                  \
        va_start(list, command);                                                                                       \
        void *arg = va_arg(list, void *);                                                                              \
        va_end(list);                                                                                                  \
        int rc = NEXT(name)(fd, command, arg);                                                                         \
        return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? copied(fd, rc) : rc;                                 \
    }

FCNTL(fcntl)
FCNTL(fcntl64)
