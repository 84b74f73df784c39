/* SPDX-License-Identifier: Apache-2.0
 *
 * machine.h: the state of one end, and what the files of this room call of each other.
 *
 *   frame.c    the format of a SEND
 *   machine.c  opening, posting and polling: the pump
 *   in.c       what a SEND of the peer means
 *   out.c      what is sent next
 *   fetch.c    announced messages, which this end READs
 *   ops.c      READs, WRITEs and atomics
 *   ends.c     goodbye, abort, loss and time
 */
#ifndef RNIC_MSG_MACHINE_H
#define RNIC_MSG_MACHINE_H

#include "msg/frame.h"

/* The lower bits of a wr_id say what completes; the rest is its number. */
enum wr_kind { WR_RECEIVE, WR_SEND, WR_OPERATION, WR_KINDS = 4 };

#define POLLED 16       /* completions that one poll takes */
#define CHAIN 16        /* work requests that one call posts */
#define ROUNDS 4        /* polls of one msg_pump(), so that a busy peer keeps nobody from other work */
#define UNDER_WAY 64    /* places for what is under way, by number: more than MSG_BOUNCES, and MSG_OPS */
#define EVENT_WEIGHT 64 /* bytes that a message counts beside its own, so that empty ones are bounded, too */
#define MIN_REFILL 2    /* the fewest credits that a CREDIT returns: one for the SEND that answers, one to keep */
#define IDLE_TICKS 8    /* of an interval, at which idle peers are probed */
#define RESERVED 1      /* credits that only a CREDIT or an ABORT may use */

/* Credits: every SEND finds a receive, and two ends with full queues never wait for each other (the proof is in
 * docs/endpoint-protocol.md, "Credits").  All count from the beginning of the connection. */
struct credits {
    /* Limits of what this end may send. */
    uint64_t given;    /* receives of the peer, as its hello says */
    uint64_t returned; /* credits that came back */
    uint64_t spent;    /* SENDs that needed one */
    /* Limits of what the peer may send. */
    uint64_t receives;  /* of this end, MSG_SPARE included */
    uint64_t posted;    /* of them */
    uint64_t told;      /* those of which the peer knows */
    uint64_t arrived;   /* SENDs that have come */
    uint64_t freed;     /* receives that may be posted again; the others are held back */
    uint64_t threshold; /* owed credits that are worth a SEND of their own */
};

static inline uint64_t credits_left(const struct credits *c) { return c->given + c->returned - c->spent; }
static inline bool credits_allow(const struct credits *c, bool reserve) {
    return credits_left(c) > (reserve ? 0 : RESERVED);
}
static inline uint64_t credits_owed(const struct credits *c) { return c->posted - c->told; }
static inline uint64_t credits_to_post(const struct credits *c) { return c->receives + c->freed - c->posted; }

struct item { /* of what waits to be sent, in the order of the calls */
    struct item *next;
    int kind;            /* enum frame_type: MESSAGE, ANNOUNCE, SHARE, WITHDRAW or GOODBYE */
    uint64_t handle;     /* of a message */
    const uint8_t *data; /* its bytes; the caller's, unless */
    void *copy;          /* that the machine has made of them */
    uint64_t bytes, offset /* handed out */, tag;
    bool begun, stopped, said; /* a piece was handed out; it was taken back; the STOP was handed out */
    bool on_stack;             /* of the call that sends it */
    uint32_t number;           /* on the wire, once it has begun; of WITHDRAW the region's id */
    struct rnic_mr *mr;        /* of an announcement */
    struct msg_region region;  /* of a share, with a copy of its description behind the item */
};

struct under_way { /* a work request that was handed out, by its number */
    uint8_t type;  /* enum frame_type; 0: a probe */
    bool ends;     /* with it a message is sent */
};

