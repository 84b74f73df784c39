/* SPDX-License-Identifier: Apache-2.0
 *
 * For libraries that stand in front of libc: src/heap and src/preload.
 */
#ifndef RNIC_LIBC_NEXT_H
#define RNIC_LIBC_NEXT_H

#include <stdatomic.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

/* A function of the next library that has it: usually libc. */
struct next {
    const char *name;
    _Atomic(void *) found;                      /* NULL: nobody has looked yet */
} __attribute__((aligned(2 * sizeof(void *)))); /* its size: rows of a section make an array */

/* All functions are looked up at once, when the library is loaded, or before that at the first call of one: a program's
 * dlerror() does not survive a dlsym().  NULL: this thread is looking them up, so that dlsym() itself calls. */
void *next_find(struct next *row);

/* The function; each use is a row of the library's table. */
#define NEXT(function)                                                                                                 \
    ({                                                                                                                 \
        static struct next row_ __attribute__((section("rnic_next"), used)) = {#function, NULL};                       \
        void *found_ = atomic_load_explicit(&row_.found, memory_order_relaxed);                                        \
        (__typeof__(&function))(found_ ? found_ : next_find(&row_));                                                   \
    })

#endif
