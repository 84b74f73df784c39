/* SPDX-License-Identifier: Apache-2.0 */
#include "link/udp/udpsock.h"

#include <errno.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/address.h"

#ifndef IPV6_FLOWINFO
#define IPV6_FLOWINFO 11
#endif

bool udpsock_set(int fd, int level, int option, int value) {
    return setsockopt(fd, level, option, &value, sizeof value) == 0;
}

static bool set_discovery(int fd, bool v4) {
    if (v4) { /* DF is set (IBA CA17-7) */
        return udpsock_set(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
    }
    /* RoCEv2 may leave the UDP checksum 0, as rxe does: the ICRC covers more (IBTA A17.3.2). */
    return udpsock_set(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO) &&
           udpsock_set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1) && udpsock_set(fd, IPPROTO_UDP, UDP_NO_CHECK6_RX, 1);
}

int udpsock_open(const struct sockaddr_in6 *addr) {
    bool v4 = address_is_v4(addr);
    int fd = socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -errno;
    }
    if (!set_discovery(fd, v4)) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    return fd;
}

int udpsock_bind(int fd, const struct sockaddr_in6 *addr, uint16_t port) {
    struct sockaddr_in6 local = *addr;
    union address_native native;
    local.sin6_port = htons(port);
    socklen_t length = address_to_native(&local, &native);
    return bind(fd, &native.any, length) == 0 ? 0 : -errno;
}

uint16_t udpsock_port(int fd) {
    union address_native native = {0};
    struct sockaddr_in6 addr;
    socklen_t length = sizeof native;
    if (getsockname(fd, &native.any, &length) != 0) {
        return 0;
    }
    address_from_native(&native, &addr);
    return addr.sin6_port;
}

static int level_of(bool v4) { return v4 ? IPPROTO_IP : IPPROTO_IPV6; }

/* A kernel that refuses leaves them unknown. */
void udpsock_show_hops(int fd, bool v4, bool show) {
    (void)udpsock_set(fd, level_of(v4), v4 ? IP_RECVTTL : IPV6_RECVHOPLIMIT, show);
    if (!v4) {
        (void)udpsock_set(fd, IPPROTO_IPV6, IPV6_FLOWINFO, show);
    }
}

void udpsock_show_tclass(int fd, bool v4, bool show) {
    (void)udpsock_set(fd, level_of(v4), v4 ? IP_RECVTOS : IPV6_RECVTCLASS, show);
}

bool udpsock_tclass(int fd, bool v4, uint8_t tclass) {
    return udpsock_set(fd, level_of(v4), v4 ? IP_TOS : IPV6_TCLASS, tclass);
}
