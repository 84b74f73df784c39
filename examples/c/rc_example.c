/* SPDX-License-Identifier: Apache-2.0
 *
 * rc_example.c: a SEND, an RDMA READ and an RDMA WRITE between two processes, by a reliable connection.
 *
 *     ./rc_example [-p PORT] [-d DEVICE] [-g GID_INDEX] [HOST]
 *
 * Without a host it is the server, with one the client. main() has the steps of a typical verbs program in their
 * order. The ends tell each other their addresses through a TCP socket: 34 bytes in network order, and later one
 * letter to finish each step. rc_example.py beside this folder speaks the same, so either end can be in Python.
 */
#include "common.h"

#include <endian.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define TEXT_BYTES 21 /* of each text below, with its final zero */
static const char send_text[TEXT_BYTES] = "SEND operation      ";
static const char read_text[TEXT_BYTES] = "RDMA read operation ";
static const char write_text[TEXT_BYTES] = "RDMA write operation";

/* What the peer has to know; on the socket in network order. */
struct __attribute__((packed)) address {
    uint64_t addr; /* of the buffer */
    uint32_t rkey; /* of its region */
    uint32_t qp_num;
    uint16_t lid; /* 0 on Ethernet */
    uint8_t gid[16];
};

struct options {
    const char *host, *device;
    long port, gid_index;
};

/* All that a run acquires: release() gives back what is not NULL. */
struct resources {
    int sock; /* to the other end, -1: none */
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr; /* of `buffer` */
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct address peer; /* in this machine's byte order */
    char buffer[TEXT_BYTES];
};

/* ---------------------------------------------------------------- the TCP socket */

/* Makes each wait on the socket end. socket(7) */
static int limit_waits(int sock) {
    struct timeval limit = {.tv_sec = WAIT_SECONDS};

    if (setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) ||
        setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit))
        return failed("setsockopt");
    return 0;
}

/* One address: connects to it, or waits there for the other end. accept(2) */
static int meet_at(const struct addrinfo *at, bool client) {
    int sock = socket(at->ai_family, at->ai_socktype, at->ai_protocol), peer = -1, yes = 1;

    if (sock < 0)
        return failed("socket");
    if (client) {
        if (!limit_waits(sock) && !connect(sock, at->ai_addr, at->ai_addrlen))
            return sock;
        failed("connect");
    } else if (setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) ||
               bind(sock, at->ai_addr, at->ai_addrlen) || listen(sock, 1)) {
        failed("listen");
    } else if (!wait_readable(sock, "client")) {
        peer = accept(sock, NULL, NULL);
        if (peer < 0)
            failed("accept");
    }
    close(sock);
    if (peer >= 0 && limit_waits(peer)) {
        close(peer);
        return -1;
    }
    return peer;
}

/* A TCP connection to the other end. getaddrinfo(3) */
static int meet(const struct options *options) {
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    char port[8];
    int error, sock;

    snprintf(port, sizeof port, "%ld", options->port);
    error = getaddrinfo(options->host, port, &hints, &found);
    if (error) {
        fprintf(stderr, "%s: %s\n", options->host ? options->host : port, gai_strerror(error));
        return -1;
    }
    if (!options->host) {
        printf("waiting on port %s for TCP connection\n", port);
        fflush(stdout);
    }
    sock = meet_at(found, options->host);
    freeaddrinfo(found);
    return sock;
}

/* Sends these bytes and receives as many of the peer's. recv(2) */
static int swap(int sock, const void *mine, void *theirs, size_t length) {
    ssize_t got;

    if (send(sock, mine, length, MSG_NOSIGNAL) != (ssize_t)length)
        return failed("send");
    got = recv(sock, theirs, length, MSG_WAITALL);
    if (got < 0)
        return failed("recv");
    if ((size_t)got == length)
        return 0;
    fprintf(stderr, "the other end has closed the TCP connection\n");
    return -1;
}

/* Both ends have come to this point. */
static int meet_again(int sock, char letter) {
    char theirs;

    return swap(sock, &letter, &theirs, 1);
}

/* ---------------------------------------------------------------- the resources */

