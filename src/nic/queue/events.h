/* SPDX-License-Identifier: Apache-2.0
 *
 * Asynchronous events (IBA 11.6.3): a queue of what no completion tells, and what was taken and is not acknowledged yet.
 */
#ifndef RNIC_QUEUE_EVENTS_H
#define RNIC_QUEUE_EVENTS_H

#include <pthread.h>

#include "nic.h"
#include "queue/sleepers.h"

struct event_queue {
    int fd;            /* eventfd semaphore, one count an event */
    int end_fd;        /* readable when the last event has come */
    sleepers sleepers; /* who waits for one of the two */
    pthread_mutex_t lock;
    struct rnic_async_event *ring;
    uint32_t head, tail, mask;
    struct unacked { /* an object, by its user's context, and how many of its events are not acknowledged */
        const void *context;
        uint32_t n;
    } *unacked;
    uint32_t unacked_count, unacked_room;
    rnic_told *told; /* of each one (nic_ext.h); NULL: nobody is.  Device's lock */
    void *told_arg;
};

int event_queue_init(struct event_queue *q);
void event_queue_free(struct event_queue *q);
void event_push(struct event_queue *q, const struct rnic_async_event *event);
void event_end(struct event_queue *q);
/* 1, 0: none waits, or -ENOMEM: it stays, as nobody could remember that it is to be acknowledged. */
int event_take(struct event_queue *q, struct rnic_async_event *event);
/* Those of ports and of the device, whose context is NULL, hold nothing and need no acknowledgement. 0, -EINVAL */
int event_ack(struct event_queue *q, const void *context);
uint32_t event_unacked(struct event_queue *q, const void *context); /* how many are not acknowledged */
/* An object is to be destroyed: how many of its events are not acknowledged; when none is, those that wait are forgotten. */
uint32_t event_leave(struct event_queue *q, const void *context);
void event_forget_all(struct event_queue *q); /* of every object, of ports and of the device, acknowledged or not */

#endif
