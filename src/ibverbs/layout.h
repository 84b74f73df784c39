/* SPDX-License-Identifier: Apache-2.0
 *
 * What of libibverbs' structs is nic.h's to the byte, so that a pointer to one is a pointer to the other.
 */
#ifndef RNIC_IBVERBS_LAYOUT_H
#define RNIC_IBVERBS_LAYOUT_H

#include <infiniband/verbs.h>

#include "nic.h"

#define SAME(a, b, member)                                                                                             \
    _Static_assert(offsetof(struct a, member) == offsetof(struct b, member) &&                                         \
                       sizeof(((struct a *)0)->member) == sizeof(((struct b *)0)->member),                             \
                   #a "." #member)
#define SAME_SIZE(a, b) _Static_assert(sizeof(struct a) == sizeof(struct b), #a)

SAME_SIZE(ibv_sge, rnic_sge);
SAME(ibv_sge, rnic_sge, addr);
SAME(ibv_sge, rnic_sge, length);
SAME(ibv_sge, rnic_sge, lkey);

SAME_SIZE(ibv_recv_wr, rnic_recv_wr);
SAME(ibv_recv_wr, rnic_recv_wr, wr_id);
SAME(ibv_recv_wr, rnic_recv_wr, next);
SAME(ibv_recv_wr, rnic_recv_wr, sg_list);
SAME(ibv_recv_wr, rnic_recv_wr, num_sge);

SAME_SIZE(ibv_send_wr, rnic_send_wr);
SAME(ibv_send_wr, rnic_send_wr, wr_id);
SAME(ibv_send_wr, rnic_send_wr, next);
SAME(ibv_send_wr, rnic_send_wr, sg_list);
SAME(ibv_send_wr, rnic_send_wr, num_sge);
SAME(ibv_send_wr, rnic_send_wr, opcode);
SAME(ibv_send_wr, rnic_send_wr, send_flags);
SAME(ibv_send_wr, rnic_send_wr, imm_data);
SAME(ibv_send_wr, rnic_send_wr, wr.rdma.remote_addr);
SAME(ibv_send_wr, rnic_send_wr, wr.rdma.rkey);
SAME(ibv_send_wr, rnic_send_wr, wr.atomic.compare_add);
SAME(ibv_send_wr, rnic_send_wr, wr.atomic.swap);
SAME(ibv_send_wr, rnic_send_wr, wr.atomic.rkey);
SAME(ibv_send_wr, rnic_send_wr, wr.ud.ah);
SAME(ibv_send_wr, rnic_send_wr, wr.ud.remote_qpn);
SAME(ibv_send_wr, rnic_send_wr, wr.ud.remote_qkey);
SAME(ibv_send_wr, rnic_send_wr, qp_type.xrc.remote_srqn);
SAME(ibv_send_wr, rnic_send_wr, bind_mw.mw);
SAME(ibv_send_wr, rnic_send_wr, bind_mw.rkey);
SAME(ibv_send_wr, rnic_send_wr, bind_mw.bind_info);

SAME_SIZE(ibv_wc, rnic_wc);
SAME(ibv_wc, rnic_wc, wr_id);
SAME(ibv_wc, rnic_wc, status);
SAME(ibv_wc, rnic_wc, opcode);
SAME(ibv_wc, rnic_wc, vendor_err);
SAME(ibv_wc, rnic_wc, byte_len);
SAME(ibv_wc, rnic_wc, imm_data);
SAME(ibv_wc, rnic_wc, qp_num);
SAME(ibv_wc, rnic_wc, src_qp);
SAME(ibv_wc, rnic_wc, wc_flags);
SAME(ibv_wc, rnic_wc, pkey_index);
SAME(ibv_wc, rnic_wc, slid);
SAME(ibv_wc, rnic_wc, sl);
SAME(ibv_wc, rnic_wc, dlid_path_bits);

SAME_SIZE(ibv_ops_wr, rnic_ops_wr);
SAME(ibv_ops_wr, rnic_ops_wr, tm.add.mask);

SAME_SIZE(ibv_ah_attr, rnic_ah_attr);
SAME(ibv_ah_attr, rnic_ah_attr, grh.traffic_class);
SAME(ibv_ah_attr, rnic_ah_attr, port_num);

/* Not the size: libibverbs aligns it to 8 bytes. */
SAME(ibv_qp_attr, rnic_qp_attr, path_mig_state);
SAME(ibv_qp_attr, rnic_qp_attr, qp_access_flags);
SAME(ibv_qp_attr, rnic_qp_attr, cap);
SAME(ibv_qp_attr, rnic_qp_attr, ah_attr);
SAME(ibv_qp_attr, rnic_qp_attr, alt_ah_attr);
SAME(ibv_qp_attr, rnic_qp_attr, pkey_index);
SAME(ibv_qp_attr, rnic_qp_attr, min_rnr_timer);
SAME(ibv_qp_attr, rnic_qp_attr, alt_timeout);
SAME(ibv_qp_attr, rnic_qp_attr, rate_limit);

SAME_SIZE(ibv_qp_cap, rnic_qp_cap);
SAME_SIZE(ibv_srq_attr, rnic_srq_attr);
SAME_SIZE(ibv_gid_entry, rnic_gid_entry);
SAME(ibv_gid_entry, rnic_gid_entry, ndev_ifindex);
SAME_SIZE(ibv_qp_rate_limit_attr, rnic_qp_rate_limit_attr);
SAME_SIZE(ibv_ece, rnic_ece);
SAME_SIZE(ibv_counter_attach_attr, rnic_counter_attach_attr);
SAME_SIZE(ibv_modify_cq_attr, rnic_modify_cq_attr);

#endif