/* The device of this name, or the first one. ibv_get_device_list(3), ibv_open_device(3) */
static int open_device(struct resources *r, const char *name) {
    int i, count;
    struct ibv_device **list = ibv_get_device_list(&count);

    if (!list)
        return failed("ibv_get_device_list");
    for (i = 0; i < count; i++)
        if (!name || !strcmp(ibv_get_device_name(list[i]), name))
            break;
    if (i < count)
        r->context = ibv_open_device(list[i]);
    if (i == count)
        fprintf(stderr, "%s: no such device\n", name ? name : "RDMA");
    else if (!r->context)
        failed("ibv_open_device");
    ibv_free_device_list(list);
    return r->context ? 0 : -1;
}

/* What a queue pair stands on. ibv_alloc_pd(3), ibv_reg_mr(3), ibv_create_cq(3) */
static int make_memory_and_queue(struct resources *r) {
    const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

    if (!(r->pd = ibv_alloc_pd(r->context)))
        return failed("ibv_alloc_pd");
    if (!(r->mr = ibv_reg_mr(r->pd, r->buffer, sizeof r->buffer, access)))
        return failed("ibv_reg_mr");
    if (!(r->cq = ibv_create_cq(r->context, 1, NULL, NULL, 0)))
        return failed("ibv_create_cq");
    return 0;
}

/* ibv_create_qp(3) */
static int make_queue_pair(struct resources *r) {
    struct ibv_qp_init_attr attr = {
        .send_cq = r->cq,
        .recv_cq = r->cq,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
    };

    r->qp = ibv_create_qp(r->pd, &attr);
    return r->qp ? 0 : failed("ibv_create_qp");
}

/* Tells the peer where the buffer and the queue pair are. ibv_query_gid(3), ibv_query_port(3) */
static int exchange_addresses(struct resources *r, int gid_index) {
    struct ibv_port_attr port;
    union ibv_gid gid;
    struct address mine, theirs;

    if (ibv_query_port(r->context, 1, &port))
        return failed("ibv_query_port");
    if (ibv_query_gid(r->context, 1, gid_index, &gid))
        return failed("ibv_query_gid");
    mine.addr = htobe64((uintptr_t)r->buffer);
    mine.rkey = htobe32(r->mr->rkey);
    mine.qp_num = htobe32(r->qp->qp_num);
    mine.lid = htobe16(port.lid);
    memcpy(mine.gid, gid.raw, sizeof mine.gid);
    if (swap(r->sock, &mine, &theirs, sizeof mine))
        return -1;
    r->peer = theirs;
    r->peer.addr = be64toh(theirs.addr);
    r->peer.rkey = be32toh(theirs.rkey);
    r->peer.qp_num = be32toh(theirs.qp_num);
    r->peer.lid = be16toh(theirs.lid);
    return 0;
}

/* ---------------------------------------------------------------- the states of the queue pair: ibv_modify_qp(3) */

static int modify(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, const char *to) {
    int error = ibv_modify_qp(qp, attr, mask | IBV_QP_STATE);

    return error ? failed_with(to, error) : 0;
}

/* What the peer may do; receives can be posted. */
static int reset_to_init(struct ibv_qp *qp) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
    };

    return modify(qp, &attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "ibv_modify_qp to INIT");
}

/* Who the peer is; requests of the peer can come. */
static int init_to_rtr(struct ibv_qp *qp, const struct address *peer, int gid_index) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_256,
        .dest_qp_num = peer->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 0x12,
        .ah_attr = {.dlid = peer->lid, .port_num = 1, .is_global = 1},
    };

    memcpy(attr.ah_attr.grh.dgid.raw, peer->gid, sizeof peer->gid);
    attr.ah_attr.grh.sgid_index = (uint8_t)gid_index;
    attr.ah_attr.grh.hop_limit = 64;
    return modify(qp, &attr,
                  IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                      IBV_QP_MIN_RNR_TIMER,
                  "ibv_modify_qp to RTR");
}

/* How often to try again; requests can be sent. */
static int rtr_to_rts(struct ibv_qp *qp) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS, .timeout = 0x12, .retry_cnt = 6, .rnr_retry = 0, .max_rd_atomic = 1};

    return modify(qp, &attr,
                  IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                  "ibv_modify_qp to RTS");
}

