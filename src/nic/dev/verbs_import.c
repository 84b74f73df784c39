/* SPDX-License-Identifier: Apache-2.0
 *
 * Import (man ibv_import_device, ibv_import_pd, ibv_import_mr, ibv_import_dm).  Within a process an imported object is
 * the object itself, which stays until its importers have gone.  Of another process' context, what lies in its memory
 * file (mem/store.h) can be imported: it is mapped here, and this process' device serves its key itself, for as long as
 * the owner says that it is registered.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fail.h"
#include "dev/verbs.h"

static const char *const kind_names[] = {
    [STORE_PD] = "protection domain", [STORE_MR] = "memory region", [STORE_DM] = "device memory"};

/* Not in this process; of another one there may be a record. */
static int find_foreign(struct dev *dev, int kind, uint32_t handle, struct store_record *record, const uint64_t **is,
                        struct rnic_err *err) {
    if (dev->peer.fd < 0)
        return fail(err, -ENOENT, "this context has no %s with the handle %u", kind_names[kind], handle);
    int rc = peer_find(&dev->peer, kind, handle, record, is, err);
    if (rc != -ENOENT)
        return rc;
    return fail(err, -EOPNOTSUPP,
                "handle %u: no %s that another process could have: only memory of alloc_mr, device memory and their "
                "protection domains can be imported between processes",
                handle, kind_names[kind]);
}

/* ---------------------------------------------------------------- protection domains */

static struct pd *find_pd(struct dev *dev, uint32_t handle) {
    struct pd *pd = dev->pd_list;
    while (pd && (pd->pub.handle != handle || pd->pub.parent))
        pd = pd->next;
    return pd;
}

int soft_import_pd(struct rnic_context *ctx, uint32_t handle, struct rnic_pd **out, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    struct store_record record;
    const uint64_t *is;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    struct pd *pd = find_pd(dev, handle);
    if (pd)
        pd->imports++;
    dev_unlock(dev);
    if (!pd) {
        rc = find_foreign(dev, STORE_PD, handle, &record, &is, err);
        pd = rc ? NULL : new_pd(ctx);
        if (!pd)
            return rc ? rc : fail(err, -ENOMEM, "no memory");
        pd->pub.handle = handle;
        pd->foreign = true;
        pd->imports = 1;
        enter_pd(pd);
    }
    *out = &pd->pub;
    return 0;
}

