/* SPDX-License-Identifier: Apache-2.0 */
#include "link/steering.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/filter.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "link/abstract.h"
#include "link/address.h"
#include "link/slotmsg.h"
#include "wire/bth.h"
#include "wire/mad.h"

#define NEVER UINT64_MAX
#define US 1000ull
#define MS 1000000ull

#define LOCK_RETRY (1 * MS)
#define LOCK_PATIENCE (50 * MS) /* a remap takes a few ms: whoever holds the lock longer is stopped */
#define POLL_REPLIES (200 * US)
#define TRY_FIRST (1 * MS) /* then twice that, and so on: a member may have to wait for a processor */
#define TRIES 5
#define TRIES_BEYOND 2 /* of a later window that is all silent: most likely the end, falling to a stopped member */
#define WINDOW 8                /* probes in flight: net.unix.max_dgram_qlen is 10, and answers must fit */
#define INTERVAL_MIN (20 * MS)  /* between remaps */
#define INTERVAL_MAX (1000 * MS)
#define MAX_ROWS 512 /* of a program: stays below net.core.optmem_max where that is 20 KiB */
#define SPREAD 16    /* members that requests of the CM are spread over */
#define MAD_AT (BTH_BYTES + DETH_BYTES)
#define HEAD 18 /* instructions ahead of the spreading */
#define CREDITS 256
#define CREDIT_PERIOD (20 * MS)

struct probe {
    uint8_t opcode, index, version, reserved;
    uint32_t magic;
    uint64_t nonce;
};
_Static_assert(sizeof(struct probe) == 16, "the BTH and the ICRC: what the shortest RoCE packet has");
_Static_assert(PORT_MAX_MEMBERS % WINDOW == 0, "the last window is a whole one");

/* ---------------------------------------------------------------- small sets */

static bool set_has(const struct slot_set *s, uint32_t slot) { return s->bits[slot / 64] >> (slot % 64) & 1; }

static void set_add(struct slot_set *s, uint32_t slot) { s->bits[slot / 64] |= 1ull << (slot % 64); }

static void set_merge(struct slot_set *s, const struct slot_set *other) {
    for (uint32_t i = 0; i < SLOT_COUNT / 64; i++) {
        s->bits[i] |= other->bits[i];
    }
}

/* ---------------------------------------------------------------- maps */

static struct steering_member *map_by_slot(struct steering_map *map, uint32_t first_slot) {
    for (uint32_t i = 0; i < map->nmembers; i++) {
        if (map->members[i].slots[0] == first_slot) {
            return &map->members[i];
        }
    }
    return NULL;
}

static const struct steering_member *map_by_index(const struct steering_map *map, uint32_t index) {
    for (uint32_t i = 0; i < map->nmembers; i++) {
        if (map->members[i].index == index) {
            return &map->members[i];
        }
    }
    return NULL;
}

static void map_add(struct steering_map *map, const struct steering_member *m) {
    if (map->nmembers < PORT_MAX_MEMBERS) {
        map->members[map->nmembers++] = *m;
    }
}

static bool map_has(const struct steering_map *map, const struct steering_member *m) {
    const struct steering_member *other = map_by_index(map, m->index);
    return other != NULL && other->nslots == m->nslots &&
           memcmp(other->slots, m->slots, m->nslots * sizeof m->slots[0]) == 0;
}

static bool map_equal(const struct steering_map *a, const struct steering_map *b) {
    if (a->valid != b->valid || a->nmembers != b->nmembers) {
        return false;
    }
    for (uint32_t i = 0; i < a->nmembers; i++) {
        if (!map_has(b, &a->members[i])) {
            return false;
        }
    }
    return true;
}

/* ---------------------------------------------------------------- the program */

/* A request of the CM names a service, and who offers that is not known here: any member can hand it on.  A different one
 * each time, so that a repeated request does not meet a stopped member again. */
static uint32_t spread_build(const struct steering_map *map, struct sock_filter *f) {
    uint32_t live[SPREAD], count = 0, n = 0;
    for (uint32_t i = 0; i < map->nmembers && count < SPREAD; i++) {
        if (!map->members[i].silent) {
            live[count++] = map->members[i].index;
        }
    }
    if (count > 0) {
        f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_RANDOM));
        f[n++] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, count);
    }
    for (uint32_t i = 0; i < count; i++) {
        f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, i, 0, 1);
        f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, live[i]);
    }
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX); /* nobody is known: by hash */
    return n;
}

