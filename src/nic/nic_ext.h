/* SPDX-License-Identifier: Apache-2.0
 *
 * nic_ext.h: the part of nic.h, which includes it, that is about extensions: what a provider may have beside the verbs of
 * libibverbs.  Each is a small table of functions with a name.  A caller asks for it by rnic_extension(), once a context,
 * and gets NULL from a provider that lacks it.
 *
 * A provider with an extension has all of its functions.  A table never changes: what needs another one gets another
 * name, "rnic.cm/2" for one, and a provider may have both.
 */
#ifndef RNIC_NIC_EXT_H
#define RNIC_NIC_EXT_H

#include <stdbool.h>
#include <stdint.h>

#include "nic_enums.h"

struct rnic_err;
struct rnic_context;
struct rnic_pd;
struct rnic_mr;
struct rnic_mw;
struct rnic_mw_bind_info;
struct rnic_ah;
struct rnic_ah_attr;
struct rnic_cq;
struct rnic_comp_channel;
struct rnic_qp;
struct rnic_wq;
struct rnic_send_wr;
struct rnic_wc;
struct rnic_cause;
struct rnic_raw_attr;
union rnic_gid;

/* ---------------------------------------------------------------- connections */

/* For a communication manager that sends and receives its own messages by queue pair 1 (RDMA-CM, rnic.connect).  A device
 * whose messages the kernel exchanges does not have it. */
#define RNIC_EXT_CM "rnic.cm/1"

struct rnic_listener { /* who gets the CM requests for a service */
    struct rnic_context *ctx;
};

enum rnic_listen_flags {
    RNIC_LISTEN_REUSE = 1
        << 0, /* an exact address and the wildcard do not exclude each other; the exact one goes first */
    RNIC_LISTEN_AFONLY = 1 << 1, /* the wildcard :: is for IPv6 alone */
    RNIC_LISTEN_HOLD = 1 << 2,   /* nobody listens: the service is taken, and requests for it are refused */
};

struct rnic_ext_cm {
    /* From now on the CM's REQ and SIDR_REQ for service_id (host byte order) that are sent to addr come to this context's
     * GSI queue pair. addr: a GID of the device; ::ffff:0.0.0.0: every IPv4 one, ::: every one. -EADDRINUSE: another
     * listener of this host is in the way. */
    int (*listen)(struct rnic_context *ctx, uint64_t service_id, const union rnic_gid *addr,
                  uint32_t flags /* enum rnic_listen_flags */, struct rnic_listener **listener, struct rnic_err *err);
    int (*unlisten)(struct rnic_listener *listener, struct rnic_err *err);
    /* The number of one of the context's slots: communication ids that it hands out have it in their upper 10 bits, so
     * that answers find their way on a host with many processes. */
    int (*slot)(struct rnic_context *ctx, uint32_t *slot, struct rnic_err *err);
    /* A descriptor, the caller's to close, that hangs up (POLLHUP) when the process of this host that has a slot dies, or
     * gives it up: its context has closed. Not when it is stopped, or when another takes the slot. -ECONNREFUSED: nobody
     * has it; other errors: it cannot be known. */
    int (*watch)(struct rnic_context *ctx, uint32_t slot, int *fd, struct rnic_err *err);
    /* The same for whoever would get a request for a service that is sent to an address of this device. */
    int (*watch_service)(struct rnic_context *ctx, uint64_t service_id, const union rnic_gid *gid, int *fd,
                         struct rnic_err *err);
};

/* ---------------------------------------------------------------- short cuts */

/* For callers that hold up others meanwhile, as a binding that keeps an interpreter's lock. */
#define RNIC_EXT_NOW "rnic.now/1"

struct rnic_ext_now {
    /* One work request, where that takes hardly any time and waits for nothing; false: ops->post_send() is to be called. */
    bool (*post_send)(struct rnic_qp *qp, const struct rnic_send_wr *wr);
    /* Completions, as ops->poll_cq(); -EAGAIN: that one is to be called. */
    int (*poll_cq)(struct rnic_cq *cq, int n, struct rnic_wc *wc);
};

