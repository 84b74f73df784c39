/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams of queue pairs that have begun and ended, for whoever has made them: the oldest first, of each queue pair a beginning
 * and an end at most.
 */
#ifndef RNIC_DEV_ENDS_H
#define RNIC_DEV_ENDS_H

#include "qp/qp.h"

struct ends {
    int fd; /* readable while there is one; -1: not open */
    struct rnic_stream_event *ring;
    uint32_t room, first, count;
};

/* All under the lock, but open, close and abandon.  reserve: there is room for so many queue pairs; 0, -ENOMEM.  forget: the queue pair
 * goes, or begins anew.  take: false: there is none. */
int ends_open(struct ends *ends, struct nic *nic, struct rnic_err *err);
void ends_close(struct ends *ends);
void ends_abandon(struct ends *ends); /* in a forked child */
int ends_reserve(struct ends *ends, uint32_t qps);
void ends_forget(struct ends *ends, uint32_t qp_num);
bool ends_take(struct ends *ends, struct rnic_stream_event *event);

#endif
