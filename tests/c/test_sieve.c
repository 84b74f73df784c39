/* SPDX-License-Identifier: Apache-2.0
 *
 * link/udp/sieve.c: whom a socket does not hear, by the kernel's own filter on loopback.
 */
#include <arpa/inet.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/rng.h"
#include "check.h"
#include "link/udp/port.h"
#include "link/udp/sieve.h"
#include "link/udp/udpsock.h"
#include "names/slot.h"
#include "wire/bth.h"

#define MANY 4096
#define BATCH 64 /* that a socket's buffer holds, at any rate */

static bool v4;
static struct sieve sieve;

static socklen_t host(struct sockaddr_storage *out) {
    memset(out, 0, sizeof *out);
    if (v4) {
        *(struct sockaddr_in *)out =
            (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        return sizeof(struct sockaddr_in);
    }
    *(struct sockaddr_in6 *)out = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    return sizeof(struct sockaddr_in6);
}

static int bound(void) {
    struct sockaddr_storage a;
    socklen_t n = host(&a);
    int fd = socket(a.ss_family, SOCK_DGRAM, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&a, n) == 0);
    return fd;
}

static uint16_t port_of(int fd) { /* in the same place in both families */
    struct sockaddr_in6 a;
    socklen_t n = sizeof a;
    CHECK_EQ(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    return a.sin6_port;
}

/* Of so many datagrams of some bytes for a queue pair, how many arrive? */
static uint32_t heard_of(int from, int to, uint32_t qpn, uint32_t length, uint32_t count) {
    uint32_t arrived = 0;
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    uint8_t bytes[64] = {[5] = (uint8_t)(qpn >> 16), [6] = (uint8_t)(qpn >> 8), [7] = (uint8_t)qpn};
    bytes[4] = 0xFF; /* of the BTH, but not of the queue pair's number */
    CHECK_EQ(getsockname(to, (struct sockaddr *)&a, &n), 0);
    for (uint32_t sent = 0; sent < count; sent++) {
        CHECK_EQ(sendto(from, bytes, length, 0, (struct sockaddr *)&a, n), length);
        if (sent % BATCH == BATCH - 1 || sent == count - 1)
            while (recv(to, bytes + 32, 32, MSG_DONTWAIT) >= 0) /* by loopback it is there when it has been sent */
                arrived++;
    }
    return arrived;
}

static uint32_t heard(int from, int to, uint32_t qpn, uint32_t count) { return heard_of(from, to, qpn, 12, count); }

static struct sieve_rule rule_of(uint16_t port, uint32_t qpn, uint64_t until) {
    struct sieve_rule r = {.port = port, .qpn = qpn, .until = until};
    if (v4)
        CHECK_EQ(inet_pton(AF_INET6, "::ffff:127.0.0.1", &r.from), 1);
    else
        r.from = in6addr_loopback;
    return r;
}

static void put(struct sieve_rule rule, int to) {
    sieve_mute(&sieve, &rule);
    sieve_attach(&sieve, to, v4);
}

static bool is_muted(uint32_t arrived) { return arrived < MANY / 16; }

#define RNIC htons(ROCE_UDP_PORT)
#define QPN 0x123456u
#define SLOT (QPN >> QPN_INDEX_BITS)

static void one_port_is_muted_and_no_other(void) {
    int to = bound(), loud = bound(), other = bound();
    sieve = (struct sieve){.count = 0};
    sieve_attach(&sieve, to, v4);
    CHECK_EQ(heard(loud, to, QPN, BATCH), BATCH);
    put(rule_of(port_of(loud), QPN, 5), to);
    uint32_t arrived = heard(loud, to, QPN, MANY);
    CHECK(is_muted(arrived));
    CHECK(arrived > 0); /* one of 128: that none of 4,096 comes has a chance of 1 in 10^13 */
    CHECK_EQ(heard(other, to, QPN, MANY), MANY);
    CHECK_EQ(heard(loud, to, QPN ^ 1, MANY), MANY);
    CHECK_EQ(heard(loud, to, QPN ^ 0x800000, MANY), MANY);
    CHECK_EQ(heard_of(loud, to, QPN, BTH_BYTES - 1, MANY), MANY);
    CHECK(!sieve_expire(&sieve, 4));
    CHECK(sieve_expire(&sieve, 5));
    sieve_attach(&sieve, to, v4);
    CHECK_EQ(heard(loud, to, QPN, MANY), MANY);
    close(to), close(loud), close(other);
}

static void all_ports_are_muted_but_those_that_are_heard(void) {
    int to = bound(), loud = bound(), peer = bound(), again = bound();
    for (int n = 0; n <= SIEVE_HEARD; n++) {
        sieve = (struct sieve){.count = 0};
        struct sieve_rule r = rule_of(0, QPN, 5);
        r.heard[0] = n > 0 ? port_of(peer) : 0;
        r.heard[1] = n > 1 ? port_of(again) : 0;
        put(r, to);
        CHECK(is_muted(heard(loud, to, QPN, MANY)));
        CHECK_EQ(is_muted(heard(peer, to, QPN, MANY)), n < 1);
        CHECK_EQ(is_muted(heard(again, to, QPN, MANY)), n < 2);
        CHECK_EQ(heard(loud, to, QPN + 1, MANY), MANY);
        CHECK_EQ(sieve_find(&sieve, &r.from, port_of(again), QPN) != NULL, n < 2);
    }
    close(to), close(loud), close(peer), close(again);
}

/* With queue pairs and slots among them, as many as there may be. */
static void all_queue_pairs_are_muted_but_those_that_are_spared(void) {
    int to = bound(), loud = bound();
    for (uint32_t n = 0; n <= SIEVE_SPARED; n += 4) {
        sieve = (struct sieve){.count = 0};
        struct sieve_rule r = rule_of(0, 0, 5);
        while (r.nspared < n)
            r.spared[r.nspared] = r.nspared % 3 ? QPN + r.nspared : SIEVE_SLOT | (SLOT + 1 + r.nspared), r.nspared++;
        put(r, to);
        check_note("%u spared", n);
        CHECK(is_muted(heard(loud, to, QPN, MANY)));
        CHECK(is_muted(heard_of(loud, to, QPN, 0, MANY)));
        CHECK(is_muted(heard_of(loud, to, QPN_GSI, BTH_BYTES - 1, MANY))); /* too short to be for it */
        CHECK(is_muted(heard(loud, to, (SLOT + 100) << QPN_INDEX_BITS, MANY)));
        CHECK_EQ(heard(loud, to, QPN_GSI, BATCH), BATCH);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t qpn = i % 3 ? QPN + i : (SLOT + 1 + i) << QPN_INDEX_BITS | 5;
            CHECK_EQ(heard(loud, to, qpn, BATCH), BATCH);
            CHECK(!sieve_find(&sieve, &r.from, 9, qpn));
        }
        CHECK(sieve_find(&sieve, &r.from, 9, QPN) != NULL);
        CHECK(!sieve_find(&sieve, &r.from, 9, QPN_GSI));
    }
    close(to), close(loud);
}

