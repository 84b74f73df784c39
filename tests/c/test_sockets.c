/* SPDX-License-Identifier: Apache-2.0
 *
 * The small files of link/: addresses, names, listeners' names, UDP sockets, multicast groups and packet sockets.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* struct ucred, struct ip_mreqn */
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/ipv6.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/address.h"
#include "check.h"
#include "link/group/group.h"
#include "link/lane/lane.h"
#include "link/packet/packet.h"
#include "link/udp/port.h"
#include "link/udp/udpsock.h"
#include "live.h"
#include "names/abstract.h"
#include "names/listen.h"
#include "names/slot.h"

#define LO 1

/* An option that this kernel has not; in the C library's place. */
static struct {
    int level, name;
} lacks = {-1, -1};

int setsockopt(int fd, int level, int name, const void *value, socklen_t n) {
    errno = ENOPROTOOPT;
    return level == lacks.level && name == lacks.name ? -1 : (int)syscall(SYS_setsockopt, fd, level, name, value, n);
}

static struct sockaddr_in6 at(const char *text) {
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons(1234)};
    CHECK_EQ(inet_pton(AF_INET6, text, &a.sin6_addr), 1);
    return a;
}

/* What f says when there are no descriptors. */
static int without_descriptors(int (*f)(void)) {
    struct rlimit before, none = {0};
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    none.rlim_max = before.rlim_max;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    int rc = f();
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    return rc;
}

/* ---------------------------------------------------------------- addresses */

static void an_address_goes_to_its_family_and_back(void) {
    union address_native native;
    struct sockaddr_in6 four = at("::ffff:192.0.2.7"), six = at("fe80::1:2"), back;
    six.sin6_scope_id = 4;
    CHECK_EQ(address_to_native(&four, &native), sizeof(struct sockaddr_in));
    CHECK(native.v4.sin_family == AF_INET && native.v4.sin_port == htons(1234));
    CHECK_EQ(native.v4.sin_addr.s_addr, inet_addr("192.0.2.7"));
    CHECK_EQ(native.v4.sin_zero[0], 0);
    memset(&back, 0xFF, sizeof back);
    address_from_native(&native, &back);
    CHECK(!memcmp(&back, &four, sizeof back));
    six.sin6_family = 0;
    CHECK_EQ(address_to_native(&six, &native), sizeof(struct sockaddr_in6));
    CHECK_EQ(native.v6.sin6_family, AF_INET6);
    six.sin6_family = AF_INET6;
    address_from_native(&native, &back);
    CHECK(!memcmp(&back, &six, sizeof back));
}

static void an_address_is_said_with_its_scope(void) {
    char text[ADDRESS_TEXT];
    struct sockaddr_in6 four = at("::ffff:192.0.2.7"), six = at("fe80::1:2");
    four.sin6_scope_id = 3;
    CHECK(!strcmp(address_text(&four, text), "192.0.2.7"));
    CHECK(!strcmp(address_text(&six, text), "fe80::1:2"));
    six.sin6_scope_id = 4294967295u;
    CHECK(address_text(&six, text) == text && !strcmp(text, "fe80::1:2%4294967295"));
    six = at("2001:1111:2222:3333:4444:5555:6666:7777");
    six.sin6_scope_id = 4294967295u;
    CHECK(!strcmp(address_text(&six, text), "2001:1111:2222:3333:4444:5555:6666:7777%4294967295"));
}

/* ---------------------------------------------------------------- names */

static int open_a_name(void) {
    struct abstract_name name;
    abstract_name(&name, "rnic/test/none");
    return abstract_open(&name);
}

static int send_to_a_name(void) {
    struct abstract_name name;
    struct iovec iov = {NULL, 0};
    abstract_name(&name, "rnic/test/none");
    return abstract_send(&name, &iov, 1);
}

