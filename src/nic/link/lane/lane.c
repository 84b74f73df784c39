/* SPDX-License-Identifier: Apache-2.0 */
#include "link/lane/lane.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/address.h"
#include "base/memfile.h"
#include "names/abstract.h"
#include "names/slot.h"
#include "names/slotmsg.h"
#include "names/user.h"
#include "wire/bth.h"
#include "wire/grh.h"
#include "wire/icrc.h"

#define BACKLOG 1024
#define MEMORY (2 * sizeof(struct ring_shared)) /* the asker's direction first */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define DEFAULT_HOPS 64 /* as of packets whose IP header the kernel makes */
#define PARTIES 16 /* in so many ns, of somebody who is a stranger: addresses do not change so often */
#define PARTIES_NS 16000000000ull
#define WAKES 65536 /* asked for and not come yet: more than a socket holds */

enum lane_message_type { LANE_HELLO = 1, LANE_WELCOME, LANE_READY, LANE_WAKE, LANE_PARTY };

struct lane_message {
    uint32_t magic;
    uint16_t version, type;
    struct lane_party party; /* of HELLO, WELCOME and PARTY */
};

#define HEAD offsetof(struct lane_message, party)

/* ---------------------------------------------------------------- out */

static uint8_t *reserve(struct link *link, struct way *way, uint32_t n, uint32_t *crc) {
    struct lane *l = lane_of(link);
    (void)crc;
    l->way = way;
    l->reserved = n += way->datagrams ? GRH_BYTES : 0;
    if (n > sizeof l->aside)
        return NULL;
    if (l->state == LANE_UP && l->shared->fault->on && !ring_has_room(&l->out)) { /* for duplicates, too */
        l->link.full = true;
        return NULL;
    }
    if (l->state != LANE_UP || l->shared->fault->on)
        return l->aside;
    l->at = ring_reserve(&l->out, n);
    if (!l->at && ring_has_room(&l->out)) /* from now on the reader tells when there is some */
        l->at = ring_reserve(&l->out, n);
    if (!l->at)
        l->link.full = true; /* until lane_unstick(): a shorter packet may well have room */
    return l->at;
}

static void put_grh(const struct way *way, uint8_t *packet, uint32_t n) {
    uint8_t hops = way->hop_limit ? way->hop_limit : DEFAULT_HOPS;
    grh_build(packet + n, &way->src, &way->dst, way->traffic_class, hops, way->flow_label, 0, n + ICRC_BYTES);
}

static uint32_t kind_of(const struct way *way) {
    uint32_t kind = (way->traffic_class & ECN_MASK) == ECN_MARKED ? LANE_MARKED : 0;
    return way->datagrams ? kind | LANE_DATAGRAM | (uint32_t)way->traffic_class << LANE_CLASS_SHIFT : kind;
}

static void enter(struct lane *l, const struct way *way) {
    ring_commit(&l->out, kind_of(way));
    l->dirty = true;
    l->shared->counters->value[RNIC_CNT_local_sent]++;
}

static bool put(struct link *link, const struct way *way, const uint8_t *bytes, uint32_t n) {
    struct lane *l = lane_of(link);
    if (l->state != LANE_UP) /* it is lost, as all that goes there is */
        return true;
    uint8_t *at = ring_reserve(&l->out, n);
    if (!at)
        return false;
    memcpy(at, bytes, n);
    enter(l, way);
    return true;
}

static void emit(struct link *link, const struct way *way, const uint8_t *bytes, uint32_t length) {
    struct lane *l = lane_of(link);
    uint8_t *at = l->state == LANE_UP ? ring_reserve(&l->out, length) : NULL;
    if (!at) {
        l->shared->counters->value[RNIC_CNT_tx_errors]++;
        return;
    }
    memcpy(at, bytes, length);
    enter(l, way);
}

static void commit(struct link *link) {
    struct lane *l = lane_of(link);
    bool aside = l->state != LANE_UP || l->shared->fault->on;
    if (l->way->datagrams)
        put_grh(l->way, aside ? l->aside : l->at, l->reserved - GRH_BYTES);
    if (l->state == LANE_UP && l->shared->fault->on)
        fault_send(l->shared->fault, l->shared->counters, l->way, l->aside, l->reserved, *l->shared->now);
    else if (l->state == LANE_UP)
        enter(l, l->way);
}

/* As long as no packet in a cell is. */
static void refer(struct link *link, uint32_t n, const struct rnic_sge *payload, uint32_t qpn) {
    struct lane *l = lane_of(link);
    if (l->state != LANE_UP)
        return;
    memcpy(l->at + n, payload, sizeof *payload);
    l->out.length = LANE_REFERRING;
    ring_commit_for(&l->out, LANE_REFERS | kind_of(l->way), qpn);
    l->dirty = true;
    l->shared->counters->value[RNIC_CNT_local_sent]++;
}

