/* SPDX-License-Identifier: Apache-2.0
 *
 * What the program's signal handlers want of a system call that they interrupt.  Linux goes on with a read(2) after a handler
 * with SA_RESTART, but with no poll(2): who polls in place of a read has to decide for itself.
 */
#ifndef RNIC_BASE_HANDLERS_H
#define RNIC_BASE_HANDLERS_H

#include <stdint.h>

enum handlers {
    HANDLERS_RESTART, /* all have SA_RESTART, or there are none: the call goes on */
    HANDLERS_END,     /* none has: it ends with EINTR */
    HANDLERS_DIFFER,  /* nobody can tell which one it was */
};

enum handlers handlers_now(void);
/* As they were a short time ago, at the most: 64 system calls are left out.  until: when it is time to look again, ns of
 * CLOCK_MONOTONIC; UINT64_MAX if they are as they are now. */
enum handlers handlers_lately(uint64_t *until);

#endif