/* The kernel runs it on the UDP payload.  A load beyond a packet's end returns 0: short packets go to index 0.  Other
 * messages of the CM have the slot in the communication id, as packets have it in the QPN. */
static uint32_t program_build(const struct steering_map *map, struct sock_filter *f) {
    uint32_t spread = spread_build(map, f + HEAD);
    const struct sock_filter head[HEAD] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 0), /* the opcode */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PORT_PROBE_OPCODE, 0, 2),
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 1), /* a probe names the index */
        BPF_STMT(BPF_RET | BPF_A, 0),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4), /* the destination QPN, and 8 bits ahead of it */
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xFFFFFF),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, QPN_GSI, 2, 0),
        BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, QPN_INDEX_BITS),
        BPF_STMT(BPF_JMP | BPF_JA, HEAD - 9 + spread), /* to the rows */
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, MAD_AT + MAD_ATTRIBUTE),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CM_REQ, HEAD - 11, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CM_SIDR_REQ, HEAD - 12, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CM_SIDR_REP, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, MAD_AT + MAD_LOCAL_ID),
        BPF_STMT(BPF_JMP | BPF_JA, 1),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, MAD_AT + MAD_REMOTE_ID),
        BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 32 - SLOT_BITS),
        BPF_STMT(BPF_JMP | BPF_JA, spread),
    };
    uint32_t n = HEAD + spread, rows = 0;
    memcpy(f, head, sizeof head);
    for (uint32_t i = 0; i < map->nmembers; i++) {
        const struct steering_member *m = &map->members[i];
        for (uint32_t s = 0; s < m->nslots && rows < MAX_ROWS; s++, rows++) {
            f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, m->slots[s], 0, 1);
            f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, m->index);
        }
    }
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX); /* no such member: by hash */
    return n;
}

static void attach(struct port *p, const struct steering_map *map) {
    struct sock_filter filter[HEAD + 2 * SPREAD + 3 + 2 * MAX_ROWS + 1];
    struct sock_fprog prog = {.len = (unsigned short)program_build(map, filter), .filter = filter};
    /* Refused (no memory): the hash spreads packets and forwarding carries them. */
    (void)setsockopt(p->rx_fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &prog, sizeof prog);
}

/* ---------------------------------------------------------------- probing */

static void close_fd(int *fd) {
    if (*fd >= 0) {
        close(*fd);
    }
    *fd = -1;
}

static void reply_name(struct abstract_name *name, uint64_t nonce) {
    abstract_name(name, "rnic/1/map/%016" PRIx64, nonce);
}

static void send_probe(struct port *p, uint32_t index) {
    struct probe probe = {.opcode = PORT_PROBE_OPCODE,
                          .index = (uint8_t)index,
                          .version = SLOTMSG_VERSION,
                          .magic = SLOTMSG_MAGIC,
                          .nonce = p->steering->nonce};
    struct sockaddr_in6 to = p->addr;
    union address_native native;
    to.sin6_port = htons(ROCE_UDP_PORT);
    socklen_t length = address_to_native(&to, &native);
    (void)sendto(p->tx_fd, &probe, sizeof probe, 0, &native.any, length); /* a lost one is sent again */
}

static void send_window(struct port *p, uint64_t now) {
    struct port_steering *st = p->steering;
    for (uint32_t k = st->window; k < st->window + WINDOW; k++) {
        if (st->answered[k] < 0) {
            send_probe(p, k);
        }
    }
    st->try_until = now + (TRY_FIRST << st->tries++);
    st->wake = now + POLL_REPLIES;
}

static void go_idle(struct port_steering *st) {
    close_fd(&st->lock_fd);
    close_fd(&st->reply_fd);
    st->phase = STEERING_IDLE;
    st->wake = NEVER;
}

