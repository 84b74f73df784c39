/* SPDX-License-Identifier: Apache-2.0 */
#include "queue/wq.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"

#define MAX_MESSAGE 0x7FFFFFFFu /* 2 GiB - 1; IBA C9-5 allows 2^31, length fields of verbs are 32 bits */
#define WINDOW_ACCESS                                                                                                  \
    (RNIC_ACCESS_REMOTE_WRITE | RNIC_ACCESS_REMOTE_READ | RNIC_ACCESS_REMOTE_ATOMIC | RNIC_ACCESS_ZERO_BASED)
#define ALL_SEND_FLAGS (RNIC_SEND_FENCE | RNIC_SEND_SIGNALED | RNIC_SEND_SOLICITED | RNIC_SEND_INLINE)

int wq_init(struct wq *q, uint32_t max_wr, uint32_t max_sge, uint32_t max_inline, uint32_t wqe_bytes) {
    uint32_t room = max_sge * (uint32_t)sizeof(struct rnic_sge);
    uint32_t size = 1;
    while (size < max_wr)
        size *= 2;
    if (room < max_inline)
        room = max_inline;
    q->stride = (wqe_bytes + room + 63) & ~63u;
    q->mask = size - 1;
    q->max_wr = size;
    q->max_sge = max_sge;
    q->max_inline = max_inline;
    q->slots = aligned_alloc(64, (size_t)size * q->stride);
    if (!q->slots)
        return -ENOMEM;
    pthread_mutex_init(&q->lock, NULL);
    return 0;
}

void wq_free(struct wq *q) {
    if (q->slots)
        pthread_mutex_destroy(&q->lock);
    free(q->slots);
}

void wq_reset(struct wq *q) {
    atomic_store(&q->head, 0);
    atomic_store(&q->tail, 0);
    atomic_store(&q->freed, 0);
}

void wq_adopt(struct wq *q, struct wq *other, uint32_t elements) {
    uint8_t *slots = q->slots;
    q->slots = other->slots;
    other->slots = slots;
    q->mask = other->mask;
    q->max_wr = other->max_wr;
    atomic_store(&q->head, elements);
    atomic_store(&q->tail, 0);
    atomic_store(&q->freed, 0);
}

static bool type_is_datagram(int type) { return type == RNIC_QPT_UD || type == RNIC_QPT_GSI; }
static bool is_datagram(const struct wq *q) { return type_is_datagram(q->qp_type); }

static bool is_inline_opcode(int op) {
    return op == RNIC_WR_SEND || op == RNIC_WR_SEND_WITH_IMM || op == RNIC_WR_RDMA_WRITE ||
           op == RNIC_WR_RDMA_WRITE_WITH_IMM || op == RNIC_WR_SEND_WITH_INV || op == RNIC_WR_ATOMIC_WRITE;
}

static bool is_local(int op) { return op == RNIC_WR_LOCAL_INV || op == RNIC_WR_BIND_MW; }

static bool is_atomic(int op) { return op == RNIC_WR_ATOMIC_CMP_AND_SWP || op == RNIC_WR_ATOMIC_FETCH_AND_ADD; }

/* Sum of the elements' lengths; a length of 0 means 0 bytes. */
static uint64_t total_length(const struct rnic_sge *sge, int n) {
    uint64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += sge[i].length;
    return sum;
}

int sq_check_opcode(int qp_type, int opcode, struct rnic_err *err) {
    bool send = opcode == RNIC_WR_SEND || opcode == RNIC_WR_SEND_WITH_IMM;
    bool placement = qp_type == RNIC_QPT_RC && (opcode == RNIC_WR_ATOMIC_WRITE || opcode == RNIC_WR_FLUSH);
    if (type_is_datagram(qp_type) && !send)
        return fail(err, -EINVAL, "opcode %d: a datagram queue pair can SEND and SEND_WITH_IMM, nothing else", opcode);
    if (qp_type == RNIC_QPT_RAW_PACKET && opcode != RNIC_WR_SEND)
        return fail(err, opcode == RNIC_WR_TSO ? -EOPNOTSUPP : -EINVAL,
                    "opcode %d: a RAW_PACKET queue pair can SEND, nothing else (this device cuts up no large sends)",
                    opcode);
    if (qp_type == RNIC_QPT_UC && opcode > RNIC_WR_SEND_WITH_IMM && !is_local(opcode))
        return fail(err, -EINVAL,
                    "opcode %d: an unreliable connection can SEND, RDMA_WRITE, BIND_MW and LOCAL_INV, nothing else",
                    opcode);
    if (qp_type == RNIC_QPT_XRC_SEND &&
        (opcode == RNIC_WR_ATOMIC_WRITE || opcode == RNIC_WR_FLUSH)) /* A19: no opcodes */
        return fail(err, -EOPNOTSUPP, "opcode %d is not supported on an XRC queue pair, RC has it", opcode);
    if ((opcode < 0 || opcode > RNIC_WR_SEND_WITH_INV) && !placement)
        return fail(err, -EOPNOTSUPP, "opcode %d is not supported on an RC queue pair of this device", opcode);
    return 0;
}

