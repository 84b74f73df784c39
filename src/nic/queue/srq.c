/* SPDX-License-Identifier: Apache-2.0 */
#include "queue/srq.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int srq_init(struct srq *srq, uint32_t max_wr, uint32_t max_sge) {
    int rc = wq_init(&srq->q, max_wr, max_sge, 0, sizeof(struct recv_wqe));
    if (!rc)
        wq_reset(&srq->q);
    return rc;
}

void srq_free(struct srq *srq) { wq_free(&srq->q); }

uint32_t srq_depth(struct srq *srq) { return wq_head(&srq->q) - wq_tail(&srq->q); }

static void copy(struct recv_wqe *to, const struct recv_wqe *from) {
    memcpy(to, from, sizeof *from + (size_t)from->num_sge * sizeof from->sge[0]);
}

bool srq_take(struct srq *srq, struct wq *rq) {
    if (wq_empty(&srq->q))
        return false;
    copy(rq_wqe(rq, wq_head(rq)), rq_wqe(&srq->q, wq_tail(&srq->q)));
    atomic_store_explicit(&rq->head, wq_head(rq) + 1, memory_order_release);
    wq_pop(&srq->q);
    atomic_store_explicit(&srq->q.freed, wq_tail(&srq->q), memory_order_release);
    return true;
}

bool srq_below_limit(struct srq *srq) {
    if (srq_depth(srq) >= srq->limit)
        return false;
    srq->limit = 0;
    return true;
}

int srq_resize(struct srq *srq, uint32_t max_wr) {
    struct wq *old = &srq->q, fresh = {0};
    int rc = wq_init(&fresh, max_wr, old->max_sge, 0, sizeof(struct recv_wqe));
    if (rc)
        return rc;
    pthread_mutex_lock(&old->lock);
    uint32_t depth = srq_depth(srq);
    if (depth <= max_wr) {
        for (uint32_t i = 0; i < depth; i++)
            copy(rq_wqe(&fresh, i), rq_wqe(old, wq_tail(old) + i));
        wq_adopt(old, &fresh, depth);
    }
    pthread_mutex_unlock(&old->lock);
    wq_free(&fresh);
    return depth <= max_wr ? 0 : -EINVAL;
}
