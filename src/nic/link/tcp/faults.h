/* SPDX-License-Identifier: Apache-2.0
 *
 * The fault injector of streams: what TCP lets through to those above it.  What is lost, sent twice or out of order on the
 * wire TCP hides.
 */
#ifndef RNIC_LINK_TCP_FAULTS_H
#define RNIC_LINK_TCP_FAULTS_H

#include "base/rng.h"
#include "link/link.h"

struct stream_faults {
    bool on;
    struct rnic_fault cfg;
    struct rng rng;
};

/* Of a stream. */
struct stream_harm {
    uint64_t written; /* bytes, since the injector was told */
    uint64_t until;   /* nothing is written up to then; 0: it is; UINT64_MAX: nor read, and never more */
    bool waited;      /* the next write has had its delay */
};

enum harm { HARM_NONE, HARM_WAIT, HARM_STALL, HARM_RESET };

void stream_faults_set(struct stream_faults *f, const struct rnic_fault *cfg); /* NULL: off */
/* What happens to a write; *n: bytes of it, and how many of them may go. */
enum harm stream_faults_write(struct stream_faults *f, struct rnic_counters *cnt, struct stream_harm *harm, size_t *n,
                              uint64_t now);
size_t stream_faults_read(struct stream_faults *f, size_t n); /* how many bytes of so many may be read */
/* A frame's bytes before its CRC is computed, or sealed: with it. */
void stream_faults_spoil(struct stream_faults *f, struct rnic_counters *cnt, uint8_t *bytes, uint32_t n, bool sealed);

#endif
