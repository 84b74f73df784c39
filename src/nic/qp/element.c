/* SPDX-License-Identifier: Apache-2.0 */
#include "qp/element.h"

#include "base/guard.h"

/* ---------------------------------------------------------------- requests that no packet carries */

/* BIND_MW and LOCAL_INV (IBA 10.6.7.2, 10.6.7.4).  They take their turn in the send queue and are carried out once, when all
 * before them has been sent at least once; what follows them finds the window as they left it (IBA 10.8.3.3). */

/* 0, or enum rnic_vendor_err. */
static int invalidate(struct qp *qp, uint32_t key) {
    int ve;
    struct mw *mw = mw_invalidable(&qp->nic->mrs, &qp->pub, key, &ve);
    if (mw)
        mw_unbind(mw);
    return ve;
}

static int bind_window(struct qp *qp, const struct send_wqe *wqe) {
    struct mw_binding b = {.window = wqe->window,
                           .new_key = wqe->new_key,
                           .region = wqe->region,
                           .access = wqe->access,
                           .addr = wqe->bind_addr,
                           .length = wqe->bind_length};
    return mw_bind(&qp->nic->mrs, &qp->pub, &qp->windows, &b);
}

int element_local(struct qp *qp, struct send_wqe *wqe) {
    bool binds = wqe->opcode == RNIC_WR_BIND_MW;
    wqe->vendor_err = (uint8_t)(binds ? bind_window(qp, wqe) : invalidate(qp, wqe->imm));
    if (!wqe->vendor_err)
        return 0;
    return binds ? RNIC_WC_MW_BIND_ERR : RNIC_WC_LOC_QP_OP_ERR;
}

/* ---------------------------------------------------------------- a word of ours */

int peer_changes_word(struct qp *qp, uint32_t rkey, uint64_t va, uint8_t *ptr, const struct word_op *op,
                      uint64_t *was) {
    if (((uintptr_t)ptr | va) % sizeof(uint64_t)) /* C9-90; A19.4.2 */
        return RNIC_VE_ATOMIC_ALIGN;
    if (!ptr)
        return mr_remote_word(&qp->nic->mrs, rkey, va, op, was);
    return guard_word(op, (uint64_t *)(void *)ptr, was) ? 0 : RNIC_VE_RKEY_UNMAPPED;
}
