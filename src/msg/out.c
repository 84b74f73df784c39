/* SPDX-License-Identifier: Apache-2.0
 *
 * What is sent next: the queue of messages, shares, withdrawals and the goodbye, and what overtakes it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "msg/machine.h"

/* ---------------------------------------------------------------- the queue */

static void append(struct msg *m, struct item *item) {
    *(m->out.last ? &m->out.last->next : &m->out.first) = item;
    m->out.last = item;
}

static void unlink_item(struct msg *m, struct item *item) {
    struct item *before = NULL;
    for (struct item *one = m->out.first; one != item; one = one->next)
        before = one;
    *(before ? &before->next : &m->out.first) = item->next;
    if (m->out.last == item)
        m->out.last = before;
}

static void free_item(struct msg *m, struct item *item) {
    if (item->mr)
        msg_let_go(m, item->mr);
    free(item->copy);
    if (!item->on_stack)
        free(item);
}

static void drop(struct msg *m, struct item *item) {
    unlink_item(m, item);
    free_item(m, item);
}

void msg_out_clear(struct msg *m) {
    while (m->out.first)
        drop(m, m->out.first);
}

static bool is_message(const struct item *item) { return item->kind == FRAME_MESSAGE || item->kind == FRAME_ANNOUNCE; }

uint64_t msg_out_messages(const struct msg *m, uint64_t *bytes) {
    uint64_t n = 0;
    *bytes = 0;
    for (const struct item *item = m->out.first; item; item = item->next) {
        n += is_message(item);
        *bytes += is_message(item) && !item->stopped ? item->bytes - item->offset : 0;
    }
    return n;
}

uint64_t msg_handle(const struct msg *m) { return m->out.handles; }

uint64_t msg_left(const struct msg *m) {
    const struct item *item = m->out.first;
    while (item && (!is_message(item) || item->copy || item->stopped))
        item = item->next;
    return item ? item->handle - 1 : m->out.handles;
}

uint64_t msg_sent(const struct msg *m) { return m->error.kind ? m->out.sent_at_end : msg_left(m); }

bool msg_is_sending(const struct msg *m) { return m->out.first || m->out.handed_out != m->out.completed; }

bool msg_out_taken(struct msg *m, uint32_t number) {
    struct item *item = m->out.first;
    if (!item || item->kind != FRAME_ANNOUNCE || !item->begun || item->number != number)
        return false;
    m->out.delivered += !item->stopped;
    drop(m, item);
    return true;
}

/* ---------------------------------------------------------------- what the program sends */

static int may_send(const struct msg *m) { return (is_live(m) || is_raw(m)) && !m->close_wanted ? 0 : -ESHUTDOWN; }

/* A message that is registered where it lies, for the peer to READ; NULL: it goes in pieces. */
static struct rnic_mr *announce(struct msg *m, const void *data, uint64_t bytes) {
    struct rnic_mr *mr;
    if (!m->how.announce || bytes < m->how.announce || !peer_knows(m, MSG_KNOWS_ANNOUNCE))
        return NULL;
    uint32_t access = RNIC_ACCESS_REMOTE_READ | RNIC_ACCESS_ZERO_BASED;
    return m->ops->reg_mr(m->qp->pd, (void *)data, bytes, access, &mr, NULL) < 0 ? NULL : mr;
}

/* Whether all of a message can go at once, so that nobody has to remember it. */
static bool goes_at_once(const struct msg *m, uint64_t bytes, uint64_t tag) {
    uint64_t first = frame_size(m) - frame_message_header(tag), each = frame_size(m) - FRAME_HEADER;
    uint64_t pieces = 1 + (bytes > first ? (bytes - first + each - 1) / each : 0);
    uint64_t places = m->memory.bounces - (m->out.handed_out - m->out.completed), left = credits_left(&m->credits);
    return !is_raw(m) && m->established && !m->out.first && !m->in.has_unconfirmed &&
           m->theirs.confirmed == m->theirs.withdrawals && pieces <= places && pieces + RESERVED <= left;
}

