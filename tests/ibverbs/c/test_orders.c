/* SPDX-License-Identifier: Apache-2.0
 *
 * Orders of RDMA-CM's server to queue pairs: while one is carried out, others come and go, and the one that it is for stays.
 */
#include "orders.h"

#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "lib.h"

#define HANGS 60 /* seconds: so long takes nothing but what never ends */

static order_function *give;
void rnic_preload_take_orders(order_function *function) { give = function; }

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static const struct rnic_ops *real;
static struct rnic_ops changed;

/* A device that takes its time. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changes = PTHREAD_COND_INITIALIZER;
static enum { FREE, IN_DEVICE, GOES_ON } where;

static void reach(int next) {
    pthread_mutex_lock(&lock);
    where = next;
    pthread_cond_broadcast(&changes);
    pthread_mutex_unlock(&lock);
}

static void wait_for(int what) {
    pthread_mutex_lock(&lock);
    while ((int)where != what)
        pthread_cond_wait(&changes, &lock);
    pthread_mutex_unlock(&lock);
}

static int slow_modify(struct rnic_qp *qp, const struct rnic_qp_attr *attr, uint32_t mask, struct rnic_err *err) {
    reach(IN_DEVICE);
    wait_for(GOES_ON);
    return real->modify_qp(qp, attr, mask, err);
}

static int waits_for_the_program(struct rnic_qp *qp, struct rnic_err *err) {
    (void)qp;
    err->unacknowledged = 1;
    reach(IN_DEVICE);
    return -EBUSY;
}

static void open_device(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0]);
    context = ibv_open_device(list[0]);
    CHECK(context);
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    CHECK(pd && cq);
    real = context_of(context)->ops;
    changed = *real;
    context_of(context)->ops = &changed;
    where = FREE;
    alarm(HANGS);
}

static void close_device(void) {
    CHECK_EQ(ibv_destroy_cq(cq), 0);
    CHECK_EQ(ibv_dealloc_pd(pd), 0);
    CHECK_EQ(ibv_close_device(context), 0);
    alarm(0);
}

static struct ibv_qp *new_qp(void) {
    struct ibv_qp_init_attr init = {.send_cq = cq,
                                    .recv_cq = cq,
                                    .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
                                    .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    return qp;
}

/* What the server says of a queue pair. */
static int end_of(const struct ibv_qp *qp) {
    static const int none[ORDER_FDS] = {-1, -1};
    const struct device *device = (const struct device *)context->device;
    return give(&(struct order){.guid = device->info.guid, .qp_num = qp->qp_num, .kind = ORDER_END}, none);
}

static void *carry_out(void *qp) { return (void *)(intptr_t)end_of(qp); }

static void *destroy(void *qp) { return (void *)(intptr_t)ibv_destroy_qp(qp); }

static intptr_t result_of(pthread_t thread) {
    void *result;
    CHECK_EQ(pthread_join(thread, &result), 0);
    return (intptr_t)result;
}

static void other_queue_pairs_come_and_go(void) {
    pthread_t thread;
    open_device();
    struct ibv_qp *qp = new_qp();
    changed.modify_qp = slow_modify;
    CHECK_EQ(pthread_create(&thread, NULL, carry_out, qp), 0);
    wait_for(IN_DEVICE);
    CHECK_EQ(ibv_destroy_qp(new_qp()), 0);
    reach(GOES_ON);
    CHECK_EQ(result_of(thread), 0);
    CHECK_EQ(ibv_destroy_qp(qp), 0);
    close_device();
}

/* AddressSanitizer would see that the queue pair has gone. */
static void a_queue_pair_stays_while_an_order_is_under_way(void) {
    pthread_t orders, end;
    open_device();
    struct ibv_qp *qp = new_qp();
    changed.modify_qp = slow_modify;
    CHECK_EQ(pthread_create(&orders, NULL, carry_out, qp), 0);
    wait_for(IN_DEVICE);
    CHECK_EQ(pthread_create(&end, NULL, destroy, qp), 0);
    usleep(10000); /* to destroy it, if it did */
    reach(GOES_ON);
    CHECK_EQ(result_of(orders), 0);
    CHECK_EQ(result_of(end), 0);
    close_device();
}

static void a_queue_pair_whose_end_was_cancelled_gets_orders(void) {
    pthread_t thread;
    open_device();
    struct ibv_qp *qp = new_qp();
    changed.destroy_qp = waits_for_the_program;
    CHECK_EQ(pthread_create(&thread, NULL, destroy, qp), 0);
    wait_for(IN_DEVICE);
    CHECK_EQ(pthread_cancel(thread), 0);
    CHECK_EQ(result_of(thread), (intptr_t)PTHREAD_CANCELED);
    CHECK_EQ(end_of(qp), 0);
    changed.destroy_qp = real->destroy_qp;
    CHECK_EQ(ibv_destroy_qp(qp), 0);
    close_device();
}

int main(void) {
    setenv("RNIC_TRANSPORT", "iwarp", 1);
    RUN(other_queue_pairs_come_and_go);
    RUN(a_queue_pair_stays_while_an_order_is_under_way);
    RUN(a_queue_pair_whose_end_was_cancelled_gets_orders);
    return check_done();
}
