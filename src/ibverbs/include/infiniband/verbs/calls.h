/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs/calls.h: verbs that are compiled into programs: through the tables of context.h, or a macro over an exported
 * function. Each has a man page of its name.
 *
 * Where a table lacks the function: NULL and errno EOPNOTSUPP, or EOPNOTSUPP.
 */
#ifndef RNIC_VERBS_CALLS_H
#define RNIC_VERBS_CALLS_H

#include <infiniband/verbs/functions.h>

/* ---------------------------------------------------------------- data path */

static inline int ibv_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr) {
    return qp->context->ops.post_send(qp, wr, bad_wr);
}
static inline int ibv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr) {
    return qp->context->ops.post_recv(qp, wr, bad_wr);
}
static inline int ibv_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *recv_wr,
                                    struct ibv_recv_wr **bad_recv_wr) {
    return srq->context->ops.post_srq_recv(srq, recv_wr, bad_recv_wr);
}
static inline int ibv_post_wq_recv(struct ibv_wq *wq, struct ibv_recv_wr *recv_wr, struct ibv_recv_wr **bad_recv_wr) {
    return wq->post_recv(wq, recv_wr, bad_recv_wr);
}
static inline int ibv_post_srq_ops(struct ibv_srq *srq, struct ibv_ops_wr *op, struct ibv_ops_wr **bad_op) {
    struct verbs_context *table = verbs_get_ctx_op(srq->context, post_srq_ops);
    if (table)
        return table->post_srq_ops(srq, op, bad_op);
    *bad_op = op;
    return EOPNOTSUPP;
}
/* How many completions, or a negative number. */
static inline int ibv_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc) {
    return cq->context->ops.poll_cq(cq, num_entries, wc);
}
static inline int ibv_req_notify_cq(struct ibv_cq *cq, int solicited_only) {
    return cq->context->ops.req_notify_cq(cq, solicited_only);
}

/* ---------------------------------------------------------------- devices */

static inline int ibv_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
                                      struct ibv_device_attr_ex *attr) {
    struct verbs_context *table = verbs_get_ctx_op(context, query_device_ex);
    int error = EOPNOTSUPP;
    if (input && input->comp_mask)
        return EINVAL;
    if (table)
        error = table->query_device_ex(context, input, attr, sizeof(*attr));
    if (error != EOPNOTSUPP && error != ENOSYS)
        return error;
    memset(attr, 0, sizeof(*attr));
    return ibv_query_device(context, &attr->orig_attr);
}

/* The exported function is for programs that know no port_cap_flags2. */
static inline int _ibv_query_port_attr(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *port_attr) {
    struct verbs_context *table = verbs_get_ctx_op(context, query_port);
    if (table)
        return table->query_port(context, port_num, port_attr, sizeof(*port_attr));
    memset(port_attr, 0, sizeof(*port_attr));
    return ibv_query_port(context, port_num, (struct _compat_ibv_port_attr *)port_attr);
}
#define ibv_query_port(context, port_num, port_attr) _ibv_query_port_attr(context, port_num, port_attr)

static inline int ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index,
                                   struct ibv_gid_entry *entry, uint32_t flags) {
    return _ibv_query_gid_ex(context, port_num, gid_index, entry, flags, sizeof(*entry));
}
static inline ssize_t ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
                                          size_t max_entries, uint32_t flags) {
    return _ibv_query_gid_table(context, entries, max_entries, flags, sizeof(*entries));
}
static inline int ibv_query_rt_values_ex(struct ibv_context *context, struct ibv_values_ex *values) {
    struct verbs_context *table = verbs_get_ctx_op(context, query_rt_values);
    return table ? table->query_rt_values(context, values) : EOPNOTSUPP;
}

/* Is a type among caps, the supported_qpts of an offload? */
static inline int ibv_is_qpt_supported(uint32_t caps, enum ibv_qp_type qpt) {
    return (unsigned int)qpt < 32 && (caps >> qpt & 1);
}

/* ---------------------------------------------------------------- domains */

