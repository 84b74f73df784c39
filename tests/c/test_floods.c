/* SPDX-License-Identifier: Apache-2.0
 *
 * dev/floods.c: who sends so much that nobody needs that it is muted, on a clock of the test's.
 */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "check.h"
#include "dev/dev.h"
#include "link/udpsock.h"
#include "wire/icrc.h"
#include "wire/mad.h"

#define MS 1000000ull
#define WINDOW (25 * MS)
#define FEW 1000  /* packets of a window that nobody minds */
#define MANY 1100 /* and so many that somebody does */
#define LONG 5    /* windows after which it is muted */
#define MAD_PACKET (BTH_BYTES + DETH_BYTES + MAD_BYTES + ICRC_BYTES)

static struct dev *dev;
static struct port port;
static struct slot own;
static uint64_t now;

/* The peer's queue pair's end here. */
static struct qp qp;
static bool expected; /* by the transport: any packet is, or none */
static uint32_t taken;

static bool expects(const struct qp *q, const struct packet *pkt) {
    (void)q, (void)pkt;
    return expected;
}

static void input(struct qp *q, const struct packet *pkt, uint64_t at) {
    (void)pkt, (void)at;
    taken++;
    if (expected)
        COUNT(q, requests_executed);
}

static bool owes(struct qp *q, uint64_t at) {
    (void)q, (void)at;
    return false;
}

static uint64_t never(const struct qp *q) {
    (void)q;
    return NEVER;
}

static const struct engine_ops engine = {
    .input = input, .expects = expects, .owes = owes, .deadline = never, .held = never};

static struct sockaddr_in6 mapped(const char *text, uint16_t number) {
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons(number)};
    CHECK_EQ(inet_pton(AF_INET6, text, &a.sin6_addr), 1);
    return a;
}

static void begin(void) {
    struct rnic_err err;
    dev = aligned_alloc(64, (sizeof *dev + 63) & ~(size_t)63);
    CHECK(dev != NULL);
    memset(dev, 0, sizeof *dev);
    udp_tx_init(&dev->tx, &dev->fault, &dev->nic.counters);
    CHECK_EQ(slot_claim(&own, &err), 0);
    dev->slots[0] = own;
    dev->nslots = 1;
    dev->table[0] = calloc(QPN_INDICES, sizeof *dev->table[0]);
    dev->freed[0] = calloc(QPN_INDICES, sizeof *dev->freed[0]);
    CHECK(dev->table[0] && dev->freed[0]);
    dev->nic.pkeys[0] = 0xFFFF;
    port = (struct port){.slot = &own, .addr = mapped("::ffff:127.0.0.1", 0)};
    port.rx_fd = port.tx_fd = udpsock_open(&port.addr);
    CHECK(port.rx_fd >= 0);
    now = 1000 * MS;
    expected = true;
    taken = 0;
}

static void end(void) {
    close(port.rx_fd);
    slot_release(&own);
    free(dev->table[0]);
    free(dev->freed[0]);
    free(dev);
}

static void arrive(const struct sockaddr_in6 *from, uint8_t *bytes, uint32_t n) {
    struct sockaddr_in6 to = port.addr;
    to.sin6_port = htons(ROCE_UDP_PORT);
    put_le32(bytes + n - ICRC_BYTES, icrc_compute(from, &to, 0, bytes, n - ICRC_BYTES));
    demux_datagram(dev, &port, &(struct udp_datagram){.bytes = bytes, .length = n, .segment = n, .src = *from}, false,
                   now);
}

/* A WRITE for that queue pair. */
static void write_to(const struct sockaddr_in6 *from, uint32_t qpn) {
    uint8_t bytes[64] = {[0] = 0x0A, [2] = 0xFF, [3] = 0xFF};
    put_be32(bytes + 4, qpn);
    arrive(from, bytes, sizeof bytes);
}

static uint32_t number(uint32_t index) { return own.number << QPN_INDEX_BITS | index; }

