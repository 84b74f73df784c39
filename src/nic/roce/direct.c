/* SPDX-License-Identifier: Apache-2.0 */
#include "roce/direct.h"

#include <string.h>

#include "mem/remote.h"

/* What an operation needs at the peer's; 0: it needs the peer. */
static uint32_t right_of(const struct send_wqe *wqe) {
    static const uint32_t table[] = {
        [RNIC_WR_RDMA_WRITE] = RNIC_ACCESS_REMOTE_WRITE,         [RNIC_WR_RDMA_READ] = RNIC_ACCESS_REMOTE_READ,
        [RNIC_WR_ATOMIC_WRITE] = RNIC_ACCESS_REMOTE_WRITE,       [RNIC_WR_ATOMIC_CMP_AND_SWP] = RNIC_ACCESS_REMOTE_ATOMIC,
        [RNIC_WR_ATOMIC_FETCH_AND_ADD] = RNIC_ACCESS_REMOTE_ATOMIC,
    };
    return wqe->opcode < sizeof table / sizeof *table ? table[wqe->opcode] : 0;
}

static int gather(struct qp *qp, const struct send_wqe *wqe, uint8_t *to) {
    if (wqe->flags & RNIC_SEND_INLINE) {
        memcpy(to, wqe->sge, wqe->length);
        return 0;
    }
    return sge_gather(&qp->nic->mrs, qp->pub.pd, wqe->sge, wqe->num_sge, 0, to, wqe->length, NULL);
}

static int scatter(struct qp *qp, const struct send_wqe *wqe, const void *from) {
    return sge_scatter(&qp->nic->mrs, qp->pub.pd, wqe->sge, wqe->num_sge, 0, from, wqe->length);
}

static int atomic(struct qp *qp, const struct send_wqe *wqe, uint64_t *word) {
    uint64_t value = wqe->compare_add;
    if (wqe->opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD)
        value = __atomic_fetch_add(word, value, __ATOMIC_SEQ_CST);
    else
        __atomic_compare_exchange_n(word, &value, wqe->swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return scatter(qp, wqe, &value);
}

static int atomic_write(struct qp *qp, const struct send_wqe *wqe, uint64_t *word) {
    uint64_t value;
    int ve = gather(qp, wqe, (uint8_t *)&value);
    if (!ve)
        __atomic_store_n(word, value, __ATOMIC_RELEASE);
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

/* The memory of this end was found good, but of pages that may be missing only a copy tells; then the request does, too. */
bool direct_execute(struct qp *qp, struct send_wqe *wqe) {
    uint32_t right = right_of(wqe);
    bool words = right == RNIC_ACCESS_REMOTE_ATOMIC || wqe->opcode == RNIC_WR_ATOMIC_WRITE;
    if (!right || !wqe->length)
        return false;
    uint8_t *at = remote_enter(qp->remote, &qp->remote_qp, qp->attr.dest_qp_num, qp->pub.qp_num, wqe->rkey, wqe->remote_addr,
                               wqe->length, right);
    if (!at)
        return false;
    bool aligned = !words || !(((uintptr_t)at | wqe->remote_addr) % sizeof(uint64_t));
    int ve = aligned ? carry_out(qp, wqe, at) : RNIC_VE_ATOMIC_ALIGN;
    remote_leave(qp->remote);
    if (ve)
        return false;
    COUNT(qp, local_direct);
    return true;
}
