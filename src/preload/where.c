/* SPDX-License-Identifier: Apache-2.0
 *
 * Which paths are redirected: those of the kernel's RDMA drivers alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload.h"

/* sizeof counts the final NUL, which is not compared. */
#define PREFIX(path) {path, sizeof path - 1}
static const struct prefix {
    const char *path;
    size_t length;
} prefixes[] = {
    PREFIX("/sys/class/infiniband"),    PREFIX("/sys/class/infiniband_verbs"),
    PREFIX("/sys/class/infiniband_cm"), PREFIX("/sys/class/misc/rdma_cm"),
    PREFIX("/dev/infiniband"),          PREFIX("/sys/devices/pciffff:00"), /* no machine has this PCI domain */
};

/* Copied once, as programs change their environment: by the constructor, or by a call ahead of it, which finds nothing if
 * libc does not have the environment yet. */
static char folder[PATH_MAX];
static atomic_int state; /* 0: not read yet, 1: no folder, 2: there is one */

static void read_environment(void) {
    const char *run = getenv("RNIC_RUN");
    bool has = run && *run == '/' && strlen(run) < sizeof folder;
    if (has)
        strcpy(folder, run);
    atomic_store(&state, has ? 2 : 1);
}

__attribute__((constructor)) static void begin(void) {
    if (!run_folder())
        read_environment();
}

const char *run_folder(void) {
    if (!atomic_load_explicit(&state, memory_order_acquire))
        read_environment();
    return atomic_load_explicit(&state, memory_order_relaxed) == 2 ? folder : NULL;
}

static bool is_ours(const char *path) {
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        const struct prefix *p = &prefixes[i];
        if (!strncmp(path, p->path, p->length) && (!path[p->length] || path[p->length] == '/'))
            return true;
    }
    return false;
}

/* Whether one of ours lies in a folder. */
static bool is_above_ours(const char *path) {
    size_t length = strlen(path);
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (!strncmp(path, prefixes[i].path, length) && prefixes[i].path[length] == '/')
            return true;
    }
    return false;
}

/* Whether a relative path can end in one of ours, from somewhere.  Few do: for these it is found out from where. */
static bool may_end_in_ours(const char *path) {
    return strstr(path, "infiniband") || strstr(path, "rdma_cm") || strstr(path, "pciffff:00");
}

static bool may_be_ours(const char *path) {
    if (path[0] == '/')
        return (path[1] == 's' || path[1] == 'd') && is_ours(path);
    return may_end_in_ours(path);
}

size_t room_for(const char *path) {
    if (!path || !may_be_ours(path) || !run_folder())
        return 1;
    size_t length = strlen(run_folder()) + (path[0] == '/' ? strlen(path) : PATH_MAX - 1);
    return length < 2 * PATH_MAX ? length + 1 : 1;
}

/* A link to what a descriptor is of.  By hand, as signal handlers may call this. */
#define FD_LINKS "/proc/self/fd/"
static void write_link(int fd, char link[sizeof FD_LINKS + 10]) {
    unsigned number = (unsigned)fd, digits = 1;
    for (unsigned left = number; left >= 10; left /= 10)
        digits++;
    char *at = link + sizeof FD_LINKS - 1 + digits;
    memcpy(link, FD_LINKS, sizeof FD_LINKS - 1);
    for (*at = '\0'; digits--; number /= 10)
        *--at = (char)('0' + number % 10);
}

/* The folder that a relative path begins in, as the kernel knows it: its length, 0: it has none, or there is no room. */
static size_t begins_in(int dirfd, char *room, size_t size) {
    char link[sizeof FD_LINKS + 10];
    int before = errno;
    long n;
    if (dirfd == AT_FDCWD) {
        n = syscall(SYS_getcwd, room, size) - 1; /* with the NUL */
    } else {
        write_link(dirfd, link);
        n = syscall(SYS_readlinkat, AT_FDCWD, link, room, size);
    }
    errno = before;
    return n > 0 && n < (long)size ? (size_t)n : 0;
}

/* Writes a path from the root as a program means it, to whom what it has opened in the tree is the kernel's. */
static bool write_whole(int dirfd, const char *path, char *room, size_t size) {
    size_t head = strlen(run_folder()), tail = strlen(path), at = 0;
    if (path[0] != '/') {
        at = begins_in(dirfd, room, size);
        if (!at)
            return false;
        if (at > head && !memcmp(room, run_folder(), head) && room[head] == '/')
            memmove(room, room + head, at -= head);
        room[at++] = '/';
    }
    if (at + tail >= size)
        return false;
    memcpy(room + at, path, tail + 1);
    return true;
}

const char *redirected_at(int dirfd, const char *path, char *room, size_t size) {
    if (size <= 1)
        return path;
    size_t head = strlen(run_folder());
    memcpy(room, run_folder(), head);
    return write_whole(dirfd, path, room + head, size - head) && is_ours(room + head) ? room : path;
}

const char *redirected(const char *path, char *room, size_t size) { return redirected_at(AT_FDCWD, path, room, size); }

/* Without what names the folder itself: glob(3) reads "." where a pattern begins with none. */
static void cut_own_names(char *path) {
    size_t n = strlen(path);
    while (n > 1 && (path[n - 1] == '/' || !strncmp(path + n - 2, "/.", 2)))
        path[--n] = '\0';
}

const char *beside(const char *path, char room[2 * PATH_MAX]) {
    size_t head = run_folder() ? strlen(run_folder()) : 0;
    if (!head)
        return NULL;
    memcpy(room, run_folder(), head);
    if (!write_whole(AT_FDCWD, path, room + head, 2 * PATH_MAX - head))
        return NULL;
    cut_own_names(room + head);
    return is_above_ours(room + head) ? room : NULL;
}
