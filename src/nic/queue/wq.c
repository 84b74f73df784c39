/* SPDX-License-Identifier: Apache-2.0 */
#include "queue/wq.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"

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

/* A post that is refused meanwhile stores the head that it has read: under the lock both are of one moment. */
void wq_reset(struct wq *q) {
    pthread_mutex_lock(&q->lock);
    atomic_store(&q->head, 0);
    atomic_store(&q->tail, 0);
    atomic_store(&q->freed, 0);
    pthread_mutex_unlock(&q->lock);
}

void wq_await_posters(struct wq *q) {
    pthread_mutex_lock(&q->lock);
    pthread_mutex_unlock(&q->lock);
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

/* Does its owner's state allow posts? It may change at any time, but the owner waits for posters before it resets. */
static bool takes_posts(const struct wq *q) {
    return !q->state || atomic_load_explicit(q->state, memory_order_acquire) >= q->from;
}

static int no_posts(struct rnic_err *err) {
    return fail(err, -EINVAL, "another thread has reset the queue: nothing can be posted in this state");
}

const char *wr_opcode_name(int opcode) {
#define NAME(n, v) [v] = #n,
    static const char *const names[] = {RNIC_WR_OPCODES(NAME)};
#undef NAME
    bool known = opcode >= 0 && opcode < (int)(sizeof names / sizeof *names) && names[opcode];
    return known ? names[opcode] : "?";
}

int sq_check_opcode(const struct sq_rules *rules, int opcode, struct rnic_err *err) {
    bool can = opcode >= 0 && opcode < 32 && rules->operations >> opcode & 1;
    return can ? 0 : rules->refuse(opcode, err);
}

/* IBA 11.4.1.1: destination and Q_Key of a datagram come with the work request, of XRC the peer's shared queue. */
static int check_destination(const struct wq *q, const struct rnic_send_wr *wr, struct rnic_err *err) {
    if (q->rules->shared && wr->qp_type.xrc.remote_srqn > 0xFFFFFF)
        return fail(err, -EINVAL, "remote_srqn is 0x%x; numbers of shared receive queues have 24 bits",
                    wr->qp_type.xrc.remote_srqn);
    if (!q->rules->datagrams)
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
    if (info->mw_access_flags & ~(uint32_t)(WINDOW_ACCESS | RNIC_ACCESS_LOCAL_WRITE)) /* which means nothing here */
        return fail(
            err, -EINVAL,
            "mw_access_flags 0x%x: a window has REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC and ZERO_BASED, no other",
            info->mw_access_flags);
    if (!info->mr && (info->addr || info->length)) /* as libibverbs' ibv_bind_mw() */
        return fail(err, -EINVAL, "bind_info has addr or length, but no memory region");
    uint32_t key = window_key(mw);
    if ((key ^ wr->bind_mw.rkey) >> 8)
        return fail(err, -EINVAL, "the new rkey 0x%x differs from 0x%x in more than its lower 8 bits: take inc_rkey()",
                    wr->bind_mw.rkey, key);
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
    if (wr->wr.flush.length > SQ_MAX_MESSAGE)
        return fail(err, -EINVAL, "a FLUSH of %u bytes; the longest is 2 GiB - 1, or level MR", wr->wr.flush.length);
    return 0;
}

static int check_send(const struct wq *q, const struct rnic_send_wr *wr, struct rnic_err *err) {
    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > q->max_sge)
        return fail(err, -EINVAL, "%d scatter/gather elements, max_send_sge is %u", wr->num_sge, q->max_sge);
    int rc = sq_check_opcode(q->rules, wr->opcode, err);
    if (!rc && wr->opcode == RNIC_WR_FLUSH)
        rc = check_flush(wr, err);
    if (!rc)
        rc = check_destination(q, wr, err);
    if (rc)
        return rc;
    uint32_t unknown = wr->send_flags & ~(ALL_SEND_FLAGS | q->rules->flags);
    if (unknown)
        return fail(err, -EOPNOTSUPP, "send flags 0x%x are not supported", unknown);
    if (is_local(wr->opcode))
        rc = check_local(q, wr, err);
    if (rc)
        return rc;
    if ((wr->send_flags & RNIC_SEND_INLINE) && !is_inline_opcode(wr->opcode))
        return fail(err, -EINVAL, "INLINE is for SEND, RDMA_WRITE and ATOMIC_WRITE only");
    return 0;
}