static void a_name_is_taken_and_spoken_to(void) {
    struct abstract_name name;
    struct iovec iov[2] = {{(void *)(uintptr_t)"ab", 2}, {(void *)(uintptr_t)"cd", 2}};
    char in[8];
    abstract_name(&name, "rnic/test/%d", 17);
    CHECK(name.un.sun_family == AF_UNIX && name.un.sun_path[0] == '\0' &&
          !strcmp(name.un.sun_path + 1, "rnic/test/17"));
    CHECK_EQ(name.length, offsetof(struct sockaddr_un, sun_path) + 1 + 12);
    int before = check_descriptors(), fd = abstract_open(&name);
    CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC && (fcntl(fd, F_GETFL) & O_NONBLOCK));
    CHECK_EQ(abstract_open(&name), -EADDRINUSE);
    CHECK_EQ(abstract_send(&name, iov, 2), 0);
    CHECK(recv(fd, in, sizeof in, 0) == 4 && !memcmp(in, "abcd", 4));
    int n = 0;
    while (abstract_send(&name, iov, 1) == 0)
        n++;
    CHECK(n > 2 && abstract_send(&name, iov, 1) == -EAGAIN);
    CHECK_EQ(check_descriptors(), before + 1);
    close(fd);
    CHECK_EQ(abstract_send(&name, iov, 1), -ECONNREFUSED);
    CHECK_EQ(check_descriptors(), before);
    CHECK_EQ(without_descriptors(open_a_name), -EMFILE);
    CHECK_EQ(without_descriptors(send_to_a_name), -EMFILE);
}

static void a_name_that_is_too_long_is_cut(void) {
    struct abstract_name name;
    abstract_name(&name, "%0200d", 1);
    CHECK_EQ(name.length, sizeof name.un - 1);
    CHECK_EQ(name.un.sun_path[sizeof name.un.sun_path - 1], 0);
}

static void the_kernel_tells_who_sent(void) {
    struct abstract_name name;
    union abstract_control control;
    char byte;
    uid_t uid = 12345;
    struct iovec iov = {&byte, 1};
    abstract_name(&name, "rnic/test/sender");
    int fd = abstract_open(&name), on = 1;
    for (int creds = 0; creds < 2; creds++) {
        struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control};
        mh.msg_controllen = sizeof control;
        setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &creds, sizeof on);
        CHECK_EQ(abstract_send(&name, &iov, 1), 0);
        CHECK_EQ(recvmsg(fd, &mh, 0), 1);
        CHECK_EQ(abstract_sender(&mh, &uid), creds);
        CHECK_EQ(uid, creds ? getuid() : 12345);
    }
    struct msghdr mh = {.msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&mh);
    *c = (struct cmsghdr){CMSG_LEN(3 * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    CHECK(!abstract_sender(&mh, &uid));
    *c = (struct cmsghdr){CMSG_LEN(3 * sizeof(int)), SOL_UDP, SCM_CREDENTIALS};
    CHECK(!abstract_sender(&mh, &uid));
    close(fd);
}

static int open_a_listener(void) {
    struct abstract_name name;
    abstract_name(&name, "rnic/test/none");
    return listen_open(&name);
}

static void a_listener_has_a_name(void) {
    struct abstract_name name;
    struct sockaddr_in6 four = at("::ffff:192.0.2.7");
    int on = 0;
    socklen_t n = sizeof on;
    listen_any_name(&name, 0x12AB, false, 7);
    CHECK(!strcmp(name.un.sun_path + 1, "rnic/1/listen/00000000000012ab/any6%7"));
    listen_any_name(&name, 0x12AB, true, 7);
    CHECK(!strcmp(name.un.sun_path + 1, "rnic/1/listen/00000000000012ab/any4%7"));
    listen_name(&name, 0x12AB, &four);
    CHECK(!strcmp(name.un.sun_path + 1, "rnic/1/listen/00000000000012ab/192.0.2.7"));
    int before = check_descriptors(), fd = listen_open(&name);
    CHECK(fd >= 0 && getsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, &n) == 0 && on == 1);
    CHECK_EQ(listen_open(&name), -EADDRINUSE);
    CHECK(!listen_taken(&name)); /* it has no lifeline */
    struct lifeline life;
    CHECK_EQ(lifeline_open(&life, &name), 0);
    CHECK(listen_taken(&name));
    CHECK_EQ(check_descriptors(), before + 2);
    lifeline_close(&life);
    CHECK(!listen_taken(&name));
    close(fd);
    CHECK_EQ(without_descriptors(open_a_listener), -EMFILE);
}

