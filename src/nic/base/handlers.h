/* SPDX-License-Identifier: Apache-2.0
 *
 * What the program's signal handlers want of a system call that they interrupt.  Linux goes on with a read(2) after a handler
 * with SA_RESTART, but with no poll(2): who polls in place of a read has to decide for itself.
 */
#ifndef RNIC_BASE_HANDLERS_H
#define RNIC_BASE_HANDLERS_H

enum handlers {
    HANDLERS_RESTART, /* all have SA_RESTART, or there are none: the call goes on */
    HANDLERS_END,     /* none has: it ends with EINTR */
    HANDLERS_DIFFER,  /* nobody can tell which one it was */
};

enum handlers handlers_now(void);
enum handlers handlers_lately(void); /* as they were a short time ago, at the most: 64 system calls are left out */

#endif
