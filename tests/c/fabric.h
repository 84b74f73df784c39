/* SPDX-License-Identifier: Apache-2.0
 *
 * A fabric of devices in one process, on virtual time: engines as the device runs them, but with wires instead of
 * sockets and a clock that jumps to the next event.  No threads, no sleeps: a run is a function of its options.
 */
#ifndef RNIC_TESTS_FABRIC_H
#define RNIC_TESTS_FABRIC_H

#include <stddef.h>

#include "link/fault.h"
#include "qp/ah.h"
#include "qp/xrc.h"

#define NODES 3
#define NODE_QPS 4
#define NODE_AHS 8
#define US 1000ull
#define MS 1000000ull
#define SEC 1000000000ull

struct fabric;

struct sink {         /* one packet at a time */
    struct link link; /* first */
    struct node *node;
    struct way *way;
    uint32_t n, budget;
    int users;        /* ways that are held */
    bool in_response; /* the last READ response was not the last of its stream */
    uint32_t response_psn;
    uint8_t bytes[8192];
};

struct node {
    struct fabric *fabric;
    struct nic nic;
    struct pd pd, other_pd;
    struct sockaddr_in6 addr, addr2; /* GID index 0 and 1 */
    struct sink sink;
    struct fault fault; /* of what it sends */
    struct qp *qp[NODE_QPS];
    int qps;
    struct ah *ah[NODE_AHS];
    int ahs;
    uint64_t wire_free; /* its wire has sent all there is by then */
    uint64_t run_at;    /* engines are to run then, see lazy; NEVER */

    uint64_t lazy;   /* ns between an input and the engines' turn: several packets come in one batch */
    uint32_t budget; /* packets that the sink takes a turn; 0: all */
    uint64_t pause;  /* ns between two turns when the sink was full */
};

enum verdict { PASS, LOSE, TWICE, LATE }; /* LATE: after fabric.late ns */

/* One packet as it was sent (arrived 0) or as it was accepted by its receiver (arrived 1). */
struct record {
    uint64_t at;
    uint8_t from, arrived, opcode, syndrome;
    bool ackreq, solicited;
    uint32_t psn, length, msn; /* length: payload, or of a READ request: what it asks for */
    uint64_t va;
};

struct fabric {
    uint64_t now, latency, late;
    uint64_t bandwidth; /* bytes a second; 0: infinite */
    bool ipv6;
    struct node node[NODES];
    /* What happens to the nth packet (from 0) that a node sends, before its fault injector; NULL: all pass. */
    enum verdict (*judge)(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth);
    void *judge_arg;
    uint32_t judged[NODES];
    /* Sees each packet that a queue pair is about to take; NULL: nobody does. */
    void (*witness)(void *arg, const struct qp *to, const struct packet *pkt);
    void *witness_arg;
    const struct sockaddr_in6 *dead; /* nothing comes from or to that address; NULL: all are well */

    struct in_flight **heap; /* by time of arrival */
    uint32_t in_heap, heap_room;
    uint64_t sequence;
    struct record *log;
    uint32_t logged, log_room;
    bool quiet; /* keep no log */
};

void fabric_open(struct fabric *f, bool ipv6);
void fabric_close(struct fabric *f);
/* Runs until nothing is left to happen, or to that time; returns whether all is quiet. */
bool fabric_run(struct fabric *f, uint64_t until);
void fabric_silence(struct node *node); /* nothing that it sends arrives, until fabric.judge is NULL again */
void fabric_settle(struct fabric *f);   /* runs until all is quiet; a failure after an hour of virtual time */
bool fabric_step(struct fabric *f, uint64_t until);

struct qp *fabric_qp(struct node *node, const struct rnic_qp_cap *cap, struct cq *send_cq, struct cq *recv_cq);
/* A datagram queue pair in RTS with that Q_Key, and the way to a node; fabric_close() frees both. */
struct qp *fabric_ud(struct node *node, int type, uint32_t qkey, struct cq *send_cq, struct cq *recv_cq);
struct ah *fabric_ah(struct node *node, const struct node *to);
/* A shared receive queue of XRC. */
struct srq *fabric_srq(struct node *node, struct xrc_domain *domain, struct pd *pd, struct cq *cq, uint32_t max_wr);
void fabric_drop_srq(struct node *node, struct srq *srq);
void fabric_destroy(struct qp *qp);
int fabric_modify(struct qp *qp, const struct rnic_qp_attr *attr, uint32_t mask, struct rnic_err *err);
void fabric_turn(struct qp *qp); /* the engine's turn after a post */
struct cq *fabric_cq(int cqe, struct channel *ch);
void fabric_drop_cq(struct cq *cq);
struct mr *fabric_mr(struct node *node, struct pd *pd, void *addr, uint64_t length, uint32_t access);
void fabric_drop_mr(struct node *node, struct mr *mr);
/* Gives a packet to whom it is addressed to, as if `from` had sent it: BTH to payload and pad, the ICRC is added. */
void fabric_inject(struct node *from, struct way *way, const uint8_t *bytes, uint32_t n);
/* Packets of an opcode (-1: any) that a node sent (arrived 0), or that were accepted from it (arrived 1). */
uint32_t fabric_count(const struct fabric *f, const struct node *from, int arrived, int opcode);

/* ---------------------------------------------------------------- two queue pairs, connected */

