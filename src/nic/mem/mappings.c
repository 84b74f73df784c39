/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/mappings.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A line of /proc/self/maps; false: it is none. */
static bool parse(const char *line, struct mapping *m) {
    int at = 0;
    (void)sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*s %*s %*s %n", &m->start, &m->end, m->perms, &at);
    if (!at) /* not all that stands ahead of it was there */
        return false;
    snprintf(m->path, sizeof m->path, "%s", line + at);
    m->path[strcspn(m->path, "\n")] = 0;
    return true;
}

bool mappings_check(const void *addr, uint64_t length, mapping_check *check, const char **why, uint64_t *at) {
    uint64_t end = (uintptr_t)addr + length;
    struct mapping m;
    char line[4352];
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps)
        return false;
    *at = (uintptr_t)addr;
    *why = "is not mapped";
    while (*at < end && fgets(line, sizeof line, maps)) { /* in the order of addresses */
        if (!parse(line, &m) || m.end <= *at)
            continue;
        *why = m.start > *at ? "is not mapped" : check(&m);
        if (*why)
            break;
        *at = m.end;
        *why = "is not mapped"; /* unless the next one begins there */
    }
    fclose(maps);
    if (*at >= end)
        *why = NULL;
    return true;
}
