/* SPDX-License-Identifier: Apache-2.0
 *
 * Send and receive queues: rings of fixed-size work queue elements.
 *
 * The application appends under the queue's lock and publishes `head`; the engine, under the device's lock, consumes
 * and moves `tail`.  An element keeps its place from post to completion.
 */
#ifndef RNIC_QUEUE_WQ_H
#define RNIC_QUEUE_WQ_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "base/listed.h"
#include "nic.h"

#define SQ_MAX_MESSAGE 0x7FFFFFFFu /* 2 GiB - 1; IBA C9-5 allows 2^31, length fields of verbs are 32 bits */

/* The head of an address handle: a send element that names one keeps it alive until it completes. */
struct ah_head {
    struct rnic_ah pub;
    _Atomic uint32_t users; /* its owner, and elements */
};

static inline void ah_hold(struct ah_head *ah) { atomic_fetch_add(&ah->users, 1); }
static inline void ah_drop(struct ah_head *ah) { atomic_fetch_sub(&ah->users, 1); } /* the device frees it */

struct send_wqe {
    uint64_t wr_id;
    union {
        struct {
            uint64_t remote_addr;
            union {
                struct {
                    uint64_t compare_add, swap; /* atomics */
                };
                struct {
                    uint32_t flush_length;           /* bytes */
                    uint8_t flush_type, flush_level; /* enum rnic_placement_type, enum rnic_selectivity_level */
                };
            };
            uint32_t rkey, remote_srqn; /* the latter of XRC */
        };
        struct { /* datagrams */
            struct ah_head *ah;
            uint32_t remote_qpn, remote_qkey;
        };
        struct { /* BIND_MW, by keys: the objects may be gone when its turn comes */
            uint64_t bind_addr, bind_length;
            uint32_t window, new_key, region, access;
        };
    };
    uint32_t imm;    /* network byte order; of *_INV the key, in the host's */
    uint32_t length; /* of the message */
    uint16_t num_sge;
    uint8_t opcode; /* enum rnic_wr_opcode */
    uint8_t flags;  /* enum rnic_send_flags */
    bool asks;      /* for an answer: others wait for that, and not for a completion */

    /* The engine's, from here on. */
    bool started;
    uint8_t status;     /* enum rnic_wc_status, once known to have failed */
    uint8_t vendor_err; /* enum rnic_vendor_err */
    union {
        struct {                         /* of InfiniBand's transports */
            uint32_t first_psn, packets; /* PSNs that the message takes: first_psn .. first_psn + packets - 1 */
            uint32_t chunk;              /* READ: packets a request asks for at most */
            uint32_t ssn;                /* send sequence number (IBA 9.7.7.2), of a READ in parts that of the last */
        };
        struct {              /* of iWARP */
            uint32_t msn;     /* of the message; of a READ its sink's key, too */
            uint32_t arrived; /* READ: bytes of the answer */
            bool done;        /* it has its answer, or is to have none */
        };
    };
    union {
        uint64_t cost;           /* link bytes of everything before it on this QP, see roce/req.c */
        uint64_t end;            /* iWARP: its place in the stream */
        struct rnic_mw *binding; /* BIND_MW, while it is posted: the window, should the chain be taken back */
    };

    struct rnic_sge sge[]; /* num_sge of them, or the inline bytes */
};

struct recv_wqe {
    uint64_t wr_id;
    uint64_t length; /* of all elements */
    int num_sge;
    struct rnic_sge sge[];
};

/* What a service lets post to its send queues. */
struct sq_rules {
    uint32_t operations; /* 1 << enum rnic_wr_opcode */
    uint32_t flags;      /* enum rnic_send_flags beside those that all have */
    bool datagrams;      /* a request names its destination, */
    bool shared;         /* or the peer's shared receive queue */
    /* Why another operation is refused. */
    int (*refuse)(int opcode, struct rnic_err *err);
};

struct wq {
    pthread_mutex_t lock;     /* of those who post */
    const _Atomic int *state; /* its owner's, which decides whether posts are taken; NULL: they always are */
    int from;                 /* the first state that takes them */
    uint8_t *slots;
    uint32_t mask, stride;
    uint32_t max_wr, max_sge, max_inline;
    const struct sq_rules *rules; /* of a send queue: what may be posted */
    const struct rnic_pd *pd;     /* whose memory its elements name; address handles must be of it, too */
    _Atomic uint32_t head;        /* next to post */
    _Atomic uint32_t tail;        /* oldest not completed */
    /* One past the newest element whose completion has been polled: only then is its place free, and with it those of
     * the unsignaled ones before it (man ibv_post_send; so a CQ with room for every element never overruns). */
    _Atomic uint32_t freed;
};

