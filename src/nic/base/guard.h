/* SPDX-License-Identifier: Apache-2.0
 *
 * Accesses to memory that a program may unmap, protect or truncate meanwhile.  Nothing tested beforehand could tell: the page may go
 * at any moment.  So an access leaves a mark where the handler of SIGSEGV and SIGBUS (dev/lost.c) finds it, and fails
 * instead of ending the process.
 *
 * An access ends amid its work then.  So it holds nothing, changes nothing but the bytes that it is given, and calls nothing that
 * would not bear it.
 */
#ifndef RNIC_BASE_GUARD_H
#define RNIC_BASE_GUARD_H

#include <stdbool.h>
#include <stddef.h>

#include "base/word.h"

/* Touches n bytes at to and n at from alone, either NULL: none; more: its own. */
typedef void guard_access(void *to, const void *from, size_t n, void *more);
/* False: some of the bytes are not there, or not for this access.  Those ahead of them may have been copied. */
bool guard(guard_access *access, void *to, const void *from, size_t n, void *more);

bool guard_copy(void *to, const void *from, size_t n);                    /* ordered_copy() */
bool guard_word(const struct word_op *op, uint64_t *word, uint64_t *was); /* *was = word_apply() */

/* Reads a byte of each page, and of those at `to` writes it, which changes nothing: for memory that a system call has found missing. */
bool guard_touch(void *to, const void *from, size_t n);

/* For the handler: has this thread been interrupted in an access to that byte? Then that is to end there. */
bool guard_covers(const void *at);
_Noreturn void guard_end(void);

#endif
