/* SPDX-License-Identifier: Apache-2.0
 *
 * host/floods.c: who sends so much that nobody needs that it is muted, on a clock of the test's.
 */
#include <errno.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bare.h"
#include "base/bytes.h"
#include "check.h"
#include "dev/dev.h"
#include "inlet.h"
#include "link/udp/udpsock.h"
#include "live.h"
#include "wire/icrc.h"
#include "wire/mad.h"

#define WINDOW (25 * MS)
#define FEW 1000  /* packets of a window that nobody minds */
#define MANY 1100 /* and so many that somebody does */
#define LONG 5    /* windows after which it is muted */

/* A WRITE for that queue pair. */
static void write_to(const struct sockaddr_in6 *from, uint32_t qpn) {
    uint8_t bytes[64] = {[0] = 0x0A, [2] = 0xFF, [3] = 0xFF};
    put_be32(bytes + 4, qpn);
    inlet_arrive(from, bytes, sizeof bytes);
}

#define DEAD inlet_qpn(5)
#define LIVE inlet_qpn(6)

/* Two packets of one size, which the kernel gives as one datagram: a message to a datagram queue pair, or a WRITE to the
 * connected one, and a WRITE. */
static void together(const struct sockaddr_in6 *from, uint32_t first, uint32_t second) {
    uint8_t bytes[128] = {[0] = first == LIVE ? 0x0A : ROCE_UD_SEND_ONLY, [2] = 0xFF, [3] = 0xFF, [64] = 0x0A};
    struct sockaddr_in6 to = port->addr;
    to.sin6_port = htons(ROCE_UDP_PORT);
    put_be32(bytes + 4, first);
    put_be32(bytes + 64 + 4, second);
    put_le32(bytes + 64 - ICRC_BYTES, icrc_compute(from, &to, 0, bytes, 64 - ICRC_BYTES));
    demux_datagram(dev, port, &(struct udp_datagram){.bytes = bytes, .length = 128, .segment = 64, .src = *from}, false,
                   now);
}

/* So many packets in each of so many windows: to a queue pair, or each to another one where that is 0, of which there are
 * none; each from a port of its own, where the port is 0. */
static void flood(const struct sockaddr_in6 *from, uint32_t qpn, uint32_t packets, uint32_t windows) {
    for (uint32_t w = 0; w < windows; w++, now += WINDOW) {
        for (uint32_t i = 0; i < packets; i++) {
            struct sockaddr_in6 one = *from;
            if (!from->sin6_port)
                one.sin6_port = htons((uint16_t)(20000 + i));
            write_to(&one, qpn ? qpn : inlet_qpn(1000 + i));
        }
    }
}

static void flood_management_by(const struct sockaddr_in6 *from, uint32_t packets, uint32_t windows) {
    for (uint32_t w = 0; w < windows; w++, now += WINDOW) {
        for (uint32_t i = 0; i < packets; i++) {
            struct sockaddr_in6 one = *from;
            if (!from->sin6_port)
                one.sin6_port = htons((uint16_t)(20000 + i));
            inlet_mad(&one, CM_RTU);
        }
    }
}

static void flood_management(const struct sockaddr_in6 *from, uint32_t windows) {
    flood_management_by(from, MANY, windows);
}

static bool hears(const struct sockaddr_in6 *from, uint32_t qpn) {
    return !sieve_find(&port->sieve, &from->sin6_addr, from->sin6_port, qpn);
}

/* ---------------------------------------------------------------- what is muted */

static void what_nobody_needs_and_does_not_end_is_muted(void) {
    inlet_open();
    struct sockaddr_in6 loud = bare_address("::ffff:10.0.0.1", 20000), other = bare_address("::ffff:10.0.0.2", 20000);
    flood(&loud, DEAD, MANY, LONG - 1);
    CHECK(hears(&loud, DEAD));
    flood(&loud, DEAD, MANY, 1);
    CHECK(!hears(&loud, DEAD));
    CHECK(hears(&other, DEAD));
    CHECK_EQ(dev->nic.counters.value[RNIC_CNT_sources_muted], 1);
    inlet_close();
}

static void fewer_are_heard_for_as_long_as_they_like(void) {
    inlet_open();
    struct sockaddr_in6 busy = bare_address("::ffff:10.0.0.1", 20000);
    flood(&busy, DEAD, FEW, 100);
    for (int i = 0; i < 20; i++, now += 45 * MS) /* no more than that, in bursts */
        for (int j = 0; j < 1500; j++)
            write_to(&busy, DEAD);
    CHECK(hears(&busy, DEAD));
    inlet_close();
}

/* As when a process has died that somebody was sending to. */
static void what_ends_soon_is_no_flood(void) {
    inlet_open();
    struct sockaddr_in6 busy = bare_address("::ffff:10.0.0.1", 20000);
    for (int i = 0; i < 10; i++) {
        flood(&busy, DEAD, 10 * MANY, LONG - 2);
        now += 2 * WINDOW;
    }
    CHECK(hears(&busy, DEAD));
    inlet_close();
}

static void what_ends_is_heard_again_after_a_second(void) {
    inlet_open();
    struct sockaddr_in6 loud = bare_address("::ffff:10.0.0.1", 20000);
    flood(&loud, DEAD, MANY, LONG);
    uint64_t until = sieve_deadline(&port->sieve);
    CHECK(until > now && until <= now + 1000 * MS);
    CHECK(!sieve_expire(&port->sieve, until - 1));
    CHECK(sieve_expire(&port->sieve, until));
    inlet_close();
}

/* Of a flood one packet in 128 comes through. */
static void what_does_not_end_stays_muted(void) {
    inlet_open();
    struct sockaddr_in6 loud = bare_address("::ffff:10.0.0.1", 20000);
    flood(&loud, DEAD, MANY, LONG);
    for (int i = 0; i < 100; i++) {
        flood(&loud, DEAD, MANY / SIEVE_PASSES, 1);
        CHECK(sieve_deadline(&port->sieve) > now);
    }
    CHECK(dev->nic.counters.value[RNIC_CNT_sources_muted] < 8); /* the kernel is asked twice a second */
    flood(&loud, DEAD, MANY / SIEVE_PASSES - 1, 41);
    CHECK(sieve_deadline(&port->sieve) <= now);
    inlet_close();
}

