/* SPDX-License-Identifier: Apache-2.0 */
#include "names/user.h"

#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#define OVERFLOW 65534u /* unless the administrator has changed it */

static unsigned overflow_uid(void) {
    unsigned uid;
    FILE *f = fopen("/proc/sys/kernel/overflowuid", "re");
    if (!f || fscanf(f, "%u", &uid) != 1)
        uid = OVERFLOW;
    if (f)
        fclose(f);
    return uid;
}

/* As in the initial user namespace: there is nobody else. */
static bool all_are_mapped(void) {
    unsigned inside, outside, count;
    FILE *f = fopen("/proc/self/uid_map", "re");
    bool all = f && fscanf(f, "%u %u %u", &inside, &outside, &count) == 3 && !inside && count == UINT32_MAX;
    if (f)
        fclose(f);
    return all;
}

bool user_is_one(uid_t uid) { return (uid != OVERFLOW && uid != overflow_uid()) || all_are_mapped(); }

bool user_is_ours(uid_t uid) { return uid == geteuid() && getuid() == geteuid() && user_is_one(uid); }

bool user_may_look(void) { return prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 1; }
