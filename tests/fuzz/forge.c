/* SPDX-License-Identifier: Apache-2.0 */
#include "forge.h"

#include <string.h>

#include "roce/roce.h"
#include "wire/bth.h"
#include "wire/mad.h"

/* ---------------------------------------------------------------- parts of a packet */

static const struct roce_opcode *row_of(const struct forged *f) { return roce_opcode(bth_opcode(f->bytes)); }

static void begin(struct forged *f, const struct qp *qp, uint8_t opcode, uint32_t psn) {
    memset(f->bytes, 0, ROCE_MAX_HEADER);
    bth_set_opcode(f->bytes, qp->ib.opcodes | opcode);
    bth_set_m(f->bytes, 1);
    bth_set_pkey(f->bytes, 0xFFFF);
    bth_set_dqpn(f->bytes, qp->pub.qp_num);
    bth_set_psn(f->bytes, psn_mask(psn));
    f->n = row_of(f)->header;
}

static void set_payload(struct forged *f, uint32_t length) {
    uint32_t header = row_of(f)->header, pad = -length & 3;
    memset(f->bytes + header, 0x5A, length + pad);
    bth_set_pad(f->bytes, (uint8_t)pad);
    f->n = header + length + pad;
}

static bool is_uc(const struct qp *qp) { return qp->ib.service == OPC_UC; }

static uint32_t path_mtu(const struct qp *qp) {
    uint32_t mtu = is_uc(qp) ? uc_of(qp)->mtu_in : rc_of(qp)->resp.mtu; /* of what it gets */
    return mtu ? mtu : 1024;
}

static const struct inbound *inbound_of(const struct qp *qp) {
    return is_uc(qp) ? &uc_of(qp)->in : &rc_of(qp)->resp.in;
}

static uint32_t expected_psn(const struct qp *qp) { return is_uc(qp) ? uc_of(qp)->rcv_psn : rc_of(qp)->resp.psn; }

/* A range of the first region. */
static uint64_t place(const struct grounds *g, uint32_t length, struct dice *d) {
    const struct region *r = &g->region[0];
    return r->va + dice_below(d, (uint32_t)(r->length - length + 1));
}

static void set_reth(struct forged *f, uint64_t va, uint32_t rkey, uint32_t length) {
    uint8_t *reth = f->bytes + row_of(f)->reth;
    reth_set_va(reth, va);
    reth_set_rkey(reth, rkey);
    reth_set_len(reth, length);
}

/* ---------------------------------------------------------------- requests */

static void continue_message(struct forged *f, const struct qp *qp, struct dice *d) {
    const struct inbound *in = inbound_of(qp);
    uint32_t mtu = path_mtu(qp), psn = expected_psn(qp);
    if (in->message == OPC_WRITE) {
        bool more = in->left > mtu;
        begin(f, qp, (uint8_t)(more ? ROCE_RC_WRITE_MIDDLE : ROCE_RC_WRITE_LAST + dice_below(d, 2)), psn);
        set_payload(f, more ? mtu : in->left);
        return;
    }
    begin(f, qp, (uint8_t)(ROCE_RC_SEND_MIDDLE + dice_below(d, 3)), psn);
    set_payload(f, row_of(f)->mask & OPC_MIDDLE ? mtu : 1 + dice_below(d, mtu));
}

static bool refuses_reads(const struct qp *qp) {
    const struct responder *resp = &rc_of(qp)->resp;
    return is_uc(qp) || !resp->res_size || resp->res[resp->res_next].queued;
}

