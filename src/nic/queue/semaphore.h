/* SPDX-License-Identifier: Apache-2.0
 *
 * A descriptor that counts what waits to be taken, and can be polled until something does (eventfd(2), EFD_SEMAPHORE).
 * The C library's read() and write() are points of cancellation, which the locks that are held here do not allow.
 */
#ifndef RNIC_QUEUE_SEMAPHORE_H
#define RNIC_QUEUE_SEMAPHORE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline int semaphore_open(void) { return eventfd(0, EFD_SEMAPHORE | EFD_NONBLOCK | EFD_CLOEXEC); }

static inline void semaphore_raise(int fd) {
    uint64_t one = 1;
    if (syscall(SYS_write, fd, &one, sizeof one) < 0) /* full: 2^64 of them, which cannot be */
        return;
}

/* False: nothing waits. */
static inline bool semaphore_lower(int fd) {
    uint64_t one;
    return syscall(SYS_read, fd, &one, sizeof one) == sizeof one;
}

#endif
