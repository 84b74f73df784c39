/* SPDX-License-Identifier: Apache-2.0
 *
 * Responder, the way in: requests are checked and executed (IBA 9.7.4; errors 9.9.3).
 *
 * A request with the expected PSN passes through checks, each of which returns the next step or a fault; nothing of it
 * takes effect before all have passed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mem/persist.h"
#include "qp/element.h"
#include "qp/why.h"
#include "qp/xrc.h"
#include "roce/placement.h"
#include "roce/resp.h"
#include "wire/bth.h"

/* What a fault does (IBA table 58): answer, status of the receive under way (0: none, it is flushed), event. */
static const struct {
    uint8_t syndrome, status;
    int event;
} faults[] = {
    [FAULT_SEQUENCE] = {AETH_NAK_INVALID_REQUEST, RNIC_WC_REM_INV_REQ_ERR, RNIC_EVENT_QP_REQ_ERR},
    [FAULT_LENGTH] = {AETH_NAK_INVALID_REQUEST, RNIC_WC_REM_INV_REQ_ERR, RNIC_EVENT_QP_REQ_ERR},
    [FAULT_RESOURCES] = {AETH_NAK_INVALID_REQUEST, 0, RNIC_EVENT_QP_REQ_ERR},
    [FAULT_TOO_LONG] = {AETH_NAK_INVALID_REQUEST, RNIC_WC_LOC_LEN_ERR, -1},
    [FAULT_DENIED] = {AETH_NAK_INVALID_REQUEST, 0, RNIC_EVENT_QP_REQ_ERR}, /* it is no access error (IBA 11.6.2) */
    [FAULT_ACCESS] = {AETH_NAK_REMOTE_ACCESS, RNIC_WC_LOC_ACCESS_ERR, RNIC_EVENT_QP_ACCESS_ERR},
    [FAULT_LOCAL] = {AETH_NAK_REMOTE_OPERATIONAL, RNIC_WC_LOC_PROT_ERR, -1},
    [FAULT_XRC] = {AETH_NAK_INVALID_REQUEST, RNIC_WC_REM_INV_REQ_ERR, RNIC_EVENT_QP_REQ_ERR}, /* A14.5.1 */
    [FAULT_INVALIDATE] = {AETH_NAK_REMOTE_ACCESS, RNIC_WC_REM_INV_REQ_ERR, RNIC_EVENT_QP_ACCESS_ERR},
};

int resp_init(struct qp *qp) {
    struct responder *resp = &rc_of(qp)->resp;
    uint32_t size = qp->attr.max_dest_rd_atomic;
    resp_free(qp);
    *resp = (struct responder){.mtu = mtu_bytes(qp->attr.path_mtu),
                               .psn = qp->attr.rq_psn,
                               .acked = psn_add(qp->attr.rq_psn, -1),
                               .res_size = size};
    if (!size)
        return 0;
    resp->res = calloc(size, sizeof *resp->res);
    resp->queue = calloc(size, sizeof *resp->queue);
    if (resp->res && resp->queue)
        return 0;
    resp_free(qp);
    return -ENOMEM;
}

void resp_free(struct qp *qp) {
    struct responder *resp = &rc_of(qp)->resp;
    free(resp->res);
    free(resp->queue);
    *resp = (struct responder){0};
}

/* ---------------------------------------------------------------- faults */

/* A packet that is larger than the path MTU: on the wire the message would be several. */
static bool is_several(const struct qp *qp, const struct packet *pkt) {
    return pkt->row->mask & OPC_FIRST && pkt->length > mtu_bytes(qp->attr.path_mtu);
}

/* A WRITE whose memory is refused takes a receive where it has an immediate (IBA 11.6.2), which its last packet alone tells.
 * On the wire a message of several is refused before that; one that came in a packet larger than the path MTU ends as
 * it would there. */
static bool refused_with_receive(const struct qp *qp, const struct packet *pkt) {
    return pkt->row->mask & OPC_USES_RQ && !is_several(qp, pkt);
}

