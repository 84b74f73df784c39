/* SPDX-License-Identifier: Apache-2.0 */
#include "recorder_own.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- pd, mr */

struct mr {
    struct rnic_mr pub;
    void *own;
};

static int rec_alloc_pd(struct rnic_context *ctx, struct rnic_pd **pd, struct rnic_err *err) {
    int rc = SAY(ctx, "");

    return rc ? rc : MAKE(ctx, pd, struct rnic_pd, .ctx = ctx);
}

static int rec_dealloc_pd(struct rnic_pd *pd, struct rnic_err *err) { return gone(pd->ctx, pd, SAY(pd->ctx, "")); }

static int mr_new(struct rnic_pd *pd, void *addr, uint64_t length, void *own, struct rnic_mr **out) {
    uint32_t key = ++rec(pd->ctx)->next_number;

    return MAKE(pd->ctx, out, struct mr, {pd->ctx, pd, addr, length, key << 8, key << 8 | 1, key << 8, (uintptr_t)addr},
                own);
}

static int rec_reg_mr(struct rnic_pd *pd, void *addr, uint64_t length, uint32_t access, struct rnic_mr **mr,
                      struct rnic_err *err) {
    int rc = SAY(pd->ctx, " %p %lu access=%u", addr, length, access);

    return rc ? rc : mr_new(pd, addr, length, NULL, mr);
}

int rec_alloc_mr(struct rnic_pd *pd, uint64_t length, uint32_t access, struct rnic_mr **mr, struct rnic_err *err) {
    int rc = SAY(pd->ctx, " %lu access=%u", length, access);
    void *own = rc ? NULL : calloc(1, length);

    return rc ? rc : mr_new(pd, own, length, own, mr);
}

static int rec_dereg_mr(struct rnic_mr *mr, struct rnic_err *err) {
    int rc = SAY(mr->ctx, " lkey=%u", mr->lkey);

    if (!rc)
        free(((struct mr *)mr)->own);
    return gone(mr->ctx, mr, rc);
}

static int rec_reg_mr_ex(struct rnic_pd *pd, const struct rnic_mr_init_attr *a, struct rnic_mr **mr,
                         struct rnic_err *err) {
    int rc = SAY(pd->ctx, " mask=%u access=%u length=%lu iova=%lu fd=%d offset=%lu", a->comp_mask, a->access, a->length,
                 a->iova, a->fd, a->fd_offset);

    if (rc)
        return rc;
    mr_new(pd, a->addr, a->length, NULL, mr);
    if (a->comp_mask & RNIC_MR_INIT_IOVA)
        (*mr)->iova = a->iova;
    return 0;
}

static int rec_alloc_null_mr(struct rnic_pd *pd, struct rnic_mr **mr, struct rnic_err *err) {
    int rc = SAY(pd->ctx, "");

    return rc ? rc : mr_new(pd, NULL, UINT64_MAX, NULL, mr);
}

static int rec_rereg_mr(struct rnic_mr *mr, uint32_t flags, struct rnic_pd *pd, void *addr, uint64_t length,
                        uint32_t access, struct rnic_err *err) {
    int rc = SAY(mr->ctx, " lkey=%u flags=%u length=%lu access=%u", mr->lkey, flags, length, access);

    if (rc)
        return rc;
    if (flags & RNIC_REREG_MR_CHANGE_PD)
        mr->pd = pd;
    if (flags & RNIC_REREG_MR_CHANGE_TRANSLATION) {
        mr->addr = addr;
        mr->iova = (uintptr_t)addr;
        mr->length = length;
    }
    return 0;
}

static int rec_advise_mr(struct rnic_pd *pd, int advice, uint32_t flags, const struct rnic_sge *sge, int n,
                         struct rnic_err *err) {
    return SAY(pd->ctx, " %d flags=%u n=%d first=%lu,%u,%u", advice, flags, n, sge->addr, sge->length, sge->lkey);
}

/* ---------------------------------------------------------------- memory windows: bound as soon as it is posted */

struct mw {
    struct rnic_mw pub;
    struct rnic_mw_bind_info bound;
};

static int rec_alloc_mw(struct rnic_pd *pd, int type, struct rnic_mw **out, struct rnic_err *err) {
    int rc = SAY(pd->ctx, " type=%d", type);

    return rc ? rc : MAKE(pd->ctx, out, struct mw, {pd->ctx, pd, ++rec(pd->ctx)->next_number << 8, type}, {0});
}

static int rec_dealloc_mw(struct rnic_mw *mw, struct rnic_err *err) {
    return gone(mw->ctx, mw, SAY(mw->ctx, " rkey=%u", mw->rkey));
}

void note_bind(struct rnic_mw *mw, uint32_t rkey, const struct rnic_mw_bind_info *info) {
    note(mw->ctx, " bind=%u,%u,%u,%lu,%lu,%u", mw->rkey, rkey, info->mr ? info->mr->lkey : 0, info->addr, info->length,
         info->mw_access_flags);
    ((struct mw *)mw)->bound = *info;
    mw->rkey = rkey;
}

