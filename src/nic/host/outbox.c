/* SPDX-License-Identifier: Apache-2.0
 *
 * CM messages on their way to other processes whose sockets are full.
 *
 * A unix socket holds net.unix.max_dgram_qlen datagrams (10), and a hundred clients that call at the same time are
 * more.  What is lost here comes again only when its sender's CM timeout is over, after seconds; so it waits, for as
 * long as a process may have to wait for a processor.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/host.h"
#include "wire/icrc.h"
#include "wire/mad.h"

#define RETRY_NS 100000ull        /* a receiver that runs empties its socket meanwhile */
#define PATIENCE_NS 1000000000ull /* then it is taken for stopped */
#define HELD_MAX 8192u            /* messages, some 3 MB */
#define HELD_EACH 4096u           /* for one that is stopped */
#define PACKET_MAX (BTH_BYTES + DETH_BYTES + MAD_BYTES + ICRC_BYTES)

struct letter {
    struct letter *next;
    struct port *port; /* where it came in */
    struct slot_packet packet;
    uint64_t until;
    uint8_t bytes[PACKET_MAX];
};

struct outbox {
    struct outbox *next;
    struct abstract_name to;
    struct letter *first, **last;
    uint32_t count;
};

static struct outbox *find(const struct host *host, const struct abstract_name *to) {
    struct outbox *box = host->letters.boxes;
    while (box && (box->to.length != to->length || memcmp(&box->to.un, &to->un, to->length)))
        box = box->next;
    return box;
}

static struct outbox *open_box(struct host *host, const struct abstract_name *to) {
    struct outbox *box = calloc(1, sizeof *box);
    if (!box)
        return NULL;
    *box = (struct outbox){.next = host->letters.boxes, .to = *to, .last = &box->first};
    host->letters.boxes = box;
    return box;
}

static int hold(struct host *host, struct port *port, const struct abstract_name *to, const struct slot_packet *p,
                const uint8_t *bth, uint64_t now) {
    struct outbox *box = find(host, to);
    if (p->length > PACKET_MAX || host->letters.held == HELD_MAX || (box && box->count == HELD_EACH))
        return -EAGAIN;
    if (!box && !(box = open_box(host, to)))
        return -EAGAIN;
    struct letter *letter = malloc(sizeof *letter);
    if (!letter)
        return -EAGAIN;
    *letter = (struct letter){.port = port, .packet = *p, .until = now + PATIENCE_NS};
    memcpy(letter->bytes, bth, p->length);
    *box->last = letter;
    box->last = &letter->next;
    box->count++;
    if (host->letters.held++ == 0)
        host->letters.retry_at = now + RETRY_NS;
    return 0;
}

int outbox_send(struct host *host, struct port *port, const struct abstract_name *to, const struct slot_packet *p,
                const uint8_t *bth, uint64_t now) {
    const struct outbox *box = find(host, to);
    int rc = box && box->first ? -EAGAIN : port_hand_on(port, to, p, bth);
    if (rc == 0)
        forward_count(host, 0, 1);
    if (rc != -EAGAIN)
        return rc;
    rc = hold(host, port, to, p, bth, now);
    if (rc)
        forward_count(host, rc, 1);
    return 0;
}

/* What the receiver has room for now; its first letter's time decides about all behind it. */
static void deliver(struct host *host, struct outbox *box, uint64_t now) {
    struct letter *letter;
    while ((letter = box->first)) {
        int rc = port_hand_on(letter->port, &box->to, &letter->packet, letter->bytes);
        if (rc == -EAGAIN && now < letter->until)
            return;
        forward_count(host, rc, 1);
        box->first = letter->next;
        box->count--;
        host->letters.held--;
        free(letter);
    }
    box->last = &box->first;
}

void outbox_timer(struct host *host, uint64_t now) {
    if (!host->letters.held || now < host->letters.retry_at)
        return;
    for (struct outbox **at = &host->letters.boxes, *box; (box = *at);) {
        deliver(host, box, now);
        if (box->first) {
            at = &box->next;
            continue;
        }
        *at = box->next;
        free(box);
    }
    host->letters.retry_at = now + RETRY_NS;
}

uint64_t outbox_deadline(const struct host *host) { return host->letters.held ? host->letters.retry_at : NEVER; }

void outbox_free(struct host *host) {
    struct outbox *box;
    while ((box = host->letters.boxes)) {
        struct letter *letter;
        while ((letter = box->first)) {
            box->first = letter->next;
            free(letter);
        }
        host->letters.boxes = box->next;
        free(box);
    }
    host->letters.held = 0;
}

static void timer(void *owner, uint64_t now) { outbox_timer(owner, now); }

static uint64_t deadline(const void *owner) { return outbox_deadline(owner); }

const struct source outbox_source = {.name = "outbox", .deadline = deadline, .timer = timer};