/* ---------------------------------------------------------------- UDP */

static int value_of(int fd, int level, int name) {
    int value = -1;
    socklen_t n = sizeof value;
    CHECK_EQ(getsockopt(fd, level, name, &value, &n), 0);
    return value;
}

static int open_udp(void) {
    struct sockaddr_in6 a = {.sin6_family = AF_INET6};
    return udpsock_open(&a);
}

/* At that address, unless it is not to be had here. */
static int bound_socket(const struct sockaddr_in6 *to, uint16_t port) {
    int fd = udpsock_open(to), rc = fd < 0 ? fd : udpsock_bind(fd, to, port);
    if (rc == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    CHECK(!address_is_v4(to) && (rc == -EADDRNOTAVAIL || rc == -EAFNOSUPPORT));
    printf("# no ::1 here\n");
    return -1;
}

static void a_udp_socket_sends_what_the_icrc_is_for(void) {
    struct sockaddr_in6 four = at("::ffff:127.0.0.1");
    int fd = bound_socket(&four, 0);
    CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC && (fcntl(fd, F_GETFL) & O_NONBLOCK));
    CHECK_EQ(value_of(fd, IPPROTO_IP, IP_MTU_DISCOVER), IP_PMTUDISC_DO);
    CHECK_EQ(without_descriptors(open_udp), -EMFILE);
    CHECK(udpsock_port(fd) != 0);
    CHECK_EQ(udpsock_port(-1), 0);
    four.sin6_addr.s6_addr[12] = 203;
    CHECK_EQ(udpsock_bind(fd, &four, 0), -EADDRNOTAVAIL);
    for (int show = 1; show >= 0; show--) {
        udpsock_show_hops(fd, true, show);
        udpsock_show_tclass(fd, true, show);
        CHECK_EQ(value_of(fd, IPPROTO_IP, IP_RECVTTL), show);
        CHECK_EQ(value_of(fd, IPPROTO_IP, IP_RECVTOS), show);
    }
    CHECK(udpsock_tclass(fd, true, 0x20));
    CHECK_EQ(value_of(fd, IPPROTO_IP, IP_TOS), 0x20);
    CHECK(!udpsock_set(fd, SOL_SOCKET, 9999, 1));
    close(fd);
}

static void so_does_one_of_ipv6(void) {
    struct sockaddr_in6 six = at("::1");
    int fd = bound_socket(&six, 4792);
    if (fd < 0)
        return;
    CHECK_EQ(value_of(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER), IPV6_PMTUDISC_DO);
    CHECK_EQ(value_of(fd, IPPROTO_IPV6, IPV6_V6ONLY), 1);
    CHECK_EQ(value_of(fd, IPPROTO_UDP, UDP_NO_CHECK6_RX), 1);
    CHECK_EQ(udpsock_port(fd), htons(4792));
    for (int show = 1; show >= 0; show--) {
        udpsock_show_hops(fd, false, show);
        udpsock_show_tclass(fd, false, show);
        CHECK_EQ(value_of(fd, IPPROTO_IPV6, IPV6_RECVHOPLIMIT), show);
        CHECK_EQ(value_of(fd, IPPROTO_IPV6, IPV6_RECVTCLASS), show);
        CHECK_EQ(value_of(fd, IPPROTO_IPV6, 11 /* IPV6_FLOWINFO */), show);
    }
    CHECK(udpsock_tclass(fd, false, 0x40));
    CHECK_EQ(value_of(fd, IPPROTO_IPV6, IPV6_TCLASS), 0x40);
    close(fd);
}

