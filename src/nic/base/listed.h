/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists whose entries leave by themselves: the newest comes first.
 */
#ifndef RNIC_BASE_LISTED_H
#define RNIC_BASE_LISTED_H

#include <stddef.h>

struct listed {
    struct listed *next, **at;
};

/* What an entry is a member of. */
#define LISTED_IN(type, member, entry) ((type *)((char *)(entry)-offsetof(type, member)))

static inline void listed_enter(struct listed **first, struct listed *entry) {
    entry->next = *first;
    entry->at = first;
    if (*first)
        (*first)->at = &entry->next;
    *first = entry;
}

static inline void listed_leave(struct listed *entry) {
    *entry->at = entry->next;
    if (entry->next)
        entry->next->at = entry->at;
}

#endif
