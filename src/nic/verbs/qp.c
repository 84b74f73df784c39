/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue pairs: create, destroy, post (IBA 11.2.5, 11.4.1).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "qp/tagged.h"
#include "raw/raw.h"
#include "roce/direct.h"
#include "roce/roce.h"
#include "verbs/verbs.h"

#define NOW_BYTES 4096 /* are copied in a tenth of a microsecond */

static bool receives_of_its_own(const struct rnic_qp_init_attr *attr) {
    return !attr->srq && !attr->rwq_ind_tbl && attr->qp_type != RNIC_QPT_XRC_SEND && attr->qp_type != RNIC_QPT_XRC_RECV;
}

/* What is asked for receives that the queue pair does not have is passed over (man ibv_create_qp). */
static int check_cap(const struct rnic_device_attr *limits, const struct rnic_qp_init_attr *attr,
                     struct rnic_err *err) {
    const struct rnic_qp_cap *cap = &attr->cap;
    bool receives = receives_of_its_own(attr);
    uint32_t max_wr = (uint32_t)limits->max_qp_wr, max_sge = (uint32_t)limits->max_sge;
    const struct {
        uint32_t value, most;
        const char *name;
    } rows[] = {{cap->max_send_wr, max_wr, "max_send_wr"},
                {receives ? cap->max_recv_wr : 0, max_wr, "max_recv_wr"},
                {cap->max_send_sge, max_sge, "max_send_sge"},
                {receives ? cap->max_recv_sge : 0, max_sge, "max_recv_sge"},
                {cap->max_inline_data, limits->max_inline_data, "max_inline_data"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].value > rows[i].most)
            return fail(err, -EINVAL, "cap.%s is %u; the device has %u", rows[i].name, rows[i].value, rows[i].most);
    }
    return 0;
}

const struct service *verbs_service(const struct dev *dev, int qp_type) {
    const struct service *found = NULL;
    for (int i = 0; dev->kind->transports[i] && !found; i++)
        found = transport_service(dev->kind->transports[i], qp_type);
    return found;
}

/* -EOPNOTSUPP, with the types that there are. */
static int no_such_type(const struct dev *dev, int qp_type, struct rnic_err *err) {
    char names[160] = "";
    size_t n = 0;
    for (int i = 0; dev->kind->transports[i]; i++) {
        const struct transport *of = dev->kind->transports[i];
        for (int k = 0; k < of->count && n < sizeof names; k++)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%s (%d)", n ? ", " : "", of->services[k].name,
                                  of->services[k].type);
    }
    return fail(err, -EOPNOTSUPP, "queue pair type %s (%d): %s is %s %s device, which has %s", qp_type_name(qp_type),
                qp_type, dev->info.name, dev->kind->article, dev->kind->name, names);
}

static int check_cqs(const struct rnic_pd *pd, const struct rnic_qp_init_attr *attr, struct rnic_err *err) {
    bool sends_only = attr->qp_type == RNIC_QPT_XRC_SEND;
    if (sends_only && attr->srq) /* a recv_cq is passed over, as by drivers */
        return fail(err, -EINVAL, "an XRC_SEND queue pair receives nothing: it has no srq");
    if (!attr->send_cq || !(attr->recv_cq || sends_only))
        return fail(err, -EINVAL,
                    sends_only ? "an XRC_SEND queue pair needs a send_cq"
                               : "a queue pair needs a send_cq and a recv_cq (they may be the same)");
    if (attr->send_cq->ctx != pd->ctx || (attr->recv_cq && attr->recv_cq->ctx != pd->ctx))
        return fail(err, -EINVAL, "the completion queues belong to another device than the protection domain");
    return 0;
}

