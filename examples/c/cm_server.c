/* SPDX-License-Identifier: Apache-2.0
 *
 * cm_server.c: waits for one client, shows what it has sent and written, and ends with the connection.
 *
 *     ./cm_server [ADDRESS [PORT]]
 */
#include "cm.h"

#include <endian.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>

#define BACKLOG 1 /* calls that wait for an answer */

/* An id that listens: what a listening socket is to TCP. rdma_create_id(3), rdma_bind_addr(3), rdma_listen(3) */
static int listen_at(struct end *end, struct rdma_cm_id **listener, const char *address, const char *port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    int error = getaddrinfo(address, port, &hints, &found);

    if (error) {
        fprintf(stderr, "%s: %s\n", address ? address : port, gai_strerror(error));
        return -1;
    }
    if (rdma_create_id(end->channel, listener, NULL, RDMA_PS_TCP))
        error = failed("rdma_create_id");
    else if (rdma_bind_addr(*listener, found->ai_addr))
        error = failed("rdma_bind_addr");
    else if (rdma_listen(*listener, BACKLOG))
        error = failed("rdma_listen");
    freeaddrinfo(found);
    return error;
}

/* Waits for a call: it has an id of its own, of the device on which it came. rdma_get_cm_event(3) */
static int get_request(struct end *end) {
    printf("server: waiting\n");
    fflush(stdout);
    return expect(end, RDMA_CM_EVENT_CONNECT_REQUEST, NULL, 0, &end->id);
}

/* Answers the call, and says where the client may write. rdma_accept(3) */
static int accept_call(struct end *end) {
    struct region region = {
        .addr = htobe64((uintptr_t)end->memory.data),
        .rkey = htobe32(end->mr->rkey),
        .length = htobe32(MESSAGE_BYTES),
    };
    struct rdma_conn_param param = {.private_data = &region,
                                    .private_data_len = sizeof region,
                                    .initiator_depth = 1,
                                    .responder_resources = 1,
                                    .rnr_retry_count = 7};

    if (rdma_accept(end->id, &param))
        return failed("rdma_accept");
    return expect(end, RDMA_CM_EVENT_ESTABLISHED, NULL, 0, NULL);
}

static int receive_next(struct end *end) {
    return post_receive(end->id->qp, end->mr, end->memory.message, MESSAGE_BYTES);
}

static void show(const char *what, const char *text) { printf("server: %s '%.*s'\n", what, MESSAGE_BYTES, text); }

/* A first message, and a second one when everything is written. */
static int serve(struct end *end) {
    if (sleep_until_complete(end))
        return -1;
    show("received", end->memory.message);
    if (receive_next(end) || sleep_until_complete(end))
        return -1;
    show("received", end->memory.message);
    show("in its memory is", end->memory.data);
    return 0;
}

/* Waits until the client has ended the connection. rdma_disconnect(3) */
static int see_the_end(struct end *end) {
    if (expect(end, RDMA_CM_EVENT_DISCONNECTED, NULL, 0, NULL))
        return -1;
    return rdma_disconnect(end->id) ? failed("rdma_disconnect") : 0;
}

static int run(struct end *end, struct rdma_cm_id **listener, const char *address, const char *port) {
    const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

    if (make_channel(end) || listen_at(end, listener, address, port) || get_request(end))
        return -1;
    if (make_queue_pair(end) || register_memory(end, access) || receive_next(end))
        return -1;
    return accept_call(end) || serve(end) ? -1 : see_the_end(end);
}

int main(int argc, char **argv) {
    struct end end = {0};
    struct rdma_cm_id *listener = NULL;
    int status;

    if (argc > 3) {
        fprintf(stderr, "usage: %s [ADDRESS [PORT]]\n", argv[0]);
        return 2;
    }
    status = run(&end, &listener, argc > 1 ? argv[1] : NULL, argc > 2 ? argv[2] : PORT);
    if (listener && rdma_destroy_id(listener)) /* before the channel goes */
        status = failed("rdma_destroy_id");
    return release(&end) || status ? EXIT_FAILURE : EXIT_SUCCESS;
}
