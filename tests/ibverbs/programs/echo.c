/* SPDX-License-Identifier: Apache-2.0
 *
 * echo.c: a client and a server that use identifiers and what rdma_verbs.h does on them.
 *
 * echo server PORT; echo client ADDRESS PORT.
 */
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>

enum { SIZE = 64 };

static int fail(const char *what) {
    perror(what);
    return 1;
}

static struct rdma_cm_id *endpoint(const char *node, const char *service, int flags) {
    struct rdma_addrinfo hints, *found;
    struct ibv_qp_init_attr attr;
    struct rdma_cm_id *id = NULL;
    memset(&hints, 0, sizeof(hints));
    hints.ai_port_space = RDMA_PS_TCP;
    hints.ai_flags = flags;
    if (rdma_getaddrinfo(node, service, &hints, &found))
        return NULL;
    memset(&attr, 0, sizeof(attr));
    attr.cap.max_send_wr = attr.cap.max_recv_wr = attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
    attr.sq_sig_all = 1;
    if (rdma_create_ep(&id, found, NULL, &attr))
        id = NULL;
    rdma_freeaddrinfo(found);
    return id;
}

static int turn(struct rdma_cm_id *id, int first) {
    char text[SIZE] = "hello";
    struct ibv_mr *mr = rdma_reg_msgs(id, text, sizeof(text));
    struct ibv_wc wc;
    int failed;
    if (!mr)
        return fail("rdma_reg_msgs");
    failed = rdma_post_recv(id, NULL, text, sizeof(text), mr);
    failed = failed || (first ? rdma_connect(id, NULL) : rdma_accept(id, NULL));
    failed = failed || (!first && rdma_get_recv_comp(id, &wc) != 1);
    failed = failed || rdma_post_send(id, NULL, text, sizeof(text), mr, 0) || rdma_get_send_comp(id, &wc) != 1;
    failed = failed || (first && rdma_get_recv_comp(id, &wc) != 1);
    if (failed)
        fail(first ? "client" : "server");
    rdma_disconnect(id);
    rdma_dereg_mr(mr);
    return failed || strcmp(text, "hello") != 0;
}

int main(int argc, char **argv) {
    struct rdma_cm_id *id, *listener;
    int failed;
    if (argc == 4 && !strcmp(argv[1], "client")) {
        id = endpoint(argv[2], argv[3], 0);
        if (!id)
            return fail("endpoint");
        failed = turn(id, 1);
        rdma_destroy_ep(id);
        return failed;
    }
    if (argc != 3 || strcmp(argv[1], "server"))
        return 2;
    listener = endpoint(NULL, argv[2], RAI_PASSIVE);
    if (!listener || rdma_listen(listener, 1) || rdma_get_request(listener, &id))
        return fail("rdma_listen");
    printf("%d\n", rdma_get_dst_port(id) != 0 && rdma_get_peer_addr(id)->sa_family == AF_INET);
    failed = turn(id, 0);
    rdma_destroy_ep(id);
    rdma_destroy_ep(listener);
    return failed;
}
