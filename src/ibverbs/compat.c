/* SPDX-License-Identifier: Apache-2.0
 *
 * The ABI of programs from before libibverbs 1.1 (2007), as rdma-core still has it (symbol version IBVERBS_1.0).  Such a program
 * gets an object of the old layout for each of today's, which is its last member.  Structs that are not here have not changed.
 */
#include "lib.h"
#include "versioned.h"

#define CHUNK 16

struct old_device {
    void *unused[2];
    struct ibv_device *real;
    void *unused_too[2];
};

/* By their place in the table of a context; the others are never called by a program. */
enum { POLL_CQ = 7, REQ_NOTIFY_CQ = 8, POST_SRQ_RECV = 16, POST_SEND = 21, POST_RECV = 22, OLD_OPS = 27 };
typedef void any_op(void);

struct old_context {
    struct old_device *device;
    any_op *ops[OLD_OPS];
    int cmd_fd, async_fd, num_comp_vectors;
    struct ibv_context *real;
    struct old_context *next; /* the library's own */
};
struct old_pd {
    struct old_context *context;
    uint32_t handle;
    struct ibv_pd *real;
};
struct old_mr {
    struct old_context *context;
    struct old_pd *pd;
    uint32_t handle, lkey, rkey;
    struct ibv_mr *real;
};
struct old_cq {
    struct old_context *context;
    void *cq_context;
    uint32_t handle;
    int cqe;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t comp_events_completed, async_events_completed;
    struct ibv_cq *real; /* its cq_context is the old object */
};
struct old_srq {
    struct old_context *context;
    void *srq_context;
    struct old_pd *pd;
    uint32_t handle;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t events_completed;
    struct ibv_srq *real; /* the same */
};
struct old_qp {
    struct old_context *context;
    void *qp_context;
    struct old_pd *pd;
    struct old_cq *send_cq, *recv_cq;
    struct old_srq *srq;
    uint32_t handle, qp_num;
    enum ibv_qp_state state;
    enum ibv_qp_type qp_type;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t events_completed;
    struct ibv_qp *real; /* the same */
};
struct old_ah {
    struct old_context *context;
    struct old_pd *pd;
    uint32_t handle;
    struct ibv_ah *real;
};
struct old_qp_init_attr {
    void *qp_context;
    struct old_cq *send_cq, *recv_cq;
    struct old_srq *srq;
    struct ibv_qp_cap cap;
    enum ibv_qp_type qp_type;
    int sq_sig_all;
};
struct old_send_wr {
    struct old_send_wr *next;
    uint64_t wr_id;
    struct ibv_sge *sg_list;
    int num_sge;
    enum ibv_wr_opcode opcode;
    int send_flags;
    __be32 imm_data;
    union {
        struct {
            uint64_t remote_addr, compare_add, swap;
            uint32_t rkey;
        } atomic;
        struct {
            uint64_t remote_addr;
            uint32_t rkey;
        } rdma;
        struct {
            struct old_ah *ah;
            uint32_t remote_qpn, remote_qkey;
        } ud;
    } wr;
};
struct old_recv_wr {
    struct old_recv_wr *next;
    uint64_t wr_id;
    struct ibv_sge *sg_list;
    int num_sge;
};

#define OLD(name) IN_VERSION(old_##name, old_##name##_symbol, "ibv_" #name "@IBVERBS_1.0")
#define REAL(old) ((old) ? (old)->real : NULL)

/* The old object for a real one that was made: NULL, and the real one goes, where memory is short. */
#define WRAP(type, made, undo, ...)                                                                                    \
    struct type *wrapped = (made) ? calloc(1, sizeof *wrapped) : NULL;                                                 \
    if ((made) && !wrapped)                                                                                            \
        undo(made);                                                                                                    \
    if (wrapped)                                                                                                       \
    *wrapped = (struct type){__VA_ARGS__}

/* ---------------------------------------------------------------- devices */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the two that live on here: */
static struct old_context *contexts;                     /* open ones, and struct device's `old` */

static struct old_device *know_device(struct ibv_device *real) {
    struct device *device = (struct device *)real;
    pthread_mutex_lock(&lock);
    if (!device->old)
        device->old = calloc(1, sizeof *device->old);
    if (device->old)
        device->old->real = real;
    pthread_mutex_unlock(&lock);
    return device->old;
}

