/* SPDX-License-Identifier: Apache-2.0
 *
 * The base transport header (IBA 9.2) and the extended ones (IBA 9.3), as they lie on the wire.
 *
 * Each field is described once, below (wire/field.h).  A function takes a pointer to its own header, bth + row->reth for a RETH.
 * bth_clear() zeroes the BTH.
 */
#ifndef RNIC_WIRE_BTH_H
#define RNIC_WIRE_BTH_H

#include "wire/field.h"

#define BTH_BYTES 12
#define RETH_BYTES 16
#define AETH_BYTES 4
#define ATMETH_BYTES 28
#define ATMACK_BYTES 8
#define IMMDT_BYTES 4
#define IETH_BYTES 4
#define DETH_BYTES 8
#define XRCETH_BYTES 4
#define FETH_BYTES 4
#define CNP_RESERVED_BYTES 16
#define ACK_BYTES (BTH_BYTES + AETH_BYTES) /* an ACK, without an ICRC */
/* The longest of all packet types: BTH + XRCETH + AtomicETH. */
#define ROCE_MAX_HEADER (BTH_BYTES + XRCETH_BYTES + ATMETH_BYTES)

/*    header  field    word offset shift width */
FIELD(bth, opcode, 8, 0, 0, 8)
FIELD(bth, se, 8, 1, 7, 1)   /* solicited event */
FIELD(bth, m, 8, 1, 6, 1)    /* MigReq: 1 is the migrated (usual) state */
FIELD(bth, pad, 8, 1, 4, 2)  /* bytes of padding after the payload */
FIELD(bth, tver, 8, 1, 0, 4) /* transport header version: 0 */
FIELD(bth, pkey, 16, 2, 0, 16)
FIELD(bth, fecn, 8, 4, 7, 1) /* byte 4 is variant: it enters the ICRC as ones */
FIELD(bth, becn, 8, 4, 6, 1)
FIELD(bth, dqpn, 32, 4, 0, 24) /* destination QP number */
FIELD(bth, ackreq, 8, 8, 7, 1)
FIELD(bth, psn, 32, 8, 0, 24)

FIELD(reth, va, 64, 0, 0, 64)
FIELD(reth, rkey, 32, 8, 0, 32)
FIELD(reth, len, 32, 12, 0, 32) /* bytes of the whole message (DMALen) */

FIELD(aeth, syndrome, 8, 0, 0, 8) /* enum aeth_syndrome */
FIELD(aeth, msn, 32, 0, 0, 24)

FIELD(atmeth, va, 64, 0, 0, 64)
FIELD(atmeth, rkey, 32, 8, 0, 32)
FIELD(atmeth, swap_add, 64, 12, 0, 64)
FIELD(atmeth, compare, 64, 20, 0, 64)

FIELD(atmack, orig, 64, 0, 0, 64) /* the remote value before the operation */

FIELD(immdt, data, 32, 0, 0, 32)

FIELD(ieth, rkey, 32, 0, 0, 32)

FIELD(deth, qkey, 32, 0, 0, 32)
FIELD(deth, sqpn, 32, 4, 0, 24) /* source QP number */

FIELD(xrceth, srqn, 32, 0, 0, 24) /* number of the shared receive queue (IBA A14.3.1) */
/* Flush (A19.4.3); the upper 26 bits are reserved. */
FIELD(feth, level, 32, 0, 4, 2) /* enum rnic_selectivity_level */
FIELD(feth, type, 32, 0, 0, 4)  /* enum rnic_placement_type */

/* Queue pair numbers with a meaning of their own (IBA 9.2.3, 10.2.4.1). */
#define QPN_SMI 0u
#define QPN_GSI 1u
#define QPN_MULTICAST 0xFFFFFFu
#define GSI_QKEY 0x80010000u       /* IBA 10.2.5 */
#define QKEY_PRIVILEGED 0x80000000u /* a work request with this bit asks for the queue pair's own Q_Key (IBA 10.2.5) */

static inline void bth_clear(uint8_t *p) { memset(p, 0, BTH_BYTES); }
/* The fields that most packets have, with MigReq as it usually is; of each packet, so the words are stored at once. */
static inline void bth_build(uint8_t *p, uint8_t opcode, uint8_t pad, uint16_t pkey, uint32_t dqpn, uint32_t psn) {
    put_be32(p, (uint32_t)opcode << 24 | 1u << 22 | (uint32_t)pad << 20 | pkey);
    put_be32(p + 4, dqpn);
    put_be32(p + 8, psn);
}

/* AETH syndrome (IBA 9.7.5.1.1 and tables there): bit 7 is reserved, bits 6:5 the type, bits 4:0 its value. */
enum aeth_syndrome {
    AETH_TYPE = 0x60,  /* mask */
    AETH_VALUE = 0x1F, /* mask */

    AETH_ACK = 0x00,            /* | credit code */
    AETH_CREDIT_INVALID = 0x1F, /* the value of an ACK that does not count credits (a QP with an SRQ) */

    AETH_RNR = 0x20, /* | timer code: the enum of min_rnr_timer */

    AETH_RESERVED = 0x40, /* the type that nobody sends */

    AETH_NAK = 0x60, /* | NAK code; the five that exist: */
    AETH_NAK_PSN_SEQ = 0x60,
    AETH_NAK_INVALID_REQUEST = 0x61,
    AETH_NAK_REMOTE_ACCESS = 0x62,
    AETH_NAK_REMOTE_OPERATIONAL = 0x63,
    AETH_NAK_INVALID_RD_REQUEST = 0x64,
};

#endif