static void start_message(struct forged *f, const struct qp *qp, const struct grounds *g, struct dice *d) {
    uint32_t mtu = path_mtu(qp), room = (uint32_t)g->region[0].length;
    uint32_t choices = refuses_reads(qp) && dice_below(d, 16) ? 6 : qp->ib.service == OPC_RC ? 11 : 9;
    static const uint8_t opcodes[] = {ROCE_RC_SEND_FIRST,   ROCE_RC_SEND_ONLY,   ROCE_RC_SEND_ONLY_WITH_IMM,
                                      ROCE_RC_WRITE_FIRST,  ROCE_RC_WRITE_ONLY,  ROCE_RC_WRITE_ONLY_WITH_IMM,
                                      ROCE_RC_READ_REQUEST, ROCE_RC_CMP_SWAP,    ROCE_RC_FETCH_ADD,
                                      ROCE_RC_FLUSH,        ROCE_RC_ATOMIC_WRITE};
    begin(f, qp, opcodes[dice_below(d, is_uc(qp) ? 6 : choices)], expected_psn(qp));
    uint32_t mask = row_of(f)->mask, length = dice_below(d, mtu + 1);
    if (mask & OPC_ATOMIC) {
        uint8_t *eth = f->bytes + row_of(f)->atomic_eth;
        atmeth_set_va(eth, place(g, 8, d) & ~7ull);
        atmeth_set_rkey(eth, g->region[0].rkey);
        atmeth_set_swap_add(eth, dice_bits(d, 8));
        atmeth_set_compare(eth, dice_bits(d, 8));
        return;
    }
    if (mask & OPC_ATOMIC_WRITE)
        length = 8;
    if (mask & OPC_FLUSH)
        feth_set_type(f->bytes + row_of(f)->feth, RNIC_FLUSH_GLOBAL);
    if (mask & OPC_PAYLOAD)
        set_payload(f, mask & OPC_LAST ? length : mtu);
    if (!row_of(f)->reth)
        return;
    if (mask & OPC_READ || !(mask & OPC_LAST))
        length = mtu + 1 + dice_below(d, room - mtu);
    if (mask & OPC_READ && dice_one_in(d, 4))
        length = dice_below(d, mtu);
    set_reth(f, place(g, length, d) & ~(mask & OPC_ATOMIC_WRITE ? 7ull : 0), g->region[0].rkey, length);
}

static void request(struct forged *f, const struct qp *qp, const struct grounds *g, struct dice *d) {
    if (inbound_of(qp)->message)
        continue_message(f, qp, d);
    else
        start_message(f, qp, g, d);
    bth_set_ackreq(f->bytes, (uint8_t)dice_below(d, 2));
}

/* A READ or atomic that was executed, or a part of it; without one, any older request. */
static void repetition(struct forged *f, const struct qp *qp, const struct grounds *g, struct dice *d) {
    const struct responder *resp = &rc_of(qp)->resp;
    const struct resource *res = resp->res_size ? &resp->res[dice_below(d, resp->res_size)] : NULL;
    if (!res || !res->valid) {
        request(f, qp, g, d);
        bth_set_psn(f->bytes, psn_add(resp->psn, -(int32_t)dice_below(d, 100)));
        return;
    }
    if (res->opcode != ROCE_RC_READ_REQUEST) {
        begin(f, qp, res->opcode, res->first_psn);
        return;
    }
    uint32_t mtu = path_mtu(qp), from = dice_below(d, res->packets), left = res->length - from * mtu;
    begin(f, qp, ROCE_RC_READ_REQUEST, psn_add(res->first_psn, (int32_t)from));
    if (left > mtu && dice_below(d, 2))
        left = mtu * (1 + dice_below(d, left / mtu));
    set_reth(f, res->va + (uint64_t)from * mtu, res->rkey, left);
}

/* ---------------------------------------------------------------- answers */

static void set_aeth(struct forged *f, uint8_t syndrome, uint32_t msn) {
    aeth_set_syndrome(f->bytes + row_of(f)->aeth, syndrome);
    aeth_set_msn(f->bytes + row_of(f)->aeth, psn_mask(msn));
}

static void acknowledge(struct forged *f, const struct qp *qp, struct dice *d) {
    const struct requester *req = &rc_of(qp)->req;
    int32_t span = psn_diff(req->max_psn, req->una);
    begin(f, qp, ROCE_RC_ACK, psn_add(req->una, (int32_t)dice_below(d, span > 0 ? (uint32_t)span : 1)));
    uint8_t syndrome = (uint8_t)dice_below(d, 32);
    if (dice_one_in(d, 8))
        syndrome = (uint8_t)(AETH_RNR | dice_below(d, 32));
    else if (dice_one_in(d, 8))
        syndrome = AETH_NAK_PSN_SEQ;
    else if (dice_one_in(d, 32))
        syndrome = (uint8_t)(AETH_NAK_PSN_SEQ + dice_below(d, 5));
    set_aeth(f, syndrome, req->ssn);
}

