/* SPDX-License-Identifier: Apache-2.0 */
#include "cm.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>

#define RESOLVE_MS (WAIT_SECONDS * 1000)

int make_channel(struct end *end) {
    end->channel = rdma_create_event_channel();
    return end->channel ? 0 : failed("rdma_create_event_channel");
}

int expect(struct end *end, enum rdma_cm_event_type kind, void *data, size_t length, struct rdma_cm_id **new_id) {
    struct rdma_cm_event *event;
    int wrong;

    if (wait_readable(end->channel->fd, rdma_event_str(kind)))
        return -1;
    if (rdma_get_cm_event(end->channel, &event))
        return failed("rdma_get_cm_event");
    wrong = event->event != kind;
    if (wrong)
        fprintf(stderr, "%s (%d) came instead of %s\n", rdma_event_str(event->event), event->status,
                rdma_event_str(kind));
    else if (data && event->param.conn.private_data_len < length)
        wrong = fprintf(stderr, "the private data are too short\n");
    else if (data)
        memcpy(data, event->param.conn.private_data, length);
    if (!wrong && new_id)
        *new_id = event->id;
    if (rdma_ack_cm_event(event)) /* the event and its private data are gone now */
        return failed("rdma_ack_cm_event");
    return wrong ? -1 : 0;
}

/* An id: what a socket is to TCP. rdma_create_id(3) */
static int make_id(struct end *end) {
    return rdma_create_id(end->channel, &end->id, NULL, RDMA_PS_TCP) ? failed("rdma_create_id") : 0;
}

/* From the host's address to a device of this machine. rdma_resolve_addr(3) */
static int resolve_addr(struct end *end, const char *host, const char *port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int error = getaddrinfo(host, port, &hints, &found);

    if (error) {
        fprintf(stderr, "%s: %s\n", host, gai_strerror(error));
        return -1;
    }
    error = rdma_resolve_addr(end->id, NULL, found->ai_addr, RESOLVE_MS) ? failed("rdma_resolve_addr") : 0;
    freeaddrinfo(found);
    return error ? error : expect(end, RDMA_CM_EVENT_ADDR_RESOLVED, NULL, 0, NULL);
}

/* From the device to the way to the host. rdma_resolve_route(3) */
static int resolve_route(struct end *end) {
    if (rdma_resolve_route(end->id, RESOLVE_MS))
        return failed("rdma_resolve_route");
    return expect(end, RDMA_CM_EVENT_ROUTE_RESOLVED, NULL, 0, NULL);
}

int resolve(struct end *end, const char *host, const char *port) {
    return make_id(end) || resolve_addr(end, host, port) || resolve_route(end) ? -1 : 0;
}

int make_queue_pair(struct end *end) {
    struct ibv_qp_init_attr attr = {
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
    };

    if (!(end->pd = ibv_alloc_pd(end->id->verbs)))
        return failed("ibv_alloc_pd");
    if (!(end->completions = ibv_create_comp_channel(end->id->verbs)))
        return failed("ibv_create_comp_channel");
    if (!(end->cq = ibv_create_cq(end->id->verbs, 8, NULL, end->completions, 0)))
        return failed("ibv_create_cq");
    attr.send_cq = attr.recv_cq = end->cq;
    if (rdma_create_qp(end->id, end->pd, &attr))
        return failed("rdma_create_qp");
    return 0;
}

int register_memory(struct end *end, int access) {
    end->mr = ibv_reg_mr(end->pd, &end->memory, sizeof end->memory, access);
    return end->mr ? 0 : failed("ibv_reg_mr");
}

/* Takes the event of the queue that has woken us. It is acknowledged in release(): that costs a lock each time. */
static int take_event(struct end *end) {
    struct ibv_cq *cq;
    void *context;

    if (wait_readable(end->completions->fd, "completion"))
        return -1;
    if (ibv_get_cq_event(end->completions, &cq, &context))
        return failed("ibv_get_cq_event");
    end->events++;
    return 0;
}

int next_completion(struct end *end, struct ibv_wc *wc) {
    int found, error;

    while (!(found = ibv_poll_cq(end->cq, 1, wc))) {
        error = ibv_req_notify_cq(end->cq, 0);
        if (error)
            return failed_with("ibv_req_notify_cq", error);
        found = ibv_poll_cq(end->cq, 1, wc); /* what came before the request gives no event */
        if (found)
            break;
        if (take_event(end))
            return -1;
    }
    return check_completion(found, wc);
}

int sleep_until_complete(struct end *end) {
    struct ibv_wc wc;

    return next_completion(end, &wc);
}

int send_message(struct end *end, const char *text) {
    struct ibv_sge sge = {.addr = (uintptr_t)end->memory.message, .length = MESSAGE_BYTES, .lkey = end->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    int error;

    snprintf(end->memory.message, MESSAGE_BYTES, "%s", text);
    error = ibv_post_send(end->id->qp, &wr, &bad);
    return error ? failed_with("ibv_post_send", error) : sleep_until_complete(end);
}

int hang_up(struct end *end) {
    if (rdma_disconnect(end->id))
        return failed("rdma_disconnect");
    return expect(end, RDMA_CM_EVENT_DISCONNECTED, NULL, 0, NULL);
}

int release(struct end *end) {
    int error = 0;

    if (end->id && end->id->qp)
        rdma_destroy_qp(end->id);
    if (end->events)
        ibv_ack_cq_events(end->cq, end->events);
    if (end->cq && ibv_destroy_cq(end->cq))
        error = failed("ibv_destroy_cq");
    if (end->completions && ibv_destroy_comp_channel(end->completions))
        error = failed("ibv_destroy_comp_channel");
    if (end->mr && ibv_dereg_mr(end->mr))
        error = failed("ibv_dereg_mr");
    if (end->pd && ibv_dealloc_pd(end->pd))
        error = failed("ibv_dealloc_pd");
    if (end->id && rdma_destroy_id(end->id))
        error = failed("rdma_destroy_id");
    if (end->channel)
        rdma_destroy_event_channel(end->channel);
    return error;
}
