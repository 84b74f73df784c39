/* SPDX-License-Identifier: Apache-2.0 */
#include "queue/tag.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void set_free(struct tag_list *list, uint32_t i) {
    list->entry[i].state = TAG_FREE;
    list->entry[i].next = list->max_tags; /* the end */
    if (list->first == list->max_tags)
        list->first = i;
    else
        list->entry[list->last].next = i;
    list->last = i;
}

int tag_list_init(struct tag_list *list, uint32_t max_tags, uint32_t max_sge, uint32_t max_ops) {
    *list = (struct tag_list){.max_tags = max_tags, .max_sge = max_sge, .max_ops = max_ops};
    list->entry = calloc(max_tags, sizeof *list->entry);
    list->sges = calloc((size_t)max_tags * max_sge, sizeof *list->sges);
    while (1u << list->index_bits < max_tags)
        list->index_bits++;
    list->first = max_tags;
    for (uint32_t i = 0; list->entry && i < max_tags; i++) {
        list->entry[i].sge = list->sges + (size_t)i * max_sge;
        list->entry[i].handle = i;
        set_free(list, i);
    }
    if (list->entry && list->sges)
        return 0;
    tag_list_free(list);
    return -ENOMEM;
}

void tag_list_free(struct tag_list *list) {
    free(list->entry);
    free(list->sges);
    *list = (struct tag_list){0};
}

struct tag_entry *tag_add(struct tag_list *list, const struct rnic_ops_wr *wr) {
    struct tag_entry *e = list->first < list->max_tags ? &list->entry[list->first] : NULL;
    if (!e)
        return NULL;
    list->first = e->next;
    *e = (struct tag_entry){.tag = wr->tm.add.tag,
                            .mask = wr->tm.add.mask,
                            .wr_id = wr->tm.add.recv_wr_id,
                            .handle = e->handle + (1u << list->index_bits),
                            .order = list->added++,
                            .state = tag_in_step(list) ? TAG_LIVE : TAG_WAITING,
                            .num_sge = wr->tm.add.num_sge,
                            .sge = e->sge};
    for (int i = 0; i < e->num_sge; i++) {
        e->sge[i] = wr->tm.add.sg_list[i];
        e->length += e->sge[i].length;
    }
    list->used++;
    return e;
}

bool tag_delete(struct tag_list *list, uint32_t handle) {
    uint32_t i = handle & ((1u << list->index_bits) - 1);
    struct tag_entry *e = i < list->max_tags ? &list->entry[i] : NULL;
    if (!e || e->handle != handle || (e->state != TAG_LIVE && e->state != TAG_WAITING))
        return false;
    tag_release(list, e);
    return true;
}

void tag_report(struct tag_list *list, uint32_t count) {
    list->reported = count;
    for (uint32_t i = 0; tag_in_step(list) && i < list->max_tags; i++) {
        if (list->entry[i].state == TAG_WAITING)
            list->entry[i].state = TAG_LIVE;
    }
}

struct tag_entry *tag_match(struct tag_list *list, uint64_t tag) {
    struct tag_entry *first = NULL;
    for (uint32_t i = 0, seen = 0; i < list->max_tags && seen < list->used; i++) {
        struct tag_entry *e = &list->entry[i];
        seen += e->state != TAG_FREE;
        if (e->state != TAG_LIVE || (tag & e->mask) != e->tag)
            continue;
        if (!first || (int32_t)(e->order - first->order) < 0)
            first = e;
    }
    return first;
}

void tag_take(struct tag_entry *entry, const void *of) {
    entry->state = TAG_TAKEN;
    entry->of = of;
}

void tag_release(struct tag_list *list, struct tag_entry *entry) {
    entry->of = NULL;
    list->used--;
    set_free(list, (uint32_t)(entry - list->entry));
}

void tag_forget(struct tag_list *list, const void *of) {
    for (uint32_t i = 0; i < list->max_tags; i++) {
        if (list->entry[i].state == TAG_TAKEN && list->entry[i].of == of)
            tag_release(list, &list->entry[i]);
    }
}
