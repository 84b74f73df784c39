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
#include "verbs/verbs.h"

static const char *const kind_names[] = {
    [STORE_PD] = "protection domain", [STORE_MR] = "memory region", [STORE_DM] = "device memory"};

/* What a handle names: an object of this process, or of the other one its record. */
struct sought {
    uint32_t handle;
    const struct rnic_pd *pd; /* that a memory region must be of */
    void *ours;               /* NULL: not of this process */
    struct store_record record;
    const uint64_t *is; /* of the object: peer_find() */
};

/* Sets s->ours and counts the import, if there is such an object; under the lock. */
typedef int adopter(struct dev *dev, struct sought *s, struct rnic_err *err);

static int find_foreign(struct dev *dev, int kind, struct sought *s, struct rnic_err *err) {
    if (dev->peer.fd < 0)
        return fail(err, -ENOENT, "this context has no %s with the handle %u", kind_names[kind], s->handle);
    int rc = peer_find(&dev->peer, kind, s->handle, &s->record, &s->is, err);
    if (rc != -ENOENT)
        return rc;
    return fail(err, -EOPNOTSUPP,
                "handle %u: no %s that another process could have: only memory of alloc_mr (but what others may only "
                "read), device memory and their protection domains can be imported between processes",
                s->handle, kind_names[kind]);
}

static int find(struct dev *dev, int kind, struct sought *s, adopter *adopt, struct rnic_err *err) {
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    rc = adopt(dev, s, err);
    dev_unlock(dev);
    return rc || s->ours ? rc : find_foreign(dev, kind, s, err);
}

/* One import less. 0, -EINVAL; 1: that was the last of another process' object, which goes with it: until it has, nobody
 * else imports it or gives it back. */
static int give_back(struct dev *dev, int kind, int *imports, bool foreign, struct rnic_err *err) {
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    if (!*imports)
        rc = fail(err, -EINVAL, "the %s was not imported", kind_names[kind]);
    else if (--*imports == 0 && foreign)
        rc = 1;
    dev_unlock(dev);
    return rc;
}

/* It could not go. */
static int keep(struct dev *dev, int *imports, int rc) {
    dev_lock(dev);
    *imports = 1;
    dev_unlock(dev);
    return rc;
}

/* One import more. */
static int adopt(int kind, int *imports, bool foreign, struct rnic_err *err) {
    if (foreign && !*imports)
        return fail(err, -EBUSY, "another thread gives the %s back", kind_names[kind]);
    ++*imports;
    return 0;
}

/* ---------------------------------------------------------------- protection domains */

static int adopt_pd(struct dev *dev, struct sought *s, struct rnic_err *err) {
    struct pd *pd = find_pd(dev, s->handle);
    s->ours = pd;
    return pd ? adopt(STORE_PD, &pd->imports, pd->foreign, err) : 0;
}

/* Another thread may have been faster. */
static int foreign_pd(struct dev *dev, struct sought *s, struct rnic_err *err) {
    struct pd *pd = new_pd(&dev->pub);
    if (!pd)
        return fail(err, -ENOMEM, "no memory");
    pd->pub.handle = s->handle;
    pd->foreign = true;
    pd->imports = 1;
    dev_lock(dev);
    int rc = adopt_pd(dev, s, err);
    if (!rc && !s->ours)
        link_pd(dev, s->ours = pd);
    dev_unlock(dev);
    if (s->ours != pd)
        free(pd);
    return rc;
}

int soft_import_pd(struct rnic_context *ctx, uint32_t handle, struct rnic_pd **out, struct rnic_err *err) {
    struct sought s = {.handle = handle};
    int rc = find(dev_of(ctx), STORE_PD, &s, adopt_pd, err);
    if (!rc && !s.ours)
        rc = foreign_pd(dev_of(ctx), &s, err);
    if (!rc)
        *out = &((struct pd *)s.ours)->pub;
    return rc;
}

int soft_unimport_pd(struct rnic_pd *pub, struct rnic_err *err) {
    struct pd *pd = (struct pd *)pub;
    struct dev *dev = dev_of(pub->ctx);
    int rc = give_back(dev, STORE_PD, &pd->imports, pd->foreign, err);
    if (rc > 0 && (rc = release_pd(pd, err)))
        return keep(dev, &pd->imports, rc);
    return rc;
}

/* ---------------------------------------------------------------- memory regions */

static int adopt_mr(struct dev *dev, struct sought *s, struct rnic_err *err) {
    struct mr *mr = mr_find(&dev->nic.mrs, s->handle);
    if (!mr || mr->window) /* no region, and of no other process: handles are keys */
        return 0;
    if (rnic_pd_root(mr->pub.pd) != rnic_pd_root(s->pd))
        return fail(err, -EINVAL, "handle %u: the memory region belongs to another protection domain", s->handle);
    s->ours = mr;
    return adopt(STORE_MR, &mr->imports, is_import(mr), err);
}