/* ---------------------------------------------------------------- who waits, drives */

#define RNIC_EXT_DRIVE "rnic.drive/1"

/* The device's work is done meanwhile: no other thread needs to wake.  until: ns of CLOCK_MONOTONIC; goes_on: then the
 * caller looks for signals only, and waits again.  0: look whether what the
 * caller waits for is there, or the time has come; 1: the channel may have an event; -EINTR: a signal has come; -EAGAIN: the
 * device has failed, and the caller waits for the descriptor itself. */
struct rnic_ext_drive {
    /* Until one of the queues has a completion, or `fd`, their channel's, is readable.  They are not armed behind it. */
    int (*wait_cq)(struct rnic_cq *const *cq, int n, int fd, uint64_t until, bool goes_on);
    int (*wait_channel)(struct rnic_comp_channel *ch, uint64_t until, bool goes_on); /* until it has an event */
    /* For a loop that sleeps on other descriptors, too.  descriptor: is readable when something has come for the device.  look:
     * takes that. True: there was something.  settle: before the loop sleeps again. False: look first.  give_way: others have
     * the processor; the caller polls again before it sleeps. */
    int (*descriptor)(struct rnic_context *ctx);
    bool (*look)(struct rnic_context *ctx);
    bool (*settle)(struct rnic_context *ctx);
    void (*give_way)(struct rnic_context *ctx);
    bool (*has)(struct rnic_cq *cq); /* a completion */
};

/* ---------------------------------------------------------------- small requests together */

#define RNIC_EXT_BEHIND "rnic.behind/1"

struct rnic_ext_behind {
    /* Two WRITEs, without a completion: of one piece of memory, and INLINE of a word of 8 bytes. While earlier requests of
     * the queue pair are under way, these wait for the next answer to those, which comes whatever the program does; or they
     * leave with a request that is posted otherwise. Such WRITEs that follow meanwhile are joined to them, if the piece goes
     * on where the last one has ended, here and there, and the word has the same place: then the peer gets one longer
     * piece, and the last of the words. false: nothing was posted, and ops->post_send() is to be called. */
    bool (*post_send)(struct rnic_qp *qp, const struct rnic_send_wr *wr);
};

/* ---------------------------------------------------------------- statistics */

/* For people who debug and measure: Context.counters(), QP.statistics(). */
#define RNIC_EXT_STATS "rnic.stats/1"

struct rnic_counters {
    uint64_t value[RNIC_CNT_MAX]; /* index: enum rnic_counter */
};

struct rnic_qp_stats { /* where a QP stands */
    struct rnic_counters counters;
    uint32_t snd_psn, snd_una, rcv_psn, msn; /* next PSN to send, oldest unacknowledged, expected, message number */
    uint32_t sq_depth, rq_depth;             /* work requests not yet completed */
    uint32_t window;                         /* bytes that may be in flight now */
    uint32_t in_flight;                      /* bytes that are */
    uint8_t retries_left, rnr_retries_left;
    uint64_t srtt; /* smoothed round trip time, ns; 0: not known yet */
    uint64_t rate; /* bytes a second that congestion control allows; 0: it does not limit */
};

struct rnic_ext_stats {
    int (*query_counters)(struct rnic_context *ctx, struct rnic_counters *out, struct rnic_err *err);
    int (*query_qp)(struct rnic_qp *qp, struct rnic_qp_stats *out, struct rnic_err *err);
};

/* ---------------------------------------------------------------- causes */

/* For people who look for a mistake: WC.explain(), `rnic run --explain`.  A device finds out when something fails, not before. */
#define RNIC_EXT_CAUSES "rnic.causes/1"

struct rnic_cause {
    char found[256]; /* what exactly was wrong, "": no more is known than status and vendor_err tell */
    char cure[192];  /* what to do about it, or "" */
};