/* Completes the receive under way, or that this packet would have taken, with the status of the fault. */
static void fail_receive(struct qp *qp, const struct packet *pkt, enum fault fault, int vendor_err) {
    const struct responder *resp = &rc_of(qp)->resp;
    bool takes = fault == FAULT_ACCESS ? refused_with_receive(qp, pkt)
                                       : resp->in.message == OPC_SEND || pkt->row->mask & (OPC_SEND | OPC_USES_RQ);
    if (!faults[fault].status || wq_empty(&qp->rq) || !takes)
        return;
    struct rnic_wc wc = {.status = faults[fault].status,
                         .opcode = pkt->row->mask & OPC_WRITE ? RNIC_WCO_RECV_RDMA_WITH_IMM : RNIC_WCO_RECV,
                         .vendor_err = (uint32_t)vendor_err};
    qp_complete_recv(qp, &wc, true);
}

/* What completion counters call it (enum rnic_comp_cntr_op). */
static uint32_t remote_op(const struct packet *pkt) {
    return pkt->row->mask & OPC_WRITE  ? RNIC_COMP_CNTR_OP_REMOTE_RDMA_WRITE
           : pkt->row->mask & OPC_READ ? RNIC_COMP_CNTR_OP_REMOTE_RDMA_READ
                                       : 0;
}

/* What exactly was wrong. */
static struct finding finding_of(struct qp *qp, const struct packet *pkt, enum fault fault, int vendor_err,
                                 uint64_t now) {
    const struct responder *resp = &rc_of(qp)->resp;
    uint32_t right = inbound_right(pkt->row->mask);
    const struct place at = inbound_place(&resp->in, pkt);
    if (fault == FAULT_TOO_LONG && !wq_empty(&qp->rq))
        return (struct finding){.vendor_err = (uint32_t)vendor_err,
                                .length = (pkt->row->mask & OPC_FIRST ? 0 : (uint64_t)resp->in.received) + pkt->length,
                                .size = rq_wqe(&qp->rq, wq_tail(&qp->rq))->length};
    if (fault == FAULT_DENIED)
        return (struct finding){
            .vendor_err = RNIC_VE_RKEY_ACCESS, .lacks = right & ~qp->attr.qp_access_flags, .by_qp = 1};
    if (fault == FAULT_ACCESS || vendor_err == RNIC_VE_ATOMIC_ALIGN)
        return why_memory(qp, vendor_err, at.rkey, at.va, at.length, right, now);
    if (fault == FAULT_LOCAL)
        return why_receive(qp, vendor_err);
    return (struct finding){.vendor_err = (uint32_t)vendor_err, .size = resp->res_size};
}

static const char *kind_of(const struct packet *pkt) {
    uint32_t mask = pkt->row->mask;
    return mask & OPC_SEND     ? "SEND"
           : mask & OPC_WRITE  ? "WRITE"
           : mask & OPC_READ   ? "READ"
           : mask & OPC_ATOMIC ? "atomic"
                               : "request";
}

static void refuse(struct qp *qp, const struct packet *pkt, enum fault fault, int vendor_err, uint64_t now) {
    struct responder *resp = &rc_of(qp)->resp;
    if (fault == FAULT_RNR) {
        resp_want_nak(resp, (uint8_t)(AETH_RNR | qp->attr.min_rnr_timer));
        return;
    }
    const struct finding found = finding_of(qp, pkt, fault, vendor_err, now);
    why_refuse(qp, kind_of(pkt), &found);
    resp_want_nak(resp, faults[fault].syndrome);
    if (qp->cntrs)
        qp_count(qp, remote_op(pkt), false, 0);
    fail_receive(qp, pkt, fault, vendor_err);
    if (qp->state != RNIC_QPS_ERR)
        qp_error(qp, faults[fault].event);
}

/* ---------------------------------------------------------------- checks (IBA 9.7.4.1) */

