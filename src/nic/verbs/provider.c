/* SPDX-License-Identifier: Apache-2.0
 *
 * The software RNIC as a provider of devices: which there are, and opening one.
 */
#include "verbs/verbs.h"

static int open_soft(const char *name, const struct rnic_open_attr *attr, struct rnic_context **ctx,
                     struct rnic_err *err) {
    struct dev *dev = NULL;
    int rc = device_open(name, attr, &rnic_soft, &dev, err);
    if (!rc)
        *ctx = &dev->pub;
    return rc;
}

static int import_soft(int cmd_fd, struct rnic_context **ctx, struct rnic_device_info *info, struct rnic_err *err) {
    struct dev *dev = NULL;
    int rc = device_import(cmd_fd, &rnic_soft, &dev, err);
    if (rc)
        return rc;
    *ctx = &dev->pub;
    *info = dev->info;
    return 0;
}

const struct rnic_provider rnic_soft = {
    .name = "soft",
    .list = device_list,
    .open = open_soft,
    .import = import_soft,
    .ops = &soft_ops,
    .extensions = soft_extensions,
};
