/* SPDX-License-Identifier: Apache-2.0
 *
 * Protection domains, and what is common to memory regions of every kind (IBA 10.6, 11.2.1, 11.2.8).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fail.h"
#include "mem/mappings.h"
#include "mem/mw.h"
#include "nic_heap.h"
#include "verbs/verbs.h"

#define REMOTE_CHANGES (RNIC_ACCESS_REMOTE_WRITE | RNIC_ACCESS_REMOTE_ATOMIC)

/* ---------------------------------------------------------------- protection domains */

struct pd *new_pd(struct rnic_context *ctx) {
    struct pd *pd = calloc(1, sizeof *pd);
    if (pd)
        *pd = (struct pd){.pub.ctx = ctx, .record = -1};
    return pd;
}

struct pd *find_pd(const struct dev *dev, uint32_t handle) {
    for (struct listed *at = dev->objects.of[KIND_PD].first; at; at = at->next) {
        struct pd *pd = LISTED_IN(struct pd, listed, at);
        if (pd->pub.handle == handle)
            return pd;
    }
    return NULL;
}

static enum object_kind kind_of(const struct pd *pd) { return pd->pub.parent ? KIND_PARENT : KIND_PD; }

/* Under the lock. */
void link_pd(struct dev *dev, struct pd *pd) {
    while (!pd->pub.handle || (!pd->foreign && !pd->pub.parent && find_pd(dev, pd->pub.handle)))
        pd->pub.handle = rng_secret();
    object_enter(dev, kind_of(pd), &pd->listed);
    if (!pd->foreign && !pd->pub.parent)
        pd->record = store_publish(&dev->store, &(struct store_record){.kind = STORE_PD, .handle = pd->pub.handle});
}

void enter_pd(struct pd *pd) {
    struct dev *dev = dev_of(pd->pub.ctx);
    dev_lock(dev);
    link_pd(dev, pd);
    dev_unlock(dev);
}

int soft_alloc_pd(struct rnic_context *ctx, struct rnic_pd **out, struct rnic_err *err) {
    int rc = dev_check_usable(dev_of(ctx), err);
    struct pd *pd = rc ? NULL : new_pd(ctx);
    if (!pd)
        return rc ? rc : fail(err, -ENOMEM, "no memory");
    dev_lock(dev_of(ctx));
    rc = verbs_check_room(dev_of(ctx), KIND_PD, err);
    if (!rc)
        link_pd(dev_of(ctx), pd);
    dev_unlock(dev_of(ctx));
    if (rc) {
        free(pd);
        return rc;
    }
    *out = &pd->pub;
    return 0;
}

static int in_use(const struct pd *pd, struct rnic_err *err) {
    if (pd->imports && !pd->foreign)
        return fail(err, -EBUSY, "the protection domain is imported %d times in this process", pd->imports);
    if (pd->domains)
        return fail(err, -EBUSY, "%d parent domains stand for the protection domain", pd->domains);
    if (pd->cqs)
        return fail(err, -EBUSY, "%d completion queues were created with the parent domain", pd->cqs);
    if (!pd->mrs && !pd->qps && !pd->srqs && !pd->ahs && !pd->mws)
        return 0;
    return fail(err, -EBUSY,
                "the protection domain has %d memory regions, %d queue pairs, %d shared receive queues, %d address "
                "handles and %d memory windows",
                pd->mrs, pd->qps, pd->srqs, pd->ahs, pd->mws);
}

static void unlink_pd(struct dev *dev, struct pd *pd) {
    object_leave(dev, kind_of(pd), &pd->listed);
    store_withdraw(&dev->store, pd->record);
    if (pd->pub.parent)
        ((struct pd *)pd->pub.parent)->domains--;
    if (pd->td)
        pd->td->domains--;
}

int release_pd(struct pd *pd, struct rnic_err *err) {
    struct dev *dev = dev_of(pd->pub.ctx);
    dev_lock(dev);
    int rc = in_use(pd, err);
    if (!rc)
        unlink_pd(dev, pd);
    dev_unlock(dev);
    if (!rc)
        free(pd);
    return rc;
}

