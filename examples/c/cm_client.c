/* SPDX-License-Identifier: Apache-2.0
 *
 * cm_client.c: calls a server by IP address and port, and does a SEND, an RDMA WRITE and an RDMA READ.
 *
 *     ./cm_client HOST [PORT]
 */
#include "cm.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Calls; the server's answer says where its memory is. rdma_connect(3) */
static int call(struct end *end) {
    struct rdma_conn_param param = {
        .initiator_depth = 1, .responder_resources = 1, .retry_count = 7, .rnr_retry_count = 7};
    struct region region;

    if (rdma_connect(end->id, &param))
        return failed("rdma_connect");
    if (expect(end, RDMA_CM_EVENT_ESTABLISHED, &region, sizeof region, NULL))
        return -1;
    end->remote.addr = be64toh(region.addr);
    end->remote.rkey = be32toh(region.rkey);
    end->remote.length = be32toh(region.length);
    if (end->remote.length >= MESSAGE_BYTES)
        return 0;
    fprintf(stderr, "the server's region is too small\n");
    return -1;
}

/* An RDMA WRITE from `data`, or an RDMA READ to it. ibv_post_send(3) */
static int carry_out(struct end *end, enum ibv_wr_opcode opcode) {
    struct ibv_sge sge = {.addr = (uintptr_t)end->memory.data, .length = MESSAGE_BYTES, .lkey = end->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode}, *bad;
    int error;

    wr.wr.rdma.remote_addr = end->remote.addr;
    wr.wr.rdma.rkey = end->remote.rkey;
    error = ibv_post_send(end->id->qp, &wr, &bad);
    return error ? failed_with("ibv_post_send", error) : sleep_until_complete(end);
}

/* Writes a text, and reads it back. */
static int write_and_read(struct end *end) {
    snprintf(end->memory.data, MESSAGE_BYTES, "written by the client");
    if (carry_out(end, IBV_WR_RDMA_WRITE))
        return -1;
    memset(end->memory.data, 0, MESSAGE_BYTES);
    if (carry_out(end, IBV_WR_RDMA_READ))
        return -1;
    printf("client: read '%.*s'\n", MESSAGE_BYTES, end->memory.data);
    return 0;
}

static int run(struct end *end, const char *host, const char *port) {
    if (make_channel(end) || resolve(end, host, port))
        return -1;
    if (make_queue_pair(end) || register_memory(end, IBV_ACCESS_LOCAL_WRITE))
        return -1;
    if (call(end) || send_message(end, "hello") || write_and_read(end) || send_message(end, "done"))
        return -1;
    return hang_up(end);
}

int main(int argc, char **argv) {
    struct end end = {0};
    int status;

    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: %s HOST [PORT]\n", argv[0]);
        return 2;
    }
    status = run(&end, argv[1], argc > 2 ? argv[2] : PORT);
    return release(&end) || status ? EXIT_FAILURE : EXIT_SUCCESS;
}
