/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles SENDs of the peer.  A SEND is checked whole before it changes anything; a SEND that is not allowed ends the
 * connection.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "msg/machine.h"

/* ---------------------------------------------------------------- the messages that wait for the program */

void msg_in_put(struct msg *m, struct msg_in *in) {
    if (m->in.last)
        m->in.last->next = in;
    else
        m->in.first = in;
    m->in.last = in;
    m->in.n++;
    m->in.weight += EVENT_WEIGHT + in->bytes;
}

int msg_put_back(struct msg *m, uint8_t *data, uint64_t bytes, uint64_t tag, void *object) {
    struct msg_in *in = malloc(sizeof *in);
    if (!in)
        return -ENOMEM;
    *in = (struct msg_in){m->in.first, tag, bytes, data, object};
    m->in.first = in;
    if (!m->in.last)
        m->in.last = in;
    m->in.n++;
    m->in.weight += EVENT_WEIGHT + bytes;
    return 0;
}

struct msg_in *msg_find(const struct msg *m, const uint64_t *tag) {
    struct msg_in *in = m->in.first;
    while (in && tag && in->tag != *tag)
        in = in->next;
    return in;
}

/* The program has made room: receives that were held back are posted, and the peer learns of them. */
static void make_room_known(struct msg *m) {
    msg_in_resume(m);
    if (credits_to_post(&m->credits))
        msg_flush(m);
}

void msg_take(struct msg *m, struct msg_in *in) {
    struct msg_in *before = NULL;
    for (struct msg_in *one = m->in.first; one != in; one = one->next)
        before = one;
    *(before ? &before->next : &m->in.first) = in->next;
    if (m->in.last == in)
        m->in.last = before;
    m->in.n--;
    m->in.weight -= EVENT_WEIGHT + in->bytes;
    if (!in->object)
        m->fetch.target = NULL; /* it has its message */
    make_room_known(m);
}

struct msg_in *msg_in_make(struct msg *m, uint64_t bytes) {
    struct msg_in *in = calloc(1, sizeof *in);
    if (!in)
        return NULL;
    in->data = m->hooks.make(m->hooks.arg, bytes, &in->object);
    if (!in->data) {
        free(in);
        return NULL;
    }
    in->bytes = bytes;
    return in;
}

void msg_drop(struct msg *m, struct msg_in *in) {
    if (in->object)
        m->hooks.drop(m->hooks.arg, in->object);
    free(in);
}

static void drop_part(struct msg *m) {
    if (m->in.part)
        msg_drop(m, m->in.part);
    m->in.part = NULL;
}

bool msg_in_asks(const struct msg *m, uint64_t tag) { return m->in.tagged && m->hooks.asks(m->hooks.arg, tag); }

/* Whether max_backlog is reached, so that the peer has to wait.  A call that waits may have a message of any length. */
static bool is_full(const struct msg *m) {
    const struct incoming *in = &m->in;
    if (in->discards || (in->wanted && !in->first) || (in->partial && msg_in_asks(m, in->tag)))
        return false;
    return in->weight + in->there >= m->how.max_backlog;
}

void msg_in_resume(struct msg *m) {
    if (is_raw(m)) {
        uint64_t held = m->in.n > m->credits.receives ? m->in.n - m->credits.receives : 0;
        if (m->credits.arrived - held > m->credits.freed) /* a message that was put back takes none back */
            m->credits.freed = m->credits.arrived - held;
        return;
    }
    if (m->credits.freed != m->credits.arrived && !is_full(m))
        m->credits.freed = m->credits.arrived;
}

void msg_want(struct msg *m, bool any, bool tagged) {
    m->in.wanted = any;
    m->in.tagged = tagged;
    make_room_known(m);
}

void msg_in_discard(struct msg *m) {
    m->in.discards = true;
    drop_part(m);
    while (m->in.first) {
        struct msg_in *in = m->in.first;
        msg_take(m, in);
        msg_drop(m, in);
    }
    if (m->in.offered && !m->in.fetching)
        msg_in_taken(m);
    msg_in_resume(m);
}

