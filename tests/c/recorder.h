/* SPDX-License-Identifier: Apache-2.0
 *
 * recorder.h: a provider that does nothing but write down what it is asked.  It proves the seam of nic.h.
 */
#ifndef RNIC_RECORDER_H
#define RNIC_RECORDER_H

#include "nic.h"

/* A new context; its operations append one line per call to its log.  close() leaves it readable; recorder_free()
 * frees it. */
struct rnic_context *recorder_new(void);
void recorder_free(struct rnic_context *ctx);

const char *recorder_log(const struct rnic_context *ctx);
void recorder_clear(struct rnic_context *ctx);

/* A provider whose device part0 has only some of the verbs, and no extension.  The device is listed while that is on. */
const struct rnic_provider *recorder_partial(void);
void recorder_list_partial(bool on);
void recorder_list_fails(int rc);
/* The same without this verb, poll_cq or destroy_ah, which it may not lack; or without a name, for "name". */
const struct rnic_provider *recorder_incomplete(const char *lacks);

/* What lives: pd, mr, channel, cq, qp objects that were made and not yet destroyed. */
int recorder_alive(const struct rnic_context *ctx);

/* The next call of this verb fails with -err and this text; post_send and post_recv at work request `at`. */
void recorder_fail(struct rnic_context *ctx, const char *verb, int err, const char *text, int at);

/* Nothing more is logged: for measuring what a call costs. */
void recorder_quiet(struct rnic_context *ctx);

/* Puts a completion into the queue that poll_cq() empties, whichever CQ it is asked for.  Posted sends that do not
 * fail put their own there. */
void recorder_complete(struct rnic_context *ctx, const struct rnic_wc *wc);

/* An event of the CQ into its channel; an asynchronous event of the object behind that context pointer. */
void recorder_cq_event(struct rnic_cq *cq);
void recorder_async_event(struct rnic_context *ctx, int type, int port, void *context);

/* The last CQ, and the last QP, that was created. */
struct rnic_cq *recorder_last_cq(struct rnic_context *ctx);
struct rnic_qp *recorder_last_qp(struct rnic_context *ctx);

#endif
