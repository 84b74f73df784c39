/* SPDX-License-Identifier: Apache-2.0 */
#include "link/udp/port.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/address.h"
#include "base/fail.h"
#include "link/link.h"
#include "link/udp/owner.h"
#include "link/udp/steering.h"
#include "link/udp/udpsock.h"
#include "names/abstract.h"
#include "names/slotmsg.h"
#include "names/user.h"

#define MS 1000000ull
#define TAKEOVER_PERIOD (50 * MS)
#define RECEIVE_ASKED (4u << 20)
/* What every process gets (net.core.wmem_max), which the kernel doubles.  More is no use: it lies in a slow link's queue,
 * where ACKs wait behind it for longer than peers wait for ACKs, or is dropped there without a word. */
#define SEND_ASKED 212992u
#define FORWARD_HOLDS (11u * 4096u) /* a slot's queue at the usual max_dgram_qlen, a full packet in each datagram */

/* ---------------------------------------------------------------- sockets */

static uint32_t get_buffer(int fd, int name) {
    int value = 0;
    socklen_t length = sizeof value;
    return getsockopt(fd, SOL_SOCKET, name, &value, &length) == 0 ? (uint32_t)value : 0;
}

static int open_shared(const struct sockaddr_in6 *addr, uint32_t rcvbuf) {
    int fd = udpsock_open(addr);
    if (fd < 0) {
        return fd;
    }
    static const struct sieve nobody;
    (void)sieve_attach(&nobody, fd, address_is_v4(addr));
    udpsock_set(fd, SOL_SOCKET, SO_RCVBUF, (int)(rcvbuf != 0 && rcvbuf <= INT32_MAX ? rcvbuf : RECEIVE_ASKED));
    if (!udpsock_set(fd, SOL_SOCKET, SO_REUSEPORT, 1)) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    return fd;
}

/* ---------------------------------------------------------------- opening */

static uint16_t shown(const struct port *p) {
    return p->asked | (p->headers ? SLOTMSG_HOPS | SLOTMSG_TCLASS : p->marks ? SLOTMSG_TCLASS : 0);
}

static void show_headers(const struct port *p) {
    if (p->rx_fd < 0)
        return;
    udpsock_show_hops(p->rx_fd, address_is_v4(&p->addr), shown(p) & SLOTMSG_HOPS);
    udpsock_show_tclass(p->rx_fd, address_is_v4(&p->addr), shown(p) & SLOTMSG_TCLASS);
}

static void send_marked(struct port *p) {
    if (p->marks && udpsock_tclass(p->tx_fd, address_is_v4(&p->addr), ECN_CAPABLE))
        p->tclass = ECN_CAPABLE;
}

/* fd is bound to 4791: receive from it. */
static void receive_from(struct port *p, int fd, uint64_t now) {
    p->rx_fd = fd;
    p->gro = udpsock_set(fd, SOL_UDP, UDP_GRO, 1);
    p->rcvbuf = get_buffer(fd, SO_RCVBUF);
    show_headers(p);
    steering_start(p, now);
}

static void send_from(struct port *p, int fd) {
    p->tx_fd = fd;
    p->gso = udpsock_set(fd, SOL_UDP, UDP_SEGMENT, 0);
    udpsock_set(fd, SOL_SOCKET, SO_SNDBUF, (int)SEND_ASKED);
    p->sndbuf = get_buffer(fd, SO_SNDBUF);
    send_marked(p);
    p->addr.sin6_port = udpsock_port(fd);
}

/* Another user's rnic owns the address: send from a port of our own, and receive what it forwards. */
static int open_behind(struct port *p, int claim_fd, const struct owner *owner, uint64_t now, struct rnic_err *err) {
    int fd = udpsock_open(&p->addr);
    int rc = fd < 0 ? fd : udpsock_bind(fd, &p->addr, 0);
    if (rc < 0) {
        if (fd >= 0) {
            close(fd);
        }
        return fail(err, rc, "no UDP socket to send from: %s", strerror(-rc));
    }
    send_from(p, fd);
    p->rcvbuf = FORWARD_HOLDS;
    p->steering->claim_fd = claim_fd;
    p->steering->claim_at = now + TAKEOVER_PERIOD;
    p->steering->owner_uid = owner->uid;
    return 0;
}

static int bind_failed(const struct sockaddr_in6 *addr, int rc, struct rnic_err *err) {
    char text[ADDRESS_TEXT];
    address_text(addr, text);
    if (rc == -EADDRNOTAVAIL) {
        return fail(err, rc, "%s is not an address of this host (or not yet)", text);
    }
    return fail(err, rc, "UDP port %d of %s: %s", ROCE_UDP_PORT, text, strerror(-rc));
}