void msg_in_let_go(struct msg *m) {
    drop_part(m);
    m->in.there = 0;
    m->in.offered = false; /* a READ that is under way ends by itself */
    for (uint32_t i = 0; i < m->theirs.n; i++)
        free((void *)m->theirs.known[i].array);
    m->theirs.n = 0;
    m->theirs.changes++;
}

/* ---------------------------------------------------------------- MESSAGE, MORE */

/* A message that would come in while another one has to be READ first. */
static int check_none_announced(const struct msg *m, const struct frame *f, struct msg_error *why) {
    if (!m->in.offered && !m->in.has_unconfirmed)
        return 0;
    return msg_refuse(why, MSG_VIOLATION, "%s came before message %u was taken", msg_frame_name(f->type),
                      m->in.offered ? m->in.offer.number : m->in.unconfirmed);
}

static int check_length(const struct msg *m, uint32_t number, uint64_t total, struct msg_error *why) {
    if (total <= m->how.max_message)
        return 0;
    return msg_refuse(why, MSG_TOO_LONG, "message %u of %llu bytes is longer than %llu, the most we take", number,
                      (unsigned long long)total, (unsigned long long)m->how.max_message);
}

/* Memory for the message, or for more of it.  It grows with the bytes that have come, never with what a header claims. */
static int make_room(struct msg *m, uint64_t total, uint64_t there) {
    struct incoming *in = &m->in;
    uint64_t at_once = m->credits.receives * m->how.receive_size;
    if (!in->part) {
        in->room = total < at_once ? total : at_once;
        in->part = msg_in_make(m, in->room);
        return in->part ? 0 : -ENOMEM;
    }
    if (there <= in->room)
        return 0;
    uint64_t room = 2 * in->room < total ? 2 * in->room : total;
    uint8_t *data = m->hooks.grow(m->hooks.arg, room, &in->part->object);
    if (!data)
        return -ENOMEM;
    in->part->data = data;
    in->room = room;
    return 0;
}

static void whole(struct msg *m) {
    struct incoming *in = &m->in;
    in->partial = false;
    in->there = 0;
    in->complete++;
    if (in->part) {
        in->part->bytes = in->total;
        in->part->tag = in->tag;
        msg_in_put(m, in->part);
    }
    in->part = NULL;
}

static int check_fragment(const struct msg *m, const struct frame *f, const struct frame_message *piece,
                          struct msg_error *why) {
    uint64_t there = m->in.there + piece->bytes;
    unsigned long long at = there, of = piece->total;
    bool last = f->flags & FRAME_LAST;
    uint32_t due = (uint32_t)m->in.complete;
    if (f->id != due)
        return msg_refuse(why, MSG_VIOLATION, "%s of message %u, where %u is due", msg_frame_name(f->type), f->id, due);
    if (piece->total && !piece->bytes)
        return msg_refuse(why, MSG_VIOLATION, "%s of message %u is empty, the message is not", msg_frame_name(f->type),
                          f->id);
    if (there > piece->total)
        return msg_refuse(why, MSG_VIOLATION, "message %u has %llu bytes, and a fragment goes to %llu", f->id, of, at);
    if (last != (there == piece->total))
        return msg_refuse(why, MSG_VIOLATION, "%s of message %u %s LAST at %llu of %llu bytes", msg_frame_name(f->type),
                          f->id, last ? "says" : "does not say", at, of);
    return 0;
}

static int take_fragment(struct msg *m, const struct frame *f, const struct frame_message *piece,
                         struct msg_error *why) {
    struct incoming *in = &m->in;
    int rc = check_fragment(m, f, piece, why);
    if (rc < 0)
        return rc;
    if (!in->discards && make_room(m, piece->total, in->there + piece->bytes) < 0)
        return msg_refuse(why, MSG_TOO_LONG, "there is no memory for message %u of %llu bytes", f->id,
                          (unsigned long long)piece->total);
    if (in->part)
        m->hooks.copy(m->hooks.arg, in->part->data + in->there, piece->payload, piece->bytes);
    in->partial = true;
    in->total = piece->total;
    in->tag = piece->tag;
    in->there += piece->bytes;
    if (f->flags & FRAME_LAST)
        whole(m);
    return 0;
}

