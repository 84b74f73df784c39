/* SPDX-License-Identifier: Apache-2.0 */
#include "link/udp/steering.h"

#include <errno.h>
#include <linux/filter.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/address.h"
#include "link/udp/steerprog.h"
#include "names/abstract.h"
#include "names/slotmsg.h"

#define NEVER UINT64_MAX
#define NOBODY STEERING_NOBODY
#define MS 1000000ull

#define ASK_AGAIN (30 * MS)     /* a datagram may be lost */
#define ASK_PATIENCE (300 * MS) /* a steward that has said nothing by then is stopped: the next index is asked */
#define ASK_AROUND 8            /* indices that are asked in turn; then we see to it ourselves */
#define WELCOME_FIRST (30 * MS) /* a steward that has heard us may be gone: then twice as long each time */
#define WELCOME_LONGEST (1000 * MS)
#define WATCH_PERIOD (1000 * MS) /* of the steward, for those that were silent */
#define WATCH_FIRST (250 * MS)   /* of a member, which asks whether all is well; twice as long each time */
#define WATCH_LONGEST (4000 * MS)
#define GATHER (3 * MS)         /* members that arrive within are looked for together */
#define CHECK_PERIOD (100 * MS) /* between two looks at those that requests of the CM are spread over */
#define TRY_FIRST (1 * MS)      /* then twice that, and so on: a member may have to wait for a processor */
#define TRIES 5
#define TRIES_BEYOND 2          /* of a later window that is all silent: most likely the end, falling to a stopped member */
#define BEYOND (SLOT_COUNT - 1) /* an index that nobody has, but where all slots are taken */
#define WINDOW 8                /* probes in flight: net.unix.max_dgram_qlen is 10, and answers must fit */
#define INTERVAL_MIN (20 * MS)  /* between looks at every index, and messages about one slot */
#define INTERVAL_MAX (1000 * MS)
#define CREDITS 256
#define CREDIT_PERIOD (20 * MS)

enum probe_kind { PROBE, JOIN, MISSED, LEAVE };

/* Longer than the BTH and the ICRC, what the shortest RoCE packet has. */
struct probe {
    uint8_t opcode, kind, index[2]; /* index: big-endian, where the program reads it */
    uint32_t magic;
    uint16_t version, slot; /* slot: of the sender */
    uint32_t about;         /* MISSED: the slot */
    uint64_t nonce;         /* which the answer repeats */
};
_Static_assert(sizeof(struct probe) == 24, "no padding");
_Static_assert(SLOT_COUNT % WINDOW == 0, "the last window is a whole one");

/* ---------------------------------------------------------------- small sets */

static bool bit(const uint64_t *bits, uint32_t i) { return bits[i / 64] >> (i % 64) & 1; }

static void set_bit(uint64_t *bits, uint32_t i) { bits[i / 64] |= 1ull << (i % 64); }

static void clear_bit(uint64_t *bits, uint32_t i) { bits[i / 64] &= ~(1ull << (i % 64)); }

static uint32_t first_bit(const uint64_t *bits) {
    for (uint32_t i = 0; i < SLOT_COUNT / 64; i++) {
        if (bits[i] != 0) {
            return i * 64 + (uint32_t)__builtin_ctzll(bits[i]);
        }
    }
    return SLOT_COUNT;
}

static bool any_bit(const uint64_t *bits) { return first_bit(bits) < SLOT_COUNT; }

/* ---------------------------------------------------------------- maps */

static void map_clear(struct steering_map *map) {
    memset(map, 0, sizeof *map);
    memset(map->index_of, 0xFF, sizeof map->index_of);
    memset(map->first_slot, 0xFF, sizeof map->first_slot);
}

/* Nobody is known to be at the index any more. */
static void map_vacate(struct steering_map *map, uint32_t index) {
    for (uint32_t slot = 0; map->first_slot[index] != NOBODY && slot < SLOT_COUNT; slot++) {
        if (map->index_of[slot] == index) {
            map->index_of[slot] = NOBODY;
        }
    }
    map->first_slot[index] = NOBODY;
    clear_bit(map->silent, index);
}