static struct item *keep(const struct item *item) {
    struct item *kept = malloc(sizeof *kept);
    if (kept) {
        *kept = *item;
        kept->on_stack = false;
    }
    return kept;
}

int msg_send(struct msg *m, const void *data, uint64_t bytes, uint64_t tag, uint64_t *handle) {
    int rc = may_send(m);
    if (rc < 0)
        return rc;
    if (bytes > (is_raw(m) ? m->how.send_size : m->peer.max_message))
        return -EMSGSIZE;
    if (tag && !peer_knows(m, MSG_KNOWS_TAG))
        return -EOPNOTSUPP;
    struct item here = {.kind = FRAME_MESSAGE, .on_stack = true, .data = data, .bytes = bytes, .tag = tag},
                *item = &here;
    here.mr = announce(m, data, bytes);
    if (here.mr)
        here.kind = FRAME_ANNOUNCE;
    if (here.mr || !goes_at_once(m, bytes, tag))
        item = keep(&here);
    if (!item) {
        free_item(m, &here);
        return -ENOMEM;
    }
    *handle = item->handle = ++m->out.handles;
    append(m, item);
    msg_flush(m);
    if (may_send(m) < 0) /* it could not be posted */
        return -ESHUTDOWN;
    return msg_left(m) < *handle;
}

static struct item *find(const struct msg *m, uint64_t handle) {
    struct item *item = m->out.first;
    while (item && !(is_message(item) && item->handle == handle))
        item = item->next;
    return item;
}

/* The rest of the message goes from a copy. */
static int detach(struct msg *m, struct item *item) {
    void *copy = malloc(item->bytes);
    if (!copy)
        return -ENOMEM;
    m->hooks.copy(m->hooks.arg, copy, item->data, item->bytes);
    if (item->mr &&
        m->ops->rereg_mr(item->mr, RNIC_REREG_MR_CHANGE_TRANSLATION, NULL, copy, item->bytes, 0, NULL) < 0) {
        free(copy);
        return -EBUSY;
    }
    item->data = item->copy = copy;
    return 0;
}

/* Drops what waits, but for an announced message: the peer can READ a copy of it until it has the ABORT.  A READ that
 * is refused breaks the queue pair, and the ABORT may not arrive any more. */
void msg_out_abort(struct msg *m) {
    for (struct item *item = m->out.first, *next; item; item = next) {
        next = item->next;
        if (!item->begun || !item->mr || (!item->copy && detach(m, item) < 0))
            drop(m, item);
        else
            item->stopped = true;
    }
}

bool msg_take_back(struct msg *m, uint64_t handle) {
    struct item *item = find(m, handle);
    if (!item || item->stopped)
        return false;
    if (item->copy)
        return true;
    if (!item->begun) {
        drop(m, item);
        return false;
    }
    bool knows_stop = peer_knows(m, MSG_KNOWS_STOP);
    if (item->kind == FRAME_ANNOUNCE && detach(m, item) < 0) { /* a peer that READs it loses the connection */
        msg_let_go(m, item->mr);
        item->mr = NULL;
    }
    if (item->kind == FRAME_MESSAGE && !knows_stop && detach(m, item) < 0) {
        msg_abort(m, "there is no memory for a copy of a message that was cancelled");
        return false;
    }
    item->stopped = knows_stop;
    return !knows_stop;
}

int msg_share(struct msg *m, struct msg_region *region) {
    int rc = is_raw(m) ? -EOPNOTSUPP : may_send(m);
    if (rc < 0)
        return rc;
    struct item *item = calloc(1, sizeof *item + region->array_bytes);
    if (!item)
        return -ENOMEM;
    region->id = ++m->out.region_ids;
    item->kind = FRAME_SHARE;
    item->region = *region;
    if (region->array)
        item->region.array = memcpy(item + 1, region->array, region->array_bytes);
    append(m, item);
    return 0;
}

static int queue(struct msg *m, int kind, uint32_t number) {
    struct item *item = calloc(1, sizeof *item);
    if (!item)
        return -ENOMEM;
    item->kind = kind;
    item->number = number;
    append(m, item);
    return 0;
}

