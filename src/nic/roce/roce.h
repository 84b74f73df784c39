/* SPDX-License-Identifier: Apache-2.0
 *
 * The reliable connected service of the InfiniBand Architecture (IBA chapter 9), over RoCEv2.
 *
 *   req.c   requester: turns send elements into request packets, within the windows
 *   comp.c  completer: takes acknowledges and responses, completes, retries
 *   resp.c  responder: executes requests; resp_out.c answers them with responses, ACKs and NAKs
 *   rc.c    joins the three to a queue pair: the engine_ops
 *   congestion.c    the rate at which connected queue pairs may send
 *
 * of XRC, too (Annex A14), whose queue pairs are either requester or responder, see qp/xrc.h;
 *
 * and the services that know no acknowledges: unreliable connections (IBA 9.8.2) in uc.c, datagrams (9.8.3) in ud.c.
 * What RC and UC share is in message.c, for what goes out, and inbound.h.
 *
 * No I/O, no clock: packets come by input(), leave by next() into a sink, and time is an argument.
 */
#ifndef RNIC_ROCE_ROCE_H
#define RNIC_ROCE_ROCE_H

#include "base/seq24.h"
#include "qp/qp.h"
#include "roce/congestion.h"

#define MAX_RD_ATOMIC 128
#define ACK_EVERY 32      /* request packets between two AckReq bits within a message or chain */
#define RNR_INFINITE 7    /* value of rnr_retry */
#define PROBE_MIN 1000000 /* ns without an answer before a packet is sent once more; twice as long for each one after */
#define PROBE_FIRST 8000000 /* the same while no answer has ever come */
#define QUEUE_MOST_NS 256000000 /* an answer may stand so long behind others' in a queue, if it is the first one */
#define QUEUE_SLOW_NS 64000000  /* the same of a later one, at most */
#define SLOW_NS 1000000   /* a round trip of a peer that is far, or waits for a processor */
#define ANSWER_NS 100000  /* what is sent so shortly after a message answers it, perhaps */
#define UNASKED_NS 100000 /* an ACK of messages whose sender has not asked for one waits so long for more of them */
#define PROBES 8          /* at most, then the transport timer alone */
#define MAX_REWINDS 10    /* that double the time until the next one */
#define MAX_REPEATED 16384 /* packets that a requester repeats: no more are under way */

struct requester {
    uint32_t psn;     /* of the next packet to send; goes back for a retry */
    uint32_t max_psn; /* one past the highest PSN ever sent */
    uint32_t una;     /* oldest unacknowledged */
    uint32_t next;    /* send element (ring counter) of the next packet */
    uint32_t pkt;     /* and which of its packets */
    uint32_t ssn;     /* request messages started, parts of READs each for itself: what the peer's MSN counts up to */
    uint64_t cost;    /* link bytes of all elements started */
    uint32_t unasked; /* request packets since the last AckReq; ACK_EVERY: the next one asks */

    uint32_t last, last_pkt; /* what was sent at max_psn's end: element and packet, for probes */
    bool halted;             /* element `next` failed locally; its turn comes when all before it are complete */

    uint32_t lsn; /* limit sequence number: messages that the peer has receives for (IBA 9.7.7.2) */
    bool limited; /* lsn counts */

    uint32_t rd_end[MAX_RD_ATOMIC]; /* one past the last response PSN of each outstanding READ request or atomic */
    uint32_t rd_head, rd_count;
    uint32_t locals; /* elements without a packet that are done, but not the oldest: they wait to complete */

    uint32_t window;    /* bytes that may be in flight */
    uint32_t threshold; /* below it the window doubles a round trip, above it grows by a packet */

    uint8_t retries, rnr_retries; /* left */
    uint8_t probes;               /* since the last progress or retry */
    uint64_t progress;            /* time of the last acknowledged packet, retry, or packet up to the one that asks */
    uint64_t rnr_until;           /* not before; 0: no wait */
    bool refused;  /* una, by an RNR NAK, or taken back: nothing goes out behind it until it is acknowledged */
    uint64_t echo; /* time of the last answer that came again */
    bool strange;  /* an answer had a PSN that is not outstanding: */
    uint32_t answered;
    bool probed_part; /* the last probe has asked for one packet of a READ's answer, una's */
    uint64_t rewound; /* time of the last return to una; 0: none since the last progress */
    uint8_t rewinds;  /* since then */
    uint32_t ghost;   /* PSN of the last answer since then that jumped over una */