static int check_init(const struct rnic_pd *pd, const struct rnic_qp_init_attr *attr, struct rnic_err *err) {
    if (!verbs_service(dev_of(pd->ctx), attr->qp_type))
        return no_such_type(dev_of(pd->ctx), attr->qp_type, err);
    if (attr->qp_type == RNIC_QPT_XRC_RECV)
        return fail(err, -EINVAL,
                    "an XRC_RECV queue pair is of an XRC domain, not of a protection domain: "
                    "XRCD.create_qp() makes it");
    if (attr->rwq_ind_tbl) {
        int rc = raw_check_spread(pd, attr, err);
        return rc ? rc : check_cap(&dev_of(pd->ctx)->attr, attr, err);
    }
    if (attr->srq && attr->qp_type == RNIC_QPT_GSI)
        return fail(err, -EINVAL, "a GSI queue pair has receives of its own, no shared receive queue");
    if (attr->srq && attr->srq->ctx != pd->ctx)
        return fail(err, -EINVAL, "the shared receive queue belongs to another device than the protection domain");
    if (attr->srq && ((const struct srq *)attr->srq)->xrc)
        return fail(err, -EINVAL, "the shared receive queue is an XRC one: XRC_RECV queue pairs take from it");
    if (attr->srq && ((const struct srq *)attr->srq)->tags && verbs_check_tagged(attr, err))
        return -EOPNOTSUPP;
    int rc = check_cqs(pd, attr, err);
    return rc ? rc : check_cap(&dev_of(pd->ctx)->attr, attr, err);
}

void verbs_free_qp(struct qp *qp) {
    if (qp->engine_state)
        qp->engine->destroy(qp);
    wq_free(&qp->sq);
    wq_free(&qp->rq);
    free(qp->cntrs);
    free(qp->tagged);
    free(qp->why);
    free(qp);
}

static uint32_t at_least_one(uint32_t n) { return n ? n : 1; }

struct rnic_qp_cap verbs_granted_cap(const struct qp *qp) {
    if (qp->xrc)
        return (struct rnic_qp_cap){0};
    uint32_t wr = qp->no_receives ? 0 : qp->rq.max_wr, sge = qp->no_receives ? 0 : qp->rq.max_sge;
    return (struct rnic_qp_cap){qp->sq.max_wr, wr, qp->sq.max_sge, sge, qp->sq.max_inline};
}

/* Where others' receives are taken, the queue pair's own queue is a place for the one in hand (man ibv_create_qp). */
static int make_queues(struct qp *qp, const struct rnic_qp_cap *cap) {
    uint32_t recv_wr = qp->no_receives ? 1 : at_least_one(cap->max_recv_wr);
    uint32_t recv_sge = qp->srq                                ? qp->srq->q.max_sge
                        : qp->pub.qp_type == RNIC_QPT_XRC_RECV ? MAX_SGE
                                                               : at_least_one(cap->max_recv_sge);
    int rc = wq_init(&qp->sq, at_least_one(cap->max_send_wr), at_least_one(cap->max_send_sge), cap->max_inline_data,
                     sizeof(struct send_wqe));
    return rc ? rc : wq_init(&qp->rq, recv_wr, recv_sge, 0, sizeof(struct recv_wqe));
}