/* Is there a receive, or a responder resource? */
static enum fault check_resources(struct qp *qp, const struct packet *pkt) {
    const struct responder *resp = &rc_of(qp)->resp;
    if (!(pkt->row->mask & OPC_WAITS))
        return inbound_receive(qp, &resp->in, pkt);
    if ((pkt->row->mask & (OPC_ATOMIC_WRITE | OPC_FLUSH)) && placement_fault(pkt))
        return FAULT_LENGTH;
    const struct resource *oldest = resp->res_size ? &resp->res[resp->res_next] : NULL;
    return !oldest || (oldest->queued && !oldest->answered) ? FAULT_RESOURCES : OK;
}

/* ---------------------------------------------------------------- execution */

/* READs, or a message that asks for nothing, may go on for a whole lap of PSNs; then what was acknowledged last would be ahead again. */
static void keep_behind(struct responder *resp) {
    if (psn_mask(resp->psn - resp->acked) > PSN_HALF / 2)
        resp->acked = psn_add(resp->psn, -PSN_HALF / 2);
}

static void executed(struct qp *qp, const struct packet *pkt, uint32_t psns, uint64_t now) {
    struct responder *resp = &rc_of(qp)->resp;
    bool ends = pkt->row->mask & OPC_LAST, receive = pkt->row->mask & OPC_USES_RQ;
    COUNT(qp, requests_executed);
    qp->nic->silent += ends && !receive;
    resp->psn = psn_add(resp->psn, (int32_t)psns);
    resp->count += psns;
    if (resp->nak_pending) { /* overtaken: of interest only if packets beyond this one were dropped */
        resp->nak_pending = psn_diff(resp->psn, resp->nak_high) <= 0;
        resp->syndrome = AETH_NAK_PSN_SEQ;
    }
    resp->nak_sent = resp->nak_pending;
    inbound_proceed(&resp->in, pkt);
    if (ends) /* IBA 9.7.7.1 */
        resp->msn = psn_add(resp->msn, 1);
    if (pkt->row->mask & OPC_WAITS) {
        resp->ack = ACK_NONE; /* the response acknowledges this and all before (9.7.5.1.1) */
        keep_behind(resp);
        return;
    }
    if (pkt->ackreq || ends)
        resp->acked = pkt->psn;
    else
        keep_behind(resp);
    if (pkt->ackreq)
        resp_want_ack(resp, (receive || resp->answers) && qp->nic->ack_hold ? ACK_ASKED : ACK_NOW, now);
    else if (ends)
        resp_want_ack(resp, ACK_UNASKED, now);
}

/* IBA 9.4.1.1: the window that the last packet of a SEND with invalidate unbinds; NULL and *ve 0: of another packet, none. */
static struct mw *window_of(struct qp *qp, const struct packet *pkt, int *ve) {
    *ve = 0;
    if (!(pkt->row->mask & OPC_INV))
        return NULL;
    return mw_invalidable(&qp->nic->mrs, &qp->pub, ieth_rkey(pkt->bth + pkt->row->ieth), ve);
}

static void execute_send(struct qp *qp, const struct packet *pkt, uint64_t now) {
    struct responder *resp = &rc_of(qp)->resp;
    int ve;
    struct mw *mw = window_of(qp, pkt, &ve);
    if (ve) {
        refuse(qp, pkt, FAULT_INVALIDATE, ve, now);
        return;
    }
    ve = inbound_store_send(qp, &resp->in, pkt);
    if (ve) {
        refuse(qp, pkt, FAULT_LOCAL, ve, now);
        return;
    }
    if (mw)
        mw_unbind(mw);
    executed(qp, pkt, 1, now);
    inbound_complete(qp, &resp->in, pkt);
}

