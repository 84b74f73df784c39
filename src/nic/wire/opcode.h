/* SPDX-License-Identifier: Apache-2.0
 *
 * The BTH opcodes (IBA 9.2.1, table "OpCode field"; CNP: Annex A17.9.3) and what each of them is: one row a packet
 * type.  Code asks for a mask bit rather than for an opcode, so that "RC SEND only with immediate" needs no branch of
 * its own.
 */
#ifndef RNIC_WIRE_OPCODE_H
#define RNIC_WIRE_OPCODE_H

#include <stdint.h>

enum roce_opcode_value {
    ROCE_RC_SEND_FIRST = 0x00,
    ROCE_RC_SEND_MIDDLE = 0x01,
    ROCE_RC_SEND_LAST = 0x02,
    ROCE_RC_SEND_LAST_WITH_IMM = 0x03,
    ROCE_RC_SEND_ONLY = 0x04,
    ROCE_RC_SEND_ONLY_WITH_IMM = 0x05,
    ROCE_RC_WRITE_FIRST = 0x06,
    ROCE_RC_WRITE_MIDDLE = 0x07,
    ROCE_RC_WRITE_LAST = 0x08,
    ROCE_RC_WRITE_LAST_WITH_IMM = 0x09,
    ROCE_RC_WRITE_ONLY = 0x0A,
    ROCE_RC_WRITE_ONLY_WITH_IMM = 0x0B,
    ROCE_RC_READ_REQUEST = 0x0C,
    ROCE_RC_READ_RESP_FIRST = 0x0D,
    ROCE_RC_READ_RESP_MIDDLE = 0x0E,
    ROCE_RC_READ_RESP_LAST = 0x0F,
    ROCE_RC_READ_RESP_ONLY = 0x10,
    ROCE_RC_ACK = 0x11,
    ROCE_RC_ATOMIC_ACK = 0x12,
    ROCE_RC_CMP_SWAP = 0x13,
    ROCE_RC_FETCH_ADD = 0x14,
    /* 0x15 is reserved */
    ROCE_RC_SEND_LAST_WITH_INV = 0x16,
    ROCE_RC_SEND_ONLY_WITH_INV = 0x17,
    /* Annex A19 */
    ROCE_RC_FLUSH = 0x1C,
    ROCE_RC_ATOMIC_WRITE = 0x1D,

    ROCE_UC_SEND_FIRST = 0x20,
    ROCE_UC_SEND_MIDDLE = 0x21,
    ROCE_UC_SEND_LAST = 0x22,
    ROCE_UC_SEND_LAST_WITH_IMM = 0x23,
    ROCE_UC_SEND_ONLY = 0x24,
    ROCE_UC_SEND_ONLY_WITH_IMM = 0x25,
    ROCE_UC_WRITE_FIRST = 0x26,
    ROCE_UC_WRITE_MIDDLE = 0x27,
    ROCE_UC_WRITE_LAST = 0x28,
    ROCE_UC_WRITE_LAST_WITH_IMM = 0x29,
    ROCE_UC_WRITE_ONLY = 0x2A,
    ROCE_UC_WRITE_ONLY_WITH_IMM = 0x2B,

    ROCE_UD_SEND_ONLY = 0x64,
    ROCE_UD_SEND_ONLY_WITH_IMM = 0x65,

    ROCE_CNP = 0x81,

    /* Those of RC, for a shared receive queue that each request names (Annex A14). */
    ROCE_XRC_SEND_FIRST = 0xA0,
    ROCE_XRC_SEND_MIDDLE = 0xA1,
    ROCE_XRC_SEND_LAST = 0xA2,
    ROCE_XRC_SEND_LAST_WITH_IMM = 0xA3,
    ROCE_XRC_SEND_ONLY = 0xA4,
    ROCE_XRC_SEND_ONLY_WITH_IMM = 0xA5,
    ROCE_XRC_WRITE_FIRST = 0xA6,
    ROCE_XRC_WRITE_MIDDLE = 0xA7,
    ROCE_XRC_WRITE_LAST = 0xA8,
    ROCE_XRC_WRITE_LAST_WITH_IMM = 0xA9,
    ROCE_XRC_WRITE_ONLY = 0xAA,
    ROCE_XRC_WRITE_ONLY_WITH_IMM = 0xAB,
    ROCE_XRC_READ_REQUEST = 0xAC,
    ROCE_XRC_READ_RESP_FIRST = 0xAD,
    ROCE_XRC_READ_RESP_MIDDLE = 0xAE,
    ROCE_XRC_READ_RESP_LAST = 0xAF,
    ROCE_XRC_READ_RESP_ONLY = 0xB0,
    ROCE_XRC_ACK = 0xB1,
    ROCE_XRC_ATOMIC_ACK = 0xB2,
    ROCE_XRC_CMP_SWAP = 0xB3,
    ROCE_XRC_FETCH_ADD = 0xB4,
    ROCE_XRC_SEND_LAST_WITH_INV = 0xB6,
    ROCE_XRC_SEND_ONLY_WITH_INV = 0xB7,
};

