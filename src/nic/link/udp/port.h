/* SPDX-License-Identifier: Apache-2.0
 *
 * A port: UDP 4791 on one local address, shared with every other process of the host.
 *
 * Processes of one user share the address by SO_REUSEPORT; a classic BPF program picks the socket by the slot bits of
 * the destination QPN.  One of them, the steward, learns the order of the sockets in the kernel's group (steering.h).
 * Whatever still reaches the wrong process is forwarded over the right one's slot socket, and the steward is told.
 * Another user's process cannot bind: it sends from an ephemeral port and receives by forwarding, and takes
 * the port when its owner goes.
 *
 * While the order is learnt, port_deadline() is 1 ms away: wait with ppoll or epoll_pwait2, not in whole ms.
 *
 * All functions: the caller holds the device's lock (or has one thread).  None blocks, but port_open()
 * when the address is taken: for up to 1.6 s, or for 25 ms where err is NULL.
 */
#ifndef RNIC_LINK_PORT_H
#define RNIC_LINK_PORT_H

#include <netinet/in.h>
#include <stdbool.h>

#include "link/udp/sieve.h"
#include "names/abstract.h"
#include "names/slot.h"

#define ROCE_UDP_PORT 4791
#define PORT_PROBE_OPCODE 0xFF
#define PORT_DATAGRAM_COST 512u /* bytes that a datagram takes in its socket beside its own, at least */

struct port_user {
    uid_t uid;
    bool known;
    bool is_one; /* names/user.h */
};

struct port {
    struct sockaddr_in6 addr; /* local address, IPv4 mapped; sin6_port, network order: source of what we send */
    int rx_fd;                /* bound to 4791; -1 while another user's process owns the address */
    int tx_fd;                /* equals rx_fd, or an ephemeral socket */
    uint32_t rcvbuf, sndbuf;  /* as granted (getsockopt); rcvbuf while rx_fd is -1: what forwarding holds at least */
    uint64_t handed;          /* bytes that tx_fd has taken, PORT_DATAGRAM_COST for each datagram included */
    bool gso, gro;            /* the socket takes UDP_SEGMENT / UDP_GRO */
    bool headers;             /* it shows hops and traffic class of what comes in */
    bool marks;               /* the latter in any case, for its marks of congestion */
    uint16_t asked;           /* enum slotmsg_shown: so do those need it to whom this process forwards */
    uint8_t tclass;           /* of what goes out and does not say otherwise */
    struct sieve sieve;       /* what rx_fd does not hear */
    bool unsettled;           /* it was not empty when batches were to end: port_settle() when it is */
    const struct slot *slot;  /* first slot of the context; where answers to probes go */
    /* the steering and ownership machinery's own fields follow */
    struct port_steering *steering;
    struct port_user user; /* this process' */
    uint64_t unread;       /* bytes that may lie in rx_fd since that was noted; 0: none of these does any more */
    uint64_t remaps;       /* times that our place was learnt, for the counter */
};

/* Opens the address. rcvbuf 0: as much as is granted. -EADDRINUSE names who holds the port when it is not rnic.
 * The slot must stay claimed, and where it is, until port_close(). */
int port_open(struct port *p, const struct sockaddr_in6 *addr, int ifindex, const struct slot *slot, uint32_t rcvbuf,
              uint64_t now, struct rnic_err *err);
/* Just before it closes: leaves the group the order that it will have then.  What lies in the socket, or still comes, may
 * be for those who stay: forward it. */
void port_leave(struct port *p);
void port_close(struct port *p);

/* In a forked child: closes the descriptors and nothing more; the port stays the parent's. */
void port_abandon(struct port *p);

/* The context has claimed a further slot: packets for it are ours, too. At most 16; -ENOSPC beyond. */
int port_add_slot(struct port *p, uint32_t slot);

/* Does the kernel send the IP header that the ICRC is computed for: DF, identification 0 (and of UDP_SEGMENT batches,
 * too)?  0, also for IPv6, which has no identification; -EPROTO: no, and then peers drop what is sent; -ENODATA: it
 * could not be seen.  The segments of a batch are cut later: their count from 0 is not seen, only its start. */
int port_check_ids(const struct port *p, struct rnic_err *err);

/* A datagram with opcode PORT_PROBE_OPCODE came in on this port. */
void port_probe_input(struct port *p, const uint8_t *data, uint32_t length, const struct sockaddr_in6 *src,
                      uint64_t now);

/* rx_fd, which there is, does not hear what the rule covers until its time is up. */
void port_mute(struct port *p, const struct sieve_rule *rule);
/* But for what goes to a newcomer (sieve_spare). */
void port_spare(struct port *p, const struct in6_addr *from, uint32_t place);
/* Nor do packets come together any more where that would take some for muted that are not (sieve_part). */
void port_part(struct port *p, const struct in6_addr *from, uint16_t source_port, uint32_t qpn, bool mixed);
/* All that lay in rx_fd has been read. */
void port_settle(struct port *p);

/* Hands a datagram that is for another slot to that slot's socket; tells the steward when its destination QPN is
 * of that slot, too: the kernel should have given it to that process. 0, or -errno: nobody has the slot (-ECONNREFUSED) or
 * its queue is full (-EAGAIN; net.unix.max_dgram_qlen, as a rule 10 datagrams), the latter a loss like any other. */
int port_forward(struct port *p, uint32_t slot, const struct slot_packet *packet, const uint8_t *data, uint64_t now);
/* The same to any socket that is read with port_slot_input().  dst is the port's address, whatever the packet says. */
int port_hand_on(struct port *p, const struct abstract_name *to, const struct slot_packet *packet, const uint8_t *data);

/* Whether the port tells hops and traffic class of what comes in: datagrams want to know, the others shall not pay. */
void port_show_headers(struct port *p, bool show);
/* Packets go out as ones that a congested router may mark, and the port tells of those that come in so. */
void port_take_marks(struct port *p);

/* Reads one message from the slot socket. 1: a forwarded datagram is in data and out; 0: a control message, dealt
 * with, or one that is malformed, for no port of ours, or from a user who does not own that port; -EAGAIN: nothing
 * there. ports: all open ports of the context. size: 65536 holds every datagram; a longer one is dropped. */
int port_slot_input(const struct slot *s, struct port **ports, int nports, uint8_t *data, uint32_t size,
                    struct slot_packet *out, uint64_t now);

/* Of the bytes handed to the socket, those that have left this host: not in the socket's queue, the queueing discipline's
 * or the network device's. */
uint64_t port_left(const struct port *p);

/* Timers: what is due (probing, attaching, trying to take the port over).  True when rx_fd or tx_fd changed. */
bool port_timer(struct port *p, uint64_t now);
uint64_t port_deadline(const struct port *p); /* UINT64_MAX: none */

/* Do packets for our slots come here?  Once the order of the group has been learnt with us in it. */
bool port_settled(const struct port *p);

#endif
