/* SPDX-License-Identifier: Apache-2.0 */
#include "qp/why.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- words */

/* A line that is put together. */
struct line {
    char *at;
    size_t left; /* with the NUL */
};

__attribute__((format(printf, 2, 3))) static void say(struct line *l, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(l->at, l->left, fmt, args);
    va_end(args);
    size_t said = (size_t)n < l->left ? (size_t)n : l->left - 1;
    l->at += said;
    l->left -= said;
}

#define NUMBER 32
#define NUMBER_OF(n) number(n, (char[NUMBER]){0})

/* 1,234,567, whatever the program's locale is. */
static const char *number(uint64_t n, char out[NUMBER]) {
    char digits[NUMBER];
    int count = snprintf(digits, sizeof digits, "%llu", (unsigned long long)n), to = 0;
    for (int i = 0; i < count; i++) {
        if (i && (count - i) % 3 == 0)
            out[to++] = ',';
        out[to++] = digits[i];
    }
    out[to] = 0;
    return out;
}

static void say_ago(struct line *l, uint64_t ns) {
    if (ns < 10000000000u)
        say(l, "%s ms ago", NUMBER_OF(ns / 1000000));
    else
        say(l, "%s s ago", NUMBER_OF(ns / 1000000000));
}

static void say_rights(struct line *l, uint32_t rights, const char *before) {
#define NAME(n, v) {#n, v},
    static const struct {
        const char *name;
        uint32_t value;
    } names[] = {RNIC_ACCESS_FLAGS(NAME)};
#undef NAME
    const char *between = "";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!(rights & names[i].value))
            continue;
        say(l, "%s%s%s", between, before, names[i].name);
        between = " and ";
    }
}

static const char *operation(int opcode) {
#define NAME(n, v) [v] = #n,
    static const char *const names[] = {RNIC_WR_OPCODES(NAME)};
#undef NAME
    bool known = opcode >= 0 && opcode < (int)(sizeof names / sizeof *names) && names[opcode];
    return known ? names[opcode] : "request";
}

static const char *words_of(int vendor_err) {
    const char *text = rnic_vendor_err_text(vendor_err);
    return text ? text : "";
}

/* Where a range lies in its region. */
static void say_range(struct line *l, const struct finding *f) {
    bool before = f->addr < f->start;
    const char *by = NUMBER_OF(before ? f->start - f->addr : f->addr - f->start);
    say(l, "%s bytes from %s%s%s of a region of %s", NUMBER_OF(f->length), before ? "" : "offset ", by,
        before ? " before the start" : "", NUMBER_OF(f->size));
}

/* kind: "rkey" or "lkey" */
static void say_key(struct line *found, struct line *cure, const struct finding *f, const char *kind) {
    bool remote = *kind == 'r';
    if (f->gone) {
        say(found, "%s 0x%x is of a region that was deregistered ", kind, f->key);
        say_ago(found, f->gone);
        say(cure, "keep the region registered until all work that uses it has completed%s",
            remote ? ", and until the peer knows" : "");
        return;
    }
    say(found, "%s 0x%x is not registered", kind, f->key);
    say(cure, remote ? "hand the rkey of ibv_reg_mr() to the peer, in a byte order that both ends agree on"
                     : "use the lkey of the region that the memory is in, as ibv_reg_mr() returned it");
}

static void say_lack(struct line *found, struct line *cure, const struct finding *f) {
    if (!f->lacks) { /* memory of this kind cannot do it */
        say(found, "%s", words_of((int)f->vendor_err));
        return;
    }
    say(found, f->by_qp                              ? "the queue pair's qp_access_flags have no "
               : f->vendor_err == RNIC_VE_SGE_ACCESS ? "the region of the lkey has no "
                                                     : "the region has no ");
    say_rights(found, f->lacks, "");
    say(cure, f->by_qp ? "set qp_access_flags with " : "register the memory with ");
    say_rights(cure, f->lacks, "IBV_ACCESS_");
    if (!f->by_qp && f->lacks & (RNIC_ACCESS_REMOTE_WRITE | RNIC_ACCESS_REMOTE_ATOMIC))
        say(cure, ", and with IBV_ACCESS_LOCAL_WRITE");
    if (f->by_qp)
        say(cure, " there, in ibv_modify_qp() to INIT");
}