/* ---------------------------------------------------------------- multicast */

static void some_addresses_are_groups(void) {
    static const struct {
        const char *text;
        bool group;
    } cases[] = {{"::ffff:224.0.0.1", true},
                 {"::ffff:239.255.255.255", true},
                 {"::ffff:223.255.255.255", false},
                 {"::ffff:240.0.0.1", false},
                 {"ff02::1", true},
                 {"fe80::1", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sockaddr_in6 a = at(cases[i].text);
        check_note("%s", cases[i].text);
        CHECK_EQ(group_is_multicast(&a.sin6_addr), cases[i].group);
    }
    check_note("%s", "");
}

static void lo_takes_multicast(void) {
    struct ifreq ifr = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING | IFF_MULTICAST};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    (void)ioctl(fd, SIOCSIFFLAGS, &ifr);
    close(fd);
}

/* What a socket has that asks for so much, as far as the system grants it. */
static int granted(int bytes) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
    int much = value_of(fd, SOL_SOCKET, SO_RCVBUF);
    close(fd);
    return much;
}

/* Members of a group get each its own copy of what one sends to it, by the device that is named. */
static void group_of(const char *source, const char *text, int level, int loop, int ttl) {
    struct sockaddr_in6 from = at(source), group = at(text), other = group;
    union address_native to;
    char in[8];
    int before = check_descriptors();
    other.sin6_addr.s6_addr[15]++;
    group.sin6_port = htons(ROCE_UDP_PORT);
    group.sin6_scope_id = address_is_v4(&group) ? 0 : LO;
    int a = group_open(&group, LO), b = group_open(&group, LO), c = group_open(&other, LO), fd = udpsock_open(&from);
    CHECK(a >= 0 && b >= 0 && c >= 0 && fd >= 0);
    CHECK_EQ(value_of(a, SOL_SOCKET, SO_RCVBUF), granted(1 << 20));
    CHECK_EQ(value_of(a, level, level == IPPROTO_IP ? IP_MULTICAST_ALL : IPV6_MULTICAST_ALL), 0);
    CHECK_EQ(udpsock_bind(fd, &from, 0), 0);
    CHECK_EQ(group_send_by(fd, address_is_v4(&from), LO), 0);
    CHECK_EQ(value_of(fd, level, loop), 1);
    CHECK_EQ(value_of(fd, level, ttl), 64);
    socklen_t n = address_to_native(&group, &to);
    int rc = sendto(fd, "abc", 3, 0, &to.any, n) == 3 ? 0 : -errno;
    struct pollfd wait[2] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
    CHECK_EQ(group_reach(&from, &group, LO), rc);
    CHECK(!address_is_v4(&from) || rc == 0); /* lo has no way to groups of IPv6 */
    CHECK(rc != 0 || (poll(&wait[0], 1, 60000) == 1 && poll(&wait[1], 1, 60000) == 1));
    CHECK(rc != 0 ||
          (recv(a, in, sizeof in, 0) == 3 && recv(b, in, sizeof in, 0) == 3 && recv(c, in, sizeof in, 0) < 0));
    CHECK(group_send_by(fd, address_is_v4(&from), 99) < 0 && group_open(&group, 99) < 0);
    CHECK(group_reach(&from, &group, 99) < 0);
    close(a);
    close(b);
    close(c);
    close(fd);
    CHECK_EQ(check_descriptors(), before);
}

static void a_group_of_ipv4_gets_what_is_sent_to_it(void) {
    group_of("::ffff:127.0.0.1", "::ffff:239.1.2.3", IPPROTO_IP, IP_MULTICAST_LOOP, IP_MULTICAST_TTL);
}