/* Each entry is turned into the old device of the real one. */
static struct old_device **old_get_device_list(int *num) {
    int n = 0;
    struct ibv_device **list = ibv_get_device_list(&n);
    for (int i = 0; i < n; i++) {
        list[i] = (struct ibv_device *)(void *)know_device(list[i]);
        if (!list[i]) {
            ibv_free_device_list(list);
            return NULL;
        }
    }
    if (list && num)
        *num = n;
    return (struct old_device **)(void *)list;
}
OLD(get_device_list)

static void old_free_device_list(struct old_device **list) { ibv_free_device_list((struct ibv_device **)(void *)list); }
OLD(free_device_list)

static const char *old_get_device_name(struct old_device *device) { return ibv_get_device_name(device->real); }
OLD(get_device_name)
static __be64 old_get_device_guid(struct old_device *device) { return ibv_get_device_guid(device->real); }
OLD(get_device_guid)

/* ---------------------------------------------------------------- post and poll */

static int old_poll_cq(struct old_cq *cq, int n, struct ibv_wc *wc) { return ibv_poll_cq(cq->real, n, wc); }
static int old_req_notify_cq(struct old_cq *cq, int solicited) { return ibv_req_notify_cq(cq->real, solicited); }

static void renew_send(const struct old_send_wr *old, const struct old_qp *qp, struct ibv_send_wr *wr) {
    *wr = (struct ibv_send_wr){.wr_id = old->wr_id,
                               .sg_list = old->sg_list,
                               .num_sge = old->num_sge,
                               .opcode = old->opcode,
                               .send_flags = (unsigned)old->send_flags,
                               .imm_data = old->imm_data};
    _Static_assert(sizeof wr->wr == sizeof old->wr, "what an operation needs has not changed");
    memcpy(&wr->wr, &old->wr, sizeof wr->wr);
    if (qp->qp_type == IBV_QPT_UD)
        wr->wr.ud.ah = REAL(old->wr.ud.ah);
}

static void renew_recv(const struct old_recv_wr *old, const void *of, struct ibv_recv_wr *wr) {
    (void)of;
    *wr = (struct ibv_recv_wr){.wr_id = old->wr_id, .sg_list = old->sg_list, .num_sge = old->num_sge};
}

/* Posts a list a chunk at a time; *bad is the request that was refused. */
#define POST(name, kind, object, post)                                                                                 \
    static int name(struct object *of, struct old_##kind##_wr *wr, struct old_##kind##_wr **bad) {                     \
        struct ibv_##kind##_wr copies[CHUNK], *refused_one = NULL;                                                     \
        struct old_##kind##_wr *from[CHUNK];                                                                           \
        while (wr) {                                                                                                   \
            int n = 0;                                                                                                 \
            for (; wr && n < CHUNK; wr = wr->next, n++) {                                                              \
                from[n] = wr;                                                                                          \
                renew_##kind(wr, of, &copies[n]);                                                                      \
                copies[n].next = wr->next && n + 1 < CHUNK ? &copies[n + 1] : NULL;                                    \
            }                                                                                                          \
            int rc = post(of->real, copies, &refused_one);                                                             \
            if (rc) {                                                                                                  \
                *bad = from[refused_one - copies];                                                                     \
                return rc;                                                                                             \
            }                                                                                                          \
        }                                                                                                              \
        return 0;                                                                                                      \
    }
POST(old_post_send, send, old_qp, ibv_post_send)
POST(old_post_recv, recv, old_qp, ibv_post_recv)
POST(old_post_srq_recv, recv, old_srq, ibv_post_srq_recv)

/* ---------------------------------------------------------------- contexts */

/* ibv_create_comp_channel() has one version for all programs: what it is given may be an old context. */
struct ibv_context *compat_context(struct ibv_context *context) {
    pthread_mutex_lock(&lock);
    struct old_context *old = contexts;
    while (old && (void *)old != (void *)context)
        old = old->next;
    pthread_mutex_unlock(&lock);
    return old ? old->real : context;
}

static struct old_context *old_open_device(struct old_device *device) {
    struct ibv_context *real = ibv_open_device(device->real);
    WRAP(old_context, real, ibv_close_device, .device = device, .cmd_fd = real->cmd_fd, .async_fd = real->async_fd,
         .num_comp_vectors = real->num_comp_vectors, .real = real,
         .ops = {[POLL_CQ] = (any_op *)old_poll_cq,
                 [REQ_NOTIFY_CQ] = (any_op *)old_req_notify_cq,
                 [POST_SRQ_RECV] = (any_op *)old_post_srq_recv,
                 [POST_SEND] = (any_op *)old_post_send,
                 [POST_RECV] = (any_op *)old_post_recv});
    if (!wrapped)
        return NULL;
    pthread_mutex_lock(&lock);
    wrapped->next = contexts;
    contexts = wrapped;
    pthread_mutex_unlock(&lock);
    return wrapped;
}
OLD(open_device)