static void say_finding(struct line *found, struct line *cure, const struct finding *f) {
    switch (f->vendor_err) {
    case RNIC_VE_RKEY_BAD:
        say_key(found, cure, f, "rkey");
        break;
    case RNIC_VE_SGE_BAD_LKEY:
        say_key(found, cure, f, "lkey");
        break;
    case RNIC_VE_RKEY_BOUNDS:
    case RNIC_VE_SGE_BOUNDS:
        say_range(found, f);
        say(cure, f->vendor_err == RNIC_VE_RKEY_BOUNDS
                      ? "remote_addr is an address, not an offset; with the length it has to lie within the region"
                      : "addr and length of each SGE have to lie within the region of its lkey");
        break;
    case RNIC_VE_RKEY_ACCESS:
    case RNIC_VE_SGE_ACCESS:
        say_lack(found, cure, f);
        break;
    case RNIC_VE_RKEY_PD:
    case RNIC_VE_SGE_PD:
        say(found, "the region of key 0x%x is in another protection domain than the queue pair", f->key);
        say(cure, "register the memory, and create the queue pair, in one protection domain");
        break;
    case RNIC_VE_ATOMIC_ALIGN:
        say(found, "the address 0x%llx of an atomic is no multiple of 8", (unsigned long long)f->addr);
        say(cure, "align the word of 8 bytes that atomics work on");
        break;
    case RNIC_VE_RECV_TOO_SMALL:
        say(found, "a message of %s bytes or more, and a receive of %s", NUMBER_OF(f->length), NUMBER_OF(f->size));
        say(cure, "post receives that hold the longest message, of a datagram 40 bytes more");
        break;
    case RNIC_VE_NO_RD_ATOMIC:
        say(found, "more READs and atomics at once than max_dest_rd_atomic, %s", NUMBER_OF(f->size));
        say(cure, "max_rd_atomic here is to be at most the peer's max_dest_rd_atomic, and both at least 1");
        break;
    case RNIC_VE_RKEY_UNMAPPED:
    case RNIC_VE_SGE_UNMAPPED:
        say(found, "%s", words_of((int)f->vendor_err));
        say(cure, "deregister a region before its memory is freed, unmapped, protected, or its file truncated");
        break;
    default:
        say(found, "%s", words_of((int)f->vendor_err));
    }
}

/* ---------------------------------------------------------------- what is found */

struct finding why_memory(const struct qp *qp, int vendor_err, uint32_t key, uint64_t addr, uint64_t length,
                          uint32_t access, uint64_t now) {
    struct finding f = {.addr = addr, .length = length, .key = key, .vendor_err = (uint32_t)vendor_err};
    const struct mr *mr = mr_find(&qp->nic->mrs, key);
    uint64_t gone = mr ? 0 : mr_gone(&qp->nic->mrs, key);
    if (mr) {
        f.start = mr->pub.iova;
        f.size = mr->pub.length;
        f.lacks = access & ~mr->access;
    }
    if (gone && now >= gone)
        f.gone = now - gone + 1; /* 0 says that it is not known */
    return f;
}

/* The first element that is refused; access: what it is used for. */
static struct finding element(const struct qp *qp, const struct rnic_pd *pd, const struct rnic_sge *sge, int n,
                              uint32_t access) {
    struct cq_timing *timing = &qp->nic->cq_timing;
    uint64_t now = timing->clock ? timing->clock(timing->arg) : 0;
    for (int i = 0; i < n; i++) {
        uint8_t *ptr;
        int ve = mr_local(&qp->nic->mrs, pd, &sge[i], access, &ptr);
        if (ve)
            return why_memory(qp, ve, sge[i].lkey, sge[i].addr, sge[i].length, access, now);
    }
    return (struct finding){0};
}

