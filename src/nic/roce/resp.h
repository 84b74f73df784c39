/* SPDX-License-Identifier: Apache-2.0
 *
 * The responder's answers that wait: resp.c, which executes requests, asks for them, and resp_out.c sends them.
 */
#ifndef RNIC_ROCE_RESP_H
#define RNIC_ROCE_RESP_H

#include "roce/roce.h"

static inline void resp_want_ack(struct responder *resp, enum ack_urgency how, uint64_t now) {
    if (resp->ack >= how)
        return;
    if (resp->ack == ACK_NONE || how == ACK_ASKED)
        resp->ack_since = now;
    resp->ack = how;
}

/* The program sends something. */
static inline void resp_note_answer(struct responder *resp, uint64_t now) {
    resp->answers = now < resp->ack_since + ANSWER_NS;
}

static inline void resp_want_nak(struct responder *resp, uint8_t syndrome) {
    resp->nak_pending = true;
    resp->nak_sent = true;
    resp->nak_high = resp->psn;
    resp->syndrome = syndrome;
}

static inline void resp_enqueue(struct responder *resp, struct resource *res, uint32_t from, uint32_t end) {
    if (res->queued) { /* asked again while it is being answered: go back, or just go on to there; what is still to come
                        * says as much as a part that has been sent */
        if (end <= res->cur)
            return;
        if (from < res->cur)
            res->start = res->cur = from;
        res->end = res->end > end ? res->end : end;
        return;
    }
    res->queued = true;
    res->start = res->cur = from;
    res->end = end;
    resp->queue[(resp->queue_head + resp->queue_count++) % resp->res_size] = (uint32_t)(res - resp->res);
}

/* A repetition of an answer whose place a later request takes is not needed any more: the requester has that answer, or
 * it would have too many requests under way. */
static inline void resp_unqueue(struct responder *resp, const struct resource *res) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < resp->queue_count; i++) {
        uint32_t entry = resp->queue[(resp->queue_head + i) % resp->res_size];
        if (&resp->res[entry] != res)
            resp->queue[(resp->queue_head + kept++) % resp->res_size] = entry;
    }
    resp->queue_count = kept;
}

#endif
