/* SPDX-License-Identifier: Apache-2.0
 *
 * What connection management asks the device for: listeners, and news of other processes' ends.
 */
#include <errno.h>
#include <string.h>

#include "base/address.h"
#include "base/fail.h"
#include "names/listen.h"
#include "verbs/verbs.h"

int soft_cm_listen(struct rnic_context *ctx, uint64_t service_id, const union rnic_gid *addr, uint32_t flags,
                   struct rnic_listener **out, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_has(dev, HAS_GSI, "queue pair 1, to which requests of the CM come", err);
    if (rc)
        return rc;
    dev_lock(dev);
    rc = listeners_open(&dev->host, ctx, service_id, addr, flags, out, err);
    dev_unlock(dev);
    return rc;
}

int soft_cm_unlisten(struct rnic_listener *listener, struct rnic_err *err) {
    struct dev *dev = dev_of(listener->ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    listeners_close(&dev->host, listener);
    dev_unlock(dev);
    return 0;
}

int soft_cm_slot(struct rnic_context *ctx, uint32_t *slot, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (!rc)
        *slot = dev->host.slots[0].number;
    return rc;
}

static int watching(int fd, int *out, struct rnic_err *err) {
    if (fd < 0)
        return fail(err, fd, fd == -ECONNREFUSED ? "nobody is there" : "no unix socket: %s", strerror(-fd));
    *out = fd;
    return 0;
}

int soft_cm_watch(struct rnic_context *ctx, uint32_t slot, int *fd, struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(ctx), err);
    return rc ? rc : watching(slot_watch(slot), fd, err);
}

int soft_cm_watch_service(struct rnic_context *ctx, uint64_t service_id, const union rnic_gid *gid, int *fd,
                          struct rnic_err *err) {
    const struct dev *dev = dev_of(ctx);
    struct sockaddr_in6 addr = {.sin6_family = AF_INET6};
    struct abstract_name name;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    memcpy(&addr.sin6_addr, gid->raw, sizeof gid->raw);
    listen_name(&name, service_id, &addr);
    int found = lifeline_watch(&name);
    if (found == -ECONNREFUSED) { /* nobody at that address: at all addresses? */
        listen_any_name(&name, service_id, address_is_v4(&addr), dev->net.netdev.ifindex);
        found = lifeline_watch(&name);
    }
    if (found == -ECONNREFUSED) {
        listen_any_name(&name, service_id, address_is_v4(&addr), 0);
        found = lifeline_watch(&name);
    }
    return watching(found, fd, err);
}