struct qp *verbs_make_qp(struct dev *dev, struct rnic_pd *pd, struct rnic_qp_init_attr *attr) {
    struct qp *qp = calloc(1, sizeof *qp);
    if (!qp)
        return NULL;
    struct rnic_cq *recv_cq = attr->qp_type == RNIC_QPT_XRC_SEND ? NULL : attr->recv_cq;
    qp->pub = (struct rnic_qp){&dev->pub, pd, attr->send_cq, recv_cq, attr->qp_context, 0, attr->qp_type};
    qp->real = qp;
    qp->nic = &dev->nic;
    qp->record = -1;
    qp->way.link = dev->nic.wire;
    qp_set_service(qp, verbs_service(dev, attr->qp_type));
    qp->sq.state = qp->rq.state = &qp->state;
    qp->sq.from = RNIC_QPS_RTS;
    qp->rq.from = RNIC_QPS_INIT;
    qp->srq = (struct srq *)attr->srq;
    qp->no_receives = !receives_of_its_own(attr);
    bool tagged = qp->srq && qp->srq->tags;
    qp->sq.pd = pd;
    qp->rq.pd = attr->srq ? attr->srq->pd : pd;
    qp->sq_sig_all = attr->sq_sig_all;
    qp->turn.timer_at = NEVER;
    qp_forget_written(qp);
    if (tagged)
        verbs_tagged_cap(qp->srq, &attr->cap);
    if (make_queues(qp, &attr->cap) || (tagged && verbs_make_tagged(qp)) || qp->engine->create(qp)) {
        verbs_free_qp(qp);
        return NULL;
    }
    attr->cap = verbs_granted_cap(qp);
    if (attr->rwq_ind_tbl)
        raw_spread(qp, attr);
    return qp;
}

static int number_qp(struct dev *dev, struct qp *qp, struct rnic_err *err) {
    if (qp->pub.qp_type != RNIC_QPT_GSI)
        return host_add_qp(&dev->host, qp, err);
    if (dev->host.gsi)
        return fail(err, -EBUSY, "this context has a GSI queue pair already; there is one queue pair 1 in each");
    int rc = roles_take(&dev->host, ROLE_GSI);
    if (rc)
        return fail(err, rc, "no unix socket for queue pair 1: %s", strerror(-rc));
    dev->host.gsi = qp;
    qp->pub.qp_num = QPN_GSI;
    return 0;
}

static void leave_number(struct dev *dev, struct qp *qp) {
    if (dev->host.gsi != qp) {
        qpn_remove(&dev->host, qp);
        return;
    }
    dev->host.gsi = NULL;
    roles_drop(&dev->host, ROLE_GSI);
}

static void use_cq(struct rnic_cq *cq, int by) {
    if (cq)
        ((struct cq *)cq)->qps += by;
}

/* What it is of, by the way: of XRC_RECV, whose changes with every request, nothing. */
static void count_users(struct qp *qp, int by) {
    if (qp->xrc)
        return;
    ((struct pd *)qp->pub.pd)->qps += by;
    use_cq(qp->pub.send_cq, by);
    use_cq(qp->pub.recv_cq, by);
    if (qp->srq)
        qp->srq->qps += by;
}

int verbs_enter_qp(struct dev *dev, struct qp *qp, struct rnic_err *err) {
    int rc = verbs_check_room(dev, KIND_QP, err);
    if (rc)
        return rc;
    rc = run_reserve(&dev->run, (uint32_t)dev->objects.qps);
    if (rc)
        return fail(err, rc, "no memory");
    rc = number_qp(dev, qp, err);
    if (!rc && qp->engine == &raw_ops) {
        rc = frames_enter(&dev->net, qp, err);
        if (rc)
            qpn_remove(&dev->host, qp);
    }
    if (rc)
        return rc;
    dev->objects.qps++;
    if (qp_is_datagram(qp) && dev->objects.datagram_qps++ == 0)
        ports_show_headers(&dev->net, true);
    count_users(qp, 1);
    if (!qp->xrc)
        object_enter(dev, KIND_QP, &qp->listed);
    return 0;
}

int soft_create_qp(struct rnic_pd *pd, struct rnic_qp_init_attr *attr, struct rnic_qp **out, struct rnic_err *err) {
    struct dev *dev = dev_of(pd->ctx);
    int rc = dev_check_usable(dev, err);
    if (!rc)
        rc = check_init(pd, attr, err);
    if (rc)
        return rc;
    struct qp *qp = verbs_make_qp(dev, pd, attr);
    if (!qp)
        return fail(err, -ENOMEM, "no memory for the queues");
    dev_lock(dev);
    rc = verbs_enter_qp(dev, qp, err);
    dev_unlock(dev);
    if (rc) {
        verbs_free_qp(qp);
        return rc;
    }
    *out = &qp->pub;
    return 0;
}

