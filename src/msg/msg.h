/* SPDX-License-Identifier: Apache-2.0
 *
 * msg.h: one end of a connection: messages of any length, operations on the peer's memory, and regions, over one queue
 * pair (docs/endpoint-protocol.md).
 *
 * The machine knows nic.h alone.  Its owner makes the queue pair, the completion queue and the registered memory, and
 * carries the hellos.  The machine posts and polls; it does not wait, reads no clock and has no thread.  The owner calls
 * msg_pump() when the completion queue has something, when msg_deadline() has come, and after each call that queues.
 *
 * Times are nanoseconds of one clock that does not go back.  Calls return 0 or more, or a negative errno.  Only one
 * thread at a time may be in a call with a machine.
 */
#ifndef RNIC_MSG_H
#define RNIC_MSG_H

#include "nic.h"

#define MSG_NEVER INT64_MAX
#define MSG_BOUNCES 32 /* SENDs that are under way at a time, at most */
#define MSG_OPS 64     /* READs, WRITEs and atomics likewise */
#define MSG_RESULT 8   /* bytes that an atomic fetches */
#define MSG_SPARE 1    /* receives of which the peer is not told: for its TAKEN */

enum msg_state {
    MSG_HELLO,        /* the peer's hello has not been accepted yet */
    MSG_RAW,          /* the peer said none: a message is one SEND without a header, and there is no goodbye */
    MSG_OPEN,         /* both ends may send */
    MSG_SAID_GOODBYE, /* the peer has this end's goodbye: half-closed (local) */
    MSG_PEER_LEFT,    /* this end has the peer's: half-closed (remote) */
    MSG_CLOSED,       /* both */
    MSG_ABORTING,     /* an ABORT is on its way; what comes in is not looked at */
    MSG_FAILED,       /* the connection has ended with an error */
    MSG_STATES
};

enum msg_kind { /* of an error */
                MSG_WELL,
                MSG_PROTOCOL, /* the peer sent what the protocol forbids */
                MSG_ABORTED,  /* by this end's program, by the peer's, or because a time limit has passed */
                MSG_LOST,     /* a work request has failed, or the connection manager said so */
};

enum msg_reason { /* the number in an ABORT */
                  MSG_APPLICATION = 1,
                  MSG_VIOLATION,
                  MSG_TOO_LONG,
                  MSG_CREDIT,
                  MSG_REGION,
                  MSG_NO_HELLO,
                  MSG_VERSION,
                  MSG_TIMEOUT,
};

enum msg_capability { /* what an end understands beyond version 1; the other end sends nothing else */
                      MSG_KNOWS_ANNOUNCE = 1,
                      MSG_KNOWS_TAG = 2,
                      MSG_KNOWS_STOP = 4,
                      MSG_KNOWS_DESCRIBE = 8,
};

struct msg_error {
    int kind; /* enum msg_kind */
    uint32_t reason;
    char text[256]; /* behind "the peer aborted the connection: " bytes as the peer sent them */
};

struct msg_config { /* of this end: rnic.Config */
    uint32_t receives, receive_size, send_size, max_regions;
    uint64_t max_message, max_backlog;
    uint64_t announce; /* a message of so many bytes is announced; 0: none is */
    int64_t idle;      /* ns without a sign of life after which the peer is probed, an eighth later at most; 0: never */
};

struct msg_peer { /* what its hello says, and the version that both speak */
    uint32_t receives, receive_size, max_regions, capabilities, access;
    uint64_t max_message;
    int version;
};

/* Registered memory under one key: receives + MSG_SPARE places of receive_size, `bounces` of send_size, and MSG_OPS of
 * MSG_RESULT bytes, each with its place, on a multiple of 8. */
struct msg_memory {
    uint8_t *base;
    uint32_t lkey, bounces;
    uint64_t sends_at, results_at;
};

struct msg_hooks { /* the owner's functions; only makes, grows and drops are needed */
    void *arg;
    /* Memory for a message of so many bytes, which are written from the start on.  NULL: there is none. */
    uint8_t *(*make)(void *arg, uint64_t bytes, void **object);
    uint8_t *(*grow)(void *arg, uint64_t bytes, void **object); /* NULL: there is none, and nothing has changed */
    void (*drop)(void *arg, void *object);
    void (*copy)(void *arg, void *to, const void *from, uint64_t bytes);
    /* Takes a region whose deregistration the device has refused, because a process is stopped inside a copy. */
    void (*later)(void *arg, struct rnic_mr *mr);
    /* Whether a call waits for a message with this tag; needed where msg_want() says that one waits for a tag. */
    bool (*asks)(void *arg, uint64_t tag);
};

struct msg_region { /* memory of one end that the other may use */
    uint32_t id, rkey, access;
    uint64_t addr, length;
    uint64_t serial;      /* of a region of the peer's: no other one has had it */
    const uint8_t *array; /* its description, as DESCRIBED carries it; NULL: none */
    uint32_t array_bytes;
};