static void several_are_muted_one_after_the_other(void) {
    inlet_open();
    struct sockaddr_in6 a = bare_address("::ffff:10.0.0.1", 20000), b = bare_address("::ffff:10.0.0.2", 20000);
    for (int w = 0; w < LONG + 1; w++, now += WINDOW) {
        for (int i = 0; i < MANY; i++) {
            write_to(&a, DEAD);
            write_to(&b, DEAD);
        }
    }
    CHECK(!hears(&a, DEAD));
    CHECK(!hears(&b, DEAD));
    inlet_close();
}

/* Who polls may have read the clock before the lock was had. */
static void an_old_time_hides_no_flood(void) {
    inlet_open();
    struct sockaddr_in6 loud = bare_address("::ffff:10.0.0.1", 20000);
    for (int w = 0; w < LONG; w++, now += WINDOW) {
        for (int i = 0; i < MANY; i++) {
            now -= i == 1 ? 1000 : 0;
            write_to(&loud, DEAD);
            now += i == 1 ? 1000 : 0;
        }
    }
    CHECK(!hears(&loud, DEAD));
    inlet_close();
}

static void what_is_no_packet_is_a_flood_too(void) {
    uint8_t probe[64] = {PORT_PROBE_OPCODE}, garbage[64] = {0x3F};
    const struct {
        uint8_t *bytes;
        uint32_t n;
    } kinds[] = {{probe, 0}, {garbage, 1}, {garbage, 64}, {probe, 8}, {probe, 64}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        inlet_open();
        struct sockaddr_in6 loud = bare_address("::ffff:10.0.0.1", 20000);
        check_note("%u bytes, first 0x%02x", kinds[k].n, kinds[k].bytes[0]);
        for (int w = 0; w < LONG; w++, now += WINDOW) {
            for (int i = 0; i < MANY; i++)
                inlet_datagram(&loud, kinds[k].bytes, kinds[k].n);
        }
        CHECK(!hears(&loud, DEAD));
        CHECK(hears(&loud, QPN_GSI));
        inlet_close();
    }
}

/* ---------------------------------------------------------------- what is left alone */

/* A server has been started anew, and the old streams go on: from the port from which that host connects. */
static void of_a_flood_to_one_queue_pair_nothing_else_is_muted(void) {
    inlet_open();
    struct sockaddr_in6 host = bare_address("::ffff:10.0.0.1", ROCE_UDP_PORT);
    flood(&host, DEAD, MANY, LONG);
    CHECK(!hears(&host, DEAD));
    CHECK(hears(&host, QPN_GSI));
    CHECK(hears(&host, LIVE));
    inlet_close();
}

static void of_a_flood_to_many_the_living_are_left_alone(void) {
    inlet_open();
    static struct qp datagrams, others, dead;
    struct sockaddr_in6 peer = bare_address("::ffff:10.0.0.1", 50000), other = bare_address("::ffff:10.0.0.2", 50000),
                        loud = bare_address("::ffff:10.0.0.1", 0);
    inlet_connect(&peer);
    datagrams = (struct qp){.ib = {.service = OPC_UD, .takes = OPC_UD}};
    inlet_enter(&datagrams, 7);
    others = qp;
    others.way.dst = other;
    inlet_enter(&others, 8);
    dead = qp;
    inlet_enter(&dead, 9);
    dead.state = RNIC_QPS_ERR;
    floods_handed_on(&dev->host, 17, now); /* a living process has that slot */
    flood(&loud, 0, MANY, LONG);
    CHECK(!hears(&loud, DEAD));
    CHECK(hears(&loud, LIVE));
    CHECK(hears(&loud, inlet_qpn(7)));
    CHECK(!hears(&loud, inlet_qpn(8))); /* which that address has nothing to say to */
    CHECK(!hears(&loud, inlet_qpn(9)));
    CHECK(hears(&loud, QPN_GSI));
    CHECK(hears(&loud, 17u << QPN_INDEX_BITS | 3));
    CHECK(!hears(&loud, 18u << QPN_INDEX_BITS | 3));
    inlet_close();
}

static void with_more_living_than_can_be_spared_nothing_is_muted(void) {
    inlet_open();
    static struct qp qps[SIEVE_SPARED + 1], idle, gsi = {.ib.service = OPC_UD, .state = RNIC_QPS_RTS};
    struct sockaddr_in6 loud = bare_address("::ffff:10.0.0.1", 0);
    for (uint32_t i = 0; i < SIEVE_SPARED + 1; i++) {
        inlet_connect(&loud);
        qps[i] = qp;
        inlet_enter(&qps[i], 100 + i);
    }
    dev->host.table[0][6] = NULL;
    idle = (struct qp){.ib.service = OPC_UD}; /* these two take no place */
    inlet_enter(&idle, 99);
    idle.state = RNIC_QPS_INIT;
    gsi.pub.qp_num = QPN_GSI;
    dev->host.gsi = &gsi;
    flood(&loud, 0, MANY, LONG);
    CHECK_EQ(port->sieve.count, 0);
    dev->host.table[0][100] = NULL;
    flood(&loud, 0, MANY, 1);
    CHECK_EQ(port->sieve.count, 1);
    CHECK_EQ(port->sieve.rules[0].nspared, SIEVE_SPARED);
    inlet_close();
}

static void of_packets_that_come_together_the_first_is_not_taken_for_all(void) {
    inlet_open();
    static struct qp datagrams;
    struct sockaddr_in6 host = bare_address("::ffff:10.0.0.1", ROCE_UDP_PORT);
    datagrams = (struct qp){.ib = {.service = OPC_UD, .takes = OPC_UD}};
    inlet_enter(&datagrams, 7);
    for (int w = 0; w < LONG; w++, now += WINDOW) {
        for (int i = 0; i < MANY; i++)
            together(&host, inlet_qpn(7), DEAD);
    }
    CHECK_EQ(datagrams.counters.value[RNIC_CNT_drop_bad_icrc], 0);
    CHECK(hears(&host, inlet_qpn(7)));
    CHECK(!hears(&host, DEAD));
    inlet_close();
}

/* Over the alternate path, too (IBA 17.2.8), from a port that is not known yet. */
static void the_peers_other_address_is_a_peers(void) {
    inlet_open();
    struct sockaddr_in6 peer = bare_address("::ffff:10.0.0.1", 50000), other = bare_address("::ffff:10.0.0.2", 50001),
                        loud = bare_address("::ffff:10.0.0.2", 0);
    inlet_connect(&peer);
    write_to(&peer, LIVE);
    qp.ib.alt = (struct way){.src = port->addr, .dst = other};
    qp.ib.alt_from = (struct way){.src = other, .dst = port->addr};
    qp.ib.alt_loaded = true;
    expected = false;
    flood(&loud, LIVE, MANY, LONG);
    CHECK(hears(&other, LIVE));
    flood(&loud, 0, MANY, LONG);
    CHECK(!hears(&other, DEAD));
    CHECK(hears(&other, LIVE));
    inlet_close();
}

