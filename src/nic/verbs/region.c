/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the memory of a region comes from, and how a region changes (IBA 11.2.8; man ibv_reg_mr, ibv_rereg_mr,
 * ibv_advise_mr).
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "mem/persist.h"
#include "verbs/verbs.h"

#define SOURCES (RNIC_MR_INIT_FD | RNIC_MR_INIT_DM | RNIC_MR_INIT_ALLOC)

/* What may be done to memory of a source. */
static uint32_t allowed(uint32_t source) {
    switch (source) {
    case 0:
        return MR_ACCESS | RNIC_ACCESS_ON_DEMAND;
    case RNIC_MR_INIT_FD: /* man ibv_reg_mr has no more for dma-bufs; atomics have their own words */
        return MR_ACCESS & ~(uint32_t)(RNIC_ACCESS_HUGETLB | RNIC_ACCESS_ZERO_BASED);
    case RNIC_MR_INIT_DM:
        return MR_ACCESS & ~(uint32_t)RNIC_ACCESS_HUGETLB;
    default:
        return MR_ACCESS;
    }
}

static void name_as(struct mr *mr, uint64_t iova) {
    mr->shift += mr->pub.iova - iova;
    mr->pub.iova = iova;
}

/* Of memory that is not the caller's own mapping. */
static int check_persistent(uint32_t access, uint32_t source, struct rnic_err *err) {
    if (!source || !(access & RNIC_ACCESS_FLUSH_PERSISTENT))
        return 0;
    return fail(
        err, -EOPNOTSUPP,
        source == RNIC_MR_INIT_ALLOC
            ? "FLUSH_PERSISTENT: a memory file is gone with its process; map a file of a disk and use reg_mr"
            : "FLUSH_PERSISTENT: only memory that a file of a disk is mapped to can be made to last; use reg_mr");
}

static int check_on_demand(uint32_t access, struct rnic_err *err) {
    if (access & RNIC_ACCESS_REMOTE_ATOMIC && !guarded_word_works())
        return fail(err, -EOPNOTSUPP,
                    "REMOTE_ATOMIC and ON_DEMAND: this system forbids a child that shares the process' memory (clone)");
    if (access & RNIC_ACCESS_FLUSH_PERSISTENT)
        return fail(err, -EOPNOTSUPP,
                    "FLUSH_PERSISTENT and ON_DEMAND: pages that come and go cannot be promised to last");
    if (!kind_guard_works())
        return fail(err, -EOPNOTSUPP, "ON_DEMAND: this system forbids process_vm_readv() on the process itself");
    return 0;
}

/* ---------------------------------------------------------------- the caller's memory */

static int check_own(void *addr, uint64_t length, uint32_t access, struct rnic_err *err) {
    int rc = check_mapped(addr, length, access, err);
    return rc || !(access & RNIC_ACCESS_FLUSH_PERSISTENT) ? rc : mem_can_persist(addr, length, err);
}

static int take_addr(struct mr *mr, const struct rnic_mr_init_attr *attr, struct rnic_err *err) {
    bool on_demand = attr->access & RNIC_ACCESS_ON_DEMAND;
    if (!on_demand)
        return check_own(attr->addr, attr->length, attr->access, err);
    if (attr->comp_mask & RNIC_MR_INIT_LOCK)
        return fail(err, -EINVAL, "ON_DEMAND lets pages come and go, which a lock forbids: choose one");
    if ((uintptr_t)attr->addr + attr->length < (uintptr_t)attr->addr)
        return fail(err, -EINVAL, "the range wraps around the address space");
    mr->kind = MR_GUARDED;
    return check_on_demand(attr->access, err);
}

/* What peers may read and no request may write; where that cannot be enforced, they keep to it all the same. */
static bool take_sealed(struct dev *dev, struct mr *mr) {
    const uint32_t both = RNIC_ACCESS_REMOTE_READ | RNIC_ACCESS_LOCAL_WRITE;
    return dev->host.local && (mr->access & both) == RNIC_ACCESS_REMOTE_READ &&
           !store_alloc_sealed(&dev->store, mr->pub.length, &mr->sealed, &mr->inode, &mr->map);
}

