/* SPDX-License-Identifier: Apache-2.0 */
#include "roce/direct.h"

#include <string.h>

#include "base/guard.h"
#include "base/ordered.h"
#include "mem/remote.h"

/* A copy by the kernel takes some 2 us: less than to wake the peer's engine, but more than a packet for one that is awake.  So
 * long messages are copied, and short ones of a program that waits for each; one that keeps many under way sends packets. */
#define PROCESS_MIN 16384      /* bytes of a long one */
#define PROCESS_FEW 64         /* that the program has not polled yet */
#define DIRECT_MAX (16u << 20) /* more would keep the device for long, and whoever wants the region back */

/* What an operation, of those that can be posted, needs at the peer's; 0: it needs the peer. */
static uint32_t right_of(int opcode) {
    static const uint32_t table[] = {
        [RNIC_WR_RDMA_WRITE] = RNIC_ACCESS_REMOTE_WRITE,
        [RNIC_WR_RDMA_READ] = RNIC_ACCESS_REMOTE_READ | STORE_ANSWERS,
        [RNIC_WR_ATOMIC_WRITE] = RNIC_ACCESS_REMOTE_WRITE | STORE_ANSWERS,
        [RNIC_WR_ATOMIC_CMP_AND_SWP] = RNIC_ACCESS_REMOTE_ATOMIC | STORE_ANSWERS,
        [RNIC_WR_ATOMIC_FETCH_AND_ADD] = RNIC_ACCESS_REMOTE_ATOMIC | STORE_ANSWERS,
    };
    return (size_t)opcode < sizeof table / sizeof *table ? table[opcode] : 0;
}

static int gather(struct qp *qp, const struct send_wqe *wqe, uint8_t *to) {
    if (wqe->flags & RNIC_SEND_INLINE) {
        return guard_copy(to, wqe->sge, wqe->length) ? 0 : RNIC_VE_RKEY_UNMAPPED;
    }
    return sge_gather(&qp->nic->mrs, qp->pub.pd, wqe->sge, wqe->num_sge, 0, to, wqe->length, NULL);
}

static int scatter(struct qp *qp, const struct send_wqe *wqe, const void *from) {
    return sge_scatter(&qp->nic->mrs, qp->pub.pd, wqe->sge, wqe->num_sge, 0, from, wqe->length);
}

static struct word_op word_op_of(int opcode, uint64_t compare_add, uint64_t swap) {
    if (opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD)
        return (struct word_op){WORD_ADD, compare_add, 0};
    return (struct word_op){WORD_CMP_SWAP, swap, compare_add};
}

/* The place of its result is the device's meanwhile.  It is found to be there first: the word is to be changed once. */
static int atomic(struct qp *qp, const struct send_wqe *wqe, uint64_t *word) {
    const struct word_op op = word_op_of(wqe->opcode, wqe->compare_add, wqe->swap);
    uint64_t was;
    int ve = sge_gather(&qp->nic->mrs, qp->pub.pd, wqe->sge, wqe->num_sge, 0, (uint8_t *)&was, sizeof was, NULL);
    if (!ve)
        ve = scatter(qp, wqe, &was);
    if (!ve)
        ve = guard_word(&op, word, &was) ? scatter(qp, wqe, &was) : RNIC_VE_RKEY_UNMAPPED;
    return ve;
}

static int atomic_write(struct qp *qp, const struct send_wqe *wqe, uint64_t *word) {
    struct word_op op = {.kind = WORD_STORE};
    uint64_t was;
    int ve = gather(qp, wqe, (uint8_t *)&op.operand);
    if (!ve && !guard_word(&op, word, &was))
        ve = RNIC_VE_RKEY_UNMAPPED;
    return ve;
}

