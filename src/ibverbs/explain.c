/* SPDX-License-Identifier: Apache-2.0
 *
 * What a program is told that looks for its mistake ($RNIC_VERBS_DEBUG, `rnic run --explain`): failed completions, what was
 * refused or dropped, events, waits that cannot end.  On stderr, once per kind and queue pair.
 *
 * The device calls back when something fails, under its locks and on any thread: so lines are written by system calls, which are no
 * points of cancellation, and are lost where nobody reads them.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "lib.h"

#define KINDS 1024 /* that are told; then no more */
#define LINE 1280
#define PATIENCE_MS 2000 /* so long a wait is nothing to talk about */

_Atomic bool explain_on;

enum kind { /* beside those of notices */
            REFUSED_CALL = RNIC_NOTICE_EVENT + 1,
            NOT_ARMED,
            NOT_SIGNALED,
};

/* ---------------------------------------------------------------- lines */

static _Atomic uint64_t told[KINDS];

/* True: it has not been told yet. */
static bool is_new(unsigned kind, int what, uint32_t qpn) {
    uint64_t key = 1ull << 63 | (uint64_t)kind << 56 | (uint64_t)((unsigned)what & 0xFFFFFF) << 32 | qpn;
    for (int i = 0; i < KINDS; i++) {
        uint64_t there = 0;
        if (atomic_compare_exchange_strong(&told[i], &there, key))
            return true;
        if (there == key)
            return false;
    }
    return false;
}

__attribute__((format(printf, 1, 2))) static void tell(const char *fmt, ...) {
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    char line[LINE] = "rnic: ";
    va_list args;
    va_start(args, fmt);
    int n = 6 + vsnprintf(line + 6, sizeof line - 7, fmt, args);
    va_end(args);
    n = n < LINE - 1 ? n : LINE - 2;
    line[n++] = '\n';
    QUIETLY(syscall(SYS_ppoll, &out, 1, &(struct timespec){0}, NULL, 0));
    if (out.revents == POLLOUT) /* where nobody reads any more, a line would raise SIGPIPE */
        (void)!QUIETLY(syscall(SYS_write, STDERR_FILENO, line, (size_t)n));
}

/* A number that other words hardly have. */
static int number_of(const char *text, int rc) {
    unsigned sum = (unsigned)rc;
    for (; *text; text++)
        sum = sum * 31 + (unsigned char)*text;
    return (int)(sum & 0xFFFFFF);
}

void explain_refused(const char *verb, uint32_t qpn, int rc, const char *why) {
    if (!explain_on || !is_new(REFUSED_CALL, number_of(why, rc), qpn))
        return;
    if (*why)
        tell("ibv_%s: %s (%s)", verb, why, strerror(rc));
    else
        tell("ibv_%s: %s", verb, strerror(rc));
}

/* ---------------------------------------------------------------- what the device tells */

/* Advice on an event that no notice explains. */
static const char *advice(int event) {
    return event == IBV_EVENT_CQ_ERR
               ? ": completions came to a full completion queue, and are lost. Look here: create it with room for all "
                 "requests that can be posted, send and receive, or poll it more often"
               : "";
}

static void told_event(const struct rnic_notice *n) {
    const char *name = ibv_event_type_str((enum ibv_event_type)n->what);
    if (n->qp_num)
        tell("asynchronous event of QP 0x%06x: %s", n->qp_num, name);
    else
        tell("asynchronous event: %s%s", name, advice(n->what));
}

static void told_notice(void *arg, const struct rnic_notice *n) {
    (void)arg;
    bool stray = n->kind == RNIC_NOTICE_DROPPED && n->what == RNIC_CNT_drop_bad_qpn; /* anybody can send such packets */
    if (!is_new(n->kind, n->what, stray ? 0 : n->qp_num))
        return;
    if (n->text)
        tell("%s", n->text);
    else
        told_event(n);
}

void explain_context(struct context *c) {
    const struct rnic_ext_causes *causes = rnic_extension(c->nic, RNIC_EXT_CAUSES);
    explain_on = rnic_env_verbs_debug();
    if (explain_on && causes)
        UNCANCELLED((causes->listen(c->nic, told_notice, NULL), 0));
}

/* ---------------------------------------------------------------- waits that cannot end */

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A wait with receives posted may be for a message of the peer, so the line asks. */
static void tell_unseen(uint32_t qpn, bool receives) {
    if (qpn && is_new(NOT_SIGNALED, 0, qpn))
        tell("QP 0x%06x: nothing has completed for two seconds%s is not signaled: it makes no completion. Look here: "
             "IBV_SEND_SIGNALED in its send_flags, or sq_sig_all when the queue pair is created",
             qpn,
             receives ? ". Does this wait for the last request that was posted? (If for a message of the peer, all is "
                        "well.) It"
                      : ", and the last request that was posted");
}

static void polled_in_vain(struct cq *cq) {
    uint64_t since = atomic_load(&cq->empty_since), at = now();
    if (!since)
        atomic_store(&cq->empty_since, at);
    else if (at - since > PATIENCE_MS * 1000000ull)
        tell_unseen(atomic_load(&cq->unseen), atomic_load(&cq->receives));
}

static int poll_cq(struct ibv_cq *pub, int n, struct ibv_wc *wc) {
    struct cq *cq = (struct cq *)pub;
    int got = work_poll_cq(pub, n, wc);
    if (got == 0)
        polled_in_vain(cq);
    else
        atomic_store(&cq->empty_since, 0);
    return got;
}

