/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that walk through folders by themselves: libc calls its own functions for it, not those of this library.
 */
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <string.h>

#include "preload.h"

/* ---------------------------------------------------------------- glob: it takes other functions if it is told to */

#ifdef GLOB_ALTDIRFUNC
/* The folder that glob() reads in this thread, one at a time: a pattern as /sys/class/inf* is met by what the tree has in it. */
static _Thread_local __attribute__((tls_model("initial-exec"))) struct reading {
    DIR *kernels, *trees; /* NULL: there is none, or it has been read */
} reading;

static void *reading_open(const char *path) {
    char room[2 * PATH_MAX];
    const char *ours = beside(path, room);
    reading.kernels = opendir(path);
    reading.trees = ours ? NEXT(opendir)(ours) : NULL;
    return reading.kernels || reading.trees ? &reading : NULL;
}

static void reading_close(void *folder) {
    (void)folder;
    if (reading.kernels)
        closedir(reading.kernels);
    if (reading.trees)
        closedir(reading.trees);
}

/* Whether the kernel has it, too: then glob() has seen it. */
static bool is_kernels(const char *name) {
    struct stat64 st;
    return reading.kernels && !NEXT(fstatat64)(dirfd(reading.kernels), name, &st, AT_SYMLINK_NOFOLLOW);
}

#define GLOB(name, type, entry, read, status)                                                                          \
    static struct entry *name##_read(void *folder) {                                                                   \
        (void)folder;                                                                                                  \
        struct entry *found = reading.kernels ? read(reading.kernels) : NULL;                                          \
        while (!found && reading.trees && (found = read(reading.trees))) {                                             \
            if (!is_kernels(found->d_name))                                                                            \
                break;                                                                                                 \
            found = NULL;                                                                                              \
        }                                                                                                              \
        return found;                                                                                                  \
    }                                                                                                                  \
    EXPORT int name(const char *pattern, int flags, int (*failed)(const char *path, int error), type *found) {         \
        if (!run_folder() || flags & GLOB_ALTDIRFUNC)                                                                  \
            return NEXT(name)(pattern, flags, failed, found);                                                          \
        found->gl_opendir = reading_open;                                                                              \
        found->gl_readdir = name##_read;                                                                               \
        found->gl_closedir = reading_close;                                                                            \
        found->gl_stat = status;                                                                                       \
        found->gl_lstat = l##status;                                                                                   \
        int rc = NEXT(name)(pattern, flags | GLOB_ALTDIRFUNC, failed, found);                                          \
        found->gl_flags &= ~GLOB_ALTDIRFUNC;                                                                           \
        return rc;                                                                                                     \
    }
GLOB(glob, glob_t, dirent, readdir, stat)
GLOB(glob64, glob64_t, dirent64, readdir64, stat64)
#endif

/* ---------------------------------------------------------------- ftw */

/* What a walk of this thread calls, and how much of each path is the tree's: programs see the path that they mean. */
static _Thread_local __attribute__((tls_model("initial-exec"))) struct walk {
    void *call;
    size_t skip;
} walk;

#define FTW(name, type)                                                                                                \
    static int name##_met(const char *path, const struct type *buf, int kind) {                                        \
        return ((int (*)(const char *, const struct type *, int))walk.call)(path + walk.skip, buf, kind);              \
    }                                                                                                                  \
    EXPORT int name(const char *path, int (*call)(const char *, const struct type *, int), int most) {                 \
        char room[room_for(path)];                                                                                     \
        const char *where = redirected(path, room, sizeof room);                                                       \
        if (where == path)                                                                                             \
            return NEXT(name)(path, call, most);                                                                       \
        struct walk before = walk;                                                                                     \
        walk = (struct walk){call, strlen(where) - strlen(path)};                                                      \
        int rc = NEXT(name)(where, name##_met, most);                                                                  \
        walk = before;                                                                                                 \
        return rc;                                                                                                     \
    }
#define NFTW(name, type)                                                                                               \
    static int name##_met(const char *path, const struct type *buf, int kind, struct FTW *more) {                      \
        struct FTW shown = {.base = more->base - (int)walk.skip, .level = more->level};                                \
        return ((int (*)(const char *, const struct type *, int, struct FTW *))walk.call)(path + walk.skip, buf, kind, \
                                                                                          &shown);                     \
    }                                                                                                                  \
    EXPORT int name(const char *path, int (*call)(const char *, const struct type *, int, struct FTW *), int most,     \
                    int flags) {                                                                                       \
        char room[room_for(path)];                                                                                     \
        const char *where = redirected(path, room, sizeof room);                                                       \
        if (where == path)                                                                                             \
            return NEXT(name)(path, call, most, flags);                                                                \
        struct walk before = walk;                                                                                     \
        walk = (struct walk){call, strlen(where) - strlen(path)};                                                      \
        int rc = NEXT(name)(where, name##_met, most, flags);                                                           \
        walk = before;                                                                                                 \
        return rc;                                                                                                     \
    }

FTW(ftw, stat)
NFTW(nftw, stat)
#ifdef __GLIBC__
FTW(ftw64, stat64)
NFTW(nftw64, stat64)
#endif