static void read_response(struct forged *f, const struct qp *qp, const struct send_wqe *wqe, struct dice *d) {
    const struct requester *req = &rc_of(qp)->req;
    uint32_t i = psn_mask(req->una - wqe->first_psn);
    bool last = i + 1 >= wqe->packets;
    uint8_t opcode = i == 0 ? (last ? ROCE_RC_READ_RESP_ONLY : ROCE_RC_READ_RESP_FIRST)
                            : (last ? ROCE_RC_READ_RESP_LAST : ROCE_RC_READ_RESP_MIDDLE);
    begin(f, qp, opcode, req->una);
    set_payload(f, packet_length(wqe->length, rc_of(qp)->mtu, i));
    if (row_of(f)->aeth)
        set_aeth(f, (uint8_t)dice_below(d, 32), req->ssn);
}

static void answer(struct forged *f, struct qp *qp, struct dice *d) {
    const struct requester *req = &rc_of(qp)->req;
    const struct send_wqe *oldest = sq_wqe(&qp->sq, wq_tail(&qp->sq));
    if (wq_empty(&qp->sq) || !oldest->started || !wqe_waits(oldest) || dice_one_in(d, 8)) {
        acknowledge(f, qp, d);
    } else if (oldest->opcode == RNIC_WR_RDMA_READ) {
        read_response(f, qp, oldest, d);
    } else {
        begin(f, qp, ROCE_RC_ATOMIC_ACK, req->una);
        set_aeth(f, (uint8_t)dice_below(d, 32), req->ssn);
        atmack_set_orig(f->bytes + row_of(f)->atomic_ack, dice_bits(d, 8));
    }
}

/* One of the two directions is not of an XRC queue pair; UC has no answers, and executes what comes again. */
static bool wants_answer(const struct qp *qp, struct dice *d) {
    if (qp->ib.service & (OPC_UC | OPC_XRC))
        return false;
    bool asks = psn_diff(rc_of(qp)->req.max_psn, rc_of(qp)->req.una) > 0;
    return qp->ib.service == OPC_XRC_BACK || (asks ? dice_below(d, 2) : dice_one_in(d, 16));
}

void forge_valid(struct forged *f, const struct qp *qp, const struct grounds *g, struct dice *d) {
    if (wants_answer(qp, d))
        answer(f, (struct qp *)(uintptr_t)qp, d);
    else if (!is_uc(qp) && dice_one_in(d, 4))
        repetition(f, qp, g, d);
    else
        request(f, qp, g, d);
    if (row_of(f)->xrceth)
        xrceth_set_srqn(f->bytes + row_of(f)->xrceth,
                        inbound_of(qp)->message && qp->srq ? qp->srq->pub.srq_num : g->srqn[dice_below(d, SRQS)]);
}

/* ---------------------------------------------------------------- datagrams */

static void begin_datagram(struct forged *f, uint8_t opcode, uint32_t qpn, uint32_t qkey, struct dice *d) {
    memset(f->bytes, 0, ROCE_MAX_HEADER);
    bth_set_opcode(f->bytes, opcode);
    bth_set_pkey(f->bytes, 0xFFFF);
    bth_set_dqpn(f->bytes, qpn);
    bth_set_psn(f->bytes, (uint32_t)dice_bits(d, 3) & PSN_MASK);
    uint8_t *deth = f->bytes + row_of(f)->deth;
    deth_set_qkey(deth, dice_one_in(d, 16) ? (uint32_t)dice_bits(d, 4) : qkey);
    deth_set_sqpn(deth, dice_one_in(d, 4) ? qpn : (uint32_t)dice_bits(d, 3));
    f->n = row_of(f)->header;
}

void forge_datagram(struct forged *f, uint32_t qpn, uint32_t qkey, struct dice *d) {
    begin_datagram(f, (uint8_t)(ROCE_UD_SEND_ONLY + dice_below(d, 2)), qpn, qkey, d);
    set_payload(f, (uint32_t)DICE_PICK(d, 0, 1, 4, dice_below(d, 4097), 1024, 4096, 4097, 5000));
}

void forge_mad(struct forged *f, uint64_t service_id, uint32_t slot, struct dice *d) {
    begin_datagram(f, ROCE_UD_SEND_ONLY, QPN_GSI, GSI_QKEY, d);
    set_payload(f, dice_one_in(d, 16) ? dice_below(d, 600) : MAD_BYTES);
    uint8_t *mad = f->bytes + row_of(f)->header;
    static const uint8_t head[4] = {1, CM_CLASS, CM_CLASS_VERSION, 3};
    memcpy(mad, head, sizeof head);
    put_be16(mad + 16, (uint16_t)(CM_REQ + dice_below(d, 12)));
    put_be32(mad + 24, slot << 22 | (uint32_t)dice_bits(d, 2));
    put_be32(mad + 28, (dice_one_in(d, 4) ? dice_below(d, 1024) : slot) << 22 | (uint32_t)dice_bits(d, 2));
    put_be64(mad + 32, dice_one_in(d, 3) ? dice_bits(d, 8) : service_id);
    if (dice_one_in(d, 8))
        mad[dice_below(d, MAD_BYTES)] ^= (uint8_t)(1u << dice_below(d, 8));
}

