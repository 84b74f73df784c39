/* SPDX-License-Identifier: Apache-2.0
 *
 * Protection domains and the memory under them: regions, windows, memory of the device, what is imported.
 */
#include "lib.h"

/* Flags of this range are requests that a device may ignore (man ibv_reg_mr). */
#define KNOWN_OPTIONAL RNIC_ACCESS_RELAXED_ORDERING

static uint32_t asked_access(unsigned access) {
    return access & (~(unsigned)IBV_ACCESS_OPTIONAL_RANGE | KNOWN_OPTIONAL);
}

/* ---------------------------------------------------------------- domains */

static struct ibv_pd *show_pd(struct ibv_context *context, struct rnic_pd *nic, struct pd *pd) {
    pd->nic = nic;
    pd->pub = (struct ibv_pd){.context = context, .handle = nic->handle};
    ADD(context, pd, free);
    return &pd->pub;
}

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    struct context *c = context_of(context);
    struct pd *pd = calloc(1, sizeof *pd);
    struct rnic_pd *nic = NULL;
    struct rnic_err err = {0};
    int rc = pd ? CALL(c->ops, alloc_pd, c->nic, &nic, &err) : -ENOMEM;
    if (!rc)
        return show_pd(context, nic, pd);
    free(pd);
    return failed_null("alloc_pd", rc, &err);
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *pub) {
    struct pd *pd = (struct pd *)pub;
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, dealloc_pd, pd->nic, &err);
    if (rc)
        return failed("dealloc_pd", rc, &err);
    object_remove(pub->context, &pd->object);
    free(pd);
    return 0;
}

static struct ibv_td *alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr) {
    struct context *c = context_of(context);
    struct td *td = calloc(1, sizeof *td);
    struct rnic_err err = {0};
    int rc = td ? attr->comp_mask ? -EINVAL : CALL(c->ops, alloc_td, c->nic, &td->nic, &err) : -ENOMEM;
    if (rc) {
        free(td);
        return failed_null("alloc_td", rc, &err);
    }
    td->pub.context = context;
    ADD(context, td, free);
    return &td->pub;
}

static int dealloc_td(struct ibv_td *pub) {
    struct td *td = (struct td *)pub;
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, dealloc_td, td->nic, &err);
    if (rc)
        return failed("dealloc_td", rc, &err);
    object_remove(pub->context, &td->object);
    free(td);
    return 0;
}

void *object_take(struct ibv_pd *pub, size_t size, size_t object_at) {
    struct pd *pd = (struct pd *)pub;
    void *whole =
        pd && pd->alloc ? pd->alloc(pub, pd->pd_context, size, _Alignof(max_align_t), 0) : IBV_ALLOCATOR_USE_DEFAULT;
    if (whole == IBV_ALLOCATOR_USE_DEFAULT)
        return calloc(1, size);
    if (!whole)
        return NULL;
    memset(whole, 0, size);
    ((struct object *)((char *)whole + object_at))->theirs = true;
    return whole;
}

void object_give_back(struct ibv_pd *pub, void *whole, struct object *object) {
    struct pd *pd = (struct pd *)pub;
    if (!object->theirs)
        free(whole);
    else
        pd->release(pub, pd->pd_context, whole, 0);
}

/* Allocators are called for the library's own queues and queue pairs: what the device allocates is in its own memory. */
static struct ibv_pd *alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr) {
    const uint32_t known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT |
                           IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC; /* which is for devices outside */
    struct context *c = context_of(context);
    struct pd *pd = calloc(1, sizeof *pd);
    struct rnic_pd *nic = NULL;
    struct rnic_err err = {0};
    bool allocates = attr->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
    int rc = !pd                        ? -ENOMEM
             : attr->comp_mask & ~known ? worded(&err, -EINVAL, UNKNOWN)
             : !attr->pd                ? worded(&err, -EINVAL, "a parent domain needs a protection domain")
                                        : 0;
    if (!rc && allocates && (!attr->alloc || !attr->free))
        rc = -EINVAL;
    if (!rc)
        rc = CALL(c->ops, alloc_parent_domain, ((struct pd *)attr->pd)->nic, NIC(td, attr->td), &nic, &err);
    if (rc) {
        free(pd);
        return failed_null("alloc_parent_domain", rc, &err);
    }
    pd->parent = (struct pd *)attr->pd;
    pd->alloc = allocates ? attr->alloc : NULL;
    pd->release = allocates ? attr->free : NULL;
    pd->pd_context = attr->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT ? attr->pd_context : NULL;
    return show_pd(context, nic, pd);
}

