/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine of iWARP's queue pairs, as its files know it.
 *
 *   service.c  the transport's table: states, operations
 *   iwarp.c    the life of a connection: RTS, closing in order, its end
 *   in.c       what comes: the reader of FPDUs, which stops and goes on at any byte
 *   place.c    the messages in them: checks, placement, delivery
 *   serve.c    READs and atomics of the peer, answered in their order
 *   send.c     whose turn it is: the send queue, and those answers
 *   quiet.c    READs of no bytes, which ask whether the peer has what was sent
 *   out.c      what goes: FPDUs, and what of them is not written yet
 *   marker.c   MPA's markers, both ways
 *   term.c     errors: what each means to the peer, and to this end
 *
 * A message goes out as a whole: between its segments stands nothing else, since Linux's siw takes nothing else.
 */
#ifndef RNIC_IWARP_ENGINE_H
#define RNIC_IWARP_ENGINE_H

#include "iwarp/iwarp.h"
#include "wire/mpa.h"
#include "wire/rdmap.h"

/* ---------------------------------------------------------------- errors */

/* What can be wrong with what the peer has sent, and with what this end is to send; term.c has a row for each. */
enum bad {
    GOOD,
    BAD_CRC,
    BAD_MARKER,
    BAD_DDP_VERSION_TAGGED,
    BAD_DDP_VERSION,
    BAD_RDMAP_VERSION,
    BAD_OPCODE, /* unknown, or not in this kind of segment, or not now */
    BAD_LENGTH, /* shorter than its headers, or longer than such a message is */
    BAD_QUEUE,
    BAD_MSN,
    BAD_OFFSET, /* in an untagged message */
    BAD_NO_RECEIVE,
    BAD_TOO_LONG, /* for the receive */
    BAD_READS,    /* more requests than max_dest_rd_atomic */
    BAD_STAG,     /* of a tagged segment, and so on */
    BAD_BOUNDS,
    BAD_ASSOCIATION,
    BAD_WRAP,
    BAD_RIGHTS,
    BAD_RESPONSE,    /* not the one that is due */
    BAD_SOURCE_STAG, /* of a READ or atomic, and so on */
    BAD_SOURCE_BOUNDS,
    BAD_SOURCE_RIGHTS,
    BAD_SOURCE_ASSOCIATION,
    BAD_SOURCE_WRAP,
    BAD_ATOMIC, /* not aligned, or with masks */
    BAD_INVALIDATE,
    BAD_LOCAL, /* memory that this end has named */
    BADS
};

/* ---------------------------------------------------------------- in */

enum place_kind { NOWHERE, TO_RECEIVE, TO_REGION, TO_SINK, TO_TERMINATED };

/* Where the payload of a segment goes. */
struct place {
    enum place_kind kind;
    uint32_t key; /* of a region; of a READ its element (ring counter) */
    uint64_t at;  /* address there; or offset in the message */
};

enum reading { READ_HEADER, READ_BODY, READ_TRAILER };

/* The last bytes of a message are held back until its CRC is known to be right, and go to their place at once: programs look at
 * them to learn that all of it is there. */
#define KEPT_MOST 8u

struct reader {
    enum reading state;
    uint8_t header[MPA_LENGTH_BYTES + RDMAP_HEADER_MOST]; /* of the FPDU under way: */
    uint32_t have, need;                                  /* bytes of it, or of the tail; what it needs next */
    const struct rdmap_row *row;
    uint32_t payload;    /* its bytes of payload */
    bool last;           /* of its message */
    uint32_t body, kept; /* bytes of payload that are to come; and of those that are held back, in the tail */
    uint8_t tail[KEPT_MOST + MPA_PAD_MOST + MPA_CRC_BYTES];
    uint32_t crc;   /* state */
    enum bad bad;   /* what is wrong with it, should its CRC be right; */
    int vendor_err; /* and more about that, or 0 */
    struct place place;
    uint8_t terminated[MPA_LENGTH_BYTES + DDP_UNTAGGED_BYTES]; /* of a Terminate message: what it is about */

    uint32_t position; /* of the stream, modulo MPA_MARKER_EVERY */
    uint32_t begun;    /* bytes of it since the FPDU's start */
    uint8_t marker[MPA_MARKER_BYTES];

