/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that fail because somebody wants to see what the program does then ($RNIC_FAIL, nic_env.h).  A call that is to fail
 * does nothing but that.  Where nothing is asked for, posting and polling do not come by here.
 */
#include <stdatomic.h>
#include <stdio.h>

#include "lib.h"

bool fail_on;
static struct rnic_fail rules[RNIC_ENV_FAIL]; /* written once, before fail_on */
static int num_rules;
static _Atomic uint64_t called[RNIC_FAIL_CALLS]; /* how often, in this process */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct rnic_err wrong;

static void read_once(void) {
    num_rules = rnic_env_fail(rules, &wrong);
    fail_on = num_rules > 0;
}

int fail_read(struct rnic_err *err) {
    pthread_once(&once, read_once);
    if (num_rules >= 0)
        return 0;
    *err = wrong;
    return num_rules;
}

int fail_next(int call) {
    uint64_t n = atomic_fetch_add(&called[call], 1) + 1;
    for (int i = 0; i < num_rules; i++) {
        if (rules[i].call != call)
            continue;
        bool hits = rnic_fail_hits(&rules[i], n);
        rnic_env_met(i, hits);
        if (!hits)
            continue;
        if (rnic_env_verbs_debug())
            UNCANCELLED(fprintf(stderr, "rnic: ibv_%s: call %llu is to fail, by RNIC_FAIL\n", rnic_fail_name(call),
                                (unsigned long long)n));
        errno = rules[i].error;
        return -rules[i].error;
    }
    return 0;
}

/* ---------------------------------------------------------------- what programs call by the context */

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    int rc = FAILS(post_send);
    if (!rc)
        return context_of(qp->context)->real.post_send(qp, wr, bad);
    *bad = wr;
    return -rc;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    int rc = FAILS(post_recv);
    if (!rc)
        return context_of(qp->context)->real.post_recv(qp, wr, bad);
    *bad = wr;
    return -rc;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    int rc = FAILS(post_srq_recv);
    if (!rc)
        return context_of(srq->context)->real.post_srq_recv(srq, wr, bad);
    *bad = wr;
    return -rc;
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc) {
    int rc = FAILS(poll_cq);
    return rc ? rc : context_of(cq->context)->real.poll_cq(cq, n, wc);
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only) {
    int rc = FAILS(req_notify_cq);
    return rc ? -rc : context_of(cq->context)->real.req_notify_cq(cq, solicited_only);
}

static bool concerns(int call) {
    for (int i = 0; i < num_rules; i++) {
        if (rules[i].call == call)
            return true;
    }
    return false;
}

#define STAND_BEFORE(verb)                                                                                             \
    if (concerns(RNIC_FAIL_##verb) && ops->verb)                                                                       \
    ops->verb = verb
void fail_ops(struct context *c) {
    struct ibv_context_ops *ops = &c->ex.context.ops;
    c->real = *ops;
    STAND_BEFORE(post_send);
    STAND_BEFORE(post_recv);
    STAND_BEFORE(post_srq_recv);
    STAND_BEFORE(poll_cq);
    STAND_BEFORE(req_notify_cq);
}
