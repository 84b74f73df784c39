/* SPDX-License-Identifier: Apache-2.0
 *
 * The extended queue pair (man ibv_wr_post): work requests are built call by call between wr_start() and wr_complete(),
 * which posts all of them or none.  The thread that has called wr_start() has the builder until wr_complete() or wr_abort().
 */
#include "lib.h"

#define FIRST_ROOM 16

/* A request under construction, and what it points to by place, since the memory of the lists moves when they grow. */
struct draft {
    struct rnic_send_wr wr;
    size_t sge_at;
    bool copied; /* its bytes are the builder's own, and its element has their place */
};

struct builder {
    pthread_mutex_t lock;
    struct draft *drafts;
    struct rnic_sge *sges;
    uint8_t *bytes; /* inline data: sges name it by place until wr_complete() */
    size_t ndrafts, nsges, nbytes, draft_room, sge_room, byte_room;
    uint32_t most_sge, most_inline; /* of one request: what its queue pair was granted */
    int error;                      /* the first that building met, and */
    const char *why;                /* what it was, in words */
};

static struct builder *builder_of(struct ibv_qp_ex *pub) { return ((struct qp *)pub)->builder; }

static void refuse(struct builder *b, int error, const char *why) {
    if (b->error)
        return;
    b->error = error;
    b->why = why;
}

/* Room for n more of size bytes each, behind used of them: false, and the error, when memory is short. */
static bool make_room(struct builder *b, void **list, size_t *room, size_t used, size_t n, size_t size) {
    size_t want = *room ? *room : FIRST_ROOM;
    while (want < used + n)
        want *= 2;
    if (want == *room)
        return true;
    void *bigger = realloc(*list, want * size);
    if (!bigger) {
        refuse(b, ENOMEM, "no memory");
        return false;
    }
    *list = bigger;
    *room = want;
    return true;
}

static struct rnic_send_wr *begin(struct ibv_qp_ex *pub, int opcode) {
    struct builder *b = builder_of(pub);
    static _Thread_local struct rnic_send_wr nowhere;
    if (!make_room(b, (void **)&b->drafts, &b->draft_room, b->ndrafts, 1, sizeof *b->drafts))
        return &nowhere;
    struct draft *draft = &b->drafts[b->ndrafts++];
    *draft =
        (struct draft){.wr = {.wr_id = pub->wr_id, .opcode = opcode, .send_flags = pub->wr_flags}, .sge_at = b->nsges};
    return &draft->wr;
}

static struct draft *last(struct builder *b) {
    if (!b->ndrafts)
        refuse(b, EINVAL, "bytes or an address, and no request that they are for");
    return b->ndrafts ? &b->drafts[b->ndrafts - 1] : NULL;
}

/* ---------------------------------------------------------------- operations */

static void rdma_to(struct rnic_send_wr *wr, uint32_t rkey, uint64_t addr) {
    wr->wr.rdma.remote_addr = addr;
    wr->wr.rdma.rkey = rkey;
}

static void wr_send(struct ibv_qp_ex *qp) { begin(qp, RNIC_WR_SEND); }
static void wr_send_imm(struct ibv_qp_ex *qp, __be32 imm) { begin(qp, RNIC_WR_SEND_WITH_IMM)->imm_data = imm; }
static void wr_send_inv(struct ibv_qp_ex *qp, uint32_t rkey) {
    begin(qp, RNIC_WR_SEND_WITH_INV)->invalidate_rkey = rkey;
}
static void wr_local_inv(struct ibv_qp_ex *qp, uint32_t rkey) { begin(qp, RNIC_WR_LOCAL_INV)->invalidate_rkey = rkey; }
static void wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr) {
    rdma_to(begin(qp, RNIC_WR_RDMA_READ), rkey, addr);
}
static void wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr) {
    rdma_to(begin(qp, RNIC_WR_RDMA_WRITE), rkey, addr);
}
static void wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, __be32 imm) {
    struct rnic_send_wr *wr = begin(qp, RNIC_WR_RDMA_WRITE_WITH_IMM);
    rdma_to(wr, rkey, addr);
    wr->imm_data = imm;
}

static void atomic(struct ibv_qp_ex *qp, int opcode, uint32_t rkey, uint64_t addr, uint64_t compare_add,
                   uint64_t swap) {
    struct rnic_send_wr *wr = begin(qp, opcode);
    wr->wr.atomic.remote_addr = addr;
    wr->wr.atomic.rkey = rkey;
    wr->wr.atomic.compare_add = compare_add;
    wr->wr.atomic.swap = swap;
}
static void wr_atomic_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap) {
    atomic(qp, RNIC_WR_ATOMIC_CMP_AND_SWP, rkey, addr, compare, swap);
}
static void wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, uint64_t add) {
    atomic(qp, RNIC_WR_ATOMIC_FETCH_AND_ADD, rkey, addr, add, 0);
}

