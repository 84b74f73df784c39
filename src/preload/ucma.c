/* SPDX-License-Identifier: Apache-2.0
 *
 * /dev/infiniband/rdma_cm: a socket to the server of `rnic run`, which is all that a program and this library keep of it.
 *
 * Towards the program the socket has a byte for each event that can be fetched, so that poll(2) and O_NONBLOCK work by
 * themselves; its end of the socket is closed by whatever ends the program, and the server sees that.  Towards the server
 * go the commands, each with one end of a pair of sockets of its own, on which the answer comes.  So threads need no lock, a
 * copy of the descriptor is as good as the first one, and a process that was forked or started with it can use it.
 *
 * Sockets are used by system calls themselves: librspreload.so stands in front of libc's functions, and is not ready for
 * calls when constructors run.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "ibverbs/orders.h"
#include "preload.h"

#include <rdma/rdma_user_cm.h>

#define DEVICE_FILE "/dev/infiniband/rdma_cm"
#define SOCKET_NAME "/ucma" /* in the folder of $RNIC_RUN */
#define MOST_OPTION 4096    /* bytes of an option's value */
#define MOST_FDS (1 << 20)  /* larger descriptors cannot be device files */

/* What the server says ahead of the data of an answer. */
struct answer {
    int32_t result;   /* 0 or a negative errno */
    uint32_t undone;  /* events that are gone: as many bytes are to be taken back */
    uint64_t address; /* of the data, in the program: what the command says */
    uint64_t length;  /* of the data */
    uint64_t orders;  /* behind the data: so many, one of them at most with the descriptors that came with this */
};

/* What is told to the server when fewer bytes could be taken back, as other threads had them: `in` of them were missing. */
#define CMD_MISSING UINT32_MAX
/* The opposite: `in` bytes were taken, and the server was not asked for their events. */
#define CMD_RETURNED (UINT32_MAX - 1)
/* Whether an id, whose number follows, is one of this file: ENOENT, EINVAL: it is not. */
#define CMD_HOLDS (UINT32_MAX - 2)

/* ---------------------------------------------------------------- which descriptors */

/* Descriptors that may be device files.  A bit may be stale: is_ucma() asks the socket. */
static _Atomic uint8_t marks[MOST_FDS / 8];

void ucma_mark(int fd) {
    if (fd >= 0 && fd < MOST_FDS)
        atomic_fetch_or(&marks[fd / 8], (uint8_t)(1 << fd % 8));
}

static void unmark(int fd) { atomic_fetch_and(&marks[fd / 8], (uint8_t)~(1 << fd % 8)); }

static bool is_marked(int fd) {
    return fd >= 0 && fd < MOST_FDS && atomic_load_explicit(&marks[fd / 8], memory_order_relaxed) >> fd % 8 & 1;
}

static bool server_address(struct sockaddr_un *to) {
    const char *run = run_folder();
    if (!run || strlen(run) + sizeof SOCKET_NAME > sizeof to->sun_path)
        return false;
    memset(to, 0, sizeof *to);
    to->sun_family = AF_UNIX;
    strcpy(to->sun_path, run);
    strcat(to->sun_path, SOCKET_NAME);
    return true;
}

static bool is_of_server(int fd) {
    struct sockaddr_un server, peer = {0};
    socklen_t length = sizeof peer;
    return server_address(&server) && syscall(SYS_getpeername, fd, &peer, &length) == 0 && peer.sun_family == AF_UNIX &&
           !strncmp(peer.sun_path, server.sun_path, sizeof peer.sun_path);
}

/* Closed, and perhaps another file by now: unless another thread has made it such a file meanwhile, as dup2() does, and its
 * mark was the one that went. */
static bool forget(int fd) {
    unmark(fd);
    bool is = is_of_server(fd);
    if (is)
        ucma_mark(fd);
    return is;
}

bool is_ucma(int fd) {
    if (!is_marked(fd))
        return false;
    int before = errno;
    bool is = is_of_server(fd) || forget(fd);
    errno = before;
    return is;
}

/* What getdents64(2) writes. */
struct entry {
    uint64_t inode;
    int64_t next;
    uint16_t length; /* of the entry */
    uint8_t type;
    char name[];
};

