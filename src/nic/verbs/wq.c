/* SPDX-License-Identifier: Apache-2.0
 *
 * Receive work queues, indirection tables, and queue pairs that spread by them (man ibv_create_wq,
 * ibv_create_rwq_ind_table, ibv_create_qp_ex).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "raw/raw.h"
#include "verbs/verbs.h"

/* ---------------------------------------------------------------- work queues */

static int check_wq(struct rnic_context *ctx, const struct rnic_wq_init_attr *attr, struct rnic_err *err) {
    const struct rnic_device_attr *limits = &dev_of(ctx)->attr;
    if (attr->wq_type != RNIC_WQT_RQ)
        return fail(err, -EINVAL, "work queue type %d does not exist; there is RQ (%d)", attr->wq_type, RNIC_WQT_RQ);
    if (attr->create_flags)
        return fail(err, -EOPNOTSUPP, "create_flags 0x%x: this device has no work queue flags", attr->create_flags);
    if (!attr->pd || !attr->cq)
        return fail(err, -EINVAL, "a work queue needs a pd and a cq");
    if (attr->pd->ctx != ctx || attr->cq->ctx != ctx)
        return fail(err, -EINVAL, "the protection domain or the completion queue belongs to another device");
    if (attr->max_wr < 1 || attr->max_wr > (uint32_t)limits->max_qp_wr)
        return fail(err, -EINVAL, "max_wr is %u; allowed are 1 to %d", attr->max_wr, limits->max_qp_wr);
    if (attr->max_sge > (uint32_t)limits->max_sge)
        return fail(err, -EINVAL, "max_sge is %u; the device has %d", attr->max_sge, limits->max_sge);
    return 0;
}

static void count_users(struct rwq *wq, int n) {
    ((struct pd *)wq->pub.pd)->qps += n;
    ((struct cq *)wq->pub.cq)->qps += n;
}

/* False: there are enough. */
static bool enter_wq(struct dev *dev, struct rwq *wq) {
    dev_lock(dev);
    bool room = dev->objects.of[KIND_WQ].count < MAX_WQ;
    if (room) {
        wq->pub.wq_num = ++dev->objects.wq_numbers & 0xFFFFFF;
        object_enter(dev, KIND_WQ, &wq->listed);
        count_users(wq, 1);
    }
    dev_unlock(dev);
    return room;
}

int soft_create_wq(struct rnic_context *ctx, struct rnic_wq_init_attr *attr, struct rnic_wq **out,
                   struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_has(dev, HAS_FRAMES, "work queues", err);
    if (!rc)
        rc = check_wq(ctx, attr, err);
    if (rc)
        return rc;
    struct rwq *wq = calloc(1, sizeof *wq);
    uint32_t max_sge = attr->max_sge ? attr->max_sge : 1;
    if (!wq || wq_init(&wq->q, attr->max_wr, max_sge, 0, sizeof(struct recv_wqe))) {
        free(wq);
        return fail(err, -ENOMEM, "no memory for %u receives", attr->max_wr);
    }
    wq->pub = (struct rnic_wq){ctx, attr->pd, attr->cq, attr->wq_context, 0, attr->wq_type};
    wq->nic = &dev->nic;
    wq->q.pd = attr->pd;
    wq->q.state = &wq->state;
    wq->q.from = RNIC_WQS_RDY;
    attr->max_wr = wq->q.max_wr;
    attr->max_sge = wq->q.max_sge;
    if (!enter_wq(dev, wq)) {
        wq_free(&wq->q);
        free(wq);
        return fail(err, -ENOMEM, "%d work queues exist", MAX_WQ);
    }
    *out = &wq->pub;
    return 0;
}

int soft_modify_wq(struct rnic_wq *pub, const struct rnic_wq_attr *attr, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    rc = rwq_modify((struct rwq *)pub, attr, err);
    dev_unlock(dev);
    return rc;
}

int soft_query_wq(struct rnic_wq *pub, int *state, uint32_t *depth, struct rnic_err *err) {
    struct rwq *wq = (struct rwq *)pub;
    int rc = dev_check_alive(dev_of(pub->ctx), err);
    if (rc)
        return rc;
    *state = wq->state;
    *depth = wq_head(&wq->q) - wq_tail(&wq->q);
    return 0;
}

