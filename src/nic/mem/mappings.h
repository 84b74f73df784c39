/* SPDX-License-Identifier: Apache-2.0
 *
 * What the system says of the process' own memory: /proc/self/maps.
 */
#ifndef RNIC_MEM_MAPPINGS_H
#define RNIC_MEM_MAPPINGS_H

#include <stdbool.h>
#include <stdint.h>

struct mapping {
    uint64_t start, end;
    char perms[5], path[4096];
};

/* What is wrong with a mapping, as "is private memory"; NULL: nothing. */
typedef const char *mapping_check(const struct mapping *m);

/* The same of a range, "is not mapped" included; *at: where.  False: nobody can tell. */
bool mappings_check(const void *addr, uint64_t length, mapping_check *check, const char **why, uint64_t *at);

#endif