static int take_alloc(struct mr *mr, struct rnic_err *err) {
    struct dev *dev = dev_of(mr->pub.ctx);
    dev_lock(dev);
    int rc = take_sealed(dev, mr) ? 0 : store_alloc(&dev->store, mr->pub.length, &mr->stored_at, &mr->map, err);
    dev_unlock(dev);
    if (rc)
        return rc;
    mr->stored = true;
    mr->map_bytes = mr->pub.length;
    mr->pub.addr = mr->map;
    mr->pub.iova = (uintptr_t)mr->map;
    return 0;
}

/* ---------------------------------------------------------------- dma-bufs and other files */

static int check_file(const struct rnic_mr_init_attr *attr, struct rnic_err *err) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    off_t size = lseek(attr->fd, 0, SEEK_END); /* of a dma-buf, stat knows nothing */
    if (size < 0)
        return fail(err, -errno, "descriptor %d is no memory: %s", attr->fd, strerror(errno));
    if (attr->fd_offset % page != attr->iova % page) /* man ibv_reg_dmabuf_mr */
        return fail(err, -EINVAL, "iova 0x%llx and offset 0x%llx lie at different places of their pages",
                    (unsigned long long)attr->iova, (unsigned long long)attr->fd_offset);
    if (attr->fd_offset > (uint64_t)size || attr->length > (uint64_t)size - attr->fd_offset)
        return fail(err, -EINVAL, "%llu bytes at offset %llu; descriptor %d has %llu", (unsigned long long)attr->length,
                    (unsigned long long)attr->fd_offset, attr->fd, (unsigned long long)size);
    return 0;
}

static int take_file(struct mr *mr, const struct rnic_mr_init_attr *attr, struct rnic_err *err) {
    uint64_t before = attr->fd_offset % (uint64_t)sysconf(_SC_PAGESIZE);
    int prot = attr->access & RNIC_ACCESS_LOCAL_WRITE ? PROT_READ | PROT_WRITE : PROT_READ, rc = 0;
    if (attr->access & RNIC_ACCESS_REMOTE_ATOMIC)
        rc = fail(err, -EOPNOTSUPP, "REMOTE_ATOMIC: no atomic operation is possible in the memory of a descriptor");
    else if (attr->comp_mask & RNIC_MR_INIT_LOCK)
        rc = fail(err, -EINVAL, "the memory of a descriptor is not this process' to lock");
    if (!rc)
        rc = check_file(attr, err);
    if (rc)
        return rc;
    void *at = mmap(NULL, before + attr->length, prot, MAP_SHARED, attr->fd, (off_t)(attr->fd_offset - before));
    if (at == MAP_FAILED)
        return fail(err, -errno, "descriptor %d cannot be mapped%s: %s", attr->fd,
                    prot & PROT_WRITE ? " for LOCAL_WRITE" : "", strerror(errno));
    mr->map = at;
    mr->map_bytes = before + attr->length;
    mr->fd = fcntl(attr->fd, F_DUPFD_CLOEXEC, 0);
    if (mr->fd < 0)
        return fail(err, -errno, "descriptor %d: %s", attr->fd, strerror(errno));
    mr->kind = kind_of_file(attr->fd);
    if (mr->kind == MR_GUARDED && !kind_guard_works())
        return fail(err, -EOPNOTSUPP, "this system forbids process_vm_readv() on the process itself");
    mr->pub.iova = (uintptr_t)at + before;
    name_as(mr, attr->iova);
    return 0;
}

/* ---------------------------------------------------------------- device memory */

static int take_dm(struct mr *mr, const struct rnic_mr_init_attr *attr, struct rnic_err *err) {
    struct dm *dm = (struct dm *)attr->dm;
    if (!(attr->access & RNIC_ACCESS_ZERO_BASED))
        return fail(err, -EINVAL, "a region of device memory is zero-based: give ZERO_BASED as well");
    if (!dm || dm->pub.ctx != mr->pub.ctx)
        return fail(err, -EINVAL, "the device memory belongs to another device than the protection domain");
    if (attr->fd_offset > dm->pub.length || attr->length > dm->pub.length - attr->fd_offset)
        return fail(err, -EINVAL, "%llu bytes at offset %llu; the device memory has %llu",
                    (unsigned long long)attr->length, (unsigned long long)attr->fd_offset,
                    (unsigned long long)dm->pub.length);
    mr->dm = dm;
    mr->stored_at = dm->stored_at + attr->fd_offset;
    mr->pub.iova = (uintptr_t)dm->mem + attr->fd_offset;
    if (dm->foreign) {
        mr->kind = MR_FOREIGN;
        mr->is = dm->is;
        mr->was = dm->was;
    }
    name_as(mr, 0);
    return 0;
}

