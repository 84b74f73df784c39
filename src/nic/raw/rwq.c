/* SPDX-License-Identifier: Apache-2.0 */
#include "raw/rwq.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "base/fail.h"

/* ---------------------------------------------------------------- spreading */

#define HASH(name) RNIC_RX_HASH_##name
#define IPV4_FIELDS (HASH(SRC_IPV4) | HASH(DST_IPV4))
#define IPV6_FIELDS (HASH(SRC_IPV6) | HASH(DST_IPV6))
#define TCP_FIELDS (HASH(SRC_PORT_TCP) | HASH(DST_PORT_TCP))
#define UDP_FIELDS (HASH(SRC_PORT_UDP) | HASH(DST_PORT_UDP))
#define ALL_FIELDS (IPV4_FIELDS | IPV6_FIELDS | TCP_FIELDS | UDP_FIELDS)

int rwq_check_hash(const struct rnic_rx_hash_conf *conf, struct rnic_err *err) {
    uint64_t fields = conf->rx_hash_fields_mask;
    if (conf->rx_hash_function != RNIC_RX_HASH_FUNC_TOEPLITZ)
        return fail(err, -EOPNOTSUPP, "rx_hash_function is %u; this device has TOEPLITZ (%d)", conf->rx_hash_function,
                    RNIC_RX_HASH_FUNC_TOEPLITZ);
    if (!conf->rx_hash_key || conf->rx_hash_key_len != TOEPLITZ_KEY_BYTES)
        return fail(err, -EINVAL, "the hash key has %u bytes; it needs %d", conf->rx_hash_key_len, TOEPLITZ_KEY_BYTES);
    if (fields & ~(uint64_t)ALL_FIELDS)
        return fail(err, -EOPNOTSUPP, "hash fields 0x%llx are not supported: there are addresses and ports",
                    (unsigned long long)(fields & ~(uint64_t)ALL_FIELDS));
    if ((fields & IPV4_FIELDS) && (fields & IPV6_FIELDS)) /* so says infiniband/verbs.h */
        return fail(err, -EINVAL, "fields of IPv4 and of IPv6 cannot be hashed by one queue pair");
    if ((fields & TCP_FIELDS) && (fields & UDP_FIELDS))
        return fail(err, -EINVAL, "fields of TCP and of UDP cannot be hashed by one queue pair");
    return 0;
}

uint32_t rss_hash(const struct rss *rss, const struct frame *f) {
    const struct frame_key *k = &f->key;
    uint64_t fields = rss->fields;
    const struct {
        uint64_t field;
        bool there;
        const uint8_t *bytes;
        uint32_t n;
    } rows[] = {
        {HASH(SRC_IPV4), k->ip_version == 4, k->src_ip, 4},
        {HASH(DST_IPV4), k->ip_version == 4, k->dst_ip, 4},
        {HASH(SRC_IPV6), k->ip_version == 6, k->src_ip, 16},
        {HASH(DST_IPV6), k->ip_version == 6, k->dst_ip, 16},
        {HASH(SRC_PORT_TCP), k->transport == IPPROTO_TCP, k->src_port, 2},
        {HASH(DST_PORT_TCP), k->transport == IPPROTO_TCP, k->dst_port, 2},
        {HASH(SRC_PORT_UDP), k->transport == IPPROTO_UDP, k->src_port, 2},
        {HASH(DST_PORT_UDP), k->transport == IPPROTO_UDP, k->dst_port, 2},
    };
    uint8_t input[TOEPLITZ_KEY_BYTES - 4];
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!(fields & rows[i].field) || !rows[i].there)
            continue;
        memcpy(input + n, rows[i].bytes, rows[i].n);
        n += rows[i].n;
    }
    return toeplitz(rss->key, input, n);
}

struct rwq *rss_choose(const struct rss *rss, const struct frame *f) {
    return rss->table->wq[rss_hash(rss, f) & (rss->table->size - 1)];
}

/* ---------------------------------------------------------------- states */

/* From state, to state. ERR is left by RESET alone, as a queue pair leaves it. */
static const bool allowed[RNIC_WQS_UNKNOWN][RNIC_WQS_UNKNOWN] = {
    [RNIC_WQS_RESET] = {[RNIC_WQS_RESET] = true, [RNIC_WQS_RDY] = true},
    [RNIC_WQS_RDY] = {[RNIC_WQS_RESET] = true, [RNIC_WQS_RDY] = true, [RNIC_WQS_ERR] = true},
    [RNIC_WQS_ERR] = {[RNIC_WQS_RESET] = true, [RNIC_WQS_ERR] = true},
};

