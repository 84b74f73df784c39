/* SPDX-License-Identifier: Apache-2.0 */
#include "link/tcp/tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/guard.h"

#define LINGER_NS 1000000000ull /* a peer has so long to read and to close, too */
#define LINGERING 256           /* streams: more are closed at once, as a process has not many descriptors */
#define SEGMENT_NS 100000000ull /* what the path takes in one piece is asked again after so long */
#define SEGMENT_LEAST 128u
#define SEGMENT_ETHERNET 9216u /* longer ones stay within the host: */
#define SEGMENTS_MOST 65535u   /* there several go together, up to so many bytes */
#define DISCARDED (1 << 20) /* bytes at once */
#define TCP_PIECES 40       /* of a read or write that the injector cuts short */

/* ---------------------------------------------------------------- stages */

static void leave_list(struct tcp *tcp, struct tcp_stream *s) {
    *s->at = s->next;
    if (s->next)
        s->next->at = s->at;
    tcp->count[s->stage]--;
}

static void enter_list(struct tcp *tcp, struct tcp_stream *s, enum tcp_stage stage) {
    struct tcp_stream **list = &tcp->streams[stage];
    s->stage = stage;
    s->at = list;
    s->next = *list;
    if (s->next)
        s->next->at = &s->next;
    *list = s;
    tcp->count[stage]++;
}

void tcp_move(struct tcp *tcp, struct tcp_stream *s, enum tcp_stage to) {
    leave_list(tcp, s);
    enter_list(tcp, s, to);
}

void tcp_watch(struct tcp *tcp, struct tcp_stream *s) {
    bool reads = !s->ended && ((s->stage == TCP_OPEN && !tcp->polled) || s->stage == TCP_LEAVES);
    bool stands = s->harm.until == UINT64_MAX;
    uint32_t events = (reads ? EPOLLIN : 0u) | (s->full && !s->harm.until ? EPOLLOUT : 0u);
    if (tcp->stalled || stands)
        events = 0;
    struct epoll_event e = {.events = events, .data = {.ptr = s}};
    if (events == s->watched)
        return;
    /* Without events, too, the end of both directions would be told, again and again. */
    epoll_ctl(tcp->epoll_fd, !events ? EPOLL_CTL_DEL : s->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, s->fd, &e);
    s->watched = events;
}

static void set_full(struct tcp *tcp, struct tcp_stream *s, bool full) {
    if (full == s->full)
        return;
    tcp->full += full ? 1 : -1u;
    tcp->counters->value[RNIC_CNT_tx_waits] += full;
    s->full = full;
}

void tcp_has_room(struct tcp *tcp, struct tcp_stream *s) {
    set_full(tcp, s, false);
    tcp_watch(tcp, s);
}

/* By syscall(), as connect() and what sends: no point of cancellation.  A post may have come here, with the lock. */
static void close_fd(int fd) { syscall(SYS_close, fd); }

static void drop_line(struct tcp_stream *s) {
    if (s->line >= 0)
        close_fd(s->line);
    s->line = -1;
}