static void map_put(struct steering_map *map, uint32_t index, const uint32_t *slots, uint32_t nslots) {
    map_vacate(map, index);
    map->first_slot[index] = (uint16_t)slots[0];
    for (uint32_t i = 0; i < nslots; i++) {
        map->index_of[slots[i]] = (uint16_t)index;
    }
}

/* As it will be when the member at an index leaves: the last one takes its place. */
static void map_leave(struct steering_map *map, uint32_t index) {
    uint32_t last = map->count - 1;
    map_vacate(map, index);
    for (uint32_t slot = 0; last != index && slot < SLOT_COUNT; slot++) {
        if (map->index_of[slot] == last) {
            map->index_of[slot] = (uint16_t)index;
        }
    }
    map->first_slot[index] = map->first_slot[last];
    map->first_slot[last] = NOBODY;
    bit(map->silent, last) ? set_bit(map->silent, index) : clear_bit(map->silent, index);
    clear_bit(map->silent, last);
    map->count = last;
}

static void attach(struct port *p, const struct steering_map *map) {
    steerprog_attach(p->rx_fd, map->index_of, map->first_slot, map->silent);
}

/* ---------------------------------------------------------------- what is said */

static struct probe make_probe(const struct port *p, enum probe_kind kind, uint32_t index, uint32_t about) {
    return (struct probe){.opcode = PORT_PROBE_OPCODE,
                          .kind = (uint8_t)kind,
                          .index = {(uint8_t)(index >> 8), (uint8_t)index},
                          .magic = SLOTMSG_MAGIC,
                          .version = SLOTMSG_VERSION,
                          .slot = (uint16_t)p->steering->slots[0],
                          .about = about,
                          .nonce = kind == PROBE ? p->steering->nonce : p->steering->token};
}

static void say(struct port *p, const struct probe *probe) {
    struct sockaddr_in6 to = p->addr;
    union address_native native;
    to.sin6_port = htons(ROCE_UDP_PORT);
    socklen_t length = address_to_native(&to, &native);
    (void)sendto(p->rx_fd, probe, sizeof *probe, MSG_DONTWAIT, &native.any, length); /* a lost one is sent again */
}

/* To a slot's socket; what finds it full, or nobody there, is asked for again, or not. */
static void tell(const struct port *p, uint32_t slot, struct slotmsg *msg) {
    const struct port_steering *st = p->steering;
    struct abstract_name name;
    uint32_t bytes = msg->type == SLOTMSG_PROBE_ANSWER ? st->nslots * (uint32_t)sizeof st->slots[0] : 0;
    struct iovec iov[2] = {{msg, sizeof *msg}, {(void *)(uintptr_t)st->slots, bytes}};
    msg->magic = SLOTMSG_MAGIC;
    msg->version = SLOTMSG_VERSION;
    msg->length = bytes;
    msg->dst = p->addr;
    abstract_name(&name, SLOT_NAME, slot);
    (void)abstract_send(&name, iov, 2);
}

/* ---------------------------------------------------------------- a member */

static void member_next(struct port_steering *st, uint64_t now) {
    bool telling = any_bit(st->missed.bits);
    uint64_t at = st->joining ? now + st->welcome_in : st->watching ? now + st->watch_period : NEVER;
    st->asks = 0;
    st->ask_at = telling && st->tell_at < at ? st->tell_at : at;
}

static void steward_input(struct port *p, const struct probe *probe, uint64_t now);

