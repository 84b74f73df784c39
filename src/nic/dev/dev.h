/* SPDX-License-Identifier: Apache-2.0
 *
 * The device: an open context of the software RNIC.  It joins the rooms of its network, of its host and of management
 * datagrams, which do not know each other but downwards: host/ uses net/, and mad/ uses both.
 *
 *   kinds.c     what kinds of devices there are
 *   device.c    open and close
 *   listing.c   which devices there are
 *   calls.c     what the network tells, and who has to know
 *   check.c     what verbs check first
 *   demux.c     a datagram in: which process, which QP, is its ICRC right
 *   fork.c      what a forked child does
 *   planned.c   events that are raised on purpose
 *   ends.c      streams that have ended
 *
 * Everything is under the lock but posting (per-queue locks, then a doorbell) and polling (the CQ's lock).
 */
#ifndef RNIC_DEV_DEV_H
#define RNIC_DEV_DEV_H

#include "dev/ends.h"
#include "dev/kinds.h"
#include "mad/mads.h"
#include "mem/store.h"
#include "qp/xrc.h"

#define COMP_VECTORS 1 /* the engine thread: it alone raises completion events */
#define VENDOR_ID 0x524e49 /* "RNI": programs take 0 for a device that is not there */

/* An XRC domain, or this context's part of the domain of a file (verbs/xrc.c). */
struct xrc_inode {
    struct xrc_domain domain;
    struct xrc_inode *next; /* in the device's list; of files only */
    dev_t device;
    ino_t inode;
    int file; /* locked, which tells others of it; -1: it is of no file */
};

/* In the order in which they can go: none before what needs it. */
enum object_kind {
    KIND_FLOW,
    KIND_QP, /* as programs have it: of XRC_RECV each handle */
    KIND_COMP_CNTR,
    KIND_TABLE,
    KIND_WQ,
    KIND_SRQ,
    KIND_AH,
    KIND_MW,
    KIND_MR,
    KIND_DM,
    KIND_XRCD,
    KIND_CQ,
    KIND_COUNTERS,
    KIND_CHANNEL,
    KIND_PARENT, /* a parent domain, before its protection domain */
    KIND_TD,
    KIND_PD,
    KINDS
};

/* What programs have made: the verbs' (src/nic/verbs).  A forked child closes what has descriptors. */
struct objects {
    struct {
        struct listed *first;
        int count;
    } of[KINDS];
    int qps;                      /* that have a number */
    int datagram_qps;             /* while there are some, ports show what datagrams want to know */
    uint32_t wq_numbers;          /* given out to work queues and their tables */
    uint64_t dm_used;             /* bytes of device memory */
    struct xrc_inode *xrc_inodes; /* XRC domains of files, see xrc.c there */
};

struct dev {
    struct rnic_context pub;
    const struct device_kind *kind;
    struct rnic_device_info info; /* as it was listed when it was opened */
    struct nic nic;
    struct run run;               /* who makes progress; the lock */
    struct net net;               /* netdev, addresses and ports, what comes by them */
    struct host host;             /* whose it is, of the processes and queue pairs here */
    struct mads mads;             /* the same of messages to queue pair 1 */
    _Atomic bool dead;            /* this process is a fork of the one that opened the device */
    _Atomic bool fatal;           /* the netdev has gone: nothing is left to do but to close */
    struct planned *planned;      /* events to be raised, planned.c */
    struct ends ends;             /* of streams */
    struct rnic_device_attr attr; /* what verbs tell and hold to: its kind's, as far as the environment lets it */
    struct rnic_rate rate;
    struct objects objects;
    struct store store; /* memory of its own making, and what of it other processes may import */
    struct peer peer;   /* the other process' context that this one has imported, if it has */
    int adopted;        /* times that this process has imported it; the devices' lock (fork.c) */

    struct dev *next; /* in the process' list of open devices */
    bool forks;       /* the thread that forks has locked it for that; the devices' lock */
};

static inline struct dev *dev_of(struct rnic_context *ctx) { return (struct dev *)ctx; }

