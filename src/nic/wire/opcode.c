/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/opcode.h"

#include <stddef.h>

#include "wire/bth.h"

/* Which headers follow the BTH, in order (IBA 9.2.1, table "OpCode field"): the mask bits, the header length and the
 * offset of each. */
#define BTH_ONLY .header = BTH_BYTES
#define IMM .header = BTH_BYTES + IMMDT_BYTES, .imm = BTH_BYTES
#define INV .header = BTH_BYTES + IETH_BYTES, .ieth = BTH_BYTES
#define RETH .header = BTH_BYTES + RETH_BYTES, .reth = BTH_BYTES
#define RETH_IMM .header = BTH_BYTES + RETH_BYTES + IMMDT_BYTES, .reth = BTH_BYTES, .imm = BTH_BYTES + RETH_BYTES
#define AETH .header = BTH_BYTES + AETH_BYTES, .aeth = BTH_BYTES
#define AETH_ATMACK                                                                                                   \
    .header = BTH_BYTES + AETH_BYTES + ATMACK_BYTES, .aeth = BTH_BYTES, .atomic_ack = BTH_BYTES + AETH_BYTES
#define ATMETH .header = BTH_BYTES + ATMETH_BYTES, .atomic_eth = BTH_BYTES
#define DETH .header = BTH_BYTES + DETH_BYTES, .deth = BTH_BYTES
#define DETH_IMM .header = BTH_BYTES + DETH_BYTES + IMMDT_BYTES, .deth = BTH_BYTES, .imm = BTH_BYTES + DETH_BYTES

#define FETH_RETH .header = BTH_BYTES + FETH_BYTES + RETH_BYTES, .feth = BTH_BYTES, .reth = BTH_BYTES + FETH_BYTES

#define ONLY (OPC_FIRST | OPC_LAST)
#define SEND (OPC_REQUEST | OPC_SEND | OPC_PAYLOAD)
#define WRITE (OPC_REQUEST | OPC_WRITE | OPC_PAYLOAD)
#define READ_RESP (OPC_RC | OPC_RESPONSE | OPC_READ_RESP | OPC_PAYLOAD)
#define ATOMIC (OPC_RC | OPC_REQUEST | OPC_ATOMIC | OPC_ATMETH | ONLY)
#define ACK (OPC_RC | OPC_RESPONSE | OPC_ACK | OPC_AETH | ONLY)

#define ROW(op, bits, ...) [ROCE_##op] = {.name = #op, .mask = (bits), __VA_ARGS__}

/* RC and UC have the same SENDs and WRITEs. */
#define CONNECTED(S)                                                                                                  \
    ROW(S##_SEND_FIRST, OPC_##S | SEND | OPC_FIRST, BTH_ONLY),                                                        \
    ROW(S##_SEND_MIDDLE, OPC_##S | SEND | OPC_MIDDLE, BTH_ONLY),                                                      \
    ROW(S##_SEND_LAST, OPC_##S | SEND | OPC_LAST | OPC_USES_RQ, BTH_ONLY),                                            \
    ROW(S##_SEND_LAST_WITH_IMM, OPC_##S | SEND | OPC_LAST | OPC_IMM | OPC_USES_RQ, IMM),                              \
    ROW(S##_SEND_ONLY, OPC_##S | SEND | ONLY | OPC_USES_RQ, BTH_ONLY),                                                \
    ROW(S##_SEND_ONLY_WITH_IMM, OPC_##S | SEND | ONLY | OPC_IMM | OPC_USES_RQ, IMM),                                  \
    ROW(S##_WRITE_FIRST, OPC_##S | WRITE | OPC_FIRST | OPC_RETH, RETH),                                               \
    ROW(S##_WRITE_MIDDLE, OPC_##S | WRITE | OPC_MIDDLE, BTH_ONLY),                                                    \
    ROW(S##_WRITE_LAST, OPC_##S | WRITE | OPC_LAST, BTH_ONLY),                                                        \
    ROW(S##_WRITE_LAST_WITH_IMM, OPC_##S | WRITE | OPC_LAST | OPC_IMM | OPC_USES_RQ, IMM),                            \
    ROW(S##_WRITE_ONLY, OPC_##S | WRITE | ONLY | OPC_RETH, RETH),                                                     \
    ROW(S##_WRITE_ONLY_WITH_IMM, OPC_##S | WRITE | ONLY | OPC_RETH | OPC_IMM | OPC_USES_RQ, RETH_IMM)

static const struct roce_opcode table[256] = {
    CONNECTED(RC),
    ROW(RC_READ_REQUEST, OPC_RC | OPC_REQUEST | OPC_READ | ONLY | OPC_RETH, RETH),
    ROW(RC_READ_RESP_FIRST, READ_RESP | OPC_FIRST | OPC_AETH, AETH),
    ROW(RC_READ_RESP_MIDDLE, READ_RESP | OPC_MIDDLE, BTH_ONLY),
    ROW(RC_READ_RESP_LAST, READ_RESP | OPC_LAST | OPC_AETH, AETH),
    ROW(RC_READ_RESP_ONLY, READ_RESP | ONLY | OPC_AETH, AETH),
    ROW(RC_ACK, ACK, AETH),
    ROW(RC_ATOMIC_ACK, ACK | OPC_ATMACK, AETH_ATMACK),
    ROW(RC_CMP_SWAP, ATOMIC, ATMETH),
    ROW(RC_FETCH_ADD, ATOMIC, ATMETH),
    ROW(RC_SEND_LAST_WITH_INV, OPC_RC | SEND | OPC_LAST | OPC_INV | OPC_USES_RQ, INV),
    ROW(RC_SEND_ONLY_WITH_INV, OPC_RC | SEND | ONLY | OPC_INV | OPC_USES_RQ, INV),
    ROW(RC_FLUSH, OPC_RC | OPC_REQUEST | OPC_FLUSH | OPC_FETH | OPC_RETH | ONLY, FETH_RETH),
    ROW(RC_ATOMIC_WRITE, OPC_RC | OPC_REQUEST | OPC_ATOMIC_WRITE | OPC_RETH | OPC_PAYLOAD | ONLY, RETH),

    CONNECTED(UC),

    ROW(UD_SEND_ONLY, OPC_UD | SEND | ONLY | OPC_DETH | OPC_USES_RQ, DETH),
    ROW(UD_SEND_ONLY_WITH_IMM, OPC_UD | SEND | ONLY | OPC_DETH | OPC_IMM | OPC_USES_RQ, DETH_IMM),

    /* 16 reserved bytes stand where others have headers; no payload (A17.9.3). */
    ROW(CNP, OPC_CNP | ONLY, .header = BTH_BYTES + CNP_RESERVED_BYTES),
};

const struct roce_opcode *roce_opcode(uint8_t opcode) { return table[opcode].name != NULL ? &table[opcode] : NULL; }