static void mad(const struct sockaddr_in6 *from, uint16_t attribute) {
    uint8_t bytes[MAD_PACKET] = {[0] = 0x64, [2] = 0xFF, [3] = 0xFF, [7] = QPN_GSI};
    uint8_t *m = bytes + BTH_BYTES + DETH_BYTES;
    put_be32(bytes + BTH_BYTES, GSI_QKEY);
    m[0] = 1;
    m[1] = CM_CLASS;
    m[2] = CM_CLASS_VERSION;
    m[3] = 3;
    put_be16(m + MAD_ATTRIBUTE, attribute);
    arrive(from, bytes, sizeof bytes);
}

/* So many packets for nobody, in each of so many windows; each from a port of its own, where the port is 0. */
static void flood(const struct sockaddr_in6 *from, uint32_t packets, uint32_t windows) {
    for (uint32_t w = 0; w < windows; w++, now += WINDOW) {
        for (uint32_t i = 0; i < packets; i++) {
            struct sockaddr_in6 one = *from;
            if (!from->sin6_port)
                one.sin6_port = htons((uint16_t)(20000 + i));
            write_to(&one, number(5));
        }
    }
}

static bool hears(const struct sockaddr_in6 *from) {
    return !sieve_find(&port.sieve, &from->sin6_addr, from->sin6_port);
}

static void connect_to(const struct sockaddr_in6 *peer) {
    qp = (struct qp){.nic = &dev->nic, .engine = &engine, .state = RNIC_QPS_RTS, .takes = OPC_RC, .pkey = 0xFFFF};
    qp.pub.qp_num = number(6);
    qp.flow = (struct flow){.src = port.addr, .dst = *peer};
    qp.from = (struct flow){.src = *peer, .dst = port.addr};
    qp.from.dst.sin6_port = htons(ROCE_UDP_PORT);
    qp.timer_at = NEVER;
    dev->table[0][6] = &qp;
}

/* ---------------------------------------------------------------- who is muted */

static void whoever_goes_on_and_on_with_what_nobody_needs_is_muted(void) {
    begin();
    struct sockaddr_in6 loud = mapped("::ffff:10.0.0.1", 20000), other = mapped("::ffff:10.0.0.1", 20001);
    flood(&loud, MANY, LONG - 1);
    CHECK(hears(&loud));
    flood(&loud, MANY, 1);
    CHECK(!hears(&loud));
    CHECK(hears(&other));
    CHECK_EQ(dev->nic.counters.value[RNIC_CNT_sources_muted], 1);
    end();
}

static void fewer_are_heard_for_as_long_as_they_like(void) {
    begin();
    struct sockaddr_in6 busy = mapped("::ffff:10.0.0.1", 20000);
    flood(&busy, FEW, 100);
    CHECK(hears(&busy));
    end();
}

/* As when a process has died that somebody was sending to. */
static void what_ends_soon_is_no_flood(void) {
    begin();
    struct sockaddr_in6 busy = mapped("::ffff:10.0.0.1", 20000);
    for (int i = 0; i < 10; i++) {
        flood(&busy, 10 * MANY, LONG - 2);
        now += 2 * WINDOW;
    }
    CHECK(hears(&busy));
    end();
}

static void whoever_ends_is_heard_again_after_a_second(void) {
    begin();
    struct sockaddr_in6 loud = mapped("::ffff:10.0.0.1", 20000);
    flood(&loud, MANY, LONG);
    uint64_t until = sieve_deadline(&port.sieve);
    CHECK(until > now && until <= now + 1000 * MS);
    CHECK(!sieve_expire(&port.sieve, until - 1));
    CHECK(sieve_expire(&port.sieve, until));
    end();
}

/* Of a flood one packet in 128 comes through. */
static void whoever_does_not_end_stays_muted(void) {
    begin();
    struct sockaddr_in6 loud = mapped("::ffff:10.0.0.1", 20000);
    flood(&loud, MANY, LONG);
    for (int i = 0; i < 100; i++) {
        flood(&loud, MANY / SIEVE_PASSES, 1);
        CHECK(sieve_deadline(&port.sieve) > now);
    }
    CHECK(dev->nic.counters.value[RNIC_CNT_sources_muted] < 8); /* the kernel is asked twice a second */
    flood(&loud, MANY / SIEVE_PASSES - 1, 41);
    CHECK(sieve_deadline(&port.sieve) <= now);
    end();
}