struct finding why_receive(struct qp *qp, int vendor_err) {
    const struct recv_wqe *wqe = wq_empty(&qp->rq) ? NULL : rq_wqe(&qp->rq, wq_tail(&qp->rq));
    struct finding f = {0};
    if (wqe)
        f = element(qp, qp->rq.pd, wqe->sge, wqe->num_sge, RNIC_ACCESS_LOCAL_WRITE);
    return f.vendor_err == (uint32_t)vendor_err ? f : (struct finding){.vendor_err = (uint32_t)vendor_err};
}

static bool is_of_element(uint32_t ve) {
    return ve == RNIC_VE_SGE_BAD_LKEY || ve == RNIC_VE_SGE_BOUNDS || ve == RNIC_VE_SGE_PD || ve == RNIC_VE_SGE_ACCESS;
}

static bool is_nak(uint32_t ve) {
    return ve == RNIC_VE_NAK_INVALID || ve == RNIC_VE_NAK_ACCESS || ve == RNIC_VE_NAK_OPERATION;
}

/* ---------------------------------------------------------------- who is told */

/* NULL: there is no memory, and nothing is known. */
static struct why *why_of(struct qp *qp) {
    if (!qp->why)
        qp->why = calloc(1, sizeof *qp->why);
    return qp->why;
}

static void tell(const struct nic *nic, enum rnic_notice_kind kind, int what, uint32_t qpn, const char *text) {
    nic->told(nic->told_arg, &(struct rnic_notice){kind, what, qpn, text});
}

void why_refuse(struct qp *qp, const char *what, const struct finding *found) {
    struct why *why = why_of(qp);
    if (why)
        why->here = *found;
    if (!qp->nic->told)
        return;
    char text[RNIC_EXPLAINED], cure[sizeof((struct rnic_cause *)0)->cure] = "";
    struct line l = {text, sizeof text}, c = {cure, sizeof cure};
    say(&l, "QP 0x%06x has refused the %s of its peer, QP 0x%06x: ", qp->pub.qp_num, what, qp->attr.dest_qp_num);
    say_finding(&l, &c, found);
    if (*cure)
        say(&l, ". Look here: %s", cure);
    tell(qp->nic, RNIC_NOTICE_REFUSED, (int)found->vendor_err, qp->pub.qp_num, text);
}

void why_refused(struct qp *qp, const void *bytes, size_t n) {
    struct why *why = n == sizeof why->there ? why_of(qp) : NULL;
    if (why)
        memcpy(&why->there, bytes, n);
}

void why_strange(struct qp *qp, uint32_t psn) {
    struct why *why = why_of(qp);
    if (!why)
        return;
    why->strange = true;
    why->answered = psn;
}

/* The completion is the last one that has failed, for this cause. */
static void conclude(struct qp *qp, const struct rnic_wc *wc, struct rnic_cause *cause) {
    struct why *why = why_of(qp);
    if (why) {
        why->wc = *wc;
        why->cause = *cause;
        why->there = (struct finding){0};
        why->strange = false;
    }
    if (!qp->nic->told)
        return;
    char text[RNIC_EXPLAINED];
    rnic_explain(wc, cause, text, sizeof text);
    tell(qp->nic, RNIC_NOTICE_COMPLETION, wc->status, qp->pub.qp_num, text);
}

static bool names_memory(const struct qp *qp, const struct send_wqe *wqe) {
    const uint32_t those = 1u << RNIC_WR_RDMA_WRITE | 1u << RNIC_WR_RDMA_WRITE_WITH_IMM | 1u << RNIC_WR_RDMA_READ |
                           1u << RNIC_WR_ATOMIC_CMP_AND_SWP | 1u << RNIC_WR_ATOMIC_FETCH_AND_ADD;
    return !qp_is_datagram(qp) && wqe->opcode < 32 && those >> wqe->opcode & 1;
}

static void say_request(struct line *l, const struct qp *qp, const struct send_wqe *wqe) {
    say(l, "%s of %s bytes", operation(wqe->opcode), NUMBER_OF(wqe->length));
    if (names_memory(qp, wqe))
        say(l, " at remote_addr 0x%llx, rkey 0x%x", (unsigned long long)wqe->remote_addr, wqe->rkey);
}