static void an_address_that_differs_in_any_byte_is_another(void) {
    int to = bound(), loud = bound();
    for (int i = v4 ? 12 : 0; i < 16; i++) {
        sieve = (struct sieve){.count = 0};
        struct sieve_rule r = rule_of(0, 0, 5);
        r.from.s6_addr[i] ^= 0x10;
        put(r, to);
        CHECK_EQ(heard(loud, to, QPN, MANY / 16), MANY / 16);
    }
    close(to), close(loud);
}

/* Batches, by UDP_SEGMENT, of two packets: how many of the second ones arrive? */
static uint32_t heard_behind(int from, int to, uint32_t first, uint32_t second, uint32_t batches) {
    uint32_t arrived = 0;
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    uint8_t bytes[2 * BTH_BYTES] = {0}, got[2 * BTH_BYTES];
    put_be32(bytes + 4, first);
    put_be32(bytes + BTH_BYTES + 4, second);
    CHECK_EQ(getsockname(to, (struct sockaddr *)&a, &n), 0);
    CHECK(udpsock_set(from, SOL_UDP, UDP_SEGMENT, BTH_BYTES));
    for (uint32_t i = 0; i < batches; i++) {
        CHECK_EQ(sendto(from, bytes, sizeof bytes, 0, (struct sockaddr *)&a, n), (ssize_t)sizeof bytes);
        for (ssize_t length; (length = recv(to, got, sizeof got, MSG_DONTWAIT)) > 0;)
            arrived += bth_dqpn(got + length - BTH_BYTES) == second;
    }
    CHECK(udpsock_set(from, SOL_UDP, UDP_SEGMENT, 0));
    return arrived;
}

