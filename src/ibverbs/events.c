/* SPDX-License-Identifier: Apache-2.0
 *
 * Asynchronous events (man ibv_get_async_event).
 */
#include "lib.h"

void told_wait(pthread_mutex_t *mutex, pthread_cond_t *cond, const uint32_t *told, const uint32_t *acknowledged) {
    pthread_mutex_lock(mutex);
    while (__atomic_load_n(told, __ATOMIC_RELAXED) != *acknowledged)
        pthread_cond_wait(cond, mutex);
    pthread_mutex_unlock(mutex);
}

void told_settle(const uint32_t *told, const uint32_t *acknowledged, struct ibv_async_event event) {
    for (uint32_t left = *told - *acknowledged; left; left--)
        ibv_ack_async_event(&event);
}

void taking_begin(struct ibv_context *context) { pthread_mutex_lock(&context_of(context)->taking); }
void taking_end(struct ibv_context *context) { pthread_mutex_unlock(&context_of(context)->taking); }

enum subject event_subject(int type) {
    switch (type) {
    case IBV_EVENT_CQ_ERR:
        return OF_CQ;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
        return OF_QP;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
        return OF_SRQ;
    case IBV_EVENT_WQ_FATAL:
        return OF_WQ;
    default:
        return OF_PORT;
    }
}

/* The context of an event is that of its object, which is ours. */
static void show_event(const struct rnic_async_event *from, struct ibv_async_event *to) {
    struct told *told = NULL;
    to->event_type = (enum ibv_event_type)from->event_type;
    switch (event_subject(from->event_type)) {
    case OF_CQ:
        to->element.cq = from->context;
        told = &((struct cq *)from->context)->told;
        break;
    case OF_QP:
        to->element.qp = from->context;
        told = &((struct qp *)from->context)->told;
        break;
    case OF_SRQ:
        to->element.srq = from->context;
        told = &((struct srq *)from->context)->told;
        break;
    case OF_WQ:
        to->element.wq = from->context;
        told = &((struct wq *)from->context)->told;
        break;
    case OF_PORT:
        to->element.port_num = from->port_num;
        break;
    }
    if (told)
        __atomic_add_fetch(&told->events, 1, __ATOMIC_RELAXED); /* destroying waits for it */
}

/* -EAGAIN: there is none. */
static int take(struct ibv_context *context, struct ibv_async_event *event, struct rnic_err *err) {
    struct context *c = context_of(context);
    struct rnic_async_event got;
    taking_begin(context);
    int rc = JUST_CALL(c->ops, get_async_event, c->nic, &got, err);
    if (!rc)
        show_event(&got, event);
    taking_end(context);
    return rc;
}

EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
    struct rnic_err err = {0};
    int rc = FAILS(get_async_event);
    if (failed("get_async_event", rc, NULL))
        return -1;
    while ((rc = take(context, event, &err)) == -EAGAIN) {
        int why = device_gone(context_of(context)) ? EIO : shown_wait(context->async_fd);
        if (why) {
            errno = why;
            return -1;
        }
    }
    if (rc) {
        failed("get_async_event", rc, &err);
        return -1;
    }
    return 0;
}

/* object: the event's context.  Whoever destroys the object has it when the mutex is free again. */
static void acknowledge(struct ibv_context *context, int type, void *object, pthread_mutex_t *mutex,
                        pthread_cond_t *cond, uint32_t *acknowledged) {
    struct context *c = context_of(context);
    const struct rnic_async_event event = {.event_type = type, .context = object};
    pthread_mutex_lock(mutex);
    (void)JUST_CALL(c->ops, ack_async_event, c->nic, &event, NULL);
    ++*acknowledged;
    pthread_cond_broadcast(cond);
    pthread_mutex_unlock(mutex);
}

EXPORT void ibv_ack_async_event(struct ibv_async_event *event) {
    int type = (int)event->event_type;
    switch (event_subject(type)) {
    case OF_CQ: {
        struct ibv_cq *cq = event->element.cq;
        acknowledge(cq->context, type, cq, &cq->mutex, &cq->cond, &cq->async_events_completed);
        break;
    }
    case OF_QP: {
        struct ibv_qp *qp = event->element.qp;
        acknowledge(qp->context, type, qp, &qp->mutex, &qp->cond, &qp->events_completed);
        break;
    }
    case OF_SRQ: {
        struct ibv_srq *srq = event->element.srq;
        acknowledge(srq->context, type, srq, &srq->mutex, &srq->cond, &srq->events_completed);
        break;
    }
    case OF_WQ: {
        struct ibv_wq *wq = event->element.wq;
        acknowledge(wq->context, type, wq, &wq->mutex, &wq->cond, &wq->events_completed);
        break;
    }
    case OF_PORT:
        break;
    }
}
