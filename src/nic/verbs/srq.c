/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared receive queues (IBA 10.2.9, 11.2.3).
 */
#include <errno.h>
#include <stdlib.h>

#include "base/fail.h"
#include "qp/qp.h"
#include "queue/tag.h"
#include "verbs/verbs.h"

static int check_srq(const struct rnic_device_attr *limits, const struct rnic_srq_attr *attr, struct rnic_err *err) {
    if (attr->max_wr < 1 || attr->max_wr > (uint32_t)limits->max_srq_wr)
        return fail(err, -EINVAL, "max_wr is %u; allowed are 1 to %d", attr->max_wr, limits->max_srq_wr);
    if (attr->max_sge > (uint32_t)limits->max_srq_sge)
        return fail(err, -EINVAL, "max_sge is %u; the device has %d", attr->max_sge, limits->max_srq_sge);
    return 0;
}

int verbs_make_srq(struct rnic_pd *pd, void *srq_context, struct rnic_srq_attr *attr, struct srq **out,
                   struct rnic_err *err) {
    int rc = dev_check_usable(dev_of(pd->ctx), err);
    if (!rc)
        rc = check_srq(&dev_of(pd->ctx)->attr, attr, err);
    if (rc)
        return rc;
    struct srq *srq = calloc(1, sizeof *srq);
    if (!srq || srq_init(srq, attr->max_wr, attr->max_sge ? attr->max_sge : 1)) {
        free(srq);
        return fail(err, -ENOMEM, "no memory for %u receives", attr->max_wr);
    }
    srq->pub = (struct rnic_srq){pd->ctx, pd, srq_context, 0};
    attr->max_wr = srq->q.max_wr;
    attr->max_sge = srq->q.max_sge;
    attr->srq_limit = 0; /* ibv_create_srq(3): modify_srq arms it */
    *out = srq;
    return 0;
}

static void free_srq(struct srq *srq) {
    verbs_free_tags(srq);
    srq_free(srq);
    free(srq);
}

static void enter_srq(struct dev *dev, struct srq *srq) {
    object_enter(dev, KIND_SRQ, &srq->listed);
    ((struct pd *)srq->pub.pd)->srqs++;
}

int soft_create_srq(struct rnic_pd *pd, void *srq_context, struct rnic_srq_attr *attr, struct rnic_srq **out,
                    struct rnic_err *err) {
    struct dev *dev = dev_of(pd->ctx);
    struct srq *srq = NULL;
    int rc = dev_check_usable(dev, err);
    if (!rc)
        rc = verbs_make_srq(pd, srq_context, attr, &srq, err);
    if (rc)
        return rc;
    dev_lock(dev);
    rc = verbs_check_room(dev, KIND_SRQ, err);
    if (!rc)
        enter_srq(dev, srq);
    dev_unlock(dev);
    if (rc)
        free_srq(srq);
    else
        *out = &srq->pub;
    return rc;
}

/* ---------------------------------------------------------------- of other types */

static int check_ex(struct rnic_context *ctx, const struct rnic_srq_init_attr_ex *attr, struct rnic_err *err) {
    bool xrc = attr->srq_type == RNIC_SRQT_XRC, tm = attr->srq_type == RNIC_SRQT_TM;
    if (attr->srq_type < RNIC_SRQT_BASIC || attr->srq_type > RNIC_SRQT_TM)
        return fail(err, -EOPNOTSUPP, "shared receive queue type %d: this device has BASIC (%d), XRC (%d) and TM (%d)",
                    attr->srq_type, RNIC_SRQT_BASIC, RNIC_SRQT_XRC, RNIC_SRQT_TM);
    int rc = xrc  ? dev_check_has(dev_of(ctx), HAS_XRC, "XRC", err)
             : tm ? dev_check_has(dev_of(ctx), HAS_TAGS, "tag matching", err)
                  : 0;
    if (rc)
        return rc;
    if (!attr->pd)
        return fail(err, -EINVAL, "a shared receive queue needs a pd");
    if (xrc && (!attr->xrcd || !attr->cq))
        return fail(err, -EINVAL, "an XRC shared receive queue needs an xrcd, and a cq where its receives complete");
    if (tm && !attr->cq)
        return fail(err, -EINVAL, "a tag matching SRQ needs a cq, where its receives complete");
    if ((!xrc && attr->xrcd) || (!xrc && !tm && attr->cq))
        return fail(err, -EINVAL,
                    "xrcd is of XRC shared receive queues, cq of those and of tag matching ones: give "
                    "srq_type");
    if (attr->pd->ctx != ctx || (attr->xrcd && attr->xrcd->ctx != ctx) || (attr->cq && attr->cq->ctx != ctx))
        return fail(err, -EINVAL, "pd, xrcd and cq have to be of this device");
    return tm ? verbs_check_tags(&attr->tm_cap, err) : 0;
}