/* Binds fd, or finds a way to live without.  On failure fd is still the caller's. */
static int bind_or_follow(struct port *p, int fd, uint64_t now, struct rnic_err *err) {
    struct owner owner;
    int rc = udpsock_bind(fd, &p->addr, ROCE_UDP_PORT);
    if (rc == 0) {
        receive_from(p, fd, now);
        send_from(p, fd);
        return 0;
    }
    if (rc != -EADDRINUSE || owner_find(&p->addr, &owner) != 0) {
        return bind_failed(&p->addr, rc, err);
    }
    if (!owner_is_rnic(&p->addr, &owner, err != NULL)) {
        return owner_fail(&p->addr, &owner, err);
    }
    return open_behind(p, fd, &owner, now, err);
}

static struct port_steering *new_steering(const struct slot *slot) {
    struct port_steering *st = calloc(1, sizeof *st);
    if (st != NULL) {
        st->claim_fd = -1;
        st->wake = st->ask_at = UINT64_MAX;
        st->nslots = 1;
        st->slots[0] = slot->number;
    }
    return st;
}

int port_open(struct port *p, const struct sockaddr_in6 *addr, int ifindex, const struct slot *slot, uint32_t rcvbuf,
              uint64_t now, struct rnic_err *err) {
    *p = (struct port){.addr = *addr, .rx_fd = -1, .tx_fd = -1, .slot = slot, .steering = new_steering(slot)};
    p->addr.sin6_family = AF_INET6;
    p->addr.sin6_port = 0;
    p->addr.sin6_scope_id = IN6_IS_ADDR_LINKLOCAL(&addr->sin6_addr) ? (uint32_t)ifindex : 0;
    if (p->steering == NULL) {
        return fail(err, -ENOMEM, "no memory for a port");
    }
    int fd = open_shared(&p->addr, rcvbuf);
    int rc = fd < 0 ? fail(err, fd, "no UDP socket: %s", strerror(-fd)) : bind_or_follow(p, fd, now, err);
    if (rc != 0) {
        if (fd >= 0) {
            close(fd);
        }
        free(p->steering);
        p->steering = NULL;
    }
    return rc;
}

void port_abandon(struct port *p) {
    struct port_steering *st = p->steering;
    int fds[] = {p->rx_fd, p->tx_fd != p->rx_fd ? p->tx_fd : -1, st != NULL ? st->claim_fd : -1};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
    p->rx_fd = p->tx_fd = -1;
    if (st != NULL) {
        st->claim_fd = -1;
    }
}

void port_show_headers(struct port *p, bool show) {
    p->headers = show;
    show_headers(p);
}

void port_take_marks(struct port *p) {
    p->marks = true;
    show_headers(p);
    send_marked(p);
}

void port_leave(struct port *p) { steering_stop(p); }

void port_close(struct port *p) {
    if (p->steering != NULL) {
        steering_stop(p);
    }
    port_abandon(p);
    free(p->steering);
    p->steering = NULL;
}

int port_add_slot(struct port *p, uint32_t slot) {
    struct port_steering *st = p->steering;
    if (st->nslots == STEERING_SLOTS) {
        return -ENOSPC;
    }
    st->slots[st->nslots++] = slot;
    steering_join(st);
    return 0;
}

static void sift(struct port *p) { p->unsettled = !sieve_attach(&p->sieve, p->rx_fd, address_is_v4(&p->addr)); }

void port_mute(struct port *p, const struct sieve_rule *rule) {
    sieve_mute(&p->sieve, rule);
    sift(p);
}

void port_spare(struct port *p, const struct in6_addr *from, uint32_t place) {
    if (sieve_spare(&p->sieve, from, place)) {
        sift(p);
    }
}

void port_part(struct port *p, const struct in6_addr *from, uint16_t source_port, uint32_t qpn, bool mixed) {
    if (sieve_part(&p->sieve, from, source_port, qpn, mixed)) {
        port_settle(p);
    }
}

void port_settle(struct port *p) { p->unsettled = !sieve_batch(&p->sieve, p->rx_fd); }

/* ---------------------------------------------------------------- forwarding */

void port_probe_input(struct port *p, const uint8_t *data, uint32_t length, const struct sockaddr_in6 *src,
                      uint64_t now) {
    steering_probe_input(p, data, length, src, now);
}