/* By queue pair numbers that live, each of which has less than half of it. */
static void a_flood_to_some_that_live_is_muted_one_after_the_other(void) {
    inlet_open();
    static struct qp others[2];
    struct sockaddr_in6 peer = bare_address("::ffff:10.0.0.1", 50000), loud = bare_address("::ffff:10.0.0.1", 20000);
    inlet_connect(&peer);
    for (uint32_t i = 0; i < 2; i++) {
        others[i] = qp;
        inlet_enter(&others[i], 7 + i);
    }
    for (uint32_t i = 0; i < 3; i++)
        write_to(&peer, inlet_qpn(6 + i));
    expected = false;
    for (int w = 0; w < LONG + 4; w++, now += WINDOW) {
        for (int i = 0; i < 3 * MANY; i++)
            write_to(&loud, inlet_qpn(6 + (uint32_t)i % 3));
    }
    for (uint32_t i = 0; i < 3; i++) {
        CHECK(!hears(&loud, inlet_qpn(6 + i)));
        CHECK(hears(&peer, inlet_qpn(6 + i)));
    }
    inlet_close();
}

/* What members of this host's group say to each other comes from its own address, and has no queue pair number. */
static void of_this_hosts_own_address_rnics_port_is_heard(void) {
    inlet_open();
    struct sockaddr_in6 member = bare_address("::ffff:127.0.0.1", ROCE_UDP_PORT),
                        user = bare_address("::ffff:127.0.0.1", 45000), users = bare_address("::ffff:127.0.0.1", 0);
    flood(&users, 0, MANY, LONG);
    CHECK(!hears(&user, DEAD));
    CHECK(hears(&member, DEAD));
    port->sieve.count = 0;
    flood(&user, DEAD, MANY, LONG);
    CHECK(!hears(&user, DEAD));
    CHECK(hears(&member, DEAD));
    inlet_close();
}

static void a_process_that_was_silent_for_long_is_left_alone_and_one_that_has_gone_is_not(void) {
    inlet_open();
    struct slot other, gone;
    struct rnic_err err;
    struct sockaddr_in6 loud = bare_address("::ffff:10.0.0.1", 0);
    CHECK_EQ(slot_claim(&other, &err), 0);
    CHECK_EQ(slot_claim(&gone, &err), 0);
    write_to(&loud, other.number << QPN_INDEX_BITS);
    write_to(&loud, gone.number << QPN_INDEX_BITS);
    slot_release(&gone);
    now += 60000 * MS;
    flood(&loud, 0, MANY, LONG);
    CHECK(!hears(&loud, DEAD));
    CHECK(hears(&loud, other.number << QPN_INDEX_BITS | 3));
    CHECK(!hears(&loud, gone.number << QPN_INDEX_BITS | 3));
    slot_release(&other);
    inlet_close();
}

/* More live than can be spared, and one of them was silent. */
static void a_process_that_was_silent_for_long_counts_among_those_that_live(void) {
    inlet_open();
    static struct qp qps[SIEVE_SPARED];
    struct slot other;
    struct rnic_err err;
    struct sockaddr_in6 loud = bare_address("::ffff:10.0.0.1", 0);
    CHECK_EQ(slot_claim(&other, &err), 0);
    write_to(&loud, other.number << QPN_INDEX_BITS);
    for (uint32_t i = 0; i < SIEVE_SPARED; i++) {
        inlet_connect(&loud);
        qps[i] = qp;
        inlet_enter(&qps[i], 100 + i);
    }
    dev->host.table[0][6] = NULL;
    now += 60000 * MS;
    flood(&loud, 0, MANY, LONG);
    CHECK(hears(&loud, other.number << QPN_INDEX_BITS | 3));
    slot_release(&other);
    flood(&loud, 0, MANY, LONG);
    CHECK(!hears(&loud, other.number << QPN_INDEX_BITS | 3));
    inlet_close();
}

static void a_new_peer_is_heard_at_once(void) {
    inlet_open();
    struct sockaddr_in6 peer = bare_address("::ffff:10.0.0.1", 50000), loud = bare_address("::ffff:10.0.0.1", 0),
                        other = bare_address("::ffff:10.0.0.2", 0);
    flood(&loud, 0, MANY, LONG);
    flood(&other, 0, MANY, LONG);
    inlet_connect(&peer);
    floods_new_peer(&dev->host, &qp, &peer.sin6_addr);
    CHECK(hears(&peer, LIVE));
    CHECK(!hears(&peer, DEAD));
    CHECK(!hears(&other, LIVE));
    floods_new_peer(&dev->host, &qp, NULL);
    CHECK(hears(&other, LIVE));
    CHECK(!hears(&other, DEAD));
    inlet_close();
}

static void and_so_is_a_new_process(void) {
    inlet_open();
    struct sockaddr_in6 loud = bare_address("::ffff:10.0.0.1", 0);
    uint32_t qpn = 17u << QPN_INDEX_BITS | 3;
    flood(&loud, 0, MANY, LONG);
    CHECK(!hears(&loud, qpn));
    floods_handed_on(&dev->host, 17, now);
    CHECK(hears(&loud, qpn));
    CHECK(!hears(&loud, DEAD));
    inlet_close();
}

/* Of whom it is known by a message of the communication manager for it, ahead of the first packet. */
static void and_so_is_one_that_connects(void) {
    inlet_open();
    struct slot other;
    struct rnic_err err;
    struct sockaddr_in6 peer = bare_address("::ffff:10.0.0.1", 50000), loud = bare_address("::ffff:10.0.0.1", 0);
    CHECK_EQ(slot_claim(&other, &err), 0);
    flood(&loud, 0, MANY, LONG);
    CHECK(!hears(&peer, other.number << QPN_INDEX_BITS | 3));
    inlet_mad_for(&peer, CM_RTU, other.number << (32 - SLOT_BITS) | 1);
    CHECK(hears(&peer, other.number << QPN_INDEX_BITS | 3));
    slot_release(&other);
    inlet_close();
}

static void what_cannot_be_handed_on_for_want_of_memory_is_not_useless(void) {
    inlet_open();
    forward_count(&dev->host, -ENOBUFS, 1);
    CHECK_EQ(dev->nic.useless, 0);
    forward_count(&dev->host, -ECONNREFUSED, 1);
    CHECK_EQ(dev->nic.useless, 1);
    inlet_close();
}

