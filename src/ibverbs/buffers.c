/* SPDX-License-Identifier: Apache-2.0
 *
 * Verbs of rdma-core 65 about memory: regions of many sources by one call, buffers that the library allocates, DMA handles.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "lib.h"

#define SOURCES (IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_FD)
#define KNOWN                                                                                                          \
    (SOURCES | IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_FD_OFFSET | IBV_REG_MR_MASK_DMAH | IBV_REG_MR_MASK_BUF)

struct ibv_buf {
    struct ibv_pd *pd;
    void *addr;
    size_t length; /* mapped there */
};

static bool lies_in(const struct ibv_buf *buf, const void *addr, size_t length) {
    uintptr_t from = (uintptr_t)buf->addr, at = (uintptr_t)addr;
    return at >= from && at - from <= buf->length && length <= buf->length - (at - from);
}

static int check_init(const struct ibv_pd *pd, const struct ibv_mr_init_attr *attr) {
    uint64_t mask = attr->comp_mask;
    bool file = mask & IBV_REG_MR_MASK_FD;
    if (mask & ~(uint64_t)KNOWN)
        return refused("reg_mr_ex", EINVAL, UNKNOWN);
    if ((mask & SOURCES) != IBV_REG_MR_MASK_ADDR && (mask & SOURCES) != IBV_REG_MR_MASK_FD)
        return refused("reg_mr_ex", EINVAL, "comp_mask: give ADDR or FD, and not both");
    if (file != !!(mask & IBV_REG_MR_MASK_FD_OFFSET) || (file && !(mask & IBV_REG_MR_MASK_IOVA)))
        return refused("reg_mr_ex", EINVAL, "comp_mask: FD, FD_OFFSET and IOVA go together");
    if (mask & IBV_REG_MR_MASK_DMAH && (!attr->dmah || attr->dmah->context != pd->context))
        return refused("reg_mr_ex", EINVAL, "the DMA handle is none, or of another context");
    if (mask & IBV_REG_MR_MASK_DMAH && attr->access & IBV_ACCESS_ON_DEMAND) /* as the kernel's drivers have it */
        return refused("reg_mr_ex", EINVAL, "a region on demand takes no DMA handle");
    if (!(mask & IBV_REG_MR_MASK_BUF))
        return 0;
    if (attr->buf && attr->buf->pd != pd)
        return refused("reg_mr_ex", EINVAL, "the buffer was allocated with another protection domain");
    if (file || !attr->buf || !lies_in(attr->buf, attr->addr, attr->length))
        return refused("reg_mr_ex", EINVAL, "the bytes do not lie in the buffer");
    return 0;
}

static struct ibv_mr *reg(struct ibv_pd *pd, const struct ibv_mr_init_attr *attr) {
    if (attr->comp_mask & IBV_REG_MR_MASK_FD)
        return ibv_reg_dmabuf_mr(pd, attr->fd_offset, attr->length, attr->iova, attr->fd, attr->access);
    uint64_t iova = attr->comp_mask & IBV_REG_MR_MASK_IOVA ? attr->iova : (uintptr_t)attr->addr;
    return ibv_reg_mr_iova2(pd, attr->addr, attr->length, iova, (unsigned)attr->access);
}

EXPORT struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr) {
    struct ibv_mr *mr = check_init(pd, attr) ? NULL : reg(pd, attr);
    if (!mr || !(attr->comp_mask & IBV_REG_MR_MASK_DMAH))
        return mr;
    ((struct mr *)mr)->hints = (struct dmah *)attr->dmah;
    dmah_use((struct dmah *)attr->dmah, 1);
    return mr;
}

/* ---------------------------------------------------------------- buffers */

EXPORT void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **out) {
    struct ibv_buf *buf = size ? calloc(1, sizeof *buf) : NULL;
    if (!buf) {
        refused("alloc_buf", size ? ENOMEM : EINVAL, size ? "no memory" : "a buffer has at least 1 byte");
        return NULL;
    }
    buf->addr = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    buf->length = size;
    buf->pd = pd;
    if (buf->addr == MAP_FAILED) {
        free(buf);
        refused("alloc_buf", ENOMEM, "no memory");
        return NULL;
    }
    *out = buf;
    return buf->addr;
}

EXPORT void ibv_free_buf(struct ibv_buf *buf) {
    munmap(buf->addr, buf->length);
    free(buf);
}

EXPORT struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access) {
    struct ibv_mr_init_attr attr = {.length = length,
                                    .access = access,
                                    .comp_mask = IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_BUF,
                                    .addr = addr,
                                    .buf = buf};
    return ibv_reg_mr_ex(pd, &attr);
}

/* ---------------------------------------------------------------- descriptors of dma-bufs */

EXPORT int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf) {
    (void)buf;
    refused("export_buf_dmabuf_fd", ENODATA, "buffers are ordinary memory of the process, not a dma-buf");
    return -1;
}

EXPORT int ibv_dm_export_dmabuf_fd(struct ibv_dm *dm) {
    (void)dm;
    refused("dm_export_dmabuf_fd", EOPNOTSUPP,
            "device memory is no dma-buf; ibv_import_dm shares it between processes");
    return -1;
}

/* ---------------------------------------------------------------- hints for the processor's caches */

/* What hardware would say to its PCI bus.  A device in the process writes by the processor that it runs on, and there is nothing
 * to say. */
static int check_hints(const struct ibv_dmah_init_attr *attr, struct rnic_err *err) {
    uint32_t mask = attr->comp_mask;
    if (mask &
        ~(uint32_t)(IBV_DMAH_INIT_ATTR_MASK_CPU_ID | IBV_DMAH_INIT_ATTR_MASK_PH | IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE))
        return worded(err, -EINVAL, UNKNOWN);
    if (mask & IBV_DMAH_INIT_ATTR_MASK_CPU_ID && attr->cpu_id >= (uint32_t)sysconf(_SC_NPROCESSORS_CONF))
        return worded(err, -EINVAL, "there is no processor of this number");
    if (mask & IBV_DMAH_INIT_ATTR_MASK_PH && attr->ph > 3)
        return worded(err, -EINVAL, "a processing hint has 2 bits");
    if (mask & IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE && attr->tph_mem_type > IBV_TPH_MEM_TYPE_PM)
        return worded(err, -EINVAL, "memory is volatile (0) or persistent (1)");
    return 0;
}

EXPORT struct ibv_dmah *ibv_alloc_dmah(struct ibv_context *context, struct ibv_dmah_init_attr *attr) {
    struct rnic_err err = {0};
    struct dmah *hints = NULL;
    int rc = check_hints(attr, &err);
    if (!rc && !(hints = calloc(1, sizeof *hints)))
        rc = -ENOMEM;
    if (rc)
        return failed_null("alloc_dmah", rc, &err);
    hints->pub.context = context;
    ADD(context, hints, free);
    return &hints->pub;
}

void dmah_use(struct dmah *hints, int more) {
    if (!hints)
        return;
    pthread_mutex_lock(&hints->pub.context->mutex);
    hints->users += more;
    pthread_mutex_unlock(&hints->pub.context->mutex);
}

EXPORT int ibv_dealloc_dmah(struct ibv_dmah *pub) {
    struct dmah *hints = (struct dmah *)pub;
    pthread_mutex_lock(&pub->context->mutex);
    int users = hints->users;
    pthread_mutex_unlock(&pub->context->mutex);
    if (users)
        return refused("dealloc_dmah", EBUSY, "regions were registered with the DMA handle");
    object_remove(pub->context, &hints->object);
    free(hints);
    return 0;
}
