/* SPDX-License-Identifier: Apache-2.0 */
#include "link/udp/udp.h"

#include <errno.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "wire/icrc.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef IPV6_FLOWINFO
#define IPV6_FLOWINFO 11
#endif
#ifndef SOL_UDP
#define SOL_UDP 17
#endif

#define RX_BYTES 65536
#define LONG 16384 /* bytes of a datagram from which on it is taken alone */
#define DEFAULT_HOPS 64 /* of Linux: net.ipv4.ip_default_ttl, net.ipv6.conf.*.hop_limit */
#define LABEL_MASK 0xFFFFFu
#define RETRY_NS 50000  /* a thread that polls looks so often whether a full socket has room */
#define FINISH_MS 1000

/* ---------------------------------------------------------------- out */

static bool is_ipv4(const struct way *way) { return IN6_IS_ADDR_V4MAPPED(&way->dst.sin6_addr); }

static void add_option(struct msghdr *msg, int level, int type, const void *value, size_t n) {
    struct cmsghdr *c = (struct cmsghdr *)((uint8_t *)msg->msg_control + msg->msg_controllen);
    c->cmsg_level = level;
    c->cmsg_type = type;
    c->cmsg_len = CMSG_LEN(n);
    memcpy(CMSG_DATA(c), value, n);
    msg->msg_controllen += CMSG_SPACE(n);
}

/* From the address vector (IBA CA17-4, CA17-9, CA17-13, CA17-17). */
static void add_route_options(struct msghdr *msg, const struct way *way) {
    int tclass = way->traffic_class, hops = way->hop_limit;
    bool ipv4 = is_ipv4(way);
    uint32_t label = htonl(way->flow_label);
    if (label)
        add_option(msg, IPPROTO_IPV6, IPV6_FLOWINFO, &label, sizeof label);
    if (tclass != udp_port(way)->tclass)
        add_option(msg, ipv4 ? IPPROTO_IP : IPPROTO_IPV6, ipv4 ? IP_TOS : IPV6_TCLASS, &tclass, sizeof tclass);
    if (hops && hops != DEFAULT_HOPS)
        add_option(msg, ipv4 ? IPPROTO_IP : IPPROTO_IPV6, ipv4 ? IP_TTL : IPV6_HOPLIMIT, &hops, sizeof hops);
}

static socklen_t address_of(const struct way *way, union udp_address *to) {
    if (!is_ipv4(way)) {
        to->v6 = way->dst;
        return sizeof to->v6;
    }
    to->v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = way->dst.sin6_port};
    memcpy(&to->v4.sin_addr, &way->dst.sin6_addr.s6_addr[12], 4);
    return sizeof to->v4;
}

/* Packets go by syscall(): the C library's functions are points of cancellation, which cost a process with threads two
 * atomic operations each.  sendto where there is nothing but bytes and an address: the kernel reads less. */