static void a_group_of_ipv6_gets_what_is_sent_to_it(void) {
    struct sockaddr_in6 six = at("::1");
    int fd = bound_socket(&six, 0);
    if (fd < 0)
        return;
    close(fd);
    group_of("::1", "ff02::1:3", IPPROTO_IPV6, IPV6_MULTICAST_LOOP, IPV6_MULTICAST_HOPS);
}

static int open_a_group(void) {
    struct sockaddr_in6 group = at("ff02::1:3");
    int rc = group_open(&group, LO);
    return rc == group_reach(&group, &group, LO) ? rc : 0;
}

static void without_descriptors_there_is_no_group(void) { CHECK_EQ(without_descriptors(open_a_group), -EMFILE); }

/* ---------------------------------------------------------------- a kernel that lacks something */

static int open_udp_of_ipv4(void) {
    struct sockaddr_in6 a = at("::ffff:127.0.0.1");
    return udpsock_open(&a);
}

static int open_a_group_of_ipv4(void) {
    struct sockaddr_in6 group = at("::ffff:239.1.2.4");
    return group_open(&group, LO);
}

static int open_a_group_of_ipv6(void) {
    struct sockaddr_in6 group = at("ff02::1:4");
    return group_open(&group, LO);
}

static int reach_one_of_ipv4(void) {
    struct sockaddr_in6 from = at("::ffff:127.0.0.1"), group = at("::ffff:239.1.2.4");
    return group_reach(&from, &group, LO);
}

static int reach_one_of_ipv6(void) {
    struct sockaddr_in6 from = at("::1"), group = at("ff02::1:4");
    group.sin6_scope_id = LO;
    return group_reach(&from, &group, LO);
}

static int open_one_port(void) {
    struct sockaddr_in6 a = at("::ffff:127.0.0.1");
    struct slot slot = {.fd = -1, .number = 2};
    struct port port;
    int rc = port_open(&port, &a, LO, &slot, 0, 0, NULL);
    if (rc == 0)
        port_close(&port);
    return rc;
}

static int listen_for_packets(void) {
    struct rnic_err err;
    int fd = packet_open(&err);
    if (fd < 0)
        return fd;
    int rc = packet_listen(fd, LO, true, &err);
    CHECK(rc == 0 || strstr(err.text, "cannot receive frames"));
    close(fd);
    return rc;
}

/* What works without says what it lacks, and leaves nothing behind. */
static void an_option_that_the_kernel_lacks_is_told(void) {
    static const struct {
        int (*call)(void);
        int level, name;
    } rows[] = {
        {open_udp_of_ipv4, IPPROTO_IP, IP_MTU_DISCOVER},
        {open_udp, IPPROTO_IPV6, IPV6_MTU_DISCOVER},
        {open_udp, IPPROTO_IPV6, IPV6_V6ONLY},
        {open_udp, IPPROTO_UDP, UDP_NO_CHECK6_RX},
        {open_a_listener, SOL_SOCKET, SO_PASSCRED},
        {open_a_group_of_ipv4, SOL_SOCKET, SO_REUSEADDR},
        {open_a_group_of_ipv4, IPPROTO_IP, IP_MULTICAST_ALL},
        {open_a_group_of_ipv4, IPPROTO_IP, IP_ADD_MEMBERSHIP},
        {open_a_group_of_ipv6, SOL_SOCKET, SO_REUSEADDR},
        {open_a_group_of_ipv6, IPPROTO_IPV6, 29 /* IPV6_MULTICAST_ALL */},
        {open_a_group_of_ipv6, IPPROTO_IPV6, IPV6_JOIN_GROUP},
        {reach_one_of_ipv4, IPPROTO_IP, IP_MULTICAST_IF},
        {reach_one_of_ipv4, IPPROTO_IP, IP_MULTICAST_LOOP},
        {reach_one_of_ipv4, IPPROTO_IP, IP_MULTICAST_TTL},
        {reach_one_of_ipv6, IPPROTO_IPV6, IPV6_MULTICAST_IF},
        {reach_one_of_ipv6, IPPROTO_IPV6, IPV6_MULTICAST_LOOP},
        {reach_one_of_ipv6, IPPROTO_IPV6, IPV6_MULTICAST_HOPS},
        {open_one_port, SOL_SOCKET, SO_REUSEPORT},
        {listen_for_packets, SOL_PACKET, PACKET_AUXDATA},
        {listen_for_packets, SOL_SOCKET, SO_ATTACH_FILTER},
        {listen_for_packets, SOL_PACKET, PACKET_ADD_MEMBERSHIP},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int before = check_descriptors();
        check_note("row %zu", i);
        lacks.level = rows[i].level, lacks.name = rows[i].name;
        int rc = rows[i].call();
        lacks.level = lacks.name = -1;
        if (rc == -EAFNOSUPPORT || rc == -EADDRNOTAVAIL || rc == -EPERM) {
            printf("# row %zu: not to be had here\n", i);
            continue;
        }
        CHECK_EQ(rc, -ENOPROTOOPT);
        CHECK_EQ(check_descriptors(), before);
    }
}

