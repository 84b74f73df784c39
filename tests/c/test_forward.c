/* SPDX-License-Identifier: Apache-2.0
 *
 * link/udp/port.c: what one process hands on to another, and what of that is believed; the port that becomes free.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* setresuid */
#endif
#include "link/udp/port.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/udp.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/address.h"
#include "check.h"
#include "link/udp/steering.h"
#include "live.h"
#include "names/slotmsg.h"

#define MS 1000000ull
#define LO 1
#define OTHER 65534
#define SKIPPED 77

static struct slot slots[2];
static struct port ports[2]; /* one from, one to */
static struct port *list[2] = {&ports[0], &ports[1]};
static struct sockaddr_in6 addr, peer;
static uint64_t now;
static uint8_t data[65536];
static struct slot_packet got;

static void end(void) {
    for (int i = 0; i < 2; i++) {
        port_close(&ports[i]);
        slot_release(&slots[i]);
    }
}

static void begin(void) {
    if (ports[0].steering)
        end(); /* of a test that has failed */
    struct rnic_err err = {0};
    now = 1000000 * MS;
    addr = peer = (struct sockaddr_in6){.sin6_family = AF_INET6};
    addr.sin6_addr.s6_addr[10] = addr.sin6_addr.s6_addr[11] = 0xFF;
    addr.sin6_addr.s6_addr[12] = 127, addr.sin6_addr.s6_addr[15] = 1;
    peer.sin6_addr = addr.sin6_addr;
    peer.sin6_addr.s6_addr[15] = 9;
    peer.sin6_port = htons(777);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(slot_claim(&slots[i], NULL), 0);
        CHECK_EQ(port_open(&ports[i], &addr, LO, &slots[i], 0, now, &err), 0);
    }
}

static int input(void) { return port_slot_input(&slots[1], &list[1], 1, data, sizeof data, &got, now); }

/* ---------------------------------------------------------------- forwarding */

static void a_packet_that_is_handed_on_is_whole(void) {
    uint8_t bytes[200];
    memset(bytes, 7, sizeof bytes);
    begin();
    struct slot_packet p = {.src = peer, .length = 200, .segment = 50, .hops = 3, .tclass = 9, .flow_label = 0xABCDE};
    CHECK_EQ(port_forward(&ports[0], slots[1].number, &p, bytes, now), 0);
    CHECK_EQ(input(), 1);
    CHECK(!memcmp(&got.src, &peer, sizeof peer) && address_same(&got.dst, &addr));
    CHECK(got.dst.sin6_port == htons(ROCE_UDP_PORT) && got.length == 200 && got.segment == 50);
    CHECK(got.hops == 3 && got.tclass == 9 && got.flow_label == 0xABCDE);
    CHECK(!memcmp(data, bytes, sizeof bytes));
    CHECK_EQ(input(), -EAGAIN);
    p.segment = 200; /* one packet */
    p.flow_label = 0xFFFABCDE;
    CHECK_EQ(port_forward(&ports[0], slots[1].number, &p, bytes, now), 0);
    CHECK(input() == 1 && got.segment == 0 && got.flow_label == 0xABCDE);
    CHECK_EQ(port_forward(&ports[0], SLOT_COUNT, &p, bytes, now), -ECONNREFUSED);
    uint32_t nobodys = 0;
    while (nobodys == slots[0].number || nobodys == slots[1].number)
        nobodys++;
    CHECK_EQ(port_forward(&ports[0], nobodys, &p, bytes, now), -ECONNREFUSED);
    int n = 0;
    while (port_forward(&ports[0], slots[1].number, &p, bytes, now) == 0)
        n++;
    CHECK(n > 1 && port_forward(&ports[0], slots[1].number, &p, bytes, now) == -EAGAIN);
    end();
}

