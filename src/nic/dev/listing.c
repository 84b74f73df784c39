/* SPDX-License-Identifier: Apache-2.0
 *
 * Which devices there are: one of each kind for each netdev with an address, or those that the environment names.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/fail.h"
#include "dev/dev.h"

/* What the environment asks for. */
struct wishes {
    struct rnic_env_name names[RNIC_ENV_DEVICES];
    char devices[RNIC_ENV_DEVICES][32];
    int num_names, num_devices; /* no devices: all */
    int transport;              /* whose devices come first */
};

static int read_wishes(struct wishes *w, struct rnic_err *err) {
    w->num_names = rnic_env_names(w->names, err);
    w->num_devices = w->num_names < 0 ? w->num_names : rnic_env_devices(w->devices, err);
    w->transport = w->num_devices < 0 ? w->num_devices : rnic_env_transport(err);
    return w->transport < 0 ? w->transport : 0;
}

/* nth: of its kind on this netdev, from 0; each has a GUID of its own. */
static struct rnic_device_info describe(const struct device_kind *kind, const struct netdev *net, int nth,
                                        const char *name) {
    struct rnic_device_info info = {.guid = net->guid ^ kind->guid ^ GUID_MIDDLE(nth),
                                    .ifindex = net->ifindex,
                                    .transport = kind->transport,
                                    .node_type = kind->node_type};
    snprintf(info.name, sizeof info.name, "%s%s", name ? "" : kind->prefix, name ? name : net->name);
    memcpy(info.netdev, net->name, sizeof info.netdev);
    return info;
}

/* Its devices on one netdev, at most RNIC_ENV_DEVICES: how many, or -EINVAL if its name is another's. */
static int on_netdev(const struct wishes *w, const struct device_kind *kind, const struct netdev *net,
                     struct rnic_device_info *out, struct rnic_err *err) {
    int n = 0;
    for (int i = 0; i < w->num_names; i++) {
        if (w->names[i].transport == kind->transport && !strcmp(w->names[i].netdev, net->name)) {
            out[n] = describe(kind, net, n, w->names[i].device);
            n++;
        }
    }
    if (n)
        return n;
    *out = describe(kind, net, 0, NULL);
    for (int i = 0; i < w->num_names; i++) {
        if (!strcmp(w->names[i].device, out->name))
            return env_wrong(ENV_NAMES, err, "the device on %s has the name %s already", net->name, out->name);
    }
    return 1;
}

/* Those of one kind. */
static int of_kind(const struct wishes *w, const struct device_kind *kind, const struct netdev *nets, int n,
                   struct rnic_device_info *out, struct rnic_err *err) {
    int count = 0;
    for (int i = 0; i < n && count >= 0; i++) {
        int more = on_netdev(w, kind, &nets[i], out + count, err);
        count = more < 0 ? more : count + more;
    }
    return count;
}

/* Kind after kind, and the one that is wished for first. */
static int of_all_kinds(const struct wishes *w, const struct netdev *nets, int n, struct rnic_device_info *out,
                        struct rnic_err *err) {
    const struct device_kind *first = device_kind_of(w->transport);
    int count = of_kind(w, first, nets, n, out, err);
    for (int i = 0; i < DEVICE_KINDS && count >= 0; i++) {
        int more = &device_kinds[i] == first ? 0 : of_kind(w, &device_kinds[i], nets, n, out + count, err);
        count = more < 0 ? more : count + more;
    }
    return count;
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
    *out = n < 0 ? NULL : calloc((size_t)n * DEVICE_KINDS + RNIC_ENV_DEVICES, sizeof **out);
    if (n >= 0 && !*out)
        n = fail(err, -ENOMEM, "no memory for a list of %d devices", n);
    int count = n < 0 ? n : of_all_kinds(w, nets, n, *out, err);
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

/* What is looked for: by its name, or where it is. */
struct sought {
    const char *name, *netdev;
    int transport;
};

static bool is_sought(const struct sought *s, const struct rnic_device_info *info) {
    return s->name ? !strcmp(info->name, s->name) : info->transport == s->transport && !strcmp(info->netdev, s->netdev);
}

/* 1: there is none. */
static int seek(const struct sought *s, struct rnic_device_info *info, struct rnic_err *err) {
    struct rnic_device_info *all;
    int n = wanted_devices(&all, err), i = 0;
    while (i < n && !is_sought(s, &all[i]))
        i++;
    if (i < n)
        *info = all[i];
    free(all);
    return n < 0 ? n : i == n;
}

int device_find(const char *name, struct rnic_device_info *info, struct rnic_err *err) {
    int rc = seek(&(struct sought){.name = name}, info, err);
    return rc <= 0 ? rc : fail(err, -ENODEV, "no software RNIC has the name %.31s", name);
}

int device_find_on(const char *netdev, int transport, struct rnic_device_info *info, struct rnic_err *err) {
    int rc = seek(&(struct sought){.netdev = netdev, .transport = transport}, info, err);
    return rc <= 0 ? rc
                   : fail(err, -ENODEV, "no software RNIC of %s is on the network device %.15s",
                          device_kind_of(transport)->name, netdev);
}