/* The client's receive is posted before the server can send. */
static int connect_queue_pair(struct resources *r, bool client, int gid_index) {
    if (exchange_addresses(r, gid_index) || reset_to_init(r->qp))
        return -1;
    if (client && post_receive(r->qp, r->mr, r->buffer, sizeof r->buffer))
        return -1;
    if (init_to_rtr(r->qp, &r->peer, gid_index) || rtr_to_rts(r->qp))
        return -1;
    return meet_again(r->sock, 'Q');
}

/* ---------------------------------------------------------------- the work */

/* Posts a request about the whole buffer, and waits until it is done. ibv_post_send(3) */
static int carry_out(struct resources *r, enum ibv_wr_opcode opcode) {
    struct ibv_sge sge = {.addr = (uintptr_t)r->buffer, .length = sizeof r->buffer, .lkey = r->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;
    struct ibv_wc wc;
    int error;

    wr.wr.rdma.remote_addr = r->peer.addr; /* a SEND does not look at them */
    wr.wr.rdma.rkey = r->peer.rkey;
    error = ibv_post_send(r->qp, &wr, &bad);
    return error ? failed_with("ibv_post_send", error) : wait_completion(r->cq, &wc);
}

static void put(struct resources *r, const char *text) { memcpy(r->buffer, text, sizeof r->buffer); }

static void show(const struct resources *r, const char *what) {
    printf("%s: '%.*s'\n", what, (int)sizeof r->buffer, r->buffer);
}

/* Sends, and waits while the client reads and writes. */
static int serve(struct resources *r) {
    put(r, send_text);
    if (carry_out(r, IBV_WR_SEND))
        return -1;
    put(r, read_text); /* what the client will read */
    if (meet_again(r->sock, 'R') || meet_again(r->sock, 'W'))
        return -1;
    show(r, "Contents of server buffer");
    return 0;
}

/* Receives, reads, and writes. */
static int call(struct resources *r) {
    struct ibv_wc wc;

    if (wait_completion(r->cq, &wc))
        return -1;
    show(r, "Message is");
    if (meet_again(r->sock, 'R') || carry_out(r, IBV_WR_RDMA_READ))
        return -1;
    show(r, "Contents of server's buffer");
    put(r, write_text);
    if (carry_out(r, IBV_WR_RDMA_WRITE))
        return -1;
    return meet_again(r->sock, 'W');
}

/* ---------------------------------------------------------------- the whole */

static int run(struct resources *r, const struct options *options) {
    int gid_index = (int)options->gid_index;
    bool client = options->host;

    if ((r->sock = meet(options)) < 0)
        return -1;
    if (open_device(r, options->device) || make_memory_and_queue(r) || make_queue_pair(r))
        return -1;
    if (connect_queue_pair(r, client, gid_index))
        return -1;
    return client ? call(r) : serve(r);
}

/* What was made last goes first. */
static int release(struct resources *r) {
    int error = 0;

    if (r->qp && ibv_destroy_qp(r->qp))
        error = failed("ibv_destroy_qp");
    if (r->cq && ibv_destroy_cq(r->cq))
        error = failed("ibv_destroy_cq");
    if (r->mr && ibv_dereg_mr(r->mr))
        error = failed("ibv_dereg_mr");
    if (r->pd && ibv_dealloc_pd(r->pd))
        error = failed("ibv_dealloc_pd");
    if (r->context && ibv_close_device(r->context))
        error = failed("ibv_close_device");
    if (r->sock >= 0)
        close(r->sock);
    return error;
}

int main(int argc, char **argv) {
    struct options options = {.port = 19875};
    struct resources resources = {.sock = -1};
    int option, status;

    while ((option = getopt(argc, argv, "p:d:g:")) != -1)
        switch (option) {
        case 'p':
            options.port = number(optarg, 65535);
            break;
        case 'd':
            options.device = optarg;
            break;
        case 'g':
            options.gid_index = number(optarg, 255);
            break;
        default:
            options.port = -1;
        }
    options.host = argv[optind];
    if (options.port < 0 || options.gid_index < 0 || argc > optind + 1) {
        fprintf(stderr, "usage: %s [-p PORT] [-d DEVICE] [-g GID_INDEX] [HOST]\n", argv[0]);
        return 2;
    }
    status = run(&resources, &options);
    return release(&resources) || status ? EXIT_FAILURE : EXIT_SUCCESS;
}
