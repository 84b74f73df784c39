/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that is not there when a test says so: calloc(3) in the C library's place.  For the one source of a program.
 */
#ifndef RNIC_TESTS_SCARCE_H
#define RNIC_TESTS_SCARCE_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool without_memory;
static void *(*volatile scarce_set)(void *, int, size_t) = memset; /* else a compiler may see a calloc in this */

void *calloc(size_t n, size_t size) {
    void *p = without_memory ? NULL : malloc(n * size);
    return p ? scarce_set(p, 0, n * size) : NULL;
}

#endif
