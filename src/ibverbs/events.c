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

void told_ack(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *acknowledged, uint32_t n) {
    pthread_mutex_lock(mutex);
    *acknowledged += n;
    pthread_cond_broadcast(cond);
    pthread_mutex_unlock(mutex);
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
    if (!rc) {
        show_event(&got, event);
        c->ops->ack_async_event(c->nic, &got, NULL);
    }
    taking_end(context);
    return rc;
}

EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
    struct rnic_err err = {0};
    int rc;
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

EXPORT void ibv_ack_async_event(struct ibv_async_event *event) {
    switch (event_subject((int)event->event_type)) {
    case OF_CQ: {
        struct ibv_cq *cq = event->element.cq;
        told_ack(&cq->mutex, &cq->cond, &cq->async_events_completed, 1);
        break;
    }
    case OF_QP: {
        struct ibv_qp *qp = event->element.qp;
        told_ack(&qp->mutex, &qp->cond, &qp->events_completed, 1);
        break;
    }
    case OF_SRQ: {
        struct ibv_srq *srq = event->element.srq;
        told_ack(&srq->mutex, &srq->cond, &srq->events_completed, 1);
        break;
    }
    case OF_WQ: {
        struct ibv_wq *wq = event->element.wq;
        told_ack(&wq->mutex, &wq->cond, &wq->events_completed, 1);
        break;
    }
    case OF_PORT:
        break;
    }
}
