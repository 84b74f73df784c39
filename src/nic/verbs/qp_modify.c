/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue pairs: modify, query (IBA 11.2.5.2, 11.2.5.3).
 */
#include <errno.h>

#include "base/fail.h"
#include "roce/path.h"
#include "verbs/verbs.h"

#define SETTLE_NS 1000000000ull /* the last ACK waits for room so long */

static void take_paths(struct dev *dev, struct qp *qp, uint32_t mask, const struct paths *paths) {
    if (mask & RNIC_QP_AV)
        lanes_leave(&dev->host, qp);
    path_take(qp, mask, paths);
    if (mask & RNIC_QP_AV) {
        floods_new_peer(&dev->host, qp, &qp->ib.from.src.sin6_addr);
        qp->reach = qp->reach_in = dev->host.local ? REACH_OPEN : REACH_WIRE;
    }
    if (mask & RNIC_QP_ALT_PATH)
        floods_new_peer(&dev->host, qp, &qp->ib.alt_from.src.sin6_addr);
}

void verbs_disconnect(struct dev *dev, struct qp *qp) {
    lanes_leave(&dev->host, qp);
    if (qp->engine->disconnect)
        qp->engine->disconnect(qp);
}

/* What a transition means to the device's scheduling; the rest is qp_transition(). */
static int enter_state(struct dev *dev, struct qp *qp, int to, struct rnic_err *err) {
    if (to == RNIC_QPS_RESET || to == RNIC_QPS_ERR)
        sched_settle(&dev->run, qp);
    if (to == RNIC_QPS_RESET) {
        sched_forget(&dev->run, qp);
        verbs_disconnect(dev, qp);
        ends_forget(&dev->ends, qp->pub.qp_num);
    }
    int rc = qp_transition(qp, to, err);
    if (!rc && to == RNIC_QPS_RTR && qp_is_datagram(qp))
        floods_new_peer(&dev->host, qp, NULL);
    if (!rc && to >= RNIC_QPS_RTS)
        sched_ready(&dev->run, qp);
    return rc;
}

/* A path_mtu beyond the active one is taken, as by the kernel's drivers: the path may lead to this host, or the netdev's MTU
 * grow.  A packet that is too long for its way counts as tx_too_long. */
static int check_mtu(const struct dev *dev, uint32_t mask, struct rnic_err *err) {
    if (!(mask & RNIC_QP_PATH_MTU) || net_active_mtu(&dev->net))
        return 0;
    return fail(err, -EINVAL, "the MTU of %s is %d, too small for RoCE: at least %u", dev->net.netdev.name,
                dev->net.netdev.mtu, mtu_bytes(RNIC_MTU_256) + NET_HEADERS_MAX);
}

/* A path that is not a wire's cannot fail, and no packet of it could tell the peer of another one. */
static int check_local(const struct qp *qp, uint32_t mask, struct rnic_err *err) {
    if (!(mask & RNIC_QP_ALT_PATH) || qp->reach != REACH_LOCAL)
        return 0;
    return fail(
        err, -EOPNOTSUPP,
        "the queue pair's peer is on this host and reached by shared memory, which has no alternate path: load it "
        "before the first message, or open the device with local=False (RNIC_LOCAL=off)");
}

static int modify(struct dev *dev, struct qp *qp, const struct rnic_qp_attr *attr, uint32_t mask,
                  struct rnic_err *err) {
    struct paths paths;
    struct rnic_qp_attr before = qp->attr;
    int rc = qp_attr_check(qp, attr, mask, err);
    if (!rc)
        rc = check_mtu(dev, mask, err);
    if (!rc)
        rc = check_local(qp, mask, err);
    if (!rc && (mask & RNIC_QP_RATE_LIMIT))
        rc = verbs_check_rate(attr->rate_limit, err);
    if (!rc)
        rc = path_resolve(qp, attr, mask, &paths, err);
    if (rc)
        return rc;
    qp_attr_apply(qp, attr, mask);
    if (mask & RNIC_QP_STATE)
        rc = enter_state(dev, qp, attr->qp_state, err);
    if (rc) {
        qp_attr_restore(qp, &before);
        return rc;
    }
    take_paths(dev, qp, mask, &paths);
    if (mask & RNIC_QP_RATE_LIMIT)
        verbs_set_rate(dev, qp, &(struct rnic_qp_rate_limit_attr){.rate_limit = attr->rate_limit});
    if (mask & RNIC_QP_PATH_MIG_STATE)
        path_set_state(qp, attr->path_mig_state);
    return 0;
}

