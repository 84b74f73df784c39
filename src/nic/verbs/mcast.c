/* SPDX-License-Identifier: Apache-2.0
 *
 * Multicast groups: attach and detach (IBA 11.3).
 */
#include <errno.h>
#include <string.h>

#include "base/fail.h"
#include "link/group/group.h"
#include "verbs/verbs.h"

static int check(const struct rnic_qp *qp, const union rnic_gid *gid, struct rnic_err *err) {
    struct in6_addr addr;
    memcpy(&addr, gid->raw, sizeof addr);
    if (qp->qp_type != RNIC_QPT_UD)
        return fail(err, -EINVAL, "only UD queue pairs can be attached to a multicast group");
    if (!group_is_multicast(&addr))
        return fail(err, -EINVAL, "the GID is not a multicast address: ::ffff:224.0.0.0 and up, or ff00:: and up");
    return 0;
}

/* The lid is InfiniBand's. */
int soft_attach_mcast(struct rnic_qp *qp, const union rnic_gid *gid, uint16_t lid, struct rnic_err *err) {
    struct dev *dev = dev_of(qp->ctx);
    int rc = dev_check_has(dev, HAS_DATAGRAMS, "multicast", err);
    (void)lid;
    if (!rc)
        rc = check(qp, gid, err);
    if (rc)
        return rc;
    dev_lock(dev);
    rc = mcast_attach(&dev->net, (struct qp *)qp, gid, err);
    dev_unlock(dev);
    return rc;
}

int soft_detach_mcast(struct rnic_qp *qp, const union rnic_gid *gid, uint16_t lid, struct rnic_err *err) {
    struct dev *dev = dev_of(qp->ctx);
    int rc = dev_check_alive(dev, err);
    (void)lid;
    if (rc)
        return rc;
    dev_lock(dev);
    rc = mcast_detach(&dev->net, (struct qp *)qp, gid, err);
    dev_unlock(dev);
    return rc;
}
