/* SPDX-License-Identifier: Apache-2.0 */
#include "link/sieve.h"

#include <linux/filter.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/socket.h>

#include "base/bytes.h"
#include "link/port.h"
#include "link/steerprog.h"

#define GUARD 7
#define ADDRESS_V6 8 /* instructions */
#define FATE 4
#define MOST (GUARD + SIEVE_SOURCES * (ADDRESS_V6 + 1 + SIEVE_SPARED + FATE) + 1)
#define IPV4_SOURCE 12 /* in the IP header */
#define IPV6_SOURCE 8

struct program {
    struct sock_filter f[MOST];
    unsigned short n;
};

/* ---------------------------------------------------------------- who is muted */

void sieve_mute(struct sieve *s, const struct sieve_source *source) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->muted[i].port == source->port && IN6_ARE_ADDR_EQUAL(&s->muted[i].from, &source->from)) {
            s->muted[i] = *source;
            return;
        }
        at = s->muted[i].until < s->muted[at].until ? i : at;
    }
    if (s->count < SIEVE_SOURCES) {
        at = s->count++;
    }
    s->muted[at] = *source;
}

static bool is_spared(const struct sieve_source *source, uint16_t port) {
    for (uint32_t i = 0; i < source->nspared; i++) {
        if (source->spared[i] == port) {
            return true;
        }
    }
    return false;
}

const struct sieve_source *sieve_find(const struct sieve *s, const struct in6_addr *from, uint16_t port) {
    for (uint32_t i = 0; i < s->count; i++) {
        const struct sieve_source *source = &s->muted[i];
        bool it = source->port ? source->port == port : !is_spared(source, port);
        if (it && IN6_ARE_ADDR_EQUAL(&source->from, from)) {
            return source;
        }
    }
    return NULL;
}

bool sieve_expire(struct sieve *s, uint64_t now) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->muted[i].until > now) {
            s->muted[left++] = s->muted[i];
        }
    }
    bool changed = left < s->count;
    s->count = left;
    return changed;
}

uint64_t sieve_deadline(const struct sieve *s) {
    uint64_t first = UINT64_MAX;
    for (uint32_t i = 0; i < s->count; i++) {
        first = s->muted[i].until < first ? s->muted[i].until : first;
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

/* Behind the source's other instructions: one packet in so many passes. */
static void add_fate(struct program *p) {
    load(p, BPF_W, (uint32_t)(SKF_AD_OFF + SKF_AD_RANDOM));
    add(p, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, SIEVE_PASSES - 1));
    skip_if(p, 0, 1);
    end(p, 0);
}

static void add_source(struct program *p, const struct sieve_source *source, bool v4) {
    uint32_t words = v4 ? 1 : 4, ports = source->port ? 1 : source->nspared;
    uint32_t at = (uint32_t)(SKF_NET_OFF + (v4 ? IPV4_SOURCE : IPV6_SOURCE)), rest = 2 * words + 1 + ports + FATE;
    const uint8_t *address = source->from.s6_addr + 16 - 4 * words;
    for (uint32_t i = 0; i < words; i++) {
        load(p, BPF_W, at + 4 * i);
        skip_unless(p, get_be32(address + 4 * i), rest -= 2);
    }
    load(p, BPF_H, 0);
    if (source->port) {
        skip_unless(p, ntohs(source->port), FATE);
    }
    for (uint32_t i = 0; i < ports && !source->port; i++) {
        skip_if(p, ntohs(source->spared[i]), ports - i - 1 + FATE);
    }
    add_fate(p);
}

/* In a VRF (ip-vrf(8)) nothing comes by way of lo. */
static bool is_bound_to_device(int fd) {
    char name[IFNAMSIZ];
    socklen_t n = sizeof name;
    return getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &n) == 0 && n > 0;
}

void sieve_attach(const struct sieve *s, int fd, bool v4) {
    struct program p = {.n = 0};
    if (!v4 && !is_bound_to_device(fd)) {
        add_guard(&p);
    }
    for (uint32_t i = 0; i < s->count; i++) {
        add_source(&p, &s->muted[i], v4);
    }
    int nothing = 0;
    if (p.n == 0) {
        (void)setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &nothing, sizeof nothing);
        return;
    }
    end(&p, UINT32_MAX);
    struct sock_fprog program = {.len = p.n, .filter = p.f};
    (void)setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}