int msg_withdraw(struct msg *m, uint32_t id) {
    int rc = is_raw(m) ? -EOPNOTSUPP : may_send(m);
    if (rc == 0)
        rc = queue(m, FRAME_WITHDRAW, id);
    if (rc == 0)
        m->out.withdrawn++;
    return rc;
}

int msg_out_goodbye(struct msg *m) {
    int rc = queue(m, FRAME_GOODBYE, 0);
    m->out.closing = rc == 0;
    return rc;
}

/* ---------------------------------------------------------------- the next SEND */

static uint16_t owed(const struct msg *m) { return (uint16_t)credits_owed(&m->credits); }

/* Notes that a SEND, or a probe (type 0), is handed out. */
static bool hand_out(struct msg *m, struct posting *p, int type, uint32_t header, bool ends) {
    p->header = header;
    p->number = ++m->out.handed_out;
    m->out.under_way[p->number % UNDER_WAY] = (struct under_way){(uint8_t)type, ends};
    p->signaled = type == FRAME_GOODBYE || type == FRAME_ABORT || !type;
    if (type && type != FRAME_ABORT)
        m->credits.told = m->credits.posted;
    if (type && type != FRAME_TAKEN)
        m->credits.spent++;
    return true;
}

/* A SEND without a body. */
static bool say(struct msg *m, struct posting *p, uint8_t *to, int type, uint32_t id) {
    return hand_out(m, p, type, msg_frame_put(to, type, 0, owed(m), id), false);
}

/* The number of a message, which it has from its first piece on. */
static void begin(struct msg *m, struct item *item) {
    if (!item->begun)
        item->number = (uint32_t)m->out.numbers++;
    item->begun = true;
}

static bool next_piece(struct msg *m, struct item *item, uint8_t *to, struct posting *p) {
    bool first = !item->begun;
    uint32_t header = first ? frame_message_header(item->tag) : FRAME_HEADER;
    uint64_t left = item->bytes - item->offset, most = frame_size(m) - header;
    bool last = left <= most;
    begin(m, item);
    if (first)
        msg_frame_put_message(to, owed(m), item->number, item->bytes, item->tag, last);
    else
        msg_frame_put(to, FRAME_MORE, last ? FRAME_LAST : 0, owed(m), item->number);
    p->bytes = (uint32_t)(last ? left : most);
    m->hooks.copy(m->hooks.arg, to + header, item->data + item->offset, p->bytes);
    item->offset += p->bytes;
    if (last)
        drop(m, item);
    return hand_out(m, p, first ? FRAME_MESSAGE : FRAME_MORE, header, last);
}

static bool next_offer(struct msg *m, struct item *item, uint8_t *to, struct posting *p) {
    begin(m, item);
    struct msg_offer offer = {item->number, item->mr->rkey, item->bytes, item->mr->iova, item->tag};
    return hand_out(m, p, FRAME_ANNOUNCE, msg_frame_put_offer(to, owed(m), &offer), false);
}

static bool next_stop(struct msg *m, struct item *item, uint8_t *to, struct posting *p) {
    say(m, p, to, FRAME_STOP, item->number);
    item->said = true;
    if (item->kind == FRAME_MESSAGE)
        drop(m, item);
    return true;
}

static bool next_share(struct msg *m, struct item *item, uint8_t *to, struct posting *p) {
    const struct msg_region *region = &item->region;
    bool fits = FRAME_HEADER + FRAME_REGION + region->array_bytes <= frame_size(m);
    bool describes = region->array && fits && peer_knows(m, MSG_KNOWS_DESCRIBE);
    uint32_t n = msg_frame_put_region(to, owed(m), region, describes);
    drop(m, item);
    return hand_out(m, p, FRAME_SHARE, n, false);
}

static bool next_word(struct msg *m, struct item *item, uint8_t *to, struct posting *p) {
    bool leaves = item->kind == FRAME_GOODBYE;
    say(m, p, to, item->kind, leaves ? (uint32_t)m->out.numbers : item->number);
    m->out.goodbye_said = leaves;
    drop(m, item);
    return true;
}

