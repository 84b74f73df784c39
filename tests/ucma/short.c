/* SPDX-License-Identifier: Apache-2.0
 *
 * Many short connections: `short server PORT ROUNDS`, `short client ADDRESS PORT ROUNDS`.
 *
 * In each round both ends WRITE into each other's memory and send messages with tags.  An end that has all messages, and
 * knows that the peer has its own, goes at once; in every second round it disconnects first.  The other end hears that while
 * its last completions are on their way, goes to ERR, and must find all of them: the peer has got everything.  One thread
 * polls the completion queue, which is that of all rounds, and the event channel, and waits for neither.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MESSAGES 8
#define BYTES 1024 /* of a message, and of a WRITE ahead of it */
#define WINDOW (MESSAGES * BYTES)

enum { OUT, IN, WRITTEN, REGIONS }; /* memory: what is sent and written, what comes by messages, what the peer writes */

struct place {
    uint64_t addr;
    uint32_t rkey;
};

struct connection {
    struct rdma_cm_id *id;
    struct place peers;
    int sent, received;
    bool established, ended;
};

static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener;
static struct connection next; /* the client may be a round ahead */
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint8_t memory[REGIONS][WINDOW];
static uint32_t round_now;
static bool is_server;

static void must(int rc, const char *what) {
    if (!rc)
        return;
    fprintf(stderr, "round %u: ", round_now);
    perror(what);
    exit(1);
}

static void wrong(const char *what, long is, long should_be) {
    fprintf(stderr, "round %u, %s: %s: %ld, not %ld\n", round_now, is_server ? "server" : "client", what, is,
            should_be);
    exit(1);
}

static uint8_t pattern(bool of_server, int message) {
    return (uint8_t)(round_now * 31 + (uint32_t)message * 7 + of_server);
}

/* ---------------------------------------------------------------- a queue pair */

static void open_memory(struct ibv_context *verbs) {
    int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    if (pd)
        return;
    must(!(pd = ibv_alloc_pd(verbs)), "ibv_alloc_pd");
    must(!(cq = ibv_create_cq(verbs, 4 * MESSAGES, NULL, NULL, 0)), "ibv_create_cq");
    must(!(mr = ibv_reg_mr(pd, memory, sizeof memory, rights)), "ibv_reg_mr");
}

static struct ibv_sge piece(int region, int message) {
    return (struct ibv_sge){(uintptr_t)(memory[region] + message * BYTES), BYTES, mr->lkey};
}

static void open_qp(struct connection *c) {
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {2 * MESSAGES, MESSAGES, 1, 1, 0}};
    open_memory(c->id->verbs);
    init.send_cq = init.recv_cq = cq;
    must(rdma_create_qp(c->id, pd, &init), "rdma_create_qp");
    memset(memory, 0, sizeof memory);
    for (int i = 0; i < MESSAGES; i++) {
        struct ibv_sge at = piece(IN, i);
        struct ibv_recv_wr wr = {.wr_id = (uint64_t)i, .sg_list = &at, .num_sge = 1}, *bad;
        must(ibv_post_recv(c->id->qp, &wr, &bad), "ibv_post_recv");
    }
}

static void send_all(struct connection *c) {
    for (int i = 0; i < MESSAGES; i++) {
        struct ibv_sge at = piece(OUT, i);
        struct ibv_send_wr *bad, tagged = {.wr_id = (uint64_t)i,
                                           .sg_list = &at,
                                           .num_sge = 1,
                                           .opcode = IBV_WR_SEND_WITH_IMM,
                                           .send_flags = IBV_SEND_SIGNALED,
                                           .imm_data = htonl(round_now << 8 | (uint32_t)i)};
        struct ibv_send_wr write = {.next = &tagged, .sg_list = &at, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};
        write.wr.rdma.remote_addr = c->peers.addr + (uint64_t)i * BYTES;
        write.wr.rdma.rkey = c->peers.rkey;
        memset(memory[OUT] + i * BYTES, pattern(is_server, i), BYTES);
        must(ibv_post_send(c->id->qp, &write, &bad), "ibv_post_send");
    }
}

static void check_bytes(const char *what, int region, int message) {
    for (int i = 0; i < BYTES; i++) {
        if (memory[region][message * BYTES + i] != pattern(!is_server, message))
            wrong(what, memory[region][message * BYTES + i], pattern(!is_server, message));
    }
}

static void take(struct connection *c, const struct ibv_wc *wc) {
    bool receives = wc->opcode & IBV_WC_RECV;
    int *count = receives ? &c->received : &c->sent;
    if (wc->status)
        wrong(ibv_wc_status_str(wc->status), c->received * 100 + c->sent, MESSAGES * 101);
    if (wc->wr_id != (uint64_t)*count)
        wrong("a completion out of order", (long)wc->wr_id, *count);
    if (receives) {
        if (ntohl(wc->imm_data) != (round_now << 8 | (uint32_t)*count))
            wrong("the tag", (long)ntohl(wc->imm_data), (long)(round_now << 8 | (uint32_t)*count));
        check_bytes("a message", IN, *count);
        check_bytes("what was written", WRITTEN, *count);
    }
    ++*count;
}