/* An object has come; it goes.  Under the lock. */
static inline void object_enter(struct dev *dev, enum object_kind kind, struct listed *object) {
    listed_enter(&dev->objects.of[kind].first, object);
    dev->objects.of[kind].count++;
}
static inline void object_leave(struct dev *dev, enum object_kind kind, struct listed *object) {
    listed_leave(object);
    dev->objects.of[kind].count--;
}

/* listing.c. find: by its name; find_on: the first one of a transport (enum rnic_transport) on a netdev; the caller keeps
 * forks out. */
int device_list(struct rnic_device_info *list, int max, struct rnic_err *err);
int device_find(const char *name, struct rnic_device_info *info, struct rnic_err *err);
int device_find_on(const char *netdev, int transport, struct rnic_device_info *info, struct rnic_err *err);

/* device.c. import: of the context that has this memory file, which may be this process'. */
int device_open(const char *name, const struct rnic_open_attr *attr, const struct rnic_provider *provider,
                struct dev **out, struct rnic_err *err);
int device_import(int cmd_fd, const struct rnic_provider *provider, struct dev **out, struct rnic_err *err);
int device_close(struct rnic_context *ctx);

static inline void dev_lock(struct dev *dev) { run_lock(&dev->run); }
static inline bool dev_trylock(struct dev *dev) { return run_trylock(&dev->run); }
static inline void dev_unlock(struct dev *dev) { run_unlock(&dev->run); }

/* calls.c. fail: the netdev has gone (IBA 11.6.3.3) */
extern const struct net_calls dev_calls;
void device_fail(struct dev *dev);

/* check.c. 0, or -EINVAL that names fork */
int dev_check_alive(const struct dev *dev, struct rnic_err *err);
int dev_check_working(const struct dev *dev, struct rnic_err *err); /* 0, or -EIO: also for a forked child */
/* Both: for all that makes, changes or asks; what gives back and what is left to be read goes on. */
int dev_check_usable(const struct dev *dev, struct rnic_err *err);
int dev_check_port(int port, struct rnic_err *err);
/* And if the device's kind has what this is of: `what` names it in the message. 0, -EOPNOTSUPP, or what usable() says */
int dev_check_has(const struct dev *dev, enum device_has has, const char *what, struct rnic_err *err);
/* An object is to be destroyed: -EBUSY while events of it are not acknowledged; leave: else those that wait are
 * forgotten.  busy_for: the same answer for other events, which has its words already */
int dev_check_events(struct dev *dev, const void *context, struct rnic_err *err);
int dev_leave_events(struct dev *dev, const void *context, struct rnic_err *err);
int dev_busy_for(uint32_t events, struct rnic_err *err);

/* planned.c. open: what the environment plans. raise: -EINVAL: of an object, which has to fail by itself */
extern const struct source planned_source;
int planned_open(struct dev *dev, struct rnic_err *err);
int planned_raise(struct dev *dev, int event_type, uint64_t after, struct rnic_err *err);
void planned_free(struct dev *dev);

/* demux.c. handed_on: by another process, which has received it */
void demux_datagram(struct dev *dev, struct port *port, const struct udp_datagram *d, bool handed_on, uint64_t now);

/* fork.c: the process' devices. arrange: the GID table of one that is opened as those of others of its kind on its netdev. adopt: the one that has this memory file, with one owner more, or NULL.
 * unregister: false: it has other owners, and stays; with a device that is busy, disown is asked first. */
void fork_register(struct dev *dev);
const struct dev *
fork_held(void); /* whose lock this thread has, for a handler of a signal; NULL: none, or it cannot tell */
/* lost.c: a fault in the memory of a region is told before the process ends */
void lost_watch(void);
/* From here on, and until let_in, this thread makes or closes descriptors that no lock of a registered device covers: no
 * fork comes in between, and the thread is not cancelled.  Not while such a lock is held, and not twice.  keep_out is what
 * let_in is told: whether it could be cancelled. */
int fork_keep_out(void);
void fork_let_in(int cancel_state);
void fork_arrange(const struct device_kind *kind, struct netdev *dev);
struct dev *fork_adopt(int cmd_fd);
bool fork_disown(struct dev *dev);
bool fork_unregister(struct dev *dev);

#endif
