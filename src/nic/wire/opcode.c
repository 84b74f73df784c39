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

/* The same behind an XRCETH (A14.3.1). */
#define XBTH_BYTES (BTH_BYTES + XRCETH_BYTES)
#define XBTH_ONLY .header = XBTH_BYTES, .xrceth = BTH_BYTES
#define XIMM .header = XBTH_BYTES + IMMDT_BYTES, .xrceth = BTH_BYTES, .imm = XBTH_BYTES
#define XINV .header = XBTH_BYTES + IETH_BYTES, .xrceth = BTH_BYTES, .ieth = XBTH_BYTES
#define XRETH .header = XBTH_BYTES + RETH_BYTES, .xrceth = BTH_BYTES, .reth = XBTH_BYTES
#define XRETH_IMM                                                                                                     \
    .header = XBTH_BYTES + RETH_BYTES + IMMDT_BYTES, .xrceth = BTH_BYTES, .reth = XBTH_BYTES,                         \
    .imm = XBTH_BYTES + RETH_BYTES
#define XATMETH .header = XBTH_BYTES + ATMETH_BYTES, .xrceth = BTH_BYTES, .atomic_eth = XBTH_BYTES

#define FETH_RETH .header = BTH_BYTES + FETH_BYTES + RETH_BYTES, .feth = BTH_BYTES, .reth = BTH_BYTES + FETH_BYTES

#define ONLY (OPC_FIRST | OPC_LAST)
#define SEND (OPC_REQUEST | OPC_SEND | OPC_PAYLOAD)
#define WRITE (OPC_REQUEST | OPC_WRITE | OPC_PAYLOAD)
#define READ_RESP (OPC_RESPONSE | OPC_READ_RESP | OPC_PAYLOAD)
#define ATOMIC (OPC_REQUEST | OPC_ATOMIC | OPC_ATMETH | ONLY)
#define ACK (OPC_RESPONSE | OPC_ACK | OPC_AETH | ONLY)

#define ROW(op, bits, ...) [ROCE_##op] = {.name = #op, .mask = (bits), __VA_ARGS__}

/* RC, UC and XRC have the same SENDs and WRITEs; X: what their headers are prefixed with. */
#define CONNECTED(S, X)                                                                                               \
    ROW(S##_SEND_FIRST, OPC_##S | SEND | OPC_FIRST, X##BTH_ONLY),                                                     \
    ROW(S##_SEND_MIDDLE, OPC_##S | SEND | OPC_MIDDLE, X##BTH_ONLY),                                                   \
    ROW(S##_SEND_LAST, OPC_##S | SEND | OPC_LAST | OPC_USES_RQ, X##BTH_ONLY),                                         \
    ROW(S##_SEND_LAST_WITH_IMM, OPC_##S | SEND | OPC_LAST | OPC_IMM | OPC_USES_RQ, X##IMM),                           \
    ROW(S##_SEND_ONLY, OPC_##S | SEND | ONLY | OPC_USES_RQ, X##BTH_ONLY),                                             \
    ROW(S##_SEND_ONLY_WITH_IMM, OPC_##S | SEND | ONLY | OPC_IMM | OPC_USES_RQ, X##IMM),                               \
    ROW(S##_WRITE_FIRST, OPC_##S | WRITE | OPC_FIRST | OPC_RETH, X##RETH),                                            \
    ROW(S##_WRITE_MIDDLE, OPC_##S | WRITE | OPC_MIDDLE, X##BTH_ONLY),                                                 \
    ROW(S##_WRITE_LAST, OPC_##S | WRITE | OPC_LAST, X##BTH_ONLY),                                                     \
    ROW(S##_WRITE_LAST_WITH_IMM, OPC_##S | WRITE | OPC_LAST | OPC_IMM | OPC_USES_RQ, X##IMM),                         \
    ROW(S##_WRITE_ONLY, OPC_##S | WRITE | ONLY | OPC_RETH, X##RETH),                                                  \
    ROW(S##_WRITE_ONLY_WITH_IMM, OPC_##S | WRITE | ONLY | OPC_RETH | OPC_IMM | OPC_USES_RQ, X##RETH_IMM)

/* RC and XRC have READs, atomics and answers; B: the service bit of those. */
#define RELIABLE(S, X, B)                                                                                             \
    CONNECTED(S, X), ROW(S##_READ_REQUEST, OPC_##S | OPC_REQUEST | OPC_READ | ONLY | OPC_RETH, X##RETH),              \
        ROW(S##_READ_RESP_FIRST, B | READ_RESP | OPC_FIRST | OPC_AETH, AETH),                                         \
        ROW(S##_READ_RESP_MIDDLE, B | READ_RESP | OPC_MIDDLE, BTH_ONLY),                                              \
        ROW(S##_READ_RESP_LAST, B | READ_RESP | OPC_LAST | OPC_AETH, AETH),                                           \
        ROW(S##_READ_RESP_ONLY, B | READ_RESP | ONLY | OPC_AETH, AETH), ROW(S##_ACK, B | ACK, AETH),                  \
        ROW(S##_ATOMIC_ACK, B | ACK | OPC_ATMACK, AETH_ATMACK), ROW(S##_CMP_SWAP, OPC_##S | ATOMIC, X##ATMETH),       \
        ROW(S##_FETCH_ADD, OPC_##S | ATOMIC, X##ATMETH),                                                              \
        ROW(S##_SEND_LAST_WITH_INV, OPC_##S | SEND | OPC_LAST | OPC_INV | OPC_USES_RQ, X##INV),                       \
        ROW(S##_SEND_ONLY_WITH_INV, OPC_##S | SEND | ONLY | OPC_INV | OPC_USES_RQ, X##INV)

static const struct roce_opcode table[256] = {
    RELIABLE(RC, , OPC_RC),
    ROW(RC_FLUSH, OPC_RC | OPC_REQUEST | OPC_FLUSH | OPC_FETH | OPC_RETH | ONLY, FETH_RETH),
    ROW(RC_ATOMIC_WRITE, OPC_RC | OPC_REQUEST | OPC_ATOMIC_WRITE | OPC_RETH | OPC_PAYLOAD | ONLY, RETH),
    RELIABLE(XRC, X, OPC_XRC_BACK),
    CONNECTED(UC, ),

    ROW(UD_SEND_ONLY, OPC_UD | SEND | ONLY | OPC_DETH | OPC_USES_RQ, DETH),
    ROW(UD_SEND_ONLY_WITH_IMM, OPC_UD | SEND | ONLY | OPC_DETH | OPC_IMM | OPC_USES_RQ, DETH_IMM),

    /* 16 reserved bytes stand where others have headers; no payload (A17.9.3). */
    ROW(CNP, OPC_CNP | ONLY, .header = BTH_BYTES + CNP_RESERVED_BYTES),
};

const struct roce_opcode *roce_opcode(uint8_t opcode) { return table[opcode].name != NULL ? &table[opcode] : NULL; }
