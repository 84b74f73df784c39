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

#define MOST_REQUEST 4096 /* bytes */
#define MOST_PART 4096    /* bytes that are sent at once, of several messages: programs have room for a page */
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

/* The file that answers; -1 and errno. */
static int open_answer(const struct request *request) {
    char path[strlen(run_folder()) + sizeof "/netlink/65535.4294967295"];
    int n = sprintf(path, "%s/netlink/%u", run_folder(), request->head.nlmsg_type);
    if (request->device != NO_DEVICE)
        sprintf(path + n, ".%u", request->device);
    return (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
}

/* To this socket itself; false: it has no room for more. */
static bool send_back(int fd, const void *messages, size_t length, const struct sockaddr_nl *self) {
    return syscall(SYS_sendto, fd, messages, length, MSG_DONTWAIT, self, sizeof *self) >= 0;
}

/* The messages at the begin that are whole become answers to a request: the number of their bytes. */
static size_t address(uint8_t *messages, size_t length, const struct request *request, uint32_t port) {
    struct nlmsghdr head;
    size_t at = 0;
    while (at + sizeof head <= length) {
        memcpy(&head, messages + at, sizeof head);
        if (head.nlmsg_len < sizeof head || NLMSG_ALIGN(head.nlmsg_len) > length - at)
            break;
        head.nlmsg_seq = request->head.nlmsg_seq;
        head.nlmsg_pid = port;
        memcpy(messages + at, &head, sizeof head);
        at += NLMSG_ALIGN(head.nlmsg_len);
    }
    return at;
}

/* 0 or an error. */
static int send_answer(int fd, const struct request *request, const struct sockaddr_nl *self) {
    uint8_t part[MOST_PART];
    int file = open_answer(request), why = file < 0 ? EOPNOTSUPP : 0;
    size_t whole;
    for (off_t at = 0; !why; at += (off_t)whole) {
        ssize_t n = syscall(SYS_pread64, file, part, sizeof part, at);
        whole = n < 0 ? 0 : address(part, (size_t)n, request, self->nl_pid);
        if (!whole)
            break;
        if (!send_back(fd, part, whole, self))
            why = ENOBUFS;
    }
    if (file >= 0)
        syscall(SYS_close, file);
    return why;
}

/* An error, or 0: the request has been carried out. */
static bool send_end(int fd, const struct request *request, int why, const struct sockaddr_nl *self) {
    struct {
        struct nlmsghdr head;
        struct nlmsgerr body;
    } end = {{sizeof end, NLMSG_ERROR, 0, request->head.nlmsg_seq, self->nl_pid}, {-why, request->head}};
    if (!why && request->head.nlmsg_flags & NLM_F_DUMP) {
        end.head.nlmsg_type = NLMSG_DONE;
        end.head.nlmsg_flags = NLM_F_MULTI;
        end.head.nlmsg_len = sizeof end.head + sizeof end.body.error;
    }
    if (!why && !(request->head.nlmsg_flags & (NLM_F_ACK | NLM_F_DUMP)))
        return true;
    return send_back(fd, &end, end.head.nlmsg_len, self);
}

/* What sendto() or sendmsg() returns, which signal handlers call on small stacks, but not for this. */
__attribute__((noinline)) static ssize_t answer(int fd, const uint8_t *bytes, size_t length) {
    struct request request;
    struct sockaddr_nl self;
    socklen_t size = sizeof self;
    if (syscall(SYS_getsockname, fd, &self, &size))
        return -1;
    self.nl_groups = 0;
    int why = understand(bytes, length, &request);
    why = why ? why : send_answer(fd, &request, &self);
    if (why != ENOBUFS && send_end(fd, &request, why, &self))
        return (ssize_t)length;
    errno = ENOBUFS; /* nobody would wait for the end */
    return -1;
}

EXPORT ssize_t sendto(int fd, const void *buf, size_t length, int flags, const struct sockaddr *to, socklen_t size) {
    return to_kernel(fd, to, size) ? answer(fd, buf, length) : NEXT(sendto)(fd, buf, length, flags, to, size);
}

__attribute__((noinline)) static ssize_t answer_parts(int fd, const struct msghdr *message) {
    uint8_t bytes[MOST_REQUEST];
    size_t length = 0;
    for (size_t i = 0; i < (size_t)message->msg_iovlen; i++) {
        if (message->msg_iov[i].iov_len > sizeof bytes - length) {
            errno = EMSGSIZE;
            return -1;
        }
        memcpy(bytes + length, message->msg_iov[i].iov_base, message->msg_iov[i].iov_len);
        length += message->msg_iov[i].iov_len;
    }
    return answer(fd, bytes, length);
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    if (!message || !to_kernel(fd, message->msg_name, message->msg_namelen))
        return NEXT(sendmsg)(fd, message, flags);
    return answer_parts(fd, message);
}
