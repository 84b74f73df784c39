/* SPDX-License-Identifier: Apache-2.0
 *
 * SENDs and WRITEs on their way out, as the connected services RC and UC have them in common.
 */
#ifndef RNIC_ROCE_MESSAGE_H
#define RNIC_ROCE_MESSAGE_H

#include "roce/roce.h"

static inline bool wqe_takes_receive(const struct send_wqe *wqe) {
    return wqe->opcode == RNIC_WR_SEND || wqe->opcode == RNIC_WR_SEND_WITH_IMM ||
           wqe->opcode == RNIC_WR_RDMA_WRITE_WITH_IMM;
}

/* One packet of a SEND or WRITE; its PSN is wqe->first_psn + i. */
enum result { SENT, IDLE, SINK_FULL, FAILED };
enum result message_write(struct qp *qp, struct tx *tx, struct send_wqe *wqe, uint32_t i, uint32_t mtu, bool ackreq);
/* An element's bytes from offset on into a packet whose headers are there: 0, or enum rnic_vendor_err. */
int message_payload(struct qp *qp, struct out *out, const struct send_wqe *wqe, uint64_t offset);
/* The elements' keys, bounds and rights: 0, or enum rnic_vendor_err. access: what the device does with the memory. */
static inline int message_memory(struct qp *qp, const struct send_wqe *wqe, uint32_t access) {
    if (wqe->flags & RNIC_SEND_INLINE)
        return 0;
    return sge_check(&qp->nic->mrs, qp->pub.pd, wqe->sge, wqe->num_sge, access);
}

#endif
