/* SPDX-License-Identifier: Apache-2.0
 *
 * host/floods.c: how many requests for connections a source may make, on a clock of the test's.
 */
#include <unistd.h>

#include "bare.h"
#include "base/bytes.h"
#include "check.h"
#include "inlet.h"
#include "live.h"
#include "names/listen.h"

static uint64_t refused(void) { return dev->nic.counters.value[RNIC_CNT_drop_request]; }

static void ask(const struct sockaddr_in6 *from) {
    handed = true;
    inlet_mad(from, CM_REQ);
    handed = false;
}

static void a_source_may_make_1024_requests_at_once_and_250_a_second(void) {
    inlet_open();
    struct sockaddr_in6 eager = bare_address("::ffff:10.0.0.1", 20000), other = bare_address("::ffff:10.0.0.1", 20001);
    for (int i = 0; i < 2000; i++)
        ask(&eager);
    CHECK_EQ(refused(), 2000 - 1024);
    ask(&other);
    CHECK_EQ(refused(), 2000 - 1024);
    now += 1000 * MS;
    for (int i = 0; i < 300; i++)
        ask(&eager);
    CHECK_EQ(refused(), 2000 - 1024 + 50);
    inlet_close();
}

static void nor_are_more_answered_for_nobody(void) {
    inlet_open();
    struct sockaddr_in6 eager = bare_address("::ffff:10.0.0.1", 20000);
    for (int i = 0; i < 2000; i++)
        inlet_mad(&eager, CM_REQ);
    CHECK_EQ(refused(), 2000 - 1024);
    inlet_close();
}

static void many_sources_have_a_count_each(void) {
    inlet_open();
    for (int i = 0; i < 40; i++) { /* of a table of 64 */
        struct sockaddr_in6 one = bare_address("::ffff:10.0.0.1", (uint16_t)(20000 + i));
        ask(&one);
    }
    struct sockaddr_in6 eager = bare_address("::ffff:10.0.0.2", 20000);
    for (int i = 0; i < 1024; i++)
        ask(&eager);
    for (int i = 0; i < 40; i++) {
        struct sockaddr_in6 one = bare_address("::ffff:10.0.0.1", (uint16_t)(30000 + i));
        ask(&one);
    }
    CHECK_EQ(refused(), 0);
    ask(&eager);
    CHECK_EQ(refused(), 1);
    inlet_close();
}

static void rnics_port_of_a_peer_or_of_this_host_may_ask_on(void) {
    struct sockaddr_in6 hosts[] = {bare_address("::ffff:10.0.0.1", ROCE_UDP_PORT),
                                   bare_address("::ffff:127.0.0.1", ROCE_UDP_PORT),
                                   bare_address("::ffff:10.0.0.2", ROCE_UDP_PORT)};
    inlet_open();
    inlet_connect(&hosts[0]); /* which has said nothing yet */
    for (int h = 0; h < 2; h++) {
        for (int i = 0; i < 5000; i++, now += MS)
            ask(&hosts[h]);
        CHECK_EQ(refused(), 0);
    }
    for (int i = 0; i < 5000; i++)
        ask(&hosts[2]);
    CHECK_EQ(refused(), 5000 - 1024);
    inlet_close();
}

static void damaged_requests_use_up_no_requests(void) {
    inlet_open();
    struct sockaddr_in6 host = bare_address("::ffff:10.0.0.1", 20000);
    uint8_t bytes[MAD_PACKET] = {[0] = 0x64, [2] = 0xFF, [3] = 0xFF, [7] = QPN_GSI};
    uint8_t *m = bytes + BTH_BYTES + DETH_BYTES;
    m[0] = 1, m[1] = CM_CLASS, m[2] = CM_CLASS_VERSION, m[3] = 3;
    put_be16(m + MAD_ATTRIBUTE, CM_REQ);
    for (int i = 0; i < 2000; i++)
        inlet_arrive(&host, bytes, sizeof bytes); /* no Q_Key */
    put_be32(bytes + BTH_BYTES, GSI_QKEY);
    for (int i = 0; i < 2000; i++)
        inlet_datagram(&host, bytes, sizeof bytes); /* another ICRC */
    CHECK_EQ(refused(), 0);
    ask(&host);
    CHECK_EQ(refused(), 0);
    inlet_close();
}

/* They take little: whoever listens counts them. */
static void requests_for_other_processes_are_not_limited(void) {
    inlet_open();
    struct sockaddr_in6 eager = bare_address("::ffff:10.0.0.1", 20000);
    struct abstract_name name;
    listen_name(&name, 0, &port->addr);
    int listener = listen_open(&name);
    CHECK(listener >= 0);
    for (int i = 0; i < 2000; i++)
        inlet_mad(&eager, CM_REQ);
    CHECK_EQ(refused(), 0);
    CHECK(dev->host.letters.held > 1900);
    ask(&eager);
    CHECK_EQ(refused(), 0);
    outbox_free(&dev->host);
    close(listener);
    inlet_close();
}

int main(void) {
    live_isolate();
    RUN(a_source_may_make_1024_requests_at_once_and_250_a_second);
    RUN(nor_are_more_answered_for_nobody);
    RUN(many_sources_have_a_count_each);
    RUN(rnics_port_of_a_peer_or_of_this_host_may_ask_on);
    RUN(damaged_requests_use_up_no_requests);
    RUN(requests_for_other_processes_are_not_limited);
    return check_done();
}
