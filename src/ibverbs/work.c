/* SPDX-License-Identifier: Apache-2.0
 *
 * Post and poll: what a program does all the time.  Requests and completions are nic.h's to the byte (layout.h), so that
 * they are passed on as they are.  Those that name an address handle, a window or a region are copied, a chunk at a time.
 */
#include "layout.h"
#include "lib.h"

#define CHUNK 16

/* ---------------------------------------------------------------- what names objects of this library */

static bool names_objects(const struct ibv_qp *qp, const struct ibv_send_wr *wr) {
    if (qp->qp_type == IBV_QPT_UD)
        return true;
    for (; wr; wr = wr->next) {
        if (wr->opcode == IBV_WR_BIND_MW)
            return true;
    }
    return false;
}

static void translate(const struct ibv_qp *qp, const struct ibv_send_wr *from, struct rnic_send_wr *to) {
    memcpy(to, from, sizeof *to);
    if (qp->qp_type == IBV_QPT_UD)
        to->wr.ud.ah = NIC(ah, from->wr.ud.ah);
    if (from->opcode == IBV_WR_BIND_MW) {
        to->bind_mw.mw = NIC(mw, from->bind_mw.mw);
        to->bind_mw.bind_info.mr = NIC(mr, from->bind_mw.bind_info.mr);
    }
}

/* Posts up to a chunk; *wr is what comes behind it, or the request that was refused. */
static int post_chunk(struct ibv_qp *pub, struct ibv_send_wr **wr, struct rnic_err *err) {
    struct rnic_send_wr copies[CHUNK];
    struct ibv_send_wr *originals[CHUNK];
    const struct rnic_send_wr *bad = NULL;
    int n = 0;
    for (; *wr && n < CHUNK; *wr = (*wr)->next, n++) {
        originals[n] = *wr;
        translate(pub, *wr, &copies[n]);
        copies[n].next = NULL;
        if (n)
            copies[n - 1].next = &copies[n];
    }
    int rc = QUIETLY(context_of(pub->context)->ops->post_send(((struct qp *)pub)->nic, copies, &bad, err));
    if (rc)
        *wr = originals[bad - copies];
    return rc;
}

/* ---------------------------------------------------------------- queue pairs and shared queues */

int work_post_send(struct ibv_qp *pub, struct ibv_send_wr *wr, struct ibv_send_wr **bad, struct rnic_err *err) {
    int rc = 0;
    if (!names_objects(pub, wr))
        return -as_drivers_refuse(QUIETLY(context_of(pub->context)
                                              ->ops->post_send(((struct qp *)pub)->nic, (const struct rnic_send_wr *)wr,
                                                               (const struct rnic_send_wr **)bad, err)));
    while (wr && !rc)
        rc = post_chunk(pub, &wr, err);
    if (rc)
        *bad = wr;
    return -as_drivers_refuse(rc);
}

int work_post_recv(struct ibv_qp *pub, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad, struct rnic_err *err) {
    return -QUIETLY(context_of(pub->context)
                        ->ops->post_recv(((struct qp *)pub)->nic, (const struct rnic_recv_wr *)wr,
                                         (const struct rnic_recv_wr **)bad, err));
}

int work_post_srq_recv(struct ibv_srq *pub, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad, struct rnic_err *err) {
    return -QUIETLY(context_of(pub->context)
                        ->ops->post_srq_recv(((struct srq *)pub)->nic, (const struct rnic_recv_wr *)wr,
                                             (const struct rnic_recv_wr **)bad, err));
}

static int post_send(struct ibv_qp *pub, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    return work_post_send(pub, wr, bad, NULL);
}

static int post_recv(struct ibv_qp *pub, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    return work_post_recv(pub, wr, bad, NULL);
}

static int post_srq_recv(struct ibv_srq *pub, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    return work_post_srq_recv(pub, wr, bad, NULL);
}

uint8_t shown_sl(const struct rnic_wc *wc) { return wc->ip_version ? (wc->ip_version == 4 ? 0xa : 0x9) : wc->sl; }

int work_poll_cq(struct ibv_cq *pub, int n, struct ibv_wc *wc) {
    int got = QUIETLY(context_of(pub->context)->ops->poll_cq(((struct cq *)pub)->nic, n, (struct rnic_wc *)wc));
    for (int i = 0; i < got; i++)
        wc[i].sl = shown_sl((struct rnic_wc *)&wc[i]);
    return got;
}

void work_ops(struct verbs_context *ex, const struct rnic_ops *ops) {
    ex->context.ops.post_send = post_send;
    ex->context.ops.post_recv = post_recv;
    ex->context.ops.poll_cq = work_poll_cq;
    GIVE(&ex->context.ops, post_srq_recv, ops, post_srq_recv, post_srq_recv);
    if (explain_on)
        explain_ops(&ex->context.ops);
}
