/* SPDX-License-Identifier: Apache-2.0
 *
 * A provider with a device of its own, which has the verbs that every device has, some more, and no extension: what a
 * binding does without the rest.
 */
#include "recorder_own.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool listed;
static int list_fails;              /* with that -errno, or 0 */
static struct rnic_context *opened; /* at most one */
static int owners;                  /* of it */

static int list(struct rnic_device_info *list, int max, struct rnic_err *err) {
    (void)err;
    if (list_fails)
        return list_fails;
    if (listed && max > 0)
        *list = (struct rnic_device_info){
            .name = "part0", .guid = 0x1122334455667788, .transport = RNIC_TRANSPORT_IB, .node_type = RNIC_NODE_CA};
    return listed;
}

static int part_open(const char *name, const struct rnic_open_attr *attr, struct rnic_context **ctx,
                     struct rnic_err *err);

static int part_import(int cmd_fd, struct rnic_context **ctx, struct rnic_device_info *info, struct rnic_err *err) {
    struct stat given, own;

    if (!opened || fstat(cmd_fd, &given) || fstat(opened->cmd_fd, &own) || given.st_ino != own.st_ino ||
        given.st_dev != own.st_dev) {
        if (err)
            snprintf(err->text, sizeof(err->text), "it is not of part0");
        return -EINVAL;
    }
    list(info, 1, err);
    *ctx = opened;
    owners++;
    return 0;
}

static int part_close(struct rnic_context *ctx, struct rnic_err *err) {
    if (--owners)
        return 0;
    close(ctx->cmd_fd);
    opened = NULL;
    int rc = recorder_ops()->close(ctx, err);
    recorder_free(ctx);
    return rc;
}

static struct rnic_ops ops;
static const struct rnic_provider provider = {
    .name = "partial", .list = list, .open = part_open, .import = part_import, .ops = &ops};

static int part_open(const char *name, const struct rnic_open_attr *attr, struct rnic_context **ctx,
                     struct rnic_err *err) {
    bool there = listed && !strcmp(name, "part0");

    (void)attr;
    if (!there || opened) {
        if (err)
            snprintf(err->text, sizeof(err->text), there ? "it is open" : "there is no device %s", name);
        return there ? -EBUSY : -ENODEV;
    }
    opened = recorder_context(&provider, &ops);
    opened->cmd_fd = memfd_create("part0", MFD_CLOEXEC);
    recorder_quiet(opened);
    owners = 1;
    *ctx = opened;
    return 0;
}

const struct rnic_provider *recorder_partial(void) {
    const struct rnic_ops *all = recorder_ops();

    ops = (struct rnic_ops){
        .close = part_close,
        .query_device = all->query_device,
        .query_port = all->query_port,
        .query_gid = all->query_gid,
        .alloc_pd = all->alloc_pd,
        .dealloc_pd = all->dealloc_pd,
        .reg_mr = all->reg_mr,
        .dereg_mr = all->dereg_mr,
        .create_comp_channel = all->create_comp_channel,
        .destroy_comp_channel = all->destroy_comp_channel,
        .get_cq_event = all->get_cq_event,
        .create_cq = all->create_cq,
        .destroy_cq = all->destroy_cq,
        .poll_cq = all->poll_cq,
        .req_notify_cq = all->req_notify_cq,
        .ack_cq_events = all->ack_cq_events,
        .create_qp = all->create_qp,
        .modify_qp = all->modify_qp,
        .destroy_qp = all->destroy_qp,
        .post_send = all->post_send,
        .post_recv = all->post_recv,
        .create_ah = all->create_ah,
        .destroy_ah = all->destroy_ah,
    };
    return &provider;
}

void recorder_list_partial(bool on) { listed = on; }

void recorder_list_fails(int rc) { list_fails = rc; }

const struct rnic_provider *recorder_incomplete(const char *lacks) {
    static struct rnic_ops some;
    static struct rnic_provider incomplete;

    some = ops;
    if (!strcmp(lacks, "poll_cq"))
        some.poll_cq = NULL;
    if (!strcmp(lacks, "destroy_ah"))
        some.destroy_ah = NULL;
    incomplete = provider;
    incomplete.name = strcmp(lacks, "name") ? "incomplete" : NULL;
    incomplete.ops = &some;
    return &incomplete;
}
