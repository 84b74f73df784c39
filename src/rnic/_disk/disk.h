/* SPDX-License-Identifier: Apache-2.0
 *
 * Many small files of a folder, one after the other; no Python, so that its threads run meanwhile.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct new_file {
    const char *name, *content;
    size_t size;
    mode_t mode;
    int64_t mtime; /* ns */
};

struct found_file {
    size_t size;
    mode_t mode;
    int64_t mtime; /* ns */
    int error;     /* 0, an errno, or SINGLE */
};

enum { SINGLE = -1, TAKEN = -2 };

/* 0, or an errno; TAKEN: something has the name, which is not to be replaced.  Until the file is whole it has the
 * temporary name.
 */
int store_file(int folder, const char *temporary, const struct new_file *f, bool replace);

/* As many as fit `room` bytes with `most` for the last, their contents one behind the other; how many that were. */
size_t load_files(int folder, const char *const *names, size_t n, size_t most, char *into, size_t room,
                  struct found_file *found);
