/* SPDX-License-Identifier: Apache-2.0
 *
 * The extension rnic.stream: queue pairs of iWARP get their connections, and whoever has made them is told of their ends.
 */
#include <errno.h>

#include "base/fail.h"
#include "iwarp/iwarp.h"
#include "verbs/verbs.h"

static int check_attach(const struct qp *qp, const struct rnic_stream_attr *attr, struct rnic_err *err) {
    if (qp->state != RNIC_QPS_INIT && qp->state != RNIC_QPS_RTR)
        return fail(err, -EINVAL, "the queue pair is in %s; it takes a stream in INIT or RTR",
                    qp_state_name(qp->state));
    if (qp->way.held)
        return fail(err, -EBUSY, "the queue pair has a stream already");
    if (attr->rtr > RNIC_STREAM_RTR_READ)
        return fail(err, -EINVAL, "rtr %d does not exist", attr->rtr);
    if (attr->nbytes && !attr->bytes)
        return fail(err, -EINVAL, "%u bytes are nowhere", attr->nbytes);
    return 0;
}

int soft_attach_stream(struct rnic_qp *pub, const struct rnic_stream_attr *attr, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct qp *qp = qp_of(pub);
    int rc = dev_check_has(dev, HAS_STREAMS, "streams", err);
    if (rc)
        return rc;
    dev_lock(dev);
    rc = check_attach(qp, attr, err);
    if (!rc && (rc = ends_reserve(&dev->ends, (uint32_t)dev->objects.qps)))
        fail(err, rc, "no memory for events");
    if (!rc)
        rc = tcp_attach(&dev->net.tcp, &qp->way, qp, attr, dev->net.rcvbuf, err);
    if (!rc)
        iwarp_agree(qp, attr);
    dev_unlock(dev);
    return rc;
}

int soft_confirm_stream(struct rnic_qp *pub, bool both, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct qp *qp = qp_of(pub);
    int rc = dev_check_has(dev, HAS_STREAMS, "streams", err);
    if (rc)
        return rc;
    dev_lock(dev);
    if (qp->state == RNIC_QPS_RESET)
        rc = fail(err, -EINVAL, "the queue pair is in RESET; SENDs can be confirmed from INIT on");
    else
        iwarp_confirm(qp, both);
    dev_unlock(dev);
    return rc;
}

int soft_stream_fd(struct rnic_context *ctx) {
    const struct dev *dev = dev_of(ctx);
    return dev->kind->has & HAS_STREAMS ? dev->ends.fd : -EOPNOTSUPP;
}

int soft_next_stream_event(struct rnic_context *ctx, struct rnic_stream_event *event, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (!rc && dev->ends.fd < 0)
        rc = dev_check_has(dev, HAS_STREAMS, "streams", err);
    if (rc)
        return rc;
    dev_lock(dev);
    bool found = ends_take(&dev->ends, event);
    dev_unlock(dev);
    return found ? 0 : -EAGAIN;
}
