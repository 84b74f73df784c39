/* SPDX-License-Identifier: Apache-2.0
 *
 * events.c: what a program sees of a port that goes down and of a device that fails.
 *
 * events DEVICE N: prints N asynchronous events and the port's state after the last one.  If that was IBV_EVENT_DEVICE_FATAL,
 * also what becomes of a posted receive, of calls and of waits.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>

enum { PORT = 1 };

static void need(int right, const char *what) {
    if (right)
        return;
    perror(what);
    exit(1);
}

static struct ibv_context *open_device(const char *name) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = NULL;
    int i;
    need(list != NULL, "ibv_get_device_list");
    for (i = 0; list[i]; i++)
        if (!strcmp(ibv_get_device_name(list[i]), name))
            context = ibv_open_device(list[i]);
    ibv_free_device_list(list);
    need(context != NULL, name);
    return context;
}

static struct ibv_qp *make(struct ibv_pd *pd, struct ibv_cq *cq) {
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT};
    struct ibv_recv_wr receive = {.wr_id = 7}, *bad;
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    need(qp != NULL, "ibv_create_qp");
    need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
    need(!ibv_post_recv(qp, &receive, &bad), "ibv_post_recv");
    return qp;
}

static void after_the_end(struct ibv_context *context, struct ibv_cq *cq) {
    struct ibv_async_event event;
    struct ibv_wc wc;
    int n;
    while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
        ;
    printf("receive: %s\n", n > 0 ? ibv_wc_status_str(wc.status) : "lost");
    errno = 0;
    printf("alloc_pd: %s\n", ibv_alloc_pd(context) ? "there is one" : strerror(errno));
    printf("next event: %s\n", ibv_get_async_event(context, &event) ? strerror(errno) : "there is one");
}

int main(int argc, char **argv) {
    struct ibv_context *context = open_device(argc > 1 ? argv[1] : "roce_lo");
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
    struct ibv_async_event event = {0};
    struct ibv_port_attr port;
    struct ibv_qp *qp;
    int i;
    need(pd && cq, "ibv_alloc_pd, ibv_create_cq");
    qp = make(pd, cq);
    for (i = 0; i < (argc > 2 ? atoi(argv[2]) : 1); i++) {
        need(!ibv_get_async_event(context, &event), "ibv_get_async_event");
        printf("%s\n", ibv_event_type_str(event.event_type));
        ibv_ack_async_event(&event);
    }
    if (event.event_type == IBV_EVENT_DEVICE_FATAL)
        after_the_end(context, cq);
    else
        need(!ibv_query_port(context, PORT, &port), "ibv_query_port"), printf("%s\n", ibv_port_state_str(port.state));
    need(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd), "destroy");
    need(!ibv_close_device(context), "ibv_close_device");
    return 0;
}