/* ---------------------------------------------------------------- regions */

static struct ibv_mr *show_mr(struct ibv_pd *pd, struct mr *mr) {
    const struct rnic_mr *nic = mr->nic;
    mr->pub = (struct ibv_mr){.context = pd->context,
                              .pd = pd,
                              .addr = nic->addr,
                              .length = nic->length,
                              .handle = nic->handle,
                              .lkey = nic->lkey,
                              .rkey = nic->rkey};
    ADD(pd->context, mr, free);
    return &mr->pub;
}

static struct ibv_mr *reg_ex(const char *verb, struct ibv_pd *pd, const struct rnic_mr_init_attr *attr) {
    const struct rnic_ops *ops = context_of(pd->context)->ops;
    struct mr *mr = calloc(1, sizeof *mr);
    struct rnic_err err = {0};
    int rc = mr ? CALL(ops, reg_mr_ex, ((struct pd *)pd)->nic, attr, &mr->nic, &err) : -ENOMEM;
    if (!rc)
        return show_mr(pd, mr);
    free(mr);
    return failed_null(verb, rc, &err);
}

#undef ibv_reg_mr
EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
    const struct rnic_ops *ops = context_of(pd->context)->ops;
    struct mr *mr = calloc(1, sizeof *mr);
    struct rnic_err err = {0};
    int rc =
        mr ? CALL(ops, reg_mr, ((struct pd *)pd)->nic, addr, length, asked_access((unsigned)access), &mr->nic, &err)
           : -ENOMEM;
    if (!rc)
        return show_mr(pd, mr);
    free(mr);
    return failed_null("reg_mr", rc, &err);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access) {
    if (iova == (uintptr_t)addr)
        return ibv_reg_mr(pd, addr, length, (int)access);
    return reg_ex("reg_mr_iova", pd,
                  &(struct rnic_mr_init_attr){.comp_mask = RNIC_MR_INIT_IOVA,
                                              .access = asked_access(access),
                                              .addr = addr,
                                              .length = length,
                                              .iova = iova});
}

#undef ibv_reg_mr_iova
EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access) {
    return ibv_reg_mr_iova2(pd, addr, length, iova, (unsigned)access);
}

EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                                        int access) {
    return reg_ex("reg_dmabuf_mr", pd,
                  &(struct rnic_mr_init_attr){.comp_mask = RNIC_MR_INIT_FD | RNIC_MR_INIT_IOVA,
                                              .access = asked_access((unsigned)access),
                                              .length = length,
                                              .iova = iova,
                                              .fd = fd,
                                              .fd_offset = offset});
}

static struct ibv_mr *reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length, unsigned access) {
    return reg_ex("reg_dm_mr", pd,
                  &(struct rnic_mr_init_attr){.comp_mask = RNIC_MR_INIT_DM,
                                              .access = asked_access(access),
                                              .length = length,
                                              .dm = ((struct dm *)dm)->nic,
                                              .fd_offset = offset});
}

static struct ibv_mr *alloc_null_mr(struct ibv_pd *pd) {
    struct mr *mr = calloc(1, sizeof *mr);
    struct rnic_err err = {0};
    int rc = mr ? CALL(context_of(pd->context)->ops, alloc_null_mr, ((struct pd *)pd)->nic, &mr->nic, &err) : -ENOMEM;
    if (!rc)
        return show_mr(pd, mr);
    free(mr);
    return failed_null("alloc_null_mr", rc, &err);
}

/* The device would take them: a region of all addresses begins at 0, one may have no bytes, and access is not looked at. */
static bool is_refused(int flags, const void *addr, size_t length, int access) {
    bool nowhere = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) && (!addr || !length);
    return nowhere || (access && !(flags & IBV_REREG_MR_CHANGE_ACCESS));
}

