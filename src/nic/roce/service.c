/* SPDX-License-Identifier: Apache-2.0
 *
 * The transport's table: its services, their states as data (IBA 10.3.1 and 11.2.5.2, table 91; man ibv_modify_qp), and
 * what may be posted to each (IBA 10.2.2, table 45 of 11.4.1.1).
 */
#include <errno.h>

#include "base/fail.h"
#include "roce/roce.h"

/* ---------------------------------------------------------------- states */

#define M(name) RNIC_QP_##name

static transitions rc_table = {
    [RNIC_QPS_RESET] =
        {
            [RNIC_QPS_INIT] = {true, M(PKEY_INDEX) | M(PORT) | M(ACCESS_FLAGS), 0},
        },
    [RNIC_QPS_INIT] =
        {
            [RNIC_QPS_INIT] = {true, 0, M(PKEY_INDEX) | M(PORT) | M(ACCESS_FLAGS)},
            [RNIC_QPS_RTR] = {true,
                              M(AV) | M(PATH_MTU) | M(DEST_QPN) | M(RQ_PSN) | M(MAX_DEST_RD_ATOMIC) | M(MIN_RNR_TIMER),
                              M(ALT_PATH) | M(ACCESS_FLAGS) | M(PKEY_INDEX)},
        },
    [RNIC_QPS_RTR] =
        {
            [RNIC_QPS_RTS] = {true, M(TIMEOUT) | M(RETRY_CNT) | M(RNR_RETRY) | M(SQ_PSN) | M(MAX_QP_RD_ATOMIC),
                              M(CUR_STATE) | M(ALT_PATH) | M(ACCESS_FLAGS) | M(MIN_RNR_TIMER) | M(PATH_MIG_STATE)},
        },
    [RNIC_QPS_RTS] =
        {
            [RNIC_QPS_RTS] = {true, 0,
                              M(CUR_STATE) | M(ALT_PATH) | M(ACCESS_FLAGS) | M(MIN_RNR_TIMER) | M(PATH_MIG_STATE)},
            [RNIC_QPS_SQD] = {true, 0, M(EN_SQD_ASYNC_NOTIFY)},
        },
    [RNIC_QPS_SQD] =
        {
            [RNIC_QPS_RTS] = {true, 0,
                              M(CUR_STATE) | M(ALT_PATH) | M(ACCESS_FLAGS) | M(MIN_RNR_TIMER) | M(PATH_MIG_STATE)},
            [RNIC_QPS_SQD] = {true, 0,
                              M(PORT) | M(AV) | M(TIMEOUT) | M(RETRY_CNT) | M(RNR_RETRY) | M(MAX_QP_RD_ATOMIC) |
                                  M(MAX_DEST_RD_ATOMIC) | M(ALT_PATH) | M(ACCESS_FLAGS) | M(PKEY_INDEX) |
                                  M(MIN_RNR_TIMER) | M(PATH_MIG_STATE)},
        },
};

/* The same without what belongs to answers: retries, and READs and atomics. */
static transitions uc_table = {
    [RNIC_QPS_RESET] = {[RNIC_QPS_INIT] = {true, M(PKEY_INDEX) | M(PORT) | M(ACCESS_FLAGS), 0}},
    [RNIC_QPS_INIT] =
        {
            [RNIC_QPS_INIT] = {true, 0, M(PKEY_INDEX) | M(PORT) | M(ACCESS_FLAGS)},
            [RNIC_QPS_RTR] = {true, M(AV) | M(PATH_MTU) | M(DEST_QPN) | M(RQ_PSN),
                              M(ALT_PATH) | M(ACCESS_FLAGS) | M(PKEY_INDEX)},
        },
    [RNIC_QPS_RTR] = {[RNIC_QPS_RTS] = {true, M(SQ_PSN),
                                        M(CUR_STATE) | M(ALT_PATH) | M(ACCESS_FLAGS) | M(PATH_MIG_STATE)}},
    [RNIC_QPS_RTS] =
        {
            [RNIC_QPS_RTS] = {true, 0, M(CUR_STATE) | M(ALT_PATH) | M(ACCESS_FLAGS) | M(PATH_MIG_STATE)},
            [RNIC_QPS_SQD] = {true, 0, M(EN_SQD_ASYNC_NOTIFY)},
        },
    [RNIC_QPS_SQD] =
        {
            [RNIC_QPS_RTS] = {true, 0, M(CUR_STATE) | M(ALT_PATH) | M(ACCESS_FLAGS) | M(PATH_MIG_STATE)},
            [RNIC_QPS_SQD] = {true, 0, M(AV) | M(ALT_PATH) | M(ACCESS_FLAGS) | M(PKEY_INDEX) | M(PATH_MIG_STATE)},
        },
    [RNIC_QPS_SQE] = {[RNIC_QPS_RTS] = {true, 0, M(CUR_STATE) | M(ACCESS_FLAGS)}},
};

