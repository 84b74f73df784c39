/* SPDX-License-Identifier: Apache-2.0 */
#include "raw/raw.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TURN 64 /* frames that a queue pair sends before others have theirs */

/* ---------------------------------------------------------------- send */

static int gather(struct qp *qp, const struct send_wqe *wqe, uint8_t *to) {
    uint32_t crc = 0;
    if (wqe->flags & RNIC_SEND_INLINE) {
        memcpy(to, wqe->sge, wqe->length);
        return 0;
    }
    return sge_gather(&qp->nic->mrs, qp->pub.pd, wqe->sge, wqe->num_sge, 0, to, wqe->length, &crc);
}

/* The MTU is of what the headers carry, and VLAN tags are headers. */
static bool fits(const struct raw_net *net, const struct frame *f) { return f->length - f->payload <= net->mtu; }

static bool send_one(struct qp *qp, struct send_wqe *wqe, uint64_t now) {
    struct raw_net *net = qp->nic->raw;
    struct frame f;
    (void)now;
    if (wqe->length < ETH_BYTES || wqe->length > RAW_FRAME_ROOM(net->mtu)) {
        qp_refuse_send(qp, wqe, RNIC_WC_LOC_LEN_ERR, RNIC_VE_BAD_LENGTH);
        return true;
    }
    int ve = gather(qp, wqe, net->frame);
    if (ve) {
        qp_refuse_send(qp, wqe, RNIC_WC_LOC_PROT_ERR, ve);
        return true;
    }
    frame_parse(&f, net->frame, wqe->length);
    if (!fits(net, &f)) {
        qp_refuse_send(qp, wqe, RNIC_WC_LOC_LEN_ERR, RNIC_VE_BAD_LENGTH);
        return true;
    }
    if (wqe->flags & RNIC_SEND_IP_CSUM)
        frame_put_csums(&f, net->frame);
    if (!net->link.ops->put(&net->link, &qp->way, f.bytes,
                            f.length)) /* first: what stays here has arrived when it is complete */
        return false;
    COUNT(qp, requests_sent);
    qp->counters.value[RNIC_CNT_tx_packets]++; /* the device counts what goes to its wire */
    qp->counters.value[RNIC_CNT_tx_bytes] += f.length;
    qp_complete_send(qp, wqe);
    return true;
}

static bool next(struct qp *qp, uint64_t now) { return qp_send_some(qp, now, TURN, send_one); }

/* ---------------------------------------------------------------- receive */

static void drop(struct qp *qp, int counter) {
    qp->counters.value[counter]++;
    qp->nic->counters.value[counter]++;
}

/* Writes the frame into the oldest receive of a queue, and says in wc how that went. */
static void place(const struct nic *nic, struct wq *q, const struct frame *f, struct rnic_wc *wc) {
    const struct recv_wqe *wqe = rq_wqe(q, wq_tail(q));
    if (f->length > wqe->length) {
        wc->status = RNIC_WC_LOC_LEN_ERR;
        wc->vendor_err = RNIC_VE_RECV_TOO_SMALL;
        return;
    }
    wc->vendor_err = (uint32_t)sge_scatter(&nic->mrs, q->pd, wqe->sge, wqe->num_sge, 0, f->bytes, f->length);
    if (wc->vendor_err)
        wc->status = RNIC_WC_LOC_PROT_ERR;
}

/* A receive that cannot take its frame ends in an error, and with it its queue, as of a datagram (IBA 11.6.2). */
static void to_queue(struct qp *qp, const struct frame *f, struct rnic_wc *wc) {
    if (!qp_has_receive(qp, NULL)) {
        drop(qp, RNIC_CNT_drop_no_receive);
        return;
    }
    place(qp->nic, &qp->rq, f, wc);
    if (!wc->status)
        COUNT(qp, requests_executed);
    qp_complete_recv(qp, wc, false);
    if (wc->status && qp->state != RNIC_QPS_ERR)
        qp_error(qp, -1);
}