static ssize_t send_to(const struct way *way, const union udp_address *to, socklen_t n, const struct iovec *iov,
                       uint16_t segment) {
    int fd = udp_port(way)->tx_fd;
    uint64_t control[16] = {0};
    struct msghdr msg = {.msg_name = (void *)(uintptr_t)to,
                         .msg_namelen = n,
                         .msg_iov = (struct iovec *)(uintptr_t)iov,
                         .msg_iovlen = 1,
                         .msg_control = control};
    if (segment < iov->iov_len)
        add_option(&msg, SOL_UDP, UDP_SEGMENT, &segment, sizeof segment);
    add_route_options(&msg, way);
    if (!msg.msg_controllen)
        return syscall(SYS_sendto, fd, iov->iov_base, iov->iov_len, MSG_DONTWAIT | MSG_NOSIGNAL, &to->any, n);
    return syscall(SYS_sendmsg, fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* What cannot be recovered has a counter of its own. */
static enum rnic_counter refusal(int error) {
    return error == EPERM ? RNIC_CNT_tx_forbidden : error == EMSGSIZE ? RNIC_CNT_tx_too_long : RNIC_CNT_tx_errors;
}

/* False: the socket is full.  What it refuses for another reason is lost; the transport recovers it as any loss. */
static bool send_datagram(struct udp_tx *u, const struct way *way, const uint8_t *bytes, uint32_t length,
                          uint16_t segment) {
    union udp_address to;
    socklen_t n = address_of(way, &to);
    struct iovec iov = {(void *)(uintptr_t)bytes, length};
    u->counters->value[RNIC_CNT_tx_syscalls]++;
    if (send_to(way, &to, n, &iov, segment) >= 0)
        udp_port(way)->handed += length + PORT_DATAGRAM_COST;
    else if (errno == EAGAIN)
        return false;
    else
        u->counters->value[refusal(errno)] += (length + segment - 1u) / segment;
    return true;
}

static void begin_to_wait(struct udp_tx *u, const struct way *way) {
    u->kept = *way;
    u->way = &u->kept;
    u->link.full = u->closed = true;
    u->retry_at = *u->now + RETRY_NS;
    u->counters->value[RNIC_CNT_tx_waits]++;
}

static void batch_is_gone(struct udp_tx *u) {
    u->count = u->length = 0;
    u->link.full = u->closed = false;
}

/* One packet can wait.  What the injector makes of it beside, and what it lets go later, is lost in the meantime. */
static void keep(struct udp_tx *u, const struct way *way, const uint8_t *bytes, uint32_t length) {
    if (u->link.full || (u->count && bytes != u->bytes)) {
        u->counters->value[RNIC_CNT_tx_errors]++;
        return;
    }
    memmove(u->bytes, bytes, length);
    u->count = 1;
    u->length = u->segment = length;
    begin_to_wait(u, way);
}

static void emit(struct link *link, const struct way *way, const uint8_t *bytes, uint32_t length) {
    struct udp_tx *u = (struct udp_tx *)link;
    if (!send_datagram(u, way, bytes, length, (uint16_t)length))
        keep(u, way, bytes, length);
}

void udp_tx_flush(struct udp_tx *u) {
    if (!u->count || u->link.full)
        return;
    if (u->fault->on)
        fault_send(u->fault, u->counters, u->way, u->bytes, u->length, *u->now);
    else if (!send_datagram(u, u->way, u->bytes, u->length, (uint16_t)u->segment))
        begin_to_wait(u, u->way);
    if (!u->link.full)
        batch_is_gone(u);
}

void udp_tx_release(struct udp_tx *u, uint64_t now) {
    if (!u->link.full)
        fault_release(u->fault, now);
}

bool udp_tx_resume(struct udp_tx *u, uint64_t now) {
    if (send_datagram(u, u->way, u->bytes, u->length, (uint16_t)u->segment)) {
        batch_is_gone(u);
        return true;
    }
    u->retry_at = now + RETRY_NS;
    return false;
}

bool udp_tx_forget(struct udp_tx *u, const struct port *port) {
    if (!u->link.full || udp_port(u->way) != port)
        return false;
    u->counters->value[RNIC_CNT_tx_errors] += u->count;
    batch_is_gone(u);
    return true;
}

int udp_tx_full(const struct udp_tx *u) { return u->link.full ? udp_port(u->way)->tx_fd : -1; }

static int64_t clock_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void udp_wait_for_room(int fd) {
    struct pollfd room = {.fd = fd, .events = POLLOUT};
    int64_t until = clock_ms() + FINISH_MS, left = FINISH_MS;
    while (left > 0 && poll(&room, 1, (int)left) < 0 && errno == EINTR)
        left = until - clock_ms();
}

void udp_tx_finish(struct udp_tx *u) {
    udp_tx_flush(u);
    if (u->link.full)
        (void)udp_tx_resume(u, *u->now);
}

static bool same_way(const struct way *a, const struct way *b) {
    return a == b || (udp_port(a) == udp_port(b) && a->dst_slot == b->dst_slot &&
                      a->traffic_class == b->traffic_class && a->flow_label == b->flow_label &&
                      a->hop_limit == b->hop_limit && a->dst.sin6_scope_id == b->dst.sin6_scope_id &&
                      !memcmp(&a->dst.sin6_addr, &b->dst.sin6_addr, sizeof a->dst.sin6_addr));
}

/* The injector treats packets one by one, and one sent alone has identification 0. */
static uint32_t batch_limit(const struct udp_tx *u, const struct way *way) {
    return u->fault->on || !udp_port(way)->gso ? 1 : u->max_packets;
}

static uint8_t *reserve(struct link *link, struct way *way, uint32_t n, uint32_t *crc) {
    struct udp_tx *u = (struct udp_tx *)link;
    if (u->count && (u->closed || n > u->segment || u->count >= batch_limit(u, way) ||
                     u->length + n > UDP_MAX_PAYLOAD || u->dst_slot != way->dst_slot || !same_way(u->way, way))) {
        udp_tx_flush(u);
        if (u->link.full)
            return NULL;
    }
    if (!u->count) {
        u->way = way;
        u->dst_slot = way->dst_slot;
        u->segment = n;
    }
    u->reserved = n;
    *crc = way_seed(way, n);
    if (u->count && is_ipv4(way))
        *crc ^= icrc_id_delta((uint16_t)u->count);
    return u->bytes + u->length;
}

static void commit(struct link *link) {
    struct udp_tx *u = (struct udp_tx *)link;
    u->closed = u->reserved < u->segment;
    u->length += u->reserved;
    u->count++;
}

static uint64_t written(const struct link *link, const struct way *way) {
    const struct udp_tx *u = (const struct udp_tx *)link;
    const struct port *port = udp_port(way);
    return port->handed + (u->count && udp_port(u->way) == port ? u->length : 0);
}

static uint64_t left(const struct link *link, const struct way *way) {
    (void)link;
    return port_left(udp_port(way));
}

static void flush(struct link *link) { udp_tx_flush((struct udp_tx *)link); }

static int resolve(struct link *link, const struct rnic_ah_attr *av, uint32_t qpn, struct way *to, struct way *from,
                   struct rnic_err *err) {
    return udp_resolve(&((const struct udp_tx *)link)->ports, link, av, qpn, to, from, err);
}

/* How many name an entry of the GID table: it is kept for the same address as long as some do. */
static void hold(struct link *link, const struct way *way) {
    const struct udp_ports *ports = &((const struct udp_tx *)link)->ports;
    ports->users[udp_port(way) - ports->at]++;
}

static void release(struct link *link, const struct way *way) {
    const struct udp_ports *ports = &((const struct udp_tx *)link)->ports;
    ports->users[udp_port(way) - ports->at]--;
}

static const struct link_ops udp_ops = {
    .name = "udp",
    .resolve = resolve,
    .hold = hold,
    .release = release,
    .reserve = reserve,
    .commit = commit,
    .flush = flush,
    .emit = emit,
    .written = written,
    .left = left,
};

bool udp_leads_by(const struct way *way, const void *port) {
    return way->link->ops == &udp_ops && udp_port(way) == port;
}

void udp_tx_init(struct udp_tx *u, struct fault *fault, struct rnic_counters *counters, const uint64_t *now) {
    u->link.ops = &udp_ops;
    u->fault = fault;
    u->counters = counters;
    u->now = now;
    u->max_packets = UDP_BATCH_PACKETS;
    batch_is_gone(u);
}

/* ---------------------------------------------------------------- in */

int udp_rx_init(struct udp_rx *r) {
    r->burst = 1;
    r->buffer = aligned_alloc(64, (size_t)UDP_RX_DATAGRAMS * RX_BYTES);
    for (int i = 0; i < UDP_RX_DATAGRAMS; i++) {
        r->iov[i] = (struct iovec){r->buffer + (size_t)i * RX_BYTES, RX_BYTES};
        r->msgs[i].msg_hdr = (struct msghdr){
            .msg_name = &r->from[i], .msg_iov = &r->iov[i], .msg_iovlen = 1, .msg_control = r->control[i]};
        r->datagram[i].bytes = r->iov[i].iov_base;
    }
    return r->buffer ? 0 : -ENOMEM;
}

void udp_rx_free(struct udp_rx *r) { free(r->buffer); }

static void mapped(struct sockaddr_in6 *out, const union udp_address *from) {
    if (from->v6.sin6_family == AF_INET6) {
        *out = from->v6;
        return;
    }
    *out = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = from->v4.sin_port};
    out->sin6_addr.s6_addr[10] = out->sin6_addr.s6_addr[11] = 0xFF;
    memcpy(&out->sin6_addr.s6_addr[12], &from->v4.sin_addr, 4);
}

/* An int, or of IP_TOS a byte. */
static int control_value(const struct cmsghdr *c) {
    int value = 0;
    if (c->cmsg_len == CMSG_LEN(1))
        return *CMSG_DATA(c);
    memcpy(&value, CMSG_DATA(c), sizeof value);
    return value;
}

static bool is_option(const struct cmsghdr *c, int ipv4, int ipv6) {
    return (c->cmsg_level == IPPROTO_IP && c->cmsg_type == ipv4) ||
           (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == ipv6);
}

static void read_control(struct msghdr *msg, struct udp_datagram *d) {
    d->segment = d->length;
    d->hops = d->tclass = 0;
    d->flow_label = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        int value = control_value(c);
        if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO && value > 0 && (uint32_t)value < d->length)
            d->segment = (uint32_t)value;
        else if (is_option(c, IP_TTL, IPV6_HOPLIMIT))
            d->hops = (uint8_t)value;
        else if (is_option(c, IP_TOS, IPV6_TCLASS))
            d->tclass = (uint8_t)value;
        else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_FLOWINFO)
            d->flow_label = ntohl((uint32_t)value) & LABEL_MASK;
    }
}