    uint8_t *ahead;      /* bytes that are read before it is known where they belong: */
    uint32_t ahead_most; /* so many of them; */
    uint32_t direct;     /* so many to their place, before those */
    uint64_t bytes;      /* of the stream that have come */
    bool deaf;           /* nothing of what comes counts any more */
    bool ended;          /* nothing comes any more */
    bool heard;          /* an FPDU has come */
    bool unsummed;       /* of this one some bytes could not be read for the CRC */
    bool unasked;        /* and a message, behind which no READ has asked yet whether it is here */

    uint32_t msn[RDMAP_QUEUES]; /* expected */
    uint8_t message;            /* opcode of a SEND that is under way, or 0 */
    uint32_t received;          /* bytes of it so far */
    bool writing;               /* a WRITE is under way */
    uint64_t written;           /* bytes of it, or of the last one if a message with immediate data may follow */
};

/* ---------------------------------------------------------------- out */

/* Where a payload comes from. */
struct source {
    bool of_region; /* that a READ has named; else of a send element */
    uint32_t key;   /* its; or the element (ring counter) */
    uint64_t at;    /* address; or offset in the message */
};

struct writer {
    uint8_t *bytes; /* FPDUs that are not written yet: start .. end - 1 */
    uint32_t start, end;
    /* Without CRCs a long payload goes from its memory: the bytes ahead of `split` go first, then it, then the others. */
    uint32_t split, referred; /* bytes of it that are left */
    struct source source;     /* and where */
    uint64_t begun, written;  /* bytes of the stream: put here, and given to the link */
    uint32_t position;        /* of the stream, modulo MPA_MARKER_EVERY */
    bool broken;              /* the link takes nothing any more */
    bool finished;            /* nor is to */
};

/* An FPDU that is being written. */
struct fpdu {
    uint8_t *at;     /* its length; */
    uint8_t *ddp;    /* and its segment */
    uint32_t header; /* bytes of the segment's headers */
    uint32_t payload;
    uint32_t crc;
    bool summed;   /* the CRC counts */
    bool referred; /* the payload is not in it, but */
    struct source from;
};

enum result { SENT, IDLE, NO_ROOM, FAILED };

/* ---------------------------------------------------------------- whose turn it is */

#define RTR_TAG 1u /* key of no region, in a message of no bytes that makes a connection of equals ready */

enum turn_kind { TURN_NOBODY, TURN_ELEMENT, TURN_ANSWER, TURN_QUIET };

/* A READ of no bytes that is no element; of send elements (ring counters). */
struct quiet_read {
    uint32_t asked;      /* those before it are asked for, or need not be; */
    uint32_t heard, all; /* of those before this one the completion is heard; and any waits for an answer */
    uint64_t ask_at;     /* then any is asked for that nobody hears; 0: not yet */
    bool waits;          /* one is under way, */
    uint32_t msn;        /* with this number and key, */
    uint32_t until;      /* and when it is answered, the peer has those before this one */
};

/* Whether a peer that is to answer still lives.  Of the stream, when it was looked at last: */
struct watch {
    uint64_t look_at;     /* then again */
    uint64_t asked;       /* the end of what waits for an answer; */
    uint64_t taken, came; /* what the peer's host had taken, what had come; */
    bool there;           /* the peer's host had taken all that waits */
};

struct sender {
    enum turn_kind turn; /* whose message is under way */
    bool answered;       /* the last one was an answer: the send queue is next */
    uint32_t next;       /* send element (ring counter) that is being sent, or is the next one */
    uint32_t offset;     /* bytes of it that have been */
    bool immediate;      /* all of it has, and its immediate data are due */
    bool halted;         /* it has failed, which it tells when all before it are complete */
    uint32_t limit;      /* in SQD: no element from here on is sent */
    uint32_t msn[2];     /* of the next SEND, of the next READ or atomic */
    uint32_t waiting;    /* READs and atomics without an answer */
    uint32_t answer;     /* the oldest of them, or an element ahead of it */
    struct quiet_read quiet;
    struct watch watch;
    uint32_t confirmed; /* the peer is known to have the elements before this one */
    bool rtr_due;       /* the message that makes a connection of equals ready goes first; */
    uint32_t rtrs;      /* it has gone so many times, */
    uint64_t rtr_at;    /* and goes again then, if nothing has been heard; 0: never */
    uint64_t speak_at;  /* a responder speaks then, if nothing has been heard; 0: it has nothing to say */
    bool spoke_first;   /* which was so */
    bool blamed;        /* an element that ends with its own status when the others are flushed: */
    uint32_t blame;
};