/* Processes of this host may reach memory by it, without us: where nobody counts what they do. */
void verbs_publish_qp(struct dev *dev, struct qp *qp) {
    uint32_t access = qp->attr.qp_access_flags | (qp->attr.max_dest_rd_atomic ? STORE_ANSWERS : 0);
    bool connected = qp->state >= RNIC_QPS_RTR && qp->state <= RNIC_QPS_SQD && qp->service->exposed;
    if (!dev->host.local || !connected || qp->cntrs)
        return;
    qp->exposed = true;
    qp->record = store_publish(&dev->store, &(struct store_record){.kind = STORE_QP,
                                                                   .handle = qp->pub.qp_num,
                                                                   .pd = rnic_pd_root(qp->pub.pd)->handle,
                                                                   .key = qp->attr.dest_qp_num,
                                                                   .access = access});
    if (dev->net.unplugged)
        store_hide(&dev->store, qp->record);
}

static int busy(struct rnic_err *err) { return fail(err, -EBUSY, "another thread is destroying the queue pair"); }

/* Takes what has come, and sends the last ACK, since nobody could tell the peer later that its work has been done.  Lets go of
 * the lock while the link is full. */
static void settle(struct dev *dev, struct qp *qp) {
    progress_take(&dev->run);
    uint64_t until = run_clock() + SETTLE_NS;
    while (!sched_settle(&dev->run, qp) && run_clock() < until)
        run_let_others(&dev->run);
}

/* What it has sent by reference is taken back only when nobody stands still inside a copy: what is taken back is lost. */
static bool end_copies(struct dev *dev, struct qp *qp, bool ends) {
    uint32_t peer = qp->attr.dest_qp_num;
    if (!qp->exposed)
        return true;
    if (!lanes_await(&dev->host, peer))
        return false;
    if (ends)
        qp_close_off(qp);
    return !ends || lanes_await(&dev->host, peer);
}

/* Until no other thread changes it; the lock is let go meanwhile. 0, or -EBUSY: one destroys it, or a handler of a signal has
 * interrupted that change. */
static int await_turn(struct dev *dev, struct qp *qp, struct rnic_err *err) {
    if (qp->leaving && pthread_equal(qp->leaver, pthread_self()))
        return fail(err, -EBUSY, "a handler of a signal has interrupted the call that ends or changes the queue pair");
    while (qp->leaving && !qp->destroying) {
        qp->waiting++;
        run_let_others(&dev->run);
        qp->waiting--;
    }
    return qp->destroying ? busy(err) : 0;
}

/* The same as for regions (withdraw_mr). */
static int close_off(struct dev *dev, struct qp *qp, bool ends, struct rnic_err *err) {
    qp->leaving = true;
    qp->leaver = pthread_self();
    if (ends)
        settle(dev, qp);
    qp_withdraw(qp);
    bool left = end_copies(dev, qp, ends);
    qp->leaving = false;
    if (left)
        qp->exposed = false;
    else
        verbs_carry_on(dev, qp);
    return left ? 0
                : fail(err, -EBUSY,
                       "a process that has been stopped is in the middle of reading or writing memory by the queue "
                       "pair; try again when it goes on or has ended");
}

int verbs_close_off(struct dev *dev, struct qp *qp, bool ends, struct rnic_err *err) {
    int rc = await_turn(dev, qp, err);
    return rc ? rc : close_off(dev, qp, ends, err);
}

int verbs_close_off_to_destroy(struct dev *dev, struct qp *qp, struct rnic_err *err) {
    int rc = await_turn(dev, qp, err);
    if (rc)
        return rc;
    qp->destroying = true;
    while (qp->waiting) /* they see it, and go */
        run_let_others(&dev->run);
    return close_off(dev, qp, true, err);
}

void verbs_carry_on(struct dev *dev, struct qp *qp) {
    qp->destroying = false;
    verbs_publish_qp(dev, qp);
    if (qp->engine->again)
        qp->engine->again(qp);
    sched_ready(&dev->run, qp);
    progress_finish(&dev->run, run_clock());
}