/* ---------------------------------------------------------------- registration */

static int take(struct mr *mr, const struct rnic_mr_init_attr *attr, struct rnic_err *err) {
    switch (attr->comp_mask & SOURCES) {
    case 0:
        return take_addr(mr, attr, err);
    case RNIC_MR_INIT_FD:
        return take_file(mr, attr, err);
    case RNIC_MR_INIT_DM:
        return take_dm(mr, attr, err);
    case RNIC_MR_INIT_ALLOC:
        return take_alloc(mr, err);
    default:
        return fail(err, -EINVAL, "memory of two sources at once");
    }
}

int soft_reg_mr_ex(struct rnic_pd *pd, const struct rnic_mr_init_attr *attr, struct rnic_mr **out,
                   struct rnic_err *err) {
    uint32_t source = attr->comp_mask & SOURCES;
    bool renamed = (attr->comp_mask & RNIC_MR_INIT_IOVA) && source != RNIC_MR_INIT_FD;
    int rc = dev_check_usable(dev_of(pd->ctx), err);
    if (!rc && (attr->comp_mask & ~(SOURCES | RNIC_MR_INIT_IOVA | RNIC_MR_INIT_LOCK)))
        rc = fail(err, -EINVAL, "comp_mask 0x%x has bits that mean nothing here", attr->comp_mask);
    if (!rc)
        rc = check_access(attr->access, allowed(source), err);
    if (!rc)
        rc = check_persistent(attr->access, source, err);
    if (!rc && !attr->length && (source & (RNIC_MR_INIT_ALLOC | RNIC_MR_INIT_FD)))
        rc = fail(err, -EINVAL, "memory that is made or mapped for a region has at least 1 byte");
    if (!rc && renamed && attr->iova + attr->length < attr->iova)
        rc =
            fail(err, -EINVAL, "iova 0x%llx: the range wraps around the address space", (unsigned long long)attr->iova);
    if (!rc && renamed && attr->iova && (attr->access & RNIC_ACCESS_ZERO_BASED) && source != RNIC_MR_INIT_DM)
        rc = fail(err, -EINVAL, "ZERO_BASED names the bytes from 0 on, iova from 0x%llx on: choose one",
                  (unsigned long long)attr->iova);
    if (rc)
        return rc;
    struct mr *mr = new_mr(pd, attr->addr, attr->length, attr->access);
    if (!mr)
        return fail(err, -ENOMEM, "no memory");
    rc = take(mr, attr, err);
    if (!rc && attr->length && (attr->comp_mask & RNIC_MR_INIT_LOCK))
        rc = lock_memory(&mr->lock, (const void *)(uintptr_t)(mr->pub.iova + mr->shift), mr->pub.length, err);
    if (rc) {
        free_mr(mr);
        return rc;
    }
    if (renamed)
        name_as(mr, attr->iova);
    else if (attr->access & RNIC_ACCESS_ZERO_BASED)
        name_as(mr, 0);
    return enter_mr(mr, 0, out, err);
}

/* It has all addresses; man ibv_alloc_null_mr: peers cannot use it. */
int soft_alloc_null_mr(struct rnic_pd *pd, struct rnic_mr **out, struct rnic_err *err) {
    int rc = dev_check_usable(dev_of(pd->ctx), err);
    struct mr *mr = rc ? NULL : new_mr(pd, NULL, UINT64_MAX, RNIC_ACCESS_LOCAL_WRITE);
    if (!mr)
        return rc ? rc : fail(err, -ENOMEM, "no memory");
    mr->kind = MR_NULL;
    rc = enter_mr(mr, 0, out, err);
    if (!rc)
        (*out)->rkey = 0;
    return rc;
}

/* ---------------------------------------------------------------- re-registration */

static uint32_t source_of(const struct mr *mr) {
    return mr->dm ? RNIC_MR_INIT_DM : mr->stored ? RNIC_MR_INIT_ALLOC : mr->map ? RNIC_MR_INIT_FD : 0;
}

