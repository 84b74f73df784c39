/* SPDX-License-Identifier: Apache-2.0
 *
 * mad/mads.c: messages to queue pair 1 by their management class.
 */
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "check.h"
#include "inlet.h"
#include "live.h"
#include "names/listen.h"

#define SUBNET_ADMINISTRATION 3 /* IBA 13.4.4 */
#define PERFORMANCE_MANAGEMENT 4

static struct qp gsi;
static struct slot others; /* another process' */
static struct sockaddr_in6 peer;

static void begin(void) {
    struct rnic_err err;
    inlet_open();
    CHECK_EQ(slot_claim(&others, &err), 0);
    peer.sin6_family = AF_INET6;
    peer.sin6_port = htons(20000);
    peer.sin6_addr = port->addr.sin6_addr;
    gsi = (struct qp){.ib = {.service = OPC_UD, .takes = OPC_UD}};
    inlet_enter(&gsi, 7);
    gsi.pub.qp_num = QPN_GSI;
    dev->host.gsi = &gsi;
}

static void end(void) {
    slot_release(&others);
    inlet_close();
}

enum receiver { THIS, OTHER, NO_SLOT }; /* a communication id of this process, of the other, of none */

/* A message of that class, which would be that attribute for that process if it were communication management's. */
static void compose(uint8_t bytes[MAD_PACKET], uint8_t class, uint16_t attribute, uint32_t qkey, enum receiver to) {
    uint32_t slots[] = {dev->host.slots[0].number, others.number, 0};
    while (slots[NO_SLOT] == slots[THIS] || slots[NO_SLOT] == slots[OTHER])
        slots[NO_SLOT]++;
    memset(bytes, 0, MAD_PACKET);
    bytes[0] = 0x64, bytes[2] = 0xFF, bytes[3] = 0xFF, bytes[7] = QPN_GSI;
    uint8_t *m = bytes + BTH_BYTES + DETH_BYTES;
    put_be32(bytes + BTH_BYTES, qkey);
    m[0] = 1;
    m[MAD_CLASS] = class;
    m[2] = CM_CLASS_VERSION;
    m[3] = 3;
    put_be16(m + MAD_ATTRIBUTE, attribute);
    if (mad_address(m).target == MAD_FOR_ID || class != CM_CLASS)
        put_be32(m + MAD_REMOTE_ID, slots[to] << (32 - SLOT_BITS) | 1);
}

static void say(uint8_t class, uint32_t qkey) {
    uint8_t bytes[MAD_PACKET];
    compose(bytes, class, CM_REP, qkey, OTHER);
    inlet_arrive(&peer, bytes, sizeof bytes);
}

/* The same with a bit that has changed on its way. */
static void say_damaged(uint8_t class, uint16_t attribute, enum receiver to) {
    uint8_t bytes[MAD_PACKET];
    struct sockaddr_in6 here = port->addr;
    here.sin6_port = htons(ROCE_UDP_PORT);
    compose(bytes, class, attribute, GSI_QKEY, to);
    put_le32(bytes + MAD_PACKET - ICRC_BYTES, icrc_compute(&peer, &here, 0, bytes, MAD_PACKET - ICRC_BYTES));
    bytes[MAD_PACKET - ICRC_BYTES - 1] ^= 1;
    demux_datagram(dev, port,
                   &(struct udp_datagram){.bytes = bytes, .length = MAD_PACKET, .segment = MAD_PACKET, .src = peer},
                   handed, now);
}

static uint64_t counted(enum rnic_counter what) { return dev->nic.counters.value[what]; }
static uint64_t handed_on(void) { return counted(RNIC_CNT_forwarded_out); }

static void communication_management_goes_to_whom_it_names(void) {
    begin();
    say(CM_CLASS, GSI_QKEY);
    CHECK_EQ(handed_on(), 1);
    CHECK_EQ(taken, 0);
    end();
}

static void other_classes_are_for_this_process(void) {
    begin();
    say(SUBNET_ADMINISTRATION, GSI_QKEY);
    say(PERFORMANCE_MANAGEMENT, GSI_QKEY);
    say(0, GSI_QKEY);
    say(255, GSI_QKEY);
    CHECK_EQ(handed_on(), 0);
    CHECK_EQ(taken, 4);
    end();
}

/* ---------------------------------------------------------------- what does not say whose it is */

enum { OTHERS = 3, FIRST = 5 };
static int desks[OTHERS];

/* Other contexts in that role, which have some of the names. */
static void others_are(enum role role) {
    struct abstract_name name;
    begin();
    dev->host.net->netdev.ifindex = 1;
    for (int i = 0; i < OTHERS; i++) {
        listen_role_name(&name, role, 1, (uint32_t)(FIRST + 2 * i));
        desks[i] = listen_open(&name);
        CHECK(desks[i] >= 0);
    }
}

static void others_go(void) {
    for (int i = 0; i < OTHERS; i++)
        close(desks[i]);
    end();
}

