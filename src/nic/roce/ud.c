/* SPDX-License-Identifier: Apache-2.0
 *
 * Unreliable datagrams (IBA 9.8.3; Annex A17): one packet a message, to whoever the work request names; a send is
 * complete when it has gone out.  Nothing is acknowledged, so nothing is sent twice.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "qp/ah.h"
#include "qp/why.h"
#include "roce/roce.h"
#include "wire/bth.h"
#include "wire/grh.h"
#include "wire/icrc.h"
#include "wire/mad.h"

#define MAX_PAYLOAD 4096u /* of any packet (IBA 9.2, MTU) */

struct ud {
    uint32_t psn; /* of the next packet; receivers make nothing of it (IBA 9.8.3.1) */
};

static struct ud *ud_of(const struct qp *qp) { return (struct ud *)qp->engine_state; }

/* ---------------------------------------------------------------- send */

static int put_payload(struct qp *qp, struct out *out, const struct send_wqe *wqe) {
    if (wqe->flags & RNIC_SEND_INLINE) {
        out_put(out, wqe->sge);
        return 0;
    }
    return sge_gather(&qp->nic->mrs, qp->pub.pd, wqe->sge, wqe->num_sge, 0, out_payload(out), out->payload,
                      out_crc(out));
}

static void put_headers(struct qp *qp, struct out *out, const struct send_wqe *wqe) {
    struct datagram d = {.sqpn = qp->pub.qp_num,
                         .qkey = wqe->remote_qkey & QKEY_PRIVILEGED ? qp->attr.qkey : wqe->remote_qkey};
    bth_set_se(out->bth, (wqe->flags & RNIC_SEND_SOLICITED) != 0);
    out_deth(out, &d);
    if (out->row->imm)
        memcpy(out->bth + out->row->imm, &wqe->imm, IMMDT_BYTES);
    out_headers(out);
}

static bool send_one(struct qp *qp, struct send_wqe *wqe, uint64_t now) {
    struct ah *ah = (struct ah *)wqe->ah;
    struct ud *ud = ud_of(qp);
    struct out out;
    bool imm = wqe->opcode == RNIC_WR_SEND_WITH_IMM;
    (void)now;
    if (wqe->length > qp->nic->mtu) {
        qp_refuse_send(qp, wqe, RNIC_WC_LOC_LEN_ERR, RNIC_VE_BAD_LENGTH);
        return true;
    }
    int ve = wqe->flags & RNIC_SEND_INLINE ? 0 : sge_check(&qp->nic->mrs, qp->pub.pd, wqe->sge, wqe->num_sge, 0);
    if (ve) {
        qp_refuse_send(qp, wqe, RNIC_WC_LOC_PROT_ERR, ve);
        return true;
    }
    bool alone = wqe->remote_qpn == QPN_GSI || wqe->remote_qpn == QPN_MULTICAST;
    ah->way.link = alone ? qp->nic->wire : nic_link_to(qp->nic, wqe->remote_qpn, &ah->way.dst.sin6_addr);
    ah->way.dst_slot = wqe->remote_qpn; /* finer than a slot: batches are for one queue pair */
    if (!out_open_to(&ah->way, &out, imm ? ROCE_UD_SEND_ONLY_WITH_IMM : ROCE_UD_SEND_ONLY, wqe->length, wqe->remote_qpn,
                     ud->psn, qp->ib.pkey))
        return false;
    put_headers(qp, &out, wqe);
    ve = put_payload(qp, &out, wqe);
    if (ve) {
        qp_refuse_send(qp, wqe, RNIC_WC_LOC_PROT_ERR, ve);
        return true;
    }
    out_close(qp, &out);
    COUNT(qp, requests_sent);
    ud->psn = psn_add(ud->psn, 1);
    qp_complete_send(qp, wqe);
    return true;
}

static bool next(struct qp *qp, uint64_t now) { return qp_send_some(qp, now, BURST, send_one); }

/* ---------------------------------------------------------------- receive */

/* Reasons to drop a datagram in silence (IBA 9.6.1.4, 9.8.3). */
static int unwanted(struct qp *qp, const struct packet *pkt) {
    bool gsi = qp->pub.qp_type == RNIC_QPT_GSI;
    if (qp->state == RNIC_QPS_ERR)
        return RNIC_CNT_drop_bad_state;
    if (deth_qkey(pkt->bth + pkt->row->deth) != (gsi ? GSI_QKEY : qp->attr.qkey))
        return RNIC_CNT_drop_bad_qkey;
    if (pkt->length > MAX_PAYLOAD || (gsi && pkt->length != MAD_BYTES))
        return RNIC_CNT_drop_malformed;
    if (!qp_has_receive(qp, pkt))
        return RNIC_CNT_drop_no_receive;
    return -1;
}

