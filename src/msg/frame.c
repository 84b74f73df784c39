/* SPDX-License-Identifier: Apache-2.0
 *
 * The format of a SEND, read and written.  What comes in is hostile until checked here.
 */
#include "msg/frame.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/bytes.h"

#define ANY_BODY UINT32_MAX /* whoever handles the SEND checks the length */
#define REMOTE_ACCESS (RNIC_ACCESS_REMOTE_WRITE | RNIC_ACCESS_REMOTE_READ | RNIC_ACCESS_REMOTE_ATOMIC)

static const struct {
    const char *name;
    int flags[2];  /* that it may have, in version 1 and in version 2 */
    uint32_t body; /* bytes */
} types[FRAME_TYPES] = {
    [FRAME_MESSAGE] = {"MESSAGE", {FRAME_LAST, FRAME_LAST | FRAME_TAGGED}, ANY_BODY},
    [FRAME_MORE] = {"MORE", {FRAME_LAST, FRAME_LAST}, ANY_BODY},
    [FRAME_CREDIT] = {"CREDIT", {0}, 0},
    [FRAME_SHARE] = {"SHARE", {0, FRAME_DESCRIBED}, ANY_BODY},
    [FRAME_WITHDRAW] = {"WITHDRAW", {0}, 0},
    [FRAME_RELEASE] = {"RELEASE", {0}, 0},
    [FRAME_GOODBYE] = {"GOODBYE", {0}, 0},
    [FRAME_ABORT] = {"ABORT", {0}, ANY_BODY},
    [FRAME_ANNOUNCE] = {"ANNOUNCE", {0, FRAME_TAGGED}, ANY_BODY},
    [FRAME_TAKEN] = {"TAKEN", {0}, 0},
    [FRAME_STOP] = {"STOP", {0}, 0},
};

const char *msg_frame_name(int type) { return types[type].name; }

int msg_refuse(struct msg_error *why, uint32_t reason, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(why->text, sizeof why->text, fmt, args);
    va_end(args);
    why->kind = MSG_PROTOCOL;
    why->reason = reason;
    return -EPROTO;
}

/* ---------------------------------------------------------------- reading */

int msg_frame_parse(const uint8_t *data, uint32_t bytes, int version, struct frame *f, struct msg_error *why) {
    if (bytes < FRAME_HEADER)
        return msg_refuse(why, MSG_VIOLATION, "a SEND of %u bytes has no room for the header of %d", bytes,
                          FRAME_HEADER);
    *f = (struct frame){
        data[0], data[1], get_be16(data + 2), get_be32(data + 4), data + FRAME_HEADER, bytes - FRAME_HEADER};
    if (!f->type || f->type >= (version < 2 ? FRAME_ANNOUNCE : FRAME_TYPES))
        return msg_refuse(why, MSG_VIOLATION, "there is no SEND of type %u", f->type);
    if (f->flags & ~types[f->type].flags[version >= 2])
        return msg_refuse(why, MSG_VIOLATION, "%s has the flags 0x%02x", msg_frame_name(f->type), f->flags);
    uint32_t body = types[f->type].body;
    if (body != ANY_BODY && f->bytes != body)
        return msg_refuse(why, MSG_VIOLATION, "%s has %u bytes after its header, not %u", msg_frame_name(f->type),
                          f->bytes, body);
    return 0;
}

int msg_frame_parse_message(const struct frame *f, struct frame_message *out, struct msg_error *why) {
    bool tagged = f->flags & FRAME_TAGGED;
    uint32_t needed = FRAME_TOTAL + (tagged ? FRAME_TAG : 0);
    if (f->bytes < needed)
        return msg_refuse(why, MSG_VIOLATION, "MESSAGE has %u bytes after its header, %u are needed", f->bytes, needed);
    *out = (struct frame_message){get_be64(f->body), tagged ? get_be64(f->body + FRAME_TOTAL) : 0, f->body + needed,
                                  f->bytes - needed};
    return 0;
}

static bool ends_beyond(uint64_t addr, uint64_t bytes) { return addr && bytes > -addr; /* beyond 2^64 */ }

int msg_frame_parse_offer(const struct frame *f, struct msg_offer *out, struct msg_error *why) {
    bool tagged = f->flags & FRAME_TAGGED;
    uint32_t size = FRAME_OFFER + (tagged ? FRAME_TAG : 0);
    if (f->bytes != size)
        return msg_refuse(why, MSG_VIOLATION, "ANNOUNCE has %u bytes after its header, not %u", f->bytes, size);
    *out = (struct msg_offer){.number = f->id,
                              .total = get_be64(f->body),
                              .addr = get_be64(f->body + 8),
                              .rkey = get_be32(f->body + 16),
                              .tag = tagged ? get_be64(f->body + FRAME_OFFER) : 0};
    if (!out->total || ends_beyond(out->addr, out->total))
        return msg_refuse(why, MSG_VIOLATION, "ANNOUNCE of %llu bytes at 0x%llx, which cannot be",
                          (unsigned long long)out->total, (unsigned long long)out->addr);
    return 0;
}

