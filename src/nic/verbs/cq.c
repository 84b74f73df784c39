/* SPDX-License-Identifier: Apache-2.0
 *
 * Completion channels and completion queues (IBA 11.2.6, 11.4.2).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "queue/moderation.h"
#include "verbs/verbs.h"

int soft_create_comp_channel(struct rnic_context *ctx, struct rnic_comp_channel **out, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_usable(dev, err);
    if (rc)
        return rc;
    struct channel *ch = calloc(1, sizeof *ch);
    if (!ch)
        return fail(err, -ENOMEM, "no memory");
    ch->pub.ctx = ctx;
    dev_lock(dev);
    rc = channel_init(ch);
    if (!rc)
        object_enter(dev, KIND_CHANNEL, &ch->listed);
    dev_unlock(dev);
    if (rc) {
        free(ch);
        return fail(err, rc, "eventfd: %s", strerror(-rc));
    }
    *out = &ch->pub;
    return 0;
}

int soft_destroy_comp_channel(struct rnic_comp_channel *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct channel *ch = (struct channel *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    int cqs = ch->cqs;
    if (!cqs) {
        object_leave(dev, KIND_CHANNEL, &ch->listed);
        channel_free(ch);
    }
    dev_unlock(dev);
    if (cqs)
        return fail(err, -EBUSY, "%d completion queues report to the channel", cqs);
    free(ch);
    return 0;
}

int soft_get_cq_event(struct rnic_comp_channel *ch, struct rnic_cq **cq, struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(ch->ctx), err);
    if (rc)
        return rc;
    struct cq *got = channel_take((struct channel *)ch);
    if (!got) {
        engine_take_over(&dev_of(ch->ctx)->run);
        return -EAGAIN;
    }
    *cq = &got->pub;
    return 0;
}

static int check_cqe(const struct dev *dev, int64_t cqe, struct rnic_err *err) {
    int most = dev->attr.max_cqe;
    return cqe >= 1 && cqe <= most ? 0 : fail(err, -EINVAL, "%lld entries; allowed are 1 to %d", (long long)cqe, most);
}

#define WC_FLAGS                                                                                                       \
    (RNIC_WC_EX_WITH_BYTE_LEN | RNIC_WC_EX_WITH_IMM | RNIC_WC_EX_WITH_QP_NUM | RNIC_WC_EX_WITH_SRC_QP |                \
     RNIC_WC_EX_WITH_SLID | RNIC_WC_EX_WITH_SL | RNIC_WC_EX_WITH_DLID_PATH_BITS |                                      \
     RNIC_WC_EX_WITH_FLOW_TAG | RNIC_WC_EX_WITH_COMPLETION_TIMESTAMP | RNIC_WC_EX_WITH_TM_INFO | RNIC_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
#define CREATE_FLAGS (RNIC_CREATE_CQ_ATTR_SINGLE_THREADED | RNIC_CREATE_CQ_ATTR_IGNORE_OVERRUN)
#define INIT_MASK (RNIC_CQ_INIT_ATTR_MASK_FLAGS | RNIC_CQ_INIT_ATTR_MASK_PD)

static int check_extensions(const struct rnic_cq_init_attr_ex *attr, struct rnic_err *err) {
    uint64_t fields = attr->wc_flags & ~(uint64_t)WC_FLAGS;
    uint32_t mask = attr->comp_mask & ~(uint32_t)INIT_MASK, flags = attr->flags & ~(uint32_t)CREATE_FLAGS;
    if (fields)
        return fail(err, -EOPNOTSUPP, "wc_flags: completions of this device have no fields 0x%llx",
                    (unsigned long long)fields);
    if (mask)
        return fail(err, -EINVAL, "comp_mask: 0x%x is unknown", mask);
    if (flags)
        return fail(err, -EOPNOTSUPP, "flags: 0x%x are not supported", flags);
    if (attr->flags && !(attr->comp_mask & RNIC_CQ_INIT_ATTR_MASK_FLAGS))
        return fail(err, -EINVAL, "flags are 0x%x, but comp_mask lacks FLAGS", attr->flags);
    if (!attr->parent_domain != !(attr->comp_mask & RNIC_CQ_INIT_ATTR_MASK_PD))
        return fail(err, -EINVAL, "parent_domain and its bit of comp_mask go together");
    return 0;
}

static int check_create(struct rnic_context *ctx, const struct rnic_cq_init_attr_ex *attr, struct rnic_err *err) {
    int rc = dev_check_usable(dev_of(ctx), err);
    if (!rc)
        rc = check_cqe(dev_of(ctx), attr->cqe, err);
    if (rc)
        return rc;
    if (attr->comp_vector >= COMP_VECTORS)
        return fail(err, -EINVAL, "comp_vector is %u; the device has %d, counted from 0", attr->comp_vector,
                    COMP_VECTORS);
    if (attr->channel && attr->channel->ctx != ctx)
        return fail(err, -EINVAL, "the completion channel belongs to another device");
    if (attr->parent_domain && (attr->parent_domain->ctx != ctx || !attr->parent_domain->parent))
        return fail(err, -EINVAL, "a completion queue is made with a parent domain of its own device");
    return check_extensions(attr, err);
}

static void enter_cq(struct dev *dev, struct cq *cq, struct channel *ch) {
    object_enter(dev, KIND_CQ, &cq->listed);
    if (ch)
        ch->cqs++;
    if (cq->domain)
        ((struct pd *)cq->domain)->cqs++;
}

static void leave_cq(struct dev *dev, struct cq *cq, struct channel *ch) {
    object_leave(dev, KIND_CQ, &cq->listed);
    moderation_forget(cq);
    if (cq->domain)
        ((struct pd *)cq->domain)->cqs--;
    if (ch)
        ch->cqs--;
}

int soft_create_cq_ex(struct rnic_context *ctx, const struct rnic_cq_init_attr_ex *attr, struct rnic_cq **out,
                      struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    struct channel *ch = (struct channel *)attr->channel;
    int rc = check_create(ctx, attr, err);
    if (rc)
        return rc;
    struct cq *cq = calloc(1, sizeof *cq);
    if (cq) {
        cq->timing = &dev->nic.cq_timing;
        cq->wc_flags = attr->wc_flags;
        cq->flags = attr->flags;
    }
    if (!cq || cq_init(cq, (int)attr->cqe)) {
        free(cq);
        return fail(err, -ENOMEM, "no memory for %u entries", attr->cqe);
    }
    cq->pub.ctx = ctx;
    cq->pub.channel = attr->channel;
    cq->pub.cq_context = attr->cq_context;
    cq->domain = attr->parent_domain; /* that one thread polls it is a hint, which is not needed here */
    dev_lock(dev);
    rc = verbs_check_room(dev, KIND_CQ, err);
    if (!rc)
        enter_cq(dev, cq, ch);
    dev_unlock(dev);
    if (rc) {
        cq_free(cq);
        free(cq);
        return rc;
    }
    *out = &cq->pub;
    return 0;
}

