/* SPDX-License-Identifier: Apache-2.0 */
#include "queue/comp_cntr.h"

#include <stddef.h>

uint32_t comp_cntr_op(int wr_opcode) {
    static const uint32_t ops[] = {
        [RNIC_WR_SEND] = RNIC_COMP_CNTR_OP_SEND,
        [RNIC_WR_SEND_WITH_IMM] = RNIC_COMP_CNTR_OP_SEND,
        [RNIC_WR_SEND_WITH_INV] = RNIC_COMP_CNTR_OP_SEND,
        [RNIC_WR_RDMA_WRITE] = RNIC_COMP_CNTR_OP_RDMA_WRITE,
        [RNIC_WR_RDMA_WRITE_WITH_IMM] = RNIC_COMP_CNTR_OP_RDMA_WRITE,
        [RNIC_WR_RDMA_READ] = RNIC_COMP_CNTR_OP_RDMA_READ,
    };
    int n = (int)(sizeof ops / sizeof *ops);
    return wr_opcode >= 0 && wr_opcode < n ? ops[wr_opcode] : 0;
}

void comp_cntr_count(const struct comp_cntrs *cntrs, uint32_t op, bool success, uint64_t bytes) {
    struct comp_cntr *cntr = op ? cntrs->of[__builtin_ctz(op)] : NULL;
    if (!cntr)
        return;
    if (success)
        atomic_fetch_add(&cntr->done, cntr->bytes ? bytes : 1);
    else
        atomic_fetch_add(&cntr->failed, 1);
}