struct outgoing {
    struct item *first, *last;
    uint64_t sent_at_end;                     /* as msg_left() was, when the connection ended with an error */
    uint64_t handles;                         /* messages that were queued or sent: the handle of the last one */
    uint64_t numbers;                         /* messages of which at least a piece was handed out */
    uint64_t handed_out, completed, signaled; /* work requests, by number */
    uint64_t delivered, credit_sends, probes;
    struct under_way under_way[UNDER_WAY];
    uint64_t farewell;             /* the number of the last word in band; 0: it was not said */
    bool abort_said, goodbye_said; /* such a SEND is under way, or has completed */
    bool closing;                  /* the goodbye is queued */
    bool probe_due;
    uint32_t region_ids;          /* the id of the last region that was shared */
    uint32_t withdrawn, released; /* regions of this end */
    uint32_t abort_bytes;
    uint8_t abort[FRAME_HEADER + FRAME_MAX_TEXT];
};

struct incoming {
    struct msg_in *first, *last;
    uint64_t n;        /* messages that wait for the program, */
    uint64_t weight;   /* and their bytes, EVENT_WEIGHT with each */
    uint64_t complete; /* messages that have come whole: the number of the next one */
    uint64_t stopped;  /* messages that the peer has taken back */
    uint64_t seen;     /* SENDs that came, also after the end */
    /* The message that has begun. */
    bool partial;
    struct msg_in *part; /* NULL: it is not kept */
    uint64_t total, there, room, tag;
    /* Wishes of the program: msg_want(), msg_close(). */
    bool wanted, tagged, discards;
    bool goodbye;  /* the peer has said it: no message follows those that wait */
    bool farewell; /* in band: the peer has this end's goodbye, and all that came before it */
    /* The message that is announced. */
    bool offered, fetching; /* there is one; it is being READ */
    bool has_unconfirmed, has_taken;
    uint32_t unconfirmed; /* the number of the one that was taken, and needs a TAKEN */
    uint32_t taken;       /* the number of the last one that was taken */
    struct msg_offer offer;
};

struct regions { /* of the peer */
    struct msg_region *known;
    uint32_t n, room, withdrawals, confirmed;
    uint64_t changes;
};

struct fetch { /* the READs of the announced message */
    struct msg_in *in;
    struct rnic_mr *mr; /* of the piece; NULL: none is under way */
    uint64_t here;      /* bytes that have come */
    struct msg_op op;
    bool unwanted; /* the memory is not to be used any more: once more, elsewhere */
    bool own;      /* the next one goes to memory of its own */
    void *target;  /* of the owner's, for the message that comes next; NULL: none */
    uint64_t target_bytes;
    int error; /* why the message cannot be fetched, until a call has been told */
};

struct operations {
    struct msg_op *first, *last; /* queued */
    struct msg_op *posted[MSG_OPS];
    uint64_t posted_n, ended_n; /* they complete in the order in which they were posted */
    struct msg_op *done, **done_end;
};

struct msg {
    struct msg_config how;
    struct msg_memory memory;
    struct msg_hooks hooks;
    struct msg_peer peer;
    struct rnic_qp *qp;
    struct rnic_cq *send_cq, *recv_cq; /* one, or two */
    const struct rnic_ops *ops;
    const struct rnic_ext_now *quick; /* or NULL */
    int state;                        /* enum msg_state */
    bool raw;                         /* the peer said no hello */
    bool in_band;                     /* this end's hello was a SEND, as the peer's is: there is no disconnect either */
    bool established;
    struct msg_error error;
    uint64_t undelivered;
    int64_t heard_at;  /* the last sign of life */
    int64_t close_by;  /* the goodbyes must have been said; MSG_NEVER */
    bool close_wanted; /* when the operations have ended */
    struct credits credits;
    struct outgoing out;
    struct incoming in;
    struct regions theirs;
    struct fetch fetch;
    struct operations operations;
    struct rnic_wc polled[POLLED];
    int polled_at, polled_n;
    struct rnic_wc failed;
    bool has_failed;
};

