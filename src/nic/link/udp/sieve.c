/* SPDX-License-Identifier: Apache-2.0 */
#include "link/udp/sieve.h"

#include <errno.h>
#include <linux/filter.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/socket.h>

#include "base/bytes.h"
#include "link/udp/port.h"
#include "link/udp/steerprog.h"
#include "link/udp/udpsock.h"
#include "names/slot.h"
#include "wire/bth.h"

#define GUARD 7
#define ADDRESS_V6 8 /* instructions */
#define PORTS (1 + SIEVE_HEARD)
#define LENGTH 2
#define PLACE (2 + 2 + SIEVE_SPARED + 1)
#define FATE 4
#define MOST (GUARD + SIEVE_RULES * (ADDRESS_V6 + PORTS + LENGTH + PLACE + FATE) + 1)
#define IPV4_SOURCE 12 /* in the IP header */
#define IPV6_SOURCE 8
#define QPN_AT (sizeof(struct udphdr) + 4) /* with 8 other bits ahead of it */
#define SHORTEST (sizeof(struct udphdr) + BTH_BYTES)

struct program {
    struct sock_filter f[MOST];
    unsigned short n;
};

/* ---------------------------------------------------------------- what is muted */

void sieve_mute(struct sieve *s, const struct sieve_rule *rule) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        const struct sieve_rule *r = &s->rules[i];
        if (r->port == rule->port && r->qpn == rule->qpn && IN6_ARE_ADDR_EQUAL(&r->from, &rule->from)) {
            bool apart = r->apart;
            s->rules[i] = *rule;
            s->rules[i].apart |= apart;
            return;
        }
        at = r->until < s->rules[at].until ? i : at;
    }
    if (s->count < SIEVE_RULES) {
        at = s->count++;
    }
    s->rules[at] = *rule;
}

/* Queue pair 0 is nobody's, whoever has slot 0. */
static bool is_spared(const struct sieve_rule *rule, uint32_t qpn) {
    for (uint32_t i = 0; qpn && i < rule->nspared; i++) {
        if (rule->spared[i] == qpn || rule->spared[i] == (SIEVE_SLOT | qpn >> QPN_INDEX_BITS)) {
            return true;
        }
    }
    return qpn == QPN_GSI;
}

static uint32_t heard_of(const struct sieve_rule *rule) {
    uint32_t n = 0;
    while (n < SIEVE_HEARD && rule->heard[n]) {
        n++;
    }
    return n;
}

static bool covers(const struct sieve_rule *rule, uint16_t port, uint32_t qpn) {
    for (uint32_t i = 0; i < heard_of(rule); i++) {
        if (rule->heard[i] == port) {
            return false;
        }
    }
    return (!rule->port || rule->port == port) && (rule->qpn ? rule->qpn == qpn : !is_spared(rule, qpn));
}

struct sieve_rule *sieve_find(struct sieve *s, const struct in6_addr *from, uint16_t port, uint32_t qpn) {
    for (uint32_t i = 0; i < s->count; i++) {
        if (IN6_ARE_ADDR_EQUAL(&s->rules[i].from, from) && covers(&s->rules[i], port, qpn)) {
            return &s->rules[i];
        }
    }
    return NULL;
}

static uint32_t port_bit(uint16_t port) { return ntohs(port) % SIEVE_PORTS; }

void sieve_uses(struct sieve_rule *rule, uint16_t port) {
    rule->used[port_bit(port) / 8] |= (uint8_t)(1u << port_bit(port) % 8);
}

static bool is_used(const struct sieve_rule *rule, uint16_t port) {
    return rule->used[port_bit(port) / 8] >> port_bit(port) % 8 & 1;
}

bool sieve_part(struct sieve *s, const struct in6_addr *from, uint16_t port, uint32_t qpn, bool mixed) {
    bool changed = false;
    for (uint32_t i = 0; i < s->count; i++) {
        struct sieve_rule *r = &s->rules[i];
        if (!r->apart && IN6_ARE_ADDR_EQUAL(&r->from, from) && covers(r, port, qpn) && (mixed || is_used(r, port))) {
            r->apart = changed = true;
        }
    }
    return changed;
}