static void take_back(struct link *link, uint32_t qpn) {
    struct lane *l = lane_of(link);
    if (l->state == LANE_UP)
        ring_take_back(&l->out, qpn);
}

static void flush(struct link *link) {
    if (lane_of(link)->dirty)
        lane_flush(lane_of(link));
}

static void hold(struct link *link, const struct way *way) {
    (void)way;
    lane_of(link)->users++;
}

static void release(struct link *link, const struct way *way) {
    (void)way;
    lane_of(link)->users--;
}

static const struct link_ops lane_ops = {
    .name = "lane",
    .hold = hold,
    .release = release,
    .reserve = reserve,
    .commit = commit,
    .put = put,
    .flush = flush,
    .emit = emit,
    .refer = refer,
    .take_back = take_back,
};

/* ---------------------------------------------------------------- memory */

static int make_memory(void) {
    int fd = memfd_create("rnic-lane", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && memfile_extend(fd, MEMORY) && fcntl(fd, F_ADD_SEALS, SEALS) == 0)
        return fd;
    int rc = -errno;
    if (fd >= 0)
        close(fd);
    return rc;
}

static bool map_memory(struct lane *l, int fd, bool asker) {
    struct ring_shared *rings = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (rings == MAP_FAILED)
        return false;
    l->mem = rings;
    l->out.mem = &rings[asker ? 0 : 1];
    l->in.mem = &rings[asker ? 1 : 0];
    return true;
}

/* ---------------------------------------------------------------- the socket */

#define PASSED 2

union control {
    char bytes[CMSG_SPACE(PASSED * sizeof(int))];
    struct cmsghdr align;
};

/* pass: n descriptors. */
static int speak(const struct lane *l, uint16_t type, const struct lane_party *party, const int *pass, size_t n) {
    struct lane_message m = {.magic = SLOTMSG_MAGIC, .version = SLOTMSG_VERSION, .type = type};
    union control control = {{0}};
    struct iovec iov = {&m, party ? sizeof m : HEAD};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
    if (party)
        m.party = *party;
    if (n) {
        mh.msg_control = &control;
        mh.msg_controllen = CMSG_SPACE(n * sizeof *pass);
        *CMSG_FIRSTHDR(&mh) =
            (struct cmsghdr){.cmsg_len = CMSG_LEN(n * sizeof *pass), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&mh)), pass, n * sizeof *pass);
    }
    return syscall(SYS_sendmsg, l->fd, &mh, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno
                                                                             : 0; /* no point of cancellation */
}

static int say(const struct lane *l, uint16_t type) { return speak(l, type, NULL, NULL, 0); }

static void name_of(struct abstract_name *name, uint32_t slot) { abstract_name(name, "rnic/1/lane/%u", slot); }

static int open_socket(void) {
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    return fd < 0 ? -errno : fd;
}

int lane_listen(uint32_t slot) {
    struct abstract_name name;
    int fd = open_socket();
    if (fd < 0)
        return fd;
    name_of(&name, slot);
    if (bind(fd, (const struct sockaddr *)&name.un, name.length) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int rc = -errno;
    close(fd);
    return rc;
}

/* Of a connection: who listens there, or who has connected. */
static bool peer_of(int fd, struct ucred *cred) {
    socklen_t n = sizeof *cred;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, cred, &n) == 0;
}

static void know_peer(struct lane *l) {
    struct ucred cred = {.uid = (uid_t)-1};
    (void)peer_of(l->fd, &cred);
    l->pid = cred.pid;
    l->uid = cred.uid;
    l->trusted = user_is_ours(l->uid);
}

static enum lane_answer no_or_not_now(int rc) {
    bool short_of = rc == -EMFILE || rc == -ENFILE || rc == -ENOBUFS || rc == -ENOMEM || rc == -EAGAIN;
    return short_of ? LANE_CANNOT_TELL : LANE_NO;
}

/* Processes of other pid namespaces all have the number 0. */
static bool is_same(const struct lane *l, const struct ucred *cred) {
    return cred->pid == l->pid && cred->uid == l->uid && (l->pid > 0 || user_is_one(l->uid));
}

/* Anybody can bind our names of a slot whose owner does not, or say that a slot is his.  But a slot is claimed together
 * with its lifeline, and the kernel tells whose that is. */
enum lane_answer lane_owns(const struct lane *l, uint32_t slot) {
    struct ucred cred;
    int fd = slot < SLOT_COUNT ? slot_watch(slot) : -EINVAL;
    if (fd < 0)
        return no_or_not_now(fd);
    bool same = peer_of(fd, &cred) && is_same(l, &cred);
    close(fd);
    return same ? LANE_YES : LANE_NO;
}