static int carry_out(struct qp *qp, const struct send_wqe *wqe, uint8_t *at) {
    switch (wqe->opcode) {
    case RNIC_WR_RDMA_WRITE:
        return gather(qp, wqe, at);
    case RNIC_WR_RDMA_READ:
        return scatter(qp, wqe, at);
    case RNIC_WR_ATOMIC_WRITE:
        return atomic_write(qp, wqe, (uint64_t *)(void *)at);
    default:
        return atomic(qp, wqe, (uint64_t *)(void *)at);
    }
}

/* Of what is read the last word is to be seen last: it is a piece of its own. */
static int set_apart_last_word(struct iovec *pieces, int n) {
    while (n > 1 && !pieces[n - 1].iov_len)
        n--;
    struct iovec *last = &pieces[n - 1];
    size_t first = last->iov_len ? ordered_words(last->iov_base, last->iov_len) : 0;
    if (!first)
        return n;
    pieces[n] = (struct iovec){(uint8_t *)last->iov_base + first, last->iov_len - first};
    last->iov_len = first;
    return n + 1;
}

struct transfer { /* of the peer's ordinary memory, by the kernel */
    int opcode;
    uint32_t length, rkey, right;
    uint64_t addr;
};

/* pieces: of ours, with room for one more */
static bool by_process(struct qp *qp, const struct transfer *t, struct iovec *pieces, int n) {
    if (t->opcode == RNIC_WR_RDMA_READ)
        n = set_apart_last_word(pieces, n);
    return remote_copy(qp->remote, &qp->remote_qp, qp->attr.dest_qp_num, qp->pub.qp_num, t->rkey, t->addr, t->length,
                       t->right, pieces, n);
}

static bool process_pays(struct qp *qp, int opcode, uint32_t length) {
    bool moves = opcode == RNIC_WR_RDMA_WRITE || opcode == RNIC_WR_RDMA_READ;
    return moves && (length >= PROCESS_MIN || wq_head(&qp->sq) - atomic_load(&qp->sq.freed) <= PROCESS_FEW);
}

static bool element_by_process(struct qp *qp, const struct send_wqe *wqe, uint32_t right) {
    struct iovec pieces[SGE_MAX + 1] = {{(void *)(uintptr_t)wqe->sge, wqe->length}};
    bool inlined = wqe->flags & RNIC_SEND_INLINE;
    if (!process_pays(qp, wqe->opcode, wqe->length))
        return false;
    for (int i = 0; !inlined && i < wqe->num_sge; i++) {
        uint8_t *ptr;
        if (mr_local(&qp->nic->mrs, qp->pub.pd, &wqe->sge[i], 0, &ptr) || !ptr)
            return false;
        pieces[i] = (struct iovec){ptr, wqe->sge[i].length};
    }
    const struct transfer t = {wqe->opcode, wqe->length, wqe->rkey, right, wqe->remote_addr};
    return by_process(qp, &t, pieces, inlined ? 1 : wqe->num_sge);
}

static void note_copied(struct qp *qp, const struct send_wqe *wqe) {
    COUNT(qp, local_direct);
    qp->nic->copied += wqe->length;
}

/* The memory of this end was found good, but of pages that may be missing only a copy tells; then the request does, too. */
bool direct_execute(struct qp *qp, struct send_wqe *wqe) {
    uint32_t right = right_of(wqe->opcode);
    bool words = right & RNIC_ACCESS_REMOTE_ATOMIC || wqe->opcode == RNIC_WR_ATOMIC_WRITE;
    if (!right || !wqe->length || wqe->length > DIRECT_MAX)
        return false;
    uint8_t *at = remote_enter(qp->remote, &qp->remote_qp, qp->attr.dest_qp_num, qp->pub.qp_num, wqe->rkey,
                               wqe->remote_addr, wqe->length, right);
    if (!at) {
        bool copied = element_by_process(qp, wqe, right);
        if (copied)
            note_copied(qp, wqe);
        return copied;
    }
    bool aligned = !words || !(((uintptr_t)at | wqe->remote_addr) % sizeof(uint64_t));
    int ve = aligned ? carry_out(qp, wqe, at) : RNIC_VE_ATOMIC_ALIGN;
    remote_leave(qp->remote);
    if (ve)
        return false;
    note_copied(qp, wqe);
    return true;
}

