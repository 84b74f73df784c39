/* SPDX-License-Identifier: Apache-2.0
 *
 * SENDs and WRITEs on their way out, as the connected services RC and UC have them in common.
 */
#ifndef RNIC_ROCE_MESSAGE_H
#define RNIC_ROCE_MESSAGE_H

#include <string.h>

#include "qp/element.h"
#include "roce/roce.h"
#include "wire/bth.h"

static inline bool wqe_takes_receive(const struct send_wqe *wqe) {
    const uint32_t those = 1u << RNIC_WR_SEND | 1u << RNIC_WR_SEND_WITH_IMM | 1u << RNIC_WR_RDMA_WRITE_WITH_IMM |
                           1u << RNIC_WR_SEND_WITH_INV;
    return those >> wqe->opcode & 1;
}

/* A request of XRC names the shared receive queue that it is for, whether it takes a receive or not (A14.3.1). */
static inline void message_to_srq(const struct out *out, const struct send_wqe *wqe) {
    if (!out->row->xrceth)
        return;
    uint8_t *xrceth = out->bth + out->row->xrceth;
    memset(xrceth, 0, XRCETH_BYTES);
    xrceth_set_srqn(xrceth, wqe->remote_srqn);
}

/* One packet of a SEND or WRITE; its PSN is wqe->first_psn + i. */
enum result { SENT, IDLE, SINK_FULL, FAILED, PASSED /* a local element: there is no packet */ };
enum result message_write(struct qp *qp, struct send_wqe *wqe, uint32_t i, uint32_t mtu, bool ackreq);
/* An element's bytes from offset on into a packet whose headers are there: 0, or enum rnic_vendor_err. */
int message_payload(struct qp *qp, struct out *out, const struct send_wqe *wqe, uint64_t offset);
/* The rest of a packet whose extended headers are there. FAILED: wqe says why */
static inline enum result message_finish(struct qp *qp, struct out *out, struct send_wqe *wqe, uint64_t offset) {
    out_headers(out);
    wqe->vendor_err = (uint8_t)message_payload(qp, out, wqe, offset);
    if (wqe->vendor_err) {
        wqe->status = RNIC_WC_LOC_PROT_ERR;
        return FAILED;
    }
    out_close(qp, out);
    return SENT;
}
#endif