    bool timing; /* a round trip is being measured, */
    uint32_t timed_psn;
    uint64_t timed_at;
    uint64_t srtt; /* ns; 0: none yet */
    bool guessed;  /* from the first packet, though the answer may be that of a probe: the next one replaces it */
};

/* A READ, atomic, ATOMIC WRITE or FLUSH that may come again (IBA 9.4.4, 9.7.5.2: responder resources). */
struct resource {
    bool valid;
    uint8_t opcode; /* of the request */
    bool queued;    /* its response is to be sent: packets cur .. end - 1, of which start is the first */
    bool answered;  /* all of it has been sent once: what is queued is a repetition */
    uint32_t start, cur, end;
    uint32_t first_psn, packets;
    uint64_t at; /* of first_psn, in the count of struct responder */
    uint64_t va;
    uint32_t rkey, length;
    uint32_t srqn;   /* XRC: of the queue whose protection domain counts */
    uint64_t result; /* of the atomic */
};

/* A SEND or WRITE that is coming in. */
struct inbound {
    uint32_t message;  /* OPC_SEND or OPC_WRITE while one of several packets is under way, else 0 */
    uint32_t received; /* bytes of it so far */
    uint64_t va;       /* of a WRITE: where the next byte goes, */
    uint32_t rkey;
    uint32_t left; /* and how many are to come */
};

enum ack_urgency { ACK_NONE, ACK_UNASKED, ACK_ASKED, ACK_NOW };

struct responder {
    uint32_t psn;     /* expected */
    uint64_t count;   /* PSNs executed since the beginning: tells a PSN from the same one of a lap ago */
    uint32_t msn;     /* messages executed */
    uint32_t mtu;     /* payload bytes of a full packet, of the peer's requests and what answers them */
    bool established; /* a packet has been accepted, */
    bool begun;       /* one that was expected */
    struct inbound in;

    bool nak_sent;     /* for the expected PSN; silent until it comes */
    uint32_t nak_high; /* last PSN out of sequence */
    bool nak_pending;
    uint8_t syndrome; /* of the pending NAK */

    enum ack_urgency ack; /* of what waits to be acknowledged */
    uint64_t ack_since;
    bool answers; /* the program has sent something shortly after the last WRITE: it sees them in its memory, and may do so again */
    /* PSN that an ACK carries: of the last SEND or WRITE packet executed that asked for one or ended a message, or one that is long
     * past.  docs/rooms/transports.md says why it is not of a later one. */
    uint32_t acked;

    struct resource *res; /* ring of max_dest_rd_atomic */
    uint32_t res_size, res_next;
    uint32_t *queue; /* FIFO of resources with responses to send */
    uint32_t queue_head, queue_count;
};

struct rc {
    uint32_t mtu;     /* payload bytes of a full packet, of requests and their answers */
    bool lingers;     /* in ERR, but not flushed yet: a peer is inside a copy; */
    uint64_t look_at; /* then we look again, */
    uint64_t pause;   /* and so long after that once more */
    struct requester req;
    struct responder resp;
    struct congestion congestion;
};

static inline struct rc *rc_of(const struct qp *qp) { return (struct rc *)qp->engine_state; }

struct uc {
    uint32_t mtu;     /* payload bytes of a full packet */
    uint32_t mtu_in;  /* of the peer's */
    uint32_t psn;     /* of the next packet to send */
    uint32_t pkt;     /* packets of the oldest send element that have gone out */
    uint32_t rcv_psn; /* expected */
    bool established; /* a packet has come */
    struct inbound in;
    struct congestion congestion;
};

static inline struct uc *uc_of(const struct qp *qp) { return (struct uc *)qp->engine_state; }

extern const struct transport roce_transport;
/* attr.c: what all services of the transport have in common of struct engine_ops; forget: of their reset() */
int roce_check(const struct qp *qp, const struct rnic_qp_attr *attr, uint32_t mask, struct rnic_err *err);
void roce_take(struct qp *qp);
void roce_disconnect(struct qp *qp);
void roce_forget(struct qp *qp);
extern const struct engine_ops roce_rc_ops;

/* A packet being written. */
struct out {
    uint8_t *bth;
    const struct roce_opcode *row;
    struct link *link;
    uint32_t crc, payload, pad;
    struct rnic_sge elsewhere; /* by a bare link: where the payload is, if length is not 0, */
    uint32_t owner;            /* and whose queue pair's */
};