struct msg_offer { /* a message that was announced */
    uint32_t number, rkey;
    uint64_t total, addr, tag;
};

struct msg_in { /* a message of the peer's, whole */
    struct msg_in *next;
    uint64_t tag, bytes;
    uint8_t *data;
    void *object; /* of msg_hooks.make; NULL: it lies in the memory that msg_target() named */
};

enum msg_op_state { MSG_OP_NEW, MSG_OP_QUEUED, MSG_OP_POSTED, MSG_OP_DONE };

struct msg_op { /* a READ, WRITE or atomic; the owner's until it is queued, and again when it is done */
    struct msg_op *next;
    void *owner;     /* the owner's */
    int opcode;      /* enum rnic_wr_opcode */
    bool fence;      /* waits for READs and atomics before it */
    bool anywhere;   /* no region of the peer's names the memory: the owner has learned of it otherwise */
    uint32_t region; /* the peer's, by its id: it must be shared when the operation is posted */
    uint64_t addr;   /* where in the peer's memory, */
    uint32_t rkey;   /* and its key */
    uint64_t compare_add, swap;
    struct rnic_sge
        sge; /* registered memory of this end; without length: none.  An atomic has a place of the machine's */
    struct rnic_sge *pieces; /* several pieces of memory instead; NULL: `sge` */
    int pieces_n;
    int state;  /* enum msg_op_state */
    int status; /* when done: enum rnic_wc_status, or a negative errno: it was not posted; -ENOENT: the region
                            is not shared (any more) */
    uint32_t vendor_err;
    uint64_t found; /* by an atomic */
    uint64_t number;
};

struct msg_statistics {
    int state;
    uint64_t messages_sent /* known to have arrived: behind by up to a window, MSG_BOUNCES */, messages_received, sends,
        receives, credit_sends, probes, credits, queued, backlog, held, partial;
};

struct msg;

/* The queue pair has these completion queues, which may be one; no other queue pair has them. */
struct msg *msg_open(const struct msg_config *config, const struct msg_memory *memory, const struct msg_hooks *hooks,
                     struct rnic_qp *qp, struct rnic_cq *send_cq, struct rnic_cq *recv_cq);
/* The queue pair has been destroyed, or never was connected: gives back all that the machine holds but its messages. */
void msg_release(struct msg *m);
void msg_free(struct msg *m);

/* Posts the receives that the hello promises. */
int msg_post_receives(struct msg *m, struct rnic_err *err);
/* The peer's hello has come, and both speak peer->version. */
void msg_greet(struct msg *m, const struct msg_peer *peer, int64_t now);
/* The peer has said no hello, and that is allowed. */
void msg_greet_raw(struct msg *m);
/* The peer is ready to receive: what waits may be posted. */
void msg_establish(struct msg *m);
bool msg_established(const struct msg *m); /* also when something has come from the peer */

/* Without a connection manager the hellos go in band: each is the first SEND of its end.  The owner calls msg_say_hello()
 * once the queue pair can send, msg_hear_hello() until that returns 1, and msg_greet(), behind which all is established. */

/* Sends this end's hello; a second call does nothing.  `access`: what the peer is assumed to grant until its hello says
 * so: with RNIC_ACCESS_REMOTE_WRITE it is probed while its hello does not come. */
int msg_say_hello(struct msg *m, const void *hello, uint32_t bytes, uint32_t access, int64_t now, struct rnic_err *err);
/* The peer's hello, which stays here until msg_greet().  1: it has come; 0: not yet; -EIO: a work request has failed. */
int msg_hear_hello(struct msg *m, int64_t now, const uint8_t **hello, uint32_t *bytes);
/* Returns true when neither end needs the other: the connection has failed, or both ends know of both goodbyes. */
bool msg_may_leave(const struct msg *m);

/* Moves all that can be moved.  1: more was there than one call moves, so call again; 0: not, and when the completion
 * queue was `armed` before the call, and before msg_poll() took what this call has moved, its channel tells of what comes.
 * -EIO: a work request has failed, msg_failed(). */
int msg_pump(struct msg *m, int64_t now);
/* Takes completions from the queue for the next msg_pump(); how many wait for it.  The one call that may be made without
 * what protects the others, while no other is made. */
int msg_poll(struct msg *m);
/* Polls as msg_poll() does, where a poll takes hardly any time; -EAGAIN: msg_poll() is to be called. */
int msg_poll_now(struct msg *m);
/* The first completion that failed and says why, or that failed; NULL: none did. */
const struct rnic_wc *msg_failed(const struct msg *m);
int64_t msg_deadline(const struct msg *m);

/* ---------------------------------------------------------------- messages */

