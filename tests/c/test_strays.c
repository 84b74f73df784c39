/* SPDX-License-Identifier: Apache-2.0
 *
 * host/strays.c: packets for processes and services that nobody has, on a clock of the test's.
 */
#include <arpa/inet.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bare.h"
#include "base/bytes.h"
#include "check.h"
#include "dev/dev.h"
#include "names/listen.h"
#include "names/slotmsg.h"
#include "wire/icrc.h"
#include "wire/mad.h"

#define MS 1000000ull
#define MANY 10000
#define BYTES (BTH_BYTES + DETH_BYTES + MAD_BYTES + ICRC_BYTES)
#define SERVICE 0x1061234ull
#define SERVICE_AT 32 /* in a REQ (IBA 12.6.5) */

static struct dev *dev;
static struct port port;
static struct slot others;
static struct sockaddr_in6 source;
static uint8_t mad[MAD_BYTES];

static int bound(uint16_t number) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(number), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0);
    return fd;
}

/* Each packet of a flood is of another host: what one host sends is the business of host/floods.c. */
static void from_another_host(void) {
    source.sin6_addr.s6_addr[14]++;
    source.sin6_addr.s6_addr[13] += source.sin6_addr.s6_addr[14] == 0;
}

static void begin(void) {
    struct rnic_err err;
    dev = bare_open();
    CHECK_EQ(slot_claim(&others, &err), 0);
    port = (struct port){.slot = &dev->host.slots[0], .rx_fd = -1, .tx_fd = bound(0), .addr = dev->net.ports[0].addr};
    source = bare_address("::ffff:127.0.0.1", 9); /* nobody reads the answers */
    memset(mad, 0, sizeof mad);
}

static void end(void) {
    close(port.tx_fd);
    slot_release(&others);
    bare_close(dev);
}

static uint64_t count(enum rnic_counter counter) { return dev->nic.counters.value[counter]; }

static void arrive(uint8_t *bytes, uint32_t n, uint64_t now) {
    struct sockaddr_in6 to = port.addr;
    to.sin6_port = htons(ROCE_UDP_PORT);
    from_another_host();
    put_le32(bytes + n - ICRC_BYTES, icrc_compute(&source, &to, 0, bytes, n - ICRC_BYTES));
    demux_datagram(dev, &port, &(struct udp_datagram){.bytes = bytes, .length = n, .segment = n, .src = source}, false,
                   now);
}

/* A message of the communication manager for queue pair 1. */
static void say(enum cm_attribute attribute, uint64_t service, uint32_t comm_id, uint64_t now) {
    uint8_t bytes[BYTES] = {[0] = 0x64, [2] = 0xFF, [3] = 0xFF, [7] = QPN_GSI};
    put_be32(bytes + BTH_BYTES, GSI_QKEY);
    mad[0] = 1;
    mad[1] = CM_CLASS;
    mad[2] = CM_CLASS_VERSION;
    mad[3] = 3;
    put_be16(mad + MAD_ATTRIBUTE, (uint16_t)attribute);
    put_be32(mad + MAD_REMOTE_ID, comm_id);
    if (attribute == CM_REQ)
        put_be64(mad + SERVICE_AT, service);
    memcpy(bytes + BTH_BYTES + DETH_BYTES, mad, MAD_BYTES);
    arrive(bytes, sizeof bytes, now);
}

/* A WRITE for a queue pair in a slot. */
static void write_to(uint32_t slot, uint64_t now) {
    uint8_t bytes[64] = {[0] = 0x0A, [2] = 0xFF, [3] = 0xFF};
    put_be32(bytes + 4, slot << QPN_INDEX_BITS | 5);
    arrive(bytes, sizeof bytes, now);
}

static void a_few_requests_for_nobody_are_answered_and_of_a_flood_so_many_a_second(void) {
    begin();
    for (int i = 0; i < 200; i++)
        say(CM_REQ, SERVICE, 0, MS);
    CHECK_EQ(count(RNIC_CNT_cm_refused), 200);
    for (int i = 0; i < MANY; i++)
        say(CM_REQ, SERVICE + (unsigned)i, 0, MS);
    uint64_t first = count(RNIC_CNT_cm_refused);
    CHECK(first < 300);
    CHECK_EQ(first + count(RNIC_CNT_drop_unanswered), 200 + MANY);
    for (int i = 0; i < MANY; i++)
        say(CM_REQ, SERVICE, 0, 11 * MS); /* ten milliseconds later */
    uint64_t more = count(RNIC_CNT_cm_refused) - first;
    CHECK(more >= 10 && more < 50);
    end();
}

