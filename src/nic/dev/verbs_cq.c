/* SPDX-License-Identifier: Apache-2.0
 *
 * Completion channels and completion queues (IBA 11.2.6, 11.4.2).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "dev/verbs.h"

int soft_create_comp_channel(struct rnic_context *ctx, struct rnic_comp_channel **out, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_usable(dev, err);
    if (rc)
        return rc;
    struct channel *ch = calloc(1, sizeof *ch);
    rc = ch ? channel_init(ch) : -ENOMEM;
    if (rc) {
        free(ch);
        return fail(err, rc, "eventfd: %s", strerror(-rc));
    }
    ch->pub.ctx = ctx;
    dev_lock(dev);
    dev->channels++;
    ch->next = dev->channel_list;
    dev->channel_list = ch;
    dev_unlock(dev);
    *out = &ch->pub;
    return 0;
}

static void unlink_channel(struct dev *dev, struct channel *ch) {
    struct channel **at = &dev->channel_list;
    while (*at != ch)
        at = &(*at)->next;
    *at = ch->next;
    dev->channels--;
}

int soft_destroy_comp_channel(struct rnic_comp_channel *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct channel *ch = (struct channel *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    int cqs = ch->cqs;
    if (!cqs)
        unlink_channel(dev, ch);
    dev_unlock(dev);
    if (cqs)
        return fail(err, -EBUSY, "%d completion queues report to the channel", cqs);
    channel_free(ch);
    free(ch);
    return 0;
}

int soft_get_cq_event(struct rnic_comp_channel *ch, struct rnic_cq **cq, struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(ch->ctx), err);
    if (rc)
        return rc;
    struct cq *got = channel_take((struct channel *)ch);
    if (!got) {
        engine_take_over(dev_of(ch->ctx));
        return -EAGAIN;
    }
    *cq = &got->pub;
    return 0;
}

static int check_cqe(int cqe, struct rnic_err *err) {
    return cqe >= 1 && cqe <= MAX_CQE ? 0 : fail(err, -EINVAL, "%d entries; allowed are 1 to %d", cqe, MAX_CQE);
}

int soft_create_cq(struct rnic_context *ctx, int cqe, struct rnic_comp_channel *ch, void *cq_context,
                   struct rnic_cq **out, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_usable(dev, err);
    if (!rc)
        rc = check_cqe(cqe, err);
    if (rc)
        return rc;
    if (ch && ch->ctx != ctx)
        return fail(err, -EINVAL, "the completion channel belongs to another device");
    struct cq *cq = calloc(1, sizeof *cq);
    if (!cq || cq_init(cq, cqe)) {
        free(cq);
        return fail(err, -ENOMEM, "no memory for %d entries", cqe);
    }
    cq->pub.ctx = ctx;
    cq->pub.channel = ch;
    cq->pub.cq_context = cq_context;
    dev_lock(dev);
    dev->cqs++;
    if (ch)
        ((struct channel *)ch)->cqs++;
    dev_unlock(dev);
    *out = &cq->pub;
    return 0;
}

int soft_resize_cq(struct rnic_cq *cq, int cqe, struct rnic_err *err) {
    struct dev *dev = dev_of(cq->ctx);
    int rc = dev_check_usable(dev, err);
    if (!rc)
        rc = check_cqe(cqe, err);
    if (rc)
        return rc;
    dev_lock(dev);
    rc = cq_resize((struct cq *)cq, cqe, err);
    dev_unlock(dev);
    return rc;
}

static int check_unused(struct dev *dev, struct cq *cq, struct channel *ch, struct rnic_err *err) {
    if (cq->qps)
        return fail(err, -EBUSY, "%d send or receive queues complete to it", cq->qps);
    int rc = dev_leave_events(dev, cq->pub.cq_context, err);
    if (!rc && ch && !channel_forget(ch, cq))
        rc = fail(err, -EBUSY, "%u events are not acknowledged: ack_events(%u)", cq->taken, cq->taken);
    return rc;
}

int soft_destroy_cq(struct rnic_cq *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct channel *ch = (struct channel *)pub->channel;
    struct cq *cq = (struct cq *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    rc = check_unused(dev, cq, ch, err);
    if (!rc) {
        dev->cqs--;
        if (ch)
            ch->cqs--;
    }
    dev_unlock(dev);
    if (rc)
        return rc;
    cq_free(cq);
    free(cq);
    return 0;
}

int soft_poll_cq(struct rnic_cq *pub, int n, struct rnic_wc *wc) {
    struct dev *dev = dev_of(pub->ctx);
    struct cq *cq = (struct cq *)pub;
    if (n <= 0)
        return n < 0 ? -EINVAL : 0;
    if (atomic_load_explicit(&dev->dead, memory_order_relaxed))
        return -EINVAL;
    if (cq_empty(cq)) /* and armed: whoever polls is about to wait for the event */
        progress_poll(dev, atomic_load_explicit(&cq->armed, memory_order_relaxed) != CQ_NOT_ARMED);
    int got = cq_empty(cq) ? 0 : cq_take(cq, n, wc);
    progress_polled(dev, got > 0);
    return got == 0 && atomic_load_explicit(&cq->overrun, memory_order_relaxed) ? -EOVERFLOW : got;
}

int soft_req_notify_cq(struct rnic_cq *cq, int solicited_only, struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(cq->ctx), err);
    if (rc)
        return rc;
    if (!cq->channel)
        return fail(err, -EINVAL, "the completion queue was created without a completion channel");
    cq_arm((struct cq *)cq, solicited_only != 0);
    return 0;
}

int soft_ack_cq_events(struct rnic_cq *cq, unsigned n, struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(cq->ctx), err);
    return rc ? rc : cq_ack((struct cq *)cq, n, err);
}
