/* SPDX-License-Identifier: Apache-2.0
 *
 * link/steering.c and link/port.c: many members of a group in one process, on the kernel's loopback and a clock of the
 * test's.  Whoever is stopped is not asked to do anything; time goes on when nothing is left to be read.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_setaffinity */
#endif
#include "link/steering.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/ipv6.h>
#include <net/if.h>
#include <netinet/ip6.h>
#include <netinet/udp.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "link/address.h"
#include "link/slotmsg.h"
#include "live.h"

#define MS 1000000ull
#define NEVER UINT64_MAX
#define MEMBERS 40
#define SENDERS 5 /* the kernel's hash differs by source port */
#define LO 1
#define PATIENCE 10000 /* ms, for what the kernel does in its own time */

struct member {
    struct slot slot, second;
    struct port port;
    bool open, stopped;
    uint32_t direct, wrong, forwarded; /* packets: from the kernel for us, for others, and handed on to us */
    uint32_t empty;                    /* datagrams without a byte */
    uint32_t probes;                   /* messages of the steering by UDP */
};

static struct member members[MEMBERS];
static int count, senders[SENDERS], marker = -1;
static int device; /* whose address it is */
static struct sockaddr_in6 addr, marker_addr;
static uint64_t now;

/* Probes beyond the group's end, which the kernel's hash would give to anybody. */
static struct {
    struct member *to;
    uint8_t bytes[32];
    uint32_t length;
} fallen[64];
static int nfallen;
static int falls_to; /* a member */

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
    marker = udp_socket(&addr);
    marker_addr = addr;
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

static void close_member(struct member *m) {
    port_close(&m->port);
    slot_release(&m->slot);
    slot_release(&m->second);
    m->open = false;
}

static void end(void) {
    for (int i = 0; i < count; i++) {
        if (members[i].open)
            close_member(&members[i]);
    }
    for (int i = 0; i < SENDERS; i++)
        close(senders[i]);
    close(marker);
    marker = -1;
}

static void begin_at(struct sockaddr_in6 at) {
    if (marker >= 0)
        end(); /* of a test that has failed */
    addr = at;
    now = 1000000 * MS;
    count = nfallen = falls_to = 0;
    memset(members, 0, sizeof members);
    for (int i = 0; i < SENDERS; i++)
        CHECK((senders[i] = udp_socket(&addr)) >= 0);
    open_marker();
}

static void begin(void) {
    device = LO;
    begin_at(loopback4());
}

static struct member *join(void) {
    struct rnic_err err;
    struct member *m = &members[count++];
    CHECK(count <= MEMBERS);
    *m = (struct member){.open = true, .second.fd = -1, .second.life.fd = -1};
    CHECK_EQ(slot_claim(&m->slot, &err), 0);
    CHECK_EQ(port_open(&m->port, &addr, device, &m->slot, 0, now, &err), 0);
    return m;
}

/* As a signal does it. */
static void kill_member(struct member *m) {
    port_abandon(&m->port);
    close_member(m);
}

static void stop(int from, int to) {
    for (int i = from; i < to; i++)
        members[i].stopped = true;
}

/* What this processor has sent to lo arrives in its order: when this does, all that was sent before has. */
static void all_has_arrived(void) {
    char byte = 0;
    CHECK_EQ(send_udp(marker, &marker_addr, &byte, 1), 1);
    CHECK_EQ(recv(marker, &byte, 1, 0), 1);
}

/* ---------------------------------------------------------------- what the steering says */

static char said[8192];
static bool asks_only; /* of the steward's looks, which wait for stopped members, nothing */
static uint64_t said_since, said_at;
static int said_kind, said_first, said_last;

static void listen_in(bool only) {
    asks_only = only;
    said[0] = '\0';
    said_since = now;
    said_kind = -1;
}

/* "250 J0": after 250 ms a JOIN to index 0; P: PROBE, M: MISSED, L: LEAVE; P0-7: eight of them, in this order. */
static void note_probe(const uint8_t *data) {
    static const char letters[] = "PJML";
    int index = data[2] << 8 | data[3];
    size_t n = strlen(said);
    char *tail = said + n, *range = strrchr(said, said_last > said_first ? '-' : ' ');
    if (said_at != now || said_kind < 0)
        (void)snprintf(tail, sizeof said - n, "%s%llu %c%d", n ? " " : "",
                       (unsigned long long)((now - said_since) / MS), letters[data[1] % 4], index);
    else if (data[1] == said_kind && index == said_last + 1 && said_last > said_first)
        (void)snprintf(range, sizeof said - (size_t)(range - said), "-%d", index);
    else if (data[1] == said_kind && index == said_last + 1)
        (void)snprintf(tail, sizeof said - n, "-%d", index);
    else
        (void)snprintf(tail, sizeof said - n, " %c%d", letters[data[1] % 4], index);
    bool goes_on = said_at == now && data[1] == said_kind && index == said_last + 1;
    said_first = goes_on ? said_first : index;
    said_last = index;
    said_kind = data[1];
    said_at = now;
}

