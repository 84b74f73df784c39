/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/fail.h"
#include "dev/dev.h"
#include "nic_heap.h"
#include "qp/ah.h"

/* For completion queues, see queue/cq.h. */
static uint64_t completion_clock(void *arg) {
    (void)arg;
    return run_clock();
}

static uint64_t completion_wallclock(void *arg) {
    (void)arg;
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* ---------------------------------------------------------------- open */

/* The host's slot is there before the ports and after them, as they have their answers sent to it. */
static int open_parts(struct dev *dev, const struct rnic_open_attr *attr, struct rnic_err *err) {
    int rc = mr_table_init(&dev->nic.mrs);
    if (!rc)
        rc = event_queue_init(&dev->nic.events);
    if (rc)
        return fail(err, rc, "no memory or descriptors for the device");
    dev->pub.async_fd = dev->nic.events.fd;
    dev->nic.store = &dev->store;
    rc = store_open(&dev->store, dev->net.netdev.name, dev->kind->transport, dev->net.netdev.guid, err);
    dev->pub.cmd_fd = dev->store.fd;
    if (!rc && dev->kind->has & HAS_STREAMS)
        rc = ends_open(&dev->ends, &dev->nic, err);
    if (!rc)
        rc = host_open(&dev->host, attr->local >= 0 && dev->kind->has & HAS_LANES, err);
    if (!rc)
        rc = net_open(&dev->net, attr, &dev->host.slots[0], err);
    if (!rc)
        rc = planned_open(dev, err);
    return rc ? rc : engine_start(&dev->run, err);
}

static void close_parts(struct dev *dev) {
    engine_stop(&dev->run);
    net_leave(&dev->net);
    progress_leave(&dev->run);
    net_free(&dev->net);
    host_free(&dev->host);
    ah_free_all(&dev->nic);
    if (dev->nic.events.ring)
        event_queue_free(&dev->nic.events);
    mr_table_free(&dev->nic.mrs);
    free(dev->nic.xrc_srqs);
    store_close(&dev->store);
    peer_close(&dev->peer);
    planned_free(dev);
    ends_close(&dev->ends);
    run_free(&dev->run);
    free(dev);
}

/* The rooms, each of which knows those before it. */
static void join(struct dev *dev) {
    struct run_source sources[RUN_SOURCES + 1] = {{NULL, NULL}};
    for (int i = 0; dev->kind->sources[i].is; i++)
        sources[i] = (struct run_source){dev->kind->sources[i].is, (char *)dev + dev->kind->sources[i].owner};
    run_init(&dev->run, &dev->nic, sources);
    net_init(&dev->net, dev->kind->net, &dev->nic, &dev->run, &dev_calls, dev);
    host_init(&dev->host, &dev->net);
    mads_init(&dev->mads, &dev->host);
    dev->run.decide = lanes_decide;
    dev->run.decider = &dev->host;
}

/* What verbs tell. */
static int read_attr(struct dev *dev, struct rnic_err *err) {
    dev->attr = dev->kind->attr;
    dev->rate = (struct rnic_rate){.speed = 1, .width = 1}; /* 2.5 Gbit/s, one lane: nobody knows */
    int rc = rnic_env_limits(&dev->attr, err);
    dev->attr.max_sge_rd = dev->attr.max_sge;
    dev->attr.node_guid = dev->info.guid;
    dev->attr.sys_image_guid = dev->net.netdev.guid;
    return rc ? rc : rnic_env_rate(&dev->rate, err);
}

/* Who makes connections reads it then.  A wrong value is told at open, as those of the other variables. */
static int check_mpa_crc(struct rnic_err *err) {
    int on = rnic_env_mpa_crc(err);
    return on < 0 ? on : 0;
}

/* No fork comes in between: what is made here is not known to the process' list yet. */
static int open_device(const struct rnic_device_info *info, const struct rnic_open_attr *attr,
                       const struct rnic_provider *provider, struct dev **out, struct rnic_err *err) {
    static const struct rnic_open_attr defaults;
    struct dev *dev = aligned_alloc(64, (sizeof *dev + 63) & ~(size_t)63);
    if (!dev)
        return fail(err, -ENOMEM, "no memory for the device");
    memset(dev, 0, sizeof *dev);
    dev->store.fd = dev->peer.fd = dev->ends.fd = -1;
    dev->info = *info;
    dev->kind = device_kind_of(info->transport);
    dev->pub.ops = provider->ops;
    dev->pub.provider = provider;
    dev->pub.num_comp_vectors = COMP_VECTORS;
    dev->nic.cq_timing = (struct cq_timing){.clock = completion_clock, .wallclock = completion_wallclock};
    rng_seed(&dev->nic.rng, (uint64_t)rng_secret() << 32 | rng_secret());
    join(dev);
    int rc = net_find(&dev->net, info->netdev, err);
    fork_arrange(dev->kind, &dev->net.netdev);
    if (!rc)
        rc = read_attr(dev, err);
    if (!rc)
        rc = check_mpa_crc(err);
    if (!rc)
        rc = open_parts(dev, attr ? attr : &defaults, err);
    if (rc) {
        close_parts(dev);
        return rc;
    }
    if (rnic_heap_begin)
        rnic_heap_begin();
    *out = dev;
    return 0;
}

int device_open(const char *name, const struct rnic_open_attr *attr, const struct rnic_provider *provider,
                struct dev **out, struct rnic_err *err) {
    struct rnic_device_info info;
    int cancel_state = fork_keep_out();
    int rc = device_find(name, &info, err);
    if (!rc)
        rc = open_device(&info, attr, provider, out, err);
    if (!rc)
        fork_register(*out);
    fork_let_in(cancel_state);
    if (!rc)
        ports_settle(&(*out)->net);
    return rc;
}

/* A device beside that of the other process, with the other's memory file. */
static int open_beside(int cmd_fd, const struct rnic_provider *provider, struct dev **out, struct rnic_err *err) {
    struct peer peer;
    struct rnic_device_info info;
    struct dev *dev = NULL;
    int rc = peer_open(&peer, cmd_fd, err);
    if (rc)
        return rc;
    rc = device_find_on(peer.head.netdev, (int)peer.head.transport, &info, err);
    if (!rc)
        rc = open_device(&info, NULL, provider, &dev, err);
    if (!rc && dev->net.netdev.guid != peer.head.guid) {
        close_parts(dev);
        rc = fail(err, -ENODEV, "the context is of another device %s, in another network namespace or on another host",
                  peer.head.netdev);
    }
    if (rc) {
        peer_close(&peer);
        return rc;
    }
    dev->peer = peer;
    fork_register(dev);
    *out = dev;
    return 0;
}

int device_import(int cmd_fd, const struct rnic_provider *provider, struct dev **out, struct rnic_err *err) {
    *out = fork_adopt(cmd_fd);
    if (*out)
        return 0;
    int cancel_state = fork_keep_out();
    int rc = open_beside(cmd_fd, provider, out, err);
    fork_let_in(cancel_state);
    if (!rc)
        ports_settle(&(*out)->net);
    return rc;
}

static void wait_for_room(struct dev *dev) {
    dev_lock(dev);
    int fd = udp_tx_full(&dev->net.tx);
    dev_unlock(dev);
    if (fd >= 0)
        udp_wait_for_room(fd);
}

/* soft_close() has checked that nothing is left in it. */
int device_close(struct rnic_context *ctx) {
    struct dev *dev = dev_of(ctx);
    wait_for_room(dev); /* while forks need not wait for us */
    int cancel_state = fork_keep_out();
    if (fork_unregister(dev))
        close_parts(dev);
    fork_let_in(cancel_state);
    return 0;
}
