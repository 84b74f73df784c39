/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* struct ifreq */
#endif
#include "net/netdev.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "net/ages.h"

/* ---------------------------------------------------------------- GUIDs */

/* The modified EUI-64 of an Ethernet address, as IPv6 and rxe form it: FF:FE in the middle, universal bit flipped. */
static uint64_t guid_of_mac(const uint8_t mac[6]) {
    const uint8_t b[8] = {mac[0] ^ 2, mac[1], mac[2], 0xFF, 0xFE, mac[3], mac[4], mac[5]};
    uint64_t guid = 0;
    for (int i = 0; i < 8; i++) {
        guid = guid << 8 | b[i];
    }
    return guid;
}

static uint64_t fnv1a(uint64_t hash, const char *text) {
    for (; *text != '\0'; text++) {
        hash = (hash ^ (uint8_t)*text) * 0x100000001b3u;
    }
    return hash;
}

/* An individual, locally administered identifier. */
static uint64_t local_guid(uint64_t hash) { return (hash & ~(1ull << 56)) | 1ull << 57; }

/* The same at every boot, another on every host: the machine's id, or where there is none its name. */
static uint64_t guid_of_name(const char *name) {
    char host[128] = "";
    FILE *f = fopen("/etc/machine-id", "re");
    if (f != NULL) {
        if (fgets(host, sizeof host, f) == NULL) {
            host[0] = '\0';
        }
        fclose(f);
    }
    if (host[0] == '\0' && gethostname(host, sizeof host - 1) != 0) {
        host[0] = '\0';
    }
    return local_guid(fnv1a(fnv1a(0xcbf29ce484222325u, host), name));
}

/* Has a device that was made earlier this Ethernet address, too? VLANs and bridges have that of another device. */
static bool is_shared(const struct ifaddrs *all, const uint8_t mac[6], int ifindex) {
    for (; all != NULL; all = all->ifa_next) {
        if (all->ifa_addr == NULL || all->ifa_addr->sa_family != AF_PACKET) {
            continue;
        }
        const struct sockaddr_ll *link = (const struct sockaddr_ll *)(const void *)all->ifa_addr;
        if (link->sll_hatype == ARPHRD_ETHER && link->sll_ifindex < ifindex && memcmp(link->sll_addr, mac, 6) == 0) {
            return true;
        }
    }
    return false;
}

/* No two devices have one GUID: librdmacm finds them by it. */
static uint64_t guid_of(const struct ifaddrs *all, const struct netdev *dev) {
    static const uint8_t zero[6];
    if (memcmp(dev->mac, zero, sizeof zero) == 0) {
        return guid_of_name(dev->name);
    }
    uint64_t guid = guid_of_mac(dev->mac);
    return is_shared(all, dev->mac, dev->ifindex) ? local_guid(fnv1a(guid, dev->name)) : guid;
}

/* ---------------------------------------------------------------- GIDs */

/* The rank of an address in the GID table; -1: not an IP address. */
enum { RANK_LINK_LOCAL, RANK_IPV4, RANK_IPV6 };

static int gid_of(const struct sockaddr *sa, union rnic_gid *gid) {
    if (sa != NULL && sa->sa_family == AF_INET) {
        memset(gid, 0, sizeof *gid);
        gid->raw[10] = gid->raw[11] = 0xFF;
        memcpy(gid->raw + 12, &((const struct sockaddr_in *)(const void *)sa)->sin_addr, 4);
        return RANK_IPV4;
    }
    if (sa != NULL && sa->sa_family == AF_INET6) {
        const struct in6_addr *a = &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr;
        memcpy(gid->raw, a, sizeof gid->raw);
        return IN6_IS_ADDR_LINKLOCAL(a) ? RANK_LINK_LOCAL : RANK_IPV6;
    }
    return -1;
}

/* An address, and what its place in the table follows from. */
struct candidate {
    union rnic_gid gid;
    int rank;
    uint32_t since; /* ages_of() */
};

/* A link-local address is first, as in rxe.  The others come in the order in which the netdev was given them, so that a new
 * address is the last one to each process, whenever it looks; those of the same moment, as at boot, by rank. */
