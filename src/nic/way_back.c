/* SPDX-License-Identifier: Apache-2.0
 *
 * way_back.c: the address vector of a datagram's sender (IBA 11.4.2.1; man ibv_init_ah_from_wc), for every provider.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "base/fail.h"
#include "nic.h"
#include "wire/grh.h"

#define DEFAULT_HOPS 64 /* where a device does not tell them */

static int no_address(const struct in6_addr *to, struct rnic_err *err) {
    char text[INET6_ADDRSTRLEN];
    if (IN6_IS_ADDR_V4MAPPED(to))
        inet_ntop(AF_INET, to->s6_addr + 12, text, sizeof text);
    else
        inet_ntop(AF_INET6, to, text, sizeof text);
    return fail(err, -EINVAL, "it was sent to %s, which is not an address of the device: give sgid_index to choose one",
                text);
}

/* Which of the port's addresses it is, or a negative errno. */
static int find_gid(struct rnic_context *ctx, int port, const struct in6_addr *gid, struct rnic_err *err) {
    struct rnic_port_attr attr;
    struct rnic_gid_entry entry;
    int rc = ctx->ops->query_port(ctx, port, &attr, err);
    for (int i = 0; !rc && i < attr.gid_tbl_len; i++) {
        rc = ctx->ops->query_gid(ctx, port, i, &entry, err);
        if (!rc && !memcmp(&entry.gid, gid, sizeof entry.gid))
            return i;
    }
    return rc ? rc : no_address(gid, err);
}

int rnic_init_ah_from_wc(struct rnic_context *ctx, int port, const struct rnic_wc *wc, const uint8_t grh[40],
                         int sgid_index, struct rnic_ah_attr *attr, struct rnic_err *err) {
    struct grh from;
    if (!(wc->wc_flags & RNIC_WCF_GRH))
        return fail(err, -EINVAL, "the datagram came without a GRH");
    if (!grh_read(grh, &from))
        return fail(err, -EINVAL, "neither an IPv6 header nor an IPv4 header behind 20 bytes: it is no GRH");
    int index = sgid_index < 0 ? find_gid(ctx, port, &from.dst, err) : sgid_index;
    if (index < 0)
        return index;
    *attr = (struct rnic_ah_attr){
        .dlid = wc->slid, .sl = wc->sl, .src_path_bits = wc->dlid_path_bits, .is_global = 1, .port_num = (uint8_t)port};
    attr->grh.flow_label = from.flow_label;
    attr->grh.sgid_index = (uint8_t)index;
    attr->grh.hop_limit = from.hops ? from.hops : DEFAULT_HOPS;
    attr->grh.traffic_class = from.tclass;
    memcpy(&attr->grh.dgid, &from.src, sizeof attr->grh.dgid);
    return 0;
}