static int on_message(struct msg *m, const struct frame *f, struct msg_error *why) {
    struct frame_message piece;
    int rc = check_none_announced(m, f, why);
    if (rc == 0)
        rc = msg_frame_parse_message(f, &piece, why);
    if (rc == 0 && m->in.partial)
        rc = msg_refuse(why, MSG_VIOLATION, "MESSAGE %u came before message %u was complete", f->id,
                        (uint32_t)m->in.complete);
    if (rc == 0)
        rc = check_length(m, f->id, piece.total, why);
    return rc < 0 ? rc : take_fragment(m, f, &piece, why);
}

static int on_more(struct msg *m, const struct frame *f, struct msg_error *why) {
    if (!m->in.partial)
        return msg_refuse(why, MSG_VIOLATION, "MORE of message %u, which was not begun", f->id);
    if (!f->bytes)
        return msg_refuse(why, MSG_VIOLATION, "MORE of message %u is empty", f->id);
    struct frame_message piece = {m->in.total, m->in.tag, f->body, f->bytes};
    return take_fragment(m, f, &piece, why);
}

/* ---------------------------------------------------------------- ANNOUNCE, TAKEN, STOP */

void msg_in_taken(struct msg *m) {
    struct incoming *in = &m->in;
    in->offered = in->fetching = false;
    in->has_unconfirmed = in->has_taken = true;
    in->unconfirmed = in->taken = (uint32_t)in->complete;
    in->complete++;
}

static int on_announce(struct msg *m, const struct frame *f, struct msg_error *why) {
    struct incoming *in = &m->in;
    struct msg_offer offer;
    int rc = check_none_announced(m, f, why);
    if (rc == 0 && in->partial)
        rc = msg_refuse(why, MSG_VIOLATION, "ANNOUNCE inside of message %u", (uint32_t)in->complete);
    if (rc == 0)
        rc = msg_frame_parse_offer(f, &offer, why);
    if (rc == 0 && offer.number != (uint32_t)in->complete)
        rc = msg_refuse(why, MSG_VIOLATION, "ANNOUNCE of message %u, where %u is due", offer.number,
                        (uint32_t)in->complete);
    if (rc == 0)
        rc = check_length(m, offer.number, offer.total, why);
    if (rc < 0)
        return rc;
    in->offer = offer;
    in->offered = true;
    if (in->discards)
        msg_in_taken(m);
    return 0;
}

static int on_taken(struct msg *m, const struct frame *f, struct msg_error *why) {
    if (!msg_out_taken(m, f->id))
        return msg_refuse(why, MSG_VIOLATION, "TAKEN of message %u, which waits for none", f->id);
    return 0;
}

static int on_stop(struct msg *m, const struct frame *f, struct msg_error *why) {
    struct incoming *in = &m->in;
    bool due = f->id == (uint32_t)in->complete;
    if (due && in->partial) {
        drop_part(m);
        in->partial = false;
        in->there = 0;
        in->complete++;
    } else if ((in->has_taken && f->id == in->taken) || (due && in->fetching)) {
        return 0; /* too late: it has been taken, or is being READ */
    } else if (due && in->offered) {
        msg_in_taken(m);
    } else {
        return msg_refuse(why, MSG_VIOLATION, "STOP of message %u, which was not begun", f->id);
    }
    in->stopped++;
    return 0;
}

/* ---------------------------------------------------------------- CREDIT, regions */

static int on_credit(struct msg *m, const struct frame *f, struct msg_error *why) {
    (void)m;
    if (f->credits < MIN_REFILL)
        return msg_refuse(why, MSG_CREDIT, "CREDIT returns %u, it must be two or more", f->credits);
    return 0;
}

static uint32_t index_of(const struct msg *m, uint32_t id) {
    uint32_t i = 0;
    while (i < m->theirs.n && m->theirs.known[i].id != id)
        i++;
    return i;
}

