/* SPDX-License-Identifier: Apache-2.0 */
#include "qp/tagged.h"

#define HEADER_BYTES (TMH_BYTES + RVH_BYTES)
#define OWN_SENDS 2 /* of a rendezvous: READ and FIN */

static const uint8_t *rvh(const struct tagged *t) { return t->header + TMH_BYTES; }

/* Has it matched a receive that is too short for what the request announces, or is that more than one READ brings? */
static bool incomplete(const struct tagged *t) {
    return t->entry && t->opcode == TMH_RNDV &&
           (rvh_len(rvh(t)) > t->entry->length || rvh_len(rvh(t)) > SQ_MAX_MESSAGE);
}

/* ---------------------------------------------------------------- the beginning of a message */

static uint8_t read_header(struct tagged *t, const struct packet *pkt) {
    uint32_t have = pkt->length < HEADER_BYTES ? pkt->length : HEADER_BYTES, mask = pkt->row->mask;
    if (!(mask & OPC_SEND) || have < TMH_BYTES)
        return TMH_NO_TAG;
    memcpy(t->header, pkt->payload, have);
    /* Its completion is the READ's, which could not tell of a key that was invalidated. */
    bool request = have == HEADER_BYTES && (mask & OPC_LAST) && !(mask & OPC_INV) && pkt->length <= TAGGED_RNDV_BYTES;
    return tmh_opcode(t->header) == TMH_RNDV && !request ? TMH_NO_TAG : tmh_opcode(t->header);
}

static bool has_tag(const struct tagged *t) { return t->opcode == TMH_EAGER || t->opcode == TMH_RNDV; }

static bool may_read(struct qp *qp) { return wq_head(&qp->sq) - wq_tail(&qp->sq) + OWN_SENDS <= qp->sq.max_wr; }

static void move_in(struct wq *rq, const struct tag_entry *e) {
    struct recv_wqe *wqe = rq_wqe(rq, wq_head(rq));
    wqe->wr_id = e->wr_id;
    wqe->length = e->length;
    wqe->num_sge = e->num_sge;
    for (int i = 0; i < e->num_sge; i++)
        wqe->sge[i] = e->sge[i];
    atomic_store_explicit(&rq->head, wq_head(rq) + 1, memory_order_release);
}

bool tagged_take(struct qp *qp, const struct packet *pkt) {
    struct tagged *t = qp->tagged;
    t->told = false;
    t->opcode = read_header(t, pkt);
    t->info = (struct rnic_wc_ex){0};
    t->entry = has_tag(t) ? tag_match(t->list, tmh_tag(t->header)) : NULL;
    if (t->entry && t->opcode == TMH_RNDV && !incomplete(t) && !may_read(qp))
        return false;
    if (t->entry) {
        tag_take(t->entry, qp);
        move_in(&qp->rq, t->entry);
        t->info = (struct rnic_wc_ex){.tag = tmh_tag(t->header), .tm_priv = tmh_app_ctx(t->header)};
        return true;
    }
    if (!qp_takes_shared(qp))
        return false;
    t->list->unexpected += has_tag(t);
    return true;
}

/* ---------------------------------------------------------------- its bytes */

bool tagged_fits(const struct qp *qp, uint64_t end) {
    const struct tagged *t = qp->tagged;
    const struct recv_wqe *wqe = rq_wqe(&qp->rq, wq_tail((struct wq *)&qp->rq));
    if (t->entry && t->opcode == TMH_RNDV)
        return true;
    return end <= wqe->length + (t->entry ? TMH_BYTES : 0);
}

/* Of a request that its receive has no room for: the headers, so that the program can go on with it. */
static uint32_t stored(struct qp *qp) {
    const struct recv_wqe *wqe = rq_wqe(&qp->rq, wq_tail(&qp->rq));
    return wqe->length < HEADER_BYTES ? (uint32_t)wqe->length : HEADER_BYTES;
}

int tagged_store(struct qp *qp, uint32_t before, const uint8_t *bytes, uint32_t n) {
    const struct tagged *t = qp->tagged;
    const struct recv_wqe *wqe = rq_wqe(&qp->rq, wq_tail(&qp->rq));
    uint32_t skip = t->entry && !before ? TMH_BYTES : 0, at = t->entry && before ? before - TMH_BYTES : before;
    if (t->entry && t->opcode == TMH_RNDV) {
        skip = 0;
        n = incomplete(t) ? stored(qp) : 0;
    }
    return sge_scatter(&qp->nic->mrs, qp->rq.pd, wqe->sge, wqe->num_sge, at, bytes + skip, n - skip);
}

/* ---------------------------------------------------------------- what is told of it */

static struct rnic_wc completion_of(const struct qp *qp, const struct tag_entry *e, uint32_t flags) {
    return (struct rnic_wc){.wr_id = e->wr_id,
                            .opcode = RNIC_WCO_TM_RECV,
                            .wc_flags = flags,
                            .qp_num = qp->pub.qp_num,
                            .src_qp = qp->attr.dest_qp_num};
}

