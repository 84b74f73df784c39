/* SPDX-License-Identifier: Apache-2.0
 *
 * Packets that other processes of this host hand on, by the sockets of the context's slots, and who watches its lifelines.
 */
#include <sys/epoll.h>

#include "dev/dev.h"

#define FORWARDED_AT_ONCE 16

static struct port *port_at(struct dev *dev, const struct sockaddr_in6 *addr) {
    for (int i = 0; i < dev->net.ngids; i++) {
        if (IN6_ARE_ADDR_EQUAL(&dev->ports[i].addr.sin6_addr, &addr->sin6_addr))
            return &dev->ports[i];
    }
    return NULL;
}

static int take_forwarded(struct dev *dev, const struct slot *slot, uint64_t now) {
    struct slot_packet p;
    int rc = port_slot_input(slot, dev->port_list, dev->net.ngids, dev->slot_buffer, 65536, &p, now);
    if (rc == 1 && p.length) {
        struct udp_datagram d = {.bytes = dev->slot_buffer,
                                 .length = p.length,
                                 .segment = p.segment ? p.segment : p.length,
                                 .src = p.src,
                                 .hops = p.hops,
                                 .tclass = p.tclass,
                                 .flow_label = p.flow_label};
        struct port *port = port_at(dev, &p.dst);
        dev->nic.counters.value[RNIC_CNT_forwarded_in] += (d.length + d.segment - 1) / d.segment;
        if (port)
            demux_datagram(dev, port, &d, true, now);
    }
    return rc;
}

/* Packets and control messages: all that fits such a socket, as who sends more waits for room. */
bool forward_receive(struct dev *dev, const struct slot *slot, uint64_t now) {
    int n = 0;
    while (n < FORWARDED_AT_ONCE && take_forwarded(dev, slot, now) >= 0)
        n++;
    return n > 0;
}

/* What cannot be taken in would wake the engine for ever. */
void forward_watchers(struct dev *dev, struct slot *of) {
    if (!lifeline_accept(&of->life))
        engine_unwatch(&dev->run, of->life.fd);
}

/* A slot's socket carries bulk data only while another user's process has the port. */
static bool carries_data(const struct dev *dev) {
    bool forwarded = false;
    for (int i = 0; i < dev->net.ngids; i++)
        forwarded |= dev->ports[i].rx_fd < 0 && dev->ports[i].steering;
    return forwarded;
}

static bool receive(void *owner, uint64_t now, bool all) {
    struct dev *dev = owner;
    bool any = false, look = all || carries_data(dev);
    for (int i = 0; look && i < dev->nslots; i++)
        any |= forward_receive(dev, &dev->slots[i], now);
    return any;
}

static bool receive_rare(void *owner, uint64_t now) {
    struct dev *dev = owner;
    (void)now;
    for (int i = 0; i < dev->nslots; i++)
        forward_watchers(dev, &dev->slots[i]);
    return false;
}

static void timer(void *owner, uint64_t now) { outbox_timer(owner, now); }

static uint64_t deadline(const void *owner) { return outbox_deadline(owner); }

static void arm(void *owner, bool armed) {
    struct dev *dev = owner;
    (void)armed;
    for (int i = 0; i < dev->nslots; i++) {
        engine_watch_for(&dev->run, &dev->watched_slots[i], dev->slots[i].fd, EPOLLIN);
        engine_watch_for(&dev->run, &dev->watched_lives[i], dev->slots[i].life.fd, EPOLLIN);
    }
}

const struct source forward_source = {.name = "forward",
                                      .receive = receive,
                                      .receive_rare = receive_rare,
                                      .deadline = deadline,
                                      .timer = timer,
                                      .arm = arm};
