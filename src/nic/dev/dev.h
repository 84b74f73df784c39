/* SPDX-License-Identifier: Apache-2.0
 *
 * The device: an open context of the software RNIC.  The only room that sees both links and engines, and that asks the
 * time.
 *
 *   device.c    open and close: ports, slot, engine thread
 *   verbs.c     the operations table
 *   qpn.c       queue pair numbers: slot and index
 *   demux.c     a datagram in: which process, which QP, is its ICRC right
 *   progress.c  one pass: receive, time, doorbells, send
 *   sched.c     which QP has something to do: ready list, held ACKs, timers
 *   engine.c    the thread that makes progress while no application does
 *   fork.c      what a forked child does
 *   netdev.c    network devices of the host
 *
 * Everything is under dev->lock but posting (per-queue locks, then a doorbell) and polling (the CQ's lock).
 */
#ifndef RNIC_DEV_DEV_H
#define RNIC_DEV_DEV_H

#include <pthread.h>
#include <stdatomic.h>

#include "dev/netdev.h"
#include "link/udp.h"
#include "qp/qp.h"

#define DEV_MAX_SLOTS 16
#define QPN_INDICES (1u << QPN_INDEX_BITS)

struct timer_heap {
    struct qp **at;
    uint32_t count, room;
};

struct dev {
    struct rnic_context pub;
    struct nic nic;
    struct netdev net;
    pthread_mutex_t lock;
    _Atomic int waiting; /* threads that wait for the lock for a verb; the engine makes way */
    _Atomic bool dead;   /* this process is a fork of the one that opened the device */
    bool no_gso;

    struct slot slots[DEV_MAX_SLOTS];
    struct qp **table[DEV_MAX_SLOTS]; /* by index within the slot */
    uint64_t *freed[DEV_MAX_SLOTS];   /* when the index was given back */
    int nslots;
    struct port ports[NETDEV_MAX_GIDS]; /* by GID index */
    struct port *port_list[NETDEV_MAX_GIDS];
    int port_users[NETDEV_MAX_GIDS]; /* QPs that send from it */

    struct fault fault;
    struct udp_tx tx;
    struct udp_rx rx;
    uint8_t *slot_buffer; /* 64 KiB for one forwarded datagram */

    struct qp *ready_first, *ready_last;
    struct qp *held;
    struct timer_heap timers;
    _Atomic(struct qp *) bells;

    pthread_t thread;
    bool thread_runs;
    int epoll_fd, wake_fd;
    struct watched { /* what the engine's epoll set has: the ports' sockets, then the slots' */
        int fd;
        uint32_t events;
    } watched[NETDEV_MAX_GIDS + DEV_MAX_SLOTS];
    _Atomic bool stop;
    _Atomic uint64_t last_poll; /* when an application last looked for progress itself */
    _Atomic uint64_t wakes_at;  /* the engine thread sleeps until then at most; 0: it is awake */
    _Atomic bool disarmed;      /* the engine thread leaves the busy sockets to the polling application */

    int pds, mrs, cqs, qps, channels; /* objects that exist */
    struct channel *channel_list;     /* for a forked child's closing */
    struct dev *next;                 /* in the process' list of open devices */
};

static inline struct dev *dev_of(struct rnic_context *ctx) { return (struct dev *)ctx; }

uint64_t dev_clock(void); /* CLOCK_MONOTONIC, ns */

/* device.c: the lock.  Unlocking serves the doorbells that rang meanwhile, so that no post is left lying. */
int device_close(struct rnic_context *ctx);
void dev_lock(struct dev *dev);
bool dev_trylock(struct dev *dev);
void dev_unlock(struct dev *dev);

/* qpn.c. add: gives the QP a number. 0, -ENOMEM, -EUSERS */
int qpn_init(struct dev *dev, struct rnic_err *err);
void qpn_free(struct dev *dev);
int qpn_add(struct dev *dev, struct qp *qp, struct rnic_err *err);
void qpn_remove(struct dev *dev, struct qp *qp);
struct qp *qpn_find(const struct dev *dev, uint32_t qpn);
bool qpn_is_ours(const struct dev *dev, uint32_t slot);

/* demux.c */
void demux_datagram(struct dev *dev, struct port *port, const struct udp_datagram *d, bool forwarded, uint64_t now);

/* sched.c */
void sched_ready(struct dev *dev, struct qp *qp);
void sched_input(struct dev *dev, struct qp *qp); /* a packet has changed the QP: it may have answers or timers */
void sched_ring(struct dev *dev, struct qp *qp);  /* any thread, without the lock */
void sched_bells(struct dev *dev);
void sched_timers(struct dev *dev, uint64_t now);
bool sched_run(struct dev *dev, uint64_t now); /* lets QPs send; true: some did */
uint64_t sched_deadline(const struct dev *dev);
void sched_settle(struct dev *dev, struct qp *qp); /* sends the ACK that waits: the peer's work is done */
void sched_forget(struct dev *dev, struct qp *qp);

/* progress.c. receive: also takes packets from the links. True: there was work, so there may be more. */
bool progress(struct dev *dev, uint64_t now, bool receive);
/* For an application's thread that polls, without the lock; does nothing when another has it. will_wait: it is going to
 * sleep until an event, so that progress is the engine thread's again. */
void progress_poll(struct dev *dev, bool will_wait);
void progress_post(struct dev *dev, struct qp *qp);
void progress_leave(struct dev *dev); /* the device closes: what came here for other processes goes to them */
/* Sends what doorbells and ready queue pairs ask for, and wakes the engine for the rest. */
void progress_finish(struct dev *dev, uint64_t now);

/* engine.c */
int engine_start(struct dev *dev, struct rnic_err *err);
void engine_stop(struct dev *dev);
void engine_wake(struct dev *dev);
void engine_wake_for(struct dev *dev, uint64_t deadline); /* when it would sleep past it */
void engine_take_over(struct dev *dev); /* the application is going to wait: sockets are the engine's again */

/* fork.c */
void fork_register(struct dev *dev);
void fork_unregister(struct dev *dev);

extern const struct rnic_ops soft_ops;

#endif