static void mark_entries(const char *entries, long length) {
    uint16_t size;
    for (long at = 0; at < length; at += size) {
        const char *entry = entries + at;
        memcpy(&size, entry + offsetof(struct entry, length), sizeof size);
        int fd = atoi(entry + offsetof(struct entry, name)); /* of "." and "..": 0 */
        if (is_of_server(fd))
            ucma_mark(fd);
    }
}

static void mark_all(void) {
    char entries[2048];
    long length;
    int folder = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_CLOEXEC, 0);
    if (folder < 0)
        return;
    while ((length = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0)
        mark_entries(entries, length);
    syscall(SYS_close, folder);
}

/* A program that was started by exec() may have some: all its descriptors are looked at.  errno is put back, as
 * getpeername() fails for each that is no socket, and main() begins with errno 0. */
__attribute__((constructor)) static void mark_inherited(void) {
    int before = errno;
    if (run_folder())
        mark_all();
    errno = before;
}

/* ---------------------------------------------------------------- open */

bool is_ucma_path(const char *path) {
    size_t head = run_folder() ? strlen(run_folder()) : 0;
    return path && head && !strncmp(path, run_folder(), head) && !strcmp(path + head, DEVICE_FILE);
}

static int no_server(int fd) {
    if (fd >= 0)
        syscall(SYS_close, fd);
    errno = ENODEV;
    return -1;
}

int ucma_open(int flags) {
    struct sockaddr_un server;
    int type = SOCK_SEQPACKET | (flags & O_CLOEXEC ? SOCK_CLOEXEC : 0);
    int fd = (int)syscall(SYS_socket, AF_UNIX, type, 0);
    if (fd < 0)
        return -1;
    if (fd >= MOST_FDS || !server_address(&server) || syscall(SYS_connect, fd, &server, sizeof server) < 0)
        return no_server(fd);
    if (flags & O_NONBLOCK)
        syscall(SYS_fcntl, fd, F_SETFL, O_NONBLOCK);
    ucma_mark(fd);
    return fd;
}

/* ---------------------------------------------------------------- commands */

struct command {
    struct rdma_ucm_cmd_hdr head;
    struct iovec parts[2]; /* what was written, and the value of an option */
    int migrates;          /* the descriptor that the id of a MIGRATE_ID comes from, or -1 */
    uint32_t id;           /* likewise: the id's number */
};

static int fail(int why) {
    errno = why;
    return -1;
}

/* Whether a program has 8 bytes there: the kernel looks at them before it refuses the call. */
static bool is_readable(const void *at) { return syscall(SYS_rt_sigprocmask, ~0, at, NULL, 8) >= 0 || errno != EFAULT; }

/* What this library reads itself of a command: at least 8 bytes, which lie in two pages at the most. */
static int copy_from_program(void *to, const void *from, size_t length) {
    if (!is_readable(from) || !is_readable((const char *)from + length - 8))
        return fail(EFAULT);
    memcpy(to, from, length);
    return 0;
}

/* The descriptor that an id comes from: EINVAL for another file, ENOENT for none. */
static int check_file(int fd) {
    if (is_ucma(fd))
        return 0;
    return fail(syscall(SYS_fcntl, fd, F_GETFD) < 0 ? ENOENT : EINVAL);
}

/* Read a command as far as it points to more than its own bytes. */
static int understand(struct command *c, const void *buf, size_t count) {
    struct rdma_ucm_set_option option;
    struct rdma_ucm_migrate_id migrate;
    const char *body = (const char *)buf + sizeof c->head;
    *c = (struct command){.migrates = -1};
    if (count < sizeof c->head)
        return fail(EINVAL);
    if (copy_from_program(&c->head, buf, sizeof c->head))
        return -1;
    if (c->head.in + sizeof c->head > count)
        return fail(EINVAL);
    c->parts[0] = (struct iovec){(void *)buf, sizeof c->head + c->head.in};
    if (c->head.cmd == RDMA_USER_CM_CMD_SET_OPTION && c->head.in >= sizeof option) {
        if (copy_from_program(&option, body, sizeof option))
            return -1;
        if (option.optlen > MOST_OPTION)
            return fail(EINVAL);
        c->parts[1] = (struct iovec){(void *)(uintptr_t)option.optval, option.optlen};
    }
    if (c->head.cmd == RDMA_USER_CM_CMD_MIGRATE_ID && c->head.in >= sizeof migrate) {
        if (copy_from_program(&migrate, body, sizeof migrate) || check_file((int)migrate.fd))
            return -1;
        c->migrates = (int)migrate.fd;
        c->id = migrate.id;
    }
    return 0;
}

