/* SPDX-License-Identifier: Apache-2.0
 *
 * The software RNIC as a provider of devices: which there are, and opening one.
 */
#include "verbs/verbs.h"

int rnic_soft_list(struct rnic_device_info *list, int max, struct rnic_err *err) { return device_list(list, max, err); }

int rnic_soft_open(const char *netdev, const struct rnic_open_attr *attr, struct rnic_context **ctx,
                   struct rnic_err *err) {
    struct dev *dev = NULL;
    int rc = device_open(netdev, attr, &soft_ops, &dev, err);
    if (!rc)
        *ctx = &dev->pub;
    return rc;
}

int rnic_soft_import(int cmd_fd, struct rnic_context **ctx, struct rnic_device_info *info, struct rnic_err *err) {
    struct dev *dev = NULL;
    int rc = device_import(cmd_fd, &soft_ops, &dev, err);
    if (rc)
        return rc;
    *ctx = &dev->pub;
    device_describe(&dev->net.netdev, info);
    return 0;
}
