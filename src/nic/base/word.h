/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on 8 bytes that happen at once, also for the host's CPUs.
 */
#ifndef RNIC_BASE_WORD_H
#define RNIC_BASE_WORD_H

#include <stdbool.h>
#include <stdint.h>

enum word_kind { WORD_STORE, WORD_ADD, WORD_CMP_SWAP };

struct word_op {
    enum word_kind kind;
    uint64_t operand; /* stored, added, or swapped in */
    uint64_t compare; /* of WORD_CMP_SWAP */
};

/* What the word was.  Aligned, and there. */
static inline uint64_t word_apply(const struct word_op *op, uint64_t *word) {
    uint64_t was = op->compare;
    switch (op->kind) {
    case WORD_STORE:
        return __atomic_exchange_n(word, op->operand, __ATOMIC_SEQ_CST);
    case WORD_ADD:
        return __atomic_fetch_add(word, op->operand, __ATOMIC_SEQ_CST);
    default:
        __atomic_compare_exchange_n(word, &was, op->operand, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        return was; /* on failure what was there, on success the equal comparand */
    }
}

#endif
