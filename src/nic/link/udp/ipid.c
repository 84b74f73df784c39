/* SPDX-License-Identifier: Apache-2.0
 *
 * Does this kernel put into IP headers what the ICRC is computed for?  A socket that asks for transmit timestamps gets
 * each packet back, headers and all, on its error queue: no privilege needed (net.core.tstamp_allow_data is 1 unless
 * somebody cleared it).
 */
#include <errno.h>
#include <linux/net_tstamp.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/address.h"
#include "base/fail.h"
#include "link/udp/port.h"
#include "link/udp/udpsock.h"

#define LINK_HEADER 14 /* what returns is an Ethernet frame: own addresses are reached over lo */
#define DATAGRAM 16

/* Sends to the socket itself, so that nobody else sees it. Returns the frame's length, or -1. */
static ssize_t send_and_look(int fd, const struct sockaddr_in6 *to, size_t length, uint8_t *frame, size_t size) {
    static const uint8_t data[2 * DATAGRAM] = {PORT_PROBE_OPCODE};
    union address_native native;
    socklen_t n = address_to_native(to, &native);
    if (sendto(fd, data, length, 0, &native.any, n) < 0) {
        return -1;
    }
    struct iovec iov = {frame, size};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
    return recvmsg(fd, &mh, MSG_ERRQUEUE | MSG_DONTWAIT);
}

/* DF alone in the flags, identification 0: the kernel counts segments from there. */
static int judge(const uint8_t *frame, ssize_t length, const char *what, struct rnic_err *err) {
    const uint8_t *ip = frame + LINK_HEADER;
    if (length < LINK_HEADER + 20 || ip[0] != 0x45) {
        return fail(err, -ENODATA, "the kernel does not show the IP headers that it sends");
    }
    unsigned id = (unsigned)ip[4] << 8 | ip[5], flags = (unsigned)ip[6] << 8 | ip[7];
    if (id != 0 || flags != 0x4000) {
        return fail(err, -EPROTO,
                    "this kernel sends %s with IP identification %u and flags 0x%04x, not 0 and DF: peers that check "
                    "the ICRC will drop what rnic sends over IPv4",
                    what, id, flags);
    }
    return 0;
}

static int check_socket(int fd, const struct port *p, struct rnic_err *err) {
    uint8_t frame[256];
    struct sockaddr_in6 to = p->addr;
    int rc = udpsock_bind(fd, &to, 0);
    if (rc != 0 ||
        !udpsock_set(fd, SOL_SOCKET, SO_TIMESTAMPING, SOF_TIMESTAMPING_TX_SCHED | SOF_TIMESTAMPING_SOFTWARE)) {
        return fail(err, -ENODATA, "no timestamps on a UDP socket: %s", strerror(rc != 0 ? -rc : errno));
    }
    to.sin6_port = udpsock_port(fd);
    rc = judge(frame, send_and_look(fd, &to, DATAGRAM, frame, sizeof frame), "a datagram", err);
    if (rc == 0 && p->gso && udpsock_set(fd, SOL_UDP, UDP_SEGMENT, DATAGRAM)) {
        rc = judge(frame, send_and_look(fd, &to, 2 * DATAGRAM, frame, sizeof frame), "a UDP_SEGMENT batch", err);
    }
    return rc;
}

int port_check_ids(const struct port *p, struct rnic_err *err) {
    if (!address_is_v4(&p->addr)) {
        return 0;
    }
    int fd = udpsock_open(&p->addr);
    if (fd < 0) {
        return fail(err, -ENODATA, "no UDP socket: %s", strerror(-fd));
    }
    int rc = check_socket(fd, p, err);
    close(fd);
    return rc;
}