static void execute_write(struct qp *qp, const struct packet *pkt, uint8_t *ptr, uint64_t now) {
    struct responder *resp = &rc_of(qp)->resp;
    int ve = inbound_store_write(qp, &resp->in, pkt, ptr);
    if (ve) {
        refuse(qp, pkt, FAULT_ACCESS, ve, now);
        return;
    }
    executed(qp, pkt, 1, now);
    inbound_complete(qp, &resp->in, pkt);
}

static struct resource *new_resource(struct responder *resp, const struct packet *pkt) {
    struct resource *res = &resp->res[resp->res_next];
    if (res->queued)
        resp_unqueue(resp, res);
    resp->res_next = (resp->res_next + 1) % resp->res_size;
    *res = (struct resource){
        .valid = true, .opcode = pkt->opcode, .first_psn = resp->psn, .at = resp->count, .packets = 1};
    return res;
}

static void execute_read(struct qp *qp, const struct packet *pkt, uint64_t now) {
    struct rc *rc = rc_of(qp);
    const uint8_t *reth = pkt->bth + pkt->row->reth;
    struct resource *res = new_resource(&rc->resp, pkt);
    res->va = reth_va(reth);
    res->rkey = reth_rkey(reth);
    res->length = reth_len(reth);
    res->srqn = qp->xrc ? qp->srq->pub.srq_num : 0;
    res->packets = packets_of(res->length, rc->resp.mtu);
    resp_enqueue(&rc->resp, res, 0, res->packets);
    executed(qp, pkt, res->packets, now);
}

/* Answered as a READ of nothing is (A19.4.5). */
static void execute_placement(struct qp *qp, const struct packet *pkt, uint64_t now) {
    struct responder *resp = &rc_of(qp)->resp;
    resp_enqueue(resp, new_resource(resp, pkt), 0, 1);
    executed(qp, pkt, 1, now);
}

static void execute_flush(struct qp *qp, const struct packet *pkt, uint64_t now) {
    struct flush f;
    if (!flush_allowed(qp, pkt)) {
        refuse(qp, pkt, FAULT_DENIED, 0, now);
        return;
    }
    int ve = flush_access(qp, pkt, &f);
    if (ve)
        refuse(qp, pkt, FAULT_ACCESS, ve, now);
    else if (mem_flush(f.at, f.length, f.type))
        refuse(qp, pkt, FAULT_LOCAL, 0, now); /* it takes no receive, which could tell more */
    else
        execute_placement(qp, pkt, now);
}

/* One indivisible operation on the host's memory, also against its CPUs (atomic_cap GLOB). What an ATOMIC WRITE stores are
 * the bytes as they came: what they mean is the program's affair. */
static struct word_op word_op_of(const struct packet *pkt) {
    const uint8_t *eth = pkt->bth + pkt->row->atomic_eth;
    struct word_op op = {.kind = WORD_STORE};
    if (pkt->row->mask & OPC_ATOMIC_WRITE)
        memcpy(&op.operand, pkt->payload, sizeof op.operand);
    else if ((pkt->opcode & ROCE_OPERATION) == ROCE_RC_FETCH_ADD)
        op = (struct word_op){WORD_ADD, atmeth_swap_add(eth), 0};
    else
        op = (struct word_op){WORD_CMP_SWAP, atmeth_swap_add(eth), atmeth_compare(eth)};
    return op;
}

static int change_word(struct qp *qp, const struct packet *pkt, uint8_t *ptr, uint64_t *was) {
    const struct roce_opcode *row = pkt->row;
    const struct word_op op = word_op_of(pkt);
    uint64_t va = row->reth ? reth_va(pkt->bth + row->reth) : atmeth_va(pkt->bth + row->atomic_eth);
    uint32_t rkey = row->reth ? reth_rkey(pkt->bth + row->reth) : atmeth_rkey(pkt->bth + row->atomic_eth);
    return peer_changes_word(qp, rkey, va, ptr, &op, was);
}

