/* SPDX-License-Identifier: Apache-2.0
 *
 * Structs of the kernel's interface to librdmacm (rdma/ib_user_verbs.h, rdma/ib_user_sa.h), as libibverbs' and back.
 */
#include <infiniband/sa.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>

#include "lib.h"

EXPORT void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *to, struct ib_uverbs_ah_attr *from) {
    *to = (struct ibv_ah_attr){.grh = {.flow_label = from->grh.flow_label,
                                       .sgid_index = from->grh.sgid_index,
                                       .hop_limit = from->grh.hop_limit,
                                       .traffic_class = from->grh.traffic_class},
                               .dlid = from->dlid,
                               .sl = from->sl,
                               .src_path_bits = from->src_path_bits,
                               .static_rate = from->static_rate,
                               .is_global = from->is_global,
                               .port_num = from->port_num};
    memcpy(to->grh.dgid.raw, from->grh.dgid, sizeof to->grh.dgid.raw);
}

EXPORT void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *to, struct ib_uverbs_qp_attr *from) {
    *to = (struct ibv_qp_attr){.cur_qp_state = (enum ibv_qp_state)from->cur_qp_state,
                               .path_mtu = (enum ibv_mtu)from->path_mtu,
                               .path_mig_state = (enum ibv_mig_state)from->path_mig_state,
                               .qkey = from->qkey,
                               .rq_psn = from->rq_psn,
                               .sq_psn = from->sq_psn,
                               .dest_qp_num = from->dest_qp_num,
                               .qp_access_flags = from->qp_access_flags,
                               .cap = {.max_send_wr = from->max_send_wr,
                                       .max_recv_wr = from->max_recv_wr,
                                       .max_send_sge = from->max_send_sge,
                                       .max_recv_sge = from->max_recv_sge,
                                       .max_inline_data = from->max_inline_data},
                               .pkey_index = from->pkey_index,
                               .alt_pkey_index = from->alt_pkey_index,
                               .en_sqd_async_notify = from->en_sqd_async_notify,
                               .sq_draining = from->sq_draining,
                               .max_rd_atomic = from->max_rd_atomic,
                               .max_dest_rd_atomic = from->max_dest_rd_atomic,
                               .min_rnr_timer = from->min_rnr_timer,
                               .port_num = from->port_num,
                               .timeout = from->timeout,
                               .retry_cnt = from->retry_cnt,
                               .rnr_retry = from->rnr_retry,
                               .alt_port_num = from->alt_port_num,
                               .alt_timeout = from->alt_timeout};
    to->qp_state = (enum ibv_qp_state)from->qp_state;
    ibv_copy_ah_attr_from_kern(&to->ah_attr, &from->ah_attr);
    ibv_copy_ah_attr_from_kern(&to->alt_ah_attr, &from->alt_ah_attr);
}

/* One list of members for both directions. */
#define PATH_MEMBERS(X)                                                                                                \
    X(dlid) X(slid) X(flow_label) X(hop_limit) X(traffic_class) X(numb_path) X(pkey) X(sl) X(mtu_selector)             \
        X(rate_selector) X(rate) X(packet_life_time_selector) X(packet_life_time) X(preference)

EXPORT void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *to, struct ib_user_path_rec *from) {
    memset(to, 0, sizeof *to);
#define COPY(member) to->member = from->member;
    PATH_MEMBERS(COPY)
#undef COPY
    to->raw_traffic = (int)from->raw_traffic;
    to->reversible = (int)from->reversible;
    to->mtu = (uint8_t)from->mtu;
    memcpy(to->dgid.raw, from->dgid, sizeof to->dgid.raw);
    memcpy(to->sgid.raw, from->sgid, sizeof to->sgid.raw);
}

EXPORT void ibv_copy_path_rec_to_kern(struct ib_user_path_rec *to, struct ibv_sa_path_rec *from) {
    memset(to, 0, sizeof *to);
#define COPY(member) to->member = from->member;
    PATH_MEMBERS(COPY)
#undef COPY
    to->raw_traffic = (uint32_t)from->raw_traffic;
    to->reversible = (uint32_t)from->reversible;
    to->mtu = from->mtu;
    memcpy(to->dgid, from->dgid.raw, sizeof to->dgid);
    memcpy(to->sgid, from->sgid.raw, sizeof to->sgid);
}
