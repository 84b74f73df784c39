/* SPDX-License-Identifier: Apache-2.0
 *
 * Signal handlers of the program: do they want an interrupted system call to go on?  Linux goes on with a read(2) after a handler
 * with SA_RESTART, but with no poll(2). A function that polls in place of a read has to decide for itself.
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
/* The handlers as they were at most 100 ms ago, which saves 64 system calls.  until: when it is time to look again, ns of
 * CLOCK_MONOTONIC; UINT64_MAX if the answer is new. */
enum handlers handlers_lately(uint64_t *until);

#endif