static void whoever_uses_many_ports_is_muted_by_its_address(void) {
    begin();
    struct sockaddr_in6 loud = mapped("::ffff:10.0.0.1", 0), rnic = mapped("::ffff:10.0.0.1", ROCE_UDP_PORT),
                        peer = mapped("::ffff:10.0.0.1", 50000), other = mapped("::ffff:10.0.0.2", 20000);
    connect_to(&peer);
    write_to(&peer, number(6));
    CHECK_EQ(taken, 1);
    flood(&loud, MANY, LONG);
    loud.sin6_port = htons(33333);
    CHECK(!hears(&loud));
    CHECK(hears(&rnic));
    CHECK(hears(&peer));
    CHECK(hears(&other));
    end();
}

static void an_address_with_more_peers_than_can_be_spared_is_not_muted(void) {
    begin();
    struct sockaddr_in6 loud = mapped("::ffff:10.0.0.1", 0);
    static struct qp qps[SIEVE_SPARED];
    for (uint32_t i = 0; i < SIEVE_SPARED; i++) {
        struct sockaddr_in6 peer = mapped("::ffff:10.0.0.1", (uint16_t)(50000 + i));
        connect_to(&peer);
        write_to(&peer, number(6));
        qps[i] = qp;
        dev->table[0][100 + i] = &qps[i];
    }
    flood(&loud, MANY, LONG);
    CHECK_EQ(port.sieve.count, 0);
    dev->table[0][100] = NULL;
    flood(&loud, MANY, 1);
    CHECK_EQ(port.sieve.count, 1);
    CHECK_EQ(port.sieve.muted[0].nspared, SIEVE_SPARED);
    end();
}

static void several_are_muted_one_after_the_other(void) {
    begin();
    struct sockaddr_in6 a = mapped("::ffff:10.0.0.1", 20000), b = mapped("::ffff:10.0.0.2", 20000);
    for (int w = 0; w < LONG + 1; w++, now += WINDOW) {
        for (int i = 0; i < MANY; i++) {
            write_to(&a, number(5));
            write_to(&b, number(5));
        }
    }
    CHECK(!hears(&a));
    CHECK(!hears(&b));
    end();
}

static void messages_to_queue_pair_1_are_a_flood_too(void) {
    begin();
    struct sockaddr_in6 loud = mapped("::ffff:10.0.0.1", 20000);
    for (int w = 0; w < LONG; w++, now += WINDOW) {
        for (int i = 0; i < MANY; i++)
            mad(&loud, CM_RTU);
    }
    CHECK(!hears(&loud));
    end();
}

/* ---------------------------------------------------------------- who is not */

static void a_peer_is_not_muted(void) {
    begin();
    struct sockaddr_in6 peer = mapped("::ffff:10.0.0.1", 20000);
    connect_to(&peer);
    write_to(&peer, number(6));
    flood(&peer, MANY, 2 * LONG);
    CHECK(hears(&peer));
    qp.state = RNIC_QPS_ERR;
    flood(&peer, MANY, 1);
    CHECK(!hears(&peer));
    end();
}

static void processes_of_this_host_that_share_the_port_are_not_muted(void) {
    begin();
    struct sockaddr_in6 shared = mapped("::ffff:127.0.0.1", ROCE_UDP_PORT), other = mapped("::ffff:127.0.0.1", 20000);
    flood(&shared, MANY, 2 * LONG);
    CHECK(hears(&shared));
    flood(&other, MANY, LONG);
    CHECK(!hears(&other));
    end();
}

static void the_peers_of_a_queue_pair_that_has_gone_a_moment_ago_make_no_flood(void) {
    begin();
    struct sockaddr_in6 busy = mapped("::ffff:10.0.0.1", 20000);
    dev->freed[0][5] = now;
    flood(&busy, MANY, 39);
    CHECK(hears(&busy));
    flood(&busy, MANY, LONG + 2);
    CHECK(!hears(&busy));
    end();
}