static struct mr *foreign_mr(struct dev *dev, struct rnic_pd *pd, const struct store_record *record, const uint64_t *is,
                             struct rnic_err *err) {
    uint64_t before = record->offset % (uint64_t)sysconf(_SC_PAGESIZE);
    struct mr *mr = new_mr(pd, NULL, record->length, record->access);
    uint8_t *addr;
    if (!mr || peer_map(&dev->peer, record, true, &addr, err)) {
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
        check_access(record->access, MR_ACCESS & ~(uint32_t)RNIC_ACCESS_FLUSH_PERSISTENT, NULL))
        return fail(err, -EINVAL, "handle %u: what the other process says of it cannot be", record->handle);
    return 0;
}

static int import_mr(struct rnic_pd *pd, uint32_t handle, struct rnic_mr **out, struct rnic_err *err) {
    struct dev *dev = dev_of(pd->ctx);
    struct sought s = {.handle = handle, .pd = pd};
    int rc = find(dev, STORE_MR, &s, adopt_mr, err);
    if (rc)
        return rc;
    if (s.ours) {
        *out = &((struct mr *)s.ours)->pub;
        return 0;
    }
    rc = check_record(&s.record, pd, err);
    if (rc)
        return rc;
    struct mr *mr = foreign_mr(dev, pd, &s.record, s.is, err);
    return mr ? enter_mr(mr, s.record.key, out, err) : -ENOMEM;
}

/* When another thread has been faster, its import is there to be adopted. */
int soft_import_mr(struct rnic_pd *pd, uint32_t handle, struct rnic_mr **out, struct rnic_err *err) {
    int rc = import_mr(pd, handle, out, err);
    return rc == -EEXIST ? import_mr(pd, handle, out, err) : rc;
}

int soft_unimport_mr(struct rnic_mr *pub, struct rnic_err *err) {
    struct mr *mr = (struct mr *)pub;
    struct dev *dev = dev_of(pub->ctx);
    int rc = give_back(dev, STORE_MR, &mr->imports, is_import(mr), err);
    if (rc > 0 && (rc = leave_mr(mr, err)))
        return keep(dev, &mr->imports, rc);
    return rc;
}

/* ---------------------------------------------------------------- device memory */

static int adopt_dm(struct dev *dev, struct sought *s, struct rnic_err *err) {
    struct dm *dm = find_dm(dev, s->handle);
    s->ours = dm;
    return dm ? adopt(STORE_DM, &dm->imports, dm->foreign, err) : 0;
}

/* Another thread may have been faster. */
static int foreign_dm(struct dev *dev, struct sought *s, struct rnic_err *err) {
    struct dm *dm = calloc(1, sizeof *dm);
    if (!dm || peer_map(&dev->peer, &s->record, true, &dm->mem, err)) {
        free(dm);
        return -ENOMEM;
    }
    dm->pub = (struct rnic_dm){&dev->pub, s->record.length, s->record.handle};
    dm->record = -1;
    dm->foreign = true;
    dm->imports = 1;
    dm->is = s->is;
    dm->was = s->record.serial;
    dev_lock(dev);
    int rc = adopt_dm(dev, s, err);
    if (!rc && !s->ours)
        enter_dm(s->ours = dm);
    dev_unlock(dev);
    if (s->ours == dm)
        return rc;
    peer_unmap(&s->record, dm->mem);
    free(dm);
    return rc;
}

int soft_import_dm(struct rnic_context *ctx, uint32_t handle, struct rnic_dm **out, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    struct sought s = {.handle = handle};
    int rc = find(dev, STORE_DM, &s, adopt_dm, err);
    if (rc)
        return rc;
    if (!s.ours && s.record.offset % (uint64_t)sysconf(_SC_PAGESIZE))
        return fail(err, -EINVAL, "handle %u: what the other process says of it cannot be", handle);
    if (!s.ours)
        rc = foreign_dm(dev, &s, err);
    if (!rc)
        *out = &((struct dm *)s.ours)->pub;
    return rc;
}

int soft_unimport_dm(struct rnic_dm *pub, struct rnic_err *err) {
    struct dm *dm = (struct dm *)pub;
    struct dev *dev = dev_of(pub->ctx);
    int rc = give_back(dev, STORE_DM, &dm->imports, dm->foreign, err);
    if (rc > 0 && (rc = release_dm(dm, err)))
        return keep(dev, &dm->imports, rc);
    return rc;
}
