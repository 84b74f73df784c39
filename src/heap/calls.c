/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of libc that hand out memory.  Only those that align are looked at: whoever asks for whole pages is likely
 * to register them.  The others must know memory of the heap when it comes back.
 */
#include <errno.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "heap.h"
#include "libc/next.h"

void free_sized(void *at, size_t size); /* of C23 */
void free_aligned_sized(void *at, size_t alignment, size_t size);

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

static size_t page(void) { return (size_t)sysconf(_SC_PAGESIZE); }

/* NULL: it is libc's to answer, also to whom asks for nothing or in a wrong way. */
static void *take(size_t alignment, size_t bytes) {
    bool power = alignment && !(alignment & (alignment - 1));
    return bytes && power && alignment >= page() ? heap_take(alignment, bytes) : NULL;
}

EXPORT int posix_memalign(void **at, size_t alignment, size_t bytes) {
    void *taken = take(alignment, bytes);
    if (!taken)
        return NEXT(posix_memalign)(at, alignment, bytes);
    *at = taken;
    return 0;
}

EXPORT void *memalign(size_t alignment, size_t bytes) {
    void *at = take(alignment, bytes);
    return at ? at : NEXT(memalign)(alignment, bytes);
}

EXPORT void *aligned_alloc(size_t alignment, size_t bytes) {
    void *at = take(alignment, bytes);
    return at ? at : NEXT(aligned_alloc)(alignment, bytes);
}

EXPORT void *valloc(size_t bytes) {
    void *at = take(page(), bytes);
    return at ? at : NEXT(valloc)(bytes);
}

#ifdef __GLIBC__
EXPORT void *pvalloc(size_t bytes) {
    void *at = take(page(), bytes);
    return at ? at : NEXT(pvalloc)(bytes);
}
#endif

/* dlsym() frees the text of its last error.  While it looks for libc's free() that text is lost. */
EXPORT void free(void *at) {
    void (*libcs)(void *) = NULL;
    if (heap_has(at))
        heap_give(at);
    else if ((libcs = NEXT(free)))
        libcs(at);
}

EXPORT void free_sized(void *at, size_t size) {
    (void)size;
    free(at);
}

EXPORT void free_aligned_sized(void *at, size_t alignment, size_t size) {
    (void)alignment;
    (void)size;
    free(at);
}

EXPORT size_t malloc_usable_size(void *at) { return heap_has(at) ? heap_size(at) : NEXT(malloc_usable_size)(at); }

/* The alignment need not stay, the place in the file should. */
static void *move(void *at, size_t bytes) {
    size_t had = heap_size(at);
    void *to = heap_take(page(), bytes);
    if (!to)
        to = malloc(bytes);
    if (to) {
        memcpy(to, at, had < bytes ? had : bytes);
        heap_give(at);
    }
    return to;
}

EXPORT void *realloc(void *at, size_t bytes) {
    if (!heap_has(at))
        return NEXT(realloc)(at, bytes);
    if (!bytes) { /* as glibc */
        heap_give(at);
        return NULL;
    }
    size_t has = heap_size(at);
    return bytes <= has && bytes > has / 2 ? at : move(at, bytes);
}

EXPORT void *reallocarray(void *at, size_t count, size_t size) {
    size_t bytes;
    if (!heap_has(at))
        return NEXT(reallocarray)(at, count, size);
    if (!__builtin_mul_overflow(count, size, &bytes))
        return realloc(at, bytes);
    errno = ENOMEM;
    return NULL;
}

/* DONTNEED and FREE: of anonymous memory both leave zeros, sooner or later; of a file they leave what was there, or fail.  A child's
 * copy is the heap's to wipe, as the system wipes no file.  REMOVE is for files alone, and guard pages lose their bytes if they
 * are of none. */
EXPORT int madvise(void *at, size_t bytes, int advice) {
    if ((advice == MADV_DONTNEED || advice == MADV_FREE) && heap_has(at))
        return heap_forget(at, bytes) ? 0 : -1;
    if ((advice == MADV_WIPEONFORK || advice == MADV_KEEPONFORK) && heap_has(at))
        return heap_wipe(at, bytes, advice == MADV_WIPEONFORK) ? 0 : -1;
    if ((advice == MADV_REMOVE || advice == MADV_GUARD_INSTALL) && heap_has(at) &&
        (advice == MADV_REMOVE || !heap_leave_file(at))) {
        errno = EINVAL;
        return -1;
    }
    return NEXT(madvise)(at, bytes, advice);
}

/* A mapping that grows would show other allocations, which follow in the file.  A forked child, which may not look for libc's
 * mremap, calls this, too. */
EXPORT void *mremap(void *at, size_t old, size_t bytes, int how, ...) {
    va_list list;
    va_start(list, how);
    void *to = how & (MREMAP_FIXED | MREMAP_DONTUNMAP) ? va_arg(list, void *) : NULL;
    va_end(list);
    if (heap_has(at) && (bytes > old || how & MREMAP_DONTUNMAP) && !heap_leave_file(at)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mremap, at, old, bytes, how, to);
}
