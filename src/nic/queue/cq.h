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
#include <stddef.h>

#include "base/listed.h"
#include "nic.h"
#include "queue/sleepers.h"

/* What the completion queues of a device share. */
struct cq_timing {
    uint64_t (*clock)(void *arg);     /* ns; asked for timestamps and for events that wait, else never */
    uint64_t (*wallclock)(void *arg); /* ns since 1970 */
    void *arg;
    struct cq *held; /* whose event waits for company, see moderation.h; device's lock */
};

enum cq_arm { CQ_NOT_ARMED, CQ_ARMED_SOLICITED, CQ_ARMED_ANY };

struct channel {
    struct rnic_comp_channel pub; /* fd: eventfd semaphore, one count an event, and those of who shares it */
    sleepers sleepers;            /* who waits for an event, or for the device's failure */
    pthread_mutex_t lock;         /* of the list and of the pending counts of its CQs */
    struct cq *first, *last;      /* CQs with pending events */
    int cqs;                      /* that report here; device's lock */
    struct listed listed;         /* in the context's list of its kind; device's lock */
};

/* An entry, and what polling it sets free. */
struct cqe {
    struct rnic_wc wc;
    _Atomic uint32_t *freed; /* of the element's queue, which it is known by; NULL: it outlives its queue */
    uint32_t upto;           /* its new value */
};

struct cq {
    struct rnic_cq pub;
    pthread_mutex_t lock; /* of consumers, of resize, and of cq_forget */
    struct cqe *ring;
    struct rnic_wc_ex *beside; /* of the entries: what wc_flags ask for beside a completion; NULL: nothing */
    uint64_t wc_flags;         /* enum rnic_create_cq_wc_flags */
    uint32_t flags;            /* enum rnic_create_cq_attr_flags */
    uint32_t mask;
    _Atomic uint32_t head; /* next to produce; engine */
    _Atomic uint32_t tail; /* next to consume; consumer */
    _Atomic int armed;     /* enum cq_arm */
    _Atomic bool overrun;  /* for good: the queue takes nothing any more */
    _Atomic bool polled;   /* SINGLE_THREADED: a thread is at it */
    int qps;               /* that complete here, twice when for both queues; device's lock */

    struct rnic_pd *domain; /* the parent domain that it was made with, or NULL */
    struct cq *next;        /* in its channel's list */
    uint32_t pending;       /* events in the channel, not taken yet; channel's lock */
    uint32_t taken;         /* events taken and not acknowledged; channel's lock */

    struct cq_timing *timing;
    struct moderation {        /* device's lock */
        uint64_t period;       /* ns; 0: events wait for nothing */
        uint32_t count;        /* completions that end the wait */
        uint32_t ripe;         /* completions that wait; 0: in no list */
        uint64_t due;          /* when the first of them has waited long enough */
        struct cq *next, **at; /* in timing->held */
    } moderation;
    struct listed listed; /* in the context's list of its kind; device's lock */
};

/* cqe: room for so many at least; wc_flags and flags are set already, and timing where those need it. */
int cq_init(struct cq *cq, int cqe);
void cq_free(struct cq *cq);
int cq_resize(struct cq *cq, int cqe, struct rnic_err *err);
/* Appends a completion and raises the event if armed. False: the queue is full, or was once, and the completion is lost
 * (IBA 11.2.6.1); with IGNORE_OVERRUN the oldest one is, instead. known: NULL, or what is to be kept beside it, if the queue
 * keeps it. */
bool cq_push_ex(struct cq *cq, const struct cqe *cqe, const struct rnic_wc_ex *known, bool solicited);
static inline bool cq_push(struct cq *cq, const struct cqe *cqe, bool solicited) {
    return cq_push_ex(cq, cqe, NULL, solicited);
}
/* The queue whose counter this is goes, or starts anew: takes its completions out. Device's lock. */
void cq_forget(struct cq *cq, const _Atomic uint32_t *freed);
/* Takes up to n; ex: NULL, or where to put what is kept beside them. */
int cq_take_ex(struct cq *cq, int n, struct rnic_wc *wc, struct rnic_wc_ex *ex);
static inline int cq_take(struct cq *cq, int n, struct rnic_wc *wc) { return cq_take_ex(cq, n, wc, NULL); }
static inline bool cq_empty(struct cq *cq) {
    return atomic_load_explicit(&cq->head, memory_order_acquire) ==
           atomic_load_explicit(&cq->tail, memory_order_relaxed);
}
void cq_arm(struct cq *cq, bool solicited_only);
void cq_raise(struct cq *cq); /* the event that it is armed for */

int channel_init(struct channel *ch);
void channel_free(struct channel *ch);
bool channel_has(struct channel *ch);        /* an event, that is not taken yet */
struct cq *channel_take(struct channel *ch); /* or NULL */
/* Forgets a CQ's pending events. False: some were taken and not acknowledged. */
bool channel_forget(struct channel *ch, struct cq *cq);
int cq_ack(struct cq *cq, unsigned n, struct rnic_err *err);

#endif