static bool is_beyond_end(const uint8_t *probe) {
    int group = 0;
    for (int i = 0; i < count; i++)
        group += members[i].open && members[i].port.rx_fd >= 0;
    return probe[1] == 0 && (probe[2] << 8 | probe[3]) >= group;
}

static void fall(const uint8_t *probe, size_t length) {
    if (members[falls_to].stopped)
        return;
    CHECK(nfallen < 64);
    fallen[nfallen].to = &members[falls_to];
    fallen[nfallen].length = (uint32_t)length;
    memcpy(fallen[nfallen++].bytes, probe, length);
}

/* In the C library's place: by this the steering speaks. */
ssize_t sendto(int fd, const void *data, size_t length, int flags, const struct sockaddr *to, socklen_t n) {
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

static void was_said(const char *want) {
    if (strcmp(said, want) != 0)
        check_fail(__FILE__, __LINE__, "not \"%s\" but \"%s\"", want, said);
}

/* The order that a member has learnt: as the numbers of who is where, silent ones with a minus, strangers as '?'. */
static void order_of(const struct member *m, const char *want) {
    const struct steering_map *map = &m->port.steering->map;
    char text[512] = "";
    for (uint32_t k = 0; k < map->count; k++) {
        int who = -1;
        for (int i = 0; i < count; i++)
            who = members[i].slot.number == map->first_slot[k] ? i : who;
        bool silent = map->silent[k / 64] >> (k % 64) & 1;
        size_t n = strlen(text);
        (void)snprintf(text + n, sizeof text - n, who < 0 ? "%s%s?" : "%s%s%d", n ? " " : "", silent ? "-" : "", who);
    }
    if (strcmp(text, want) != 0)
        check_fail(__FILE__, __LINE__, "not \"%s\" but \"%s\"", want, text);
}

/* Does a map say no more than it should: of who is in it, all slots, and of others nothing? */
static void map_is_whole(const struct member *m) {
    const struct steering_map *map = &m->port.steering->map;
    for (uint32_t slot = 0; slot < SLOT_COUNT; slot++) {
        int at = STEERING_NOBODY;
        for (int i = 0; i < count; i++) {
            bool has =
                members[i].slot.number == slot || (members[i].second.fd >= 0 && members[i].second.number == slot);
            for (uint32_t k = 0; has && k < map->count; k++)
                at = map->first_slot[k] == members[i].slot.number ? (int)k : at;
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
        port_probe_input(&m->port, data, length, src, now);
    } else if (slot == m->slot.number || (m->second.fd >= 0 && slot == m->second.number)) {
        m->direct++;
    } else {
        m->wrong++;
        (void)port_forward(&m->port, slot, &(struct slot_packet){.src = *src, .length = length}, data, now);
    }
}

static int take_fallen(struct member *m) {
    struct sockaddr_in6 src = addr;
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
    int rc = s->fd < 0 ? -EAGAIN : port_slot_input(s, ports, 1, data, sizeof data, &packet, now);
    m->forwarded += rc == 1;
    return rc >= 0;
}

/* Until nobody who runs has anything to read. */
static void read_all(void) {
    int n;
    do {
        n = 0;
        all_has_arrived();
        for (int i = 0; i < count; i++) {
            struct member *m = &members[i];
            if (m->open && !m->stopped)
                n += read_slot(m, &m->slot) + read_slot(m, &m->second) + read_port(m) + take_fallen(m);
        }
    } while (n > 0);
}

static uint64_t next_deadline(void) {
    uint64_t first = NEVER;
    for (int i = 0; i < count; i++) {
        uint64_t at = members[i].open && !members[i].stopped ? port_deadline(&members[i].port) : NEVER;
        first = at < first ? at : first;
    }
    return first;
}

static void run_timers(void) {
    for (int i = 0; i < count; i++) {
        struct member *m = &members[i];
        if (m->open && !m->stopped && port_deadline(&m->port) <= now)
            port_timer(&m->port, now);
    }
}

static void run_for(uint64_t ns) {
    uint64_t until = now + ns;
    for (;;) {
        read_all();
        uint64_t at = next_deadline();
        if (at > until)
            break;
        now = at > now ? at : now;
        run_timers();
    }
    now = until;
}

static void send_packet(int sender, uint32_t slot) {
    uint8_t data[64] = {4};
    struct sockaddr_in6 to = addr;
    uint32_t qpn = slot << QPN_INDEX_BITS | 5;
    to.sin6_port = htons(ROCE_UDP_PORT);
    data[5] = (uint8_t)(qpn >> 16), data[6] = (uint8_t)(qpn >> 8), data[7] = (uint8_t)qpn;
    CHECK_EQ(send_udp(senders[sender], &to, data, sizeof data), sizeof data);
}

static uint32_t strays(void) {
    uint32_t n = 0;
    for (int i = 0; i < count; i++)
        n += members[i].wrong;
    return n;
}

/* Does the kernel give it what is for it? */
static bool slot_is_reached(struct member *m, uint32_t slot) {
    uint32_t before = m->direct;
    for (int i = 0; i < SENDERS; i++)
        send_packet(i, slot);
    read_all();
    return m->direct == before + SENDERS;
}

static bool is_reached(struct member *m) { return slot_is_reached(m, m->slot.number); }

static void all_are_reached(void) {
    for (int i = 0; i < count; i++) {
        check_note("member %d", i);
        if (members[i].open && !members[i].stopped)
            CHECK(is_reached(&members[i]));
    }
}

static void group_of(int n) {
    begin();
    for (int i = 0; i < n; i++) {
        join();
        run_for(10 * MS);
    }
    run_for(1000 * MS);
}

/* ---------------------------------------------------------------- who comes, goes, and stops */

static void each_of_twelve_is_reached(void) {
    group_of(12);
    all_are_reached();
    CHECK_EQ(strays(), 0);
    end();
}

static void nine_stopped_ones_ahead_do_not_make_a_newcomer_deaf(void) {
    group_of(12);
    stop(0, 9);
    struct member *newcomer = join();
    run_for(5000 * MS);
    CHECK(port_settled(&newcomer->port));
    all_are_reached();
    end();
}

static void nine_stopped_ones_without_a_program_do_not_either(void) {
    begin();
    for (int i = 0; i < 9; i++)
        join();
    stop(0, 9);
    struct member *newcomer = join();
    run_for(5000 * MS);
    CHECK(port_settled(&newcomer->port));
    CHECK(is_reached(newcomer));
    end();
}

static void the_others_go_on_when_one_is_killed(void) {
    group_of(4);
    kill_member(&members[1]);
    for (int i = 0; i < SENDERS; i++)
        send_packet(i, members[3].slot.number); /* it has moved */
    run_for(1000 * MS);
    all_are_reached();
    end();
}

/* ---------------------------------------------------------------- word by word */

static void one_that_is_alone_looks_twice_as_there_was_no_program(void) {
    begin();
    listen_in(false);
    struct member *m = join();
    CHECK_EQ(port_deadline(&m->port), now);
    run_for(10000 * MS);
    was_said("0 J0 P0-7 P0-7 P1023 P0 250 J0 253 P1023 P0-7 P0");
    order_of(m, "0");
    map_is_whole(m);
    CHECK_EQ(port_deadline(&m->port), NEVER);
    CHECK_EQ(m->port.remaps, 1);
    end();
}

static void an_arrival_costs_one_look_behind_the_last(void) {
    group_of(3);
    listen_in(false);
    join();
    run_for(10000 * MS);
    was_said("0 J0 3 P3-10 P1023 P0-3 253 J0 256 P1023 P3");
    order_of(&members[0], "0 1 2 3");
    map_is_whole(&members[0]);
    CHECK_EQ(next_deadline(), NEVER);
    end();
}

static void arrivals_together_cost_one_look(void) {
    group_of(1);
    listen_in(false);
    for (int i = 0; i < 12; i++)
        join();
    run_for(10000 * MS);
    was_said("0 J0 J0 J0 J0 J0 J0 J0 J0 J0 J0 J0 J0 3 P1-16 P1023 P0-6 4 P7-12 "
             "253 J0 J0 J0 J0 J0 J0 J0 J0 J0 J0 J0 J0 256 P1023 P1-7 257 P8-12");
    order_of(&members[0], "0 1 2 3 4 5 6 7 8 9 10 11 12");
    map_is_whole(&members[0]);
    end();
}

static void a_second_slot_is_asked_for_where_its_member_is(void) {
    group_of(3);
    struct member *m = &members[1];
    struct rnic_err err;
    CHECK_EQ(slot_claim(&m->second, &err), 0);
    listen_in(false);
    CHECK_EQ(port_add_slot(&m->port, m->second.number), 0);
    CHECK_EQ(port_deadline(&m->port), 0);
    run_for(10000 * MS);
    was_said("0 J0 3 P1023 P1-2 253 J0 256 P1023 P1-2");
    map_is_whole(&members[0]);
    CHECK(slot_is_reached(m, m->second.number));
    for (int i = 2; i < STEERING_SLOTS; i++)
        CHECK_EQ(port_add_slot(&m->port, m->second.number), 0);
    CHECK_EQ(port_add_slot(&m->port, 0), -ENOSPC);
    end();
}

static void who_leaves_says_so_and_the_last_takes_the_place(void) {
    group_of(4);
    listen_in(false);
    close_member(&members[1]);
    run_for(10000 * MS);
    was_said("0 L0");
    order_of(&members[0], "0 3 2");
    map_is_whole(&members[0]);
    all_are_reached();
    CHECK_EQ(strays(), 0);
    end();
}

static void a_steward_that_leaves_attaches_what_will_be(void) {
    group_of(4);
    listen_in(false);
    close_member(&members[0]);
    falls_to = 1;
    run_for(10000 * MS);
    was_said("");
    all_are_reached();
    CHECK_EQ(strays(), 0);
    join();
    run_for(10000 * MS);
    was_said("10000 J0 P0-7 P1023 P0-3 10250 J0 10253 P1023 P3");
    order_of(&members[3], "3 1 2 4");
    map_is_whole(&members[3]);
    end();
}

/* A packet for one comes to another. */
static void stray(struct member *at, const struct member *to) {
    uint8_t data[64] = {4};
    uint32_t qpn = to->slot.number << QPN_INDEX_BITS | 5;
    data[5] = (uint8_t)(qpn >> 16), data[6] = (uint8_t)(qpn >> 8), data[7] = (uint8_t)qpn;
    CHECK_EQ(port_forward(&at->port, to->slot.number, &(struct slot_packet){.src = addr, .length = 64}, data, now), 0);
}

static void a_packet_that_went_astray_is_told_of_and_looked_into(void) {
    group_of(5);
    kill_member(&members[1]);
    listen_in(false);
    stray(&members[2], &members[4]);
    run_for(10000 * MS);
    was_said("0 M0 3 P1023 P4-7 P0-4");
    order_of(&members[0], "0 4 2 3");
    map_is_whole(&members[0]);
    all_are_reached();
    end();
}

static void a_stopped_steward_is_replaced_by_the_next(void) {
    group_of(3);
    stop(0, 1);
    listen_in(false);
    join();
    run_for(600 * MS);
    was_said("0 J0 30 J0 330 J1 P0-7 331 P0 P4-7 333 P0 P4-7 337 P0 P4-7 345 P0 P4-7 361 P8-15 362 P8-15 364 P1023 "
             "P0-3 365 P1023 P0 367 P1023 P0 371 P1023 P0 379 P1023 P0");
    order_of(&members[1], "-? 1 2 3");
    map_is_whole(&members[1]);
    end();
}

static void a_stopped_member_keeps_its_place_and_is_asked_after(void) {
    group_of(4);
    stop(2, 3);
    join();
    run_for(5000 * MS);
    order_of(&members[0], "0 1 -2 3 4");
    map_is_whole(&members[0]);
    CHECK(members[4].port.steering->watching);
    members[2].stopped = false;
    run_for(10000 * MS);
    order_of(&members[0], "0 1 2 3 4");
    CHECK_EQ(next_deadline(), NEVER);
    end();
}

static void who_is_not_heard_asks_eight_and_then_sees_to_it(void) {
    group_of(12);
    stop(0, 9);
    listen_in(false);
    join();
    run_for(2700 * MS);
    was_said("0 J0 30 J0 330 J1 630 J2 930 J3 1230 J4 1530 J5 1830 J6 2130 J7 2430 P0-7 2431 P0-7 2433 P0-7 2437 P0-7 "
             "2445 P0-7 2461 P0-7 2462 P0-7 2464 P0-7 2468 P0-7 2476 P0-7 2492 P8-15 2493 P8 P13-15 2495 P8 P13-15 "
             "2499 P8 P13-15 2507 P8 P13-15 2523 P16-23 2524 P16-23 2526 P1023 P0-6 2527 P7-12 P1023 P0 2529 P1-8 2533 "
             "P1023 P0-6 2541 P7-8 P1023 P0-4");
    order_of(&members[12], "-? -? -? -? -? -? -? -? -? 9 10 11 12");
    end();
}

static void what_is_beyond_the_end_may_fall_to_the_last(void) {
    group_of(3);
    falls_to = 2;
    listen_in(false);
    join();
    falls_to = 3;
    run_for(10000 * MS);
    was_said("0 J0 3 P3-10 P1023 P0-3 253 J0 256 P1023 P3-7 P0-3");
    order_of(&members[0], "0 1 2 3");
    end();
}

static void a_stopped_member_keeps_all_its_slots(void) {
    group_of(4);
    CHECK_EQ(slot_claim(&members[2].second, NULL), 0);
    CHECK_EQ(port_add_slot(&members[2].port, members[2].second.number), 0);
    run_for(1000 * MS);
    stop(2, 3);
    kill_member(&members[1]); /* the last one takes its place */
    listen_in(false);
    stray(&members[3], &members[2]);
    run_for(2000 * MS);
    was_said("0 M0 3 P1023 P2-3 4 P2 6 P2 10 P2 18 P2 34 P3-7 P0-2 35 P2 37 P2 41 P2 49 P2 1065 P1023 P0-2 1066 P2 "
             "1068 P2 1072 P2 1080 P2");
    order_of(&members[0], "0 3 -2");
    map_is_whole(&members[0]);
    members[2].stopped = false;
    run_for(10000 * MS);
    order_of(&members[0], "0 3 2");
    map_is_whole(&members[0]);
    CHECK_EQ(next_deadline(), NEVER);
    end();
}

static void a_stopped_member_that_has_moved_is_found_again(void) {
    group_of(5);
    stop(4, 5);
    kill_member(&members[1]);
    listen_in(false);
    stray(&members[2], &members[4]);
    run_for(3000 * MS);
    was_said("0 M0 3 P1023 P4-7 P0-4 4 P1 6 P1 10 P1 18 P1 1034 P2-3 P1023 P0-1 1035 P1 1037 P1 1041 P1 1049 P1 2065 "
             "P2-3 P1023 P0-1 2066 P1 2068 P1 2072 P1 2080 P1");
    order_of(&members[0], "0 -1 2 3");
    members[4].stopped = false;
    listen_in(false);
    run_for(3000 * MS);
    was_said("96 P2-3 P1023 P0-7 P0-1");
    order_of(&members[0], "0 4 2 3");
    map_is_whole(&members[0]);
    end();
}

static void the_end_may_fall_to_a_stopped_member(void) {
    group_of(12);
    falls_to = 5;
    stop(5, 6);
    listen_in(false);
    join();
    run_for(400 * MS);
    was_said("0 J0 3 P12-19 4 P13-19 6 P13-19 10 P13-19 18 P13-19 34 P20-27 35 P20-27 37 P1023 P0-6 38 P7-12 P1023 P5 "
             "40 P1023 P5 44 P1023 P5 52 P1023 P5 287 J0 290 P12 P1023 291 P1023 293 P1023 297 P1023 305 P1023");
    order_of(&members[0], "0 1 2 3 4 -5 6 7 8 9 10 11 12");
    map_is_whole(&members[0]);
    end();
}

static void a_joiner_that_dies_is_looked_for_once(void) {
    group_of(3);
    falls_to = 1;
    stop(1, 2);
    struct member *m = join();
    run_timers();
    read_all();
    kill_member(m);
    listen_in(false);
    run_for(3000 * MS);
    CHECK(strstr(said, "P1016-1023") != NULL); /* it might be behind stopped ones, however many */
    order_of(&members[0], "0 -1 2");
    map_is_whole(&members[0]);
    CHECK_EQ(members[0].port.steering->look_interval, 40 * MS);
    end();
}

static void a_new_steward_looks_at_every_index(void) {
    group_of(30);
    kill_member(&members[0]); /* 29 is the first now */
    falls_to = 3;
    listen_in(false);
    join();
    run_for(2000 * MS);
    was_said("0 J0 P0-31 P1023 P0-6 1 P7-14 3 P15 P29 250 J0 253 P1023 P29");
    order_of(&members[29], "29 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 30");
    map_is_whole(&members[29]);
    end();
}

static void the_same_miss_is_told_of_ever_more_rarely(void) {
    group_of(2);
    struct member *m = &members[1];
    uint32_t elsewhere = 0;
    while (elsewhere == m->slot.number || elsewhere == members[0].slot.number)
        elsewhere++;
    listen_in(true);
    for (int i = 0; i < 700; i++) {
        steering_forwarded(&m->port, elsewhere, now);
        run_for(5 * MS);
    }
    was_said("0 M0 20 M0 60 M0 140 M0 300 M0 620 M0 1260 M0 1900 M0 2540 M0 3180 M0");
    steering_forwarded(&m->port, elsewhere + 3 < SLOT_COUNT ? elsewhere + 3 : 900, now);
    CHECK_EQ(m->port.steering->interval, 20 * MS); /* something new */
    end();
}

static void several_misses_are_told_of_one_after_the_other(void) {
    group_of(6);
    listen_in(true);
    for (int i = 2; i < 5; i++)
        steering_forwarded(&members[1].port, members[i].slot.number, now);
    CHECK_EQ(port_deadline(&members[1].port), now);
    run_for(500 * MS);
    was_said("0 M0 20 M0 40 M0");
    end();
}

static void misses_wait_for_the_welcome(void) {
    group_of(2);
    stop(0, 1);
    struct member *m = join();
    listen_in(true);
    run_for(10 * MS);
    steering_forwarded(&m->port, members[1].slot.number, now);
    run_for(1000 * MS);
    was_said("0 J0 30 J0 330 J1 J0 360 J0 364 M0 394 M0 694 M1 944 J0 974 J0");
    end();
}

static void those_that_requests_are_spread_over_are_checked_now_and_then(void) {
    group_of(20);
    listen_in(false);
    for (int i = 0; i < 4; i++) {
        join();
        run_for(30 * MS);
    }
    run_for(100 * MS);
    was_said("0 J0 3 P20-27 P1023 P0-6 4 P7-14 6 P15 P20 30 J0 33 P21-28 60 J0 63 P29 P22-28 90 J0 93 P29-30 P23-28 "
             "106 P1023 P0-6 107 P7-14 109 P15 P23");
    end();
}

/* ---------------------------------------------------------------- what is not believed */

/* As in steering.c. */
struct probe {
    uint8_t opcode, kind, index[2];
    uint32_t magic;
    uint16_t version, slot;
    uint32_t about;
    uint64_t nonce;
};

/* Has it been looked into? */
static bool counts(struct member *m, const struct probe *probe, uint32_t length, const struct sockaddr_in6 *src) {
    uint32_t before = m->port.steering->credits;
    uint8_t bytes[64] = {0};
    memcpy(bytes, probe, sizeof *probe);
    steering_probe_input(&m->port, bytes, length, src, now);
    return m->port.steering->credits == before - 1;
}

static void a_malformed_probe_counts_for_nothing(void) {
    group_of(2);
    struct member *m = &members[0];
    struct sockaddr_in6 own = addr, wrong;
    own.sin6_port = htons(ROCE_UDP_PORT);
    const struct probe good = {PORT_PROBE_OPCODE, 0, {0, 0}, SLOTMSG_MAGIC, SLOTMSG_VERSION, 3, 0, 1};
    struct probe bad = good;
    CHECK(counts(m, &good, sizeof good, &own));
    CHECK(!counts(m, &good, sizeof good - 1, &own) && !counts(m, &good, sizeof good + 1, &own));
    wrong = own, wrong.sin6_addr.s6_addr[15]++;
    CHECK(!counts(m, &good, sizeof good, &wrong));
    wrong = own, wrong.sin6_port++;
    CHECK(!counts(m, &good, sizeof good, &wrong));
    bad.magic++;
    CHECK(!counts(m, &bad, sizeof bad, &own));
    bad = good, bad.version++;
    CHECK(!counts(m, &bad, sizeof bad, &own));
    bad = good, bad.slot = SLOT_COUNT;
    CHECK(!counts(m, &bad, sizeof bad, &own));
    bad = good, bad.slot = SLOT_COUNT - 1;
    CHECK(counts(m, &bad, sizeof bad, &own));
    bad = good, bad.kind = 4;
    CHECK(!counts(m, &bad, sizeof bad, &own));
    bad = good, bad.kind = 2, bad.about = SLOT_COUNT; /* a MISSED slot that cannot be */
    CHECK(counts(m, &bad, sizeof bad, &own));
    for (uint32_t i = 0; i < SLOT_COUNT / 64; i++)
        CHECK_EQ(m->port.steering->suspects.bits[i], 0);
    end();
}

static void so_many_probes_are_answered_in_20_ms(void) {
    group_of(1);
    struct member *m = &members[0];
    struct sockaddr_in6 own = addr;
    own.sin6_port = htons(ROCE_UDP_PORT);
    const struct probe probe = {PORT_PROBE_OPCODE, 0, {0, 0}, SLOTMSG_MAGIC, SLOTMSG_VERSION, 3, 0, 1};
    CHECK_EQ(m->port.steering->credits, 256);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 256; i++)
            CHECK(counts(m, &probe, sizeof probe, &own));
        CHECK(!counts(m, &probe, sizeof probe, &own));
        uint64_t refill = port_deadline(&m->port);
        CHECK(refill <= now + 20 * MS);
        run_for(20 * MS);
        CHECK_EQ(m->port.steering->credits, 256);
        CHECK_EQ(port_deadline(&m->port), NEVER);
    }
    end();
}

