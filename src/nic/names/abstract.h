/* SPDX-License-Identifier: Apache-2.0
 *
 * Abstract unix datagram sockets: names that live in the network namespace and die with their process.
 */
#ifndef RNIC_LINK_ABSTRACT_H
#define RNIC_LINK_ABSTRACT_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>

struct abstract_name {
    struct sockaddr_un un;
    socklen_t length; /* of un, as bind and sendto want it */
};

/* Formats a name; the text goes without the leading NUL. */
void abstract_name(struct abstract_name *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A non-blocking, close-on-exec datagram socket with that name, or -errno: -EADDRINUSE when somebody has it. */
int abstract_open(const struct abstract_name *name);

/* Sends one message to a name, by a socket that lives no longer: a datagram is charged to its socket until it is read,
 * so what a stopped receiver leaves lying must not hold back the answers to others. 0 or -errno; never blocks.  -EINVAL: it
 * is no abstract name.  A sender chooses where its answer goes: it shall not reach by us what it may not open itself. */
int abstract_send(const struct abstract_name *to, struct iovec *iov, size_t niov);

/* Room for a sender's credentials (SO_PASSCRED), and for nothing else: descriptors that somebody passes are refused. */
union abstract_control {
    char bytes[CMSG_SPACE(3 * sizeof(int))]; /* struct ucred */
    struct cmsghdr align;
};

/* The real uid of whoever sent the message, by the kernel's word. False: it carries none. */
bool abstract_sender(struct msghdr *mh, uid_t *uid);

#endif
