/* SPDX-License-Identifier: Apache-2.0 */
#include "link/udp/way.h"

#include <errno.h>
#include <string.h>

#include "base/address.h"
#include "base/fail.h"
#include "link/group/group.h"
#include "wire/icrc.h"

/* Address vectors of RoCE are global (IBA A16.4.2, A17.4); what Ethernet has no field for is refused, not ignored.  Not so a
 * flow label over IPv4: it only advises routers, and Linux's RDMA-CM puts one into every route. */
int udp_av_check(const struct rnic_ah_attr *av, struct rnic_err *err) {
    if (!av->is_global)
        return fail(err, -EINVAL, "ah_attr.is_global is 0, but RoCE addresses are GIDs: give a GRH with dgid");
    if (av->port_num != 1)
        return fail(err, -EINVAL, "ah_attr.port_num is %u; this device has port 1", av->port_num);
    uint8_t tclass = av->grh.traffic_class;
    if (av->sl > 7)
        return fail(err, -EINVAL, "ah_attr.sl is %u; Ethernet has priorities 0 to 7", av->sl);
    if (av->sl && tclass && tclass >> 5 != av->sl)
        return fail(err, -EINVAL, "ah_attr.sl is %u, but traffic_class 0x%02x is of priority %d: set one of them",
                    av->sl, tclass, tclass >> 5);
    if (av->grh.flow_label > 0xFFFFF)
        return fail(err, -EINVAL, "ah_attr.grh.flow_label is 0x%x; it has 20 bits", av->grh.flow_label);
    if (av->static_rate)
        return fail(err, -EOPNOTSUPP, "ah_attr.static_rate is not supported: use 0");
    return 0;
}

static int to_address(const struct udp_ports *ports, const struct rnic_ah_attr *av, struct way *to,
                      struct rnic_err *err) {
    int index = av->grh.sgid_index;
    if (index >= ports->count)
        return fail(err, -EINVAL, "ah_attr.grh.sgid_index is %d; the GID table has %d entries", index, ports->count);
    struct port *port = &ports->at[index];
    if (!port->steering)
        return fail(err, -EINVAL, "ah_attr.grh.sgid_index is %d; the GID table is empty there", index);
    to->src = port->addr;
    to->dst = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(ROCE_UDP_PORT)};
    memcpy(&to->dst.sin6_addr, av->grh.dgid.raw, sizeof to->dst.sin6_addr);
    udp_way(to)->port = port;
    if (address_is_v4(&to->dst) != address_is_v4(&port->addr))
        return fail(err, -EINVAL, "ah_attr: dgid and the GID at sgid_index %d are not both IPv4 or both IPv6", index);
    if (IN6_IS_ADDR_LINKLOCAL(&to->dst.sin6_addr) || IN6_IS_ADDR_MULTICAST(&to->dst.sin6_addr))
        to->dst.sin6_scope_id = (uint32_t)ports->ifindex;
    return 0;
}

static int to_group(const struct udp_ports *ports, const struct way *to, struct rnic_err *err) {
    const struct port *port = udp_port(to);
    int rc = group_reach(&port->addr, &to->dst, ports->ifindex);
    if (!rc)
        rc = group_send_by(port->tx_fd, address_is_v4(&port->addr), ports->ifindex);
    return rc ? fail(err, rc,
                     "the host has no way for multicast to this group over %s (ip route add multicast ...): %s",
                     ports->netdev, strerror(-rc))
              : 0;
}

static int to_peer(struct way *to, uint32_t qpn, struct rnic_err *err) {
    if (group_is_multicast(&to->dst.sin6_addr))
        return fail(err, -EINVAL, "ah_attr: dgid is a multicast address, which a connected queue pair cannot have");
    to->dst_slot = qpn_slot(qpn);
    if (udp_port(to)->marks)
        to->traffic_class |= ECN_CAPABLE;
    return 0;
}

/* Of the traffic class the lower bits are routers' (CA17-5). */
int udp_resolve(const struct udp_ports *ports, struct link *link, const struct rnic_ah_attr *av, uint32_t qpn,
                struct way *to, struct way *from, struct rnic_err *err) {
    *to = (struct way){.link = link,
                       .datagrams = qpn == WAY_EACH,
                       .traffic_class = (uint8_t)(udp_av_traffic_class(av) & ~ECN_MASK),
                       .hop_limit = av->grh.hop_limit};
    int rc = udp_av_check(av, err);
    if (!rc)
        rc = to_address(ports, av, to, err);
    if (!rc && !to->datagrams)
        rc = to_peer(to, qpn, err);
    if (!rc && to->datagrams && group_is_multicast(&to->dst.sin6_addr))
        rc = to_group(ports, to, err);
    if (rc)
        return rc;
    to->flow_label = address_is_v4(&to->src) ? 0 : av->grh.flow_label;
    if (from) {
        *from = (struct way){.src = to->dst, .dst = to->src};
        from->dst.sin6_port = htons(ROCE_UDP_PORT);
    }
    return 0;
}

void way_forget_seeds(struct way *way) { memset(udp_way(way)->seed_n, 0, sizeof udp_way(way)->seed_n); }

uint32_t way_seed(struct way *way, uint32_t n) {
    struct udp_way *own = udp_way(way);
    for (int i = 0; i < WAY_SEEDS; i++) {
        if (own->seed_n[i] == n)
            return own->seed[i];
    }
    uint32_t at = own->seed_next++ % WAY_SEEDS;
    own->seed_n[at] = n;
    return own->seed[at] = icrc_seed(&way->src, &way->dst, 0, n);
}