/* Index 0 twice; then those behind it, as it may be stopped.  When they all are, we are the steward. */
static void ask(struct port *p, uint64_t now) {
    struct port_steering *st = p->steering;
    uint32_t index = st->asks < 2 ? 0 : st->asks - 1, slot = first_bit(st->missed.bits);
    bool missed = !st->joining && slot < SLOT_COUNT;
    struct probe probe = make_probe(p, missed ? MISSED : JOIN, index, missed ? slot : 0);
    st->ask_at = now + (st->asks == 0 ? ASK_AGAIN : ASK_PATIENCE);
    st->asks++;
    if (index < ASK_AROUND) {
        say(p, &probe);
    } else {
        steward_input(p, &probe, now);
    }
}

static void heard(struct port_steering *st, uint64_t now) {
    uint32_t slot = first_bit(st->missed.bits);
    if (!st->joining && slot < SLOT_COUNT) {
        clear_bit(st->missed.bits, slot);
        st->interval = bit(st->told.bits, slot) && st->interval * 2 < INTERVAL_MAX ? st->interval * 2 : st->interval;
        set_bit(st->told.bits, slot);
        st->tell_at = now + st->interval;
    }
    member_next(st, now);
    st->welcome_in = st->welcome_in * 2 < WELCOME_LONGEST ? st->welcome_in * 2 : WELCOME_LONGEST;
}

static void welcomed(struct port *p, bool watch, uint64_t now) {
    struct port_steering *st = p->steering;
    p->remaps += st->joining;
    st->watching = watch || st->joining; /* whether a member is stopped is known when those have been looked at, too */
    st->watch_period = st->joining ? WATCH_FIRST : st->watch_period * 2;
    st->watch_period = st->watch_period < WATCH_LONGEST ? st->watch_period : WATCH_LONGEST;
    st->joining = false;
    member_next(st, now);
}

void steering_forwarded(struct port *p, uint32_t slot, uint64_t now) {
    struct port_steering *st = p->steering;
    if (!bit(st->told.bits, slot) && st->interval > INTERVAL_MIN) {
        st->interval = INTERVAL_MIN; /* something new */
        memset(&st->told, 0, sizeof st->told);
    }
    set_bit(st->missed.bits, slot);
    if (st->joining || st->asks > 0) {
        return;
    }
    uint64_t due = st->tell_at > now ? st->tell_at : now;
    st->ask_at = due < st->ask_at ? due : st->ask_at;
}

void steering_join(struct port_steering *st) {
    st->joining = true;
    st->welcome_in = WELCOME_FIRST;
    st->asks = 0;
    st->ask_at = 0;
}

/* ---------------------------------------------------------------- the steward asks */

static uint32_t window_end(const struct port_steering *st) {
    return st->window + WINDOW < SLOT_COUNT ? st->window + WINDOW : SLOT_COUNT;
}

static bool is_asked(const struct port_steering *st, uint32_t index) {
    if (st->phase == STEERING_CHECK) {
        return bit(st->doubts.bits, index);
    }
    return index >= st->window && index < window_end(st);
}

/* A CHECK may have more doubts than a window holds.  Its tries count when each index has been asked once: an index that was not
 * asked is not silent. */
static bool all_were_asked(const struct port_steering *st) {
    bool all = true;
    for (uint32_t i = 0; i < SLOT_COUNT / 64; i++) {
        all &= (st->doubts.bits[i] & ~st->asked.bits[i]) == 0;
    }
    return all;
}

/* Sends to those that have not answered, eight at most, one after the other in turn. */
static void send_probes(struct port *p, uint64_t now) {
    struct port_steering *st = p->steering;
    for (uint32_t i = 0, n = 0, from = st->cursor; i < SLOT_COUNT && n < WINDOW; i++) {
        uint32_t k = (from + i) % SLOT_COUNT;
        if (is_asked(st, k) && st->answered[k] == NOBODY) {
            struct probe probe = make_probe(p, PROBE, k, 0);
            say(p, &probe);
            set_bit(st->asked.bits, k);
            st->cursor = k + 1;
            n++;
        }
    }
    st->try_until = now + (TRY_FIRST << st->tries);
    st->tries += st->phase == STEERING_LEARN || all_were_asked(st);
    st->wake = st->try_until;
}