static int check_change(const struct mr *mr, uint32_t flags, const struct rnic_pd *pd, struct rnic_err *err) {
    static const uint32_t all =
        RNIC_REREG_MR_CHANGE_TRANSLATION | RNIC_REREG_MR_CHANGE_PD | RNIC_REREG_MR_CHANGE_ACCESS;
    uint32_t source = source_of(mr);
    if (!flags || (flags & ~all))
        return fail(err, -EINVAL, "flags 0x%x: CHANGE_TRANSLATION, CHANGE_PD and CHANGE_ACCESS are what can change",
                    flags);
    if (mr->kind == MR_NULL || is_import(mr)) /* man ibv_alloc_null_mr */
        return fail(err, -EINVAL, "%s cannot be re-registered", is_import(mr) ? "an import" : "a null region");
    if (mr->imports)
        return fail(err, -EBUSY, "the memory region is imported %d times in this process", mr->imports);
    if ((flags & RNIC_REREG_MR_CHANGE_PD) && (!pd || pd->ctx != mr->pub.ctx))
        return fail(err, -EINVAL, "CHANGE_PD needs a protection domain of the region's own device");
    if ((flags & RNIC_REREG_MR_CHANGE_TRANSLATION) && source)
        return fail(err, -EINVAL, "CHANGE_TRANSLATION: this region's memory is not given by an address");
    if ((flags & RNIC_REREG_MR_CHANGE_TRANSLATION) && mr->lock.to)
        return fail(err, -EOPNOTSUPP, "CHANGE_TRANSLATION: a locked region stays where it is; register anew");
    if ((flags & RNIC_REREG_MR_CHANGE_ACCESS) && source == RNIC_MR_INIT_FD)
        return fail(err, -EOPNOTSUPP, "CHANGE_ACCESS: a descriptor is mapped as it was registered; register anew");
    return 0;
}

/* Everything that can fail, before anything changes. */
static int check_result(const struct mr *mr, uint32_t flags, const struct rnic_mr_init_attr *then,
                        struct rnic_err *err) {
    bool on_demand = then->access & RNIC_ACCESS_ON_DEMAND;
    int rc = check_access(then->access, allowed(source_of(mr)), err);
    if (!rc)
        rc = check_persistent(then->access, source_of(mr), err);
    if (!rc && ((then->access ^ mr->access) & RNIC_ACCESS_ZERO_BASED) && !mr->dm &&
        !(flags & RNIC_REREG_MR_CHANGE_TRANSLATION))
        rc = fail(err, -EINVAL, "ZERO_BASED changes how the bytes are named, which needs CHANGE_TRANSLATION");
    if (rc || source_of(mr) || flags == RNIC_REREG_MR_CHANGE_PD)
        return rc;
    if (!on_demand)
        return check_own(then->addr, then->length, then->access, err);
    if ((uintptr_t)then->addr + then->length < (uintptr_t)then->addr)
        return fail(err, -EINVAL, "the range wraps around the address space");
    if (mr->lock.to)
        return fail(err, -EINVAL, "ON_DEMAND lets pages come and go, which the region's lock forbids");
    return check_on_demand(then->access, err);
}

static void apply(struct mr *mr, uint32_t flags, struct rnic_pd *pd, const struct rnic_mr_init_attr *then) {
    if (flags & RNIC_REREG_MR_CHANGE_PD) {
        ((struct pd *)mr->pub.pd)->mrs--;
        ((struct pd *)pd)->mrs++;
        mr->pub.pd = pd;
    }
    mr->access = then->access;
    if (!source_of(mr))
        mr->kind = then->access & RNIC_ACCESS_ON_DEMAND ? MR_GUARDED : MR_PLAIN;
    if (!(flags & RNIC_REREG_MR_CHANGE_TRANSLATION))
        return;
    mr->pub.addr = then->addr;
    mr->pub.length = then->length;
    mr->pub.iova = (uintptr_t)then->addr;
    mr->shift = 0;
    mr->lost = false;
    if (then->access & RNIC_ACCESS_ZERO_BASED)
        name_as(mr, 0);
}