/* Send a message to the server, which always reads; with a descriptor, or -1. */
static int send_message(int fd, struct iovec *parts, size_t count, int passed) {
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    if (passed >= 0) {
        control.head =
            (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof passed), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.head), &passed, sizeof passed);
        message.msg_control = &control;
        message.msg_controllen = sizeof control.room;
    }
    while (syscall(SYS_sendmsg, fd, &message, MSG_NOSIGNAL) < 0) {
        if (errno == EAGAIN) /* the program wants no waiting, for events */
            syscall(SYS_ppoll, &(struct pollfd){.fd = fd, .events = POLLOUT}, 1, NULL, NULL, 0);
        else if (errno != EINTR)
            return errno == EPIPE || errno == ECONNRESET ? fail(EIO) : -1;
    }
    return 0;
}

/* The error of a read that has brought nothing.  EIO: the server has gone, or was killed with commands unread. */
static int no_bytes(ssize_t n) { return n == 0 || errno == ECONNRESET ? fail(EIO) : -1; }

/* Exactly that many bytes. */
static int read_all(int fd, void *to, size_t length) {
    for (char *at = to; length;) {
        ssize_t n = syscall(SYS_read, fd, at, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return no_bytes(n);
        at += n;
        length -= (size_t)n;
    }
    return 0;
}

/* Tell the server about bytes of events, for which it has no answer. */
static void tell(int fd, uint32_t cmd, uint16_t count) {
    struct rdma_ucm_cmd_hdr head = {.cmd = cmd, .in = count};
    send_message(fd, &(struct iovec){&head, sizeof head}, 1, -1);
}

/* Send a command, with a socket for its answer. */
static int ask(int fd, struct command *c, int ends[2]) {
    int rc = (int)syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends);
    if (!rc && (rc = send_message(fd, c->parts, 2, ends[1]))) {
        int why = errno;
        syscall(SYS_close, ends[0]);
        syscall(SYS_close, ends[1]);
        errno = why;
    }
    return rc;
}

/* The beginning of an answer, and the descriptors that come with it, or -1. */
static int read_head(int fd, struct answer *answer, int fds[ORDER_FDS]) {
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(ORDER_FDS * sizeof *fds)];
    } control = {0};
    struct iovec part = {answer, sizeof *answer};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.room};
    long n;
    do
        n = syscall(SYS_recvmsg, fd, &message, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return no_bytes(n);
    if (message.msg_controllen >= sizeof control.head && control.head.cmsg_type == SCM_RIGHTS)
        memcpy(fds, CMSG_DATA(&control.head), control.head.cmsg_len - CMSG_LEN(0));
    return read_all(fd, (char *)answer + n, sizeof *answer - (size_t)n);
}

/* Who carries out orders: libibverbs.so, from when it is loaded. */
static _Atomic(order_function *) verbs;

EXPORT void rnic_preload_take_orders(order_function *function) { atomic_store(&verbs, function); }

static int give(const struct order *order, const int fds[ORDER_FDS]) {
    order_function *function = atomic_load(&verbs);
    if (function)
        return function(order, fds);
    for (int i = 0; i < ORDER_FDS; i++)
        syscall(SYS_close, fds[i]);
    return -EINVAL;
}

/* Have the orders behind an answer carried out.  A connection that its queue pair does not take fails the command that has
 * accepted it; else it ends, and an event says so.  fds: -1, where they have been given away */
