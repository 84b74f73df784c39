/* SPDX-License-Identifier: Apache-2.0 */
#include "queue/cq.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "queue/moderation.h"
#include "queue/semaphore.h"

static uint32_t ring_size(uint32_t n) {
    uint32_t size = 1;
    while (size < n)
        size *= 2;
    return size;
}

/* ---------------------------------------------------------------- completion queue */

#define BESIDE                                                                                                        \
    (RNIC_WC_EX_WITH_COMPLETION_TIMESTAMP | RNIC_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK | RNIC_WC_EX_WITH_TM_INFO)

struct rings {
    struct cqe *entry;
    struct rnic_wc_ex *beside;
};

static int make_rings(const struct cq *cq, uint32_t size, struct rings *out) {
    bool more = cq->wc_flags & BESIDE;
    out->entry = calloc(size, sizeof *out->entry);
    out->beside = more ? calloc(size, sizeof *out->beside) : NULL;
    if (out->entry && (out->beside || !more))
        return 0;
    free(out->entry);
    free(out->beside);
    return -ENOMEM;
}

static void adopt_rings(struct cq *cq, const struct rings *rings, uint32_t size) {
    free(cq->ring);
    free(cq->beside);
    cq->ring = rings->entry;
    cq->beside = rings->beside;
    cq->mask = size - 1;
    cq->pub.cqe = (int)size;
}

int cq_init(struct cq *cq, int cqe) {
    uint32_t size = ring_size((uint32_t)cqe);
    struct rings rings;
    if (make_rings(cq, size, &rings))
        return -ENOMEM;
    adopt_rings(cq, &rings, size);
    pthread_mutex_init(&cq->lock, NULL);
    return 0;
}

void cq_free(struct cq *cq) {
    pthread_mutex_destroy(&cq->lock);
    free(cq->ring);
    free(cq->beside);
}

static void channel_push(struct channel *ch, struct cq *cq) {
    pthread_mutex_lock(&ch->lock);
    if (cq->pending++ == 0) {
        cq->next = NULL;
        if (ch->last)
            ch->last->next = cq;
        else
            ch->first = cq;
        ch->last = cq;
    }
    semaphore_raise(ch->pub.fd); /* under the lock: what counts there is pending, or somebody else's wake-up */
    sleepers_wake(&ch->sleepers);
    pthread_mutex_unlock(&ch->lock);
}

void cq_raise(struct cq *cq) {
    atomic_store(&cq->armed, CQ_NOT_ARMED);
    if (cq->pub.channel)
        channel_push((struct channel *)cq->pub.channel, cq);
}

static void notify(struct cq *cq, bool solicited) {
    int armed = atomic_load(&cq->armed);
    if (armed == CQ_NOT_ARMED || (armed == CQ_ARMED_SOLICITED && !solicited))
        return;
    if (!cq->moderation.period || !moderation_holds(cq))
        cq_raise(cq);
}

static bool is_full(const struct cq *cq, uint32_t head) {
    return head - atomic_load_explicit(&cq->tail, memory_order_acquire) > cq->mask;
}

static void set_free(const struct cqe *cqe) {
    if (cqe->freed)
        atomic_store_explicit(cqe->freed, cqe->upto, memory_order_release);
}

/* IGNORE_OVERRUN: the oldest completion makes room; so does its work queue element. */
static void drop_oldest(struct cq *cq, uint32_t head) {
    pthread_mutex_lock(&cq->lock);
    if (is_full(cq, head)) {
        set_free(&cq->ring[cq->tail & cq->mask]);
        atomic_store_explicit(&cq->tail, cq->tail + 1, memory_order_release);
    }
    pthread_mutex_unlock(&cq->lock);
}

static bool make_room(struct cq *cq, uint32_t head) {
    if (!(cq->flags & RNIC_CREATE_CQ_ATTR_IGNORE_OVERRUN)) {
        atomic_store(&cq->overrun, true);
        return false;
    }
    drop_oldest(cq, head);
    return true;
}