/* Anybody can send from the peer's address, from another port. */
static void only_what_moves_the_queue_pair_on_makes_its_sender_the_peer(void) {
    begin();
    struct sockaddr_in6 peer = mapped("::ffff:10.0.0.1", 50000), forger = mapped("::ffff:10.0.0.1", 20000);
    connect_to(&peer);
    write_to(&peer, number(6));
    CHECK_EQ(qp.heard_port, peer.sin6_port);
    expected = false;
    taken = 0;
    write_to(&forger, number(6));
    CHECK_EQ(qp.heard_port, peer.sin6_port);
    CHECK_EQ(taken, 0); /* a NAK would have the peer go back */
    CHECK_EQ(qp.counters.value[RNIC_CNT_drop_bad_source], 1);
    write_to(&peer, number(6));
    CHECK_EQ(taken, 1); /* the peer's own is the transport's to judge */
    expected = true;
    write_to(&forger, number(6)); /* its port has changed */
    CHECK_EQ(taken, 2);
    CHECK_EQ(qp.heard_port, forger.sin6_port);
    end();
}

static void a_forged_flood_to_a_live_queue_pair_is_muted(void) {
    begin();
    struct sockaddr_in6 peer = mapped("::ffff:10.0.0.1", 50000), forger = mapped("::ffff:10.0.0.1", 20000);
    connect_to(&peer);
    write_to(&peer, number(6));
    expected = false;
    for (int w = 0; w < LONG; w++, now += WINDOW) {
        for (int i = 0; i < MANY; i++)
            write_to(&forger, number(6));
    }
    CHECK(!hears(&forger));
    CHECK(hears(&peer));
    end();
}

/* ---------------------------------------------------------------- requests for connections */

static uint64_t refused(void) { return dev->nic.counters.value[RNIC_CNT_drop_request]; }

static void a_host_may_ask_for_1024_connections_at_once_and_250_a_second(void) {
    begin();
    struct sockaddr_in6 eager = mapped("::ffff:10.0.0.1", 20000), other = mapped("::ffff:10.0.0.2", 20000),
                        rnic = mapped("::ffff:10.0.0.1", ROCE_UDP_PORT);
    for (int i = 0; i < 2000; i++)
        mad(&eager, CM_REQ);
    CHECK_EQ(refused(), 2000 - 1024);
    mad(&other, CM_REQ);
    mad(&rnic, CM_REQ);
    CHECK_EQ(refused(), 2000 - 1024);
    now += 1000 * MS;
    for (int i = 0; i < 300; i++)
        mad(&eager, CM_REQ);
    CHECK_EQ(refused(), 2000 - 1024 + 50);
    end();
}

static void a_peer_may_ask_for_as_many_as_it_likes(void) {
    begin();
    struct sockaddr_in6 peer = mapped("::ffff:10.0.0.1", 20000);
    connect_to(&peer);
    write_to(&peer, number(6));
    for (int i = 0; i < 5000; i++, now += MS)
        mad(&peer, CM_REQ);
    CHECK_EQ(refused(), 0);
    end();
}

int main(void) {
    RUN(whoever_goes_on_and_on_with_what_nobody_needs_is_muted);
    RUN(fewer_are_heard_for_as_long_as_they_like);
    RUN(what_ends_soon_is_no_flood);
    RUN(whoever_ends_is_heard_again_after_a_second);
    RUN(whoever_does_not_end_stays_muted);
    RUN(whoever_uses_many_ports_is_muted_by_its_address);
    RUN(an_address_with_more_peers_than_can_be_spared_is_not_muted);
    RUN(several_are_muted_one_after_the_other);
    RUN(messages_to_queue_pair_1_are_a_flood_too);
    RUN(a_peer_is_not_muted);
    RUN(processes_of_this_host_that_share_the_port_are_not_muted);
    RUN(the_peers_of_a_queue_pair_that_has_gone_a_moment_ago_make_no_flood);
    RUN(only_what_moves_the_queue_pair_on_makes_its_sender_the_peer);
    RUN(a_forged_flood_to_a_live_queue_pair_is_muted);
    RUN(a_host_may_ask_for_1024_connections_at_once_and_250_a_second);
    RUN(a_peer_may_ask_for_as_many_as_it_likes);
    return check_done();
}