/* enum ibv_rereg_mr_err_code: a re-registration that fails has changed nothing. */
EXPORT int ibv_rereg_mr(struct ibv_mr *pub, int flags, struct ibv_pd *pd, void *addr, size_t length, int access) {
    struct mr *mr = (struct mr *)pub;
    struct rnic_err err = {0};
    if (is_refused(flags, addr, length, access)) {
        refused("rereg_mr", EINVAL, "CHANGE_TRANSLATION without addr or length, or access without CHANGE_ACCESS");
        return IBV_REREG_MR_ERR_INPUT;
    }
    int rc = CALL(context_of(pub->context)->ops, rereg_mr, mr->nic, (uint32_t)flags, NIC(pd, pd), addr, length,
                  asked_access((unsigned)access), &err);
    if (rc) {
        failed("rereg_mr", rc, &err);
        return IBV_REREG_MR_ERR_INPUT;
    }
    if (flags & IBV_REREG_MR_CHANGE_PD)
        pub->pd = pd;
    pub->addr = mr->nic->addr;
    pub->length = mr->nic->length;
    pub->lkey = mr->nic->lkey;
    pub->rkey = mr->nic->rkey;
    return 0;
}

static int end_mr(struct mr *mr, const char *verb) {
    const struct rnic_ops *ops = context_of(mr->pub.context)->ops;
    struct rnic_err err = {0};
    int rc = mr->imported ? UNCANCELLED(ops->unimport_mr(mr->nic, &err)) : CALL(ops, dereg_mr, mr->nic, &err);
    if (rc)
        return failed(verb, rc, &err);
    object_remove(mr->pub.context, &mr->object);
    dmah_use(mr->hints, -1);
    free(mr);
    return 0;
}

EXPORT int ibv_dereg_mr(struct ibv_mr *pub) { return end_mr((struct mr *)pub, "dereg_mr"); }

static int advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *sg_list,
                     uint32_t num_sge) {
    struct rnic_err err = {0};
    int rc = CALL(context_of(pd->context)->ops, advise_mr, ((struct pd *)pd)->nic, (int)advice, flags,
                  (const struct rnic_sge *)sg_list, (int)num_sge, &err);
    return failed("advise_mr", rc, &err);
}

/* ---------------------------------------------------------------- windows */

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type) {
    struct mw *mw = calloc(1, sizeof *mw);
    struct rnic_err err = {0};
    int rc =
        mw ? CALL(context_of(pd->context)->ops, alloc_mw, ((struct pd *)pd)->nic, (int)type, &mw->nic, &err) : -ENOMEM;
    if (rc) {
        free(mw);
        return failed_null("alloc_mw", rc, &err);
    }
    mw->pub = (struct ibv_mw){.context = pd->context, .pd = pd, .rkey = mw->nic->rkey, .type = type};
    ADD(pd->context, mw, free);
    return &mw->pub;
}

static int dealloc_mw(struct ibv_mw *pub) {
    struct mw *mw = (struct mw *)pub;
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, dealloc_mw, mw->nic, &err);
    if (rc)
        return failed("dealloc_mw", rc, &err);
    object_remove(pub->context, &mw->object);
    free(mw);
    return 0;
}

static int bind_mw(struct ibv_qp *qp, struct ibv_mw *pub, struct ibv_mw_bind *bind) {
    struct mw *mw = (struct mw *)pub;
    const struct ibv_mw_bind_info *info = &bind->bind_info;
    struct rnic_mw_bind copy = {.wr_id = bind->wr_id,
                                .send_flags = bind->send_flags,
                                .bind_info = {NIC(mr, info->mr), info->addr, info->length, info->mw_access_flags}};
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, bind_mw, ((struct qp *)qp)->nic, mw->nic, &copy, &err);
    if (!rc)
        pub->rkey = mw->nic->rkey;
    return failed("bind_mw", rc, &err);
}

/* ---------------------------------------------------------------- memory of the device */

static int to_dm(struct ibv_dm *dm, uint64_t offset, const void *from, size_t length) {
    struct rnic_err err = {0};
    int rc = CALL(context_of(dm->context)->ops, memcpy_to_dm, ((struct dm *)dm)->nic, offset, from, length, &err);
    return failed("memcpy_to_dm", rc, &err);
}

static int from_dm(void *to, struct ibv_dm *dm, uint64_t offset, size_t length) {
    struct rnic_err err = {0};
    int rc = CALL(context_of(dm->context)->ops, memcpy_from_dm, to, ((struct dm *)dm)->nic, offset, length, &err);
    return failed("memcpy_from_dm", rc, &err);
}

static struct ibv_dm *show_dm(struct ibv_context *context, struct dm *dm) {
    dm->pub = (struct ibv_dm){.context = context,
                              .memcpy_to_dm = to_dm,
                              .memcpy_from_dm = from_dm,
                              .comp_mask = IBV_DM_MASK_HANDLE,
                              .handle = dm->nic->handle};
    ADD(context, dm, free);
    return &dm->pub;
}

