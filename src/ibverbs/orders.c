/* SPDX-License-Identifier: Apache-2.0
 *
 * Orders of RDMA-CM's server to queue pairs (orders.h): those of iWARP devices are in a list.
 */
#include "orders.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "lib.h"
#include "nic_ext.h"

/* While it is held, no queue pair of the list goes. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct qp *first;

void orders_follow(struct qp *qp) {
    if (qp->pub.qp_base.context->device->transport_type != IBV_TRANSPORT_IWARP)
        return;
    pthread_mutex_lock(&lock);
    qp->next = first;
    first = qp;
    pthread_mutex_unlock(&lock);
}

void orders_leave(const struct qp *qp) {
    pthread_mutex_lock(&lock);
    for (struct qp **at = &first; *at; at = &(*at)->next) {
        if (*at == qp) {
            *at = qp->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

void orders_leave_all(const struct ibv_context *context) {
    pthread_mutex_lock(&lock);
    for (struct qp **at = &first; *at;) {
        if ((*at)->pub.qp_base.context == context)
            *at = (*at)->next;
        else
            at = &(*at)->next;
    }
    pthread_mutex_unlock(&lock);
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

static int carry_out(const struct order *order, const int fds[ORDER_FDS]) {
    bool taken = false;
    pthread_mutex_lock(&lock);
    struct qp *qp = find(order);
    int rc = qp ? carry_out_at(qp, order, fds, &taken) : -EINVAL;
    pthread_mutex_unlock(&lock);
    for (int i = 0; !taken && i < ORDER_FDS; i++) {
        if (fds[i] >= 0)
            syscall(SYS_close, fds[i]);
    }
    return rc;
}

/* A thread that is not in the child may have had it. */
static void in_child(void) { pthread_mutex_init(&lock, NULL); }

__attribute__((constructor)) static void introduce(void) {
    if (!rnic_preload_take_orders)
        return;
    pthread_atfork(NULL, NULL, in_child);
    rnic_preload_take_orders(carry_out);
}