static inline struct ibv_td *ibv_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *init_attr) {
    struct verbs_context *table = verbs_get_ctx_op(context, alloc_td);
    if (table)
        return table->alloc_td(context, init_attr);
    errno = EOPNOTSUPP;
    return NULL;
}
static inline int ibv_dealloc_td(struct ibv_td *td) {
    struct verbs_context *table = verbs_get_ctx_op(td->context, dealloc_td);
    return table ? table->dealloc_td(td) : EOPNOTSUPP;
}
static inline struct ibv_pd *ibv_alloc_parent_domain(struct ibv_context *context,
                                                     struct ibv_parent_domain_init_attr *attr) {
    struct verbs_context *table = verbs_get_ctx_op(context, alloc_parent_domain);
    if (table)
        return table->alloc_parent_domain(context, attr);
    errno = EOPNOTSUPP;
    return NULL;
}
static inline struct ibv_xrcd *ibv_open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *xrcd_init_attr) {
    struct verbs_context *table = verbs_get_ctx_op(context, open_xrcd);
    if (table)
        return table->open_xrcd(context, xrcd_init_attr);
    errno = EOPNOTSUPP;
    return NULL;
}
static inline int ibv_close_xrcd(struct ibv_xrcd *xrcd) {
    struct verbs_context *table = verbs_get_ctx_op(xrcd->context, close_xrcd);
    return table ? table->close_xrcd(xrcd) : EOPNOTSUPP;
}

/* ---------------------------------------------------------------- memory */

/* Access flags that are wishes need a newer function of the library: a program that names none runs with older ones. */
#define _IBV_PLAIN(access) (((access) & (int)IBV_ACCESS_OPTIONAL_RANGE) == 0)
#define _IBV_KNOWN_PLAIN(access) (__builtin_constant_p(_IBV_PLAIN(access)) && _IBV_PLAIN(access))

static inline __attribute__((always_inline)) struct ibv_mr *_ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
                                                                        unsigned int access, int plain) {
    return plain ? ibv_reg_mr(pd, addr, length, (int)access)
                 : ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, access);
}
#define ibv_reg_mr(pd, addr, length, access) _ibv_reg_mr(pd, addr, length, access, _IBV_KNOWN_PLAIN(access))

static inline
    __attribute__((always_inline)) struct ibv_mr *_ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length,
                                                                   uint64_t iova, unsigned int access, int plain) {
    return plain ? ibv_reg_mr_iova(pd, addr, length, iova, (int)access)
                 : ibv_reg_mr_iova2(pd, addr, length, iova, access);
}
#define ibv_reg_mr_iova(pd, addr, length, iova, access)                                                                \
    _ibv_reg_mr_iova(pd, addr, length, iova, access, _IBV_KNOWN_PLAIN(access))

static inline struct ibv_mr *ibv_alloc_null_mr(struct ibv_pd *pd) {
    struct verbs_context *table = verbs_get_ctx_op(pd->context, alloc_null_mr);
    if (table)
        return table->alloc_null_mr(pd);
    errno = EOPNOTSUPP;
    return NULL;
}
static inline int ibv_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags,
                                struct ibv_sge *sg_list, uint32_t num_sge) {
    struct verbs_context *table = verbs_get_ctx_op(pd->context, advise_mr);
    return table ? table->advise_mr(pd, advice, flags, sg_list, num_sge) : EOPNOTSUPP;
}

static inline struct ibv_dm *ibv_alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attr) {
    struct verbs_context *table = verbs_get_ctx_op(context, alloc_dm);
    if (table)
        return table->alloc_dm(context, attr);
    errno = EOPNOTSUPP;
    return NULL;
}
static inline int ibv_free_dm(struct ibv_dm *dm) {
    struct verbs_context *table = verbs_get_ctx_op(dm->context, free_dm);
    return table ? table->free_dm(dm) : EOPNOTSUPP;
}
static inline struct ibv_mr *ibv_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t dm_offset, size_t length,
                                           unsigned int access) {
    struct verbs_context *table = verbs_get_ctx_op(pd->context, reg_dm_mr);
    if (table)
        return table->reg_dm_mr(pd, dm, dm_offset, length, access);
    errno = EOPNOTSUPP;
    return NULL;
}
static inline int ibv_memcpy_to_dm(struct ibv_dm *dm, uint64_t dm_offset, const void *host_addr, size_t length) {
    return dm->memcpy_to_dm(dm, dm_offset, host_addr, length);
}
static inline int ibv_memcpy_from_dm(void *host_addr, struct ibv_dm *dm, uint64_t dm_offset, size_t length) {
    return dm->memcpy_from_dm(host_addr, dm, dm_offset, length);
}

static inline struct ibv_mw *ibv_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type) {
    if (pd->context->ops.alloc_mw)
        return pd->context->ops.alloc_mw(pd, type);
    errno = EOPNOTSUPP;
    return NULL;
}
static inline int ibv_dealloc_mw(struct ibv_mw *mw) { return mw->context->ops.dealloc_mw(mw); }
/* Type 1; type 2 is bound by a work request. Without a region it is bound to nothing. */
static inline int ibv_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *mw_bind) {
    const struct ibv_mw_bind_info *info = &mw_bind->bind_info;
    if (mw->type != IBV_MW_TYPE_1 || (!info->mr && (info->addr || info->length)))
        return EINVAL;
    if (info->mr && info->mr->pd != mw->pd)
        return EPERM;
    return mw->context->ops.bind_mw(qp, mw, mw_bind);
}
/* The key with the next tag: its lowest byte, that the program may choose. */
static inline uint32_t ibv_inc_rkey(uint32_t rkey) { return (rkey & ~0xffu) | ((rkey + 1) & 0xffu); }

