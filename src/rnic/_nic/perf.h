/* SPDX-License-Identifier: Apache-2.0
 *
 * The measuring loops of `rnic perf` and of bench/native.c, on the operations table alone: what the device does without the
 * interpreter.
 *
 * Two processes each have an end, with its queue pairs connected to the other's, and a stream socket between them (the
 * line).  On the line nothing is said while both are in a loop, but for the word that ends a loop which only serves.
 */
#ifndef RNIC_PERF_H
#define RNIC_PERF_H

#include <stdbool.h>
#include <stdint.h>

#include "nic.h"
#include "samples.h"

#define PERF_GROUP_MAX 256

enum perf_loop {
    PERF_STREAM,   /* as many operations on their way as fit */
    PERF_SINK,     /* takes messages until the line speaks */
    PERF_LATENCY,  /* one operation after the other, to its completion */
    PERF_PINGPONG, /* messages to and fro; a message is a receive that completes */
    PERF_MEMORY,   /* the same by WRITE: a message is the last byte of the target, which changes */
};

enum { PERF_DONE, PERF_HEARD };

struct perf_plan {
    int loop;
    int opcode;
    uint32_t size;       /* bytes */
    bool inlined;        /* INLINE */
    bool serving;        /* answers, until the line speaks; else measures */
    bool both_ways;      /* the peer streams too: receives are refilled, and what it says on the line waits */
    uint32_t group;      /* operations of which the last is signaled, at most depth */
    bool chained;        /* a group is posted by one call */
    uint64_t warmup_ns;  /* nothing is measured before */
    uint64_t iterations; /* operations that are measured, of each queue pair, or 0: */
    uint64_t ns;         /* for so long */
};

struct perf_qp {
    struct rnic_qp *qp;
    uint32_t out;      /* sends posted, and not known to be done */
    uint32_t silent;   /* the last of them that were not signaled */
    uint32_t receives; /* posted */
    uint64_t messages; /* sent, ever; */
    uint64_t taken;    /* and received: so many receives have been posted again, */
    uint64_t told;     /* as the peer knows, or will */
    bool telling;
};

struct perf_end {
    /* Set by its maker, and constant. */
    const struct rnic_ops *ops;
    struct perf_qp *qps;
    uint32_t num_qps;
    struct rnic_cq *cq;
    struct rnic_comp_channel *channel; /* to sleep on; NULL: poll */
    int line;
    uint64_t source, target; /* addresses: what is sent, and where receives and READs go */
    uint32_t room;           /* bytes of each */
    uint32_t lkey;
    uint64_t remote_source, remote_target; /* the peer's */
    uint32_t rkey;
    uint32_t depth, rx_depth; /* of each queue pair */
    /* Streams to a peer whose queue pairs cannot ask for patience, as iWARP has no RNR: receives that the peer has posted to
     * each; then WRITEs to the word of a queue pair say how many of them have been posted again.  0: it can ask. */
    uint32_t allowance;
    uint64_t words, remote_words;    /* addresses; 8 bytes for each queue pair, 0 at first */
    uint32_t all_depth;              /* of all queue pairs together; of streams */
    uint32_t yield_polls;            /* empty polls until others may have the processor */
    uint64_t quiet_ns;               /* a wait in which nothing moves ends after so long */
    int (*interrupted)(void *owner); /* whether a signal asks for the end; asked now and then */
    void *owner;
    bool tsc; /* timestamps are the processor's, which the kernel trusts */

    /* Set by perf_calibrate(). */
    uint64_t tick;   /* 2^-32 ns for each of the TSC */
    double stamp_ns; /* what a timestamp costs: it is part of each sample */

    /* The loops' own. */
    uint64_t completed, received; /* operations and messages, ever */
    uint64_t looked;              /* ns: when it was last looked */
    bool armed;
    uint32_t events; /* of the channel, not acknowledged */
    const struct perf_plan *plan;

    /* What a loop leaves. */
    uint64_t operations, ns; /* measured; of operations, so far */
    double peak;             /* operations a second in the best window; 0: none was long enough */
    struct perf_histogram histogram;
    struct rnic_wc bad; /* with -EIO: the completion that failed */
    const char *verb;   /* of any other error but -EINTR, -ETIMEDOUT, -ECONNRESET: what was called */
    struct rnic_err err;
};

/* Once, before the first run; takes 20 ms. */
void perf_calibrate(struct perf_end *e);

/* PERF_DONE; PERF_HEARD: the line spoke, or is closed; or -errno (-EINTR: interrupted, -ETIMEDOUT: quiet for too long, -ECONNRESET: the
 * line is closed and cannot be read yet, -EIO: a completion failed).  Receives that a loop posted stay for the next one. */
int perf_run(struct perf_end *e, const struct perf_plan *plan);

/* Posts all the receives that fit. */
int perf_fill(struct perf_end *e);

/* Before the completion queue is closed. */
void perf_settle(struct perf_end *e);

#endif
