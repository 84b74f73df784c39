/* SPDX-License-Identifier: Apache-2.0
 *
 * Which paths are redirected: those of the kernel's RDMA drivers alone.
 */
#include <stdlib.h>
#include <string.h>

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

/* The folder that is put ahead of a path; NULL: none. */
static const char *ahead_of(const char *path) {
    bool may_be = path && path[0] == '/' && (path[1] == 's' || path[1] == 'd');
    return may_be && is_ours(path) ? run_folder() : NULL;
}

size_t room_for(const char *path) {
    const char *run = ahead_of(path);
    size_t length = run ? strlen(run) + strlen(path) : 0;
    return length < PATH_MAX ? length + 1 : 1;
}

const char *redirected(const char *path, char *room, size_t size) {
    const char *run = ahead_of(path);
    if (!run)
        return path;
    size_t head = strlen(run), tail = strlen(path);
    if (head + tail >= size)
        return path;
    memcpy(room, run, head);
    memcpy(room + head, path, tail + 1);
    return room;
}
