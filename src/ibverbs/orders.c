/* SPDX-License-Identifier: Apache-2.0
 *
 * Orders of RDMA-CM's server to queue pairs (orders.h): those of iWARP devices are in a list.
 */
#include "orders.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "lib.h"
#include "nic_ext.h"

/* The list's, and that of the orders under way.  It is not held while a device works, which may take its time. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t done = PTHREAD_COND_INITIALIZER; /* an order is carried out */
static struct qp *first;

void orders_follow(struct qp *qp) {
    if (qp->pub.qp_base.context->device->transport_type != IBV_TRANSPORT_IWARP)
        return;
    pthread_mutex_lock(&lock);
    qp->next = first;
    first = qp;
    pthread_mutex_unlock(&lock);
}

/* A queue pair gets no orders from now on, and none is under way for it. */
static void leave(struct qp **at) {
    struct qp *qp = *at;
    *at = qp->next;
    while (qp->orders)
        pthread_cond_wait(&done, &lock);
}

/* No thread is cancelled where it waits: the mutex would stay locked. */
void orders_leave(const struct qp *qp) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    pthread_mutex_lock(&lock);
    for (struct qp **at = &first; *at; at = &(*at)->next) {
        if (*at == qp) {
            leave(at);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    pthread_setcancelstate(before, NULL);
}

static struct qp **find_of(const struct ibv_context *context) {
    for (struct qp **at = &first; *at; at = &(*at)->next) {
        if ((*at)->pub.qp_base.context == context)
            return at;
    }
    return NULL;
}

void orders_leave_all(const struct ibv_context *context) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    pthread_mutex_lock(&lock);
    for (struct qp **at; (at = find_of(context));) /* anew: the list may change while one is waited for */
        leave(at);
    pthread_mutex_unlock(&lock);
    pthread_setcancelstate(before, NULL);
}

static struct qp *find(const struct order *order) {
    for (struct qp *qp = first; qp; qp = qp->next) {
        const struct device *device = (const struct device *)qp->pub.qp_base.context->device;
        if (qp->pub.qp_base.qp_num == order->qp_num && device->info.guid == order->guid)
            return qp;
    }
    return NULL;
}

static int move(struct qp *qp, int state, const struct order *order) {
    const struct rnic_ops *ops = context_of(qp->pub.qp_base.context)->ops;
    struct rnic_qp_attr attr = {.qp_state = state};
    struct rnic_err err = {0};
    uint32_t mask = RNIC_QP_STATE;
    if (state == RNIC_QPS_RTS) {
        mask |= RNIC_QP_MAX_QP_RD_ATOMIC | RNIC_QP_MAX_DEST_RD_ATOMIC;
        attr.max_rd_atomic = (uint8_t)order->max_rd_atomic;
        attr.max_dest_rd_atomic = (uint8_t)order->max_dest_rd_atomic;
    }
    return -failed("modify_qp", JUST_CALL(ops, modify_qp, qp->nic, &attr, mask, &err), &err);
}

/* From then on the descriptors are the queue pair's. */
static int attach(const struct qp *qp, const struct order *order, const int fds[ORDER_FDS]) {
    const struct rnic_ext_stream *ext = rnic_extension(qp->nic->ctx, RNIC_EXT_STREAM);
    const struct rnic_stream_attr attr = {.fd = fds[0],
                                          .line = fds[1],
                                          .rtr = (uint8_t)order->rtr,
                                          .initiator = order->initiator,
                                          .crc = order->crc,
                                          .markers_in = order->markers_in,
                                          .markers_out = order->markers_out,
                                          .rfc7306 = order->rfc7306};
    struct rnic_err err = {0};
    return -failed("attach_stream", ext ? UNCANCELLED(ext->attach(qp->nic, &attr, &err)) : -EOPNOTSUPP, &err);
}

/* One that has ended is not told again to close. */
static int carry_out_at(struct qp *qp, const struct order *order, const int fds[ORDER_FDS], bool *taken) {
    if (order->kind == ORDER_END)
        return move(qp, RNIC_QPS_ERR, order);
    if (order->kind == ORDER_CLOSE) {
        move(qp, RNIC_QPS_SQD, order);
        return 0;
    }
    int rc = attach(qp, order, fds);
    *taken = !rc;
    return rc ? rc : move(qp, RNIC_QPS_RTS, order);
}

/* The queue pair of an order, which does not go until end(). */
static struct qp *begin(const struct order *order) {
    pthread_mutex_lock(&lock);
    struct qp *qp = find(order);
    if (qp)
        qp->orders++;
    pthread_mutex_unlock(&lock);
    return qp;
}

static void end(struct qp *qp) {
    pthread_mutex_lock(&lock);
    qp->orders--;
    pthread_cond_broadcast(&done);
    pthread_mutex_unlock(&lock);
}

/* librnic_preload.so lets no thread be cancelled here. */
static int carry_out(const struct order *order, const int fds[ORDER_FDS]) {
    bool taken = false;
    struct qp *qp = begin(order);
    int rc = qp ? carry_out_at(qp, order, fds, &taken) : -EINVAL;
    if (qp)
        end(qp);
    for (int i = 0; !taken && i < ORDER_FDS; i++) {
        if (fds[i] >= 0)
            syscall(SYS_close, fds[i]);
    }
    return rc;
}

/* Threads that are not in the child may have had the lock, and orders under way. */
static void in_child(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&done, NULL);
    for (struct qp *qp = first; qp; qp = qp->next)
        qp->orders = 0;
}

__attribute__((constructor)) static void introduce(void) {
    if (!rnic_preload_take_orders)
        return;
    pthread_atfork(NULL, NULL, in_child);
    rnic_preload_take_orders(carry_out);
}
