/* SPDX-License-Identifier: Apache-2.0 */
#include "recorder_own.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---------------------------------------------------------------- what all files share */

void note(struct rnic_context *ctx, const char *format, ...) {
    struct recorder *r = rec(ctx);
    va_list args;

    if (r->quiet || r->log_len > LOG_SIZE - 4096)
        return;
    va_start(args, format);
    r->log_len += (size_t)vsnprintf(r->log + r->log_len, 4096, format, args);
    va_end(args);
}

int fails(struct rnic_context *ctx, const char *verb, struct rnic_err *err) {
    struct recorder *r = rec(ctx);

    if (strcmp(r->fail_verb, verb) != 0)
        return 0;
    r->fail_verb[0] = 0;
    if (err)
        snprintf(err->text, sizeof(err->text), "%s", r->fail_text);
    return -r->fail_err;
}

void *make(struct rnic_context *ctx, const void *init, size_t size) {
    rec(ctx)->alive++;
    return memcpy(malloc(size), init, size);
}

int gone(struct rnic_context *ctx, void *object, int rc) {
    if (rc)
        return rc;
    rec(ctx)->alive--;
    free(object);
    return 0;
}

void ring(int fd) {
    uint64_t one = 1;

    if (write(fd, &one, sizeof(one)) < 0)
        abort();
}

/* ---------------------------------------------------------------- context */

static int rec_close(struct rnic_context *ctx, struct rnic_err *err) {
    int rc = SAY(ctx, "");

    if (!rc)
        close(ctx->async_fd);
    return rc;
}

static int rec_close_all(struct rnic_context *ctx, struct rnic_err *err) {
    int rc = SAY(ctx, "");

    if (!rc)
        close(ctx->async_fd);
    return rc;
}

/* Every field its place in the struct, so that a field that went astray is seen. */
static int rec_query_device(struct rnic_context *ctx, struct rnic_device_attr *a, struct rnic_err *err) {
    *a = (struct rnic_device_attr){"rec 1", 2,  3,  4,  5,  6,  7,  8,  9,  10, RNIC_DEVICE_RC_RNR_NAK_GEN,
                                   12,      13, 14, 15, 16, 17, 18, 19, 20, 1,  22,
                                   23,      24, 25, 26, 27, 28, 29, 30, 1,  32};
    return SAY(ctx, "");
}

static int rec_query_device_ex(struct rnic_context *ctx, struct rnic_device_attr_ex *a, struct rnic_err *err) {
    *a = (struct rnic_device_attr_ex){.odp_caps = {3, {1, 2, 4}},
                                      .completion_timestamp_mask = 33,
                                      .hca_core_clock = 34,
                                      .device_cap_flags_ex = 7,
                                      .cq_mod_caps = {35, 36},
                                      .tm_caps = {37, 38, RNIC_TM_CAP_RC, 39, 40},
                                      .rss_caps = {41, 42, 43, 4, 1},
                                      .max_wq_type_rq = 44,
                                      .raw_packet_caps = RNIC_RAW_PACKET_CAP_IP_CSUM,
                                      .tso_caps = {45, 46},
                                      .xrc_odp_caps = 8,
                                      .max_dm_size = 9,
                                      .packet_pacing_caps = {2, 3, 4}};
    rec_query_device(ctx, &a->orig_attr, err);
    return SAY(ctx, "");
}

static int rec_query_port(struct rnic_context *ctx, int port, struct rnic_port_attr *a, struct rnic_err *err) {
    *a = (struct rnic_port_attr){4, 5, 3, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 2, 21};
    return SAY(ctx, " %d", port);
}

