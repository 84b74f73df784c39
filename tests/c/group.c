/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_setaffinity */
#endif
#include "group.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/address.h"
#include "check.h"
#include "link/udp/steering.h"
#include "live.h"

#define LO 1
#define PATIENCE 60000 /* ms, for what the kernel does in its own time */

struct member group_members[MEMBERS];
int group_device, group_falls_to;
struct sockaddr_in6 group_addr;
uint64_t group_now;

static int group_size, senders[SENDERS], marker = -1;
static struct sockaddr_in6 marker_addr;

/* Probes beyond the group's end, which the kernel's hash would give to anybody. */
static struct {
    struct member *to;
    uint8_t bytes[32];
    uint32_t length;
} fallen[64];
static int nfallen;

/* ---------------------------------------------------------------- the world */

static int udp_socket(const struct sockaddr_in6 *to) {
    return socket(address_is_v4(to) ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

static ssize_t send_udp(int fd, const struct sockaddr_in6 *to, const void *data, size_t length) {
    union address_native native;
    socklen_t n = address_to_native(to, &native);
    return sendto(fd, data, length, 0, &native.any, n);
}

static void open_marker(void) {
    union address_native native;
    socklen_t n = sizeof native;
    marker = udp_socket(&group_addr);
    marker_addr = group_addr;
    n = address_to_native(&marker_addr, &native);
    for (int i = 0; i < PATIENCE && bind(marker, &native.any, n) != 0 && errno == EADDRNOTAVAIL; i++)
        usleep(1000); /* an address of IPv6 is there a little later */
    n = sizeof native;
    CHECK_EQ(getsockname(marker, &native.any, &n), 0);
    address_from_native(&native, &marker_addr);
}

static struct sockaddr_in6 loopback4(void) {
    struct sockaddr_in6 a = {.sin6_family = AF_INET6};
    a.sin6_addr.s6_addr[10] = a.sin6_addr.s6_addr[11] = 0xFF;
    a.sin6_addr.s6_addr[12] = 127, a.sin6_addr.s6_addr[15] = 1;
    return a;
}

void group_close(struct member *m) {
    port_close(&m->port);
    slot_release(&m->slot);
    slot_release(&m->second);
    m->open = false;
}

void group_end(void) {
    for (int i = 0; i < group_size; i++) {
        if (group_members[i].open)
            group_close(&group_members[i]);
    }
    for (int i = 0; i < SENDERS; i++)
        close(senders[i]);
    close(marker);
    marker = -1;
}

void group_begin_at(struct sockaddr_in6 at) {
    if (marker >= 0)
        group_end(); /* of a test that has failed */
    group_addr = at;
    group_now = 1000000 * MS;
    group_size = nfallen = group_falls_to = 0;
    memset(group_members, 0, sizeof group_members);
    for (int i = 0; i < SENDERS; i++)
        CHECK((senders[i] = udp_socket(&group_addr)) >= 0);
    open_marker();
}

void group_begin(void) {
    group_device = LO;
    group_begin_at(loopback4());
}

struct member *group_join(void) {
    struct rnic_err err;
    struct member *m = &group_members[group_size++];
    CHECK(group_size <= MEMBERS);
    *m = (struct member){.open = true, .second.fd = -1, .second.life.fd = -1};
    CHECK_EQ(slot_claim(&m->slot, &err), 0);
    CHECK_EQ(port_open(&m->port, &group_addr, group_device, &m->slot, 0, group_now, &err), 0);
    return m;
}

void group_kill(struct member *m) {
    port_abandon(&m->port);
    group_close(m);
}

void group_stop(int from, int to) {
    for (int i = from; i < to; i++)
        group_members[i].stopped = true;
}

/* What this processor has sent to lo arrives in its order: when this does, all that was sent before has. */
static void all_has_arrived(void) {
    char byte = 0;
    CHECK_EQ(send_udp(marker, &marker_addr, &byte, 1), 1);
    CHECK_EQ(recv(marker, &byte, 1, 0), 1);
}

/* ---------------------------------------------------------------- what the steering says */

static char said[8192];
static bool asks_only;
static uint64_t said_since, said_at;
static int said_kind, said_first, said_last;

void group_listen_in(bool only) {
    asks_only = only;
    said[0] = '\0';
    said_since = group_now;
    said_kind = -1;
}

static void note_probe(const uint8_t *data) {
    static const char letters[] = "PJML";
    int index = data[2] << 8 | data[3];
    size_t n = strlen(said);
    char *tail = said + n, *range = strrchr(said, said_last > said_first ? '-' : ' ');
    if (said_at != group_now || said_kind < 0)
        (void)snprintf(tail, sizeof said - n, "%s%llu %c%d", n ? " " : "",
                       (unsigned long long)((group_now - said_since) / MS), letters[data[1] % 4], index);
    else if (data[1] == said_kind && index == said_last + 1 && said_last > said_first)
        (void)snprintf(range, sizeof said - (size_t)(range - said), "-%d", index);
    else if (data[1] == said_kind && index == said_last + 1)
        (void)snprintf(tail, sizeof said - n, "-%d", index);
    else
        (void)snprintf(tail, sizeof said - n, " %c%d", letters[data[1] % 4], index);
    bool goes_on = said_at == group_now && data[1] == said_kind && index == said_last + 1;
    said_first = goes_on ? said_first : index;
    said_last = index;
    said_kind = data[1];
    said_at = group_now;
}

static bool is_beyond_end(const uint8_t *probe) {
    int group = 0;
    for (int i = 0; i < group_size; i++)
        group += group_members[i].open && group_members[i].port.rx_fd >= 0;
    return probe[1] == 0 && (probe[2] << 8 | probe[3]) >= group;
}

static void fall(const uint8_t *probe, size_t length) {
    if (group_members[group_falls_to].stopped)
        return;
    CHECK(nfallen < 64);
    fallen[nfallen].to = &group_members[group_falls_to];
    fallen[nfallen].length = (uint32_t)length;
    memcpy(fallen[nfallen++].bytes, probe, length);
}

ssize_t group_sendto(int fd, const void *data, size_t length, int flags, const struct sockaddr *to, socklen_t n) {
    const uint8_t *bytes = data;
    bool probe = length >= 8 && length <= sizeof fallen[0].bytes && bytes[0] == PORT_PROBE_OPCODE;
    if (probe && (bytes[1] != 0 || !asks_only))
        note_probe(bytes);
    if (probe && is_beyond_end(bytes)) {
        fall(bytes, length);
        return (ssize_t)length;
    }
    return (ssize_t)syscall(SYS_sendto, fd, data, length, flags, to, n);
}

ssize_t group_getrandom(void *to, size_t n, unsigned flags) {
    uint32_t start = group_size == 2 ? SLOT_COUNT - 1 : 0;
    if (n != sizeof start)
        return (ssize_t)syscall(SYS_getrandom, to, n, flags);
    memcpy(to, &start, n);
    return (ssize_t)n;
}

void group_has_said(const char *want) {
    if (strcmp(said, want) != 0)
        check_fail(__FILE__, __LINE__, "not \"%s\" but \"%s\"", want, said);
}

bool group_has_asked(const char *words) { return strstr(said, words) != NULL; }

void group_order(const struct member *m, const char *want) {
    const struct steering_map *map = &m->port.steering->map;
    char text[512] = "";
    for (uint32_t k = 0; k < map->count; k++) {
        int who = -1;
        for (int i = 0; i < group_size; i++)
            who = group_members[i].slot.number == map->first_slot[k] ? i : who;
        bool silent = map->silent[k / 64] >> (k % 64) & 1;
        size_t n = strlen(text);
        (void)snprintf(text + n, sizeof text - n, who < 0 ? "%s%s?" : "%s%s%d", n ? " " : "", silent ? "-" : "", who);
    }
    if (strcmp(text, want) != 0)
        check_fail(__FILE__, __LINE__, "not \"%s\" but \"%s\"", want, text);
}

void group_map_is_whole(const struct member *m) {
    const struct steering_map *map = &m->port.steering->map;
    for (uint32_t slot = 0; slot < SLOT_COUNT; slot++) {
        int at = STEERING_NOBODY;
        for (int i = 0; i < group_size; i++) {
            bool has = group_members[i].slot.number == slot ||
                       (group_members[i].second.fd >= 0 && group_members[i].second.number == slot);
            for (uint32_t k = 0; has && k < map->count; k++)
                at = map->first_slot[k] == group_members[i].slot.number ? (int)k : at;
        }
        check_note("slot %u", slot);
        CHECK_EQ(map->index_of[slot], at);
    }
    for (uint32_t k = map->count; k < SLOT_COUNT; k++)
        CHECK(map->first_slot[k] == STEERING_NOBODY && !(map->silent[k / 64] >> (k % 64) & 1));
    check_note("%s", "");
}

static void take_packet(struct member *m, const uint8_t *data, uint32_t length, const struct sockaddr_in6 *src) {
    uint32_t slot = (uint32_t)(data[5] << 8 | data[6]) >> 6;
    if (data[0] == PORT_PROBE_OPCODE) {
        m->probes++;
        port_probe_input(&m->port, data, length, src, group_now);
    } else if (slot == m->slot.number || (m->second.fd >= 0 && slot == m->second.number)) {
        m->direct++;
    } else {
        m->wrong++;
        (void)port_forward(&m->port, slot, &(struct slot_packet){.src = *src, .length = length}, data, group_now);
    }
}

static int take_fallen(struct member *m) {
    struct sockaddr_in6 src = group_addr;
    int n = 0, kept = 0;
    src.sin6_port = htons(ROCE_UDP_PORT);
    for (int i = 0, all = nfallen; i < all; i++) {
        if (fallen[i].to != m) {
            fallen[kept++] = fallen[i];
            continue;
        }
        take_packet(m, fallen[i].bytes, fallen[i].length, &src);
        n++;
    }
    nfallen = kept;
    return n;
}

static int read_port(struct member *m) {
    uint8_t data[2048];
    union address_native from;
    socklen_t n = sizeof from;
    struct sockaddr_in6 src;
    ssize_t length = recvfrom(m->port.rx_fd, data, sizeof data, MSG_DONTWAIT, &from.any, &n);
    m->empty += length == 0;
    if (length < 8)
        return length >= 0;
    address_from_native(&from, &src);
    take_packet(m, data, (uint32_t)length, &src);
    return 1;
}

static int read_slot(struct member *m, const struct slot *s) {
    static uint8_t data[65536];
    struct slot_packet packet;
    struct port *ports[] = {&m->port};
    int rc = s->fd < 0 ? -EAGAIN : port_slot_input(s, ports, 1, data, sizeof data, &packet, group_now);
    m->forwarded += rc == 1;
    return rc >= 0;
}

void group_read(void) {
    int n;
    do {
        n = 0;
        all_has_arrived();
        for (int i = 0; i < group_size; i++) {
            struct member *m = &group_members[i];
            if (m->open && !m->stopped)
                n += read_slot(m, &m->slot) + read_slot(m, &m->second) + read_port(m) + take_fallen(m);
        }
    } while (n > 0);
}

uint64_t group_next_deadline(void) {
    uint64_t first = NEVER;
    for (int i = 0; i < group_size; i++) {
        uint64_t at =
            group_members[i].open && !group_members[i].stopped ? port_deadline(&group_members[i].port) : NEVER;
        first = at < first ? at : first;
    }
    return first;
}

void group_run_timers(void) {
    for (int i = 0; i < group_size; i++) {
        struct member *m = &group_members[i];
        if (m->open && !m->stopped && port_deadline(&m->port) <= group_now)
            port_timer(&m->port, group_now);
    }
}

void group_run(uint64_t ns) {
    uint64_t until = group_now + ns;
    for (;;) {
        group_read();
        uint64_t at = group_next_deadline();
        if (at > until)
            break;
        group_now = at > group_now ? at : group_now;
        group_run_timers();
    }
    group_now = until;
}

void group_send(int sender, uint32_t slot) {
    uint8_t data[64] = {4};
    struct sockaddr_in6 to = group_addr;
    uint32_t qpn = slot << QPN_INDEX_BITS | 5;
    to.sin6_port = htons(ROCE_UDP_PORT);
    data[5] = (uint8_t)(qpn >> 16), data[6] = (uint8_t)(qpn >> 8), data[7] = (uint8_t)qpn;
    CHECK_EQ(send_udp(senders[sender], &to, data, sizeof data), sizeof data);
}

uint32_t group_strays(void) {
    uint32_t n = 0;
    for (int i = 0; i < group_size; i++)
        n += group_members[i].wrong;
    return n;
}

bool group_slot_is_reached(struct member *m, uint32_t slot) {
    uint32_t before = m->direct;
    for (int i = 0; i < SENDERS; i++)
        group_send(i, slot);
    group_read();
    return m->direct == before + SENDERS;
}

bool group_is_reached(struct member *m) { return group_slot_is_reached(m, m->slot.number); }

void group_all_are_reached(void) {
    for (int i = 0; i < group_size; i++) {
        check_note("member %d", i);
        if (group_members[i].open && !group_members[i].stopped)
            CHECK(group_is_reached(&group_members[i]));
    }
}

void group_of(int n) {
    group_begin();
    for (int i = 0; i < n; i++) {
        group_join();
        group_run(10 * MS);
    }
    group_run(1000 * MS);
}

void group_isolate(void) {
    live_isolate();
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    (void)sched_setaffinity(0, sizeof one, &one);
}
