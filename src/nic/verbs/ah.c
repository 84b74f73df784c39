/* SPDX-License-Identifier: Apache-2.0
 *
 * Address handles (IBA 11.2.2).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/address.h"
#include "base/fail.h"
#include "link/group/group.h"
#include "qp/ah.h"
#include "verbs/verbs.h"

static int make(struct dev *dev, const struct rnic_ah_attr *attr, struct ah *ah, struct rnic_err *err) {
    struct port *port;
    int rc = qp_av_check(attr, err);
    if (!rc)
        rc = ah_resolve(dev, attr, &ah->way, err);
    ah->way.datagrams = true;
    if (rc || !group_is_multicast(&ah->way.dst.sin6_addr))
        return rc;
    port = ah->way.port;
    rc = group_reach(&port->addr, &ah->way.dst, dev->net.netdev.ifindex);
    if (!rc)
        rc = group_send_by(port->tx_fd, address_is_v4(&port->addr), dev->net.netdev.ifindex);
    return rc ? fail(err, rc,
                     "the host has no way for multicast to this group over %s (ip route add multicast ...): %s",
                     dev->net.netdev.name, strerror(-rc))
              : 0;
}

int soft_create_ah(struct rnic_pd *pd, const struct rnic_ah_attr *attr, struct rnic_ah **out, struct rnic_err *err) {
    struct dev *dev = dev_of(pd->ctx);
    int rc = dev_check_usable(dev, err);
    if (rc)
        return rc;
    struct ah *ah = calloc(1, sizeof *ah);
    if (!ah)
        return fail(err, -ENOMEM, "no memory");
    ah->head = (struct ah_head){.pub = {pd->ctx, pd}, .users = 1};
    ah->attr = *attr;
    dev_lock(dev);
    ah_reap(dev);
    rc = make(dev, attr, ah, err);
    if (!rc) {
        ((struct pd *)pd)->ahs++;
        ports_use(&dev->net, &ah->way);
    }
    dev_unlock(dev);
    if (rc) {
        free(ah);
        return rc;
    }
    *out = &ah->head.pub;
    return 0;
}

int soft_query_ah(struct rnic_ah *pub, struct rnic_ah_attr *attr, struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(pub->ctx), err);
    if (!rc)
        *attr = ((const struct ah *)pub)->attr;
    return rc;
}

int soft_destroy_ah(struct rnic_ah *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct ah *ah = (struct ah *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    ((struct pd *)pub->pd)->ahs--;
    ah_drop(&ah->head);
    ah->next = dev->dying_ahs;
    dev->dying_ahs = ah;
    ah_reap(dev);
    dev_unlock(dev);
    return 0;
}
