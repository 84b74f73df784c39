/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests on real devices, with their threads and sockets: a network of their own, and connected queue pairs.
 */
#ifndef RNIC_TESTS_LIVE_H
#define RNIC_TESTS_LIVE_H

#include "nic.h"

/* Without the right to a namespace the host's own lo serves as well. */
void live_isolate(void);

/* Takes an RC or UC queue pair to RTS, towards number `dest` at address `to`; 0 or -errno. */
int live_connect(struct rnic_qp *qp, const struct rnic_gid_entry *to, uint32_t dest);
/* The same, with that timeout and number of retries. */
int live_connect_with(struct rnic_qp *qp, const struct rnic_gid_entry *to, uint32_t dest, uint8_t timeout,
                      uint8_t retries);

#define LIVE_BYTES (1u << 20)

/* A context on lo, and what queue pairs need: one completion queue, and memory that peers may read and write. */
struct live {
    struct rnic_context *ctx;
    const struct rnic_ops *ops;
    struct rnic_gid_entry gid;
    struct rnic_pd *pd;
    struct rnic_cq *cq;
    struct rnic_mr *mr;
    uint8_t *mem;
};

/* local: as of struct rnic_open_attr. */
void live_open(struct live *l, int local);
void live_close(struct live *l);
/* A signaling RC queue pair; its context is itself. */
struct rnic_qp *live_qp(struct live *l);
void live_join(struct live *a, struct rnic_qp *qp_a, struct live *b, struct rnic_qp *qp_b, uint8_t timeout,
               uint8_t retries);
/* offset: of the bytes in mem, and in the peer's. */
void live_post(struct live *l, struct rnic_qp *qp, int opcode, uint64_t id, uint64_t offset, uint32_t n,
               const struct live *peer);
void live_post_recv(struct live *l, struct rnic_qp *qp, uint64_t id, uint64_t offset, uint32_t n);
/* Waits for the next completion, which only a hang keeps from coming. */
struct rnic_wc live_wait(struct live *l);
void live_nap(void); /* a moment, between two looks */
double live_seconds(void);

/* What the link asks of the kernel by syscall(2), for a test that stands in its place. */
long live_syscall(long number, const long a[6]);

#endif
