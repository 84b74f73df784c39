/* SPDX-License-Identifier: Apache-2.0
 *
 * frame.h: the format of a SEND, a header of 8 bytes and a body (docs/endpoint-protocol.md, "Every SEND").
 */
#ifndef RNIC_MSG_FRAME_H
#define RNIC_MSG_FRAME_H

#include "msg/msg.h"

enum frame_type {
    FRAME_MESSAGE = 1, /* the first, or the only, fragment of a message */
    FRAME_MORE,        /* a further fragment of the message that was begun */
    FRAME_CREDIT,      /* credits alone */
    FRAME_SHARE,       /* a region that the peer may use */
    FRAME_WITHDRAW,    /* a region that the peer may no longer use */
    FRAME_RELEASE,     /* a confirmation of withdrawals: no operation on those regions comes after it */
    FRAME_GOODBYE,     /* the end of the sender's messages, shares and withdrawals */
    FRAME_ABORT,       /* the connection is over, for the reason that the text gives */
    FRAME_ANNOUNCE,    /* of version 2, as all that follow: a message that the receiver READs from where it lies */
    FRAME_TAKEN,       /* the announced message was READ, or is not wanted */
    FRAME_STOP,        /* the message that has begun, or was announced, is taken back */
    FRAME_TYPES
};

enum frame_flag {
    FRAME_LAST = 1,      /* of MESSAGE and MORE: the message is complete */
    FRAME_TAGGED = 2,    /* of MESSAGE and ANNOUNCE: the message has a tag */
    FRAME_DESCRIBED = 4, /* of SHARE: the region holds an array */
};

/* Bytes of headers and of bodies without payload. */
#define FRAME_HEADER 8
#define FRAME_TOTAL 8
#define FRAME_TAG 8
#define FRAME_REGION 24
#define FRAME_OFFER 24
#define FRAME_ARRAY 8     /* of a SHARE with DESCRIBED, before the shape */
#define FRAME_MAX_TEXT 140 /* of an ABORT: a REJ has no more either (IBA 12.6.7) */

struct frame { /* one SEND, parsed */
    uint8_t type, flags;
    uint16_t credits; /* receives that the sender has posted anew */
    uint32_t id;      /* by type: a message's number, a region's id, a count, or a reason */
    const uint8_t *body;
    uint32_t bytes; /* of the body */
};

struct frame_message { /* the body of a MESSAGE */
    uint64_t total, tag;
    const uint8_t *payload;
    uint32_t bytes; /* of this fragment */
};

/* Each returns 0, or -EPROTO with the reason in `why`: the bytes cannot be.  `version` is the connection's. */
int msg_frame_parse(const uint8_t *data, uint32_t bytes, int version, struct frame *f, struct msg_error *why);
int msg_frame_parse_message(const struct frame *f, struct frame_message *out, struct msg_error *why);
int msg_frame_parse_offer(const struct frame *f, struct msg_offer *out, struct msg_error *why);
int msg_frame_parse_region(const struct frame *f, struct msg_region *out, struct msg_error *why);

const char *msg_frame_name(int type);

/* Each writes a SEND, or its first bytes, and returns how many. */
uint32_t msg_frame_put(uint8_t *to, int type, int flags, uint16_t credits, uint32_t id);
uint32_t msg_frame_put_message(uint8_t *to, uint16_t credits, uint32_t number, uint64_t total, uint64_t tag, bool last);
uint32_t msg_frame_put_offer(uint8_t *to, uint16_t credits, const struct msg_offer *offer);
/* `describes`: the peer understands the description of an array, and has room for it. */
uint32_t msg_frame_put_region(uint8_t *to, uint16_t credits, const struct msg_region *region, bool describes);
uint32_t msg_frame_put_abort(uint8_t *to, uint32_t room, uint32_t reason, const char *text);

/* Bytes before the payload of the first fragment of a message. */
static inline uint32_t frame_message_header(uint64_t tag) { return FRAME_HEADER + FRAME_TOTAL + (tag ? FRAME_TAG : 0); }

/* Notes what the peer did wrong; -EPROTO. */
int msg_refuse(struct msg_error *why, uint32_t reason, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