/* Who asks it instead of the first has not heard of the first: everything may be different. */
static void looks_at_all_are_ever_further_apart(void) {
    group_of(3);
    struct sockaddr_in6 own = addr;
    own.sin6_port = htons(ROCE_UDP_PORT);
    const struct probe join_instead = {
        PORT_PROBE_OPCODE, 1, {0, 1}, SLOTMSG_MAGIC, SLOTMSG_VERSION, (uint16_t)members[2].slot.number, 0, 1};
    listen_in(false);
    for (int i = 0; i < 800; i++) {
        CHECK(counts(&members[0], &join_instead, sizeof join_instead, &own));
        run_for(5 * MS);
    }
    was_said("3 P3-7 P0-2 P1023 P0-2 43 P3-7 P0-2 123 P3-7 P0-2 P1023 P0-2 283 P3-7 P0-2 P1023 P0-2 603 P3-7 P0-2 "
             "P1023 P0-2 1243 P3-7 P0-2 P1023 P0-2 2243 P3-7 P0-2 P1023 P0-2 3243 P3-7 P0-2 P1023 P0-2");
    order_of(&members[0], "0 1 2");
    end();
}

/* An answer to the look under way: is it taken down? */
static bool answers(struct member *m, uint32_t index, const uint32_t *slots, uint32_t length, uint64_t nonce) {
    struct slotmsg msg = {.type = SLOTMSG_PROBE_ANSWER, .length = length, .nonce = nonce, .index = index};
    uint16_t before = index < SLOT_COUNT ? m->port.steering->answered[index] : 0;
    steering_message(&m->port, &msg, (const uint8_t *)slots, now);
    return index < SLOT_COUNT && before == STEERING_NOBODY && m->port.steering->answered[index] != STEERING_NOBODY;
}