static int got(int desk) {
    uint8_t bytes[1024];
    int n = 0;
    while (recv(desks[desk], bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        n++;
    return n;
}

static void each_got(int n) {
    for (int i = 0; i < OTHERS; i++)
        CHECK_EQ(got(i), n);
}

static void a_refusal_that_names_no_id_is_for_all_who_listen(void) {
    others_are(ROLE_LISTENS);
    inlet_mad_for(&peer, CM_REJ, 0);
    each_got(1);
    CHECK_EQ(taken, 1); /* it may be ours as well */
    dev->host.gsi = NULL;
    inlet_mad_for(&peer, CM_REJ, 0);
    each_got(1);
    CHECK_EQ(counted(RNIC_CNT_drop_bad_qpn), 0);
    others_go();
}

/* Its request may wait in the socket of a listener. */
static void a_listener_reads_it_after_requests(void) {
    uint8_t bytes[1024];
    others_are(ROLE_LISTENS);
    CHECK_EQ(roles_take(&dev->host, ROLE_LISTENS), 0);
    CHECK_EQ(dev->host.roles[ROLE_LISTENS].number, 0);
    inlet_mad_for(&peer, CM_REJ, 0);
    each_got(1);
    CHECK_EQ(taken, 0);
    CHECK(recv(dev->host.roles[ROLE_LISTENS].fd, bytes, sizeof bytes, MSG_DONTWAIT) > MAD_PACKET);
    roles_drop(&dev->host, ROLE_LISTENS);
    inlet_mad_for(&peer, CM_REJ, 0);
    CHECK_EQ(taken, 1);
    CHECK_EQ(roles_take(&dev->host, ROLE_LISTENS), 0); /* which is not found for a moment */
    inlet_mad_for(&peer, CM_REJ, 0);
    CHECK_EQ(taken, 2);
    roles_drop(&dev->host, ROLE_LISTENS);
    others_go();
}

static void a_refusal_that_names_no_id_stays_when_it_was_handed_on(void) {
    others_are(ROLE_LISTENS);
    handed = true;
    inlet_mad_for(&peer, CM_REJ, 0);
    handed = false;
    each_got(0);
    CHECK_EQ(taken, 1);
    others_go();
}

static void a_damaged_refusal_is_not_copied(void) {
    others_are(ROLE_LISTENS);
    uint8_t bytes[MAD_PACKET];
    compose(bytes, CM_CLASS, CM_REJ, GSI_QKEY, THIS);
    put_be32(bytes + BTH_BYTES + DETH_BYTES + MAD_REMOTE_ID, 0);
    inlet_datagram(&peer, bytes, sizeof bytes);
    each_got(0);
    CHECK_EQ(counted(RNIC_CNT_drop_bad_icrc), 1);
    CHECK_EQ(taken, 0);
    others_go();
}

/* Beyond some at once it is this process' own, as all were. */
static void a_flood_of_refusals_is_not_copied(void) {
    enum { FLOOD = 2000, AT_ONCE = 256 };
    others_are(ROLE_LISTENS);
    for (int i = 0; i < FLOOD; i++) {
        inlet_mad_for(&peer, CM_REJ, 0);
        each_got(i < (AT_ONCE + OTHERS - 1) / OTHERS);
    }
    CHECK_EQ(taken, FLOOD);
    now += 1000 * MS;
    inlet_mad_for(&peer, CM_REJ, 0);
    each_got(1);
    others_go();
}

static void say_what_names_nobody(void) {
    say(SUBNET_ADMINISTRATION, GSI_QKEY);
    say(0, GSI_QKEY);
    inlet_mad_for(&peer, CM_REP, 0);
    inlet_mad_for(&peer, 0xFFFF, 0); /* no such message */
}

static void what_names_nobody_is_for_a_context_with_a_queue_pair_1(void) {
    others_are(ROLE_GSI);
    say_what_names_nobody();
    each_got(0);
    CHECK_EQ(taken, 4);
    dev->host.gsi = NULL;
    say_what_names_nobody();
    CHECK_EQ(got(0), 4);
    CHECK(got(1) == 0 && got(2) == 0);
    say(CM_CLASS, GSI_QKEY + 1); /* no manager sends that */
    CHECK_EQ(got(0), 0);
    CHECK_EQ(counted(RNIC_CNT_drop_bad_qpn), 1);
    others_go();
}

static void nobody_is_looked_for_twice_in_a_moment(void) {
    struct abstract_name name;
    begin();
    dev->host.net->netdev.ifindex = 1;
    dev->host.gsi = NULL;
    say(0, GSI_QKEY);
    listen_role_name(&name, ROLE_GSI, 1, ROLE_NUMBERS - 1);
    int late = listen_open(&name);
    say(0, GSI_QKEY);
    CHECK_EQ(handed_on(), 0);
    now += 51 * MS;
    say(0, GSI_QKEY);
    CHECK_EQ(handed_on(), 1);
    CHECK_EQ(counted(RNIC_CNT_drop_bad_qpn), 2);
    close(late);
    end();
}

/* So says its transport, which counts it. */
static void what_no_manager_sends_is_for_this_process(void) {
    begin();
    say(CM_CLASS, GSI_QKEY + 1);
    CHECK_EQ(handed_on(), 0);
    CHECK_EQ(taken, 1);
    end();
}

static void what_was_handed_on_stays(void) {
    begin();
    handed = true;
    say(CM_CLASS, GSI_QKEY);
    handed = false;
    CHECK_EQ(handed_on(), 0);
    CHECK_EQ(taken, 1);
    end();
}

static const uint16_t requests[] = {CM_REQ, CM_SIDR_REQ},
                      others_than_requests[] = {CM_MRA, CM_REJ, CM_REP, CM_RTU, CM_DREQ, CM_DREP, CM_LAP, CM_APR};

#define COUNT_OF(list) (sizeof(list) / sizeof *(list))

/* Of what asks for nothing the ICRC is looked at last: by whoever has the queue pair. */
static void what_is_damaged_is_dropped_whatever_it_is(void) {
    begin();
    uint64_t damaged = 0;
    for (int i = 0; i < 2; i++) {
        handed = i;
        for (size_t k = 0; k < COUNT_OF(others_than_requests); k++, damaged++)
            say_damaged(CM_CLASS, others_than_requests[k], THIS);
        say_damaged(SUBNET_ADMINISTRATION, CM_REP, THIS);
        say_damaged(PERFORMANCE_MANAGEMENT, CM_REP, THIS);
        damaged += 2;
    }
    for (size_t k = 0; k < COUNT_OF(requests); k++, damaged++) /* found to be for this process */
        say_damaged(CM_CLASS, requests[k], THIS);
    handed = false;
    CHECK_EQ(counted(RNIC_CNT_drop_bad_icrc), damaged);
    CHECK_EQ(taken, 0);
    end();
}

static void damaged_requests_are_not_handed_on(void) {
    begin();
    struct abstract_name name;
    listen_name(&name, 0, &port->addr);
    int listener = listen_open(&name);
    CHECK(listener >= 0);
    for (size_t k = 0; k < COUNT_OF(requests); k++)
        say_damaged(CM_CLASS, requests[k], THIS);
    CHECK_EQ(counted(RNIC_CNT_drop_bad_icrc), COUNT_OF(requests));
    CHECK_EQ(handed_on(), 0);
    CHECK_EQ(dev->host.letters.held, 0);
    close(listener);
    end();
}

static void what_is_damaged_and_for_nobody_is_not_answered(void) {
    begin();
    for (size_t k = 0; k < COUNT_OF(requests); k++)
        say_damaged(CM_CLASS, requests[k], THIS);
    say_damaged(CM_CLASS, CM_DREQ, NO_SLOT);
    CHECK_EQ(counted(RNIC_CNT_drop_bad_icrc), COUNT_OF(requests) + 1);
    CHECK_EQ(counted(RNIC_CNT_cm_refused), 0);
    CHECK_EQ(counted(RNIC_CNT_tx_packets), 0);
    end();
}

/* A source may make so many at once, which what only seems to come from there does not use up. */
static void damaged_requests_use_up_nobodys(void) {
    enum { MORE_THAN_ADMITTED = 2000 };
    uint8_t bytes[MAD_PACKET];
    begin();
    handed = true;
    for (int i = 0; i < MORE_THAN_ADMITTED; i++)
        say_damaged(CM_CLASS, CM_REQ, THIS);
    CHECK_EQ(counted(RNIC_CNT_drop_request), 0);
    compose(bytes, CM_CLASS, CM_REQ, GSI_QKEY, THIS);
    inlet_arrive(&peer, bytes, sizeof bytes);
    handed = false;
    CHECK_EQ(counted(RNIC_CNT_drop_request), 0);
    CHECK_EQ(taken, 1);
    end();
}

int main(void) {
    live_isolate();
    RUN(communication_management_goes_to_whom_it_names);
    RUN(other_classes_are_for_this_process);
    RUN(a_refusal_that_names_no_id_is_for_all_who_listen);
    RUN(a_listener_reads_it_after_requests);
    RUN(a_refusal_that_names_no_id_stays_when_it_was_handed_on);
    RUN(a_damaged_refusal_is_not_copied);
    RUN(a_flood_of_refusals_is_not_copied);
    RUN(what_names_nobody_is_for_a_context_with_a_queue_pair_1);
    RUN(nobody_is_looked_for_twice_in_a_moment);
    RUN(what_no_manager_sends_is_for_this_process);
    RUN(what_was_handed_on_stays);
    RUN(what_is_damaged_is_dropped_whatever_it_is);
    RUN(damaged_requests_are_not_handed_on);
    RUN(what_is_damaged_and_for_nobody_is_not_answered);
    RUN(damaged_requests_use_up_nobodys);
    return check_done();
}
