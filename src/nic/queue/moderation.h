/* SPDX-License-Identifier: Apache-2.0
 *
 * Moderation: the event of a completion queue waits until so many completions are worth it, or the first of them has
 * waited so long (ibv_modify_cq(3)).  An event that waits is never lost: the device comes back for it.
 *
 * Everything under the device's lock.
 */
#ifndef RNIC_QUEUE_MODERATION_H
#define RNIC_QUEUE_MODERATION_H

#include "queue/cq.h"

/* The completion that has just come would raise the event; the queue has a period. True: it waits for more. */
bool moderation_holds(struct cq *cq);
/* Other limits; the event that waits under the old ones comes at once. */
void moderation_set(struct cq *cq, const struct rnic_moderate_cq *limits);
void moderation_forget(struct cq *cq); /* the queue goes */

void moderation_timer(struct cq_timing *timing, uint64_t now);
uint64_t moderation_deadline(const struct cq_timing *timing); /* UINT64_MAX: no event waits */

#endif