enum rnic_notice_kind {
    RNIC_NOTICE_COMPLETION, /* a work request has failed, and was not flushed; what: enum rnic_wc_status */
    RNIC_NOTICE_REFUSED,    /* a peer's request; what: enum rnic_vendor_err */
    RNIC_NOTICE_DROPPED,    /* a peer's packet; what: enum rnic_counter.  qp_num: whom it named */
    RNIC_NOTICE_EVENT,      /* asynchronous; what: enum rnic_event_type.  qp_num: 0 unless it is a queue pair's */
};

struct rnic_notice {
    enum rnic_notice_kind kind;
    int what;
    uint32_t qp_num;
    const char *text; /* one line; NULL: of an event */
};

typedef void rnic_told(void *arg, const struct rnic_notice *notice);

struct rnic_ext_causes {
    /* Why a completion has failed that is the last of its queue pair that did, and was not flushed; false: nothing is known. */
    bool (*of)(struct rnic_context *ctx, const struct rnic_wc *wc, struct rnic_cause *cause);
    /* From now on calls back for all of them, under locks of the device: told() may call nothing of it. NULL: no more */
    void (*listen)(struct rnic_context *ctx, rnic_told *told, void *arg);
};

/* ---------------------------------------------------------------- faults on purpose */

/* For tests of programs: Context.set_faults(). */
#define RNIC_EXT_FAULTS "rnic.faults/1"

/* The fault injector: what the link does to packets that it sends, or to streams (all probabilities in parts per million).
 * Which of them a device has is its kind's: others are refused. */
#define RNIC_FAULT_RULES 8
struct rnic_fault {
    uint64_t seed;
    uint32_t loss, duplicate, reorder, delay, flip; /* of a stream delay is of a write, flip of a segment */
    uint32_t reorder_gap; /* a reordered packet leaves after this many later ones (at least 1) or after delay_ns */
    uint64_t delay_ns;    /* how long a delayed packet waits */
    uint32_t mark;        /* as a congested router does, where the packet may be marked (ECN) */
    struct {
        int opcode;     /* of the BTH (enum in wire/opcode.h), -1: any */
        uint32_t nth;   /* lose the nth such packet from now on, counted from 1; 0: rule not used */
        uint32_t count; /* and this many after it, 1: only that one */
    } lose[RNIC_FAULT_RULES];
    /* Of streams: */
    uint32_t reset, stall;             /* of a write: the connection is reset, or stands still from then on */
    uint64_t reset_after, stall_after; /* the same behind so many bytes that this end writes; 0: not */
    uint32_t chunk;                    /* a read or write has 1 to so many bytes, by chance; 0: as many as there are */
    uint32_t flip_header;              /* of a segment: a bit of its header is flipped, and its CRC is right */
};

struct rnic_ext_faults {
    /* NULL: off. -EOPNOTSUPP: the device has not all of these */
    int (*set)(struct rnic_context *ctx, const struct rnic_fault *fault, struct rnic_err *err);
};

/* ---------------------------------------------------------------- events on purpose */

/* For the same tests: Context.raise_event(). */
#define RNIC_EXT_EVENTS "rnic.events/1"

struct rnic_ext_events {
    /* Raises an event of the port or of the device, so many ns later, and does what it tells of: after PORT_ERR the port is
     * DOWN, and nothing comes or goes, up to PORT_ACTIVE; after DEVICE_FATAL there is no device any more. -EINVAL: it is an
     * event of a queue pair or of another object. */
    int (*raise)(struct rnic_context *ctx, int event_type /* enum rnic_event_type */, uint64_t after,
                 struct rnic_err *err);
};

/* ---------------------------------------------------------------- partitions */

/* What the subnet manager of InfiniBand does, for devices that have none: Context.set_pkeys(). */
#define RNIC_EXT_PKEYS "rnic.pkeys/1"

struct rnic_ext_pkeys {
    /* Fills the port's P_Key table; what is not given is empty, 0. */
    int (*set)(struct rnic_context *ctx, int port, const uint16_t *pkeys, int n, struct rnic_err *err);
};

