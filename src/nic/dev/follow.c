/* SPDX-License-Identifier: Apache-2.0
 *
 * The device follows its netdev: link state, MTU, addresses, and its end.  The kernel's notices (rtnetlink(7)) only say
 * that something has changed; what is so now is read anew, so that a notice that is lost or out of order does no harm.
 */
#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fail.h"
#include "dev/dev.h"

#define NOTICES 16384 /* bytes of one datagram of them */
#define AT_ONCE 16    /* datagrams: more of them wait for the next pass */

int follow_open(struct dev *dev, struct rnic_err *err) {
    struct sockaddr_nl groups = {.nl_family = AF_NETLINK,
                                 .nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
    if (fd < 0)
        return fail(err, -errno, "no netlink socket to follow the network device with: %s", strerror(errno));
    if (bind(fd, (const struct sockaddr *)&groups, sizeof groups)) {
        int rc = -errno;
        close(fd);
        return fail(err, rc, "cannot follow the network device: %s", strerror(-rc));
    }
    dev->follow_fd = fd;
    return 0;
}

void follow_close(struct dev *dev) {
    if (dev->follow_fd >= 0)
        close(dev->follow_fd);
    dev->follow_fd = -1;
}

/* ---------------------------------------------------------------- what has changed */

static void port_event(struct dev *dev, int type) {
    struct rnic_async_event e = {.event_type = type, .port_num = 1};
    event_push(&dev->nic.events, &e);
}

static void end_qp(struct dev *dev, struct qp *qp) {
    if (qp->state == RNIC_QPS_RESET || qp->state == RNIC_QPS_ERR)
        return;
    qp_error(qp, -1); /* the device's event tells */
    sched_ready(&dev->run, qp);
}

void device_fail(struct dev *dev) {
    struct rnic_async_event e = {.event_type = RNIC_EVENT_DEVICE_FATAL};
    if (atomic_exchange(&dev->fatal, true))
        return;
    event_push(&dev->nic.events, &e);
    qpn_each(dev, end_qp);
    raw_fail(dev);
    ports_close(dev);
    follow_close(dev);
}

void follow_apply(struct dev *dev, const struct netdev *fresh, uint64_t now) {
    bool changed = fresh->up != dev->net.up;
    pthread_mutex_lock(&dev->net_lock);
    dev->net.up = fresh->up;
    dev->net.mtu = fresh->mtu;
    pthread_mutex_unlock(&dev->net_lock);
    if (changed)
        port_event(dev, fresh->up ? RNIC_EVENT_PORT_ACTIVE : RNIC_EVENT_PORT_ERR);
    if (ports_follow(dev, fresh, now)) {
        lanes_tell(dev);
        port_event(dev, RNIC_EVENT_GID_CHANGE);
    }
    ports_measure(dev);
    raw_measure(dev);
}

void follow_look(struct dev *dev, uint64_t now) {
    struct netdev fresh;
    int rc = netdev_read(dev->net.ifindex, &fresh);
    if (rc == -ENODEV)
        device_fail(dev);
    else if (rc == 0)
        follow_apply(dev, &fresh, now);
}

/* ---------------------------------------------------------------- notices */

static int ifindex_of(const struct nlmsghdr *h) {
    switch (h->nlmsg_type) {
    case RTM_NEWLINK:
    case RTM_DELLINK:
        return h->nlmsg_len >= NLMSG_LENGTH(sizeof(struct ifinfomsg))
                   ? ((const struct ifinfomsg *)NLMSG_DATA(h))->ifi_index
                   : 0;
    case RTM_NEWADDR:
    case RTM_DELADDR:
        return h->nlmsg_len >= NLMSG_LENGTH(sizeof(struct ifaddrmsg))
                   ? (int)((const struct ifaddrmsg *)NLMSG_DATA(h))->ifa_index
                   : 0;
    default:
        return 0;
    }
}

/* Lengths are rounded up from one notice to the next, but for the last one's. */
bool follow_concerns(const void *notices, uint32_t n, int ifindex) {
    const struct nlmsghdr *h = notices;
    while (NLMSG_OK(h, n)) {
        uint32_t whole = NLMSG_ALIGN(h->nlmsg_len);
        if (ifindex_of(h) == ifindex)
            return true;
        if (whole >= n)
            break;
        n -= whole;
        h = (const struct nlmsghdr *)(const void *)((const uint8_t *)h + whole);
    }
    return false;
}

static bool receive(void *owner, uint64_t now) {
    struct dev *dev = owner;
    _Alignas(struct nlmsghdr) uint8_t notices[NOTICES];
    bool any = false, concerned = false;
    for (int i = 0; dev->follow_fd >= 0 && i < AT_ONCE; i++) {
        struct sockaddr_nl from = {0};
        socklen_t size = sizeof from;
        ssize_t n = recvfrom(dev->follow_fd, notices, sizeof notices, MSG_DONTWAIT, (struct sockaddr *)&from, &size);
        if (n < 0 && errno != ENOBUFS && errno != EINTR) /* ENOBUFS: some are lost */
            break;
        any = true;
        if (n < 0)
            concerned = true;
        else if (from.nl_pid == 0) /* the kernel's */
            concerned |= follow_concerns(notices, (uint32_t)n, dev->net.ifindex);
    }
    if (concerned)
        follow_look(dev, now);
    return any;
}

static void arm(void *owner, bool armed) {
    struct dev *dev = owner;
    (void)armed;
    engine_watch_for(&dev->run, &dev->watched_follow, dev->follow_fd, EPOLLIN);
}

const struct source follow_source = {.name = "follow", .receive_rare = receive, .arm = arm};