void verbs_leave_qp(struct dev *dev, struct qp *qp) {
    qp_withdraw(qp);
    sched_settle(&dev->run, qp);
    sched_forget(&dev->run, qp);
    qp_forget_completions(qp);
    comp_cntrs_detach(qp);
    if (qp->tagged)
        tag_forget(qp->tagged->list, qp);
    mw_unbind_all(&qp->windows);
    if (qp->engine == &raw_ops)
        frames_leave(&dev->net, qp);
    leave_number(dev, qp);
    verbs_disconnect(dev, qp);
    ends_forget(&dev->ends, qp->pub.qp_num);
    dev->objects.qps--;
    if (qp_is_datagram(qp) && --dev->objects.datagram_qps == 0)
        ports_show_headers(&dev->net, false);
    count_users(qp, -1);
    if (!qp->xrc)
        object_leave(dev, KIND_QP, &qp->listed);
}

static int still_steered(const struct qp *qp, struct rnic_err *err) {
    int flows = raw_flows(qp);
    if (flows)
        return fail(err, -EBUSY, "%d flow rules steer frames to the queue pair: destroy_flow() first", flows);
    return qp->groups /* IBA 10.5.2 */
               ? fail(err, -EBUSY, "the queue pair is attached to %d multicast groups: detach_mcast() first",
                      qp->groups)
               : 0;
}