static int place(struct qp *qp, const struct recv_wqe *wqe, const struct packet *pkt) {
    const struct mr_table *t = &qp->nic->mrs;
    int ve = sge_scatter(t, qp->rq.pd, wqe->sge, wqe->num_sge, 0, pkt->grh, GRH_BYTES);
    return ve ? ve : sge_scatter(t, qp->rq.pd, wqe->sge, wqe->num_sge, GRH_BYTES, pkt->payload, pkt->length);
}

static void deliver(struct qp *qp, const struct packet *pkt) {
    struct rnic_wc wc = {.opcode = RNIC_WCO_RECV,
                         .byte_len = GRH_BYTES + pkt->length,
                         .src_qp = deth_sqpn(pkt->bth + pkt->row->deth),
                         .wc_flags = RNIC_WCF_GRH,
                         .pkey_index = pkt->pkey_index,
                         .sl = pkt->sl,
                         .ip_version = grh_ip_version(pkt->grh)};
    if (pkt->row->imm) {
        wc.wc_flags |= RNIC_WCF_WITH_IMM;
        memcpy(&wc.imm_data, pkt->bth + pkt->row->imm, IMMDT_BYTES);
    }
    COUNT(qp, requests_executed);
    qp_complete_recv(qp, &wc, pkt->solicited);
}

/* A receive that cannot take its message ends in an error, and with it the queue pair, as on a hardware NIC (IBA 10.3.1,
 * 11.6.2); rdma_rxe drops the message instead. */
static void input(struct qp *qp, const struct packet *pkt, uint64_t now) {
    int reason = unwanted(qp, pkt);
    (void)now;
    if (reason >= 0) {
        qp->counters.value[reason]++;
        qp->nic->counters.value[reason]++;
        qp->nic->useless += reason == RNIC_CNT_drop_bad_qkey;
        why_drop(qp->nic, qp, qp->pub.qp_num, reason);
        return;
    }
    const struct recv_wqe *wqe = rq_wqe(&qp->rq, wq_tail(&qp->rq));
    bool fits = GRH_BYTES + pkt->length <= wqe->length;
    int ve = fits ? place(qp, wqe, pkt) : RNIC_VE_RECV_TOO_SMALL;
    if (!ve) {
        deliver(qp, pkt);
        return;
    }
    struct rnic_wc wc = {.status = fits ? RNIC_WC_LOC_PROT_ERR : RNIC_WC_LOC_LEN_ERR,
                         .opcode = RNIC_WCO_RECV,
                         .vendor_err = (uint32_t)ve};
    qp_complete_recv(qp, &wc, true);
    if (qp->state != RNIC_QPS_ERR)
        qp_error(qp, -1);
}

/* ---------------------------------------------------------------- the engine */

static int create(struct qp *qp) {
    qp->engine_state = calloc(1, sizeof(struct ud));
    return qp->engine_state ? 0 : -ENOMEM;
}

/* What was posted and never sent holds its address handles no longer. */
static void reset(struct qp *qp) {
    for (uint32_t i = wq_tail(&qp->sq); i != wq_head(&qp->sq); i++)
        ah_drop(sq_wqe(&qp->sq, i)->ah);
    roce_forget(qp);
    *ud_of(qp) = (struct ud){0};
}

static void destroy(struct qp *qp) {
    reset(qp);
    free(qp->engine_state);
}

static int enter(struct qp *qp, int from, int to, struct rnic_err *err) {
    (void)err;
    if (to == RNIC_QPS_RTS && from == RNIC_QPS_RTR)
        ud_of(qp)->psn = qp->attr.sq_psn;
    return 0;
}

static void stats(struct qp *qp, struct rnic_qp_stats *out) { out->snd_psn = out->snd_una = ud_of(qp)->psn; }

const struct engine_ops roce_ud_ops = {
    .create = create,
    .destroy = destroy,
    .reset = reset,
    .check = roce_check,
    .take = roce_take,
    .enter = enter,
    .input = input,
    .next = next,
    .timer = engine_pace_timer,
    .deadline = engine_pace_deadline,
    .held = engine_never,
    .settle = engine_never_settles,
    .flush = qp_flush,
    .stats = stats,
};
