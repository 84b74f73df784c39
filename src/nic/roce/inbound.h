/* SPDX-License-Identifier: Apache-2.0
 *
 * SENDs and WRITEs on their way in, as the connected services RC and UC have them in common (IBA 9.7.4, 9.8.2): checks
 * in the order in which a responder makes them, which change nothing, and execution.  For every packet, so compiled into
 * both.
 */
#ifndef RNIC_ROCE_INBOUND_H
#define RNIC_ROCE_INBOUND_H

#include <string.h>

#include "roce/roce.h"
#include "wire/bth.h"

#define MAX_MESSAGE 0x80000000u

/* What can be wrong with a request; what that means is the service's affair. */
enum fault {
    OK,
    FAULT_RNR,       /* no receive posted */
    FAULT_SEQUENCE,  /* the opcode does not follow from the one before */
    FAULT_LENGTH,    /* the length contradicts the headers or the path MTU */
    FAULT_RESOURCES, /* more READs and atomics than max_dest_rd_atomic, or misaligned atomic */
    FAULT_TOO_LONG,  /* longer than the receive */
    FAULT_ACCESS,    /* key, bounds or rights of the memory */
    FAULT_LOCAL,     /* the receive's own memory is bad */
};

/* ---------------------------------------------------------------- checks (IBA 9.7.4.1) */

/* Does the opcode follow from the one before?  SEND with invalidate is not supported: executing it as a SEND would leave its sender in the belief that the key is
 * gone. */
static inline enum fault inbound_sequence(const struct inbound *in, const struct packet *pkt) {
    uint32_t kind = pkt->row->mask & (OPC_SEND | OPC_WRITE);
    if (pkt->row->mask & OPC_INV)
        return FAULT_SEQUENCE;
    if (pkt->row->mask & OPC_FIRST)
        return in->message ? FAULT_SEQUENCE : OK;
    return in->message == kind ? OK : FAULT_SEQUENCE;
}

/* First and middle packets are full, last ones are not empty (IBA 9.4.1, C9-16, C9-17, 9.7.4.1.6); no message is longer
 * than 2^31 bytes (C9-5), nor would its PSNs fit the half of their space that lies ahead. */
static inline enum fault inbound_length(const struct inbound *in, const struct packet *pkt, uint32_t mtu) {
    bool ends = pkt->row->mask & OPC_LAST, starts = pkt->row->mask & OPC_FIRST;
    if (pkt->row->reth && reth_len(pkt->bth + pkt->row->reth) > MAX_MESSAGE)
        return FAULT_LENGTH;
    if (!(pkt->row->mask & OPC_PAYLOAD))
        return pkt->length ? FAULT_LENGTH : OK;
    if (pkt->length > mtu || (!ends && pkt->length != mtu) || (ends && !starts && pkt->length == 0))
        return FAULT_LENGTH;
    if (pkt->row->mask & OPC_SEND)
        return starts || in->received <= MAX_MESSAGE - pkt->length ? OK : FAULT_LENGTH;
    uint32_t left = starts ? reth_len(pkt->bth + pkt->row->reth) : in->left;
    bool fits = ends ? pkt->length == left : pkt->length < left;
    return fits ? OK : FAULT_LENGTH;
}

/* Is there a receive, and room in it? */
static inline enum fault inbound_receive(struct qp *qp, const struct inbound *in, const struct packet *pkt) {
    uint32_t mask = pkt->row->mask;
    if (!(mask & (OPC_SEND | OPC_USES_RQ)))
        return OK;
    if (!qp_has_receive(qp))
        return FAULT_RNR;
    if (!(mask & OPC_SEND))
        return OK;
    uint64_t end = (mask & OPC_FIRST ? 0 : (uint64_t)in->received) + pkt->length;
    return end > rq_wqe(&qp->rq, wq_tail(&qp->rq))->length ? FAULT_TOO_LONG : OK;
}

/* Keys, bounds and rights of the whole message at its start, and again of each later packet. */
static inline int inbound_access(struct qp *qp, const struct inbound *in, const struct packet *pkt, uint8_t **ptr) {
    uint64_t va = in->va, length = pkt->length;
    uint32_t rkey = in->rkey, mask = pkt->row->mask, want;
    if (pkt->row->reth) {
        const uint8_t *reth = pkt->bth + pkt->row->reth;
        va = reth_va(reth);
        rkey = reth_rkey(reth);
        length = reth_len(reth);
    } else if (pkt->row->atomic_eth) {
        va = atmeth_va(pkt->bth + pkt->row->atomic_eth);
        rkey = atmeth_rkey(pkt->bth + pkt->row->atomic_eth);
        length = sizeof(uint64_t);
    }
    want = mask & (OPC_WRITE | OPC_ATOMIC_WRITE) ? RNIC_ACCESS_REMOTE_WRITE
           : mask & OPC_READ                     ? RNIC_ACCESS_REMOTE_READ
                                                 : RNIC_ACCESS_REMOTE_ATOMIC;
    if (!(qp->attr.qp_access_flags & want))
        return RNIC_VE_RKEY_ACCESS;
    return mr_remote(&qp->nic->mrs, qp->pub.pd, rkey, va, length, want, ptr);
}

/* ---------------------------------------------------------------- execution */

/* Into the oldest receive: 0, or enum rnic_vendor_err. */
static inline int inbound_store_send(struct qp *qp, struct inbound *in, const struct packet *pkt) {
    const struct recv_wqe *wqe = rq_wqe(&qp->rq, wq_tail(&qp->rq));
    uint32_t before = pkt->row->mask & OPC_FIRST ? 0 : in->received;
    int ve = sge_scatter(&qp->nic->mrs, qp->rq.pd, wqe->sge, wqe->num_sge, before, pkt->payload, pkt->length);
    if (!ve)
        in->received = before + pkt->length;
    return ve;
}

/* To where inbound_access() has said. */
static inline void inbound_store_write(struct inbound *in, const struct packet *pkt, uint8_t *ptr) {
    if (pkt->row->reth) {
        const uint8_t *reth = pkt->bth + pkt->row->reth;
        in->va = reth_va(reth);
        in->rkey = reth_rkey(reth);
        in->left = reth_len(reth);
        in->received = 0;
    }
    if (pkt->length)
        memcpy(ptr, pkt->payload, pkt->length);
    in->va += pkt->length;
    in->left -= pkt->length;
    in->received += pkt->length;
}

/* The message goes on, or ends with this packet. */
static inline void inbound_proceed(struct inbound *in, const struct packet *pkt) {
    in->message = pkt->row->mask & OPC_LAST ? 0 : pkt->row->mask & (OPC_SEND | OPC_WRITE);
}

/* Completes the receive that ends with this packet, if one does. */
static inline void inbound_complete(struct qp *qp, const struct inbound *in, const struct packet *pkt) {
    if (!(pkt->row->mask & OPC_USES_RQ))
        return;
    struct rnic_wc wc = {.opcode = pkt->row->mask & OPC_WRITE ? RNIC_WCO_RECV_RDMA_WITH_IMM : RNIC_WCO_RECV,
                         .byte_len = in->received};
    if (pkt->row->imm) {
        wc.wc_flags = RNIC_WCF_WITH_IMM;
        memcpy(&wc.imm_data, pkt->bth + pkt->row->imm, IMMDT_BYTES);
    }
    qp_complete_recv(qp, &wc, pkt->solicited);
}

#endif
