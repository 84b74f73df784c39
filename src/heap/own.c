/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages of the file become memory of this process alone: a copy of them, and then the copy in their place.  Programs change
 * protections, map other files over their memory, and close descriptors that are not theirs.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "heap.h"
#include "nic_heap.h"

#define SHORT_PIECE (16 << 10) /* bytes that are copied without a look at where they have holes */
#define SHORT_LINE 256 /* bytes of a line of /proc/self/maps that are looked at */

/* ---------------------------------------------------------------- the copy */

static bool copy_part(off_t from, off_t to, uint8_t *copy) {
    while (from < to) {
        ssize_t n = pread(heap.fd, copy, (size_t)(to - from), from);
        if (n <= 0)
            return false;
        from += n;
        copy += n;
    }
    return true;
}

/* What has never been written has no memory, and neither has its copy, if it had before.  Short holes are copied as zeros: to
 * look for them would take longer. */
static bool copy_file(off_t first, off_t end, uint8_t *copy) {
    for (off_t at = first; at < end;) {
        off_t from = end - at <= SHORT_PIECE ? at : lseek(heap.fd, at, SEEK_DATA);
        if (from < 0 && errno != ENXIO) /* which is: there is no more */
            return false;
        from = from < 0 || from > end ? end : from;
        if (from > at)
            syscall(SYS_madvise, copy + (at - first), from - at, MADV_DONTNEED);
        at = end - from <= SHORT_PIECE ? end : lseek(heap.fd, from, SEEK_HOLE);
        at = at < from + SHORT_PIECE ? from + SHORT_PIECE : at;
        at = at > end ? end : at;
        if (!copy_part(from, at, copy + (from - first)))
            return false;
    }
    return true;
}

/* The program has closed the file.  This also reads pages that it has protected; what is not mapped any more is left out. */
static bool copy_memory(size_t from, size_t to, uint8_t *copy) {
    int fd = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    for (size_t done = 0; done < to - from;) {
        ssize_t n = pread(fd, copy + done, to - from - done, (off_t)(uintptr_t)(heap_base() + from + done));
        done += n > 0 ? (size_t)n : heap.page - done % heap.page;
    }
    close(fd);
    return true;
}

bool own_copy(size_t from, size_t to, uint8_t *copy) {
    bool done = heap_is_open() && copy_file(HEAP_FIRST + (off_t)from, HEAP_FIRST + (off_t)to, copy);
    return heap_is_open() ? done : copy_memory(from, to, copy);
}

/* ---------------------------------------------------------------- what is mapped from the file */

struct place;
/* An action on a part that is mapped from the file. */
typedef bool act(const struct place *p, size_t from, size_t to, int protection);

/* Bytes of the heap. */
struct place {
    size_t from, to;
    act *act;
    uint8_t *copy; /* to be in their place */
};

static bool put(const struct place *p, size_t from, size_t to, int protection) {
    uint8_t *at = heap_base() + from;
    void *moved = mremap(p->copy + (from - p->from), to - from, to - from, MREMAP_MAYMOVE | MREMAP_FIXED, at);
    return moved == at && (protection == (PROT_READ | PROT_WRITE) || mprotect(at, to - from, protection) == 0);
}

/* This needs memory that can be written. */
static bool take_away(const struct place *p, size_t from, size_t to, int protection) {
    (void)p, (void)protection;
    return syscall(SYS_madvise, heap_base() + from, to - from, MADV_REMOVE) == 0;
}

static int protection_of(const char *rights) {
    return (rights[0] == 'r' ? PROT_READ : 0) | (rights[1] == 'w' ? PROT_WRITE : 0) |
           (rights[2] == 'x' ? PROT_EXEC : 0);
}

/* A line of /proc/self/maps: "from-to rights offset device inode name", addresses in hexadecimal. */
static bool act_on_line(const struct place *p, const char *line) {
    char *rest;
    uintptr_t base = (uintptr_t)heap_base(), from = strtoul(line, &rest, 16), to;
    if (*rest != '-')
        return true;
    to = strtoul(rest + 1, &rest, 16);
    if (to <= base + p->from || from >= base + p->to || !strstr(rest, "/memfd:" RNIC_HEAP_NAME))
        return true;
    from = from > base + p->from ? from - base : p->from;
    to = to < base + p->to ? to - base : p->to;
    return p->act(p, from, to, protection_of(rest + 1));
}

static int open_maps(void) { return open("/proc/self/maps", O_RDONLY | O_CLOEXEC); }

/* Where the program has mapped something else, nothing is done.  Closes maps. */
static bool act_on_mapped(int maps, const struct place *place) {
    char read_[1024], line[SHORT_LINE];
    size_t length = 0;
    ssize_t n = -1;
    bool done = true;
    while (done && (n = read(maps, read_, sizeof read_)) > 0) {
        for (ssize_t i = 0; i < n && done; i++) {
            if (length < sizeof line - 1)
                line[length++] = read_[i];
            if (read_[i] != '\n')
                continue;
            line[length] = 0;
            length = 0;
            done = act_on_line(place, line);
        }
    }
    close(maps);
    return done && n == 0;
}

bool own_replace(size_t from, size_t to, uint8_t *copy) {
    struct place place = {from, to, put, copy};
    int maps = open_maps();
    if (maps < 0) /* nobody can say how they are protected */
        return put(&place, from, to, PROT_READ | PROT_WRITE);
    return act_on_mapped(maps, &place);
}

/* free() is no point of cancellation. */
bool own_remove(size_t from, size_t to) {
    int cancels;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancels);
    int maps = open_maps();
    bool done = maps >= 0 && act_on_mapped(maps, &(struct place){from, to, take_away, NULL});
    pthread_setcancelstate(cancels, NULL);
    return done;
}
