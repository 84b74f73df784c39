/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue pairs: create, modify, query, destroy, post (IBA 11.2.5, 11.4.1).
 */
#include <errno.h>
#include <stdlib.h>

#include "base/fail.h"
#include "dev/verbs.h"
#include "link/group.h"
#include "raw/raw.h"
#include "roce/roce.h"

static int check_cap(const struct rnic_qp_cap *cap, struct rnic_err *err) {
    const struct {
        uint32_t value, most;
        const char *name;
    } rows[] = {{cap->max_send_wr, MAX_QP_WR, "max_send_wr"},
                {cap->max_recv_wr, MAX_QP_WR, "max_recv_wr"},
                {cap->max_send_sge, MAX_SGE, "max_send_sge"},
                {cap->max_recv_sge, MAX_SGE, "max_recv_sge"},
                {cap->max_inline_data, MAX_INLINE, "max_inline_data"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].value > rows[i].most)
            return fail(err, -EINVAL, "cap.%s is %u; the device has %u", rows[i].name, rows[i].value, rows[i].most);
    }
    return 0;
}

struct engine {
    const struct engine_ops *ops; /* NULL: no such type */
    uint32_t service;
};

static struct engine engine_of(int qp_type) {
    static const struct engine engines[] = {[RNIC_QPT_GSI] = {&roce_ud_ops, OPC_UD},
                                            [RNIC_QPT_RC] = {&roce_rc_ops, OPC_RC},
                                            [RNIC_QPT_UC] = {&roce_uc_ops, OPC_UC},
                                            [RNIC_QPT_UD] = {&roce_ud_ops, OPC_UD},
                                            [RNIC_QPT_RAW_PACKET] = {&raw_ops, 0}};
    int n = (int)(sizeof engines / sizeof *engines);
    return qp_type >= 0 && qp_type < n ? engines[qp_type] : (struct engine){NULL, 0};
}

static int check_init(const struct rnic_pd *pd, const struct rnic_qp_init_attr *attr, struct rnic_err *err) {
    if (!engine_of(attr->qp_type).ops)
        return fail(err, -EOPNOTSUPP,
                    "queue pair type %d: this device has RC (%d), UC (%d), UD (%d), RAW_PACKET (%d) and GSI (%d)",
                    attr->qp_type, RNIC_QPT_RC, RNIC_QPT_UC, RNIC_QPT_UD, RNIC_QPT_RAW_PACKET, RNIC_QPT_GSI);
    if (attr->rwq_ind_tbl)
        return raw_check_spread(pd, attr, err);
    if (attr->srq && attr->qp_type == RNIC_QPT_GSI)
        return fail(err, -EINVAL, "a GSI queue pair has receives of its own, no shared receive queue");
    if (attr->srq && attr->srq->ctx != pd->ctx)
        return fail(err, -EINVAL, "the shared receive queue belongs to another device than the protection domain");
    if (!attr->send_cq || !attr->recv_cq)
        return fail(err, -EINVAL, "a queue pair needs a send_cq and a recv_cq (they may be the same)");
    if (attr->send_cq->ctx != pd->ctx || attr->recv_cq->ctx != pd->ctx)
        return fail(err, -EINVAL, "the completion queues belong to another device than the protection domain");
    return check_cap(&attr->cap, err);
}

static void free_qp(struct qp *qp) {
    if (qp->engine_state)
        qp->engine->destroy(qp);
    wq_free(&qp->sq);
    wq_free(&qp->rq);
    free(qp);
}

static uint32_t at_least_one(uint32_t n) { return n ? n : 1; }

static struct rnic_qp_cap granted(const struct qp *qp) {
    uint32_t wr = qp->srq ? 0 : qp->rq.max_wr, sge = qp->srq ? 0 : qp->rq.max_sge;
    return (struct rnic_qp_cap){qp->sq.max_wr, wr, qp->sq.max_sge, sge, qp->sq.max_inline};
}