int soft_destroy_qp(struct rnic_qp *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct qp *qp = (struct qp *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    if (qp->real != qp)
        return soft_close_qp(pub, err);
    dev_lock(dev);
    rc = still_steered(qp, err);
    if (!rc)
        rc = dev_check_events(dev, pub->qp_context, err);
    if (!rc)
        rc = verbs_close_off_to_destroy(dev, qp, err);
    if (!rc) {
        rc = dev_leave_events(dev, pub->qp_context, err); /* one may have been taken meanwhile */
        rc ? verbs_carry_on(dev, qp) : verbs_leave_qp(dev, qp);
    }
    if (!rc)
        progress_finish(&dev->run, run_clock()); /* its connection leaves, which somebody has to look at */
    dev_unlock(dev);
    if (rc)
        return rc;
    verbs_free_qp(qp);
    return 0;
}

/* ---------------------------------------------------------------- post */

static int cannot_send(const struct qp *qp, int state, struct rnic_err *err) {
    if (qp->pub.qp_type == RNIC_QPT_XRC_RECV)
        return fail(err, -EINVAL, "an XRC_RECV queue pair does not send: answers take an XRC_SEND queue pair");
    if (qp->tagged)
        return fail(
            err, -EINVAL,
            "the send queue of a queue pair that takes from a tag matching SRQ is the device's: send by another "
            "queue pair");
    if (state >= RNIC_QPS_RTS)
        return fail(err, -EINVAL, "the queue pair was created without a send_cq, and so without a send queue");
    return fail(err, -EINVAL, "the queue pair is in %s; sending needs RTS", qp_state_name(state));
}

static int check_sending(const struct dev *dev, const struct qp *qp, int state, struct rnic_err *err) {
    return state < RNIC_QPS_RTS || qp->tagged || !qp->pub.send_cq ? cannot_send(qp, state, err)
                                                                  : dev_check_usable(dev, err);
}

static int cannot_receive(const struct qp *qp, struct rnic_err *err) {
    if (qp->pub.qp_type == RNIC_QPT_XRC_SEND)
        return fail(err, -EINVAL, "an XRC_SEND queue pair receives nothing");
    if (!qp->srq && raw_table(qp))
        return fail(err, -EINVAL,
                    "the queue pair has no receives of its own: post to its work queues, with WQ.post_recv");
    return fail(err, -EINVAL,
                "the queue pair takes from a shared receive queue: post there, with post_recv of the SRQ");
}

typedef int sq_poster(struct wq *, const struct rnic_send_wr *, const struct rnic_send_wr **, struct rnic_err *);

static int post_with(sq_poster *poster, struct rnic_qp *pub, const struct rnic_send_wr *wr,
                     const struct rnic_send_wr **bad, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct qp *qp = (struct qp *)pub;
    int rc = dev_check_alive(dev, err), state = qp->state;
    if (!rc && (state != RNIC_QPS_RTS || qp->tagged || !pub->send_cq))
        rc = check_sending(dev, qp, state, err);
    if (rc) {
        *bad = wr;
        return rc;
    }
    rc = poster(&qp->sq, wr, bad, err);
    progress_post(&dev->run, qp);
    return rc;
}

/* One-sided operations and short SENDs to a peer on this host are done while they are posted. most: bytes */
static bool post_direct(struct qp *qp, const struct rnic_send_wr *wr, uint32_t most) {
    struct dev *dev = dev_of(qp->pub.ctx);
    uint32_t operations = atomic_load_explicit(&qp->at_once, memory_order_relaxed);
    struct direct d;
    uint64_t now;
    if (!operations || !wr || !direct_read(&d, operations, wr) || d.sge.length > most || atomic_load(&dev->dead) ||
        !dev_trylock(dev))
        return false;
    bool done = qp->state == RNIC_QPS_RTS && !atomic_load(&dev->fatal) && qp->at_once;
    if (done && 1u << d.wr.opcode & DIRECT_ACCESS)
        done = direct_post(qp, &d.wr);
    else if (done && (done = direct_send(qp, &d.wr, &now)))
        progress_sent(&dev->run, qp, now);
    dev_unlock(dev);
    return done;
}

bool soft_post_send_now(struct rnic_qp *pub, const struct rnic_send_wr *wr) {
    return post_direct((struct qp *)pub, wr, NOW_BYTES);
}

int soft_post_send(struct rnic_qp *pub, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad,
                   struct rnic_err *err) {
    if (post_direct((struct qp *)pub, wr, UINT32_MAX))
        return 0;
    return post_with(sq_post, pub, wr, bad, err);
}

/* The answer to what is under way gives the queue pair a turn, in which it sends all that was posted. */
bool soft_post_send_behind(struct rnic_qp *pub, const struct rnic_send_wr *wr) {
    struct dev *dev = dev_of(pub->ctx);
    struct qp *qp = (struct qp *)pub;
    if (atomic_load(&dev->dead) || !dev_trylock(dev))
        return false;
    bool ready =
        qp->state == RNIC_QPS_RTS && !qp->tagged && pub->send_cq && !qp->sq_sig_all && !atomic_load(&dev->fatal);
    bool behind = sq_awaits(&qp->sq), done = ready && sq_post_pair(&qp->sq, wr);
    dev_unlock(dev);
    if (done && !behind)
        progress_post(&dev->run, qp);
    return done;
}

int soft_post_send_whole(struct rnic_qp *pub, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad,
                         struct rnic_err *err) {
    return post_with(sq_post_whole, pub, wr, bad, err);
}

int soft_post_recv(struct rnic_qp *pub, const struct rnic_recv_wr *wr, const struct rnic_recv_wr **bad,
                   struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct qp *qp = (struct qp *)pub;
    int rc = dev_check_alive(dev, err);
    if (!rc && qp->no_receives)
        rc = cannot_receive(qp, err);
    if (!rc && qp->state == RNIC_QPS_RESET)
        rc = fail(err, -EINVAL, "the queue pair is in RESET; receives are posted from INIT on");
    if (rc) {
        *bad = wr;
        return rc;
    }
    rc = rq_post(&qp->rq, wr, bad, err);
    if (qp->state == RNIC_QPS_ERR)
        progress_post(&dev->run, qp); /* to be flushed */
    return rc;
}