int soft_dealloc_pd(struct rnic_pd *pub, struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(pub->ctx), err);
    if (!rc && ((struct pd *)pub)->foreign)
        rc = fail(err, -EINVAL, "the protection domain is another process': give it back with unimport_pd");
    return rc ? rc : release_pd((struct pd *)pub, err);
}

/* ---------------------------------------------------------------- memory regions */

int check_access(uint32_t access, uint32_t allowed, struct rnic_err *err) {
    if (access & ~allowed)
        return fail(err, -EOPNOTSUPP, "access flags 0x%x are not supported for this memory", access & ~allowed);
    if ((access & REMOTE_CHANGES) && !(access & RNIC_ACCESS_LOCAL_WRITE)) /* IBA 10.6.3.1; man ibv_reg_mr */
        return fail(err, -EINVAL, "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE as well");
    return 0;
}

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

static int populate(void *at, size_t length, int how) { return madvise(at, length, how) ? errno : 0; }

static const char *unreadable(const struct mapping *m) { return m->perms[0] == 'r' ? NULL : "may not be read"; }
static const char *unwritable(const struct mapping *m) { return m->perms[1] == 'w' ? NULL : "may not be written"; }

/* Of what the system cannot bring in, such as a device's memory, and of all memory before Linux 5.14. */
static int check_rights(void *from, uint64_t length, bool writes, struct rnic_err *err) {
    const char *why;
    uint64_t at;
    if (!mappings_check(from, length, writes ? unwritable : unreadable, &why, &at) || !why)
        return 0;
    return fail(err, -EFAULT, "the memory at 0x%" PRIx64 " %s%s", at, why,
                writes ? ", and LOCAL_WRITE needs that" : "");
}

/* Brings the pages in, and finds out without a signal whether they can be read, or written.  Registration on a
 * hardware NIC pins them; software needs no physical addresses. */
int check_mapped(void *addr, uint64_t length, uint32_t access, struct rnic_err *err) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)addr & ~(page - 1);
    uintptr_t to = ((uintptr_t)addr + length + page - 1) & ~(page - 1);
    bool writes = access & RNIC_ACCESS_LOCAL_WRITE;
    if (!length)
        return 0;
    if ((uintptr_t)addr + length < (uintptr_t)addr || to <= from)
        return fail(err, -EINVAL, "the range wraps around the address space");
    int error = populate((void *)from, to - from, writes ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
    if (!error)
        return 0;
    if (error == EINVAL)
        return check_rights((void *)from, to - from, writes, err);
    if (error == ENOMEM || error == EFAULT)
        return fail(err, -EFAULT, "the memory is not mapped, or lies behind the end of its file");
    return fail(err, -error, "the memory cannot be used: %s", strerror(error));
}

struct mr *new_mr(struct rnic_pd *pd, void *addr, uint64_t length, uint32_t access) {
    struct mr *mr = calloc(1, sizeof *mr);
    if (!mr)
        return NULL;
    mr->pub = (struct rnic_mr){.ctx = pd->ctx, .pd = pd, .addr = addr, .length = length, .iova = (uintptr_t)addr};
    mr->access = access;
    mr->fd = mr->record = mr->sealed = -1;
    return mr;
}

void free_stored(struct dev *dev, uint64_t offset, uint64_t length, uint8_t *addr) {
    dev_lock(dev);
    struct store_range range = store_free(&dev->store, offset, length, addr);
    dev_unlock(dev);
    store_discard(&dev->store, &range);
}

void free_mr(struct mr *mr) {
    struct dev *dev = dev_of(mr->pub.ctx);
    unlock_memory(&mr->lock);
    if (mr->sealed >= 0) {
        dev_lock(dev);
        store_free_sealed(&dev->store, mr->sealed, mr->map_bytes, mr->map);
        dev_unlock(dev);
    } else if (mr->stored)
        free_stored(dev, mr->stored_at, mr->map_bytes, mr->map);
    else if (mr->map)
        munmap(mr->map, mr->map_bytes);
    if (mr->fd >= 0)
        close(mr->fd);
    free(mr);
}