/* ---------------------------------------------------------------- descriptor 0 */

static struct sockaddr_in6 loopback;

static int reach_a_group(void) {
    struct sockaddr_in6 group = at("::ffff:239.1.2.3");
    return group_reach(&loopback, &group, LO);
}

static int open_a_socket(void) { return udpsock_open(&loopback); }

static int take_packets(void) {
    int fd = packet_open(NULL);
    return fd == -EPERM ? socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0) : fd;
}

static int join_a_group(void) {
    struct sockaddr_in6 group = at("::ffff:239.1.2.3");
    return group_open(&group, LO);
}

static int open_a_lifeline(void) {
    struct abstract_name name;
    struct lifeline life;
    abstract_name(&name, "rnic/test/none");
    int rc = lifeline_open(&life, &name);
    return rc ? rc : life.fd;
}

static int watch_nobody(void) {
    struct abstract_name name;
    abstract_name(&name, "rnic/test/nobody");
    return lifeline_watch(&name);
}

/* Somebody listens: then the descriptor of the look is closed again. */
static int look_at_a_listener(void) {
    struct abstract_name name;
    struct lifeline life;
    abstract_name(&name, "rnic/test/none");
    int filler = dup(1), rc = lifeline_open(&life, &name);
    close(filler);
    rc = rc ? rc : !listen_taken(&name);
    lifeline_close(&life);
    return rc;
}

static int claim_a_slot(void) {
    struct slot slot;
    int rc = slot_claim(&slot, NULL);
    if (rc == 0)
        slot_release(&slot);
    return rc;
}

static int listen_for_lanes(void) {
    int fd = lane_listen(SLOT_COUNT + 7);
    CHECK_EQ(lane_listen(SLOT_COUNT + 7), -EADDRINUSE);
    return fd;
}

static int open_a_port(void) {
    struct slot slot = {.fd = -1, .number = 1};
    struct port port;
    CHECK_EQ(port_open(&port, &loopback, LO, &slot, 0, 0, NULL), 0);
    CHECK(port.rx_fd == 0 && port.tx_fd == 0);
    port_abandon(&port);
    port_close(&port);
    return 0;
}

static int check_ids(void) {
    struct port port = {.addr = loopback};
    int rc = port_check_ids(&port, NULL);
    return rc == -ENODATA ? 0 : rc; /* the kernel shows no header, as at other descriptors */
}

