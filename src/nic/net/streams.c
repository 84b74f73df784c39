/* SPDX-License-Identifier: Apache-2.0
 *
 * The TCP link of an iWARP device as a source: its streams are read, and who waits for room is told of it.
 *
 * Bytes go from the socket straight to where the queue pair wants them.  The engine's epoll set has one descriptor, the
 * link's own set.  A few streams are read without asking that set first, which costs a system call less.  While a program polls
 * they are not even in it: the kernel would go through the set for each packet.
 */
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/fail.h"
#include "iwarp/iwarp.h"
#include "net/net.h"

#define AT_ONCE 32            /* streams in a pass that have something */
#define READS 8               /* of a stream in a pass, */
#define READ_BYTES (512 << 10) /* or so many bytes and what one read takes more */
#define FEW 2                 /* streams that are read without a look whether there is anything */

/* ---------------------------------------------------------------- in */

static size_t bytes_of(const struct iovec *pieces, int n) {
    size_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += pieces[i].iov_len;
    return bytes;
}

static void has_ended(struct net *net, struct tcp_stream *s, int error, uint64_t now) {
    s->ended = true;
    tcp_watch(&net->tcp, s);
    if (s->qp)
        iwarp_ended(s->qp, error, now);
}

/* Up to where there is no more, or others have their turn. True: there was something. */
static bool read_stream(struct net *net, struct tcp_stream *s, uint64_t now) {
    struct iovec pieces[IWARP_PIECES];
    struct qp *qp = s->qp;
    size_t bytes = 0;
    bool any = false, more = true;
    for (int reads = 0; more && !s->ended && reads < READS && bytes < READ_BYTES; reads++) {
        int n = s->qp ? iwarp_want(qp, pieces) : 0; /* which may leave it while it takes something in */
        long got = tcp_read(&net->tcp, s, pieces, n);
        if (got == -EAGAIN)
            break;
        any = true;
        if (got == -EFAULT && s->qp && iwarp_lost(qp))
            continue;
        if (got <= 0)
            has_ended(net, s, (int)got, now);
        else if (n)
            iwarp_got(qp, (size_t)got, now);
        more = got > 0 && (!n || (size_t)got == bytes_of(pieces, n) || s->taken < s->nearly);
        bytes += got > 0 ? (size_t)got : 0;
        net->run->more |= more && (reads == READS - 1 || bytes >= READ_BYTES);
    }
    if (any && qp)
        sched_input(net->run, qp, now);
    return any;
}

static void has_room(struct net *net, struct tcp_stream *s) {
    tcp_has_room(&net->tcp, s);
    if (s->qp)
        sched_ready(net->run, s->qp);
}