/* ---------------------------------------------------------------- mutations */

/* The opcode changes, the extended headers and the payload move to where it has them. */
static void change_opcode(struct forged *f, const struct qp *qp, struct dice *d) {
    uint8_t opcode = (uint8_t)(qp->ib.opcodes | dice_below(d, ROCE_RC_SEND_ONLY_WITH_INV + 1));
    if (dice_one_in(d, 8))
        opcode = (uint8_t)dice_below(d, 256);
    const struct roce_opcode *from = row_of(f), *to = roce_opcode(opcode);
    bth_set_opcode(f->bytes, opcode);
    if (!from || !to)
        return;
    uint32_t payload = f->n > from->header ? f->n - from->header : 0;
    if (dice_below(d, 2)) {
        memmove(f->bytes + to->header, f->bytes + from->header, payload);
        f->n = to->header + payload;
    }
}

/* One that the queue pair's own counters make interesting. */
static uint32_t known_psn(const struct qp *qp, struct dice *d) {
    const struct rc *rc = rc_of(qp);
    if (is_uc(qp))
        return uc_of(qp)->rcv_psn;
    return (uint32_t)DICE_PICK(d, rc->resp.psn, rc->resp.psn, rc->req.una, rc->req.psn, rc->req.max_psn, 0,
                               rc->resp.nak_high);
}

static uint32_t edge_psn(const struct qp *qp, struct dice *d) {
    uint32_t psn = known_psn(qp, d);
    if (dice_one_in(d, 8))
        psn += 0x800000;
    if (dice_one_in(d, 16))
        return (uint32_t)dice_bits(d, 3);
    return psn_mask(psn + dice_below(d, 9) - 4);
}

static uint32_t edge_length(const struct qp *qp, const struct grounds *g, uint32_t now, struct dice *d) {
    uint32_t mtu = path_mtu(qp);
    return (uint32_t)DICE_PICK(d, 0, 1, now - 1, now + 1, mtu, mtu - 1, mtu + 1, 2 * mtu, 0x7FFFFFFF, 0x80000000,
                               0x80000001, 0xFFFFFFFF, 0xFFFFFFFF - mtu, g->region[0].length, g->region[0].length + 1,
                               dice_bits(d, 4));
}

static uint64_t edge_va(const struct grounds *g, uint32_t length, struct dice *d) {
    const struct region *r = &g->region[dice_below(d, REGIONS)];
    uint64_t end = r->va + r->length;
    return DICE_PICK(d, r->va, r->va - 1, r->va + 1, end - length, end - length + 1, end - 1, end, end + 1, 0, 8,
                     UINT64_MAX, -(uint64_t)length, 1 - (uint64_t)length, r->va + (1ull << 32), dice_bits(d, 8));
}

static uint32_t edge_rkey(const struct grounds *g, uint32_t now, struct dice *d) {
    return (uint32_t)DICE_PICK(d, g->region[dice_below(d, REGIONS)].rkey, g->region[dice_below(d, REGIONS)].rkey,
                               now ^ 1, now ^ 0x100, 0, 0xFFFFFFFF, dice_bits(d, 4));
}

static void change_reth(struct forged *f, uint8_t *reth, const struct qp *qp, const struct grounds *g, struct dice *d) {
    uint32_t what = dice_below(d, 8), length = reth_len(reth);
    (void)f;
    if (what == 0) { /* the right key, and a range that fits a region exactly, or misses it by a byte */
        const struct region *r = &g->region[dice_below(d, 3) ? 0 : dice_below(d, REGIONS)];
        uint64_t most = r->length > UINT32_MAX ? UINT32_MAX : r->length;
        length = length > most || dice_one_in(d, 4) ? (uint32_t)most : length;
        reth_set_va(reth, DICE_PICK(d, r->va, r->va + r->length - length) + dice_below(d, 3) - 1);
        reth_set_rkey(reth, r->rkey);
        reth_set_len(reth, length);
        return;
    }
    if (what & 1)
        reth_set_len(reth, length = edge_length(qp, g, length, d));
    if (what & 2)
        reth_set_va(reth, edge_va(g, length, d));
    if (what & 4)
        reth_set_rkey(reth, edge_rkey(g, reth_rkey(reth), d));
}

