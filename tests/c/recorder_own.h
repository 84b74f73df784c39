/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the recorder share.  Each has the operations of some objects and enters them into the table.
 */
#ifndef RNIC_RECORDER_OWN_H
#define RNIC_RECORDER_OWN_H

#include <stddef.h>

#include "recorder.h"

#define LOG_SIZE (1 << 20)
#define QUEUE 1024

struct recorder {
    struct rnic_context pub;
    char log[LOG_SIZE];
    size_t log_len;
    bool quiet;
    int alive;
    char fail_verb[32], fail_text[256];
    int fail_err, fail_at;
    struct rnic_wc done[QUEUE]; /* a ring */
    unsigned done_head, done_tail;
    struct rnic_async_event event;
    struct rnic_cq *last_cq;
    struct rnic_qp *last_qp;
    uint32_t next_number; /* of keys and queue pairs */
};

static inline struct recorder *rec(const struct rnic_context *ctx) { return (struct recorder *)ctx; }

/* Appends to the log: a line, or less. */
__attribute__((format(printf, 2, 3))) void note(struct rnic_context *ctx, const char *format, ...);
/* 0, or what recorder_fail() ordered for this verb. */
int fails(struct rnic_context *ctx, const char *verb, struct rnic_err *err);

/* Of an operation with a context and `err`: writes down its name and more; 0, or the error that it was ordered. */
#define SAY(ctx, format, ...)                                                                                          \
    (note(ctx, "%s" format "\n", __func__ + sizeof "rec", ##__VA_ARGS__), fails(ctx, __func__ + sizeof "rec", err))

/* A copy of `init`; it counts as alive. */
void *make(struct rnic_context *ctx, const void *init, size_t size);
#define MAKE(ctx, out, type, ...) (*(out) = make(ctx, &(type){__VA_ARGS__}, sizeof(type)), 0)
/* Frees the object if rc, its result, is 0. */
int gone(struct rnic_context *ctx, void *object, int rc);
/* Makes an eventfd readable. */
void ring(int fd);

/* Of the line that is being written: a bind, which is done at once (recorder_mem.c), and a path (recorder_qp.c). */
void note_bind(struct rnic_mw *mw, uint32_t rkey, const struct rnic_mw_bind_info *info);
void note_path(struct rnic_context *ctx, const char *name, const struct rnic_ah_attr *a);

void recorder_mem_ops(struct rnic_ops *ops);
void recorder_cq_ops(struct rnic_ops *ops);
void recorder_qp_ops(struct rnic_ops *ops);
void recorder_datagrams_ops(struct rnic_ops *ops);

/* What is no verb of libibverbs: the provider's extensions. */
extern const struct rnic_ext_cm recorder_cm;
int rec_query_qp_stats(struct rnic_qp *qp, struct rnic_qp_stats *out, struct rnic_err *err);
int rec_alloc_mr(struct rnic_pd *pd, uint64_t length, uint32_t access, struct rnic_mr **mr, struct rnic_err *err);
int rec_query_mw(struct rnic_mw *mw, struct rnic_mw_bind_info *info, struct rnic_err *err);
int rec_query_wq(struct rnic_wq *wq, int *state, uint32_t *depth, struct rnic_err *err);
int rec_query_ah(struct rnic_ah *ah, struct rnic_ah_attr *attr, struct rnic_err *err);
int rec_query_raw(struct rnic_context *ctx, struct rnic_raw_attr *attr, struct rnic_err *err);

/* The table with all verbs; it is filled in by the first call. */
const struct rnic_ops *recorder_ops(void);
struct rnic_context *recorder_context(const struct rnic_provider *provider, const struct rnic_ops *ops);

#endif
