/* SPDX-License-Identifier: Apache-2.0
 *
 * libibverbs.so.1 over rnic: the objects of libibverbs' ABI, each in front of the object of nic.h that does the work.
 *
 *   device.c      the list of devices; open and close, which takes back what a program has left
 *   query.c       what devices, ports and tables say
 *   memory.c      protection domains, regions, windows, device memory, imports
 *   buffers.c     regions and buffers as rdma-core 65 has them
 *   completion.c  channels, completion queues, their events
 *   counting.c    completion counters
 *   poll_ex.c     the extended completion queue: one completion at a time, field by field
 *   qp.c          queue pairs: create, modify, query, destroy
 *   work.c        post and poll: casts, but for what holds pointers to objects of this library
 *   builder.c     the extended queue pair: work requests built call by call
 *   orders.c      what RDMA-CM's server does to queue pairs of iWARP
 *   srq.c, xrc.c  shared receive queues, XRC domains and the queue pairs that are opened
 *   ah.c          address handles, also those from a completion; multicast
 *   frames.c      work queues, indirection tables, rules for frames and their counters
 *   events.c      asynchronous events
 *   explain.c     what a program is told that looks for its mistake
 *   fail.c        calls that fail because somebody wants to see what the program does then
 *   kernabi.c     structs of the kernel's interface, as librdmacm gets them
 *   text.c        names and rates
 *   private.c     what only drivers call
 *   compat.c      programs of before libibverbs 1.1
 *
 * This room knows nic.h and nothing else of the device.  Layouts are the ABI's (checked at compile time in layout.h).
 * Calls return what the man pages say: an errno, -1, or NULL with errno set.
 */
#ifndef RNIC_IBVERBS_LIB_H
#define RNIC_IBVERBS_LIB_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "nic.h"

#define EXPORT __attribute__((visibility("default")))

/* What every object has, in the list of its context. */
struct object {
    struct object *next, **at;
    void *whole;               /* that it is in, and */
    void (*free)(void *whole); /* what takes that back when the device has taken back what is behind it */
    bool theirs;               /* it lies in memory of the program's own allocator */
};

struct context {
    struct rnic_context *nic;
    const struct rnic_ops *ops;
    struct object *objects;       /* the newest first; under pub->mutex */
    struct context *next;         /* device.c: of those that are closed, and whose objects are not */
    struct rnic_device_attr attr; /* of when it was opened */
    struct ibv_context_ops real;  /* fail.c: what it stands in front of */
    struct verbs_context ex;      /* last: libibverbs' own, whose last member is what programs see */
};
static inline struct context *context_of(struct ibv_context *pub) {
    return (struct context *)((char *)pub - offsetof(struct context, ex.context));
}

