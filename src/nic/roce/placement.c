/* SPDX-License-Identifier: Apache-2.0 */
#include "roce/placement.h"

#include <string.h>

#define ALL_TYPES (RNIC_FLUSH_GLOBAL | RNIC_FLUSH_PERSISTENT)

/* ---------------------------------------------------------------- out */

static void put_headers(const struct out *out, const struct send_wqe *wqe) {
    uint8_t *reth = out->bth + out->row->reth;
    reth_set_va(reth, wqe->remote_addr);
    reth_set_rkey(reth, wqe->rkey);
    reth_set_len(reth, out->row->feth ? wqe->flush_length : ATOMIC_WRITE_BYTES);
    if (!out->row->feth)
        return;
    uint8_t *feth = out->bth + out->row->feth;
    memset(feth, 0, FETH_BYTES);
    feth_set_type(feth, wqe->flush_type);
    feth_set_level(feth, wqe->flush_level);
}

enum result placement_write(struct qp *qp, struct send_wqe *wqe) {
    bool flush = wqe->opcode == RNIC_WR_FLUSH;
    uint8_t opcode = flush ? ROCE_RC_FLUSH : ROCE_RC_ATOMIC_WRITE;
    struct out out;
    if (!out_open(qp, &out, opcode, flush ? 0 : ATOMIC_WRITE_BYTES, wqe->first_psn, true, false))
        return SINK_FULL;
    put_headers(&out, wqe);
    return message_finish(qp, &out, wqe, 0);
}

/* ---------------------------------------------------------------- in */

enum fault placement_fault(const struct packet *pkt) {
    if (pkt->row->mask & OPC_ATOMIC_WRITE)
        return reth_len(pkt->bth + pkt->row->reth) == ATOMIC_WRITE_BYTES ? OK : FAULT_LENGTH;
    const uint8_t *feth = pkt->bth + pkt->row->feth;
    bool known = feth_type(feth) && !(feth_type(feth) & ~(uint32_t)ALL_TYPES) && feth_level(feth) <= RNIC_FLUSH_MR;
    return known ? OK : FAULT_LENGTH;
}

static uint32_t rights(uint32_t type) {
    return (type & RNIC_FLUSH_GLOBAL ? (uint32_t)RNIC_ACCESS_FLUSH_GLOBAL : 0) |
           (type & RNIC_FLUSH_PERSISTENT ? (uint32_t)RNIC_ACCESS_FLUSH_PERSISTENT : 0);
}

bool flush_allowed(const struct qp *qp, const struct packet *pkt) {
    return !(rights(feth_type(pkt->bth + pkt->row->feth)) & ~qp->attr.qp_access_flags);
}

/* Of level MR the key alone counts, address and length do not. */
int flush_access(struct qp *qp, const struct packet *pkt, struct flush *f) {
    const uint8_t *feth = pkt->bth + pkt->row->feth, *reth = pkt->bth + pkt->row->reth;
    const struct mr *mr = mr_find(&qp->nic->mrs, reth_rkey(reth));
    if (!mr)
        return RNIC_VE_RKEY_BAD;
    bool whole = feth_level(feth) == RNIC_FLUSH_MR;
    if (whole && mr->window && !mr->pub.length) /* only a window that is not bound has none */
        return RNIC_VE_WINDOW_FREE;
    uint64_t va = whole ? mr->pub.iova : reth_va(reth);
    *f = (struct flush){.length = whole ? mr->pub.length : reth_len(reth), .type = feth_type(feth)};
    return qp_remote(qp, reth_rkey(reth), va, f->length, rights(f->type), &f->at);
}