extern const struct engine_ops roce_ud_ops;
extern const struct engine_ops roce_uc_ops;

/* A datagram's headers (IBA 9.3.2). */
struct datagram {
    uint32_t dqpn, sqpn, qkey, psn;
};

/* emit.c. open: room and the BTH, whose opcode is RC's, made that of the queue pair's service, of a request, or, by its
 * row, of an answer, which may go another way; the caller then fills the extended headers, calls out_headers, places the
 * payload (continuing out->crc) and closes.  False: the sink is full. An opened packet that is not closed is not sent. */
bool out_open(struct qp *qp, struct out *out, uint8_t opcode, uint32_t payload, uint32_t psn, bool ackreq,
              bool solicited);
void out_headers(struct out *out);
/* The same along any way, for any queue pair. */
bool out_open_to(struct way *way, struct out *out, uint8_t opcode, uint32_t payload, uint32_t dqpn, uint32_t psn,
                 uint16_t pkey);
uint32_t out_close_to(struct out *out); /* bytes of the packet */
void out_deth(const struct out *out, const struct datagram *d);
void out_put(struct out *out, const void *src); /* the payload, all of it */
static inline uint32_t *out_crc(struct out *out) { return out->link->bare ? NULL : &out->crc; }
static inline uint8_t *out_payload(const struct out *out) { return out->bth + out->row->header; }
void out_close(struct qp *qp, struct out *out);

/* Packets that a message of that many bytes takes; a message of 0 bytes takes one. */
static inline uint32_t packets_of(uint32_t length, uint32_t mtu) { return length ? (length - 1) / mtu + 1 : 1; }
static inline uint32_t packet_length(uint32_t length, uint32_t mtu, uint32_t i) {
    uint32_t left = length - i * mtu;
    return left < mtu ? left : mtu;
}

/* req.c */
void req_init(struct qp *qp);
bool req_next(struct qp *qp, uint64_t now, bool *sent);
/* A SEND of up to REQ_BRIEF bytes to a peer on this host, all before which has been sent, if it may go: what req_next()
 * finds out about every packet is known of it.  The time. */
#define REQ_BRIEF 32u
uint64_t req_send_brief(struct qp *qp, struct send_wqe *wqe);
bool req_outstanding(const struct requester *req);
bool req_has_asked(const struct requester *req); /* something under way, since una, has asked for an answer */
bool req_goes_on(struct qp *qp); /* there is a packet to send, first or again, as soon as windows and limits allow it */
uint32_t req_flight(struct qp *qp);
void req_rewind(struct qp *qp);              /* the next packet is una again */
void req_probe(struct qp *qp, uint64_t now); /* a packet once more, with AckReq */
bool wqe_waits(const struct send_wqe *wqe);  /* READ, atomic and their like: complete only with a response */
void req_drained(struct qp *qp);             /* raises SQ_DRAINED when SQD has come to rest */

/* comp.c */
void comp_input(struct qp *qp, const struct packet *pkt, uint64_t now);
bool comp_expects(const struct qp *qp, const struct packet *pkt);
void comp_timeout(struct qp *qp, uint64_t now);
void comp_halted(struct qp *qp);   /* completes the failed element when it is the oldest */
void comp_locals(struct qp *qp);   /* completes local elements that are the oldest, and done */
uint64_t rnr_delay(unsigned code); /* ns that the peer asks for */

/* resp.c, resp_out.c */
int resp_init(struct qp *qp);
void resp_free(struct qp *qp);
void resp_input(struct qp *qp, const struct packet *pkt, uint64_t now);
bool resp_expects(const struct qp *qp, const struct packet *pkt);
void resp_next(struct qp *qp, uint64_t now); /* READ and atomic responses */
/* Then a NAK or ACK that is due.  True: there is more to write now, of either. */
bool resp_ack(struct qp *qp, uint64_t now, bool company);
bool resp_ack_ahead(struct qp *qp, uint64_t now); /* the same, if it is to go before requests */
/* Writes the ACK that waits, for the packet behind it to go in one piece with it, as link_ops.put() allows: its bytes; 0: none
 * waits that may.  gone: it has been put. */
uint32_t resp_join_ack(const struct qp *qp, uint8_t *packet);
void resp_ack_gone(struct qp *qp);
uint64_t resp_due(const struct qp *qp); /* when the ACK that waits is due by itself */

#endif