static const char *state_name(int state) {
#define NAME(n, v) [v] = #n,
    static const char *const names[] = {RNIC_WQ_STATES(NAME)};
#undef NAME
    return state >= 0 && state <= RNIC_WQS_UNKNOWN ? names[state] : "?";
}

/* It is in RESET already, so that nobody posts any more. */
static void reset(struct rwq *wq) {
    wq_await_posters(&wq->q);
    cq_forget((struct cq *)wq->pub.cq, &wq->q.freed);
    wq_reset(&wq->q);
}

int rwq_modify(struct rwq *wq, const struct rnic_wq_attr *attr, struct rnic_err *err) {
    int from = wq->state, to = attr->wq_state;
    if (attr->attr_mask & ~(uint32_t)(RNIC_WQ_ATTR_STATE | RNIC_WQ_ATTR_CURR_STATE | RNIC_WQ_ATTR_FLAGS))
        return fail(err, -EINVAL, "attr_mask 0x%x has unknown bits", attr->attr_mask);
    if ((attr->attr_mask & RNIC_WQ_ATTR_FLAGS) && attr->flags_mask)
        return fail(err, -EOPNOTSUPP, "flags 0x%x: this device has no work queue flags", attr->flags_mask);
    if ((attr->attr_mask & RNIC_WQ_ATTR_CURR_STATE) && attr->curr_wq_state != from)
        return fail(err, -EINVAL, "curr_wq_state is %s, but the work queue is in %s", state_name(attr->curr_wq_state),
                    state_name(from));
    if (!(attr->attr_mask & RNIC_WQ_ATTR_STATE))
        return 0;
    if (to < 0 || to >= RNIC_WQS_UNKNOWN || !allowed[from][to])
        return fail(err, -EINVAL, "%s -> %s is not allowed", state_name(from), state_name(to));
    wq->state = to;
    if (to == RNIC_WQS_RESET)
        reset(wq);
    else if (to == RNIC_WQS_ERR)
        rwq_flush(wq);
    return 0;
}

/* ---------------------------------------------------------------- completions */

static void raise_event(struct rwq *wq, int type, uint32_t number, void *context) {
    struct rnic_async_event e = {.event_type = type, .number = number, .context = context};
    event_push(&wq->nic->events, &e);
}

/* As of a queue pair: a full CQ loses the completion, and both are in error (IBA 11.6.3.1). */
static void overrun(struct rwq *wq, struct cq *cq, bool first) {
    if (first)
        raise_event(wq, RNIC_EVENT_CQ_ERR, 0, cq->pub.cq_context);
    if (wq->state != RNIC_WQS_ERR)
        rwq_error(wq);
}

void rwq_complete(struct rwq *wq, struct rnic_wc *wc) {
    struct cq *cq = (struct cq *)wq->pub.cq;
    wc->wr_id = rq_wqe(&wq->q, wq_tail(&wq->q))->wr_id;
    wq_pop(&wq->q);
    struct cqe cqe = {.wc = *wc, .freed = &wq->q.freed, .upto = wq_tail(&wq->q)};
    bool first = !atomic_load(&cq->overrun);
    if (!cq_push(cq, &cqe, false))
        overrun(wq, cq, first);
}

void rwq_flush(struct rwq *wq) {
    while (!wq_empty(&wq->q)) {
        struct rnic_wc wc = {.status = RNIC_WC_WR_FLUSH_ERR,
                             .opcode = RNIC_WCO_RECV,
                             .vendor_err = RNIC_VE_FLUSHED,
                             .qp_num = wq->pub.wq_num};
        rwq_complete(wq, &wc);
    }
}

void rwq_end(struct rwq *wq) {
    if (wq->state != RNIC_WQS_RDY)
        return;
    wq->state = RNIC_WQS_ERR;
    rwq_flush(wq);
}

void rwq_error(struct rwq *wq) {
    wq->state = RNIC_WQS_ERR;
    raise_event(wq, RNIC_EVENT_WQ_FATAL, wq->pub.wq_num, wq->pub.wq_context);
    rwq_flush(wq);
}
