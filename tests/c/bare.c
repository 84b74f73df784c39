/* SPDX-License-Identifier: Apache-2.0 */
#include "bare.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

struct sockaddr_in6 bare_address(const char *text, uint16_t port) {
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    CHECK_EQ(inet_pton(AF_INET6, text, &a.sin6_addr), 1);
    return a;
}

struct dev *bare_open(void) {
    struct rnic_err err;
    struct dev *dev = aligned_alloc(64, (sizeof *dev + 63) & ~(size_t)63);
    CHECK(dev != NULL);
    memset(dev, 0, sizeof *dev);
    static const struct run_source none = {NULL, NULL};
    run_init(&dev->run, &dev->nic, &none);
    dev->kind = device_kind_of(RNIC_TRANSPORT_IB);
    net_init(&dev->net, dev->kind->net, &dev->nic, &dev->run, &dev_calls, dev);
    host_init(&dev->host, &dev->net);
    mads_init(&dev->mads, &dev->host);
    udp_tx_init(&dev->net.tx, &dev->net.fault, &dev->nic.counters, &dev->run.now);
    dev->net.tx.ports = (struct udp_ports){dev->net.ports, dev->net.port_users, 1, 0, "bare"};
    dev->nic.wire = &dev->net.tx.link;
    CHECK_EQ(slot_claim(&dev->host.slots[0], &err), 0);
    dev->host.nslots = 1;
    dev->host.table[0] = calloc(QPN_INDICES, sizeof *dev->host.table[0]);
    dev->host.freed[0] = calloc(QPN_INDICES, sizeof *dev->host.freed[0]);
    CHECK(dev->host.table[0] && dev->host.freed[0]);
    dev->nic.ib.pkeys[0] = 0xFFFF;
    dev->net.ports[0].addr = bare_address("::ffff:127.0.0.1", 0);
    dev->net.netdev.ngids = 1;
    return dev;
}

void bare_close(struct dev *dev) {
    slot_release(&dev->host.slots[0]);
    free(dev->host.table[0]);
    free(dev->host.freed[0]);
    run_free(&dev->run);
    free(dev);
}
