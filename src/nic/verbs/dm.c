/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory (man ibv_alloc_dm): here a part of the device's memory file, so that other processes can import it.  As
 * on the hardware that has such memory, it is copied in and out in words of 4 bytes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fail.h"
#include "verbs/verbs.h"

#define WORD 4

static int check_size(uint64_t length, uint32_t log_align_req, struct rnic_err *err) {
    if (!length || length % WORD)
        return fail(err, -EINVAL, "%llu bytes: device memory comes in words of %d bytes", (unsigned long long)length,
                    WORD);
    if (log_align_req >= 32 || 1l << log_align_req > sysconf(_SC_PAGESIZE))
        return fail(err, -EINVAL, "log_align_req is %u; device memory begins at a page of %ld bytes", log_align_req,
                    sysconf(_SC_PAGESIZE));
    return 0;
}

struct dm *find_dm(const struct dev *dev, uint32_t handle) {
    for (struct listed *at = dev->objects.of[KIND_DM].first; at; at = at->next) {
        struct dm *dm = LISTED_IN(struct dm, listed, at);
        if (dm->pub.handle == handle)
            return dm;
    }
    return NULL;
}

/* Under the lock. */
void enter_dm(struct dm *dm) {
    struct dev *dev = dev_of(dm->pub.ctx);
    while (!dm->pub.handle || (!dm->foreign && find_dm(dev, dm->pub.handle)))
        dm->pub.handle = rng_secret();
    object_enter(dev, KIND_DM, &dm->listed);
    if (dm->foreign)
        return;
    dev->objects.dm_used += dm->pub.length;
    dm->record = store_publish(&dev->store, &(struct store_record){.kind = STORE_DM,
                                                                   .handle = dm->pub.handle,
                                                                   .offset = dm->stored_at,
                                                                   .length = dm->pub.length});
}

static int make(struct dev *dev, struct dm *dm, struct rnic_err *err) {
    uint64_t left = MAX_DM - dev->objects.dm_used;
    if (dm->pub.length > left)
        return fail(err, -ENOMEM, "%llu bytes; the device has %llu left of max_dm_size",
                    (unsigned long long)dm->pub.length, (unsigned long long)left);
    int rc = store_alloc(&dev->store, dm->pub.length, &dm->stored_at, &dm->mem, err);
    if (!rc)
        enter_dm(dm);
    return rc;
}

int soft_alloc_dm(struct rnic_context *ctx, uint64_t length, uint32_t log_align_req, struct rnic_dm **out,
                  struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_usable(dev, err);
    if (!rc)
        rc = check_size(length, log_align_req, err);
    struct dm *dm = rc ? NULL : calloc(1, sizeof *dm);
    if (!dm)
        return rc ? rc : fail(err, -ENOMEM, "no memory");
    *dm = (struct dm){.pub = {.ctx = ctx, .length = length}, .record = -1};
    dev_lock(dev);
    rc = make(dev, dm, err);
    dev_unlock(dev);
    if (rc) {
        free(dm);
        return rc;
    }
    *out = &dm->pub;
    return 0;
}

static void unlink_dm(struct dev *dev, struct dm *dm) {
    object_leave(dev, KIND_DM, &dm->listed);
    store_withdraw(&dev->store, dm->record);
    if (!dm->foreign)
        dev->objects.dm_used -= dm->pub.length;
}

int release_dm(struct dm *dm, struct rnic_err *err) {
    struct dev *dev = dev_of(dm->pub.ctx);
    dev_lock(dev);
    int mrs = dm->mrs, imports = dm->foreign ? 0 : dm->imports;
    if (!mrs && !imports)
        unlink_dm(dev, dm);
    dev_unlock(dev);
    if (mrs || imports)
        return fail(err, -EBUSY, "%d memory regions lie in it, and it is imported %d times in this process", mrs,
                    imports);
    if (dm->foreign)
        munmap(dm->mem, dm->pub.length);
    else
        free_stored(dev, dm->stored_at, dm->pub.length, dm->mem);
    free(dm);
    return 0;
}

int soft_free_dm(struct rnic_dm *pub, struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(pub->ctx), err);
    if (!rc && ((struct dm *)pub)->foreign)
        rc = fail(err, -EINVAL, "the device memory is another process': give it back with unimport_dm");
    return rc ? rc : release_dm((struct dm *)pub, err);
}

static int check_copy(const struct rnic_dm *pub, uint64_t offset, uint64_t length, struct rnic_err *err) {
    const struct dm *dm = (const struct dm *)pub;
    int rc = dev_check_alive(dev_of(pub->ctx), err);
    if (rc)
        return rc;
    if (offset % WORD || length % WORD)
        return fail(err, -EINVAL, "%llu bytes at offset %llu: both must be multiples of %d", (unsigned long long)length,
                    (unsigned long long)offset, WORD);
    if (offset > pub->length || length > pub->length - offset)
        return fail(err, -EINVAL, "%llu bytes at offset %llu; the device memory has %llu", (unsigned long long)length,
                    (unsigned long long)offset, (unsigned long long)pub->length);
    if (dm->foreign && __atomic_load_n(dm->is, __ATOMIC_ACQUIRE) != dm->was)
        return fail(err, -EINVAL, "the process that owns the device memory has freed it");
    return 0;
}

int soft_memcpy_to_dm(struct rnic_dm *pub, uint64_t offset, const void *src, uint64_t length, struct rnic_err *err) {
    int rc = check_copy(pub, offset, length, err);
    if (!rc && length)
        memcpy(((struct dm *)pub)->mem + offset, src, length);
    return rc;
}

int soft_memcpy_from_dm(void *dst, struct rnic_dm *pub, uint64_t offset, uint64_t length, struct rnic_err *err) {
    int rc = check_copy(pub, offset, length, err);
    if (!rc && length)
        memcpy(dst, ((struct dm *)pub)->mem + offset, length);
    return rc;
}