int soft_create_cq(struct rnic_context *ctx, int cqe, struct rnic_comp_channel *ch, uint32_t comp_vector,
                   void *cq_context, struct rnic_cq **out, struct rnic_err *err) {
    struct rnic_cq_init_attr_ex attr = {
        .cqe = cqe < 0 ? 0 : (uint32_t)cqe, .cq_context = cq_context, .channel = ch, .comp_vector = comp_vector};
    return soft_create_cq_ex(ctx, &attr, out, err);
}

int soft_modify_cq(struct rnic_cq *pub, const struct rnic_modify_cq_attr *attr, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    if (attr->attr_mask & ~(uint32_t)RNIC_CQ_ATTR_MODERATE)
        return fail(err, -EINVAL, "attr_mask is 0x%x; MODERATE is all that can be modified", attr->attr_mask);
    if (!attr->attr_mask)
        return 0;
    if (!pub->channel)
        return fail(err, -EINVAL, "the queue was created without a completion channel: it has no events to moderate");
    dev_lock(dev);
    moderation_set((struct cq *)pub, &attr->moderate);
    dev_unlock(dev);
    return 0;
}

int soft_resize_cq(struct rnic_cq *cq, int cqe, struct rnic_err *err) {
    struct dev *dev = dev_of(cq->ctx);
    int rc = dev_check_usable(dev, err);
    if (!rc)
        rc = check_cqe(dev, cqe, err);
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
    if (rc || !ch || channel_forget(ch, cq))
        return rc;
    fail(err, -EBUSY, "unacknowledged events: %u; ack_events(%u) first", cq->taken, cq->taken);
    return dev_busy_for(cq->taken, err);
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
    if (!rc)
        leave_cq(dev, cq, ch);
    dev_unlock(dev);
    if (rc)
        return rc;
    cq_free(cq);
    free(cq);
    return 0;
}

/* Whoever created it SINGLE_THREADED has promised that no two threads poll it at a time. */
static bool begin_poll(struct cq *cq) {
    return !(cq->flags & RNIC_CREATE_CQ_ATTR_SINGLE_THREADED) || !atomic_exchange(&cq->polled, true);
}