static bool has_batches(const struct port *p) {
    int on = 0;
    socklen_t n = sizeof on;
    CHECK_EQ(getsockopt(p->rx_fd, SOL_UDP, UDP_GRO, &on, &n), 0);
    return on;
}

/* Packets of one batch come from one port. */
static void batches_stay_where_the_flood_comes_from_a_port_that_nobody_else_uses(void) {
    inlet_open();
    struct sockaddr_in6 peer = bare_address("::ffff:10.0.0.1", 50000), loud = bare_address("::ffff:10.0.0.1", 20000),
                        other = bare_address("::ffff:10.0.0.2", 50000);
    inlet_connect(&peer);
    write_to(&peer, LIVE);
    flood(&loud, DEAD, MANY, LONG);
    flood(&other, DEAD, MANY, LONG);
    CHECK_EQ(port->sieve.count, 2);
    CHECK(!port->sieve.rules[0].apart);
    CHECK(!port->sieve.rules[1].apart);
    inlet_close();
}

/* Else the kernel would drop what comes in one batch with it. */
static void batches_are_taken_apart_where_it_comes_from_a_peers_port(void) {
    inlet_open();
    struct sockaddr_in6 peer = bare_address("::ffff:10.0.0.1", 50000), moved = bare_address("::ffff:10.0.0.1", 50001),
                        loud = bare_address("::ffff:10.0.0.1", 20000), other = bare_address("::ffff:10.0.0.2", 20000);
    inlet_connect(&peer);
    write_to(&peer, LIVE);
    write_to(&moved, LIVE);
    flood(&other, DEAD, MANY, LONG);
    flood(&loud, DEAD, MANY, LONG);
    CHECK(has_batches(port));
    write_to(&peer, DEAD);
    CHECK(port->sieve.rules[1].apart);
    CHECK(!has_batches(port));
    flood(&loud, DEAD, MANY, 40); /* and stay so while it lasts, as its ports may change */
    CHECK(port->sieve.rules[1].since > now - 1000 * MS);
    CHECK(port->sieve.rules[1].apart);
    CHECK(!port->sieve.rules[0].apart);
    port->sieve.count = 0;
    flood(&moved, DEAD, MANY, LONG);
    CHECK_EQ(port->sieve.count, 1);
    CHECK(port->sieve.rules[0].apart);
    inlet_close();
}

/* The rule leaves what comes from the peer's port alone. */
static void but_not_for_what_is_not_muted(void) {
    inlet_open();
    struct sockaddr_in6 peer = bare_address("::ffff:10.0.0.1", 50000), loud = bare_address("::ffff:10.0.0.1", 20000);
    inlet_connect(&peer);
    write_to(&peer, LIVE);
    expected = false;
    flood(&loud, LIVE, MANY, LONG);
    flood_management(&loud, LONG);
    CHECK_EQ(port->sieve.count, 2);
    write_to(&peer, DEAD);
    CHECK(!port->sieve.rules[0].apart);
    CHECK(!port->sieve.rules[1].apart);
    inlet_close();
}

/* What is muted is what comes from the other port. */
static void nor_for_what_a_peer_sends_elsewhere(void) {
    inlet_open();
    struct sockaddr_in6 peer = bare_address("::ffff:10.0.0.1", 50000), loud = bare_address("::ffff:10.0.0.1", 20000),
                        other = bare_address("::ffff:10.0.0.1", 20001);
    inlet_connect(&peer);
    write_to(&peer, LIVE);
    flood(&loud, DEAD, MANY, LONG);
    inlet_mad(&peer, CM_RTU);
    write_to(&peer, inlet_qpn(4));
    together(&other, QPN_GSI, inlet_qpn(4));
    CHECK(!port->sieve.rules[0].apart);
    write_to(&peer, DEAD);
    CHECK(port->sieve.rules[0].apart);
    inlet_close();
}

/* By another flood, which goes to some that live, each of which has less than half of it. */
static void batches_stay_apart_when_a_mute_is_made_anew(void) {
    inlet_open();
    static struct qp others[2];
    struct sockaddr_in6 peer = bare_address("::ffff:10.0.0.1", 50000), loud = bare_address("::ffff:10.0.0.1", 20000);
    inlet_connect(&peer);
    for (uint32_t i = 0; i < 2; i++) {
        others[i] = qp;
        inlet_enter(&others[i], 7 + i);
    }
    for (uint32_t i = 0; i < 3; i++)
        write_to(&peer, inlet_qpn(6 + i));
    flood(&peer, 0, MANY, LONG);
    uint64_t until = port->sieve.rules[0].until;
    CHECK(port->sieve.rules[0].apart);
    expected = false;
    for (int w = 0; w < LONG; w++, now += WINDOW) {
        for (int i = 0; i < 3 * 400; i++)
            write_to(&loud, inlet_qpn(6 + (uint32_t)i % 3));
    }
    CHECK_EQ(port->sieve.count, 1);
    CHECK(port->sieve.rules[0].until > until);
    CHECK(port->sieve.rules[0].apart);
    inlet_close();
}

/* From where processes speak that have said nothing yet. */
static void rnics_port_is_anybodys_who_is_heard(void) {
    inlet_open();
    struct sockaddr_in6 rnic = bare_address("::ffff:10.0.0.1", ROCE_UDP_PORT),
                        other = bare_address("::ffff:10.0.0.2", ROCE_UDP_PORT);
    flood(&other, DEAD, MANY, LONG);
    CHECK(!port->sieve.rules[0].apart);
    inlet_connect(&rnic);
    flood(&rnic, DEAD, MANY, LONG);
    CHECK(port->sieve.rules[1].apart);
    port->sieve.count = 0;
    flood(&other, 0, MANY, LONG);
    CHECK(!port->sieve.rules[0].apart);
    floods_new_peer(&dev->host, &qp, &other.sin6_addr);
    flood(&other, DEAD, 1, 1);
    CHECK(port->sieve.rules[0].apart);
    port->sieve.count = 0;
    qp.ib.service = OPC_UD;
    flood(&other, DEAD, MANY, LONG);
    CHECK(port->sieve.rules[0].apart);
    inlet_close();
}

/* A server has been started anew, and a client connects while its old stream goes on. */
static void and_anybodys_who_becomes_a_peer(void) {
    inlet_open();
    struct sockaddr_in6 rnic = bare_address("::ffff:10.0.0.1", ROCE_UDP_PORT);
    flood(&rnic, DEAD, MANY, LONG);
    CHECK(!port->sieve.rules[0].apart);
    inlet_connect(&rnic);
    floods_new_peer(&dev->host, &qp, &rnic.sin6_addr);
    write_to(&rnic, DEAD);
    CHECK(port->sieve.rules[0].apart);
    inlet_close();
}