static void a_malformed_answer_counts_for_nothing(void) {
    uint32_t slots[STEERING_SLOTS + 1] = {0};
    group_of(1);
    struct member *m = &members[0];
    stop(0, 1);
    join();
    run_timers();
    members[0].stopped = false;
    read_all();
    now += 3 * MS;
    run_timers(); /* it looks at the indices 1 to 8, and nobody answers yet */
    uint64_t nonce = m->port.steering->nonce;
    CHECK_EQ(m->port.steering->phase, STEERING_LEARN);
    CHECK(!answers(m, 1, slots, 4, nonce + 1));
    CHECK(!answers(m, 1, slots, 0, nonce));
    CHECK(!answers(m, 1, slots, 5, nonce));
    CHECK(!answers(m, 1, slots, 4 * (STEERING_SLOTS + 1), nonce));
    slots[1] = SLOT_COUNT;
    CHECK(!answers(m, 1, slots, 8, nonce));
    CHECK(!answers(m, 0, slots, 4, nonce) && !answers(m, 9, slots, 4, nonce));
    CHECK(!answers(m, SLOT_COUNT, slots, 4, nonce) && !answers(m, UINT32_MAX, slots, 4, nonce));
    CHECK(answers(m, 8, slots, 4, nonce));
    CHECK_EQ(port_deadline(&m->port), now);
    slots[1] = SLOT_COUNT - 1;
    CHECK(answers(m, 1, slots, 4 * STEERING_SLOTS, nonce));
    CHECK_EQ(m->port.steering->found.index_of[SLOT_COUNT - 1], 1);
    slots[0] = 7;
    CHECK(!answers(m, 1, slots, 4, nonce)); /* the first counts */
    CHECK_EQ(m->port.steering->answered[1], 0);
    end();
}

