/* SPDX-License-Identifier: Apache-2.0
 *
 * One-sided operations on the memory of a process of this host, without that process.
 */
#ifndef RNIC_ROCE_DIRECT_H
#define RNIC_ROCE_DIRECT_H

#include "roce/roce.h"

/* Carries out an element that was found good and has nothing of its queue pair under way before it.  False: it is to go as
 * a request: it is none of these operations, or the peer's memory cannot be reached, or not so, which the peer is to say. */
bool direct_execute(struct qp *qp, struct send_wqe *wqe);

#endif
