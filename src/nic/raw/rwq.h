/* SPDX-License-Identifier: Apache-2.0
 *
 * Receive work queues and the tables by which a queue pair spreads what it receives over them (man ibv_create_wq,
 * ibv_create_rwq_ind_table).
 */
#ifndef RNIC_RAW_RWQ_H
#define RNIC_RAW_RWQ_H

#include "qp/qp.h"
#include "raw/frame.h"
#include "raw/toeplitz.h"

#define RWQ_TABLE_LOG 12 /* of a table's size, at most */

struct rwq {
    struct rnic_wq pub;
    struct nic *nic;
    struct wq q;
    _Atomic int state;    /* enum rnic_wq_state */
    int tables;           /* entries that name it */
    struct listed listed; /* in the context's list of its kind; device's lock */
};

struct rwq_table {
    struct rnic_rwq_ind_table pub;
    int qps;              /* that spread by it */
    struct listed listed; /* in the context's list of its kind; device's lock */
    uint32_t size;        /* a power of two */
    struct rwq *wq[];
};

/* How a queue pair spreads: its table, and what it hashes. */
struct rss {
    struct rwq_table *table; /* NULL: it does not */
    uint64_t fields;         /* enum rnic_rx_hash_fields */
    uint8_t key[TOEPLITZ_KEY_BYTES];
};

int rwq_check_hash(const struct rnic_rx_hash_conf *conf, struct rnic_err *err);
/* The hash of a frame's fields; those that it does not have are left out, and with none at all it is 0. */
uint32_t rss_hash(const struct rss *rss, const struct frame *f);
struct rwq *rss_choose(const struct rss *rss, const struct frame *f);

/* Checks and does a change of state. 0, -EINVAL */
int rwq_modify(struct rwq *wq, const struct rnic_wq_attr *attr, struct rnic_err *err);
void rwq_complete(struct rwq *wq, struct rnic_wc *wc);
void rwq_error(struct rwq *wq); /* what it had to take failed: WQ_FATAL, and all that is posted is flushed */
void rwq_end(struct rwq *wq);   /* the device has gone: the same, without an event */
void rwq_flush(struct rwq *wq); /* what has been posted since, too */

#endif