static struct ibv_dm *alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attr) {
    struct context *c = context_of(context);
    struct dm *dm = calloc(1, sizeof *dm);
    struct rnic_err err = {0};
    int rc = !dm               ? -ENOMEM
             : attr->comp_mask ? -EINVAL
                               : CALL(c->ops, alloc_dm, c->nic, attr->length, attr->log_align_req, &dm->nic, &err);
    if (!rc)
        return show_dm(context, dm);
    free(dm);
    return failed_null("alloc_dm", rc, &err);
}

static int end_dm(struct dm *dm, const char *verb) {
    const struct rnic_ops *ops = context_of(dm->pub.context)->ops;
    struct rnic_err err = {0};
    int rc = dm->imported ? UNCANCELLED(ops->unimport_dm(dm->nic, &err)) : CALL(ops, free_dm, dm->nic, &err);
    if (rc)
        return failed(verb, rc, &err);
    object_remove(dm->pub.context, &dm->object);
    free(dm);
    return 0;
}

static int free_dm(struct ibv_dm *pub) { return end_dm((struct dm *)pub, "free_dm"); }

/* ---------------------------------------------------------------- imports */

EXPORT struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t handle) {
    struct context *c = context_of(context);
    struct pd *pd = calloc(1, sizeof *pd);
    struct rnic_pd *nic = NULL;
    struct rnic_err err = {0};
    int rc = pd ? CALL(c->ops, import_pd, c->nic, handle, &nic, &err) : -ENOMEM;
    if (!rc)
        return show_pd(context, nic, pd);
    free(pd);
    return failed_null("import_pd", rc, &err);
}

EXPORT void ibv_unimport_pd(struct ibv_pd *pub) {
    struct pd *pd = (struct pd *)pub;
    struct rnic_err err = {0};
    if (failed("unimport_pd", UNCANCELLED(context_of(pub->context)->ops->unimport_pd(pd->nic, &err)), &err))
        return;
    object_remove(pub->context, &pd->object);
    free(pd);
}

EXPORT struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle) {
    struct mr *mr = calloc(1, sizeof *mr);
    struct rnic_err err = {0};
    int rc =
        mr ? CALL(context_of(pd->context)->ops, import_mr, ((struct pd *)pd)->nic, handle, &mr->nic, &err) : -ENOMEM;
    if (rc) {
        free(mr);
        return failed_null("import_mr", rc, &err);
    }
    mr->imported = true;
    return show_mr(pd, mr);
}

EXPORT void ibv_unimport_mr(struct ibv_mr *pub) { end_mr((struct mr *)pub, "unimport_mr"); }

EXPORT struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t handle) {
    struct context *c = context_of(context);
    struct dm *dm = calloc(1, sizeof *dm);
    struct rnic_err err = {0};
    int rc = dm ? CALL(c->ops, import_dm, c->nic, handle, &dm->nic, &err) : -ENOMEM;
    if (rc) {
        free(dm);
        return failed_null("import_dm", rc, &err);
    }
    dm->imported = true;
    return show_dm(context, dm);
}

EXPORT void ibv_unimport_dm(struct ibv_dm *pub) { end_dm((struct dm *)pub, "unimport_dm"); }

/* ---------------------------------------------------------------- */

void memory_ops(struct verbs_context *ex, const struct rnic_ops *ops) {
    GIVE(ex, alloc_td, ops, alloc_td, alloc_td);
    GIVE(ex, dealloc_td, ops, dealloc_td, dealloc_td);
    GIVE(ex, alloc_parent_domain, ops, alloc_parent_domain, alloc_parent_domain);
    GIVE(ex, reg_dm_mr, ops, reg_mr_ex, reg_dm_mr);
    GIVE(ex, alloc_null_mr, ops, alloc_null_mr, alloc_null_mr);
    GIVE(ex, advise_mr, ops, advise_mr, advise_mr);
    GIVE(ex, alloc_dm, ops, alloc_dm, alloc_dm);
    GIVE(ex, free_dm, ops, free_dm, free_dm);
    GIVE(&ex->context.ops, alloc_mw, ops, alloc_mw, alloc_mw);
    GIVE(&ex->context.ops, dealloc_mw, ops, dealloc_mw, dealloc_mw);
    GIVE(&ex->context.ops, bind_mw, ops, bind_mw, bind_mw);
}