struct options {                        /* 0: the default */
    int type;                           /* enum rnic_qp_type: RC, UC or XRC_SEND (of b XRC_RECV); RC */
    int mtu;                            /* enum rnic_mtu; MTU_1024 */
    uint32_t sq_psn, rq_psn;            /* of a: sends from sq_psn on, expects rq_psn; 0x123456, 0x654321 */
    uint32_t rd_atomic, dest_rd_atomic; /* 4, 4; NONE: 0 */
    uint32_t wr, sge, inline_data;      /* 64, 4, 64 */
    uint32_t window;                    /* 1 MiB */
    uint32_t access;                    /* qp_access_flags: all; NONE: 0 */
    uint8_t timeout, retry_cnt, rnr_retry, min_rnr_timer; /* 14, 7, 7, 12 (640 us); NONE: 0 */
    uint32_t cqe;                                         /* 256 */
    uint64_t bytes;                                       /* of each end's buffer; 64 KiB */
    uint64_t latency;                                     /* 10 us */
    uint64_t bandwidth, ack_hold, lazy, pause;
    uint32_t budget;
    bool ipv6, quiet, sig_all, congestion;
};
#define NONE 0xFF

struct end {
    struct node *node;
    struct end *peer;
    struct qp *qp;
    struct cq *send_cq, *recv_cq;
    struct channel channel; /* of both CQs */
    uint8_t *mem;
    struct mr *mr;
    uint64_t bytes;
    struct xrc_domain domain; /* of b with XRC, */
    struct srq *srq;          /* and one shared receive queue in it, which completes to recv_cq */
};

struct pair {
    struct fabric f;
    struct end a, b;
};

#define ALL_ACCESS                                                                                                     \
    (RNIC_ACCESS_LOCAL_WRITE | RNIC_ACCESS_REMOTE_WRITE | RNIC_ACCESS_REMOTE_READ | RNIC_ACCESS_REMOTE_ATOMIC)
#define pair_open(p, ...) pair_open_options(p, &(struct options){__VA_ARGS__})
void pair_open_options(struct pair *p, const struct options *o);
void pair_close(struct pair *p);
void pair_close_quietly(struct pair *p);                   /* when pair_quiet() */
void pair_quiet(struct pair *p);                           /* all is done: no completion, no event, both in RTS */
void pair_in_step(const struct pair *p);                   /* both ends count alike, if nothing is under way */
void pair_connect(struct end *e, const struct options *o); /* RESET to RTS */
void pair_respond(struct end *e, const struct options *o); /* any state to RTR */
struct rnic_qp_attr pair_attr(const struct end *e, const struct options *o);

extern const uint32_t mask_init, mask_rtr, mask_rts; /* required of these transitions of RC, STATE included */
int move(struct qp *qp, int state);                  /* modify with the state alone */

/* All are signaled; offsets are into the ends' buffers.  Posting fails the test unless it succeeds. */
void post(struct end *e, struct rnic_send_wr wr);
int try_post(struct end *e, struct rnic_send_wr wr);
void post_send(struct end *e, uint64_t id, uint64_t at, uint32_t n);
void post_write(struct end *e, uint64_t id, uint64_t at, uint64_t to, uint32_t n);
void post_read(struct end *e, uint64_t id, uint64_t at, uint64_t from, uint32_t n);
void post_add(struct end *e, uint64_t id, uint64_t at, uint64_t remote, uint64_t add);
void post_swap(struct end *e, uint64_t id, uint64_t at, uint64_t remote, uint64_t compare, uint64_t swap);
void post_recv(struct end *e, uint64_t id, uint64_t at, uint32_t n);
#define SGE(e, at, n) {(uintptr_t)(e)->mem + (at), (n), (e)->mr->pub.lkey}
#define SGL(...) .sg_list = (struct rnic_sge[]){__VA_ARGS__}, .num_sge = sizeof((struct rnic_sge[]){__VA_ARGS__}) / sizeof(struct rnic_sge)
#define REMOTE(e, at) .wr.rdma = {(uintptr_t)(e)->mem + (at), (e)->mr->pub.rkey}

struct rnic_wc take_wc(struct cq *cq, const char *file, int line); /* the next completion; none: the test fails */
struct rnic_wc want_wc(struct cq *cq, uint64_t id, int status, const char *file, int line);
#define TAKE(cq) take_wc(cq, __FILE__, __LINE__)
#define WANT(cq, id, status) want_wc(cq, id, RNIC_WC_##status, __FILE__, __LINE__)
void want_err(struct cq *cq, uint64_t id, int status, int vendor, const char *file, int line);
#define WANT_ERR(cq, id, status, vendor) want_err(cq, id, RNIC_WC_##status, RNIC_VE_##vendor, __FILE__, __LINE__)
void want_no_wc(struct cq *cq, const char *file, int line);
#define WANT_NONE(cq) want_no_wc(cq, __FILE__, __LINE__)
/* Takes an asynchronous event of the end's device; -1: there is none. */
int take_event(struct end *e);
void want_event(struct end *e, int event, const char *file, int line);
#define WANT_EVENT(e, event) want_event(e, RNIC_EVENT_##event, __FILE__, __LINE__)
#define WANT_NO_EVENT(e) want_event(e, -1, __FILE__, __LINE__)

void fill(uint8_t *p, uint64_t n, uint64_t seed);
bool filled(const uint8_t *p, uint64_t n, uint64_t seed); /* with that seed's bytes */
uint64_t count_of(const struct end *e, int counter);
#define COUNTER(e, name) count_of(e, RNIC_CNT_##name)

#endif