static int old_close_device(struct old_context *context) {
    int rc = ibv_close_device(context->real);
    if (rc)
        return rc;
    pthread_mutex_lock(&lock);
    struct old_context **at = &contexts;
    while (*at != context)
        at = &(*at)->next;
    *at = context->next;
    pthread_mutex_unlock(&lock);
    free(context);
    return 0;
}
OLD(close_device)

static int old_query_device(struct old_context *context, struct ibv_device_attr *attr) {
    return ibv_query_device(context->real, attr);
}
OLD(query_device)
#undef ibv_query_port
static int old_query_port(struct old_context *context, uint8_t port, struct _compat_ibv_port_attr *attr) {
    return ibv_query_port(context->real, port, attr);
}
OLD(query_port)
static int old_query_gid(struct old_context *context, uint8_t port, int index, union ibv_gid *gid) {
    return ibv_query_gid(context->real, port, index, gid);
}
OLD(query_gid)
static int old_query_pkey(struct old_context *context, uint8_t port, int index, __be16 *pkey) {
    return ibv_query_pkey(context->real, port, index, pkey);
}
OLD(query_pkey)

/* ---------------------------------------------------------------- domains and memory */

/* The real object goes, and then the old one. */
#define DESTROY(name, type, destroy)                                                                                   \
    static int old_##name(struct type *old) {                                                                          \
        int rc = destroy(old->real);                                                                                   \
        if (!rc)                                                                                                       \
            free(old);                                                                                                 \
        return rc;                                                                                                     \
    }                                                                                                                  \
    OLD(name)

static struct old_pd *old_alloc_pd(struct old_context *context) {
    struct ibv_pd *real = ibv_alloc_pd(context->real);
    WRAP(old_pd, real, ibv_dealloc_pd, .context = context, .handle = real->handle, .real = real);
    return wrapped;
}
OLD(alloc_pd)
DESTROY(dealloc_pd, old_pd, ibv_dealloc_pd)

#undef ibv_reg_mr
static struct old_mr *old_reg_mr(struct old_pd *pd, void *addr, size_t length, int access) {
    struct ibv_mr *real = ibv_reg_mr(pd->real, addr, length, access);
    WRAP(old_mr, real, ibv_dereg_mr, .context = pd->context, .pd = pd, .handle = real->handle, .lkey = real->lkey,
         .rkey = real->rkey, .real = real);
    return wrapped;
}
OLD(reg_mr)
DESTROY(dereg_mr, old_mr, ibv_dereg_mr)

static struct old_ah *old_create_ah(struct old_pd *pd, struct ibv_ah_attr *attr) {
    struct ibv_ah *real = ibv_create_ah(pd->real, attr);
    WRAP(old_ah, real, ibv_destroy_ah, .context = pd->context, .pd = pd, .real = real);
    return wrapped;
}
OLD(create_ah)
DESTROY(destroy_ah, old_ah, ibv_destroy_ah)

/* ---------------------------------------------------------------- queues */

static struct old_cq *old_create_cq(struct old_context *context, int cqe, void *cq_context,
                                    struct ibv_comp_channel *channel, int comp_vector) {
    struct ibv_cq *real = ibv_create_cq(context->real, cqe, NULL, channel, comp_vector);
    WRAP(old_cq, real, ibv_destroy_cq, .context = context, .cq_context = cq_context, .cqe = real->cqe, .real = real);
    if (wrapped)
        real->cq_context = wrapped;
    return wrapped;
}
OLD(create_cq)

static int old_resize_cq(struct old_cq *cq, int cqe) {
    int rc = ibv_resize_cq(cq->real, cqe);
    cq->cqe = cq->real->cqe;
    return rc;
}
OLD(resize_cq)
DESTROY(destroy_cq, old_cq, ibv_destroy_cq)

static int old_get_cq_event(struct ibv_comp_channel *channel, struct old_cq **cq, void **cq_context) {
    struct ibv_cq *real;
    void *old;
    int rc = ibv_get_cq_event(channel, &real, &old);
    if (rc)
        return rc;
    *cq = old;
    *cq_context = (*cq)->cq_context;
    return 0;
}
OLD(get_cq_event)
static void old_ack_cq_events(struct old_cq *cq, unsigned n) { ibv_ack_cq_events(cq->real, n); }
OLD(ack_cq_events)