/* Leaves those that a question says to keep. */
static bool keep(struct sieve *s, bool (*stays)(const struct sieve_rule *rule, const void *arg), const void *arg) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        if (stays(&s->rules[i], arg)) {
            s->rules[left++] = s->rules[i];
        }
    }
    bool changed = left < s->count;
    s->count = left;
    return changed;
}

static bool lasts(const struct sieve_rule *rule, const void *now) { return rule->until > *(const uint64_t *)now; }

bool sieve_expire(struct sieve *s, uint64_t now) { return keep(s, lasts, &now); }

struct newcomer {
    const struct in6_addr *from;
    uint32_t place;
};

static bool is_from(const struct sieve_rule *rule, const struct newcomer *new) {
    return !new->from || IN6_ARE_ADDR_EQUAL(&rule->from, new->from);
}

static bool concerns(const struct sieve_rule *rule, const struct newcomer *new) {
    return is_from(rule, new) && (rule->qpn ? rule->qpn == new->place : !is_spared(rule, new->place));
}

/* Where there is no room for it the rule goes. */
static bool leaves_alone(const struct sieve_rule *rule, const void *new) {
    return !concerns(rule, new) || (!rule->qpn && rule->nspared < SIEVE_SPARED);
}

bool sieve_spare(struct sieve *s, const struct in6_addr *from, uint32_t place) {
    const struct newcomer new = {.from = from, .place = place};
    bool changed = keep(s, leaves_alone, &new);
    for (uint32_t i = 0; i < s->count; i++) {
        struct sieve_rule *r = &s->rules[i];
        if (is_from(r, &new)) {
            sieve_uses(r, htons(ROCE_UDP_PORT)); /* also where it was not muted itself */
        }
        if (concerns(r, &new)) {
            r->spared[r->nspared++] = place;
            changed = true;
        }
    }
    return changed;
}

uint64_t sieve_deadline(const struct sieve *s) {
    uint64_t first = UINT64_MAX;
    for (uint32_t i = 0; i < s->count; i++) {
        first = s->rules[i].until < first ? s->rules[i].until : first;
    }
    return first;
}

/* ---------------------------------------------------------------- the program: it sees the UDP header and what follows */

static void add(struct program *p, struct sock_filter instruction) { p->f[p->n++] = instruction; }

static void load(struct program *p, uint16_t size, uint32_t at) {
    add(p, (struct sock_filter)BPF_STMT(BPF_LD | BPF_ABS | size, at));
}

/* Skips so many instructions if what was loaded is the value, or if it is not. */
static void skip_if(struct program *p, uint32_t value, uint32_t n) {
    add(p, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, (uint8_t)n, 0));
}

static void skip_unless(struct program *p, uint32_t value, uint32_t n) {
    add(p, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, (uint8_t)n));
}

static void end(struct program *p, uint32_t bytes) { add(p, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, bytes)); }

/* Messages of the steering come only from this host, whatever source address they have: IPv4 refuses packets from the wire
 * with an own address (unless accept_local is set), IPv6 does not. */
static void add_guard(struct program *p) {
    load(p, BPF_W, (uint32_t)(SKF_AD_OFF + SKF_AD_IFINDEX));
    skip_if(p, STEERPROG_LOOPBACK, 5);
    add(p, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0));
    skip_if(p, sizeof(struct udphdr), 3);  /* a load beyond the end would drop it */
    load(p, BPF_B, sizeof(struct udphdr)); /* the opcode */
    skip_unless(p, PORT_PROBE_OPCODE, 1);
    end(p, 0);
}

/* One packet in so many passes. */
static void add_fate(struct program *p) {
    load(p, BPF_W, (uint32_t)(SKF_AD_OFF + SKF_AD_RANDOM));
    add(p, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, SIEVE_PASSES - 1));
    skip_if(p, 0, 1);
    end(p, 0);
}

/* How many instructions the parts of a rule take. */
static uint32_t ports_of(const struct sieve_rule *rule) { return 1 + (rule->port ? 1 : heard_of(rule)); }

static uint32_t place_of(const struct sieve_rule *rule) { return 2 + (rule->qpn ? 1 : 2 + rule->nspared + 1); }