struct old_device;
struct device {
    struct ibv_device pub; /* first, as in all of these */
    const struct rnic_provider *provider;
    struct rnic_device_info info;
    int number;
    struct old_device *old; /* compat.c's, and for the device's life */
    struct device *next;
};
struct pd {
    struct ibv_pd pub;
    struct object object;
    struct rnic_pd *nic;
    struct pd *parent; /* of a parent domain: the domain that it stands for, and the program's allocator, or NULL */
    void *(*alloc)(struct ibv_pd *pd, void *pd_context, size_t size, size_t alignment, uint64_t resource_type);
    void (*release)(struct ibv_pd *pd, void *pd_context, void *ptr, uint64_t resource_type);
    void *pd_context;
};
struct td {
    struct ibv_td pub;
    struct object object;
    struct rnic_td *nic;
};
struct mr {
    struct ibv_mr pub;
    struct object object;
    struct rnic_mr *nic;
    struct dmah *hints; /* that it was registered with, or NULL */
    bool imported;
};
struct mw {
    struct ibv_mw pub;
    struct object object;
    struct rnic_mw *nic;
};
struct dm {
    struct ibv_dm pub;
    struct object object;
    struct rnic_dm *nic;
    bool imported;
};
struct dmah {
    struct ibv_dmah pub;
    struct object object;
    int users; /* regions that were registered with it; under pub.context->mutex */
};
struct channel {
    struct ibv_comp_channel pub;
    struct object object;
    struct rnic_comp_channel *nic;
    _Atomic int armed;       /* explain.c: completion queues of it that are armed, as far as is known; */
    _Atomic uint32_t unseen; /* number of a queue pair whose last request is not signaled; 0: none */
    _Atomic bool receives;   /* have been posted that complete there */
};
struct cq {
    struct ibv_cq_ex pub; /* begins as struct ibv_cq */
    struct object object;
    struct rnic_cq *nic;
    struct ibv_pd *domain; /* the parent domain that it was made with, or NULL */
    _Atomic bool armed;    /* explain.c, as of the channel; */
    _Atomic uint32_t unseen;
    _Atomic bool receives;
    _Atomic uint64_t empty_since; /* ns: polled in vain since then; 0: not */
    bool extended;                /* made by create_cq_ex; only such a queue has what follows */
    bool single_threaded;         /* the program polls it by one thread at a time, so that nobody takes the lock */
    pthread_mutex_t polling; /* taken from ibv_start_poll() to ibv_end_poll(); guards the completion that is read */
    struct rnic_wc wc;       /* that completion, */
    struct rnic_wc_ex more;  /* and what struct ibv_wc has no place for */
};
struct srq {
    struct ibv_srq pub;
    struct object object;
    struct rnic_srq *nic;
};
struct xrcd {
    struct ibv_xrcd pub;
    struct object object;
    struct rnic_xrcd *nic;
};
struct builder;
struct qp {
    struct ibv_qp_ex pub; /* begins as struct ibv_qp */
    struct object object;
    struct rnic_qp *nic;
    bool all_signaled;       /* sq_sig_all */
    struct builder *builder; /* NULL: it was created without send_ops_flags */
    struct qp *next;         /* orders.c's list */
    int orders;              /* orders.c's: how many are under way */
};
struct ah {
    struct ibv_ah pub;
    struct object object;
    struct rnic_ah *nic;
};
struct wq {
    struct ibv_wq pub;
    struct object object;
    struct rnic_wq *nic;
};
struct table {
    struct ibv_rwq_ind_table pub;
    struct object object;
    struct rnic_rwq_ind_table *nic;
};
struct flow {
    struct ibv_flow pub;
    struct object object;
    struct rnic_flow *nic;
};
struct counters {
    struct ibv_counters pub;
    struct object object;
    struct rnic_flow_counters *nic;
};

/* The object of nic.h behind one of the library's, or NULL. */
#define NIC(type, p) ((p) ? ((struct type *)(p))->nic : NULL)

/* device.c: an object has come; it goes. */
#define ADD(context, p, free) object_add(context, &(p)->object, p, free)
void object_add(struct ibv_context *context, struct object *object, void *whole, void (*free)(void *whole));
void object_remove(struct ibv_context *context, struct object *object);
/* memory.c: zeros for an object that is made with a domain, or NULL, as of what is asked; and the end of it. */
void *object_take(struct ibv_pd *pd, size_t size, size_t object_at);
void object_give_back(struct ibv_pd *pd, void *whole, struct object *object);
#define TAKE(type, pd) ((struct type *)object_take(pd, sizeof(struct type), offsetof(struct type, object)))
#define GIVE_BACK(pd, p) object_give_back(pd, p, &(p)->object)
/* A call has failed: its words to stderr, where $RNIC_VERBS_DEBUG asks for them. failed: the errno. failed_null: NULL, and
 * errno is set. */
int failed(const char *verb, int rc, const struct rnic_err *err);
void *failed_null(const char *verb, int rc, const struct rnic_err *err);
/* explain.c: the same is told of what happens on the device, once per kind and queue pair.  context: it is open; what a program calls
 * by its context, if it is to be told.  wait: before ibv_get_cq_event() waits; got: an event was taken. */