static bool has_way(const struct qp *qp) {
    return qp->remote && qp->ib.service != OPC_UC && !qp->nic->faulty && !qp->pace.rate;
}

bool direct_is_next(struct qp *qp) {
    const struct requester *req = &rc_of(qp)->req;
    return has_way(qp) && req->una == req->max_psn && req->una != qp->attr.sq_psn;
}

/* Else a queue that is never empty would send requests for ever.  Not behind a SEND, which is often followed by more
 * messages, unless the copy takes longer than its answer; nor when no answer was asked for. */
bool direct_waits(struct qp *qp, const struct send_wqe *wqe) {
    const struct requester *req = &rc_of(qp)->req;
    if (!has_way(qp) || req->una == req->max_psn || req->unasked || !right_of(wqe->opcode) || wqe->length > DIRECT_MAX)
        return false;
    bool pays = wqe->length >= PROCESS_MIN || right_of(sq_wqe(&qp->sq, req->last)->opcode);
    return pays && remote_maps(qp->remote, wqe->rkey);
}

/* ---------------------------------------------------------------- at once */

/* A queue that somebody else posts to is left to him: a chain may take long, and others wait for the device's lock. */

struct ask { /* of a work request with one element that this way is for */
    uint32_t right, rkey;
    uint64_t addr;
    uint8_t *ours;
};

static bool is_atomic(const struct rnic_send_wr *wr) {
    return wr->opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD || wr->opcode == RNIC_WR_ATOMIC_CMP_AND_SWP;
}

/* Whatever is not quite usual, or wrong, takes the long way. */
static bool understand(struct qp *qp, const struct rnic_send_wr *wr, struct ask *ask) {
    bool fetches = wr->opcode != RNIC_WR_RDMA_WRITE, atomics = is_atomic(wr);
    const struct rnic_sge *sge = wr->sg_list;
    *ask = (struct ask){.right = right_of(wr->opcode),
                        .rkey = atomics ? wr->wr.atomic.rkey : wr->wr.rdma.rkey,
                        .addr = atomics ? wr->wr.atomic.remote_addr : wr->wr.rdma.remote_addr,
                        .ours = (uint8_t *)(uintptr_t)sge->addr};
    if (wr->send_flags & ~(uint32_t)(RNIC_SEND_SIGNALED | RNIC_SEND_FENCE | RNIC_SEND_INLINE))
        return false;
    if (!sge->length || sge->length > DIRECT_MAX || (atomics && sge->length != sizeof(uint64_t)) ||
        (fetches && !qp->attr.max_rd_atomic))
        return false;
    if (wr->send_flags & RNIC_SEND_INLINE) /* of any memory */
        return !fetches && sge->length <= qp->sq.max_inline;
    return !mr_local(&qp->nic->mrs, qp->pub.pd, sge, fetches ? RNIC_ACCESS_LOCAL_WRITE : 0, &ask->ours) && ask->ours;
}

/* As in atomic(). */
static void change_word(void *theirs, const void *ours, size_t n, void *op) {
    volatile uint8_t *place = (uint8_t *)(uintptr_t)ours;
    *place = *place;
    place[n - 1] = place[n - 1];
    uint64_t was = word_apply(op, theirs);
    memcpy((uint8_t *)(uintptr_t)ours, &was, sizeof was);
}

static bool move(const struct rnic_send_wr *wr, const struct ask *ask, uint8_t *theirs) {
    uint32_t n = wr->sg_list->length;
    if (wr->opcode == RNIC_WR_RDMA_WRITE)
        return guard_copy(theirs, ask->ours, n);
    if (wr->opcode == RNIC_WR_RDMA_READ)
        return guard_copy(ask->ours, theirs, n);
    struct word_op op = word_op_of(wr->opcode, wr->wr.atomic.compare_add, wr->wr.atomic.swap);
    return guard(change_word, theirs, ask->ours, n, &op);
}