static bool next_item(struct msg *m, uint8_t *to, struct posting *p) {
    struct item *item = m->out.first;
    if (!item)
        return false;
    if (is_message(item) && item->stopped)
        return !item->said && next_stop(m, item, to, p);
    switch (item->kind) {
    case FRAME_MESSAGE:
        return next_piece(m, item, to, p);
    case FRAME_ANNOUNCE:
        return !item->begun && next_offer(m, item, to, p);
    case FRAME_SHARE:
        return next_share(m, item, to, p);
    default:
        return next_word(m, item, to, p);
    }
}

/* A message of a raw peer is all of a SEND. */
static bool next_raw(struct msg *m, uint8_t *to, struct posting *p) {
    struct item *item = m->out.first;
    if (!item)
        return false;
    p->bytes = (uint32_t)item->bytes;
    m->hooks.copy(m->hooks.arg, to, item->data, item->bytes);
    drop(m, item);
    hand_out(m, p, FRAME_MESSAGE, 0, true);
    p->signaled = true; /* nothing else tells that it has arrived */
    return true;
}

/* TAKEN and RELEASE overtake messages, as the peer waits for them. */
static bool next_frame(struct msg *m, uint8_t *to, struct posting *p) {
    if (m->in.has_unconfirmed) {
        m->in.has_unconfirmed = false;
        return say(m, p, to, FRAME_TAKEN, m->in.unconfirmed);
    }
    if (!credits_allow(&m->credits, false))
        return false;
    if (m->theirs.confirmed != m->theirs.withdrawals) {
        m->theirs.confirmed = m->theirs.withdrawals;
        p->fence = true;
        return say(m, p, to, FRAME_RELEASE, m->theirs.confirmed);
    }
    return next_item(m, to, p);
}

static bool next_credit(struct msg *m, uint8_t *to, struct posting *p) {
    if (credits_owed(&m->credits) < m->credits.threshold || !credits_allow(&m->credits, true))
        return false;
    m->out.credit_sends++;
    return say(m, p, to, FRAME_CREDIT, 0);
}

static bool next_probe(struct msg *m, struct posting *p) {
    if (!m->out.probe_due)
        return false;
    m->out.probe_due = false;
    m->out.probes++;
    p->probe = true;
    return hand_out(m, p, 0, 0, false);
}

static bool next_abort(struct msg *m, uint8_t *to, struct posting *p) {
    if (m->out.abort_said)
        return false;
    m->out.abort_said = true;
    memcpy(to, m->out.abort, m->out.abort_bytes);
    return hand_out(m, p, FRAME_ABORT, m->out.abort_bytes, false);
}

static bool next_farewell(struct msg *m, uint8_t *to, struct posting *p) {
    if (!msg_ends_owes_farewell(m))
        return false;
    m->out.farewell = m->out.handed_out + 1;
    return hand_out(m, p, 0, msg_farewell(m, to), false); /* as a TAKEN, it needs no credit */
}

bool msg_out_next(struct msg *m, uint8_t *to, struct posting *p) {
    *p = (struct posting){0};
    if (m->state == MSG_ABORTING)
        return next_abort(m, to, p);
    if (m->state == MSG_CLOSED)
        return next_farewell(m, to, p);
    if (m->state == MSG_HELLO)
        return next_probe(m, p);
    if (is_raw(m))
        return next_raw(m, to, p);
    return is_live(m) && (next_frame(m, to, p) || next_credit(m, to, p) || next_probe(m, p));
}

void msg_out_completed(struct msg *m, uint64_t number) {
    while (m->out.completed < number) {
        struct under_way one = m->out.under_way[++m->out.completed % UNDER_WAY];
        m->out.delivered += one.ends;
        if (one.type == FRAME_GOODBYE)
            msg_ends_step(m, GOODBYE_DELIVERED);
        else if (one.type == FRAME_ABORT)
            msg_ends_step(m, ABORT_DELIVERED);
    }
}
