/* SPDX-License-Identifier: Apache-2.0
 *
 * The device follows its netdev: link state, MTU, addresses, and its end.  The kernel's notices (rtnetlink(7)) only say
 * that something has changed; what is so now is read anew, so that a notice that is lost or out of order does no harm.
 */
#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fail.h"
#include "net/net.h"

#define NOTICES 16384 /* bytes of one datagram of them */
#define AT_ONCE 16    /* datagrams: more of them wait for the next pass */

int follow_open(struct net *net, struct rnic_err *err) {
    struct sockaddr_nl groups = {.nl_family = AF_NETLINK,
                                 .nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR};
    net->notices = malloc(NOTICES);
    if (!net->notices)
        return fail(err, -ENOMEM, "no memory for what the network device says");
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
    if (fd < 0)
        return fail(err, -errno, "no netlink socket to follow the network device with: %s", strerror(errno));
    if (bind(fd, (const struct sockaddr *)&groups, sizeof groups)) {
        int rc = -errno;
        close(fd);
        return fail(err, rc, "cannot follow the network device: %s", strerror(-rc));
    }
    net->follow_fd = fd;
    return 0;
}

void follow_close(struct net *net) {
    if (net->follow_fd >= 0)
        close(net->follow_fd);
    net->follow_fd = -1;
}

/* ---------------------------------------------------------------- what has changed */

static void port_event(struct net *net, int type) {
    struct rnic_async_event e = {.event_type = type, .port_num = 1};
    event_push(&net->nic->events, &e);
}

void follow_apply(struct net *net, const struct netdev *fresh, uint64_t now) {
    bool up = fresh->up && !net->unplugged, changed = up != net->netdev.up;
    pthread_mutex_lock(&net->lock);
    net->netdev.up = up;
    net->netdev.mtu = fresh->mtu;
    pthread_mutex_unlock(&net->lock);
    if (changed)
        port_event(net, up ? RNIC_EVENT_PORT_ACTIVE : RNIC_EVENT_PORT_ERR);
    if (net->kind->follow(net, fresh, now)) {
        net->calls->readdressed(net->owner);
        port_event(net, RNIC_EVENT_GID_CHANGE);
    }
}

void follow_look(struct net *net, uint64_t now) {
    struct netdev fresh;
    int rc = netdev_read(net->netdev.ifindex, &fresh);
    if (rc == -ENODEV)
        net->calls->gone(net->owner);
    else if (rc == 0)
        follow_apply(net, &fresh, now);
    engine_wake(net->run); /* whoever has looked: there may be a socket more to sleep on, and timers */
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

/* A thread that has entered another network namespace would not find the netdev, and take it for gone. */
static void leave_to_engine(struct net *net) {
    net->look_left = true;
    engine_wake(net->run);
}

bool follow_receive(void *owner, uint64_t now) {
    struct net *net = owner;
    bool any = false, concerned = false;
    for (int i = 0; net->follow_fd >= 0 && i < AT_ONCE; i++) {
        struct sockaddr_nl from = {0};
        socklen_t size = sizeof from;
        ssize_t n = recvfrom(net->follow_fd, net->notices, NOTICES, MSG_DONTWAIT, (struct sockaddr *)&from, &size);
        if (n < 0 && errno != ENOBUFS && errno != EINTR) /* ENOBUFS: some are lost */
            break;
        any = true;
        if (n < 0)
            concerned = true;
        else if (from.nl_pid == 0) /* the kernel's */
            concerned |= follow_concerns(net->notices, (uint32_t)n, net->netdev.ifindex);
    }
    bool here = concerned && netdev_space() == net->netdev.space;
    if (here)
        follow_look(net, now);
    else if (concerned)
        leave_to_engine(net);
    return any;
}

static void arm(void *owner, bool armed) {
    struct net *net = owner;
    (void)armed;
    engine_watch_for(net->run, &net->watched_follow, net->follow_fd, EPOLLIN, false);
}

/* A device that has failed looks no more. */
static uint64_t timer_at(const void *owner) {
    const struct net *net = owner;
    if (net->follow_fd < 0)
        return NEVER;
    return net->look_left ? 0 : ports_again(net);
}

static void timer(void *owner, uint64_t now) {
    struct net *net = owner;
    if (now < timer_at(net))
        return;
    net->look_left = false;
    follow_look(net, now);
    ports_put_off(net, now);
}

const struct source follow_source = {
    .name = "follow", .receive_rare = follow_receive, .arm = arm, .timer = timer, .timer_at = timer_at};
