/* SPDX-License-Identifier: Apache-2.0 */
#include "hand.h"

#include "roce/roce.h"
#include "wire/bth.h"

static void put(struct end *from, const struct hand *h, bool ackreq) {
    uint8_t bytes[8192] = {0};
    const struct roce_opcode *row = roce_opcode(h->opcode);
    const struct rc *rc = rc_of(from->peer->qp);
    uint32_t base = row->mask & OPC_REQUEST ? rc->resp.psn : rc->req.una, pad = -h->length & 3;
    bth_set_opcode(bytes, h->opcode);
    bth_set_m(bytes, 1);
    bth_set_pad(bytes, (uint8_t)pad);
    bth_set_pkey(bytes, 0xFFFF);
    bth_set_dqpn(bytes, from->peer->qp->pub.qp_num);
    bth_set_ackreq(bytes, ackreq);
    bth_set_psn(bytes, psn_add(base, h->psn));
    if (row->reth) {
        reth_set_va(bytes + row->reth, (uintptr_t)from->peer->mem + h->at);
        reth_set_rkey(bytes + row->reth, from->peer->mr->pub.rkey);
        reth_set_len(bytes + row->reth, h->dma);
    }
    if (row->atomic_eth) {
        atmeth_set_va(bytes + row->atomic_eth, (uintptr_t)from->peer->mem);
        atmeth_set_rkey(bytes + row->atomic_eth, from->peer->mr->pub.rkey);
    }
    if (row->aeth) {
        aeth_set_syndrome(bytes + row->aeth, h->syndrome);
        aeth_set_msn(bytes + row->aeth, rc_of(from->qp)->resp.msn);
    }
    fabric_inject(from->node, &from->qp->way, bytes, row->header + h->length + pad);
}

void inject(struct end *from, const struct hand *h) { put(from, h, true); }

void inject_unasked(struct end *from, const struct hand *h) { put(from, h, false); }