static bool is_told(uint32_t qpn, uint32_t length) {
    uint8_t bytes[64] = {4, [5] = (uint8_t)(qpn >> 16), [6] = (uint8_t)(qpn >> 8), [7] = (uint8_t)qpn};
    uint32_t slot = slots[1].number;
    uint64_t *missed = ports[0].steering->missed.bits;
    memset(missed, 0, sizeof ports[0].steering->missed);
    struct slot_packet p = {.src = peer, .length = length};
    CHECK_EQ(port_forward(&ports[0], slot, &p, bytes, now), 0);
    (void)input();
    return missed[slot / 64] >> (slot % 64) & 1;
}

static void the_steward_hears_of_what_was_steered_wrong_alone(void) {
    begin();
    uint32_t first = slots[1].number << QPN_INDEX_BITS;
    CHECK(is_told(first | 2, 64) && is_told(first | 0x3FFF, 64) && is_told(first | 2, 8));
    CHECK(!is_told(first | 2, 7));
    CHECK(!is_told(1, 64) && !is_told(0, 64));
    CHECK(!is_told((first ^ 1u << QPN_INDEX_BITS) | 2, 64));
    int fd = ports[0].rx_fd;
    ports[0].rx_fd = -1; /* nobody steers for us */
    CHECK(!is_told(first | 2, 64));
    ports[0].rx_fd = fd;
    end();
}

static void a_miss_is_told_when_nothing_else_is_being_asked(void) {
    static const struct {
        bool joining;
        int asks;
        uint64_t tell_at, told_at; /* from now on; told_at: 50 when it waits */
    } rows[] = {{false, 0, 0, 0},  {false, 0, 20, 20}, {false, 0, 60, 50},
                {false, 1, 0, 50}, {false, 2, 0, 50},  {true, 0, 0, 50}};
    begin();
    struct port_steering *st = ports[0].steering;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        st->joining = rows[i].joining;
        st->asks = rows[i].asks;
        st->tell_at = now + rows[i].tell_at;
        st->ask_at = now + 50;
        steering_forwarded(&ports[0], 5, now);
        CHECK_EQ(st->ask_at, now + rows[i].told_at);
        CHECK(st->missed.bits[0] & 1u << 5);
    }
    end();
}

static void say(const struct slotmsg *msg, const void *more, size_t n) {
    struct abstract_name name;
    struct iovec iov[2] = {{(void *)(uintptr_t)msg, sizeof *msg}, {(void *)(uintptr_t)more, n}};
    abstract_name(&name, SLOT_NAME, slots[1].number);
    CHECK_EQ(abstract_send(&name, iov, 2), 0);
}

static struct slotmsg forward(uint32_t length) {
    struct slotmsg m = {.magic = SLOTMSG_MAGIC,
                        .version = SLOTMSG_VERSION,
                        .type = SLOTMSG_FORWARD,
                        .length = length,
                        .src = peer,
                        .dst = addr};
    m.dst.sin6_port = htons(ROCE_UDP_PORT);
    return m;
}

static int is_taken(struct slotmsg msg) {
    say(&msg, "12345678", 8);
    return input();
}

static void what_is_handed_on_is_checked(void) {
    begin();
    struct slotmsg good = forward(8), bad = good;
    CHECK_EQ(is_taken(good), 1);
    CHECK(!memcmp(data, "12345678", 8));
    bad.magic++;
    CHECK_EQ(is_taken(bad), 0);
    bad = good, bad.version++;
    CHECK_EQ(is_taken(bad), 0);
    bad = good, bad.length = 7;
    CHECK_EQ(is_taken(bad), 0);
    bad = good, bad.dst.sin6_addr.s6_addr[15]++;
    CHECK_EQ(is_taken(bad), 0);
    bad = good, bad.dst.sin6_scope_id++;
    CHECK_EQ(is_taken(bad), 0);
    bad = good, bad.dst.sin6_port++;
    CHECK_EQ(is_taken(bad), 0);
    bad = good, bad.src.sin6_family = AF_INET;
    CHECK_EQ(is_taken(bad), 0);
    bad = forward(0);
    say(&bad, "", 0);
    CHECK_EQ(input(), 0);
    say(&good, "12345678", 8);
    CHECK_EQ(port_slot_input(&slots[1], &list[1], 1, data, 7, &got, now), 0); /* cut off */
    CHECK_EQ(send(slots[0].fd, "", 0, 0) < 0 ? input() : 0, -EAGAIN);
    end();
}

