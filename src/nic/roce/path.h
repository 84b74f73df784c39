/* SPDX-License-Identifier: Apache-2.0
 *
 * The ways between a connected queue pair and its peer, and automatic path migration (IBA 17.2.8): it knows a second way,
 * and takes it when it is told to, when the first one is broken, or when the peer has.
 *
 *   MIGRATED  the usual state: one path is in use; packets go out with MigReq 1
 *   REARM     an alternate path is loaded, and the peer is told so: MigReq 0
 *   ARMED     so has the peer: a packet with MigReq 0 has come. From here both can migrate
 */
#ifndef RNIC_ROCE_PATH_H
#define RNIC_ROCE_PATH_H

#include "qp/qp.h"

/* Are ALT_PATH and PATH_MIG_STATE, where the mask has them, allowed now? 0 or -EINVAL; nothing changes. */
int path_check(const struct qp *qp, const struct rnic_qp_attr *attr, uint32_t mask, struct rnic_err *err);
/* What the address vectors of a change stand for (IBA A17.4), by the device's wire.  resolve: 0, or -errno; nothing changes.
 * take: they are the queue pair's from now on. leave: it has no peer any more. */
struct paths {
    struct way to, from;      /* of AV: to the peer, and from it */
    struct way alt, alt_from; /* of ALT_PATH */
};
int path_resolve(const struct qp *qp, const struct rnic_qp_attr *attr, uint32_t mask, struct paths *out,
                 struct rnic_err *err);
void path_take(struct qp *qp, uint32_t mask, const struct paths *paths);
void path_leave(struct qp *qp);
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
