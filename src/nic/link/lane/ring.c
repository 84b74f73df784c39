/* SPDX-License-Identifier: Apache-2.0 */
#include "link/lane/ring.h"

#include <string.h>

_Static_assert(sizeof(struct ring_cell) == 64, "a cell is a cache line");

/* ---------------------------------------------------------------- writer */

/* The reader can have taken no more than what was written, and no less than it had. */
static void look_taken(struct ring_writer *w) {
    uint32_t taken = atomic_load_explicit(&w->mem->taken, memory_order_acquire);
    if (taken - w->taken > w->next - w->taken)
        return;
    if (taken != w->taken)
        w->freed = w->filled_by[(taken - 1) % RING_CELLS];
    w->taken = taken;
}

/* The place of n bytes in one piece, behind what is filled; -1: there is no room. */
static int64_t place(const struct ring_writer *w, uint32_t n, uint32_t *skipped) {
    uint32_t at = w->filled % RING_DATA;
    *skipped = at + n > RING_DATA ? RING_DATA - at : 0;
    if (w->filled - w->freed + *skipped + n > RING_DATA)
        return -1;
    return *skipped ? 0 : at;
}

static bool has_cell(struct ring_writer *w) {
    if (w->next - w->taken == RING_CELLS)
        look_taken(w);
    return w->next - w->taken < RING_CELLS;
}

uint8_t *ring_reserve(struct ring_writer *w, uint32_t n) {
    if (!has_cell(w))
        return NULL;
    w->length = n;
    if (n <= RING_SHORT)
        return w->brief.bytes;
    uint32_t lines = (n + 63) & ~63u, skipped;
    if (n > RING_LONGEST)
        return NULL;
    int64_t at = place(w, lines, &skipped);
    if (at < 0) {
        look_taken(w);
        at = place(w, lines, &skipped);
    }
    if (at < 0)
        return NULL;
    w->at = (uint32_t)at;
    return w->mem->data + at;
}

void ring_commit_for(struct ring_writer *w, uint32_t kind, uint32_t whose) {
    uint32_t i = w->next % RING_CELLS;
    struct ring_cell *cell = &w->mem->cell[i];
    if (w->length > RING_SHORT) {
        uint32_t lines = (w->length + 63) & ~63u, at = w->filled % RING_DATA;
        cell->at = w->at;
        w->filled += lines + (w->at == at ? 0 : RING_DATA - at);
    } else {
        memcpy(cell->bytes, w->brief.bytes, RING_SHORT);
    }
    cell->length = w->length;
    cell->kind = kind;
    w->filled_by[i] = w->filled;
    w->whose[i] = whose;
    atomic_store_explicit(&cell->turn, ++w->next, memory_order_release);
}

void ring_commit(struct ring_writer *w, uint32_t kind) { ring_commit_for(w, kind, 0); }

void ring_take_back(struct ring_writer *w, uint32_t whose) {
    look_taken(w);
    for (uint32_t at = w->taken; at != w->next; at++) {
        if (w->whose[at % RING_CELLS] == whose)
            __atomic_store_n(&w->mem->cell[at % RING_CELLS].kind, RING_VOID, __ATOMIC_SEQ_CST);
    }
}

bool ring_is_empty(struct ring_writer *w) {
    look_taken(w);
    return w->taken == w->next;
}

/* Half of the ring, so that it is worth the while. */
bool ring_has_room(struct ring_writer *w) {
    w->asked++;
    atomic_store(&w->mem->stuck, 1);
    atomic_thread_fence(memory_order_seq_cst);
    look_taken(w);
    if (w->next - w->taken > RING_CELLS / 2 || w->filled - w->freed > RING_DATA / 2)
        return false;
    atomic_store_explicit(&w->mem->stuck, 0, memory_order_relaxed);
    return true;
}

bool ring_must_wake(struct ring_writer *w) {
    atomic_thread_fence(
        memory_order_seq_cst); /* the packet first, then the look: the reader does it the other way round */
    return atomic_load_explicit(&w->mem->asleep, memory_order_relaxed) && atomic_exchange(&w->mem->asleep, 0);
}

/* ---------------------------------------------------------------- reader */

static uint32_t read_once(const uint32_t *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }

int ring_peek(struct ring_reader *r, struct ring_packet *out) {
    const struct ring_cell *cell = &r->mem->cell[r->next % RING_CELLS];
    if (!ring_has_packet(r))
        return 0;
    out->length = read_once(&cell->length);
    out->kind = read_once(&cell->kind);
    out->head = r->head;
    if (out->length <= RING_SHORT) {
        memcpy(r->head, cell->bytes, RING_SHORT);
        out->bytes = r->head;
        return 1;
    }
    uint32_t at = read_once(&cell->at);
    if (out->length > RING_LONGEST || at > RING_DATA - out->length)
        return -1;
    out->bytes = r->mem->data + at;
    memcpy(r->head, out->bytes, out->length < sizeof r->head ? out->length : sizeof r->head);
    return 1;
}

bool ring_is_void(const struct ring_reader *r) {
    return read_once(&r->mem->cell[r->next % RING_CELLS].kind) & RING_VOID;
}

void ring_take(struct ring_reader *r) { atomic_store_explicit(&r->mem->taken, ++r->next, memory_order_release); }

bool ring_must_tell(struct ring_reader *r) {
    atomic_thread_fence(memory_order_seq_cst);
    return atomic_load_explicit(&r->mem->stuck, memory_order_relaxed) && atomic_exchange(&r->mem->stuck, 0);
}

bool ring_may_sleep(struct ring_reader *r) {
    r->asked++;
    atomic_store(&r->mem->asleep, 1);
    atomic_thread_fence(memory_order_seq_cst);
    return !ring_has_packet(r);
}

void ring_awake(struct ring_reader *r) { atomic_store_explicit(&r->mem->asleep, 0, memory_order_relaxed); }