/* Another user's processes have another port than rnic's; a peer may change its port. */
static void so_is_the_port_of_a_peer_that_is_first_heard_while_it_is_muted(void) {
    struct sockaddr_in6 peer = bare_address("::ffff:10.0.0.1", 50000), other = bare_address("::ffff:10.0.0.2", 50000),
                        nobody = bare_address("::ffff:10.0.0.1", 0);
    inlet_open();
    inlet_connect(&peer);
    flood(&peer, DEAD, MANY, LONG);
    flood(&other, DEAD, MANY, LONG);
    CHECK_EQ(port->sieve.count, 2);
    expected = false;
    together(&peer, LIVE, DEAD);
    together(&nobody, LIVE, DEAD);
    CHECK(!port->sieve.rules[0].apart); /* anybody can send that */
    expected = true;
    together(&peer, LIVE, DEAD);
    CHECK(port->sieve.rules[0].apart);
    together(&other, LIVE, DEAD); /* a port of the same number, of another host */
    CHECK(!port->sieve.rules[1].apart);
    inlet_close();
}

/* The last packet of a batch may be shorter, and end ahead of what says where it goes. */
static void of_a_short_packet_nothing_is_read_behind_its_end(void) {
    struct sockaddr_in6 loud = bare_address("::ffff:10.0.0.1", 20000);
    inlet_open();
    flood(&loud, DEAD, MANY, LONG);
    for (uint32_t left = 1; left < BTH_BYTES; left++) {
        uint8_t *bytes = calloc(1, 64 + left); /* whose end AddressSanitizer knows */
        CHECK(bytes != NULL);
        put_be32(bytes + 4, DEAD);
        demux_datagram(dev, port,
                       &(struct udp_datagram){.bytes = bytes, .length = 64 + left, .segment = 64, .src = loud}, false,
                       now);
        free(bytes);
    }
    CHECK(!port->sieve.rules[0].apart);
    inlet_close();
}

/* Packets that are all 0 go to queue pair 0, which is nobody's, whoever has slot 0. */
static void nobody_is_seen_in_packets_for_queue_pair_0(void) {
    struct sockaddr_in6 loud = bare_address("::ffff:10.0.0.1", 20000);
    inlet_open();
    floods_handed_on(&dev->host, 0, now);
    for (int w = 0; w < LONG; w++, now += WINDOW) {
        for (int i = 0; i < MANY; i++)
            write_to(&loud, QPN_SMI);
    }
    CHECK_EQ(port->sieve.count, 1);
    floods_handed_on(&dev->host, 0, now); /* what was read at the same time */
    write_to(&loud, QPN_SMI);
    CHECK(!port->sieve.rules[0].apart);
    inlet_close();
}

/* As a stream to two queue pairs of a process that has died. */
static void nor_in_those_for_a_process_that_has_gone(void) {
    struct sockaddr_in6 loud = bare_address("::ffff:10.0.0.1", 20000);
    struct slot gone;
    struct rnic_err err;
    inlet_open();
    CHECK_EQ(slot_claim(&gone, &err), 0);
    uint32_t qpn = gone.number << QPN_INDEX_BITS | 3;
    write_to(&loud, qpn);
    slot_release(&gone);
    flood(&loud, qpn, MANY, LONG);
    CHECK_EQ(port->sieve.count, 1);
    together(&loud, qpn, qpn + 1);
    CHECK(!port->sieve.rules[0].apart);
    inlet_close();
}

/* Queue pairs of this process, by their index, and of two others. */
#define DATAGRAMS 7
#define GONE 8
#define OTHERS 9
#define NOBODYS 10

static struct slot others, nobodys;

static uint32_t qpn_of(uint32_t index) {
    const struct slot *slot = index == OTHERS ? &others : index == NOBODYS ? &nobodys : &dev->host.slots[0];
    return index == QPN_GSI ? QPN_GSI : slot->number << QPN_INDEX_BITS | index;
}

/* Are batches taken apart when packets for these two come together? */
static bool are_taken_apart(uint32_t first, uint32_t second) {
    static struct qp datagrams, gone;
    struct rnic_err err;
    struct sockaddr_in6 loud = bare_address("::ffff:10.0.0.1", 20000), other = bare_address("::ffff:10.0.0.2", 20000);
    inlet_open();
    inlet_connect(&loud);
    datagrams = gone = (struct qp){.ib = {.service = OPC_UD, .takes = OPC_UD}};
    inlet_enter(&datagrams, DATAGRAMS);
    inlet_enter(&gone, GONE);
    gone.state = RNIC_QPS_ERR;
    CHECK_EQ(slot_claim(&others, &err), 0);
    CHECK_EQ(slot_claim(&nobodys, &err), 0);
    slot_release(&nobodys);
    flood(&other, DEAD, MANY, LONG);
    flood(&loud, DEAD, MANY, LONG);
    CHECK_EQ(port->sieve.count, 2);
    CHECK(!port->sieve.rules[1].apart);
    expected = false;
    together(&loud, qpn_of(first), qpn_of(second));
    CHECK(!port->sieve.rules[0].apart);
    bool apart = port->sieve.rules[1].apart;
    slot_release(&others);
    inlet_close();
    return apart;
}

/* Whose ports are not known: who sends datagrams, who sends to other processes, who connects. */
static void batches_are_taken_apart_where_somebody_is_seen_in_them(void) {
    CHECK(are_taken_apart(DATAGRAMS, 5));
    CHECK(are_taken_apart(5, DATAGRAMS));
    CHECK(are_taken_apart(OTHERS, 5));
    CHECK(are_taken_apart(QPN_GSI, 5));
    CHECK(!are_taken_apart(5, 5));
    CHECK(!are_taken_apart(5, 4));
    CHECK(!are_taken_apart(5, NOBODYS));
    CHECK(!are_taken_apart(GONE, 5));
    CHECK(!are_taken_apart(6, 5)); /* a connected one, that has heard nothing from there */
}

