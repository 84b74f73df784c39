/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* struct ucred */
#endif
#include "names/abstract.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void abstract_name(struct abstract_name *out, const char *fmt, ...) {
    memset(out, 0, sizeof *out);
    out->un.sun_family = AF_UNIX;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out->un.sun_path + 1, sizeof out->un.sun_path - 1, fmt, ap);
    va_end(ap);
    out->length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(out->un.sun_path + 1));
}

int abstract_open(const struct abstract_name *name) {
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -errno;
    }
    if (bind(fd, (const struct sockaddr *)&name->un, name->length) != 0) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    return fd;
}

int abstract_send(const struct abstract_name *to, struct iovec *iov, size_t niov) {
    if (to->length <= sizeof(sa_family_t) || to->un.sun_path[0] != '\0') {
        return -EINVAL;
    }
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -errno;
    }
    struct msghdr mh = {.msg_name = (void *)(uintptr_t)&to->un, .msg_namelen = to->length};
    mh.msg_iov = iov;
    mh.msg_iovlen = niov;
    int rc = sendmsg(fd, &mh, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
    close(fd);
    return rc;
}

_Static_assert(sizeof(struct ucred) == 3 * sizeof(int), "abstract_control has room for a struct ucred");

bool abstract_sender(struct msghdr *mh, uid_t *uid) {
    struct cmsghdr *c = CMSG_FIRSTHDR(mh);
    struct ucred cred;
    if (c == NULL || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_CREDENTIALS) {
        return false;
    }
    memcpy(&cred, CMSG_DATA(c), sizeof cred);
    *uid = cred.uid;
    return true;
}
