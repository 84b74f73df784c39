/* SPDX-License-Identifier: Apache-2.0
 *
 * Address handles, also the way back to the sender of a datagram, and multicast (man ibv_create_ah, ibv_create_ah_from_wc,
 * ibv_attach_mcast).
 */
#include "layout.h"
#include "lib.h"

#define FLOW_LABEL_MASK 0xfffffu
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
    ADD(pd->context, ah, free);
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

/* ---------------------------------------------------------------- the way back to a sender */

/* A completion without a GRH is of InfiniBand: the address has a LID alone. */
EXPORT int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port_num, struct ibv_wc *wc, struct ibv_grh *grh,
                               struct ibv_ah_attr *attr) {
    struct rnic_err err = {0};
    *attr =
        (struct ibv_ah_attr){.dlid = wc->slid, .sl = wc->sl, .src_path_bits = wc->dlid_path_bits, .port_num = port_num};
    if (!(wc->wc_flags & IBV_WC_GRH))
        return 0;
    int rc = rnic_init_ah_from_wc(context_of(context)->nic, port_num, (const struct rnic_wc *)wc, (const uint8_t *)grh,
                                  -1, (struct rnic_ah_attr *)attr, &err);
    attr->sl = attr->grh.traffic_class >> 5; /* that of the completion may be shown_sl()'s */
    return failed("init_ah_from_wc", rc, &err) ? -1 : 0;
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
