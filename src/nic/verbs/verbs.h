/* SPDX-License-Identifier: Apache-2.0
 *
 * The verbs: what the operations table of the software device holds, by object, and the limits that the device states
 * (IBA chapter 11; the man pages of libibverbs).  The room above the device: it checks what a program asks for, makes and
 * destroys objects, and leaves to dev/ who makes progress when.
 *
 *   provider.c   which devices there are; opening one
 *   device.c     the operations table and the extensions; device, port, counters, asynchronous events
 *   close.c      the end of a context, with what is left in it
 *   limits.c     what is left of its attributes
 *   caps.c       what the device can do beyond ibv_query_device
 *   qp.c         creates, destroys and posts; qp_modify.c modifies and queries; qp_ex.c is what came later
 *   cq.c, srq.c, wq.c, tag.c, xrc.c, ah.c, mcast.c, flow.c, cntr.c, mw.c    the other objects
 *   mem.c, region.c, dm.c, domain.c, import.c    memory of every kind, and who may use it
 *   cm.c, stream.c    what connection management asks for, of InfiniBand and of iWARP
 */
#ifndef RNIC_VERBS_VERBS_H
#define RNIC_VERBS_VERBS_H

#include "dev/dev.h"

#define MAX_COMP_CNTR 65536
#define MAX_WQ 65536
#define MAX_RWQ_TABLES 65536
#define MAX_DM (256ull << 20) /* bytes of device memory in all */

/* limits.c. check_room: under the lock; -ENOMEM: there are as many as the device has, where the environment has made that
 * fewer */
int verbs_check_room(const struct dev *dev, enum object_kind kind, struct rnic_err *err);

/* close.c */
int soft_close(struct rnic_context *ctx, struct rnic_err *err);
int soft_close_all(struct rnic_context *ctx, struct rnic_err *err);

/* mem.c */
int soft_alloc_pd(struct rnic_context *ctx, struct rnic_pd **out, struct rnic_err *err);
int soft_dealloc_pd(struct rnic_pd *pub, struct rnic_err *err);
int soft_reg_mr(struct rnic_pd *pd, void *addr, uint64_t length, uint32_t access, struct rnic_mr **mr,
                struct rnic_err *err);
int soft_alloc_mr(struct rnic_pd *pd, uint64_t length, uint32_t access, struct rnic_mr **mr, struct rnic_err *err);
int soft_dereg_mr(struct rnic_mr *pub, struct rnic_err *err);

/* For what makes protection domains. find_pd: under the lock; the parent domains that have its handle, too, are not
 * meant. enter_pd: takes the handle, or makes one if it is 0. release_pd: -EBUSY with words */
struct pd *new_pd(struct rnic_context *ctx);
struct pd *find_pd(const struct dev *dev, uint32_t handle);
void enter_pd(struct pd *pd);
void link_pd(struct dev *dev, struct pd *pd); /* the same under the lock */
int release_pd(struct pd *pd, struct rnic_err *err);

/* For what makes regions: new_mr, what it needs, enter_mr; whatever fails takes everything back with free_mr. */
struct mr *new_mr(struct rnic_pd *pd, void *addr, uint64_t length, uint32_t access);
int enter_mr(struct mr *mr, uint32_t key /* 0: a new one */, struct rnic_mr **out, struct rnic_err *err);
/* Out of the key table and freed: nobody touches the bytes any more. -EBUSY: a window is bound to it */
int leave_mr(struct mr *mr, struct rnic_err *err);
int check_windows(const struct mr *mr, struct rnic_err *err); /* under the lock: 0, or -EBUSY */
void free_mr(struct mr *mr);
void free_stored(struct dev *dev, uint64_t offset, uint64_t length,
                 uint8_t *addr); /* of the memory file; not under the lock */
static inline bool is_import(const struct mr *mr) { return mr->kind == MR_FOREIGN && !mr->dm; }
/* Under the lock: other processes find it, or not any more, and none is inside a copy; -EBUSY: one stands still there, or
 * the region came into use meanwhile, since waiting lets go of the lock.  A copy that stands still is no
 * reason if peers may only read the region, by the kernel: its reader checks the region afterwards, and drops the copy. */
void publish_mr(struct dev *dev, struct mr *mr);
/* Takes the lock itself: no other thread closes or changes the region until mr->leaving is false again; -EBUSY: one does */
int claim_mr(struct dev *dev, struct mr *mr, struct rnic_err *err);
int withdraw_mr(struct dev *dev, struct mr *mr, struct rnic_err *err); /* one that this thread has claimed */
int withdraw_all_mrs(struct dev *dev,
                     struct rnic_err *err); /* at the end of the device: 0, or -EBUSY and all as before */
