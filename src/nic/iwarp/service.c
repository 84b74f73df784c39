/* SPDX-License-Identifier: Apache-2.0
 *
 * The transport's table: its one service, whose states are those of InfiniBand's verbs as far as a stream has them (man
 * ibv_modify_qp; the kernel's iw_cm moves a queue pair by the same), and what may be posted.
 */
#include <errno.h>

#include "base/fail.h"
#include "iwarp/engine.h"

/* ---------------------------------------------------------------- states */

#define M(name) RNIC_QP_##name
#define AT_FIRST (M(PORT) | M(PKEY_INDEX) | M(ACCESS_FLAGS)) /* the first two say nothing here */
#define BY_CM (M(PORT) | M(ACCESS_FLAGS)) /* and these librdmacm gives with all others, or alone */
#define READS (M(MAX_QP_RD_ATOMIC) | M(MAX_DEST_RD_ATOMIC))

/* SQD is the state in which a connection closes, so it leads to ERR. */
static transitions rc_table = {
    [RNIC_QPS_RESET] = {[RNIC_QPS_INIT] = {true, 0, AT_FIRST}},
    [RNIC_QPS_INIT] = {[RNIC_QPS_INIT] = {true, 0, AT_FIRST},
                       [RNIC_QPS_RTR] = {true, 0, BY_CM | READS},
                       [RNIC_QPS_RTS] = {true, 0, BY_CM | READS | M(CUR_STATE)}},
    [RNIC_QPS_RTR] = {[RNIC_QPS_RTR] = {true, 0, BY_CM}, [RNIC_QPS_RTS] = {true, 0, BY_CM | READS | M(CUR_STATE)}},
    [RNIC_QPS_RTS] = {[RNIC_QPS_RTS] = {true, 0, BY_CM | M(CUR_STATE)},
                      [RNIC_QPS_SQD] = {true, 0, M(EN_SQD_ASYNC_NOTIFY)}},
};

/* ---------------------------------------------------------------- operations */

#define OP(name) (1u << RNIC_WR_##name)
#define RFC5040 (OP(SEND) | OP(SEND_WITH_INV) | OP(RDMA_WRITE) | OP(RDMA_READ))
#define RFC7306 (OP(RDMA_WRITE_WITH_IMM) | OP(ATOMIC_CMP_AND_SWP) | OP(ATOMIC_FETCH_AND_ADD))
#define LOCAL (OP(LOCAL_INV) | OP(BIND_MW))

static int refuse(int opcode, struct rnic_err *err) {
    if (opcode == RNIC_WR_SEND_WITH_IMM)
        return fail(err, -EOPNOTSUPP,
                    "iWARP has no SEND with immediate data: RDMA_WRITE_WITH_IMM, or bytes of the SEND");
    return fail(err, -EOPNOTSUPP, "%s (opcode %d) is not supported by iWARP", wr_opcode_name(opcode), opcode);
}

static int refuse_plain(int opcode, struct rnic_err *err) {
    if (opcode >= 0 && opcode < 32 && RFC7306 >> opcode & 1)
        return fail(err, -EOPNOTSUPP,
                    "%s (opcode %d): the peer of this connection has no atomics and no immediate data (RFC 7306)",
                    wr_opcode_name(opcode), opcode);
    return refuse(opcode, err);
}

const struct sq_rules iwarp_sends = {.operations = RFC5040 | RFC7306 | LOCAL, .refuse = refuse};
const struct sq_rules iwarp_sends_plain = {.operations = RFC5040 | LOCAL, .refuse = refuse_plain};

/* ---------------------------------------------------------------- the service */

#define CNT(name) RNIC_COMP_CNTR_OP_##name

static const struct service services[] = {{.type = RNIC_QPT_RC,
                                           .name = "RC",
                                           .engine = &iwarp_ops,
                                           .states = &rc_table,
                                           .sends = &iwarp_sends,
                                           .counted = CNT(SEND) | CNT(RECV) | CNT(RDMA_WRITE) | CNT(REMOTE_RDMA_WRITE) |
                                                      CNT(RDMA_READ) | CNT(REMOTE_RDMA_READ),
                                           .paced = true,
                                           .connected = "queue pairs of iWARP are connected by RDMA-CM"}};

const struct transport iwarp_transport = {"iWARP", services, sizeof services / sizeof *services};
