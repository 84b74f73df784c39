/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets by which programs ask the kernel for RDMA devices (NETLINK_RDMA), as rdma(8) does.
 *
 * Such a socket is one of NETLINK_USERSOCK instead, of which the kernel knows nothing.  What a program sends to the kernel
 * by it is answered from files of the folder, which have the messages (src/rnic/programs/netlink.py); this library sends them
 * by the same socket to itself.  So poll(2), a copy of the descriptor and an end of the program need nothing here.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload.h"

#define MOST_ANSWER 65536 /* bytes of a file */
#define MOST_REQUEST 4096
#define NO_DEVICE UINT32_MAX

struct request {
    struct nlmsghdr head;
    uint32_t device; /* the index that it asks for, or NO_DEVICE */
};

/* A socket that takes messages of its own alone: to a connected one the kernel lets no other send.  It is connected to the
 * kernel first, so that nobody has a moment in between. */
static int make(int type) {
    struct sockaddr_nl to = {.nl_family = AF_NETLINK};
    socklen_t length = sizeof to;
    int fd = NEXT(socket)(AF_NETLINK, type, NETLINK_USERSOCK);
    if (fd < 0)
        return -1;
    if (!syscall(SYS_connect, fd, &to, length) && !syscall(SYS_getsockname, fd, &to, &length) &&
        !syscall(SYS_connect, fd, &to, length))
        return fd;
    int why = errno;
    syscall(SYS_close, fd);
    errno = why;
    return -1;
}

EXPORT int socket(int domain, int type, int protocol) {
    bool ours = domain == AF_NETLINK && protocol == NETLINK_RDMA && run_folder();
    return ours ? make(type) : NEXT(socket)(domain, type, protocol);
}

static bool is_ours(int fd) {
    int protocol = -1;
    socklen_t size = sizeof protocol;
    return run_folder() && !syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) &&
           protocol == NETLINK_USERSOCK;
}

/* Reads an address.  False: it is not one of netlink. */
static bool netlink_address(struct sockaddr_nl *out, const void *from, socklen_t length) {
    if (!from || length < sizeof *out || ((const struct sockaddr *)from)->sa_family != AF_NETLINK)
        return false;
    memcpy(out, from, sizeof *out);
    return true;
}

/* The number that make() has got is the one that the kernel chooses. */
EXPORT int bind(int fd, const struct sockaddr *to, socklen_t length) {
    struct sockaddr_nl wanted, self;
    socklen_t size = sizeof self;
    if (!netlink_address(&wanted, to, length) || wanted.nl_pid || !is_ours(fd) ||
        syscall(SYS_getsockname, fd, &self, &size))
        return NEXT(bind)(fd, to, length);
    wanted.nl_pid = self.nl_pid;
    return NEXT(bind)(fd, (struct sockaddr *)&wanted, sizeof wanted);
}

/* Whether something is sent to the kernel by such a socket; no kernel takes it. */
static bool to_kernel(int fd, const void *name, socklen_t length) {
    struct sockaddr_nl to;
    return netlink_address(&to, name, length) && !to.nl_pid && !to.nl_groups && is_ours(fd);
}

static int understand(const uint8_t *bytes, size_t length, struct request *request) {
    struct nlattr attr;
    *request = (struct request){.device = NO_DEVICE};
    if (length < sizeof request->head)
        return EINVAL;
    memcpy(&request->head, bytes, sizeof request->head);
    for (size_t at = sizeof request->head; at + sizeof attr <= length; at += NLA_ALIGN(attr.nla_len)) {
        memcpy(&attr, bytes + at, sizeof attr);
        if (attr.nla_len < sizeof attr || attr.nla_len > length - at)
            return EINVAL;
        if ((attr.nla_type & NLA_TYPE_MASK) == RDMA_NLDEV_ATTR_DEV_INDEX && attr.nla_len == sizeof attr + 4)
            memcpy(&request->device, bytes + at + sizeof attr, 4);
    }
    return 0;
}

/* The length of the file that answers; -1 and errno. */
static ssize_t answer_of(const struct request *request, uint8_t *room, size_t size) {
    char path[PATH_MAX];
    int n =
        request->device == NO_DEVICE
            ? snprintf(path, sizeof path, "%s/netlink/%u", run_folder(), request->head.nlmsg_type)
            : snprintf(path, sizeof path, "%s/netlink/%u.%u", run_folder(), request->head.nlmsg_type, request->device);
    int fd = n < (int)sizeof path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0) : -1;
    ssize_t length = fd < 0 ? -1 : syscall(SYS_read, fd, room, size);
    if (fd >= 0)
        syscall(SYS_close, fd);
    return length;
}

/* To this socket itself, as the answer to a request. */
static void send_back(int fd, struct nlmsghdr *message, const struct request *request) {
    struct sockaddr_nl self;
    socklen_t length = sizeof self;
    if (syscall(SYS_getsockname, fd, &self, &length))
        return;
    message->nlmsg_seq = request->head.nlmsg_seq;
    message->nlmsg_pid = self.nl_pid;
    self.nl_groups = 0;
    syscall(SYS_sendto, fd, message, message->nlmsg_len, MSG_DONTWAIT, &self, sizeof self);
}

/* An error, or 0: the request has been carried out. */
static void send_end(int fd, const struct request *request, int why) {
    struct {
        struct nlmsghdr head;
        struct nlmsgerr body;
    } end = {{sizeof end, NLMSG_ERROR, 0, 0, 0}, {-why, request->head}};
    if (!why && request->head.nlmsg_flags & NLM_F_DUMP) {
        end.head.nlmsg_type = NLMSG_DONE;
        end.head.nlmsg_flags = NLM_F_MULTI;
        end.head.nlmsg_len = sizeof end.head + sizeof end.body.error;
    }
    if (why || request->head.nlmsg_flags & (NLM_F_ACK | NLM_F_DUMP))
        send_back(fd, &end.head, request);
}

static void answer(int fd, const uint8_t *bytes, size_t length) {
    struct request request;
    _Alignas(struct nlmsghdr) uint8_t room[MOST_ANSWER];
    int why = understand(bytes, length, &request);
    ssize_t end = why ? -1 : answer_of(&request, room, sizeof room);
    for (ssize_t at = 0; at + (ssize_t)sizeof(struct nlmsghdr) <= end;) {
        struct nlmsghdr *message = (struct nlmsghdr *)(room + at);
        if (message->nlmsg_len < sizeof *message || message->nlmsg_len > (size_t)(end - at))
            break;
        at += NLMSG_ALIGN(message->nlmsg_len);
        send_back(fd, message, &request);
    }
    send_end(fd, &request, why ? why : end < 0 ? EOPNOTSUPP : 0);
}

EXPORT ssize_t sendto(int fd, const void *buf, size_t length, int flags, const struct sockaddr *to, socklen_t size) {
    if (!to_kernel(fd, to, size))
        return NEXT(sendto)(fd, buf, length, flags, to, size);
    answer(fd, buf, length);
    return (ssize_t)length;
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    uint8_t bytes[MOST_REQUEST];
    size_t length = 0;
    if (!message || !to_kernel(fd, message->msg_name, message->msg_namelen))
        return NEXT(sendmsg)(fd, message, flags);
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        if (message->msg_iov[i].iov_len > sizeof bytes - length) {
            errno = EMSGSIZE;
            return -1;
        }
        memcpy(bytes + length, message->msg_iov[i].iov_base, message->msg_iov[i].iov_len);
        length += message->msg_iov[i].iov_len;
    }
    answer(fd, bytes, length);
    return (ssize_t)length;
}