/* ---------------------------------------------------------------- send */

/* The bytes themselves, into an element that nobody sees yet. */
static int fill_inline(const struct wq *q, struct send_wqe *wqe, const struct rnic_send_wr *wr, struct rnic_err *err) {
    uint8_t *to = (uint8_t *)wqe->sge;
    uint32_t most = q->max_inline;
    if (wr->opcode == RNIC_WR_ATOMIC_WRITE && most < sizeof(uint64_t)) /* an element has room for them */
        most = sizeof(uint64_t);
    for (int i = 0; i < wr->num_sge; i++) {
        struct rnic_sge sge;
        read_once(&sge, &wr->sg_list[i], sizeof sge);
        if (sge.length > most - wqe->length)
            return fail(err, -EINVAL, "%llu bytes inline, max_inline_data is %u",
                        (unsigned long long)total_length(wr->sg_list, wr->num_sge), q->max_inline);
        if (sge.length)
            memcpy(to + wqe->length, (const void *)(uintptr_t)sge.addr, sge.length);
        wqe->length += sge.length;
    }
    return 0;
}

static int fill_list(struct send_wqe *wqe, const struct rnic_send_wr *wr, struct rnic_err *err) {
    if (wr->num_sge)
        read_once(wqe->sge, wr->sg_list, (size_t)wr->num_sge * sizeof *wr->sg_list);
    uint64_t length = total_length(wqe->sge, wr->num_sge);
    if (length > SQ_MAX_MESSAGE)
        return fail(err, -EINVAL, "message of %llu bytes; the longest is 2 GiB - 1", (unsigned long long)length);
    wqe->length = (uint32_t)length;
    return 0;
}

/* From now on the window's key is the new one, for whoever posts (man ibv_bind_mw). */
static void fill_bind(struct send_wqe *wqe, const struct rnic_send_wr *wr) {
    const struct rnic_mw_bind_info *info = &wr->bind_mw.bind_info;
    wqe->binding = wr->bind_mw.mw;
    wqe->window = window_key(wr->bind_mw.mw);
    wqe->new_key = wr->bind_mw.rkey;
    set_window_key(wr->bind_mw.mw, wqe->new_key);
    wqe->region = info->mr ? info->mr->lkey : 0;
    wqe->access = info->mw_access_flags & WINDOW_ACCESS;
    wqe->bind_addr = info->addr;
    wqe->bind_length = info->length;
}