extern _Atomic bool explain_on;
void explain_context(struct context *c);
void explain_ops(struct ibv_context_ops *ops);
int explain_wait(struct ibv_comp_channel *channel); /* 0, or EINTR */
void explain_got(struct cq *cq);
void explain_refused(const char *verb, uint32_t qpn, int rc, const char *why); /* a call that posts; rc: an errno */
/* For a call without words of its own. */
int refused(const char *verb, int rc, const char *why);
/* The library's own words where the device's would be: rc. */
int worded(struct rnic_err *err, int rc, const char *why);
/* What a provider lacks is EOPNOTSUPP. */
#define UNKNOWN "comp_mask has bits that this library does not know"
#define LACKS "devices of this provider do not have this verb"
#define CALL_BY(how, ops, verb, ...) ((ops)->verb ? how((ops)->verb(__VA_ARGS__)) : -EOPNOTSUPP)
#define JUST_CALL(ops, verb, ...) CALL_BY(UNCANCELLED, ops, verb, __VA_ARGS__)
/* A device's verb, and errno is what it was, whatever the device has tried meanwhile: programs read it after a verb that has
 * succeeded, as that leaves it alone with a kernel.  failed() sets it. */
#define QUIETLY(call)                                                                                                  \
    ({                                                                                                                 \
        int *errno_at_ = &errno, errno_was_ = *errno_at_;                                                              \
        __typeof__(call) answer_ = (call);                                                                             \
        *errno_at_ = errno_was_;                                                                                       \
        answer_;                                                                                                       \
    })
/* The same, and no thread is cancelled in it: with what the device has taken and the library does not know yet.  Posting and
 * polling have no points of cancellation, and do without. */
#define UNCANCELLED(call)                                                                                              \
    ({                                                                                                                 \
        int cancel_was_;                                                                                               \
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_was_);                                                  \
        __typeof__(call) got_ = QUIETLY(call);                                                                         \
        pthread_setcancelstate(cancel_was_, NULL);                                                                     \
        got_;                                                                                                          \
    })
/* The same for what a program has called: it may be that this call is to fail. */
#define CALL(ops, verb, ...) (FAILS(verb) ?: JUST_CALL(ops, verb, __VA_ARGS__))

/* fail.c: calls that are to fail, $RNIC_FAIL.  read: once, 0 or -EINVAL.  ops: those of an open context that programs call
 * without this library. */
extern bool fail_on;
int fail_read(struct rnic_err *err);
int fail_next(int call /* enum rnic_fail_call */); /* 0, or -errno, which has been said */
void fail_ops(struct context *c);
#define FAILS(verb) (fail_on ? fail_next(RNIC_FAIL_##verb) : 0)
/* Verbs of nic.h that one of libibverbs' comes to. */
enum {
    RNIC_FAIL_query_device_ex = RNIC_FAIL_query_device,
    RNIC_FAIL_reg_mr_ex = RNIC_FAIL_reg_mr,
    RNIC_FAIL_create_cq_ex = RNIC_FAIL_create_cq,
    RNIC_FAIL_create_srq_ex = RNIC_FAIL_create_srq,
    RNIC_FAIL_create_qp_ex = RNIC_FAIL_create_qp,
    RNIC_FAIL_create_xrc_qp = RNIC_FAIL_create_qp,
    RNIC_FAIL_attach_comp_cntr = RNIC_FAIL_qp_attach_comp_cntr,
    RNIC_FAIL_post_send_whole = RNIC_FAIL_post_send,
};

/* Destroys an object that may have events, and is the device's answer.  Programs use an object until they acknowledge its
 * event, so the device refuses until then, and is asked again after the next acknowledgement (man ibv_ack_async_event).  A
 * thread can be cancelled while it waits, and the object stays.  attempt: asks the device. */
#define TAKE_AWAY_BY(attempt, verb, err, acks)                                                                         \
    ({                                                                                                                 \
        int result_ = FAILS(verb);                                                                                     \
        for (bool ask_ = !result_; ask_;) {                                                                            \
            uint32_t seen_ = acks_seen(acks);                                                                          \
            (err)->unacknowledged = 0;                                                                                 \
            result_ = (attempt);                                                                                       \
            ask_ = result_ == -EBUSY && (err)->unacknowledged;                                                         \
            if (ask_)                                                                                                  \
                acks_wait(acks, seen_);                                                                                \
        }                                                                                                              \
        if (!result_)                                                                                                  \
            acks_seen(acks); /* who has acknowledged the last one has let go of the mutex */                           \
        result_;                                                                                                       \
    })
#define TAKE_AWAY(context, verb, nic_, err, acks)                                                                      \
    TAKE_AWAY_BY(JUST_CALL(context_of(context)->ops, verb, nic_, err), verb, err, acks)