static bool takes_batches(int fd) {
    int on = 0;
    socklen_t n = sizeof on;
    return getsockopt(fd, SOL_UDP, UDP_GRO, &on, &n) == 0 && on;
}

/* The kernel shows a filter the first one alone. */
static void of_packets_that_come_together_each_is_judged(void) {
    int to = bound(), loud = bound();
    CHECK(udpsock_set(to, SOL_UDP, UDP_GRO, 1));
    sieve = (struct sieve){.count = 0};
    struct sieve_rule r = rule_of(0, QPN, 5);
    r.apart = true;
    put(r, to);
    CHECK_EQ(heard_behind(loud, to, QPN, QPN + 1, MANY), MANY);
    CHECK(is_muted(heard_behind(loud, to, QPN + 1, QPN, MANY)));
    CHECK(sieve_expire(&sieve, 5));
    sieve_attach(&sieve, to, v4);
    CHECK_EQ(heard_behind(loud, to, QPN + 1, QPN, MANY), MANY);
    CHECK(takes_batches(to));
    close(to), close(loud);
}

/* The kernel would not tell any more where its packets end. */
static void a_batch_that_lies_in_the_socket_is_read_as_one(void) {
    int to = bound(), from = bound();
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    uint8_t bytes[2 * BTH_BYTES] = {0};
    struct sieve_rule r = rule_of(0, QPN, 5);
    CHECK(udpsock_set(to, SOL_UDP, UDP_GRO, 1));
    CHECK_EQ(getsockname(to, (struct sockaddr *)&a, &n), 0);
    CHECK(udpsock_set(from, SOL_UDP, UDP_SEGMENT, BTH_BYTES));
    CHECK_EQ(sendto(from, bytes, sizeof bytes, 0, (struct sockaddr *)&a, n), (ssize_t)sizeof bytes);
    sieve = (struct sieve){.count = 0};
    r.apart = true;
    sieve_mute(&sieve, &r);
    CHECK(!sieve_attach(&sieve, to, v4));
    CHECK(takes_batches(to));
    CHECK_EQ(recv(to, bytes, sizeof bytes, MSG_DONTWAIT), (ssize_t)sizeof bytes);
    CHECK(sieve_batch(&sieve, to));
    CHECK(!takes_batches(to));
    CHECK(is_muted(heard(from, to, QPN, MANY)));
    close(to), close(from);
}

/* A filter as long as there may be, and another in its place: both lie in the socket's memory for options. */
static void many_are_muted_together_and_heard_together(void) {
    int to = bound(), loud[SIEVE_RULES], other = bound();
    for (int round = 0; round < 2; round++) {
        sieve = (struct sieve){.count = 0};
        for (int i = 0; i < SIEVE_RULES; i++) {
            loud[i] = round ? loud[i] : bound();
            struct sieve_rule r = rule_of(port_of(loud[i]), 0, 5);
            for (uint32_t k = 0; k < SIEVE_SPARED; k++)
                r.spared[r.nspared++] = QPN + 1 + k;
            sieve_mute(&sieve, &r);
        }
        sieve_attach(&sieve, to, v4);
        for (int i = 0; i < SIEVE_RULES; i++)
            CHECK(is_muted(heard(loud[i], to, QPN, MANY)));
        CHECK_EQ(heard(other, to, QPN, MANY), MANY);
    }
    for (int i = 0; i < SIEVE_RULES; i++)
        close(loud[i]);
    close(to), close(other);
}

/* A few queue pair numbers, the slots of some of which are others' too. */
static uint32_t some_qpn(struct rng *dice) {
    uint64_t n = rng_next(dice) >> 60;
    return n > 1 ? QPN + (uint32_t)((n & 3) + ((n >> 2 & 1) << QPN_INDEX_BITS)) : n ? QPN_GSI : QPN_SMI;
}

