/* SPDX-License-Identifier: Apache-2.0
 *
 * The way to a peer: from an address vector to a way, for connected queue pairs and as address handles (IBA 11.2.2).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/address.h"
#include "base/fail.h"
#include "dev/dev.h"
#include "link/group/group.h"
#include "qp/ah.h"

int ah_resolve(struct dev *dev, const struct rnic_ah_attr *av, struct way *to, struct rnic_err *err) {
    int index = av->grh.sgid_index;
    if (index >= NETDEV_MAX_GIDS)
        return fail(err, -EINVAL, "ah_attr.grh.sgid_index is %d; the GID table has %d entries", index, NETDEV_MAX_GIDS);
    struct port *port = &dev->net.ports[index];
    if (!port->steering)
        return fail(err, -EINVAL, "ah_attr.grh.sgid_index is %d; the GID table is empty there", index);
    *to = (struct way){.link = dev->nic.wire,
                       .src = port->addr,
                       .port = port,
                       .traffic_class =
                           (uint8_t)(qp_av_traffic_class(av) & ~ECN_MASK), /* the rest is routers' (CA17-5) */
                       .flow_label = address_is_v4(&port->addr) ? 0 : av->grh.flow_label,
                       .hop_limit = av->grh.hop_limit,
                       .dst = {.sin6_family = AF_INET6, .sin6_port = htons(ROCE_UDP_PORT)}};
    memcpy(&to->dst.sin6_addr, av->grh.dgid.raw, sizeof to->dst.sin6_addr);
    if (address_is_v4(&to->dst) != address_is_v4(&port->addr))
        return fail(err, -EINVAL, "ah_attr: dgid and the GID at sgid_index %d are not both IPv4 or both IPv6", index);
    if (IN6_IS_ADDR_LINKLOCAL(&to->dst.sin6_addr) || IN6_IS_ADDR_MULTICAST(&to->dst.sin6_addr))
        to->dst.sin6_scope_id = (uint32_t)dev->net.netdev.ifindex;
    return 0;
}

int ah_resolve_peer(struct dev *dev, const struct rnic_ah_attr *av, uint32_t qpn, struct way *to,
                    struct rnic_err *err) {
    int rc = ah_resolve(dev, av, to, err);
    if (rc)
        return rc;
    if (group_is_multicast(&to->dst.sin6_addr))
        return fail(err, -EINVAL, "ah_attr: dgid is a multicast address, which a connected queue pair cannot have");
    to->dst_slot = qpn_slot(qpn);
    if (dev->nic.congestion)
        to->traffic_class = (uint8_t)((to->traffic_class & ~ECN_MASK) | ECN_CAPABLE);
    return 0;
}

/* ---------------------------------------------------------------- handles */

void ah_reap(struct dev *dev) {
    for (struct ah **at = &dev->dying_ahs, *ah; (ah = *at);) {
        if (atomic_load(&ah->head.users)) {
            at = &ah->next;
            continue;
        }
        *at = ah->next;
        ports_leave(&dev->net, &ah->way);
        free(ah);
    }
}

void ah_free_all(struct dev *dev) {
    for (struct ah *ah = dev->dying_ahs, *next; ah; ah = next) {
        next = ah->next;
        free(ah);
    }
}
