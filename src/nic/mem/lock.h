/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that is kept from being swapped (mlock(2)), counted: the kernel does not, so that the end of one region would
 * let go the pages of another one that has them too.
 */
#ifndef RNIC_MEM_LOCK_H
#define RNIC_MEM_LOCK_H

#include "nic.h"

struct lock {
    uintptr_t from, to; /* whole pages; from == to: nothing */
    struct lock *next;  /* of the process */
};

/* 0, or -ENOMEM or -EPERM with the cure in words. */
int lock_memory(struct lock *lock, const void *addr, uint64_t length, struct rnic_err *err);
void unlock_memory(struct lock *lock);
void lock_forget_all(void); /* in a forked child, which has none */

#endif