static void to_work_queue(struct qp *qp, const struct frame *f, struct rnic_wc *wc) {
    struct rwq *wq = rss_choose(&raw_of(qp)->rss, f);
    if (wq->state != RNIC_WQS_RDY || wq_empty(&wq->q)) {
        drop(qp, wq->state != RNIC_WQS_RDY ? RNIC_CNT_drop_bad_state : RNIC_CNT_drop_no_receive);
        return;
    }
    place(qp->nic, &wq->q, f, wc);
    if (!wc->status)
        COUNT(qp, requests_executed);
    wc->qp_num = wc->status ? wq->pub.wq_num : qp->pub.qp_num;
    rwq_complete(wq, wc);
    if (wc->status && wq->state != RNIC_WQS_ERR)
        rwq_error(wq);
}

/* One that spreads frames has work queues that are ready or not, and needs no state of its own. */
static bool listens(const struct qp *qp) {
    return qp->state != RNIC_QPS_ERR && (qp->state >= RNIC_QPS_RTR || raw_of(qp)->rss.table);
}

static void deliver(const struct flow_rule *rule, const struct frame *f, uint32_t wc_flags) {
    struct qp *qp = rule->qp;
    struct rnic_wc wc = {.opcode = RNIC_WCO_RECV, .byte_len = f->length, .wc_flags = wc_flags, .flow_tag = rule->tag};
    if (rule->counters)
        flow_count(rule->counters, f->length);
    if (rule->drop)
        drop(qp, RNIC_CNT_drop_flow_rule);
    else if (!listens(qp))
        drop(qp, RNIC_CNT_drop_bad_state);
    else if (raw_of(qp)->rss.table)
        to_work_queue(qp, f, &wc);
    else
        to_queue(qp, f, &wc);
}

bool raw_input(struct raw_net *net, const struct qp *from, const uint8_t *bytes, uint32_t n) {
    const struct flow_rule *taken = NULL;
    struct frame f;
    uint32_t wc_flags = 0;
    bool wanted = false;
    if (!frame_parse(&f, bytes, n) || !fits(net, &f)) {
        net->nic->counters.value[RNIC_CNT_drop_malformed]++;
        return true;
    }
    for (const struct flow_rule *rule = net->rules; rule; rule = rule->next) {
        if (taken && !flow_same_place(rule, taken))
            break;
        if (rule->qp == from || !flow_matches(rule, &f) || (taken && !flow_equal(rule, taken)))
            continue;
        if (!wanted && frame_csum_ok(&f))
            wc_flags = RNIC_WCF_IP_CSUM_OK;
        wanted = true;
        deliver(rule, &f, wc_flags);
        if (!rule->copies)
            taken = rule;
    }
    return wanted;
}

/* ---------------------------------------------------------------- its way */

void raw_set_way(struct qp *qp, struct link *link) {
    qp->way = (struct way){.link = link};
    ((struct raw_way *)(void *)qp->way.own)->from = qp;
}

bool raw_is_from(const struct way *way, const void *qp) { return raw_way(way)->from == qp; }

/* ---------------------------------------------------------------- the engine */

static int create(struct qp *qp) {
    qp->engine_state = calloc(1, sizeof(struct raw_qp));
    return qp->engine_state ? 0 : -ENOMEM;
}

static void destroy(struct qp *qp) { free(qp->engine_state); }

static void reset(struct qp *qp) { (void)qp; }

static void stats(struct qp *qp, struct rnic_qp_stats *out) {
    (void)qp;
    (void)out;
}

const struct engine_ops raw_ops = {
    .create = create,
    .destroy = destroy,
    .reset = reset,
    .next = next,
    .timer = engine_pace_timer,
    .deadline = engine_pace_deadline,
    .held = engine_never,
    .settle = engine_never_settles,
    .flush = qp_flush,
    .stats = stats,
};