static uint64_t draw_nonce(uint64_t last) {
    uint64_t nonce;
    return getrandom(&nonce, sizeof nonce, GRND_NONBLOCK) == sizeof nonce ? nonce : last + 1;
}

static void begin(struct port *p, enum steering_phase phase, uint32_t from, uint64_t now) {
    struct port_steering *st = p->steering;
    st->nonce = draw_nonce(st->nonce);
    st->phase = phase;
    st->from = st->window = from;
    st->tries = 0;
    memset(st->answered, 0xFF, sizeof st->answered);
    memset(&st->asked, 0, sizeof st->asked);
    st->found = st->map;
    for (uint32_t k = from; phase == STEERING_LEARN && k < st->map.count; k++) {
        map_vacate(&st->found, k);
    }
    send_probes(p, now);
}

static bool any_program_is_ours(const struct port_steering *st) { return st->own_program || st->map.count > 0; }

/* ---------------------------------------------------------------- and judges */

static uint32_t window_answers(const struct port_steering *st) {
    uint32_t n = 0;
    for (uint32_t k = st->window; k < window_end(st); k++) {
        n += st->answered[k] != NOBODY;
    }
    return n;
}

/* An index was answered.  The lowest one that a member answers is its own; the others fell to it by hash. */
static void record(struct port_steering *st, uint32_t index, const uint32_t *slots, uint32_t nslots) {
    if (st->phase == STEERING_IDLE || index >= SLOT_COUNT || !is_asked(st, index) || st->answered[index] != NOBODY) {
        return;
    }
    st->answered[index] = (uint16_t)slots[0];
    if (st->phase == STEERING_CHECK && st->map.first_slot[index] == slots[0]) {
        map_put(&st->map, index, slots, nslots); /* it may have more than it had */
    }
    uint32_t known = st->found.index_of[slots[0]];
    if (st->phase == STEERING_LEARN && (known == NOBODY || index < known)) {
        if (known != NOBODY) {
            map_vacate(&st->found, known);
        }
        map_put(&st->found, index, slots, nslots);
    }
}

/* The member that answered index k has a lower index: k is beyond the end. */
static bool beyond_end(const struct port_steering *st, uint32_t k) {
    return st->answered[k] != NOBODY && st->found.index_of[st->answered[k]] < k;
}

static void idle(struct port *p, uint64_t now);

/* Whoever is silent at an index where we knew somebody is most likely the same one, stopped: it keeps its place, unless
 * it has answered at another. */
static void keep_silent(struct port_steering *st) {
    for (uint32_t k = st->from; k < window_end(st); k++) {
        uint16_t slot = st->map.first_slot[k];
        if (st->answered[k] != NOBODY || k >= st->found.count) {
            continue;
        }
        set_bit(st->found.silent, k);
        if (slot == NOBODY || st->map.index_of[slot] != k || st->found.index_of[slot] != NOBODY) {
            continue;
        }
        st->found.first_slot[k] = slot;
        for (uint32_t s = 0; s < SLOT_COUNT; s++) {
            if (st->map.index_of[s] == k && st->found.index_of[s] == NOBODY) {
                st->found.index_of[s] = (uint16_t)k;
            }
        }
    }
}

/* Members: as far as somebody has answered who is where he says, or was before, and is silent. */
static uint32_t count_found(const struct port_steering *st) {
    uint32_t count = st->from;
    for (uint32_t k = st->from; k < window_end(st); k++) {
        bool own = st->answered[k] != NOBODY && st->found.index_of[st->answered[k]] == k;
        bool kept = st->answered[k] == NOBODY && k < st->map.count;
        if (beyond_end(st, k)) {
            break;
        }
        count = own || kept ? k + 1 : count;
    }
    return count;
}