/* IBA 11.4.1.1: destination and Q_Key of a datagram come with the work request, of XRC the peer's shared queue. */
static int check_destination(const struct wq *q, const struct rnic_send_wr *wr, struct rnic_err *err) {
    if (q->qp_type == RNIC_QPT_XRC_SEND && wr->qp_type.xrc.remote_srqn > 0xFFFFFF)
        return fail(err, -EINVAL, "remote_srqn is 0x%x; numbers of shared receive queues have 24 bits",
                    wr->qp_type.xrc.remote_srqn);
    if (!is_datagram(q))
        return 0;
    if (!wr->wr.ud.ah)
        return fail(err, -EINVAL, "a datagram needs an address handle: give wr.ud.ah, made with create_ah");
    if (rnic_pd_root(wr->wr.ud.ah->pd) != rnic_pd_root(q->pd))
        return fail(err, -EINVAL, "the address handle belongs to another protection domain than the queue pair");
    if (wr->wr.ud.remote_qpn > 0xFFFFFF)
        return fail(err, -EINVAL, "remote_qpn is 0x%x; queue pair numbers have 24 bits", wr->wr.ud.remote_qpn);
    return 0;
}

static int check_bind(const struct wq *q, const struct rnic_send_wr *wr, struct rnic_err *err) {
    const struct rnic_mw *mw = wr->bind_mw.mw;
    const struct rnic_mw_bind_info *info = &wr->bind_mw.bind_info;
    if (!mw)
        return fail(err, -EINVAL, "BIND_MW needs a memory window: give bind_mw.mw, made with alloc_mw");
    if (mw->ctx != q->pd->ctx || (info->mr && info->mr->ctx != q->pd->ctx))
        return fail(err, -EINVAL, "the memory window, or its region, belongs to another device than the queue pair");
    if (info->mw_access_flags & ~(uint32_t)WINDOW_ACCESS)
        return fail(
            err, -EINVAL,
            "mw_access_flags 0x%x: a window has REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC and ZERO_BASED, no other",
            info->mw_access_flags);
    if (!info->mr && (info->addr || info->length)) /* as libibverbs' ibv_bind_mw() */
        return fail(err, -EINVAL, "bind_info has addr or length, but no memory region");
    if ((mw->rkey ^ wr->bind_mw.rkey) >> 8)
        return fail(err, -EINVAL, "the new rkey 0x%x differs from 0x%x in more than its lower 8 bits: take inc_rkey()",
                    wr->bind_mw.rkey, mw->rkey);
    return 0;
}

static int check_local(const struct wq *q, const struct rnic_send_wr *wr, struct rnic_err *err) {
    if (wr->num_sge)
        return fail(err, -EINVAL, "opcode %d takes no scatter/gather elements", wr->opcode);
    return wr->opcode == RNIC_WR_BIND_MW ? check_bind(q, wr, err) : 0;
}

/* A19.4.3: what is flushed is memory of the peer, named by the request itself. */
static int check_flush(const struct rnic_send_wr *wr, struct rnic_err *err) {
    uint32_t known = RNIC_FLUSH_GLOBAL | RNIC_FLUSH_PERSISTENT;
    if (wr->num_sge)
        return fail(err, -EINVAL, "a FLUSH has no memory of its own: num_sge is %d, not 0", wr->num_sge);
    if (!wr->wr.flush.type || (wr->wr.flush.type & ~known))
        return fail(err, -EINVAL, "flush type 0x%x: GLOBAL (1), PERSISTENT (2) or both", wr->wr.flush.type);
    if (wr->wr.flush.level > RNIC_FLUSH_MR)
        return fail(err, -EINVAL, "flush level %u: RANGE (0) or MR (1)", wr->wr.flush.level);
    if (wr->wr.flush.length > MAX_MESSAGE)
        return fail(err, -EINVAL, "a FLUSH of %u bytes; the longest is 2 GiB - 1, or level MR", wr->wr.flush.length);
    return 0;
}