/* A message of this user's, so of one that may be shown as this user: everybody whom a user namespace does not map. */
static void tell(const struct member *m, enum slotmsg_type type, uint64_t nonce) {
    struct slotmsg msg = {
        .magic = SLOTMSG_MAGIC, .version = SLOTMSG_VERSION, .type = (uint16_t)type, .nonce = nonce, .dst = addr};
    struct iovec iov = {&msg, sizeof msg};
    struct abstract_name name;
    abstract_name(&name, SLOT_NAME, m->slot.number);
    CHECK_EQ(abstract_send(&name, &iov, 1), 0);
    read_all();
}

static void who_has_not_seen_the_question_gives_no_answer(void) {
    group_of(1);
    stop(0, 1);
    struct member *m = join(); /* nobody answers it */
    tell(m, SLOTMSG_WELCOME, 0);
    CHECK(!port_settled(&m->port));
    run_timers();
    uint64_t asks = port_deadline(&m->port);
    tell(m, SLOTMSG_HEARD, 0);
    CHECK_EQ(port_deadline(&m->port), asks);
    end();
}

/* ---------------------------------------------------------------- a wire, at whose other end anybody may be */

static bool raise_wire(int ctl, struct ifreq *req, struct sockaddr_in6 *own) {
    device = (int)if_nametoindex(req->ifr_name);
    struct in6_ifreq set = {.ifr6_addr = own->sin6_addr, .ifr6_prefixlen = 64, .ifr6_ifindex = device};
    own->sin6_scope_id = IN6_IS_ADDR_LINKLOCAL(&own->sin6_addr) ? (uint32_t)device : 0;
    req->ifr_flags = IFF_UP;
    return ioctl(ctl, SIOCSIFFLAGS, req) == 0 && ioctl(ctl, SIOCSIFADDR, &set) == 0;
}