static struct qp *make_qp(struct rnic_pd *pd, struct rnic_qp_init_attr *attr) {
    struct qp *qp = calloc(1, sizeof *qp);
    struct rnic_qp_cap *cap = &attr->cap;
    if (!qp)
        return NULL;
    qp->pub = (struct rnic_qp){pd->ctx, pd, attr->send_cq, attr->recv_cq, attr->qp_context, 0, attr->qp_type};
    qp->nic = &dev_of(pd->ctx)->nic;
    qp->engine = engine_of(attr->qp_type).ops;
    qp->service = engine_of(attr->qp_type).service;
    qp->sq.qp_type = attr->qp_type;
    qp->srq = (struct srq *)attr->srq;
    qp->sq.pd = pd;
    qp->rq.pd = attr->srq ? attr->srq->pd : pd;
    if (attr->srq) { /* its own receive queue is a place for the one that a message takes (man ibv_create_qp) */
        cap->max_recv_wr = 0;
        cap->max_recv_sge = qp->srq->q.max_sge;
    }
    qp->sq_sig_all = attr->sq_sig_all;
    qp->timer_at = NEVER;
    if (wq_init(&qp->sq, at_least_one(cap->max_send_wr), at_least_one(cap->max_send_sge), cap->max_inline_data,
                sizeof(struct send_wqe)) ||
        wq_init(&qp->rq, at_least_one(cap->max_recv_wr), at_least_one(cap->max_recv_sge), 0, sizeof(struct recv_wqe)) ||
        qp->engine->create(qp)) {
        free_qp(qp);
        return NULL;
    }
    *cap = granted(qp);
    if (attr->rwq_ind_tbl)
        raw_spread(qp, attr);
    return qp;
}

/* The timer heap has room for every QP, so that a timer never fails. */
static int heap_room(struct dev *dev) {
    struct timer_heap *h = &dev->timers;
    if ((uint32_t)dev->qps < h->room)
        return 0;
    uint32_t room = h->room ? h->room * 2 : 64;
    struct qp **at = realloc(h->at, room * sizeof(struct qp *));
    if (!at)
        return -ENOMEM;
    h->at = at;
    h->room = room;
    return 0;
}

static int number_qp(struct dev *dev, struct qp *qp, struct rnic_err *err) {
    if (qp->pub.qp_type != RNIC_QPT_GSI)
        return qpn_add(dev, qp, err);
    if (dev->gsi)
        return fail(err, -EBUSY, "this context has a GSI queue pair already; there is one queue pair 1 in each");
    dev->gsi = qp;
    qp->pub.qp_num = QPN_GSI;
    return 0;
}

static void show_headers(struct dev *dev, bool show) {
    for (int i = 0; i < dev->net.ngids; i++)
        port_show_headers(&dev->ports[i], show);
}

/* A queue pair that spreads what it receives has none to receive to, and may have none to send. */
static void use_cq(struct rnic_cq *cq, int n) {
    if (cq)
        ((struct cq *)cq)->qps += n;
}

static int enter_qp(struct dev *dev, struct qp *qp, struct rnic_err *err) {
    int rc = heap_room(dev);
    if (rc)
        return fail(err, rc, "no memory");
    rc = number_qp(dev, qp, err);
    if (!rc && qp->engine == &raw_ops) {
        rc = raw_enter(dev, qp, err);
        if (rc)
            qpn_remove(dev, qp);
    }
    if (rc)
        return rc;
    dev->qps++;
    if (qp_is_datagram(qp) && dev->datagram_qps++ == 0)
        show_headers(dev, true);
    ((struct pd *)qp->pub.pd)->qps++;
    use_cq(qp->pub.send_cq, 1);
    use_cq(qp->pub.recv_cq, 1);
    if (qp->srq)
        qp->srq->qps++;
    return 0;
}

int soft_create_qp(struct rnic_pd *pd, struct rnic_qp_init_attr *attr, struct rnic_qp **out, struct rnic_err *err) {
    struct dev *dev = dev_of(pd->ctx);
    int rc = dev_check_alive(dev, err);
    if (!rc)
        rc = check_init(pd, attr, err);
    if (rc)
        return rc;
    struct qp *qp = make_qp(pd, attr);
    if (!qp)
        return fail(err, -ENOMEM, "no memory for the queues");
    dev_lock(dev);
    rc = enter_qp(dev, qp, err);
    dev_unlock(dev);
    if (rc) {
        free_qp(qp);
        return rc;
    }
    *out = &qp->pub;
    return 0;
}

