/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/lock.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/fail.h"

/* Locks are the process', whichever device asks for them; so is this list. */
static struct lock *locks;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

static int refused(int error, uint64_t length, struct rnic_err *err) {
    struct rlimit limit = {0};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (error != ENOMEM && error != EPERM && error != EAGAIN)
        return fail(err, -error, "the memory cannot be locked: %s", strerror(error));
    return fail(err, -ENOMEM,
                "%llu bytes cannot be locked, this process may lock %llu in all: raise the limit (ulimit -l, "
                "LimitMEMLOCK= of systemd, or CAP_IPC_LOCK), or register without lock",
                (unsigned long long)length, (unsigned long long)limit.rlim_cur);
}

int lock_memory(struct lock *lock, const void *addr, uint64_t length, struct rnic_err *err) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)addr & ~(page - 1);
    uintptr_t to = ((uintptr_t)addr + length + page - 1) & ~(page - 1);
    pthread_mutex_lock(&guard);
    int error = mlock((const void *)from, to - from) ? errno : 0;
    *lock = (struct lock){from, to, locks};
    locks = lock;
    pthread_mutex_unlock(&guard);
    if (!error)
        return 0;
    unlock_memory(lock); /* of a range that cannot be locked whole a part may be */
    return refused(error, length, err);
}

/* Where the locks that cover `at` end; `at` itself: none does. */
static uintptr_t held_until(uintptr_t at) {
    uintptr_t end = at;
    for (const struct lock *l = locks; l; l = l->next)
        end = l->from <= at && l->to > end ? l->to : end;
    return end;
}

static uintptr_t next_lock(uintptr_t at, uintptr_t end) {
    for (const struct lock *l = locks; l; l = l->next)
        end = l->from > at && l->from < end ? l->from : end;
    return end;
}

void unlock_memory(struct lock *lock) {
    pthread_mutex_lock(&guard);
    struct lock **in = &locks;
    while (*in && *in != lock)
        in = &(*in)->next;
    if (*in) {
        *in = lock->next;
        for (uintptr_t at = lock->from; at < lock->to;) {
            uintptr_t held = held_until(at), next = held > at ? held : next_lock(at, lock->to);
            if (held == at)
                munlock((const void *)at, next - at);
            at = next;
        }
        *lock = (struct lock){0};
    }
    pthread_mutex_unlock(&guard);
}

void lock_forget_all(void) {
    locks = NULL;
    pthread_mutex_init(&guard, NULL);
}
