/* SPDX-License-Identifier: Apache-2.0
 *
 * The device and its netdev: what the kernel's notices concern, and what a change of the netdev does, told by hand.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "check.h"
#include "dev/dev.h"

/* ---------------------------------------------------------------- notices */

static uint8_t notices[512];
static uint32_t length;

static void notice(uint16_t type, const void *body, uint32_t n) {
    struct nlmsghdr h = {.nlmsg_len = NLMSG_LENGTH(n), .nlmsg_type = type};
    memcpy(notices + length, &h, sizeof h);
    memcpy(notices + length + NLMSG_HDRLEN, body, n);
    length += NLMSG_ALIGN(h.nlmsg_len);
}

static void a_notice_concerns_the_netdev_that_it_names(void) {
    static const uint16_t links[] = {RTM_NEWLINK, RTM_DELLINK}, addresses[] = {RTM_NEWADDR, RTM_DELADDR};
    struct ifinfomsg link = {.ifi_index = 7};
    struct ifaddrmsg address = {.ifa_index = 7};
    for (int i = 0; i < 2; i++) {
        length = 0;
        notice(links[i], &link, sizeof link);
        CHECK(follow_concerns(notices, length, 7) && !follow_concerns(notices, length, 8));
        length = 0;
        notice(addresses[i], &address, sizeof address);
        CHECK(follow_concerns(notices, length, 7) && !follow_concerns(notices, length, 8));
    }
    length = 0;
    notice(RTM_NEWROUTE, &link, sizeof link);
    CHECK(!follow_concerns(notices, length, 7));
    notice(RTM_DELADDR, &address, sizeof address); /* behind another one */
    CHECK(follow_concerns(notices, length, 7));
}

/* The last one's length need not be a multiple of 4: rounded up, it reaches beyond what was received. */
static void the_last_notice_may_end_within_a_word(void) {
    struct rtmsg route = {.rtm_family = AF_INET};
    for (uint32_t odd = 1; odd < 4; odd++) {
        uint8_t *exact = malloc(NLMSG_LENGTH(sizeof route) + odd);
        struct nlmsghdr h = {.nlmsg_len = (uint32_t)NLMSG_LENGTH(sizeof route) + odd, .nlmsg_type = RTM_NEWROUTE};
        CHECK(exact != NULL);
        memset(exact, 0, h.nlmsg_len);
        memcpy(exact, &h, sizeof h);
        CHECK(!follow_concerns(exact, h.nlmsg_len, 7));
        free(exact);
    }
}

static void notices_that_are_cut_off_are_not_read(void) {
    struct ifinfomsg link = {.ifi_index = 7};
    length = 0;
    notice(RTM_NEWLINK, &link, sizeof link);
    for (uint32_t n = 0; n < length; n++)
        CHECK(!follow_concerns(notices, n, 7));
    for (uint32_t n = NLMSG_HDRLEN; n < length; n++) { /* a length that says so itself */
        uint8_t copy[512];
        memcpy(copy, notices, length);
        ((struct nlmsghdr *)(void *)copy)->nlmsg_len = n;
        CHECK(!follow_concerns(copy, n, 7));
    }
    memset(notices, 0xFF, sizeof notices);
    CHECK(!follow_concerns(notices, sizeof notices, 7));
}

/* ---------------------------------------------------------------- what a change does */

static struct rnic_context *ctx;

static struct dev *open_dev(void) {
    struct rnic_err err = {0};
    if (rnic_soft.open("roce_lo", NULL, &ctx, &err))
        check_fail(__FILE__, __LINE__, "%s", err.text);
    return dev_of(ctx);
}

static int next_event(void) {
    struct rnic_async_event event;
    return ctx->ops->get_async_event(ctx, &event, NULL) ? -1 : event.event_type;
}

static void tell(const struct netdev *fresh) {
    dev_lock(dev_of(ctx));
    follow_apply(&dev_of(ctx)->net, fresh, run_clock());
    dev_unlock(dev_of(ctx));
}

static union rnic_gid gid(const char *text) {
    union rnic_gid gid = {.raw = {[10] = 0xFF, [11] = 0xFF}};
    inet_pton(AF_INET, text, gid.raw + 12);
    return gid;
}

static bool has(int index, const char *text) {
    struct rnic_gid_entry entry;
    union rnic_gid want = text ? gid(text) : (union rnic_gid){{0}};
    CHECK_EQ(ctx->ops->query_gid(ctx, 1, index, &entry, NULL), 0);
    return !memcmp(&entry.gid, &want, sizeof want);
}

static void a_port_goes_down_and_up(void) {
    struct netdev net = open_dev()->net.netdev;
    struct rnic_port_attr attr;
    tell(&net);
    CHECK_EQ(next_event(), -1);
    net.up = false;
    tell(&net);
    tell(&net);
    CHECK_EQ(next_event(), RNIC_EVENT_PORT_ERR);
    CHECK_EQ(next_event(), -1);
    CHECK_EQ(ctx->ops->query_port(ctx, 1, &attr, NULL), 0);
    CHECK_EQ(attr.state, RNIC_PORT_DOWN);
    net.up = true;
    net.mtu = 1500;
    tell(&net);
    CHECK_EQ(next_event(), RNIC_EVENT_PORT_ACTIVE);
    CHECK_EQ(ctx->ops->query_port(ctx, 1, &attr, NULL), 0);
    CHECK(attr.state == RNIC_PORT_ACTIVE && attr.active_mtu == RNIC_MTU_1024);
    CHECK_EQ(ctx->ops->close(ctx, NULL), 0);
}