/* What was muted because the queue pair was not connected yet. */
static void whose_queue_pair_becomes_ready_is_heard_at_once(void) {
    inlet_open();
    struct sockaddr_in6 peer = bare_address("::ffff:10.0.0.1", 50000), other = bare_address("::ffff:10.0.0.2", 50000);
    inlet_connect(&peer);
    qp.state = RNIC_QPS_INIT;
    qp.ib.takes = OPC_UC;
    flood(&peer, LIVE, MANY, LONG);
    flood(&other, LIVE, MANY, LONG);
    CHECK(!hears(&peer, LIVE));
    CHECK(!hears(&other, LIVE));
    qp.state = RNIC_QPS_RTR;
    floods_new_peer(&dev->host, &qp, &peer.sin6_addr);
    CHECK(hears(&peer, LIVE));
    CHECK(!hears(&other, LIVE));
    inlet_close();
}

/* ---------------------------------------------------------------- the same by modify_qp */

static struct live live;

static struct port *live_port(struct dev *of) {
    for (int i = 0; i < of->net.netdev.ngids; i++) {
        if (!memcmp(&of->net.ports[i].addr.sin6_addr, &live.gid.gid, sizeof live.gid.gid))
            return &of->net.ports[i];
    }
    return NULL;
}

/* What that address sends to queue pairs is muted; is it to this one? */
static void mute_address(struct in6_addr from) {
    struct dev *of = dev_of(live.ctx);
    struct sieve_rule rule = {.from = from, .until = NEVER};
    dev_lock(of);
    port_mute(live_port(of), &rule);
    dev_unlock(of);
}

static bool live_hears(struct in6_addr from, uint32_t qpn) {
    struct dev *of = dev_of(live.ctx);
    dev_lock(of);
    bool heard = !sieve_find(&live_port(of)->sieve, &from, htons(50000), qpn);
    dev_unlock(of);
    return heard;
}

static struct rnic_qp *datagram_qp(void) {
    struct rnic_qp_init_attr init = {
        .send_cq = live.cq, .recv_cq = live.cq, .cap = {4, 4, 1, 1, 0}, .qp_type = RNIC_QPT_UD};
    struct rnic_qp_attr a = {.qp_state = RNIC_QPS_INIT, .port_num = 1};
    struct rnic_qp *ud;
    CHECK_EQ(live.ops->create_qp(live.pd, &init, &ud, NULL), 0);
    uint32_t mask = RNIC_QP_STATE | RNIC_QP_PKEY_INDEX | RNIC_QP_PORT | RNIC_QP_QKEY;
    CHECK_EQ(live.ops->modify_qp(ud, &a, mask, NULL), 0);
    return ud;
}

static void load_alternate(struct rnic_qp *rc, struct in6_addr to) {
    struct rnic_qp_attr a = {.alt_port_num = 1, .path_mig_state = RNIC_MIG_REARM};
    a.alt_ah_attr = (struct rnic_ah_attr){.is_global = 1, .port_num = 1, .grh.hop_limit = 64};
    memcpy(&a.alt_ah_attr.grh.dgid, &to, sizeof to);
    CHECK_EQ(live.ops->modify_qp(rc, &a, RNIC_QP_ALT_PATH | RNIC_QP_PATH_MIG_STATE, NULL), 0);
}

static void what_becomes_ready_is_heard(void) {
    live_open(&live, 0);
    struct rnic_qp *rc = live_qp(&live), *ud = datagram_qp();
    struct rnic_qp_attr a = {.qp_state = RNIC_QPS_RTR};
    struct in6_addr peer, other = bare_address("::ffff:127.0.0.77", 0).sin6_addr;
    memcpy(&peer, &live.gid.gid, sizeof peer);
    mute_address(peer);
    mute_address(other);
    CHECK(!live_hears(peer, rc->qp_num));
    CHECK_EQ(live_connect(rc, &live.gid, rc->qp_num), 0);
    CHECK(live_hears(peer, rc->qp_num));
    CHECK(!live_hears(other, rc->qp_num));
    load_alternate(rc, other);
    CHECK(live_hears(other, rc->qp_num));
    CHECK(!live_hears(other, ud->qp_num));
    CHECK_EQ(live.ops->modify_qp(ud, &a, RNIC_QP_STATE, NULL), 0);
    CHECK(live_hears(other, ud->qp_num));
    CHECK(live_hears(peer, ud->qp_num));
    CHECK(!live_hears(peer, ud->qp_num ^ 1));
    CHECK_EQ(live.ops->destroy_qp(rc, NULL), 0);
    CHECK_EQ(live.ops->destroy_qp(ud, NULL), 0);
    live_close(&live);
}

static bool live_settled(bool *batches) {
    struct dev *of = dev_of(live.ctx);
    dev_lock(of);
    bool settled = !live_port(of)->unsettled;
    *batches = has_batches(live_port(of));
    dev_unlock(of);
    return settled;
}

/* What lies there in batches is read as such first. */
static void packets_come_apart_when_the_socket_has_been_read(void) {
    live_open(&live, 0);
    struct dev *of = dev_of(live.ctx);
    struct sieve_rule rule = {.from = bare_address("::ffff:127.0.0.77", 0).sin6_addr, .until = NEVER, .apart = true};
    struct sockaddr_in6 from = bare_address("::ffff:127.0.0.1", 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(ROCE_UDP_PORT)};
    int fd = udpsock_open(&from);
    bool batches;
    dev_lock(of);
    memcpy(&to.sin_addr, &live_port(of)->addr.sin6_addr.s6_addr[12], 4);
    CHECK_EQ(sendto(fd, "", 1, 0, (struct sockaddr *)&to, sizeof to), 1);
    port_mute(live_port(of), &rule);
    CHECK(live_port(of)->unsettled);
    dev_unlock(of);
    while (!live_settled(&batches))
        live_nap();
    CHECK(!batches);
    close(fd);
    live_close(&live);
}

static void of_messages_to_queue_pair_1_one_ports_are_muted(void) {
    inlet_open();
    struct sockaddr_in6 loud = bare_address("::ffff:10.0.0.1", 20000), cm = bare_address("::ffff:10.0.0.1", 20001);
    flood_management(&loud, LONG);
    CHECK(!hears(&loud, QPN_GSI));
    CHECK(hears(&loud, LIVE));
    CHECK(hears(&cm, QPN_GSI));
    inlet_close();
}

/* A program has to read them: 10,000 a second are as much work as 40,000 others. */
static void of_messages_to_queue_pair_1_a_quarter_is_a_flood(void) {
    inlet_open();
    struct sockaddr_in6 loud = bare_address("::ffff:10.0.0.1", 20000), busy = bare_address("::ffff:10.0.0.1", 20001);
    flood_management_by(&busy, FEW / 4, 100);
    CHECK(hears(&busy, QPN_GSI));
    flood_management_by(&loud, MANY / 4, LONG);
    CHECK(!hears(&loud, QPN_GSI));
    inlet_close();
}