static struct sieve_rule some_rule(struct rng *dice, const uint16_t ports[3]) {
    struct sieve_rule r = rule_of(0, 0, 5);
    uint64_t bits = rng_next(dice);
    r.from.s6_addr[15] ^= bits >> 8 & 7 ? 0 : 1;
    r.qpn = bits & 1 ? some_qpn(dice) : 0;
    r.port = bits & 2 ? ports[bits >> 16 & 1] : 0;
    for (uint32_t i = 0; !r.port && i < (bits >> 2 & 3) && i < SIEVE_HEARD; i++)
        r.heard[i] = ports[((bits >> 20) + i) % 3];
    for (r.nspared = 0; r.nspared < (bits >> 32) % 5; r.nspared++) {
        uint32_t qpn = some_qpn(dice);
        r.spared[r.nspared] = rng_next(dice) >> 62 ? qpn : SIEVE_SLOT | qpn >> QPN_INDEX_BITS;
    }
    return r;
}

/* Whoever counts what comes through asks sieve_find(). */
static void the_kernel_drops_what_is_found_here(void) {
    struct rng dice;
    rng_seed(&dice, 7);
    int to = bound(), from[3] = {bound(), bound(), bound()};
    const uint16_t ports[3] = {port_of(from[0]), port_of(from[1]), port_of(from[2])};
    const struct in6_addr address = rule_of(0, 0, 0).from;
    for (int round = 0; round < 300; round++) {
        sieve = (struct sieve){.count = 0};
        for (uint64_t n = rng_next(&dice) % 4; n > 0; n--) {
            struct sieve_rule r = some_rule(&dice, ports);
            sieve_mute(&sieve, &r);
        }
        sieve_attach(&sieve, to, v4);
        for (int i = 0; i < 12; i++) {
            uint32_t qpn = some_qpn(&dice), which = i % 3, length = (uint32_t)(rng_next(&dice) >> 59);
            bool found = sieve_find(&sieve, &address, ports[which], length < BTH_BYTES ? 0 : qpn) != NULL;
            check_note("round %d: queue pair %06x, %u bytes, port %u", round, qpn, length, which);
            CHECK_EQ(heard_of(from[which], to, qpn, length, 8) < 8, found); /* all of 8 pass by chance once in 10^16 */
        }
    }
    close(to), close(from[0]), close(from[1]), close(from[2]);
}

static void the_one_whose_time_is_up_first_makes_room(void) {
    sieve = (struct sieve){.count = 0};
    for (uint16_t port = 1; port <= SIEVE_RULES; port++) {
        struct sieve_rule r = rule_of(port, QPN, port == 7 ? 10 : 20);
        sieve_mute(&sieve, &r);
    }
    struct sieve_rule again = rule_of(3, QPN, 30), newcomer = rule_of(100, QPN, 20);
    sieve_mute(&sieve, &again);
    CHECK_EQ(sieve.count, SIEVE_RULES);
    CHECK(sieve_find(&sieve, &again.from, 7, QPN) != NULL);
    CHECK_EQ(sieve_deadline(&sieve), 10);
    sieve_mute(&sieve, &newcomer);
    CHECK_EQ(sieve.count, SIEVE_RULES);
    CHECK(sieve_find(&sieve, &again.from, 7, QPN) == NULL);
    CHECK(sieve_find(&sieve, &again.from, 100, QPN) != NULL);
    CHECK_EQ(sieve_deadline(&sieve), 20);
    CHECK(sieve_expire(&sieve, 20));
    CHECK_EQ(sieve.count, 1);
    CHECK(sieve_find(&sieve, &again.from, 3, QPN) != NULL);
    CHECK_EQ(sieve_deadline(&sieve), 30);
    CHECK(sieve_expire(&sieve, 30));
    CHECK_EQ(sieve_deadline(&sieve), UINT64_MAX);
}