/* Was it the kernel's choice of the socket that was wrong?  A packet for QP1, or the first of a GRO batch of several
 * QPs, is forwarded though it was steered as it should be. */
static bool was_steered_for(const uint8_t *data, uint32_t length, uint32_t slot) {
    if (length < 8) {
        return false;
    }
    uint32_t qpn = (uint32_t)data[5] << 16 | (uint32_t)data[6] << 8 | data[7];
    return qpn > 1 && qpn_slot(qpn) == slot;
}

int port_hand_on(struct port *p, const struct abstract_name *to, const struct slot_packet *packet,
                 const uint8_t *data) {
    struct slotmsg msg = {.magic = SLOTMSG_MAGIC,
                          .version = SLOTMSG_VERSION,
                          .type = SLOTMSG_FORWARD,
                          .length = packet->length,
                          .segment = packet->segment,
                          .hops = packet->hops,
                          .tclass = packet->tclass,
                          .shown = shown(p),
                          .flow_label = packet->flow_label,
                          .src = packet->src,
                          .dst = p->addr};
    msg.dst.sin6_port = htons(ROCE_UDP_PORT);
    struct iovec iov[2] = {{&msg, sizeof msg}, {(void *)(uintptr_t)data, packet->length}};
    struct msghdr mh = {
        .msg_name = (void *)(uintptr_t)&to->un, .msg_namelen = to->length, .msg_iov = iov, .msg_iovlen = 2};
    return sendmsg(p->slot->fd, &mh, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

int port_forward(struct port *p, uint32_t slot, const struct slot_packet *packet, const uint8_t *data, uint64_t now) {
    struct abstract_name name;
    if (slot >= SLOT_COUNT) {
        return -ECONNREFUSED;
    }
    abstract_name(&name, SLOT_NAME, slot);
    int rc = port_hand_on(p, &name, packet, data);
    if (rc == 0 && p->rx_fd >= 0 && was_steered_for(data, packet->length, slot)) {
        steering_forwarded(p, slot, now);
    }
    return rc;
}

/* ---------------------------------------------------------------- messages */

static struct port *find_port(struct port **ports, int nports, const struct sockaddr_in6 *addr) {
    for (int i = 0; i < nports; i++) {
        if (ports[i]->steering != NULL && address_same(&ports[i]->addr, addr) &&
            ports[i]->addr.sin6_scope_id == addr->sin6_scope_id) {
            return ports[i];
        }
    }
    return NULL;
}

/* Found out once for a number: it takes a look at files. */
static bool is_own(struct port *p, uid_t uid) {
    if (uid != getuid())
        return false;
    if (!p->user.known || p->user.uid != uid)
        p->user = (struct port_user){uid, true, user_is_one(uid)};
    return p->user.is_one;
}

/* Who may put packets into a port: its owner, because the kernel gave them to it.  So a process of the user who holds UDP
 * 4791 while we do not; of the same user, which passes on what the owner gave it; and root. */
static bool may_forward(struct port *p, uid_t uid) {
    if (uid == 0 || is_own(p, uid) || (p->rx_fd < 0 && uid == p->steering->owner_uid)) {
        return true;
    }
    p->steering->owner_stale = p->rx_fd < 0; /* the owner may have changed: looked at with the next try to bind */
    return false;
}

/* A socket is told to show headers only where somebody needs them, since it costs time with every datagram. */
static void ask_to_show(const struct port *p, uint16_t missing, const struct abstract_name *from) {
    struct slotmsg msg = {
        .magic = SLOTMSG_MAGIC, .version = SLOTMSG_VERSION, .type = SLOTMSG_SHOW, .shown = missing, .dst = p->addr};
    struct iovec iov = {&msg, sizeof msg};
    if (missing && from->length > sizeof(sa_family_t))
        (void)abstract_send(from, &iov, 1); /* the next packet asks again */
}

static void show_others(struct port *p, uint16_t wanted) {
    if (p == NULL || (wanted & ~shown(p) & (SLOTMSG_TCLASS | SLOTMSG_HOPS)) == 0)
        return;
    p->asked |= wanted & (SLOTMSG_TCLASS | SLOTMSG_HOPS);
    show_headers(p);
}

static int take_forward(struct port **ports, int nports, const struct slotmsg *msg, uid_t uid,
                        const struct abstract_name *from, uint32_t bytes, struct slot_packet *out) {
    struct port *p = find_port(ports, nports, &msg->dst);
    if (p == NULL || msg->length != bytes || bytes == 0 || msg->dst.sin6_port != htons(ROCE_UDP_PORT) ||
        msg->src.sin6_family != AF_INET6 || !may_forward(p, uid)) {
        return 0;
    }
    ask_to_show(p, shown(p) & (uint16_t)~msg->shown, from);
    uint32_t segment = msg->segment < bytes ? msg->segment : 0;
    *out = (struct slot_packet){.src = msg->src,
                                .dst = msg->dst,
                                .length = bytes,
                                .segment = segment,
                                .hops = msg->hops,
                                .tclass = msg->tclass,
                                .flow_label = msg->flow_label & 0xFFFFF};
    return 1;
}

static void answer_query(struct port **ports, int nports, const struct slotmsg *query,
                         const struct abstract_name *from) {
    struct port *p = find_port(ports, nports, &query->dst);
    if (p == NULL || p->rx_fd < 0 || from->length <= sizeof(sa_family_t)) {
        return;
    }
    struct slotmsg msg = *query;
    msg.type = SLOTMSG_OWNER_ANSWER;
    msg.length = 0;
    struct iovec iov = {&msg, sizeof msg};
    (void)abstract_send(from, &iov, 1); /* it asks again */
}

int port_slot_input(const struct slot *s, struct port **ports, int nports, uint8_t *data, uint32_t size,
                    struct slot_packet *out, uint64_t now) {
    struct slotmsg msg;
    struct abstract_name from;
    union abstract_control control;
    struct iovec iov[2] = {{&msg, sizeof msg}, {data, size}};
    struct msghdr mh = {.msg_name = &from.un,
                        .msg_namelen = sizeof from.un,
                        .msg_iov = iov,
                        .msg_iovlen = 2,
                        .msg_control = &control,
                        .msg_controllen = sizeof control};
    uid_t uid;
    ssize_t n = recvmsg(s->fd, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) {
        return errno == EINTR ? 0 : -errno;
    }
    if (n < (ssize_t)sizeof msg || (mh.msg_flags & MSG_TRUNC) != 0 || msg.magic != SLOTMSG_MAGIC ||
        msg.version != SLOTMSG_VERSION || !abstract_sender(&mh, &uid)) {
        return 0;
    }
    from.length = mh.msg_namelen;
    if (msg.type == SLOTMSG_OWNER_QUERY) {
        answer_query(ports, nports, &msg, &from);
    }
    if (msg.type == SLOTMSG_SHOW) {
        show_others(find_port(ports, nports, &msg.dst), msg.shown);
    }
    if (msg.type != SLOTMSG_FORWARD) {
        struct port *p = find_port(ports, nports, &msg.dst);
        if (p != NULL && uid == getuid() && msg.length == (size_t)n - sizeof msg) {
            steering_message(p, &msg, data, now);
        }
        return 0;
    }
    return take_forward(ports, nports, &msg, uid, &from, (uint32_t)((size_t)n - sizeof msg), out);
}

uint64_t port_left(const struct port *p) {
    int queued = 0;
    if (ioctl(p->tx_fd, SIOCOUTQ, &queued) != 0 || queued < 0) {
        return p->handed;
    }
    return p->handed > (uint64_t)queued ? p->handed - (uint64_t)queued : 0;
}

/* ---------------------------------------------------------------- timers */

/* The owner may be gone: bind.  What we send keeps its port, which the ICRC covers and peers have seen. */
static bool take_over(struct port *p, uint64_t now) {
    struct port_steering *st = p->steering;
    struct owner owner;
    if (udpsock_bind(st->claim_fd, &p->addr, ROCE_UDP_PORT) == 0) {
        receive_from(p, st->claim_fd, now);
        st->claim_fd = -1;
        return true;
    }
    st->claim_at = now + TAKEOVER_PERIOD;
    if (st->owner_stale && owner_find(&p->addr, &owner) == 0) {
        st->owner_uid = owner.uid;
    }
    st->owner_stale = false;
    return false;
}

bool port_timer(struct port *p, uint64_t now) {
    if (p->rx_fd >= 0) {
        if (sieve_expire(&p->sieve, now)) {
            sift(p);
        }
        steering_timer(p, now);
        return false;
    }
    return now >= p->steering->claim_at && take_over(p, now);
}

uint64_t port_deadline(const struct port *p) {
    const struct port_steering *st = p->steering;
    if (p->rx_fd < 0) {
        return st->claim_at;
    }
    uint64_t steering = steering_deadline(st), heard = sieve_deadline(&p->sieve);
    return steering < heard ? steering : heard;
}

bool port_settled(const struct port *p) { return p->rx_fd < 0 || p->remaps > 0; }
