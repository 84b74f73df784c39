/* SPDX-License-Identifier: Apache-2.0
 *
 * cm.h: what a client and a server of RDMA-CM have in common: an end of a connection, and its events.
 *
 * The server's answer to the call has its region as private data. The client SENDs, WRITEs and READs, and SENDs that
 * it is done.
 */
#ifndef EXAMPLE_CM_H
#define EXAMPLE_CM_H

#include "common.h"

#include <rdma/rdma_cma.h>

#define MESSAGE_BYTES 64
#define PORT "7476"

/* Where the client may write and read; in network order. */
struct region {
    uint64_t addr;
    uint32_t rkey;
    uint32_t length;
};

/* All that an end of a connection acquires: release() gives back what is not NULL. */
struct end {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id; /* of the connection */
    struct ibv_pd *pd;
    struct ibv_mr *mr; /* of the two buffers */
    struct ibv_comp_channel *completions;
    struct ibv_cq *cq;
    unsigned int events;  /* of `cq` that are not acknowledged yet */
    struct region remote; /* of the peer, in this machine's byte order */
    struct {
        char message[MESSAGE_BYTES]; /* for SENDs and receives */
        char data[MESSAGE_BYTES];    /* for RDMA */
    } memory;
};

/* A channel, through which the events of ids come. rdma_create_event_channel(3) */
int make_channel(struct end *end);

/* Takes the next event, which must be `kind`. If it has private data of `length` bytes or more, they are copied to
 * `data`, unless that is NULL; `new_id` is the id of a call, unless it is NULL.
 * rdma_get_cm_event(3), rdma_ack_cm_event(3) */
int expect(struct end *end, enum rdma_cm_event_type kind, void *data, size_t length, struct rdma_cm_id **new_id);

/* An id, and the way to the host: rdma_create_id(3), rdma_resolve_addr(3), rdma_resolve_route(3) */
int resolve(struct end *end, const char *host, const char *port);

/* Protection domain, completion queue with a channel, queue pair. ibv_create_cq(3), rdma_create_qp(3) */
int make_queue_pair(struct end *end);

/* Lets the device use the buffers, and the peer with the rights `access`. ibv_reg_mr(3) */
int register_memory(struct end *end, int access);

/* Sleeps until a request is complete, which must be a success, and tells which. ibv_get_cq_event(3),
 * ibv_req_notify_cq(3) */
int next_completion(struct end *end, struct ibv_wc *wc);

/* The same, where only one can be meant. */
int sleep_until_complete(struct end *end);

/* Sends `message`, and waits until the peer has it. ibv_post_send(3) */
int send_message(struct end *end, const char *text);

/* Ends the connection; what is still posted completes with an error. rdma_disconnect(3) */
int hang_up(struct end *end);

/* Gives everything back, last made first; 0, or -1 if something could not be. rdma_destroy_id(3) */
int release(struct end *end);

#endif