/* Ports of a flood, and of those that are left alone. */
static void packets_are_taken_apart_where_a_port_is_anothers_or_somebody_was_seen(void) {
    sieve = (struct sieve){.count = 0};
    struct sieve_rule all = rule_of(0, 0, 5), one = rule_of(htons(9), QPN, 5), forgers = rule_of(0, QPN + 1, 5);
    forgers.heard[0] = htons(8);
    sieve_uses(&all, htons(7));
    sieve_uses(&one, htons(7));
    sieve_uses(&forgers, htons(8));
    sieve_mute(&sieve, &all);
    sieve_mute(&sieve, &one);
    sieve_mute(&sieve, &forgers);
    CHECK(!sieve_part(&sieve, &all.from, htons(6), QPN, false));
    CHECK(!sieve_part(&sieve, &all.from, htons(8), QPN + 1, false));
    CHECK(!sieve_part(&sieve, &all.from, htons(7), QPN_GSI, true)); /* which is heard */
    CHECK(sieve_part(&sieve, &all.from, htons(7), QPN, false));
    CHECK(!sieve_part(&sieve, &all.from, htons(7), QPN, false)); /* it is so already */
    CHECK(sieve.rules[0].apart && !sieve.rules[1].apart && !sieve.rules[2].apart);
    CHECK(!sieve_part(&sieve, &all.from, htons(8), QPN + 1, true));
    CHECK(!sieve_part(&sieve, &all.from, htons(9), QPN + 2, true));
    CHECK(sieve_part(&sieve, &all.from, htons(9), QPN, true));
    CHECK(!sieve.rules[2].apart);
    CHECK(sieve_part(&sieve, &all.from, htons(9), QPN + 1, true));
    CHECK(sieve.rules[1].apart && sieve.rules[2].apart);
    sieve_mute(&sieve, &one); /* another one was made of it meanwhile */
    CHECK_EQ(sieve.count, 3);
    CHECK(sieve.rules[1].apart);
}

static void a_newcomer_is_spared_and_where_there_is_no_room_nothing_is_muted(void) {
    sieve = (struct sieve){.count = 0};
    struct sieve_rule many = rule_of(0, 0, 5), one = rule_of(0, QPN, 5), others = rule_of(0, 0, 5);
    others.from.s6_addr[15] ^= 1;
    sieve_mute(&sieve, &many);
    sieve_mute(&sieve, &one);
    sieve_mute(&sieve, &others);
    CHECK(sieve_spare(&sieve, &many.from, QPN));
    CHECK(!sieve_spare(&sieve, &many.from, QPN));
    CHECK_EQ(sieve.count, 2);
    CHECK(!sieve_part(&sieve, &others.from, RNIC, QPN + 1, false));
    CHECK(sieve_part(&sieve, &many.from, RNIC, QPN + 1, false)); /* from where it may speak */
    CHECK(sieve.rules[0].apart && !sieve.rules[1].apart);
    CHECK(!sieve_find(&sieve, &many.from, 9, QPN));
    CHECK(sieve_find(&sieve, &many.from, 9, QPN + 1) != NULL);
    CHECK(sieve_find(&sieve, &others.from, 9, QPN) != NULL);
    CHECK(sieve_spare(&sieve, NULL, SIEVE_SLOT | (SLOT + 1)));
    CHECK(!sieve_find(&sieve, &many.from, 9, (SLOT + 1) << QPN_INDEX_BITS | 5));
    CHECK(!sieve_find(&sieve, &others.from, 9, (SLOT + 1) << QPN_INDEX_BITS | 5));
    for (uint32_t i = 2; i < SIEVE_SPARED; i++)
        CHECK(sieve_spare(&sieve, &many.from, QPN + i));
    CHECK_EQ(sieve.count, 2);
    CHECK(sieve_spare(&sieve, &many.from, QPN + SIEVE_SPARED));
    CHECK_EQ(sieve.count, 1);
    CHECK(sieve_find(&sieve, &others.from, 9, QPN) != NULL);
}

int main(void) {
    for (int family = 0; family < 2; family++) {
        v4 = family;
        RUN(one_port_is_muted_and_no_other);
        RUN(all_ports_are_muted_but_those_that_are_heard);
        RUN(all_queue_pairs_are_muted_but_those_that_are_spared);
        RUN(an_address_that_differs_in_any_byte_is_another);
        RUN(of_packets_that_come_together_each_is_judged);
        RUN(a_batch_that_lies_in_the_socket_is_read_as_one);
        RUN(many_are_muted_together_and_heard_together);
        RUN(the_kernel_drops_what_is_found_here);
        RUN(the_one_whose_time_is_up_first_makes_room);
        RUN(packets_are_taken_apart_where_a_port_is_anothers_or_somebody_was_seen);
        RUN(a_newcomer_is_spared_and_where_there_is_no_room_nothing_is_muted);
    }
    return check_done();
}
