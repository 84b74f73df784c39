/* SPDX-License-Identifier: Apache-2.0
 *
 * Mappings of each protection and kind, some with a part missing, and which can be registered.
 *
 * The answers are those of the kernel's pin_user_pages(), by which it registers: EFAULT where a page cannot be read, or with
 * LOCAL_WRITE written.  tests/interop/rights.c asks a kernel.  Whoever includes this defines _GNU_SOURCE.
 */
#ifndef RNIC_TESTS_MAPPINGS_H
#define RNIC_TESTS_MAPPINGS_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

#define PAGES 4
#define READS PROT_READ
#define WRITES (PROT_READ | PROT_WRITE)
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)

static size_t page;
static uint8_t *at;

enum kind_of_memory { MEMORY, ZERO, DISK, FILE_IN_MEMORY };

static int open_source(enum kind_of_memory source) {
    char name[] = "rnic-rights-XXXXXX";
    int fd = source == ZERO             ? open("/dev/zero", O_RDWR | O_CLOEXEC)
             : source == FILE_IN_MEMORY ? memfd_create("rights", MFD_CLOEXEC)
             : source == DISK           ? mkostemp(name, O_CLOEXEC)
                                        : -1;
    if (source == DISK)
        CHECK_EQ(unlink(name), 0);
    if (source == DISK || source == FILE_IN_MEMORY)
        CHECK_EQ(ftruncate(fd, (off_t)(PAGES * page)), 0);
    return fd;
}

enum damage { WHOLE, HOLE, GUARDED, READ_ONLY_INSIDE, SHORT_FILE, BEYOND };

static void damage(enum damage what, int fd) {
    if (what == HOLE)
        CHECK_EQ(munmap(at + page, page), 0);
    if (what == GUARDED)
        CHECK_EQ(mprotect(at + page, page, PROT_NONE), 0);
    if (what == READ_ONLY_INSIDE)
        CHECK_EQ(mprotect(at + page, page, PROT_READ), 0);
    if (what == SHORT_FILE)
        CHECK_EQ(ftruncate(fd, (off_t)page), 0);
    if (what == BEYOND)
        CHECK_EQ(munmap(at + (PAGES - 1) * page, page), 0);
}

static const struct row {
    const char *name;
    int protection, how;
    enum kind_of_memory source;
    enum damage damage;
    bool can_be_read, can_be_written;
} rows[] = {
    {"no right", PROT_NONE, ANONYMOUS, MEMORY, WHOLE, false, false},
    {"read", READS, ANONYMOUS, MEMORY, WHOLE, true, false},
    {"write alone", PROT_WRITE, ANONYMOUS, MEMORY, WHOLE, false, true},
    {"read and write", WRITES, ANONYMOUS, MEMORY, WHOLE, true, true},
    {"execute alone", PROT_EXEC, ANONYMOUS, MEMORY, WHOLE, false, false},
    {"shared", WRITES, MAP_SHARED | MAP_ANONYMOUS, MEMORY, WHOLE, true, true},
    {"shared, read", READS, MAP_SHARED | MAP_ANONYMOUS, MEMORY, WHOLE, true, false},
    {"shared, no right", PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, MEMORY, WHOLE, false, false},
    {"a hole", WRITES, ANONYMOUS, MEMORY, HOLE, false, false},
    {"a hole, read", READS, ANONYMOUS, MEMORY, HOLE, false, false},
    {"a guard page", WRITES, ANONYMOUS, MEMORY, GUARDED, false, false},
    {"a guard page, read", READS, ANONYMOUS, MEMORY, GUARDED, false, false},
    {"a read-only page", WRITES, ANONYMOUS, MEMORY, READ_ONLY_INSIDE, true, false},
    {"beyond the end", WRITES, ANONYMOUS, MEMORY, BEYOND, false, false},
    {"no right, and a hole", PROT_NONE, ANONYMOUS, MEMORY, HOLE, false, false},
    {"/dev/zero", WRITES, MAP_PRIVATE, ZERO, WHOLE, true, true},
    {"/dev/zero, read", READS, MAP_PRIVATE, ZERO, WHOLE, true, false},
    {"/dev/zero, shared", WRITES, MAP_SHARED, ZERO, WHOLE, true, true},
    {"a file", WRITES, MAP_PRIVATE, DISK, WHOLE, true, true},
    {"a file, read", READS, MAP_PRIVATE, DISK, WHOLE, true, false},
    {"a file, no right", PROT_NONE, MAP_PRIVATE, DISK, WHOLE, false, false},
    {"a file, shared", WRITES, MAP_SHARED, DISK, WHOLE, true, true}, /* the one that a kernel does not pin to write */
    {"a file, shared, read", READS, MAP_SHARED, DISK, WHOLE, true, false},
    {"a short file", WRITES, MAP_SHARED, DISK, SHORT_FILE, false, false},
    {"a short file, private", WRITES, MAP_PRIVATE, DISK, SHORT_FILE, false, false},
    {"a short file, read", READS, MAP_SHARED, DISK, SHORT_FILE, false, false},
    {"a memory file", WRITES, MAP_SHARED, FILE_IN_MEMORY, WHOLE, true, true},
    {"a short memory file", WRITES, MAP_SHARED, FILE_IN_MEMORY, SHORT_FILE, false, false},
    {"a memory file with a hole", WRITES, MAP_SHARED, FILE_IN_MEMORY, HOLE, false, false},
};

/* The row's memory at `at`; a descriptor of its file, or -1. */
static int map_row(const struct row *row) {
    int fd = open_source(row->source);
    at = mmap(NULL, PAGES * page, row->protection, row->how, fd, 0);
    CHECK(at != MAP_FAILED);
    damage(row->damage, fd);
    return fd;
}

static void unmap_row(int fd) {
    munmap(at, PAGES * page);
    if (fd >= 0)
        close(fd);
}

#endif