static int follow_orders(int fd, const struct command *c, struct answer *answer, int fds[ORDER_FDS]) {
    static const int none[ORDER_FDS] = {-1, -1};
    for (uint64_t i = 0; i < answer->orders; i++) {
        struct order order;
        if (read_all(fd, &order, sizeof order))
            return -1;
        int rc = give(&order, order.kind == ORDER_BEGIN ? fds : none);
        if (order.kind == ORDER_BEGIN)
            memcpy(fds, none, sizeof none);
        if (rc && order.kind == ORDER_BEGIN && c->head.cmd == RDMA_USER_CM_CMD_ACCEPT)
            answer->result = rc;
    }
    return 0;
}

/* Have a command carried out; the data of the answer go where the program wants them. */
static int carry_out(int fd, struct command *c, struct answer *answer) {
    int ends[2];
    if (ask(fd, c, ends)) {
        int why = errno;
        if (c->head.cmd == RDMA_USER_CM_CMD_GET_EVENT)
            tell(fd, CMD_RETURNED, 1);
        errno = why;
        return -1;
    }
    syscall(SYS_close, ends[1]); /* the server has its own: when that goes, a read ends */
    int fds[ORDER_FDS] = {-1, -1};
    int rc = read_head(ends[0], answer, fds);
    if (!rc && answer->length)
        rc = read_all(ends[0], (void *)(uintptr_t)answer->address, (size_t)answer->length);
    if (!rc)
        rc = follow_orders(ends[0], c, answer, fds);
    int why = errno;
    syscall(SYS_close, ends[0]);
    for (int i = 0; i < ORDER_FDS; i++) {
        if (fds[i] >= 0) /* nobody has got it */
            syscall(SYS_close, fds[i]);
    }
    errno = why;
    return rc;
}

/* Take back the bytes of events that are gone. */
static void take_back(int fd, uint32_t count) {
    uint16_t missing = 0;
    char byte;
    for (; count; count--) {
        if (syscall(SYS_recvfrom, fd, &byte, 1, MSG_DONTWAIT, NULL, NULL) != 1)
            missing++;
    }
    if (missing)
        tell(fd, CMD_MISSING, missing);
}

/* read(2), by a function that librspreload.so does not stand in front of; musl has it since 1.2.5. */
#ifdef __GLIBC__
#define READ(fd, to, length) preadv2(fd, &(struct iovec){to, length}, 1, -1, 0)
#else
#define READ read
#endif

/* Wait for an event, as the descriptor waits; a signal ends it, and so does pthread_cancel(). */
static int take_byte(int fd) {
    char byte;
    ssize_t n = READ(fd, &byte, 1);
    return n == 1 ? 0 : no_bytes(n);
}

/* Whether the id of a MIGRATE_ID is one of the file that it is said to come from. */
static int check_id(const struct command *c) {
    struct {
        struct rdma_ucm_cmd_hdr head;
        uint32_t id;
    } question = {{.cmd = CMD_HOLDS, .in = sizeof question.id}, c->id};
    struct command asks = {.head = question.head, .parts = {{&question, sizeof question}}};
    struct answer answer = {0};
    int rc = carry_out(c->migrates, &asks, &answer);
    return rc ? rc : answer.result ? fail(-answer.result) : 0;
}

static int execute(int fd, struct command *c) {
    struct answer answer = {0};
    int state, rc;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state); /* write() can be cancelled; not between two descriptors */
    rc = c->migrates >= 0 ? check_id(c) : 0;
    if (!rc)
        rc = carry_out(fd, c, &answer);
    if (!rc && answer.undone)
        take_back(c->migrates >= 0 ? c->migrates : fd, answer.undone);
    pthread_setcancelstate(state, NULL);
    return rc ? rc : answer.result ? fail(-answer.result) : 0;
}

ssize_t ucma_write(int fd, const void *buf, size_t count) {
    struct command c;
    int rc = understand(&c, buf, count);
    if (rc)
        return rc;
    do {
        if (c.head.cmd == RDMA_USER_CM_CMD_GET_EVENT && take_byte(fd))
            return -1;
        rc = execute(fd, &c);
    } while (rc && errno == EAGAIN && c.head.cmd == RDMA_USER_CM_CMD_GET_EVENT); /* it has gone with its id */
    return rc ? rc : (ssize_t)count;
}