static void discard(struct tcp *tcp, struct tcp_stream *s) {
    leave_list(tcp, s);
    drop_line(s);
    set_full(tcp, s, false);
    if (s->watched) /* closing does not take it out while somebody has a copy */
        epoll_ctl(tcp->epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
    close_fd(s->fd);
    free(s->early);
    free(s);
}

/* ---------------------------------------------------------------- out */

static int broke(struct tcp *tcp, struct tcp_stream *s, int error) {
    s->error = error;
    set_full(tcp, s, false);
    tcp_move(tcp, s, TCP_BROKEN);
    return -error;
}

static size_t bytes_of(const struct iovec *pieces, int n) {
    size_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += pieces[i].iov_len;
    return bytes;
}

/* The first bytes of n pieces, as pieces of their own. */
static int cut(const struct iovec *pieces, int n, size_t bytes, struct iovec out[TCP_PIECES]) {
    int i = 0;
    for (; i < n && i < TCP_PIECES && bytes; i++) {
        out[i] = pieces[i];
        if (out[i].iov_len > bytes)
            out[i].iov_len = bytes;
        bytes -= out[i].iov_len;
    }
    return i;
}

/* To the peer, too: what is under way is thrown away. */
static int reset(struct tcp *tcp, struct tcp_stream *s) {
    const struct sockaddr nobody = {.sa_family = AF_UNSPEC};
    syscall(SYS_connect, s->fd, &nobody, sizeof nobody);
    return broke(tcp, s, ECONNRESET);
}

/* By syscall(), as of datagrams: the C library's function is a point of cancellation.  Of one piece the call that takes no list
 * of them, which is the quicker one. */
static long send_pieces(struct tcp *tcp, struct tcp_stream *s, const struct iovec *pieces, int n) {
    struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)pieces, .msg_iovlen = (size_t)n};
    tcp->counters->value[RNIC_CNT_tx_syscalls]++;
    if (n == 1)
        return syscall(SYS_sendto, s->fd, pieces->iov_base, pieces->iov_len, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0);
    return syscall(SYS_sendmsg, s->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Through the injector: 0 bytes as of a full socket, but for its time there is no room. */
static long send_with_faults(struct tcp *tcp, struct tcp_stream *s, const struct iovec *pieces, int n) {
    struct iovec some[TCP_PIECES];
    size_t bytes = bytes_of(pieces, n);
    enum harm harm = stream_faults_write(&tcp->faults, tcp->counters, &s->harm, &bytes, *tcp->now);
    if (harm == HARM_RESET)
        return reset(tcp, s);
    if (harm != HARM_NONE)
        return 0;
    long done = send_pieces(tcp, s, some, cut(pieces, n, bytes, some));
    s->harm.written += done > 0 ? (uint64_t)done : 0;
    return done;
}

static long write_pieces(struct link *link, const struct way *way, const struct iovec *pieces, int n) {
    struct tcp *tcp = (struct tcp *)link;
    struct tcp_stream *s = tcp_stream_of(way);
    if (!way->held || s->stage == TCP_BROKEN || s->finished)
        return -EPIPE;
    long done = tcp->stalled     ? 0
                : tcp->faults.on ? send_with_faults(tcp, s, pieces, n)
                                 : send_pieces(tcp, s, pieces, n);
    if (s->stage == TCP_BROKEN)
        return done;
    if (done < 0 && errno == EFAULT)
        return -EFAULT;
    if (done < 0 && errno != EAGAIN && errno != EINTR)
        return broke(tcp, s, errno);
    if (done < 0)
        done = 0;
    set_full(tcp, s, (size_t)done < bytes_of(pieces, n));
    tcp_watch(tcp, s);
    return done;
}

static void shut(struct tcp_stream *s) {
    if (!s->finished)
        shutdown(s->fd, SHUT_WR);
    s->finished = true;
}

static void finish(struct link *link, const struct way *way) {
    (void)link;
    if (way->held)
        shut(tcp_stream_of(way));
}

static uint32_t queued(struct link *link, const struct way *way) {
    int n = 0;
    (void)link;
    return syscall(SYS_ioctl, tcp_stream_of(way)->fd, SIOCOUTQ, &n) == 0 ? (uint32_t)n : 0;
}

static uint32_t segment(struct link *link, const struct way *way) {
    const struct tcp *tcp = (struct tcp *)link;
    struct tcp_stream *s = tcp_stream_of(way);
    int found = 0;
    socklen_t n = sizeof found;
    if (s->segment && *tcp->now - s->found_at < SEGMENT_NS)
        return s->segment;
    if (getsockopt(s->fd, IPPROTO_TCP, TCP_MAXSEG, &found, &n) == 0)
        s->segment = (uint32_t)found;
    if (s->segment < SEGMENT_LEAST)
        s->segment = SEGMENT_LEAST;
    else if (s->segment > SEGMENT_ETHERNET && s->segment < SEGMENTS_MOST)
        s->segment *= SEGMENTS_MOST / s->segment;
    s->found_at = *tcp->now;
    return s->segment;
}

/* ---------------------------------------------------------------- in */

static long take_early(struct tcp_stream *s, const struct iovec *pieces, int n) {
    long done = 0;
    for (int i = 0; i < n && s->taken < s->nearly; i++) {
        uint32_t left = s->nearly - s->taken;
        size_t some = pieces[i].iov_len < left ? pieces[i].iov_len : left;
        if (!guard_copy(pieces[i].iov_base, s->early + s->taken, some))
            return done ? done : -EFAULT; /* which is found again */
        s->taken += (uint32_t)some;
        done += (long)some;
    }
    return done;
}

/* MSG_TRUNC: nobody wants them (tcp(7)). */
static long throw_away(const struct tcp_stream *s) {
    return syscall(SYS_recvfrom, s->fd, NULL, DISCARDED, MSG_TRUNC | MSG_DONTWAIT, NULL, NULL);
}

long tcp_read(struct tcp *tcp, struct tcp_stream *s, const struct iovec *pieces, int n) {
    struct iovec some[TCP_PIECES];
    if (tcp->stalled || s->harm.until == UINT64_MAX)
        return -EAGAIN;
    if (n && tcp->faults.on) {
        n = cut(pieces, n, stream_faults_read(&tcp->faults, bytes_of(pieces, n)), some);
        pieces = some;
    }
    if (n && s->taken < s->nearly)
        return take_early(s, pieces, n);
    tcp->counters->value[RNIC_CNT_rx_syscalls]++;
    long done = !n       ? throw_away(s)
                : n == 1 ? syscall(SYS_recvfrom, s->fd, pieces->iov_base, pieces->iov_len, MSG_DONTWAIT, NULL, NULL)
                         : syscall(SYS_readv, s->fd, pieces, n);
    if (done < 0)
        return errno == EINTR ? -EAGAIN : -errno;
    s->ended |= !done;
    return done;
}

/* ---------------------------------------------------------------- streams come and go */

/* From now on it is nobody's: what is written leaves. */
static void release(struct link *link, const struct way *way) {
    struct tcp *tcp = (struct tcp *)link;
    struct tcp_stream *s = tcp_stream_of(way);
    s->qp = NULL;
    drop_line(s);
    s->until = s->stage == TCP_BROKEN || tcp->count[TCP_LEAVES] >= LINGERING ? 1 : 0;
    set_full(tcp, s, false);
    shut(s);
    tcp_move(tcp, s, TCP_LEAVES);
    tcp_watch(tcp, s);
}

static void spoil(struct link *link, uint8_t *bytes, uint32_t n, bool sealed) {
    struct tcp *tcp = (struct tcp *)link;
    if (tcp->faults.on)
        stream_faults_spoil(&tcp->faults, tcp->counters, bytes, n, sealed);
}

static const struct link_ops ops = {.name = "tcp",
                                    .release = release,
                                    .write = write_pieces,
                                    .finish = finish,
                                    .segment = segment,
                                    .queued = queued,
                                    .spoil = spoil};

static int option(int fd, int level, int name) {
    int value = -1;
    socklen_t n = sizeof value;
    return getsockopt(fd, level, name, &value, &n) ? -errno : value;
}

static int check_socket(int fd, struct rnic_err *err) {
    struct sockaddr_storage peer;
    socklen_t n = sizeof peer;
    int family = option(fd, SOL_SOCKET, SO_DOMAIN);
    if ((family != AF_INET && family != AF_INET6) || option(fd, SOL_SOCKET, SO_TYPE) != SOCK_STREAM)
        return fail(err, -EINVAL, "descriptor %d is not a TCP socket", fd);
    if (getpeername(fd, (struct sockaddr *)&peer, &n))
        return fail(err, -EINVAL, "the socket is not connected: %s", strerror(errno));
    return 0;
}

/* Nothing is to wait for company: the engine puts what goes together into one write. */
static void set_up(int fd, uint32_t rcvbuf) {
    int on = 1, bytes = (int)rcvbuf;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (rcvbuf)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

static struct tcp_stream *make_stream(struct qp *qp, const struct rnic_stream_attr *attr) {
    struct tcp_stream *s = calloc(1, sizeof *s);
    uint8_t *early = attr->nbytes ? malloc(attr->nbytes) : NULL;
    if (!s || (attr->nbytes && !early)) {
        free(s);
        free(early);
        return NULL;
    }
    *s = (struct tcp_stream){.qp = qp, .fd = attr->fd, .line = attr->line, .early = early, .nearly = attr->nbytes};
    if (early)
        memcpy(early, attr->bytes, attr->nbytes);
    return s;
}

int tcp_attach(struct tcp *tcp, struct way *way, struct qp *qp, const struct rnic_stream_attr *attr, uint32_t rcvbuf,
               struct rnic_err *err) {
    int rc = check_socket(attr->fd, err);
    if (rc)
        return rc;
    struct tcp_stream *s = make_stream(qp, attr);
    if (!s)
        return fail(err, -ENOMEM, "no memory for a stream");
    set_up(attr->fd, rcvbuf);
    enter_list(tcp, s, TCP_WAITS);
    *way = (struct way){.link = &tcp->link};
    ((struct tcp_way *)(void *)way->own)->stream = s;
    way_hold(way);
    return 0;
}

bool tcp_tell(const struct way *way, const struct rnic_stream_event *event) {
    struct tcp_stream *s = way->held ? tcp_stream_of(way) : NULL;
    if (!s || s->line < 0)
        return false;
    syscall(SYS_sendto, s->line, event, sizeof *event, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0); /* else it hangs up */
    drop_line(s);
    return true;
}

/* Whoever has ended, too, or has had its time, or is one too many. */
void tcp_sweep(struct tcp *tcp, uint64_t now) {
    for (struct tcp_stream *s = tcp->streams[TCP_LEAVES], *next; s; s = next) {
        next = s->next;
        if (!s->until)
            s->until = now + LINGER_NS;
        if (s->ended || s->until <= now)
            discard(tcp, s);
    }
}

uint64_t tcp_deadline(const struct tcp *tcp) {
    uint64_t first = UINT64_MAX;
    for (const struct tcp_stream *s = tcp->streams[TCP_LEAVES]; s; s = s->next)
        first = s->until < first ? s->until : first;
    for (int stage = 0; tcp->faults.on && stage < TCP_STAGES; stage++) {
        for (const struct tcp_stream *s = tcp->streams[stage]; s; s = s->next)
            first = s->harm.until && s->harm.until < first ? s->harm.until : first;
    }
    return first;
}

/* ---------------------------------------------------------------- the link */

void tcp_init(struct tcp *tcp) { *tcp = (struct tcp){.link = {.ops = &ops}, .epoll_fd = -1}; }

int tcp_open(struct tcp *tcp, struct rnic_counters *counters, const uint64_t *now, struct rnic_err *err) {
    _Static_assert(sizeof(struct tcp_way) <= WAY_OWN, "WAY_OWN");
    tcp->counters = counters;
    tcp->now = now;
    tcp->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    return tcp->epoll_fd < 0 ? fail(err, -errno, "epoll: %s", strerror(errno)) : 0;
}

void tcp_set_faults(struct tcp *tcp, const struct rnic_fault *fault, bool stalled) {
    stream_faults_set(&tcp->faults, fault);
    tcp->stalled = stalled;
    for (int stage = 0; stage < TCP_STAGES; stage++) {
        for (struct tcp_stream *s = tcp->streams[stage]; s; s = s->next) {
            s->harm = (struct stream_harm){0};
            tcp_watch(tcp, s);
        }
    }
}

void tcp_go_on(struct tcp *tcp, uint64_t now) {
    for (int stage = 0; tcp->faults.on && stage < TCP_STAGES; stage++) {
        for (struct tcp_stream *s = tcp->streams[stage]; s; s = s->next) {
            if (!s->harm.until || s->harm.until > now)
                continue;
            s->harm.until = 0;
            tcp_watch(tcp, s);
        }
    }
}

void tcp_cut(struct tcp *tcp) {
    for (int stage = 0; stage < TCP_STAGES; stage++) {
        for (struct tcp_stream *s = tcp->streams[stage]; s; s = s->next) {
            shutdown(s->fd, SHUT_RDWR);
            s->ended = s->finished = true;
            tcp_has_room(tcp, s);
        }
    }
}

/* What has come is read: a socket with something unread would be reset. */
void tcp_close(struct tcp *tcp) {
    for (int stage = 0; stage < TCP_STAGES; stage++) {
        for (struct tcp_stream *s; (s = tcp->streams[stage]);) {
            shut(s);
            throw_away(s);
            discard(tcp, s);
        }
    }
    if (tcp->epoll_fd >= 0)
        close_fd(tcp->epoll_fd);
    tcp->epoll_fd = -1;
}

void tcp_abandon(struct tcp *tcp) {
    for (int stage = 0; stage < TCP_STAGES; stage++) {
        for (const struct tcp_stream *s = tcp->streams[stage]; s; s = s->next) {
            close_fd(s->fd);
            if (s->line >= 0)
                close_fd(s->line);
        }
    }
    if (tcp->epoll_fd >= 0)
        close_fd(tcp->epoll_fd);
}