/* A READ or atomic of the peer. */
struct request {
    uint8_t header[RDMAP_HEADER_MOST];
    uint32_t ulpdu; /* bytes of its segment */
    uint32_t offset;
    bool begun;
    uint64_t was; /* of an atomic that has been carried out: its answer */
};

struct server {
    struct request *ring; /* of max_dest_rd_atomic */
    uint32_t size, first, count;
    uint32_t msn; /* of the next answer that is untagged */
};

struct iwarp {
    struct rnic_stream_attr agreed;
    bool is_agreed;               /* that counts */
    bool confirm;                 /* SENDs and WRITEs complete when the peer has them, */
    bool confirm_both;            /* and so do the peer's */
    bool connected;               /* RTS has been entered */
    bool peer_closed;             /* in order, while this end still sends */
    struct rnic_stream_event why; /* it has ended; as it is, because the program has left RTS */
    bool told;                    /* and whoever has made the connection knows it */
    uint64_t close_at;            /* if the peer has not closed by then, it is given up; 0: nothing waits for that */
    uint64_t moved;               /* bytes of the stream that had come and gone when that was said */
    uint64_t linger_at;           /* and this end does not close before then, as the peer may ask; 0: or does */
    struct reader in;
    struct writer out;
    struct sender snd;
    struct server srv;
};

static inline struct iwarp *iwarp_of(const struct qp *qp) { return (struct iwarp *)qp->engine_state; }

/* service.c */
extern const struct sq_rules iwarp_sends;       /* all that there is */
extern const struct sq_rules iwarp_sends_plain; /* to a peer without RFC 7306 */

/* iwarp.c */
extern const struct engine_ops iwarp_ops;
/* The connection has ended: the queue pair is in error, and whoever has made it is told. event: -1, or of the queue pair */
void iwarp_hears(struct qp *qp); /* the first FPDU has come */
void iwarp_end(struct qp *qp, const struct rnic_stream_event *why, int event);

/* in.c */
#define IN_AHEAD 32768u
void in_start(struct qp *qp);
bool in_is_between(const struct iwarp *iw); /* two FPDUs */
bool in_is_amid(struct qp *qp);             /* a message */

/* place.c.  begin: what is wrong with a segment whose headers are there (the reader's vendor_err says more); then where its
 * payload goes.  end: all of it has come. */
enum bad place_begin(struct qp *qp, uint32_t payload);
enum bad place_end(struct qp *qp);
/* n bytes to their place. */
enum bad place_store(struct qp *qp, const uint8_t *bytes, uint32_t n);
/* Where the next n are, in at most SGE_MAX pieces; *count 0: they have no address. */
enum bad place_pieces(struct qp *qp, uint32_t n, struct iovec *pieces, int *count);
enum bad place_lost(struct qp *qp, uint32_t n); /* of n bytes there some could not be reached */

/* serve.c */
int serve_init(struct qp *qp);
void serve_free(struct qp *qp);
void serve_take(struct qp *qp);        /* the request that the reader has */
enum result serve_next(struct qp *qp); /* a segment of the oldest one's answer */

/* send.c */
void send_init(struct qp *qp);
void send_flush(struct qp *qp); /* all elements */
uint64_t send_deadline(const struct qp *qp);
void send_timer(struct qp *qp, uint64_t now);
enum result send_fill(struct qp *qp, uint64_t now); /* FPDUs while there is room: NO_ROOM; or IDLE */
void send_complete(struct qp *qp);                  /* those that are done, and the oldest */
bool send_drained(const struct qp *qp);             /* SQD: all that goes out has, and is complete */
bool send_owes(struct qp *qp);
bool send_waits(const struct send_wqe *wqe);  /* it is complete when it is answered */
struct send_wqe *send_awaited(struct qp *qp); /* the oldest element without an answer, or NULL */
void send_answered(struct qp *qp);            /* that one has it */
void send_blame(struct qp *qp, uint32_t element, int status, int vendor_err);
/* The element under way that a segment of this header is of; NULL: the oldest one.  false: there is none. */
bool send_find(struct qp *qp, const uint8_t *ddp, uint32_t *element);

