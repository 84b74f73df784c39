/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose process is it that the kernel tells of (SO_PEERCRED, SCM_CREDENTIALS)?  A user namespace may not map all users: the
 * others are all shown as one, the overflow uid (user_namespaces(7)), which may be our own number as well.
 */
#ifndef RNIC_LINK_USER_H
#define RNIC_LINK_USER_H

#include <stdbool.h>
#include <sys/types.h>

/* Does the number stand for one user, and not for all that are not mapped here? */
bool user_is_one(uid_t uid);
/* Is that our user, as whom this process acts altogether? */
bool user_is_ours(uid_t uid);
/* Would the kernel let other processes of our user look into this one (PR_SET_DUMPABLE, ptrace(2))? */
bool user_may_look(void);

#endif