/* It is no end of what there is to read. */
/* Whoever is not mapped here has the number of nobody, which may be ours as well. */
static void take_as_nobody(void) {
    char map[64];
    snprintf(map, sizeof map, "%u %u 1", OTHER, (unsigned)geteuid());
    int fd = unshare(CLONE_NEWUSER) ? -1 : open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, map, strlen(map)) < 0 || getuid() != OTHER)
        _exit(SKIPPED);
    begin();
    _exit(is_taken(forward(8)));
}

static void nobody_is_no_user_of_ours(void) {
    int status;
    pid_t pid = fork();
    if (pid == 0)
        take_as_nobody();
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED)
        printf("# no user namespace to be had\n");
    else
        CHECK_EQ(WEXITSTATUS(status), 0);
}

/* Of an address that is nobody's here, of another user, or cut short: none of these changes anything. */
static void a_word_of_the_steering_is_checked_before_it_counts(void) {
    begin();
    struct port_steering *st = ports[1].steering;
    struct slotmsg m = forward(8);
    m.type = SLOTMSG_WELCOME;
    m.nonce = st->token;
    st->joining = true;
    m.dst = peer;
    CHECK_EQ(is_taken(m), 0);
    m.dst = addr;
    m.length = 7;
    CHECK_EQ(is_taken(m), 0);
    m.length = 9;
    CHECK_EQ(is_taken(m), 0);
    m.length = 8;
    m.nonce++;
    CHECK_EQ(is_taken(m), 0);
    m.nonce--;
    CHECK(st->joining);
    CHECK_EQ(is_taken(m), 0);
    CHECK(!st->joining);
    end();
}

static void a_message_of_no_bytes_is_passed_over(void) {
    struct slotmsg good = forward(8);
    struct abstract_name name;
    begin();
    abstract_name(&name, SLOT_NAME, slots[1].number);
    CHECK_EQ(abstract_send(&name, NULL, 0), 0);
    say(&good, "12345678", 8);
    errno = EAGAIN;
    CHECK_EQ(input(), 0);
    CHECK_EQ(input(), 1);
    end();
}

static int buffer_of(int fd, int name) {
    int value = 0;
    socklen_t n = sizeof value;
    CHECK_EQ(getsockopt(fd, SOL_SOCKET, name, &value, &n), 0);
    return value;
}

/* What waits is charged to its sender: without more room than usual that is three packets. */
static void a_slot_has_as_much_room_as_there_is(void) {
    static const int names[] = {SO_RCVBUF, SO_SNDBUF};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), much = 4 << 20;
    begin();
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(setsockopt(fd, SOL_SOCKET, names[i], &much, sizeof much), 0);
        CHECK_EQ(buffer_of(slots[0].fd, names[i]), buffer_of(fd, names[i]));
    }
    close(fd);
    end();
}

/* A process of another user hands a packet on. */
static int taken_from(uid_t uid) {
    struct slotmsg msg = forward(8);
    pid_t pid = fork();
    if (pid == 0) {
        if (setresuid(uid, uid, uid))
            _exit(1);
        say(&msg, "12345678", 8);
        _exit(0);
    }
    int status;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    return input();
}

static void who_owns_the_port_may_hand_on(void) {
    if (getuid() != 0) {
        printf("# not root\n");
        return;
    }
    begin();
    struct port *p = &ports[1];
    int fd = p->rx_fd;
    CHECK_EQ(taken_from(OTHER), 0);
    CHECK(!p->steering->owner_stale);
    p->rx_fd = -1;
    p->steering->owner_uid = OTHER;
    CHECK_EQ(taken_from(OTHER), 1);
    CHECK_EQ(taken_from(0), 1); /* root */
    CHECK(!p->steering->owner_stale);
    p->steering->owner_uid = OTHER - 1;
    CHECK_EQ(taken_from(OTHER), 0);
    CHECK(p->steering->owner_stale);
    p->rx_fd = fd;
    end();
}