const struct msg_region *msg_regions_find(const struct msg *m, uint32_t id) {
    uint32_t i = index_of(m, id);
    return i < m->theirs.n ? &m->theirs.known[i] : NULL;
}

/* The array's description lies in the receive buffer; the region keeps a copy. */
static int add_region(struct regions *theirs, struct msg_region *region) {
    if (theirs->n == theirs->room) {
        uint32_t room = 2 * theirs->room + 8;
        void *known = realloc(theirs->known, room * sizeof *theirs->known);
        if (!known)
            return -ENOMEM;
        theirs->known = known;
        theirs->room = room;
    }
    if (region->array) {
        void *copy = malloc(region->array_bytes);
        if (!copy)
            return -ENOMEM;
        region->array = memcpy(copy, region->array, region->array_bytes);
    }
    region->serial = ++theirs->changes;
    theirs->known[theirs->n++] = *region;
    return 0;
}

static int on_share(struct msg *m, const struct frame *f, struct msg_error *why) {
    struct msg_region region;
    int rc = msg_frame_parse_region(f, &region, why);
    if (rc < 0)
        return rc;
    if (msg_regions_find(m, region.id))
        return msg_refuse(why, MSG_REGION, "region %u is shared twice", region.id);
    if (m->theirs.n >= m->how.max_regions)
        return msg_refuse(why, MSG_REGION, "more than %u regions are shared", m->how.max_regions);
    if (add_region(&m->theirs, &region) < 0)
        return msg_refuse(why, MSG_REGION, "there is no memory for region %u", region.id);
    return 0;
}

static int on_withdraw(struct msg *m, const struct frame *f, struct msg_error *why) {
    uint32_t i = index_of(m, f->id);
    if (i == m->theirs.n)
        return msg_refuse(why, MSG_REGION, "region %u is withdrawn, and was not shared", f->id);
    free((void *)m->theirs.known[i].array);
    m->theirs.known[i] = m->theirs.known[--m->theirs.n];
    m->theirs.withdrawals++;
    m->theirs.changes++;
    return 0;
}

static int on_release(struct msg *m, const struct frame *f, struct msg_error *why) {
    uint32_t number = f->id - m->out.released, to_come = m->out.withdrawn - m->out.released;
    if (number < 1 || number > to_come)
        return msg_refuse(why, MSG_REGION, "RELEASE says %u, after %u and with %u to come", f->id, m->out.released,
                          to_come);
    m->out.released = f->id;
    return 0;
}

const struct msg_region *msg_regions(const struct msg *m, uint32_t *n) {
    *n = m->theirs.n;
    return m->theirs.known;
}

uint64_t msg_changes(const struct msg *m) { return m->theirs.changes; }
uint32_t msg_released(const struct msg *m) { return m->out.released; }

/* ---------------------------------------------------------------- the end */

static int on_goodbye(struct msg *m, const struct frame *f, struct msg_error *why) {
    int rc = check_none_announced(m, f, why);
    if (rc == 0 && m->in.partial)
        rc = msg_refuse(why, MSG_VIOLATION, "GOODBYE inside of message %u", (uint32_t)m->in.complete);
    if (rc == 0 && f->id != (uint32_t)m->in.complete)
        rc = msg_refuse(why, MSG_VIOLATION, "GOODBYE after %u messages, %llu have come", f->id,
                        (unsigned long long)m->in.complete);
    if (rc < 0)
        return rc;
    m->in.goodbye = true;
    msg_ends_step(m, GOODBYE_RECEIVED);
    return 0;
}

static int on_abort(struct msg *m, const struct frame *f, struct msg_error *why) {
    (void)why;
    msg_ends_aborted(m, f->id, f->body, f->bytes);
    return 0;
}

/* ---------------------------------------------------------------- any SEND */

