/* SPDX-License-Identifier: Apache-2.0 */
#include "queue/events.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "queue/semaphore.h"

int event_queue_init(struct event_queue *q) {
    q->mask = 1023;
    q->ring = calloc(q->mask + 1, sizeof *q->ring);
    if (!q->ring)
        return -ENOMEM;
    q->fd = semaphore_open();
    q->end_fd = q->fd < 0 ? -1 : semaphore_open();
    if (q->end_fd < 0) {
        int rc = -errno;
        if (q->fd >= 0)
            close(q->fd);
        free(q->ring);
        q->ring = NULL; /* there is no queue to free */
        return rc;
    }
    pthread_mutex_init(&q->lock, NULL);
    return 0;
}

void event_queue_free(struct event_queue *q) {
    close(q->fd);
    close(q->end_fd);
    free(q->ring);
    free(q->unacked);
    pthread_mutex_destroy(&q->lock);
}

static void raise_fd(struct event_queue *q, int fd) {
    semaphore_raise(fd);
    sleepers_wake(&q->sleepers);
}

void event_push(struct event_queue *q, const struct rnic_async_event *event) {
    if (q->told) /* before a program that waits for it can end */
        q->told(q->told_arg, &(struct rnic_notice){RNIC_NOTICE_EVENT, event->event_type, event->number, NULL});
    pthread_mutex_lock(&q->lock);
    bool room = q->head - q->tail <= q->mask;
    if (room)
        q->ring[q->head++ & q->mask] = *event; /* else nobody reads them: the oldest 1024 stay */
    pthread_mutex_unlock(&q->lock);
    if (room)
        raise_fd(q, q->fd);
}

void event_end(struct event_queue *q) { raise_fd(q, q->end_fd); }

/* ---------------------------------------------------------------- acknowledgement */

static struct unacked *find(const struct event_queue *q, const void *context) {
    for (uint32_t i = 0; i < q->unacked_count; i++) {
        if (q->unacked[i].context == context)
            return &q->unacked[i];
    }
    return NULL;
}

static void drop(struct event_queue *q, struct unacked *u) { *u = q->unacked[--q->unacked_count]; }

/* 0, -ENOMEM */
static int remember(struct event_queue *q, const void *context) {
    struct unacked *u = context ? find(q, context) : NULL;
    if (u)
        u->n++;
    if (u || !context)
        return 0;
    if (q->unacked_count == q->unacked_room) {
        uint32_t room = q->unacked_room ? q->unacked_room * 2 : 8;
        struct unacked *more = realloc(q->unacked, room * sizeof *more);
        if (!more)
            return -ENOMEM;
        q->unacked = more;
        q->unacked_room = room;
    }
    q->unacked[q->unacked_count++] = (struct unacked){context, 1};
    return 0;
}

int event_take(struct event_queue *q, struct rnic_async_event *event) {
    if (!semaphore_lower(q->fd))
        return 0;
    pthread_mutex_lock(&q->lock);
    int any = q->head != q->tail, rc = any ? remember(q, q->ring[q->tail & q->mask].context) : 0;
    if (any && !rc)
        *event = q->ring[q->tail++ & q->mask];
    pthread_mutex_unlock(&q->lock);
    if (rc)
        raise_fd(q, q->fd); /* it is there still */
    return rc ? rc : any;
}

int event_ack(struct event_queue *q, const void *context) {
    if (!context)
        return 0;
    pthread_mutex_lock(&q->lock);
    struct unacked *u = find(q, context);
    if (u && --u->n == 0)
        drop(q, u);
    pthread_mutex_unlock(&q->lock);
    return u ? 0 : -EINVAL;
}

static void forget(struct event_queue *q, const void *context) {
    uint32_t to = q->tail;
    for (uint32_t i = q->tail; i != q->head; i++) {
        if (q->ring[i & q->mask].context == context)
            semaphore_lower(q->fd);
        else
            q->ring[to++ & q->mask] = q->ring[i & q->mask];
    }
    q->head = to;
}

static uint32_t unacked(const struct event_queue *q, const void *context) {
    const struct unacked *u = find(q, context);
    return u ? u->n : 0;
}

uint32_t event_unacked(struct event_queue *q, const void *context) {
    pthread_mutex_lock(&q->lock);
    uint32_t n = unacked(q, context);
    pthread_mutex_unlock(&q->lock);
    return n;
}

uint32_t event_leave(struct event_queue *q, const void *context) {
    if (!context)
        return 0;
    pthread_mutex_lock(&q->lock);
    uint32_t n = unacked(q, context);
    if (!n)
        forget(q, context);
    pthread_mutex_unlock(&q->lock);
    return n;
}

void event_forget_all(struct event_queue *q) {
    pthread_mutex_lock(&q->lock);
    q->unacked_count = 0;
    while (semaphore_lower(q->fd))
        ;
    q->tail = q->head;
    pthread_mutex_unlock(&q->lock);
}
