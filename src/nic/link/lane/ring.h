/* SPDX-License-Identifier: Apache-2.0
 *
 * A ring of packets in memory that two processes share: one writes, the other reads.
 *
 * A packet takes a cell, one cache line, which holds it if it is short; a longer one lies in the data area, in one piece.
 * A cell says itself that it has been written, so that a short packet costs the reader one line of the writer's cache.
 * Each side believes nothing of what the other can write: what the reader looks at it has copied first, and the writer
 * takes the reader's count only within what it knows itself.
 */
#ifndef RNIC_LINK_RING_H
#define RNIC_LINK_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define RING_CELLS 1024u
#define RING_SHORT 48u          /* bytes of a packet in a cell */
#define RING_DATA (512u << 10)
#define RING_LONGEST (RING_DATA / 2) /* so that one always fits an empty ring */
#define RING_VOID 0x80000000u        /* of a packet's kind: its writer has taken it back */

struct ring_cell {
    _Atomic uint32_t turn; /* counts cells from 1: the packet is there */
    uint32_t length;
    uint32_t at;   /* of a longer one: its place in the data area */
    uint32_t kind; /* the user's */
    uint8_t bytes[RING_SHORT];
};

struct ring_shared {
    _Alignas(64) _Atomic uint32_t mark;   /* the writer's, see mem/remote.h */
    _Alignas(64) _Atomic uint32_t taken;  /* cells that the reader is done with */
    _Alignas(64) _Atomic uint32_t asleep; /* the reader wants to be woken when a packet comes, */
    _Atomic uint32_t stuck;               /* the writer when there is room */
    _Alignas(64) struct ring_cell cell[RING_CELLS];
    _Alignas(64) uint8_t data[RING_DATA];
};

struct ring_writer {
    struct ring_shared *mem;
    uint32_t next, taken;           /* cells written; of these, taken as known last */
    uint32_t filled, freed;         /* bytes of the data area, counted on and on */
    uint32_t filled_by[RING_CELLS]; /* `filled` after each cell's packet */
    uint32_t whose[RING_CELLS];     /* of packets that can be taken back: who may do so; 0: of others */
    uint32_t length, at;            /* of the packet reserved */
    uint32_t asked;                 /* how often it has asked to be woken when there is room */
    struct ring_cell brief; /* a short one, until it is complete: a reader that looks takes the line each time */
};

/* Room for a packet in one piece, or NULL: the ring is full, or n is more than RING_LONGEST. */
uint8_t *ring_reserve(struct ring_writer *w, uint32_t n);
void ring_commit(struct ring_writer *w, uint32_t kind);
/* The same of one that can be taken back until it has been taken. whose: not 0 */
void ring_commit_for(struct ring_writer *w, uint32_t kind, uint32_t whose);
/* Takes back what has been committed for one.  The reader may be in the middle of such a packet. */
void ring_take_back(struct ring_writer *w, uint32_t whose);
/* All packets have been taken. */
bool ring_is_empty(struct ring_writer *w);
/* A packet had no room: is there any now?  If not, ring_must_tell() will be true at the other end when there is. */
bool ring_has_room(struct ring_writer *w);
/* After commits: true: the reader sleeps, and is to be woken; once. */
bool ring_must_wake(struct ring_writer *w);

struct ring_reader {
    struct ring_shared *mem;
    uint32_t next;
    uint32_t asked;   /* how often it has asked to be woken for a packet */
    uint8_t head[64]; /* a copy of the packet's first bytes, which nobody changes any more */
};

struct ring_packet {
    const uint8_t *head;  /* the copy: up to sizeof head bytes */
    const uint8_t *bytes; /* the packet; of a longer one in shared memory: to be read once, and not to be relied on */
    uint32_t length, kind;
};

static inline bool ring_has_packet(const struct ring_reader *r) {
    const struct ring_cell *cell = &r->mem->cell[r->next % RING_CELLS];
    return atomic_load_explicit(&cell->turn, memory_order_acquire) == r->next + 1;
}
/* The oldest packet. 1; 0: there is none; -1: what is there cannot be: the writer is broken, or hostile. */
int ring_peek(struct ring_reader *r, struct ring_packet *out);
bool ring_is_void(const struct ring_reader *r); /* the packet has been taken back */
void ring_take(struct ring_reader *r);          /* it is done with */
bool ring_must_tell(struct ring_reader *r);     /* the writer waits for room, and is to be woken; once */
/* The reader is going to sleep. False: a packet is there. */
bool ring_may_sleep(struct ring_reader *r);
void ring_awake(struct ring_reader *r);

#endif