/* Asks for more while all come, but a long one alone: what a cache holds is worth more than a saved call. */
static void adapt(struct udp_rx *r, int n) {
    if (n > 0 && r->datagram[n - 1].length >= LONG)
        r->burst = 1;
    else if (n == r->burst)
        r->burst = r->burst * 2 < UDP_RX_DATAGRAMS ? r->burst * 2 : UDP_RX_DATAGRAMS;
    else if (n * 2 <= r->burst)
        r->burst = r->burst > 1 ? r->burst / 2 : 1;
}

static int take_one(struct udp_rx *r, int fd) {
    ssize_t length = syscall(SYS_recvmsg, fd, &r->msgs[0].msg_hdr, MSG_DONTWAIT);
    r->msgs[0].msg_len = length < 0 ? 0 : (unsigned)length;
    return length < 0 ? -1 : 1;
}

int udp_receive(struct udp_rx *r, const struct port *port) {
    r->all = true;
    if (port->rx_fd < 0)
        return 0;
    for (int i = 0; i < r->burst; i++) {
        r->msgs[i].msg_hdr.msg_namelen = sizeof r->from[i];
        r->msgs[i].msg_hdr.msg_controllen = sizeof r->control[i];
    }
    int n = r->burst == 1 ? take_one(r, port->rx_fd)
                          : (int)syscall(SYS_recvmmsg, port->rx_fd, r->msgs, (unsigned)r->burst, MSG_DONTWAIT, NULL);
    for (int i = 0; i < n; i++) {
        struct udp_datagram *d = &r->datagram[i];
        d->length = r->msgs[i].msg_len;
        read_control(&r->msgs[i].msg_hdr, d);
        mapped(&d->src, &r->from[i]);
    }
    n = n > 0 ? n : 0;
    r->all = n < r->burst;
    adapt(r, n);
    return n;
}