static void welcome(struct port *p, uint64_t now) {
    struct port_steering *st = p->steering;
    bool watch = any_bit(st->map.silent);
    for (uint32_t slot = 0; slot < SLOT_COUNT; slot++) {
        struct slotmsg msg = {.type = SLOTMSG_WELCOME, .index = watch, .nonce = st->token_of[slot]};
        if (!bit(st->joins.bits, slot) || st->map.index_of[slot] == NOBODY || bit(st->suspects.bits, slot)) {
            continue;
        }
        clear_bit(st->joins.bits, slot);
        if (slot == st->slots[0]) {
            welcomed(p, watch, now);
        } else {
            tell(p, slot, &msg);
        }
    }
}

/* Without a program in place all probes go to the same member, whoever that is: so it is doubtful when nobody but one has
 * answered, or when we, who were asked, have not. */
static bool doubtful(const struct port_steering *st) {
    return !any_program_is_ours(st) && (st->found.index_of[st->slots[0]] == NOBODY || count_found(st) < 2);
}

/* The look has answered for each slot at `from` or behind, and for each that is in no place. */
static void clear_suspects(struct port_steering *st) {
    for (uint32_t slot = 0; slot < SLOT_COUNT; slot++) {
        uint32_t index = st->map.index_of[slot];
        if (index == NOBODY || index >= st->from) {
            clear_bit(st->suspects.bits, slot);
        }
    }
}

/* Is a slot that asked for a look missing from the map? */
static bool joins_are_missing(const struct port_steering *st, const struct steering_map *map) {
    bool missing = false;
    for (uint32_t slot = 0; slot < SLOT_COUNT && !missing; slot++) {
        missing = bit(st->joins.bits, slot) && map->index_of[slot] == NOBODY;
    }
    return missing;
}

static void learnt(struct port *p, uint64_t now) {
    struct port_steering *st = p->steering;
    if (doubtful(st)) {
        map_clear(&st->map);
        attach(p, &st->map);
        st->own_program = true;
        begin(p, STEERING_LEARN, 0, now);
        return;
    }
    st->found.count = count_found(st);
    keep_silent(st);
    bool whole = st->from == 0;
    if (st->found.count > 0) {
        st->map = st->found;
        attach(p, &st->map);
    }
    clear_suspects(st);
    welcome(p, now);
    st->all = !whole && joins_are_missing(st, &st->map); /* not behind the last one: who else is not where we think? */
    if (whole) {
        memset(&st->joins, 0, sizeof st->joins); /* who was not found asks again */
        st->looked = now;
        st->look_interval = st->look_interval * 2 < INTERVAL_MAX ? st->look_interval * 2 : INTERVAL_MAX;
    } else if (!st->all) {
        st->look_interval = INTERVAL_MIN;
    }
    idle(p, now);
}

/* Has an index that we asked for another member than we thought?  When the last one is answered by whoever has what is
 * beyond the end, that may be the last one, or the group is shorter and it is anywhere. */
static bool differs(struct port_steering *st) {
    uint32_t last = st->map.count - 1;
    bool wrong = st->answered[last] != NOBODY && st->answered[last] == st->answered[BEYOND] && last != BEYOND &&
                 any_bit(st->suspects.bits);
    for (uint32_t k = 0; k < st->map.count; k++) {
        if (!bit(st->doubts.bits, k)) {
            continue;
        }
        wrong |= st->answered[k] != NOBODY && st->answered[k] != st->map.first_slot[k];
        st->answered[k] == NOBODY ? set_bit(st->map.silent, k) : clear_bit(st->map.silent, k);
    }
    return wrong;
}

/* The first slot of a member behind the last one of our map, which another steward may know; SLOT_COUNT: there is none. */
static uint32_t stranger_behind(const struct port_steering *st) {
    uint32_t slot = st->map.count < SLOT_COUNT ? st->answered[st->map.count] : NOBODY;
    return slot != NOBODY && st->map.index_of[slot] == NOBODY ? slot : SLOT_COUNT;
}