/* ---------------------------------------------------------------- headers */

static int option(const struct port *p, int name) {
    int value = 0;
    socklen_t n = sizeof value;
    CHECK_EQ(getsockopt(p->rx_fd, IPPROTO_IP, name, &value, &n), 0);
    return value;
}

static void headers_are_shown_where_somebody_needs_them(void) {
    begin();
    CHECK(!option(&ports[1], IP_RECVTTL) && !option(&ports[1], IP_RECVTOS) && option(&ports[1], IP_TOS) == 0);
    port_show_headers(&ports[1], true);
    CHECK(option(&ports[1], IP_RECVTTL) && option(&ports[1], IP_RECVTOS));
    port_show_headers(&ports[1], false);
    CHECK(!option(&ports[1], IP_RECVTTL) && !option(&ports[1], IP_RECVTOS));
    port_take_marks(&ports[1]);
    CHECK(!option(&ports[1], IP_RECVTTL) && option(&ports[1], IP_RECVTOS));
    CHECK(option(&ports[1], IP_TOS) == 2 && ports[1].tclass == 2);
    end();
}

static void who_forwards_is_asked_to_show_what_is_missing(void) {
    uint8_t bytes[8] = {4};
    begin();
    struct slot_packet p = {.src = peer, .length = 8};
    CHECK_EQ(port_forward(&ports[0], slots[1].number, &p, bytes, now), 0);
    CHECK_EQ(input(), 1);
    CHECK_EQ(port_slot_input(&slots[0], list, 1, data, sizeof data, &got, now), -EAGAIN); /* nothing is missing */
    port_show_headers(&ports[1], true);
    CHECK_EQ(port_forward(&ports[0], slots[1].number, &p, bytes, now), 0);
    CHECK_EQ(input(), 1);
    CHECK_EQ(port_slot_input(&slots[0], list, 1, data, sizeof data, &got, now), 0);
    CHECK_EQ(ports[0].asked, SLOTMSG_HOPS | SLOTMSG_TCLASS);
    CHECK(option(&ports[0], IP_RECVTTL) && option(&ports[0], IP_RECVTOS));
    CHECK_EQ(port_forward(&ports[0], slots[1].number, &p, bytes, now), 0);
    CHECK_EQ(input(), 1);
    CHECK_EQ(port_slot_input(&slots[0], list, 1, data, sizeof data, &got, now), -EAGAIN); /* it has been asked */
    struct slotmsg m = {.magic = SLOTMSG_MAGIC, .version = SLOTMSG_VERSION, .type = SLOTMSG_SHOW, .shown = 0xFFFC};
    m.dst = addr;
    say(&m, "", 0);
    CHECK_EQ(input(), 0);
    CHECK_EQ(ports[1].asked, 0); /* there is nothing else */
    end();
}

/* ---------------------------------------------------------------- who owns it */

static void a_question_for_the_owner_is_answered_by_the_owner(void) {
    struct abstract_name name;
    struct slotmsg m = forward(0), answer;
    begin();
    abstract_name(&name, "rnic/test/forward/%d", (int)getpid());
    int fd = abstract_open(&name), rx_fd = ports[1].rx_fd;
    CHECK(fd >= 0);
    m.type = SLOTMSG_OWNER_QUERY;
    m.nonce = 1234567890123456789u;
    m.length = 7;
    abstract_name(&name, SLOT_NAME, slots[1].number);
    for (int owns = 1; owns >= 0; owns--) {
        ports[1].rx_fd = owns ? rx_fd : -1;
        CHECK_EQ(sendto(fd, &m, sizeof m, 0, (const struct sockaddr *)&name.un, name.length), sizeof m);
        CHECK_EQ(input(), 0);
        ssize_t n = recv(fd, &answer, sizeof answer, MSG_DONTWAIT);
        CHECK_EQ(n, owns ? (ssize_t)sizeof answer : -1);
    }
    CHECK(answer.type == SLOTMSG_OWNER_ANSWER && answer.nonce == m.nonce && !memcmp(&answer.dst, &m.dst, sizeof m.dst));
    CHECK_EQ(answer.length, 0);
    ports[1].rx_fd = rx_fd;
    say(&m, "", 0); /* from a socket without a name */
    CHECK_EQ(input(), 0);
    close(fd);
    end();
}