static void start_pass(struct port *p, int pass, uint64_t now) {
    struct port_steering *st = p->steering;
    struct abstract_name name;
    close_fd(&st->reply_fd);
    if (getrandom(&st->nonce, sizeof st->nonce, GRND_NONBLOCK) != sizeof st->nonce) {
        go_idle(st); /* forwards will ask again */
        return;
    }
    reply_name(&name, st->nonce);
    st->reply_fd = abstract_open(&name);
    if (st->reply_fd < 0) {
        go_idle(st);
        return;
    }
    st->phase = STEERING_PROBE;
    st->pass = pass;
    st->window = 0;
    st->tries = 0;
    memset(st->answered, 0xFF, sizeof st->answered);
    st->found = (struct steering_map){.valid = true};
    send_window(p, now);
}

/* An index was answered.  The lowest one that a member answers is its own; the others fell to it by hash. */
static void record(struct port_steering *st, uint32_t index, const uint32_t *slots, uint32_t nslots) {
    if (index >= PORT_MAX_MEMBERS || st->answered[index] >= 0) {
        return;
    }
    st->answered[index] = (int32_t)slots[0];
    struct steering_member *known = map_by_slot(&st->found, slots[0]);
    if (known != NULL) {
        known->index = index < known->index ? index : known->index;
        return;
    }
    struct steering_member m = {.index = index, .nslots = nslots};
    memcpy(m.slots, slots, nslots * sizeof slots[0]);
    map_add(&st->found, &m);
}

static bool answer_ok(const struct slotmsg *msg, const uint32_t *slots, size_t bytes, uint64_t nonce) {
    if (msg->magic != SLOTMSG_MAGIC || msg->version != SLOTMSG_VERSION || msg->type != SLOTMSG_PROBE_ANSWER ||
        msg->nonce != nonce || msg->length != bytes || bytes == 0 || bytes % sizeof slots[0] != 0) {
        return false;
    }
    for (size_t i = 0; i < bytes / sizeof slots[0]; i++) {
        if (slots[i] >= SLOT_COUNT) {
            return false;
        }
    }
    return true;
}

/* Only members see a nonce, and members are of one user: that is what makes an answer credible. */
static void read_replies(struct port_steering *st) {
    for (int i = 0; i < 4 * WINDOW; i++) {
        struct slotmsg msg;
        uint32_t slots[STEERING_SLOTS];
        struct iovec iov[2] = {{&msg, sizeof msg}, {slots, sizeof slots}};
        struct msghdr mh = {.msg_iov = iov, .msg_iovlen = 2};
        ssize_t n = recvmsg(st->reply_fd, &mh, MSG_DONTWAIT);
        if (n < 0) {
            return;
        }
        size_t bytes = (size_t)n < sizeof msg ? 0 : (size_t)n - sizeof msg;
        if (bytes > 0 && (mh.msg_flags & MSG_TRUNC) == 0 && answer_ok(&msg, slots, bytes, st->nonce)) {
            record(st, msg.index, slots, (uint32_t)(bytes / sizeof slots[0]));
        }
    }
}

/* ---------------------------------------------------------------- judging */

static uint32_t window_answers(const struct port_steering *st) {
    uint32_t n = 0;
    for (uint32_t k = st->window; k < st->window + WINDOW; k++) {
        n += st->answered[k] >= 0;
    }
    return n;
}

/* The member that answered index k has a lower index: k is beyond the end. */
static bool beyond_end(struct port_steering *st, uint32_t k) {
    if (st->answered[k] < 0) {
        return false;
    }
    const struct steering_member *m = map_by_slot(&st->found, (uint32_t)st->answered[k]);
    return m != NULL && m->index < k;
}

/* Was an index that we asked for silent?  Then a member is stopped: what falls to it is lost without a word, a forward
 * that would tell of a change included. */
static bool any_silent(const struct port_steering *st) {
    for (uint32_t k = 0; k < st->window + WINDOW; k++) {
        if (st->answered[k] < 0) {
            return true;
        }
    }
    return false;
}

/* How many members there are, when no index below the end was silent; else 0. */
static uint32_t exact_count(struct port_steering *st) {
    uint32_t k = 0;
    while (k < PORT_MAX_MEMBERS && st->answered[k] >= 0 && !beyond_end(st, k)) {
        k++;
    }
    return k < PORT_MAX_MEMBERS && beyond_end(st, k) ? k : 0;
}