/* A program that has closed its standard input gets it next. */
static void descriptor_0_is_one_as_any_other(void) {
    static const struct {
        int (*call)(void);
        int gives; /* 0: a descriptor, else what there is to say */
    } rows[] = {{open_a_name, 0},     {send_to_a_name, -ECONNREFUSED},
                {open_a_socket, 0},   {reach_a_group, 1},
                {join_a_group, 0},    {take_packets, 0},
                {open_a_lifeline, 0}, {watch_nobody, -ECONNREFUSED},
                {open_a_listener, 0}, {look_at_a_listener, 1},
                {claim_a_slot, 1},    {listen_for_lanes, 0},
                {open_a_port, 1},     {check_ids, 1}};
    int kept = fcntl(0, F_DUPFD_CLOEXEC, 3);
    loopback = at("::ffff:127.0.0.1");
    close(0);
    int before = check_descriptors();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        CHECK_EQ(rows[i].call(), rows[i].gives < 0 ? rows[i].gives : 0);
        CHECK_EQ(check_descriptors(), before + (rows[i].gives == 0));
        CHECK_EQ(close(0), rows[i].gives == 0 ? 0 : -1);
    }
    if (kept >= 0) {
        dup2(kept, 0);
        close(kept);
    }
}

/* ---------------------------------------------------------------- frames */

/* What the kernel tells of a frame, if a test says it. */
static const struct tpacket_auxdata *tells;
static struct cmsghdr tells_as;
static int tells_error;

ssize_t recvmsg(int fd, struct msghdr *msg, int flags) {
    size_t room = msg->msg_controllen;
    ssize_t n = syscall(SYS_recvmsg, fd, msg, flags);
    if (tells) {
        msg->msg_controllen = room;
        *CMSG_FIRSTHDR(msg) = tells_as;
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(msg)), tells, sizeof *tells);
    }
    errno = tells_error ? tells_error : errno;
    return tells_error ? -1 : n;
}

/* The kernel takes a tag out, and says which; it is put back. */
static void a_frame_is_as_it_was_on_the_wire(void) {
    enum { TAGGED = TP_STATUS_VLAN_VALID, KIND_KNOWN = TP_STATUS_VLAN_TPID_VALID, PARTIAL = TP_STATUS_CSUMNOTREADY };
    static const struct {
        uint32_t status;
        size_t less; /* bytes that its message is too short */
        int level, type;
        bool tag, partial;
        uint16_t ethertype;
    } rows[] = {{TAGGED, 0, SOL_PACKET, PACKET_AUXDATA, true, false, 0x8100},
                {TAGGED | KIND_KNOWN | PARTIAL, 0, SOL_PACKET, PACKET_AUXDATA, true, true, 0x88A8},
                {KIND_KNOWN | PARTIAL, 0, SOL_PACKET, PACKET_AUXDATA, false, true, 0},
                {0, 0, SOL_PACKET, PACKET_AUXDATA, false, false, 0},
                {TAGGED | PARTIAL, 1, SOL_PACKET, PACKET_AUXDATA, false, false, 0},
                {TAGGED | PARTIAL, 0, SOL_SOCKET, PACKET_AUXDATA, false, false, 0},
                {TAGGED | PARTIAL, 0, SOL_PACKET, PACKET_AUXDATA + 1, false, false, 0}};
    uint8_t frame[20], want[24], buffer[64], *at_;
    bool partial;
    int fds[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    for (uint8_t i = 0; i < sizeof frame; i++)
        frame[i] = (uint8_t)(i + 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t n = 11; n <= 20; n++) {
            const struct tpacket_auxdata aux = {
                .tp_status = rows[i].status, .tp_vlan_tci = 0x2345, .tp_vlan_tpid = 0x88A8};
            bool tag = rows[i].tag && n >= 12; /* else there are no addresses for it to stand behind */
            check_note("row %zu, %zu bytes", i, n);
            tells = &aux;
            tells_as = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof aux) - rows[i].less,
                                        .cmsg_level = rows[i].level,
                                        .cmsg_type = rows[i].type};
            memcpy(want, frame, n);
            if (tag) {
                memcpy(want + 12,
                       (uint8_t[]){(uint8_t)(rows[i].ethertype >> 8), (uint8_t)rows[i].ethertype, 0x23, 0x45}, 4);
                memcpy(want + 16, frame + 12, n - 12);
            }
            CHECK_EQ(send(fds[0], frame, n, 0), (ssize_t)n);
            int got = packet_receive(fds[1], buffer, sizeof buffer, &at_, &partial);
            tells = NULL;
            CHECK_EQ(got, (int)n + 4 * tag);
            CHECK(!memcmp(at_, want, (size_t)got));
            CHECK(at_ == buffer + (tag ? 0 : PACKET_ROOM));
            CHECK_EQ(partial, rows[i].partial);
        }
    static const int errors[][2] = {{EINTR, EAGAIN}, {ENETDOWN, EAGAIN}, {EAGAIN, EAGAIN}, {EBADF, EBADF}};
    for (size_t i = 0; i < 4; i++) {
        tells_error = errors[i][0];
        int got = packet_receive(fds[1], buffer, sizeof buffer, &at_, &partial);
        tells_error = 0;
        CHECK_EQ(got, -errors[i][1]);
    }
    close(fds[0]);
    close(fds[1]);
}