static void or_those_of_all_ports_but_rnics(void) {
    inlet_open();
    struct sockaddr_in6 loud = bare_address("::ffff:10.0.0.1", 0),
                        rnic = bare_address("::ffff:10.0.0.1", ROCE_UDP_PORT);
    flood_management(&loud, LONG);
    CHECK(!hears(&loud, QPN_GSI));
    CHECK(hears(&rnic, QPN_GSI));
    inlet_close();
}

/* A port that is left as soon as it is muted. */
static void whoever_goes_from_port_to_port_is_muted_at_all_ports(void) {
    inlet_open();
    struct sockaddr_in6 first = bare_address("::ffff:10.0.0.1", 20000), then = bare_address("::ffff:10.0.0.1", 20001),
                        another = bare_address("::ffff:10.0.0.1", 20002);
    flood_management(&first, LONG);
    CHECK(!hears(&first, QPN_GSI));
    flood_management(&then, LONG);
    CHECK(!hears(&another, QPN_GSI));
    inlet_close();
}

static void rnics_port_is_muted_unless_it_is_a_peers_or_this_hosts(void) {
    struct sockaddr_in6 rnic = bare_address("::ffff:10.0.0.1", ROCE_UDP_PORT),
                        self = bare_address("::ffff:127.0.0.1", ROCE_UDP_PORT),
                        user = bare_address("::ffff:127.0.0.1", 45000), users = bare_address("::ffff:127.0.0.1", 0);
    inlet_open();
    inlet_connect(&rnic);
    flood_management(&rnic, LONG);
    CHECK(hears(&rnic, QPN_GSI));
    qp.state = RNIC_QPS_ERR;
    flood_management(&rnic, 1);
    CHECK(!hears(&rnic, QPN_GSI));
    flood_management(&self, LONG);
    CHECK(hears(&self, QPN_GSI));
    flood_management(&users, LONG); /* any of the other users of this host */
    CHECK(hears(&user, QPN_GSI));
    flood_management(&user, LONG);
    CHECK(!hears(&user, QPN_GSI));
    inlet_close();
}

/* ---------------------------------------------------------------- live queue pairs, and who is their peer */

static void of_a_flood_to_a_live_queue_pair_its_peers_are_left_alone(void) {
    inlet_open();
    struct sockaddr_in6 peer = bare_address("::ffff:10.0.0.1", 50000), again = bare_address("::ffff:10.0.0.1", 50001),
                        forger = bare_address("::ffff:10.0.0.1", 20000),
                        stranger = bare_address("::ffff:10.0.0.2", 20000);
    inlet_connect(&peer);
    write_to(&peer, LIVE);
    write_to(&again, LIVE);
    expected = false;
    flood(&forger, LIVE, MANY, LONG);
    CHECK(!hears(&forger, LIVE));
    CHECK(hears(&peer, LIVE));
    CHECK(hears(&again, LIVE));
    flood(&stranger, LIVE, MANY, LONG);
    CHECK(!hears(&stranger, LIVE));
    CHECK(hears(&peer, LIVE));
    inlet_close();
}

static void whose_peer_has_said_nothing_yet_hears_all(void) {
    inlet_open();
    struct sockaddr_in6 peer = bare_address("::ffff:10.0.0.1", 50000);
    inlet_connect(&peer);
    qp.ib.takes = OPC_UC; /* so that none of it is of use */
    flood(&peer, LIVE, MANY, LONG);
    CHECK(hears(&peer, LIVE));
    inlet_close();
}

static void of_a_flood_to_a_datagram_queue_pair_one_ports_are_muted(void) {
    inlet_open();
    static struct qp datagrams;
    struct sockaddr_in6 loud = bare_address("::ffff:10.0.0.1", 20000), other = bare_address("::ffff:10.0.0.1", 20001),
                        many = bare_address("::ffff:10.0.0.2", 0);
    datagrams = (struct qp){.ib = {.service = OPC_UD, .takes = OPC_UD}};
    inlet_enter(&datagrams, 7);
    flood(&loud, inlet_qpn(7), MANY, LONG);
    CHECK(!hears(&loud, inlet_qpn(7)));
    CHECK(hears(&other, inlet_qpn(7)));
    flood(&many, inlet_qpn(7), MANY, LONG);
    CHECK(hears(&many, inlet_qpn(7)));
    inlet_close();
}

/* The processes of a host that share it. */
static void rnics_port_of_a_peer_may_send_datagrams(void) {
    inlet_open();
    static struct qp datagrams;
    struct sockaddr_in6 rnic = bare_address("::ffff:10.0.0.1", ROCE_UDP_PORT),
                        self = bare_address("::ffff:127.0.0.1", ROCE_UDP_PORT),
                        stranger = bare_address("::ffff:10.0.0.2", ROCE_UDP_PORT);
    inlet_connect(&rnic);
    datagrams = (struct qp){.ib = {.service = OPC_UD, .takes = OPC_UD}};
    inlet_enter(&datagrams, 7);
    flood(&rnic, inlet_qpn(7), MANY, LONG);
    CHECK(hears(&rnic, inlet_qpn(7)));
    flood(&self, inlet_qpn(7), MANY, LONG);
    CHECK(hears(&self, inlet_qpn(7)));
    flood(&stranger, inlet_qpn(7), MANY, LONG);
    CHECK(!hears(&stranger, inlet_qpn(7)));
    inlet_close();
}

static void a_packet_counts_once(void) {
    inlet_open();
    struct sockaddr_in6 busy = bare_address("::ffff:10.0.0.1", 20000);
    uint8_t bytes[MAD_PACKET] = {[0] = ROCE_UD_SEND_ONLY, [2] = 0xFF, [3] = 0xFF, [7] = QPN_GSI};
    for (int w = 0; w < 100; w++, now += WINDOW) {
        for (int i = 0; i < FEW / 4; i++)
            inlet_datagram(&busy, bytes, sizeof bytes); /* to a queue pair 1 that is not there */
    }
    CHECK(hears(&busy, QPN_GSI));
    inlet_close();
}

static void the_peers_of_a_queue_pair_that_has_gone_a_moment_ago_make_no_flood(void) {
    inlet_open();
    struct sockaddr_in6 busy = bare_address("::ffff:10.0.0.1", 20000);
    dev->host.freed[0][5] = now;
    flood(&busy, DEAD, MANY, 39);
    CHECK(hears(&busy, DEAD));
    flood(&busy, DEAD, MANY, LONG + 2);
    CHECK(!hears(&busy, DEAD));
    inlet_close();
}