/* A network device with the address, of which the test plays the wire. Its descriptor, or -1: not here. */
static int open_wire(struct sockaddr_in6 *own) {
    struct ifreq req = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC), ctl = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool good = fd >= 0 && ctl >= 0 && ioctl(fd, TUNSETIFF, &req) == 0 && raise_wire(ctl, &req, own);
    close(ctl);
    if (!good && fd >= 0)
        close(fd);
    return good ? fd : -1;
}

/* A packet that says it is from the group's own address and port. */
static void forge(int wire, const uint8_t *payload, size_t n) {
    uint8_t packet[128] = {0x60};
    struct ip6_hdr *ip = (struct ip6_hdr *)(void *)packet;
    struct udphdr *udp = (struct udphdr *)(void *)(ip + 1);
    ip->ip6_plen = udp->len = htons((uint16_t)(sizeof *udp + n));
    ip->ip6_nxt = IPPROTO_UDP;
    ip->ip6_hlim = 64;
    ip->ip6_src = ip->ip6_dst = addr.sin6_addr;
    udp->source = udp->dest = htons(ROCE_UDP_PORT); /* no checksum: RoCE needs none */
    memcpy(udp + 1, payload, n);
    CHECK_EQ(write(wire, packet, sizeof *ip + sizeof *udp + n), sizeof *ip + sizeof *udp + n);
}

