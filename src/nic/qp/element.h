/* SPDX-License-Identifier: Apache-2.0
 *
 * What transports with a peer do alike with an element of the send queue, and with a word of their memory that the peer
 * changes.
 */
#ifndef RNIC_QP_ELEMENT_H
#define RNIC_QP_ELEMENT_H

#include "qp/qp.h"

/* Keys, bounds and rights of the memory that it names: 0, or enum rnic_vendor_err. access: what the device does with it. */
static inline int element_memory(struct qp *qp, const struct send_wqe *wqe, uint32_t access) {
    if (wqe->flags & RNIC_SEND_INLINE)
        return 0;
    return sge_check(&qp->nic->mrs, qp->pub.pd, wqe->sge, wqe->num_sge, access);
}

/* Carries out one that wqe_is_local(). 0, or enum rnic_wc_status. */
int element_local(struct qp *qp, struct send_wqe *wqe);

/* An operation of the peer, at once, on 8 bytes that qp_remote() has just allowed and found at ptr. *was: what they were.
 * 0, or enum rnic_vendor_err */
int peer_changes_word(struct qp *qp, uint32_t rkey, uint64_t va, uint8_t *ptr, const struct word_op *op, uint64_t *was);

#endif