int wq_init(struct wq *q, uint32_t max_wr, uint32_t max_sge, uint32_t max_inline, uint32_t wqe_bytes);
void wq_free(struct wq *q);
/* The owner has left the states that take posts: until nobody is inside one any more, which takes as long as one element
 * does. Then the queue is its alone. */
void wq_await_posters(struct wq *q);
void wq_reset(struct wq *q);
/* Exchanges the ring for another one that holds so many elements from 0 on; the caller has kept all others out. */
void wq_adopt(struct wq *q, struct wq *other, uint32_t elements);

static inline void *wq_slot(const struct wq *q, uint32_t i) { return q->slots + (size_t)(i & q->mask) * q->stride; }
static inline struct send_wqe *sq_wqe(const struct wq *q, uint32_t i) { return (struct send_wqe *)wq_slot(q, i); }
static inline struct recv_wqe *rq_wqe(const struct wq *q, uint32_t i) { return (struct recv_wqe *)wq_slot(q, i); }

static inline uint32_t wq_head(const struct wq *q) { return atomic_load_explicit(&q->head, memory_order_acquire); }
static inline uint32_t wq_tail(const struct wq *q) { return atomic_load_explicit(&q->tail, memory_order_relaxed); }
static inline bool wq_empty(struct wq *q) { return wq_head(q) == wq_tail(q); }
static inline void wq_pop(struct wq *q) { atomic_store_explicit(&q->tail, wq_tail(q) + 1, memory_order_release); }

/* Another thread may change a request while it is posted, and what was checked must be what is done.  So it is read once,
 * into private memory; the compiler may not look at the original again, either. */
static inline void read_once(void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
    atomic_signal_fence(memory_order_seq_cst);
}

static inline void wr_read(struct rnic_send_wr *to, const struct rnic_send_wr *from) {
    read_once(to, from, offsetof(struct rnic_send_wr, bind_mw)); /* which is a third of it, and rarely there */
    if (to->opcode == RNIC_WR_BIND_MW)
        read_once(&to->bind_mw, &from->bind_mw, sizeof to->bind_mw);
}

/* Append a chain. All before *bad are in, none from it on. */
int sq_post(struct wq *q, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad, struct rnic_err *err);
/* One that is known to be good and to have room, of wr_read(); the caller holds the lock. -EINVAL: its elements are too
 * long */
int sq_append(struct wq *q, const struct rnic_send_wr *wr);
/* The same, but all of it or nothing. */
int sq_post_whole(struct wq *q, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad, struct rnic_err *err);
/* WRITEs of a piece and of a word (nic_ext.h: rnic_ext_behind); the caller keeps the engine out, and this waits for nobody who
 * posts. false: it is another chain, or of XRC, or there is no room. */
bool sq_post_pair(struct wq *q, const struct rnic_send_wr *wr);
/* Whether a request is under way, and the newest one makes the peer answer. */
bool sq_awaits(const struct wq *q);
/* 0, or why a queue pair of those rules cannot be asked for that operation. */
int sq_check_opcode(const struct sq_rules *rules, int opcode, struct rnic_err *err);
int rq_post(struct wq *q, const struct rnic_recv_wr *wr, const struct rnic_recv_wr **bad, struct rnic_err *err);

/* A window's key, for whoever posts: threads may bind it by several queue pairs at once. */
static inline uint32_t window_key(const struct rnic_mw *mw) { return __atomic_load_n(&mw->rkey, __ATOMIC_RELAXED); }
static inline void set_window_key(struct rnic_mw *mw, uint32_t key) {
    __atomic_store_n(&mw->rkey, key, __ATOMIC_RELAXED);
}

/* No packet carries it (qp/element.c). */
static inline bool wqe_is_local(const struct send_wqe *wqe) {
    return wqe->opcode == RNIC_WR_LOCAL_INV || wqe->opcode == RNIC_WR_BIND_MW;
}

const char *wr_opcode_name(int opcode);

/* The completion opcode of a send opcode (IBA 11.4.2.1). */
int wc_opcode_of(int wr_opcode);

#endif