static int check_send(const struct wq *q, const struct rnic_send_wr *wr, uint64_t length, struct rnic_err *err) {
    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > q->max_sge)
        return fail(err, -EINVAL, "%d scatter/gather elements, max_send_sge is %u", wr->num_sge, q->max_sge);
    int rc = sq_check_opcode(q->qp_type, wr->opcode, err);
    if (!rc && wr->opcode == RNIC_WR_FLUSH)
        rc = check_flush(wr, err);
    if (!rc)
        rc = check_destination(q, wr, err);
    if (rc)
        return rc;
    uint32_t unknown = wr->send_flags & ~(uint32_t)ALL_SEND_FLAGS;
    if (unknown && !(unknown == RNIC_SEND_IP_CSUM && q->qp_type == RNIC_QPT_RAW_PACKET))
        return fail(err, -EOPNOTSUPP, "send flags 0x%x are not supported", unknown);
    if (is_local(wr->opcode))
        rc = check_local(q, wr, err);
    if (rc)
        return rc;
    if (length > MAX_MESSAGE)
        return fail(err, -EINVAL, "message of %llu bytes; the longest is 2 GiB - 1", (unsigned long long)length);
    if (!(wr->send_flags & RNIC_SEND_INLINE))
        return 0;
    if (!is_inline_opcode(wr->opcode))
        return fail(err, -EINVAL, "INLINE is for SEND, RDMA_WRITE and ATOMIC_WRITE only");
    if (length > q->max_inline)
        return fail(err, -EINVAL, "%llu bytes inline, max_inline_data is %u", (unsigned long long)length,
                    q->max_inline);
    return 0;
}

static void copy_inline(uint8_t *dst, const struct rnic_sge *sge, int n) {
    for (int i = 0; i < n; i++) {
        if (sge[i].length)
            memcpy(dst, (const void *)(uintptr_t)sge[i].addr, sge[i].length);
        dst += sge[i].length;
    }
}

/* From now on the window's key is the new one, for whoever posts (man ibv_bind_mw). */
static void fill_bind(struct send_wqe *wqe, const struct rnic_send_wr *wr) {
    const struct rnic_mw_bind_info *info = &wr->bind_mw.bind_info;
    wqe->window = wr->bind_mw.mw->rkey;
    wqe->new_key = wr->bind_mw.mw->rkey = wr->bind_mw.rkey;
    wqe->region = info->mr ? info->mr->lkey : 0;
    wqe->access = info->mw_access_flags;
    wqe->bind_addr = info->addr;
    wqe->bind_length = info->length;
}

static void fill_send(const struct wq *q, struct send_wqe *wqe, const struct rnic_send_wr *wr, uint32_t length) {
    *wqe = (struct send_wqe){.wr_id = wr->wr_id,
                             .imm = wr->imm_data,
                             .length = length,
                             .num_sge = (uint16_t)wr->num_sge,
                             .opcode = (uint8_t)wr->opcode,
                             .flags = (uint8_t)wr->send_flags};
    if (is_datagram(q)) {
        wqe->ah = (struct ah_head *)wr->wr.ud.ah;
        wqe->remote_qpn = wr->wr.ud.remote_qpn;
        wqe->remote_qkey = wr->wr.ud.remote_qkey;
        ah_hold(wqe->ah);
    } else if (is_atomic(wr->opcode)) {
        wqe->remote_addr = wr->wr.atomic.remote_addr;
        wqe->rkey = wr->wr.atomic.rkey;
        wqe->compare_add = wr->wr.atomic.compare_add;
        wqe->swap = wr->wr.atomic.swap;
    } else if (wr->opcode == RNIC_WR_BIND_MW) {
        fill_bind(wqe, wr);
    } else if (wr->opcode == RNIC_WR_FLUSH) {
        wqe->remote_addr = wr->wr.flush.remote_addr;
        wqe->rkey = wr->wr.flush.rkey;
        wqe->flush_length = wr->wr.flush.length;
        wqe->flush_type = wr->wr.flush.type;
        wqe->flush_level = wr->wr.flush.level;
    } else {
        wqe->remote_addr = wr->wr.rdma.remote_addr;
        wqe->rkey = wr->wr.rdma.rkey;
    }
    if (q->qp_type == RNIC_QPT_XRC_SEND)
        wqe->remote_srqn = wr->qp_type.xrc.remote_srqn;
    if (wr->send_flags & RNIC_SEND_INLINE)
        copy_inline((uint8_t *)wqe->sge, wr->sg_list, wr->num_sge);
    else if (wr->num_sge)
        memcpy(wqe->sge, wr->sg_list, (size_t)wr->num_sge * sizeof *wr->sg_list);
}

/* Fills elements from *next on, up to the first request that is refused; the queue is locked. */
static int fill_chain(struct wq *q, uint32_t *next, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad,
                      struct rnic_err *err) {
    int rc = 0;
    uint32_t head = *next;
    uint32_t freed = atomic_load_explicit(&q->freed, memory_order_acquire);
    for (; wr; wr = wr->next) {
        uint64_t length = total_length(wr->sg_list, wr->num_sge > 0 ? wr->num_sge : 0);
        rc = check_send(q, wr, length, err);
        if (!rc && head - freed >= q->max_wr)
            rc = fail(err, -ENOMEM,
                      "the send queue is full (max_send_wr %u): poll for completions first; unsignaled requests become "
                      "free with a later signaled one",
                      q->max_wr);
        if (rc) {
            *bad = wr;
            break;
        }
        fill_send(q, sq_wqe(q, head), wr, (uint32_t)length);
        head++;
    }
    *next = head;
    return rc;
}

