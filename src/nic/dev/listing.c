/* SPDX-License-Identifier: Apache-2.0
 *
 * Which devices there are: one for each netdev with an address, or those that the environment names.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/fail.h"
#include "dev/dev.h"

#define PREFIX "roce_" /* ahead of the netdev's name, where a device has no other */
#define GUID_SHIFT 24  /* the middle of an EUI-64, which is the same in all that are made of an Ethernet address */

/* What the environment asks for. */
struct wishes {
    struct rnic_env_name names[RNIC_ENV_DEVICES];
    char devices[RNIC_ENV_DEVICES][32];
    int num_names, num_devices; /* no devices: all */
};

static int read_wishes(struct wishes *w, struct rnic_err *err) {
    w->num_names = rnic_env_names(w->names, err);
    w->num_devices = rnic_env_devices(w->devices, err);
    return w->num_names < 0 ? w->num_names : w->num_devices < 0 ? w->num_devices : 0;
}

/* nth: of those that are on this netdev, from 0; each has a GUID of its own. */
static struct rnic_device_info describe(const struct netdev *net, int nth, const char *name) {
    struct rnic_device_info info = {.guid = net->guid ^ (uint64_t)nth << GUID_SHIFT,
                                    .ifindex = net->ifindex,
                                    .transport = RNIC_TRANSPORT_IB,
                                    .node_type = RNIC_NODE_CA};
    if (name)
        snprintf(info.name, sizeof info.name, "%s", name);
    else
        snprintf(info.name, sizeof info.name, PREFIX "%s", net->name);
    memcpy(info.netdev, net->name, sizeof info.netdev);
    return info;
}

/* The devices on one netdev, at most RNIC_ENV_DEVICES: how many, or -EINVAL if its name is another's. */
static int on_netdev(const struct wishes *w, const struct netdev *net, struct rnic_device_info *out,
                     struct rnic_err *err) {
    int n = 0;
    for (int i = 0; i < w->num_names; i++) {
        if (!strcmp(w->names[i].netdev, net->name)) {
            out[n] = describe(net, n, w->names[i].device);
            n++;
        }
    }
    if (n)
        return n;
    *out = describe(net, 0, NULL);
    for (int i = 0; i < w->num_names; i++) {
        if (!strcmp(w->names[i].device, out->name))
            return env_wrong(ENV_NAMES, err, "the device on %s has the name %s already", net->name, out->name);
    }
    return 1;
}

/* All of them, whether they are wanted or not, in memory of the caller's: how many, or -errno. */
static int every_device(const struct wishes *w, struct rnic_device_info **out, struct rnic_err *err) {
    struct netdev *nets = NULL;
    int room = 16, n;
    for (;; room = n) {
        free(nets);
        nets = calloc((size_t)room, sizeof *nets);
        n = nets ? netdev_list(nets, room, err) : fail(err, -ENOMEM, "no memory for a list of %d devices", room);
        if (n <= room)
            break;
    }
    *out = n < 0 ? NULL : calloc((size_t)n + RNIC_ENV_DEVICES, sizeof **out);
    if (n >= 0 && !*out)
        n = fail(err, -ENOMEM, "no memory for a list of %d devices", n);
    int count = n < 0 ? n : 0;
    for (int i = 0; i < n && count >= 0; i++) {
        int more = on_netdev(w, &nets[i], *out + count, err);
        count = more < 0 ? more : count + more;
    }
    free(nets);
    return count;
}

/* Keeps those that are wanted, in their order. */
static int keep_wanted(const struct wishes *w, struct rnic_device_info *all, int n) {
    int kept = 0;
    for (int want = 0; want < w->num_devices; want++) {
        for (int i = kept; i < n; i++) {
            if (strcmp(all[i].name, w->devices[want]))
                continue;
            struct rnic_device_info found = all[i];
            memmove(&all[kept + 1], &all[kept], (size_t)(i - kept) * sizeof *all);
            all[kept++] = found;
            break;
        }
    }
    return w->num_devices ? kept : n;
}

static int wanted_devices(struct rnic_device_info **out, struct rnic_err *err) {
    struct wishes w;
    *out = NULL;
    int n = read_wishes(&w, err);
    if (!n)
        n = every_device(&w, out, err);
    return n < 0 ? n : keep_wanted(&w, *out, n);
}

int device_list(struct rnic_device_info *list, int max, struct rnic_err *err) {
    struct rnic_device_info *all;
    int cancel_state = fork_keep_out();
    int n = wanted_devices(&all, err);
    fork_let_in(cancel_state);
    for (int i = 0; i < n && i < max; i++)
        list[i] = all[i];
    free(all);
    return n;
}

int device_find(const char *name, const char *netdev, struct rnic_device_info *info, struct rnic_err *err) {
    struct rnic_device_info *all;
    int n = wanted_devices(&all, err), i = 0;
    while (i < n && (name ? strcmp(all[i].name, name) : strcmp(all[i].netdev, netdev)))
        i++;
    if (i < n)
        *info = all[i];
    free(all);
    if (n < 0 || i < n)
        return n < 0 ? n : 0;
    return name ? fail(err, -ENODEV, "no software RNIC has the name %.31s", name)
                : fail(err, -ENODEV, "no software RNIC is on the network device %.15s", netdev);
}