static bool is_end(const struct rnic_qp_attr *attr, uint32_t mask) {
    return mask & RNIC_QP_STATE && (attr->qp_state == RNIC_QPS_ERR || attr->qp_state == RNIC_QPS_RESET);
}

/* Does a change take away what peers may do by it? */
static bool takes_away(const struct qp *qp, const struct rnic_qp_attr *attr, uint32_t mask) {
    return is_end(attr, mask) || (mask & RNIC_QP_ACCESS_FLAGS && qp->attr.qp_access_flags & ~attr->qp_access_flags);
}

static int make_way(struct dev *dev, struct qp *qp, const struct rnic_qp_attr *attr, uint32_t mask,
                    struct rnic_err *err) {
    int rc = await_turn(dev, qp, err);
    if (rc || !takes_away(qp, attr, mask))
        return rc;
    rc = qp_attr_check(qp, attr, mask, err); /* what is refused changes nothing */
    return rc ? rc : verbs_close_off(dev, qp, is_end(attr, mask), err);
}

/* Against what the environment has made smaller; the rest is for the service to say. */
static int check_reads(const struct rnic_device_attr *limits, const struct rnic_qp_attr *attr, uint32_t mask,
                       struct rnic_err *err) {
    if ((mask & RNIC_QP_MAX_QP_RD_ATOMIC) && attr->max_rd_atomic > limits->max_qp_init_rd_atom)
        return fail(err, -EINVAL, "max_rd_atomic is %d; the device has %d", attr->max_rd_atomic,
                    limits->max_qp_init_rd_atom);
    if ((mask & RNIC_QP_MAX_DEST_RD_ATOMIC) && attr->max_dest_rd_atomic > limits->max_qp_rd_atom)
        return fail(err, -EINVAL, "max_dest_rd_atomic is %d; the device has %d", attr->max_dest_rd_atomic,
                    limits->max_qp_rd_atom);
    return 0;
}

int soft_modify_qp(struct rnic_qp *pub, const struct rnic_qp_attr *attr, uint32_t mask, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    int rc = dev_check_usable(dev, err);
    if (!rc && !mask && dev->kind->has & HAS_STREAMS) /* as the kernel's drivers of iWARP: librdmacm asks for nothing */
        return 0;
    if (!rc)
        rc = check_reads(&dev->attr, attr, mask, err);
    if (rc)
        return rc;
    dev_lock(dev);
    rc = make_way(dev, qp_of(pub), attr, mask, err);
    if (!rc) {
        qp_withdraw(qp_of(pub));
        rc = modify(dev, qp_of(pub), attr, mask, err);
        verbs_publish_qp(dev, qp_of(pub));
    }
    if (!rc)
        progress_finish(&dev->run, run_clock()); /* flushes, or an SQ that was drained already */
    dev_unlock(dev);
    engine_wake(&dev->run); /* new sockets to watch, new deadlines */
    if (!rc && (mask & RNIC_QP_AV))
        lanes_prepare(&dev->host, qp_of(pub));
    return rc;
}

/* ---------------------------------------------------------------- query */

int soft_query_qp(struct rnic_qp *pub, struct rnic_qp_attr *attr, struct rnic_qp_init_attr *init,
                  struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    const struct qp *qp = qp_of(pub);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    struct rnic_qp_cap cap = verbs_granted_cap(qp);
    qp_query(qp, attr);
    attr->cap = cap;
    *init = (struct rnic_qp_init_attr){.qp_context = pub->qp_context,
                                       .send_cq = pub->send_cq,
                                       .recv_cq = pub->recv_cq,
                                       .srq = qp->srq && !qp->xrc ? &qp->srq->pub : NULL,
                                       .cap = cap,
                                       .qp_type = pub->qp_type,
                                       .sq_sig_all = qp->sq_sig_all,
                                       .rwq_ind_tbl = raw_table(qp)};
    dev_unlock(dev);
    return 0;
}

int soft_query_qp_stats(struct rnic_qp *pub, struct rnic_qp_stats *out, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct qp *qp = qp_of(pub);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    *out = (struct rnic_qp_stats){.counters = qp->counters,
                                  .sq_depth = wq_head(&qp->sq) - wq_tail(&qp->sq),
                                  .rq_depth = wq_head(&qp->rq) - wq_tail(&qp->rq)};
    qp->engine->stats(qp, out);
    dev_unlock(dev);
    return 0;
}