int sq_post(struct wq *q, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad, struct rnic_err *err) {
    pthread_mutex_lock(&q->lock);
    uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
    int rc = fill_chain(q, &head, wr, bad, err);
    atomic_store(&q->head, head);
    pthread_mutex_unlock(&q->lock);
    return rc;
}

void sq_append(struct wq *q, const struct rnic_send_wr *wr, uint32_t length) {
    uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
    fill_send(q, sq_wqe(q, head), wr, length);
    atomic_store_explicit(&q->head, head + 1, memory_order_release);
}

static const struct rnic_send_wr *nth(const struct rnic_send_wr *wr, uint32_t n) {
    while (n--)
        wr = wr->next;
    return wr;
}

/* Takes back what fill_send() has done beside the element. */
static void unfill_send(const struct wq *q, const struct send_wqe *wqe, const struct rnic_send_wr *wr) {
    if (is_datagram(q))
        ah_drop(wqe->ah);
    if (wr->opcode == RNIC_WR_BIND_MW)
        wr->bind_mw.mw->rkey = wqe->window;
}

/* Nobody has seen the elements of a chain that fails. */
int sq_post_whole(struct wq *q, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad, struct rnic_err *err) {
    pthread_mutex_lock(&q->lock);
    uint32_t first = atomic_load_explicit(&q->head, memory_order_relaxed), head = first;
    int rc = fill_chain(q, &head, wr, bad, err);
    if (!rc)
        atomic_store(&q->head, head);
    while (rc && head-- != first) /* backwards: a window may be bound more than once */
        unfill_send(q, sq_wqe(q, head), nth(wr, head - first));
    pthread_mutex_unlock(&q->lock);
    return rc;
}

int rq_post(struct wq *q, const struct rnic_recv_wr *wr, const struct rnic_recv_wr **bad, struct rnic_err *err) {
    int rc = 0;
    pthread_mutex_lock(&q->lock);
    uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
    uint32_t freed = atomic_load_explicit(&q->freed, memory_order_acquire);
    for (; wr; wr = wr->next) {
        if (wr->num_sge < 0 || (uint32_t)wr->num_sge > q->max_sge)
            rc = fail(err, -EINVAL, "%d scatter/gather elements, max_recv_sge is %u", wr->num_sge, q->max_sge);
        else if (head - freed >= q->max_wr)
            rc =
                fail(err, -ENOMEM, "the receive queue is full (max_recv_wr %u): poll for completions first", q->max_wr);
        if (rc) {
            *bad = wr;
            break;
        }
        struct recv_wqe *wqe = rq_wqe(q, head);
        wqe->wr_id = wr->wr_id;
        wqe->num_sge = wr->num_sge;
        wqe->length = total_length(wr->sg_list, wr->num_sge);
        if (wr->num_sge)
            memcpy(wqe->sge, wr->sg_list, (size_t)wr->num_sge * sizeof *wr->sg_list);
        head++;
    }
    atomic_store(&q->head, head);
    pthread_mutex_unlock(&q->lock);
    return rc;
}

int wc_opcode_of(int wr_opcode) {
    static const uint8_t table[] = {
        [RNIC_WR_RDMA_WRITE] = RNIC_WCO_RDMA_WRITE,
        [RNIC_WR_RDMA_WRITE_WITH_IMM] = RNIC_WCO_RDMA_WRITE,
        [RNIC_WR_SEND] = RNIC_WCO_SEND,
        [RNIC_WR_SEND_WITH_IMM] = RNIC_WCO_SEND,
        [RNIC_WR_RDMA_READ] = RNIC_WCO_RDMA_READ,
        [RNIC_WR_ATOMIC_CMP_AND_SWP] = RNIC_WCO_COMP_SWAP,
        [RNIC_WR_ATOMIC_FETCH_AND_ADD] = RNIC_WCO_FETCH_ADD,
        [RNIC_WR_LOCAL_INV] = RNIC_WCO_LOCAL_INV,
        [RNIC_WR_BIND_MW] = RNIC_WCO_BIND_MW,
        [RNIC_WR_SEND_WITH_INV] = RNIC_WCO_SEND,
        [RNIC_WR_FLUSH] = RNIC_WCO_FLUSH,
        [RNIC_WR_ATOMIC_WRITE] = RNIC_WCO_ATOMIC_WRITE,
    };
    return table[wr_opcode];
}
