/* SPDX-License-Identifier: Apache-2.0 */
#include "roce/message.h"

#include <string.h>

#include "wire/bth.h"
#include "wire/icrc.h"

#define REFER_MIN 4096 /* bytes of a packet: fewer are copied twice as fast as they are looked up */

/* First, middle, last, only; the last two also with immediate or, of SENDs of RC, with invalidate. */
static uint8_t send_opcode(const struct send_wqe *wqe, uint32_t i) {
    bool write = wqe->opcode == RNIC_WR_RDMA_WRITE || wqe->opcode == RNIC_WR_RDMA_WRITE_WITH_IMM;
    bool imm = wqe->opcode == RNIC_WR_SEND_WITH_IMM || wqe->opcode == RNIC_WR_RDMA_WRITE_WITH_IMM;
    uint8_t base = write ? ROCE_RC_WRITE_FIRST : ROCE_RC_SEND_FIRST;
    bool first = i == 0, last = i == wqe->packets - 1;
    enum { FIRST, MIDDLE, LAST, LAST_IMM, ONLY, ONLY_IMM };
    if (!last)
        return (uint8_t)(base + (first ? FIRST : MIDDLE));
    if (wqe->opcode == RNIC_WR_SEND_WITH_INV)
        return first ? ROCE_RC_SEND_ONLY_WITH_INV : ROCE_RC_SEND_LAST_WITH_INV;
    return (uint8_t)(base + (first ? ONLY : LAST) + imm);
}

static void put_extended(const struct out *out, const struct send_wqe *wqe) {
    message_to_srq(out, wqe);
    if (out->row->reth) {
        uint8_t *reth = out->bth + out->row->reth;
        reth_set_va(reth, wqe->remote_addr);
        reth_set_rkey(reth, wqe->rkey);
        reth_set_len(reth, wqe->length);
    }
    if (out->row->imm)
        memcpy(out->bth + out->row->imm, &wqe->imm, IMMDT_BYTES);
    else if (out->row->ieth)
        ieth_set_rkey(out->bth + out->row->ieth, wqe->imm);
}

/* A peer on this host that can reach the bytes where they are copies them itself, once: is it so, and are they in one
 * piece?  They stay there until it has answered, or the packet is taken back (qp_close_off).  A repetition is a copy: the
 * peer may have said nothing because it cannot reach them; and so what is acknowledged is in no packet that it has yet to
 * read. */
static bool stays(struct qp *qp, const struct send_wqe *wqe, uint64_t offset, struct out *out) {
    uint8_t *ptr;
    const struct rnic_sge *sge = wqe->sge;
    if (wqe->num_sge != 1 || qp->nic->faulty || qp->ib.service == OPC_UC || qp->leaving ||
        psn_diff(bth_psn(out->bth), rc_of(qp)->req.max_psn) < 0)
        return false;
    const struct mr *mr = mr_find(&qp->nic->mrs, sge->lkey);
    if (!mr || !mr_in_file(mr) || mr->sealed >= 0 || mr->record < 0 ||
        mr_local(&qp->nic->mrs, qp->pub.pd, sge, 0, &ptr))
        return false;
    out->elsewhere = (struct rnic_sge){sge->addr + offset, out->payload, sge->lkey};
    out->owner = qp->pub.qp_num;
    return qp->exposed = true;
}

int message_payload(struct qp *qp, struct out *out, const struct send_wqe *wqe, uint64_t offset) {
    if (wqe->flags & RNIC_SEND_INLINE) {
        out_put(out, (const uint8_t *)wqe->sge + offset);
        return 0;
    }
    if (out->link->bare && out->payload >= REFER_MIN && qp->remote && stays(qp, wqe, offset, out))
        return 0;
    return sge_gather(&qp->nic->mrs, qp->pub.pd, wqe->sge, wqe->num_sge, offset, out_payload(out), out->payload,
                      out_crc(out));
}

enum result message_write(struct qp *qp, struct send_wqe *wqe, uint32_t i, uint32_t mtu, bool ackreq) {
    struct out out;
    bool solicited = (wqe->flags & RNIC_SEND_SOLICITED) && wqe_takes_receive(wqe) && i == wqe->packets - 1;
    if (!out_open(qp, &out, send_opcode(wqe, i), packet_length(wqe->length, mtu, i),
                  psn_add(wqe->first_psn, (int32_t)i), ackreq, solicited))
        return SINK_FULL;
    put_extended(&out, wqe);
    return message_finish(qp, &out, wqe, (uint64_t)i * mtu);
}
