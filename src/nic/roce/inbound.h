/* SPDX-License-Identifier: Apache-2.0
 *
 * SENDs and WRITEs on their way in, as the connected services RC and UC have them in common (IBA 9.7.4, 9.8.2): checks
 * in the order in which a responder makes them, which change nothing, and execution.  For every packet, so compiled into
 * both.
 */
#ifndef RNIC_ROCE_INBOUND_H
#define RNIC_ROCE_INBOUND_H

#include <string.h>

#include "base/guard.h"
#include "qp/tagged.h"
#include "roce/roce.h"
#include "wire/bth.h"

#define MAX_MESSAGE 0x80000000u

/* What can be wrong with a request; what that means is the service's affair. */
enum fault {
    OK,
    FAULT_RNR,        /* no receive posted */
    FAULT_SEQUENCE,   /* the opcode does not follow from the one before */
    FAULT_LENGTH,     /* the length contradicts the headers or the path MTU */
    FAULT_RESOURCES,  /* more READs and atomics than max_dest_rd_atomic, or misaligned atomic */
    FAULT_TOO_LONG,   /* longer than the receive */
    FAULT_DENIED,     /* the queue pair's access flags do not allow the operation */
    FAULT_ACCESS,     /* key, bounds or rights of the memory */
    FAULT_LOCAL,      /* the receive's own memory is bad */
    FAULT_XRC,        /* no such shared receive queue */
    FAULT_INVALIDATE, /* the key is none that the peer may invalidate */
};

/* ---------------------------------------------------------------- checks (IBA 9.7.4.1) */