static void frames_go_out_and_come_in(void) {
    struct rnic_err err = {0};
    uint8_t frame[60] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xB5, 7}, buffer[256], *at_;
    bool partial = true;
    int fd = packet_open(&err);
    if (fd == -EPERM) {
        CHECK(strstr(err.text, "CAP_NET_RAW") != NULL);
        printf("# %s\n", err.text);
        return;
    }
    CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC && (fcntl(fd, F_GETFL) & O_NONBLOCK));
    CHECK_EQ(packet_send(fd, LO, frame, sizeof frame), 0);
    CHECK_EQ(packet_receive(fd, buffer, sizeof buffer, &at_, &partial), -EAGAIN); /* it only sends */
    CHECK_EQ(packet_listen(fd, LO, false, &err), 0);
    CHECK(value_of(fd, SOL_SOCKET, SO_RCVBUF) >= granted(4 << 20));
    CHECK_EQ(value_of(fd, SOL_PACKET, PACKET_AUXDATA), 1);
    CHECK_EQ(packet_send(fd, LO, frame, sizeof frame), 0);
    struct pollfd wait = {fd, POLLIN, 0};
    CHECK_EQ(poll(&wait, 1, 60000), 1);
    CHECK_EQ(packet_receive(fd, buffer, sizeof buffer, &at_, &partial), sizeof frame);
    CHECK(at_ == buffer + PACKET_ROOM && !memcmp(at_, frame, sizeof frame) && !partial);
    CHECK_EQ(packet_send(fd, LO, frame, sizeof frame), 0);
    CHECK_EQ(poll(&wait, 1, 60000), 1);
    buffer[40] = 0xEE;
    CHECK_EQ(packet_receive(fd, buffer, 40, &at_, &partial), sizeof frame); /* cut off */
    CHECK_EQ(buffer[40], 0xEE);
    CHECK(packet_send(fd, 99, frame, sizeof frame) < 0 && packet_listen(fd, 99, false, &err) < 0);
    CHECK(strstr(err.text, "cannot receive frames") != NULL);
    close(fd);
}

int main(void) {
    live_isolate();
    lo_takes_multicast();
    RUN(an_address_goes_to_its_family_and_back);
    RUN(an_address_is_said_with_its_scope);
    RUN(a_name_is_taken_and_spoken_to);
    RUN(a_name_that_is_too_long_is_cut);
    RUN(the_kernel_tells_who_sent);
    RUN(a_listener_has_a_name);
    RUN(a_udp_socket_sends_what_the_icrc_is_for);
    RUN(so_does_one_of_ipv6);
    RUN(some_addresses_are_groups);
    RUN(a_group_of_ipv4_gets_what_is_sent_to_it);
    RUN(a_group_of_ipv6_gets_what_is_sent_to_it);
    RUN(without_descriptors_there_is_no_group);
    RUN(an_option_that_the_kernel_lacks_is_told);
    RUN(descriptor_0_is_one_as_any_other);
    RUN(a_frame_is_as_it_was_on_the_wire);
    RUN(frames_go_out_and_come_in);
    return check_done();
}
