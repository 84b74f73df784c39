/* SPDX-License-Identifier: Apache-2.0
 *
 * Automatic path migration (IBA 17.2.8): a connected queue pair knows a second way to its peer, and takes it when it is
 * told to, when the first one is broken, or when the peer has.
 *
 *   MIGRATED  the usual state: one path is in use; packets go out with MigReq 1
 *   REARM     an alternate path is loaded, and the peer is told so: MigReq 0
 *   ARMED     so has the peer: a packet with MigReq 0 has come. From here both can migrate
 */
#ifndef RNIC_QP_PATH_H
#define RNIC_QP_PATH_H

#include "qp/qp.h"

/* Are ALT_PATH and PATH_MIG_STATE, where the mask has them, allowed now? 0 or -EINVAL; nothing changes. */
int path_check(const struct qp *qp, const struct rnic_qp_attr *attr, uint32_t mask, struct rnic_err *err);
/* The two ways of an alternate path that path_check() has passed. */
void path_load(struct qp *qp, const struct way *to, const struct way *from);
/* Goes to a state that path_check() has passed. */
void path_set_state(struct qp *qp, int state);

/* The primary path has failed (retries are used up): true when there is another one, which is in use then. */
bool path_fail_over(struct qp *qp);

/* The way that a packet came, &qp->ib.from or &qp->ib.alt_from; NULL: none of its peer's. */
struct way *path_of(struct qp *qp, const struct sockaddr_in6 *src, const struct sockaddr_in6 *dst);
/* A packet whose ICRC is right has come on a way of a queue pair that has an alternate path; NULL: from elsewhere. False:
 * it is to be dropped. */
bool path_input(struct qp *qp, const struct way *from, const struct packet *pkt);

#endif
