/* SPDX-License-Identifier: Apache-2.0
 *
 * Network devices of this namespace, read by getifaddrs and SIOCGIF*: what a soft device is made of.
 */
#ifndef RNIC_NET_NETDEV_H
#define RNIC_NET_NETDEV_H

#include <stdbool.h>

#include "nic.h"

#define NETDEV_MAX_GIDS 32

struct netdev {
    char name[16];
    int ifindex;
    uint64_t space; /* the network namespace that it is in, by the number of its inode; 0: not known */
    bool up;        /* IFF_UP and IFF_RUNNING */
    bool loopback;  /* nothing lies between its ends */
    int mtu;        /* bytes */
    uint8_t mac[6]; /* of Ethernet, else 0 */
    uint64_t guid;  /* EUI-64 of the hardware address; if another device has this, too, made from the name as well; of a
                      device without one (lo) made from the name and the host */
    int ngids;
    union rnic_gid gids[NETDEV_MAX_GIDS]; /* IPv6 link-local first, then the oldest; of one moment IPv4 (mapped) first */
};

/* Devices with at least one address, by ifindex: at most max into list; how many there are, or -errno. */
int netdev_list(struct netdev *list, int max, struct rnic_err *err);
int netdev_find(const char *name, struct netdev *out, struct rnic_err *err); /* -ENODEV */
/* The same by number, whatever its name is now and also without an address. -ENODEV: it has gone; else try again later. */
int netdev_read(int ifindex, struct netdev *out);
uint64_t netdev_space(void); /* the network namespace of this thread; 0: not known */
/* Puts addresses where they are in another table of the same netdev, and others into the first entries that are empty there. */
void netdev_arrange(struct netdev *dev, const union rnic_gid table[NETDEV_MAX_GIDS]);

#endif
