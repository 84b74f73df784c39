/* SPDX-License-Identifier: Apache-2.0
 *
 * The tag matching header, at the start of a SEND's payload, and the rendezvous header that may follow it (rdma-core,
 * Documentation/tag_matching.md; <infiniband/tm_types.h>).
 */
#ifndef RNIC_WIRE_TMH_H
#define RNIC_WIRE_TMH_H

#include "base/bytes.h"

#define TMH_BYTES 16
#define RVH_BYTES 16

enum tmh_opcode { TMH_NO_TAG, TMH_RNDV, TMH_FIN, TMH_EAGER };

static inline uint8_t tmh_opcode(const uint8_t *tmh) { return tmh[0]; }
static inline void tmh_set_opcode(uint8_t *tmh, uint8_t opcode) { tmh[0] = opcode; }
static inline uint32_t tmh_app_ctx(const uint8_t *tmh) { return get_be32(tmh + 4); }
static inline uint64_t tmh_tag(const uint8_t *tmh) { return get_be64(tmh + 8); }

static inline uint64_t rvh_va(const uint8_t *rvh) { return get_be64(rvh); }
static inline uint32_t rvh_rkey(const uint8_t *rvh) { return get_be32(rvh + 8); }
static inline uint32_t rvh_len(const uint8_t *rvh) { return get_be32(rvh + 12); }

#endif
