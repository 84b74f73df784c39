/* SPDX-License-Identifier: Apache-2.0
 *
 * Protection domains and memory regions (IBA 10.6, 11.2.1, 11.2.8).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fail.h"
#include "dev/verbs.h"
#include "mem/persist.h"

#define REMOTE_CHANGES (RNIC_ACCESS_REMOTE_WRITE | RNIC_ACCESS_REMOTE_ATOMIC)
#define MR_ACCESS                                                                                                      \
    (RNIC_ACCESS_LOCAL_WRITE | RNIC_ACCESS_REMOTE_WRITE | RNIC_ACCESS_REMOTE_READ | RNIC_ACCESS_REMOTE_ATOMIC |        \
     RNIC_ACCESS_RELAXED_ORDERING | RNIC_ACCESS_FLUSH_GLOBAL | RNIC_ACCESS_FLUSH_PERSISTENT)

int soft_alloc_pd(struct rnic_context *ctx, struct rnic_pd **out, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    struct pd *pd = calloc(1, sizeof *pd);
    if (!pd)
        return fail(err, -ENOMEM, "no memory");
    pd->pub.ctx = ctx;
    dev_lock(dev);
    dev->pds++;
    dev_unlock(dev);
    *out = &pd->pub;
    return 0;
}

int soft_dealloc_pd(struct rnic_pd *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct pd *pd = (struct pd *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    int mrs = pd->mrs, qps = pd->qps, srqs = pd->srqs, ahs = pd->ahs;
    if (!mrs && !qps && !srqs && !ahs)
        dev->pds--;
    dev_unlock(dev);
    if (mrs || qps || srqs || ahs)
        return fail(err, -EBUSY,
                    "the protection domain has %d memory regions, %d queue pairs, %d shared receive queues and %d "
                    "address handles",
                    mrs, qps, srqs, ahs);
    free(pd);
    return 0;
}

static int check_access(uint32_t access, struct rnic_err *err) {
    if (access & ~(uint32_t)MR_ACCESS)
        return fail(err, -EOPNOTSUPP, "access flags 0x%x are not supported", access & ~(uint32_t)MR_ACCESS);
    if ((access & REMOTE_CHANGES) && !(access & RNIC_ACCESS_LOCAL_WRITE)) /* IBA 10.6.3.1; man ibv_reg_mr */
        return fail(err, -EINVAL, "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE as well");
    return 0;
}

/* Brings the pages in, and finds out without a signal whether they can be read, or written.  Registration on a
 * hardware NIC pins them; software needs no physical addresses. */
static int check_mapped(void *addr, uint64_t length, uint32_t access, struct rnic_err *err) {
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)addr & ~(page - 1);
    uintptr_t to = ((uintptr_t)addr + length + page - 1) & ~(page - 1);
    bool writes = access & RNIC_ACCESS_LOCAL_WRITE;
    if ((uintptr_t)addr + length < (uintptr_t)addr || to < from)
        return fail(err, -EINVAL, "the range wraps around the address space");
    if (madvise((void *)from, to - from, writes ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0 || errno == EINVAL)
        return 0; /* EINVAL: before Linux 5.14, or memory that cannot be populated, such as a device's */
    if (errno == ENOMEM || errno == EFAULT)
        return fail(err, -EFAULT, "the memory is not mapped%s", writes ? ", or may not be written" : "");
    return fail(err, -errno, "the memory cannot be used: %s", strerror(errno));
}

static int enter_mr(struct rnic_pd *pd, void *addr, uint64_t length, uint32_t access, int memfd, struct rnic_mr **out,
                    struct rnic_err *err) {
    struct dev *dev = dev_of(pd->ctx);
    struct mr *mr = calloc(1, sizeof *mr);
    if (!mr)
        return fail(err, -ENOMEM, "no memory");
    mr->pub = (struct rnic_mr){.ctx = pd->ctx, .pd = pd, .addr = addr, .length = length};
    mr->access = access;
    mr->memfd = memfd;
    dev_lock(dev);
    int rc = mr_insert(&dev->nic.mrs, mr);
    if (!rc)
        ((struct pd *)pd)->mrs++;
    dev_unlock(dev);
    if (rc) {
        free(mr);
        return fail(err, rc, "no memory for the key table, or %d regions are registered", MAX_MR);
    }
    *out = &mr->pub;
    return 0;
}

int soft_reg_mr(struct rnic_pd *pd, void *addr, uint64_t length, uint32_t access, struct rnic_mr **mr,
                struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(pd->ctx), err);
    if (!rc)
        rc = check_access(access, err);
    if (!rc && length == 0)
        rc = fail(err, -EINVAL, "a memory region has at least 1 byte");
    if (!rc)
        rc = check_mapped(addr, length, access, err);
    if (!rc && (access & RNIC_ACCESS_FLUSH_PERSISTENT))
        rc = mem_can_persist(addr, length, err);
    return rc ? rc : enter_mr(pd, addr, length, access, -1, mr, err);
}

static int make_memory(uint64_t length, void **addr, int *fd, struct rnic_err *err) {
    *fd = memfd_create("rnic-mr", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0)
        return fail(err, -errno, "memfd_create: %s", strerror(errno));
    *addr = MAP_FAILED;
    if (ftruncate(*fd, (off_t)length) == 0)
        *addr = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (*addr == MAP_FAILED) {
        int rc = fail(err, -errno, "a memory file of %llu bytes: %s", (unsigned long long)length, strerror(errno));
        close(*fd);
        return rc;
    }
    return 0;
}

int soft_alloc_mr(struct rnic_pd *pd, uint64_t length, uint32_t access, struct rnic_mr **mr, struct rnic_err *err) {
    void *addr;
    int fd, rc = dev_check_alive(dev_of(pd->ctx), err);
    if (!rc)
        rc = check_access(access, err);
    if (!rc && length == 0)
        rc = fail(err, -EINVAL, "a memory region has at least 1 byte");
    if (!rc && (access & RNIC_ACCESS_FLUSH_PERSISTENT))
        rc = fail(err, -EOPNOTSUPP,
                  "FLUSH_PERSISTENT: a memory file is gone with its process; map a file of a disk and use reg_mr");
    if (!rc)
        rc = make_memory(length, &addr, &fd, err);
    if (rc)
        return rc;
    rc = enter_mr(pd, addr, length, access, fd, mr, err);
    if (rc) {
        munmap(addr, length);
        close(fd);
    }
    return rc;
}

/* The engine touches bytes only under the lock, so after it nobody does. */
int soft_dereg_mr(struct rnic_mr *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct mr *mr = (struct mr *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    mr_remove(&dev->nic.mrs, mr);
    ((struct pd *)pub->pd)->mrs--;
    dev_unlock(dev);
    if (mr->memfd >= 0) {
        munmap(pub->addr, pub->length);
        close(mr->memfd);
    }
    free(mr);
    return 0;
}