static const struct rule {
    int (*take)(struct msg *m, const struct frame *f, struct msg_error *why);
    bool talk;    /* not after GOODBYE; the program hears of it, so its receive may be held back */
    bool reserve; /* it may use the last credit */
    bool spare;   /* it needs none: there is a receive for it of which the peer is not told */
} rules[FRAME_TYPES] = {
    [FRAME_MESSAGE] = {on_message, .talk = true},   [FRAME_MORE] = {on_more, .talk = true},
    [FRAME_CREDIT] = {on_credit, .reserve = true},  [FRAME_SHARE] = {on_share, .talk = true},
    [FRAME_WITHDRAW] = {on_withdraw, .talk = true}, [FRAME_RELEASE] = {on_release},
    [FRAME_GOODBYE] = {on_goodbye, .talk = true},   [FRAME_ABORT] = {on_abort, .reserve = true},
    [FRAME_ANNOUNCE] = {on_announce, .talk = true}, [FRAME_TAKEN] = {on_taken, .spare = true},
    [FRAME_STOP] = {on_stop, .talk = true},
};

static int check_credit(const struct credits *c, const struct rule *rule, struct msg_error *why) {
    uint64_t left = c->told - c->arrived - MSG_SPARE;
    if (!rule->spare && left <= (rule->reserve ? 0 : RESERVED))
        return msg_refuse(why, MSG_CREDIT, "a SEND without a credit: %llu left, the last of which is for CREDIT alone",
                          (unsigned long long)left);
    return 0;
}

static int check_refill(const struct credits *c, uint16_t refill, struct msg_error *why) {
    uint64_t used = c->spent - c->returned;
    if (refill > used)
        return msg_refuse(why, MSG_CREDIT, "%u credits returned where %llu of %llu were in use", refill,
                          (unsigned long long)used, (unsigned long long)c->given);
    return 0;
}

static int take(struct msg *m, const uint8_t *data, uint32_t bytes, struct msg_error *why) {
    struct frame f;
    int rc = msg_frame_parse(data, bytes, m->peer.version, &f, why);
    if (rc < 0)
        return rc;
    const struct rule *rule = &rules[f.type];
    rc = check_credit(&m->credits, rule, why);
    if (rc == 0 && rule->talk && m->state != MSG_OPEN && m->state != MSG_SAID_GOODBYE)
        rc = msg_refuse(why, MSG_VIOLATION, "%s after GOODBYE", msg_frame_name(f.type));
    if (rc == 0)
        rc = check_refill(&m->credits, f.credits, why);
    if (rc == 0)
        rc = rule->take(m, &f, why);
    if (rc < 0)
        return rc;
    m->credits.returned += f.credits;
    m->credits.arrived++;
    m->credits.told += rule->spare;
    if (!(rule->talk && is_full(m)))
        m->credits.freed++;
    return 0;
}

/* A SEND of a raw peer is a message. */
static void take_raw(struct msg *m, const uint8_t *data, uint32_t bytes) {
    struct msg_in *in = m->in.discards ? NULL : msg_in_make(m, bytes);
    if (in) {
        m->hooks.copy(m->hooks.arg, in->data, data, bytes);
        msg_in_put(m, in);
    } else if (!m->in.discards) {
        msg_lost(m, "there is no memory for a message");
    }
    m->in.complete++;
    m->credits.arrived++;
    msg_in_resume(m);
}

/* Without a connection manager, the last word of the peer is a second GOODBYE. */
static bool is_farewell(const struct msg *m, const uint8_t *data, uint32_t bytes) {
    return m->in_band && m->in.goodbye && bytes == FRAME_HEADER && data[0] == FRAME_GOODBYE &&
           (m->state == MSG_CLOSED || msg_ends_is_last_word(m, get_be32(data + 4)));
}

void msg_in_take(struct msg *m, const uint8_t *data, uint32_t bytes) {
    struct msg_error why;
    m->in.seen++;
    if (is_raw(m)) {
        take_raw(m, data, bytes);
    } else if (is_farewell(m, data, bytes)) {
        m->in.farewell = true;
        msg_ends_step(m, GOODBYE_DELIVERED);
    } else if (is_live(m) && take(m, data, bytes, &why) < 0) {
        msg_ends_fail(m, &why);
    }
}
