/* SPDX-License-Identifier: Apache-2.0
 *
 * For libraries that stand in front of libc: src/heap and src/preload.
 */
#ifndef RNIC_LIBC_NEXT_H
#define RNIC_LIBC_NEXT_H

#include <dlfcn.h>
#include <stdatomic.h>

#define EXPORT __attribute__((visibility("default")))

/* The function of the next library that has it: usually libc.  It is looked up at the first call. */
#define NEXT(name)                                                                                                     \
    ({                                                                                                                 \
        static _Atomic(void *) known_;                                                                                 \
        void *found_ = atomic_load_explicit(&known_, memory_order_relaxed);                                            \
        if (!found_) {                                                                                                 \
            found_ = dlsym(RTLD_NEXT, #name);                                                                          \
            atomic_store_explicit(&known_, found_, memory_order_relaxed);                                              \
        }                                                                                                              \
        (__typeof__(&name))found_;                                                                                     \
    })

#endif