static bool is_ordinary(const struct mr *mr) { return mr->kind == MR_PLAIN && !mr->dm && !mr->map && !mr_in_file(mr); }

/* Where its bytes lie in a file that peers on this host can map: the device's own, into which the program's memory may fall
 * that the device has made for another region; one of the region alone; or the program's heap. */
static void place(struct dev *dev, const struct mr *mr, struct store_record *r) {
    uint64_t offset;
    struct rnic_heap_place heap;
    if (mr->sealed >= 0) {
        r->kind = STORE_SEALED;
        r->offset = (uint64_t)mr->sealed;
        r->inode = mr->inode;
    } else if (mr_in_file(mr) || store_find(&dev->store, mr->pub.addr, mr->pub.length, &offset)) {
        r->kind = STORE_MR;
        r->offset = mr_in_file(mr) ? mr->stored_at : offset;
    } else {
        r->kind = STORE_ORDINARY;
        r->offset = mr->pub.iova + mr->shift;
        if (rnic_heap_find && rnic_heap_find(mr->pub.addr, mr->pub.length, &heap)) {
            r->heap = (uint32_t)heap.fd + 1;
            r->heap_offset = heap.offset;
            r->inode = heap.inode;
        }
    }
}

void publish_mr(struct dev *dev, struct mr *mr) {
    if (!mr->pub.length || (!mr_in_file(mr) && !(is_ordinary(mr) && dev->host.local)))
        return;
    struct store_record record = {.handle = mr->pub.handle,
                                  .pd = rnic_pd_root(mr->pub.pd)->handle,
                                  .key = mr->pub.lkey,
                                  .access = mr->access,
                                  .iova = mr->pub.iova,
                                  .length = mr->pub.length};
    place(dev, mr, &record);
    mr->is_mapped = record.kind != STORE_ORDINARY || record.heap;
    mr->record = store_publish(&dev->store, &record);
}

/* Other threads may make something of it until the lock is held, and while it is let go. */
static int check_unused(const struct mr *mr, struct rnic_err *err) {
    int rc = check_windows(mr, err);
    return rc || !mr->imports
               ? rc
               : fail(err, -EBUSY, "the memory region is imported %d times in this process", mr->imports);
}

static int claim(struct mr *mr, struct rnic_err *err) {
    if (mr->leaving)
        return fail(err, -EBUSY, "another thread is closing or re-registering the region");
    mr->leaving = true;
    return 0;
}

int claim_mr(struct dev *dev, struct mr *mr, struct rnic_err *err) {
    dev_lock(dev);
    int rc = claim(mr, err);
    dev_unlock(dev);
    return rc;
}

/* Peers may only read it, by the kernel.  A reader that is stopped in a copy finds out later that it has gone, and asks again. */
static bool is_only_copied(const struct mr *mr) {
    return !mr->is_mapped && !(mr->access & (RNIC_ACCESS_REMOTE_WRITE | RNIC_ACCESS_REMOTE_ATOMIC));
}

static int inside(struct rnic_err *err) {
    return fail(err, -EBUSY, "a process that has been stopped is in the middle of reading or writing the region");
}

int withdraw_mr(struct dev *dev, struct mr *mr, struct rnic_err *err) {
    int record = mr->record, rc = check_unused(mr, err);
    if (rc)
        return rc;
    store_withdraw(&dev->store, record);
    mr->record = -1;
    if (record < 0)
        return 0;
    rc = lanes_await(&dev->host, 0) || is_only_copied(mr) ? check_unused(mr, err) : inside(err);
    if (rc)
        publish_mr(dev, mr);
    return rc;
}

