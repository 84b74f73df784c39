/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of network devices, against what this host has: prints "ok - name" per case.
 */
#include "net/netdev.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            printf("not ok - %s:%d: %s\n", __func__, __LINE__, #cond);                                                 \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { MAX = 64 };

static struct in6_addr address_of(const union rnic_gid *gid) {
    struct in6_addr a;
    memcpy(&a, gid, sizeof a);
    return a;
}

static int rank(const union rnic_gid *gid) {
    struct in6_addr a = address_of(gid);
    return IN6_IS_ADDR_LINKLOCAL(&a) ? 0 : IN6_IS_ADDR_V4MAPPED(&a) ? 1 : 2;
}

static void list_is_by_ifindex(void) {
    struct netdev list[MAX], one;
    struct rnic_err err = {0};
    int n = netdev_list(list, MAX, &err);
    CHECK(n >= 1);
    for (int i = 0; i < n && i < MAX; i++) {
        CHECK(i == 0 || list[i].ifindex > list[i - 1].ifindex);
        CHECK((int)if_nametoindex(list[i].name) == list[i].ifindex);
        CHECK(list[i].ngids >= 1 && list[i].ngids <= NETDEV_MAX_GIDS && list[i].mtu > 0 && list[i].guid != 0);
        CHECK(netdev_find(list[i].name, &one, &err) == 0 && memcmp(&one, &list[i], sizeof one) == 0);
        printf("# %d %s up %d mtu %d guid %016llx gids %d\n", list[i].ifindex, list[i].name, list[i].up, list[i].mtu,
               (unsigned long long)list[i].guid, list[i].ngids);
    }
    struct netdev few[1];
    CHECK(netdev_list(few, 1, NULL) == n && memcmp(&few[0], &list[0], sizeof few[0]) == 0);
    CHECK(netdev_list(NULL, 0, NULL) == n);
    printf("ok - devices with an address are listed by ifindex\n");
}

static void link_local_gids_are_first_and_all_unique(void) {
    struct netdev list[MAX];
    int n = netdev_list(list, MAX, NULL);
    for (int i = 0; i < n && i < MAX; i++) {
        for (int k = 1; k < list[i].ngids; k++) {
            CHECK(rank(&list[i].gids[k]) != 0 || rank(&list[i].gids[k - 1]) == 0);
            for (int j = 0; j < k; j++) {
                CHECK(memcmp(&list[i].gids[k], &list[i].gids[j], sizeof list[i].gids[k]) != 0);
            }
        }
    }
    printf("ok - a GID table holds link-local addresses, and then the others, each once\n");
}

/* The modified EUI-64 is what the kernel made the link-local address of, where it made one of the MAC. */
static void guid_is_the_interface_identifier(void) {
    struct netdev list[MAX];
    int n = netdev_list(list, MAX, NULL), seen = 0;
    for (int i = 0; i < n && i < MAX; i++) {
        const uint8_t *g = list[i].gids[0].raw;
        if (rank(&list[i].gids[0]) != 0 || g[11] != 0xFF || g[12] != 0xFE) {
            continue;
        }
        uint64_t id = 0;
        for (int k = 8; k < 16; k++) {
            id = id << 8 | g[k];
        }
        CHECK(id == list[i].guid);
        seen++;
    }
    printf("ok - GUIDs equal interface identifiers (%d seen)\n", seen);
}

static void loopback_has_a_guid(void) {
    struct netdev a, b;
    struct rnic_err err = {0};
    CHECK(netdev_find("lo", &a, &err) == 0 && netdev_find("lo", &b, NULL) == 0);
    CHECK(a.guid == b.guid && (a.guid >> 57 & 1) == 1 && (a.guid >> 56 & 1) == 0);
    printf("ok - lo has a GUID of its own, always the same\n");
}

static void unknown_device_is_named(void) {
    struct netdev dev;
    struct rnic_err err = {0};
    CHECK(netdev_find("no-such-device", &dev, &err) == -ENODEV && strstr(err.text, "no-such-device") != NULL);
    CHECK(netdev_find("a-name-that-is-far-too-long-for-any-device", &dev, NULL) == -ENODEV);
    CHECK(netdev_find("", &dev, NULL) == -ENODEV);
    printf("ok - an unknown device is named\n");
}

int main(void) {
    list_is_by_ifindex();
    link_local_gids_are_first_and_all_unique();
    guid_is_the_interface_identifier();
    loopback_has_a_guid();
    unknown_device_is_named();
    return 0;
}