static struct sockaddr_in6 address6(uint8_t first, uint8_t second) {
    return (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_addr = {{{first, second, [15] = 1}}}};
}

/* Two members at an address of a device of ours. Its wire, or -1. */
static int two_with_a_wire(struct sockaddr_in6 own) {
    int wire = open_wire(&own);
    if (wire < 0) {
        printf("# no network device to be had\n");
        return -1;
    }
    begin_at(own);
    join();
    join();
    run_for(1000 * MS);
    all_are_reached();
    return wire;
}

static void nobody_on_the_wire_has_a_say_in_the_group(void) {
    int wire = two_with_a_wire(address6(0xFD, 0));
    if (wire < 0)
        return;
    uint32_t before = members[0].probes + members[1].probes, packets = strays();
    for (uint8_t kind = 0; kind < 5; kind++)
        forge(wire, (const uint8_t[32]){PORT_PROBE_OPCODE, kind}, 32);
    forge(wire, (const uint8_t[32]){4}, 32);
    forge(wire, (const uint8_t[1]){0}, 0);
    read_all();
    CHECK_EQ(members[0].probes + members[1].probes, before);
    CHECK_EQ(members[0].empty + members[1].empty, 1);
    CHECK_EQ(strays(), packets + 1); /* a packet is as welcome as ever */
    end();
    close(wire);
}

