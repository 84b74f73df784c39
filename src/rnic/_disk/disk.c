/* SPDX-License-Identifier: Apache-2.0 */
#include "disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)

/* A signal, which is the main thread's business, may have met this one. */
#define AGAIN(result, call) \
    do                      \
        (result) = (call);  \
    while ((result) < 0 && errno == EINTR)

static int write_all(int fd, const char *data, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t n;
        AGAIN(n, pwrite(fd, data + done, size - done, (off_t)done));
        if (n < 0)
            return errno;
        done += (size_t)n;
    }
    return 0;
}

static struct timespec time_of(int64_t ns) {
    int64_t rest = (ns % SECOND + SECOND) % SECOND;
    return (struct timespec){.tv_sec = (ns - rest) / SECOND, .tv_nsec = rest};
}

static int fill(int fd, const struct new_file *f) {
    const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, time_of(f->mtime)};
    int error = write_all(fd, f->content, f->size);
    return error ? error : fchmod(fd, f->mode) || futimens(fd, times) ? errno : 0;
}

/* Without `replace`, a link: it never takes a name from another file. */
static int give_name(int folder, const char *temporary, const char *name, bool replace) {
    if (replace)
        return renameat(folder, temporary, folder, name) ? errno : 0;
    int error = !linkat(folder, temporary, folder, name, 0) ? 0 : errno == EEXIST ? TAKEN : errno;
    return unlinkat(folder, temporary, 0) && !error ? errno : error;
}

int store_file(int folder, const char *temporary, const struct new_file *f, bool replace) {
    struct stat s;
    if (!replace && !fstatat(folder, f->name, &s, AT_SYMLINK_NOFOLLOW))
        return TAKEN;
    int fd;
    AGAIN(fd, openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (fd < 0)
        return errno;
    int error = fill(fd, f);
    if (close(fd) && !error)
        error = errno;
    if (!error)
        error = give_name(folder, temporary, f->name, replace);
    if (error)
        unlinkat(folder, temporary, 0);
    return error;
}

static int64_t ns_of(const struct timespec *t) { return (int64_t)t->tv_sec * SECOND + t->tv_nsec; }

static int read_whole(int fd, char *into, struct stat *s, struct found_file *f) {
    ssize_t n;
    struct stat after;
    AGAIN(n, pread(fd, into, (size_t)s->st_size + 1, 0)); /* more than it has: it may grow */
    if (n < 0 || fstat(fd, &after))
        return errno;
    if (n != s->st_size || after.st_size != n || ns_of(&after.st_mtim) != ns_of(&s->st_mtim))
        return SINGLE;
    *f = (struct found_file){.size = (size_t)n, .mode = after.st_mode, .mtime = ns_of(&after.st_mtim)};
    return 0;
}

/* `most`: bytes that may be read.  What is more, is no regular file or changes is SINGLE: one to look at more closely. */
static int load_one(int folder, const char *name, char *into, size_t most, struct found_file *f) {
    int fd;
    AGAIN(fd, openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (fd < 0)
        return errno;
    struct stat s;
    int error = fstat(fd, &s) ? errno : S_ISREG(s.st_mode) && (size_t)s.st_size <= most ? 0 : SINGLE;
    if (!error)
        error = read_whole(fd, into, &s, f);
    close(fd);
    return error;
}

size_t load_files(int folder, const char *const *names, size_t n, size_t most, char *into, size_t room,
                  struct found_file *found) {
    size_t i = 0;
    for (size_t at = 0; i < n && room - at > most; i++) {
        found[i].error = load_one(folder, names[i], into + at, most, &found[i]);
        at += found[i].error ? 0 : found[i].size;
    }
    return i;
}