static int bind_at_port(bool shared) {
    union address_native native;
    struct sockaddr_in6 to = addr;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), on = 1;
    to.sin6_port = htons(ROCE_UDP_PORT);
    if (shared)
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    socklen_t n = address_to_native(&to, &native);
    CHECK_EQ(bind(fd, &native.any, n), 0);
    return fd;
}

/* It asks the owner, who answers it; then it looks again in its time, not at once. */
static int open_behind_as(uid_t uid) {
    struct slot slot;
    struct port p;
    struct rnic_err err = {0};
    if (setresuid(uid, uid, uid) || slot_claim(&slot, NULL) || port_open(&p, &addr, LO, &slot, 0, now, &err))
        return 1;
    if (p.rx_fd >= 0 || p.tx_fd < 0 || p.steering->claim_fd < 0 || p.steering->owner_uid != 0)
        return 2;
    return port_deadline(&p) == now + 50 * MS ? 0 : 3;
}

static void another_user_opens_behind_the_owner(void) {
    int status = 0;
    if (getuid() != 0) {
        printf("# not root\n");
        return;
    }
    begin();
    pid_t pid = fork(), done = 0;
    if (pid == 0)
        _exit(open_behind_as(OTHER));
    while (!(done = waitpid(pid, &status, WNOHANG)))
        for (int i = 0; i < 2; i++)
            (void)port_slot_input(&slots[i], &list[i], 1, data, sizeof data, &got, now);
    CHECK_EQ(done, pid);
    CHECK_EQ(WEXITSTATUS(status), 0);
    end();
}