static void execute_word(struct qp *qp, const struct packet *pkt, uint8_t *ptr, uint64_t now) {
    struct responder *resp = &rc_of(qp)->resp;
    uint64_t was;
    int ve = change_word(qp, pkt, ptr, &was);
    if (ve) {
        refuse(qp, pkt, ve == RNIC_VE_ATOMIC_ALIGN ? FAULT_RESOURCES : FAULT_ACCESS, ve, now);
        return;
    }
    if (pkt->row->mask & OPC_ATOMIC_WRITE) {
        execute_placement(qp, pkt, now);
        return;
    }
    struct resource *res = new_resource(resp, pkt);
    res->result = was;
    resp_enqueue(resp, res, 0, 1);
    executed(qp, pkt, 1, now);
}

static void expected(struct qp *qp, const struct packet *pkt, uint64_t now) {
    const struct rc *rc = rc_of(qp);
    uint32_t mask = pkt->row->mask;
    uint8_t *ptr = NULL;
    enum fault fault = inbound_sequence(&rc->resp.in, pkt);
    if (!fault)
        fault = inbound_length(&rc->resp.in, pkt, rc->resp.mtu);
    if (!fault)
        fault = inbound_allowed(qp, pkt);
    if (fault) {
        refuse(qp, pkt, fault, fault == FAULT_SEQUENCE ? RNIC_VE_BAD_SEQUENCE : RNIC_VE_BAD_LENGTH, now);
        return;
    }
    if (pkt->row->xrceth && !xrc_turn_to(qp, xrceth_srqn(pkt->bth + pkt->row->xrceth), mask & OPC_FIRST)) {
        refuse(qp, pkt, FAULT_XRC, RNIC_VE_XRC_SRQ, now);
        return;
    }
    int ve = mask & OPC_WRITE && is_several(qp, pkt) ? inbound_access(qp, &rc->resp.in, pkt, &ptr) : 0;
    if (ve) { /* before it takes a receive, which a shared queue would not have back */
        refuse(qp, pkt, FAULT_ACCESS, ve, now);
        return;
    }
    fault = check_resources(qp, pkt);
    if (fault) {
        refuse(qp, pkt, fault, fault == FAULT_TOO_LONG ? RNIC_VE_RECV_TOO_SMALL : RNIC_VE_NO_RD_ATOMIC, now);
        return;
    }
    if (mask & OPC_SEND) {
        execute_send(qp, pkt, now);
        return;
    }
    if (mask & OPC_FLUSH) {
        execute_flush(qp, pkt, now);
        return;
    }
    ve = inbound_access(qp, &rc->resp.in, pkt, &ptr);
    if (ve)
        refuse(qp, pkt, FAULT_ACCESS, ve, now);
    else if (mask & OPC_WRITE)
        execute_write(qp, pkt, ptr, now);
    else if (mask & OPC_READ)
        execute_read(qp, pkt, now);
    else
        execute_word(qp, pkt, ptr, now);
}

/* ---------------------------------------------------------------- requests that are not expected */

/* By when it was, not by its PSN alone, which comes again after 2^24 packets. */
static struct resource *saved(const struct responder *resp, uint32_t psn) {
    uint64_t at = resp->count - psn_mask(resp->psn - psn);
    for (uint32_t i = 0; i < resp->res_size; i++) {
        struct resource *res = &resp->res[i];
        if (res->valid && at - res->at < res->packets)
            return res;
    }
    return NULL;
}

/* A READ that comes again may ask for a part of what it asked for first (IBA 9.7.5.1.3, C9-107 ff.). */
static bool repeat_read(const struct rc *rc, struct resource *res, const struct packet *pkt, uint32_t *from,
                        uint32_t *end) {
    const uint8_t *reth = pkt->bth + pkt->row->reth;
    uint32_t length = reth_len(reth);
    *from = psn_mask(pkt->psn - res->first_psn);
    uint64_t offset = (uint64_t)*from * rc->resp.mtu;
    if (reth_rkey(reth) != res->rkey || reth_va(reth) != res->va + offset || offset + length > res->length)
        return false;
    if (offset + length < res->length && length % rc->resp.mtu)
        return false;
    *end = *from + packets_of(length, rc->resp.mtu);
    return true;
}