/* ---------------------------------------------------------------- memory */

/* Memory of the device's own making, which other processes of this host may map: PD.alloc_mr(), rnic.connect. */
#define RNIC_EXT_MEMORY "rnic.memory/1"

struct rnic_ext_memory {
    int (*alloc_mr)(struct rnic_pd *pd, uint64_t length, uint32_t access, struct rnic_mr **mr, struct rnic_err *err);
};

/* ---------------------------------------------------------------- streams */

/* For a communication manager of iWARP, whose queue pairs go by TCP connections: it makes the connection, exchanges the
 * frames of MPA's start-up on it (RFC 5044, 7; RFC 6581), and hands it to the queue pair, which goes to RTS then. */
#define RNIC_EXT_STREAM "rnic.stream/1"

struct rnic_stream_attr {
    int fd;               /* a connected socket; from attach() on, if that returns 0, the queue pair's */
    int line;             /* -1, or a socket that is the queue pair's then, too: the stream's event is sent there, and
                           * not told by next_event().  It is closed behind that, and when the queue pair goes */
    const uint8_t *bytes; /* nbytes that were read of it and come behind the last frame of the start-up */
    uint32_t nbytes;
    uint8_t rtr;      /* enum rnic_stream_rtr: the initiator sends it, the responder waits for it */
    bool initiator;   /* that has connected: the other end sends nothing before the first FPDU has come */
    bool crc;         /* both ends compute CRCs; else the field is 0 and not looked at */
    bool markers_in;  /* the peer sends markers, */
    bool markers_out; /* or insists on them */
    bool rfc7306;     /* the peer has atomics and immediate data */
    bool tell_ready;  /* an event RNIC_STREAM_READY says that the peer's first message has come */
};

struct rnic_stream_event {
    uint32_t qp_num;
    uint8_t end;               /* enum rnic_stream_end */
    uint8_t layer, type, code; /* RFC 5040, 4.8 */
    int error;                 /* errno, as ECONNRESET */
};

struct rnic_ext_stream {
    /* In INIT or RTR, of an RC queue pair of a device of iWARP.  -EINVAL, -EBUSY: it has one already */
    int (*attach)(struct rnic_qp *qp, const struct rnic_stream_attr *attr, struct rnic_err *err);
    int (*fd)(struct rnic_context *ctx); /* readable while there is an event; the device's, or -EOPNOTSUPP */
    /* The oldest event: once for each stream that ends while its queue pair exists and is connected, and once ahead of that if
     * tell_ready asks for it. -EAGAIN: none */
    int (*next_event)(struct rnic_context *ctx, struct rnic_stream_event *event, struct rnic_err *err);
    /* From INIT on, until RESET: from now on signaled SENDs and WRITEs complete when the peer has them, as those of other transports do,
     * by READs of no bytes behind them (RFC 5040, 5.5); not while max_rd_atomic is 0.  both: the peer does so, too.  Then this end
     * closes the stream only when the peer has asked for its last message, or after a second. */
    int (*confirm)(struct rnic_qp *qp, bool both, struct rnic_err *err);
};

/* ---------------------------------------------------------------- questions */

/* What libibverbs cannot ask: MW.query(), WQ.state, AH.query(), Context.query_raw_packet(). */
#define RNIC_EXT_QUERY "rnic.query/1"

struct rnic_ext_query {
    /* What it is bound to now; info->mr is NULL: to nothing (IBA 11.2.8.10). */
    int (*mw)(struct rnic_mw *mw, struct rnic_mw_bind_info *info, struct rnic_err *err);
    int (*wq)(struct rnic_wq *wq, int *state /* enum rnic_wq_state */, uint32_t *depth /* not yet completed */,
              struct rnic_err *err);
    int (*ah)(struct rnic_ah *ah, struct rnic_ah_attr *attr, struct rnic_err *err);
    int (*raw)(struct rnic_context *ctx, struct rnic_raw_attr *attr, struct rnic_err *err); /* where frames go */
};

#endif