/* access: what the kind of memory can have. 0, -EINVAL, -EOPNOTSUPP */
int check_access(uint32_t access, uint32_t allowed, struct rnic_err *err);
int check_mapped(void *addr, uint64_t length, uint32_t access, struct rnic_err *err);
#define MR_ACCESS                                                                                                      \
    (RNIC_ACCESS_LOCAL_WRITE | RNIC_ACCESS_REMOTE_WRITE | RNIC_ACCESS_REMOTE_READ | RNIC_ACCESS_REMOTE_ATOMIC |        \
     RNIC_ACCESS_RELAXED_ORDERING | RNIC_ACCESS_HUGETLB | RNIC_ACCESS_MW_BIND | RNIC_ACCESS_ZERO_BASED |                 \
     RNIC_ACCESS_FLUSH_GLOBAL | RNIC_ACCESS_FLUSH_PERSISTENT)

/* caps.c */
int soft_query_device_ex(struct rnic_context *ctx, struct rnic_device_attr_ex *attr, struct rnic_err *err);

/* region.c */
int soft_reg_mr_ex(struct rnic_pd *pd, const struct rnic_mr_init_attr *attr, struct rnic_mr **out,
                   struct rnic_err *err);
int soft_alloc_null_mr(struct rnic_pd *pd, struct rnic_mr **out, struct rnic_err *err);
int soft_rereg_mr(struct rnic_mr *pub, uint32_t flags, struct rnic_pd *pd, void *addr, uint64_t length, uint32_t access,
                  struct rnic_err *err);
int soft_advise_mr(struct rnic_pd *pd, int advice, uint32_t flags, const struct rnic_sge *sg_list, int num_sge,
                   struct rnic_err *err);

/* dm.c */
int soft_alloc_dm(struct rnic_context *ctx, uint64_t length, uint32_t log_align_req, struct rnic_dm **out,
                  struct rnic_err *err);
int soft_free_dm(struct rnic_dm *pub, struct rnic_err *err);
int soft_memcpy_to_dm(struct rnic_dm *pub, uint64_t offset, const void *src, uint64_t length, struct rnic_err *err);
int soft_memcpy_from_dm(void *dst, struct rnic_dm *pub, uint64_t offset, uint64_t length, struct rnic_err *err);
struct dm *find_dm(const struct dev *dev, uint32_t handle); /* under the lock, as enter_dm() */
void enter_dm(struct dm *dm);
int release_dm(struct dm *dm, struct rnic_err *err);

/* domain.c */
int soft_alloc_td(struct rnic_context *ctx, struct rnic_td **out, struct rnic_err *err);
int soft_dealloc_td(struct rnic_td *pub, struct rnic_err *err);
int soft_alloc_parent_domain(struct rnic_pd *pd, struct rnic_td *td, struct rnic_pd **out, struct rnic_err *err);

/* import.c */
int soft_import_pd(struct rnic_context *ctx, uint32_t handle, struct rnic_pd **out, struct rnic_err *err);
int soft_unimport_pd(struct rnic_pd *pub, struct rnic_err *err);
int soft_import_mr(struct rnic_pd *pd, uint32_t handle, struct rnic_mr **out, struct rnic_err *err);
int soft_unimport_mr(struct rnic_mr *pub, struct rnic_err *err);
int soft_import_dm(struct rnic_context *ctx, uint32_t handle, struct rnic_dm **out, struct rnic_err *err);
int soft_unimport_dm(struct rnic_dm *pub, struct rnic_err *err);

/* mw.c */
int soft_alloc_mw(struct rnic_pd *pd, int type, struct rnic_mw **out, struct rnic_err *err);
int soft_dealloc_mw(struct rnic_mw *pub, struct rnic_err *err);
int soft_bind_mw(struct rnic_qp *qp, struct rnic_mw *mw, const struct rnic_mw_bind *bind, struct rnic_err *err);
int soft_query_mw(struct rnic_mw *mw, struct rnic_mw_bind_info *info, struct rnic_err *err);

/* cq.c */
int soft_create_comp_channel(struct rnic_context *ctx, struct rnic_comp_channel **out, struct rnic_err *err);
int soft_destroy_comp_channel(struct rnic_comp_channel *pub, struct rnic_err *err);
int soft_wait_cq(struct rnic_cq *const *cq, int n, int fd, uint64_t until, bool goes_on);
int soft_wait_channel(struct rnic_comp_channel *ch, uint64_t until, bool goes_on);
int soft_get_cq_event(struct rnic_comp_channel *ch, struct rnic_cq **cq, struct rnic_err *err);
int soft_create_cq(struct rnic_context *ctx, int cqe, struct rnic_comp_channel *ch, uint32_t comp_vector,
                   void *cq_context, struct rnic_cq **out, struct rnic_err *err);