static void end_poll(struct cq *cq) {
    if (cq->flags & RNIC_CREATE_CQ_ATTR_SINGLE_THREADED)
        atomic_store(&cq->polled, false);
}

static int take(struct cq *cq, int n, struct rnic_wc *wc, struct rnic_wc_ex *times) {
    return cq_empty(cq) ? 0 : cq_take_ex(cq, n, wc, times);
}

static int poll_cq(struct dev *dev, struct cq *cq, int n, struct rnic_wc *wc, struct rnic_wc_ex *times) {
    bool looked = true;
    if (cq_empty(cq)) /* and armed: whoever polls is about to wait for the event */
        looked = progress_poll(&dev->run, atomic_load_explicit(&cq->armed, memory_order_relaxed) != CQ_NOT_ARMED);
    int got = take(cq, n, wc, times);
    if ((looked || got) && progress_polled(&dev->run, got > 0))
        got = take(cq, n, wc, times);
    return got == 0 && atomic_load_explicit(&cq->overrun, memory_order_relaxed) ? -EOVERFLOW : got;
}

int soft_poll_cq_ex(struct rnic_cq *pub, int n, struct rnic_wc *wc, struct rnic_wc_ex *times) {
    struct dev *dev = dev_of(pub->ctx);
    struct cq *cq = (struct cq *)pub;
    if (n <= 0)
        return n < 0 ? -EINVAL : 0;
    if (atomic_load_explicit(&dev->dead, memory_order_relaxed))
        return -EINVAL;
    if (!begin_poll(cq))
        return -EBUSY;
    int got = poll_cq(dev, cq, n, wc, times);
    end_poll(cq);
    return got;
}

/* What is there, or a short look brings. */
static int poll_cq_now(struct dev *dev, struct cq *cq, int n, struct rnic_wc *wc) {
    bool waits = atomic_load_explicit(&cq->armed, memory_order_relaxed) != CQ_NOT_ARMED;
    if (cq_empty(cq) && (waits || !progress_look(&dev->run)))
        return -EAGAIN;
    int got = cq_empty(cq) ? 0 : cq_take_ex(cq, n, wc, NULL);
    if (got)
        progress_polled(&dev->run, true);
    return got || !atomic_load_explicit(&cq->overrun, memory_order_relaxed) ? got : -EAGAIN;
}

int soft_poll_cq_now(struct rnic_cq *pub, int n, struct rnic_wc *wc) {
    struct dev *dev = dev_of(pub->ctx);
    struct cq *cq = (struct cq *)pub;
    if (n <= 0 || atomic_load_explicit(&dev->dead, memory_order_relaxed) || !begin_poll(cq))
        return -EAGAIN;
    int got = poll_cq_now(dev, cq, n, wc);
    end_poll(cq);
    return got;
}

int soft_poll_cq(struct rnic_cq *pub, int n, struct rnic_wc *wc) { return soft_poll_cq_ex(pub, n, wc, NULL); }

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

/* ---------------------------------------------------------------- who waits, drives */

struct queues {
    struct rnic_cq *const *cq;
    int n;
};

static bool have_some(const void *of) {
    const struct queues *q = of;
    bool any = false;
    for (int i = 0; i < q->n; i++)
        any |= !cq_empty((struct cq *)q->cq[i]);
    return any;
}

static void arm_queues(const void *of, bool armed) {
    const struct queues *q = of;
    for (int i = 0; i < q->n; i++) {
        if (armed)
            cq_arm((struct cq *)q->cq[i], false);
        else
            atomic_store(&((struct cq *)q->cq[i])->armed, CQ_NOT_ARMED);
    }
}

int soft_wait_cq(struct rnic_cq *const *cq, int n, int fd, uint64_t until, bool goes_on) {
    struct dev *dev = dev_of(cq[0]->ctx);
    const struct queues queues = {cq, n};
    const struct drive drive = {.fd = fd, .has = have_some, .arm = arm_queues, .of = &queues, .goes_on = goes_on};
    return atomic_load(&dev->dead) ? -EAGAIN : drive_wait(&dev->run, &drive, until);
}

static bool has_event(const void *of) { return channel_has((struct channel *)of); }

static void leave_armed(const void *of, bool armed) { (void)of, (void)armed; }

int soft_wait_channel(struct rnic_comp_channel *ch, uint64_t until, bool goes_on) {
    struct dev *dev = dev_of(ch->ctx);
    const struct drive drive = {.fd = ch->fd, .has = has_event, .arm = leave_armed, .of = ch, .goes_on = goes_on};
    return atomic_load(&dev->dead) ? -EAGAIN : drive_wait(&dev->run, &drive, until);
}
