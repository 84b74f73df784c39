/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of Ethernet frames as a transport: one kind of queue pair.
 */
#include <errno.h>

#include "base/fail.h"
#include "raw/raw.h"

#define M(name) RNIC_QP_##name

/* Frames: nothing but the port; all else stands in the frame (man ibv_modify_qp, RAW_PACKET). */
static transitions raw_table = {
    [RNIC_QPS_RESET] = {[RNIC_QPS_INIT] = {true, M(PORT), 0}},
    [RNIC_QPS_INIT] = {[RNIC_QPS_INIT] = {true, 0, M(PORT)}, [RNIC_QPS_RTR] = {true, 0, 0}},
    [RNIC_QPS_RTR] = {[RNIC_QPS_RTS] = {true, 0, M(CUR_STATE) | M(RATE_LIMIT)}},
    [RNIC_QPS_RTS] = {[RNIC_QPS_RTS] = {true, 0, M(CUR_STATE) | M(RATE_LIMIT)},
                      [RNIC_QPS_SQD] = {true, 0, M(EN_SQD_ASYNC_NOTIFY)}},
    [RNIC_QPS_SQD] = {[RNIC_QPS_RTS] = {true, 0, M(CUR_STATE)}, [RNIC_QPS_SQD] = {true, 0, 0}},
    [RNIC_QPS_SQE] = {[RNIC_QPS_RTS] = {true, 0, M(CUR_STATE)}},
};

static int refuse(int opcode, struct rnic_err *err) {
    return fail(err, opcode == RNIC_WR_TSO ? -EOPNOTSUPP : -EINVAL,
                "opcode %d: a RAW_PACKET queue pair can SEND, nothing else (this device cuts up no large sends)",
                opcode);
}

static const struct sq_rules sends = {.operations = 1u << RNIC_WR_SEND, .flags = RNIC_SEND_IP_CSUM, .refuse = refuse};

static const struct service services[] = {{.type = RNIC_QPT_RAW_PACKET,
                                           .name = "RAW_PACKET",
                                           .engine = &raw_ops,
                                           .states = &raw_table,
                                           .sends = &sends,
                                           .counted = RNIC_COMP_CNTR_OP_SEND | RNIC_COMP_CNTR_OP_RECV,
                                           .paced = true}};

const struct transport raw_transport = {"raw", services, sizeof services / sizeof *services};
