/* SPDX-License-Identifier: Apache-2.0
 *
 * The matching list of a tag matching SRQ (ibv_post_srq_ops(3); rdma-core, Documentation/tag_matching.md): receives that
 * wait for a message with their tag, in the order in which they were added.
 *
 * Messages that match nothing are the program's to match, and it may add a receive while one is on its way to it.  So
 * both count them, and a receive that is added while the counts differ matches nothing until the program has reported
 * the device's count.
 *
 * Everything here runs under the device's lock.
 */
#ifndef RNIC_QUEUE_TAG_H
#define RNIC_QUEUE_TAG_H

#include "nic.h"

enum tag_state {
    TAG_FREE,
    TAG_WAITING, /* for the counts to agree */
    TAG_LIVE,    /* in the list */
    TAG_TAKEN,   /* by a message, whose data may still come */
};

struct tag_entry {
    uint64_t tag, mask;           /* a message matches if its tag & mask is tag */
    uint64_t wr_id;               /* of the receive */
    uint64_t length;              /* of all elements */
    uint32_t handle, order, next; /* next: of the free ones */
    int state;                    /* enum tag_state */
    int num_sge;
    struct rnic_sge *sge;
    const void *of; /* taken: the queue pair that took it */
};

struct tag_list {
    struct tag_entry *entry;
    struct rnic_sge *sges;
    uint32_t max_tags, max_sge, max_ops;
    uint32_t used;       /* entries that are not free */
    uint32_t added;      /* so far: the order */
    uint32_t index_bits; /* of a handle; the rest counts how often the entry has been used */
    uint32_t first,
        last;            /* free entries, the longest free one first: no handle comes again before all 2^32 have been */
    uint32_t unexpected; /* messages that matched nothing */
    uint32_t reported;   /* how many of them the program has seen */
};

int tag_list_init(struct tag_list *list, uint32_t max_tags, uint32_t max_sge, uint32_t max_ops);
void tag_list_free(struct tag_list *list);

/* NULL: the list is full. */
struct tag_entry *tag_add(struct tag_list *list, const struct rnic_ops_wr *wr);
/* False: it is not there any more: a message has taken it, or it was deleted. */
bool tag_delete(struct tag_list *list, uint32_t handle);
/* The program has seen so many messages that matched nothing. */
void tag_report(struct tag_list *list, uint32_t count);
static inline bool tag_in_step(const struct tag_list *list) { return list->reported == list->unexpected; }

/* The oldest that a message with this tag matches; NULL: none does. */
struct tag_entry *tag_match(struct tag_list *list, uint64_t tag);
void tag_take(struct tag_entry *entry, const void *of);
void tag_release(struct tag_list *list, struct tag_entry *entry);
void tag_forget(struct tag_list *list, const void *of); /* releases all that it took */

#endif
