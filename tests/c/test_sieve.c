/* SPDX-License-Identifier: Apache-2.0
 *
 * link/sieve.c: whom a socket does not hear, by the kernel's own filter on loopback.
 */
#include <arpa/inet.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "link/sieve.h"

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

/* Of so many datagrams, how many arrive? */
static uint32_t heard(int from, int to, uint32_t count) {
    uint32_t arrived = 0;
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char byte = 'x';
    CHECK_EQ(getsockname(to, (struct sockaddr *)&a, &n), 0);
    for (uint32_t sent = 0; sent < count; sent++) {
        CHECK_EQ(sendto(from, &byte, 1, 0, (struct sockaddr *)&a, n), 1);
        if (sent % BATCH == BATCH - 1 || sent == count - 1)
            while (recv(to, &byte, 1, MSG_DONTWAIT) == 1) /* by loopback it is there when it has been sent */
                arrived++;
    }
    return arrived;
}

static struct sieve_source source_of(uint16_t port, uint64_t until) {
    struct sieve_source s = {.port = port, .until = until};
    if (v4)
        CHECK_EQ(inet_pton(AF_INET6, "::ffff:127.0.0.1", &s.from), 1);
    else
        s.from = in6addr_loopback;
    return s;
}

static bool is_muted(uint32_t arrived) { return arrived < MANY / 16; }

static void one_port_is_muted_and_no_other(void) {
    int to = bound(), loud = bound(), other = bound();
    sieve = (struct sieve){.count = 0};
    sieve_attach(&sieve, to, v4);
    CHECK_EQ(heard(loud, to, BATCH), BATCH);
    struct sieve_source s = source_of(port_of(loud), 5);
    sieve_mute(&sieve, &s);
    sieve_attach(&sieve, to, v4);
    uint32_t arrived = heard(loud, to, MANY);
    CHECK(is_muted(arrived));
    CHECK(arrived > 0); /* one of 128: that none of 4,096 comes has a chance of 1 in 10^13 */
    CHECK_EQ(heard(other, to, MANY), MANY);
    CHECK(!sieve_expire(&sieve, 4));
    CHECK(sieve_expire(&sieve, 5));
    sieve_attach(&sieve, to, v4);
    CHECK_EQ(heard(loud, to, MANY), MANY);
    close(to), close(loud), close(other);
}

static void of_an_address_those_who_are_spared_are_heard(void) {
    int to = bound(), loud = bound(), spared[SIEVE_SPARED];
    sieve = (struct sieve){.count = 0};
    struct sieve_source s = source_of(0, 5);
    for (int i = 0; i < SIEVE_SPARED; i++) {
        spared[i] = bound();
        s.spared[s.nspared++] = port_of(spared[i]);
    }
    sieve_mute(&sieve, &s);
    sieve_attach(&sieve, to, v4);
    CHECK(is_muted(heard(loud, to, MANY)));
    for (int i = 0; i < SIEVE_SPARED; i++) {
        CHECK_EQ(heard(spared[i], to, BATCH), BATCH);
        close(spared[i]);
    }
    close(to), close(loud);
}

static void an_address_that_differs_in_any_byte_is_another(void) {
    int to = bound(), loud = bound();
    for (int i = v4 ? 12 : 0; i < 16; i++) {
        sieve = (struct sieve){.count = 0};
        struct sieve_source s = source_of(0, 5);
        s.from.s6_addr[i] ^= 0x10;
        sieve_mute(&sieve, &s);
        sieve_attach(&sieve, to, v4);
        CHECK_EQ(heard(loud, to, MANY / 16), MANY / 16);
    }
    close(to), close(loud);
}

static void many_are_muted_together(void) {
    int to = bound(), loud[SIEVE_SOURCES], other = bound();
    sieve = (struct sieve){.count = 0};
    for (int i = 0; i < SIEVE_SOURCES; i++) {
        loud[i] = bound();
        struct sieve_source s = source_of(port_of(loud[i]), 5);
        sieve_mute(&sieve, &s);
    }
    sieve_attach(&sieve, to, v4);
    for (int i = 0; i < SIEVE_SOURCES; i++) {
        CHECK(is_muted(heard(loud[i], to, MANY)));
        close(loud[i]);
    }
    CHECK_EQ(heard(other, to, MANY), MANY);
    close(to), close(other);
}

static void the_one_whose_time_is_up_first_makes_room(void) {
    sieve = (struct sieve){.count = 0};
    for (uint16_t port = 1; port <= SIEVE_SOURCES; port++) {
        struct sieve_source s = source_of(port, port == 7 ? 10 : 20);
        sieve_mute(&sieve, &s);
    }
    struct sieve_source again = source_of(3, 30), newcomer = source_of(100, 20);
    sieve_mute(&sieve, &again);
    CHECK_EQ(sieve.count, SIEVE_SOURCES);
    CHECK(sieve_find(&sieve, &again.from, 7) != NULL);
    CHECK_EQ(sieve_deadline(&sieve), 10);
    sieve_mute(&sieve, &newcomer);
    CHECK_EQ(sieve.count, SIEVE_SOURCES);
    CHECK(sieve_find(&sieve, &again.from, 7) == NULL);
    CHECK(sieve_find(&sieve, &again.from, 100) != NULL);
    CHECK_EQ(sieve_deadline(&sieve), 20);
    CHECK(sieve_expire(&sieve, 20));
    CHECK_EQ(sieve.count, 1);
    CHECK(sieve_find(&sieve, &again.from, 3) != NULL);
    CHECK_EQ(sieve_deadline(&sieve), 30);
    CHECK(sieve_expire(&sieve, 30));
    CHECK_EQ(sieve_deadline(&sieve), UINT64_MAX);
}

static void whoever_is_spared_is_not_found(void) {
    sieve = (struct sieve){.count = 0};
    struct sieve_source s = source_of(0, 5), other = source_of(0, 5);
    s.spared[s.nspared++] = 8;
    sieve_mute(&sieve, &s);
    CHECK(sieve_find(&sieve, &s.from, 8) == NULL);
    CHECK(sieve_find(&sieve, &s.from, 9) != NULL);
    other.from.s6_addr[15] ^= 1;
    CHECK(sieve_find(&sieve, &other.from, 9) == NULL);
}

int main(void) {
    for (int family = 0; family < 2; family++) {
        v4 = family;
        RUN(one_port_is_muted_and_no_other);
        RUN(of_an_address_those_who_are_spared_are_heard);
        RUN(an_address_that_differs_in_any_byte_is_another);
        RUN(many_are_muted_together);
        RUN(the_one_whose_time_is_up_first_makes_room);
        RUN(whoever_is_spared_is_not_found);
    }
    return check_done();
}