int soft_unimport_pd(struct rnic_pd *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct pd *pd = (struct pd *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    bool last = pd->foreign && pd->imports == 1;
    if (!pd->imports)
        rc = fail(err, -EINVAL, "the protection domain was not imported");
    else if (!last)
        pd->imports--;
    dev_unlock(dev);
    return rc || !last ? rc : release_pd(pd, err);
}

/* ---------------------------------------------------------------- memory regions */

static int adopt_mr(struct dev *dev, struct rnic_pd *pd, uint32_t handle, struct mr **out, struct rnic_err *err) {
    int rc = 0;
    dev_lock(dev);
    struct mr *mr = mr_find(&dev->nic.mrs, handle);
    if (mr && mr->window) /* no region, and of no other process: handles are keys */
        mr = NULL;
    if (mr && rnic_pd_root(mr->pub.pd) != rnic_pd_root(pd))
        rc = fail(err, -EINVAL, "handle %u: the memory region belongs to another protection domain", handle);
    else if (mr)
        mr->imports++;
    dev_unlock(dev);
    *out = mr;
    return rc;
}

static struct mr *foreign_mr(struct dev *dev, struct rnic_pd *pd, const struct store_record *record, const uint64_t *is,
                             struct rnic_err *err) {
    uint64_t before = record->offset % (uint64_t)sysconf(_SC_PAGESIZE);
    struct mr *mr = new_mr(pd, NULL, record->length, record->access);
    uint8_t *addr;
    if (!mr || peer_map(&dev->peer, record, &addr, err)) {
        free(mr);
        return NULL;
    }
    mr->map = addr - before;
    mr->map_bytes = before + record->length;
    mr->kind = MR_FOREIGN;
    mr->is = is;
    mr->was = record->serial;
    mr->imports = 1;
    mr->pub.addr = addr;
    mr->pub.iova = record->iova;
    mr->shift = (uintptr_t)addr - record->iova;
    return mr;
}

static int check_record(const struct store_record *record, const struct rnic_pd *pd, struct rnic_err *err) {
    if (record->pd != rnic_pd_root(pd)->handle || !((const struct pd *)rnic_pd_root(pd))->foreign)
        return fail(err, -EINVAL,
                    "handle %u: the memory region belongs to another protection domain: import that first",
                    record->handle);
    if (record->key >> 8 == 0 || record->iova + record->length < record->iova ||
        check_access(record->access, MR_ACCESS | RNIC_ACCESS_ZERO_BASED, NULL))
        return fail(err, -EINVAL, "handle %u: what the other process says of it cannot be", record->handle);
    return 0;
}

int soft_import_mr(struct rnic_pd *pd, uint32_t handle, struct rnic_mr **out, struct rnic_err *err) {
    struct dev *dev = dev_of(pd->ctx);
    struct store_record record;
    const uint64_t *is;
    struct mr *mr;
    int rc = dev_check_alive(dev, err);
    if (!rc)
        rc = adopt_mr(dev, pd, handle, &mr, err);
    if (rc)
        return rc;
    if (mr) {
        *out = &mr->pub;
        return 0;
    }
    rc = find_foreign(dev, STORE_MR, handle, &record, &is, err);
    if (!rc)
        rc = check_record(&record, pd, err);
    if (rc)
        return rc;
    mr = foreign_mr(dev, pd, &record, is, err);
    return mr ? enter_mr(mr, record.key, out, err) : -ENOMEM;
}

int soft_unimport_mr(struct rnic_mr *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct mr *mr = (struct mr *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    bool last = is_import(mr) && mr->imports == 1;
    if (!mr->imports)
        rc = fail(err, -EINVAL, "the memory region was not imported");
    else if (!last)
        mr->imports--;
    dev_unlock(dev);
    return rc || !last ? rc : leave_mr(mr, err);
}

/* ---------------------------------------------------------------- device memory */

static struct dm *find_dm(struct dev *dev, uint32_t handle) {
    struct dm *dm = dev->dm_list;
    while (dm && dm->pub.handle != handle)
        dm = dm->next;
    return dm;
}

static struct dm *foreign_dm(struct dev *dev, const struct store_record *record, const uint64_t *is,
                             struct rnic_err *err) {
    struct dm *dm = calloc(1, sizeof *dm);
    if (!dm || peer_map(&dev->peer, record, &dm->mem, err)) {
        free(dm);
        return NULL;
    }
    dm->pub = (struct rnic_dm){&dev->pub, record->length, record->handle};
    dm->record = -1;
    dm->foreign = true;
    dm->imports = 1;
    dm->is = is;
    dm->was = record->serial;
    return dm;
}

int soft_import_dm(struct rnic_context *ctx, uint32_t handle, struct rnic_dm **out, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    struct store_record record;
    const uint64_t *is;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    struct dm *dm = find_dm(dev, handle);
    if (dm)
        dm->imports++;
    dev_unlock(dev);
    if (!dm) {
        rc = find_foreign(dev, STORE_DM, handle, &record, &is, err);
        if (!rc && record.offset % (uint64_t)sysconf(_SC_PAGESIZE))
            rc = fail(err, -EINVAL, "handle %u: what the other process says of it cannot be", handle);
        dm = rc ? NULL : foreign_dm(dev, &record, is, err);
        if (!dm)
            return rc ? rc : -ENOMEM;
        dev_lock(dev);
        enter_dm(dm);
        dev_unlock(dev);
    }
    *out = &dm->pub;
    return 0;
}

int soft_unimport_dm(struct rnic_dm *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct dm *dm = (struct dm *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    bool last = dm->foreign && dm->imports == 1;
    if (!dm->imports)
        rc = fail(err, -EINVAL, "the device memory was not imported");
    else if (!last)
        dm->imports--;
    dev_unlock(dev);
    return rc || !last ? rc : release_dm(dm, err);
}