static struct lane *new_lane(int fd, enum lane_state state, const struct lane_shared *shared, uint64_t now) {
    struct lane *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->link = (struct link){.ops = &lane_ops, .bare = true};
    l->state = state;
    l->asked = state == LANE_ASKING;
    l->shared = shared;
    l->fd = fd;
    l->file = -1;
    l->since = now;
    know_peer(l);
    return l;
}

static int offer(struct lane *l, const struct lane_self *self) {
    int pass[PASSED] = {make_memory(), self->file};
    if (pass[0] < 0)
        return pass[0];
    size_t n = l->trusted && self->file >= 0 ? 2 : 1;
    int rc = map_memory(l, pass[0], true) ? speak(l, LANE_HELLO, &self->party, pass, n) : -ENOMEM;
    close(pass[0]);
    return rc;
}

void lane_tell(struct lane *l, const struct lane_self *self) {
    if (l->state != LANE_CALLED && l->state != LANE_DOWN) /* who has called is told anyway */
        (void)speak(l, LANE_PARTY, &self->party, NULL, 0);
}

int lane_ask(struct lane **out, uint32_t slot, const struct lane_self *self, const struct lane_shared *shared,
             uint64_t now) {
    struct abstract_name name;
    int fd = open_socket();
    if (fd < 0)
        return fd;
    name_of(&name, slot);
    int rc = connect(fd, (const struct sockaddr *)&name.un, name.length) ? -errno : 0;
    struct lane *l = rc ? NULL : new_lane(fd, LANE_ASKING, shared, now);
    if (!l) {
        close(fd);
        return rc ? rc : -ENOMEM;
    }
    rc = offer(l, self);
    if (rc)
        lane_free(l);
    else
        *out = l;
    return rc;
}

struct lane *lane_answer(int listener, const struct lane_shared *shared, uint64_t now) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    struct lane *l = fd < 0 ? NULL : new_lane(fd, LANE_CALLED, shared, now);
    if (fd >= 0 && !l)
        close(fd);
    return l;
}

/* ---------------------------------------------------------------- what is said */

static bool has_address(const struct ifaddrs *all, const struct in6_addr *addr) {
    for (const struct ifaddrs *at = all; at; at = at->ifa_next) {
        struct sockaddr_in6 is;
        if (!at->ifa_addr || (at->ifa_addr->sa_family != AF_INET && at->ifa_addr->sa_family != AF_INET6))
            continue;
        address_from_native((const union address_native *)(const void *)at->ifa_addr, &is);
        if (IN6_ARE_ADDR_EQUAL(&is.sin6_addr, addr))
            return true;
    }
    return false;
}

/* Of what it says the addresses that may be believed: one that is not this host's is another host's process' with the
 * same slot.  (That an address can be bound says nothing: see ip_nonlocal_bind in ip-sysctl.) */
static enum lane_answer sift(const struct lane *l, struct lane_party *party) {
    struct ifaddrs *all;
    uint32_t kept = 0;
    if (getifaddrs(&all))
        return LANE_CANNOT_TELL;
    for (uint32_t i = 0; i < party->naddresses; i++) {
        const struct in6_addr *addr = &party->addresses[i];
        if ((l->trusted || !IN6_IS_ADDR_LINKLOCAL(addr)) && has_address(all, addr))
            party->addresses[kept++] = *addr;
    }
    freeifaddrs(all);
    party->naddresses = kept;
    return LANE_YES;
}

static bool has_slot(const struct lane_party *party, uint32_t slot) {
    for (uint32_t i = 0; i < party->nslots; i++) {
        if (party->slots[i] == slot)
            return true;
    }
    return false;
}

static enum lane_answer is_true(const struct lane *l, struct lane_party *party) {
    if (!party->nslots || party->nslots > LANE_SLOTS || party->naddresses > LANE_ADDRESSES)
        return LANE_NO;
    for (uint32_t i = 0; i < party->nslots; i++) {
        enum lane_answer own = has_slot(&l->peer, party->slots[i]) ? LANE_YES : lane_owns(l, party->slots[i]);
        if (own != LANE_YES)
            return own;
    }
    return sift(l, party);
}

/* What is known of who is here already stays true while no more can be told. */
static bool knows(struct lane *l, const struct lane_party *party) {
    struct lane_party believed = *party;
    enum lane_answer answer = is_true(l, &believed);
    if (answer == LANE_YES)
        l->peer = believed;
    return answer == LANE_YES || (answer == LANE_CANNOT_TELL && l->state == LANE_UP);
}

void lane_look_again(struct lane *l) { (void)sift(l, &l->peer); }

/* Each takes work, and other users' are under no obligation to let us live. */
static bool says_too_much(struct lane *l) {
    uint64_t now = *l->shared->now;
    if (now - l->parties_since > PARTIES_NS) {
        l->parties_since = now;
        l->parties = 0;
    }
    return !l->trusted && ++l->parties > PARTIES;
}