/* Keys stay: a peer that has one keeps it.  Between the old and the new nobody sees anything else. */
int soft_rereg_mr(struct rnic_mr *pub, uint32_t flags, struct rnic_pd *pd, void *addr, uint64_t length, uint32_t access,
                  struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct mr *mr = (struct mr *)pub;
    bool moves = flags & RNIC_REREG_MR_CHANGE_TRANSLATION;
    int rc = dev_check_alive(dev, err);
    if (!rc)
        rc = claim_mr(dev, mr, err);
    if (rc)
        return rc;
    struct rnic_mr_init_attr then = {.addr = moves ? addr : pub->addr,
                                     .length = moves ? length : pub->length,
                                     .access = flags & RNIC_REREG_MR_CHANGE_ACCESS ? access : mr->access};
    rc = check_change(mr, flags, pd, err);
    if (!rc)
        rc = check_result(mr, flags, &then, err);
    dev_lock(dev);
    if (!rc)
        rc = withdraw_mr(dev, mr, err); /* IBA 11.2.8.7: not while windows are bound to it */
    if (!rc) {
        apply(mr, flags, pd, &then);
        publish_mr(dev, mr);
    }
    mr->leaving = false;
    dev_unlock(dev);
    return rc;
}

/* ---------------------------------------------------------------- advice */

/* The errors are those of the kernel's mlx5 for the same mistakes. */
static int check_advice(const struct dev *dev, const struct rnic_pd *pd, int advice, const struct rnic_sge *sge,
                        struct rnic_err *err) {
    const struct mr *mr = mr_find(&dev->nic.mrs, sge->lkey);
    if (!mr)
        return fail(err, -ENOENT, "lkey 0x%x is not registered", sge->lkey);
    if (!(mr->access & RNIC_ACCESS_ON_DEMAND))
        return fail(err, -EINVAL, "lkey 0x%x: the region is not registered ON_DEMAND, all of it is there", sge->lkey);
    if (rnic_pd_root(mr->pub.pd) != rnic_pd_root(pd))
        return fail(err, -EPERM, "lkey 0x%x belongs to another protection domain", sge->lkey);
    if (advice == RNIC_ADVISE_MR_ADVICE_PREFETCH_WRITE && !(mr->access & RNIC_ACCESS_LOCAL_WRITE))
        return fail(err, -EPERM, "lkey 0x%x: PREFETCH_WRITE, and the region lacks LOCAL_WRITE", sge->lkey);
    if (sge->addr < mr->pub.iova || sge->length > mr->pub.length ||
        sge->addr - mr->pub.iova > mr->pub.length - sge->length)
        return fail(err, -EFAULT, "the range reaches outside the region of lkey 0x%x", sge->lkey);
    return 0;
}

static int prefetch(struct dev *dev, const struct rnic_pd *pd, int advice, const struct rnic_sge *sge, bool flush,
                    struct rnic_err *err) {
    dev_lock(dev);
    int rc = check_advice(dev, pd, advice, sge, err);
    uint64_t shift = rc ? 0 : mr_find(&dev->nic.mrs, sge->lkey)->shift;
    dev_unlock(dev);
    /* NO_FAULT asks for what the host has already; this device has no page tables of its own. */
    if (rc || advice == RNIC_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT || !sge->length)
        return rc;
    uint32_t access = advice == RNIC_ADVISE_MR_ADVICE_PREFETCH_WRITE ? RNIC_ACCESS_LOCAL_WRITE : 0;
    rc = check_mapped((void *)(uintptr_t)(sge->addr + shift), sge->length, access, err);
    return flush ? rc : 0;
}

int soft_advise_mr(struct rnic_pd *pd, int advice, uint32_t flags, const struct rnic_sge *sg_list, int num_sge,
                   struct rnic_err *err) {
    struct dev *dev = dev_of(pd->ctx);
    int rc = dev_check_alive(dev, err);
    if (!rc && (advice < RNIC_ADVISE_MR_ADVICE_PREFETCH || advice > RNIC_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT))
        rc = fail(err, -EOPNOTSUPP, "advice %d: PREFETCH, PREFETCH_WRITE and PREFETCH_NO_FAULT are known", advice);
    if (!rc && ((flags & ~(uint32_t)RNIC_ADVISE_MR_FLAG_FLUSH) || num_sge < 1))
        rc = fail(err, -EINVAL, "flags 0x%x, %d elements: there is FLUSH, and at least one element", flags, num_sge);
    for (int i = 0; !rc && i < num_sge; i++)
        rc = prefetch(dev, pd, advice, &sg_list[i], flags & RNIC_ADVISE_MR_FLAG_FLUSH, err);
    return rc;
}
