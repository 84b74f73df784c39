/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* struct ip_mreqn */
#endif
#include "link/group/group.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/address.h"
#include "link/udp/port.h"
#include "link/udp/udpsock.h"

#ifndef IPV6_MULTICAST_ALL
#define IPV6_MULTICAST_ALL 29
#endif

#define BUFFER_ASKED (1 << 20)
#define HOPS 64 /* what unicast goes out with; the kernel's own limit for multicast is 1 */

bool group_is_multicast(const struct in6_addr *addr) {
    if (IN6_IS_ADDR_V4MAPPED(addr)) {
        return (addr->s6_addr[12] & 0xF0) == 0xE0;
    }
    return IN6_IS_ADDR_MULTICAST(addr);
}

static int join(int fd, const struct sockaddr_in6 *group, int ifindex) {
    if (address_is_v4(group)) {
        struct ip_mreqn member = {.imr_ifindex = ifindex};
        memcpy(&member.imr_multiaddr, group->sin6_addr.s6_addr + 12, 4);
        return setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &member, sizeof member);
    }
    struct ipv6_mreq member = {.ipv6mr_multiaddr = group->sin6_addr, .ipv6mr_interface = (unsigned)ifindex};
    return setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &member, sizeof member);
}

/* Only what the socket itself has joined: another device's members of the group are no concern of this one. */
static bool only_own(int fd, bool v4) {
    return v4 ? udpsock_set(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0) : udpsock_set(fd, IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0);
}

static int prepare(int fd, const struct sockaddr_in6 *group, int ifindex) {
    bool v4 = address_is_v4(group);
    struct sockaddr_in6 local = *group;
    local.sin6_scope_id = v4 ? 0 : (uint32_t)ifindex;
    if (!udpsock_set(fd, SOL_SOCKET, SO_REUSEADDR, 1) || !udpsock_set(fd, SOL_SOCKET, SO_REUSEPORT, 1)) {
        return -errno; /* the latter: beside our user's socket of all addresses (rdmacm/ibcm/door.py) */
    }
    udpsock_set(fd, SOL_SOCKET, SO_RCVBUF, BUFFER_ASKED);
    udpsock_show_hops(fd, v4, true);
    udpsock_show_tclass(fd, v4, true);
    int rc = udpsock_bind(fd, &local, ROCE_UDP_PORT);
    if (rc == 0 && (!only_own(fd, v4) || join(fd, group, ifindex) != 0)) {
        rc = -errno;
    }
    return rc;
}

int group_open(const struct sockaddr_in6 *group, int ifindex) {
    int fd = udpsock_open(group);
    if (fd < 0) {
        return fd;
    }
    int rc = prepare(fd, group, ifindex);
    if (rc != 0) {
        close(fd);
        return rc;
    }
    return fd;
}

int group_send_by(int fd, bool v4, int ifindex) {
    bool good;
    if (v4) {
        struct ip_mreqn by = {.imr_ifindex = ifindex};
        good = setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &by, sizeof by) == 0 &&
               udpsock_set(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 1) && udpsock_set(fd, IPPROTO_IP, IP_MULTICAST_TTL, HOPS);
    } else {
        good = udpsock_set(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, ifindex) &&
               udpsock_set(fd, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 1) &&
               udpsock_set(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, HOPS);
    }
    return good ? 0 : -errno;
}

/* Connecting a socket of UDP sends nothing, but looks for the way. */
static int try_connect(int fd, const struct sockaddr_in6 *from, const struct sockaddr_in6 *group, int ifindex) {
    union address_native to;
    socklen_t length = address_to_native(group, &to);
    int rc = udpsock_bind(fd, from, 0);
    if (rc == 0) {
        rc = group_send_by(fd, address_is_v4(from), ifindex);
    }
    return rc != 0 || connect(fd, &to.any, length) == 0 ? rc : -errno;
}

int group_reach(const struct sockaddr_in6 *from, const struct sockaddr_in6 *group, int ifindex) {
    int fd = udpsock_open(from);
    if (fd < 0) {
        return fd;
    }
    int rc = try_connect(fd, from, group, ifindex);
    close(fd);
    return rc;
}