static int rec_query_gid(struct rnic_context *ctx, int port, int index, struct rnic_gid_entry *g,
                         struct rnic_err *err) {
    *g = (struct rnic_gid_entry){
        .gid_index = (uint32_t)index, .port_num = (uint32_t)port, .gid_type = 2, .ndev_ifindex = 7};
    if (index == 1) /* entry 0 is empty */
        memcpy(g->gid.raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01", 16);
    return SAY(ctx, " %d %d", port, index);
}

static int rec_query_pkey(struct rnic_context *ctx, int port, int index, uint16_t *pkey, struct rnic_err *err) {
    *pkey = 0xffff;
    return SAY(ctx, " %d %d", port, index);
}

static int rec_query_counters(struct rnic_context *ctx, struct rnic_counters *out, struct rnic_err *err) {
    for (int i = 0; i < RNIC_CNT_MAX; i++)
        out->value[i] = (1ull << 40) + (uint64_t)i;
    return SAY(ctx, "");
}

static int rec_query_rt_values(struct rnic_context *ctx, struct rnic_values_ex *values, struct rnic_err *err) {
    values->raw_clock = (struct timespec){3, 5};
    return SAY(ctx, " %u", values->comp_mask);
}

static int rec_set_fault(struct rnic_context *ctx, const struct rnic_fault *f, struct rnic_err *err) {
    if (!f) {
        note(ctx, "set_fault off\n");
        return fails(ctx, "set_fault", err);
    }
    note(ctx, "set_fault seed=%lu loss=%u duplicate=%u reorder=%u delay=%u flip=%u gap=%u delay_ns=%lu\n", f->seed,
         f->loss, f->duplicate, f->reorder, f->delay, f->flip, f->reorder_gap, f->delay_ns);
    for (int i = 0; i < RNIC_FAULT_RULES; i++)
        if (f->lose[i].nth)
            note(ctx, "lose opcode=%d nth=%u count=%u\n", f->lose[i].opcode, f->lose[i].nth, f->lose[i].count);
    return fails(ctx, "set_fault", err);
}

static int rec_get_async_event(struct rnic_context *ctx, struct rnic_async_event *event, struct rnic_err *err) {
    struct recorder *r = rec(ctx);
    uint64_t count;
    int rc = fails(ctx, "get_async_event", err);

    if (rc)
        return rc;
    if (read(ctx->async_fd, &count, sizeof(count)) < 0)
        return -EAGAIN;
    *event = r->event;
    return 0;
}

static int rec_ack_async_event(struct rnic_context *ctx, const struct rnic_async_event *event, struct rnic_err *err) {
    return SAY(ctx, " %d", event->event_type);
}

static int rec_set_pkeys(struct rnic_context *ctx, int port, const uint16_t *pkeys, int n, struct rnic_err *err) {
    note(ctx, "set_pkeys %d", port);
    for (int i = 0; i < n; i++)
        note(ctx, " %04x", pkeys[i]);
    note(ctx, "\n");
    return fails(ctx, "set_pkeys", err);
}

/* ---------------------------------------------------------------- the provider */

static const struct rnic_ext_stats stats = {rec_query_counters, rec_query_qp_stats};
static const struct rnic_ext_faults faults = {rec_set_fault};
static const struct rnic_ext_pkeys pkeys = {rec_set_pkeys};
static const struct rnic_ext_memory memory = {rec_alloc_mr};
static const struct rnic_ext_query query = {rec_query_mw, rec_query_wq, rec_query_ah, rec_query_raw};

/* All but the short cuts, which would hide the calls that tests look for. */
static const struct rnic_extension extensions[] = {
    {RNIC_EXT_CM, &recorder_cm},
    {RNIC_EXT_STATS, &stats},
    {RNIC_EXT_FAULTS, &faults},
    {RNIC_EXT_PKEYS, &pkeys},
    {RNIC_EXT_MEMORY, &memory},
    {RNIC_EXT_QUERY, &query},
    {0},
};

const struct rnic_ops *recorder_ops(void) {
    static struct rnic_ops ops;

    if (ops.close)
        return &ops;
    ops = (struct rnic_ops){
        .close = rec_close,
        .close_all = rec_close_all,
        .query_device = rec_query_device,
        .query_port = rec_query_port,
        .query_gid = rec_query_gid,
        .query_pkey = rec_query_pkey,
        .query_device_ex = rec_query_device_ex,
        .query_rt_values = rec_query_rt_values,
        .get_async_event = rec_get_async_event,
        .ack_async_event = rec_ack_async_event,
    };
    recorder_mem_ops(&ops);
    recorder_cq_ops(&ops);
    recorder_qp_ops(&ops);
    recorder_datagrams_ops(&ops);
    return &ops;
}

struct rnic_context *recorder_context(const struct rnic_provider *provider, const struct rnic_ops *ops) {
    struct recorder *r = calloc(1, sizeof(*r));

    r->pub = (struct rnic_context){ops, provider, eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), 4, -1};
    return &r->pub;
}

/* Its contexts are made by recorder_new(). */
static int list_none(struct rnic_device_info *list, int max, struct rnic_err *err) {
    (void)list, (void)max, (void)err;
    return 0;
}

static int open_none(const char *name, const struct rnic_open_attr *attr, struct rnic_context **ctx,
                     struct rnic_err *err) {
    (void)name, (void)attr, (void)ctx, (void)err;
    return -ENODEV;
}

/* ---------------------------------------------------------------- the test's own handles */

struct rnic_context *recorder_new(void) {
    static struct rnic_provider provider = {
        .name = "recorder", .list = list_none, .open = open_none, .extensions = extensions};

    provider.ops = recorder_ops();
    return recorder_context(&provider, provider.ops);
}

void recorder_free(struct rnic_context *ctx) { free(ctx); }

const char *recorder_log(const struct rnic_context *ctx) { return rec(ctx)->log; }

void recorder_clear(struct rnic_context *ctx) {
    rec(ctx)->log_len = 0;
    rec(ctx)->log[0] = 0;
}

int recorder_alive(const struct rnic_context *ctx) { return rec(ctx)->alive; }

void recorder_fail(struct rnic_context *ctx, const char *verb, int err, const char *text, int at) {
    struct recorder *r = rec(ctx);

    snprintf(r->fail_verb, sizeof(r->fail_verb), "%s", verb);
    snprintf(r->fail_text, sizeof(r->fail_text), "%s", text);
    r->fail_err = err;
    r->fail_at = at;
}

void recorder_quiet(struct rnic_context *ctx) { rec(ctx)->quiet = true; }

void recorder_async_event(struct rnic_context *ctx, int type, int port, void *context) {
    rec(ctx)->event = (struct rnic_async_event){.event_type = type, .port_num = port, .context = context};
    ring(ctx->async_fd);
}

struct rnic_cq *recorder_last_cq(struct rnic_context *ctx) { return rec(ctx)->last_cq; }

struct rnic_qp *recorder_last_qp(struct rnic_context *ctx) { return rec(ctx)->last_qp; }
