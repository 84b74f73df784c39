/* SPDX-License-Identifier: Apache-2.0
 *
 * Asynchronous events (man ibv_get_async_event).
 */
#include "lib.h"

static uint32_t count(const struct acks *acks) {
    return *acks->asynchronous + (acks->completions ? *acks->completions : 0);
}

uint32_t acks_seen(const struct acks *acks) {
    pthread_mutex_lock(acks->mutex);
    uint32_t seen = count(acks);
    pthread_mutex_unlock(acks->mutex);
    return seen;
}

static void unlock(void *mutex) { pthread_mutex_unlock(mutex); }

void acks_wait(const struct acks *acks, uint32_t seen) {
    pthread_mutex_lock(acks->mutex);
    pthread_cleanup_push(unlock, acks->mutex);
    while (count(acks) == seen)
        pthread_cond_wait(acks->cond, acks->mutex);
    pthread_cleanup_pop(1);
}

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
    to->event_type = (enum ibv_event_type)from->event_type;
    switch (event_subject(from->event_type)) {
    case OF_CQ:
        to->element.cq = from->context;
        break;
    case OF_QP:
        to->element.qp = from->context;
        break;
    case OF_SRQ:
        to->element.srq = from->context;
        break;
    case OF_WQ:
        to->element.wq = from->context;
        break;
    case OF_PORT:
        to->element.port_num = from->port_num;
        break;
    }
}

EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
    struct context *c = context_of(context);
    struct rnic_async_event got;
    struct rnic_err err = {0};
    int rc = FAILS(get_async_event);
    if (failed("get_async_event", rc, NULL))
        return -1;
    while ((rc = JUST_CALL(c->ops, get_async_event, c->nic, &got, &err)) == -EAGAIN) {
        int why = device_gone(c) ? EIO : shown_wait(c, context->async_fd, NULL);
        if (why) {
            errno = why;
            return -1;
        }
    }
    if (rc) {
        failed("get_async_event", rc, &err);
        return -1;
    }
    show_event(&got, event);
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