/* What makes it one of its type; under the lock. */
static int specialise(struct dev *dev, struct srq *srq, const struct rnic_srq_init_attr_ex *attr,
                      struct rnic_err *err) {
    int rc = verbs_check_room(dev, KIND_SRQ, err);
    if (!rc && attr->srq_type == RNIC_SRQT_XRC)
        rc = verbs_join_domain(dev, srq, attr, err);
    if (rc)
        return rc;
    srq->cq = attr->cq;
    if (attr->cq)
        ((struct cq *)attr->cq)->qps++;
    enter_srq(dev, srq);
    return 0;
}

int soft_create_srq_ex(struct rnic_context *ctx, struct rnic_srq_init_attr_ex *attr, struct rnic_srq **out,
                       struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    struct srq *srq = NULL;
    int rc = dev_check_usable(dev, err);
    if (!rc)
        rc = check_ex(ctx, attr, err);
    if (!rc)
        rc = verbs_make_srq(attr->pd, attr->srq_context, &attr->attr, &srq, err);
    if (rc)
        return rc;
    if (attr->srq_type == RNIC_SRQT_TM)
        rc = verbs_make_tags(srq, &attr->tm_cap, err);
    if (!rc) {
        dev_lock(dev);
        rc = specialise(dev, srq, attr, err);
        dev_unlock(dev);
    }
    if (rc) {
        free_srq(srq);
        return rc;
    }
    *out = &srq->pub;
    return 0;
}

/* ---------------------------------------------------------------- what all can do */

static int modify(struct dev *dev, struct srq *srq, const struct rnic_srq_attr *attr, uint32_t mask,
                  struct rnic_err *err) {
    uint32_t max_wr = mask & RNIC_SRQ_MAX_WR ? attr->max_wr : srq->q.max_wr;
    uint32_t limit = mask & RNIC_SRQ_LIMIT ? attr->srq_limit : srq->limit;
    if (limit > max_wr)
        return fail(err, -EINVAL, "srq_limit is %u; the queue has room for %u", limit, max_wr);
    int rc = mask & RNIC_SRQ_MAX_WR ? srq_resize(srq, max_wr) : 0;
    if (rc)
        return fail(err, rc, rc == -EINVAL ? "more than %u receives are posted" : "no memory for %u receives", max_wr);
    srq->limit = limit;
    if (mask & RNIC_SRQ_LIMIT)
        srq_look_at_limit(&dev->nic, srq); /* it may be below already, and no message come that takes another one */
    return 0;
}

int soft_modify_srq(struct rnic_srq *pub, const struct rnic_srq_attr *attr, uint32_t mask, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    int rc = dev_check_usable(dev, err);
    if (rc)
        return rc;
    if ((mask & RNIC_SRQ_MAX_WR) && (attr->max_wr < 1 || attr->max_wr > (uint32_t)dev->attr.max_srq_wr))
        return fail(err, -EINVAL, "max_wr is %u; allowed are 1 to %d", attr->max_wr, dev->attr.max_srq_wr);
    dev_lock(dev);
    rc = modify(dev, (struct srq *)pub, attr, mask, err);
    dev_unlock(dev);
    return rc;
}

int soft_query_srq(struct rnic_srq *pub, struct rnic_srq_attr *attr, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    const struct srq *srq = (const struct srq *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    *attr = (struct rnic_srq_attr){srq->q.max_wr, srq->q.max_sge, srq->limit};
    dev_unlock(dev);
    return 0;
}

static void leave_srq(struct dev *dev, struct srq *srq) {
    if (srq->xrc)
        verbs_leave_domain(dev, srq);
    if (srq->cq)
        ((struct cq *)srq->cq)->qps--;
    ((struct pd *)srq->pub.pd)->srqs--;
    object_leave(dev, KIND_SRQ, &srq->listed);
}

int soft_destroy_srq(struct rnic_srq *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct srq *srq = (struct srq *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    rc = srq->qps ? fail(err, -EBUSY, "%d queue pairs take from it", srq->qps)
                  : dev_leave_events(dev, pub->srq_context, err);
    if (!rc)
        leave_srq(dev, srq);
    dev_unlock(dev);
    if (rc)
        return rc;
    free_srq(srq);
    return 0;
}

/* A peer that had to wait asks again by itself. */
int soft_post_srq_recv(struct rnic_srq *pub, const struct rnic_recv_wr *wr, const struct rnic_recv_wr **bad,
                       struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(pub->ctx), err);
    if (rc) {
        *bad = wr;
        return rc;
    }
    return rq_post(&((struct srq *)pub)->q, wr, bad, err);
}