/* Datagrams: no path, no peer, no retries.  A send that fails stops the send queue alone, in SQE (IBA 10.3.1.6).  Queue pair
 * 1 is of one port, which need not be named. */
#define DATAGRAM_STATES(needed, allowed)                                                                               \
    {                                                                                                                  \
        [RNIC_QPS_RESET] = {[RNIC_QPS_INIT] = {true, needed, allowed}},                                                \
        [RNIC_QPS_INIT] = {[RNIC_QPS_INIT] = {true, 0, M(PKEY_INDEX) | M(PORT) | M(QKEY)},                             \
                           [RNIC_QPS_RTR] = {true, 0, M(PKEY_INDEX) | M(QKEY)}},                                       \
        [RNIC_QPS_RTR] = {[RNIC_QPS_RTS] = {true, M(SQ_PSN), M(CUR_STATE) | M(QKEY)}},                                 \
        [RNIC_QPS_RTS] = {[RNIC_QPS_RTS] = {true, 0, M(CUR_STATE) | M(QKEY)},                                          \
                          [RNIC_QPS_SQD] = {true, 0, M(EN_SQD_ASYNC_NOTIFY)}},                                         \
        [RNIC_QPS_SQD] = {[RNIC_QPS_RTS] = {true, 0, M(CUR_STATE) | M(QKEY)},                                          \
                          [RNIC_QPS_SQD] = {true, 0, M(PKEY_INDEX) | M(QKEY)}},                                        \
        [RNIC_QPS_SQE] = {[RNIC_QPS_RTS] = {true, 0, M(CUR_STATE) | M(QKEY)}},                                         \
    }
static transitions ud_table = DATAGRAM_STATES(M(PKEY_INDEX) | M(PORT) | M(QKEY), 0);
static transitions gsi_table = DATAGRAM_STATES(M(PKEY_INDEX) | M(QKEY), M(PORT));

/* XRC (Annex A14): an XRC_SEND queue pair has nothing of a responder, an XRC_RECV one nothing of a requester, but for the
 * timeout and the PSN that RTS names. */
static transitions xrc_send_table = {
    [RNIC_QPS_RESET] = {[RNIC_QPS_INIT] = {true, M(PKEY_INDEX) | M(PORT) | M(ACCESS_FLAGS), 0}},
    [RNIC_QPS_INIT] =
        {
            [RNIC_QPS_INIT] = {true, 0, M(PKEY_INDEX) | M(PORT) | M(ACCESS_FLAGS)},
            [RNIC_QPS_RTR] = {true, M(AV) | M(PATH_MTU) | M(DEST_QPN) | M(RQ_PSN),
                              M(ALT_PATH) | M(ACCESS_FLAGS) | M(PKEY_INDEX)},
        },
    [RNIC_QPS_RTR] = {[RNIC_QPS_RTS] = {true,
                                        M(TIMEOUT) | M(RETRY_CNT) | M(RNR_RETRY) | M(SQ_PSN) | M(MAX_QP_RD_ATOMIC),
                                        M(CUR_STATE) | M(ALT_PATH) | M(ACCESS_FLAGS) | M(PATH_MIG_STATE)}},
    [RNIC_QPS_RTS] =
        {
            [RNIC_QPS_RTS] = {true, 0, M(CUR_STATE) | M(ALT_PATH) | M(ACCESS_FLAGS) | M(PATH_MIG_STATE)},
            [RNIC_QPS_SQD] = {true, 0, M(EN_SQD_ASYNC_NOTIFY)},
        },
    [RNIC_QPS_SQD] =
        {
            [RNIC_QPS_RTS] = {true, 0, M(CUR_STATE) | M(ALT_PATH) | M(ACCESS_FLAGS) | M(PATH_MIG_STATE)},
            [RNIC_QPS_SQD] = {true, 0,
                              M(PORT) | M(AV) | M(TIMEOUT) | M(RETRY_CNT) | M(RNR_RETRY) | M(MAX_QP_RD_ATOMIC) |
                                  M(ALT_PATH) | M(ACCESS_FLAGS) | M(PKEY_INDEX) | M(PATH_MIG_STATE)},
        },
};