/* Whoever is silent at an index where we knew somebody is most likely the same one, stopped: keep its row. */
static void keep_silent(const struct port_steering *st, struct steering_map *found) {
    for (uint32_t i = 0; !st->stale && i < st->map.nmembers; i++) {
        const struct steering_member *m = &st->map.members[i];
        if (st->answered[m->index] < 0 && map_by_slot(found, m->slots[0]) == NULL) {
            struct steering_member kept = *m;
            kept.silent = true;
            map_add(found, &kept);
        }
    }
}

/* Those who answered need not wait for those who may not. */
static void attach_so_far(struct port *p) {
    struct steering_map map = p->steering->found;
    keep_silent(p->steering, &map);
    attach(p, &map);
}

static void finish(struct port *p, uint64_t now) {
    struct port_steering *st = p->steering;
    st->found.count = exact_count(st);
    keep_silent(st, &st->found);
    bool changed = !map_equal(&st->found, &st->map);
    if (st->found.nmembers > 0) {
        attach(p, &st->found);
        st->map = st->found;
        st->stale = false;
    }
    if (changed) {
        st->offenders = (struct slot_set){0};
        st->interval = INTERVAL_MIN;
    } else {
        st->interval = st->interval * 2 < INTERVAL_MAX ? st->interval * 2 : INTERVAL_MAX;
    }
    set_merge(&st->offenders, &st->pending);
    st->pending = (struct slot_set){0};
    st->last = now;
    st->watch = map_by_slot(&st->found, st->slots[0]) == NULL || any_silent(st);
    p->remaps++;
    go_idle(st);
    if (st->watch) {
        st->wake = now + st->interval;
    }
}

/* Without a program in place all probes go to the same member, whoever that is: so it is doubtful when we did not
 * answer, or when nobody else did and no index was silent. */
static bool doubtful(struct port_steering *st) {
    return map_by_slot(&st->found, st->slots[0]) == NULL || (st->found.nmembers < 2 && window_answers(st) == WINDOW);
}

static void pass_done(struct port *p, uint64_t now) {
    struct port_steering *st = p->steering;
    if (st->pass > 0 || !doubtful(st)) {
        finish(p, now);
        return;
    }
    const struct steering_map none = {0};
    attach(p, st->stale ? &none : &st->map);
    start_pass(p, 1, now);
}

static void next_window(struct port *p, uint64_t now) {
    p->steering->window += WINDOW;
    p->steering->tries = 0;
    send_window(p, now);
}

static void probe_step(struct port *p, uint64_t now) {
    struct port_steering *st = p->steering;
    read_replies(st);
    uint32_t answers = window_answers(st);
    int tries = answers == 0 && st->window > 0 ? TRIES_BEYOND : TRIES;
    if (answers < WINDOW && now < st->try_until) {
        st->wake = now + POLL_REPLIES;
    } else if (answers < WINDOW && st->tries < tries) {
        if (!doubtful(st)) {
            attach_so_far(p);
        }
        send_window(p, now);
    } else if (answers == 0 || beyond_end(st, st->window + WINDOW - 1) || st->window + WINDOW == PORT_MAX_MEMBERS) {
        pass_done(p, now);
    } else {
        next_window(p, now);
    }
}

/* ---------------------------------------------------------------- the lock */

/* One member remaps at a time: it saves work, correctness does not rest on it. */
static void lock_step(struct port *p, uint64_t now) {
    struct port_steering *st = p->steering;
    struct abstract_name name;
    char text[ADDRESS_TEXT];
    abstract_name(&name, "rnic/1/lock/%u/%s", (unsigned)getuid(), address_text(&p->addr, text));
    if (st->phase == STEERING_IDLE) {
        st->phase = STEERING_LOCK;
        st->since = now;
    }
    st->lock_fd = abstract_open(&name);
    if (st->lock_fd >= 0 || now - st->since >= LOCK_PATIENCE) {
        start_pass(p, 0, now);
    } else {
        st->wake = now + LOCK_RETRY;
    }
}

/* Somebody else's remap counts like one of ours.  Its probe came without a time: the timer's next call is near, as
 * answering it has spent a credit. */
static void note_others(struct port *p, uint64_t now) {
    struct port_steering *st = p->steering;
    if (!st->others_remap) {
        return;
    }
    st->others_remap = false;
    st->last = now;
    if ((p->remaps == 0 || st->watch) && st->phase == STEERING_IDLE && st->wake == NEVER) {
        st->wake = now + st->interval; /* should it die before it is done */
    }
}

