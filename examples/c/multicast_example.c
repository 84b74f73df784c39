/* SPDX-License-Identifier: Apache-2.0
 *
 * multicast_example.c: all members of a group get what one sends.
 *
 *     ./multicast_example -m GROUP -b ADDRESS        a member, as many as you like; start them first
 *     ./multicast_example -m GROUP -b ADDRESS -s     the sender
 *
 * ADDRESS is an address of this machine, and chooses the device. Each of the ten messages has 100 bytes and, as its
 * immediate data, the number of the sender's queue pair. multicast_example.py beside this folder speaks the same.
 */
#include "common.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT 10
#define SIZE 100  /* bytes of a message */
#define HEADER 40 /* bytes ahead of a datagram that was received: whence it came */
#define TEXT "to all"

struct options {
    const char *group, *bind;
    bool sender;
    long pause; /* seconds for the others to join */
};

/* All that a run acquires: release() gives back what is not NULL. */
struct resources {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    struct ibv_mr *mr; /* of `buffer` */
    struct ibv_cq *cq;
    struct ibv_ah *ah; /* the way to the group */
    uint32_t qp_num;   /* of the group */
    uint32_t qkey;
    struct sockaddr_storage group, own;
    char buffer[HEADER + SIZE];
};

/* An address without a port. getaddrinfo(3) */
static int address(const char *text, struct sockaddr_storage *into) {
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_DGRAM}, *found;
    int error = getaddrinfo(text, NULL, &hints, &found);

    if (error) {
        fprintf(stderr, "%s: %s\n", text, gai_strerror(error));
        return -1;
    }
    memcpy(into, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return 0;
}

/* Waits for the next event, which must be `kind`; the caller acknowledges it. rdma_get_cm_event(3) */
static struct rdma_cm_event *next(struct resources *r, enum rdma_cm_event_type kind) {
    struct rdma_cm_event *event;

    if (wait_readable(r->channel->fd, rdma_event_str(kind)))
        return NULL;
    if (rdma_get_cm_event(r->channel, &event)) {
        failed("rdma_get_cm_event");
        return NULL;
    }
    if (event->event == kind)
        return event;
    fprintf(stderr, "%s (%d) came instead of %s\n", rdma_event_str(event->event), event->status, rdma_event_str(kind));
    rdma_ack_cm_event(event);
    return NULL;
}

/* Which device leads to the group. rdma_create_event_channel(3), rdma_create_id(3), rdma_resolve_addr(3) */
static int resolve_addr(struct resources *r) {
    struct rdma_cm_event *event;

    if (!(r->channel = rdma_create_event_channel()))
        return failed("rdma_create_event_channel");
    if (rdma_create_id(r->channel, &r->id, NULL, RDMA_PS_UDP))
        return failed("rdma_create_id");
    if (rdma_resolve_addr(r->id, (struct sockaddr *)&r->own, (struct sockaddr *)&r->group, WAIT_SECONDS * 1000))
        return failed("rdma_resolve_addr");
    event = next(r, RDMA_CM_EVENT_ADDR_RESOLVED);
    return event ? rdma_ack_cm_event(event) : -1;
}

