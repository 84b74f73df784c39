/* SPDX-License-Identifier: Apache-2.0
 *
 * pollers.c: two threads poll one extended completion queue; prints how many completions changed while a thread
 * read them, and how many were not taken exactly once.
 *
 * pollers DEVICE
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* usleep */
#endif
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 512 };

static struct ibv_context *context;
static struct ibv_cq_ex *cq;
static pthread_barrier_t both;
static atomic_int taken[COUNT], left = COUNT, changed;

static void need(int right, const char *what) {
    if (right)
        return;
    perror(what);
    exit(1);
}

static void open_it(const char *name) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    int i;
    need(list != NULL, "ibv_get_device_list");
    for (i = 0; list[i]; i++)
        if (!strcmp(ibv_get_device_name(list[i]), name))
            context = ibv_open_device(list[i]);
    ibv_free_device_list(list);
    need(context != NULL, name);
}

/* Receives that end at once, as their queue pair goes to the error state. */
static void complete(struct ibv_qp *qp) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    struct ibv_recv_wr wr = {.num_sge = 0}, *bad;
    need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
    for (wr.wr_id = 0; wr.wr_id < COUNT; wr.wr_id++)
        need(!ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
    attr.qp_state = IBV_QPS_ERR;
    need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "ERR");
}

/* The other thread has its turn while this one reads a completion. */
static void *poll(void *arg) {
    struct ibv_poll_cq_attr attr = {0};
    uint64_t id;
    pthread_barrier_wait(&both);
    while (left > 0) {
        if (ibv_start_poll(cq, &attr))
            continue;
        do {
            id = cq->wr_id;
            usleep(1);
            changed += cq->wr_id != id;
            taken[id]++;
            left--;
        } while (!ibv_next_poll(cq));
        ibv_end_poll(cq);
    }
    return arg;
}

int main(int argc, char **argv) {
    struct ibv_cq_init_attr_ex how = {.cqe = COUNT};
    struct ibv_qp_init_attr init = {.cap = {1, COUNT, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp;
    pthread_t threads[2];
    int i, wrong = 0;
    open_it(argc > 1 ? argv[1] : "roce_lo");
    cq = ibv_create_cq_ex(context, &how);
    need(cq != NULL, "ibv_create_cq_ex");
    init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
    qp = ibv_create_qp(ibv_alloc_pd(context), &init);
    need(qp != NULL, "ibv_create_qp");
    complete(qp);
    pthread_barrier_init(&both, NULL, 2);
    for (i = 0; i < 2; i++)
        need(!pthread_create(&threads[i], NULL, poll, NULL), "pthread_create");
    for (i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (i = 0; i < COUNT; i++)
        wrong += taken[i] != 1;
    printf("%d changed, %d lost or doubled\n", (int)changed, wrong);
    return ibv_close_device(context);
}
