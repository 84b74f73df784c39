/* SPDX-License-Identifier: Apache-2.0
 *
 * mad/mads.c: messages to queue pair 1 by their management class.
 */
#include <string.h>

#include "base/bytes.h"
#include "check.h"
#include "inlet.h"
#include "live.h"

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

/* A message of that class, which would be a REP for the other process if it were communication management's. */
static void say(uint8_t class, uint32_t qkey) {
    uint8_t bytes[MAD_PACKET] = {[0] = 0x64, [2] = 0xFF, [3] = 0xFF, [7] = QPN_GSI};
    uint8_t *m = bytes + BTH_BYTES + DETH_BYTES;
    put_be32(bytes + BTH_BYTES, qkey);
    m[0] = 1;
    m[MAD_CLASS] = class;
    m[2] = CM_CLASS_VERSION;
    m[3] = 3;
    put_be16(m + MAD_ATTRIBUTE, CM_REP);
    put_be32(m + MAD_REMOTE_ID, others.number << (32 - SLOT_BITS));
    inlet_arrive(&peer, bytes, sizeof bytes);
}

static uint64_t handed_on(void) { return dev->nic.counters.value[RNIC_CNT_forwarded_out]; }

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

int main(void) {
    live_isolate();
    RUN(communication_management_goes_to_whom_it_names);
    RUN(other_classes_are_for_this_process);
    RUN(what_no_manager_sends_is_for_this_process);
    RUN(what_was_handed_on_stays);
    return check_done();
}