int soft_destroy_wq(struct rnic_wq *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct rwq *wq = (struct rwq *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    if (wq->tables)
        rc = fail(err, -EBUSY, "%d entries of indirection tables name the work queue", wq->tables);
    else
        rc = dev_leave_events(dev, pub->wq_context, err);
    if (!rc) {
        cq_forget((struct cq *)pub->cq, &wq->q.freed);
        object_leave(dev, KIND_WQ, &wq->listed);
        count_users(wq, -1);
    }
    dev_unlock(dev);
    if (rc)
        return rc;
    wq_free(&wq->q);
    free(wq);
    return 0;
}

int soft_post_wq_recv(struct rnic_wq *pub, const struct rnic_recv_wr *wr, const struct rnic_recv_wr **bad,
                      struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct rwq *wq = (struct rwq *)pub;
    int rc = dev_check_alive(dev, err);
    if (!rc && wq->state == RNIC_WQS_RESET)
        rc = fail(err, -EINVAL, "the work queue is in RESET; receives are posted from RDY on");
    if (rc) {
        *bad = wr;
        return rc;
    }
    rc = rq_post(&wq->q, wr, bad, err);
    if (wq->state == RNIC_WQS_ERR) {
        dev_lock(dev);
        if (wq->state == RNIC_WQS_ERR)
            rwq_flush(wq);
        dev_unlock(dev);
    }
    return rc;
}

/* ---------------------------------------------------------------- indirection tables */

static int check_table(const struct rnic_context *ctx, const struct rnic_rwq_ind_table_init_attr *attr,
                       struct rnic_err *err) {
    if (attr->log_ind_tbl_size > RWQ_TABLE_LOG)
        return fail(err, -EINVAL, "log_ind_tbl_size is %u; the largest is %d", attr->log_ind_tbl_size, RWQ_TABLE_LOG);
    for (uint32_t i = 0; i < 1u << attr->log_ind_tbl_size; i++) {
        if (!attr->ind_tbl[i] || attr->ind_tbl[i]->ctx != ctx)
            return fail(err, -EINVAL, "entry %u of the table is not a work queue of this device", i);
    }
    return 0;
}

/* False: there are enough. */
static bool enter_table(struct dev *dev, struct rwq_table *table) {
    dev_lock(dev);
    bool room = dev->objects.of[KIND_TABLE].count < MAX_RWQ_TABLES;
    if (room) {
        object_enter(dev, KIND_TABLE, &table->listed);
        table->pub.ind_tbl_num = ++dev->objects.wq_numbers & 0xFFFFFF;
    }
    for (uint32_t i = 0; room && i < table->size; i++)
        table->wq[i]->tables++;
    dev_unlock(dev);
    return room;
}

int soft_create_rwq_ind_table(struct rnic_context *ctx, const struct rnic_rwq_ind_table_init_attr *attr,
                              struct rnic_rwq_ind_table **out, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_has(dev, HAS_FRAMES, "indirection tables", err);
    if (!rc)
        rc = check_table(ctx, attr, err);
    if (rc)
        return rc;
    uint32_t size = 1u << attr->log_ind_tbl_size;
    struct rwq_table *table = calloc(1, sizeof *table + size * sizeof *table->wq);
    if (!table)
        return fail(err, -ENOMEM, "no memory for %u entries", size);
    table->pub.ctx = ctx;
    table->size = size;
    for (uint32_t i = 0; i < size; i++)
        table->wq[i] = (struct rwq *)attr->ind_tbl[i];
    if (!enter_table(dev, table)) {
        free(table);
        return fail(err, -ENOMEM, "%d indirection tables exist", MAX_RWQ_TABLES);
    }
    *out = &table->pub;
    return 0;
}

int soft_destroy_rwq_ind_table(struct rnic_rwq_ind_table *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct rwq_table *table = (struct rwq_table *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    int qps = table->qps;
    for (uint32_t i = 0; !qps && i < table->size; i++)
        table->wq[i]->tables--;
    if (!qps)
        object_leave(dev, KIND_TABLE, &table->listed);
    dev_unlock(dev);
    if (qps)
        return fail(err, -EBUSY, "%d queue pairs spread what they receive by the table", qps);
    free(table);
    return 0;
}

/* ---------------------------------------------------------------- queue pairs that spread */

int raw_check_spread(const struct rnic_pd *pd, const struct rnic_qp_init_attr *attr, struct rnic_err *err) {
    if (attr->qp_type != RNIC_QPT_RAW_PACKET)
        return fail(err, -EOPNOTSUPP, "only RAW_PACKET queue pairs spread over work queues");
    if (attr->rwq_ind_tbl->ctx != pd->ctx || (attr->send_cq && attr->send_cq->ctx != pd->ctx))
        return fail(err, -EINVAL,
                    "the table or the completion queue belongs to another device than the protection domain");
    if (attr->recv_cq || attr->srq) /* as the kernel has it */
        return fail(err, -EINVAL, "a queue pair with an rwq_ind_tbl has neither recv_cq nor srq: its work queues have");
    return rwq_check_hash(&attr->rx_hash_conf, err);
}

void raw_spread(struct qp *qp, const struct rnic_qp_init_attr *attr) {
    struct rss *rss = &raw_of(qp)->rss;
    rss->table = (struct rwq_table *)attr->rwq_ind_tbl;
    rss->fields = attr->rx_hash_conf.rx_hash_fields_mask;
    memcpy(rss->key, attr->rx_hash_conf.rx_hash_key, sizeof rss->key);
}

int raw_flows(const struct qp *qp) { return qp->engine == &raw_ops ? raw_of(qp)->flows : 0; }

struct rnic_rwq_ind_table *raw_table(const struct qp *qp) {
    return qp->engine == &raw_ops && raw_of(qp)->rss.table ? &raw_of(qp)->rss.table->pub : NULL;
}