/* ibv_alloc_pd(3), ibv_reg_mr(3), ibv_create_cq(3), rdma_create_qp(3) */
static int make_queue_pair(struct resources *r) {
    struct ibv_qp_init_attr attr = {
        .cap = {.max_send_wr = COUNT, .max_recv_wr = COUNT, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_UD,
        .sq_sig_all = 1,
    };

    if (!(r->pd = ibv_alloc_pd(r->id->verbs)))
        return failed("ibv_alloc_pd");
    if (!(r->mr = ibv_reg_mr(r->pd, r->buffer, sizeof r->buffer, IBV_ACCESS_LOCAL_WRITE)))
        return failed("ibv_reg_mr");
    if (!(r->cq = ibv_create_cq(r->id->verbs, 2 * COUNT, NULL, NULL, 0)))
        return failed("ibv_create_cq");
    attr.send_cq = attr.recv_cq = r->cq;
    return rdma_create_qp(r->id, r->pd, &attr) ? failed("rdma_create_qp") : 0;
}

/* Joins the group; the event has the way to it. rdma_join_multicast(3), ibv_create_ah(3) */
static int join(struct resources *r) {
    struct rdma_cm_event *event;
    char text[INET6_ADDRSTRLEN];

    if (rdma_join_multicast(r->id, (struct sockaddr *)&r->group, NULL))
        return failed("rdma_join_multicast");
    if (!(event = next(r, RDMA_CM_EVENT_MULTICAST_JOIN)))
        return -1;
    r->qp_num = event->param.ud.qp_num;
    r->qkey = event->param.ud.qkey;
    r->ah = ibv_create_ah(r->pd, &event->param.ud.ah_attr);
    inet_ntop(AF_INET6, event->param.ud.ah_attr.grh.dgid.raw, text, sizeof text);
    rdma_ack_cm_event(event);
    if (!r->ah)
        return failed("ibv_create_ah");
    printf("joined %s\n", text);
    fflush(stdout);
    return 0;
}

/* Sends all messages; none of them is acknowledged. ibv_post_send(3) */
static int send_all(struct resources *r) {
    struct ibv_sge sge = {.addr = (uintptr_t)r->buffer + HEADER, .length = SIZE, .lkey = r->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM}, *bad;
    struct ibv_wc wc;
    int i, error;

    wr.imm_data = htonl(r->id->qp->qp_num);
    wr.wr.ud.ah = r->ah;
    wr.wr.ud.remote_qpn = r->qp_num;
    wr.wr.ud.remote_qkey = r->qkey;
    memcpy(r->buffer + HEADER, TEXT, sizeof TEXT);
    for (i = 0; i < COUNT; i++) {
        error = ibv_post_send(r->id->qp, &wr, &bad);
        if (error)
            return failed_with("ibv_post_send", error);
        if (wait_completion(r->cq, &wc))
            return -1;
    }
    printf("%d messages sent\n", COUNT);
    return 0;
}

/* Before the first message can come. ibv_post_recv(3) */
static int post_receives(struct resources *r) {
    int i;

    for (i = 0; i < COUNT; i++)
        if (post_receive(r->id->qp, r->mr, r->buffer, sizeof r->buffer))
            return -1;
    return 0;
}

/* Prints the messages that come, and their senders. ibv_poll_cq(3) */
static int receive_all(struct resources *r) {
    struct ibv_wc wc;
    int i;

    for (i = 0; i < COUNT; i++) {
        if (wait_completion(r->cq, &wc))
            return -1;
        printf("%u bytes from queue pair %u: '%.*s'\n", wc.byte_len - HEADER, ntohl(wc.imm_data), SIZE,
               r->buffer + HEADER);
    }
    return 0;
}

/* rdma_leave_multicast(3) */
static int leave(struct resources *r) {
    return rdma_leave_multicast(r->id, (struct sockaddr *)&r->group) ? failed("rdma_leave_multicast") : 0;
}

static int run(struct resources *r, const struct options *options) {
    if (address(options->group, &r->group) || address(options->bind, &r->own))
        return -1;
    if (resolve_addr(r) || make_queue_pair(r) || (!options->sender && post_receives(r)) || join(r))
        return -1;
    if (options->sender)
        sleep((unsigned int)options->pause);
    if (options->sender ? send_all(r) : receive_all(r))
        return -1;
    return leave(r);
}

/* What was made last goes first. */
static int release(struct resources *r) {
    int error = 0;

    if (r->ah && ibv_destroy_ah(r->ah))
        error = failed("ibv_destroy_ah");
    if (r->id && r->id->qp)
        rdma_destroy_qp(r->id);
    if (r->cq && ibv_destroy_cq(r->cq))
        error = failed("ibv_destroy_cq");
    if (r->mr && ibv_dereg_mr(r->mr))
        error = failed("ibv_dereg_mr");
    if (r->pd && ibv_dealloc_pd(r->pd))
        error = failed("ibv_dealloc_pd");
    if (r->id && rdma_destroy_id(r->id))
        error = failed("rdma_destroy_id");
    if (r->channel)
        rdma_destroy_event_channel(r->channel);
    return error;
}

int main(int argc, char **argv) {
    struct options options = {.pause = 3};
    struct resources resources = {0};
    int option, status;

    while ((option = getopt(argc, argv, "m:b:sp:")) != -1)
        switch (option) {
        case 'm':
            options.group = optarg;
            break;
        case 'b':
            options.bind = optarg;
            break;
        case 's':
            options.sender = true;
            break;
        case 'p':
            options.pause = number(optarg, 3600);
            break;
        default:
            options.group = NULL;
        }
    if (!options.group || !options.bind || options.pause < 0 || argc > optind) {
        fprintf(stderr, "usage: %s -m GROUP -b ADDRESS [-s [-p SECONDS]]\n", argv[0]);
        return 2;
    }
    status = run(&resources, &options);
    return release(&resources) || status ? EXIT_FAILURE : EXIT_SUCCESS;
}
