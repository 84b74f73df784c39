/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/mad.h"

#include <string.h>

#include "base/bytes.h"

/* Offsets in the common header (IBA 13.4.3) and, from 24 on, in the messages (IBA 12.6.5 to 12.6.17, 12.11.1, 12.11.2). */
enum {
    BASE_VERSION = 0,
    CLASS_VERSION = 2,
    METHOD = 3,
    TRANSACTION = 8,
    SERVICE_ID = 32, /* of REQ and SIDR_REQ */
    REJ_REASON = 34,
    SIDR_STATUS = 28,
    SIDR_SERVICE_ID = 36,
};

#define METHOD_SEND 3
#define TRANSACTION_BYTES 8
#define ID_BYTES 4
#define SERVICE_ID_BYTES 8

static const struct {
    enum mad_target target;
    uint8_t at;
} messages[] = {
    [CM_REQ] = {MAD_FOR_SERVICE, SERVICE_ID},   [CM_MRA] = {MAD_FOR_ID, MAD_REMOTE_ID},
    [CM_REJ] = {MAD_FOR_ID, MAD_REMOTE_ID},     [CM_REP] = {MAD_FOR_ID, MAD_REMOTE_ID},
    [CM_RTU] = {MAD_FOR_ID, MAD_REMOTE_ID},     [CM_DREQ] = {MAD_FOR_ID, MAD_REMOTE_ID},
    [CM_DREP] = {MAD_FOR_ID, MAD_REMOTE_ID},    [CM_SIDR_REQ] = {MAD_FOR_SERVICE, SERVICE_ID},
    [CM_SIDR_REP] = {MAD_FOR_ID, MAD_LOCAL_ID}, [CM_LAP] = {MAD_FOR_ID, MAD_REMOTE_ID},
    [CM_APR] = {MAD_FOR_ID, MAD_REMOTE_ID},
};

struct mad_address mad_address(const uint8_t mad[MAD_BYTES]) {
    uint16_t attribute = get_be16(mad + MAD_ATTRIBUTE);
    struct mad_address out = {MAD_OTHER, 0, 0};
    if (mad[BASE_VERSION] != 1 || mad[MAD_CLASS] != CM_CLASS || mad[CLASS_VERSION] != CM_CLASS_VERSION ||
        mad[METHOD] != METHOD_SEND || attribute >= sizeof messages / sizeof *messages)
        return out;
    out.target = messages[attribute].target;
    if (out.target == MAD_FOR_SERVICE)
        out.service_id = get_be64(mad + messages[attribute].at);
    if (out.target == MAD_FOR_ID)
        out.comm_id = get_be32(mad + messages[attribute].at);
    return out;
}

static void header(uint8_t *answer, const uint8_t *request, uint16_t attribute) {
    memset(answer, 0, MAD_BYTES);
    answer[BASE_VERSION] = 1;
    answer[MAD_CLASS] = CM_CLASS;
    answer[CLASS_VERSION] = CM_CLASS_VERSION;
    answer[METHOD] = METHOD_SEND;
    memcpy(answer + TRANSACTION, request + TRANSACTION, TRANSACTION_BYTES);
    put_be16(answer + MAD_ATTRIBUTE, attribute);
}

/* There is no communication id of ours in it: the REQ made none (IBA 12.6.7). */
static void reject(uint8_t *answer, const uint8_t *request) {
    header(answer, request, CM_REJ);
    memcpy(answer + MAD_REMOTE_ID, request + MAD_LOCAL_ID, ID_BYTES);
    put_be16(answer + REJ_REASON, CM_REJ_INVALID_SERVICE_ID); /* what was rejected, in byte 32, is 0: a REQ */
}

static void deny(uint8_t *answer, const uint8_t *request) {
    header(answer, request, CM_SIDR_REP);
    memcpy(answer + MAD_LOCAL_ID, request + MAD_LOCAL_ID, ID_BYTES);
    answer[SIDR_STATUS] = CM_SIDR_UNSUPPORTED;
    memcpy(answer + SIDR_SERVICE_ID, request + SERVICE_ID, SERVICE_ID_BYTES);
}

/* Whose connection it was has gone: it is over for the other end, too. */
static void release(uint8_t *answer, const uint8_t *request) {
    header(answer, request, CM_DREP);
    memcpy(answer + MAD_LOCAL_ID, request + MAD_REMOTE_ID, ID_BYTES);
    memcpy(answer + MAD_REMOTE_ID, request + MAD_LOCAL_ID, ID_BYTES);
}

bool mad_answer(uint8_t answer[MAD_BYTES], const uint8_t request[MAD_BYTES]) {
    switch (get_be16(request + MAD_ATTRIBUTE)) {
    case CM_REQ:
        reject(answer, request);
        return true;
    case CM_SIDR_REQ:
        deny(answer, request);
        return true;
    case CM_DREQ:
        release(answer, request);
        return true;
    default:
        return false;
    }
}