/* The answer to the same READ, atomic or their like; NULL: there was none. */
static struct resource *answer_of(const struct rc *rc, const struct packet *pkt, uint32_t *from, uint32_t *end) {
    struct resource *res = saved(&rc->resp, pkt->psn);
    if (!res || res->opcode != pkt->opcode)
        return NULL;
    *from = 0;
    *end = 1;
    return !(pkt->row->mask & OPC_READ) || repeat_read(rc, res, pkt, from, end) ? res : NULL;
}

/* A repeated packet of the message under way.  One with AckReq is answered by an ACK of every packet executed, as an earlier ACK
 * may have been lost; one without, by an ACK of itself. */
static void acknowledge_again(struct responder *resp, const struct packet *pkt) {
    if (!resp->in.message)
        return;
    if (pkt->ackreq)
        resp->acked = psn_add(resp->psn, -1);
    else if (psn_diff(pkt->psn, resp->acked) > 0)
        resp->acked = pkt->psn;
}

/* What has been done is not done again: SENDs and WRITEs are acknowledged (IBA C9-105), the others answered. */
static void duplicate(struct qp *qp, const struct packet *pkt, uint64_t now) {
    struct rc *rc = rc_of(qp);
    struct responder *resp = &rc->resp;
    uint32_t from, end;
    COUNT(qp, duplicate_requests);
    if (!(pkt->row->mask & OPC_WAITS)) {
        acknowledge_again(resp, pkt);
        resp_want_ack(resp, ACK_NOW, now);
        return;
    }
    struct resource *res = answer_of(rc, pkt, &from, &end);
    if (res)
        resp_enqueue(resp, res, from, end);
    else
        COUNT(qp, drop_duplicate);
}

/* One NAK a gap (IBA 9.7.5.2.8), and one more when the requester has gone back and lost the expected packet again,
 * or asks: else a lost NAK would cost a timeout. */
static void out_of_sequence(struct qp *qp, const struct packet *pkt) {
    struct responder *resp = &rc_of(qp)->resp;
    bool again = psn_diff(pkt->psn, resp->nak_high) <= 0;
    COUNT(qp, out_of_sequence);
    bool rnr = resp->nak_sent && (resp->syndrome & AETH_TYPE) == AETH_RNR;
    if (!resp->nak_sent || (again && !rnr))
        resp_want_nak(resp, AETH_NAK_PSN_SEQ);
    resp->nak_high = pkt->psn;
}

/* The next request, or one that the requester may repeat. */
bool resp_expects(const struct qp *qp, const struct packet *pkt) {
    const struct rc *rc = rc_of(qp);
    int32_t ahead = psn_diff(pkt->psn, rc->resp.psn);
    uint32_t from, end;
    if (ahead >= 0)
        return ahead == 0 && inbound_sequence(&rc->resp.in, pkt) == OK;
    return pkt->row->mask & OPC_WAITS ? answer_of(rc, pkt, &from, &end) != NULL : ahead >= -MAX_REPEATED;
}

void resp_input(struct qp *qp, const struct packet *pkt, uint64_t now) {
    struct responder *resp = &rc_of(qp)->resp;
    int32_t ahead = psn_diff(pkt->psn, resp->psn);
    qp->nic->useless += ahead > MAX_REPEATED || ahead < -MAX_REPEATED;
    if (!resp->established) {
        resp->established = true;
        if (qp->state == RNIC_QPS_RTR)
            qp_event(qp, RNIC_EVENT_COMM_EST);
    }
    if (ahead > 0)
        out_of_sequence(qp, pkt);
    else if (ahead < 0)
        duplicate(qp, pkt, now);
    else {
        resp->begun = true;
        expected(qp, pkt, now);
    }
}
