/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of ports and slots: processes that have one each, on loopback, and a test that tells them what to do.  CHECK ends
 * them all.
 */
#ifndef RNIC_TESTS_WORLD_H
#define RNIC_TESTS_WORLD_H

#include <signal.h>
#include <stdio.h>
#include <sys/types.h>

#include "link/udp/port.h"
#include "names/slot.h"

#define MS 1000000ull
#define MAX_PROCS 200
#define PACKET 64 /* bytes of a test packet; the number of its round stands at 16 */

uint64_t world_clock(void); /* ns */
void world_sleep(unsigned ms);

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            printf("not ok - %s:%d: %s\n", __func__, __LINE__, #cond);                                                 \
            fflush(stdout);                                                                                            \
            kill(0, SIGKILL);                                                                                          \
        }                                                                                                              \
    } while (0)

#define PATIENCE 60000 /* ms, for what other processes bring about on a busy machine */
#define WAIT_FOR(cond)                                                                                                 \
    do {                                                                                                               \
        for (int wait_i = 0; wait_i < PATIENCE && !(cond); wait_i++) {                                                    \
            world_sleep(1);                                                                                               \
        }                                                                                                              \
        CHECK(cond);                                                                                                   \
    } while (0)

enum order { RUN, LEAVE, SEND, ADD_SLOT };

/* Shared with the test; each field is written by the process, but for those that are marked. */
struct proc {
    volatile enum order order; /* the test's; the process sets it to RUN when it is done */
    volatile uint32_t target;  /* the test's: slot to SEND to */
    volatile bool ready;
    volatile int open_rc;
    volatile uint32_t slot, slot2;
    volatile bool bound;
    volatile uint16_t source_port, peer_port; /* of what it sends; of what came last; network order */
    volatile uint64_t direct, handed_on, got_handed,
        lost;                         /* packets: from the kernel; forwarded; by forwarding; neither */
    volatile uint64_t round;          /* the test's: the round of packets */
    volatile uint64_t seen, of_round; /* the last round of which it knows; packets of that from the kernel */
    volatile uint64_t last_wrong;     /* when one was handed on, ns */
    volatile uint64_t bound_at;       /* when the port was taken over, ns */
    volatile uint64_t remaps, probes; /* probes: messages of the steering */
    volatile uint32_t big, segment;   /* the largest datagram, and its GRO segment */
    char text[256];
    pid_t pid; /* the test's */
};

#define SOCKETS 7

struct world {
    struct proc *procs; /* MAX_PROCS, shared */
    struct sockaddr_in6 addr;
    int nprocs;
    int fds[SOCKETS]; /* the test's, to send packets from: the kernel's hash differs by source port */
    int next;
    uint64_t round; /* of packets: what is late of an earlier one does not count */
};

/* Root gets a namespace and keeps its users; others get one with a user namespace, where the system lets them. */
bool world_isolate(void);

void world_open(struct world *w); /* on 127.0.0.1 */
void world_open_at(struct world *w, const struct sockaddr_in6 *addr);
void world_close(struct world *w); /* and all that are left in it */
struct sockaddr_in6 world_loopback(void);

/* A process of that user; spawn waits until it has its port, or has none. */
struct proc *world_start(struct world *w, uid_t uid);
struct proc *world_spawn(struct world *w, uid_t uid);
void world_order(struct proc *me, enum order what);
void world_end(struct proc *me, int sig); /* 0: it leaves */

void world_packet(uint8_t data[PACKET], uint32_t slot, uint64_t round);
int world_send_to(int fd, const struct sockaddr_in6 *addr, const void *data, size_t length);

struct totals {
    uint64_t direct, handed_on, got_handed, lost, last_wrong;
};

struct totals world_totals(struct world *w);
/* Sends to each slot in turn for so long, a packet every 50 us; then prints when the last one went astray, and how many
 * of them went where. */
void world_flow(struct world *w, struct proc **to, int n, unsigned ms, const char *what, uint64_t since);
/* A busy machine may take longer than such a flow lasts: waits until packets have come right for 50 ms. */
void world_settle(struct world *w, struct proc **to, int n);
/* Sends count packets to each, no more at once than a socket buffer holds: all must come straight from the kernel. It may take
 * more than one try: on a busy machine whoever is slow to answer is taken for a stopped member until the next look. */
void world_check_direct(struct world *w, struct proc **to, int n, unsigned count);

#endif