static int rec_bind_mw(struct rnic_qp *qp, struct rnic_mw *mw, const struct rnic_mw_bind *bind, struct rnic_err *err) {
    int rc = fails(qp->ctx, "bind_mw", err);

    note(qp->ctx, "bind_mw qp=%u wr_id=%lu flags=%u", qp->qp_num, bind->wr_id, bind->send_flags);
    if (!rc)
        note_bind(mw, mw->rkey + 1, &bind->bind_info);
    note(qp->ctx, "\n");
    return rc;
}

int rec_query_mw(struct rnic_mw *mw, struct rnic_mw_bind_info *info, struct rnic_err *err) {
    *info = ((struct mw *)mw)->bound;
    return SAY(mw->ctx, "");
}

/* ---------------------------------------------------------------- device memory, domains */

static int rec_alloc_dm(struct rnic_context *ctx, uint64_t length, uint32_t log_align, struct rnic_dm **dm,
                        struct rnic_err *err) {
    int rc = SAY(ctx, " %lu align=%u", length, log_align);

    return rc ? rc : MAKE(ctx, dm, struct rnic_dm, ctx, length, 77);
}

static int rec_free_dm(struct rnic_dm *dm, struct rnic_err *err) { return gone(dm->ctx, dm, SAY(dm->ctx, "")); }

static int rec_memcpy_to_dm(struct rnic_dm *dm, uint64_t offset, const void *src, uint64_t n, struct rnic_err *err) {
    return SAY(dm->ctx, " %lu %.*s", offset, (int)n, (const char *)src);
}

static int rec_memcpy_from_dm(void *dst, struct rnic_dm *dm, uint64_t offset, uint64_t n, struct rnic_err *err) {
    memset(dst, 'd', n);
    return SAY(dm->ctx, " %lu %lu", offset, n);
}

static int rec_alloc_td(struct rnic_context *ctx, struct rnic_td **td, struct rnic_err *err) {
    int rc = SAY(ctx, "");

    return rc ? rc : MAKE(ctx, td, struct rnic_td, .ctx = ctx);
}

static int rec_dealloc_td(struct rnic_td *td, struct rnic_err *err) { return gone(td->ctx, td, SAY(td->ctx, "")); }

static int rec_alloc_parent_domain(struct rnic_pd *pd, struct rnic_td *td, struct rnic_pd **out, struct rnic_err *err) {
    int rc = SAY(pd->ctx, " td=%d", td != NULL);

    return rc ? rc : MAKE(pd->ctx, out, struct rnic_pd, pd->ctx, pd, 0);
}

/* ---------------------------------------------------------------- import */

static int rec_import_pd(struct rnic_context *ctx, uint32_t handle, struct rnic_pd **pd, struct rnic_err *err) {
    int rc = SAY(ctx, " %u", handle);

    return rc ? rc : MAKE(ctx, pd, struct rnic_pd, ctx, NULL, handle);
}

static int rec_unimport_pd(struct rnic_pd *pd, struct rnic_err *err) { return gone(pd->ctx, pd, SAY(pd->ctx, "")); }

static int rec_import_mr(struct rnic_pd *pd, uint32_t handle, struct rnic_mr **mr, struct rnic_err *err) {
    int rc = SAY(pd->ctx, " %u", handle);

    return rc ? rc : mr_new(pd, NULL, 16, NULL, mr);
}

static int rec_unimport_mr(struct rnic_mr *mr, struct rnic_err *err) {
    return gone(mr->ctx, mr, SAY(mr->ctx, " lkey=%u", mr->lkey));
}

static int rec_import_dm(struct rnic_context *ctx, uint32_t handle, struct rnic_dm **dm, struct rnic_err *err) {
    int rc = SAY(ctx, " %u", handle);

    return rc ? rc : MAKE(ctx, dm, struct rnic_dm, ctx, 64, handle);
}

static int rec_unimport_dm(struct rnic_dm *dm, struct rnic_err *err) { return gone(dm->ctx, dm, SAY(dm->ctx, "")); }

/* ---------------------------------------------------------------- operations */

void recorder_mem_ops(struct rnic_ops *ops) {
    ops->alloc_pd = rec_alloc_pd;
    ops->dealloc_pd = rec_dealloc_pd;
    ops->reg_mr = rec_reg_mr;
    ops->dereg_mr = rec_dereg_mr;
    ops->alloc_mw = rec_alloc_mw;
    ops->dealloc_mw = rec_dealloc_mw;
    ops->bind_mw = rec_bind_mw;
    ops->reg_mr_ex = rec_reg_mr_ex;
    ops->alloc_null_mr = rec_alloc_null_mr;
    ops->rereg_mr = rec_rereg_mr;
    ops->advise_mr = rec_advise_mr;
    ops->alloc_dm = rec_alloc_dm;
    ops->free_dm = rec_free_dm;
    ops->memcpy_to_dm = rec_memcpy_to_dm;
    ops->memcpy_from_dm = rec_memcpy_from_dm;
    ops->alloc_td = rec_alloc_td;
    ops->dealloc_td = rec_dealloc_td;
    ops->alloc_parent_domain = rec_alloc_parent_domain;
    ops->import_pd = rec_import_pd;
    ops->unimport_pd = rec_unimport_pd;
    ops->import_mr = rec_import_mr;
    ops->unimport_mr = rec_unimport_mr;
    ops->import_dm = rec_import_dm;
    ops->unimport_dm = rec_unimport_dm;
}