/* Of a request that was read and checked. Nothing is held if it fails. */
static int fill_send(const struct wq *q, struct send_wqe *wqe, const struct rnic_send_wr *wr, struct rnic_err *err) {
    *wqe = (struct send_wqe){.wr_id = wr->wr_id,
                             .imm = wr->imm_data,
                             .num_sge = (uint16_t)wr->num_sge,
                             .opcode = (uint8_t)wr->opcode,
                             .flags = (uint8_t)wr->send_flags};
    int rc = wr->send_flags & RNIC_SEND_INLINE ? fill_inline(q, wqe, wr, err) : fill_list(wqe, wr, err);
    if (rc)
        return rc;
    if (q->rules->datagrams) {
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
    if (q->rules->shared)
        wqe->remote_srqn = wr->qp_type.xrc.remote_srqn;
    return 0;
}

/* Checks one and fills the element at head. */
static int put_send(struct wq *q, uint32_t head, uint32_t freed, const struct rnic_send_wr *wr, struct rnic_err *err) {
    int rc = takes_posts(q) ? check_send(q, wr, err) : no_posts(err);
    if (rc)
        return rc;
    if (head - freed >= q->max_wr)
        return fail(err, -ENOMEM,
                    "the send queue is full (max_send_wr %u): poll for completions first; unsignaled requests become "
                    "free with a later signaled one",
                    q->max_wr);
    return fill_send(q, sq_wqe(q, head), wr, err);
}

/* Fills elements from *next on, up to the first request that is refused; the queue is locked. */
static int fill_chain(struct wq *q, uint32_t *next, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad,
                      struct rnic_err *err) {
    uint32_t freed = atomic_load_explicit(&q->freed, memory_order_acquire);
    struct rnic_send_wr one;
    for (; wr; wr = one.next) {
        wr_read(&one, wr);
        int rc = put_send(q, *next, freed, &one, err);
        if (rc) {
            *bad = wr;
            return rc;
        }
        ++*next;
    }
    return 0;
}

int sq_post(struct wq *q, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad, struct rnic_err *err) {
    pthread_mutex_lock(&q->lock);
    uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
    int rc = fill_chain(q, &head, wr, bad, err);
    atomic_store(&q->head, head);
    pthread_mutex_unlock(&q->lock);
    return rc;
}

int sq_append(struct wq *q, const struct rnic_send_wr *wr) {
    uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
    int rc = fill_send(q, sq_wqe(q, head), wr, NULL);
    if (!rc)
        atomic_store_explicit(&q->head, head + 1, memory_order_release);
    return rc;
}

/* Takes back what fill_send() has done beside the element. */
static void unfill_send(const struct wq *q, const struct send_wqe *wqe) {
    if (q->rules->datagrams)
        ah_drop(wqe->ah);
    if (wqe->opcode == RNIC_WR_BIND_MW)
        set_window_key(wqe->binding, wqe->window);
}

/* Nobody has seen the elements of a chain that fails. */
int sq_post_whole(struct wq *q, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad, struct rnic_err *err) {
    pthread_mutex_lock(&q->lock);
    uint32_t first = atomic_load_explicit(&q->head, memory_order_relaxed), head = first;
    int rc = fill_chain(q, &head, wr, bad, err);
    if (!rc)
        atomic_store(&q->head, head);
    while (rc && head-- != first) /* backwards: a window may be bound more than once */
        unfill_send(q, sq_wqe(q, head));
    pthread_mutex_unlock(&q->lock);
    return rc;
}

/* ---------------------------------------------------------------- a piece and a word */

#define PAIR_MOST 65536u /* bytes of a piece that grows: what is sent in one turn */

struct pair {
    struct rnic_send_wr piece, word;
    struct rnic_sge at, bytes; /* of the piece, and of the word */
};

static bool pair_read(struct pair *pair, const struct rnic_send_wr *wr) {
    wr_read(&pair->piece, wr);
    if (!pair->piece.next)
        return false;
    wr_read(&pair->word, pair->piece.next);
    if (pair->piece.opcode != RNIC_WR_RDMA_WRITE || pair->piece.send_flags || pair->piece.num_sge != 1 ||
        pair->word.opcode != RNIC_WR_RDMA_WRITE || pair->word.send_flags != RNIC_SEND_INLINE ||
        pair->word.num_sge != 1 || pair->word.next)
        return false;
    read_once(&pair->at, pair->piece.sg_list, sizeof pair->at);
    read_once(&pair->bytes, pair->word.sg_list, sizeof pair->bytes);
    pair->piece.sg_list = &pair->at;
    pair->word.sg_list = &pair->bytes;
    return pair->bytes.length == sizeof(uint64_t);
}

static bool is_plain_write(const struct send_wqe *wqe, uint8_t flags) {
    return wqe->opcode == RNIC_WR_RDMA_WRITE && wqe->flags == flags && wqe->num_sge == 1;
}

/* Does the pair go on where the last two elements end? */
static bool goes_on(const struct send_wqe *piece, const struct send_wqe *word, const struct pair *pair) {
    const struct rnic_sge *at = piece->sge;
    return !piece->started && is_plain_write(piece, 0) && is_plain_write(word, RNIC_SEND_INLINE) &&
           at->lkey == pair->at.lkey && at->addr + at->length == pair->at.addr &&
           piece->rkey == pair->piece.wr.rdma.rkey &&
           piece->remote_addr + at->length == pair->piece.wr.rdma.remote_addr &&
           word->rkey == pair->word.wr.rdma.rkey && word->remote_addr == pair->word.wr.rdma.remote_addr &&
           word->length == sizeof(uint64_t) && pair->at.length <= PAIR_MOST &&
           at->length <= PAIR_MOST - pair->at.length;
}

static bool join(struct wq *q, uint32_t head, const struct pair *pair) {
    if (head - wq_tail(q) < 2)
        return false;
    struct send_wqe *piece = sq_wqe(q, head - 2), *word = sq_wqe(q, head - 1);
    if (!goes_on(piece, word, pair) || fill_send(q, word, &pair->word, NULL))
        return false;
    word->asks = true;
    piece->wr_id = pair->piece.wr_id;
    piece->length = piece->sge[0].length += pair->at.length;
    return true;
}

bool sq_awaits(const struct wq *q) {
    uint32_t head = wq_head(q);
    const struct send_wqe *newest = sq_wqe(q, head - 1);
    return head != wq_tail(q) && (newest->asks || newest->flags & RNIC_SEND_SIGNALED);
}

bool sq_post_pair(struct wq *q, const struct rnic_send_wr *wr) {
    struct pair pair;
    if (q->rules->shared || !pair_read(&pair, wr) || pthread_mutex_trylock(&q->lock))
        return false;
    uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
    uint32_t freed = atomic_load_explicit(&q->freed, memory_order_acquire);
    bool done = takes_posts(q) && join(q, head, &pair);
    if (!done && !put_send(q, head, freed, &pair.piece, NULL) && !put_send(q, head + 1, freed, &pair.word, NULL)) {
        sq_wqe(q, head + 1)->asks = true;
        atomic_store(&q->head, head + 2);
        done = true;
    }
    pthread_mutex_unlock(&q->lock);
    return done;
}

/* ---------------------------------------------------------------- receive */

static int put_recv(struct wq *q, uint32_t head, uint32_t freed, const struct rnic_recv_wr *wr, struct rnic_err *err) {
    if (!takes_posts(q))
        return no_posts(err);
    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > q->max_sge)
        return fail(err, -EINVAL, "%d scatter/gather elements, max_recv_sge is %u", wr->num_sge, q->max_sge);
    if (head - freed >= q->max_wr)
        return fail(err, -ENOMEM, "the receive queue is full (max_recv_wr %u): poll for completions first", q->max_wr);
    struct recv_wqe *wqe = rq_wqe(q, head);
    wqe->wr_id = wr->wr_id;
    wqe->num_sge = wr->num_sge;
    if (wr->num_sge)
        read_once(wqe->sge, wr->sg_list, (size_t)wr->num_sge * sizeof *wr->sg_list);
    wqe->length = total_length(wqe->sge, wr->num_sge);
    return 0;
}

int rq_post(struct wq *q, const struct rnic_recv_wr *wr, const struct rnic_recv_wr **bad, struct rnic_err *err) {
    int rc = 0;
    pthread_mutex_lock(&q->lock);
    uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
    uint32_t freed = atomic_load_explicit(&q->freed, memory_order_acquire);
    struct rnic_recv_wr one;
    for (; wr; wr = one.next, head++) {
        read_once(&one, wr, sizeof one);
        rc = put_recv(q, head, freed, &one, err);
        if (rc) {
            *bad = wr;
            break;
        }
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
    return (size_t)wr_opcode < sizeof table / sizeof *table ? table[wr_opcode] : RNIC_WCO_SEND;
}