static transitions xrc_recv_table = {
    [RNIC_QPS_RESET] = {[RNIC_QPS_INIT] = {true, M(PKEY_INDEX) | M(PORT) | M(ACCESS_FLAGS), 0}},
    [RNIC_QPS_INIT] =
        {
            [RNIC_QPS_INIT] = {true, 0, M(PKEY_INDEX) | M(PORT) | M(ACCESS_FLAGS)},
            [RNIC_QPS_RTR] = {true,
                              M(AV) | M(PATH_MTU) | M(DEST_QPN) | M(RQ_PSN) | M(MAX_DEST_RD_ATOMIC) | M(MIN_RNR_TIMER),
                              M(ALT_PATH) | M(ACCESS_FLAGS) | M(PKEY_INDEX)},
        },
    [RNIC_QPS_RTR] = {[RNIC_QPS_RTS] = {true, M(TIMEOUT) | M(SQ_PSN),
                                        M(CUR_STATE) | M(ALT_PATH) | M(ACCESS_FLAGS) | M(MIN_RNR_TIMER) |
                                            M(PATH_MIG_STATE)}},
    [RNIC_QPS_RTS] =
        {
            [RNIC_QPS_RTS] = {true, 0,
                              M(CUR_STATE) | M(ALT_PATH) | M(ACCESS_FLAGS) | M(MIN_RNR_TIMER) | M(PATH_MIG_STATE)},
            [RNIC_QPS_SQD] = {true, 0, M(EN_SQD_ASYNC_NOTIFY)},
        },
    [RNIC_QPS_SQD] =
        {
            [RNIC_QPS_RTS] = {true, 0,
                              M(CUR_STATE) | M(ALT_PATH) | M(ACCESS_FLAGS) | M(MIN_RNR_TIMER) | M(PATH_MIG_STATE)},
            [RNIC_QPS_SQD] = {true, 0,
                              M(PORT) | M(AV) | M(TIMEOUT) | M(MAX_DEST_RD_ATOMIC) | M(ALT_PATH) | M(ACCESS_FLAGS) |
                                  M(PKEY_INDEX) | M(MIN_RNR_TIMER) | M(PATH_MIG_STATE)},
        },
};

/* ---------------------------------------------------------------- operations */

#define OP(name) (1u << RNIC_WR_##name)
#define MESSAGES (OP(SEND) | OP(SEND_WITH_IMM))
#define WRITES (OP(RDMA_WRITE) | OP(RDMA_WRITE_WITH_IMM))
#define LOCAL (OP(LOCAL_INV) | OP(BIND_MW))
#define WITH_ANSWERS (OP(RDMA_READ) | OP(ATOMIC_CMP_AND_SWP) | OP(ATOMIC_FETCH_AND_ADD) | OP(SEND_WITH_INV))
#define PLACEMENT (OP(ATOMIC_WRITE) | OP(FLUSH)) /* A19, which gives XRC no opcodes */

static int refuse_rc(int opcode, struct rnic_err *err) {
    return fail(err, -EOPNOTSUPP, "opcode %d is not supported on an RC queue pair of this device", opcode);
}

static int refuse_xrc(int opcode, struct rnic_err *err) {
    if (opcode != RNIC_WR_ATOMIC_WRITE && opcode != RNIC_WR_FLUSH)
        return refuse_rc(opcode, err);
    return fail(err, -EOPNOTSUPP, "opcode %d is not supported on an XRC queue pair, RC has it", opcode);
}