static void change_atomic(uint8_t *eth, const struct grounds *g, struct dice *d) {
    if (dice_below(d, 2))
        atmeth_set_va(eth, edge_va(g, 8, d));
    else
        atmeth_set_rkey(eth, edge_rkey(g, atmeth_rkey(eth), d));
}

static void change_extended(struct forged *f, const struct qp *qp, const struct grounds *g, struct dice *d) {
    const struct roce_opcode *row = row_of(f);
    if (!row)
        return;
    if (row->reth)
        change_reth(f, f->bytes + row->reth, qp, g, d);
    if (row->atomic_eth)
        change_atomic(f->bytes + row->atomic_eth, g, d);
    if (row->aeth)
        set_aeth(f, (uint8_t)dice_bits(d, 1), (uint32_t)dice_bits(d, 3));
    if (row->xrceth && dice_one_in(d, 4))
        xrceth_set_srqn(f->bytes + row->xrceth,
                        (uint32_t)DICE_PICK(d, 0, 0xFFFFFF, g->srqn[0] ^ 0x10000, dice_bits(d, 3)));
    if (row->ieth)
        ieth_set_rkey(f->bytes + row->ieth, edge_rkey(g, ieth_rkey(f->bytes + row->ieth), d));
}

/* The length of the packet; the headers say nothing about it. */
static void change_size(struct forged *f, const struct qp *qp, struct dice *d) {
    uint32_t mtu = path_mtu(qp), header = row_of(f) ? row_of(f)->header : BTH_BYTES;
    uint32_t n = (uint32_t)DICE_PICK(d, 0, 1, 3, 4, 11, 12, 15, 16, header - 1, header, header + 1, header + mtu,
                                     header + mtu + 1, header + mtu + 4, header + 4100, f->n + 1, f->n + 4, f->n - 1,
                                     f->n - 4, dice_below(d, 9000));
    if (n > 9100)
        n = 0;
    if (n > f->n)
        memset(f->bytes + f->n, 0xA5, n - f->n);
    f->n = n;
}

static void change_bits(struct forged *f, const struct qp *qp, struct dice *d) {
    switch (dice_below(d, 8)) {
    case 0:
        bth_set_tver(f->bytes, (uint8_t)dice_below(d, 16));
        break;
    case 1:
        bth_set_pkey(f->bytes, (uint16_t)DICE_PICK(d, 0x7FFF, 0, 0xFFFE, dice_bits(d, 2)));
        break;
    case 2:
        bth_set_dqpn(f->bytes, (uint32_t)DICE_PICK(d, 0, 1, 0xFFFFFF, qp->pub.qp_num + 1, dice_bits(d, 3)));
        break;
    case 3:
        bth_set_se(f->bytes, 1);
        break;
    default:
        f->bytes[dice_below(d, f->n ? f->n : 1)] ^= (uint8_t)(1u << dice_below(d, 8));
        break;
    }
}

void forge_mutate(struct forged *f, const struct qp *qp, const struct grounds *g, struct dice *d) {
    for (uint32_t i = 1 + dice_below(d, 3); i; i--) {
        switch (dice_below(d, 8)) {
        case 0:
            change_opcode(f, qp, d);
            break;
        case 1:
        case 2:
            bth_set_psn(f->bytes, edge_psn(qp, d));
            break;
        case 3:
            bth_set_pad(f->bytes, (uint8_t)dice_below(d, 4));
            break;
        case 4:
            change_size(f, qp, d);
            break;
        case 5:
            change_bits(f, qp, d);
            break;
        default:
            change_extended(f, qp, g, d);
            break;
        }
    }
}

void forge_noise(struct forged *f, struct dice *d) {
    f->n = dice_below(d, dice_one_in(d, 4) ? 9000 : 64);
    for (uint32_t i = 0; i < f->n; i++)
        f->bytes[i] = i < ROCE_MAX_HEADER ? (uint8_t)dice_bits(d, 1) : 0xA5;
    if (f->n && dice_below(d, 2))
        f->bytes[0] = (uint8_t)dice_below(d, ROCE_RC_SEND_ONLY_WITH_INV + 1);
}