int soft_create_cq_ex(struct rnic_context *ctx, const struct rnic_cq_init_attr_ex *attr, struct rnic_cq **out,
                      struct rnic_err *err);
int soft_modify_cq(struct rnic_cq *pub, const struct rnic_modify_cq_attr *attr, struct rnic_err *err);
int soft_poll_cq_ex(struct rnic_cq *pub, int n, struct rnic_wc *wc, struct rnic_wc_ex *times);
int soft_resize_cq(struct rnic_cq *cq, int cqe, struct rnic_err *err);
int soft_destroy_cq(struct rnic_cq *pub, struct rnic_err *err);
int soft_poll_cq(struct rnic_cq *pub, int n, struct rnic_wc *wc);
int soft_poll_cq_now(struct rnic_cq *pub, int n, struct rnic_wc *wc);
int soft_req_notify_cq(struct rnic_cq *cq, int solicited_only, struct rnic_err *err);
int soft_ack_cq_events(struct rnic_cq *cq, unsigned n, struct rnic_err *err);

/* cntr.c */
int soft_query_comp_cntr_caps(struct rnic_context *ctx, struct rnic_comp_cntr_caps *caps, struct rnic_err *err);
int soft_create_comp_cntr(struct rnic_context *ctx, const struct rnic_comp_cntr_init_attr *attr,
                          struct rnic_comp_cntr **out, struct rnic_err *err);
int soft_destroy_comp_cntr(struct rnic_comp_cntr *pub, struct rnic_err *err);
int soft_set_comp_cntr(struct rnic_comp_cntr *pub, bool failed, uint64_t value, struct rnic_err *err);
int soft_inc_comp_cntr(struct rnic_comp_cntr *pub, bool failed, uint64_t amount, struct rnic_err *err);
int soft_read_comp_cntr(struct rnic_comp_cntr *pub, bool failed, uint64_t *value, struct rnic_err *err);
int soft_attach_comp_cntr(struct rnic_qp *pub, struct rnic_comp_cntr *cntr, uint32_t op_mask, struct rnic_err *err);
void comp_cntrs_detach(struct qp *qp); /* it goes */
int soft_create_counters(struct rnic_context *ctx, struct rnic_flow_counters **out, struct rnic_err *err);
int soft_destroy_counters(struct rnic_flow_counters *pub, struct rnic_err *err);
int soft_attach_counters_point_flow(struct rnic_flow_counters *pub, const struct rnic_counter_attach_attr *attr,
                                    void *flow, struct rnic_err *err);
int soft_read_counters(struct rnic_flow_counters *pub, uint64_t *values, uint32_t n, uint32_t flags,
                       struct rnic_err *err);

/* qp.c */
int soft_create_qp(struct rnic_pd *pd, struct rnic_qp_init_attr *attr, struct rnic_qp **out, struct rnic_err *err);
int soft_destroy_qp(struct rnic_qp *pub, struct rnic_err *err);
int soft_post_send(struct rnic_qp *pub, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad,
                   struct rnic_err *err);
bool soft_post_send_now(struct rnic_qp *pub, const struct rnic_send_wr *wr);
bool soft_post_send_behind(struct rnic_qp *pub, const struct rnic_send_wr *wr);
int soft_post_send_whole(struct rnic_qp *pub, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad,
                         struct rnic_err *err);
int soft_post_recv(struct rnic_qp *pub, const struct rnic_recv_wr *wr, const struct rnic_recv_wr **bad,
                   struct rnic_err *err);

/* What the kinds of queue pairs have in common. make: with queues and engine, of nobody yet. enter: it gets its number.
 * leave: it has none any more, nor anything under way. */
const struct service *verbs_service(const struct dev *dev, int qp_type); /* NULL: there are no such queue pairs */
struct qp *verbs_make_qp(struct dev *dev, struct rnic_pd *pd, struct rnic_qp_init_attr *attr);
int verbs_enter_qp(struct dev *dev, struct qp *qp, struct rnic_err *err);
void verbs_leave_qp(struct dev *dev, struct qp *qp);
void verbs_free_qp(struct qp *qp);
struct rnic_qp_cap verbs_granted_cap(const struct qp *qp);
/* The queue pair behind what a program has of it. */
static inline struct qp *qp_of(struct rnic_qp *pub) { return ((struct qp *)pub)->real; }