/* quiet.c */
void quiet_start(struct qp *qp);
bool quiet_is_on(const struct qp *qp);
void quiet_follow(struct qp *qp, const struct send_wqe *wqe);         /* the next element has gone */
bool quiet_confirms(const struct qp *qp, const struct send_wqe *wqe); /* it is complete when the peer has it */
bool quiet_may_go(const struct qp *qp);
bool quiet_send(struct qp *qp, uint64_t now); /* false: there is no room */
bool quiet_is_next(struct qp *qp);            /* of those that are to be answered */
void quiet_gone(struct qp *qp, const struct send_wqe *wqe,
                uint64_t now); /* an element has been put out, or a part of it */
void quiet_timer(struct qp *qp, uint64_t now);
uint64_t quiet_deadline(const struct qp *qp);
bool quiet_is_in_vain(struct qp *qp, uint64_t now); /* the peer is silent */
void quiet_answered(struct qp *qp);
void quiet_reached(struct qp *qp, uint32_t element); /* the peer has those before it */

/* out.c.  open: room for an FPDU with such headers and payload, or false; the caller fills the headers and calls fpdu_headers(),
 * then the payload, which may fail (enum rnic_vendor_err); then closes it. What is not closed is not sent. */
#define OUT_FPDU (MPA_LENGTH_BYTES + MPA_ULPDU_MOST + MPA_CRC_BYTES) /* the longest */
#define OUT_ROOM (2 * OUT_FPDU)
#define OUT_RESERVE 256u   /* for a Terminate message */
#define OUT_REFER 4096u    /* shorter payloads are copied */
uint32_t out_most(struct qp *qp); /* bytes of a segment, headers included, now */
bool fpdu_open(struct qp *qp, struct fpdu *f, uint32_t header, uint32_t payload);
void fpdu_open_last(struct qp *qp, struct fpdu *f, uint32_t header); /* there is room, once */
void fpdu_headers(struct qp *qp, struct fpdu *f);
int fpdu_payload(struct qp *qp, struct fpdu *f, const struct source *from);
void fpdu_close(struct qp *qp, struct fpdu *f);
static inline bool out_is_clear(const struct writer *out) { return out->start == out->end && !out->referred; }
bool out_drain(struct qp *qp); /* writes what there is; false: not all of it */
void out_own(struct qp *qp);   /* what it refers to is copied: the memory is its owner's again */
void out_finish(struct qp *qp);
uint64_t out_taken(const struct qp *qp); /* bytes of the stream that the peer's host has, as far as the link knows */

/* marker.c.  position: of the stream, modulo MPA_MARKER_EVERY.  begun: bytes of it since the FPDU's start.
 * due: puts a marker, if it is its place.  spread: copies n bytes, with markers where they belong. Both: bytes of the result */
#define MARKED(n) ((n) + MPA_MARKER_BYTES * ((n) / (MPA_MARKER_EVERY - MPA_MARKER_BYTES) + 2))
uint32_t marker_due(uint8_t *to, uint32_t *position, uint32_t *begun);
uint32_t marker_spread(uint8_t *to, const uint8_t *from, uint32_t n, uint32_t *position, uint32_t *begun);
/* Takes as much of what has come as belongs to a marker, which is then checked: so many bytes. free: how many do not. */
uint32_t marker_take(struct reader *in, const uint8_t *bytes, uint32_t n);
static inline uint32_t marker_free(const struct reader *in) { return MPA_MARKER_EVERY - in->position; }

/* term.c */
enum bad bad_of_region(int vendor_err); /* of a tagged segment */
enum bad bad_of_source(int vendor_err); /* of a READ or atomic */
/* Ends the connection for what is wrong with the segment under way, or with a request of the peer, or (NULL) with this end. */
void term_refuse(struct qp *qp, enum bad bad, int vendor_err, const uint8_t *header, uint32_t ulpdu);
void term_received(struct qp *qp);

#endif