static inline bool is_live(const struct msg *m) { return m->state >= MSG_OPEN && m->state <= MSG_PEER_LEFT; }
static inline bool is_raw(const struct msg *m) { return m->state == MSG_RAW; }
static inline bool is_over(const struct msg *m) { return m->state == MSG_CLOSED || m->state == MSG_FAILED; }
static inline bool peer_knows(const struct msg *m, uint32_t capability) { return m->peer.capabilities & capability; }
static inline uint32_t frame_size(const struct msg *m) {
    return m->peer.receive_size < m->how.send_size ? m->peer.receive_size : m->how.send_size;
}

/* machine.c: posts what may be posted now. */
void msg_flush(struct msg *m);
/* Posts as ops->post_send() does, by the quick way where there is one. */
int msg_post(struct msg *m, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad, struct rnic_err *err);

/* in.c: a SEND that came. */
void msg_in_take(struct msg *m, const uint8_t *data, uint32_t bytes);
void msg_in_resume(struct msg *m);                   /* posts receives that were held back, if there is room again */
bool msg_in_asks(const struct msg *m, uint64_t tag); /* a call waits for a message with this tag */
void msg_in_put(struct msg *m, struct msg_in *in);
void msg_in_discard(struct msg *m); /* keeps no messages from now on */
void msg_in_let_go(struct msg *m);  /* the connection has ended: what is not whole is dropped */
void msg_in_taken(struct msg *m);   /* the announced message has been READ or dropped: a TAKEN is due */
struct msg_in *msg_in_make(struct msg *m, uint64_t bytes); /* NULL: no memory */

/* out.c: what msg_out_next() has handed out. */
struct posting {
    uint32_t header, bytes; /* of the header; of the payload behind it */
    bool probe, fence;
    bool signaled; /* something waits for its completion */
    uint64_t number;
};
/* Writes the next SEND to `to`; false: nothing may be sent now. */
bool msg_out_next(struct msg *m, uint8_t *to, struct posting *p);
void msg_out_completed(struct msg *m, uint64_t number);
bool msg_out_taken(struct msg *m, uint32_t number); /* by the peer; false: no such message is announced */
int msg_out_goodbye(struct msg *m);
void msg_out_abort(struct msg *m); /* drops what waits; an announced message stays until msg_out_clear() */
void msg_out_clear(struct msg *m);
uint64_t msg_out_messages(const struct msg *m, uint64_t *bytes); /* that were not handed out whole */

/* ends.c */
enum input { GREETED, NO_HELLO, GOODBYE_DELIVERED, GOODBYE_RECEIVED, FAULT, LOST, ABORT_DELIVERED, RAW_DONE, INPUTS };
void msg_ends_step(struct msg *m, enum input what);
void msg_ends_fail(struct msg *m, const struct msg_error *error); /* from this end: by an ABORT if there is a credit */
void msg_ends_end(struct msg *m, const struct msg_error *error);  /* the connection is gone */
void msg_ends_aborted(struct msg *m, uint32_t reason, const uint8_t *text, uint32_t bytes); /* by the peer */
void msg_ends_timer(struct msg *m, int64_t now);
void msg_ends_close_when_idle(struct msg *m);
bool msg_ends_owes_farewell(const struct msg *m); /* in band: the last word is to be said */
bool msg_ends_is_last_word(const struct msg *m, uint32_t id);

/* fetch.c */
bool msg_fetch_step(struct msg *m); /* whether something was done */
void msg_fetch_close(struct msg *m);
void msg_let_go(struct msg *m, struct rnic_mr *mr);

/* ops.c */
void msg_ops_queue(struct msg *m, struct msg_op *op);
void msg_ops_post(struct msg *m);
void msg_ops_completed(struct msg *m, const struct rnic_wc *wc);

/* regions of the peer, in.c */
const struct msg_region *msg_regions_find(const struct msg *m, uint32_t id);

#endif