/* All as we thought: then the program says it once more, as somebody else's may be in place. */
static void checked(struct port *p, uint64_t now) {
    struct port_steering *st = p->steering;
    bool wrong = differs(st);
    uint32_t stranger = stranger_behind(st);
    st->all |= wrong;
    for (uint32_t slot = 0; slot < SLOT_COUNT; slot++) {
        if (st->map.index_of[slot] != NOBODY && bit(st->doubts.bits, st->map.index_of[slot])) {
            clear_bit(st->suspects.bits, slot);
        }
    }
    memset(&st->doubts, 0, sizeof st->doubts);
    if (stranger < SLOT_COUNT) {
        set_bit(st->suspects.bits, stranger);
    } else if (!wrong) {
        attach(p, &st->map);
        welcome(p, now);
    }
    idle(p, now);
}

/* Are we, or others that have come, still to be found?  Then a window of silence is one of stopped members. */
static bool some_are_missing(const struct port_steering *st) {
    bool missing = st->found.index_of[st->slots[0]] == NOBODY || joins_are_missing(st, &st->found);
    return missing && any_program_is_ours(st);
}

static bool is_end(const struct port_steering *st) {
    uint32_t end = window_end(st);
    return end == SLOT_COUNT || beyond_end(st, end - 1) || (window_answers(st) == 0 && !some_are_missing(st));
}

static void learn_step(struct port *p, uint64_t now) {
    struct port_steering *st = p->steering;
    uint32_t answers = window_answers(st);
    int tries = answers == 0 && st->window > st->from ? TRIES_BEYOND : TRIES;
    bool silent = answers < window_end(st) - st->window;
    if (silent && now < st->try_until) {
        st->wake = st->try_until;
    } else if (silent && st->tries < tries) {
        send_probes(p, now);
    } else if (is_end(st)) {
        learnt(p, now);
    } else {
        st->window += WINDOW;
        st->tries = 0;
        send_probes(p, now);
    }
}

static void check_step(struct port *p, uint64_t now) {
    struct port_steering *st = p->steering;
    bool waits = false;
    for (uint32_t k = 0; k < SLOT_COUNT; k++) {
        waits |= bit(st->doubts.bits, k) && st->answered[k] == NOBODY;
    }
    if (waits && now < st->try_until) {
        st->wake = st->try_until;
    } else if (waits && st->tries < TRIES) {
        send_probes(p, now);
    } else {
        checked(p, now);
    }
}

/* ---------------------------------------------------------------- what is to be looked at */

/* The last member has moved when another has gone, and somebody may have come behind it. */
static void doubt_end(struct port_steering *st) {
    set_bit(st->doubts.bits, st->map.count - 1);
    if (st->map.count < SLOT_COUNT) {
        set_bit(st->doubts.bits, st->map.count);
    }
    set_bit(st->doubts.bits, BEYOND);
}

/* Those that requests of the CM are spread over, and those that were silent. */
static void doubt_some(struct port_steering *st, uint64_t now) {
    uint32_t n = 0;
    st->checked = now;
    for (uint32_t k = 0; k < st->map.count; k++) {
        bool silent = bit(st->map.silent, k), spread = st->map.first_slot[k] != NOBODY && n < STEERPROG_SPREAD;
        if (silent || spread) {
            set_bit(st->doubts.bits, k);
            n += !silent;
        }
    }
    doubt_end(st);
}

/* Is there a slot of which packets go astray though we know where it is? */
static bool doubt_suspects(struct port_steering *st) {
    bool any = false;
    for (uint32_t slot = 0; slot < SLOT_COUNT; slot++) {
        if (bit(st->suspects.bits, slot) && st->map.index_of[slot] != NOBODY) {
            set_bit(st->doubts.bits, st->map.index_of[slot]);
            any = true;
        }
    }
    if (any) {
        doubt_end(st);
    }
    return any;
}

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* When those that requests are spread over are to be looked at: as somebody came, or was silent. */
static uint64_t spread_due(const struct port_steering *st, uint64_t now) {
    if (st->checked < st->spread_at) {
        return later(now, st->checked + CHECK_PERIOD);
    }
    return any_bit(st->map.silent) ? later(now, later(st->checked, st->looked) + WATCH_PERIOD) : NEVER;
}

