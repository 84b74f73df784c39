/* SPDX-License-Identifier: Apache-2.0 */
#include "base/ordered.h"

#include <string.h>

#define WORD sizeof(uint64_t)

static void word(uint8_t *to, const uint8_t *from) {
    uint64_t value;
    memcpy(&value, from, WORD);
    __atomic_store_n((uint64_t *)(void *)to, value, __ATOMIC_RELEASE);
}

static void byte(uint8_t *to, const uint8_t *from) { __atomic_store_n(to, *from, __ATOMIC_RELEASE); }

/* Within a cache line. */
static void line(uint8_t *to, const uint8_t *from, size_t n) {
    for (; n && (uintptr_t)to % WORD; to++, from++, n--)
        byte(to, from);
    for (; n >= 4 * WORD; to += 4 * WORD, from += 4 * WORD, n -= 4 * WORD) {
        word(to, from);
        word(to + WORD, from + WORD);
        word(to + 2 * WORD, from + 2 * WORD);
        word(to + 3 * WORD, from + 3 * WORD);
    }
    for (; n >= WORD; to += WORD, from += WORD, n -= WORD)
        word(to, from);
    for (; n; to++, from++, n--)
        byte(to, from);
}

/* memcpy has an order of its own, and may use stores that no later one waits for: it fences these itself. */
static __attribute__((noinline)) void blocks(uint8_t *to, const uint8_t *from, size_t n) {
    for (size_t part; n; to += part, from += part, n -= part) {
        part = n < ORDERED_BLOCK ? n : ORDERED_BLOCK;
        memcpy(to, from, part);
        __atomic_thread_fence(__ATOMIC_RELEASE);
    }
}

void ordered_copy_long(void *to, const void *from, size_t n) {
    size_t head = ordered_head(to, n);
    if (head)
        blocks(to, from, head);
    line((uint8_t *)to + head, (const uint8_t *)from + head, n - head);
}
