/* SPDX-License-Identifier: Apache-2.0
 *
 * Packets that processes of this host hand on to each other, by the sockets of their contexts' slots; and who watches this
 * context's lifelines.
 */
#include <errno.h>
#include <sys/epoll.h>

#include "host/host.h"

#define FORWARDED_AT_ONCE 16

/* ---------------------------------------------------------------- out */

void forward_count(struct host *host, int rc, uint32_t packets) {
    int counter = rc == 0 ? RNIC_CNT_forwarded_out : rc == -EAGAIN ? RNIC_CNT_drop_slot_full : RNIC_CNT_drop_no_slot;
    host->nic->counters.value[counter] += packets;
    if (rc == -ECONNREFUSED)
        host->nic->useless += packets;
}

static int hand_to_slot(struct host *host, struct port *port, uint32_t slot, const struct slot_packet *p,
                        const uint8_t *bytes, uint64_t now) {
    if (strays_no_slot(host, slot, now))
        return -ECONNREFUSED;
    int rc = port_forward(port, slot, p, bytes, now);
    if (rc == -ECONNREFUSED)
        strays_missed_slot(host, slot, now);
    else
        floods_handed_on(host, slot, now);
    return rc;
}

void forward_to(struct host *host, struct port *port, uint32_t slot, const struct slot_packet *p, const uint8_t *bytes,
                uint64_t now) {
    uint32_t packets = (p->length + p->segment - 1) / p->segment;
    forward_count(host, hand_to_slot(host, port, slot, p, bytes, now), packets);
}

/* ---------------------------------------------------------------- in */

static int take_forwarded(struct host *host, const struct slot *slot, uint64_t now) {
    struct slot_packet p;
    int rc = port_slot_input(slot, host->net->port_list, host->net->netdev.ngids, host->buffer, HOST_BUFFER, &p, now);
    if (rc == 1 && p.length) {
        struct udp_datagram d = {.bytes = host->buffer,
                                 .length = p.length,
                                 .segment = p.segment ? p.segment : p.length,
                                 .src = p.src,
                                 .hops = p.hops,
                                 .tclass = p.tclass,
                                 .flow_label = p.flow_label};
        struct port *port = ports_find(host->net, &p.dst.sin6_addr);
        host->nic->counters.value[RNIC_CNT_forwarded_in] += (d.length + d.segment - 1) / d.segment;
        if (port)
            net_arrived(host->net, port, &d, true, now);
    }
    return rc;
}

/* Packets and control messages: all that fits such a socket, as who sends more waits for room. */
bool forward_receive(struct host *host, const struct slot *slot, uint64_t now) {
    int n = 0;
    while (n < FORWARDED_AT_ONCE && take_forwarded(host, slot, now) >= 0)
        n++;
    host->run->more |= n == FORWARDED_AT_ONCE;
    return n > 0;
}

/* What cannot be taken in would wake the engine for ever. */
void forward_watchers(struct host *host, struct slot *of, uint64_t now) {
    if (!lifeline_accept(&of->life, now))
        engine_unwatch(host->run, of->life.fd);
}

/* A slot's socket carries bulk data only while another user's process has the port. */
static bool carries_data(const struct host *host) {
    bool forwarded = false;
    for (int i = 0; i < host->net->netdev.ngids; i++)
        forwarded |= host->net->ports[i].rx_fd < 0 && host->net->ports[i].steering;
    return forwarded;
}

static bool receive(void *owner, uint64_t now, bool all) {
    struct host *host = owner;
    bool any = false, look = all || carries_data(host);
    for (int i = 0; look && i < host->nslots; i++)
        any |= forward_receive(host, &host->slots[i], now);
    return any;
}

static bool receive_rare(void *owner, uint64_t now) {
    struct host *host = owner;
    for (int i = 0; i < host->nslots; i++)
        forward_watchers(host, &host->slots[i], now);
    return false;
}

static void arm(void *owner, bool armed) {
    struct host *host = owner;
    (void)armed;
    for (int i = 0; i < host->nslots; i++) {
        engine_watch_for(host->run, &host->watched_slots[i], host->slots[i].fd, EPOLLIN, false);
        engine_watch_for(host->run, &host->watched_lives[i], host->slots[i].life.fd, EPOLLIN, false);
    }
}

const struct source forward_source = {.name = "forward", .receive = receive, .receive_rare = receive_rare, .arm = arm};
