/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies into memory that somebody watches: programs poll the last bytes of a message to learn that all of it is there.
 *
 * Blocks of ORDERED_BLOCK bytes become visible in the order of their addresses, and the last cache line of a copy behind
 * all that is ahead of it, byte by byte in that order, aligned words of 8 bytes whole.
 */
#ifndef RNIC_BASE_ORDERED_H
#define RNIC_BASE_ORDERED_H

#include <stddef.h>
#include <stdint.h>

#define ORDERED_BLOCK 65536u
#define ORDERED_LINE 64u

/* Not overlapping. */
void ordered_copy_long(void *to, const void *from, size_t n);

static inline void ordered_copy(void *to, const void *from, size_t n) {
    if (n == sizeof(uint64_t) && (uintptr_t)to % sizeof(uint64_t) == 0) {
        uint64_t word;
        __builtin_memcpy(&word, from, sizeof word);
        __atomic_store_n((uint64_t *)to, word, __ATOMIC_RELEASE);
    } else if (n) {
        ordered_copy_long(to, from, n);
    }
}

/* Bytes of a copy that lie ahead of its last cache line. */
static inline size_t ordered_head(const void *to, size_t n) {
    size_t line = ((uintptr_t)to + n - 1) % ORDERED_LINE + 1; /* bytes of the copy's last line, up to its end */
    return n > line ? n - line : 0;
}

/* The same of its last word, for copies that the kernel makes: piece after piece, in pages. */
static inline size_t ordered_words(const void *to, size_t n) {
    size_t word = ((uintptr_t)to + n - 1) % sizeof(uint64_t) + 1;
    return n > word ? n - word : 0;
}

#endif