static bool request_by_process(struct qp *qp, const struct rnic_send_wr *wr, const struct ask *ask) {
    struct iovec pieces[2] = {{ask->ours, wr->sg_list->length}};
    const struct transfer t = {wr->opcode, wr->sg_list->length, ask->rkey, ask->right, ask->addr};
    return process_pays(qp, wr->opcode, t.length) && by_process(qp, &t, pieces, 1);
}

static bool reach(struct qp *qp, const struct rnic_send_wr *wr, const struct ask *ask) {
    uint8_t *theirs = remote_enter(qp->remote, &qp->remote_qp, qp->attr.dest_qp_num, qp->pub.qp_num, ask->rkey,
                                   ask->addr, wr->sg_list->length, ask->right);
    if (!theirs)
        return request_by_process(qp, wr, ask);
    bool good = !is_atomic(wr) || !(((uintptr_t)theirs | ask->addr) % sizeof(uint64_t));
    good = good && move(wr, ask, theirs);
    remote_leave(qp->remote);
    return good;
}

/* It has an element like all others, so that the queue is full when it would be, and polling frees it. */
bool direct_post(struct qp *qp, const struct rnic_send_wr *wr) {
    struct ask ask;
    struct wq *q = &qp->sq;
    if (!direct_is_next(qp) || !understand(qp, wr, &ask) || pthread_mutex_trylock(&q->lock))
        return false;
    uint32_t head = wq_head(q);
    bool done = head == wq_tail(q) && head - atomic_load(&q->freed) < q->max_wr && reach(qp, wr, &ask);
    struct send_wqe *wqe = sq_wqe(q, head);
    if (done) {
        *wqe = (struct send_wqe){.wr_id = wr->wr_id,
                                 .length = wr->sg_list->length,
                                 .opcode = (uint8_t)wr->opcode,
                                 .flags = (uint8_t)wr->send_flags};
        atomic_store_explicit(&q->head, head + 1, memory_order_release);
        rc_of(qp)->req.next = head + 1;
    }
    pthread_mutex_unlock(&q->lock);
    if (!done)
        return false;
    COUNT(qp, local_direct);
    qp_complete_send(qp, wqe);
    return true;
}

/* ---------------------------------------------------------------- short SENDs */

static bool is_brief(struct qp *qp, const struct rnic_send_wr *wr) {
    const struct requester *req = &rc_of(qp)->req;
    const struct rnic_sge *sge = wr->sg_list;
    if (sge->length > REQ_BRIEF ||
        wr->send_flags & ~(uint32_t)(RNIC_SEND_SIGNALED | RNIC_SEND_SOLICITED | RNIC_SEND_INLINE))
        return false;
    if (wr->send_flags & RNIC_SEND_INLINE && sge->length > qp->sq.max_inline)
        return false;
    return !qp->nic->faulty && !qp->pace.rate && qp->attr.path_mig_state == RNIC_MIG_MIGRATED &&
           !rc_of(qp)->congestion.limiting && !req->halted && !req->refused && req->psn == req->max_psn;
}

/* As an element like all others, which is sent again as they are; it is its turn if all before it have been sent. */
bool direct_send(struct qp *qp, const struct rnic_send_wr *wr, uint64_t *now) {
    struct wq *q = &qp->sq;
    if (!is_brief(qp, wr) || pthread_mutex_trylock(&q->lock))
        return false;
    uint32_t head = wq_head(q);
    bool posts = head == rc_of(qp)->req.next && head - atomic_load(&q->freed) < q->max_wr && !sq_append(q, wr);
    pthread_mutex_unlock(&q->lock);
    if (!posts)
        return false;
    *now = req_send_brief(qp, sq_wqe(q, head));
    return true;
}