static void addresses_take_and_leave_entries(void) {
    struct netdev net = open_dev()->net.netdev, one = net;
    one.ngids = 1;
    one.gids[0] = gid("127.0.0.1");
    tell(&one);
    while (next_event() >= 0)
        ;
    one.gids[one.ngids++] = gid("127.0.0.2");
    one.gids[one.ngids++] = gid("127.0.0.3");
    tell(&one);
    CHECK_EQ(next_event(), RNIC_EVENT_GID_CHANGE);
    CHECK_EQ(next_event(), -1);
    int first = 0;
    while (!has(first, "127.0.0.2"))
        first++;
    int second = 0;
    while (!has(second, "127.0.0.3"))
        second++;
    one.ngids = 1;
    tell(&one);
    CHECK_EQ(next_event(), RNIC_EVENT_GID_CHANGE);
    CHECK(has(first, NULL) && has(second, NULL));
    one.gids[one.ngids++] = gid("127.0.0.3"); /* back to where it was */
    tell(&one);
    CHECK(has(first, NULL) && has(second, "127.0.0.3"));
    one.gids[one.ngids++] = gid("127.0.0.4");
    tell(&one);
    CHECK(has(first, "127.0.0.4"));
    CHECK_EQ(ctx->ops->close(ctx, NULL), 0);
}

/* Every address comes and goes a thousand times: no descriptor is left, no entry is lost. */
static void entries_and_descriptors_are_given_back(void) {
    struct netdev net = open_dev()->net.netdev;
    int before = dup(0);
    close(before);
    for (int i = 0; i < 1000; i++) {
        struct netdev fresh = net;
        char text[32];
        fresh.ngids = 1;
        fresh.gids[0] = gid("127.0.0.1");
        for (int k = 0; k < i % 3; k++) {
            snprintf(text, sizeof text, "127.0.%d.%d", 1 + k, 1 + i % 250);
            fresh.gids[fresh.ngids++] = gid(text);
        }
        tell(&fresh);
        while (next_event() >= 0)
            ;
    }
    net.ngids = 1;
    net.gids[0] = gid("127.0.0.1");
    tell(&net);
    int after = dup(0);
    close(after);
    CHECK(after <= before);
    CHECK(dev_of(ctx)->net.netdev.ngids <= 6);
    CHECK_EQ(ctx->ops->close(ctx, NULL), 0);
}

static void a_device_that_has_failed_can_only_be_closed(void) {
    struct dev *dev = open_dev();
    struct rnic_device_attr attr;
    struct rnic_err err = {0};
    struct rnic_pd *pd;
    dev_lock(dev);
    device_fail(dev);
    device_fail(dev);
    dev_unlock(dev);
    CHECK_EQ(next_event(), RNIC_EVENT_DEVICE_FATAL);
    CHECK_EQ(next_event(), -1);
    CHECK_EQ(ctx->ops->query_device(ctx, &attr, &err), -EIO);
    CHECK(strstr(err.text, "lo has gone"));
    CHECK_EQ(ctx->ops->alloc_pd(ctx, &pd, NULL), -EIO);
    CHECK_EQ(ctx->ops->close(ctx, NULL), 0);
}

/* ---------------------------------------------------------------- events and their acknowledgement */

static void events_are_acknowledged_by_object(void) {
    struct event_queue q = {0};
    struct rnic_async_event e = {.event_type = RNIC_EVENT_COMM_EST}, got;
    int object[20];
    CHECK_EQ(event_queue_init(&q), 0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 20; i++) {
            e.context = &object[i];
            event_push(&q, &e);
        }
    }
    CHECK_EQ(event_leave(&q, &object[0]), 0); /* both wait: forgotten */
    for (int i = 0; i < 38; i++)
        CHECK(event_take(&q, &got) && got.context != &object[0]);
    CHECK(!event_take(&q, &got));
    CHECK_EQ(event_ack(&q, &object[0]), -EINVAL);
    for (int i = 1; i < 20; i++) {
        CHECK_EQ(event_leave(&q, &object[i]), 2);
        CHECK_EQ(event_ack(&q, &object[i]), 0);
        CHECK_EQ(event_leave(&q, &object[i]), 1);
        CHECK_EQ(event_ack(&q, &object[i]), 0);
        CHECK_EQ(event_leave(&q, &object[i]), 0);
        CHECK_EQ(event_ack(&q, &object[i]), -EINVAL);
    }
    CHECK_EQ(event_ack(&q, NULL), 0);
    CHECK_EQ(q.unacked_count, 0);
    event_push(&q, &e);
    event_push(&q, &e);
    CHECK(event_take(&q, &got));
    event_forget_all(&q); /* one that is not acknowledged, and one that waits */
    CHECK_EQ(event_leave(&q, e.context), 0);
    CHECK(!event_take(&q, &got));
    event_queue_free(&q);
}

/* As root, in a network namespace of its own, where nobody else has UDP 4791. */
static void isolate(void) {
    struct ifreq req = {.ifr_name = "lo"};
    if (geteuid() != 0 || unshare(CLONE_NEWNET) != 0)
        return;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    ioctl(fd, SIOCGIFFLAGS, &req);
    req.ifr_flags |= IFF_UP;
    ioctl(fd, SIOCSIFFLAGS, &req);
    close(fd);
}

int main(void) {
    isolate();
    RUN(a_notice_concerns_the_netdev_that_it_names);
    RUN(the_last_notice_may_end_within_a_word);
    RUN(notices_that_are_cut_off_are_not_read);
    RUN(a_port_goes_down_and_up);
    RUN(addresses_take_and_leave_entries);
    RUN(entries_and_descriptors_are_given_back);
    RUN(a_device_that_has_failed_can_only_be_closed);
    RUN(events_are_acknowledged_by_object);
    return check_done();
}