static bool comes_before(const struct candidate *a, const struct candidate *b) {
    if ((a->rank == RANK_LINK_LOCAL) != (b->rank == RANK_LINK_LOCAL)) {
        return a->rank == RANK_LINK_LOCAL;
    }
    return a->since != b->since ? a->since < b->since : a->rank < b->rank;
}

/* Into a list of *n of them that has room for one more than it keeps. */
static void add_candidate(struct candidate *list, int *n, const struct candidate *c) {
    int at = *n;
    for (int i = 0; i < *n; i++) {
        if (memcmp(&list[i].gid, &c->gid, sizeof c->gid) == 0) {
            return;
        }
    }
    for (; at > 0 && comes_before(c, &list[at - 1]); at--) {
        list[at] = list[at - 1];
    }
    list[at] = *c;
    *n += *n < NETDEV_MAX_GIDS;
}

/* An IPv4 address may carry a label, "eth0:1", in place of the device's name. */
static bool is_of(const struct ifaddrs *ifa, const char *name) {
    size_t length = strcspn(ifa->ifa_name, ":");
    return strlen(name) == length && memcmp(ifa->ifa_name, name, length) == 0;
}

struct scan {
    struct ifaddrs *all;
    struct ages ages;
    int fd;
};

static void collect_gids(const struct scan *s, struct netdev *dev) {
    struct candidate list[NETDEV_MAX_GIDS + 1], c;
    int ifindex = (int)if_nametoindex(dev->name);
    for (const struct ifaddrs *ifa = s->all; ifa != NULL; ifa = ifa->ifa_next) {
        if (is_of(ifa, dev->name) && (c.rank = gid_of(ifa->ifa_addr, &c.gid)) >= 0) {
            c.since = ages_of(&s->ages, ifindex, &c.gid);
            add_candidate(list, &dev->ngids, &c);
        }
    }
    for (int i = 0; i < dev->ngids; i++) {
        dev->gids[i] = list[i].gid;
    }
}

/* ---------------------------------------------------------------- all devices */

static int scan_start(struct scan *s, struct rnic_err *err) {
    s->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s->fd < 0) {
        s->fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    }
    if (s->fd < 0) {
        return fail(err, -errno, "no socket to ask for network devices: %s", strerror(errno));
    }
    if (getifaddrs(&s->all) != 0) {
        int rc = -errno;
        close(s->fd);
        return fail(err, rc, "cannot list network devices: %s", strerror(-rc));
    }
    ages_read(&s->ages);
    return 0;
}

static void scan_end(struct scan *s) {
    freeifaddrs(s->all);
    ages_free(&s->ages);
    close(s->fd);
}