static void a_port_that_becomes_free_is_taken_over(void) {
    begin();
    struct port *p = &ports[1];
    for (int i = 0; i < 2; i++) {
        close(ports[i].rx_fd);
        ports[i].rx_fd = ports[i].tx_fd = -1;
    }
    int blocker = bind_at_port(false), on = 1;
    p->steering->claim_fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    setsockopt(p->steering->claim_fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    p->steering->claim_at = now + 10;
    p->steering->owner_uid = 77;
    CHECK(port_settled(p) && port_deadline(p) == now + 10);
    CHECK(!port_timer(p, now + 9));
    CHECK_EQ(port_deadline(p), now + 10);
    now += 10;
    CHECK(!port_timer(p, now));
    CHECK_EQ(port_deadline(p), now + 50 * MS);
    CHECK_EQ(p->steering->owner_uid, 77);
    p->steering->owner_stale = true;
    now += 50 * MS;
    CHECK(!port_timer(p, now));
    CHECK(p->steering->owner_uid == getuid() && !p->steering->owner_stale);
    close(blocker);
    now += 50 * MS;
    int fd = p->steering->claim_fd;
    CHECK(port_timer(p, now));
    CHECK(p->rx_fd == fd && p->steering->claim_fd == -1 && p->gro && p->rcvbuf > 0);
    CHECK(port_deadline(p) == now && !port_settled(p));
    p->tx_fd = p->rx_fd;
    end();
}

static void a_port_opens_and_closes_with_what_it_has(void) {
    begin();
    struct port *p = &ports[0];
    CHECK(p->rx_fd == p->tx_fd && p->addr.sin6_port == htons(ROCE_UDP_PORT) && p->addr.sin6_scope_id == 0);
    CHECK(p->gso && p->gro && p->rcvbuf >= 1u << 16 && p->sndbuf > 0);
    CHECK_EQ(p->steering->nslots, 1);
    CHECK_EQ(p->steering->slots[0], slots[0].number);
    p->handed = 5000;
    CHECK_EQ(port_left(p), 5000); /* nothing is queued */
    int fd = p->rx_fd;
    port_leave(p);
    port_abandon(p);
    CHECK(p->rx_fd == -1 && p->tx_fd == -1 && fcntl(fd, F_GETFD) < 0);
    CHECK_EQ(port_left(p), 5000);
    port_close(p);
    CHECK(p->steering == NULL);
    struct rnic_err err = {0};
    const struct sockaddr_in6 bare = {.sin6_addr = addr.sin6_addr, .sin6_port = 99}; /* the address alone counts */
    CHECK_EQ(port_open(p, &bare, LO, &slots[0], 0, now, &err), 0);
    CHECK(p->addr.sin6_family == AF_INET6 && p->addr.sin6_port == htons(ROCE_UDP_PORT));
    end();
}

static void descriptor_0_is_one_as_any_other(void) {
    struct rnic_err err = {0};
    int kept = fcntl(0, F_DUPFD_CLOEXEC, 3);
    begin();
    port_close(&ports[1]);
    close(0);
    int before = check_descriptors();
    CHECK_EQ(port_open(&ports[1], &addr, LO, &slots[1], 0, now, &err), 0);
    CHECK(ports[1].rx_fd == 0 && ports[1].tx_fd == 0 && port_deadline(&ports[1]) == now);
    CHECK(!port_settled(&ports[1]));
    ports[1].steering->owner_uid = OTHER;
    CHECK_EQ(is_taken(forward(8)), 1);
    CHECK(is_told(slots[1].number << QPN_INDEX_BITS | 2, 64)); /* its own port is the other one */
    struct slotmsg m = forward(8);
    m.type = SLOTMSG_WELCOME;
    m.nonce = ports[1].steering->token;
    CHECK_EQ(is_taken(m), 0);
    CHECK(!ports[1].steering->joining);
    port_close(&ports[1]);
    CHECK_EQ(check_descriptors(), before);
    if (kept >= 0) {
        CHECK_EQ(dup2(kept, 0), 0);
        close(kept);
    }
    CHECK_EQ(port_open(&ports[1], &addr, LO, &slots[1], 0, now, &err), 0);
    end();
}

/* Queue pairs 0 and 1 belong to no slot, though by their bits to the first. */
static void a_packet_for_queue_pair_1_was_not_steered_wrong(void) {
    struct abstract_name name;
    struct slot_packet p = {.src = peer, .length = 64};
    begin();
    abstract_name(&name, SLOT_NAME, 0);
    int fd = slots[0].number && slots[1].number ? abstract_open(&name) : -1; /* of nobody else here */
    for (uint32_t qpn = 0; qpn < 3; qpn++) {
        const uint8_t bytes[64] = {4, [7] = (uint8_t)qpn};
        memset(&ports[0].steering->missed, 0, sizeof ports[0].steering->missed);
        CHECK_EQ(port_forward(&ports[0], 0, &p, bytes, now), 0);
        CHECK_EQ(ports[0].steering->missed.bits[0] & 1, qpn > 1);
    }
    if (fd >= 0)
        close(fd);
    end();
}

int main(void) {
    live_isolate();
    RUN(a_packet_that_is_handed_on_is_whole);
    RUN(the_steward_hears_of_what_was_steered_wrong_alone);
    RUN(a_miss_is_told_when_nothing_else_is_being_asked);
    RUN(what_is_handed_on_is_checked);
    RUN(a_word_of_the_steering_is_checked_before_it_counts);
    RUN(a_message_of_no_bytes_is_passed_over);
    RUN(a_slot_has_as_much_room_as_there_is);
    RUN(who_owns_the_port_may_hand_on);
    RUN(nobody_is_no_user_of_ours);
    RUN(headers_are_shown_where_somebody_needs_them);
    RUN(who_forwards_is_asked_to_show_what_is_missing);
    RUN(a_question_for_the_owner_is_answered_by_the_owner);
    RUN(another_user_opens_behind_the_owner);
    RUN(a_port_that_becomes_free_is_taken_over);
    RUN(a_port_opens_and_closes_with_what_it_has);
    RUN(a_packet_for_queue_pair_1_was_not_steered_wrong);
    RUN(descriptor_0_is_one_as_any_other);
    return check_done();
}
