/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/mw.h"

#include <errno.h>
#include <stddef.h>

#define REMOTE_CHANGES (RNIC_ACCESS_REMOTE_WRITE | RNIC_ACCESS_REMOTE_ATOMIC)

/* ---------------------------------------------------------------- lists */

static void enter(struct mw **head, struct mw *mw, enum mw_list which) {
    mw->link[which].next = *head;
    mw->link[which].at = head;
    if (*head)
        (*head)->link[which].at = &mw->link[which].next;
    *head = mw;
}

static void leave(struct mw *mw, enum mw_list which) {
    struct mw *next = mw->link[which].next;
    *mw->link[which].at = next;
    if (next)
        next->link[which].at = mw->link[which].at;
}

/* ---------------------------------------------------------------- the object */

int mw_insert(struct mr_table *t, struct mw *mw) {
    if (t->windows >= MW_MAX)
        return -ENOMEM;
    t->windows++;
    mw->entry.window = mw;
    mw->entry.pub.pd = &mw->nobodys;
    int rc = mr_insert(t, &mw->entry);
    if (rc)
        t->windows--;
    mw->pub.rkey = mw->entry.pub.rkey;
    return rc;
}

void mw_remove(struct mr_table *t, struct mw *mw) {
    mw_unbind(mw);
    mr_remove(t, &mw->entry);
    t->windows--;
}

/* ---------------------------------------------------------------- bind, unbind (IBA 10.6.7.2) */

static void hide(struct mr *entry) {
    entry->pub.iova = entry->pub.length = entry->shift = 0;
    entry->access = 0;
    entry->kind = MR_PLAIN;
}

void mw_unbind(struct mw *mw) {
    if (!mw->mr)
        return;
    leave(mw, OF_REGION);
    if (mw->qp)
        leave(mw, OF_QP);
    mw->mr = NULL;
    mw->qp = NULL;
    hide(&mw->entry);
}

void mw_unbind_all(struct mw **list) {
    while (*list)
        mw_unbind(*list);
}

/* Does the region take a window like that? 0, or enum rnic_vendor_err. */
static int check_region(const struct mr *mr, const struct mw *mw, const struct mw_binding *b) {
    if (!mr || mr->window)
        return RNIC_VE_BIND_REGION;
    if (!mr_same_pd(mr->pub.pd, mw->pub.pd)) /* C10-72 */
        return RNIC_VE_BIND_PD;
    if (!(mr->access & RNIC_ACCESS_MW_BIND)) /* C10-73 */
        return RNIC_VE_BIND_ACCESS;
    if ((b->access & REMOTE_CHANGES) && !(mr->access & RNIC_ACCESS_LOCAL_WRITE)) /* C10-74 */
        return RNIC_VE_BIND_ACCESS;
    if ((b->access & RNIC_ACCESS_REMOTE_ATOMIC) && (mr->kind == MR_DMABUF || mr->kind == MR_NULL))
        return RNIC_VE_BIND_ACCESS;                                       /* nothing can be done to it at once */
    return mr_in_range(mr, b->addr, b->length) ? 0 : RNIC_VE_BIND_BOUNDS; /* C10-75 */
}

/* A window of type 2 is bound once, and free again when it has been invalidated (o10-37.2.30, o10-37.2.40). */
static int check_window(const struct mw *mw, const struct rnic_qp *qp, const struct mw_binding *b) {
    if (!mw)
        return RNIC_VE_WINDOW_GONE;
    if (!mr_same_pd(mw->pub.pd, qp->pd))
        return RNIC_VE_BIND_PD;
    if (mw->pub.type == RNIC_MW_TYPE_1)
        return 0;
    if (mw->mr)
        return RNIC_VE_WINDOW_BOUND;
    return b->length ? 0 : RNIC_VE_BIND_BOUNDS;
}

/* The window's entry is the region as far as the window shows it. */
static void show(struct mw *mw, struct mr *mr, const struct mw_binding *b) {
    struct mr *entry = &mw->entry;
    entry->pub.iova = b->access & RNIC_ACCESS_ZERO_BASED ? 0 : b->addr;
    entry->pub.length = b->length;
    entry->access = b->access;
    entry->shift = mr->shift + b->addr - entry->pub.iova;
    entry->kind = mr->kind;
    entry->fd = mr->fd;
    entry->is = mr->is;
    entry->was = mr->was;
    mw->mr = mr;
    enter(&mr->windows, mw, OF_REGION);
}

int mw_bind(struct mr_table *t, const struct rnic_qp *qp, struct mw **of_qp, const struct mw_binding *b) {
    struct mr *entry = mr_at(t, b->window), *mr = b->length ? mr_find(t, b->region) : NULL;
    struct mw *mw = entry ? entry->window : NULL;
    int ve = check_window(mw, qp, b);
    if (!ve && b->length)
        ve = check_region(mr, mw, b);
    if (ve)
        return ve;
    mw_unbind(mw);
    mw->entry.pub.lkey = mw->entry.pub.rkey = (mw->entry.pub.rkey & ~0xFFu) | (b->new_key & 0xFF);
    if (!b->length)
        return 0;
    show(mw, mr, b);
    if (mw->pub.type == RNIC_MW_TYPE_2) {
        mw->qp = qp;
        enter(of_qp, mw, OF_QP);
    }
    return 0;
}

/* A free window may be invalidated: it is what it was. Regions of reg_mr() are not invalidated, but deregistered, and
 * windows of type 1 are unbound by a bind (o10-37.2.26). */
struct mw *mw_invalidable(const struct mr_table *t, const struct rnic_qp *qp, uint32_t key, int *ve) {
    const struct mr *entry = mr_find(t, key);
    struct mw *mw = entry ? entry->window : NULL;
    *ve = !entry                            ? RNIC_VE_WINDOW_GONE
          : !mw                             ? RNIC_VE_INVALIDATE_REGION
          : !mr_same_pd(mw->pub.pd, qp->pd) ? RNIC_VE_RKEY_PD
          : mw->pub.type == RNIC_MW_TYPE_1  ? RNIC_VE_WINDOW_TYPE
          : mw->qp && mw->qp != qp          ? RNIC_VE_WINDOW_QP
                                            : 0;
    return *ve ? NULL : mw;
}

/* ---------------------------------------------------------------- use */

int mw_remote(const struct mr_table *t, const struct rnic_qp *qp, const struct rnic_pd *pd, uint32_t key, uint64_t addr,
              uint64_t length, uint32_t access, uint8_t **ptr) {
    const struct mr *entry = mr_find(t, key);
    const struct mw *mw = entry ? entry->window : NULL;
    if (!mw || !mr_same_pd(mw->pub.pd, pd))
        return RNIC_VE_RKEY_PD;
    if (!mw->mr)
        return RNIC_VE_WINDOW_FREE;
    if (mw->qp && mw->qp != qp)
        return RNIC_VE_WINDOW_QP;
    if (!mr_in_range(entry, addr, length))
        return RNIC_VE_RKEY_BOUNDS;
    if (access & ~entry->access)
        return RNIC_VE_RKEY_ACCESS;
    return mr_place(entry, addr, ptr) ? 0 : RNIC_VE_RKEY_BAD;
}
