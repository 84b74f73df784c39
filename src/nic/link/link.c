/* SPDX-License-Identifier: Apache-2.0 */
#include "link/link.h"

#include <errno.h>

#include "base/fail.h"

int link_resolve(struct link *link, const struct rnic_ah_attr *av, uint32_t qpn, struct way *to, struct way *from,
                 struct rnic_err *err) {
    if (!link->ops->resolve)
        return fail(err, -EOPNOTSUPP, "ah_attr: a link of kind %s has no address vectors", link->ops->name);
    return link->ops->resolve(link, av, qpn, to, from, err);
}

void way_hold(struct way *way) {
    if (!way->held && way->link->ops->hold)
        way->link->ops->hold(way->link, way);
    way->held = true;
}

void way_release(struct way *way) {
    if (way->held && way->link->ops->release)
        way->link->ops->release(way->link, way);
    way->held = false;
}