/* events.c: an object's acknowledgements: how many there were, and waiting for more than have been seen. */
struct acks {
    pthread_mutex_t *mutex;
    pthread_cond_t *cond;
    const uint32_t *asynchronous, *completions; /* counts; completions: of a completion queue, or NULL */
};
uint32_t acks_seen(const struct acks *acks);
void acks_wait(const struct acks *acks, uint32_t seen);

/* events.c: what an event is of. */
enum subject { OF_PORT, OF_CQ, OF_QP, OF_SRQ, OF_WQ };
enum subject event_subject(int event_type);

/* compat.c: the context behind that of a program of before 1.1, or the context itself. */
struct ibv_context *compat_context(struct ibv_context *context);

/* A descriptor that is readable when fd is or the device has failed, and blocking or not as the program sets it: -1 and
 * errno. */
int shown_descriptor(struct rnic_context *nic, int fd);
void shown_close(int shown);
/* Waits as a read of that descriptor would, for the channel's events, or with NULL for asynchronous ones: 0, look again; or an
 * errno (EAGAIN: it does not block). */
int shown_wait(struct context *c, int shown, struct rnic_comp_channel *channel);

/* What an open context's tables get: of what the provider has. */
#define GIVE(table, name, ops, verb, function)                                                                         \
    if ((ops)->verb)                                                                                                   \
    (table)->name = function
void completion_ops(struct verbs_context *ex, const struct rnic_ops *ops);
void memory_ops(struct verbs_context *ex, const struct rnic_ops *ops);
void query_ops(struct verbs_context *ex, const struct rnic_ops *ops);
void qp_ops(struct verbs_context *ex, const struct rnic_ops *ops);
void work_ops(struct verbs_context *ex, const struct rnic_ops *ops);
void srq_ops(struct verbs_context *ex, const struct rnic_ops *ops);
void xrc_ops(struct verbs_context *ex, const struct rnic_ops *ops);
void frame_ops(struct verbs_context *ex, const struct rnic_ops *ops);

/* device.c: it has failed, and nothing comes from it any more. */
bool device_gone(struct context *c);
/* query.c: a file of sysfs without its line end, and its length; -1.  libibverbs exports it, and declares it for drivers. */
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);
/* ah.c: what drivers take, and the device refuses: more bits of a flow label than there are, or shown_sl() as a priority. */
void as_drivers_take(struct rnic_ah_attr *attr);
/* What a device does not support in a work request, drivers call wrong: -EINVAL.  Other results stay. */
static inline int as_drivers_refuse(int rc) { return rc == -EOPNOTSUPP ? -EINVAL : rc; }
/* work.c: what a program calls by the context, with the device's words. */
int work_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad, struct rnic_err *err);
int work_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad, struct rnic_err *err);
int work_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad, struct rnic_err *err);
int work_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int completion_req_notify(struct ibv_cq *cq, int solicited_only);
/* work.c: what stands for a completion's service level, which RoCE does not have.  Of a datagram it is the header that it came
 * with, as hardware puts it and as UCX reads it: bit 3, a UDP header; bits 0 to 2, 1 for IPv6 or 2 for IPv4. */
uint8_t shown_sl(const struct rnic_wc *wc);
/* buffers.c: one more, or one less, region has the hints, if any. */
void dmah_use(struct dmah *hints, int more);
/* poll_ex.c */
void cq_extend(struct cq *cq, uint64_t wc_flags, bool single_threaded);

/* orders.c: which queue pairs orders are for.  leave: no order is under way, and none comes any more. */
void orders_follow(struct qp *qp);
void orders_leave(const struct qp *qp);
void orders_leave_all(const struct ibv_context *context);

/* qp.c: an object for a queue pair of nic.h; builder.c: the calls that build work requests for it, 0 or an errno, and how much
 * one of these may carry. */
struct ibv_qp *qp_show(struct ibv_context *context, struct qp *qp);
int builder_add(struct qp *qp, uint64_t send_ops_flags);
void builder_grant(struct qp *qp, const struct rnic_qp_cap *cap);
void builder_free(struct qp *qp);

#endif