/* qp_modify.c */
int soft_modify_qp(struct rnic_qp *pub, const struct rnic_qp_attr *attr, uint32_t mask, struct rnic_err *err);
int soft_query_qp(struct rnic_qp *pub, struct rnic_qp_attr *attr, struct rnic_qp_init_attr *init, struct rnic_err *err);
int soft_query_qp_stats(struct rnic_qp *pub, struct rnic_qp_stats *out, struct rnic_err *err);
void verbs_disconnect(struct dev *dev, struct qp *qp); /* its packets take no way any more */
void verbs_publish_qp(struct dev *dev, struct qp *qp); /* to peers on this host */
/* From now on none of them reads or writes memory by it, nor, if it ends, what it has sent by reference; its peer has been
 * told what it has done. -EBUSY: one stands still in the middle, or another thread destroys it; nothing has changed.  Lets go of the
 * lock while it waits, also for a thread that does the same. */
int verbs_close_off(struct dev *dev, struct qp *qp, bool ends, struct rnic_err *err);
/* The same for who destroys it then, or carries on: no other thread comes behind. */
int verbs_close_off_to_destroy(struct dev *dev, struct qp *qp, struct rnic_err *err);
void verbs_carry_on(struct dev *dev, struct qp *qp); /* after that: it does not end */

/* causes.c */
bool soft_cause_of(struct rnic_context *ctx, const struct rnic_wc *wc, struct rnic_cause *cause);
void soft_listen_causes(struct rnic_context *ctx, rnic_told *told, void *arg);

/* qp_ex.c */
uint32_t verbs_paced_types(const struct dev *dev); /* 1 << enum rnic_qp_type: whose rate can be limited */
int verbs_check_rate(uint32_t rate, struct rnic_err *err);
void verbs_set_rate(struct dev *dev, struct qp *qp, const struct rnic_qp_rate_limit_attr *attr);
int soft_create_qp_ex(struct rnic_pd *pd, struct rnic_qp_init_attr_ex *attr, struct rnic_qp **out,
                      struct rnic_err *err);
int soft_modify_qp_rate_limit(struct rnic_qp *pub, const struct rnic_qp_rate_limit_attr *attr, struct rnic_err *err);
int soft_query_qp_data_in_order(struct rnic_qp *pub, int opcode, uint32_t flags, struct rnic_err *err);
int soft_set_ece(struct rnic_qp *pub, struct rnic_ece *ece, struct rnic_err *err);
int soft_query_ece(struct rnic_qp *pub, struct rnic_ece *ece, struct rnic_err *err);

/* srq.c */
int verbs_make_srq(struct rnic_pd *pd, void *srq_context, struct rnic_srq_attr *attr, struct srq **out,
                   struct rnic_err *err); /* one that nobody counts yet */
int verbs_join_domain(struct dev *dev, struct srq *srq, const struct rnic_srq_init_attr_ex *attr, struct rnic_err *err);
void verbs_leave_domain(struct dev *dev, struct srq *srq); /* an XRC one that is being destroyed */
int soft_create_srq_ex(struct rnic_context *ctx, struct rnic_srq_init_attr_ex *attr, struct rnic_srq **out,
                       struct rnic_err *err);
int soft_create_srq(struct rnic_pd *pd, void *srq_context, struct rnic_srq_attr *attr, struct rnic_srq **out,
                    struct rnic_err *err);
int soft_modify_srq(struct rnic_srq *pub, const struct rnic_srq_attr *attr, uint32_t mask, struct rnic_err *err);
int soft_query_srq(struct rnic_srq *pub, struct rnic_srq_attr *attr, struct rnic_err *err);
int soft_destroy_srq(struct rnic_srq *pub, struct rnic_err *err);
int soft_post_srq_recv(struct rnic_srq *pub, const struct rnic_recv_wr *wr, const struct rnic_recv_wr **bad,
                       struct rnic_err *err);

/* tag.c */
extern const struct rnic_tm_caps verbs_tm_caps;
int verbs_check_tags(const struct rnic_tm_cap *cap, struct rnic_err *err);
int verbs_make_tags(struct srq *srq, const struct rnic_tm_cap *cap, struct rnic_err *err);
void verbs_free_tags(struct srq *srq);
int verbs_check_tagged(const struct rnic_qp_init_attr *attr, struct rnic_err *err);
void verbs_tagged_cap(const struct srq *srq, struct rnic_qp_cap *cap); /* what the device needs for itself */
int verbs_make_tagged(struct qp *qp);                                  /* one that takes from such an SRQ */
int soft_post_srq_ops(struct rnic_srq *pub, struct rnic_ops_wr *wr, struct rnic_ops_wr **bad, struct rnic_err *err);