static int req_notify_cq(struct ibv_cq *pub, int solicited_only) {
    struct channel *channel = (struct channel *)pub->channel;
    if (channel && !atomic_exchange(&((struct cq *)pub)->armed, true))
        atomic_fetch_add(&channel->armed, 1);
    return completion_req_notify(pub, solicited_only);
}

void explain_got(struct cq *cq) {
    struct channel *channel = (struct channel *)((struct ibv_cq *)&cq->pub)->channel;
    if (atomic_exchange(&cq->armed, false))
        atomic_fetch_sub(&channel->armed, 1);
}

/* Those of a thread's own mistakes: they come while it runs, not while it waits.  Sanitizers, crash reporters and the device
 * itself handle them, and seldom ask for SA_RESTART. */
static bool is_fault(int signal) {
    return signal == SIGSEGV || signal == SIGBUS || signal == SIGILL || signal == SIGFPE || signal == SIGTRAP ||
           signal == SIGABRT;
}

/* A handler asks that a wait goes on behind it (SA_RESTART), or that the wait ends. */
enum { GOES_ON = 1, ENDS = 2 };

static int asked_by_handlers(void) {
    struct sigaction of;
    int found = 0;
    for (int signal = 1; signal <= SIGRTMAX; signal++) {
        if (!is_fault(signal) && !sigaction(signal, NULL, &of) && of.sa_handler != SIG_DFL && of.sa_handler != SIG_IGN)
            found |= of.sa_flags & SA_RESTART ? GOES_ON : ENDS;
    }
    return found;
}

/* poll(2) goes on behind no handler; the wait that follows does, behind those with SA_RESTART.  Which handler it was is not
 * known: so who has both kinds waits without being looked at. */
static int poll_event(int fd) {
    struct pollfd event = {.fd = fd, .events = POLLIN};
    int flags = fcntl(fd, F_GETFL), asked = asked_by_handlers();
    if (flags < 0 || flags & O_NONBLOCK || asked == (GOES_ON | ENDS))
        return 1;
    int ready = QUIETLY(poll(&event, 1, PATIENCE_MS));
    bool ends = (asked | asked_by_handlers()) & ENDS; /* some take themselves away, others come meanwhile */
    return ready < 0 && !ends ? 1 : ready;
}

/* A thread that waits by poll(2) for the descriptor is not seen. */
int explain_wait(struct ibv_comp_channel *pub) {
    struct channel *channel = (struct channel *)pub;
    int ready = poll_event(pub->fd);
    if (ready)
        return ready < 0 ? EINTR : 0;
    if (!atomic_load(&channel->armed) && is_new(NOT_ARMED, pub->fd, 0))
        tell("ibv_get_cq_event: no event for two seconds, and no completion queue of the channel is armed. Look here: "
             "ibv_req_notify_cq() before each wait, and poll once more behind it");
    else
        tell_unseen(atomic_load(&channel->unseen), atomic_load(&channel->receives));
    return 0;
}

/* ---------------------------------------------------------------- posts */

/* Receives may complete there. */
static void note_receives(struct ibv_cq *pub) {
    struct channel *channel = pub ? (struct channel *)pub->channel : NULL;
    if (pub)
        atomic_store(&((struct cq *)pub)->receives, true);
    if (channel)
        atomic_store(&channel->receives, true);
}

static void note_signaled(const struct ibv_qp *pub, const struct ibv_send_wr *wr) {
    struct cq *cq = (struct cq *)pub->send_cq;
    while (wr && wr->next)
        wr = wr->next;
    if (!wr || !cq)
        return;
    if (pub->srq)
        note_receives(pub->recv_cq);
    bool signaled = ((const struct qp *)pub)->all_signaled || wr->send_flags & IBV_SEND_SIGNALED;
    struct channel *channel = (struct channel *)((struct ibv_cq *)&cq->pub)->channel;
    atomic_store(&cq->unseen, signaled ? 0 : pub->qp_num);
    atomic_store(&cq->empty_since, 0);
    if (channel)
        atomic_store(&channel->unseen, signaled ? 0 : pub->qp_num);
}

static int post_send(struct ibv_qp *pub, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    struct rnic_err err = {0};
    note_signaled(pub, wr);
    int rc = work_post_send(pub, wr, bad, &err);
    if (rc)
        explain_refused("post_send", pub->qp_num, rc, err.text);
    return rc;
}

static int post_recv(struct ibv_qp *pub, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    struct rnic_err err = {0};
    int rc = work_post_recv(pub, wr, bad, &err);
    note_receives(pub->recv_cq);
    if (rc)
        explain_refused("post_recv", pub->qp_num, rc, err.text);
    return rc;
}

static int post_srq_recv(struct ibv_srq *pub, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    struct rnic_err err = {0};
    int rc = work_post_srq_recv(pub, wr, bad, &err);
    if (rc)
        explain_refused("post_srq_recv", 0, rc, err.text);
    return rc;
}

void explain_ops(struct ibv_context_ops *ops) {
    ops->post_send = post_send;
    ops->post_recv = post_recv;
    ops->poll_cq = poll_cq;
    ops->req_notify_cq = req_notify_cq;
    if (ops->post_srq_recv)
        ops->post_srq_recv = post_srq_recv;
}
