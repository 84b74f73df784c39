/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/rdmap.h"

static const struct rdmap_row rows[RDMAP_OPCODES] = {
    [RDMAP_WRITE] = {.tagged = true},
    [RDMAP_READ_REQUEST] = {.queue = QUEUE_REQUEST, .more = READ_REQUEST_BYTES, .whole = true},
    [RDMAP_READ_RESPONSE] = {.tagged = true},
    [RDMAP_SEND] = {.queue = QUEUE_SEND},
    [RDMAP_SEND_INV] = {.queue = QUEUE_SEND},
    [RDMAP_SEND_SE] = {.queue = QUEUE_SEND},
    [RDMAP_SEND_SE_INV] = {.queue = QUEUE_SEND},
    [RDMAP_TERMINATE] = {.queue = QUEUE_TERMINATE, .more = TERMINATE_BYTES},
    [RDMAP_IMMEDIATE] = {.queue = QUEUE_SEND, .more = IMMEDIATE_BYTES, .whole = true, .rfc7306 = true},
    [RDMAP_IMMEDIATE_SE] = {.queue = QUEUE_SEND, .more = IMMEDIATE_BYTES, .whole = true, .rfc7306 = true},
    [RDMAP_ATOMIC_REQUEST] = {.queue = QUEUE_REQUEST, .more = ATOMIC_REQUEST_BYTES, .whole = true, .rfc7306 = true},
    [RDMAP_ATOMIC_RESPONSE] = {.queue = QUEUE_RESPONSE, .more = ATOMIC_RESPONSE_BYTES, .whole = true, .rfc7306 = true},
};

const struct rdmap_row *rdmap_row(unsigned opcode) { return opcode < RDMAP_OPCODES ? &rows[opcode] : NULL; }