static void look(struct port *p, uint64_t now) {
    struct port_steering *st = p->steering;
    if (st->map.count == 0 || (st->all && now >= st->looked + st->look_interval)) {
        st->all = false;
        begin(p, STEERING_LEARN, 0, now);
    } else if (st->all) {
        idle(p, now);
    } else if (doubt_suspects(st)) {
        if (spread_due(st, now) == now) {
            doubt_some(st, now);
        }
        begin(p, STEERING_CHECK, 0, now);
    } else if ((any_bit(st->joins.bits) || any_bit(st->suspects.bits)) && st->map.count < SLOT_COUNT) {
        begin(p, STEERING_LEARN, st->map.count, now);
    } else {
        doubt_some(st, now);
        begin(p, STEERING_CHECK, 0, now);
    }
}

/* When to look next: at all, when the order is not as we thought; at what is asked for; at those that were silent. */
static void idle(struct port *p, uint64_t now) {
    struct port_steering *st = p->steering;
    st->phase = STEERING_IDLE;
    if (st->all) {
        st->wake = later(now, st->looked + st->look_interval);
    } else if (any_bit(st->joins.bits) || any_bit(st->suspects.bits)) {
        st->wake = now + GATHER;
    } else {
        st->wake = spread_due(st, now);
    }
}

static void look_soon(struct port_steering *st, uint64_t at) {
    if (st->phase == STEERING_IDLE && at < st->wake) {
        st->wake = at;
    }
}

/* ---------------------------------------------------------------- what comes */

static void take_leave(struct port *p, uint32_t slot, uint64_t now) {
    struct port_steering *st = p->steering;
    uint32_t index = st->map.index_of[slot];
    if (index == NOBODY || st->map.count < 2 || st->map.first_slot[index] != slot) {
        return;
    }
    map_leave(&st->map, index);
    attach(p, &st->map);
    idle(p, now); /* a look under way saw what is no more */
}

static void answer(struct port *p, const struct probe *probe, uint32_t index, uint64_t now) {
    struct port_steering *st = p->steering;
    struct slotmsg msg = {.type = SLOTMSG_PROBE_ANSWER, .nonce = probe->nonce, .index = index};
    if (probe->slot == st->slots[0] && probe->nonce == st->nonce) {
        record(st, index, st->slots, st->nslots);
        st->wake = st->phase == STEERING_IDLE ? st->wake : now;
    } else {
        tell(p, probe->slot, &msg);
    }
}

/* A member asks for the steward: that is us. */
static void steward_input(struct port *p, const struct probe *probe, uint64_t now) {
    struct port_steering *st = p->steering;
    struct slotmsg msg = {.type = SLOTMSG_HEARD, .nonce = probe->nonce};
    if (probe->kind == JOIN) {
        st->token_of[probe->slot] = probe->nonce;
        set_bit(st->joins.bits, probe->slot);
        if (st->map.index_of[probe->slot] != NOBODY) { /* it may have more slots now, or asks whether all is well */
            set_bit(st->suspects.bits, probe->slot);
        } else {
            st->spread_at = now;
        }
    } else if (probe->about < SLOT_COUNT) {
        set_bit(st->suspects.bits, probe->about);
    }
    st->all |= probe->index[0] || probe->index[1]; /* in the place of one that is stopped */
    look_soon(st, now + (st->map.count > 0 ? GATHER : 0));
    if (probe->slot == st->slots[0]) {
        heard(st, now);
    } else {
        tell(p, probe->slot, &msg);
    }
}