static void add_address(struct program *p, const struct sieve_rule *rule, bool v4) {
    uint32_t words = v4 ? 1 : 4, at = (uint32_t)(SKF_NET_OFF + (v4 ? IPV4_SOURCE : IPV6_SOURCE));
    uint32_t behind = ports_of(rule) + LENGTH + place_of(rule) + FATE;
    const uint8_t *address = rule->from.s6_addr + 16 - 4 * words;
    for (uint32_t i = 0; i < words; i++) {
        load(p, BPF_W, at + 4 * i);
        skip_unless(p, get_be32(address + 4 * i), 2 * (words - i - 1) + behind);
    }
}

static void add_ports(struct program *p, const struct sieve_rule *rule) {
    uint32_t behind = LENGTH + place_of(rule) + FATE;
    load(p, BPF_H, 0);
    if (rule->port) {
        skip_unless(p, ntohs(rule->port), behind);
        return;
    }
    for (uint32_t i = 0; i < heard_of(rule); i++) {
        skip_if(p, ntohs(rule->heard[i]), heard_of(rule) - i - 1 + behind);
    }
}

/* What is too short to name a queue pair is for none. */
static void add_length(struct program *p, const struct sieve_rule *rule) {
    uint32_t otherwise = place_of(rule) + (rule->qpn ? FATE : 0);
    add(p, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0));
    add(p, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, SHORTEST, 0, (uint8_t)otherwise));
}

/* First the spared queue pairs, then, of what is left, the spared slots. */
static void add_place(struct program *p, const struct sieve_rule *rule) {
    uint32_t left = rule->nspared + 1;
    load(p, BPF_W, QPN_AT);
    add(p, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xFFFFFF));
    if (rule->qpn) {
        skip_unless(p, rule->qpn, FATE);
        return;
    }
    skip_if(p, QPN_SMI, 1 + left);
    skip_if(p, QPN_GSI, left + FATE);
    for (uint32_t i = 0; i < rule->nspared; i++) {
        if (!(rule->spared[i] & SIEVE_SLOT)) {
            skip_if(p, rule->spared[i], --left + FATE);
        }
    }
    add(p, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, QPN_INDEX_BITS));
    left--;
    for (uint32_t i = 0; i < rule->nspared; i++) {
        if (rule->spared[i] & SIEVE_SLOT) {
            skip_if(p, rule->spared[i] & ~SIEVE_SLOT, --left + FATE);
        }
    }
}

/* In a VRF (ip-vrf(8)) nothing comes by way of lo. */
static bool is_bound_to_device(int fd) {
    char name[IFNAMSIZ];
    socklen_t n = sizeof name;
    return getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &n) == 0 && n > 0;
}

static bool attach(const struct sieve *s, int fd, bool guard, bool v4) {
    struct program p = {.n = 0};
    if (guard) {
        add_guard(&p);
    }
    for (uint32_t i = 0; i < s->count; i++) {
        add_address(&p, &s->rules[i], v4);
        add_ports(&p, &s->rules[i]);
        add_length(&p, &s->rules[i]);
        add_place(&p, &s->rules[i]);
        add_fate(&p);
    }
    end(&p, UINT32_MAX);
    struct sock_fprog program = {.len = p.n, .filter = p.f};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
}

static bool is_apart(const struct sieve *s) {
    bool apart = false;
    for (uint32_t i = 0; i < s->count; i++) {
        apart |= s->rules[i].apart;
    }
    return apart;
}

static bool is_empty(int fd) { return recv(fd, NULL, 0, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN; }

bool sieve_batch(const struct sieve *s, int fd) {
    bool apart = is_apart(s);
    if (apart && !is_empty(fd)) {
        return false;
    }
    (void)udpsock_set(fd, SOL_UDP, UDP_GRO, !apart); /* a kernel without it has no batches */
    return true;
}

static void filter(const struct sieve *s, int fd, bool v4) {
    static const struct sieve nothing;
    bool guard = !v4 && !is_bound_to_device(fd);
    int none = 0;
    if (s->count && attach(s, fd, guard, v4)) {
        return;
    }
    if (guard) {
        (void)attach(&nothing, fd, guard, v4); /* without: nor is there steering */
    } else {
        (void)setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none);
    }
}

bool sieve_attach(const struct sieve *s, int fd, bool v4) {
    filter(s, fd, v4); /* first: then there is less to read */
    return sieve_batch(s, fd);
}