static void disconnects_from_nobody_are_answered_no_more_often(void) {
    begin();
    uint32_t nobody = others.number;
    slot_release(&others);
    for (int i = 0; i < MANY; i++)
        say(CM_DREQ, 0, nobody << (32 - SLOT_BITS), MS);
    CHECK_EQ(count(RNIC_CNT_drop_no_slot), MANY);
    CHECK(count(RNIC_CNT_tx_packets) < 300);
    CHECK_EQ(count(RNIC_CNT_tx_packets) + count(RNIC_CNT_drop_unanswered), MANY);
    end();
}

static void damaged_requests_use_up_no_answers(void) {
    begin();
    uint8_t bytes[BYTES] = {[0] = 0x64, [2] = 0xFF, [3] = 0xFF, [7] = QPN_GSI};
    say(CM_REQ, SERVICE, 0, MS);
    put_be32(bytes + BTH_BYTES, GSI_QKEY);
    memcpy(bytes + BTH_BYTES + DETH_BYTES, mad, MAD_BYTES);
    for (int i = 0; i < MANY; i++) {
        from_another_host();
        struct udp_datagram d = {.bytes = bytes, .length = BYTES, .segment = BYTES, .src = source};
        demux_datagram(dev, &port, &d, false, MS);
    }
    CHECK_EQ(count(RNIC_CNT_drop_bad_icrc), MANY);
    say(CM_REQ, SERVICE, 0, MS);
    CHECK_EQ(count(RNIC_CNT_cm_refused), 2);
    end();
}

/* The owner of the other slot goes, and comes again. */
static void a_process_that_comes_is_found_at_once_where_few_packets_go_astray(void) {
    begin();
    uint32_t slot = others.number;
    struct abstract_name name;
    abstract_name(&name, SLOT_NAME, slot);
    slot_release(&others);
    for (int i = 0; i < 100; i++)
        write_to(slot, MS);
    CHECK_EQ(count(RNIC_CNT_drop_no_slot), 100);
    others.fd = abstract_open(&name);
    CHECK(others.fd >= 0);
    write_to(slot, MS);
    say(CM_RTU, 0, slot << (32 - SLOT_BITS), MS);
    CHECK_EQ(count(RNIC_CNT_forwarded_out), 2);
    end();
}

static void in_a_flood_whom_nobody_had_a_moment_ago_nobody_has(void) {
    begin();
    uint32_t slot = others.number;
    struct abstract_name name;
    abstract_name(&name, SLOT_NAME, slot);
    slot_release(&others);
    for (int i = 0; i < MANY; i++)
        write_to(slot, MS);
    others.fd = abstract_open(&name);
    CHECK(others.fd >= 0);
    write_to(slot, MS + 1);
    say(CM_RTU, 0, slot << (32 - SLOT_BITS), MS + 1);
    CHECK_EQ(count(RNIC_CNT_drop_no_slot), MANY + 2);
    write_to(slot, 60 * MS);
    CHECK_EQ(count(RNIC_CNT_forwarded_out), 1);
    end();
}

static void in_a_flood_of_requests_a_listener_that_comes_is_found_soon(void) {
    begin();
    struct abstract_name name;
    listen_name(&name, SERVICE, &port.addr);
    for (int i = 0; i < MANY; i++)
        say(CM_REQ, SERVICE, 0, MS);
    int listener = abstract_open(&name);
    CHECK(listener >= 0);
    say(CM_REQ, SERVICE, 0, MS + 1);
    CHECK_EQ(count(RNIC_CNT_forwarded_out), 0);
    say(CM_REQ, SERVICE, 0, 60 * MS);
    CHECK_EQ(count(RNIC_CNT_forwarded_out), 1);
    for (int i = 0; i < MANY; i++) /* for others: it is found all the same */
        say(CM_REQ, SERVICE + 1 + (unsigned)i, 0, 60 * MS);
    say(CM_REQ, SERVICE, 0, 60 * MS);
    CHECK_EQ(count(RNIC_CNT_forwarded_out), 2);
    close(listener);
    end();
}

int main(void) {
    RUN(a_few_requests_for_nobody_are_answered_and_of_a_flood_so_many_a_second);
    RUN(disconnects_from_nobody_are_answered_no_more_often);
    RUN(damaged_requests_use_up_no_answers);
    RUN(a_process_that_comes_is_found_at_once_where_few_packets_go_astray);
    RUN(in_a_flood_whom_nobody_had_a_moment_ago_nobody_has);
    RUN(in_a_flood_of_requests_a_listener_that_comes_is_found_soon);
    return check_done();
}