static void wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info) {
    struct rnic_send_wr *wr = begin(qp, RNIC_WR_BIND_MW);
    wr->bind_mw.mw = NIC(mw, mw);
    wr->bind_mw.rkey = rkey;
    wr->bind_mw.bind_info =
        (struct rnic_mw_bind_info){NIC(mr, info->mr), info->addr, info->length, info->mw_access_flags};
}

static void set_sge_list(struct ibv_qp_ex *pub, size_t n, const struct ibv_sge *list);
static void set_inline(struct ibv_qp_ex *pub, void *addr, size_t length);

static void wr_atomic_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, const void *value) {
    rdma_to(begin(qp, RNIC_WR_ATOMIC_WRITE), rkey, addr);
    set_inline(qp, (void *)value, 8);
}

static void wr_flush(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, size_t length, uint8_t type, uint8_t level) {
    struct rnic_send_wr *wr = begin(qp, RNIC_WR_FLUSH);
    wr->wr.flush.remote_addr = addr;
    wr->wr.flush.length = (uint32_t)length;
    wr->wr.flush.rkey = rkey;
    wr->wr.flush.type = type;
    wr->wr.flush.level = level;
    if (length > UINT32_MAX)
        refuse(builder_of(qp), EINVAL, "a FLUSH of more than 4 GiB");
}

/* ---------------------------------------------------------------- what they carry, and whom they are for */

static void set_ud_addr(struct ibv_qp_ex *pub, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey) {
    struct draft *draft = last(builder_of(pub));
    if (!draft)
        return;
    draft->wr.wr.ud.ah = NIC(ah, ah);
    draft->wr.wr.ud.remote_qpn = qpn;
    draft->wr.wr.ud.remote_qkey = qkey;
}

static void set_xrc_srqn(struct ibv_qp_ex *pub, uint32_t srqn) {
    struct draft *draft = last(builder_of(pub));
    if (draft)
        draft->wr.qp_type.xrc.remote_srqn = srqn;
}

static void set_sge_list(struct ibv_qp_ex *pub, size_t n, const struct ibv_sge *list) {
    struct builder *b = builder_of(pub);
    struct draft *draft = last(b);
    if (n > b->most_sge)
        refuse(b, EINVAL, "more scatter/gather elements than max_send_sge");
    if (!draft || b->error || !make_room(b, (void **)&b->sges, &b->sge_room, b->nsges, n, sizeof *b->sges))
        return;
    memcpy(b->sges + b->nsges, list, n * sizeof *list);
    draft->sge_at = b->nsges;
    draft->copied = false;
    b->nsges += n;
    draft->wr.num_sge = (int)n;
}

static void set_sge(struct ibv_qp_ex *pub, uint32_t lkey, uint64_t addr, uint32_t length) {
    const struct ibv_sge one = {addr, length, lkey};
    set_sge_list(pub, 1, &one);
}

/* The bytes are copied now: the program may change them at once.  More than the queue pair takes are not, however many. */
static void set_inline_list(struct ibv_qp_ex *pub, size_t n, const struct ibv_data_buf *list) {
    struct builder *b = builder_of(pub);
    size_t from = b->nbytes;
    for (size_t i = 0; i < n; i++) {
        if (list[i].length > b->most_inline - (b->nbytes - from))
            refuse(b, EINVAL, "more bytes inline than max_inline_data");
        if (!last(b) || b->error || !make_room(b, (void **)&b->bytes, &b->byte_room, b->nbytes, list[i].length, 1))
            return;
        memcpy(b->bytes + b->nbytes, list[i].addr, list[i].length);
        b->nbytes += list[i].length;
    }
    const struct ibv_sge all = {from, (uint32_t)(b->nbytes - from), 0};
    set_sge_list(pub, all.length ? 1 : 0, &all);
    struct draft *draft = last(b);
    if (!draft || b->error)
        return;
    draft->copied = all.length > 0;
    draft->wr.send_flags |= IBV_SEND_INLINE;
}

static void set_inline(struct ibv_qp_ex *pub, void *addr, size_t length) {
    const struct ibv_data_buf one = {addr, length};
    set_inline_list(pub, 1, &one);
}

/* ---------------------------------------------------------------- begin and end */

static void reset(struct builder *b) {
    b->ndrafts = b->nsges = b->nbytes = 0;
    b->error = 0;
    b->why = NULL;
}