int withdraw_all_mrs(struct dev *dev, struct rnic_err *err) {
    bool wait = false;
    for (struct listed *one = dev->objects.of[KIND_MR].first; one; one = one->next) {
        struct mr *mr = LISTED_IN(struct mr, listed, one);
        wait |= mr->record >= 0 && !is_only_copied(mr);
        store_withdraw(&dev->store, mr->record);
        mr->record = -1;
    }
    if (!wait || lanes_await(&dev->host, 0))
        return 0;
    for (struct listed *one = dev->objects.of[KIND_MR].first; one; one = one->next)
        publish_mr(dev, LISTED_IN(struct mr, listed, one));
    return inside(err);
}

static int give_key(struct dev *dev, struct mr *mr, uint32_t key, struct rnic_err *err) {
    int rc = verbs_check_room(dev, KIND_MR, err);
    if (rc)
        return rc;
    rc = key ? mr_insert_as(&dev->nic.mrs, mr, key) : mr_insert(&dev->nic.mrs, mr);
    if (rc == -EEXIST)
        return fail(err, rc, "this context has a region with the same key already");
    return rc ? fail(err, rc, "no memory for the key table, or %d regions are registered", MAX_MR) : 0;
}

int enter_mr(struct mr *mr, uint32_t key, struct rnic_mr **out, struct rnic_err *err) {
    struct dev *dev = dev_of(mr->pub.ctx);
    dev_lock(dev);
    int rc = give_key(dev, mr, key, err);
    if (!rc) {
        object_enter(dev, KIND_MR, &mr->listed);
        ((struct pd *)mr->pub.pd)->mrs++;
        if (mr->dm)
            mr->dm->mrs++;
        mr->pub.handle = mr->pub.lkey;
        publish_mr(dev, mr);
    }
    dev_unlock(dev);
    if (rc) {
        free_mr(mr);
        return rc;
    }
    *out = &mr->pub;
    return 0;
}

/* IBA 11.2.8.5; man ibv_dereg_mr */
int check_windows(const struct mr *mr, struct rnic_err *err) {
    return mr->windows ? fail(err, -EBUSY,
                              "the memory window with rkey 0x%x is bound to it: unbind, invalidate or close it first",
                              mr->windows->entry.pub.rkey)
                       : 0;
}

static int close_off(struct dev *dev, struct mr *mr, struct rnic_err *err) {
    int rc = claim(mr, err);
    if (rc)
        return rc;
    rc = withdraw_mr(dev, mr, err);
    mr->leaving = rc == 0;
    return rc;
}

/* The engine touches bytes only under the lock, so after it nobody does. */
int leave_mr(struct mr *mr, struct rnic_err *err) {
    struct dev *dev = dev_of(mr->pub.ctx);
    dev_lock(dev);
    int rc = close_off(dev, mr, err);
    if (rc) {
        dev_unlock(dev);
        return rc;
    }
    mr_remove(&dev->nic.mrs, mr);
    mr_remember(&dev->nic.mrs, mr->pub.rkey, run_clock());
    object_leave(dev, KIND_MR, &mr->listed);
    ((struct pd *)mr->pub.pd)->mrs--;
    if (mr->dm)
        mr->dm->mrs--;
    dev_unlock(dev);
    free_mr(mr);
    return 0;
}

int soft_reg_mr(struct rnic_pd *pd, void *addr, uint64_t length, uint32_t access, struct rnic_mr **mr,
                struct rnic_err *err) {
    return soft_reg_mr_ex(pd, &(struct rnic_mr_init_attr){.access = access, .addr = addr, .length = length}, mr, err);
}

int soft_alloc_mr(struct rnic_pd *pd, uint64_t length, uint32_t access, struct rnic_mr **mr, struct rnic_err *err) {
    return soft_reg_mr_ex(
        pd, &(struct rnic_mr_init_attr){.comp_mask = RNIC_MR_INIT_ALLOC, .access = access, .length = length}, mr, err);
}

int soft_dereg_mr(struct rnic_mr *pub, struct rnic_err *err) {
    struct mr *mr = (struct mr *)pub;
    int rc = dev_check_alive(dev_of(pub->ctx), err);
    if (rc)
        return rc;
    if (is_import(mr))
        return fail(err, -EINVAL, "the memory region is another process': give it back with unimport_mr");
    return leave_mr(mr, err);
}