uint64_t netdev_space(void) {
    struct stat st;
    return stat("/proc/thread-self/ns/net", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/* Asks the kernel what it knows under the device's name. 0 or -errno (-ENODEV: gone meanwhile). */
static int query(const struct scan *s, struct netdev *dev) {
    struct ifreq req;
    memset(&req, 0, sizeof req);
    memcpy(req.ifr_name, dev->name, sizeof dev->name);
    if (ioctl(s->fd, SIOCGIFINDEX, &req) != 0) {
        return -errno;
    }
    dev->ifindex = req.ifr_ifindex;
    dev->space = netdev_space();
    if (ioctl(s->fd, SIOCGIFFLAGS, &req) != 0) {
        return -errno;
    }
    dev->up = (req.ifr_flags & (IFF_UP | IFF_RUNNING)) == (IFF_UP | IFF_RUNNING);
    dev->loopback = req.ifr_flags & IFF_LOOPBACK;
    if (ioctl(s->fd, SIOCGIFMTU, &req) != 0) {
        return -errno;
    }
    dev->mtu = req.ifr_mtu;
    if (ioctl(s->fd, SIOCGIFHWADDR, &req) != 0) {
        return -errno;
    }
    if (req.ifr_hwaddr.sa_family == ARPHRD_ETHER) {
        memcpy(dev->mac, req.ifr_hwaddr.sa_data, sizeof dev->mac);
    }
    dev->guid = guid_of(s->all, dev);
    return 0;
}

/* The device of that name, when it has an address. */
static int scan_device(const struct scan *s, const char *name, struct netdev *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", name);
    collect_gids(s, out);
    return out->ngids == 0 ? -ENODEV : query(s, out);
}

/* Is this the first entry of its device that holds an IP address? */
static bool is_first(const struct ifaddrs *all, const struct ifaddrs *ifa, const char *name) {
    union rnic_gid gid;
    if (gid_of(ifa->ifa_addr, &gid) < 0) {
        return false;
    }
    for (; all != ifa; all = all->ifa_next) {
        if (is_of(all, name) && gid_of(all->ifa_addr, &gid) >= 0) {
            return false;
        }
    }
    return true;
}

static int by_ifindex(const void *a, const void *b) {
    return ((const struct netdev *)a)->ifindex - ((const struct netdev *)b)->ifindex;
}

/* Adds a device; a list that is full keeps those with the lowest ifindex. */
static void insert(struct netdev *list, int max, int n, const struct netdev *dev) {
    if (n < max) {
        list[n] = *dev;
        qsort(list, (size_t)n + 1, sizeof *list, by_ifindex);
    } else if (max > 0 && dev->ifindex < list[max - 1].ifindex) {
        list[max - 1] = *dev;
        qsort(list, (size_t)max, sizeof *list, by_ifindex);
    }
}

int netdev_list(struct netdev *list, int max, struct rnic_err *err) {
    struct scan s;
    int rc = scan_start(&s, err), n = 0;
    if (rc != 0) {
        return rc;
    }
    for (const struct ifaddrs *ifa = s.all; ifa != NULL; ifa = ifa->ifa_next) {
        char name[IF_NAMESIZE];
        struct netdev dev;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(ifa->ifa_name, ":"), ifa->ifa_name);
        if (is_first(s.all, ifa, name) && scan_device(&s, name, &dev) == 0) {
            insert(list, max, n++, &dev);
        }
    }
    scan_end(&s);
    return n;
}

int netdev_find(const char *name, struct netdev *out, struct rnic_err *err) {
    struct scan s;
    int rc = scan_start(&s, err);
    if (rc != 0) {
        return rc;
    }
    rc = strlen(name) < sizeof out->name ? scan_device(&s, name, out) : -ENODEV;
    scan_end(&s);
    if (rc == -ENODEV) {
        return fail(err, rc, "there is no network device %.32s with an IP address", name);
    }
    return rc == 0 ? 0 : fail(err, rc, "cannot query network device %s: %s", name, strerror(-rc));
}

int netdev_read(int ifindex, struct netdev *out) {
    struct scan s;
    bool gone;
    if (scan_start(&s, NULL) != 0) {
        return -EAGAIN;
    }
    memset(out, 0, sizeof *out);
    gone = if_indextoname((unsigned)ifindex, out->name) == NULL;
    int rc = gone ? errno : 0;
    if (!gone) {
        collect_gids(&s, out);
        rc = query(&s, out);
    }
    scan_end(&s);
    if (gone) {
        return rc == ENXIO || rc == ENODEV ? -ENODEV : -EAGAIN;
    }
    return rc == 0 && out->ifindex == ifindex ? 0 : -EAGAIN; /* names change: the kernel tells once more */
}

static int index_of(const union rnic_gid *list, int n, const union rnic_gid *gid) {
    for (int i = 0; i < n; i++) {
        if (memcmp(&list[i], gid, sizeof *gid) == 0) {
            return i;
        }
    }
    return -1;
}

static void place(struct netdev *dev, int at, const union rnic_gid *gid) {
    dev->gids[at] = *gid;
    if (at >= dev->ngids) {
        dev->ngids = at + 1;
    }
}

void netdev_arrange(struct netdev *dev, const union rnic_gid table[NETDEV_MAX_GIDS]) {
    static const union rnic_gid none;
    const struct netdev read = *dev;
    dev->ngids = 0;
    memset(dev->gids, 0, sizeof dev->gids);
    for (int i = 0; i < NETDEV_MAX_GIDS; i++) {
        if (index_of(read.gids, read.ngids, &table[i]) >= 0) {
            place(dev, i, &table[i]);
        }
    }
    for (int i = 0; i < read.ngids; i++) {
        int empty = index_of(dev->gids, NETDEV_MAX_GIDS, &none);
        if (index_of(table, NETDEV_MAX_GIDS, &read.gids[i]) < 0 && empty >= 0) {
            place(dev, empty, &read.gids[i]);
        }
    }
}