/* Whether the description of an array has the form that it says; nothing says that it fits the region. */
static int check_array(const uint8_t *p, uint32_t bytes, struct msg_error *why) {
    uint32_t dimensions = bytes >= FRAME_ARRAY ? p[0] : 0, type = bytes >= FRAME_ARRAY ? p[1] : 0;
    uint32_t at = FRAME_ARRAY + 8 * dimensions;
    if (!type || bytes != at + type)
        return msg_refuse(why, MSG_VIOLATION, "SHARE has %u bytes for the array of its region, which cannot be", bytes);
    for (uint32_t i = at; i < bytes; i++) {
        if (p[i] < 0x20 || p[i] > 0x7E)
            return msg_refuse(why, MSG_VIOLATION, "SHARE has a type of elements that nobody can read");
    }
    return 0;
}

int msg_frame_parse_region(const struct frame *f, struct msg_region *out, struct msg_error *why) {
    bool described = f->flags & FRAME_DESCRIBED;
    if (f->bytes < FRAME_REGION || (!described && f->bytes != FRAME_REGION))
        return msg_refuse(why, MSG_VIOLATION, "SHARE has %u bytes after its header, not %d", f->bytes, FRAME_REGION);
    *out = (struct msg_region){.id = f->id,
                               .addr = get_be64(f->body),
                               .length = get_be64(f->body + 8),
                               .rkey = get_be32(f->body + 16),
                               .access = get_be32(f->body + 20),
                               .array = described ? f->body + FRAME_REGION : NULL,
                               .array_bytes = f->bytes - FRAME_REGION};
    if (ends_beyond(out->addr, out->length))
        return msg_refuse(why, MSG_VIOLATION, "region %u ends beyond the address space", out->id);
    if (!out->access || out->access & ~REMOTE_ACCESS)
        return msg_refuse(why, MSG_VIOLATION, "region %u is shared with the access 0x%x", out->id, out->access);
    return described ? check_array(out->array, out->array_bytes, why) : 0;
}

/* ---------------------------------------------------------------- writing */

uint32_t msg_frame_put(uint8_t *to, int type, int flags, uint16_t credits, uint32_t id) {
    to[0] = (uint8_t)type;
    to[1] = (uint8_t)flags;
    put_be16(to + 2, credits);
    put_be32(to + 4, id);
    return FRAME_HEADER;
}

static uint32_t put_tag(uint8_t *to, uint64_t tag) {
    if (tag)
        put_be64(to, tag);
    return tag ? FRAME_TAG : 0;
}

uint32_t msg_frame_put_message(uint8_t *to, uint16_t credits, uint32_t number, uint64_t total, uint64_t tag,
                               bool last) {
    uint32_t n = msg_frame_put(to, FRAME_MESSAGE, (last ? FRAME_LAST : 0) | (tag ? FRAME_TAGGED : 0), credits, number);
    put_be64(to + n, total);
    n += FRAME_TOTAL;
    return n + put_tag(to + n, tag);
}

uint32_t msg_frame_put_offer(uint8_t *to, uint16_t credits, const struct msg_offer *offer) {
    uint32_t n = msg_frame_put(to, FRAME_ANNOUNCE, offer->tag ? FRAME_TAGGED : 0, credits, offer->number);
    put_be64(to + n, offer->total);
    put_be64(to + n + 8, offer->addr);
    put_be32(to + n + 16, offer->rkey);
    put_be32(to + n + 20, 0);
    n += FRAME_OFFER;
    return n + put_tag(to + n, offer->tag);
}

uint32_t msg_frame_put_region(uint8_t *to, uint16_t credits, const struct msg_region *region, bool describes) {
    uint32_t n = msg_frame_put(to, FRAME_SHARE, describes ? FRAME_DESCRIBED : 0, credits, region->id);
    put_be64(to + n, region->addr);
    put_be64(to + n + 8, region->length);
    put_be32(to + n + 16, region->rkey);
    put_be32(to + n + 20, region->access);
    n += FRAME_REGION;
    if (!describes)
        return n;
    memcpy(to + n, region->array, region->array_bytes);
    return n + region->array_bytes;
}

/* At most `room` bytes of a text, and no part of a character of UTF-8. */
static uint32_t clip(const char *text, uint32_t room) {
    uint32_t n = (uint32_t)strnlen(text, room + 1);
    if (n <= room)
        return n;
    for (n = room; n && (text[n] & 0xC0) == 0x80; n--)
        ;
    return n;
}

uint32_t msg_frame_put_abort(uint8_t *to, uint32_t room, uint32_t reason, const char *text) {
    uint32_t most = room - FRAME_HEADER < FRAME_MAX_TEXT ? room - FRAME_HEADER : FRAME_MAX_TEXT;
    uint32_t n = clip(text, most);
    memcpy(to + msg_frame_put(to, FRAME_ABORT, 0, 0, reason), text, n);
    return FRAME_HEADER + n;
}