/* Does the opcode follow from the one before? */
static inline enum fault inbound_sequence(const struct inbound *in, const struct packet *pkt) {
    uint32_t kind = pkt->row->mask & (OPC_SEND | OPC_WRITE);
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

/* What the memory, and the queue pair, must allow; 0: a SEND, or a FLUSH, whose types are rights (roce/placement.c). */
static inline uint32_t inbound_right(uint32_t mask) {
    return mask & (OPC_WRITE | OPC_ATOMIC_WRITE) ? RNIC_ACCESS_REMOTE_WRITE
           : mask & (OPC_SEND | OPC_FLUSH)       ? 0
           : mask & OPC_READ                     ? RNIC_ACCESS_REMOTE_READ
                                                 : RNIC_ACCESS_REMOTE_ATOMIC;
}

/* Does the queue pair take such requests at all?  For every packet, as the flags may change (IBA 9.7.4.1.3). */
static inline enum fault inbound_allowed(const struct qp *qp, const struct packet *pkt) {
    return inbound_right(pkt->row->mask) & ~qp->attr.qp_access_flags ? FAULT_DENIED : OK;
}

/* Is there a receive, and room in it? */
static inline enum fault inbound_receive(struct qp *qp, const struct inbound *in, const struct packet *pkt) {
    uint32_t mask = pkt->row->mask;
    if (!(mask & (OPC_SEND | OPC_USES_RQ)))
        return OK;
    if (!qp_has_receive(qp, pkt))
        return FAULT_RNR;
    if (!(mask & OPC_SEND))
        return OK;
    uint64_t end = (mask & OPC_FIRST ? 0 : (uint64_t)in->received) + pkt->length;
    bool fits = qp->tagged ? tagged_fits(qp, end) : end <= rq_wqe(&qp->rq, wq_tail(&qp->rq))->length;
    return fits ? OK : FAULT_TOO_LONG;
}

/* Memory that a packet asks for. */
struct place {
    uint64_t va, length;
    uint32_t rkey;
};

static inline struct place inbound_place(const struct inbound *in, const struct packet *pkt) {
    if (pkt->row->reth) {
        const uint8_t *reth = pkt->bth + pkt->row->reth;
        return (struct place){reth_va(reth), reth_len(reth), reth_rkey(reth)};
    }
    if (pkt->row->atomic_eth) {
        const uint8_t *eth = pkt->bth + pkt->row->atomic_eth;
        return (struct place){atmeth_va(eth), sizeof(uint64_t), atmeth_rkey(eth)};
    }
    return (struct place){in->va, pkt->length, in->rkey};
}

/* Keys, bounds and rights of the whole message at its start, and again of each later packet. */
static inline int inbound_access(struct qp *qp, const struct inbound *in, const struct packet *pkt, uint8_t **ptr) {
    const struct place at = inbound_place(in, pkt);
    return qp_remote(qp, at.rkey, at.va, at.length, inbound_right(pkt->row->mask), ptr);
}

/* ---------------------------------------------------------------- execution */

/* Into the oldest receive: 0, or enum rnic_vendor_err. */
static inline int inbound_store_send(struct qp *qp, struct inbound *in, const struct packet *pkt) {
    const struct recv_wqe *wqe = rq_wqe(&qp->rq, wq_tail(&qp->rq));
    uint32_t before = pkt->row->mask & OPC_FIRST ? 0 : in->received;
    int ve = qp->tagged
                 ? tagged_store(qp, before, pkt->payload, pkt->length)
                 : sge_scatter(&qp->nic->mrs, qp->rq.pd, wqe->sge, wqe->num_sge, before, pkt->payload, pkt->length);
    if (!ve)
        in->received = before + pkt->length;
    return ve;
}

/* To where inbound_access() has said: 0, or enum rnic_vendor_err. */
static inline int inbound_store_write(struct qp *qp, struct inbound *in, const struct packet *pkt, uint8_t *ptr) {
    if (pkt->row->reth) {
        const uint8_t *reth = pkt->bth + pkt->row->reth;
        in->va = reth_va(reth);
        in->rkey = reth_rkey(reth);
        in->left = reth_len(reth);
        in->received = 0;
    }
    if (ptr && pkt->length && !guard_copy(ptr, pkt->payload, pkt->length))
        return RNIC_VE_RKEY_UNMAPPED;
    if (!ptr && pkt->length && mr_remote_store(&qp->nic->mrs, in->rkey, in->va, pkt->payload, pkt->length))
        return RNIC_VE_RKEY_UNMAPPED;
    in->va += pkt->length;
    in->left -= pkt->length;
    in->received += pkt->length;
    return 0;
}

/* The message goes on, or ends with this packet. */
static inline void inbound_proceed(struct inbound *in, const struct packet *pkt) {
    in->message = pkt->row->mask & OPC_LAST ? 0 : pkt->row->mask & (OPC_SEND | OPC_WRITE);
}

/* Completes the receive that ends with this packet, if one does. */
static inline void inbound_complete(struct qp *qp, const struct inbound *in, const struct packet *pkt) {
    if (qp->cntrs && (pkt->row->mask & OPC_WRITE) && (pkt->row->mask & OPC_LAST))
        qp_count(qp, RNIC_COMP_CNTR_OP_REMOTE_RDMA_WRITE, true, in->received);
    if (!(pkt->row->mask & OPC_USES_RQ)) {
        if (qp->tagged && pkt->row->mask & OPC_SEND)
            tagged_proceed(qp, pkt->solicited);
        return;
    }
    struct rnic_wc wc = {.opcode = pkt->row->mask & OPC_WRITE ? RNIC_WCO_RECV_RDMA_WITH_IMM : RNIC_WCO_RECV,
                         .byte_len = in->received};
    if (pkt->row->imm) {
        wc.wc_flags = RNIC_WCF_WITH_IMM;
        memcpy(&wc.imm_data, pkt->bth + pkt->row->imm, IMMDT_BYTES);
    } else if (pkt->row->ieth) {
        wc.wc_flags = RNIC_WCF_WITH_INV;
        wc.invalidated_rkey = ieth_rkey(pkt->bth + pkt->row->ieth);
    }
    if (qp->tagged)
        tagged_complete(qp, &wc, pkt->solicited);
    else
        qp_complete_recv(qp, &wc, pkt->solicited);
}

#endif