void steering_probe_input(struct port *p, const uint8_t *data, uint32_t length, const struct sockaddr_in6 *src,
                          uint64_t now) {
    struct port_steering *st = p->steering;
    struct probe probe;
    if (length != sizeof probe || p->rx_fd < 0 || !address_same(src, &p->addr) ||
        src->sin6_port != htons(ROCE_UDP_PORT)) {
        return;
    }
    memcpy(&probe, data, sizeof probe);
    if (probe.magic != SLOTMSG_MAGIC || probe.version != SLOTMSG_VERSION || probe.slot >= SLOT_COUNT ||
        probe.kind > LEAVE || st->credits == 0) {
        return;
    }
    st->credits--;
    if (probe.kind == PROBE) {
        answer(p, &probe, (uint32_t)probe.index[0] << 8 | probe.index[1], now);
    } else if (probe.kind == LEAVE) {
        take_leave(p, probe.slot, now);
    } else {
        steward_input(p, &probe, now);
    }
}

static void take_answer(struct port *p, const struct slotmsg *msg, const uint8_t *data, uint64_t now) {
    struct port_steering *st = p->steering;
    uint32_t slots[STEERING_SLOTS], n = msg->length / (uint32_t)sizeof slots[0];
    if (msg->nonce != st->nonce || n == 0 || n > STEERING_SLOTS || msg->length % sizeof slots[0] != 0) {
        return;
    }
    memcpy(slots, data, msg->length);
    for (uint32_t i = 0; i < n; i++) {
        if (slots[i] >= SLOT_COUNT) {
            return;
        }
    }
    record(st, msg->index, slots, n);
    st->wake = st->phase == STEERING_IDLE ? st->wake : now;
}

void steering_message(struct port *p, const struct slotmsg *msg, const uint8_t *data, uint64_t now) {
    bool asked = msg->nonce == p->steering->token;
    if (p->rx_fd < 0) {
        return;
    }
    if (msg->type == SLOTMSG_PROBE_ANSWER) {
        take_answer(p, msg, data, now);
    } else if (msg->type == SLOTMSG_HEARD && asked) {
        heard(p->steering, now);
    } else if (msg->type == SLOTMSG_WELCOME && asked) {
        welcomed(p, msg->index != 0, now);
    }
}

/* ---------------------------------------------------------------- time, beginning and end */

void steering_timer(struct port *p, uint64_t now) {
    struct port_steering *st = p->steering;
    if (st->credits < CREDITS && now >= st->refill) {
        st->credits = CREDITS;
        st->refill = now + CREDIT_PERIOD;
    }
    if (now >= st->ask_at) {
        ask(p, now);
    }
    if (now < st->wake) {
        return;
    }
    if (st->phase == STEERING_LEARN) {
        learn_step(p, now);
    } else if (st->phase == STEERING_CHECK) {
        check_step(p, now);
    } else {
        look(p, now);
    }
}

uint64_t steering_deadline(const struct port_steering *st) {
    uint64_t refill = st->credits < CREDITS ? st->refill : NEVER, first = st->wake < st->ask_at ? st->wake : st->ask_at;
    return first < refill ? first : refill;
}

void steering_start(struct port *p, uint64_t now) {
    struct port_steering *st = p->steering;
    st->interval = st->look_interval = INTERVAL_MIN;
    st->credits = CREDITS;
    st->wake = NEVER;
    st->token = draw_nonce(now);
    map_clear(&st->map);
    steering_join(st);
    st->ask_at = now;
}

void steering_stop(struct port *p) {
    struct port_steering *st = p->steering;
    if (p->rx_fd < 0 || st->left) {
        return;
    }
    st->left = true;
    st->joining = st->watching = false;
    st->wake = st->ask_at = NEVER;
    if (st->map.count < 2 || st->map.index_of[st->slots[0]] != 0) {
        struct probe probe = make_probe(p, LEAVE, 0, 0);
        say(p, &probe);
        return;
    }
    map_leave(&st->map, 0);
    attach(p, &st->map);
    st->map.count = 0;
}
