/* SPDX-License-Identifier: Apache-2.0
 *
 * Completion channels and queues (man ibv_create_cq, ibv_get_cq_event).  The device's own acknowledgement of an event is
 * given with that of the program, which is counted here as well, as it is what destroying waits for.
 */
#include <unistd.h>

#include "lib.h"

/* ---------------------------------------------------------------- channels */

EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *asked) {
    struct ibv_context *context = compat_context(asked);
    struct context *c = context_of(context);
    struct channel *channel = calloc(1, sizeof *channel);
    struct rnic_err err = {0};
    int rc = channel ? CALL(c->ops, create_comp_channel, c->nic, &channel->nic, &err) : -ENOMEM;
    int fd = rc ? -1 : shown_descriptor(c->nic, channel->nic->fd);
    if (!rc && fd < 0) {
        rc = -errno;
        c->ops->destroy_comp_channel(channel->nic, NULL);
    }
    if (rc) {
        free(channel);
        return failed_null("create_comp_channel", rc, &err);
    }
    channel->pub = (struct ibv_comp_channel){.context = context, .fd = fd};
    object_add(context, KIND_CHANNEL, &channel->object);
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
    close(pub->fd);
    free(channel);
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
    object_add(context, KIND_CQ, &cq->object);
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
    cq_extend(cq, attr->wc_flags);
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

static void wait_for_cq(struct cq *cq) {
    struct ibv_cq *pub = (struct ibv_cq *)&cq->pub;
    told_wait(&pub->mutex, &pub->cond, &cq->told.completions, &pub->comp_events_completed);
    told_wait(&pub->mutex, &pub->cond, &cq->told.events, &pub->async_events_completed);
}

EXPORT int ibv_destroy_cq(struct ibv_cq *pub) {
    struct cq *cq = (struct cq *)pub;
    struct rnic_err err = {0};
    int rc = TAKE_AWAY(pub->context, destroy_cq, cq->nic, &err, wait_for_cq(cq));
    if (rc)
        return failed("destroy_cq", rc, &err);
    wait_for_cq(cq); /* who has acknowledged the last one has let go of the mutex */
    use_channel(pub->channel, -1);
    object_remove(pub->context, &cq->object);
    pthread_mutex_destroy(&pub->mutex);
    pthread_cond_destroy(&pub->cond);
    GIVE_BACK(cq->domain, cq);
    return 0;
}

void cq_end(struct object *object) {
    struct cq *cq = OF(cq, object);
    struct ibv_cq *pub = (struct ibv_cq *)&cq->pub;
    ibv_ack_cq_events(pub, cq->told.completions - pub->comp_events_completed);
    told_settle(&cq->told.events, &pub->async_events_completed,
                (struct ibv_async_event){.element.cq = pub, .event_type = IBV_EVENT_CQ_ERR});
    ibv_destroy_cq(pub);
}
void channel_end(struct object *object) { ibv_destroy_comp_channel(&OF(channel, object)->pub); }

/* ---------------------------------------------------------------- events */

/* -EAGAIN: there is none. */
static int take(struct channel *channel, struct cq **cq, struct rnic_err *err) {
    struct ibv_context *context = channel->pub.context;
    struct rnic_cq *nic = NULL;
    taking_begin(context);
    int rc = QUIETLY(context_of(context)->ops->get_cq_event(channel->nic, &nic, err));
    if (!rc) {
        *cq = nic->cq_context;
        __atomic_add_fetch(&(*cq)->told.completions, 1, __ATOMIC_RELAXED); /* destroying waits for it */
    }
    taking_end(context);
    return rc;
}

EXPORT int ibv_get_cq_event(struct ibv_comp_channel *pub, struct ibv_cq **out, void **cq_context) {
    struct cq *cq = NULL;
    struct rnic_err err = {0};
    int rc = FAILS(get_cq_event);
    if (failed("get_cq_event", rc, NULL))
        return -1;
    while ((rc = take((struct channel *)pub, &cq, &err)) == -EAGAIN) {
        int why = device_gone(context_of(pub->context)) ? EIO : shown_wait(pub->fd);
        if (why) {
            errno = why;
            return -1;
        }
    }
    if (rc) {
        failed("get_cq_event", rc, &err);
        return -1;
    }
    *out = (struct ibv_cq *)&cq->pub;
    *cq_context = cq->pub.cq_context;
    return 0;
}

EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n) {
    pthread_mutex_lock(&cq->mutex);
    context_of(cq->context)->ops->ack_cq_events(((struct cq *)cq)->nic, n, NULL);
    cq->comp_events_completed += n;
    pthread_cond_broadcast(&cq->cond);
    pthread_mutex_unlock(&cq->mutex);
}

static int req_notify_cq(struct ibv_cq *pub, int solicited_only) {
    return -QUIETLY(context_of(pub->context)->ops->req_notify_cq(((struct cq *)pub)->nic, solicited_only, NULL));
}

void completion_ops(struct verbs_context *ex, const struct rnic_ops *ops) {
    ex->context.ops.req_notify_cq = req_notify_cq;
    GIVE(ex, create_cq_ex, ops, create_cq_ex, create_cq_ex);
    GIVE(ex, modify_cq, ops, modify_cq, modify_cq);
}