static int refuse_uc(int opcode, struct rnic_err *err) {
    return fail(err, -EINVAL,
                "opcode %d: an unreliable connection can SEND, RDMA_WRITE, BIND_MW and LOCAL_INV, nothing else",
                opcode);
}

static int refuse_ud(int opcode, struct rnic_err *err) {
    return fail(err, -EINVAL, "opcode %d: a datagram queue pair can SEND and SEND_WITH_IMM, nothing else", opcode);
}

static const struct sq_rules rc_sends = {.operations = MESSAGES | WRITES | LOCAL | WITH_ANSWERS | PLACEMENT,
                                         .refuse = refuse_rc};
static const struct sq_rules xrc_sends = {
    .operations = MESSAGES | WRITES | LOCAL | WITH_ANSWERS, .shared = true, .refuse = refuse_xrc};
static const struct sq_rules uc_sends = {.operations = MESSAGES | WRITES | LOCAL, .refuse = refuse_uc};
static const struct sq_rules ud_sends = {.operations = MESSAGES, .datagrams = true, .refuse = refuse_ud};

/* ---------------------------------------------------------------- services */

#define CNT(name) RNIC_COMP_CNTR_OP_##name
#define COUNTED_MESSAGES (CNT(SEND) | CNT(RECV))
#define COUNTED_WRITES (CNT(RDMA_WRITE) | CNT(REMOTE_RDMA_WRITE))
#define COUNTED_READS (CNT(RDMA_READ) | CNT(REMOTE_RDMA_READ))

static const struct service services[] = {
    {.type = RNIC_QPT_RC,
     .name = "RC",
     .engine = &roce_rc_ops,
     .states = &rc_table,
     .sends = &rc_sends,
     .counted = COUNTED_MESSAGES | COUNTED_WRITES | COUNTED_READS,
     .paced = true,
     .exposed = true,
     .ib = {OPC_RC, OPC_RC | OPC_CNP, ROCE_SERVICE_RC}},
    {.type = RNIC_QPT_UC,
     .name = "UC",
     .engine = &roce_uc_ops,
     .states = &uc_table,
     .sends = &uc_sends,
     .counted = COUNTED_MESSAGES | COUNTED_WRITES,
     .paced = true,
     .ib = {OPC_UC, OPC_UC | OPC_CNP, ROCE_SERVICE_UC}},
    {.type = RNIC_QPT_UD,
     .name = "UD",
     .engine = &roce_ud_ops,
     .states = &ud_table,
     .sends = &ud_sends,
     .datagrams = true,
     .counted = COUNTED_MESSAGES,
     .paced = true,
     .ib = {OPC_UD, OPC_UD}},
    {.type = RNIC_QPT_GSI,
     .name = "GSI",
     .engine = &roce_ud_ops,
     .states = &gsi_table,
     .sends = &ud_sends,
     .datagrams = true,
     .counted = COUNTED_MESSAGES,
     .ib = {OPC_UD, OPC_UD}},
    {.type = RNIC_QPT_XRC_SEND,
     .name = "XRC_SEND",
     .engine = &roce_rc_ops,
     .states = &xrc_send_table,
     .sends = &xrc_sends,
     .counted = COUNTED_MESSAGES | COUNTED_WRITES | COUNTED_READS,
     .ib = {OPC_XRC_BACK, OPC_XRC_BACK | OPC_CNP, ROCE_SERVICE_XRC}},
    {.type = RNIC_QPT_XRC_RECV,
     .name = "XRC_RECV",
     .engine = &roce_rc_ops,
     .states = &xrc_recv_table,
     .sends = &xrc_sends,
     .counted = CNT(RECV) | CNT(REMOTE_RDMA_WRITE) | CNT(REMOTE_RDMA_READ),
     .ib = {OPC_XRC, OPC_XRC | OPC_CNP, ROCE_SERVICE_XRC}},
};

const struct transport roce_transport = {"RoCE", services, sizeof services / sizeof *services};