/* Sends a message.  0: it has left the buffer.  1: it is queued as *handle, and the buffer must stay as it is until
 * msg_left() has reached that.  -EMSGSIZE: longer than the peer takes; -ESHUTDOWN: nothing can be sent any more. */
int msg_send(struct msg *m, const void *data, uint64_t bytes, uint64_t tag, uint64_t *handle);
/* The handle of the message that was sent last. */
uint64_t msg_handle(const struct msg *m);
/* Messages up to this handle have left their buffers. */
uint64_t msg_left(const struct msg *m);
/* Returns what msg_left() does, or, when the connection has ended with an error, what that was at the end. */
uint64_t msg_sent(const struct msg *m);
/* msg_close() was called. */
bool msg_is_closing(const struct msg *m);
/* Messages are queued, or are not known to have arrived. */
bool msg_is_sending(const struct msg *m);
/* The call that sent the message has ended, and its buffer is free.  True: the message goes on from a copy; false: the
 * peer drops it, or it had left already. */
bool msg_take_back(struct msg *m, uint64_t handle);

#define MSG_ANY NULL
/* The first message with that tag; MSG_ANY: the first.  NULL: there is none. */
struct msg_in *msg_find(const struct msg *m, const uint64_t *tag);
/* Takes a message out; the owner frees it by msg_drop(), or has its object. */
void msg_take(struct msg *m, struct msg_in *in);
void msg_drop(struct msg *m, struct msg_in *in);
/* Puts a message back, ahead of all others; `object` is the machine's again.  -ENOMEM: nothing was done. */
int msg_put_back(struct msg *m, uint8_t *data, uint64_t bytes, uint64_t tag, void *object);
/* A call waits for a message of any tag; one waits for a certain tag, hooks.asks() says for which. */
void msg_want(struct msg *m, bool any, bool tagged);
/* An announced message that comes next goes to this memory, if it fits; NULL: to none of the owner's.  The memory that was
 * named before is not to be used any more, once no READ writes into it, msg_is_landing(); a message that lies there is copied. */
void msg_target(struct msg *m, void *data, uint64_t bytes);
/* Why an announced message could not be READ, a negative errno, told once; then it is tried again.  0: nothing is wrong. */
int msg_fetch_error(struct msg *m);
bool msg_has_fetch_error(const struct msg *m);
/* Bytes of an announced message that comes next and is not being READ; 0: there is none. */
uint64_t msg_offered(const struct msg *m);
/* A READ writes into the memory that msg_target() named. */
bool msg_is_landing(const struct msg *m);

/* ---------------------------------------------------------------- regions, operations */

/* Shares memory; its id is in region->id then. */
int msg_share(struct msg *m, struct msg_region *region);
int msg_withdraw(struct msg *m, uint32_t id);
/* How many of this end's withdrawals the peer has confirmed, modulo 2^32. */
uint32_t msg_released(const struct msg *m);
/* The peer's regions that may be used now, in no order; *n: how many.  `changes` counts when they change. */
const struct msg_region *msg_regions(const struct msg *m, uint32_t *n);
uint64_t msg_changes(const struct msg *m);

void msg_operate(struct msg *m, struct msg_op *op);
/* An operation that is done, each once; NULL: there is none. */
struct msg_op *msg_done(struct msg *m);
bool msg_operates(const struct msg *m); /* some are queued or under way */

/* ---------------------------------------------------------------- the end */

/* Says goodbye after all that is queued and all operations; messages that come are dropped from now on.  When `timeout` ns
 * pass before both ends have said it, the connection is aborted; MSG_NEVER: no limit. */
void msg_close(struct msg *m, int64_t now, int64_t timeout);
/* Ends the connection and tells the peer why.  The buffers of messages are free; a message that is announced stays as a
 * copy until the peer has been told, or msg_release(). */
void msg_abort(struct msg *m, const char *text);
void msg_lost(struct msg *m, const char *text);
/* The peer has disconnected, with the private data of its DREQ; after msg_pump() has handled what came before. */
void msg_disconnected(struct msg *m, const void *private_data, uint32_t bytes);
/* Private data for this end's DREQ: its last word once more.  `to` has 148 bytes; how many. */
uint32_t msg_farewell(const struct msg *m, uint8_t *to);
/* All operations that are left have ended; the queue pair is flushed or gone. */
void msg_fail_operations(struct msg *m);

int msg_state(const struct msg *m);
/* The error that ended the connection; kind MSG_WELL: there is none, or both ends have said goodbye. */
const struct msg_error *msg_error(const struct msg *m);
uint64_t msg_undelivered(const struct msg *m); /* messages that the peer has perhaps not received */
bool msg_heard_goodbye(const struct msg *m);   /* of the peer's: no message follows those that wait */
bool msg_is_spent(const struct msg *m);        /* and these have been taken */
void msg_count(const struct msg *m, struct msg_statistics *out);

#endif
