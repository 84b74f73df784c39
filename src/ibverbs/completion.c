/* SPDX-License-Identifier: Apache-2.0
 *
 * Completion channels and queues (man ibv_create_cq, ibv_get_cq_event).  The device's own acknowledgement of an event is
 * given with that of the program, which is counted here as well, as it is what destroying waits for.
 */
#include "lib.h"

/* ---------------------------------------------------------------- channels */

static void free_channel(void *whole) {
    struct channel *channel = whole;
    shown_close(channel->pub.fd);
    free(channel);
}

EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *asked) {
    struct ibv_context *context = compat_context(asked);
    struct context *c = context_of(context);
    struct channel *channel = calloc(1, sizeof *channel);
    struct rnic_err err = {0};
    int rc = channel ? CALL(c->ops, create_comp_channel, c->nic, &channel->nic, &err) : -ENOMEM;
    int fd = rc ? -1 : shown_descriptor(c->nic, channel->nic->fd);
    if (!rc && fd < 0) {
        rc = -errno;
        UNCANCELLED(c->ops->destroy_comp_channel(channel->nic, NULL));
    }
    if (rc) {
        free(channel);
        return failed_null("create_comp_channel", rc, &err);
    }
    channel->pub = (struct ibv_comp_channel){.context = context, .fd = fd};
    ADD(context, channel, free_channel);
    return &channel->pub;
}

EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *pub) {
    struct channel *channel = (struct channel *)pub;
    struct rnic_err err = {0};
    if (pub->refcnt)
        return refused("destroy_comp_channel", EBUSY, "completion queues use the channel");
    int rc = CALL(context_of(pub->context)->ops, destroy_comp_channel, channel->nic, &err);
    if (rc)
        return failed("destroy_comp_channel", rc, &err);
    object_remove(pub->context, &channel->object);
    free_channel(channel);
    return 0;
}

/* One more, or one less, completion queue has the channel. */
static void use_channel(struct ibv_comp_channel *channel, int more) {
    if (!channel)
        return;
    pthread_mutex_lock(&channel->context->mutex);
    channel->refcnt += more;
    pthread_mutex_unlock(&channel->context->mutex);
}

/* ---------------------------------------------------------------- queues */

static void free_cq(void *whole) {
    struct cq *cq = whole;
    struct ibv_cq *pub = (struct ibv_cq *)&cq->pub;
    pthread_mutex_destroy(&pub->mutex);
    pthread_cond_destroy(&pub->cond);
    if (cq->extended)
        pthread_mutex_destroy(&cq->polling);
    GIVE_BACK(cq->domain, cq);
}

static struct cq *show_cq(struct ibv_context *context, struct cq *cq, struct ibv_comp_channel *channel,
                          void *cq_context) {
    struct ibv_cq *pub = (struct ibv_cq *)&cq->pub;
    pub->context = context;
    pub->channel = channel;
    pub->cq_context = cq_context;
    pub->cqe = cq->nic->cqe;
    pthread_mutex_init(&pub->mutex, NULL);
    pthread_cond_init(&pub->cond, NULL);
    use_channel(channel, 1);
    ADD(context, cq, free_cq);
    return cq;
}

EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                                    struct ibv_comp_channel *channel, int comp_vector) {
    struct context *c = context_of(context);
    struct cq *cq = calloc(1, sizeof *cq);
    struct rnic_err err = {0};
    int rc = cq ? CALL(c->ops, create_cq, c->nic, cqe, NIC(channel, channel), (uint32_t)comp_vector, cq, &cq->nic, &err)
                : -ENOMEM;
    if (!rc)
        return (struct ibv_cq *)&show_cq(context, cq, channel, cq_context)->pub;
    free(cq);
    return failed_null("create_cq", rc, &err);
}

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr) {
    struct context *c = context_of(context);
    struct ibv_pd *domain = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD ? attr->parent_domain : NULL;
    struct cq *cq = TAKE(cq, domain);
    struct rnic_err err = {0};
    struct rnic_cq_init_attr_ex how = {.cqe = attr->cqe,
                                       .cq_context = cq,
                                       .channel = NIC(channel, attr->channel),
                                       .comp_vector = attr->comp_vector,
                                       .wc_flags = attr->wc_flags,
                                       .comp_mask = attr->comp_mask,
                                       .flags = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? attr->flags : 0,
                                       .parent_domain = NIC(pd, domain)};
    int rc = cq ? CALL(c->ops, create_cq_ex, c->nic, &how, &cq->nic, &err) : -ENOMEM;
    if (rc) {
        if (cq)
            GIVE_BACK(domain, cq);
        return failed_null("create_cq_ex", rc, &err);
    }
    cq->domain = domain;
    cq_extend(cq, attr->wc_flags, how.flags & RNIC_CREATE_CQ_ATTR_SINGLE_THREADED);
    return &show_cq(context, cq, attr->channel, attr->cq_context)->pub;
}

