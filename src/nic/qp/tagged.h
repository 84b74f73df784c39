/* SPDX-License-Identifier: Apache-2.0
 *
 * A queue pair whose receives come from a tag matching SRQ (rdma-core, Documentation/tag_matching.md).
 *
 * A message with a tag that is in the list goes into that receive, without its header: at once (eager), or, when it only
 * says where the data lies (rendezvous), by a READ that the device itself posts here, and a SEND of the header back to
 * where it came from (FIN) behind it.  So the send queue is the device's.  All other messages go, whole, into the SRQ's
 * own receives.
 */
#ifndef RNIC_QP_TAGGED_H
#define RNIC_QP_TAGGED_H

#include "qp/qp.h"
#include "queue/tag.h"
#include "wire/tmh.h"

#define TAGGED_RNDV_BYTES 256 /* the longest rendezvous request: one packet of the smallest path MTU */

struct tagged {
    struct tag_list *list;
    struct tag_entry *entry;               /* that the message under way has matched; NULL: none */
    uint8_t header[TMH_BYTES + RVH_BYTES]; /* of that message */
    uint8_t opcode;         /* enum tmh_opcode of it; of a WRITE, and of what is too short for a header: TMH_NO_TAG */
    bool told;              /* the match has been */
    struct rnic_wc_ex info; /* tag and app_ctx of the message under way, which go with its TM_MATCH */
};

/* Takes a receive for the message that begins with this packet; false: not now: there is none, or no room to READ. */
bool tagged_take(struct qp *qp, const struct packet *pkt);
/* Is there room in the receive for the first `end` bytes of the message? */
bool tagged_fits(const struct qp *qp, uint64_t end);
/* Stores bytes of the message, the first of which lies `before` bytes behind its start. 0 or enum rnic_vendor_err */
int tagged_store(struct qp *qp, uint32_t before, const uint8_t *bytes, uint32_t n);
/* It goes on beyond the packet that has been executed. */
void tagged_proceed(struct qp *qp, bool solicited);
/* It is complete; wc: as without tags. */
void tagged_complete(struct qp *qp, struct rnic_wc *wc, bool solicited);
/* Its receive is going to complete with an error. */
void tagged_fail(struct qp *qp, struct rnic_wc *wc);
/* The oldest send element is complete. */
void tagged_sent(struct qp *qp, const struct send_wqe *wqe);

#endif
