/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that wait for descriptors, and are interrupted by signals as in read(2): after a handler with SA_RESTART the kernel
 * goes on with the wait, and after another one it ends.  For poll(2) a kernel does not do that, but for a futex(2) without
 * a limit it does.
 */
#ifndef RNIC_QUEUE_SLEEPERS_H
#define RNIC_QUEUE_SLEEPERS_H

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLEEPERS_SOME 1u /* in the word: somebody sleeps, or did; above it a count, by which a sleeper knows a change */

typedef _Atomic uint32_t sleepers; /* zeros to begin with */

static inline long sleepers_futex(sleepers *word, int how, uint32_t value) {
    return syscall(SYS_futex, word, how | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

/* For who has just made one of the descriptors readable. */
static inline void sleepers_wake(sleepers *word) {
    uint32_t seen = atomic_load(word);
    if (seen & SLEEPERS_SOME && atomic_compare_exchange_strong(word, &seen, seen + 1))
        sleepers_futex(word, FUTEX_WAKE, INT_MAX);
}

/* Until one of the descriptors may be readable: 0, look again; or -EINTR.  A point of cancellation, as read(2) is. */
static inline int sleepers_wait(sleepers *word, struct pollfd *fds, nfds_t n) {
    uint32_t seen = atomic_fetch_or(word, SLEEPERS_SOME) | SLEEPERS_SOME;
    int type, ready = poll(fds, n, 0);
    if (ready)
        return 0;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
    long rc = sleepers_futex(word, FUTEX_WAIT, seen);
    int why = rc < 0 ? errno : 0;
    pthread_setcanceltype(type, NULL);
    return why == EINTR ? -EINTR : 0;
}

#endif
