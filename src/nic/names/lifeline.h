/* SPDX-License-Identifier: Apache-2.0
 *
 * How one process learns that another has died: the owner of a name also listens on a unix stream socket, "\0life/<name>",
 * and whoever wants to know connects to it.  Nothing is ever said there: when the owner gives the name up or dies, the
 * kernel hangs up.  The connection is to that owner, so whoever takes the name afterwards is not mistaken for it; and
 * one that is stopped, or busy, does not hang up.
 */
#ifndef RNIC_LINK_LIFELINE_H
#define RNIC_LINK_LIFELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/allowance.h"
#include "names/abstract.h"

#define LIFELINE_CALLS 128 /* of other users that are answered at once; then one in each of these times: */
#define LIFELINE_CALL_NS 2000000ull
#define LIFELINE_STRANGERS 64 /* watchers of other users that are taken in, a descriptor each; the others wait outside */

struct watcher {
    int fd; /* our end of its connection */
    bool stranger;
};

struct lifeline {
    int fd; /* listens; -1: there is none */
    struct watcher *held;
    uint32_t count, room;
    uint32_t strangers; /* of them other users' */
    uint64_t sweep_at;  /* ns: those who have gone are looked for again then */
    struct allowance calls;
};

/* 0 or -errno: -EADDRINUSE when somebody has it. */
int lifeline_open(struct lifeline *l, const struct abstract_name *of);
void lifeline_close(struct lifeline *l);

/* Takes in those who watch, some at a time, and lets go of those who have gone, now and then.  False when no more are taken in (no
 * descriptors, or too many of other users): the kernel's queue holds the next ones just as well, and to look again at once would be
 * in vain. */
bool lifeline_accept(struct lifeline *l, uint64_t now);

/* A descriptor that hangs up (POLLHUP) when the owner of the name goes, or -errno: -ECONNREFUSED when there is none. */
int lifeline_watch(const struct abstract_name *of);

#endif