static void wr_start(struct ibv_qp_ex *pub) {
    pthread_mutex_lock(&builder_of(pub)->lock);
    reset(builder_of(pub));
}

static void wr_abort(struct ibv_qp_ex *pub) { pthread_mutex_unlock(&builder_of(pub)->lock); }

/* Places become addresses, now that nothing moves any more. */
static void link_up(struct builder *b) {
    for (size_t i = 0; i < b->ndrafts; i++) {
        struct draft *d = &b->drafts[i];
        d->wr.sg_list = d->wr.num_sge ? b->sges + d->sge_at : NULL;
        d->wr.next = i + 1 < b->ndrafts ? &b->drafts[i + 1].wr : NULL;
        if (d->copied)
            d->wr.sg_list->addr = (uintptr_t)b->bytes + d->wr.sg_list->addr;
    }
}

static int wr_complete(struct ibv_qp_ex *pub) {
    struct qp *qp = (struct qp *)pub;
    struct builder *b = qp->builder;
    const struct rnic_send_wr *bad;
    struct rnic_err err = {0};
    const char *why = b->why;
    int rc = -b->error;
    if (!rc && b->ndrafts) {
        link_up(b);
        rc = FAILS(post_send_whole)
                 ?: CALL_BY(QUIETLY, context_of(pub->qp_base.context)->ops, post_send_whole, qp->nic, &b->drafts->wr,
                            &bad, &err);
    }
    pthread_mutex_unlock(&b->lock);
    if (!rc)
        return 0;
    rc = abs(why ? rc : as_drivers_refuse(rc));
    explain_refused("wr_complete", pub->qp_base.qp_num, rc, why ? why : err.text);
    return errno = rc;
}

/* ---------------------------------------------------------------- */

#define OPERATIONS(X)                                                                                                  \
    X(RDMA_WRITE, wr_rdma_write)                                                                                       \
    X(RDMA_WRITE_WITH_IMM, wr_rdma_write_imm)                                                                          \
    X(SEND, wr_send)                                                                                                   \
    X(SEND_WITH_IMM, wr_send_imm)                                                                                      \
    X(RDMA_READ, wr_rdma_read)                                                                                         \
    X(ATOMIC_CMP_AND_SWP, wr_atomic_cmp_swp)                                                                           \
    X(ATOMIC_FETCH_AND_ADD, wr_atomic_fetch_add)                                                                       \
    X(LOCAL_INV, wr_local_inv)                                                                                         \
    X(BIND_MW, wr_bind_mw)                                                                                             \
    X(SEND_WITH_INV, wr_send_inv)                                                                                      \
    X(ATOMIC_WRITE, wr_atomic_write) X(FLUSH, wr_flush)

/* An operation that was not asked for has no function. */
static void set_operations(struct ibv_qp_ex *pub, uint64_t flags) {
#define SET(flag, name)                                                                                                \
    if (flags & IBV_QP_EX_WITH_##flag)                                                                                 \
        pub->name = name;
    OPERATIONS(SET)
#undef SET
}

int builder_add(struct qp *qp, uint64_t send_ops_flags) {
    struct ibv_qp_ex *pub = &qp->pub;
    qp->builder = calloc(1, sizeof *qp->builder);
    if (!qp->builder)
        return -ENOMEM;
    pthread_mutex_init(&qp->builder->lock, NULL);
    set_operations(pub, send_ops_flags);
    pub->wr_set_ud_addr = set_ud_addr;
    pub->wr_set_xrc_srqn = set_xrc_srqn;
    pub->wr_set_inline_data = set_inline;
    pub->wr_set_inline_data_list = set_inline_list;
    pub->wr_set_sge = set_sge;
    pub->wr_set_sge_list = set_sge_list;
    pub->wr_start = wr_start;
    pub->wr_complete = wr_complete;
    pub->wr_abort = wr_abort;
    return 0;
}

/* An ATOMIC WRITE has its 8 bytes inline, also where max_inline_data is less. */
void builder_grant(struct qp *qp, const struct rnic_qp_cap *cap) {
    if (!qp->builder)
        return;
    qp->builder->most_sge = cap->max_send_sge;
    qp->builder->most_inline = cap->max_inline_data < 8 ? 8 : cap->max_inline_data;
}

void builder_free(struct qp *qp) {
    struct builder *b = qp->builder;
    if (!b)
        return;
    free(b->drafts);
    free(b->sges);
    free(b->bytes);
    pthread_mutex_destroy(&b->lock);
    free(b);
    qp->builder = NULL;
}
