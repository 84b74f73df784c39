/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "roce/roce.h"
#include "wire/bth.h"
#include "wire/icrc.h"

bool out_open_to(struct way *way, struct out *out, uint8_t opcode, uint32_t payload, uint32_t dqpn, uint32_t psn,
                 uint16_t pkey) {
    out->row = roce_opcode(opcode);
    out->payload = payload;
    out->link = way->link;
    out->elsewhere.length = 0;
    out->pad = out->link->bare ? 0 : -payload & 3;
    uint32_t n = out->row->header + payload + (out->link->bare ? 0 : out->pad + ICRC_BYTES);
    out->bth = out->link->ops->reserve(out->link, way, n, &out->crc);
    if (!out->bth)
        return false;
    bth_build(out->bth, opcode, (uint8_t)out->pad, pkey, dqpn, psn);
    return true;
}

bool out_open(struct qp *qp, struct out *out, uint8_t opcode, uint32_t payload, uint32_t psn, bool ackreq,
              bool solicited) {
    bool answers = qp->apart && !(roce_opcode(opcode)->mask & OPC_REQUEST);
    if (!out_open_to(answers ? &qp->answers : &qp->way, out, qp->ib.opcodes | opcode, payload, qp->attr.dest_qp_num,
                     psn, qp->ib.pkey))
        return false;
    if (qp->attr.path_mig_state != RNIC_MIG_MIGRATED) /* IBA 17.2.8 */
        bth_set_m(out->bth, 0);
    if (solicited)
        bth_set_se(out->bth, 1);
    if (ackreq)
        bth_set_ackreq(out->bth, 1);
    return true;
}

void out_deth(const struct out *out, const struct datagram *d) {
    uint8_t *deth = out->bth + out->row->deth;
    memset(deth, 0, DETH_BYTES);
    deth_set_qkey(deth, d->qkey);
    deth_set_sqpn(deth, d->sqpn);
}

void out_headers(struct out *out) {
    if (out->link->bare)
        return;
    out->crc = icrc_bth(out->crc, out->bth);
    out->crc = crc32_update(out->crc, out->bth + BTH_BYTES, out->row->header - BTH_BYTES);
}

uint32_t out_close_to(struct out *out) {
    static const uint8_t zeros[4];
    uint8_t *end = out_payload(out) + out->payload;
    if (out->link->bare) {
        if (out->elsewhere.length)
            out->link->ops->refer(out->link, out->row->header, &out->elsewhere, out->owner);
        else
            out->link->ops->commit(out->link);
        return (uint32_t)(end - out->bth);
    }
    out->crc = crc32_copy(out->crc, end, zeros, out->pad);
    put_le32(end + out->pad, ~out->crc);
    out->link->ops->commit(out->link);
    return (uint32_t)(end - out->bth) + out->pad + ICRC_BYTES;
}

void out_put(struct out *out, const void *src) {
    if (out->link->bare)
        memcpy(out_payload(out), src, out->payload);
    else
        out->crc = crc32_copy(out->crc, out_payload(out), src, out->payload);
}

void out_close(struct qp *qp, struct out *out) {
    uint32_t n = out_close_to(out);
    COUNT(qp, tx_packets);
    COUNT_N(qp, tx_bytes, n);
}
