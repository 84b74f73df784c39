/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a context (man ibv_close_device): refused while it has objects, or with all that it has, as the kernel does
 * when the descriptor of a context is closed.
 */
#include <errno.h>
#include <stdio.h>

#include "base/fail.h"
#include "mem/mw.h"
#include "qp/ah.h"
#include "queue/comp_cntr.h"
#include "raw/raw.h"
#include "verbs/verbs.h"

/* ---------------------------------------------------------------- what ends an object, whatever may still be due to it */

#define PUB(type, object) (&LISTED_IN(struct type, listed, object)->pub)

static int end_flow(struct listed *object, struct rnic_err *err) {
    return soft_destroy_flow(PUB(flow_rule, object), err);
}

static int end_qp(struct listed *object, struct rnic_err *err) {
    struct qp *qp = LISTED_IN(struct qp, listed, object);
    struct dev *dev = dev_of(qp->pub.ctx);
    dev_lock(dev);
    mcast_leave(&dev->net, qp);
    dev_unlock(dev);
    return soft_destroy_qp(&qp->pub, err);
}

static int end_comp_cntr(struct listed *object, struct rnic_err *err) {
    return soft_destroy_comp_cntr(PUB(comp_cntr, object), err);
}

static int end_table(struct listed *object, struct rnic_err *err) {
    return soft_destroy_rwq_ind_table(PUB(rwq_table, object), err);
}

static int end_wq(struct listed *object, struct rnic_err *err) { return soft_destroy_wq(PUB(rwq, object), err); }

static int end_srq(struct listed *object, struct rnic_err *err) { return soft_destroy_srq(PUB(srq, object), err); }

static int end_ah(struct listed *object, struct rnic_err *err) {
    return soft_destroy_ah(&LISTED_IN(struct ah, listed, object)->head.pub, err);
}

static int end_mw(struct listed *object, struct rnic_err *err) { return soft_dealloc_mw(PUB(mw, object), err); }

/* What has been imported of this process is one object with what was imported. */
static int end_mr(struct listed *object, struct rnic_err *err) {
    struct mr *mr = LISTED_IN(struct mr, listed, object);
    mr->imports = is_import(mr);
    return mr->imports ? soft_unimport_mr(&mr->pub, err) : soft_dereg_mr(&mr->pub, err);
}

static int end_dm(struct listed *object, struct rnic_err *err) {
    struct dm *dm = LISTED_IN(struct dm, listed, object);
    dm->imports = dm->foreign;
    return dm->foreign ? soft_unimport_dm(&dm->pub, err) : soft_free_dm(&dm->pub, err);
}

static int end_xrcd(struct listed *object, struct rnic_err *err) { return soft_close_xrcd(xrcd_listed(object), err); }

static int end_cq(struct listed *object, struct rnic_err *err) {
    struct cq *cq = LISTED_IN(struct cq, listed, object);
    cq_ack(cq, cq->taken, NULL);
    return soft_destroy_cq(&cq->pub, err);
}

static int end_counters(struct listed *object, struct rnic_err *err) {
    return soft_destroy_counters(PUB(flow_counters, object), err);
}

static int end_channel(struct listed *object, struct rnic_err *err) {
    return soft_destroy_comp_channel(PUB(channel, object), err);
}

static int end_td(struct listed *object, struct rnic_err *err) { return soft_dealloc_td(PUB(td, object), err); }

static int end_pd(struct listed *object, struct rnic_err *err) {
    struct pd *pd = LISTED_IN(struct pd, listed, object);
    pd->imports = pd->foreign;
    return pd->foreign ? soft_unimport_pd(&pd->pub, err) : soft_dealloc_pd(&pd->pub, err);
}

static const struct {
    const char *name;
    int (*end)(struct listed *object, struct rnic_err *err);
} kinds[KINDS] = {
    [KIND_FLOW] = {"flow rules", end_flow},
    [KIND_QP] = {"queue pairs", end_qp},
    [KIND_COMP_CNTR] = {"completion counters", end_comp_cntr},
    [KIND_TABLE] = {"indirection tables", end_table},
    [KIND_WQ] = {"work queues", end_wq},
    [KIND_SRQ] = {"shared receive queues", end_srq},
    [KIND_AH] = {"address handles", end_ah},
    [KIND_MW] = {"memory windows", end_mw},
    [KIND_MR] = {"memory regions", end_mr},
    [KIND_DM] = {"pieces of device memory", end_dm},
    [KIND_XRCD] = {"XRC domains", end_xrcd},
    [KIND_CQ] = {"completion queues", end_cq},
    [KIND_COUNTERS] = {"counters of flows", end_counters},
    [KIND_CHANNEL] = {"completion channels", end_channel},
    [KIND_PARENT] = {"parent domains", end_pd},
    [KIND_TD] = {"thread domains", end_td},
    [KIND_PD] = {"protection domains", end_pd},
};

/* ---------------------------------------------------------------- the context */

static size_t append(char *text, size_t room, size_t n, int count, const char *name) {
    if (!count || n >= room)
        return n;
    return n + (size_t)snprintf(text + n, room - n, "%s%d %s", n ? ", " : "", count, name);
}

/* -EBUSY, with what a program has not closed, as far as there is room for it; 0: nothing.  What others need comes first. */
static int still_open(struct dev *dev, struct rnic_err *err) {
    char text[200] = "";
    size_t n = append(text, sizeof text, 0, listeners_count(&dev->host), "listeners");
    for (int kind = KINDS - 1; kind >= 0; kind--)
        n = append(text, sizeof text, n, dev->objects.of[kind].count, kinds[kind].name);
    return *text ? fail(err, -EBUSY, "still open: %s", text) : 0;
}

int soft_close(struct rnic_context *ctx, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    if (fork_disown(dev))
        return 0;
    dev_lock(dev);
    rc = still_open(dev, err);
    dev_unlock(dev);
    return rc ? rc : device_close(ctx);
}

/* From here on it sends nothing either, so nobody comes to be inside a copy of its anew. */
static int silence(struct dev *dev, struct qp *qp, struct rnic_err *err) {
    int rc = verbs_close_off(dev, qp, true, err);
    if (rc || qp->state == RNIC_QPS_RESET || qp->state == RNIC_QPS_ERR)
        return rc;
    qp_error(qp, -1);
    sched_ready(&dev->run, qp);
    return 0;
}

/* What a process that stands still in a copy could refuse, ahead of everything that makes an end of objects. */
static int end_copies(struct dev *dev, struct rnic_err *err) {
    int rc = 0;
    for (struct listed *one = dev->objects.of[KIND_QP].first; one && !rc; one = one->next) {
        struct qp *qp = LISTED_IN(struct qp, listed, one);
        if (qp->real == qp)
            rc = silence(dev, qp, err);
    }
    return rc ? rc : withdraw_all_mrs(dev, err);
}

static int end_objects(struct dev *dev, struct rnic_err *err) {
    int rc = 0;
    event_forget_all(&dev->nic.events);
    for (int kind = 0; kind < KINDS && !rc; kind++) {
        while (!rc && dev->objects.of[kind].first)
            rc = kinds[kind].end(dev->objects.of[kind].first, err);
    }
    return rc;
}

int soft_close_all(struct rnic_context *ctx, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    if (fork_disown(dev))
        return 1;
    dev_lock(dev);
    rc = end_copies(dev, err);
    if (!rc)
        listeners_close_all(&dev->host);
    dev_unlock(dev);
    if (!rc) {
        drive_end(&dev->run);
        rc = end_objects(dev, err);
    }
    return rc ? rc : device_close(ctx);
}
