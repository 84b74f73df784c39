/* SPDX-License-Identifier: Apache-2.0
 *
 * tm_types.h: the headers that a sender to a tag matching SRQ puts before its message.
 */
#ifndef _TM_TYPES_H
#define _TM_TYPES_H

#include <linux/types.h>
#include <stdint.h>

enum ibv_tmh_op { IBV_TMH_NO_TAG, IBV_TMH_RNDV, IBV_TMH_FIN, IBV_TMH_EAGER };
struct ibv_tmh {
    uint8_t opcode; /* enum ibv_tmh_op */
    uint8_t reserved[3];
    __be32 app_ctx; /* the sender's: struct ibv_wc_tm_info has it as priv */
    __be64 tag;
};
struct ibv_rvh { /* rendezvous: the memory that the receiver is to read */
    __be64 va;
    __be32 rkey, len;
};

#endif
