/* SPDX-License-Identifier: Apache-2.0
 *
 * What is checked before a verb does anything: that the device is there, and that events of an object are acknowledged.
 */
#include <errno.h>

#include "base/fail.h"
#include "dev/dev.h"

int dev_check_alive(const struct dev *dev, struct rnic_err *err) {
    return atomic_load(&dev->dead)
               ? fail(err, -EINVAL,
                      "this device was opened before a fork(), in the parent process; open it again "
                      "in the child")
               : 0;
}

int dev_check_working(const struct dev *dev, struct rnic_err *err) {
    return atomic_load(&dev->fatal)
               ? fail(err, -EIO, "device %s has failed, or its network device %s has gone: close the context",
                      dev->info.name, dev->net.netdev.name)
               : 0;
}

int dev_check_usable(const struct dev *dev, struct rnic_err *err) {
    int rc = dev_check_alive(dev, err);
    return rc ? rc : dev_check_working(dev, err);
}

int dev_check_has(const struct dev *dev, enum device_has has, const char *what, struct rnic_err *err) {
    int rc = dev_check_usable(dev, err);
    if (rc || dev->kind->has & has)
        return rc;
    return fail(err, -EOPNOTSUPP, "%s is %s %s device, which has no %s", dev->info.name, dev->kind->article,
                dev->kind->name, what);
}

int dev_check_port(int port, struct rnic_err *err) {
    return port == 1 ? 0 : fail(err, -EINVAL, "port %d does not exist; the device has port 1", port);
}

int dev_busy_for(uint32_t events, struct rnic_err *err) {
    if (err)
        err->unacknowledged = events;
    return -EBUSY;
}

static int not_acknowledged(uint32_t events, struct rnic_err *err) {
    if (!events)
        return 0;
    fail(err, -EBUSY, "unacknowledged asynchronous events: %u; ack() them first", events);
    return dev_busy_for(events, err);
}

int dev_check_events(struct dev *dev, const void *context, struct rnic_err *err) {
    return not_acknowledged(event_unacked(&dev->nic.events, context), err);
}

int dev_leave_events(struct dev *dev, const void *context, struct rnic_err *err) {
    return not_acknowledged(event_leave(&dev->nic.events, context), err);
}
