/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of `rnic run`. A program that it has started has no RDMA-CM without it, and nobody waits for it any more. So it
 * gets SIGHUP, as a program does whose terminal is closed: also when `rnic run` was killed, and could do nothing.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "preload.h"

/* The process number in the folder's name, "rnic-run-NUMBER-..."; -1: it has none. (0 is a parent of another PID namespace.) */
static pid_t maker_of(const char *folder) {
    static const char prefix[] = "/rnic-run-";
    const char *name = strrchr(folder, '/');
    return name && !strncmp(name, prefix, sizeof prefix - 1) ? (pid_t)strtol(name + sizeof prefix - 1, NULL, 10) : -1;
}

/* Only a child of `rnic run` itself: what it starts is its own affair, as with a terminal. */
__attribute__((constructor)) static void end_with_parent(void) {
    const char *folder = run_folder();
    pid_t parent = getppid();
    if (!folder || maker_of(folder) != parent)
        return;
    prctl(PR_SET_PDEATHSIG, SIGHUP);
    if (getppid() != parent) /* it has ended meanwhile */
        raise(SIGHUP);
}
