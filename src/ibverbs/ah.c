/* SPDX-License-Identifier: Apache-2.0
 *
 * Address handles, also the way back to the sender of a datagram, and multicast (man ibv_create_ah, ibv_create_ah_from_wc,
 * ibv_attach_mcast).
 */
#include <arpa/inet.h>

#include "lib.h"

#define FLOW_LABEL_MASK 0xfffffu
#define DEFAULT_HOPS 64
#define MOST_SL 7 /* beyond it: what shown_sl() made for a completion */

void as_drivers_take(struct rnic_ah_attr *attr) {
    attr->grh.flow_label &= FLOW_LABEL_MASK;
    if (attr->sl > MOST_SL)
        attr->sl = 0;
}

EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr) {
    struct ah *ah = calloc(1, sizeof *ah);
    struct rnic_ah_attr copy;
    struct rnic_err err = {0};
    memcpy(&copy, attr, sizeof copy);
    as_drivers_take(&copy);
    int rc =
        ah ? CALL(context_of(pd->context)->ops, create_ah, ((struct pd *)pd)->nic, &copy, &ah->nic, &err) : -ENOMEM;
    if (rc) {
        free(ah);
        return failed_null("create_ah", rc, &err);
    }
    ah->pub = (struct ibv_ah){.context = pd->context, .pd = pd};
    object_add(pd->context, KIND_AH, &ah->object);
    return &ah->pub;
}

EXPORT int ibv_destroy_ah(struct ibv_ah *pub) {
    struct ah *ah = (struct ah *)pub;
    struct rnic_err err = {0};
    int rc = CALL(context_of(pub->context)->ops, destroy_ah, ah->nic, &err);
    if (rc)
        return failed("destroy_ah", rc, &err);
    object_remove(pub->context, &ah->object);
    free(ah);
    return 0;
}

void ah_end(struct object *object) { ibv_destroy_ah(&OF(ah, object)->pub); }

/* ---------------------------------------------------------------- the way back to a sender */

/* The 40 bytes ahead of a datagram are an IPv6 header, or 20 bytes of nothing and an IPv4 header (IBA A17.4.5.1). */
#define IPV4_AT 20

static void map_v4(union ibv_gid *gid, const uint8_t *address) {
    memset(gid, 0, sizeof *gid);
    gid->raw[10] = gid->raw[11] = 0xff;
    memcpy(gid->raw + 12, address, 4);
}

/* From whom, to whom: 0, or EINVAL for what is neither header. */
static int read_grh(const struct ibv_grh *grh, union ibv_gid *from, union ibv_gid *to, struct ibv_global_route *route) {
    const uint8_t *v4 = (const uint8_t *)grh + IPV4_AT;
    uint32_t first = ntohl(grh->version_tclass_flow);
    if (v4[0] == 0x45) {
        map_v4(from, v4 + 12);
        map_v4(to, v4 + 16);
        route->traffic_class = v4[1];
        route->hop_limit = v4[8];
        return 0;
    }
    if (first >> 28 != 6)
        return EINVAL;
    *from = grh->sgid;
    *to = grh->dgid;
    route->traffic_class = (uint8_t)(first >> 20);
    route->flow_label = first & FLOW_LABEL_MASK;
    route->hop_limit = grh->hop_limit;
    return 0;
}

static int find_gid(struct ibv_context *context, uint8_t port, const union ibv_gid *gid) {
    struct ibv_port_attr attr;
    union ibv_gid found;
    int rc = ibv_query_port(context, port, &attr);
    for (int i = 0; !rc && i < attr.gid_tbl_len; i++) {
        if (!ibv_query_gid(context, port, i, &found) && !memcmp(&found, gid, sizeof found))
            return i;
    }
    return -1;
}

EXPORT int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port_num, struct ibv_wc *wc, struct ibv_grh *grh,
                               struct ibv_ah_attr *attr) {
    union ibv_gid to;
    *attr =
        (struct ibv_ah_attr){.dlid = wc->slid, .sl = wc->sl, .src_path_bits = wc->dlid_path_bits, .port_num = port_num};
    if (!(wc->wc_flags & IBV_WC_GRH))
        return 0;
    if (read_grh(grh, &attr->grh.dgid, &to, &attr->grh))
        return refused("init_ah_from_wc", EINVAL, "what is given as GRH is neither an IPv6 nor an IPv4 header"), -1;
    int index = find_gid(context, port_num, &to);
    if (index < 0)
        return refused("init_ah_from_wc", EINVAL, "the datagram was not sent to an address of the port"), -1;
    attr->is_global = 1;
    attr->sl = attr->grh.traffic_class >> 5;
    attr->grh.sgid_index = (uint8_t)index;
    if (!attr->grh.hop_limit)
        attr->grh.hop_limit = DEFAULT_HOPS;
    return 0;
}

EXPORT struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh,
                                            uint8_t port_num) {
    struct ibv_ah_attr attr;
    return ibv_init_ah_from_wc(pd->context, port_num, wc, grh, &attr) ? NULL : ibv_create_ah(pd, &attr);
}

/* The device asks the kernel for each packet's next hop; nobody has to know it beforehand. */
EXPORT int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr, uint8_t mac[6],
                                       uint16_t *vid) {
    (void)context, (void)attr, (void)mac, (void)vid;
    return refused("resolve_eth_l2_from_gid", EOPNOTSUPP, "the host's kernel resolves the next hop of each packet"), -1;
}

/* ---------------------------------------------------------------- multicast */

EXPORT int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid) {
    struct rnic_err err = {0};
    int rc = CALL(context_of(qp->context)->ops, attach_mcast, ((struct qp *)qp)->nic, (const union rnic_gid *)gid, lid,
                  &err);
    return failed("attach_mcast", rc, &err);
}

EXPORT int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid) {
    struct rnic_err err = {0};
    int rc = CALL(context_of(qp->context)->ops, detach_mcast, ((struct qp *)qp)->nic, (const union rnic_gid *)gid, lid,
                  &err);
    return failed("detach_mcast", rc, &err);
}
