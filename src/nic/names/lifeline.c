/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* accept4 */
#endif
#include "names/lifeline.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "names/user.h"

#define BACKLOG 4096
#define ROOM 16
#define AT_ONCE 64 /* taken in: who connects and hangs up all the time would keep us for ever */
#define SWEEP_NS 100000000ull /* to look at all that are held takes a system call for each */

static int open_stream(const struct abstract_name *of, struct abstract_name *name) {
    abstract_name(name, "life/%s", of->un.sun_path + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    return fd < 0 ? -errno : fd;
}

static int closing(int fd, int rc) {
    close(fd);
    return rc;
}

int lifeline_open(struct lifeline *l, const struct abstract_name *of) {
    struct abstract_name name;
    int fd = open_stream(of, &name);
    *l = (struct lifeline){.fd = -1};
    if (fd < 0) {
        return fd;
    }
    if (bind(fd, (const struct sockaddr *)&name.un, name.length) != 0 || listen(fd, BACKLOG) != 0) {
        return closing(fd, -errno);
    }
    l->fd = fd;
    return 0;
}

void lifeline_close(struct lifeline *l) {
    if (l->fd >= 0) {
        close(l->fd);
    }
    for (uint32_t i = 0; i < l->count; i++) {
        close(l->held[i].fd);
    }
    free(l->held);
    *l = (struct lifeline){.fd = -1};
}

/* Nobody says anything: whatever there is to read, or to hear, is a reason to part. */
static bool has_gone(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) != 0;
}

static void sweep(struct lifeline *l) {
    uint32_t kept = 0;
    l->strangers = 0;
    for (uint32_t i = 0; i < l->count; i++) {
        if (has_gone(l->held[i].fd)) {
            close(l->held[i].fd);
        } else {
            l->strangers += l->held[i].stranger;
            l->held[kept++] = l->held[i];
        }
    }
    l->count = kept;
}

static bool make_room(struct lifeline *l) {
    if (l->count < l->room) {
        return true;
    }
    uint32_t room = 2 * l->room + ROOM;
    struct watcher *held = realloc(l->held, room * sizeof *held);
    if (held == NULL) {
        return false;
    }
    l->held = held;
    l->room = room;
    return true;
}

/* To hang up would tell it that we have died: who is one too many is left to the kernel's queue. */
static bool is_stranger(int fd) {
    struct ucred cred;
    socklen_t n = sizeof cred;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) != 0 || !user_is_ours(cred.uid);
}

/* False: there is none. */
static bool take_in(struct lifeline *l, uint64_t now) {
    int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    bool stranger = is_stranger(fd);
    if (stranger) {
        allowance_pay(&l->calls, LIFELINE_CALL_NS, 1, now);
    }
    if (has_gone(fd)) {
        close(fd);
        return true;
    }
    l->strangers += stranger;
    l->held[l->count++] = (struct watcher){.fd = fd, .stranger = stranger};
    return true;
}

static bool takes_more(const struct lifeline *l, uint64_t now) {
    return l->strangers < LIFELINE_STRANGERS && allowance_has(&l->calls, LIFELINE_CALL_NS, LIFELINE_CALLS, now);
}

bool lifeline_accept(struct lifeline *l, uint64_t now) {
    if (now >= l->sweep_at) {
        sweep(l);
        l->sweep_at = now + SWEEP_NS;
    }
    for (int i = 0; i < AT_ONCE && l->fd >= 0; i++) {
        if (!takes_more(l, now) || !make_room(l)) {
            return false;
        }
        if (!take_in(l, now)) {
            return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
        }
    }
    return l->fd < 0 || takes_more(l, now);
}

int lifeline_watch(const struct abstract_name *of) {
    struct abstract_name name;
    int fd = open_stream(of, &name);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&name.un, name.length) != 0) {
        return closing(fd, -errno);
    }
    return fd;
}