static bool serve(struct net *net, const struct epoll_event *e, uint64_t now) {
    struct tcp_stream *s = e->data.ptr;
    if (s->full && e->events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
        has_room(net, s);
    return (e->events & ~(uint32_t)EPOLLOUT) && read_stream(net, s, now);
}

static bool receive_ready(struct net *net, uint64_t now) {
    struct epoll_event events[AT_ONCE];
    long n = syscall(SYS_epoll_pwait, net->tcp.epoll_fd, events, AT_ONCE, 0, NULL, (size_t)0);
    bool any = false;
    for (long i = 0; i < n; i++)
        any |= serve(net, &events[i], now);
    net->run->more |= n == AT_ONCE;
    return any;
}

static bool receive_all(struct net *net, uint64_t now) {
    bool any = false;
    for (struct tcp_stream *s = net->tcp.streams[TCP_OPEN], *next; s; s = next) {
        next = s->next;
        any |= !s->ended && read_stream(net, s, now);
    }
    return any;
}

static void set_polled(struct net *net, bool polled) {
    if (polled == net->tcp.polled)
        return;
    net->tcp.polled = polled;
    for (struct tcp_stream *s = net->tcp.streams[TCP_OPEN]; s; s = s->next)
        tcp_watch(&net->tcp, s);
}

/* ---------------------------------------------------------------- stages */

/* Their queue pairs take what comes from now on, and first what was read by others. */
static bool open_streams(struct net *net, uint64_t now) {
    bool any = false;
    for (struct tcp_stream *s = net->tcp.streams[TCP_WAITS], *next; s; s = next) {
        next = s->next;
        if (s->qp->state < RNIC_QPS_RTS)
            continue;
        tcp_move(&net->tcp, s, TCP_OPEN);
        tcp_watch(&net->tcp, s);
        any |= read_stream(net, s, now);
    }
    return any;
}

static bool tell_broken(struct net *net, uint64_t now) {
    struct tcp_stream *s;
    bool any = false;
    for (; (s = net->tcp.streams[TCP_BROKEN]); any = true) {
        struct qp *qp = s->qp;
        tcp_move(&net->tcp, s, TCP_OPEN);
        has_ended(net, s, -s->error, now);
        sched_input(net->run, qp, now);
    }
    return any;
}

/* ---------------------------------------------------------------- as a source */

static bool receive(void *owner, uint64_t now, bool all) {
    struct net *net = owner;
    struct tcp *tcp = &net->tcp;
    bool any = tell_broken(net, now) | open_streams(net, now);
    bool few = tcp->count[TCP_OPEN] <= FEW;
    (void)all;
    set_polled(net, tcp->polled && few);
    tcp_go_on(tcp, now);
    if (few)
        any |= receive_all(net, now);
    if (few && !tcp->full && !tcp->count[TCP_LEAVES])
        return any;
    any |= receive_ready(net, now);
    tcp_sweep(tcp, now);
    return any;
}

static bool is_used(const void *owner) {
    const struct tcp *tcp = &((const struct net *)owner)->tcp;
    return tcp->count[TCP_WAITS] || tcp->count[TCP_OPEN] || tcp->count[TCP_BROKEN];
}

static uint64_t deadline(const void *owner) {
    const struct tcp *tcp = &((const struct net *)owner)->tcp;
    return tcp->count[TCP_BROKEN] ? 0 : tcp_deadline(tcp);
}

/* While nobody uses streams, those that leave are the engine's. */
static void arm(void *owner, bool armed) {
    struct net *net = owner;
    set_polled(net, !armed && net->tcp.count[TCP_OPEN] <= FEW);
    engine_watch_for(net->run, &net->watched_streams, net->tcp.epoll_fd, EPOLLIN, is_used(net));
}

const struct source streams_source = {
    .name = "streams", .receive = receive, .is_used = is_used, .deadline = deadline, .arm = arm};

/* ---------------------------------------------------------------- as a network */

/* The netdev's hardware address, as the kernel's siw makes it; else the device's GUID: it is not 0. */
static union rnic_gid make_gid(const struct netdev *netdev) {
    static const uint8_t none[sizeof netdev->mac];
    union rnic_gid gid = {{0}};
    if (memcmp(netdev->mac, none, sizeof none) != 0)
        memcpy(gid.raw, netdev->mac, sizeof netdev->mac);
    else
        put_be64(gid.raw, netdev->guid);
    return gid;
}

static int open_net(struct net *net, const struct rnic_open_attr *attr, struct rnic_err *err) {
    if (attr->num_pkeys)
        return fail(err, -EOPNOTSUPP, "the device has no P_Key table: iWARP has no partitions");
    net->netdev.ngids = 1;
    net->netdev.gids[0] = make_gid(&net->netdev);
    net->nic->wire = &net->tcp.link;
    return tcp_open(&net->tcp, &net->nic->counters, &net->run->now, err);
}

static void close_net(struct net *net) { tcp_close(&net->tcp); }

static void fail_net(struct net *net) { tcp_cut(&net->tcp); }

static void abandon_net(struct net *net) { tcp_abandon(&net->tcp); }

/* The GID is the interface's, not an address. */
static bool follow_net(struct net *net, const struct netdev *fresh, uint64_t now) {
    (void)net;
    (void)fresh;
    (void)now;
    return false;
}

/* A segment may have any length: of those that can be told, the longest that an interface carries. */
static int mtu_of(int netdev_mtu) {
    int mtu = RNIC_MTU_4096;
    while (mtu > RNIC_MTU_256 && (int)mtu_bytes(mtu) > netdev_mtu)
        mtu--;
    return mtu;
}

static void set_fault(struct net *net, const struct rnic_fault *fault) {
    tcp_set_faults(&net->tcp, fault, net->unplugged);
}

const struct net_kind net_streams = {
    .open = open_net,
    .close = close_net,
    .fail = fail_net,
    .abandon = abandon_net,
    .follow = follow_net,
    .mtu_of = mtu_of,
    .faults = FAULTS_OF_STREAMS,
    .set_fault = set_fault,
};