void tagged_proceed(struct qp *qp, bool solicited) {
    struct tagged *t = qp->tagged;
    if (!t->entry || t->told)
        return;
    struct rnic_wc wc = completion_of(qp, t->entry, RNIC_WCF_TM_MATCH);
    t->told = true;
    qp_tell(qp, &wc, solicited);
    t->info = (struct rnic_wc_ex){0};
}

/* The READ into the receive that has matched, and the FIN, which goes when that is there (IBA 10.8.3.3: fence). */
static void begin_transfer(struct qp *qp) {
    struct tagged *t = qp->tagged;
    struct tag_entry *e = t->entry;
    uint32_t left = rvh_len(rvh(t));
    int n = 0;
    for (; left && n < e->num_sge; n++) { /* the rest of the receive is not written */
        if (e->sge[n].length > left)
            e->sge[n].length = left;
        left -= e->sge[n].length;
    }
    tmh_set_opcode(t->header, TMH_FIN);
    struct rnic_sge header = {(uintptr_t)t->header, HEADER_BYTES, 0};
    struct rnic_send_wr fin = {.opcode = RNIC_WR_SEND,
                               .send_flags = RNIC_SEND_INLINE | RNIC_SEND_FENCE | RNIC_SEND_SIGNALED,
                               .sg_list = &header,
                               .num_sge = 1};
    struct rnic_send_wr read = {.wr_id = (uintptr_t)e,
                                .next = &fin,
                                .opcode = RNIC_WR_RDMA_READ,
                                .send_flags = RNIC_SEND_SIGNALED,
                                .sg_list = e->sge,
                                .num_sge = n,
                                .wr.rdma = {rvh_va(rvh(t)), rvh_rkey(rvh(t))}};
    const struct rnic_send_wr *bad;
    struct rnic_err err;
    if (sq_post(&qp->sq, &read, &bad, &err)) /* there was room, and what it checks is right: but be not silent */
        qp_error(qp, RNIC_EVENT_QP_FATAL);
}

static void complete_request(struct qp *qp, struct rnic_wc *wc, bool solicited) {
    struct tagged *t = qp->tagged;
    if (incomplete(t)) {
        wc->status = RNIC_WC_TM_RNDV_INCOMPLETE;
        wc->byte_len = stored(qp);
        wc->wc_flags |= RNIC_WCF_TM_MATCH;
        qp_complete_recv(qp, wc, solicited);
        return;
    }
    tagged_proceed(qp, solicited);
    wq_pop(&qp->rq); /* from here on it is the READ that completes it */
    begin_transfer(qp);
    t->entry = NULL;
}

void tagged_complete(struct qp *qp, struct rnic_wc *wc, bool solicited) {
    struct tagged *t = qp->tagged;
    struct tag_entry *e = t->entry;
    if (e && t->opcode == TMH_RNDV) {
        complete_request(qp, wc, solicited);
        return;
    }
    if (e) {
        wc->opcode = RNIC_WCO_TM_RECV;
        wc->byte_len -= TMH_BYTES;
        wc->wc_flags |= RNIC_WCF_TM_DATA_VALID | (t->told ? 0 : RNIC_WCF_TM_MATCH);
    } else if (wc->opcode == RNIC_WCO_RECV) {
        wc->opcode = has_tag(t) ? RNIC_WCO_TM_RECV : RNIC_WCO_TM_NO_TAG; /* as mlx5: it lacks TM_MATCH */
    }
    t->entry = NULL;
    qp_complete_recv(qp, wc, solicited);
    if (e)
        tag_release(t->list, e);
}

void tagged_fail(struct qp *qp, struct rnic_wc *wc) {
    struct tagged *t = qp->tagged;
    if (!t->entry)
        return;
    wc->opcode = RNIC_WCO_TM_RECV;
    tag_release(t->list, t->entry);
    t->entry = NULL;
}

void tagged_sent(struct qp *qp, const struct send_wqe *wqe) {
    struct tag_entry *e = wqe->opcode == RNIC_WR_RDMA_READ ? (struct tag_entry *)(uintptr_t)wqe->wr_id : NULL;
    if (e) {
        struct rnic_wc wc = completion_of(qp, e, wqe->status ? 0 : RNIC_WCF_TM_DATA_VALID);
        wc.status = wqe->status;
        wc.vendor_err = wqe->vendor_err;
        wc.byte_len = wqe->length;
        struct rnic_wc_ex under_way = qp->tagged->info;
        qp->tagged->info = (struct rnic_wc_ex){0};
        tag_release(qp->tagged->list, e);
        qp_tell(qp, &wc, true);
        qp->tagged->info = under_way;
    }
    wq_pop(&qp->sq);
    atomic_store_explicit(&qp->sq.freed, wq_tail(&qp->sq), memory_order_release);
}