/* ---------------------------------------------------------------- queues */

static inline struct ibv_cq_ex *ibv_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *cq_attr) {
    struct verbs_context *table = verbs_get_ctx_op(context, create_cq_ex);
    if (table)
        return table->create_cq_ex(context, cq_attr);
    errno = EOPNOTSUPP;
    return NULL;
}
static inline int ibv_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr) {
    struct verbs_context *table = verbs_get_ctx_op(cq->context, modify_cq);
    return table ? table->modify_cq(cq, attr) : EOPNOTSUPP;
}

/* What ibv_create_srq and ibv_create_qp can make goes to them, so that it can be had without the second table. */
static inline struct ibv_srq *ibv_create_srq_ex(struct ibv_context *context,
                                                struct ibv_srq_init_attr_ex *srq_init_attr_ex) {
    uint32_t mask = srq_init_attr_ex->comp_mask;
    int typed = (mask & IBV_SRQ_INIT_ATTR_TYPE) != 0;
    struct verbs_context *table;
    if ((mask & ~(uint32_t)IBV_SRQ_INIT_ATTR_TYPE) == IBV_SRQ_INIT_ATTR_PD &&
        (!typed || srq_init_attr_ex->srq_type == IBV_SRQT_BASIC))
        return ibv_create_srq(srq_init_attr_ex->pd, (struct ibv_srq_init_attr *)srq_init_attr_ex);
    table = verbs_get_ctx_op(context, create_srq_ex);
    if (table)
        return table->create_srq_ex(context, srq_init_attr_ex);
    errno = EOPNOTSUPP;
    return NULL;
}
static inline int ibv_get_srq_num(struct ibv_srq *srq, uint32_t *srq_num) {
    struct verbs_context *table = verbs_get_ctx_op(srq->context, get_srq_num);
    return table ? table->get_srq_num(srq, srq_num) : EOPNOTSUPP;
}

static inline struct ibv_qp *ibv_create_qp_ex(struct ibv_context *context,
                                              struct ibv_qp_init_attr_ex *qp_init_attr_ex) {
    struct verbs_context *table;
    if (qp_init_attr_ex->comp_mask == IBV_QP_INIT_ATTR_PD)
        return ibv_create_qp(qp_init_attr_ex->pd, (struct ibv_qp_init_attr *)qp_init_attr_ex);
    table = verbs_get_ctx_op(context, create_qp_ex);
    if (table)
        return table->create_qp_ex(context, qp_init_attr_ex);
    errno = EOPNOTSUPP;
    return NULL;
}
static inline struct ibv_qp *ibv_open_qp(struct ibv_context *context, struct ibv_qp_open_attr *qp_open_attr) {
    struct verbs_context *table = verbs_get_ctx_op(context, open_qp);
    if (table)
        return table->open_qp(context, qp_open_attr);
    errno = EOPNOTSUPP;
    return NULL;
}
static inline int ibv_modify_qp_rate_limit(struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *attr) {
    struct verbs_context *table = verbs_get_ctx_op(qp->context, modify_qp_rate_limit);
    return table ? table->modify_qp_rate_limit(qp, attr) : EOPNOTSUPP;
}

/* The program's side makes what ibv_destroy_wq waits for events by. */
static inline struct ibv_wq *ibv_create_wq(struct ibv_context *context, struct ibv_wq_init_attr *wq_init_attr) {
    struct verbs_context *table = verbs_get_ctx_op(context, create_wq);
    struct ibv_wq *wq;
    if (!table) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    wq = table->create_wq(context, wq_init_attr);
    if (wq) {
        wq->wq_context = wq_init_attr->wq_context;
        wq->events_completed = 0;
        pthread_mutex_init(&wq->mutex, NULL);
        pthread_cond_init(&wq->cond, NULL);
    }
    return wq;
}
static inline int ibv_modify_wq(struct ibv_wq *wq, struct ibv_wq_attr *wq_attr) {
    struct verbs_context *table = verbs_get_ctx_op(wq->context, modify_wq);
    return table ? table->modify_wq(wq, wq_attr) : EOPNOTSUPP;
}
static inline int ibv_destroy_wq(struct ibv_wq *wq) {
    struct verbs_context *table = verbs_get_ctx_op(wq->context, destroy_wq);
    return table ? table->destroy_wq(wq) : EOPNOTSUPP;
}
static inline struct ibv_rwq_ind_table *ibv_create_rwq_ind_table(struct ibv_context *context,
                                                                 struct ibv_rwq_ind_table_init_attr *init_attr) {
    struct verbs_context *table = verbs_get_ctx_op(context, create_rwq_ind_table);
    if (table)
        return table->create_rwq_ind_table(context, init_attr);
    errno = EOPNOTSUPP;
    return NULL;
}
static inline int ibv_destroy_rwq_ind_table(struct ibv_rwq_ind_table *rwq_ind_table) {
    struct verbs_context *table = verbs_get_ctx_op(rwq_ind_table->context, destroy_rwq_ind_table);
    return table ? table->destroy_rwq_ind_table(rwq_ind_table) : EOPNOTSUPP;
}

