/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ages.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER 32768 /* bytes of one datagram of the kernel's, which makes them no longer for a receiver with so much room */

struct age {
    int ifindex;
    union rnic_gid gid;
    uint32_t since;
};

static void set_gid(union rnic_gid *gid, const struct ifaddrmsg *message, const void *address) {
    memset(gid, 0, sizeof *gid);
    if (message->ifa_family == AF_INET6) {
        memcpy(gid->raw, address, sizeof gid->raw);
        return;
    }
    gid->raw[10] = gid->raw[11] = 0xFF;
    memcpy(gid->raw + 12, address, 4);
}

static void add(struct ages *ages, const struct age *age) {
    struct age *longer = realloc(ages->list, (size_t)(ages->n + 1) * sizeof *longer);
    if (!longer)
        return;
    ages->list = longer;
    longer[ages->n++] = *age;
}

/* IFA_LOCAL is the interface's own address, where that and the peer's (IFA_ADDRESS) are told apart. */
static void read_address(struct ages *ages, const struct nlmsghdr *h) {
    const struct ifaddrmsg *message = NLMSG_DATA(h);
    const size_t bytes = message->ifa_family == AF_INET6 ? 16 : 4;
    int left = (int)IFA_PAYLOAD(h), has = 0;
    struct age age = {.ifindex = (int)message->ifa_index};
    for (const struct rtattr *a = IFA_RTA(message); RTA_OK(a, left); a = RTA_NEXT(a, left)) {
        bool local = a->rta_type == IFA_LOCAL, address = local || (a->rta_type == IFA_ADDRESS && has != IFA_LOCAL);
        if (address && RTA_PAYLOAD(a) == bytes) {
            set_gid(&age.gid, message, RTA_DATA(a));
            has = a->rta_type;
        } else if (a->rta_type == IFA_CACHEINFO && RTA_PAYLOAD(a) >= sizeof(struct ifa_cacheinfo)) {
            struct ifa_cacheinfo info;
            memcpy(&info, RTA_DATA(a), sizeof info);
            age.since = info.cstamp;
        }
    }
    if (has)
        add(ages, &age);
}

/* False: that was the last message. */
static bool read_messages(struct ages *ages, const void *answer, size_t n) {
    uint32_t left = (uint32_t)n;
    for (const struct nlmsghdr *h = answer; NLMSG_OK(h, left); h = NLMSG_NEXT(h, left)) {
        if (h->nlmsg_type == NLMSG_DONE || h->nlmsg_type == NLMSG_ERROR)
            return false;
        if (h->nlmsg_type == RTM_NEWADDR && h->nlmsg_len >= NLMSG_LENGTH(sizeof(struct ifaddrmsg)))
            read_address(ages, h);
    }
    return true;
}

/* The kernel has the next part of its answer ready as soon as one is taken. */
static void receive(struct ages *ages, int fd) {
    struct nlmsghdr *answer = malloc(ANSWER);
    for (bool more = answer; more;) {
        struct sockaddr_nl from = {0};
        socklen_t size = sizeof from;
        ssize_t n = recvfrom(fd, answer, ANSWER, MSG_DONTWAIT, (struct sockaddr *)&from, &size);
        if (n <= 0)
            break;
        if (from.nl_pid == 0) /* the kernel's */
            more = read_messages(ages, answer, (size_t)n);
    }
    free(answer);
}

void ages_read(struct ages *ages) {
    const struct {
        struct nlmsghdr h;
        struct ifaddrmsg message;
    } ask = {.h = {.nlmsg_len = sizeof ask, .nlmsg_type = RTM_GETADDR, .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP}};
    *ages = (struct ages){0};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (fd < 0)
        return;
    if (send(fd, &ask, sizeof ask, 0) == (ssize_t)sizeof ask)
        receive(ages, fd);
    close(fd);
}

void ages_free(struct ages *ages) { free(ages->list); }

uint32_t ages_of(const struct ages *ages, int ifindex, const union rnic_gid *gid) {
    for (int i = 0; i < ages->n; i++) {
        if (ages->list[i].ifindex == ifindex && !memcmp(&ages->list[i].gid, gid, sizeof *gid))
            return ages->list[i].since;
    }
    return 0;
}