/* A peer wakes this end once for each time that it was asked to.  Another user's that does so all the time would keep the
 * engine from everything else. */
static bool wakes_unasked(struct lane *l) {
    uint32_t asked = l->in.asked + l->out.asked;
    if (asked - l->woken > WAKES)
        l->woken = asked - WAKES;
    return !l->trusted && l->woken++ == asked;
}

static void keep_file(struct lane *l, int *fd) {
    if (!l->trusted)
        return;
    l->file = *fd;
    *fd = -1;
}

static bool hello(struct lane *l, const struct lane_message *m, const struct lane_self *self, int pass[PASSED]) {
    if (l->state != LANE_CALLED || pass[0] < 0 || !memfile_is_sound(pass[0], MEMORY) || !knows(l, &m->party) ||
        !map_memory(l, pass[0], false) ||
        speak(l, LANE_WELCOME, &self->party, &self->file, l->trusted && self->file >= 0))
        return false;
    keep_file(l, &pass[1]);
    l->state = LANE_ANSWERED;
    return true;
}

static bool welcome(struct lane *l, const struct lane_message *m, int pass[PASSED]) {
    if (l->state != LANE_ASKING || !knows(l, &m->party) || say(l, LANE_READY))
        return false;
    keep_file(l, &pass[0]);
    l->state = LANE_UP;
    return true;
}

static bool ready(struct lane *l) {
    if (l->state != LANE_ANSWERED)
        return false;
    l->state = LANE_UP;
    return true;
}

/* False: such a thing nobody says who means well. */
static bool take(struct lane *l, const struct lane_message *m, const struct lane_self *self, int pass[PASSED]) {
    switch (m->type) {
    case LANE_HELLO:
        return hello(l, m, self, pass);
    case LANE_WELCOME:
        return welcome(l, m, pass);
    case LANE_READY:
        return ready(l);
    case LANE_PARTY:
        return l->state >= LANE_ANSWERED && !says_too_much(l) && knows(l, &m->party);
    case LANE_WAKE:
        return !wakes_unasked(l);
    default:
        return false;
    }
}

static void passed_with(struct msghdr *mh, int pass[PASSED]) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(mh); c; c = CMSG_NXTHDR(mh, c)) {
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof *pass;
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
            memcpy(pass, CMSG_DATA(c), (n < PASSED ? n : PASSED) * sizeof *pass);
    }
}

/* 1: a message; 0: there is none; -1: the other end has gone, or makes no sense. */
static int hear(struct lane *l, const struct lane_self *self) {
    struct lane_message m = {0};
    union control control;
    struct iovec iov = {&m, sizeof m};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(l->fd, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    int pass[PASSED] = {-1, -1};
    passed_with(&mh, pass);
    bool party = m.type == LANE_HELLO || m.type == LANE_WELCOME || m.type == LANE_PARTY;
    bool whole = n == (ssize_t)(party ? sizeof m : HEAD);
    bool good = n >= (ssize_t)HEAD && whole && m.magic == SLOTMSG_MAGIC && m.version == SLOTMSG_VERSION &&
                take(l, &m, self, pass);
    for (int i = 0; i < PASSED; i++) {
        if (pass[i] >= 0)
            close(pass[i]);
    }
    return good ? 1 : -1;
}

bool lane_listen_to(struct lane *l, const struct lane_self *self, int most) {
    enum lane_state before = l->state;
    int rc = 1;
    for (int i = 0; i < most && rc == 1 && l->fd >= 0; i++)
        rc = hear(l, self);
    if (rc < 0)
        lane_hang_up(l);
    return l->state != before;
}

void lane_flush(struct lane *l) {
    l->dirty = false;
    if (l->state == LANE_UP && ring_must_wake(&l->out))
        (void)say(l, LANE_WAKE); /* its queue is full: it has been woken */
}

bool lane_unstick(struct lane *l) {
    if (l->state == LANE_UP && !ring_has_room(&l->out))
        return false;
    l->link.full = false;
    return true;
}

void lane_taken(struct lane *l) {
    if (ring_must_tell(&l->in))
        (void)say(l, LANE_WAKE);
}

/* ---------------------------------------------------------------- the end */

void lane_hang_up(struct lane *l) {
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
    l->state = LANE_DOWN;
    l->link.full = false; /* there is room for all that goes nowhere */
}

void lane_free(struct lane *l) {
    lane_hang_up(l);
    if (l->file >= 0)
        close(l->file);
    if (l->mem)
        munmap(l->mem, MEMORY);
    free(l);
}

bool lane_is_to(const struct lane *l, const struct in6_addr *address) {
    for (uint32_t i = 0; i < l->peer.naddresses; i++) {
        if (!memcmp(&l->peer.addresses[i], address, sizeof *address))
            return true;
    }
    return false;
}
