/* SPDX-License-Identifier: Apache-2.0
 *
 * Regions whose bytes are not simply at their address: pages that may be missing, another process' memory, a device's,
 * none at all.  A page that is not there must fail the request, not the process, so the kernel copies: in system calls
 * that say EFAULT where a load would be a signal.  Nothing tested beforehand could do it: the page may go meanwhile.
 */
#include <errno.h>
#include <linux/dma-buf.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/guard.h"
#include "base/ordered.h"
#include "mem/mr.h"

typedef ssize_t transfer(pid_t pid, const struct iovec *, unsigned long, const struct iovec *, unsigned long,
                         unsigned long);

/* Between the process and itself, to one of the two; the last word last. A range of which a part is missing is copied up
 * to there. */
static bool guarded(transfer *copy, const void *ours, uint64_t addr, uint32_t n, const void *to) {
    uint8_t *here = (uint8_t *)(uintptr_t)ours, *there = (uint8_t *)(uintptr_t)addr;
    size_t first = n ? ordered_words(to, n) : 0;
    struct iovec from[] = {{here, first}, {here + first, n - first}},
                 at[] = {{there, first}, {there + first, n - first}};
    return copy(getpid(), from, 2, at, 2, 0) == (ssize_t)n;
}

static bool guarded_load(uint8_t *dst, uint64_t addr, uint32_t n) {
    return guarded(process_vm_readv, dst, addr, n, dst);
}

static bool guarded_store(const uint8_t *src, uint64_t addr, uint32_t n) {
    return guarded(process_vm_writev, src, addr, n, (const void *)(uintptr_t)addr);
}

bool kind_guard_works(void) {
    uint8_t byte = 1, copy = 0;
    return guarded_load(&copy, (uintptr_t)&byte, 1) && guarded_store(&copy, (uintptr_t)&byte, 1);
}

static void sync_dmabuf(const struct mr *mr, uint64_t flags) {
    struct dma_buf_sync sync = {flags};
    while (ioctl(mr->fd, DMA_BUF_IOCTL_SYNC, &sync) < 0 && (errno == EINTR || errno == EAGAIN))
        ;
}

/* Any other file may become shorter, which a dma-buf cannot. */
enum mr_kind kind_of_file(int fd) {
    struct dma_buf_sync sync = {DMA_BUF_SYNC_START | DMA_BUF_SYNC_READ};
    if (ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync) < 0)
        return MR_GUARDED;
    sync.flags = DMA_BUF_SYNC_END | DMA_BUF_SYNC_READ;
    ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync);
    return MR_DMABUF;
}

bool kind_place(const struct mr *mr, uint8_t **ptr) {
    if (mr->kind == MR_FOREIGN)
        return __atomic_load_n(mr->is, __ATOMIC_ACQUIRE) == mr->was;
    *ptr = NULL;
    return true;
}

bool kind_load(const struct mr *mr, uint64_t addr, uint8_t *dst, uint32_t n) {
    const void *at = (const void *)(uintptr_t)(addr + mr->shift);
    bool copied;
    switch (mr->kind) {
    case MR_GUARDED:
        return guarded_load(dst, addr + mr->shift, n);
    case MR_NULL:
        memset(dst, 0, n);
        return true;
    case MR_DMABUF:
        sync_dmabuf(mr, DMA_BUF_SYNC_START | DMA_BUF_SYNC_READ);
        copied = guard_copy(dst, at, n);
        sync_dmabuf(mr, DMA_BUF_SYNC_END | DMA_BUF_SYNC_READ);
        return copied;
    default:
        return guard_copy(dst, at, n);
    }
}

bool kind_store(const struct mr *mr, uint64_t addr, const uint8_t *src, uint32_t n) {
    void *at = (void *)(uintptr_t)(addr + mr->shift);
    bool copied;
    switch (mr->kind) {
    case MR_GUARDED:
        return guarded_store(src, addr + mr->shift, n);
    case MR_NULL:
        return true;
    case MR_DMABUF:
        sync_dmabuf(mr, DMA_BUF_SYNC_START | DMA_BUF_SYNC_WRITE);
        copied = guard_copy(at, src, n);
        sync_dmabuf(mr, DMA_BUF_SYNC_END | DMA_BUF_SYNC_WRITE);
        return copied;
    default:
        return guard_copy(at, src, n);
    }
}