static uint32_t access_of(const struct send_wqe *wqe) {
    const uint32_t those =
        1u << RNIC_WR_RDMA_READ | 1u << RNIC_WR_ATOMIC_CMP_AND_SWP | 1u << RNIC_WR_ATOMIC_FETCH_AND_ADD;
    return wqe->opcode < 32 && those >> wqe->opcode & 1 ? RNIC_ACCESS_LOCAL_WRITE : 0;
}

void why_send_failed(struct qp *qp, const struct send_wqe *wqe, const struct rnic_wc *wc) {
    struct rnic_cause cause = {0};
    struct line found = {cause.found, sizeof cause.found}, cure = {cause.cure, sizeof cause.cure};
    struct finding f = {0};
    say_request(&found, qp, wqe);
    if (is_of_element(wc->vendor_err) && !(wqe->flags & RNIC_SEND_INLINE))
        f = element(qp, qp->pub.pd, wqe->sge, wqe->num_sge, access_of(wqe));
    else if (is_nak(wc->vendor_err) && qp->why)
        f = qp->why->there;
    if (f.vendor_err) {
        say(&found, is_nak(wc->vendor_err) && is_of_element(f.vendor_err) ? ": of the peer's receive: " : ": ");
        say_finding(&found, &cure, &f);
    } else if (wc->vendor_err == RNIC_VE_RNR) {
        say(&found, ": no receive was posted: %u RNR NAKs", qp->attr.rnr_retry + 1u);
    } else if (wc->vendor_err == RNIC_VE_TIMEOUT) {
        say(&found, ": sent %u times", qp->attr.retry_cnt + 1u);
        if (qp->why && qp->why->strange) {
            say(&found, "; the peer answers PSN 0x%x, and the first was 0x%x", qp->why->answered, qp->attr.sq_psn);
            say(&cure, "the sq_psn of each end is the rq_psn of the other");
        }
    }
    conclude(qp, wc, &cause);
}

void why_receive_failed(struct qp *qp, const struct rnic_wc *wc) {
    struct rnic_cause cause = {0};
    struct line found = {cause.found, sizeof cause.found}, cure = {cause.cure, sizeof cause.cure};
    struct finding f = {0};
    say(&found, "receive of %s bytes", NUMBER_OF(rq_wqe(&qp->rq, wq_tail(&qp->rq))->length));
    if (is_of_element(wc->vendor_err))
        f = why_receive(qp, (int)wc->vendor_err);
    else if (qp->why)
        f = qp->why->here;
    if (f.vendor_err && f.vendor_err == wc->vendor_err) {
        say(&found, ": ");
        say_finding(&found, &cure, &f);
    }
    conclude(qp, wc, &cause);
}

/* ---------------------------------------------------------------- packets */

void why_drop(struct nic *nic, const struct qp *qp, uint32_t qpn, int counter) {
    if (!nic->told)
        return;
    char text[RNIC_EXPLAINED];
    struct line l = {text, sizeof text};
    say(&l, "a packet for QP 0x%06x was dropped: ", qpn);
    switch (counter) {
    case RNIC_CNT_drop_bad_qpn:
        say(&l, "there is no such queue pair (any more). Look here: is the peer's dest_qp_num this end's qp_num?");
        break;
    case RNIC_CNT_drop_bad_state:
        say(&l, "it is in %s. Look here: move it to RTR before its peer sends", qp_state_name(qp->state));
        break;
    case RNIC_CNT_drop_bad_qkey:
        say(&l, "its Q_Key is another one, not 0x%x. Look here: remote_qkey of the sender is the receiver's qkey",
            qp->attr.qkey);
        break;
    case RNIC_CNT_drop_no_receive:
        say(&l, "no receive is posted, and datagrams do not wait. Look here: post receives before the peer sends");
        break;
    default:
        say(&l, "%s", rnic_counter_text(counter));
    }
    tell(nic, RNIC_NOTICE_DROPPED, counter, qpn, text);
}