EXPORT int ibv_resize_cq(struct ibv_cq *pub, int cqe) {
    struct cq *cq = (struct cq *)pub;
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, resize_cq, cq->nic, cqe, &err);
    pub->cqe = cq->nic->cqe;
    return failed("resize_cq", rc, &err);
}

static int modify_cq(struct ibv_cq *pub, struct ibv_modify_cq_attr *attr) {
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, modify_cq, ((struct cq *)pub)->nic,
                  (const struct rnic_modify_cq_attr *)attr, &err);
    return failed("modify_cq", rc, &err);
}

EXPORT int ibv_destroy_cq(struct ibv_cq *pub) {
    struct cq *cq = (struct cq *)pub;
    struct rnic_err err = {0};
    const struct acks acks = {&pub->mutex, &pub->cond, &pub->async_events_completed, &pub->comp_events_completed};
    int rc = TAKE_AWAY(pub->context, destroy_cq, cq->nic, &err, &acks);
    if (rc)
        return failed("destroy_cq", rc, &err);
    use_channel(pub->channel, -1);
    object_remove(pub->context, &cq->object);
    free_cq(cq);
    return 0;
}

/* ---------------------------------------------------------------- events */

EXPORT int ibv_get_cq_event(struct ibv_comp_channel *pub, struct ibv_cq **out, void **cq_context) {
    struct context *c = context_of(pub->context);
    struct rnic_cq *nic = NULL;
    struct rnic_err err = {0};
    int rc = FAILS(get_cq_event);
    if (failed("get_cq_event", rc, NULL))
        return -1;
    int stopped = explain_on ? explain_wait(pub) : 0;
    if (stopped) {
        errno = stopped;
        return -1;
    }
    while ((rc = UNCANCELLED(c->ops->get_cq_event(((struct channel *)pub)->nic, &nic, &err))) == -EAGAIN) {
        int why = device_gone(c) ? EIO : shown_wait(c, pub->fd, ((struct channel *)pub)->nic);
        if (why) {
            errno = why;
            return -1;
        }
    }
    if (rc) {
        failed("get_cq_event", rc, &err);
        return -1;
    }
    struct cq *cq = nic->cq_context; /* it stays until the program has acknowledged the event */
    *out = (struct ibv_cq *)&cq->pub;
    *cq_context = cq->pub.cq_context;
    if (explain_on)
        explain_got(cq);
    return 0;
}

/* More than were taken: of a program that counts wrongly, whose queue shall not wait for ever for its end. */
EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n) {
    const struct rnic_ops *ops = context_of(cq->context)->ops;
    struct rnic_cq *nic = ((struct cq *)cq)->nic;
    pthread_mutex_lock(&cq->mutex);
    int rc = QUIETLY(ops->ack_cq_events(nic, n, NULL));
    for (unsigned i = 0; rc && i < n && !QUIETLY(ops->ack_cq_events(nic, 1, NULL)); i++)
        ;
    cq->comp_events_completed += n;
    pthread_cond_broadcast(&cq->cond);
    pthread_mutex_unlock(&cq->mutex);
}

/* Without a channel no event tells of a completion; a kernel takes the call all the same. */
int completion_req_notify(struct ibv_cq *pub, int solicited_only) {
    if (!pub->channel)
        return 0;
    return -QUIETLY(context_of(pub->context)->ops->req_notify_cq(((struct cq *)pub)->nic, solicited_only, NULL));
}

void completion_ops(struct verbs_context *ex, const struct rnic_ops *ops) {
    ex->context.ops.req_notify_cq = completion_req_notify;
    GIVE(ex, create_cq_ex, ops, create_cq_ex, create_cq_ex);
    GIVE(ex, modify_cq, ops, modify_cq, modify_cq);
}