static void members_at_a_link_local_address_hear_each_other(void) {
    int wire = two_with_a_wire(address6(0xFE, 0x80));
    if (wire < 0)
        return;
    CHECK(port_settled(&members[0].port) && port_settled(&members[1].port));
    end();
    close(wire);
}

static void pin(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    (void)sched_setaffinity(0, sizeof one, &one);
}

int main(void) {
    live_isolate();
    pin();
    RUN(each_of_twelve_is_reached);
    RUN(nine_stopped_ones_ahead_do_not_make_a_newcomer_deaf);
    RUN(nine_stopped_ones_without_a_program_do_not_either);
    RUN(the_others_go_on_when_one_is_killed);
    RUN(one_that_is_alone_looks_twice_as_there_was_no_program);
    RUN(an_arrival_costs_one_look_behind_the_last);
    RUN(arrivals_together_cost_one_look);
    RUN(a_second_slot_is_asked_for_where_its_member_is);
    RUN(who_leaves_says_so_and_the_last_takes_the_place);
    RUN(a_steward_that_leaves_attaches_what_will_be);
    RUN(a_packet_that_went_astray_is_told_of_and_looked_into);
    RUN(a_stopped_steward_is_replaced_by_the_next);
    RUN(a_stopped_member_keeps_its_place_and_is_asked_after);
    RUN(who_is_not_heard_asks_eight_and_then_sees_to_it);
    RUN(what_is_beyond_the_end_may_fall_to_the_last);
    RUN(a_stopped_member_keeps_all_its_slots);
    RUN(a_stopped_member_that_has_moved_is_found_again);
    RUN(the_end_may_fall_to_a_stopped_member);
    RUN(a_joiner_that_dies_is_looked_for_once);
    RUN(a_new_steward_looks_at_every_index);
    RUN(the_same_miss_is_told_of_ever_more_rarely);
    RUN(several_misses_are_told_of_one_after_the_other);
    RUN(misses_wait_for_the_welcome);
    RUN(those_that_requests_are_spread_over_are_checked_now_and_then);
    RUN(a_malformed_probe_counts_for_nothing);
    RUN(so_many_probes_are_answered_in_20_ms);
    RUN(looks_at_all_are_ever_further_apart);
    RUN(a_malformed_answer_counts_for_nothing);
    RUN(who_has_not_seen_the_question_gives_no_answer);
    RUN(nobody_on_the_wire_has_a_say_in_the_group);
    RUN(members_at_a_link_local_address_hear_each_other);
    return check_done();
}
