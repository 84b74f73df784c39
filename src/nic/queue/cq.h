/* SPDX-License-Identifier: Apache-2.0
 *
 * Completion queues and their event channels.
 *
 * A completion queue has one producer, the engine (under the device's lock), and consumers that take its own lock.
 */
#ifndef RNIC_QUEUE_CQ_H
#define RNIC_QUEUE_CQ_H

#include <pthread.h>
#include <stdatomic.h>

#include "nic.h"

enum cq_arm { CQ_NOT_ARMED, CQ_ARMED_SOLICITED, CQ_ARMED_ANY };

struct channel {
    struct rnic_comp_channel pub; /* fd: eventfd semaphore, one count an event */
    pthread_mutex_t lock;         /* of the list and of the pending counts of its CQs */
    struct cq *first, *last;      /* CQs with pending events */
    int cqs;                      /* that report here; device's lock */
    struct channel *next;         /* in the device's list; device's lock */
};

/* An entry, and what polling it sets free. */
struct cqe {
    struct rnic_wc wc;
    _Atomic uint32_t *freed; /* of the element's queue, or NULL: the queue is gone */
    uint32_t upto;           /* its new value */
};

struct cq {
    struct rnic_cq pub;
    pthread_mutex_t lock; /* of consumers, of resize, and of cq_forget */
    struct cqe *ring;
    uint32_t mask;
    _Atomic uint32_t head; /* next to produce; engine */
    _Atomic uint32_t tail; /* next to consume; consumer */
    _Atomic int armed;     /* enum cq_arm */
    _Atomic bool overrun;
    int qps; /* that complete here, twice when for both queues; device's lock */

    struct cq *next;  /* in its channel's list */
    uint32_t pending; /* events in the channel, not taken yet; channel's lock */
    uint32_t taken;   /* events taken and not acknowledged; channel's lock */
};

int cq_init(struct cq *cq, int cqe);
void cq_free(struct cq *cq);
int cq_resize(struct cq *cq, int cqe, struct rnic_err *err);
/* Appends a completion and raises the event if armed. False: the queue is full, the completion is lost (IBA 11.2.6.1). */
bool cq_push(struct cq *cq, const struct cqe *cqe, bool solicited);
/* The queue whose counter this is goes, or starts anew; its completions stay. */
void cq_forget(struct cq *cq, const _Atomic uint32_t *freed);
int cq_take(struct cq *cq, int n, struct rnic_wc *wc);
static inline bool cq_empty(struct cq *cq) {
    return atomic_load_explicit(&cq->head, memory_order_acquire) ==
           atomic_load_explicit(&cq->tail, memory_order_relaxed);
}
void cq_arm(struct cq *cq, bool solicited_only);

int channel_init(struct channel *ch);
void channel_free(struct channel *ch);
struct cq *channel_take(struct channel *ch); /* or NULL */
/* Forgets a CQ's pending events. False: some were taken and not acknowledged. */
bool channel_forget(struct channel *ch, struct cq *cq);
int cq_ack(struct cq *cq, unsigned n, struct rnic_err *err);

#endif
