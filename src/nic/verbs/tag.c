/* SPDX-License-Identifier: Apache-2.0
 *
 * Tag matching: the list of an SRQ, and operations on it (ibv_create_srq_ex(3), ibv_post_srq_ops(3)).
 */
#include <errno.h>
#include <stdlib.h>

#include "base/fail.h"
#include "qp/tagged.h"
#include "verbs/verbs.h"

#define MAX_TAGS 4096
#define MAX_OPS 256 /* of one call: each is done when it returns */
#define OWN_INLINE (TMH_BYTES + RVH_BYTES)

const struct rnic_tm_caps verbs_tm_caps = {TAGGED_RNDV_BYTES, MAX_TAGS, RNIC_TM_CAP_RC, MAX_OPS, MAX_SGE};

int verbs_check_tags(const struct rnic_tm_cap *cap, struct rnic_err *err) {
    if (cap->max_num_tags < 1 || cap->max_num_tags > MAX_TAGS)
        return fail(err, -EINVAL, "tm_cap.max_num_tags is %u; allowed are 1 to %d", cap->max_num_tags, MAX_TAGS);
    if (cap->max_ops > MAX_OPS)
        return fail(err, -EINVAL, "tm_cap.max_ops is %u; the device has %d", cap->max_ops, MAX_OPS);
    return 0;
}

int verbs_make_tags(struct srq *srq, const struct rnic_tm_cap *cap, struct rnic_err *err) {
    srq->tags = calloc(1, sizeof *srq->tags);
    int rc = srq->tags ? tag_list_init(srq->tags, cap->max_num_tags, srq->q.max_sge, cap->max_ops) : -ENOMEM;
    return rc ? fail(err, rc, "no memory for %u tags", cap->max_num_tags) : 0;
}

void verbs_free_tags(struct srq *srq) {
    if (srq->tags)
        tag_list_free(srq->tags);
    free(srq->tags);
}

/* ---------------------------------------------------------------- queue pairs */

int verbs_check_tagged(const struct rnic_qp_init_attr *attr, struct rnic_err *err) {
    if (attr->qp_type != RNIC_QPT_RC)
        return fail(err, -EOPNOTSUPP, "tags are matched on RC queue pairs only (tm_caps.flags)");
    return 0;
}

void verbs_tagged_cap(const struct srq *srq, struct rnic_qp_cap *cap) {
    cap->max_send_wr = cap->max_send_wr < 2 ? 2 : cap->max_send_wr; /* READ and FIN */
    cap->max_send_sge = cap->max_send_sge < srq->q.max_sge ? srq->q.max_sge : cap->max_send_sge;
    cap->max_inline_data = cap->max_inline_data < OWN_INLINE ? OWN_INLINE : cap->max_inline_data;
}

int verbs_make_tagged(struct qp *qp) {
    qp->tagged = calloc(1, sizeof *qp->tagged);
    if (!qp->tagged)
        return -ENOMEM;
    qp->tagged->list = qp->srq->tags;
    qp->sq.pd = qp->srq->pub.pd; /* its READs write into the SRQ's receives, */
    qp->sq.from = RNIC_QPS_RTR;  /* and may be asked for before it sends */
    qp->pub.recv_cq = qp->srq->cq;
    return 0;
}

/* ---------------------------------------------------------------- operations */

struct outcome {
    int opcode; /* enum rnic_wc_opcode */
    bool done;
};

static struct outcome operate(struct tag_list *list, struct rnic_ops_wr *wr) {
    if (wr->opcode == RNIC_WR_TAG_SYNC || wr->flags & RNIC_OPS_TM_SYNC)
        tag_report(list, wr->tm.unexpected_cnt);
    if (wr->opcode == RNIC_WR_TAG_DEL)
        return (struct outcome){RNIC_WCO_TM_DEL, tag_delete(list, wr->tm.handle)};
    if (wr->opcode == RNIC_WR_TAG_ADD)
        wr->tm.handle = tag_add(list, wr)->handle;
    return (struct outcome){wr->opcode == RNIC_WR_TAG_ADD ? RNIC_WCO_TM_ADD : RNIC_WCO_TM_SYNC, true};
}

static void complete(struct dev *dev, struct srq *srq, const struct rnic_ops_wr *wr, struct outcome outcome) {
    struct cq *cq = (struct cq *)srq->cq;
    struct cqe cqe = {.wc = {.wr_id = wr->wr_id,
                             .status = outcome.done ? RNIC_WC_SUCCESS : RNIC_WC_TM_ERR,
                             .opcode = outcome.opcode,
                             .wc_flags = tag_in_step(srq->tags) ? 0 : RNIC_WCF_TM_SYNC_REQ}};
    bool first = !atomic_load(&cq->overrun);
    if (cq_push(cq, &cqe, true) || !first)
        return;
    struct rnic_async_event e = {.event_type = RNIC_EVENT_CQ_ERR, .context = cq->pub.cq_context};
    event_push(&dev->nic.events, &e);
}

static int check_op(const struct tag_list *list, const struct rnic_ops_wr *wr, struct rnic_err *err) {
    const unsigned known = RNIC_OPS_SIGNALED | RNIC_OPS_TM_SYNC;
    if (wr->opcode < RNIC_WR_TAG_ADD || wr->opcode > RNIC_WR_TAG_SYNC)
        return fail(err, -EINVAL, "opcode %d: there are TAG_ADD (0), TAG_DEL (1) and TAG_SYNC (2)", wr->opcode);
    if ((unsigned)wr->flags & ~known)
        return fail(err, -EINVAL, "flags 0x%x are not known", (unsigned)wr->flags & ~known);
    if (wr->opcode != RNIC_WR_TAG_ADD)
        return 0;
    if (wr->tm.add.num_sge < 0 || (uint32_t)wr->tm.add.num_sge > list->max_sge)
        return fail(err, -EINVAL, "%d scatter/gather elements, max_sge is %u", wr->tm.add.num_sge, list->max_sge);
    if (list->used == list->max_tags)
        return fail(err, -ENOMEM, "the matching list is full (max_num_tags %u)", list->max_tags);
    return 0;
}

static int operate_all(struct dev *dev, struct srq *srq, struct rnic_ops_wr *wr, struct rnic_ops_wr **bad,
                       struct rnic_err *err) {
    for (uint32_t n = 0; wr; wr = wr->next) {
        int rc = check_op(srq->tags, wr, err);
        if (!rc && n++ >= srq->tags->max_ops)
            rc = fail(err, -ENOMEM, "more operations than max_ops, which is %u", srq->tags->max_ops);
        if (rc) {
            *bad = wr;
            return rc;
        }
        struct outcome outcome = operate(srq->tags, wr);
        if (wr->flags & RNIC_OPS_SIGNALED)
            complete(dev, srq, wr, outcome);
    }
    return 0;
}

int soft_post_srq_ops(struct rnic_srq *pub, struct rnic_ops_wr *wr, struct rnic_ops_wr **bad, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct srq *srq = (struct srq *)pub;
    int rc = dev_check_usable(dev, err);
    if (!rc && !srq->tags)
        rc = fail(err, -EINVAL, "this shared receive queue matches no tags: create it with srq_type TM");
    if (rc) {
        *bad = wr;
        return rc;
    }
    dev_lock(dev);
    rc = operate_all(dev, srq, wr, bad, err);
    dev_unlock(dev);
    return rc;
}
