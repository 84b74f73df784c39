/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory windows (IBA 11.2.8; man ibv_alloc_mw, ibv_bind_mw).
 */
#include <errno.h>
#include <stdlib.h>

#include "base/fail.h"
#include "mem/mw.h"
#include "verbs/verbs.h"

int soft_alloc_mw(struct rnic_pd *pd, int type, struct rnic_mw **out, struct rnic_err *err) {
    struct dev *dev = dev_of(pd->ctx);
    int rc = dev_check_usable(dev, err);
    if (!rc && type != RNIC_MW_TYPE_1 && type != RNIC_MW_TYPE_2)
        rc = fail(err, -EINVAL, "type %d: memory windows are of type %d or %d", type, RNIC_MW_TYPE_1, RNIC_MW_TYPE_2);
    if (rc)
        return rc;
    struct mw *mw = calloc(1, sizeof *mw);
    if (!mw)
        return fail(err, -ENOMEM, "no memory");
    mw->pub = (struct rnic_mw){pd->ctx, pd, 0, type};
    dev_lock(dev);
    rc = verbs_check_room(dev, KIND_MW, err);
    if (!rc && (rc = mw_insert(&dev->nic.mrs, mw)))
        fail(err, rc, "no memory for the key table, or there are %u memory windows", MW_MAX);
    if (!rc) {
        object_enter(dev, KIND_MW, &mw->listed);
        ((struct pd *)pd)->mws++;
    }
    dev_unlock(dev);
    if (rc) {
        free(mw);
        return rc;
    }
    *out = &mw->pub;
    return 0;
}

/* Work that names it finds it gone. */
int soft_dealloc_mw(struct rnic_mw *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct mw *mw = (struct mw *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    mw_remove(&dev->nic.mrs, mw);
    object_leave(dev, KIND_MW, &mw->listed);
    ((struct pd *)pub->pd)->mws--;
    dev_unlock(dev);
    free(mw);
    return 0;
}

/* What libibverbs' ibv_bind_mw() refuses before anything is posted. */
static int check_bind(const struct rnic_mw *mw, const struct rnic_mw_bind_info *info, struct rnic_err *err) {
    if (mw->type != RNIC_MW_TYPE_1)
        return fail(err, -EINVAL, "the memory window is of type 2: post a BIND_MW work request");
    if (info->mr && rnic_pd_root(info->mr->pd) != rnic_pd_root(mw->pd))
        return fail(err, -EPERM, "the memory region belongs to another protection domain than the window");
    return 0;
}

int soft_bind_mw(struct rnic_qp *qp, struct rnic_mw *mw, const struct rnic_mw_bind *bind, struct rnic_err *err) {
    uint32_t key = window_key(mw);
    struct rnic_send_wr wr = {.wr_id = bind->wr_id,
                              .opcode = RNIC_WR_BIND_MW,
                              .send_flags = bind->send_flags,
                              .bind_mw = {mw, (key & ~0xFFu) | ((key + 1) & 0xFF), bind->bind_info}};
    const struct rnic_send_wr *bad;
    int rc = check_bind(mw, &bind->bind_info, err);
    return rc ? rc : soft_post_send(qp, &wr, &bad, err);
}

int soft_query_mw(struct rnic_mw *pub, struct rnic_mw_bind_info *info, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    const struct mw *mw = (const struct mw *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    *info = (struct rnic_mw_bind_info){.mr = mw->mr ? &mw->mr->pub : NULL,
                                       .addr = mw->entry.pub.iova,
                                       .length = mw->entry.pub.length,
                                       .mw_access_flags = mw->entry.access};
    dev_unlock(dev);
    return 0;
}