static bool poll_once(struct connection *c) {
    struct ibv_wc wc;
    int n = ibv_poll_cq(cq, 1, &wc);
    must(n < 0, "ibv_poll_cq");
    if (n)
        take(c, &wc);
    return n > 0;
}

/* ---------------------------------------------------------------- connecting */

static void parameters(struct rdma_conn_param *param, struct place *ours) {
    *ours = (struct place){(uintptr_t)memory[WRITTEN], mr->rkey};
    *param = (struct rdma_conn_param){.private_data = ours,
                                      .private_data_len = sizeof *ours,
                                      .responder_resources = 1,
                                      .initiator_depth = 1,
                                      .retry_count = 7,
                                      .rnr_retry_count = 7};
}

static void answer(struct connection *c, const struct rdma_cm_event *event) {
    struct rdma_conn_param param;
    struct place ours;
    switch (event->event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        must(rdma_resolve_route(c->id, 10000), "rdma_resolve_route");
        break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        open_qp(c);
        parameters(&param, &ours);
        must(rdma_connect(c->id, &param), "rdma_connect");
        break;
    case RDMA_CM_EVENT_CONNECT_REQUEST:
        next = (struct connection){.id = event->id};
        memcpy(&next.peers, event->param.conn.private_data, sizeof next.peers);
        break;
    case RDMA_CM_EVENT_ESTABLISHED:
        if (!is_server)
            memcpy(&c->peers, event->param.conn.private_data, sizeof c->peers);
        c->established = true;
        break;
    case RDMA_CM_EVENT_DISCONNECTED:
        c->ended = true;
        break;
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        break;
    default:
        wrong(rdma_event_str(event->event), event->status, 0);
    }
}

static void look_for_event(struct connection *c) {
    struct rdma_cm_event *event, copy;
    struct place peers = {0};
    if (rdma_get_cm_event(channel, &event))
        return;
    copy = *event;
    if (copy.param.conn.private_data_len >= sizeof peers)
        memcpy(&peers, copy.param.conn.private_data, sizeof peers);
    copy.param.conn.private_data = &peers;
    must(rdma_ack_cm_event(event), "rdma_ack_cm_event");
    answer(c, &copy);
}

/* ---------------------------------------------------------------- rounds */

static bool has_all(const struct connection *c) { return c->sent == MESSAGES && c->received == MESSAGES; }

static void leave(struct connection *c) {
    if (c->ended || round_now % 2)
        rdma_disconnect(c->id);
    while (c->ended && poll_once(c))
        ;
    if (!has_all(c))
        wrong("messages received and sent", c->received * 100 + c->sent, MESSAGES * 101);
    rdma_destroy_qp(c->id);
    must(rdma_destroy_id(c->id), "rdma_destroy_id");
}

static void call(struct connection *c, struct sockaddr_in *to) {
    must(rdma_create_id(channel, &c->id, NULL, RDMA_PS_TCP), "rdma_create_id");
    must(rdma_resolve_addr(c->id, NULL, (struct sockaddr *)to, 10000), "rdma_resolve_addr");
}

static void accept_next(struct connection *c) {
    struct rdma_conn_param param;
    struct place ours;
    while (!next.id)
        look_for_event(c);
    *c = next;
    next.id = NULL;
    open_qp(c);
    parameters(&param, &ours);
    must(rdma_accept(c->id, &param), "rdma_accept");
}

static void one_round(struct sockaddr_in *to) {
    struct connection c = {0};
    to ? call(&c, to) : accept_next(&c);
    while (!c.established && !c.ended)
        look_for_event(&c);
    send_all(&c);
    while (!has_all(&c) && !c.ended) {
        while (poll_once(&c))
            ;
        look_for_event(&c);
    }
    leave(&c);
}

int main(int argc, char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_ANY)}};
    is_server = argc == 4 && !strcmp(argv[1], "server");
    if (!is_server && argc != 5)
        return 2;
    address.sin_port = htons((uint16_t)atoi(argv[argc - 2]));
    must(!(channel = rdma_create_event_channel()), "rdma_create_event_channel");
    must(fcntl(channel->fd, F_SETFL, O_NONBLOCK), "fcntl");
    if (is_server) {
        must(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
        must(rdma_bind_addr(listener, (struct sockaddr *)&address), "rdma_bind_addr");
        must(rdma_listen(listener, 4), "rdma_listen");
    } else {
        must(inet_pton(AF_INET, argv[2], &address.sin_addr) != 1, "inet_pton");
    }
    uint32_t rounds = (uint32_t)atoi(argv[argc - 1]);
    for (round_now = 0; round_now < rounds; round_now++)
        one_round(is_server ? NULL : &address);
    printf("%u rounds\n", rounds);
    return 0;
}