void steering_timer(struct port *p, uint64_t now) {
    struct port_steering *st = p->steering;
    if (st->credits < CREDITS && now >= st->refill) {
        st->credits = CREDITS;
        st->refill = now + CREDIT_PERIOD;
    }
    note_others(p, now);
    if (now < st->wake) {
        return;
    }
    if (st->phase == STEERING_PROBE) {
        probe_step(p, now);
    } else {
        lock_step(p, now);
    }
}

uint64_t steering_deadline(const struct port_steering *st) {
    uint64_t refill = st->credits < CREDITS ? st->refill : NEVER;
    return st->wake < refill ? st->wake : refill;
}

/* ---------------------------------------------------------------- events */

static void answer_probe(const struct port *p, const struct probe *probe) {
    const struct port_steering *st = p->steering;
    struct slotmsg msg = {.magic = SLOTMSG_MAGIC,
                          .version = SLOTMSG_VERSION,
                          .type = SLOTMSG_PROBE_ANSWER,
                          .length = st->nslots * (uint32_t)sizeof st->slots[0],
                          .nonce = probe->nonce,
                          .index = probe->index};
    struct abstract_name name;
    reply_name(&name, probe->nonce);
    struct iovec iov[2] = {{&msg, sizeof msg}, {(void *)(uintptr_t)st->slots, msg.length}};
    /* A full queue or a prober that is gone: it will ask again, or not. */
    (void)abstract_send(&name, iov, 2);
}

/* Somebody else is learning the order: what we know is old, and what we wanted is being done. */
static void yield_remap(struct port_steering *st) {
    st->stale = true;
    st->others_remap = true;
    if (st->phase != STEERING_PROBE) {
        go_idle(st);
    }
}

void steering_probe_input(struct port *p, const uint8_t *data, uint32_t length, const struct sockaddr_in6 *src) {
    struct port_steering *st = p->steering;
    struct probe probe;
    if (length != sizeof probe || p->rx_fd < 0 || !address_same(src, &p->addr)) {
        return;
    }
    memcpy(&probe, data, sizeof probe);
    if (probe.opcode != PORT_PROBE_OPCODE || probe.magic != SLOTMSG_MAGIC || probe.version != SLOTMSG_VERSION) {
        return;
    }
    if (st->phase == STEERING_PROBE && probe.nonce == st->nonce) {
        record(st, probe.index, st->slots, st->nslots);
    } else if (st->credits > 0) {
        st->credits--;
        answer_probe(p, &probe);
        yield_remap(st);
    }
}

void steering_forwarded(struct port *p, uint32_t slot, uint64_t now) {
    struct port_steering *st = p->steering;
    note_others(p, now);
    set_add(&st->pending, slot);
    if (st->phase != STEERING_IDLE) {
        return;
    }
    uint64_t due = st->last + (set_has(&st->offenders, slot) ? st->interval : INTERVAL_MIN);
    due = due > now ? due : now;
    st->wake = due < st->wake ? due : st->wake;
}

void steering_start(struct port *p, uint64_t now) {
    struct port_steering *st = p->steering;
    st->phase = STEERING_IDLE;
    st->interval = INTERVAL_MIN;
    st->credits = CREDITS;
    st->wake = now;
}

/* The map as it will be when the member at index leaves: the last one takes its place. */
static void map_without(const struct steering_map *map, uint32_t slot, struct steering_map *out) {
    *out = (struct steering_map){.valid = true, .count = map->count - 1};
    uint32_t gone = 0;
    for (uint32_t i = 0; i < map->nmembers; i++) {
        if (map->members[i].slots[0] == slot) {
            gone = map->members[i].index;
        } else {
            map_add(out, &map->members[i]);
        }
    }
    for (uint32_t i = 0; i < out->nmembers; i++) {
        if (out->members[i].index == map->count - 1) {
            out->members[i].index = gone;
        }
    }
}

void steering_stop(struct port *p) {
    struct port_steering *st = p->steering;
    if (p->rx_fd >= 0 && !st->stale && st->map.count > 1 && map_by_slot(&st->map, st->slots[0]) != NULL) {
        map_without(&st->map, st->slots[0], &st->found);
        attach(p, &st->found);
        st->map.count = 0; /* once */
    }
    go_idle(st);
}
