/* SPDX-License-Identifier: Apache-2.0
 *
 * The UDP link: batches of RoCEv2 packets out (UDP_SEGMENT), runs of them in (UDP_GRO).
 *
 * The position of a packet in its batch is the IPv4 identification that the kernel will give it, and the ICRC covers
 * that; so a batch hands out the CRC state to start from packet by packet.  A batch has one way, packets of equal
 * size but a shorter last one, at most 64 of them, and fits one datagram of 64 KiB.
 *
 * A socket that is full takes no batch.  The batch then waits in here until the socket has room (EPOLLOUT), and so does
 * everything behind it: the sink has no room for packets meanwhile.
 */
#ifndef RNIC_LINK_UDP_H
#define RNIC_LINK_UDP_H

#include <sys/socket.h>

#include "link/fault.h"
#include "link/udp/way.h"

#define UDP_BATCH_PACKETS 64
#define UDP_MAX_PAYLOAD 65507
#define UDP_RX_DATAGRAMS 8

struct udp_tx {
    struct link link; /* first; full: the batch is for a socket that is full */
    struct fault *fault;
    struct rnic_counters *counters;
    const uint64_t *now;  /* of the pass */
    uint32_t max_packets; /* of a batch; 1: no segmentation offload */

    struct udp_ports ports; /* set by the device, before it resolves addresses */

    struct way *way;   /* of the batch being filled */
    uint32_t dst_slot; /* of the batch: the way of a datagram changes it between two packets */
    uint32_t segment;  /* size of its packets but the last */
    uint32_t count, length, reserved;
    bool closed; /* a shorter packet is in: it was the last; or the batch waits */

    uint64_t retry_at; /* when a thread that polls tries it again */
    struct way kept;   /* the batch's, whose owner may go meanwhile */
    uint8_t bytes[UDP_MAX_PAYLOAD + 1];
};

void udp_tx_init(struct udp_tx *u, struct fault *fault, struct rnic_counters *counters, const uint64_t *now);
void udp_tx_flush(struct udp_tx *u);
void udp_tx_release(struct udp_tx *u, uint64_t now); /* what the injector holds and is due */
/* Tries the batch that waits again: true: it has gone, and there is room. */
bool udp_tx_resume(struct udp_tx *u, uint64_t now);
/* The port closes: what waits for it is lost.  True: something did. */
bool udp_tx_forget(struct udp_tx *u, const struct port *port);
bool udp_leads_by(const struct way *way, const void *port); /* for fault_forget() */
/* The device closes: what is in here goes, or is lost, though its sends may be complete.  So who closes waits before that:
 * udp_tx_full: the socket of the batch that waits, -1: none does; udp_wait_for_room: up to a second. */
int udp_tx_full(const struct udp_tx *u);
void udp_wait_for_room(int fd);
void udp_tx_finish(struct udp_tx *u);
struct udp_datagram {
    uint8_t *bytes;
    uint32_t length, segment; /* segment: size of the packets in it, the last may be shorter */
    struct sockaddr_in6 src;
    uint8_t hops, tclass; /* of the IP header, where the port shows them; 0: not known */
    uint32_t flow_label;  /* the same, of IPv6 */
};

union udp_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

struct udp_rx {
    uint8_t *buffer; /* UDP_RX_DATAGRAMS of 64 KiB */
    int burst;       /* datagrams to ask for: a second one that is not there costs a look for nothing */
    bool all;        /* the last look has found fewer than that */
    struct udp_datagram datagram[UDP_RX_DATAGRAMS];

    /* what the kernel reads and writes: set up once, but for the lengths */
    struct mmsghdr msgs[UDP_RX_DATAGRAMS];
    struct iovec iov[UDP_RX_DATAGRAMS];
    union udp_address from[UDP_RX_DATAGRAMS];
    uint64_t control[UDP_RX_DATAGRAMS][12]; /* the size of GRO packets, hops, traffic class, flow label */
};

int udp_rx_init(struct udp_rx *r);
void udp_rx_free(struct udp_rx *r);
/* Takes what has arrived: the number of datagrams, 0 when none has. */
int udp_receive(struct udp_rx *r, const struct port *port);

#endif