/* The services' opcodes are alike in their lower 5 bits; the upper 3 are the service (IBA 9.2.1). */
#define ROCE_OPERATION 0x1F
#define ROCE_SERVICE_RC 0x00
#define ROCE_SERVICE_UC 0x20
#define ROCE_SERVICE_XRC 0xA0

enum roce_opcode_mask {
    /* direction: one of the two (neither for a CNP) */
    OPC_REQUEST = 1 << 0,  /* goes from requester to responder */
    OPC_RESPONSE = 1 << 1, /* goes from responder to requester */
    /* operation: one of them (none for a CNP) */
    OPC_SEND = 1 << 2,
    OPC_WRITE = 1 << 3,
    OPC_READ = 1 << 4,      /* the READ request; its response packets are OPC_READ_RESP */
    OPC_ATOMIC = 1 << 5,    /* the atomic requests; their response is OPC_ACK | OPC_ATMACK */
    OPC_READ_RESP = 1 << 6, /* READ response packets */
    OPC_ACK = 1 << 7,       /* ACKNOWLEDGE and ATOMIC ACKNOWLEDGE */
    /* place in the message; a packet that is a whole message, request or response has FIRST | LAST */
    OPC_FIRST = 1 << 8,
    OPC_MIDDLE = 1 << 9,
    OPC_LAST = 1 << 10,
    /* contents */
    OPC_PAYLOAD = 1 << 11, /* may carry payload */
    OPC_IMM = 1 << 12,     /* ImmDt */
    OPC_INV = 1 << 13,     /* IETH */
    OPC_RETH = 1 << 14,
    OPC_AETH = 1 << 15,
    OPC_ATMETH = 1 << 16,
    OPC_ATMACK = 1 << 17,
    OPC_DETH = 1 << 18,
    /* transport service: one of them */
    OPC_RC = 1 << 19,
    OPC_UC = 1 << 20,
    OPC_UD = 1 << 21,
    OPC_CNP = 1 << 22,
    OPC_XRC = 1 << 24,      /* requests, all with an XRCETH: for an XRC_RECV queue pair, */
    OPC_XRC_BACK = 1 << 25, /* and what comes back: for an XRC_SEND one */
    /* consequence */
    OPC_USES_RQ = 1 << 23, /* ends a message that completes a receive: last of a SEND, last of a WRITE with immediate */
    /* memory placement extensions (A19): two more operations, and FLUSH's own header */
    OPC_ATOMIC_WRITE = 1 << 28,
    OPC_FLUSH = 1 << 29,
    OPC_FETH = 1 << 30,
    /* requests that take a responder resource and are complete with their own response only */
    OPC_WAITS = OPC_READ | OPC_ATOMIC | OPC_ATOMIC_WRITE | OPC_FLUSH,
};

struct roce_opcode {
    const char *name; /* "RC_SEND_FIRST" */
    uint32_t mask;    /* enum roce_opcode_mask */
    uint8_t header;   /* bytes from the BTH to the payload */
    /* Offsets from the BTH, in bytes; 0: the packet has no such header. */
    uint8_t reth, aeth, atomic_eth, atomic_ack, imm, ieth, deth, xrceth, feth;
};

/* The row of an opcode; NULL: reserved, or of a service that rnic does not have (RD). */
const struct roce_opcode *roce_opcode(uint8_t opcode);

#endif