static void leave_port(struct dev *dev, struct qp *qp) {
    struct port *port = qp->flow.port;
    if (port)
        dev->port_users[port - dev->ports]--;
    qp->flow.port = NULL;
}

static void leave_qp(struct dev *dev, struct qp *qp) {
    struct rnic_qp *pub = &qp->pub;
    sched_settle(dev, qp);
    sched_forget(dev, qp);
    qp_forget_completions(qp);
    if (qp->engine == &raw_ops)
        raw_leave(dev, qp);
    if (dev->gsi == qp)
        dev->gsi = NULL;
    else
        qpn_remove(dev, qp);
    leave_port(dev, qp);
    event_forget(&dev->nic.events, pub->qp_context);
    dev->qps--;
    if (qp_is_datagram(qp) && --dev->datagram_qps == 0)
        show_headers(dev, false);
    ((struct pd *)pub->pd)->qps--;
    use_cq(pub->send_cq, -1);
    use_cq(pub->recv_cq, -1);
    if (qp->srq)
        qp->srq->qps--;
}

int soft_destroy_qp(struct rnic_qp *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct qp *qp = (struct qp *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    int groups = qp->groups, flows = raw_flows(qp);
    if (!groups && !flows)
        leave_qp(dev, qp);
    dev_unlock(dev);
    if (flows)
        return fail(err, -EBUSY, "%d flow rules steer frames to the queue pair: destroy_flow() first", flows);
    if (groups) /* IBA 10.5.2 */
        return fail(err, -EBUSY, "the queue pair is attached to %d multicast groups: detach_mcast() first", groups);
    free_qp(qp);
    return 0;
}

/* ---------------------------------------------------------------- modify */

/* The ways to and from the peer that an address vector names (IBA A17.4). */
static int resolve(struct dev *dev, const struct rnic_ah_attr *av, uint32_t dest_qpn, struct flow *to,
                   struct flow *from, struct rnic_err *err) {
    int rc = ah_resolve(dev, av, to, err);
    if (rc)
        return rc;
    if (group_is_multicast(&to->dst.sin6_addr))
        return fail(err, -EINVAL, "ah_attr: dgid is a multicast address, which a connected queue pair cannot have");
    to->dst_slot = qpn_slot(dest_qpn);
    *from = (struct flow){.src = to->dst, .dst = to->src};
    from->dst.sin6_port = htons(ROCE_UDP_PORT);
    return 0;
}

static void take_flow(struct dev *dev, struct qp *qp, const struct flow *to, const struct flow *from) {
    leave_port(dev, qp);
    qp->flow = *to;
    qp->from = *from;
    dev->port_users[(struct port *)to->port - dev->ports]++;
}

/* What a transition means to the device's scheduling; the rest is qp_transition(). */
static int enter_state(struct dev *dev, struct qp *qp, int to) {
    if (to == RNIC_QPS_RESET || to == RNIC_QPS_ERR)
        sched_settle(dev, qp);
    if (to == RNIC_QPS_RESET) {
        sched_forget(dev, qp);
        leave_port(dev, qp);
    }
    int rc = qp_transition(qp, to);
    if (!rc && to >= RNIC_QPS_RTS)
        sched_ready(dev, qp);
    return rc;
}

static int check_mtu(const struct dev *dev, const struct rnic_qp_attr *attr, uint32_t mask, struct rnic_err *err) {
    if (!(mask & RNIC_QP_PATH_MTU) || attr->path_mtu <= dev_active_mtu(dev))
        return 0;
    return fail(err, -EINVAL, "path_mtu is %u bytes; the port's active MTU is %u (the netdev's is %d)",
                mtu_bytes(attr->path_mtu), mtu_bytes(dev_active_mtu(dev)), dev->net.mtu);
}

static int modify(struct dev *dev, struct qp *qp, const struct rnic_qp_attr *attr, uint32_t mask,
                  struct rnic_err *err) {
    struct flow to, from;
    struct rnic_qp_attr before = qp->attr;
    int rc = qp_attr_check(qp, attr, mask, err);
    uint32_t dest = mask & RNIC_QP_DEST_QPN ? attr->dest_qp_num : qp->attr.dest_qp_num;
    if (!rc)
        rc = check_mtu(dev, attr, mask, err);
    if (!rc && (mask & RNIC_QP_AV))
        rc = resolve(dev, &attr->ah_attr, dest, &to, &from, err);
    if (rc)
        return rc;
    qp_attr_apply(qp, attr, mask);
    if (mask & RNIC_QP_STATE)
        rc = enter_state(dev, qp, attr->qp_state);
    if (rc) {
        qp->attr = before;
        return fail(err, rc, "no memory for %u responder resources", attr->max_dest_rd_atomic);
    }
    if (mask & RNIC_QP_AV)
        take_flow(dev, qp, &to, &from);
    return 0;
}

int soft_modify_qp(struct rnic_qp *pub, const struct rnic_qp_attr *attr, uint32_t mask, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    rc = modify(dev, (struct qp *)pub, attr, mask, err);
    while (!rc && dev->ready_first) /* flushes, or an SQ that was drained already */
        sched_run(dev, dev_clock());
    dev_unlock(dev);
    engine_wake(dev); /* new sockets to watch, new deadlines */
    return rc;
}

int soft_query_qp(struct rnic_qp *pub, struct rnic_qp_attr *attr, struct rnic_qp_init_attr *init,
                  struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    const struct qp *qp = (const struct qp *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    struct rnic_qp_cap cap = granted(qp);
    *attr = qp->attr;
    attr->qp_state = attr->cur_qp_state = qp->state;
    attr->sq_draining = qp->sq_draining;
    attr->cap = cap;
    *init = (struct rnic_qp_init_attr){.qp_context = pub->qp_context,
                                       .send_cq = pub->send_cq,
                                       .recv_cq = pub->recv_cq,
                                       .srq = qp->srq ? &qp->srq->pub : NULL,
                                       .cap = cap,
                                       .qp_type = pub->qp_type,
                                       .sq_sig_all = qp->sq_sig_all,
                                       .rwq_ind_tbl = raw_table(qp)};
    dev_unlock(dev);
    return 0;
}

int soft_query_qp_stats(struct rnic_qp *pub, struct rnic_qp_stats *out, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct qp *qp = (struct qp *)pub;
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

/* ---------------------------------------------------------------- post */

int soft_post_send(struct rnic_qp *pub, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad,
                   struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct qp *qp = (struct qp *)pub;
    int rc = dev_check_alive(dev, err), state = qp->state;
    if (!rc && state < RNIC_QPS_RTS)
        rc = fail(err, -EINVAL, "the queue pair is in %s; sending needs RTS", qp_state_name(state));
    if (!rc && !pub->send_cq)
        rc = fail(err, -EINVAL, "the queue pair was created without a send_cq, and so without a send queue");
    if (rc) {
        *bad = wr;
        return rc;
    }
    rc = sq_post(&qp->sq, wr, bad, err);
    progress_post(dev, qp);
    return rc;
}

int soft_post_recv(struct rnic_qp *pub, const struct rnic_recv_wr *wr, const struct rnic_recv_wr **bad,
                   struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct qp *qp = (struct qp *)pub;
    int rc = dev_check_alive(dev, err);
    if (!rc && qp->srq)
        rc = fail(err, -EINVAL,
                  "the queue pair takes from a shared receive queue: post there, with post_recv of the SRQ");
    if (!rc && !pub->recv_cq)
        rc =
            fail(err, -EINVAL, "the queue pair has no receives of its own: post to its work queues, with WQ.post_recv");
    if (!rc && qp->state == RNIC_QPS_RESET)
        rc = fail(err, -EINVAL, "the queue pair is in RESET; receives are posted from INIT on");
    if (rc) {
        *bad = wr;
        return rc;
    }
    rc = rq_post(&qp->rq, wr, bad, err);
    if (qp->state == RNIC_QPS_ERR)
        progress_post(dev, qp); /* to be flushed */
    return rc;
}