/* Anybody can send from the peer's address, from another port. */
static void only_what_moves_the_queue_pair_on_makes_its_sender_the_peer(void) {
    inlet_open();
    struct sockaddr_in6 peer = bare_address("::ffff:10.0.0.1", 50000), forger = bare_address("::ffff:10.0.0.1", 20000);
    inlet_connect(&peer);
    write_to(&peer, LIVE);
    CHECK_EQ(qp.ib.heard[0], peer.sin6_port);
    expected = false;
    taken = 0;
    write_to(&forger, LIVE);
    CHECK_EQ(qp.ib.heard[0], peer.sin6_port);
    CHECK_EQ(qp.ib.heard[1], 0);
    CHECK_EQ(taken, 0); /* a NAK would have the peer go back */
    CHECK_EQ(qp.counters.value[RNIC_CNT_drop_bad_source], 1);
    write_to(&peer, LIVE);
    CHECK_EQ(taken, 1); /* the peer's own is the transport's to judge */
    expected = true;
    write_to(&forger, LIVE); /* its port has changed */
    CHECK_EQ(taken, 2);
    CHECK_EQ(qp.ib.heard[0], forger.sin6_port);
    expected = false;
    write_to(&peer, LIVE); /* or it has two */
    CHECK_EQ(taken, 3);
    inlet_close();
}

static void port_0_is_nobodys(void) {
    inlet_open();
    struct sockaddr_in6 peer = bare_address("::ffff:10.0.0.1", 50000), forger = bare_address("::ffff:10.0.0.1", 0);
    inlet_connect(&peer);
    write_to(&peer, LIVE);
    write_to(&forger, LIVE);
    CHECK_EQ(qp.ib.heard[0], peer.sin6_port);
    expected = false;
    taken = 0;
    write_to(&forger, LIVE);
    CHECK_EQ(taken, 0);
    CHECK_EQ(qp.counters.value[RNIC_CNT_drop_bad_source], 1);
    inlet_close();
}

static void notifications_of_congestion_come_from_any_port(void) {
    inlet_open();
    struct sockaddr_in6 peer = bare_address("::ffff:10.0.0.1", 50000),
                        notifier = bare_address("::ffff:10.0.0.1", 50001);
    uint8_t cnp[BTH_BYTES + CNP_RESERVED_BYTES + ICRC_BYTES] = {[0] = ROCE_CNP, [2] = 0xFF, [3] = 0xFF};
    put_be32(cnp + 4, LIVE);
    inlet_connect(&peer);
    write_to(&peer, LIVE);
    expected = false;
    taken = 0;
    inlet_arrive(&notifier, cnp, sizeof cnp);
    CHECK_EQ(taken, 1);
    CHECK_EQ(qp.ib.heard[0], peer.sin6_port);
    inlet_close();
}

int main(void) {
    live_isolate();
    RUN(what_nobody_needs_and_does_not_end_is_muted);
    RUN(fewer_are_heard_for_as_long_as_they_like);
    RUN(what_ends_soon_is_no_flood);
    RUN(what_ends_is_heard_again_after_a_second);
    RUN(what_does_not_end_stays_muted);
    RUN(several_are_muted_one_after_the_other);
    RUN(an_old_time_hides_no_flood);
    RUN(what_is_no_packet_is_a_flood_too);
    RUN(of_a_flood_to_one_queue_pair_nothing_else_is_muted);
    RUN(of_a_flood_to_many_the_living_are_left_alone);
    RUN(with_more_living_than_can_be_spared_nothing_is_muted);
    RUN(of_packets_that_come_together_the_first_is_not_taken_for_all);
    RUN(the_peers_other_address_is_a_peers);
    RUN(a_flood_to_some_that_live_is_muted_one_after_the_other);
    RUN(of_this_hosts_own_address_rnics_port_is_heard);
    RUN(a_process_that_was_silent_for_long_is_left_alone_and_one_that_has_gone_is_not);
    RUN(a_process_that_was_silent_for_long_counts_among_those_that_live);
    RUN(a_new_peer_is_heard_at_once);
    RUN(and_so_is_a_new_process);
    RUN(and_so_is_one_that_connects);
    RUN(what_cannot_be_handed_on_for_want_of_memory_is_not_useless);
    RUN(batches_stay_where_the_flood_comes_from_a_port_that_nobody_else_uses);
    RUN(batches_are_taken_apart_where_it_comes_from_a_peers_port);
    RUN(but_not_for_what_is_not_muted);
    RUN(nor_for_what_a_peer_sends_elsewhere);
    RUN(batches_stay_apart_when_a_mute_is_made_anew);
    RUN(rnics_port_is_anybodys_who_is_heard);
    RUN(and_anybodys_who_becomes_a_peer);
    RUN(so_is_the_port_of_a_peer_that_is_first_heard_while_it_is_muted);
    RUN(of_a_short_packet_nothing_is_read_behind_its_end);
    RUN(nobody_is_seen_in_packets_for_queue_pair_0);
    RUN(nor_in_those_for_a_process_that_has_gone);
    RUN(batches_are_taken_apart_where_somebody_is_seen_in_them);
    RUN(whose_queue_pair_becomes_ready_is_heard_at_once);
    RUN(what_becomes_ready_is_heard);
    RUN(packets_come_apart_when_the_socket_has_been_read);
    RUN(of_messages_to_queue_pair_1_one_ports_are_muted);
    RUN(of_messages_to_queue_pair_1_a_quarter_is_a_flood);
    RUN(or_those_of_all_ports_but_rnics);
    RUN(whoever_goes_from_port_to_port_is_muted_at_all_ports);
    RUN(rnics_port_is_muted_unless_it_is_a_peers_or_this_hosts);
    RUN(of_a_flood_to_a_live_queue_pair_its_peers_are_left_alone);
    RUN(whose_peer_has_said_nothing_yet_hears_all);
    RUN(of_a_flood_to_a_datagram_queue_pair_one_ports_are_muted);
    RUN(rnics_port_of_a_peer_may_send_datagrams);
    RUN(a_packet_counts_once);
    RUN(the_peers_of_a_queue_pair_that_has_gone_a_moment_ago_make_no_flood);
    RUN(only_what_moves_the_queue_pair_on_makes_its_sender_the_peer);
    RUN(port_0_is_nobodys);
    RUN(notifications_of_congestion_come_from_any_port);
    return check_done();
}