/* xrc.c */
struct xrcd;
struct rnic_xrcd *xrcd_listed(struct listed *object); /* whose entry this is */
int soft_open_xrcd(struct rnic_context *ctx, const struct rnic_xrcd_init_attr *attr, struct rnic_xrcd **out,
                   struct rnic_err *err);
int soft_close_xrcd(struct rnic_xrcd *pub, struct rnic_err *err);
int soft_create_xrc_qp(struct rnic_xrcd *xrcd, struct rnic_qp_init_attr *attr, struct rnic_qp **out,
                       struct rnic_err *err);
int soft_open_qp(struct rnic_context *ctx, const struct rnic_qp_open_attr *attr, struct rnic_qp **out,
                 struct rnic_err *err);
int soft_close_qp(struct rnic_qp *pub, struct rnic_err *err); /* one that is open; the last destroys it */

/* stream.c */
int soft_attach_stream(struct rnic_qp *pub, const struct rnic_stream_attr *attr, struct rnic_err *err);
int soft_confirm_stream(struct rnic_qp *pub, bool both, struct rnic_err *err);
int soft_stream_fd(struct rnic_context *ctx);
int soft_next_stream_event(struct rnic_context *ctx, struct rnic_stream_event *event, struct rnic_err *err);

/* flow.c */
void raw_caps(struct rnic_device_attr_ex *attr); /* what device and queue pairs can do with frames */
int soft_query_raw(struct rnic_context *ctx, struct rnic_raw_attr *attr, struct rnic_err *err);
int soft_create_flow(struct rnic_qp *qp, const struct rnic_flow_attr *attr, struct rnic_flow **out,
                     struct rnic_err *err);
int soft_destroy_flow(struct rnic_flow *pub, struct rnic_err *err);

/* wq.c; raw_...: what creating and destroying a queue pair ask */
int soft_create_wq(struct rnic_context *ctx, struct rnic_wq_init_attr *attr, struct rnic_wq **out,
                   struct rnic_err *err);
int soft_modify_wq(struct rnic_wq *pub, const struct rnic_wq_attr *attr, struct rnic_err *err);
int soft_query_wq(struct rnic_wq *pub, int *state, uint32_t *depth, struct rnic_err *err);
int soft_destroy_wq(struct rnic_wq *pub, struct rnic_err *err);
int soft_post_wq_recv(struct rnic_wq *pub, const struct rnic_recv_wr *wr, const struct rnic_recv_wr **bad,
                      struct rnic_err *err);
int soft_create_rwq_ind_table(struct rnic_context *ctx, const struct rnic_rwq_ind_table_init_attr *attr,
                              struct rnic_rwq_ind_table **out, struct rnic_err *err);
int soft_destroy_rwq_ind_table(struct rnic_rwq_ind_table *pub, struct rnic_err *err);
int raw_check_spread(const struct rnic_pd *pd, const struct rnic_qp_init_attr *attr, struct rnic_err *err);
void raw_spread(struct qp *qp, const struct rnic_qp_init_attr *attr);
int raw_flows(const struct qp *qp);
struct rnic_rwq_ind_table *raw_table(const struct qp *qp); /* or NULL */

/* ah.c */
int soft_create_ah(struct rnic_pd *pd, const struct rnic_ah_attr *attr, struct rnic_ah **out, struct rnic_err *err);
int soft_query_ah(struct rnic_ah *pub, struct rnic_ah_attr *attr, struct rnic_err *err);
int soft_destroy_ah(struct rnic_ah *pub, struct rnic_err *err);

/* mcast.c */
int soft_attach_mcast(struct rnic_qp *qp, const union rnic_gid *gid, uint16_t lid, struct rnic_err *err);
int soft_detach_mcast(struct rnic_qp *qp, const union rnic_gid *gid, uint16_t lid, struct rnic_err *err);

/* cm.c */
int soft_cm_listen(struct rnic_context *ctx, uint64_t service_id, const union rnic_gid *addr, uint32_t flags,
                   struct rnic_listener **out, struct rnic_err *err);
int soft_cm_unlisten(struct rnic_listener *pub, struct rnic_err *err);
int soft_cm_slot(struct rnic_context *ctx, uint32_t *slot, struct rnic_err *err);
int soft_cm_watch(struct rnic_context *ctx, uint32_t slot, int *fd, struct rnic_err *err);
int soft_cm_watch_service(struct rnic_context *ctx, uint64_t service_id, const union rnic_gid *gid, int *fd,
                          struct rnic_err *err);

/* device.c: what rnic_soft consists of */
extern const struct rnic_ops soft_ops;
extern const struct rnic_extension soft_extensions[];

#endif