static struct old_srq *old_create_srq(struct old_pd *pd, struct ibv_srq_init_attr *attr) {
    struct ibv_srq *real = ibv_create_srq(pd->real, attr);
    WRAP(old_srq, real, ibv_destroy_srq, .context = pd->context, .srq_context = attr->srq_context, .pd = pd,
         .real = real);
    if (wrapped)
        real->srq_context = wrapped;
    return wrapped;
}
OLD(create_srq)
static int old_modify_srq(struct old_srq *srq, struct ibv_srq_attr *attr, int mask) {
    return ibv_modify_srq(srq->real, attr, mask);
}
OLD(modify_srq)
static int old_query_srq(struct old_srq *srq, struct ibv_srq_attr *attr) { return ibv_query_srq(srq->real, attr); }
OLD(query_srq)
DESTROY(destroy_srq, old_srq, ibv_destroy_srq)

/* ---------------------------------------------------------------- queue pairs */

static struct old_qp *old_create_qp(struct old_pd *pd, struct old_qp_init_attr *attr) {
    struct ibv_qp_init_attr how = {.send_cq = REAL(attr->send_cq),
                                   .recv_cq = REAL(attr->recv_cq),
                                   .srq = REAL(attr->srq),
                                   .cap = attr->cap,
                                   .qp_type = attr->qp_type,
                                   .sq_sig_all = attr->sq_sig_all};
    struct ibv_qp *real = ibv_create_qp(pd->real, &how);
    WRAP(old_qp, real, ibv_destroy_qp, .context = pd->context, .qp_context = attr->qp_context, .pd = pd,
         .send_cq = attr->send_cq, .recv_cq = attr->recv_cq, .srq = attr->srq, .qp_num = real->qp_num,
         .state = real->state, .qp_type = attr->qp_type, .real = real);
    if (wrapped) {
        real->qp_context = wrapped;
        attr->cap = how.cap;
    }
    return wrapped;
}
OLD(create_qp)
DESTROY(destroy_qp, old_qp, ibv_destroy_qp)

static int old_modify_qp(struct old_qp *qp, struct ibv_qp_attr *attr, int mask) {
    int rc = ibv_modify_qp(qp->real, attr, mask);
    qp->state = qp->real->state;
    return rc;
}
OLD(modify_qp)

static int old_query_qp(struct old_qp *qp, struct ibv_qp_attr *attr, int mask, struct old_qp_init_attr *init) {
    struct ibv_qp_init_attr real;
    int rc = ibv_query_qp(qp->real, attr, mask, &real);
    if (rc)
        return rc;
    *init = (struct old_qp_init_attr){qp->qp_context, qp->send_cq, qp->recv_cq,    qp->srq,
                                      real.cap,       qp->qp_type, real.sq_sig_all};
    return 0;
}
OLD(query_qp)

static int old_attach_mcast(struct old_qp *qp, union ibv_gid *gid, uint16_t lid) {
    return ibv_attach_mcast(qp->real, gid, lid);
}
OLD(attach_mcast)
static int old_detach_mcast(struct old_qp *qp, union ibv_gid *gid, uint16_t lid) {
    return ibv_detach_mcast(qp->real, gid, lid);
}
OLD(detach_mcast)

/* ---------------------------------------------------------------- events */

static int old_get_async_event(struct old_context *context, struct ibv_async_event *event) {
    int rc = ibv_get_async_event(context->real, event);
    enum subject subject = rc ? OF_PORT : event_subject((int)event->event_type);
    if (subject == OF_CQ)
        event->element.cq = event->element.cq->cq_context;
    if (subject == OF_QP)
        event->element.qp = event->element.qp->qp_context;
    if (subject == OF_SRQ)
        event->element.srq = event->element.srq->srq_context;
    return rc;
}
OLD(get_async_event)

static void old_ack_async_event(struct ibv_async_event *event) {
    struct ibv_async_event real = *event;
    enum subject subject = event_subject((int)event->event_type);
    if (subject == OF_CQ)
        real.element.cq = ((struct old_cq *)(void *)event->element.cq)->real;
    if (subject == OF_QP)
        real.element.qp = ((struct old_qp *)(void *)event->element.qp)->real;
    if (subject == OF_SRQ)
        real.element.srq = ((struct old_srq *)(void *)event->element.srq)->real;
    ibv_ack_async_event(&real);
}
OLD(ack_async_event)