static struct rnic_wc_ex beside_now(const struct cq *cq, const struct rnic_wc_ex *known) {
    struct rnic_wc_ex ex = known ? *known : (struct rnic_wc_ex){0};
    if (cq->wc_flags & RNIC_WC_EX_WITH_COMPLETION_TIMESTAMP)
        ex.raw = cq->timing->clock(cq->timing->arg);
    if (cq->wc_flags & RNIC_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
        ex.wallclock_ns = cq->timing->wallclock(cq->timing->arg);
    return ex;
}

bool cq_push_ex(struct cq *cq, const struct cqe *cqe, const struct rnic_wc_ex *known, bool solicited) {
    uint32_t head = atomic_load_explicit(&cq->head, memory_order_relaxed);
    if (atomic_load_explicit(&cq->overrun, memory_order_relaxed) || (is_full(cq, head) && !make_room(cq, head)))
        return false;
    cq->ring[head & cq->mask] = *cqe;
    if (cq->beside)
        cq->beside[head & cq->mask] = beside_now(cq, known);
    if (!cq->pub.channel) {
        atomic_store_explicit(&cq->head, head + 1, memory_order_release);
        return true;
    }
    /* Sequentially consistent with req_notify: either it sees the completion or we see it armed. */
    atomic_store(&cq->head, head + 1);
    notify(cq, solicited || cqe->wc.status != RNIC_WC_SUCCESS);
    return true;
}

int cq_take_ex(struct cq *cq, int n, struct rnic_wc *wc, struct rnic_wc_ex *ex) {
    pthread_mutex_lock(&cq->lock);
    uint32_t tail = atomic_load_explicit(&cq->tail, memory_order_relaxed);
    uint32_t ready = atomic_load_explicit(&cq->head, memory_order_acquire) - tail;
    uint32_t count = (uint32_t)n < ready ? (uint32_t)n : ready;
    for (uint32_t i = 0; i < count; i++) {
        const struct cqe *cqe = &cq->ring[(tail + i) & cq->mask];
        wc[i] = cqe->wc;
        if (ex)
            ex[i] = cq->beside ? cq->beside[(tail + i) & cq->mask] : (struct rnic_wc_ex){0};
        set_free(cqe);
    }
    atomic_store_explicit(&cq->tail, tail + count, memory_order_release);
    pthread_mutex_unlock(&cq->lock);
    return (int)count;
}

void cq_forget(struct cq *cq, const _Atomic uint32_t *freed) {
    pthread_mutex_lock(&cq->lock);
    uint32_t tail = cq->tail, to = cq->head;
    for (uint32_t i = to; i-- != tail;) {
        if (cq->ring[i & cq->mask].freed == freed)
            continue;
        to--;
        cq->ring[to & cq->mask] = cq->ring[i & cq->mask];
        if (cq->beside)
            cq->beside[to & cq->mask] = cq->beside[i & cq->mask];
    }
    atomic_store_explicit(&cq->tail, to, memory_order_release);
    pthread_mutex_unlock(&cq->lock);
}

void cq_arm(struct cq *cq, bool solicited_only) {
    int want = solicited_only ? CQ_ARMED_SOLICITED : CQ_ARMED_ANY;
    int old = atomic_load(&cq->armed);
    while (old < want && !atomic_compare_exchange_weak(&cq->armed, &old, want))
        ; /* the wider request stays in force (IBA 11.4.2.2) */
    atomic_thread_fence(memory_order_seq_cst);
}

int cq_resize(struct cq *cq, int cqe, struct rnic_err *err) {
    uint32_t size = ring_size((uint32_t)cqe);
    struct rings rings;
    if (make_rings(cq, size, &rings))
        return fail(err, -ENOMEM, "no memory for %d entries", cqe);
    pthread_mutex_lock(&cq->lock);
    uint32_t tail = cq->tail, held = cq->head - tail;
    if (held > size) {
        pthread_mutex_unlock(&cq->lock);
        free(rings.entry);
        free(rings.beside);
        return fail(err, -EINVAL, "the queue holds %u completions, more than %d: poll them first", held, cqe);
    }
    for (uint32_t i = tail; i != tail + held; i++) {
        rings.entry[i & (size - 1)] = cq->ring[i & cq->mask];
        if (rings.beside)
            rings.beside[i & (size - 1)] = cq->beside[i & cq->mask];
    }
    adopt_rings(cq, &rings, size);
    pthread_mutex_unlock(&cq->lock);
    return 0;
}

/* ---------------------------------------------------------------- completion channel */

int channel_init(struct channel *ch) {
    ch->pub.fd = semaphore_open();
    if (ch->pub.fd < 0)
        return -errno;
    pthread_mutex_init(&ch->lock, NULL);
    return 0;
}

void channel_free(struct channel *ch) {
    close(ch->pub.fd);
    pthread_mutex_destroy(&ch->lock);
}

static void unlink_first(struct channel *ch) {
    ch->first = ch->first->next;
    if (!ch->first)
        ch->last = NULL;
}

bool channel_has(struct channel *ch) {
    pthread_mutex_lock(&ch->lock);
    bool has = ch->first;
    pthread_mutex_unlock(&ch->lock);
    return has;
}

struct cq *channel_take(struct channel *ch) {
    pthread_mutex_lock(&ch->lock);
    struct cq *cq = ch->first;
    if (cq) {
        semaphore_lower(ch->pub.fd);
        cq->taken++;
        if (--cq->pending == 0)
            unlink_first(ch);
    }
    pthread_mutex_unlock(&ch->lock);
    return cq;
}

bool channel_forget(struct channel *ch, struct cq *cq) {
    pthread_mutex_lock(&ch->lock);
    bool acked = cq->taken == 0;
    if (acked && cq->pending) {
        struct cq **at = &ch->first, *before = NULL;
        while (*at != cq) {
            before = *at;
            at = &(*at)->next;
        }
        *at = cq->next;
        if (ch->last == cq)
            ch->last = before;
        for (; cq->pending; cq->pending--)
            semaphore_lower(ch->pub.fd);
    }
    pthread_mutex_unlock(&ch->lock);
    return acked;
}

int cq_ack(struct cq *cq, unsigned n, struct rnic_err *err) {
    struct channel *ch = (struct channel *)cq->pub.channel;
    if (!ch)
        return n ? fail(err, -EINVAL, "the queue has no completion channel, so there is no event to acknowledge") : 0;
    pthread_mutex_lock(&ch->lock);
    uint32_t taken = cq->taken;
    if (n <= taken)
        cq->taken -= n;
    pthread_mutex_unlock(&ch->lock);
    return n <= taken ? 0 : fail(err, -EINVAL, "%u events acknowledged, but only %u were taken", n, taken);
}
