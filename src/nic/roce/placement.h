/* SPDX-License-Identifier: Apache-2.0
 *
 * ATOMIC WRITE and FLUSH, the memory placement extensions (IBA annex A19).  Both take a responder resource and are
 * answered by a READ response of no bytes, so all that concerns answers, retries and repetitions is READ's.
 */
#ifndef RNIC_ROCE_PLACEMENT_H
#define RNIC_ROCE_PLACEMENT_H

#include "roce/inbound.h"
#include "roce/message.h"

#define ATOMIC_WRITE_BYTES 8u

static inline bool wqe_is_placement(const struct send_wqe *wqe) {
    return wqe->opcode == RNIC_WR_ATOMIC_WRITE || wqe->opcode == RNIC_WR_FLUSH;
}

/* The one packet of a request. */
enum result placement_write(struct qp *qp, struct send_wqe *wqe);

/* What is wrong with a request's own headers: FAULT_LENGTH or OK. */
enum fault placement_fault(const struct packet *pkt);

/* The memory that a FLUSH names, and how it is to be flushed. */
struct flush {
    uint8_t *at;
    uint64_t length;
    uint32_t type; /* enum rnic_placement_type */
};
/* Do the queue pair's access flags allow what it asks for? */
bool flush_allowed(const struct qp *qp, const struct packet *pkt);
/* 0, or the RKEY_ family of enum rnic_vendor_err */
int flush_access(struct qp *qp, const struct packet *pkt, struct flush *f);

#endif
