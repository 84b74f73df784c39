/* SPDX-License-Identifier: Apache-2.0
 *
 * host/outbox.c by itself: messages for a unix socket that has no room, on a clock of the test's.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "host/host.h"
#include "names/abstract.h"
#include "names/slotmsg.h"

#define BYTES 280 /* of a CM message with its headers */
#define MS 1000000ull

static struct nic nic;
static struct host host;
static struct port port;
static struct slot own;
static struct abstract_name to;
static int receiver;
static uint32_t sent, seen;

static void begin(void) {
    struct rnic_err err;
    nic.counters = (struct rnic_counters){0};
    host = (struct host){.nic = &nic};
    CHECK_EQ(slot_claim(&own, &err), 0);
    port = (struct port){.slot = &own};
    abstract_name(&to, "rnic/test/outbox/%d", (int)getpid());
    receiver = abstract_open(&to);
    CHECK(receiver >= 0);
    sent = seen = 0;
}

static void end(void) {
    outbox_free(&host);
    slot_release(&own);
    if (receiver >= 0)
        close(receiver);
}

static int send_next(uint64_t now) {
    uint8_t bytes[BYTES] = {0};
    struct slot_packet p = {.length = BYTES};
    memcpy(bytes, &sent, sizeof sent);
    sent++;
    return outbox_send(&host, &port, &to, &p, bytes, now);
}

/* Whatever has arrived: the next ones, in their order. */
static uint32_t drain(void) {
    struct {
        struct slotmsg msg;
        uint8_t bytes[BYTES];
    } in;
    uint32_t n = 0, number;
    while (recv(receiver, &in, sizeof in, MSG_DONTWAIT) == (ssize_t)(sizeof in.msg + BYTES)) {
        memcpy(&number, (uint8_t *)&in + sizeof in.msg, sizeof number);
        CHECK_EQ(number, seen);
        seen++;
        n++;
    }
    return n;
}

static uint64_t count(enum rnic_counter counter) { return nic.counters.value[counter]; }

static void what_finds_no_room_comes_later_in_its_order(void) {
    begin();
    for (int i = 0; i < 200; i++)
        CHECK_EQ(send_next(0), 0);
    CHECK(host.letters.held > 0 && host.letters.held < 200);
    uint64_t now = 0;
    while (seen < 200) {
        now = outbox_deadline(&host) < NEVER ? outbox_deadline(&host) : now;
        CHECK(drain() > 0);
        outbox_timer(&host, now);
    }
    CHECK_EQ(host.letters.held, 0);
    CHECK(host.letters.boxes == NULL);
    CHECK_EQ(outbox_deadline(&host), NEVER);
    CHECK_EQ(count(RNIC_CNT_forwarded_out), 200);
    CHECK_EQ(count(RNIC_CNT_drop_slot_full), 0);
    end();
}

static void a_receiver_that_never_reads_is_given_up(void) {
    begin();
    for (int i = 0; i < 50; i++)
        CHECK_EQ(send_next(0), 0);
    uint32_t held = host.letters.held;
    outbox_timer(&host, 999 * MS);
    CHECK_EQ(host.letters.held, held);
    outbox_timer(&host, 1001 * MS);
    CHECK_EQ(host.letters.held, 0);
    CHECK_EQ(count(RNIC_CNT_drop_slot_full), held);
    end();
}

static void what_is_held_is_bounded(void) {
    begin();
    for (int i = 0; i < 10000; i++)
        CHECK_EQ(send_next(0), 0);
    CHECK(host.letters.held < 5000);
    CHECK_EQ(count(RNIC_CNT_forwarded_out) + host.letters.held + count(RNIC_CNT_drop_slot_full), 10000);
    end();
}

static void a_receiver_that_is_gone_holds_nothing(void) {
    begin();
    for (int i = 0; i < 50; i++)
        CHECK_EQ(send_next(0), 0);
    uint32_t held = host.letters.held;
    close(receiver);
    receiver = -1;
    outbox_timer(&host, MS);
    CHECK_EQ(host.letters.held, 0);
    CHECK_EQ(count(RNIC_CNT_drop_no_slot), held);
    CHECK_EQ(send_next(MS), -ECONNREFUSED);
    end();
}

int main(void) {
    RUN(what_finds_no_room_comes_later_in_its_order);
    RUN(a_receiver_that_never_reads_is_given_up);
    RUN(what_is_held_is_bounded);
    RUN(a_receiver_that_is_gone_holds_nothing);
    return check_done();
}
