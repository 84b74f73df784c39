/* SPDX-License-Identifier: Apache-2.0
 *
 * Verbs of rdma-core 65 about memory: regions of many sources by one call, and buffers that the library allocates.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "lib.h"

#define NO_HINTS "hints for the processor's caches are of PCI, which the device is not on"
#define SOURCES (IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_FD)
#define KNOWN                                                                                                          \
    (SOURCES | IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_FD_OFFSET | IBV_REG_MR_MASK_DMAH | IBV_REG_MR_MASK_BUF)

struct ibv_buf {
    void *addr;
    size_t length; /* mapped there */
};

static bool lies_in(const struct ibv_buf *buf, const void *addr, size_t length) {
    uintptr_t from = (uintptr_t)buf->addr, at = (uintptr_t)addr;
    return at >= from && at - from <= buf->length && length <= buf->length - (at - from);
}

static int check_init(const struct ibv_mr_init_attr *attr) {
    uint64_t mask = attr->comp_mask;
    bool file = mask & IBV_REG_MR_MASK_FD;
    if (mask & IBV_REG_MR_MASK_DMAH)
        return refused("reg_mr_ex", EOPNOTSUPP, NO_HINTS);
    if (mask & ~(uint64_t)KNOWN)
        return refused("reg_mr_ex", EINVAL, "comp_mask has bits that mean nothing");
    if ((mask & SOURCES) != IBV_REG_MR_MASK_ADDR && (mask & SOURCES) != IBV_REG_MR_MASK_FD)
        return refused("reg_mr_ex", EINVAL, "comp_mask: give ADDR or FD, and not both");
    if (file != !!(mask & IBV_REG_MR_MASK_FD_OFFSET) || (file && !(mask & IBV_REG_MR_MASK_IOVA)))
        return refused("reg_mr_ex", EINVAL, "comp_mask: FD, FD_OFFSET and IOVA go together");
    if (!(mask & IBV_REG_MR_MASK_BUF))
        return 0;
    if (file || !attr->buf || !lies_in(attr->buf, attr->addr, attr->length))
        return refused("reg_mr_ex", EINVAL, "the bytes do not lie in the buffer");
    return 0;
}

EXPORT struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr) {
    if (check_init(attr))
        return NULL;
    if (attr->comp_mask & IBV_REG_MR_MASK_FD)
        return ibv_reg_dmabuf_mr(pd, attr->fd_offset, attr->length, attr->iova, attr->fd, attr->access);
    uint64_t iova = attr->comp_mask & IBV_REG_MR_MASK_IOVA ? attr->iova : (uintptr_t)attr->addr;
    return ibv_reg_mr_iova2(pd, attr->addr, attr->length, iova, (unsigned)attr->access);
}

/* ---------------------------------------------------------------- buffers */

EXPORT void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **out) {
    (void)pd;
    struct ibv_buf *buf = size ? calloc(1, sizeof *buf) : NULL;
    if (!buf) {
        refused("alloc_buf", size ? ENOMEM : EINVAL, size ? "no memory" : "a buffer has at least 1 byte");
        return NULL;
    }
    buf->addr = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    buf->length = size;
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

/* ---------------------------------------------------------------- what needs hardware */

EXPORT int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf) {
    (void)buf;
    refused("export_buf_dmabuf_fd", EOPNOTSUPP, "buffers are ordinary memory of the process, not a dma-buf");
    return -1;
}

EXPORT int ibv_dm_export_dmabuf_fd(struct ibv_dm *dm) {
    (void)dm;
    refused("dm_export_dmabuf_fd", EOPNOTSUPP,
            "device memory is no dma-buf; ibv_import_dm shares it between processes");
    return -1;
}

EXPORT struct ibv_dmah *ibv_alloc_dmah(struct ibv_context *context, struct ibv_dmah_init_attr *attr) {
    (void)context, (void)attr;
    refused("alloc_dmah", EOPNOTSUPP, NO_HINTS);
    return NULL;
}

EXPORT int ibv_dealloc_dmah(struct ibv_dmah *dmah) {
    (void)dmah;
    return refused("dealloc_dmah", EOPNOTSUPP, NO_HINTS);
}
