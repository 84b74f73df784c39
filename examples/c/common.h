/* SPDX-License-Identifier: Apache-2.0
 *
 * common.h: what the examples share: how they tell what failed, and waits that have a limit.
 *
 * Functions return 0, or -1 when they have printed what is wrong.
 */
#ifndef EXAMPLE_COMMON_H
#define EXAMPLE_COMMON_H

#include <infiniband/verbs.h>
#include <stdint.h>

#define WAIT_SECONDS 30 /* the longest wait for anything that the other end does */

/* Prints the call and what errno means. */
int failed(const char *call);

/* The same for calls that return an error number instead of setting errno, as ibv_post_send(3) does. */
int failed_with(const char *call, int error);

/* Waits until a descriptor is readable: a socket, or the fd of an event channel. poll(2) */
int wait_readable(int fd, const char *what);

/* What ibv_poll_cq(3) has found, 1 or an error, must be a success. */
int check_completion(int found, const struct ibv_wc *wc);

/* Polls until the next completion is there, which must be a success. ibv_poll_cq(3) */
int wait_completion(struct ibv_cq *cq, struct ibv_wc *wc);

/* Posts one receive into this memory. ibv_post_recv(3) */
int post_receive(struct ibv_qp *qp, struct ibv_mr *mr, void *at, uint32_t length);

/* A number of the command line that is at most `most`; -1 if it is none. */
long number(const char *text, long most);

#endif