/* ---------------------------------------------------------------- flows */

static inline struct ibv_flow *ibv_create_flow(struct ibv_qp *qp, struct ibv_flow_attr *flow) {
    struct verbs_context *table = verbs_get_ctx_op(qp->context, ibv_create_flow);
    if (table)
        return table->ibv_create_flow(qp, flow);
    errno = EOPNOTSUPP;
    return NULL;
}
static inline int ibv_destroy_flow(struct ibv_flow *flow_id) {
    struct verbs_context *table = verbs_get_ctx_op(flow_id->context, ibv_destroy_flow);
    return table ? table->ibv_destroy_flow(flow_id) : EOPNOTSUPP;
}
static inline struct ibv_flow_action *ibv_create_flow_action_esp(struct ibv_context *ctx,
                                                                 struct ibv_flow_action_esp_attr *esp) {
    struct verbs_context *table = verbs_get_ctx_op(ctx, create_flow_action_esp);
    if (table)
        return table->create_flow_action_esp(ctx, esp);
    errno = EOPNOTSUPP;
    return NULL;
}
static inline int ibv_modify_flow_action_esp(struct ibv_flow_action *action, struct ibv_flow_action_esp_attr *esp) {
    struct verbs_context *table = verbs_get_ctx_op(action->context, modify_flow_action_esp);
    return table ? table->modify_flow_action_esp(action, esp) : EOPNOTSUPP;
}
static inline int ibv_destroy_flow_action(struct ibv_flow_action *action) {
    struct verbs_context *table = verbs_get_ctx_op(action->context, destroy_flow_action);
    return table ? table->destroy_flow_action(action) : EOPNOTSUPP;
}

static inline struct ibv_counters *ibv_create_counters(struct ibv_context *context,
                                                       struct ibv_counters_init_attr *init_attr) {
    struct verbs_context *table = verbs_get_ctx_op(context, create_counters);
    if (table)
        return table->create_counters(context, init_attr);
    errno = EOPNOTSUPP;
    return NULL;
}
static inline int ibv_destroy_counters(struct ibv_counters *counters) {
    struct verbs_context *table = verbs_get_ctx_op(counters->context, destroy_counters);
    return table ? table->destroy_counters(counters) : EOPNOTSUPP;
}
static inline int ibv_attach_counters_point_flow(struct ibv_counters *counters, struct ibv_counter_attach_attr *attr,
                                                 struct ibv_flow *flow) {
    struct verbs_context *table = verbs_get_ctx_op(counters->context, attach_counters_point_flow);
    return table ? table->attach_counters_point_flow(counters, attr, flow) : EOPNOTSUPP;
}
static inline int ibv_read_counters(struct ibv_counters *counters, uint64_t *counters_value, uint32_t ncounters,
                                    uint32_t flags) {
    struct verbs_context *table = verbs_get_ctx_op(counters->context, read_counters);
    return table ? table->read_counters(counters, counters_value, ncounters, flags) : EOPNOTSUPP;
}

/* ---------------------------------------------------------------- RoCE's UDP source ports */

#define IB_ROCE_UDP_ENCAP_VALID_PORT_MIN 0xc000
#define IB_ROCE_UDP_ENCAP_VALID_PORT_MAX 0xffff
#define IB_GRH_FLOWLABEL_MASK 0xfffff

/* The 20 bits folded to 14: the upper 6 on the lowest. */
static inline uint16_t ibv_flow_label_to_udp_sport(uint32_t fl) {
    uint32_t folded = (fl & 0x3fff) ^ ((fl & IB_GRH_FLOWLABEL_MASK) >> 14);
    return (uint16_t)(IB_ROCE_UDP_ENCAP_VALID_PORT_MIN | folded);
}

#endif
